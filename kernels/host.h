// host.h - tells what this process may take of its machine: the least of what the machine has, what the limits of its
// container (control groups, version 1 and 2) leave, and what its own limits (ulimit) leave. It also keeps signals,
// and sets a deadline for calls that may not return.
//
// root: "", or a directory in which a test has laid out /proc and /sys. A file that cannot be read sets no limit.
#pragma once
#include <pthread.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct HostMemory {
    size_t bytes;
    const char* whose;  // the limit that allows no more, in words
} HostMemory;

// Returns the memory that may still be taken. `processes` share what the machine or the container has.
HostMemory host_memory(const char* root, int processes);
// Returns the bytes of this process that are in memory now.
size_t host_resident(void);

// Returns the cores that a process (0: this one) may use: its affinity mask, or its container's CPU quota; at least 1.
int host_cores(const char* root, pid_t process);

// These return the seconds that all threads of this process, and this thread, have had on cores.
double host_processor_seconds(void);
double host_thread_seconds(void);
// The turns of this thread: seconds on a core, and seconds in which it could have run but had none (0: not known).
typedef struct HostTurns {
    double ran, waited;
} HostTurns;
HostTurns host_turns(void);

// Threads that only wait until they are given back, to show how many the system allows.
typedef struct HostThreads {
    int n;  // as many as could be had
    pthread_t* threads;
    pthread_mutex_t gate;
} HostThreads;
void host_take_threads(HostThreads* held, int wanted);
void host_give_back_threads(HostThreads* held);
// Begins a thread without signals: the main one gets them all, since they must wake it. Returns whether it runs.
int host_begin_thread(pthread_t* thread, void* (*run)(void*), void* argument);

// Returns the most bytes that the stack of this process may have.
size_t host_stack(void);

// Ignores those of SIGHUP, SIGINT, SIGTERM and SIGUSR1 again that were ignored when this process began: a library may
// take one when it is loaded (UCX: SIGHUP). It runs before main; call it again after loading others.
void host_keep_ignored(void);

// A deadline ends the process if a call does not return, because a rank is missing: MPI's start and end, NCCL's calls.
//
//   deadline_begin(timeout_seconds, "rank %d of %d: MPI_Init", rank, size);
//   MPI_Init(NULL, NULL);
//   deadline_end();
//
// When the seconds are over first, the process prints one line to stderr, "train: rank 1 of 4: MPI_Init: not done after
// 600 s: ...", and leaves with status 1 at once: nothing that is registered for the end runs, since MPI's end would
// wait as well. One deadline at a time; it is kept by SIGALRM, which nobody else here uses.
__attribute__((format(printf, 2, 3))) void deadline_begin(double seconds, const char* format, ...);
void deadline_end(void);

// Returns how many of `wanted` descriptors can be had at once.
int host_descriptors(int wanted);
