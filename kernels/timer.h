// timer.h - where the time of a step goes on this rank: computing, and waiting for others.
//
// In a step whose ranks wait for each other the wall clock shows the same on all of them. So time is cut at marks
// (Kernels.stamp) into pieces of a kind, and what passes inside an exchange is a kind of its own: Comm.timer is told by
// the transports. Marks cost a clock's reading or an event, and are read once, after the step.
#pragma once
#include "kernels/kernels.h"

typedef enum TimeKind {
    TIME_OTHER,
    TIME_LINEAR,     // the matmuls of QKV, attention projection and MLP: what can be resized
    TIME_ATTENTION,  // its core: moves with the heads
    TIME_UPDATE,     // after the last micro-batch: optimizer and what goes with it
    TIME_WAIT,       // this rank stood still for others, or sent
    N_TIMES
} TimeKind;

enum { MOST_SEGMENTS = 4096 };

typedef struct Timer {
    const Kernels* k;
    int on;                           // 0: all entries return at once
    int n;                            // marks so far
    unsigned char kind[MOST_EVENTS];  // of what follows mark i
    TimeKind now;
    double drag;   // > 1: a straggler is injected that is so many times as slow in everything
    double since;  // for drag: Kernels.clock at the last mark
    // After timer_read: computing between two waits, one after another; the ranks of a tensor-parallel group have the
    // same number of them, so that the sum over segments of the slowest rank's is what a step takes where each has a
    // processor of its own.
    int n_segments;
    float segments[MOST_SEGMENTS];  // seconds
    double seconds[MOST_EVENTS];    // scratch
} Timer;

// Begins a step on stream s, in TIME_OTHER. Marks of the step before are gone.
void timer_begin(Timer* t, const Kernels* k, Stream s);
// What follows on s is of this kind. Returns the kind before, to come back to. t may be NULL or off. Marks beyond
// MOST_EVENTS are not made: the rest of the step is of the last kind.
TimeKind timer_enter(Timer* t, TimeKind kind, Stream s);
// What was computed so far is about to leave for other ranks: a straggler lags behind first. No mark is made.
void timer_lag(Timer* t, Stream s);
// Ends the step: seconds (N_TIMES) = of each kind, and the segments. Waits for the stream.
void timer_read(Timer* t, double seconds[N_TIMES], Stream s);
