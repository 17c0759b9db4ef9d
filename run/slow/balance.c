// balance.c - see balance.h.
//
// Times are medians of the steps since the last refresh: a single slow step says nothing. They go to
// plan/slow/balance.h as those of one group: where there are several, each group's are first scaled to the mean of all
// groups' medians, because groups have unlike documents. From them all ranks come to the same decision, a value; then
// each carries out its part of it: moves of slices and lists of what is left out.
#include "run/slow/balance.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/model_files.h"
#include "kernels/virtual/virtual.h"
#include "plan/slow/speeds.h"
#include "run/model/model_ranks.h"
#include "run/slow/parts.h"
#include "run/run.h"
#include "run/step/step.h"

// ---- key/value heads and hidden units, counted

static SliceCount most_of(const Shape* whole, const TpSplit* split) {
    int R = split->ranks, most = split_shares_kv(whole, split) ? 1 : 2 * CEIL_DIV(whole->NKV, R) + 1;
    return (SliceCount){MIN(whole->NKV, most), MIN(whole->hidden, 2 * CEIL_DIV(whole->hidden, R) + 2 * WORK_TILE)};
}

SliceCount balance_most(const Model* m) { return most_of(&m->whole, &m->ranks->split); }

void balance_count_units(UnitGroup* units, const Shape* whole, const TpSplit* split) {
    SliceCount most = most_of(whole, split);
    Shape first = split_shape(whole, split, 0);  // with shared key/value heads, query heads are unlike
    units->ranks = split->ranks, units->tile = WORK_TILE;
    units->keep_heads = split_shares_kv(whole, split);
    units->matrices = (double)(runs_sum(unit_rows(&first, ATTENTION, 1)) + unit_columns(&first, ATTENTION)) /
                      (runs_sum(unit_rows(&first, MLP, 1)) + unit_columns(&first, MLP));
    for (int t = 0; t < units->ranks; t++) {
        Shape shape = split_shape(whole, split, t);
        SliceCount own = units->own[t] = (SliceCount){shape.kv_heads, shape.hidden};
        units->most[t].heads = units->keep_heads ? own.heads : MAX(most.heads, own.heads);
        units->most[t].hidden = MAX(most.hidden, own.hidden);
    }
}

// Returns the slices that stay with rank t of the group.
static SliceCount staying(const StageBalance* x, int t) {
    SliceCount own = x->units.own[t], given = work_moved(&x->plan, t, 0);
    return (SliceCount){own.heads - given.heads, own.hidden - given.hidden};
}

// ---- carrying out

void balance_set_moves(WorkPlan* plan, const UnitGroup* x, const BalanceDecision* d) {
    int n = plan->n_moves = d->active ? balance_moves(plan->moves, x->own, d->tiles, x->ranks, x->tile) : 0;
    for (int t = 0; t < x->ranks; t++) {
        SliceCount count = balance_count(plan->moves, n, x->own, t);
        if (count.heads > x->most[t].heads || count.hidden > x->most[t].hidden) plan->n_moves = 0;
    }
}

// Work is left out by turns of chance: at every refresh other columns.
void balance_carry_out(Run* run) {
    Balance* b = run->balance;
    int t = tp_rank(&run->model);
    int64_t turn = run->state.step / MAX(run->config.refresh, 1);
    WorkPlan* plan = &b->own->plan;
    for (StageBalance* x = b->stage; x < b->stage + b->stages; x++)
        balance_set_moves(&x->plan, &x->units, &x->decision);
    // The decision is in time; this is the work that must be left out for it.
    double gamma = MIN(b->setting.most_pruned, b->own->decision.pruned[t] / (1 - b->fixed));
    if (b->pruner) plan->kept = pruner_choose(b->pruner, gamma, staying(b->own, t), turn);
    plan->active = plan->n_moves > 0 || plan->kept != NULL;
    plan->of_group = b->own->decision.active;
    work_set(&run->model, plan);
    plan->kept = NULL;
}

