// tiles.h - the operations of AMX on its eight tiles of 16 rows of 64 bytes. Tests bring a twin in plain C.
//
// A tile holds 16 x 16 fp32, 16 rows of 32 bf16 (an A), or 16 rows of 16 pairs of bf16 (a B: pair k of column n at row
// k).
//   tile_multiply(c, a, b):  c[m][n] += sum over k, i of a[m][2k + i] * b[k][2n + i]
// Tile numbers are constants.
#pragma once
#ifndef TILES_EMULATED
#include <immintrin.h>

#include "plan/base/base.h"

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
#endif
