// test_group_attention.c - attention of a group of ranks against its specification, ring_attention, and against the
// plain kernel on whole documents, which every rank computes for itself. mpirun -n 1, 2, 3, 5 and 8 start it.
//
// Without a ring the group calls the plain kernel on the same rows, so that bits must be the same. In a ring the plain
// kernel gives the gradients, the specification out; that is attention on one rank in double. Tolerances of a
// ring: rounding errors, e = 2^-24 of a term, have either sign, so that a sum of k terms is off by about sqrt(k) e of
// what its terms can be; six times that is allowed. A probability is off by its score, HS products that A = scale
// |q_i| |k_j| bounds, and by the sum over n keys in m = 2 ring_size parts that divides it, 4 roundings for each merge:
//   r = 6 e (A sqrt(HS) + sqrt(n + 4 m)), n the longest document, times the query heads that share a key
// With V, K, Q, G the largest entries of v, k, q, dout, g = max |dout_i| max(|v_j|, |out_i|), which bounds dP and D in
// dS = P (dP - D), and c the largest sum of a column of P, over all query heads that share the key, results are sums of
// P times at most
//   out: V   dq: 2 g scale K   dk: 2 g scale Q c   dv: G c
// which times r is the tolerance (about 1e-4 of the largest entry). With bf16 out may round to either side of a border,
// an ulp, at most 2^-7 of its value: D by |dout_i| |out_i| 2^-7; and so may each result. Tables that multiply
// probabilities rounded to bf16 are off by 2^-9 of themselves, either way: 2^-8 more in r.
#include "kernels/table/open.h"
#include "kernels/comm/group_attention.h"
#include "kernels/rank_ops.h"
#include "plan/value/plan.h"
#include "test/late_comm.h"
#include "test/ranks.h"
#include "test/ring_attention.h"
#include "test/rounding.h"

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

// ---- the engine

static const double E = 1.0 / (1 << 24);
enum { MOST_BUFFERS = 32, GUARD = 256 };

static const Kernels* kernels;
static int most_parts;  // of heads

// ---- device memory: all of it has guards and holds NaN until it is written

typedef struct Buffer {
    char* bytes;
    size_t n;
} Buffer;

static Buffer buffers[MOST_BUFFERS];
static int n_buffers;

static void* buffer(const void* content, size_t n) {
    char *bytes = (char*)kernels->alloc(n + 2 * GUARD), *host = (char*)malloc(n + 2 * GUARD);
    if (!bytes || !host || n_buffers == MOST_BUFFERS) die("no room for a buffer of %zu bytes", n);
    memset(host, 0xff, n + 2 * GUARD);
    if (content) memcpy(host + GUARD, content, n);
    kernels->upload(bytes, host, n + 2 * GUARD, NULL);
    free(host);
    buffers[n_buffers++] = (Buffer){bytes, n};
    return bytes + GUARD;
}

static void release_buffers(void) {
    for (; n_buffers > 0; n_buffers--) {
        const Buffer* b = &buffers[n_buffers - 1];
        char guards[2 * GUARD];
        int damaged = 0;
        kernels->download(guards, b->bytes, GUARD, NULL);
        kernels->download(guards + GUARD, b->bytes + GUARD + b->n, GUARD, NULL);
        for (int i = 0; i < 2 * GUARD; i++) damaged += guards[i] != (char)0xff;
        CHECK(damaged == 0);
        kernels->free_memory(b->bytes);
    }
}

static void* fetched(const void* device, size_t n) {
    void* host = malloc(n + 1);
    kernels->download(host, device, n, NULL);
    return host;
}

// ---- the plain kernel

// Bytes of a token in qkv, in out.
static size_t qkv_bytes(const Case* c) { return columns_of(c, QUERIES).row * dtype_bytes(c->dt); }
static size_t out_bytes(const Case* c) { return columns_of(c, OUTPUTS).row * dtype_bytes(c->dt); }

