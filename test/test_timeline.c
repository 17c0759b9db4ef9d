// test_timeline.c - the claims of plan/cost/timeline.h: by hand, and against a slow player written from its words.
#include "plan/cost/timeline.h"
#include "test/settings.h"

typedef struct Played {
    Timeline t;
    Arena arena;
    int result;
    char err[ERR_BYTES];
} Played;

static Played played(const Plan* plan, const int* lengths, const Setting* setting) {
    Played p = {0};
    soil(&p.arena, 0xa5, 1 << 16);
    p.result = timeline_play(&p.t, plan, lengths, setting, &p.arena, p.err);
    return p;
}

static void free_played(Played* p) { arena_free(&p->arena); }

// ---- by hand

// a100-7b: T(8192, 2) = 997.344, T(8192, 4) = 503.989, T(1000, 1) = 189.086 ms, each rounded to a microsecond.
//   rank 0: 8192 on ranks 0 and 1, 8192 on all four
//   rank 2: 1000, 1000, 8192 on all four        rank 3: 8192 on all four, 1000
static const int hand_lengths[] = {8192, 8192, 1000, 1000, 1000};
static int hand_docs[] = {0, 1, 2, 3, 4};
static MicroBatch hand_micro_batches[] = {
    {0, 2, 2, 0, 1, 0}, {2, 1, 1, 2, 1, 0}, {2, 1, 1, 3, 1, 1}, {0, 4, 4, 1, 1, 2}, {3, 1, 1, 4, 1, 3}};

static Plan hand_plan(void) {
    return (Plan){.ranks = 4,
                  .n_docs = 5,
                  .n_micro_batches = 5,
                  .n_rounds = 4,
                  .docs = hand_docs,
                  .micro_batches = hand_micro_batches};
}

CLAIM(a_plan_by_hand) {
    World world;
    Plan plan = hand_plan();
    named_world(&world, "a100-7b", 4, 4);
    Played p = played(&plan, hand_lengths, &world.setting);
    Timeline* t = &p.t;
    CHECK(p.result == 0);
    CHECK(t->start[0] == 0 && t->start[1] == 0);
    CHECK_CLOSE(t->end[0], 997.344, 0.001);
    CHECK_CLOSE(t->start[2], 189.086, 0.001);
    CHECK_CLOSE(t->end[2], 378.172, 0.002);
    CHECK_CLOSE(t->start[3], 997.344, 0.001);
    CHECK_CLOSE(t->end[3], 1501.333, 0.002);
    CHECK_CLOSE(t->makespan, 1690.419, 0.002);
    for (int r = 0; r < 3; r++) CHECK_CLOSE(t->rank_end[r], 1501.333, 0.002);
    CHECK(t->rank_end[3] == t->makespan);
    // Collectives of 2097152 s / (d GB/s): 71.786 ms at 119.66 GB/s, 41.211 at 104.22.
    CHECK_CLOSE(t->communication[0], 71.786, 0.001);
    CHECK_CLOSE(t->communication[3], 41.211, 0.001);
    CHECK_CLOSE(t->communication_share, (2 * 71.786 + 4 * 41.211) / (4 * 1690.419), 1e-6);
    CHECK_CLOSE(t->idle, 1 - (2 * 997.344 + 3 * 189.086 + 4 * 503.989) / (4 * 1690.419), 1e-6);
    // micro-batches 0, 3, 4 follow each other
    CHECK(t->critical_micro_batches == 3);
    CHECK_CLOSE(t->critical.quadratic, 5.128e-6 * (8192. * 8192 * (1 / 2. + 1 / 4.) + 1e6), 1e-9);
    CHECK_CLOSE(t->critical.per_token, 0.1839576 * (8192 * (1 / 2. + 1 / 4.) + 1000), 1e-9);
    CHECK_CLOSE(t->critical.communication, 71.786 + 41.211, 0.002);
    CHECK(t->critical.micro_batch == 0);
    free_played(&p);
}

