// e4m3.h - E4M3, an element type of FP8 (OCP 8-bit Floating Point Specification, 2023): a sign, 4 bits of exponent with
// bias 7, 3 of mantissa. The greatest value is 448, the least normal one 2^-6, the least of all 2^-9. There are no
// infinities; 0x7f and 0xff are NaN. All values are bf16 values, too.
#pragma once
#include "plan/base/base.h"

typedef uint8_t e4m3;
#define E4M3_MOST 448.0f

// Rounds to nearest, ties to even; what is beyond 448 becomes 448. Below the normal values a sum with 2^14 does the
// rounding: the least digit of such a number is 2^-9.
static inline e4m3 e4m3_from_float(float x) {
    uint32_t bits, small;
    memcpy(&bits, &x, sizeof bits);
    e4m3 sign = (e4m3)(bits >> 24 & 0x80);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return sign | 0x7f;
    float size, sum;
    memcpy(&size, &bits, sizeof size);
    sum = size + 0x1p14f;
    memcpy(&small, &sum, sizeof small);
    if (size < 0x1p-6f) return sign | (e4m3)(small & 0xf);
    if (size >= E4M3_MOST) return sign | 0x7e;
    return sign | (e4m3)(((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3));
}

static inline float e4m3_to_float(e4m3 x) {
    uint32_t bits = ((uint32_t)(x & 0x7f) << 20) + (120u << 23);
    float size = (float)(x & 7) * 0x1p-9f;
    if (x & 0x78) memcpy(&size, &bits, sizeof size);
    if ((x & 0x7f) == 0x7f) return __builtin_nanf("");
    return x & 0x80 ? -size : size;
}
