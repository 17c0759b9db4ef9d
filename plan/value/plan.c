// plan.c - see plan.h.
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
    *to = *from;  // placed is shared, not copied
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

// Counts and sorts by round and kind.
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
        int doc = plan->docs[mb->first_doc + i], s = lengths[doc];
        sums.tokens += s, sums.squares += s * seen_tokens(plan->squares, doc, s);
    }
    return sums;
}

// ---- what fits

int group_capacity(const PlanLimits* limits, int first_rank, int n) {
    int least = rank_capacity(limits, first_rank);
    for (int r = 1; r < n && limits->capacities; r++) least = MIN(least, limits->capacities[first_rank + r]);
    return least;
}

// The next larger capacity is taken as long as n contiguous ranks hold more than this one.
int widest_capacity(const PlanLimits* limits, int n) {
    int widest = limits->capacity, more = limits->capacities != NULL;
    while (more) {
        int next = INT_MAX, run = 0;
        more = 0;
        for (int r = 0; r < limits->ranks; r++) {
            int capacity = limits->capacities[r];
            run = capacity > widest ? run + 1 : 0;
            if (capacity > widest) next = MIN(next, capacity);
            more |= run >= n;
        }
        if (more) widest = next;
    }
    return widest;
}

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
    s = (int)MIN(s, most * ring_size);  // the mean rank of the ring has s / ring_size
    while (widest_ring_rank(s, ring_size) > most) s--;
    return s;
}

int64_t capacity_for(const PlanLimits* limits, int s, int ulysses_size, int ring_size) {
    return CEIL_DIV((int64_t)widest_ring_rank(s, ring_size) * CEIL_DIV(limits->kv_heads, ulysses_size),
                    limits->kv_heads);
}

int refuse_length(int doc, int s, const PlanLimits* limits, const GroupChoices* groups, Err err) {
    int holds = 0, at = 0;
    int64_t capacity = INT64_MAX;
    const char* how = groups->how;
    for (int d = groups->first; d <= groups->last; d++) {
        int ulysses_size = groups->ulysses_sizes[d];
        if (!ulysses_size) continue;
        PlanLimits own = limits_at(limits, groups->capacities[d]);
        int fits = longest_fitting(&own, s, ulysses_size, d / ulysses_size);
        if (fits > holds) holds = fits, at = d;
        capacity = MIN(capacity, capacity_for(limits, s, ulysses_size, d / ulysses_size));
    }
    return fail(err,
                "document %d of the step has %d tokens, and no group of %s%d ranks holds more than %d at capacity %d "
                "(%s%d%s does)%s; try --capacity %lld or more ranks",
                doc, s, groups->first == 1 ? "up to " : "", groups->last, holds,
                at ? groups->capacities[at] : limits->capacity, how ? "--cp " : "one of ", at, how ? "" : " ranks",
                how ? how : "", (long long)capacity);
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
    plan->squares = limits->squares;
    return arena_check(arena, err);
}

// ---- what one rank holds of a micro-batch
//
// The zigzag: a document is cut into 2 R chunks at borders B(j) (chunk_border), R being the ring size, and ring rank a
// gets chunk a and chunk 2 R - 1 - a. Both together cost every ring rank the same. Here R = 4, and the area under the
// stairs is the work:
//
//        work a chunk                        *
//                                        *   *
//                                    *   *   *
//                                *   *   *   *
//                            *   *   *   *   *
//                        *   *   *   *   *   *
//                    *   *   *   *   *   *   *
//                *   *   *   *   *   *   *   *
//      chunk     0   1   2   3   4   5   6   7
//      ring rank 0   1   2   3   3   2   1   0      1 + 8 = 2 + 7 = 3 + 6 = 4 + 5

int chunk_border(int s, int ring_size, int j) { return (int)((int64_t)j * s / (2 * ring_size)); }

static int ring_size_of(const MicroBatch* mb) { return mb->cp_size / mb->ulysses_size; }
static int chunks_of(const MicroBatch* mb) { return mb->cp_size == mb->ulysses_size ? 1 : 2 * ring_size_of(mb); }

size_t placement_ints(const MicroBatch* mb) {
    size_t borders = (size_t)mb->ulysses_size + 1, chunks = (size_t)chunks_of(mb);
    return borders + (size_t)ring_size_of(mb) * borders + chunks + (size_t)mb->n_docs * (chunks + 1);
}

static Placement placement_in(const MicroBatch* mb, int* ints) {
    Placement p = {.n_chunks = chunks_of(mb), .head_border = ints};
    size_t borders = (size_t)mb->ulysses_size + 1;
    if (!ints) return p;
    p.token_border = p.head_border + borders;
    p.owner = p.token_border + (size_t)ring_size_of(mb) * borders;
    p.chunk_border = p.owner + p.n_chunks;
    return p;
}

Placement plan_placement(const Plan* plan, const MicroBatch* mb) {
    return placement_in(mb, plan->placed + plan->placed_at[mb - plan->micro_batches]);
}

static int* document_borders(const Placement* p, int i) {
    return p->chunk_border + (size_t)i * (size_t)(p->n_chunks + 1);
}

static int chunk_length(const Placement* p, int i, int j) {
    return document_borders(p, i)[j + 1] - document_borders(p, i)[j];
}

