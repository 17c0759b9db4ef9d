// balance.h - what a run does about slow ranks: measures every rank's own computing, lets all ranks decide the same
// from the same numbers at every --refresh, and carries the decision out.
//
// Between tensor-parallel groups (or single ranks): plans give slow ones less (plan/speeds.h), which loses nothing.
// Inside a group: plan/balance.h decides, run/work.h and run/prune.h do it. A decision is the same for all groups: data
// ranks hold the same heads and hidden units, so that they can share documents. Where data ranks have measured unlike
// numbers, the slowest one's count.
#pragma once
#include "data/runlog.h"

typedef struct Run Run;
typedef struct Balance Balance;

// What a rank tells all others of its step, in slices and ms; times are 0 in a step that was not timed.
typedef struct RankReport {
    double linear, attention, other, update, wait;
    double slices, pruned, sent, taken;
    double emulated;  // of its group: sum over segments of the slowest rank's computing; 0 where it was not measured
} RankReport;

// How a tensor-parallel group had divided the model when the checkpoint was saved, into m->split, where groups and
// --moves keep are as they were. Before anything is divided by it.
void balance_take_division(Run* run);
void balance_open(Run* run);   // before memory is planned: reads the options, says what memory it needs
void balance_ready(Run* run);  // weights are there: what a link costs; goes on from a checkpoint
void balance_close(Balance* b);

// In a step, in this order. change: between two plans; a decision that is due. begin: before the micro-batches.
// measure: after the update was given to the stream, which is waited for; *mine is to be told to the others. hear: what
// all told (ranks of the world).
void balance_change(Run* run);
void balance_begin(Run* run);
void balance_measure(Run* run, RankReport* mine);
void balance_hear(Run* run, StepRecord* record);

// Whether the last step's time says something about the cost model: not so where ranks were faster or slower than
// planned.
int balance_explains_step(const Run* run);
uint64_t balance_state_hash(const Run* run);  // of what all ranks must have decided alike
// This rank's lists into the directory of a checkpoint; the decision goes into run->state. 0, or -1 with a message.
int balance_save(Run* run, const char* dir, char* err, size_t errlen);