static void plain_attention(Whole* w, const Case* c) {
    size_t n = (size_t)w->tokens, e = dtype_bytes(c->dt);
    size_t keys = columns_of(c, KEYS).first * e, values = columns_of(c, VALUES).first * e;
    char *qkv = (char*)buffer(w->qkv, n * qkv_bytes(c)), *dqkv = (char*)buffer(NULL, n * qkv_bytes(c));
    void *out = buffer(NULL, n * out_bytes(c)), *dout = buffer(w->dout, n * out_bytes(c));
    float* lse = (float*)buffer(NULL, n * (size_t)c->NH * sizeof(float));
    int* cu = (int*)buffer(w->cu, ((size_t)w->n_docs + 1) * sizeof(int));
    Attention a = {.q = qkv, .k = qkv + keys, .v = qkv + values, .cu_q = cu, .cu_k = cu, .n_docs = w->n_docs};
    a.Nq = a.Nk = w->tokens, a.ldq = a.ldkv = (int)columns_of(c, QUERIES).row, a.ldo = (int)columns_of(c, OUTPUTS).row;
    a.NH = c->NH, a.NKV = c->NKV, a.HS = c->HS, a.causal = 1, a.scale = (float)(1 / sqrt(c->HS));
    kernels->attention_forward(out, lse, &a, c->dt, NULL);
    kernels->attention_backward(dqkv, dqkv + keys, dqkv + values, dout, out, lse, &a, c->dt, NULL);
    kernels->download(w->out, out, n * out_bytes(c), NULL);
    kernels->download(w->dqkv, dqkv, n * qkv_bytes(c), NULL);
    release_buffers();
}

// ---- the specification

// A matrix (tokens, its heads, HS) of x as doubles.
static double* doubles_of(const void* x, const Whole* w, const Case* c, Matrix matrix) {
    Columns columns = columns_of(c, matrix);
    double* all = (double*)malloc((size_t)w->tokens * columns.n * sizeof *all + 1);
    for (size_t t = 0; t < (size_t)w->tokens; t++)
        for (size_t j = 0; j < columns.n; j++)
            all[t * columns.n + j] = get(x, t * columns.row + columns.first + j, c->dt);
    return all;
}

typedef struct Specified {
    double *q, *k, *v, *out, *lse;
} Specified;

static Specified specified_attention(const Whole* w, Case* c, const MicroBatch* mb) {
    Plan plan = plan_of(c);
    Arena arena = {0};
    Placement p = micro_batch_placement(&plan, mb, c->lengths, c->NKV, &arena);
    Specified s = {.q = doubles_of(w->qkv, w, c, QUERIES), .k = doubles_of(w->qkv, w, c, KEYS)};
    s.v = doubles_of(w->qkv, w, c, VALUES);
    GroupRow g = {.ulysses_size = mb->ulysses_size, .ring_size = mb->cp_size / mb->ulysses_size, .n_docs = w->n_docs};
    g.NH = c->NH, g.NKV = c->NKV, g.HS = c->HS, g.scale = (float)(1 / sqrt(c->HS)), g.cu = w->cu;
    g.n_chunks = p.n_chunks, g.chunk_border = p.chunk_border, g.owner = p.owner, g.head_border = p.head_border;
    s.out = (double*)malloc((size_t)w->tokens * columns_of(c, OUTPUTS).n * sizeof *s.out + 1);
    s.lse = (double*)malloc((size_t)w->tokens * (size_t)c->NH * sizeof *s.lse + 1);
    ring_attention(s.out, s.lse, s.q, s.k, s.v, &g);
    arena_free(&arena);
    return s;
}

static void free_specified(Specified* s) { free(s->q), free(s->k), free(s->v), free(s->out), free(s->lse); }

// ---- the same by the group

