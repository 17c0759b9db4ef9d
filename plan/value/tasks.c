// tasks.c - see tasks.h.
#include "plan/value/tasks.h"

#include <math.h>

// How far a stage has come: rounds whose task of a kind has been given a time. `done` has when each ended.
typedef struct Progress {
    int forward, backward, sent[2], received[2];
    double free;                         // when it has computed all so far
    double *forward_end, *backward_end;  // (rounds)
    double *came, *gradient_came;        // (rounds) when what a pass needs is there
} Progress;

typedef struct Play {
    const Pipeline* p;
    Schedule* schedule;
    Progress* at;     // (stages)
    double* link[2];  // (stages) when the link between a stage and the next is free, by direction
} Play;

// A task that could run now.
typedef struct Candidate {
    TaskKind kind;  // TASK_SEND for a message
    int backward, stage, round;
    double start, ms;
} Candidate;

static double message_ms(const Pipeline* p, int round) { return p->message ? p->message[round] : 0; }
static int slot_of(const Pipeline* p, int s, int round) { return round % p->slots[s]; }

// When the slot of a round is free at stage s: the round that had it before is through, and its gradient on its way, or
// without backward passes its stream. Infinite: not known yet.
static double slot_free(const Play* x, int s, int round) {
    int before = round - x->p->slots[s];
    const Progress* at = &x->at[s];
    if (before < 0) return 0;
    if (!x->p->training && s < x->p->stages - 1)
        return before < at->sent[0] ? x->at[s + 1].came[before] - message_ms(x->p, before) : INFINITY;
    if (!x->p->training) return before < at->forward ? at->forward_end[before] : INFINITY;
    if (s > 0) return before < at->sent[1] ? x->at[s - 1].gradient_came[before] - message_ms(x->p, before) : INFINITY;
    return before < at->backward ? at->backward_end[before] : INFINITY;
}

static Candidate next_forward(const Play* x, int s) {
    const Progress* at = &x->at[s];
    Candidate c = {TASK_FORWARD, 0, s, at->forward, INFINITY, 0};
    if (c.round == x->p->rounds || (s > 0 && at->received[0] <= c.round)) return c;
    c.start = MAX(at->free, s > 0 ? at->came[c.round] : slot_free(x, s, c.round));
    c.ms = x->p->forward[s * x->p->rounds + c.round];
    return c;
}

static Candidate next_backward(const Play* x, int s) {
    const Progress* at = &x->at[s];
    Candidate c = {TASK_BACKWARD, 1, s, at->backward, INFINITY, 0};
    int is_last = s == x->p->stages - 1;
    if (!x->p->training || c.round == at->forward || (!is_last && at->received[1] <= c.round)) return c;
    c.start = MAX(at->free, is_last ? at->forward_end[c.round] : at->gradient_came[c.round]);
    c.ms = x->p->backward[s * x->p->rounds + c.round];
    return c;
}

// Of stage s to the one behind it, or of that one to s.
static Candidate next_message(const Play* x, int s, int backward) {
    const Progress *here = &x->at[s], *next = &x->at[s + 1];
    Candidate c = {TASK_SEND, backward, s, backward ? next->sent[1] : here->sent[0], INFINITY, 0};
    if (c.round == (backward ? next->backward : here->forward)) return c;
    c.ms = message_ms(x->p, c.round);
    double there = backward ? next->backward_end[c.round] : here->forward_end[c.round];
    c.start = MAX(MAX(there, x->link[backward][s]), backward ? 0 : slot_free(x, s + 1, c.round));
    return c;
}

// Messages before backward before forward, then the earlier stage: the order of the calls in `first`. A message that
// stood behind a pass would only leave when that has ended.
static void take_earlier(Candidate* best, Candidate c) {
    if (c.start < best->start) *best = c;
}

static Candidate first(const Play* x) {
    Candidate best = {.start = INFINITY};
    for (int s = 0; s < x->p->stages - 1; s++)
        for (int backward = 1; backward >= 0; backward--) take_earlier(&best, next_message(x, s, backward));
    for (int s = 0; s < x->p->stages; s++) take_earlier(&best, next_backward(x, s));
    for (int s = 0; s < x->p->stages; s++) take_earlier(&best, next_forward(x, s));
    return best;
}

static void add_task(Play* x, int s, TaskKind kind, const Candidate* c) {
    TaskList* list = &x->schedule->stages[s];
    list->tasks[list->n++] =
        (Task){kind, c->backward, c->round, slot_of(x->p, s, c->round), c->start, c->start + c->ms};
}

static void run_pass(Play* x, const Candidate* c) {
    Progress* at = &x->at[c->stage];
    TaskList* list = &x->schedule->stages[c->stage];
    add_task(x, c->stage, c->kind, c);
    at->free = c->start + c->ms;
    list->busy += c->ms;
    if (c->kind == TASK_FORWARD) at->forward_end[at->forward++] = at->free;
    else at->backward_end[at->backward++] = at->free;
    list->most_in_flight = MAX(list->most_in_flight, x->p->training ? at->forward - at->backward : 1);
}

static void run_message(Play* x, const Candidate* c) {
    int from = c->stage + c->backward, to = c->stage + 1 - c->backward;
    add_task(x, from, TASK_SEND, c);
    add_task(x, to, TASK_RECEIVE, c);
    x->link[c->backward][c->stage] = c->start + c->ms;
    x->at[from].sent[c->backward]++;
    x->at[to].received[c->backward]++;
    (c->backward ? x->at[to].gradient_came : x->at[to].came)[c->round] = c->start + c->ms;
}

static void take_play(Play* x, Arena* arena) {
    int P = x->p->stages, v = x->p->rounds;
    x->schedule->stages = TAKE(arena, TaskList, P);
    x->at = TAKE(arena, Progress, P);
    for (int d = 0; d < 2; d++) x->link[d] = TAKE(arena, double, P);
    for (int s = 0; s < P && x->schedule->stages && x->at; s++) {
        x->schedule->stages[s] = (TaskList){.tasks = TAKE(arena, Task, 6 * (size_t)v + 1)};
        x->at[s] = (Progress){.forward_end = TAKE(arena, double, v),
                              .backward_end = TAKE(arena, double, v),
                              .came = TAKE(arena, double, v),
                              .gradient_came = TAKE(arena, double, v)};
    }
}

int schedule_tasks(Schedule* schedule, const Pipeline* pipeline, Arena* arena, Err err) {
    Play x = {.p = pipeline, .schedule = schedule};
    schedule->makespan = 0;
    take_play(&x, arena);
    if (arena_check(arena, err)) return -1;
    for (int s = 0; s < pipeline->stages; s++) x.link[0][s] = x.link[1][s] = 0;
    for (Candidate c; c = first(&x), c.start < INFINITY;) {
        if (c.kind == TASK_SEND) run_message(&x, &c);
        else run_pass(&x, &c);
        schedule->makespan = MAX(schedule->makespan, c.start + c.ms);
    }
    return 0;
}

double schedule_bubble(const Schedule* schedule, int stages) {
    double busy = 0;
    for (int s = 0; s < stages; s++) busy += schedule->stages[s].busy;
    return schedule->makespan > 0 ? 1 - busy / (stages * schedule->makespan) : 0;
}
