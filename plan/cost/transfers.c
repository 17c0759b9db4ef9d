// transfers.c - see transfers.h.
#include "plan/cost/transfers.h"

enum { LAYERS = 32 };  // of a 7B model, where a published machine says nothing

TransferTimes transfer_times(const Machine* machine, const Shape* s, int elem_bytes, int node_size) {
    const Cost* cost = &machine->cost;
    double queries = s->NH * s->HS, keys = s->NKV * s->HS, elem = elem_bytes;
    double parameters = machine_parameters(machine);
    double token = cost->token_bytes / (2 * s->L * elem * (2 * queries + 2 * keys));
    double channel = cost->elem_bytes * cost->channels / (elem * queries);
    double key = cost->elem_bytes * cost->kv_channels / (elem * keys);
    double stream = token * s->L / (machine->layers > 0 ? machine->layers : LAYERS);
    double weights = parameters > 0 ? parameters / (double)shape_param_count(s) : 1;
    if (cost->n_groups > 0) return (TransferTimes){cost, node_size, {token, token, token, stream, weights}, 1};
    return (TransferTimes){cost, node_size, {channel, channel, key, channel, weights}, (double)cost->layers / s->L};
}

double transfer_ms(const TransferTimes* t, TransferKind kind, int ranks, int across, double sent, double whole) {
    int published = t->cost->n_groups > 0;
    double bytes = t->scale[kind] * (published && kind == TRANSFER_ULYSSES ? whole : sent);
    double ms = t->cost->link_scale * message_ms(t->cost, ranks, across, t->node_size, bytes);
    return kind <= TRANSFER_RING ? t->count * ms : ms;
}

// ---- moving the model

// One rank; ms.
typedef struct RankMove {
    double now, link_free[2];     // of links inside a node, and between nodes
    double over, ready, takes;    // of the wave before: when it is over; of this one
    double out, in;               // elements of this wave
    int sends, receives, across;  // messages of this wave
} RankMove;

typedef struct MovePlay {
    const MoveTime* t;
    double elem;
    int wave;       // whose messages stand in elems
    size_t* elems;  // (ranks to, ranks from)
    RankMove* at;   // (ranks)
} MovePlay;

static void count_messages(MovePlay* x) {
    int n = x->t->ranks;
    for (int r = 0; r < n; r++)
        x->at[r].out = x->at[r].in = 0, x->at[r].sends = x->at[r].receives = x->at[r].across = 0;
    for (int to = 0; to < n; to++)
        for (int from = 0; from < n; from++) {
            size_t elems = x->elems[(size_t)to * (size_t)n + (size_t)from];
            if (elems == 0) continue;
            int across = x->t->node[from] != x->t->node[to];
            x->at[from].out += (double)elems, x->at[from].sends++, x->at[from].across |= across;
            x->at[to].in += (double)elems, x->at[to].receives++, x->at[to].across |= across;
        }
}

static double wave_ms(const MovePlay* x, const RankMove* m) {
    double bytes = x->elem * MAX(m->out, m->in);
    return transfer_ms(&x->t->links, TRANSFER_WEIGHTS, MAX(MAX(m->sends, m->receives), 2), m->across, bytes, bytes);
}

static void play_wave(MovePlay* x) {
    int n = x->t->ranks;
    count_messages(x);
    for (int r = 0; r < n; r++) {
        RankMove* m = &x->at[r];
        m->ready = MAX(m->now, m->link_free[m->across]);
        m->takes = m->sends + m->receives ? wave_ms(x, m) : 0;
    }
    for (int r = 0; r < n; r++) {
        RankMove* m = &x->at[r];
        double over = m->ready;
        for (int from = 0; from < n; from++)
            if (x->elems[(size_t)r * (size_t)n + (size_t)from]) over = MAX(over, x->at[from].ready);
        over += m->takes;
        if (m->sends + m->receives == 0) over = 0;
        else m->link_free[m->across] = over;
        m->now = MAX(m->now, x->t->overlap ? m->over : over);
        m->over = over;
    }
    memset(x->elems, 0, sizeof *x->elems * (size_t)n * (size_t)n);
}

static void add_travel(void* context, int wave, const Holding* from, const Holding* to, const Box* box) {
    MovePlay* x = (MovePlay*)context;
    for (; x->wave < wave; x->wave++) play_wave(x);
    if (from->rank != to->rank)
        x->elems[(size_t)to->rank * (size_t)x->t->ranks + (size_t)from->rank] += (size_t)box->rows * (size_t)box->cols;
}

int move_time(double* ends, const MoveTime* t, const Shape* whole, const Holdings* from, const Holdings* to,
              ReshardKind kind, size_t elem, Arena* arena, Err err) {
    size_t n = (size_t)t->ranks;
    ArenaMark mark = arena_mark(arena);
    MovePlay x = {.t = t, .elem = (double)elem, .elems = TAKE(arena, size_t, n * n), .at = TAKE(arena, RankMove, n)};
    if (arena_check(arena, err)) return -1;
    memset(x.elems, 0, sizeof *x.elems * n * n);
    memset(x.at, 0, sizeof *x.at * n);
    int failed = reshard_visit(whole, from, to, kind, t->ranks, t->node, add_travel, &x, arena, err);
    play_wave(&x);
    for (size_t r = 0; r < n; r++) ends[r] = MAX(x.at[r].now, x.at[r].over);
    arena_reset(arena, mark);
    return failed;
}

double move_time_plain(const MoveTime* t, const Shape* whole, size_t elem) {
    int across = 0;
    double ms = 0;
    for (int r = 0; r < t->ranks; r++) across |= t->node[r] != t->node[0];
    for (int b = 0; b < shape_buckets(whole) && t->ranks > 1; b++) {
        double piece = (double)(shape_bucket(whole, b).piece * elem);
        ms += transfer_ms(&t->links, TRANSFER_WEIGHTS, t->ranks, across, piece * (t->ranks - 1), piece * t->ranks);
    }
    return ms;
}
