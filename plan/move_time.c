// move_time.c - see move_time.h.
#include "plan/move_time.h"

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

static void add_travel(void* context, int wave, int from, int to, size_t elems) {
    MovePlay* x = (MovePlay*)context;
    for (; x->wave < wave; x->wave++) play_wave(x);
    x->elems[(size_t)to * (size_t)x->t->ranks + (size_t)from] += elems;
}

int move_time(double* ends, const MoveTime* t, const Shape* whole, const Holdings* from, const Holdings* to,
              ReshardKind kind, size_t elem, Arena* arena, char* err, size_t errlen) {
    size_t n = (size_t)t->ranks;
    ArenaMark mark = arena_mark(arena);
    MovePlay x = {.t = t, .elem = (double)elem, .elems = TAKE(arena, size_t, n * n), .at = TAKE(arena, RankMove, n)};
    if (arena_check(arena, err, errlen)) return -1;
    memset(x.elems, 0, sizeof *x.elems * n * n);
    memset(x.at, 0, sizeof *x.at * n);
    int failed = reshard_visit(whole, from, to, kind, t->ranks, t->node, add_travel, &x, arena, err, errlen);
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
