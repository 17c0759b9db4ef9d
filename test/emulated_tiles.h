// emulated_tiles.h - the twin of kernels/cpu/tiles.h in plain C, for processors without AMX. It is included before a
// source that uses tiles, and stops the program when a thread uses tiles that it did not configure.
#pragma once
#define TILES_EMULATED
#include <stdlib.h>

#include "plan/base/base.h"

static _Thread_local struct {
    int configured;
    char rows[8][16][64];
} tiles;

static inline void* tile_rows(int t) {
    if (!tiles.configured) abort();
    return tiles.rows[t];
}

static inline void tiles_configure(void) {
    memset(&tiles, 0x5a, sizeof tiles);
    tiles.configured = 1;
}

static inline void tiles_release(void) { tiles.configured = 0; }
static inline void tile_zero(int t) { memset(tile_rows(t), 0, sizeof tiles.rows[t]); }

static inline void tile_load(int t, const void* from, size_t stride_bytes) {
    char* to = (char*)tile_rows(t);
    for (size_t i = 0; i < 16; i++) memcpy(to + i * 64, (const char*)from + i * stride_bytes, 64);
}

static inline void tile_load_once(int t, const void* from, size_t stride_bytes) { tile_load(t, from, stride_bytes); }

static inline void tile_store(int t, void* to, size_t stride_bytes) {
    const char* from = (const char*)tile_rows(t);
    for (size_t i = 0; i < 16; i++) memcpy((char*)to + i * stride_bytes, from + i * 64, 64);
}

static inline void tile_multiply(int c, int a, int b) {
    float(*sums)[16] = (float(*)[16])tile_rows(c);
    bf16(*left)[32] = (bf16(*)[32])tile_rows(a), (*right)[32] = (bf16(*)[32])tile_rows(b);
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 16; n++)
                sums[m][n] += bf16_to_float(left[m][2 * k]) * bf16_to_float(right[k][2 * n]) +
                              bf16_to_float(left[m][2 * k + 1]) * bf16_to_float(right[k][2 * n + 1]);
}
