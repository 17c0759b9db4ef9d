// simd.h - vectors of SIMD_FLOATS fp32 lanes for the files that are compiled once for each instruction set.
//
// GCC's vector extensions give arithmetic, comparisons and shuffles on every processor; intrinsics stand only where
// they say something that the extensions cannot. A comparison yields a vf_mask, lanes of 0 or -1. A vector times a
// scalar is written x * 2.f. Tensors are reached through an address and a DType, which must be a constant where it
// matters for speed.
#pragma once
#include <math.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels/cpu/cpu.h"

#define SIMD_INLINE static inline __attribute__((always_inline, unused))

typedef float vf __attribute__((vector_size(4 * SIMD_FLOATS)));
typedef int vf_mask __attribute__((vector_size(4 * SIMD_FLOATS)));
typedef uint32_t vf_bits __attribute__((vector_size(4 * SIMD_FLOATS)));
typedef float vf_unaligned __attribute__((vector_size(4 * SIMD_FLOATS), aligned(4), may_alias));
typedef uint16_t vf_bf16 __attribute__((vector_size(2 * SIMD_FLOATS)));
// This type is for memory only: gcc 14 for ARM ends in an internal error if it is an argument.
typedef uint16_t vf_bf16_unaligned __attribute__((vector_size(2 * SIMD_FLOATS), aligned(2), may_alias));

// ---- lanes

SIMD_INLINE vf vf_set1(float x) { return x - (vf){0}; }        // the bits of x, whatever they are
SIMD_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }  // one instruction where there is one

// mask ? a : b, lane by lane.
SIMD_INLINE vf vf_select(vf_mask mask, vf a, vf b) { return (vf)((mask & (vf_mask)a) | (~mask & (vf_mask)b)); }

// The type of a vector that intrinsics take, and the intrinsic of a name.
#if defined(__AVX512F__)
typedef __m512 vf_native;
#define VF_NATIVE(op) _mm512_##op
#elif defined(__AVX__)
typedef __m256 vf_native;
#define VF_NATIVE(op) _mm256_##op
#elif defined(__SSE2__)
typedef __m128 vf_native;
#define VF_NATIVE(op) _mm_##op
#endif

// vf_max, vf_min: b where either is NaN.
#ifdef VF_NATIVE
SIMD_INLINE vf vf_max(vf a, vf b) { return (vf)VF_NATIVE(max_ps)((vf_native)a, (vf_native)b); }
SIMD_INLINE vf vf_min(vf a, vf b) { return (vf)VF_NATIVE(min_ps)((vf_native)a, (vf_native)b); }
SIMD_INLINE vf vf_sqrt(vf x) { return (vf)VF_NATIVE(sqrt_ps)((vf_native)x); }
#else
SIMD_INLINE vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); }
SIMD_INLINE vf vf_min(vf a, vf b) { return vf_select(a < b, a, b); }
SIMD_INLINE vf vf_sqrt(vf x) {
    for (int i = 0; i < SIMD_FLOATS; i++) x[i] = sqrtf(x[i]);
    return x;
}
#endif

// Returns 0, 1, 2, ...
SIMD_INLINE vf vf_lanes(void) {
    static const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return *(const vf_unaligned*)lanes;
}

// Returns the sum of all lanes, halves added to halves: a fixed order.
SIMD_INLINE float vf_sum(vf x) {
#if defined(__AVX512F__)  // gcc 12 goes through memory for the loop below
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return two[0] + two[1];
#endif
    float t[SIMD_FLOATS];
    *(vf_unaligned*)t = x;
    for (int half = SIMD_FLOATS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) t[i] += t[i + half];
    return t[0];
}

// Returns the greatest lane.
SIMD_INLINE float vf_highest(vf x) {
    float t[SIMD_FLOATS];
    *(vf_unaligned*)t = x;
    for (int half = SIMD_FLOATS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) t[i] = MAX(t[i], t[i + half]);
    return t[0];
}

// a0 b0 a1 b1 ... of the lower, and of the upper halves. log2(SIMD_FLOATS) rounds over rows i and i + SIMD_FLOATS / 2
// of a square of lanes transpose it.
#if defined(__AVX512F__)
#define VF_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define VF_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX__)
#define VF_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define VF_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define VF_LOW 0, 4, 1, 5
#define VF_HIGH 2, 6, 3, 7
#endif
#if defined(__clang__) || __GNUC__ >= 12
#define VF_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define VF_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vf_bits){__VA_ARGS__})
#endif
SIMD_INLINE vf vf_interleave_low(vf a, vf b) { return VF_SHUFFLE(a, b, VF_LOW); }
SIMD_INLINE vf vf_interleave_high(vf a, vf b) { return VF_SHUFFLE(a, b, VF_HIGH); }

