// balance.c - see balance.h.
//
// Times are medians of the steps since the last refresh: a single slow step says nothing. They go to plan/balance.h as
// those of one group: where there are several, each group's are first scaled to the mean of all groups' medians,
// because groups have unlike documents.
#include "run/balance.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/speeds.h"
#include "run/kept.h"
#include "run/ranks_page.h"
#include "run/resplit.h"
#include "run/run.h"

enum { SAMPLES = 32, KINDS = 3 };  // linear, attention, all else

struct Balance {
    BalanceSetting setting;
    Shed shed;
    Imputation imputation;
    Kept* kept;  // NULL: nothing is ever left out
    // Since the last refresh: ms by number in the group, kind and step.
    double samples[MOST_TP][KINDS][SAMPLES];
    int n_samples;
    double head_work;  // of a head in MLP units; 0: not known yet
    BalanceMemory memory;
    BalanceDecision decision;
    Move moves[2 * MOST_TP];
    int n_moves;
    int keeps;            // slices move for good: --moves keep
    int acts;             // anything differs from what ranks own
    RankReport* reports;  // (world) of the last step
    Speeds speeds;
    void* speeds_memory;
    double* compute_ms;  // (data ranks) scratch
    History* history;    // on rank 0
    RankStep* steps;     // (world) of the last step
    float* segments;     // (group, MOST_SEGMENTS)
};

static int index_of(const char* value, const char* const* names, int n) {
    int i = 0;
    while (i < n - 1 && strcmp(value, names[i]) != 0) i++;
    return i;
}

static void* room(size_t n, size_t bytes) {
    void* p = calloc(n, bytes);
    if (!p) die("no memory for what is known of %zu ranks", n);
    return p;
}

// ---- the beginning

static void read_stragglers(Run* run) {
    char err[ERR_BYTES];
    if (straggle_parse(run->stragglers, &run->n_stragglers, run->config.straggle, run->model.world->size, err,
                       sizeof err))
        die("%s", err);
}

static BalanceSetting make_setting(const Config* c, int ranks) {
    static const char* const modes[] = {"off", "resize", "migrate", "semi"};
    BalanceSetting s = {.ranks = ranks, .start = 1.2, .stop = 1.1, .most_pruned = 0.95, .squared = 1};
    s.mode = (BalanceMode)index_of(c->balance, modes, COUNT(modes));
    s.exchange_rate = c->exchange_rate;
    return s;
}

// What a rank may come to compute: twice its share of an even division, so that memory stays bounded.
static SliceCount most_of_a_rank(const Model* m) {
    int R = m->split.ranks;
    return (SliceCount){MIN(m->whole.NH, 2 * CEIL_DIV(m->whole.NH, R)),
                        MIN(m->whole.units, 2 * CEIL_DIV(m->whole.units, R))};
}

static WorkNeeds make_needs(const Model* m, const Balance* b) {
    SliceCount most = {m->shape.heads, m->shape.units};
    if (b->setting.mode != BALANCE_RESIZE) most = most_of_a_rank(m);
    return (WorkNeeds){MAX(most.heads, 1), MAX(most.units, 1), b->imputation == IMPUTE_SAME};
}

static void check_options(const Run* run, BalanceMode mode) {
    const Model* m = &run->model;
    if (mode != BALANCE_OFF && m->tp && m->zero.stage > 1)
        die("--balance %s in tensor-parallel groups needs whole weights and gradients, expected --zero 1, found %d; "
            "try "
            "--zero 1 or --balance off",
            run->config.balance, m->zero.stage);
}

