// bench.h - what the benches share: medians, the limits of the registers, and the record in build/bench.jsonl.
//
// A speed stands beside a limit that is measured in the same run on the same threads: machines, and one machine from
// minute to minute, differ by more than most changes to the code.
#pragma once
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "data/json.h"
#include "kernels/cpu/cpu.h"

// Of this thread: other programs may share its core, which the clock would count.
static inline double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int bench_compare(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static inline double bench_median(double* values, int n) {
    qsort(values, (size_t)n, sizeof *values, bench_compare);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

// Appends one line to a file below build/. The limit has the unit of the value; 0: there is none.
static inline void bench_record_in(const char* path, const char* command, const char* name, double value,
                                   const char* unit, double limit) {
    mkdir("build", 0777);
    FILE* file = fopen(path, "a");
    if (!file) {
        fprintf(stderr, "bench: cannot append to %s (%s); run it from the root of the tree\n", path, strerror(errno));
        return;
    }
    fprintf(file, "{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",", name, value, unit);
    if (limit > 0) fprintf(file, "\"limit\":%.6g,\"percent\":%.1f,", limit, 100 * value / limit);
    fprintf(file, "\"command\":\"%s\"}\n", command);
    fclose(file);
}

static inline void bench_record(const char* name, double value, const char* unit, double limit) {
    bench_record_in("build/bench.jsonl", "make bench", name, value, unit, limit);
}

// Median of a number over the lines of a run's log.jsonl, the first `skip` lines left out; 0 when there is none.
static inline double bench_median_of_log(const char* path, const char* member, int skip) {
    enum { MOST_LINES = 64 };
    double values[MOST_LINES];
    char* line = NULL;
    size_t room = 0;
    ssize_t length;
    int n = 0, lines = 0;
    FILE* file = fopen(path, "r");
    while (file && n < MOST_LINES && (length = getline(&line, &room, file)) > 0) {
        Json json;
        if (json_parse(&json, line, (size_t)length, NULL, 0)) break;
        if (lines++ >= skip && json_double(json_get(&json, json.values, member), &values[n]) == 0) n++;
        json_free(&json);
    }
    free(line);
    if (file) fclose(file);
    return n ? bench_median(values, n) : 0;
}

// ---- arithmetic on registers alone

typedef enum BenchUnit { BENCH_FMA_YMM, BENCH_FMA_ZMM, BENCH_PAIRS_ZMM, BENCH_TILES } BenchUnit;

// n rounds of 12 independent instructions, enough to hide their latency. Their values do not matter; only registers
// that a call may destroy are written.
#if defined(__x86_64__)
#define BENCH_12(op) \
    op "0\n" op "1\n" op "2\n" op "3\n" op "4\n" op "5\n" op "6\n" op "7\n" op "8\n" op "9\n" op "10\n" op "11\n"
#define BENCH_TILE_4                                                 \
    "tdpbf16ps %tmm6, %tmm4, %tmm0\ntdpbf16ps %tmm7, %tmm4, %tmm1\n" \
    "tdpbf16ps %tmm6, %tmm5, %tmm2\ntdpbf16ps %tmm7, %tmm5, %tmm3\n"

static __attribute__((noinline, unused)) void bench_rounds(BenchUnit unit, int n) {
    static const uint8_t tiles[64] = {
        [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
        [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};
    if (unit == BENCH_TILES) __asm__ volatile("ldtilecfg %0" ::"m"(tiles));
    else __asm__ volatile("vzeroall");  // else their contents might be subnormal, which is slow
    for (int i = 0; i < n; i++) {
        if (unit == BENCH_FMA_YMM) __asm__ volatile(BENCH_12("vfmadd231ps %ymm15, %ymm14, %ymm"));
        else if (unit == BENCH_FMA_ZMM) __asm__ volatile(BENCH_12("vfmadd231ps %zmm15, %zmm14, %zmm"));
        else if (unit == BENCH_PAIRS_ZMM) __asm__ volatile(BENCH_12("vdpbf16ps %zmm15, %zmm14, %zmm"));
        else __asm__ volatile(BENCH_TILE_4 BENCH_TILE_4 BENCH_TILE_4);
    }
    if (unit == BENCH_TILES) __asm__ volatile("tilerelease");
    else __asm__ volatile("vzeroupper");
}
#else
static inline void bench_rounds(BenchUnit unit, int n) { (void)unit, (void)n; }
#endif

// TFLOP/s of all threads together, in processor time, because other programs may share the cores. The best of a few
// tries; 0 where the processor lacks the instruction.
static inline double bench_peak(BenchUnit unit, int threads) {
    static const CpuIsa needs[] = {CPU_AVX2, CPU_AVX512, CPU_AVX512BF16, CPU_AMX};
    // Of one instruction: 2 for each multiply-add of 8 lanes, 16 lanes, 16 lanes of pairs, and of 16 x 16 sums over a
    // depth of 32 bf16 (64 bytes).
    static const double flops[] = {2 * 8, 2 * 16, 2 * 16 * 2, 2 * 16 * 16 * 32};
    int rounds = unit == BENCH_TILES ? 50000 : 1000000;
    double best = 0;
    for (int try = 0; try < 8 && cpu_has(needs[unit]); try++) {
        double rate = 0;
#pragma omp parallel num_threads(threads) reduction(+ : rate)
        {
            double start = processor_seconds();
            bench_rounds(unit, rounds);
            rate = 12 * flops[unit] * rounds / (processor_seconds() - start) * 1e-12;
        }
        best = MAX(best, rate);
    }
    return best;
}

// TFLOP/s of the fastest multiply-add instruction that takes the type.
static inline double bench_limit(DType dt, int threads) {
    double fp32 = MAX(bench_peak(BENCH_FMA_YMM, threads), bench_peak(BENCH_FMA_ZMM, threads));
    if (dt == DT_F32) return fp32;
    return MAX(fp32, MAX(bench_peak(BENCH_PAIRS_ZMM, threads), bench_peak(BENCH_TILES, threads)));
}

// A shard of llm.c's format: documents of the given mean length (0: all of 1024 tokens), lengths exponential, at
// least 8.
static inline void bench_write_shard(const char* path, int mean, int n_tokens) {
    int header[256] = {20240520, 1, n_tokens};
    uint16_t* tokens = (uint16_t*)malloc(sizeof(uint16_t) * (size_t)n_tokens);
    int64_t next = 0;
    for (int i = 0, docs = 0; i < n_tokens; i++) {
        tokens[i] = (uint16_t)(hash64((uint64_t)i) % 50256);
        if (i < next) continue;
        tokens[i] = 50256;
        double length = mean ? -mean * log(1 - random_uniform(1, (uint64_t)docs++)) : 1024;
        next += (int64_t)MAX(length, 8);
    }
    FILE* file = fopen(path, "wb");
    int bad = !file || fwrite(header, sizeof header, 1, file) != 1 ||
              fwrite(tokens, 2, (size_t)n_tokens, file) != (size_t)n_tokens;
    if (file) bad |= fclose(file);
    if (bad) exit((fprintf(stderr, "bench: cannot write %s\n", path), 1));
    free(tokens);
}
