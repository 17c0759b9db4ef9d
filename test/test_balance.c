// test_balance.c - claims about plan/slow/balance.h: what is divided nobody could divide better, a table of times and
// the decisions that they lead to, what is remembered, and whole units. Steps are counted by the formulas of the header
// and by none of its code.
#include "plan/slow/balance.h"
#include "test/test.h"

static const double infinite = 1e300;

static double uniform(uint64_t seed, uint64_t i, double low, double high) {
    return low + (high - low) * random_uniform(seed, i);
}

static int whole(uint64_t seed, uint64_t i, int low, int high) {
    return low + (int)(random_uniform(seed, i) * (high - low + 1));
}

static double total(const double* values, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += values[i];
    return sum;
}

// ---- the lossless optimum

static double idle_ms(const RankSpeed* r) { return r->c + r->n / r->v; }

static void random_group(uint64_t seed, RankSpeed* group, int ranks, MoveCost* cost, int limits) {
    for (int r = 0; r < ranks; r++) {
        uint64_t at = (uint64_t)(10 * (r + 2));
        double n = uniform(seed, at, 20, 200), slow = whole(seed, at + 1, 0, 2) ? 1 : uniform(seed, at + 2, 1, 8);
        group[r] = (RankSpeed){uniform(seed, at + 3, .8, 1.2) / slow, n, uniform(seed, at + 4, 0, 50), 1, infinite, n};
        if (limits) group[r].room = uniform(seed, at + 5, 0, n), group[r].movable = uniform(seed, at + 6, .2, 1) * n;
    }
    *cost = (MoveCost){uniform(seed, 1, 0, 5), uniform(seed, 2, 0, 1.5), uniform(seed, 3, 0, .5)};
    if (seed % 7 == 0) cost->fixed = 0;
}

// What ranks above T would have to send to end by then is more than those below can take, or more than one may send or
// would gain by: then no division ends at T.
static int is_impossible(const RankSpeed* group, int ranks, const MoveCost* cost, double T) {
    double supply = 0, demand = 0;
    for (int r = 0; r < ranks; r++) {
        const RankSpeed* x = &group[r];
        double over = idle_ms(x) - T, gain = 1 / x->v - cost->send;
        if (over > 0) {
            if (gain <= 0 || (over + cost->fixed) / gain > x->movable) return 1;
            demand += (over + cost->fixed) / gain;
        } else if (-over > cost->fixed) {
            supply += MIN(x->room, (-over - cost->fixed) / (1 / x->v + cost->take));
        }
    }
    return demand > supply;
}

static double end_ms(const RankSpeed* x, const MoveCost* cost, double sent, double taken) {
    double ms = x->c + (x->n - sent + taken) / x->v + sent * cost->send + taken * cost->take;
    return ms + (sent > 0 || taken > 0 ? cost->fixed : 0);
}

// Where no division ends sooner than none, nothing moves.
CLAIM(moves_are_possible_and_no_division_ends_sooner) {
    int moved = 0, still = 0;
    FOR_SEEDS(seed, 1, 4001) {
        RankSpeed group[MOST_TP];
        MoveCost cost;
        double sent[MOST_TP], taken[MOST_TP], last = 0, idle = 0;
        int ranks = whole(seed, 0, 1, seed % 5 ? 8 : MOST_TP);
        random_group(seed, group, ranks, &cost, seed % 3 != 0);
        double T = balance_move(sent, taken, group, ranks, &cost);
        for (int r = 0; r < ranks; r++) {
            last = MAX(last, end_ms(&group[r], &cost, sent[r], taken[r])), idle = MAX(idle, idle_ms(&group[r]));
            CHECK(sent[r] >= 0 && sent[r] <= group[r].movable && taken[r] >= 0 && taken[r] <= group[r].room);
            CHECK(sent[r] == 0 || (taken[r] == 0 && 1 / group[r].v > cost.send));
        }
        CHECK_CLOSE(total(sent, ranks), total(taken, ranks), 1e-9);  // of 64 numbers below 200
        CHECK_CLOSE(last, T, 1e-9 * T);
        CHECK(T <= idle && (T < idle || total(sent, ranks) == 0));
        CHECK(is_impossible(group, ranks, &cost, T * (1 - 1e-7)));
        *(total(sent, ranks) > 0 ? &moved : &still) += 1;
    }
    CHECK(moved > 1000 && still > 100);  // both kinds were tried
}

