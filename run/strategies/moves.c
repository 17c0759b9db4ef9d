// moves.c - moving as a part of what a strategy costs: gradients to their owners and weights back, played in the times
// of the machine's links (plan/cost/transfers.h).
//
// Weights of a step come from owners whatever the step before was, so this is a number for each strategy, and not for
// each pair. A machine's step_ms has the sums of a run without strategies in it: there only what a strategy takes more
// counts; and nothing on virtual ranks, which let these bytes pass for step_ms.
#include "run/strategies/strategies.h"

#include <math.h>
#include <stdlib.h>

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

// On rank 0: when weights are there (COPY), or gradients summed (SUM), of every rank (ranks).
static void time_move(double* ms, const Run* run, int s, ReshardKind kind, const MoveTime* t, Arena* arena) {
    char err[ERR_BYTES];
    const Shape* whole = &run->strategies->owner.shape;
    int sums = kind == RESHARD_SUM;
    size_t elem = dtype_bytes(sums ? run_gradients_travel_as(run) : run->model.dt);
    double plain = move_time_plain(t, whole, elem);
    Holdings pieces, parts;
    for (int r = 0; r < t->ranks; r++) ms[r] = plain;
    if (!strategies_is_plain(run, s, kind)) {
        strategies_parts(&parts, run, s, kind, arena);
        if (holdings_of_pieces(&pieces, whole, arena, err) ||
            move_time(ms, t, whole, sums ? &parts : &pieces, sums ? &pieces : &parts, kind, elem, arena, err))
            die("--strategies: %s", err);
    }
    for (int r = 0; r < t->ranks; r++) ms[r] = counted(run, t->links.cost, ms[r], plain);
}

// start (ranks), and the end of what the last rank sends.
static void time_strategy(double* start, double* end, const Run* run, int s, const MoveTime* t, Arena* arena) {
    char err[ERR_BYTES];
    double* ends = TAKE(arena, double, t->ranks);
    if (arena_check(arena, err)) die("%s", err);
    time_move(start, run, s, RESHARD_COPY, t, arena);
    time_move(ends, run, s, RESHARD_SUM, t, arena);
    for (int r = *end = 0; r < t->ranks; r++) *end = MAX(*end, ends[r]);
}

// A pipeline begins when the last of its scheme's ranks has its weights.
static void tell_choices(Strategies* x, int ranks) {
    for (int s = 0; s < x->list.n; s++) {
        const RankStrategy* strategy = &x->list.strategy[s];
        for (int r = 0, place; r < ranks; r++) {
            const PipelineGroup* g = &strategy->group[strategy_group(strategy, r, &place)];
            double* start = &x->choices[s].start[strategies_kind(&x->kinds, g)];
            *start = MAX(*start, x->start_ms[s * ranks + r]);
        }
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
        const Run* widest = x->as[0];  // of most data ranks, which know most of links
        for (int s = 1; s < x->list.n; s++)
            if (x->as[s]->model.comm->size > widest->model.comm->size) widest = x->as[s];
        machine = widest->clock->probed;
        machine.cost.link_scale *= widest->model.stages;  // divided among stages
    }
    MoveTime t = strategies_links(run, &machine);
    size_t n = (size_t)x->list.n, ranks = (size_t)world->size;
    x->start_ms = (double*)calloc(n * ranks, sizeof *x->start_ms);
    if (!x->start_ms) die("no memory for the times of %zu strategies on %zu ranks", n, ranks);
    for (int s = 0; s < x->list.n && world->rank == 0; s++, arena_reset(&arena, (ArenaMark){0}))
        time_strategy(x->start_ms + (size_t)s * ranks, &x->choices[s].end, run, s, &t, &arena);
    arena_free(&arena);
    if (world->table->broadcast_host(world, x->start_ms, n * ranks * sizeof *x->start_ms, 0, err) ||
        world->table->broadcast_host(world, x->choices, sizeof x->choices, 0, err))
        die("%s", err);
    tell_choices(x, world->size);
}
