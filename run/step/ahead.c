// ahead.c - a thread plans and reads the next step while this one computes, at no cost of time; ranks agree on it.
//
// Between ahead_start and ahead_wait the thread owns run->ahead and reads what planning reads (configuration, limits,
// cost model); at all other times there is none, and the main thread may change them. The thread neither prints nor
// talks to other ranks: the main thread tells of its errors.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "data/sampler_cut.h"
#include "data/sampler_mix.h"
#include "run/files/close.h"
#include "run/step/labels.h"
#include "run/files/saving.h"
#include "run/setup/setup.h"

struct Ahead {
    pthread_t thread;
    int is_apart;  // 1: the thread runs
    Run* run;
    int64_t step;
    int failed;
    char err[ERR_BYTES];
};

static void* draw_and_plan(void* argument) {
    Ahead* a = (Ahead*)argument;
    Run* run = a->run;
    Batch* b = &run->ahead;
    a->failed = batch_draw_and_plan(b, run, a->step, a->err) || batch_read(b, run, run->data.train, a->err);
    return NULL;
}

void ahead_start(Run* run, int64_t step) {
    Ahead* a = run->cluster->timing.planner;
    if (!a) a = run->cluster->timing.planner = (Ahead*)calloc(1, sizeof *a);
    if (!a) die("no memory for the thread that plans");
    // state stays behind the step at work until that is done.
    run->ahead.after = run->config.overfit           ? (SamplerPosition){0}
                       : step == run->state.step + 1 ? run->state.position
                                                     : run->batch.after;
    a->run = run, a->step = step;
    a->is_apart = host_begin_thread(&a->thread, draw_and_plan, a);
    if (!a->is_apart) draw_and_plan(a);  // threads are few: the step at work waits for it
}

void ahead_none(Run* run) {
    BatchPlan* x = run->ahead.planned;
    x->made.plan = (Plan){0};
    x->made.predicted = 0;
    x->dispatch_hash = 0;
    x->strategy = run->batch.planned->strategy;
}

double ahead_wait(Run* run) {
    Ahead* a = run->cluster->timing.planner;
    double started = now_seconds();
    if (a->is_apart) pthread_join(a->thread, NULL);
    a->is_apart = 0;
    if (a->failed) {
        fail(run->cluster->why, "step %" PRId64 ": %s", a->step, a->err);
        ahead_none(run);
    }
    return now_seconds() - started;
}

void ahead_close(Run* run) {
    if (!run->cluster->timing.planner) return;
    ahead_wait(run);
    free(run->cluster->timing.planner);
    run->cluster->timing.planner = NULL;
}

// ---- what all ranks agree on

static PlanHash plan_hash_of(const Run* run, const Batch* b) {
    uint64_t made = plan_hash(&b->planned->made.plan, b->lengths);
    return run->strategies ? (PlanHash){b->planned->dispatch_hash, made, 0} : (PlanHash){made, 0, 0};
}

// Returns the hash in rank r's message, `each` bytes after that of rank r - 1.
static const PlanHash* hash_of(const void* all, int r, size_t each) {
    return (const PlanHash*)((const char*)all + (size_t)r * each);
}

// Ends the program if a rank has another plan of b than rank 0, or than this rank when they share a job.
static void compare_plans(Run* run, const Batch* b, const void* all, size_t each) {
    const Comm* c = run->model.world;
    const char* what = b->training ? "step" : "validation after step";
    const PlanHash *first = hash_of(all, 0, each), *mine = hash_of(all, c->rank, each);
    for (int r = 0; r < c->size; r++) run->cluster->unplanned |= hash_of(all, r, each)->failed != 0;
    for (int r = 0; r < c->size && !run->cluster->unplanned; r++) {
        const PlanHash* its = hash_of(all, r, each);
        if (its->plan != first->plan)
            die("%s %" PRId64 ": rank %d has the plan %016" PRIx64 ", rank 0 has %016" PRIx64
                ": expected the same on all ranks; is it the same program with the same data everywhere?",
                what, b->planned->made.plan.step, r, its->plan, first->plan);
        if (strategies_same_job(run, b->planned->strategy, r, c->rank) && its->job != mine->job)
            die("%s %" PRId64 ": rank %d has another plan of its pipelines than rank %d: expected the same", what,
                b->planned->made.plan.step, r, c->rank);
    }
}

int run_agree_on_plan(Run* run, const Batch* b, int failed) {
    PlanHash mine = {.failed = 1}, *all;
    if (!failed) mine = plan_hash_of(run, b);
    all = (PlanHash*)run_ask_all(run, run->model.world, &mine, sizeof mine);
    compare_plans(run, b, all, sizeof mine);
    free(all);
    return !run->cluster->unplanned;
}

