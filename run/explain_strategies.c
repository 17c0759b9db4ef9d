// explain_strategies.c - --explain with --strategies: which strategy the planned step takes, what each of its pipelines
// gets, and what the other strategies would take, with moving gradients and weights. Times are the dispatcher's
// (plan/published/hydraulis.h): before the pipelines of a job plan their documents anew among themselves.
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "run/strategies.h"

// The documents of the whole step, drawn again into buffers that no step uses now: the batch holds those of one job.
static void draw_step(StepWork* w, const Run* run, Arena* arena) {
    char err[ERR_BYTES];
    const Batch* idle = &run->ahead;
    SamplerPosition position = run->state.position;
    int n = sampler_draw(run->data.train, &position, idle->pieces, idle->max_tokens, idle->max_tokens);
    for (int i = 0; i < n; i++) idle->lengths[i] = idle->pieces[i].length;
    if (step_work(w, &run->strategies->pool, idle->lengths, n, arena, err, sizeof err)) die("--explain: %s", err);
}

typedef struct Rated {
    int strategy;   // of the list
    double ms;      // infinite: it does not hold the documents
    double moving;  // of them: until the last pipeline has its weights, and gradients
    int empty;      // pipelines without documents
} Rated;

static int sooner(const void* a, const void* b) {
    const Rated *x = (const Rated*)a, *y = (const Rated*)b;
    if (x->ms != y->ms) return x->ms < y->ms ? -1 : 1;
    return x->strategy - y->strategy;
}

static void print_strategies(const Rated* rated, const Run* run) {
    printf("  %-28s %12s %8s %12s\n", "strategy", "ms", "longer", "moving");
    for (int i = 0; i < run->strategies->list.n; i++) {
        const Rated* r = &rated[i];
        const char* name = strategies_name(run, r->strategy);
        if (isinf(r->ms)) printf("  %-28s has no pipeline for the longest document", name);
        else printf("  %-28s %12.2f %7.2fx %12.2f", name, r->ms, r->ms / rated[0].ms, r->moving);
        if (r->strategy == run->batch.strategy) printf("  chosen");
        if (r->empty) printf("  leaves %d pipeline%s empty", r->empty, r->empty > 1 ? "s" : "");
        printf("\n");
    }
}

// The ranks of the job whose pipelines these are, as "4-7".
static void ranks_of(char text[32], const Run* run, const PipelineGroup* kind) {
    const RankStrategy* s = &run->strategies->list.strategy[run->batch.strategy];
    int first = 0;
    for (int g = 0; g < s->n; first += group_ranks(&s->group[g++]))
        if (s->group[g].tp == kind->tp && s->group[g].pp == kind->pp) {
            snprintf(text, 32, "%d-%d", first, first + group_ranks(&s->group[g]) - 1);
            return;
        }
    text[0] = 0;
}

static void print_pipelines(StepWork* w, const Run* run) {
    const Strategies* x = run->strategies;
    printf("\n  %-12s %9s %10s %10s %9s %14s %12s\n", "pipeline", "of ranks", "documents", "tokens", "longest",
           "micro-batches", "ms");
    for (int k = 0, p = 0; k < x->pool.n; k++)
        for (int copy = 0; copy < x->choices[run->batch.strategy].copies[k]; copy++, p++) {
            char name[STRATEGY_TEXT], ranks[32];
            const int* docs = w->docs + w->first[p];
            int n = w->first[p + 1] - w->first[p];
            int64_t tokens = 0;
            Packing packed = n ? hydraulis_pack(w->mb_of + w->first[p], w, k, docs, n) : (Packing){0};
            RankStrategy alone = {1, {{1, x->kind[k].tp, x->kind[k].pp}}};
            for (int i = 0; i < n; i++) tokens += w->lengths[docs[i]];
            ranks_of(ranks, run, &x->kind[k]);
            printf("  %-12s %9s %10d %10" PRId64 " %9d %14d %12.2f\n", strategy_print(&alone, name), ranks, n, tokens,
                   n ? w->lengths[docs[0]] : 0, packed.n, packed.ms);
        }
}

void run_explain_strategies(const Run* run) {
    const Strategies* x = run->strategies;
    Rated rated[MOST_RANK_STRATEGIES];
    Arena arena = {0};
    StepWork w;
    int64_t tokens = 0;
    uint64_t seed = hash64((uint64_t)run->config.seed ^ (uint64_t)run->batch.plan.step);  // of strategies_dispatch
    draw_step(&w, run, &arena);
    for (int s = 0; s < x->list.n; s++) {
        double last = 0;
        Choice choice = hydraulis_choose(&w, &x->choices[s], 1, HYDRAULIS_SHUFFLES, seed);
        rated[s] = (Rated){s, choice.strategy < 0 ? INFINITY : choice.ms, x->choices[s].end,
                           choice.strategy < 0 ? 0 : choice.empty};
        for (int k = 0; k < x->pool.n; k++) last = MAX(last, x->choices[s].start[k]);
        rated[s].moving += last;
    }
    qsort(rated, (size_t)x->list.n, sizeof *rated, sooner);
    hydraulis_choose(&w, &x->choices[run->batch.strategy], 1, HYDRAULIS_SHUFFLES, seed);
    for (int i = 0; i < w.n; i++) tokens += w.lengths[i];
    char documents[64];
    printf("strategies: step %" PRId64 ": %s, %" PRId64 " tokens on %d ranks take %s; predicted ms\n",
           run->batch.plan.step, text_many(w.n, "document", documents), tokens, run->model.world->size,
           strategies_name(run, run->batch.strategy));
    print_strategies(rated, run);
    print_pipelines(&w, run);
    printf("\nthe job of rank 0 plans its documents among its pipelines:\n");
    arena_free(&arena);
}
