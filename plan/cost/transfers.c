// transfers.c - see transfers.h.
#include "plan/cost/transfers.h"

#include "plan/cost/clock.h"

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

// One rank.
typedef struct RankMove {
    RankClock clock;
    ClockMessage before;          // the wave before
    double out, in, ready;        // of this one, elements; when it is ready for it, ms
    int sends, receives, across;  // messages of it
} RankMove;

typedef struct MovePlay {
    const MoveTime* t;
    double elem;
    int wave;      // whose messages are counted
    char* sends;   // (ranks to, ranks from) whether there is one
    RankMove* at;  // (ranks)
} MovePlay;

static ClockMessage begin_wave(MovePlay* x, int r) {
    RankMove* m = &x->at[r];
    int n = x->t->ranks, peers = MAX(m->sends, m->receives);
    double others = 0, bytes = x->elem * MAX(m->out, m->in);
    if (peers == 0) return (ClockMessage){0};
    for (int from = 0; from < n; from++)
        if (x->sends[(size_t)r * (size_t)n + (size_t)from]) others = MAX(others, x->at[from].ready);
    double ms = transfer_ms(&x->t->links, TRANSFER_WEIGHTS, MAX(peers, 2), m->across, bytes, bytes);
    return clock_begin(&m->clock, 0, m->across, ms, others);
}

static void play_wave(MovePlay* x) {
    int n = x->t->ranks;
    for (int r = 0; r < n; r++) x->at[r].ready = clock_ready(&x->at[r].clock, x->at[r].across);
    for (int r = 0; r < n; r++) {
        ClockMessage wave = begin_wave(x, r);
        clock_wait(&x->at[r].clock, 0, x->at[r].before);
        x->at[r] = (RankMove){.clock = x->at[r].clock, .before = wave, .ready = x->at[r].ready};
    }
    memset(x->sends, 0, (size_t)n * (size_t)n);
}

static void add_travel(void* context, int wave, const Holding* from, const Holding* to, const Box* box) {
    MovePlay* x = (MovePlay*)context;
    RankMove *sender = &x->at[from->rank], *receiver = &x->at[to->rank];
    for (; x->wave < wave; x->wave++) play_wave(x);
    if (sender == receiver) return;
    char* sends = &x->sends[(size_t)to->rank * (size_t)x->t->ranks + (size_t)from->rank];
    int across = x->t->node[from->rank] != x->t->node[to->rank];
    double elems = (double)box->rows * box->cols;
    sender->out += elems, receiver->in += elems;
    sender->sends += !*sends, receiver->receives += !*sends, *sends = 1;
    sender->across |= across, receiver->across |= across;
}

int move_time(double* ends, const MoveTime* t, const Shape* whole, const Holdings* from, const Holdings* to,
              ReshardKind kind, size_t elem, Arena* arena, Err err) {
    size_t n = (size_t)t->ranks;
    ArenaMark mark = arena_mark(arena);
    MovePlay x = {.t = t, .elem = (double)elem, .sends = TAKE(arena, char, n* n), .at = TAKE(arena, RankMove, n)};
    if (arena_check(arena, err)) return -1;
    memset(x.sends, 0, n * n);
    for (size_t r = 0; r < n; r++) x.at[r] = (RankMove){.clock = {.overlap = t->overlap}};
    int failed = reshard_visit(whole, from, to, kind, t->ranks, t->node, add_travel, &x, arena, err);
    play_wave(&x);
    for (size_t r = 0; r < n; r++) clock_wait(&x.at[r].clock, 0, x.at[r].before), ends[r] = x.at[r].clock.now;
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
