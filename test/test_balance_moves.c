// test_balance_moves.c - claims about decisions in whole heads and hidden units: each is computed by one rank, no other
// division of whole units ends sooner, and the step is what is expected of it.
#include "test/balance_groups.h"

// A group of a real model: its slices, and a decision for it.
typedef struct Case {
    UnitGroup units;
    RankSpeed group[MOST_TP];
    BalanceSetting setting;
    BalanceDecision decision;
    Move moves[2 * MOST_TP];
    int n_moves;
} Case;

static double slices_of(const Case* x, SliceCount n) { return n.hidden + n.heads * x->units.head_work; }

static void random_case(Case* x, uint64_t seed) {
    int width = 64 * whole(seed, 1, 2, 32), ranks = whole(seed, 0, 2, seed % 4 ? 8 : MOST_TP);
    UnitGroup* u = &x->units;
    memset(x, 0, sizeof *x);
    u->ranks = ranks;
    u->tile = 1 << whole(seed, 2, 0, 6);
    u->keep_heads = whole(seed, 3, 0, 1);
    u->matrices = uniform(seed, 4, 20, 400);
    u->head_work = u->matrices * uniform(seed, 9, 1, 2);
    x->setting = setting_of(seed % 3 ? BALANCE_MIGRATE : BALANCE_SEMI, ranks);
    x->setting.most_pruned = .95;
    x->setting.semi_lambda = uniform(seed, 5, 0, 20);
    random_group(seed, x->group, ranks, &x->setting.cost, 1);
    x->setting.cost = (MoveCost){uniform(seed, 6, 0, 50), uniform(seed, 7, 0, .3), uniform(seed, 8, 0, .2)};
    for (int r = 0; r < ranks; r++) {
        uint64_t at = (uint64_t)(1000 + 10 * r);
        u->own[r] = (SliceCount){whole(seed, at, 1, 8), whole(seed, at + 1, 1, 2 * width)};
        u->most[r] = (SliceCount){2 * u->own[r].heads, 2 * u->own[r].hidden + u->tile};
        x->group[r].n = slices_of(x, u->own[r]);
        x->group[r].room = x->group[r].n;
        int stays = MIN(u->tile, u->own[r].hidden);
        x->group[r].movable = slices_of(x, (SliceCount){u->own[r].heads - u->keep_heads, u->own[r].hidden - stays});
    }
    BalanceMemory memory = remember(x->group, ranks);
    x->decision = balance_decide(&memory, &x->setting, x->group, u);
    if (x->decision.active) x->n_moves = balance_moves(x->moves, u->own, x->decision.tiles, ranks, u->tile);
}

// How often each head and hidden unit of rank r is computed: 1 everywhere.
static int is_computed_once(const Case* x, int r) {
    static int heads[8 + 1], hidden[4096 + 1];
    memset(heads, 0, sizeof heads), memset(hidden, 0, sizeof hidden);
    int kept_heads = x->units.own[r].heads, kept_hidden = x->units.own[r].hidden;
    for (int i = 0; i < x->n_moves; i++) {
        const Move* m = &x->moves[i];
        if (m->from != r) continue;
        if (m->head < 0 || m->first_hidden < 0 || m->heads < 0 || m->hidden < 0 || m->heads + m->hidden == 0) return 0;
        if (m->head + m->heads > x->units.own[r].heads || m->first_hidden + m->hidden > x->units.own[r].hidden)
            return 0;
        for (int h = 0; h < m->heads; h++) heads[m->head + h]++;
        for (int u = 0; u < m->hidden; u++) hidden[m->first_hidden + u]++;
        kept_heads -= m->heads, kept_hidden -= m->hidden;
    }
    for (int h = 0; h < x->units.own[r].heads; h++)  // its own first ones, then what others have
        if (heads[h] != (h >= kept_heads)) return 0;
    for (int u = 0; u < x->units.own[r].hidden; u++)
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
        CHECK(x.n_moves >= 0 && x.n_moves <= 2 * x.units.ranks);
        for (int i = 0; i < x.n_moves; i++) {
            const Move* m = &x.moves[i];
            CHECK(m->from >= 0 && m->from < x.units.ranks && m->to >= 0 && m->to < x.units.ranks);
            CHECK(x.decision.sent[m->from] > 0 || x.decision.taken[m->to] > 0);
            CHECK(m->first_hidden % x.units.tile == 0 || m->hidden == 0);
            if (i > 0) CHECK(m[-1].from < m->from || (m[-1].from == m->from && m[-1].to < m->to));
        }
        for (int r = 0; r < x.units.ranks; r++) {
            SliceCount n = balance_count(x.moves, x.n_moves, x.units.own, r);
            CHECK(is_computed_once(&x, r));
            CHECK(n.hidden >= MIN(x.units.own[r].hidden, x.units.tile) &&
                  n.heads >= MIN(x.units.own[r].heads, x.units.keep_heads));
            before.heads += x.units.own[r].heads, before.hidden += x.units.own[r].hidden;
            after.heads += n.heads, after.hidden += n.hidden;
        }
        CHECK(before.heads == after.heads && before.hidden == after.hidden);
        moved += x.n_moves > 0, tight += x.n_moves > x.units.ranks;
        if (failed != test_failures_in_claim) printf("    seed %d\n", (int)seed);
    }
    CHECK(moved > 1000 && tight > 5);
}

