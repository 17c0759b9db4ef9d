// comm_nodes.h - inside the transports: which ranks share a machine.
#pragma once
#include "kernels/comm.h"

// For a transport that opens: fills node (size) and lets Comm.node point to it, after all ranks have gathered the
// hashes of their hosts' names by all_gather_host, which must work already; Comm.sent is 0 afterwards. local_rank and
// local_size are counted where local_size is 0. RAGGED_NODE_SIZE=k in the environment pretends that every k ranks make
// one machine, for `node` alone: the ranks of the real one go on sharing its memory and GPUs. 0, or -1 with words.
int comm_find_nodes(Comm* world, int* node, char* err, size_t errlen);

// For one that splits: node (size) = equal where machine (size) is, numbered from 0 in the order of their first rank.
void comm_number_nodes(int* node, const uint64_t* machine, int size);