typedef struct Held {  // what this rank has and got of a micro-batch
    Share share;
    Placement placed;
    Arena arena;  // of placed
    Span spans[MOST_DOCS * 2 * MOST_RING];
    int chunk_tokens[2 * MOST_RING], first;  // first: of its tokens in the row
    void *out, *dqkv;
} Held;

// This rank's rows of x, which has row_bytes for each token of the whole.
static void* own_rows(const Held* h, const Whole* w, const MicroBatch* mb, const void* x, size_t row_bytes) {
    char* rows = (char*)malloc((size_t)h->share.n * row_bytes + 1);
    size_t at = 0;
    for (int i = 0; i < h->share.n_spans; i++) {
        const Span* span = &h->spans[i];
        size_t first = (size_t)(w->cu[span->doc - mb->first_doc] + span->first);
        memcpy(rows + at, (const char*)x + first * row_bytes, (size_t)span->length * row_bytes);
        at += (size_t)span->length * row_bytes;
    }
    return rows;
}

// Tokens of place x of a ring, from borders alone.
static int tokens_of(const Placement* p, const MicroBatch* mb, int x) {
    int n = 0;
    for (int i = 0; i < mb->n_docs; i++)
        for (int j = 0; j < p->n_chunks; j++) {
            const int* border = p->chunk_border + i * (p->n_chunks + 1) + j;
            n += p->owner[j] == x ? border[1] - border[0] : 0;
        }
    return n;
}

// The formulas of group_attention.h: bytes sent for heads and around the ring, forward and backward.
static void add_expected_bytes(uint64_t bytes[2][2], const Case* c, const MicroBatch* mb, const Placement* p) {
    uint64_t e = dtype_bytes(c->dt), HS = (uint64_t)c->HS, g = (uint64_t)(c->NH / c->NKV), unsent = 0, all = 0;
    int ulysses_size = mb->ulysses_size, ring_size = mb->cp_size / ulysses_size, place = rank - mb->first_rank;
    int a = place / ulysses_size, b = place % ulysses_size;
    uint64_t n_a = (uint64_t)tokens_of(p, mb, a), H = (uint64_t)(p->head_border[b + 1] - p->head_border[b]);
    uint64_t others = (uint64_t)c->NKV - H, ring = 0;
    const int* border = p->token_border + a * (ulysses_size + 1);
    uint64_t n = (uint64_t)(border[b + 1] - border[b]);
    for (int x = 0; x < ring_size; x++) {
        all += (uint64_t)tokens_of(p, mb, x);
        if (x == (a + 1) % ring_size) unsent = (uint64_t)tokens_of(p, mb, x);
    }
    if (ring_size > 1) ring = e * HS * 2 * (all - unsent) * H;
    bytes[0][0] += e * HS * ((g + 2) * n * others + g * (n_a - n) * H);
    bytes[1][0] += e * HS * (g * n * others + (g + 2) * (n_a - n) * H);
    bytes[0][1] += ring;
    bytes[1][1] += ring_size > 1 ? ring + 4 * HS * 2 * all * H : 0;
}

static uint64_t sent_for(CommPurpose purpose) { return world->sent[purpose][0] + world->sent[purpose][1]; }
static uint64_t sent_in_all(void) {
    uint64_t bytes = 0;
    for (int p = 0; p < N_PURPOSES; p++) bytes += sent_for((CommPurpose)p);
    return bytes;
}

// Of borders that leave all heads on one rank, too.
static uint64_t sent_heads(void) { return sent_for(COMM_ULYSSES) + sent_for(COMM_REMAP); }

static int takes_part(const MicroBatch* mb) { return rank >= mb->first_rank && rank < mb->first_rank + mb->cp_size; }

