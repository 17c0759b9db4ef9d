// plan_check.c - the proof of a plan, rule by rule, from the definitions of plan.h and not from what the planners know.
#include "plan/plan.h"

// ---- the rules

static int check_shape(const Plan* plan, int n, const PlanLimits* limits, char* err, size_t errlen) {
    if (plan->ranks != limits->ranks)
        return fail(err, errlen, "the plan is for %d ranks, expected %d", plan->ranks, limits->ranks);
    if (plan->n_docs != n)
        return fail(err, errlen, "the plan has %d documents, expected the %d of the step", plan->n_docs, n);
    if (plan->n_micro_batches < 0 || plan->n_micro_batches > n)
        return fail(err, errlen, "the plan has %d micro-batches, expected 0 to %d, one for each document",
                    plan->n_micro_batches, n);
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        if (mb->first_rank < 0 || mb->cp_size < 1 || mb->cp_size > plan->ranks - MAX(mb->first_rank, 0))
            return fail(err, errlen, "micro-batch %d is on %d ranks from rank %d, beyond the ranks 0 to %d", i,
                        mb->cp_size, mb->first_rank, plan->ranks - 1);
        if (mb->ulysses_size < 1 || mb->cp_size % mb->ulysses_size != 0)
            return fail(err, errlen, "micro-batch %d: %d ranks share heads, which does not divide its %d ranks", i,
                        mb->ulysses_size, mb->cp_size);
        if (mb->ulysses_size > limits->kv_heads)
            return fail(err, errlen, "micro-batch %d: %d ranks share %d key/value heads, so that some have none", i,
                        mb->ulysses_size, limits->kv_heads);
        if (mb->n_docs < 1 || mb->first_doc < 0 || mb->n_docs > n - mb->first_doc)
            return fail(err, errlen, "micro-batch %d has %d documents from number %d on, of %d", i, mb->n_docs,
                        mb->first_doc, n);
    }
    return 0;
}

static int check_documents(const Plan* plan, int n, Arena* arena, char* err, size_t errlen) {
    int* seen = TAKE(arena, int, n);
    if (arena_check(arena, err, errlen) < 0) return -1;
    memset(seen, 0, sizeof(int) * (size_t)n);
    for (int i = 0; i < plan->n_micro_batches; i++)
        for (int j = 0; j < plan->micro_batches[i].n_docs; j++) {
            int doc = plan->docs[plan->micro_batches[i].first_doc + j];
            if (doc < 0 || doc >= n) return fail(err, errlen, "micro-batch %d has document %d, of %d", i, doc, n);
            if (seen[doc]++) return fail(err, errlen, "document %d is there twice, again in micro-batch %d", doc, i);
        }
    for (int doc = 0; doc < n; doc++)
        if (!seen[doc]) return fail(err, errlen, "document %d is in no micro-batch", doc);
    return 0;
}

static int check_capacity(const Plan* plan, const int* lengths, const PlanLimits* limits, Arena* arena, char* err,
                          size_t errlen) {
    int *ring_docs = TAKE(arena, int, plan->ranks), *tokens = TAKE(arena, int, plan->ranks),
        *low = TAKE(arena, int, plan->ranks);
    if (arena_check(arena, err, errlen) < 0) return -1;
    memset(ring_docs, 0, sizeof(int) * (size_t)plan->ranks);
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        int64_t heads = CEIL_DIV(limits->kv_heads, mb->ulysses_size);
        micro_batch_ring_tokens(plan, mb, lengths, tokens, low);
        for (int a = 0; a < mb->cp_size / mb->ulysses_size; a++) {
            int rank = mb->first_rank + a * mb->ulysses_size, n = CEIL_DIV(tokens[a], mb->ulysses_size);
            if (n > limits->capacity)
                return fail(err, errlen, "micro-batch %d: %d tokens on a rank of %d to %d, the capacity is %d", i, n,
                            rank, rank + mb->ulysses_size - 1, limits->capacity);
            if (tokens[a] * heads > (int64_t)limits->capacity * limits->kv_heads)
                return fail(
                    err, errlen,
                    "micro-batch %d: attention of %d tokens at %d of %d key/value heads on a rank of %d to %d, the "
                    "capacity is %d at all of them",
                    i, tokens[a], (int)heads, limits->kv_heads, rank, rank + mb->ulysses_size - 1, limits->capacity);
        }
        if (mb->ulysses_size == mb->cp_size) continue;
        for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++)
            if ((ring_docs[r] += mb->n_docs) > limits->max_ring_docs)
                return fail(err, errlen, "rank %d: %d documents in rings up to micro-batch %d, at most %d", r,
                            ring_docs[r], i, limits->max_ring_docs);
    }
    return 0;
}

