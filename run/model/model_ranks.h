// model_ranks.h - the model on many ranks: how it is divided, and who holds what.
#pragma once
#include "kernels/comm/comm.h"
#include "kernels/comm/group_attention.h"
#include "plan/layout/layout.h"
#include "plan/model/split.h"
#include "plan/value/tasks.h"
#include "run/model/zero.h"

typedef struct Work Work;  // run/model/work.h

// The most key/value heads and hidden units that this rank may ever compute.
typedef struct WorkNeeds {
    int most_heads, most_hidden;
} WorkNeeds;

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
    TpSplit split;  // of the model among the ranks of a cut
    // Of the weights' heads spread rank i computes the queries from heads_from[i] to [i + 1], with kv_heads key/value
    // heads from kv_from[i] on. With more ranks in a group than key/value heads it has one, which others may have too.
    int heads_from[MOST_TP + 1], kv_from[MOST_TP + 1], shares_kv;
    Comm* cut;     // NULL: one rank
    Comm* kv;      // those of the cut that share this rank's key/value head; NULL: nobody does
    Comm* spread;  // those with the same weights within the group
    Comm* data;    // those with the same weights: their optimizer state is divided among them
} LayerGroup;

enum { MOST_LAYER_GROUPS = 11 };  // divisors of a group's size, MOST_TP at most, but for itself

typedef struct ModelRanks {
    Layout layout;
    Pipe pipe;
    TpSplit split;  // how the tensor-parallel group divides the model; Model.shape is this rank's part of it
    LayerGroup groups[MOST_LAYER_GROUPS];  // of layers of less tp; none usually
    int n_groups;
    LayerUnits units[MOST_LAYERS];  // of this stage's layers, where there are some: shape.units
    Zero zero;                      // who holds what of weights and gradients: see run/model/zero.h
    Comm* kv;                       // those of the group that share this rank's key/value heads; NULL: nobody does
    // With --strategies: what this rank owns of the whole model, for the optimizer; gradients there, weights back.
    // NULL elsewhere: it owns a part of what it computes.
    Model* owner;
    Mover reduce[2], gather[2];    // inside nodes, and with owners (plan/layout/strategy_moves.h)
    Moving leaving[2], coming[2];  // at work, where they have a mover
    char* moving;                  // their scratch
    int lends;                     // gradients of what others compute may come back behind the last row (work.h)
    WorkNeeds work_needs;  // zeros: no rank ever computes anything but what it owns
    Work* work;            // what this rank computes of its part, and of others'; NULL: what it owns, always
    char* columns[2];      // (N, the widest input of a linear) each, for resized ones
    void *zeros, *spent;   // of a rank that gave all its heads away: (max(N, C)) zeros; (C) fp32 that nobody reads
} ModelRanks;

// The ranks of m->job with this color as a Comm; negative: NULL. Collective; ends the program where it fails.
Comm* model_split(const Model* m, int color, CommPurpose purpose, int overlap);
// All Comms of a model but the world; returns how many.
enum { MOST_COMMS = 6 + 4 * MOST_LAYER_GROUPS };
int model_comms(Comm* list[MOST_COMMS], const Model* m);
void model_close_comms(Model* m);
void model_set_timer(Model* m, Timer* timer);  // timed: what this rank computes, and waits in its Comms
// master lies apart from params only when params are not fp32 themselves.
static inline int has_master(const Model* m) { return m->dt != DT_F32; }
// Sets m->many by what this rank shares with others now; whether it shares anything or not. many.c
void model_set_many(Model* m);
// Between steps. Weights, masters and moments of heads and hidden units go to their new owners once; from then on
// nothing of the migration costs anything. All ranks call it together, those of a stage with the same split.
// Takes new memory before it gives the old back; ends the program where there is none. many.c
void model_divide_anew(Model* m, const TpSplit* split);
// Where optimizer state is.
static inline Model* model_owner(Model* m) { return m->ranks->owner ? m->ranks->owner : m; }
static inline void model_set_ranks(Model* m, ModelRanks* ranks) { m->ranks = ranks, m->layers = ranks->layout.layer; }

// Ranks of the tensor-parallel group.
static inline int tp_rank(const Model* m) { return m->tp ? m->tp->rank : 0; }  // of this one in it
static inline int tp_size(const Model* m) { return m->tp ? m->tp->size : 1; }
// RowAttention.parts: each is a message and a kernel more.
static inline int attention_parts(const Model* m) { return m->k->on_host ? 2 : ATTENTION_PARTS; }

// ---- layers and tensors

// That of a layer of less tp than the group; NULL for others, and for the ends of the model.
const LayerGroup* layer_group(const Model* m, int l);
// The ranks that layer l's weights are divided among.
static inline Comm* layer_data(const Model* m, int l) {
    const LayerGroup* g = layer_group(m, l);
    return g ? g->data : m->comm;
}
// The ranks that share this rank's key/value heads of layer l, as they cut it; NULL: nobody does.
static inline Comm* layer_kv(const Model* m, int l) {
    const LayerGroup* g = layer_group(m, l);
    return g ? g->kv : m->ranks->kv;
}
static inline int layer_cut_rank(const Model* m, int l) {
    const LayerGroup* g = layer_group(m, l);
    return g ? tp_rank(m) % g->tp : tp_rank(m);
}
static inline int tensor_layer(const ParamTensor* t) { return param_is_per_layer(t->id) ? t->layer : ENDS; }

// How a tensor is cut.
const TpSplit* tp_split_of(const Model* m, const ParamTensor* tensor);
// The boxes of the whole tensor that this rank's part of it consists of.
int tp_boxes(Box boxes[MOST_RUNS], const Model* m, const ParamTensor* part);
// Of what this rank owns of its part, the elements that lie in one box; and where they stand in the whole tensor.
typedef struct OwnedRun {
    Segment segment;
    Place place;
} OwnedRun;
int tp_runs(OwnedRun runs[MOST_RUNS], const Model* m, const Segment* owned);  // returns how many
// The layer of one of this rank's tensors in the whole model.
int pipeline_layer(const Model* m, const ParamTensor* own);
// This rank's part of a tensor of the whole model; without elements where its stage has nothing of it.
ParamTensor pipeline_part(const Model* m, const ParamTensor* tensor);
// The stage that has a tensor of the whole model; of wte the first one.
int pipeline_stage_of(const Model* m, const ParamTensor* tensor);

// ---- pipeline.c: this rank in a pipeline
//
// With --pp P, rank r of a job of W is in stage r / (W / P); the ranks of a stage plan, share documents and divide
// optimizer state among themselves as the ranks of a job without stages do, all stages by the same plan. So the tokens
// that rank r has of a round are those of rank r - W / P, which sends it their residual stream. Stages are outermost:
// between them only the stream travels, C elements a token and direction.

// Makes the Comms of the layout, cuts m->shape, which is this rank's part of the whole model, to its stage, and takes
// what the layout says of that. All ranks call it.
void pipeline_join(Model* m);

// Begins a message of the task list; memory is that of the task's slot.
void pipeline_begin(Model* m, const Task* task, const Row* row);
// Before a pass: what it needs has come, what its slot sent has left.
void pipeline_settle(Model* m, const Task* task);
// After the last task.
void pipeline_finish(Model* m);
// Around the forward pass of a row alone, for generation: TASK_RECEIVE from the stage before, TASK_SEND to the one
// behind.
void pipeline_meet(Model* m, const Row* row, TaskKind kind);

// value (n, host) from the rank of that stage to this one's place in all others. Collective in the pipeline.
void pipeline_share(const Model* m, void* value, size_t bytes, int stage);
