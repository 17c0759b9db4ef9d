// optimizer.c - AdamW on what this rank owns of the model, at the end of a step.
#include <math.h>

#include "run/model/mover.h"
#include "run/model/pipeline.h"
#include "run/run.h"
#include "run/model/work.h"
#include "run/model/tensor_parallel.h"

// The seed of stochastic rounding of one tensor in one step; 0 rounds to nearest.
static uint64_t rounding_seed(const Model* m, const Config* config, const ParamTensor* tensor, int64_t t) {
    if (!strcmp(config->rounding, "nearest")) return 0;
    return hash64(hash64((uint64_t)config->seed ^ (uint64_t)t) ^
                  ((uint64_t)param_table[tensor->id].number << 32 | (uint64_t)pipeline_layer(m, tensor))) |
           1;
}

// Where ranks have copies of key/value heads, those of an element have the same place and are frozen alike, so that
// they stay equal.
static void update_run(Model* m, const Config* config, const OwnedRun* run, double lr, int64_t t) {
    const Segment* segment = &run->segment;
    const ParamTensor* tensor = &segment->tensor;
    int has_copies = m->kv && (tensor->id == QKVW || tensor->id == QKVB);
    AdamW a;
    a.param = zero_owned_weights(m, segment);
    a.master = (float*)zero_owned(m, STATE_MASTER, segment);
    a.m = (float*)zero_owned(m, STATE_M, segment);
    a.v = (float*)zero_owned(m, STATE_V, segment);
    a.grad = zero_owned_grads(m, segment);
    a.n = segment->n;
    a.place = run->place;
    a.lr = (float)lr;
    a.beta1 = (float)config->beta1;
    a.beta2 = (float)config->beta2;
    a.eps = 1e-8f;
    a.weight_decay = param_table[tensor->id].decay ? (float)config->weight_decay : 0;
    a.grad_scale = m->grad_scale;
    a.t = (int)MIN(t, (int64_t)1 << 30);
    a.rounding = rounding_seed(m, config, tensor, t);
    a.freeze = work_freezes(m) && param_is_per_layer(tensor->id) && param_cut(tensor->id) >= 0 && !has_copies;
    m->k->adamw(&a, m->dt, m->s);
}

// Sums gradients and losses over all ranks, clips, steps what this rank owns and zeroes the gradients; t is the 1-based
// step. Loss and squared norm before clipping stay on the device. A norm that is not finite leaves the weights as they
// were. The host does not wait. Weights are whole again after zero_gather; or here, with m->next, in its layout.
void model_update(Model* m, const Config* config, double lr, int64_t t) {
    const double no_norm = INFINITY;  // of a step that this rank has left: see run/step/pace.c
    timer_enter(m->timer, TIME_UPDATE, m->s);
    if (m->work) work_end(m);
    zero_reduce(m);
    m->k->clear(m->grad_norm2, sizeof *m->grad_norm2, m->s);
    Model* owner = model_owner(m);
    zero_sum_of_squares(owner);
    if (m->left) m->k->upload(m->grad_norm2, &no_norm, sizeof no_norm, m->s);
    m->world->table->all_reduce(m->world, m->loss_sum, 2, DT_F64, m->s);  // grad_norm2 stands behind it
    m->k->clip_scale(m->grad_scale, m->grad_norm2, (float)config->clip, m->s);
    Moving leaving;
    if (m->next) zero_begin_gather(m->next, &leaving);
    for (int i = 0; i < shape_tensors(&owner->shape); i++) {
        OwnedRun runs[MOST_RUNS];
        Segment segment = zero_segment(owner, i);
        if (m->next) mover_advance(&leaving, shape_bucket_of(&segment.tensor, &owner->shape));
        for (int r = 0, n = tp_runs(runs, owner, &segment); r < n; r++) update_run(owner, config, &runs[r], lr, t);
    }
    if (m->next) mover_end(&leaving);
    zero_clear_grads(m);
}
