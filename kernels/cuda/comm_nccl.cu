// comm_nccl.cu - collectives and messages between GPUs by NCCL (2.18 or newer), see kernels/comm.h.
//
// Large messages run at the bandwidth of the links, small ones at NCCL's latency of some 10 us. One communicator spans
// all ranks, and split() makes parts that share its channels and memory.
//
// All collectives of a process run on one side stream, in the order of the calls, also those of different Comms: two
// kernels of different communicators that start in different order on two ranks may wait for each other's
// multiprocessors. Begin: the side stream waits for what the caller's stream has computed so far, and an event is
// recorded behind the collective. End: the caller's stream waits for that event. The host waits for neither.
//
//   caller's stream   compute ----.----- more compute ----.--- uses what was received
//   side stream                    `--> collective -------'
//
// Host values pass through page-locked memory, so that nothing blocks.
//
// NCCL's calls wait for other ranks: to open, to split, to close, and where a communicator or a pair of ranks exchanges
// something for the first time; later exchanges only put work on a stream. (Nonblocking communicators never wait, but
// start a thread for every exchange.) Nobody may abort a communicator while one of its calls is waiting, so a call that
// does not come back in time ends the process (nccl_call). Work on a stream is waited for by polling an event, also
// where the backend waits. When that takes too long, or NCCL tells an error, the communicator is aborted, which makes
// its kernels end, and every later call on a Comm of this world fails with the same message. Parts share the channels
// of the world, and with them its errors and its end.
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "kernels/cuda/comm_nccl.h"

// ---- failures

const char* nccl_advice(ncclResult_t result, const char* details) {
    if (strstr(details, "Duplicate GPU") || strstr(details, "using the same GPU"))  // the second since 2.30
        return "two ranks have the same GPU: start no more ranks on a node than it has GPUs (nvidia-smi -L), and "
               "let CUDA_VISIBLE_DEVICES show every rank all of them, or one of its own";
    if (result == ncclUnhandledCudaError)
        return "is the driver new enough for this NCCL, and GPU memory left? (nvidia-smi)";
    if (result == ncclSystemError)
        return "is the network right? NCCL_SOCKET_IFNAME names the interface; the address in MASTER_ADDR or "
               "NCCL_COMM_ID must be in a subnet of every node, and its port free";
    if (result == ncclRemoteError) return "another rank ended or its link broke: see the first error among the ranks";
    return "NCCL_DEBUG=INFO tells more";
}

int nccl_broken(Comm* c, const char* format, ...) {
    World* w = nccl_world(c);
    if (!w->failed) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(w->error, sizeof w->error, format, arguments);
        va_end(arguments);
        w->failed = 1;
    }
    nccl_abort(c);
    return -1;
}

enum { ABORT_SECONDS = 10 };  // that an abort may take, which waits for other ranks of the node

void nccl_abort(Comm* c) {
    NcclComm* p = nccl_of(c);
    if (!p->nccl) return;
    deadline_begin(MIN(c->timeout_seconds, (double)ABORT_SECONDS), "%s; to abort NCCL", p->world->error);
    nccl.CommAbort(p->nccl);
    deadline_end();
    p->nccl = NULL;
}

int nccl_broken_call(Comm* c, ncclResult_t result, const char* what) {
    const char* details = nccl.GetLastError(NULL);
    if (!details) details = "";
    return nccl_broken(c, "rank %d of %d: %s: %s: %.160s; %s", c->rank, c->size, what, nccl.GetErrorString(result),
                       details, nccl_advice(result, details));
}

int nccl_error(Comm* c, char* err, size_t errlen) { return fail(err, errlen, "%s", nccl_world(c)->error); }

// ---- waiting by polling

// Between two polls. For a moment not at all, since most waits are short, then for a hundredth of what was waited:
// times that the host takes are right to that.
static void pause_between_polls(double waited) {
    const double SPIN = 200e-6, SHORTEST = 20e-6, LONGEST = 1e-3;
    if (waited < SPIN) {
        sched_yield();
        return;
    }
    struct timespec t = {0, (long)(1e9 * MIN(MAX(waited / 100, SHORTEST), LONGEST))};
    nanosleep(&t, NULL);
}

