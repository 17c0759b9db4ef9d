// balance.h - what a run does about slow ranks: measures every rank's own computing, lets all ranks decide the same
// from the same numbers at every refresh, and carries the decision out.
//
// Between tensor-parallel groups (or single ranks): plans give slow ones less (plan/slow/speeds.h), which loses
// nothing. Inside a group: plan/slow/balance.h decides, run/model/work.h and run/slow/prune.h do it. A decision is the
// same for all groups: data ranks hold the same heads and hidden units, so that they can share documents. Where data
// ranks have measured unlike numbers, the slowest one's count.
#pragma once
#include "data/runlog.h"
#include "data/safetensors.h"

typedef struct Run Run;
typedef struct Balance Balance;
typedef struct RankReport RankReport;  // run/run.h

// How a tensor-parallel group had divided the model when the checkpoint was saved, into ModelRanks.split, where groups
// and --balance moves=keep are as they were. Before anything is divided by it.
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
// The decision goes into run->state, this rank's lists into `lists` (run/slow/prune.h); returns how many tensors these
// are.
int balance_save(Run* run, SafeTensor* lists);
