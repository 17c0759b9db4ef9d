// comm_nccl.cu - exchanges between GPUs by NCCL (2.18 or newer), see kernels/comm.h.
//
// Large messages run at the links' bytes a second, small ones at NCCL's latency of some 10 us. The library is opened
// at run time; one communicator spans all ranks, and split() makes parts that share its channels and memory.
//
// Nothing may wait for ever on a rank that has died. So communicators are nonblocking: a call may return
// ncclInProgress, and then its kernel may not be on the stream yet, so every call is followed to its end by `settle`,
// which gives up after timeout_seconds. Work that is on a stream is waited for by an event, never by a call that
// blocks; that is also why values of the host pass through page-locked memory. Giving up aborts the communicator,
// which makes its kernels end, and every later call on a Comm of this world fails with the same words.
//
// All exchanges of a process form one order, also across streams and Comms: two kernels of different communicators
// that start in different order on two ranks may wait for each other's multiprocessors. A call on another stream than
// the last one therefore waits for that one by an event.
#include <nccl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#ifdef HAVE_MPI
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#endif

#include "kernels/cuda/comm_self.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/library.h"

#if NCCL_VERSION_CODE < 21800
#error "nccl.h is older than 2.18, which brought ncclCommSplit: install a newer NCCL"
#endif

// ---- the library

#define NCCL_CALLS(CALL)                                                                                             \
    CALL(GetUniqueId)                                                                                                \
    CALL(CommInitRankConfig)                                                                                         \
    CALL(CommSplit)                                                                                                  \
    CALL(CommFinalize) CALL(CommDestroy) CALL(CommAbort) CALL(CommGetAsyncError) CALL(GetErrorString)                \
        CALL(GetLastError) CALL(GroupStart) CALL(GroupEnd) CALL(Send) CALL(Recv) CALL(AllReduce) CALL(ReduceScatter) \
            CALL(AllGather) CALL(Broadcast)

static struct {
#define MEMBER(name) decltype(&nccl##name) name;
    NCCL_CALLS(MEMBER)
#undef MEMBER
} nccl;

static int load_nccl(char* err, size_t errlen) {
    static const char* const files[] = {"libnccl.so.2", NULL};
    static const LibrarySymbol symbols[] = {
#define SYMBOL(name) {"nccl" #name, (void**)&nccl.name},
        NCCL_CALLS(SYMBOL)
#undef SYMBOL
    };
    return library_open("NCCL", files, symbols, COUNT(symbols), err, errlen);
}

static ncclDataType_t nccl_type(DType dt) {
    return dt == DT_F64 ? ncclFloat64 : dt == DT_F32 ? ncclFloat32 : ncclBfloat16;
}

// ---- state

enum { STAGING_BYTES = 1 << 20, STAGING_ALIGNMENT = 16 };  // larger values of the host travel in pieces

// What the Comms that come from one comm_open_nccl share.
typedef struct World {
    int comms;   // not yet closed
    int failed;  // then `words` say why, and nothing is started any more
    char words[ERR_BYTES];
    char *staging, *pinned;  // staging_bytes on the device, and as many page-locked on the host
    size_t staging_bytes;
    cudaEvent_t finished;  // of the wait that is going on
    cudaEvent_t last;      // the last exchange, on last_stream
    cudaStream_t last_stream;
    int any;           // there was one
    int finalize_mpi;  // MPI was initialised here
} World;

typedef struct NcclComm {
    Comm comm;
    World* world;
    ncclComm_t nccl;  // NULL after a failure
} NcclComm;

static NcclComm* nccl_of(Comm* c) { return (NcclComm*)c->state; }
static World* world_of(Comm* c) { return nccl_of(c)->world; }