// 1 when the event has happened, 0 when not yet, -1 after nccl_broken.
static int happened(Comm* c, cudaEvent_t event, const char* what) {
    cudaError_t error = cudaEventQuery(event);
    if (error == cudaSuccess) return 1;
    cudaGetLastError();  // kept by CUDA otherwise, though to be not ready is no error
    if (error == cudaErrorNotReady) return 0;
    return nccl_broken(c, "rank %d of %d: %s: CUDA: %s", c->rank, c->size, what, cudaGetErrorString(error));
}

// The event comes first: a collective that NCCL ends because of an error must not count as done.
int nccl_settle(Comm* c, cudaEvent_t event, const char* what) {
    for (double start = now_seconds();;) {
        int done = happened(c, event, what);
        if (done < 0) return -1;
        ncclResult_t state = ncclSuccess;
        ncclResult_t asked = nccl.CommGetAsyncError(nccl_of(c)->nccl, &state);
        if (asked != ncclSuccess) state = asked;
        if (state != ncclSuccess) return nccl_broken_call(c, state, what);
        if (done) return 0;
        double waited = now_seconds() - start;
        if (waited > c->timeout_seconds)
            return nccl_broken(c,
                               "rank %d of %d: %s: not done after %g s: a rank is missing, has ended, or is not at the "
                               "same collective; see the first error among the ranks, NCCL_DEBUG=INFO tells more",
                               c->rank, c->size, what, c->timeout_seconds);
        pause_between_polls(waited);
    }
}

// ---- the backend waits for the device by the world

static Comm* watched;

// Where the world has failed nothing more is waited for.
static int settle_watched(cudaEvent_t event) {
    World* w = nccl_world(watched);
    if (w->failed) return -1;
    if (!event && w->last == 0) return 0;
    return nccl_settle(watched, event ? event : w->communicated[w->last % REQUESTS], "waiting for the GPU");
}

void nccl_watch(Comm* c) {
    watched = c;
    cuda.settle = settle_watched;
}

void nccl_unwatch(const Comm* c) {
    if (watched == c) watched = NULL, cuda.settle = NULL;
}

// ---- collectives and messages

static ncclDataType_t type_of(DType dt) {
    return dt == DT_F64 ? ncclFloat64 : dt == DT_F32 ? ncclFloat32 : ncclBfloat16;
}

static ncclResult_t send_and_receive(Comm* c, const Operation* o) {
    ncclComm_t comm = nccl_of(c)->nccl;
    cudaStream_t side = nccl_world(c)->side;
    ncclResult_t first = nccl.GroupStart();
    for (int i = 0; i < o->n_sends && first == ncclSuccess; i++) {
        const Transfer* t = &o->sends[i];
        if (comm_leaves(c, t)) first = nccl.Send(t->data, t->bytes, ncclUint8, t->peer, comm, side);
    }
    for (int i = 0; i < o->n_receives && first == ncclSuccess; i++) {
        const Transfer* t = &o->receives[i];
        if (comm_leaves(c, t)) first = nccl.Recv(t->data, t->bytes, ncclUint8, t->peer, comm, side);
    }
    ncclResult_t last = nccl.GroupEnd();  // also after an error: a group must not stay open
    return first == ncclSuccess ? last : first;
}

static ncclResult_t start(Comm* c, const Operation* o) {
    ncclComm_t comm = nccl_of(c)->nccl;
    cudaStream_t side = nccl_world(c)->side;
    size_t n = o->bytes / dtype_bytes(o->dt);
    if (o->kind == OP_ALL_REDUCE) return nccl.AllReduce(o->in, o->out, n, type_of(o->dt), ncclSum, comm, side);
    if (o->kind == OP_REDUCE_SCATTER) return nccl.ReduceScatter(o->in, o->out, n, type_of(o->dt), ncclSum, comm, side);
    if (o->kind == OP_ALL_GATHER) return nccl.AllGather(o->in, o->out, o->bytes, ncclUint8, comm, side);
    if (o->kind == OP_BROADCAST) return nccl.Broadcast(o->in, o->out, o->bytes, ncclUint8, o->root, comm, side);
    return send_and_receive(c, o);
}

