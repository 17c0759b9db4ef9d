// emulated_ptx.h - the CPU twins of kernels/cuda/ptx.cuh: the same names and meanings, fragment layouts as in NVIDIA's
// PTX ISA manual, "Matrix fragments for mma.m16n8k16" and "ldmatrix".
#pragma once
#include <cmath>
#include <cstring>

#include "emulator.h"

extern "C" {
#include "kernels/e4m3.h"
}

// cvt.rn.bf16x2.f32: to nearest, ties to even.
inline unsigned pack_bf16(float low, float high) {
    return (unsigned)bf16_from_float(low) | (unsigned)bf16_from_float(high) << 16;
}

// cvt.rn.satfinite.e4m3x2.f32: to nearest, ties to even, beyond 448 to that.
inline unsigned short pack_e4m3(float low, float high) {
    return (unsigned short)(e4m3_from_float(low) | e4m3_from_float(high) << 8);
}

// The special function unit is off by up to 2^-22 of the result (PTX ISA, "ex2"). The twins are off by as much at most,
// up or down as the bits of x have it, so that a tolerance that only holds for exact functions fails here.
inline float emulated_error(float x, float y) {
    double u = (double)(int64_t)hash64(__builtin_bit_cast(unsigned, x)) * 0x1p-63;
    return std::isfinite(y) ? (float)(y * (1 + u * 0x1p-22)) : y;
}
inline float fast_exp2(float x) { return emulated_error(x, exp2f(x)); }
inline float fast_exp(float x) { return fast_exp2(x * 1.44269504f); }
inline float fast_log(float x) { return emulated_error(x, logf(x)); }

// A sum as tensor cores form it: each term, and the sum, is cut off behind the 24 bits that begin with the highest of
// the largest term, never rounded. That is the least accurate that was found in any generation (Fasi et al. 2021,
// "Numerical behavior of NVIDIA tensor cores").
inline float truncated_sum(const float* terms, int n) {
    int most = 0;
    int64_t sum = 0;
    float plain = 0;
    for (int i = 0; i < n; i++) {
        int exponent = (int)(__builtin_bit_cast(unsigned, terms[i]) >> 23 & 255);
        most = exponent > most ? exponent : most;
        plain += terms[i];
    }
    if (most == 0 || most == 255) return plain;
    for (int i = 0; i < n; i++) {
        unsigned bits = __builtin_bit_cast(unsigned, terms[i]);
        int exponent = (int)(bits >> 23 & 255), shift = most - (exponent ? exponent : 1);
        int64_t mantissa = shift > 24 ? 0 : ((bits & 0x7fffff) | (exponent ? 1 << 23 : 0)) >> shift;
        sum += bits >> 31 ? -mantissa : mantissa;
    }
    for (; sum >= 1 << 24 || sum <= -(1 << 24); most++) sum /= 2;
    return (float)ldexp((double)sum, most - 150);
}

// Lane 4 * (row % 8) + (k % 8) / 2 holds A(row,k) in register (row >= 8) + 2 * (k >= 8), and lane 4 * col + (k % 8) / 2
// holds B(k,col) in register k >= 8, even k in the low half. Of D, lane l holds rows l / 4 and l / 4 + 8, columns
// 2 * (l % 4) and the one after.
inline void mma_m16n8k16(float d[4], const unsigned a[4], const unsigned b[2]) {
    unsigned mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]}, all[emu::WARP][6];
    const emu::Gathered* g = emu::gather(~0u, mine, sizeof mine);
    for (int lane = 0; lane < emu::WARP; lane++) emu::read_lane(all[lane], g, lane, 0, sizeof mine);
    for (int i = 0; i < 4; i++) {
        int lane = emu::position->lane, row = lane / 4 + 8 * (i / 2), col = lane % 4 * 2 + i % 2;
        for (int half = 0; half < 2; half++) {  // eight products at a time, and what there is
            float terms[9] = {d[i]};
            for (int k = 8 * half; k < 8 * half + 8; k++) {
                unsigned two_a = all[row % 8 * 4 + k % 8 / 2][(row >= 8) + 2 * half];
                unsigned two_b = all[col * 4 + k % 8 / 2][4 + half];
                terms[1 + k % 8] =
                    bf16_to_float((bf16)(two_a >> 16 * (k % 2))) * bf16_to_float((bf16)(two_b >> 16 * (k % 2)));
            }
            d[i] = truncated_sum(terms, 9);
        }
    }
}

// Lane 8 * m + i brings the address of row i (8 elements of 16 bits) of matrix m.
inline void emulated_ldmatrix(unsigned* r, const void* row, int matrices, bool transposed) {
    emu::check_shared_address("ldmatrix", row, 16);
    const emu::Gathered* g = emu::gather(~0u, &row, sizeof row);
    int lane = emu::position->lane;
    for (int m = 0; m < matrices; m++) {
        uint16_t half[2];
        for (int i = 0; i < 2; i++) {
            int at = lane / 4, with = lane % 4 * 2 + i;
            const uint16_t* address = nullptr;
            emu::read_lane(&address, g, 8 * m + (transposed ? with : at), 0, sizeof address);
            half[i] = address[transposed ? at : with];
        }
        r[m] = half[0] | (unsigned)half[1] << 16;
    }
    __syncwarp();  // all lanes have read before one may overwrite
}
inline void ldmatrix_x4(unsigned r[4], const void* row) { emulated_ldmatrix(r, row, 4, false); }
inline void ldmatrix_x4_transposed(unsigned r[4], const void* row) { emulated_ldmatrix(r, row, 4, true); }

inline void cp_async_16(void* shared, const void* global, int bytes) {
    emu::async_copy(shared, global, bytes);
    memset(shared, 0xff, 16);
}
inline void cp_async_commit() { emu::async_commit(); }
template <int OPEN>
void cp_async_wait() {
    const emu::Copy* c;
    for (int n = emu::finished_copies(OPEN, &c); n > 0; n--, c++) {
        memcpy(c->to, c->from, (size_t)c->bytes);
        memset((char*)c->to + c->bytes, 0, (size_t)(16 - c->bytes));
    }
}

inline void store_16(uint4* p, uint4 v) { emu::check_global_address("st.global", p, sizeof v), *p = v; }
inline void keep_16(uint4* p, uint4 v) { emu::check_shared_address("st.shared", p, sizeof v), *p = v; }
template <class V>
V load_once(const V* p) {
    return emu::check_global_address("ld.global", p, sizeof(V)), *p;
}
template <class V>
void store_once(V* p, V v) {
    emu::check_global_address("st.global", p, sizeof(V)), *p = v;
}
