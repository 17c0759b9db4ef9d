// attention_blocks.h - what attention.c is made of: blocks of fp32 that lie packed, their products, and how tensors
// get there.
//
// A block holds 64 rows of a head, (BLOCK,HSp) with HSp the head size in whole vectors, or its transpose, or the
// scores of 64 queries and 64 keys. multiply_add() is the one product; it walks register tiles of a few rows by a
// few vectors.
#pragma once
#include "kernels/cpu/attention_rows.h"

enum {
    TILE_ROWS = 4,
    TILE_VECTORS = SIMD_FLOATS == 16 ? 4 : 2,  // 16 sums in the 32 registers of AVX-512, else 8 in 16
};

// ---- the block matmul

typedef struct Matrix {  // element (r, k) lies at p[r * row + k * step]
    const float* p;
    size_t row, step;
} Matrix;

typedef enum Start { SET, ADD, RESCALE } Start;  // c = a b, c += a b, c = c * keep + a b

// One register tile of TILE_ROWS x n vectors.
SIMD_INLINE void tile(float* c, size_t ldc, Matrix a, const float* b, size_t ldb, int K, Start start, const float* keep,
                      int n) {
    vf sum[TILE_ROWS][TILE_VECTORS], bk[TILE_VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < n; v++) {
            sum[r][v] = start == SET ? (vf){0} : vf_load(c + r * ldc + v * SIMD_FLOATS);
            if (start == RESCALE) sum[r][v] *= vf_load(keep + v * SIMD_FLOATS);
        }
    for (int k = 0; k < K; k++, b += ldb) {
#pragma GCC unroll 4
        for (int v = 0; v < n; v++) bk[v] = vf_load(b + v * SIMD_FLOATS);
#pragma GCC unroll 4
        for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < n; v++) sum[r][v] += a.p[r * a.row + k * a.step] * bk[v];
    }
#pragma GCC unroll 4
    for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < n; v++) vf_store(c + r * ldc + v * SIMD_FLOATS, sum[r][v]);
}

// c (M,N) from a (M,K) b (K,N) and keep (N). M is rounded up to whole tiles of rows, N to whole vectors: there must
// be room.
static void multiply_add(float* c, size_t ldc, Matrix a, const float* b, size_t ldb, int M, int N, int K, Start start,
                         const float* keep) {
    for (int col = 0; col < N; col += TILE_VECTORS * SIMD_FLOATS) {
        int n = MIN(CEIL_DIV(N - col, SIMD_FLOATS), TILE_VECTORS);
        const float* keep_col = start == RESCALE ? keep + col : NULL;
        for (int row = 0; row < M; row += TILE_ROWS) {
            Matrix rows = {a.p + row * a.row, a.row, a.step};
            float* to = c + row * ldc + col;
            if (n == TILE_VECTORS) tile(to, ldc, rows, b + col, ldb, K, start, keep_col, TILE_VECTORS);
            else if (n == 1) tile(to, ldc, rows, b + col, ldb, K, start, keep_col, 1);
            else if (n == 2) tile(to, ldc, rows, b + col, ldb, K, start, keep_col, MIN(2, TILE_VECTORS));
            else tile(to, ldc, rows, b + col, ldb, K, start, keep_col, MIN(3, TILE_VECTORS));
        }
    }
}

// ---- packing

SIMD_INLINE void pack_rows_as(float* to, const void* x, size_t ld, int n, int HS, DType dt) {
    int whole = HS / SIMD_FLOATS * SIMD_FLOATS, HSp = (int)padded(HS);
    for (int r = 0; r < n; r++, to += HSp) {
        const char* row = (const char*)x + r * ld * dtype_bytes(dt);
        if (r + AHEAD < n)
            for (size_t byte = 0; byte < HS * dtype_bytes(dt); byte += 64)
                __builtin_prefetch(row + AHEAD * ld * dtype_bytes(dt) + byte);
        for (int c = 0; c < whole; c += SIMD_FLOATS) vf_store(to + c, vf_load_as(row + c * dtype_bytes(dt), dt));
        if (whole == HSp) continue;
        vf_store(to + whole, vf_load_part(row + whole * dtype_bytes(dt), HS - whole, dt));
        for (int c = whole + SIMD_FLOATS; c < HSp; c += SIMD_FLOATS) vf_store(to + c, (vf){0});
    }
}

// n rows of a head, (n,HS) with stride ld, to fp32 rows of padded(HS); zeros in the padding and up to n_padded rows.
static void pack_rows(float* to, const void* x, int ld, int n, int n_padded, int HS, DType dt) {
    WITH_DTYPE(dt, pack_rows_as, to, x, (size_t)ld, n, HS);
    memset(to + n * padded(HS), 0, (n_padded - n) * padded(HS) * sizeof(float));
}
