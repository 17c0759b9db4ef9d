// comm_nccl_open.cu - NCCL worlds and their parts: opening, splitting, closing. A part of one rank is no communicator
// but a Comm that copies (comm_open_alone), for NCCL would take memory as for many.
#include <stdio.h>
#include <stdlib.h>

#ifdef HAVE_MPI
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#endif

#include "kernels/cuda/comm_nccl.h"

// ---- how the ranks find each other: rank 0's id must reach all of them
//
// With NCCL_COMM_ID, host and port where rank 0 listens, every rank computes the same id and no message is needed.
// It comes from MASTER_ADDR and MASTER_PORT; not under mpirun, which hands on no variables to other nodes unless told
// to, where MPI is there. torchrun itself listens at its port, so NCCL takes the next.

#ifdef HAVE_MPI
// Rank 0's id to all by MPI. 0; -1 with a message; 1 when this program's MPI does not know the launcher.
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
    if (!initialized) {
        deadline_begin(timeout_seconds, "rank %d of %d: MPI_Init", id->rank, id->size);
        MPI_Init(NULL, NULL);
        deadline_end();
        host_keep_ignored();
        *finalize = 1;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank != id->rank || size != id->size) return 1;
    if (rank == 0) message.result = nccl.GetUniqueId(&message.id);
    MPI_Ibcast(&message, (int)sizeof message, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
    for (double start = now_seconds(); !arrived; nccl_pause(now_seconds() - start)) {
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

static void finalize_mpi(double timeout_seconds) {
    deadline_begin(timeout_seconds, "MPI_Finalize");
    MPI_Finalize();
    deadline_end();
}
#else
static void finalize_mpi(double) {}
#endif

// Rank 0's id on all ranks. 0, or -1 with a message. *finalize becomes 1 where that has initialised MPI: closing the
// world then calls finalize_mpi.
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
                nccl.GetErrorString(result), nccl_advice(result, ""));
}

// ---- making

enum { STAGING_BYTES = 1 << 20 };  // larger host values travel in pieces

// A matmul beside an exchange is planned for the multiprocessors that are left, and NCCL takes no more than these: else
// the last wave of a matmul waits for blocks of NCCL's, and it takes twice as long (PyTorch issue 143988).
// RAGGED_EXCHANGE_SMS=0 leaves both as they are, to measure what it is worth. -1 with a message.
static int exchange_processors(char* err, size_t errlen) {
    const char* text = getenv("RAGGED_EXCHANGE_SMS");
    char* end;
    if (!text || !*text) return MIN(cuda.sm_count / 8, 16);
    long number = strtol(text, &end, 10);
    if (*end || number < 0 || number >= cuda.sm_count)
        return fail(err, errlen, "RAGGED_EXCHANGE_SMS is \"%.40s\", expected 0 to %d", text, cuda.sm_count - 1);
    return (int)number;
}

static ncclConfig_t nccl_config(const World* w) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    if (w->sms > 0) config.maxCTAs = w->sms;
    config.splitShare = 1;  // parts use the channels and buffers of the world, hundreds of MiB else
    return config;
}

static NcclComm* new_comm(World* w, int rank, int size, double timeout_seconds) {
    NcclComm* p = (NcclComm*)calloc(1, sizeof *p);
    if (!p || !(p->node = (int*)calloc((size_t)size, sizeof *p->node))) die("no memory for a Comm of %d ranks", size);
    p->comm.table = &nccl_table;
    p->comm.rank = rank;
    p->comm.size = size;
    p->comm.node = p->node;
    p->comm.timeout_seconds = timeout_seconds;
    p->comm.state = p;
    p->world = w;
    w->comms++;
    return p;
}

static void free_comm(NcclComm* p) {
    p->world->comms--;
    free(p->node);
    free(p);
}

// ---- closing

// Unchecked: where the GPU has failed everything fails, and its message was given.
static void free_world(World* w, double timeout_seconds) {
    cuda.exchange_sms = 0;
    cudaFree(w->staging);
    cudaFreeHost(w->pinned);
    for (int i = 0; i < REQUESTS; i++) cudaEventDestroy(w->communicated[i]);
    cudaEventDestroy(w->computed);
    cudaEventDestroy(w->finished);
    cudaStreamDestroy(w->side);
    // It waits for all ranks: not after one is missing.
    if (w->finalize_mpi && !w->failed) finalize_mpi(timeout_seconds);
    free(w);
}

// Where nothing has failed NCCL finalizes, which waits for the other ranks of the node.
void nccl_close(Comm* c) {
    if (!c) return;
    NcclComm* p = nccl_of(c);
    World* w = p->world;
    double timeout_seconds = c->timeout_seconds;
    if (!w->failed && w->last > 0) nccl_settle(c, w->communicated[w->last % REQUESTS], "closing");
    if (!w->failed) nccl_call(c, "closing", [=] { return nccl.CommFinalize(p->nccl); });
    if (!w->failed) nccl_call(c, "closing", [=] { return nccl.CommDestroy(p->nccl); });
    if (w->failed) nccl_abort(c);
    nccl_unwatch(c);
    free_comm(p);
    if (w->comms == 0) free_world(w, timeout_seconds);
}

// ---- splitting

typedef struct Member {
    int color, key;
} Member;

