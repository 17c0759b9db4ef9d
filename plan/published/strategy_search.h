// strategy_search.h - which strategies a run should have to choose from: few, and such that every step finds one that
// is fast for its documents.
//
// The dynamic program of hydraulis.h proposes one for every longest document, from the documents of one
// step of a sample after another; each kind of pipeline alone is proposed as well. All are tried on these steps,
// dispatched and packed as a run would, and taken one after another: always the one with which the steps, each under
// its best strategy so far, take least in all; until that saves less than LEAST_GAIN of it. Then what differs from
// those taken in one exchange of pipelines is tried, too, and they are chosen anew, ROUNDS times.
#pragma once
#include "plan/published/hydraulis.h"

typedef struct StrategySearch {
    const SchemePool* pool;
    const int* lengths;    // (n) of a sample, in the order in which steps draw them
    int n, longest;        // longest: of any document
    int64_t batch_tokens;  // of a step
    int most;              // strategies, at most HYDRAULIS_LIST
    FixedCharge charge;
    // What moving takes pipelines of a scheme: Strategy.start, and what it adds to Strategy.end, ms.
    double start[HYDRAULIS_SCHEMES], end[HYDRAULIS_SCHEMES];
} StrategySearch;

// What a list takes on the batches of the sample.
typedef struct StrategyScore {
    int batches, proposed;
    double ms;         // mean of a batch, each under its best strategy
    double single_ms;  // of the best strategy alone; infinite where none holds all batches
} StrategyScore;

// Fills list (most); returns how many, 0 where no pipelines hold the documents, -1 without memory.
int strategies_search(Strategy* list, StrategyScore* score, const StrategySearch* search, Arena* arena, Err err);