static void say_decision(Run* run, const StageBalance* x, const BalanceDecision* d) {
    char text[512] = "", stage[32] = "";
    if (run->balance->stages > 1) snprintf(stage, sizeof stage, "stage %d, ", (int)(x - run->balance->stage));
    for (int t = 0, n = 0; t < tp_size(&run->model) && n < (int)sizeof text - 64; t++) {
        if (d->pruned[t] > 0)
            n += snprintf(text + n, sizeof text - (size_t)n, "; %d leaves out %.0f %%", t, 100 * d->pruned[t]);
        if (d->sent[t] > 0) n += snprintf(text + n, sizeof text - (size_t)n, "; %d gives %.0f slices", t, d->sent[t]);
    }
    if (d->active)
        runlog_say(&run->books->log, "step %" PRId64 ": balance: %s%.4g ms a step without, %.4g ms expected%s",
                   run->state.step, stage, d->idle_ms, d->step_ms, text);
    else
        runlog_say(&run->books->log, "step %" PRId64 ": balance: %sall ranks compute what they own", run->state.step,
                   stage);
}

// ---- what balancing needs to know of this machine, measured once, before the first step; by all ranks together

// ms of sending so many bytes to the next rank of the group and receiving as many from the one before: the slowest
// rank's, by the clock that times steps. c NULL: this rank only listens.
static double communication_ms(Run* run, Comm* c, char* memory, size_t bytes) {
    enum { TIMES = 5 };
    const Model* m = &run->model;
    double least = INFINITY;
    if (!c) return run_most(run, m->world, 0);
    CommPurpose before = c->purpose;
    c->purpose = COMM_SLICES;
    Transfer out = {(c->rank + 1) % c->size, memory, bytes},
             in = {(c->rank + c->size - 1) % c->size, memory + bytes, bytes};
    for (int i = 0; i < TIMES; i++) {
        m->k->synchronize(m->s);
        double started = m->k->clock();
        comm_send_receive(c, &out, 1, &in, 1, m->s);
        m->k->synchronize(m->s);
        least = fmin(least, 1e3 * (m->k->clock() - started));
    }
    c->purpose = before;
    return run_most(run, m->world, least);
}

MessageCost balance_message(Run* run, Comm* group) {
    enum { SMALL = 1 << 10, LARGE = 1 << 20 };
    const Kernels* k = run->model.k;
    char* memory = (char*)k->alloc(2 * LARGE);
    if (!memory) die("no memory to time a message of %d bytes", LARGE);
    double small = communication_ms(run, group, memory, SMALL), large = communication_ms(run, group, memory, LARGE);
    k->free_memory(memory);
    return (MessageCost){small, (fmax(small, large) - small) / (LARGE - SMALL)};
}

// Weights out and gradients back, once a layer and step each.
MoveCost balance_move_cost(const MessageCost* message, const Shape* part, DType dt, int layers) {
    double slice = (double)unit_elems(part, MLP) * (double)(dtype_bytes(dt) + sizeof(float)) * message->byte_ms;
    return (MoveCost){.fixed = 2 * layers * message->ms, .send = layers * slice, .take = layers * slice};
}

static void find_move_cost(Run* run) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    MessageCost message = balance_message(run, m->tp);
    for (int s = 0; s < b->stages; s++)
        b->stage[s].cost = balance_move_cost(&message, &m->shape, m->dt, m->ranks->layout.stage[s].layers);
    printf("balance %s; a message takes %.3g ms, a slice given away for a step %.3g ms\n", run->config.balance,
           message.ms, b->own->cost.send);
}

// ---- what resizing saves

// Milliseconds of the first block's linears, forward and backward, over N tokens with the lists of the plan: of the
// matmuls, and of what comes with them.
typedef struct LinearTime {
    double matmuls, rest;
} LinearTime;

