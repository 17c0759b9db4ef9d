// shape.h - the sizes of a model. Architectures, their tensors and the activations of a row are tables, one entry each:
// sizes, offsets, initial values, memory and how ranks divide a model are all read from these rows.
//
// A block is two sublayers of one form, x += Out(core(In(norm(x)))): attention and MLP (train_gpt.cu). In is a linear
// that tensor parallelism cuts by outputs, Out one that it cuts by inputs. arch_table lists the differences. Any
// may have fewer key/value heads than heads, heads of any size, and a classifier of its own.
#pragma once
#include "plan/base/base.h"

typedef enum Arch { ARCH_GPT2, ARCH_LLAMA, ARCH_QWEN2, ARCH_QWEN3, N_ARCHS } Arch;

// The features of a model are bits of ArchEntry.features.
enum {
    HAS_POSITIONS = 1,  // learned positions; without them queries and keys are rotated
    HAS_NORM_BIAS = 2,  // norms are LayerNorms; without it RMSNorms
    HAS_QKV_BIAS = 4,
    HAS_LINEAR_BIAS = 8,  // biases of the other linears
    HAS_QK_NORM = 16,     // an RMSNorm of every head of queries and keys
    HAS_HEAD = 32,        // a classifier of its own; without it wte is one
    HAS_LORA_ATTENTION = 64, HAS_LORA_MLP = 128, HAS_LORA = 192,  // adapters beside a sublayer's linears: see Lora
};

typedef struct ArchEntry {
    const char *name, *title;  // name: of --arch, and Hugging Face's model_type; title: as people write it
    int features;
    ActFunction act;
    double eps;  // default eps of norms
} ArchEntry;

extern const ArchEntry arch_table[N_ARCHS];

// ---- a model

// Llama 3's stretching of rotary positions (Hugging Face's rope_type "llama3"): wavelengths longer than original / low
// positions are divided by factor, those shorter than original / high stay, those between are interpolated.
typedef struct RopeScaling {
    double factor;  // 0: no stretching
    double low, high, original;
} RopeScaling;

// Adapters make y = x W^T + scale (x A^T) B^T of y = x W^T: A (rank, K) and B (OC, rank) learn, W does not. The parts
// of a linear that Hugging Face has apart (queries, keys, values; gate, up) have an A and a B each. A model with
// adapters is two shapes of the same sizes: one has these alone as tensors, the other (shape_base) the frozen ones.
typedef struct Lora {
    int rank, is_all;  // rank 0: none; is_all: the adapters are all tensors of this shape
    double scale;      // alpha / rank
} Lora;

// The units of a layer on a rank, as in Shape, if fewer ranks cut the layer than its group has. core_kv_heads are the
// key/value heads that it computes in attention, each with `queries` query heads.
typedef struct LayerUnits {
    int heads, kv_heads, hidden, queries, core_kv_heads, shards;
} LayerUnits;

typedef struct Shape {
    Arch arch;
    int features;     // HAS_...: the architecture's, and HAS_HEAD
    int L, C, NH, V;  // layers, channels, heads, vocabulary
    int NKV, HS;      // key/value heads, each of NH / NKV heads; channels of a head
    int U;            // hidden units of the MLP
    int context;      // longest document; with learned positions the rows of their table
    int positions;    // most positions the model was made for, as its config.json says: at least context
    int Vp;           // vocabulary padded to a multiple of 64, so that matmuls have no ragged edge
    double eps;       // eps of norms
    double theta;     // base of rotary positions
    RopeScaling scaling;
    Lora lora;
    int shards;  // ranks that the parameters are divided among: 1 at first, see Bucket
    // A rank of a tensor-parallel group has these units (plan/model/split.h); a rank alone has NH, NKV, U, 0 and Vp.
    int heads, kv_heads, hidden;      // heads, their key/value heads, hidden units
    int first_vocab_row, vocab_rows;  // rows of wte and headw
    const LayerUnits* units;          // (L) each layer's, in place of those above and `shards`; NULL: all are alike
    // A pipeline stage has L layers from first_layer on. Only the first stage has the embeddings, only the last the
    // final norm and the classifier. Both have wte if it is the classifier too.
    int first_layer, no_embedding, no_head;
} Shape;

// Makes a whole model: fills in Vp and all members after scaling.
Shape shape_whole(Shape shape);
static inline int shape_has(const Shape* s, int features) { return (s->features & features) == features; }
static inline ActFunction shape_act(const Shape* s) { return arch_table[s->arch].act; }
// Query heads of a key/value head of this rank; with more ranks than key/value heads, some of them.
static inline int shape_queries(const Shape* s) { return s->kv_heads ? s->heads / s->kv_heads : s->NH / s->NKV; }
// Returns 1 if GELU is a part of the matmuls beside it: no adapter stands between.
static inline int shape_fuses_gelu(const Shape* s) { return shape_act(s) == ACT_GELU && !(s->features & HAS_LORA_MLP); }
// Returns heads, kv_heads, hidden and shards of layer l.
static inline LayerUnits shape_units(const Shape* s, int l) {
    LayerUnits alike = {s->heads, s->kv_heads, s->hidden, shape_queries(s), s->kv_heads, s->shards};
    return s->units ? s->units[l] : alike;
}

