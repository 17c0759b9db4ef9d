// bound_micro_batches.h - what it costs that micro-batches come whole. Private to bound.c.
#pragma once
#include "plan/base.h"

// A document: tokens, and the least work of it in rank-milliseconds.
typedef struct DensePart {
    double tokens, work;
} DensePart;

typedef struct WholeMicroBatches {
    int ranks, capacity;
    double micro_batch, linear;  // ms a micro-batch; ms a token at least
    DensePart* parts;            // (n) by whole_micro_batches_sort: most work a token first
    int n;
} WholeMicroBatches;

void whole_micro_batches_sort(WholeMicroBatches* x);
// Whether ranks that run whole micro-batches can have done `work` by tau. No: no plan can.
int whole_micro_batches_suffice(const WholeMicroBatches* x, double tau, double work);
