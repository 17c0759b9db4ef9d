// balance.c - what is remembered of the ranks of a group, and what to do about slow ones; see balance.h.
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
#include "plan/balance.h"

#include <math.h>

static const double CLEARLY = 0.02;  // a fraction of the step or of J, or of a rank's matmuls
enum { SEMI_TARGETS = 64 };

// What a rank takes for a step while nothing is taken off it.
static double rank_ms(const RankSpeed* r) { return r->c + r->n / r->v; }

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

// ---- migration: the lossless optimum
//
// A rank that sends x slices ends at c + a + n/v - x (1/v - b), one that takes x at c + a + n/v + x (1/v + b'), a, b
// and b' being MoveCost's fixed, send and take. The step can end at T if what the ranks above T must send is not more
// than what those below can take by then. The first falls with T, the second rises, so the least T is found by halving.
// Where neither a limit nor a fixed cost binds, it is sum(k E) / sum(k) over all who send or take, E = c + a + n/v and
// k = 1 / (1/v -+ b). T never falls below a rank that would not win back the fixed cost.

typedef struct Group {
    const RankSpeed* ranks;
    int n_ranks;
    const MoveCost* cost;
} Group;

// Slices that a rank can take and still end by `target`.
static double can_take(const RankSpeed* r, const MoveCost* cost, double target) {
    double spare = target - rank_ms(r) - cost->fixed;
    return spare > 0 ? MIN(r->room, spare / (1 / r->v + cost->take)) : 0;
}

// Milliseconds that a rank gains with each slice it sends; none where sending takes as long as computing.
static double gain_a_slice(const RankSpeed* r, const MoveCost* cost) { return 1 / r->v - cost->send; }

// Slices that rank r must send to end by `target`.
static double must_send(const Group* x, int r, double target) {
    double over = rank_ms(&x->ranks[r]) - target;
    return over > 0 ? (over + x->cost->fixed) / gain_a_slice(&x->ranks[r], x->cost) : 0;
}

// The soonest that a rank can end by sending all it may, or by sending nothing.
static double soonest_end(const Group* x, int r) {
    double ms = rank_ms(&x->ranks[r]);
    return MIN(ms + x->cost->fixed - x->ranks[r].movable * gain_a_slice(&x->ranks[r], x->cost), ms);
}

// Whether helpers can take by `target` what must be sent then; or `slices`, if not negative.
static int is_enough(const Group* x, double slices, double target) {
    double supply = 0, demand = MAX(slices, 0);
    for (int r = 0; r < x->n_ranks; r++) {
        supply += can_take(&x->ranks[r], x->cost, target);
        if (slices < 0) demand += must_send(x, r, target);
    }
    return demand <= supply;
}

// The least target in [low, high] at which that is so; high, if none is.
static double least_target(const Group* x, double slices, double low, double high) {
    if (low >= high || is_enough(x, slices, low)) return MIN(low, high);
    double middle;  // until no number lies between the two
    while ((middle = low + (high - low) / 2) > low && middle < high) {
        if (is_enough(x, slices, middle)) high = middle;
        else low = middle;
    }
    return high;
}

// Divides `slices` so that the last helper ends soonest, at `target` at the latest, which must be within what helpers
// can take by then. taken (n_ranks) =.
static void divide_among_helpers(double* taken, const Group* x, double slices, double target) {
    double first = target;
    for (int r = 0; r < x->n_ranks; r++) first = MIN(first, rank_ms(&x->ranks[r]));
    double end = slices > 0 ? least_target(x, slices, first, target) : first;
    for (int r = 0; r < x->n_ranks; r++) taken[r] = can_take(&x->ranks[r], x->cost, end);
}

double balance_move(double* sent, double* taken, const RankSpeed* ranks, int n_ranks, const MoveCost* cost) {
    Group x = {ranks, n_ranks, cost};
    double slowest = 0, pinned = 0, all = 0;
    for (int r = 0; r < n_ranks; r++) {
        slowest = MAX(slowest, rank_ms(&ranks[r]));
        pinned = MAX(pinned, soonest_end(&x, r));
    }
    double T = least_target(&x, -1, pinned, slowest);
    for (int r = 0; r < n_ranks; r++) {
        sent[r] = MIN(must_send(&x, r, T), ranks[r].movable);
        all += sent[r];
    }
    divide_among_helpers(taken, &x, all, T);
    return T;
}

