// test_plan_rounds.c - the claims of plan/plan_rounds.c: plans made for rounds hold, take what they say, never more
// than plans that are cut into rounds, and stay close to the best there is where brute force can find it.
#include "dev/bound_shares.h"
#include "dev/lengths.h"
#include "plan/published/published.h"
#include "test/settings.h"

typedef struct Trial {
    Plan plan;
    Prediction f;
    int result;
    Arena arena;
    char err[ERR_BYTES];
} Trial;

static Trial planned_in(const int* lengths, int n, const Setting* setting, int dirt) {
    Trial t = {0};
    soil(&t.arena, dirt, 1 << 20);
    memset(&t.f, dirt, sizeof t.f);
    t.result = plan_flex(&t.plan, &t.f, 3, lengths, n, setting, &t.arena, t.err, sizeof t.err);
    return t;
}

static Trial planned(const int* lengths, int n, const Setting* setting) {
    return planned_in(lengths, n, setting, 0xa5);
}

static void free_trial(Trial* t) { arena_free(&t->arena); }

// What a plan without rounds takes when it is cut into them; -1: there is none.
static double cut_makespan(const int* lengths, int n, const Setting* setting) {
    Trial t;
    Timeline timeline;
    Setting free_of_rounds = *setting;
    double ms = -1;
    free_of_rounds.rounds = 0;
    t = planned(lengths, n, &free_of_rounds);
    if (t.result == 0 && step_play(&timeline, &t.plan, lengths, setting, &t.arena, t.err, sizeof t.err) == 0)
        ms = timeline.makespan;
    free_trial(&t);
    return ms;
}

// What micro-batch i takes by itself, at the pace of its slowest rank.
static CostTerms terms_of(const Plan* plan, int i, const int* lengths, const Setting* setting, double first[2]) {
    const MicroBatch* mb = &plan->micro_batches[i];
    double s1 = 0, s2 = 0, speed = 1;
    GroupCost g = cost_group(&setting->cost, &setting->limits, mb->first_rank, mb->cp_size, mb->ulysses_size);
    for (int j = 0; j < mb->n_docs; j++) {
        double s = lengths[plan->docs[mb->first_doc + j]];
        s1 += s, s2 += s * s;
    }
    for (int r = 0; r < mb->cp_size && setting->speeds; r++)
        speed = r ? fmin(speed, setting->speeds[mb->first_rank + r]) : setting->speeds[mb->first_rank];
    CostTerms t = group_terms(&g, s2, s1);
    t.quadratic /= speed, t.per_token /= speed;
    t.communication -= group_hidden_ms(first, &g, t.quadratic, s1, NULL);
    return t;
}

// Shared micro-batch i and the local ones beside it: the ranks wait for each other in the linear part, in the attention
// of local documents, and in what of the exchanges this does not hide.
static double pass_ms(const Plan* plan, int i, const int* lengths, const Setting* setting) {
    double first[2], of_local[2], attention = 0, linear = 0, communication = 0;
    const MicroBatch* mb = &plan->micro_batches[i];
    CostTerms shared = terms_of(plan, i, lengths, setting, first);
    for (int k = 0; k < plan->n_micro_batches; k++) {
        const MicroBatch* local = &plan->micro_batches[k];
        if (k == i || local->round != mb->round || local->first_rank < mb->first_rank) continue;
        if (local->first_rank >= mb->first_rank + mb->cp_size) continue;
        CostTerms t = terms_of(plan, k, lengths, setting, of_local);
        CHECK(mb->cp_size > 1 && local->cp_size == 1);
        attention = fmax(attention, t.quadratic), linear = fmax(linear, t.per_token);
        communication = fmax(communication, t.communication);
    }
    double hidden = fmin(attention / 3, first[0]) + fmin(2 * attention / 3, first[1]);
    return terms_ms(&shared) + attention + linear + communication - hidden;
}

