// test_balance.c - claims about the formulas of plan/balance.h: they give the figures that were worked out by hand, and
// what they divide nobody could divide better.
//
// Golden figures are printed to four decimals: HALF_DIGIT is half of the last.
#include "test/balance_groups.h"

#define HALF_DIGIT 5.1e-5

// ---- divisions

// Water filling, where moving costs nothing: rank r, with c_r ms that stay and v_r slices a millisecond, computes
// n_r = v_r (T - c_r) slices, and all end at T = (sum n + sum_A v c) / sum_A v, A the ranks with c_r < T. The step is
// the greatest c where that is later; those that could have ended sooner then need not.
static const struct Division {
    double v[8], c[8];
    int ranks;
    double owned, n[8], step;
} divisions[] = {
    {{.25, 1, 1, 1}, {0}, 4, 8, {2.4615, 9.8462, 9.8462, 9.8462}, 9.8462},
    {{.25, 1, 1, 1}, {8, 2, 2, 2}, 4, 8, {1.0769, 10.3077, 10.3077, 10.3077}, 12.3077},
    {{.25, 1, 1, 1}, {14, 2, 2, 2}, 4, 8, {0, 10.6667, 10.6667, 10.6667}, 14},
    {{.25, .5, 1, 1}, {0}, 4, 8, {2.9091, 5.8182, 11.6364, 11.6364}, 11.6364},
    {{1. / 8, 1. / 6, .25, .5, 1, 1, 1, 1},
     {0},
     8,
     8,
     {1.5868, 2.1157, 3.1736, 6.3471, 12.6942, 12.6942, 12.6942, 12.6942},
     12.6942},
    // Pinned at 16 ms, to which ranks 1 to 3 go down; the last four share the rest.
    {{1. / 8, 1. / 6, .25, .5, 1, 1, 1, 1},
     {16, 12, 8, 4, 2, 2, 2, 2},
     8,
     8,
     {0, .6667, 2, 6, 13.8333, 13.8333, 13.8333, 13.8333},
     16},
};

static void water_filling_gives_the_golden_divisions(void) {
    for (int i = 0; i < COUNT(divisions); i++) {
        const struct Division* g = &divisions[i];
        double sent[8], taken[8];
        RankSpeed group[8];
        make_ranks(group, g->v, g->c, g->owned, g->ranks);
        CHECK_CLOSE(balance_move(sent, taken, group, g->ranks, &(MoveCost){0}), g->step, HALF_DIGIT);
        for (int r = 0; r < g->ranks; r++) CHECK_CLOSE(g->owned - sent[r] + taken[r], g->n[r], HALF_DIGIT);
    }
}

// What a rank leaves out that takes m ms for what may shrink and c for what may not, beside two of m0 and c0.
static double gamma_of(double m, double c, double m0, double c0, double most) {
    RankSpeed group[3];
    make_ranks(group, (double[]){4 / m, 4 / m0, 4 / m0}, (double[]){c, c0, c0}, 4, 3);
    BalanceSetting setting = setting_of(BALANCE_RESIZE, 3);
    setting.most_pruned = most;
    return decide(&setting, group).pruned[0];
}

// ---- migration

// chi: how many times as long the straggler takes; x: the share of its slices that `helpers` others take, so that all
// end at T; alone it leaves out g.
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
        CHECK_CLOSE(gamma_of(chi[i], 0, 1, 0, 1), g[i], HALF_DIGIT);
        for (int q = 0; q < COUNT(helpers); q++) {
            double v[8] = {1 / chi[i], 1, 1, 1, 1, 1, 1, 1}, sent[8], taken[8];
            int ranks = helpers[q] + 1;
            RankSpeed group[8];
            make_ranks(group, v, NULL, 1, ranks);
            double step = balance_move(sent, taken, group, ranks, &(MoveCost){0});
            CHECK_CLOSE(step, T[i][q], HALF_DIGIT);
            CHECK_CLOSE(sent[0], x[i][q], HALF_DIGIT);
            CHECK_CLOSE(chi[i] / step, speed_up[i][q], 5.1e-4);
            CHECK_CLOSE(step, ranks / total(v, ranks), 1e-12);  // nothing is lost: all slices over all speeds
            for (int r = 1; r < ranks; r++) CHECK_CLOSE(taken[r], x[i][q] / helpers[q], HALF_DIGIT);
        }
    }
}

static void communications_give_the_golden_divisions(void) {
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
        CHECK_CLOSE(gamma_of(chi * m, chi * c, m, c, 1), golden[i].gamma, HALF_DIGIT);
    }
    CHECK_CLOSE(gamma_of(16, 1, 4, 1, .7), .7, 1e-12);
    CHECK(gamma_of(4, 1, 4, 2, 1) == 0);
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

// Optimal where moving a millisecond between two layers loses no less: the loss of a saved millisecond, w g / m, is
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

int main(void) {
    RUN(water_filling_gives_the_golden_divisions);
    RUN(one_straggler_gives_the_golden_share);
    RUN(communications_give_the_golden_divisions);
    RUN(moves_are_possible_and_no_division_ends_sooner);
    RUN(moves_agree_with_the_closed_form);
    RUN(nothing_moves_where_that_gains_nothing);
    RUN(limits_bind);
    RUN(gamma_is_the_golden_fraction);
    RUN(ratios_are_the_golden_ones);
    RUN(ratios_save_what_they_should_at_least_loss);
    return test_done();
}
