// comm_nccl.cu - collectives and messages between GPUs by NCCL (2.18 or newer), see kernels/comm/comm.h.
//
// All collectives of a process run on one side stream, in the order of the calls, also those of different Comms: two
// kernels of different communicators that start in different order on two ranks may wait for each other's
// multiprocessors. The side stream waits for what the caller's stream has computed so far, the caller's stream for an
// event after the collective, the host for neither.
//
//   caller's stream   compute ----.----- more compute ----.--- uses what was received
//   side stream                    `--> collective -------'
//
// Host values pass through page-locked memory, so that nothing blocks. A part of one rank is no communicator but a Comm
// that copies (comm_open_alone), for NCCL would take memory as for many.
//
// NCCL's calls wait for other ranks to open, split, close and exchange something for the first time; nobody may abort a
// communicator meanwhile, so a call that does not come back in time ends the process. Work on a stream is waited for by
// polling an event. When that takes too long, or NCCL tells an error, the communicator is aborted, which ends its
// kernels, and every later call on a Comm of this world fails with the same message.
#include "kernels/cuda/cuda.h"

#ifndef HAVE_NCCL  // the machine that built this has no nccl.h: one rank only

extern "C" int comm_open_nccl(Comm** world, const RankIdentity* id, double timeout_seconds, Err err) {
    *world = NULL;
    if (id->size == 1) return comm_open_cuda_self(world, timeout_seconds, err);
    return fail(err,
                "%d ranks were started (by %s), but this program was built without NCCL: install libnccl-dev, or the "
                "Python package nvidia-nccl, so that nccl.h lies beside cuda_runtime.h, and build again",
                id->size, id->source);
}

#else
#include <nccl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/cuda/library.h"

extern "C" {
#include "kernels/host.h"
}

#if NCCL_VERSION_CODE < 21800
#error "nccl.h is older than 2.18, which brought ncclCommSplit: install a newer NCCL"
#endif

// ---- the library

// The library's calls; it is opened when it is needed.
#define NCCL_CALLS(CALL)     \
    CALL(GetUniqueId)        \
    CALL(CommInitRankConfig) \
    CALL(CommSplit)          \
    CALL(CommFinalize)       \
    CALL(CommDestroy)        \
    CALL(CommAbort)          \
    CALL(CommGetAsyncError)  \
    CALL(GetErrorString)     \
    CALL(GetLastError)       \
    CALL(GroupStart)         \
    CALL(GroupEnd) CALL(Send) CALL(Recv) CALL(AllReduce) CALL(ReduceScatter) CALL(AllGather) CALL(Broadcast)

static struct {
#define MEMBER(name) decltype(&nccl##name) name;
    NCCL_CALLS(MEMBER)
#undef MEMBER
} nccl;

static int load(Err err) {
    static const char* const files[] = {"libnccl.so.2", NULL};
    static const LibrarySymbol symbols[] = {
#define SYMBOL(name) {"nccl" #name, (void**)&nccl.name},
        NCCL_CALLS(SYMBOL)
#undef SYMBOL
    };
    return library_open("NCCL", files, symbols, COUNT(symbols), err);
}

// ---- the world of a process's Comms

enum {
    REQUESTS = 64,       // requests whose events are kept
    NCCL_ALIGNMENT = 16  // bytes, of parts of the staging memory
};

// The world that the Comms of one comm_open_nccl share.
typedef struct World {
    int comms;   // not yet closed
    int failed;  // then `error` says why, and nothing is started any more
    char error[ERR_BYTES];
    cudaStream_t side;                   // all collectives, in the order of the calls
    cudaEvent_t computed;                // the caller's stream when the last collective began
    cudaEvent_t finished;                // of the current wait
    cudaEvent_t communicated[REQUESTS];  // that of request t at t % REQUESTS
    Request last;                        // begun; they are counted from 1
    char *staging, *pinned;              // staging_bytes on the device, and as many page-locked on the host
    size_t staging_bytes;
    Comm* mpi;  // brought rank 0's id; NULL: it did not
    int sms;    // multiprocessors that its kernels may have, 0: as many as NCCL likes
} World;

typedef struct NcclComm {
    Comm comm;
    World* world;
    ncclComm_t nccl;  // NULL after a failure
} NcclComm;

static NcclComm* nccl_of(Comm* c) { return (NcclComm*)c; }
static World* world_of(Comm* c) { return nccl_of(c)->world; }

// ---- failures

