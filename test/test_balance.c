// test_balance.c - claims about plan/balance.h: its formulas give the figures that were worked out by hand, its divisions
// are optimal, its decisions keep every rank within the step that they promise, and a group that is measured, decided
// for and measured again comes to rest. Golden figures are printed to four decimals: HALF_DIGIT is half of the last.
#include "plan/balance.h"

#include "test/test.h"

#define HALF_DIGIT 5.1e-5
static const double infinite = 1e300;

static double uniform(uint64_t seed, uint64_t i, double low, double high) {
    return low + (high - low) * random_uniform(seed, i);
}
static int whole(uint64_t seed, uint64_t i, int low, int high) {
    return low + (int)(random_uniform(seed, i) * (high - low + 1));
}

// Ranks of speed v that own n slices, all of which may move and shrink.
static void make_ranks(RankSpeed* ranks, const double* v, const double* c, double n, int count) {
    for (int r = 0; r < count; r++)
        ranks[r] = (RankSpeed){.v = v[r], .n = n, .c = c ? c[r] : 0, .prunable = 1, .room = infinite, .movable = n};
}

static double idle_ms(const RankSpeed* r) { return r->c + r->n / r->v; }

static double total(const double* values, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += values[i];
    return sum;
}

// ---- divisions

static const struct Division {
    double v[8], c[8];
    int ranks, slices;
    double T, n[8], step;
    int n_whole[8], step_whole;
} divisions[] = {
    {{.25, 1, 1, 1}, {0}, 4, 32, 9.8462, {2.4615, 9.8462, 9.8462, 9.8462}, 9.8462, {2, 10, 10, 10}, 10},
    {{.25, 1, 1, 1}, {8, 2, 2, 2}, 4, 32, 12.3077, {1.0769, 10.3077, 10.3077, 10.3077}, 12.3077, {1, 11, 10, 10}, 13},
    {{.25, 1, 1, 1}, {14, 2, 2, 2}, 4, 32, 12.6667, {0, 10.6667, 10.6667, 10.6667}, 14, {0, 11, 11, 10}, 14},
    {{.25, .5, 1, 1}, {0}, 4, 32, 11.6364, {2.9091, 5.8182, 11.6364, 11.6364}, 11.6364, {3, 6, 12, 11}, 12},
    {{1. / 8, 1. / 6, .25, .5, 1, 1, 1, 1},
     {0},
     8,
     64,
     12.6942,
     {1.5868, 2.1157, 3.1736, 6.3471, 12.6942, 12.6942, 12.6942, 12.6942},
     12.6942,
     {1, 2, 3, 6, 13, 13, 13, 13},
     13},
    {{1. / 8, 1. / 6, .25, .5, 1, 1, 1, 1},
     {16, 12, 8, 4, 2, 2, 2, 2},
     8,
     64,
     15.8644,
     {0, .6441, 1.9661, 5.9322, 13.8644, 13.8644, 13.8644, 13.8644},
     16,
     {0, 0, 2, 6, 14, 14, 14, 14},
     16},
};

static void water_filling_gives_the_golden_divisions(void) {
    for (int i = 0; i < COUNT(divisions); i++) {
        const struct Division* g = &divisions[i];
        double n[8];
        int n_whole[8];
        CHECK_CLOSE(balance_split(n, g->v, g->c, g->slices, g->ranks), g->step, HALF_DIGIT);
        CHECK(balance_split_whole(n_whole, g->v, g->c, g->slices, g->ranks) == g->step_whole);
        CHECK_CLOSE(n[g->ranks - 1] / g->v[g->ranks - 1] + g->c[g->ranks - 1], g->T, HALF_DIGIT);
        for (int r = 0; r < g->ranks; r++) {
            CHECK_CLOSE(n[r], g->n[r], HALF_DIGIT);
            CHECK(n_whole[r] == g->n_whole[r]);
        }
    }
}

// All slices are given, ranks with any end together, ranks without have no time for one.
static void water_filling_ends_on_all_ranks_at_once(void) {
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        double v[MOST_TP], c[MOST_TP], n[MOST_TP], T = 0, most_c = 0;
        int ranks = whole(seed, 0, 1, MOST_TP), failed = test_failures_in_claim;
        double slices = uniform(seed, 1, 0, 1000);
        if (seed % 10 == 0) slices = 0;
        for (int r = 0; r < ranks; r++) {
            v[r] = uniform(seed, (uint64_t)(10 + r), .1, 2), c[r] = uniform(seed, (uint64_t)(100 + r), 0, 60);
            most_c = MAX(most_c, c[r]);
        }
        double step = balance_split(n, v, c, slices, ranks);
        for (int r = 0; r < ranks; r++)
            if (n[r] > 0) T = MAX(T, c[r] + n[r] / v[r]);
        CHECK_CLOSE(total(n, ranks), slices, 1e-9 * (1 + slices));  // 64 roundings of sums below 1e4
        CHECK_CLOSE(step, MAX(T, most_c), 1e-9 * step);
        for (int r = 0; r < ranks && slices > 0; r++) {
            if (n[r] > 0) CHECK_CLOSE(c[r] + n[r] / v[r], T, 1e-9 * T);
            else CHECK(c[r] >= T * (1 - 1e-9));
        }
        if (failed != test_failures_in_claim) printf("    seed %d\n", (int)seed);
    }
}

// Tries all divisions.
static double best_step(const double* v, const double* c, int slices, int ranks) {
    if (ranks == 1) return c[0] + slices / v[0];
    double best = infinite;
    for (int n = 0; n <= slices; n++) {
        double rest = best_step(v + 1, c + 1, slices - n, ranks - 1);
        best = MIN(best, MAX(rest, c[0] + n / v[0]));
    }
    return best;
}

static void whole_slices_are_divided_as_well_as_they_can_be(void) {
    for (uint64_t seed = 1; seed <= 400; seed++) {
        double v[4], c[4];
        int n[4], ranks = whole(seed, 0, 1, 4), slices = whole(seed, 1, 0, 14), sum = 0;
        for (int r = 0; r < ranks; r++) {
            v[r] = 1. / whole(seed, (uint64_t)(2 + r), 1, 8);  // ties are frequent
            c[r] = whole(seed, (uint64_t)(6 + r), 0, 12);
        }
        double step = balance_split_whole(n, v, c, slices, ranks), best = best_step(v, c, slices, ranks);
        for (int r = 0; r < ranks; r++) sum += n[r];
        CHECK(sum == slices);
        if (step != best) printf("    seed %d\n", (int)seed);
        CHECK(step == best);  // the same expressions: to the bit
    }
}

// ---- migration

