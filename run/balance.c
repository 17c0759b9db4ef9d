// balance.c - see balance.h.
//
// Times are medians of the steps since the last refresh: a single slow step says nothing. They go to plan/balance.h as
// those of one group: where there are several, each group's are first scaled to the mean of all groups' medians,
// because groups have unlike documents.
#include "run/balance.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/straggle.h"
#include "kernels/virtual/virtual.h"
#include "run/balance_parts.h"
#include "run/strategies.h"

// ---- files

static void lists_path(char* path, const Run* run, const char* dir) {
    char name[64];
    snprintf(name, sizeof name, "kept-%05d-of-%05d.safetensors", run->model.world->rank, run->model.world->size);
    run_path(path, dir, name);
}

// What --moves keep has come to.
static void save_division(Run* run) {
    const TpSplit* split = &run->model.split;
    RunState* s = &run->state;
    s->divided = run->balance->keeps && run->model.work ? split->ranks : 0;
    for (int t = 0; t < s->divided; t++) {
        s->own_heads[t] = split->head[t + 1] - split->head[t];
        s->own_hidden[t] = split->hidden[t + 1] - split->hidden[t];
    }
}

static int keeps_moves(const Config* c) {
    return !strcmp(c->moves, "keep") && strcmp(c->balance, "off") != 0 && strcmp(c->balance, "resize") != 0;
}

void balance_take_division(Run* run) {
    Model* m = &run->model;
    const RunState* s = &run->state;
    const Config* c = &run->config;
    const int R = m->split.ranks, queries = m->whole.NH / m->whole.NKV;
    const SliceCount most = balance_most(m);
    TpSplit saved = m->split;
    if (!c->resume || !keeps_moves(c) || s->divided != R) return;
    int fits = 1, heads_stay = split_shares_kv(&m->whole, &m->split);
    for (int t = 0; t < R; t++) {
        saved.hidden[t + 1] = saved.hidden[t] + s->own_hidden[t];
        if (!heads_stay) saved.head[t + 1] = saved.head[t] + s->own_heads[t];
        fits &= s->own_hidden[t] > 0 && s->own_hidden[t] <= most.hidden;
        fits &= heads_stay || (s->own_heads[t] % queries == 0 && s->own_heads[t] / queries <= most.heads);
    }
    if (fits && saved.head[R] == m->whole.NH && saved.hidden[R] == m->whole.U) m->split = saved;
}

int balance_save(Run* run, const char* dir, char* err, size_t errlen) {
    char path[CHECKPOINT_PATH];
    const Balance* b = run->balance;
    const BalanceDecision* d = &b->decision;
    RunState* s = &run->state;
    s->balanced = d->active ? b->setting.ranks : 0;
    memcpy(s->pruned, d->pruned, sizeof s->pruned);
    for (int t = 0; t < s->balanced; t++) s->heads[t] = d->tiles[t].heads, s->tiles[t] = d->tiles[t].hidden;
    memcpy(s->v, d->v, sizeof s->v);
    for (int t = 0; t < s->balanced; t++) s->head_work[t] = b->head_work;
    save_division(run);
    if (!b->pruner || !pruner_layers(b->pruner)) return 0;
    lists_path(path, run, dir);
    return pruner_save(b->pruner, path, err, errlen);
}

// The decision that was in force when the checkpoint was saved, where groups are as they were.
static void take_up(Run* run) {
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
    Balance* b = run->balance;
    const RunState* s = &run->state;
    BalanceDecision* d = &b->decision;
    int t = tp_rank(&run->model);
    if (!s->balanced) return;
    d->active = 1;
    memcpy(d->pruned, s->pruned, sizeof s->pruned);
    for (int r = 0; r < s->balanced; r++) d->tiles[r] = (SliceCount){(int)s->heads[r], (int)s->tiles[r]};
    memcpy(d->v, s->v, sizeof s->v);
    b->head_work = s->head_work[0];
    balance_make_moves(run);
    lists_path(path, run, run->start_from);
    // Where so little was to be left out that no list came of it, none was saved.
    if (b->pruner && d->pruned[t] > 0 && !access(path, F_OK)) {
        zero_settle(&run->model);
        if (pruner_load(b->pruner, path, err, sizeof err)) die("--resume: %s", err);
    }
    balance_set_work(run, b->pruner ? pruner_layers(b->pruner) : NULL);
}

// ---- the beginning

static BalanceSetting make_setting(const Config* c, int ranks) {
    BalanceSetting s = {.ranks = ranks, .start = 1.2, .stop = 1.1, .most_pruned = 0.95, .squared = 1};
    s.mode = (BalanceMode)config_choice(c->balance, "off|resize|migrate|semi");
    s.semi_lambda = c->semi_lambda;
    return s;
}

static WorkNeeds make_needs(const Model* m, const Balance* b) {
    SliceCount most = {m->shape.kv_heads, m->shape.hidden};
    if (b->setting.mode != BALANCE_RESIZE) most = balance_most(m);
    return (WorkNeeds){MAX(most.heads, 1), MAX(most.hidden, 1), b->plan.imputation == IMPUTE_SAME};
}

