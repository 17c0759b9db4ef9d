// zero.c - gathers weights, reduces gradients: see zero.h.
//
// A rank sends these bytes in a step of P parameters on N ranks: gradients 4 P (N-1)/N (2 in bf16), weights 2 P (N-1)/N
// in bf16. Stage 2 sends the gradients of layers once a round, stage 3 also their weights, twice.
#include "run/model/zero.h"

#include <stdlib.h>

#include "plan/base/base.h"
#include "run/model/lora.h"
#include "run/model/model_ranks.h"
#include "run/model/muon.h"

// ---- memory

static int last_bucket(const Model* m) { return m->shape.L + 1; }

static int is_layer(const Model* m, int b) { return b > 0 && b < last_bucket(m); }

int zero_stage_of(const Model* m, int b) {
    int shards = is_layer(m, b) ? shape_units(&m->shape, b - 1).shards : m->shape.shards;
    ZeroHolds holds = m->ranks->zero.holds;
    if (shards == 1 || holds == ZERO_OWNED || (holds == ZERO_IN_USE && !is_layer(m, b))) return 1;
    return is_layer(m, b) ? layer_layout(m, b - 1)->zero : m->ranks->layout.stage[m->stage].zero;
}

int zero_most(const Model* m) {
    int most = 1;
    for (int b = 0; b <= last_bucket(m); b++) most = MAX(most, zero_stage_of(m, b));
    return most;
}

// MODEL_WEIGHTS and MODEL_GRADS hold buckets whole; from this stage on they hold this rank's pieces alone. Then a
// bucket is whole in the array that follows (_IN_USE): layers by turns in one of two places, the ends of the model
// after these.
static int is_whole(const Model* m, ModelArray array, int b) {
    return m->ranks->zero.holds != ZERO_OWNED && zero_stage_of(m, b) < (array == MODEL_GRADS ? 2 : 3);
}

// An ArrayPlan has the elements of such an array and of the one that follows, and the most elements of a layer that is
// in use by turns, and of a piece of one.
typedef struct ArrayPlan {
    size_t kept, used, layer, piece;
} ArrayPlan;

// Plans an array, and places its buckets if there is a list of them.
static ArrayPlan plan_array(const Model* m, ModelArray array, ZeroBucket* buckets) {
    ArrayPlan plan = {0, 0, 0, 0};
    for (int b = 1; b < last_bucket(m); b++) {
        Bucket layer = shape_bucket(&m->shape, b);
        if (!is_whole(m, array, b))
            plan.layer = MAX(plan.layer, layer.elems), plan.piece = MAX(plan.piece, layer.piece);
    }
    plan.used = 2 * plan.layer;
    for (int b = 0, turn = 0; b <= last_bucket(m); b++) {
        Bucket bucket = shape_bucket(&m->shape, b);
        int whole = is_whole(m, array, b), takes_turns = !whole && is_layer(m, b);
        BucketPlace place = {plan.kept, takes_turns ? (size_t)turn * plan.layer : plan.used, turn, whole};
        if (buckets) buckets[b].place[array == MODEL_GRADS] = place;
        plan.kept += whole ? bucket.elems : bucket.piece;
        if (takes_turns) turn ^= 1;
        else if (!whole) plan.used += bucket.elems;
    }
    return plan;
}

// Returns the elements of gradients in use: windows, and after them two pieces that have been reduced.
static size_t grads_in_use(const ArrayPlan* grads) { return grads->used + 2 * grads->piece; }

static size_t largest_bucket(const Model* m) {
    size_t most = 0;
    for (int b = 0; b <= last_bucket(m); b++) most = MAX(most, shape_bucket(&m->shape, b).elems);
    return most;
}

static size_t owned_elems(const Model* m) {
    Bucket last = shape_bucket(&m->shape, last_bucket(m));
    return last.at + last.piece;
}

