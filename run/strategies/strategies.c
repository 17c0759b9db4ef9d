// strategies.c - the phases before the first step, once for every strategy: who does what, memory, costs (without
// strategies each is that of the one job there is: ranks.c, memory.c, cost.c); then the choice of every step. See
// strategies.h.
#include "run/strategies/strategies.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "plan/base/disk.h"
#include "plan/layout/strategy_moves.h"

const char* strategies_name(const Run* run, int strategy) { return run->strategies->name[strategy]; }

Run* run_under(Run* run, int strategy) { return run->strategies ? run->strategies->as[strategy] : run; }

// The group of a rank, and its number there.
static const PipelineGroup* group_of(const Run* run, int s, int rank, int* place) {
    const RankStrategy* strategy = &run->strategies->list.strategy[s];
    return &strategy->group[strategy_group(strategy, rank, place)];
}

int strategies_same_job(const Run* run, int s, int a, int b) {
    int place;
    return run->strategies && group_of(run, s, a, &place) == group_of(run, s, b, &place);
}

Layout strategies_layout(const Run* run, const PipelineGroup* g) {
    const Layout* how = run->strategies ? &run->strategies->before->layout : &run->model.ranks->layout;
    return strategy_layout(&run->model.whole, g, how->layer);
}

// ---- what is chosen from: every kind of pipeline is a scheme of Hydraulis

static int scheme_of(const Strategies* x, const PipelineGroup* g) {
    for (int k = 0; k < x->pool.n; k++)
        if (x->kind[k].tp == g->tp && x->kind[k].pp == g->pp) return k;
    return -1;
}

