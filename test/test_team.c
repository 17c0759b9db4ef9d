// test_team.c - threads of the CPU backend: every task runs once, however many threads there are and take at a time.
#define _GNU_SOURCE
#include "kernels/cpu/cpu.h"

#include <stdatomic.h>
#include <time.h>

#include "plan/base/base.h"
#include "test/test.h"

enum { TASKS = 1000, THREADS = 4 };

typedef struct Count {
    int runs[TASKS];  // of each task: no two threads write one
    _Atomic int on_thread[THREADS], last;
    int fell, pause_us;
} Count;

static void count_run(const void* job, size_t task, int thread) {
    Count* c = (Count*)job;
    c->runs[task]++;
    atomic_fetch_add(&c->on_thread[thread], 1);
    if (atomic_exchange(&c->last, (int)task) > (int)task) c->fell = 1;
    if (c->pause_us) nanosleep(&(struct timespec){0, 1000 * c->pause_us}, NULL);
}

static Count run_and_check(size_t n, size_t at_once, int alone, int pause_us) {
    Count c = {.pause_us = pause_us};
    team_run(count_run, &c, n, at_once, alone);
    for (size_t i = 0; i < TASKS; i++) CHECK(c.runs[i] == (i < n));
    for (int t = alone ? 1 : team_threads(); t < THREADS; t++) CHECK(c.on_thread[t] == 0);
    if (alone) CHECK(!c.fell);
    return c;
}

// More threads, then fewer again.
CLAIM(every_task_runs_once) {
    static const int threads[] = {1, 2, 3, 4, 2, 1};
    static const size_t tasks[] = {0, 1, 2, 3, 17, TASKS}, at_once[] = {0, 1, 2, 5, TASKS, 2 * TASKS};
    for (int t = 0; t < COUNT(threads); t++) {
        team_open(threads[t]);
        CHECK(team_threads() == threads[t] || team_threads() == 1);
        for (int i = 0; i < COUNT(tasks); i++)
            for (int j = 0; j < COUNT(at_once); j++) run_and_check(tasks[i], at_once[j], (i + j) % 3 == 0, 0);
    }
}

// Tasks that sleep leave the cores to the helpers.
CLAIM(helpers_take_their_share_of_long_tasks) {
    team_open(THREADS);
#ifndef HAVE_OPENMP
    SKIP("built without OpenMP");
#endif
    CHECK(team_threads() == THREADS);
    Count c = run_and_check(200, 1, 0, 2000);
    for (int t = 0; t < THREADS; t++) CHECK(c.on_thread[t] > 0);
}

int main(void) { return test_main(); }
