// work.h - what this rank computes of the four linears of every layer in a step: usually what it owns. A slow rank may
// leave columns of their inputs out (resizing), or give slices away to other ranks of its tensor-parallel group
// (migration); a helper computes more than it owns.
//
// A slice is a unit of a sublayer (run/model/model.h). Hidden unit k is row k of each run of FC with its bias, and
// column k of FCPROJ. A key/value head is the rows of its query heads, keys and values in QKV with their biases, and
// its query heads' columns of the attention projection. A slice reads the block's input, which all ranks have, and adds
// to the block's output, which is summed over ranks anyway. So a helper adds a slice into its own partial sums, and no
// activation is sent. Rank 0 of the group alone adds the projections' own biases.
//
// While work differs from ownership, the step uses copies of the weights, compact in rows and columns, and gradient
// sums of the same shape. work_begin fills the copies once all weights are there, work_end brings gradients to their
// owners: both run once a step, whatever the number of micro-batches. Evaluation, sampling and files come between steps
// and know only whole weights. Copies are of all layers with any ZeRO stage, although stages 2 and 3 have layers by
// turns; their gradients are reduced after the rounds.
#pragma once
#include "plan/slow/balance.h"
#include "run/model/model_ranks.h"

// These return the rows of In of n units of a rank with this shape, and the columns of Out of one.
Runs unit_rows(const Shape* shape, SublayerId id, int n);
int unit_columns(const Shape* shape, SublayerId id);
// Returns the elements of one unit in both linears and in In's bias.
size_t unit_elems(const Shape* shape, SublayerId id);

// A Linear is a linear of a layer as this rank computes it now.
typedef struct Linear {
    const void *w, *b;  // (OC,K) and (OC) of dt; b NULL: there is none, or another rank of the group adds it
    float *dw, *db;     // the same shapes, fp32, sums; db NULL with b
    int OC, K;
    int width;                 // channels of its input: K and those that are left out
    const int *kept, *source;  // on the device; NULL: all columns. kept (K): columns of the input, ascending; source
                               // (width): where each of them stands in kept, or -1
} Linear;

// Returns a linear between work_begin and work_end; at all other times it is what this rank owns.
Linear work_linear(const Model* m, LinearId id, int l);
// Returns the units of a sublayer that this rank computes in layer l now.
int work_units(const Model* m, SublayerId id, int l);

// ---- what is left out

enum { WORK_TILE = 16 };  // columns and hidden units are left out in multiples of it

// An index list is ascending and lies in host memory.
typedef struct IndexList {
    int n;
    int* index;
} IndexList;

// A PrunedLayer lists the kept columns of the input of linear i in columns[i], counted once given slices are gone. If n
// is all of them, nothing is left out.
typedef struct PrunedLayer {
    IndexList columns[N_LINEARS];
} PrunedLayer;

// A WorkPlan is what the ranks of a group do from the next work_begin on: the same moves, and each its own lists.
typedef struct WorkPlan {
    int active;    // 0: this rank computes what it owns
    int of_group;  // 0: so do all ranks of the group; the same on all of them
    int n_moves;
    Move moves[2 * MOST_TP];
    const PrunedLayer* kept;  // (L); NULL: nothing is left out
} WorkPlan;

SliceCount work_moved(const WorkPlan* plan, int rank, int taken);  // slices that a rank gives away, or takes

// ---- memory and phases

typedef struct Work Work;

// Returns all bytes of device memory that work needs.
size_t work_bytes(const Model* m, const WorkNeeds* needs);
// Makes ModelRanks.work in device memory of work_bytes and in host memory; nothing differs yet. It ends the program if
// there is no memory.
Work* work_open(const Model* m, const WorkNeeds* needs, void* memory);
void work_close(Work* work);
// Sets the plan between steps and copies what it needs of it.
void work_set(Model* m, const WorkPlan* plan);
// These stand around the micro-batches of a training step. Both are collective in the group if anything moves, and cost
// nothing if this rank's work is what it owns. They communicate on m->tp for COMM_SLICES.
void work_begin(Model* m);
void work_end(Model* m);
// Returns whether gradients were left out in part, so that a gradient of exactly 0 freezes its element: AdamW.freeze.
int work_freezes(const Model* m);

// ---- the four linears of a block, as this rank computes them in this step: whole, or with columns of their input left
// out. Timed as TIME_LINEAR.

// out (N,OC) = x W^T + bias; x is (N, width). If gelu is not NULL, gelu (N,OC) = GELU(out).
void work_forward(const Model* m, LinearId id, int l, void* out, void* gelu, const void* x, int N);
// dW +=, dbias +=; dout is (N,OC).
void work_backward_weight(const Model* m, LinearId id, int l, const void* dout, const void* x, int N);
// dx (N, width) = dout W; with pre (N, width) times GELU'(pre). Columns that are left out are 0.
void work_backward_input(const Model* m, LinearId id, int l, void* dx, const void* dout, const void* pre, int N);
