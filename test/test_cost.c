// test_cost.c - claims about plan/cost/cost.h: the constants of published systems give their published times,
// collectives are the bytes of group_attention.h, and the groups that planners use are those of the header.
#include "plan/cost/cost.h"

#include "plan/cost/clock.h"
#include "plan/search/machine_asked.h"
#include "test/test.h"

enum { MOST_RANKS = 1024 };
static char err[ERR_BYTES];
static GroupCost groups[MOST_RANKS + 1];
static Machine machine;

static int pick(uint64_t seed, uint64_t i, int low, int high) {
    return low + (int)((high - low + 1) * random_uniform(seed, i));
}

static Setting published(const char* name, int ranks, int node_size) {
    Setting setting = {0};
    const char* text = machine_builtin(name);
    CHECK(text && machine_parse(&machine, text, strlen(text), err) == 0);
    CHECK(machine_setting(&setting, &machine, ranks, node_size, 196608, groups, err) == 0);
    return setting;
}

// A measured machine: bytes and then 10 and 1 GB/s behind a latency, for a model of 12 layers of 768 channels in bf16,
// 256 of keys.
static Cost measured(void) {
    Cost cost = {.name = "measured", .quadratic = 1e-6, .per_token = 0.01, .micro_batch = 0.2, .link_scale = 1};
    cost.link[LINK_INSIDE] = (LinkTable){3, {1e3, 1e6, 1e8}, {0.01, 0.11, 10.01}};
    cost.link[LINK_ACROSS] = (LinkTable){3, {1e3, 1e6, 1e8}, {0.05, 1.05, 100.05}};
    cost.layers = 12, cost.channels = 768, cost.kv_channels = 256, cost.elem_bytes = 2;
    return cost;
}

static PlanLimits limits_of(int ranks, int node_size, int capacity, int kv_heads) {
    return (PlanLimits){
        .ranks = ranks, .node_size = node_size, .capacity = capacity, .kv_heads = kv_heads, .max_ring_docs = 1000};
}

// ---- published times

// FlexSP's are printed to 0.01 ms: half of that, and what the decimals of GB/s times 1.048576 leave (1e-9).
CLAIM(documents_take_what_published_models_say) {
    static const struct {
        const char* name;
        int count, s, cp_size;
        double ms, communication;  // -1: not said
    } golden[] = {
        {"flexsp-7b", 1, 4096, 1, 1468.88, 0},           {"flexsp-7b", 1, 4096, 8, 744.91, 10.61},
        {"flexsp-7b", 4, 8192, 8, 1639.80, 84.89},       {"flexsp-7b", 1, 16384, 8, 1220.62, 42.45},
        {"flexsp-7b", 1, 196608, 32, 10022.70, 2068.69}, {"flexsp-7b", 1, 393216, 64, 16671.62, 2523.20},
        {"a100-7b", 1, 8192, 16, 219.639, -1},           {"h200-8b", 1, 65536, 8, 1834.686, -1},
    };
    for (int i = 0; i < COUNT(golden); i++) {
        published(golden[i].name, 64, 8);
        double s = golden[i].s, tokens = golden[i].count * s, tolerance = golden[i].communication < 0 ? 0.001 : 0.02;
        CostTerms t = group_terms(&groups[golden[i].cp_size], tokens * s, tokens);
        CHECK_CLOSE(terms_ms(&t), golden[i].ms, tolerance);
        if (golden[i].communication >= 0) CHECK_CLOSE(t.communication, golden[i].communication, 0.01);
    }
}

CLAIM(a_cp_size_between_two_counts_as_the_larger) {
    Setting setting = published("a100-7b", 256, 8);
    static const struct {
        int cp_size;
        double gbps;
    } ladder[] = {{2, 119.66}, {3, 104.22}, {4, 104.22}, {5, 96.5},  {8, 96.5},  {9, 10.33},
                  {16, 10.33}, {17, 5.94},  {33, 4.87},  {64, 4.87}, {65, 4.87}, {256, 4.87}};
    CHECK(groups[1].link_linear == 0);
    for (int i = 0; i < COUNT(ladder); i++) {
        int d = ladder[i].cp_size, heads = setting.limits.kv_heads;  // so many that they divide, nearly
        double uneven = (double)CEIL_DIV(heads, d) * d / heads;
        double expected = uneven * setting.cost.token_bytes / (d * ladder[i].gbps * 1e6);
        CHECK_CLOSE(groups[ladder[i].cp_size].link_linear, expected, 1e-12 * expected);
    }
}

