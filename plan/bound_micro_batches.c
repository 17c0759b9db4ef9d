// bound_micro_batches.c - a rank runs one micro-batch or two, never 1.4: where micro-batches are dear, that is most of
// what L3 lacks.
//
// A rank with m micro-batches has tau - m micro-batch ms for documents, and at most m capacity tokens. For any j, let n
// ranks run j micro-batches or fewer. Then, G(t) being the most work that t tokens of the step can be (the densest
// ones),
//   work   <= min(n (tau - micro-batch), G(n j capacity)) + (ranks - n) (tau - (j + 1) micro-batch)
//   tokens <= n j capacity + (ranks - n) max over m > j of min(m capacity, (tau - m micro-batch) / linear)
// If for some j no n satisfies both, tau is too short. Ours; the idea is that of configuration bounds for bin packing
// (Gilmore and Gomory 1961), relaxed to two kinds of ranks.
#include "plan/bound_micro_batches.h"

#include <stdlib.h>

enum { MOST_MICRO_BATCHES = 4 };

static int denser_first(const void* a, const void* b) {
    const DensePart *x = (const DensePart*)a, *y = (const DensePart*)b;
    double p = x->work * y->tokens, q = y->work * x->tokens;
    if (p != q) return p > q ? -1 : 1;
    return (x->tokens < y->tokens) - (x->tokens > y->tokens);  // equals of both are alike
}

void whole_micro_batches_sort(WholeMicroBatches* x) { qsort(x->parts, (size_t)x->n, sizeof(DensePart), denser_first); }

// Most tokens that a rank with more than j micro-batches can have done by tau.
static double most_tokens(const WholeMicroBatches* x, int j, double tau) {
    double most = 0;
    for (int m = j + 1; m * x->micro_batch < tau; m++) {
        double by_room = (double)m * x->capacity, by_time = (tau - m * x->micro_batch) / x->linear;
        most = MAX(most, MIN(by_room, by_time));
        if (by_time < by_room) break;  // more micro-batches leave less time
    }
    return most;
}

static int some_share_suffices(const WholeMicroBatches* x, int j, double tau, double work, double tokens) {
    double many = MAX(tau - (j + 1) * x->micro_batch, 0), of_many = most_tokens(x, j, tau), taken = 0, dense = 0;
    for (int n = 0, i = 0; n <= x->ranks; n++) {
        double room = (double)n * j * x->capacity;
        for (; i < x->n && taken + x->parts[i].tokens <= room; i++)
            taken += x->parts[i].tokens, dense += x->parts[i].work;
        double partly = i < x->n ? x->parts[i].work * (room - taken) / x->parts[i].tokens : 0;
        double few = MIN(n * MAX(tau - x->micro_batch, 0), dense + partly);
        if (few + (x->ranks - n) * many >= work && room + (x->ranks - n) * of_many >= tokens) return 1;
    }
    return 0;
}

int whole_micro_batches_suffice(const WholeMicroBatches* x, double tau, double work) {
    double tokens = 0;
    work *= 1 - 1e-12;  // sums of parts in another order must not differ from it
    for (int i = 0; i < x->n; i++) tokens += x->parts[i].tokens;
    for (int j = 0; j < MOST_MICRO_BATCHES && (j + 1) * x->micro_batch < tau; j++)
        if (!some_share_suffices(x, j, tau, work, tokens)) return 0;
    return 1;
}
