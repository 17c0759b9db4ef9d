// strategies_moves.c - what moving gradients to their owners and weights back takes under each strategy, played in the
// times of the machine's links (plan/move_time.h): a part of what a strategy costs.
//
// Weights of a step come from owners whatever the step before was, so this is a number for each strategy, and not for
// each pair. A machine's step_ms has the sums of a run without strategies in it: there only what a strategy takes more
// counts; and nothing on virtual ranks, which let these bytes pass for step_ms.
#include <stdlib.h>

#include "run/strategies.h"

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
    if (holdings_of_pieces(&pieces, whole, arena, err, sizeof err) ||
        move_time(start, t, whole, &pieces, &parts, RESHARD_COPY, elem, arena, err, sizeof err) ||
        move_time(ends, t, whole, &parts, &pieces, RESHARD_SUM, sizeof(float), arena, err, sizeof err))
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
        machine = x->as[0]->probed;
        machine.cost.link_scale *= x->as[0]->model.stages;  // divided among stages
    }
    MoveTime t = strategies_links(run, &machine);
    size_t n = (size_t)x->list.n, ranks = (size_t)world->size;
    x->start_ms = (double*)calloc(n * ranks, sizeof *x->start_ms);
    if (!x->start_ms) die("no memory for the times of %zu strategies on %zu ranks", n, ranks);
    for (int s = 0; s < x->list.n && world->rank == 0; s++, arena_reset(&arena, (ArenaMark){0}))
        time_moves(x->start_ms + (size_t)s * ranks, &x->end_ms[s], run, s, &t, &arena);
    arena_free(&arena);
    if (world->table->broadcast_host(world, x->start_ms, n * ranks * sizeof *x->start_ms, 0, err, sizeof err) ||
        world->table->broadcast_host(world, x->end_ms, sizeof x->end_ms, 0, err, sizeof err))
        die("%s", err);
    tell_choices(x, world->size);
}

double strategies_start_ms(const Run* run, int strategy) {
    const Comm* world = run->model.world;
    return run->strategies ? run->strategies->start_ms[strategy * world->size + world->rank] : 0;
}

void strategies_predict(const Run* run, StepRecord* r) {
    const Strategies* x = run->strategies;
    int ranks = run->model.world->size, now = run->batch.strategy, next = run->ahead.strategy;
    double before = x->start_ms[now * ranks], behind = x->start_ms[next * ranks];
    r->moving_ms = x->end_ms[now] + behind;
    r->predicted_ms = run->batch.expected_ms - before + r->moving_ms;
}