static void one_straggler_gives_the_golden_share(void) {
    static const double chi[] = {1.5, 2, 4, 6, 8}, g[] = {.3333, .5, .75, .8333, .875};
    static const int helpers[] = {1, 3, 4, 7};
    static const double x[5][4] = {{.2, .2727, .2857, .3043},
                                   {.3333, .4286, .4444, .4667},
                                   {.6, .6923, .7059, .7241},
                                   {.7143, .7895, .8, .8140},
                                   {.7778, .84, .8485, .8596}};
    static const double T[5][4] = {{1.2, 1.0909, 1.0714, 1.0435},
                                   {1.3333, 1.1429, 1.1111, 1.0667},
                                   {1.6, 1.2308, 1.1765, 1.1034},
                                   {1.7143, 1.2632, 1.2, 1.1163},
                                   {1.7778, 1.28, 1.2121, 1.1228}};
    static const double speed_up[5][4] = {{1.25, 1.375, 1.4, 1.438},
                                          {1.5, 1.75, 1.8, 1.875},
                                          {2.5, 3.25, 3.4, 3.625},
                                          {3.5, 4.75, 5, 5.375},
                                          {4.5, 6.25, 6.6, 7.125}};
    for (int i = 0; i < COUNT(chi); i++) {
        CHECK_CLOSE(balance_gamma(chi[i], 0, 1, 1), g[i], HALF_DIGIT);
        for (int q = 0; q < COUNT(helpers); q++) {
            double v[8] = {1 / chi[i], 1, 1, 1, 1, 1, 1, 1}, sent[8], taken[8], n[8], c[8] = {0};
            int ranks = helpers[q] + 1;
            RankSpeed group[8];
            make_ranks(group, v, NULL, 1, ranks);
            double step = balance_move(sent, taken, group, ranks, &(MoveCost){0});
            CHECK_CLOSE(step, T[i][q], HALF_DIGIT);
            CHECK_CLOSE(sent[0], x[i][q], HALF_DIGIT);
            CHECK_CLOSE(chi[i] / step, speed_up[i][q], 5.1e-4);
            CHECK_CLOSE(step, balance_split(n, v, c, ranks, ranks), 1e-12);  // without cost both are the same
            for (int r = 1; r < ranks; r++) CHECK_CLOSE(taken[r], x[i][q] / helpers[q], HALF_DIGIT);
        }
    }
}

static void exchanges_give_the_golden_divisions(void) {
    static const struct {
        double c[4];
        MoveCost cost;
        double T, sent, taken;
    } golden[] = {{{0}, {.2, .1, .1}, 10.2625, 5.625, 1.875},
                  {{8, 2, 2, 2}, {.2, .1, .1}, 12.7781, 7.0313, 2.3438},
                  {{0}, {1, .5, .5}, 12, 6, 2}};
    static const double v[] = {.25, 1, 1, 1};
    for (int i = 0; i < COUNT(golden); i++) {
        RankSpeed group[4];
        double sent[4], taken[4];
        make_ranks(group, v, golden[i].c, 8, 4);
        CHECK_CLOSE(balance_move(sent, taken, group, 4, &golden[i].cost), golden[i].T, HALF_DIGIT);
        CHECK_CLOSE(sent[0], golden[i].sent, HALF_DIGIT);
        CHECK(taken[0] == 0);
        for (int r = 1; r < 4; r++) {
            CHECK_CLOSE(taken[r], golden[i].taken, HALF_DIGIT);
            CHECK(sent[r] == 0);
        }
    }
}

