// matrices.c - see matrices.h.
#include "plan/model/matrices.h"

#include <stdlib.h>

int shape_matrices(Matrix* list, const Shape* whole) {
    int n = 0;
    for (int i = 0; i < shape_tensors(whole); i++) {
        ParamTensor t = shape_tensor(whole, i);
        if (!param_is_per_layer(t.id) || !param_is_matrix(t.id) || t.elems == 0) continue;
        Runs runs = shape_runs(whole, param_table[t.id].rows);
        for (int r = 0, row = 0; r < runs.n; row += runs.size[r++], n++)
            if (list) list[n] = (Matrix){.tensor = i, .row = row, .rows = runs.size[r], .cols = t.cols};
    }
    return n;
}

// With r the shorter side and c the longer one a step makes r x r of the matrix, squares that, and multiplies by it.
double matrix_flops(const Matrix* m) {
    double r = MIN(m->rows, m->cols), c = MAX(m->rows, m->cols);
    return 4 * r * r * c + 2 * r * r * r;
}

static int dearest_first(const void* a, const void* b) {
    const Matrix *x = *(Matrix*const*)a, *y = *(Matrix*const*)b;
    double difference = matrix_flops(y) - matrix_flops(x);
    return difference ? (difference > 0 ? 1 : -1) : (x > y) - (x < y);
}

size_t deal_matrices(Matrix* list, int n, int ranks) {
    Matrix** order = (Matrix**)malloc(((size_t)n + 1) * sizeof *order);
    double* work = (double*)calloc((size_t)ranks, sizeof *work);
    size_t most = 0;
    if (!order || !work) die("no memory for %d matrices", n);
    for (int i = 0; i < n; i++) order[i] = &list[i];
    qsort(order, (size_t)n, sizeof *order, dearest_first);
    for (int i = 0; i < n; i++) {
        int best = 0;
        for (int r = 1; r < ranks; r++)
            if (work[r] < work[best]) best = r;
        order[i]->rank = best, work[best] += matrix_flops(order[i]);
    }
    free(order), free(work);
    for (int r = 0; r < ranks; r++) {
        size_t at = 0;
        for (int i = 0; i < n; i++)
            if (list[i].rank == r) list[i].at = at, at += (size_t)list[i].rows * (size_t)list[i].cols;
        most = MAX(most, at);
    }
    return most;
}

static int by_rank(const void* a, const void* b) {
    const Holding *x = (const Holding*)a, *y = (const Holding*)b;
    return x->rank != y->rank ? x->rank - y->rank : x->box.row - y->box.row;
}

int holdings_of_matrices(Holdings* h, const Shape* whole, const Matrix* list, int n, Arena* arena, Err err) {
    *h = (Holdings){.tensors = shape_tensors(whole)};
    h->first = TAKE(arena, int, h->tensors + 1);
    h->list = TAKE(arena, Holding, n + 1);
    if (arena_check(arena, err)) return -1;
    for (int t = 0, i = 0; t < h->tensors; t++) {
        h->first[t] = i;
        for (; i < n && list[i].tensor == t; i++) {
            const Matrix* m = &list[i];
            h->list[i] = (Holding){m->rank, {m->row, 0, m->rows, m->cols}, m->at, m->cols};
        }
        qsort(h->list + h->first[t], (size_t)(i - h->first[t]), sizeof *h->list, by_rank);
    }
    h->first[h->tensors] = n;
    return 0;
}

void holdings_keep_matrices(Holdings* h, const Matrix* list, int n) {
    int kept = 0;
    for (int t = 0, i = 0, first = 0; t < h->tensors; t++) {
        int end = h->first[t + 1], has = 0;
        for (; i < n && list[i].tensor == t; i++) has = 1;
        h->first[t] = kept;
        for (int k = first; k < end && has; k++) h->list[kept++] = h->list[k];
        first = end;
    }
    h->first[h->tensors] = kept;
}
