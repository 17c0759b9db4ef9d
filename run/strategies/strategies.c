// strategies.c - see strategies.h.
#include "run/strategies/strategies.h"

#include <math.h>
#include <stdlib.h>

const char* strategies_name(const Run* run, int strategy) { return run->strategies->name[strategy]; }

Run* run_under(Run* run, int strategy) { return run->strategies ? run->strategies->as[strategy] : run; }

const PipelineGroup* strategies_group(const Run* run, int s, int rank, int* place) {
    const RankStrategy* strategy = &run->strategies->list.strategy[s];
    return &strategy->group[strategy_group(strategy, rank, place)];
}

int strategies_same_job(const Run* run, int s, int a, int b) {
    int place;
    return run->strategies && strategies_group(run, s, a, &place) == strategies_group(run, s, b, &place);
}

void strategies_turn(Run* run, int strategy) {
    Strategies* x = run->strategies;
    if (!x) return;
    const Run* as = x->as[strategy];
    x->now = strategy;
    run->model = as->model;
    run->settled = as->settled;
    run->clock->limits = as->clock->limits;
    run->clock->setting = as->clock->setting;
    run->clock->groups = as->clock->groups;
    run->clock->probed = as->clock->probed;
    run->clock->settled = as->clock->settled;
    run_turn_virtual(strategy);
}

void run_enter_strategy(Run* run, int strategy) {
    if (!run->strategies || strategy == run->strategies->now) return;
    zero_gather(&run_under(run, strategy)->model);
    strategies_turn(run, strategy);
}

void strategies_time(Run* run, Timer* timer) {
    Strategies* x = run->strategies;
    for (int s = 0; s < x->list.n; s++) model_set_timer(&x->as[s]->model, timer);
    run->model.timer = timer;
}

// ---- who does what

Layout strategies_layout(const Run* run, const PipelineGroup* g) {
    Recompute recompute = (Recompute)config_choice(&run->config, "--recompute");
    return layout_even(&run->model.whole, g->tp, g->pp, 1, recompute);
}

static const TpSplit* split_of(const Run* run, int tp) {
    static TpSplit splits[MOST_TP + 1];
    if (!splits[tp].ranks) splits[tp] = split_even(&run->model.whole, tp);
    return &splits[tp];
}

// What rank r of all computes under strategy s.
static Part part_of(const Run* run, int s, int r) {
    int place;
    const PipelineGroup* g = strategies_group(run, s, r, &place);
    Layout layout = strategies_layout(run, g);
    int stage = place / (g->copies * g->tp);
    return (Part){split_of(run, g->tp), place % g->tp, layout_first(&layout, stage), layout_first(&layout, stage + 1)};
}

void strategies_parts(Holdings* parts, const Run* run, int s, Arena* arena) {
    char err[ERR_BYTES];
    int ranks = run->model.world->size;
    Part* list = TAKE(arena, Part, ranks);
    if (arena_check(arena, err)) die("%s", err);
    for (int r = 0; r < ranks; r++) list[r] = part_of(run, s, r);
    if (holdings_of_parts(parts, &run->strategies->owner.shape, list, ranks, arena, err)) die("--strategies: %s", err);
}

int strategies_are_plain(const Run* run, int s) {
    const RankStrategy* strategy = &run->strategies->list.strategy[s];
    return strategy->n == 1 && strategy->group[0].tp == 1 && strategy->group[0].pp == 1;
}

// ---- what is chosen from

void strategies_add_scheme(SchemePool* pool, PipelineGroup* kind, const PipelineGroup* g, const PipelineCost* cost,
                           int64_t capacity) {
    int at = 0;
    while (at < pool->n && pool->scheme[at].max_tokens >= capacity) at++;
    for (int i = pool->n++; i > at; i--) pool->scheme[i] = pool->scheme[i - 1], kind[i] = kind[i - 1];
    pool->scheme[at] =
        (PipelineScheme){g->tp * g->pp, g->pp, cost->quadratic, cost->linear, cost->fixed, capacity, 1, 1 << 30};
    kind[at] = (PipelineGroup){1, g->tp, g->pp};
}

