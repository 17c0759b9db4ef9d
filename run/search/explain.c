// explain.c - --explain: the plan of a step beside what other planners do with the same documents, all played in the
// same cost model; with --strategies which of them the step takes; with a pipeline what every stage does.
#define _GNU_SOURCE  // getline
#include "plan/search/explain.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/base/disk.h"
#include "plan/published/published.h"
#include "run/search/search.h"
#include "run/setup/ask.h"
#include "run/setup/setup.h"
#include "run/show/show.h"
#include "run/strategies/strategies.h"

// ---- the plan, and those of other planners

enum { MOST_SHOWN = 16 };

typedef struct Stage {
    const Run* run;
    Arena arena;
    Shown shown[MOST_SHOWN];
    int n;
} Stage;

// Plays the plan in shown[n], of this planner (NULL: that of --plan random). 0, or -1 with words.
static int play(Stage* stage, const Planner* planner, double plan_us, Err err) {
    const Run* run = stage->run;
    Shown* s = &stage->shown[stage->n];
    s->name = planner ? planner->name : run->config.plan, s->words = planner ? planner->words : "";
    s->plan_us = plan_us, s->chosen = stage->n == 0;
    if (step_play(&s->timeline, &s->plan, run->batch.lengths, &run->clock->setting, &stage->arena, err)) return -1;
    stage->n++;
    return 0;
}

static int plan_and_play(Stage* stage, const Planner* planner, Err err) {
    static int sample[SAMPLED_LENGTHS];
    const Run* run = stage->run;
    const Batch* b = &run->batch;
    Plan* plan = &stage->shown[stage->n].plan;
    int n_sample = run_sample_lengths(run, sample);
    Setting setting = run->clock->setting;
    setting.limits.squares = b->planned->made.plan.squares;
    void* opened = planner->open(&setting, sample, n_sample, &stage->arena, err);
    if (!opened) return -1;
    double started = now_seconds();
    if (planner->plan(opened, plan, b->planned->made.plan.step, b->lengths, b->n_pieces, &stage->arena, err)) return -1;
    plan->squares = setting.limits.squares;
    return play(stage, planner, 1e6 * (now_seconds() - started), err);
}

static void play_all(Stage* stage) {
    char err[ERR_BYTES];
    const BatchPlan* chosen = stage->run->batch.planned;
    stage->shown[0].plan = chosen->made.plan;
    if (play(stage, planner_named(stage->run->config.plan), chosen->plan_us, err)) die("--explain: %s", err);
    for (int i = 0; i < n_planners && stage->n < MOST_SHOWN; i++)
        if (strcmp(planners[i]->name, stage->run->config.plan) != 0 && plan_and_play(stage, planners[i], err))
            say(stdout, "%s has no plan: %s", planners[i]->name, err);
}

// ---- --strategies: which one the planned step takes, what each of its pipelines gets, and what the others would take,
// with moving gradients and weights. Times are the dispatcher's (plan/published/hydraulis.h): before the pipelines of a
// job plan their documents anew among themselves.

// The documents of the whole step, drawn again into buffers that no step uses now: the batch holds those of one job.
static void draw_step(StepWork* w, const Run* run, Arena* arena) {
    char err[ERR_BYTES];
    Batch* idle = (Batch*)&run->ahead;
    idle->after = run->state.position;
    if (batch_draw_joined(idle, run, err) ||
        step_work(w, &run->strategies->kinds.pool, idle->lengths, batch_squares(idle, run), idle->n_pieces, arena, err))
        die("--explain: %s", err);
}

typedef struct Rated {
    int strategy;   // of the list
    double ms;      // infinite: it does not hold the documents
    double moving;  // of them: until the last pipeline has its weights, and gradients
    int empty;      // pipelines without documents
} Rated;

static int sooner(const void* a, const void* b) {
    const Rated *x = (const Rated*)a, *y = (const Rated*)b;
    return x->ms != y->ms ? (x->ms < y->ms ? -1 : 1) : x->strategy - y->strategy;
}