// What this rank has of micro-batches first .. end: where their tokens lie in the row, those without ulysses first; *n:
// their tokens; *pairs of token and head. Returns the N of group_attention_scratch.
static int place_groups(Held* held, Case* c, int first, int end, size_t* n, size_t* pairs) {
    static PassLoad loads[MOST_RING];
    Plan plan = plan_of(c);
    memset(loads, 0, sizeof loads);
    *n = *pairs = 0;
    for (int shares_heads = 0; shares_heads < 2; shares_heads++)
        for (int i = first; i < end; i++) {
            const MicroBatch* mb = &c->micro_batches[i];
            Held* h = &held[i];
            if (!takes_part(mb) || (mb->ulysses_size > 1) != shares_heads) continue;
            h->arena = (Arena){0};
            h->placed = micro_batch_placement(&plan, mb, c->lengths, c->NKV, &h->arena);
            micro_batch_load(loads, mb, &h->placed);
            h->share = micro_batch_share(&plan, mb, &h->placed, rank, h->spans);
            h->first = (int)*n;
            *n += (size_t)h->share.n;
            const int* heads = h->placed.head_border + h->share.ulysses_rank;
            *pairs += (size_t)h->share.ring_n * (size_t)(heads[1] - heads[0]);
        }
    return (int)MAX(loads[rank].tokens, CEIL_DIV(loads[rank].pairs, (int64_t)c->NKV));
}

static GroupAttention group_of(Held* h, const MicroBatch* mb) {
    size_t ints = (size_t)h->placed.n_chunks * ((size_t)mb->n_docs + 1);
    int* cu = (int*)malloc(ints * sizeof(int));
    micro_batch_cu(&h->placed, mb, cu);
    for (int j = 0; j < h->placed.n_chunks; j++) h->chunk_tokens[j] = cu[(j + 1) * (mb->n_docs + 1) - 1];
    GroupAttention ga = {mb->first_rank,     h->share.ulysses_size, h->share.ring_size,
                         h->share.ring_rank, h->share.ulysses_rank, h->first,
                         mb->n_docs,         h->placed.n_chunks,    .head_border = h->placed.head_border};
    ga.token_border = h->placed.token_border + h->share.ring_rank * (mb->ulysses_size + 1);
    ga.owner = h->placed.owner, ga.chunk_tokens = h->chunk_tokens, ga.cu = (int*)buffer(cu, ints * sizeof(int));
    free(cu);
    return ga;
}

static void check_sent(const uint64_t expected[2], const uint64_t before[3]) {
    CHECK(sent_heads() == before[0] + expected[0] && sent_for(COMM_RING) == before[1] + expected[1] &&
          sent_in_all() == before[2] + expected[0] + expected[1]);
    CHECK(world->purpose == COMM_STATE);
}

