// strategy_moves.c - see strategy_moves.h.
#include "plan/layout/strategy_moves.h"

#include <math.h>

Layout strategy_layout(const Shape* whole, const PipelineGroup* g, const LayerLayout* how) {
    Layout layout = layout_even(whole, g->tp, g->pp, 1, RECOMPUTE_NONE);
    for (int l = 0; l < whole->L; l++) layout.layer[l].zero = how[l].zero, layout.layer[l].recompute = how[l].recompute;
    return layout;
}

// Marks the layers of which like pipelines keep pieces between steps: zero 2 divides gradients, 3 also weights.
static int list_divided(char divided[MOST_LAYERS], int layers, const LayerLayout* how, ReshardKind kind) {
    int any = 0;
    for (int l = 0; l < layers; l++) any |= divided[l] = how[l].zero >= (kind == RESHARD_SUM ? 2 : 3);
    return any;
}

// Lists the parts of a group's ranks.
static void list_parts(Part* parts, const Shape* whole, const PipelineGroup* g, const TpSplit* split) {
    Layout layout = layout_even(whole, g->tp, g->pp, 1, RECOMPUTE_NONE);
    int ranks = g->copies * g->tp;
    for (int i = 0; i < group_ranks(g); i++) {
        int stage = i / ranks, first = layout_first(&layout, stage), end = layout_first(&layout, stage + 1);
        parts[i] = (Part){split, i % g->tp, first, end, g->copies, i % ranks / g->tp};
    }
}

int strategy_holdings(StrategyHoldings* x, const Shape* whole, const RankStrategy* strategy, const LayerLayout* how,
                      ReshardKind kind, const int* node, Arena* arena, Err err) {
    char divided[MOST_LAYERS];
    Holdings parts_held;
    const PipelineGroup* g = strategy->group;
    int ranks = strategy_ranks(strategy), any = list_divided(divided, whole->L, how, kind);
    *x = (StrategyHoldings){.plain = strategy->n == 1 && g->tp == 1 && g->pp == 1 && !any};
    if (x->plain) return 0;
    Part* parts = TAKE(arena, Part, ranks);
    TpSplit* splits = TAKE(arena, TpSplit, strategy->n);
    if (arena_check(arena, err)) return -1;
    for (int i = 0, first = 0; i < strategy->n; first += group_ranks(&g[i++])) {
        splits[i] = split_even(whole, g[i].tp);
        list_parts(parts + first, whole, &g[i], &splits[i]);
    }
    if (holdings_of_pieces(&x->pieces, whole, arena, err) ||
        holdings_of_parts(&parts_held, whole, parts, ranks, any ? divided : NULL, arena, err))
        return -1;
    return holdings_of_nodes(&x->parts, &parts_held, &x->pieces, node, arena, err);
}

static int open_table(MoveTable* table, const StrategyMoves* m, const StrategyHoldings* held, ReshardKind kind, int hop,
                      size_t elem, Arena* arena, Err err) {
    *table = (MoveTable){0};
    if (held->plain && hop == MOVE_INSIDE) return 0;
    if (held->plain) return move_table_plain(table, m->times, m->whole, elem, arena, err);
    MoveHop h = holdings_hop(&held->pieces, &held->parts, kind, hop);
    if (h.to->first[h.to->tensors] == 0) return 0;
    return move_table(table, m->times, m->whole, h.from, h.to, h.kind, elem, arena, err);
}

static double plain_ms(const StrategyMoves* m, size_t elem, Arena* arena) {
    char err[ERR_BYTES];
    MoveTable alike;
    double ms = 0;
    ArenaMark mark = arena_mark(arena);
    if (m->only_more && !move_table_plain(&alike, m->times, m->whole, elem, arena, err))
        for (int w = 0; w < alike.waves; w++) ms += alike.of[w * alike.ranks].ms;
    arena_reset(arena, mark);
    return ms;
}

int strategy_tables(MoveTables* x, const StrategyMoves* m, const RankStrategy* strategy, const LayerLayout* how,
                    Arena* arena, Err err) {
    static const ReshardKind kinds[] = {RESHARD_COPY, RESHARD_SUM};
    memset(x, 0, sizeof *x);
    for (int k = 0; k < COUNT(kinds); k++) {
        Arena lists = {0};
        StrategyHoldings held;
        size_t elem = k ? m->gradient_bytes : m->weight_bytes;
        MoveTable* tables = k ? x->gradients : x->weights;
        int failed = strategy_holdings(&held, m->whole, strategy, how, kinds[k], m->times->node, &lists, err);
        for (int hop = 0; hop < N_MOVE_HOPS && !failed; hop++)
            failed = open_table(&tables[hop], m, &held, kinds[k], hop, elem, arena, err);
        x->alike[k] = plain_ms(m, elem, arena);
        arena_free(&lists);
        if (failed) return -1;
    }
    return 0;
}

// ---- played

typedef struct MovesAtWork {
    const MoveWindow* window;
    RankClock* clock;
    double *ready, *inside, *before, *owners, *delay;  // (ranks)
    int ranks;
    int is_inside;  // gradients leave under last passes
} MovesAtWork;

// used_at says when a bucket's weights are first used, through_at when its gradients are done.
static double used_at(const MoveWindow* w, int bucket) {
    int l = bucket - 1 - w->first_layer;
    return w->first + w->forward * MIN(MAX(l, 0), w->layers) / w->layers;
}

