// flex.h - the planners that know what micro-batches cost: for every step its own plan.
#pragma once
#include "plan/cost/bound.h"
#include "plan/cost/timeline.h"

// What plan_flex looks at: guesses of its search; the best single cp size (plan_adaptive); in rounds the best of these,
// cut into rounds, and a plan that is made for them (plan_rounds).
typedef enum FlexTryKind { FLEX_GUESS, FLEX_ADAPTIVE, FLEX_CUT, FLEX_ROUNDS, FLEX_TRY_KINDS } FlexTryKind;
extern const char* const flex_try_names[FLEX_TRY_KINDS];

typedef struct FlexTry {
    FlexTryKind kind;
    int unit;         // of a guess: ranks that no group is narrower than
    double target;    // ms that it aimed at
    double makespan;  // ms that it came to
    int micro_batches;
    int chosen;
} FlexTry;

enum { FLEX_TRIES = 64 };

// What a planner expects of its plan.
typedef struct Prediction {
    double makespan;  // ms from the first micro-batch to the end of the last, without Cost.step
    double step;      // ms of the whole step (Timeline.step)
    Bounds bounds;
    CostTerms critical;  // of the makespan
    int n_tries;         // plan_flex's, the first FLEX_TRIES
    FlexTry tries[FLEX_TRIES];
} Prediction;

// Most bytes of an arena that a step of n documents takes, whichever of the planners plans it, and then predicts and
// checks it. Published planners may take more.
size_t planning_bytes(int n, const PlanLimits* limits);

// makespan / beside (plan/cost/bound.h) - 1; 0 without documents.
double prediction_gap(const Prediction* prediction);

// Groups of unlike cp sizes, chosen for time: a search over target times. Deterministic: the same bits on every rank
// and compiler. 0, or -1 with a message that names the document and the limit. lengths (n), each at least 1.
int plan_flex(Plan* plan, Prediction* prediction, int64_t step, const int* lengths, int n, const Setting* setting,
              Arena* arena, Err err);
// The best single cp size for this step, best-fit packed: plan_static at every cp size that planners use. 1 where none
// takes a step of less than `below` ms, if that is not INFINITY.
int plan_adaptive(Plan* plan, Prediction* prediction, int64_t step, const int* lengths, int n, double below,
                  const Setting* setting, Arena* arena, Err err);
// Plays a plan as setting and plan say: free, or in rounds, which are set if the plan has none.
int step_play(Timeline* timeline, Plan* plan, const int* lengths, const Setting* setting, Arena* arena, Err err);
// Puts micro-batches of a plan that was not made for rounds into passes together, where a step of ranks that run freely
// takes no longer, and sets rounds; with setting->rounds the plan is left as it is unless that takes less. Prediction:
// of the plan, in makespan and critical. 0, or -1 without memory.
int plan_merge(Plan* plan, Prediction* prediction, const int* lengths, const Setting* setting, Arena* arena, Err err);
// The list in the order in which ranks post exchanges (pass_order), rounds from 0 on without gaps. 0, or -1 without
// memory.
int plan_tidy(Plan* plan, int node_size, Arena* arena, Err err);
// Rounds as late as what comes behind allows, so that as many ranks as can be are in the last one; nothing else
// changes. 0, or -1 without memory.
int plan_end_late(Plan* plan, Arena* arena, Err err);
// The order of passes, as it is or reversed, in which the whole step of ranks that run freely takes least. 0, or -1
// without memory.
int plan_order(Plan* plan, Prediction* prediction, const int* lengths, const Setting* setting, Arena* arena, Err err);
// What any plan should take: makespan, step and critical. Without tries, with bounds, the whole prediction.
int predict_time(Prediction* prediction, Plan* plan, const int* lengths, const Setting* setting, Arena* arena, Err err);
int predict_plan(Prediction* prediction, Plan* plan, const int* lengths, const Setting* setting, Arena* arena, Err err);

typedef struct Keyed {
    double key;
    int i;
} Keyed;

void sort_keyed(Keyed* list, int n);  // by ascending keys, of equal ones by ascending i
// order, sorted (n): the documents, the longest first, of equal ones the one with the smaller number; their lengths.
void sort_longest_first(int* order, int* sorted, const int* lengths, int n);
// squares of limits become those of the documents in this order, in the arena. 0, or -1 without memory.
int squares_in_order(PlanLimits* limits, const int* order, int n, Arena* arena, Err err);
