// test_layout_steps.c - claims about plan/search/layout_steps.h: steps of equal documents take what equal rounds take,
// no steps of the same tokens less, and what is chosen is the fastest of all that the search has found.
#include "plan/search/layout_steps.h"
#include "test/test.h"
#include "test/shapes.h"

enum { RANKS = 16, CONTEXT = 512, LAYERS = 8, TOKENS = 16 * 2048 };

static char err[ERR_BYTES];
static Shape whole;
static Arena arena;

static void open_costs(LayoutCosts* c, int overlap) {
    Machine machine = {.cost = {.per_token = 0.02, .quadratic = 2e-5, .link_scale = 1, .layers = LAYERS}};
    whole = shape_make(LAYERS, 256, 8, 1000, CONTEXT);
    machine.cost.channels = machine.cost.kv_channels = 256, machine.cost.elem_bytes = 4;
    for (int k = 0; k < 2; k++) machine.cost.link[k] = (LinkTable){2, {1e3, 1e9}, {0.01 + 0.01 * k, 2e2 + 6e2 * k}};
    layout_costs(c, &whole, &machine, RANKS, 8, 4, &arena);
    c->overlap = c->tensor_overlap = overlap, c->context = CONTEXT, c->parts = 4;
}

// Documents of one length, or many short ones and few long ones.
static SampledSteps steps_of(LayoutCosts* c, int* lengths, int n, int is_ragged, uint64_t seed) {
    for (int i = 0; i < n; i++) {
        double u = hash64(seed + (uint64_t)i) % 1000 / 1000.0;
        lengths[i] = is_ragged ? MAX(4, (int)(CONTEXT * pow(u, 6))) : CONTEXT;
    }
    SampledSteps steps = sampled_steps(lengths, n, TOKENS);
    layout_costs_of_steps(c, &steps);
    return steps;
}

static Layout layout_number(int i) {
    return layout_even(&whole, 1 << i % 3, 1 << i / 3 % 2, 1 + i / 6 % 3, i % 5 ? RECOMPUTE_NONE : RECOMPUTE_BLOCK);
}

CLAIM(steps_are_cut_as_the_sampler_cuts_them) {
    int lengths[] = {5, 5, 3, 9, 1, 1, 10, 2, 8, 7};
    SampledSteps s = sampled_steps(lengths, COUNT(lengths), 10);
    CHECK(s.n == SAMPLED_STEPS && s.first[0] == 0 && s.first[1] == 2 && s.first[2] == 3 && s.first[3] == 5 &&
          s.first[4] == 6);
    s = sampled_steps(lengths, 2, 100);
    CHECK(s.n == 1 && s.first[1] == 2);
    CHECK(sampled_steps(lengths, 0, 10).n == 0);
}

CLAIM(steps_of_equal_documents_take_what_equal_rounds_take) {
    static int lengths[4096];
    for (int overlap = 0; overlap < 2; overlap++) {
        LayoutCosts c;
        open_costs(&c, overlap);
        SampledSteps steps = steps_of(&c, lengths, 1024, 0, 0);
        CHECK(steps.n == 4 && c.tokens == TOKENS && c.mean_length == CONTEXT);
        for (int i = 0; i < 18; i++) {
            double terms[N_LAYOUT_TERMS], all[N_LAYOUT_TERMS];
            Layout layout = layout_number(i);
            double ms = layout_steps_ms(terms, &c, &layout, 1024, &steps, err);
            double equal = layout_step_ms(all, &c, &layout, 1024);
            CHECK_CLOSE(ms, equal, 1e-6 * equal);
            for (int t = 0; t < N_LAYOUT_TERMS; t++) CHECK_CLOSE(terms[t], all[t], 1e-6 * equal);
        }
    }
}

// Machines may know one of both constants alone.
CLAIM(steps_are_known_where_tokens_or_their_squares_take_nothing) {
    static int lengths[4096];
    for (int i = 0; i < 2; i++) {
        LayoutCosts c;
        double terms[N_LAYOUT_TERMS];
        open_costs(&c, 1);
        *(i ? &c.machine.cost.quadratic : &c.machine.cost.per_token) = 0;
        SampledSteps steps = steps_of(&c, lengths, 1024, 0, 0);
        Layout layout = layout_number(0);
        double equal = layout_step_ms(terms, &c, &layout, 1024);
        CHECK_CLOSE(layout_steps_ms(terms, &c, &layout, 1024, &steps, err), equal, 1e-6 * equal);
    }
}

// By more than what smaller rounds save in stages: that prunes the choice.
CLAIM(no_steps_take_less_than_equal_rounds) {
    static int lengths[4096];
    double most = 0;
    for (int i = 0; i < 72; i++) {
        LayoutCosts c;
        open_costs(&c, i % 2);
        SampledSteps steps = steps_of(&c, lengths, 1024, 1, (uint64_t)(1000 * i));
        double terms[N_LAYOUT_TERMS];
        Layout layout = layout_number(i / 2);
        int N = 128 << i % 5;
        if (N * RANKS / layout.tp / layout.stages < CONTEXT) continue;
        double ms = layout_steps_ms(terms, &c, &layout, N, &steps, err);
        double least = layout_step_ms(terms, &c, &layout, N);
        CHECK(ms < INFINITY && ms >= 0.9 * least);
        most = fmax(most, ms / least);
    }
    CHECK(most > 1.2);
}

static double some_bytes(void* context, const Layout* layout, int s, int N) {
    (void)context;
    double states = 0;
    for (int l = layout_first(layout, s); l < layout_first(layout, s + 1); l++)
        states += 16.0 / layout->layer[l].tp / (layout->layer[l].zero > 2 ? 4 : 1);
    return states + N / 64.0;
}

