// model.h - the model as one rank holds it, and a row of documents on its device.
//
// The model itself, forward, backward and update, is in train_gpt.cu; who holds which weights, gradients and moments in
// run/zero.h; what this rank computes of the four linears of a block in run/work.h.
#pragma once
#include "kernels/comm.h"
#include "kernels/group_attention.h"
#include "kernels/kernels.h"
#include "plan/layout.h"
#include "plan/shape.h"
#include "plan/split.h"
#include "run/zero.h"

typedef struct Work Work;    // run/work.h
typedef struct Mover Mover;  // run/mover.h

// ---- a block as a table: two sublayers of one form, x += Row(core(Column(norm(x))))
//
// train_gpt.cu runs any sublayer forward and backward by its row here; tensor parallelism, resizing, recomputation and
// timing hang on the form. What a sublayer consists of `units` of, which no other unit needs: key/value heads with
// their query heads, or hidden units of the MLP. They are what ranks divide and what slow ranks give away.

typedef enum SublayerId { ATTENTION, MLP, N_SUBLAYERS } SublayerId;
// Of sublayer i: 2 i is Column, 2 i + 1 is Row.
typedef enum LinearId { LINEAR_QKV, LINEAR_ATTPROJ, LINEAR_FC, LINEAR_FCPROJ, N_LINEARS } LinearId;

static inline SublayerId sublayer_of(LinearId id) { return (SublayerId)(id / 2); }
static inline int is_column(LinearId id) { return id % 2 == 0; }
static inline LinearId column_linear(SublayerId id) { return (LinearId)(2 * (int)id); }
static inline LinearId row_linear(SublayerId id) { return (LinearId)(2 * (int)id + 1); }

// A norm: what it reads of the residual stream, what it makes, and its statistics (mean: LayerNorms only).
typedef struct NormRow {
    ParamId weight, bias;
    ActId x, out, mean, rstd;
} NormRow;

typedef struct Sublayer {
    NormRow norm;
    ParamId weight[2], bias[2];  // of Column and Row
    ActId column_out, core_out;
} Sublayer;

extern const Sublayer sublayers[N_SUBLAYERS];
extern const NormRow final_norm;

// Rows of Column and columns of Row that belong to n units of a rank with this shape.
Runs unit_rows(const Shape* shape, SublayerId id, int n);
int unit_columns(const Shape* shape, SublayerId id);  // of one
int own_units(const Shape* shape, SublayerId id);
// Elements of both linears, of Column's bias too, in one unit.
size_t unit_elems(const Shape* shape, SublayerId id);

// Between the stages of a pipeline. Requests are 0 where nothing is under way.
typedef struct Pipe {
    Comm* comm;  // the ranks with this one's place in all stages, by stage; NULL: there is one stage
    Comm* ends;  // those of the first and the last stage, where both have wte; NULL: nobody else has it
    Request sending[2][MOST_STAGES], receiving[2][MOST_STAGES];  // forward and backward, by slot
} Pipe;

// How the R ranks of a group run the layers of one tp T < R. T contiguous ranks, a cut, have the weights between them,
// and tokens of their own; each other cut of the group has the same weights and other tokens. Ranks with the same
// number in their cuts turn tokens into heads and back for attention, each with some of the heads of its weights.
typedef struct LayerGroup {
    int tp;
    TpSplit split;                // of the model among the ranks of a cut
    int heads_from[MOST_TP + 1];  // key/value heads of the weights that spread rank i computes: from [i] to [i + 1]
    Comm* cut;                    // NULL: one rank
    Comm* spread;                 // those with the same weights within the group
    Comm* data;                   // those with the same weights: their optimizer state is divided among them
} LayerGroup;

enum { MOST_LAYER_GROUPS = 11 };  // divisors of a group's size, MOST_TP at most, but for itself