static void rate(Rated* rated, StepWork* w, const Strategies* x, uint64_t seed) {
    for (int s = 0; s < x->list.n; s++) {
        double last = 0;
        Choice choice = hydraulis_choose(w, &x->choices[s], 1, HYDRAULIS_SHUFFLES, seed);
        int holds = choice.strategy >= 0;
        for (int k = 0; k < x->kinds.pool.n; k++) last = MAX(last, x->choices[s].start[k]);
        rated[s] = (Rated){s, holds ? choice.ms : INFINITY, x->choices[s].end + last, holds ? choice.empty : 0};
    }
    qsort(rated, (size_t)x->list.n, sizeof *rated, sooner);
}

static void print_strategies(const Rated* rated, const Run* run) {
    TextTable table = {0};
    text_cells(&table, "strategy\tms\tlonger\tmoving\n");
    for (int i = 0; i < run->strategies->list.n; i++) {
        const Rated* r = &rated[i];
        text_cells(&table, "%s\t", strategies_name(run, r->strategy));
        if (isinf(r->ms)) text_cells(&table, "has no pipeline for the longest document");
        else text_cells(&table, "%.2f\t%.2fx\t%.2f", r->ms, r->ms / rated[0].ms, r->moving);
        if (r->strategy == run->batch.planned->strategy) text_cells(&table, "\tchosen");
        if (r->empty) text_cells(&table, "\tleaves %d pipeline%s empty", r->empty, r->empty > 1 ? "s" : "");
        text_cells(&table, "\n");
    }
    text_table(stdout, &table, "  ");
}

// The ranks of the job whose pipelines these are, as "4-7".
static void ranks_of(char text[32], const RankStrategy* s, const PipelineGroup* kind) {
    int g = 0, first = 0;
    while (s->group[g].tp != kind->tp || s->group[g].pp != kind->pp) first += group_ranks(&s->group[g++]);
    snprintf(text, 32, "%d-%d", first, first + group_ranks(&s->group[g]) - 1);
}

static void print_pipelines(StepWork* w, const Run* run) {
    const Strategies* x = run->strategies;
    const Strategy* chosen = &x->choices[run->batch.planned->strategy];
    TextTable table = {0};
    text_cells(&table, "pipeline\tof ranks\tdocuments\ttokens\tlongest\tmicro-batches\tms\n");
    for (int k = 0, p = 0; k < x->kinds.pool.n; k++)
        for (int copy = 0; copy < chosen->copies[k]; copy++, p++) {
            char name[STRATEGY_TEXT], ranks[32];
            const int* docs = w->docs + w->first[p];
            int n = w->first[p + 1] - w->first[p];
            int64_t tokens = 0;
            w->pace = chosen->pace ? chosen->pace[p] : 1;
            Packing packed = n ? hydraulis_pack(w->mb_of + w->first[p], w, k, docs, n) : (Packing){0};
            RankStrategy alone = {1, {{1, x->kinds.group[k].tp, x->kinds.group[k].pp}}};
            for (int i = 0; i < n; i++) tokens += w->lengths[docs[i]];
            ranks_of(ranks, &x->list.strategy[run->batch.planned->strategy], &alone.group[0]);
            text_cells(&table, "%s\t%s\t%d\t%" PRId64 "\t%d\t%d\t%.2f\n", strategy_print(&alone, name), ranks, n,
                       tokens, n ? w->lengths[docs[0]] : 0, packed.n, packed.ms);
        }
    printf("\n");
    text_table(stdout, &table, "  ");
}

static void explain_strategies(const Run* run) {
    const Strategies* x = run->strategies;
    const BatchPlan* chosen = run->batch.planned;
    Rated rated[MOST_RANK_STRATEGIES];
    Arena arena = {0};
    StepWork w;
    int64_t tokens = 0;
    char documents[64];
    uint64_t seed = hash64((uint64_t)run->config.seed ^ (uint64_t)chosen->made.plan.step);  // of strategies_dispatch
    draw_step(&w, run, &arena);
    rate(rated, &w, x, seed);
    hydraulis_choose(&w, &x->choices[chosen->strategy], 1, HYDRAULIS_SHUFFLES, seed);
    for (int i = 0; i < w.n; i++) tokens += w.lengths[i];
    printf("strategies: step %" PRId64 ": %s, %" PRId64 " tokens on %d ranks take %s; predicted ms\n",
           chosen->made.plan.step, text_many(w.n, "document", documents), tokens, run->model.world->size,
           strategies_name(run, chosen->strategy));
    print_strategies(rated, run);
    print_pipelines(&w, run);
    printf("\nthe job of rank 0 plans its documents among its pipelines:\n");
    arena_free(&arena);
}

