// comm.h - collectives and messages between ranks. A Comm is a set of ranks over a transport (comm_transport.h), which
// carries bytes; comm.c does what all transports share: it counts them, tells the timer who waits, makes parts.
//
// Contract of every entry, unless it says otherwise:
//   - all ranks of the Comm call it in the same order with matching sizes;
//   - memory is the device's that the Comm was opened for; work is ordered on the stream and may not have finished on
//     return (on the CPU it has). Nothing is allocated;
//   - sums are taken in the element type (bf16 on the CPU in fp32, rounded once; NCCL may round in between), in an
//     order that depends only on the number of ranks: the same bits each run, on every rank;
//   - a count of 0 is fine and does nothing;
//   - a rank that has died or a broken link never hangs the others for ever: as soon as that is known, at the latest
//     after timeout_seconds without any progress, entries return with whatever memory holds, and every later one
//     returns at once; `wait` and the ..._host entries then return -1 with a message that names the rank. Where a
//     library's call itself does not come back in that time (deadline_begin) the process ends with a message.
//
// The communications of a Comm run one after another in the order of the calls, also those that only begin: ranks that
// follow one global order never wait for each other in a circle.
#pragma once
#include "kernels/kernels.h"
#include "kernels/timer.h"

typedef struct Comm Comm;

// One message: bytes to or from `peer`, a rank of the Comm.
typedef struct Transfer {
    int peer;
    void* data;
    size_t bytes;  // 0: no message; both sides must agree
} Transfer;

// The purposes that bytes are sent for: see Comm.sent.
typedef enum CommPurpose {
    COMM_OTHER,
    COMM_ULYSSES,     // tokens to heads and back
    COMM_RING,        // keys, values and their gradients
    COMM_ROUTE,       // parts of messages between nodes: to proxies of the sender's node, from those of the receiver's
    COMM_REMAP,       // tokens of documents that one rank attends to, and back
    COMM_GRADIENTS,   // reduce-scatter
    COMM_PARAMETERS,  // all-gather
    COMM_STATE,       // optimizer state, where tensor-parallel shares change
    COMM_PIPELINE,    // the residual stream between stages, and its gradient
    COMM_TENSOR,      // activations of a tensor-parallel group, and gradients of what its ranks all have
    COMM_SLICES,      // weights of slices that a slow rank gives away for a step, and their gradients
    COMM_HOST,        // host values that ranks compare: hashes, losses
    N_PURPOSES
} CommPurpose;

// A communication that has begun; 0: one that is over.
typedef uint64_t Request;

// The entries, the same for every transport; a test may put its own in front.
typedef struct CommTable {
    // x (n) = sum over ranks of x (n), on every rank. dt F32, BF16 or F64.
    void (*all_reduce)(Comm* c, void* x, size_t n, DType dt, Stream s);

    // These only begin: they may send what s has computed so far, and computing may go on while they run. Until `end`
    // nobody may touch their memory; work that s is given after `end` sees what was received and may overwrite what was
    // sent. Requests may be ended in any order. In a Comm without overlap they have finished on return.

    // out (n) = this rank's part of the sum over ranks of in (size * n); out may be in + rank * n.
    Request (*begin_reduce_scatter)(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s);
    // out (size * n) = the `in` (n) of all ranks in rank order; in may be out + rank * n.
    Request (*begin_all_gather)(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s);
    // Exchanges all messages at once; between two ranks they match in order. Messages to oneself are copies. It covers
    // all-to-all with unequal counts and the steps of a ring. The lists may be freed on return. Ranks that neither
    // send nor receive need not call it.
    Request (*begin_send_receive)(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                                  Stream s);
    void (*end)(Comm* c, Request request, Stream s);

    // These exchange small values in host memory (a plan's hash, speeds) and have finished on return. 0, or -1 with a
    // message.
    int (*all_gather_host)(Comm* c, void* out, const void* in, size_t bytes, Err err);
    int (*broadcast_host)(Comm* c, void* x, size_t bytes, int root, Err err);
    int (*barrier)(Comm* c, Err err);
    // Waits until the work on s and all communications that have begun are done. 0; or -1 with a message when a rank or
    // a link failed, or nothing moved for timeout_seconds. After -1 the Comm is aborted: only close may follow.
    int (*wait)(Comm* c, Stream s, Err err);

    // The ranks with equal color become a Comm of their own, in the order of key (then of rank). A negative color
    // is of no Comm: *part is NULL. All ranks call it. 0, or -1 with a message.
    int (*split)(Comm* c, Comm** part, int color, int key, Err err);
    void (*close)(Comm* c);
} CommTable;

