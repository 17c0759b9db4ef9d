// e4m3.h - E4M3, an element type of FP8 (OCP 8-bit Floating Point Specification, 2023): a sign, 4 bits of exponent with
// bias 7, 3 of mantissa. The greatest value is 448, the least normal one 2^-6, the least of all 2^-9. There are no
// infinities; 0x7f and 0xff are NaN. All values are values of bf16.
#pragma once
#include "plan/base/base.h"

typedef uint8_t e4m3;
#define E4M3_MOST 448.0f

// Rounds to nearest, ties to even; what is beyond 448 becomes 448. A sum with 2^14 rounds to multiples of 2^-9.
static inline e4m3 e4m3_from_float(float x) {
    float size = __builtin_fabsf(x), sum = size + 0x1p14f;
    uint32_t bits, of_sum, sign = __builtin_signbit(x) ? 0x80 : 0;
    memcpy(&bits, &size, sizeof bits), memcpy(&of_sum, &sum, sizeof of_sum);
    uint32_t code = ((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3);
    if (size < 0x1p-6f) code = of_sum & 0xf;
    if (!(size < E4M3_MOST)) code = size >= E4M3_MOST ? 0x7e : 0x7f;
    return (e4m3)(sign | code);
}

static inline float e4m3_to_float(e4m3 x) {
    float size = (x & 0x7f) == 0x7f ? __builtin_nanf("") : (float)(x & 7) * 0x1p-9f;
    uint32_t bits = ((uint32_t)(x & 0x7f) << 20) + (120u << 23);
    if ((x & 0x78) && (x & 0x7f) < 0x7f) memcpy(&size, &bits, sizeof size);
    return x & 0x80 ? -size : size;
}
