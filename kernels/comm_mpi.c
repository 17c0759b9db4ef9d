// comm_mpi.c - the Comm of ranks with host memory, over MPI, see comm.h; comm_mpi.h lists its files.
//
// All that is asked of MPI is messages between two ranks, nonblocking, and they are waited for by polling. MPI's own
// collectives spin while they wait, which takes the processor from other ranks and other threads; and they never return
// when a rank has died.
//
// An entry counts what it sends and makes an Operation. The queue runs operations one after another: on the calling
// thread, or, those that only begin, on the communication thread.
#include "kernels/comm_mpi.h"

#include "kernels/comm_count.h"

// ---- running

static int is_failed(Comm* c) { return atomic_load(&mpi_of(c)->world->failed); }

// While this thread stands still. The timer comes first, so that a straggler's delay is no exposed time; its stream is
// the CPU's only one.
typedef struct Pause {
    TimeKind before;
    double start;
} Pause;

static Pause stand_still(Comm* c) {
    Pause pause = {.before = timer_enter(c->timer, TIME_WAIT, NULL)};
    pause.start = now_seconds();
    return pause;
}

static void go_on(Comm* c, Pause pause) {
    c->exposed_seconds += now_seconds() - pause.start;
    timer_enter(c->timer, pause.before, NULL);
}

static void run(const Operation* o) {
    Comm* c = &o->c->comm;
    Pause pause = stand_still(c);
    queue_run(o);
    go_on(c, pause);
}

static Request begin(const Operation* o) {
    Comm* c = &o->c->comm;
    if (!c->overlap) return run(o), 0;
    timer_lag(c->timer, NULL);
    if (queue_has_room()) return queue_begin(o);
    Pause pause = stand_still(c);
    Request request = queue_begin(o);
    go_on(c, pause);
    return request;
}

static void end(Comm* c, Request request, Stream s) {
    (void)s;
    if (request == 0) return;
    Pause pause = stand_still(c);
    queue_end(request);
    go_on(c, pause);
}

static int result(Comm* c, char* err, size_t errlen) {
    return is_failed(c) ? fail(err, errlen, "%s", mpi_of(c)->world->words) : 0;
}

// ---- entries

static void all_reduce(Comm* c, void* x, size_t n, DType dt, Stream s) {
    (void)s;
    if (n == 0) return;
    comm_count_all_reduce(c, n, dt);
    run(&(Operation){.kind = OP_ALL_REDUCE, .c = mpi_of(c), .out = x, .n = n, .dt = dt});
}

static void broadcast(Comm* c, void* x, size_t bytes, int root, Stream s) {
    (void)s;
    if (bytes == 0) return;
    comm_count_broadcast(c, bytes, root);
    run(&(Operation){.kind = OP_BROADCAST, .c = mpi_of(c), .out = x, .n = bytes, .root = root});
}

static Request begin_reduce_scatter(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    (void)s;
    if (n == 0) return 0;
    comm_count_reduce_scatter(c, n, dt);
    return begin(&(Operation){.kind = OP_REDUCE_SCATTER, .c = mpi_of(c), .out = out, .in = in, .n = n, .dt = dt});
}

static Request begin_all_gather(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    (void)s;
    if (n == 0) return 0;
    comm_count_all_gather(c, n, dt);
    return begin(&(Operation){.kind = OP_ALL_GATHER, .c = mpi_of(c), .out = out, .in = in, .n = n * dtype_bytes(dt)});
}

static void check_peers(const Comm* c, const Transfer* messages, int n) {
    for (int i = 0; i < n; i++)
        if (messages[i].peer < 0 || messages[i].peer >= c->size)
            die("message %d of an exchange names rank %d, but the Comm has %d", i, messages[i].peer, c->size);
}

static Request begin_send_receive(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                                  Stream s) {
    (void)s;
    check_peers(c, sends, n_sends);
    check_peers(c, receives, n_receives);
    if (n_sends + n_receives == 0) return 0;
    comm_count_send_receive(c, sends, n_sends);
    return begin(&(Operation){.kind = OP_SEND_RECEIVE,
                              .c = mpi_of(c),
                              .sends = sends,
                              .n_sends = n_sends,
                              .receives = receives,
                              .n_receives = n_receives});
}

static int all_gather_host(Comm* c, void* out, const void* in, size_t bytes, char* err, size_t errlen) {
    if (bytes > 0) {
        comm_count_all_gather_host(c, bytes);
        run(&(Operation){.kind = OP_ALL_GATHER, .c = mpi_of(c), .out = out, .in = in, .n = bytes});
    }
    return result(c, err, errlen);
}

static int broadcast_host(Comm* c, void* x, size_t bytes, int root, char* err, size_t errlen) {
    if (bytes > 0) {
        comm_count_broadcast_host(c, bytes, root);
        run(&(Operation){.kind = OP_BROADCAST, .c = mpi_of(c), .out = x, .n = bytes, .root = root});
    }
    return result(c, err, errlen);
}

static int barrier(Comm* c, char* err, size_t errlen) {
    run(&(Operation){.kind = OP_BARRIER, .c = mpi_of(c)});
    return result(c, err, errlen);
}

static int wait(Comm* c, Stream s, char* err, size_t errlen) {
    (void)s;
    Pause pause = stand_still(c);
    queue_drain();
    go_on(c, pause);
    return result(c, err, errlen);
}

const CommTable comm_mpi_table = {
    .name = "mpi",
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .begin_reduce_scatter = begin_reduce_scatter,
    .begin_all_gather = begin_all_gather,
    .begin_send_receive = begin_send_receive,
    .end = end,
    .all_gather_host = all_gather_host,
    .broadcast_host = broadcast_host,
    .barrier = barrier,
    .wait = wait,
    .split = comm_mpi_split,
    .close = comm_mpi_close,
};