// Returns advice on what a person may try.
static const char* nccl_advice(ncclResult_t result, const char* details) {
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

enum { ABORT_SECONDS = 10 };  // most of an abort, which waits for other ranks of the node

// Ends the communicator and with it its kernels, whatever they wait for.
static void nccl_abort(Comm* c) {
    NcclComm* p = nccl_of(c);
    if (!p->nccl) return;
    deadline_begin(MIN(c->timeout_seconds, (double)ABORT_SECONDS), "%s; to abort NCCL", p->world->error);
    nccl.CommAbort(p->nccl);
    deadline_end();
    p->nccl = NULL;
}

// Records the first failure and aborts the communicator. Returns -1.
__attribute__((format(printf, 2, 3))) static int nccl_broken(Comm* c, const char* format, ...) {
    World* w = world_of(c);
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

static int nccl_broken_call(Comm* c, ncclResult_t result, const char* what) {
    const char* details = nccl.GetLastError(NULL);
    if (!details) details = "";
    return nccl_broken(c, "rank %d of %d: %s: %s: %.160s; %s", c->rank, c->size, what, nccl.GetErrorString(result),
                       details, nccl_advice(result, details));
}

// Writes the message of the first failure. Returns -1.
static int nccl_error(Comm* c, Err err) { return fail(err, "%s", world_of(c)->error); }

// Makes a call of NCCL, which may wait for other ranks, within a deadline. 0, or -1 after a failure.
template <class Call>
static int nccl_call(Comm* c, const char* what, Call call) {
    deadline_begin(c->timeout_seconds, "rank %d of %d: %s", c->rank, c->size, what);
    ncclResult_t result = call();
    deadline_end();
    return result == ncclSuccess ? 0 : nccl_broken_call(c, result, what);
}

// ---- waiting by polling

// Pauses for a moment not at all, since most waits are short, then for a hundredth of the wait so far.
static void pause_between_polls(double waited) {
    const double SPIN = 200e-6, SHORTEST = 20e-6, LONGEST = 1e-3;
    if (waited < SPIN) {
        sched_yield();
        return;
    }
    struct timespec t = {0, (long)(1e9 * MIN(MAX(waited / 100, SHORTEST), LONGEST))};
    nanosleep(&t, NULL);
}

// Returns 1 if the event has happened, 0 if not yet, -1 after nccl_broken.
static int happened(Comm* c, cudaEvent_t event, const char* what) {
    cudaError_t error = cudaEventQuery(event);
    if (error == cudaSuccess) return 1;
    cudaGetLastError();  // kept by CUDA otherwise, though to be not ready is no error
    if (error == cudaErrorNotReady) return 0;
    return nccl_broken(c, "rank %d of %d: %s: CUDA: %s", c->rank, c->size, what, cudaGetErrorString(error));
}

// Waits for the event, no longer than timeout_seconds. 0, or -1 after a failure. The event is asked first: a collective
// that NCCL ends because of an error must not count as done.
static int nccl_settle(Comm* c, cudaEvent_t event, const char* what) {
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

// The world by which the backend waits for the device while it is open: see CudaDevice.settle. After it failed nothing
// waits any more.
static Comm* watched;

static int settle_watched(cudaEvent_t event) {
    World* w = world_of(watched);
    if (w->failed) return -1;
    if (!event && w->last == 0) return 0;
    return nccl_settle(watched, event ? event : w->communicated[w->last % REQUESTS], "waiting for the GPU");
}

// ---- collectives and messages

static ncclDataType_t type_of(DType dt) {
    return dt == DT_F64 ? ncclFloat64 : dt == DT_F32 ? ncclFloat32 : ncclBfloat16;
}

static ncclResult_t send_and_receive(Comm* c, const Operation* o) {
    ncclComm_t comm = nccl_of(c)->nccl;
    cudaStream_t side = world_of(c)->side;
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
    cudaStream_t side = world_of(c)->side;
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
    World* w = world_of(c);
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
    World* w = world_of(c);
    if (request > w->last)
        broken("request %llu ends, but only %llu have begun", (unsigned long long)request, (unsigned long long)w->last);
    if (request == w->last) cuda.exchange_sms = 0;  // on the caller's stream nothing is under way any more
    if (!w->failed) CUDA_CHECK(cudaStreamWaitEvent(cuda_stream(s), w->communicated[request % REQUESTS], 0));
}

static int wait(Comm* c, Stream s, Err err) {
    World* w = world_of(c);
    if (w->last > 0) end(c, w->last, s);
    if (!w->failed) {
        CUDA_CHECK(cudaEventRecord(w->finished, cuda_stream(s)));
        nccl_settle(c, w->finished, "waiting for the GPU");
    }
    return w->failed ? nccl_error(c, err) : 0;
}

// ---- values of the host, in pieces that the staging memory holds

static int run_on_host(Comm* c, const Operation* o, Err err) {
    World* w = world_of(c);
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
            CUDA_CHECK(cudaMemcpyAsync(w->staging + at * n, w->pinned + at * n, n, cudaMemcpyDefault, w->side));
        }
        if (nccl_call(c, what, [&] { return start(c, &piece); })) break;
        CUDA_CHECK(cudaMemcpyAsync(w->pinned, w->staging, parts * n, cudaMemcpyDefault, w->side));
        CUDA_CHECK(cudaEventRecord(w->finished, w->side));
        if (nccl_settle(c, w->finished, what)) break;
        for (size_t r = 0; r < parts; r++) memcpy((char*)o->out + r * o->bytes + done, w->pinned + r * n, n);
    }
    return w->failed ? nccl_error(c, err) : 0;
}

// ---- how the ranks find each other: rank 0's id must reach all of them
//
// With NCCL_COMM_ID, host and port where rank 0 listens, every rank computes the same id and no message is needed.
// It comes from MASTER_ADDR and MASTER_PORT; not under mpirun, which hands on no variables to other nodes unless told
// to, where MPI is there. torchrun itself listens at its port, so NCCL takes the next.

static int id_by_mpi(ncclUniqueId* unique, Comm* mpi, Err err) {
    struct {
        ncclUniqueId id;
        ncclResult_t result;
    } message = {};
    if (mpi->rank == 0) message.result = nccl.GetUniqueId(&message.id);
    if (mpi->table->broadcast_host(mpi, &message, sizeof message, 0, err)) return -1;
    if (message.result != ncclSuccess)
        return fail(err, "ncclGetUniqueId on rank 0: %s; NCCL_DEBUG=INFO tells more",
                    nccl.GetErrorString(message.result));
    *unique = message.id;
    return 0;
}

// Brings rank 0's id to all ranks. 0, or -1 with a message. *mpi becomes the Comm by which it came, if any: it keeps
// MPI open for the launcher, which takes a rank that leaves without MPI_Finalize for one that failed.
static int share_id(ncclUniqueId* unique, const RankIdentity* id, double timeout_seconds, Comm** mpi, Err err) {
    *mpi = NULL;
    if (!getenv("NCCL_COMM_ID")) {
        if (strcmp(id->source, "mpirun") == 0) {
            if (comm_open_mpi(mpi, id, timeout_seconds, err) == 0) return id_by_mpi(unique, *mpi, err);
            if (!id->master[0]) return -1;
        }
        if (!id->master[0])
            return fail(err,
                        "rank %d of %d (%s): nothing says where rank 0 is: set MASTER_ADDR and MASTER_PORT on all "
                        "ranks to its host and a free port",
                        id->rank, id->size, id->source);
        char address[sizeof id->master + 16];
        int port = id->master_port + (getenv("TORCHELASTIC_RUN_ID") != NULL);
        snprintf(address, sizeof address, strchr(id->master, ':') ? "[%s]:%d" : "%s:%d", id->master, port);
        setenv("NCCL_COMM_ID", address, 1);
    }
    ncclResult_t result = nccl.GetUniqueId(unique);
    if (result == ncclSuccess) return 0;
    return fail(err, "ncclGetUniqueId with NCCL_COMM_ID=%.200s: %s; %s", getenv("NCCL_COMM_ID"),
                nccl.GetErrorString(result), nccl_advice(result, ""));
}

// ---- making

enum { STAGING_BYTES = 1 << 20 };  // larger host values travel in pieces

// Returns NCCL's multiprocessors; a matmul beside it is planned for the others, else its last wave waits for them and
// it takes twice as long (PyTorch issue 143988). RAGGED_EXCHANGE_SMS=0 leaves both as they are. -1 with a message.
static int exchange_processors(Err err) {
    int sms = MIN(cuda.sm_count / 8, 16);
    return variable_number(&sms, "RAGGED_EXCHANGE_SMS", 0, cuda.sm_count - 1, err) ? -1 : sms;
}

static ncclConfig_t nccl_config(const World* w) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    if (w->sms > 0) config.maxCTAs = w->sms;
    config.splitShare = 1;  // parts use the channels and buffers of the world, hundreds of MiB else
    return config;
}