void balance_open(Run* run) {
    static const char* const sheds[] = {"columns", "slices"};
    static const char* const fills[] = {"zero", "average", "same"};
    const Config* c = &run->config;
    Model* m = &run->model;
    int world = m->world->size;
    if (run->training) read_stragglers(run);
    m->timer = (Timer*)room(1, sizeof *m->timer);
    m->world->timer = m->comm->timer = m->timer;
    if (m->tp) m->tp->timer = m->timer;
    m->timer->on = world > 1;
    Balance* b = run->balance = (Balance*)room(1, sizeof *b);
    b->setting = make_setting(c, tp_size(m));
    b->keeps = !strcmp(c->moves, "keep") && b->setting.mode != BALANCE_RESIZE;
    b->shed = (Shed)index_of(c->shed, sheds, COUNT(sheds));
    b->imputation = (Imputation)index_of(c->fill, fills, COUNT(fills));
    b->reports = (RankReport*)room((size_t)world, sizeof *b->reports);
    b->steps = (RankStep*)room((size_t)world, sizeof *b->steps);
    b->compute_ms = (double*)room((size_t)m->comm->size, sizeof *b->compute_ms);
    b->speeds_memory = room(1, speeds_bytes(m->comm->size));
    speeds_carve(&b->speeds, b->speeds_memory, m->comm->size);
    if (m->tp && run->crowded) b->segments = (float*)room((size_t)tp_size(m) * MOST_SEGMENTS, sizeof *b->segments);
    if (world > 1 && m->world->rank == 0 && !(b->history = history_open(world))) die("no memory for %d ranks", world);
    check_options(run, b->setting.mode);
    if (b->setting.mode != BALANCE_OFF && m->tp && run->training) run->work_needs = make_needs(m, b);
}

void balance_close(Balance* b) {
    if (!b) return;
    kept_close(b->kept);
    history_close(b->history);
    free(b->reports), free(b->steps), free(b->compute_ms), free(b->speeds_memory), free(b->segments);
    free(b);
}

// ms of an exchange of so many bytes with the next rank of the group, the slowest rank's, by the clock that times
// steps.
static double exchange_ms(Run* run, char* memory, size_t bytes) {
    enum { TIMES = 5 };
    char err[ERR_BYTES];
    const Model* m = &run->model;
    Comm* c = m->tp;
    double least = INFINITY, slowest = 0, *all = (double*)room((size_t)m->world->size, sizeof *all);
    Transfer out = {(c->rank + 1) % c->size, memory, bytes},
             in = {(c->rank + c->size - 1) % c->size, memory + bytes, bytes};
    for (int i = 0; i < TIMES; i++) {
        m->k->synchronize(m->s);
        double started = m->k->clock();
        comm_exchange(c, &out, 1, &in, 1, m->s);
        m->k->synchronize(m->s);
        least = MIN(least, 1e3 * (m->k->clock() - started));
    }
    if (m->world->table->all_gather_host(m->world, all, &least, sizeof least, err, sizeof err)) run_lost(run, err);
    for (int r = 0; r < m->world->size; r++) slowest = MAX(slowest, all[r]);
    free(all);
    return slowest;
}

// Weights out and gradients back, once a layer and step each.
static void find_move_cost(Run* run) {
    enum { SMALL = 1 << 10, LARGE = 1 << 20 };
    const Model* m = &run->model;
    Balance* b = run->balance;
    char* memory = (char*)m->k->alloc(2 * LARGE);
    if (!memory) die("no memory to time an exchange of %d bytes", LARGE);
    double small = exchange_ms(run, memory, SMALL), large = MAX(small, exchange_ms(run, memory, LARGE));
    double byte = (large - small) / (LARGE - SMALL), L = m->shape.L;
    double slice = L * (2.0 * m->shape.C + 1) * (double)(dtype_bytes(m->dt) + sizeof(float)) * byte;
    m->k->free_memory(memory);
    b->setting.cost = (MoveCost){.fixed = 2 * L * small, .send = slice, .take = slice};
    if (b->keeps) b->setting.cost = (MoveCost){0, 0, 0};  // paid once
    printf("balance %s; an exchange takes %.3g ms, a slice given away for a step %.3g ms\n", run->config.balance, small,
           b->setting.cost.send);
}

// ---- carrying out a decision

static void counts(SliceCount* own, const Model* m) {
    for (int t = 0; t < tp_size(m); t++)
        own[t] = (SliceCount){m->split.head[t + 1] - m->split.head[t], m->split.unit[t + 1] - m->split.unit[t]};
}

static double slices_of(const Balance* b, SliceCount count) { return count.units + b->head_work * count.heads; }

