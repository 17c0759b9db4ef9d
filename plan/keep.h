// keep.h - which columns, heads or hidden units a resized matrix keeps: those whose weights change most (priority by L1
// weight change, as in Wang et al. 2024 and its released code), with a guard against starving: a dropped one's value is
// never measured, so it rises a little at every refresh.
#pragma once
#include "plan/base.h"

typedef enum Priority { PRIORITY_CHANGE, PRIORITY_RANDOM, PRIORITY_INVERSE } Priority;

// Of one list: value (n), 1 at the start.
void keep_start(float* value, int n);
// After a refresh interval: value[j] = change[j] for those that were kept (kept (n_kept), ascending), the others rise
// by a tenth of the mean of the new values.
void keep_learn(float* value, const float* change, int n, const int* kept, int n_kept);
// kept (n_kept) = the n_kept of 0 .. n - 1 with the greatest values (least for PRIORITY_INVERSE; a random subset by
// seed for PRIORITY_RANDOM), ascending; ties to the lower index. scratch: n ints.
void keep_choose(int* kept, int n_kept, const float* value, int n, Priority priority, uint64_t seed, int* scratch);
// change (cols) = sum over rows of |now - ago|, both (rows,cols).
void keep_change(float* change, const float* now, const float* ago, int rows, int cols);
