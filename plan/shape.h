// shape.h - the model as data: one table of parameters, one of activations. Every size, offset, name, initial value
// and file layout is read from these rows; adding a tensor is adding a row.
#pragma once
#include "plan/base.h"

typedef struct Shape {
    int L, C, NH, V;  // layers, channels, heads, vocabulary
    int context;      // longest document, rows of the position table
    int Vp;           // vocabulary padded to a multiple of 64, so that matmuls have no ragged edge
    int shards;       // ranks that the parameters are divided among: 1 by shape_make, see Bucket
    // What a rank of a tensor-parallel group has of the model (plan/split.h); of the whole model NH, 4 C, 0 and Vp.
    int heads, hidden;                // attention heads, hidden units
    int first_vocab_row, vocab_rows;  // of wte
} Shape;

Shape shape_make(int layers, int width, int heads, int vocab, int context);
static inline int shape_head_size(const Shape* s) { return s->C / s->NH; }
// Ids of the vocabulary, padding left out, that the rows of this shape stand for.
static inline int shape_labels(const Shape* s) { return MAX(0, MIN(s->V - s->first_vocab_row, s->vocab_rows)); }

// ---- parameters, in the order in which they lie in memory: wte, wpe, the 12 of each layer together, lnf

// clang-format off
typedef enum ParamId {
    WTE, WPE,                                   // token and position embeddings; wte is also the classifier
    LN1W, LN1B, QKVW, QKVB, ATTPROJW, ATTPROJB,  // per layer, attention
    LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB,      // per layer, MLP
    LNFW, LNFB,                                 // final norm
    N_PARAMS
} ParamId;
// clang-format on

// Weights begin as N(0, 0.02) like GPT-2's, narrow models wider by sqrt(768 / C), since a sum over fewer channels would
// come out too small; projections into the residual stream are divided by sqrt(2L); norms begin at 1, biases at 0.
typedef enum Init { INIT_NORMAL, INIT_RESIDUAL, INIT_ONE, INIT_ZERO } Init;

typedef struct ParamRow {
    const char* name;     // ours
    const char* hf_name;  // GPT2LMHeadModel's, with the layer's number for %d
    int per_layer;
    int hf_transposed;  // Hugging Face keeps these as (in, out): its Conv1D
    Init init;
    int decay;       // weight decay applies: matrices and embeddings
    int shard_axis;  // axis cut by tensor parallelism: 0 outputs (column-parallel), 1 inputs (row-parallel), -1 none
} ParamRow;

extern const ParamRow param_table[N_PARAMS];

// One tensor of the model: (rows, cols), rows = 1 for vectors. Offset in elements from the start of the parameters;
// each tensor begins at a multiple of 64 elements.
typedef struct ParamTensor {
    ParamId id;
    int layer;  // 0 when the row is not per layer
    int rows, cols;
    size_t offset, elems;
} ParamTensor;

ParamTensor shape_param(const Shape* shape, ParamId id, int layer);
int shape_tensors(const Shape* shape);                           // number of tensors
ParamTensor shape_tensor(const Shape* shape, int i);             // the i-th in memory order
int shape_index(const Shape* shape, const ParamTensor* tensor);  // its i
size_t shape_param_elems(const Shape* shape);                    // of the whole block, gaps between tensors included
size_t shape_param_count(const Shape* shape);                    // parameters as people count them: without padding
void shape_hf_name(const ParamTensor* tensor, char* name, size_t bytes);

// Parameters that are gathered and reduced together: bucket 0 is wte and wpe, 1 .. L the layers, L + 1 lnf. Each is
// padded to a multiple of 64 * shards elements and cut into `shards` equal pieces; a rank owns the piece of its number
// in every bucket, and optimizer state exists for what it owns only. Arrays of owned elements hold the pieces of all
// buckets one after another, bucket b at offset / shards.
typedef struct Bucket {
    size_t offset, elems;  // in the whole block
} Bucket;

int shape_buckets(const Shape* shape);
Bucket shape_bucket(const Shape* shape, int b);
int shape_bucket_of(const ParamTensor* tensor, const Shape* shape);

// The part of a tensor that `rank` owns: elements [first, first + n) of it, n = 0 for none, at `at` in the arrays of
// owned elements.
typedef struct Segment {
    ParamTensor tensor;
    size_t first, n, at;
} Segment;

Segment shape_segment(const Shape* shape, int i, int rank);  // of the i-th tensor

// Fills value[first .. first + n) of a tensor's initial values (elems, fp32): each a pure function of (shape, seed,
// tensor, index), so that threads may share the work.
void shape_init_param(const Shape* shape, const ParamTensor* tensor, uint64_t seed, size_t first, size_t n,
                      float* value);

// ---- activations of a row of N tokens

typedef enum Recompute { RECOMPUTE_NONE, RECOMPUTE_GELU, RECOMPUTE_BLOCK } Recompute;

// clang-format off
typedef enum ActId {
    RESIDUAL,                                           // what enters each block, and what leaves the last
    LN1, LN1_MEAN, LN1_RSTD, QKV, ATT, LSE, RESIDUAL2,  // per layer
    LN2, LN2_MEAN, LN2_RSTD, FC, FC_GELU,               // per layer
    PROJ, LNF, LNF_MEAN, LNF_RSTD, LOGITS, LOSSES,      // once
    D_RESIDUAL, D_NORM, D_HIDDEN,                       // gradients, once
    D_FULL, STATS,                                      // once, tensor parallelism: D_RESIDUAL of all ranks; of logits
    ATT_HEADS,                                          // per layer, groups of ranks: att as its heads were computed
    QKV_TOKENS,                                         // once, groups of ranks: qkv before the all-to-all
    KV,                                                 // generation: queries, keys and values of the tokens so far
    N_ACTS
} ActId;
// clang-format on

typedef enum ActWhen { FOR_EVER, FOR_TRAINING, FOR_SAMPLING, FOR_GROUPS, FOR_TENSOR } ActWhen;

// What a program needs activations for.
typedef struct ActNeeds {
    int N;             // tokens of a row
    int classifier_N;  // rows of one classifier chunk
    Recompute recompute;
    int training, sampling;
    int groups;  // attention over several ranks
    int tp;      // ranks of the tensor-parallel group; the shape's heads and hidden units are the most that one may
                 // compute
    DType dt;
} ActNeeds;

// Tokens of a row of N that each rank of a tensor-parallel group of R has outside attention and MLP, the last ones
// fewer: ceil(N / R).
static inline int token_share(int N, int R) { return CEIL_DIV(N, R); }

// copies 1: shared by all layers; L or L + 1: one for each. 0: not needed.
typedef struct Activation {
    const char* name;
    int copies;
    size_t elems;       // of one copy
    DType dtype;        // of its elements
    size_t offset;      // of copy 0, in bytes from the start of the activations
    size_t copy_bytes;  // from one copy to the next, a multiple of 64
} Activation;

// Fills acts[N_ACTS] and returns the bytes of all together.
size_t shape_activations(const Shape* shape, const ActNeeds* needs, Activation acts[N_ACTS]);

// ---- work

// Floating point operations of training on documents with sum_s tokens in all and sum of squared lengths sum_s2:
// matmuls 6 per weight and token, attention 6 L C s^2 (the causal half, forward and backward). What is
// computed again by --recompute does not count.
double shape_training_flops(const Shape* shape, double sum_s, double sum_s2);