// B = 2^21 bytes a token: 2 ways, 32 layers of 4096 channels of 4 matrices of 2 bytes. So keys and values of one way
// are B / 4, their fp32 gradients B / 2.
CLAIM(a_ring_of_a_published_machine_takes_what_it_sends_where_it_lies) {
    Setting setting = published("a100-7b", 64, 8);
    double B = 2097152, inside = 119.66e6, between = 10.33e6;  // bytes a ms, of 2 ranks, and of 9 to 16
    GroupCost ring = cost_group(&setting.cost, &setting.limits, 0, 3, 1);
    CHECK_CLOSE(ring.link_linear, (4 * B / 4 + 3 * B / 2) / 3 / inside, 1e-12);
    ring = cost_group(&setting.cost, &setting.limits, 6, 3, 1);
    CHECK_CLOSE(ring.link_linear, (4 * B / 4 + 3 * B / 2) / 3 / between, 1e-12);
    GroupCost heads = cost_group(&setting.cost, &setting.limits, 6, 4, 4);
    CHECK_CLOSE(heads.link_linear, B / 4 / between, 1e-12);
    GroupCost both = cost_group(&setting.cost, &setting.limits, 0, 16, 8);
    CHECK_CLOSE(both.link_linear, B / 16 / 96.5e6 + (2 * B / 4 + 2 * B / 2) / 16 / between, 1e-12);
    // Nodes of 2 are as far apart as those of 8 where it was measured.
    setting.limits.node_size = 2;
    GroupCost two_nodes = cost_group(&setting.cost, &setting.limits, 0, 4, 4);
    CHECK_CLOSE(two_nodes.link_linear, B / 4 / between, 1e-12);
    CHECK(message_ms(&setting.cost, 2, 1, 2, 1000) == message_ms(&setting.cost, 2, 1, 8, 1000));
    setting.limits.node_size = 8;
    setting.cost.channels = 4096, setting.cost.kv_channels = 1024, setting.cost.elem_bytes = 4;  // keys are B / 10
    ring = cost_group(&setting.cost, &setting.limits, 0, 3, 1);
    CHECK_CLOSE(ring.link_linear, (4 * B / 10 + 3 * B / 10) / 3 / inside, 1e-12);
    setting.cost.tensor_ranks = 2, setting.cost.tensor_exchanges = 8.5, setting.cost.tensor_bytes = 1e6;
    GroupCost alone = cost_group(&setting.cost, &setting.limits, 5, 1, 1);
    CHECK_CLOSE(alone.link_linear, 8.5 * 1e6 / 2 / inside, 1e-12);  // a half goes to the other rank
}

// 64 ranks of 8 nodes: 7/8 of S inside a node at the speed of 8 ranks; between nodes an eighth of S for each rank, 7/8
// of which goes to other nodes, at the speed of 64.
CLAIM(sums_travel_node_first) {
    Setting setting = published("a100-7b", 64, 8);
    const Cost* cost = &setting.cost;
    double S = 1e9, inside = S * 7 / 8 / 96.5e6, between = S / 8 * 7 / 8 / 4.87e6;
    CHECK_CLOSE(collective_ms(cost, 8, 1, 8, S), inside, 1e-9);
    CHECK_CLOSE(collective_ms(cost, 64, 8, 8, S), between, 1e-9);
    CHECK_CLOSE(collective_ms(cost, 16, 2, 8, S), inside, 1e-9);  // the longer: S / 16 / 10.33e6 between nodes
    CHECK_CLOSE(collective_ms(cost, 8, 8, 8, S), S * 7 / 8 / 10.33e6, 1e-9);       // a rank of each node
    CHECK_CLOSE(collective_ms(cost, 10, 3, 8, S), S / 4 * 2 / 3 / 10.33e6, 1e-9);  // at most 4 of a node
    CHECK(collective_ms(cost, 1, 1, 8, S) == 0 && collective_ms(cost, 2, 8, 8, S) == collective_ms(cost, 2, 2, 8, S));
}

