// owned.c - see owned.h.
#include "run/owned.h"

#include <stdlib.h>

#include "run/pipeline.h"

typedef struct OwnedBox {
    int tensor;  // of the whole model
    Holding held;
} OwnedBox;

// This rank's: list has room, or is NULL. Returns how many.
static int list_owned(OwnedBox* list, const Model* m, StateKind kind) {
    int n = 0;
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        Holding held[MOST_RUN_HOLDINGS];
        Box boxes[MOST_RUNS];
        Segment s = zero_segment(m, i);
        if (s.n == 0) continue;
        size_t at = s.at;
        if (kind == STATE_WEIGHTS)
            at = (size_t)(zero_owned_weights(m, &s) - (char*)m->zero.part[ZERO_WEIGHTS]) / dtype_bytes(m->dt);
        ParamTensor whole = shape_param(&m->whole, s.tensor.id, pipeline_layer(m, &s.tensor));
        int n_boxes = tp_boxes(boxes, m, &s.tensor);
        int count = holdings_of_run(held, m->world->rank, &s.tensor, boxes, n_boxes, s.first, s.n, at);
        for (int j = 0; j < count; j++, n++)
            if (list) list[n] = (OwnedBox){shape_index(&m->whole, &whole), held[j]};
    }
    return n;
}

// Rank after rank, tensor by tensor.
static void sort_owned(Holdings* h, const OwnedBox* all, const int* counts, int most, int ranks) {
    for (int t = 0, n = 0; t < h->tensors; h->first[++t] = n)
        for (int r = 0; r < ranks; r++)
            for (const OwnedBox* x = all + (size_t)r * (size_t)most; x < all + (size_t)r * (size_t)most + counts[r];
                 x++)
                if (x->tensor == t) h->list[n++] = x->held;
}

Holdings owned_holdings(const Model* m, StateKind kind, Arena* arena) {
    char err[ERR_BYTES];
    Comm* c = m->world;
    Holdings h = {.tensors = shape_tensors(&m->whole)};
    int mine = list_owned(NULL, m, kind), most = 0, sum = 0, *counts = TAKE(arena, int, c->size);
    if (arena_check(arena, err, sizeof err)) die("%s", err);
    if (c->table->all_gather_host(c, counts, &mine, sizeof mine, err, sizeof err)) die("%s", err);
    for (int r = 0; r < c->size; r++) most = MAX(most, counts[r]), sum += counts[r];
    OwnedBox* all = (OwnedBox*)calloc(((size_t)c->size + 1) * (size_t)MAX(most, 1), sizeof *all);
    OwnedBox* own = all ? all + (size_t)c->size * (size_t)most : NULL;
    h.first = TAKE(arena, int, h.tensors + 1);
    h.list = TAKE(arena, Holding, sum + 1);
    if (!all || arena_check(arena, err, sizeof err)) die("no memory for what %d ranks own", c->size);
    list_owned(own, m, kind);
    if (c->table->all_gather_host(c, all, own, (size_t)most * sizeof *all, err, sizeof err)) die("%s", err);
    h.first[0] = 0;
    sort_owned(&h, all, counts, most, c->size);
    free(all);
    return h;
}
