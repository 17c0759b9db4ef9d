// test_hydraulis_planner.c - the published planner that is made of Hydraulis: its plans are valid, pay for every
// micro-batch, and differ from step to step.
#include "plan/machine.h"
#include "plan/published/published.h"
#include "test/arenas.h"
#include "test/hydraulis_cases.h"

typedef struct Run {
    Setting setting;
    GroupCost groups[65];
    int sample[2000], lengths[300], n;
    Plan plan;
    PlayRule rule;
    void* planner;
    Arena arena, opened;  // opened: for the planner
    char err[ERR_BYTES];
} Run;

static void close_run(Run* run) {
    arena_free(&run->arena), arena_free(&run->opened);
    free(run);
}

static int plan_step(Run* run, int64_t step) {
    soil(&run->arena, 0xa5, 1 << 18);
    return planner_hydraulis.plan(run->planner, &run->plan, &run->rule, step, run->lengths, run->n, &run->arena,
                                  run->err, sizeof run->err);
}

static LinkTable random_link(uint64_t seed, double scale) {
    LinkTable link = {.n = pick(seed, 0, 1, 4)};
    for (int i = 0; i < link.n; i++) {
        link.bytes[i] = 1000.0 * (i + 1) * (i + 1);
        link.ms[i] = scale * (1 + i) * (1 + random_uniform(seed, 1 + (uint64_t)i));
    }
    return link;
}

// Any number of ranks and heads, machines of any size, published or measured communication, ulysses and ring.
static Run* random_run(uint64_t seed) {
    Run* run = (Run*)must(calloc(1, sizeof *run));
    Setting* s = &run->setting;
    int ranks = pick(seed, 1, 1, 40), longest = pick(seed, 8, 500, 12000);
    s->limits = (PlanLimits){ranks, pick(seed, 2, 1, ranks), pick(seed, 3, 200, 2000), pick(seed, 4, 1, 24), 1000, 0};
    if (seed % 4 == 0) s->limits.max_ring_docs = pick(seed, 5, 20, 300);
    Cost* c = &s->cost;
    *c = (Cost){.name = "random", .quadratic = 1e-6, .per_token = 0.01, .link_scale = 1};
    c->micro_batch = pick(seed, 6, 0, 2);
    c->round = pick(seed, 7, 0, 4);
    if (seed % 2) {
        c->token_bytes = 1e4, c->n_groups = 1, c->group_cp_size[0] = 2, c->group_gbps[0] = 10;
    } else {
        c->layers = 2, c->channels = 32, c->kv_channels = 16, c->elem_bytes = 2;
        c->link[LINK_INSIDE] = random_link(seed, 0.01);
        c->link[LINK_ACROSS] = random_link(seed + 1, 0.1);
    }
    s->groups = run->groups;
    s->kind = (CpChoice)pick(seed, 9, 0, 2);
    cost_groups(s->groups, c, &s->limits, s->kind);
    s->context = 0;
    for (int d = 1; d <= ranks; d *= 2)
        if (s->groups[d].canonical)
            for (int l = longest; l > s->context; l--)
                if (group_holds(&s->groups[d], l)) s->context = l;
    random_lengths(run->sample, COUNT(run->sample), s->context, seed);
    return run;
}

// Windows: a rank is always in the same group, which begins at a multiple of its cp size.
static void check_windows(const Plan* plan) {
    int of_rank[64], last[64];
    for (int r = 0; r < plan->ranks; r++) of_rank[r] = last[r] = -1;
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        CHECK((mb->cp_size & (mb->cp_size - 1)) == 0 && mb->first_rank % mb->cp_size == 0);
        for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) {
            int window = mb->first_rank * 64 + mb->cp_size;
            CHECK(of_rank[r] < 0 || of_rank[r] == window);
            of_rank[r] = window;
        }
    }
}

// When a rank ends, from the definition: its micro-batches one after the other, each with the greater of a round and a
// micro-batch.
static double end_of_rank(const Run* run, int rank) {
    double ms = 0;
    for (int i = 0; i < run->plan.n_micro_batches; i++) {
        const MicroBatch* mb = &run->plan.micro_batches[i];
        double s2 = 0, tokens = 0;
        if (rank < mb->first_rank || rank >= mb->first_rank + mb->cp_size) continue;
        for (int j = 0; j < mb->n_docs; j++) {
            double s = run->lengths[run->plan.docs[mb->first_doc + j]];
            s2 += s * s, tokens += s;
        }
        GroupCost g =
            cost_group(&run->setting.cost, &run->setting.limits, mb->first_rank, mb->cp_size, mb->ulysses_size);
        ms += group_ms(&g, s2, tokens) + cost_micro_batch(&run->setting.cost);
    }
    return ms;
}

