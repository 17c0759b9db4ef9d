// test_capacity.c - ranks that hold unlike much: what a group holds, what every planner makes of it, and bounds.
#include "dev/bound_shares.h"
#include "plan/published/published.h"
#include "test/settings.h"

static int capacities[MOST_RANKS];

// A random step of such ranks in a random world; as next_world.
static int next_unlike(uint64_t* seed, uint64_t n) {
    if (!next_step(seed, n)) return 0;
    step.limits.max_ring_docs = MOST_DOCS;
    make_unlike(&step, capacities, *seed);
    random_world(&world, &step.limits, *seed);
    return 1;
}

// ---- what groups hold

static int least_of(const PlanLimits* l, int first, int n) {
    int least = INT_MAX;
    for (int r = first; r < first + n; r++) least = MIN(least, l->capacities[r]);
    return least;
}

CLAIM(a_group_holds_what_the_least_of_its_ranks_does_in_equal_shares) {
    int unlike = 0;
    for (uint64_t seed = BEFORE_FIRST; next_unlike(&seed, 500);) {
        const PlanLimits* l = &step.limits;
        for (int d = 1; d <= l->ranks; d++) {
            int widest = 0;
            for (int first = 0; first + d <= l->ranks; first++) {
                int least = least_of(l, first, d);
                GroupCost g = cost_group(&world.setting.cost, l, first, d, d <= l->kv_heads ? d : 1);
                widest = MAX(widest, least);
                CHECK(group_capacity(l, first, d) == least && g.capacity == least);
                // d ranks with an even share of the heads each hold d times that.
                if (d <= l->kv_heads && l->kv_heads % d == 0) CHECK(g.room == (int64_t)d * least);
            }
            CHECK(widest_capacity(l, d) == widest && world.setting.groups[d].capacity == widest);
            unlike += widest > least_of(l, 0, d);
        }
    }
    CHECK(unlike > 500);
}

// ---- planners

// Whether the planner has a plan; it is proved.
static int plans(const Planner* planner, const Setting* setting) {
    static Arena opened;
    arena_reset(&opened, (ArenaMark){0});
    soil(&step.arena, 0xa5, 1 << 16);
    void* state = planner->open(setting, step.lengths, step.n, &opened, step.err);
    if (!state || planner->plan(state, &step.plan, 7, step.lengths, step.n, &step.arena, step.err) < 0) return 0;
    if (step.plan.n_rounds == 0) step_rounds(&step);
    CHECK(step_check(&step) == 0);
    return 1;
}

// Planners that know one capacity plan as if all ranks held the least; the others plan at least where that has a plan.
// No plan, of theirs or at random, ends before a bound of what each rank holds, which some would of the least.
CLAIM(planners_keep_to_what_each_rank_holds_and_no_plan_ends_before_a_bound) {
    int planned[16] = {0}, alone[16] = {0}, close = 0, roomy = 0;
    for (uint64_t seed = BEFORE_FIRST; next_unlike(&seed, 800);) {
        static Arena arena;
        int sorted[MOST_DOCS], has_bounds;
        double l4 = 0, least = INFINITY;
        Bounds b = {0}, of_least;
        Setting alike = world.setting;
        GroupCost groups[MOST_RANKS + 1];
        alike.limits = limits_at(&step.limits, step.limits.capacity), alike.groups = groups;
        world.setting.rounds = alike.rounds = seed % 4 == 0;
        world.setting.context = alike.context = longest_of(&step);
        cost_groups(groups, &alike.cost, &alike.limits, alike.kind);
        sort_descending(sorted, step.lengths, step.n);
        soil(&arena, 0xa5, 1 << 16);
        if ((has_bounds = is_held(&world.setting, sorted[0], 0))) {
            CHECK(bounds_of(&b, sorted, step.n, &world.setting, &arena, NULL) == 0);
            CHECK(bound_of_shares(&l4, sorted, step.n, &world.setting, &arena, NULL) == 0);
        }
        for (int i = 0; i < n_planners; i++) {
            int knows_one =
                planners[i] != &planner_flex && planners[i] != &planner_adaptive && planners[i] != &planner_static;
            int has_alike = plans(planners[i], &alike), has = plans(planners[i], &world.setting);
            CHECK(knows_one ? has == has_alike : has || !has_alike);
            planned[i] += has, alone[i] += has && !has_alike;
            // Groups of any size may share heads in ways that L3 does not speak of: Zeppelin's rings do.
            int may_beat = planners[i] == &planner_zeppelin && world.setting.kind != CP_CHOICE_AUTO;
            double ms = has ? plan_ms(&step.plan, step.lengths, &world.setting) : INFINITY;
            CHECK(ms >= l4 && (ms >= b.beside || may_beat));
            least = fmin(least, ms);
        }
        if (is_held(&alike, sorted[0], 0) && bounds_of(&of_least, sorted, step.n, &alike, &arena, NULL) == 0)
            roomy += of_least.l3 > least;
        if (step_random(&step, seed) < 0 || !has_bounds) continue;
        if (step.plan.n_rounds == 0) step_rounds(&step);
        CHECK(step_check(&step) == 0);
        double ms = plan_ms(&step.plan, step.lengths, &world.setting);
        CHECK(ms >= l4);
        close += ms < 1.05 * b.l3;
    }
    for (int i = 0; i < n_planners; i++) {
        printf("    %-10s planned %d, of these %d that what the least hold has no plan for\n", planners[i]->name,
               planned[i], alone[i]);
        CHECK(planned[i] > 600);
    }
    printf("    %d random plans at most 5 %% above L3, %d steps better than L3 of ranks that all hold the least\n",
           close, roomy);
    CHECK(close > 50 && roomy > 5);
}

// Four ranks in a node hold 100, 100, 400, 100 tokens.
CLAIM(what_only_one_rank_holds_is_its_own) {
    static const int lengths[] = {350, 90, 90, 90}, of_ranks[] = {100, 100, 400, 100};
    step = small_step(4, 4, 100, COUNT(lengths), lengths);
    step.limits.capacities = of_ranks;
    random_world(&world, &step.limits, 1);
    world.setting.context = 350;
    for (int i = 0; i < n_planners; i++) {
        if (planners[i] != &planner_flex && planners[i] != &planner_adaptive && planners[i] != &planner_static)
            continue;
        CHECK(plans(planners[i], &world.setting));
        const MicroBatch* mb = step.plan.micro_batches;
        for (; mb < step.plan.micro_batches + step.plan.n_micro_batches; mb++)
            if (step.plan.docs[mb->first_doc] == 0) break;
        CHECK(mb->cp_size == 4 || (mb->first_rank == 2 && mb->cp_size == 1));
    }
    step.lengths[0] = 450;  // beyond all groups of planners: one rank holds 400, two and three 100 each, four 400
    CHECK(!plans(&planner_flex, &world.setting) &&
          strstr(step.err, "holds more than 400 at capacity 400 (one of 1 rank"));
    CHECK(!plans(&planner_static, &world.setting));
    free_step(&step);
}

int main(void) { return test_main(); }
