// virtual.h - a cluster that is not there: the program runs for real, ops and collectives advance clocks.
//
// The clock of a rank, a process, is in ms: an op adds what a machine's cost model says that it takes, a collective
// brings the clocks of its ranks together. All sums are in the order of the program: the same digits on every machine.
//
// Ops take, with C channels in, OC out, in a model with W matmul weights, L layers, NH heads:
//
//   a matmul of N tokens            token_ms N C OC / W / 3      forward, gradient of the input, of the weights alike
//   attention of NH' heads          pair_ms p NH' / NH / L       a third of it forward, two thirds backward
//   the end of a row's backward     micro_batch_ms               of a stage: before its gradient leaves
//   the update                      step_ms
//   anything else                   nothing
//
// p: twice the pairs of query and key, each token's pair with itself counting half: s^2 of a causal document of s
// tokens, whichever ranks compute its parts. Memory is address space until somebody writes to it; only uploads do.
#pragma once
#include "kernels/comm/comm.h"

// A communication as one rank sees it.
typedef struct VirtualTransfer {
    CommPurpose purpose;
    int ranks;           // ranks that take part
    int across;          // they are of several nodes
    int nodes;           // their nodes, in a reduce-scatter, all-gather or broadcast; 0: messages
    double sent, whole;  // bytes: to other ranks; and with what stays here
} VirtualTransfer;

typedef struct VirtualMachine {
    double token_ms, pair_ms, micro_batch_ms, step_ms;  // of one rank that computes the whole model
    double matmul_weights;                              // W, L, NH of the model that runs
    int layers, heads;
    double (*transfer_ms)(const void* context, const VirtualTransfer* transfer);
    const void* context;
} VirtualMachine;

// Returns the backend over another one, which computes the results; times are virtual. below NULL: nothing is computed.
const Kernels* virtual_kernels(const Kernels* below);
// Sets the ranks of a node, which are 8 at first; call it before comm_open.
void virtual_nodes(int node_size);
// Sets the machine; call it before the first op.
void virtual_use(const VirtualMachine* machine);

// ---- between the backend and its transport

double virtual_now(void);            // ms
void virtual_end_row(void);          // at the end of a row's backward pass
void virtual_wait_until(double ms);  // the clock is not before that
double virtual_transfer_ms(const VirtualTransfer* transfer);
int virtual_node_size(void);
// Opens the Comm over the build's transport for host memory. payload 0: messages say only when they were sent.
int comm_open_virtual(Comm** world, int payload, const RankIdentity* id, double timeout_seconds, Err err);