void zero_sizes(const Model* m, int training, size_t bytes[N_MODEL_ARRAYS]) {
    size_t owned = owned_elems(m), elem = dtype_bytes(m->dt), fp32 = sizeof(float);
    int uses = m->ranks->zero.holds != ZERO_OWNED,
        casts = owned < shape_param_elems(&m->shape) && m->ranks->zero.grad_dtype == DT_BF16;
    ArrayPlan weights = plan_array(m, MODEL_WEIGHTS, NULL), grads = plan_array(m, MODEL_GRADS, NULL);
    memset(bytes, 0, N_MODEL_ARRAYS * sizeof *bytes);
    if (m->ranks->owner) {
        zero_sizes(m->ranks->owner, training, bytes);
        bytes[MODEL_WEIGHTS_IN_USE] = (weights.kept + weights.used) * elem;
        bytes[MODEL_GRADS_IN_USE] = training ? (grads.kept + grads_in_use(&grads)) * fp32 : 0;
        if (training && casts && zero_most(m) > 1) bytes[MODEL_GRADS_BF16] = 2 * largest_bucket(m) * sizeof(bf16);
        return;
    }
    bytes[MODEL_WEIGHTS] = weights.kept * elem;
    bytes[MODEL_WEIGHTS_IN_USE] = uses ? weights.used * elem : 0;
    lora_sizes(m, training, bytes);
    if (!training) return;
    bytes[MODEL_MASTER] = has_master(m) ? owned * fp32 : 0;
    bytes[MODEL_GRADS] = grads.kept * fp32;
    bytes[MODEL_GRADS_IN_USE] = uses ? grads_in_use(&grads) * fp32 : 0;
    if (uses && casts) bytes[MODEL_GRADS_BF16] = 2 * largest_bucket(m) * sizeof(bf16);
    bytes[MODEL_M] = bytes[MODEL_V] = owned * fp32;
}

// Returns where a bucket is whole while it is in use, and in *owned where this rank's piece is kept.
static char* place_bucket(const Model* m, ModelArray array, const ZeroBucket* x, size_t elem, char** owned) {
    const BucketPlace* place = &x->place[array == MODEL_GRADS];
    char *kept = (char*)m->array[array], *used = (char*)m->array[array + 1];
    size_t before = x->piece < x->elems ? (size_t)x->comm->rank * x->piece : 0;
    if (!kept) return *owned = NULL;
    kept += place->kept * elem;
    *owned = kept + (place->whole ? before * elem : 0);
    if (place->whole) return kept;
    return m->ranks->zero.holds == ZERO_OWNED ? NULL : used + place->used * elem;
}

static void open_bucket(const Model* m, int b, const ArrayPlan* grads) {
    ZeroBucket* x = &m->ranks->zero.bucket[b];
    Bucket bucket = shape_bucket(&m->shape, b);
    char* owned;
    x->elems = bucket.elems, x->piece = bucket.piece, x->at = bucket.at;
    x->comm = layer_data(m, b - 1);
    x->stage = zero_stage_of(m, b);
    x->weights = place_bucket(m, MODEL_WEIGHTS, x, dtype_bytes(m->dt), &x->owned_weights);
    x->grads = (float*)place_bucket(m, MODEL_GRADS, x, sizeof(float), &owned);
    x->owned_grads = (float*)owned;
    if (x->grads && is_layer(m, b) && x->stage > 1)
        x->reduced = (float*)m->array[MODEL_GRADS_IN_USE] + grads->used + (size_t)x->place[1].turn * grads->piece;
}

// What a model computes with, but does not own, is all in the arrays of what is in use: pieces and whole buckets first.
static void divide_array(Model* m, ModelArray array, size_t kept, size_t elem) {
    if (m->ranks->zero.holds != ZERO_IN_USE) return;
    m->array[array] = m->array[array + 1];
    m->array[array + 1] = (char*)m->array[array] + kept * elem;
}

static ZeroBucket* bucket_of(const Model* m, const ParamTensor* tensor) {
    return &m->ranks->zero.bucket[tensor->bucket];
}

// Forgets which layers are in the places of the window.
static void empty_window(Model* m) { m->ranks->zero.layer_in[0] = m->ranks->zero.layer_in[1] = -1; }

