// comm_nccl_library.cu - how the NCCL transport finds its library, waits for it and fails.
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
#include "kernels/cuda/library.h"

NcclLibrary nccl;

int nccl_load(char* err, size_t errlen) {
    static const char* const files[] = {"libnccl.so.2", NULL};
    static const LibrarySymbol symbols[] = {
#define SYMBOL(name) {"nccl" #name, (void**)&nccl.name},
        NCCL_CALLS(SYMBOL)
#undef SYMBOL
    };
    return library_open("NCCL", files, symbols, COUNT(symbols), err, errlen);
}

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

void nccl_pause(double waited) {
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
        nccl_pause(waited);
    }
}

// ---- waiting for the device

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
