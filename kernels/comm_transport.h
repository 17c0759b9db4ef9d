// comm_transport.h - inside the transports: the bytes that Comm.sent counts, the nodes of ranks, messages to oneself.
#pragma once
#include "kernels/comm.h"

// ---- bytes sent. Every rank counts as if it sent each other rank its part directly, whatever the transport does, so
// that the numbers of a plan can be compared with those of a run:
//
//   reduce-scatter, all-gather of n     n elements to each other rank
//   all-reduce of n                     2 ceil(n / size) elements to each other rank
//   broadcast                           everything from the root to each other rank, nothing from the others
//   send/receive                        its messages, except those to oneself
//
// Entries on device memory count for Comm.purpose, host values for COMM_HOST. Barriers, opening and splitting count
// nothing.

static inline void comm_count_to(Comm* c, CommPurpose purpose, int peer, size_t bytes) {
    if (peer != c->rank) c->sent[purpose][c->node[peer] != c->node[c->rank]] += bytes;
}

static inline void comm_count_to_each(Comm* c, CommPurpose purpose, size_t bytes) {
    for (int peer = 0; peer < c->size; peer++) comm_count_to(c, purpose, peer, bytes);
}

static inline void comm_count_reduce_scatter(Comm* c, size_t n, DType dt) {
    comm_count_to_each(c, c->purpose, n * dtype_bytes(dt));
}
static inline void comm_count_all_gather(Comm* c, size_t n, DType dt) {
    comm_count_to_each(c, c->purpose, n * dtype_bytes(dt));
}
static inline void comm_count_all_reduce(Comm* c, size_t n, DType dt) {
    comm_count_to_each(c, c->purpose, 2 * CEIL_DIV(n, (size_t)c->size) * dtype_bytes(dt));
}
static inline void comm_count_broadcast(Comm* c, size_t bytes, int root) {
    if (c->rank == root) comm_count_to_each(c, c->purpose, bytes);
}
static inline void comm_count_send_receive(Comm* c, const Transfer* sends, int n_sends) {
    for (int i = 0; i < n_sends; i++) comm_count_to(c, c->purpose, sends[i].peer, sends[i].bytes);
}
static inline void comm_count_all_gather_host(Comm* c, size_t bytes) { comm_count_to_each(c, COMM_HOST, bytes); }
static inline void comm_count_broadcast_host(Comm* c, size_t bytes, int root) {
    if (c->rank == root) comm_count_to_each(c, COMM_HOST, bytes);
}

// ---- nodes

// For a transport that opens: fills node (size) and lets Comm.node point to it. All ranks gather the hashes of their
// host names by all_gather_host, which must work already; Comm.sent is 0 afterwards. Where local_size is 0, counts
// local_rank and local_size. RAGGED_NODE_SIZE=k in the environment pretends that every k ranks make one node, for
// `node` alone: the ranks of a real node go on sharing its memory and GPUs. 0, or -1 with a message.
int comm_find_nodes(Comm* world, int* node, char* err, size_t errlen);

// For one that splits: node (size) = equal where host (size) is, numbered from 0 in the order of their first rank.
void comm_number_nodes(int* node, const uint64_t* host, int size);

// ---- messages to oneself, and the Comm of one rank

// Dies when a message names a rank that the Comm does not have. Returns how many of the messages have bytes;
// *remote += those of them that go to, or come from, another rank.
int comm_check_messages(const Comm* c, const Transfer* messages, int n, int* remote);

// Copies bytes > 0 to another place of the Comm's memory.
typedef void (*CopyBytes)(void* to, const void* from, size_t bytes, Stream s);

// The messages that this rank sends to itself: the first such send goes to the first such receive, and so on. Dies
// when they do not match.
void comm_copy_to_self(const Comm* c, const Transfer* sends, int n_sends, const Transfer* receives, int n_receives,
                       CopyBytes copy, Stream s);
void comm_copy_host(void* to, const void* from, size_t bytes, Stream s);

// The Comm of one rank over memory that `copy` copies; `wait` is CommTable.wait. local_rank and local_size are those of
// the world that it is a part of. 0, or -1 with a message.
int comm_open_alone(Comm** c, CopyBytes copy, int (*wait)(Comm* c, Stream s, char* err, size_t errlen), int local_rank,
                    int local_size, double timeout_seconds, char* err, size_t errlen);
