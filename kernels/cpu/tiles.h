// tiles.h - the operations of AMX on its eight tiles of 16 rows of 64 bytes, or their twin in plain C.
//
// A tile holds 16 x 16 fp32, 16 rows of 32 bf16 (an A), or 16 rows of 16 pairs of bf16 (a B: pair k of column n at row
// k).
//   tile_multiply(c, a, b):  c[m][n] += sum over k, i of a[m][2k + i] * b[k][2n + i]
// Tile numbers are constants. The twin, chosen by TILES_EMULATED, lets machines without AMX run the same matmul_amx.c;
// it stops the program when a thread uses tiles that it did not configure.
#pragma once
#include "plan/base/base.h"

#ifndef TILES_EMULATED
#include <immintrin.h>

static inline void tiles_configure(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) config.row_bytes[i] = 64, config.rows[i] = 16;
    // gcc 12's _tile_loadconfig says that it reads 8 bytes of the 64, and the others are optimised away.
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

#define tiles_release() _tile_release()
#define tile_zero(t) _tile_zero(t)
#define tile_load(t, from, stride_bytes) _tile_loadd(t, from, stride_bytes)
#define tile_load_once(t, from, stride_bytes) _tile_stream_loadd(t, from, stride_bytes)  // not to stay in L1
#define tile_store(t, to, stride_bytes) _tile_stored(t, to, stride_bytes)
#define tile_multiply(c, a, b) _tile_dpbf16ps(c, a, b)

#else
#include <stdlib.h>

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
#endif
