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
// Host values pass through page-locked memory, so that nothing blocks: see comm_nccl_library.cu.
//
// The timer is told of two waits: the caller's stream has reached an `end` and the collective is not over; and ranks
// gather or broadcast host values, during which the default stream gets nothing to do.
#include "kernels/cuda/comm_nccl.h"

static ncclDataType_t type_of(DType dt) {
    return dt == DT_F64 ? ncclFloat64 : dt == DT_F32 ? ncclFloat32 : ncclBfloat16;
}

// ---- beginning and ending

// Before a collective: 0, or -1 when there must not be another.
static int begin(Comm* c, Stream s) {
    World* w = nccl_world(c);
    if (w->failed) return -1;
    timer_lag(c->timer, s);
    CUDA_CHECK(cudaEventRecord(w->computed, cuda_stream(s)));
    CUDA_CHECK(cudaStreamWaitEvent(w->side, w->computed, 0));
    return 0;
}

// An event serves many requests, one after another: an old request waits for a newer collective, which is more than
// enough.
static void end(Comm* c, Request request, Stream s) {
    World* w = nccl_world(c);
    if (request > w->last)
        broken("request %llu ends, but only %llu have begun", (unsigned long long)request, (unsigned long long)w->last);
    if (request == w->last) cuda.exchange_sms = 0;  // on the caller's stream nothing is under way any more
    if (request == 0 || w->failed) return;
    TimeKind before = timer_enter(c->timer, TIME_WAIT, s);
    CUDA_CHECK(cudaStreamWaitEvent(cuda_stream(s), w->communicated[request % REQUESTS], 0));
    timer_enter(c->timer, before, s);
}

// After the collective.
static Request give_request(Comm* c, Stream s) {
    World* w = nccl_world(c);
    Request request = ++w->last;
    CUDA_CHECK(cudaEventRecord(w->communicated[request % REQUESTS], w->side));
    cuda.exchange_sms = w->sms;
    if (c->overlap) return request;
    end(c, request, s);
    return 0;
}

// ---- collectives and messages

static void all_reduce(Comm* c, void* x, size_t n, DType dt, Stream s) {
    if (n == 0 || begin(c, s)) return;
    if (nccl_call(c, "all-reduce", [=] {
            return nccl.AllReduce(x, x, n, type_of(dt), ncclSum, nccl_of(c)->nccl, nccl_world(c)->side);
        }))
        return;
    comm_count_all_reduce(c, n, dt);
    end(c, give_request(c, s), s);
}

static void broadcast(Comm* c, void* x, size_t bytes, int root, Stream s) {
    if (bytes == 0 || begin(c, s)) return;
    if (nccl_call(c, "broadcast", [=] {
            return nccl.Broadcast(x, x, bytes, ncclUint8, root, nccl_of(c)->nccl, nccl_world(c)->side);
        }))
        return;
    comm_count_broadcast(c, bytes, root);
    end(c, give_request(c, s), s);
}

static Request begin_reduce_scatter(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    if (n == 0 || begin(c, s)) return 0;
    if (nccl_call(c, "reduce-scatter", [=] {
            return nccl.ReduceScatter(in, out, n, type_of(dt), ncclSum, nccl_of(c)->nccl, nccl_world(c)->side);
        }))
        return 0;
    comm_count_reduce_scatter(c, n, dt);
    return give_request(c, s);
}

static Request begin_all_gather(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    if (n == 0 || begin(c, s)) return 0;
    if (nccl_call(c, "all-gather", [=] {
            return nccl.AllGather(in, out, n, type_of(dt), nccl_of(c)->nccl, nccl_world(c)->side);
        }))
        return 0;
    comm_count_all_gather(c, n, dt);
    return give_request(c, s);
}

static ncclResult_t send_and_receive(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives,
                                     int n_receives) {
    ncclComm_t comm = nccl_of(c)->nccl;
    cudaStream_t side = nccl_world(c)->side;
    ncclResult_t first = nccl.GroupStart();
    for (int i = 0; i < n_sends && first == ncclSuccess; i++)
        if (sends[i].bytes > 0 && sends[i].peer != c->rank)
            first = nccl.Send(sends[i].data, sends[i].bytes, ncclUint8, sends[i].peer, comm, side);
    for (int i = 0; i < n_receives && first == ncclSuccess; i++)
        if (receives[i].bytes > 0 && receives[i].peer != c->rank)
            first = nccl.Recv(receives[i].data, receives[i].bytes, ncclUint8, receives[i].peer, comm, side);
    ncclResult_t last = nccl.GroupEnd();  // also after an error: a group must not stay open
    return first == ncclSuccess ? last : first;
}

