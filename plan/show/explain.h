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

// ---- all pages of this program are one file of HTML that needs nothing else. It has objects of JSON, one a line, and
// scripts that draw them. Styles and scripts are files of their own, which the build turns into strings:
// plan/show/page.js is plan_show_page_js.
//
//   page_begin(out, style);      up to where the data stand
//   ...                          the lines: JSON without '<', as page_string and page_line write it
//   page_end(out, script);       plan/show/page.js and the page's own script

void page_begin(FILE* out, const char* style);
void page_end(FILE* out, const char* script);
// Writes a string as JSON. It escapes quotes, backslashes, controls, and <, so that nothing ends the element around it.
void page_string(FILE* out, const char* text);
// Writes a line of others' JSON as it is, except that it escapes '<', which JSON has in strings only.
void page_line(FILE* out, const char* text, size_t n);
