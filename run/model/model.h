// model.h - the model as one rank holds it, and a row of documents on its device.
//
// Forward and backward are in train_gpt.cu, the update is here. Model.many is a table of what many ranks do instead of
// an op or around it; it is NULL where nobody shares anything.
#pragma once
#include "kernels/kernels.h"
#include "kernels/memory.h"
#include "kernels/timer.h"
#include "plan/model/shape.h"
#include "plan/options/config.h"

typedef struct Model Model;

// ---- a block as a table: two sublayers of one form, x += Out(core(In(norm(x))))
//
// train_gpt.cu runs any sublayer forward and backward by its row here. A sublayer consists of units that need no other
// ones: key/value heads with their query heads, or hidden units of the MLP. Ranks divide units.

typedef enum SublayerId { ATTENTION, MLP, N_SUBLAYERS } SublayerId;
// Sublayer i has two linears: 2 i is In, which makes what the core reads, 2 i + 1 is Out.
typedef enum LinearId { LINEAR_QKV, LINEAR_ATTPROJ, LINEAR_FC, LINEAR_FCPROJ, N_LINEARS } LinearId;

static inline SublayerId sublayer_of(LinearId id) { return (SublayerId)(id / 2); }
static inline int is_linear_in(LinearId id) { return id % 2 == 0; }
static inline LinearId linear_in(SublayerId id) { return (LinearId)(2 * (int)id); }
static inline LinearId linear_out(SublayerId id) { return (LinearId)(2 * (int)id + 1); }

// A norm reads x of the residual stream and makes out and its statistics. RMSNorms have no mean.
typedef struct NormEntry {
    ParamId weight, bias;
    ActId x, out, mean, rstd;
} NormEntry;

typedef struct Sublayer {
    NormEntry norm;
    ParamId weight[2], bias[2];  // weights and biases of In and Out
    ActId core_in, core_out;
} Sublayer;

extern const Sublayer sublayers[N_SUBLAYERS];
extern const NormEntry final_norm;

// Returns the units of a rank with this shape.
static inline int own_units(const Shape* s, SublayerId id) { return id == ATTENTION ? s->kv_heads : s->hidden; }

// Weights, gradients and moments have memory of their own on the device. An array without a use is NULL.
typedef enum ModelArray {
    MODEL_WEIGHTS,         // dt: all of them; with ZeRO stage 3 those that this rank owns
    MODEL_WEIGHTS_IN_USE,  // dt; many ranks: run/model/zero.h
    MODEL_MASTER,          // fp32, owned; none where dt is fp32: the owned weights are it
    MODEL_GRADS,           // fp32, because a sum over rows in bf16 loses small addends; with ZeRO stages 2 and 3 owned
    MODEL_GRADS_IN_USE,    // fp32; many ranks
    MODEL_GRADS_BF16,      // many ranks
    MODEL_M,               // fp32, owned: moments
    MODEL_V,
    MODEL_FROZEN, MODEL_FROZEN_IN_USE, MODEL_UNREAD,  // beside adapters: lora.h
    N_MODEL_ARRAYS
} ModelArray;

extern const char* const model_array_names[N_MODEL_ARRAYS];

// A tensor (rows, cols) and where it lies while it is in use. All is 0 if the model has none, grads without training.
typedef struct ParamPlace {
    int rows, cols;
    void* weights;  // dt
    float* grads;   // fp32 sums
} ParamPlace;

struct Model {
    Shape shape;  // shape of the part that this rank holds: alone the whole model
    DType dt;
    const Kernels* k;
    Stream s;
    // (1) each, one after the other: sums over the rows of a step. They are doubles, because fp32 loses digits in sums
    // over a million tokens, and on the device, because fetching each row's would make the host wait for it.
    double *loss_sum, *grad_norm2;
    float* grad_scale;  // (1) on the device
    void* array[N_MODEL_ARRAYS];
    char* acts;
    ActPlace* act_places;       // (N_ACTS, L + 1)
    size_t act_bytes;           // bytes of all
    ParamPlace* param_places;   // (L, N_PARAMS); those that are not per layer are in row 0
    const LayerLayout* layers;  // how each layer of the whole model runs
    int slot;                   // slot of activations at work now: 0 without a pipeline
    int classifier_N;           // rows of one chunk of the classifier
    int sampled_N;              // rows of one chunk of which tokens are drawn
    float* rope;                // (context, HS / 2, 2) of rotary positions; NULL where they are learned
    Timer* timer;               // timer of the parts of a step
    int left;                   // rows of this step were left out: it may change no weight
    // Many ranks add these. On one rank all are 0 or NULL, but for whole, world, job and comm.
    const struct ManyRanks* many;  // their ops: run/model/many_ranks.h
    Shape whole;                   // the whole model, as files know it; its shards are all ranks
    struct Comm* world;            // all ranks
    struct Comm* job;              // ranks that run like pipelines: all ranks, with --strategies some
    struct Comm* comm;             // the data ranks: those that hold the same part of the model
    struct Comm* tp;           // the tensor-parallel group of this rank; NULL: it is alone and holds the whole model
    int stage, stages;         // this rank's stage of a pipeline, and their number (run/model/pipeline.c)
    struct ModelRanks* ranks;  // who holds what: run/model/model_ranks.h
};

