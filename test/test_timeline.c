// test_timeline.c - the claims of plan/cost/timeline.h: by hand, and against a slow player written from its words.
#include "plan/cost/timeline.h"
#include "test/settings.h"

// It lies in an arena of one at a time.
static Timeline played(const Step* x, const Setting* setting) {
    static Arena arena;
    Timeline t = {0};
    char err[ERR_BYTES] = "";
    soil(&arena, 0xa5, 1 << 16);
    CHECK(timeline_play(&t, &x->plan, x->lengths, setting, &arena, err) == 0);
    if (err[0]) printf("    %s\n", err);
    return t;
}

static double makespan(const Step* x, const Setting* setting) { return played(x, setting).makespan; }

// ---- by hand

// a100-7b: T(8192, 2) = 997.344, T(8192, 4) = 503.989, T(1000, 1) = 189.086 ms, each rounded to a microsecond.
//   rank 0: 8192 on ranks 0 and 1, 8192 on all four
//   rank 2: 1000, 1000, 8192 on all four        rank 3: 8192 on all four, 1000
static Step hand_step(World* world) {
    static const int lengths[] = {8192, 8192, 1000, 1000, 1000};
    static const MicroBatch micro_batches[] = {
        {0, 2, 2, 0, 1, 0}, {2, 1, 1, 2, 1, 0}, {2, 1, 1, 3, 1, 1}, {0, 4, 4, 1, 1, 2}, {3, 1, 1, 4, 1, 3}};
    Step step = BY_HAND(4, 4, 8192, lengths, micro_batches);
    step.plan.n_rounds = 4;
    named_world(world, "a100-7b", 4, 4);
    return step;
}

CLAIM(a_plan_by_hand) {
    World world;
    Step step = hand_step(&world);
    Timeline t = played(&step, &world.setting);
    CHECK(t.start[0] == 0 && t.start[1] == 0);
    CHECK_CLOSE(t.end[0], 997.344, 0.001);
    CHECK_CLOSE(t.start[2], 189.086, 0.001);
    CHECK_CLOSE(t.end[2], 378.172, 0.002);
    CHECK_CLOSE(t.start[3], 997.344, 0.001);
    CHECK_CLOSE(t.end[3], 1501.333, 0.002);
    CHECK_CLOSE(t.makespan, 1690.419, 0.002);
    for (int r = 0; r < 3; r++) CHECK_CLOSE(t.rank_end[r], 1501.333, 0.002);
    CHECK(t.rank_end[3] == t.makespan);
    // Collectives of 2097152 s / (d GB/s): 71.786 ms at 119.66 GB/s, 41.211 at 104.22.
    CHECK_CLOSE(t.communication[0], 71.786, 0.001);
    CHECK_CLOSE(t.communication[3], 41.211, 0.001);
    CHECK_CLOSE(t.communication_share, (2 * 71.786 + 4 * 41.211) / (4 * 1690.419), 1e-6);
    CHECK_CLOSE(t.idle, 1 - (2 * 997.344 + 3 * 189.086 + 4 * 503.989) / (4 * 1690.419), 1e-6);
    // micro-batches 0, 3, 4 follow each other
    CHECK(t.critical_micro_batches == 3);
    CHECK_CLOSE(t.critical.quadratic, 5.128e-6 * (8192. * 8192 * (1 / 2. + 1 / 4.) + 1e6), 1e-9);
    CHECK_CLOSE(t.critical.per_token, 0.1839576 * (8192 * (1 / 2. + 1 / 4.) + 1000), 1e-9);
    CHECK_CLOSE(t.critical.communication, 71.786 + 41.211, 0.002);
    CHECK(t.critical.micro_batch == 0);
    free_step(&step);
}

// Rounds 0: micro-batches 0, 1; 1: micro-batch 2; 2: micro-batch 3; 3: micro-batch 4.
CLAIM(rounds_by_hand) {
    World world;
    Step step = hand_step(&world);
    world.setting.cost.round = 3;
    cost_groups(world.groups, &world.setting.cost, &world.setting.limits, world.setting.kind);
    world.setting.rounds = 1;
    Timeline t = played(&step, &world.setting);
    CHECK_CLOSE(t.start[2], 997.344 + 3, 0.001);
    CHECK_CLOSE(t.start[3], 1000.344 + 192.086, 0.002);
    CHECK_CLOSE(t.makespan, 997.344 + 189.086 + 503.989 + 189.086 + 4 * 3, 0.003);
    CHECK(t.critical_micro_batches == 4);
    CHECK_CLOSE(terms_ms(&t.critical), t.makespan, 1e-9);
    CHECK_CLOSE(t.critical.micro_batch, 12, 1e-12);
    CHECK_CLOSE(t.idle * 4 * t.makespan, 808.258 + 1000.344 + 6 * 192.086, 0.01);
    free_step(&step);
}

