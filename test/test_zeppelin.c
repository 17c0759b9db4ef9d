// test_zeppelin.c - the claims of plan/published/zeppelin.c: formulas against worked numbers, the partition by the
// rules of its zones, and the plans that come out.
#include "plan/published/published.h"

#include <limits.h>

#include "test/settings.h"

// ---- formulas

CLAIM(routing_takes_the_times_of_its_formula) {
    static const double eight[] = {1.000, 0.600, 0.400, 0.300}, four[] = {1.000, 0.600, 0.400, 0.425};
    for (int i = 0; i < 4; i++) {
        CHECK_CLOSE(zeppelin_routed(1 << i, 8, 0.1), eight[i], 1e-12);
        CHECK_CLOSE(zeppelin_routed(1 << i, 4, 0.1), four[i], 1e-12);
    }
}

CLAIM(zones_begin_where_attention_takes_as_long_as_communications) {
    World world;
    named_world(&world, "a100-7b", 16, 8);
    double scale = zeppelin_across_scale(&world.setting);
    ZeppelinZones zones = zeppelin_zones(&world.setting, scale);
    // A byte inside takes 10.33 / 96.5 of one across. Two more proxies are worth their dispatch up to all eight.
    CHECK_CLOSE(scale, 2 * 10.33 / 96.5 * 7 / 8 + 1.0 / 8, 1e-12);
    // quadratic s^2 / d = token_bytes s / (d GB/s 1e6), rounded up to whole tokens.
    double inside = 2097152 / 96.5e6 / 5.128e-6, across = scale * 2097152 / 10.33e6 / 5.128e-6;
    CHECK(zones.inside >= inside && zones.inside < inside + 1);
    CHECK(zones.across >= across && zones.across < across + 1);

    named_world(&world, "a100-7b", 8, 8);
    CHECK(zeppelin_across_scale(&world.setting) == 1);
    CHECK(zeppelin_zones(&world.setting, 1).across == INT_MAX);
    CHECK(zeppelin_zones(&world.setting, 1).inside == zones.inside);
}

CLAIM(zones_of_measured_machines_follow_their_links) {
    World world;
    PlanLimits limits = {4, 2, 1000, 4, MOST_DOCS, 0.001, NULL, NULL};
    random_world(&world, &limits, 1);
    Setting* s = &world.setting;
    s->cost.n_groups = 0;
    s->cost.per_token = 1, s->cost.quadratic = 1e-3, s->cost.link_scale = 1;
    s->cost.layers = 3, s->cost.channels = 256, s->cost.kv_channels = 64, s->cost.elem_bytes = 2;
    // Inside, 0.5 ms a message: 3 layers, 2 hops of keys and values, 2 of their gradients make 6 ms on 2 ranks. Across,
    // 1e-4 ms a byte: 18 messages of 64 bytes a token, 12 of 128 on 4 ranks make 0.2688 ms a token.
    s->cost.link[LINK_INSIDE] = (LinkTable){.n = 1, .bytes = {1}, .ms = {0.5}};
    s->cost.link[LINK_ACROSS] = (LinkTable){.n = 2, .bytes = {1, 2}, .ms = {1e-4, 2e-4}};
    ZeppelinZones zones = zeppelin_zones(s, 1), routed = zeppelin_zones(s, 0.5);
    CHECK(zones.inside == 110);   // 1e-3 / 2 s^2 >= 6: s >= 109.5
    CHECK(zones.across == 1076);  // 1e-3 / 4 s^2 >= 0.2688 s: s >= 1075.2
    CHECK(routed.inside == 110 && routed.across == 538);
}

// ---- partition

typedef struct Partitioned {
    ZeppelinWindow windows[MOST_DOCS];
    ZeppelinZones zones;
    int documents[MOST_DOCS];
    int sorted[MOST_DOCS], result;
    char err[ERR_BYTES];
} Partitioned;

static Partitioned partitioned(const int* lengths, int n, const PlanLimits* limits, ZeppelinZones zones) {
    Partitioned p = {.zones = zones};
    sort_descending(p.sorted, lengths, n);
    for (int i = 0; i < n; i++) p.documents[i] = i;
    static Arena arena;
    soil(&arena, 0xa5, 1 << 12);
    p.result = zeppelin_partition(p.windows, &p.zones, p.documents, p.sorted, n, limits, &arena, p.err);
    return p;
}

