// planner.c - the planner of --plan, from the table of plan/published/published.h, and what it settles before the first
// step. static, adaptive and flex look at the cost model as it is now; Hydraulis proposes its strategies, and Zeppelin
// its zones, for the model that is known at the start, from the same numbers on every rank.
#include <stdlib.h>

#include "data/sampler_mix.h"
#include "plan/published/published.h"
#include "run/run.h"

const Planner* run_planner(const Run* run) {
    return run->clock->limits.ranks > 1 ? planner_named(run->config.plan) : NULL;
}

size_t run_planning_bytes(const Run* run, const PlanLimits* limits, int max_tokens) {
    const Planner* planner = run_planner(run);
    size_t steps = run->training ? 2 : 1;  // the one at work and the next
    if (!planner) return steps * planning_bytes(max_tokens, limits);
    return steps * planner_bytes(planner, max_tokens, limits) + planner_open_bytes(planner, limits);
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