static LinkTable table(double shortest_ms, double gbps) {
    return (LinkTable){.n = 2, .bytes = {1024, 1e9}, .ms = {shortest_ms, shortest_ms + 1e3 / gbps}};
}

// The longer of both and the shortest message of the other; what was measured is taken as it is.
CLAIM(sums_over_measured_links_have_a_latency_of_each) {
    Cost cost = {.link_scale = 1, .link = {table(0.02, 100), table(0.05, 10)}};
    double S = 4e8, inside = link_ms(&cost.link[LINK_INSIDE], S * 3 / 4),
           between = link_ms(&cost.link[LINK_ACROSS], S / 4 / 2);
    CHECK_CLOSE(collective_ms(&cost, 8, 2, 4, S), between + 0.02, 1e-9);
    cost.link[LINK_ACROSS] = table(0.05, 1000);
    CHECK_CLOSE(collective_ms(&cost, 8, 2, 4, S), inside + 0.05, 1e-9);
    cost.sum[LINK_INSIDE] = table(0.5, 50);
    CHECK_CLOSE(collective_ms(&cost, 4, 1, 4, S), link_ms(&cost.sum[LINK_INSIDE], S * 3 / 4), 1e-9);
    cost.sum[LINK_ACROSS] = table(0.7, 5);
    CHECK_CLOSE(collective_ms(&cost, 8, 2, 4, S), link_ms(&cost.sum[LINK_ACROSS], S / 8), 1e-9);
}

// FlexSP's authors measured what a round takes on 64 A100: two gathers of the weights in bf16 and one sum, with ZeRO-3.
// Their links and the layers of their models (12 width^2 parameters a layer) say it within a half.
CLAIM(sums_say_what_a_published_round_takes) {
    static const struct {
        const char* name;
        double layers, width;
    } models[] = {{"flexsp-7b", 32, 4096}, {"flexsp-13b", 40, 5120}, {"flexsp-30b", 60, 6656}};
    for (int i = 0; i < COUNT(models); i++) {
        Setting setting = published(models[i].name, 64, 8);
        double bytes = 2 * models[i].layers * 12 * models[i].width * models[i].width;
        double ms = 3 * collective_ms(&setting.cost, 64, 8, 8, bytes);
        printf("    %s: %.0f ms, measured %.0f\n", models[i].name, ms, setting.cost.round);
        CHECK(ms > setting.cost.round / 1.5 && ms < setting.cost.round * 1.5);
    }
}

// Ranks times time: what a document costs the machine.
CLAIM(wider_groups_never_do_more_with_their_ranks) {
    static const char* const names[] = {"a100-7b", "h200-8b", "flexsp-7b", "flexsp-13b", "flexsp-30b"};
    for (int m = 0; m < COUNT(names); m++) {
        published(names[m], MOST_RANKS, 8);
        // Where heads do not divide, the rank with most of them has up to 1 + d / K of the mean: with heads 0 that is
        // below the tolerance, with 64 heads only powers of two are compared.
        double K = machine_heads(&machine), tolerance = MOST_RANKS / K;
        int powers = machine.heads == 64;
        if (powers) tolerance = 1e-12;
        for (double s = 100; s < 300000; s *= 1.7)
            for (int d = 1, next; next = powers ? 2 * d : d + 1, next <= MOST_RANKS; d = next) {
                double narrow = d * group_ms(&groups[d], s * s, s), wide = next * group_ms(&groups[next], s * s, s);
                CHECK(wide >= narrow * (1 - tolerance));
            }
    }
}

// ---- links