void zero_open(Model* m) {
    Zero* z = &m->ranks->zero;
    z->bucket = (ZeroBucket*)calloc((size_t)m->shape.L + 2, sizeof *z->bucket);
    model_place_params(m);
    if (!z->bucket) die("no memory for %d buckets", m->shape.L + 2);
    ArrayPlan weights = plan_array(m, MODEL_WEIGHTS, z->bucket), grads = plan_array(m, MODEL_GRADS, z->bucket);
    divide_array(m, MODEL_WEIGHTS, weights.kept, dtype_bytes(m->dt));
    divide_array(m, MODEL_GRADS, grads.kept, sizeof(float));
    for (int b = 0; b <= last_bucket(m); b++) open_bucket(m, b, &grads);
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        ParamTensor t = shape_tensor(&m->shape, i);
        ZeroBucket* x = bucket_of(m, &t);
        if (x->n_tensors++ == 0) x->first_tensor = i, x->offset = t.offset;
        model_place_param(m, &t, t.offset - x->offset, x->weights, x->grads);
    }
    empty_window(m);
    lora_open(m);
}

void zero_close(Model* m) {
    lora_close(m);
    if (m->ranks->muon) muon_close(m->ranks->muon), free(m->ranks->muon);
    free(m->ranks->zero.bucket);
    free(m->param_places);
}

// ---- where things are

Segment zero_segment(const Model* m, int i) {
    ParamTensor tensor = shape_tensor(&m->shape, i);
    const ZeroBucket* x = bucket_of(m, &tensor);
    return shape_segment(&m->shape, i, x->piece < x->elems ? x->comm->rank : 0);
}

ModelArray zero_array_of(StateKind kind) {
    static const ModelArray arrays[] = {MODEL_WEIGHTS, MODEL_MASTER, MODEL_M, MODEL_V, MODEL_GRADS};
    return arrays[kind];
}

char* zero_owned(const Model* m, StateKind kind, const Segment* segment) {
    const ZeroBucket* x = bucket_of(m, &segment->tensor);
    float* state = (float*)m->array[zero_array_of(kind)];
    size_t at = segment->at - x->at;
    if (kind == STATE_GRADS) return (char*)(x->owned_grads + at);
    if (kind == STATE_WEIGHTS || !state) return x->owned_weights + at * dtype_bytes(m->dt);
    return (char*)(state + segment->at);
}

typedef struct OwnedBox {
    int tensor;  // number in the whole model
    Holding held;
} OwnedBox;

// Lists the boxes that this rank owns if list is not NULL, and returns how many.
static int list_owned(OwnedBox* list, const Model* m, StateKind kind) {
    size_t elem = kind == STATE_WEIGHTS ? dtype_bytes(m->dt) : sizeof(float);
    int n = 0;
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        Holding held[MOST_RUN_HOLDINGS];
        Box boxes[MOST_RUNS];
        Segment s = zero_segment(m, i);
        if (s.n == 0) continue;
        size_t at = (size_t)(zero_owned(m, kind, &s) - (char*)m->array[zero_array_of(kind)]) / elem;
        ParamTensor whole = shape_param(&m->whole, s.tensor.id, pipeline_layer(m, &s.tensor));
        int n_boxes = tp_boxes(boxes, m, &s.tensor);
        int count = holdings_of_run(held, m->world->rank, &s.tensor, boxes, n_boxes, s.first, s.n, at);
        for (int j = 0; j < count; j++, n++)
            if (list) list[n] = (OwnedBox){whole.index, held[j]};
    }
    return n;
}

Holdings owned_holdings(const Model* m, StateKind kind, Arena* arena) {
    char err[ERR_BYTES];
    Comm* c = m->world;
    Holdings h = {.tensors = shape_tensors(&m->whole)};
    int mine = list_owned(NULL, m, kind), most = 0, sum = 0, *counts = TAKE(arena, int, c->size);
    if (arena_check(arena, err)) die("%s", err);
    if (c->table->all_gather_host(c, counts, &mine, sizeof mine, err)) die("%s", err);
    for (int r = 0; r < c->size; r++) most = MAX(most, counts[r]), sum += counts[r];
    OwnedBox* all = (OwnedBox*)calloc(((size_t)c->size + 1) * (size_t)MAX(most, 1), sizeof *all);
    OwnedBox* own = all ? all + (size_t)c->size * (size_t)most : NULL;
    h.first = TAKE(arena, int, h.tensors + 1);
    h.list = TAKE(arena, Holding, sum + 1);
    if (!all || arena_check(arena, err)) die("no memory for what %d ranks own", c->size);
    list_owned(own, m, kind);
    if (c->table->all_gather_host(c, all, own, (size_t)most * sizeof *all, err)) die("%s", err);
    h.first[0] = 0;
    for (int t = 0, n = 0; t < h.tensors; h.first[++t] = n)
        for (int i = 0; i < c->size * most; i++)
            if (i % most < counts[i / most] && all[i].tensor == t) h.list[n++] = all[i].held;
    free(all);
    return h;
}

