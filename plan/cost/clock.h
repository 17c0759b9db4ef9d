// clock.h - the clock of one rank: its computing, and the messages on its links. Layouts and pipelines are played with
// it.
//
// A rank computes one thing after another, until it waits. Over each link, inside a node or between nodes, its messages
// go one after another. A message of `ms` begins when this rank and all that send to it have come so far and their
// links are free; it is over `ms` later. So virtual ranks count, too (kernels/virtual/comm_virtual.c).
//
// On a device computing and an exchange slow each other: while both go on they take slow_computing and slow_exchange
// times as long.
#pragma once
#include "plan/cost/cost.h"

typedef struct ClockMessage {
    double over;  // ms at its end, if nothing is computed beside it from now on; 0: no message
    LinkKind link;
} ClockMessage;

typedef struct RankClock {
    double now;                 // ms: all before has been computed
    double link_free[N_LINKS];  // when the messages begun on each link are over
    double late[N_LINKS];       // how much computing has slowed all messages begun
    double slow_computing, slow_exchange;
    int overlap;    // 0: whoever begins a message waits until it is over
    double* spent;  // ms of `now` by purpose, the caller's; NULL: not counted
} RankClock;

static inline void clock_spend(RankClock* c, int purpose, double until) {
    if (until <= c->now) return;
    if (c->spent) c->spent[purpose] += until - c->now;
    c->now = until;
}

static inline double clock_ready(const RankClock* c, LinkKind link) { return MAX(c->now, c->link_free[link]); }

static inline void clock_compute(RankClock* c, int purpose, double ms) {
    double both = 0, slow = c->slow_exchange;
    if (c->slow_computing > 1 || slow > 1) {
        double left = MAX(c->link_free[LINK_INSIDE], c->link_free[LINK_ACROSS]) - c->now;
        both = left > 0 ? MIN(left * slow, ms * c->slow_computing) : 0;
    }
    for (int k = 0; k < N_LINKS && both > 0; k++) {
        double beside = MIN(both, MAX(0, c->link_free[k] - c->now) * slow), late = beside - beside / slow;
        c->link_free[k] += late, c->late[k] += late;
    }
    clock_spend(c, purpose, c->now + both + ms - both / c->slow_computing);
}

static inline void clock_wait(RankClock* c, int purpose, ClockMessage m) {
    if (m.over > 0) clock_spend(c, purpose, m.over + c->late[m.link]);
}

// others: the time when the other ranks that send here are ready.
static inline ClockMessage clock_begin(RankClock* c, int purpose, LinkKind link, double ms, double others) {
    c->link_free[link] = MAX(clock_ready(c, link), others) + ms;
    ClockMessage m = {c->link_free[link] - c->late[link], link};
    if (!c->overlap) clock_wait(c, purpose, m);
    return m;
}

static inline void clock_exchange(RankClock* c, int purpose, LinkKind link, double ms) {
    if (ms > 0) clock_wait(c, purpose, clock_begin(c, purpose, link, ms, 0));
}
