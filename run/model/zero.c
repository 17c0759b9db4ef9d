// zero.c - gathers weights, reduces gradients: see zero.h.
//
// Bytes that a rank sends in a step, P parameters, N ranks: gradients 4 P (N-1)/N (2 in bf16), weights 2 P (N-1)/N in
// bf16. Stage 2 sends the gradients of layers once a round, stage 3 also their weights, twice.
#include "run/model/zero.h"
#include "plan/base/bf16_in_place.h"
#include "run/model/tensor_parallel.h"

#include <stdlib.h>

#include "run/model/mover.h"

// ---- memory

static int last_bucket(const Model* m) { return m->shape.L + 1; }

static int is_layer(const Model* m, int b) { return b > 0 && b < last_bucket(m); }

int zero_stage_of(const Model* m, int b) {
    int shards = is_layer(m, b) ? shape_units(&m->shape, b - 1).shards : m->shape.shards;
    if (shards == 1 || m->ranks->zero.holds != ZERO_BOTH) return 1;
    return is_layer(m, b) ? layer_row(m, b - 1)->zero : m->ranks->layout.stage[m->stage].zero;
}

int zero_most(const Model* m) {
    int most = 1;
    for (int b = 0; b <= last_bucket(m); b++) most = MAX(most, zero_stage_of(m, b));
    return most;
}

// What lies in memory for what is in use of buckets of a stage from `least` on: the embedding's, the two places of
// layers, the head's; elements.
typedef struct Window {
    size_t first, layer, last, piece;  // piece: of a layer
} Window;

static Window window_of(const Model* m, int least) {
    Window w = {0, 0, 0, 0};
    for (int b = 0; b <= last_bucket(m); b++) {
        Bucket x = shape_bucket(&m->shape, b);
        if (zero_stage_of(m, b) < least) continue;
        if (b == 0) w.first = x.elems;
        else if (!is_layer(m, b)) w.last = x.elems;
        else w.layer = MAX(w.layer, x.elems), w.piece = MAX(w.piece, x.piece);
    }
    return w;
}

static size_t window_elems(const Window* w) { return w->first + 2 * w->layer + w->last; }

// Elements that lie in memory all the time of buckets of stages below `least`, whole, and of others, owned.
static size_t resident_elems(const Model* m, int least) {
    size_t elems = 0;
    for (int b = 0; b <= last_bucket(m); b++) {
        Bucket x = shape_bucket(&m->shape, b);
        elems += zero_stage_of(m, b) < least ? x.elems : x.piece;
    }
    return elems;
}

static size_t largest_bucket(const Model* m) {
    size_t most = 0;
    for (int b = 0; b <= last_bucket(m); b++) most = MAX(most, shape_bucket(&m->shape, b).elems);
    return most;
}

static int is_divided(const Model* m) {
    int most = m->shape.shards;
    for (int l = 0; l < m->shape.L; l++) most = MAX(most, shape_units(&m->shape, l).shards);
    return most > 1;
}

void zero_sizes(const Model* m, int training, size_t bytes[N_MODEL_ARRAYS]) {
    size_t owned = resident_elems(m, 0), elem = dtype_bytes(m->dt), fp32 = sizeof(float);
    Window weights = window_of(m, 3), grads = window_of(m, 2);
    int as_bf16 = is_divided(m) && m->ranks->zero.grad_dtype == DT_BF16;
    memset(bytes, 0, N_MODEL_ARRAYS * sizeof *bytes);
    if (m->ranks->owner) {
        size_t elems = shape_param_elems(&m->shape);
        zero_sizes(m->ranks->owner, training, bytes);
        bytes[MODEL_WEIGHTS_IN_USE] = elems * elem;
        bytes[MODEL_GRADS_IN_USE] = training ? elems * fp32 : 0;
        return;
    }
    int owns = m->ranks->zero.holds == ZERO_OWNED;
    bytes[MODEL_WEIGHTS] = (owns ? owned : resident_elems(m, 3)) * elem;
    bytes[MODEL_WEIGHTS_IN_USE] = window_elems(&weights) * elem;
    if (!training) return;
    bytes[MODEL_MASTER] = has_master(m) ? owned * fp32 : 0;
    bytes[MODEL_GRADS] = (owns ? owned : resident_elems(m, 2)) * fp32;
    bytes[MODEL_GRADS_IN_USE] = (window_elems(&grads) + 2 * grads.piece) * fp32;
    bytes[MODEL_GRADS_BF16] = as_bf16 ? 2 * largest_bucket(m) * sizeof(bf16) : 0;
    bytes[MODEL_M] = bytes[MODEL_V] = owned * fp32;
}

