// model_ranks.h - the model on many ranks: how it is divided, and who holds what.
#pragma once
#include "kernels/comm/comm.h"
#include "kernels/comm/group_attention.h"
#include "kernels/rank_ops.h"
#include "plan/layout/layout.h"
#include "plan/model/split.h"
#include "plan/value/tasks.h"
#include "run/model/zero.h"

typedef struct Work Work;  // run/model/work.h
typedef struct Muon Muon;  // run/model/muon.h

// WorkNeeds has the most key/value heads and hidden units that this rank may ever compute.
typedef struct WorkNeeds {
    int most_heads, most_hidden;
} WorkNeeds;

// A Pipe connects the stages of a pipeline. A request is 0 if nothing is under way.
typedef struct Pipe {
    Comm* comm;  // the ranks with this one's place in all stages, by stage; NULL: there is one stage
    Comm* ends;  // the ranks of the first and the last stage, if both have wte; NULL: nobody else has it
    Request sending[2][MOST_STAGES], receiving[2][MOST_STAGES];  // forward and backward, by slot
} Pipe;

// A LayerGroup says how the R ranks of a group run the layers of one tp T < R. T contiguous ranks, a cut, have the
// weights between them, and tokens of their own; each other cut has the same weights and other tokens. Ranks with the
// same number in their cuts, a spread, turn tokens into heads and back for attention.
typedef struct LayerGroup {
    int tp;
    TpSplit split;  // how the ranks of a cut divide the model
    // Spread rank i computes the queries heads_from[i] to heads_from[i + 1] of the weights' heads, with kv_heads
    // key/value heads from kv_from[i] on. A group of more ranks than key/value heads gives it one, perhaps shared.
    int heads_from[MOST_TP + 1], kv_from[MOST_TP + 1], shares_kv;
    Comm* cut;     // NULL: one rank
    Comm* kv;      // ranks of the cut that share this rank's key/value head; NULL: nobody does
    Comm* spread;  // ranks with the same weights within the group
    Comm* data;    // ranks with the same weights: they divide the optimizer state
} LayerGroup;

enum { MOST_LAYER_GROUPS = 11 };  // divisors of a group's size, MOST_TP at most, but for itself

// Linears that multiply E4M3 (run/model/fp8.h), with numbers of all their tensors in the whole model.
typedef struct Fp8 {
    int n, known, at_work;    // numbers, 0: linears multiply bf16; they are known of a step before; a step is at work
    float *amax, *scales;     // (n) of this rank's since they were asked for; (n,2) scale, unit
    const double* amaxes;     // (n) of the steps before: RunState.amaxes; 0: no value was seen yet
    e4m3 *weights, *operand;  // copies of weights; (N, the widest) the activation or gradient at work
    bf16* room;               // Fp8Matmul.room
} Fp8;

typedef struct ModelRanks {
    Layout layout;
    Pipe pipe;
    TpSplit split;  // how the tensor-parallel group divides the model; Model.shape is this rank's part of it
    LayerGroup groups[MOST_LAYER_GROUPS];  // groups of layers of less tp; usually none
    int n_groups;
    LayerUnits units[MOST_LAYERS];  // shape.units of this stage's layers, if there are groups
    Zero zero;                      // who holds what of weights and gradients: see run/model/zero.h
    Comm* kv;                       // ranks of the group that share this rank's key/value heads; NULL: nobody does
    Fp8 fp8;
    // The owner has what this rank owns of the whole model with --strategies: gradients go there and weights come back.
    // It is NULL elsewhere: this rank owns a part of what it computes.
    Model* owner;
    Model* frozen;                 // beside adapters: the weights that do not learn (run/model/lora.h); NULL: all learn
    Mover reduce[2], gather[2];    // inside nodes, and with owners (plan/layout/strategy_moves.h)
    Moving leaving[2], coming[2];  // at work, where they have a mover
    char* moving;                  // their scratch
    Model* next;                   // model of the next strategy: its weights leave as they are updated
    double* barrier;               // (1) a number that ranks sum only to wait for each other
    void* group_scratch;           // scratch of attention over several ranks
    int lends;                     // gradients of what others compute may come back behind the last row (work.h)
    WorkNeeds work_needs;          // zeros: no rank ever computes anything but what it owns
    Muon* muon;                    // (owner) NULL: AdamW steps all
    Work* work;                    // the parts that this rank computes, its own and others'; NULL: always what it owns
    char* columns[2];              // (N, the widest input of a linear) each, for resized ones
    void *zeros, *spent;  // for a rank that gave all its heads away: (max(N, C)) zeros; (C) fp32 that nobody reads
} ModelRanks;

