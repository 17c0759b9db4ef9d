// prune.h - chooses how many columns a resized rank leaves out of its matmuls, and which.
//
// Resizing of columns is that of Wang et al. 2024 ("Accelerating Heterogeneous Tensor Parallelism via Flexible Workload
// Control"). Theirs keeps the columns whose weights change most; here chance chooses, anew at every refresh, which lost
// less in our runs (dev/results/stragglers.md).
#pragma once
#include "plan/base/base.h"

// Sets kept (n_kept) to n_kept of 0 .. n - 1, ascending. Every set is equally likely; seeds alone decide, so that all
// machines draw the same.
void prune_draw(int* kept, int n_kept, int n, uint64_t seed);

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
