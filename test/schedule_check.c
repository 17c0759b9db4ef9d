// schedule_check.c - the proof of a pipeline's lists of tasks, from the definitions of plan/value/tasks.h.
#include "test/checks.h"

// What a stage has done when its list is followed: numbers of rounds, because all tasks of a kind go by rounds.
typedef struct Followed {
    int next;  // in the list
    int forward, backward, sent[2], received[2];
} Followed;

static const char* const kind_names[] = {"forward pass", "backward pass", "send", "receive"};

// Whether the stage may run the task now, apart from a message's other side.
static const char* may_run(const Pipeline* p, const Followed* f, int s, const Task* t) {
    int is_first = s == 0, is_last = s == p->stages - 1, d = t->backward;
    int freed = p->training ? is_first ? f->backward : f->sent[1] : is_last ? f->forward : f->sent[0];
    if (t->slot != t->round % p->slots[s]) return "another slot than its round's";
    switch (t->kind) {
        case TASK_FORWARD:
            if (t->round != f->forward) return "a forward pass out of order";
            if (!is_first && f->received[0] <= t->round) return "a forward pass before its input";
            return is_first && t->round - freed >= p->slots[s] ? "a slot that is not free" : NULL;
        case TASK_BACKWARD:
            if (!p->training) return "a backward pass without training";
            if (t->round != f->backward || t->round >= f->forward) return "a backward pass out of order";
            return !is_last && f->received[1] <= t->round ? "a backward pass before its gradient" : NULL;
        case TASK_SEND:
            if (d ? is_first : is_last) return "a message to nobody";
            if (t->round != f->sent[d]) return "a message out of order";
            return t->round >= (d ? f->backward : f->forward) ? "a message before its pass" : NULL;
        default:
            if (d ? is_last : is_first) return "a message from nobody";
            if (t->round != f->received[d]) return "a message out of order";
            return !d && t->round - freed >= p->slots[s] ? "a slot that is not free" : NULL;
    }
}

static const Task* current(const Schedule* schedule, const Followed* f, int s) {
    const TaskList* list = &schedule->stages[s];
    return f[s].next < list->n ? &list->tasks[f[s].next] : NULL;
}

// Both sides of a message stand at it.
static int meet(const Schedule* schedule, const Followed* f, int stages, int s, const Task* t) {
    int other = (t->kind == TASK_SEND) == !t->backward ? s + 1 : s - 1;
    const Task* theirs = other >= 0 && other < stages ? current(schedule, f, other) : NULL;
    return theirs && theirs->kind != t->kind && (theirs->kind == TASK_SEND || theirs->kind == TASK_RECEIVE) &&
           theirs->backward == t->backward && theirs->round == t->round;
}

static void done(Followed* f, const Task* t) {
    f->next++;
    if (t->kind == TASK_FORWARD) f->forward++;
    else if (t->kind == TASK_BACKWARD) f->backward++;
    else (t->kind == TASK_SEND ? f->sent : f->received)[t->backward]++;
}

// Stage s goes on as far as it can; returns the tasks that it, or the two sides of a message, ran, or -1.
static int follow(const Schedule* schedule, const Pipeline* p, Followed* f, int s, Err err) {
    int n = 0;
    for (const Task* t; (t = current(schedule, f, s));) {
        const char* wrong = may_run(p, &f[s], s, t);
        if (wrong)
            return fail(err, "stage %d, task %d, %s of round %d: %s", s, f[s].next, kind_names[t->kind], t->round,
                        wrong);
        if (t->kind >= TASK_SEND && !meet(schedule, f, p->stages, s, t)) return n;
        if (t->kind >= TASK_SEND) {
            int other = (t->kind == TASK_SEND) == !t->backward ? s + 1 : s - 1;
            const Task* theirs = current(schedule, f, other);
            wrong = may_run(p, &f[other], other, theirs);
            if (wrong)
                return fail(err, "stage %d, task %d, %s of round %d: %s", other, f[other].next,
                            kind_names[theirs->kind], theirs->round, wrong);
            done(&f[other], theirs), n++;
        }
        done(&f[s], t), n++;
    }
    return n;
}

int schedule_check(const Schedule* schedule, const Pipeline* p, Arena* arena, Err err) {
    Followed* f = TAKE(arena, Followed, p->stages);
    if (arena_check(arena, err)) return -1;
    memset(f, 0, sizeof *f * (size_t)p->stages);
    for (int ran = 1; ran > 0;) {
        ran = 0;
        for (int s = 0; s < p->stages; s++) {
            int n = follow(schedule, p, f, s, err);
            if (n < 0) return -1;
            ran += n;
        }
    }
    for (int s = 0; s < p->stages; s++) {
        const Task* t = current(schedule, f, s);
        if (t)
            return fail(err, "stage %d waits for ever at task %d, the %s of round %d", s, f[s].next,
                        kind_names[t->kind], t->round);
        int backward = p->training ? p->rounds : 0, to_next = s < p->stages - 1 ? p->rounds : 0;
        if (f[s].forward != p->rounds || f[s].backward != backward || f[s].sent[0] != to_next ||
            f[s].sent[1] != (s > 0 ? backward : 0))
            return fail(err,
                        "stage %d runs %d forward and %d backward passes and sends %d and %d messages of "
                        "%d rounds",
                        s, f[s].forward, f[s].backward, f[s].sent[0], f[s].sent[1], p->rounds);
    }
    return 0;
}