static void time_linears(LinearTime* least, Run* run, const WorkPlan* plan, int N) {
    Model* m = &run->model;
    double seconds[N_TIMES];
    void* act[N_ACTS];
    for (int i = 0; i < N_ACTS; i++) act[i] = model_act(m, (ActId)i, 0);
    const ActId in[N_LINEARS] = {LN1, ATT, LN1, FC_ACT}, out[N_LINEARS] = {D_CORE_IN, D_NORM, FC, D_NORM};
    int fused = shape_act(&m->shape) == ACT_GELU;
    work_set(m, plan);
    work_begin(m);
    zero_use_layer(m, 0, 0);
    timer_begin(m->timer, m->k, m->s);
    for (int i = 0; i < N_LINEARS; i++)
        work_forward(m, (LinearId)i, 0, act[out[i]], fused && i == LINEAR_FC ? act[FC_ACT] : NULL, act[in[i]], N);
    for (int i = N_LINEARS; i-- > 0;) {
        LinearId id = (LinearId)i;
        char *dx = act[is_linear_in(id) ? D_NORM : D_CORE_IN], *dout = act[is_linear_in(id) ? D_CORE_IN : D_NORM];
        work_backward_weight(m, id, 0, dout, act[in[i]], N);
        work_backward_input(m, id, 0, dx, dout, fused && i == LINEAR_FCPROJ ? act[FC] : NULL, N);
    }
    timer_read(m->timer, seconds, m->s);
    work_end(m);
    least->matmuls = MIN(least->matmuls, 1e3 * seconds[TIME_LINEAR]);
    least->rest = MIN(least->rest, 1e3 * seconds[TIME_OTHER]);
}

// The median of what all ranks say.
static double middle(Run* run, double mine) {
    Comm* c = run->model.world;
    double *all = (double*)run_ask_all(run, c, &mine, sizeof mine), value = run_median(all, c->size);
    free(all);
    return value;
}

// A matmul of a quarter of the columns takes more than a quarter of the time: GELU and biases are the same, and thin
// matmuls are less efficient. With g left out it takes fixed + (1 - fixed) (1 - g) of the time. `fixed` is measured at
// 3/4, where its error counts most, on all ranks, of which the median counts; and with it what gathering columns takes,
// which is over when nothing is left out. Otherwise a healthy rank that leaves something out would look slow, and go on
// leaving it out. Whole and resized linears take turns, so that both see the same machine.
static void find_fixed(Run* run) {
    enum { TIMES = 12 };
    Model* m = &run->model;
    Balance* b = run->balance;
    int N = MIN(run->settled.capacity, run->config.batch_tokens);
    SliceCount own = {m->shape.kv_heads, m->shape.hidden};
    WorkPlan whole = {0}, resized = {0};
    LinearTime all = {INFINITY, INFINITY}, some = all;
    double fixed = 0, gathering = 0;
    resized.kept = pruner_choose(b->pruner, 0.75, own, 0);
    resized.active = resized.kept != NULL;
    double g = resized.active ? pruner_left_out(b->pruner) : 0;
    for (int i = 0; i < TIMES && g > 0; i++) {
        time_linears(&all, run, &whole, N);
        time_linears(&some, run, &resized, N);
    }
    if (g > 0 && all.matmuls > 0) fixed = (some.matmuls / all.matmuls - (1 - g)) / g, gathering = some.rest - all.rest;
    work_set(m, &whole);
    pruner_choose(b->pruner, 0, own, 0);
    zero_clear_grads(m);
    b->fixed = fmax(0, fmin(0.9, middle(run, fixed)));
    double tokens = (double)run->config.batch_tokens / m->comm->size, of_layer = middle(run, gathering) * tokens / N;
    for (int s = 0; s < b->stages; s++) b->stage[s].gathering = fmax(0, of_layer * m->ranks->layout.stage[s].layers);
}

// ---- the beginning

WorkNeeds balance_needs(const Model* m, const Balance* b) {
    SliceCount most = {m->shape.kv_heads, m->shape.hidden};
    if (b->setting.mode != BALANCE_RESIZE) most = balance_most(m);
    return (WorkNeeds){MAX(most.heads, 1), MAX(most.hidden, 1)};
}

static void open_stage(Run* run, int s, int ranks) {
    const Model* m = &run->model;
    StageBalance* x = &run->balance->stage[s];
    x->first_rank = s * (m->world->size / run->balance->stages);
    if (speeds_start(&x->speeds, ranks, &run->balance->arena))
        die("no memory for what is known of %d ranks", m->world->size);
    if (!m->tp || run->strategies) return;
    balance_count_units(&x->units, &m->whole, &m->ranks->split);
}