// ---- weights

// Returns the whole model's number of a bucket of this stage. The last is its last layer's if another stage has the
// head.
static int whole_bucket(const Model* m, int b) {
    int is_end = b == last_bucket(m);
    if (b == 0) return 0;
    return is_end && m->shape.no_head ? m->shape.first_layer + m->shape.L : b + m->shape.first_layer;
}

// Waits until weights of bucket b have come from their owners.
static void await_move(Model* m, int b) {
    for (int hop = 0; hop < N_MOVE_HOPS; hop++)
        if (m->ranks->coming[hop].mover) mover_arrive(&m->ranks->coming[hop], whole_bucket(m, b) + 1);
}

static void begin_gather(Model* m, int b) {
    ZeroBucket* x = &m->ranks->zero.bucket[b];
    Comm* c = x->comm;
    await_move(m, b);
    if (c->size == 1 || x->elems == 0) return;
    c->purpose = COMM_PARAMETERS;
    x->arriving = c->table->begin_all_gather(c, x->weights, x->owned_weights, x->piece, m->dt, m->s);
    c->purpose = COMM_OTHER;
}

static void end_gather(Model* m, int b) {
    ZeroBucket* x = &m->ranks->zero.bucket[b];
    if (x->arriving) x->comm->table->end(x->comm, x->arriving, m->s);
    x->arriving = 0;
}

// Sets layer l of stage 3 on its way to its place of the window, unless it is there.
static void want_layer(Model* m, int l) {
    Zero* z = &m->ranks->zero;
    const ZeroBucket* x = &z->bucket[1 + l];
    if (z->layer_in[x->place[0].turn] == l) return;
    begin_gather(m, 1 + l);
    z->layer_in[x->place[0].turn] = l;
}

static int is_gathered(const Model* m, int l) { return is_layer(m, 1 + l) && m->ranks->zero.bucket[1 + l].stage == 3; }

void zero_use_layer(Model* m, int l, int direction) {
    if (m->ranks->frozen) zero_use_layer(m->ranks->frozen, l, direction);
    await_move(m, 1 + l);
    if (is_gathered(m, l)) want_layer(m, l);
    end_gather(m, 1 + l);
    if (m->ranks->zero.stage < 3 || !direction) return;
    for (l += direction; l >= 0 && l < m->shape.L && !is_gathered(m, l);) l += direction;
    if (l >= 0 && l < m->shape.L) want_layer(m, l);
}

// ---- moves between the whole model as its owners have it and what the ranks of a strategy compute with

static size_t scratch_bytes(const Mover mover[N_MOVE_HOPS], int hops) {
    size_t bytes = 0;
    for (int hop = 0; hop < hops; hop++)
        if (mover[hop].k) bytes += CEIL_DIV(mover_scratch(&mover[hop]), 16) * 16 * dtype_bytes(mover[hop].dt);
    return bytes;
}

size_t zero_moving_bytes(const Model* m) {
    return MAX(scratch_bytes(m->ranks->gather, N_MOVE_HOPS), scratch_bytes(m->ranks->reduce, N_MOVE_HOPS));
}

// Begins both hops of a move. Inside a node it is between arrays of one kind.
static void begin_move(Model* m, const Mover mover[N_MOVE_HOPS], Moving at_work[N_MOVE_HOPS]) {
    int sums = mover[MOVE_OWNERS].kind == RESHARD_SUM;
    ModelArray array = sums ? MODEL_GRADS : MODEL_WEIGHTS;
    char *used = (char*)m->array[array], *owned = (char*)m->ranks->owner->array[array];
    for (int hop = 0; hop < N_MOVE_HOPS; hop++) {
        char* scratch = m->ranks->moving + scratch_bytes(mover, hop);
        char *to = sums && hop == MOVE_OWNERS ? owned : used, *from = sums || hop == MOVE_INSIDE ? used : owned;
        if (mover[hop].k) mover_begin(&at_work[hop], &mover[hop], to, from, scratch);
    }
}

