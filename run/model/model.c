// model.c - a model's weights, gradients and activations by their names, the table of a block, the update: see model.h.
#include "run/model/many_ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- a block

const Sublayer sublayers[N_SUBLAYERS] = {
    [ATTENTION] = {{LN1W, LN1B, RESIDUAL, LN1, LN1_MEAN, LN1_RSTD}, {QKVW, ATTPROJW}, {QKVB, ATTPROJB}, QKV, ATT},
    [MLP] = {{LN2W, LN2B, RESIDUAL2, LN2, LN2_MEAN, LN2_RSTD}, {FCW, FCPROJW}, {FCB, FCPROJB}, FC, FC_ACT},
};

const NormEntry final_norm = {LNFW, LNFB, RESIDUAL, LNF, LNF_MEAN, LNF_RSTD};

void* model_act(const Model* m, ActId id, int l) {
    if (id == D_RESIDUAL && m->shape.no_head) return model_act(m, RESIDUAL, m->shape.L);
    const ActPlace* place = &m->act_places[id * (m->shape.L + 1) + l];
    return place->exists ? m->acts + place->at + place->slot * (size_t)m->slot : NULL;
}

// ---- parameters

const char* const model_array_names[N_MODEL_ARRAYS] = {"parameters",    "parameters in use", "master weights",
                                                       "gradients",     "gradients in use",  "gradients as bf16",
                                                       "first moments", "second moments",    "frozen weights",
                                                       "frozen weights in use", "gradients of frozen norms"};

void model_logits(const Model* m, void* logits, int n, int N) {
    int C = m->shape.C;
    const char* lnf = (const char*)model_act(m, LNF, 0) + (size_t)n * (size_t)C * dtype_bytes(m->dt);
    const void* head = model_weights(m, shape_head(&m->shape), 0);
    m->k->matmul_forward(logits, NULL, lnf, head, NULL, N, C, m->shape.vocab_rows, m->dt, m->s);
}

// ---- memory

int model_widest(const Shape* shape) {
    int qkv = runs_sum(shape_runs(shape, QKV_OUTPUTS)), fc = runs_sum(shape_runs(shape, FC_OUTPUTS));
    return MAX(shape->C, MAX(qkv, fc));
}

KernelLimits model_limits(const Shape* shape, DType dt, const Config* config, int N) {
    // Generation may see the keys of a whole context.
    KernelLimits limits = {.N = MAX(N, shape->context), .spread = 1, .context = shape->context, .dt = dt};
    limits.C = MAX(MAX(shape->C, shape->heads * shape->HS), shape->hidden);
    limits.OC = MAX(model_widest(shape), shape->vocab_rows);
    limits.NH = shape->heads, limits.NKV = shape->kv_heads, limits.HS = shape->HS;
    limits.threads = config->threads;
    limits.attention = (AttentionKernels)config_choice(config, "--device attention");
    return limits;
}

ModelNeeds model_needs(const Kernels* k, const Shape* shape, DType dt, const LayerLayout* layers, const Config* config,
                       int training, int N) {
    size_t elems = shape_param_elems(shape), fp32 = training ? elems * sizeof(float) : 0;
    // A chunk of logits is large enough to fill the device and to make adding to dwte cheap beside the matmul.
    size_t rows = (size_t)k->full_matmul, logit_row = (size_t)shape->vocab_rows * dtype_bytes(dt);
    int chunk = training ? MIN(N, (int)MIN(rows, MAX((rows << 17) / logit_row, (size_t)64))) : 1;
    ModelNeeds needs = {.shape = *shape, .limits = model_limits(shape, dt, config, N), .libraries = k->libraries};
    needs.acts = (ActNeeds){.N = N, .classifier_N = chunk, .layer = layers, .training = training, .slots = 1, .tp = 1};
    needs.acts.sampling = !training || config->sample_every > 0 ? shape->context : 0;
    needs.acts.sampled = 1, needs.acts.dt = dt, needs.acts.tail = k->attention_tail;
    needs.arrays[MODEL_WEIGHTS] = elems * dtype_bytes(dt);
    needs.arrays[MODEL_MASTER] = dt != DT_F32 ? fp32 : 0;
    needs.arrays[MODEL_GRADS] = needs.arrays[MODEL_M] = needs.arrays[MODEL_V] = fp32;
    return needs;
}

enum { SUMS_BYTES = 64 };  // loss, squared norm, scale of the gradients

static size_t rope_elems(const Shape* s) {
    return shape_has(s, HAS_POSITIONS) ? 0 : 2 * (size_t)s->context * (size_t)(s->HS / 2);
}

void model_plan(MemoryPlan* plan, const Kernels* k, const ModelNeeds* needs) {
    for (int i = 0; i < N_MODEL_ARRAYS; i++) memory_add(plan, model_array_names[i], needs->arrays[i], ON_DEVICE);
    memory_add(plan, "activations", shape_activations(&needs->shape, &needs->acts, NULL), ON_DEVICE);
    memory_add(plan, "rotary positions", rope_elems(&needs->shape) * sizeof(float), ON_DEVICE);
    memory_add(plan, "sums", SUMS_BYTES, ON_DEVICE);
    memory_add(plan, "kernel scratch", k->workspace_bytes(&needs->limits), ON_DEVICE);
    memory_add(plan, "libraries", needs->libraries, BY_LIBRARIES);
}

