// mover.c - see mover.h.
#include "run/model/mover.h"

#include <stdlib.h>

#include "kernels/rank_ops.h"

static int waves_of(const Mover* mover) {
    return mover->is_plain ? shape_buckets(&mover->whole) : mover->transfers.waves;
}

static size_t slice_elems(const Slice* slice) { return (size_t)slice->rows * (size_t)slice->cols; }
static int is_cast(const Mover* mover) { return mover->wire != mover->dt; }
static int is_tight(const Slice* slice) { return slice->rows == 1 || slice->cols == slice->stride; }

// ---- scratch: what leaves and what comes of two waves, or of all, or copies of buckets; and two slices

// Returns whether a slice travels from or to a packed copy.
static int is_packed(const Mover* mover, const Slice* slice, int comes) {
    int sums = comes && mover->kind == RESHARD_SUM;
    return !mover->is_posted || sums || is_cast(mover) || !is_tight(slice);
}

static size_t packed_elems(const Mover* mover, const Messages* messages, int comes) {
    size_t elems = 0;
    for (const Message* m = messages->list; m < messages->list + messages->n; m++)
        for (const Slice* x = mover->transfers.slices + m->first; x < mover->transfers.slices + m->first + m->n; x++)
            elems += m->peer != mover->world->rank && is_packed(mover, x, comes) ? slice_elems(x) : 0;
    return elems;
}

static size_t wave_elems(const Mover* mover, int w) {
    if (mover->is_plain) return is_cast(mover) ? shape_bucket(&mover->whole, w).elems : 0;
    const Wave* wave = &mover->transfers.wave[w];
    return packed_elems(mover, &wave->sends, 0) + packed_elems(mover, &wave->receives, 1);
}

static int count_slices(const Messages* messages) {
    int n = 0;
    for (const Message* m = messages->list; m < messages->list + messages->n; m++) n += m->n;
    return n;
}

// Places the scratch of waves. If it is short, even waves share one place and odd waves the other.
static void place_waves(Mover* mover) {
    int waves = waves_of(mover);
    size_t most = 0, elems = 0;
    for (int w = 0; w < waves; w++) most = MAX(most, wave_elems(mover, w));
    for (int w = 0; w <= waves; w++) {
        mover->scratch_at[w] = !mover->by_turns ? elems : w < waves ? (size_t)(w & 1) * most : 2 * most;
        if (w < waves) elems += wave_elems(mover, w);
    }
}

Mover mover_open(const Model* m, Comm* world, ReshardKind kind, CommPurpose purpose, DType dt, const Holdings* from,
                 const Holdings* to, Arena* arena) {
    char err[ERR_BYTES];
    Mover mover = {.kind = kind == RESHARD_COPY ? RESHARD_COPY : RESHARD_SUM, .purpose = purpose, .by_turns = 1};
    mover.dt = mover.wire = dt, mover.is_plain = !from;
    mover.world = world, mover.whole = m->whole, mover.k = m->k, mover.s = m->s;
    const char* what = purpose == COMM_STATE ? "optimizer state" : "weights";
    if (from && reshard(&mover.transfers, &m->whole, from, to, kind, world->rank, world->size, world->node, arena, err))
        die("a move of %s: %s", what, err);
    for (int w = 0; w < mover.transfers.waves; w++) {
        const Wave* wave = &mover.transfers.wave[w];
        mover.slices = MAX(mover.slices, count_slices(&wave->sends) + count_slices(&wave->receives));
    }
    mover.scratch_at = TAKE(arena, size_t, waves_of(&mover) + 1);
    if (arena_check(arena, err)) die("a move of %s: %s", what, err);
    place_waves(&mover);
    return mover;
}

void mover_post(Mover* mover, DType wire, int two) {
    mover->is_posted = 1, mover->by_turns = two, mover->wire = wire;
    place_waves(mover);
}

// Returns scratch in elements of dt.
static size_t waves_elems(const Mover* mover) {
    size_t elems = mover->scratch_at[waves_of(mover)];
    return CEIL_DIV(elems * dtype_bytes(mover->wire), dtype_bytes(mover->dt));
}

size_t mover_scratch(const Mover* mover) {
    return waves_elems(mover) + (mover->kind == RESHARD_SUM ? 2 * mover->transfers.most_slice : 0);
}

static char* at(const Moving* x, char* base, size_t elem) { return base + elem * dtype_bytes(x->mover->dt); }
static char* wire_at(const Moving* x, char* base, size_t elem) { return base + elem * dtype_bytes(x->mover->wire); }

static char* buffer(const Moving* x, int w) { return wire_at(x, x->scratch, x->mover->scratch_at[w]); }

