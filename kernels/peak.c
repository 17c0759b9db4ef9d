// peak.c - what speeds are compared with: what the multiply-add units of a processor do on registers alone, or a square
// matmul.
#define _GNU_SOURCE
#include <math.h>
#include <time.h>

#include "kernels/open.h"
#include "kernels/cpu/cpu.h"

// ---- registers

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

// ---- a square matmul

// Random values: a GPU multiplies zeros faster than it could anything else, because they take less power.
static void fill_randomly(const Kernels* k, void* x, size_t bytes, DType dt) {
    enum { N = 1 << 14 };
    static char values[N * sizeof(float)];
    for (int i = 0; i < N; i++) {
        float value = (float)random_uniform(1, (uint64_t)i) - 0.5f;
        if (dt == DT_BF16) ((bf16*)values)[i] = bf16_from_float(value);
        else ((float*)values)[i] = value;
    }
    size_t block = N * dtype_bytes(dt);
    for (size_t at = 0; at < bytes; at += block) k->upload((char*)x + at, values, MIN(block, bytes - at), NULL);
}

// Best seconds of a few runs of one square matmul: at least three, and about a tenth of a second. -1 without memory.
static double best_time(const Kernels* k, int side, DType dt) {
    size_t bytes = (size_t)side * side * dtype_bytes(dt);
    void *out = k->alloc(bytes), *x = k->alloc(bytes), *weight = k->alloc(bytes);
    double best = -1;
    if (out && x && weight) {
        best = 1e30;
        fill_randomly(k, x, bytes, dt);
        fill_randomly(k, weight, bytes, dt);
        k->synchronize(NULL);
    }
    double started = now_seconds();
    for (int run = 0; best > 0 && run < 20 && (run < 3 || now_seconds() - started < 0.1); run++) {
        double t = now_seconds();
        k->matmul_forward(out, NULL, x, weight, NULL, side, side, side, dt, NULL);
        k->synchronize(NULL);
        best = MIN(best, now_seconds() - t);
    }
    k->free_memory(out);
    k->free_memory(x);
    k->free_memory(weight);
    return best;
}

// In a small part of the memory that is free: as much of a container's as it has would end the program.
static int fits(const Kernels* k, int side, DType dt) {
    return 3 * (size_t)side * side * dtype_bytes(dt) <= k->memory_available() / 8;
}

// Each thread is measured in its own processor time, which more threads than cores do not have at once.
double kernels_peak_again(const Kernels* k, DType dt, double cores) {
    double registers = cpu_peak(k, dt);
    return cores > 0 ? registers * fmin(1, cores / cpu_threads()) : registers;
}

double kernels_peak(const Kernels* k, DType dt, int threads, double cores, Err err) {
    enum { FIRST_SIDE = 256 };
    const double most_seconds = 0.25;
    int side = FIRST_SIDE, full = k->full_matmul;
    KernelLimits limits = {
        .N = full, .C = full, .OC = full, .NH = 1, .NKV = 1, .HS = 64, .context = full, .threads = threads};
    limits.dt = dt;
    limits.attention = ATTENTION_OWN;
    if (k->open(&limits, err)) return -1;
    double registers = kernels_peak_again(k, dt, cores);
    if (registers > 0) return k->close(), registers;
    double seconds = best_time(k, side, dt);
    // Twice the side is eight times the work: a slow device, such as the plain reference, stops before it takes long.
    // And four times the memory, for which ranks that share it ask at once.
    while (seconds > 0 && side < full && 8 * seconds < most_seconds && fits(k, 2 * side, dt))
        seconds = best_time(k, side *= 2, dt);
    k->close();
    if (seconds < 0) return fail(err, "no memory to measure a matmul");
    return 2.0 * side * side * side / seconds;
}
