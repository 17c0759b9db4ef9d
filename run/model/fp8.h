// fp8.h - --dtype fp8: forward, and backward for the gradient of their inputs, the four linears of a block multiply E4M3
// (kernels/e4m3.h). All else is as with bf16: the gradients of weights, attention, norms, both ends of the model, masters
// and moments; evaluations and samples, which come between steps, too.
//
//   y = x W^T + b      ->   out = x_unit w_unit q(x) q(W)^T + b     q(x) = E4M3 of scale x, unit = 1 / scale
//   d_x = d_y W        ->   d_x = y_unit w_unit q(d_y) q(W)
//
// A scale is of a whole tensor, and the same on all ranks (per-tensor delayed scaling, Micikevicius et al. 2022):
//
//   W          scale = 448 / amax                      amax: the greatest |W| at the beginning of the step
//   x, d_y     scale = 448 / (FP8_MARGIN * amax)       amax: that of the step before, of all ranks and micro-batches
//
// Values beyond saturate. A run's first step has no amax of a step before: it multiplies bf16, and finds them. So a value
// is rounded to the same number wherever it lies, and ranks differ by the order of sums alone. What a step has found is
// in checkpoints (RunState.amaxes).
//
// W is quantised once a step, as it is and transposed, since E4M3 products want both operands as long as their sum.
#pragma once
#include "run/model/work.h"
#include "run/run.h"

#define FP8_MARGIN 1.25f

// Ends the program, on all ranks, where this run's options or widths do not go with FP8. Collective; ranks are divided.
void fp8_check(const Run* run);
// Adds the memory to the table of rows of N tokens; fp8_open takes it up, with what a checkpoint says.
void fp8_plan(MemoryPlan* plan, const Run* run, int N);
void fp8_open(Run* run, const MemoryPlan* plan);
// These stand around a step that learns, once weights are there; both are collective. Between them linears use E4M3.
void fp8_begin(Run* run);
void fp8_end(Run* run);
void fp8_save(const Run* run, RunState* saved);

// These two are Kernels.matmul_forward and matmul_backward_input of a linear of work.h. 0: nothing was done, for bf16 to
// do.
int fp8_forward(const Model* m, LinearId id, int l, const Linear* w, void* out, void* gelu, const void* x, int N);
int fp8_backward_input(const Model* m, LinearId id, int l, const Linear* w, void* dx, const void* dout, const void* pre,
                       int N);
