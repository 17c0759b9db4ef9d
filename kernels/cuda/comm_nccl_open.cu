// comm_nccl_open.cu - NCCL worlds and their parts: opening, splitting, closing. A part of one rank is no communicator
// but a Comm that copies (comm_self.h), for NCCL would take memory as for many.
#include <stdlib.h>

#include "kernels/cuda/comm_nccl.h"

extern "C" {
#include "kernels/comm_nodes.h"
}
#include "kernels/cuda/comm_self.h"

enum { STAGING_BYTES = 1 << 20 };  // larger values of the host travel in pieces

static ncclConfig_t nccl_config() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
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

// Unchecked: where the GPU has failed everything fails, and its words were said.
static void free_world(World* w) {
    cudaFree(w->staging);
    cudaFreeHost(w->pinned);
    for (int i = 0; i < REQUESTS; i++) cudaEventDestroy(w->communicated[i]);
    cudaEventDestroy(w->computed);
    cudaEventDestroy(w->finished);
    cudaStreamDestroy(w->side);
    if (w->finalize_mpi && !w->failed) nccl_finalize_mpi();  // it waits for all ranks: not after one is missing
    free(w);
}

// Says goodbye where all are well: NCCL waits for the other ranks of the machine.
void nccl_close(Comm* c) {
    if (!c) return;
    NcclComm* p = nccl_of(c);
    World* w = p->world;
    if (!w->failed && w->last > 0) nccl_settle(c, w->communicated[w->last % REQUESTS], "closing");
    if (!w->failed) {
        ncclResult_t result = nccl.CommFinalize(p->nccl);
        if (result == ncclInProgress) nccl_settle(c, NULL, "closing");
        else if (result != ncclSuccess) nccl_broken_call(c, result, "closing");
    }
    if (p->nccl && w->failed) nccl.CommAbort(p->nccl);
    else if (p->nccl) nccl.CommDestroy(p->nccl);
    free_comm(p);
    if (w->comms == 0) free_world(w);
}

// ---- splitting

typedef struct Member {
    int color, key;
} Member;

// The place of a member in its part, and the ranks of that part.
static int place_in_part(const Member* members, int n, int member, int* size) {
    const Member* own = &members[member];
    int place = *size = 0;
    for (int i = 0; i < n; i++) {
        const Member* m = &members[i];
        if (m->color != own->color) continue;
        ++*size;
        place += m->key < own->key || (m->key == own->key && i < member);
    }
    return place;
}

// No part has more than one rank: there is nothing to make.
static int all_single(const Member* members, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (members[i].color >= 0 && members[i].color == members[j].color) return 0;
    return 1;
}

// Comm.node of the part: its members' of the whole, numbered anew. machine (c->size) is for use here.
static void number_part(const Comm* c, const Member* members, NcclComm* p, uint64_t* machine) {
    int size;
    for (int i = 0; i < c->size; i++)
        if (members[i].color == members[c->rank].color)
            machine[place_in_part(members, c->size, i, &size)] = (uint64_t)c->node[i];
    comm_number_nodes(p->node, machine, p->comm.size);
}

// NCCL writes p->nccl when it is done, so p lives until then.
static int split_communicator(Comm* c, NcclComm* p, int color, int key) {
    ncclConfig_t config = nccl_config();
    ncclResult_t result = nccl.CommSplit(nccl_of(c)->nccl, color, key, &p->nccl, &config);
    if (!nccl_started(result)) return nccl_broken_call(c, result, "splitting a communicator");
    if (nccl_settle(c, NULL, "splitting a communicator")) return -1;
    return p->nccl ? nccl_settle(&p->comm, NULL, "splitting a communicator") : 0;
}

// Every rank takes part in making communicators, also one that gets none.
static int split_members(Comm* c, Comm** part, const Member* members, uint64_t* machine, char* err, size_t errlen) {
    int color = members[c->rank].color, size, rank = place_in_part(members, c->size, c->rank, &size);
    int communicator = color >= 0 && size > 1;
    if (!all_single(members, c->size)) {
        NcclComm* p = new_comm(nccl_world(c), rank, size, c->timeout_seconds);
        if (split_communicator(c, p, communicator ? color : NCCL_SPLIT_NOCOLOR, rank))
            return nccl_close(&p->comm), nccl_words(c, err, errlen);
        if (!communicator) {
            free_comm(p);
        } else {
            number_part(c, members, p, machine);
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
    uint64_t* machine = (uint64_t*)malloc((size_t)c->size * sizeof *machine);
    *part = NULL;
    if (!members || !machine) die("no memory to split %d ranks", c->size);
    int result = nccl_gather_host(c, members, &own, sizeof own, err, errlen);
    if (result == 0) result = split_members(c, part, members, machine, err, errlen);
    free(members);
    free(machine);
    return result;
}

// ---- opening

// The side stream goes first where both have blocks to run: an exchange needs few, and other ranks wait for it.
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
    nccl_broken(c, "no memory for %zu KiB to exchange values of the host", w->staging_bytes >> 10);
    return nccl_words(c, err, errlen);
}

static int open_communicator(Comm* c, const ncclUniqueId* unique, char* err, size_t errlen) {
    NcclComm* p = nccl_of(c);
    ncclConfig_t config = nccl_config();
    ncclResult_t result = nccl.CommInitRankConfig(&p->nccl, c->size, *unique, c->rank, &config);
    if (!nccl_started(result)) {
        nccl_broken_call(c, result, "opening NCCL");
        return nccl_words(c, err, errlen);
    }
    if (nccl_settle(c, NULL, "opening NCCL")) return nccl_words(c, err, errlen);
    if (open_staging(c, err, errlen)) return -1;
    return comm_find_nodes(c, p->node, err, errlen);
}

extern "C" int comm_open_nccl(Comm** world, const RankIdentity* id, double timeout_seconds, char* err, size_t errlen) {
    ncclUniqueId unique;
    int finalize = 0;
    *world = NULL;
    if (id->size == 1) return comm_open_cuda_self(world, id->local_rank, id->local_size, timeout_seconds, err, errlen);
    if (nccl_load(err, errlen) || nccl_share_id(&unique, id, timeout_seconds, &finalize, err, errlen)) return -1;
    World* w = (World*)calloc(1, sizeof *w);
    if (!w) return fail(err, errlen, "no memory for a Comm");
    w->finalize_mpi = finalize;
    open_streams(w);
    Comm* c = &new_comm(w, id->rank, id->size, timeout_seconds)->comm;
    c->local_rank = id->local_rank;
    c->local_size = id->local_size;
    if (open_communicator(c, &unique, err, errlen)) return nccl_close(c), -1;
    *world = c;
    return 0;
}