static void end_move(Moving at_work[N_MOVE_HOPS]) {
    for (int hop = 0; hop < N_MOVE_HOPS; hop++)
        if (at_work[hop].mover) mover_end(&at_work[hop]);
}

void zero_begin_gather(Model* m) {
    zero_settle(m);
    empty_window(m);
    begin_move(m, m->ranks->gather, m->ranks->coming);
}

// Begins waves up to n; leaders of a node pass on what has come.
void zero_advance_gather(Model* m, int n) {
    Comm* c = m->world;
    Moving *inside = &m->ranks->coming[MOVE_INSIDE], *owners = &m->ranks->coming[MOVE_OWNERS];
    while (owners->begun < n) {
        int w = owners->begun;
        mover_advance(owners, w + 1);
        if (!inside->mover) continue;
        c->after = owners->under_way[w];
        mover_advance(inside, w + 1);
        c->after = 0;
    }
}

void zero_gather(Model* m) {
    if (m->ranks->owner) {
        zero_begin_gather(m);
        zero_advance_gather(m, m->whole.L + 2);
        return;
    }
    for (int b = 0; b <= last_bucket(m); b++)
        if (!is_layer(m, b) || m->ranks->zero.bucket[b].stage < 3) begin_gather(m, b);
    empty_window(m);
}

void zero_settle(Model* m) {
    end_move(m->ranks->coming);
    for (int b = 0; b <= last_bucket(m); b++) end_gather(m, b);
}

// ---- gradients

// Returns the elements of a cut tensor before those of key/value heads that other ranks have too: usually all.
static size_t unshared_elems(const Model* m, const ParamTensor* t) {
    if (!has_kv_outputs(t->id) || !layer_kv(m, t->layer)) return t->elems;
    int queries = shape_units(&m->shape, t->layer).heads * m->shape.HS;
    return (size_t)queries * (t->rows > 1 ? (size_t)t->cols : 1);
}

// Sums over the group the gradients of a bucket's tensors that all its ranks have whole. Each rank has gradients of its
// own tokens, and biases of the projections are rank 0's alone. Tensors that follow each other are summed at once, with
// the gaps between them, which are 0.
static void sum_replicated(const Model* m, const ZeroBucket* x) {
    int l = (int)(x - m->ranks->zero.bucket) - 1;
    const LayerGroup* g = layer_group(m, l);
    Comm *cut = g ? g->cut : m->tp, *kv = layer_kv(m, l);
    float* run = NULL;
    size_t n = 0;
    if (!cut) return;
    CommPurpose before = cut->purpose;
    cut->purpose = COMM_GRADIENTS;
    if (kv) kv->purpose = COMM_GRADIENTS;
    for (int i = 0; i <= x->n_tensors; i++) {
        ParamTensor t = shape_tensor(&m->shape, x->first_tensor + MIN(i, x->n_tensors - 1));
        int joins = i < x->n_tensors && split_is_replicated(t.id);
        float* grads = joins ? model_grads(m, t.id, t.layer) : NULL;
        if (joins && !run) run = grads;
        if (joins) n = (size_t)(grads - run) + t.elems;
        if (joins || !run) continue;
        cut->table->all_reduce(cut, run, n, DT_F32, m->s);
        run = NULL;
    }
    for (int i = 0; i < x->n_tensors && kv; i++) {
        ParamTensor t = shape_tensor(&m->shape, x->first_tensor + i);
        size_t own = unshared_elems(m, &t);
        if (own < t.elems) kv->table->all_reduce(kv, model_grads(m, t.id, t.layer) + own, t.elems - own, DT_F32, m->s);
    }
    cut->purpose = before;
    if (kv) kv->purpose = COMM_TENSOR;
}

