// agree.c - all ranks have the same plan of a step, or the run ends.
#include <inttypes.h>
#include <stdlib.h>

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
