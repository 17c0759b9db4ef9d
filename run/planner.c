// planner.c - the planner of --plan, from the table of plan/published/published.h, and what it settles before the first
// step. static, adaptive and flex look at the cost model as it is now; Hydraulis proposes its strategies, and Zeppelin
// its zones, for the model that is known at the start, from the same numbers on every rank.
#include "plan/published/published.h"
#include "run/run.h"

const Planner* run_planner(const Run* run) { return run->limits.ranks > 1 ? planner_named(run->config.plan) : NULL; }

size_t run_planning_bytes(const Run* run, int max_tokens) {
    const Planner* planner = run_planner(run);
    size_t steps = run->training ? 2 : 1;  // the one at work and the next
    if (!planner) return steps * planning_bytes(max_tokens, &run->limits);
    return steps * planner_bytes(planner, max_tokens, &run->limits) + planner_open_bytes(planner, &run->limits);
}

int run_sample_lengths(const Run* run, int* lengths) {
    int n = (int)MIN(sampler_pieces(run->data.train, SPLIT_TRAIN), (int64_t)SAMPLED_LENGTHS);
    for (int i = 0; i < n; i++) {
        SamplerPosition position = {.index = i};
        lengths[i] = sampler_train_piece(run->data.train, position).length;
    }
    return n;
}

void run_open_planner(Run* run) {
    static int sample[SAMPLED_LENGTHS];
    char err[ERR_BYTES];
    const Planner* planner = run_planner(run);
    if (!planner) return;
    run->settled =
        planner->open(&run->setting, sample, run_sample_lengths(run, sample), &run->settled_in, err, sizeof err);
    if (!run->settled) die("--plan %s: %s", planner->name, err);
}
