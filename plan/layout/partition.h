// partition.h - how many layers each stage of a pipeline has: exactly.
//
// A stage takes t ms for all m rounds of a step, the least under its memory (plan/layout/layer_search.h). A step takes
//
//   (sum of t + (m - 1) max t) / m
//
// The exact way is a dynamic program over stages and layers with fronts of (max, sum): infinite where nothing fits.
#pragma once
#include "plan/base/base.h"

enum { PARTITION_STAGES = 64 };

typedef struct PartitionProblem {
    int layers, stages;
    double rounds;  // m, at least 1
    // Of layers [first, end) as this stage: the least ms under the limit, infinite where it does not fit; a layer more
    // never takes less.
    double (*ms)(void* context, int stage, int first, int end);
    void* context;
} PartitionProblem;

typedef struct Partition {
    int layers[PARTITION_STAGES];
    double ms;  // of a step; infinite where a stage does not fit
} Partition;

double partition_ms(const PartitionProblem* p, const int* layers);
// The fastest of all. 0, or -1 without memory; infinite ms where none fits.
int partition_exact(Partition* best, const PartitionProblem* p, Arena* arena, Err err);
