// step_plan.h - a step from lengths to its plan, prediction and schedule: pure functions, the same bits on all ranks.
//
// The stations, in their order:
//
//   choose the capacity   in a pipeline, how many tokens a row holds at most: few long rounds, or many short ones
//   plan                  by the planner of the world, or best-fit packing where one rank is alone
//   remap                 tokens of long documents lie on other ranks (remap.h)
//   predict               what the step takes, and by which terms of the cost model
//   set rounds, even out  where the planner has left that open
//   schedule              what each stage of a pipeline does, and when (plan/value/tasks.h)
#pragma once
#include "plan/cost/calibration.h"
#include "plan/cost/transfers.h"
#include "plan/step/flex.h"
#include "plan/step/remap.h"
#include "plan/value/tasks.h"

// A stage of the pipeline.
typedef struct PlanStage {
    double matmuls, layers;  // its shares of a token's matmuls, and of the layers
    double again;            // the share of its layers whose forward pass is computed twice
    const double* speeds;    // (ranks) how fast its ranks compute
    const WeightTimes* weights;
} PlanStage;

// A planner of plan/published/published.h. state: what it opened; NULL: the setting.
typedef int (*StepPlanner)(const void* state, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena,
                           Err err);

// All that a plan follows from beside the documents. Ranks of a job have equal ones.
typedef struct PlanWorld {
    Setting setting;      // groups NULL: no cost model is known, and nothing is predicted
    Cost before;          // the cost model before anything was learnt
    StepPlanner planner;  // NULL: plan_flex
    const void* state;
    uint64_t seed;  // of random plans (plan_checks)
    RemapChoice remap;
    int evens;               // passes of a rank alone are evened out: moves hide under the first and the last
    int training;            // 0: forward passes alone
    int stages;              // of the pipeline; 1: it needs none of the following
    const PlanStage* stage;  // (stages)
    TransferTimes links;     // of one of a group's ranks
    int across;              // stages are on several nodes
    double stream;           // bytes of a token between two stages
} PlanWorld;

typedef struct StepPlan {
    Plan plan;
    int predicted;  // prediction and terms are known
    Prediction prediction;
    double terms[CALIBRATION_TERMS];  // of the prediction under PlanWorld.before, and Cost.step
    Schedule schedule;                // of all stages
} StepPlan;

// Does all but the schedule. squares: PlanLimits.squares of the documents, or NULL. 0, or -1 with a message that names
// the document.
int step_plan(StepPlan* x, const PlanWorld* world, int64_t step, const int* lengths, const double* squares, int n,
              Arena* arena, Err err);
// Schedules so many rounds, and predicts the step of stages. Passes of one stage run as they come: their times are 0.
// 0, or -1 with a message.
int step_schedule(StepPlan* x, const PlanWorld* world, const int* lengths, int rounds, Arena* arena, Err err);

// A rank's part of a round, in ms of the whole model: matmuls, attention, messages; and its tokens.
typedef struct RankRound {
    double matmuls, attention, messages, micro_batch, tokens;
} RankRound;

// Adds a micro-batch to the rounds of its ranks: of_rank (ranks).
void round_add(RankRound* of_rank, const StepPlan* x, const PlanWorld* world, const int* lengths, const MicroBatch* mb);