void run_end_unplanned(const Run* run) {
    char whose[32] = "";
    const char* why = (const char*)run_ask_all(run, run->model.world, run->cluster->why, ERR_BYTES);
    int r = 0;
    while (!why[r * ERR_BYTES]) r++;
    if (r > 0) snprintf(whose, sizeof whose, "rank %d: ", r);
    die("%s%s", whose, why + r * ERR_BYTES);
}

void ahead_agree(Run* run, const RankReport* report, uint64_t decided, int explains) {
    char err[ERR_BYTES];
    Comm* c = run->model.world;
    Cluster* x = run->cluster;
    Timing* timing = &run->cluster->timing;
    BatchPlan* next = run->ahead.planned;
    PlanHash made = plan_hash_of(run, &run->ahead);
    made.plan = hash_bytes(timing->calibration.theta, sizeof timing->calibration.theta, made.plan ^ decided);
    made.failed = x->why[0] != 0;
    const Prediction* p = &next->made.prediction;
    double expected = calibration_predict(&timing->calibration, next->made.terms);
    if (run->strategies && next->made.predicted)  // what shows of rounds' weights and gradients
        expected += MAX(0, p->step - p->makespan - run->clock->setting.weights.update);
    Agreement mine = {made,
                      (uint64_t)interrupted,
                      (uint64_t)run->model.left,
                      (uint64_t)(save_is_written() * WRITTEN_FAR | close_is_written() * WRITTEN_CLOSE),
                      (uint64_t)save_is_due_by_clock(run),
                      timing->last_ms,
                      next->made.predicted ? expected : NAN,
                      run_processor_seconds(run),
                      next->window,
                      *report};
    double ms = mine.ms;
    x->agreed[0] = mine;
    if (c->size > 1 && c->table->all_gather_host(c, x->agreed, &mine, sizeof mine, err)) run_lost(run, err);
    compare_plans(run, &run->ahead, x->agreed, sizeof mine);
    run->stopped_by = (int)mine.signal, run->left = (int)mine.left;  // as the others were told, no later signal
    next->expected_ms = mine.predicted;
    x->processor = 0;
    run->books->saving.all_written = WRITTEN_FAR | WRITTEN_CLOSE, run->books->saving.is_due = (int)x->agreed[0].saves;
    for (int r = 0; r < c->size; r++) {
        const Agreement* other = &x->agreed[r];
        run->stopped_by = (int)MAX((uint64_t)run->stopped_by, other->signal);
        run->left |= (int)other->left;
        run->books->saving.all_written &= (int)other->written;
        x->processor += other->processor;
        ms = MAX(ms, other->ms);
    }
    if (run->strategies) strategies_expect(run, next);
    int learns = ms > 0 && explains;
    if (learns && run->strategies) strategies_learn(run, ms);
    else if (learns) calibration_learn(&timing->calibration, timing->last_terms, ms);
    timing->last_ms = 0;
}

void ahead_plan_now(Run* run, uint64_t decided) {
    RankReport none = {0};
    ahead_start(run, run->state.step + 1);
    ahead_wait(run);
    ahead_agree(run, &none, decided, 0);
    if (run->cluster->unplanned) run_end_unplanned(run);
    if (run->strategies) zero_gather(&run_under(run, run->ahead.planned->strategy)->model);
    strategies_turn(run, run->ahead.planned->strategy);
}

void ahead_plan_next(Run* run) {
    int64_t step = run->batch.planned->made.plan.step;
    int is_due = run->config.refresh > 0 && step % run->config.refresh == 0;
    if (step == run->config.steps) {
        ahead_none(run);
        return;
    }
    int learns = run->clock->setting.groups && !run->config.machine && is_due;
    for (int s = 0; s < run_layouts(run) && learns; s++) run_set_cost(run_under(run, s));
    if (learns && run->strategies) strategies_find_choices(run);
    ahead_start(run, step + 1);
}

// ---- documents that no plan can hold

