// bench.h - what the benches share: medians, the limits of the registers, and the record in build/bench.jsonl.
//
// A speed stands beside a limit that is measured in the same run on the same threads: machines, and one machine from
// minute to minute, differ by more than most changes to the code.
#pragma once
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "data/json.h"
#include "kernels/cpu/cpu.h"
#include "kernels/table/open.h"

// Of this thread: other programs may share its core, which the clock would count.
static inline double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// For ops: processor time where there is one thread.
static inline double bench_seconds(void) { return team_threads() > 1 ? now_seconds() : processor_seconds(); }

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
        if (json_parse(&json, line, (size_t)length, NULL)) break;
        if (lines++ >= skip && json_double(json_get(json.values, member), &values[n]) == 0) n++;
        json_free(&json);
    }
    free(line);
    if (file) fclose(file);
    return n ? bench_median(values, n) : 0;
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
