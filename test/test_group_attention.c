// test_group_attention.c - attention of a group of ranks against the plain kernel on whole documents, which every rank
// computes for itself. mpirun -n 1, 2, 3, 5 and 8 start it.
//
// Without a ring the group calls the plain kernel on the same rows, so that bits must be the same. Tolerances of a
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
#include "kernels/group_attention.h"
#include "test/group_cases.h"
#include "test/late_comm.h"
#include "test/ranks.h"
#include "test/rounding.h"

static const double E = 1.0 / (1 << 24);
enum { MOST_RANKS = 64, MOST_BUFFERS = 16, GUARD = 256 };

static const Kernels* kernels;

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

// ---- the same by the group

typedef struct Held {  // what this rank got of a micro-batch
    Share share;
    Span spans[2 * MOST_DOCS];
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

static int kv_heads_of(const Case* c, int ulysses_size, int b) {
    return (b + 1) * c->NKV / ulysses_size - b * c->NKV / ulysses_size;
}

// Tokens of place x of a ring, from lengths alone.
static int tokens_of(const Case* c, const MicroBatch* mb, int ring_size, int x) {
    int n = 0;
    for (int i = 0; i < mb->n_docs; i++) {
        int s = c->lengths[c->docs[mb->first_doc + i]], high = 2 * ring_size - 1 - x;
        n += chunk_border(s, ring_size, x + 1) - chunk_border(s, ring_size, x);
        n += chunk_border(s, ring_size, high + 1) - chunk_border(s, ring_size, high);
    }
    return n;
}

// The formulas of group_attention.h: bytes sent for heads and around the ring, forward and backward.
static void expected_bytes(uint64_t bytes[2][2], const Case* c, const MicroBatch* mb) {
    uint64_t e = dtype_bytes(c->dt), HS = (uint64_t)c->HS, g = (uint64_t)(c->NH / c->NKV), unsent = 0, all = 0;
    int ulysses_size = mb->ulysses_size, ring_size = mb->cp_size / ulysses_size, place = rank - mb->first_rank;
    int a = place / ulysses_size, b = place % ulysses_size;
    uint64_t n_a = (uint64_t)tokens_of(c, mb, ring_size, a), H = (uint64_t)kv_heads_of(c, ulysses_size, b);
    uint64_t others = (uint64_t)c->NKV - H;
    uint64_t n = ((uint64_t)b + 1) * n_a / (uint64_t)ulysses_size - (uint64_t)b * n_a / (uint64_t)ulysses_size;
    for (int x = 0; x < ring_size; x++) {
        all += (uint64_t)tokens_of(c, mb, ring_size, x);
        if (x == (a + 1) % ring_size) unsent = (uint64_t)tokens_of(c, mb, ring_size, x);
    }
    bytes[0][0] = e * HS * ((g + 2) * n * others + g * (n_a - n) * H);
    bytes[1][0] = e * HS * (g * n * others + (g + 2) * (n_a - n) * H);
    bytes[0][1] = ring_size > 1 ? e * HS * 2 * (all - unsent) * H : 0;
    bytes[1][1] = ring_size > 1 ? bytes[0][1] + 4 * HS * 2 * all * H : 0;
}

static uint64_t sent_for(CommPurpose purpose) { return world->sent[purpose][0] + world->sent[purpose][1]; }
static uint64_t sent_in_all(void) {
    uint64_t bytes = 0;
    for (int p = 0; p < N_PURPOSES; p++) bytes += sent_for((CommPurpose)p);
    return bytes;
}

// No rank of the group has more than this of tokens, nor of (token, key/value head) pairs / NKV.
static int largest_share(Case* c, const MicroBatch* mb) {
    Plan plan = plan_of(c);
    int most = 0;
    for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) {
        Share s = micro_batch_share(&plan, mb, c->lengths, r, NULL);
        most = MAX(most, MAX(s.n, CEIL_DIV(s.ring_n * kv_heads_of(c, s.ulysses_size, s.ulysses_rank), c->NKV)));
    }
    return most;
}

typedef struct Places {
    int tokens[MOST_RANKS], low[MOST_RANKS];
} Places;

static GroupAttention group_of(Case* c, const MicroBatch* mb, const Share* s, Places* places) {
    Plan plan = plan_of(c);
    size_t cu_bytes = micro_batch_cu_ints(mb) * sizeof(int), scratch;
    int* cu = (int*)malloc(cu_bytes);
    micro_batch_ring_tokens(&plan, mb, c->lengths, places->tokens, places->low);
    micro_batch_cu(&plan, mb, c->lengths, cu);
    scratch = group_attention_scratch(largest_share(c, mb), c->NH, c->NKV, c->HS, mb->cp_size, c->dt);
    GroupAttention ga = {.comm = world,
                         .first_rank = mb->first_rank,
                         .ulysses_size = s->ulysses_size,
                         .ring_size = s->ring_size,
                         .ring_rank = s->ring_rank,
                         .ulysses_rank = s->ulysses_rank,
                         .NH = c->NH,
                         .NKV = c->NKV,
                         .HS = c->HS,
                         .n_docs = mb->n_docs,
                         .ring_tokens = places->tokens,
                         .ring_low = places->low,
                         .cu = (int*)buffer(cu, cu_bytes),
                         .scale = (float)(1 / sqrt(c->HS)),
                         .scratch = buffer(NULL, scratch)};
    free(cu);
    return ga;
}