// ---- groups in whole units

typedef struct Group {
    UnitGroup units;
    BalanceSetting setting;
    BalanceMemory memory;
} Group;

static double slices_of(const UnitGroup* u, SliceCount n) { return n.hidden + n.heads * u->head_work; }

// What rank r takes for all that it owns and can give.
static double own_ms(const Group* x, int r) { return slices_of(&x->units, x->units.own[r]) / x->memory.v[r]; }

// Ranks with so many units each. Rank r takes 8 slow[r] ms for them, of which the fraction `prunable` are matmuls.
static Group group_of(BalanceMode mode, int ranks, const double* slow, SliceCount own, double prunable) {
    Group x = {.units = {.ranks = ranks, .tile = 1, .head_work = 100, .matrices = 100}};
    x.setting = (BalanceSetting){.mode = mode, .start = 1.2, .stop = 1.1, .most_pruned = 1};
    for (int r = 0; r < ranks; r++) {
        x.units.own[r] = own, x.units.most[r] = (SliceCount){3 * own.heads, 3 * own.hidden};
        x.memory.v[r] = slices_of(&x.units, own) / (8 * slow[r]), x.memory.prunable[r] = prunable;
    }
    return x;
}

static BalanceDecision decide(Group* x) { return balance_decide(&x->memory, &x->setting, &x->units); }

static BalanceDecision decide_anew(const Group* x) {
    Group copy = *x;
    copy.memory.last.active = copy.memory.active = 0;
    return decide(&copy);
}

static int is_same_work(const BalanceDecision* a, const BalanceDecision* b) {
    return !memcmp(a->counts, b->counts, sizeof a->counts) && !memcmp(a->pruned, b->pruned, sizeof a->pruned);
}

// ms of a head and of a hidden unit on rank r, of whose matmuls so much is left out.
static void unit_ms(double* head, double* hidden, const Group* x, int r, double pruned) {
    SliceCount own = x->units.own[r];
    double prunable = x->memory.prunable[r], all = own.hidden + own.heads * x->units.matrices;
    *hidden = prunable * own_ms(x, r) / all * (1 - pruned);
    *head = *hidden * x->units.matrices + (own.heads ? (1 - prunable) * own_ms(x, r) / own.heads : 0);
}

static double step_of(const Group* x, const SliceCount* counts, const double* pruned) {
    double c = 0, attention = 0, mlp = 0, moving = 0, head, hidden;
    const MoveCost* cost = &x->setting.cost;
    for (int r = 0; r < x->units.ranks; r++) {
        unit_ms(&head, &hidden, x, r, pruned[r]);
        double change =
            counts[r].hidden - x->units.own[r].hidden + (counts[r].heads - x->units.own[r].heads) * x->units.matrices;
        c = MAX(c, x->memory.c[r]);
        attention = MAX(attention, counts[r].heads * head), mlp = MAX(mlp, counts[r].hidden * hidden);
        if (change != 0) moving = MAX(moving, cost->fixed + fabs(change) * (change < 0 ? cost->send : cost->take));
    }
    return c + attention + mlp + moving;
}

// step (1 + lambda sum g^2 n / S)
static double objective_of(const Group* x, const BalanceDecision* d) {
    double loss = 0, slices = 0;
    for (int r = 0; r < x->units.ranks; r++) {
        double n = slices_of(&x->units, x->units.own[r]), g = d->pruned[r] * (n - d->sent[r]) / n;
        loss += g * g * n, slices += n;
    }
    return d->step_ms * (loss > 0 ? 1 + x->setting.semi_lambda * loss / slices : 1);
}

// ---- times and the decisions that they lead to