void balance_open(Run* run) {
    char err[ERR_BYTES];
    const Config* c = &run->config;
    Model* m = &run->model;
    int world = m->world->size, ranks = run->strategies ? world : m->comm->size;
    int stages = run->strategies ? 1 : m->stages;
    if (run->training && straggle_parse(run->cluster->stragglers, &run->cluster->n_stragglers, c->straggle, world, err))
        die("%s", err);
    Balance* b = run->balance = (Balance*)calloc(1, sizeof *b);
    m->timer = (Timer*)calloc(1, sizeof *m->timer);
    if (!b || !m->timer) die("no memory for what is known of %d ranks", world);
    model_set_timer(m, m->timer);
    m->timer->on = world > 1 || run->cluster->n_stragglers > 0;
    b->setting = (BalanceSetting){.start = 1.2, .stop = 1.1, .most_pruned = 0.95, .semi_lambda = c->semi_lambda};
    b->setting.mode = (BalanceMode)config_choice(c, "--balance");
    b->stages = stages;
    b->steps = TAKE(&b->arena, RankStep, world);
    b->compute_ms = TAKE(&b->arena, double, world);
    b->expected = TAKE(&b->arena, CostTerms, world);
    b->segments = TAKE(&b->arena, float, (size_t)tp_size(m) * MOST_SEGMENTS);
    b->stage = TAKE(&b->arena, StageBalance, stages);
    if (arena_check(&b->arena, err)) die("no memory for what is known of %d ranks", world);
    memset(b->stage, 0, (size_t)stages * sizeof *b->stage);
    b->own = &b->stage[run->strategies ? 0 : m->stage];
    for (int s = 0; s < stages; s++) open_stage(run, s, ranks);
    if (b->setting.mode <= BALANCE_DOCUMENTS || !m->tp || run->strategies) return;
    if (m->ranks->n_groups)
        die("--balance %s knows no layers of less tp than their group: expected tp %d in all, found %d; leave their tp "
            "out, or try --balance off",
            c->balance, tp_size(m), m->ranks->groups[0].tp);
    if (run->training) m->ranks->work_needs = balance_needs(m, b);
}

void balance_close(Balance* b) {
    if (!b) return;
    pruner_close(b->pruner);
    arena_free(&b->arena);
    free(b);
}

void balance_ready(Run* run) {
    const Config* c = &run->config;
    Model* m = &run->model;
    Balance* b = run->balance;
    int saved = run->books->saved.balanced;
    if (c->resume && saved && (!m->ranks->work || run->strategies || saved != b->stages * tp_size(m))) {
        printf("balance anew: the saved decision is for groups of %d ranks, found %d, --balance %s\n", saved,
               b->stages * tp_size(m), c->balance);
        run->books->saved.balanced = 0;
    }
    if (b->setting.mode != BALANCE_OFF && m->world->size == 1)
        printf("balance %s: nothing to do, there is one rank only\n", c->balance);
    if (b->jobs) b->jobs->ready(run);
    int in_groups = m->ranks->work && !run->strategies;
    if (in_groups && b->setting.mode != BALANCE_RESIZE) find_move_cost(run);
    if (in_groups && b->setting.mode != BALANCE_MIGRATE) b->pruner = pruner_open(m, (uint64_t)c->seed);
    if (b->pruner) find_fixed(run);
    if (c->resume) balance_take_measures(run);
    if (c->resume && in_groups) balance_take_up(run);
}

// ---- a step

// On a GPU events cost the host time, and it waits for the stream to read them. So there it times as many steps as a
// refresh needs, or the log. An injected straggler falls behind by the timer, in every step.
static int is_timed(const Run* run) {
    enum { OF_A_REFRESH = 8, FOR_THE_LOG = 16 };
    int refresh = run->balance->setting.mode == BALANCE_OFF ? 0 : run->config.refresh;
    int every = refresh > 0 ? MAX(refresh / OF_A_REFRESH, 1) : FOR_THE_LOG;
    if (run->model.k->on_host || run->model.k->virtual_time || run->cluster->n_stragglers > 0) return 1;
    return (run->state.step - run->books->first_step) % every == 1 % every;  // the first step is slow
}

