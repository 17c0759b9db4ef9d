// numbers.h - medians of what tests measure.
#pragma once
#include <stdlib.h>

static inline int ascending(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// Of n values, which it sorts.
static inline double median_of(double* values, int n) {
    qsort(values, (size_t)n, sizeof *values, ascending);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}