// With lambda and the most that may be left out; sent: of 8400 slices. Moving costs nothing.
static const struct {
    BalanceMode mode;
    double lambda, most, prunable, slow[4];
    int heads;
    double step, pruned[4], sent[4];
} table[] = {
    {BALANCE_OFF, 0, 1, 1, {4, 1, 1, 1}, 0, 32, {0}, {0}},
    {BALANCE_RESIZE, 0, 1, 1, {1.19, 1, 1, 1}, 0, 9.52, {0}, {0}},  // within the dead band
    {BALANCE_RESIZE, 0, 1, 1, {4, 1, 1, 1}, 0, 8, {.75}, {0}},
    {BALANCE_RESIZE, 0, 1, 1, {1, 4, 2, 1}, 0, 8, {0, .75, .5}, {0}},
    {BALANCE_RESIZE, 0, .6, 1, {4, 2, 1, 1}, 0, 12.8, {.6, .2}, {0}},  // the first pins the step
    // Only matmuls shrink: attention of the first, and the others' MLP.
    {BALANCE_RESIZE, 0, 1, .8, {4, 1, 1, 1}, 4, 12.5714, {.9375}, {0}},
    {BALANCE_RESIZE, 0, 1, .5, {4, 1, 1, 1}, 4, 19.8095, {1}, {0}},
    {BALANCE_MIGRATE, 0, 1, 1, {1, 1, 1, 1}, 0, 8, {0}, {0}},
    {BALANCE_MIGRATE, 0, 1, 1, {4, 1, 1, 1}, 0, 9.8462, {0}, {5815}},
    {BALANCE_MIGRATE, 0, 1, 1, {4, 2, 1, 1}, 0, 11.6364, {0}, {5345, 2291}},
    {BALANCE_SEMI, 0, 1, 1, {4, 1, 1, 1}, 0, 8, {.75}, {0}},  // fastest
    {BALANCE_SEMI, INFINITY, 1, 1, {4, 1, 1, 1}, 0, 9.8462, {0}, {5815}},
    {BALANCE_SEMI, INFINITY, 1, 1, {4, 2, 1, 1}, 0, 11.6364, {0}, {5345, 2291}},
};

CLAIM(times_lead_to_the_decisions_of_the_table) {
    FOR_SEEDS(i, 0, COUNT(table)) {
        SliceCount own = {table[i].heads, 8400 - 100 * table[i].heads};
        Group x = group_of(table[i].mode, 4, table[i].slow, own, table[i].prunable);
        x.setting.semi_lambda = table[i].lambda, x.setting.most_pruned = table[i].most;
        BalanceDecision d = decide(&x);
        CHECK(d.active == (table[i].pruned[0] + table[i].pruned[1] + table[i].sent[0] > 0));
        CHECK_CLOSE(d.step_ms, table[i].step, .002);
        for (int r = 0; r < 4; r++) {
            CHECK_CLOSE(d.pruned[r], table[i].pruned[r], 1e-9);
            CHECK_CLOSE(d.sent[r], table[i].sent[r], 1.5);
        }
    }
    Group unknown = group_of(BALANCE_RESIZE, 2, (double[]){4, 1}, (SliceCount){0, 800}, 1);
    unknown.memory.v[1] = 0;
    BalanceDecision d = decide(&unknown);
    CHECK(!d.active && d.step_ms == 0 && d.pruned[0] == 0);
}

CLAIM(the_dead_band_has_two_edges) {
    static const struct {
        double slow;
        int acts;
    } walk[] = {{1, 0}, {1.15, 0}, {1.19, 0}, {1.21, 1}, {1.15, 1}, {1.11, 1}, {1.09, 0}, {1.15, 0}, {1.3, 1}, {1, 0}};
    for (int mode = BALANCE_OFF; mode <= BALANCE_SEMI; mode++)
        for (int ranks = 2; ranks <= 8; ranks *= 2) {
            double slow[8] = {1, 1, 1, 1, 1, 1, 1, 1};
            Group x = group_of((BalanceMode)mode, ranks, slow, (SliceCount){0, 800}, 1);
            for (int i = 0; i < COUNT(walk); i++) {
                x.memory.v[ranks - 1] = 100 / walk[i].slow;
                BalanceDecision d = decide(&x);
                CHECK(d.active == (walk[i].acts && mode > BALANCE_DOCUMENTS) && x.memory.active == d.active);
                CHECK_CLOSE(d.idle_ms, 8 * walk[i].slow, 1e-12);
                if (!d.active) CHECK(d.step_ms == d.idle_ms && total(d.pruned, 8) + total(d.sent, 8) == 0);
            }
        }
}