static void random_group(uint64_t seed, RankSpeed* group, int ranks, MoveCost* cost, int limits) {
    for (int r = 0; r < ranks; r++) {
        uint64_t at = (uint64_t)(10 * (r + 2));
        double n = uniform(seed, at, 20, 200), slow = whole(seed, at + 1, 0, 2) ? 1 : uniform(seed, at + 2, 1, 8);
        group[r] = (RankSpeed){.v = uniform(seed, at + 3, .8, 1.2) / slow, .n = n, .prunable = 1};
        group[r].c = uniform(seed, at + 4, 0, 50);
        group[r].room = limits ? uniform(seed, at + 5, 0, n) : infinite;
        group[r].movable = limits ? uniform(seed, at + 6, .2, 1) * n : n;
        if (limits) group[r].prunable = uniform(seed, at + 7, .3, 1);
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

// When a rank ends that does what was decided for it.
static double end_ms(const RankSpeed* x, const MoveCost* cost, double sent, double taken, double pruned) {
    double ms = x->c + (x->n - sent + taken) / x->v * (1 - x->prunable * pruned);
    return ms + (sent > 0 || taken > 0 ? cost->fixed : 0) + sent * cost->send + taken * cost->take;
}

static int keeps_to_limits(const RankSpeed* group, int ranks, const double* sent, const double* taken) {
    for (int r = 0; r < ranks; r++) {
        if (!(sent[r] >= 0 && sent[r] <= group[r].movable && taken[r] >= 0 && taken[r] <= group[r].room)) return 0;
        if (sent[r] > 0 && taken[r] > 0) return 0;
    }
    // Sums of 64 numbers below 200.
    return fabs(total(sent, ranks) - total(taken, ranks)) <= 1e-9;
}

static void moves_are_possible_and_no_division_ends_sooner(void) {
    int moved = 0, still = 0;
    for (uint64_t seed = 1; seed <= 4000; seed++) {
        RankSpeed group[MOST_TP];
        MoveCost cost;
        double sent[MOST_TP], taken[MOST_TP], last = 0;
        int ranks = whole(seed, 0, 1, seed % 5 ? 8 : MOST_TP), failed = test_failures_in_claim;
        random_group(seed, group, ranks, &cost, seed % 3 != 0);
        double T = balance_move(sent, taken, group, ranks, &cost);
        CHECK(keeps_to_limits(group, ranks, sent, taken));
        for (int r = 0; r < ranks; r++) {
            last = MAX(last, end_ms(&group[r], &cost, sent[r], taken[r], 0));
            if (1 / group[r].v <= cost.send) CHECK(sent[r] == 0);
        }
        CHECK_CLOSE(last, T, 1e-9 * T);
        CHECK(is_impossible(group, ranks, &cost, T * (1 - 1e-7)));
        *(total(sent, ranks) > 0 ? &moved : &still) += 1;
        if (failed != test_failures_in_claim) printf("    seed %d\n", (int)seed);
    }
    CHECK(moved > 1000 && still > 100);  // both kinds were tried
}

// sum(k E) / sum(k) over all who send or take: nobody at a limit, nobody held by the fixed cost.
static void moves_agree_with_the_closed_form(void) {
    int compared = 0;
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        RankSpeed group[8];
        MoveCost cost;
        double sent[8], taken[8], k_sum = 0, kE_sum = 0;
        random_group(seed, group, 8, &cost, 0);
        double T = balance_move(sent, taken, group, 8, &cost);
        int held = total(sent, 8) <= 0;
        for (int r = 0; r < 8; r++) {
            if (sent[r] >= group[r].movable * (1 - 1e-12) || fabs(idle_ms(&group[r]) - T) < 1e-12 * T) held = 1;
            if (sent[r] <= 0 && taken[r] <= 0) continue;
            double k = 1 / (1 / group[r].v + (sent[r] > 0 ? -cost.send : cost.take));
            k_sum += k, kE_sum += k * (idle_ms(&group[r]) + cost.fixed);
        }
        if (held) continue;
        compared++;
        CHECK_CLOSE(T, kE_sum / k_sum, 1e-10 * T);
    }
    CHECK(compared > 300);
}

static void nothing_moves_where_that_gains_nothing(void) {
    static const double v[] = {.25, 1, 1, 1}, even[] = {1, 1, 1, 1};
    static const struct {
        const double* v;
        MoveCost cost;
        double room, movable;
    } cases[] = {
        {even, {0, 0, 0}, 8, 8},  // nobody is slow
        {v, {0, 4, 0}, 8, 8},     // sending takes as long as computing
        {v, {0, 5, 0}, 8, 8},     // and longer
        {v, {32, .1, .1}, 8, 8},  // all that could be gained goes into the fixed cost
        {v, {0, 0, 0}, 0, 8},     // nobody has room
        {v, {0, 0, 0}, 8, 0},     // nothing may leave
        {v, {4, 0, 0}, 8, 1},     // what may leave wins back the fixed cost, no more
    };
    for (int i = 0; i < COUNT(cases); i++) {
        RankSpeed group[4];
        double sent[4], taken[4];
        make_ranks(group, cases[i].v, NULL, 8, 4);
        for (int r = 0; r < 4; r++) group[r].room = cases[i].room, group[r].movable = cases[i].movable;
        CHECK(balance_move(sent, taken, group, 4, &cases[i].cost) == idle_ms(&group[0]));
        CHECK(total(sent, 4) == 0 && total(taken, 4) == 0);
    }
}

// A rank that may give little, and helpers that then need not be full, nor all be used.
static void limits_bind(void) {
    static const double v[] = {.25, 1, 1, .5};
    RankSpeed group[4];
    double sent[4], taken[4];
    make_ranks(group, v, NULL, 8, 4);
    group[0].movable = 2;
    CHECK_CLOSE(balance_move(sent, taken, group, 4, &(MoveCost){0}), 24, 1e-12);
    CHECK_CLOSE(sent[0], 2, 1e-12);
    CHECK_CLOSE(taken[1], 1, 1e-12);  // 8 + 1 each is sooner than the 16 that rank 3 has alone
    CHECK_CLOSE(taken[2], 1, 1e-12);
    CHECK(taken[3] == 0);
    group[0].movable = 8, group[1].room = .5;
    // Below 16 rank 3 sends as well: (32 - T) / 4 + (16 - T) / 2 leave, .5 + (T - 8) are taken.
    CHECK_CLOSE(balance_move(sent, taken, group, 4, &(MoveCost){0}), 23.5 / 1.75, 1e-12);
    CHECK(taken[1] == .5 && sent[3] > 0 && taken[3] == 0);
}

// ---- resizing

static void gamma_is_the_golden_fraction(void) {
    static const struct {
        double c_over_m, chi, gamma;
    } golden[] = {{.25, 1.25, .25}, {.25, 1.5, .4167}, {.25, 2, .625}, {.25, 3, .8333}, {.25, 4, .9375}, {.25, 5, 1},
                  {.25, 6, 1},      {.5, 2, .75},      {.5, 3, 1},     {1, 1.5, .6667}, {1, 2, 1}};
    for (int i = 0; i < COUNT(golden); i++) {
        double m = 4, c = golden[i].c_over_m * m, chi = golden[i].chi;
        CHECK_CLOSE(balance_gamma(chi * m, chi * c, c + m, 1), golden[i].gamma, HALF_DIGIT);
    }
    CHECK(balance_gamma(16, 1, 5, .7) == .7);
    CHECK(balance_gamma(4, 1, 6, 1) == 0);
    CHECK(balance_gamma(0, 9, 6, 1) == 0);
}

static void ratios_are_the_golden_ones(void) {
    static const struct {
        int n;
        double m[4], w[4], most, g[4];
    } golden[] = {{4, {1, 1, 2, 2}, {1, 1, 1, 1}, 1, {.3, .3, .6, .6}},
                  {4, {1, 1, 2, 2}, {1, 2, 4, 8}, .9, {.9, .525, .525, .2625}},
                  {3, {2, 2, 2}, {1, 2, 4}, 1, {.8571, .4286, .2143}}};
    for (int i = 0; i < COUNT(golden); i++) {
        double g[4];
        CHECK_CLOSE(balance_ratios(g, golden[i].m, golden[i].w, golden[i].n, 3, golden[i].most), 3, 1e-12);
        for (int l = 0; l < golden[i].n; l++) CHECK_CLOSE(g[l], golden[i].g[l], HALF_DIGIT);
    }
}

// Optimal where no two layers could exchange a millisecond and lose less: the loss of a saved millisecond, w g / m, is
// the same for all that are free and not larger for those at most. (The problem is convex.)
static void ratios_save_what_they_should_at_least_loss(void) {
    enum { LAYERS = 48 };
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        double m[LAYERS], w[LAYERS], g[LAYERS], most = uniform(seed, 2, .2, 1), pace = -1;
        int n = whole(seed, 0, 1, LAYERS), failed = test_failures_in_claim;
        for (int l = 0; l < n; l++) m[l] = uniform(seed, (uint64_t)(10 + l), .5, 4);
        for (int l = 0; l < n; l++) w[l] = uniform(seed, (uint64_t)(100 + l), .01, 5);
        double delta = uniform(seed, 1, 0, 1.2) * most * total(m, n), saved = balance_ratios(g, m, w, n, delta, most);
        CHECK_CLOSE(saved, MIN(delta, most * total(m, n)), 1e-9 * delta);
        for (int l = 0; l < n; l++) {
            CHECK(g[l] >= 0 && g[l] <= most);
            if (g[l] < most) pace = w[l] * g[l] / m[l];
        }
        for (int l = 0; l < n && pace >= 0; l++) {
            if (g[l] < most) CHECK_CLOSE(w[l] * g[l] / m[l], pace, 1e-9 * pace);
            else CHECK(w[l] * g[l] / m[l] <= pace * (1 + 1e-9));
        }
        if (failed != test_failures_in_claim) printf("    seed %d\n", (int)seed);
    }
    double g[2];
    CHECK_CLOSE(balance_ratios(g, (double[]){1, 1}, (double[]){0, 0}, 2, 1, 1), 1, 1e-12);  // nothing known: alike
    CHECK_CLOSE(g[0], .5, 1e-12);
    CHECK_CLOSE(balance_ratios(g, (double[]){1, 1}, (double[]){0, 1}, 2, .5, 1), .5, 1e-12);
    CHECK(g[0] > .499 && g[1] < 1e-6);  // costs nothing: first
    CHECK(balance_ratios(g, (double[]){1, 1}, (double[]){1, 1}, 2, -1, 1) == 0 && g[0] == 0 && g[1] == 0);
}

