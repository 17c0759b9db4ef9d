// bf16_in_place.h - bf16 and fp32 in one and the same buffer.
#pragma once
#include "plan/base/base.h"

// A buffer of n floats whose first 2n bytes hold n bf16: widens them in place, from the end. And the way back, from
// the start.
static inline void bf16_widen_in_place(float* buffer, size_t n) {
    for (size_t i = n; i-- > 0;) {
        bf16 half;
        memcpy(&half, (const char*)buffer + i * sizeof half, sizeof half);
        buffer[i] = bf16_to_float(half);
    }
}

static inline void bf16_narrow_in_place(float* buffer, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bf16 half = bf16_from_float(buffer[i]);
        memcpy((char*)buffer + i * sizeof half, &half, sizeof half);
    }
}