// All ways to give u slices to three helpers and to leave out g of the rest; SEMI tries 64 steps.
CLAIM(semi_is_nearly_the_best_of_all_ways) {
    static const double lambdas[] = {0, .5, 1, 2, 4, 8, 30, 100};
    for (int i = 0; i < COUNT(lambdas); i++) {
        Group x = group_of(BALANCE_SEMI, 4, (double[]){4, 1, 1, 1}, (SliceCount){0, 900}, 1);
        x.setting.cost = (MoveCost){.2, .001, .001}, x.setting.semi_lambda = lambdas[i];
        BalanceDecision d = decide(&x), way = {0};
        double least = INFINITY;
        for (int u = 0; u < 900; u += 3)
            for (int percent = 0; percent < 100; percent++) {
                way.sent[0] = u, way.pruned[0] = percent / 100.;
                for (int r = 0; r < 4; r++) way.counts[r].hidden = r ? 900 + u / 3 : 900 - u;
                way.step_ms = step_of(&x, way.counts, way.pruned);
                least = MIN(least, objective_of(&x, &way));
            }
        CHECK(d.active && d.objective <= 1.01 * least);
        CHECK_CLOSE(d.objective, objective_of(&x, &d), 1e-9);
    }
}

CLAIM(a_decision_is_told_from_every_other_by_its_hash) {
    Group x = group_of(BALANCE_MIGRATE, 4, (double[]){4, 1, 1, 1}, (SliceCount){0, 800}, 1);
    BalanceDecision d = decide(&x), other = d;
    double* fields[] = {&other.step_ms, &other.idle_ms,  &other.objective, &other.pruned[3],
                        &other.sent[0], &other.taken[3], &other.v[2]};
    for (int i = 0; i < COUNT(fields); i++, other = d) {
        *fields[i] = nextafter(*fields[i], 1e9);
        CHECK(balance_hash(&d, 4) != balance_hash(&other, 4));
    }
    other.tiles[3].hidden++;
    CHECK(balance_hash(&d, 4) != balance_hash(&other, 4));
    other = d, other.sent[4] = 1;  // beyond the ranks
    CHECK(balance_hash(&d, 4) == balance_hash(&other, 4));
}

// ---- memory

static RankTimes times_of(double linear, double attention, double other, double slices, double pruned) {
    return (RankTimes){linear * (1 - pruned), attention, other, slices, pruned};
}

CLAIM(what_was_taken_off_is_put_back) {
    for (double g = 0; g < 1; g += .09) {
        BalanceMemory memory = {0};
        RankTimes times = times_of(12, 4, 3, 100, g);
        balance_learn(&memory, &times, 1);
        CHECK(memory.steps == 1 && memory.c[0] == 3);
        CHECK_CLOSE(memory.v[0], 100 / 16., 1e-12);
        CHECK_CLOSE(memory.prunable[0], .75, 1e-12);
    }
}

CLAIM(memory_smooths_and_starts_anew_at_a_jump) {
    static const double factors[] = {1.05, 1.25, .8, 1.35, .7, 4, .25};
    for (int i = 0; i < COUNT(factors); i++) {
        BalanceMemory memory = {0};
        RankTimes times = times_of(10, 0, 2, 100, 0);
        balance_learn(&memory, &times, 1);
        times.linear /= factors[i];
        times.attention = times.linear * .1, times.linear *= .9;
        balance_learn(&memory, &times, 1);
        int jump = factors[i] > 1.3 || factors[i] < 1 / 1.3;
        CHECK_CLOSE(memory.v[0], jump ? 10 * factors[i] : 10 * (1 + factors[i]) / 2, 1e-12);
        CHECK_CLOSE(memory.prunable[0], jump ? .9 : .95, 1e-12);
        times.other = 2.4;
        balance_learn(&memory, &times, 1);
        CHECK_CLOSE(memory.c[0], 2.2, 1e-12);
        times.other = 9;  // alone
        balance_learn(&memory, &times, 1);
        CHECK(memory.c[0] == 9);
    }
}

