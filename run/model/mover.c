// mover.c - see mover.h.
#include "run/model/mover.h"

#include <stdlib.h>

#include "kernels/rank_ops.h"

Mover mover_open(const Model* m, Comm* world, ReshardKind kind, CommPurpose purpose, DType dt, const Holdings* from,
                 const Holdings* to, Arena* arena) {
    char err[ERR_BYTES];
    Mover mover = {kind, purpose, dt, dt, world, m->whole, m->k, m->s, !from, {0}};
    if (from && reshard(&mover.transfers, &m->whole, from, to, kind, world->rank, world->size, world->node, arena, err))
        die("a move of %s: %s", purpose == COMM_STATE ? "optimizer state" : "weights", err);
    return mover;
}

// ---- scratch: what leaves and what comes of two waves, or copies of two buckets, and two slices

static int is_cast(const Mover* mover) { return mover->wire != mover->dt; }

static size_t largest_bucket(const Mover* mover) {
    size_t most = 0;
    for (int b = 0; b < shape_buckets(&mover->whole); b++) most = MAX(most, shape_bucket(&mover->whole, b).elems);
    return most;
}

static size_t wave_elems(const Mover* mover) {
    if (mover->is_plain) return is_cast(mover) ? largest_bucket(mover) : 0;
    return mover->transfers.most_send + mover->transfers.most_receive;
}

// In elements of dt.
static size_t waves_elems(const Mover* mover) {
    return CEIL_DIV(2 * wave_elems(mover) * dtype_bytes(mover->wire), dtype_bytes(mover->dt));
}

size_t mover_scratch(const Mover* mover) {
    return waves_elems(mover) + (mover->kind == RESHARD_SUM ? 2 * mover->transfers.most_slice : 0);
}

static char* at(const Moving* x, char* base, size_t elem) { return base + elem * dtype_bytes(x->mover->dt); }
static char* wire_at(const Moving* x, char* base, size_t elem) { return base + elem * dtype_bytes(x->mover->wire); }

static char* buffer(const Moving* x, int w, int comes) {
    return wire_at(x, x->scratch, (size_t)(w & 1) * wave_elems(x->mover) + (comes ? x->mover->transfers.most_send : 0));
}

static char* slice_buffer(const Moving* x, int i) {
    return at(x, x->scratch, waves_elems(x->mover) + (size_t)i * x->mover->transfers.most_slice);
}

// ---- slices

static size_t slice_elems(const Slice* slice) { return (size_t)slice->rows * (size_t)slice->cols; }

static void copy_rows(const Moving* x, char* to, int ldo, const char* from, int ldx, const Slice* slice) {
    const Mover* mover = x->mover;
    mover->k->ranks->gather_rows(to, from, NULL, slice->rows, slice->cols, ldo, ldx, mover->dt, mover->s);
}

// to += from, which is packed. Where rows have gaps between them, by way of a packed copy.
static void add_rows(const Moving* x, char* to, const char* from, const Slice* slice) {
    int is_tight = slice->rows == 1 || slice->cols == slice->stride;
    char* sum = is_tight ? to : slice_buffer(x, 0);
    if (!is_tight) copy_rows(x, sum, slice->cols, to, slice->stride, slice);
    x->mover->k->add(sum, sum, from, slice_elems(slice), x->mover->dt, x->mover->s);
    if (!is_tight) copy_rows(x, to, slice->stride, sum, slice->cols, slice);
}

static void pack(const Moving* x, char* packed, const Slice* slice) {
    copy_rows(x, packed, slice->cols, at(x, (char*)x->from, slice->at), slice->stride, slice);
}

// A packed slice to where it belongs.
static void put(const Moving* x, const char* packed, const Slice* slice) {
    char* to = at(x, x->to, slice->at);
    if (x->mover->kind == RESHARD_SUM) add_rows(x, to, packed, slice);
    else copy_rows(x, to, slice->stride, packed, slice->cols, slice);
}

// What this rank has and keeps, message by message to itself.
static void put_own(const Moving* x, const Message* sent, const Message* received) {
    const Slice *from = x->mover->transfers.slices + sent->first, *to = x->mover->transfers.slices + received->first;
    for (int i = 0; i < sent->n; i++) {
        char *here = at(x, (char*)x->from, from[i].at), *there = at(x, x->to, to[i].at);
        if (x->mover->kind == RESHARD_SUM) pack(x, slice_buffer(x, 1), &from[i]), put(x, slice_buffer(x, 1), &to[i]);
        else copy_rows(x, there, to[i].stride, here, from[i].stride, &to[i]);
    }
}

// The slices of a message, to be sent or received, as they travel. Returns where the next one's are.
static char* exchange(const Moving* x, const Message* m, char* packed, int comes) {
    const Mover* mover = x->mover;
    const Slice* slice = mover->transfers.slices + m->first;
    for (int i = 0; i < m->n; packed = wire_at(x, packed, slice_elems(&slice[i++]))) {
        char* here = is_cast(mover) ? slice_buffer(x, 1) : packed;
        size_t elems = slice_elems(&slice[i]);
        if (comes && is_cast(mover)) mover->k->ranks->cast(here, mover->dt, packed, mover->wire, elems, mover->s);
        if (comes) put(x, here, &slice[i]);
        else pack(x, here, &slice[i]);
        if (!comes && is_cast(mover)) mover->k->ranks->cast(packed, mover->wire, here, mover->dt, elems, mover->s);
    }
    return packed;
}

// ---- waves

