// transfers.c - see transfers.h.
#include "plan/cost/transfers.h"

#include <stdlib.h>

enum { LAYERS = 32 };  // layers of a 7B model, for published machines that say none

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

double transfer_sum_ms(const TransferTimes* t, TransferKind kind, int ranks, int nodes, double whole) {
    double ms = t->cost->link_scale * collective_ms(t->cost, ranks, nodes, t->node_size, t->scale[kind] * whole);
    return kind <= TRANSFER_RING ? t->count * ms : ms;
}

WeightTimes transfer_weights(const TransferTimes* t, const Shape* part, int zero, int ranks, int nodes, int elem_bytes,
                             int grad_bytes) {
    int L = part->L, buckets[] = {0, 1, L + 1}, has_frozen = part->lora.is_all && zero == 3;
    Shape base = shape_base(part);
    double qkv = (double)(part->heads + 2 * part->kv_heads) * part->HS, all = shape_matmul_weights(part),
           head = part->no_head ? 0 : (double)part->vocab_rows * part->C;
    WeightTimes w = {.zero = zero, .layers = L, .across = nodes > 1, .hides = 1, .inside = 1, .head = head / all};
    w.before = qkv * part->C * L / (all - head);
    for (int k = 0; k < N_WEIGHTS; k++) {
        double elems = (double)shape_bucket(part, buckets[k]).elems;
        double frozen = has_frozen ? (double)shape_bucket(&base, buckets[k]).elems : 0;
        w.gather[k] = transfer_sum_ms(t, TRANSFER_WEIGHTS, ranks, nodes, elem_bytes * (elems + frozen));
        w.reduce[k] = transfer_sum_ms(t, TRANSFER_WEIGHTS, ranks, nodes, grad_bytes * elems);
    }
    return w;
}

// ---- moving the model

// One rank in the wave that is counted.
typedef struct RankCount {
    double out, in;  // elements
    int sends, receives, across;
} RankCount;

typedef struct MoveCount {
    MoveTable* table;
    const MoveTime* t;
    double elem;
    int wave, n;
    char* sends;    // (ranks to, ranks from) 1: there is a message
    RankCount* of;  // (ranks)
    int* list;      // (room) senders, those that memory was had for
    int64_t room;
} MoveCount;

static void end_wave(MoveCount* x) {
    int n = x->t->ranks;
    reserve(&x->list, &x->room, x->n, (int64_t)n * n, sizeof *x->list, NULL);
    for (int r = 0; r < n; r++) {
        RankCount* c = &x->of[r];
        int peers = MAX(c->sends, c->receives), i = x->wave * n + r;
        double bytes = x->elem * MAX(c->out, c->in);
        double ms = peers ? transfer_ms(&x->t->links, TRANSFER_WEIGHTS, MAX(peers, 2), c->across, bytes, bytes) : 0;
        x->table->of[i] = (RankWave){ms, c->across};
        x->table->first[i] = x->n;
        for (int from = 0; from < n; from++)
            if (x->sends[(size_t)r * (size_t)n + (size_t)from] && x->n < x->room) x->list[x->n++] = from;
        *c = (RankCount){0};
    }
    memset(x->sends, 0, (size_t)n * (size_t)n);
    x->wave++;
}

static void add_travel(void* context, int wave, const Holding* from, const Holding* to, const Box* box) {
    MoveCount* x = (MoveCount*)context;
    RankCount *sender = &x->of[from->rank], *receiver = &x->of[to->rank];
    while (x->wave < wave) end_wave(x);
    if (sender == receiver) return;
    char* sends = &x->sends[(size_t)to->rank * (size_t)x->t->ranks + (size_t)from->rank];
    int across = x->t->node[from->rank] != x->t->node[to->rank];
    double elems = (double)box->rows * box->cols;
    sender->out += elems, receiver->in += elems;
    sender->sends += !*sends, receiver->receives += !*sends, *sends = 1;
    sender->across |= across, receiver->across |= across;
}

static int open_table(MoveTable* x, const MoveTime* t, const Shape* whole, Arena* arena, Err err) {
    *x = (MoveTable){.waves = shape_buckets(whole), .ranks = t->ranks};
    x->of = TAKE(arena, RankWave, x->waves * t->ranks);
    return arena_check(arena, err);
}

int move_table(MoveTable* table, const MoveTime* t, const Shape* whole, const Holdings* from, const Holdings* to,
               ReshardKind kind, size_t elem, Arena* arena, Err err) {
    size_t n = (size_t)t->ranks;
    if (open_table(table, t, whole, arena, err)) return -1;
    table->first = TAKE(arena, int, table->waves * t->ranks + 1);
    ArenaMark mark = arena_mark(arena);
    MoveCount x = {.table = table, .t = t, .elem = (double)elem};
    x.sends = TAKE(arena, char, n* n), x.of = TAKE(arena, RankCount, n);
    if (arena_check(arena, err)) return -1;
    memset(x.sends, 0, n * n);
    memset(x.of, 0, n * sizeof *x.of);
    int failed = reshard_visit(whole, from, to, kind, t->ranks, t->node, add_travel, &x, arena, err);
    while (!failed && x.wave < table->waves) end_wave(&x);
    arena_reset(arena, mark);
    table->first[table->waves * t->ranks] = x.n;
    table->sender = TAKE(arena, int, x.n + 1);
    if (!failed) failed = arena_check(arena, err);
    if (!failed && x.n) memcpy(table->sender, x.list, (size_t)x.n * sizeof *x.list);
    free(x.list);
    return failed;
}

int move_table_plain(MoveTable* table, const MoveTime* t, const Shape* whole, size_t elem, Arena* arena, Err err) {
    int nodes = 1, n = t->ranks;
    if (open_table(table, t, whole, arena, err)) return -1;
    table->all = 1;
    for (int r = 1; r < n; r++) nodes += t->node[r] != t->node[r - 1];
    for (int b = 0; b < table->waves; b++) {
        double bytes = (double)(shape_bucket(whole, b).piece * elem) * n;
        double ms = transfer_sum_ms(&t->links, TRANSFER_WEIGHTS, n, nodes, bytes);
        for (int r = 0; r < n; r++) table->of[b * n + r] = (RankWave){ms, nodes > 1};
    }
    return 0;
}

void move_play(double* over, RankClock* clock, const MoveTable* x, int wave, const double* ready) {
    int n = x->ranks;
    double last = 0;
    const RankWave* of = x->of + wave * n;
    for (int r = 0; r < n; r++) {
        clock[r].now = MAX(ready[r], clock[r].overlap ? 0 : clock[r].now);
        over[r] = clock_ready(&clock[r], (LinkKind)of[r].across);
        last = MAX(last, over[r]);
    }
    for (int r = 0; r < n; r++) {
        double others = x->all ? last : 0;
        for (int i = x->all ? 0 : x->first[wave * n + r]; i < (x->all ? 0 : x->first[wave * n + r + 1]); i++)
            others = MAX(others, over[x->sender[i]]);
        if (of[r].ms > 0) clock_begin(&clock[r], 0, (LinkKind)of[r].across, of[r].ms, others);
    }
    for (int r = 0; r < n; r++) over[r] = of[r].ms > 0 ? clock[r].link_free[of[r].across] : clock[r].now;
}
