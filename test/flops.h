// flops.h - for tests of slow ranks: what the linears of a rank cost now.
#pragma once
#include "run/model/work.h"

// FLOPs of the linears a token of this rank, forward and backward, between work_begin and work_end, by GEMM: forward,
// input gradient, weight gradient.
static inline void work_flops(const Model* m, double flops[3]) {
    flops[0] = flops[1] = flops[2] = 0;
    for (int l = 0; l < m->shape.L; l++)
        for (int id = 0; id < N_LINEARS; id++) {
            Linear linear = work_linear(m, (LinearId)id, l);
            for (int gemm = 0; gemm < 3; gemm++) flops[gemm] += 2.0 * linear.OC * linear.K;
        }
}