int strategies_scheme_of(const Strategies* x, const PipelineGroup* g) {
    for (int k = 0; k < x->pool.n; k++)
        if (x->kind[k].tp == g->tp && x->kind[k].pp == g->pp) return k;
    return -1;
}

// ---- a step

// The group of the chosen strategy that pipeline p of Hydraulis' numbers, scheme by scheme, belongs to.
static int group_of_pipeline(const Strategies* x, int s, int p) {
    int k = 0;
    while (p >= x->choices[s].copies[k]) p -= x->choices[s].copies[k++];
    for (int g = 0; g < x->list.strategy[s].n; g++)
        if (strategies_scheme_of(x, &x->list.strategy[s].group[g]) == k) return g;
    return -1;
}

// Of this group only.
static void keep_pieces(Batch* b, const StepWork* w, const Strategies* x, int group) {
    int n = 0;
    for (int i = 0; i < b->n_pieces; i++)
        if (group_of_pipeline(x, b->planned->strategy, w->pipeline_of[i]) == group) b->pieces[n++] = b->pieces[i];
    b->n_pieces = n;
    for (int i = 0; i < n; i++) b->lengths[i] = b->pieces[i].length;
}

int strategies_dispatch(Batch* b, const Run* run, int64_t step, Err err) {
    const Strategies* x = run->strategies;
    StepWork w;
    int place, first = b->training ? 0 : x->now, longest = 0;
    ArenaMark mark = arena_mark(&b->arena);
    if (step_work(&w, &x->pool, b->lengths, b->n_pieces, &b->arena, err)) return -1;
    uint64_t seed = hash64((uint64_t)run->config.seed ^ (uint64_t)step);
    Choice choice = hydraulis_choose(&w, x->choices + first, b->training ? x->list.n : 1, HYDRAULIS_SHUFFLES, seed);
    if (choice.strategy < 0 && !b->training)
        first = 0, choice = hydraulis_choose(&w, x->choices, x->list.n, HYDRAULIS_SHUFFLES, seed);
    for (int i = 0; i < b->n_pieces; i++) longest = MAX(longest, b->lengths[i]);
    if (choice.strategy < 0)
        return fail(err,
                    "no strategy has a pipeline for a document of %d tokens; try a wider tp, a larger --capacity or a "
                    "smaller --context",
                    longest);
    b->planned->strategy = first + choice.strategy;
    b->planned->strategy_ms = choice.ms;
    b->planned->dispatch_hash =
        hash_bytes(w.pipeline_of, sizeof(int) * (size_t)b->n_pieces,
                   hash_bytes(b->lengths, sizeof(int) * (size_t)b->n_pieces, (uint64_t)b->planned->strategy));
    keep_pieces(b, &w, x, strategy_group(&x->list.strategy[b->planned->strategy], run->model.world->rank, &place));
    arena_reset(&b->arena, mark);
    return 0;
}

// ---- moving as a part of what a strategy costs: gradients to their owners and weights back, played in the times of
// the machine's links (plan/cost/transfers.h)
//
// Weights of a step come from owners whatever the step before was, so this is a number for each strategy, and not for
// each pair. A machine's step_ms has the sums of a run without strategies in it: there only what a strategy takes more
// counts; and nothing on virtual ranks, which let these bytes pass for step_ms.

MoveTime strategies_links(const Run* run, const Machine* machine) {
    const Model* m = &run->model;
    const Comm* world = m->world;
    int node = run_node_size(run, world, 1, 1);
    TransferTimes links = transfer_times(machine, &m->whole, (int)dtype_bytes(m->dt), node);
    return (MoveTime){links, world->size, world->node, world->overlap};
}

// Of what takes `ms` while without strategies it would take `plain`.
static double counted(const Run* run, const Cost* cost, double ms, double plain) {
    if (cost->step <= 0) return ms;
    return run->model.k->virtual_time ? 0 : MAX(ms - plain, 0);
}

