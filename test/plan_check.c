// plan_check.c - the proof of a plan, rule by rule, from the definitions of plan/value/plan.h and not from what the
// planners know.
#include "test/checks.h"

// ---- the rules

static int check_shape(const Plan* plan, int n, const PlanLimits* limits, Err err) {
    if (plan->ranks != limits->ranks)
        return fail(err, "the plan is for %d ranks, expected %d", plan->ranks, limits->ranks);
    if (plan->n_docs != n) return fail(err, "the plan has %d documents, expected the %d of the step", plan->n_docs, n);
    if (plan->n_micro_batches < 0 || plan->n_micro_batches > n)
        return fail(err, "the plan has %d micro-batches, expected 0 to %d, one for each document",
                    plan->n_micro_batches, n);
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        if (mb->first_rank < 0 || mb->cp_size < 1 || mb->cp_size > plan->ranks - MAX(mb->first_rank, 0))
            return fail(err, "micro-batch %d is on %d ranks from rank %d, beyond the ranks 0 to %d", i, mb->cp_size,
                        mb->first_rank, plan->ranks - 1);
        if (mb->ulysses_size < 1 || mb->cp_size % mb->ulysses_size != 0)
            return fail(err, "micro-batch %d: %d ranks share heads, which does not divide its %d ranks", i,
                        mb->ulysses_size, mb->cp_size);
        if (mb->ulysses_size > limits->kv_heads)
            return fail(err, "micro-batch %d: %d ranks share %d key/value heads, so that some have none", i,
                        mb->ulysses_size, limits->kv_heads);
        if (mb->n_docs < 1 || mb->first_doc < 0 || mb->n_docs > n - mb->first_doc)
            return fail(err, "micro-batch %d has %d documents from number %d on, of %d", i, mb->n_docs, mb->first_doc,
                        n);
    }
    return 0;
}

static int check_documents(const Plan* plan, int n, Arena* arena, Err err) {
    int* seen = TAKE(arena, int, n);
    if (arena_check(arena, err) < 0) return -1;
    memset(seen, 0, sizeof(int) * (size_t)n);
    for (int i = 0; i < plan->n_micro_batches; i++)
        for (int j = 0; j < plan->micro_batches[i].n_docs; j++) {
            int doc = plan->docs[plan->micro_batches[i].first_doc + j];
            if (doc < 0 || doc >= n) return fail(err, "micro-batch %d has document %d, of %d", i, doc, n);
            if (seen[doc]++) return fail(err, "document %d is there twice, again in micro-batch %d", doc, i);
        }
    for (int doc = 0; doc < n; doc++)
        if (!seen[doc]) return fail(err, "document %d is in no micro-batch", doc);
    return 0;
}

static int borders_are(const int* border, int n, int end) {
    int fine = border[0] == 0 && border[n] == end;
    for (int b = 0; b < n; b++) fine &= border[b] <= border[b + 1];
    return fine;
}

static int check_placement(const Plan* plan, int i, const Placement* p, const int* lengths, const PlanLimits* limits,
                           Err err) {
    const MicroBatch* mb = &plan->micro_batches[i];
    int u = mb->ulysses_size, ring_size = mb->cp_size / u;
    if (!borders_are(p->head_border, u, limits->kv_heads))
        return fail(err, "micro-batch %d: borders of heads do not rise from 0 to %d", i, limits->kv_heads);
    for (int d = 0; d < mb->n_docs; d++)
        if (!borders_are(p->chunk_border + d * (p->n_chunks + 1), p->n_chunks, lengths[plan->docs[mb->first_doc + d]]))
            return fail(err, "micro-batch %d: borders of chunks do not rise from 0 to the %d tokens of a document", i,
                        lengths[plan->docs[mb->first_doc + d]]);
    for (int j = 0; j < p->n_chunks; j++)
        if (p->owner[j] < 0 || p->owner[j] >= ring_size)
            return fail(err, "micro-batch %d: chunk %d is ring rank %d's, of %d", i, j, p->owner[j], ring_size);
    for (int a = 0; a < ring_size; a++) {
        int tokens = 0;
        for (int k = 0; k < mb->n_docs * p->n_chunks; k++) {
            const int* border = p->chunk_border + k / p->n_chunks * (p->n_chunks + 1) + k % p->n_chunks;
            tokens += p->owner[k % p->n_chunks] == a ? border[1] - border[0] : 0;
        }
        if (!borders_are(p->token_border + a * (u + 1), u, tokens))
            return fail(err, "micro-batch %d: borders of tokens do not rise from 0 to the %d of ring rank %d", i,
                        tokens, a);
    }
    return 0;
}