// ---- decisions

static BalanceSetting setting_of(BalanceMode mode, int ranks) {
    return (BalanceSetting){.mode = mode, .ranks = ranks, .start = 1.2, .stop = 1.1, .most_pruned = 1};
}

// As if these speeds had been measured.
static BalanceMemory remember(const RankSpeed* group, int ranks) {
    BalanceMemory memory = {.steps = 1};
    for (int r = 0; r < ranks; r++)
        memory.v[r] = group[r].v, memory.c[r] = group[r].c, memory.prunable[r] = group[r].prunable;
    return memory;
}

static BalanceDecision decide(const BalanceSetting* setting, RankSpeed* group) {
    BalanceMemory memory = remember(group, setting->ranks);
    return balance_decide(&memory, setting, group);
}

static void semi_gives_the_golden_targets(void) {
    static const struct {
        double lambda, T, u, z, J;
    } golden[] = {{0, 8, 0, 6, 8},
                  {1, 8, 0, 6, 9.125},
                  {2, 9.4365, 3.3723, 2.4029, 9.8622},
                  {4, 9.8675, 4.5476, 1.1492, 10.0711},
                  {8, 10.0829, -1, .5224, 10.1689},
                  {100, 10.2625, 5.625, 0, 10.2625},
                  {INFINITY, 10.2625, 5.625, 0, 10.2625}};
    static const double v[] = {.25, 1, 1, 1};
    for (int i = 0; i < COUNT(golden); i++) {
        RankSpeed group[4];
        make_ranks(group, v, NULL, 8, 4);
        BalanceSetting setting = setting_of(BALANCE_SEMI, 4);
        setting.cost = (MoveCost){.2, .1, .1}, setting.exchange_rate = golden[i].lambda, setting.squared = 1;
        BalanceDecision d = decide(&setting, group);
        CHECK(d.active && d.idle_ms == 32);
        CHECK_CLOSE(d.step_ms, golden[i].T, HALF_DIGIT);
        CHECK_CLOSE(d.objective, golden[i].J, HALF_DIGIT);
        CHECK_CLOSE(d.pruned[0] * (8 - d.sent[0]), golden[i].z, HALF_DIGIT);
        if (golden[i].u >= 0) CHECK_CLOSE(d.sent[0], golden[i].u, HALF_DIGIT);
        CHECK_CLOSE(total(d.taken, 4), d.sent[0], 1e-12);
    }
}

static void semi_with_a_linear_loss_switches_at_once(void) {
    static const double v[] = {.25, 1, 1, 1};
    for (int i = 0; i < 200; i++) {
        double lambda = i / 50. + (i == 75 ? .008 : 0);  // 1.508 among them; the switch is at 2.2625 / 1.5
        RankSpeed group[4];
        make_ranks(group, v, NULL, 8, 4);
        BalanceSetting setting = setting_of(BALANCE_SEMI, 4);
        setting.cost = (MoveCost){.2, .1, .1}, setting.exchange_rate = lambda;
        BalanceDecision d = decide(&setting, group);
        if (lambda < 1.5083) {
            CHECK_CLOSE(d.step_ms, 8, 1e-12);
            CHECK_CLOSE(d.pruned[0], .75, 1e-12);
            CHECK(d.sent[0] == 0);
        } else {
            CHECK_CLOSE(d.step_ms, 10.2625, HALF_DIGIT);
            CHECK(d.pruned[0] == 0);
        }
    }
}

static void the_dead_band_has_two_edges(void) {
    static const struct {
        double slow;
        int acts;
    } walk[] = {{1, 0}, {1.15, 0}, {1.19, 0}, {1.21, 1}, {1.15, 1}, {1.11, 1}, {1.09, 0}, {1.15, 0}, {1.3, 1}, {1, 0}};
    static const BalanceMode modes[] = {BALANCE_RESIZE, BALANCE_MIGRATE, BALANCE_SEMI, BALANCE_OFF};
    for (int m = 0; m < COUNT(modes); m++)
        for (int ranks = 2; ranks <= 8; ranks *= 2) {
            BalanceSetting setting = setting_of(modes[m], ranks);
            BalanceMemory memory = {0};
            for (int i = 0; i < COUNT(walk); i++) {
                double v[8] = {1, 1, 1, 1, 1, 1, 1, 1};
                RankSpeed group[8];
                v[ranks - 1] = 1 / walk[i].slow;
                make_ranks(group, v, NULL, 8, ranks);
                for (int r = 0; r < ranks; r++) memory.v[r] = v[r], memory.prunable[r] = 1;
                BalanceDecision d = balance_decide(&memory, &setting, group);
                int acts = walk[i].acts && modes[m] != BALANCE_OFF;
                CHECK(d.active == acts && memory.active == acts);
                CHECK_CLOSE(d.idle_ms, 8 * walk[i].slow, 1e-12);
                if (!acts) CHECK(d.step_ms == d.idle_ms && total(d.pruned, 8) + total(d.sent, 8) == 0);
            }
        }
}

static void nothing_is_decided_before_all_ranks_are_known(void) {
    RankSpeed group[2];
    make_ranks(group, (double[]){.25, 1}, NULL, 8, 2);
    BalanceSetting setting = setting_of(BALANCE_RESIZE, 2);
    BalanceMemory memory = {.v = {.25, 0}, .prunable = {1, 1}};
    BalanceDecision d = balance_decide(&memory, &setting, group);
    CHECK(!d.active && d.step_ms == 0 && d.idle_ms == 0 && d.pruned[0] == 0);
}

// Ranks 8, 6, 4 and 2 times as slow among eight, 4 and 2 among four.
static int stragglers(RankSpeed* group, int ranks, double c) {
    static const double slow8[] = {1, 8, 1, 6, 4, 1, 2, 1}, slow4[] = {2, 1, 4, 1};
    double v[8], times[8];
    for (int r = 0; r < ranks; r++) {
        double slow = ranks == 8 ? slow8[r] : slow4[r];
        v[r] = 1 / slow, times[r] = c * slow;
    }
    make_ranks(group, v, times, 8, ranks);
    return ranks;
}