// The tokens of all chunks of ring rank a.
static int ring_rank_tokens(const Placement* p, const MicroBatch* mb, int a) {
    int tokens = 0;
    for (int i = 0; i < mb->n_docs; i++)
        for (int j = 0; j < p->n_chunks; j++) tokens += p->owner[j] == a ? chunk_length(p, i, j) : 0;
    return tokens;
}

static void even_borders(int* border, int n, int all) {
    for (int b = 0; b <= n; b++) border[b] = (int)((int64_t)b * all / n);
}

void fill_usual_placement(const Placement* p, const Plan* plan, const MicroBatch* mb, const int* lengths,
                          int kv_heads) {
    int ring_size = ring_size_of(mb);
    even_borders(p->head_border, mb->ulysses_size, kv_heads);
    for (int j = 0; j < p->n_chunks; j++) p->owner[j] = MIN(j, p->n_chunks - 1 - j);
    for (int i = 0; i < mb->n_docs; i++)
        even_borders(document_borders(p, i), p->n_chunks, lengths[plan->docs[mb->first_doc + i]]);
    for (int a = 0; a < ring_size; a++)
        even_borders(p->token_border + a * (mb->ulysses_size + 1), mb->ulysses_size, ring_rank_tokens(p, mb, a));
}

Placement micro_batch_placement(const Plan* plan, const MicroBatch* mb, const int* lengths, int kv_heads,
                                Arena* arena) {
    if (plan->placed_at) return plan_placement(plan, mb);
    Placement p = placement_in(mb, TAKE(arena, int, placement_ints(mb)));
    if (p.head_border) fill_usual_placement(&p, plan, mb, lengths, kv_heads);
    return p;
}

int remapped_to(const Plan* plan, const MicroBatch* mb) {
    if (!plan->placed_at || mb->cp_size == 1 || mb->ulysses_size < mb->cp_size) return -1;
    const int* border = plan_placement(plan, mb).head_border;
    for (int b = 0; b < mb->cp_size; b++)
        if (border[b] == 0 && border[b + 1] == border[mb->cp_size]) return mb->first_rank + b;
    return -1;
}

Share micro_batch_share(const Plan* plan, const MicroBatch* mb, const Placement* p, int rank, Span* spans) {
    int cp_rank = rank - mb->first_rank;
    if (cp_rank < 0 || cp_rank >= mb->cp_size)
        broken("rank %d asks for its share of a micro-batch of ranks %d to %d", rank, mb->first_rank,
               mb->first_rank + mb->cp_size - 1);
    Share share = {.ulysses_size = mb->ulysses_size, .ring_size = ring_size_of(mb)};
    share.ring_rank = cp_rank / share.ulysses_size;
    share.ulysses_rank = cp_rank % share.ulysses_size;
    const int* border = p->token_border + share.ring_rank * (share.ulysses_size + 1);
    int first = border[share.ulysses_rank], end = border[share.ulysses_rank + 1];
    share.ring_n = border[share.ulysses_size];
    share.n = end - first;

    int at = 0;  // tokens of the ring rank before this chunk
    for (int j = 0; j < p->n_chunks; j++)
        for (int i = 0; i < mb->n_docs && at < end && p->owner[j] == share.ring_rank; i++) {
            int tokens = chunk_length(p, i, j), low = MAX(first - at, 0), up = MIN(end - at, tokens);
            if (low < up) {
                if (spans)
                    spans[share.n_spans] =
                        (Span){plan->docs[mb->first_doc + i], document_borders(p, i)[j] + low, up - low};
                share.n_spans++;
            }
            at += tokens;
        }
    return share;
}

void micro_batch_cu(const Placement* p, const MicroBatch* mb, int* cu) {
    for (int j = 0; j < p->n_chunks; j++, cu++) {
        *cu = 0;
        for (int i = 0; i < mb->n_docs; i++, cu++) cu[1] = cu[0] + chunk_length(p, i, j);
    }
}

void micro_batch_load(PassLoad* loads, const MicroBatch* mb, const Placement* p) {
    int64_t widest = 0;
    for (int a = 0; a < ring_size_of(mb); a++)
        widest = MAX(widest, p->token_border[(a + 1) * (mb->ulysses_size + 1) - 1]);
    for (int r = 0; r < mb->cp_size; r++) {
        int b = r % mb->ulysses_size;
        const int* border = p->token_border + (r / mb->ulysses_size) * (mb->ulysses_size + 1);
        loads[mb->first_rank + r].tokens += border[b + 1] - border[b];
        loads[mb->first_rank + r].pairs += widest * (p->head_border[b + 1] - p->head_border[b]);
    }
}

int plan_add_load(PassLoad* loads, const Plan* plan, int i, const int* lengths, const PlanLimits* limits,
                  Arena* arena) {
    ArenaMark mark = arena_mark(arena);
    Placement p = micro_batch_placement(plan, &plan->micro_batches[i], lengths, limits->kv_heads, arena);
    if (arena_check(arena, NULL) < 0) return -1;
    micro_batch_load(loads, &plan->micro_batches[i], &p);
    arena_reset(arena, mark);
    return 0;
}
