// test_balance_moves.c - claims about decisions in whole heads and hidden units: each is computed by one rank, and
// rounding costs little.
#include "test/balance_groups.h"

// A group of a real model: its slices, and a decision for it.
typedef struct Case {
    int ranks, tile, keep_heads;
    double head_work;
    SliceCount own[MOST_TP];
    RankSpeed group[MOST_TP];
    BalanceSetting setting;
    BalanceDecision decision;
    Move moves[2 * MOST_TP];
    int n_moves;
} Case;

static double slices_of(const Case* x, SliceCount n) { return n.hidden + n.heads * x->head_work; }

static void random_case(Case* x, uint64_t seed) {
    int width = 64 * whole(seed, 1, 2, 32), most = MOST_TP;
    memset(x, 0, sizeof *x);
    x->ranks = whole(seed, 0, 2, seed % 4 ? 8 : most);
    x->tile = 1 << whole(seed, 2, 0, 6);
    x->keep_heads = whole(seed, 3, 0, 1);
    x->head_work = uniform(seed, 4, 20, 400);
    x->setting = setting_of(seed % 3 ? BALANCE_MIGRATE : BALANCE_SEMI, x->ranks);
    x->setting.semi_lambda = uniform(seed, 5, 0, 20);
    random_group(seed, x->group, x->ranks, &x->setting.cost, 1);
    x->setting.cost = (MoveCost){uniform(seed, 6, 0, 50), uniform(seed, 7, 0, .3), uniform(seed, 8, 0, .2)};
    for (int r = 0; r < x->ranks; r++) {
        uint64_t at = (uint64_t)(1000 + 10 * r);
        x->own[r] = (SliceCount){whole(seed, at, 1, 8), whole(seed, at + 1, 1, 2 * width)};
        x->group[r].n = slices_of(x, x->own[r]);
        x->group[r].room = uniform(seed, at + 2, 0, 2) * x->group[r].n;
        int stays = MIN(x->tile, x->own[r].hidden);
        x->group[r].movable = slices_of(x, (SliceCount){x->own[r].heads - x->keep_heads, x->own[r].hidden - stays});
    }
    x->decision = decide(&x->setting, x->group);
    x->n_moves = balance_moves(x->moves, &x->decision, x->own, x->ranks, x->head_work, x->tile, x->keep_heads);
}

// How often each head and hidden unit of rank r is computed: 1 everywhere.
static int is_computed_once(const Case* x, int r) {
    static int heads[8 + 1], hidden[4096 + 1];
    memset(heads, 0, sizeof heads), memset(hidden, 0, sizeof hidden);
    int kept_heads = x->own[r].heads, kept_hidden = x->own[r].hidden;
    for (int i = 0; i < x->n_moves; i++) {
        const Move* m = &x->moves[i];
        if (m->from != r) continue;
        if (m->head < 0 || m->first_hidden < 0 || m->heads < 0 || m->hidden < 0 || m->heads + m->hidden == 0) return 0;
        if (m->head + m->heads > x->own[r].heads || m->first_hidden + m->hidden > x->own[r].hidden) return 0;
        for (int h = 0; h < m->heads; h++) heads[m->head + h]++;
        for (int u = 0; u < m->hidden; u++) hidden[m->first_hidden + u]++;
        kept_heads -= m->heads, kept_hidden -= m->hidden;
    }
    for (int h = 0; h < x->own[r].heads; h++)  // its own first ones, then what others have
        if (heads[h] != (h >= kept_heads)) return 0;
    for (int u = 0; u < x->own[r].hidden; u++)
        if (hidden[u] != (u >= kept_hidden)) return 0;
    return 1;
}

static void every_head_and_hidden_unit_is_computed_by_one_rank(void) {
    int moved = 0, tight = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        static Case x;
        int failed = test_failures_in_claim;
        random_case(&x, seed);
        SliceCount before = {0}, after = {0};
        CHECK(x.n_moves >= 0 && x.n_moves <= 2 * x.ranks);
        for (int i = 0; i < x.n_moves; i++) {
            const Move* m = &x.moves[i];
            CHECK(m->from >= 0 && m->from < x.ranks && m->to >= 0 && m->to < x.ranks);
            CHECK(x.decision.sent[m->from] > 0 && x.decision.taken[m->to] > 0);
            CHECK(m->first_hidden % x.tile == 0 || m->hidden == 0);
            if (i > 0) CHECK(m[-1].from < m->from || (m[-1].from == m->from && m[-1].to < m->to));
        }
        for (int r = 0; r < x.ranks; r++) {
            SliceCount n = balance_count(x.moves, x.n_moves, x.own, r);
            CHECK(is_computed_once(&x, r));
            CHECK(n.hidden >= MIN(x.own[r].hidden, x.tile) && n.heads >= MIN(x.own[r].heads, x.keep_heads));
            before.heads += x.own[r].heads, before.hidden += x.own[r].hidden;
            after.heads += n.heads, after.hidden += n.hidden;
        }
        CHECK(before.heads == after.heads && before.hidden == after.hidden);
        moved += x.n_moves > 0, tight += x.n_moves > x.ranks;
        if (failed != test_failures_in_claim) printf("    seed %d\n", (int)seed);
    }
    CHECK(moved > 1000 && tight > 5);
}

