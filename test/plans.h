// plans.h - random steps for the tests of plans: limits, lengths and memory, which is dirt, so that nothing may rely
// on it.
#pragma once
#include "test/checks.h"
#include "test/test.h"

enum { MOST_DOCS = 64, MOST_RANKS = 16 };

// Empties the arena; its next `bytes` are of this value. A sanitizer sees every part alone, and dirties it by itself.
static inline void soil(Arena* arena, int value, size_t bytes) {
    arena_reset(arena, (ArenaMark){0});
    void* all = arena_take(arena, bytes);
    if (!all) abort();
    memset(all, value, bytes);
    arena_reset(arena, (ArenaMark){0});
}

typedef struct Step {
    PlanLimits limits;
    int lengths[MOST_DOCS], n;
    Plan plan;
    Arena arena;
    char err[ERR_BYTES];
} Step;

static inline int pick(uint64_t seed, uint64_t index, int low, int high) {
    return low + (int)(random_uniform(seed, index) * (high - low + 1));
}

// Room for a plan that is written by hand, in dirty memory.
static inline void step_memory(Step* step) {
    soil(&step->arena, 0xa5, 1 << 18);
    plan_take(&step->plan, step->n, &step->arena);
}

static inline void free_step(Step* step) { arena_free(&step->arena); }

// Ragged: mostly short documents, a few long ones. In one of four steps capacity is scarce.
static inline Step random_step(uint64_t seed) {
    Step step = {.n = pick(seed, 0, 1, MOST_DOCS)};
    int longest = 1 << pick(seed, 1, 0, 12), tight = pick(seed, 2, 0, 3) == 0;
    PlanLimits* l = &step.limits;
    l->ranks = pick(seed, 3, 1, MOST_RANKS);
    l->node_size = pick(seed, 4, 1, l->ranks);
    l->kv_heads = pick(seed, 5, 1, 16);
    l->capacity = tight ? pick(seed, 6, 1, longest + 300) : pick(seed, 6, 1000, 9000);
    l->max_ring_docs = pick(seed, 7, 0, 3) ? MOST_DOCS : pick(seed, 8, 0, MOST_DOCS);
    l->quadratic = pick(seed, 9, 0, 10) / 1024.0;  // costs are exact, in whatever order a test adds them
    longest = MIN(longest + longest / 4, 5000);
    for (int i = 0; i < step.n; i++) {
        double u = random_uniform(seed, 100 + (uint64_t)i);
        step.lengths[i] = 1 + (int)(u * u * u * (longest - 1));
    }
    step_memory(&step);
    return step;
}

// Random steps one after another: for (uint64_t seed = BEFORE_FIRST; next_step(&seed, 3000);) ... step ... It stops
// where a claim has failed, and says at which seed.
#define BEFORE_FIRST UINT64_MAX
__attribute__((unused)) static Step step;

static inline int next_step(uint64_t* seed, uint64_t n) {
    if (*seed != BEFORE_FIRST && test_failures_in_claim) printf("    seed %d: %s\n", (int)*seed, step.err);
    if (*seed != BEFORE_FIRST) free_step(&step);
    if (test_failures_in_claim || ++*seed == n) return 0;
    step = random_step(*seed);
    return 1;
}

static inline int step_static(Step* step, int cp_size, CpChoice kind) {
    return plan_static(&step->plan, 7, step->lengths, step->n, &step->limits, cp_size, kind, &step->arena, step->err);
}

static inline int step_random(Step* step, uint64_t seed) {
    return plan_random(&step->plan, 7, step->lengths, step->n, &step->limits, seed, &step->arena, step->err);
}

static inline int step_check(Step* step) {
    return plan_check(&step->plan, step->lengths, step->n, &step->limits, &step->arena, step->err);
}

static inline void step_rounds(Step* step) { CHECK(plan_set_rounds(&step->plan, &step->arena, step->err) == 0); }

// Documents for all of `ranks`, which are one node.
static inline Step small_step(int ranks, int kv_heads, int capacity, int n, const int* lengths) {
    Step step = {.n = n, .limits = {ranks, ranks, capacity, kv_heads, MOST_DOCS, 0.001, NULL, NULL}};
    memcpy(step.lengths, lengths, sizeof(int) * (size_t)n);
    step_memory(&step);
    return step;
}

// The same with a plan: these micro-batches of the documents in their order.
static inline Step step_by_hand(int ranks, int kv_heads, int capacity, int n, const int* lengths, int n_micro_batches,
                                const MicroBatch* micro_batches) {
    Step step = small_step(ranks, kv_heads, capacity, n, lengths);
    step.plan.ranks = ranks, step.plan.n_docs = n, step.plan.n_micro_batches = n_micro_batches;
    memcpy(step.plan.micro_batches, micro_batches, sizeof *micro_batches * (size_t)n_micro_batches);
    for (int i = 0; i < n; i++) step.plan.docs[i] = i;
    return step;
}
#define BY_HAND(ranks, kv_heads, capacity, lengths, micro_batches) \
    step_by_hand(ranks, kv_heads, capacity, COUNT(lengths), lengths, COUNT(micro_batches), micro_batches)

// 4 ranks, 4 heads, capacity 1000: a local micro-batch on rank 0, heads on 1 and 2, a ring on 2 and 3, both on all.
static inline Step valid_step(void) {
    static const int lengths[] = {900, 100, 1200, 800, 1500, 300, 3000, 600};
    static const MicroBatch micro_batches[] = {
        {0, 1, 1, 0, 2, 0}, {1, 2, 2, 2, 2, 0}, {2, 2, 1, 4, 2, 0}, {0, 4, 2, 6, 1, 0}, {3, 1, 1, 7, 1, 0}};
    Step step = BY_HAND(4, 4, 1000, lengths, micro_batches);
    step.limits.max_ring_docs = 3;
    step_rounds(&step);
    return step;
}

// The placement of micro-batch i, to be changed; at first the usual one.
static inline Placement step_place(Step* s, int i) {
    Plan* plan = &s->plan;
    if (!plan->placed_at) {
        plan->placed_at = TAKE(&s->arena, int, plan->n_micro_batches);
        for (int k = 0; k < plan->n_micro_batches; k++) {
            plan->placed_at[k] = plan->n_placed;
            plan->n_placed += (int)placement_ints(&plan->micro_batches[k]);
        }
        plan->placed = TAKE(&s->arena, int, plan->n_placed);
        for (int k = 0; k < plan->n_micro_batches; k++) {
            Placement p = plan_placement(plan, &plan->micro_batches[k]);
            fill_usual_placement(&p, plan, &plan->micro_batches[k], s->lengths, s->limits.kv_heads);
        }
    }
    return plan_placement(plan, &plan->micro_batches[i]);
}
