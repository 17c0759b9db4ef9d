// test_share.c - the claims about what one rank holds: of a micro-batch (plan/value/plan.h) and of the parameters
// (plan/model/shape.h).
#include "plan/model/split.h"
#include "test/plans.h"
#include "test/shapes.h"

// ---- chunks

CLAIM(chunks_of_a_document_differ_by_one_token_at_most) {
    for (int trial = 0; trial < 20000; trial++) {
        int ring_size = pick(2, 2 * (uint64_t)trial, 1, 12), s = pick(2, 2 * (uint64_t)trial + 1, 1, 6000);
        CHECK(chunk_border(s, ring_size, 0) == 0 && chunk_border(s, ring_size, 2 * ring_size) == s);
        for (int j = 0; j < 2 * ring_size; j++) {
            int first = chunk_border(s, ring_size, j), n = chunk_border(s, ring_size, j + 1) - first;
            CHECK(n == s / (2 * ring_size) || n == s / (2 * ring_size) + 1);
        }
    }
    CHECK(chunk_border(2000000000, 8, 15) == 1875000000);  // no overflow
}

// ---- shares of a micro-batch

enum { MOST_CHUNKS = 2 * MOST_RANKS, MOST_CU = MOST_CHUNKS * (MOST_DOCS + 1) };

// A micro-batch, how it is divided, and what the arrays of cu_seqlens say of it.
typedef struct Layout {
    const Step* step;
    const MicroBatch* mb;
    Placement p;
    int ring_size, cu[MOST_CU + 1];
} Layout;

static int chunk_tokens(const Layout* x, int doc, int j) {
    const int* cu = x->cu + (size_t)j * ((size_t)x->mb->n_docs + 1);
    return cu[doc + 1] - cu[doc];
}

static int chunk_first(const Layout* x, int doc, int j) {
    int first = 0;
    for (int i = 0; i < j; i++) first += chunk_tokens(x, doc, i);
    return first;
}

static int place_tokens(const Layout* x, int a) {
    int n = 0;
    for (int i = 0; i < x->mb->n_docs; i++)
        for (int j = 0; j < x->p.n_chunks; j++) n += x->p.owner[j] == a ? chunk_tokens(x, i, j) : 0;
    return n;
}

static void check_layout(const Layout* x) {
    CHECK(x->p.n_chunks == (x->ring_size == 1 ? 1 : 2 * x->ring_size));
    CHECK(x->cu[x->p.n_chunks * (x->mb->n_docs + 1)] == -1);
    for (int i = 0; i < x->mb->n_docs; i++) {
        int s = x->step->lengths[x->step->plan.docs[x->mb->first_doc + i]];
        CHECK(chunk_first(x, i, x->p.n_chunks) == s);
        for (int j = 0; j < x->p.n_chunks && !x->step->plan.placed_at; j++)
            CHECK(chunk_first(x, i, j) == (x->ring_size == 1 ? 0 : chunk_border(s, x->ring_size, j)));
    }
    for (int j = 0; j < x->p.n_chunks && !x->step->plan.placed_at; j++)
        CHECK(x->p.owner[j] == (j < x->ring_size ? j : 2 * x->ring_size - 1 - j));
}

// The spans of the ranks of place a, one after another, walk through its chunks, each of all documents.
static void check_place(const Layout* x, int a, const PassLoad* loads) {
    static Span spans[MOST_CHUNKS * MOST_DOCS + 1];
    const MicroBatch* mb = x->mb;
    int parts = x->p.n_chunks * mb->n_docs, part = 0, used = 0, before = 0;  // part: chunk and document
    for (int b = 0; b < mb->ulysses_size; b++) {
        int rank = mb->first_rank + a * mb->ulysses_size + b, n = 0;
        spans[parts].length = -1;
        Share share = micro_batch_share(&x->step->plan, mb, &x->p, rank, spans);
        Share without = micro_batch_share(&x->step->plan, mb, &x->p, rank, NULL);
        CHECK(!memcmp(&share, &without, sizeof share) && spans[parts].length == -1);
        CHECK(share.ring_rank == a && share.ulysses_rank == b && share.ulysses_size == mb->ulysses_size &&
              share.ring_size == x->ring_size);
        CHECK(share.ring_n == place_tokens(x, a) && share.n_spans <= MIN(parts, share.n));
        if (!x->step->plan.placed_at) CHECK(before == (int)((double)b * share.ring_n / mb->ulysses_size));
        CHECK(share.n <= x->step->limits.capacity && share.n == loads[rank].tokens);
        CHECK((double)share.ring_n * (x->p.head_border[b + 1] - x->p.head_border[b]) <= (double)loads[rank].pairs);
        for (int i = 0; i < share.n_spans; i++, n += spans[i - 1].length) {
            while (part < parts && (x->p.owner[part / mb->n_docs] != a ||
                                    used == chunk_tokens(x, part % mb->n_docs, part / mb->n_docs)))
                part++, used = 0;
            if (part == parts) {
                CHECK(!"a span beyond the last chunk");
                return;
            }
            int doc = part % mb->n_docs, j = part / mb->n_docs;
            CHECK(spans[i].doc == x->step->plan.docs[mb->first_doc + doc]);
            CHECK(spans[i].first == chunk_first(x, doc, j) + used && spans[i].length > 0);
            used += spans[i].length;
            CHECK(used <= chunk_tokens(x, doc, j));
        }
        CHECK(n == share.n);
        before += n;
    }
    CHECK(before == place_tokens(x, a));
}

