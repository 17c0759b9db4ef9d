// plan_once.c - forked ranks (forked.h) draw and plan a step once: the first that comes to it does, and the others read
// the plan in memory of all. With --strategies each draws, and one of each job plans.
//
// A BatchPlan has two places, by turns: before a plan is made anew in one, all ranks have agreed on the plan in the
// other, and so are through with this one.
#include "data/sampler_join.h"
#include "kernels/comm/forked.h"
#include "run/step/step.h"

typedef struct PlanPlace {
    Once once;
    int failed;
    Err why;
    Batch drawn;     // pieces and lengths, and their sums
    StepPlan made;   // but for the schedule
    int64_t tokens;  // as they were drawn
} PlanPlace;

struct PlanPlaces {
    PlanPlace of_job[2][MOST_PIPELINE_GROUPS];
};

void plan_once_open(Run* run) {
    struct PlanPlaces* places = NULL;
    if (!comm_is_forked()) return;
    if (forked_rank() == 0 && !(places = (struct PlanPlaces*)forked_take(2 * sizeof *places)))
        die("no memory for plans that ranks share");
    run_tell_all(run->model.world, &places, sizeof places);
    run->batch.planned->places = places, run->ahead.planned->places = places + 1;
}

static void* put(char** at, const void* from, size_t bytes) {
    void* to = *at;
    memcpy(to, from, bytes);
    *at += bytes;
    return to;
}

// Copies into the place what was drawn, and all that the arena holds of the plan.
static int keep(PlanPlace* place, const Batch* b, Err err) {
    const BatchPlan* x = b->planned;
    const Plan* plan = &x->made.plan;
    size_t n = (size_t)b->n_pieces, pieces = (size_t)pieces_with_parts(b->pieces, b->n_pieces),
           groups = (size_t)plan->n_micro_batches, placed = (size_t)plan->n_placed;
    size_t ints = 2 * n + groups + placed;  // lengths, documents, placements
    size_t squares = plan->squares ? n : 0;
    if (once_room(&place->once,
                  pieces * sizeof(Piece) + squares * sizeof(double) + groups * sizeof(MicroBatch) + ints * sizeof(int),
                  err))
        return -1;
    char* at = place->once.memory;
    place->drawn = *b, place->made = x->made, place->tokens = x->drawn;
    place->drawn.pieces = (Piece*)put(&at, b->pieces, pieces * sizeof(Piece));
    if (squares) place->made.plan.squares = (double*)put(&at, plan->squares, n * sizeof(double));
    place->made.plan.micro_batches = (MicroBatch*)put(&at, plan->micro_batches, groups * sizeof(MicroBatch));
    place->drawn.lengths = (int*)put(&at, b->lengths, n * sizeof(int));
    place->made.plan.docs = (int*)put(&at, plan->docs, (size_t)plan->n_docs * sizeof(int));
    if (plan->placed) place->made.plan.placed = (int*)put(&at, plan->placed, placed * sizeof(int));
    if (plan->placed) place->made.plan.placed_at = (int*)put(&at, plan->placed_at, groups * sizeof(int));
    return 0;
}

static void take_drawn(Batch* b, const Batch* drawn) {
    b->planned->own_pieces = b->pieces, b->planned->own_lengths = b->lengths;
    b->pieces = drawn->pieces, b->lengths = drawn->lengths;
    b->training = drawn->training, b->n_pieces = drawn->n_pieces;
    b->n_tokens = drawn->n_tokens, b->n_targets = drawn->n_targets, b->weight = drawn->weight,
    b->sum_s2 = drawn->sum_s2;
    b->after = drawn->after;
}

void plan_once_give_back(Batch* b) {
    BatchPlan* x = b->planned;
    if (x->own_pieces) b->pieces = x->own_pieces, b->lengths = x->own_lengths;
    x->own_pieces = NULL;
}

int plan_once(Batch* b, const Run* run, int64_t step, PlanMaker make, int draws, Err err) {
    BatchPlan* x = b->planned;
    if (!x->places) return make(b, run, step, err);
    int job = run->strategies ? strategies_job(run, x->strategy) : 0;
    PlanPlace* place = &x->places->of_job[++x->n_plans % 2][job];
    int is_first = once_begin(&place->once, x->n_plans, err);
    if (is_first < 0) return -1;
    if (is_first) {
        place->failed = make(b, run, step, place->why) || keep(place, b, place->why);
        once_end(&place->once, x->n_plans);
    }
    if (place->failed) return fail(err, "%s", place->why);
    if (draws) take_drawn(b, &place->drawn), x->drawn = place->tokens;
    x->made = place->made;
    return 0;
}
