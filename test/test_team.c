// test_team.c - threads of the CPU backend: every task runs once, whoever comes, sleeps or comes late.
#define _GNU_SOURCE
#include "kernels/cpu/team.h"

#include <stdatomic.h>
#include <time.h>

#include "plan/base.h"
#include "test/test.h"

enum { TASKS = 1000, THREADS = 4 };

typedef struct Count {
    int* runs;  // of each task: no two threads write one
    _Atomic int on_thread[THREADS];
    int pause_us;
} Count;

static void count_run(const void* job, size_t task, int thread) {
    Count* c = (Count*)job;
    c->runs[task]++;
    atomic_fetch_add(&c->on_thread[thread], 1);
    if (c->pause_us) nanosleep(&(struct timespec){0, 1000 * c->pause_us}, NULL);
}

static int ran_once(const int* runs, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (runs[i] != 1) return 0;
    return 1;
}

static void run_and_check(size_t n, size_t at_once, int alone, int pause_us) {
    static int runs[TASKS];
    Count c = {.runs = runs, .pause_us = pause_us};
    memset(runs, 0, sizeof runs);
    team_run(count_run, &c, n, at_once, alone);
    CHECK(ran_once(runs, n));
    for (int t = 1; t < THREADS && alone; t++) CHECK(c.on_thread[t] == 0);
    for (int t = team_threads(); t < THREADS; t++) CHECK(c.on_thread[t] == 0);
}

static void every_task_runs_once(void) {
    static const size_t tasks[] = {0, 1, 2, 3, 17, TASKS}, at_once[] = {1, 2, 5, TASKS, 2 * TASKS};
    for (int threads = 1; threads <= THREADS; threads++) {
        CHECK(team_open(threads) == 0 && team_threads() == threads);
        for (int i = 0; i < COUNT(tasks); i++)
            for (int j = 0; j < COUNT(at_once); j++) run_and_check(tasks[i], at_once[j], (i + j) % 3 == 0, 0);
    }
}

// In quick succession helpers find the gate open, closed, or open for the next run; after a rest they are asleep.
static void no_run_is_lost_between_two_others(void) {
    CHECK(team_open(THREADS) == 0);
    for (int i = 0; i < 20000; i++) run_and_check((size_t)(i % 9), 1, 0, 0);
    for (int i = 0; i < 50; i++) {
        nanosleep(&(struct timespec){0, 1000 * (i % 5) * 50}, NULL);
        run_and_check(7, 1, 0, i % 2 * 20);
    }
}

// Tasks that sleep leave the cores to the helpers.
static void helpers_take_their_share_of_long_tasks(void) {
    static int runs[TASKS];
    Count c = {.runs = runs, .pause_us = 2000};
    memset(runs, 0, sizeof runs);
    CHECK(team_open(THREADS) == 0);
    team_run(count_run, &c, 200, 1, 0);
    CHECK(ran_once(runs, 200));
    for (int t = 0; t < THREADS; t++) CHECK(c.on_thread[t] > 0);
}

static void fewer_threads_are_asked_for_after_more(void) {
    for (int threads = THREADS; threads >= 1; threads--) {
        CHECK(team_open(threads) == 0);
        for (int i = 0; i < 200; i++) run_and_check(12, 1, 0, 0);
    }
}

int main(void) {
    RUN(every_task_runs_once);
    RUN(no_run_is_lost_between_two_others);
    RUN(helpers_take_their_share_of_long_tasks);
    RUN(fewer_threads_are_asked_for_after_more);
    return test_done();
}