// Both passes of this rank's part of micro-batches first .. end in one row, with what they sent.
static void run_row(Held* held, Case* c, int first, int end, const Whole* whole) {
    size_t n, pairs, qkv_row = qkv_bytes(c), out_row = out_bytes(c), NKV = (size_t)c->NKV;
    int N = place_groups(held, c, first, end, &n, &pairs), n_groups = 0;
    GroupAttention groups[MOST_MICRO_BATCHES];
    uint64_t expected[2][2] = {{0}};
    char *own_qkv = (char*)malloc(n * qkv_row + 1), *own_dout = (char*)malloc(n * out_row + 1);
    for (int i = first; i < end; i++) {
        const MicroBatch* mb = &c->micro_batches[i];
        if (!takes_part(mb)) continue;
        Held* h = &held[i];
        void* qkv = own_rows(h, &whole[i], mb, whole[i].qkv, qkv_row);
        void* dout = own_rows(h, &whole[i], mb, whole[i].dout, out_row);
        memcpy(own_qkv + (size_t)h->first * qkv_row, qkv, (size_t)h->share.n * qkv_row);
        memcpy(own_dout + (size_t)h->first * out_row, dout, (size_t)h->share.n * out_row);
        free(qkv), free(dout);
        add_expected_bytes(expected, c, mb, &h->placed);
        groups[n_groups++] = group_of(h, mb);
    }
    size_t most = MAX(pairs, n * NKV);
    void *qkv = buffer(NULL, most * qkv_row / NKV), *dout = buffer(own_dout, n * out_row);
    kernels->upload(qkv, own_qkv, n * qkv_row, NULL);
    void *out = buffer(NULL, n * out_row), *dqkv = buffer(NULL, n * qkv_row);
    SavedAttention saved = {qkv, out, buffer(NULL, most * out_row / NKV),
                            (float*)buffer(NULL, most * ((size_t)c->NH / NKV) * sizeof(float))};
    RowAttention row = {world, groups, n_groups, c->NH, c->NKV, c->HS, .parts = most_parts};
    row.scale = (float)(1 / sqrt(c->HS));
    row.scratch =
        buffer(NULL, group_attention_scratch(N, c->NH, c->NKV, c->HS, size, world->route_least > 0, 0, c->dt));
    free(own_qkv), free(own_dout);
    world->purpose = COMM_STATE;
    for (int backward = 0; backward < 2; backward++) {
        uint64_t before[] = {sent_heads(), sent_for(COMM_RING), sent_in_all()};
        if (backward) group_attention_backward(dqkv, dout, &saved, &row, kernels, c->dt, NULL);
        else group_attention_forward(&saved, &row, kernels, c->dt, NULL);
        check_sent(expected[backward], before);
    }
    world->purpose = COMM_OTHER;
    for (int i = first; i < end; i++) {
        Held* h = &held[i];
        if (!takes_part(&c->micro_batches[i])) continue;
        h->out = fetched((char*)out + (size_t)h->first * out_row, (size_t)h->share.n * out_row);
        h->dqkv = fetched((char*)dqkv + (size_t)h->first * qkv_row, (size_t)h->share.n * qkv_row);
        arena_free(&h->arena);
    }
    release_buffers();
}

// ---- comparing

// The largest norm of a head's elements, and the largest element, in a matrix of x.
static double largest_norm(const void* x, const Whole* w, const Case* c, Matrix matrix) {
    Columns columns = columns_of(c, matrix);
    double most = 0;
    for (size_t t = 0; t < (size_t)w->tokens; t++)
        for (size_t head = 0; head < columns.n; head += (size_t)c->HS) {
            size_t first = t * columns.row + columns.first + head;
            double sum = 0;
            for (int j = 0; j < c->HS; j++) sum += get(x, first + (size_t)j, c->dt) * get(x, first + (size_t)j, c->dt);
            most = fmax(most, sqrt(sum));
        }
    return most;
}

static double largest(const void* x, const Whole* w, const Case* c, Matrix matrix) {
    Columns columns = columns_of(c, matrix);
    double most = 0;
    for (size_t t = 0; t < (size_t)w->tokens; t++)
        for (size_t j = 0; j < columns.n; j++)
            most = fmax(most, fabs(get(x, t * columns.row + columns.first + j, c->dt)));
    return most;
}

// dv where every dout is 1.
static double largest_column(const Whole* w, const Case* c) {
    Whole ones = *w;
    size_t n = (size_t)w->tokens;
    ones.dout = malloc(n * out_bytes(c)), ones.out = malloc(n * out_bytes(c)), ones.dqkv = malloc(n * qkv_bytes(c));
    for (size_t i = 0; i < n * columns_of(c, OUTPUTS).row; i++) set(ones.dout, i, 1, c->dt);
    plain_attention(&ones, c);
    double most = largest(ones.dqkv, w, c, VALUES);
    free(ones.dout), free(ones.out), free(ones.dqkv);
    return most;
}

typedef struct Tolerance {
    double out, dqkv[3];
} Tolerance;

