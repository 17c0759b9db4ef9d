// balance_parts.c - what the files of run/balance.h count with.
#include "run/balance_parts.h"

#include <stdlib.h>

void* balance_room(size_t n, size_t bytes) {
    void* p = calloc(n, bytes);
    if (!p) die("no memory for what is known of %zu ranks", n);
    return p;
}

SliceCount balance_most(const Model* m) {
    int R = m->split.ranks;
    return (SliceCount){MIN(m->whole.NH, 2 * CEIL_DIV(m->whole.NH, R) + 1),
                        MIN(m->whole.hidden, 2 * CEIL_DIV(m->whole.hidden, R) + 2 * WORK_TILE)};
}

void balance_owned(SliceCount* own, const Model* m) {
    for (int t = 0; t < tp_size(m); t++)
        own[t] = (SliceCount){m->split.head[t + 1] - m->split.head[t], m->split.hidden[t + 1] - m->split.hidden[t]};
}

double balance_slices(const Balance* b, SliceCount count) { return count.hidden + b->head_work * count.heads; }

SliceCount balance_staying(const Balance* b, SliceCount own, int rank) {
    for (int i = 0; i < b->n_moves; i++)
        if (b->moves[i].from == rank) own.heads -= b->moves[i].heads, own.hidden -= b->moves[i].hidden;
    return own;
}

double balance_running(const Balance* b, const SliceCount* own, int t) {
    return balance_slices(b, balance_count(b->moves, b->n_moves, own, t));
}
