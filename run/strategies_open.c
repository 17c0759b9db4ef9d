// strategies_open.c - the phases before the first step, once for every strategy: who does what, memory, costs. Without
// strategies each is that of the one job there is (ranks.c, memory.c, cost.c).
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "plan/disk.h"
#include "run/strategies.h"

// ---- the list

// A file where there is one of this name, else the list itself.
static int read_list(StrategyList* list, const char* named, char* err, size_t errlen) {
    enum { MOST = 1 << 16 };
    size_t n = strlen(named);
    if (access(named, R_OK)) return strategies_parse(list, named, n, err, errlen);
    char words[ERR_BYTES], *text = disk_read_file(named, MOST, &n, err, errlen);
    if (!text) return -1;
    int failed = strategies_parse(list, text, n, words, sizeof words);
    free(text);
    return failed ? fail(err, errlen, "%s: %s", named, words) : 0;
}

// What has no meaning, or is not there, while layouts change.
static void refuse_others(const Run* run) {
    const Config* c = &run->config;
    if (c->tp > 1 || c->pp > 1 || (c->layout && strcmp(c->layout, "hydraulis") != 0))
        die("--strategies: expected neither --tp, --pp nor --layout beside it; write them into the strategies");
    if (c->check_layout) die("--check-layout: expected one layout, found --strategies; try --explain");
    if (c->zero > 1)
        die("--strategies: expected --zero 1, found --zero %d; weights of a step are whole in every pipeline", c->zero);
    if (strcmp(c->balance, "off") || c->probe)
        die("--strategies: %s is not there for ranks whose work changes from step to step; leave it out",
            c->probe ? "--probe" : "--balance");
    if (!strcmp(c->grad_dtype, "bf16")) die("--strategies: gradients travel as fp32; leave --grad-dtype out");
}

// Like pipelines share documents, as many as --cp says in every group of every strategy.
static void check_cp_size(const StrategyList* list, int cp_size) {
    char text[STRATEGY_TEXT];
    for (int s = 0; s < list->n; s++)
        for (int g = 0; g < list->strategy[s].n; g++)
            if (list->strategy[s].group[g].copies < cp_size)
                die("--strategies: %s: expected at least %d like pipelines for --cp %d, found %d; leave --cp out",
                    strategy_print(&list->strategy[s], text), cp_size, cp_size, list->strategy[s].group[g].copies);
}

// As it could be typed, which is saved with the run: a file may change, and another search may find another list.
static void keep_list(Run* run) {
    Config* c = &run->config;
    const Strategies* x = run->strategies;
    char* text = config_string(c, (size_t)x->list.n * (STRATEGY_TEXT + 2) + 1);
    size_t n = 0;
    if (!text) die("no memory for the text of %d strategies", x->list.n);
    for (int s = 0; s < x->list.n; s++) n += (size_t)sprintf(text + n, "%s%s", s ? "; " : "", x->name[s]);
    c->strategies = text;
    c->layout = NULL;  // of --layout hydraulis
}

static void strategies_read(Run* run) {
    char err[ERR_BYTES];
    const Model* m = &run->model;
    struct Read {
        int failed;
        StrategyList list;
        char words[ERR_BYTES];
    } found;
    const Config* c = &run->config;
    int searches = c->layout && !strcmp(c->layout, "hydraulis");
    int named = c->strategies && strcmp(c->strategies, "none") != 0;
    if ((!named && !searches) || !run->training) return;
    refuse_others(run);
    memset(&found, 0, sizeof found);
    if (!named) run_measure_limit(run);
    if (m->world->rank == 0)
        found.failed = named ? read_list(&found.list, c->strategies, found.words, ERR_BYTES)
                             : strategies_find(run, &found.list, found.words, ERR_BYTES);
    if (m->world->table->broadcast_host(m->world, &found, sizeof found, 0, err, sizeof err)) die("%s", err);
    if (found.failed) die("--strategies: %s", found.words);
    if (strategies_check(&found.list, &m->whole, m->world->size, err, sizeof err))
        die("--strategies: %s; --strategies none goes on without", err);
    check_cp_size(&found.list, c->cp_size);
    run->strategies = (Strategies*)calloc(1, sizeof *run->strategies);
    if (!run->strategies) die("no memory for %d strategies", found.list.n);
    run->strategies->list = found.list;
    for (int s = 0; s < found.list.n; s++) strategy_print(&found.list.strategy[s], run->strategies->name[s]);
    keep_list(run);
}

