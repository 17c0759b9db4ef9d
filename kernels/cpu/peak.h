// peak.h - what the multiply-add units of this processor can do: arithmetic on registers alone, no memory.
#pragma once
#include "kernels/cpu/cpu.h"

typedef enum PeakUnit { PEAK_FMA_YMM, PEAK_FMA_ZMM, PEAK_PAIRS_ZMM, PEAK_TILES, PEAK_UNITS } PeakUnit;

// FLOP/s of one unit on all threads of the team together, measured in processor time, because other programs may share
// the cores; the best of a few tries. 0 where the processor lacks the instruction.
double cpu_peak_of(PeakUnit unit);
// FLOP/s of the fastest that the instruction set of a table has for the type; 0 where that is not known: for sets below
// avx2, other processors, and tables that are not the CPU's.
double cpu_peak(const Kernels* k, DType dt);