// Every number of points, against a walk along the table.
CLAIM(links_of_any_number_of_points_agree_with_a_walk) {
    FOR_SEEDS(seed, 0, 2000) {
        LinkTable link = {.n = 2 + (int)(seed % (LINK_POINTS - 1))};
        for (int i = 0; i < link.n; i++) {
            link.bytes[i] = (i ? link.bytes[i - 1] : 0) + 1 + 1000 * random_uniform(seed, (uint64_t)i);
            link.ms[i] = (i ? link.ms[i - 1] : 0) + random_uniform(~seed, (uint64_t)i);
        }
        double bytes = 1.3 * link.bytes[link.n - 1] * random_uniform(seed, 999), expected = link.ms[0];
        int k = 0;
        while (k < link.n - 2 && link.bytes[k + 1] < bytes) k++;
        if (bytes > link.bytes[0])
            expected += link.ms[k] - link.ms[0] +
                        (bytes - link.bytes[k]) * (link.ms[k + 1] - link.ms[k]) / (link.bytes[k + 1] - link.bytes[k]);
        double found = link_ms(&link, bytes);
        CHECK_CLOSE(found, expected, 1e-12 * LINK_POINTS * 1000);
    }
}

// ---- collectives

// Bytes that a rank sends in a layer, both ways, when all collectives are played.
static double layer_bytes(const GroupCost* g, double tokens, int layers, double* gradients) {
    double bytes = 0;
    *gradients = 0;
    for (int i = 0; i < g->n_communications; i++)
        bytes += g->communications[i].count * g->communications[i].bytes_per_token * tokens;
    if (g->ulysses_size < g->cp_size)  // the last ones are the fp32 gradients
        *gradients = g->communications[g->n_communications - 1].count *
                     g->communications[g->n_communications - 1].bytes_per_token * tokens;
    *gradients /= layers;
    return bytes / layers;
}

// The formulas in the header of group attention, which its tests hold against Comm.sent; tokens and heads divide.
static void check_communications(int g) {
    Cost cost = measured();
    int NKV = 12, HS = 64, e = 2;
    static const int cases[][2] = {{2, 2},  {4, 4}, {12, 12}, {2, 1}, {3, 1},
                                   {16, 1}, {4, 2}, {24, 12}, {6, 3}, {48, 6}};  // cp size, ulysses_size
    PlanLimits limits = limits_of(64, 8, 4096, NKV);
    cost.channels = g * NKV * HS, cost.kv_channels = NKV * HS;
    for (int i = 0; i < COUNT(cases); i++) {
        int d = cases[i][0], ulysses_size = cases[i][1], ring_size = d / ulysses_size, H = NKV / ulysses_size;
        double total = 4096 * d, n_a = total / ring_size, n = total / d, expected = 0, gradients, found_gradients;
        if (ulysses_size > 1) expected += e * HS * ((g + 2) * n * (NKV - H) + g * (n_a - n) * H);  // forward
        if (ulysses_size > 1) expected += e * HS * (g * n * (NKV - H) + (g + 2) * (n_a - n) * H);
        gradients = ring_size > 1 ? ring_size * 4.0 * HS * 2 * n_a * H : 0;
        expected += 2 * (ring_size - 1) * (e * HS * 2.0 * n_a * H) + gradients;
        GroupCost group = cost_group(&cost, &limits, 0, d, ulysses_size);
        CHECK_CLOSE(layer_bytes(&group, total, cost.layers, &found_gradients), expected, 1e-12 * expected);
        CHECK_CLOSE(found_gradients, gradients, 1e-12 * expected);
        CHECK(group.ulysses_size == ulysses_size && group.cp_size == d &&
              group.n_communications == (ulysses_size > 1) * 2 + (ring_size > 1) * 2);
    }
}

CLAIM(communications_are_the_bytes_that_group_attention_sends) {
    check_communications(1);
    check_communications(4);
}

CLAIM(communications_take_the_link_between_their_ranks) {
    Cost cost = measured();
    FOR_SEEDS(seed, 0, 20000) {
        int node = 1 + (int)(hash64(3 * seed) % 9), ulysses_size = 1 + (int)(hash64(3 * seed + 1) % 6);
        int ring_size = 1 + (int)(hash64(3 * seed + 2) % 6), first = (int)(hash64(~seed) % 20), heads_across = 0;
        PlanLimits limits = limits_of(64, node, 4096, 12);
        GroupCost g = cost_group(&cost, &limits, first, ulysses_size * ring_size, ulysses_size);
        for (int a = 0; a < ring_size; a++)
            for (int b = 0; b < ulysses_size; b++)
                heads_across |= (first + a * ulysses_size) / node != (first + a * ulysses_size + b) / node;
        int across = first / node != (first + ulysses_size * ring_size - 1) / node, at = 0;
        CHECK(g.across == across);
        for (; ulysses_size > 1 && at < 2; at++) CHECK(g.communications[at].link == &cost.link[heads_across]);
        for (int end = at + 2; ring_size > 1 && at < end; at++) CHECK(g.communications[at].link == &cost.link[across]);
        CHECK(g.n_communications == at);
    }
}

