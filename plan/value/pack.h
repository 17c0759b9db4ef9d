// pack.h - documents of a step into rows: best-fit decreasing bin packing in O(n log n).
//
// Longest first, each document goes into the fullest row that still has room for it, or opens a new one. Best-fit
// decreasing needs at most 11/9 of the optimal number of rows, plus a constant (Johnson 1973).
#pragma once
#include "plan/base/base.h"

// A packing: row r holds the documents order[first[r] .. first[r+1]), in that order.
typedef struct Packing {
    int n_rows;
    int* order;  // (n) indices into lengths
    int* first;  // (n + 1)
} Packing;

// lengths (n), each 1 .. capacity. Deterministic: ties go to the smaller index and to the row that has had its room
// longest. The result lies in the arena. 0, or -1 with a message naming a document that does not fit.
int pack_best_fit(Packing* out, const int* lengths, int n, int capacity, Arena* arena, char* err, size_t errlen);
