// balance_units.c - decisions about slow ranks in whole heads and hidden units; see balance.h.
//
// Attention and MLP each end in a communication of the whole group, and so does all that cannot move. So a step takes
//
//   T = max c + max heads head_ms + max hidden hidden_ms + max moving          each maximum over the ranks
//
// with head_ms = (matrices of a head) hidden_ms (1 - g) + attention, g the fraction of its matmuls that a rank leaves
// out. Each maximum is made least for itself. Units go one at a time from the rank that decides it to the one that ends
// first with it, as long as that is sooner: then no other division of equal units ends sooner, since the last to give
// cannot, or would take as long elsewhere. What moves is sent before the first segment and comes back after the last.
#include "plan/slow/balance.h"

// ---- times

typedef struct UnitTimes {
    double head, hidden;  // ms of one
} UnitTimes;

static UnitTimes unit_times(const RankSpeed* rank, SliceCount own, const UnitGroup* x, double pruned) {
    double ms = rank->n / rank->v, matmuls = own.hidden + own.heads * x->matrices;
    double hidden = rank->prunable * ms / matmuls, attention = own.heads ? (1 - rank->prunable) * ms / own.heads : 0;
    return (UnitTimes){x->matrices * hidden * (1 - pruned) + attention, hidden * (1 - pruned)};
}

// Hidden units whose matrices are as large as what a rank takes (> 0) or gives.
static double moved(const UnitGroup* x, SliceCount own, SliceCount now) {
    return now.hidden - own.hidden + (now.heads - own.heads) * x->matrices;
}

double balance_step_ms(const SliceCount* counts, const double* pruned, const RankSpeed* ranks, const UnitGroup* x,
                       const MoveCost* cost) {
    double c = 0, attention = 0, mlp = 0, moving = 0;
    for (int r = 0; r < x->ranks; r++) {
        UnitTimes t = unit_times(&ranks[r], x->own[r], x, pruned[r]);
        double change = moved(x, x->own[r], counts[r]);
        c = MAX(c, ranks[r].c);
        attention = MAX(attention, counts[r].heads * t.head);
        mlp = MAX(mlp, counts[r].hidden * t.hidden);
        if (change < 0) moving = MAX(moving, cost->fixed - change * cost->send);
        if (change > 0) moving = MAX(moving, cost->fixed + change * cost->take);
    }
    return c + attention + mlp + moving;
}

// ---- one kind of unit, divided

// Of each rank: what it has, may not go below and not above; ms of one; 0 neither gives nor takes.
typedef struct Kind {
    int count[MOST_TP], tiles[MOST_TP], least[MOST_TP], most[MOST_TP], role[MOST_TP];
    double ms[MOST_TP];
    int tile;  // units that go together; the last of a rank may be fewer
} Kind;

enum { GIVES = -1, TAKES = 1 };

static void divide_kind(Kind* k, int ranks) {
    for (;;) {
        int last = 0, first = -1;
        for (int r = 1; r < ranks; r++)
            if (k->count[r] * k->ms[r] > k->count[last] * k->ms[last]) last = r;
        int size = k->count[last] % k->tile ? k->count[last] % k->tile : k->tile;
        if (k->role[last] != GIVES || k->count[last] - size < k->least[last]) return;
        for (int r = 0; r < ranks; r++) {
            if (k->role[r] != TAKES || k->count[r] + k->tile > k->most[r]) continue;
            if (first < 0 || (k->count[r] + size) * k->ms[r] < (k->count[first] + size) * k->ms[first]) first = r;
        }
        if (first < 0 || (k->count[first] + size) * k->ms[first] >= k->count[last] * k->ms[last]) return;
        k->count[last] -= size, k->tiles[last]--;
        k->count[first] += size, k->tiles[first]++;
    }
}

void balance_divide(BalanceDecision* d, const RankSpeed* ranks, const UnitGroup* x, const MoveCost* cost) {
    Kind heads = {.tile = 1}, hidden = {.tile = x->tile};
    Move moves[2 * MOST_TP];
    for (int r = 0; r < x->ranks; r++) {
        UnitTimes t = unit_times(&ranks[r], x->own[r], x, d->pruned[r]);
        int role = d->sent[r] > 0 ? GIVES : d->taken[r] > 0 ? TAKES : 0;
        heads.count[r] = x->own[r].heads, hidden.count[r] = x->own[r].hidden;
        heads.tiles[r] = x->own[r].heads, hidden.tiles[r] = CEIL_DIV(x->own[r].hidden, x->tile);
        heads.least[r] = x->keep_heads, hidden.least[r] = MIN(x->tile, x->own[r].hidden);
        heads.most[r] = x->most[r].heads, hidden.most[r] = x->most[r].hidden;
        heads.role[r] = hidden.role[r] = role;
        heads.ms[r] = t.head, hidden.ms[r] = t.hidden;
    }
    divide_kind(&heads, x->ranks);
    divide_kind(&hidden, x->ranks);
    for (int r = 0; r < x->ranks; r++) d->tiles[r] = (SliceCount){heads.tiles[r], hidden.tiles[r]};
    // Who gets a short tile is settled by the moves.
    int n_moves = balance_moves(moves, x->own, d->tiles, x->ranks, x->tile);
    for (int r = 0; r < x->ranks; r++) {
        d->counts[r] = balance_count(moves, n_moves, x->own, r);
        double change = d->counts[r].hidden - x->own[r].hidden + (d->counts[r].heads - x->own[r].heads) * x->head_work;
        d->sent[r] = MAX(0, -change), d->taken[r] = MAX(0, change);
    }
    d->step_ms = balance_step_ms(d->counts, d->pruned, ranks, x, cost);
}

// ---- moves
//
// Who gets whose is settled by going through both in order of their ranks, which leaves few pairs: at most one less
// than those who give and take together, for heads and for hidden units.

// Takes from both what both have.
static int match(int* give, int* get) {
    int n = MAX(0, MIN(*give, *get));
    *give -= n;
    *get -= n;
    return n;
}

int balance_moves(Move* moves, const SliceCount* own, const SliceCount* tiles, int ranks, int tile) {
    int n = 0, get_heads[MOST_TP], get_tiles[MOST_TP];  // less than 0: to give
    for (int r = 0; r < ranks; r++) {
        get_heads[r] = tiles[r].heads - own[r].heads;
        get_tiles[r] = tiles[r].hidden - CEIL_DIV(own[r].hidden, tile);
    }
    for (int from = 0; from < ranks; from++) {
        int give_heads = MAX(0, -get_heads[from]), give_tiles = MAX(0, -get_tiles[from]);
        int head = own[from].heads - give_heads, first_tile = CEIL_DIV(own[from].hidden, tile) - give_tiles;
        for (int to = 0; to < ranks; to++) {
            int n_heads = match(&give_heads, &get_heads[to]), n_tiles = match(&give_tiles, &get_tiles[to]);
            if (n_heads == 0 && n_tiles == 0) continue;
            int first = MIN(first_tile * tile, own[from].hidden), end = MIN(first + n_tiles * tile, own[from].hidden);
            moves[n++] = (Move){from, to, head, n_heads, first, end - first};
            head += n_heads;
            first_tile += n_tiles;
        }
    }
    return n;
}

SliceCount balance_count(const Move* moves, int n_moves, const SliceCount* own, int rank) {
    SliceCount count = own[rank];
    for (int i = 0; i < n_moves; i++) {
        int sign = (moves[i].to == rank) - (moves[i].from == rank);
        count.heads += sign * moves[i].heads;
        count.hidden += sign * moves[i].hidden;
    }
    return count;
}
