// tasks.c - see tasks.h.
#include "plan/value/tasks.h"

#include <math.h>

int pipeline_take(Pipeline* p, int stages, int rounds, int training, Arena* arena, Err err) {
    size_t n = (size_t)stages * (size_t)rounds;
    double* ms = TAKE(arena, double, 2 * n + (size_t)rounds + 1);
    *p = (Pipeline){stages, rounds, training, TAKE(arena, int, stages), ms, ms + n, ms + 2 * n};
    if (arena_check(arena, err)) return -1;
    memset(ms, 0, sizeof *ms * (2 * n + (size_t)rounds));
    for (int s = 0; s < stages; s++) p->slots[s] = pipeline_slots(stages, s);
    return 0;
}

void pipeline_set(Pipeline* p, int s, int round, double ms, double again) {
    double forward = p->forward[s * p->rounds + round] = ms / (3 + again);
    p->backward[s * p->rounds + round] = (2 + again) * forward;
}

// One job of each kind a round: a pass at every stage, a message at every border between a stage and the next.
typedef enum Job { FORWARD, BACKWARD, STREAM, GRADIENT, N_JOBS } Job;

typedef struct Play {
    const Pipeline* p;
    Schedule* schedule;
    double* end[N_JOBS];   // (stages, rounds) infinite: not known yet
    int* next[N_JOBS];     // (stages) the round whose turn it is
    double* free[N_JOBS];  // (stages) when its resource is free: the stage for both passes, or the border
} Play;

// A job that could run now.
typedef struct Candidate {
    Job job;
    int stage, round;
    double start;
} Candidate;

static double message_ms(const Pipeline* p, int round) { return p->message ? p->message[round] : 0; }
static double* end_of(const Play* x, Job job, int s, int round) { return &x->end[job][s * x->p->rounds + round]; }

// Returns when the slot of a round is free at stage s: the round before in it is through and its gradient is on its
// way. Without backward passes its stream is.
static double slot_free(const Play* x, int s, int round) {
    int training = x->p->training, before = round - x->p->slots[s];
    if (before < 0) return 0;
    if (s == (training ? 0 : x->p->stages - 1)) return *end_of(x, training ? BACKWARD : FORWARD, s, before);
    return *end_of(x, training ? GRADIENT : STREAM, s - training, before) - message_ms(x->p, before);
}

// Returns when a job can start: its inputs have come, and its resource (a stage, or a border in its direction) is free.
static double start_of(const Play* x, Job job, int s, int round) {
    double come, free = x->free[job][s];
    if (job == FORWARD) come = s > 0 ? *end_of(x, STREAM, s - 1, round) : slot_free(x, s, round);
    else if (job == BACKWARD) come = *end_of(x, s < x->p->stages - 1 ? GRADIENT : FORWARD, s, round);
    else come = *end_of(x, job == GRADIENT ? BACKWARD : FORWARD, s + (job == GRADIENT), round);
    double slot = job == STREAM && come < INFINITY ? slot_free(x, s + 1, round) : 0;
    return MAX(MAX(come, slot), free);
}

static void take_earlier(Candidate* best, const Play* x, Job job, int s) {
    int round = x->next[job][s];
    if (round == x->p->rounds) return;
    double start = start_of(x, job, s, round);
    if (start < best->start) *best = (Candidate){job, s, round, start};
}

// The order of the calls is messages before backward before forward, then the earlier stage. A message after a pass
// would only leave when that has ended.
static Candidate first(const Play* x) {
    Candidate best = {.start = INFINITY};
    const Pipeline* p = x->p;
    for (int s = 0; s < p->stages - 1; s++) take_earlier(&best, x, GRADIENT, s), take_earlier(&best, x, STREAM, s);
    for (int s = 0; s < p->stages && p->training; s++) take_earlier(&best, x, BACKWARD, s);
    for (int s = 0; s < p->stages; s++) take_earlier(&best, x, FORWARD, s);
    return best;
}

static void add_task(Play* x, int s, TaskKind kind, const Candidate* c, double ms) {
    TaskList* list = &x->schedule->stages[s];
    int backward = c->job == BACKWARD || c->job == GRADIENT, slot = c->round % x->p->slots[s];
    x->schedule->order[x->schedule->n++] = s;
    list->tasks[list->n++] = (Task){kind, backward, c->round, slot, c->start, c->start + ms};
}

static void run(Play* x, const Candidate* c) {
    int s = c->stage, round = c->round;
    const double* passes = c->job == FORWARD ? x->p->forward : x->p->backward;
    double ms = c->job >= STREAM ? message_ms(x->p, round) : passes[s * x->p->rounds + round], end = c->start + ms;
    x->next[c->job][s]++;
    x->free[c->job][s] = *end_of(x, c->job, s, round) = end;
    x->schedule->makespan = MAX(x->schedule->makespan, end);
    if (c->job >= STREAM) {
        add_task(x, s + (c->job == GRADIENT), TASK_SEND, c, ms);
        add_task(x, s + (c->job == STREAM), TASK_RECEIVE, c, ms);
        return;
    }
    TaskList* list = &x->schedule->stages[s];
    add_task(x, s, c->job == FORWARD ? TASK_FORWARD : TASK_BACKWARD, c, ms);
    list->busy += ms;
    int in_flight = x->p->training ? x->next[FORWARD][s] - x->next[BACKWARD][s] : 1;
    list->most_in_flight = MAX(list->most_in_flight, in_flight);
}

int schedule_tasks(Schedule* schedule, const Pipeline* pipeline, Arena* arena, Err err) {
    int P = pipeline->stages, v = pipeline->rounds;
    Play x = {.p = pipeline, .schedule = schedule};
    *schedule = (Schedule){TAKE(arena, TaskList, P), TAKE(arena, int, 6 * P * v), 0, 0};
    for (int job = 0; job < N_JOBS; job++) {
        x.end[job] = TAKE(arena, double, P* v), x.next[job] = TAKE(arena, int, P);
        x.free[job] = job == BACKWARD ? x.free[FORWARD] : TAKE(arena, double, P);
    }
    Task* tasks = TAKE(arena, Task, 6 * P * v);
    if (arena_check(arena, err)) return -1;
    for (int job = 0; job < N_JOBS; job++) {
        for (int i = 0; i < P * v; i++) x.end[job][i] = INFINITY;
        for (int s = 0; s < P; s++) x.next[job][s] = 0, x.free[job][s] = 0;
    }
    for (int s = 0; s < P; s++) schedule->stages[s] = (TaskList){tasks + 6 * s * v, 0, 0, 0};
    for (Candidate c; c = first(&x), c.start < INFINITY;) run(&x, &c);
    return 0;
}

double schedule_bubble(const Schedule* schedule, int stages) {
    double busy = 0;
    for (int s = 0; s < stages; s++) busy += schedule->stages[s].busy;
    return schedule->makespan > 0 ? 1 - busy / (stages * schedule->makespan) : 0;
}