// Both passes of this rank's part of a micro-batch, with what they sent.
static void run_micro_batch(Held* h, Case* c, const MicroBatch* mb, const Whole* w) {
    Plan plan = plan_of(c);
    Places places;
    h->share = micro_batch_share(&plan, mb, c->lengths, rank, h->spans);
    size_t n = (size_t)h->share.n, qkv_row = qkv_bytes(c), out_row = out_bytes(c), NKV = (size_t)c->NKV;
    size_t pairs = (size_t)h->share.ring_n * (size_t)kv_heads_of(c, mb->ulysses_size, h->share.ulysses_rank);
    void *own_qkv = own_rows(h, w, mb, w->qkv, qkv_row), *own_dout = own_rows(h, w, mb, w->dout, out_row);
    void *qkv = buffer(own_qkv, n * qkv_row), *dout = buffer(own_dout, n * out_row);
    void *out = buffer(NULL, n * out_row), *dqkv = buffer(NULL, n * qkv_row);
    free(own_qkv), free(own_dout);
    GroupAttention ga = group_of(c, mb, &h->share, &places);
    SavedAttention saved = {qkv, out, (float*)buffer(NULL, pairs * ((size_t)c->NH / NKV) * sizeof(float))};
    if (mb->ulysses_size > 1)
        saved.qkv = buffer(NULL, pairs * qkv_row / NKV), saved.out = buffer(NULL, pairs * out_row / NKV);
    uint64_t expected[2][2], heads = sent_for(COMM_ULYSSES), ring = sent_for(COMM_RING), all = sent_in_all();
    expected_bytes(expected, c, mb);
    world->purpose = COMM_STATE;
    for (int backward = 0; backward < 2; backward++) {
        if (backward) group_attention_backward(dqkv, dout, &saved, &ga, kernels, c->dt, NULL);
        else group_attention_forward(out, &saved, qkv, &ga, kernels, c->dt, NULL);
        heads += expected[backward][0], ring += expected[backward][1];
        all += expected[backward][0] + expected[backward][1];
        CHECK(sent_for(COMM_ULYSSES) == heads && sent_for(COMM_RING) == ring && sent_in_all() == all);
        CHECK(world->purpose == COMM_STATE);
    }
    world->purpose = COMM_OTHER;
    h->out = fetched(out, n * out_row);
    h->dqkv = fetched(dqkv, n * qkv_row);
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

// A matrix in row f of what was found, and in row x of what is expected.
static void compare_row(const void* found, size_t f, const void* expected, size_t x, const Case* c, Matrix matrix,
                        double most) {
    double rounding = c->dt == DT_BF16 ? 1.0 / 128 : 4 * E;
    Columns columns = columns_of(c, matrix);
    for (size_t j = columns.first; j < columns.first + columns.n; j++) {
        double right = get(expected, x * columns.row + j, c->dt);
        CHECK_CLOSE(get(found, f * columns.row + j, c->dt), right, most + rounding * fabs(right));
    }
}

static void compare(const Held* h, const Case* c, const MicroBatch* mb, const Whole* w) {
    size_t own = 0, n = (size_t)h->share.n;
    if (h->share.ring_size == 1) {
        void *out = own_rows(h, w, mb, w->out, out_bytes(c)), *dqkv = own_rows(h, w, mb, w->dqkv, qkv_bytes(c));
        CHECK(memcmp(h->out, out, n * out_bytes(c)) == 0);
        CHECK(memcmp(h->dqkv, dqkv, n * qkv_bytes(c)) == 0);
        free(out), free(dqkv);
        return;
    }
    Tolerance most = tolerance(w, c, h->share.ring_size);
    for (int i = 0; i < h->share.n_spans; i++) {
        size_t row = (size_t)(w->cu[h->spans[i].doc - mb->first_doc] + h->spans[i].first);
        for (int t = 0; t < h->spans[i].length; t++, row++, own++) {
            compare_row(h->out, own, w->out, row, c, OUTPUTS, most.out);
            for (Matrix m = QUERIES; m <= VALUES; m++) compare_row(h->dqkv, own, w->dqkv, row, c, m, most.dqkv[m]);
        }
    }
    CHECK(own == n);
}

enum { BLOCKING, OVERLAPPING, LATE, MODES };

// The emulator has streams that are late by themselves.
static void set_mode(int mode) {
    world->overlap = mode != BLOCKING;
    if (kernels->on_host) set_late(world, mode == LATE);
    else if (mode == LATE) setenv("EMU_STREAMS", "late", 1);
    else unsetenv("EMU_STREAMS");
}

static int takes_part(const MicroBatch* mb) { return rank >= mb->first_rank && rank < mb->first_rank + mb->cp_size; }

// All micro-batches without overlapping collectives, with them, and with those that come as late as they may: the same
// bits, and what whole documents give. Ranks compare at the end, so that nobody holds up the others between
// micro-batches.
static void run_case(Case* c) {
    static Held held[MODES][MOST_MICRO_BATCHES];
    static Whole whole[MOST_MICRO_BATCHES];
    int before = test_failures_in_claim;
    char err[ERR_BYTES] = "";
    for (int i = 0; i < c->n_micro_batches; i++)
        if (takes_part(&c->micro_batches[i])) fill_whole(&whole[i], c, &c->micro_batches[i]);
    for (int mode = 0; mode < MODES; mode++) {
        set_mode(mode);
        for (int i = 0; i < c->n_micro_batches; i++)
            if (takes_part(&c->micro_batches[i])) run_micro_batch(&held[mode][i], c, &c->micro_batches[i], &whole[i]);
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
    CHECK(world->table->wait(world, NULL, err, sizeof err) == 0);
    if (err[0]) printf("    rank %d: %s\n", rank, err);
}

// ---- claims

static void every_shape_of_group_gives_what_whole_documents_give(void) {
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

static void one_rank_sends_nothing_and_is_the_plain_kernel(void) {
    uint64_t before = sent_in_all();
    for (uint64_t seed = 100; seed < 100 + (uint64_t)few(4, 1); seed++) {
        Case c = new_case(seed);
        for (int r = 0; r < size; r++) add_micro_batch(&c, r, 1, 1);  // compared as bits; bytes by the formula
        run_case(&c);
    }
    CHECK(sent_in_all() == before);
}

static void groups_of_different_ranks_work_side_by_side(void) {
    for (uint64_t seed = 200; seed < 200 + (uint64_t)few(3, 1); seed++) {
        Case c = new_case(seed);
        set_heads(&c, MAX(c.NKV, 2));
        add_micro_batch(&c, 0, 2, 1);
        add_micro_batch(&c, 2, 1, 3);
        add_micro_batch(&c, 1, 2, 2);
        add_micro_batch(&c, 0, 1, 1);
        add_micro_batch(&c, 0, 1, size);
        add_micro_batch(&c, 3, 1, 2);
        add_micro_batch(&c, 1, 2, 1);
        run_case(&c);
    }
}

static void groups_that_overlap_follow_one_order(void) {
    for (uint64_t seed = 300; seed < 300 + (uint64_t)few(4, 1); seed++) {
        Case c = new_case(seed);
        for (int i = 0; i < few(8, 4); i++) add_random_micro_batch(&c);
        run_case(&c);
    }
}

static void heads_that_do_not_divide_are_shared(void) {
    uint64_t seed = 400;
    for (int ulysses_size = 2; ulysses_size <= MIN(size, 8); ulysses_size++)
        for (int NKV = ulysses_size; NKV <= few(8, 4); NKV += 1 + ulysses_size / 4) {
            Case c = new_case(seed++);
            c.HS = 8;
            set_heads(&c, NKV);
            add_micro_batch(&c, between(&c, 0, size - ulysses_size), ulysses_size, 1);
            add_micro_batch(&c, 0, ulysses_size, size / ulysses_size);
            run_case(&c);
        }
}

static void one_key_head_goes_around_for_all_queries(void) {
    for (int ring_size = 1; ring_size <= size; ring_size++) {
        Case c = new_case(700 + (uint64_t)ring_size);
        c.NKV = 1, c.NH = few(7, 3);
        add_micro_batch(&c, between(&c, 0, size - ring_size), 1, ring_size);
        run_case(&c);
    }
}

static void halves_without_tokens_are_fine(void) {
    for (int ring_size = 1; ring_size <= size; ring_size++) {
        Case c = new_case(500 + (uint64_t)ring_size);
        for (int length = 1; length <= 3; length++) {
            begin_micro_batch(&c, 0, MIN(c.NKV, size / ring_size), ring_size);
            add_doc(&c, length);
        }
        run_case(&c);
    }
}

static void log_sum_exps_far_apart_merge(void) {
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
    kernels = kernels_find(TEST_DEVICE, "auto", err, sizeof err);
    if (!kernels || kernels->open(&limits, err, sizeof err)) die("%s", err);
    if (kernels->on_host) ranks_open_world();
    else if (rank_identity(&id, err, sizeof err) || comm_open(&world, kernels, &id, RANKS_PATIENCE, err, sizeof err))
        die("%s", err);
}

int main(int n_arguments, char** arguments) {
    ranks_start(&n_arguments, &arguments);
    open_kernels_and_world();
    RUN_TOGETHER(every_shape_of_group_gives_what_whole_documents_give);
    RUN_TOGETHER(one_rank_sends_nothing_and_is_the_plain_kernel);
    if (size >= 5) RUN_TOGETHER(groups_of_different_ranks_work_side_by_side);
    RUN_TOGETHER(groups_that_overlap_follow_one_order);
    RUN_TOGETHER(heads_that_do_not_divide_are_shared);
    RUN_TOGETHER(one_key_head_goes_around_for_all_queries);
    RUN_TOGETHER(halves_without_tokens_are_fine);
    RUN_TOGETHER(log_sum_exps_far_apart_merge);
    int status = ranks_done();
    kernels->close();
    return status;
}
