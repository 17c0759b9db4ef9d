// moves.c - the time of moves as a part of a strategy's cost (plan/layout/strategy_moves.h). On virtual ranks whose
// machine has a step_ms they take none: it stands for these bytes.
#include "run/strategies/strategies.h"
#include "run/setup/setup.h"

#include <math.h>
#include <stdlib.h>

static void find_links(Run* run) {
    Strategies* x = run->strategies;
    const Model* m = &run->model;
    const Comm* world = m->world;
    if (run->config.machine) run_read_machine(run, &x->links);
    else {
        const Run* widest = x->as[0];  // the most data ranks know the most links
        for (int s = 1; s < x->list.n; s++)
            if (x->as[s]->model.comm->size > widest->model.comm->size) widest = x->as[s];
        x->links = widest->clock->probed;
        x->links.cost.link_scale *= widest->model.stages;  // divided among stages
    }
    int node = run_node_size(run, world, 1, 1);
    TransferTimes links = transfer_times(&x->links, &m->whole, (int)dtype_bytes(m->dt), node);
    x->times = (MoveTime){links, world->size, world->node, world->overlap};
    size_t gradient = dtype_bytes(run_gradients_travel_as(run));
    x->moves = (StrategyMoves){&x->times, &x->owner.shape, dtype_bytes(m->dt), gradient, x->links.cost.step > 0};
}

// Finds the ms that moves show in a step of mean documents: a pipeline begins when the last of its scheme's ranks does.
static void tell_choice(Run* run, int s, double mean_length, MoveWindow* window, double* late, Arena* arena) {
    Strategies* x = run->strategies;
    Strategy* choice = &x->choices[s];
    const RankStrategy* strategy = &x->list.strategy[s];
    const PipelineScheme* scheme[MOST_PIPELINE_GROUPS];
    for (int g = 0; g < strategy->n; g++)
        scheme[g] = &x->kinds.pool.scheme[strategies_kind(&x->kinds, &strategy->group[g])];
    int inside, hides = x->times.overlap && (!run->model.k->on_host || run->model.k->virtual_time);
    strategy_windows(window, strategy, scheme, x->before->layout.layer, run->model.whole.L, run->config.batch_tokens,
                     mean_length, hides, x->links.n_schemes == 0);
    choice->end = strategy_play(late, &inside, &x->tables[s], &x->moves, window, arena);
    for (int r = 0, place; r < x->times.ranks; r++) {
        const PipelineGroup* g = &strategy->group[strategy_group(strategy, r, &place)];
        double* start = &choice->start[strategies_kind(&x->kinds, g)];
        *start = fmax(*start, late[r]);
    }
}

void strategies_time_moves(Run* run) {
    char err[ERR_BYTES];
    Strategies* x = run->strategies;
    Comm* world = run->model.world;
    Arena arena = {0};
    find_links(run);
    double mean_length = strategies_mean_length(run);
    int counts = x->links.cost.step <= 0 || !run->model.k->virtual_time;
    if (world->rank == 0 && counts) {
        MoveWindow* window = TAKE(&arena, MoveWindow, world->size);
        double* late = TAKE(&arena, double, world->size);
        x->tables = (MoveTables*)calloc((size_t)x->list.n, sizeof *x->tables);
        if (!x->tables || arena_check(&arena, err)) die("no memory for the moves of %d strategies", x->list.n);
        for (int s = 0; s < x->list.n; s++) {
            if (strategy_tables(&x->tables[s], &x->moves, &x->list.strategy[s], x->before->layout.layer, &x->arena,
                                err))
                die("--strategies: %s", err);
            tell_choice(run, s, mean_length, window, late, &arena);
        }
    }
    arena_free(&arena);
    run_tell_all(world, x->choices, sizeof x->choices);
}

// Rank 0 plays `late`: ms that moves hold up each rank, and last the ms after the last pass.
void strategies_expect(Run* run, BatchPlan* planned) {
    char err[ERR_BYTES];
    const Strategies* x = run->strategies;
    Comm* world = run->model.world;
    const Agreement* of = run->cluster->agreed;
    Arena arena = {0};
    int n = world->size;
    int inside = 1;
    double *late = TAKE(&arena, double, n + 2), most = 0, last = 0;
    MoveWindow* window = TAKE(&arena, MoveWindow, n);
    if (arena_check(&arena, err)) die("%s", err);
    memset(late, 0, sizeof *late * (size_t)(n + 2));
    for (int r = 0; r < n; r++) {
        window[r] = of[r].window;
        if (window[r].forward > 0) window[r].end = of[r].predicted;
    }
    if (x->tables && planned->made.predicted)
        late[n] = strategy_play(late, &inside, &x->tables[planned->strategy], &x->moves, window, &arena);
    late[n + 1] = inside;
    run_tell_all(world, late, sizeof *late * (size_t)(n + 2));
    for (int r = 0; r < n; r++) {
        most = fmax(most, of[r].predicted), last = fmax(last, of[r].predicted + late[r]);
        if (isnan(of[r].predicted)) last = NAN;
    }
    planned->sums_behind = !late[n + 1];
    planned->late_ms = late[world->rank], planned->behind_ms = late[n];
    planned->expected_ms = last + late[n], planned->moving_ms = last + late[n] - most;
    arena_free(&arena);
}
