// strategies.h - every step its own layout: pipelines of unlike degrees side by side, chosen for the documents of the
// step (Hydraulis, arXiv 2412.07894).
//
// Under --strategies the ranks of one group of like pipelines (plan/layout/layout.h) are a job of their own in the
// step: Model.job. They plan, share documents, run tasks and tensor parallelism as a run without strategies does. The
// jobs have in common the documents of the step, which are dispatched among them, one loss and one norm.
//
// If --zero is 2 or 3, like pipelines divide gradients and weights of layers among them, as ranks of a run without
// strategies do; the moves are then of pieces.
//
// Optimizer state never moves. Rank r owns piece r of every bucket of the whole model: ModelRanks.owner. After a step
// the gradients of all jobs are summed there, layer by layer under the last backward pass. The new weights go to where
// the next step's strategy, known by then, has them, and arrive under its first forward pass. These are two moves,
// compiled once a strategy (run/model/mover.h).
//
// For every strategy there is a Run as this rank sees it: its Model, limits, cost and planner. The run itself is the
// one whose weights are in place.
#pragma once
#include "plan/published/hydraulis.h"
#include "run/step/step.h"

// The kinds of pipelines: to the planner each is a scheme.
typedef struct Kinds {
    SchemePool pool;
    PipelineGroup group[HYDRAULIS_SCHEMES];  // of every scheme
} Kinds;

// Returns the scheme of such a group; -1: none.
static inline int strategies_kind(const Kinds* kinds, const PipelineGroup* g) {
    for (int k = 0; k < kinds->pool.n; k++)
        if (kinds->group[k].tp == g->tp && kinds->group[k].pp == g->pp) return k;
    return -1;
}

typedef struct Strategies {
    StrategyList list;
    int now;                        // the strategy whose weights are in place
    Run* as[MOST_RANK_STRATEGIES];  // the run under each
    char name[MOST_RANK_STRATEGIES][STRATEGY_TEXT];
    Model owner;
    ModelRanks owner_ranks;
    ModelRanks* before;  // the run's own, while it is that under a strategy
    Arena arena;         // of the movers
    Machine links;       // rank 0 plays moves over its links
    MoveTime times;      // of these links
    StrategyMoves moves;
    MoveTables* tables;  // (strategies) on rank 0; NULL: moves take no time
    Kinds kinds;
    Strategy choices[MOST_RANK_STRATEGIES];  // start, end: ms that moves show in a step of mean documents
    struct Groups* groups;                   // groups.c; NULL: their ranks give each other nothing
    double* paces;                           // (1 + strategies, ranks) scratch, then of pipelines; NULL: not known
} Strategies;

// Returns the layers of such a pipeline, dealt evenly. --layout, or the options, say how each runs (zero, recompute).
Layout strategies_layout(const Run* run, const PipelineGroup* g);
void strategies_balance(Run* run);  // groups.c: times all Comms; what --balance needs, before memory is planned

double strategies_mean_length(const Run* run);  // mean tokens that a token of the training text attends to, twice
// Sets the speeds of ranks (ranks of the world), for plans of all strategies from the next on.
void strategies_set_paces(Run* run, const double* speeds);
void strategies_close(Run* run);

// ---- shared by the files of this room

// list.c: reads the run's strategies, if it has any.
void strategies_read(Run* run);

// strategies.c: returns the group of a rank, and its number there.
const PipelineGroup* strategies_group(const Run* run, int strategy, int rank, int* place);

// moves.c: opens what rank 0 plays, and finds start and end of choices, on all ranks together.
void strategies_time_moves(Run* run);

// groups.c: decides what ranks of a stage of group g, which begin at `first`, give each other at these paces of all
// ranks. If they give, of_stage (copies) becomes the pace of this stage in every pipeline.
void strategies_group_paces(double* of_stage, const Run* run, int strategy, const PipelineGroup* g, int stage,
                            int first, const double* speeds);

// paces.c: sets the paces of a machine with kinds of ranks.
void strategies_know_paces(Run* run);
