// strategies.c - see strategies.h.
#include "run/strategies.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/disk.h"

const char* strategies_name(const Run* run, int strategy) { return run->strategies->name[strategy]; }

Run* run_under(Run* run, int strategy) { return run->strategies ? run->strategies->as[strategy] : run; }

// ---- before the run

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
    if (c->zero > 1)
        die("--strategies: expected --zero 1, found --zero %d; weights of a step are whole in every pipeline", c->zero);
    if (strcmp(c->balance, "off") || c->probe)
        die("--strategies: %s is not there for ranks whose work changes from step to step; leave it out",
            c->probe ? "--probe" : "--balance");
    if (!strcmp(c->grad_dtype, "bf16")) die("--strategies: gradients travel as fp32; leave --grad-dtype out");
}

void strategies_read(Run* run) {
    char err[ERR_BYTES];
    const Model* m = &run->model;
    struct Read {
        int failed;
        StrategyList list;
        char words[ERR_BYTES];
    } found;
    const Config* c = &run->config;
    int searches = c->layout && !strcmp(c->layout, "hydraulis");
    if ((!c->strategies && !searches) || !run->training) return;
    refuse_others(run);
    memset(&found, 0, sizeof found);
    if (!c->strategies) run_measure_limit(run);
    if (m->world->rank == 0)
        found.failed = c->strategies ? read_list(&found.list, c->strategies, found.words, ERR_BYTES)
                                     : strategies_find(run, &found.list, found.words, ERR_BYTES);
    if (m->world->table->broadcast_host(m->world, &found, sizeof found, 0, err, sizeof err)) die("%s", err);
    if (found.failed) die("--strategies: %s", found.words);
    if (strategies_check(&found.list, &m->whole, m->world->size, err, sizeof err)) die("--strategies: %s", err);
    run->strategies = (Strategies*)calloc(1, sizeof *run->strategies);
    if (!run->strategies) die("no memory for %d strategies", found.list.n);
    run->strategies->list = found.list;
    for (int s = 0; s < found.list.n; s++) strategy_print(&found.list.strategy[s], run->strategies->name[s]);
}

// ---- who does what

static const PipelineGroup* group_of(const Run* run, int s, int rank, int* place) {
    const RankStrategy* strategy = &run->strategies->list.strategy[s];
    return &strategy->group[strategy_group(strategy, rank, place)];
}

static Layout layout_of(const Run* run, const PipelineGroup* g) {
    Recompute recompute = (Recompute)config_choice(run->config.recompute, "none|activation|block");
    return layout_even(&run->model.whole, g->tp, g->pp, 1, recompute);
}

// The run under strategy s: the ranks of this one's group become its job.
static Run* make_view(Run* run, int s) {
    char err[ERR_BYTES];
    int place;
    Run* view = (Run*)malloc(sizeof *view);
    if (!view) die("no memory for %d strategies", run->strategies->list.n);
    *view = *run;
    Model* m = &view->model;
    Comm* world = m->world;
    const PipelineGroup* g = group_of(run, s, world->rank, &place);
    int color = world->rank - place;
    if (world->table->split(world, &m->job, color, world->rank, err, sizeof err)) die("--strategies: %s", err);
    m->job->overlap = world->overlap;
    view->config.tp = g->tp, view->config.pp = g->pp;
    view->config.capacity *= g->tp;  // of a rank
    m->layout = layout_of(run, g);
    m->owner = &run->strategies->owner;
    m->zero.holds = ZERO_IN_USE;
    run_join_job(view);
    return view;
}

// What rank r of all computes under strategy s.
static Part part_of(const Run* run, const TpSplit* splits, int s, int r) {
    int place;
    const PipelineGroup* g = group_of(run, s, r, &place);
    Layout layout = layout_of(run, g);
    int stage = place / (g->copies * g->tp);
    return (Part){&splits[g->tp], place % g->tp, layout_first(&layout, stage), layout_first(&layout, stage + 1)};
}

