// peak.c - see peak.h.
#define _GNU_SOURCE
#include <time.h>

#include "kernels/cpu/peak.h"

// n rounds of 12 independent instructions, enough to hide their latency. Their values do not matter; only registers
// that a call may destroy are written.
#if defined(__x86_64__)
#define TWELVE(op) \
    op "0\n" op "1\n" op "2\n" op "3\n" op "4\n" op "5\n" op "6\n" op "7\n" op "8\n" op "9\n" op "10\n" op "11\n"
#define FOUR_TILES                                                   \
    "tdpbf16ps %tmm6, %tmm4, %tmm0\ntdpbf16ps %tmm7, %tmm4, %tmm1\n" \
    "tdpbf16ps %tmm6, %tmm5, %tmm2\ntdpbf16ps %tmm7, %tmm5, %tmm3\n"

static void run_rounds(PeakUnit unit, int n) {
    static const uint8_t tiles[64] = {
        [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
        [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};
    if (unit == PEAK_TILES) __asm__ volatile("ldtilecfg %0" ::"m"(tiles));
    else __asm__ volatile("vzeroall");  // else their contents might be subnormal, which is slow
    for (int i = 0; i < n; i++) {
        if (unit == PEAK_FMA_YMM) __asm__ volatile(TWELVE("vfmadd231ps %ymm15, %ymm14, %ymm"));
        else if (unit == PEAK_FMA_ZMM) __asm__ volatile(TWELVE("vfmadd231ps %zmm15, %zmm14, %zmm"));
        else if (unit == PEAK_PAIRS_ZMM) __asm__ volatile(TWELVE("vdpbf16ps %zmm15, %zmm14, %zmm"));
        else __asm__ volatile(FOUR_TILES FOUR_TILES FOUR_TILES);
    }
    if (unit == PEAK_TILES) __asm__ volatile("tilerelease");
    else __asm__ volatile("vzeroupper");
}
#else
static void run_rounds(PeakUnit unit, int n) { (void)unit, (void)n; }
#endif

static const CpuIsa needs[] = {CPU_AVX2, CPU_AVX512, CPU_AVX512BF16, CPU_AMX};

// Of one instruction: 2 for each multiply-add of 8 lanes, 16 lanes, 16 lanes of pairs, and of 16 x 16 sums over a
// depth of 32 bf16 (64 bytes).
static const double flops[] = {2 * 8, 2 * 16, 2 * 16 * 2, 2 * 16 * 16 * 32};

static double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct Try {
    PeakUnit unit;
    double* rates;  // of each thread
} Try;

static void measure(const void* job, size_t task, int thread) {
    const Try* j = (const Try*)job;
    int rounds = j->unit == PEAK_TILES ? 10000 : 200000;
    (void)thread;
    double started = thread_seconds();
    run_rounds(j->unit, rounds);
    j->rates[task] = 12 * flops[j->unit] * rounds / (thread_seconds() - started);
}

double cpu_peak_of(PeakUnit unit) {
    enum { MOST_THREADS = 512, TRIES = 8 };
    double rates[MOST_THREADS], best = 0;
    int threads = MIN(cpu_threads(), (int)MOST_THREADS);
    for (int i = 0; i < TRIES && cpu_has(needs[unit]); i++) {
        double sum = 0;
        team_run(measure, &(Try){unit, rates}, (size_t)threads, 1, 0);
        for (int t = 0; t < threads; t++) sum += rates[t];
        best = MAX(best, sum);
    }
    return best;
}

double cpu_peak(const Kernels* k, DType dt) {
    double best = 0;
    int isa = CPU_ISAS - 1;
    while (isa > CPU_REFERENCE && cpu_kernels((CpuIsa)isa) != k) isa--;
    for (int unit = 0; unit < PEAK_UNITS; unit++)
        if ((int)needs[unit] <= isa && (dt == DT_BF16 || unit <= PEAK_FMA_ZMM))
            best = MAX(best, cpu_peak_of((PeakUnit)unit));
    return best;
}
