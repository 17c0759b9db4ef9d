// team.c - the threads of the CPU backend, see cpu.h.
#include <stdlib.h>

#include "kernels/cpu/cpu.h"

static int threads = 1;

int team_threads(void) { return threads; }

#ifdef _OPENMP
#include <omp.h>

void team_open(int n) {
    omp_set_dynamic(0);
    threads = MAX(1, n);
}

void team_run(TeamTask f, const void* job, size_t n, size_t at_once, int alone) {
    at_once = MAX(at_once, (size_t)1);
#pragma omp parallel for schedule(dynamic, at_once) num_threads(threads) if (!alone && n > at_once)
    for (size_t task = 0; task < n; task++) f(job, task, omp_get_thread_num());
}

// After a loop helpers watch for the next one for some tens of microseconds (libgomp counts rounds), then they sleep:
// the milliseconds of both libraries would be taken from others that compute on these cores. libgomp reads its settings
// when it is loaded; linked statically, after constructors of this priority.
__attribute__((constructor(101))) static void watch_shortly(void) {
    if (getenv("OMP_WAIT_POLICY")) return;
    setenv("GOMP_SPINCOUNT", "1000", 0);
    setenv("KMP_BLOCKTIME", "0", 0);
}

#else

void team_open(int n) { (void)n; }

void team_run(TeamTask f, const void* job, size_t n, size_t at_once, int alone) {
    (void)at_once, (void)alone;
    for (size_t task = 0; task < n; task++) f(job, task, 0);
}

#endif