// Bucket b, where `resident` elements lie before it in `all`: whole, or this rank's piece of it and the whole in
// `in_use`. Elements have `elem` bytes.
static char* place(const Model* m, int b, char* all, size_t resident, char* in_use, const Window* w, int at,
                   size_t elem, char** owned) {
    const ZeroBucket* x = &m->ranks->zero.bucket[b];
    size_t rank = x->piece < x->elems ? (size_t)x->comm->rank : 0;
    char* whole = all + resident * elem;
    *owned = in_use ? whole : whole + rank * x->piece * elem;
    if (!in_use) return whole;
    return in_use + (b == 0 ? 0 : is_layer(m, b) ? w->first + (size_t)at * w->layer : w->first + 2 * w->layer) * elem;
}

// Elements that lie before those of a bucket in arrays of weights and of gradients; layers so far with a place in
// windows.
typedef struct Before {
    size_t weights, grads;
    int gathered, reduced;
} Before;

static void open_bucket(const Model* m, int b, Before* before) {
    const Zero* z = &m->ranks->zero;
    ZeroBucket* x = &z->bucket[b];
    Bucket in_block = shape_bucket(&m->shape, b);
    Window weights = window_of(m, 3), grads = window_of(m, 2);
    char *owned, *grads_in_use = (char*)m->array[MODEL_GRADS_IN_USE];
    ParamBlock* block = &m->block[b];
    block->offset = in_block.offset, x->elems = in_block.elems, x->piece = in_block.piece, x->at = in_block.at;
    x->comm = layer_data(m, b - 1);
    x->stage = zero_stage_of(m, b);
    if (z->holds != ZERO_BOTH) {
        int owns = z->holds == ZERO_OWNED;
        size_t at = owns ? x->at : block->offset;
        char* weights = (char*)m->array[owns ? MODEL_WEIGHTS : MODEL_WEIGHTS_IN_USE] + at * dtype_bytes(m->dt);
        float* grads = (float*)m->array[owns ? MODEL_GRADS : MODEL_GRADS_IN_USE];
        *(owns ? &x->owned_weights : &block->weights) = weights;
        if (grads) *(owns ? &x->owned_grads : &block->grads) = grads + at;
        return;
    }
    x->weights_place = before->gathered & 1;
    x->place = before->reduced & 1;
    before->gathered += is_layer(m, b) && x->stage == 3;
    before->reduced += is_layer(m, b) && x->stage > 1;
    block->weights = place(m, b, (char*)m->array[MODEL_WEIGHTS], before->weights,
                           x->stage == 3 ? (char*)m->array[MODEL_WEIGHTS_IN_USE] : NULL, &weights, x->weights_place,
                           dtype_bytes(m->dt), &x->owned_weights);
    before->weights += x->stage == 3 ? x->piece : x->elems;
    if (!m->array[MODEL_GRADS]) return;
    block->grads = (float*)place(m, b, (char*)m->array[MODEL_GRADS], before->grads, x->stage > 1 ? grads_in_use : NULL,
                                 &grads, x->place, sizeof(float), &owned);
    x->owned_grads = (float*)owned;
    before->grads += x->stage > 1 ? x->piece : x->elems;
    if (is_layer(m, b) && x->stage > 1)
        x->reduced = (float*)grads_in_use + window_elems(&grads) + (size_t)x->place * grads.piece;
}

