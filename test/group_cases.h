// group_cases.h - random micro-batches of documents for groups of ranks, and the whole row of a micro-batch: the
// queries, keys, values and gradients of all its documents one after another, the same on every rank.
#pragma once
#include "plan/value/plan.h"
#include "test/ranks.h"

#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#endif

enum { MOST_DOCS = 400, MOST_MICRO_BATCHES = 12, MOST_PLACED = 20000, MOST_RING = 64 };

// The emulator takes seconds for what others do in milliseconds.
static int few(int n, int on_emulator) { return strcmp(TEST_DEVICE, "emu") ? n : MIN(n, on_emulator); }

static double get(const void* x, size_t i, DType dt) {
    return dt == DT_BF16 ? bf16_to_float(((const bf16*)x)[i]) : ((const float*)x)[i];
}

static void set(void* x, size_t i, double value, DType dt) {
    if (dt == DT_BF16) ((bf16*)x)[i] = bf16_from_float((float)value);
    else ((float*)x)[i] = (float)value;
}

// ---- a case: micro-batches that ranks run one after another, or all in one pass

typedef struct Case {
    uint64_t seed, draws;
    int NH, NKV, HS;
    double spread;  // log-sum-exps of the chunks of a document are this far apart; 0: random data
    DType dt;
    int n_micro_batches, n_docs;
    MicroBatch micro_batches[MOST_MICRO_BATCHES];
    int docs[MOST_DOCS], lengths[MOST_DOCS];
    int together;                                                      // in one pass
    int n_placed, placed[MOST_PLACED], placed_at[MOST_MICRO_BATCHES];  // 0: what is usual
} Case;

static int between(Case* c, int low, int high) {
    return low + (int)(hash64(c->seed ^ hash64(c->draws++)) % (uint64_t)(high - low + 1));
}

// Half of the cases have groups of query heads.
static void set_heads(Case* c, int NKV) {
    c->NKV = NKV;
    c->NH = NKV * (between(c, 0, 1) ? between(c, 2, 5) : 1);
}

static Case new_case(uint64_t seed) {
    static const int head_sizes[] = {8, 16, 32};
    Case c = {.seed = seed};
    c.HS = head_sizes[between(&c, 0, 2)];
    set_heads(&c, between(&c, 1, few(8, 3)));
    c.dt = between(&c, 0, 1) ? DT_BF16 : DT_F32;
    return c;
}

static Plan plan_of(Case* c) {
    return (Plan){.ranks = size,
                  .n_docs = c->n_docs,
                  .n_micro_batches = c->n_micro_batches,
                  .docs = c->docs,
                  .micro_batches = c->micro_batches,
                  .placed = c->placed,
                  .placed_at = c->n_placed ? c->placed_at : NULL,
                  .n_placed = c->n_placed};
}

static void add_doc(Case* c, int length) {
    MicroBatch* mb = &c->micro_batches[c->n_micro_batches - 1];
    if (c->n_docs == MOST_DOCS) die("a case has more than %d documents", MOST_DOCS);
    c->docs[c->n_docs] = c->n_docs;
    c->lengths[c->n_docs++] = length;
    mb->n_docs++;
}

static void begin_micro_batch(Case* c, int first_rank, int ulysses_size, int ring_size) {
    if (c->n_micro_batches == MOST_MICRO_BATCHES) die("a case has more than %d micro-batches", MOST_MICRO_BATCHES);
    c->micro_batches[c->n_micro_batches++] =
        (MicroBatch){first_rank, ulysses_size * ring_size, ulysses_size, c->n_docs, 0, 0};
}

// Many documents of a few tokens, or some of any length, or one long one between them (long enough for borders of
// chunks at multiples of 128, where the ring is short).
static void add_micro_batch(Case* c, int first_rank, int ulysses_size, int ring_size) {
    begin_micro_batch(c, first_rank, ulysses_size, ring_size);
    int kind = between(c, 0, 2), n = kind == 0 ? between(c, 1, few(24, 4)) : between(c, 1, few(5, 2));
    for (int i = 0; i < n; i++) add_doc(c, kind == 0 ? between(c, 1, 3) : between(c, 1, kind == 1 ? 90 : 30));
    if (kind == 2) add_doc(c, few(ring_size <= 2 ? 256 * ring_size : 200, 100) + between(c, 0, 70));
    if (kind == 2) add_doc(c, between(c, 1, 3));
}

static void add_random_micro_batch(Case* c) {
    int ulysses_size = between(c, 1, MIN(c->NKV, size)), ring_size = between(c, 1, size / ulysses_size);
    add_micro_batch(c, between(c, 0, size - ulysses_size * ring_size), ulysses_size, ring_size);
}

// n parts of 0 .. end: some have nothing, some all.
static void cut_anywhere(Case* c, int* border, int n, int end) {
    for (int b = 0; b <= n; b++) {
        int before = b ? border[b - 1] : 0, kind = between(c, 0, 3);
        border[b] = b == 0 ? 0 : b == n ? end : kind == 0 ? before : kind == 1 ? end : between(c, before, end);
    }
}

