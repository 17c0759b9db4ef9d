// layout_auto.c - --layout auto: the search of plan/layout/layout_search.h with this program's own memory table, which
// is exact, and the times of plan/layout/layout_cost.h on what is known of the machine.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/layout/layout_cost.h"
#include "plan/layout/layout_search.h"
#include "run/run.h"

typedef struct Known {
    Run* run;
    LayoutCosts costs;
    Arena arena;
} Known;

// ---- what the search asks

static double bytes_of(void* context, const Layout* layout, int s, int N) {
    return (double)run_memory_of(((const Known*)context)->run, layout, s, N);
}

// ---- what is known

// Of the first pieces of the training text.
static double mean_length(const Run* run) {
    static int lengths[SAMPLED_LENGTHS];
    double s2 = 0, sum = 0;
    for (int i = 0, n = run_sample_lengths(run, lengths); i < n; i++)
        s2 += (double)lengths[i] * lengths[i], sum += lengths[i];
    return sum > 0 ? s2 / sum : 0.5 * run->config.context;
}

// A row that --capacity names, or those that hold a document of --context and up to 32 times as much.
static void list_rows(LayoutProblem* p, const Run* run) {
    const Config* c = &run->config;
    int64_t most = MIN((int64_t)c->batch_tokens, run->model.k->on_host ? 8192 : 32768);
    p->rows[p->n_rows++] = MAX(c->capacity, c->context);
    for (int64_t N = 2 * (int64_t)c->context; !c->capacity && N <= most && p->n_rows < 6; N *= 2)
        p->rows[p->n_rows++] = (int)N;
}

static LayoutProblem problem_of(Known* x) {
    Run* run = x->run;
    LayoutProblem p = layout_problem(&x->costs);
    p.memory = (double)run->cluster->available.bytes;
    p.unlike = 1;
    p.bytes = bytes_of, p.context = x;
    list_rows(&p, run);
    return p;
}

static int know(Known* x, Run* run, char from[ERR_BYTES], Err err) {
    const Config* c = &run->config;
    const Model* m = &run->model;
    Machine machine;
    if (run_machine_of_layouts(run, &machine, from, err)) return -1;
    int node = run_node_size(run, m->world, 1, 1);
    x->run = run;
    layout_costs(&x->costs, &m->whole, &machine, m->world->size, node, (int)dtype_bytes(m->dt), &x->arena);
    x->costs.overlap = !strcmp(c->overlap, "yes") && !run->cluster->oversubscribed;
    x->costs.tensor_overlap = x->costs.overlap && !m->k->on_host;
    x->costs.rounds_read_weights = !m->k->virtual_time;
    x->costs.tokens = c->batch_tokens;
    x->costs.mean_length = mean_length(run);
    for (int tp = 2; tp <= MIN(MOST_TP, m->world->size); tp++) {
        if (m->world->size % tp || tp > m->whole.NH || !run_machine_of_groups(run, &machine, tp)) continue;
        x->costs.of_tp[tp].token = machine.cost.per_token, x->costs.of_tp[tp].pair = machine.cost.quadratic;
        x->costs.of_tp[tp].row = cost_micro_batch(&machine.cost);
        size_t n = strlen(from);
        snprintf(from + n, ERR_BYTES - n, "%s %d", strstr(from, "--tp") ? "," : "; of --tp", tp);
    }
    return 0;
}

// ---- what is printed

static void print_name(const LayoutTry* t) {
    printf("        %d stage%s, tp %d, rows of %d: ", t->layout.stages, t->layout.stages > 1 ? "s" : "", t->layout.tp,
           t->N);
}

// Where a layout that fits loses most against the chosen one.
static void print_why(Known* x, const LayoutTry* t, const LayoutTry* chosen) {
    double terms[N_LAYOUT_TERMS], best[N_LAYOUT_TERMS], most = 0;
    int worst = 0;
    layout_step_ms(terms, &x->costs, &t->layout, t->N), layout_step_ms(best, &x->costs, &chosen->layout, chosen->N);
    for (int i = 0; i < N_LAYOUT_TERMS; i++)
        if (terms[i] - best[i] > most) most = terms[i] - best[i], worst = i;
    if (most > 0) printf("; %s take %.4g ms more", layout_term_names[worst], most);
}

static void print_tries(Known* x, const LayoutTry* tries, int n, double memory, const char* from, int all) {
    enum { SHOWN = 6 };
    int shown = all ? n : MIN(n, SHOWN);
    printf("layout  auto, %.1f MiB a rank; times %s\n", memory / (1 << 20), from);
    for (int i = 0; i < shown; i++) {
        const LayoutTry* t = &tries[i];
        print_name(t);
        if (!t->fits) printf("does not fit, %.1f MiB at least", t->bytes / (1 << 20));
        else printf("%.4g ms, %.1f MiB%s", t->ms, t->bytes / (1 << 20), i ? "" : ", chosen");
        if (t->fits && i) print_why(x, t, &tries[0]);
        printf("\n");
    }
    if (n > shown) printf("        and %d more; --explain shows them\n", n - shown);
}

static void print_terms(Known* x, const LayoutTry* t) {
    printf("        its %.4g ms, of the stage with most: ", t->ms);
    layout_print_terms(stdout, &x->costs, &t->layout, t->N);
    printf("\n");
}

void run_predict_layout(Run* run) {
    static Known known;
    char from[ERR_BYTES], err[ERR_BYTES];
    double terms[N_LAYOUT_TERMS];
    const Layout* layout = &run->model.ranks->layout;
    if (know(&known, run, from, err)) die("%s", err);
    double ms = layout_step_ms(terms, &known.costs, layout, run->settled.capacity);
    printf("predicted %.5g ms a step, times %s: ", ms, from);
    layout_print_terms(stdout, &known.costs, layout, run->settled.capacity);
    printf("\n");
    arena_free(&known.arena);
}

int run_find_layout(Run* run, Layout* layout, Err err) {
    static LayoutTry tries[LAYOUT_TRIES];
    static Known known;
    char from[ERR_BYTES];
    if (!run->config.memory) return fail(err, "auto: expected --memory SIZE, found none; try --memory 4G");
    if (know(&known, run, from, err)) return -1;
    run->cluster->most_scratch = 1;  // what is left where memory is short
    LayoutProblem p = problem_of(&known);
    double started = now_seconds();
    int n = layout_search(tries, &p, &known.arena, err);
    if (n < 0) return -1;
    if (n == 0) return fail(err, "auto: no layout of %d ranks for this model", p.ranks);
    double seconds = now_seconds() - started;
    print_tries(&known, tries, n, p.memory, from, run->config.explain);
    if (tries[0].fits && run->config.explain) {
        print_terms(&known, &tries[0]);
        printf("        searched for %.0f ms\n", 1e3 * seconds);
    }
    arena_free(&known.arena);
    *layout = tries[0].layout;
    run->settled.capacity = tries[0].N;
    if (tries[0].fits) return 0;
    return fail(err,
                "auto: expected a layout of at most %.1f MiB a rank, found none below %.1f MiB; try more "
                "ranks, a smaller --capacity or --context, or --memory %.0fM",
                p.memory / (1 << 20), tries[0].bytes / (1 << 20), ceil(tries[0].bytes / (1 << 20)));
}
