// prune.h - chooses how many columns a resized rank leaves out of its matmuls, and which.
//
// It keeps those whose weights change most, v_j = sum_i |W_now[i][j] - W_ago[i][j]| (Wang et al. 2024, "Accelerating
// Heterogeneous Tensor Parallelism via Flexible Workload Control", and its released code). The value of a dropped one
// is never measured, so it rises a little at every refresh, and none is dropped for ever.
#pragma once
#include "plan/base/base.h"

// ---- which

// Sets the values (n) of a list to 1, at the start.
void prune_start(float* value, int n);
// Learns after a refresh interval: value[j] = change[j] for those that were kept (kept (n_kept), ascending); the others
// rise by a tenth of the mean of the new values.
void prune_learn(float* value, const float* change, int n, const int* kept, int n_kept);
// Sets kept (n_kept) to the n_kept of 0 .. n - 1 with the greatest values, ascending; ties go to the lower index.
void prune_choose(int* kept, int n_kept, const float* value, int n);
// Sets change (cols) to the sum over rows of |now - ago|, both (rows,cols).
void prune_change(float* change, const float* now, const float* ago, int rows, int cols);

// ---- how many
//
// Matmuls want widths that are multiples of a tile, so tiles are left out, rounded up to meet the target. Work is in
// any unit that all lists of a call share.

// The columns of a linear's input. A list leaves out a multiple of its step, and one step of it stays.
typedef struct PruneList {
    int n;
    double work;  // of one of them
} PruneList;

// The step of a list of n: `tile`, a power of 2; if that makes fewer than 4 steps, its greatest divisor that makes 4,
// or 1.
int prune_tile(int n, int tile);
// Sets dropped (n_lists) to how many of each, in proportion, so that together they save `part` of their work (at most
// 0: nothing). A list corrects what those before it saved too much or too little, so the total exceeds the part by less
// than one step of the last list, if that has something left. If a list cannot leave out its part, any other does. They
// save less only if all but a step of each is gone.
void prune_counts(int* dropped, const PruneList* lists, int n_lists, double part, int tile);