extern const Transport nccl_transport;

static Comm* new_comm(World* w, int rank, int size, double timeout_seconds) {
    Comm* c = comm_new(sizeof(NcclComm), &nccl_transport, rank, size, timeout_seconds);
    if (!c) die("no memory for a Comm of %d ranks", size);
    nccl_of(c)->world = w;
    w->comms++;
    return c;
}

// ---- closing, splitting

// Its calls are unchecked: after the GPU has failed everything fails, and its message was given.
static void free_world(World* w) {
    cuda.exchange_sms = 0;
    cudaFree(w->staging);
    cudaFreeHost(w->pinned);
    for (int i = 0; i < REQUESTS; i++) cudaEventDestroy(w->communicated[i]);
    cudaEventDestroy(w->computed);
    cudaEventDestroy(w->finished);
    cudaStreamDestroy(w->side);
    // It may finalize MPI, which waits for all ranks: not after one is missing.
    if (w->mpi && !w->failed) w->mpi->table->close(w->mpi);
    free(w);
}

// If nothing has failed NCCL finalizes, which waits for the other ranks of the node.
static void nccl_close(Comm* c) {
    NcclComm* p = nccl_of(c);
    World* w = p->world;
    if (!w->failed && w->last > 0) nccl_settle(c, w->communicated[w->last % REQUESTS], "closing");
    if (!w->failed) nccl_call(c, "closing", [=] { return nccl.CommFinalize(p->nccl); });
    if (!w->failed) nccl_call(c, "closing", [=] { return nccl.CommDestroy(p->nccl); });
    if (w->failed) nccl_abort(c);
    if (watched == c) watched = NULL, cuda.settle = NULL;
    free(c);
    if (--w->comms == 0) free_world(w);
}

