// choose_token.c - see choose_token.h.
#include "run/step/choose_token.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int descending(const void* a, const void* b) {
    float x = *(const float*)a, y = *(const float*)b;
    return (x < y) - (x > y);
}

int choose_token(const float* logits, int V, double temperature, int top_k, double u, float* scratch) {
    int best = 0;
    for (int v = 1; v < V; v++)
        if (logits[v] > logits[best]) best = v;
    if (temperature <= 0) return best;
    float least = -INFINITY;
    if (top_k > 0 && top_k < V) {
        memcpy(scratch, logits, sizeof(float) * (size_t)V);
        qsort(scratch, (size_t)V, sizeof(float), descending);
        least = scratch[top_k - 1];
    }
    double total = 0, below = 0;
    for (int v = 0; v < V; v++)
        if (logits[v] >= least) total += exp((logits[v] - logits[best]) / temperature);
    for (int v = 0; v < V; v++) {
        if (logits[v] < least) continue;
        below += exp((logits[v] - logits[best]) / temperature);
        if (u * total < below) return v;
    }
    return best;  // only by rounding
}
