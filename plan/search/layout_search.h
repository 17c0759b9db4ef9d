// layout_search.h - the layout (plan/layout/layout.h) that is fastest under a memory limit: how many stages and
// tensor-parallel ranks, rows of how many tokens, which layers each stage has, and how each layer runs.
//
// After Galvatron-BMW (dev/galvatron.h). For every number of stages P, of tensor-parallel ranks and of tokens of a row
// the layers are dealt exactly; a stage takes the least its layers can under the limit: all
// alike, or, where the engine can run that, each by a strategy of its own (plan/search/layer_search.h). In what is
// close to the best layers then move between stages as long as the played step gets shorter. Bytes are the caller's and
// exact: what was found with sums of bytes is measured as a whole, and searched for again under a lower limit where it
// was too much.
//
// A strategy of a layer in groups of R is a divisor of R as its tp, a --zero and a --recompute. Where all layers of a
// model are alike only the numbers of layers by each strategy count; why, and what is not searched for: plan/README.md.
#pragma once
#include "plan/search/layout_play.h"

enum { LAYOUT_TRIES = 128, LAYOUT_ROWS = 16, LAYOUT_STRATEGIES = 108 };  // 12 divisors, 3 stages of ZeRO, 3 ways

// What the caller knows. Of stage s of a layout whose stages up to s are filled in, with rows of N tokens: bytes of a
// rank; ms of all rounds of a step, of layer l and of what the stage has beside layers.
typedef struct LayoutProblem {
    const Shape* whole;
    int ranks;
    int tp[2], stages[2], zero[2];  // the least and the most that may be proposed
    int n_rows, rows[LAYOUT_ROWS];  // tokens of a row, ascending
    double memory;                  // bytes of a rank
    int alike;                      // every layer of the model takes the same
    int apart;                      // also the best that run all layers by zero 1, and by zero 3, are tries
    int unlike;                     // with that: a stage's layers may run by unlike strategies, and by less tp
    double (*bytes)(void* context, const Layout* layout, int s, int N);
    double (*layer_ms)(void* context, const Layout* layout, int s, int l, int N);
    double (*ends_ms)(void* context, const Layout* layout, int s, int N);
    // Of a step, at least 1; of stages and tp alone. Infinite: all groups of a stage together hold too little.
    double (*rounds)(void* context, const Layout* layout, int N);
    // Of a whole layout, as it is played; NULL: stages of t ms take (sum t + (rounds - 1) max t) / rounds.
    double (*step_ms)(void* context, const Layout* layout, int N);
    double (*room)(void* context, const Layout* layout, int s);  // bytes of a rank of stage s; NULL: all have `memory`
    // Told before every P and tp which share of them is done: 0 ends the search with what it has. NULL: nobody asks.
    int (*goes_on)(void* context, double share);
    void *context, *times;  // of bytes and goes_on; of all others
} LayoutProblem;

// The best of one P, tp and N.
typedef struct LayoutTry {
    Layout layout;
    int N, fits;
    double ms;                     // of a step; infinite where nothing fits
    double bytes;                  // of its fullest rank; where nothing fits, of the layout that needs least
    double terms[N_LAYOUT_TERMS];  // of ms, where somebody has looked (plan/search/layout_steps.h)
} LayoutTry;

// Fills tries, the best first, then by time; those that do not fit last, by bytes; of more than LAYOUT_TRIES the first.
// Returns how many; the first need not fit. -1 without memory.
int layout_search(LayoutTry tries[LAYOUT_TRIES], const LayoutProblem* problem, Arena* arena, Err err);

// ---- how many layers each stage of a pipeline has: exactly
//
// A stage takes t ms for all m rounds of a step, the least under its memory (plan/search/layer_search.h). A step takes
//
//   (sum of t + (m - 1) max t) / m
//
// The exact way is a dynamic program over stages and layers with fronts of (max, sum): infinite where nothing fits.

typedef struct PartitionProblem {
    int layers, stages;
    double rounds;  // m, at least 1
    // Of layers [first, end) as this stage: the least ms under the limit, infinite where it does not fit; a layer more
    // never takes less.
    double (*ms)(void* context, int stage, int first, int end);
    void* context;
} PartitionProblem;

typedef struct Partition {
    int layers[MOST_STAGES];
    double ms;  // of a step; infinite where a stage does not fit
} Partition;

double partition_ms(const PartitionProblem* p, const int* layers);
// The fastest of all. 0, or -1 without memory; infinite ms where none fits.
int partition_exact(Partition* best, const PartitionProblem* p, Arena* arena, Err err);