static double through_at(const MovesAtWork* x, int r, int bucket) {
    const MoveWindow* w = &x->window[r];
    int l = bucket - 1 - w->first_layer;
    if (!x->is_inside || !w->hides || bucket <= 0) return w->end;
    return w->end - w->tail - w->backward * MIN(MAX(l, 0), w->layers) / w->layers;
}

// Makes ranks that go through layers together as late as the last of them.
static void level(double* ms, const MovesAtWork* x) {
    for (int r = 0, end; r < x->ranks; r = end) {
        double last = ms[r];
        for (end = r + 1; end < x->ranks && x->window[end].together == x->window[r].together; end++)
            last = MAX(last, ms[end]);
        for (int i = r; i < end; i++) ms[i] = last;
    }
}

static void play_weights(double* late, const MovesAtWork* x, const MoveTables* t) {
    const MoveTable *owners = &t->weights[MOVE_OWNERS], *inside = &t->weights[MOVE_INSIDE];
    for (int r = 0; r < x->ranks; r++) late[r] = x->ready[r] = 0;
    for (int b = 0; b < owners->waves; b++) {
        move_play(x->owners, x->clock, owners, b, x->ready);
        if (inside->waves) move_play(x->inside, x->clock, inside, b, x->owners);
        for (int r = 0; r < x->ranks; r++) {
            const MoveWindow* w = &x->window[r];
            int uses = b <= w->first_layer + w->layers || w->first_layer + w->layers == owners->waves - 2;
            double there = MAX(x->owners[r], inside->waves ? x->inside[r] : 0);
            if (!x->clock[r].overlap) late[r] = MAX(late[r], there);
            else if (uses) late[r] = MAX(late[r], there - used_at(w, b));
        }
    }
    level(late, x);
}

// Sets ready to the time at which each rank is through a bucket, delays included.
static void find_through(const MovesAtWork* x, const double* late, int bucket) {
    for (int r = 0; r < x->ranks; r++)
        x->ready[r] = late[r] + through_at(x, r, bucket - x->window[r].lag) + x->delay[r];
}

// Exchanges of a pass stand behind the wave before on their links.
static void wait_for_links(const MovesAtWork* x) {
    for (int r = 0; r < x->ranks; r++)
        if (x->window[r].meets && x->window[r].hides) x->delay[r] += MAX(0, x->owners[r] - x->ready[r]);
    level(x->delay, x);
}

// Leaders wait for their node's sums one bucket later, and then send them on.
static void wait_for_nodes(const MovesAtWork* x, const double* late, int bucket) {
    for (int r = 0; r < x->ranks; r++) x->delay[r] += MAX(0, x->before[r] - x->ready[r]);
    level(x->delay, x);
    find_through(x, late, bucket);
}

static double play_gradients(const double* late, MovesAtWork* x, const MoveTables* t, int is_inside) {
    const MoveTable *owners = &t->gradients[MOVE_OWNERS], *inside = &t->gradients[MOVE_INSIDE];
    double ended = 0, over = 0;
    int behind = inside->waves > 0;
    x->is_inside = is_inside;
    for (int r = 0; r < x->ranks; r++) x->clock[r] = (RankClock){.overlap = x->clock[r].overlap};
    for (int r = 0; r < x->ranks; r++) ended = MAX(ended, late[r] + x->window[r].end), x->inside[r] = x->delay[r] = 0;
    for (int b = owners->waves - 1; b >= -behind; b--) {
        find_through(x, late, b);
        memcpy(x->before, x->inside, sizeof *x->before * (size_t)x->ranks);
        if (behind && b >= 0) move_play(x->inside, x->clock, inside, b, x->ready);
        if (b + behind == owners->waves) continue;
        if (behind) wait_for_nodes(x, late, b);
        move_play(x->owners, x->clock, owners, b + behind, x->ready);
        for (int r = 0; r < x->ranks; r++) over = MAX(over, x->owners[r]);
        if (is_inside && b > 0) wait_for_links(x);
    }
    for (int r = 0; r < x->ranks; r++) over = MAX(over, late[r] + x->window[r].end + x->delay[r]);
    return MAX(over - ended, 0);
}

double strategy_play(double* late, int* inside, const MoveTables* t, const StrategyMoves* m, const MoveWindow* window,
                     Arena* arena) {
    char err[ERR_BYTES];
    int n = m->times->ranks;
    ArenaMark mark = arena_mark(arena);
    MovesAtWork x = {.window = window, .clock = TAKE(arena, RankClock, n), .ranks = n};
    double** of_ranks[] = {&x.ready, &x.inside, &x.before, &x.owners, &x.delay};
    for (int i = 0; i < COUNT(of_ranks); i++) *of_ranks[i] = TAKE(arena, double, n);
    if (arena_check(arena, err)) return NAN;
    for (int r = 0; r < n; r++) x.clock[r] = (RankClock){.overlap = m->times->overlap};
    play_weights(late, &x, t);
    double under = play_gradients(late, &x, t, 1), end = play_gradients(late, &x, t, 0);
    *inside = under <= end;
    end = fmax(fmin(under, end) - t->alike[1], 0);
    for (int r = 0; r < n; r++) late[r] = MAX(late[r] - t->alike[0], 0);
    arena_reset(arena, mark);
    return end;
}