void zero_open(Model* m) {
    Zero* z = &m->ranks->zero;
    Before before = {0, 0, 0, 0};
    z->bucket = (ZeroBucket*)calloc((size_t)m->shape.L + 2, sizeof *z->bucket);
    model_place_params(m);
    if (!z->bucket) die("no memory for %d buckets", m->shape.L + 2);
    for (int b = 0; b <= last_bucket(m); b++) open_bucket(m, b, &before);
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        ParamTensor t = shape_tensor(&m->shape, i);
        ZeroBucket* x = &z->bucket[shape_bucket_of(&t, &m->shape)];
        if (x->n_tensors++ == 0) x->first_tensor = i;
    }
    for (int i = 0; i < 2; i++) z->layer_in[i] = -1;
}

void zero_close(Model* m) {
    free(m->ranks->zero.bucket);
    free(m->block);
}

// ---- where things are

static ZeroBucket* bucket_of(const Model* m, const ParamTensor* tensor) {
    return &m->ranks->zero.bucket[shape_bucket_of(tensor, &m->shape)];
}

Segment zero_segment(const Model* m, int i) {
    ParamTensor tensor = shape_tensor(&m->shape, i);
    const ZeroBucket* x = bucket_of(m, &tensor);
    return shape_segment(&m->shape, i, x->piece < x->elems ? x->comm->rank : 0);
}

char* zero_owned_weights(const Model* m, const Segment* segment) {
    const ZeroBucket* x = bucket_of(m, &segment->tensor);
    return x->owned_weights + (segment->at - x->at) * dtype_bytes(m->dt);
}

float* zero_owned_grads(const Model* m, const Segment* segment) {
    const ZeroBucket* x = bucket_of(m, &segment->tensor);
    return x->owned_grads + (segment->at - x->at);
}

ModelArray zero_array_of(StateKind kind) {
    return kind == STATE_MASTER ? MODEL_MASTER : kind == STATE_M ? MODEL_M : MODEL_V;
}

static float* state(const Model* m, StateKind kind) { return (float*)m->array[zero_array_of(kind)]; }

char* zero_owned(const Model* m, StateKind kind, const Segment* segment) {
    if (kind == STATE_MASTER && !state(m, kind)) return zero_owned_weights(m, segment);
    return (char*)(state(m, kind) + segment->at);
}

// ---- weights

static void begin_gather(Model* m, int b) {
    ZeroBucket* x = &m->ranks->zero.bucket[b];
    Comm* c = x->comm;
    if (c->size == 1) return;
    c->purpose = COMM_PARAMETERS;
    x->arriving = c->table->begin_all_gather(c, m->block[b].weights, x->owned_weights, x->piece, m->dt, m->s);
    c->purpose = COMM_OTHER;
}

static void end_gather(Model* m, int b) {
    ZeroBucket* x = &m->ranks->zero.bucket[b];
    if (x->arriving) x->comm->table->end(x->comm, x->arriving, m->s);
    x->arriving = 0;
}

// Stage 3: layer l is in its place of the window, or on its way there.
static void want_layer(Model* m, int l) {
    Zero* z = &m->ranks->zero;
    const ZeroBucket* x = &z->bucket[1 + l];
    if (z->layer_in[x->weights_place] == l) return;
    begin_gather(m, 1 + l);
    z->layer_in[x->weights_place] = l;
}

static int is_gathered(const Model* m, int l) { return is_layer(m, 1 + l) && m->ranks->zero.bucket[1 + l].stage == 3; }

void zero_use_layer(Model* m, int l, int direction) {
    if (is_gathered(m, l)) want_layer(m, l);
    end_gather(m, 1 + l);
    if (m->ranks->zero.stage < 3 || !direction) return;
    for (l += direction; l >= 0 && l < m->shape.L && !is_gathered(m, l);) l += direction;
    if (l >= 0 && l < m->shape.L) want_layer(m, l);
}

// Between the whole model as its owners have it and what the ranks of this strategy compute with.
static void begin_move(Model* m, const Mover* mover, Moving* x) {
    int sums = mover->kind == RESHARD_SUM;
    char *in_use = (char*)m->array[sums ? MODEL_GRADS_IN_USE : MODEL_WEIGHTS_IN_USE],
         *owned = (char*)m->array[sums ? MODEL_GRADS : MODEL_WEIGHTS];
    mover_begin(x, mover, m->world, &m->ranks->owner->shape, sums ? owned : in_use, sums ? in_use : owned,
                m->ranks->moving, sums ? DT_F32 : m->dt, m->k, m->s);
}

