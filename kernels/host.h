// host.h - what this process may take of its machine: the least of what the machine has, what the limits of its
// container (control groups, version 1 and 2) leave, and what its own limits (ulimit) leave. And its signals, and a
// deadline for calls that may not return.
//
// root: "", or a directory in which a test has laid out /proc and /sys. What cannot be read is no limit.
#pragma once
#include <pthread.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct HostMemory {
    size_t bytes;
    const char* whose;  // what has no more than that, in words
} HostMemory;

// Memory that may still be taken. What the machine or the container has is for this many processes.
HostMemory host_memory(const char* root, int processes);
// Bytes of this process that are in memory now.
size_t host_resident(void);

// Cores that a process (0: this one) may use: its affinity mask, or the CPU quota of its container, rounded up. >= 1.
int host_cores(const char* root, pid_t process);

// Of all threads of this process so far.
double host_processor_seconds(void);
// Of this thread: seconds on a core, and seconds in which it could have run and had none, 0 where the system does not
// say.
typedef struct HostTurns {
    double ran, waited;
} HostTurns;
HostTurns host_turns(void);

// Threads that only wait, until they are given back: they show how many the system allows.
typedef struct HostThreads {
    int n;  // as many as could be had
    pthread_t* threads;
    pthread_mutex_t gate;
} HostThreads;
void host_take_threads(HostThreads* held, int wanted);
void host_give_back_threads(HostThreads* held);
// A thread beside the main one, which alone gets signals: one must wake it from what it waits for. Whether it runs.
int host_begin_thread(pthread_t* thread, void* (*run)(void*), void* argument);

// The stack of this process at most, bytes.
size_t host_stack(void);

// Of SIGHUP, SIGINT, SIGTERM and SIGUSR1, those that were ignored when this process began are ignored again: a library
// may take one when it is loaded (UCX: SIGHUP). It is so when main begins; to be called where others have been loaded.
void host_keep_ignored(void);

// An end for a call that never returns where a rank is missing: MPI's start and end, and the calls of NCCL.
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

// How many of so many descriptors can be had at once.
int host_descriptors(int wanted);