struct Model {
    Shape shape;  // of the part of the model that this rank holds
    Shape whole;  // of all of it, as files know it; its shards are all ranks
    DType dt;
    const Kernels* k;
    Stream s;
    Comm* world;  // all ranks
    Comm* job;    // those that run like pipelines: all ranks, with --strategies some (run/strategies.h)
    Comm* comm;   // the data ranks: those that hold the same part of the model
    Layout layout;
    int stage, stages, slot;  // of a pipeline (run/pipeline.h); of activations, at work now
    Pipe pipe;
    Comm* tp;       // the tensor-parallel group of this rank; NULL: it is alone and holds the whole model
    Comm* kv;       // those of the group that share this rank's key/value heads (plan/split.h); NULL: nobody does
    TpSplit split;  // how the group divides the model; shape is this rank's part of it
    LayerGroup groups[MOST_LAYER_GROUPS];  // of layers of less tp; none usually
    int n_groups;
    LayerUnits units[MOST_LAYERS];  // of this stage's layers, where there are some: shape.units
    Work* work;                     // what this rank computes of its part, and of others'; NULL: what it owns, always
    Zero zero;                      // who holds what of the following: see run/zero.h
    // With --strategies: what this rank owns of the whole model, for the optimizer; gradients there, weights back.
    // NULL elsewhere: it owns a part of what it computes.
    Model* owner;
    const Mover *reduce, *gather;
    Model* next;                    // of the strategy that comes next: its weights leave as they are updated
    char* moving;                   // their scratch
    double *loss_sum, *grad_norm2;  // (1) each, one behind the other, on the device: of the rows of a step
    int left;                       // rows of this step were left out: it may change no weight
    double* barrier;                // (1) what ranks sum that only wait for each other
    float* grad_scale;              // (1) on the device
    char* acts;
    Activation act_table[N_ACTS];
    ActPlace* act_places;   // (N_ACTS, L + 1)
    int classifier_N;       // rows of one chunk of the classifier
    void* group_scratch;    // for attention over several ranks
    float* rope;            // (context, HS / 2, 2) of rotary positions; NULL where they are learned
    Timer* timer;           // where the time of a step goes
    const Kernels* slowed;  // k with slow matmuls, for the linears of an injected straggler; NULL usually
    char* columns[2];       // (N, the widest input of a linear) each, for resized ones
    void *zeros, *spent;    // of a rank that gave all its heads away: (max(N, C)) zeros; (C) fp32 that nobody reads
};

// A row on the device: N tokens that this rank holds of the documents of a pass. Generation: one document, of which
// `cached` tokens lie in the KV cache and N new ones follow them.
typedef struct Row {
    int N;
    int n, first, own;                  // of a tensor-parallel group: this rank has tokens first ..
                                        // first + own, own <= n; alone n = own = N
    int *tokens, *positions, *targets;  // (N)
    int* vocab_rows;                    // (N) of wte that this rank holds, -1 where it does not; unused when alone
    RowAttention attention;             // the documents, and the ranks that share them
    int* cu;                            // generation: (2) for the queries, (2) for the keys
    int use_cache, cached;
} Row;

// The activation `id` of layer l, of the slot at work; of the one copy when layers share it. NULL where the model has
// none.
void* model_act(const Model* m, ActId id, int l);

// How layer l of this rank's stage runs.
static inline const LayerLayout* layer_row(const Model* m, int l) { return &m->layout.layer[m->shape.first_layer + l]; }

// Timed: what this rank computes, and waits in its Comms.
void model_set_timer(Model* m, Timer* timer);

// Ranks of the tensor-parallel group, and this one's number among them.
static inline int tp_size(const Model* m) { return m->tp ? m->tp->size : 1; }
static inline int tp_rank(const Model* m) { return m->tp ? m->tp->rank : 0; }
// RowAttention.parts: each is a message and a kernel more.
static inline int attention_parts(const Model* m) { return m->k->on_host ? 2 : ATTENTION_PARTS; }

// Where optimizer state is.
static inline Model* model_owner(Model* m) { return m->owner ? m->owner : m; }

// That of a layer of less tp than the group, NULL for others, and for the ends of the model: l = -1 or L.
const LayerGroup* layer_group(const Model* m, int l);
// Of m->layout: makes m->groups and m->units; tp and comm, or their sizes, m->split and m->shape are there.
void layers_plan(Model* m);
void layers_join(Model* m);  // and their Comms; collective
void layers_close(Model* m);
// The ranks that layer l's weights are divided among.
static inline Comm* layer_data(const Model* m, int l) {
    const LayerGroup* g = layer_group(m, l);
    return g ? g->data : m->comm;
}
static inline int layer_cut_rank(const Model* m, int l) {
    const LayerGroup* g = layer_group(m, l);
    return g ? tp_rank(m) % g->tp : tp_rank(m);
}

// master lies apart from params only when params are not fp32 themselves.
static inline int has_master(const Model* m) { return m->dt != DT_F32; }

