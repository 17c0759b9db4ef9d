// strategy_steps.h - the search for a list of strategies (plan/layout/layout.h): unlike pipelines side by side, of
// which every step takes one. Candidates of the search for a layout, judged by the same steps on the same clock
// (plan/search/layout_steps.h).
//
// What is proposed (hydraulis.h) is dispatched as a run would: every step's documents to pipelines, by the strategy
// whose slowest pipeline should end first. Those of like pipelines are a job, a layout of fewer ranks: planned and
// played as one. A step takes
//
//   max over jobs (weights come late + what is played) + gradients end behind (plan/layout/strategy_moves.h)
//
// On machines that know whole pipelines alone (Machine.schemes) their formula stands for what is played.
#pragma once
#include "plan/layout/strategy_moves.h"
#include "plan/search/layout_steps.h"
#include "plan/search/strategy_search.h"

enum {
    LISTED = 8,       // strategies of a list: each has Comms of its own
    LIST_RANKS = 128  // on more of them what moves take is an estimate, and lists are no candidates beside layouts
};
#define LIST_GAIN 0.995  // of the ms of a layout, that a list has to take less

typedef struct ListProblem {
    const LayoutCosts* costs;
    const SampledSteps* steps;
    int tp[2], stages[2], zero[2], recompute[2];  // the least and the most that may be proposed
    int capacity;                                 // tokens of a row of one rank; 0: what memory holds
    int least_copies;                             // of like pipelines, which share documents
    double memory;                                // bytes of a rank
    const StrategyMoves* moves;                   // NULL: they take nothing
    // Of a rank of stage s of a layout, which `copies` pipelines run, where states belong to owners; rows of N tokens.
    double (*bytes)(void* context, const Layout* layout, int copies, int s, int N);
    void* context;
} ListProblem;

// A list. Rows of a pipeline hold tp times N tokens, as --capacity says.
typedef struct ListTry {
    StrategyList list;
    LayerLayout how;  // zero and recompute of every layer
    int N, fits;      // N 0: what the machine's schemes say
    double ms;        // of a step in the mean
    double bytes;     // of the fullest rank
} ListTry;

// What was looked at.
typedef struct ListCount {
    int proposed, played;
    double bound;  // no other of them takes less ms
} ListCount;

// The fastest list. It is looked for as long as one may take less than `known` ms. Returns whether one is found; -1
// without memory.
int lists_search(ListTry* best, ListCount* count, const ListProblem* p, double known, Arena* arena, Err err);
// One strategy by itself: ms of each step as played, and the guess by which a run chooses (SAMPLED_STEPS); infinite
// where it does not fit. 0, or -1 without memory.
int strategy_steps(double* guess, double* ms, const ListProblem* p, const RankStrategy* strategy, LayerLayout how,
                   int N, Arena* arena, Err err);
