// test_layout_search.c - the claims of plan/layout/layout.h: even stages by brute force, files there and back, what is
// refused; those of plan/search/layout_search.h: against brute force over all layouts of small models; and what
// messages of a layout cost (plan/search/layout_cost.h), by their bytes.
#include "plan/search/layout_cost.h"
#include "plan/search/layout_search.h"
#include "test/test.h"
#include "test/shapes.h"

// ---- the value

static const Layout usual = {.tp = 2, .stages = 1, .stage = {{4, 2}}, .layer = {{2, 2, RECOMPUTE_ACTIVATION}}};

static double worst_share(const Layout* layout, const Shape* whole) {
    double matmuls[MOST_STAGES], layers[MOST_STAGES], worst = 0, sum = 0;
    layout_shares(layout, whole, matmuls, layers);
    for (int s = 0; s < layout->stages; s++) {
        worst = fmax(worst, matmuls[s]);
        sum += matmuls[s];
        CHECK_CLOSE(layers[s], (double)layout->stage[s].layers / whole->L, 1e-12);
    }
    CHECK_CLOSE(sum, 1, 1e-12);
    return worst;
}

// The least of all ways to deal the layers from stage s on, `left` of them.
static double brute_stages(Layout* layout, const Shape* whole, int s, int left) {
    double least = 2;
    if (s == layout->stages - 1) {
        layout->stage[s].layers = left;
        return worst_share(layout, whole);
    }
    for (int n = 1; n <= left - (layout->stages - 1 - s); n++) {
        layout->stage[s].layers = n;
        least = fmin(least, brute_stages(layout, whole, s + 1, left - n));
    }
    return least;
}

CLAIM(the_largest_stage_is_as_small_as_layers_allow) {
    for (int L = 1; L <= 9; L++)
        for (int P = 1; P <= L && P <= 5; P++)
            for (int vocab = 64; vocab <= 40000; vocab = vocab * 5 + 3) {
                Shape whole = shape_make(L, 48, 4, vocab, 64);
                Layout even = layout_even(&whole, 1, P, 1, RECOMPUTE_NONE), any = even;
                char err[ERR_BYTES];
                CHECK(layout_check(&even, &whole, P, err) == 0);
                CHECK_CLOSE(worst_share(&even, &whole), brute_stages(&any, &whole, 0, L), 1e-12);
            }
}

static int parse(Layout* layout, const char* text, char* err) {
    err[0] = 0;
    return layout_parse(layout, &usual, text, strlen(text), err);
}

// A file says what it says, and the rest is as usual; lines may be joined by semicolons; layers of a stage have lines
// of their own.
CLAIM(files_are_read_as_they_are_written) {
    static const char* const rows[][2] = {
        {"# two\nstage layers 3 recompute block\n\n  stage zero 3 layers 2 # last",
         "tp 2\nstage layers 3 zero 2 recompute block\nstage layers 2 zero 3 recompute activation\n"},
        {"tp 4\r\nstage layers 1\r\n", "tp 4\nstage layers 1 zero 2 recompute activation\n"},
        {"tp 1; # of all; two\nstage layers 3 zero 1; stage zero 3;layers 1 ;  layers 2",
         "tp 1\nstage layers 3 zero 1 recompute activation\nstage layers 3 zero 3 recompute activation\n"},
        {"stage zero 3 tp 1\n  layers 1 tp 2 recompute block\n  layers 3 zero 1\n"
         "stage layers 2\n  layers 1 tp 1\n  layers 1\n tp 4\n",
         "tp 4\nstage layers 4 zero 3\n  layers 1 tp 2 zero 3 recompute block\n"
         "  layers 3 tp 1 zero 1 recompute activation\nstage layers 2 zero 2\n"
         "  layers 1 tp 1 zero 2 recompute activation\n  layers 1 tp 4 zero 2 recompute activation\n"}};
    Layout l;
    char err[ERR_BYTES], text[LAYOUT_TEXT];
    for (int i = 0; i < COUNT(rows); i++) {
        CHECK(parse(&l, rows[i][0], err) == 0);
        layout_print(&l, text, sizeof text);
        CHECK_STRING(text, rows[i][1]);
    }
    CHECK(layout_first(&l, 1) == 4 && layout_first(&l, 2) == 6);
    CHECK_CLOSE(layout_again(&l, 0), 0.25, 0);
}

