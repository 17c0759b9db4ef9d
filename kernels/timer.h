// timer.h - where the time of a step goes on this rank: computing, and waiting for others.
//
// In a step whose ranks wait for each other the wall clock shows the same on all of them. So the time of a step is cut
// by events (Kernels.record_event) into pieces, each of a kind. Time inside a collective is a kind of its own: the
// transports tell Comm.timer. An event is a reading of the clock, on a GPU an event of the stream; all of them are read
// once, after the step. Who begins no step records nothing.
#pragma once
#include "kernels/time_kinds.h"

enum { MOST_SEGMENTS = 4096 };

struct Timer {
    TimerEnter* enter;  // timer_begin sets it
    const Kernels* k;
    int on;                           // 0: all entries return at once
    int n;                            // events so far
    unsigned char kind[MOST_EVENTS];  // of what follows event i
    TimeKind now;
    double drag;   // > 1: an injected slowdown: this rank computes everything so many times as slowly
    double since;  // for drag: Kernels.clock at the last event
    // After timer_read: computing time between two waits, in order. The ranks of a tensor-parallel group have the same
    // number of segments; the slowest rank's, summed over segments, is what a step takes where each rank has a
    // processor of its own.
    int n_segments;
    float segments[MOST_SEGMENTS];  // seconds
    double seconds[MOST_EVENTS];    // scratch
};

// Begins a step on stream s, in TIME_OTHER. Events of the step before are gone.
void timer_begin(Timer* t, const Kernels* k, Stream s);
// Before results leave for other ranks: an injected slowdown is waited for first. No event is recorded.
void timer_lag(Timer* t, Stream s);
// Ends the step: seconds (N_TIMES) = of each kind, and the segments. Waits for the stream.
void timer_read(Timer* t, double seconds[N_TIMES], Stream s);
