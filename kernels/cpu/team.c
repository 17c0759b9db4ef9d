// team.c - see team.h. One word, the gate, says which run this is, whether it is open, and how many helpers are inside.
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/team.h"
#include "plan/base.h"

enum { INSIDE = (1 << 9) - 1, OPEN = 1 << 9, RUN = 1 << 10 };  // parts of the gate: helpers inside, open, run number
enum { MOST_HELPERS = INSIDE };

// A thread watches for at most this long before it sleeps; each time in vain halves that, each success doubles it.
static const double least_watch = 1e-6, most_watch = 50e-6;

static struct {
    _Alignas(64) _Atomic unsigned gate;
    _Alignas(64) _Atomic size_t next;        // task
    _Alignas(64) _Atomic unsigned sleepers;  // helpers that sleep at the gate
    _Atomic unsigned left;                   // changes when the last helper leaves a closed gate
    TeamTask f;
    const void* job;
    size_t n, at_once;
    _Atomic int threads;  // that may come, the caller one of them
    int helpers;          // that exist
} team = {.threads = 1};

static void sleep_while(_Atomic unsigned* word, unsigned value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}
static void wake(_Atomic unsigned* word, int n) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0); }

static void pause_shortly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Does the gate admit a helper that was in the run `seen` last?
static int admits(unsigned gate, unsigned seen, int thread) {
    return (gate & OPEN) && gate / RUN != seen && thread < team.threads;
}
static int is_empty(unsigned gate, unsigned seen, int thread) {
    (void)seen, (void)thread;
    return (gate & INSIDE) == 0;
}

// Watches the gate; 1 as soon as `until` is true of it.
static int watch(int (*until)(unsigned gate, unsigned seen, int thread), unsigned seen, int thread, double* patience) {
    double started = now_seconds();
    for (int i = 1;; i++, pause_shortly()) {
        if (until(atomic_load_explicit(&team.gate, memory_order_acquire), seen, thread)) {
            *patience = MIN(most_watch, 2 * *patience);
            return 1;
        }
        if (i % 8 == 0 && now_seconds() - started > *patience) break;
    }
    *patience = MAX(least_watch, *patience / 2);
    return 0;
}

static void take_tasks(int thread) {
    size_t n = team.n, at_once = team.at_once, first;
    while ((first = atomic_fetch_add_explicit(&team.next, at_once, memory_order_relaxed)) < n)
        for (size_t task = first; task < MIN(n, first + at_once); task++) team.f(team.job, task, thread);
}

static void* help(void* argument) {
    int thread = (int)(intptr_t)argument;
    unsigned seen = 0;
    double patience = most_watch;
    for (;;) {
        if (!watch(admits, seen, thread, &patience)) {
            atomic_fetch_add(&team.sleepers, 1);
            unsigned gate = atomic_load(&team.gate);
            if (!admits(gate, seen, thread)) sleep_while(&team.gate, gate);
            atomic_fetch_sub(&team.sleepers, 1);
        }
        unsigned gate = atomic_load(&team.gate);
        if (!admits(gate, seen, thread) || !atomic_compare_exchange_strong(&team.gate, &gate, gate + 1)) continue;
        seen = gate / RUN;
        take_tasks(thread);
        gate = atomic_fetch_sub(&team.gate, 1) - 1;
        if (gate & (OPEN | INSIDE)) continue;
        atomic_fetch_add(&team.left, 1);
        wake(&team.left, 1);
    }
    return NULL;
}

int team_open(int n) {
    team.threads = MAX(1, MIN(n, MOST_HELPERS + 1));
    for (; team.helpers + 1 < team.threads; team.helpers++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, (void*)(intptr_t)(team.helpers + 1))) {
            team.threads = 1;
            return -1;
        }
        pthread_detach(thread);
    }
    return 0;
}

int team_threads(void) { return team.threads; }

// The gate is closed; waits until the last helper has left.
static void wait_for_helpers(void) {
    static double patience = 50e-6;
    if (is_empty(atomic_load(&team.gate), 0, 0) || watch(is_empty, 0, 0, &patience)) return;
    for (;;) {
        unsigned left = atomic_load(&team.left);
        if (is_empty(atomic_load(&team.gate), 0, 0)) return;
        sleep_while(&team.left, left);
    }
}

void team_run(TeamTask f, const void* job, size_t n, size_t at_once, int alone) {
    if (n == 0) return;
    if (alone || team.threads == 1 || n <= at_once) {
        for (size_t task = 0; task < n; task++) f(job, task, 0);
        return;
    }
    team.f = f, team.job = job, team.n = n, team.at_once = MAX(at_once, (size_t)1);
    atomic_store(&team.next, 0);
    unsigned gate = atomic_load(&team.gate);
    atomic_store(&team.gate, gate + RUN + OPEN);
    if (atomic_load(&team.sleepers)) wake(&team.gate, INT_MAX);
    take_tasks(0);
    atomic_fetch_and(&team.gate, ~(unsigned)OPEN);
    wait_for_helpers();
}