// Once all micro-batches are there: any borders of heads, tokens and chunks, any owners.
static void place_anywhere(Case* c) {
    for (int i = 0; i < c->n_micro_batches; i++) {
        c->placed_at[i] = c->n_placed;
        c->n_placed += (int)placement_ints(&c->micro_batches[i]);
    }
    if (c->n_placed > MOST_PLACED) die("a case has %d numbers of placements", c->n_placed);
    Plan plan = plan_of(c);
    for (int i = 0; i < c->n_micro_batches; i++) {
        const MicroBatch* mb = &c->micro_batches[i];
        Placement p = plan_placement(&plan, mb);
        int u = mb->ulysses_size, tokens[MOST_RING] = {0};
        cut_anywhere(c, p.head_border, u, c->NKV);
        for (int j = 0; j < p.n_chunks; j++) p.owner[j] = between(c, 0, mb->cp_size / u - 1);
        for (int d = 0; d < mb->n_docs; d++) {
            int* border = p.chunk_border + d * (p.n_chunks + 1);
            cut_anywhere(c, border, p.n_chunks, c->lengths[c->docs[mb->first_doc + d]]);
            for (int j = 0; j < p.n_chunks; j++) tokens[p.owner[j]] += border[j + 1] - border[j];
        }
        for (int a = 0; a < mb->cp_size / u; a++) cut_anywhere(c, p.token_border + a * (u + 1), u, tokens[a]);
    }
}

// ---- the whole row of a micro-batch, the same on every rank

typedef struct Whole {
    int tokens, n_docs, longest;
    int cu[MOST_DOCS + 1];
    void *qkv, *dout, *out, *dqkv;  // (tokens, NH + 2 NKV, HS), (tokens, NH, HS)
} Whole;

typedef enum Matrix { QUERIES, KEYS, VALUES, OUTPUTS } Matrix;

// Where a matrix lies in the rows of qkv, or of out.
typedef struct Columns {
    size_t first, n, row;  // elements of a row: before it, its own, all
} Columns;

static Columns columns_of(const Case* c, Matrix matrix) {
    size_t q = (size_t)(c->NH * c->HS), kv = (size_t)(c->NKV * c->HS), all = q + 2 * kv;
    Columns columns[] = {{0, q, all}, {q, kv, all}, {q + kv, kv, all}, {0, q, q}};
    return columns[matrix];
}

// Where spread is not 0, queries all point one way and the keys of a chunk lie along it, before, behind or at 0.
static double value(const Case* c, const MicroBatch* mb, Matrix matrix, int doc, int position, int column) {
    uint64_t seed = c->seed ^ hash64((uint64_t)doc * 4 + (uint64_t)matrix + 1);
    double x = 2 * random_uniform(seed, (uint64_t)position << 32 | (uint64_t)column) - 1;
    int ring_size = mb->cp_size / mb->ulysses_size, chunk = (int)((int64_t)position * 2 * ring_size / c->lengths[doc]);
    if (c->spread == 0 || matrix == VALUES || matrix == OUTPUTS) return x;
    if (matrix == QUERIES) return 1 + 0.1 * x;
    return ((int)(hash64(c->seed + (uint64_t)chunk) % 3) - 1) * c->spread / sqrt(c->HS) + x;
}

static void fill_whole(Whole* w, const Case* c, const MicroBatch* mb) {
    size_t e = dtype_bytes(c->dt), row = 0, out = columns_of(c, OUTPUTS).row * e, qkv = columns_of(c, QUERIES).row * e;
    memset(w, 0, sizeof *w);
    w->n_docs = mb->n_docs;
    for (int i = 0; i < mb->n_docs; i++) {
        int length = c->lengths[c->docs[mb->first_doc + i]];
        w->cu[i + 1] = w->cu[i] + length;
        w->longest = MAX(w->longest, length);
    }
    w->tokens = w->cu[mb->n_docs];
    w->qkv = malloc((size_t)w->tokens * qkv), w->dqkv = malloc((size_t)w->tokens * qkv);
    w->dout = malloc((size_t)w->tokens * out), w->out = malloc((size_t)w->tokens * out);
    for (int i = 0; i < mb->n_docs; i++)
        for (int t = 0; t < w->cu[i + 1] - w->cu[i]; t++, row++)
            for (Matrix m = QUERIES; m <= OUTPUTS; m++)
                for (size_t j = 0; j < columns_of(c, m).n; j++)
                    set(m == OUTPUTS ? w->dout : w->qkv, row * columns_of(c, m).row + columns_of(c, m).first + j,
                        value(c, mb, m, c->docs[mb->first_doc + i], t, (int)j), c->dt);
}

static void free_whole(Whole* w) { free(w->qkv), free(w->dout), free(w->out), free(w->dqkv); }