// A nonblocking call may have more to do, which `settle` follows.
static int started(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

static int world_words(Comm* c, char* err, size_t errlen) { return fail(err, errlen, "%s", world_of(c)->words); }

// ---- failures

static const char* advice(ncclResult_t result, const char* details) {
    if (strstr(details, "Duplicate GPU"))
        return "two ranks have the same GPU: start no more ranks on a machine than it has GPUs (nvidia-smi -L), and "
               "let CUDA_VISIBLE_DEVICES show every rank all of them, or one of its own";
    if (result == ncclUnhandledCudaError)
        return "is the driver new enough for this NCCL, and GPU memory left? (nvidia-smi)";
    if (result == ncclSystemError)
        return "is the network right? NCCL_SOCKET_IFNAME names the interface; the address in MASTER_ADDR or "
               "NCCL_COMM_ID must be in a subnet of every machine, and its port free";
    if (result == ncclRemoteError) return "another rank ended or its link broke: see the first error among the ranks";
    return "NCCL_DEBUG=INFO tells more";
}

// Records the words of the first failure and aborts the communicator; -1.
__attribute__((format(printf, 2, 3))) static int broken(Comm* c, const char* format, ...) {
    World* w = world_of(c);
    if (!w->failed) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(w->words, sizeof w->words, format, arguments);
        va_end(arguments);
        w->failed = 1;
    }
    if (nccl_of(c)->nccl) nccl.CommAbort(nccl_of(c)->nccl);
    nccl_of(c)->nccl = NULL;
    return -1;
}

static int broken_call(Comm* c, ncclResult_t result, const char* what) {
    const char* details = nccl.GetLastError(NULL);
    if (!details) details = "";
    return broken(c, "rank %d of %d: %s: %s: %.160s; %s", c->rank, c->size, what, nccl.GetErrorString(result), details,
                  advice(result, details));
}

// Polls as fast as it can for a moment, since most waits are short, then ever more slowly.
static void pause_between_polls(double waited) {
    const double SPIN = 200e-6, SHORTEST = 20e-6, LONGEST = 1e-3;
    if (waited < SPIN) {
        sched_yield();
        return;
    }
    struct timespec t = {0, (long)(1e9 * MIN(MAX(waited / 20, SHORTEST), LONGEST))};
    nanosleep(&t, NULL);
}

// Follows what the communicator is doing to its end, and then the event, when there is one. 0, or -1 after `broken`.
static int settle(Comm* c, cudaEvent_t event, const char* what) {
    double start = now_seconds();
    for (;;) {
        ncclResult_t state = ncclSuccess;
        ncclResult_t asked = nccl.CommGetAsyncError(nccl_of(c)->nccl, &state);
        if (asked != ncclSuccess) state = asked;
        if (!started(state)) return broken_call(c, state, what);
        if (state == ncclSuccess && !event) return 0;
        if (state == ncclSuccess) {
            cudaError_t error = cudaEventQuery(event);
            if (error == cudaSuccess) return 0;
            if (error != cudaErrorNotReady)
                return broken(c, "rank %d of %d: %s: CUDA: %s", c->rank, c->size, what, cudaGetErrorString(error));
            cudaGetLastError();  // not an error, but kept as one
        }
        double waited = now_seconds() - start;
        if (waited > c->timeout_seconds)
            return broken(c,
                          "rank %d of %d: %s: not done after %g s: a rank is missing, has ended, or is not at the "
                          "same exchange; see the first error among the ranks, NCCL_DEBUG=INFO tells more",
                          c->rank, c->size, what, c->timeout_seconds);
        pause_between_polls(waited);
    }
}

// ---- entries on the device

// Before an exchange: 0, or -1 when there must not be another.
static int begin(Comm* c, cudaStream_t stream) {
    World* w = world_of(c);
    if (w->failed) return -1;
    if (w->any && w->last_stream != stream) CUDA_CHECK(cudaStreamWaitEvent(stream, w->last, 0));
    return 0;
}

// After it.
static void end(Comm* c, cudaStream_t stream, ncclResult_t result, const char* what) {
    World* w = world_of(c);
    if (result == ncclInProgress) {
        if (settle(c, NULL, what)) return;
    } else if (result != ncclSuccess) {
        broken_call(c, result, what);
        return;
    }
    CUDA_CHECK(cudaEventRecord(w->last, stream));
    w->last_stream = stream;
    w->any = 1;
}