// ---- resizing: how much of its matmuls a straggler leaves out, and in which layers
//
// gamma is Wang et al.'s pruning ratio (2024); how it is found here is ours: from un-pruned times, so that a rank that
// meets the target because it is resized stays resized.
//
// Ratios, ours: the least sum_l w_l g_l^2 with sum_l m_l g_l = delta has g_l = delta (m_l / w_l) /
// sum_i m_i^2 / w_i. A layer above `most` is fixed there; the others then have to save more, so it stays fixed.

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
        double m = resizable_ms(&ranks[r]), over = m + (rank_ms(&ranks[r]) - m) - target;
        d->pruned[r] = over > 0 && m > 0 ? MIN(over / m, setting->most_pruned) : 0;
    }
}

// The weight that a layer counts with: one without any would save everything alone, and divide by zero.
static double loss_weight(double w, double heaviest) { return heaviest > 0 ? MAX(w, 1e-9 * heaviest) : 1; }

double balance_ratios(double* g, const double* m, const double* w, int n, double delta, double most) {
    double heaviest = 0, saved = 0;
    for (int l = 0; l < n; l++) g[l] = 0, heaviest = MAX(heaviest, w[l]);
    if (!(delta > 0 && most > 0)) return 0;
    double left = delta, scale;
    int fixed;
    do {
        double sum = 0;
        for (int l = 0; l < n; l++)
            if (g[l] < most) sum += m[l] * m[l] / loss_weight(w[l], heaviest);
        scale = sum > 0 ? left / sum : 0;
        fixed = 0;
        for (int l = 0; l < n; l++)
            if (g[l] < most && scale * m[l] / loss_weight(w[l], heaviest) > most)
                g[l] = most, left -= most * m[l], fixed = 1;
    } while (fixed);
    for (int l = 0; l < n; l++) {
        if (g[l] < most) g[l] = scale * m[l] / loss_weight(w[l], heaviest);
        saved += g[l] * m[l];
    }
    return saved;
}

// ---- SEMI: resizing and migration together, how much of each
//
// For a target time T helpers can take X(T) slices. The heaviest straggler gets of it what it needs, then the next: the
// fixed cost is best spent where most slices leave, and where h is convex the largest fraction left out costs most.
// What a straggler cannot send it leaves out, z slices of its n, g = z / n; it sends only if that leaves out less than
// sending nothing. Of the targets the one with the least J(T) is taken, from 64 at equal distances between the step of
// pure resizing and the lossless one.

// Ranks from the slowest on, of equal ones the lowest first.
static void order_by_time(int* order, const RankSpeed* ranks, int n) {
    for (int r = 0; r < n; r++) {
        int i = r;
        for (; i > 0 && rank_ms(&ranks[order[i - 1]]) < rank_ms(&ranks[r]); i--) order[i] = order[i - 1];
        order[i] = r;
    }
}

// What a straggler sends, at most `most_sent`, and the fraction of what stays that it leaves out, to end by target.
static void divide_straggler(double* sent, double* pruned, const BalanceSetting* setting, const RankSpeed* r,
                             double most_sent, double target) {
    double over = rank_ms(r) - target, gain = gain_a_slice(r, &setting->cost);
    double left_out = over * r->v / r->prunable;
    *sent = 0, *pruned = MIN(left_out / r->n, setting->most_pruned);
    if (gain <= 0 || most_sent <= 0) return;
    double needed = (over + setting->cost.fixed) / gain, u = MIN(needed, most_sent);
    double rest = u < needed ? (needed - u) * gain * r->v / r->prunable : 0;
    if (rest >= left_out || rest > setting->most_pruned * (r->n - u)) return;
    *sent = u, *pruned = rest > 0 ? rest / (r->n - u) : 0;
}

