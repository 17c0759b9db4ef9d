// team.h - the threads of the CPU backend, which are OpenMP's: a parallel loop over tasks.
#pragma once
#include <stddef.h>

// Task `task` of `job`, on thread `thread`, which is 0 for the caller.
typedef void (*TeamTask)(const void* job, size_t task, int thread);

// From now on n threads, the caller one of them; the first loop starts them. Without OpenMP there is the caller alone.
void team_open(int n);
// Threads of team_open's last call; 1 before it.
int team_threads(void);

// f(job, 0 .. n - 1), each once, on any thread and in any order; threads take `at_once` of them at a time, at least 1.
// With `alone` all on the caller, in order. A task runs no team itself.
void team_run(TeamTask f, const void* job, size_t n, size_t at_once, int alone);