// The sum over rounds of the pass that takes longest, from the cost model alone.
static double sum_of_rounds(const Plan* plan, const int* lengths, const Setting* setting) {
    double sum = 0;
    for (int round = 0; round < plan->n_rounds; round++) {
        double longest = 0;
        for (int i = 0; i < plan->n_micro_batches; i++) {
            const MicroBatch* mb = &plan->micro_batches[i];
            int beside = 0;
            for (int k = 0; k < plan->n_micro_batches && mb->cp_size == 1; k++) {
                const MicroBatch* other = &plan->micro_batches[k];
                beside |= k != i && other->round == mb->round && other->first_rank <= mb->first_rank &&
                          mb->first_rank < other->first_rank + other->cp_size;
            }
            if (mb->round == round && !beside) longest = fmax(longest, pass_ms(plan, i, lengths, setting));
        }
        sum += longest;
    }
    return sum;
}

static int has_passes_of_several(const Plan* plan) {
    for (int i = 0; i < plan->n_micro_batches; i++)
        for (int k = 0; k < plan->n_micro_batches; k++) {
            const MicroBatch *a = &plan->micro_batches[i], *b = &plan->micro_batches[k];
            if (i != k && a->round == b->round && a->cp_size > 1 && a->first_rank <= b->first_rank &&
                b->first_rank < a->first_rank + a->cp_size)
                return 1;
        }
    return 0;
}

static void check_trial(Trial* t, const int* lengths, int n, const Setting* setting) {
    CHECK(t->result == 0);
    if (t->result == 0) {
        double ms = t->f.makespan;
        CHECK(plan_check(&t->plan, lengths, n, &setting->limits, &t->arena, t->err, sizeof t->err) == 0);
        CHECK(t->plan.step == 3 && t->plan.n_docs == n && (t->plan.n_rounds > 0) == (n > 0));
        CHECK_CLOSE(sum_of_rounds(&t->plan, lengths, setting), ms, 1e-9 * ms);
        CHECK_CLOSE(terms_ms(&t->f.critical), ms, 1e-9 * ms);
        CHECK(ms >= t->f.bounds.l3);
        int* sorted = TAKE(&t->arena, int, n);
        double l4;
        if (n) sort_descending(sorted, lengths, n);
        CHECK(bound_of_shares(&l4, sorted, n, setting, &t->arena, t->err, sizeof t->err) == 0 && ms >= l4);
    }
    if (test_failures_in_claim && t->err[0]) printf("    %.200s\n", t->err);
}

static int made_for_rounds(const Prediction* f) {
    for (int i = 0; i < f->n_tries; i++)
        if (f->tries[i].chosen) return f->tries[i].kind == FLEX_ROUNDS;
    return 0;
}

// ---- any input

static void plans_for_rounds_hold_and_are_no_longer_than_plans_cut_into_them(void) {
    int tried = 0, made = 0, several = 0, beside = 0;
    for (uint64_t seed = 0; seed < 1500 && !test_failures_in_claim; seed++) {
        Step step = random_step(seed);
        World world;
        random_world(&world, &step.limits, seed);
        world.setting.rounds = 1;
        Trial t = planned(step.lengths, step.n, &world.setting);
        double cut = cut_makespan(step.lengths, step.n, &world.setting);
        CHECK((t.result == 0) == (cut >= 0));
        if (t.result == 0) {
            check_trial(&t, step.lengths, step.n, &world.setting);
            CHECK(t.f.makespan <= cut * (1 + 1e-12));
            tried++, made += made_for_rounds(&t.f), several += t.plan.n_rounds > 1;
            beside += has_passes_of_several(&t.plan);
        }
        if (test_failures_in_claim) printf("    seed %d: %.200s\n", (int)seed, t.err);
        free_trial(&t);
        free_step(&step);
    }
    printf("    %d plans, %d made for rounds, %d of several rounds, %d with local documents beside shared ones\n",
           tried, made, several, beside);
    CHECK(tried > 1200 && made > 500 && several > 300 && beside > 100);
}

