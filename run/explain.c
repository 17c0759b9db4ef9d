// explain.c - --explain: the plan of a step beside what other planners do with the same documents, all played in the
// same cost model.
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/disk.h"
#include "plan/explain.h"
#include "plan/published/published.h"
#include "run/run.h"

enum { SAMPLE = 4096, MOST_SHOWN = 16 };

// A plan with everything that showing it takes.
typedef struct Played {
    Plan plan;
    PlayRule rule;
    Timeline timeline;
    void *plan_memory, *timeline_memory;
} Played;

typedef struct Stage {
    const Run* run;
    Played played[MOST_SHOWN];
    Shown shown[MOST_SHOWN];
    int n;
} Stage;

static void* take(size_t bytes) {
    void* memory = malloc(MAX(bytes, (size_t)1));
    if (!memory) die("--explain: no memory, %zu bytes", bytes);
    return memory;
}

// Puts the plan in played[n] on the stage. 0, or -1 with words.
static int play(Stage* stage, const char* name, const char* words, double plan_us, char* err, size_t errlen) {
    Played* p = &stage->played[stage->n];
    const Setting* setting = &stage->run->setting;
    int ranks = setting->limits.ranks;
    p->timeline_memory = take(timeline_bytes(p->plan.n_micro_batches, ranks));
    timeline_carve(&p->timeline, p->timeline_memory, p->plan.n_micro_batches, ranks);
    void* scratch = take(timeline_scratch(p->plan.n_micro_batches, ranks));
    int failed =
        timeline_play(&p->timeline, &p->plan, stage->run->batch.lengths, setting, &p->rule, scratch, err, errlen);
    free(scratch);
    Shown shown = {name, words, &p->plan, &p->timeline, &p->rule, plan_us, stage->n == 0};
    stage->shown[stage->n] = shown;
    return failed;
}

static void play_chosen(Stage* stage) {
    char err[ERR_BYTES];
    const Batch* b = &stage->run->batch;
    const char* words = "";
    for (int i = 0; i < n_planners; i++)
        if (!strcmp(planners[i]->name, stage->run->config.plan)) words = planners[i]->words;
    stage->played[0].plan = b->plan;
    if (play(stage, stage->run->config.plan, words, b->plan_us, err, sizeof err)) die("--explain: %s", err);
    stage->n = 1;
}

// Lengths of the first training pieces: what a planner that looks at the data set before it starts gets to see.
static int draw_sample(const Run* run, int* lengths) {
    int n = (int)MIN(sampler_pieces(run->data.train, SPLIT_TRAIN), (int64_t)SAMPLE);
    for (int i = 0; i < n; i++) {
        SamplerPosition position = {0, i};
        lengths[i] = sampler_train_piece(run->data.train, position).length;
    }
    return n;
}

static int run_planner(Stage* stage, const Planner* planner, const int* sample, int n_sample, char* err,
                       size_t errlen) {
    Played* p = &stage->played[stage->n];
    const Run* run = stage->run;
    const Batch* b = &run->batch;
    void* opened = planner->open(&run->setting, sample, n_sample, err, errlen);
    if (!opened) return -1;
    p->plan_memory = take(plan_bytes(b->n_pieces));
    plan_carve(&p->plan, p->plan_memory, b->n_pieces);
    double started = now_seconds();
    int failed = planner->plan(opened, &p->plan, &p->rule, b->plan.step, b->lengths, b->n_pieces, err, errlen);
    double plan_us = 1e6 * (now_seconds() - started);
    planner->close(opened);
    return failed || play(stage, planner->name, planner->words, plan_us, err, errlen) ? -1 : 0;
}

static void clear(Played* p) {
    free(p->plan_memory);
    free(p->timeline_memory);
    memset(p, 0, sizeof *p);
}

static void play_planners(Stage* stage) {
    static int sample[SAMPLE];
    char err[ERR_BYTES];
    int n_sample = draw_sample(stage->run, sample);
    for (int i = 0; i < n_planners && stage->n < MOST_SHOWN; i++) {
        if (!strcmp(planners[i]->name, stage->run->config.plan)) continue;
        if (!run_planner(stage, planners[i], sample, n_sample, err, sizeof err)) stage->n++;
        else {
            printf("%s has no plan: %s\n", planners[i]->name, err);
            clear(&stage->played[stage->n]);
        }
    }
}

static void write_page(const Run* run, const Explained* x) {
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
    if (run->config.out && disk_make_dirs(run->out, err, sizeof err)) die("--explain: %s", err);
    if (snprintf(path, sizeof path, "%s%splan.html", run->config.out ? run->out : "", run->config.out ? "/" : "") >=
        (int)sizeof path)
        die("%s: path too long", run->out);
    FILE* file = fopen(path, "w");
    int failed = !file || explain_page(file, x);
    if (file && fclose(file)) failed = 1;
    if (failed) die("%s: cannot write: %s", path, strerror(errno));
    printf("the same with timelines: %s\n", path);
}

void run_explain(const Run* run) {
    static Stage stage;
    char title[256];
    const Batch* b = &run->batch;
    if (!run->setting.groups) die("--explain: no cost model is known; try --probe, or --machine FILE");
    stage.run = run;
    play_chosen(&stage);
    play_planners(&stage);
    snprintf(title, sizeof title, "step %" PRId64 ": %d documents, %" PRId64 " tokens on %d ranks", b->plan.step,
             b->n_pieces, b->n_tokens, run->limits.ranks);
    Explained x = {title, b->lengths, b->n_pieces, &run->setting, &b->prediction, stage.shown, stage.n};
    explain_text(stdout, &x);
    write_page(run, &x);
    for (int i = 0; i < stage.n; i++) clear(&stage.played[i]);
}
