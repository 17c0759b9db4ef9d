// prediction.c - what a plan should take: played in the cost model, beside the bounds that no plan can beat.
#include <stdlib.h>

#include "plan/planner.h"
#include "plan/step.h"

typedef struct Scratch {
    int* sorted;      // (n)
    void *times, *x;  // the timeline; what it and the bounds need
} Scratch;

static size_t carve_scratch(Scratch* s, void* memory, int n, const PlanLimits* limits) {
    Carver c = {(char*)memory, 0};
    s->sorted = (int*)carve(&c, sizeof(int) * (size_t)n);
    s->times = carve(&c, timeline_bytes(n, limits->ranks));
    s->x = carve(&c, MAX(timeline_scratch(n, limits->ranks), bounds_scratch(n, limits)));
    return c.bytes;
}

size_t prediction_scratch(int n, const PlanLimits* limits) { return carve_scratch(&(Scratch){0}, NULL, n, limits); }

static int descending(const void* a, const void* b) {
    int x = *(const int*)a, y = *(const int*)b;
    return (x < y) - (x > y);
}

void sort_lengths(int* lengths, int n) { qsort(lengths, (size_t)n, sizeof(int), descending); }

int predict_plan(Prediction* prediction, const Plan* plan, const int* lengths, const Setting* setting, void* scratch,
                 char* err, size_t errlen) {
    Scratch s;
    Timeline timeline;
    carve_scratch(&s, scratch, plan->n_docs, &setting->limits);
    timeline_carve(&timeline, s.times, plan->n_micro_batches, plan->ranks);
    if (timeline_play(&timeline, plan, lengths, setting, &(PlayRule){0}, s.x, err, errlen) < 0) return -1;
    prediction->makespan = timeline.makespan;
    prediction->critical = timeline.critical;
    prediction->n_tries = 0;
    memcpy(s.sorted, lengths, sizeof(int) * (size_t)plan->n_docs);
    sort_lengths(s.sorted, plan->n_docs);
    bounds_of(&prediction->bounds, s.sorted, plan->n_docs, setting, s.x);
    return 0;
}

double prediction_gap(const Prediction* prediction) {
    return prediction->bounds.l3 > 0 ? prediction->makespan / prediction->bounds.l3 - 1 : 0;
}
