// saved.c - what a checkpoint keeps of balancing: decisions in force and what was measured so far, so that a run goes
// on as if it had not been left. See parts.h.
#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "data/model_files.h"
#include "run/model/model_ranks.h"
#include "run/slow/parts.h"

// ---- what was measured: paces of ranks, and what groups have measured since the last refresh, with what they
// remember of those before.

// Goes over all numbers in one order: puts them into the state, or takes them from there.
typedef struct Walk {
    RunState* state;  // NULL: only counts
    int n, puts;
} Walk;

static void number(Walk* w, double* x) {
    if (w->state && w->puts) w->state->measures[w->n] = isfinite(*x) ? *x : 0;
    else if (w->state) *x = w->state->measures[w->n];
    w->n++;
}

static void numbers(Walk* w, double* x, int n) {
    for (int i = 0; i < n; i++) number(w, &x[i]);
}

// From `least` on.
static void whole(Walk* w, int* x, int least, int most) {
    double above = *x - least;
    number(w, &above);
    *x = least + (int)MIN(above, (double)most - least);
}

static void walk_speeds(Walk* w, Speeds* x) {
    whole(w, &x->steps, 0, INT_MAX), whole(w, &x->held, 0, 1), whole(w, &x->in_flight, 0, INT_MAX);
    whole(w, &x->urgent, 0, 1), number(w, &x->common), numbers(w, x->speeds, x->ranks);
    for (RankPace* r = x->paces; r < x->paces + x->ranks; r++) {
        whole(w, &r->n, 0, SPEED_MEMORY), numbers(w, r->recent, SPEED_MEMORY), number(w, &r->slowness);
        whole(w, &r->jump, -1, 1), whole(w, &r->told, 0, 1), whole(w, &r->idle, 0, INT_MAX);
        whole(w, &r->wait, 0, INT_MAX), whole(w, &r->on_trial, 0, 1), whole(w, &r->behind, 0, SPEED_MEMORY);
        whole(w, &r->as_planned, 0, 1);
    }
}

static void walk_decision(Walk* w, BalanceDecision* d, int ranks) {
    whole(w, &d->active, 0, 1), number(w, &d->step_ms), number(w, &d->idle_ms);
    for (int t = 0; t < ranks; t++) {
        number(w, &d->pruned[t]), number(w, &d->sent[t]), number(w, &d->taken[t]), number(w, &d->v[t]);
        whole(w, &d->counts[t].heads, 0, INT_MAX), whole(w, &d->counts[t].hidden, 0, INT_MAX);
        whole(w, &d->tiles[t].heads, 0, INT_MAX), whole(w, &d->tiles[t].hidden, 0, INT_MAX);
    }
}

// Finds what resizing saves: the saved number counts, so that as much is left out as before, where there is one.
static void known(Walk* w, double* x) {
    double saved = *x;
    number(w, &saved);
    if (saved > 0) *x = saved;
}

static void walk_group(Walk* w, StageBalance* x, int ranks) {
    BalanceMemory* memory = &x->memory;
    number(w, &x->units.head_work), whole(w, &memory->steps, 0, INT_MAX), whole(w, &memory->active, 0, 1);
    for (int t = 0; t < ranks; t++) {
        for (int k = 0; k < KINDS; k++) numbers(w, x->samples[t][k], SAMPLES);
        number(w, &x->head_ms[t]), number(w, &memory->v[t]), number(w, &memory->c[t]), number(w, &memory->prunable[t]);
    }
    walk_decision(w, &memory->last, ranks);
}

// Begins with what it is of: 0 where that is other than here.
static int walk_all(Walk* w, Balance* b, int group) {
    int of[] = {b->stages, b->own->speeds.ranks, group};
    for (int i = 0; i < COUNT(of); i++) {
        int here = of[i];
        whole(w, &of[i], 0, INT_MAX);
        if (of[i] != here) return 0;
    }
    whole(w, &b->n_samples, 0, INT_MAX);
    if (b->pruner) known(w, &b->fixed);
    for (StageBalance* x = b->stage; x < b->stage + b->stages; x++) {
        walk_speeds(w, &x->speeds);
        if (group) walk_group(w, x, group);
        if (b->pruner) known(w, &x->gathering);
    }
    return 1;
}

static int group_of(const Run* run) { return run->model.ranks->work && !run->strategies ? tp_size(&run->model) : 0; }

// 0: none, or too many for a state.
static int count_numbers(const Run* run) {
    Walk w = {0};
    if (run->balance->setting.mode != BALANCE_OFF) walk_all(&w, run->balance, group_of(run));
    return w.n <= MOST_MEASURES ? w.n : 0;
}

static void save_measures(Run* run) {
    Walk w = {&run->books->saved, 0, 1};
    if ((w.state->measured = count_numbers(run))) walk_all(&w, run->balance, group_of(run));
}

void balance_take_measures(Run* run) {
    Balance* b = run->balance;
    Walk w = {&run->books->saved, 0, 0};
    if (w.state->measured == 0 || w.state->measured != count_numbers(run)) return;
    b->goes_on = walk_all(&w, b, group_of(run));
    if (b->goes_on) balance_set_paces(run);
}

// ---- decisions

// Ranks of all stages' groups, one behind another; those of more than a state holds are not saved.
void balance_save(Run* run) {
    const Balance* b = run->balance;
    RunState* saved = &run->books->saved;
    int R = tp_size(&run->model), ranks = b->stages * R, active = 0;
    for (int s = 0; s < b->stages; s++) active |= b->stage[s].decision.active;
    int holds = run->model.ranks->work && !run->strategies && ranks <= MOST_BALANCED;
    saved->balanced = holds && active ? ranks : 0;
    for (int i = 0; i < ranks && holds; i++) {
        const StageBalance* x = &b->stage[i / R];
        const BalanceDecision* d = &x->decision;
        int t = i % R;
        SliceCount own = x->units.own[t], has = d->tiles[t];
        if (!d->active) has = (SliceCount){own.heads, CEIL_DIV(own.hidden, x->units.tile)};
        saved->pruned[i] = d->pruned[t], saved->v[i] = d->v[t];
        saved->heads[i] = has.heads, saved->tiles[i] = has.hidden;
        saved->head_work[i] = x->units.head_work;
    }
    save_measures(run);
}

void balance_take_up(Run* run) {
    Balance* b = run->balance;
    const RunState* s = &run->books->saved;
    int R = tp_size(&run->model);
    if (!s->balanced) return;
    for (int i = 0; i < s->balanced; i++) {
        BalanceDecision* d = &b->stage[i / R].decision;
        d->active = 1;
        d->pruned[i % R] = s->pruned[i], d->v[i % R] = s->v[i];
        d->tiles[i % R] = (SliceCount){(int)s->heads[i], (int)s->tiles[i]};
        b->stage[i / R].units.head_work = s->head_work[i];
    }
    balance_carry_out(run);
}
