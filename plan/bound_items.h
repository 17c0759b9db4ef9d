// bound_items.h - what it costs that items come whole. Private to bound.c.
#pragma once
#include "plan/base.h"

// A document: tokens, and the least work of it in rank-milliseconds.
typedef struct DensePart {
    double tokens, work;
} DensePart;

typedef struct WholeItems {
    int ranks, capacity;
    double item, linear;  // ms an item; ms a token at least
    DensePart* parts;     // (n) by whole_items_sort: most work a token first
    int n;
} WholeItems;

void whole_items_sort(WholeItems* x);
// Whether ranks that run whole items can have done `work` by tau. No: no plan can.
int whole_items_suffice(const WholeItems* x, double tau, double work);
