// hydraulis_cases.h - what the tests of Hydraulis share: memory and random lengths.
#pragma once
#include "test/plans.h"

static inline void* must(void* memory) {
    if (!memory) abort();
    return memory;
}

// Mostly short for odd seeds, uniform for even ones.
static inline void random_lengths(int* lengths, int n, int longest, uint64_t seed) {
    for (int i = 0; i < n; i++) {
        double u = random_uniform(seed, 1000 + (uint64_t)i);
        lengths[i] = 1 + (int)((seed % 2 ? u * u * u : u) * (longest - 1));
    }
}
