// galvatron.h - how a layer can be run, and what it takes, after Galvatron (Miao et al. 2022, arXiv 2211.13878) and
// Galvatron-BMW (Wang et al. 2024, arXiv 2307.02031): the space of strategies, the formulas of time and memory that
// their released code has, and the bi-objective partition, to compare this program's own search with.
//
// A stage of a pipeline has g ranks. Its strategies are a tree: every level divides the ranks by one dimension, data,
// sharded data (ZeRO) or tensor, and a power of two; no dimension comes twice. The first level has neighbours in rank,
// so the fastest links. Strategies that mix data with sharded data are pruned, since sharded data alone is never worse.
// Recomputation doubles the rest. With g = 2^n > 1 ranks 4 n - 1 remain, with one rank one.
#pragma once
#include "plan/search/layout_cost.h"

typedef enum Dimension { BY_DATA, BY_SHARDS, BY_TENSOR, N_DIMENSIONS } Dimension;

typedef struct Strategy {
    int levels;
    Dimension by[N_DIMENSIONS];  // the level with neighbours in rank first
    int degree[N_DIMENSIONS];    // at least 2
    int recompute;               // 1: the backward pass computes the forward pass again
} Strategy;

enum { MOST_STRATEGIES = 128, STRATEGY_NAME = 48 };

// Those of a stage of so many ranks, a power of two: returns how many there are. pruned 0: with mixtures of data and
// sharded data. recompute 1: each also with recomputation.
int strategies_of(Strategy strategies[MOST_STRATEGIES], int ranks, int pruned, int recompute);
// Of all numbers of stages together, powers of two up to `ranks`.
int strategies_in_all(int ranks, int pruned, int recompute);
int strategy_degree(const Strategy* s, Dimension by);  // 1 where it does not divide by that
// Ranks that have the layer's samples apart: data and sharded data together.
int strategy_data(const Strategy* s);
// Whether the ranks of this dimension are neighbours.
int strategy_is_consecutive(const Strategy* s, Dimension by);
void strategy_name(char name[STRATEGY_NAME], const Strategy* s);  // "tp2 dp4", neighbours first; "+" is recomputation

// ---- time

// What is measured of a machine.
typedef struct Links {
    double ms_per_mb[2][8];  // of strided and of consecutive groups of 1, 2, 4 .. 128 ranks; of all-reduce volume
    double slow_exchange, slow_computing;  // k1, k2: factors while both go on
} Links;

// What is measured of a layer.
typedef struct LayerProfile {
    double forward_ms;        // of a sample, on one rank
    double parameter_mb;      // fp32
    double tokens, channels;  // of a sample
    int exchanges;            // all-reduces of a tensor-parallel layer, forward and backward: 4
    int bytes;                // of an element that is exchanged
    double activation_mb[8];  // of a sample, on 1, 2, 4 .. tensor-parallel ranks
    double kept_mb[8];        // the same with recomputation
} LayerProfile;

// MB and ms of a layer in a step of `batch` samples on one stage.
typedef struct LayerTime {
    double forward, backward;       // computing, recomputation in the backward pass
    double data_mb, data_ms;        // gradients
    double tensor_mb, tensor_ms;    // activations
    double hidden_under, gathered;  // the part of backward under which gradients travel; weights of sharded data
    double ms;                      // of all
} LayerTime;

LayerTime layer_time(const LayerProfile* layer, const Links* links, const Strategy* s, double batch);
// Of an exchange and computing that begin together, each so many times slower until the shorter one ends.
double overlapped_ms(double exchange, double slow_exchange, double computing, double slow_computing);

// ---- memory

// The share of weights, gradients and moments that a rank of d keeps. margin: 0.003 in the released code, 0.025 in the
// code of 2022, 0 exactly. fp32, or with 16-bit weights and gradients and fp32 moments.
double zero3_share(int d, double margin);
double zero2_share(int d, double margin, int bits);
// MB of a layer: states and activations, of `in_flight` micro-batches that have batch / micro_batches samples each.
typedef struct LayerMemory {
    double states, activations;
} LayerMemory;
LayerMemory layer_memory(const LayerProfile* layer, const Strategy* s, double batch, double in_flight, double margin);

// ---- pipelines

// m micro-batches on P stages take this share of what one stage with all layers takes: (P + m - 1) / (P m).
static inline double pipeline_factor(int stages, int micro_batches) {
    return (double)(stages + micro_batches - 1) / ((double)stages * micro_batches);
}

// ---- stages: the bi-objective partition
//
// The bi-objective way is reconstructed from the abstract of Galvatron-BMW and a secondary account; its text and code
// are not public. Balance of time alpha_t = 1 - max t / sum t, of memory alpha_m the same of bytes by one plain
// strategy. It begins with stages of even memory and moves one layer out of the slowest stage to a neighbour, as long
// as the slowest stage does not get slower, every stage fits, and memory is no less balanced than with stages of even
// time.

double balance_degree(const double* value, int n);  // 1 - max / sum, between 0 and 1 - 1 / n

enum { PARTITION_STEPS = 256 };

typedef struct PlainProblem {
    PartitionProblem exact;
    // Of layers [first, end) as this stage by one plain strategy, without limit; with the context of `exact`.
    double (*bytes)(void* context, int stage, int first, int end);
    double (*ms)(void* context, int stage, int first, int end);
} PlainProblem;

// One step of the search.
typedef struct PartitionStep {
    Partition at;
    double slowest, alpha_t, alpha_m;  // ms; balance
} PartitionStep;

typedef struct BiObjective {
    int n;  // steps, the first is of even memory
    PartitionStep step[PARTITION_STEPS];
    Partition even_time, best;  // best: the fastest step
} BiObjective;
int partition_bi_objective(BiObjective* b, const PlainProblem* p, Arena* arena, Err err);

// Even memory as the released code has it: stages are filled from the last one backwards with (all bytes) / stages
// each, until the next layer would be too much by more than half of it; a stage beyond 1.3 of that gives its last
// layers to the next; each has at least one. bytes (layers); of what only the first and the last stage have.
void partition_even_memory(int* layers, int stages, const double* bytes, int n, double first_bytes, double last_bytes);