// ---- who does what

// The run under strategy s: the ranks of this one's group become its job.
static Run* make_view(Run* run, int s) {
    char err[ERR_BYTES];
    int place;
    Run* view = (Run*)malloc(sizeof *view);
    if (!view) die("no memory for %d strategies", run->strategies->list.n);
    *view = *run;
    Model* m = &view->model;
    Comm* world = m->world;
    const PipelineGroup* g = strategies_group(run, s, world->rank, &place);
    int color = world->rank - place;
    if (world->table->split(world, &m->job, color, world->rank, err, sizeof err)) die("--strategies: %s", err);
    m->job->overlap = world->overlap;
    view->config.tp = g->tp, view->config.pp = g->pp;
    view->config.capacity *= g->tp;  // of a rank
    m->layout = strategies_layout(run, g);
    m->owner = &run->strategies->owner;
    m->zero.holds = ZERO_IN_USE;
    run_join_job(view);
    return view;
}

// Gradients to their owners, weights back, under strategy s.
static void open_movers(Run* run, int s, const Holdings* pieces) {
    char err[ERR_BYTES];
    Strategies* x = run->strategies;
    Arena scratch = {0};
    const Shape* whole = &x->owner.shape;
    Comm* world = run->model.world;
    int ranks = world->size, plain = strategies_are_plain(run, s);
    Holdings parts;
    if (!plain) strategies_parts(&parts, run, s, &scratch);
    x->gather[s] = (Mover){.kind = RESHARD_COPY, .purpose = COMM_PARAMETERS, .is_plain = plain};
    x->reduce[s] = (Mover){.kind = RESHARD_SUM, .purpose = COMM_GRADIENTS, .is_plain = plain};
    if (!plain && (reshard(&x->gather[s].transfers, whole, pieces, &parts, RESHARD_COPY, world->rank, ranks,
                           world->node, &x->arena, err, sizeof err) ||
                   reshard(&x->reduce[s].transfers, whole, &parts, pieces, RESHARD_SUM, world->rank, ranks, world->node,
                           &x->arena, err, sizeof err)))
        die("--strategies: %s", err);
    Model* m = &x->as[s]->model;
    m->shape.shards = plain ? ranks : 1;
    m->gather = &x->gather[s], m->reduce = &x->reduce[s];
    arena_free(&scratch);
}

