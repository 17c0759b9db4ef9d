// matmul_amx.c - matmuls of bf16 with AMX tiles; other types stay with the instruction set below.
//
// product.h has the idea. Here a tile of sums is 32 x 32, four AMX tiles, and a step of depth is 32 bf16 (16 pairs):
// two AMX tiles of A, two of B, four products. The panel that the next product meets again stays in the first cache, as
// far as it fits beside the sums; the other is loaded so that it does not push it out. Results are written row by row
// between the products of the next tile, from sums that are still in the first cache.
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tiles.h"

enum {
    MR = 32,
    NR = 32,
    KC = 256,
    MC = 8 * MR,
    NC = 768,
    DEPTH = 2048,
    DEPTH_UNIT = 16,        // pairs of a step
    STRIPS = 768 * 384,     // 1.1 MiB, beside which the second cache has to hold panels of A
    STREAM_FROM = 1 << 20,  // fewer results stay in the second cache until they are read
    HOT_STEPS = 20          // of a panel, 2 KiB each, that the first cache keeps beside what passes through
};

#include "kernels/cpu/product.h"

// A panel of A is its steps, each two AMX tiles of 16 rows: pairs lie along rows, as they lie in memory where the depth
// is contiguous.
SIMD_INLINE void pack_tile(float* to, const Product* p, size_t row, size_t k, size_t rows, size_t left, vf* sum) {
    const bf16* a = (const bf16*)p->a.p;
    size_t ld = p->a.ld;
    vf x[16];
#pragma GCC unroll 16
    for (size_t r = 0; r < 16; r++) {
        if (!p->a.k_contiguous) x[r] = load_two_rows(a + 2 * (k + r) * ld + row, ld, rows, less(left, 2 * r), sum);
        else x[r] = r < rows ? load_pairs(a + (row + r) * ld + 2 * k, left) : (vf){0};
    }
    if (!p->a.k_contiguous) vf_transpose(x);
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++) vf_store(to + 16 * r, x[r]);
}

static void pack_a(float* to, const Product* p, size_t i, size_t k, size_t depth, float* row_sums) {
    for (size_t end = k + depth; k < end; k += 16)
        for (size_t half = 0; half < MR; half += 16, to += 256) {
            size_t row = i + half, rows = less(p->M, row), left = less(p->K, 2 * k);
            vf sum = {0};
            if (rows >= 16 && left >= 32) pack_tile(to, p, row, k, 16, 32, &sum);
            else if (rows > 0) pack_tile(to, p, row, k, rows, left, &sum);
            else memset(to, 0, 256 * sizeof *to);
            if (row_sums) vf_store(row_sums + half, vf_load(row_sums + half) + sum);
        }
}

// Row strides in bytes of the memory that AMX tiles are loaded from; LOWER: where the lower half of the sums begins.
enum { A_ROW = 64, B_ROW = 4 * NR, SUMS_ROW = 4 * NR, LOWER = 16 * NR };

// Loads a tile, to stay in the first cache or not.
#define LOAD(stays, t, from, row_bytes)           \
    do {                                          \
        if (stays) tile_load(t, from, row_bytes); \
        else tile_load_once(t, from, row_bytes);  \
    } while (0)

static void multiply_panels(float* sums, const float* a, const float* b, size_t depth, int add, Around around,
                            const Product* p, const Finished* finished) {
    size_t steps = depth / 16, row = finished->sums ? 0 : MR, at_once = CEIL_DIV(MR, steps);
    if (add) {
        tile_load_once(0, sums, SUMS_ROW);
        tile_load_once(1, sums + 16, SUMS_ROW);
        tile_load_once(2, sums + LOWER, SUMS_ROW);
        tile_load_once(3, sums + LOWER + 16, SUMS_ROW);
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    for (size_t step = 0; step < steps; step++, a += 512, b += 512, around.ahead += around.advance) {
        int hot = step < HOT_STEPS;
        LOAD(hot && !around.same_a, 6, b, B_ROW);
        LOAD(hot && !around.same_a, 7, b + 16, B_ROW);
        LOAD(hot && around.same_a, 4, a, A_ROW);
        LOAD(hot && around.same_a, 5, a + 256, A_ROW);
        tile_multiply(0, 4, 6);
        tile_multiply(1, 4, 7);
        tile_multiply(2, 5, 6);
        tile_multiply(3, 5, 7);
        for (size_t i = 0; i < around.lines; i++) __builtin_prefetch(around.ahead + i * around.ld, 0, 2);
        if (row < MR) write_rows(p, finished, row, min(MR, row + at_once)), row += at_once;
    }
    tile_store(0, sums, SUMS_ROW);
    tile_store(1, sums + 16, SUMS_ROW);
    tile_store(2, sums + LOWER, SUMS_ROW);
    tile_store(3, sums + LOWER + 16, SUMS_ROW);
}

static void begin_block(void) { tiles_configure(); }
static void end_block(void) {
    tiles_release();
    _mm_sfence();  // after results that went past the caches
}

ENTRIES(tiles, PAIRS, 0)

const CpuFamily matmul_amx = {install_tiles, install_ranks_tiles, product_scratch};
