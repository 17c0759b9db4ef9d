// layout_search.h - the layout (plan/layout/layout.h) that is fastest under a memory limit: the numbers of stages, of
// tensor-parallel ranks and of tokens of a row, the layers of each stage, and how each layer runs.
//
// It follows Galvatron-BMW (dev/galvatron.h). For every number of stages P, of tensor-parallel ranks and of tokens of a
// row the layers are dealt exactly. A stage takes the least that its layers can under the limit: all alike or, if the
// engine can run that, each by a strategy of its own (plan/search/layer_search.h). In layouts close to the best, layers
// then move between stages as long as the played step gets shorter. Bytes are the caller's and exact: a layout found
// with sums of bytes is measured as a whole, and if it is too large, the search repeats under a lower limit.
//
// A strategy of a layer in groups of R is a divisor of R as its tp, a --zero and a --recompute. A model's layers are
// alike: only the numbers of layers by each strategy count. plan/README.md says why, and what is not tried.
#pragma once
#include "plan/search/layout_play.h"

enum { LAYOUT_TRIES = 128, LAYOUT_ROWS = 16, LAYOUT_STRATEGIES = 108 };  // 12 divisors, 3 stages of ZeRO, 3 ways

// The caller's knowledge. bytes, layer_ms and ends_ms are asked of stage s of a layout whose stages up to s are filled
// in, with rows of N tokens: a rank's bytes; ms of all rounds of a step, for layer l and for all beside layers.
typedef struct LayoutProblem {
    const Shape* whole;
    int ranks;
    int tp[2], stages[2], zero[2];  // the least and the most that may be proposed
    int n_rows, rows[LAYOUT_ROWS];  // tokens of a row, ascending
    double memory;                  // bytes of a rank
    int apart;                      // 1: the best that run all layers by zero 1, and by zero 3, are tries, too
    int unlike;                     // 1: a stage's layers may run by unlike strategies, and by less tp
    double (*bytes)(void* context, const Layout* layout, int s, int N);
    double (*layer_ms)(void* context, const Layout* layout, int s, int l, int N);
    double (*ends_ms)(void* context, const Layout* layout, int s, int N);
    // Rounds of a step, at least 1, from stages and tp alone. Infinite: all groups of a stage together hold too little.
    double (*rounds)(void* context, const Layout* layout, int N);
    // ms of a step of a whole layout as played; NULL: stages of t ms take (sum t + (rounds - 1) max t) / rounds.
    double (*step_ms)(void* context, const Layout* layout, int N);
    double (*room)(void* context, const Layout* layout, int s);  // bytes of a rank of stage s; NULL: all have `memory`
    // Called before every P and tp with the share of them that is done; 0 ends the search at what it has. NULL: none.
    int (*goes_on)(void* context, double share);
    void *context, *times;  // context: of bytes and goes_on; times: of the others
} LayoutProblem;

// The best layout of one P, tp and N.
typedef struct LayoutTry {
    Layout layout;
    int N, fits;
    double ms;                     // ms of a step; infinite: nothing fits
    double bytes;                  // of its fullest rank; if nothing fits, the layout is the one that needs least
    double terms[N_LAYOUT_TERMS];  // the parts of ms, if its steps were played (plan/search/layout_steps.h)
} LayoutTry;

// Fills tries with the first LAYOUT_TRIES by time; those that do not fit come last, by bytes. Returns how many; the
// first need not fit. -1 without memory.
int layout_search(LayoutTry tries[LAYOUT_TRIES], const LayoutProblem* problem, Arena* arena, Err err);

// ---- how many layers each stage of a pipeline has: exactly
//
// A stage takes t ms for all m rounds of a step, the least under its memory (plan/search/layer_search.h). A step takes
//
//   (sum of t + (m - 1) max t) / m
//
// A dynamic program over stages and layers, with fronts of (max, sum), is exact. It is infinite if nothing fits.

typedef struct PartitionProblem {
    int layers, stages;
    double rounds;  // m, at least 1
    // Returns the least ms of layers [first, end) as this stage under the limit; infinite if it does not fit. A layer
    // more never takes less.
    double (*ms)(void* context, int stage, int first, int end);
    void* context;
} PartitionProblem;

typedef struct Partition {
    int layers[MOST_STAGES];
    double ms;  // ms of a step; infinite: a stage does not fit
} Partition;

double partition_ms(const PartitionProblem* p, const int* layers);
// Finds the fastest partition; ms infinite: none fits. 0, or -1 without memory.
int partition_exact(Partition* best, const PartitionProblem* p, Arena* arena, Err err);
