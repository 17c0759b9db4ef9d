// lora.c - see lora.h.
#include "run/model/lora.h"

#include <stdlib.h>

#include "kernels/rank_ops.h"

static ParamId A_of(LinearId id) { return (ParamId)((int)QKV_LORA_A + 2 * (int)id); }

// ---- the frozen model

// A view of the frozen model of the ranks of m.
typedef struct Frozen {
    Model model;
    ModelRanks ranks;
} Frozen;

static Frozen* view_frozen(const Model* m) {
    Frozen* f = (Frozen*)malloc(sizeof *f);
    if (!f) die("no memory for frozen weights");
    f->model = *m, f->ranks = *m->ranks;
    model_set_ranks(&f->model, &f->ranks);
    f->model.shape = shape_base(&m->shape), f->model.whole = shape_base(&m->whole);
    memset(f->model.array, 0, sizeof f->model.array);
    f->ranks.zero.stage = zero_most(&f->model);
    return f;
}

void lora_sizes(const Model* m, int training, size_t bytes[N_MODEL_ARRAYS]) {
    size_t of_base[N_MODEL_ARRAYS];
    if (!m->shape.lora.is_all) return;
    Frozen* f = view_frozen(m);
    zero_sizes(&f->model, 0, of_base);
    free(f);
    bytes[MODEL_FROZEN] = of_base[MODEL_WEIGHTS], bytes[MODEL_FROZEN_IN_USE] = of_base[MODEL_WEIGHTS_IN_USE];
    bytes[MODEL_UNREAD] = training ? (size_t)MAX(m->shape.C, m->shape.HS) * sizeof(float) : 0;
}

// Backward passes of norms add to gradients of weights, which nobody reads here.
void lora_open(Model* m) {
    if (!m->shape.lora.is_all) return;
    Frozen* f = view_frozen(m);
    f->model.array[MODEL_WEIGHTS] = m->array[MODEL_FROZEN];
    f->model.array[MODEL_WEIGHTS_IN_USE] = m->array[MODEL_FROZEN_IN_USE];
    zero_open(&f->model);
    for (int i = 0; i < m->shape.L * N_PARAMS; i++) {
        ParamId id = (ParamId)(i % N_PARAMS);
        if (param_is_adapter(id)) continue;
        m->param_places[i] = f->model.param_places[i];
        int is_norm = !param_is_matrix(id) && !(param_table[id].needs & (HAS_QKV_BIAS | HAS_LINEAR_BIAS));
        if (is_norm && m->param_places[i].cols > 0) m->param_places[i].grads = (float*)m->array[MODEL_UNREAD];
    }
    m->ranks->frozen = &f->model;
}

void lora_close(Model* m) {
    if (!m->ranks->frozen) return;
    zero_close(m->ranks->frozen);
    free(m->ranks->frozen);  // the first member of a Frozen
}

// ---- the adapter of a linear

// An adapter has `parts` of `r` rows of A, which serve so many outputs each.
typedef struct Adapter {
    const ParamPlace *A, *B;
    int r, parts, outputs[MOST_RUNS];
} Adapter;

// Finds an adapter as this rank has it; 0: there is none.
static int find_adapter(Adapter* x, const Model* m, LinearId id, int l) {
    int r = m->shape.lora.rank;
    const ParamPlace* A = param_place(m, A_of(id), l);
    if (r == 0 || A->rows == 0) return 0;
    *x = (Adapter){A, A + 1, r, A->rows / r, {0}};
    int OC = x->B->rows, kv = shape_units(&m->shape, l).kv_heads * m->shape.HS;
    for (int i = 0; i < x->parts; i++) x->outputs[i] = OC / x->parts;
    if (x->parts == 3) x->outputs[0] = OC - 2 * kv, x->outputs[1] = x->outputs[2] = kv;
    return 1;
}

static char* at_elem(const Model* m, const void* p, size_t elems) { return (char*)p + elems * dtype_bytes(m->dt); }