// Transposes a square of lanes: x[i][j] and x[j][i] change places. The distance between rows that are interleaved
// halves log2(SIMD_FLOATS) times.
SIMD_INLINE void vf_transpose(vf x[SIMD_FLOATS]) {
    vf t[SIMD_FLOATS];
#pragma GCC unroll 4
    for (int round = 1; round < SIMD_FLOATS; round *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < SIMD_FLOATS / 2; i++) {
            t[2 * i] = vf_interleave_low(x[i], x[i + SIMD_FLOATS / 2]);
            t[2 * i + 1] = vf_interleave_high(x[i], x[i + SIMD_FLOATS / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < SIMD_FLOATS; i++) x[i] = t[i];
    }
}

// ---- memory

SIMD_INLINE vf vf_load(const float* p) { return *(const vf_unaligned*)p; }
SIMD_INLINE void vf_store(float* p, vf x) { *(vf_unaligned*)p = x; }

SIMD_INLINE vf_bits vf_widen(vf_bf16 x) {
#if defined(__AVX512F__)  // gcc 12 takes six instructions for the conversion below
    return (vf_bits)_mm512_cvtepu16_epi32((__m256i)x);
#else
    return __builtin_convertvector(x, vf_bits);
#endif
}

SIMD_INLINE vf vf_from_bf16(vf_bf16 x) { return (vf)(vf_widen(x) << 16); }

SIMD_INLINE vf vf_load_bf16(const bf16* p) { return vf_from_bf16(*(const vf_bf16_unaligned*)p); }

// Rounds as bf16_from_float does.
SIMD_INLINE vf_bf16 vf_to_bf16(vf x) {
#if defined(__AVX512BF16__)  // its instruction rounds so too, but takes subnormal numbers for 0
    if (__builtin_expect(!_mm512_fpclass_ps_mask((__m512)x, 0x20), 1)) return (vf_bf16)_mm512_cvtneps_pbh((__m512)x);
#endif
    vf_bits bits = (vf_bits)x;
    vf_bits rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    vf_bits chosen = (vf_bits)vf_select(x != x, (vf)quiet, (vf)rounded);
#if defined(__AVX512F__)
    return (vf_bf16)_mm512_cvtepi32_epi16((__m512i)chosen);
#else
    return __builtin_convertvector(chosen, vf_bf16);
#endif
}

SIMD_INLINE void vf_store_bf16(bf16* p, vf x) { *(vf_bf16_unaligned*)p = vf_to_bf16(x); }

// Stores two vectors past the caches where the processor can; p is aligned to both together. A store fence must follow.
SIMD_INLINE void vf_stream_bf16(bf16* p, const vf_bf16 x[2]) {
#if defined(__AVX512F__)
    __m512i line = _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)x[0]), (__m256i)x[1], 1);
    _mm512_stream_si512((void*)p, line);
#else
    memcpy(p, x, 2 * sizeof x[0]);
#endif
}

SIMD_INLINE vf vf_load_as(const void* p, DType dt) {
    return dt == DT_BF16 ? vf_load_bf16((const bf16*)p) : vf_load((const float*)p);
}

SIMD_INLINE void vf_store_as(void* p, vf x, DType dt) {
    if (dt == DT_BF16) vf_store_bf16((bf16*)p, x);
    else vf_store((float*)p, x);
}

// Loads n = 0 .. SIMD_FLOATS elements; the other lanes are 0, and nothing beyond the n elements is touched.
SIMD_INLINE vf vf_load_part(const void* p, int n, DType dt) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (dt == DT_F32) return (vf)_mm512_maskz_loadu_ps(mask, p);
    return vf_from_bf16((vf_bf16)_mm256_maskz_loadu_epi16(mask, p));
#else
    float t[SIMD_FLOATS] = {0};
    for (int i = 0; i < n; i++) t[i] = dt == DT_BF16 ? bf16_to_float(((const bf16*)p)[i]) : ((const float*)p)[i];
    return vf_load(t);
#endif
}

SIMD_INLINE void vf_store_part(void* p, vf x, int n, DType dt) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (dt == DT_F32) _mm512_mask_storeu_ps(p, mask, (__m512)x);
    else _mm256_mask_storeu_epi16(p, mask, (__m256i)vf_to_bf16(x));
#else
    for (int i = 0; i < n; i++) {
        if (dt == DT_BF16) ((bf16*)p)[i] = bf16_from_float(x[i]);
        else ((float*)p)[i] = x[i];
    }
#endif
}

// ---- exp, GELU, sigmoid

// e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2, and e^r = 1 + r + r^2 q(r) with q of degree 4, interpolated
// at Chebyshev nodes (error 8e-9). Relative error below 2e-7; 0 where e^x would be subnormal, infinity above the range.
SIMD_INLINE vf vf_exp_inside(vf x) {  // anything outside the range
    const float shift = 0x1.8p23f;    // adding it leaves the rounded integer in the lowest bits
    vf n = x * 1.44269504f + shift;
    vf_bits exponent = (vf_bits)n << 23;
    n -= shift;
    vf r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;  // the first product is exact: ln 2 in two parts
    vf q = (((r * 1.39280747e-3f + 8.36469233e-3f) * r + 4.16665412e-2f) * r + 0.166665673f) * r + 0.5f;
    return (vf)((vf_bits)(r * r * q + r + 1.f) + exponent);
}