CLAIM(the_fastest_of_all_tries_is_chosen) {
    static LayoutTry tries[LAYOUT_TRIES];
    static int lengths[4096];
    int better = 0;
    for (int i = 0; i < 5; i++) {
        double terms[N_LAYOUT_TERMS], least = INFINITY, by_mean = 0;
        LayoutCosts c;
        open_costs(&c, i % 2);
        SampledSteps steps = steps_of(&c, lengths, 1024, 1, (uint64_t)(77 * i));
        LayoutProblem p = layout_problem(&c);
        int looked;
        p.bytes = some_bytes, p.memory = c.memory = 40 + 70 * i, p.unlike = p.apart = 1, p.tp[1] = 4;
        for (int N = 128; N <= 4096; N *= 2) p.rows[p.n_rows++] = N;
        int n = layout_search(tries, &p, &arena, err);
        for (int k = 0; k < n && tries[k].fits; k++) {
            double ms = layout_steps_ms(terms, &c, &tries[k].layout, tries[k].N, &steps, err);
            if (k == 0) by_mean = ms;
            least = fmin(least, ms);
        }
        double slack = layout_choose(tries, n, &looked, &c, &steps);
        CHECK(n > 4 && tries[0].fits && slack == 0);
        CHECK_CLOSE(tries[0].ms, least, 0.01 * least);
        for (int k = 1; k < n && tries[k].fits; k++)  // behind those that were looked at are bounds
            CHECK(tries[k].ms >= tries[k < looked ? k - 1 : 0].ms);
        better += least < 0.99 * by_mean;
    }
    CHECK(better > 0);
}

// Where half of the ranks are slow and small, a stage of theirs has fewer layers, and no step is longer than by even
// stages; and ranks that run all layers are planned with their own paces.
CLAIM(weak_ranks_have_less_to_do) {
    static LayoutTry tries[LAYOUT_TRIES];
    static int lengths[4096];
    double terms[N_LAYOUT_TERMS];
    LayoutCosts c;
    open_costs(&c, 0);
    SampledSteps steps = steps_of(&c, lengths, 1024, 1, 7);
    c.machine.n_kinds = 2, c.machine.kind_first[1] = RANKS / 2, c.machine.kind_speed[0] = 1;
    c.machine.kind_speed[1] = 0.5, c.machine.kind_gib[1] = 60.0 / (1 << 30);
    LayoutProblem p = layout_problem(&c);
    int looked;
    p.bytes = some_bytes, c.memory = 1000, p.tp[1] = 1, p.stages[0] = p.stages[1] = 2, p.rows[p.n_rows++] = 512;
    int n = layout_search(tries, &p, &arena, err);
    layout_choose(tries, n, &looked, &c, &steps);
    Layout* best = &tries[0].layout;
    CHECK(n > 0 && tries[0].fits && best->stage[0].layers > best->stage[1].layers);
    CHECK(some_bytes(NULL, best, 1, 512) <= 60);
    Layout even = layout_even(&whole, 1, 2, 1, RECOMPUTE_NONE);
    CHECK(tries[0].ms < 0.95 * layout_steps_ms(terms, &c, &even, 512, &steps, err));
    Layout one = layout_even(&whole, 1, 1, 1, RECOMPUTE_NONE);
    double unequal = layout_steps_ms(terms, &c, &one, 512, &steps, err);
    c.machine.n_kinds = 0;
    double equal = layout_steps_ms(terms, &c, &one, 512, &steps, err);
    CHECK(unequal > 1.1 * equal && unequal < 1.4 * equal);  // computing at best 1 / 0.75
}

// Round 0: a document on each rank; round 1: one on each but the last `idle`, or on the first `cp` together.
typedef struct Hand {
    int cp, idle;
} Hand;

static int plan_by_hand(const void* context, Plan* plan, const Setting* setting, const int* lengths, int n, Arena* a,
                        Err e) {
    const Hand* h = (const Hand*)context;
    if (plan_begin(plan, 1, lengths, n, &setting->limits, a, e)) return -1;
    for (int i = 0, rank = 0; i < n; i++) {
        int cp = i == RANKS ? h->cp : 1;
        plan->micro_batches[i] = (MicroBatch){rank % RANKS, cp, cp, i, 1, i >= RANKS};
        plan->docs[i] = i, rank += cp;
    }
    plan->n_micro_batches = n, plan->n_rounds = 2;
    return 0;
}

static double by_hand_ms(Hand h) {
    static int lengths[2 * RANKS];
    LayoutCosts c;
    double terms[N_LAYOUT_TERMS];
    open_costs(&c, 1);
    c.plan = plan_by_hand, c.plan_context = &h;
    for (int i = 0; i < 2 * RANKS; i++) lengths[i] = 256;
    Layout layout = layout_even(&whole, 1, 1, 1, RECOMPUTE_NONE);
    return layout_documents_ms(terms, &c, &layout, 512, lengths, 2 * RANKS - (h.cp - 1) - h.idle, err);
}

// As run/step/batch_ranks.c reduces: behind the last row of a rank that shares it, where others have ended before.
CLAIM(gradients_hide_under_the_last_row_unless_it_is_shared_and_ranks_end_apart) {
    double all = by_hand_ms((Hand){1, 0}), alone = by_hand_ms((Hand){1, 1}), shared = by_hand_ms((Hand){2, 0}),
           apart = by_hand_ms((Hand){2, 1});
    CHECK_CLOSE(alone, all, 1e-9 * all);
    CHECK(shared < 1.2 * all && apart > 1.05 * shared);
}

int main(void) { return test_main(); }
