// split.h - parts of a model that ranks hold or own: parts of tensor-parallel groups, of stages, of ZeRO; and the bytes
// and operations that a model costs.
//
// Rank t of a tensor-parallel group (Shoeybi et al. 2019, "Megatron-LM") has the heads head[t] .. head[t + 1], the
// hidden units hidden[t] .. hidden[t + 1] and the rows vocab_row[t] .. vocab_row[t + 1] of the vocabulary, any numbers
// of them. It has the matching rows or columns of tensors that are cut (plan/model/shape.h: Axis), and all others
// whole. Its tensors are those of the Shape that split_shape makes.
//
// A key/value head stays together with its query heads while there are no more ranks than key/value heads. With more,
// ranks share one: each has some of its query heads, all have the same copy of its keys' and values' weights, and its
// gradients are summed over them.
#pragma once
#include "plan/model/shape.h"

// ---- stages, pieces, work

// Returns the frozen model beside a shape of adapters; any other shape itself.
Shape shape_base(const Shape* shape);
// Returns the stage of layers [first, end) of a model, or of a tensor-parallel rank's part of one.
Shape shape_stage(const Shape* shape, int first, int end);
// Counts the vocabulary ids of this shape's rows, without padding.
static inline int shape_labels(const Shape* s) { return MAX(0, MIN(s->V - s->first_vocab_row, s->vocab_rows)); }
// The axis of a tensor that tensor parallelism cuts: 0 rows (In, "column-parallel"), 1 columns (Out), -1 none.
static inline int param_cut(ParamId id) {
    return param_table[id].rows >= VOCABULARY  ? 0
           : param_table[id].cols < VOCABULARY ? -1
                                               : param_table[id].rows != ONE;
}
// Bytes that a rank always has of a bucket by a stage of ZeRO: weights, gradients, moments, and masters if weights are
// bf16. Bytes in use for a layer come on top (run/model/zero.c).
size_t shape_state_bytes(const Bucket* bucket, int zero, DType dt);

// The part of a tensor that `rank` owns: elements [first, first + n) of it, n = 0 for none, at `at` in the arrays of
// owned elements.
typedef struct Segment {
    ParamTensor tensor;
    size_t first, n, at;
} Segment;

Segment shape_segment(const Shape* shape, int i, int rank);  // the part of the i-th tensor; rank: among its bucket's

// Weights of a token's matmuls in the whole model: the blocks' linears and the classifier.
double shape_matmul_weights(const Shape* shape);
// Divides `pass`, the ms of one pass of a layer's matmuls, among its linears: [attention, MLP][column, row].
void split_linears(double linear[2][2], const Shape* shape, double pass);
double shape_padded_weights(const Shape* shape);  // with all rows of the classifier
// Floating point operations of training on documents with sum_s tokens in all and sum of squared lengths sum_s2.
// Matmuls take 6 per weight and token, of frozen weights 4, attention 6 L NH HS s^2 (the causal half, forward and
// backward). Recomputation (--recompute) does not count.
double shape_training_flops(const Shape* shape, double sum_s, double sum_s2);
// Returns the passes of a token through the matmuls: forward, by the input, by weights that learn.
static inline double shape_passes(const Shape* s) { return s->lora.is_all ? 2 : 3; }
// A hash of everything that says what the whole model is.
uint64_t shape_hash(const Shape* shape);

// ---- tensor-parallel groups

enum { MOST_TP = 64 };  // ranks of a tensor-parallel group

typedef struct TpSplit {
    int ranks;
    int head[MOST_TP + 1], hidden[MOST_TP + 1], vocab_row[MOST_TP + 1];
} TpSplit;

// Splits as evenly as whole units allow, hidden units and rows in multiples of 64 if there are enough. ranks at most NH
// and U.
TpSplit split_even(const Shape* whole, int ranks);
Shape split_shape(const Shape* whole, const TpSplit* split, int rank);
// Returns a rank with the most heads, key/value heads, hidden units and vocabulary rows of any rank.
Shape split_widest(const Shape* whole, const TpSplit* split);
// The split of a cut: in layers of tp T below the group's, T ranks have a layer's weights between them. Its rank j has
// what the group's ranks j G .. (j + 1) G would have, G = ranks / T.
TpSplit split_cut(const TpSplit* split, int T);
// Returns whether a layer may have tp T in groups of R ranks; T divides R. With more ranks than key/value heads, a
// cut's ranks either own some of these or share one: T or the number of key/value heads divides the other.
static inline int split_has_cut(const Shape* whole, int R, int T) {
    return R % T == 0 && (T == R || R <= whole->NKV || whole->NKV % T == 0 || T % whole->NKV == 0);
}
// The units that `rank` of the group has of a layer of tp T, which `data_ranks` groups run.
LayerUnits split_units(const Shape* whole, const TpSplit* split, int rank, int T, int data_ranks);
// Returns 1 if every rank holds the same values of this tensor: nothing of it is cut.
static inline int split_is_replicated(ParamId id) { return param_cut(id) < 0; }
// Returns 1 if ranks exceed key/value heads: then several ranks have copies of some, and no unit of attention can move.
static inline int split_shares_kv(const Shape* whole, const TpSplit* split) { return split->ranks > whole->NKV; }
// Finds the ranks that share the key/value heads of `rank`: *first .. *first + n of the group. Returns n, 1 usually.
int split_kv_sharers(const Shape* whole, const TpSplit* split, int rank, int* first);

// A range of rows and of columns of a tensor of the whole model.
typedef struct Box {
    int row, col, rows, cols;
} Box;

// The boxes that a rank has of a tensor, one after another in its part, each of rows without gaps. Returns their
// number, at most MOST_RUNS; 0 if the model has no such tensor.
int split_boxes(Box boxes[MOST_RUNS], const Shape* whole, const TpSplit* split, int rank, ParamId id);

// Copy between a tensor of the whole model and this rank's part of it, fp32 in host memory.
void split_take(float* part, const float* whole, const Shape* shape, const TpSplit* split, int rank, ParamId id);
void split_put(float* whole, const float* part, const Shape* shape, const TpSplit* split, int rank, ParamId id);
