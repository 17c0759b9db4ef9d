// test_rounds.c - the claims of plan/step/rounds.c: plans made for rounds hold, take what they say, never more
// than plans that are cut into rounds, and stay close to the best there is where brute force can find it.
#include "dev/lengths.h"
#include "plan/published/published.h"
#include "test/trials.h"

// What a plan without rounds takes when it is cut into them; -1: there is none.
static double cut_makespan(const int* lengths, int n, const Setting* setting) {
    Trial t;
    Timeline timeline;
    Setting free_of_rounds = *setting;
    double ms = -1;
    free_of_rounds.rounds = 0;
    t = planned(plan_flex, lengths, n, &free_of_rounds);
    if (t.result == 0 && step_play(&timeline, &t.plan, lengths, setting, &t.arena, t.err) == 0) ms = timeline.makespan;
    free_trial(&t);
    return ms;
}

// ---- what rounds take

enum { MOST_PARTS = 512 };

// A micro-batch of a plan, or of the schedules that brute force tries.
typedef struct Part {
    int round, first, d;
    double s1, s2;
    int64_t place;
    const GroupCost* group;
} Part;

typedef struct Force {
    const Setting* setting;
    const int* lengths;
    int n, n_parts, n_rounds;
    Part parts[MOST_PARTS];
    double best;
} Force;

static CostTerms part_terms(const Force* x, const Part* p, double first[2]) {
    double speed = slowest_speed(x->setting, p->first, p->d);
    CostTerms t = group_terms(p->group, p->s2, p->s1);
    t.quadratic /= speed, t.per_token /= speed;
    t.communication -= group_hidden_ms(first, p->group, t.quadratic, p->s1, NULL);
    return t;
}

static int meet(const Part* a, const Part* b) {
    return a != b && a->round == b->round && a->first < b->first + b->d && b->first < a->first + a->d;
}

// Tokens of a rank and of attention, the shared ones to a token.
static int fits_beside(const Force* x, const Part* shared, const Part* local) {
    const PlanLimits* l = &x->setting->limits;
    int heads = CEIL_DIV(l->kv_heads, shared->group->ulysses_size);
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
    double longest[MOST_PARTS], sum = 0;
    for (int r = 0; r < x->n_rounds; r++) longest[r] = 0;
    for (int i = 0; i < x->n_parts; i++) {
        const Part* p = &x->parts[i];
        for (int j = 0; j < x->n_parts && p->d > 1; j++)
            if (meet(p, &x->parts[j]) && !fits_beside(x, p, &x->parts[j])) return INFINITY;
        longest[p->round] = fmax(longest[p->round], part_ms(x, p));
    }
    for (int r = 0; r < x->n_rounds; r++) sum += longest[r];
    return sum;
}

// What a plan takes in rounds, from the cost model alone.
static double sum_of_rounds(const Plan* plan, const int* lengths, const Setting* setting) {
    static GroupCost groups[MOST_PARTS];
    Force x = {.setting = setting, .n_parts = plan->n_micro_batches, .n_rounds = plan->n_rounds};
    if (plan->n_micro_batches > MOST_PARTS) abort();
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        LengthSums sums = micro_batch_sums(plan, mb, lengths);
        groups[i] = cost_group(&setting->cost, &setting->limits, mb->first_rank, mb->cp_size, mb->ulysses_size);
        x.parts[i] = (Part){mb->round, mb->first_rank, mb->cp_size, sums.tokens, sums.squares, 0, &groups[i]};
    }
    return rounds_ms(&x);
}

static void check_rounds(Trial* t, const int* lengths, int n, const Setting* setting) {
    check_trial(t, lengths, n, setting);
    if (t->result) return;
    CHECK((t->plan.n_rounds > 0) == (n > 0));
    CHECK_CLOSE(sum_of_rounds(&t->plan, lengths, setting), t->f.makespan, 1e-9 * t->f.makespan);
}