static void several_stragglers_are_all_brought_down(void) {
    for (int ranks = 4; ranks <= 8; ranks += 4) {
        RankSpeed group[8];
        stragglers(group, ranks, 0);
        BalanceSetting setting = setting_of(BALANCE_RESIZE, ranks);
        BalanceDecision d = decide(&setting, group);
        CHECK_CLOSE(d.step_ms, 8, 1e-12);
        for (int r = 0; r < ranks; r++) CHECK_CLOSE(d.pruned[r], 1 - group[r].v, 1e-12);
        setting.mode = BALANCE_MIGRATE;
        d = decide(&setting, group);
        CHECK_CLOSE(d.step_ms, ranks == 8 ? 12.6942 : 11.6364, HALF_DIGIT);  // rows 5 and 4 of water filling
        for (int r = 0; r < ranks; r++)  // all end together: no helper becomes the slowest
            CHECK_CLOSE(end_ms(&group[r], &setting.cost, d.sent[r], d.taken[r], 0), d.step_ms, 1e-9);
    }
}

static void the_heaviest_stragglers_migrate_first(void) {
    int partly = 0;
    for (double lambda = 0; lambda < 30; lambda += .25)
        for (int ranks = 4; ranks <= 8; ranks += 4) {
            RankSpeed group[8];
            stragglers(group, ranks, 0);
            BalanceSetting setting = setting_of(BALANCE_SEMI, ranks);
            setting.cost = (MoveCost){.05, .02, .02}, setting.exchange_rate = lambda, setting.squared = 1;
            BalanceDecision d = decide(&setting, group);
            int halfway = 0;
            for (int a = 0; a < ranks; a++) {
                if (d.sent[a] > 0 && d.pruned[a] > 0) halfway++;
                for (int b = 0; b < ranks; b++)  // a lighter one sends only if the heavier ones leave nothing out
                    if (idle_ms(&group[a]) > idle_ms(&group[b]) && d.sent[b] > 0 && d.step_ms < 11)
                        CHECK(d.sent[a] > 0 && d.pruned[a] == 0);
            }
            CHECK(halfway <= 1);
            partly += halfway;
        }
    CHECK(partly > 10);
}

// A straggler that cannot reach the others pins the step; the lighter one has no reason to go below it.
static void nobody_leaves_out_more_than_the_step_needs(void) {
    RankSpeed group[4];
    make_ranks(group, (double[]){.25, .5, 1, 1}, NULL, 8, 4);
    BalanceSetting setting = setting_of(BALANCE_RESIZE, 4);
    setting.most_pruned = .6;
    BalanceDecision d = decide(&setting, group);
    CHECK_CLOSE(d.step_ms, 12.8, 1e-12);
    CHECK_CLOSE(d.pruned[0], .6, 1e-12);
    CHECK_CLOSE(d.pruned[1], .2, 1e-12);
    CHECK(d.pruned[2] == 0 && d.pruned[3] == 0);
    // Of a slice's time only half is matmuls: leaving out a fraction saves half of it.
    group[1] = group[2], group[0].prunable = .5, setting.most_pruned = 1;
    d = decide(&setting, group);
    CHECK_CLOSE(d.step_ms, 16, 1e-12);
    CHECK_CLOSE(d.pruned[0], 1, 1e-12);
    group[0].prunable = .8;
    d = decide(&setting, group);
    CHECK_CLOSE(d.step_ms, 8, 1e-12);
    CHECK_CLOSE(d.pruned[0], .75 / .8, 1e-12);
}

// Shares that follow speeds are even in time; shares that do not are not.
static void unlike_shares_are_judged_by_their_time(void) {
    RankSpeed group[3];
    BalanceSetting setting = setting_of(BALANCE_MIGRATE, 3);
    make_ranks(group, (double[]){.25, 1, 1}, NULL, 8, 3);
    group[0].n = 2;
    CHECK(!decide(&setting, group).active);
    make_ranks(group, (double[]){1, 1, 1}, NULL, 8, 3);
    group[2].n = group[2].movable = 20;
    BalanceDecision d = decide(&setting, group);
    CHECK(d.active);
    CHECK_CLOSE(d.step_ms, 12, 1e-12);
    CHECK_CLOSE(d.sent[2], 8, 1e-12);
    CHECK_CLOSE(d.taken[0], 4, 1e-12);
    setting.mode = BALANCE_RESIZE;
    CHECK_CLOSE(decide(&setting, group).pruned[2], .6, 1e-12);
    setting.mode = BALANCE_SEMI, setting.exchange_rate = INFINITY;
    CHECK_CLOSE(decide(&setting, group).sent[2], 8, 1e-12);
}

// In every mode: limits are kept, all ranks end by step_ms, one does then, and SEMI's J is not above that of the others.
static void decisions_keep_their_promise(void) {
    int active = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        RankSpeed group[MOST_TP];
        int ranks = whole(seed, 0, 2, seed % 5 ? 8 : MOST_TP), failed = test_failures_in_claim;
        BalanceSetting setting = setting_of(BALANCE_OFF, ranks);
        random_group(seed, group, ranks, &setting.cost, 1);
        setting.most_pruned = uniform(seed, 5, .3, 1);
        setting.exchange_rate = uniform(seed, 6, 0, 10), setting.squared = seed % 2 == 0;
        double J[4] = {0};
        for (int mode = BALANCE_RESIZE; mode <= BALANCE_SEMI; mode++) {
            setting.mode = (BalanceMode)mode;
            BalanceDecision d = decide(&setting, group);
            double last = 0, loss = 0, slices = 0;
            for (int r = 0; r < ranks; r++) slices += group[r].n;
            CHECK(keeps_to_limits(group, ranks, d.sent, d.taken));
            for (int r = 0; r < ranks; r++) {
                CHECK(d.pruned[r] >= 0 && d.pruned[r] <= setting.most_pruned * (1 + 1e-12));
                last = MAX(last, end_ms(&group[r], &setting.cost, d.sent[r], d.taken[r], d.pruned[r]));
                double g = d.pruned[r] * (group[r].n - d.sent[r]) / group[r].n;
                loss += (setting.squared ? g * g : g) * group[r].n / slices;
            }
            CHECK_CLOSE(last, d.step_ms, 1e-9 * last);
            CHECK(d.step_ms <= d.idle_ms && d.active == (d.step_ms < d.idle_ms));
            J[mode] = d.step_ms * (1 + setting.exchange_rate * loss);
            if (mode == BALANCE_SEMI && d.active) CHECK_CLOSE(d.objective, J[mode], 1e-9 * J[mode]);
            active += d.active;
        }
        CHECK(J[BALANCE_SEMI] <= MIN(J[BALANCE_RESIZE], J[BALANCE_MIGRATE]) * (1 + 1e-9));
        if (failed != test_failures_in_claim) printf("    seed %d\n", (int)seed);
    }
    CHECK(active > 3000);
}