// Heads and units of this rank that it does not give away.
static SliceCount staying(const Balance* b, SliceCount own, int rank) {
    for (int i = 0; i < b->n_moves; i++)
        if (b->moves[i].from == rank) own.heads -= b->moves[i].heads, own.units -= b->moves[i].units;
    return own;
}

// With lists as they are: of a refresh, or of a checkpoint.
static void set_work(Run* run, const KeptLayer* lists) {
    Model* m = &run->model;
    Balance* b = run->balance;
    WorkPlan plan;
    memset(&plan, 0, sizeof plan);
    plan.shed = b->shed;
    plan.imputation = b->imputation;
    plan.n_moves = b->n_moves;
    memcpy(plan.moves, b->moves, sizeof plan.moves);
    plan.kept = lists;
    plan.active = b->n_moves > 0 || lists != NULL;
    b->acts = plan.active;
    work_set(m, &plan);
}

// Rounded to whole heads and units.
static void make_moves(Run* run) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    SliceCount own[MOST_TP];
    counts(own, m);
    b->n_moves = balance_moves(b->moves, &b->decision, own, tp_size(m), b->head_work, WORK_TILE, 0);
}

static void carry_out(Run* run) {
    Model* m = &run->model;
    Balance* b = run->balance;
    SliceCount own[MOST_TP];
    int t = tp_rank(m);
    counts(own, m);
    make_moves(run);
    double gamma = b->decision.pruned[t];
    const KeptLayer* lists = NULL;
    // Weights are looked at only where something is or was left out: others have no values to keep.
    if (b->kept && (gamma > 0 || kept_layers(b->kept))) {
        zero_settle(m);
        lists = kept_choose(b->kept, m, gamma, staying(b, own[t], t), run->state.step);
    }
    set_work(run, lists);
}

// ---- the decision

static double median(double* x, int n) {
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && x[j - 1] > x[j]; j--) {
            double swapped = x[j];
            x[j] = x[j - 1];
            x[j - 1] = swapped;
        }
    return n ? (x[(n - 1) / 2] + x[n / 2]) / 2 : 0;
}

// A head in MLP units: its four matrices of HS channels against a unit's two vectors, and its attention.
static void find_head_work(Run* run, const RankTimes* times, const SliceCount* own) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    double matrices = 2.0 * shape_head_size(&m->shape), head[MOST_TP], unit[MOST_TP];
    int R = tp_size(m);
    if (b->head_work > 0) return;
    b->head_work = matrices;
    if (b->setting.mode == BALANCE_RESIZE) return;
    for (int t = 0; t < R; t++) {
        head[t] = times[t].attention / own[t].heads;
        unit[t] = times[t].linear / slices_of(b, own[t]);
    }
    double slice = median(unit, R);
    if (slice > 0) b->head_work = matrices + median(head, R) / slice;
}

// Slices that a rank of the group runs now.
static double running(const Balance* b, const SliceCount* own, int t) {
    return slices_of(b, balance_count(b->moves, b->n_moves, own, t));
}

static void read_times(RankTimes* times, Run* run, const SliceCount* own) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    int only_matmuls = b->setting.mode == BALANCE_RESIZE;
    for (int t = 0; t < tp_size(m); t++) {
        double ms[KINDS];
        for (int k = 0; k < KINDS; k++) ms[k] = median(b->samples[t][k], MIN(b->n_samples, SAMPLES));
        times[t] = (RankTimes){.linear = ms[0], .attention = ms[1], .other = ms[2], .pruned = b->reports[t].pruned};
    }
    find_head_work(run, times, own);
    for (int t = 0; t < tp_size(m); t++) {
        times[t].slices = running(b, own, t);
        if (only_matmuls) times[t].other += times[t].attention, times[t].attention = 0;
    }
}

static void say(Run* run) {
    const Balance* b = run->balance;
    const BalanceDecision* d = &b->decision;
    char text[512];
    int n = 0, R = tp_size(&run->model);
    text[0] = 0;
    for (int t = 0; t < R && n < (int)sizeof text - 64; t++) {
        if (d->pruned[t] > 0)
            n += snprintf(text + n, sizeof text - (size_t)n, "; %d leaves out %.0f %%", t, 100 * d->pruned[t]);
        if (d->sent[t] > 0) n += snprintf(text + n, sizeof text - (size_t)n, "; %d gives %.0f slices", t, d->sent[t]);
    }
    if (d->active)
        runlog_say(&run->log, "step %" PRId64 ": balance: %.4g ms a step without, %.4g ms expected%s", run->state.step,
                   d->idle_ms, d->step_ms, text);
    else runlog_say(&run->log, "step %" PRId64 ": balance: all ranks compute what they own", run->state.step);
}

