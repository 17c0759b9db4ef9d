// agree.c - every document has a plan, and all ranks the same, or the run ends.
#include <inttypes.h>
#include <stdlib.h>

#include "data/sampler_mix.h"
#include "run/step/batch_ranks.h"
#include "run/strategies/strategies.h"

PlanHash run_plan_hash(const Run* run, const Batch* b) {
    uint64_t made = plan_hash(&b->planned->plan, b->lengths);
    return run->strategies ? (PlanHash){b->planned->dispatch_hash, made, 0} : (PlanHash){made, 0, 0};
}

void run_compare_plan(const Run* run, const Batch* b, int r, PlanHash theirs, PlanHash first, PlanHash mine) {
    const char* what = b->training ? "step" : "validation after step";
    if (theirs.plan != first.plan)
        die("%s %" PRId64 ": rank %d has the plan %016" PRIx64 ", rank 0 has %016" PRIx64
            ": expected the same on all ranks; is it the same program with the same data everywhere?",
            what, b->planned->plan.step, r, theirs.plan, first.plan);
    if (strategies_same_job(run, b->planned->strategy, r, run->model.world->rank) && theirs.job != mine.job)
        die("%s %" PRId64 ": rank %d has another plan of its pipelines than rank %d: expected the same", what,
            b->planned->plan.step, r, run->model.world->rank);
}

int run_agree_on_plan(Run* run, const Batch* b, int failed) {
    Comm* c = run->model.world;
    PlanHash mine = {.failed = 1}, *all;
    if (!failed) mine = run_plan_hash(run, b);
    all = (PlanHash*)run_ask_all(run, c, &mine, sizeof mine);
    for (int r = 0; r < c->size; r++) run->cluster->unplanned |= all[r].failed != 0;
    for (int r = 0; r < c->size && !run->cluster->unplanned; r++) run_compare_plan(run, b, r, all[r], all[0], mine);
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

// ---- documents that no plan can hold

// The planner is asked for steps of one document each, as every planner divides them in its own way: of the longest,
// and of those shorter by less than two tokens a rank, which may take one more of a rank where borders are rounded.
static void ask_planner(Run* run, const char* option, const char* seen) {
    static const char number[] = "document 0 of the step";
    char err[ERR_BYTES];
    Batch* b = &run->batch;
    int longest = 0, least = run->strategies ? 0 : run->clock->limits.capacity;
    b->training = 0, b->n_pieces = 1;
    for (int s = run->config.context; s > MAX(least, longest - 2 * run->model.world->size); s--) {
        if (!seen[s]) continue;
        longest = MAX(longest, s);
        b->pieces[0] = (Piece){.length = s};
        if (!batch_plan(b, run, 0, err)) continue;
        size_t said = strncmp(err, number, strlen(number)) ? 0 : strlen(number);
        die("%s: %s%s", option, said ? "a document" : "", err + said);
    }
}

void run_check_documents(Run* run) {
    const Config* c = &run->config;
    const Data* d = &run->data;
    size_t room = (size_t)c->context + 1;
    if (c->probe || c->check_layout) return;  // these plan no step
    char* seen = (char*)calloc(2, room);
    if (!seen) die("no memory for lengths up to %d", c->context);
    if (!c->eval && !c->overfit) sampler_mark_lengths(d->train, SPLIT_TRAIN, seen);
    if (c->eval || c->eval_every) sampler_mark_lengths(d->val, SPLIT_VAL, d->val_docs ? seen + room : seen);
    ask_planner(run, "--data", seen);
    ask_planner(run, "--val", seen + room);
    free(seen);
}