static void strategies_join(Run* run) {
    char err[ERR_BYTES];
    Strategies* x = run->strategies;
    Arena scratch = {0};
    Holdings pieces;
    Model* m = &run->model;
    m->whole.shards = m->world->size;
    for (int s = 0; s < x->list.n; s++) x->as[s] = make_view(run, s);
    x->owner = *m;
    x->owner.shape = m->whole;
    x->owner.comm = x->owner.job = m->world;
    x->owner.stages = 1;
    x->owner.zero.holds = ZERO_OWNED;
    if (holdings_of_pieces(&pieces, &x->owner.shape, &scratch, err, sizeof err)) die("%s", err);
    for (int s = 0; s < x->list.n; s++) open_movers(run, s, &pieces);
    arena_free(&scratch);
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

// ---- memory

static void strategies_carve(Run* run) {
    Strategies* x = run->strategies;
    const Model* m = &run->model;
    memcpy(x->owner.zero.part, m->zero.part, sizeof m->zero.part);
    x->owner.loss_sum = m->loss_sum, x->owner.grad_norm2 = m->grad_norm2, x->owner.grad_scale = m->grad_scale;
    zero_open(&x->owner);
    for (int s = 0; s < x->list.n; s++) {
        Model* other = &x->as[s]->model;
        memcpy(other->zero.part, m->zero.part, sizeof m->zero.part);
        other->acts = m->acts;
        other->group_scratch = m->group_scratch;
        other->rope = m->rope;
        other->loss_sum = m->loss_sum, other->grad_norm2 = m->grad_norm2;
        other->grad_scale = m->grad_scale, other->barrier = m->barrier;
        other->moving = m->moving;
        other->slowed = m->slowed;
        zero_open(other);
        run_carve_activations(x->as[s]);
    }
    strategies_turn(run, x->now);
}

MemoryPlan run_plan_memory(Run* run) {
    MemoryPlan plan = {.on_host = run->model.k->on_host};
    if (!run->strategies) return run_plan_job_memory(run);
    for (int s = 0; s < run->strategies->list.n; s++) {
        Run* as = run->strategies->as[s];
        as->available = run->available;
        MemoryPlan one = run_plan_job_memory(as);
        run->available = as->available, run->most_scratch = as->most_scratch;
        run_widen_memory(&plan, &one);
    }
    run->memory_bytes = plan.total;
    strategies_turn(run, run->strategies->now);
    return plan;
}

void run_take_memory(Run* run, MemoryPlan* plan) {
    run_take_job_memory(run, plan);
    if (run->strategies) strategies_carve(run);
}

// ---- costs

// What a pipeline of this rank's group takes, and holds.
typedef struct Measured {
    PipelineCost cost;
    int64_t capacity;
} Measured;

// Schemes in descending order of what a micro-batch holds; gpus in all of them, then the wider first.
static void add_scheme(Strategies* x, const PipelineGroup* g, const Measured* m) {
    SchemePool* pool = &x->pool;
    PipelineScheme scheme = strategies_scheme(g, &m->cost, m->capacity);
    int at = 0;
    for (int i = 0; i < pool->n; i++)
        if (x->kind[i].tp == g->tp && x->kind[i].pp == g->pp) return;
    if (pool->n == HYDRAULIS_SCHEMES) die("--strategies: expected at most %d kinds of pipelines", HYDRAULIS_SCHEMES);
    while (at < pool->n && pool->scheme[at].max_tokens >= m->capacity) at++;
    memmove(pool->scheme + at + 1, pool->scheme + at, sizeof *pool->scheme * (size_t)(pool->n - at));
    memmove(x->kind + at + 1, x->kind + at, sizeof *x->kind * (size_t)(pool->n - at));
    pool->scheme[at] = scheme;
    x->kind[at] = (PipelineGroup){1, g->tp, g->pp};
    pool->n++;
}

static void strategies_ready(Run* run) {
    Strategies* x = run->strategies;
    if (!x) return;
    Comm* world = run->model.world;
    x->pool = (SchemePool){.ranks = world->size, .may_be_empty = 1};
    for (int s = 0; s < x->list.n; s++) {
        Measured mine = {group_pipeline_cost(&x->as[s]->groups[1]), x->as[s]->limits.capacity},
                 *all = (Measured*)run_ask_all(run, world, &mine, sizeof mine);
        const RankStrategy* strategy = &x->list.strategy[s];
        for (int g = 0, first = 0; g < strategy->n; first += group_ranks(&strategy->group[g++]))
            add_scheme(x, &strategy->group[g], &all[first]);
        free(all);
    }
    for (int s = 0; s < x->list.n; s++)
        for (int g = 0; g < x->list.strategy[s].n; g++) {
            const PipelineGroup* group = &x->list.strategy[s].group[g];
            x->choices[s].copies[strategies_scheme_of(x, group)] = group->copies;
        }
    strategies_time_moves(run);
}

void run_find_cost(Run* run) {
    if (!run->strategies) {
        run_find_job_cost(run);
        return;
    }
    for (int s = 0; s < run->strategies->list.n; s++) {
        Run* as = run->strategies->as[s];
        as->peak = run->peak;
        run_find_job_cost(as);
    }
    calibration_start(&run->calibration);
    strategies_ready(run);
    strategies_turn(run, run->strategies->now);
}

// ---- the end

void strategies_close(Run* run) {
    Strategies* x = run->strategies;
    if (!x) return;
    for (int s = 0; s < x->list.n; s++) {
        run_leave_job(x->as[s]);
        free(x->as[s]);
    }
    zero_close(&x->owner.zero);
    free(x->start_ms);
    arena_free(&x->arena);
    free(x);
}
