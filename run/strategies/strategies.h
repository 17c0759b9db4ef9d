// strategies.h - every step its own layout: pipelines of unlike degrees side by side, chosen for the documents of the
// step (Hydraulis, arXiv 2412.07894).
//
// With --strategies the ranks of one group of like pipelines (plan/layout/layout.h) are a job of their own in the
// step: Model.job. They plan, share documents, run tasks and tensor parallelism as a run without strategies does. What
// the jobs have in common are the documents of the step, which are dispatched among them, one loss and one norm.
//
// With --zero 2 and 3 like pipelines divide gradients and weights of layers among them, as ranks of a run without
// strategies do; the moves are then of pieces.
//
// Optimizer state never moves. Rank r owns piece r of every bucket of the whole model: Model.owner. After a step the
// gradients of all jobs are summed there, layer by layer under the last backward pass. The new weights go to where the
// next step computes with them, whose strategy is known by then, and arrive under its first forward pass: two moves,
// compiled once a strategy (run/model/mover.h).
//
// For every strategy there is a Run as this rank sees it: its Model, limits, cost and planner. The run itself is the
// one whose weights are there.
#pragma once
#include "plan/published/hydraulis.h"
#include "run/step/step.h"

// For the planner every kind of pipeline is a scheme.
typedef struct Kinds {
    SchemePool pool;
    PipelineGroup group[HYDRAULIS_SCHEMES];  // of every scheme
} Kinds;

// The scheme of such a group, -1 for none.
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
    Machine links;                             // rank 0 plays moves over them
    MoveTime times;                            // theirs
    StrategyMoves moves;
    MoveTables* tables;    // (strategies) rank 0's; NULL: moves take nothing
    double last_start_ms;  // BatchPlan.late_ms of the last step that is to be learnt from
    Kinds kinds;
    Strategy choices[MOST_RANK_STRATEGIES];  // start, end: what moves show in a step of mean documents
    struct Groups* groups;                   // groups.c; NULL: their ranks give each other nothing
    double* paces;  // (1 + strategies, ranks) of pipelines, behind scratch; NULL: none is known
} Strategies;

// The run under a strategy; itself where there are none.
Run* run_under(Run* run, int strategy);

const char* strategies_name(const Run* run, int strategy);            // as it could be typed; lives as long as the run
int strategies_same_job(const Run* run, int strategy, int a, int b);  // whether two ranks are; 0 without strategies
// The layers of such a pipeline, dealt evenly; how each runs (zero, recompute) --layout says, or the options.
Layout strategies_layout(const Run* run, const PipelineGroup* g);
void strategies_time(Run* run, Timer* timer);  // of all Comms of all strategies
void strategies_balance(Run* run);             // groups.c: with --balance, before memory is planned

// Ends the program where options have no meaning, or are not there, while layouts change.
void strategies_refuse_others(const Run* run);

// All ranks have told of the step in x: what it should take, played with its moves. Collective.
void strategies_expect(Run* run, BatchPlan* x);
// Of the step in `batch`, from rank 0's first pass to its next.
void strategies_predict(const Run* run, StepRecord* r);
double strategies_mean_length(const Run* run);  // mean tokens that a token of the training text attends to, twice
// Jobs have unlike terms: all ranks learn from those of the rank that should have ended last. Of the step in a record:
// its ms without what moving takes, for that; then of those of all ranks the slowest: collective.
double strategies_remember(Run* run, const StepRecord* r);
void strategies_learn(Run* run, double ms);
void strategies_set_cost(Run* run);  // what was learnt is in force for plans of all strategies; collective
// How fast ranks are (ranks of the world), for plans of all strategies from the next on.
void strategies_set_paces(Run* run, const double* speeds);
// The pieces of the step in b: chooses b->strategy (in evaluation the one in place, if it holds them) and leaves those
// of this rank's job. 0, or -1 with a message. On the planner's thread.
int strategies_dispatch(Batch* b, const Run* run, int64_t step, Err err);
void strategies_turn(Run* run, int strategy);  // the run becomes that under this strategy, whose weights are in place
void strategies_close(Run* run);

// ---- what the files of this room have of each other

// list.c: the run's strategies, if it has any.
void strategies_read(Run* run);

// strategies.c: the group of a rank, and its number there.
const PipelineGroup* strategies_group(const Run* run, int strategy, int rank, int* place);

// moves.c: what is played, and start and end of choices, on all ranks together.
void strategies_time_moves(Run* run);

// groups.c: decides what ranks of a stage of group g, which begin at `first`, give each other at these paces of all
// ranks. Where they do, of_stage (copies) is how fast that makes the stage of every pipeline.
void strategies_group_paces(double* of_stage, const Run* run, int strategy, const PipelineGroup* g, int stage,
                            int first, const double* speeds);

// paces.c: of a machine with kinds of ranks.
void strategies_know_paces(Run* run);