// J of balance_decide, for d->step_ms and what is left out.
static double objective(const BalanceDecision* d, const BalanceSetting* setting, const RankSpeed* ranks) {
    double loss = 0, slices = 0;
    for (int r = 0; r < setting->ranks; r++) {
        double g = d->pruned[r] * (ranks[r].n - d->sent[r]) / ranks[r].n;
        loss += (setting->squared ? g * g : g) * ranks[r].n;
        slices += ranks[r].n;
    }
    return d->step_ms * (loss > 0 ? 1 + setting->semi_lambda * loss / slices : 1);  // infinity times 0 is NaN
}

// The decision for one target, all but what helpers take.
static void decide_for(BalanceDecision* d, const BalanceSetting* setting, const RankSpeed* ranks, const int* order,
                       double target) {
    double supply = 0, all_sent = 0;
    for (int r = 0; r < setting->ranks; r++) {
        supply += can_take(&ranks[r], &setting->cost, target);
        d->sent[r] = d->pruned[r] = 0;
    }
    for (int i = 0; i < setting->ranks && rank_ms(&ranks[order[i]]) > target; i++) {
        int r = order[i];
        double most = MIN(supply - all_sent, ranks[r].movable);
        divide_straggler(&d->sent[r], &d->pruned[r], setting, &ranks[r], most, target);
        all_sent += d->sent[r];
    }
    d->step_ms = target;
    // Who may take, for balance_divide.
    for (int r = 0; r < setting->ranks; r++) d->taken[r] = can_take(&ranks[r], &setting->cost, target);
}

// In whole units, where they are known.
static void realize(BalanceDecision* d, const BalanceSetting* setting, const RankSpeed* ranks, const UnitGroup* units) {
    if (units) balance_divide(d, ranks, units, &setting->cost);
    d->objective = objective(d, setting, ranks);
}

// step_ms, objective, pruned, sent and taken. resize_ms: the step when stragglers only leave out.
static void resize_and_migrate(BalanceDecision* decision, const BalanceSetting* setting, const RankSpeed* ranks,
                               const UnitGroup* units, double resize_ms) {
    BalanceDecision lossless = *decision, next = *decision;
    int order[MOST_TP], found = 0;
    order_by_time(order, ranks, setting->ranks);
    lossless.step_ms = balance_move(lossless.sent, lossless.taken, ranks, setting->ranks, &setting->cost);
    double width = lossless.step_ms - resize_ms;
    realize(&lossless, setting, ranks, units);
    for (int i = 0; i < SEMI_TARGETS - 1 && width > 0; i++) {
        decide_for(&next, setting, ranks, order, resize_ms + width * i / (SEMI_TARGETS - 1));
        realize(&next, setting, ranks, units);
        if (!found || next.objective < decision->objective) *decision = next, found = 1;
    }
    // The last target as balance_move has it: there nothing is left out, not even what rounding would make of it.
    if (!found || lossless.objective < decision->objective) *decision = lossless;
    if (units) return;
    double sent = 0;
    for (int r = 0; r < setting->ranks; r++) sent += decision->sent[r];
    divide_among_helpers(decision->taken, &(Group){ranks, setting->ranks, &setting->cost}, sent, decision->step_ms);
}

// ---- the decision

static double lower_median(const RankSpeed* ranks, int n) {
    int order[MOST_TP];
    order_by_time(order, ranks, n);
    return rank_ms(&ranks[order[n / 2]]);
}

// When a rank ends for which `d` was decided.
static double end_ms(const BalanceDecision* d, const BalanceSetting* setting, const RankSpeed* ranks, int r) {
    const RankSpeed* x = &ranks[r];
    double sent = d->sent[r], taken = d->taken[r];
    double moving =
        sent > 0 || taken > 0 ? setting->cost.fixed + sent * setting->cost.send + taken * setting->cost.take : 0;
    return x->c + (x->n - sent + taken) / x->v * (1 - x->prunable * d->pruned[r]) + moving;
}

// What is expected of a decision now.
static double expected_ms(const BalanceDecision* d, const BalanceSetting* setting, const RankSpeed* ranks,
                          const UnitGroup* units) {
    double ms = 0;
    if (units) return balance_step_ms(d->counts, d->pruned, ranks, units, &setting->cost);
    for (int r = 0; r < setting->ranks; r++) ms = MAX(ms, end_ms(d, setting, ranks, r));
    return ms;
}

