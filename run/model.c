// model.c - what the ranks of a tensor-parallel group tell each other: see model.h.
#include "run/model.h"

#include "run/run.h"

static size_t share_elems(const Model* m, const Row* row) { return (size_t)row->n * (size_t)m->shape.C; }

void* tp_own(const Model* m, void* x, const Row* row) {
    return (char*)x + (size_t)tp_rank(m) * share_elems(m, row) * dtype_bytes(m->dt);
}

void tp_all_gather(const Model* m, void* x, const Row* row) {
    if (!m->tp) return;
    comm_all_gather(m->tp, x, tp_own(m, x, row), share_elems(m, row), m->dt, m->s);
}

void tp_reduce_scatter(const Model* m, void* x, const Row* row) {
    if (!m->tp) return;
    comm_reduce_scatter(m->tp, tp_own(m, x, row), x, share_elems(m, row), m->dt, m->s);
}

void* tp_full(const Model* m, void* own, void* full, const Row* row) {
    if (!m->tp) return own;
    comm_all_gather(m->tp, full, own, share_elems(m, row), m->dt, m->s);
    return full;
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
