// search.c - --layout hydraulis, on rank 0: strategies for this model, these ranks and the lengths of the training
// pieces, by plan/published/hydraulis.h. Strategies are few: each has Comms of its own.
#include "run/strategies/strategies.h"

#include <stdio.h>

enum { LISTED = 8 };

// Tokens of a row of such a pipeline: as --capacity says, or as half of the memory holds.
static int64_t row_of(Run* run, const PipelineGroup* g) {
    const Config* c = &run->config;
    Layout layout = strategies_layout(run, g);
    int N = MAX(c->batch_tokens, c->context);
    if (c->capacity) return (int64_t)c->capacity * g->tp;
    for (size_t most = 0; N > 64; N /= 2, most = 0) {
        for (int s = 0; s < g->pp; s++) most = MAX(most, run_memory_of(run, &layout, s, N));
        if (most <= run->cluster->available.bytes / 2) break;
    }
    return N;
}

static void add_kind(Kinds* kinds, Run* run, const Machine* machine, const PipelineGroup* g) {
    PipelineCost cost;
    int64_t row = row_of(run, g);
    if (kinds->pool.n < HYDRAULIS_SCHEMES && run_pipeline_cost(run, machine, g, &cost))
        strategies_add_kind(kinds, g, &cost, row);
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

// About what moves of a list will be found to take (moves.c): a rank gets the weights of its part of the
// model, and sends its gradients, but for the share that it owns.
static void estimate_moves(StrategySearch* search, const Run* run, const Machine* machine, const Kinds* kinds) {
    const Model* m = &run->model;
    MoveTime t = strategies_links(run, machine);
    double elems = (double)shape_param_count(&m->whole) * (t.ranks - 1) / t.ranks, elem = (double)dtype_bytes(m->dt),
           gradient = (double)dtype_bytes(run_gradients_travel_as(run));
    int across = m->world->node[t.ranks - 1] != m->world->node[0];
    for (int k = 0; k < kinds->pool.n && machine->cost.step <= 0; k++) {
        double part = elems / (kinds->group[k].tp * kinds->group[k].pp);
        search->start[k] = transfer_ms(&t.links, TRANSFER_WEIGHTS, t.ranks, across, elem * part, elem * part);
        search->end[k] = transfer_ms(&t.links, TRANSFER_WEIGHTS, t.ranks, across, gradient * part, gradient * part);
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

int strategies_find(Run* run, StrategyList* list, Err err) {
    static int lengths[SAMPLED_LENGTHS];
    static Kinds kinds;
    char from[ERR_BYTES], text[STRATEGY_TEXT];
    Strategy found[LISTED];
    StrategyScore score;
    Machine machine;
    Arena arena = {0};
    const Config* c = &run->config;
    if (run_machine_of_layouts(run, &machine, from, err)) return -1;
    run_find_available(run);
    list_kinds(&kinds, run, &machine);
    int n = run_sample_lengths(run, lengths);
    StrategySearch search = {&kinds.pool, lengths, n, c->batch_tokens, LISTED, {0}, {0}};
    estimate_moves(&search, run, &machine, &kinds);
    n = strategies_search(found, &score, &search, &arena, err);
    arena_free(&arena);
    if (n < 0) return -1;
    if (n == 0)
        return fail(err, "no pipelines of %d ranks hold the documents; try a larger --capacity",
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
