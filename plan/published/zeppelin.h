// zeppelin.h - the parts of Zeppelin (arXiv 2509.21841, EuroSys 2026) that can be proven by themselves. No code of it
// is public; what is a reconstruction of ours says so.
#pragma once
#include "plan/cost.h"

// ---- formulas

// Causal query-key pairs that place a of a ring computes of a document of s tokens: chunks a and 2 ring_size - 1 - a of
// 2 ring_size.
int64_t zeppelin_pairs(int s, int ring_size, int a);
// Tokens of a rank from which on a round of a ring computes longer than it transfers: a round takes 2 m^2 h / F seconds
// and moves 4 m h_kv bytes (bf16), so m = 2 (h_kv / h) F / W. kv_share: h_kv / h.
double zeppelin_hidden_from(double kv_share, double flops_per_s, double bytes_per_s);
// Bytes of keys and values that a rank passes on in a round of a ring.
double zeppelin_round_bytes(double tokens_of_rank, int width, int elem_bytes);
// Time of a transfer between machines through `proxies` ranks on each side: dispatch, transfer, combine. In units of a
// direct transfer; inside: that of a byte inside a machine in the same units. Pipelined in small pieces it tends to the
// longest of the three.
double zeppelin_routed(int proxies, int nics, double inside, int pipelined);

// ---- partition, in zeppelin_partition.c

// Documents shorter than `inside` tokens stay on a rank, from `across` on they may be cut across machines, those
// between are cut inside one. inside <= across.
typedef struct ZeppelinZones {
    int inside, across;
} ZeppelinZones;

// Routed over direct time of exchanges across machines, at the best number of proxies; 1 on one machine.
double zeppelin_across_scale(const Setting* setting);
// Where the cost curves of the setting cross: see zeppelin.c.
ZeppelinZones zeppelin_zones(const Setting* setting, double across_scale);

typedef enum ZeppelinQueue { QUEUE_ACROSS, QUEUE_INSIDE, QUEUE_LOCAL, N_QUEUES } ZeppelinQueue;

typedef struct ZeppelinWindow {
    int first_rank, cp_size;
    ZeppelinQueue queue;  // in the order in which a rank works on them
} ZeppelinWindow;

// The ranks of every document: windows (n) for sorted (n), valid lengths in descending order; docs (n): their numbers,
// for messages. zones fall where ranks overflow: they come back as they were in the end. 0, or -1 with a message (a
// document is too long for all ranks, no memory).
int zeppelin_partition(ZeppelinWindow* windows, ZeppelinZones* zones, const int* sorted, const int* docs, int n,
                       const PlanLimits* limits, char* err, size_t errlen);

// ---- remapping, in zeppelin_remap.c

typedef struct Move {
    int from, to;
    int64_t tokens;
} Move;

// As even as whole tokens allow; one more for the ranks that have most, of equals the first.
void remap_targets(int64_t* targets, const int64_t* tokens, int ranks);
// Transfers that take every rank from tokens to targets (equal sums): inside machines first, then across, the largest
// surplus to the largest deficit. moves: room for 2 ranks. left (ranks) is scratch. Returns how many.
int remap_moves(Move* moves, const int64_t* tokens, const int64_t* targets, int64_t* left, int ranks, int node_size);
// Tokens that any such transfers take across machines at least: the sum of the machines' surpluses.
int64_t remap_least_across(const int64_t* tokens, const int64_t* targets, int ranks, int node_size);
