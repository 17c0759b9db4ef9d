// straggle.h - slow matmuls on purpose: a table over that of any device, for --straggle and for tests.
//
// Its matmuls take x times as long as those of the table below, whose results they have, bit for bit. How time passes:
//   virtual time     the clock goes on
//   host memory      the host waits, by the device's clock
//   other memory     the device computes again, into scratch, the last time a part of the rows
#pragma once
#include "kernels/kernels.h"

// Device memory that the table needs where no matmul has a result of more than `most` bytes. 0 where time passes
// otherwise.
size_t straggle_bytes(const Kernels* below, size_t most);
// The table over `below`, with memory of straggle_bytes. One at a time.
const Kernels* straggle_kernels(const Kernels* below, void* memory, size_t most);
// From here on; 1 at first. x >= 1, fractions too.
void straggle_slow_down(double x);