static MoveTime links_of(const Run* run, const Machine* machine) {
    const Model* m = &run->model;
    const Comm* world = m->world;
    int node = run_node_size(run, world, 1, 1);
    TransferTimes links = transfer_times(machine, &m->whole, (int)dtype_bytes(m->dt), node);
    return (MoveTime){links, world->size, world->node, world->overlap};
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

void strategies_refuse_others(const Run* run) {
    const Config* c = &run->config;
    int names_layout = c->layout && strcmp(c->layout, "hydraulis") != 0;
    const char* found = names_layout ? "--layout" : run->settled.tp > 1 ? "--tp" : "--pp";
    if (run->settled.tp > 1 || run->settled.pp > 1 || (c->layout && !strcmp(c->layout, "auto")))
        die("--strategies: expected beside it at most a --layout of tp 1 and one stage, which says how layers run, "
            "found %s; write who runs them into the strategies",
            found);
    if (c->probe)
        die("--strategies: --probe measures one way to run a model; probe like pipelines without the others, on as "
            "many ranks as they have and with their --tp, and strategies find it");
    if (strcmp(c->balance, "off"))
        die("--strategies: --balance is not there for ranks whose work changes from step to step; leave it out");
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
}

static void strategies_read(Run* run) {
    char err[ERR_BYTES];
    const Model* m = &run->model;
    struct Read {
        int failed;
        StrategyList list;
        char words[ERR_BYTES];
    } found;
    const char* named = run->settled.strategies;
    if (!named || !strcmp(named, "none") || !run->training) return;
    if (named == run->config.strategies) strategies_refuse_others(run);  // else the search for a layout found it
    memset(&found, 0, sizeof found);
    if (m->world->rank == 0) found.failed = read_list(&found.list, named, found.words);
    if (m->world->table->broadcast_host(m->world, &found, sizeof found, 0, err)) die("%s", err);
    if (found.failed) die("--strategies: %s", found.words);
    if (strategies_check(&found.list, &m->whole, m->world->size, err))
        die("--strategies: %s; --strategies none goes on without", err);
    check_cp_size(&found.list, run->config.cp_size);
    run->strategies = (Strategies*)calloc(1, sizeof *run->strategies);
    if (!run->strategies) die("no memory for %d strategies", found.list.n);
    run->strategies->list = found.list;
    for (int s = 0; s < found.list.n; s++) strategy_print(&found.list.strategy[s], run->strategies->name[s]);
    keep_list(run);
}

// ---- who does what

// The run under strategy s: the ranks of this one's group become its job.
static Run* make_view(Run* run, int s) {
    int place;
    RunView* own = (RunView*)malloc(sizeof *own);
    if (!own) die("no memory for %d strategies", run->strategies->list.n);
    run_view(own, run);
    Run* view = &own->run;
    Model* m = &view->model;
    const PipelineGroup* g = group_of(run, s, m->world->rank, &place);
    m->job = model_split(m, m->world->rank - place, COMM_OTHER, m->world->overlap);
    view->settled.tp = g->tp, view->settled.pp = g->pp;
    view->settled.capacity *= g->tp;  // of a rank
    m->ranks->layout = strategies_layout(run, g);
    m->ranks->owner = &run->strategies->owner;
    m->ranks->zero.holds = ZERO_IN_USE;
    run_join_job(view);
    return view;
}

// Gradients to their owners or weights back, under strategy s.
static Mover open_mover(Run* run, int s, ReshardKind kind, const Holdings* pieces) {
    char err[ERR_BYTES];
    Strategies* x = run->strategies;
    const Model* m = &x->as[s]->model;
    Arena scratch = {0};
    Holdings parts;
    int plain, sums = kind == RESHARD_SUM;
    if (strategy_holdings(&parts, &plain, &x->owner.shape, &x->list.strategy[s], x->before->layout.layer, kind,
                          &scratch, err))
        die("--strategies: %s", err);
    const Holdings *owned = plain ? NULL : pieces, *used = plain ? NULL : &parts;
    Mover mover = mover_open(m, m->world, kind, sums ? COMM_GRADIENTS : COMM_PARAMETERS, sums ? DT_F32 : m->dt,
                             sums ? used : owned, sums ? owned : used, &x->arena);
    if (sums) mover.wire = m->ranks->zero.grad_dtype;
    arena_free(&scratch);
    return mover;
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
    for (int s = 0; s < x->list.n; s++) {
        x->as[s]->model.ranks->gather = open_mover(run, s, RESHARD_COPY, &pieces);
        x->as[s]->model.ranks->reduce = open_mover(run, s, RESHARD_SUM, &pieces);
    }
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

static void share_memory(Model* to, const Model* from) {
    memcpy(to->array, from->array, sizeof to->array);
    to->acts = from->acts, to->rope = from->rope, to->group_scratch = from->group_scratch;
    to->loss_sum = from->loss_sum, to->grad_norm2 = from->grad_norm2;
    to->grad_scale = from->grad_scale, to->barrier = from->barrier;
    zero_open(to);
}

static void strategies_carve(Run* run) {
    Strategies* x = run->strategies;
    share_memory(&x->owner, &run->model);
    for (int s = 0; s < x->list.n; s++) {
        Model* m = &x->as[s]->model;
        m->ranks->moving = run->model.ranks->moving;
        share_memory(m, &run->model);
        model_set_many(m);
        run_carve_activations(x->as[s]);
    }
    strategies_turn(run, x->now);
}

MemoryPlan run_plan_memory(Run* run) {
    MemoryPlan plan = {.on_host = run->model.k->on_host};
    if (!run->strategies) return run_plan_job_memory(run);
    for (int s = 0; s < run->strategies->list.n; s++) {
        MemoryPlan one = run_plan_job_memory(run->strategies->as[s]);
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

// ---- moving as a part of what a strategy costs (plan/layout/strategy_moves.h): nothing on virtual ranks whose machine
// has a step_ms, which they let these bytes pass for

// A pipeline begins when the last of its scheme's ranks has its weights.
static void tell_choices(Strategies* x, int ranks) {
    for (int s = 0; s < x->list.n; s++) {
        const RankStrategy* strategy = &x->list.strategy[s];
        for (int r = 0, place; r < ranks; r++) {
            const PipelineGroup* g = &strategy->group[strategy_group(strategy, r, &place)];
            double* start = &x->choices[s].start[scheme_of(x, g)];
            *start = MAX(*start, x->start_ms[s * ranks + r]);
        }
    }
}

static void time_moves(Run* run) {
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

static void add_kind(Strategies* x, const PipelineGroup* g, const PipelineScheme* scheme) {
    if (scheme_of(x, g) >= 0) return;
    if (x->pool.n == HYDRAULIS_SCHEMES) die("--strategies: expected at most %d kinds of pipelines", HYDRAULIS_SCHEMES);
    int at = scheme_add(&x->pool, scheme);
    for (int i = x->pool.n - 1; i > at; i--) x->kind[i] = x->kind[i - 1];
    x->kind[at] = (PipelineGroup){1, g->tp, g->pp};
}

// Of all strategies, what a pipeline of each rank's group takes, and holds.
static void find_choices(Run* run) {
    Strategies* x = run->strategies;
    Comm* world = run->model.world;
    x->pool = (SchemePool){.ranks = world->size, .may_be_empty = 1};
    for (int s = 0; s < x->list.n; s++) {
        const Run* as = x->as[s];
        int gpus = as->settled.tp * as->settled.pp;
        PipelineScheme mine =
                           scheme_of_group(&as->clock->groups[1], gpus, as->settled.pp, as->clock->limits.capacity),
                       *all = (PipelineScheme*)run_ask_all(run, world, &mine, sizeof mine);
        const RankStrategy* strategy = &x->list.strategy[s];
        for (int g = 0, first = 0; g < strategy->n; first += group_ranks(&strategy->group[g++]))
            add_kind(x, &strategy->group[g], &all[first]);
        free(all);
    }
    for (int s = 0; s < x->list.n; s++)
        for (int g = 0; g < x->list.strategy[s].n; g++) {
            const PipelineGroup* group = &x->list.strategy[s].group[g];
            x->choices[s].copies[scheme_of(x, group)] = group->copies;
        }
}

void run_find_cost(Run* run) {
    Strategies* x = run->strategies;
    if (!x) {
        run_find_job_cost(run);
        return;
    }
    for (int s = 0; s < x->list.n; s++) run_find_job_cost(x->as[s]);
    calibration_start(&run->clock->calibration);
    find_choices(run);
    time_moves(run);
    strategies_turn(run, x->now);
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

// ---- a step

// Those of pipelines like g; Hydraulis numbers pipelines scheme by scheme.
static void keep_pieces(Batch* b, const StepWork* w, const Strategies* x, const PipelineGroup* g) {
    const int* copies = x->choices[b->planned->strategy].copies;
    int kind = scheme_of(x, g), first = 0, n = 0;
    for (int k = 0; k < kind; k++) first += copies[k];
    for (int i = 0; i < b->n_pieces; i++)
        if (w->pipeline_of[i] >= first && w->pipeline_of[i] < first + copies[kind]) b->pieces[n++] = b->pieces[i];
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
                    "a document has %d tokens, and no pipeline of a strategy holds more than %lld (tp%dpp%d does); try "
                    "--capacity %d, or a wider tp",
                    longest, (long long)x->pool.scheme[0].max_tokens, x->kind[0].tp, x->kind[0].pp,
                    CEIL_DIV(longest, x->kind[0].tp));
    b->planned->strategy = first + choice.strategy;
    b->planned->strategy_ms = choice.ms;
    b->planned->dispatch_hash =
        hash_bytes(w.pipeline_of, sizeof(int) * (size_t)b->n_pieces,
                   hash_bytes(b->lengths, sizeof(int) * (size_t)b->n_pieces, (uint64_t)b->planned->strategy));
    keep_pieces(b, &w, x, group_of(run, b->planned->strategy, run->model.world->rank, &place));
    arena_reset(&b->arena, mark);
    return 0;
}

double strategies_start_ms(const Run* run, int strategy) {
    const Comm* world = run->model.world;
    return run->strategies ? run->strategies->start_ms[strategy * world->size + world->rank] : 0;
}

void strategies_predict(const Run* run, StepRecord* r) {
    const Strategies* x = run->strategies;
    int ranks = run->model.world->size, now = run->batch.planned->strategy, next = run->ahead.planned->strategy;
    double before = x->start_ms[now * ranks], behind = x->start_ms[next * ranks];
    r->moving_ms = x->choices[now].end + behind;
    r->predicted_ms = run->batch.planned->expected_ms - before + r->moving_ms;
}

// ---- what is learnt from steps

// A job's terms of the last step, and when its rank could begin.
typedef struct JobTerms {
    double terms[CALIBRATION_TERMS], start_ms;
} JobTerms;

double strategies_remember(Run* run, const StepRecord* r) {
    const BatchPlan* planned = run->batch.planned;
    run->strategies->last_start_ms = strategies_start_ms(run, planned->strategy);
    return fmax(0, r->measured_ms - (r->predicted_ms - planned->expected_ms));
}

void strategies_learn(Run* run, double ms) {
    Calibration* calibration = &run->clock->calibration;
    const Comm* world = run->model.world;
    JobTerms mine = {.start_ms = run->strategies->last_start_ms}, *all, *last;
    if (run->clock->last_ms > 0) memcpy(mine.terms, run->clock->last_terms, sizeof mine.terms);
    all = last = (JobTerms*)run_ask_all(run, run->model.world, &mine, sizeof mine);
    for (JobTerms* j = all; j < all + world->size; j++)
        if (calibration_predict(calibration, j->terms) + j->start_ms >
            calibration_predict(calibration, last->terms) + last->start_ms)
            last = j;
    if (ms > last->start_ms) calibration_learn(calibration, last->terms, ms - last->start_ms);
    free(all);
}

void strategies_set_cost(Run* run) {
    Strategies* x = run->strategies;
    for (int s = 0; s < x->list.n; s++) {
        x->as[s]->clock->calibration = run->clock->calibration;
        run_set_cost(x->as[s]);
    }
    find_choices(run);
    run->clock->setting = x->as[x->now]->clock->setting;
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