// ms of a head and of a hidden unit on rank r.
static void times_of(double* head, double* hidden, const Case* x, int r) {
    const RankSpeed* a = &x->group[r];
    SliceCount own = x->units.own[r];
    double ms = a->n / a->v, left = 1 - x->decision.pruned[r];
    *hidden = a->prunable * ms / (own.hidden + own.heads * x->units.matrices) * left;
    *head = *hidden * x->units.matrices + (1 - a->prunable) * ms / own.heads;
}

// Whether all units fit where ranks end by T: who gives and who takes is known.
static int fits_by(const Case* x, const int* gives, double T, int heads) {
    const UnitGroup* u = &x->units;
    double given = 0, room = 0, head, hidden;
    for (int r = 0; r < u->ranks; r++) {
        times_of(&head, &hidden, x, r);
        int own = heads ? u->own[r].heads : u->own[r].hidden, most = heads ? u->most[r].heads : u->most[r].hidden;
        int can = (int)floor(T / (heads ? head : hidden) * (1 + 1e-12)), least = heads ? u->keep_heads : MIN(1, own);
        if (can >= own) room += gives[r] ? 0 : MIN(can, most) - own;
        else if (!gives[r] || can < least) return 0;
        else given += own - can;
    }
    return given <= room;
}

// Slow ranks give, others take, some of what slow ones keep is left out.
static void no_division_of_whole_units_ends_sooner(void) {
    for (uint64_t seed = 1; seed <= 1500; seed++) {
        static Case x;
        int failed = test_failures_in_claim, gives[MOST_TP] = {0};
        double longest[2] = {0}, other = 0, moving = 0, head, hidden, mean = 0;
        random_case(&x, seed);
        BalanceDecision* d = &x.decision;
        const MoveCost* cost = &x.setting.cost;
        x.units.tile = 1;
        for (int r = 0; r < x.units.ranks; r++) mean += idle_ms(&x.group[r]) / x.units.ranks;
        for (int r = 0; r < x.units.ranks; r++) {
            gives[r] = idle_ms(&x.group[r]) > mean;
            d->sent[r] = gives[r], d->taken[r] = !gives[r];
            d->pruned[r] = gives[r] && seed % 2 ? uniform(seed, 5000 + (uint64_t)r, 0, .6) : 0;
        }
        balance_divide(d, x.group, &x.units, cost);
        for (int r = 0; r < x.units.ranks; r++) {
            SliceCount n = d->counts[r], own = x.units.own[r];
            CHECK(n.heads <= x.units.most[r].heads && n.hidden <= x.units.most[r].hidden);
            CHECK(gives[r] ? n.heads <= own.heads && n.hidden <= own.hidden
                           : n.heads >= own.heads && n.hidden >= own.hidden);
            times_of(&head, &hidden, &x, r);
            longest[0] = MAX(longest[0], n.hidden * hidden), longest[1] = MAX(longest[1], n.heads * head);
            other = MAX(other, x.group[r].c);
            double change = n.hidden - own.hidden + (n.heads - own.heads) * x.units.matrices;
            if (change != 0) moving = MAX(moving, cost->fixed + fabs(change) * (change < 0 ? cost->send : cost->take));
        }
        double step = longest[0] + longest[1] + other + moving;
        CHECK_CLOSE(d->step_ms, step, 1e-9 * step);
        for (int heads = 0; heads < 2; heads++) CHECK(!fits_by(&x, gives, longest[heads] * (1 - 1e-9), heads));
        if (failed != test_failures_in_claim) printf("    seed %d\n", (int)seed);
    }
}

