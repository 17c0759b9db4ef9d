// clusters.h - machines, batches and proofs for the tests of published planners that plan in rounds.
#pragma once
#include "dev/lengths.h"
#include "test/settings.h"

enum { WIDEST_RANKS = 1024, WIDEST_BATCH = 4096 };

typedef struct Cluster {
    Setting setting;
    GroupCost groups[WIDEST_RANKS + 1];
    Plan plan;
    Arena arena;
    char err[ERR_BYTES];
} Cluster;

// A machine that the program knows, `node` ranks a node.
static inline Cluster* open_cluster(const char* name, int ranks, int node) {
    Cluster* c = (Cluster*)calloc(1, sizeof *c);
    soil(&c->arena, 0x5a, 1 << 20);
    named_setting(&c->setting, c->groups, name, "", ranks, node);
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

static inline void draw_lengths(int* lengths, int n, const char* name, int limit, uint64_t seed, int64_t batch) {
    char err[ERR_BYTES];
    Lengths* source = lengths_open(name, limit, 1000, err);
    if (!source) printf("    %s\n", err), abort();
    lengths_draw(source, lengths, n, seed, batch);
    lengths_close(source);
}

static inline void prove_plan(Cluster* c, const int* lengths, int n) {
    int wrong = plan_check(&c->plan, lengths, n, &c->setting.limits, &c->arena, c->err);
    if (wrong) printf("    %s\n", c->err);
    CHECK(!wrong);
}
