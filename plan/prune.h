// prune.h - how many columns, heads or hidden units a rank leaves out to save a given amount of its matmuls.
//
// Matmuls want widths that are multiples of a tile, so what is left out comes in tiles, rounded up to meet the target.
// Work is in any unit that all lists of a call share.
#pragma once
#include "plan/base.h"

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
