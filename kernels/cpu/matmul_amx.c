// matmul_amx.c - matmuls of bf16 with AMX tiles; other types stay with the instruction set below.
//
// product.h has the idea. Here a tile of sums is 32 x 32, four AMX tiles, and a step of depth is 32 bf16 (16 pairs):
// two AMX tiles of A, two of B, four products. B's panel is met by every panel of a block of A and stays in the first
// cache, as far as it fits; A's panels pass through once, and are loaded so that they do not push B out. Results are
// written row by row between the products of the next tile, from sums that are still in the first cache.
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tiles.h"

enum {
    MR = 32,
    NR = 32,
    KC = 512,  // pairs: with depths up to 1024 sums never leave the first cache
    MC = 16 * MR,
    NC = 768,
    DEPTH = 2048,
    DEPTH_UNIT = 16,  // pairs of a step
    HOT_STEPS = 20    // of B's panel, 2 KiB each, that the first cache keeps beside what passes through
};

#include "kernels/cpu/product.h"

// A panel of A is its steps, each two AMX tiles of 16 rows: pairs lie along rows, as they lie in memory where the depth
// is contiguous.
static void pack_a(float* to, const Product* p, size_t i, size_t k, size_t depth, float* row_sums) {
    const bf16* a = (const bf16*)p->a.p;
    size_t ld = p->a.ld;
    for (size_t end = k + depth; k < end; k += 16)
        for (size_t half = 0; half < MR; half += 16, to += 256) {
            size_t row = i + half, rows = less(p->M, row), left = less(p->K, 2 * k);
            vf x[16], sum = {0};
            for (size_t r = 0; r < 16; r++) {
                if (rows == 0) x[r] = (vf){0};
                else if (!p->a.k_contiguous)
                    x[r] = load_two_rows(a + 2 * (k + r) * ld + row, ld, rows, less(left, 2 * r), &sum);
                else x[r] = r < rows ? load_pairs(a + (row + r) * ld + 2 * k, left) : (vf){0};
            }
            if (!p->a.k_contiguous) vf_transpose(x);
            for (int r = 0; r < 16; r++) vf_store(to + 16 * r, x[r]);
            if (row_sums) vf_store(row_sums + half, vf_load(row_sums + half) + sum);
        }
}

// Row strides in bytes of the memory that AMX tiles are loaded from; LOWER: where the lower half of the sums begins.
enum { A_ROW = 64, B_ROW = 4 * NR, SUMS_ROW = 4 * NR, LOWER = 16 * NR };

static void multiply_panels(float* sums, const float* a, const float* b, size_t depth, int add, const char* next,
                            const Product* p, const Finished* finished) {
    size_t row = 0, steps = depth / 16;
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
    for (size_t step = 0; step < steps; step++, a += 512, b += 512, next += 128) {
        if (step < HOT_STEPS) {
            tile_load(6, b, B_ROW);
            tile_load(7, b + 16, B_ROW);
        } else {
            tile_load_once(6, b, B_ROW);
            tile_load_once(7, b + 16, B_ROW);
        }
        tile_load_once(4, a, A_ROW);
        tile_multiply(0, 4, 6);
        tile_multiply(1, 4, 7);
        __builtin_prefetch(next, 0, 2);
        __builtin_prefetch(next + 64, 0, 2);
        if (finished->sums && row < MR) write_rows(p, finished, row, row + 1), row++;
        tile_load_once(5, a + 256, A_ROW);
        tile_multiply(2, 5, 6);
        tile_multiply(3, 5, 7);
    }
    if (finished->sums) write_rows(p, finished, row, MR);
    tile_store(0, sums, SUMS_ROW);
    tile_store(1, sums + 16, SUMS_ROW);
    tile_store(2, sums + LOWER, SUMS_ROW);
    tile_store(3, sums + LOWER + 16, SUMS_ROW);
}

static void begin_block(void) { tiles_configure(); }
static void end_block(void) { tiles_release(); }

ENTRIES(tiles, PAIRS, 0)

const CpuFamily matmul_amx = {install_tiles, install_ranks_tiles, product_scratch};
