// strategy_moves.h - what moving the model takes under a strategy (plan/layout/layout.h): weights come from the owners
// of optimizer state before a step, gradients go to them behind it (run/model/mover.h).
//
// Rank r owns piece r of every bucket of the whole model, whatever the strategy. So this is a number for each strategy,
// and not for each pair: weights of a step come from owners whatever the step before was.
#pragma once
#include "plan/cost/transfers.h"
#include "plan/layout/layout.h"

// The layers of such a pipeline, dealt evenly; each runs as `how` (layers) says of zero and recompute. Ends are whole.
Layout strategy_layout(const Shape* whole, const PipelineGroup* g, const LayerLayout* how);

// What ranks have of weights (COPY) or gradients (SUM), in the arena. *plain, and nothing else: every rank has all.
int strategy_holdings(Holdings* parts, int* plain, const Shape* whole, const RankStrategy* strategy,
                      const LayerLayout* how, ReshardKind kind, Arena* arena, Err err);

// whole: its shards are all ranks. cost_step: where a machine's step has the sums of a run without strategies in it,
// only what a strategy takes more counts. 0, or -1 with words.
typedef struct StrategyMoves {
    const MoveTime* times;
    const Shape* whole;
    size_t weight_bytes, gradient_bytes;  // of an element, as it travels
    int only_more;
} StrategyMoves;

// start (ranks): ms until each rank has its weights; *end: until all gradients are summed.
int strategy_moves(double* start, double* end, const StrategyMoves* m, const RankStrategy* strategy,
                   const LayerLayout* how, Arena* arena, Err err);