static Tolerance tolerance(const Whole* w, const Case* c, int ring_size) {
    double scale = 1 / sqrt(c->HS), Q = largest(w->qkv, w, c, QUERIES), K = largest(w->qkv, w, c, KEYS);
    double V = largest(w->qkv, w, c, VALUES), G = largest(w->dout, w, c, OUTPUTS), columns = largest_column(w, c);
    double A = scale * largest_norm(w->qkv, w, c, QUERIES) * largest_norm(w->qkv, w, c, KEYS);
    double dout_norm = largest_norm(w->dout, w, c, OUTPUTS), out_norm = largest_norm(w->out, w, c, OUTPUTS);
    double g = dout_norm * fmax(largest_norm(w->qkv, w, c, VALUES), out_norm);
    double rounded = rounds_probabilities(kernels, c->dt) ? 1.0 / 256 : 0;
    double r = rounded + 6 * E * (A * sqrt(c->HS) + sqrt(w->longest * c->NH / c->NKV + 8 * ring_size));
    double dS = 2 * g * r + (c->dt == DT_BF16 ? dout_norm * out_norm / 128 : 0);
    return (Tolerance){r * V, {dS * scale * K, dS * scale * Q * columns, r * G * columns}};
}

// A matrix in row f of what was found, and in row x of what is expected, elements of dt.
static void compare_row(const void* found, size_t f, const void* expected, size_t x, DType dt, const Case* c,
                        Matrix matrix, double most) {
    double rounding = c->dt == DT_BF16 ? 1.0 / 128 : 4 * E;
    Columns columns = columns_of(c, matrix);
    for (size_t j = columns.first; j < columns.first + columns.n; j++) {
        double right = dtype_load(expected, x * columns.row + j, dt);
        CHECK_CLOSE(get(found, f * columns.row + j, c->dt), right, most + rounding * fabs(right));
    }
}

static void compare(const Held* h, Case* c, const MicroBatch* mb, const Whole* w) {
    size_t own = 0, n = (size_t)h->share.n;
    if (h->share.ring_size == 1) {
        void *out = own_rows(h, w, mb, w->out, out_bytes(c)), *dqkv = own_rows(h, w, mb, w->dqkv, qkv_bytes(c));
        CHECK(memcmp(h->out, out, n * out_bytes(c)) == 0);
        CHECK(memcmp(h->dqkv, dqkv, n * qkv_bytes(c)) == 0);
        free(out), free(dqkv);
        return;
    }
    Tolerance most = tolerance(w, c, h->share.ring_size);
    Specified right = specified_attention(w, c, mb);
    for (int i = 0; i < h->share.n_spans; i++) {
        size_t row = (size_t)(w->cu[h->spans[i].doc - mb->first_doc] + h->spans[i].first);
        for (int t = 0; t < h->spans[i].length; t++, row++, own++) {
            compare_row(h->out, own, right.out, row, DT_F64, c, OUTPUTS, most.out);
            for (Matrix m = QUERIES; m <= VALUES; m++)
                compare_row(h->dqkv, own, w->dqkv, row, c->dt, c, m, most.dqkv[m]);
        }
    }
    free_specified(&right);
    CHECK(own == n);
}

enum { BLOCKING, OVERLAPPING, LATE, MODES };

// The emulator has streams that are late by themselves.
static void set_mode(int mode) {
    static const int parts[MODES] = {1, 2, ATTENTION_PARTS};
    world->overlap = mode != BLOCKING;
    most_parts = parts[mode];
    if (kernels->on_host) set_late(world, mode == LATE);
    else if (mode == LATE) setenv("EMU_STREAMS", "late", 1);
    else unsetenv("EMU_STREAMS");
}

