// strategy_moves.h - what moving the model takes under a strategy (plan/layout/layout.h): weights come from the owners
// of optimizer state, gradients go to them (run/model/mover.h), wave by wave.
//
// All waves of weights leave when a step begins, and a layer waits for its own: they cost what they delay the first
// pass. A layer's gradients leave when the last pass is through it: they cost what is still under way when the last
// pipeline has ended. A wave holds its links until all who send it have come to it, and exchanges of the pass wait
// behind it (meets). So where pipelines come to their last passes at unlike times, gradients leave behind them all.
//
// Rank r owns piece r of every bucket of the whole model, whatever the strategy. So a strategy has one cost, not one
// for each pair of strategies: a step's weights come from owners whatever the step before was.
#pragma once
#include "plan/cost/transfers.h"
#include "plan/layout/layout.h"

// Deals the layers of such a pipeline evenly; each has the zero and recompute of `how` (layers). Ends are whole.
Layout strategy_layout(const Shape* whole, const PipelineGroup* g, const LayerLayout* how);

// Parts of weights (COPY) or gradients (SUM) that ranks hold, and the owners' pieces. plain, alone: every rank has all.
typedef struct StrategyHoldings {
    int plain;
    Holdings pieces;
    NodeHoldings parts;
} StrategyHoldings;

// Makes *x in the arena; the shards of `whole` are all ranks. node (ranks): the node of each. 0, or -1 with words.
int strategy_holdings(StrategyHoldings* x, const Shape* whole, const RankStrategy* strategy, const LayerLayout* how,
                      ReshardKind kind, const int* node, Arena* arena, Err err);

// The shards of `whole` are all ranks. only_more: the machine's step includes the sums of a run without strategies, so
// only what a strategy takes beyond these counts.
typedef struct StrategyMoves {
    const MoveTime* times;
    const Shape* whole;
    size_t weight_bytes, gradient_bytes;  // bytes of an element, as it travels
    int only_more;
} StrategyMoves;

// Both moves of a strategy. strategy_tables makes them in the arena.
typedef struct MoveTables {
    MoveTable weights[N_MOVE_HOPS], gradients[N_MOVE_HOPS];  // no waves: nothing moves
    double alike[2];                                         // ms of both if every rank has all; 0 without only_more
} MoveTables;
int strategy_tables(MoveTables* x, const StrategyMoves* m, const RankStrategy* strategy, const LayerLayout* how,
                    Arena* arena, Err err);

// A rank's computing meanwhile, in ms from the beginning of a step, as if nothing were late.
typedef struct MoveWindow {
    double first, forward;       // its first layer is used at `first`; `forward`: all its layers' forward pass
    double end, tail, backward;  // its last pass ends at `end`; its part after the layers; its part in all layers
    int first_layer, layers;
    int together;  // ranks with the same number go through layers together
    int lag;       // layers by which the last pass is ahead of what leaves
    int hides;     // 0: nothing leaves before the end
    int meets;     // exchanges of its last pass go over links
} MoveWindow;

// Plays both moves. late (ranks) =: ms by which weights hold up each rank. *inside =: 1 if gradients leave under last
// passes, 0 if the step ends sooner where they leave behind these. Returns the ms by which it ends after the last
// pipeline would by itself; NaN without memory.
double strategy_play(double* late, int* inside, const MoveTables* x, const StrategyMoves* m, const MoveWindow* window,
                     Arena* arena);
