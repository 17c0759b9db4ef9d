// test_remap.c - tokens that lie elsewhere than their attention: any plan stays a plan, nodes become as even as they
// can, and what is chosen is no slower in the cost model.
#include "plan/step/remap.h"
#include "plan/step/flex.h"
#include "test/plans.h"

enum { CASES = 600 };

// What a case is drawn with: a machine without rounds' costs, links that are cheap or dear, perhaps ranks of unlike
// speed.
static void any_setting(Setting* setting, const Step* step, uint64_t seed, GroupCost* groups) {
    static double speeds[MOST_RANKS];
    for (int r = 0; r < MOST_RANKS; r++) speeds[r] = 0.3 + 0.7 * random_uniform(seed, 200 + (uint64_t)r);
    Setting s = {.limits = step->limits, .groups = groups, .context = 5000, .rounds = (int)(seed & 1)};
    double link = random_uniform(seed, 50) * 1e-4;
    s.cost.quadratic = 1e-4 * random_uniform(seed, 51), s.cost.per_token = 0.1, s.cost.link_scale = 1;
    s.cost.layers = 2, s.cost.channels = 64, s.cost.kv_channels = 32, s.cost.elem_bytes = 2;
    s.cost.link[LINK_INSIDE] = (LinkTable){2, {64, 1e6}, {0, link * 100}};
    s.cost.link[LINK_ACROSS] = (LinkTable){2, {64, 1e6}, {0, link * 1000}};
    if (seed & 2) s.speeds = speeds;
    *setting = s;
    cost_groups(groups, &setting->cost, &setting->limits, CP_CHOICE_AUTO);
}

// Tokens of every rank in a round.
static void count_tokens(PassLoad* loads, Step* step, const Plan* plan, int round) {
    memset(loads, 0, sizeof(PassLoad) * MOST_RANKS);
    for (int i = 0; i < plan->n_micro_batches; i++)
        if (plan->micro_batches[i].round == round)
            CHECK(plan_add_load(loads, plan, i, step->lengths, &step->limits, &step->arena) == 0);
}

static double makespan(Step* step, Plan* plan, const Setting* s) {
    Timeline t;
    CHECK(step_play(&t, plan, step->lengths, s, &step->arena, step->err) == 0);
    return t.makespan;
}

// Pairs of attention stay where they were: only tokens move.
static void check_moved(Step* step, const Plan* before, const Plan* after, int* nodes_evened) {
    PassLoad was[MOST_RANKS], is[MOST_RANKS];
    int node = step->limits.node_size;
    for (int round = 0; round < before->n_rounds; round++) {
        count_tokens(was, step, before, round), count_tokens(is, step, after, round);
        for (int first = 0; first < step->limits.ranks; first += node) {
            int64_t all = 0, most = 0, most_before = 0;
            for (int r = first; r < MIN(first + node, step->limits.ranks); r++) {
                CHECK(was[r].pairs == is[r].pairs);
                all += is[r].tokens - was[r].tokens;
                most = MAX(most, is[r].tokens), most_before = MAX(most_before, was[r].tokens);
            }
            CHECK(all == 0 && most <= most_before);
            *nodes_evened += most < most_before;
        }
    }
}

CLAIM(every_remapped_plan_is_a_plan_with_the_same_attention_and_what_is_chosen_is_no_slower) {
    int remapped = 0, evened = 0, cases = 0, chosen = 0;
    for (uint64_t seed = BEFORE_FIRST; next_step(&seed, CASES);) {
        GroupCost groups[MOST_RANKS + 1];
        int changed = 0;
        Setting s;
        any_setting(&s, &step, seed, groups);
        if (step_random(&step, seed) == 0) {
            Plan before = step.plan, all = before;
            double ms = makespan(&step, &before, &s);
            cases++;
            CHECK(plan_remap(&all, &changed, step.lengths, &s, REMAP_YES, &step.arena, step.err) == 0);
            CHECK(plan_check(&all, step.lengths, step.n, &step.limits, &step.arena, step.err) == 0);
            check_moved(&step, &before, &all, &evened);
            remapped += changed > 0;
            CHECK(plan_remap(&step.plan, &changed, step.lengths, &s, REMAP_AUTO, &step.arena, step.err) == 0);
            CHECK(step_check(&step) == 0);
            double after = makespan(&step, &step.plan, &s);
            CHECK(changed ? after < ms : after == ms);
            chosen += changed > 0;
        }
    }
    CHECK(cases > CASES / 2 && remapped > cases / 4 && evened > 100 && chosen > 10);
    printf("    %d of %d plans are remapped, %d nodes of a round more even; %d got shorter\n", remapped, cases, evened,
           chosen);
}

// A document on each of two ranks of a node; a token costs 0.1 ms, attention `quadratic` ms a token^2.
static Step two_documents(Setting* s, GroupCost* groups, int capacity, const int* lengths, double quadratic) {
    static const MicroBatch micro_batches[] = {{0, 1, 1, 0, 1, 0}, {1, 1, 1, 1, 1, 0}};
    Step step = step_by_hand(2, 4, capacity, 2, lengths, 2, micro_batches);
    any_setting(s, &step, 1, groups);
    s->cost.quadratic = quadratic, s->no_overlap = 1;
    cost_groups(groups, &s->cost, &s->limits, CP_CHOICE_AUTO);
    step_rounds(&step);
    return step;
}

// Two ranks of a node: one attends to a long document, the other has four times as many tokens. 1000 of them move, and
// a layer's linear work is that of 2500 tokens instead of 4000. Attention stays, of 1600 ms and, where the other rank
// is waited for, 100.
CLAIM(even_tokens_take_the_time_of_the_formula) {
    static const int lengths[] = {1000, 4000};
    GroupCost groups[MOST_RANKS + 1];
    Setting s;
    int changed;
    Step step = two_documents(&s, groups, 5000, lengths, 1e-4);
    CHECK_CLOSE(makespan(&step, &step.plan, &s), 400 + 1600, 1e-9);
    CHECK(plan_remap(&step.plan, &changed, step.lengths, &s, REMAP_YES, &step.arena, step.err) == 0);
    CHECK(changed == 1);
    // 1500 tokens of 2 bytes a channel, 2 layers, both ways: queries, keys, values (128), outputs (64).
    double moved =
        4 * (link_ms(&s.cost.link[LINK_INSIDE], 1500 * 2 * 128.) + link_ms(&s.cost.link[LINK_INSIDE], 1500 * 2 * 64.));
    CHECK_CLOSE(makespan(&step, &step.plan, &s), 250 + 1600 + 100 + moved, 1e-9);
    free_step(&step);
}

// By their times a rank of half the speed would keep 1000 tokens, and the other get 2000, for which it has no room.
CLAIM(even_times_keep_to_the_capacity) {
    static const int lengths[] = {1500, 1500};
    static const double speeds[] = {0.5, 1};
    GroupCost groups[MOST_RANKS + 1];
    PassLoad loads[MOST_RANKS];
    Setting s;
    int changed;
    Step step = two_documents(&s, groups, 1800, lengths, 0);
    s.speeds = speeds;
    CHECK(plan_remap(&step.plan, &changed, step.lengths, &s, REMAP_AUTO, &step.arena, step.err) == 0);
    CHECK(changed == 1 && step_check(&step) == 0);
    count_tokens(loads, &step, &step.plan, 0);
    CHECK(loads[0].tokens == 1200 && loads[1].tokens == 1800);
    free_step(&step);
}

int main(void) { return test_main(); }