// All micro-batches, one after another or in one row, without overlapping collectives, with them, and in more parts
// with those that come as late as they may: the same bits, and what whole documents give. Ranks compare at the end, so
// that nobody holds up the others between micro-batches.
static void run_case(Case* c) {
    static Held held[MODES][MOST_MICRO_BATCHES];
    static Whole whole[MOST_MICRO_BATCHES];
    int before = test_failures_in_claim;
    char err[ERR_BYTES] = "";
    for (int i = 0; i < c->n_micro_batches; i++)
        if (takes_part(&c->micro_batches[i])) fill_whole(&whole[i], c, &c->micro_batches[i]);
    for (int mode = 0; mode < MODES; mode++) {
        set_mode(mode);
        for (int i = 0; i < c->n_micro_batches && !c->together; i++)
            if (takes_part(&c->micro_batches[i])) run_row(held[mode], c, i, i + 1, whole);
        if (c->together) run_row(held[mode], c, 0, c->n_micro_batches, whole);
    }
    for (int i = 0; i < c->n_micro_batches; i++) {
        if (!takes_part(&c->micro_batches[i])) continue;
        size_t n = (size_t)held[0][i].share.n;
        for (int mode = 1; mode < MODES; mode++) {
            CHECK(memcmp(held[0][i].out, held[mode][i].out, n * out_bytes(c)) == 0);
            CHECK(memcmp(held[0][i].dqkv, held[mode][i].dqkv, n * qkv_bytes(c)) == 0);
        }
        plain_attention(&whole[i], c);
        compare(&held[0][i], c, &c->micro_batches[i], &whole[i]);
        free_whole(&whole[i]);
        for (int mode = 0; mode < MODES; mode++) free(held[mode][i].out), free(held[mode][i].dqkv);
        if (test_failures_in_claim > before)
            printf(
                "    rank %d, seed %llu, micro-batch %d: ranks %d to %d, %d by heads, %d documents, %d heads for %d of "
                "%d, %s\n",
                rank, (unsigned long long)c->seed, i, c->micro_batches[i].first_rank,
                c->micro_batches[i].first_rank + c->micro_batches[i].cp_size - 1, c->micro_batches[i].ulysses_size,
                c->micro_batches[i].n_docs, c->NH, c->NKV, c->HS, dtype_name(c->dt));
        before = test_failures_in_claim;
    }
    set_mode(BLOCKING);
    CHECK(world->table->wait(world, NULL, err) == 0);
    if (err[0]) printf("    rank %d: %s\n", rank, err);
}

// ---- claims

// Groups of any size, which no ranks run: the specification against one rank's, both in double, but for an fp32 lse.
CLAIM(the_specification_is_attention_on_one_rank) {
    for (uint64_t seed = 900; seed < 900 + (uint64_t)few(24, 3); seed++) {
        Case c = new_case(seed);
        Whole w;
        c.spread = seed % 4 == 3 ? 80 : 0, c.dt = DT_F32;
        add_micro_batch(&c, 0, between(&c, 1, c.NKV), between(&c, 1, 6));
        if (seed % 2) place_anywhere(&c);
        fill_whole(&w, &c, c.micro_batches);
        Specified s = specified_attention(&w, &c, c.micro_batches);
        size_t n = (size_t)w.tokens * columns_of(&c, OUTPUTS).n, n_lse = (size_t)w.tokens * (size_t)c.NH;
        double* out = (double*)malloc(n * sizeof *out);
        float* lse = (float*)malloc(n_lse * sizeof *lse);
        Attention a = {.q = s.q, .k = s.k, .v = s.v, .cu_q = w.cu, .cu_k = w.cu, .n_docs = w.n_docs, .causal = 1};
        a.Nq = a.Nk = w.tokens, a.NH = c.NH, a.NKV = c.NKV, a.HS = c.HS, a.scale = (float)(1 / sqrt(c.HS));
        a.ldq = a.ldo = c.NH * c.HS, a.ldkv = c.NKV * c.HS;
        cpu_reference.attention_forward(out, lse, &a, DT_F64, NULL);
        for (size_t i = 0; i < n; i++) CHECK_CLOSE(s.out[i], out[i], 1e-12 * (1 + c.spread));
        for (size_t i = 0; i < n_lse; i++) CHECK_CLOSE(s.lse[i], lse[i], 2 * E * fabs(s.lse[i]) + 2 * E);
        free(out), free(lse), free_specified(&s), free_whole(&w);
    }
}

