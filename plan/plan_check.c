// plan_check.c - the proof of a plan, rule by rule, from the definitions of plan.h and not from what the planners know.
#include "plan/planner.h"

typedef struct Scratch {
    int* seen;                    // (n) how often a document was met
    int* ring_docs;               // (ranks)
    int* last;                    // (ranks) rounds
    int *tokens, *low;            // (ranks) places of a ring
    int *list, *first, *waiting;  // (n + ranks), (ranks + 1), (n + 2 ranks): what the ranks run
} Scratch;

static size_t carve_scratch(Scratch* x, void* memory, int n, const PlanLimits* limits) {
    Carver c = {(char*)memory, 0};
    size_t docs = sizeof(int) * (size_t)n, ranks = sizeof(int) * (size_t)limits->ranks;
    x->seen = (int*)carve(&c, docs);
    x->ring_docs = (int*)carve(&c, ranks);
    x->last = (int*)carve(&c, ranks);
    x->tokens = (int*)carve(&c, ranks);
    x->low = (int*)carve(&c, ranks);
    x->list = (int*)carve(&c, docs + ranks);
    x->first = (int*)carve(&c, ranks + sizeof(int));
    x->waiting = (int*)carve(&c, docs + 2 * ranks);
    return c.bytes;
}

size_t plan_check_scratch(int n, const PlanLimits* limits) { return carve_scratch(&(Scratch){0}, NULL, n, limits); }

// ---- the rules

static int check_shape(const Plan* plan, int n, const PlanLimits* limits, char* err, size_t errlen) {
    if (plan->ranks != limits->ranks)
        return fail(err, errlen, "the plan is for %d ranks, expected %d", plan->ranks, limits->ranks);
    if (plan->n_docs != n)
        return fail(err, errlen, "the plan has %d documents, expected the %d of the step", plan->n_docs, n);
    if (plan->n_items < 0 || plan->n_items > n)
        return fail(err, errlen, "the plan has %d items, expected 0 to %d, one for each document", plan->n_items, n);
    for (int i = 0; i < plan->n_items; i++) {
        const Item* item = &plan->items[i];
        if (item->first_rank < 0 || item->degree < 1 || item->degree > plan->ranks - MAX(item->first_rank, 0))
            return fail(err, errlen, "item %d is on %d ranks from rank %d, beyond the ranks 0 to %d", i, item->degree,
                        item->first_rank, plan->ranks - 1);
        if (item->inner < 1 || item->degree % item->inner != 0)
            return fail(err, errlen, "item %d: %d ranks share heads, which does not divide its %d ranks", i,
                        item->inner, item->degree);
        if (item->inner > limits->NH)
            return fail(err, errlen, "item %d: %d ranks share %d heads, so that some have none", i, item->inner,
                        limits->NH);
        if (item->n_docs < 1 || item->first_doc < 0 || item->n_docs > n - item->first_doc)
            return fail(err, errlen, "item %d has %d documents from place %d on, of %d", i, item->n_docs,
                        item->first_doc, n);
    }
    return 0;
}

static int check_documents(const Plan* plan, int n, int* seen, char* err, size_t errlen) {
    memset(seen, 0, sizeof(int) * (size_t)n);
    for (int i = 0; i < plan->n_items; i++)
        for (int j = 0; j < plan->items[i].n_docs; j++) {
            int doc = plan->docs[plan->items[i].first_doc + j];
            if (doc < 0 || doc >= n) return fail(err, errlen, "item %d has document %d, of %d", i, doc, n);
            if (seen[doc]++) return fail(err, errlen, "document %d is there twice, again in item %d", doc, i);
        }
    for (int doc = 0; doc < n; doc++)
        if (!seen[doc]) return fail(err, errlen, "document %d is in no item", doc);
    return 0;
}

static int check_capacity(const Plan* plan, const int* lengths, const PlanLimits* limits, Scratch* x, char* err,
                          size_t errlen) {
    memset(x->ring_docs, 0, sizeof(int) * (size_t)plan->ranks);
    for (int i = 0; i < plan->n_items; i++) {
        const Item* item = &plan->items[i];
        int64_t heads = CEIL_DIV(limits->NH, item->inner);
        item_ring_tokens(plan, item, lengths, x->tokens, x->low);
        for (int a = 0; a < item->degree / item->inner; a++) {
            int rank = item->first_rank + a * item->inner, n = CEIL_DIV(x->tokens[a], item->inner);
            if (n > limits->capacity)
                return fail(err, errlen, "item %d: %d tokens on a rank of %d to %d, the capacity is %d", i, n, rank,
                            rank + item->inner - 1, limits->capacity);
            if (x->tokens[a] * heads > (int64_t)limits->capacity * limits->NH)
                return fail(err, errlen,
                            "item %d: attention of %d tokens at %d of %d heads on a rank of %d to %d, the capacity is "
                            "%d at all heads",
                            i, x->tokens[a], (int)heads, limits->NH, rank, rank + item->inner - 1, limits->capacity);
        }
        if (item->inner == item->degree) continue;
        for (int r = item->first_rank; r < item->first_rank + item->degree; r++)
            if ((x->ring_docs[r] += item->n_docs) > limits->max_ring_docs)
                return fail(err, errlen, "rank %d: %d documents in rings up to item %d, at most %d", r, x->ring_docs[r],
                            i, limits->max_ring_docs);
    }
    return 0;
}