// GPT-2 124M on 4 ranks, one of them four times as slow in its matmuls: of 12 heads it gives 2, and then it takes 4 and
// a helper 4; of 48 tiles it keeps 3, which take 12, and a helper has 15.
static void a_known_decision_is_divided_as_by_hand(void) {
    UnitGroup units = {.ranks = 4, .tile = 64, .head_work = 128, .matrices = 128};
    RankSpeed ranks[4];
    BalanceDecision d = {.active = 1, .sent = {797.5}, .taken = {0, 265.8, 265.8, 265.9}};
    MoveCost cost = {10, .5, .25};
    Move moves[8];
    for (int r = 0; r < 4; r++) {
        units.own[r] = (SliceCount){3, 768}, units.most[r] = (SliceCount){8, 2048};
        ranks[r] = (RankSpeed){.v = r ? 1 : .25, .n = 768 + 3 * 128, .prunable = 1, .c = 7};
    }
    balance_divide(&d, ranks, &units, &cost);
    static const SliceCount golden[] = {{1, 192}, {4, 960}, {4, 960}, {3, 960}};
    CHECK(memcmp(d.counts, golden, sizeof golden) == 0);  // ints, no padding
    CHECK_CLOSE(d.step_ms, 7 + 4 * 128 + 15 * 64 + (10 + .5 * (2 * 128 + 576)), 1e-9);
    CHECK(d.sent[0] == 2 * 128 + 576 && d.taken[1] == 128 + 192 && d.taken[3] == 192);
    static const Move of_those[] = {{0, 1, 1, 1, 192, 192}, {0, 2, 2, 1, 384, 192}, {0, 3, 3, 0, 576, 192}};
    CHECK(balance_moves(moves, units.own, d.tiles, 4, 64) == 3);
    CHECK(memcmp(moves, of_those, sizeof of_those) == 0);
    // With half of its matmuls left out one head goes, and of 48 tiles it keeps 7, as 14 of a helper.
    d = (BalanceDecision){.active = 1, .sent = {1}, .taken = {0, 1, 1, 1}, .pruned = {.5}};
    balance_divide(&d, ranks, &units, &cost);
    CHECK(d.counts[0].heads == 2 && d.counts[1].heads == 4 && d.counts[0].hidden == 448 && d.counts[2].hidden == 896);
    // A short last tile goes first, of 34, then 7 more: 256 take 1024, one more tile 1280.
    units.own[0].hidden = 738, ranks[0].n = 738 + 384;
    d = (BalanceDecision){.active = 1, .sent = {1}, .taken = {0, 1, 0, 0}};
    balance_divide(&d, ranks, &units, &cost);
    CHECK(d.counts[0].hidden == 256 && d.counts[1].hidden == 768 + 482 && d.counts[2].hidden == 768);
    units.keep_heads = 3;
    d = (BalanceDecision){.active = 1, .sent = {1}, .taken = {0, 1, 0, 0}};
    balance_divide(&d, ranks, &units, &cost);
    CHECK(d.counts[0].heads == 3);
}

int main(void) {
    RUN(every_head_and_hidden_unit_is_computed_by_one_rank);
    RUN(no_division_of_whole_units_ends_sooner);
    RUN(a_known_decision_is_divided_as_by_hand);
    return test_done();
}