// Returns the bf16 copy of an even or an odd bucket; NULL: gradients travel as fp32.
static char* bf16_copy(const Model* m, int b) {
    char* copies = (char*)m->array[MODEL_GRADS_BF16];
    return copies ? copies + (size_t)(b & 1) * largest_bucket(m) * sizeof(bf16) : NULL;
}

// Returns the place to which the sums of the owned piece come back.
static float* destination(const ZeroBucket* x) { return x->reduced ? x->reduced : x->owned_grads; }

// Waits for a reduction. It widens a bf16 copy, and adds layers of stages 2 and 3 to those of earlier rounds.
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

// Waits until no bucket travels that shares b's place in a window, or its bf16 copy.
static void empty_place(Model* m, int b) {
    const ZeroBucket* x = m->ranks->zero.bucket;
    for (int other = 0; other <= last_bucket(m); other++)
        if ((other - b) % 2 == 0 || (x[other].reduced && x[other].place[1].turn == x[b].place[1].turn))
            end_reduce(m, other);
}

// Begins to sum over all ranks a bucket whose gradients are complete; those of wte first over both ends of a pipeline
// that have it. If they go on to owners, the sum over the group is taken there.
static void begin_reduce(Model* m, int b) {
    ZeroBucket* x = &m->ranks->zero.bucket[b];
    Comm *c = x->comm, *ends = m->ranks->pipe.ends;
    char* copy = bf16_copy(m, b);
    float* grads = x->grads;
    size_t own_bytes = (size_t)c->rank * x->piece * sizeof(bf16);
    if (b == 0 && ends && model_grads(m, WTE, 0))
        ends->table->all_reduce(ends, model_grads(m, WTE, 0), shape_param(&m->shape, WTE, 0).elems, DT_F32, m->s);
    if (x->n_tensors && !m->ranks->owner) sum_replicated(m, x);
    if (c->size == 1 || x->elems == 0) return;
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
    m->k->clear(x->grads, x->elems * sizeof(float), m->s);
}

// Lets gradients of bucket b and of those after it leave for their owners: they are complete. What a leader sums of its
// node leaves when the next bucket is complete.
static void leave(Model* m, int b) {
    Moving *inside = &m->ranks->leaving[MOVE_INSIDE], *owners = &m->ranks->leaving[MOVE_OWNERS];
    int complete = m->whole.L + 2 - whole_bucket(m, b);
    if (!owners->mover) {
        zero_settle(m);
        begin_move(m, m->ranks->reduce, m->ranks->leaving);
    }
    if (inside->mover) mover_advance(inside, complete), mover_arrive(inside, complete - 1);
    mover_advance(owners, inside->mover ? complete - 1 : complete);
}

void zero_end_rows(Model* m) {
    if (m->ranks->owner && !m->ranks->lends) leave(m, 0);
}

void zero_close_grads(Model* m, int l) {
    int leaves = m->ranks->owner && m->ranks->zero.in_last_row, b = 1 + l;
    if (m->ranks->zero.bucket[b].reduced || (m->ranks->zero.in_last_row && !leaves)) begin_reduce(m, b);
    // Like pipelines first sum among them what they divide, under the next layer.
    int sums = m->ranks->zero.stage > 1;
    if (leaves && b + sums <= last_bucket(m)) end_reduce(m, b + sums), leave(m, b + sums);
    for (int b = 1; l < 0 && b < last_bucket(m); b++)
        if (m->ranks->zero.bucket[b].reduced) end_reduce(m, b);
}

int zero_can_reduce_inside(const Model* m) {
    if (m->ranks->pipe.comm) return 0;
    if (m->ranks->owner) return m->world->overlap && !m->ranks->lends;
    return m->comm->size > 1 && m->comm->overlap && !m->tp && !m->array[MODEL_GRADS_BF16];
}

void zero_last_row(Model* m) { m->ranks->zero.in_last_row = 1; }

// Reduces what no round and no last row has reduced.
void zero_reduce(Model* m) {
    if (m->ranks->owner) {
        leave(m, 0);
        end_move(m->ranks->leaving);
        m->ranks->zero.in_last_row = 0;
        return;
    }
    for (int b = last_bucket(m); b >= 0 && !m->ranks->zero.in_last_row; b--)
        if (!m->ranks->zero.bucket[b].reduced) begin_reduce(m, b);
    for (int b = last_bucket(m); b >= 0; b--) end_reduce(m, b);
    m->ranks->zero.in_last_row = 0;
}