static void move(Model* m, const Mover* mover) {
    Moving x;
    begin_move(m, mover, &x);
    mover_end(&x);
}

void zero_begin_gather(Model* m, Moving* x) { begin_move(m, m->ranks->gather, x); }

void zero_gather(Model* m) {
    if (m->ranks->owner) move(m, m->ranks->gather);
    if (m->ranks->owner) return;
    for (int b = 0; b <= last_bucket(m); b++)
        if (!is_layer(m, b) || m->ranks->zero.bucket[b].stage < 3) begin_gather(m, b);
    m->ranks->zero.layer_in[0] = m->ranks->zero.layer_in[1] = -1;
}

void zero_settle(Model* m) {
    for (int b = 0; b <= last_bucket(m); b++) end_gather(m, b);
}

// ---- gradients

// Of a tensor that is cut, the elements before those of key/value heads that other ranks have too: all usually.
static size_t unshared_elems(const Model* m, const ParamTensor* t) {
    int queries = m->shape.heads * m->shape.HS;
    if (!m->ranks->kv || (t->id != QKVW && t->id != QKVB)) return t->elems;
    return (size_t)queries * (t->rows > 1 ? (size_t)t->cols : 1);
}

// Gradients of what all ranks of the group have whole, in bucket b: sums over the group. Each rank has those of its own
// tokens, and biases of the projections are rank 0's alone. Tensors that stand one after another are summed at once,
// with the gaps between them, which are 0.
static void sum_replicated(const Model* m, const ZeroBucket* x) {
    const LayerGroup* g = layer_group(m, (int)(x - m->ranks->zero.bucket) - 1);
    Comm* cut = g ? g->cut : m->tp;
    float* run = NULL;
    size_t n = 0;
    if (!cut) return;
    cut->purpose = COMM_GRADIENTS;
    if (m->ranks->kv) m->ranks->kv->purpose = COMM_GRADIENTS;
    for (int i = 0; i <= x->n_tensors; i++) {
        ParamTensor t = shape_tensor(&m->shape, x->first_tensor + MIN(i, x->n_tensors - 1));
        int joins = i < x->n_tensors && split_is_replicated(t.id);
        float* grads = joins ? tensor_grads(m, &t) : NULL;
        if (joins && !run) run = grads;
        if (joins) n = (size_t)(grads - run) + t.elems;
        if (joins || !run) continue;
        cut->table->all_reduce(cut, run, n, DT_F32, m->s);
        run = NULL;
    }
    for (int i = 0; i < x->n_tensors && m->ranks->kv; i++) {
        ParamTensor t = shape_tensor(&m->shape, x->first_tensor + i);
        size_t own = unshared_elems(m, &t);
        if (own < t.elems)
            m->ranks->kv->table->all_reduce(m->ranks->kv, tensor_grads(m, &t) + own, t.elems - own, DT_F32, m->s);
    }
    cut->purpose = COMM_TENSOR;
    if (m->ranks->kv) m->ranks->kv->purpose = COMM_TENSOR;
}

// The bf16 copy of an even or an odd bucket; NULL where gradients travel as fp32.
static char* bf16_copy(const Model* m, int b) {
    char* copies = (char*)m->array[MODEL_GRADS_BF16];
    return copies ? copies + (size_t)(b & 1) * largest_bucket(m) * sizeof(bf16) : NULL;
}

// Where the sums of the owned piece come back to.
static float* destination(const ZeroBucket* x) { return x->reduced ? x->reduced : x->owned_grads; }

// A bf16 copy is widened here, the layers of stages 2 and 3 are added to those of earlier rounds.
static void end_reduce(Model* m, int b) {
    ZeroBucket* x = &m->ranks->zero.bucket[b];
    char* copy = bf16_copy(m, b);
    float* out = destination(x);
    if (!x->is_leaving) return;
    x->comm->table->end(x->comm, x->leaving, m->s);
    if (copy)
        m->k->ranks->cast(out, DT_F32, copy + (size_t)x->comm->rank * x->piece * sizeof(bf16), DT_BF16, x->piece, m->s);
    if (x->reduced) m->k->add(x->owned_grads, x->owned_grads, x->reduced, x->piece, DT_F32, m->s);
    x->is_leaving = 0;
}

