// exact_scratch.h - for tests that link kernels of one instruction set without their backend: its scratch memory, in
// blocks of just the size that was asked for, so that a sanitizer sees a write beyond it. EXACT_FAMILY: whose.
#pragma once
#include "kernels/cpu/cpu.h"

extern const CpuFamily EXACT_FAMILY;

static struct {
    void *shared, *threads[8];
    int n_threads;
} scratch;

void* cpu_shared_scratch(void) { return scratch.shared; }
void* cpu_thread_scratch(int thread) { return scratch.threads[thread]; }

// What is in scratch at the beginning must not matter.
static inline void* block(size_t bytes) {
    bytes = ROUND_UP(bytes, (size_t)64);
    return memset(aligned_alloc(64, bytes), 0xff, bytes);
}

static inline int open_exact(const KernelLimits* limits, Err err) {
    CpuScratch need = EXACT_FAMILY.scratch(limits);
    if (limits->threads > COUNT(scratch.threads)) return fail(err, "at most %d threads", COUNT(scratch.threads));
    team_open(limits->threads);
    scratch.n_threads = limits->threads;
    scratch.shared = block(need.shared_bytes);
    for (int t = 0; t < limits->threads; t++) scratch.threads[t] = block(need.thread_bytes);
    return 0;
}

static inline void close_exact(void) {
    free(scratch.shared);
    for (int t = 0; t < scratch.n_threads; t++) free(scratch.threads[t]);
}
