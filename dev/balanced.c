// balanced.c - see balanced.h.
#include "dev/balanced.h"

// Makes micro-batches in the order of documents. -1 with a message: a document fits none.
static int fill_micro_batches(Plan* plan, const int* lengths, int n, const GroupCost* g, int capacity, Err err) {
    int64_t taken = 0;
    for (int i = 0; i < n; i++) {
        int64_t more = widest_ring_rank(lengths[i], g->cp_size / g->ulysses_size);
        if (more > g->room)
            return fail(err,
                        "document %d of the step has %d tokens, and a group of %d ranks does not hold it at capacity "
                        "%d; try a larger cp size or --capacity",
                        i, lengths[i], g->cp_size, capacity);
        if (i == 0 || taken + more > g->room) {
            plan->micro_batches[plan->n_micro_batches++] =
                (MicroBatch){.cp_size = g->cp_size, .ulysses_size = g->ulysses_size, .first_doc = i};
            taken = 0;
        }
        plan->micro_batches[plan->n_micro_batches - 1].n_docs++;
        plan->docs[i] = i;
        taken += more;
    }
    return 0;
}

// Raises the number of micro-batches to a multiple of the replicas while there are some of several documents.
static void split_micro_batches(Plan* plan, int replicas) {
    for (int i = plan->n_micro_batches - 1; i >= 0 && plan->n_micro_batches % replicas != 0;) {
        MicroBatch* mb = &plan->micro_batches[i];
        if (mb->n_docs == 1) {
            i--;
            continue;
        }
        MicroBatch last = *mb;
        last.first_doc += --mb->n_docs;
        last.n_docs = 1;
        plan->micro_batches[plan->n_micro_batches++] = last;
    }
}

int megatron_balanced(Plan* plan, int64_t step, const int* lengths, int n, const Setting* setting, int cp_size,
                      Arena* arena, Err err) {
    Setting own;
    const PlanLimits* limits = &own.limits;
    if (planner_alike(&own, setting, arena, err) < 0) return -1;
    setting = &own;
    if (plan_begin(plan, step, lengths, n, limits, arena, err) < 0) return -1;
    if (cp_size < 1 || cp_size > limits->ranks || setting->groups[cp_size].ulysses_size == 0)
        return fail(err, "no groups of %d ranks, expected 1 to %d and heads for all", cp_size, limits->ranks);
    if (fill_micro_batches(plan, lengths, n, &setting->groups[cp_size], limits->capacity, err) < 0) return -1;
    int replicas = limits->ranks / cp_size;
    split_micro_batches(plan, replicas);
    for (int i = 0; i < plan->n_micro_batches; i++) {
        plan->micro_batches[i].first_rank = i % replicas * cp_size;
        plan->micro_batches[i].round = i / replicas;
    }
    return 0;
}
