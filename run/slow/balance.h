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
#include "data/safetensors.h"
#include "plan/slow/prune.h"
#include "run/model/work.h"

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

// Whether slices move for good: --balance moves=keep.
int balance_keeps(const Config* c);

// Whether the last step's time says something about the cost model: not so where ranks were faster or slower than
// planned.
int balance_explains_step(const Run* run);
uint64_t balance_state_hash(const Run* run);  // of what all ranks must have decided alike
// The decision goes into run->state, this rank's lists into `lists`; returns how many tensors these are.
int balance_save(Run* run, SafeTensor* lists);

// ---- prune.c: which columns of its linears' inputs a rank leaves out from one refresh to the next: those whose
// weights change least (plan/slow/prune.h)
//
// A Pruner holds host memory: the weights of the four linears at the last refresh, in the model's type, a value for
// every column, and the lists. Every function is deterministic: data ranks, which have equal
// weights, come to equal lists, and with ZeRO stage 3 call these together.
typedef struct Pruner Pruner;

// m must outlive it. Nothing is left out yet, and nothing known of changes. Ends the program where there is no memory.
Pruner* pruner_open(Model* m);
void pruner_close(Pruner* pruner);

// A refresh. Between steps, when all weights are there (zero_settle): learns what changed since the last one, and
// chooses lists that leave out `gamma` of this rank's resizable work, once the slices that it gives away are gone.
// stay: heads and hidden units that stay, its first ones. To be called at every refresh, with gamma 0 too: a list
// counts for the whole time until the next call, and what was left out then is not measured.
//
// Columns are left out in multiples of WORK_TILE, or where these are fewer than 4 of a smaller power of 2; one such
// tile always stays. Numbers are rounded up, so that at least gamma is saved where that may be: in either half of every
// block, since each half ends in a reduce-scatter, and less than a tile too much.
// Returns (L) layers, valid until the next call of any of these. NULL where nothing is left out.
const PrunedLayer* pruner_choose(Pruner* pruner, Model* m, double gamma, SliceCount stay);
// The lists of the last pruner_choose or pruner_load, and the fraction of the resizable work that stays which they
// really leave out.
const PrunedLayer* pruner_layers(const Pruner* pruner);
double pruner_left_out(const Pruner* pruner);

// What a checkpoint keeps of it, in this rank's file of optimizer state: of each list "pruned.NAME.value" and
// "pruned.NAME.kept", (L,n), 1 where a column is kept. Valid until the next call of any of these.
// Returns how many; 0 where nothing is left out.
enum { PRUNER_TENSORS = 2 * N_LINEARS };
int pruner_tensors(const Pruner* pruner, SafeTensor tensors[PRUNER_TENSORS]);
// Takes them up from that file, where it has any, as at the refresh that `stay` is of. The older weights are not saved:
// they are those of this moment, which must be there, and the next refresh learns what changed since. 0; or -1 with a
// message, where they are of another model or part of it, or make no sense: then only pruner_close may follow.
int pruner_load(Pruner* pruner, const SafeTensors* file, SliceCount stay, Err err);
