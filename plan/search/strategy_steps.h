// strategy_steps.h - the search for a list of strategies (plan/layout/layout.h): unlike pipelines side by side, of
// which every step takes one. Lists compete with layouts, judged by the same steps on the same clock
// (plan/search/layout_steps.h).
//
// Proposals (hydraulis.h) are dispatched as a run would: every step's documents go to pipelines, by the strategy whose
// slowest pipeline should end first. Like pipelines are a job, planned and played as a layout of fewer ranks. A step
// takes
//
//   max over jobs (weights come late + what is played) + gradients end behind (plan/layout/strategy_moves.h)
//
// Machines that know only whole pipelines (Machine.schemes) take their formula in place of a play.
#pragma once
#include "plan/layout/strategy_moves.h"
#include "plan/search/layout_steps.h"
#include "plan/search/strategy_search.h"

enum {
    LISTED = 8,       // strategies of a list: each has Comms of its own
    LIST_RANKS = 128  // on more ranks the ms of moves are estimates, and lists do not compete with layouts
};
#define LIST_GAIN 0.995  // a list must take less than this share of a layout's ms

typedef struct ListProblem {
    const LayoutProblem* layouts;  // tp, stages, zero, memory and context are those of layouts
    const LayoutCosts* costs;
    const SampledSteps* steps;
    int recompute[2];            // the least and the most that may be proposed
    int capacity;                // tokens of a row of one rank; 0: what memory holds
    int least_copies;            // of like pipelines, which share documents
    const StrategyMoves* moves;  // NULL: moves take nothing
    // Bytes of a rank of stage s of a layout that `copies` pipelines run, if owners hold states; rows of N tokens.
    double (*bytes)(void* context, const Layout* layout, int copies, int s, int N);
} ListProblem;

// A list that was tried. A pipeline's rows hold tp times N tokens, as --capacity says.
typedef struct ListTry {
    StrategyList list;
    LayerLayout how;  // zero and recompute of every layer
    int N, fits;      // N 0: as the machine's schemes say
    double ms;        // mean of a step
    double bytes;     // of the fullest rank
} ListTry;

// The numbers of strategies that were looked at.
typedef struct ListCount {
    int proposed, played;
    double bound;  // no strategy left out takes less ms
} ListCount;

// Searches for the fastest list as long as one may take less than `known` ms. Returns 1 if one is found; -1 without
// memory.
int lists_search(ListTry* best, ListCount* count, const ListProblem* p, double known, Arena* arena, Err err);
// Plays one strategy by itself: ms of each step as played, and the guess by which a run chooses (SAMPLED_STEPS);
// infinite if it does not fit. 0, or -1 without memory.
int strategy_steps(double* guess, double* ms, const ListProblem* p, const RankStrategy* strategy, LayerLayout how,
                   int N, Arena* arena, Err err);