CLAIM(a_group_takes_the_sum_of_its_communications) {
    Cost cost = measured();
    PlanLimits limits = limits_of(16, 8, 4096, 12);
    GroupCost g = cost_group(&cost, &limits, 0, 16, 4);
    // 4 ranks share heads inside, 4 places around a ring across; 10000 tokens: bytes of each message, their times.
    double channel = 2.0 / 16 * 3 / 4 * 1e4, kv = 2.0 * 256 / 4 / 4 * 1e4, ms = 0;
    ms += 24 * link_ms(&cost.link[LINK_INSIDE], channel * (768 + 2 * 256));
    ms += 24 * link_ms(&cost.link[LINK_INSIDE], channel * 768);
    ms += 24 * 3 * link_ms(&cost.link[LINK_ACROSS], 2 * kv) + 12 * 4 * link_ms(&cost.link[LINK_ACROSS], 4 * kv);
    CHECK_CLOSE(link_sum_ms(&g, 1e4), ms, 1e-12 * ms);
    double compute = (1e-6 * 1e8 + 0.01 * 1e4) / 16;
    CHECK_CLOSE(group_ms(&g, 1e8, 1e4), compute + ms, 1e-12 * (compute + ms));
    cost.link_scale = 0.25;
    g = cost_group(&cost, &limits, 0, 16, 4);
    CHECK_CLOSE(group_ms(&g, 1e8, 1e4), compute + ms / 4, 1e-12 * (compute + ms));
    CHECK(g.micro_batch == 0.2 && g.room == ring_rank_capacity(&limits, 4));
    cost = measured(), cost.n_groups = 1, cost.group_cp_size[0] = 2, cost.group_gbps[0] = 10, cost.token_bytes = 1e6;
    GroupCost whole = cost_group(&cost, &limits, 0, 16, 4);
    cost.link_scale = 0.25;
    g = cost_group(&cost, &limits, 0, 16, 4);
    CHECK(whole.n_communications == 0 && whole.link_linear > 0 && g.link_linear == 0.25 * whole.link_linear);
}

// ---- what hides, against the engine's order of events (group_attention.c), a direction in all layers at once

// Heads there and back in P parts, of `there` and `back` ms, around `attention` ms, which follow `local` ms of others:
// when the last part is back. Messages queue.
static double parts_end(int P, double there, double back, double attention, double local) {
    double now = local, link = there;
    for (int p = 0; p < P; p++) {
        now = fmax(now, there * (p + 1) / P) + attention / P;
        link = fmax(link, now) + back / P;
    }
    return link;
}

// A ring: keys go while a block is computed, gradients of the block before with them. The first keys go before `local`.
static double ring_end(int R, double hop, double gradient, double attention, double local) {
    double now = 0, link = 0, gradients = 0;
    for (int t = 0; t < R; t++) {
        double keys = 0;
        if (t + 1 < R) keys = link = fmax(link, now) + hop;
        now += (t == 0 ? local : 0) + attention / R;
        now = fmax(now, fmax(keys, gradients));
        gradients = link = fmax(link, now) + gradient;
    }
    return fmax(now, gradients);
}

static double forward_and_backward_end(const GroupCost* g, double attention, double local) {
    double all = g->link_linear, first[2] = {g->first[0].linear, g->first[1].linear}, end = 0;
    int R = g->cp_size / g->ulysses_size;
    for (int k = 0; k < 2; k++) {
        double own = attention * (k + 1) / 3, others = local * (k + 1) / 3, hop = g->hop[0].linear;
        double gradient = k ? g->hop[1].linear : 0;
        if (g->ulysses_size == 1) end += ring_end(R, hop, gradient, own, others);
        else if (R == 1) end += parts_end(g->parts, first[k], first[1 - k], own, others);
        else end += parts_end(g->parts, first[k], first[1 - k], ring_end(R, hop, gradient, own, 0), others);
    }
    CHECK(all > 0);
    return end;
}

