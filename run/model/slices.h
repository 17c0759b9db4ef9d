// slices.h - what run/model/work.c and run/model/slices.c share: this rank's work in memory.
//
// Units of both sublayers are handled alike (run/model/model.h): unit_rows says how many rows of each run of Column,
// and of its bias, are theirs, unit_columns how many columns of Row.
#pragma once
#include "run/model/mover.h"
#include "run/model/work.h"

// What this rank computes of a sublayer in a layer: `stay` units of its own, then `taken` ones in the order of moves.
// Channels are the columns of Row: unit_columns for each unit. All lists are on the device.
typedef struct SublayerWork {
    int differs;  // 0: what it owns, in place
    int stay, taken;
    int K;                // columns of Column
    int columns;          // own channels of Row: those of `stay`, less those that are left out
    const int* rows;      // (stay) which of its own units; NULL: the first ones
    const int* kept_in;   // (K) which columns of Column are computed; NULL: all
    const int* place_in;  // (C) the inverse of kept_in: the place of a column in it, or -1
    // Which channels of Row are computed, first `columns` of its own, then those of the units taken; NULL: the first
    // ones. Its inverses, with -1 for what is not in it: for the channels that this rank owns, and for those that the
    // block computes.
    const int* kept_out;
    const int* place_out;
    const int* source_out;
} SublayerWork;

typedef enum WorkPart {
    PART_WEIGHTS,  // compact copies, layer by layer; dt
    PART_GRADS,    // their gradient sums, fp32
    PART_BEFORE,   // gradients of the step before, as owned
    PART_MOVING,   // messages of two layers: slices that this rank gives or takes; elements of 4 bytes or less
    PART_SCRATCH,  // own columns of a row-parallel linear
    PART_LISTS,
    N_WORK_PARTS
} WorkPart;

struct Work {
    Shape shape;  // of what this rank owns
    int L, C;
    int keep_gradients;
    int span[N_SUBLAYERS], own[N_SUBLAYERS], most[N_SUBLAYERS];  // channels of a unit; units: owned, ever computed
    DType dt;
    char* part[N_WORK_PARTS];  // on the device
    size_t bytes[N_WORK_PARTS];
    int* lists;  // host copy of PART_LISTS
    WorkPlan plan;
    Mover mover[2];  // weights and gradients of the plan's moves; in the arena
    Arena arena;
    int in_step;           // between work_begin and work_end
    int differs, cut;      // in any layer: work is not what is owned; something is left out
    SublayerWork* layers;  // (L, N_SUBLAYERS)
};

// `total` units of a sublayer in memory, seen from unit `first` on. Rows of Row are `stride` apart, and unit `first`
// begins at `columns`.
typedef struct Slab {
    char *rows, *bias, *columns;
    int total, first, stride;
} Slab;

static inline const SublayerWork* slice_work(const Work* work, int l, SublayerId id) {
    return &work->layers[l * N_SUBLAYERS + (int)id];
}
size_t slab_elems(const Work* work, SublayerId id, int units);  // memory of a slab whose tensors are aligned
Slab slices_weights(const Work* work, int l, SublayerId id);    // the compact copies
Slab slices_grads(const Work* work, int l, SublayerId id);

// Compiles what the moves of a new plan send; its layers are set.
void slices_open(Model* m);
// Copies of all layers from owned weights; gradients back. Collective among the ranks that give or take.
void slices_take(Model* m);
void slices_return(Model* m);
// Keeps the owned gradients for Imputation SAME of the next step.
void slices_remember(Model* m);