static void check_plan(Run* run) {
    const PlanLimits* limits = &run->setting.limits;
    Timeline timeline;
    int valid = plan_check(&run->plan, run->lengths, run->n, limits, &run->arena, run->err, sizeof run->err);
    CHECK(valid == 0);
    if (valid < 0) printf("    %s\n", run->err);
    check_windows(&run->plan);
    CHECK(timeline_play(&timeline, &run->plan, run->lengths, &run->setting, &run->rule, &run->arena, run->err,
                        sizeof run->err) == 0);
    CHECK(!run->rule.in_rounds);
    // Sums of at most 300 terms in another order.
    for (int r = 0; r < limits->ranks; r++)
        CHECK_CLOSE(timeline.rank_end[r], end_of_rank(run, r), 1e-12 * timeline.makespan);
}

static void every_plan_is_valid_and_pays_for_every_micro_batch(void) {
    int plans = 0, refused = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        Run* run = random_run(seed);
        int before = test_failures_in_claim;
        run->planner = planner_hydraulis.open(&run->setting, run->sample, seed % 7 ? COUNT(run->sample) : 0,
                                              &run->opened, run->err, sizeof run->err);
        CHECK(run->planner != NULL);
        for (int step = 0; run->planner && step < 4; step++) {
            run->n = step == 3 ? pick(seed, 100, 0, 3) : pick(seed, 100 + (uint64_t)step, 1, COUNT(run->lengths));
            random_lengths(run->lengths, run->n, run->setting.context, 1000 * seed + (uint64_t)step);
            if (plan_step(run, step) == 0) {
                check_plan(run);
                plans++;
            } else {
                // Only a limit on the documents of rings may be in the way.
                CHECK(seed % 4 == 0 && strstr(run->err, "no strategy holds") != NULL);
                refused++;
            }
        }
        if (test_failures_in_claim > before) printf("    seed %d: %s\n", (int)seed, run->err);
        close_run(run);
    }
    printf("    %d plans, %d steps refused\n", plans, refused);
    CHECK(plans > 140);
}

// A published machine, documents of its data set's kind, the longest of them for a node of 8.
static Run* published_run(int ranks) {
    Run* run = (Run*)must(calloc(1, sizeof *run));
    Machine machine;
    const char* text = machine_builtin("a100-7b");
    if (!text || machine_parse(&machine, text, strlen(text), run->err, sizeof run->err) < 0 ||
        machine_setting(&run->setting, &machine, ranks, 8, 8 * 6451, run->groups, run->err, sizeof run->err) < 0)
        abort();
    for (int i = 0; i < COUNT(run->sample); i++)
        run->sample[i] = (int)MIN(10 + 350 * exp(1.4 * random_normal(9, (uint64_t)i)), 8 * 6451);
    run->planner =
        planner_hydraulis.open(&run->setting, run->sample, COUNT(run->sample), &run->opened, run->err, sizeof run->err);
    if (!run->planner) abort();
    run->n = COUNT(run->lengths);
    return run;
}

static void draw_step(Run* run, int step) {
    for (int i = 0; i < run->n; i++)
        run->lengths[i] = run->sample[pick(1234 + (uint64_t)step, (uint64_t)i, 0, COUNT(run->sample) - 1)];
}

static void cp_sizes_differ_in_a_step_and_between_steps(void) {
    Run* run = published_run(64);
    int kinds = 0, mixed = 0;
    uint64_t seen[20];
    for (int step = 0; step < 20; step++) {
        int window[64] = {0}, new = 1, least = 64, most = 0;
        draw_step(run, step);
        CHECK(plan_step(run, step) == 0);
        check_plan(run);
        for (int i = 0; i < run->plan.n_micro_batches; i++) {
            const MicroBatch* mb = &run->plan.micro_batches[i];
            window[mb->first_rank] = mb->cp_size;
            least = MIN(least, mb->cp_size), most = MAX(most, mb->cp_size);
        }
        mixed += least < most;
        uint64_t hash = hash_bytes(window, sizeof window, 0);
        for (int i = 0; i < kinds; i++) new &= seen[i] != hash;
        if (new) seen[kinds++] = hash;
    }
    printf("    %d strategies in 20 steps, %d steps of unlike cp sizes\n", kinds, mixed);
    CHECK(kinds >= 2 && mixed >= 1);
    close_run(run);
}

