// test_steps.c - whole steps, from the gather of weights to the update: what Timeline.step says against a plain play of
// every communication, its bound against all plans of small steps in all orders, and flex against both.
#include "plan/step/flex.h"
#include "test/settings.h"

static Arena arena;
static char err[ERR_BYTES];

// Weights and gradients of some layers that take a share of `ms`.
static WeightTimes some_weights(uint64_t seed, double ms) {
    WeightTimes w = {.zero = pick(seed, 0, 1, 3), .layers = pick(seed, 1, 1, 6), .hides = pick(seed, 2, 0, 4) > 0};
    double scale = ms * random_uniform(seed, 3) / w.layers;
    w.inside = w.hides && pick(seed, 4, 0, 3), w.across = pick(seed, 5, 0, 1);
    w.head = 0.2 * random_uniform(seed, 6), w.before = 0.3 * random_uniform(seed, 7), w.update = 3;
    for (int k = 0; k < N_WEIGHTS; k++) {
        w.gather[k] = scale * random_uniform(seed, 10 + (uint64_t)k);
        w.reduce[k] = scale * random_uniform(seed, 20 + (uint64_t)k);
    }
    return w;
}

// ---- by hand

// Two ranks, two layers of 30 ms forward and 60 backward each; a gather takes 10 a bucket, a reduction 40.
static WeightTimes hand_weights(int zero) {
    return (WeightTimes){.zero = zero,
                         .layers = 2,
                         .hides = 1,
                         .inside = 1,
                         .gather = {10, 10, 10},
                         .reduce = {40, 40, 40},
                         .update = 5};
}

static const PassParts pass = {.forward = 60, .backward = 120, .fixed = 7, .linear = 60};

CLAIM(a_first_pass_waits_for_its_layers) {
    WeightTimes w = hand_weights(1);
    CHECK_CLOSE(weights_late_ms(&w, &pass, 0), 20, 1e-12);  // the embeddings and the first layer
    CHECK_CLOSE(weights_late_ms(&w, &pass, 15), 5, 1e-12);
    CHECK(weights_late_ms(&w, &pass, 40) == 0);
    w.gather[WEIGHTS_LAYER] = 50;  // 10, 60, 110, 120: the second layer begins at 110, for 30 ms
    CHECK_CLOSE(weights_late_ms(&w, &pass, 0), 110 + 30 - 60, 1e-12);
    PassParts meets = pass;
    meets.meets = 1;  // its exchange waits for all, at 120
    CHECK_CLOSE(weights_late_ms(&w, &meets, 0), 120, 1e-12);
    meets.slack[0] = 40;  // of two layers
    CHECK_CLOSE(weights_late_ms(&w, &meets, 0), 100, 1e-12);
}

// A rank ends at 187: the classifier's bucket is ready at 60, layers at 120 and 180, embeddings at 187.
CLAIM(gradients_leave_inside_the_last_pass) {
    WeightTimes w = hand_weights(1);
    WeightRank ranks[2] = {{pass, 187, 1}, {pass, 187, 1}};
    CHECK_CLOSE(weights_play_end(&w, ranks, 2), 180 + 40 + 40 + 5, 1e-12);
    ranks[0] = (WeightRank){pass, 187, 1}, ranks[1] = (WeightRank){pass, 287, 1};  // all wait for the later one
    CHECK_CLOSE(weights_play_end(&w, ranks, 2), 280 + 40 + 40 + 5, 1e-12);
    ranks[0] = (WeightRank){pass, 187, 1}, ranks[1] = (WeightRank){pass, 187, 0};  // behind its last pass
    CHECK_CLOSE(weights_play_end(&w, ranks, 2), 187 + 160 + 5, 1e-12);
    ranks[0] = (WeightRank){pass, 187, 1}, ranks[1] = (WeightRank){{0}, 0, 0};  // it has no pass at all
    CHECK_CLOSE(weights_play_end(&w, ranks, 2), 180 + 40 + 40 + 5, 1e-12);
    w.hides = w.inside = 0;
    ranks[0] = ranks[1] = (WeightRank){pass, 187, 0};
    CHECK_CLOSE(weights_play_end(&w, ranks, 2), 187 + 160 + 5 + 40, 1e-12);
}