// Whether the last decision is still possible and nearly as good as `now`. Its times become those expected of it now.
static int still_good(BalanceDecision* last, const BalanceDecision* now, const BalanceSetting* setting,
                      const RankSpeed* ranks, const UnitGroup* units) {
    int lossier = 0;
    last->step_ms = expected_ms(last, setting, ranks, units);
    for (int r = 0; r < setting->ranks; r++) {
        if (!units && (last->sent[r] > ranks[r].movable || last->taken[r] > ranks[r].room)) return 0;
        lossier = lossier || last->pruned[r] > now->pruned[r] + CLEARLY;
    }
    last->idle_ms = now->idle_ms;
    int semi = setting->mode == BALANCE_SEMI, faster = last->step_ms * (1 + CLEARLY) < now->step_ms;
    if (semi) last->objective = objective(last, setting, ranks);
    if ((lossier && !(semi && faster)) || last->step_ms >= now->idle_ms) return 0;
    return semi ? last->objective <= (1 + CLEARLY) * now->objective : last->step_ms <= (1 + CLEARLY) * now->step_ms;
}

// Work that cannot move ends in exchanges of its own, so that it takes as long as its slowest rank on all of them.
static void wait_for_the_slowest(RankSpeed* ranks, int n) {
    double c = 0;
    for (int r = 0; r < n; r++) c = MAX(c, ranks[r].c);
    for (int r = 0; r < n; r++) ranks[r].c = c;
}

BalanceDecision balance_decide(BalanceMemory* memory, const BalanceSetting* setting, RankSpeed* ranks,
                               const UnitGroup* units) {
    BalanceDecision d = {0}, last = memory->last;
    memory->last = d;
    int known = 1;
    for (int r = 0; r < setting->ranks; r++) {
        ranks[r].v = d.v[r] = memory->v[r];
        ranks[r].c = memory->c[r];
        ranks[r].prunable = memory->prunable[r];
        known = known && memory->v[r] > 0;
        if (units) d.counts[r] = units->own[r];
    }
    if (!known) return d;
    if (units) wait_for_the_slowest(ranks, setting->ranks);
    for (int r = 0; r < setting->ranks; r++) d.idle_ms = MAX(d.idle_ms, rank_ms(&ranks[r]));
    double median = lower_median(ranks, setting->ranks), edge = memory->active ? setting->stop : setting->start;
    memory->active = setting->mode != BALANCE_OFF && d.idle_ms > edge * median;
    if (units) d.idle_ms = expected_ms(&d, setting, ranks, units);
    d.step_ms = d.idle_ms;
    if (!memory->active) return d;

    BalanceDecision idle = d;
    double target = resize_ms(setting, ranks, &last, median);
    if (setting->mode == BALANCE_RESIZE) resize(&d, setting, ranks, target);
    else if (setting->mode == BALANCE_SEMI) resize_and_migrate(&d, setting, ranks, units, target);
    else d.step_ms = balance_move(d.sent, d.taken, ranks, setting->ranks, &setting->cost);
    if (units && setting->mode != BALANCE_SEMI) balance_divide(&d, ranks, units, &setting->cost);
    if (!(d.step_ms < d.idle_ms)) return idle;
    d.active = 1;
    if (last.active && still_good(&last, &d, setting, ranks, units)) d = last;
    memory->last = d;
    return d;
}

uint64_t balance_hash(const BalanceDecision* decision, int ranks) {
    const double scalars[] = {decision->active, decision->step_ms, decision->idle_ms, decision->objective};
    const double* arrays[] = {decision->v, decision->pruned, decision->sent, decision->taken};
    uint64_t hash = hash_bytes(scalars, sizeof scalars, (uint64_t)ranks);
    for (int i = 0; i < COUNT(arrays); i++) hash = hash_bytes(arrays[i], (size_t)ranks * sizeof *arrays[i], hash);
    return hash_bytes(decision->tiles, (size_t)ranks * sizeof *decision->tiles, hash);
}
