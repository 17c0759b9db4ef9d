// slow_cluster.h - a cluster in the cost model, for the tests of speeds: ranks whose true paces are known run plan_flex
// on drawn lengths, and what they compute is measured with noise.
#pragma once
#include "plan/slow/speeds.h"
#include "plan/step/flex.h"
#include "test/checks.h"
#include "test/clusters.h"

enum { RANKS = 8, DOCS = 256, REFRESH = 10 };

// The speeds of a cluster are learnt while it runs plan_flex on drawn lengths.
typedef struct Sim {
    Setting setting, truth;  // what planners assume; what is, with the true speeds
    GroupCost groups[RANKS + 1], true_groups[RANKS + 1];
    double slowness[RANKS];                            // that is true, of computing
    double true_speeds[RANKS], planned_speeds[RANKS];  // of the next step: plans are made one step ahead
    int in_use, heeds_urgency;
    int micro_batch_slows;  // what a micro-batch costs by itself slows down, too
    double noise, factor;   // that the whole cluster is slower by than its cost model says
    Speeds speeds;
    Plan plan;
    Prediction prediction;
    int lengths[DOCS], n;
    double compute_ms[RANKS];
    int step, outlier;  // the step in which rank 1 takes 20 times as long; 0: none
    uint64_t seed;
    Lengths* source;
    Arena speeds_arena, arena;
    char err[ERR_BYTES];
} Sim;

static const LinkTable fast_link = {2, {1024, 1 << 26}, {0.02, 2}};

static inline void set_costs(Sim* x, Cost assumed, Cost actual) {
    x->setting.cost = assumed;
    x->truth = x->setting;
    x->truth.cost = actual;
    x->truth.groups = x->true_groups;
    x->truth.speeds = x->true_speeds;
    cost_groups(x->groups, &x->setting.cost, &x->setting.limits, CP_CHOICE_AUTO);
    cost_groups(x->true_groups, &x->truth.cost, &x->truth.limits, CP_CHOICE_AUTO);
}

// A token takes 10 us, attention as much as the rest at 10000 tokens, a micro-batch 1 ms.
static inline Sim* open_sim(int ranks, const char* lengths, int docs_per_rank, uint64_t seed) {
    Sim* x = (Sim*)calloc(1, sizeof *x);
    Setting* s = &x->setting;
    s->limits = (PlanLimits){ranks, ranks, 16384, 16, DOCS, 1e-4};
    s->cost = (Cost){.per_token = 0.01, .quadratic = 1e-6, .micro_batch = 1, .link_scale = 1, .layers = 12};
    s->cost.channels = s->cost.kv_channels = 1024, s->cost.elem_bytes = 2;
    s->cost.link[LINK_INSIDE] = s->cost.link[LINK_ACROSS] = fast_link;
    s->groups = x->groups;
    set_costs(x, s->cost, s->cost);
    x->n = docs_per_rank * ranks;
    x->noise = 0.05, x->factor = 1, x->seed = seed;
    for (int r = 0; r < ranks; r++) x->slowness[r] = 1;
    x->source = lengths_open(lengths, 32768, 1000, x->err);
    soil(&x->speeds_arena, 0xa5, 1 << 12);
    if (!x->source || speeds_start(&x->speeds, ranks, &x->speeds_arena)) abort();
    return x;
}

static inline void close_sim(Sim* x) {
    if (test_failures_in_claim) printf("    seed %d\n", (int)x->seed);
    lengths_close(x->source);
    arena_free(&x->speeds_arena);
    arena_free(&x->arena);
    free(x);
}

// ---- what is true

static inline int heads_of(int all, int ulysses_size, int rank) {
    int heads = 0;
    for (int h = 0; h < all; h++) heads += h >= rank * all / ulysses_size && h < (rank + 1) * all / ulysses_size;
    return heads;
}

// Tokens and heads as the kernels divide them.
static inline double true_ms(const Sim* x, int rank) {
    const Cost* c = &x->truth.cost;
    double ms = 0;
    for (int i = 0; i < x->plan.n_micro_batches; i++) {
        const MicroBatch* mb = &x->plan.micro_batches[i];
        if (rank < mb->first_rank || rank >= mb->first_rank + mb->cp_size) continue;
        Arena arena = {0};
        Placement p = micro_batch_placement(&x->plan, mb, x->lengths, x->setting.limits.kv_heads, &arena);
        Share share = micro_batch_share(&x->plan, mb, &p, rank, NULL);
        arena_free(&arena);
        double s2 = 0, heads = heads_of(x->setting.limits.kv_heads, share.ulysses_size, share.ulysses_rank);
        for (int j = 0; j < mb->n_docs; j++)
            s2 += pow(x->lengths[x->plan.docs[mb->first_doc + j]], 2) / share.ring_size;
        double work = c->quadratic * s2 * heads / x->setting.limits.kv_heads + c->per_token * share.n;
        ms += work * x->slowness[rank] + c->micro_batch * (x->micro_batch_slows ? x->slowness[rank] : 1);
    }
    return ms;
}

static inline void measure(Sim* x) {
    for (int r = 0; r < x->setting.limits.ranks; r++) {
        uint64_t at = (uint64_t)(x->step * RANKS + r);
        x->compute_ms[r] = x->factor * true_ms(x, r) * fmax(1 + x->noise * random_normal(x->seed ^ 99, at), 0.5);
        if (x->step == x->outlier && r == 1) x->compute_ms[r] *= 20;
    }
}

// The makespan of the plan at the true speeds.
static inline double play(Sim* x, const Plan* plan) {
    Timeline t;
    for (int r = 0; r < plan->ranks; r++) x->true_speeds[r] = 1 / x->slowness[r];
    ArenaMark mark = arena_mark(&x->arena);
    CHECK(timeline_play(&t, plan, x->lengths, &x->truth, &x->arena, x->err) == 0);
    arena_reset(&x->arena, mark);
    return t.makespan;
}

static inline double plan_and_play(Sim* x, const double* speeds) {
    Setting setting = x->setting;
    setting.speeds = speeds;
    soil(&x->arena, 0xa5, 1 << 20);
    int result = plan_flex(&x->plan, &x->prediction, x->step, x->lengths, x->n, &setting, &x->arena, x->err);
    CHECK(result == 0);
    if (result) printf("    %s\n", x->err);
    return play(x, &x->plan);
}

// ---- running

// While a step computes, the next one is planned: by what was learnt before.
static inline void plans_follow(Sim* x) {
    if (x->heeds_urgency && x->speeds.urgent) speeds_refresh(&x->speeds);
    x->in_use = speeds_in_use(&x->speeds) != NULL;
    memcpy(x->planned_speeds, x->speeds.speeds, sizeof(double) * (size_t)x->speeds.ranks);
}

static inline void run_step(Sim* x) {
    lengths_draw(x->source, x->lengths, x->n, x->seed, ++x->step);
    plan_and_play(x, x->in_use ? x->planned_speeds : NULL);
    plans_follow(x);
    measure(x);
    speeds_learn(&x->speeds, &x->plan, x->lengths, &x->setting, x->compute_ms);
}

// Returns how many refreshes changed something.
static inline int run_refreshes(Sim* x, int refreshes) {
    int changes = 0;
    for (int i = 0; i < refreshes; i++) {
        for (int j = 0; j < REFRESH; j++) run_step(x);
        changes += speeds_refresh(&x->speeds);
    }
    return changes;
}