// ---- parameters, in the order in which they lie in memory: embeddings, those of each layer together, norm and head

// clang-format off
typedef enum ParamId {
    WTE, WPE,                                                   // token and position embeddings
    LN1W, LN1B, QKVW, QKVB, QNORMW, KNORMW, ATTPROJW, ATTPROJB,  // per layer, attention
    LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB,                      // per layer, MLP
    QKV_LORA_A, QKV_LORA_B, ATTPROJ_LORA_A, ATTPROJ_LORA_B,     // per layer, adapters
    FC_LORA_A, FC_LORA_B, FCPROJ_LORA_A, FCPROJ_LORA_B,
    LNFW, LNFB, HEADW,                                          // final norm, classifier
    N_PARAMS
} ParamId;

// An axis of a tensor counts one of these. Tensor parallelism cuts all from VOCABULARY on.
typedef enum Axis {
    ONE, CHANNELS, POSITIONS, HEAD_SIZE, LORA_RANK,
    LORA_QKV, LORA_FC,  // runs: the rank once for each part of QKV_OUTPUTS, of FC_OUTPUTS, that has an adapter
    VOCABULARY,
    QKV_OUTPUTS, HEADS,  // runs: channels of the queries' heads, of the keys', of the values'; of the queries' alone
    FC_OUTPUTS, HIDDEN   // runs: hidden units, with SwiGLU twice, gates first; hidden units once
} Axis;
// clang-format on

// Weights begin as N(0, 0.02) like GPT-2's, narrow models wider by sqrt(768 / C), since a sum over fewer channels would
// come out too small; projections into the residual stream are divided by sqrt(2L); norms begin at 1, biases at 0. An A
// is uniform below 1 / sqrt(its columns), as PEFT's; B begins at 0, so that an adapter begins as nothing.
typedef enum Init { INIT_NORMAL, INIT_RESIDUAL, INIT_UNIFORM, INIT_ONE, INIT_ZERO } Init;

typedef struct ParamEntry {
    const char* name;
    Axis rows, cols;  // a vector is (1, cols)
    int needs;        // exists where the model has all of these features
    Init init;
    int decay;   // weight decay applies: matrices and embeddings
    int number;  // number in the seeds of initial values and rounding: never changed
} ParamEntry;

extern const ParamEntry param_table[N_PARAMS];

static inline int param_is_per_layer(ParamId id) { return id >= LN1W && id < LNFW; }
static inline int param_is_adapter(ParamId id) { return (param_table[id].needs & HAS_LORA) != 0; }
static inline int param_is_matrix(ParamId id) { return param_table[id].rows != ONE; }  // in files, too
// The tensor of the classifier's weights.
static inline ParamId shape_head(const Shape* s) { return shape_has(s, HAS_HEAD) ? HEADW : WTE; }

// An axis as runs of elements, one after another.
enum { MOST_RUNS = 3 };
typedef struct Runs {
    int n, size[MOST_RUNS];
} Runs;

Runs shape_runs(const Shape* shape, Axis axis);
static inline int runs_sum(Runs runs) { return runs.size[0] + runs.size[1] + runs.size[2]; }

// One tensor of the model: (rows, cols), rows = 1 for vectors. Offset in elements from the start of the parameters;
// each tensor begins at a multiple of 64 elements. One that the model does not have has no elements.
typedef struct ParamTensor {
    ParamId id;
    int layer;          // 0 if the entry is not per layer
    int index, bucket;  // its number in memory order, and its Bucket's
    int rows, cols;
    size_t offset, elems;
} ParamTensor;

ParamTensor shape_param(const Shape* shape, ParamId id, int layer);
int shape_tensors(const Shape* shape);                // number of tensors
ParamTensor shape_tensor(const Shape* shape, int i);  // the i-th in memory order
size_t shape_param_elems(const Shape* shape);         // elements of the block, gaps between tensors too
size_t shape_param_count(const Shape* shape);         // parameters as people count them: without padding

// Parameters that are gathered and reduced together: bucket 0 is wte and wpe, 1 .. L the layers, L + 1 lnf and headw.
// Each is padded to a multiple of 64 * shards elements and cut into `shards` equal pieces; a rank owns and updates the
// piece of its number in every bucket. Arrays of owned elements hold the pieces of all buckets one after another.
typedef struct Bucket {
    size_t offset, elems;  // of the whole block
    size_t piece, at;      // elements of a rank's piece; where it begins in arrays of owned elements
} Bucket;