// What each rank has in the pass that it is in.
typedef struct Used {
    PassLoad load;
    int round, shared, ring_docs;  // ring_docs: in all passes
} Used;

static int check_used(const Used* used, int rank, int i, const PlanLimits* limits, Err err) {
    int capacity = limits->capacities ? limits->capacities[rank] : limits->capacity;
    if (used->load.tokens > capacity)
        return fail(err, "micro-batch %d: with it %lld tokens in a pass of rank %d, the capacity is %d", i,
                    (long long)used->load.tokens, rank, capacity);
    if (used->load.pairs > (int64_t)capacity * limits->kv_heads)
        return fail(err,
                    "micro-batch %d: with it attention of %lld pairs of token and key/value head in a pass of rank %d, "
                    "the capacity is %d tokens at %d heads",
                    i, (long long)used->load.pairs, rank, capacity, limits->kv_heads);
    if (used->shared > MOST_SHARED)
        return fail(err, "micro-batch %d: with it rank %d shares %d in a pass, at most %d", i, rank, used->shared,
                    MOST_SHARED);
    if (used->ring_docs > limits->max_ring_docs)
        return fail(err, "rank %d: %d documents in rings up to micro-batch %d, at most %d", rank, used->ring_docs, i,
                    limits->max_ring_docs);
    return 0;
}

// Placements, and the limits of passes, in the order of the list: the passes of a rank follow each other there.
static int check_passes(const Plan* plan, const int* lengths, const PlanLimits* limits, Arena* arena, Err err) {
    Used* used = TAKE(arena, Used, plan->ranks);
    PassLoad* more = TAKE(arena, PassLoad, plan->ranks);
    if (arena_check(arena, err) < 0) return -1;
    for (int r = 0; r < plan->ranks; r++) used[r] = (Used){.round = -1}, more[r] = (PassLoad){0, 0};
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        ArenaMark mark = arena_mark(arena);
        Placement p = micro_batch_placement(plan, mb, lengths, limits->kv_heads, arena);
        if (arena_check(arena, err) < 0) return -1;
        if (check_placement(plan, i, &p, lengths, limits, err) < 0) return -1;
        micro_batch_load(more, mb, &p);
        arena_reset(arena, mark);
        for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) {
            Used* u = &used[r];
            int round = plan->n_rounds ? mb->round : i;
            if (round < 0 || round < u->round)
                return fail(err, "micro-batch %d is in round %d, but rank %d runs one before it in round %d", i, round,
                            r, u->round);
            if (round > u->round) *u = (Used){.round = round, .ring_docs = u->ring_docs};
            u->load.tokens += more[r].tokens, u->load.pairs += more[r].pairs;
            u->shared += mb->cp_size > 1;
            u->ring_docs += mb->ulysses_size < mb->cp_size ? mb->n_docs : 0;
            more[r] = (PassLoad){0, 0};
            if (check_used(u, r, i, limits, err) < 0) return -1;
        }
    }
    return 0;
}

