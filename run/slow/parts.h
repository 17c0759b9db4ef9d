// parts.h - what balance.c and saved.c have of each other.
#pragma once
#include "plan/slow/speeds.h"
#include "run/run.h"
#include "run/slow/balance.h"

enum { SAMPLES = 32, KINDS = 3 };  // linear, attention, all else

// A stage of the pipeline. All ranks know what those of all stages have measured, and decide for all.
typedef struct StageBalance {
    int first_rank;   // of the stage, in the world
    Speeds speeds;    // of its data ranks
    UnitGroup units;  // what the ranks of the group own; head_work 0: not known yet
    // Since the last refresh: ms by number in the group, kind and timed step.
    double samples[MOST_TP][KINDS][SAMPLES];
    double head_ms[MOST_TP];  // attention of a head on each rank, when it last had one
    double gathering;         // ms of a step that leaving columns out adds
    MoveCost cost;
    BalanceMemory memory;
    BalanceDecision decision;
    WorkPlan plan;  // that carries it out; plan.kept only while it is set
} StageBalance;

// A message of so many bytes takes ms + bytes byte_ms.
typedef struct MessageCost {
    double ms, byte_ms;
} MessageCost;

// What --strategies does where every step has another group: takes paces of all ranks, finds costs, and in a step
// carries out what this rank's group has decided, and tells what that changes for this rank.
typedef struct JobsBalance {
    void (*set_paces)(Run* run, const double* speeds);
    void (*ready)(Run* run);
    void (*begin)(Run* run);
    void (*report)(const Run* run, RankReport* mine);
} JobsBalance;

struct Balance {
    BalanceSetting setting;  // cost: of each stage
    Pruner* pruner;          // NULL: nothing is ever left out
    int is_timed;            // this step
    int goes_on;             // with what an earlier invocation has measured
    int n_samples;
    double fixed;  // fraction of the linears' time that stays however much is left out
    int stages;
    StageBalance *stage, *own;  // (stages); this rank's
    Arena arena;                // of stage, steps, compute_ms and segments
    double* compute_ms;         // (world) scratch
    CostTerms* expected;        // (world) scratch
    float* segments;            // (group, MOST_SEGMENTS) scratch
    RankStep* steps;            // (world) of the last step
    const JobsBalance* jobs;    // NULL without strategies
};

// balance.c. The most units that a rank may come to compute, which bounds its memory: twice its share of an even
// division and what rounding adds.
SliceCount balance_most(const Model* m);
// The work of a decision; none where helpers have no memory for it: not all decisions in files are ours.
void balance_set_moves(WorkPlan* plan, const UnitGroup* units, const BalanceDecision* d);
// Carries out the decisions of all stages, those of a refresh or of a checkpoint.
void balance_carry_out(Run* run);
// What is known of paces by now is what plans go by from the next on.
void balance_set_paces(Run* run);

// The most that a rank may need; what it owns and may come to compute of such a split; what a message takes among the
// ranks of a group (NULL: this rank has none), the slowest rank of all, collective; what moving so many layers takes.
WorkNeeds balance_needs(const Model* m, const Balance* b);
void balance_count_units(UnitGroup* units, const Shape* whole, const TpSplit* split);
MessageCost balance_message(Run* run, Comm* group);
MoveCost balance_move_cost(const MessageCost* message, const Shape* part, DType dt, int layers);

// saved.c. What was measured, where stages and ranks are the same; the decision that was in force.
void balance_take_measures(Run* run);
void balance_take_up(Run* run);
