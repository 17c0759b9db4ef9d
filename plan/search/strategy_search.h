// strategy_search.h - the list of strategies that a run has to choose from, proposed for the lengths of its documents.
#pragma once
#include "plan/published/hydraulis.h"

// The list of a run, so few that every step finds one that is fast for its documents. Proposed are those for every
// longest document of one step of a sample after another, and each kind of pipeline alone. All are tried on these
// steps, dispatched and packed as a run would, and taken one after another: always the one with which the steps, each
// under its best strategy so far, take least in all, until that saves too little. Then what differs from those taken
// in one exchange of pipelines is tried, too, and they are chosen anew, some times.
typedef struct StrategySearch {
    const SchemePool* pool;
    const int* lengths;  // (n) of a sample, in the order in which steps draw them
    int n;
    int64_t batch_tokens;  // of a step
    int most;              // strategies, at most HYDRAULIS_LIST
    // What moving takes pipelines of a scheme: Strategy.start, and what it adds to Strategy.end, ms.
    double start[HYDRAULIS_SCHEMES], end[HYDRAULIS_SCHEMES];
    int bins;          // of lengths, at most HYDRAULIS_BINS, 0: so many
    int unpacked;      // tried by what dispatching says alone
    Strategy* ranked;  // (most_ranked) =: those that were tried, by Strategy.ms, their mean; NULL: not wanted
    int most_ranked;
} StrategySearch;

// What a list takes on the batches of the sample.
typedef struct StrategyScore {
    int batches, proposed, ranked;
    double ms;         // mean of a batch, each under its best strategy
    double single_ms;  // of the best strategy alone; infinite where none holds all batches
} StrategyScore;

// Fills list (most); returns how many, 0 where no pipelines hold the documents, -1 without memory.
int strategies_search(Strategy* list, StrategyScore* score, const StrategySearch* search, Arena* arena, Err err);