// Its last layer's gradients leave at 180, and with zero 3 the weights of both layers are in place but in the first.
CLAIM(rounds_reduce_and_gather_layer_by_layer) {
    for (int zero = 2; zero <= 3; zero++) {
        WeightTimes w = hand_weights(zero);
        WeightRank ranks[2] = {{pass, 0, 0}, {pass, 0, 0}};
        CHECK_CLOSE(weights_play_round(&w, ranks, 2, 0, 0), 220, 1e-12);
        ranks[0].at = ranks[1].at = 0;
        CHECK_CLOSE(weights_play_round(&w, ranks, 2, 0, 1), 260, 1e-12);
        ranks[0].at = ranks[1].at = 0;
        CHECK_CLOSE(weights_play_round(&w, ranks, 2, 1, 0), zero == 3 ? 250 : 220, 1e-12);
        w.reduce[WEIGHTS_LAYER] = 100, ranks[0].at = ranks[1].at = 0;  // 120 + 100 + 100
        CHECK_CLOSE(weights_play_round(&w, ranks, 2, 0, 0), 320, 1e-12);
    }
}

// 502 ms of weights, between nodes: a document on one node hides under its pass what one on two, whose exchange in the
// first layer waits for all of them on the same link, shows.
CLAIM(exchanges_between_nodes_wait_for_weights) {
    static const int length = 60000;
    double late[2];
    for (int k = 0; k < 2; k++) {
        Plan plan;
        Prediction f;
        arena_reset(&arena, (ArenaMark){0});
        named_world(&world, "a100-7b", 16, 8);
        Setting* s = &world.setting;
        s->limits.capacity = 8192;
        cost_groups(world.groups, &s->cost, &s->limits, s->kind);
        s->weights = (WeightTimes){.zero = 1, .layers = 10, .across = 1, .hides = 1, .gather = {1, 50, 1}};
        plan_take(&plan, 1, &arena);
        plan.ranks = 16, plan.n_docs = plan.n_micro_batches = plan.n_rounds = 1, plan.docs[0] = 0;
        plan.micro_batches[0] = (MicroBatch){0, k ? 16 : 8, s->groups[k ? 16 : 8].ulysses_size, 0, 1, 0};
        CHECK(predict_time(&f, &plan, &length, s, &arena, err) == 0);
        late[k] = f.step - f.makespan;
    }
    CHECK_CLOSE(late[0], 51, 1e-6);
    CHECK_CLOSE(late[1], 502, 1e-6);
}

// ---- all plans of small steps, in all orders

enum { RANKS = 3, WINDOWS = 6, MOST = 4 };

static const int windows[WINDOWS][2] = {{0, 1}, {1, 1}, {2, 1}, {0, 2}, {1, 2}, {0, 3}};

typedef struct Small {
    int lengths[MOST], n;
    Setting* setting;
    Plan plan;
    double least, bound;
    long played;
} Small;

static void try_order(Small* x) {
    Plan plan = x->plan;
    Timeline t;
    plan.n_rounds = 0;
    ArenaMark mark = arena_mark(&arena);
    for (int late = 0; late < 2; late++) {
        if (plan_set_rounds(&plan, &arena, err) < 0) die("%s", err);
        if (late && (x->setting->rounds || plan_end_late(&plan, &arena, err) < 0)) break;
        if (timeline_play(&t, &plan, x->lengths, x->setting, &arena, err) < 0) die("%s", err);
        CHECK(t.step >= x->bound * (1 - 1e-9));
        CHECK(t.step >= t.makespan + x->setting->weights.update);
        x->least = MIN(x->least, t.step), x->played++;
    }
    arena_reset(&arena, mark);
}