void balance_begin(Run* run) {
    Model* m = &run->model;
    Balance* b = run->balance;
    Slowness slow =
        straggle_at(run->cluster->stragglers, run->cluster->n_stragglers, m->world->rank, run->state.step + 1);
    timer_slow_down(m->timer, slow.linear, slow.whole);
    b->is_timed = is_timed(run);
    if (b->is_timed) timer_begin(m->timer, m->k, m->s);
    if (b->jobs) b->jobs->begin(run);
    if (b->own->plan.active) zero_settle(m);
    work_begin(m);
}

// Sum over segments of the slowest rank's computing; 0 where ranks have unlike numbers of them: no run dies of that.
static double slowest_segments(Run* run) {
    const Model* m = &run->model;
    char err[ERR_BYTES];
    float* all = run->balance->segments;
    int n = m->timer->n_segments, R = tp_size(m), counts[MOST_TP];
    double sum = 0;
    if (m->tp->table->all_gather_host(m->tp, counts, &n, sizeof n, err)) run_lost(run, err);
    for (int t = 0; t < R; t++)
        if (counts[t] != n) return 0;  // of a statistic no run dies
    if (m->tp->table->all_gather_host(m->tp, all, m->timer->segments, (size_t)n * sizeof *all, err)) run_lost(run, err);
    for (int i = 0; i < n; i++) {
        float most = 0;
        for (int t = 0; t < R; t++) most = MAX(most, all[(size_t)t * (size_t)n + (size_t)i]);
        sum += (double)most;
    }
    return 1e3 * sum;
}

static int learns_speeds(const Run* run) {
    return run->balance->setting.mode != BALANCE_OFF && run->balance->own->speeds.ranks > 1 &&
           run->clock->setting.groups;
}

// Returns the ms that this rank's part of the plan should take. A cost says what all stages would take if none waited.
static CostTerms expected_of_step(const Run* run) {
    double matmuls[MOST_STAGES], layers[MOST_STAGES];
    const Model* m = &run->model;
    CostTerms* all = run->balance->expected;
    Setting setting = run->clock->setting;
    Cost* cost = &setting.cost;
    *cost = run->clock->probed.cost;
    if (m->stages > 1) {
        layout_shares(&m->ranks->layout, &m->whole, matmuls, layers);
        cost->per_token *= m->stages * matmuls[m->stage];
        cost->quadratic *= m->stages * layers[m->stage], cost->micro_batch *= m->stages * layers[m->stage];
    }
    speeds_expect(all, &run->batch.planned->made.plan, run->batch.lengths, &setting);
    return all[m->comm->rank];
}

void balance_measure(Run* run, RankReport* mine) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    double seconds[N_TIMES];
    memset(mine, 0, sizeof *mine);
    if (!m->timer->on) return;
    timer_read(m->timer, seconds, m->s);  // 0 where nothing was timed
    mine->linear = 1e3 * seconds[TIME_LINEAR], mine->attention = 1e3 * seconds[TIME_ATTENTION];
    mine->other = 1e3 * seconds[TIME_OTHER], mine->update = 1e3 * seconds[TIME_UPDATE];
    mine->wait = 1e3 * seconds[TIME_WAIT];
    if (b->pruner && pruner_layers(b->pruner)) mine->pruned = pruner_left_out(b->pruner);
    mine->sent = units_work(&b->own->units, work_moved(&b->own->plan, tp_rank(m), 0));
    mine->taken = units_work(&b->own->units, work_moved(&b->own->plan, tp_rank(m), 1));
    if (learns_speeds(run)) mine->expected = expected_of_step(run);
    if (b->jobs) b->jobs->report(run, mine);
    if (m->tp && run->cluster->oversubscribed && b->is_timed && !run->strategies)
        mine->emulated = slowest_segments(run);
}

static double computing(const RankReport* r) { return r->linear + r->attention + r->other; }

// Returns the report of rank t of the q-th group of a stage.
static const RankReport* report_of(const Run* run, const StageBalance* x, int q, int t) {
    return &run->cluster->agreed[x->first_rank + q * tp_size(&run->model) + t].report;
}

