// balance.c - what is remembered of the ranks, and what to do about slow ones.
//
// Measured times are those of the work that a rank did under the last decision. First that is undone: matmuls that ran
// with a fraction g left out would take linear / (1 - g), and slices are counted as they ran. Without this the
// controller swings: a straggler that was resized looks healthy, is not resized, looks slow. All that follows is a
// function of the un-pruned speeds alone, so that a decision that changed nothing but the work repeats itself.
//
// Two thresholds keep noise out (Wang et al. 2024 act on slowness that lasts; the numbers are ours): nothing is done
// until the slowest rank takes `start` times the median, and it is undone below `stop`. Of an even number of ranks the
// lower median counts, so that one slow rank of two is seen. And a decision stays as it is until another is clearly
// better: speeds are noisy, J is often flat or has two valleys, and rounding changes what is measured.
#include "plan/balance_parts.h"

static const double CLEARLY = 0.02;  // a fraction of the step or of J, or of a rank's matmuls

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
// rank needs to go below that. A rank that leaves nothing out now is a straggler from `start` on only, or noise would
// make healthy ones lossy.
static double resize_ms(const BalanceSetting* setting, const RankSpeed* ranks, const BalanceDecision* last,
                        double median) {
    double target = 0;
    for (int r = 0; r < setting->ranks; r++) {
        double ms = rank_ms(&ranks[r]);
        double edge = last->active && last->pruned[r] > 0 ? setting->stop : setting->start;
        if (ms > edge * median) ms -= setting->most_pruned * resizable_ms(&ranks[r]);
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

// When a rank ends for which `d` was decided.
static double end_ms(const BalanceDecision* d, const BalanceSetting* setting, const RankSpeed* ranks, int r) {
    const RankSpeed* x = &ranks[r];
    double sent = d->sent[r], taken = d->taken[r];
    double moving =
        sent > 0 || taken > 0 ? setting->cost.fixed + sent * setting->cost.send + taken * setting->cost.take : 0;
    return x->c + (x->n - sent + taken) / x->v * (1 - x->prunable * d->pruned[r]) + moving;
}

// Whether the last decision is still possible and nearly as good as `now`. Its times become those expected of it now; v
// stays, so that it is rounded as before.
static int still_good(BalanceDecision* last, const BalanceDecision* now, const BalanceSetting* setting,
                      const RankSpeed* ranks) {
    int lossier = 0;
    last->step_ms = 0;
    for (int r = 0; r < setting->ranks; r++) {
        if (last->sent[r] > ranks[r].movable || last->taken[r] > ranks[r].room) return 0;
        last->step_ms = MAX(last->step_ms, end_ms(last, setting, ranks, r));
        lossier = lossier || last->pruned[r] > now->pruned[r] + CLEARLY;
    }
    last->idle_ms = now->idle_ms;
    int semi = setting->mode == BALANCE_SEMI, faster = last->step_ms * (1 + CLEARLY) < now->step_ms;
    if (semi) last->objective = balance_objective(last, setting, ranks);
    if ((lossier && !(semi && faster)) || last->step_ms >= now->idle_ms) return 0;
    return semi ? last->objective <= (1 + CLEARLY) * now->objective : last->step_ms <= (1 + CLEARLY) * now->step_ms;
}

BalanceDecision balance_decide(BalanceMemory* memory, const BalanceSetting* setting, RankSpeed* ranks) {
    BalanceDecision d = {0}, last = memory->last;
    memory->last = d;
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
    double median = lower_median(ranks, setting->ranks), edge = memory->active ? setting->stop : setting->start;
    memory->active = setting->mode != BALANCE_OFF && d.idle_ms > edge * median;
    if (!memory->active) return d;

    BalanceDecision idle = d;
    double target = resize_ms(setting, ranks, &last, median);
    if (setting->mode == BALANCE_RESIZE) resize(&d, setting, ranks, target);
    else if (setting->mode == BALANCE_SEMI) balance_semi(&d, setting, ranks, target);
    else d.step_ms = balance_move(d.sent, d.taken, ranks, setting->ranks, &setting->cost);
    if (!(d.step_ms < d.idle_ms)) return idle;
    d.active = 1;
    if (last.active && still_good(&last, &d, setting, ranks)) d = last;
    memory->last = d;
    return d;
}

uint64_t balance_hash(const BalanceDecision* decision, int ranks) {
    const double scalars[] = {decision->active, decision->step_ms, decision->idle_ms, decision->objective};
    const double* arrays[] = {decision->v, decision->pruned, decision->sent, decision->taken};
    uint64_t hash = hash_bytes(scalars, sizeof scalars, (uint64_t)ranks);
    for (int i = 0; i < COUNT(arrays); i++) hash = hash_bytes(arrays[i], (size_t)ranks * sizeof *arrays[i], hash);
    return hash;
}
