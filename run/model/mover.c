// mover.c - see mover.h.
#include "run/model/mover.h"

#include <stdlib.h>

#include "run/model/pipeline.h"
#include "run/model/tensor_parallel.h"

Mover mover_open(ReshardKind kind, CommPurpose purpose, const Comm* world, const Shape* whole, const Holdings* from,
                 const Holdings* to, Arena* arena) {
    char err[ERR_BYTES];
    Mover mover = {.kind = kind, .purpose = purpose};
    if (reshard(&mover.transfers, whole, from, to, kind, world->rank, world->size, world->node, arena, err))
        die("a move of %s: %s", purpose == COMM_STATE ? "optimizer state" : "weights", err);
    return mover;
}

// ---- scratch: what leaves and what comes of two waves, and two slices on their way into a sum

static size_t wave_elems(const Mover* mover) { return mover->transfers.most_send + mover->transfers.most_receive; }

size_t mover_scratch(const Mover* mover) {
    size_t slices = mover->kind == RESHARD_SUM ? 2 * mover->transfers.most_slice : 0;
    return mover->is_plain ? 0 : 2 * wave_elems(mover) + slices;
}

size_t mover_room(const Model* m) {
    return MAX(mover_scratch(m->ranks->gather) * dtype_bytes(m->dt), mover_scratch(m->ranks->reduce) * sizeof(float));
}

static char* buffer(const Moving* x, int w, int comes) {
    size_t first = (size_t)(w & 1) * wave_elems(x->mover) + (comes ? x->mover->transfers.most_send : 0);
    return x->scratch + first * x->elem;
}

static char* slice_buffer(const Moving* x, int i) {
    return x->scratch + (2 * wave_elems(x->mover) + (size_t)i * x->mover->transfers.most_slice) * x->elem;
}

// ---- slices

static size_t slice_bytes(const Moving* x, const Slice* slice) {
    return (size_t)slice->rows * (size_t)slice->cols * x->elem;
}

static void copy_rows(const Moving* x, char* to, int ldo, const char* from, int ldx, const Slice* slice) {
    x->k->ranks->gather_rows(to, from, NULL, slice->rows, slice->cols, ldo, ldx, x->dt, x->s);
}

// to += from, which is packed. Where rows have gaps between them, by way of a packed copy.
static void add_rows(const Moving* x, char* to, const char* from, const Slice* slice) {
    int is_tight = slice->rows == 1 || slice->cols == slice->stride;
    char* sum = is_tight ? to : slice_buffer(x, 0);
    if (!is_tight) copy_rows(x, sum, slice->cols, to, slice->stride, slice);
    x->k->add(sum, sum, from, (size_t)slice->rows * (size_t)slice->cols, x->dt, x->s);
    if (!is_tight) copy_rows(x, to, slice->stride, sum, slice->cols, slice);
}

// A packed slice to where it belongs.
static void put(const Moving* x, const char* packed, const Slice* slice) {
    char* to = x->to + slice->at * x->elem;
    if (x->mover->kind == RESHARD_SUM) add_rows(x, to, packed, slice);
    else copy_rows(x, to, slice->stride, packed, slice->cols, slice);
}

// What this rank has and keeps, message by message to itself.
static void put_own(const Moving* x, const Message* sent, const Message* received) {
    const Slice *from = x->mover->transfers.slices + sent->first, *to = x->mover->transfers.slices + received->first;
    for (int i = 0; i < sent->n; i++) {
        const char* here = x->from + from[i].at * x->elem;
        if (x->mover->kind == RESHARD_COPY) {
            copy_rows(x, x->to + to[i].at * x->elem, to[i].stride, here, from[i].stride, &to[i]);
            continue;
        }
        copy_rows(x, slice_buffer(x, 1), from[i].cols, here, from[i].stride, &from[i]);
        put(x, slice_buffer(x, 1), &to[i]);
    }
}

// ---- waves

// The messages with others; at: their packed slices.
static int list_messages(const Moving* x, Transfer* list, const Messages* messages, char* packed) {
    int count = 0;
    for (const Message* m = messages->list; m < messages->list + messages->n; m++) {
        if (m->peer == x->world->rank) continue;
        list[count++] = (Transfer){m->peer, packed, m->elems * x->elem};
        packed += m->elems * x->elem;
    }
    return count;
}