static void adaptive_is_the_best_single_cp_size_in_rounds(void) {
    double most = 1;
    for (uint64_t seed = 0; seed < 400 && !test_failures_in_claim; seed++) {
        Step step = random_step(seed);
        World world;
        Prediction f;
        Timeline timeline;
        Arena arena = {0};
        random_world(&world, &step.limits, seed);
        const Setting* s = &world.setting;
        world.setting.rounds = 1;
        Plan plan;
        int failed = plan_adaptive(&plan, &f, 3, step.lengths, step.n, s, &arena, step.err, sizeof step.err);
        for (int d = 1; d <= step.limits.ranks && !failed; d++) {
            if (!s->groups[d].canonical || step_static(&step, d, s->kind) < 0) continue;
            if (step_play(&timeline, &step.plan, step.lengths, s, &arena, step.err, sizeof step.err) < 0) continue;
            if (timeline.makespan > 0) most = fmax(most, f.makespan / timeline.makespan);
        }
        arena_free(&arena);
        free_step(&step);
    }
    printf("    worst adaptive over best single cp size %.4f\n", most);
    CHECK(most <= 1 + 1e-9);
}

static void hard_lengths_in_rounds(void) {
    int lengths[MOST_DOCS];
    World world;
    named_world(&world, "flexsp-7b", 16, 8);
    world.setting.rounds = 1;
    for (int which = 0; which < 5; which++) {
        int n = which == 4 ? 0 : which == 3 ? 1 : MOST_DOCS, capacity = world.setting.limits.capacity;
        for (int i = 0; i < n; i++)
            lengths[i] = which == 0 ? 1 : which == 1 ? capacity : which == 2 ? capacity / 2 + 1 : 16 * capacity;
        Trial t = planned(lengths, n, &world.setting);
        check_trial(&t, lengths, n, &world.setting);
        // 64 documents that fill a rank each take 4 rounds of 16; so do those of which no two fit one rank
        if (which == 1 || which == 3) CHECK_CLOSE(prediction_gap(&t.f), 0, which == 3 ? 0.3 : 1e-3);
        if (which == 1) CHECK(t.plan.n_rounds == 4);
        free_trial(&t);
    }
}

// ---- against the best there is

// A micro-batch of the schedules that brute force tries.
typedef struct Part {
    int round, first, d;
    double s1, s2;
    int64_t place;
} Part;

typedef struct Force {
    const Setting* setting;
    const int* lengths;
    int n, n_parts, n_rounds;
    Part parts[6];
    double best;
} Force;

static CostTerms part_terms(const Force* x, const Part* p, double first[2]) {
    double speed = 1;
    for (int r = 0; r < p->d && x->setting->speeds; r++)
        speed = r ? fmin(speed, x->setting->speeds[p->first + r]) : x->setting->speeds[p->first];
    CostTerms t = group_terms(&x->setting->groups[p->d], p->s2, p->s1);
    t.quadratic /= speed, t.per_token /= speed;
    t.communication -= group_hidden_ms(first, &x->setting->groups[p->d], t.quadratic, p->s1, NULL);
    return t;
}

static int meet(const Part* a, const Part* b) {
    return a != b && a->round == b->round && a->first < b->first + b->d && b->first < a->first + a->d;
}

// Tokens of a rank and of attention, the shared ones to a token.
static int fits_beside(const Force* x, const Part* shared, const Part* local) {
    const PlanLimits* l = &x->setting->limits;
    int heads = CEIL_DIV(l->kv_heads, x->setting->groups[shared->d].ulysses_size);
    return shared->s1 / shared->d + local->s1 <= l->capacity + 1 &&
           (double)shared->place * heads + local->s1 * l->kv_heads <= (double)l->capacity * l->kv_heads + heads;
}