// Adds the step to the samples of a stage, group by group scaled to the mean of all its groups.
static void sample(Run* run, StageBalance* x) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    int R = tp_size(m), groups = m->comm->size, at = b->n_samples % SAMPLES;
    double total = 0, middle[MOST_TP];
    for (int q = 0; q < groups; q++) {
        for (int t = 0; t < R; t++) middle[t] = computing(report_of(run, x, q, t));
        b->compute_ms[q] = run_median(middle, R);
        total += b->compute_ms[q] / groups;
    }
    for (int t = 0; t < R; t++) {
        double most = -1;
        for (int q = 0; q < groups; q++) {
            const RankReport* r = report_of(run, x, q, t);
            double scale = b->compute_ms[q] > 0 ? total / b->compute_ms[q] : 1;
            if (scale * computing(r) <= most) continue;
            most = scale * computing(r);
            x->samples[t][0][at] = scale * r->linear;
            x->samples[t][1][at] = scale * r->attention;
            x->samples[t][2][at] = scale * r->other + r->update;
        }
    }
}

// A rank to planners is a group: it goes at the pace of its slowest rank. With --strategies every rank has a
// pace of its own. What was told is of the machine as it was probed: what was learnt are factors of it.
static void learn_speeds(Run* run) {
    Balance* b = run->balance;
    int R = run->strategies ? 1 : tp_size(&run->model), ranks = b->own->speeds.ranks;
    if (!learns_speeds(run)) return;
    Calibration* calibration = &run->cluster->timing.calibration;
    const double* theta = calibration->theta;
    for (int s = 0; s < b->stages; s++) {
        for (int q = 0; q < ranks; q++) {
            const RankReport* first = &run->cluster->agreed[b->stage[s].first_rank + q * R].report;
            CostTerms told = first->expected;
            if (!run->config.machine)
                told.quadratic *= theta[0], told.per_token *= theta[1], told.micro_batch *= theta[3];
            b->compute_ms[q] = 0, b->expected[q] = told;
            for (int t = 0; t < R; t++) b->compute_ms[q] = MAX(b->compute_ms[q], computing(first + t));
        }
        speeds_learn(&b->stage[s].speeds, b->expected, b->compute_ms);
    }
    for (int s = 0; s < b->stages && !run->config.machine; s++) speeds_teach(&b->stage[s].speeds, calibration);
}

void balance_set_paces(Run* run) {
    const Balance* b = run->balance;
    int ranks = b->own->speeds.ranks;
    if (b->jobs) {
        b->jobs->set_paces(run, b->own->speeds.speeds);
        return;
    }
    for (int i = 0; i < b->stages * ranks; i++)
        run->clock->stage_speeds[i] = b->stage[i / ranks].speeds.speeds[i % ranks];
    run_set_paces(run);
}

static void refresh_speeds(Run* run, int is_refresh) {
    Balance* b = run->balance;
    int changed = 0;
    for (int s = 0; s < b->stages; s++) is_refresh |= b->stage[s].speeds.urgent;
    for (int s = 0; s < b->stages && is_refresh; s++) changed |= speeds_refresh(&b->stage[s].speeds);
    if (changed) balance_set_paces(run);
}

int balance_explains_step(const Run* run) {
    int held = 1;
    for (int s = 0; s < run->balance->stages; s++) held &= run->balance->stage[s].speeds.held;
    return !learns_speeds(run) || held;
}

void balance_hear(Run* run, StepRecord* record) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    int world = m->world->size, is_first = run->state.step == run->books->first_step;
    double emulated = 0;
    if (world == 1) return;
    // The first step also pays for first touches, which cost no virtual time.
    int counts = !is_first || (b->goes_on && m->k->virtual_time);
    if (counts && b->is_timed) {
        for (int s = 0; s < b->stages && !run->strategies; s++) sample(run, &b->stage[s]);
        b->n_samples++;
        learn_speeds(run);
    }
    for (int r = 0; r < world; r++) {
        const RankReport* x = &run->cluster->agreed[r].report;
        const StageBalance* stage = &b->stage[r / (world / b->stages)];
        double pace = run->strategies ? stage->speeds.speeds[r]
                      : m->tp         ? stage->memory.v[r % tp_size(m)]
                                      : stage->speeds.speeds[r % m->comm->size];
        double compute = b->is_timed ? computing(x) + x->update : NAN, wait = b->is_timed ? x->wait : NAN;
        b->steps[r] = (RankStep){(float)compute, (float)wait,     (float)x->pruned,
                                 (float)x->sent, (float)x->taken, pace > 0 ? (float)pace : NAN};
        emulated = MAX(emulated, x->emulated);
    }
    record->ranks = b->steps;
    record->n_ranks = world;
    record->emulated_ms = emulated > 0 ? emulated : NAN;
}

