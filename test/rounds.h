// rounds.h - machines, batches and proofs for the tests of published planners that plan in rounds.
#pragma once
#include "dev/lengths.h"
#include "test/settings.h"

enum { WIDEST_RANKS = 1024, WIDEST_BATCH = 4096 };

typedef struct Cluster {
    Machine machine;
    Setting setting;
    GroupCost groups[WIDEST_RANKS + 1];
    Plan plan;
    Arena arena;
    char err[ERR_BYTES];
} Cluster;

// A machine that the program knows, `node` ranks a node.
static inline Cluster* open_cluster(const char* name, int ranks, int node) {
    Cluster* c = (Cluster*)calloc(1, sizeof *c);
    const char* text = machine_builtin(name);
    soil(&c->arena, 0x5a, 1 << 20);
    if (machine_parse(&c->machine, text, strlen(text), c->err, sizeof c->err) < 0 ||
        machine_setting(&c->setting, &c->machine, ranks, node, 196608, c->groups, c->err, sizeof c->err) < 0)
        printf("    %s\n", c->err), abort();
    return c;
}

static inline void close_cluster(Cluster* c) {
    arena_free(&c->arena);
    free(c);
}

// Other limits for the same machine.
static inline void limit_cluster(Cluster* c, int capacity, int kv_heads, CpChoice kind) {
    c->setting.limits.capacity = capacity;
    c->setting.limits.kv_heads = kv_heads;
    c->setting.kind = kind;
    cost_groups(c->groups, &c->setting.cost, &c->setting.limits, kind);
}

// What a micro-batch costs.
static inline void fix_cost(Cluster* c, double ms) {
    c->setting.cost.micro_batch = c->setting.cost.round = ms;
    cost_groups(c->groups, &c->setting.cost, &c->setting.limits, c->setting.kind);
}

// In place of its own cost one as a probe may measure it, for a limit_cluster that follows.
static inline void measure_links(Cluster* c, uint64_t seed) {
    World world;
    PlanLimits limits = {MOST_RANKS, MOST_RANKS, 1, 1, 1, 0};
    random_world(&world, &limits, seed);
    c->setting.cost = world.setting.cost;
}

static inline void draw_lengths(int* lengths, int n, const char* name, int limit, uint64_t seed, int64_t batch) {
    char err[ERR_BYTES];
    Lengths* source = lengths_open(name, limit, 1000, err, sizeof err);
    if (!source) printf("    %s\n", err), abort();
    lengths_draw(source, lengths, n, seed, batch);
    lengths_close(source);
}

// A machine with scarce room, odd heads, rings, in every other case measured links; fills up to 60 lengths.
static inline Cluster* scarce_cluster(uint64_t seed, int* lengths, int* n) {
    Cluster* c = open_cluster("a100-7b", pick(seed, 0, 1, 40), pick(seed, 1, 1, 9));
    *n = pick(seed, 2, 0, 60);
    if (seed % 2) measure_links(c, seed);
    limit_cluster(c, pick(seed, 3, 1, 600), pick(seed, 4, 1, 13), (CpChoice)(seed % 3));
    draw_lengths(lengths, *n, "wikipedia", 3000, 8, (int64_t)seed);
    return c;
}

// plan_check, and what it does not know: micro-batches of a round share no rank, rounds follow each other, cp sizes
// are powers of two on ranks that begin at their multiples.
static inline void prove_rounds(Cluster* c, const int* lengths, int n) {
    const Plan* plan = &c->plan;
    static int used[WIDEST_RANKS];
    int ok = plan_check(plan, lengths, n, &c->setting.limits, &c->arena, c->err, sizeof c->err) == 0;
    if (!ok) printf("    %s\n", c->err);
    CHECK(ok);
    for (int r = 0; r < plan->ranks; r++) used[r] = -1;
    for (int i = 0; i < plan->n_micro_batches && ok; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        int before = i > 0 ? plan->micro_batches[i - 1].round : 0;
        CHECK((mb->cp_size & (mb->cp_size - 1)) == 0 && mb->first_rank % mb->cp_size == 0);
        CHECK(mb->round >= before && mb->round <= before + 1 && (i > 0 || mb->round == 0));
        for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) {
            CHECK(used[r] != mb->round);
            used[r] = mb->round;
        }
    }
}

static inline double play_ms(Cluster* c, const PlayRule* rule, const int* lengths) {
    Timeline timeline;
    int result = timeline_play(&timeline, &c->plan, lengths, &c->setting, rule, &c->arena, c->err, sizeof c->err);
    return result == 0 ? timeline.makespan : NAN;
}
