// flex.h - the planners that know what micro-batches cost: for every step its own plan.
#pragma once
#include "plan/cost/bound.h"
#include "plan/cost/timeline.h"

// The plans that plan_flex tries: guesses of its search; the best single cp size (plan_adaptive); with rounds the best
// of these, cut into rounds, and a plan made for them (plan_rounds).
typedef enum FlexTryKind { FLEX_GUESS, FLEX_ADAPTIVE, FLEX_CUT, FLEX_ROUNDS, FLEX_TRY_KINDS } FlexTryKind;
extern const char* const flex_try_names[FLEX_TRY_KINDS];

typedef struct FlexTry {
    FlexTryKind kind;
    int unit;         // of a guess: the least ranks of a group
    double target;    // ms that it aimed at
    double makespan;  // ms that it came to
    int micro_batches;
    int chosen;
} FlexTry;

enum { FLEX_TRIES = 64 };

// A planner's expectation of its plan.
typedef struct Prediction {
    double makespan;  // ms from the first micro-batch to the end of the last, without Cost.step
    double step;      // ms of the whole step (Timeline.step)
    Bounds bounds;
    CostTerms critical;  // of the makespan
    int n_tries;         // plan_flex's, the first FLEX_TRIES
    FlexTry tries[FLEX_TRIES];
} Prediction;

// The most bytes of an arena that any planner takes to plan, predict and check a step of n documents. Published
// planners may take more.
size_t planning_bytes(int n, const PlanLimits* limits);

// Returns makespan / beside (plan/cost/bound.h) - 1; 0 without documents.
double prediction_gap(const Prediction* prediction);

// Plans groups of unlike cp sizes for the least time, by a search over target times: the same bits on every rank and
// compiler. lengths (n), each at least 1. 0, or -1 with a message that names the document and the limit.
int plan_flex(Plan* plan, Prediction* prediction, int64_t step, const int* lengths, int n, const Setting* setting,
              Arena* arena, Err err);
// Plans the best single cp size for this step, best-fit packed: it tries plan_static at every cp size that planners
// use. Returns 1 if no step takes less than `below` ms, unless that is INFINITY.
int plan_adaptive(Plan* plan, Prediction* prediction, int64_t step, const int* lengths, int n, double below,
                  const Setting* setting, Arena* arena, Err err);
// Plays a plan as setting and plan say: free, or in rounds, which it sets if the plan has none.
int step_play(Timeline* timeline, Plan* plan, const int* lengths, const Setting* setting, Arena* arena, Err err);
// Joins micro-batches of a plan that was not made for rounds into passes if a step of free ranks takes no longer, and
// sets rounds. With setting->rounds the plan stays unless the joined one takes less. The prediction's makespan and
// critical are the plan's, in and out. 0, or -1 without memory.
int plan_merge(Plan* plan, Prediction* prediction, const int* lengths, const Setting* setting, Arena* arena, Err err);
// Sorts the list into the order in which ranks post exchanges (pass_order), and numbers rounds from 0 on without gaps.
// 0, or -1 without memory.
int plan_tidy(Plan* plan, int node_size, Arena* arena, Err err);
// Makes rounds as late as later ones allow, so that as many ranks as possible are in the last one; nothing else
// changes. 0, or -1 without memory.
int plan_end_late(Plan* plan, Arena* arena, Err err);
// Takes the order of passes, as it is or reversed, in which the whole step takes least. 0, or -1 without memory.
int plan_order(Plan* plan, Prediction* prediction, const int* lengths, const Setting* setting, Arena* arena, Err err);
// predict_time sets makespan, step and critical of any plan; predict_plan also bounds, and no tries.
int predict_time(Prediction* prediction, Plan* plan, const int* lengths, const Setting* setting, Arena* arena, Err err);
int predict_plan(Prediction* prediction, Plan* plan, const int* lengths, const Setting* setting, Arena* arena, Err err);

typedef struct Keyed {
    double key;
    int i;
} Keyed;

void sort_keyed(Keyed* list, int n);  // by ascending keys, of equal ones by ascending i
// Sets order (n) to the documents, the longest first, equals by number, and sorted (n) to their lengths.
void sort_longest_first(int* order, int* sorted, const int* lengths, int n);
// Puts the squares of limits into this order of documents, in the arena. 0, or -1 without memory.
int squares_in_order(PlanLimits* limits, const int* order, int n, Arena* arena, Err err);
