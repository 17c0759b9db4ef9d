// strategies_auto.c - --layout hydraulis: strategies for this model, these ranks and the lengths of the training
// pieces, by plan/published/strategy_search.h.
#include <stdio.h>
#include <stdlib.h>

#include "plan/published/strategy_search.h"
#include "run/strategies.h"

enum { MOST_KINDS = HYDRAULIS_SCHEMES, LISTED = 8 };  // strategies are few: each has Comms of its own

typedef struct Kinds {
    SchemePool pool;
    PipelineGroup group[MOST_KINDS];  // of every scheme
} Kinds;

// Tokens of a row of such a pipeline: as --capacity says, or as half of the memory holds.
static int64_t row_of(Run* run, const PipelineGroup* g) {
    const Config* c = &run->config;
    Layout layout = layout_even(&run->model.whole, g->tp, g->pp, 1, RECOMPUTE_NONE);
    int N = MAX(c->batch_tokens, c->context);
    if (c->capacity) return (int64_t)c->capacity * g->tp;
    for (size_t most = 0; N > 64; N /= 2, most = 0) {
        for (int s = 0; s < g->pp; s++) most = MAX(most, run_memory_of(run, &layout, s, N));
        if (most <= run->available.bytes / 2) break;
    }
    return N;
}

static void add_kind(Kinds* kinds, Run* run, const Machine* machine, const PipelineGroup* g) {
    PipelineCost cost;
    SchemePool* pool = &kinds->pool;
    int64_t row = row_of(run, g);
    int at = 0;
    if (pool->n == MOST_KINDS) return;
    if (!run_pipeline_cost(run, machine, g, &cost)) return;
    while (at < pool->n && pool->scheme[at].max_tokens >= row) at++;
    for (int i = pool->n++; i > at; i--) pool->scheme[i] = pool->scheme[i - 1], kinds->group[i] = kinds->group[i - 1];
    pool->scheme[at] = strategies_scheme(g, &cost, row);
    kinds->group[at] = *g;
}

// Powers of two that the ranks are a multiple of.
static void list_kinds(Kinds* kinds, Run* run, const Machine* machine) {
    const Shape* whole = &run->model.whole;
    int ranks = run->model.world->size, most_tp = MIN(MIN(whole->NH, whole->U), (int)MOST_TP);
    kinds->pool = (SchemePool){.ranks = ranks, .may_be_empty = 1};
    for (int tp = 1; tp <= MIN(ranks, most_tp); tp *= 2)
        for (int pp = 1; tp * pp <= ranks && pp <= MIN(whole->L, (int)MOST_STAGES); pp *= 2) {
            PipelineGroup g = {1, tp, pp};
            if (ranks % (tp * pp) == 0) add_kind(kinds, run, machine, &g);
        }
}

// About what moves of a list will be found to take (strategies_moves.c): a rank gets the weights of its part of the
// model, and sends its gradients, but for the share that it owns.
static void estimate_moves(StrategySearch* search, const Run* run, const Machine* machine, const Kinds* kinds) {
    const Model* m = &run->model;
    MoveTime t = strategies_links(run, machine);
    double elems = (double)shape_param_count(&m->whole) * (t.ranks - 1) / t.ranks, elem = (double)dtype_bytes(m->dt);
    int across = m->world->node[t.ranks - 1] != m->world->node[0];
    for (int k = 0; k < kinds->pool.n && machine->cost.step <= 0; k++) {
        double part = elems / (kinds->group[k].tp * kinds->group[k].pp);
        search->start[k] = transfer_ms(&t.links, TRANSFER_WEIGHTS, t.ranks, across, elem * part, elem * part);
        search->end[k] = transfer_ms(&t.links, TRANSFER_WEIGHTS, t.ranks, across, 4 * part, 4 * part);
    }
}

// The widest pipelines first: they are on the ranks of one node.
static RankStrategy as_groups(const Strategy* s, const Kinds* kinds) {
    RankStrategy out = {0};
    for (int tp = MOST_TP; tp > 0; tp--)
        for (int k = 0; k < kinds->pool.n && out.n < MOST_PIPELINE_GROUPS; k++) {
            PipelineGroup g = kinds->group[k];
            g.copies = s->copies[k];
            if (g.tp == tp && g.copies > 0) out.group[out.n++] = g;
        }
    return out;
}

int strategies_find(Run* run, StrategyList* list, char* err, size_t errlen) {
    static int lengths[SAMPLED_LENGTHS];
    static Kinds kinds;
    char from[ERR_BYTES], text[STRATEGY_TEXT];
    Strategy found[LISTED];
    StrategyScore score;
    Machine machine;
    Arena arena = {0};
    const Config* c = &run->config;
    if (run_machine_of_layouts(run, &machine, from, err, errlen)) return -1;
    list_kinds(&kinds, run, &machine);
    StrategySearch search = {&kinds.pool,
                             lengths,
                             run_sample_lengths(run, lengths),
                             c->context,
                             c->batch_tokens,
                             LISTED,
                             FIXED_PER_MICRO_BATCH,
                             {0},
                             {0}};
    estimate_moves(&search, run, &machine, &kinds);
    int n = strategies_search(found, &score, &search, &arena, err, errlen);
    arena_free(&arena);
    if (n < 0) return -1;
    if (n == 0)
        return fail(err, errlen, "no pipelines of %d ranks hold the documents; try a larger --capacity",
                    run->model.world->size);
    printf(
        "layout  hydraulis, times %s: %d strategies tried on %d steps of documents; predicted ms of a step %.4g, with "
        "the first alone %.4g\n",
        from, score.proposed, score.batches, score.ms, score.single_ms);
    for (list->n = 0; list->n < n; list->n++) {
        list->strategy[list->n] = as_groups(&found[list->n], &kinds);
        printf("        %s\n", strategy_print(&list->strategy[list->n], text));
    }
    return 0;
}