static LayerLayout draw_row(uint64_t seed, int l, int tp) {
    uint64_t at = 3 * (uint64_t)l;
    return (LayerLayout){random_uniform(seed, at) < 0.5 ? tp : 1, 1 + (int)(random_uniform(seed, at + 1) * 3),
                         (Recompute)(random_uniform(seed, at + 2) * 3)};
}

CLAIM(what_is_printed_reads_back) {
    for (uint64_t seed = 0; seed < 200; seed++) {
        Layout a, b;
        static char text[LAYOUT_TEXT];
        char err[ERR_BYTES];
        memset(&a, 0, sizeof a);
        a.tp = 1 + (int)(random_uniform(seed, 0) * 64), a.stages = 1 + (int)(random_uniform(seed, 1) * MOST_STAGES);
        for (int s = 0; s < a.stages; s++) {
            int first = layout_first(&a, s), n = 1 + (int)(random_uniform(seed, 2 + (uint64_t)s) * 15);
            layout_set_stage(&a, s, n, draw_row(seed, 100 + first, a.tp));
            for (int l = first; l < first + n && s % 2; l++) a.layer[l] = draw_row(seed, 100 + l, a.tp);
        }
        size_t n = layout_print(&a, text, sizeof text);
        CHECK(n < sizeof text && n == strlen(text));
        CHECK(layout_parse(&b, &usual, text, n, err) == 0 && memcmp(&a, &b, sizeof a) == 0);
        char small[20];
        CHECK(layout_print(&a, small, sizeof small) == n && strlen(small) < sizeof small);
    }
}

CLAIM(layouts_that_ranks_cannot_run_are_refused) {
    static const struct {
        const char* text;
        int ranks;
        const char* words;
    } rows[] = {
        {"tp 2; stage layers 3; stage layers 2", 8, ""},
        {"tp 2; stage layers 3; stage layers 2", 6,
         "2 stages of tensor-parallel groups of 2 do not divide 6 ranks; try mpirun -n 8"},
        {"tp 2; stage layers 3; stage layers 2 tp 3", 8, "layer 3 has tp 3: expected a divisor of the groups' tp 2"},
        {"tp 2; stage layers 3; stage layers 3", 8, "expected stages of 5 layers together, as the model has, found 6"}};
    Shape whole = shape_make(5, 48, 4, 300, 64);
    for (int i = 0; i < COUNT(rows); i++) {
        Layout l;
        char err[ERR_BYTES];
        CHECK(parse(&l, rows[i].text, err) == 0);
        CHECK(layout_check(&l, &whole, rows[i].ranks, err) == (rows[i].words[0] ? -1 : 0));
        CHECK_STRING(err, rows[i].words);
    }
}

// ---- the search

// A made-up machine: strategies that trade time for memory.
typedef struct World {
    uint64_t seed;
    Shape whole;
} World;

static double draw(const World* w, int i) { return 0.5 + random_uniform(w->seed, (uint64_t)i); }

