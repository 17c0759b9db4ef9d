// share.c - what one rank holds of an item: the zigzag of chunks and the runs of tokens that kernels/group_attention.h
// describes, as spans of documents.
//
// Place a of a ring of `outer` has of every document the low chunk [B(a), B(a + 1)) and the high chunk
// [B(2 outer - 1 - a), B(2 outer - a)), B being chunk_border: early tokens see few keys and late ones many, so both
// together cost every place the same. Without a ring the one place has whole documents.
#include "plan/plan.h"

int chunk_border(int s, int outer, int j) { return (int)((int64_t)j * s / (2 * outer)); }

// Tokens [first, end) of a document of s tokens that are the low (high = 0) or the high chunk of place a.
typedef struct Chunk {
    int first, end;
} Chunk;

static Chunk place_chunk(int s, int outer, int a, int high) {
    if (outer == 1) return (Chunk){high ? s : 0, s};
    int j = high ? 2 * outer - 1 - a : a;
    return (Chunk){chunk_border(s, outer, j), chunk_border(s, outer, j + 1)};
}

static int place_tokens(const Plan* plan, const Item* item, const int* lengths, int outer, int a, int high) {
    int tokens = 0;
    for (int i = 0; i < item->n_docs; i++) {
        Chunk chunk = place_chunk(lengths[plan->docs[item->first_doc + i]], outer, a, high);
        tokens += chunk.end - chunk.first;
    }
    return tokens;
}

Share item_share(const Plan* plan, const Item* item, const int* lengths, int rank, Span* spans) {
    int place = rank - item->first_rank;
    if (place < 0 || place >= item->degree)
        die("rank %d asks for its share of an item of ranks %d to %d", rank, item->first_rank,
            item->first_rank + item->degree - 1);
    Share share = {.inner = item->inner, .outer = item->degree / item->inner};
    share.a = place / share.inner;
    share.b = place % share.inner;
    for (int high = 0; high < 2; high++) share.ring_n += place_tokens(plan, item, lengths, share.outer, share.a, high);
    int first = (int)((int64_t)share.b * share.ring_n / share.inner);
    int end = (int)((share.b + 1) * (int64_t)share.ring_n / share.inner);
    share.n = end - first;

    int at = 0;  // tokens of the place before the chunk
    for (int high = 0; high < 2; high++)
        for (int i = 0; i < item->n_docs && at < end; i++) {
            int doc = plan->docs[item->first_doc + i];
            Chunk chunk = place_chunk(lengths[doc], share.outer, share.a, high);
            int low = MAX(first - at, 0), tokens = chunk.end - chunk.first, up = MIN(end - at, tokens);
            if (low < up) {
                if (spans) spans[share.n_spans] = (Span){doc, chunk.first + low, up - low};
                share.n_spans++;
            }
            at += tokens;
        }
    return share;
}

void item_ring_tokens(const Plan* plan, const Item* item, const int* lengths, int* tokens, int* low) {
    int outer = item->degree / item->inner;
    for (int a = 0; a < outer; a++) {
        low[a] = place_tokens(plan, item, lengths, outer, a, 0);
        tokens[a] = low[a] + place_tokens(plan, item, lengths, outer, a, 1);
    }
}

static int cu_arrays(const Item* item) { return item->degree == item->inner ? 1 : 2 * (item->degree / item->inner); }

size_t item_cu_ints(const Item* item) { return (size_t)cu_arrays(item) * ((size_t)item->n_docs + 1); }

void item_cu(const Plan* plan, const Item* item, const int* lengths, int* cu) {
    int outer = item->degree / item->inner;
    for (int array = 0; array < cu_arrays(item); array++) {
        *cu = 0;
        for (int i = 0; i < item->n_docs; i++, cu++) {
            Chunk chunk = place_chunk(lengths[plan->docs[item->first_doc + i]], outer, array / 2, array % 2);
            cu[1] = cu[0] + chunk.end - chunk.first;
        }
        cu++;
    }
}
