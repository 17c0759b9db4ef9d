// partition.h - how many layers each stage of a pipeline has: exactly, and as Galvatron-BMW has it.
//
// A stage takes t ms for all m rounds of a step, the least under its memory (plan/layer_search.h). A step takes
//
//   (sum of t + (m - 1) max t) / m
//
// The exact way is a dynamic program over stages and layers with fronts of (max, sum): infinite where nothing fits.
//
// The bi-objective way is reconstructed from the abstract of Galvatron-BMW and a secondary account; its text and code
// are not public. Balance of time alpha_t = 1 - max t / sum t, of memory alpha_m the same of bytes by one plain
// strategy. It begins with stages of even memory and moves one layer out of the slowest stage to a neighbour, as long
// as the slowest stage does not get slower, every stage fits, and memory is no less balanced than with stages of even
// time.
#pragma once
#include "plan/base.h"

enum { PARTITION_STAGES = 64, PARTITION_STEPS = 256 };

typedef struct PartitionProblem {
    int layers, stages;
    double rounds;  // m, at least 1
    // Of layers [first, end) as this stage: the least ms under the limit, infinite where it does not fit; a layer more
    // never takes less. And bytes and ms by one plain strategy, without limit.
    double (*ms)(void* context, int stage, int first, int end);
    double (*plain_bytes)(void* context, int stage, int first, int end);
    double (*plain_ms)(void* context, int stage, int first, int end);
    void* context;
} PartitionProblem;

typedef struct Partition {
    int layers[PARTITION_STAGES];
    double ms;  // of a step; infinite where a stage does not fit
} Partition;

double partition_ms(const PartitionProblem* p, const int* layers);
// The fastest of all. 0, or -1 without memory; infinite ms where none fits.
int partition_exact(Partition* best, const PartitionProblem* p, Arena* arena, char* err, size_t errlen);

// One step of the bi-objective search, for those who want to see it.
typedef struct PartitionStep {
    Partition at;
    double slowest, alpha_t, alpha_m;  // ms; balance
} PartitionStep;

typedef struct BiObjective {
    int n;  // steps, the first is of even memory
    PartitionStep step[PARTITION_STEPS];
    Partition even_time, best;  // best: the fastest step
} BiObjective;
int partition_bi_objective(BiObjective* b, const PartitionProblem* p, Arena* arena, char* err, size_t errlen);

// Even memory as the released code has it: stages are filled from the last one backwards with (all bytes) / stages
// each, until the next layer would be too much by more than half of it; a stage beyond 1.3 of that gives its last
// layers to the next; each has at least one. bytes (layers); of what only the first and the last stage have.
void partition_even_memory(int* layers, int stages, const double* bytes, int n, double first_bytes, double last_bytes);