static void fill_rope(Model* m) {
    size_t bytes = rope_elems(&m->shape) * sizeof(float);
    float* table = (float*)malloc(bytes);
    if (!table) die("no memory for rotary positions");
    shape_rope(&m->shape, table);
    m->k->upload(m->rope, table, bytes, m->s);  // has read the table on return
    free(table);
}

void model_carve(Model* m, const MemoryPlan* plan) {
    for (int i = 0; i < N_MODEL_ARRAYS; i++) m->array[i] = memory_of(plan, model_array_names[i]);
    m->acts = (char*)memory_of(plan, "activations");
    m->rope = (float*)memory_of(plan, "rotary positions");
    if (m->rope && !m->k->no_results) fill_rope(m);
    m->loss_sum = (double*)memory_of(plan, "sums");
    m->grad_norm2 = m->loss_sum + 1;
    m->grad_scale = (float*)(m->loss_sum + 2);
}

void model_place_param(Model* m, const ParamTensor* t, size_t at, void* weights, float* grads) {
    *param_place(m, t->id, t->layer) = (ParamPlace){
        t->rows, t->cols, weights ? (char*)weights + at * dtype_bytes(m->dt) : NULL, grads ? grads + at : NULL};
}

void model_place_params(Model* m) {
    m->param_places = (ParamPlace*)calloc((size_t)m->shape.L * N_PARAMS, sizeof *m->param_places);
    if (!m->param_places) die("no memory for the places of %d layers", m->shape.L);
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        ParamTensor t = shape_tensor(&m->shape, i);
        model_place_param(m, &t, t.offset, m->array[MODEL_WEIGHTS], (float*)m->array[MODEL_GRADS]);
    }
}

void model_place_activations(Model* m, const ModelNeeds* needs) {
    m->act_places = (ActPlace*)calloc((size_t)N_ACTS * ((size_t)m->shape.L + 1), sizeof *m->act_places);
    if (!m->act_places) die("no memory for the places of %d layers", m->shape.L);
    m->classifier_N = needs->acts.classifier_N, m->sampled_N = needs->acts.sampled;
    m->act_bytes = shape_activations(&needs->shape, &needs->acts, m->act_places);
}

// ---- the update

// Returns the seed of stochastic rounding of one tensor in one step; 0 rounds to nearest.
static uint64_t rounding_seed(const Model* m, const Config* config, const ParamTensor* tensor, int64_t t) {
    int layer = tensor->layer + (param_is_per_layer(tensor->id) ? m->shape.first_layer : 0);
    if (!strcmp(config->rounding, "nearest")) return 0;
    return hash64(hash64((uint64_t)config->seed ^ (uint64_t)t) ^
                  ((uint64_t)param_table[tensor->id].number << 32 | (uint64_t)layer)) |
           1;
}

void model_set_step(const Model* m, const Config* config, AdamW* a, const ParamTensor* tensor, double lr, int64_t t) {
    a->lr = (float)lr;
    a->beta1 = (float)config->beta1;
    a->beta2 = (float)config->beta2;
    a->eps = 1e-8f;
    a->weight_decay = param_table[tensor->id].decay ? (float)config->weight_decay : 0;
    a->grad_scale = m->grad_scale;
    a->t = (int)MIN(t, (int64_t)1 << 30);
    a->rounding = rounding_seed(m, config, tensor, t);
}

// Steps all tensors on one rank, which owns all: arrays of gradients and moments have the places of the weights.
static void step_all(const Model* m, const Config* config, double lr, int64_t t) {
    float *master = (float*)m->array[MODEL_MASTER], *first = (float*)m->array[MODEL_M],
          *second = (float*)m->array[MODEL_V];
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        ParamTensor tensor = shape_tensor(&m->shape, i);
        ParamPlace place = *param_place(m, tensor.id, tensor.layer);
        AdamW a = {.param = place.weights, .grad = place.grads, .n = tensor.elems};
        a.master = master ? master + tensor.offset : (float*)a.param;
        a.m = first + tensor.offset;
        a.v = second + tensor.offset;
        model_set_step(m, config, &a, &tensor, lr, t);
        m->k->adamw(&a, 1, m->dt, m->s);
    }
    m->k->clear(m->array[MODEL_GRADS], shape_param_elems(&m->shape) * sizeof(float), m->s);
}

void model_update(Model* m, const Config* config, double lr, int64_t t) {
    const double no_norm = INFINITY;  // the norm of a step that was left: not finite, so that no weight changes
    const float* grads = (const float*)m->array[MODEL_GRADS];
    timer_enter(m->timer, TIME_UPDATE, m->s);
    m->k->clear(m->grad_norm2, sizeof *m->grad_norm2, m->s);
    if (m->left) m->k->upload(m->grad_norm2, &no_norm, sizeof no_norm, m->s);
    if (m->many) m->many->reduce(m);
    else m->k->sum_of_squares(m->grad_norm2, grads, shape_param_elems(&m->shape), m->s);
    m->k->clip_scale(m->grad_scale, m->grad_norm2, (float)config->clip, m->s);
    if (m->many) m->many->step(m, config, lr, t);
    else step_all(m, config, lr, t);
}