void balance_open(Run* run) {
    char err[ERR_BYTES];
    const Config* c = &run->config;
    Model* m = &run->model;
    int world = m->world->size, ranks = run->strategies ? world : m->comm->size;
    if (run->training && straggle_parse(run->stragglers, &run->n_stragglers, c->straggle, world, err, sizeof err))
        die("%s", err);
    Balance* b = run->balance = (Balance*)calloc(1, sizeof *b);
    m->timer = (Timer*)calloc(1, sizeof *m->timer);
    if (!b || !m->timer) die("no memory for what is known of %d ranks", world);
    if (run->strategies) strategies_time(run, m->timer);
    else model_set_timer(m, m->timer);
    m->timer->on = world > 1;
    b->setting = make_setting(c, run->strategies ? 1 : tp_size(m));
    b->keeps = keeps_moves(c);
    b->plan.shed = (Shed)config_choice(c->shed, "columns|slices");
    b->plan.imputation = (Imputation)config_choice(c->fill, "zero|average|same");
    b->steps = TAKE(&b->arena, RankStep, world);
    b->compute_ms = TAKE(&b->arena, double, world);
    b->segments = TAKE(&b->arena, float, (size_t)tp_size(m) * MOST_SEGMENTS);
    int failed = !b->steps || !b->compute_ms || !b->segments || speeds_start(&b->speeds, ranks, &b->arena);
    if (failed) die("no memory for what is known of %d ranks", world);
    if (b->setting.mode != BALANCE_OFF && m->stages > 1)
        die("--balance %s knows no stages of a pipeline: expected --pp 1, found %d; try --balance off", c->balance,
            m->stages);
    if (b->setting.mode == BALANCE_OFF || !m->tp) return;
    if (m->n_groups)
        die("--balance %s knows no layers of less tp than their group: expected tp %d in all, found %d; leave their tp "
            "out, or try --balance off",
            c->balance, tp_size(m), m->groups[0].tp);
    if (m->zero.stage > 1)
        die("--balance %s in tensor-parallel groups needs whole gradients: expected --zero 1, found %d; try --zero 1",
            c->balance, m->zero.stage);
    if (run->training) run->work_needs = make_needs(m, b);
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
    int saved = run->state.balanced ? run->state.balanced : run->state.divided;
    if (c->resume && saved && (!m->work || saved != b->setting.ranks)) {
        printf("balance anew: the saved decision is for groups of %d ranks, found %d, --balance %s\n", saved,
               b->setting.ranks, c->balance);
        run->state.balanced = 0;
    }
    if (b->setting.mode != BALANCE_OFF && m->world->size == 1)
        printf("balance %s: nothing to do, there is one rank only\n", c->balance);
    if (!m->work) return;
    if (b->setting.mode != BALANCE_RESIZE) balance_find_move_cost(run);
    if (b->setting.mode != BALANCE_MIGRATE && !b->keeps)
        b->pruner = pruner_open(m, b->plan.shed, (Priority)config_choice(c->priority, "change|random|inverse"),
                                !strcmp(c->ratios, "layers"), (uint64_t)c->seed);
    if (b->pruner) balance_find_fixed(run);
    if (c->resume) take_up(run);
}

// ---- a step

// On a GPU events cost the host time, and it waits for the stream to read them. So there it times as many steps as a
// refresh needs, or the log. An injected straggler falls behind by the timer, in every step.
static int is_timed(const Run* run) {
    enum { OF_A_REFRESH = 8, FOR_THE_LOG = 16 };
    int refresh = run->balance->setting.mode == BALANCE_OFF ? 0 : run->config.refresh;
    int every = refresh > 0 ? MAX(refresh / OF_A_REFRESH, 1) : FOR_THE_LOG;
    if (run->model.k->on_host || run->model.k->virtual_time || run->n_stragglers > 0) return 1;
    return (run->state.step - run->first_step) % every == 1 % every;  // the first step is slow
}

void balance_begin(Run* run) {
    Model* m = &run->model;
    Balance* b = run->balance;
    Slowness slow = straggle_at(run->stragglers, run->n_stragglers, m->world->rank, run->state.step + 1);
    straggle_slow_down(slow.linear);
    m->timer->drag = m->k->virtual_time ? 1 : slow.whole;
    if (m->k->virtual_time) virtual_slow_down(slow.whole);
    b->is_timed = is_timed(run);
    if (b->is_timed) timer_begin(m->timer, m->k, m->s);
    if (b->plan.active) zero_settle(m);
    work_begin(m);
}