// A row on the device has N tokens that this rank holds of the documents of a pass. In generation it is one document,
// of which `cached` tokens lie in the KV cache and N new ones follow them.
typedef struct Row {
    int N;
    int *tokens, *positions, *targets;  // (N)
    int n_docs, *cu;                    // its documents, where no other rank shares them: cu_seqlens (n_docs + 1)
    uint64_t number;                    // see Attention.row
    ActId qkv;                          // the place of its queries, keys and values; generation: KV
    int place, cached, *cu_keys;        // generation: where the document begins there; its tokens before these;
                                        // cu_seqlens of all (2)
    // Many ranks add these.
    const struct RowAttention* shared;  // its documents if several ranks share some; NULL: those above
    int n, first, own;  // this rank of a tensor-parallel group has tokens first .. first + own, own <= n; alone N
    int* vocab_rows;    // (N) tokens as rows of this rank's part of wte, -1 for others; unused alone
    // Reweights losses and gradients of tokens n .. n + N after the classifier (DPO, GRPO). NULL: labels count alike.
    void (*weigh)(const Model* m, const struct Row* row, void* logits, int n, int N, int train);
    const struct Labels* labels;  // run/step/labels.h
} Row;

// Returns the activation `id` of layer l in the slot at work, or NULL if the model has none.
void* model_act(const Model* m, ActId id, int l);

// Returns the place of a tensor, of any l if it is not per layer.
static inline ParamPlace* param_place(const Model* m, ParamId id, int l) {
    return &m->param_places[(param_is_per_layer(id) ? l * N_PARAMS : 0) + (int)id];
}
static inline void* model_weights(const Model* m, ParamId id, int l) { return param_place(m, id, l)->weights; }
static inline float* model_grads(const Model* m, ParamId id, int l) { return param_place(m, id, l)->grads; }

// Returns how layer l runs.
static inline const LayerLayout* layer_layout(const Model* m, int l) { return &m->layers[m->shape.first_layer + l]; }

// logits (N,vocab_rows) = those of tokens n .. n + N of the last forward pass, of this rank's part of the vocabulary.
void model_logits(const Model* m, void* logits, int n, int N);

enum { ENDS = -1 };  // stands for a layer: the ends of the model, which belong to the whole group

// ---- memory of one rank

// The memory of a rank follows from these needs alone.
typedef struct ModelNeeds {
    Shape shape;  // shape with the most heads and hidden units that the rank may compute
    ActNeeds acts;
    KernelLimits limits;
    size_t arrays[N_MODEL_ARRAYS];  // bytes
    size_t libraries;
} ModelNeeds;

// Returns the needs of one rank with rows of N tokens. limits.oversubscribed and most_scratch are left to fill in.
ModelNeeds model_needs(const Kernels* k, const Shape* shape, DType dt, const LayerLayout* layers, const Config* config,
                       int training, int N);
KernelLimits model_limits(const Shape* shape, DType dt, const Config* config, int N);
int model_widest(const Shape* shape);  // the widest input or output of a layer's linears
void model_plan(MemoryPlan* plan, const Kernels* k, const ModelNeeds* needs);
// model_carve takes the planned memory; the other two fill param_places and act_places.
void model_carve(Model* m, const MemoryPlan* plan);
void model_place_params(Model* m);
// Places a tensor that begins at element `at` of these arrays, either of which may be NULL.
void model_place_param(Model* m, const ParamTensor* tensor, size_t at, void* weights, float* grads);
void model_place_activations(Model* m, const ModelNeeds* needs);

// ---- the update: AdamW on what this rank owns, at the end of a step

// Sums gradients and losses over all ranks, clips, steps what this rank owns and zeroes the gradients; t is the 1-based
// step. Loss and squared norm before clipping stay on the device. A norm that is not finite leaves the weights as they
// were. Weights of many ranks are whole again after zero_gather; or here, with ModelRanks.next, in its layout.
void model_update(Model* m, const Config* config, double lr, int64_t t);
// Sets how elements of a tensor step. `a` has their memory, n, place and freeze; the rest is filled in here.
void model_set_step(const Model* m, const Config* config, AdamW* a, const ParamTensor* tensor, double lr, int64_t t);
