// timer.c - the time of a step, cut by events and added up by kind; see timer.h.
//
// An event is recorded where the kind changes: piece i lies between the events i and i + 1, of which the last is the
// end of the step, and has the kind that was entered at event i. Computing and waiting must be told apart on each rank,
// because a group whose layers end in a collective takes as long as its slowest rank (Wang et al. 2024, arXiv
// 2401.11469).
//
// A slow rank imitates a slower processor: before each event, and before a collective that has begun sends anything,
// the host waits for the stream and then spins for (drag - 1) times the seconds since it last did so; a virtual clock
// goes on instead. What is not stretched, as waiting, the stream must have finished before the next piece begins.
#include "kernels/timer.h"

// Returns whether a step is measured, between timer_begin and timer_read; collectives between two record no events.
static int is_running(const Timer* t) { return t && t->on && t->n > 0; }

void timer_slow_down(Timer* t, double linear, double whole) {
    for (int kind = 0; kind < N_TIMES; kind++) t->drag[kind] = whole;
    t->drag[TIME_LINEAR] = linear * whole;
    t->drag[TIME_WAIT] = 1;
}

// Returns whether the rank is slowed down; no kind is slower than linears.
static int is_slow(const Timer* t) { return t->drag[TIME_LINEAR] > 1; }

static void fall_behind(Timer* t, Stream s) {
    double drag = t->drag[t->now];
    if (!is_slow(t)) return;
    t->k->synchronize(s);
    if (!(drag > 1)) return;
    double until = t->since + drag * (t->k->clock() - t->since);
    if (t->k->wait_until) t->k->wait_until(until);
    else
        while (t->k->clock() < until) continue;
}

// Records an event, but keeps the last one for the end of the step.
static void record(Timer* t, Stream s) {
    if (t->n == MOST_EVENTS - 1) return;
    t->kind[t->n] = (unsigned char)t->now;
    t->k->record_event(t->n++, s);
}

static TimeKind enter_kind(Timer* t, TimeKind kind, Stream s) {
    if (!is_running(t)) return TIME_OTHER;
    TimeKind before = t->now;
    if (kind == before) return before;
    fall_behind(t, s);
    t->now = kind;
    record(t, s);
    if (is_slow(t)) t->since = t->k->clock();
    return before;
}

void timer_begin(Timer* t, const Kernels* k, Stream s) {
    if (!t) return;
    t->n = 0;
    t->enter = enter_kind;
    if (!t->on) return;
    t->k = k;
    t->now = TIME_OTHER;
    if (is_slow(t)) k->synchronize(s);  // what was computed before is not of this step
    record(t, s);
    t->since = k->clock();
}

void timer_lag(Timer* t, Stream s) {
    if (!is_running(t) || !is_slow(t)) return;
    fall_behind(t, s);
    t->since = t->k->clock();
}

// Adds a segment. Without room for it the last one takes its seconds, so that the sum stays right.
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
