// test_layout_search.c - the claims of plan/layout_search.h: against brute force over all layouts of small models.
#include "plan/layout_search.h"
#include "test/test.h"

// A made-up machine: layers of unlike weight, strategies that trade time for memory.
typedef struct World {
    uint64_t seed;
    Shape whole;
} World;

static double draw(const World* w, int i) { return 0.5 + random_uniform(w->seed, (uint64_t)i); }

static double world_ms(void* context, const Layout* layout, int s) {
    const World* w = (const World*)context;
    const LayerLayout* stage = &layout->layer[layout_first(layout, s)];
    double ms = 0;
    for (int l = layout_first(layout, s); l < layout_first(layout, s + 1); l++) ms += 10 * draw(w, l);
    if (layout_first(layout, s + 1) == w->whole.L) ms += 15 * draw(w, 50);
    ms *= stage->recompute == RECOMPUTE_BLOCK ? 4.0 / 3 : stage->recompute == RECOMPUTE_ACTIVATION ? 1.05 : 1;
    return ms / layout->tp * (1 + 0.2 * draw(w, 60) * (layout->tp - 1)) + 2 * draw(w, 61) * (stage->zero - 1);
}

static double world_bytes(void* context, const Layout* layout, int s) {
    const World* w = (const World*)context;
    const LayerLayout* stage = &layout->layer[layout_first(layout, s)];
    double states = 0, kept = stage->recompute == RECOMPUTE_BLOCK ? 0.2 : stage->recompute == RECOMPUTE_NONE ? 1 : 0.8;
    for (int l = layout_first(layout, s); l < layout_first(layout, s + 1); l++) states += draw(w, 20 + l);
    if (s == 0 || s == layout->stages - 1) states += 2;
    kept *= layout->stage[s].layers;
    return 100 * (states / (layout->tp * stage->zero) + kept * (layout->stages - s) / layout->tp);
}

static double world_rounds(void* context, const Layout* layout) {
    return 1 + ((const World*)context)->seed % 4 * (uint64_t)layout->stages;
}

static LayoutProblem problem_of(World* w, uint64_t seed, int L, int ranks, double memory) {
    w->seed = seed;
    w->whole = shape_make(L, 48, 4, 300, 64);
    return (LayoutProblem){&w->whole, ranks, 4, memory, world_bytes, world_ms, world_rounds, w};
}

// The least ms of all layouts from stage s on, whose layers before are `at`.
static double brute_force(const LayoutProblem* p, Layout* layout, int s, int at, double worst) {
    double least = INFINITY;
    if (s == layout->stages) {
        double v = p->rounds(p->context, layout);
        return at == p->whole->L ? worst * (v + layout->stages - 1) / v : INFINITY;
    }
    for (int n = 1; n <= p->whole->L - at - (layout->stages - 1 - s); n++)
        for (int i = 0; i < 9; i++) {
            layout_set_stage(layout, s, n, (LayerLayout){layout->tp, 1 + i / 3, (Recompute)(i % 3)});
            if (p->bytes(p->context, layout, s) > p->memory) continue;
            double ms = p->ms(p->context, layout, s);
            least = fmin(least, brute_force(p, layout, s + 1, at + n, fmax(worst, ms)));
            layout_set_stage(layout, s, n, (LayerLayout){layout->tp, 1 + i / 3, (Recompute)(i % 3)});
        }
    return least;
}

static void the_search_finds_what_brute_force_finds(void) {
    int found = 0, none = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        static LayoutTry tries[LAYOUT_TRIES];
        Arena arena = {0};
        char err[ERR_BYTES];
        World w;
        int L = 2 + (int)(seed % 3), ranks = seed % 2 ? 4 : 6;
        LayoutProblem p = problem_of(&w, seed, L, ranks, 40 + 60 * (double)(seed % 11));
        int n = layout_search(tries, &p, &arena, err, sizeof err);
        CHECK(n > 0);
        double least = INFINITY;
        for (int i = 0; i < n; i++) {
            Layout any = {.tp = tries[i].layout.tp, .stages = tries[i].layout.stages};
            double ms = brute_force(&p, &any, 0, 0, 0);
            least = fmin(least, ms);
            CHECK(tries[i].fits == (ms < INFINITY));
            if (!tries[i].fits) continue;
            CHECK_CLOSE(tries[i].ms, ms, 1e-9 * ms);
            CHECK(layout_check(&tries[i].layout, p.whole, ranks, err, sizeof err) == 0);
            for (int s = 0; s < tries[i].layout.stages; s++)
                CHECK(p.bytes(p.context, &tries[i].layout, s) <= fmin(p.memory, tries[i].bytes));
        }
        CHECK(tries[0].fits == (least < INFINITY));
        if (tries[0].fits) CHECK_CLOSE(tries[0].ms, least, 1e-9 * least);
        found += tries[0].fits, none += !tries[0].fits;
        arena_free(&arena);
    }
    if (found <= 20 || none <= 3) printf("    %d found, %d none\n", found, none);
    CHECK(found > 20 && none > 3);
}

static void tries_are_in_order(void) {
    static LayoutTry tries[LAYOUT_TRIES];
    Arena arena = {0};
    char err[ERR_BYTES];
    World w;
    LayoutProblem p = problem_of(&w, 7, 8, 8, 500);
    int n = layout_search(tries, &p, &arena, err, sizeof err), misfits = 0;
    for (int i = 1; i < n; i++) {
        CHECK(tries[i - 1].fits >= tries[i].fits);
        CHECK(tries[i].fits ? tries[i - 1].ms <= tries[i].ms
                            : tries[i - 1].fits || tries[i - 1].bytes <= tries[i].bytes);
        misfits += !tries[i].fits;
    }
    CHECK(n == 4 + 3 + 2 && misfits < n);  // tp 1, 2 and 4 with stages 1 to 8, 1 to 4, 1 and 2
    arena_free(&arena);
}

// More memory never makes the best slower, and there is a limit under which nothing fits.
static void memory_buys_time(void) {
    static LayoutTry tries[LAYOUT_TRIES];
    Arena arena = {0};
    char err[ERR_BYTES];
    World w;
    double before = INFINITY;
    for (double memory = 50; memory <= 3000; memory *= 1.3) {
        LayoutProblem p = problem_of(&w, 3, 6, 8, memory);
        CHECK(layout_search(tries, &p, &arena, err, sizeof err) > 0);
        CHECK(tries[0].ms <= before);
        if (memory == 50) CHECK(!tries[0].fits && tries[0].bytes > 50);
        before = tries[0].ms;
    }
    CHECK(before < INFINITY);
    arena_free(&arena);
}

int main(void) {
    RUN(the_search_finds_what_brute_force_finds);
    RUN(tries_are_in_order);
    RUN(memory_buys_time);
    return test_done();
}