static void a_decision_is_told_from_every_other_by_its_hash(void) {
    RankSpeed group[8];
    BalanceSetting setting = setting_of(BALANCE_MIGRATE, stragglers(group, 8, 0));
    BalanceDecision d = decide(&setting, group), other = d;
    CHECK(balance_hash(&d, 8) == balance_hash(&other, 8));
    double* fields[] = {&other.step_ms, &other.idle_ms,  &other.objective, &other.pruned[7],
                        &other.sent[0], &other.taken[7], &other.v[3]};
    for (int i = 0; i < COUNT(fields); i++) {
        *fields[i] = nextafter(*fields[i], 1e9);
        CHECK(balance_hash(&d, 8) != balance_hash(&other, 8));
        other = d;
    }
    other.active = 0;
    CHECK(balance_hash(&d, 8) != balance_hash(&other, 8));
    other = d, other.sent[8] = 1;  // beyond the ranks
    CHECK(balance_hash(&d, 8) == balance_hash(&other, 8));
}

// ---- memory

static RankTimes times_of(double linear, double attention, double other, double slices, double pruned) {
    return (RankTimes){linear * (1 - pruned), attention, other, slices, pruned};
}

static void what_was_taken_off_is_put_back(void) {
    BalanceSetting setting = setting_of(BALANCE_RESIZE, 1);
    for (double g = 0; g < 1; g += .09) {
        BalanceMemory memory = {0};
        RankTimes times = times_of(12, 4, 3, 100, g);
        balance_learn(&memory, &setting, &times);
        CHECK(memory.steps == 1);
        CHECK_CLOSE(memory.v[0], 100 / 16., 1e-12);
        CHECK_CLOSE(memory.prunable[0], .75, 1e-12);
        CHECK(memory.c[0] == 3);
    }
}

static void memory_smooths_and_starts_anew_at_a_jump(void) {
    BalanceSetting setting = setting_of(BALANCE_RESIZE, 1);
    static const double factors[] = {1.05, 1.25, .8, 1.35, .7, 4, .25};
    for (int i = 0; i < COUNT(factors); i++) {
        BalanceMemory memory = {0};
        RankTimes times = times_of(10, 0, 2, 100, 0);
        balance_learn(&memory, &setting, &times);
        times.linear /= factors[i];
        times.attention = times.linear * .1, times.linear *= .9;
        balance_learn(&memory, &setting, &times);
        int jump = factors[i] > 1.3 || factors[i] < 1 / 1.3;
        CHECK_CLOSE(memory.v[0], jump ? 10 * factors[i] : 10 * (1 + factors[i]) / 2, 1e-12);
        CHECK_CLOSE(memory.prunable[0], jump ? .9 : .95, 1e-12);
        CHECK(memory.c[0] == 2);
        times.other = 2.4;
        balance_learn(&memory, &setting, &times);
        CHECK_CLOSE(memory.c[0], 2.2, 1e-12);
        times.other = 9;  // alone
        balance_learn(&memory, &setting, &times);
        CHECK(memory.c[0] == 9);
    }
}

static void measurements_that_say_nothing_change_nothing(void) {
    BalanceSetting setting = setting_of(BALANCE_RESIZE, 1);
    BalanceMemory memory = {0}, before;
    RankTimes good = times_of(10, 1, 2, 100, 0);
    balance_learn(&memory, &setting, &good);
    static const RankTimes bad[] = {{0, 1, 2, 100, 0},   {10, 1, 2, 0, 0},       {10, 1, 2, 100, 1},
                                    {NAN, 1, 2, 100, 0}, {10, NAN, 2, 100, 0},   {10, 1, NAN, 5, 0},
                                    {10, 1, 2, NAN, 0},  {10, 1, 2, 100, NAN},   {INFINITY, 1, 2, 9, 0},
                                    {-1, 1, 2, 9, 0},    {10, 1, INFINITY, 9, 0}};
    for (int i = 0; i < COUNT(bad); i++) {
        before = memory;
        balance_learn(&memory, &setting, &bad[i]);
        CHECK(memory.v[0] == before.v[0] && memory.c[0] == before.c[0] && memory.prunable[0] == before.prunable[0]);
    }
}

// c = 1, m = 4, matmuls four times as slow: 17 ms, target 5, and 16 ms of matmuls run as 4 from then on.
static void a_resized_rank_does_not_look_healthy(void) {
    BalanceSetting setting = setting_of(BALANCE_RESIZE, 4);
    BalanceMemory memory = {0};
    double g = 0;
    for (int i = 0; i < 10; i++) {
        RankTimes times[4];
        RankSpeed group[4];
        make_ranks(group, (double[]){1, 1, 1, 1}, NULL, 8, 4);
        for (int r = 0; r < 4; r++) times[r] = times_of(r == 2 ? 16 : 4, 0, 1, 8, r == 2 ? g : 0);
        balance_learn(&memory, &setting, times);
        BalanceDecision d = balance_decide(&memory, &setting, group);
        g = d.pruned[2];
        CHECK_CLOSE(g, .75, 1e-12);
        CHECK_CLOSE(d.step_ms, 5, 1e-12);
        CHECK_CLOSE(d.idle_ms, 17, 1e-12);
    }
}

// ---- in whole heads and units

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

static double slices_of(const Case* x, SliceCount n) { return n.units + n.heads * x->head_work; }

static void random_case(Case* x, uint64_t seed) {
    int width = 64 * whole(seed, 1, 2, 32), most = MOST_TP;
    memset(x, 0, sizeof *x);
    x->ranks = whole(seed, 0, 2, seed % 4 ? 8 : most);
    x->tile = 1 << whole(seed, 2, 0, 6);
    x->keep_heads = whole(seed, 3, 0, 1);
    x->head_work = uniform(seed, 4, 20, 400);
    x->setting = setting_of(seed % 3 ? BALANCE_MIGRATE : BALANCE_SEMI, x->ranks);
    x->setting.exchange_rate = uniform(seed, 5, 0, 20);
    random_group(seed, x->group, x->ranks, &x->setting.cost, 1);
    x->setting.cost = (MoveCost){uniform(seed, 6, 0, 50), uniform(seed, 7, 0, .3), uniform(seed, 8, 0, .2)};
    for (int r = 0; r < x->ranks; r++) {
        uint64_t at = (uint64_t)(1000 + 10 * r);
        x->own[r] = (SliceCount){whole(seed, at, 1, 8), whole(seed, at + 1, 1, 2 * width)};
        x->group[r].n = slices_of(x, x->own[r]);
        x->group[r].room = uniform(seed, at + 2, 0, 2) * x->group[r].n;
        int stays = MIN(x->tile, x->own[r].units);
        x->group[r].movable = slices_of(x, (SliceCount){x->own[r].heads - x->keep_heads, x->own[r].units - stays});
    }
    x->decision = decide(&x->setting, x->group);
    x->n_moves = balance_moves(x->moves, &x->decision, x->own, x->ranks, x->head_work, x->tile, x->keep_heads);
}