// ---- any input

CLAIM(plans_for_rounds_hold_and_are_no_longer_than_plans_cut_into_them) {
    int tried = 0, made = 0, several = 0, beside = 0;
    for (uint64_t seed = BEFORE_FIRST; next_world(&seed, 1500);) {
        world.setting.rounds = 1;
        Trial t = planned(plan_flex, step.lengths, step.n, &world.setting);
        double cut = cut_makespan(step.lengths, step.n, &world.setting);
        CHECK((t.result == 0) == (cut >= 0));
        if (t.result == 0) {
            check_rounds(&t, step.lengths, step.n, &world.setting);
            CHECK(t.f.makespan <= cut * (1 + 1e-12));
            tried++, made += (chosen_kind(&t.f) == FLEX_ROUNDS), several += t.plan.n_rounds > 1;
            beside += merged(&t.plan);
        }
        free_trial(&t);
    }
    printf("    %d plans, %d made for rounds, %d of several rounds, %d with local documents beside shared ones\n",
           tried, made, several, beside);
    CHECK(tried > 1200 && made > 500 && several > 300 && beside > 100);
}

CLAIM(hard_lengths_in_rounds) {
    int lengths[MOST_DOCS];
    World world;
    named_world(&world, "flexsp-7b", 16, 8);
    world.setting.rounds = 1;
    for (int which = 0; which < 5; which++) {
        int n = which == 4 ? 0 : which == 3 ? 1 : MOST_DOCS, capacity = world.setting.limits.capacity;
        for (int i = 0; i < n; i++)
            lengths[i] = which == 0 ? 1 : which == 1 ? capacity : which == 2 ? capacity / 2 + 1 : 16 * capacity;
        Trial t = planned(plan_flex, lengths, n, &world.setting);
        check_rounds(&t, lengths, n, &world.setting);
        // 64 documents that fill a rank each take 4 rounds of 16; so do those of which no two fit one rank
        if (which == 1 || which == 3) CHECK_CLOSE(prediction_gap(&t.f), 0, which == 3 ? 0.3 : 1e-3);
        if (which == 1) CHECK(t.plan.n_rounds == 4);
        free_trial(&t);
    }
}

// ---- against the best there is

static void force(Force* x, int k);

// Document k goes into part p, which is the last one or one that there is.
static void force_into(Force* x, int k, int p) {
    Part* part = &x->parts[p];
    Part was = *part;
    double s = x->lengths[k];
    if (joins(part->group, &part->place, x->lengths[k])) {
        part->s1 += s, part->s2 += s * s;
        if (rounds_ms(x) < x->best) force(x, k + 1);
    }
    *part = was;
}

