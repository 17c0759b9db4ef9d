// team.h - the threads of the CPU backend: one caller, and helpers that take a share of its tasks when they come.
//
// Nobody waits for a thread that has not come. Tasks are handed out one after another; when none is left the caller
// waits only for helpers that are inside one. A helper that sleeps, or whose core somebody else has, costs nothing: the
// caller does its part. Between two runs helpers watch for the next one for as long as that has paid lately, then they
// sleep.
#pragma once
#include <stddef.h>

// Task `task` of `job`, on thread `thread`, which is 0 for the caller.
typedef void (*TeamTask)(const void* job, size_t task, int thread);

// Ready for n threads, the caller one of them. 0, or -1 where they could not be started. Threads stay until the process
// ends: later there might be no addresses left for their stacks.
int team_open(int n);
// Threads of team_open's last call; 1 before it.
int team_threads(void);

// f(job, 0 .. n - 1), each once, on any thread and in any order; threads take `at_once` of them at a time, at least 1.
// With `alone` all on the caller, in order. A task runs no team itself.
void team_run(TeamTask f, const void* job, size_t n, size_t at_once, int alone);