static char* slice_buffer(const Moving* x, int i) {
    return at(x, x->scratch, waves_elems(x->mover) + (size_t)i * x->mover->transfers.most_slice);
}

// ---- slices

static void copy_rows(const Moving* x, char* to, int ldo, const char* from, int ldx, const Slice* slice) {
    const Mover* mover = x->mover;
    mover->k->ranks->gather_rows(to, from, NULL, slice->rows, slice->cols, ldo, ldx, mover->dt, mover->s);
}

static void pack(const Moving* x, char* packed, const Slice* slice) {
    copy_rows(x, packed, slice->cols, at(x, (char*)x->from, slice->at), slice->stride, slice);
}

// Moves a packed slice to its place, or adds it there. `add` knows no rows, so that those with gaps between them are
// added in a packed copy.
static void put(const Moving* x, const char* packed, const Slice* slice) {
    char *to = at(x, x->to, slice->at), *sum = is_tight(slice) ? to : slice_buffer(x, 0);
    if (x->mover->kind == RESHARD_COPY) {
        copy_rows(x, to, slice->stride, packed, slice->cols, slice);
        return;
    }
    if (sum != to) copy_rows(x, sum, slice->cols, to, slice->stride, slice);
    x->mover->k->add(sum, sum, packed, slice_elems(slice), x->mover->dt, x->mover->s);
    if (sum != to) copy_rows(x, to, slice->stride, sum, slice->cols, slice);
}

// Moves what this rank has and keeps, which is a message to itself.
static void put_own(const Moving* x, const Message* sent, const Message* received) {
    const Slice *from = x->mover->transfers.slices + sent->first, *to = x->mover->transfers.slices + received->first;
    for (int i = 0; i < sent->n; i++) {
        char *here = at(x, (char*)x->from, from[i].at), *there = at(x, x->to, to[i].at);
        if (x->mover->kind == RESHARD_SUM) pack(x, slice_buffer(x, 1), &from[i]), put(x, slice_buffer(x, 1), &to[i]);
        else copy_rows(x, there, to[i].stride, here, from[i].stride, &to[i]);
    }
}

// Packs a slice as it travels, and puts one that has come to its place.
static void pack_sent(const Moving* x, char* packed, const Slice* slice) {
    const Mover* mover = x->mover;
    char* here = is_cast(mover) ? slice_buffer(x, 1) : packed;
    pack(x, here, slice);
    if (is_cast(mover)) mover->k->ranks->cast(packed, mover->wire, here, mover->dt, slice_elems(slice), mover->s);
}

static void put_received(const Moving* x, char* packed, const Slice* slice) {
    const Mover* mover = x->mover;
    char* here = is_cast(mover) ? slice_buffer(x, 1) : packed;
    if (is_cast(mover)) mover->k->ranks->cast(here, mover->dt, packed, mover->wire, slice_elems(slice), mover->s);
    put(x, here, slice);
}

// ---- waves

// Lists the messages with others and packs what is sent. Each slice is a message if some travel from their place, else
// a peer's slices are one. Returns how many.
static int list_messages(const Moving* x, Transfer* list, const Messages* messages, char* packed, int comes) {
    const Mover* mover = x->mover;
    int count = 0;
    for (const Message* m = messages->list; m < messages->list + messages->n; m++) {
        if (m->peer == mover->world->rank) continue;
        for (int i = 0; i < m->n; i++) {
            const Slice* slice = &mover->transfers.slices[m->first + i];
            size_t elems = slice_elems(slice), bytes = elems * dtype_bytes(mover->wire);
            char* data = comes ? at(x, x->to, slice->at) : at(x, (char*)x->from, slice->at);
            if (is_packed(mover, slice, comes)) {
                data = packed, packed = wire_at(x, packed, elems);
                if (!comes) pack_sent(x, data, slice);
            }
            if (i > 0 && !mover->is_posted) list[count - 1].bytes += bytes;
            else list[count++] = (Transfer){m->peer, data, bytes};
        }
    }
    return count;
}

static char* receive_buffer(const Moving* x, int w) {
    return wire_at(x, buffer(x, w), packed_elems(x->mover, &x->mover->transfers.wave[w].sends, 0));
}

