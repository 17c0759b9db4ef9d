// layer_search.h - a strategy for every layer of a stage: the least time under a memory limit.
//
// Layer l by strategy s takes ms[l][s] and bytes[l][s]; a change between neighbours is free. Galvatron's recurrence
// f(l, E) = min over s of f(l - 1, E - bytes) + ms runs over the limit E in steps of a megabyte. Here every layer has a
// front instead: pairs of bytes and ms of which none is worse in both. A pair leaves when even a lower bound of its
// continuation is no better than a known solution. The bound is Lagrange's: a price for a byte replaces the limit, and
// the least cost of all later layers is found once for all pairs. The price is the one at which the paths of least cost
// pass the limit. So only pairs within the gap between bound and solution stay. If they are too many, those with the
// least bounds stay, and `slack` says what that may have cost.
#pragma once
#include "plan/base/base.h"

typedef struct LayerProblem {
    int layers, strategies;
    const double *ms, *bytes;  // (layers, strategies); infinite ms: this layer cannot run this way
    double memory;             // bytes
    double known;              // ms: the search is for less only; 0: for any
} LayerProblem;

typedef struct LayerChoice {
    int* strategy;     // (layers), the caller's
    double ms, bytes;  // ms infinite: nothing fits or is faster; bytes are then the least that layers need
    double slack;      // 0: nothing is faster; else nothing is faster by more than this part
    int pairs;         // the most that were kept at a time
} LayerChoice;

// 0, or -1 without memory. Gives back what it takes of the arena.
int layer_search(LayerChoice* choice, const LayerProblem* problem, Arena* arena, Err err);
