// comm_virtual.c - the Comm of virtual ranks, over a transport for host memory: see virtual.h and comm.h.
//
// A message says when it was sent: for a collective all ranks learn when the last is ready, for a send/receive each
// receiver when its senders are. That exchange happens at once, in the order of the calls, as where a transport has no
// thread; what runs beside computing is virtual time alone. A communication of `ms` is over at
//
//   max(when each rank that sends here, and this one, is ready) + ms
//
// and a rank is ready at its clock, or when what it has begun before on the same link, inside a node or across nodes,
// is over: each is a queue. `end` brings the clock to the end of its communication, so a request is that moment: the
// bits of a double. Host values take no time. With payload 0 no content is sent, and sums are not computed.
#include <stdlib.h>

#include "kernels/comm_transport.h"
#include "kernels/virtual/virtual.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"  // there are no streams here

typedef struct VirtualComm {
    Comm comm;
    Comm* real;  // the transport's; its own counts are not looked at
    int payload, across;
    int* node;         // (size)
    Transfer* lists;   // (room) messages to send, then to receive
    double* received;  // (room)
    int room;
} VirtualComm;

static VirtualComm* of(Comm* c) { return (VirtualComm*)c->state; }

static double link_free[2];  // ms: when what was begun on links inside nodes, and between them, is over

// ---- time

static double ready_at(int across) { return MAX(virtual_now(), link_free[across]); }

// What the communication at hand waits for.
static double ready_after(const Comm* c, int across) {
    double over = 0;
    memcpy(&over, &c->after, sizeof over);
    return MAX(over, ready_at(across));
}

// A machine's time between nodes is that of all ranks of a node at once. So a NIC takes nics / ranks of it for a rank's
// message; ranks that share one in an exchange send one after another.
static double nic_share(const Comm* c) {
    int ranks = virtual_node_size(), nics = c->nics;
    return nics > 0 && c->at_once > 0 ? (double)(CEIL_DIV(MIN(c->at_once, ranks), nics) * nics) / ranks : 1;
}

// The request of a communication that begins at `start`, and takes that share of the machine's time.
static Request occupy(double start, const VirtualTransfer* t, double share) {
    double over = link_free[t->across] = start + share * virtual_transfer_ms(t);
    Request request;
    memcpy(&request, &over, sizeof request);
    return request;
}

static void end(Comm* c, Request request, Stream s) {
    double over, now = virtual_now();
    if (request == 0) return;
    memcpy(&over, &request, sizeof over);
    TimeKind before = timer_enter(c->timer, TIME_WAIT, s);
    virtual_wait_until(over);
    c->exposed_seconds += 1e-3 * (virtual_now() - now);
    timer_enter(c->timer, before, s);
}

static Request begun(Comm* c, Request request) {
    if (c->overlap) return request;
    end(c, request, NULL);
    return 0;
}

// ---- collectives: all ranks wait for the last

// Round i: a rank tells the one 2^i after it what it knows (Hensgen et al. 1988; a maximum may count a rank twice).
static double all_ready(VirtualComm* v) {
    int size = v->comm.size, own = v->comm.rank;
    double last = ready_at(v->across), heard = last;
    for (int distance = 1; distance < size; distance *= 2) {
        Transfer to = {(own + distance) % size, &last, sizeof last};
        Transfer from = {(own + size - distance) % size, &heard, sizeof heard};
        comm_send_receive(v->real, &to, 1, &from, 1, NULL);
        last = MAX(last, heard);
    }
    return last;
}

// Each rank sends `bytes` of its own to each other rank, `times` times.
static Request collective(Comm* c, double bytes, int times) {
    VirtualComm* v = of(c);
    VirtualTransfer t = {c->purpose, c->size, v->across, times * bytes * (c->size - 1), times * bytes * c->size};
    return occupy(all_ready(v), &t, 1);
}

static void all_reduce(Comm* c, void* x, size_t n, DType dt, Stream s) {
    if (n == 0) return;
    comm_count_all_reduce(c, n, dt);
    if (of(c)->payload) of(c)->real->table->all_reduce(of(c)->real, x, n, dt, s);
    end(c, collective(c, (double)(CEIL_DIV(n, (size_t)c->size) * dtype_bytes(dt)), 2), s);
}

