// zero.c - gathers weights, reduces gradients: see zero.h.
//
// Bytes that a rank sends in a step, P parameters, N ranks: gradients 4 P (N-1)/N (2 in bf16), weights 2 P (N-1)/N in
// bf16. Stage 2 sends the gradients of layers once a round, stage 3 also their weights, twice.
#include "run/zero.h"

#include "run/run.h"

// ---- where things are

static int last_bucket(const Model* m) { return m->shape.L + 1; }
static size_t piece_elems(const Model* m, int b) { return shape_bucket(&m->shape, b).elems / (size_t)m->shape.shards; }

// Bucket b in a window whose elements have `elem` bytes.
static char* bucket_in(const Model* m, const Window* w, int b, size_t elem) {
    if (w->whole) return w->whole + shape_bucket(&m->shape, b).offset * elem;
    return b == 0 ? w->embedding_head[0] : b == last_bucket(m) ? w->embedding_head[1] : w->layer[(b - 1) & 1];
}

static size_t place_in_bucket(const Model* m, const ParamTensor* tensor) {
    return tensor->offset - shape_bucket(&m->shape, shape_bucket_of(tensor, &m->shape)).offset;
}

static char* tensor_in(const Model* m, const Window* w, const ParamTensor* tensor, size_t elem) {
    return bucket_in(m, w, shape_bucket_of(tensor, &m->shape), elem) + place_in_bucket(m, tensor) * elem;
}

char* zero_weights(const Model* m, const ParamTensor* tensor) {
    return tensor_in(m, &m->zero.weights, tensor, dtype_bytes(m->dt));
}

float* zero_grads(const Model* m, const ParamTensor* tensor) {
    return (float*)tensor_in(m, &m->zero.grads, tensor, sizeof(float));
}

char* zero_owned_weights(const Model* m, const Segment* segment) {
    size_t elem = dtype_bytes(m->dt);
    if (m->zero.owned_weights) return m->zero.owned_weights + segment->at * elem;
    return zero_weights(m, &segment->tensor) + segment->first * elem;
}

float* zero_owned_grads(const Model* m, const Segment* segment) {
    if (m->zero.owned_grads) return m->zero.owned_grads + segment->at;
    return zero_grads(m, &segment->tensor) + segment->first;
}

char* zero_owned(const Model* m, StateKind kind, const Segment* segment) {
    const Zero* z = &m->zero;
    if (kind == STATE_MASTER && !z->master) return zero_owned_weights(m, segment);
    return (char*)((kind == STATE_MASTER ? z->master : kind == STATE_M ? z->m : z->v) + segment->at);
}

// The owned pieces of bucket b.
static char* owned_weights(const Model* m, int b) {
    size_t elem = dtype_bytes(m->dt);
    if (m->zero.owned_weights)
        return m->zero.owned_weights + shape_bucket(&m->shape, b).offset / (size_t)m->shape.shards * elem;
    return bucket_in(m, &m->zero.weights, b, elem) + (size_t)m->comm->rank * piece_elems(m, b) * elem;
}

static float* owned_grads(const Model* m, int b) {
    if (m->zero.owned_grads) return m->zero.owned_grads + shape_bucket(&m->shape, b).offset / (size_t)m->shape.shards;
    return (float*)bucket_in(m, &m->zero.grads, b, sizeof(float)) + (size_t)m->comm->rank * piece_elems(m, b);
}

// ---- weights

static void begin_gather(Model* m, int b) {
    Comm* c = m->comm;
    c->purpose = COMM_PARAMETERS;
    m->zero.arriving[b] = c->table->begin_all_gather(c, bucket_in(m, &m->zero.weights, b, dtype_bytes(m->dt)),
                                                     owned_weights(m, b), piece_elems(m, b), m->dt, m->s);
    c->purpose = COMM_OTHER;
}

static void end_gather(Model* m, int b) {
    if (m->zero.arriving[b]) m->comm->table->end(m->comm, m->zero.arriving[b], m->s);
    m->zero.arriving[b] = 0;
}

void zero_use_embedding_and_head(Model* m) {
    end_gather(m, 0);
    end_gather(m, last_bucket(m));
}

// Stage 3: layer l is in its place of the window, or on its way there.
static void want_layer(Model* m, int l) {
    if (l < 0 || l >= m->shape.L || m->zero.layer_in[l & 1] == l) return;
    begin_gather(m, 1 + l);
    m->zero.layer_in[l & 1] = l;
}