// ---- against a slow player

static double micro_batch_ms(const Plan* plan, const MicroBatch* mb, const int* lengths, const Setting* setting) {
    GroupCost g = cost_group(&setting->cost, &setting->limits, mb->first_rank, mb->cp_size, mb->ulysses_size);
    double s2 = 0, tokens = 0, speed = INFINITY, left[2];
    for (int i = mb->first_doc; i < mb->first_doc + mb->n_docs; i++) {
        double s = lengths[plan->docs[i]];
        s2 += s * s, tokens += s;
    }
    for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++)
        speed = fmin(speed, setting->speeds ? setting->speeds[r] : 1);
    CostTerms t = group_terms(&g, s2, tokens);
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
    Timeline t = played(step, setting);
    double busy = 0, communication = 0, makespan = 0, all = plan->ranks * t.makespan;
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
        CHECK_CLOSE(t.end[i], end[i], 1e-13 * end[i]);
        CHECK_CLOSE(t.start[i], ready(plan, end, i, setting->rounds), 1e-13 * end[i]);
        busy += mb->cp_size * (t.end[i] - t.start[i]);
        communication += mb->cp_size * t.communication[i];
        makespan = fmax(makespan, end[i]);
    }
    CHECK_CLOSE(t.makespan, makespan, 1e-13 * makespan);
    CHECK_CLOSE(t.idle, 1 - busy / all, 1e-12);
    CHECK_CLOSE(t.communication_share, communication / all, 1e-12);
    CHECK_CLOSE(terms_ms(&t.critical), makespan, 1e-12 * makespan);
    CHECK(t.critical_micro_batches >= 1 && t.critical_micro_batches <= plan->n_micro_batches);
}

// In one of three worlds ranks are of unlike speed: a micro-batch goes at the pace of its slowest rank, its collectives
// do not.
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
    static const int lengths[] = {1000, 1000, 1000};
    static const MicroBatch micro_batches[] = {{0, 1, 1, 0, 1, 2}, {1, 1, 1, 1, 1, 0}, {1, 1, 1, 2, 1, 0}};
    Step step = BY_HAND(2, 2, 8192, lengths, micro_batches);
    World world;
    step.plan.n_rounds = 3;
    named_world(&world, "a100-7b", 2, 2);
    world.setting.rounds = 1;
    Timeline t = played(&step, &world.setting);
    CHECK(t.start[1] == 0 && t.start[2] == 0 && t.critical_micro_batches == 2);
    for (int i = 1; i < 3; i++) CHECK_CLOSE(t.end[i], 378.171, 0.001);
    CHECK_CLOSE(t.start[0], 378.171, 0.002);
    CHECK_CLOSE(t.makespan, 567.257, 0.003);
    free_step(&step);
}

// 16000 tokens on two ranks communicate c ms, 3/8 of it posted first forward and 1/8 backward; attention of 6000 tokens
// on rank 0 takes a, a third of it forward. Rank 1 waits. By hand: linear parts of rank 0, then the longer of attention
// and exchange, attention of the long document, the rest of the communication.
CLAIM(exchanges_hide_under_the_attention_of_other_documents_in_a_pass) {
    static const int lengths[] = {16000, 6000};
    static const MicroBatch micro_batches[] = {{0, 2, 2, 0, 1, 0}, {0, 1, 1, 1, 1, 0}};
    Step step = BY_HAND(2, 2, 16000, lengths, micro_batches);
    World world;
    named_world(&world, "a100-7b", 2, 2);
    const Cost* cost = &world.setting.cost;
    double c = group_communication_ms(&world.setting.groups[2], 16000), a = cost->quadratic * 6000 * 6000;
    double linear = cost->per_token * (8000 + 6000), shared = cost->quadratic * 16000 * 16000 / 2;
    double expected = linear + fmax(a / 3, 3 * c / 8) + fmax(2 * a / 3, c / 8) + shared + c / 2;
    double one_by_one = linear + a + shared + c;
    CHECK(expected < one_by_one);
    for (int apart = 0; apart < 2; apart++) {
        step.plan.micro_batches[1].round = apart, step.plan.n_rounds = 1 + apart;
        Timeline t = played(&step, &world.setting);
        CHECK_CLOSE(t.makespan, apart ? one_by_one : expected, 1e-9 * expected);
        CHECK(t.critical_micro_batches == 1 + apart);
        CHECK_CLOSE(terms_ms(&t.critical), t.makespan, 1e-9 * expected);
        if (apart) continue;
        CHECK(t.start[0] == 0 && t.start[1] == 0 && t.end[0] == t.end[1]);
        // Rank 1 has nothing to hide under.
        double busy = t.makespan + (cost->per_token * 8000 + shared + c);
        CHECK_CLOSE(t.idle, 1 - busy / (2 * t.makespan), 1e-9);
    }
    free_step(&step);
}

