// balance.c - what is remembered of the ranks, and what to do about slow ones.
//
// Measured times are those of the work that a rank did under the last decision. First that is undone: matmuls that ran
// with a fraction g left out would take linear / (1 - g), and slices are counted as they ran. Without this the
// controller swings: a straggler that was resized looks healthy, is not resized, looks slow. All that follows is a
// function of the un-pruned speeds alone, so that a decision that changed nothing but the work repeats itself.
//
// Two thresholds keep noise out (Wang et al. 2024 act on slowness that lasts; the numbers are ours): nothing is done
// until the slowest rank takes `start` times the median, and it is undone below `stop`. Of an even number of ranks the
// lower median counts, so that one slow rank of two is seen.
#include "plan/balance_parts.h"

// ---- memory

static int is_jump(double old, double now) { return !(now <= 1.3 * old && old <= 1.3 * now); }

static void smooth(double* value, double now, int anew) {
    *value = anew || is_jump(*value, now) ? now : *value + (now - *value) / 2;
}

void balance_learn(BalanceMemory* memory, const BalanceSetting* setting, const RankTimes* times) {
    for (int r = 0; r < setting->ranks; r++) {
        const RankTimes* t = &times[r];
        double linear = t->pruned < 1 ? t->linear / (1 - t->pruned) : 0, busy = linear + t->attention;
        int says_something = linear > 0 && busy < 1e300 && t->slices > 0 && t->other >= 0 && t->other < 1e300;
        if (!says_something) continue;  // nor does NaN
        double v = t->slices / busy;
        int anew = memory->v[r] <= 0 || is_jump(memory->v[r], v);
        smooth(&memory->v[r], v, anew);
        smooth(&memory->c[r], t->other, anew);
        smooth(&memory->prunable[r], linear / busy, anew);
    }
    memory->steps++;
}

// ---- decision

static double lower_median(const RankSpeed* ranks, int n) {
    double sorted[MOST_TP];
    for (int r = 0; r < n; r++) {
        double ms = rank_ms(&ranks[r]);
        int i = r;
        for (; i > 0 && sorted[i - 1] > ms; i--) sorted[i] = sorted[i - 1];
        sorted[i] = ms;
    }
    return sorted[(n - 1) / 2];
}

// Milliseconds of a rank that can be left out, were it all.
static double resizable_ms(const RankSpeed* r) { return r->prunable * r->n / r->v; }

// The step when stragglers only leave out: the slowest of the others, or a straggler that has left out all it may. No
// rank needs to go below that.
static double resize_ms(const BalanceSetting* setting, const RankSpeed* ranks, double median) {
    double target = 0;
    for (int r = 0; r < setting->ranks; r++) {
        double ms = rank_ms(&ranks[r]);
        if (ms > setting->stop * median) ms -= setting->most_pruned * resizable_ms(&ranks[r]);
        target = MAX(target, ms);
    }
    return target;
}

static void resize(BalanceDecision* d, const BalanceSetting* setting, const RankSpeed* ranks, double target) {
    d->step_ms = target;
    for (int r = 0; r < setting->ranks; r++) {
        double m = resizable_ms(&ranks[r]);
        d->pruned[r] = balance_gamma(m, rank_ms(&ranks[r]) - m, target, setting->most_pruned);
    }
}

BalanceDecision balance_decide(BalanceMemory* memory, const BalanceSetting* setting, RankSpeed* ranks) {
    BalanceDecision d = {0};
    int known = 1;
    for (int r = 0; r < setting->ranks; r++) {
        ranks[r].v = d.v[r] = memory->v[r];
        ranks[r].c = memory->c[r];
        ranks[r].prunable = memory->prunable[r];
        known = known && memory->v[r] > 0;
    }
    if (!known) return d;
    for (int r = 0; r < setting->ranks; r++) d.idle_ms = MAX(d.idle_ms, rank_ms(&ranks[r]));
    d.step_ms = d.idle_ms;
    double median = lower_median(ranks, setting->ranks);
    memory->active =
        setting->mode != BALANCE_OFF && d.idle_ms > (memory->active ? setting->stop : setting->start) * median;
    if (!memory->active) memory->target = 0;
    if (!memory->active) return d;

    BalanceDecision idle = d;
    double target = resize_ms(setting, ranks, median);
    if (setting->mode == BALANCE_RESIZE) resize(&d, setting, ranks, target);
    else if (setting->mode == BALANCE_SEMI) balance_semi(&d, &memory->target, setting, ranks, target);
    else d.step_ms = balance_move(d.sent, d.taken, ranks, setting->ranks, &setting->cost);
    if (!(d.step_ms < d.idle_ms)) return idle;
    d.active = 1;
    return d;
}

uint64_t balance_hash(const BalanceDecision* decision, int ranks) {
    const double scalars[] = {decision->active, decision->step_ms, decision->idle_ms, decision->objective};
    const double* arrays[] = {decision->v, decision->pruned, decision->sent, decision->taken};
    uint64_t hash = hash_bytes(scalars, sizeof scalars, (uint64_t)ranks);
    for (int i = 0; i < COUNT(arrays); i++) hash = hash_bytes(arrays[i], (size_t)ranks * sizeof *arrays[i], hash);
    return hash;
}