static void check_micro_batch(const Step* step, const MicroBatch* mb) {
    static Layout x;
    Arena arena = {0};
    PassLoad loads[MOST_RANKS] = {{0}};
    x.step = step, x.mb = mb, x.ring_size = mb->cp_size / mb->ulysses_size;
    x.p = micro_batch_placement(&step->plan, mb, step->lengths, step->limits.kv_heads, &arena);
    for (int c = 0; c <= MOST_CU; c++) x.cu[c] = -1;
    micro_batch_cu(&x.p, mb, x.cu);
    micro_batch_load(loads, mb, &x.p);
    check_layout(&x);
    for (int r = 0; r < MOST_RANKS; r++)
        CHECK(loads[r].pairs <= (int64_t)step->limits.capacity * step->limits.kv_heads);
    for (int a = 0; a < x.ring_size; a++) check_place(&x, a, loads);
    arena_free(&arena);
}

CLAIM(every_token_has_one_rank_in_the_order_of_cu_seqlens) {
    int kinds[4] = {0}, planned = 0, placed = 0;
    for (uint64_t seed = BEFORE_FIRST; next_step(&seed, 6000);) {
        int failed = seed % 2 ? step_random(&step, seed) : step_static(&step, 0, (CpChoice)(seed / 2 % 3));
        for (int i = 0; i < step.plan.n_micro_batches && !failed; i++) {
            kinds[cp_kind(&step.plan.micro_batches[i])]++;
            check_micro_batch(&step, &step.plan.micro_batches[i]);
        }
        planned += !failed, placed += !failed && step.plan.placed_at;
    }
    CHECK(planned > 4500 && placed > 1000);
    for (int k = 0; k < 4; k++) CHECK(kinds[k] > 300);
}

// ---- shares of the parameters

// Element by element: who has it, where in the arrays of owned elements, and that this is where the bucket says.
static void pieces_cover_every_element_once(const Shape* shape) {
    size_t elems = shape_param_elems(shape), owned = elems / (size_t)shape->shards;
    unsigned char* owners = (unsigned char*)calloc(elems, 1);  // of the whole block
    unsigned char* taken = (unsigned char*)malloc(owned);      // of one rank's arrays
    if (!owners || !taken) abort();
    for (int rank = 0; rank < shape->shards; rank++) {
        memset(taken, 0, owned);
        for (int i = 0; i < shape_tensors(shape); i++) {
            Segment segment = shape_segment(shape, i, rank);
            ParamTensor t = shape_tensor(shape, i);
            CHECK(segment.tensor.offset == t.offset && segment.tensor.id == t.id && segment.tensor.layer == t.layer);
            CHECK(segment.first + segment.n <= t.elems && segment.at + segment.n <= owned);
            Bucket bucket = shape_bucket(shape, t.bucket);
            size_t piece = bucket.elems / (size_t)shape->shards, start = bucket.offset / (size_t)shape->shards;
            if (segment.n > 0)
                // at counts from where this rank's piece of the bucket begins
                CHECK(segment.at - start + bucket.offset + piece * (size_t)rank == t.offset + segment.first &&
                      segment.at >= start && segment.at + segment.n <= start + piece);
            for (size_t j = 0; j < segment.n; j++) owners[t.offset + segment.first + j]++, taken[segment.at + j]++;
        }
        int twice = 0;
        for (size_t j = 0; j < owned; j++) twice += taken[j] > 1;
        CHECK(twice == 0);
    }
    for (int i = 0; i < shape_tensors(shape); i++) {
        ParamTensor t = shape_tensor(shape, i);
        int wrong = 0;
        for (size_t j = 0; j < t.elems; j++) wrong += owners[t.offset + j]-- != 1;
        CHECK(wrong == 0);
    }
    int padding = 0;
    for (size_t j = 0; j < elems; j++) padding += owners[j] != 0;
    CHECK(padding == 0);
    free(owners);
    free(taken);
}

CLAIM(pieces_of_all_ranks_are_the_parameters) {
    static const int counts[] = {1, 2, 3, 5, 8, 64};
    static const int shapes[][5] = {{3, 40, 4, 257, 50}, {1, 4, 1, 3, 1}, {2, 66, 3, 70, 129}};
    for (int i = 0; i < COUNT(counts); i++)
        for (int k = 0; k < COUNT(shapes); k++) {
            const int* x = shapes[k];
            Shape shape = shape_make(x[0], x[1], x[2], x[3], x[4]);
            shape.shards = counts[i];
            pieces_cover_every_element_once(&shape);
        }
}

int main(void) { return test_main(); }
