// share.c - what one rank holds of a micro-batch: the zigzag of chunks and the runs of tokens that
// kernels/group_attention.h describes, as spans of documents.
//
// Attention is causal: early tokens see few keys, late ones many. A document is cut into 2 R chunks at borders B(j)
// (chunk_border), R being the ring size, and ring rank a gets chunk a, its low one, and chunk 2 R - 1 - a, its high
// one. Both together cost every ring rank the same. R = 4; the area under the stairs is the work:
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
//
// The low chunks of all documents lie before the high ones; the ulysses ranks of a ring rank divide this run of tokens
// evenly. Without a ring (R = 1) the one ring rank has whole documents.
#include "plan/plan.h"

int chunk_border(int s, int ring_size, int j) { return (int)((int64_t)j * s / (2 * ring_size)); }

// Tokens [first, end) of a document of s tokens that are the low (high = 0) or the high chunk of ring rank a.
typedef struct Chunk {
    int first, end;
} Chunk;

static Chunk chunk_of(int s, int ring_size, int a, int high) {
    if (ring_size == 1) return (Chunk){high ? s : 0, s};
    int j = high ? 2 * ring_size - 1 - a : a;
    return (Chunk){chunk_border(s, ring_size, j), chunk_border(s, ring_size, j + 1)};
}

static int ring_rank_tokens(const Plan* plan, const MicroBatch* mb, const int* lengths, int ring_size, int a,
                            int high) {
    int tokens = 0;
    for (int i = 0; i < mb->n_docs; i++) {
        Chunk chunk = chunk_of(lengths[plan->docs[mb->first_doc + i]], ring_size, a, high);
        tokens += chunk.end - chunk.first;
    }
    return tokens;
}

Share micro_batch_share(const Plan* plan, const MicroBatch* mb, const int* lengths, int rank, Span* spans) {
    int cp_rank = rank - mb->first_rank;
    if (cp_rank < 0 || cp_rank >= mb->cp_size)
        broken("rank %d asks for its share of a micro-batch of ranks %d to %d", rank, mb->first_rank,
               mb->first_rank + mb->cp_size - 1);
    Share share = {.ulysses_size = mb->ulysses_size, .ring_size = mb->cp_size / mb->ulysses_size};
    share.ring_rank = cp_rank / share.ulysses_size;
    share.ulysses_rank = cp_rank % share.ulysses_size;
    for (int high = 0; high < 2; high++)
        share.ring_n += ring_rank_tokens(plan, mb, lengths, share.ring_size, share.ring_rank, high);
    int first = (int)((int64_t)share.ulysses_rank * share.ring_n / share.ulysses_size);
    int end = (int)((share.ulysses_rank + 1) * (int64_t)share.ring_n / share.ulysses_size);
    share.n = end - first;

    int at = 0;  // tokens of the ring rank before the chunk
    for (int high = 0; high < 2; high++)
        for (int i = 0; i < mb->n_docs && at < end; i++) {
            int doc = plan->docs[mb->first_doc + i];
            Chunk chunk = chunk_of(lengths[doc], share.ring_size, share.ring_rank, high);
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
        low[a] = ring_rank_tokens(plan, mb, lengths, ring_size, a, 0);
        tokens[a] = low[a] + ring_rank_tokens(plan, mb, lengths, ring_size, a, 1);
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
            Chunk chunk = chunk_of(lengths[plan->docs[mb->first_doc + i]], ring_size, array / 2, array % 2);
            cu[1] = cu[0] + chunk.end - chunk.first;
        }
        cu++;
    }
}
