// timeline.h - plays a plan in the cost model: when every item starts and ends on its ranks.
//
// Without rounds an item starts when the last of its ranks has ended what it ran before. Systems with a barrier play in
// rounds: every round starts when all ranks have ended the one before and its round_ms is over.
//
// An item goes at the pace of its slowest rank: the speed divides its quadratic and linear terms. Exchanges and what an
// item costs by itself take the same time at any speed.
#pragma once
#include "plan/cost.h"

typedef struct PlayRule {
    int in_rounds;        // Item.round counts micro-batches with a barrier between them
    double round_ms;      // for each of them
    double item_ms;       // for each item, on top of Cost.item
    double across_scale;  // exchanges of groups that span machines take so much of their time; 0 means 1
    // The linear work of all documents is spread evenly over all ranks behind their items, in place of the items' own,
    // and takes remap_ms for moving tokens there and back (Zeppelin's remapping).
    int even_linear;
    double remap_ms;
} PlayRule;

typedef struct Timeline {
    double *start, *end, *exchange;  // (n_items) ms; exchange: the part of end - start that is link time
    double* rank_end;                // (ranks) ms at which a rank has done its last item
    double makespan;                 // ms
    double idle, communication;      // shares of ranks * makespan; rounds' own time is neither
    CostTerms critical;              // terms along the chain of items that ends last: they sum to the makespan (without
                                     // rounds' own time)
    int critical_items;
} Timeline;

size_t timeline_bytes(int n_items, int ranks);
void timeline_carve(Timeline* timeline, void* memory, int n_items, int ranks);
size_t timeline_scratch(int n_items, int ranks);
// 0, or -1 with words when an item cannot be (a group that the cost model does not know).
int timeline_play(Timeline* timeline, const Plan* plan, const int* lengths, const Setting* setting,
                  const PlayRule* rule, void* scratch, char* err, size_t errlen);