SIMD_INLINE vf vf_exp(vf x) {
    vf y = vf_select(x < vf_set1(-87.336f), (vf){0}, vf_exp_inside(x));
    return vf_select(x <= vf_set1(88.722f), y, x + INFINITY);  // also where x is NaN
}

// vf_exp_bounded does so for x <= 88 or NaN, with a selection less.
SIMD_INLINE vf vf_exp_bounded(vf x) { return vf_select(x >= vf_set1(-87.336f), vf_exp_inside(x), vf_max((vf){0}, x)); }

// 2^x = 2^n 2^f with n = round(x), 2^f = 1 + f q(f) and q of degree 4, interpolated at Chebyshev nodes: relative error
// below 3e-7. x is below 127 or NaN; the result is at least 2^-126.
SIMD_INLINE vf vf_exp2_bounded(vf x) {
    const float shift = 0x1.8p23f;
    x = vf_max(vf_set1(-126), x);
    vf n = x + shift, f = x - (n - shift);
    vf q = (((f * 1.33813025e-3f + 9.66636852e-3f) * f + 5.55038101e-2f) * f + 0.240223490f) * f + 0.693147181f;
    return (vf)((vf_bits)(f * q + 1.f) + ((vf_bits)n << 23));
}

// GELU is x (1 + tanh u) / 2, u = sqrt(2/pi) (x + 0.044715 x^3); x / (1 + exp(-2u)) is the same, and loses no digits if
// x is negative.
SIMD_INLINE vf vf_minus_2u(vf x) { return x * (x * x * -0.0713548163f - 1.59576912f); }

SIMD_INLINE vf vf_gelu(vf x) { return x / (1.f + vf_exp(vf_minus_2u(x))); }

// GELU' = s + x s (e s) 2 du/dx with e = exp(-2u), s = 1 / (1 + e), 1 - s = e s. Beyond |x| = 10 that is 0 or 1, and e
// would overflow; up to there |2u| < 87.32.
SIMD_INLINE vf vf_gelu_gradient(vf x) {
    x = vf_max(vf_set1(-10), vf_min(vf_set1(10), x));
    vf e = vf_exp_inside(vf_minus_2u(x)), s = 1.f / (1.f + e);
    return s + x * s * (e * s) * (x * x * 0.214064449f + 1.59576912f);
}

// SiLU(x) = x sigmoid(x); where e^-x is infinite both are 0.
SIMD_INLINE vf vf_sigmoid(vf x) { return 1.f / (1.f + vf_exp(-x)); }

// ---- loops over tensors

enum { SERIAL = 1 << 14 };  // elements below which waking the threads costs more than the work

// Runs n tasks that cost about the same, of an op on `elements` elements.
static inline void cpu_for(TeamTask f, const void* job, size_t n, size_t elements) {
    team_run(f, job, n, cpu_portion(n), elements < SERIAL);
}

static inline const void* row_of(const void* p, size_t row, size_t C, DType dt) {
    return (const char*)p + row * C * dtype_bytes(dt);
}

// Calls f(..., dt) with a constant dt, so that loads and stores of each type are compiled into the loop.
#define WITH_DTYPE(dt, f, ...) ((dt) == DT_BF16 ? f(__VA_ARGS__, DT_BF16) : f(__VA_ARGS__, DT_F32))

// Loads n elements of a tensor from element i on; n is SIMD_FLOATS, or fewer at the end.
SIMD_INLINE vf vf_get(const void* p, size_t i, int n, DType dt) {
    const char* at = (const char*)p + i * dtype_bytes(dt);
    return n == SIMD_FLOATS ? vf_load_as(at, dt) : vf_load_part(at, n, dt);
}

SIMD_INLINE void vf_put(void* p, size_t i, int n, vf x, DType dt) {
    char* at = (char*)p + i * dtype_bytes(dt);
    if (n == SIMD_FLOATS) vf_store_as(at, x, dt);
    else vf_store_part(at, x, n, dt);
}

// Runs the statements with i = begin, begin + SIMD_FLOATS, .. and n elements at each: a constant but for the last.
#define FOR_VECTORS(i, n, begin, end, ...)                           \
    do {                                                             \
        size_t i = (begin);                                          \
        for (; i + SIMD_FLOATS <= (size_t)(end); i += SIMD_FLOATS) { \
            const int n = SIMD_FLOATS;                               \
            __VA_ARGS__                                              \
        }                                                            \
        if (i < (size_t)(end)) {                                     \
            const int n = (int)((size_t)(end)-i);                    \
            __VA_ARGS__                                              \
        }                                                            \
    } while (0)