// How often each head and unit of rank r is computed: 1 everywhere.
static int is_computed_once(const Case* x, int r) {
    static int heads[8 + 1], units[4096 + 1];
    memset(heads, 0, sizeof heads), memset(units, 0, sizeof units);
    int kept_heads = x->own[r].heads, kept_units = x->own[r].units;
    for (int i = 0; i < x->n_moves; i++) {
        const Move* m = &x->moves[i];
        if (m->from != r) continue;
        if (m->head < 0 || m->unit < 0 || m->heads < 0 || m->units < 0 || m->heads + m->units == 0) return 0;
        if (m->head + m->heads > x->own[r].heads || m->unit + m->units > x->own[r].units) return 0;
        for (int h = 0; h < m->heads; h++) heads[m->head + h]++;
        for (int u = 0; u < m->units; u++) units[m->unit + u]++;
        kept_heads -= m->heads, kept_units -= m->units;
    }
    for (int h = 0; h < x->own[r].heads; h++)  // its own first ones, then what others have
        if (heads[h] != (h >= kept_heads)) return 0;
    for (int u = 0; u < x->own[r].units; u++)
        if (units[u] != (u >= kept_units)) return 0;
    return 1;
}

static void every_head_and_unit_is_computed_by_one_rank(void) {
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
            CHECK(m->unit % x.tile == 0 || m->units == 0);
            if (i > 0) CHECK(m[-1].from < m->from || (m[-1].from == m->from && m[-1].to < m->to));
        }
        for (int r = 0; r < x.ranks; r++) {
            SliceCount n = balance_count(x.moves, x.n_moves, x.own, r);
            CHECK(is_computed_once(&x, r));
            CHECK(n.units >= MIN(x.own[r].units, x.tile) && n.heads >= MIN(x.own[r].heads, x.keep_heads));
            before.heads += x.own[r].heads, before.units += x.own[r].units;
            after.heads += n.heads, after.units += n.units;
        }
        CHECK(before.heads == after.heads && before.units == after.units);
        moved += x.n_moves > 0, tight += x.n_moves > x.ranks;
        if (failed != test_failures_in_claim) printf("    seed %d\n", (int)seed);
    }
    CHECK(moved > 1000 && tight > 5);
}

