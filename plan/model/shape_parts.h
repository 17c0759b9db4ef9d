// shape_parts.h - parts of a model that ranks hold or own, and what a model costs: bytes, operations.
#pragma once
#include "plan/model/shape.h"

// A GPT-2 of these dimensions.
Shape shape_make(int layers, int width, int heads, int vocab, int context);
// The stage of layers [first, end) of a model, or of a tensor-parallel rank's part of one.
Shape shape_stage(const Shape* shape, int first, int end);
// Ids of the vocabulary, padding left out, that the rows of this shape stand for.
static inline int shape_labels(const Shape* s) { return MAX(0, MIN(s->V - s->first_vocab_row, s->vocab_rows)); }
// Tokens of a row of N that each rank of a tensor-parallel group of R has outside attention and MLP, the last ones
// fewer: ceil(N / R).
static inline int token_share(int N, int R) { return CEIL_DIV(N, R); }
// The axis of a tensor that tensor parallelism cuts: 0 rows (column-parallel), 1 columns (row-parallel), -1 none.
static inline int param_cut(ParamId id) {
    return param_table[id].rows >= VOCABULARY  ? 0
           : param_table[id].cols < VOCABULARY ? -1
                                               : param_table[id].rows != ONE;
}
// Bytes of its weights, gradients, moments, and masters where weights are bf16, that a rank has all the time by a stage
// of ZeRO; what is in use for a layer comes beside them (run/model/zero.c).
size_t shape_state_bytes(const Bucket* bucket, int zero, DType dt);

// Of activations the copies that layer l keeps for its backward pass, in all slots: bytes.
size_t shape_layer_activations(const Shape* shape, const ActNeeds* needs, const ActPlace* places, int l);

// The part of a tensor that `rank` owns: elements [first, first + n) of it, n = 0 for none, at `at` in the arrays of
// owned elements.
typedef struct Segment {
    ParamTensor tensor;
    size_t first, n, at;
} Segment;

Segment shape_segment(const Shape* shape, int i, int rank);  // of the i-th tensor; rank: among its bucket's

// ---- work

// Weights of a token's matmuls: of the blocks' linears and the classifier. For the whole model.
double shape_matmul_weights(const Shape* shape);
// Floating point operations of training on documents with sum_s tokens in all and sum of squared lengths sum_s2:
// matmuls 6 per weight and token, attention 6 L NH HS s^2 (the causal half, forward and backward). What is computed
// again by --recompute does not count.
double shape_training_flops(const Shape* shape, double sum_s, double sum_s2);

// Of everything that says what the whole model is.
uint64_t shape_hash(const Shape* shape);
