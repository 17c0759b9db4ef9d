// zero.h - who holds which weights, gradients and moments: ZeRO (Rajbhandari et al. 2020).
//
// The parameters are cut into buckets, each bucket into one piece for each rank (plan/model/shape.h); a rank owns its
// piece of every bucket, updates it (fp32 master, moments), and its optimizer state never moves. Stage 1: every rank
// has all weights and sums all gradients; inside the backward pass of the last micro-batch of a step, or after it
// (zero_last_row), they are reduce-scattered bucket by bucket, and weights are all-gathered while the next step begins.
// Stage 2: of the gradients a rank keeps only the sums of its pieces; those of a layer are reduced as soon as its
// backward pass is through. Stage 3: of the weights too; a layer's are gathered while the layer before it computes. The
// embeddings and the final norm, which a step needs at both ends, are whole all the time while it runs.
//
// With stages 2 and 3 all ranks join in every gather and reduction, so they go through layers together, in rounds.
#pragma once
#include "data/model_files.h"
#include "run/model/mover.h"

// A bucket and where it lies while it is in use; stage 3 has layers in two places by turns.
typedef struct ZeroBucket {
    size_t elems;
    size_t piece, at;   // elements of a rank's piece; where this rank's begins in arrays of owned ones
    Comm* comm;         // the ranks that divide it
    int stage;          // of ZeRO; 1 where one rank has it all
    int place;          // stages 2 and 3, layers: of gradients in use, 0 or 1
    int weights_place;  // stage 3, layers: of weights in use
    int first_tensor, n_tensors;
    char* owned_weights;  // dt; those in use: Model.block
    float* owned_grads;   // complete after zero_reduce
    float* reduced;       // stages 2 and 3, layers: a piece that has been reduced
    Request arriving;     // a gather of its weights that has begun
    Request leaving;      // a reduction of its gradients, while is_leaving
    int is_leaving;
} ZeroBucket;

// What a Model has of weights and gradients. With --strategies one Model computes and another owns.
typedef enum ZeroHolds {
    ZERO_BOTH,
    ZERO_IN_USE,  // those of its part: of layers that like pipelines divide, pieces and what is in use; else whole
    ZERO_OWNED    // what this rank owns of every bucket, and optimizer state
} ZeroHolds;

typedef struct Zero {
    int stage;  // the highest of any bucket
    ZeroHolds holds;
    DType grad_dtype;    // of gradients that travel
    ZeroBucket* bucket;  // (L + 2), see plan/model/shape.h
    int layer_in[2];     // stage 3, by place: the layer whose weights are in use, -1 none
    int in_last_row;     // gradients of all buckets are reduced as soon as they are complete
} Zero;

int zero_stage_of(const Model* m, int b);  // of a bucket by the layout; 1 where nobody else has its weights
int zero_most(const Model* m);             // the highest one
// Bytes of all parts, 0 for those that are not needed; without training neither gradients nor optimizer state are.
void zero_sizes(const Model* m, int training, size_t bytes[N_MODEL_ARRAYS]);
// m->array is filled: makes the buckets. Ends the program where there is no memory.
void zero_open(Model* m);
void zero_close(Model* m);

// ---- where things are

Segment zero_segment(const Model* m, int i);  // the part of the i-th tensor that this rank owns
ModelArray zero_array_of(StateKind kind);
// That part: STATE_WEIGHTS, and without masters STATE_MASTER, of dt, all else fp32; STATE_GRADS after zero_reduce.
char* zero_owned(const Model* m, StateKind kind, const Segment* segment);
// Who owns which parts of a kind of state, as boxes of whole tensors: `at` counts elements of this rank's array of it.
// Every rank tells the others its own list, so any layout will do. Collective; in the arena; ends the program where a
// rank is lost.
Holdings owned_holdings(const Model* m, StateKind kind, Arena* arena);

// ---- in a step: all collective, and free with one rank. ManyRanks (many_ranks.h) says what the first three do

void zero_use_layer(Model* m, int l, int direction);
void zero_open_grads(Model* m, int l);
void zero_close_grads(Model* m, int l);
// The next backward pass is this rank's last of the step: what stage 1 has, embeddings and head are reduced inside it,
// too. Not collective: other ranks reduce the same buckets in the same order, at any time after their other
// communications. It needs Comm.overlap; without strategies also gradients that travel as fp32, and a rank without
// tensor-parallel peers; with them a pipeline without stages, whose ranks keep to what they own.
void zero_last_row(Model* m);
int zero_can_reduce_inside(const Model* m);
// Behind the last task: with strategies gradients of all buckets leave. Other communications of the world come behind.
void zero_end_rows(Model* m);
void zero_reduce(Model* m);          // after the last micro-batch: now the owned gradients are sums over all ranks
void zero_sum_of_squares(Model* m);  // adds those of the owned gradients to m->grad_norm2
void zero_clear_grads(Model* m);     // for the next step
void zero_gather(Model* m);          // the owned weights have changed: begins to gather what this stage keeps whole
void zero_settle(Model* m);          // waits for that
// zero_gather of a strategy, as buckets are updated: the first n have begun to leave. A layer's weights are waited for
// where it is used. Bytes of scratch that moving takes.
void zero_begin_gather(Model* m);
void zero_advance_gather(Model* m, int n);
size_t zero_moving_bytes(const Model* m);

// ---- whole tensors, for files; fp32 on the host

// value (elems). Collective: all ranks in the same order; every rank gets the whole tensor.
void zero_fetch_weights(Model* m, const ParamTensor* tensor, float* value);
void zero_fetch_grads(Model* m, const ParamTensor* tensor, float* value);  // after zero_reduce
// Stores a whole tensor of weights (value is overwritten) where this rank keeps it: all of it, or in stage 3 its own
// part. Not collective; when all are stored, zero_gather.
void zero_put_weights(Model* m, const ParamTensor* tensor, float* value);
