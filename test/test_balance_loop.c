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

// What rank r measures when it computes `slices`, n.heads and n.hidden of them, `pruned` of the matmuls left out.
static RankTimes measure(const World* w, int r, double slices, double pruned, uint64_t seed) {
    double chi = w->chi[r], rest = w->all_slow ? chi : 1;
    SliceCount n = w->rounded ? w->count[r] : w->own;
    double part = w->rounded ? 1 : slices / world_slices(w, n);  // not rounded: heads and hidden units alike
    double matmul = part * (n.hidden + n.heads * w->head_matmul) * w->hidden_ms * (1 - pruned);
    double jitter = 1 + w->noise * (2 * random_uniform(seed, (uint64_t)r) - 1);
    return (RankTimes){matmul * chi * jitter, part * n.heads * w->head_attention * w->hidden_ms * rest * jitter,
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

static double healthy_ms(const World* w) { return world_slices(w, w->own) * w->hidden_ms + w->other_ms; }

// Refreshes after a change: from the second on the step is good, and the decision is at rest.
static void settle(World* w, uint64_t seed) {
    double good = w->setting.mode == BALANCE_RESIZE ? healthy_ms(w) : lossless_ms(w);
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
        if (w->setting.mode != BALANCE_RESIZE && slowest > 1) CHECK(world_spread(w) <= 1.15);
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
               lossless_ms(w), world_spread(w));
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
