// balance.h - what a run does about slow ranks: measures every rank's own computing, lets all ranks decide the same
// from the same numbers at every refresh, and carries the decision out.
//
// Between tensor-parallel groups (or single ranks): plans give slow ones less (plan/slow/speeds.h), which loses
// nothing. Every stage of a pipeline learns how fast its ranks are beside each other; a pipeline is as fast as its
// slowest stage. Inside a group: plan/slow/balance.h decides, run/model/work.h and the Pruner below do it. A decision
// is the same for all groups of a stage: data ranks hold the same heads and hidden units, so that they can share
// documents. Where data ranks have measured unlike numbers, the slowest one's count.
#pragma once
#include "data/runlog.h"
#include "plan/slow/prune.h"
#include "run/model/work.h"

typedef struct Run Run;
typedef struct Balance Balance;
typedef struct RankReport RankReport;  // run/run.h

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

// Returns 1 if the last step's time says something about the cost model: not so where ranks were faster or slower than
// planned.
int balance_explains_step(const Run* run);
uint64_t balance_state_hash(const Run* run);  // of what all ranks must have decided alike
void balance_save(Run* run);                  // what it must go on with: into the saved state

// ---- prune.c: which columns of its linears' inputs a rank leaves out from one refresh to the next: those that are
// drawn (plan/slow/prune.h)
//
// A draw follows from the seed, the number of the refresh, the layer of the model and the linear. So data ranks, which
// have equal weights, leave out the same, and a run that goes on leaves out what one does that was not left.
typedef struct Pruner Pruner;

// m must outlive it. Nothing is left out yet. Ends the program where there is no memory.
Pruner* pruner_open(const Model* m, uint64_t seed);
void pruner_close(Pruner* pruner);

// Draws lists that leave out `gamma` of this rank's resizable work, once the slices that it gives away are gone. stay:
// heads and hidden units that stay, its first ones. turn: the number of the refresh.
//
// Columns are left out in multiples of WORK_TILE, or where these are fewer than 4 of a smaller power of 2; one such
// tile always stays. Numbers are rounded up, so that at least gamma is saved where that may be: in either half of every
// block, since each half ends in a reduce-scatter, and less than a tile too much.
// Returns (L) layers, valid until the next call. NULL where nothing is left out.
const PrunedLayer* pruner_choose(Pruner* pruner, double gamma, SliceCount stay, int64_t turn);
// The lists of the last pruner_choose, and the fraction of the resizable work that stays which they really leave out.
const PrunedLayer* pruner_layers(const Pruner* pruner);
double pruner_left_out(const Pruner* pruner);
