// test_share.c - the claims about what one rank holds: of a micro-batch (plan/plan.h) and of the parameters
// (plan/shape.h).
#include "plan/shape.h"
#include "test/plans.h"

// ---- chunks

// Query-key pairs of the causal attention of one document on ring rank a, from the spans that it is given.
static int64_t pairs(int s, int ring_size, int a) {
    int doc = 0;
    MicroBatch mb = {.cp_size = ring_size, .ulysses_size = 1, .n_docs = 1};
    Plan plan = {.ranks = ring_size, .n_docs = 1, .n_micro_batches = 1, .docs = &doc, .micro_batches = &mb};
    Span spans[2];
    Share share = micro_batch_share(&plan, &mb, &s, a, spans);
    int64_t sum = 0;
    for (int i = 0; i < share.n_spans; i++)
        for (int t = spans[i].first; t < spans[i].first + spans[i].length; t++) sum += t + 1;
    return sum;
}

static void causal_work_of_the_places_is_as_known(void) {
    static const struct {
        int s, ring_size;
        int64_t pairs[8];
    } golden[] = {
        {16, 1, {136}},
        {16, 2, {68, 68}},
        {16, 4, {34, 34, 34, 34}},
        {1000, 4, {125125, 125125, 125125, 125125}},
        {1001, 4, {126126, 125125, 125125, 125125}},
        {13, 2, {52, 39}},
        {4096, 8, {1048832, 1048832, 1048832, 1048832, 1048832, 1048832, 1048832, 1048832}},
        {1000, 3, {167000, 167000, 166500}},
    };
    for (int i = 0; i < COUNT(golden); i++)
        for (int a = 0; a < golden[i].ring_size; a++)
            CHECK(pairs(golden[i].s, golden[i].ring_size, a) == golden[i].pairs[a]);
}

// With real borders j s / (2 ring_size) the work of all places is equal. A border that is up to one token lower moves
// at most border + 1/2 pairs from one chunk to its neighbour; a place has two borders where it loses and two where it
// wins, at most (2 ring_size + 1) / (2 ring_size) s in sum each.
static void causal_work_is_balanced_up_to_the_rounding_of_borders(void) {
    for (int trial = 0; trial < 4000; trial++) {
        int ring_size = pick(1, 2 * (uint64_t)trial, 2, 12), s = pick(1, 2 * (uint64_t)trial + 1, 1, 6000);
        double even = 0.5 * s * (s + 1) / ring_size;
        for (int a = 0; a < ring_size; a++)
            CHECK_CLOSE((double)pairs(s, ring_size, a), even, (2 * ring_size + 1) * (double)s / (2 * ring_size) + 1);
    }
}

