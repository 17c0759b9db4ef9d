// model.c - a model's weights, gradients and activations by their names, the table of a block, the update: see model.h.
#include "run/model/model.h"

#include <math.h>
#include <string.h>

// ---- a block

const Sublayer sublayers[N_SUBLAYERS] = {
    [ATTENTION] = {{LN1W, LN1B, RESIDUAL, LN1, LN1_MEAN, LN1_RSTD}, {QKVW, ATTPROJW}, {QKVB, ATTPROJB}, QKV, ATT},
    [MLP] = {{LN2W, LN2B, RESIDUAL2, LN2, LN2_MEAN, LN2_RSTD}, {FCW, FCPROJW}, {FCB, FCPROJB}, FC, FC_ACT},
};

const NormRow final_norm = {LNFW, LNFB, RESIDUAL, LNF, LNF_MEAN, LNF_RSTD};

// A rank with n units of everything.
static Shape shape_of_units(const Shape* shape, int n) {
    Shape s = *shape;
    s.heads = n * shape_queries(shape);
    s.kv_heads = s.hidden = n;
    return s;
}

Runs unit_rows(const Shape* shape, SublayerId id, int n) {
    Shape s = shape_of_units(shape, n);
    return shape_runs(&s, param_table[sublayers[id].weight[0]].rows);
}

int unit_columns(const Shape* shape, SublayerId id) {
    Shape s = shape_of_units(shape, 1);
    return shape_runs(&s, param_table[sublayers[id].weight[1]].cols).size[0];
}

int own_units(const Shape* shape, SublayerId id) { return id == ATTENTION ? shape->kv_heads : shape->hidden; }

size_t unit_elems(const Shape* shape, SublayerId id) {
    Shape s = shape_of_units(shape, 1);
    const Sublayer* sub = &sublayers[id];
    return shape_param(&s, sub->weight[0], 0).elems + shape_param(&s, sub->bias[0], 0).elems +
           shape_param(&s, sub->weight[1], 0).elems;
}

void* model_act(const Model* m, ActId id, int l) {
    if (id == D_RESIDUAL && m->shape.no_head) return model_act(m, RESIDUAL, m->shape.L);
    const ActPlace* place = &m->act_places[id * (m->shape.L + 1) + l];
    return place->exists ? m->acts + place->at + place->slot * (size_t)m->slot : NULL;
}

// ---- parameters

const char* const model_array_names[N_MODEL_ARRAYS] = {"parameters",    "parameters in use", "master weights",
                                                       "gradients",     "gradients in use",  "gradients as bf16",
                                                       "first moments", "second moments"};

static const ParamBlock* block_of(const Model* m, const ParamTensor* tensor) {
    return &m->block[shape_bucket_of(tensor, &m->shape)];
}

char* tensor_weights(const Model* m, const ParamTensor* tensor) {
    const ParamBlock* x = block_of(m, tensor);
    return x->weights + (tensor->offset - x->offset) * dtype_bytes(m->dt);
}

float* tensor_grads(const Model* m, const ParamTensor* tensor) {
    const ParamBlock* x = block_of(m, tensor);
    return x->grads + (tensor->offset - x->offset);
}

void* model_weights(const Model* m, ParamId id, int l) {
    ParamTensor tensor = shape_param(&m->shape, id, l);
    return tensor.elems ? tensor_weights(m, &tensor) : NULL;
}

float* model_grads(const Model* m, ParamId id, int l) {
    ParamTensor tensor = shape_param(&m->shape, id, l);
    return tensor.elems ? tensor_grads(m, &tensor) : NULL;
}

// ---- the update

// The seed of stochastic rounding of one tensor in one step; 0 rounds to nearest.
static uint64_t rounding_seed(const Model* m, const Config* config, const ParamTensor* tensor, int64_t t) {
    int layer = tensor->layer + (param_is_per_layer(tensor->id) ? m->shape.first_layer : 0);
    if (!strcmp(config->rounding, "nearest")) return 0;
    return hash64(hash64((uint64_t)config->seed ^ (uint64_t)t) ^
                  ((uint64_t)param_table[tensor->id].number << 32 | (uint64_t)layer)) |
           1;
}

void model_step_tensor(const Model* m, const Config* config, AdamW* a, const ParamTensor* tensor, double lr,
                       int64_t t) {
    a->lr = (float)lr;
    a->beta1 = (float)config->beta1;
    a->beta2 = (float)config->beta2;
    a->eps = 1e-8f;
    a->weight_decay = param_table[tensor->id].decay ? (float)config->weight_decay : 0;
    a->grad_scale = m->grad_scale;
    a->t = (int)MIN(t, (int64_t)1 << 30);
    a->rounding = rounding_seed(m, config, tensor, t);
    m->k->adamw(a, m->dt, m->s);
}

// Of one rank, which owns all: arrays of gradients and moments have the places of the weights.
static void step_all(const Model* m, const Config* config, double lr, int64_t t) {
    float *master = (float*)m->array[MODEL_MASTER], *first = (float*)m->array[MODEL_M],
          *second = (float*)m->array[MODEL_V];
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        ParamTensor tensor = shape_tensor(&m->shape, i);
        AdamW a;
        memset(&a, 0, sizeof a);
        a.param = tensor_weights(m, &tensor);
        a.master = master ? master + tensor.offset : (float*)a.param;
        a.m = first + tensor.offset;
        a.v = second + tensor.offset;
        a.grad = tensor_grads(m, &tensor);
        a.n = tensor.elems;
        model_step_tensor(m, config, &a, &tensor, lr, t);
    }
    m->k->clear(m->array[MODEL_GRADS], shape_param_elems(&m->shape) * sizeof(float), m->s);
}

void model_update(Model* m, const Config* config, double lr, int64_t t) {
    const double no_norm = INFINITY;  // of a step that was left
    const float* grads = (const float*)m->array[MODEL_GRADS];
    timer_enter(m->timer, TIME_UPDATE, m->s);
    if (m->many) m->many->reduce(m);
    m->k->clear(m->grad_norm2, sizeof *m->grad_norm2, m->s);
    if (m->left) m->k->upload(m->grad_norm2, &no_norm, sizeof no_norm, m->s);
    if (m->many) m->many->sum_norm(m);
    else m->k->sum_of_squares(m->grad_norm2, grads, shape_param_elems(&m->shape), m->s);
    m->k->clip_scale(m->grad_scale, m->grad_norm2, (float)config->clip, m->s);
    if (m->many) m->many->step(m, config, lr, t);
    else step_all(m, config, lr, t);
}
