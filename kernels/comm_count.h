// comm_count.h - inside the transports: the bytes that Comm.sent counts. Every rank is taken to send each other rank
// its part directly, whatever the transport does, so that the numbers of a plan can be compared with those of a run:
//
//   reduce-scatter, all-gather of n     n elements to each other rank
//   all-reduce of n                     2 ceil(n / size) elements to each other rank
//   broadcast                           everything from the root to each other rank, nothing from the others
//   exchange                            its messages; those to oneself are none
//
// Entries on device memory count for Comm.purpose. Host values count as COMM_HOST, whatever the purpose is. A barrier,
// and what opening and splitting have to say, count nothing.
#pragma once
#include "kernels/comm.h"

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