// Runs a matmul of each part of B: of rows y (N,OC) and u (N, rows of A).
static void each_part(const Model* m, const Adapter* x, MatmulKind kind, void* y, void* u, int N) {
    int OC = x->B->rows, rows = x->A->rows;
    for (int i = 0, first = 0; i < x->parts; first += x->outputs[i++]) {
        StridedMatmul p = {
            kind, kind == MATMUL_FORWARD, N, x->r, x->outputs[i], (float)m->shape.lora.scale, NULL, NULL, NULL, 0, 0,
            x->r};
        char *its_y = at_elem(m, y, (size_t)first), *its_u = at_elem(m, u, (size_t)(i * x->r));
        size_t at = (size_t)first * (size_t)x->r;
        if (p.OC == 0 && kind != MATMUL_INPUT) continue;
        p.b = at_elem(m, x->B->weights, at);
        if (kind == MATMUL_FORWARD) p.out = its_y, p.ldo = OC, p.a = its_u, p.lda = rows;
        else p.a = its_y, p.lda = OC;
        if (kind == MATMUL_INPUT) p.out = its_u, p.ldo = rows;
        if (kind == MATMUL_WEIGHT) p.out = x->B->grads + at, p.ldo = x->r, p.b = its_u, p.ldb = rows;
        m->k->ranks->strided_matmul(&p, m->dt, m->s);
    }
}

// Returns u = x A^T.
static void* project(const Model* m, const Adapter* x, int l, const void* in, int N) {
    void* u = model_act(m, LORA_X, l);
    m->k->matmul_forward(u, NULL, in, x->A->weights, NULL, N, x->A->cols, x->A->rows, m->dt, m->s);
    return u;
}

// Returns d_u = s d_y B.
static void* project_back(const Model* m, const Adapter* x, int l, const void* dout, int N) {
    void* du = model_act(m, D_LORA_X, l);
    each_part(m, x, MATMUL_INPUT, (void*)dout, du, N);
    return du;
}

void lora_forward(const Model* m, LinearId id, int l, void* out, const void* x, int N) {
    Adapter a;
    if (N > 0 && find_adapter(&a, m, id, l)) each_part(m, &a, MATMUL_FORWARD, out, project(m, &a, l, x, N), N);
}

void lora_backward_input(const Model* m, LinearId id, int l, void* dx, const void* dout, int N) {
    Adapter a;
    if (N == 0 || !find_adapter(&a, m, id, l)) return;
    const void* du = project_back(m, &a, l, dout, N);
    int rows = a.A->rows, K = a.A->cols;
    StridedMatmul p = {MATMUL_INPUT, 1, N, K, rows, 1, dx, du, a.A->weights, K, rows, K};
    m->k->ranks->strided_matmul(&p, m->dt, m->s);
}

// What the passes before have left of u and d_u is another linear's by now; both are small beside x and d_y.
void lora_backward_weight(const Model* m, LinearId id, int l, const void* dout, const void* x, int N) {
    Adapter a;
    if (N == 0 || !find_adapter(&a, m, id, l)) return;
    const void* du = project_back(m, &a, l, dout, N);
    m->k->matmul_backward_weight(a.A->grads, NULL, du, x, N, a.A->cols, a.A->rows, m->dt, m->s);
    each_part(m, &a, MATMUL_WEIGHT, (void*)dout, project(m, &a, l, x, N), N);
}

// ---- a whole model

ParamId lora_of(const Shape* of, ParamId matrix) {
    for (int i = 0; i < N_LINEARS; i++)
        if (sublayers[sublayer_of((LinearId)i)].weight[i % 2] == matrix && shape_param(of, A_of((LinearId)i), 0).elems)
            return A_of((LinearId)i);
    return N_PARAMS;
}

void lora_merge(float* value, const ParamTensor* t, const Shape* of, const float* A, const float* B) {
    ParamId id = lora_of(of, t->id);
    int r = of->lora.rank;
    Runs outputs = shape_runs(of, param_table[id + 1].rows), inner = shape_runs(of, param_table[id].rows);
    size_t cols = (size_t)t->cols;
    for (int part = 0; part < inner.n; part++, A += (size_t)r * cols)
        for (int o = 0; o < (inner.n > 1 ? outputs.size[part] : t->rows); o++, value += cols, B += r)
            for (int j = 0; j < r; j++)
                for (size_t k = 0; k < cols; k++) value[k] += (float)(of->lora.scale * B[j]) * A[(size_t)j * cols + k];
}
