// prune.h - which columns of its linears' inputs, or which heads and hidden units (Shed), a rank leaves out from one
// refresh to the next: those whose weights change least (plan/slow/prune.h).
//
// Holds host memory: the weights of the four linears at the last refresh, in the model's type, a value for every
// column, head or hidden unit, and the lists. Every function is deterministic: data ranks of equal tensor-parallel
// index, which have equal weights, come to equal lists. Needs ZeRO stage 1, as run/model/work.h does.
#pragma once
#include "data/safetensors.h"
#include "plan/slow/prune.h"
#include "run/model/work.h"

typedef struct Pruner Pruner;

// m must outlive it. by_layer: what is left out may differ by layer: less where weights change more. seed: of
// PRIORITY_RANDOM. Nothing is left out yet, and nothing known of changes. Ends the program where there is no memory.
Pruner* pruner_open(const Model* m, Shed shed, Priority priority, int by_layer, uint64_t seed);
void pruner_close(Pruner* pruner);

// A refresh. Between steps, when all weights are there (zero_settle): learns what changed since the last one, and
// chooses lists that leave out `gamma` of this rank's resizable work, once the slices that it gives away are gone.
// stay: heads and hidden units that stay, its first ones. To be called at every refresh, with gamma 0 too: a list
// counts for the whole time until the next call, and what was left out then is not measured.
//
// Columns and hidden units are left out in multiples of WORK_TILE, or where these are fewer than 4 of a smaller power
// of 2; one such tile always stays, and one head. Numbers are rounded up, so that at least gamma is saved where that
// may be:
//   - columns: in either half of every block, since each half ends in a reduce-scatter; less than a tile too much;
//   - slices: in every block, heads rounded down, hidden units up; less than a tile too much;
//   - by_layer: in all blocks together, less than a tile too much. Layer l leaves out what prune_ratios gives it, its
//     loss weight being its share of the sum of all values.
// Returns (L) layers, valid until the next call of any of these; only the lists of the Shed are filled. NULL where
// nothing is left out.
const PrunedLayer* pruner_choose(Pruner* pruner, const Model* m, double gamma, SliceCount stay, int64_t step);
// The lists of the last pruner_choose or pruner_load, and the fraction of the resizable work that stays which they
// really leave out.
const PrunedLayer* pruner_layers(const Pruner* pruner);
double pruner_left_out(const Pruner* pruner);

// What a checkpoint keeps of it, in this rank's file of optimizer state: of each list "pruned.NAME.value" and
// "pruned.NAME.kept", (L,n), 1 where a column, head or hidden unit is kept. Valid until the next call of any of these.
// Returns how many; 0 where nothing is left out.
enum { PRUNER_TENSORS = 2 * N_LINEARS };
int pruner_tensors(const Pruner* pruner, SafeTensor tensors[PRUNER_TENSORS]);
// Takes them up from that file, where it has any. They are those of a refresh, so the same step may be saved and go on.
// stay: as at that refresh. The older weights are not saved: after loading they are the weights of that moment, which
// must be there, and the next refresh learns what changed since. 0; or -1 with a message, where they are of another
// Shed, model or part of it, or make no sense: then only pruner_close may follow.
int pruner_load(Pruner* pruner, const SafeTensors* file, SliceCount stay, Err err);
