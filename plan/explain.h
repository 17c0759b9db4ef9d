// explain.h - a plan for people: as a table on the terminal, and as a page with the timeline of every rank.
#pragma once
#include <stdio.h>

#include "plan/step.h"
#include "plan/tasks.h"

// A plan that was played.
typedef struct Shown {
    const char *name, *words;
    const Plan* plan;
    const Timeline* timeline;
    const PlayRule* rule;
    double plan_us;
    int chosen;  // the one that would run
} Shown;

// A stage of a pipeline: what it does in the step as played, and what its ranks took in a step that was measured.
typedef struct ShownStage {
    const TaskList* list;
    int first_rank, ranks, first_layer, end_layer, slots;
    const double *compute_ms, *wait_ms;  // (ranks) NULL: nothing was measured
} ShownStage;

typedef struct ShownStages {
    int n;  // 0: no pipeline
    const ShownStage* stage;
    double makespan, bubble;
    int64_t step;        // that was measured
    double measured_ms;  // its length
} ShownStages;

typedef struct Explained {
    const char* title;  // the run, in a line
    const int* lengths;
    int n;
    const Setting* setting;
    const Prediction* prediction;  // of the chosen plan
    const Shown* shown;            // (n_shown), the chosen one first
    int n_shown;
    ShownStages stages;
} Explained;

// The chosen plan (micro-batches by cp size and kind, tokens, time), its makespan by term, bounds and gap, searches
// that were rejected and why, the others beside it.
void explain_text(FILE* out, const Explained* x);
// One HTML file that needs nothing else. 0, or -1 when it could not be written.
int explain_page(FILE* out, const Explained* x);
