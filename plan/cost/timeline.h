// timeline.h - plays a plan in the cost model: when every pass starts and ends on its ranks.
//
// A plan without rounds has a pass for each micro-batch. A pass starts when all the ranks that it shares documents with
// have ended their previous passes. With Setting.rounds or Plan.has_barriers every round starts when all ranks have
// ended the one before.
//
// A pass costs Cost.micro_batch once. Shared micro-batches hide exchanges under their own attention (cost.h). The rest
// of their first exchange, forward and backward, hides under the attention of the rank's local documents: both take
// max(attention, exchange), and the remaining communication comes after. Ranks that share documents wait for each other
// in every layer, so their passes end together.
//
// Each rank of a remapped micro-batch (plan/step/remap.h) has the linear work of its tokens at its own pace and the
// exchange of those that it sends or gets. Ranks without tokens of it take no part. Other placements are played as even
// ones.
//
// A micro-batch goes at the pace of its slowest rank: the speed divides its quadratic and per-token terms.
// Communication and the fixed cost of a micro-batch take the same time at any speed.
#pragma once
#include "plan/cost/cost.h"

typedef struct Timeline {
    double *start, *end,
        *communication;                // (n_micro_batches) ms; communication: the part of end - start that is link time
    int *place, *beside;               // (n_micro_batches) its place among the micro-batches of the pass, and their
                                       // number on the rank with most: 0 and 1 alone
    CostTerms* terms;                  // (n_micro_batches) terms of the pass, on the rank that takes longest
    double* rank_end;                  // (ranks) ms at which a rank has done its last micro-batch
    double makespan;                   // ms
    double step;                       // ms of the whole step: beside weights and gradients, to the end of the update
    double idle, communication_share;  // shares of ranks * makespan
    CostTerms critical;  // terms along the chain of micro-batches that ends last: they sum to the makespan
    int critical_micro_batches;
} Timeline;

// The timeline lies in the arena. 0, or -1 with words for a group that the cost model does not know.
int timeline_play(Timeline* timeline, const Plan* plan, const int* lengths, const Setting* setting, Arena* arena,
                  Err err);