static void all_reduce(Comm* c, void* x, size_t n, DType dt, Stream s) {
    cudaStream_t stream = cuda_stream(s);
    if (n == 0 || begin(c, stream)) return;
    end(c, stream, nccl.AllReduce(x, x, n, nccl_type(dt), ncclSum, nccl_of(c)->nccl, stream), "all-reduce");
}

static void reduce_scatter(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    cudaStream_t stream = cuda_stream(s);
    if (n == 0 || begin(c, stream)) return;
    end(c, stream, nccl.ReduceScatter(in, out, n, nccl_type(dt), ncclSum, nccl_of(c)->nccl, stream), "reduce-scatter");
}

static void all_gather(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    cudaStream_t stream = cuda_stream(s);
    if (n == 0 || begin(c, stream)) return;
    end(c, stream, nccl.AllGather(in, out, n, nccl_type(dt), nccl_of(c)->nccl, stream), "all-gather");
}

static void broadcast(Comm* c, void* x, size_t bytes, int root, Stream s) {
    cudaStream_t stream = cuda_stream(s);
    if (bytes == 0 || begin(c, stream)) return;
    end(c, stream, nccl.Broadcast(x, x, bytes, ncclUint8, root, nccl_of(c)->nccl, stream), "broadcast");
}

// How many of the messages go to another rank: NCCL would carry one of 0 bytes, and one to itself by way of a channel.
static int count_remote(const Comm* c, const Transfer* messages, int n) {
    int remote = 0;
    for (int i = 0; i < n; i++) {
        if (messages[i].peer < 0 || messages[i].peer >= c->size)
            die("message %d of an exchange names rank %d, but the Comm has %d", i, messages[i].peer, c->size);
        remote += messages[i].bytes > 0 && messages[i].peer != c->rank;
    }
    return remote;
}

static void exchange(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives, Stream s) {
    cudaStream_t stream = cuda_stream(s);
    ncclComm_t comm = nccl_of(c)->nccl;
    int remote = count_remote(c, sends, n_sends) + count_remote(c, receives, n_receives);
    if (begin(c, stream)) return;
    comm_copy_own(c, sends, n_sends, receives, n_receives, s);
    if (remote == 0) return;
    ncclResult_t first = nccl.GroupStart();
    for (int i = 0; i < n_sends && started(first); i++)
        if (sends[i].bytes > 0 && sends[i].peer != c->rank)
            first = nccl.Send(sends[i].data, sends[i].bytes, ncclUint8, sends[i].peer, comm, stream);
    for (int i = 0; i < n_receives && started(first); i++)
        if (receives[i].bytes > 0 && receives[i].peer != c->rank)
            first = nccl.Recv(receives[i].data, receives[i].bytes, ncclUint8, receives[i].peer, comm, stream);
    ncclResult_t last = nccl.GroupEnd();  // also after an error: a group must not stay open
    end(c, stream, started(first) ? last : first, "exchange");
}

// ---- waiting, and values of the host

static int wait(Comm* c, Stream s, char* err, size_t errlen) {
    World* w = world_of(c);
    if (!w->failed) {
        CUDA_CHECK(cudaEventRecord(w->finished, cuda_stream(s)));
        settle(c, w->finished, "waiting for the GPU");
    }
    return w->failed ? world_words(c, err, errlen) : 0;
}

static void copy_staged(void* to, const void* from, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda.stream));
}

static int all_gather_host(Comm* c, void* out, const void* in, size_t bytes, char* err, size_t errlen) {
    World* w = world_of(c);
    size_t most = w->staging_bytes / (size_t)c->size / STAGING_ALIGNMENT * STAGING_ALIGNMENT, rank = (size_t)c->rank;
    for (size_t done = 0, n; done < bytes; done += n) {
        n = MIN(most, bytes - done);
        memcpy(w->pinned + rank * n, (const char*)in + done, n);
        copy_staged(w->staging + rank * n, w->pinned + rank * n, n);
        if (begin(c, cuda.stream)) break;
        ncclResult_t result =
            nccl.AllGather(w->staging + rank * n, w->staging, n, ncclUint8, nccl_of(c)->nccl, cuda.stream);
        end(c, cuda.stream, result, "all-gather of host values");
        if (w->failed) break;
        copy_staged(w->pinned, w->staging, (size_t)c->size * n);
        if (wait(c, NULL, err, errlen)) return -1;
        for (size_t r = 0; r < (size_t)c->size; r++) memcpy((char*)out + r * bytes + done, w->pinned + r * n, n);
    }
    return w->failed ? world_words(c, err, errlen) : 0;
}

