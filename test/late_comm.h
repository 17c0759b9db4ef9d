// late_comm.h - a Comm whose collectives happen as late as they may: begin_send_receive only notes its messages and
// spoils the memory that will receive, `end` sends and receives. Who overwrites what is not sent yet, or reads what has
// not come, gets wrong numbers every time, not only when a message is slow. Host memory only.
//
// Ranks whose messages keep no common order may not be late. For those a watched Comm notes what is sent, and whether
// it was still the same at `end`.
#pragma once
#include "kernels/comm/comm.h"

enum { LATE_SENDS = 16, LATE_MESSAGES = 64 };

typedef struct LateSend {
    Transfer sends[LATE_MESSAGES], receives[LATE_MESSAGES];
    int n_sends, n_receives;
    CommPurpose purpose;
} LateSend;

static struct {
    const CommTable* on_time;
    CommTable table;
    LateSend waiting[LATE_SENDS];  // that of request t at t % LATE_SENDS
    Request begun, done;
} late;

static Request late_begin_send_receive(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives,
                                       int n_receives, Stream s) {
    (void)s;
    LateSend* x = &late.waiting[++late.begun % LATE_SENDS];
    if (late.begun - late.done > LATE_SENDS || n_sends > LATE_MESSAGES || n_receives > LATE_MESSAGES)
        die("%d collectives have begun, the last with %d messages", (int)(late.begun - late.done), n_sends);
    memcpy(x->sends, sends, (size_t)n_sends * sizeof *sends);
    memcpy(x->receives, receives, (size_t)n_receives * sizeof *receives);
    x->n_sends = n_sends, x->n_receives = n_receives, x->purpose = c->purpose;
    for (int i = 0; i < n_receives; i++) memset(receives[i].data, 0xff, receives[i].bytes);
    return late.begun;
}

static void late_end(Comm* c, Request request, Stream s) {
    CommPurpose purpose = c->purpose;
    while (late.done < request) {
        const LateSend* x = &late.waiting[++late.done % LATE_SENDS];
        c->purpose = x->purpose;
        late.on_time->end(c, late.on_time->begin_send_receive(c, x->sends, x->n_sends, x->receives, x->n_receives, s),
                          s);
    }
    c->purpose = purpose;
}

// From now on collectives of c are late, or again not.
static inline void set_late(Comm* c, int on) {
    if (late.on_time) c->table = late.on_time, late.on_time = NULL;
    if (!on) return;
    late.on_time = c->table;
    late.table = *c->table;
    late.table.begin_send_receive = late_begin_send_receive;
    late.table.end = late_end;
    c->table = &late.table;
}

typedef struct WatchedSend {
    Request request;
    Transfer message;
    uint64_t hash;
} WatchedSend;

static struct {
    const CommTable* own;
    CommTable table;
    WatchedSend open[LATE_MESSAGES];
    int n, changed;
} watched;

static uint64_t hash_message(const Transfer* t) { return hash_bytes(t->data, t->bytes, 0); }

static Request watched_begin_send_receive(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives,
                                          int n_receives, Stream s) {
    Request request = watched.own->begin_send_receive(c, sends, n_sends, receives, n_receives, s);
    if (watched.n + n_sends > LATE_MESSAGES) die("%d messages have begun and not ended", watched.n);
    for (int i = 0; i < n_sends; i++)
        watched.open[watched.n++] = (WatchedSend){request, sends[i], hash_message(&sends[i])};
    return request;
}

static void watched_end(Comm* c, Request request, Stream s) {
    for (int i = watched.n - 1; i >= 0; i--) {
        if (watched.open[i].request != request) continue;
        watched.changed += hash_message(&watched.open[i].message) != watched.open[i].hash;
        watched.open[i] = watched.open[--watched.n];
    }
    watched.own->end(c, request, s);
}

// From now on c, of which there may be none; not for a Comm without overlap, whose requests have all one name.
static inline void watch_sends(Comm* c) {
    watched.n = watched.changed = 0;
    if (!c || !c->overlap) return;
    watched.own = c->table, watched.table = *c->table;
    watched.table.begin_send_receive = watched_begin_send_receive;
    watched.table.end = watched_end;
    c->table = &watched.table;
}

// Whether all that was sent stayed as it was until its end, and all has ended.
static inline int sends_were_kept(void) { return watched.n == 0 && watched.changed == 0; }
