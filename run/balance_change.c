// balance_change.c - at a refresh all ranks come to the same decision from the same numbers, and each carries out its
// part: moves of slices, lists of what is left out, another division of the model, speeds for plans.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "run/balance_parts.h"
#include "run/reshard.h"

// ---- key/value heads and hidden units, counted

void balance_owned(SliceCount* own, const Model* m) {
    for (int t = 0; t < tp_size(m); t++) {
        Shape shape = split_shape(&m->whole, &m->split, t);
        own[t] = (SliceCount){shape.kv_heads, shape.hidden};
    }
}

double balance_slices(const Balance* b, SliceCount count) { return count.hidden + b->head_work * count.heads; }

SliceCount balance_staying(const Balance* b, SliceCount own, int rank) {
    for (int i = 0; i < b->plan.n_moves; i++)
        if (b->plan.moves[i].from == rank) own.heads -= b->plan.moves[i].heads, own.hidden -= b->plan.moves[i].hidden;
    return own;
}

double balance_running(const Balance* b, const SliceCount* own, int t) {
    return balance_slices(b, balance_count(b->plan.moves, b->plan.n_moves, own, t));
}

SliceCount balance_most(const Model* m) {
    int R = m->split.ranks, kv = m->whole.NKV,
        most = split_shares_kv(&m->whole, &m->split) ? 1 : 2 * CEIL_DIV(kv, R) + 1;
    return (SliceCount){MIN(kv, most), MIN(m->whole.hidden, 2 * CEIL_DIV(m->whole.hidden, R) + 2 * WORK_TILE)};
}

// ---- what balancing needs to know of this machine, measured once, before the first step