static double world_layer_ms(void* context, const Layout* layout, int s, int l, int N) {
    const World* w = (const World*)context;
    const LayerLayout* row = &layout->layer[l];
    double ms = 10 * draw(w, 0) + 0 * s + 1e-3 * N;
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
        bytes += draw(w, 20) / (row->tp * row->zero);
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
    w->seed = seed;
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
    LayoutProblem one = *p;
    one.n_rows = 1, one.rows[0] = t->N;
    double ms = brute_force(&one, &any, 0, 0);
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

// Ends the search when `part` of all tp and stages are done, and checks what it is told.
static double told, part;
static int stops_at(void* context, double share) {
    (void)context;
    CHECK(share > told && share < 1);
    told = share;
    return share < part;
}

CLAIM(a_search_that_is_ended_has_the_best_of_what_it_looked_at) {
    static LayoutTry all[LAYOUT_TRIES], some[LAYOUT_TRIES];
    Arena arena = {0};
    char err[ERR_BYTES];
    double parts[] = {1, 0.5, 0};
    World w;
    LayoutProblem p = problem_of(&w, 3, 3, 4, 400);
    int n = layout_search(all, &p, &arena, err), found[COUNT(parts)];
    p.goes_on = stops_at;
    for (int i = 0; i < COUNT(parts); i++) {
        part = parts[i], told = -1;
        found[i] = layout_search(some, &p, &arena, err);
        if (i == 0) CHECK(found[0] == n && !memcmp(some, all, sizeof *all * (size_t)n));
    }
    CHECK(found[2] == 0 && found[1] > 0 && found[1] < n);
    arena_free(&arena);
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
    Shape whole = shape_make(8, C, HEADS, 300, 64);
    Machine machine = {.cost = {.per_token = 0.01, .link_scale = 1, .layers = 8, .channels = C, .kv_channels = C}};
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

// Stages that send each other nothing, of v rounds of F + B ms: (v + P - 1) (F + B). The classifier is 1 / 257 of a
// stage, and makes the last one longer.
CLAIM(equal_stages_take_what_1f1b_takes) {
    Shape whole = shape_make(8, 256, 4, 64, 64);
    Machine machine = {.cost = {.per_token = 1, .link_scale = 1, .layers = 8, .channels = 256, .kv_channels = 256}};
    Arena arena = {0};
    LayoutCosts c;
    layout_costs(&c, &whole, &machine, 4, 4, 4, &arena);
    for (int stages = 1; stages <= 4; stages *= 2)
        for (int v = 1; v <= 100; v += 33) {
            double terms[N_LAYOUT_TERMS], round = 64.0 / stages;
            Layout layout = layout_even(&whole, 1, stages, 1, RECOMPUTE_NONE);
            c.tokens = v * 64 * (4.0 / stages), c.mean_length = 0;
            double ms = layout_step_ms(terms, &c, &layout, 64), least = round * (v + stages - 1);
            CHECK(ms > 0.99 * least && ms < 1.03 * least);
            CHECK_CLOSE(terms[TERM_STAGES], ms - terms[TERM_MATMULS], 1e-9 * ms);
            CHECK(stages > 1 || terms[TERM_STAGES] < 1e-9 * ms);
        }
    arena_free(&arena);
}

// Rounds that are alike need not all be played.
CLAIM(rounds_that_are_not_played_take_as_long_as_those_that_are) {
    Shape whole = shape_make(12, 48, 4, 300, 64);
    Machine machine = {.cost = {.per_token = 0.01, .link_scale = 1, .layers = 12, .channels = 48, .kv_channels = 48}};
    Arena arena = {0};
    LayoutCosts c;
    machine.cost.elem_bytes = 4;
    for (int k = 0; k < 2; k++) machine.cost.link[k] = (LinkTable){2, {1e3, 1e9}, {0.01 * (k + 1), 1e4 * (k + 1)}};
    layout_costs(&c, &whole, &machine, 8, 4, 4, &arena);
    c.mean_length = 64;
    for (int i = 0; i < 36; i++) {
        Layout layout = layout_even(&whole, 1 + i % 2, 1 << i / 2 % 3, 1 + i / 6 % 3, RECOMPUTE_NONE);
        double terms[N_LAYOUT_TERMS], all[N_LAYOUT_TERMS];
        c.overlap = c.tensor_overlap = i >= 18, c.tokens = 200 * 64 * (8.0 / layout.tp / layout.stages);
        c.played_rounds = 0;
        double ms = layout_step_ms(terms, &c, &layout, 64);
        c.played_rounds = 200;
        double played = layout_step_ms(all, &c, &layout, 64);
        CHECK_CLOSE(ms, played, 2e-3 * played);
        for (int t = 0; t < N_LAYOUT_TERMS; t++) CHECK_CLOSE(terms[t], all[t], 5e-3 * played);
    }
    arena_free(&arena);
}

int main(void) { return test_main(); }