CLAIM(measurements_that_say_nothing_change_nothing) {
    static const RankTimes bad[] = {{0, 1, 2, 100, 0},   {10, 1, 2, 0, 0},       {10, 1, 2, 100, 1},
                                    {NAN, 1, 2, 100, 0}, {10, NAN, 2, 100, 0},   {10, 1, NAN, 5, 0},
                                    {10, 1, 2, NAN, 0},  {10, 1, 2, 100, NAN},   {INFINITY, 1, 2, 9, 0},
                                    {-1, 1, 2, 9, 0},    {10, 1, INFINITY, 9, 0}};
    BalanceMemory memory = {0};
    RankTimes good = times_of(10, 1, 2, 100, 0);
    balance_learn(&memory, &good, 1);
    for (int i = 0; i < COUNT(bad); i++) {
        BalanceMemory before = memory;
        balance_learn(&memory, &bad[i], 1);
        before.steps++;
        CHECK(!memcmp(&memory, &before, sizeof memory));
    }
}

// Speeds within the noise change nothing of what is sent or left out; what is clearly better does.
CLAIM(a_decision_stays_until_another_is_clearly_better) {
    static const double factors[] = {.99, 1.01, 1, .5, .25, 4};
    for (int mode = BALANCE_RESIZE; mode <= BALANCE_SEMI; mode++) {
        Group x = group_of((BalanceMode)mode, 4, (double[]){4, 1, 1, 1}, (SliceCount){4, 8000}, .95);
        x.setting.semi_lambda = 4, x.setting.cost = (MoveCost){.2, .0001, .0001};
        BalanceDecision first = decide(&x);
        for (int i = 0; i < COUNT(factors); i++) {
            Group later = x;
            later.memory.v[0] *= factors[i];
            BalanceDecision fresh = decide_anew(&later), d = decide(&later);
            CHECK(is_same_work(&d, i < 3 ? &first : &fresh));
            if (i >= 3) CHECK(!is_same_work(&d, &first));
            CHECK_CLOSE(d.step_ms, step_of(&later, d.counts, d.pruned), 1e-9);  // its times are those of now
        }
    }
    // Resizing more than is needed is not slower, but lossier. What was decided before nothing was is forgotten.
    static const double slow[] = {4, 1 / .26, 1 / .28, 1, 1 / .281}, left_out[] = {.75, .75, .72, 0, .719};
    Group x = group_of(BALANCE_RESIZE, 4, (double[]){4, 1, 1, 1}, (SliceCount){0, 800}, 1);
    for (int i = 0; i < COUNT(slow); i++) {
        x.memory.v[0] = 100 / slow[i];
        CHECK_CLOSE(decide(&x).pruned[0], left_out[i], 1e-12);
    }
}

// ---- whole units

// Any division, any speeds.
static void random_units(Group* x, uint64_t seed) {
    int width = 64 * whole(seed, 1, 2, 32), ranks = whole(seed, 0, 2, seed % 4 ? 8 : MOST_TP);
    UnitGroup* u = &x->units;
    memset(x, 0, sizeof *x);
    *u = (UnitGroup){.ranks = ranks, .tile = 1 << whole(seed, 2, 0, 6), .keep_heads = whole(seed, 3, 0, 1)};
    u->matrices = uniform(seed, 4, 20, 400);
    u->head_work = u->matrices * uniform(seed, 9, 1, 2);
    x->setting = (BalanceSetting){.start = 1.2, .stop = 1.1, .most_pruned = .95};
    x->setting.semi_lambda = uniform(seed, 5, 0, 20);
    x->setting.cost = (MoveCost){uniform(seed, 6, 0, 50), uniform(seed, 7, 0, .3), uniform(seed, 8, 0, .2)};
    for (int r = 0; r < ranks; r++) {
        uint64_t at = (uint64_t)(1000 + 10 * r);
        u->own[r] = (SliceCount){whole(seed, at, 1, 8), whole(seed, at + 1, 1, 2 * width)};
        u->most[r] = (SliceCount){2 * u->own[r].heads, 2 * u->own[r].hidden + u->tile};
        x->memory.v[r] = uniform(seed, at + 2, .8, 1.2) / (whole(seed, at + 3, 0, 2) ? 1 : uniform(seed, at + 4, 1, 8));
        x->memory.c[r] = uniform(seed, at + 5, 0, 50), x->memory.prunable[r] = uniform(seed, at + 6, .3, 1);
    }
}

