// share.c - what one rank holds of a micro-batch: its Placement (plan/value/plan.h) as spans of documents, cu_seqlens
// and loads; and the usual placement.
//
// The zigzag: a document is cut into 2 R chunks at borders B(j) (chunk_border), R being the ring size, and ring rank a
// gets chunk a and chunk 2 R - 1 - a. Both together cost every ring rank the same. R = 4; the area under the stairs is
// the work:
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
#include "plan/value/plan.h"

int chunk_border(int s, int ring_size, int j) { return (int)((int64_t)j * s / (2 * ring_size)); }

// ---- placements

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

// Of all chunks of ring rank a.
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

// ---- what follows from them

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

    int at = 0;  // tokens of the ring rank before the chunk
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
