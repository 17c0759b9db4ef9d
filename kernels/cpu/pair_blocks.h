// pair_blocks.h - blocks of bf16 for attention_pairs.c, and their product on AMX tiles or, without them, on registers.
//
// Every number here is a dword: an fp32, or two bf16 that follow each other in depth. A block is kept in up to four
// orders, for HS elements of 64 rows (HSp: padded, zeros above HS and in rows beyond the last):
//   rows              (64, HSp/2)   pairs of elements of a row: left factor, depth HS
//   transposed rows   (HSp/2, 64)   right factor, depth HS
//   row pairs         (32, HSp)     elements of two rows: right factor, depth 64 rows
//   transposed pairs  (HSp, 32)     left factor, depth 64 rows
#pragma once
#include "kernels/cpu/attention_rows.h"

#ifdef __AMX_BF16__
#include "kernels/cpu/tiles.h"
#endif

enum { PAIR_ROWS = BLOCK / 2, UNIT = 32 };  // rows and depths are whole units

// ---- the product: c (M,N; ldc) = a (M,K; lda) b (K,N; ldb), or, with add, +=; K in pairs. M, N and K are multiples of
// 16.

#ifdef __AMX_BF16__
// Two by two tiles of sums, or what is left at the edges.
static void multiply_tiles(float* c, size_t ldc, const float* a, size_t lda, const float* b, size_t ldb, int K, int add,
                           int lower, int right) {
    float* c_low = c + 16 * ldc;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    if (add) {
        tile_load(0, c, 4 * ldc);
        if (right) tile_load(1, c + 16, 4 * ldc);
        if (lower) tile_load(2, c_low, 4 * ldc);
        if (lower && right) tile_load(3, c_low + 16, 4 * ldc);
    }
    for (int k = 0; k < K; k += 16, a += 16, b += 16 * ldb) {
        tile_load_once(4, a, 4 * lda);
        tile_load(6, b, 4 * ldb);
        tile_multiply(0, 4, 6);
        if (right) {
            tile_load(7, b + 16, 4 * ldb);
            tile_multiply(1, 4, 7);
        }
        if (!lower) continue;
        tile_load_once(5, a + 16 * lda, 4 * lda);
        tile_multiply(2, 5, 6);
        if (right) tile_multiply(3, 5, 7);
    }
    tile_store(0, c, 4 * ldc);
    if (right) tile_store(1, c + 16, 4 * ldc);
    if (lower) tile_store(2, c_low, 4 * ldc);
    if (lower && right) tile_store(3, c_low + 16, 4 * ldc);
}

static void multiply(float* c, size_t ldc, const float* a, size_t lda, const float* b, size_t ldb, int M, int N, int K,
                     int add) {
    for (int col = 0; col < N; col += 32)
        for (int row = 0; row < M; row += 32)
            multiply_tiles(c + row * ldc + col, ldc, a + row * lda, lda, b + col, ldb, K, add, row + 16 < M,
                           col + 16 < N);
}
#else
// As many rows as leave registers for n vectors of b: 16, 16, 24 or 16 sums hide the latency of a multiply-add.
SIMD_INLINE void multiply_rows(float* c, size_t ldc, const float* a, size_t lda, const float* b, size_t ldb, int M,
                               int K, int add, int rows, int n) {
    for (int row = 0; row < M; row += rows, c += rows * ldc, a += rows * lda) {
        vf sum[16][4], bk[4];
        const float* b_row = b;
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < n; v++) sum[r][v] = add ? vf_load(c + r * ldc + v * SIMD_FLOATS) : (vf){0};
        for (int k = 0; k < K; k++, b_row += ldb) {
#pragma GCC unroll 4
            for (int v = 0; v < n; v++) bk[v] = vf_load(b_row + v * SIMD_FLOATS);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) {
                __m512bh ak = (__m512bh)_mm512_set1_ps(a[r * lda + k]);
#pragma GCC unroll 4
                for (int v = 0; v < n; v++) sum[r][v] = (vf)_mm512_dpbf16_ps((__m512)sum[r][v], ak, (__m512bh)bk[v]);
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < n; v++) vf_store(c + r * ldc + v * SIMD_FLOATS, sum[r][v]);
    }
}

static void multiply(float* c, size_t ldc, const float* a, size_t lda, const float* b, size_t ldb, int M, int N, int K,
                     int add) {
    for (int col = 0; col < N; col += 64, c += 64, b += 64) {
        int n = MIN(4, (N - col) / 16);
        if (n == 4) multiply_rows(c, ldc, a, lda, b, ldb, M, K, add, 4, 4);
        else if (n == 3) multiply_rows(c, ldc, a, lda, b, ldb, M, K, add, 8, 3);
        else if (n == 2) multiply_rows(c, ldc, a, lda, b, ldb, M, K, add, 8, 2);
        else multiply_rows(c, ldc, a, lda, b, ldb, M, K, add, 16, 1);
    }
}
#endif

// ---- orders

// n rows of a head, (n,HS) bf16 with stride ld, to rows; zeros up to a whole unit of rows.
static void pack_rows(float* to, const bf16* x, int ld, int n, int HS) {
    size_t width = padded(HS) / 2;
    for (int r = 0; r < n; r++, x += ld, to += width)
        for (int c = 0; c < HS; c += 32) {
            if (r + AHEAD < n) __builtin_prefetch(x + AHEAD * (size_t)ld + c);
            __mmask32 some = HS - c >= 32 ? ~0u : (1u << (HS - c)) - 1;
            _mm512_storeu_si512(to + c / 2, _mm512_maskz_loadu_epi16(some, x + c));
        }
    memset(to, 0, (ROUND_UP(n, UNIT) - n) * width * sizeof(float));
}

// Of n rows, a whole number of units.
static void pair_rows(float* to, const float* rows, int n, int HS) {
    static const uint16_t low[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    __m512i lower = _mm512_loadu_si512(low), upper = _mm512_add_epi16(lower, _mm512_set1_epi16(16));
    size_t HSp = padded(HS);
    for (int r = 0; r < n; r += 2, rows += HSp, to += HSp)
        for (size_t c = 0; c < HSp; c += 32) {
            __m512i even = _mm512_loadu_si512(rows + c / 2), odd = _mm512_loadu_si512(rows + (HSp + c) / 2);
            _mm512_storeu_si512(to + c, _mm512_permutex2var_epi16(even, lower, odd));
            _mm512_storeu_si512(to + c + 16, _mm512_permutex2var_epi16(even, upper, odd));
        }
}

// to (cols,rows; ldto) = from (rows,cols; cols)^T, dwords of any kind; both multiples of 16.
static void transpose_dwords(float* to, size_t ldto, const float* from, int rows, int cols) {
    for (int r = 0; r < rows; r += 16)
        for (int c = 0; c < cols; c += 16) {
            vf x[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) x[i] = vf_load(from + (r + i) * cols + c);
            vf_transpose(x);
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) vf_store(to + (c + i) * ldto + r, x[i]);
        }
}

// ---- rounding: to nearest, halves away from zero. x keeps its bf16 in the upper half.

SIMD_INLINE vf_bits rounded(vf x) { return (vf_bits)x + 0x8000u; }
SIMD_INLINE void store_pairs(float* to, vf_bits even, vf_bits odd) {
    vf_store(to, (vf)(even >> 16 | (odd & ~0xffffu)));
}
SIMD_INLINE void store_halves(bf16* to, vf_bits x) {
    *(vf_bf16_unaligned*)to = (vf_bf16)_mm512_cvtepi32_epi16((__m512i)(x >> 16));
}