// ---- shares that are not even

// 100 tokens on two ranks; a token costs 1 ms, a pair 1e-3, and sends 2e6 bytes at 1 GB/s.
static Step hundred_tokens(World* world, int ulysses_size, CpChoice kind) {
    static const int lengths[] = {100};
    MicroBatch micro_batches[] = {{0, 2, ulysses_size, 0, 1, 0}};
    *world = (World){.setting = {.limits = {2, 2, 1000, 4, 2, 0}, .groups = world->groups, .kind = kind}};
    Cost* c = &world->setting.cost;
    *c = (Cost){.per_token = 1, .quadratic = 1e-3, .link_scale = 1, .token_bytes = 2e6, .n_groups = 1};
    c->group_cp_size[0] = 2, c->group_gbps[0] = 1;
    cost_groups(world->groups, c, &world->setting.limits, kind);
    return BY_HAND(2, 4, 1000, lengths, micro_batches);
}

// Rank 0 has 25 tokens and 3 of 4 heads, rank 1 the rest. Linear 75 ms; attention 1e-3 100^2 3 / 4 = 7.5; an all-to-all
// of the published kind counts what a rank has of tokens, or of heads over all tokens: 75 on both, 150 ms. Nothing
// hides alone.
CLAIM(uneven_shares_by_hand) {
    World world;
    Step step = hundred_tokens(&world, 2, CP_CHOICE_AUTO);
    CHECK_CLOSE(makespan(&step, &world.setting), 50 + 5 + 100, 1e-9);
    Placement p = step_place(&step, 0);
    CHECK_CLOSE(makespan(&step, &world.setting), 50 + 5 + 100, 1e-9);
    p.token_border[1] = 25, p.head_border[1] = 3;
    CHECK_CLOSE(makespan(&step, &world.setting), 75 + 7.5 + 150, 1e-9);
    free_step(&step);
}

// A ring of 2 with 4 chunks of 100 tokens: all on rank 0 but the last 10 tokens, whose queries see 100^2 - 90^2 of the
// 100^2. Rank 0 computes 0.81 of the attention and has 90 tokens, whose keys and values travel, 1.8 times the usual.
CLAIM(an_uneven_ring_by_hand) {
    static const int owner[] = {0, 0, 0, 1}, border[] = {0, 30, 60, 90, 100};
    World world;
    Step step = hundred_tokens(&world, 1, CP_CHOICE_RING);
    double sent = makespan(&step, &world.setting) - 50 - 5;
    Placement p = step_place(&step, 0);
    CHECK(sent > 0 && p.n_chunks == 4);
    memcpy(p.owner, owner, sizeof owner), memcpy(p.chunk_border, border, sizeof border);
    p.token_border[1] = 90, p.token_border[3] = 10;
    CHECK_CLOSE(makespan(&step, &world.setting), 90 + 8.1 + 1.8 * sent, 1e-9);
    free_step(&step);
}

// ---- what cannot be played, and nothing to play

CLAIM(what_cannot_be_played_is_said) {
    static const struct {
        MicroBatch mb;
        const char* words;
    } cases[] = {{{0, 4, 3, 0, 1, 0}, "micro-batch 0: the cost model knows no group of 4 ranks of which 3 share heads"},
                 {{0, 4, 4, 0, 1, 1}, "micro-batch 0 is in round 1"}};
    for (int i = 0; i < COUNT(cases); i++) {
        World world;
        Timeline t;
        Step step = step_by_hand(4, 4, 1000, 1, (int[]){100}, 1, &cases[i].mb);
        named_world(&world, "a100-7b", 4, 4);
        world.setting.rounds = i;
        CHECK(timeline_play(&t, &step.plan, step.lengths, &world.setting, &step.arena, step.err) == -1);
        CHECK(strstr(step.err, cases[i].words));
        free_step(&step);
    }
}

CLAIM(without_documents_nothing_takes_time) {
    World world;
    Step step = {.plan = {.ranks = 4}};
    named_world(&world, "a100-7b", 4, 4);
    for (world.setting.rounds = 0; world.setting.rounds < 2; world.setting.rounds++) {
        Timeline t = played(&step, &world.setting);
        CHECK(t.makespan == 0 && t.idle == 0 && t.communication_share == 0 && t.rank_end[3] == 0);
        CHECK(t.critical_micro_batches == 0 && terms_ms(&t.critical) == 0);
    }
}

int main(void) { return test_main(); }