// How often each head and hidden unit of rank r is computed: once, and what others compute are its last ones.
static void check_computed_once(const UnitGroup* u, const Move* moves, int n, int r) {
    int seen[2] = {0, 0}, own[2] = {u->own[r].heads, u->own[r].hidden};
    SliceCount count = balance_count(moves, n, u->own, r);
    for (int i = 0; i < n; i++) {
        const Move* m = &moves[i];
        int first[] = {m->head, m->first_hidden}, size[] = {m->heads, m->hidden};
        if (i > 0) CHECK(m[-1].from < m->from || (m[-1].from == m->from && m[-1].to < m->to));
        CHECK(m->heads >= 0 && m->hidden >= 0 && m->heads + m->hidden > 0);
        for (int k = 0; k < 2 && m->from == r; k++) {
            if (!size[k]) continue;
            if (!seen[k]) seen[k] = first[k];
            CHECK(first[k] == seen[k] && first[k] > (k ? 0 : -1) && (!k || first[k] % u->tile == 0));
            seen[k] += size[k];
        }
    }
    for (int k = 0; k < 2; k++) CHECK(seen[k] == 0 || seen[k] == own[k]);
    CHECK(count.hidden >= MIN(own[1], u->tile) && count.heads >= MIN(own[0], u->keep_heads));
    CHECK(count.heads <= u->most[r].heads);
    if (u->tile == 1) CHECK(count.hidden <= u->most[r].hidden);  // who gets a short tile may get one too many
}

// In every mode: each unit is computed by one rank, within all limits, the step is what is expected of it and no longer
// than without; and SEMI's J is not above that of the others.
CLAIM(decisions_keep_their_promise) {
    int moved = 0, active = 0;
    FOR_SEEDS(seed, 1, 601) {
        static Group x;
        Move moves[2 * MOST_TP];
        double J[BALANCE_SEMI + 1];
        random_units(&x, seed);
        for (int mode = BALANCE_RESIZE; mode <= BALANCE_SEMI; mode++) {
            x.setting.mode = (BalanceMode)mode;
            BalanceDecision d = decide_anew(&x);
            const UnitGroup* u = &x.units;
            SliceCount sum = {0, 0};
            int n = d.active ? balance_moves(moves, u->own, d.tiles, u->ranks, u->tile) : 0;
            CHECK(n >= 0 && n <= 2 * u->ranks);
            for (int r = 0; r < u->ranks; r++) {
                SliceCount count = balance_count(moves, n, u->own, r);
                check_computed_once(u, moves, n, r);
                CHECK(!memcmp(&count, &d.counts[r], sizeof count));
                CHECK(d.pruned[r] >= 0 && d.pruned[r] <= x.setting.most_pruned);
                sum.heads += count.heads - u->own[r].heads, sum.hidden += count.hidden - u->own[r].hidden;
            }
            CHECK(sum.heads == 0 && sum.hidden == 0);
            CHECK_CLOSE(d.step_ms, step_of(&x, d.counts, d.pruned), 1e-9 * d.step_ms);
            CHECK(d.active ? d.step_ms < d.idle_ms : d.step_ms == d.idle_ms);
            J[mode] = objective_of(&x, &d);
            moved += n > 0, active += d.active;
        }
        CHECK(J[BALANCE_SEMI] <= J[BALANCE_MIGRATE] * (1 + 1e-9));
    }
    CHECK(moved > 700 && active > 1200);
}

// Whether all units fit where ranks end by T: who gives and who takes is known.
static int fits_by(const Group* x, const BalanceDecision* d, const int* gives, double T, int heads) {
    const UnitGroup* u = &x->units;
    double given = 0, room = 0, head, hidden;
    for (int r = 0; r < u->ranks; r++) {
        unit_ms(&head, &hidden, x, r, d->pruned[r]);
        int own = heads ? u->own[r].heads : u->own[r].hidden, most = heads ? u->most[r].heads : u->most[r].hidden;
        int can = (int)floor(T / (heads ? head : hidden) * (1 + 1e-12)), least = heads ? u->keep_heads : MIN(1, own);
        if (can >= own) room += gives[r] ? 0 : MIN(can, most) - own;
        else if (!gives[r] || can < least) return 0;
        else given += own - can;
    }
    return given <= room;
}

