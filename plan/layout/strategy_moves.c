// strategy_moves.c - see strategy_moves.h.
#include "plan/layout/strategy_moves.h"

Layout strategy_layout(const Shape* whole, const PipelineGroup* g, const LayerLayout* how) {
    Layout layout = layout_even(whole, g->tp, g->pp, 1, RECOMPUTE_NONE);
    for (int l = 0; l < whole->L; l++) layout.layer[l].zero = how[l].zero, layout.layer[l].recompute = how[l].recompute;
    return layout;
}

// The layers of which like pipelines have pieces between steps: what zero 2 divides are gradients, 3 also weights.
static int list_divided(char divided[MOST_LAYERS], int layers, const LayerLayout* how, ReshardKind kind) {
    int any = 0;
    for (int l = 0; l < layers; l++) any |= divided[l] = how[l].zero >= (kind == RESHARD_SUM ? 2 : 3);
    return any;
}

// Of the ranks from `first` on.
static void list_parts(Part* parts, const Shape* whole, const PipelineGroup* g, const TpSplit* split) {
    Layout layout = layout_even(whole, g->tp, g->pp, 1, RECOMPUTE_NONE);
    int ranks = g->copies * g->tp;
    for (int i = 0; i < group_ranks(g); i++) {
        int stage = i / ranks, first = layout_first(&layout, stage), end = layout_first(&layout, stage + 1);
        parts[i] = (Part){split, i % g->tp, first, end, g->copies, i % ranks / g->tp};
    }
}

int strategy_holdings(Holdings* holdings, int* plain, const Shape* whole, const RankStrategy* strategy,
                      const LayerLayout* how, ReshardKind kind, Arena* arena, Err err) {
    char divided[MOST_LAYERS];
    const PipelineGroup* g = strategy->group;
    int ranks = strategy_ranks(strategy), any = list_divided(divided, whole->L, how, kind);
    *plain = strategy->n == 1 && g->tp == 1 && g->pp == 1 && !any;
    if (*plain) return 0;
    Part* parts = TAKE(arena, Part, ranks);
    TpSplit* splits = TAKE(arena, TpSplit, strategy->n);
    if (arena_check(arena, err)) return -1;
    for (int i = 0, first = 0; i < strategy->n; first += group_ranks(&g[i++])) {
        splits[i] = split_even(whole, g[i].tp);
        list_parts(parts + first, whole, &g[i], &splits[i]);
    }
    return holdings_of_parts(holdings, whole, parts, ranks, any ? divided : NULL, arena, err);
}

// When weights are there (COPY), or gradients summed (SUM), of every rank (ranks).
static int move(double* ms, const StrategyMoves* m, const RankStrategy* strategy, const LayerLayout* how,
                ReshardKind kind, Arena* arena, Err err) {
    Holdings pieces, parts;
    int plain, sums = kind == RESHARD_SUM, failed = 0;
    size_t elem = sums ? m->gradient_bytes : m->weight_bytes;
    double alike = move_time_plain(m->times, m->whole, elem);
    ArenaMark mark = arena_mark(arena);
    if (strategy_holdings(&parts, &plain, m->whole, strategy, how, kind, arena, err)) return -1;
    for (int r = 0; r < m->times->ranks; r++) ms[r] = alike;
    if (!plain)
        failed =
            holdings_of_pieces(&pieces, m->whole, arena, err) ||
            move_time(ms, m->times, m->whole, sums ? &parts : &pieces, sums ? &pieces : &parts, kind, elem, arena, err);
    for (int r = 0; r < m->times->ranks && m->only_more; r++) ms[r] = MAX(ms[r] - alike, 0);
    arena_reset(arena, mark);
    return failed ? -1 : 0;
}

int strategy_moves(double* start, double* end, const StrategyMoves* m, const RankStrategy* strategy,
                   const LayerLayout* how, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    double* ends = TAKE(arena, double, m->times->ranks);
    if (arena_check(arena, err)) return -1;
    int failed = move(start, m, strategy, how, RESHARD_COPY, arena, err) ||
                 move(ends, m, strategy, how, RESHARD_SUM, arena, err);
    *end = 0;
    for (int r = 0; r < m->times->ranks && !failed; r++) *end = MAX(*end, ends[r]);
    arena_reset(arena, mark);
    return failed ? -1 : 0;
}