// The pass of part p and the local ones beside it; 0 for one that stands beside another.
static double part_ms(const Force* x, const Part* p) {
    double first[2], of_local[2], attention = 0, linear = 0, communication = 0;
    CostTerms t = part_terms(x, p, first);
    for (int i = 0; i < x->n_parts; i++) {
        const Part* other = &x->parts[i];
        if (!meet(p, other)) continue;
        if (p->d == 1) return 0;
        CostTerms local = part_terms(x, other, of_local);
        attention = fmax(attention, local.quadratic), linear = fmax(linear, local.per_token);
        communication = fmax(communication, local.communication);
    }
    return terms_ms(&t) + attention + linear + communication - fmin(attention / 3, first[0]) -
           fmin(2 * attention / 3, first[1]);
}

// Infinite where some pass is too full.
static double rounds_ms(const Force* x) {
    double longest[6] = {0}, sum = 0;
    for (int i = 0; i < x->n_parts; i++) {
        const Part* p = &x->parts[i];
        for (int j = 0; j < x->n_parts && p->d > 1; j++)
            if (meet(p, &x->parts[j]) && !fits_beside(x, p, &x->parts[j])) return INFINITY;
        longest[p->round] = fmax(longest[p->round], part_ms(x, p));
    }
    for (int r = 0; r < x->n_rounds; r++) sum += longest[r];
    return sum;
}

static void force(Force* x, int k);

// Document k goes into part p, which is the last one or one that there is.
static void force_into(Force* x, int k, int p) {
    Part* part = &x->parts[p];
    Part was = *part;
    double s = x->lengths[k];
    if (joins(&x->setting->groups[part->d], &part->place, x->lengths[k])) {
        part->s1 += s, part->s2 += s * s;
        if (rounds_ms(x) < x->best) force(x, k + 1);
    }
    *part = was;
}

// From all but local ones of a shared part's ranks, and the other way round.
static int is_apart(const Force* x, int round, int first, int d) {
    for (int i = 0; i < x->n_parts; i++) {
        const Part *p = &x->parts[i], own = {round, first, d, 0, 0, 0};
        if (meet(p, &own) && (p->d > 1) == (d > 1)) return 0;
    }
    return 1;
}

static void force_new(Force* x, int k, int round) {
    const PlanLimits* l = &x->setting->limits;
    for (int first = 0; first < l->ranks; first++)
        for (int d = 1; first + d <= l->ranks; d++) {
            if (!x->setting->groups[d].ulysses_size || !usual_window(l, first, first + d)) continue;
            if (!is_apart(x, round, first, d)) continue;
            x->parts[x->n_parts++] = (Part){round, first, d, 0, 0, 0};
            force_into(x, k, x->n_parts - 1);
            x->n_parts--;
        }
}

// Places documents from k on in all ways: every partition into rounds, and in each round every division of usual
// windows of ranks into micro-batches, documents together or apart, local ones of a rank beside what it shares.
static void force(Force* x, int k) {
    if (k == x->n) {
        x->best = fmin(x->best, rounds_ms(x));
        return;
    }
    for (int p = 0; p < x->n_parts; p++) force_into(x, k, p);
    for (int r = 0; r < x->n_rounds; r++) force_new(x, k, r);
    x->n_rounds++;
    force_new(x, k, x->n_rounds - 1);
    x->n_rounds--;
}