// Nothing travels any more of what shares b's place in a window, or its bf16 copy.
static void empty_place(Model* m, int b) {
    const ZeroBucket* x = m->ranks->zero.bucket;
    for (int other = 0; other <= last_bucket(m); other++)
        if ((other - b) % 2 == 0 || (x[other].reduced && x[other].place == x[b].place)) end_reduce(m, other);
}

// Where the first and the last stage of a pipeline have wte: its gradients become the sum of both.
static void sum_tied(Model* m) {
    Comm* c = m->ranks->pipe.ends;
    ParamTensor wte = shape_param(&m->shape, WTE, 0);
    if (c) c->table->all_reduce(c, tensor_grads(m, &wte), wte.elems, DT_F32, m->s);
}

// Begins to sum a bucket over all ranks, whose gradients are complete.
static void begin_reduce(Model* m, int b) {
    ZeroBucket* x = &m->ranks->zero.bucket[b];
    Comm* c = x->comm;
    char* copy = bf16_copy(m, b);
    float* grads = m->block[b].grads;
    size_t own_bytes = (size_t)c->rank * x->piece * sizeof(bf16);
    if (b == 0) sum_tied(m);
    if (x->n_tensors) sum_replicated(m, x);
    if (c->size == 1) return;
    if (copy) {
        empty_place(m, b);
        m->k->ranks->cast(copy, DT_BF16, grads, DT_F32, x->elems, m->s);
    }
    c->purpose = COMM_GRADIENTS;
    x->leaving = copy ? c->table->begin_reduce_scatter(c, copy + own_bytes, copy, x->piece, DT_BF16, m->s)
                      : c->table->begin_reduce_scatter(c, destination(x), grads, x->piece, DT_F32, m->s);
    c->purpose = COMM_OTHER;
    x->is_leaving = 1;
}

void zero_open_grads(Model* m, int l) {
    const ZeroBucket* x = &m->ranks->zero.bucket[1 + l];
    if (!x->reduced) return;
    empty_place(m, 1 + l);
    m->k->clear(m->block[1 + l].grads, x->elems * sizeof(float), m->s);
}

void zero_close_grads(Model* m, int l) {
    if (m->ranks->zero.bucket[1 + l].reduced || m->ranks->zero.in_last_row) begin_reduce(m, 1 + l);
}

void zero_end_round(Model* m) {
    for (int b = 1; b < last_bucket(m); b++)
        if (m->ranks->zero.bucket[b].reduced) end_reduce(m, b);
}

int zero_can_reduce_inside(const Model* m) {
    return !m->ranks->owner && !m->ranks->pipe.comm && m->comm->size > 1 && m->comm->overlap && !m->tp &&
           !m->array[MODEL_GRADS_BF16];
}

void zero_last_row(Model* m) { m->ranks->zero.in_last_row = 1; }

// What was not reduced in a round, nor inside the last row.
void zero_reduce(Model* m) {
    if (m->ranks->owner) {
        move(m, m->ranks->reduce);
        return;
    }
    for (int b = last_bucket(m); b >= 0 && !m->ranks->zero.in_last_row; b--)
        if (!m->ranks->zero.bucket[b].reduced) begin_reduce(m, b);
    for (int b = last_bucket(m); b >= 0; b--) end_reduce(m, b);
    m->ranks->zero.in_last_row = 0;
}

// Of what several ranks of a tensor-parallel group, or the two ends of a pipeline have, the first one's count alone.
static void sum_of_own_squares(Model* m) {
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        Segment segment = zero_segment(m, i);
        size_t counts = segment.first + segment.n;
        int l = param_is_per_layer(segment.tensor.id) ? segment.tensor.layer : ENDS;
        if (layer_cut_rank(m, l) > 0 && split_is_replicated(segment.tensor.id)) counts = 0;
        if (segment.tensor.id == WTE && m->shape.no_embedding) counts = 0;
        if (m->ranks->kv && m->ranks->kv->rank > 0) counts = MIN(counts, unshared_elems(m, &segment.tensor));
        if (counts > segment.first)
            m->k->sum_of_squares(m->grad_norm2, zero_owned_grads(m, &segment), counts - segment.first, m->s);
    }
}