static void permute(Small* x, int k) {
    MicroBatch* mb = x->plan.micro_batches;
    if (k == x->plan.n_micro_batches) try_order(x);
    for (int i = k; i < x->plan.n_micro_batches; i++) {
        MicroBatch kept = mb[k];
        mb[k] = mb[i], mb[i] = kept;
        permute(x, k + 1);
        kept = mb[k], mb[k] = mb[i], mb[i] = kept;
    }
}

// Documents of a window in one micro-batch where it holds them, or each in its own.
static int make_groups(Small* x, const int* window, int together) {
    Plan* plan = &x->plan;
    int doc = 0;
    plan->n_micro_batches = 0;
    for (int w = 0; w < WINDOWS; w++) {
        const GroupCost* g = &x->setting->groups[windows[w][1]];
        int64_t tokens = 0;
        MicroBatch* mb = NULL;
        for (int i = 0; i < x->n; i++) {
            if (window[i] != w) continue;
            if (!group_holds(g, x->lengths[i])) return 0;
            if (mb && together && (tokens += document_takes(g, x->lengths[i])) > g->room) return 0;
            if (!mb || !together) {
                mb = &plan->micro_batches[plan->n_micro_batches++];
                *mb = (MicroBatch){windows[w][0], windows[w][1], g->ulysses_size, doc, 0, 0};
                tokens = document_takes(g, x->lengths[i]);
            }
            plan->docs[doc++] = i, mb->n_docs++;
        }
    }
    return 1;
}

static void try_all(Small* x) {
    int window[MOST] = {0}, all = 1;
    for (int i = 0; i < x->n; i++) all *= WINDOWS;
    for (int k = 0; k < all; k++) {
        for (int i = 0, rest = k; i < x->n; i++, rest /= WINDOWS) window[i] = rest % WINDOWS;
        for (int together = 0; together < 2; together++)
            if (make_groups(x, window, together)) permute(x, 0);
    }
}

static void open_small(Small* x, uint64_t seed) {
    static const char* const names[] = {"a100-7b", "h200-8b"};
    named_world(&world, names[seed % 2], RANKS, 8);
    *x = (Small){.n = pick(seed, 0, 1, MOST), .setting = &world.setting, .least = INFINITY};
    Setting* s = x->setting;
    s->limits.capacity = 6451;
    s->cost.micro_batch = pick(seed, 1, 0, 1) ? 40 : 0, s->cost.parts = pick(seed, 2, 0, 4);
    cost_groups(world.groups, &s->cost, &s->limits, s->kind);
    for (int i = 0; i < x->n; i++) x->lengths[i] = pick(seed, 10 + i, 100, pick(seed, 3, 0, 1) ? 6000 : 12000);
    s->weights = some_weights(hash64(seed), 800);
    s->rounds = s->weights.zero > 1;
    plan_take(&x->plan, MOST, &arena);
    x->plan.ranks = RANKS, x->plan.n_docs = x->n;
}

// Flex does not look at all plans; how far it is from the best of these is a figure of dev/results/steps.md.
CLAIM(no_plan_in_any_order_beats_the_bound_of_a_step_and_flex_comes_near_the_best) {
    enum { STEPS = 48 };
    double sum = 0, worst = 0;
    long played = 0;
    int n = 0;
    for (uint64_t seed = 1; seed <= STEPS; seed++) {
        Small x;
        Plan plan;
        Prediction f;
        arena_reset(&arena, (ArenaMark){0});
        open_small(&x, seed);
        if (plan_flex(&plan, &f, 0, x.lengths, x.n, x.setting, &arena, err) < 0) continue;
        x.bound = f.bounds.step;
        try_all(&x);
        CHECK(f.step >= x.bound * (1 - 1e-9) && x.least < INFINITY);
        double over = f.step / x.least;
        sum += over, worst = fmax(worst, over), n++, played += x.played;
    }
    printf("    %d steps, %ld plans in all orders: flex takes %.4f of the best in the mean, %.3f at worst\n", n, played,
           sum / n, worst);
    CHECK(n > STEPS / 2 && sum / n < 1.01 && worst < 1.1);
}

