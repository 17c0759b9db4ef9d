// zero.h - who holds which weights, gradients and moments: ZeRO (Rajbhandari et al. 2020).
//
// The parameters are cut into buckets, each bucket into one piece for each rank (plan/model/shape.h). A rank owns its
// piece of every bucket and updates it (fp32 master, moments); its optimizer state never moves. Stage 1: every rank has
// all weights and sums all gradients; these are reduce-scattered bucket by bucket inside the backward pass of a step's
// last micro-batch, or after it (zero_last_row), and weights are all-gathered while the next step begins. Stage 2: a
// rank keeps only its pieces of the gradients; a layer's are reduced as soon as its backward pass is through. Stage 3:
// a rank keeps only its pieces of the weights too; a layer's are gathered while the layer before it computes. The
// embeddings and the final norm stay whole while a step runs, because it needs them at both ends.
//
// All ranks join in every gather and reduction of stages 2 and 3, so they go through layers together, in rounds.
#pragma once
#include "data/model_files.h"
#include "run/model/mover.h"

// A BucketPlace counts the elements before a bucket in MODEL_WEIGHTS or MODEL_GRADS, which has it whole or this rank's
// piece of it; and in the array that follows, where it is whole while it is in use. Layers take turns there in two
// places; `turn` is a layer's.
typedef struct BucketPlace {
    size_t kept, used;
    int turn, whole;
} BucketPlace;

// A ZeroBucket is a bucket and its place while it is in use; stage 3 has layers in two places by turns.
typedef struct ZeroBucket {
    size_t offset, elems;
    size_t piece, at;      // elements of a rank's piece; where this rank's begins in arrays of owned ones
    Comm* comm;            // the ranks that divide it
    int stage;             // stage of ZeRO; 1 if one rank has it all
    BucketPlace place[2];  // of weights, of gradients
    int first_tensor, n_tensors;
    char *weights, *owned_weights;  // dt: the whole bucket in use, and this rank's piece
    float *grads, *owned_grads;     // fp32, likewise; owned ones are complete after zero_reduce
    float* reduced;                 // stages 2 and 3, layers: a piece that has been reduced
    Request arriving;               // a gather of its weights that has begun
    Request leaving;                // a reduction of its gradients, while is_leaving
    int is_leaving;
} ZeroBucket;

// ZeroHolds says what a Model has of weights and gradients. --strategies has one Model that computes and one that owns.
typedef enum ZeroHolds {
    ZERO_BOTH,
    ZERO_IN_USE,  // its part: of layers that like pipelines divide pieces and what is in use, else whole buckets
    ZERO_OWNED    // owned pieces of every bucket, and optimizer state
} ZeroHolds;

typedef struct Zero {
    int stage;  // the highest of any bucket
    ZeroHolds holds;
    DType grad_dtype;    // type of gradients that travel
    ZeroBucket* bucket;  // (L + 2), see plan/model/shape.h
    int layer_in[2];     // stage 3, by place: the layer whose weights are in use, -1 none
    int in_last_row;     // gradients of all buckets are reduced as soon as they are complete
} Zero;

int zero_stage_of(const Model* m, int b);  // stage of a bucket by the layout; 1 if nobody else has its weights
int zero_most(const Model* m);             // the highest one
// bytes = those of all arrays; unneeded ones have 0, without training gradients and optimizer state.
void zero_sizes(const Model* m, int training, size_t bytes[N_MODEL_ARRAYS]);
// Makes the buckets once m->array is filled. It ends the program if there is no memory.
void zero_open(Model* m);
void zero_close(Model* m);

// ---- where things are

Segment zero_segment(const Model* m, int i);  // the part of the i-th tensor that this rank owns
ModelArray zero_array_of(StateKind kind);
// Returns that part's memory. STATE_WEIGHTS, and STATE_MASTER without masters, have type dt, all else is fp32.
// STATE_GRADS is complete after zero_reduce.
char* zero_owned(const Model* m, StateKind kind, const Segment* segment);
// Returns who owns which parts of a kind of state, as boxes of whole tensors; `at` counts elements of its owner's
// array. Every rank tells others its own list, so any layout will do. Collective, in the arena; a lost rank ends the
// run.
Holdings owned_holdings(const Model* m, StateKind kind, Arena* arena);

// ---- in a step: all collective, and free with one rank. ManyRanks (many_ranks.h) says what the first three do

void zero_use_layer(Model* m, int l, int direction);
void zero_open_grads(Model* m, int l);
void zero_close_grads(Model* m, int l);
// zero_last_row says that the next backward pass is this rank's last of the step, so that it reduces the buckets of
// stage 1, embeddings and head, too. It is not collective: other ranks reduce the same buckets in the same order, at
// any time after their other communications. zero_can_reduce_inside says whether it may be called: it needs
// Comm.overlap and a pipeline without stages; without strategies also gradients that travel as fp32 and no
// tensor-parallel peers, with them ranks that compute what they own.
void zero_last_row(Model* m);
int zero_can_reduce_inside(const Model* m);
// Lets all gradients leave after the last task, with strategies. Other communications of the world come later.
void zero_end_rows(Model* m);
void zero_reduce(Model* m);          // after the last micro-batch: now the owned gradients are sums over all ranks
void zero_sum_of_squares(Model* m);  // adds the squares of the owned gradients to m->grad_norm2
void zero_clear_grads(Model* m);     // clears them for the next step
void zero_gather(Model* m);          // the owned weights have changed: begins to gather what this stage keeps whole
void zero_settle(Model* m);          // waits for that
// These are zero_gather of a strategy as buckets are updated: zero_advance_gather lets the first n leave.
// zero_use_layer waits for a layer's weights. zero_moving_bytes is the scratch that this takes.
void zero_begin_gather(Model* m);
void zero_advance_gather(Model* m, int n);
size_t zero_moving_bytes(const Model* m);

// ---- whole tensors, for files; fp32 on the host

// value (elems) = the whole tensor on every rank. Collective: all ranks call it in the same order.
void zero_fetch_weights(Model* m, const ParamTensor* tensor, float* value);
void zero_fetch_grads(Model* m, const ParamTensor* tensor, float* value);  // after zero_reduce
// Stores a whole tensor of weights, or in stage 3 this rank's own part of it; value is overwritten. It is not
// collective; zero_gather follows once all are stored.
void zero_put_weights(Model* m, const ParamTensor* tensor, float* value);