void zero_sum_of_squares(Model* m) {
    const ZeroBucket* x = m->ranks->zero.bucket;
    if (m->tp || m->ranks->pipe.ends) {
        sum_of_own_squares(m);
        return;
    }
    size_t owned = resident_elems(m, 0);
    if (m->ranks->zero.holds == ZERO_OWNED || resident_elems(m, 2) == owned) {  // all that is owned lies together
        m->k->sum_of_squares(m->grad_norm2, x->owned_grads, owned, m->s);
        return;
    }
    for (int b = 0; b <= last_bucket(m); b++) m->k->sum_of_squares(m->grad_norm2, x[b].owned_grads, x[b].piece, m->s);
}

void zero_clear_grads(Model* m) {
    const Zero* z = &m->ranks->zero;
    if (m->ranks->owner) {
        zero_clear_grads(m->ranks->owner);
        m->k->clear(m->array[MODEL_GRADS_IN_USE], shape_param_elems(&m->shape) * sizeof(float), m->s);
        return;
    }
    if (z->holds == ZERO_OWNED) {
        m->k->clear(m->array[MODEL_GRADS], shape_param_elems(&m->shape) / (size_t)m->shape.shards * sizeof(float),
                    m->s);
        return;
    }
    m->k->clear(m->array[MODEL_GRADS], resident_elems(m, 2) * sizeof(float), m->s);
    for (int b = 0; b <= last_bucket(m); b += last_bucket(m))
        if (z->bucket[b].stage > 1) m->k->clear(m->block[b].grads, z->bucket[b].elems * sizeof(float), m->s);
}

// ---- whole tensors, for files

void zero_fetch_weights(Model* m, const ParamTensor* tensor, float* value) {
    zero_use_layer(m, shape_bucket_of(tensor, &m->shape) - 1, 0);
    m->k->download(value, tensor_weights(m, tensor), tensor->elems * dtype_bytes(m->dt), m->s);
    if (m->dt == DT_BF16) bf16_widen_in_place(value, tensor->elems);
}

// Piece by piece from those who own them.
static void fetch_owned_grads(Model* m, const ParamTensor* tensor, float* value) {
    char err[ERR_BYTES];
    int index = shape_index(&m->shape, tensor);
    for (int r = 0; r < m->comm->size; r++) {
        Segment s = shape_segment(&m->shape, index, r);
        size_t bytes = s.n * sizeof(float);
        if (r == m->comm->rank) m->k->download(value + s.first, zero_owned_grads(m, &s), bytes, m->s);
        if (s.n && m->comm->table->broadcast_host(m->comm, value + s.first, bytes, r, err)) die("%s", err);
    }
}

// The piece is gathered back to where the whole bucket was summed.
void zero_fetch_grads(Model* m, const ParamTensor* tensor, float* value) {
    const ZeroBucket* x = bucket_of(m, tensor);
    if (m->ranks->zero.holds == ZERO_OWNED) {
        fetch_owned_grads(m, tensor, value);
        return;
    }
    float* block_grads = m->block[shape_bucket_of(tensor, &m->shape)].grads;
    if (x->comm->size > 1) comm_all_gather(x->comm, block_grads, x->owned_grads, x->piece, DT_F32, m->s);
    m->k->download(value, tensor_grads(m, tensor), tensor->elems * sizeof(float), m->s);
}

void zero_put_weights(Model* m, const ParamTensor* tensor, float* value) {
    size_t elem = dtype_bytes(m->dt);
    int in_part = bucket_of(m, tensor)->stage == 3 || m->ranks->zero.holds == ZERO_OWNED;
    Segment own = {*tensor, 0, tensor->elems, 0};
    if (in_part) own = zero_segment(m, shape_index(&m->shape, tensor));
    if (m->dt == DT_BF16) bf16_narrow_in_place(value, tensor->elems);
    m->k->upload(in_part ? zero_owned_weights(m, &own) : tensor_weights(m, tensor), (char*)value + own.first * elem,
                 own.n * elem, m->s);
    m->k->synchronize(m->s);
}
