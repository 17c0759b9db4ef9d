// model.c - the table of a block, and what the ranks of a tensor-parallel group tell each other: see model.h.
#include "run/model.h"

#include "run/run.h"

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
    const Activation* a = &m->act_table[id];
    if (id == D_RESIDUAL && m->shape.no_head) return model_act(m, RESIDUAL, m->shape.L);
    size_t copy = (a->copies > 1 ? (size_t)l : 0) + (a->slots > 1 ? (size_t)a->copies * (size_t)m->slot : 0);
    return a->copies ? m->acts + a->offset + a->copy_bytes * copy : NULL;
}

// ---- a tensor-parallel group

static size_t share_elems(const Model* m, const Row* row) { return (size_t)row->n * (size_t)m->shape.C; }

void* tp_own(const Model* m, void* x, const Row* row) {
    return (char*)x + (size_t)tp_rank(m) * share_elems(m, row) * dtype_bytes(m->dt);
}

void tp_all_gather(const Model* m, void* x, const Row* row) {
    if (!m->tp) return;
    comm_all_gather(m->tp, x, tp_own(m, x, row), share_elems(m, row), m->dt, m->s);
}

Request tp_begin_reduce_scatter(const Model* m, void* x, const Row* row) {
    if (!m->tp) return 0;
    return m->tp->table->begin_reduce_scatter(m->tp, tp_own(m, x, row), x, share_elems(m, row), m->dt, m->s);
}

void tp_end(const Model* m, Request request) {
    if (m->tp) m->tp->table->end(m->tp, request, m->s);
}

void tp_reduce_scatter(const Model* m, void* x, const Row* row) { tp_end(m, tp_begin_reduce_scatter(m, x, row)); }

void* tp_full(const Model* m, void* own, void* full, const Row* row) {
    if (!m->tp) return own;
    comm_all_gather(m->tp, full, own, share_elems(m, row), m->dt, m->s);
    return full;
}

// ---- a gather by parts

// Part i goes from each rank to the one i places behind it. The first message brings own rows to their place too.
static Request begin_part(const TpGather* g, Comm* c, int i, size_t bytes, Stream s) {
    int to = (c->rank + i) % c->size, from = (c->rank + c->size - i) % c->size;
    char* place = g->full + (size_t)c->rank * bytes;
    Transfer sends[] = {{to, g->own, bytes}, {c->rank, g->own, bytes}};
    Transfer receives[] = {{from, g->full + (size_t)from * bytes, bytes}, {c->rank, place, bytes}};
    int n = i == 1 && g->own != place ? 2 : 1;
    return c->table->begin_send_receive(c, sends, n, receives, n, s);
}

// Matmuls sum in the same order for any number of rows but one (kernels/cpu/product.h).
static int has_part_of_one_row(const Row* row) { return row->n <= 1 || row->N % row->n == 1; }

TpGather tp_gather_begin(const Model* m, void* own, void* full, const Row* row) {
    TpGather g = {.row = row, .own = (char*)own, .full = (char*)full, .parts = 1};
    size_t bytes = share_elems(m, row) * dtype_bytes(m->dt);
    if (!m->tp) g.full = g.own;
    else if (m->tp->overlap && !has_part_of_one_row(row)) g.parts = m->tp->size;
    else tp_full(m, own, full, row);
    for (int i = 1; i < g.parts; i++) g.arriving[i] = begin_part(&g, m->tp, i, bytes, m->s);
    return g;
}

int tp_gather_next(const Model* m, TpGather* g, TpRows* rows) {
    int i = g->part++, N = g->row->N, n = g->row->n;
    if (i >= g->parts) return 0;
    *rows = (TpRows){g->full, 0, N};
    if (g->parts == 1) return 1;
    int from = (m->tp->rank + g->parts - i) % g->parts;
    tp_end(m, g->arriving[i]);
    rows->x = i == 0 ? g->own : g->full + (size_t)from * share_elems(m, g->row) * dtype_bytes(m->dt);
    rows->first = MIN(from * n, N);
    rows->n = MIN(n, N - rows->first);
    return 1;
}

void tp_join(const Model* m, const ParamTensor* tensor, float* whole, float* part, float* others) {
    char err[ERR_BYTES];
    if (!m->tp || split_is_replicated(tensor->id)) {
        if (whole != part) memcpy(whole, part, tensor->elems * sizeof(float));
        return;
    }
    Comm* c = m->tp;
    for (int t = 0; t < c->size; t++) {
        Shape shape = split_shape(&m->whole, &m->split, t);
        ParamTensor theirs = shape_param(&shape, tensor->id, tensor->layer);
        float* value = t == c->rank ? part : others;
        if (c->table->broadcast_host(c, value, theirs.elems * sizeof(float), t, err, sizeof err)) die("%s", err);
        split_put(whole, value, &m->whole, &m->split, t, tensor->id);
    }
}

void tp_share_logits(const Model* m, float* logits) {
    char err[ERR_BYTES];
    for (int t = 0; t < tp_size(m) && m->tp; t++) {
        size_t rows = (size_t)(m->split.vocab_row[t + 1] - m->split.vocab_row[t]);
        if (m->tp->table->broadcast_host(m->tp, logits + m->split.vocab_row[t], rows * sizeof(float), t, err,
                                         sizeof err))
            die("%s", err);
    }
}

void model_set_timer(Model* m, Timer* timer) {
    m->timer = m->world->timer = m->comm->timer = timer;
    if (m->tp) m->tp->timer = timer;
    if (m->pipe.comm) m->pipe.comm->timer = timer;
}
