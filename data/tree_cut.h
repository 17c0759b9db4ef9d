// tree_cut.h - cuts a tree that is too large into several: each has some of its paths, with all that is above their
// ends. Segments that several have are computed several times.
//
//   a tree     prompt | answer 1 | answer 2 | answer 3      its parts   prompt | answer 1 | answer 3
//                                                                       prompt | answer 2
#pragma once
#include "plan/base/base.h"

typedef struct TreeCut {
    int n;           // parts, in the order of their first paths
    int64_t tokens;  // of all parts
    int* first;      // (n + 1) where a part's segments begin in `segments`
    int* segments;   // (first[n]) of each part in ascending order, so that parents come before their children
} TreeCut;

// Segments (n) stand depth first: lengths[i] tokens below segment parents[i], which is before it or -1. Parts have at
// most `most` tokens, where every path has. In the arena. 0, or -1 without memory.
int tree_cut(TreeCut* cut, const int* lengths, const int* parents, int n, int64_t most, Arena* arena, Err err);
