// longest.h - documents in order of length, as most published planners take them.
#pragma once
#include <stdlib.h>

#include "plan/base.h"

typedef struct Sorted {
    int length, doc;
} Sorted;

static inline int compare_sorted(const void* a, const void* b) {
    const Sorted *x = (const Sorted*)a, *y = (const Sorted*)b;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    return (x->doc > y->doc) - (x->doc < y->doc);
}

// The longest first, of equal ones the one with the smaller number.
static inline void sort_longest_first(Sorted* documents, int n) {
    qsort(documents, (size_t)n, sizeof *documents, compare_sorted);
}