static int check_rounds(const Plan* plan, Arena* arena, Err err) {
    int n = plan->n_micro_batches, n_rounds = 0;
    char* seen = TAKE(arena, char, n);
    if (plan->n_rounds == 0) return 0;
    if (arena_check(arena, err) < 0) return -1;
    memset(seen, 0, (size_t)n);
    for (int i = 0; i < n; i++) {
        int round = plan->micro_batches[i].round;
        if (round < n) seen[round] = 1;
        n_rounds = MAX(n_rounds, round + 1);
    }
    if (plan->n_rounds != n_rounds)
        return fail(err, "the plan has %d rounds, its micro-batches need %d", plan->n_rounds, n_rounds);
    for (int r = 0; r < n_rounds; r++)
        if (r >= n || !seen[r]) return fail(err, "no micro-batch is in round %d of %d", r, n_rounds);
    return 0;
}

// ---- coming to an end

int schedule_stuck(const MicroBatch* micro_batches, int n_micro_batches, const int* list, const int* first, int ranks,
                   Arena* arena) {
    ArenaMark mark = arena_mark(arena);
    int *arrived = TAKE(arena, int, n_micro_batches), *next = TAKE(arena, int, ranks),
        *moving = TAKE(arena, int, ranks), n_moving = 0, n_run = 0;
    if (arena_check(arena, NULL) < 0) return -1;
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

// The lists of the ranks for these n micro-batches, which stand in the one order.
static void list_micro_batches(const Plan* plan, const MicroBatch* ordered, int n, int* list, int* first) {
    memset(first, 0, sizeof(int) * ((size_t)plan->ranks + 1));
    for (int i = 0; i < n; i++)
        for (int r = 0; r < ordered[i].cp_size; r++) first[ordered[i].first_rank + r + 1]++;
    for (int r = 0; r < plan->ranks; r++) first[r + 1] += first[r];
    for (int i = 0; i < n; i++)
        for (int r = 0; r < ordered[i].cp_size; r++) list[first[ordered[i].first_rank + r]++] = i;
    // Each first[r] has walked to the start of rank r + 1: move them one entry up.
    memmove(first + 1, first, sizeof(int) * (size_t)plan->ranks);
    first[0] = 0;
}

// Micro-batches are followed in the order in which their exchanges are posted, in runs whose lists stay short: where
// the ones before all end, the next start afresh.
static int check_end(const Plan* plan, int node_size, Arena* arena, Err err) {
    int64_t room = (int64_t)plan->n_docs + plan->ranks;
    int n = plan->n_micro_batches, *order = TAKE(arena, int, n);
    MicroBatch* ordered = TAKE(arena, MicroBatch, n);
    int *list = TAKE(arena, int, room), *first = TAKE(arena, int, plan->ranks + 1);
    if (arena_check(arena, err) < 0 || pass_order(plan, node_size, order, arena, err) < 0) return -1;
    for (int i = 0; i < n; i++) ordered[i] = plan->micro_batches[order[i]];
    for (int begin = 0, end = 0; begin < n; begin = end) {
        int64_t entries = 0;
        while (end < n && entries + ordered[end].cp_size <= room) entries += ordered[end++].cp_size;
        list_micro_batches(plan, ordered + begin, end - begin, list, first);
        int stuck = schedule_stuck(ordered + begin, end - begin, list, first, plan->ranks, arena);
        if (stuck < 0) return arena_check(arena, err);
        if (stuck) return fail(err, "%d of %d micro-batches can never run", stuck, end - begin);
    }
    return 0;
}

int plan_check(const Plan* plan, const int* lengths, int n, const PlanLimits* limits, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    if (check_lengths(lengths, n, limits, err) < 0) return -1;
    if (check_shape(plan, n, limits, err) < 0) return -1;
    if (check_documents(plan, n, arena, err) < 0) return -1;
    if (check_passes(plan, lengths, limits, arena, err) < 0) return -1;
    if (check_rounds(plan, arena, err) < 0) return -1;
    if (check_end(plan, limits->node_size, arena, err) < 0) return -1;
    arena_reset(arena, mark);
    return 0;
}
