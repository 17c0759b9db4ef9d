// timer.c - the time of a step, cut at marks and added up by kind; see timer.h.
//
// Mark i is made where the kind changes, so piece i lies between the marks i and i + 1 and has the kind that was
// entered at mark i. With m(i) the time of mark i and n of them before the last one, which ends the step:
//
//   seconds[kind] = sum over i < n of that kind of m(i + 1) - m(i)
//
// Computing and waiting must be told apart on each rank, because a group whose layers end in a collective takes as long
// as its slowest rank on all of them (Wang et al. 2024, arXiv 2401.11469).
//
// A straggler is injected as what a slower processor would be: whatever this rank computes takes `drag` times as long,
// and nothing else does. Before each mark, and before a begun exchange sends anything, the stream is waited for, and
// the host spins for (drag - 1) times what has passed since it last did so. Waiting is not computing, so it is left as
// it is; but the stream must have got through it before the next piece begins, or a part of the wait would be stretched
// with that.
#include "kernels/timer.h"

// Between timer_begin and timer_read, so that exchanges between two steps leave no marks.
static int is_running(const Timer* t) { return t && t->on && t->n > 0; }

static void fall_behind(Timer* t, Stream s) {
    if (!(t->drag > 1)) return;
    t->k->synchronize(s);
    if (t->now == TIME_WAIT) return;
    double until = t->since + t->drag * (t->k->clock() - t->since);
    while (t->k->clock() < until) continue;
}

// The last place is for the end of the step.
static void mark(Timer* t, Stream s) {
    if (t->n == MOST_EVENTS - 1) return;
    t->kind[t->n] = (unsigned char)t->now;
    t->k->record_event(t->n++, s);
}

void timer_begin(Timer* t, const Kernels* k, Stream s) {
    if (!t) return;
    t->n = 0;
    if (!t->on) return;
    t->k = k;
    t->now = TIME_OTHER;
    if (t->drag > 1) k->synchronize(s);  // what was computed before is not of this step
    mark(t, s);
    t->since = k->clock();
}

void timer_lag(Timer* t, Stream s) {
    if (!is_running(t) || !(t->drag > 1)) return;
    fall_behind(t, s);
    t->since = t->k->clock();
}

TimeKind timer_enter(Timer* t, TimeKind kind, Stream s) {
    if (!is_running(t)) return TIME_OTHER;
    TimeKind before = t->now;
    if (kind == before) return before;
    fall_behind(t, s);
    t->now = kind;
    mark(t, s);
    if (t->drag > 1) t->since = t->k->clock();
    return before;
}

// Where there is no room for more, they become one with the last, so that their sum stays right.
static void add_segment(Timer* t, double seconds) {
    if (t->n_segments < MOST_SEGMENTS) t->segments[t->n_segments++] = (float)seconds;
    else t->segments[MOST_SEGMENTS - 1] += (float)seconds;
}

void timer_read(Timer* t, double seconds[N_TIMES], Stream s) {
    for (int kind = 0; kind < N_TIMES; kind++) seconds[kind] = 0;
    if (t) t->n_segments = 0;
    if (!is_running(t)) return;
    fall_behind(t, s);
    t->k->record_event(t->n, s);
    t->k->read_events(t->seconds, t->n + 1);
    double segment = 0;
    for (int i = 0; i < t->n; i++) {
        double piece = t->seconds[i + 1] - t->seconds[i];
        seconds[t->kind[i]] += piece;
        if (t->kind[i] == TIME_WAIT) add_segment(t, segment), segment = 0;
        else segment += piece;
    }
    add_segment(t, segment);
    t->n = 0;
}