static int broadcast_host(Comm* c, void* x, size_t bytes, int root, char* err, size_t errlen) {
    World* w = world_of(c);
    for (size_t done = 0, n; done < bytes && !w->failed; done += n) {
        n = MIN(w->staging_bytes, bytes - done);
        if (c->rank == root) {
            memcpy(w->pinned, (const char*)x + done, n);
            copy_staged(w->staging, w->pinned, n);
        }
        broadcast(c, w->staging, n, root, NULL);
        if (w->failed) break;
        copy_staged(w->pinned, w->staging, n);
        if (wait(c, NULL, err, errlen)) return -1;
        memcpy((char*)x + done, w->pinned, n);
    }
    return w->failed ? world_words(c, err, errlen) : 0;
}

// ---- opening, splitting, closing

static ncclConfig_t nccl_config() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 1;  // parts use the channels and buffers of the world, hundreds of MiB else
    return config;
}

static NcclComm* new_comm(const CommTable* table, World* w, int rank, int size, double timeout_seconds) {
    NcclComm* p = (NcclComm*)calloc(1, sizeof *p);
    if (!p) die("no memory for a Comm");
    p->comm.table = table;
    p->comm.rank = rank;
    p->comm.size = size;
    p->comm.timeout_seconds = timeout_seconds;
    p->comm.state = p;
    p->world = w;
    w->comms++;
    return p;
}

// Unchecked: where the GPU has failed everything fails, and its words were said.
static void free_world(World* w) {
    cudaFree(w->staging);
    cudaFreeHost(w->pinned);
    cudaEventDestroy(w->finished);
    cudaEventDestroy(w->last);
#ifdef HAVE_MPI
    if (w->finalize_mpi && !w->failed) MPI_Finalize();  // it waits for all ranks: not after one is missing
#endif
    free(w);
}

// Says goodbye where all are well: NCCL waits for the other ranks of the machine.
static void close_nccl(Comm* c) {
    if (!c) return;
    NcclComm* p = nccl_of(c);
    World* w = p->world;
    if (!w->failed && w->any) settle(c, w->last, "closing");
    if (!w->failed) {
        ncclResult_t result = nccl.CommFinalize(p->nccl);
        if (result == ncclInProgress) settle(c, NULL, "closing");
        else if (result != ncclSuccess) broken_call(c, result, "closing");
    }
    if (p->nccl && w->failed) nccl.CommAbort(p->nccl);
    else if (p->nccl) nccl.CommDestroy(p->nccl);
    free(p);
    if (--w->comms == 0) free_world(w);
}

typedef struct Member {
    int color, key;
} Member;

// Rank and size of this rank's part. 1 when no part has more than one rank, so that there is nothing to make.
static int find_part(const Member* members, int rank, int size, int* part_rank, int* part_size) {
    int all_single = 1;
    *part_rank = *part_size = 0;
    for (int i = 0; i < size; i++) {
        const Member *m = &members[i], *own = &members[rank];
        for (int j = 0; j < i; j++) all_single &= m->color < 0 || members[j].color != m->color;
        if (m->color != own->color) continue;
        ++*part_size;
        *part_rank += m->key < own->key || (m->key == own->key && i < rank);
    }
    return all_single;
}

// NCCL writes p->nccl when it is done, so p lives until then.
static int split_nccl(Comm* c, NcclComm* p, int color, int key) {
    ncclConfig_t config = nccl_config();
    ncclResult_t result = nccl.CommSplit(nccl_of(c)->nccl, color, key, &p->nccl, &config);
    if (!started(result)) return broken_call(c, result, "splitting a communicator");
    if (settle(c, NULL, "splitting a communicator")) return -1;
    return p->nccl ? settle(&p->comm, NULL, "splitting a communicator") : 0;
}