static void begin_wave(Moving* x, int w) {
    const Transfers* t = &x->mover->transfers;
    const Wave* wave = &t->wave[w];
    char* packed = buffer(x, w, 0);
    for (const Message* m = wave->sends.list; m < wave->sends.list + wave->sends.n; m++)
        for (const Slice* s = t->slices + m->first; m->peer != x->world->rank && s < t->slices + m->first + m->n; s++) {
            copy_rows(x, packed, s->cols, x->from + s->at * x->elem, s->stride, s);
            packed += slice_bytes(x, s);
        }
    Transfer* receives = x->list + x->world->size;
    int n_sends = list_messages(x, x->list, &wave->sends, buffer(x, w, 0));
    int n_receives = list_messages(x, receives, &wave->receives, buffer(x, w, 1));
    x->under_way[w & 1] = 0;
    // Every wave is a wait of all ranks for the timer, those too that have no message.
    if (n_sends + n_receives == 0) timer_enter(x->world->timer, timer_enter(x->world->timer, TIME_WAIT, x->s), x->s);
    else
        x->under_way[w & 1] =
            x->world->table->begin_send_receive(x->world, x->list, n_sends, receives, n_receives, x->s);
}

static void end_wave(Moving* x, int w) {
    const Transfers* t = &x->mover->transfers;
    const Wave* wave = &t->wave[w];
    const char* packed = buffer(x, w, 1);
    const Message* own = wave->sends.list;
    if (x->under_way[w & 1]) x->world->table->end(x->world, x->under_way[w & 1], x->s);
    while (own < wave->sends.list + wave->sends.n && own->peer != x->world->rank) own++;
    for (const Message* m = wave->receives.list; m < wave->receives.list + wave->receives.n; m++) {
        if (m->peer == x->world->rank) put_own(x, own, m);
        for (const Slice* s = t->slices + m->first; m->peer != x->world->rank && s < t->slices + m->first + m->n; s++) {
            put(x, packed, s);
            packed += slice_bytes(x, s);
        }
    }
}

// Pieces of a bucket stand at offset / ranks where ranks own them, all of them at offset where they compute.
static Request begin_collective(const Moving* x, int w) {
    const CommTable* table = x->world->table;
    Bucket bucket = shape_bucket(x->whole, w);
    size_t ranks = (size_t)x->world->size, all = bucket.offset * x->elem, own = all / ranks, n = bucket.elems / ranks;
    return x->mover->kind == RESHARD_SUM
               ? table->begin_reduce_scatter(x->world, x->to + own, x->from + all, n, x->dt, x->s)
               : table->begin_all_gather(x->world, x->to + all, x->from + own, n, x->dt, x->s);
}

static void begin_any(Moving* x, int w) {
    if (x->mover->is_plain) x->under_way[w & 1] = begin_collective(x, w);
    else begin_wave(x, w);
}

static void end_any(Moving* x, int w) {
    if (!x->mover->is_plain) end_wave(x, w);
    else x->world->table->end(x->world, x->under_way[w & 1], x->s);
}

void mover_begin(Moving* x, const Mover* mover, Comm* world, const Shape* whole, char* to, const char* from,
                 char* scratch, DType dt, const Kernels* k, Stream s) {
    *x = (Moving){.mover = mover,
                  .world = world,
                  .whole = whole,
                  .to = to,
                  .from = from,
                  .scratch = scratch,
                  .dt = dt,
                  .elem = dtype_bytes(dt),
                  .k = k,
                  .s = s,
                  .before = world->purpose};
    world->purpose = mover->purpose;
    x->list = (Transfer*)malloc(2 * sizeof(Transfer) * (size_t)world->size);
    if (!x->list) die("no memory for messages to %d ranks", world->size);
}

void mover_advance(Moving* x, int n) {
    for (; x->begun < n; x->begun++) {
        begin_any(x, x->begun);
        if (x->begun > 0) end_any(x, x->begun - 1);
    }
}

void mover_end(Moving* x) {
    int waves = x->mover->is_plain ? shape_buckets(x->whole) : x->mover->transfers.waves;
    mover_advance(x, waves);
    if (waves > 0) end_any(x, waves - 1);
    free(x->list);
    x->world->purpose = x->before;
}

void mover_run(const Mover* mover, Comm* world, const Shape* whole, char* to, const char* from, char* scratch, DType dt,
               const Kernels* k, Stream s) {
    Moving x;
    mover_begin(&x, mover, world, whole, to, from, scratch, dt, k, s);
    mover_end(&x);
}

// ---- who owns what

