// host.h - what this process may take of its machine: the least of what the machine has, what the limits of its
// container (control groups, version 1 and 2) leave, and what its own limits (ulimit) leave.
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

// The stack of this process at most, bytes.
size_t host_stack(void);

// Of SIGHUP, SIGINT, SIGTERM and SIGUSR1, those that were ignored when this process began are ignored again: a library
// may take one when it is loaded (UCX: SIGHUP). It is so when main begins; to be called where others have been loaded.
void host_keep_ignored(void);

// How many of so many descriptors can be had at once.
int host_descriptors(int wanted);