// Exchanges take twice as long beside computing here: 4 ms of it put off the first by 2 ms. The second begins behind it
// with nothing beside it, and is put off by no more than that.
CLAIM(what_is_computed_puts_off_messages_under_way_once) {
    RankClock c = {.slow_computing = 1, .slow_exchange = 2, .overlap = 1};
    ClockMessage first = clock_begin(&c, 0, LINK_INSIDE, 10, 0);
    clock_compute(&c, 0, 4);
    ClockMessage second = clock_begin(&c, 0, LINK_INSIDE, 10, 0);
    clock_wait(&c, 0, first);
    CHECK_CLOSE(c.now, 12, 1e-12);
    clock_wait(&c, 0, second);
    CHECK_CLOSE(c.now, 22, 1e-12);
}

CLAIM(a_group_hides_what_the_engine_hides) {
    int hides = 0, all = 0;
    FOR_SEEDS(seed, 0, 4000) {
        int u = pick(seed, 0, 0, 2) ? pick(seed, 1, 1, 8) : 1, R = pick(seed, 2, 0, 1) ? pick(seed, 3, 1, 6) : 1;
        Cost cost = {.link_scale = 1, .token_bytes = 1e6, .n_groups = 2, .group_cp_size = {4, 8}, .parts = 4};
        PlanLimits limits = limits_of(u * R, pick(seed, 4, 2, 8), 4096, 8 * u);
        if (u * R == 1) continue;
        cost.parts = pick(seed, 5, 1, 4);
        cost.group_gbps[0] = 1 + random_uniform(seed, 6), cost.group_gbps[1] = random_uniform(seed, 7);
        GroupCost g = cost_group(&cost, &limits, 0, u * R, u);
        double scale = g.link_linear * (pick(seed, 10, 0, 1) ? 0.3 : 3), a = scale * random_uniform(seed, 8), left[2];
        double l = pick(seed, 11, 0, 1) ? scale * random_uniform(seed, 9) : 0;
        double hidden = group_hidden_ms(left, &g, a, 1, NULL);
        double others = fmin(l / 3, left[0]) + fmin(2 * l / 3, left[1]), end = forward_and_backward_end(&g, a, l);
        // Above two parts, and with rings beside local documents, the last message of a part may hide a little less or
        // more than is said; with two it is exact.
        int is_exact = g.parts <= 2 || l == 0;
        CHECK_CLOSE(a + l + g.link_linear - hidden - others, end, (is_exact ? 1e-12 : 0.1) * end);
        // Of heads and rings together heads also travel while the ring waits.
        CHECK(hidden >= 0 && left[0] >= 0 && left[1] >= 0 && ((u > 1 && R > 1) || hidden <= a * (1 + 1e-12)));
        // However long its own attention, and that of others.
        double most = group_hidden_ms(left, &g, 1e9, 1, NULL);
        CHECK_CLOSE(g.shown_linear[HIDING_OWN], g.link_linear - most, 1e-9 * g.link_linear);
        CHECK_CLOSE(g.shown_linear[HIDING_ANY], g.link_linear - most - left[0] - left[1], 1e-9 * g.link_linear);
        CHECK(g.shown_linear[HIDING_ANY] <= g.shown_linear[HIDING_OWN] * (1 + 1e-12));
        hides += hidden > 0.1 * g.link_linear, all++;
    }
    CHECK(all > 2000 && hides > 1000);
}

