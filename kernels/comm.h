// comm.h - the table of exchanges between ranks. One transport fills one table; a Comm is a set of ranks over it.
//
// Contract of every entry, unless it says otherwise:
//   - all ranks of the Comm call it in the same order with matching sizes;
//   - memory is the device's that the Comm was opened for; work is ordered on the stream and may not have finished on
//     return. Nothing is allocated;
//   - sums are taken in the element type, in an order that depends only on the number of ranks: the same bits each run;
//   - a count of 0 is fine and does nothing;
//   - a rank that has died or a broken link never hangs the others for ever: `wait` and the ..._host entries return -1
//     with words after at most `timeout_seconds`.
#pragma once
#include "kernels/kernels.h"

typedef struct Comm Comm;

// One of the messages of an exchange: bytes to or from `peer`, a rank of the Comm.
typedef struct Transfer {
    int peer;
    void* data;
    size_t bytes;  // 0: no message; both sides must agree
} Transfer;

typedef struct CommTable {
    const char* name;  // "nccl", ...

    // x (n) = sum over ranks of x (n), on every rank. dt F32, BF16 or F64.
    void (*all_reduce)(Comm* c, void* x, size_t n, DType dt, Stream s);
    // out (n) = this rank's part of the sum over ranks of in (size * n); out may be in + rank * n.
    void (*reduce_scatter)(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s);
    // out (size * n) = the `in` (n) of all ranks in rank order; in may be out + rank * n.
    void (*all_gather)(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s);
    void (*broadcast)(Comm* c, void* x, size_t bytes, int root, Stream s);
    // All messages at once; between two ranks they match in order. Messages to oneself are copies. Covers all-to-all
    // with unequal counts and the steps of a ring. Ranks that neither send nor receive need not call it.
    void (*exchange)(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives, Stream s);

    // Values in host memory, for small things (a plan's hash, speeds): have finished on return. 0, or -1 with words.
    int (*all_gather_host)(Comm* c, void* out, const void* in, size_t bytes, char* err, size_t errlen);
    int (*broadcast_host)(Comm* c, void* x, size_t bytes, int root, char* err, size_t errlen);
    // Waits until the work on s is done. 0; or -1 with words when a rank or a link failed, or nothing moved for
    // timeout_seconds. After -1 the Comm is aborted: only close may follow.
    int (*wait)(Comm* c, Stream s, char* err, size_t errlen);

    // The ranks with equal color become a Comm of their own, in the order of key (then of rank). A negative color:
    // none, *part is NULL. All ranks call it. 0, or -1 with words.
    int (*split)(Comm* c, Comm** part, int color, int key, char* err, size_t errlen);
    void (*close)(Comm* c);
} CommTable;

struct Comm {
    const CommTable* table;
    int rank, size;
    int local_rank, local_size;  // among the ranks of this machine; of the world
    double timeout_seconds;
    void* state;  // the transport's
};

// Who this process is among those that were started together, from the environment: torchrun's variables, mpirun's,
// Slurm's; alone without any. local_size is 0 where the launcher does not say it; comm_open_nccl then counts the ranks
// with the same host name.
typedef struct RankIdentity {
    int rank, size, local_rank, local_size;
    const char* source;  // "torchrun", "mpirun", "slurm" or "alone"
    char master[256];    // host that rank 0 runs on; empty when the environment does not say
    int master_port;
} RankIdentity;

// 0, or -1 with a message when variables contradict each other (a rank beyond the size, no number).
int rank_identity(RankIdentity* id, char* err, size_t errlen);

// NCCL over all ranks of the identity, on the current CUDA device. 0 with *world, or -1 with words (NCCL missing, a
// rank that does not come, two ranks on one GPU). With size 1 no NCCL communicator is made: entries copy.
int comm_open_nccl(Comm** world, const RankIdentity* id, double timeout_seconds, char* err, size_t errlen);
