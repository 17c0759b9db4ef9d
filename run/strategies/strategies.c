// strategies.c - the phases before the first step, once for every strategy: who does what, memory, costs (without
// strategies each is that of the one job there is: ranks.c, memory.c, cost.c); then the choice of every step. See
// strategies.h.
#include "run/strategies/strategies.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "plan/base/disk.h"
#include "plan/cost/transfers.h"

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
    Layout layout = layout_even(&run->model.whole, g->tp, g->pp, 1, RECOMPUTE_NONE);
    for (int l = 0; l < run->model.whole.L; l++)
        layout.layer[l].zero = how->layer[l].zero, layout.layer[l].recompute = how->layer[l].recompute;
    return layout;
}

// ---- what is chosen from: every kind of pipeline is a scheme of Hydraulis

// Pipelines like g, in descending order of what a micro-batch holds; kind[i] is what scheme i of the pool is.
static void add_scheme(SchemePool* pool, PipelineGroup* kind, const PipelineGroup* g, const PipelineCost* cost,
                       int64_t capacity) {
    int at = 0;
    while (at < pool->n && pool->scheme[at].max_tokens >= capacity) at++;
    for (int i = pool->n++; i > at; i--) pool->scheme[i] = pool->scheme[i - 1], kind[i] = kind[i - 1];
    pool->scheme[at] =
        (PipelineScheme){g->tp * g->pp, g->pp, cost->quadratic, cost->linear, cost->fixed, capacity, 1, 1 << 30};
    kind[at] = (PipelineGroup){1, g->tp, g->pp};
}

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

// ---- --layout hydraulis, on rank 0: strategies for this model, these ranks and the lengths of the training pieces, by
// plan/published/hydraulis.h

enum { MOST_KINDS = HYDRAULIS_SCHEMES, LISTED = 8 };  // strategies are few: each has Comms of its own

typedef struct Kinds {
    SchemePool pool;
    PipelineGroup group[MOST_KINDS];  // of every scheme
} Kinds;