static void the_same_step_is_planned_the_same(void) {
    Run *run = published_run(16), *again = published_run(16);
    for (int step = 0; step < 4; step++) {
        draw_step(run, step);
        CHECK(plan_step(run, step) == 0);
        if (step == 2) continue;  // no plan depends on those before it
        draw_step(again, step);
        CHECK(plan_step(again, step) == 0);
        CHECK(plan_hash(&run->plan, run->lengths) == plan_hash(&again->plan, again->lengths));
    }
    close_run(run), close_run(again);
}

static void micro_batches_run_the_longest_first(void) {
    Run* run = published_run(16);
    double last[64];
    draw_step(run, 1);
    CHECK(plan_step(run, 1) == 0);
    for (int r = 0; r < 64; r++) last[r] = INFINITY;
    for (int i = 0; i < run->plan.n_micro_batches; i++) {
        const MicroBatch* mb = &run->plan.micro_batches[i];
        double ms = 0;
        for (int j = 0; j < mb->n_docs; j++) {
            double s = run->lengths[run->plan.docs[mb->first_doc + j]];
            ms += group_ms(&run->groups[mb->cp_size], s * s, s);
        }
        CHECK(ms <= last[mb->first_rank] * (1 + 1e-12));
        last[mb->first_rank] = ms;
    }
    close_run(run);
}

// Documents of 0.6 of a rank: 6 are three micro-batches on each of two ranks, or two on both, which then communicate.
static void the_fixed_cost_of_a_micro_batch_weighs_in_the_choice(void) {
    for (int dear = 0; dear < 2; dear++) {
        Run* run = (Run*)must(calloc(1, sizeof *run));
        Setting* s = &run->setting;
        s->limits = (PlanLimits){2, 2, 1000, 2, 1000, 0};
        s->cost = (Cost){.per_token = 0.01, .round = dear ? 5 : 0, .link_scale = 1, .token_bytes = 1e4, .n_groups = 1};
        s->cost.group_cp_size[0] = 2, s->cost.group_gbps[0] = 10;
        s->groups = run->groups, s->context = 1000;
        cost_groups(s->groups, &s->cost, &s->limits, CP_CHOICE_AUTO);
        for (int i = 0; i < COUNT(run->sample); i++) run->sample[i] = 600;
        run->planner =
            planner_hydraulis.open(s, run->sample, COUNT(run->sample), &run->opened, run->err, sizeof run->err);
        run->n = 6;
        for (int i = 0; i < 6; i++) run->lengths[i] = 600;
        CHECK(run->planner && plan_step(run, 0) == 0);
        // Two ranks communicate 3600 tokens of 1e4 / (2 * 10e6) ms; a micro-batch less saves 5 ms.
        CHECK(run->plan.n_micro_batches == (dear ? 2 : 6) && run->plan.micro_batches[0].cp_size == 1 + dear);
        close_run(run);
    }
}

static void a_document_beyond_all_groups_is_named(void) {
    Run* run = published_run(16);
    draw_step(run, 0);
    run->lengths[7] = 16 * 6451 + 1;
    CHECK(plan_step(run, 0) < 0);
    CHECK(strstr(run->err, "103217 tokens") != NULL);
    run->lengths[7] = 16 * 6451;
    // Above the context, but a group of all ranks would hold it: no matter which, the plan must be valid.
    if (plan_step(run, 0) == 0) check_plan(run);
    close_run(run);
}

int main(void) {
    RUN(every_plan_is_valid_and_pays_for_every_micro_batch);
    RUN(cp_sizes_differ_in_a_step_and_between_steps);
    RUN(the_same_step_is_planned_the_same);
    RUN(micro_batches_run_the_longest_first);
    RUN(the_fixed_cost_of_a_micro_batch_weighs_in_the_choice);
    RUN(a_document_beyond_all_groups_is_named);
    return test_done();
}