// Asks the planner for steps of one document each, since every planner divides them in its own way. These are the
// longest document, and those shorter by less than two tokens a rank: rounded borders may give a rank one more of them.
static void ask_planner(Run* run, const char* option, const char* seen) {
    static const char* const subjects[] = {"document 0 of the step", "a document"};
    char err[ERR_BYTES], held[64] = "";
    const PlanLimits* limits = &run->clock->limits;
    Batch* b = &run->batch;
    int longest = 0, least = run->strategies ? 0 : run->clock->limits.capacity;
    int64_t most = 0;
    b->training = 0;
    for (int d = 1; d <= limits->ranks; d++) most = MAX(most, (int64_t)d * widest_capacity(limits, d));
    if (!run->strategies)
        snprintf(held, sizeof held, "; %d rank%s at most %lld", limits->ranks, limits->ranks > 1 ? "s hold" : " holds",
                 (long long)most);
    for (int s = run->config.context; s > MAX(least, longest - 2 * run->model.world->size); s--) {
        if (!seen[s]) continue;
        longest = MAX(longest, s);
        b->n_pieces = 1;  // a strategy leaves only those of this rank's job
        b->pieces[0] = (Piece){.length = s, .squares = (double)s * s};
        if (!batch_plan(b, run, 0, err)) continue;
        const char* rest = err;
        for (int i = 0; i < COUNT(subjects) && rest == err; i++)
            if (!strncmp(err, subjects[i], strlen(subjects[i]))) rest += strlen(subjects[i]);
        die("%s: %s%s, or a smaller --context (documents are cut to %d tokens%s)", option,
            rest == err    ? ""
            : s == longest ? "the longest document"
                           : subjects[1],
            rest, run->config.context, held);
    }
}

// Tells people how many trees are cut. Pairs of preferences must stay in one job, which alone adds up their losses.
static void tell_of_cuts(const Run* run, const char* option, const Docs* docs) {
    char err[ERR_BYTES], trees[64];
    DocsSplit told = {0, 0, 0};
    long long room = run->cluster->tree_room;
    if (docs_check_trees(docs, INT_MAX, room, err)) die("%s: %s", option, err);
    if (run->model.world->rank > 0 && !run->strategies) return;  // nobody else says it
    if (docs_cut_factor(docs, room, &told, err) < 0) die("%s: %s", option, err);
    int prefers = run->labels && run->labels->prefers && docs == run->data.docs;  // --val is asked no preferences
    if (told.trees && run->strategies && prefers)
        die("%s: a tree whose answers have ranks has more than the %lld tokens that a pipeline of --strategies holds; "
            "try a larger --capacity",
            option, room);
    if (told.trees && run->model.world->rank == 0)
        say(stdout,
            "trees   %s of %s: more than the %lld tokens that a group of ranks holds, cut inside a step into %lld; "
            "%.1f %% of all tokens are computed again",
            text_many(told.trees, "tree", trees), option, room, (long long)told.parts,
            100.0 * (double)told.again / (double)docs_tokens(docs));
}

// Asks the planner for a step of the largest tree, cut as steps cut it.
static void ask_about_trees(Run* run, const char* option, const Docs* docs) {
    char err[ERR_BYTES];
    Batch* b = &run->batch;
    int64_t most = 0;
    for (int64_t doc = 0; doc < docs->n && docs_has_trees(docs); doc++)
        if (docs_squares(docs, doc) > 0) most = MAX(most, MIN(docs_length(docs, doc), run->cluster->tree_room));
    if (most == 0) return;
    tell_of_cuts(run, option, docs);
    b->training = 0, b->n_pieces = 1;
    b->pieces[0] = (Piece){.length = (int)most, .squares = (double)most * (double)most};
    if (batch_plan(b, run, 0, err)) die("%s: a tree of %lld tokens: %s", option, (long long)most, err);
    const Plan* plan = &b->planned->made.plan;  // of this rank's job, which may have no part in it
    const MicroBatch* mb = plan->micro_batches;
    if (plan->n_micro_batches && mb->ulysses_size < mb->cp_size)
        die("%s: a tree of %lld tokens is in a ring of %d ranks, which cuts it where no segment ends; try --plan flex, "
            "and no --cp",
            option, (long long)most, mb->cp_size / mb->ulysses_size);
}

void run_check_documents(Run* run) {
    const Config* c = &run->config;
    const Data* d = &run->data;
    Batch* b = &run->batch;
    struct PlanPlaces* places = b->planned->places;
    size_t room = (size_t)c->context + 1;
    if (c->probe || c->check_layout) return;  // these plan no step
    b->planned->places = NULL;                // ranks agree on none of these plans
    ask_about_trees(run, "--data", d->docs);
    if (d->val_docs) ask_about_trees(run, "--val", d->val_docs);
    char* seen = (char*)calloc(2, room);
    if (!seen) die("no memory for lengths up to %d", c->context);
    if (!c->eval && !c->overfit) sampler_mark_lengths(d->train, SPLIT_TRAIN, seen);
    if (c->eval || c->eval_every) sampler_mark_lengths(d->val, SPLIT_VAL, d->val_docs ? seen + room : seen);
    ask_planner(run, "--data", seen);
    ask_planner(run, "--val", seen + room);
    b->planned->places = places;
    free(seen);
}