struct Comm {
    const CommTable* table;
    const struct Transport* transport;
    const char* name;  // the transport's: "self", "local", "mpi", "nccl", "virtual"
    int rank, size;
    int local_size;  // ranks of the world on this host
    int* node;       // (size) the node of each rank, numbered in rank order from 0
    double timeout_seconds;
    int overlap;          // 0: begin_... finish before they return. May be changed when nothing is under way
    CommPurpose purpose;  // of the calls that follow
    // Bytes that this rank has sent to other ranks: [purpose][0] to ranks of its own node, [1] to others. Counted as if
    // every rank sent each other rank its part directly, whatever the transport does, so that a run's can be compared
    // with those of its plan:
    //   reduce-scatter, all-gather of n     n elements to each other rank
    //   all-reduce of n                     2 ceil(n / size) elements to each other rank
    //   broadcast                           everything from the root to each other rank, nothing from the others
    //   send/receive                        its messages, except those to oneself
    // Host values count for COMM_HOST; barriers, opening and splitting count nothing.
    uint64_t sent[N_PURPOSES][2];
    size_t route_least;  // least bytes of a message between nodes that goes through proxies (route.h); 0: none does
    int nics;            // NICs of a node; 0: each rank has one
    int at_once;         // ranks of this node that send outside at once in the calls that follow; 0: nobody says
    Request after;       // the next communication waits for it; transports that run them one after another ignore it
    // Seconds that the host waited in entries of this table: communication that no computing hid. It stays 0 with
    // NCCL, because there the device waits.
    double exposed_seconds;
    Timer* timer;  // of this rank, told when it begins and ends to wait in an entry; NULL: none
};

// These three begin a communication and end it at once.
static inline void comm_reduce_scatter(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    c->table->end(c, c->table->begin_reduce_scatter(c, out, in, n, dt, s), s);
}
static inline void comm_all_gather(Comm* c, void* out, const void* in, size_t n, DType dt, Stream s) {
    c->table->end(c, c->table->begin_all_gather(c, out, in, n, dt, s), s);
}
static inline void comm_send_receive(Comm* c, const Transfer* sends, int n_sends, const Transfer* receives,
                                     int n_receives, Stream s) {
    c->table->end(c, c->table->begin_send_receive(c, sends, n_sends, receives, n_receives, s), s);
}

// The place of this process among those that were started together, from the environment: torchrun's variables,
// mpirun's or Slurm's; without any it is alone.
typedef struct RankIdentity {
    int rank, size, local_rank;  // local_rank: among the ranks of this host
    const char* source;          // "torchrun", "mpirun", "slurm" or "alone"
    char master[256];            // host that rank 0 runs on; empty when the environment does not say
    int master_port;
} RankIdentity;

// Fills id. 0, or -1 with a message: variables contradict each other, or are no numbers.
int rank_identity(RankIdentity* id, Err err);

// Reads *value from a variable of the environment, digits alone, from `least` to `most`; one that is empty or not set
// leaves it. 0, or -1 with a message.
int variable_number(int* value, const char* name, int least, int most, Err err);

// Makes this process `ranks` ranks of one machine, without a launcher (forked.h). Each returns with its rank; the
// caller does not come back: it waits for them, and ends with their status. -1 with a message: it cannot be.
int comm_fork(int ranks, Err err);
int comm_is_forked(void);  // 1: this process is such a rank

// Opens the Comm of all ranks for the memory of a backend that kernels_find found: one rank needs nothing, several on
// the CPU are forked or need MPI, several on GPUs need NCCL. 0 with *world, or -1 with a message. comm_find_nodes
// explains RAGGED_NODE_SIZE.
int comm_open(Comm** world, const Kernels* k, const RankIdentity* id, double timeout_seconds, Err err);

// comm_open chooses from these transports. comm_open_host takes the one for host memory: comm_open_self for one rank,
// comm_open_local for ranks that were forked, comm_open_mpi for those of a launcher. comm_open_nccl is for the current
// CUDA device; with size 1 it makes no NCCL communicator, and entries copy.
int comm_open_host(Comm** world, const RankIdentity* id, double timeout_seconds, Err err);
int comm_open_self(Comm** world, double timeout_seconds, Err err);
int comm_open_local(Comm** world, double timeout_seconds, Err err);
int comm_open_mpi(Comm** world, const RankIdentity* id, double timeout_seconds, Err err);
int comm_open_nccl(Comm** world, const RankIdentity* id, double timeout_seconds, Err err);
