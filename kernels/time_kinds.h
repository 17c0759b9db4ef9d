// time_kinds.h - what the time of a step is divided into. Who measures it: kernels/timer.h.
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

typedef struct Timer Timer;
typedef TimeKind TimerEnter(Timer* t, TimeKind kind, Stream s);

// What follows on s is of this kind. Returns the kind before, to come back to. Nothing where t is NULL or measures no
// step. Events beyond MOST_EVENTS are not recorded: the rest of the step is of the last kind.
static inline TimeKind timer_enter(Timer* t, TimeKind kind, Stream s) {
    TimerEnter* enter = t ? *(TimerEnter**)t : NULL;  // a Timer's first member
    return enter ? enter(t, kind, s) : TIME_OTHER;
}
