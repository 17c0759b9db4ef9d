// many.c - the tables Model.many; see many_ranks.h.
#include "run/model/many_ranks.h"
#include "run/model/muon.h"
#include "run/model/tensor_parallel.h"
#include "run/model/work.h"

// ---- attention over documents that ranks share

// Returns the activations that the backward pass needs.
static SavedAttention saved_attention(const Model* m, int l) {
    return (SavedAttention){model_act(m, QKV, l), model_act(m, ATT, l), model_act(m, ATT_HEADS, l),
                            (float*)model_act(m, LSE, l)};
}

static RowAttention row_attention(const Row* row, const Attention* a) {
    RowAttention shared = *row->shared;
    shared.NH = a->NH, shared.NKV = a->NKV, shared.HS = a->HS;
    shared.scale = a->scale, shared.row = a->row;
    return shared;
}

static void shared_attention_forward(const Model* m, const Row* row, int l, const Attention* a) {
    SavedAttention saved = saved_attention(m, l);
    RowAttention shared = row_attention(row, a);
    if (a->NH && shared.answers)
        answers_attention_forward(saved.out, saved.lse, a, shared.answers, shared.scratch, m->k, m->dt, m->s);
    else if (a->NH) group_attention_forward(&saved, &shared, m->k, m->dt, m->s);
}

static void shared_attention_backward(const Model* m, const Row* row, int l, const Attention* a, void* d_qkv,
                                      const void* d_att) {
    SavedAttention saved = saved_attention(m, l);
    RowAttention shared = row_attention(row, a);
    if (a->NH) group_attention_backward(d_qkv, d_att, &saved, &shared, m->k, m->dt, m->s);
}

// ---- around layers

static void use_layer(Model* m, int l, int direction) {
    zero_use_layer(m, l, direction);
    if (direction < 0) zero_open_grads(m, l);
}

static int grads_stay(const Model* m) { return m->ranks->zero.stage == 1; }

// ---- the update

// Finds the memory of a run of elements that this rank owns. Copies of an element, which ranks with the same key/value
// head have, are rounded by one place and frozen alike, so that they stay equal.
static AdamW step_of(const Model* m, const Config* config, const OwnedRun* run, double lr, int64_t t) {
    const Segment* segment = &run->segment;
    const ParamTensor* tensor = &segment->tensor;
    int has_copies = layer_kv(m, tensor_layer(tensor)) && has_kv_outputs(tensor->id);
    AdamW a;
    a.param = zero_owned(m, STATE_WEIGHTS, segment);
    a.master = (float*)zero_owned(m, STATE_MASTER, segment);
    a.m = (float*)zero_owned(m, STATE_M, segment);
    a.v = (float*)zero_owned(m, STATE_V, segment);
    a.grad = (float*)zero_owned(m, STATE_GRADS, segment);
    a.n = segment->n;
    a.place = run->place;
    a.freeze = work_freezes(m) && param_is_per_layer(tensor->id) && param_cut(tensor->id) >= 0 && !has_copies;
    model_set_step(m, config, &a, tensor, lr, t);
    return a;
}

// Makes the directions of all matrices.
static void direct(Model* m, const Config* config) {
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        OwnedRun runs[MOST_RUNS];
        Segment segment = zero_segment(m, i);
        for (int r = 0, n = muon_takes(segment.tensor.id) ? tp_runs(runs, m, &segment) : 0; r < n; r++) {
            AdamW a = step_of(m, config, &runs[r], 0, 1);
            a.beta1 = (float)config->momentum;
            m->k->ranks->momentum(&a, m->s);
        }
    }
    muon_direct(m->ranks->muon, m);
}

// Tensors that are stepped by one launch.
typedef struct StepList {
    AdamW step[ADAMW_TENSORS];
    int n;
} StepList;

// Adds a tensor, after which a full list is stepped; NULL steps what there is.
static void add_step(const Model* m, StepList* list, const AdamW* a) {
    if (a) list->step[list->n++] = *a;
    if (a && list->n < ADAMW_TENSORS) return;
    m->k->adamw(list->step, list->n, m->dt, m->s);
    list->n = 0;
}

// Steps all runs. If m->ranks->next is set, weights leave bucket by bucket as they are updated.
static void step(Model* m, const Config* config, double lr, int64_t t) {
    Model* owner = model_owner(m);
    int is_muon = owner->ranks->muon != NULL, left = 0;
    StepList list = {.n = 0};
    if (is_muon) direct(owner, config);
    if (m->ranks->next) zero_begin_gather(m->ranks->next);
    for (int i = 0; i < shape_tensors(&owner->shape); i++) {
        OwnedRun runs[MOST_RUNS];
        Segment segment = zero_segment(owner, i);
        if (m->ranks->next && segment.tensor.bucket > left) {
            add_step(owner, &list, NULL);  // a list must not keep what leaves
            zero_advance_gather(m->ranks->next, left = segment.tensor.bucket);
        }
        for (int r = 0, n = tp_runs(runs, owner, &segment); r < n; r++) {
            AdamW a = step_of(owner, config, &runs[r], lr, t);
            if (is_muon && muon_takes(segment.tensor.id)) m->k->ranks->follow(&a, m->dt, m->s);
            else add_step(owner, &list, &a);
        }
    }
    add_step(owner, &list, NULL);
    if (m->ranks->next) zero_advance_gather(m->ranks->next, shape_buckets(&owner->shape));
    zero_clear_grads(m);
}

static void reduce(Model* m) {
    work_end(m);
    zero_reduce(m);
    zero_sum_of_squares(model_owner(m));
    m->world->table->all_reduce(m->world, m->loss_sum, 2, DT_F64, m->s);  // grad_norm2 follows loss_sum in memory
}

// ---- the tables

// clang-format off
#define AROUND_LAYERS_AND_STEPS                                                                              \
    .use_layer = use_layer, .close_grads = zero_close_grads, .attention_forward = shared_attention_forward, \
    .attention_backward = shared_attention_backward, .reduce = reduce, .step = step
#define LINEARS \
    .units = work_units, .linear_forward = tp_linear_forward, .linear_backward = tp_linear_backward
// clang-format on

// Each table serves some ranks: those that compute whole linears, those that compute others than they own or have
// adapters, those that cut them.
static const ManyRanks whole_linears = {AROUND_LAYERS_AND_STEPS, .grads_stay = grads_stay};
static const ManyRanks other_linears = {AROUND_LAYERS_AND_STEPS, LINEARS};
static const ManyRanks cut_linears = {
    AROUND_LAYERS_AND_STEPS,
    LINEARS,
    .tokens = tp_tokens,
    .own_tokens = tp_own,
    .gather_tokens = tp_all_gather,
    .sum_tokens = tp_reduce_scatter,
    .embed = tp_embed,
    .embed_backward = tp_embed_backward,
    .classify = tp_classify,
};

void model_set_many(Model* m) {
    int has_others = m->ranks->work || m->shape.lora.is_all || m->ranks->fp8.n > 0;
    m->many = m->tp ? &cut_linears : has_others ? &other_linears : &whole_linears;
}
