// ring_attention.h - the specification of attention in rings and by heads, as a plain function in double.
#pragma once
#include <math.h>
#include <stdlib.h>

#include "plan/base/base.h"

// A row of documents on a group of ranks (kernels/comm/group_attention.h says who holds what), as plain arrays of all.
typedef struct GroupRow {
    int ring_size, ulysses_size, n_docs, n_chunks, NH, NKV, HS;
    const int *cu, *chunk_border;    // (n_docs + 1) cu_seqlens; (n_docs, n_chunks + 1) borders in the document
    const int *owner, *head_border;  // (n_chunks) ring ranks; (ulysses_size + 1) from 0 to NKV
    double scale;
} GroupRow;

static double greater(double a, double b) { return b > a ? b : a; }

// part (HS) = P v, P = exp(S - lse), S = scale q k^T over the keys [first, end) of a document. Returns lse, the log of
// the sum of exp(S): -infinity without keys. P is scratch.
static double attend(double* part, double* P, const double* q, const double* k, const double* v, int first, int end,
                     const GroupRow* g) {
    size_t HS = (size_t)g->HS, W = (size_t)g->NKV * HS;
    double max = -INFINITY, sum = 0;
    memset(part, 0, HS * sizeof *part);
    for (int j = first; j < end; max = greater(max, P[j++])) {
        P[j] = 0;
        for (size_t i = 0; i < HS; i++) P[j] += g->scale * q[i] * k[(size_t)j * W + i];
    }
    for (int j = first; j < end; j++) sum += P[j] = exp(P[j] - max);
    for (int j = first; j < end; j++)
        for (size_t i = 0; i < HS; i++) part[i] += P[j] / sum * v[(size_t)j * W + i];
    return first < end ? max + log(sum) : -INFINITY;
}

// Merges attention over some keys with attention over others: out is their mean, each weighs exp(lse), its share of the
// sum over all keys. Returns the lse of both.
static double merge_parts(double* out, double lse, const double* part, double part_lse, size_t HS) {
    double max = greater(lse, part_lse), both = max + log(exp(lse - max) + exp(part_lse - max));
    if (max == -INFINITY) return max;
    for (size_t i = 0; i < HS; i++) out[i] = exp(lse - both) * out[i] + exp(part_lse - both) * part[i];
    return both;
}

// Ring rank a holds query i of a document. It meets the keys of a, then those that come by from a - 1, a - 2 and on
// around the ring, and sees of each chunk there the tokens up to its own.
static double meet_ring(double* out, double* scratch, const double* q, const double* k, const double* v, int i, int a,
                        const int* border, const GroupRow* g) {
    double lse = -INFINITY, *part = scratch, *P = scratch + g->HS;
    memset(out, 0, (size_t)g->HS * sizeof *out);
    for (int t = 0; t < g->ring_size; t++)
        for (int c = 0; c < g->n_chunks; c++) {
            if (g->owner[c] != (a - t + g->ring_size) % g->ring_size) continue;
            double part_lse = attend(part, P, q, k, v, border[c], MIN(border[c + 1], i + 1), g);
            lse = merge_parts(out, lse, part, part_lse, (size_t)g->HS);
        }
    return lse;
}

// The specification of what rings and heads compute forward: causal attention within each document, merged of the parts
// that each rank sees, in the order in which they come. out (N,NH,HS) =, lse (NH,N) =; q (N,NH,HS), k and v (N,NKV,HS).
//
// Ulysses rank b of each ring rank computes the query heads of key/value heads head_border[b] .. head_border[b + 1], in
// a ring of the ranks b. Heads never meet, so borders decide who computes a head, and nothing else.
static void ring_attention(double* out, double* lse, const double* q, const double* k, const double* v,
                           const GroupRow* g) {
    size_t HS = (size_t)g->HS, N = (size_t)g->cu[g->n_docs], each = (size_t)(g->NH / g->NKV);
    double* scratch = (double*)malloc((HS + N) * sizeof *scratch);
    if (!scratch) die("no memory for %zu scores", N);
    for (int b = 0; b < g->ulysses_size; b++)
        for (size_t h = each * (size_t)g->head_border[b]; h < each * (size_t)g->head_border[b + 1]; h++)
            for (int d = 0; d < g->n_docs; d++)
                for (int c = 0; c < g->n_chunks; c++) {
                    const int* border = g->chunk_border + d * (g->n_chunks + 1);
                    size_t keys = ((size_t)g->cu[d] * (size_t)g->NKV + h / each) * HS;
                    for (int i = border[c]; i < border[c + 1]; i++) {
                        size_t n = (size_t)(g->cu[d] + i), at = (n * (size_t)g->NH + h) * HS;
                        lse[h * N + n] =
                            meet_ring(out + at, scratch, q + at, k + keys, v + keys, i, g->owner[c], border, g);
                    }
                }
    free(scratch);
}