int strategies_same_job(const Run* run, int s, int a, int b) {
    int place;
    return run->strategies && group_of(run, s, a, &place) == group_of(run, s, b, &place);
}

static int computes_all(const Run* run, int s) {
    const RankStrategy* strategy = &run->strategies->list.strategy[s];
    return strategy->n == 1 && strategy->group[0].tp == 1 && strategy->group[0].pp == 1;
}

// Gradients to their owners, weights back, under strategy s.
static void open_movers(Run* run, int s, const TpSplit* splits, const Holdings* pieces) {
    char err[ERR_BYTES];
    Strategies* x = run->strategies;
    Arena scratch = {0};
    const Shape* whole = &x->owner.shape;
    Comm* world = run->model.world;
    int ranks = world->size, plain = computes_all(run, s);
    Holdings parts;
    Part* list = TAKE(&scratch, Part, ranks);
    if (arena_check(&scratch, err, sizeof err)) die("%s", err);
    for (int r = 0; r < ranks; r++) list[r] = part_of(run, splits, s, r);
    x->gather[s] = (Mover){.kind = RESHARD_COPY, .purpose = COMM_PARAMETERS, .is_plain = plain};
    x->reduce[s] = (Mover){.kind = RESHARD_SUM, .purpose = COMM_GRADIENTS, .is_plain = plain};
    if (!plain && (holdings_of_parts(&parts, whole, list, ranks, &scratch, err, sizeof err) ||
                   reshard(&x->gather[s].transfers, whole, pieces, &parts, RESHARD_COPY, world->rank, ranks,
                           world->node, &x->arena, err, sizeof err) ||
                   reshard(&x->reduce[s].transfers, whole, &parts, pieces, RESHARD_SUM, world->rank, ranks, world->node,
                           &x->arena, err, sizeof err)))
        die("--strategies: %s", err);
    Model* m = &x->as[s]->model;
    m->shape.shards = plain ? ranks : 1;
    m->gather = &x->gather[s], m->reduce = &x->reduce[s];
    arena_free(&scratch);
}

void strategies_join(Run* run) {
    static TpSplit splits[MOST_TP + 1];
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
    for (int s = 0; s < x->list.n; s++)
        for (int g = 0; g < x->list.strategy[s].n; g++) {
            int tp = x->list.strategy[s].group[g].tp;
            splits[tp] = split_even(&m->whole, tp);
        }
    if (holdings_of_pieces(&pieces, &x->owner.shape, &scratch, err, sizeof err)) die("%s", err);
    for (int s = 0; s < x->list.n; s++) open_movers(run, s, splits, &pieces);
    arena_free(&scratch);
    strategies_turn(run, 0);
}

void strategies_turn(Run* run, int strategy) {
    Strategies* x = run->strategies;
    if (!x) return;
    const Run* as = x->as[strategy];
    x->now = strategy;
    run->model = as->model;
    run->limits = as->limits;
    run->setting = as->setting;
    run->groups = as->groups;
    run->probed = as->probed;
    run->settled = as->settled;
}

void strategies_time(Run* run, Timer* timer) {
    Strategies* x = run->strategies;
    for (int s = 0; s < x->list.n; s++) model_set_timer(&x->as[s]->model, timer);
    run->model.timer = timer;
}

// ---- memory

size_t strategies_scratch(const Run* run) {
    const Model* m = &run->model;
    return MAX(mover_scratch(m->gather) * dtype_bytes(m->dt), mover_scratch(m->reduce) * sizeof(float));
}