// Returns the ranks of m->job with this color as a Comm; a negative one gives NULL. Collective; failure ends the
// program.
Comm* model_split(const Model* m, int color, CommPurpose purpose, int overlap);
// Lists all Comms of a model but the world and returns how many.
enum { MOST_COMMS = 6 + 4 * MOST_LAYER_GROUPS };
int model_comms(Comm* list[MOST_COMMS], const Model* m);
void model_close_comms(Model* m);
void model_set_timer(Model* m, Timer* timer);  // timed: what this rank computes, and waits in its Comms
// Masters lie apart from weights only if weights are not fp32 themselves.
static inline int has_master(const Model* m) { return m->dt != DT_F32; }
// Sets m->many by what this rank shares with others now, even if that is nothing; it is in many.c.
void model_set_many(Model* m);
// Returns the model that has the optimizer state.
static inline Model* model_owner(Model* m) { return m->ranks->owner ? m->ranks->owner : m; }
static inline void model_set_ranks(Model* m, ModelRanks* ranks) { m->ranks = ranks, m->layers = ranks->layout.layer; }

// These return this rank's number in its tensor-parallel group, and how many ranks that has.
static inline int tp_rank(const Model* m) { return m->tp ? m->tp->rank : 0; }  // this rank's number
static inline int tp_size(const Model* m) { return m->tp ? m->tp->size : 1; }
// Returns RowAttention.parts: each is a message and a kernel more.
static inline int attention_parts(const Model* m) { return m->k->on_host ? 2 : ATTENTION_PARTS; }

// ---- layers and tensors

// Returns the group of a layer of less tp; NULL for other layers, and for the ends of the model.
const LayerGroup* layer_group(const Model* m, int l);
// Returns the ranks that layer l's weights are divided among.
static inline Comm* layer_data(const Model* m, int l) {
    const LayerGroup* g = layer_group(m, l);
    return g ? g->data : m->comm;
}
// Returns the ranks that share this rank's key/value heads of layer l, as they cut it; NULL: nobody does.
static inline Comm* layer_kv(const Model* m, int l) {
    const LayerGroup* g = layer_group(m, l);
    return g ? g->kv : m->ranks->kv;
}
static inline int layer_cut_rank(const Model* m, int l) {
    const LayerGroup* g = layer_group(m, l);
    return g ? tp_rank(m) % g->tp : tp_rank(m);
}
// Returns 1 if a tensor has rows or elements for queries, keys and values, of which ranks may share the latter.
static inline int has_kv_outputs(ParamId id) {
    return param_table[id].rows == QKV_OUTPUTS || param_table[id].cols == QKV_OUTPUTS;
}
static inline int tensor_layer(const ParamTensor* t) { return param_is_per_layer(t->id) ? t->layer : ENDS; }

// Returns how a tensor is cut.
const TpSplit* tp_split_of(const Model* m, const ParamTensor* tensor);
// Lists the boxes of the whole tensor that this rank's part of it consists of, and returns how many.
int tp_boxes(Box boxes[MOST_RUNS], const Model* m, const ParamTensor* part);
// An OwnedRun is the elements of this rank's owned part that lie in one box, and their place in the whole tensor.
typedef struct OwnedRun {
    Segment segment;
    Place place;
} OwnedRun;
int tp_runs(OwnedRun runs[MOST_RUNS], const Model* m, const Segment* owned);  // returns how many
// Returns the layer of one of this rank's tensors in the whole model.
int pipeline_layer(const Model* m, const ParamTensor* own);
// Returns this rank's part of a tensor of the whole model. It has no elements if its stage has none.
ParamTensor pipeline_part(const Model* m, const ParamTensor* tensor);
// Returns the first stage that has a tensor of the whole model: both ends may have wte.
int pipeline_stage_of(const Model* m, const ParamTensor* tensor);

// ---- pipeline.c: this rank in a pipeline
//
// Rank r of a job of W with --pp P is in stage r / (W / P). The ranks of a stage plan, share documents and divide
// optimizer state among themselves as those of a job without stages do, all stages by the same plan. So rank r has the
// same tokens of a round as rank r - W / P, which sends it their residual stream. Stages are outermost: only the stream
// travels between them, C elements a token and direction.

// Makes the Comms between stages. All ranks call it.
void pipeline_join(Model* m);

// Begins a message of the task list, in the memory of the task's slot.
void pipeline_begin(Model* m, const Task* task, const Row* row);
// Waits before a pass until what it needs has come and what its slot sent has left.
void pipeline_settle(Model* m, const Task* task);
// Waits for all messages after the last task.
void pipeline_finish(Model* m);
// Stands around the forward pass of a row in generation: TASK_RECEIVE from the stage before, TASK_SEND to the next.
void pipeline_meet(Model* m, const Row* row, TaskKind kind);

// Sends value (n, host) from the rank of `stage` to those with its place in other stages. Collective in the pipeline.
void pipeline_share(const Model* m, void* value, size_t bytes, int stage);
