// layout_auto.c - --layout auto: the search of plan/layout_search.h with this program's own memory table, which is
// exact, and times that are estimated from FLOPs and bytes at nominal rates.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/layout_search.h"
#include "run/run.h"

// What is assumed of a rank: FLOP/s of its matmuls, GB/s and ms of a message.
typedef struct Assumed {
    double flops, gbps, message_ms;
} Assumed;

typedef struct Known {
    Run* run;
    int N;            // tokens of a row
    double token_ms;  // of the whole model on one rank, attention at half of --context included
    Assumed assumed;
} Known;

static double columns(const Known* x, const Layout* layout) {
    return (double)x->run->model.world->size / (layout->tp * layout->stages);
}

// Of a step, of the ranks that have all layers between them.
static double tokens(const Known* x, const Layout* layout) { return x->run->config.batch_tokens / columns(x, layout); }

static double rounds(void* context, const Layout* layout) {
    const Known* x = (const Known*)context;
    return fmax(1, tokens(x, layout) / x->N);
}

static double bytes_of(void* context, const Layout* layout, int s) {
    const Known* x = (const Known*)context;
    return (double)run_memory_of(x->run, layout, s, x->N);
}

// n messages of so many bytes.
static double messages_ms(const Known* x, double n, double bytes) {
    return n * (x->assumed.message_ms + bytes / (1e6 * x->assumed.gbps));
}

// Computing; eight exchanges a layer and round in a tensor-parallel group (run/model.h); what ZeRO moves in every round
// rather than once (run/zero.c).
static double ms_of(void* context, const Layout* layout, int s) {
    const Known* x = (const Known*)context;
    const Model* m = &x->run->model;
    int layers = layout->stage[s].layers, zero = layout->layer[layout_first(layout, s)].zero;
    double T = tokens(x, layout), v = rounds(context, layout), D = columns(x, layout), R = layout->tp;
    double elem = (double)dtype_bytes(m->dt), again = (3 + layout_again(layout, s)) / 3;
    Shape part = shape_stage(&m->whole, layout_first(layout, s), layout_first(layout, s + 1));
    double elems = (double)shape_param_elems(&part) / R * (D - 1) / D;
    double ms = T * x->token_ms * again * layout_work(layout, &m->whole, s) / R;
    if (R > 1) ms += messages_ms(x, 8 * again * layers * v, T / v * m->whole.C * elem * (R - 1) / R);
    if (D > 1 && zero > 1) ms += messages_ms(x, layers * v, 4 * elems / layers);
    if (D > 1 && zero > 2) ms += messages_ms(x, 2 * layers * v, elem * elems / layers);
    return ms;
}

static double token_ms(const Run* run, const Assumed* assumed) {
    const Model* m = &run->model;
    double s = 0.5 * run->config.context;
    return 1e3 * (shape_training_flops(&m->whole, 1, 0) + shape_training_flops(&m->whole, 0, 1) * s) / assumed->flops;
}

static void print_tries(const LayoutTry* tries, int n, double memory) {
    enum { SHOWN = 6 };
    printf("layout  auto, %.1f MiB a rank; by estimate:\n", memory / (1 << 20));
    for (int i = 0; i < n && i < SHOWN; i++) {
        const LayoutTry* t = &tries[i];
        printf("        %d stage%s, tp %d: ", t->layout.stages, t->layout.stages > 1 ? "s" : "", t->layout.tp);
        if (t->fits) printf("%.4g ms, %.1f MiB%s\n", t->ms, t->bytes / (1 << 20), i ? "" : ", chosen");
        else printf("does not fit, %.1f MiB at least\n", t->bytes / (1 << 20));
    }
    if (n > SHOWN) printf("        and %d more\n", n - SHOWN);
}

int run_find_layout(Run* run, Layout* layout, char* err, size_t errlen) {
    static LayoutTry tries[LAYOUT_TRIES];
    const Config* c = &run->config;
    const Model* m = &run->model;
    Arena arena = {0};
    if (!c->memory) return fail(err, errlen, "auto: expected --memory SIZE, found none; try --memory 4G");
    Assumed assumed = m->k->on_host ? (Assumed){25e9, 2, 0.02} : (Assumed){400e12, 250, 0.02};
    Known known = {run, MAX(c->capacity, c->context), token_ms(run, &assumed), assumed};
    LayoutProblem p = {&m->whole,
                       m->world->size,
                       MIN(MIN(m->whole.NH, m->whole.U), MOST_TP),
                       (double)run->available.bytes,
                       bytes_of,
                       ms_of,
                       rounds,
                       &known};
    int n = layout_search(tries, &p, &arena, err, errlen);
    arena_free(&arena);
    if (n < 0) return -1;
    if (n == 0) return fail(err, errlen, "auto: no layout of %d ranks for this model", m->world->size);
    print_tries(tries, n, p.memory);
    *layout = tries[0].layout;
    if (tries[0].fits) return 0;
    return fail(err, errlen,
                "auto: expected a layout of at most %.1f MiB a rank, found none below %.1f MiB; try more "
                "ranks, a smaller --capacity or --context, or --memory %.0fM",
                p.memory / (1 << 20), tries[0].bytes / (1 << 20), ceil(tries[0].bytes / (1 << 20)));
}