// Slow ranks give, others take, some of what slow ones keep is left out.
CLAIM(no_division_of_whole_units_ends_sooner) {
    FOR_SEEDS(seed, 1, 601) {
        static Group x;
        BalanceDecision d = {0};
        RankSpeed ranks[MOST_TP] = {{0}};
        int gives[MOST_TP] = {0};
        double longest[2] = {0}, head, hidden, mean = 0;
        random_units(&x, seed);
        x.units.tile = 1;
        for (int r = 0; r < x.units.ranks; r++) mean += own_ms(&x, r) / x.units.ranks;
        for (int r = 0; r < x.units.ranks; r++) {
            gives[r] = own_ms(&x, r) > mean;
            d.sent[r] = gives[r], d.taken[r] = !gives[r];
            d.pruned[r] = gives[r] && seed % 2 ? uniform(seed, 5000 + (uint64_t)r, 0, .6) : 0;
            ranks[r] = (RankSpeed){.v = x.memory.v[r], .n = slices_of(&x.units, x.units.own[r])};
            ranks[r].c = x.memory.c[r], ranks[r].prunable = x.memory.prunable[r];
        }
        balance_divide(&d, ranks, &x.units, &x.setting.cost);
        for (int r = 0; r < x.units.ranks; r++) {
            SliceCount n = d.counts[r], own = x.units.own[r];
            CHECK(gives[r] ? n.heads <= own.heads && n.hidden <= own.hidden
                           : n.heads >= own.heads && n.hidden >= own.hidden);
            unit_ms(&head, &hidden, &x, r, d.pruned[r]);
            longest[0] = MAX(longest[0], n.hidden * hidden), longest[1] = MAX(longest[1], n.heads * head);
        }
        for (int heads = 0; heads < 2; heads++) CHECK(!fits_by(&x, &d, gives, longest[heads] * (1 - 1e-9), heads));
    }
}

// GPT-2 124M on 4 ranks, one of them four times as slow in its matmuls: of 12 heads it gives 2, and then it takes 4 and
// a helper 4; of 48 tiles it keeps 3, which take 12, and a helper has 15.
CLAIM(a_known_decision_is_divided_as_by_hand) {
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
    // A short last tile goes first, of 34, then 7 more: 256 take 1024, one more tile 1280.
    units.own[0].hidden = 738, ranks[0].n = 738 + 384;
    d = (BalanceDecision){.active = 1, .sent = {1}, .taken = {0, 1, 0, 0}};
    balance_divide(&d, ranks, &units, &cost);
    CHECK(d.counts[0].hidden == 256 && d.counts[1].hidden == 768 + 482 && d.counts[2].hidden == 768);
}

// ---- a loop: a group is measured, decided for, and measured again under the decision

// Rank r takes chi[r] times as long, in everything or in matmuls only. times_of the ranks are scaled to what they own.
typedef struct World {
    Group group;
    BalanceDecision decision;
    double head_attention, hidden_ms, other_ms, chi[MOST_TP], noise;
    int all_slow;
} World;

static void measure(const World* w, RankTimes* times, uint64_t seed) {
    const UnitGroup* u = &w->group.units;
    for (int r = 0; r < u->ranks; r++) {
        double pruned = w->decision.pruned[r], jitter = 1 + w->noise * (2 * random_uniform(seed, (uint64_t)r) - 1);
        double chi = w->chi[r] * jitter, rest = w->all_slow ? chi : jitter;
        double matmul = (u->own[r].hidden + u->own[r].heads * u->matrices) * w->hidden_ms * chi * (1 - pruned);
        double attention = u->own[r].heads * w->head_attention * w->hidden_ms * rest;
        times[r] = (RankTimes){matmul, attention, w->other_ms * rest, slices_of(u, u->own[r]), pruned};
        if (w->group.setting.mode == BALANCE_RESIZE) times[r].other += attention, times[r].attention = 0;
    }
}

// With times of ranks as they really are, known without noise.
static World truth_of(const World* w) {
    World truth = *w;
    RankTimes times[MOST_TP];
    memset(truth.decision.pruned, 0, sizeof truth.decision.pruned), truth.noise = 0;
    measure(&truth, times, 0);
    memset(&truth.group.memory, 0, sizeof truth.group.memory);
    balance_learn(&truth.group.memory, times, w->group.units.ranks);
    return truth;
}

