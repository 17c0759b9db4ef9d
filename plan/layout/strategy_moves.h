// strategy_moves.h - what moving the model takes under a strategy (plan/layout/layout.h): weights come from the owners
// of optimizer state, gradients go to them (run/model/mover.h), wave by wave.
//
// All waves of weights leave when a step begins, and a layer waits for its own: what of it shows is by how much the
// first pass comes late. Gradients of a layer leave when the last pass is through it; what shows is what is under way
// when the last pipeline has ended.
//
// Rank r owns piece r of every bucket of the whole model, whatever the strategy. So this is a number for each strategy,
// and not for each pair: weights of a step come from owners whatever the step before was.
#pragma once
#include "plan/cost/transfers.h"
#include "plan/layout/layout.h"

// The layers of such a pipeline, dealt evenly; each runs as `how` (layers) says of zero and recompute. Ends are whole.
Layout strategy_layout(const Shape* whole, const PipelineGroup* g, const LayerLayout* how);

// What ranks have of weights (COPY) or gradients (SUM), and owners. plain, and nothing else: every rank has all.
typedef struct StrategyHoldings {
    int plain;
    Holdings pieces;
    NodeHoldings parts;
} StrategyHoldings;

// In the arena; whole: its shards are all ranks. node (ranks): the node of each. 0, or -1 with words.
int strategy_holdings(StrategyHoldings* x, const Shape* whole, const RankStrategy* strategy, const LayerLayout* how,
                      ReshardKind kind, const int* node, Arena* arena, Err err);

// whole: its shards are all ranks. only_more: where a machine's step has the sums of a run without strategies in it,
// only what a strategy takes more counts.
typedef struct StrategyMoves {
    const MoveTime* times;
    const Shape* whole;
    size_t weight_bytes, gradient_bytes;  // of an element, as it travels
    int only_more;
} StrategyMoves;

// Both moves of a strategy, in the arena.
typedef struct MoveTables {
    MoveTable weights[N_MOVE_HOPS], gradients[N_MOVE_HOPS];  // without waves where there is nothing to do
    double alike[2];                                         // ms of both where every rank has all, if only_more
} MoveTables;
int strategy_tables(MoveTables* x, const StrategyMoves* m, const RankStrategy* strategy, const LayerLayout* how,
                    Arena* arena, Err err);

// What a rank computes beside them, ms from the beginning of a step, as if nothing were late.
typedef struct MoveWindow {
    double first, forward;       // when its first layer is used; the forward pass of all its layers
    double end, tail, backward;  // when its last pass is over; of it what comes behind the layers, and all layers
    int first_layer, layers;
    int together;  // ranks with the same number go through layers together
    int lag;       // layers through which the last pass is ahead of what leaves
    int hides;     // 0: nothing leaves before the end
} MoveWindow;

// late (ranks) =: ms by which weights hold up each rank. Returns by how much gradients end behind the last pipeline.
// NaN without memory.
double strategy_play(double* late, const MoveTables* x, const StrategyMoves* m, const MoveWindow* window, Arena* arena);