// Heads and units of all ranks as counts say, one rank's after another's.
static TpSplit split_of(const Model* m, const SliceCount* counts) {
    TpSplit split = m->split;
    for (int t = 0; t < split.ranks; t++) {
        split.head[t + 1] = split.head[t] + counts[t].heads;
        split.unit[t + 1] = split.unit[t] + counts[t].units;
    }
    return split;
}

// --moves keep: the model is divided anew where that gains a tenth. Nothing is left out, because moving costs nothing
// afterwards; a rank that has recovered gets its share back.
static void divide_anew(Run* run, const RankSpeed* ranks) {
    const double worth = 1.1;
    Model* m = &run->model;
    Balance* b = run->balance;
    BalanceDecision* d = &b->decision;
    SliceCount own[MOST_TP], next[MOST_TP];
    int R = tp_size(m);
    memset(d, 0, sizeof *d);
    for (int t = 0; t < R; t++) {
        d->v[t] = ranks[t].v;
        d->idle_ms = MAX(d->idle_ms, ranks[t].c + ranks[t].n / ranks[t].v);
    }
    d->step_ms = balance_move(d->sent, d->taken, ranks, R, &b->setting.cost);
    if (!(d->idle_ms > worth * d->step_ms)) return;
    d->active = 1;
    counts(own, m);
    make_moves(run);
    for (int t = 0; t < R; t++) next[t] = balance_count(b->moves, b->n_moves, own, t);
    TpSplit split = split_of(m, next);
    say(run);
    d->active = b->n_moves = 0;
    if (!memcmp(&split, &m->split, sizeof split)) return;
    run_resplit(run, &split);
    work_close(m->work);
    m->work = work_open(m, &run->work_needs, run->work_memory);
}

static void decide(Run* run) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    SliceCount own[MOST_TP];
    RankTimes times[MOST_TP];
    RankSpeed ranks[MOST_TP];
    memset(ranks, 0, sizeof ranks);
    counts(own, m);
    read_times(times, run, own);
    balance_learn(&b->memory, &b->setting, times);
    SliceCount most = most_of_a_rank(m);
    for (int t = 0; t < tp_size(m); t++) {
        ranks[t].n = slices_of(b, own[t]);
        ranks[t].movable = ranks[t].n - WORK_TILE;
        SliceCount spare = {MAX(0, most.heads - own[t].heads), MAX(0, most.units - own[t].units)};
        ranks[t].room = slices_of(b, spare);
    }
    b->n_samples = 0;
    if (b->keeps) {
        for (int t = 0; t < tp_size(m); t++) ranks[t].v = b->memory.v[t], ranks[t].c = b->memory.c[t];
        divide_anew(run, ranks);
        return;
    }
    b->decision = balance_decide(&b->memory, &b->setting, ranks);
    carry_out(run);
}

void balance_change(Run* run) {
    Balance* b = run->balance;
    const Config* c = &run->config;
    int64_t done = run->state.step;
    if (b->setting.mode == BALANCE_OFF || c->refresh == 0) return;
    int is_refresh = done > run->first_step && done % c->refresh == 0;
    if ((is_refresh || b->speeds.urgent) && speeds_refresh(&b->speeds)) {
        run->setting.speeds = speeds_in_use(&b->speeds);
        refine_rescale(&run->refine, b->speeds.common);
    }
    if (!is_refresh || !run->model.tp || b->n_samples == 0) return;
    int was_active = b->decision.active;
    double before = b->decision.step_ms;
    decide(run);
    if (b->decision.active != was_active || (was_active && fabs(before - b->decision.step_ms) > 0.1 * before)) say(run);
}

