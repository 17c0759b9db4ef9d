// timer.h - finds where this rank's time in a step goes. The wall clock shows the same on all ranks that wait for each
// other; so events (Kernels.record_event) cut the time into pieces, each of a kind, and are read once, after the step.
#pragma once
#include "kernels/kernels.h"

typedef enum TimeKind {
    TIME_OTHER,
    TIME_LINEAR,     // the matmuls of QKV, attention projection and MLP: what can be resized
    TIME_ATTENTION,  // its core: moves with the heads
    TIME_UPDATE,     // after the last micro-batch: optimizer and what goes with it
    TIME_WAIT,       // this rank stood still for others, or sent: Comm.timer is told
    N_TIMES
} TimeKind;

enum { MOST_SEGMENTS = 4096 };

typedef struct Timer {
    TimeKind (*enter)(struct Timer* t, TimeKind kind, Stream s);  // timer_begin sets it
    const Kernels* k;
    int on;                           // 0: all entries return at once
    int n;                            // events so far
    unsigned char kind[MOST_EVENTS];  // of what follows event i
    TimeKind now;
    double drag[N_TIMES];  // > 1: factor by which this kind takes longer, on purpose
    double since;          // for drag: Kernels.clock at the last event
    // timer_read fills in the computing time between two waits, in order. Ranks of a tensor-parallel group have equally
    // many; the slowest rank's, summed over segments, is a step's time if each rank has a processor of its own.
    int n_segments;
    float segments[MOST_SEGMENTS];  // seconds
    double seconds[MOST_EVENTS];    // scratch
} Timer;

// Makes what follows on s of this kind, and returns the kind before. Does nothing if t is NULL or measures no step.
// Beyond MOST_EVENTS the rest of the step is of the last kind.
static inline TimeKind timer_enter(Timer* t, TimeKind kind, Stream s) {
    return t && t->enter ? t->enter(t, kind, s) : TIME_OTHER;
}
// Begins a step on stream s, in TIME_OTHER. Who begins none records nothing.
void timer_begin(Timer* t, const Kernels* k, Stream s);
// Makes linears take linear * whole times as long in steps that are measured, all else that is computed `whole` times;
// 1 and 1 at first. It serves --straggle; no result changes.
void timer_slow_down(Timer* t, double linear, double whole);
// Lets a slow rank fall behind before its results leave for other ranks. No event is recorded.
void timer_lag(Timer* t, Stream s);
// Ends the step: seconds (N_TIMES) = the time of each kind; also sets the segments. Waits for the stream.
void timer_read(Timer* t, double seconds[N_TIMES], Stream s);
