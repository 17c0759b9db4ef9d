// random.c - random numbers as pure functions of a seed and an index: see base.h.
//
// Uses only the four operations and the square root, which IEEE 754 rounds in one way, without contraction (Makefile).
// So every processor, compiler and vector length gives the same bits. A libm does not promise that.
#include <math.h>
#include <string.h>

#include "plan/base/base.h"

#define INLINE static inline __attribute__((always_inline))

INLINE double from_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
INLINE uint64_t to_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof x);
    return bits;
}

// Returns n below 2^53 as a double: its halves are placed after the bits of 2^84 and 2^52. Vectors have no conversion
// before AVX-512.
INLINE double from_integer(uint64_t n) {
    double high = from_bits(0x4530000000000000u | n >> 32) - 0x1p84;
    return high + (from_bits(0x4330000000000000u | (n & 0xffffffffu)) - 0x1p52);
}

// Uniform in [0, 1).
INLINE double unit(uint64_t random) { return from_integer(random >> 11) * 0x1p-53; }

// c[0] + c[1] z + c[2] z^2 + ...
INLINE double polynomial(const double* c, int n, double z) {
    double sum = c[n - 1];
    for (int i = n - 2; i >= 0; i--) sum = c[i] + z * sum;
    return sum;
}

// The logarithm of a normal x > 0. x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2); with s = f / (2 + f)
// log(1 + f) = 2 s + s^3 p(s^2) = f - (f^2 / 2 - s (f^2 / 2 + s^2 p)), the small terms summed first (K. C. Ng, fdlibm,
// 1993); ln 2 in two parts. p interpolates at Chebyshev nodes: error 4e-16.
INLINE double logarithm(double x) {
    static const double p[] = {0x1.5555555555558p-1, 0x1.99999999952d7p-2, 0x1.2492492df281ap-2, 0x1.c71c62e3f11e6p-3,
                               0x1.7462b51cb66b1p-3, 0x1.39fe51a7c18f9p-3, 0x1.2b5900de53b32p-3};
    const uint64_t root_half = 0x3fe6a09e00000000u;  // its upper digits
    uint64_t above = to_bits(x) - root_half;
    double k = from_bits(0x4330000000000000u | (above + 0x3ff0000000000000u) >> 52) - (0x1p52 + 1023);
    double f = from_bits((above & 0xfffffffffffffu) + root_half) - 1;
    double s = f / (2 + f), z = s * s, half = 0.5 * f * f;
    double small = half - (s * (half + z * polynomial(p, COUNT(p), z)) + k * 0x1.a39ef35793c76p-33);
    return k * 0x1.62e42feep-1 - (small - f);
}

// The cosine of 0 <= x < 7. x = n pi / 2 + y + tail, |y| <= pi / 4, pi / 2 in two parts; cosine and sine of y by the
// first terms of Taylor and polynomials in y^2, interpolated at Chebyshev nodes (errors 3e-18 and 4e-17).
INLINE double cosine(double x) {
    static const double c[] = {0x1.5555555555555p-5,   -0x1.6c16c16c16967p-10, 0x1.a01a019f4e9b4p-16,
                               -0x1.27e4fa17bf139p-22, 0x1.1eeb68cd22f56p-29,  -0x1.907d8f29fe831p-37};
    static const double p[] = {0x1.1111111110bb2p-7, -0x1.a01a019e83816p-13, 0x1.71de379654304p-19,
                               -0x1.ae600aca92c64p-26, 0x1.5e0b05bff20f2p-33};
    double shifted = x * 0x1.45f306dc9c883p-1 + 0x1.8p52, n = shifted - 0x1.8p52;  // n is in the lowest bits too
    double rest = x - n * 0x1.921fb544p+0, low = n * 0x1.0b4611a626331p-34;
    double y = rest - low, tail = (rest - y) - low, z = y * y, half = 0.5 * z, near = 1 - half, cube = z * y;
    double cos_y = near + ((1 - near - half) + (z * (z * polynomial(c, COUNT(c), z)) - y * tail));
    double sin_y = y - (z * (0.5 * tail - cube * polynomial(p, COUNT(p), z)) - tail + cube * 0x1.5555555555555p-3);
    uint64_t quadrant = to_bits(shifted), is_odd = 0 - (quadrant & 1), sign = ((quadrant + 1) & 2) << 62;
    return from_bits(((to_bits(sin_y) & is_odd) | (to_bits(cos_y) & ~is_odd)) ^ sign);
}

// Box-Muller; 1 - u keeps the logarithm's argument above zero.
INLINE void fill(double* value, uint64_t seed, uint64_t first, size_t n) {
    uint64_t key = hash64(seed);
    for (size_t i = 0; i < n; i++) {
        uint64_t index = 2 * (first + i);
        double u = unit(hash64(key ^ index)), v = unit(hash64(key ^ (index + 1)));
        value[i] = sqrt(-2 * logarithm(1 - u)) * cosine(6.283185307179586 * v);
    }
}

// The same with longer vectors; clang knows no target of a preferred length.
#if defined(__x86_64__)
#define FILL(name, set) \
    __attribute__((target(set))) static void name(double* v, uint64_t s, uint64_t i, size_t n) { fill(v, s, i, n); }
FILL(fill_avx2, "avx2")
#if defined(__clang__)
FILL(fill_avx512, "avx512f,avx512dq,avx512vl")
#else
FILL(fill_avx512, "avx512f,avx512dq,avx512vl,prefer-vector-width=512")
#endif
#endif

void random_normals(double* value, uint64_t seed, uint64_t first, size_t n) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) fill_avx512(value, seed, first, n);
    else if (__builtin_cpu_supports("avx2")) fill_avx2(value, seed, first, n);
    else fill(value, seed, first, n);
#else
    fill(value, seed, first, n);
#endif
}

double random_uniform(uint64_t seed, uint64_t index) { return unit(hash64(hash64(seed) ^ index)); }