static int check_rounds(const Plan* plan, int* last, char* err, size_t errlen) {
    int n_rounds = 0;
    if (plan->n_rounds == 0) return 0;
    for (int r = 0; r < plan->ranks; r++) last[r] = -1;
    for (int i = 0; i < plan->n_items; i++) {
        const Item* item = &plan->items[i];
        int end = item->first_rank + item->degree, earliest = 0;
        for (int r = item->first_rank; r < end; r++) {
            if (item->round <= last[r])
                return fail(err, errlen, "item %d is in round %d, but rank %d runs another in round %d", i, item->round,
                            r, last[r]);
            earliest = MAX(earliest, last[r] + 1);
        }
        if (item->round != earliest)
            return fail(err, errlen, "item %d is in round %d, its ranks are free in round %d", i, item->round,
                        earliest);
        for (int r = item->first_rank; r < end; r++) last[r] = item->round;
        n_rounds = MAX(n_rounds, item->round + 1);
    }
    if (plan->n_rounds != n_rounds)
        return fail(err, errlen, "the plan has %d rounds, its items need %d", plan->n_rounds, n_rounds);
    return 0;
}

// ---- coming to an end

int schedule_stuck(const Item* items, int n_items, const int* list, const int* first, int ranks, void* scratch) {
    int *arrived = (int*)scratch, *next = arrived + n_items, *moving = next + ranks;
    int n_moving = 0, n_run = 0;
    memset(arrived, 0, sizeof(int) * (size_t)n_items);
    for (int r = 0; r < ranks; r++) next[r] = first[r], moving[n_moving++] = r;
    while (n_moving > 0) {
        int r = moving[--n_moving];
        if (next[r] == first[r + 1]) continue;
        const Item* item = &items[list[next[r]]];
        if (r < item->first_rank || r >= item->first_rank + item->degree) continue;  // waits for ever
        if (++arrived[list[next[r]]] != item->degree) continue;
        // All ranks of the item stand at it, none of them is moving.
        n_run++;
        for (int i = item->first_rank; i < item->first_rank + item->degree; i++) next[i]++, moving[n_moving++] = i;
    }
    return n_items - n_run;
}

// The lists of the ranks for items [begin, end), counted from begin.
static void list_items(const Plan* plan, int begin, int end, int* list, int* first) {
    memset(first, 0, sizeof(int) * ((size_t)plan->ranks + 1));
    for (int i = begin; i < end; i++)
        for (int r = 0; r < plan->items[i].degree; r++) first[plan->items[i].first_rank + r + 1]++;
    for (int r = 0; r < plan->ranks; r++) first[r + 1] += first[r];
    for (int i = begin; i < end; i++)
        for (int r = 0; r < plan->items[i].degree; r++) list[first[plan->items[i].first_rank + r]++] = i - begin;
    // Each first[r] has walked to the start of rank r + 1: move them one place up.
    memmove(first + 1, first, sizeof(int) * (size_t)plan->ranks);
    first[0] = 0;
}

// Items are followed in runs whose lists fit the scratch: where the ones before all end, the next start afresh.
static int check_end(const Plan* plan, Scratch* x, char* err, size_t errlen) {
    for (int begin = 0, end = 0; begin < plan->n_items; begin = end) {
        int64_t entries = 0, room = (int64_t)plan->n_docs + plan->ranks;
        while (end < plan->n_items && entries + plan->items[end].degree <= room) entries += plan->items[end++].degree;
        list_items(plan, begin, end, x->list, x->first);
        int stuck = schedule_stuck(plan->items + begin, end - begin, x->list, x->first, plan->ranks, x->waiting);
        if (stuck) return fail(err, errlen, "%d of the items %d to %d can never run", stuck, begin, end - 1);
    }
    return 0;
}

int plan_check(const Plan* plan, const int* lengths, int n, const PlanLimits* limits, void* scratch, char* err,
               size_t errlen) {
    Scratch x;
    if (check_lengths(lengths, n, limits, err, errlen) < 0) return -1;
    carve_scratch(&x, scratch, n, limits);
    if (check_shape(plan, n, limits, err, errlen) < 0) return -1;
    if (check_documents(plan, n, x.seen, err, errlen) < 0) return -1;
    if (check_capacity(plan, lengths, limits, &x, err, errlen) < 0) return -1;
    if (check_rounds(plan, x.last, err, errlen) < 0) return -1;
    return check_end(plan, &x, err, errlen);
}
