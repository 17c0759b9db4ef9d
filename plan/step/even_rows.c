// even_rows.c - see even_rows.h.
#include "plan/step/even_rows.h"

#include <stdlib.h>

typedef struct Doc {
    int doc, length, row;  // the micro-batch that it goes to
} Doc;

typedef struct EvenRow {
    int micro_batch;
    int64_t tokens;
    double work;
} EvenRow;

typedef struct EvenRows {
    Plan* plan;
    const int* lengths;
    const PlanLimits* limits;
    int* row_of;    // (n_docs of the step) the micro-batch of each
    Doc* docs;      // (n_docs) of a rank
    EvenRow* rows;  // (n_micro_batches) of a rank
    int* order;     // (n_micro_batches) of a rank, ascending
    int n_docs, n_rows;
} EvenRows;

static int longest_first(const void* a, const void* b) {
    const Doc *x = (const Doc*)a, *y = (const Doc*)b;
    return x->length != y->length ? y->length - x->length : x->doc - y->doc;
}

static int lightest_first(const void* a, const void* b) {
    const EvenRow *x = (const EvenRow*)a, *y = (const EvenRow*)b;
    return x->work != y->work ? (x->work > y->work) - (x->work < y->work) : x->micro_batch - y->micro_batch;
}

// Lists a rank's rows and documents. Returns 1 if it shares nothing and each row is a pass.
static int list_rows(EvenRows* x, int rank) {
    int alone = 1;
    x->n_docs = x->n_rows = 0;
    for (int i = 0; i < x->plan->n_micro_batches; i++) {
        const MicroBatch* mb = &x->plan->micro_batches[i];
        if (rank < mb->first_rank || rank >= mb->first_rank + mb->cp_size) continue;
        for (int r = 0; r < x->n_rows; r++) alone &= x->plan->micro_batches[x->rows[r].micro_batch].round != mb->round;
        alone &= mb->cp_size == 1;
        x->rows[x->n_rows++] = (EvenRow){i, 0, 0};
        for (int d = mb->first_doc; d < mb->first_doc + mb->n_docs; d++) {
            int doc = x->plan->docs[d];
            x->docs[x->n_docs++] = (Doc){doc, x->lengths[doc], i};
        }
    }
    return alone;
}

// Deals a rank's documents to its rows. 0: a document finds no room.
static int deal(EvenRows* x, int rank) {
    int64_t capacity = rank_capacity(x->limits, rank);
    qsort(x->docs, (size_t)x->n_docs, sizeof *x->docs, longest_first);
    for (int i = 0; i < x->n_docs; i++) {
        EvenRow* best = NULL;
        double s = x->docs[i].length, seen = seen_tokens(x->plan->squares, x->docs[i].doc, x->docs[i].length);
        for (EvenRow* row = x->rows; row < x->rows + x->n_rows; row++)
            if (row->tokens + x->docs[i].length <= capacity && (!best || row->work < best->work)) best = row;
        if (!best) return 0;
        best->tokens += x->docs[i].length, best->work += s + x->limits->quadratic * s * seen;
        x->docs[i].row = best->micro_batch;
    }
    return 1;
}

// Makes a rank's rows even, and puts them from light to heavy into its micro-batches, which are in the order of rounds.
static void even_rank(EvenRows* x, int rank) {
    if (!list_rows(x, rank) || x->n_rows < 2) return;
    for (int i = 0; i < x->n_rows; i++) x->order[i] = x->rows[i].micro_batch;
    if (!deal(x, rank)) return;
    qsort(x->rows, (size_t)x->n_rows, sizeof *x->rows, lightest_first);
    for (int i = 0; i < x->n_docs; i++)
        for (int r = 0; r < x->n_rows; r++)
            if (x->docs[i].row == x->rows[r].micro_batch) x->row_of[x->docs[i].doc] = x->order[r];
}

int plan_even_rows(Plan* plan, const int* lengths, const PlanLimits* limits, Arena* arena, Err err) {
    if (plan->n_placed) return 0;
    ArenaMark mark = arena_mark(arena);
    EvenRows x = {.plan = plan, .lengths = lengths, .limits = limits};
    x.row_of = TAKE(arena, int, plan->n_docs), x.docs = TAKE(arena, Doc, plan->n_docs);
    x.rows = TAKE(arena, EvenRow, plan->n_micro_batches), x.order = TAKE(arena, int, plan->n_micro_batches);
    if (arena_check(arena, err)) return -1;
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        for (int d = mb->first_doc; d < mb->first_doc + mb->n_docs; d++) x.row_of[plan->docs[d]] = i;
    }
    for (int r = 0; r < plan->ranks; r++) even_rank(&x, r);
    for (int i = 0, n = 0; i < plan->n_micro_batches; i++) {
        MicroBatch* mb = &plan->micro_batches[i];
        mb->first_doc = n;
        for (int doc = 0; doc < plan->n_docs; doc++)
            if (x.row_of[doc] == i) plan->docs[n++] = doc;
        mb->n_docs = n - mb->first_doc;
    }
    arena_reset(arena, mark);
    return 0;
}
