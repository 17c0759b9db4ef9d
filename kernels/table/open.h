// open.h - the backends of this build, and the peaks that their speeds are compared with.
#pragma once
#include "kernels/kernels.h"

// Returns the backend for a device: "cpu"; "cuda"; "emu", the CUDA code on an emulated GPU; "auto", a GPU if there is
// one that this build can use; "virtual", times without results, and "virtual-cpu", the same times with a CPU's
// results. isa is the CPU's instruction set: "auto" picks the best that this processor has; "reference" is the plain
// specification; "generic", "avx2", "avx512", "avx512bf16", "amx" force one. NULL with a message: the device or the
// instruction set is missing. The table is constant and lives for ever.
const Kernels* kernels_find(const char* device, const char* isa, Err err);

// Measures the FLOP/s that speeds are compared with. On x86-64 these are the multiply-adds of all threads' registers,
// by the fastest instruction that the set has for the type; else a square forward matmul of random values, of edge
// k->full_matmul, or as large as takes a quarter of a second on a slow device. It opens and closes the backend, so
// nothing may be open. cores: those that the threads have among them; 0: one each. Negative with a message: it failed.
double kernels_peak(const Kernels* k, DType dt, int threads, double cores, Err err);
// Measures the registers once more, between ops while the backend is open; 0: kernels_peak does not measure these.
double kernels_peak_again(const Kernels* k, DType dt, double cores);
