// balance_parts.h - what the files of plan/balance.h share among themselves.
#pragma once
#include "plan/balance.h"

// What a rank takes for a step while nothing is taken off it.
static inline double rank_ms(const RankSpeed* r) { return r->c + r->n / r->v; }

// Slices that a rank can take and still end by `target`.
static inline double rank_takes(const RankSpeed* r, const MoveCost* cost, double target) {
    double spare = target - rank_ms(r) - cost->fixed;
    return spare > 0 ? MIN(r->room, spare / (1 / r->v + cost->take)) : 0;
}

// Milliseconds that a rank gains with each slice it sends; none where sending takes as long as computing.
static inline double rank_gain(const RankSpeed* r, const MoveCost* cost) { return 1 / r->v - cost->send; }

// Divides `slices` among the ranks so that the last helper ends soonest, at `target` at the latest, which must be
// within what they can take by then. taken (n_ranks) =.
void balance_take(double* taken, const RankSpeed* ranks, int n_ranks, const MoveCost* cost, double slices,
                  double target);

// J of balance.h for decision->step_ms and what is left out.
double balance_objective(const BalanceDecision* decision, const BalanceSetting* setting, const RankSpeed* ranks);

// Both at once: step_ms, objective, pruned, sent and taken of the SEMI decision. resize_ms: the step when stragglers
// only leave out.
void balance_semi(BalanceDecision* decision, const BalanceSetting* setting, const RankSpeed* ranks, double resize_ms);
