// predict.c - what any plan takes in the cost model, beside what none can beat. See step.h.
#include <stdlib.h>
#include <string.h>

#include "plan/step.h"

static int descending(const void* a, const void* b) {
    int x = *(const int*)a, y = *(const int*)b;
    return (x < y) - (x > y);
}

void sort_lengths(int* lengths, int n) { qsort(lengths, (size_t)n, sizeof(int), descending); }

int step_play(Timeline* timeline, Plan* plan, const int* lengths, const Setting* setting, Arena* arena, char* err,
              size_t errlen) {
    PlayRule rule = {.in_rounds = setting->rounds || plan->has_barriers};
    if (setting->rounds && plan->n_rounds == 0 && plan_set_rounds(plan, arena, err, errlen) < 0) return -1;
    return timeline_play(timeline, plan, lengths, setting, &rule, arena, err, errlen);
}

int predict_plan(Prediction* prediction, Plan* plan, const int* lengths, const Setting* setting, Arena* arena,
                 char* err, size_t errlen) {
    Timeline timeline;
    ArenaMark mark = arena_mark(arena);
    int* sorted = TAKE(arena, int, plan->n_docs);
    if (step_play(&timeline, plan, lengths, setting, arena, err, errlen) < 0) return -1;
    prediction->makespan = timeline.makespan;
    prediction->critical = timeline.critical;
    prediction->n_tries = 0;
    memcpy(sorted, lengths, sizeof(int) * (size_t)plan->n_docs);
    sort_lengths(sorted, plan->n_docs);
    if (bounds_of(&prediction->bounds, sorted, plan->n_docs, setting, arena, err, errlen) < 0) return -1;
    arena_reset(arena, mark);
    return 0;
}

double prediction_gap(const Prediction* prediction) {
    return prediction->bounds.l3 > 0 ? prediction->makespan / prediction->bounds.l3 - 1 : 0;
}
