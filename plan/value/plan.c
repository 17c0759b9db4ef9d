// plan.c - the plan as a value: memory, kinds, rounds, hash; and what fits a group of ranks.
#include <limits.h>

#include "plan/value/plan.h"

CpKind cp_kind(const MicroBatch* mb) {
    if (mb->cp_size == 1) return CP_LOCAL;
    return mb->ulysses_size == mb->cp_size ? CP_ULYSSES : mb->ulysses_size == 1 ? CP_RING : CP_ULYSSES_RING;
}

const char* cp_kind_name(CpKind kind) {
    static const char* const names[] = {"local", "ulysses", "ring", "ulysses x ring"};
    return names[kind];
}

const PlanChecks* plan_checks;

// ---- memory

void plan_take(Plan* plan, int n, Arena* arena) {
    *plan = (Plan){.docs = TAKE(arena, int, n), .micro_batches = TAKE(arena, MicroBatch, n)};
}

void plan_copy(Plan* to, const Plan* from) {
    int* docs = to->docs;
    MicroBatch* micro_batches = to->micro_batches;
    memcpy(docs, from->docs, sizeof(int) * (size_t)from->n_docs);
    memcpy(micro_batches, from->micro_batches, sizeof(MicroBatch) * (size_t)from->n_micro_batches);
    *to = *from;  // placed lies where it lay
    to->docs = docs;
    to->micro_batches = micro_batches;
}

// ---- rounds, hash

int plan_set_rounds(Plan* plan, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    int* last = TAKE(arena, int, plan->ranks);
    if (arena_check(arena, err) < 0) return -1;
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
    arena_reset(arena, mark);
    return 0;
}

static int across_nodes(const MicroBatch* mb, int node_size) {
    return mb->first_rank / node_size != (mb->first_rank + mb->cp_size - 1) / node_size;
}

// A counting sort by round and kind.
int pass_order(const Plan* plan, int node_size, int* order, Arena* arena, Err err) {
    enum { ACROSS, INSIDE, LOCAL, KINDS };
    ArenaMark mark = arena_mark(arena);
    size_t bins = (size_t)KINDS * (size_t)MAX(plan->n_rounds, 1);
    int* begin = TAKE(arena, int, bins + 1);
    if (arena_check(arena, err) < 0) return -1;
    memset(begin, 0, sizeof(int) * (bins + 1));
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < plan->n_micro_batches; i++) {
            const MicroBatch* mb = &plan->micro_batches[i];
            int kind = mb->cp_size == 1 ? LOCAL : across_nodes(mb, node_size) ? ACROSS : INSIDE;
            int bin = KINDS * (plan->n_rounds ? mb->round : 0) + kind;
            if (pass == 0) begin[bin + 1]++;
            else order[begin[bin]++] = i;
        }
        for (size_t bin = 0; bin < bins && pass == 0; bin++) begin[bin + 1] += begin[bin];
    }
    arena_reset(arena, mark);
    return 0;
}

uint64_t plan_hash(const Plan* plan, const int* lengths) {
    _Static_assert(sizeof(MicroBatch) == 6 * sizeof(int), "a micro-batch has no padding, whose bytes would be hashed");
    int64_t head[] = {plan->step, plan->ranks, plan->n_docs, plan->n_micro_batches, plan->n_rounds};
    size_t placed = plan->placed_at ? (size_t)plan->n_placed : 0;
    uint64_t h = hash_bytes(head, sizeof head, 0);
    h = hash_bytes(plan->docs, sizeof(int) * (size_t)plan->n_docs, h);
    h = hash_bytes(plan->micro_batches, sizeof(MicroBatch) * (size_t)plan->n_micro_batches, h);
    if (placed) h = hash_bytes(plan->placed, sizeof(int) * placed, h);
    return hash_bytes(lengths, sizeof(int) * (size_t)plan->n_docs, h);
}