// Tokens of a row of such a pipeline: as --capacity says, or as half of the memory holds.
static int64_t row_of(Run* run, const PipelineGroup* g) {
    const Config* c = &run->config;
    Layout layout = strategies_layout(run, g);
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
        add_scheme(&kinds->pool, kinds->group, g, &cost, row);
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

// About what moves of a list will be found to take (time_moves): a rank gets the weights of its part of the
// model, and sends its gradients, but for the share that it owns.
static void estimate_moves(StrategySearch* search, const Run* run, const Machine* machine, const Kinds* kinds) {
    const Model* m = &run->model;
    MoveTime t = links_of(run, machine);
    double elems = (double)shape_param_count(&m->whole) * (t.ranks - 1) / t.ranks, elem = (double)dtype_bytes(m->dt),
           gradient = (double)dtype_bytes(run_gradients_travel_as(run));
    int across = m->world->node[t.ranks - 1] != m->world->node[0];
    for (int k = 0; k < kinds->pool.n && machine->cost.step <= 0; k++) {
        double part = elems / (kinds->group[k].tp * kinds->group[k].pp);
        search->start[k] = transfer_ms(&t.links, TRANSFER_WEIGHTS, t.ranks, across, elem * part, elem * part);
        search->end[k] = transfer_ms(&t.links, TRANSFER_WEIGHTS, t.ranks, across, gradient * part, gradient * part);
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
    run_find_available(run);
    list_kinds(&kinds, run, &machine);
    int n = run_sample_lengths(run, lengths);
    StrategySearch search = {&kinds.pool, lengths, n, c->batch_tokens, LISTED, {0}, {0}};
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
    const char* found = c->layout ? "--layout" : run->settled.tp > 1 ? "--tp" : "--pp";
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

static int searches_strategies(const Run* run) {
    return run->config.layout && !strcmp(run->config.layout, "hydraulis");
}

// As it could be typed, which is saved with the run: a file may change, and another search may find another list.
static void keep_list(Run* run) {
    const Strategies* x = run->strategies;
    char* text = config_string(&run->config, (size_t)x->list.n * (STRATEGY_TEXT + 2) + 1);
    size_t n = 0;
    if (!text) die("no memory for the text of %d strategies", x->list.n);
    for (int s = 0; s < x->list.n; s++) n += (size_t)sprintf(text + n, "%s%s", s ? "; " : "", x->name[s]);
    run->settled.strategies = text;
    if (searches_strategies(run)) run->settled.layout = NULL;
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
    int named = c->strategies && strcmp(c->strategies, "none") != 0;
    if ((!named && !searches_strategies(run)) || !run->training) return;
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

static const TpSplit* split_of(const Run* run, int tp) {
    static TpSplit splits[MOST_TP + 1];
    if (!splits[tp].ranks) splits[tp] = split_even(&run->model.whole, tp);
    return &splits[tp];
}

// What rank r of all computes under strategy s.
static Part part_of(const Run* run, int s, int r) {
    int place;
    const PipelineGroup* g = group_of(run, s, r, &place);
    Layout layout = strategies_layout(run, g);
    int ranks = g->copies * g->tp, stage = place / ranks;
    return (Part){
        split_of(run, g->tp), place % g->tp, layout_first(&layout, stage), layout_first(&layout, stage + 1), g->copies,
        place % ranks / g->tp};
}

// The layers of which like pipelines have pieces between steps: what --zero 2 divides are gradients, 3 also weights.
static int list_divided(char divided[MOST_LAYERS], const Run* run, ReshardKind kind) {
    const Layout* how = &run->strategies->before->layout;
    int any = 0;
    for (int l = 0; l < run->model.whole.L; l++)
        any |= divided[l] = how->layer[l].zero >= (kind == RESHARD_SUM ? 2 : 3);
    return any;
}

// What ranks have of weights (COPY) or gradients (SUM).
static void parts_of(Holdings* parts, const Run* run, int s, ReshardKind kind, Arena* arena) {
    char err[ERR_BYTES], divided[MOST_LAYERS];
    int ranks = run->model.world->size, any = list_divided(divided, run, kind);
    Part* list = TAKE(arena, Part, ranks);
    if (arena_check(arena, err)) die("%s", err);
    for (int r = 0; r < ranks; r++) list[r] = part_of(run, s, r);
    if (holdings_of_parts(parts, &run->strategies->owner.shape, list, ranks, any ? divided : NULL, arena, err))
        die("--strategies: %s", err);
}

// Every rank has all of that.
static int is_plain(const Run* run, int s, ReshardKind kind) {
    const RankStrategy* strategy = &run->strategies->list.strategy[s];
    char divided[MOST_LAYERS];
    return strategy->n == 1 && strategy->group[0].tp == 1 && strategy->group[0].pp == 1 &&
           !list_divided(divided, run, kind);
}

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
    Strategies* x = run->strategies;
    const Model* m = &x->as[s]->model;
    Arena scratch = {0};
    Holdings parts;
    int plain = is_plain(run, s, kind), sums = kind == RESHARD_SUM;
    if (!plain) parts_of(&parts, run, s, kind, &scratch);
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

// ---- moving as a part of what a strategy costs: gradients to their owners and weights back, played in the times of
// the machine's links (plan/cost/transfers.h)
//
// Weights of a step come from owners whatever the step before was, so this is a number for each strategy, and not for
// each pair. A machine's step_ms has the sums of a run without strategies in it: there only what a strategy takes more
// counts; and nothing on virtual ranks, which let these bytes pass for step_ms.

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
    if (!is_plain(run, s, kind)) {
        parts_of(&parts, run, s, kind, arena);
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

// What a pipeline of this rank's group takes, and holds.
typedef struct Measured {
    PipelineCost cost;
    int64_t capacity;
} Measured;

static void find_choices(Run* run) {
    Strategies* x = run->strategies;
    Comm* world = run->model.world;
    x->pool = (SchemePool){.ranks = world->size, .may_be_empty = 1};
    for (int s = 0; s < x->list.n; s++) {
        Measured mine = {group_pipeline_cost(&x->as[s]->clock->groups[1]), x->as[s]->clock->limits.capacity},
                 *all = (Measured*)run_ask_all(run, world, &mine, sizeof mine);
        const RankStrategy* strategy = &x->list.strategy[s];
        for (int g = 0, first = 0; g < strategy->n; first += group_ranks(&strategy->group[g++])) {
            if (scheme_of(x, &strategy->group[g]) >= 0) continue;
            if (x->pool.n == HYDRAULIS_SCHEMES)
                die("--strategies: expected at most %d kinds of pipelines", HYDRAULIS_SCHEMES);
            add_scheme(&x->pool, x->kind, &strategy->group[g], &all[first].cost, all[first].capacity);
        }
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
