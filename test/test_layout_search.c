// test_layout_search.c - the claims of plan/layout/layout_search.h: against brute force over all layouts of small
// models; and what messages of a layout cost (plan/layout/layout_cost.h), by their bytes.
#include "plan/layout/layout_cost.h"
#include "plan/layout/layout_search.h"
#include "test/test.h"

// A made-up machine: layers of unlike weight, strategies that trade time for memory.
typedef struct World {
    uint64_t seed;
    int alike;  // all layers are as the first
    Shape whole;
} World;

static double draw(const World* w, int i) { return 0.5 + random_uniform(w->seed, (uint64_t)i); }

static double world_layer_ms(void* context, const Layout* layout, int s, int l, int N) {
    const World* w = (const World*)context;
    const LayerLayout* row = &layout->layer[l];
    double ms = 10 * draw(w, w->alike ? 0 : l) + 0 * s + 1e-3 * N;
    ms *= row->recompute == RECOMPUTE_BLOCK ? 4.0 / 3 : row->recompute == RECOMPUTE_ACTIVATION ? 1.05 : 1;
    double exchanges = 0.2 * draw(w, 60) * (row->tp - 1) + 0.1 * draw(w, 62) * (layout->tp / row->tp - 1);
    return ms / layout->tp * (1 + exchanges) + draw(w, 61) * (row->zero - 1);
}

static double world_ends_ms(void* context, const Layout* layout, int s, int N) {
    const World* w = (const World*)context;
    (void)N;
    return (s == layout->stages - 1 ? 15 * draw(w, 50) : 0) / layout->tp;
}

// What a stage needs once depends on its layers: the most of them, so that bytes do not add up.
static double world_bytes(void* context, const Layout* layout, int s, int N) {
    const World* w = (const World*)context;
    double bytes = s == 0 || s == layout->stages - 1 ? 2 : 0, scratch = 0;
    for (int l = layout_first(layout, s); l < layout_first(layout, s + 1); l++) {
        const LayerLayout* row = &layout->layer[l];
        double kept = row->recompute == RECOMPUTE_BLOCK ? 0.2 : row->recompute == RECOMPUTE_NONE ? 1 : 0.8;
        bytes += draw(w, 20 + (w->alike ? 0 : l)) / (row->tp * row->zero);
        bytes += kept * (layout->stages - s) / layout->tp * N / 100;
        double exchanged = row->tp < layout->tp ? 0.2 : 0;
        scratch = fmax(scratch, exchanged + (row->recompute == RECOMPUTE_BLOCK ? 0.4 : row->zero == 3 ? 0.3 : 0));
    }
    return 100 * (bytes + scratch);
}

static double world_rounds(void* context, const Layout* layout, int N) {
    return 1 + ((const World*)context)->seed % 4 * (uint64_t)layout->stages * 100 / (uint64_t)N;
}

static LayoutProblem problem_of(World* w, uint64_t seed, int L, int ranks, double memory) {
    w->seed = seed, w->alike = 0;
    w->whole = shape_make(L, 48, 4, 300, 64);
    return (LayoutProblem){.whole = &w->whole,
                           .ranks = ranks,
                           .tp = {1, 4},
                           .stages = {1, MOST_STAGES},
                           .zero = {1, 3},
                           .n_rows = 2,
                           .rows = {50, 100},
                           .memory = memory,
                           .bytes = world_bytes,
                           .layer_ms = world_layer_ms,
                           .ends_ms = world_ends_ms,
                           .rounds = world_rounds,
                           .context = w,
                           .times = w};
}

static double whole_ms(const LayoutProblem* p, const Layout* layout, int N) {
    double most = 0, sum = 0, v = p->rounds(p->times, layout, N);
    for (int s = 0; s < layout->stages; s++) {
        double ms = p->ends_ms(p->times, layout, s, N);
        for (int l = layout_first(layout, s); l < layout_first(layout, s + 1); l++)
            ms += p->layer_ms(p->times, layout, s, l, N);
        if (p->bytes(p->context, layout, s, N) > p->memory) return INFINITY;
        most = fmax(most, ms), sum += ms;
    }
    return (sum + (v - 1) * most) / v;
}

