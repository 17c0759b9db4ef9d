// columns.h - numbers of every step of a run in bounded memory: columns of equally many steps, which are their means.
#pragma once
#include <stdint.h>

typedef struct Columns Columns;

// So many numbers a step, at most `most` columns (an even number). NULL: no memory.
Columns* columns_open(int width, int most);
void columns_close(Columns* c);  // NULL is fine
// The numbers of a step, steps ascending. When there is no room for another column neighbours are merged two by two
// first, so that a column is the mean of 1, 2, 4, ... steps and only the last may be of fewer than the others. A number
// that is not finite is left out of the means.
void columns_add(Columns* c, int64_t step, const float* values);
int columns_count(const Columns* c);  // of columns, the one that is not full included
int64_t columns_first(const Columns* c, int column);  // of its steps
int64_t columns_last(const Columns* c, int column);
double columns_mean(const Columns* c, int column, int i);  // of number i; NaN: of no step known
double columns_total_mean(const Columns* c, int i);        // of all steps