static inline int shape_buckets(const Shape* shape) { return shape->L + 2; }
Bucket shape_bucket(const Shape* shape, int b);
// Fills value[first .. first + n) of a tensor's initial values (elems, fp32). Each is a pure function of (shape, seed,
// tensor, index), so threads may share the work.
void shape_init_param(const Shape* shape, const ParamTensor* tensor, uint64_t seed, size_t first, size_t n,
                      float* value);
// table (context, HS / 2, 2) = cos and sin of position * frequency j, theta^(-2 j / HS), stretched as `scaling` says.
void shape_rope(const Shape* shape, float* table);

// ---- activations of a row of N tokens

typedef enum Recompute { RECOMPUTE_NONE, RECOMPUTE_ACTIVATION, RECOMPUTE_BLOCK } Recompute;

// How a layer runs: tp ranks cut its weights, zero is what ranks with the same weights divide (plan/layout/layout.h).
typedef struct LayerLayout {
    int tp, zero;
    Recompute recompute;
} LayerLayout;

// Each has the model's type; statistics and losses are fp32. N: tokens of the row; n: those of one rank of a tensor-
// parallel group, alone N; NH, NKV, U: the rank's heads and hidden units; F: U, with SwiGLU 2 U. Layers that T < tp
// ranks cut have T n tokens in place of N outside attention: see act_entry.
// clang-format off
typedef enum ActId {
    RESIDUAL,            // (n, C), L + 1 times: the stream as it enters each block, and as it leaves the last
    // per layer
    LN1,                 // (N, C)
    LN1_MEAN, LN1_RSTD,  // (n) each; RMSNorms have no means
    QKV,                 // (N, (NH + 2 NKV) HS): queries, keys, values of a token
    ATT,                 // (N, NH HS)
    LSE,                 // (NH, N)
    RESIDUAL2,           // (n, C): the stream between attention and MLP
    LN2,                 // (N, C)
    LN2_MEAN, LN2_RSTD,  // (n) each
    FC,                  // (N, F)
    FC_ACT,              // (N, U)
    QK_RAW,              // (N, (NH + NKV) HS): what QK-norm reads; it overwrites that in QKV, and its backward needs it
    // once
    PROJ,                // (N, C): what a sublayer adds to the stream
    LNF,                 // (N, C)
    LNF_MEAN, LNF_RSTD,  // (n) each
    LOGITS,              // (classifier_N, Vp): of a chunk of the row
    LOSSES,              // (N)
    D_RESIDUAL,          // (n, C): the gradient by the stream
    D_NORM,              // (N, C) by LN1, LN2 or LNF, (N, NH HS) by ATT, with SwiGLU (N, U) by FC_ACT
    D_CORE_IN,           // (N, (NH + 2 NKV) HS) by QKV, or (N, F) by FC
    LORA_X, D_LORA_X,    // (N, rows of A): x A^T of an adapter, and the gradient by it
    // ranks
    D_FULL,              // (N, C), once: D_RESIDUAL of all ranks of a tensor-parallel group
    STATS,               // (3 tp, classifier_N), once: statistics of the logits of each rank of that group
    ATT_HEADS,           // (N, NH HS), per layer, groups of ranks: att as its heads were computed
    ATT_TOKENS,          // (T n, NH HS), per such layer: att by tokens
    EXCHANGED,           // (2, T n, (NH + 2 NKV) HS), once, for such layers: two places for exchanges
    KV,                  // (sampling, (NH + 2 NKV) HS), per layer, generation: as QKV, of the tokens so far
    N_ACTS
} ActId;
// clang-format on

// A program's needs, which decide its activations.
typedef struct ActNeeds {
    int N;                     // tokens of a row
    int classifier_N;          // rows of one classifier chunk
    const LayerLayout* layer;  // (L)
    int training, sampling;    // sampling: tokens in the KV cache
    int answering;             // tokens with only keys and values in the KV cache
    int sampled;               // rows of one chunk whose tokens are drawn
    size_t gathered;           // elements for one such row's logits from all ranks of a group; 0: a rank alone
    int groups;                // attention over several ranks
    int tail;                  // rows after the tokens of QKV: see Kernels.attention_tail
    int slots;                 // micro-batches whose activations are kept at a time: see plan/value/tasks.h
    int tp;      // ranks of the tensor-parallel group; the shape's heads and hidden units: the most of one rank
    int places;  // attention has room for a multiple of `places` key/value heads in layers of less tp; 0: as they come
    DType dt;
} ActNeeds;

// The place of an activation in a layer, or at the end of the model.
typedef struct ActPlace {
    size_t at, slot, bytes;  // offset from the start of all; distance between slots; size, a multiple of 64
    int exists, is_own;      // is_own: kept for the backward pass; else all such layers share one copy
} ActPlace;

// Returns the bytes of all, and fills places[N_ACTS][L + 1] unless that is NULL. The shared copy of an activation comes
// first, then, for each slot, those that layers keep.
size_t shape_activations(const Shape* shape, const ActNeeds* needs, ActPlace* places);