// From all but local ones of a shared part's ranks, and the other way round.
static int is_apart(const Force* x, int round, int first, int d) {
    for (int i = 0; i < x->n_parts; i++) {
        const Part *p = &x->parts[i], own = {round, first, d, 0, 0, 0, NULL};
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
            x->parts[x->n_parts++] = (Part){round, first, d, 0, 0, 0, &x->setting->groups[d]};
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
CLAIM(few_documents_come_close_to_the_best_rounds) {
    double worst = 1, sum = 0;
    int tried = 0, best = 0, several = 0;
    uint64_t worst_seed = 0;
    for (uint64_t seed = 0; seed < 1200; seed++) {
        Step step = small_random_step(seed, 5);
        World world;
        random_world(&world, &step.limits, seed);
        world.setting.rounds = 1;
        Trial t = planned(plan_flex, step.lengths, step.n, &world.setting);
        if (t.result == 0) {
            Force x = {.setting = &world.setting, .lengths = step.lengths, .n = step.n, .best = 1e300};
            check_rounds(&t, step.lengths, step.n, &world.setting);
            force(&x, 0);
            CHECK(x.best >= t.f.bounds.l3 * (1 - 1e-9));
            if (chosen_kind(&t.f) == FLEX_ROUNDS) CHECK(t.f.makespan >= x.best * (1 - 1e-9));
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
CLAIM(plans_for_rounds_come_close_to_integer_programs) {
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
        Trial t = planned(plan_flex, golden[i].lengths, golden[i].n, &setting);
        CHECK(t.result == 0 && t.f.makespan >= golden[i].ms - 0.001);
        sum += t.f.makespan / golden[i].ms, worst = fmax(worst, t.f.makespan / golden[i].ms);
        free_trial(&t);
    }
    printf("    over the integer program's at most %.4f, mean %.4f\n", worst, sum / COUNT(golden));
    CHECK(worst < 1.02 && sum / COUNT(golden) < 1.005);
}

// ---- against a published planner that plans for rounds

static double flexsp_makespan(const int* lengths, int n, const Setting* setting) {
    Arena arena = {0};
    char err[ERR_BYTES];
    Plan plan;
    const void* flexsp = planner_flexsp.open(setting, NULL, 0, &arena, err);
    if (planner_flexsp.plan(flexsp, &plan, 3, lengths, n, &arena, err) < 0) die("%s", err);
    double ms = plan_ms(&plan, lengths, setting);
    arena_free(&arena);
    return ms;
}

// The last two: documents for 98 to 99 % of all ranks' tokens, so that one micro-batch a rank suffices, and another
// costs 629 ms; also where a step needs no rounds.
CLAIM(nowhere_behind_flexsp) {
    enum { RANKS = 64, MOST = 512 };
    static const struct {
        const char *machine, *lengths;
        int n, batches;
        uint64_t seed;
        int both;
    } rows[] = {{"flexsp-7b", "wikipedia", 128, 3, 11, 0}, {"flexsp-7b", "wikipedia", 512, 3, 11, 0},
                {"flexsp-7b", "prolong", 128, 3, 11, 0},   {"flexsp-7b", "prolong", 512, 3, 11, 0},
                {"a100-7b", "wikipedia", 128, 3, 11, 0},   {"a100-7b", "wikipedia", 512, 3, 11, 0},
                {"a100-7b", "prolong", 128, 3, 11, 0},     {"a100-7b", "prolong", 512, 3, 11, 0},
                {"h200-8b", "wikipedia", 128, 3, 11, 0},   {"h200-8b", "wikipedia", 512, 3, 11, 0},
                {"h200-8b", "prolong", 128, 3, 11, 0},     {"h200-8b", "prolong", 512, 3, 11, 0},
                {"flexsp-7b", "prolong", 128, 1, 22, 1},   {"flexsp-7b", "prolong", 128, 1, 50, 1}};
    static GroupCost groups[RANKS + 1];
    static int lengths[MOST];
    for (int i = 0; i < COUNT(rows); i++) {
        double ours = 0, theirs = 0;
        char err[ERR_BYTES];
        Setting setting;
        int n = rows[i].n;
        named_setting(&setting, groups, rows[i].machine, "", RANKS, 8);
        Lengths* drawn = lengths_open(rows[i].lengths, 196608, setting.limits.capacity, err);
        for (int batch = 0; batch < rows[i].batches; batch++)
            for (setting.rounds = !rows[i].both; setting.rounds < 2; setting.rounds++) {
                lengths_draw(drawn, lengths, n, rows[i].seed, batch);
                Trial t = planned(plan_flex, lengths, n, &setting);
                if (setting.rounds) check_rounds(&t, lengths, n, &setting);
                double flexsp = flexsp_makespan(lengths, n, &setting);
                CHECK(t.f.makespan <= flexsp);
                ours += t.f.makespan, theirs += flexsp;
                free_trial(&t);
            }
        printf("    %-9s %-9s %3d documents: %.3f of FlexSP's time\n", rows[i].machine, rows[i].lengths, n,
               ours / theirs);
        lengths_close(drawn);
    }
}

int main(void) { return test_main(); }
