// matmul.c - matmuls with the ordinary multiply-add of each instruction set, or with AVX-512's of bf16 pairs.
//
// product.h has the idea. Here a tile is as many sums as the registers hold beside two vectors of B and one of A: every
// step of depth loads two vectors of B, and each element of A into all lanes, for MR x 2 multiply-adds.
#include "kernels/cpu/simd.h"

enum {
    MR = SIMD_FLOATS == 4 ? 4 : SIMD_FLOATS - 2,  // 14, 6 or 4
    NR = 2 * SIMD_FLOATS,
    KC = 256,
    MC = 16 * MR,
    NC = 768,
    DEPTH = 4096,
    DEPTH_UNIT = 1,
    STRIPS = 0,
    STREAM_FROM = 0
};

#include "kernels/cpu/product.h"

static void pack_a(float* to, const Product* p, size_t i, size_t k, size_t depth, float* row_sums) {
    pack_panel(to, MR, p, &p->a, i, p->M, k, depth, row_sums);
}

SIMD_INLINE vf multiply_add(vf sum, vf a, vf b, Packing packing) {
#ifdef __AVX512BF16__
    if (packing == PAIRS) return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#endif
    return vf_fma(a, b, sum);
}

SIMD_INLINE void multiply_panels_as(float* sums, const float* a, const float* b, size_t depth, int add,
                                    const char* next, Packing packing) {
    vf sum[MR][2];
#pragma GCC unroll 14
    for (int i = 0; i < MR; i++) sum[i][0] = sum[i][1] = (vf){0};
    for (size_t k = 0; k < depth; k++, a += MR, b += NR, next += 8) {
        __builtin_prefetch(next, 0, 2);
        vf b0 = vf_load(b), b1 = vf_load(b + SIMD_FLOATS);
#pragma GCC unroll 14
        for (int i = 0; i < MR; i++) {
            vf ai = vf_set1(a[i]);
            sum[i][0] = multiply_add(sum[i][0], ai, b0, packing);
            sum[i][1] = multiply_add(sum[i][1], ai, b1, packing);
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < MR; i++, sums += NR) {
        vf_store(sums, add ? vf_load(sums) + sum[i][0] : sum[i][0]);
        vf_store(sums + SIMD_FLOATS, add ? vf_load(sums + SIMD_FLOATS) + sum[i][1] : sum[i][1]);
    }
}

static void multiply_panels(float* sums, const float* a, const float* b, size_t depth, int add, Around around,
                            const Product* p, const Finished* finished) {
    if (finished->sums) write_rows(p, finished, 0, MR);
    if (p->packing == PAIRS) multiply_panels_as(sums, a, b, depth, add, around.ahead, PAIRS);
    else multiply_panels_as(sums, a, b, depth, add, around.ahead, FLOATS);
}

static void begin_block(void) {}
static void end_block(void) {}

ENTRIES(floats, FLOATS, 1)

#ifdef __AVX512BF16__
ENTRIES(pairs, PAIRS, 1)

// Multiplying bf16 pairs wins if it has a good part of the rate of fp32. Intel's processors take four times as long for
// a vector of pairs as for one of fp32 (measured on the fifth Xeon generation): there bf16 is converted when it is
// packed.
static void install_faster(Kernels* table) {
    __builtin_cpu_init();
    if (__builtin_cpu_is("intel")) install_floats(table);
    else install_pairs(table);
}

static void install_faster_ranks(RankOps* table) {
    if (__builtin_cpu_is("intel")) install_ranks_floats(table);
    else install_ranks_pairs(table);
}

const CpuFamily ISA_NAME(matmul) = {install_faster, install_faster_ranks, product_scratch};
const CpuFamily ISA_NAME(matmul_pairs) = {install_pairs, install_ranks_pairs, product_scratch};  // for tests
#else
const CpuFamily ISA_NAME(matmul) = {install_floats, install_ranks_floats, product_scratch};
#endif