void strategies_carve(Run* run) {
    Strategies* x = run->strategies;
    const Model* m = &run->model;
    if (!x) return;
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

// ---- what is chosen from

// What a pipeline of this rank's group takes, and holds.
typedef struct Measured {
    PipelineCost cost;
    int64_t capacity;
} Measured;

PipelineCost group_pipeline_cost(const GroupCost* g) {
    CostTerms none = group_terms(g, 0, 0), token = group_terms(g, 0, 1), square = group_terms(g, 1, 0);
    double fixed = terms_ms(&none);
    return (PipelineCost){terms_ms(&square) - fixed, terms_ms(&token) - fixed, fixed};
}

PipelineScheme strategies_scheme(const PipelineGroup* g, const PipelineCost* cost, int64_t capacity) {
    return (PipelineScheme){g->tp * g->pp, g->pp, cost->quadratic, cost->linear, cost->fixed, capacity, 1, 1 << 30};
}

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

static int scheme_of(const Strategies* x, const PipelineGroup* g) {
    for (int k = 0; k < x->pool.n; k++)
        if (x->kind[k].tp == g->tp && x->kind[k].pp == g->pp) return k;
    return -1;
}

void strategies_ready(Run* run) {
    Strategies* x = run->strategies;
    if (!x) return;
    Comm* world = run->model.world;
    x->pool = (SchemePool){.ranks = world->size};
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
            x->choices[s].copies[scheme_of(x, group)] = group->copies;
        }
}

// ---- a step

// The group of the chosen strategy that pipeline p of Hydraulis' numbers, scheme by scheme, belongs to.
static int group_of_pipeline(const Strategies* x, int s, int p) {
    int k = 0;
    while (p >= x->choices[s].copies[k]) p -= x->choices[s].copies[k++];
    for (int g = 0; g < x->list.strategy[s].n; g++)
        if (scheme_of(x, &x->list.strategy[s].group[g]) == k) return g;
    return -1;
}

// Of this group only.
static void keep_pieces(Batch* b, const StepWork* w, const Strategies* x, int group) {
    int n = 0;
    for (int i = 0; i < b->n_pieces; i++)
        if (group_of_pipeline(x, b->strategy, w->pipeline_of[i]) == group) b->pieces[n++] = b->pieces[i];
    b->n_pieces = n;
    for (int i = 0; i < n; i++) b->lengths[i] = b->pieces[i].length;
}

int strategies_dispatch(Batch* b, const Run* run, int64_t step, char* err, size_t errlen) {
    const Strategies* x = run->strategies;
    StepWork w;
    int place, fixed = !b->training, n = fixed ? 1 : x->list.n;
    ArenaMark mark = arena_mark(&b->arena);
    if (step_work(&w, &x->pool, b->lengths, b->n_pieces, &b->arena, err, errlen)) return -1;
    uint64_t seed = hash64((uint64_t)run->config.seed ^ (uint64_t)step);
    Choice choice = hydraulis_choose(&w, x->choices + (fixed ? x->now : 0), n, HYDRAULIS_SHUFFLES, seed);
    if (choice.strategy < 0) {
        int longest = 0;
        for (int i = 0; i < b->n_pieces; i++) longest = MAX(longest, b->lengths[i]);
        return fail(err, errlen,
                    "no strategy has a pipeline for a document of %d tokens; try a wider tp, a larger --capacity or a "
                    "smaller --context",
                    longest);
    }
    b->strategy = fixed ? x->now : choice.strategy;
    b->strategy_ms = choice.ms;
    b->dispatch_hash = hash_bytes(w.pipeline_of, sizeof(int) * (size_t)b->n_pieces,
                                  hash_bytes(b->lengths, sizeof(int) * (size_t)b->n_pieces, (uint64_t)b->strategy));
    keep_pieces(b, &w, x, strategy_group(&x->list.strategy[b->strategy], run->model.world->rank, &place));
    arena_reset(&b->arena, mark);
    return 0;
}

void strategies_close(Run* run) {
    Strategies* x = run->strategies;
    if (!x) return;
    for (int s = 0; s < x->list.n; s++) {
        run_leave_job(x->as[s]);
        free(x->as[s]);
    }
    zero_close(&x->owner.zero);
    arena_free(&x->arena);
    free(x);
}
