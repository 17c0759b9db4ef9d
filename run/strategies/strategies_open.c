// strategies_open.c - the phases before the first step, once for every strategy: who does what, memory, costs. Without
// strategies each is that of the one job there is (ranks.c, memory.c, cost.c).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "plan/base/disk.h"
#include "plan/published/strategy_search.h"
#include "run/strategies/strategies.h"

// ---- --layout hydraulis, on rank 0: strategies for this model, these ranks and the lengths of the training pieces, by
// plan/published/strategy_search.h

enum { MOST_KINDS = HYDRAULIS_SCHEMES, LISTED = 8 };  // strategies are few: each has Comms of its own

typedef struct Kinds {
    SchemePool pool;
    PipelineGroup group[MOST_KINDS];  // of every scheme
} Kinds;

// Tokens of a row of such a pipeline: as --capacity says, or as half of the memory holds.
static int64_t row_of(Run* run, const PipelineGroup* g) {
    const Config* c = &run->config;
    Layout layout = layout_even(&run->model.whole, g->tp, g->pp, 1, RECOMPUTE_NONE);
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
    if (kinds->pool.n < MOST_KINDS && run_pipeline_cost(run, machine, g, &cost))
        strategies_add_scheme(&kinds->pool, kinds->group, g, &cost, row);
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

// About what moves of a list will be found to take (strategies_time_moves): a rank gets the weights of its part of the
// model, and sends its gradients, but for the share that it owns.
static void estimate_moves(StrategySearch* search, const Run* run, const Machine* machine, const Kinds* kinds) {
    const Model* m = &run->model;
    MoveTime t = strategies_links(run, machine);
    double elems = (double)shape_param_count(&m->whole) * (t.ranks - 1) / t.ranks, elem = (double)dtype_bytes(m->dt);
    int across = m->world->node[t.ranks - 1] != m->world->node[0];
    for (int k = 0; k < kinds->pool.n && machine->cost.step <= 0; k++) {
        double part = elems / (kinds->group[k].tp * kinds->group[k].pp);
        search->start[k] = transfer_ms(&t.links, TRANSFER_WEIGHTS, t.ranks, across, elem * part, elem * part);
        search->end[k] = transfer_ms(&t.links, TRANSFER_WEIGHTS, t.ranks, across, 4 * part, 4 * part);
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

static int find_list(Run* run, StrategyList* list, Err err) {
    static int lengths[SAMPLED_LENGTHS];
    static Kinds kinds;
    char from[ERR_BYTES], text[STRATEGY_TEXT];
    Strategy found[LISTED];
    StrategyScore score;
    Machine machine;
    Arena arena = {0};
    const Config* c = &run->config;
    if (run_machine_of_layouts(run, &machine, from, err)) return -1;
    list_kinds(&kinds, run, &machine);
    int n = run_sample_lengths(run, lengths);
    StrategySearch search = {&kinds.pool,           lengths, n,  c->context, c->batch_tokens, LISTED,
                             FIXED_PER_MICRO_BATCH, {0},     {0}};
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

// ---- the list

// A file where there is one of this name, else the list itself.
static int read_list(StrategyList* list, const char* named, Err err) {
    enum { MOST = 1 << 16 };
    size_t n = strlen(named);
    if (access(named, R_OK)) return strategies_parse(list, named, n, err);
    char words[ERR_BYTES], *text = disk_read_file(named, MOST, &n, err);
    if (!text) return -1;
    int failed = strategies_parse(list, text, n, words);
    free(text);
    return failed ? fail(err, "%s: %s", named, words) : 0;
}

// What has no meaning, or is not there, while layouts change.
static void refuse_others(const Run* run) {
    const Config* c = &run->config;
    if (run->settled.tp > 1 || run->settled.pp > 1 || (c->layout && strcmp(c->layout, "hydraulis") != 0))
        die("--strategies: expected neither --tp, --pp nor --layout beside it; write them into the strategies");
    if (c->check_layout) die("--explain layout: expected one layout, found --strategies; try --explain");
    if (c->zero > 1)
        die("--strategies: expected --zero 1, found --zero %d; weights of a step are whole in every pipeline", c->zero);
    if (strcmp(c->balance, "off") || c->probe)
        die("--strategies: %s is not there for ranks whose work changes from step to step; leave it out",
            c->probe ? "--probe" : "--balance");
    if (!strcmp(c->grad_dtype, "bf16")) die("--strategies: gradients travel as fp32; leave that out");
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
    const Strategies* x = run->strategies;
    char* text = config_string(&run->config, (size_t)x->list.n * (STRATEGY_TEXT + 2) + 1);
    size_t n = 0;
    if (!text) die("no memory for the text of %d strategies", x->list.n);
    for (int s = 0; s < x->list.n; s++) n += (size_t)sprintf(text + n, "%s%s", s ? "; " : "", x->name[s]);
    run->settled.strategies = text;
    run->settled.layout = NULL;  // of --layout hydraulis
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
        found.failed =
            named ? read_list(&found.list, c->strategies, found.words) : find_list(run, &found.list, found.words);
    if (m->world->table->broadcast_host(m->world, &found, sizeof found, 0, err)) die("%s", err);
    if (found.failed) die("--strategies: %s", found.words);
    if (strategies_check(&found.list, &m->whole, m->world->size, err))
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
    RunView* own = (RunView*)malloc(sizeof *own);
    if (!own) die("no memory for %d strategies", run->strategies->list.n);
    run_view(own, run);
    Run* view = &own->run;
    Model* m = &view->model;
    Comm* world = m->world;
    const PipelineGroup* g = strategies_group(run, s, world->rank, &place);
    int color = world->rank - place;
    if (world->table->split(world, &m->job, color, world->rank, err)) die("--strategies: %s", err);
    m->job->overlap = world->overlap;
    view->settled.tp = g->tp, view->settled.pp = g->pp;
    view->settled.capacity *= g->tp;  // of a rank
    m->ranks->layout = strategies_layout(run, g);
    m->ranks->owner = &run->strategies->owner;
    m->ranks->zero.holds = ZERO_IN_USE;
    run_join_job(view);
    return view;
}

// Gradients to their owners, weights back, under strategy s.
static void open_movers(Run* run, int s, const Holdings* pieces) {
    Strategies* x = run->strategies;
    Arena scratch = {0};
    Model* m = &x->as[s]->model;
    Comm* world = m->world;
    int plain = strategies_are_plain(run, s);
    Holdings parts;
    if (!plain) strategies_parts(&parts, run, s, &scratch);
    const Holdings *owned = plain ? NULL : pieces, *used = plain ? NULL : &parts;
    x->gather[s] = mover_open(m, world, RESHARD_COPY, COMM_PARAMETERS, m->dt, owned, used, &x->arena);
    x->reduce[s] = mover_open(m, world, RESHARD_SUM, COMM_GRADIENTS, DT_F32, used, owned, &x->arena);
    m->shape.shards = plain ? world->size : 1;
    m->ranks->gather = &x->gather[s], m->ranks->reduce = &x->reduce[s];
    arena_free(&scratch);
}

static void strategies_join(Run* run) {
    char err[ERR_BYTES];
    Strategies* x = run->strategies;
    Arena scratch = {0};
    Holdings pieces;
    Model* m = &run->model;
    m->whole.shards = m->world->size;
    x->before = m->ranks;
    for (int s = 0; s < x->list.n; s++) x->as[s] = make_view(run, s);
    x->owner = *m, x->owner_ranks = *m->ranks;
    model_set_ranks(&x->owner, &x->owner_ranks);
    x->owner.shape = m->whole;
    x->owner.comm = x->owner.job = m->world;
    x->owner.stages = 1;
    x->owner.ranks->zero.holds = ZERO_OWNED;
    if (holdings_of_pieces(&pieces, &x->owner.shape, &scratch, err)) die("%s", err);
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
    memcpy(x->owner.array, m->array, sizeof m->array);
    x->owner.loss_sum = m->loss_sum, x->owner.grad_norm2 = m->grad_norm2, x->owner.grad_scale = m->grad_scale;
    zero_open(&x->owner);
    for (int s = 0; s < x->list.n; s++) {
        Model* other = &x->as[s]->model;
        memcpy(other->array, m->array, sizeof m->array);
        other->acts = m->acts;
        other->group_scratch = m->group_scratch;
        other->rope = m->rope;
        other->loss_sum = m->loss_sum, other->grad_norm2 = m->grad_norm2;
        other->grad_scale = m->grad_scale, other->barrier = m->barrier;
        other->ranks->moving = m->ranks->moving;
        other->ranks->slowed = m->ranks->slowed;
        model_set_many(other);
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
        as->cluster->available = run->cluster->available;
        MemoryPlan one = run_plan_job_memory(as);
        run->cluster->available = as->cluster->available, run->cluster->most_scratch = as->cluster->most_scratch;
        run_widen_memory(&plan, &one);
    }
    run->books->memory_bytes = plan.total;
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

static void add_scheme(Strategies* x, const PipelineGroup* g, const Measured* m) {
    if (strategies_scheme_of(x, g) >= 0) return;
    if (x->pool.n == HYDRAULIS_SCHEMES) die("--strategies: expected at most %d kinds of pipelines", HYDRAULIS_SCHEMES);
    strategies_add_scheme(&x->pool, x->kind, g, &m->cost, m->capacity);
}

static void strategies_ready(Run* run) {
    Strategies* x = run->strategies;
    if (!x) return;
    Comm* world = run->model.world;
    x->pool = (SchemePool){.ranks = world->size, .may_be_empty = 1};
    for (int s = 0; s < x->list.n; s++) {
        Measured mine = {group_pipeline_cost(&x->as[s]->clock->groups[1]), x->as[s]->clock->limits.capacity},
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
        as->cluster->peak = run->cluster->peak;
        run_find_job_cost(as);
    }
    calibration_start(&run->clock->calibration);
    strategies_ready(run);
    strategies_turn(run, run->strategies->now);
}

// ---- the end

void strategies_close(Run* run) {
    Strategies* x = run->strategies;
    if (!x) return;
    *x->before = *run->model.ranks;
    model_set_ranks(&run->model, x->before);
    for (int s = 0; s < x->list.n; s++) {
        run_leave_job(x->as[s]);
        free(x->as[s]);
    }
    zero_close(&x->owner);
    free(x->start_ms);
    arena_free(&x->arena);
    free(x);
}