// Rounds 0: micro-batches 0, 1; 1: micro-batch 2; 2: micro-batch 3; 3: micro-batch 4.
CLAIM(rounds_by_hand) {
    World world;
    Plan plan = hand_plan();
    named_world(&world, "a100-7b", 4, 4);
    world.setting.cost.round = 3;
    cost_groups(world.groups, &world.setting.cost, &world.setting.limits, world.setting.kind);
    world.setting.rounds = 1;
    Played p = played(&plan, hand_lengths, &world.setting);
    Timeline* t = &p.t;
    CHECK(p.result == 0);
    CHECK_CLOSE(t->start[2], 997.344 + 3, 0.001);
    CHECK_CLOSE(t->start[3], 1000.344 + 192.086, 0.002);
    CHECK_CLOSE(t->makespan, 997.344 + 189.086 + 503.989 + 189.086 + 4 * 3, 0.003);
    CHECK(t->critical_micro_batches == 4);
    CHECK_CLOSE(terms_ms(&t->critical), t->makespan, 1e-9);
    CHECK_CLOSE(t->critical.micro_batch, 12, 1e-12);
    CHECK_CLOSE(t->idle * 4 * t->makespan, 808.258 + 1000.344 + 6 * 192.086, 0.01);
    free_played(&p);
}

// ---- against a slow player

static double micro_batch_ms(const Plan* plan, const MicroBatch* mb, const int* lengths, const Setting* setting) {
    GroupCost g = cost_group(&setting->cost, &setting->limits, mb->first_rank, mb->cp_size, mb->ulysses_size);
    double s2 = 0, tokens = 0, speed = INFINITY;
    for (int i = mb->first_doc; i < mb->first_doc + mb->n_docs; i++) {
        double s = lengths[plan->docs[i]];
        s2 += s * s, tokens += s;
    }
    for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++)
        speed = fmin(speed, setting->speeds ? setting->speeds[r] : 1);
    CostTerms t = group_terms(&g, s2, tokens);
    double left[2];
    t.communication = fmax(0, t.communication - group_hidden_ms(left, &g, t.quadratic / speed, tokens, NULL));
    return t.quadratic / speed + t.per_token / speed + t.communication + t.micro_batch;
}

static int share_a_rank(const MicroBatch* a, const MicroBatch* b) {
    return a->first_rank < b->first_rank + b->cp_size && b->first_rank < a->first_rank + a->cp_size;
}

// The end of the micro-batches that i waits for: those before it on its ranks, or all of earlier rounds and their
// barriers.
static double ready(const Plan* plan, const double* end, int i, int in_rounds) {
    const MicroBatch* mb = &plan->micro_batches[i];
    double ms = 0, barrier = 0;
    for (int j = 0; j < plan->n_micro_batches && in_rounds; j++)
        if (plan->micro_batches[j].round < mb->round) barrier = fmax(barrier, end[j]);
    for (int j = 0; j < i; j++)
        if (share_a_rank(&plan->micro_batches[j], mb)) ms = fmax(ms, end[j]);
    return fmax(ms, barrier);
}

static void check_played(const Step* step, const Setting* setting) {
    static double end[MOST_DOCS];
    const Plan* plan = &step->plan;
    Played p = played(plan, step->lengths, setting);
    double busy = 0, communication = 0, makespan = 0, all = plan->ranks * p.t.makespan;
    CHECK(p.result == 0);
    // Ends only grow, so as many passes as micro-batches are enough: no micro-batch waits for one behind it and itself.
    for (int i = 0; i < plan->n_micro_batches; i++) end[i] = 0;
    for (int pass = 0, moved = 1; pass <= plan->n_micro_batches && moved; pass++) {
        moved = 0;
        for (int i = 0; i < plan->n_micro_batches; i++) {
            double ms = micro_batch_ms(plan, &plan->micro_batches[i], step->lengths, setting);
            double now = ready(plan, end, i, setting->rounds) + ms;
            moved |= now > end[i];
            end[i] = now;
        }
    }
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        // A chain of up to 64 sums of a few terms in another order: 64 x 8 x 2^-53 of the end.
        CHECK_CLOSE(p.t.end[i], end[i], 1e-13 * end[i]);
        CHECK_CLOSE(p.t.start[i], ready(plan, end, i, setting->rounds), 1e-13 * end[i]);
        busy += mb->cp_size * (p.t.end[i] - p.t.start[i]);
        communication += mb->cp_size * p.t.communication[i];
        makespan = fmax(makespan, end[i]);
    }
    CHECK_CLOSE(p.t.makespan, makespan, 1e-13 * makespan);
    CHECK_CLOSE(p.t.idle, 1 - busy / all, 1e-12);
    CHECK_CLOSE(p.t.communication_share, communication / all, 1e-12);
    CHECK_CLOSE(terms_ms(&p.t.critical), makespan, 1e-12 * makespan);
    CHECK(p.t.critical_micro_batches >= 1 && p.t.critical_micro_batches <= plan->n_micro_batches);
    free_played(&p);
}