static void chunks_of_a_document_differ_by_one_token_at_most(void) {
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

enum { MOST_CU = 2 * MOST_RANKS * (MOST_DOCS + 1) };

// What the arrays of cu_seqlens say of one micro-batch: tokens of a document in the low and high chunk of every place.
typedef struct Layout {
    int ring_size, n_docs, cu[MOST_CU], tokens[MOST_RANKS], low[MOST_RANKS];
} Layout;

static int chunk_tokens(const Layout* x, int doc, int a, int high) {
    const int* cu = x->cu + (size_t)(2 * a + high) * ((size_t)x->n_docs + 1);
    return x->ring_size == 1 && high ? 0 : cu[doc + 1] - cu[doc];
}

// Where a chunk begins in its document: chunks lie in the order low 0, low 1, ..., high 1, high 0.
static int chunk_first(const Layout* x, int doc, int a, int high) {
    int first = 0;
    for (int c = 0; c < (high ? x->ring_size : a); c++) first += chunk_tokens(x, doc, c, 0);
    for (int c = x->ring_size - 1; high && c > a; c--) first += chunk_tokens(x, doc, c, 1);
    return first;
}

static void check_layout(const Layout* x, const Step* step, const MicroBatch* mb) {
    CHECK(micro_batch_cu_ints(mb) == (x->ring_size == 1 ? 1u : 2u * (size_t)x->ring_size) * ((size_t)x->n_docs + 1));
    for (int i = 0; i < x->n_docs; i++) {
        int s = 0;
        for (int a = 0; a < x->ring_size; a++) s += chunk_tokens(x, i, a, 0) + chunk_tokens(x, i, a, 1);
        CHECK(s == step->lengths[step->plan.docs[mb->first_doc + i]]);
    }
    for (int a = 0; a < x->ring_size; a++) {
        int low = 0, high = 0;
        for (int i = 0; i < x->n_docs; i++) low += chunk_tokens(x, i, a, 0), high += chunk_tokens(x, i, a, 1);
        CHECK(x->low[a] == low && x->tokens[a] == low + high);
    }
}

// The spans of the ranks of place a, one after another, walk through its chunks, low ones first.
static void check_place(const Layout* x, const Step* step, const MicroBatch* mb, int a) {
    Span spans[2 * MOST_DOCS + 1];
    int chunk = 0, used = 0,
        before = 0;  // chunk 0 .. 2 n_docs of the place, tokens used of it, tokens of earlier ranks
    for (int b = 0; b < mb->ulysses_size; b++) {
        int rank = mb->first_rank + a * mb->ulysses_size + b, n = 0;
        spans[2 * x->n_docs].length = -1;
        Share share = micro_batch_share(&step->plan, mb, step->lengths, rank, spans);
        Share without = micro_batch_share(&step->plan, mb, step->lengths, rank, NULL);
        CHECK(!memcmp(&share, &without, sizeof share) && spans[2 * x->n_docs].length == -1);
        CHECK(share.ring_rank == a && share.ulysses_rank == b && share.ulysses_size == mb->ulysses_size &&
              share.ring_size == x->ring_size);
        CHECK(share.ring_n == x->tokens[a] && share.n_spans <= 2 * x->n_docs);
        CHECK(before == (int)((double)b * share.ring_n / mb->ulysses_size));
        CHECK(share.n <= step->limits.capacity);
        for (int i = 0; i < share.n_spans; i++, n += spans[i - 1].length) {
            while (chunk < 2 * x->n_docs && used == chunk_tokens(x, chunk % x->n_docs, a, chunk / x->n_docs))
                chunk++, used = 0;
            if (chunk == 2 * x->n_docs) {
                CHECK(!"a span beyond the last chunk");
                return;
            }
            int doc = chunk % x->n_docs, high = chunk / x->n_docs;
            CHECK(spans[i].doc == step->plan.docs[mb->first_doc + doc]);
            CHECK(spans[i].first == chunk_first(x, doc, a, high) + used && spans[i].length > 0);
            used += spans[i].length;
            CHECK(used <= chunk_tokens(x, doc, a, high));
        }
        CHECK(n == share.n);
        before += n;
    }
    CHECK(before == x->tokens[a]);
    int heads = (step->limits.kv_heads + mb->ulysses_size - 1) / mb->ulysses_size;
    CHECK((double)x->tokens[a] * heads <= (double)step->limits.capacity * step->limits.kv_heads);
}

static void every_token_has_one_rank_in_the_order_of_cu_seqlens(void) {
    static Layout x;
    int kinds[4] = {0}, planned = 0;
    for (uint64_t seed = 0; seed < 6000 && !test_failures_in_claim; seed++) {
        Step step = random_step(seed);
        int failed = seed % 2 ? step_random(&step, seed) : step_static(&step, 0, (CpChoice)(seed / 2 % 3));
        for (int i = 0; i < step.plan.n_micro_batches && !failed; i++) {
            const MicroBatch* mb = &step.plan.micro_batches[i];
            kinds[cp_kind(mb)]++;
            x.ring_size = mb->cp_size / mb->ulysses_size;
            x.n_docs = mb->n_docs;
            for (int c = 0; c < MOST_CU; c++) x.cu[c] = -1;
            micro_batch_cu(&step.plan, mb, step.lengths, x.cu);
            CHECK(micro_batch_cu_ints(mb) == MOST_CU || x.cu[micro_batch_cu_ints(mb)] == -1);
            micro_batch_ring_tokens(&step.plan, mb, step.lengths, x.tokens, x.low);
            check_layout(&x, &step, mb);
            for (int a = 0; a < x.ring_size; a++) check_place(&x, &step, mb, a);
        }
        planned += !failed;
        if (test_failures_in_claim) printf("    seed %d\n", (int)seed);
        free_step(&step);
    }
    CHECK(planned > 4500);
    for (int k = 0; k < 4; k++) CHECK(kinds[k] > 300);
}

static void a_share_may_be_empty(void) {
    int lengths[] = {3}, docs[] = {0};
    MicroBatch mb = {.first_rank = 1, .cp_size = 4, .ulysses_size = 4, .n_docs = 1};
    Plan plan = {.ranks = 5, .n_docs = 1, .n_micro_batches = 1, .docs = docs, .micro_batches = &mb};
    int n[4], expected[] = {0, 1, 1, 1};
    for (int b = 0; b < 4; b++) {
        Span spans[2];
        Share share = micro_batch_share(&plan, &mb, lengths, 1 + b, spans);
        n[b] = share.n;
        CHECK(share.n_spans == share.n && (share.n == 0 || (spans[0].first == b - 1 && spans[0].length == 1)));
    }
    CHECK(!memcmp(n, expected, sizeof n));
}

// ---- shares of the parameters

static void with_one_shard_tensors_lie_where_they_always_did(void) {
    Shape shape = shape_make(3, 40, 4, 257, 50);
    size_t end = 0;
    CHECK(shape.shards == 1);
    for (int i = 0; i < shape_tensors(&shape); i++) {
        ParamTensor t = shape_tensor(&shape, i);
        CHECK(t.offset == end);  // each directly behind the last one, at the next multiple of 64
        end = (t.offset + t.elems + 63) / 64 * 64;
        Segment segment = shape_segment(&shape, i, 0);
        CHECK(segment.first == 0 && segment.n == t.elems && segment.at == t.offset);
    }
    CHECK(shape_param_elems(&shape) == end);
}

static void buckets_hold_their_tensors_and_divide_among_the_shards(const Shape* shape) {
    size_t end = 0, shards = (size_t)shape->shards;
    int tensors[64] = {0};
    CHECK(shape_buckets(shape) == shape->L + 2);
    for (int b = 0; b < shape_buckets(shape); b++) {
        Bucket bucket = shape_bucket(shape, b);
        CHECK(bucket.offset == end && bucket.elems % (64 * shards) == 0 && bucket.elems > 0);
        end += bucket.elems;
    }
    CHECK(shape_param_elems(shape) == end);
    size_t used = 0;
    int bucket_before = 0;
    for (int i = 0; i < shape_tensors(shape); i++) {
        ParamTensor t = shape_tensor(shape, i);
        int b = shape_bucket_of(&t, shape);
        Bucket bucket = shape_bucket(shape, b);
        if (b != bucket_before) CHECK(b == bucket_before + 1 && used <= bucket.offset);
        CHECK(t.offset == (b != bucket_before || i == 0 ? bucket.offset : (used + 63) / 64 * 64));
        used = t.offset + t.elems;
        CHECK(used <= bucket.offset + bucket.elems);
        if (i + 1 == shape_tensors(shape) || tensors[b] + 1 == (b > 0 && b <= shape->L ? 12 : 2))
            CHECK(bucket.offset + bucket.elems - used < 64 * shards + 64);  // no more padding than needed
        tensors[b]++;
        bucket_before = b;
    }
    for (int b = 0; b < shape_buckets(shape); b++) CHECK(tensors[b] == (b > 0 && b <= shape->L ? 12 : 2));
}

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
            Bucket bucket = shape_bucket(shape, shape_bucket_of(&t, shape));
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

static void pieces_of_all_ranks_are_the_parameters(void) {
    static const int counts[] = {1, 2, 3, 5, 8, 64};
    static const int shapes[][5] = {{3, 40, 4, 257, 50}, {1, 4, 1, 3, 1}, {2, 66, 3, 70, 129}};
    for (int i = 0; i < COUNT(counts); i++)
        for (int k = 0; k < COUNT(shapes); k++) {
            const int* x = shapes[k];
            Shape shape = shape_make(x[0], x[1], x[2], x[3], x[4]);
            shape.shards = counts[i];
            buckets_hold_their_tensors_and_divide_among_the_shards(&shape);
            pieces_cover_every_element_once(&shape);
        }
}

int main(void) {
    RUN(causal_work_of_the_places_is_as_known);
    RUN(causal_work_is_balanced_up_to_the_rounding_of_borders);
    RUN(chunks_of_a_document_differ_by_one_token_at_most);
    RUN(every_token_has_one_rank_in_the_order_of_cu_seqlens);
    RUN(a_share_may_be_empty);
    RUN(with_one_shard_tensors_lie_where_they_always_did);
    RUN(pieces_of_all_ranks_are_the_parameters);
    return test_done();
}
