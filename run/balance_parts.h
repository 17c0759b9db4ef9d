// balance_parts.h - between the files of run/balance.h:
//
//   balance.c         options and memory; what happens in a step; lists and decisions in checkpoints
//   balance_change.c  what it takes to move slices and what leaving columns out saves, measured once; decisions, and
//                     carrying them out
#pragma once
#include "plan/speeds.h"
#include "run/prune.h"
#include "run/run.h"

enum { SAMPLES = 32, KINDS = 3 };  // linear, attention, all else

struct Balance {
    BalanceSetting setting;
    Pruner* pruner;  // NULL: nothing is ever left out
    int is_timed;    // this step
    // Since the last refresh: ms by number in the group, kind and timed step.
    double samples[MOST_TP][KINDS][SAMPLES];
    int n_samples;
    double fixed;             // fraction of the linears' time that stays however much is left out
    double gathering;         // ms of a step that leaving columns out adds
    double head_work;         // of a head in hidden units; 0: not known yet
    double head_ms[MOST_TP];  // attention of a head on each rank, when it last had one
    BalanceMemory memory;
    BalanceDecision decision;
    WorkPlan plan;  // that carries it out; plan.kept only while it is set
    int keeps;      // slices move for good: --moves keep
    Speeds speeds;
    Arena arena;         // of speeds, steps, compute_ms and segments
    double* compute_ms;  // (data ranks) scratch
    float* segments;     // (group, MOST_SEGMENTS) scratch
    RankStep* steps;     // (world) of the last step
};

// ---- balance_change.c

// Heads and hidden units of all ranks of the group, and those of all of them that this one does not give away.
void balance_owned(SliceCount* own, const Model* m);
SliceCount balance_staying(const Balance* b, SliceCount own, int rank);
double balance_slices(const Balance* b, SliceCount count);               // in hidden units
double balance_running(const Balance* b, const SliceCount* own, int t);  // slices that rank t of the group runs now
// The most that a rank may come to compute, which bounds its memory: twice its share of an even division and what
// rounding adds.
SliceCount balance_most(const Model* m);

// What it takes to move a slice; what leaving columns out saves. Both are collective.
void balance_find_move_cost(Run* run);
void balance_find_fixed(Run* run);
void balance_make_moves(Run* run);  // of the decision
// The next steps compute what moves and lists say; NULL: nothing is left out.
void balance_set_work(Run* run, const PrunedLayer* lists);
