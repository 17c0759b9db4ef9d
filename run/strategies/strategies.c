// strategies.c - the phases before the first step, once for every strategy: who does what, and memory. Without
// strategies there is one job, and each phase is its own (ranks.c, memory.c). See strategies.h.
#include "run/strategies/strategies.h"
#include "run/model/work.h"
#include "run/setup/setup.h"

#include <stdlib.h>

const char* strategies_name(const Run* run, int strategy) { return run->strategies->name[strategy]; }

Run* run_under(Run* run, int strategy) { return run->strategies ? run->strategies->as[strategy] : run; }

int run_layouts(const Run* run) { return run->strategies ? run->strategies->list.n : 1; }

int strategies_job(const Run* run, int strategy) {
    int place;
    return strategy_group(&run->strategies->list.strategy[strategy], run->model.world->rank, &place);
}

int64_t strategies_holds(const Run* run) {
    const SchemePool* pool = &run->strategies->kinds.pool;
    return pool->scheme[pool->n - 1].max_tokens;
}

const PipelineGroup* strategies_group(const Run* run, int s, int rank, int* place) {
    const RankStrategy* strategy = &run->strategies->list.strategy[s];
    return &strategy->group[strategy_group(strategy, rank, place)];
}

int strategies_same_job(const Run* run, int s, int a, int b) {
    int place;
    return run->strategies && strategies_group(run, s, a, &place) == strategies_group(run, s, b, &place);
}

Layout strategies_layout(const Run* run, const PipelineGroup* g) {
    const Layout* how = run->strategies ? &run->strategies->before->layout : &run->model.ranks->layout;
    return strategy_layout(&run->model.whole, g, how->layer);
}

// ---- who does what

// Makes the run under strategy s: the ranks of this one's group become its job.
static Run* make_view(Run* run, int s) {
    int place;
    RunView* own = (RunView*)malloc(sizeof *own);
    if (!own) die("no memory for %d strategies", run->strategies->list.n);
    run_view(own, run);
    Run* view = &own->run;
    Model* m = &view->model;
    const PipelineGroup* g = strategies_group(run, s, m->world->rank, &place);
    m->job = model_split(m, m->world->rank - place, COMM_OTHER, m->world->overlap);
    view->settled.tp = g->tp, view->settled.pp = g->pp;
    view->settled.capacity *= g->tp;  // of a rank
    m->ranks->layout = strategies_layout(run, g);
    m->ranks->owner = &run->strategies->owner;
    m->ranks->zero.holds = ZERO_IN_USE;
    run_join_job(view);
    return view;
}

// Opens the movers that take gradients to their owners, or weights back, under strategy s.
static void open_movers(Mover mover[N_MOVE_HOPS], Run* run, int s, ReshardKind kind) {
    char err[ERR_BYTES];
    Strategies* x = run->strategies;
    const Model* m = &x->as[s]->model;
    Arena scratch = {0};
    StrategyHoldings held;
    int sums = kind == RESHARD_SUM;
    if (strategy_holdings(&held, &x->owner.shape, &x->list.strategy[s], x->before->layout.layer, kind, m->world->node,
                          &scratch, err))
        die("--strategies: %s", err);
    for (int hop = 0; hop < N_MOVE_HOPS; hop++) {
        MoveHop h = held.plain ? (MoveHop){.kind = kind} : holdings_hop(&held.pieces, &held.parts, kind, hop);
        if (held.plain && hop == MOVE_INSIDE) continue;
        mover[hop] = mover_open(m, m->world, h.kind, sums ? COMM_GRADIENTS : COMM_PARAMETERS, sums ? DT_F32 : m->dt,
                                h.from, h.to, &x->arena);
        mover_post(&mover[hop], sums ? m->ranks->zero.grad_dtype : m->dt, sums && hop == MOVE_INSIDE);
    }
    arena_free(&scratch);
}

void strategies_own(Model* owner, ModelRanks* ranks, const Model* m) {
    *owner = *m, *ranks = *m->ranks;
    model_set_ranks(owner, ranks);
    owner->shape = m->whole, owner->shape.shards = m->world->size;
    owner->comm = owner->job = m->world;
    owner->stages = 1;
    ranks->zero.holds = ZERO_OWNED;
}

static void strategies_join(Run* run) {
    Strategies* x = run->strategies;
    Model* m = &run->model;
    m->whole.shards = m->world->size;
    m->world->overlap = !strcmp(run->config.overlap, "yes");
    x->before = m->ranks;
    for (int s = 0; s < x->list.n; s++) x->as[s] = make_view(run, s);
    strategies_own(&x->owner, &x->owner_ranks, m);
    for (int s = 0; s < x->list.n; s++) {
        open_movers(x->as[s]->model.ranks->gather, run, s, RESHARD_COPY);
        open_movers(x->as[s]->model.ranks->reduce, run, s, RESHARD_SUM);
    }
    strategies_turn(run, 0);
}

void run_join_ranks(Run* run) {
    Model* m = &run->model;
    m->job = m->world;
    strategies_read(run);
    if (run->strategies) strategies_join(run);
    else run_join_job(run);
    m->whole.shards = m->world->size;
    run_compare_ranks(run);
}

// ---- memory: all strategies use the same by turns

static void share_memory(Model* to, const Model* from) {
    memcpy(to->array, from->array, sizeof to->array);
    to->acts = from->acts, to->rope = from->rope, to->ranks->group_scratch = from->ranks->group_scratch;
    to->loss_sum = from->loss_sum, to->grad_norm2 = from->grad_norm2;
    to->grad_scale = from->grad_scale, to->ranks->barrier = from->ranks->barrier;
    zero_open(to);
}

void strategies_carve(Run* run, const MemoryPlan* plan) {
    Strategies* x = run->strategies;
    if (!x) return;
    share_memory(&x->owner, &run->model);
    for (int s = 0; s < x->list.n; s++) {
        Model* m = &x->as[s]->model;
        m->ranks->moving = run->model.ranks->moving;
        share_memory(m, &run->model);
        run_carve_work(x->as[s], plan);
        model_set_many(m);
        run_carve_activations(x->as[s]);
    }
    strategies_turn(run, x->now);
}

// ---- a strategy at work

void strategies_turn(Run* run, int strategy) {
    Strategies* x = run->strategies;
    if (!x) return;
    const Run* as = x->as[x->now = strategy];
    run->model = as->model, run->settled = as->settled, run->clock = as->clock;
    run_turn_virtual(strategy);
}

void run_enter_strategy(Run* run, int strategy) {
    if (!run->strategies || strategy == run->strategies->now) return;
    zero_settle(&run->model);
    zero_gather(&run_under(run, strategy)->model);
    strategies_turn(run, strategy);
}

// ---- the end

void strategies_close(Run* run) {
    Strategies* x = run->strategies;
    if (!x) return;
    *x->before = *run->model.ranks;
    model_set_ranks(&run->model, x->before);
    memcpy(run->model.array, x->owner.array, sizeof run->model.array);  // the run knows all memory until it ends
    for (int s = 0; s < x->list.n; s++) {
        work_close(x->as[s]->model.ranks->work);
        run_leave_job(x->as[s]);
        free(x->as[s]);
    }
    zero_close(&x->owner);
    free(x->tables);
    free(x->paces);
    free(x->groups);
    arena_free(&x->arena);
    free(x);
}
