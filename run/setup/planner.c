// planner.c - the planner of --plan, from the table of plan/published/published.h, and what it settles before the first
// step. static, adaptive and flex look at the cost model as it is now; Hydraulis proposes its strategies, and Zeppelin
// its zones, for the model that is known at the start, from the same numbers on every rank.
#include <stdlib.h>

#include "data/sampler_facts.h"
#include "plan/published/published.h"
#include "run/run.h"
#include "run/step/batch_ranks.h"

const Planner* run_planner(const Run* run) {
    return run->clock->limits.ranks > 1 ? planner_named(run->config.plan) : NULL;
}

size_t run_planning_bytes(const Run* run, const PlanLimits* limits, int max_tokens) {
    const Planner* planner = run_planner(run);
    size_t steps = run->training ? 2 : 1;  // the one at work and the next
    if (!planner) return steps * planning_bytes(max_tokens, limits);
    return steps * planner_bytes(planner, max_tokens, limits) + planner_open_bytes(planner, limits);
}

int run_sample_lengths(const Run* run, int* lengths) {
    int n = (int)MIN(sampler_pieces(run->data.train, SPLIT_TRAIN), (int64_t)SAMPLED_LENGTHS);
    for (int i = 0; i < n; i++) {
        SamplerPosition position = {.index = i};
        lengths[i] = sampler_train_piece(run->data.train, position).length;
    }
    return n;
}

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

void run_open_planner(Run* run) {
    static int sample[SAMPLED_LENGTHS];
    char err[ERR_BYTES];
    const Planner* planner = run_planner(run);
    if (!planner) return;
    run->clock->settled =
        planner->open(&run->clock->setting, sample, run_sample_lengths(run, sample), &run->clock->settled_in, err);
    if (!run->clock->settled) die("--plan %s: %s", planner->name, err);
}
