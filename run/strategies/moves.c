// moves.c - moving as a part of what a strategy costs (plan/layout/strategy_moves.h): nothing on virtual ranks whose
// machine has a step_ms, which they let these bytes pass for.
#include "run/strategies/strategies.h"

#include <stdlib.h>

static MoveTime links_of(const Run* run, const Machine* machine) {
    const Model* m = &run->model;
    const Comm* world = m->world;
    int node = run_node_size(run, world, 1, 1);
    TransferTimes links = transfer_times(machine, &m->whole, (int)dtype_bytes(m->dt), node);
    return (MoveTime){links, world->size, world->node, world->overlap};
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
    MoveTime t = links_of(run, &machine);
    StrategyMoves moves = {&t, &x->owner.shape, dtype_bytes(run->model.dt), dtype_bytes(run_gradients_travel_as(run)),
                           machine.cost.step > 0};
    int counts = machine.cost.step <= 0 || !run->model.k->virtual_time;
    size_t n = (size_t)x->list.n, ranks = (size_t)world->size;
    x->start_ms = (double*)calloc(n * ranks, sizeof *x->start_ms);
    if (!x->start_ms) die("no memory for the times of %zu strategies on %zu ranks", n, ranks);
    for (int s = 0; s < x->list.n && world->rank == 0 && counts; s++)
        if (strategy_moves(x->start_ms + (size_t)s * ranks, &x->choices[s].end, &moves, &x->list.strategy[s],
                           x->before->layout.layer, &arena, err))
            die("--strategies: %s", err);
    arena_free(&arena);
    if (world->table->broadcast_host(world, x->start_ms, n * ranks * sizeof *x->start_ms, 0, err) ||
        world->table->broadcast_host(world, x->choices, sizeof x->choices, 0, err))
        die("%s", err);
    tell_choices(x, world->size);
}
