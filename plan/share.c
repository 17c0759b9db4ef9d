// share.c - what one rank holds of a micro-batch: the zigzag of chunks and the runs of tokens that
// kernels/group_attention.h describes, as spans of documents.
//
// Place a of a ring of `ring_size` has of every document the low chunk [B(a), B(a + 1)) and the high chunk [B(2
// ring_size - 1 - a), B(2 ring_size - a)), B being chunk_border: early tokens see few keys and late ones many, so both
// together cost every place the same. Without a ring the one place has whole documents.
#include "plan/plan.h"

int chunk_border(int s, int ring_size, int j) { return (int)((int64_t)j * s / (2 * ring_size)); }

// Tokens [first, end) of a document of s tokens that are the low (high = 0) or the high chunk of place a.
typedef struct Chunk {
    int first, end;
} Chunk;

static Chunk place_chunk(int s, int ring_size, int a, int high) {
    if (ring_size == 1) return (Chunk){high ? s : 0, s};
    int j = high ? 2 * ring_size - 1 - a : a;
    return (Chunk){chunk_border(s, ring_size, j), chunk_border(s, ring_size, j + 1)};
}

static int place_tokens(const Plan* plan, const MicroBatch* mb, const int* lengths, int ring_size, int a, int high) {
    int tokens = 0;
    for (int i = 0; i < mb->n_docs; i++) {
        Chunk chunk = place_chunk(lengths[plan->docs[mb->first_doc + i]], ring_size, a, high);
        tokens += chunk.end - chunk.first;
    }
    return tokens;
}

Share micro_batch_share(const Plan* plan, const MicroBatch* mb, const int* lengths, int rank, Span* spans) {
    int place = rank - mb->first_rank;
    if (place < 0 || place >= mb->cp_size)
        die("rank %d asks for its share of a micro-batch of ranks %d to %d", rank, mb->first_rank,
            mb->first_rank + mb->cp_size - 1);
    Share share = {.ulysses_size = mb->ulysses_size, .ring_size = mb->cp_size / mb->ulysses_size};
    share.a = place / share.ulysses_size;
    share.b = place % share.ulysses_size;
    for (int high = 0; high < 2; high++)
        share.ring_n += place_tokens(plan, mb, lengths, share.ring_size, share.a, high);
    int first = (int)((int64_t)share.b * share.ring_n / share.ulysses_size);
    int end = (int)((share.b + 1) * (int64_t)share.ring_n / share.ulysses_size);
    share.n = end - first;

    int at = 0;  // tokens of the place before the chunk
    for (int high = 0; high < 2; high++)
        for (int i = 0; i < mb->n_docs && at < end; i++) {
            int doc = plan->docs[mb->first_doc + i];
            Chunk chunk = place_chunk(lengths[doc], share.ring_size, share.a, high);
            int low = MAX(first - at, 0), tokens = chunk.end - chunk.first, up = MIN(end - at, tokens);
            if (low < up) {
                if (spans) spans[share.n_spans] = (Span){doc, chunk.first + low, up - low};
                share.n_spans++;
            }
            at += tokens;
        }
    return share;
}

void micro_batch_ring_tokens(const Plan* plan, const MicroBatch* mb, const int* lengths, int* tokens, int* low) {
    int ring_size = mb->cp_size / mb->ulysses_size;
    for (int a = 0; a < ring_size; a++) {
        low[a] = place_tokens(plan, mb, lengths, ring_size, a, 0);
        tokens[a] = low[a] + place_tokens(plan, mb, lengths, ring_size, a, 1);
    }
}

static int cu_arrays(const MicroBatch* mb) {
    return mb->cp_size == mb->ulysses_size ? 1 : 2 * (mb->cp_size / mb->ulysses_size);
}

size_t micro_batch_cu_ints(const MicroBatch* mb) { return (size_t)cu_arrays(mb) * ((size_t)mb->n_docs + 1); }

void micro_batch_cu(const Plan* plan, const MicroBatch* mb, const int* lengths, int* cu) {
    int ring_size = mb->cp_size / mb->ulysses_size;
    for (int array = 0; array < cu_arrays(mb); array++) {
        *cu = 0;
        for (int i = 0; i < mb->n_docs; i++, cu++) {
            Chunk chunk = place_chunk(lengths[plan->docs[mb->first_doc + i]], ring_size, array / 2, array % 2);
            cu[1] = cu[0] + chunk.end - chunk.first;
        }
        cu++;
    }
}