// By hand: ranks, ranks of a node and tokens of a rank; thresholds before and after (0: not said); then documents and
// their windows.
static const struct {
    int ranks, node_size, capacity;
    ZeppelinZones zones, after;
    int n, lengths[9], windows[9][2];  // first rank, cp size
} by_hand[] = {
    // Short documents stay whole.
    {4,
     2,
     1000,
     {301, 5000},
     {301, 5000},
     8,
     {300, 300, 200, 200, 100, 100, 100, 100},
     {{0, 1}, {2, 1}, {1, 1}, {3, 1}, {1, 1}, {3, 1}, {0, 1}, {2, 1}}},
    // One giant takes all ranks.
    {16, 4, 6000, {1000, 10000}, {0, 0}, 1, {80000}, {{0, 16}}},
    {16, 16, 6000, {1000, 10000}, {0, 0}, 1, {80000}, {{0, 16}}},
    // 4000 + 2000 tokens across: quota 3000, so 4000 takes both nodes and 2000 one, which has least work. There it
    // makes the mean work of a rank, 2000^2 / 2, together with the 1000: ceil(1.6) ranks. The 1000 is on the other
    // node, alone in its zone: it takes both ranks. The short ones go where fewest tokens are.
    {4, 2, 3000, {500, 1500}, {500, 1500}, 5, {4000, 2000, 1000, 300, 200}, {{0, 4}, {0, 2}, {2, 2}, {2, 1}, {3, 1}}},
    // Whole documents go by tokens. 300 | 200 + 200: least work on the second rank, fewest tokens on the first.
    {2, 2, 3000, {1000, 1000}, {0, 0}, 4, {300, 200, 200, 50}, {{0, 1}, {1, 1}, {1, 1}, {0, 1}}},
    // Cut ones by work. No square is above the mean of a rank, 110000. The third 200 goes to 80000, not to 90000 that
    // are fewer tokens.
    {2, 2, 3000, {1, 1000}, {0, 0}, 5, {300, 200, 200, 200, 100}, {{0, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 1}}},
    // 1000000 / 312500 = 3.2 ranks.
    {4, 4, 3000, {1, 2000}, {0, 0}, 2, {1000, 500}, {{0, 4}, {0, 1}}},
    // 300 of 600 tokens are 2 of 4 nodes, 90000 of 120000 tokens^2 are 3.
    {4, 1, 1000, {50, 50}, {0, 0}, 4, {300, 100, 100, 100}, {{0, 3}, {3, 1}, {3, 1}, {3, 1}}},
    // 500 of 1500 tokens are 1.3 of 4 nodes, 250000 of 1250000 tokens^2 are 0.8.
    {4, 1, 1000, {50, 50}, {0, 0}, 2, {1000, 500}, {{0, 4}, {0, 2}}},
    // A quarter each, but a node holds 120.
    {4, 1, 120, {50, 50}, {0, 0}, 4, {300, 300, 300, 300}, {{0, 3}, {0, 3}, {0, 3}, {0, 3}}},
    // Thresholds fall until it fits, no further: three documents of 66 fit two ranks of 100 only in halves, of one node
    // or of two.
    {2, 2, 100, {1000, 1000}, {66, INT_MAX}, 3, {66, 66, 66}, {{0, 2}, {0, 2}, {0, 2}}},
    {2, 2, 100, {1000, 1000}, {66, INT_MAX}, 4, {66, 66, 66, 1}, {{0, 2}, {0, 2}, {0, 2}, {0, 1}}},
    {2, 1, 100, {1000, 1000}, {66, 66}, 3, {66, 66, 66}, {{0, 2}, {0, 2}, {0, 2}}},
    // What is cut across takes room: 160 tokens leave 60 on each node of 2 ranks of 100; 35, 35, 30 and 20 for each
    // fill that only when all of them are cut.
    {4,
     2,
     100,
     {100, 150},
     {20, 150},
     9,
     {160, 35, 35, 35, 35, 30, 30, 20, 20},
     {{0, 4}, {0, 2}, {2, 2}, {0, 2}, {2, 2}, {0, 2}, {2, 2}, {0, 2}, {2, 2}}},
};

static ZeppelinQueue queue_of(int first_rank, int cp_size, int node_size) {
    int is_across = first_rank / node_size < (first_rank + cp_size - 1) / node_size;
    return is_across ? QUEUE_ACROSS : cp_size > 1 ? QUEUE_INSIDE : QUEUE_LOCAL;
}

CLAIM(documents_get_the_windows_of_their_zones) {
    for (int i = 0; i < COUNT(by_hand); i++) {
        PlanLimits limits = {by_hand[i].ranks, by_hand[i].node_size, by_hand[i].capacity, 4, MOST_DOCS, 0, NULL, NULL};
        Partitioned p = partitioned(by_hand[i].lengths, by_hand[i].n, &limits, by_hand[i].zones);
        CHECK(p.result == 0);
        CHECK(!by_hand[i].after.inside || !memcmp(&p.zones, &by_hand[i].after, sizeof p.zones));
        for (int d = 0; d < by_hand[i].n; d++) {
            const int* window = by_hand[i].windows[d];
            CHECK(p.windows[d].first_rank == window[0] && p.windows[d].cp_size == window[1]);
            CHECK(p.windows[d].queue == queue_of(window[0], window[1], limits.node_size));
        }
        if (test_failures_in_claim) printf("    row %d\n", i);
    }
    // A third of everything is 3 of 9 nodes, never 4 by a rounding.
    PlanLimits limits = {9, 1, 1000, 4, MOST_DOCS, 0, NULL, NULL};
    for (int s = 60; s < 200; s++) {
        Partitioned p = partitioned((int[]){s, s, s}, 3, &limits, (ZeppelinZones){50, 50});
        for (int i = 0; i < 3; i++) CHECK(p.windows[i].first_rank == 3 * i && p.windows[i].cp_size == 3);
    }
}