// What the step then takes, by what the ranks really are.
static double world_step(const World* w) {
    World truth = truth_of(w);
    return step_of(&truth.group, w->decision.counts, w->decision.pruned);
}

// By a decision that knows what the ranks really are: others prove that there is hardly a better one.
static double best_step(const World* w) {
    World truth = truth_of(w);
    truth.decision = decide(&truth.group);
    return truth.decision.active ? truth.decision.step_ms : truth.decision.idle_ms;
}

// Refreshes after a change: from the second on the step is good, and the decision is at rest.
static void settle(World* w, uint64_t seed) {
    int changes = 0, ranks = w->group.units.ranks, failed = test_failures_in_claim;
    double slowest = 0, best = best_step(w);
    for (int r = 0; r < ranks; r++) slowest = MAX(slowest, w->chi[r]);
    for (int i = 1; i <= 12; i++) {
        BalanceDecision before = w->decision;
        RankTimes times[MOST_TP];
        measure(w, times, seed * 100 + (uint64_t)i);
        balance_learn(&w->group.memory, times, ranks);
        w->decision = decide(&w->group);
        if (i < 2) continue;
        CHECK(world_step(w) <= 1.1 * best);
        CHECK(w->decision.active == (slowest > 1.3));
        if (w->noise == 0) CHECK_CLOSE(w->decision.step_ms, world_step(w), 1e-9 * world_step(w));
        if (i > 2) changes += !is_same_work(&w->decision, &before);
    }
    CHECK(changes <= 2);
    if (failed != test_failures_in_claim)
        printf("    mode %d, %d ranks, all %d, noise %g, seed %d: step %g of %g\n", w->group.setting.mode, ranks,
               w->all_slow, w->noise, (int)seed, world_step(w), best);
}

static World new_world(BalanceMode mode, int ranks, int all_slow, uint64_t seed) {
    static const double healthy[] = {1, 1, 1, 1, 1, 1, 1, 1};
    World w = {.group = group_of(mode, ranks, healthy, (SliceCount){4, 2048}, 1), .all_slow = all_slow};
    w.head_attention = 64, w.hidden_ms = .01, w.other_ms = .5, w.noise = seed < 3 ? 0 : .01;
    memset(&w.group.memory, 0, sizeof w.group.memory);
    w.group.units.tile = 8, w.group.units.matrices = 256;
    w.group.units.head_work = mode == BALANCE_RESIZE ? 256 : 256 + 64;  // only matmuls can be left out
    w.group.setting.most_pruned = .97;
    w.group.setting.semi_lambda = seed % 3 == 0 ? INFINITY : (double)(seed % 3);
    w.group.setting.cost = (MoveCost){.3, .0005, .0005};
    for (int r = 0; r < ranks; r++) w.chi[r] = 1;
    return w;
}

// One straggler appears, moves to another rank, grows, recovers a little, is gone, comes back, and is gone; then half
// of the ranks are slow, and then the other half.
CLAIM(the_loop_follows_stragglers_within_two_refreshes) {
    static const double acts[][2] = {{1, 1}, {4, 1}, {1, 4}, {1, 8}, {1, 2}, {1, 1}, {1, 1.5}, {1, 1}};
    for (uint64_t seed = 0; seed < 9; seed++)
        for (int mode = BALANCE_RESIZE; mode <= BALANCE_SEMI; mode++)
            for (int ranks = 2; ranks <= 8; ranks *= 2)
                for (int all_slow = 0; all_slow < 2; all_slow++) {
                    World w = new_world((BalanceMode)mode, ranks, all_slow, seed);
                    for (int i = 0; i < COUNT(acts); i++) {
                        w.chi[0] = acts[i][0], w.chi[1] = acts[i][1];
                        settle(&w, seed * 50 + (uint64_t)i);
                    }
                    for (int half = 0; half < 2 && ranks > 2; half++) {
                        for (int r = 0; r < ranks; r++) w.chi[r] = 1;
                        for (int r = 0; r < ranks / 2; r++) w.chi[half ? ranks - 1 - r : r] = ranks - 2 * r;
                        settle(&w, seed * 50 + 20 + (uint64_t)half);
                    }
                }
}

int main(void) { return test_main(); }
