// linear.h - the four linears of a block as this rank computes them in this step (run/work.h): whole, or with columns
// of their input left out. Timed as TIME_LINEAR, and repeated where a straggler is injected.
#pragma once
#include "run/work.h"

// out (N,OC) = x W^T + bias; x (N, width). With gelu not NULL also gelu (N,OC) = GELU(out).
void linear_forward(const Model* m, LinearId id, int l, void* out, void* gelu, const void* x, int N);
// dW +=, dbias +=, and dx (N, width) = dout W; with pre (N, width) times GELU'(pre). dout (N,OC); columns that are left
// out of dx are filled as Linear.fill says.
void linear_backward(const Model* m, LinearId id, int l, void* dx, const void* dout, const void* x, const void* pre,
                     int N);