// The rank of a member in its part, and the size of that part.
static int rank_in_part(const Member* members, int n, int member, int* size) {
    const Member* own = &members[member];
    int rank = *size = 0;
    for (int i = 0; i < n; i++) {
        const Member* m = &members[i];
        if (m->color != own->color) continue;
        ++*size;
        rank += m->key < own->key || (m->key == own->key && i < member);
    }
    return rank;
}

// No part has more than one rank: there is nothing to make.
static int all_single(const Member* members, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (members[i].color >= 0 && members[i].color == members[j].color) return 0;
    return 1;
}

// Comm.node of the part: its members' of the whole, numbered anew. host (c->size) is for use here.
static void number_part(const Comm* c, const Member* members, NcclComm* p, uint64_t* host) {
    int size;
    for (int i = 0; i < c->size; i++)
        if (members[i].color == members[c->rank].color)
            host[rank_in_part(members, c->size, i, &size)] = (uint64_t)c->node[i];
    comm_number_nodes(p->node, host, p->comm.size);
}

static int split_communicator(Comm* c, NcclComm* p, int color, int key) {
    ncclConfig_t config = nccl_config(nccl_world(c));
    return nccl_call(c, "splitting a communicator",
                     [&] { return nccl.CommSplit(nccl_of(c)->nccl, color, key, &p->nccl, &config); });
}

// Every rank takes part in making communicators, also one that gets none.
static int split_members(Comm* c, Comm** part, const Member* members, uint64_t* host, char* err, size_t errlen) {
    int color = members[c->rank].color, size, rank = rank_in_part(members, c->size, c->rank, &size);
    int communicator = color >= 0 && size > 1;
    if (!all_single(members, c->size)) {
        NcclComm* p = new_comm(nccl_world(c), rank, size, c->timeout_seconds);
        if (split_communicator(c, p, communicator ? color : NCCL_SPLIT_NOCOLOR, rank))
            return nccl_close(&p->comm), nccl_error(c, err, errlen);
        if (!communicator) {
            free_comm(p);
        } else {
            number_part(c, members, p, host);
            p->comm.local_rank = c->local_rank;
            p->comm.local_size = c->local_size;
            *part = &p->comm;
        }
    }
    if (color >= 0 && !communicator &&
        comm_open_cuda_self(part, c->local_rank, c->local_size, c->timeout_seconds, err, errlen))
        return -1;
    if (*part) (*part)->overlap = c->overlap;
    return 0;
}

int nccl_split(Comm* c, Comm** part, int color, int key, char* err, size_t errlen) {
    Member own = {MAX(color, -1), key}, *members = (Member*)malloc((size_t)c->size * sizeof *members);
    uint64_t* host = (uint64_t*)malloc((size_t)c->size * sizeof *host);
    *part = NULL;
    if (!members || !host) die("no memory to split %d ranks", c->size);
    int result = nccl_gather_host(c, members, &own, sizeof own, err, errlen);
    if (result == 0) result = split_members(c, part, members, host, err, errlen);
    free(members);
    free(host);
    return result;
}

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

static int open_staging(Comm* c, char* err, size_t errlen) {
    World* w = nccl_world(c);
    w->staging_bytes = MAX((size_t)STAGING_BYTES, (size_t)c->size * NCCL_ALIGNMENT);
    if (cudaMalloc((void**)&w->staging, w->staging_bytes) == cudaSuccess &&
        cudaMallocHost((void**)&w->pinned, w->staging_bytes) == cudaSuccess)
        return 0;
    cudaGetLastError();
    nccl_broken(c, "no memory for %zu KiB of staging for host values", w->staging_bytes >> 10);
    return nccl_error(c, err, errlen);
}

static int open_communicator(Comm* c, const ncclUniqueId* unique, char* err, size_t errlen) {
    NcclComm* p = nccl_of(c);
    ncclConfig_t config = nccl_config(nccl_world(c));
    if (nccl_call(c, "opening NCCL",
                  [&] { return nccl.CommInitRankConfig(&p->nccl, c->size, *unique, c->rank, &config); }))
        return nccl_error(c, err, errlen);
    if (open_staging(c, err, errlen)) return -1;
    return comm_find_nodes(c, p->node, err, errlen);
}

extern "C" int comm_open_nccl(Comm** world, const RankIdentity* id, double timeout_seconds, char* err, size_t errlen) {
    ncclUniqueId unique;
    int finalize = 0;
    int sms = exchange_processors(err, errlen);
    *world = NULL;
    if (sms < 0) return -1;
    if (id->size == 1) return comm_open_cuda_self(world, id->local_rank, id->local_size, timeout_seconds, err, errlen);
    if (nccl_load(err, errlen) || share_id(&unique, id, timeout_seconds, &finalize, err, errlen)) return -1;
    World* w = (World*)calloc(1, sizeof *w);
    if (!w) return fail(err, errlen, "no memory for a Comm");
    w->finalize_mpi = finalize;
    w->sms = sms;
    open_streams(w);
    Comm* c = &new_comm(w, id->rank, id->size, timeout_seconds)->comm;
    c->local_rank = id->local_rank;
    c->local_size = id->local_size;
    if (open_communicator(c, &unique, err, errlen)) return nccl_close(c), -1;
    nccl_watch(c);
    *world = c;
    return 0;
}
