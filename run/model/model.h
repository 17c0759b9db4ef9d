// model.h - the model as one rank holds it, and a row of documents on its device.
//
// The model itself, forward, backward and update, is in train_gpt.cu; who holds which weights, gradients and moments in
// run/model/zero.h; what this rank computes of the four linears of a block in run/model/work.h.
#pragma once
#include "kernels/kernels.h"
#include "kernels/time_kinds.h"
#include "plan/model/shape.h"

typedef struct Comm Comm;                  // kernels/comm.h
typedef struct RowAttention RowAttention;  // kernels/group_attention.h
typedef struct ModelRanks ModelRanks;      // run/model/model_ranks.h
typedef struct Work Work;                  // run/model/work.h
typedef struct Mover Mover;                // run/model/mover.h
typedef struct Model Model;

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

// Where the tensors of a bucket (plan/model/shape.h) lie while they are in use, one behind the other.
typedef struct ParamBlock {
    size_t offset;  // of its first element in the parameters
    char* weights;  // dt
    float* grads;   // fp32 sums; NULL without training
} ParamBlock;

struct Model {
    Shape shape;  // of the part of the model that this rank holds: of all of it, alone
    DType dt;
    const Kernels* k;
    Stream s;
    double *loss_sum, *grad_norm2;  // (1) each, one behind the other, on the device: of the rows of a step
    float* grad_scale;              // (1) on the device
    char* acts;
    Activation act_table[N_ACTS];
    ActPlace* act_places;       // (N_ACTS, L + 1)
    ParamBlock* block;          // (L + 2) embeddings, layers, final norm and head
    const LayerLayout* layers;  // how each layer of the whole model runs
    int slot;                   // of activations, at work now: 0 without a pipeline
    int classifier_N;           // rows of one chunk of the classifier
    float* rope;                // (context, HS / 2, 2) of rotary positions; NULL where they are learned
    Timer* timer;               // where the time of a step goes
    // What many ranks add; 0 or NULL alone, but for world, job and comm.
    Shape whole;        // of the whole model, as files know it; its shards are all ranks
    Comm* world;        // all ranks
    Comm* job;          // those that run like pipelines: all ranks, with --strategies some
    Comm* comm;         // the data ranks: those that hold the same part of the model
    Comm* tp;           // the tensor-parallel group of this rank; NULL: it is alone and holds the whole model
    Comm* kv;           // those of the group that share this rank's key/value heads; NULL: nobody does
    int stage, stages;  // of a pipeline (run/model/pipeline.h)
    ModelRanks* ranks;  // who holds what: run/model/model_ranks.h
    Work* work;         // what this rank computes of its part, and of others'; NULL: what it owns, always
    // With --strategies: what this rank owns of the whole model, for the optimizer; gradients there, weights back.
    // NULL elsewhere: it owns a part of what it computes.
    Model* owner;
    const Mover *reduce, *gather;
    Model* next;            // of the strategy that comes next: its weights leave as they are updated
    char* moving;           // their scratch
    int left;               // rows of this step were left out: it may change no weight
    double* barrier;        // (1) what ranks sum that only wait for each other
    void* group_scratch;    // for attention over several ranks
    const Kernels* slowed;  // k with slow matmuls, for the linears of an injected straggler
    char* columns[2];       // (N, the widest input of a linear) each, for resized ones
    void *zeros, *spent;    // of a rank that gave all its heads away: (max(N, C)) zeros; (C) fp32 that nobody reads
};

// A row on the device: N tokens that this rank holds of the documents of a pass. Generation: one document, of which
// `cached` tokens lie in the KV cache and N new ones follow them.
typedef struct Row {
    int N;
    int *tokens, *positions, *targets;  // (N)
    int n_docs, *cu;                    // its documents, where no other rank shares them: cu_seqlens (n_docs + 1)
    uint64_t number;                    // see Attention.row
    ActId qkv;                          // where queries, keys and values of its tokens lie; generation: KV
    int cached, *cu_keys;               // generation: tokens there before these; cu_seqlens of all (2)
    // What many ranks add.
    const RowAttention* shared;  // its documents, some of which may be on several ranks; NULL: they are those above
    int n, first, own;  // of a tensor-parallel group: this rank has tokens first .. first + own, own <= n; alone N
    int* vocab_rows;    // (N) of wte that this rank holds, -1 where it does not; unused when alone
} Row;

// The activation `id` of layer l, of the slot at work; of the one copy when layers share it. NULL where the model has
// none.
void* model_act(const Model* m, ActId id, int l);

// Weights and gradient sums of a tensor of the model; by its name in layer l: NULL where the model has none.
char* tensor_weights(const Model* m, const ParamTensor* tensor);
float* tensor_grads(const Model* m, const ParamTensor* tensor);
void* model_weights(const Model* m, ParamId id, int l);
float* model_grads(const Model* m, ParamId id, int l);

// How layer l runs.
static inline const LayerLayout* layer_row(const Model* m, int l) { return &m->layers[m->shape.first_layer + l]; }

// Timed: what this rank computes, and waits in its Comms.
void model_set_timer(Model* m, Timer* timer);

// Whether a linear is more than its op: ranks cut it, or compute other slices than they own, or are slowed down.
static inline int shares_linears(const Model* m) { return m->tp || m->work || m->slowed; }
int work_units(const Model* m, SublayerId id, int l);  // run/model/work.h
// Units of a sublayer that this rank computes in layer l now.
static inline int units_now(const Model* m, SublayerId id, int l) {
    return shares_linears(m) ? work_units(m, id, l) : own_units(&m->shape, id);
}

// Where optimizer state is.
static inline Model* model_owner(Model* m) { return m->owner ? m->owner : m; }

// master lies apart from params only when params are not fp32 themselves.
static inline int has_master(const Model* m) { return m->dt != DT_F32; }

// ---- where many ranks do more than the op: run/model/tensor_parallel.h says how

// The rows of x whose tokens are this rank's own outside attention and MLP; tokens of which it sees all of layer l.
void* tp_own(const Model* m, void* x, const Row* row, int l);
int tp_tokens(const Model* m, const Row* row, int l);
int tp_rank(const Model* m);  // of this rank in its group; 0 alone
static inline void* own_rows(const Model* m, void* x, const Row* row, int l) {
    return m->tp ? tp_own(m, x, row, l) : x;
}
static inline int row_tokens(const Model* m, const Row* row, int l) { return m->tp ? tp_tokens(m, row, l) : row->N; }

// x (T n, C), T ranks: own rows to all of them; sums over ranks to the owners of rows, others are not to be read then.
void tp_all_gather(const Model* m, void* x, const Row* row, int l);
void tp_reduce_scatter(const Model* m, void* x, const Row* row, int l);

// The ends of the model, where ranks hold parts of wte and of the classifier. Each rank looks up the tokens that it has
// and finds zeros for others; the sum over ranks is complete. Of logits each tells the others three numbers a token.
void tp_embed(const Model* m, const Row* row);
void tp_embed_backward(const Model* m, const Row* row);
// Kernels.classifier for tokens n .. n + N of the row, whose logits (N, vocab_rows) are those of this rank's part.
void tp_classify(const Model* m, const Row* row, void* logits, int n, int N, float scale, int train);

// Attention of layer l over documents that ranks share (kernels/group_attention.h); a: heads of this rank, scale.
void shared_attention_forward(const Model* m, const Row* row, int l, const Attention* a);
void shared_attention_backward(const Model* m, const Row* row, int l, const Attention* a, void* d_qkv,
                               const void* d_att);

enum { ENDS = -1 };  // in place of a layer: the ends of the model, which belong to the whole group