// Any plan of any planner's kind on many ranks.
CLAIM(random_plans_of_random_steps_take_no_less_than_the_bound) {
    int n = 0;
    for (uint64_t seed = BEFORE_FIRST; next_world(&seed, 400);) {
        Prediction f;
        Plan plan;
        Timeline t;
        Setting* s = &world.setting;
        arena_reset(&arena, (ArenaMark){0});
        s->weights = (WeightTimes){0};
        if (plan_flex(&plan, &f, 0, step.lengths, step.n, s, &arena, err) < 0 || step.n == 0) continue;
        s->weights = some_weights(seed, f.makespan), s->rounds = s->weights.zero > 1;
        if (plan_flex(&plan, &f, 0, step.lengths, step.n, s, &arena, err) < 0) continue;
        CHECK(step_play(&t, &plan, step.lengths, s, &arena, err) == 0);
        CHECK_CLOSE(t.step, f.step, 1e-9 * f.step);
        CHECK(f.step >= f.bounds.step * (1 - 1e-9) && f.bounds.step >= f.bounds.beside);
        if (scatter(&plan, step.lengths, step.n, s, seed) || step_play(&t, &plan, step.lengths, s, &arena, err))
            continue;
        CHECK(t.step >= f.bounds.step * (1 - 1e-9));
        n++;
    }
    CHECK(n > 60);
}

// A plan that ends with short rows shows more than its reverse, which is as long by itself. Short rows in the middle
// leave the first pass to one that hides weights.
CLAIM(passes_run_in_the_order_that_hides_most) {
    static const int lengths[] = {6400, 6400, 6400, 6000, 6000, 6000, 1000, 1000, 1000};
    named_world(&world, "a100-7b", RANKS, 8);
    Setting* s = &world.setting;
    s->limits.capacity = 6451;
    cost_groups(world.groups, &s->cost, &s->limits, s->kind);
    Plan plan;
    Prediction f;
    arena_reset(&arena, (ArenaMark){0});
    plan_take(&plan, COUNT(lengths), &arena);
    plan.ranks = RANKS, plan.n_docs = plan.n_micro_batches = COUNT(lengths), plan.n_rounds = 3;
    for (int i = 0; i < COUNT(lengths); i++)
        plan.docs[i] = i, plan.micro_batches[i] = (MicroBatch){i % RANKS, 1, 1, i, 1, i / RANKS};
    CHECK(predict_time(&f, &plan, lengths, s, &arena, err) == 0);
    double alone = f.makespan;
    s->weights = (WeightTimes){.zero = 1, .layers = 10, .hides = 1, .inside = 1, .reduce = {1, 60, 1}};
    CHECK(predict_time(&f, &plan, lengths, s, &arena, err) == 0 && f.step > alone + 400);
    CHECK(plan_order(&plan, &f, lengths, s, &arena, err) == 0);
    CHECK_CLOSE(f.makespan, alone, 1e-9 * alone);
    CHECK(f.step < alone + 70);
    s->weights.gather[WEIGHTS_LAYER] = 30;
    CHECK(predict_time(&f, &plan, lengths, s, &arena, err) == 0);
    CHECK(plan_order(&plan, &f, lengths, s, &arena, err) == 0 && plan.n_rounds == 3);
    for (int i = 0; i < plan.n_micro_batches; i++)
        CHECK((plan.micro_batches[i].round == 1) == (lengths[plan.docs[plan.micro_batches[i].first_doc]] == 1000));
}

int main(void) { return test_main(); }