// Plans of groups that the search may also take elsewhere (the best single cp size) may be better: the ratio is 1 then.
static void few_documents_come_close_to_the_best_rounds(void) {
    double worst = 1, sum = 0;
    int tried = 0, best = 0, several = 0;
    uint64_t worst_seed = 0;
    for (uint64_t seed = 0; seed < 1200; seed++) {
        Step step = small_random_step(seed, 5);
        World world;
        random_world(&world, &step.limits, seed);
        world.setting.rounds = 1;
        Trial t = planned(step.lengths, step.n, &world.setting);
        if (t.result == 0) {
            Force x = {.setting = &world.setting, .lengths = step.lengths, .n = step.n, .best = 1e300};
            check_trial(&t, step.lengths, step.n, &world.setting);
            force(&x, 0);
            CHECK(x.best >= t.f.bounds.l3 * (1 - 1e-9));
            if (made_for_rounds(&t.f)) CHECK(t.f.makespan >= x.best * (1 - 1e-9));
            double ratio = fmax(t.f.makespan / x.best, 1);
            if (ratio > worst) worst = ratio, worst_seed = seed;
            sum += ratio, tried++, best += ratio<1 + 1e-9, several += t.plan.n_rounds> 1;
        }
        free_trial(&t);
        free_step(&step);
    }
    printf("    over the best rounds at most %.4f (seed %d), mean %.4f, the best %d of %d; %d of several rounds\n",
           worst, (int)worst_seed, sum / tried, best, tried, several);
    CHECK(tried > 700 && several > 100 && worst < 1.25 && sum / tried < 1.002);
}

// The optima are of an integer program, with several documents in a micro-batch and at most three rounds
// (dev/milp.py). Three of them are of ten documents, too many for brute force.
static void plans_for_rounds_come_close_to_integer_programs(void) {
    const struct {
        const char *machine, *more;
        int n, lengths[10];
        double ms;
    } golden[] = {
        {"a100-7b", "", 5, {16000, 9000, 5000, 3000, 2000}, 2257.562},
        {"a100-7b", "", 6, {4300, 3600, 2400, 1700, 900, 800}, 727.841},
        {"a100-7b", "", 8, {15000, 5400, 4700, 3600, 3000, 1700, 1400, 1300}, 2196.008},
        {"a100-7b", "", 8, {8600, 7700, 7000, 5500, 4500, 4200, 2000, 1200}, 2348.497},
        {"a100-7b", "micro_batch_ms 200\n", 6, {24000, 6100, 3600, 3500, 3000, 2400}, 3398.144},
        {"a100-7b", "micro_batch_ms 200\n", 8, {22000, 21000, 4200, 2600, 2400, 1900, 1400, 1200}, 4704.603},
        {"a100-7b", "micro_batch_ms 200\n", 10, {11100, 7000, 6300, 6200, 5000, 2000, 1700, 1500, 900, 200}, 2818.104},
        {"a100-7b", "micro_batch_ms 200\n", 10, {12700, 3400, 3300, 3000, 2200, 1900, 1800, 1300, 1300, 700}, 2200.491},
        {"h200-8b", "", 5, {60000, 20000, 8000, 8000, 3000}, 4280.989},
        {"h200-8b", "", 8, {96000, 67200, 33200, 24400, 17600, 5600, 4800, 2000}, 13672.510},
        {"h200-8b", "", 10, {40400, 38000, 26000, 22000, 19200, 14000, 12000, 8800, 8800, 3600}, 6741.835},
    };
    double worst = 1, sum = 0;
    for (int i = 0; i < COUNT(golden); i++) {
        Setting setting;
        GroupCost groups[5];
        named_setting(&setting, groups, golden[i].machine, golden[i].more, 4, 8);
        setting.rounds = setting.no_overlap = 1;
        Trial t = planned(golden[i].lengths, golden[i].n, &setting);
        CHECK(t.result == 0 && t.f.makespan >= golden[i].ms - 0.001);
        sum += t.f.makespan / golden[i].ms, worst = fmax(worst, t.f.makespan / golden[i].ms);
        free_trial(&t);
    }
    printf("    over the integer program's at most %.4f, mean %.4f\n", worst, sum / COUNT(golden));
    CHECK(worst < 1.02 && sum / COUNT(golden) < 1.005);
}

// ---- against a published planner that plans for rounds

enum { FLEXSP_RANKS = 64 };

