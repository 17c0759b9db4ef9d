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
    PlanLimits limits = {4, 2, 1000, 4, MOST_DOCS, 0.001};
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

static int is_window(const ZeppelinWindow* w, int first_rank, int cp_size, ZeppelinQueue queue) {
    return w->first_rank == first_rank && w->cp_size == cp_size && w->queue == queue;
}

CLAIM(short_documents_stay_whole) {
    static const int lengths[] = {300, 300, 200, 200, 100, 100, 100, 100};
    PlanLimits limits = {4, 2, 1000, 4, MOST_DOCS, 0};
    Partitioned p = partitioned(lengths, 8, &limits, (ZeppelinZones){301, 5000});
    CHECK(p.result == 0 && p.zones.inside == 301 && p.zones.across == 5000);
    int64_t tokens[4] = {0};
    for (int i = 0; i < 8; i++) {
        CHECK(p.windows[i].cp_size == 1 && p.windows[i].queue == QUEUE_LOCAL);
        tokens[p.windows[i].first_rank] += p.sorted[i];
    }
    for (int r = 0; r < 4; r++) CHECK(tokens[r] >= 300 && tokens[r] <= 400);
}

CLAIM(one_giant_takes_all_ranks) {
    static const int lengths[] = {80000};
    PlanLimits limits = {16, 4, 6000, 4, MOST_DOCS, 0};
    Partitioned p = partitioned(lengths, 1, &limits, (ZeppelinZones){1000, 10000});
    CHECK(p.result == 0 && is_window(&p.windows[0], 0, 16, QUEUE_ACROSS));
    limits.node_size = 16;
    p = partitioned(lengths, 1, &limits, (ZeppelinZones){1000, 10000});
    CHECK(p.result == 0 && is_window(&p.windows[0], 0, 16, QUEUE_INSIDE));
}

CLAIM(documents_get_the_windows_of_their_zones) {
    // 2 nodes of 2 ranks. 4000 + 2000 tokens across: quota 3000, so 4000 takes both and 2000 one node, which has
    // least work. There it makes the mean work of a rank, 2000^2 / 2, together with the 1000: ceil(1.6) ranks. The
    // 1000 is on the other node, alone in its zone: it takes both ranks. The short ones go where fewest tokens are.
    static const int lengths[] = {4000, 2000, 1000, 300, 200};
    PlanLimits limits = {4, 2, 3000, 4, MOST_DOCS, 0};
    Partitioned p = partitioned(lengths, 5, &limits, (ZeppelinZones){500, 1500});
    CHECK(p.result == 0 && p.zones.inside == 500 && p.zones.across == 1500);
    CHECK(is_window(&p.windows[0], 0, 4, QUEUE_ACROSS));
    CHECK(is_window(&p.windows[1], 0, 2, QUEUE_INSIDE));
    CHECK(is_window(&p.windows[2], 2, 2, QUEUE_INSIDE));
    CHECK(is_window(&p.windows[3], 2, 1, QUEUE_LOCAL));
    CHECK(is_window(&p.windows[4], 3, 1, QUEUE_LOCAL));
}

CLAIM(whole_documents_go_by_tokens_and_cut_ones_by_work) {
    PlanLimits limits = {2, 2, 3000, 4, MOST_DOCS, 0};
    // 300 | 200 + 200: least work on the second rank, fewest tokens on the first.
    Partitioned p = partitioned((int[]){300, 200, 200, 50}, 4, &limits, (ZeppelinZones){1000, 1000});
    CHECK(p.windows[0].first_rank == 0 && p.windows[1].first_rank == 1 && p.windows[2].first_rank == 1);
    CHECK(is_window(&p.windows[3], 0, 1, QUEUE_LOCAL));
    // No square is above the mean of a rank, 110000. The third 200 goes to 80000, not to 90000 that are fewer tokens.
    p = partitioned((int[]){300, 200, 200, 200, 100}, 5, &limits, (ZeppelinZones){1, 1000});
    CHECK(is_window(&p.windows[3], 1, 1, QUEUE_LOCAL) && is_window(&p.windows[4], 0, 1, QUEUE_LOCAL));
    // 1000000 / 312500 = 3.2 ranks.
    limits.ranks = limits.node_size = 4;
    p = partitioned((int[]){1000, 500}, 2, &limits, (ZeppelinZones){1, 2000});
    CHECK(is_window(&p.windows[0], 0, 4, QUEUE_INSIDE) && p.windows[1].cp_size == 1);
}