// As long as a rank's sending all of it.
static void broadcast(Comm* c, void* x, size_t bytes, int root, Stream s) {
    VirtualComm* v = of(c);
    VirtualTransfer t = {c->purpose, c->size, v->across, (double)bytes, (double)bytes};
    if (bytes == 0) return;
    comm_count_broadcast(c, bytes, root);
    if (v->payload) v->real->table->broadcast(v->real, x, bytes, root, s);
    end(c, occupy(all_ready(v), &t, 1), s);
}

static Request begin_reduce_scatter(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    Comm* real = of(c)->real;
    if (n == 0) return 0;
    comm_count_reduce_scatter(c, n, dt);
    if (of(c)->payload) real->table->end(real, real->table->begin_reduce_scatter(real, out, in, n, dt, s), s);
    return begun(c, collective(c, (double)(n * dtype_bytes(dt)), 1));
}

static Request begin_all_gather(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    Comm* real = of(c)->real;
    if (n == 0) return 0;
    comm_count_all_gather(c, n, dt);
    if (of(c)->payload) real->table->end(real, real->table->begin_all_gather(real, out, in, n, dt, s), s);
    return begun(c, collective(c, (double)(n * dtype_bytes(dt)), 1));
}

// ---- messages

static void make_room(VirtualComm* v, int n) {
    if (n <= v->room) return;
    v->lists = (Transfer*)realloc(v->lists, (size_t)n * sizeof *v->lists);
    v->received = (double*)realloc(v->received, (size_t)n * sizeof *v->received);
    if (!v->lists || !v->received) die("no memory for %d messages", n);
    v->room = n;
}

static int leaves(const Comm* c, const Transfer* t) { return t->bytes > 0 && t->peer != c->rank; }

// Every message of `sends` says when it was ready; *last: when the last of all is.
static void tell_peers(VirtualComm* v, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                       double* last) {
    double mine = *last;
    int out = 0, in = 0;
    make_room(v, n_sends + n_receives);
    for (int i = 0; i < n_sends; i++)
        if (leaves(&v->comm, &sends[i])) v->lists[out++] = (Transfer){sends[i].peer, &mine, sizeof mine};
    for (int i = 0; i < n_receives; i++)
        if (leaves(&v->comm, &receives[i])) {
            v->received[in] = mine;
            v->lists[out + in] = (Transfer){receives[i].peer, &v->received[in], sizeof mine};
            in++;
        }
    comm_send_receive(v->real, v->lists, out, v->lists + out, in, NULL);
    for (int i = 0; i < in; i++) *last = MAX(*last, v->received[i]);
}

static double bytes_leaving(const Comm* c, const Transfer* list, int n) {
    double bytes = 0;
    for (int i = 0; i < n; i++) bytes += leaves(c, &list[i]) ? (double)list[i].bytes : 0;
    return bytes;
}

static int goes_across(const Comm* c, const Transfer* list, int n) {
    int across = 0;
    for (int i = 0; i < n; i++) across |= leaves(c, &list[i]) && c->node[list[i].peer] != c->node[c->rank];
    return across;
}

static Request begin_send_receive(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                                  Stream s) {
    VirtualComm* v = of(c);
    int remote = 0;
    comm_check_messages(c, sends, n_sends, &remote);
    comm_check_messages(c, receives, n_receives, &remote);
    if (n_sends + n_receives == 0) return 0;
    comm_count_send_receive(c, sends, n_sends);
    // To the stage before: a row's gradient.
    if (c->purpose == COMM_PIPELINE && n_sends == 1 && sends->peer < c->rank && remote > 0) virtual_end_row();
    if (v->payload) comm_send_receive(v->real, sends, n_sends, receives, n_receives, s);
    if (remote == 0) return 0;
    int across = goes_across(c, sends, n_sends) || goes_across(c, receives, n_receives);
    double kept = 0, out = bytes_leaving(c, sends, n_sends), in = bytes_leaving(c, receives, n_receives);
    for (int i = 0; i < n_sends; i++) kept += leaves(c, &sends[i]) ? 0 : (double)sends[i].bytes;
    VirtualTransfer t = {c->purpose, MAX(MAX(n_sends, n_receives), 2), across, MAX(out, in), MAX(out, in) + kept};
    double start = ready_after(c, across);
    tell_peers(v, sends, n_sends, receives, n_receives, &start);
    return begun(c, occupy(start, &t, across ? nic_share(c) : 1));
}

