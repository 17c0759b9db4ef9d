// simulate_explain.c - the page of plan/explain.h about the first batch: what flex plans, beside all others.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "dev/simulate.h"
#include "plan/explain.h"
#include "plan/planner.h"

typedef struct Played {
    Plan plan;
    Timeline timeline;
    PlayRule rule;
    void *plan_memory, *timeline_memory;
} Played;

static void show(const Simulation* s, const Tally* t, Played* played, Shown* shown, void* scratch) {
    char err[ERR_BYTES];
    int n = s->options->docs, ranks = s->setting.limits.ranks;
    played->plan_memory = need(plan_bytes(n));
    played->timeline_memory = need(timeline_bytes(n, ranks));
    plan_carve(&played->plan, played->plan_memory, n);
    double start = now_seconds();
    if (t->planner->plan(t->state, &played->plan, &played->rule, 0, s->drawn, n, err, sizeof err) < 0)
        refuse("%s planned the first batch once, but not again: %s", t->planner->name, err);
    double us = 1e6 * (now_seconds() - start);
    timeline_carve(&played->timeline, played->timeline_memory, n, ranks);
    if (timeline_play(&played->timeline, &played->plan, s->drawn, &s->setting, &played->rule, scratch, err,
                      sizeof err) < 0)
        refuse("%s: %s", t->planner->name, err);
    *shown = (Shown){.name = t->planner->name,
                     .words = t->planner->words,
                     .plan = &played->plan,
                     .timeline = &played->timeline,
                     .rule = &played->rule,
                     .plan_us = us};
}

// flex tells its searches only to whom it plans for.
static void predict_chosen(const Simulation* s, const Tally* chosen, const Played* played, Prediction* prediction,
                           void* scratch) {
    char err[ERR_BYTES];
    Setting setting = setting_under_rule(&s->setting, &played->rule);
    int n = s->options->docs, status;
    if (chosen->planner == &planner_flex) {
        Plan again;
        void* memory = need(plan_bytes(n));
        plan_carve(&again, memory, n);
        status = plan_flex(&again, prediction, 0, s->drawn, n, &setting, scratch, err, sizeof err);
        free(memory);
    } else {
        status = predict_plan(prediction, &played->plan, s->drawn, &setting, scratch, err, sizeof err);
    }
    free(setting.groups);
    if (status < 0) refuse("%s: %s", chosen->planner->name, err);
}

static void write_file(const char* path, const Explained* x) {
    FILE* file = fopen(path, "wb");
    if (!file) refuse("--explain: cannot write %s: %s", path, strerror(errno));
    int failed = explain_page(file, x);
    failed |= fclose(file);
    if (failed) refuse("--explain: %s could not be written whole", path);
}

void write_page(Simulation* s) {
    char title[256];
    const Options* o = s->options;
    Prediction prediction;
    int chosen = -1, n = 0;
    Played* played = (Played*)need(sizeof(Played) * (size_t)s->n_tallies);
    Shown* shown = (Shown*)need(sizeof(Shown) * (size_t)s->n_tallies);
    size_t scratch_bytes = plan_step_scratch(o->docs, &s->setting.limits);
    void* scratch = need(MAX(scratch_bytes, timeline_scratch(o->docs, o->ranks)));
    draw_batch(s, 0);
    for (int i = s->n_tallies - 1; i >= 0; i--)
        if (!s->tallies[i].out && (chosen < 0 || s->tallies[chosen].planner != &planner_flex)) chosen = i;
    show(s, &s->tallies[chosen], &played[n], &shown[n], scratch);
    shown[n++].chosen = 1;
    for (int i = 0; i < s->n_tallies; i++)
        if (!s->tallies[i].out && i != chosen) {
            show(s, &s->tallies[i], &played[n], &shown[n], scratch);
            n++;
        }
    predict_chosen(s, &s->tallies[chosen], &played[0], &prediction, scratch);
    snprintf(title, sizeof title, "%s, %d ranks in nodes of %d, %d documents (%s, seed %lld)", s->machine.cost.name,
             o->ranks, o->node_size, o->docs, o->lengths, (long long)o->seed);
    Explained x = {.title = title,
                   .lengths = s->drawn,
                   .n = o->docs,
                   .setting = &s->setting,
                   .prediction = &prediction,
                   .shown = shown,
                   .n_shown = n};
    write_file(o->explain, &x);
    if (!o->json) printf("the first batch is explained in %s\n", o->explain);
    for (int i = 0; i < n; i++) free(played[i].plan_memory), free(played[i].timeline_memory);
    free(played), free(shown), free(scratch);
}
