// attention_rows.h - how rows of heads leave the fp32 blocks of attention, and what both forms of it need of vectors.
//
// A block holds BLOCK rows of a head, each `padded` to whole units, or its transpose.
#pragma once
#include "kernels/cpu/simd.h"

// Head size as packed; zero above HS.
static size_t padded(int HS) { return ROUND_UP((size_t)HS, (size_t)HEAD_UNIT); }

static inline const void* element(const void* p, size_t i, DType dt) { return (const char*)p + i * dtype_bytes(dt); }
static inline size_t at(size_t row, int ld, int h, int HS) { return row * (size_t)ld + (size_t)h * HS; }

enum { AHEAD = 8 };  // rows to fetch ahead: each lies in a page of its own, where the processor does not guess the next

SIMD_INLINE void store_rows_as(void* to, size_t ld, const float* x, int n, int HS, float scale, DType dt) {
    int whole = HS / SIMD_FLOATS * SIMD_FLOATS, HSp = (int)padded(HS);
    for (int r = 0; r < n; r++, x += HSp) {
        char* row = (char*)to + r * ld * dtype_bytes(dt);
        for (int c = 0; c < whole; c += SIMD_FLOATS) vf_store_as(row + c * dtype_bytes(dt), vf_load(x + c) * scale, dt);
        if (whole < HS) vf_store_part(row + whole * dtype_bytes(dt), vf_load(x + whole) * scale, HS - whole, dt);
    }
}

static void store_rows(void* to, int ld, const float* x, int n, int HS, float scale, DType dt) {
    WITH_DTYPE(dt, store_rows_as, to, (size_t)ld, x, n, HS, scale);
}

// The same, added to rows of fp32.
static void add_rows(float* to, int ld, const float* x, int n, int HS, float scale) {
    for (int r = 0; r < n; r++, to += ld, x += padded(HS))
        FOR_VECTORS(c, lanes, 0, HS,
                    vf_put(to, c, lanes, vf_get(to, c, lanes, DT_F32) + vf_load(x + c) * scale, DT_F32););
}

// to (cols,rows; ldto) = scale * from (rows,cols; ldfrom)^T; both multiples of SIMD_FLOATS.
static void transpose(float* to, size_t ldto, const float* from, size_t ldfrom, int rows, int cols, float scale) {
    for (int r = 0; r < rows; r += SIMD_FLOATS)
        for (int c = 0; c < cols; c += SIMD_FLOATS) {
            vf x[SIMD_FLOATS];
#pragma GCC unroll 16
            for (int i = 0; i < SIMD_FLOATS; i++) x[i] = vf_load(from + (r + i) * ldfrom + c) * scale;
            vf_transpose(x);
#pragma GCC unroll 16
            for (int i = 0; i < SIMD_FLOATS; i++) vf_store(to + (c + i) * ldto + r, x[i]);
        }
}