static int check_rounds(const Plan* plan, Arena* arena, char* err, size_t errlen) {
    int n = plan->n_micro_batches, n_rounds = 0, *last = TAKE(arena, int, plan->ranks);
    char* seen = TAKE(arena, char, n);
    if (plan->n_rounds == 0) return 0;
    if (arena_check(arena, err, errlen) < 0) return -1;
    for (int r = 0; r < plan->ranks; r++) last[r] = -1;
    memset(seen, 0, (size_t)n);
    for (int i = 0; i < n; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) {
            if (mb->round <= last[r])
                return fail(err, errlen, "micro-batch %d is in round %d, but rank %d runs another in round %d", i,
                            mb->round, r, last[r]);
            last[r] = mb->round;
        }
        if (mb->round < n) seen[mb->round] = 1;
        n_rounds = MAX(n_rounds, mb->round + 1);
    }
    if (plan->n_rounds != n_rounds)
        return fail(err, errlen, "the plan has %d rounds, its micro-batches need %d", plan->n_rounds, n_rounds);
    for (int r = 0; r < n_rounds; r++)
        if (r >= n || !seen[r]) return fail(err, errlen, "no micro-batch is in round %d of %d", r, n_rounds);
    return 0;
}

// ---- coming to an end

int schedule_stuck(const MicroBatch* micro_batches, int n_micro_batches, const int* list, const int* first, int ranks,
                   Arena* arena) {
    ArenaMark mark = arena_mark(arena);
    int *arrived = TAKE(arena, int, n_micro_batches), *next = TAKE(arena, int, ranks),
        *moving = TAKE(arena, int, ranks), n_moving = 0, n_run = 0;
    if (arena_check(arena, NULL, 0) < 0) return -1;
    memset(arrived, 0, sizeof(int) * (size_t)n_micro_batches);
    for (int r = 0; r < ranks; r++) next[r] = first[r], moving[n_moving++] = r;
    while (n_moving > 0) {
        int r = moving[--n_moving];
        if (next[r] == first[r + 1]) continue;
        const MicroBatch* mb = &micro_batches[list[next[r]]];
        if (r < mb->first_rank || r >= mb->first_rank + mb->cp_size) continue;  // waits for ever
        if (++arrived[list[next[r]]] != mb->cp_size) continue;
        // All ranks of the micro-batch stand at it, none of them is moving.
        n_run++;
        for (int i = mb->first_rank; i < mb->first_rank + mb->cp_size; i++) next[i]++, moving[n_moving++] = i;
    }
    arena_reset(arena, mark);
    return n_micro_batches - n_run;
}

// The lists of the ranks for micro-batches [begin, end), counted from begin.
static void list_micro_batches(const Plan* plan, int begin, int end, int* list, int* first) {
    memset(first, 0, sizeof(int) * ((size_t)plan->ranks + 1));
    for (int i = begin; i < end; i++)
        for (int r = 0; r < plan->micro_batches[i].cp_size; r++) first[plan->micro_batches[i].first_rank + r + 1]++;
    for (int r = 0; r < plan->ranks; r++) first[r + 1] += first[r];
    for (int i = begin; i < end; i++)
        for (int r = 0; r < plan->micro_batches[i].cp_size; r++)
            list[first[plan->micro_batches[i].first_rank + r]++] = i - begin;
    // Each first[r] has walked to the start of rank r + 1: move them one entry up.
    memmove(first + 1, first, sizeof(int) * (size_t)plan->ranks);
    first[0] = 0;
}

// Micro-batches are followed in runs whose lists stay short: where the ones before all end, the next start afresh.
static int check_end(const Plan* plan, Arena* arena, char* err, size_t errlen) {
    int64_t room = (int64_t)plan->n_docs + plan->ranks;
    int *list = TAKE(arena, int, room), *first = TAKE(arena, int, plan->ranks + 1);
    if (arena_check(arena, err, errlen) < 0) return -1;
    for (int begin = 0, end = 0; begin < plan->n_micro_batches; begin = end) {
        int64_t entries = 0;
        while (end < plan->n_micro_batches && entries + plan->micro_batches[end].cp_size <= room)
            entries += plan->micro_batches[end++].cp_size;
        list_micro_batches(plan, begin, end, list, first);
        int stuck = schedule_stuck(plan->micro_batches + begin, end - begin, list, first, plan->ranks, arena);
        if (stuck < 0) return arena_check(arena, err, errlen);
        if (stuck) return fail(err, errlen, "%d of the micro-batches %d to %d can never run", stuck, begin, end - 1);
    }
    return 0;
}

int plan_check(const Plan* plan, const int* lengths, int n, const PlanLimits* limits, Arena* arena, char* err,
               size_t errlen) {
    ArenaMark mark = arena_mark(arena);
    if (check_lengths(lengths, n, limits, err, errlen) < 0) return -1;
    if (check_shape(plan, n, limits, err, errlen) < 0) return -1;
    if (check_documents(plan, n, arena, err, errlen) < 0) return -1;
    if (check_capacity(plan, lengths, limits, arena, err, errlen) < 0) return -1;
    if (check_rounds(plan, arena, err, errlen) < 0) return -1;
    if (check_end(plan, arena, err, errlen) < 0) return -1;
    arena_reset(arena, mark);
    return 0;
}
