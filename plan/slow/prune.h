// prune.h - what a resized rank leaves out of its matmuls: how many columns, heads or hidden units, and which.
//
// Kept are those whose weights change most, v_j = sum_i |W_now[i][j] - W_ago[i][j]| (Wang et al. 2024, "Accelerating
// Heterogeneous Tensor Parallelism via Flexible Workload Control", and its released code). The value of a dropped one
// is never measured, so it rises a little at every refresh: none is dropped for ever.
#pragma once
#include "plan/base/base.h"

// ---- which

typedef enum Priority { PRIORITY_CHANGE, PRIORITY_RANDOM, PRIORITY_INVERSE } Priority;

// Of one list: value (n), 1 at the start.
void prune_start(float* value, int n);
// After a refresh interval: value[j] = change[j] for those that were kept (kept (n_kept), ascending), the others rise
// by a tenth of the mean of the new values.
void prune_learn(float* value, const float* change, int n, const int* kept, int n_kept);
// kept (n_kept) = the n_kept of 0 .. n - 1 with the greatest values (least for PRIORITY_INVERSE; a random subset by
// seed for PRIORITY_RANDOM), ascending; ties to the lower index. scratch: n ints.
void prune_choose(int* kept, int n_kept, const float* value, int n, Priority priority, uint64_t seed, int* scratch);
// change (cols) = sum over rows of |now - ago|, both (rows,cols).
void prune_change(float* change, const float* now, const float* ago, int rows, int cols);

// ---- how many
//
// Matmuls want widths that are multiples of a tile, so what is left out comes in tiles, rounded up to meet the target.
// Work is in any unit that all lists of a call share.

// Things of which some are left out: columns of a linear's input, heads, or hidden units. What lists leave out is a
// multiple of their step, and one step of each stays.
typedef struct PruneList {
    int n;
    int coarse;   // 1, for heads: the step is 1 and the number is rounded down where other lists can absorb the rest
    double work;  // of one of them
} PruneList;

// The step of a list of n that is not coarse: `tile`, a power of 2, or where that makes fewer than 4 its greatest
// divisor that makes 4, or 1.
int prune_tile(int n, int tile);
// The most work that can be left out.
double prune_most(const PruneList* lists, int n_lists, int tile);
// dropped (n_lists) = how many of each, in proportion, so that together they save `target` (at most 0: nothing). A list
// makes up for what those before it saved too much or too little, so that together they save less than one step of the
// last list too much, where that has something left. Where a list cannot leave out its part, any other does. Returns
// what is saved: less than the target only when that is more than prune_most.
double prune_counts(int* dropped, const PruneList* lists, int n_lists, double target, int tile);

// Of layers of equal work whose loss is weight w > 0 (n each): the ratios that leave out sum of them at the least sum
// of w g^2, none above most; those that would be are fixed at it and the others found anew. What `most` everywhere does
// not reach stays in.
void prune_ratios(double* g, const double* w, int n, double sum, double most);