// Strategies of a layer in groups of this tp.
static int list_strategies(LayerLayout* rows, const LayoutProblem* p, const Layout* layout) {
    int n = 0;
    for (int tp = 1; tp <= layout->tp; tp++)
        for (int i = 0; i < 9; i++) {
            int shards = p->ranks / (tp * layout->stages);
            if (layout->tp % tp || (tp < layout->tp && !p->unlike) || (shards == 1 && i >= 3)) continue;
            rows[n++] = (LayerLayout){tp, 1 + i / 3, (Recompute)(i % 3)};
        }
    return n;
}

// The least ms of all rows for layers from l on; a stage's layers are alike, or not where the engine can run that.
static double brute_rows(const LayoutProblem* p, Layout* layout, int s, int l, int N) {
    double least = INFINITY;
    LayerLayout rows[LAYOUT_STRATEGIES];
    if (s == layout->stages) return whole_ms(p, layout, N);
    int end = layout_first(layout, s + 1);
    for (int i = 0, n = list_strategies(rows, p, layout); i < n; i++) {
        int many = p->unlike ? 1 : layout->stage[s].layers;
        for (int k = l; k < l + many; k++) layout->layer[k] = rows[i];
        least = fmin(least, brute_rows(p, layout, l + many == end ? s + 1 : s, l + many, N));
    }
    return least;
}

// The least ms of all layouts from stage s on, whose layers before are `at`.
static double brute_force(const LayoutProblem* p, Layout* layout, int s, int at) {
    double least = INFINITY;
    int L = p->whole->L, behind = layout->stages - 1 - s;
    if (s == layout->stages) {
        for (int i = 0; i < p->n_rows; i++) least = fmin(least, brute_rows(p, layout, 0, 0, p->rows[i]));
        return least;
    }
    for (int n = behind ? 1 : L - at; n <= L - at - behind; n++) {
        layout->stage[s].layers = n;
        least = fmin(least, brute_force(p, layout, s + 1, at + n));
    }
    return least;
}

static int same_try(const LayoutProblem* p, const LayoutTry* t) {
    Layout any = {.tp = t->layout.tp, .stages = t->layout.stages};
    char err[ERR_BYTES];
    double ms = brute_force(p, &any, 0, 0);
    CHECK(t->fits == (ms < INFINITY));
    if (!t->fits) return 0;
    CHECK_CLOSE(t->ms, ms, 1e-9 * ms);
    CHECK_CLOSE(whole_ms(p, &t->layout, t->N), ms, 1e-9 * ms);
    CHECK(layout_check(&t->layout, p->whole, p->ranks, err) == 0);
    for (int s = 0; s < t->layout.stages; s++)
        CHECK(p->bytes(p->context, &t->layout, s, t->N) <= fmin(p->memory, t->bytes));
    return 1;
}

CLAIM(the_search_finds_what_brute_force_finds) {
    int found = 0, none = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        static LayoutTry tries[LAYOUT_TRIES];
        Arena arena = {0};
        char err[ERR_BYTES];
        World w;
        int L = 2 + (int)(seed % 3), ranks = seed % 2 ? 4 : 6;
        LayoutProblem p = problem_of(&w, seed, L, ranks, 40 + 60 * (double)(seed % 11));
        int n = layout_search(tries, &p, &arena, err);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) same_try(&p, &tries[i]) ? found++ : none++;
        for (int i = 1; i < n; i++) {
            const LayoutTry *before = &tries[i - 1], *t = &tries[i];
            CHECK(before->fits >= t->fits);
            CHECK(t->fits ? before->ms <= t->ms : before->fits || before->bytes <= t->bytes);
        }
        arena_free(&arena);
    }
    if (found <= 100 || none <= 20) printf("    %d found, %d none\n", found, none);
    CHECK(found > 100 && none > 20);
}