void zero_use_layer(Model* m, int l, int direction) {
    if (m->comm->size == 1) return;
    if (m->zero.stage == 3) want_layer(m, l);
    end_gather(m, 1 + l);
    if (m->zero.stage == 3 && direction) want_layer(m, l + direction);
}

void zero_gather(Model* m) {
    if (m->comm->size == 1) return;
    int only_embedding_head = m->zero.stage == 3;
    for (int b = 0; b <= last_bucket(m); b++)
        if (!only_embedding_head || b == 0 || b == last_bucket(m)) begin_gather(m, b);
    m->zero.layer_in[0] = m->zero.layer_in[1] = -1;
}

void zero_settle(Model* m) {
    for (int b = 0; b <= last_bucket(m); b++) end_gather(m, b);
}

// ---- gradients

// Gradients of what all ranks of the group have whole, in bucket b: sums over the group. Each rank has those of its own
// tokens, and biases of the projections are rank 0's alone.
// Runs of tensors that stand one after another are summed at once, with the gaps between them, which are 0.
static void sum_replicated(const Model* m, int b) {
    float* run = NULL;
    size_t n = 0;
    if (!m->tp) return;
    for (int i = 0; i <= shape_tensors(&m->shape); i++) {
        ParamTensor t = shape_tensor(&m->shape, MIN(i, shape_tensors(&m->shape) - 1));
        int is_end = i == shape_tensors(&m->shape),
            joins = !is_end && shape_bucket_of(&t, &m->shape) == b && split_is_replicated(t.id);
        float* grads = joins ? zero_grads(m, &t) : NULL;
        if (joins && !run) run = grads;
        if (joins) n = (size_t)(grads - run) + t.elems;
        if (joins || !run) continue;
        m->tp->table->all_reduce(m->tp, run, n, DT_F32, m->s);
        run = NULL;
    }
}

// Begins to sum bucket b over all ranks into `out`, the owned piece. Gradients that travel as bf16 go through
// grads_bf16[slot] and are widened by end_reduce.
static Request begin_reduce(Model* m, int b, float* out, int slot) {
    Comm* c = m->comm;
    size_t n = piece_elems(m, b);
    float* in = (float*)bucket_in(m, &m->zero.grads, b, sizeof(float));
    char* as_bf16 = m->zero.grads_bf16[slot];
    c->purpose = COMM_GRADIENTS;
    if (as_bf16) m->k->cast(as_bf16, DT_BF16, in, DT_F32, n * (size_t)c->size, m->s);
    Request request = as_bf16 ? c->table->begin_reduce_scatter(c, as_bf16 + (size_t)c->rank * n * sizeof(bf16), as_bf16,
                                                               n, DT_BF16, m->s)
                              : c->table->begin_reduce_scatter(c, out, in, n, DT_F32, m->s);
    c->purpose = COMM_OTHER;
    return request;
}

static void end_reduce(Model* m, int b, float* out, int slot, Request request) {
    size_t n = piece_elems(m, b);
    m->comm->table->end(m->comm, request, m->s);
    if (m->zero.grads_bf16[slot])
        m->k->cast(out, DT_F32, m->zero.grads_bf16[slot] + (size_t)m->comm->rank * n * sizeof(bf16), DT_BF16, n, m->s);
}

// Stages 2 and 3: adds what has come back for the layer whose gradients are in grads.layer[slot].
static void take_in(Model* m, int slot) {
    Zero* z = &m->zero;
    int b = 1 + z->layer_out[slot];
    if (b == 0) return;
    end_reduce(m, b, z->piece[slot], slot, z->leaving[slot]);
    m->k->add(owned_grads(m, b), owned_grads(m, b), z->piece[slot], piece_elems(m, b), DT_F32, m->s);
    z->layer_out[slot] = -1;
}

void zero_open_grads(Model* m, int l) {
    if (m->zero.grads.whole) return;
    take_in(m, l & 1);
    m->k->clear(m->zero.grads.layer[l & 1], shape_bucket(&m->shape, 1 + l).elems * sizeof(float), m->s);
}

void zero_close_grads(Model* m, int l) {
    Zero* z = &m->zero;
    if (z->grads.whole) return;
    sum_replicated(m, 1 + l);
    z->leaving[l & 1] = begin_reduce(m, 1 + l, z->piece[l & 1], l & 1);
    z->layer_out[l & 1] = l;
}

void zero_end_round(Model* m) {
    if (m->zero.grads.whole) return;
    take_in(m, 0);
    take_in(m, 1);
}