// Sum over segments of the slowest rank's computing; 0 where ranks have unlike numbers of them: no run dies of that.
static double slowest_segments(Run* run) {
    const Model* m = &run->model;
    char err[ERR_BYTES];
    float* all = run->balance->segments;
    int n = m->timer->n_segments, R = tp_size(m), counts[MOST_TP];
    double sum = 0;
    if (m->tp->table->all_gather_host(m->tp, counts, &n, sizeof n, err, sizeof err)) run_lost(run, err);
    for (int t = 0; t < R; t++)
        if (counts[t] != n) return 0;  // of a statistic no run dies
    if (m->tp->table->all_gather_host(m->tp, all, m->timer->segments, (size_t)n * sizeof *all, err, sizeof err))
        run_lost(run, err);
    for (int i = 0; i < n; i++) {
        float most = 0;
        for (int t = 0; t < R; t++) most = MAX(most, all[(size_t)t * (size_t)n + (size_t)i]);
        sum += (double)most;
    }
    return 1e3 * sum;
}

static int learns_speeds(const Run* run) {
    return run->balance->setting.mode != BALANCE_OFF && run->limits.ranks > 1 && run->setting.groups;
}

void balance_measure(Run* run, RankReport* mine) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    double seconds[N_TIMES];
    SliceCount own[MOST_TP];
    memset(mine, 0, sizeof *mine);
    if (!m->timer->on) return;
    timer_read(m->timer, seconds, m->s);  // 0 where nothing was timed
    mine->linear = 1e3 * seconds[TIME_LINEAR], mine->attention = 1e3 * seconds[TIME_ATTENTION];
    mine->other = 1e3 * seconds[TIME_OTHER], mine->update = 1e3 * seconds[TIME_UPDATE];
    mine->wait = 1e3 * seconds[TIME_WAIT];
    if (b->pruner && pruner_layers(b->pruner)) mine->pruned = pruner_left_out(b->pruner);
    if (m->tp) {
        balance_owned(own, m);
        SliceCount stay = balance_staying(b, own[tp_rank(m)], tp_rank(m));
        double kept_here = balance_slices(b, stay);
        mine->sent = balance_slices(b, own[tp_rank(m)]) - kept_here;
        mine->slices = balance_running(b, own, tp_rank(m));
        mine->taken = mine->slices - kept_here;
        if (run->oversubscribed && b->is_timed && !run->strategies) mine->emulated = slowest_segments(run);
    }
}

static double computing(const RankReport* r) { return r->linear + r->attention + r->other; }

// Adds the step to the samples, group by group scaled to the mean of all groups.
static void sample(Run* run) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    int R = tp_size(m), groups = m->world->size / R, at = b->n_samples % SAMPLES;
    double total = 0, middle[MOST_TP];
    for (int q = 0; q < groups; q++) {
        for (int t = 0; t < R; t++) middle[t] = computing(&run->agreed[q * R + t].report);
        b->compute_ms[q] = run_median(middle, R);
        total += b->compute_ms[q] / groups;
    }
    for (int t = 0; t < R; t++) {
        double most = -1;
        for (int q = 0; q < groups; q++) {
            const RankReport* r = &run->agreed[q * R + t].report;
            double scale = b->compute_ms[q] > 0 ? total / b->compute_ms[q] : 1;
            if (scale * computing(r) <= most) continue;
            most = scale * computing(r);
            b->samples[t][0][at] = scale * r->linear;
            b->samples[t][1][at] = scale * r->attention;
            b->samples[t][2][at] = scale * r->other + r->update;
        }
    }
    b->n_samples++;
}

// What planners call a rank is a group: it goes at the pace of its slowest rank.
static void learn_speeds(Run* run) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    int R = tp_size(m);
    if (!learns_speeds(run)) return;
    for (int q = 0; q < m->comm->size; q++) {
        double most = 0;
        for (int t = 0; t < R; t++) most = MAX(most, computing(&run->agreed[q * R + t].report));
        b->compute_ms[q] = most;
    }
    Setting now = run->setting;  // with all that is known of the cost
    if (!run->config.machine) calibration_apply(&now.cost, &run->probed.cost, &run->calibration);
    speeds_learn(&b->speeds, &run->batch.plan, run->batch.lengths, &now, b->compute_ms);
    if (!run->config.machine) speeds_teach(&b->speeds, &run->calibration);
}

int balance_explains_step(const Run* run) { return !learns_speeds(run) || run->balance->speeds.held; }

void balance_hear(Run* run, StepRecord* record) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    int world = m->world->size, is_first = run->state.step == run->first_step;
    double emulated = 0;
    if (!m->timer->on) return;
    if (!is_first && b->is_timed && !run->strategies)
        sample(run), learn_speeds(run);  // the first step also pays for first touches
    for (int r = 0; r < world; r++) {
        const RankReport* x = &run->agreed[r].report;
        double pace = run->strategies ? NAN : m->tp ? b->memory.v[r % tp_size(m)] : b->speeds.speeds[r % m->comm->size];
        double compute = b->is_timed ? computing(x) + x->update : NAN, wait = b->is_timed ? x->wait : NAN;
        b->steps[r] = (RankStep){(float)compute, (float)wait,     (float)x->pruned,
                                 (float)x->sent, (float)x->taken, pace > 0 ? (float)pace : NAN};
        emulated = MAX(emulated, x->emulated);
    }
    record->ranks = b->steps;
    record->n_ranks = world;
    record->emulated_ms = emulated > 0 ? emulated : NAN;
}
