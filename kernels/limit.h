// limit.h - what this device can do at best, measured: the figure that speeds are compared with.
#pragma once
#include "kernels/kernels.h"

// FLOP/s of a large matmul (1024 x 1024 x 1024, forward) on the given backend: the best of runs that take about a
// tenth of a second in all. Opens and closes the backend, so nothing may be open. Negative with a message when that
// fails.
double kernels_matmul_limit(const Kernels* k, DType dt, int threads, char* err, size_t errlen);