uint64_t balance_state_hash(const Run* run) {
    const Balance* b = run->balance;
    uint64_t hash = balance_hash(&b->decision, b->setting.ranks);
    return hash_bytes(b->speeds.speeds, (size_t)b->speeds.ranks * sizeof *b->speeds.speeds, hash);
}

// ---- a step

void balance_begin(Run* run) {
    Model* m = &run->model;
    Balance* b = run->balance;
    Slowness slow = straggle_at(run->stragglers, run->n_stragglers, m->world->rank, run->state.step + 1);
    m->again = slow.linear - 1;
    m->timer->drag = slow.whole;
    timer_begin(m->timer, m->k, m->s);
    if (b->acts) zero_settle(m);
    work_begin(m);
}

static double slowest_segments(Run* run) {
    char err[ERR_BYTES];
    const Model* m = &run->model;
    Balance* b = run->balance;
    int n = m->timer->n_segments, R = tp_size(m);
    double sum = 0;
    if (m->tp->table->all_gather_host(m->tp, b->segments, m->timer->segments, (size_t)n * sizeof(float), err,
                                      sizeof err))
        run_lost(run, err);
    for (int i = 0; i < n; i++) {
        float most = 0;
        for (int t = 0; t < R; t++) most = MAX(most, b->segments[(size_t)t * (size_t)n + (size_t)i]);
        sum += (double)most;
    }
    return 1e3 * sum;
}

void balance_measure(Run* run, RankReport* mine) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    double seconds[N_TIMES];
    SliceCount own[MOST_TP];
    memset(mine, 0, sizeof *mine);
    if (!m->timer->on) return;
    timer_read(m->timer, seconds, m->s);
    mine->linear = 1e3 * seconds[TIME_LINEAR], mine->attention = 1e3 * seconds[TIME_ATTENTION];
    mine->other = 1e3 * seconds[TIME_OTHER], mine->update = 1e3 * seconds[TIME_UPDATE];
    mine->wait = 1e3 * seconds[TIME_WAIT];
    if (b->kept && kept_layers(b->kept)) mine->pruned = kept_left_out(b->kept);
    if (m->tp) {
        counts(own, m);
        SliceCount stay = staying(b, own[tp_rank(m)], tp_rank(m));
        double kept_here = slices_of(b, stay);
        mine->sent = slices_of(b, own[tp_rank(m)]) - kept_here;
        mine->slices = running(b, own, tp_rank(m));
        mine->taken = mine->slices - kept_here;
        if (b->segments) mine->emulated = slowest_segments(run);
    }
    if (run->setting.groups) speeds_expect(&b->speeds, &run->batch.plan, run->batch.lengths, &run->setting);
}

static double computing(const RankReport* r) { return r->linear + r->attention + r->other; }

// Adds the step to the samples, group by group scaled to the mean of all groups.
static void sample(Run* run) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    int R = tp_size(m), groups = m->world->size / R, at = b->n_samples % SAMPLES;
    double total = 0, middle[MOST_TP];
    for (int q = 0; q < groups; q++) {
        for (int t = 0; t < R; t++) middle[t] = computing(&b->reports[q * R + t]);
        b->compute_ms[q] = median(middle, R);
        total += b->compute_ms[q] / groups;
    }
    for (int t = 0; t < R; t++) {
        double most = -1;
        for (int q = 0; q < groups; q++) {
            const RankReport* r = &b->reports[q * R + t];
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

// What planners call a rank is a group: it goes at the pace of its slowest rank, or as its segments say.
static void learn_speeds(Run* run) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    int R = tp_size(m);
    for (int q = 0; q < m->comm->size; q++) {
        double most = 0;
        for (int t = 0; t < R; t++) most = MAX(most, computing(&b->reports[q * R + t]));
        b->compute_ms[q] = most;
    }
    if (run->setting.groups) speeds_measured(&b->speeds, b->compute_ms);
}

void balance_hear(Run* run, StepRecord* record) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    int world = m->world->size, is_first = run->state.step == run->first_step;
    double emulated = 0;
    if (!m->timer->on) return;
    for (int r = 0; r < world; r++) b->reports[r] = run->agreed[r].report;
    if (!is_first) sample(run), learn_speeds(run);  // the first step also pays for what is touched first
    for (int r = 0; r < world; r++) {
        const RankReport* x = &b->reports[r];
        double pace = m->tp ? b->memory.v[r % tp_size(m)] : b->speeds.speeds[r];
        b->steps[r] = (RankStep){
            (float)(computing(x) + x->update), (float)x->wait, (float)x->pruned, (float)x->sent, (float)x->taken,
            pace > 0 ? (float)pace : NAN};
        emulated = MAX(emulated, x->emulated);
    }
    record->ranks = b->steps;
    record->n_ranks = world;
    record->emulated_ms = emulated > 0 ? emulated : NAN;
    if (b->history) history_add(b->history, run->state.step + 1, b->steps);
}