// ms of sending so many bytes to the next rank of the group and receiving as many from the one before: the slowest
// rank's, by the clock that times steps.
static double communication_ms(Run* run, char* memory, size_t bytes) {
    enum { TIMES = 5 };
    const Model* m = &run->model;
    Comm* c = m->tp;
    double least = INFINITY;
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

// Weights out and gradients back, once a layer and step each.
void balance_find_move_cost(Run* run) {
    enum { SMALL = 1 << 10, LARGE = 1 << 20 };
    const Model* m = &run->model;
    Balance* b = run->balance;
    char* memory = (char*)m->k->alloc(2 * LARGE);
    if (!memory) die("no memory to time a message of %d bytes", LARGE);
    double small = communication_ms(run, memory, SMALL), large = fmax(small, communication_ms(run, memory, LARGE));
    double byte = (large - small) / (LARGE - SMALL), L = m->shape.L;
    double slice = L * (double)unit_elems(&m->shape, MLP) * (double)(dtype_bytes(m->dt) + sizeof(float)) * byte;
    m->k->free_memory(memory);
    b->setting.cost = (MoveCost){.fixed = 2 * L * small, .send = slice, .take = slice};
    if (b->keeps) b->setting.cost = (MoveCost){0, 0, 0};  // paid once
    printf("balance %s; a message takes %.3g ms, a slice given away for a step %.3g ms\n", run->config.balance, small,
           b->setting.cost.send);
}

// ---- what resizing saves

// Milliseconds of the first block's linears, forward and backward, over N tokens with the lists of the plan: of the
// matmuls, and of what comes with them.
typedef struct LinearTime {
    double matmuls, rest;
} LinearTime;

static void time_linears(LinearTime* least, Run* run, const WorkPlan* plan, int N) {
    Model* m = &run->model;
    const Activation* a = m->act_table;
    double seconds[N_TIMES];
    char *column = m->acts + a[D_COLUMN].offset, *norm = m->acts + a[D_NORM].offset, *fc = m->acts + a[FC].offset,
         *activated = m->acts + a[FC_ACT].offset, *att = m->acts + a[ATT].offset, *ln = m->acts + a[LN1].offset;
    int fused = shape_act(&m->shape) == ACT_GELU;
    work_set(m, plan);
    work_begin(m);
    timer_begin(m->timer, m->k, m->s);
    linear_forward(m, LINEAR_QKV, 0, column, NULL, ln, N);
    linear_forward(m, LINEAR_ATTPROJ, 0, norm, NULL, att, N);
    linear_forward(m, LINEAR_FC, 0, fc, fused ? activated : NULL, ln, N);
    linear_forward(m, LINEAR_FCPROJ, 0, norm, NULL, activated, N);
    linear_backward(m, LINEAR_FCPROJ, 0, column, norm, activated, fused ? fc : NULL, N);
    linear_backward(m, LINEAR_FC, 0, norm, column, ln, NULL, N);
    linear_backward(m, LINEAR_ATTPROJ, 0, column, norm, att, NULL, N);
    linear_backward(m, LINEAR_QKV, 0, norm, column, ln, NULL, N);
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
void balance_find_fixed(Run* run) {
    enum { TIMES = 12 };
    Model* m = &run->model;
    Balance* b = run->balance;
    int N = MIN(run->config.capacity, run->config.batch_tokens);
    SliceCount own = {m->shape.kv_heads, m->shape.hidden};
    WorkPlan whole = {0}, resized = {.shed = b->plan.shed, .imputation = b->plan.imputation};
    LinearTime all = {INFINITY, INFINITY}, some = all;
    double fixed = 0, gathering = 0;
    resized.kept = pruner_choose(b->pruner, m, 0.75, own, 0);
    resized.active = resized.kept != NULL;
    double g = resized.active ? pruner_left_out(b->pruner) : 0;
    for (int i = 0; i < TIMES && g > 0; i++) {
        time_linears(&all, run, &whole, N);
        time_linears(&some, run, &resized, N);
    }
    if (g > 0 && all.matmuls > 0) fixed = (some.matmuls / all.matmuls - (1 - g)) / g, gathering = some.rest - all.rest;
    work_set(m, &whole);
    pruner_choose(b->pruner, m, 0, own, 0);
    zero_clear_grads(m);
    b->fixed = fmax(0, fmin(0.9, middle(run, fixed)));
    double groups = m->world->size / tp_size(m), tokens = run->config.batch_tokens / groups;  // of a step
    b->gathering = fmax(0, middle(run, gathering) * m->shape.L * tokens / N);
}

// ---- carrying out a decision

// With lists as they are: of a refresh, or of a checkpoint.
void balance_set_work(Run* run, const PrunedLayer* lists) {
    WorkPlan* plan = &run->balance->plan;
    plan->kept = lists;
    plan->active = plan->n_moves > 0 || lists != NULL;
    work_set(&run->model, plan);
    plan->kept = NULL;
}

// Whether helpers have memory for these moves: not of any decision in a file.
static int moves_fit(const Model* m, const Balance* b, const SliceCount* own) {
    SliceCount most = balance_most(m);
    for (int t = 0; t < tp_size(m); t++) {
        SliceCount count = balance_count(b->plan.moves, b->plan.n_moves, own, t);
        if (count.heads > MAX(most.heads, own[t].heads) || count.hidden > MAX(most.hidden, own[t].hidden)) return 0;
    }
    return 1;
}

void balance_make_moves(Run* run) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    SliceCount own[MOST_TP];
    balance_owned(own, m);
    b->plan.n_moves = 0;
    if (b->decision.active)
        b->plan.n_moves = balance_moves(b->plan.moves, own, b->decision.tiles, tp_size(m), WORK_TILE);
    if (!moves_fit(m, b, own)) b->plan.n_moves = 0;
}

static void carry_out(Run* run) {
    Model* m = &run->model;
    Balance* b = run->balance;
    SliceCount own[MOST_TP];
    int t = tp_rank(m);
    balance_owned(own, m);
    balance_make_moves(run);
    // The decision is in time; this is the work that must be left out for it.
    double gamma = MIN(b->setting.most_pruned, b->decision.pruned[t] / (1 - b->fixed));
    const PrunedLayer* lists = NULL;
    // Weights are read only where something is or was left out: elsewhere no list will be chosen.
    if (b->pruner && (gamma > 0 || pruner_layers(b->pruner))) {
        zero_settle(m);
        lists = pruner_choose(b->pruner, m, gamma, balance_staying(b, own[t], t), run->state.step);
    }
    balance_set_work(run, lists);
}

// ---- the decision

// A key/value head with its query heads in hidden units: its part of the matrices against a hidden unit's.
static double head_matrices(const Model* m) {
    Shape s = split_shape(&m->whole, &m->split, 0);  // ranks that share key/value heads have unlike numbers of queries
    return (double)(runs_sum(unit_rows(&s, ATTENTION, 1)) + unit_columns(&s, ATTENTION)) /
           (runs_sum(unit_rows(&s, MLP, 1)) + unit_columns(&s, MLP));
}

// With its attention; known from the first decision on.
static void find_head_work(Balance* b, const RankTimes* times, const SliceCount* own, double matrices, int R) {
    double head[MOST_TP], slice_ms[MOST_TP];
    if (b->head_work > 0) return;
    b->head_work = matrices;
    if (b->setting.mode == BALANCE_RESIZE) return;
    for (int t = 0; t < R; t++) {
        head[t] = times[t].attention / own[t].heads;
        slice_ms[t] = times[t].linear / balance_slices(b, own[t]);
    }
    double slice = run_median(slice_ms, R);
    if (slice > 0) b->head_work = matrices + run_median(head, R) / slice;
}

// As if every rank had computed what it owns: matmuls and attention are scaled apart, because a rank may give more of
// the one than of the other. What a head's attention takes is remembered where a rank has given all heads.
static void scale_to_owned(RankTimes* t, double* head_ms, SliceCount own, SliceCount ran, double matrices) {
    if (ran.heads > 0) *head_ms = t->attention / ran.heads;
    t->linear *= (own.hidden + own.heads * matrices) / (ran.hidden + ran.heads * matrices);
    t->attention = *head_ms * own.heads;
}

static void read_times(RankTimes* times, Run* run, const SliceCount* own) {
    const Model* m = &run->model;
    Balance* b = run->balance;
    double matrices = head_matrices(m);
    for (int t = 0; t < tp_size(m); t++) {
        double ms[KINDS];
        for (int k = 0; k < KINDS; k++) ms[k] = run_median(b->samples[t][k], MIN(b->n_samples, SAMPLES));
        times[t] = (RankTimes){.linear = ms[0],
                               .attention = ms[1],
                               .other = ms[2],
                               .pruned = (1 - b->fixed) * run->agreed[t].report.pruned};
        if (times[t].pruned > 0) times[t].other = MAX(0, times[t].other - b->gathering);
        SliceCount ran = balance_count(b->plan.moves, b->plan.n_moves, own, t);
        scale_to_owned(&times[t], &b->head_ms[t], own[t], ran, matrices);
    }
    find_head_work(b, times, own, matrices, tp_size(m));
    for (int t = 0; t < tp_size(m); t++) {
        times[t].slices = balance_slices(b, own[t]);
        if (b->setting.mode == BALANCE_RESIZE) times[t].other += times[t].attention, times[t].attention = 0;
    }
}

// What ranks own and may take, in units; and of that what decisions in fractions need to know.
static UnitGroup describe_units(RankSpeed* ranks, const Run* run) {
    const Model* m = &run->model;
    const Balance* b = run->balance;
    int heads_stay = split_shares_kv(&m->whole, &m->split);
    SliceCount most = balance_most(m);
    UnitGroup units = {.ranks = tp_size(m), .tile = WORK_TILE, .head_work = b->head_work, .matrices = head_matrices(m)};
    units.keep_heads = heads_stay;
    balance_owned(units.own, m);
    for (int t = 0; t < units.ranks; t++) {
        SliceCount own = units.own[t], spare = {MAX(0, most.heads - own.heads), MAX(0, most.hidden - own.hidden)};
        units.most[t] = (SliceCount){own.heads + (heads_stay ? 0 : spare.heads), own.hidden + spare.hidden};
        ranks[t].n = balance_slices(b, own);
        ranks[t].movable = MAX(0, (heads_stay ? own.hidden : ranks[t].n) - WORK_TILE);
        ranks[t].room = balance_slices(b, spare);
    }
    return units;
}

static void say_decision(Run* run) {
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

// Heads and hidden units of all ranks as counts say, one rank's after another's.
static TpSplit split_of(const Model* m, const SliceCount* counts) {
    TpSplit split = m->split;
    int queries = m->whole.NH / m->whole.NKV, heads_stay = split_shares_kv(&m->whole, &split);
    for (int t = 0; t < split.ranks; t++) {
        if (!heads_stay) split.head[t + 1] = split.head[t] + counts[t].heads * queries;
        split.hidden[t + 1] = split.hidden[t] + counts[t].hidden;
    }
    return split;
}

static void log_division(Run* run, const TpSplit* split) {
    char words[512] = "divided anew: hidden units of a group's ranks";
    for (int t = 0; t < split->ranks; t++) {
        size_t n = strlen(words);
        snprintf(words + n, sizeof words - n, "%s %d", t ? "," : "", split->hidden[t + 1] - split->hidden[t]);
    }
    run_log_event(run, "layout", "words", words);
}

// --moves keep: the model is divided anew where that gains a tenth. Nothing is left out, because moving costs nothing
// afterwards; a rank that has recovered gets its share back.
static void divide_anew(Run* run, RankSpeed* ranks, const UnitGroup* units) {
    const double worth = 1.1;
    Model* m = &run->model;
    Balance* b = run->balance;
    BalanceDecision* d = &b->decision;
    SliceCount next[MOST_TP];
    int R = tp_size(m);
    memset(d, 0, sizeof *d);
    for (int t = 0; t < R; t++) {
        ranks[t].v = d->v[t] = b->memory.v[t];
        ranks[t].c = b->memory.c[t];
        ranks[t].prunable = b->memory.prunable[t];
    }
    d->idle_ms = balance_step_ms(units->own, d->pruned, ranks, units, &b->setting.cost);
    balance_move(d->sent, d->taken, ranks, R, &b->setting.cost);
    balance_divide(d, ranks, units, &b->setting.cost);
    if (!(d->idle_ms > worth * d->step_ms)) return;
    d->active = 1;
    balance_make_moves(run);
    for (int t = 0; t < R; t++) next[t] = balance_count(b->plan.moves, b->plan.n_moves, units->own, t);
    TpSplit split = split_of(m, next);
    say_decision(run);
    d->active = b->plan.n_moves = 0;
    if (!memcmp(&split, &m->split, sizeof split)) return;
    run_reshard(run, &split);
    log_division(run, &split);
    work_close(m->work);
    m->work = work_open(m, &run->work_needs, run->work_memory);
}

static void decide(Run* run) {
    Balance* b = run->balance;
    SliceCount own[MOST_TP];
    RankTimes times[MOST_TP];
    RankSpeed ranks[MOST_TP] = {{0}};
    balance_owned(own, &run->model);
    read_times(times, run, own);
    balance_learn(&b->memory, &b->setting, times);
    UnitGroup units = describe_units(ranks, run);
    b->n_samples = 0;
    if (b->keeps) {
        divide_anew(run, ranks, &units);
        return;
    }
    b->decision = balance_decide(&b->memory, &b->setting, ranks, &units);
    carry_out(run);
}

void balance_change(Run* run) {
    Balance* b = run->balance;
    const Config* c = &run->config;
    int64_t done = run->state.step;
    if (b->setting.mode == BALANCE_OFF || c->refresh == 0) return;
    int is_refresh = done > run->first_step && done % c->refresh == 0;
    if ((is_refresh || b->speeds.urgent) && speeds_refresh(&b->speeds)) run->setting.speeds = speeds_in_use(&b->speeds);
    if (!is_refresh || !run->model.tp || b->n_samples == 0) return;
    int was_active = b->decision.active;
    double before = b->decision.step_ms;
    decide(run);
    if (b->decision.active != was_active || (was_active && fabs(before - b->decision.step_ms) > 0.1 * before))
        say_decision(run);
}

uint64_t balance_state_hash(const Run* run) {
    const Balance* b = run->balance;
    uint64_t hash = balance_hash(&b->decision, b->setting.ranks);
    return hash_bytes(b->speeds.speeds, (size_t)b->speeds.ranks * sizeof *b->speeds.speeds, hash);
}
