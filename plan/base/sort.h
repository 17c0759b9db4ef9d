// sort.h - numbers in their order.
#pragma once
#include <stdlib.h>

static inline int ascending_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// Sorts n numbers, the least first.
static inline void sort_doubles(double* x, size_t n) { qsort(x, n, sizeof *x, ascending_doubles); }