// ---- stages of a pipeline

// The line of the last step in the log of the run's directory that had as many stages and was measured; NULL: none.
static char* last_measured(const Run* run) {
    char path[CHECKPOINT_PATH], stages[32], *line = NULL, *found = NULL;
    size_t room = 0;
    if (!run->config.out) return NULL;
    run_path(path, run->books->out, "log.jsonl");
    snprintf(stages, sizeof stages, "\"stages\": %d,", run->model.stages);
    FILE* file = disk_open_stream(path, NULL);
    while (file && getline(&line, &room, file) > 0)
        if (strstr(line, stages) && strstr(line, "\"compute_ms\": [") && !strstr(line, "\"compute_ms\": [null"))
            free(found), found = strdup(line);
    if (file) fclose(file);
    free(line);
    return found;
}

// ---- all of it

static void write_page(const Run* run, const Explained* x) {
    char path[CHECKPOINT_PATH] = "plan.html", err[ERR_BYTES], *text;
    size_t bytes;
    if (run->config.out && disk_make_dirs(run->books->out, err)) die("--explain: %s", err);
    if (run->config.out) run_path(path, run->books->out, "plan.html");
    FILE* page = open_memstream(&text, &bytes);
    if (!page) die("--explain: no memory for a page");
    explain_page(page, x);
    if (disk_put_stream(path, 0, page, &text, &bytes, err)) die("--explain: %s", err);
    say(stdout, "the same with timelines: %s", path);
}

static void explain_plan(const Run* run) {
    static Stage stage;
    char title[256], documents[96], ranks[64], of_trees[80] = "", words[160];
    const Batch* b = &run->batch;
    TreeCounts trees = {0, 0, 0, 0};
    int64_t tokens = 0;  // of this job
    for (int i = 0; i < b->n_pieces; i++) tokens += b->lengths[i];
    for (int i = 0; i < b->n_pieces; i++)
        if (i == 0 || !b->pieces[i - 1].rest || b->pieces[i - 1].doc != b->pieces[i].doc)
            docs_count_tree(run->data.docs, b->pieces[i].doc, &trees);
    if (!run->clock->setting.groups) die("--explain: no cost model is known; try --probe, or --machine FILE");
    stage.run = run;
    play_all(&stage);
    if (trees.trees)
        snprintf(of_trees, sizeof of_trees, " (%" PRId64 " trees of %" PRId64 " segments)", trees.trees,
                 trees.segments);
    snprintf(title, sizeof title, "step %" PRId64 ": %s%s, %" PRId64 " tokens on %s", b->planned->made.plan.step,
             text_many(b->n_pieces, "document", documents), of_trees, tokens,
             text_many(run->clock->limits.ranks, "rank", ranks));
    Explained x = {title,       b->lengths, b->n_pieces, &run->clock->setting, &b->planned->made.prediction,
                   stage.shown, stage.n,    {0}};
    int P = run->model.stages, first[MOST_STAGES + 1];
    char* logged = P > 1 ? last_measured(run) : NULL;
    for (int s = 0; s <= P; s++) first[s] = layout_first(&run->model.ranks->layout, s);
    if (P > 1) x.stages = (ShownStages){P, run->model.world->size / P, &b->planned->made.schedule, first, logged};
    if (run->strategies) explain_strategies(run);
    if (trees.trees) say(stdout, "%s", run_spared(&trees, words));
    if (run_joins(run)) say(stdout, "%s", run_joined(b->n_tokens, b->planned->drawn, documents));
    explain_text(stdout, &x);
    write_page(run, &x);
    free(logged);
    arena_free(&stage.arena);
}

static void explain(Run* run) {
    if (run->config.check_layout) explain_layout(run);
    else if (run->model.world->rank == 0) explain_plan(run);
}

int explain_main(int argc, char** argv) {
    argv[1] = argv[0];
    die_as.program = NULL;
    run_explain = explain;
    return train_main(argc - 1, argv + 1);
}