// Rounded, a straggler ends at most tile / (v + v_h) after the decision, v_h the mean speed of helpers: its own slowness
// does not multiply a tile. Where it has given all tiles it may, heads have to do, and it is a head.
// Of Q helpers the one that gets an item of `size` is late by l <= (size - need_h) / v_h for every helper h. Summed over
// all: l <= (Q size - what is still needed) / sum v, and needed are this item and all that follow, less what stragglers
// give beyond the decision.
static void rounding_costs_a_tile_or_a_head(void) {
    int tiles_only = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        static Case x;
        random_case(&x, seed);
        double speeds = 0, beyond = 0;
        int failed = test_failures_in_claim, helpers = 0, heads = 0;
        for (int r = 0; r < x.ranks; r++) {
            SliceCount n = balance_count(x.moves, x.n_moves, x.own, r);
            double given = CEIL_DIV(x.own[r].units - n.units, x.tile) * x.tile;  // a short tile counts in full
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
            double size = n.units <= x.tile ? MAX(x.tile, x.head_work) : x.tile;
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
    // 2 heads are 256 slices. Of 541.5, 8 tiles are 512, and the rest, more than a fifth of a tile, is another. Heads go
    // to ranks 3 and 1, which leaves needs of 137.8, 265.8 and 137.9 to 9 tiles.
    static const Move golden[] = {{0, 1, 1, 1, 192, 128}, {0, 2, 2, 0, 320, 256}, {0, 3, 2, 1, 576, 192}};
    Move moves[8];
    CHECK(balance_moves(moves, &d, own, 4, 128, 64, 0) == 3);
    CHECK(memcmp(moves, golden, sizeof golden) == 0);  // ints, no padding
    d.v[0] = 1;                                        // not slow: the rest has to be half a tile
    CHECK(balance_moves(moves, &d, own, 4, 128, 64, 0) == 3 && moves[0].unit == 768 - 512);
    own[0].units = 760;  // the last tile has 56: with 7 more 504 have gone, and 37.5 are more than half a tile
    int n = balance_moves(moves, &d, own, 4, 128, 64, 0);
    CHECK(moves[n - 1].unit + moves[n - 1].units == 760 && moves[0].unit == 192);
    SliceCount left = balance_count(moves, n, own, 0);
    CHECK(left.heads == 1 && left.units == 192);
    n = balance_moves(moves, &d, own, 4, 128, 64, 2);  // one head may go: 669.5 are left, 56 and 10 tiles are 696
    left = balance_count(moves, n, own, 0);
    CHECK(left.heads == 2 && left.units == 64);
    n = balance_moves(moves, &d, own, 4, 128, 64, 3);  // all but the first tile go
    left = balance_count(moves, n, own, 0);
    CHECK(left.heads == 3 && left.units == 64);
    d.active = 0;
    CHECK(balance_moves(moves, &d, own, 4, 128, 64, 0) == 0);
}

// ---- the loop: ranks are measured, a decision follows, they are measured under it

// A group of equal ranks; rank `slow` takes `chi` times as long, in everything or in matmuls only.
typedef struct World {
    BalanceSetting setting;
    BalanceMemory memory;
    BalanceDecision decision;
    SliceCount own, count[MOST_TP];  // what each has, and computes
    double head_matmul, head_attention, unit_ms, other_ms;
    int slow, all_slow, rounded, tile;
    double chi, noise;
} World;

static double head_work(const World* w) { return w->head_matmul + w->head_attention; }
static double world_slices(const World* w, SliceCount n) { return n.units + n.heads * head_work(w); }

// What rank r measures when it computes `slices`, n.heads and n.units of a kind, `pruned` of the matmuls left out.
static RankTimes measure(const World* w, int r, double slices, double pruned, uint64_t seed) {
    double chi = r == w->slow ? w->chi : 1, rest = w->all_slow ? chi : 1;
    SliceCount n = w->rounded ? w->count[r] : w->own;
    double part = w->rounded ? 1 : slices / world_slices(w, n);  // not rounded: heads and units alike
    double matmul = part * (n.units + n.heads * w->head_matmul) * w->unit_ms * (1 - pruned);
    double jitter = 1 + w->noise * (2 * random_uniform(seed, (uint64_t)r) - 1);
    return (RankTimes){matmul * chi * jitter, part * n.heads * w->head_attention * w->unit_ms * rest * jitter,
                       w->other_ms * rest * jitter, slices, pruned};
}

static double world_ms(const World* w, int r) {
    const BalanceDecision* d = &w->decision;
    double own = world_slices(w, w->own);
    double slices = w->rounded ? world_slices(w, w->count[r]) : own - d->sent[r] + d->taken[r];
    RankTimes t = measure(w, r, slices, d->pruned[r], 0);
    const MoveCost* cost = &w->setting.cost;
    double change = slices - own, ms = t.linear + t.attention + t.other;
    return ms + (change != 0 ? cost->fixed : 0) + (change < 0 ? -change * cost->send : change * cost->take);
}

static double world_step(const World* w) {
    double step = 0;
    for (int r = 0; r < w->setting.ranks; r++) step = MAX(step, world_ms(w, r));
    return step;
}

static double world_spread(const World* w) {
    double least = infinite;
    for (int r = 0; r < w->setting.ranks; r++) least = MIN(least, world_ms(w, r));
    return world_step(w) / least;
}

// One refresh.
static void refresh(World* w, uint64_t seed) {
    RankTimes times[MOST_TP];
    RankSpeed group[MOST_TP];
    SliceCount own[MOST_TP];
    Move moves[2 * MOST_TP];
    int ranks = w->setting.ranks;
    double n = world_slices(w, w->own);
    for (int r = 0; r < ranks; r++) {
        double slices = w->rounded ? world_slices(w, w->count[r]) : n - w->decision.sent[r] + w->decision.taken[r];
        times[r] = measure(w, r, slices, w->decision.pruned[r], w->noise > 0 ? seed : 0);
        group[r] = (RankSpeed){.n = n, .room = n, .movable = n - w->tile};
        own[r] = w->own;
    }
    balance_learn(&w->memory, &w->setting, times);
    w->decision = balance_decide(&w->memory, &w->setting, group);
    int n_moves = balance_moves(moves, &w->decision, own, ranks, head_work(w), w->tile, 0);
    for (int r = 0; r < ranks; r++) w->count[r] = balance_count(moves, n_moves, own, r);
}

// The least step of a division without loss, and of resizing alone.
static double lossless_ms(const World* w) {
    RankSpeed group[MOST_TP];
    double sent[MOST_TP], taken[MOST_TP], n = world_slices(w, w->own);
    World plain = *w;
    plain.rounded = 0;
    for (int r = 0; r < w->setting.ranks; r++) {
        RankTimes t = measure(&plain, r, n, 0, 0);
        group[r] =
            (RankSpeed){.v = n / (t.linear + t.attention), .n = n, .c = t.other, .room = n, .movable = n - w->tile};
    }
    return balance_move(sent, taken, group, w->setting.ranks, &w->setting.cost);
}

static double healthy_ms(const World* w) { return world_slices(w, w->own) * w->unit_ms + w->other_ms; }

// Four refreshes after a change: from the second on the step is good and stays as it is.
static void settle(World* w, uint64_t seed) {
    double good = lossless_ms(w), before = 0, sent_before = 0, pruned_before = 0;
    if (w->setting.mode == BALANCE_RESIZE) good = healthy_ms(w);
    for (int i = 1; i <= 6; i++) {
        refresh(w, seed * 100 + (uint64_t)i);
        double step = world_step(w), sent = w->decision.sent[w->slow], pruned = w->decision.pruned[w->slow];
        if (i < 2) continue;
        CHECK(step <= 1.1 * good);
        CHECK(w->decision.active == (w->chi > 1.3));
        // Receivers are not slower than the rank that they help.
        if (w->setting.mode != BALANCE_RESIZE && w->chi > 1) CHECK(world_spread(w) <= 1.15);
        // No swinging: what noise of this size moves, and no more.
        if (i > 2) CHECK(fabs(step - before) <= (w->noise * 4 + .01) * before);
        if (i > 2) CHECK(fabs(sent - sent_before) <= (w->noise * 4 + .02) * world_slices(w, w->own));
        if (i > 2) CHECK(fabs(pruned - pruned_before) <= w->noise * 4 + .02);
        before = step, sent_before = sent, pruned_before = pruned;
        if (w->chi == 1) CHECK(sent == 0 && pruned == 0 && total(w->decision.taken, w->setting.ranks) == 0);
    }
}

// A straggler appears, grows, moves to another rank, recovers a little, and is gone.
static void live(BalanceMode mode, int ranks, int all_slow, int rounded, double noise, uint64_t seed) {
    World w = {.setting = setting_of(mode, ranks), .own = {4, 2048}, .head_matmul = 256, .head_attention = 64};
    w.setting.most_pruned = .97, w.setting.exchange_rate = seed % 3 == 0 ? INFINITY : (double)(seed % 3),
    w.setting.squared = 1;
    w.setting.cost = (MoveCost){.3, .0005, .0005};
    w.unit_ms = .01, w.other_ms = .5, w.all_slow = all_slow, w.rounded = rounded, w.noise = noise, w.tile = 8;
    for (int r = 0; r < ranks; r++) w.count[r] = w.own;
    static const struct {
        int slow;
        double chi;
    } acts[] = {{0, 1}, {0, 4}, {1, 4}, {1, 8}, {1, 2}, {0, 1}, {1, 1.5}, {0, 1}};
    for (int i = 0; i < COUNT(acts); i++) {
        w.slow = acts[i].slow, w.chi = acts[i].chi;
        int failed = test_failures_in_claim;
        settle(&w, seed * 50 + (uint64_t)i);
        if (failed != test_failures_in_claim)
            printf("    mode %d, %d ranks, all %d, rounded %d, noise %g, seed %d, act %d: step %g of %g, spread %g\n",
                   mode, ranks, all_slow, rounded, noise, (int)seed, i, world_step(&w), lossless_ms(&w),
                   world_spread(&w));
    }
}

static void the_loop_settles_within_two_refreshes(void) {
    for (uint64_t seed = 0; seed < 9; seed++)
        for (int mode = BALANCE_RESIZE; mode <= BALANCE_SEMI; mode++)
            for (int ranks = 2; ranks <= 8; ranks *= 2)
                for (int kind = 0; kind < 4; kind++)
                    live((BalanceMode)mode, ranks, kind & 1, kind >> 1, seed < 3 ? 0 : .01, seed);
}