static Request begin_messages(const Moving* x, int w) {
    const Wave* wave = &x->mover->transfers.wave[w];
    Comm* c = x->mover->world;
    int n_sends = list_messages(x, x->list, &wave->sends, buffer(x, w), 0);
    Transfer* receives = x->list + n_sends;
    int n_receives = list_messages(x, receives, &wave->receives, receive_buffer(x, w), 1);
    if (n_sends + n_receives)
        return c->table->begin_send_receive(c, x->list, n_sends, receives, n_receives, x->mover->s);
    // Every wave is a wait of all ranks for the timer, those too that have no message.
    timer_enter(c->timer, timer_enter(c->timer, TIME_WAIT, x->mover->s), x->mover->s);
    return 0;
}

static void put_messages(const Moving* x, int w) {
    const Wave* wave = &x->mover->transfers.wave[w];
    char* packed = receive_buffer(x, w);
    const Message* own = wave->sends.list;
    while (own < wave->sends.list + wave->sends.n && own->peer != x->mover->world->rank) own++;
    for (const Message* m = wave->receives.list; m < wave->receives.list + wave->receives.n; m++)
        for (int i = 0; i < m->n; i++) {
            const Slice* slice = &x->mover->transfers.slices[m->first + i];
            if (m->peer == x->mover->world->rank && i == 0) put_own(x, own, m);
            if (m->peer == x->mover->world->rank || !is_packed(x->mover, slice, 1)) continue;
            put_received(x, packed, slice);
            packed = wire_at(x, packed, slice_elems(slice));
        }
}

// A bucket is whole at its offset in arrays to compute with. A rank's piece is at offset / ranks in owned arrays.
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

// Returns this rank's piece in the copy of a bucket that is cast.
static char* copied_piece(const Moving* x, int w, const BucketHere* bucket) {
    return wire_at(x, buffer(x, w), (size_t)x->mover->world->rank * bucket->piece);
}

static Request begin_collective(const Moving* x, int w) {
    const Mover* mover = x->mover;
    Comm* c = mover->world;
    BucketHere b = bucket_here(x, w);
    if (mover->kind == RESHARD_COPY) return c->table->begin_all_gather(c, b.all, b.own, b.piece, mover->dt, mover->s);
    if (!is_cast(mover)) return c->table->begin_reduce_scatter(c, b.own, b.all, b.piece, mover->dt, mover->s);
    char* copy = buffer(x, w);
    mover->k->ranks->cast(copy, mover->wire, b.all, mover->dt, b.elems, mover->s);
    return c->table->begin_reduce_scatter(c, copied_piece(x, w, &b), copy, b.piece, mover->wire, mover->s);
}

// Gradients leave from the last bucket on.
static int wave_of(const Moving* x, int i) {
    const Mover* mover = x->mover;
    return mover->is_posted && mover->kind == RESHARD_SUM ? waves_of(mover) - 1 - i : i;
}

static void end_wave(Moving* x, int w) {
    const Mover* mover = x->mover;
    Comm* c = mover->world;
    if (x->under_way[w]) c->table->end(c, x->under_way[w], mover->s);
    if (!mover->is_plain) put_messages(x, w);
    if (!mover->is_plain || !is_cast(mover)) return;
    BucketHere b = bucket_here(x, w);
    mover->k->ranks->cast(b.own, mover->dt, copied_piece(x, w, &b), mover->wire, b.piece, mover->s);
}

void mover_begin(Moving* x, const Mover* mover, char* to, const char* from, char* scratch) {
    int waves = waves_of(mover);
    *x = (Moving){.mover = mover, .to = to, .from = from, .scratch = scratch};
    x->list = (Transfer*)malloc(sizeof(Transfer) * ((size_t)mover->slices + 1));
    x->under_way = (Request*)calloc((size_t)waves + 1, sizeof(Request));
    if (!x->list || !x->under_way) die("no memory for %d messages", mover->slices);
}

void mover_advance(Moving* x, int n) {
    const Mover* mover = x->mover;
    Comm* c = mover->world;
    for (; x->begun < n; x->begun++) {
        int w = wave_of(x, x->begun);
        CommPurpose before = c->purpose;
        c->purpose = mover->purpose;
        x->under_way[w] = mover->is_plain ? begin_collective(x, w) : begin_messages(x, w);
        c->purpose = before;
        if (!mover->is_posted) mover_arrive(x, x->begun);
    }
}

void mover_arrive(Moving* x, int n) {
    for (; x->over < n; x->over++) end_wave(x, wave_of(x, x->over));
}

void mover_end(Moving* x) {
    int waves = waves_of(x->mover);
    mover_advance(x, waves);
    mover_arrive(x, waves);
    free(x->list);
    free(x->under_way);
    *x = (Moving){0};
}

void mover_run(const Mover* mover, char* to, const char* from, char* scratch) {
    Moving x;
    mover_begin(&x, mover, to, from, scratch);
    mover_end(&x);
}
