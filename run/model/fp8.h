// fp8.h - --dtype fp8: the four linears of a block multiply E4M3 (kernels/e4m3.h), forward and for the gradients of
// their inputs. All else is as in bf16: gradients of weights, attention, norms, both ends of the model, masters,
// moments; and evaluations and samples, which come between steps.
//
//   y = x W^T + b     ->   x_unit w_unit q(x) q(W)^T + b      q(x) = E4M3 of scale x, saturated, unit = 1 / scale
//   d_x = d_y W       ->   y_unit w_unit q(d_y) q(W)
//
// A scale is of a tensor, and the same on all ranks: delayed scaling (Micikevicius et al. 2022). So a value is rounded
// to the same number wherever it lies, and ranks differ by the order of sums alone.
//
//   W          scale = 448 / amax                    amax: its greatest magnitude when the step begins
//   x, d_y     scale = 448 / (FP8_MARGIN amax)       amax: that of steps before, of all their rows on all ranks
//
// The amax of steps before is the last one's, or what is left of a greater one that fades, FP8_FADING a step: after a
// step of small gradients, or none, those of the next would be cut off, and with them all below. d_y is divided by the
// weight of a step's labels; amaxes are kept without it.
//
// A tensor without an amax yet is multiplied as bf16; RunState.amaxes keeps them. W is quantised once a step, as it is
// and transposed: both operands of a product are as long as its sum.
#pragma once
#include "run/run.h"

#define FP8_MARGIN 1.25
#define FP8_FADING 0.8
typedef enum Fp8Tensor { FP8_X, FP8_DOUT, FP8_W, FP8_TENSORS } Fp8Tensor;  // of a linear

// Ends the program if options, or the widths of what this rank has, do not go with FP8.
void fp8_check(const Run* run);
// Adds its memory to the table of rows of N tokens; fp8_open takes it up, with what a checkpoint says.
void fp8_plan(MemoryPlan* plan, const Run* run, int N);
void fp8_open(Run* run, const MemoryPlan* plan);
// These stand around the rows of a step that learns: between them linears multiply E4M3. Both are collective.
void fp8_begin(Run* run);
void fp8_end(Run* run);
// Multiplies x (N,K), the tensor x or dout of a linear, by its weights; p says the rest. 0: bf16 remains to do it.
int fp8_multiply(const Model* m, LinearId id, int l, Fp8Tensor tensor, const void* x, Fp8Matmul p);
