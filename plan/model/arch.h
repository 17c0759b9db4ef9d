// arch.h - architectures and their tensors as data: one row an architecture, one row a tensor. Names, files, sizes,
// initial values, tensor parallelism and slices of slow ranks are all read from these rows.
//
// A block is two sublayers of one form, x += Row(core(Column(norm(x)))): attention and MLP (train_gpt.cu). Column is a
// linear that tensor parallelism cuts by outputs, Row one that it cuts by inputs. What architectures differ in:
//
//            norm       positions   QKV bias  other biases  QK-norm  core of the MLP
//   gpt2     LayerNorm  learned     yes       yes           no       GELU
//   llama    RMSNorm    rotary      no        no            no       SwiGLU
//   qwen2    RMSNorm    rotary      yes       no            no       SwiGLU
//   qwen3    RMSNorm    rotary      no        no            yes      SwiGLU
//
// Any of them may have fewer key/value heads than heads, heads of any size, and a head (classifier) of its own.
#pragma once
#include "plan/base/base.h"

typedef enum Arch { ARCH_GPT2, ARCH_LLAMA, ARCH_QWEN2, ARCH_QWEN3, N_ARCHS } Arch;

// What a model has: bits of ArchRow.features.
enum {
    HAS_POSITIONS = 1,  // learned positions; without them queries and keys are rotated
    HAS_NORM_BIAS = 2,  // norms are LayerNorms; without it RMSNorms
    HAS_QKV_BIAS = 4,
    HAS_LINEAR_BIAS = 8,  // of the other linears
    HAS_QK_NORM = 16,     // an RMSNorm of every head of queries and keys
    HAS_HEAD = 32,        // a classifier of its own; without it wte is one
};

typedef struct ArchRow {
    const char* name;      // of --arch, and Hugging Face's model_type
    const char* title;     // as people write it
    const char* hf_class;  // Hugging Face's architectures[0]
    int features;
    ActFunction act;
    double eps;  // of norms, where nothing else is said
} ArchRow;

extern const ArchRow arch_table[N_ARCHS];

// ---- tensors, in the order in which they lie in memory: embeddings, those of each layer together, norm and head

// clang-format off
typedef enum ParamId {
    WTE, WPE,                                                   // token and position embeddings
    LN1W, LN1B, QKVW, QKVB, QNORMW, KNORMW, ATTPROJW, ATTPROJB,  // per layer, attention
    LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB,                      // per layer, MLP
    LNFW, LNFB, HEADW,                                          // final norm, classifier
    N_PARAMS
} ParamId;
// clang-format on

// What an axis of a tensor counts. Tensor parallelism cuts all from VOCABULARY on.
typedef enum Axis {
    ONE,
    CHANNELS,
    POSITIONS,
    HEAD_SIZE,
    VOCABULARY,
    QKV_OUTPUTS,  // runs: channels of the queries' heads, of the keys', of the values'
    HEADS,        // channels of the queries' heads
    FC_OUTPUTS,   // runs: hidden units; with SwiGLU twice, gates first
    HIDDEN        // hidden units
} Axis;
enum { MOST_RUNS = 3 };

// Weights begin as N(0, 0.02) like GPT-2's, narrow models wider by sqrt(768 / C), since a sum over fewer channels would
// come out too small; projections into the residual stream are divided by sqrt(2L); norms begin at 1, biases at 0.
typedef enum Init { INIT_NORMAL, INIT_RESIDUAL, INIT_ONE, INIT_ZERO } Init;

typedef struct ParamRow {
    const char* name;  // ours
    Axis rows, cols;   // a vector is (1, cols)
    int needs;         // exists where the model has all of these features
    Init init;
    int decay;   // weight decay applies: matrices and embeddings
    int number;  // in the seeds of initial values and of rounding: never changed
    // Hugging Face's names, with the layer's number for %d: GPT2LMHeadModel's tensor, the others', one for each run of
    // the axis that is cut. gpt2_transposed: it is kept as (in, out), its Conv1D.
    const char* gpt2;
    int gpt2_transposed;
    const char* llama[MOST_RUNS];
} ParamRow;

extern const ParamRow param_table[N_PARAMS];

static inline int param_is_per_layer(ParamId id) { return id >= LN1W && id < LNFW; }
static inline int param_is_matrix(ParamId id) { return param_table[id].rows != ONE; }  // in files, too
// The axis that tensor parallelism cuts: 0 rows (column-parallel), 1 columns (row-parallel), -1 none.
static inline int param_cut(ParamId id) {
    return param_table[id].rows >= VOCABULARY  ? 0
           : param_table[id].cols < VOCABULARY ? -1
                                               : param_table[id].rows != ONE;
}
