// reshard.h - what run/work.c and run/reshard.c share: this rank's work in memory.
//
// Heads and hidden units are handled alike, as `channels` of a kind: a head is HS of them, a hidden unit is one.
// Channel j of a kind is row j of each run of the column-parallel linear (three runs in QKV, one in FC1), element j of
// each run of its bias, and column j of the row-parallel linear.
#pragma once
#include "plan/split.h"
#include "run/run.h"

typedef enum SliceKind { SLICE_HEADS, SLICE_HIDDEN, N_SLICE_KINDS } SliceKind;

// The column-parallel linear of a kind is LinearId 2 kind, the row-parallel one the next.
typedef struct KindRow {
    ParamId rows, bias, columns;
    int runs;
} KindRow;

extern const KindRow slice_kinds[N_SLICE_KINDS];

// What this rank computes of a kind in a layer: `stay` channels of its own, then `taken` ones in the order of moves.
// All lists are on the device.
typedef struct KindWork {
    int differs;  // 0: what it owns, in place
    int stay, taken;
    int K;                // columns of the column-parallel linear
    int columns;          // own columns of the row-parallel linear: `stay`, less those that are left out
    const int* rows;      // (stay) which of its own channels; NULL: the first ones
    const int* kept_in;   // (K) which columns of the column-parallel linear are computed; NULL: all
    const int* place_in;  // (C) the inverse of kept_in: the place of a column in it, or -1
    // (columns + taken) which columns of the row-parallel linear are computed, first `columns` of its own; NULL: the
    // first ones. Its inverses, with -1 for what is not in it: for the channels that this rank owns, and for those that
    // the block computes.
    const int* kept_out;
    const int* place_out;   // (own)
    const int* source_out;  // (stay + taken)
} KindWork;

typedef enum WorkPart {
    PART_WEIGHTS,  // compact copies, layer by layer; dt
    PART_GRADS,    // their gradient sums, fp32
    PART_BEFORE,   // gradients of the step before, as owned
    PART_GIVEN,    // messages of a layer, packed: slices of this rank that others compute; elements of 4 bytes or less
    PART_TAKEN,    // the same: slices of others that this rank computes
    PART_SCRATCH,  // own columns of a row-parallel linear
    PART_LISTS,
    N_WORK_PARTS
} WorkPart;

struct Work {
    int L, C;
    int keep_gradients;
    int span[N_SLICE_KINDS], own[N_SLICE_KINDS], most[N_SLICE_KINDS];  // channels: of a slice, owned, ever computed
    DType dt;
    char* part[N_WORK_PARTS];  // on the device
    size_t bytes[N_WORK_PARTS];
    int* lists;  // host copy of PART_LISTS
    WorkPlan plan;
    int in_step;       // between work_begin and work_end
    int differs, cut;  // in any layer: work is not what is owned; something is left out
    KindWork* layers;  // (L, N_SLICE_KINDS)
};

// `total` channels of a kind in memory. The column-parallel weights and the bias have them in runs, `total` apart; rows
// of the row-parallel weights are `stride` apart.
typedef struct Slab {
    char *rows, *bias, *columns;
    int total, stride;
} Slab;

static inline const KindWork* slice_work(const Work* work, int l, SliceKind kind) {
    return &work->layers[l * N_SLICE_KINDS + (int)kind];
}
size_t slab_elems(const Work* work, SliceKind kind, int channels);    // memory of a slab whose tensors are aligned
size_t packet_elems(const Work* work, SliceKind kind, int channels);  // of one whose tensors are packed
Slab slices_weights(const Work* work, int l, SliceKind kind);         // the compact copies
Slab slices_grads(const Work* work, int l, SliceKind kind);

// Copies of all layers from owned weights; gradients back. Collective among the ranks that give or take.
void reshard_slice_weights(Model* m);
void reshard_slice_gradients(Model* m);
// Keeps the owned gradients for Imputation SAME of the next step.
void slices_remember(Model* m);

// Between steps. Weights, masters and moments of heads and hidden units go to their new owners once; from then on
// nothing of the migration costs anything. ZeRO stage 1. All ranks of all groups call it together with the same split.
// Takes new memory before it gives the old back; ends the program where there is none.
void run_reshard(Run* run, const TpSplit* split);
