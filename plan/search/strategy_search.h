// strategy_search.h - the list of strategies that a run has to choose from, proposed for the lengths of its documents.
#pragma once
#include "plan/published/hydraulis.h"

// The search for a run's list: few strategies, with a fast one for every step's documents. It proposes those for every
// longest document of one sampled step after another, and each kind of pipeline alone. All are tried on these steps,
// dispatched and packed as a run would. It takes always the one with which the steps, each under its best strategy so
// far, take least in all, until that saves too little. Then strategies that differ by one exchange of pipelines are
// tried, too, and the list is chosen anew, some times.
typedef struct StrategySearch {
    const SchemePool* pool;
    const int* lengths;  // (n) of a sample, in the order in which steps draw them
    int n;
    int64_t batch_tokens;  // of a step
    int most;              // strategies, at most HYDRAULIS_LIST
    // The ms that moving costs pipelines of a scheme: Strategy.start, and its part of Strategy.end.
    double start[HYDRAULIS_SCHEMES], end[HYDRAULIS_SCHEMES];
    int bins;          // bins of lengths, at most HYDRAULIS_BINS; 0: that many
    int unpacked;      // 1: strategies are tried by dispatching alone
    Strategy* ranked;  // (most_ranked) =: those tried, by Strategy.ms, their mean; NULL: not wanted
    int most_ranked;
} StrategySearch;

// The ms that a list takes on the batches of the sample.
typedef struct StrategyScore {
    int batches, proposed, ranked;
    double ms;         // mean of a batch, each under its best strategy
    double single_ms;  // of the best strategy alone; infinite if none holds all batches
} StrategyScore;

// Fills list (most). Returns how many; 0 if no pipelines hold the documents; -1 without memory.
int strategies_search(Strategy* list, StrategyScore* score, const StrategySearch* search, Arena* arena, Err err);