// Every layer of a stage by a strategy of its own, where all layers of the model cost the same.
CLAIM(layers_by_strategies_of_their_own_are_those_of_brute_force) {
    int same = 0, n_all = 0, gains = 0, unlike_tp = 0;
    for (uint64_t seed = 0; seed < 150; seed++) {
        static LayoutTry alike[LAYOUT_TRIES], unlike[LAYOUT_TRIES];
        Arena arena = {0};
        char err[ERR_BYTES];
        World w;
        LayoutProblem p = problem_of(&w, seed, 3 + (int)(seed % 3), 2, 100 + 50 * (double)(seed % 11));
        p.tp[1] = 2, p.n_rows = 1, p.rows[0] = 100;
        p.alike = w.alike = 1;
        int n = layout_search(alike, &p, &arena, err);
        p.unlike = 1;
        CHECK(layout_search(unlike, &p, &arena, err) == n);
        for (int i = 0; i < n; i++) {
            const LayoutTry* t = &unlike[i];
            Layout any = {.tp = t->layout.tp, .stages = t->layout.stages};
            LayerLayout rows[LAYOUT_STRATEGIES];
            for (int l = 1; l < p.whole->L && t->fits; l++) unlike_tp += t->layout.layer[l].tp != t->layout.layer[0].tp;
            if (pow(list_strategies(rows, &p, &t->layout), p.whole->L) > 3e4) continue;  // too many
            double least = brute_force(&p, &any, 0, 0);
            CHECK(t->fits ? t->ms >= least * (1 - 1e-9) : 1);
            if (t->fits) CHECK_CLOSE(whole_ms(&p, &t->layout, t->N), t->ms, 1e-9 * t->ms);
            if (least < INFINITY) n_all++, same += t->fits && t->ms <= least * (1 + 1e-9);
        }
        CHECK(unlike[0].ms <= alike[0].ms);
        gains += unlike[0].ms < alike[0].ms * (1 - 1e-9);
        arena_free(&arena);
    }
    printf("    %d of %d as brute force; better than alike layers in %d of 150, %d with unlike tp\n", same, n_all,
           gains, unlike_tp);
    CHECK(same == n_all && n_all > 80 && gains > 10 && unlike_tp > 10);
}

// Nothing hides under anything: what a layer's messages take is what their bytes take on the link, a thousand a ms, for
// zero 1 to 3 and for a layer whose two cuts have tokens of their own.
CLAIM(messages_of_a_layer_take_what_their_bytes_take) {
    enum { RANKS = 4, N = 128, C = 48, HEADS = 4, E = 4 };
    Shape whole = shape_make(2, C, HEADS, 300, 64);
    Machine machine = {.cost = {.per_token = 0.01, .link_scale = 1, .layers = 2, .channels = C, .kv_channels = C}};
    machine.cost.elem_bytes = E;
    for (int k = 0; k < 2; k++) machine.cost.link[k] = (LinkTable){2, {1e3, 1e9}, {1, 1e6}};
    Arena arena = {0};
    LayoutCosts c;
    layout_costs(&c, &whole, &machine, RANKS, RANKS, E, &arena);
    c.overlap = c.tensor_overlap = 0, c.tokens = 3 * N * RANKS, c.mean_length = N;
    Shape one = shape_stage(&whole, 0, 1);
    double bytes = E * (double)shape_bucket(&one, 1).elems * (RANKS - 1) / RANKS, gather = bytes / 1e3, reduce = gather;
    const struct {
        double rounds, step;
    } zero[] = {{0, gather + reduce}, {3 * reduce, gather}, {3 * (2 * gather + reduce), 0}};
    for (int i = 0; i < 3; i++) {
        Layout layout = layout_even(&whole, 1, 1, 1 + i, RECOMPUTE_NONE);
        double ms[N_LAYOUT_TERMS] = {0};
        layout_layer_ms(ms, &c, &layout, 0, 0, N);
        CHECK_CLOSE(ms[TERM_ROUNDS], zero[i].rounds, 1e-9 * gather);
        CHECK_CLOSE(ms[TERM_STEP], zero[i].step, 1e-9 * gather);
        CHECK(ms[TERM_SEQUENCE] == 0 && ms[TERM_TENSOR] == 0);
    }
    // 6 rounds: half as many groups. Of a group's tokens half, of half of the heads, queries, keys and values one way,
    // outputs the other; backward as much.
    Layout cuts = layout_even(&whole, 2, 1, 1, RECOMPUTE_NONE);
    cuts.layer[0].tp = 1;
    double ms[N_LAYOUT_TERMS] = {0}, head = (double)N / 2 * C / HEADS * E;
    layout_layer_ms(ms, &c, &cuts, 0, 0, N);
    CHECK_CLOSE(ms[TERM_SEQUENCE], 6 * 2 * (6 * head + 2 * head) / 1e3, 1e-6);
    arena_free(&arena);
}

int main(void) { return test_main(); }
