// balance_semi.c - resizing and migration together: how much of each.
//
// For a target time T helpers can take X(T) slices. The heaviest straggler gets of it what it needs, then the next: the
// fixed cost is best spent where most slices leave, and where h is convex the largest fraction left out costs most.
// What a straggler cannot send it leaves out, z slices of its n, g = z / n; it sends only if that leaves out less than
// sending nothing. Of the targets the one with the least J(T) = T (1 + lambda sum_s h(g_s) n_s / S) is taken, from 64
// at equal distances between the step of pure resizing and the lossless one.
#include "plan/balance_parts.h"

enum { SEMI_TARGETS = 64 };

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
    double over = rank_ms(r) - target, gain = rank_gain(r, &setting->cost);
    double left_out = over * r->v / r->prunable;
    *sent = 0, *pruned = MIN(left_out / r->n, setting->most_pruned);
    if (gain <= 0 || most_sent <= 0) return;
    double needed = (over + setting->cost.fixed) / gain, u = MIN(needed, most_sent);
    double rest = u < needed ? (needed - u) * gain * r->v / r->prunable : 0;
    if (rest >= left_out || rest > setting->most_pruned * (r->n - u)) return;
    *sent = u, *pruned = rest > 0 ? rest / (r->n - u) : 0;
}

double balance_objective(const BalanceDecision* d, const BalanceSetting* setting, const RankSpeed* ranks) {
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
        supply += rank_takes(&ranks[r], &setting->cost, target);
        d->sent[r] = d->pruned[r] = 0;
    }
    for (int i = 0; i < setting->ranks && rank_ms(&ranks[order[i]]) > target; i++) {
        int r = order[i];
        double most = MIN(supply - all_sent, ranks[r].movable);
        divide_straggler(&d->sent[r], &d->pruned[r], setting, &ranks[r], most, target);
        all_sent += d->sent[r];
    }
    d->step_ms = target;
    d->objective = balance_objective(d, setting, ranks);
}

void balance_semi(BalanceDecision* decision, const BalanceSetting* setting, const RankSpeed* ranks, double resize_ms) {
    BalanceDecision lossless = *decision, next = *decision;
    int order[MOST_TP], found = 0;
    order_by_time(order, ranks, setting->ranks);
    lossless.step_ms = balance_move(lossless.sent, lossless.taken, ranks, setting->ranks, &setting->cost);
    lossless.objective = lossless.step_ms;
    double width = lossless.step_ms - resize_ms;
    for (int i = 0; i < SEMI_TARGETS - 1 && width > 0; i++) {
        decide_for(&next, setting, ranks, order, resize_ms + width * i / (SEMI_TARGETS - 1));
        if (!found || next.objective < decision->objective) *decision = next, found = 1;
    }
    // The last target as balance_move has it: there nothing is left out, not even what rounding would make of it.
    if (!found || lossless.objective < decision->objective) *decision = lossless;
    double sent = 0;
    for (int r = 0; r < setting->ranks; r++) sent += decision->sent[r];
    balance_take(decision->taken, ranks, setting->ranks, &setting->cost, sent, decision->step_ms);
}