CLAIM(random_plans_as_a_slow_player_plays_them) {
    int tried = 0, rounds = 0;
    for (uint64_t seed = BEFORE_FIRST; next_world(&seed, 6000);) {
        // Half of them with any ulysses_size that a plan may have, the others with the setting's.
        int result =
            seed % 2 ? step_random(&step, seed) : scatter(&step.plan, step.lengths, step.n, &world.setting, seed);
        if (result == 0) {
            step.plan.placed_at = NULL;  // test/test_remap.c has those that are played otherwise
            step_rounds(&step);
            world.setting.rounds = pick(seed, 60, 0, 1);
            check_played(&step, &world.setting);
            tried++, rounds += world.setting.rounds;
        }
    }
    CHECK(tried > 4000 && rounds > 1500);
}

// Micro-batches of a rank in one round are one pass, and rounds need not come in the order of the list. One without
// micro-batches (the second here) takes no time.
CLAIM(rounds_may_hold_several_micro_batches_of_a_rank_in_any_order) {
    MicroBatch micro_batches[] = {{0, 1, 1, 0, 1, 2}, {1, 1, 1, 1, 1, 0}, {1, 1, 1, 2, 1, 0}};
    int docs[] = {0, 1, 2}, lengths[] = {1000, 1000, 1000};
    Plan plan = {
        .ranks = 2, .n_docs = 3, .n_micro_batches = 3, .n_rounds = 3, .docs = docs, .micro_batches = micro_batches};
    World world;
    named_world(&world, "a100-7b", 2, 2);
    world.setting.rounds = 1;
    Played p = played(&plan, lengths, &world.setting);
    CHECK(p.t.start[1] == 0);
    CHECK(p.t.start[2] == 0);
    CHECK_CLOSE(p.t.end[1], 378.171, 0.001);
    CHECK_CLOSE(p.t.end[2], 378.171, 0.001);
    CHECK_CLOSE(p.t.start[0], 378.171, 0.002);
    CHECK_CLOSE(p.t.makespan, 567.257, 0.003);
    CHECK(p.t.critical_micro_batches == 2);
    free_played(&p);
}