// The messages with others, one behind the other in `packed`. Returns how many.
static int list_messages(const Moving* x, Transfer* list, const Messages* messages, char* packed) {
    int count = 0;
    for (const Message* m = messages->list; m < messages->list + messages->n; m++) {
        if (m->peer == x->mover->world->rank) continue;
        list[count++] = (Transfer){m->peer, packed, m->elems * dtype_bytes(x->mover->wire)};
        packed = wire_at(x, packed, m->elems);
    }
    return count;
}

static Request begin_messages(const Moving* x, int w) {
    const Wave* wave = &x->mover->transfers.wave[w];
    Comm* c = x->mover->world;
    char* packed = buffer(x, w, 0);
    for (const Message* m = wave->sends.list; m < wave->sends.list + wave->sends.n; m++)
        if (m->peer != c->rank) packed = exchange(x, m, packed, 0);
    Transfer* receives = x->list + c->size;
    int n_sends = list_messages(x, x->list, &wave->sends, buffer(x, w, 0));
    int n_receives = list_messages(x, receives, &wave->receives, buffer(x, w, 1));
    if (n_sends + n_receives)
        return c->table->begin_send_receive(c, x->list, n_sends, receives, n_receives, x->mover->s);
    // Every wave is a wait of all ranks for the timer, those too that have no message.
    timer_enter(c->timer, timer_enter(c->timer, TIME_WAIT, x->mover->s), x->mover->s);
    return 0;
}

static void put_messages(const Moving* x, int w) {
    const Wave* wave = &x->mover->transfers.wave[w];
    char* packed = buffer(x, w, 1);
    const Message* own = wave->sends.list;
    while (own < wave->sends.list + wave->sends.n && own->peer != x->mover->world->rank) own++;
    for (const Message* m = wave->receives.list; m < wave->receives.list + wave->receives.n; m++)
        if (m->peer == x->mover->world->rank) put_own(x, own, m);
        else packed = exchange(x, m, packed, 1);
}

// Pieces of a bucket stand at offset / ranks where ranks own them, all of them at offset where they compute.
typedef struct BucketHere {
    char *all, *own;
    size_t elems, piece;
} BucketHere;

static BucketHere bucket_here(const Moving* x, int w) {
    const Mover* mover = x->mover;
    Bucket bucket = shape_bucket(&mover->whole, w);
    size_t ranks = (size_t)mover->world->size;
    char *whole = mover->kind == RESHARD_SUM ? (char*)x->from : x->to,
         *owned = mover->kind == RESHARD_SUM ? x->to : (char*)x->from;
    return (BucketHere){at(x, whole, bucket.offset), at(x, owned, bucket.offset / ranks), bucket.elems,
                        bucket.elems / ranks};
}

// This rank's piece of the copy of a bucket that is cast.
static char* copied_piece(const Moving* x, int w, const BucketHere* bucket) {
    return wire_at(x, buffer(x, w, 0), (size_t)x->mover->world->rank * bucket->piece);
}

static Request begin_collective(const Moving* x, int w) {
    const Mover* mover = x->mover;
    Comm* c = mover->world;
    BucketHere b = bucket_here(x, w);
    if (mover->kind == RESHARD_COPY) return c->table->begin_all_gather(c, b.all, b.own, b.piece, mover->dt, mover->s);
    if (!is_cast(mover)) return c->table->begin_reduce_scatter(c, b.own, b.all, b.piece, mover->dt, mover->s);
    char* copy = buffer(x, w, 0);
    mover->k->ranks->cast(copy, mover->wire, b.all, mover->dt, b.elems, mover->s);
    return c->table->begin_reduce_scatter(c, copied_piece(x, w, &b), copy, b.piece, mover->wire, mover->s);
}

static void end_collective(const Moving* x, int w) {
    const Mover* mover = x->mover;
    BucketHere b = bucket_here(x, w);
    if (is_cast(mover)) mover->k->ranks->cast(b.own, mover->dt, copied_piece(x, w, &b), mover->wire, b.piece, mover->s);
}

static void end_wave(Moving* x, int w) {
    Comm* c = x->mover->world;
    if (x->under_way[w & 1]) c->table->end(c, x->under_way[w & 1], x->mover->s);
    if (x->mover->is_plain) end_collective(x, w);
    else put_messages(x, w);
}

void mover_begin(Moving* x, const Mover* mover, char* to, const char* from, char* scratch) {
    Comm* c = mover->world;
    *x = (Moving){.mover = mover, .to = to, .from = from, .scratch = scratch, .before = c->purpose};
    c->purpose = mover->purpose;
    x->list = (Transfer*)malloc(2 * sizeof(Transfer) * (size_t)c->size);
    if (!x->list) die("no memory for messages to %d ranks", c->size);
}

void mover_advance(Moving* x, int n) {
    for (; x->begun < n; x->begun++) {
        x->under_way[x->begun & 1] = x->mover->is_plain ? begin_collective(x, x->begun) : begin_messages(x, x->begun);
        if (x->begun > 0) end_wave(x, x->begun - 1);
    }
}

void mover_end(Moving* x) {
    int waves = x->mover->is_plain ? shape_buckets(&x->mover->whole) : x->mover->transfers.waves;
    mover_advance(x, waves);
    if (waves > 0) end_wave(x, waves - 1);
    free(x->list);
    x->mover->world->purpose = x->before;
}

void mover_run(const Mover* mover, char* to, const char* from, char* scratch) {
    Moving x;
    mover_begin(&x, mover, to, from, scratch);
    mover_end(&x);
}