LengthSums micro_batch_sums(const Plan* plan, const MicroBatch* mb, const int* lengths) {
    LengthSums sums = {0, 0};
    for (int i = 0; i < mb->n_docs; i++) {
        double s = lengths[plan->docs[mb->first_doc + i]];
        sums.tokens += s, sums.squares += s * s;
    }
    return sums;
}

// ---- what fits

int64_t ring_rank_capacity(const PlanLimits* limits, int ulysses_size) {
    return (int64_t)limits->capacity * limits->kv_heads / CEIL_DIV(limits->kv_heads, ulysses_size);
}

int widest_ring_rank(int s, int ring_size) {
    int widest = 0;
    // Neighbouring ring ranks share borders: low and high walk towards each other.
    for (int a = 0, low = 0, high = s; a < ring_size; a++) {
        int next_low = chunk_border(s, ring_size, a + 1), next_high = chunk_border(s, ring_size, 2 * ring_size - 1 - a);
        widest = MAX(widest, next_low - low + high - next_high);
        low = next_low, high = next_high;
    }
    return widest;
}

int longest_fitting(const PlanLimits* limits, int s, int ulysses_size, int ring_size) {
    int64_t most = ring_rank_capacity(limits, ulysses_size);
    s = (int)MIN(s, most * ring_size);  // the average rank of the ring has s / ring_size
    while (widest_ring_rank(s, ring_size) > most) s--;
    return s;
}

int64_t capacity_for(const PlanLimits* limits, int s, int ulysses_size, int ring_size) {
    return CEIL_DIV((int64_t)widest_ring_rank(s, ring_size) * CEIL_DIV(limits->kv_heads, ulysses_size),
                    limits->kv_heads);
}

int refuse_length(int doc, int s, const PlanLimits* limits, const int* ulysses_sizes, int first, int last,
                  const char* how, Err err) {
    int holds = 0, at = 0;
    int64_t capacity = INT64_MAX;
    for (int d = first; d <= last; d++) {
        if (!ulysses_sizes[d]) continue;
        int fits = longest_fitting(limits, s, ulysses_sizes[d], d / ulysses_sizes[d]);
        if (fits > holds) holds = fits, at = d;
        capacity = MIN(capacity, capacity_for(limits, s, ulysses_sizes[d], d / ulysses_sizes[d]));
    }
    return fail(err,
                "document %d of the step has %d tokens, and no group of %s%d ranks holds more than %d at capacity %d "
                "(%s%d%s does)%s; try --capacity %lld or more ranks",
                doc, s, first == 1 ? "up to " : "", last, holds, limits->capacity, how ? "--cp " : "one of ", at,
                how ? "" : " ranks", how ? how : "", (long long)capacity);
}

int check_lengths(const int* lengths, int n, const PlanLimits* limits, Err err) {
    if (limits->ranks < 1 || limits->node_size < 1 || limits->capacity < 1 || limits->kv_heads < 1 || n < 0)
        return fail(err, "no plan for %d documents, %d ranks, %d of a node, capacity %d, %d key/value heads", n,
                    limits->ranks, limits->node_size, limits->capacity, limits->kv_heads);
    int64_t tokens = 0;
    for (int i = 0; i < n; i++) {
        if (lengths[i] < 1)
            return fail(err, "document %d of the step has %d tokens, expected 1 or more", i, lengths[i]);
        tokens += lengths[i];
    }
    if (tokens > INT_MAX)
        return fail(err, "the step has %lld tokens, at most %d can be planned; try fewer --batch-tokens",
                    (long long)tokens, INT_MAX);
    return 0;
}

int plan_begin(Plan* plan, int64_t step, const int* lengths, int n, const PlanLimits* limits, Arena* arena, Err err) {
    if (check_lengths(lengths, n, limits, err) < 0) return -1;
    plan_take(plan, n, arena);
    plan->step = step;
    plan->ranks = limits->ranks;
    plan->n_docs = n;
    return arena_check(arena, err);
}