static const char* name_of(const Operation* o) {
    static const char* const names[] = {"all-reduce", "broadcast", "reduce-scatter", "all-gather", "send/receive"};
    return names[o->kind];
}

// NCCL would carry a message of 0 bytes, and one to itself by way of a channel.
static Request begin(Comm* c, const Operation* o, Stream s) {
    World* w = nccl_world(c);
    int remote = o->bytes > 0, own = 0;
    for (int i = 0; i < o->n_sends; i++) own |= o->sends[i].bytes > 0, remote |= comm_leaves(c, &o->sends[i]);
    for (int i = 0; i < o->n_receives; i++) remote |= comm_leaves(c, &o->receives[i]);
    if (w->failed || !(own || remote)) return 0;
    CUDA_CHECK(cudaEventRecord(w->computed, cuda_stream(s)));
    CUDA_CHECK(cudaStreamWaitEvent(w->side, w->computed, 0));
    comm_copy_to_self(c, o, comm_copy_device, (Stream)w->side);
    if (remote && nccl_call(c, name_of(o), [=] { return start(c, o); })) return 0;
    Request request = ++w->last;
    CUDA_CHECK(cudaEventRecord(w->communicated[request % REQUESTS], w->side));
    cuda.exchange_sms = w->sms;
    return request;
}

// An event serves many requests, one after another: an old request waits for a newer collective, which is more than
// enough.
static void end(Comm* c, Request request, Stream s) {
    World* w = nccl_world(c);
    if (request > w->last)
        broken("request %llu ends, but only %llu have begun", (unsigned long long)request, (unsigned long long)w->last);
    if (request == w->last) cuda.exchange_sms = 0;  // on the caller's stream nothing is under way any more
    if (!w->failed) CUDA_CHECK(cudaStreamWaitEvent(cuda_stream(s), w->communicated[request % REQUESTS], 0));
}

static int wait(Comm* c, Stream s, char* err, size_t errlen) {
    World* w = nccl_world(c);
    if (w->last > 0) end(c, w->last, s);
    if (!w->failed) {
        CUDA_CHECK(cudaEventRecord(w->finished, cuda_stream(s)));
        nccl_settle(c, w->finished, "waiting for the GPU");
    }
    return w->failed ? nccl_error(c, err, errlen) : 0;
}

// ---- values of the host, in pieces that the staging memory holds

static void copy_staged(World* w, void* to, const void* from, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, w->side));
}

static int run_on_host(Comm* c, const Operation* o, char* err, size_t errlen) {
    World* w = nccl_world(c);
    int gathers = o->kind == OP_ALL_GATHER, sends = gathers || c->rank == o->root;
    const char* what = gathers ? "all-gather of host values" : "broadcast of host values";
    size_t parts = gathers ? (size_t)c->size : 1, at = gathers ? (size_t)c->rank : 0;
    size_t most = w->staging_bytes / parts / NCCL_ALIGNMENT * NCCL_ALIGNMENT;
    for (size_t done = 0, n; done < o->bytes && !w->failed; done += n) {
        n = MIN(most, o->bytes - done);
        Operation piece = *o;
        piece.in = w->staging + at * n, piece.out = w->staging, piece.bytes = n;
        if (sends) {
            memcpy(w->pinned + at * n, (const char*)o->in + done, n);
            copy_staged(w, w->staging + at * n, w->pinned + at * n, n);
        }
        if (nccl_call(c, what, [&] { return start(c, &piece); })) break;
        copy_staged(w, w->pinned, w->staging, parts * n);
        CUDA_CHECK(cudaEventRecord(w->finished, w->side));
        if (nccl_settle(c, w->finished, what)) break;
        for (size_t r = 0; r < parts; r++) memcpy((char*)o->out + r * o->bytes + done, w->pinned + r * n, n);
    }
    return w->failed ? nccl_error(c, err, errlen) : 0;
}

const Transport nccl_transport = {"nccl", NULL, begin, end, run_on_host, wait, nccl_split, nccl_close};
