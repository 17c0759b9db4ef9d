// explain.h - a plan for people: as a table on the terminal, and as a page with the timeline of every rank.
#pragma once
#include <stdio.h>

#include "plan/step/flex.h"
#include "plan/value/tasks.h"

// A plan that was played.
typedef struct Shown {
    const char *name, *words;
    Plan plan;
    Timeline timeline;
    double plan_us;
    int chosen;  // the one that would run
} Shown;

// The stages of a pipeline, which have equally many ranks, and what they do in the step as played.
typedef struct ShownStages {
    int n, ranks;  // n = 0: no pipeline
    const Schedule* schedule;
    const int* first_layer;  // (n + 1)
    const char* logged;      // a line of log.jsonl: a measured step of such a pipeline; NULL: none
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

// Prints the chosen plan (micro-batches by cp size and kind, tokens, time), its makespan by term, bounds and gap, the
// rejected searches and why, and the other plans.
void explain_text(FILE* out, const Explained* x);
// Writes one HTML file that needs nothing else. 0, or -1 if it could not be written.
int explain_page(FILE* out, const Explained* x);