CLAIM(every_shape_of_group_gives_what_whole_documents_give) {
    uint64_t seed = 1;
    for (int round = 0; round < few(CEIL_DIV(16, size), 2); round++)
        for (int ulysses_size = 1; ulysses_size <= size; ulysses_size++)
            for (int ring_size = 1; ulysses_size * ring_size <= size; ring_size++) {
                Case c = new_case(seed++);
                set_heads(&c, between(&c, ulysses_size, MAX(ulysses_size, few(8, 3))));
                c.dt = round % 2 ? DT_BF16 : DT_F32;
                add_micro_batch(&c, between(&c, 0, size - ulysses_size * ring_size), ulysses_size, ring_size);
                run_case(&c);
            }
}

CLAIM(groups_that_overlap_follow_one_order) {
    for (uint64_t seed = 300; seed < 300 + (uint64_t)few(4, 1); seed++) {
        Case c = new_case(seed);
        for (int i = 0; i < few(8, 4); i++) add_random_micro_batch(&c);
        run_case(&c);
    }
}

CLAIM(halves_without_tokens_are_fine) {
    for (int ring_size = 1; ring_size <= size; ring_size++) {
        Case c = new_case(500 + (uint64_t)ring_size);
        for (int length = 1; length <= 3; length++) {
            begin_micro_batch(&c, 0, MIN(c.NKV, size / ring_size), ring_size);
            add_doc(&c, length);
        }
        run_case(&c);
    }
}

// Groups of all shapes, also without any documents here, in one row; any borders: no part need be even, or have
// anything.
CLAIM(a_row_of_groups_gives_what_each_gives_alone) {
    for (uint64_t seed = 800; seed < 800 + (uint64_t)few(24, 3); seed++) {
        Case c = new_case(seed);
        c.together = 1;
        for (int i = between(&c, 1, few(8, 3)); i > 0; i--)
            if (between(&c, 0, 1)) add_micro_batch(&c, between(&c, 0, size - 1), 1, 1);
            else add_random_micro_batch(&c);
        if (seed % 2) place_anywhere(&c);
        run_case(&c);
    }
}

CLAIM(log_sum_exps_far_apart_merge) {
    static const double spreads[] = {80, 400};
    for (int i = 0; i < few(COUNT(spreads), 1); i++)
        for (int ring_size = 1; ring_size <= size; ring_size++) {
            Case c = new_case(600 + (uint64_t)(16 * ring_size + i));
            c.spread = spreads[i], c.dt = DT_F32;
            begin_micro_batch(&c, between(&c, 0, size - ring_size), 1, ring_size);
            add_doc(&c, 2 * ring_size * between(&c, 5, 12));
            run_case(&c);
        }
}

static void open_kernels_and_world(void) {
    char err[ERR_BYTES] = "";
    RankIdentity id;
    KernelLimits limits = {
        .N = 4096, .spread = size, .C = 1280, .OC = 1280, .NH = 40, .NKV = 8, .HS = 32, .context = 4096};
    limits.threads = 1, limits.dt = DT_F32, limits.attention = ATTENTION_OWN;
    kernels = kernels_find(TEST_DEVICE, "auto", err);
    if (!kernels || kernels->open(&limits, err)) die("%s", err);
    if (kernels->on_host) ranks_open_world();
    else if (rank_identity(&id, err) || comm_open(&world, kernels, &id, RANKS_PATIENCE, err)) die("%s", err);
}

int main(int n_arguments, char** arguments) {
    ranks_start(&n_arguments, &arguments);
    open_kernels_and_world();
    run_claims_together();
    int status = ranks_done();
    kernels->close();
    return status;
}