// Stages 2 and 3 have the embedding_head left, whose gradients are complete only now.
void zero_reduce(Model* m) {
    for (int b = last_bucket(m); b >= 0; b--) {
        if (!m->zero.grads.whole && b != 0 && b != last_bucket(m)) continue;
        sum_replicated(m, b);
        if (m->comm->size == 1) continue;
        end_reduce(m, b, owned_grads(m, b), 0, begin_reduce(m, b, owned_grads(m, b), 0));
    }
}

// Of what all ranks of a tensor-parallel group have, the first one's count alone.
static void sum_of_own_squares(Model* m) {
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        Segment segment = shape_segment(&m->shape, i, m->comm->rank);
        if (segment.n && (tp_rank(m) == 0 || !split_is_replicated(segment.tensor.id)))
            m->k->sum_of_squares(m->grad_norm2, zero_owned_grads(m, &segment), segment.n, m->s);
    }
}

void zero_sum_of_squares(Model* m) {
    if (m->tp) {
        sum_of_own_squares(m);
        return;
    }
    size_t owned = shape_param_elems(&m->shape) / (size_t)m->shape.shards;
    if (m->zero.owned_grads || m->shape.shards == 1) {
        m->k->sum_of_squares(m->grad_norm2, owned_grads(m, 0), owned, m->s);
        return;
    }
    for (int b = 0; b <= last_bucket(m); b++)
        m->k->sum_of_squares(m->grad_norm2, owned_grads(m, b), piece_elems(m, b), m->s);
}

void zero_clear_grads(Model* m) {
    Zero* z = &m->zero;
    size_t elems = shape_param_elems(&m->shape);
    if (z->grads.whole) {
        m->k->clear(z->grads.whole, elems * sizeof(float), m->s);
        return;
    }
    m->k->clear(z->owned_grads, elems / (size_t)m->shape.shards * sizeof(float), m->s);
    m->k->clear(z->grads.embedding_head[0], shape_bucket(&m->shape, 0).elems * sizeof(float), m->s);
    m->k->clear(z->grads.embedding_head[1], shape_bucket(&m->shape, last_bucket(m)).elems * sizeof(float), m->s);
}

// ---- whole tensors, for files

void zero_fetch_weights(Model* m, const ParamTensor* tensor, float* value) {
    int b = shape_bucket_of(tensor, &m->shape);
    if (b == 0 || b == last_bucket(m)) zero_use_embedding_and_head(m);
    else zero_use_layer(m, tensor->layer, 0);
    m->k->download(value, zero_weights(m, tensor), tensor->elems * dtype_bytes(m->dt), m->s);
    if (m->dt == DT_BF16) bf16_widen_in_place(value, tensor->elems);
}

// The piece is gathered back to where the whole bucket was summed.
void zero_fetch_grads(Model* m, const ParamTensor* tensor, float* value) {
    int b = shape_bucket_of(tensor, &m->shape);
    if (m->comm->size > 1)
        comm_all_gather(m->comm, bucket_in(m, &m->zero.grads, b, sizeof(float)), owned_grads(m, b), piece_elems(m, b),
                        DT_F32, m->s);
    m->k->download(value, zero_grads(m, tensor), tensor->elems * sizeof(float), m->s);
}

// State goes through where gradients are summed, which is free between steps.
void zero_gather_state(Model* m, StateKind kind, int b) {
    Zero* z = &m->zero;
    float* all = (float*)bucket_in(m, &z->grads, b, sizeof(float));
    size_t n = piece_elems(m, b), at = shape_bucket(&m->shape, b).offset / (size_t)m->shape.shards;
    const float* owned = (kind == STATE_MASTER ? z->master : kind == STATE_M ? z->m : z->v) + at;
    m->comm->purpose = COMM_STATE;
    if (m->comm->size > 1) comm_all_gather(m->comm, all, owned, n, DT_F32, m->s);
    else m->k->cast(all, DT_F32, owned, DT_F32, n, m->s);
    m->comm->purpose = COMM_OTHER;
}

void zero_fetch_state(Model* m, const ParamTensor* tensor, float* value) {
    m->k->download(value, zero_grads(m, tensor), tensor->elems * sizeof(float), m->s);
}

void zero_put_weights(Model* m, const ParamTensor* tensor, float* value) {
    size_t elem = dtype_bytes(m->dt);
    Segment own = {*tensor, 0, tensor->elems, 0};
    if (m->zero.owned_weights) own = shape_segment(&m->shape, shape_index(&m->shape, tensor), m->comm->rank);
    if (m->dt == DT_BF16) bf16_narrow_in_place(value, tensor->elems);
    m->k->upload(zero_owned_weights(m, &own), (char*)value + own.first * elem, own.n * elem, m->s);
    m->k->synchronize(m->s);
}
