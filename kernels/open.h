// open.h - the backends of this build, and what their speeds are compared with.
#pragma once
#include "kernels/kernels.h"

// The backend for a device: "cpu"; "cuda"; "emu", the CUDA code on an emulated GPU; "auto", a GPU where there is one
// and this build can use it; "virtual", times without results, and "virtual-cpu", the same times with a CPU's results.
// And on the CPU an instruction set: "auto" picks the best that this processor has;
// "reference" is the plain specification; "generic", "avx2", "avx512", "avx512bf16", "amx" force one. NULL with a
// message when the device or the instruction set is missing. The table is constant and lives for ever.
const Kernels* kernels_find(const char* device, const char* isa, Err err);

// What speeds are compared with, measured, FLOP/s. Of x86-64 processors: the multiply-adds of all threads' registers,
// by the fastest instruction that the set has for the type. Else a square matmul, forward, of random values, of edge
// k->full_matmul, or as large as takes a quarter of a second on a slow device. Opens and closes the backend, so nothing
// may be open. cores: those that the threads have among them; 0: one each. Negative with a message when that fails.
double kernels_peak(const Kernels* k, DType dt, int threads, double cores, Err err);
// The registers alone, once more while the backend is open, between ops; 0 where these are not what it is measured by.
double kernels_peak_again(const Kernels* k, DType dt, double cores);
