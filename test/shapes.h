// shapes.h - models of any architecture for tests.
#pragma once
#include "plan/model/split.h"

// A GPT-2 of these dimensions.
static inline Shape shape_make(int layers, int width, int heads, int vocab, int context) {
    const ArchEntry* arch = &arch_table[ARCH_GPT2];
    return shape_whole((Shape){.arch = ARCH_GPT2,
                               .features = arch->features,
                               .L = layers,
                               .C = width,
                               .NH = heads,
                               .V = vocab,
                               .NKV = heads,
                               .HS = width / heads,
                               .U = 4 * width,
                               .context = context,
                               .positions = context,
                               .eps = arch->eps});
}

// With as many key/value heads of the same size, hidden units and channels as the GPT-2 of these dimensions. A Llama
// has 2 query heads for each, a Qwen2 3, a Qwen3 4: all their channels together are not `width`.
static inline Shape shape_like(Arch arch, int layers, int width, int heads, int vocab, int context) {
    Shape s = shape_make(layers, width, heads, vocab, context);
    if (arch == ARCH_GPT2) return s;
    s.arch = arch;
    s.features = arch_table[arch].features | (arch == ARCH_LLAMA ? HAS_HEAD : 0);
    s.eps = arch_table[arch].eps;
    s.NH = (1 + (int)arch) * heads;
    s.theta = 1e4;
    return shape_whole(s);
}
