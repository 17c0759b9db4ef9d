// limit.h - what this device can do at best, measured: the figure that speeds are compared with.
#pragma once
#include "kernels/kernels.h"

// FLOP/s of a square matmul, forward, of random values: of edge k->full_matmul, or as large as takes a quarter of a
// second on a slow device. Opens and closes the backend, so nothing may be open. Negative with a message when that
// fails.
double kernels_matmul_limit(const Kernels* k, DType dt, int threads, char* err, size_t errlen);
