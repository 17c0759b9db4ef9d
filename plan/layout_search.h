// layout_search.h - the layout (plan/layout.h) that is fastest under a memory limit: how many stages and
// tensor-parallel ranks, which layers each stage has, what its ranks divide and compute again.
//
// After Galvatron-BMW (Wang et al. 2024), whose pipelines balance memory and time at once, with a stage in place of a
// layer as what has a strategy. For every number of stages P and of tensor-parallel ranks a dynamic program deals the
// layers: with l layers given to the first s stages, the least of the longest stage is
//
//   best(s, l) = min over n, strategy of max(best(s - 1, l - n), ms of n layers in stage s)
//
// over strategies whose bytes fit the limit. It is exact: no layout of this P has a shorter longest stage. Early
// stages keep more rounds, so memory and time pull their borders apart; both are in the minimum. A step of v equal
// rounds takes (v + P - 1) / v of the longest stage, the sum of its rounds.
#pragma once
#include "plan/layout.h"

// What the caller knows: of stage s of a layout whose stages before it are filled in. Bytes of a rank; ms of all rounds
// of a step, one after another.
typedef struct LayoutProblem {
    const Shape* whole;
    int ranks, most_tp;
    double memory;  // bytes of a rank
    double (*bytes)(void* context, const Layout* layout, int s);
    double (*ms)(void* context, const Layout* layout, int s);
    double (*rounds)(void* context, const Layout* layout);  // v, at least 1; of stages and tp alone
    void* context;
} LayoutProblem;

// The best of one P and tp.
typedef struct LayoutTry {
    Layout layout;
    int fits;
    double ms;     // of a step; infinite where nothing fits
    double bytes;  // of its fullest rank; where nothing fits, of the layout that needs least
} LayoutTry;

enum { LAYOUT_TRIES = 64 };

// Fills tries, the best first, then by time; those that do not fit last, by bytes. Returns how many; the first need not
// fit. -1 without memory.
int layout_search(LayoutTry tries[LAYOUT_TRIES], const LayoutProblem* problem, Arena* arena, char* err, size_t errlen);
