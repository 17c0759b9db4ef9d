// rounding.h - which tables round the probabilities of attention, and dS, to bf16 before they multiply them: those of
// tensor cores, of AMX tiles, and of bf16 pairs where a processor is fast at these (see kernels/cpu/attention_pairs.c).
#pragma once
#include <string.h>

#include "kernels/kernels.h"

static inline int rounds_probabilities(const Kernels* k, DType dt) {
    if (dt != DT_BF16) return 0;
    return !k->on_host || !strcmp(k->name, "cpu avx512bf16") || !strcmp(k->name, "cpu amx");
}