// 16000 tokens on two ranks communicate c ms, 3/8 of it posted first forward and 1/8 backward; attention of 6000 tokens
// on rank 0 takes a, a third of it forward. Rank 1 waits. By hand: linear parts of rank 0, then the longer of attention
// and exchange, attention of the long document, the rest of the communication.
CLAIM(exchanges_hide_under_the_attention_of_other_documents_in_a_pass) {
    MicroBatch micro_batches[] = {{0, 2, 2, 0, 1, 0}, {0, 1, 1, 1, 1, 0}};
    int docs[] = {0, 1}, lengths[] = {16000, 6000};
    Plan plan = {
        .ranks = 2, .n_docs = 2, .n_micro_batches = 2, .n_rounds = 1, .docs = docs, .micro_batches = micro_batches};
    World world;
    named_world(&world, "a100-7b", 2, 2);
    const Cost* cost = &world.setting.cost;
    double c = group_communication_ms(&world.setting.groups[2], 16000), a = cost->quadratic * 6000 * 6000;
    double linear = cost->per_token * (8000 + 6000), shared = cost->quadratic * 16000 * 16000 / 2;
    double expected = linear + fmax(a / 3, 3 * c / 8) + fmax(2 * a / 3, c / 8) + shared + c / 2;
    for (int apart = 0; apart < 2; apart++) {
        Played p = played(&plan, lengths, &world.setting);
        double one_by_one = linear + a + shared + c;
        CHECK_CLOSE(p.t.makespan, apart ? one_by_one : expected, 1e-9 * expected);
        CHECK(p.t.critical_micro_batches == 1 + apart && expected < one_by_one);
        CHECK_CLOSE(terms_ms(&p.t.critical), p.t.makespan, 1e-9 * expected);
        if (!apart) CHECK(p.t.start[0] == 0 && p.t.start[1] == 0 && p.t.end[0] == p.t.end[1]);
        // Rank 1 has nothing to hide under.
        double busy = p.t.makespan + (cost->per_token * 8000 + shared + c);
        if (!apart) CHECK_CLOSE(p.t.idle, 1 - busy / (2 * p.t.makespan), 1e-9);
        free_played(&p);
        micro_batches[1].round = 1, plan.n_rounds = 2;
    }
}

// ---- speeds

// Computing takes twice as long where one of the ranks is half as fast, collectives do not.
CLAIM(a_micro_batch_goes_at_the_pace_of_its_slowest_rank) {
    int docs[] = {0}, length = 8192;
    World world;
    named_world(&world, "a100-7b", 4, 4);
    world.setting.speeds = world.speeds;
    for (int slow = 0; slow < 4; slow++) {
        for (int r = 0; r < 4; r++) world.speeds[r] = r == slow ? 0.5 : 4;
        MicroBatch mb = {1, 2, 2, 0, 1, 0};
        Plan plan = {.ranks = 4, .n_docs = 1, .n_micro_batches = 1, .docs = docs, .micro_batches = &mb};
        Played p = played(&plan, &length, &world.setting);
        double computed = 997.344 - 71.786;
        CHECK_CLOSE(p.t.makespan, 71.786 + computed / (slow == 1 || slow == 2 ? 0.5 : 4), 0.004);
        free_played(&p);
    }
}

// ---- shares that are not even

// 100 tokens: rank 0 has 25 of them and 3 of 4 heads, rank 1 the rest. Linear 75 ms; attention 1e-3 100^2 3 / 4 = 7.5;
// an all-to-all of the published kind counts what a rank has of tokens, or of heads over all tokens: 75 on both, at 2e6
// bytes a token and 1 GB/s 150 ms. Nothing hides alone.
CLAIM(uneven_shares_by_hand) {
    int docs[] = {0}, length = 100, at = 0, placed[16];
    World world = {.setting = {.limits = {2, 2, 1000, 4, 2, 0}, .groups = world.groups}};
    MicroBatch mb = {0, 2, 2, 0, 1, 0};
    Plan plan = {.ranks = 2, .n_docs = 1, .n_micro_batches = 1, .docs = docs, .micro_batches = &mb};
    world.setting.cost = (Cost){.per_token = 1, .quadratic = 1e-3, .link_scale = 1, .token_bytes = 2e6, .n_groups = 1};
    world.setting.cost.group_cp_size[0] = 2, world.setting.cost.group_gbps[0] = 1;
    cost_groups(world.groups, &world.setting.cost, &world.setting.limits, CP_CHOICE_AUTO);
    Played even = played(&plan, &length, &world.setting);
    CHECK_CLOSE(even.t.makespan, 50 + 5 + 100, 1e-9);
    CHECK(placement_ints(&mb) <= COUNT(placed));
    plan.placed = placed, plan.placed_at = &at, plan.n_placed = COUNT(placed);
    Placement p = plan_placement(&plan, &mb);
    fill_usual_placement(&p, &plan, &mb, &length, 4);
    Played usual = played(&plan, &length, &world.setting);
    CHECK_CLOSE(usual.t.makespan, even.t.makespan, 1e-9);
    p.token_border[1] = 25, p.head_border[1] = 3;
    Played uneven = played(&plan, &length, &world.setting);
    CHECK_CLOSE(uneven.t.makespan, 75 + 7.5 + 150, 1e-9);
    free_played(&even), free_played(&usual), free_played(&uneven);
}

