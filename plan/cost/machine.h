// machine.h - machine files: the constants of a cost model as text that people and --probe write.
//
// One key and its values a line, or several with ; between them; # begins a comment. Unknown keys, missing values,
// numbers that are not finite or negative are errors that name the line.
//
//   name flexsp-7b
//   quadratic_ms 5.128e-6          ms a token^2
//   linear_ms 0.1839576            ms a token
//   micro_batch_ms 0               ms a micro-batch
//   step_ms 0                      ms a step
//   round_ms 629.3563              ms a round, in systems that end each with a barrier
//   heads 64                       of the model's keys; 0: attention divides evenly by any cp size
//   token_bytes 2097152            communicated a token
//   group 2 125.34677504           cp size, GB/s of a rank (several)
//   link inside 65536 0.012        bytes, ms (several; or: across)
//   sum inside 65536 0.012         bytes, ms of a reduce-scatter or an all-gather (several; or across): the bytes that
//                                  a rank sends inside its node, or between nodes (collective_ms); what is across has
//                                  its part inside in it. Without these lines sums go at the speed of `link`
//   model 12 768 2                 layers, channels of queries, bytes of an element, for link tables
//   kv_channels 256                channels of keys, as many of values; those of queries when left out
//   memory 30 7.117 4.480442       GB of a rank for states and activations, parameters / 2^30, MB a token; ZeRO-3
//   link_scale 1                   communication takes so much of what the tables say; 1 when left out
//   again 0.33                     computing the blocks again takes so much of what they take forward and backward
//   overlap 1.3                    computing and exchanging take so many times as long while they go on together
//   node 8                         ranks of a node where `group` was measured: two nodes are further apart than these
//   nics 4                         of a node; as many as ranks when left out. Times between nodes are those of all
//                                  ranks of a node at once
//   capacity 6451                  tokens of a rank; instead of memory
//   device 40 20                   GiB of a rank where `ranks` says none, GB/s at which it copies its state for a
//                                  checkpoint: for --what-if alone
//   scheme TP8PP2 8 2 1.07e-6 0.0711 61.8        a tensor x pipeline replica (Hydraulis): ms a token^2, a token, a row
//   ranks 32 0.5 40                ranks from the 32nd on: half the pace, 40 GiB (several; 0: unknown, or those of
//                                  memory)
//   tp 2 0.09 2.6e-6 1             a tensor-parallel group of 2 ranks: ms a token, a token^2, a row (several)
//   pipeline_memory ...            constants of the memory formula of such replicas, see machine.c
#pragma once
#include "plan/cost/cost.h"

enum { MACHINE_SCHEMES = 24, SCHEME_NAME = 16, MACHINE_KINDS = 32, MACHINE_TP = 16, MACHINE_TEXT = 1 << 14 };

typedef struct Scheme {
    char name[SCHEME_NAME];
    int tp, pp;
    double quadratic, linear, fixed;  // ms a token^2, a token, a micro-batch
} Scheme;

typedef struct Machine {
    Cost cost;
    int heads;
    int capacity;                            // 0: from memory
    double memory_gb, parameters, token_mb;  // 0: unknown
    double again, overlap;                   // 0: not measured
    double device_gib, save_gbps;            // 0: unknown
    int n_kinds, kind_first[MACHINE_KINDS];  // kinds of ranks, each up to the first of the next; 0: all are alike
    double kind_speed[MACHINE_KINDS], kind_gib[MACHINE_KINDS];
    int n_tp, tp[MACHINE_TP];  // tensor-parallel groups that were measured
    double tp_token[MACHINE_TP], tp_pair[MACHINE_TP], tp_row[MACHINE_TP];
    int n_schemes;
    Scheme schemes[MACHINE_SCHEMES];
    // Hydraulis' memory formula; activation[i]: bytes at tensor-parallel size 1 << i, 0: unknown.
    double layers, hidden, vocabulary, state_bytes, alpha, activation[5], safety_mib, fixed_mib, gpu_mib;
} Machine;

// text (n) need not end in 0. 0, or -1 with the line and what was expected.
int machine_parse(Machine* machine, const char* text, size_t n, Err err);
// Returns the text of a machine that the program knows by name, NULL for another name. Names are machine_names (with
// commas), and hydraulis-32b and hydraulis-7b, which have times of whole pipelines only, for --strategies. With -links
// after these names come assumed links too.
const char* machine_builtin(const char* name);
const char* machine_names(void);
// Writes what machine_parse reads back to the same values. Returns the length it wanted, as snprintf.
size_t machine_print(const Machine* machine, char* text, size_t bytes);
// Returns the tokens of a rank with this ZeRO stage: capacity, or floor((GB 1024 - parameters 1024 bytes) / MB a
// token). A parameter takes 6 + 12 / ranks bytes of a rank (ZeRO-1), 2 + 16 / ranks (ZeRO-2; both as run/model/zero.h),
// or 16 / ranks (ZeRO-3, FlexSP's released cost model). 0 or less: the model does not fit.
int machine_capacity(const Machine* machine, int ranks, int zero);
// Returns whether weights and gradients are in step_ms (zero 1) or round_ms (2 and 3).
int machine_has_weights(const Machine* machine, int zero);
// Slowest pace, and least bytes, of n ranks from `first` on. Bytes are infinite if the machine says none.
double machine_speed(const Machine* machine, int first, int n);
double machine_bytes(const Machine* machine, int first, int n);
// The machine as these ranks alone have it: memory_gb is the least of theirs, if the machine says it.
Machine machine_part(const Machine* machine, int first, int n);
// Parameters of its model; 0: unknown. Hydraulis' memory formula has 16 bytes a parameter.
double machine_parameters(const Machine* machine);
const Scheme* machine_scheme(const Machine* machine, int tp, int pp);  // NULL: it has no such scheme
// Most tokens of a micro-batch of a scheme beside optimizer state in the layout (dp, tp, pp), by Hydraulis' formula. A
// multiple of 128; less than 1 if not even the states fit.
int machine_scheme_tokens(const Machine* machine, const Scheme* scheme, int dp, int tp, int pp);
