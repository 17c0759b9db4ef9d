// comm_virtual.c - the Comm of virtual ranks, over a transport for host memory: see virtual.h and comm.h.
//
// A message says when it was sent, and is exchanged at once: for a collective all ranks learn when the last is ready,
// for a send/receive each receiver when its senders are. A communication of `ms` is over at
//
//   max(when each rank that sends here, and this one, is ready) + ms
//
// and a rank is ready at its clock, or when its last communication on the same link, inside a node or across nodes, is
// over. One that takes no time, as any in the times of whole pipelines, waits for no link. `end` brings the clock
// there, so a request is that moment: the bits of a double. Host values take no time.
// With payload 0 no content is sent, and sums are not computed.
#include <stdlib.h>

#include "kernels/comm/comm_transport.h"
#include "kernels/virtual/virtual.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"  // there are no streams here

typedef struct VirtualComm {
    Comm comm;
    Comm* real;  // the transport's; its own counts are not looked at
    int payload;
    Transfer* lists;   // (room) messages to send, then to receive
    double* received;  // (room)
    int room;
} VirtualComm;

static double link_free[2];  // ms: when links inside nodes, and between them, are free again

// ---- time

static double virtual_seconds(void) { return 1e-3 * virtual_now(); }

static double ready_at(int across, double ms) { return ms > 0 ? MAX(virtual_now(), link_free[across]) : virtual_now(); }

// Returns when the communication at hand may begin.
static double ready_after(const Comm* c, int across, double ms) {
    double over = 0;
    memcpy(&over, &c->after, sizeof over);
    return MAX(over, ready_at(across, ms));
}

// A machine's time between nodes is that of all ranks of a node at once. So a NIC takes nics / ranks of it for a rank's
// message; ranks that share one in an exchange send one after another.
static double nic_share(const Comm* c) {
    int ranks = virtual_node_size(), nics = c->nics;
    return nics > 0 && c->at_once > 0 ? (double)(CEIL_DIV(MIN(c->at_once, ranks), nics) * nics) / ranks : 1;
}

// Returns the request of a communication that begins at `start` and takes `ms`.
static Request occupy(double start, int across, double ms) {
    double over = start + ms;
    Request request;
    if (ms > 0) link_free[across] = over;
    memcpy(&request, &over, sizeof request);
    return request;
}

static void end(Comm* c, Request request, Stream s) {
    double over;
    memcpy(&over, &request, sizeof over);
    virtual_wait_until(over);
}

// ---- collectives: all ranks wait for the last

// Returns when the last of all ranks is ready. In round i a rank tells the one 2^i after it the latest that it knows
// (Hensgen et al. 1988); a maximum may count a rank twice.
static double all_ready(VirtualComm* v, double ready) {
    int size = v->comm.size, own = v->comm.rank;
    double last = ready, heard = last;
    if (v->real->transport->most) return v->real->transport->most(v->real, last);
    for (int distance = 1; distance < size; distance *= 2) {
        Transfer to = {(own + distance) % size, &last, sizeof last};
        Transfer from = {(own + size - distance) % size, &heard, sizeof heard};
        comm_send_receive(v->real, &to, 1, &from, 1, NULL);
        last = MAX(last, heard);
    }
    return last;
}

// Begins a collective: each rank sends a part to each other rank, in an all-reduce twice.
static Request collective(VirtualComm* v, const Operation* o) {
    Comm* c = &v->comm;
    size_t size = (size_t)c->size, element = dtype_bytes(o->dt);
    int twice = o->kind == OP_ALL_REDUCE, nodes = 1;
    double part = (double)(twice ? CEIL_DIV(o->bytes / element, size) * element : o->bytes);
    for (int r = 1; r < c->size; r++) nodes += c->node[r] != c->node[r - 1];
    int across = nodes > 1;
    VirtualTransfer t = {c->purpose, c->size, across, nodes, part * (c->size - 1), part * c->size};
    double ms = (twice ? 2 : 1) * virtual_transfer_ms(&t);
    return occupy(all_ready(v, ready_at(across, ms)), across, ms);
}

// ---- messages

static void make_room(VirtualComm* v, int n) {
    if (n <= v->room) return;
    v->lists = (Transfer*)realloc(v->lists, (size_t)n * sizeof *v->lists);
    v->received = (double*)realloc(v->received, (size_t)n * sizeof *v->received);
    if (!v->lists || !v->received) die("no memory for %d messages", n);
    v->room = n;
}