static double flexsp_makespan(const int* lengths, int n, const Setting* setting) {
    Arena arena = {0};
    char err[ERR_BYTES];
    Plan plan;
    PlayRule rule;
    Timeline timeline;
    const void* flexsp = planner_flexsp.open(setting, NULL, 0, &arena, err, sizeof err);
    if (planner_flexsp.plan(flexsp, &plan, &rule, 3, lengths, n, &arena, err, sizeof err) < 0 ||
        timeline_play(&timeline, &plan, lengths, setting, &rule, &arena, err, sizeof err) < 0)
        die("%s", err);
    arena_free(&arena);
    return timeline.makespan;
}

static void nowhere_behind_flexsp(void) {
    static const char *const machines[] = {"flexsp-7b", "a100-7b", "h200-8b"}, *const sources[] = {"wikipedia",
                                                                                                   "prolong"};
    static GroupCost groups[FLEXSP_RANKS + 1];
    for (int cell = 0; cell < 12; cell++) {
        enum { MOST = 512, BATCHES = 3 };
        static int lengths[MOST];
        int n = cell % 2 ? 512 : 128;
        const char *name = machines[cell / 4], *source = sources[cell / 2 % 2];
        double ours = 0, theirs = 0;
        char err[ERR_BYTES];
        Setting setting;
        named_setting(&setting, groups, name, "", FLEXSP_RANKS, 8);
        Lengths* drawn = lengths_open(source, 196608, setting.limits.capacity, err, sizeof err);
        setting.rounds = 1;
        for (int batch = 0; batch < BATCHES; batch++) {
            lengths_draw(drawn, lengths, n, 11, batch);
            Trial t = planned(lengths, n, &setting);
            check_trial(&t, lengths, n, &setting);
            double flexsp = flexsp_makespan(lengths, n, &setting);
            CHECK(t.f.makespan <= flexsp);
            ours += t.f.makespan, theirs += flexsp;
            free_trial(&t);
        }
        printf("    %-9s %-9s %3d documents: %.3f of FlexSP's time\n", name, source, n, ours / theirs);
        lengths_close(drawn);
    }
}

// Documents for 98 to 99 % of all ranks' tokens: one micro-batch a rank suffices, and another costs 629 ms. Steps that
// need rounds and steps that do not.
static void one_round_that_is_full_of_tokens_is_found(void) {
    static GroupCost groups[FLEXSP_RANKS + 1];
    static const uint64_t seeds[] = {22, 50};
    enum { N = 128 };
    char err[ERR_BYTES];
    Setting setting;
    named_setting(&setting, groups, "flexsp-7b", "", FLEXSP_RANKS, 8);
    Lengths* drawn = lengths_open("prolong", 196608, setting.limits.capacity, err, sizeof err);
    for (int i = 0; i < 2 * COUNT(seeds); i++) {
        int lengths[N];
        lengths_draw(drawn, lengths, N, seeds[i / 2], 0);
        setting.rounds = i % 2;
        Trial t = planned(lengths, N, &setting);
        double flexsp = flexsp_makespan(lengths, N, &setting);
        printf("    seed %d, rounds %d: %.3f of FlexSP's time\n", (int)seeds[i / 2], i % 2, t.f.makespan / flexsp);
        CHECK(t.result == 0 && t.f.makespan <= flexsp);
        free_trial(&t);
    }
    lengths_close(drawn);
}

// ---- the same on every rank

static void plans_for_rounds_repeat_bit_for_bit(void) {
    for (uint64_t seed = 0; seed < 200 && !test_failures_in_claim; seed++) {
        Step step = random_step(seed);
        World world;
        random_world(&world, &step.limits, seed);
        world.setting.rounds = 1;
        Trial a = planned_in(step.lengths, step.n, &world.setting, 0xa5);
        Trial b = planned_in(step.lengths, step.n, &world.setting, 0);
        CHECK(a.result == b.result);
        if (a.result == 0) {
            CHECK(plan_hash(&a.plan, step.lengths) == plan_hash(&b.plan, step.lengths));
            CHECK(a.f.makespan == b.f.makespan);
        }
        free_trial(&a), free_trial(&b), free_step(&step);
    }
}

