// pack.h - documents of a step into rows by best-fit decreasing: longest first, each goes into the fullest row that
// still has room for it, or opens a new one. At most 11/9 of the fewest rows, plus a constant (Johnson 1973).
#pragma once
#include "plan/base/base.h"

typedef struct WeighedRow {
    double cost;
    int number;
} WeighedRow;

// Row r holds the documents order[first[r]] .. order[first[r + 1] - 1].
typedef struct Rows {
    int n;
    int* order;            // (documents) indices into lengths
    int* first;            // (documents + 1)
    WeighedRow* heaviest;  // (n) first, by rows_weigh
} Rows;

// lengths (n), each 1 .. capacity. Deterministic: ties go to the smaller index and to the row that has had its room
// longest. The rows lie in the arena. 0, or -1 with a message naming a document that does not fit.
int pack_best_fit(Rows* out, const int* lengths, int n, int capacity, Arena* arena, Err err);
// The same with room in units of several tokens where rows are very long. Each length is 1 .. capacity.
int pack_rows(Rows* out, const int* lengths, int n, int64_t capacity, Arena* arena, Err err);
// Sorts rows, heaviest first: s tokens cost s + quadratic s^2, or squares (NULL: none) for s^2. 0, or -1: no memory.
int rows_weigh(Rows* rows, const int* lengths, const double* squares, double quadratic, Arena* arena, Err err);