CLAIM(long_documents_take_machines_by_tokens_and_by_work) {
    PlanLimits limits = {4, 1, 1000, 4, MOST_DOCS, 0};
    // 300 of 600 tokens are 2 of 4 nodes, 90000 of 120000 tokens^2 are 3.
    Partitioned p = partitioned((int[]){300, 100, 100, 100}, 4, &limits, (ZeppelinZones){50, 50});
    CHECK(is_window(&p.windows[0], 0, 3, QUEUE_ACROSS) && is_window(&p.windows[1], 3, 1, QUEUE_LOCAL));
    // 500 of 1500 tokens are 1.3 of 4 nodes, 250000 of 1250000 tokens^2 are 0.8.
    p = partitioned((int[]){1000, 500}, 2, &limits, (ZeppelinZones){50, 50});
    CHECK(p.windows[0].cp_size == 4 && p.windows[1].cp_size == 2);
    // A third of everything is 3 of 9 nodes, never 4 by a rounding.
    limits.ranks = 9;
    for (int s = 60; s < 200; s++) {
        p = partitioned((int[]){s, s, s}, 3, &limits, (ZeppelinZones){50, 50});
        for (int i = 0; i < 3; i++) CHECK(is_window(&p.windows[i], 3 * i, 3, QUEUE_ACROSS));
    }
    // A quarter each, but a node holds 120.
    limits.ranks = 4, limits.capacity = 120;
    p = partitioned((int[]){300, 300, 300, 300}, 4, &limits, (ZeppelinZones){50, 50});
    for (int i = 0; i < 4; i++) CHECK(p.windows[i].cp_size == 3);
}

CLAIM(thresholds_fall_until_it_fits) {
    // Two ranks of one node with room for 100 tokens: three documents of 66 fit only in halves.
    static const int lengths[] = {66, 66, 66};
    PlanLimits limits = {2, 2, 100, 2, MOST_DOCS, 0};
    Partitioned p = partitioned(lengths, 3, &limits, (ZeppelinZones){1000, 1000});
    CHECK(p.result == 0 && p.zones.inside == 66);
    for (int i = 0; i < 3; i++) CHECK(is_window(&p.windows[i], 0, 2, QUEUE_INSIDE));
    // No further than they must.
    p = partitioned((int[]){66, 66, 66, 1}, 4, &limits, (ZeppelinZones){1000, 1000});
    CHECK(p.result == 0 && p.zones.inside == 66 && p.windows[2].cp_size == 2 && p.windows[3].cp_size == 1);
    // The same on two nodes of a rank each.
    limits.node_size = 1;
    p = partitioned(lengths, 3, &limits, (ZeppelinZones){1000, 1000});
    CHECK(p.result == 0 && p.zones.across == 66 && p.zones.inside <= 66);
    for (int i = 0; i < 3; i++) CHECK(is_window(&p.windows[i], 0, 2, QUEUE_ACROSS));
}

CLAIM(what_is_cut_across_takes_room) {
    // 2 nodes of 2 ranks with room for 100 tokens. 160 tokens across leave 60; 35, 35, 30 and 20 for each node
    // fill that only when all of them are cut.
    static const int lengths[] = {160, 35, 35, 35, 35, 30, 30, 20, 20};
    PlanLimits limits = {4, 2, 100, 4, MOST_DOCS, 0};
    Partitioned p = partitioned(lengths, 9, &limits, (ZeppelinZones){100, 150});
    CHECK(p.result == 0 && p.zones.across == 150 && p.zones.inside == 20);
    CHECK(is_window(&p.windows[0], 0, 4, QUEUE_ACROSS));
    for (int i = 1; i < 9; i++) CHECK(is_window(&p.windows[i], i % 2 ? 0 : 2, 2, QUEUE_INSIDE));
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
        ok &= w->queue == (first < last ? QUEUE_ACROSS : w->cp_size > 1 ? QUEUE_INSIDE : QUEUE_LOCAL);
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
            int last = (mb->first_rank + mb->cp_size - 1) / node;
            int queue = mb->first_rank / node < last ? QUEUE_ACROSS : mb->cp_size > 1 ? QUEUE_INSIDE : QUEUE_LOCAL;
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