// Tells with every message that leaves when it was ready. Returns when the last of all is.
static double tell_peers(VirtualComm* v, const Operation* o, double mine) {
    double last = mine;
    int out = 0, in = 0;
    make_room(v, o->n_sends + o->n_receives);
    for (int i = 0; i < o->n_sends; i++)
        if (comm_leaves(&v->comm, &o->sends[i])) v->lists[out++] = (Transfer){o->sends[i].peer, &mine, sizeof mine};
    for (int i = 0; i < o->n_receives; i++)
        if (comm_leaves(&v->comm, &o->receives[i])) {
            v->received[in] = mine;
            v->lists[out + in] = (Transfer){o->receives[i].peer, &v->received[in], sizeof mine};
            in++;
        }
    comm_send_receive(v->real, v->lists, out, v->lists + out, in, NULL);
    for (int i = 0; i < in; i++) last = MAX(last, v->received[i]);
    return last;
}

static double bytes_leaving(const Comm* c, const Transfer* list, int n, int* across) {
    double bytes = 0;
    for (int i = 0; i < n; i++) {
        if (!comm_leaves(c, &list[i])) continue;
        bytes += (double)list[i].bytes;
        *across |= c->node[list[i].peer] != c->node[c->rank];
    }
    return bytes;
}

// Returns the peers of a list; several messages to one rank, one after another, count once.
static int count_peers(const Transfer* list, int n) {
    int peers = 0;
    for (int i = 0; i < n; i++) peers += i == 0 || list[i].peer != list[i - 1].peer;
    return peers;
}

static Request messages(VirtualComm* v, const Operation* o) {
    Comm* c = &v->comm;
    int across = 0;
    double out = bytes_leaving(c, o->sends, o->n_sends, &across), kept = 0;
    double in = bytes_leaving(c, o->receives, o->n_receives, &across), most = MAX(out, in);
    if (most == 0) return 0;
    for (int i = 0; i < o->n_sends; i++) kept += comm_leaves(c, &o->sends[i]) ? 0 : (double)o->sends[i].bytes;
    int peers = MAX(count_peers(o->sends, o->n_sends), count_peers(o->receives, o->n_receives));
    VirtualTransfer t = {c->purpose, MAX(peers, 2), across, 0, most, most + kept};
    double ms = (across ? nic_share(c) : 1) * virtual_transfer_ms(&t);
    return occupy(tell_peers(v, o, ready_after(c, across, ms)), across, ms);
}

// Returns whether the operation sends a row's gradient to the stage before.
static int ends_row(const Comm* c, const Operation* o) {
    return c->purpose == COMM_PIPELINE && o->n_sends == 1 && o->sends->peer < c->rank && o->sends->bytes > 0;
}

// Begins a virtual operation. The real Comm has no overlap, so its operation has finished when it returns.
static Request begin(Comm* c, const Operation* o, Stream s) {
    VirtualComm* v = (VirtualComm*)c;
    if (ends_row(c, o)) {
        virtual_end_row();
        timer_lag(c->timer, s);
    }
    if (v->payload) {
        Request real = v->real->transport->begin(v->real, o, s);
        if (real) v->real->transport->end(v->real, real, s);
    }
    return o->kind == OP_SEND_RECEIVE ? messages(v, o) : collective(v, o);
}

// ---- host values: real, and free

static int run_on_host(Comm* c, const Operation* o, Err err) {
    Comm* real = ((VirtualComm*)c)->real;
    return real->transport->run_on_host(real, o, err);
}

static int wait_for_all(Comm* c, Stream s, Err err) {
    Comm* real = ((VirtualComm*)c)->real;
    return real->transport->wait(real, s, err);
}

// ---- open, split, close

static const Transport virtual_transport;

static void close_virtual(Comm* c) {
    VirtualComm* v = (VirtualComm*)c;
    v->real->transport->close(v->real);
    free(v->lists), free(v->received);
    free(v);
}

static int wrap(Comm** c, Comm* real, int payload, Err err) {
    *c = comm_new(sizeof(VirtualComm), &virtual_transport, real->rank, real->size, real->timeout_seconds);
    if (!*c) return fail(err, "no memory for a Comm of %d ranks", real->size);
    ((VirtualComm*)*c)->real = real, ((VirtualComm*)*c)->payload = payload;
    return 0;
}

static int split(Comm* c, Comm** part, const Part* p, Err err) {
    VirtualComm* v = (VirtualComm*)c;
    Comm* real = NULL;
    if (v->real->transport->split(v->real, &real, p, err)) return -1;
    return real ? wrap(part, real, v->payload, err) : 0;
}

static const Transport virtual_transport = {"virtual",   virtual_seconds, begin, end,          NULL,
                                            run_on_host, wait_for_all,    split, close_virtual};

int comm_open_virtual(Comm** world, int payload, const RankIdentity* id, double timeout_seconds, Err err) {
    Comm* real;
    *world = NULL;
    if (comm_open_host(&real, id, timeout_seconds, err)) return -1;
    if (wrap(world, real, payload, err)) return -1;
    Comm* c = *world;
    c->local_size = real->local_size;
    for (int r = 0; r < c->size; r++) c->node[r] = r / virtual_node_size();
    return 0;
}