typedef struct OwnedBox {
    int tensor;  // of the whole model
    Holding held;
} OwnedBox;

// This rank's: list has room, or is NULL. Returns how many.
static int list_owned(OwnedBox* list, const Model* m, StateKind kind) {
    int n = 0;
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        Holding held[MOST_RUN_HOLDINGS];
        Box boxes[MOST_RUNS];
        Segment s = zero_segment(m, i);
        if (s.n == 0) continue;
        size_t at = s.at;
        if (kind == STATE_WEIGHTS)
            at = (size_t)(zero_owned_weights(m, &s) - (char*)m->array[MODEL_WEIGHTS]) / dtype_bytes(m->dt);
        ParamTensor whole = shape_param(&m->whole, s.tensor.id, pipeline_layer(m, &s.tensor));
        int n_boxes = tp_boxes(boxes, m, &s.tensor);
        int count = holdings_of_run(held, m->world->rank, &s.tensor, boxes, n_boxes, s.first, s.n, at);
        for (int j = 0; j < count; j++, n++)
            if (list) list[n] = (OwnedBox){shape_index(&m->whole, &whole), held[j]};
    }
    return n;
}

// Rank after rank, tensor by tensor.
static void sort_owned(Holdings* h, const OwnedBox* all, const int* counts, int most, int ranks) {
    for (int t = 0, n = 0; t < h->tensors; h->first[++t] = n)
        for (int r = 0; r < ranks; r++)
            for (const OwnedBox* x = all + (size_t)r * (size_t)most; x < all + (size_t)r * (size_t)most + counts[r];
                 x++)
                if (x->tensor == t) h->list[n++] = x->held;
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
    sort_owned(&h, all, counts, most, c->size);
    free(all);
    return h;
}

// ---- another division, for good: what changes hands moves, once

static void* take(const Model* m, size_t bytes) {
    void* p = m->k->alloc(bytes);
    if (!p)
        die("no memory for another division of the model, %zu MiB; try --balance moves=step or a smaller --capacity",
            bytes >> 20);
    return p;
}

static void take_arrays(Model* next) {
    size_t bytes[N_MODEL_ARRAYS];
    zero_sizes(next, 1, bytes);
    for (int i = 0; i < N_MODEL_ARRAYS; i++) next->array[i] = bytes[i] ? take(next, bytes[i]) : NULL;
    zero_open(next);
}

static void give_back(Model* m) {
    m->k->synchronize(m->s);
    for (int i = 0; i < N_MODEL_ARRAYS; i++) m->k->free_memory(m->array[i]);
    zero_close(m);
}

// What ranks own of a kind of state, into arrays of the other division.
static void carry(const Model* m, const Model* next, StateKind kind) {
    Arena arena = {0};
    Holdings from = owned_holdings(m, kind, &arena), to = owned_holdings(next, kind, &arena);
    Mover mover = mover_open(RESHARD_COPY, COMM_STATE, m->world, &m->whole, &from, &to, &arena);
    ModelArray part = kind == STATE_WEIGHTS ? MODEL_WEIGHTS : zero_array_of(kind);
    DType dt = kind == STATE_WEIGHTS ? m->dt : DT_F32;
    char* scratch = (char*)take(m, mover_scratch(&mover) * dtype_bytes(dt) + 1);
    mover_run(&mover, m->world, &m->whole, (char*)next->array[part], (const char*)m->array[part], scratch, dt, m->k,
              m->s);
    m->k->synchronize(m->s);
    m->k->free_memory(scratch);
    arena_free(&arena);
}

void mover_divide_anew(Model* m, const TpSplit* split) {
    Model next = *m;
    ModelRanks ranks = *m->ranks, *own = m->ranks;
    model_set_ranks(&next, &ranks);
    if (m->ranks->zero.stage != 1)
        die("a new division of the model needs ZeRO stage 1, found %d", m->ranks->zero.stage);
    zero_settle(m);
    next.ranks->split = *split;
    next.shape = split_shape(&m->whole, split, tp_rank(m));
    next.shape.shards = m->shape.shards;
    take_arrays(&next);
    carry(m, &next, STATE_WEIGHTS);
    if (m->array[MODEL_MASTER]) carry(m, &next, STATE_MASTER);
    carry(m, &next, STATE_M);
    carry(m, &next, STATE_V);
    give_back(m);
    *own = ranks, *m = next;
    model_set_ranks(m, own);
    zero_gather(m);
    zero_settle(m);
}