// Rounded, a straggler ends at most tile / (v + v_h) after the decision, v_h the mean speed of helpers: its own
// slowness does not multiply a tile. Where it has given all tiles it may, heads have to do, and it is a head. Of Q
// helpers the one that gets a micro-batch of `size` is late by l <= (size - need_h) / v_h for every helper h. Summed
// over all: l <= (Q size - what is still needed) / sum v, and needed are this micro-batch and all that follow, less
// what stragglers give beyond the decision.
static void rounding_costs_a_tile_or_a_head(void) {
    int tiles_only = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        static Case x;
        random_case(&x, seed);
        double speeds = 0, beyond = 0;
        int failed = test_failures_in_claim, helpers = 0, heads = 0;
        for (int r = 0; r < x.ranks; r++) {
            SliceCount n = balance_count(x.moves, x.n_moves, x.own, r);
            double given = CEIL_DIV(x.own[r].hidden - n.hidden, x.tile) * x.tile;  // a short tile counts in full
            given += (x.own[r].heads - n.heads) * x.head_work;
            if (x.decision.sent[r] > 0) beyond += given - x.decision.sent[r];
            if (x.decision.taken[r] > 0) helpers++, speeds += x.group[r].v;
        }
        if (helpers == 0) continue;
        for (int i = 0; i < x.n_moves; i++) heads += x.moves[i].heads;
        double largest = heads ? MAX(x.tile, x.head_work) : x.tile;
        for (int r = 0; r < x.ranks; r++) {
            SliceCount n = balance_count(x.moves, x.n_moves, x.own, r);
            double change = slices_of(&x, n) - x.group[r].n, v = x.group[r].v;
            double late = (change + x.decision.sent[r] - x.decision.taken[r]) / v, rounding = 1e-9 * x.decision.idle_ms;
            double size = n.hidden <= x.tile ? MAX(x.tile, x.head_work) : x.tile;
            if (x.decision.sent[r] > 0) CHECK(late <= size / (v + speeds / helpers) + rounding);
            else if (change > 0) CHECK(late <= ((helpers - 1) * largest + MAX(beyond, 0)) / speeds + rounding);
            else CHECK(change == 0);
        }
        tiles_only += x.n_moves > 0 && heads == 0;
        if (failed != test_failures_in_claim) printf("    seed %d\n", (int)seed);
    }
    CHECK(tiles_only > 50);
}

// GPT-2 124M on 4 ranks, one of them four times as slow.
static void a_known_decision_is_rounded_as_by_hand(void) {
    BalanceDecision d = {.active = 1, .sent = {797.5}, .taken = {0, 265.8, 265.8, 265.9}, .v = {.25, 1, 1, 1}};
    SliceCount own[4] = {{3, 768}, {3, 768}, {3, 768}, {3, 768}};
    // 2 heads are 256 slices. Of 541.5, 8 tiles are 512, and the rest, more than a fifth of a tile, is another. Heads
    // go to ranks 3 and 1, which leaves needs of 137.8, 265.8 and 137.9 to 9 tiles.
    static const Move golden[] = {{0, 1, 1, 1, 192, 128}, {0, 2, 2, 0, 320, 256}, {0, 3, 2, 1, 576, 192}};
    Move moves[8];
    CHECK(balance_moves(moves, &d, own, 4, 128, 64, 0) == 3);
    CHECK(memcmp(moves, golden, sizeof golden) == 0);  // ints, no padding
    d.v[0] = 1;                                        // not slow: the rest has to be half a tile
    CHECK(balance_moves(moves, &d, own, 4, 128, 64, 0) == 3 && moves[0].first_hidden == 768 - 512);
    own[0].hidden = 760;  // the last tile has 56: with 7 more 504 have gone, and 37.5 are more than half a tile
    int n = balance_moves(moves, &d, own, 4, 128, 64, 0);
    CHECK(moves[n - 1].first_hidden + moves[n - 1].hidden == 760 && moves[0].first_hidden == 192);
    SliceCount left = balance_count(moves, n, own, 0);
    CHECK(left.heads == 1 && left.hidden == 192);
    n = balance_moves(moves, &d, own, 4, 128, 64, 2);  // one head may go: 669.5 are left, 56 and 10 tiles are 696
    left = balance_count(moves, n, own, 0);
    CHECK(left.heads == 2 && left.hidden == 64);
    n = balance_moves(moves, &d, own, 4, 128, 64, 3);  // all but the first tile go
    left = balance_count(moves, n, own, 0);
    CHECK(left.heads == 3 && left.hidden == 64);
    d.active = 0;
    CHECK(balance_moves(moves, &d, own, 4, 128, 64, 0) == 0);

    // To the nearest a head would go, more than is to be sent: hidden units do instead.
    d = (BalanceDecision){.active = 1, .sent = {75}, .taken = {0, 75}, .v = {.25, 1}};
    n = balance_moves(moves, &d, (SliceCount[]){{8, 400}, {8, 400}}, 2, 100, 10, 0);
    CHECK(n == 1 && moves[0].heads == 0 && moves[0].hidden == 80);
    // Hidden units are used up 12 slices too soon, but a head is 940 too much.
    d.sent[0] = d.taken[1] = 60;
    n = balance_moves(moves, &d, (SliceCount[]){{2, 64}, {2, 64}}, 2, 1000, 16, 0);
    CHECK(n == 1 && moves[0].heads == 0 && moves[0].hidden == 48);
}

int main(void) {
    RUN(every_head_and_hidden_unit_is_computed_by_one_rank);
    RUN(rounding_costs_a_tile_or_a_head);
    RUN(a_known_decision_is_rounded_as_by_hand);
    return test_done();
}