// What a random partition must be, for lengths of any distribution.
static int partition_is_valid(const Partitioned* p, int n, const PlanLimits* l, ZeppelinZones before) {
    int ok = p->zones.inside <= p->zones.across && p->zones.inside <= before.inside;
    ok &= l->node_size >= l->ranks || p->zones.across <= before.across;
    for (int i = 0; i < n; i++) {
        const ZeppelinWindow* w = &p->windows[i];
        int s = p->sorted[i], first = w->first_rank / l->node_size, node = l->node_size;
        int last = (w->first_rank + w->cp_size - 1) / node, node_ranks = MIN(node, l->ranks);
        ok &= w->first_rank >= 0 && w->cp_size >= 1 && w->first_rank + w->cp_size <= l->ranks;
        ok &= widest_ring_rank(s, w->cp_size) <= l->capacity;
        ok &= w->queue == queue_of(w->first_rank, w->cp_size, node);
        // Shorter than a threshold: no traffic of that kind, where capacity allows.
        if (s < p->zones.inside && s <= l->capacity) ok &= w->cp_size == 1;
        if (s < p->zones.across && widest_ring_rank(s, node_ranks) <= l->capacity) ok &= first == last;
        // Across are whole nodes.
        if (first < last) ok &= w->first_rank % node == 0;
        if (first < last) ok &= (w->first_rank + w->cp_size) % node == 0 || w->first_rank + w->cp_size == l->ranks;
    }
    return ok;
}

CLAIM(partitions_follow_their_zones) {
    int fallen = 0, across = 0, inside = 0, refused = 0;
    for (uint64_t seed = BEFORE_FIRST; next_step(&seed, 4000);) {
        int s1 = pick(seed, 20, 1, 6000), total = 0;
        for (int i = 0; i < step.n; i++) total += step.lengths[i];
        // Hardly room for the step at once.
        if (seed % 2) step.limits.capacity = CEIL_DIV(total, step.limits.ranks) + pick(seed, 22, 0, 40);
        ZeppelinZones zones = {pick(seed, 21, 1, s1), s1};
        Partitioned p = partitioned(step.lengths, step.n, &step.limits, zones);
        int fits = widest_ring_rank(p.sorted[0], step.limits.ranks) <= step.limits.capacity;
        int ok = (p.result == 0) == fits;
        if (p.result == 0) ok &= partition_is_valid(&p, step.n, &step.limits, zones);
        else ok &= strstr(p.err, "document 0 ") != NULL, refused++;
        if (!ok) printf("    seed %d: %s\n", (int)seed, p.err);
        CHECK(ok);
        fallen += p.result == 0 && p.zones.inside < zones.inside;
        for (int i = 0; i < step.n && p.result == 0; i++)
            across += p.windows[i].queue == QUEUE_ACROSS, inside += p.windows[i].queue == QUEUE_INSIDE;
    }
    if (!(fallen > 100 && across > 500 && inside > 1000 && refused > 10))
        printf("    %d fallen, %d across, %d inside, %d refused\n", fallen, across, inside, refused);
    CHECK(fallen > 100 && across > 500 && inside > 1000 && refused > 10);
}

// ---- plans

static int run_zeppelin(Step* step, const Setting* setting) {
    void* planner = planner_zeppelin.open(setting, NULL, 0, &step->arena, step->err);
    if (!planner) return -2;
    return planner_zeppelin.plan(planner, &step->plan, 7, step->lengths, step->n, &step->arena, step->err);
}

// Every rank works on what is across nodes, then inside, then local; rings, unless they have all documents they may.
static int queues_in_order(const Step* step) {
    int ok = 1, node = step->limits.node_size;
    for (int r = 0; r < step->limits.ranks; r++)
        for (int i = 0, at = QUEUE_ACROSS; i < step->plan.n_micro_batches; i++) {
            const MicroBatch* mb = &step->plan.micro_batches[i];
            if (r < mb->first_rank || r >= mb->first_rank + mb->cp_size) continue;
            int queue = queue_of(mb->first_rank, mb->cp_size, node);
            ok &= queue >= at;
            ok &= mb->ulysses_size == 1 || step->limits.max_ring_docs < step->n;
            at = queue;
        }
    return ok;
}

CLAIM(plans_work_through_their_queues_in_order) {
    int heads = 0;
    for (uint64_t seed = BEFORE_FIRST; next_world(&seed, 2000);) {
        int planned = run_zeppelin(&step, &world.setting) == 0;
        CHECK(!planned || queues_in_order(&step));
        for (int i = 0; i < step.plan.n_micro_batches && planned; i++)
            heads += step.plan.micro_batches[i].ulysses_size > 1;
    }
    CHECK(heads > 10);
}

int main(void) { return test_main(); }