// ---- files

static int lists_path(char* path, const Run* run, const char* dir, char* err, size_t errlen) {
    const Comm* c = run->model.world;
    int n = snprintf(path, CHECKPOINT_PATH, "%s/kept-%05d-of-%05d.safetensors", dir, c->rank, c->size);
    return n < CHECKPOINT_PATH ? 0 : fail(err, errlen, "%.60s...: path too long", dir);
}

int balance_save(Run* run, const char* dir, char* err, size_t errlen) {
    char path[CHECKPOINT_PATH];
    const Balance* b = run->balance;
    const BalanceDecision* d = &b->decision;
    RunState* s = &run->state;
    s->balanced = d->active ? b->setting.ranks : 0;
    memcpy(s->pruned, d->pruned, sizeof s->pruned);
    memcpy(s->sent, d->sent, sizeof s->sent);
    memcpy(s->taken, d->taken, sizeof s->taken);
    memcpy(s->v, d->v, sizeof s->v);
    for (int t = 0; t < s->balanced; t++) s->head_work[t] = b->head_work;
    if (!b->kept || !kept_layers(b->kept)) return 0;
    return lists_path(path, run, dir, err, errlen) ? -1 : kept_save(b->kept, path, err, errlen);
}

// The decision that was in force when the checkpoint was saved, where groups are as they were.
static void take_up(Run* run) {
    char path[CHECKPOINT_PATH], err[ERR_BYTES];
    Balance* b = run->balance;
    const RunState* s = &run->state;
    BalanceDecision* d = &b->decision;
    int t = tp_rank(&run->model);
    if (!s->balanced) return;
    if (s->balanced != b->setting.ranks) {
        printf("balance anew: the saved decision is for groups of %d ranks, found %d\n", s->balanced, b->setting.ranks);
        return;
    }
    d->active = 1;
    memcpy(d->pruned, s->pruned, sizeof s->pruned);
    memcpy(d->sent, s->sent, sizeof s->sent);
    memcpy(d->taken, s->taken, sizeof s->taken);
    memcpy(d->v, s->v, sizeof s->v);
    b->head_work = s->head_work[0];
    make_moves(run);
    if (b->kept && d->pruned[t] > 0) {
        zero_settle(&run->model);
        if (lists_path(path, run, run->start_from, err, sizeof err) || kept_load(b->kept, path, err, sizeof err))
            die("--resume: %s", err);
    }
    set_work(run, b->kept ? kept_layers(b->kept) : NULL);
}

void balance_ready(Run* run) {
    static const char* const priorities[] = {"change", "random", "inverse"};
    const Config* c = &run->config;
    Model* m = &run->model;
    Balance* b = run->balance;
    if (!m->work) return;
    if (b->setting.mode != BALANCE_RESIZE) find_move_cost(run);
    if (b->setting.mode != BALANCE_MIGRATE && !b->keeps)
        b->kept = kept_open(m, b->shed, (Priority)index_of(c->priority, priorities, COUNT(priorities)),
                            !strcmp(c->ratios, "layers"), (uint64_t)c->seed);
    if (c->resume) take_up(run);
}

void balance_write_page(Run* run) {
    char path[CHECKPOINT_PATH + 16], err[ERR_BYTES];
    const Balance* b = run->balance;
    if (!b->history) return;
    snprintf(path, sizeof path, "%s/ranks.html", run->out);
    if (history_write(b->history, path, run->out, err, sizeof err)) fprintf(stderr, "train: %s\n", err);
    else printf("what every rank did: %s\n", path);
}
