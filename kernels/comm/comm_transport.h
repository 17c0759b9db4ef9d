// comm_transport.h - a transport does what differs between the memories of ranks. comm.c does the rest, once for all
// of them: it counts bytes, tells the timer who waits, finds nodes and parts.
#pragma once
#include "kernels/comm/comm.h"

typedef enum OperationKind {
    OP_ALL_REDUCE,
    OP_BROADCAST,  // of host values alone
    OP_REDUCE_SCATTER,
    OP_ALL_GATHER,
    OP_SEND_RECEIVE
} OperationKind;

// One call of an entry: see comm.h.
typedef struct Operation {
    OperationKind kind;
    void* out;
    const void* in;  // the same as `out` in an all-reduce or a broadcast
    size_t bytes;    // of n elements
    DType dt;        // of a sum
    int root;
    const Transfer *sends, *receives;
    int n_sends, n_receives;
} Operation;

// This rank's part of a split Comm.
typedef struct Part {
    int color;          // negative: this rank is in no part
    int rank, size;     // of this rank in it; 0, 0 where it is in none
    const int* member;  // (size) the whole's rank of each
    int single;         // no part of this split has more than one rank
} Part;

typedef struct Transport {
    const char* name;
    double (*seconds)(void);  // the clock by which the host waits; NULL: it does not
    // Begins an operation that has bytes, or messages; a Comm without overlap ends it at once. 0: it is over.
    Request (*begin)(Comm* c, const Operation* o, Stream s);
    void (*end)(Comm* c, Request request, Stream s);  // no request is 0. NULL: all is over on return
    double (*most)(Comm* c, double mine);             // the maximum over all ranks, which call it; NULL: missing
    // Runs an all-gather or a broadcast of host memory to its end. 0, or -1 with a message.
    int (*run_on_host)(Comm* c, const Operation* o, Err err);
    int (*wait)(Comm* c, Stream s, Err err);
    // Makes *part by comm_new if this rank is in one; all ranks call it. 0, or -1 with a message.
    int (*split)(Comm* c, Comm** part, const Part* p, Err err);
    void (*close)(Comm* c);
} Transport;

// Makes a Comm as the first member of a struct of `bytes` bytes, 0 elsewhere; free() frees it. NULL without memory.
Comm* comm_new(size_t bytes, const Transport* transport, int rank, int size, double timeout_seconds);

// Numbers the nodes by the ranks' host names, and counts local_size; a transport that opens calls it once run_on_host
// works. RAGGED_NODE_SIZE=k in the environment pretends that every k ranks make one node, for `node` alone: the
// ranks of a real node go on sharing its memory and GPUs. 0, or -1 with a message.
int comm_find_nodes(Comm* world, Err err);

// out (n) = terms[0] (n) + terms[1] (n) + ... in that order, bf16 in fp32; out may be one of them.
void comm_add_in_order(void* out, const void** terms, int n_terms, size_t n, DType dt);

// ---- messages to oneself, and the Comm of one rank

static inline int comm_leaves(const Comm* c, const Transfer* t) { return t->bytes > 0 && t->peer != c->rank; }

// Copies bytes > 0 to another place of the Comm's memory.
typedef void (*CopyBytes)(void* to, const void* from, size_t bytes, Stream s);

// Copies the messages that this rank sends to itself: the first such send goes to the first such receive, and so on.
// Dies when they do not match.
void comm_copy_to_self(const Comm* c, const Operation* o, CopyBytes copy, Stream s);
void comm_copy_host(void* to, const void* from, size_t bytes, Stream s);

// Opens the Comm of one rank over memory that `copy` copies; `wait` is Transport.wait. 0, or -1 with a message.
int comm_open_alone(Comm** c, CopyBytes copy, int (*wait)(Comm* c, Stream s, Err err), double timeout_seconds, Err err);