// ---- host values: real, and free

static int all_gather_host(Comm* c, void* out, const void* in, size_t bytes, char* err, size_t errlen) {
    comm_count_all_gather_host(c, bytes);
    return of(c)->real->table->all_gather_host(of(c)->real, out, in, bytes, err, errlen);
}

static int broadcast_host(Comm* c, void* x, size_t bytes, int root, char* err, size_t errlen) {
    comm_count_broadcast_host(c, bytes, root);
    return of(c)->real->table->broadcast_host(of(c)->real, x, bytes, root, err, errlen);
}

static int barrier(Comm* c, char* err, size_t errlen) { return of(c)->real->table->barrier(of(c)->real, err, errlen); }

static int wait_for_all(Comm* c, Stream s, char* err, size_t errlen) {
    return of(c)->real->table->wait(of(c)->real, s, err, errlen);
}

// ---- open, split, close

static const CommTable virtual_table;

static void close_virtual(Comm* c) {
    VirtualComm* v = of(c);
    v->real->table->close(v->real);
    free(v->node), free(v->lists), free(v->received);
    free(v);
}

// The Comm over `real`, whose rank here is of node `own`.
static int wrap(Comm** c, Comm* real, int payload, uint64_t own, char* err, size_t errlen) {
    size_t size = (size_t)real->size;
    VirtualComm* v = (VirtualComm*)calloc(1, sizeof *v);
    uint64_t* node = (uint64_t*)calloc(size, sizeof *node);
    int failed = !v || !node || !(v->node = (int*)calloc(size, sizeof(int)));
    if (failed) fail(err, errlen, "no memory for a Comm of %d ranks", real->size);
    else failed = real->table->all_gather_host(real, node, &own, sizeof own, err, errlen);
    if (!failed) {
        comm_number_nodes(v->node, node, real->size);
        v->real = real, v->payload = payload;
        v->comm = (Comm){.table = &virtual_table,
                         .rank = real->rank,
                         .size = real->size,
                         .local_rank = real->local_rank,
                         .local_size = real->local_size,
                         .node = v->node,
                         .timeout_seconds = real->timeout_seconds,
                         .state = v};
        for (int r = 0; r < real->size; r++) v->across |= v->node[r] != v->node[0];
        real->overlap = 0;
        *c = &v->comm;
    } else if (v) {
        free(v->node), free(v);
    }
    free(node);
    return failed ? -1 : 0;
}

static int split(Comm* c, Comm** part, int color, int key, char* err, size_t errlen) {
    Comm* real;
    VirtualComm* v = of(c);
    *part = NULL;
    if (v->real->table->split(v->real, &real, color, key, err, errlen)) return -1;
    if (!real) return 0;
    if (wrap(part, real, v->payload, (uint64_t)c->node[c->rank], err, errlen)) return -1;
    (*part)->overlap = c->overlap;
    return 0;
}

static const CommTable virtual_table = {
    .name = "virtual",
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .begin_reduce_scatter = begin_reduce_scatter,
    .begin_all_gather = begin_all_gather,
    .begin_send_receive = begin_send_receive,
    .end = end,
    .all_gather_host = all_gather_host,
    .broadcast_host = broadcast_host,
    .barrier = barrier,
    .wait = wait_for_all,
    .split = split,
    .close = close_virtual,
};

int comm_open_virtual(Comm** world, int payload, const RankIdentity* id, double timeout_seconds, char* err,
                      size_t errlen) {
    Comm* real;
    *world = NULL;
    if (id->size == 1 ? comm_open_self(&real, timeout_seconds, err, errlen)
                      : comm_open_mpi(&real, id, timeout_seconds, err, errlen))
        return -1;
    return wrap(world, real, payload, (uint64_t)(real->rank / virtual_node_size()), err, errlen);
}