// A ring of 2 with 4 chunks of 100 tokens: all on rank 0 but the last 10 tokens, whose queries see 100^2 - 90^2 of the
// 100^2. Rank 0 computes 0.81 of the attention and has 90 tokens, whose keys and values travel, 1.8 times the usual.
CLAIM(an_uneven_ring_by_hand) {
    int docs[] = {0}, length = 100, at = 0, placed[32];
    World world = {.setting = {.limits = {2, 2, 1000, 4, 2, 0}, .groups = world.groups, .kind = CP_CHOICE_RING}};
    MicroBatch mb = {0, 2, 1, 0, 1, 0};
    Plan plan = {.ranks = 2, .n_docs = 1, .n_micro_batches = 1, .docs = docs, .micro_batches = &mb};
    world.setting.cost = (Cost){.per_token = 1, .quadratic = 1e-3, .link_scale = 1, .token_bytes = 2e6, .n_groups = 1};
    world.setting.cost.group_cp_size[0] = 2, world.setting.cost.group_gbps[0] = 1;
    cost_groups(world.groups, &world.setting.cost, &world.setting.limits, CP_CHOICE_RING);
    Played even = played(&plan, &length, &world.setting);
    double sent = even.t.makespan - 50 - 5;
    CHECK(sent > 0 && placement_ints(&mb) <= COUNT(placed));
    plan.placed = placed, plan.placed_at = &at, plan.n_placed = COUNT(placed);
    Placement p = plan_placement(&plan, &mb);
    fill_usual_placement(&p, &plan, &mb, &length, 4);
    CHECK(p.n_chunks == 4);
    int owner[] = {0, 0, 0, 1}, border[] = {0, 30, 60, 90, 100};
    memcpy(p.owner, owner, sizeof owner), memcpy(p.chunk_border, border, sizeof border);
    p.token_border[1] = 90, p.token_border[3] = 10;
    Played uneven = played(&plan, &length, &world.setting);
    CHECK_CLOSE(uneven.t.makespan, 90 + 8.1 + 1.8 * sent, 1e-9);
    free_played(&even), free_played(&uneven);
}

// ---- what cannot be played, and nothing to play

CLAIM(what_cannot_be_played_is_said) {
    World world;
    int docs[] = {0}, length = 100;
    MicroBatch mb = {0, 4, 3, 0, 1, 0};
    Plan plan = {.ranks = 4, .n_docs = 1, .n_micro_batches = 1, .docs = docs, .micro_batches = &mb};
    named_world(&world, "a100-7b", 4, 4);
    Played p = played(&plan, &length, &world.setting);
    CHECK(p.result == -1 && strstr(p.err, "micro-batch 0") && strstr(p.err, "4 ranks") &&
          strstr(p.err, "3 share heads"));
    free_played(&p);
    mb = (MicroBatch){0, 4, 4, 0, 1, 1};
    world.setting.rounds = 1;
    p = played(&plan, &length, &world.setting);
    CHECK(p.result == -1 && strstr(p.err, "micro-batch 0 is in round 1"));
    free_played(&p);
}

CLAIM(without_documents_nothing_takes_time) {
    World world;
    Plan plan = {.ranks = 4};
    named_world(&world, "a100-7b", 4, 4);
    for (int rounds = 0; rounds < 2; rounds++) {
        world.setting.rounds = rounds;
        Played p = played(&plan, NULL, &world.setting);
        CHECK(p.result == 0 && p.t.makespan == 0 && p.t.idle == 0 && p.t.communication_share == 0);
        CHECK(p.t.critical_micro_batches == 0 && terms_ms(&p.t.critical) == 0 && p.t.rank_end[3] == 0);
        free_played(&p);
    }
}

int main(void) { return test_main(); }
