// comm_nccl_open.cu - NCCL worlds and their parts: opening, splitting, closing. A part of one rank is no communicator
// but a Comm that copies (comm_open_alone), for NCCL would take memory as for many.
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/comm_nccl.h"
#include "kernels/cuda/library.h"

NcclLibrary nccl;

static int load(char* err, size_t errlen) {
    static const char* const files[] = {"libnccl.so.2", NULL};
    static const LibrarySymbol symbols[] = {
#define SYMBOL(name) {"nccl" #name, (void**)&nccl.name},
        NCCL_CALLS(SYMBOL)
#undef SYMBOL
    };
    return library_open("NCCL", files, symbols, COUNT(symbols), err, errlen);
}

// ---- how the ranks find each other: rank 0's id must reach all of them
//
// With NCCL_COMM_ID, host and port where rank 0 listens, every rank computes the same id and no message is needed.
// It comes from MASTER_ADDR and MASTER_PORT; not under mpirun, which hands on no variables to other nodes unless told
// to, where MPI is there. torchrun itself listens at its port, so NCCL takes the next.

static int id_by_mpi(ncclUniqueId* unique, Comm* mpi, char* err, size_t errlen) {
    struct {
        ncclUniqueId id;
        ncclResult_t result;
    } message = {};
    if (mpi->rank == 0) message.result = nccl.GetUniqueId(&message.id);
    if (mpi->table->broadcast_host(mpi, &message, sizeof message, 0, err, errlen)) return -1;
    if (message.result != ncclSuccess)
        return fail(err, errlen, "ncclGetUniqueId on rank 0: %s; NCCL_DEBUG=INFO tells more",
                    nccl.GetErrorString(message.result));
    *unique = message.id;
    return 0;
}

// Rank 0's id on all ranks. 0, or -1 with a message. *mpi becomes the Comm by which it came, if any: it keeps MPI open
// for the launcher, which takes a rank that leaves without MPI_Finalize for one that failed.
static int share_id(ncclUniqueId* unique, const RankIdentity* id, double timeout_seconds, Comm** mpi, char* err,
                    size_t errlen) {
    *mpi = NULL;
    if (!getenv("NCCL_COMM_ID")) {
        if (strcmp(id->source, "mpirun") == 0) {
            if (comm_open_mpi(mpi, id, timeout_seconds, err, errlen) == 0) return id_by_mpi(unique, *mpi, err, errlen);
            if (!id->master[0]) return -1;
        }
        if (!id->master[0])
            return fail(err, errlen,
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

static Comm* new_comm(World* w, int rank, int size, double timeout_seconds) {
    Comm* c = comm_new(sizeof(NcclComm), &nccl_transport, rank, size, timeout_seconds);
    if (!c) die("no memory for a Comm of %d ranks", size);
    nccl_of(c)->world = w;
    w->comms++;
    return c;
}

// ---- closing, splitting

// Unchecked: where the GPU has failed everything fails, and its message was given.
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

// Where nothing has failed NCCL finalizes, which waits for the other ranks of the node.
void nccl_close(Comm* c) {
    NcclComm* p = nccl_of(c);
    World* w = p->world;
    if (!w->failed && w->last > 0) nccl_settle(c, w->communicated[w->last % REQUESTS], "closing");
    if (!w->failed) nccl_call(c, "closing", [=] { return nccl.CommFinalize(p->nccl); });
    if (!w->failed) nccl_call(c, "closing", [=] { return nccl.CommDestroy(p->nccl); });
    if (w->failed) nccl_abort(c);
    nccl_unwatch(c);
    free(c);
    if (--w->comms == 0) free_world(w);
}

// Every rank takes part in making communicators, also one that gets none.
int nccl_split(Comm* c, Comm** part, const Part* p, char* err, size_t errlen) {
    ncclConfig_t config = nccl_config(nccl_world(c));
    ncclComm_t made = NULL;
    int color = p->size > 1 ? p->color : NCCL_SPLIT_NOCOLOR;
    if (!p->single && nccl_call(c, "splitting a communicator",
                                [&] { return nccl.CommSplit(nccl_of(c)->nccl, color, p->rank, &made, &config); }))
        return nccl_error(c, err, errlen);
    if (p->size == 1) return comm_open_cuda_self(part, c->timeout_seconds, err, errlen);
    if (p->size > 1) *part = new_comm(nccl_world(c), p->rank, p->size, c->timeout_seconds), nccl_of(*part)->nccl = made;
    return 0;
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
    return comm_find_nodes(c, err, errlen);
}

extern "C" int comm_open_nccl(Comm** world, const RankIdentity* id, double timeout_seconds, char* err, size_t errlen) {
    ncclUniqueId unique;
    Comm* mpi;
    int sms = exchange_processors(err, errlen);
    *world = NULL;
    if (sms < 0) return -1;
    if (id->size == 1) return comm_open_cuda_self(world, timeout_seconds, err, errlen);
    if (load(err, errlen) || share_id(&unique, id, timeout_seconds, &mpi, err, errlen)) return -1;
    World* w = (World*)calloc(1, sizeof *w);
    if (!w) return fail(err, errlen, "no memory for a Comm");
    w->mpi = mpi;
    w->sms = sms;
    open_streams(w);
    Comm* c = new_comm(w, id->rank, id->size, timeout_seconds);
    c->local_rank = id->local_rank;
    c->local_size = id->local_size;
    if (open_communicator(c, &unique, err, errlen)) return nccl_close(c), -1;
    nccl_watch(c);
    *world = c;
    return 0;
}