// If several ranks of a tensor-parallel group, or both ends of a pipeline, have an element, only the first one's
// counts.
static void sum_of_own_squares(Model* m) {
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        Segment segment = zero_segment(m, i);
        size_t counts = segment.first + segment.n;
        Comm* kv = layer_kv(m, tensor_layer(&segment.tensor));
        if (layer_cut_rank(m, tensor_layer(&segment.tensor)) > 0 && split_is_replicated(segment.tensor.id)) counts = 0;
        if (segment.tensor.id == WTE && m->shape.no_embedding) counts = 0;
        if (kv && kv->rank > 0) counts = MIN(counts, unshared_elems(m, &segment.tensor));
        if (counts > segment.first)
            m->k->sum_of_squares(m->grad_norm2, (float*)zero_owned(m, STATE_GRADS, &segment), counts - segment.first,
                                 m->s);
    }
}

void zero_sum_of_squares(Model* m) {
    const ZeroBucket* x = m->ranks->zero.bucket;
    size_t owned = owned_elems(m);
    if (m->tp || m->ranks->pipe.ends) sum_of_own_squares(m);
    else if (plan_array(m, MODEL_GRADS, NULL).kept == owned)  // all owned gradients lie together
        m->k->sum_of_squares(m->grad_norm2, x->owned_grads, owned, m->s);
    else
        for (int b = 0; b <= last_bucket(m); b++)
            m->k->sum_of_squares(m->grad_norm2, x[b].owned_grads, x[b].piece, m->s);
}

void zero_clear_grads(Model* m) {
    const Zero* z = &m->ranks->zero;
    ArrayPlan grads = plan_array(m, MODEL_GRADS, NULL);
    // Windows come right after, and another strategy keeps sums there.
    size_t windows = z->holds == ZERO_IN_USE ? grads_in_use(&grads) : 0;
    m->k->clear(m->array[MODEL_GRADS], (grads.kept + windows) * sizeof(float), m->s);
    if (m->ranks->owner) zero_clear_grads(m->ranks->owner);
    for (int b = 0; b <= last_bucket(m); b += last_bucket(m))
        if (z->bucket[b].stage > 1) m->k->clear(z->bucket[b].grads, z->bucket[b].elems * sizeof(float), m->s);
}

// ---- whole tensors, for files

void zero_fetch_weights(Model* m, const ParamTensor* tensor, float* value) {
    zero_use_layer(m, tensor->bucket - 1, 0);
    m->k->download(value, model_weights(m, tensor->id, tensor->layer), tensor->elems * dtype_bytes(m->dt), m->s);
    if (m->dt == DT_BF16) bf16_widen_in_place(value, tensor->elems);
}

// Fetches gradients piece by piece from those who own them.
void zero_fetch_grads(Model* m, const ParamTensor* tensor, float* value) {
    char err[ERR_BYTES];
    Comm* c = bucket_of(m, tensor)->comm;
    for (int r = 0; r < c->size; r++) {
        Segment s = shape_segment(&m->shape, tensor->index, r);
        size_t bytes = s.n * sizeof(float);
        if (r == c->rank) m->k->download(value + s.first, zero_owned(m, STATE_GRADS, &s), bytes, m->s);
        if (s.n && c->table->broadcast_host(c, value + s.first, bytes, r, err)) die("%s", err);
    }
}

void zero_put_weights(Model* m, const ParamTensor* tensor, float* value) {
    size_t elem = dtype_bytes(m->dt);
    int in_part = bucket_of(m, tensor)->stage == 3 || m->ranks->zero.holds == ZERO_OWNED;
    Segment own = {*tensor, 0, tensor->elems, 0};
    if (in_part) own = zero_segment(m, tensor->index);
    if (m->dt == DT_BF16) bf16_narrow_in_place(value, tensor->elems);
    m->k->upload(in_part ? zero_owned(m, STATE_WEIGHTS, &own) : model_weights(m, tensor->id, tensor->layer),
                 (char*)value + own.first * elem, own.n * elem, m->s);
    m->k->synchronize(m->s);
}