// As in test_step.c: hashes once and for all, of batches that are drawn with integers only.
static void plans_for_rounds_are_the_same_with_every_compiler(void) {
    static const struct {
        const char* machine;
        int ranks, node_size;
        uint64_t hash;
    } cases[] = {{"a100-7b", 8, 8, 0x841e79207822aef9u},
                 {"flexsp-7b", 12, 5, 0x50031e60ff7b0e54u},
                 {"h200-8b", 16, 4, 0xf0e46d96a8e16eafu}};
    for (int i = 0; i < COUNT(cases); i++) {
        uint64_t hash = 0;
        World world;
        named_world(&world, cases[i].machine, cases[i].ranks, cases[i].node_size);
        world.setting.rounds = 1;
        for (uint64_t batch = 0; batch < 40; batch++) {
            int lengths[MOST_DOCS], n = 1 + (int)(hash64(batch) % MOST_DOCS);
            for (int d = 0; d < n; d++) {
                uint64_t x = hash64(batch << 32 | (uint64_t)d);
                lengths[d] = 1 + (int)(x % 32768 >> (x >> 32) % 8);
            }
            for (int r = 0; r < cases[i].ranks; r++)
                world.speeds[r] = (1 + (double)(hash64(~batch + (uint64_t)r) % 8)) / 8;
            world.setting.speeds = batch % 3 ? NULL : world.speeds;
            Trial t = planned(lengths, n, &world.setting);
            CHECK(t.result == 0);
            if (t.result == 0) hash = hash64(hash ^ plan_hash(&t.plan, lengths));
            free_trial(&t);
        }
        if (hash != cases[i].hash) printf("    %s: %016llx\n", cases[i].machine, (unsigned long long)hash);
        CHECK(hash == cases[i].hash);
    }
}

static void planning_for_rounds_takes_no_more_than_planning_bytes(void) {
    static int lengths[4096];
    static const int rank_counts[] = {2, 8, MOST_RANKS};
    double most = 0;
    for (int i = 0; i < 30; i++) {
        World world;
        int n = 1 << pick((uint64_t)i, 0, 0, 12), longest = i % 4 ? 9000 : 1, ranks = rank_counts[i % 3];
        PlanLimits limits = {ranks, MIN(ranks, 8), i % 2 ? 9000 : 1 << 20, 8, 4096, 0};
        Prediction f;
        Plan plan;
        Arena arena = {0};
        char err[ERR_BYTES];
        random_world(&world, &limits, (uint64_t)i);
        world.setting.rounds = 1;
        for (int j = 0; j < n; j++) lengths[j] = pick((uint64_t)i, 2 + (uint64_t)j, 1, longest);
        CHECK(plan_flex(&plan, &f, 1, lengths, n, &world.setting, &arena, err, sizeof err) == 0);
        CHECK(plan_check(&plan, lengths, n, &limits, &arena, err, sizeof err) == 0);
        most = fmax(most, (double)arena_bytes(&arena) / (double)planning_bytes(n, &limits));
        arena_free(&arena);
    }
    printf("    %.2f of it at most\n", most);
    CHECK(most <= 1);
}

int main(void) {
    RUN(plans_for_rounds_hold_and_are_no_longer_than_plans_cut_into_them);
    RUN(adaptive_is_the_best_single_cp_size_in_rounds);
    RUN(hard_lengths_in_rounds);
    RUN(few_documents_come_close_to_the_best_rounds);
    RUN(plans_for_rounds_come_close_to_integer_programs);
    RUN(nowhere_behind_flexsp);
    RUN(one_round_that_is_full_of_tokens_is_found);
    RUN(plans_for_rounds_repeat_bit_for_bit);
    RUN(plans_for_rounds_are_the_same_with_every_compiler);
    RUN(planning_for_rounds_takes_no_more_than_planning_bytes);
    return test_done();
}