// A part of one rank is no communicator, but every rank takes part in making the others.
static int split(Comm* c, Comm** part, int color, int key, char* err, size_t errlen) {
    Member* members = (Member*)malloc((size_t)c->size * sizeof *members);
    Member own = {MAX(color, -1), key};
    int rank, size;
    *part = NULL;
    if (!members) return fail(err, errlen, "no memory to split %d ranks", c->size);
    if (all_gather_host(c, members, &own, sizeof own, err, errlen)) return free(members), -1;
    int all_single = find_part(members, c->rank, c->size, &rank, &size);
    int communicator = own.color >= 0 && size > 1;
    free(members);
    if (!all_single) {
        NcclComm* p = new_comm(c->table, world_of(c), rank, size, c->timeout_seconds);
        p->comm.local_rank = c->local_rank;
        p->comm.local_size = c->local_size;
        if (split_nccl(c, p, communicator ? own.color : NCCL_SPLIT_NOCOLOR, rank)) {
            close_nccl(&p->comm);
            return world_words(c, err, errlen);
        }
        if (communicator) *part = &p->comm;
        else world_of(c)->comms--, free(p);
    }
    if (own.color < 0 || communicator) return 0;
    return comm_open_self(part, c->local_rank, c->local_size, c->timeout_seconds, err, errlen);
}

static const CommTable nccl_table = {
    "nccl",          all_reduce,     reduce_scatter, all_gather, broadcast,  exchange,
    all_gather_host, broadcast_host, wait,           split,      close_nccl,
};

// ---- how ranks find each other

#ifdef HAVE_MPI
// Rank 0's id to all by MPI. 0; -1 with words; 1 when this program's MPI does not know the launcher.
static int id_by_mpi(ncclUniqueId* unique, const RankIdentity* id, double timeout_seconds, int* finalize, char* err,
                     size_t errlen) {
    struct {
        ncclUniqueId id;
        ncclResult_t result;
    } message = {};
    int initialized = 0, finalized = 0, rank = 0, size = 0, arrived = 0;
    MPI_Request request;
    MPI_Finalized(&finalized);
    if (finalized) return fail(err, errlen, "MPI was finalized: NCCL can be opened by MPI only once a process");
    MPI_Initialized(&initialized);
    if (!initialized) MPI_Init(NULL, NULL), *finalize = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank != id->rank || size != id->size) return 1;
    if (rank == 0) message.result = nccl.GetUniqueId(&message.id);
    MPI_Ibcast(&message, (int)sizeof message, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
    for (double start = now_seconds(); !arrived; pause_between_polls(now_seconds() - start)) {
        MPI_Test(&request, &arrived, MPI_STATUS_IGNORE);
        if (!arrived && now_seconds() - start > timeout_seconds)
            return fail(err, errlen, "rank %d of %d: no word from rank 0 by MPI in %g s", rank, size, timeout_seconds);
    }
    if (message.result != ncclSuccess)
        return fail(err, errlen, "ncclGetUniqueId on rank 0: %s; NCCL_DEBUG=INFO tells more",
                    nccl.GetErrorString(message.result));
    *unique = message.id;
    return 0;
}
#endif