// Measured links: the same ms as a published machine's where times are straight lines through 0, and messages in parts.
CLAIM(parts_of_measured_messages_cost_their_latency) {
    Cost cost = measured();
    PlanLimits limits = limits_of(16, 8, 4096, 12);
    for (int p = 0; p <= 4; p++) {
        double left[2], n = 8000;
        cost.parts = p;
        GroupCost g = cost_group(&cost, &limits, 0, 4, 4);
        int P = MAX(1, MIN(p, 3));  // 12 heads on 4 ranks
        double channel = 2.0 / 4 * 3 / 4 * n / P;
        double there = link_ms(&cost.link[LINK_INSIDE], channel * (768 + 2 * 256)),
               back = link_ms(&cost.link[LINK_INSIDE], channel * 768), all = 24 * P * (there + back);
        CHECK_CLOSE(group_communication_ms(&g, n), all, 1e-12 * all);
        double hidden = group_hidden_ms(left, &g, 1e6, n, NULL);
        CHECK_CLOSE(hidden, p ? 24 * (P - 1) * (there + back) : 0, 1e-9 * all);
        CHECK_CLOSE(left[0], 12 * there, 1e-9 * all);
        CHECK_CLOSE(left[1], 12 * back, 1e-9 * all);
        double shown = 0;
        for (int i = 0; i < 2; i++) shown += g.communications[i].shown[HIDING_OWN];
        CHECK(shown == 2 * 24 && g.communications[0].shown[HIDING_ANY] == 12);
    }
}

CLAIM(the_rank_with_most_heads_sets_the_pace) {
    Cost cost = measured();
    PlanLimits limits = limits_of(16, 16, 4096, 12);
    static const int most_heads[] = {0, 12, 6, 4, 3, 3, 2, 2, 2, 2, 2, 2, 1};
    for (int d = 1; d <= 12; d++) {
        GroupCost g = cost_group(&cost, &limits, 0, d, d);
        CHECK_CLOSE(g.quadratic, cost.quadratic * most_heads[d] / 12, 1e-20);
        CHECK_CLOSE(g.per_token, cost.per_token / d, 1e-17);
    }
    GroupCost ring = cost_group(&cost, &limits, 0, 15, 5);
    CHECK_CLOSE(ring.quadratic, cost.quadratic * 3 / 12 / 3, 1e-20);
}

// ---- what planners ask

CLAIM(a_group_holds_what_its_widest_place_can_take) {
    Cost cost = measured();
    int held = 0, tried = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        int ulysses_size = 1 + (int)(hash64(2 * seed) % 12), ring_size = 1 + (int)(hash64(2 * seed + 1) % 40);
        PlanLimits limits = limits_of(1024, 8, 1 + (int)(hash64(~seed) % 3000), 12);
        GroupCost g = cost_group(&cost, &limits, 0, ulysses_size * ring_size, ulysses_size);
        int at = longest_fitting(&limits, 1 << 22, ulysses_size, ring_size);
        for (int s = MAX(at - 100, 1); s <= at + 4 * ring_size; s++) {
            int holds = widest_ring_rank(s, ring_size) <= ring_rank_capacity(&limits, ulysses_size);
            CHECK(group_holds(&g, s) == holds);
            held += holds, tried++;
        }
    }
    CHECK(held > tried / 10 && held < tried - tried / 10);  // both answers are tried
    CHECK(!group_holds(&(GroupCost){.cp_size = 3}, 1));
}

