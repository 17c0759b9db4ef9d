// tree_cut.h - cuts a tree that is too large into several: each has some of its paths, with all that is above their
// ends. Segments that several have are computed several times.
//
//   a tree     prompt | answer 1 | answer 2 | answer 3      its parts   prompt | answer 1 | answer 3
//                                                                       prompt | answer 2
#pragma once
#include "data/docs_files.h"

typedef struct TreeCut {
    int n;           // parts, in the order of their first paths
    int64_t tokens;  // of all parts
    int* first;      // (n + 1) where a part's segments begin in `segments`
    int* segments;   // (first[n]) of each part in ascending order, so that parents come before their children
} TreeCut;

// Cuts the n segments of a tree (docs_segments) into parts of at most `most` tokens, where every path has. They lie in
// the arena. 0, or -1 without memory.
int tree_cut(TreeCut* cut, const DocsSegment* list, int n, int64_t most, Arena* arena, Err err);
