// test_balance_loop.c - a group is measured, decided for, and measured again under the decision: it comes to rest
// within two refreshes, near the best step, wherever stragglers appear, move or vanish.
#include "test/balance_groups.h"

// A group of ranks with equal shares; rank r takes chi[r] times as long, in everything or in matmuls only.
typedef struct World {
    BalanceSetting setting;
    BalanceMemory memory;
    BalanceDecision decision;
    SliceCount own, count[MOST_TP];  // what each has, and computes
    double head_matmul, head_attention, hidden_ms, other_ms;
    int all_slow, rounded, tile;
    double chi[MOST_TP], noise;
} World;

static double head_work(const World* w) { return w->head_matmul + w->head_attention; }
static double world_slices(const World* w, SliceCount n) { return n.hidden + n.heads * head_work(w); }

// What rank r measures when it computes `slices`, n.heads and n.hidden of them, `pruned` of the matmuls left out. In
// whole units it is scaled to what the rank owns.
static RankTimes measure(const World* w, int r, double slices, double pruned, uint64_t seed) {
    double chi = w->chi[r], rest = w->all_slow ? chi : 1;
    SliceCount n = w->rounded ? w->count[r] : w->own;
    double part = w->rounded ? 1 : slices / world_slices(w, n);  // not rounded: heads and hidden units alike
    double matmul = part * (n.hidden + n.heads * w->head_matmul) * w->hidden_ms * (1 - pruned);
    double attention = part * n.heads * w->head_attention * w->hidden_ms;
    double own = world_slices(w, w->own);
    if (w->rounded) {
        matmul *= (w->own.hidden + w->own.heads * w->head_matmul) / (n.hidden + n.heads * w->head_matmul);
        attention = w->own.heads * w->head_attention * w->hidden_ms;
        slices = own;
    }
    double jitter = 1 + w->noise * (2 * random_uniform(seed, (uint64_t)r) - 1);
    return (RankTimes){matmul * chi * jitter, attention * rest * jitter, w->other_ms * rest * jitter, slices, pruned};
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

// In whole units attention, MLP and all else take as long as on the slowest rank each.
static double step_in_units(const World* w) {
    double attention = 0, mlp = 0, other = 0, moving = 0;
    const MoveCost* cost = &w->setting.cost;
    for (int r = 0; r < w->setting.ranks; r++) {
        double chi = w->chi[r], rest = w->all_slow ? chi : 1, left = chi * (1 - w->decision.pruned[r]) * w->hidden_ms;
        double heads = w->count[r].heads - w->own.heads, change = w->count[r].hidden - w->own.hidden;
        change += heads * w->head_matmul;
        attention =
            MAX(attention, w->count[r].heads * (w->head_matmul * left + w->head_attention * w->hidden_ms * rest));
        mlp = MAX(mlp, w->count[r].hidden * left);
        other = MAX(other, w->other_ms * rest);
        if (change != 0) moving = MAX(moving, cost->fixed + fabs(change) * cost->send);
    }
    return attention + mlp + other + moving;
}

static double world_step(const World* w) {
    double step = 0;
    if (w->rounded) return step_in_units(w);
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
    int ranks = w->setting.ranks;
    UnitGroup units = {ranks, w->tile, 0, head_work(w), w->head_matmul, {{0}}, {{0}}};
    double n = world_slices(w, w->own);
    for (int r = 0; r < ranks; r++) {
        double slices = n - w->decision.sent[r] + w->decision.taken[r];
        times[r] = measure(w, r, slices, w->decision.pruned[r], w->noise > 0 ? seed : 0);
        if (w->rounded && w->setting.mode == BALANCE_RESIZE) {  // only matmuls can be left out
            times[r].other += times[r].attention, times[r].attention = 0;
            times[r].slices = n = w->own.hidden + w->own.heads * w->head_matmul;
            units.head_work = w->head_matmul;
        }
        group[r] = (RankSpeed){.n = n, .room = n, .movable = n - w->tile};
        units.own[r] = w->own, units.most[r] = (SliceCount){2 * w->own.heads, 2 * w->own.hidden};
    }
    balance_learn(&w->memory, &w->setting, times);
    w->decision = balance_decide(&w->memory, &w->setting, group, w->rounded ? &units : NULL);
    for (int r = 0; r < ranks; r++) w->count[r] = w->decision.active ? w->decision.counts[r] : w->own;
    if (w->rounded && w->noise == 0 && w->decision.active)
        CHECK_CLOSE(w->decision.step_ms, world_step(w), 1e-9 * w->decision.step_ms);
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

// The least greatest count * ms of units that go one `size` at a time from anybody to anybody.
static double least_longest(const World* w, int units, int size, const double* ms) {
    double low = 0, high = infinite;
    for (int r = 0; r < w->setting.ranks; r++) high = MIN(high, (double)units * ms[r]);
    for (int i = 0; i < 100; i++) {
        double T = (low + high) / 2, fit = 0;
        for (int r = 0; r < w->setting.ranks; r++) fit += floor(T / (size * ms[r]) + 1e-9) * size;
        if (fit >= units) high = T;
        else low = T;
    }
    return high;
}

// The same in whole units: each kind divided best. Of resizing: matmuls as fast as on a healthy rank.
static double best_in_units(const World* w) {
    double head[MOST_TP], hidden[MOST_TP], slowest = 1;
    for (int r = 0; r < w->setting.ranks; r++) {
        double rest = w->all_slow ? w->chi[r] : 1;
        head[r] = (w->head_matmul * w->chi[r] + w->head_attention * rest) * w->hidden_ms;
        hidden[r] = w->chi[r] * w->hidden_ms;
        slowest = MAX(slowest, rest);
    }
    if (w->setting.mode == BALANCE_RESIZE)
        return (w->own.hidden + w->own.heads * (w->head_matmul + w->head_attention * slowest)) * w->hidden_ms +
               slowest * w->other_ms;
    return least_longest(w, w->own.heads * w->setting.ranks, 1, head) +
           least_longest(w, w->own.hidden * w->setting.ranks, w->tile, hidden) + slowest * w->other_ms;
}

static double healthy_ms(const World* w) { return world_slices(w, w->own) * w->hidden_ms + w->other_ms; }

// Refreshes after a change: from the second on the step is good, and the decision is at rest.
static void settle(World* w, uint64_t seed) {
    double good = w->rounded ? best_in_units(w) : w->setting.mode == BALANCE_RESIZE ? healthy_ms(w) : lossless_ms(w);
    int changes = 0, ranks = w->setting.ranks;
    double slowest = 0;
    for (int r = 0; r < ranks; r++) slowest = MAX(slowest, w->chi[r]);
    for (int i = 1; i <= 12; i++) {
        BalanceDecision before = w->decision;
        refresh(w, seed * 100 + (uint64_t)i);
        if (i < 2) continue;
        CHECK(world_step(w) <= 1.1 * good);
        CHECK(w->decision.active == (slowest > 1.3));
        // Helpers are not slower than the rank that they help.
        if (w->setting.mode != BALANCE_RESIZE && slowest > 1 && !w->rounded) CHECK(world_spread(w) <= 1.15);
        if (i > 2) changes += !is_same_work(&w->decision, &before);
        if (slowest <= 1) {
            const BalanceDecision* d = &w->decision;
            CHECK(total(d->pruned, ranks) + total(d->sent, ranks) + total(d->taken, ranks) == 0);
        }
    }
    CHECK(changes <= 2);
}

static World new_world(BalanceMode mode, int ranks, int all_slow, int rounded, double noise, uint64_t seed) {
    World w = {.setting = setting_of(mode, ranks), .own = {4, 2048}, .head_matmul = 256, .head_attention = 64};
    w.setting.most_pruned = .97, w.setting.squared = 1;
    w.setting.semi_lambda = seed % 3 == 0 ? INFINITY : (double)(seed % 3);
    w.setting.cost = (MoveCost){.3, .0005, .0005};
    w.hidden_ms = .01, w.other_ms = .5, w.all_slow = all_slow, w.rounded = rounded, w.noise = noise, w.tile = 8;
    for (int r = 0; r < ranks; r++) w.count[r] = w.own, w.chi[r] = 1;
    return w;
}

static void settle_and_tell(World* w, uint64_t seed) {
    int failed = test_failures_in_claim;
    settle(w, seed);
    if (failed != test_failures_in_claim)
        printf("    mode %d, %d ranks, all %d, rounded %d, noise %g, seed %d: step %g of %g, spread %g\n",
               w->setting.mode, w->setting.ranks, w->all_slow, w->rounded, w->noise, (int)seed, world_step(w),
               w->rounded ? best_in_units(w) : lossless_ms(w), world_spread(w));
}

// A straggler appears, moves to another rank, grows, recovers a little, is gone, comes back, and is gone.
static void one_straggler(World* w, uint64_t seed) {
    static const double acts[][2] = {{1, 1}, {4, 1}, {1, 4}, {1, 8}, {1, 2}, {1, 1}, {1, 1.5}, {1, 1}};
    for (int i = 0; i < COUNT(acts); i++) {
        w->chi[0] = acts[i][0], w->chi[1] = acts[i][1];
        settle_and_tell(w, seed * 50 + (uint64_t)i);
    }
}

// Half of the ranks slow, the other way round, none.
static void many_stragglers(World* w, uint64_t seed) {
    int ranks = w->setting.ranks;
    for (int act = 0; act < 3; act++) {
        for (int r = 0; r < ranks; r++) w->chi[r] = 1;
        for (int r = 0; r < ranks / 2 && act < 2; r++) w->chi[act ? ranks - 1 - r : r] = ranks - 2 * r;
        settle_and_tell(w, seed * 50 + (uint64_t)act);
    }
}

static void run_worlds(void (*life)(World*, uint64_t), int least_ranks) {
    for (uint64_t seed = 0; seed < 9; seed++)
        for (int mode = BALANCE_RESIZE; mode <= BALANCE_SEMI; mode++)
            for (int ranks = least_ranks; ranks <= 8; ranks *= 2)
                for (int kind = 0; kind < 4; kind++) {
                    World w = new_world((BalanceMode)mode, ranks, kind & 1, kind >> 1, seed < 3 ? 0 : .01, seed);
                    life(&w, seed);
                }
}

static void the_loop_follows_a_straggler_within_two_refreshes(void) { run_worlds(one_straggler, 2); }
static void the_loop_follows_several_stragglers_within_two_refreshes(void) { run_worlds(many_stragglers, 4); }

int main(void) {
    RUN(the_loop_follows_a_straggler_within_two_refreshes);
    RUN(the_loop_follows_several_stragglers_within_two_refreshes);
    return test_done();
}