// ---- a refresh

// As if every rank had computed what it owns: matmuls and attention are scaled apart, because a rank may give more of
// the one than of the other. What a head's attention takes is remembered where a rank has given all heads.
static RankTimes times_of(Run* run, StageBalance* stage, int t) {
    const Balance* b = run->balance;
    const UnitGroup* x = &stage->units;
    SliceCount own = x->own[t], ran = balance_count(stage->plan.moves, stage->plan.n_moves, x->own, t);
    double ms[KINDS], pruned = (1 - b->fixed) * report_of(run, stage, 0, t)->pruned;
    for (int k = 0; k < KINDS; k++) ms[k] = run_median(stage->samples[t][k], MIN(b->n_samples, SAMPLES));
    if (pruned > 0) ms[2] = MAX(0, ms[2] - stage->gathering);
    if (ran.heads > 0) stage->head_ms[t] = ms[1] / ran.heads;
    ms[0] *= units_matrices(x, own) / units_matrices(x, ran);
    return (RankTimes){.linear = ms[0], .attention = stage->head_ms[t] * own.heads, .other = ms[2], .pruned = pruned};
}

// With its attention; known from the first decision on.
static void find_head_work(const Balance* b, StageBalance* stage, const RankTimes* times) {
    UnitGroup* x = &stage->units;
    double head[MOST_TP], slice_ms[MOST_TP];
    if (x->head_work > 0) return;
    x->head_work = x->matrices;
    if (b->setting.mode == BALANCE_RESIZE) return;
    for (int t = 0; t < x->ranks; t++) {
        head[t] = times[t].attention / x->own[t].heads;
        slice_ms[t] = times[t].linear / units_work(x, x->own[t]);
    }
    double slice = run_median(slice_ms, x->ranks);
    if (slice > 0) x->head_work += run_median(head, x->ranks) / slice;
}

static void learn(Run* run, StageBalance* x) {
    const Balance* b = run->balance;
    RankTimes times[MOST_TP];
    int R = x->units.ranks;
    for (int t = 0; t < R; t++) times[t] = times_of(run, x, t);
    find_head_work(b, x, times);
    for (int t = 0; t < R; t++) {
        times[t].slices = units_work(&x->units, x->units.own[t]);
        if (b->setting.mode == BALANCE_RESIZE) times[t].other += times[t].attention, times[t].attention = 0;
    }
    balance_learn(&x->memory, times, R);
}

static void decide(Run* run, StageBalance* x) {
    BalanceSetting setting = run->balance->setting;
    setting.cost = x->cost;
    BalanceDecision now = x->decision, next = x->decision = balance_decide(&x->memory, &setting, &x->units);
    if (next.active != now.active || (now.active && fabs(now.step_ms - next.step_ms) > 0.1 * now.step_ms))
        say_decision(run, x, &next);
}

void balance_change(Run* run) {
    Balance* b = run->balance;
    const Config* c = &run->config;
    int64_t done = run->state.step;
    if (b->setting.mode == BALANCE_OFF || c->refresh == 0) return;
    int is_refresh = done % c->refresh == 0;
    refresh_speeds(run, is_refresh);
    if (!is_refresh || !run->model.ranks->work || run->strategies || b->n_samples == 0) return;
    for (int s = 0; s < b->stages; s++) learn(run, &b->stage[s]);
    b->n_samples = 0;
    for (int s = 0; s < b->stages; s++) decide(run, &b->stage[s]);
    balance_carry_out(run);
}

uint64_t balance_state_hash(const Run* run) {
    const Balance* b = run->balance;
    uint64_t hash = 0;
    for (const StageBalance* x = b->stage; x < b->stage + b->stages; x++) {
        hash = hash64(hash) ^ balance_hash(&x->decision, x->units.ranks);
        hash = hash_bytes(x->speeds.speeds, (size_t)x->speeds.ranks * sizeof *x->speeds.speeds, hash);
    }
    return hash;
}
