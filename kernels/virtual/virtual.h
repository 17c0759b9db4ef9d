// virtual.h - a cluster that is not there: the program runs for real, ops and collectives advance clocks.
//
// The clock of a rank, a process, is in ms: an op adds what a machine's cost model says that it takes, a collective
// brings the clocks of its ranks together. All sums are in the order of the program: the same digits on every machine.
//
// What ops take, C channels in, OC out, of a model with W matmul weights, L layers, NH heads:
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
    int ranks;           // that take part
    int across;          // they are of several nodes
    int nodes;           // of a reduce-scatter, all-gather or broadcast: of how many; 0: messages
    double sent, whole;  // bytes: to other ranks; and with what stays here
} VirtualTransfer;

typedef struct VirtualMachine {
    double token_ms, pair_ms, micro_batch_ms, step_ms;  // of one rank that computes the whole model
    double matmul_weights;                              // W, L, NH of the model that runs
    int layers, heads;
    double (*transfer_ms)(const void* context, const VirtualTransfer* transfer);
    const void* context;
} VirtualMachine;

// The backend over another one, which computes: its results, with virtual times. below NULL: nothing is computed.
const Kernels* virtual_kernels(const Kernels* below);
// Ranks of a node; before comm_open. 8 where nobody says.
void virtual_nodes(int node_size);
// Before the first op.
void virtual_use(const VirtualMachine* machine);

// ---- between the backend and its transport

double virtual_now(void);            // ms
void virtual_end_row(void);          // at the end of a row's backward pass
void virtual_wait_until(double ms);  // the clock is not before that
double virtual_transfer_ms(const VirtualTransfer* transfer);
int virtual_node_size(void);
// Over the transport for host memory that a build has. payload 0: messages say only when they were sent.
int comm_open_virtual(Comm** world, int payload, const RankIdentity* id, double timeout_seconds, Err err);
