// comm_nccl.h - between the files of the NCCL transport: comm_nccl_open.cu finds the library, opens, splits and closes;
// comm_nccl.cu runs collectives, waits and fails. The idea is told there.
#pragma once
#include <nccl.h>

#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/deadline.h"
#include "kernels/host.h"
}

#if NCCL_VERSION_CODE < 21800
#error "nccl.h is older than 2.18, which brought ncclCommSplit: install a newer NCCL"
#endif

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

typedef struct NcclLibrary {
#define MEMBER(name) decltype(&nccl##name) name;
    NCCL_CALLS(MEMBER)
#undef MEMBER
} NcclLibrary;
extern NcclLibrary nccl;

enum {
    REQUESTS = 64,       // whose events are kept
    NCCL_ALIGNMENT = 16  // bytes, of parts of the staging memory
};

// What the Comms that come from one comm_open_nccl share.
typedef struct World {
    int comms;   // not yet closed
    int failed;  // then `error` says why, and nothing is started any more
    char error[ERR_BYTES];
    cudaStream_t side;                   // all collectives, in the order of the calls
    cudaEvent_t computed;                // as far as the caller's stream had come when the last collective began
    cudaEvent_t finished;                // of the wait that is going on
    cudaEvent_t communicated[REQUESTS];  // that of request t at t % REQUESTS
    Request last;                        // begun; they are counted from 1
    char *staging, *pinned;              // staging_bytes on the device, and as many page-locked on the host
    size_t staging_bytes;
    Comm* mpi;  // by which rank 0's id came; NULL: it did not
    int sms;    // multiprocessors that its kernels may have, 0: as many as NCCL likes
} World;

typedef struct NcclComm {
    Comm comm;
    World* world;
    ncclComm_t nccl;  // NULL after a failure
} NcclComm;

static inline NcclComm* nccl_of(Comm* c) { return (NcclComm*)c; }
static inline World* nccl_world(Comm* c) { return nccl_of(c)->world; }

// ---- opening (comm_nccl_open.cu)

int nccl_split(Comm* c, Comm** part, const Part* p, char* err, size_t errlen);
void nccl_close(Comm* c);

// ---- collectives, failures (comm_nccl.cu)

extern const Transport nccl_transport;

// What a person may try.
const char* nccl_advice(ncclResult_t result, const char* details);

// Records the first failure and aborts the communicator; -1.
__attribute__((format(printf, 2, 3))) int nccl_broken(Comm* c, const char* format, ...);
int nccl_broken_call(Comm* c, ncclResult_t result, const char* what);

// The message of the world's first failure; -1.
int nccl_error(Comm* c, char* err, size_t errlen);

// Ends the communicator and with it its kernels, whatever they wait for.
void nccl_abort(Comm* c);

// A call of NCCL, which may wait for other ranks: when that takes longer than timeout_seconds the process ends with a
// line on stderr (deadline.h). 0, or -1 after a failure.
template <class Call>
int nccl_call(Comm* c, const char* what, Call call) {
    deadline_begin(c->timeout_seconds, "rank %d of %d: %s", c->rank, c->size, what);
    ncclResult_t result = call();
    deadline_end();
    return result == ncclSuccess ? 0 : nccl_broken_call(c, result, what);
}

// Waits for the event by polling, no longer than timeout_seconds. 0, or -1 after a failure.
int nccl_settle(Comm* c, cudaEvent_t event, const char* what);

// From now on, until it is closed, the backend waits for the device by this Comm: see CudaDevice.settle.
void nccl_watch(Comm* c);
void nccl_unwatch(const Comm* c);
