// clock.c - time on the CPU. Ops have finished when they return, so that a mark is a reading of the clock.
#define _GNU_SOURCE
#include <time.h>

#include "kernels/cpu/cpu.h"

static struct {
    int oversubscribed;
    double seconds[MOST_EVENTS];
} marks;

void cpu_open_clock(const KernelLimits* limits) { marks.oversubscribed = limits->oversubscribed; }

// Where ranks share cores the wall's clock would count the others' work too.
double cpu_clock(void) {
    struct timespec t;
    if (!marks.oversubscribed) return now_seconds();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void cpu_record_event(int i, Stream s) { (void)s, marks.seconds[i] = cpu_clock(); }
void cpu_read_events(double* seconds, int n) { memcpy(seconds, marks.seconds, (size_t)n * sizeof(double)); }