// With NCCL_COMM_ID, host and port where rank 0 listens, every rank computes the same id and no message is needed.
// It comes from MASTER_ADDR and MASTER_PORT; not under mpirun, which hands on no variables to other machines unless
// told to, where MPI is there. torchrun itself listens at its port, so NCCL takes the next.
static int share_id(ncclUniqueId* unique, const RankIdentity* id, double timeout_seconds, int* finalize, char* err,
                    size_t errlen) {
    if (!getenv("NCCL_COMM_ID")) {
#ifdef HAVE_MPI
        if (strcmp(id->source, "mpirun") == 0) {
            int result = id_by_mpi(unique, id, timeout_seconds, finalize, err, errlen);
            if (result <= 0) return result;
        }
        const char* without = "";
#else
        (void)timeout_seconds, (void)finalize;
        const char* without = ", or build with MPI and start with its mpirun";
#endif
        if (!id->master[0])
            return fail(err, errlen,
                        "rank %d of %d (%s): nothing says where rank 0 is: set MASTER_ADDR and MASTER_PORT on all "
                        "ranks to its host and a free port%s",
                        id->rank, id->size, id->source, without);
        char address[sizeof id->master + 16];
        int port = id->master_port + (getenv("TORCHELASTIC_RUN_ID") != NULL);
        snprintf(address, sizeof address, strchr(id->master, ':') ? "[%s]:%d" : "%s:%d", id->master, port);
        setenv("NCCL_COMM_ID", address, 1);
    }
    ncclResult_t result = nccl.GetUniqueId(unique);
    if (result == ncclSuccess) return 0;
    return fail(err, errlen, "ncclGetUniqueId with NCCL_COMM_ID=%.200s: %s; %s", getenv("NCCL_COMM_ID"),
                nccl.GetErrorString(result), advice(result, ""));
}

// ---- opening

static int open_staging(Comm* c, char* err, size_t errlen) {
    World* w = world_of(c);
    w->staging_bytes = MAX((size_t)STAGING_BYTES, (size_t)c->size * STAGING_ALIGNMENT);
    if (cudaMalloc((void**)&w->staging, w->staging_bytes) == cudaSuccess &&
        cudaMallocHost((void**)&w->pinned, w->staging_bytes) == cudaSuccess)
        return 0;
    cudaGetLastError();
    broken(c, "no memory for %zu KiB to exchange values of the host", w->staging_bytes >> 10);
    return world_words(c, err, errlen);
}

// Where the launcher does not tell, ranks with one host name are those of one machine.
static int find_local_ranks(Comm* c, char* err, size_t errlen) {
    char host[256] = "";
    uint64_t own, *all = (uint64_t*)malloc((size_t)c->size * sizeof *all);
    if (!all) return fail(err, errlen, "no memory for the hosts of %d ranks", c->size);
    gethostname(host, sizeof host - 1);
    own = hash_bytes(host, strlen(host), 0);
    int result = all_gather_host(c, all, &own, sizeof own, err, errlen);
    c->local_rank = c->local_size = 0;
    for (int r = 0; r < c->size && result == 0; r++) {
        c->local_rank += all[r] == own && r < c->rank;
        c->local_size += all[r] == own;
    }
    free(all);
    return result;
}

static int open_nccl(Comm* c, const ncclUniqueId* unique, char* err, size_t errlen) {
    NcclComm* p = nccl_of(c);
    ncclConfig_t config = nccl_config();
    ncclResult_t result = nccl.CommInitRankConfig(&p->nccl, c->size, *unique, c->rank, &config);
    if (!started(result)) {
        broken_call(c, result, "opening NCCL");
        return world_words(c, err, errlen);
    }
    if (settle(c, NULL, "opening NCCL")) return world_words(c, err, errlen);
    if (open_staging(c, err, errlen)) return -1;
    return c->local_size > 0 ? 0 : find_local_ranks(c, err, errlen);
}

extern "C" int comm_open_nccl(Comm** world, const RankIdentity* id, double timeout_seconds, char* err, size_t errlen) {
    ncclUniqueId unique;
    int finalize = 0;
    *world = NULL;
    if (id->size == 1) return comm_open_self(world, id->local_rank, id->local_size, timeout_seconds, err, errlen);
    if (load_nccl(err, errlen) || share_id(&unique, id, timeout_seconds, &finalize, err, errlen)) return -1;
    World* w = (World*)calloc(1, sizeof *w);
    if (!w) return fail(err, errlen, "no memory for a Comm");
    w->finalize_mpi = finalize;
    CUDA_CHECK(cudaEventCreateWithFlags(&w->finished, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&w->last, cudaEventDisableTiming));
    Comm* c = &new_comm(&nccl_table, w, id->rank, id->size, timeout_seconds)->comm;
    c->local_rank = id->local_rank;
    c->local_size = id->local_size;
    if (open_nccl(c, &unique, err, errlen)) return close_nccl(c), -1;
    *world = c;
    return 0;
}
