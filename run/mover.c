// mover.c - see mover.h.
#include "run/mover.h"

#include <stdlib.h>

void mover_open(Mover* mover, const Model* m, const Holdings* from, const Holdings* to, Arena* arena) {
    char err[ERR_BYTES];
    Shape whole = m->whole;
    *mover = (Mover){.kind = RESHARD_COPY, .purpose = COMM_STATE};
    if (reshard(&mover->transfers, &whole, from, to, RESHARD_COPY, m->world->rank, m->world->size, m->world->node,
                arena, err, sizeof err))
        die("optimizer state: %s", err);
}

// ---- scratch: what leaves and what comes of two waves, and two slices on their way into a sum

static size_t wave_elems(const Mover* mover) { return mover->transfers.most_send + mover->transfers.most_receive; }

size_t mover_scratch(const Mover* mover) {
    size_t slices = mover->kind == RESHARD_SUM ? 2 * mover->transfers.most_slice : 0;
    return mover->is_plain ? 0 : 2 * wave_elems(mover) + slices;
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
    x->k->gather_rows(to, from, NULL, slice->rows, slice->cols, ldo, ldx, x->dt, x->s);
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
static int list_messages(const Moving* x, Transfer* list, const Message* messages, int n, char* packed) {
    int count = 0;
    for (const Message* m = messages; m < messages + n; m++) {
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
    for (const Message* m = wave->sends; m < wave->sends + wave->n_sends; m++)
        for (const Slice* s = t->slices + m->first; m->peer != x->world->rank && s < t->slices + m->first + m->n; s++) {
            copy_rows(x, packed, s->cols, x->from + s->at * x->elem, s->stride, s);
            packed += slice_bytes(x, s);
        }
    Transfer* receives = x->list + x->world->size;
    int n_sends = list_messages(x, x->list, wave->sends, wave->n_sends, buffer(x, w, 0));
    int n_receives = list_messages(x, receives, wave->receives, wave->n_receives, buffer(x, w, 1));
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
    const Message* own = wave->sends;
    if (x->under_way[w & 1]) x->world->table->end(x->world, x->under_way[w & 1], x->s);
    while (own < wave->sends + wave->n_sends && own->peer != x->world->rank) own++;
    for (const Message* m = wave->receives; m < wave->receives + wave->n_receives; m++) {
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