// On rank 0. start (ranks).
static void time_moves(double* start, double* end, const Run* run, int s, const MoveTime* t, Arena* arena) {
    char err[ERR_BYTES];
    const Shape* whole = &run->strategies->owner.shape;
    size_t elem = dtype_bytes(run->model.dt);
    int ranks = t->ranks;
    double weights = move_time_plain(t, whole, elem), gradients = move_time_plain(t, whole, sizeof(float));
    double* ends = TAKE(arena, double, ranks);
    Holdings pieces, parts;
    for (int r = 0; r < ranks; r++) start[r] = counted(run, t->links.cost, weights, weights);
    *end = counted(run, t->links.cost, gradients, gradients);
    if (strategies_are_plain(run, s)) return;
    strategies_parts(&parts, run, s, arena);
    if (holdings_of_pieces(&pieces, whole, arena, err) ||
        move_time(start, t, whole, &pieces, &parts, RESHARD_COPY, elem, arena, err) ||
        move_time(ends, t, whole, &parts, &pieces, RESHARD_SUM, sizeof(float), arena, err))
        die("--strategies: %s", err);
    for (int r = 0; r < ranks; r++) start[r] = counted(run, t->links.cost, start[r], weights);
    for (int r = *end = 0; r < ranks; r++) *end = MAX(*end, counted(run, t->links.cost, ends[r], gradients));
}

// A pipeline begins when the last of its scheme's ranks has its weights.
static void tell_choices(Strategies* x, int ranks) {
    for (int s = 0; s < x->list.n; s++) {
        const RankStrategy* strategy = &x->list.strategy[s];
        for (int r = 0, place; r < ranks; r++) {
            const PipelineGroup* g = &strategy->group[strategy_group(strategy, r, &place)];
            double* start = &x->choices[s].start[strategies_scheme_of(x, g)];
            *start = MAX(*start, x->start_ms[s * ranks + r]);
        }
        x->choices[s].end = x->end_ms[s];
    }
}

void strategies_time_moves(Run* run) {
    char err[ERR_BYTES];
    Strategies* x = run->strategies;
    Comm* world = run->model.world;
    Machine machine;
    Arena arena = {0};
    if (run->config.machine) run_read_machine(run, &machine);
    else {
        machine = x->as[0]->clock->probed;
        machine.cost.link_scale *= x->as[0]->model.stages;  // divided among stages
    }
    MoveTime t = strategies_links(run, &machine);
    size_t n = (size_t)x->list.n, ranks = (size_t)world->size;
    x->start_ms = (double*)calloc(n * ranks, sizeof *x->start_ms);
    if (!x->start_ms) die("no memory for the times of %zu strategies on %zu ranks", n, ranks);
    for (int s = 0; s < x->list.n && world->rank == 0; s++, arena_reset(&arena, (ArenaMark){0}))
        time_moves(x->start_ms + (size_t)s * ranks, &x->end_ms[s], run, s, &t, &arena);
    arena_free(&arena);
    if (world->table->broadcast_host(world, x->start_ms, n * ranks * sizeof *x->start_ms, 0, err) ||
        world->table->broadcast_host(world, x->end_ms, sizeof x->end_ms, 0, err))
        die("%s", err);
    tell_choices(x, world->size);
}

double strategies_start_ms(const Run* run, int strategy) {
    const Comm* world = run->model.world;
    return run->strategies ? run->strategies->start_ms[strategy * world->size + world->rank] : 0;
}

void strategies_predict(const Run* run, StepRecord* r) {
    const Strategies* x = run->strategies;
    int ranks = run->model.world->size, now = run->batch.planned->strategy, next = run->ahead.planned->strategy;
    double before = x->start_ms[now * ranks], behind = x->start_ms[next * ranks];
    r->moving_ms = x->end_ms[now] + behind;
    r->predicted_ms = run->batch.planned->expected_ms - before + r->moving_ms;
}
