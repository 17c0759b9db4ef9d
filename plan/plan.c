// plan.c - the plan as a value: memory, kinds, rounds, hash; and what fits a group of ranks (planner.h).
#include <limits.h>

#include "plan/planner.h"

CpKind cp_kind(const MicroBatch* mb) {
    if (mb->cp_size == 1) return CP_LOCAL;
    return mb->ulysses_size == mb->cp_size ? CP_ULYSSES : mb->ulysses_size == 1 ? CP_RING : CP_ULYSSES_RING;
}

const char* cp_kind_name(CpKind kind) {
    static const char* const names[] = {"local", "ulysses", "ring", "ulysses x ring"};
    return names[kind];
}

// ---- memory

static size_t carve_plan(Plan* plan, Carver* c, int n) {
    plan->micro_batches = (MicroBatch*)carve(c, sizeof(MicroBatch) * (size_t)n);
    plan->docs = (int*)carve(c, sizeof(int) * (size_t)n);
    return c->bytes;
}

size_t plan_bytes(int n) { return carve_plan(&(Plan){0}, &(Carver){0}, n); }

void plan_carve(Plan* plan, void* memory, int n) {
    *plan = (Plan){0};
    carve_plan(plan, &(Carver){(char*)memory, 0}, n);
}

void plan_copy(Plan* to, const Plan* from) {
    int* docs = to->docs;
    MicroBatch* micro_batches = to->micro_batches;
    memcpy(docs, from->docs, sizeof(int) * (size_t)from->n_docs);
    memcpy(micro_batches, from->micro_batches, sizeof(MicroBatch) * (size_t)from->n_micro_batches);
    *to = *from;
    to->docs = docs;
    to->micro_batches = micro_batches;
}

size_t plan_scratch_bytes(int n, const PlanLimits* limits) {
    size_t most = MAX(plan_static_scratch(n, limits), plan_random_scratch(n, limits));
    return MAX(most, plan_check_scratch(n, limits));
}

// ---- rounds, hash

void plan_set_rounds(Plan* plan, int* last) {
    memset(last, 0, sizeof(int) * (size_t)plan->ranks);
    plan->n_rounds = 0;
    for (int i = 0; i < plan->n_micro_batches; i++) {
        MicroBatch* mb = &plan->micro_batches[i];
        int* of_micro_batch = last + mb->first_rank;
        mb->round = 0;
        for (int r = 0; r < mb->cp_size; r++) mb->round = MAX(mb->round, of_micro_batch[r]);
        for (int r = 0; r < mb->cp_size; r++) of_micro_batch[r] = mb->round + 1;
        plan->n_rounds = MAX(plan->n_rounds, mb->round + 1);
    }
}

uint64_t plan_hash(const Plan* plan, const int* lengths) {
    _Static_assert(sizeof(MicroBatch) == 6 * sizeof(int), "a micro-batch has no padding, whose bytes would be hashed");
    int64_t head[] = {plan->step, plan->ranks, plan->n_docs, plan->n_micro_batches, plan->n_rounds};
    uint64_t h = hash_bytes(head, sizeof head, 0);
    h = hash_bytes(plan->docs, sizeof(int) * (size_t)plan->n_docs, h);
    h = hash_bytes(plan->micro_batches, sizeof(MicroBatch) * (size_t)plan->n_micro_batches, h);
    return hash_bytes(lengths, sizeof(int) * (size_t)plan->n_docs, h);
}

// ---- what fits

int64_t place_capacity(const PlanLimits* limits, int ulysses_size) {
    return (int64_t)limits->capacity * limits->NH / CEIL_DIV(limits->NH, ulysses_size);
}

int widest_place(int s, int ring_size) {
    int widest = 0;
    // Neighbouring places share borders: low and high walk towards each other.
    for (int a = 0, low = 0, high = s; a < ring_size; a++) {
        int next_low = chunk_border(s, ring_size, a + 1), next_high = chunk_border(s, ring_size, 2 * ring_size - 1 - a);
        widest = MAX(widest, next_low - low + high - next_high);
        low = next_low, high = next_high;
    }
    return widest;
}

int longest_fitting(const PlanLimits* limits, int s, int ulysses_size, int ring_size) {
    int64_t most = place_capacity(limits, ulysses_size);
    s = (int)MIN(s, most * ring_size);  // the average place has s / ring_size
    while (widest_place(s, ring_size) > most) s--;
    return s;
}

int64_t capacity_for(const PlanLimits* limits, int s, int ulysses_size, int ring_size) {
    return CEIL_DIV((int64_t)widest_place(s, ring_size) * CEIL_DIV(limits->NH, ulysses_size), limits->NH);
}

int check_lengths(const int* lengths, int n, const PlanLimits* limits, char* err, size_t errlen) {
    if (limits->ranks < 1 || limits->node_size < 1 || limits->capacity < 1 || limits->NH < 1 || n < 0)
        return fail(err, errlen, "no plan for %d documents, %d ranks, %d of a machine, capacity %d, %d heads", n,
                    limits->ranks, limits->node_size, limits->capacity, limits->NH);
    int64_t tokens = 0;
    for (int i = 0; i < n; i++) {
        if (lengths[i] < 1)
            return fail(err, errlen, "document %d of the step has %d tokens, expected 1 or more", i, lengths[i]);
        tokens += lengths[i];
    }
    if (tokens > INT_MAX)
        return fail(err, errlen, "the step has %lld tokens, at most %d can be planned; try fewer --batch-tokens",
                    (long long)tokens, INT_MAX);
    return 0;
}