static Request begin_send_receive(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                                  Stream s) {
    int remote = 0;  // NCCL would carry a message of 0 bytes, and one to itself by way of a channel
    int messages = comm_check_messages(c, sends, n_sends, &remote);
    messages += comm_check_messages(c, receives, n_receives, &remote);
    if (messages == 0 || begin(c, s)) return 0;
    comm_copy_to_self(c, sends, n_sends, receives, n_receives, comm_copy_device, (Stream)nccl_world(c)->side);
    if (remote > 0 &&
        nccl_call(c, "send/receive", [=] { return send_and_receive(c, sends, n_sends, receives, n_receives); }))
        return 0;
    comm_count_send_receive(c, sends, n_sends);
    return give_request(c, s);
}

// ---- waiting, and values of the host

static int wait(Comm* c, Stream s, char* err, size_t errlen) {
    World* w = nccl_world(c);
    end(c, w->last, s);
    if (!w->failed) {
        CUDA_CHECK(cudaEventRecord(w->finished, cuda_stream(s)));
        nccl_settle(c, w->finished, "waiting for the GPU");
    }
    return w->failed ? nccl_error(c, err, errlen) : 0;
}

static void copy_staged(World* w, void* to, const void* from, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, w->side));
}

// After NCCL has been given n bytes of staging to move: brings them to pinned memory. 0, or -1 after a failure.
static int fetch_staged(Comm* c, size_t n, const char* what) {
    World* w = nccl_world(c);
    copy_staged(w, w->pinned, w->staging, n);
    CUDA_CHECK(cudaEventRecord(w->finished, w->side));
    return nccl_settle(c, w->finished, what);
}

int nccl_gather_host(Comm* c, void* out, const void* in, size_t bytes, char* err, size_t errlen) {
    World* w = nccl_world(c);
    size_t size = (size_t)c->size, rank = (size_t)c->rank;
    const char* what = "all-gather of host values";
    size_t most = w->staging_bytes / size / NCCL_ALIGNMENT * NCCL_ALIGNMENT;
    for (size_t done = 0, n; done < bytes && !w->failed; done += n) {
        n = MIN(most, bytes - done);
        char *own = w->staging + rank * n, *own_pinned = w->pinned + rank * n;
        memcpy(own_pinned, (const char*)in + done, n);
        copy_staged(w, own, own_pinned, n);
        if (nccl_call(c, what, [=] {
                return nccl.AllGather(own, w->staging, n, ncclUint8, nccl_of(c)->nccl, w->side);
            }))
            break;
        if (fetch_staged(c, size * n, what)) break;
        for (size_t r = 0; r < size && out; r++) memcpy((char*)out + r * bytes + done, w->pinned + r * n, n);
    }
    return w->failed ? nccl_error(c, err, errlen) : 0;
}

static int gather_standing_still(Comm* c, void* out, const void* in, size_t bytes, char* err, size_t errlen) {
    TimeKind before = timer_enter(c->timer, TIME_WAIT, NULL);
    int result = nccl_gather_host(c, out, in, bytes, err, errlen);
    timer_enter(c->timer, before, NULL);
    return result;
}

static int all_gather_host(Comm* c, void* out, const void* in, size_t bytes, char* err, size_t errlen) {
    comm_count_all_gather_host(c, bytes);
    return gather_standing_still(c, out, in, bytes, err, errlen);
}

static int barrier(Comm* c, char* err, size_t errlen) {
    char here = 1;
    return gather_standing_still(c, NULL, &here, sizeof here, err, errlen);
}

static int broadcast_host(Comm* c, void* x, size_t bytes, int root, char* err, size_t errlen) {
    World* w = nccl_world(c);
    const char* what = "broadcast of host values";
    comm_count_broadcast_host(c, bytes, root);
    TimeKind before = timer_enter(c->timer, TIME_WAIT, NULL);
    for (size_t done = 0, n; done < bytes && !w->failed; done += n) {
        n = MIN(w->staging_bytes, bytes - done);
        if (c->rank == root) {
            memcpy(w->pinned, (const char*)x + done, n);
            copy_staged(w, w->staging, w->pinned, n);
        }
        if (nccl_call(c, what, [=] {
                return nccl.Broadcast(w->staging, w->staging, n, ncclUint8, root, nccl_of(c)->nccl, w->side);
            }))
            break;
        if (fetch_staged(c, n, what)) break;
        memcpy((char*)x + done, w->pinned, n);
    }
    timer_enter(c->timer, before, NULL);
    return w->failed ? nccl_error(c, err, errlen) : 0;
}

// In the order of the struct: C++17 has no designated initializers.
const CommTable nccl_table = {
    "nccl",
    all_reduce,
    broadcast,
    begin_reduce_scatter,
    begin_all_gather,
    begin_send_receive,
    end,
    all_gather_host,
    broadcast_host,
    barrier,
    wait,
    nccl_split,
    nccl_close,
};