CLAIM(planners_use_machines_whole_or_parts_of_one) {
    Cost cost = measured();
    static const struct {
        int ranks, node_size;
        const char* canonical;  // a digit a cp size, from 1 on
    } cases[] = {
        {8, 8, "11111111"},  {8, 4, "11110001"},    {10, 4, "1111000101"}, {7, 100, "1111111"},
        {9, 1, "111111111"}, {10, 3, "1110010011"}, {1, 1, "1"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        PlanLimits limits = limits_of(cases[i].ranks, cases[i].node_size, 4096, 12);
        memset(groups, 0xff, sizeof groups);
        cost_groups(groups, &cost, &limits, CP_CHOICE_AUTO);
        CHECK(groups[0].ulysses_size == 0 && groups[0].cp_size == 0);
        for (int d = 1; d <= cases[i].ranks; d++) {
            CHECK(groups[d].cp_size == d && groups[d].ulysses_size >= 1);
            CHECK(groups[d].canonical == cases[i].canonical[d - 1] - '0');
            CHECK(groups[d].across == (d > cases[i].node_size));
        }
    }
}

static int is_candidate(const PlanLimits* limits, int cp_size, int ulysses_size) {
    if (cp_size % ulysses_size != 0 || ulysses_size > limits->kv_heads) return 0;
    if (ulysses_size == cp_size || ulysses_size == 1) return 1;
    for (int larger = ulysses_size + 1; larger <= limits->kv_heads; larger++)
        if (cp_size % larger == 0 && limits->node_size % larger == 0) return 0;
    return limits->node_size % ulysses_size == 0;
}

CLAIM(auto_is_the_kind_that_costs_least) {
    int chosen[4] = {0};
    for (uint64_t seed = 0; seed < 200; seed++) {
        Cost cost = measured();
        static const int nodes[] = {1, 2, 4, 6, 8, 12, 48}, heads[] = {1, 4, 12, 25, 64};
        PlanLimits limits =
            limits_of(48, nodes[seed % 7], 1 + (int)(hash64(seed) % (seed % 2 ? 20000 : 60)), heads[seed / 7 % 5]);
        cost.quadratic *= exp(10 * random_uniform(seed, 9) - 5);
        for (int k = 0; k < N_LINKS; k++)
            for (int i = 0; i < 3; i++) cost.link[k].ms[i] *= exp(4 * random_uniform(seed, (uint64_t)k));
        cost_groups(groups, &cost, &limits, CP_CHOICE_AUTO);
        for (int d = 1; d <= limits.ranks; d++) {
            double tokens = 0.5 * d * limits.capacity, least = INFINITY;
            int ulysses_sizes[GROUP_ULYSSES_SIZES], n = group_ulysses_sizes(ulysses_sizes, &limits, d);
            for (int ulysses_size = 1; ulysses_size <= d; ulysses_size++) {
                int listed = 0;
                for (int i = 0; i < n; i++) listed += ulysses_sizes[i] == ulysses_size;
                CHECK(listed == is_candidate(&limits, d, ulysses_size));
                if (!listed) continue;
                GroupCost g = cost_group(&cost, &limits, 0, d, ulysses_size);
                least = MIN(least, group_ms(&g, tokens * tokens, tokens));
            }
            CHECK(is_candidate(&limits, d, groups[d].ulysses_size));
            CHECK(group_ms(&groups[d], tokens * tokens, tokens) == least);
            chosen[cp_kind(&(MicroBatch){.cp_size = d, .ulysses_size = groups[d].ulysses_size})]++;
        }
    }
    for (int i = 0; i < 4; i++) CHECK(chosen[i] > 100);  // each is the best one now and then
}

CLAIM(heads_and_rings_can_be_asked_for) {
    Cost cost = measured();
    PlanLimits limits = limits_of(16, 8, 4096, 12);
    cost_groups(groups, &cost, &limits, CP_CHOICE_RING);
    for (int d = 1; d <= 16; d++) CHECK(groups[d].ulysses_size == 1 && groups[d].cp_size == d);
    cost_groups(groups, &cost, &limits, CP_CHOICE_ULYSSES);
    for (int d = 1; d <= 16; d++) CHECK(groups[d].ulysses_size == (d <= 12 ? d : 0) && groups[d].cp_size == d);
    CHECK(!groups[16].canonical && !group_holds(&groups[16], 1));
    CHECK(cost_group(&cost, &limits, 0, 6, 4).ulysses_size == 0 &&
          cost_group(&cost, &limits, 0, 16, 16).ulysses_size == 0);
}

CLAIM(published_groups_share_as_many_heads_as_there_are) {
    published("flexsp-7b", 256, 8);
    static const int golden[][2] = {{1, 1},  {2, 2},    {8, 8},   {63, 63},  {64, 64}, {65, 13},
                                    {67, 1}, {128, 64}, {96, 48}, {169, 13}, {256, 64}};
    for (int i = 0; i < COUNT(golden); i++) CHECK(groups[golden[i][0]].ulysses_size == golden[i][1]);
    published("a100-7b", 256, 8);
    for (int d = 1; d <= 256; d++) {
        CHECK(groups[d].ulysses_size == d);
        // ceil(K / d) is at most 1 + d / K times K / d, K the heads.
        CHECK_CLOSE((double)groups[d].room, 6451.0 * d, 6451.0 * d * d / machine_heads(&machine) + 1);
    }
}

int main(void) { return test_main(); }