// ---- tensor parallelism: Megatron's layout with sequence-parallel norms (Korthikanti et al. 2022)
//
// Outside attention and MLP rank t of a group of R has the tokens [t n, (t + 1) n) of a row of N, n = ceil(N / R), the
// last ranks fewer; a sum over ranks is a reduce-scatter there, and an all-gather comes before the next matmul:
// together the bytes of one all-reduce. A row makes four of these pairs in each block, forward and backward together,
// whichever ranks compute the slices of slow ones. In a group of one these functions do nothing.
//
// A layer of tp T < R does that among the T ranks of a cut, over their tokens alone: weights are larger, and exchanges
// smaller. Attention needs all tokens: an all-to-all among the cuts turns tokens into heads, each rank computes as many
// as if all R cut the weights, and another one turns back (as in kernels/group_attention.h).
// The ends of the model, l = -1 and l = L, belong to the whole group.

enum { ENDS = -1 };

// Tokens of a row that the ranks of a cut have between them: T n, the last cuts fewer.
int tp_tokens(const Model* m, const Row* row, int l);
// The own rows of x (T n, C).
void* tp_own(const Model* m, void* x, const Row* row, int l);
// x (T n, C): own rows to all ranks of the cut.
void tp_all_gather(const Model* m, void* x, const Row* row, int l);
// x (T n, C): own rows become sums over ranks of those rows; the others are not to be read afterwards.
void tp_reduce_scatter(const Model* m, void* x, const Row* row, int l);
// Own rows (n,C) gathered into full (T n, C), which is returned; in a group of one `own` itself.
void* tp_full(const Model* m, void* own, void* full, const Row* row, int l);

static inline int turns_to_heads(const Model* m, SublayerId i, int l) { return i == ATTENTION && layer_group(m, l); }
// Layers of tp T < R, attention: x (T n, heads of the weights) of the cut's tokens becomes out (N, own heads) of all
// tokens of the row, and back. M = 3: a token has its heads' queries, keys and values; M = 1: what attention makes of
// them. What is by tokens may lie at EXCHANGED.
void tokens_to_heads(const Model* m, void* out, const void* x, int M, const Row* row, int l);
void heads_to_tokens(const Model* m, void* out, const void* x, int M, const Row* row, int l);

// The same all-gather, in the order in which a linear can use it. With Comm.overlap it comes in two parts, first the
// rows of the half of the group that this rank is in, then the others' while those are multiplied: more parts would
// hide more, but a matmul of an eighth of the rows leaves most of a GPU's processors idle. Otherwise, in a group of
// one, and where a part would have a single row, all rows are one part. The rows are those of the cut.
//   TpGather g = tp_gather_begin(m, own, full, row, l);
//   for (TpRows r; tp_gather_next(m, &g, &r);) ...   // rows r.first .. r.first + r.n of the row stand at r.x
// Own rows (n,C) may lie in full (R n, C); neither is to be written before the loop is over.
typedef struct TpGather {
    const Row* row;
    int l, N;  // tokens of the cut
    char *own, *full;
    int part, parts;
    Request arriving[2];  // by part
} TpGather;

typedef struct TpRows {
    const void* x;
    int first, n;
} TpRows;

TpGather tp_gather_begin(const Model* m, void* own, void* full, const Row* row, int l);
int tp_gather_next(const Model* m, TpGather* g, TpRows* rows);  // 0: that was all

// tp_reduce_scatter, begun and ended.
Request tp_begin_reduce_scatter(const Model* m, void* x, const Row* row, int l);
void tp_end(const Model* m, Request request, int l);

// part = this rank's of whole, both (elems, host, fp32) of a tensor of this stage; may be the same memory.
void tp_take(const Model* m, const ParamTensor* tensor, float* part, const float* whole);
// The boxes of the whole tensor that this rank's part of it consists of.
int tp_boxes(Box boxes[MOST_RUNS], const Model* m, const ParamTensor* part);
// Of what this rank owns of its part, the elements that lie in one box; and where they stand in the whole tensor.
typedef struct OwnedRun {
    Segment segment;
    Place place;
} OwnedRun;
int tp_runs(OwnedRun runs[MOST_RUNS], const Model* m, const Segment* owned);  // returns how many
// Files know whole tensors. whole (elems, host, fp32) = the parts of all ranks, of which `part` is this one's; others:
// scratch for the largest part of any rank. Collective in the group. In a group of one whole and part may be the same.
void tp_join(const Model* m, const ParamTensor* tensor, float* whole, float* part, float* others);

// logits (Vp, host): the own rows are there, all others come. Collective in the group.
void tp_share_logits(const Model* m, float* logits);
