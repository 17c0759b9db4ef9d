// balance_groups.h - groups of ranks for the tests of plan/balance.h, by hand and at random, and what becomes of them
// under a decision, counted by the formulas of the header and by none of its code.
#pragma once
#include "plan/balance.h"
#include "test/test.h"

static const double infinite = 1e300;

static inline double uniform(uint64_t seed, uint64_t i, double low, double high) {
    return low + (high - low) * random_uniform(seed, i);
}

static inline int whole(uint64_t seed, uint64_t i, int low, int high) {
    return low + (int)(random_uniform(seed, i) * (high - low + 1));
}

// Ranks of speed v that own n slices, all of which may move and shrink.
static inline void make_ranks(RankSpeed* ranks, const double* v, const double* c, double n, int count) {
    for (int r = 0; r < count; r++)
        ranks[r] = (RankSpeed){.v = v[r], .n = n, .c = c ? c[r] : 0, .prunable = 1, .room = infinite, .movable = n};
}

static inline double idle_ms(const RankSpeed* r) { return r->c + r->n / r->v; }

static inline double total(const double* values, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += values[i];
    return sum;
}

static inline void random_group(uint64_t seed, RankSpeed* group, int ranks, MoveCost* cost, int limits) {
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

// When a rank ends that does what was decided for it.
static inline double end_ms(const RankSpeed* x, const MoveCost* cost, double sent, double taken, double pruned) {
    double ms = x->c + (x->n - sent + taken) / x->v * (1 - x->prunable * pruned);
    return ms + (sent > 0 || taken > 0 ? cost->fixed : 0) + sent * cost->send + taken * cost->take;
}

static inline int keeps_to_limits(const RankSpeed* group, int ranks, const double* sent, const double* taken) {
    for (int r = 0; r < ranks; r++) {
        if (!(sent[r] >= 0 && sent[r] <= group[r].movable && taken[r] >= 0 && taken[r] <= group[r].room)) return 0;
        if (sent[r] > 0 && taken[r] > 0) return 0;
    }
    // Sums of 64 numbers below 200.
    return fabs(total(sent, ranks) - total(taken, ranks)) <= 1e-9;
}

static inline BalanceSetting setting_of(BalanceMode mode, int ranks) {
    return (BalanceSetting){.mode = mode, .ranks = ranks, .start = 1.2, .stop = 1.1, .most_pruned = 1};
}

// As if these speeds had been measured.
static inline BalanceMemory remember(const RankSpeed* group, int ranks) {
    BalanceMemory memory = {.steps = 1};
    for (int r = 0; r < ranks; r++)
        memory.v[r] = group[r].v, memory.c[r] = group[r].c, memory.prunable[r] = group[r].prunable;
    return memory;
}

static inline BalanceDecision decide(const BalanceSetting* setting, RankSpeed* group) {
    BalanceMemory memory = remember(group, setting->ranks);
    return balance_decide(&memory, setting, group, NULL);
}

static inline int is_same_work(const BalanceDecision* a, const BalanceDecision* b) {
    return !memcmp(a->sent, b->sent, sizeof a->sent) && !memcmp(a->taken, b->taken, sizeof a->taken) &&
           !memcmp(a->pruned, b->pruned, sizeof a->pruned);
}
