// batch_plan.h - the plan of a step, and what this rank has of it; run/step/ makes both.
#pragma once
#include "plan/cost/calibration.h"
#include "plan/step/flex.h"
#include "plan/value/tasks.h"
#include "run/core.h"
#include "run/model/model_ranks.h"

// A micro-batch of the plan as this rank sees it.
typedef struct RankGroup {
    const MicroBatch* mb;
    Share share;
    Placement placed;
    int* chunk_tokens;  // of each chunk, all documents
    int first, cu;      // where its tokens begin in the row, and its cu_seqlens in Batch.cu
} RankGroup;

// A pass of this rank, a row: all its micro-batches of a round.
typedef struct RankPass {
    int first_group, n_groups;  // in the order of pass_order; none: an empty row, in rounds of others
} RankPass;

// What a rank of one stage does of a round, in ms of the whole model: of a token's matmuls, of all else; its tokens.
typedef struct RankRound {
    double matmuls, others, micro_batch, tokens;
} RankRound;

// The plan, and what this rank does of it: the pass of row i is passes[i].
struct BatchPlan {
    int strategy;        // with --strategies: the pieces and the plan are those of this rank's job under it; n_tokens,
                         // n_targets and sum_s2 stay those of all
    double strategy_ms;  // what the step should take with it, by Hydraulis' cost of its slowest pipeline
    uint64_t dispatch_hash;
    double expected_ms;  // of the plan, of all jobs, when all ranks agreed on it; NaN: not known
    Plan plan;
    double plan_us;                   // what planning took, all of it
    int predicted;                    // prediction and terms are known
    Prediction prediction;            // under the model that planned
    double terms[CALIBRATION_TERMS];  // of the prediction under the model before it was calibrated, and Cost.step
    RankPass* passes;                 // (max_tokens) in the order in which this rank runs them
    RankGroup* groups;                // (max_tokens)
    int n_groups;
    int all_end_together;       // all ranks have a pass in the last round
    GroupAttention* attention;  // (n_groups), once read
    RowAttention* shared;       // (n_rows) of those that other ranks have a part in
    Schedule schedule;          // of all stages of the pipeline; rounds are this rank's passes
    Row rows[MOST_STAGES];      // under way, by slot
    int* vocab_rows;            // in Batch.indices: Row.vocab_rows of its tokens; unused when alone
    Span* spans;                // (max_tokens) of one micro-batch
};

size_t batch_plan_bytes(int max_tokens);                 // of the host's arrays of a Batch and its plan
size_t batch_plan_ints(const Run* run, int max_tokens);  // of its indices
void batch_plan_carve(Batch* b, void* memory, int* indices, int* device_indices, int max_tokens);
size_t batch_schedule_bytes(const Run* run, int max_tokens);  // most that a schedule takes of the arena