// Every rank takes part in making communicators, also one that gets none.
static int nccl_split(Comm* c, Comm** part, const Part* p, Err err) {
    ncclConfig_t config = nccl_config(world_of(c));
    ncclComm_t made = NULL;
    int color = p->size > 1 ? p->color : NCCL_SPLIT_NOCOLOR;
    if (!p->single && nccl_call(c, "splitting a communicator",
                                [&] { return nccl.CommSplit(nccl_of(c)->nccl, color, p->rank, &made, &config); }))
        return nccl_error(c, err);
    if (p->size == 1) return comm_open_cuda_self(part, c->timeout_seconds, err);
    if (p->size > 1) *part = new_comm(world_of(c), p->rank, p->size, c->timeout_seconds), nccl_of(*part)->nccl = made;
    return 0;
}

const Transport nccl_transport = {"nccl", NULL, begin, end, NULL, run_on_host, wait, nccl_split, nccl_close};

// ---- opening

// The side stream goes first where both have blocks to run: a collective needs few, and other ranks wait for it.
static void open_streams(World* w) {
    int least, greatest;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&w->side, cudaStreamNonBlocking, greatest));
    CUDA_CHECK(cudaEventCreateWithFlags(&w->computed, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&w->finished, cudaEventDisableTiming));
    for (int i = 0; i < REQUESTS; i++)
        CUDA_CHECK(cudaEventCreateWithFlags(&w->communicated[i], cudaEventDisableTiming));
}

static int open_staging(Comm* c, Err err) {
    World* w = world_of(c);
    w->staging_bytes = MAX((size_t)STAGING_BYTES, (size_t)c->size * NCCL_ALIGNMENT);
    w->staging = (char*)cuda_allocate(w->staging_bytes, false),
    w->pinned = (char*)cuda_allocate(w->staging_bytes, true);
    if (w->staging && w->pinned) return 0;
    nccl_broken(c, "no memory for %zu KiB of staging for host values", w->staging_bytes >> 10);
    return nccl_error(c, err);
}

extern "C" int comm_open_nccl(Comm** world, const RankIdentity* id, double timeout_seconds, Err err) {
    ncclUniqueId unique;
    Comm* mpi;
    int sms = exchange_processors(err);
    *world = NULL;
    if (sms < 0) return -1;
    if (id->size == 1) return comm_open_cuda_self(world, timeout_seconds, err);
    if (load(err) || share_id(&unique, id, timeout_seconds, &mpi, err)) return -1;
    World* w = (World*)calloc(1, sizeof *w);
    if (!w) return fail(err, "no memory for a Comm");
    w->mpi = mpi;
    w->sms = sms;
    open_streams(w);
    Comm* c = new_comm(w, id->rank, id->size, timeout_seconds);
    ncclConfig_t config = nccl_config(w);
    if (nccl_call(c, "opening NCCL",
                  [&] { return nccl.CommInitRankConfig(&nccl_of(c)->nccl, c->size, unique, c->rank, &config); }))
        nccl_error(c, err);
    if (w->failed || open_staging(c, err) || comm_find_nodes(c, err)) return nccl_close(c), -1;
    watched = c, cuda.settle = settle_watched;
    *world = c;
    return 0;
}
#endif
