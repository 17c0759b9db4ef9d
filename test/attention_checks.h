// attention_checks.h - the fast attention of every table under test against the reference table, and the shapes that
// it is tried with, as claims: each case is a row.
//
// Tolerances. Let e = 2^-24. A score is a sum of HS products, so it is off by at most dS = (HS + 3) e A, where A
// bounds scale |q_i| |k_j|; a probability is off by the factor 2 dS + 4 e (twice: its own score and the normaliser;
// the rest is the exponential). From that, with V, K, Q, G the largest entries of v, k, q, dout and n the longest
// document:
//   out, a mean of rows of v: (2 dS + (n + 8) e) V =: r V
//   dv, sums of columns of P, below 16 in this data (the harmonic sum of n = 300, times a few): 16 r G
//   dS = P (dP - D), dP and D sums of HS products below g = max |dout_i| max(|v_j|, |out_i|):
//       (2 r + 2 (HS + 3) e) 2 g =: t
//   dq = scale dS K: scale K t;  dk: 16 scale Q t;  lse: dS + 4 e + e |lse|
//   where s query heads share a key, dk and dv are sums of s such columns, of s n numbers: s times that, n for r being
//   s times as large
// and with bf16 a result may round to either side of a border, which is one ulp, at most 2^-7 of its value.
#pragma once
#include "test/rounding.h"
#include "test/tables.h"

static const double E = 1.0 / (1 << 24);
enum { MOST_DOCS = 16, GUARD = 8, NONE = -1 };
// Rows of NaN behind a tensor. AddressSanitizer must see where it ends, and so must a device, in every other run.
enum { BEHIND = SANITIZED && !TESTS_DEVICE ? 0 : 128 };
static int ends_early;  // in this run device memory ends without them

enum { FP32 = 1, BF16 = 2, BOTH = FP32 | BF16, PART = 4 };

typedef struct Case {
    int HS, NKV, share;  // query heads of a key/value head
    int causal, pad;     // pad: unused elements at the end of each row
    int kinds;           // types; PART: also as a part
    // q_len, k_len (NONE: no rows; both 0: the list ends); causal offset, used when one is not 0
    int lengths[MOST_DOCS][3];
} Case;

// (rows, width) in rows of ld elements, after GUARD elements, before BEHIND rows and as many elements. All around is
// NaN, which must be left alone, and change nothing.
typedef struct Tensor {
    char* bytes;
    size_t rows, ld, width;
    DType dt;
} Tensor;

static void* data(Tensor t) { return t.bytes + GUARD * dtype_bytes(t.dt); }
static size_t size_of(Tensor t);
static void* data_for(const Kernels* k, Tensor t) {
    size_t bytes = size_of(t) - (ends_early ? BEHIND * t.ld * dtype_bytes(t.dt) : 0);
    return (char*)there(k, t.bytes, bytes) + GUARD * dtype_bytes(t.dt);
}
static size_t size_of(Tensor t) { return ((t.rows + BEHIND) * t.ld + 2 * GUARD) * dtype_bytes(t.dt); }

static double get(Tensor t, size_t row, size_t col) {
    size_t i = row * t.ld + col;
    return t.dt == DT_BF16 ? bf16_to_float(((bf16*)data(t))[i]) : ((float*)data(t))[i];
}

static void set(Tensor t, size_t row, size_t col, double x) {
    size_t i = row * t.ld + col;
    if (t.dt == DT_BF16) ((bf16*)data(t))[i] = bf16_from_float((float)x);
    else ((float*)data(t))[i] = (float)x;
}

static Tensor tensor(size_t rows, size_t width, size_t pad, DType dt) {
    Tensor t = {NULL, rows, width + pad, width, dt};
    t.bytes = (char*)malloc(size_of(t));
    memset(t.bytes, 0xff, size_of(t));
    return t;
}

static void fill(Tensor t, uint64_t seed, double scale) {
    for (size_t r = 0; r < t.rows; r++)
        for (size_t c = 0; c < t.width; c++) set(t, r, c, scale * random_normal(seed, r * t.width + c));
}

static double largest(Tensor t) {
    double most = 0;
    for (size_t r = 0; r < t.rows; r++)
        for (size_t c = 0; c < t.width; c++) most = MAX(most, fabs(get(t, r, c)));
    return most;
}

static double largest_norm(Tensor t, int HS) {
    double most = 0;
    for (size_t r = 0; r < t.rows; r++)
        for (size_t c = 0; c < t.width; c += HS) {
            double sum = 0;
            for (int j = 0; j < HS; j++) sum += get(t, r, c + j) * get(t, r, c + j);
            most = MAX(most, sqrt(sum));
        }
    return most;
}

static void check_untouched_around(Tensor t) {
    size_t width = t.width * dtype_bytes(t.dt), ld = t.ld * dtype_bytes(t.dt), guard = GUARD * dtype_bytes(t.dt),
           bad = 0;
    for (size_t i = 0; i < size_of(t); i++) {
        int inside = i >= guard && i < guard + t.rows * ld && (i - guard) % ld < width;
        bad += !inside && (unsigned char)t.bytes[i] != 0xff;
    }
    CHECK(bad == 0);
}

static void check_close(Tensor found, Tensor expected, double tolerance) {
    double rounding = found.dt == DT_BF16 ? 1.0 / 128 : 4 * E;
    for (size_t r = 0; r < found.rows; r++)
        for (size_t c = 0; c < found.width; c++) {
            if (isinf(get(expected, r, c))) CHECK(get(found, r, c) == get(expected, r, c));
            else CHECK_CLOSE(get(found, r, c), get(expected, r, c), tolerance + rounding * fabs(get(expected, r, c)));
        }
    check_untouched_around(found);
}

// ---- one problem: inputs, and room for what a table makes of them

typedef struct Problem {
    Attention a;
    int cu_q[MOST_DOCS + 1], cu_k[MOST_DOCS + 1], offsets[MOST_DOCS], has_offsets, longest;
    Tensor q, k, v, dout;
    DType dt;
} Problem;

enum { WIDER = 8 };  // elements that rows of a part's gradients are longer

typedef struct Result {
    Tensor out, lse, dq, dk, dv;  // of a part in fp32
} Result;

static Problem problem(const Case* c, DType dt) {
    Problem p = {.dt = dt};
    int n = 0;
    for (; n < MOST_DOCS && (c->lengths[n][0] || c->lengths[n][1]); n++) {
        p.cu_q[n + 1] = p.cu_q[n] + MAX(0, at_most(c->lengths[n][0], 130));
        p.cu_k[n + 1] = p.cu_k[n] + MAX(0, at_most(c->lengths[n][1], 130));
        p.offsets[n] = c->lengths[n][2];
        p.has_offsets |= p.offsets[n] != 0;
        p.longest = MAX(p.longest, MAX(c->lengths[n][0], c->lengths[n][1]));
    }
    int NH = c->NKV * c->share;
    size_t width = (size_t)NH * c->HS, k_width = (size_t)c->NKV * c->HS;
    p.q = tensor(p.cu_q[n], width, 2 * c->pad, dt), p.dout = tensor(p.cu_q[n], width, 3 * c->pad, dt);
    p.k = tensor(p.cu_k[n], k_width, c->pad, dt), p.v = tensor(p.cu_k[n], k_width, c->pad, dt);
    fill(p.q, 1, 1), fill(p.k, 2, 1), fill(p.v, 3, 1), fill(p.dout, 4, 1);
    p.a = (Attention){.n_docs = n,
                      .Nq = p.cu_q[n],
                      .Nk = p.cu_k[n],
                      .NH = NH,
                      .NKV = c->NKV,
                      .HS = c->HS,
                      .causal = c->causal,
                      .scale = (float)(1 / sqrt(c->HS))};
    return p;
}

// The struct with its pointers, which would go stale in a copy of the problem.
static Attention arguments(const Kernels* k, Problem* p) {
    Attention a = p->a;
    a.q = data_for(k, p->q), a.k = data_for(k, p->k), a.v = data_for(k, p->v);
    a.cu_q = (int*)there(k, p->cu_q, sizeof p->cu_q), a.cu_k = (int*)there(k, p->cu_k, sizeof p->cu_k);
    if (p->has_offsets) a.causal_offset = (int*)there(k, p->offsets, sizeof p->offsets);
    a.ldq = (int)p->q.ld, a.ldkv = (int)p->k.ld, a.ldo = (int)p->dout.ld;
    a.ld_dq = a.ldq + WIDER, a.ld_dkv = a.ldkv + WIDER;
    return a;
}

// Gradients of a part begin with numbers that are added to.
static Result result(const Problem* p) {
    size_t width = p->q.width, k_width = p->k.width, wider = p->a.partial ? WIDER : 0;
    DType dt = p->a.partial ? DT_F32 : p->dt;
    Result r = {tensor(p->q.rows, width, p->dout.ld - width, dt), tensor(p->a.NH, p->q.rows, 0, DT_F32),
                tensor(p->q.rows, width, p->q.ld - width + wider, dt),
                tensor(p->k.rows, k_width, p->k.ld - k_width + wider, dt),
                tensor(p->k.rows, k_width, p->k.ld - k_width + wider, dt)};
    if (p->a.partial) fill(r.dq, 5, 1), fill(r.dk, 6, 1), fill(r.dv, 7, 1);
    return r;
}

static void free_problem(Problem p) { free(p.q.bytes), free(p.k.bytes), free(p.v.bytes), free(p.dout.bytes); }
static void free_result(Result r) {
    free(r.out.bytes), free(r.lse.bytes), free(r.dq.bytes), free(r.dk.bytes), free(r.dv.bytes);
}

static int open_table(const Kernels* table, const Problem* p, int threads) {
    char err[ERR_BYTES];
    int C = p->a.NH * p->a.HS;
    KernelLimits limits = {
        .N = (int)MAX(p->k.rows, p->q.rows), .C = C, .OC = 4 * C, .NH = p->a.NH, .NKV = p->a.NKV, .HS = p->a.HS};
    limits.context = p->longest, limits.threads = threads, limits.dt = p->dt;
    limits.attention = attention_under_test(p->a.HS, p->dt);
    return table->open(&limits, err);
}

// Forward and backward; the backward pass reads out and lse of `from`, so that errors of the two do not add. That of a
// part must: from is no part.
static void run(Result* r, const Kernels* table, Problem* p, const Result* from, int threads) {
    CHECK(open_table(table, p, threads) == 0);
    ends_early = threads == 1;
    Attention a = arguments(table, p);
    table->attention_forward(data_for(table, r->out), (float*)data_for(table, r->lse), &a, p->dt, NULL);
    table->attention_backward(data_for(table, r->dq), data_for(table, r->dk), data_for(table, r->dv),
                              data_for(table, p->dout), data_for(table, from->out), (float*)data_for(table, from->lse),
                              &a, p->dt, NULL);
    bring_back();
    table->close();
}

static int same(Tensor a, Tensor b) { return memcmp(a.bytes, b.bytes, size_of(a)) == 0; }
static int all_same(const Result* a, const Result* b) {
    return same(a->out, b->out) && same(a->lse, b->lse) && same(a->dq, b->dq) && same(a->dk, b->dk) &&
           same(a->dv, b->dv);
}

// ---- a problem goes through every table under test

// Off by 2^-9 of themselves.
static double rounded_factors(const Problem* p, const Kernels* table) {
    return rounds_probabilities(table, p->dt) ? 1.0 / 512 : 0;
}

static void compare_with_reference(const Problem* p, const Kernels* table, const Result* found, const Result* expected,
                                   double dS) {
    double r = 2 * dS + (p->longest + 8) * E + rounded_factors(p, table), HS = p->a.HS, scale = p->a.scale;
    double g = largest_norm(p->dout, p->a.HS) * fmax(largest_norm(p->v, p->a.HS), largest_norm(expected->out, p->a.HS));
    double t = (2 * r + 2 * (HS + 3) * E) * 2 * g, s = p->a.NH / p->a.NKV, more = (s - 1) * p->longest * E;
    check_close(found->out, expected->out, r * largest(p->v));
    check_close(found->lse, expected->lse, dS + 4 * E);
    check_close(found->dq, expected->dq, scale * largest(p->k) * t);
    check_close(found->dk, expected->dk, 16 * s * scale * largest(p->q) * (t + 4 * more * g));
    check_close(found->dv, expected->dv, 16 * s * (r + more) * largest(p->dout));
}

// What the merged result of an attention would be of which p is a part: each query has seen about as much elsewhere.
static Result merged_result(Problem* p) {
    Result r = result(p);
    run(&r, &cpu_reference, p, &r, 1);
    for (size_t h = 0; h < r.lse.rows; h++)
        for (size_t n = 0; n < r.lse.width; n++)
            set(r.lse, h, n, isinf(get(r.lse, h, n)) ? 0.3 : get(r.lse, h, n) + 0.7);
    return r;
}

static void try_tables(Problem* p, const Result* expected, const Result* from) {
    const Kernels* tables[CPU_ISAS];
    double A = p->a.scale * largest_norm(p->q, p->a.HS) * largest_norm(p->k, p->a.HS);
    for (int i = 0, n = tested_tables(tables); i < n; i++) {
        Result first = {0};
        for (int threads = 1; threads <= most_threads(); threads++) {
            Result found = result(p);
            run(&found, tables[i], p, from, threads);
            if (threads == 1) {
                compare_with_reference(p, tables[i], &found, expected, (p->a.HS + 3) * E * A);
                first = found;
                continue;
            }
            CHECK(all_same(&found, &first));
            free_result(found);
        }
        free_result(first);
    }
}

// As a whole attention, or as a part of one.
static inline void try_case_as(const Case* c, DType dt, int partial) {
    Problem p = problem(c, dt);
    Result merged = {0};
    if (partial) merged = merged_result(&p);
    p.a.partial = partial;
    Result expected = result(&p);
    run(&expected, &cpu_reference, &p, partial ? &merged : &expected, 1);
    try_tables(&p, &expected, partial ? &merged : &expected);
    free_result(merged), free_result(expected), free_problem(p);
}

// ---- cases

// clang-format off
#define LENGTHS {1, 1}, {2, 2}, {15, 15}, {16, 16}, {17, 17}, {63, 63}, {64, 64}, {65, 65}, {130, 130}, {300, 300}
#define FEW_LENGTHS {1, 1}, {17, 17}, {65, 65}, {130, 130}
#define SHORT_QUERIES {1, 130}, {16, 17}, {63, 65}, {2, 15}, {65, 200}, {0, 5}, {64, 64}, {17, 145}
// Keys that no query sees, queries that see none, and those that see all; pieces of a document as on a ring of ranks.
#define OFFSETS {70, 70, -3}, {5, 9, -5}, {66, 40, 100}, {64, 64}, {3, 130, 65}, {130, 20, -64}, {0, 7, 3}, \
                {9, 130, -200}, {1, 1}
// As they come from documents shorter than the number of chunks that they are cut into; and fewer keys than queries
// without an offset, where the first queries see none.
#define MISSING {5, NONE}, {NONE, 5}, {3, 3}, {NONE, NONE}, {70, 2}, \
                {NONE, 66}, {65, NONE}, {2, 70}, {66, 65}, {1, NONE}

// All of them; under a sanitizer a third, the first when every access is watched.
static void try_cases(const Case* cases, int n) {
    for (int i = 0; i < n; i += WATCHED ? n : SANITIZED ? 3 : 1)
        for (int partial = 0; partial <= !!(cases[i].kinds & PART); partial++) {
            if (cases[i].kinds & FP32 && !only_table) try_case_as(&cases[i], DT_F32, partial);
            if (cases[i].kinds & BF16 || only_table) try_case_as(&cases[i], DT_BF16, partial);  // which has that alone
        }
}

#define CASES(name, ...)                           \
    static void name(void) {                       \
        static const Case cases[] = {__VA_ARGS__}; \
        try_cases(cases, COUNT(cases));            \
    }

CASES(packed_documents_match_the_reference,
      {4, 3, 1, 1, 0, FP32, {LENGTHS}},
      {16, 1, 1, 1, 5, BF16, {LENGTHS}},
      {4, 1, 1, 0, 3, FP32, {LENGTHS}})

CASES(fewer_queries_than_keys_match_the_reference,
      {16, 1, 1, 1, 3, FP32, {SHORT_QUERIES}},
      {4, 3, 1, 0, 1, FP32 | PART, {SHORT_QUERIES}},
      {4, 3, 1, 1, 0, BF16, {SHORT_QUERIES}})

CASES(causal_offsets_match_the_reference,
      {16, 2, 1, 1, 3, BOTH | PART, {OFFSETS}})

// Rows that begin at multiples of 16 bytes, as tensor cores want them: bf16, HS a multiple of 8, pads of 8.
CASES(aligned_rows_match_the_reference,
      {64, 1, 1, 1, 8, BF16 | PART, {{66, 70}, {3, 3}}},
      {32, 2, 1, 1, 8, BF16, {LENGTHS}},
      {32, 1, 1, 1, 8, BF16 | PART, {{1, 1}, {63, 63}, {65, 65}, {129, 129}}},
      {64, 1, 1, 1, 8, BF16, {{1, 1}, {2, 2}, {63, 63}, {64, 64}, {65, 65}, {127, 127}, {129, 129}}},
      {64, 1, 1, 0, 8, BF16 | PART, {{3, 3}, {66, 70}, {NONE, 9}, {9, NONE}}},
      {128, 1, 1, 1, 8, BF16 | PART, {{3, 3}, {66, 97}}},
      {40, 1, 1, 1, 0, BF16, {SHORT_QUERIES}},
      {64, 1, 1, 1, 8, BF16 | PART,
       {{70, 70, -3}, {5, 9, -5}, {66, 40, 100}, {3, 130, 65}, {130, 20, -64}, {9, 130, -200}}})

// Several tiles of 128 keys, and of 64 to 192 queries, with pieces of tiles at all ends.
CASES(rows_of_many_tiles_match_the_reference,
      {64, 1, 2, 1, 8, BF16 | PART, {{300, 300}, {1, 1}, {129, 129}, {200, 260}}},
      {128, 1, 2, 1, 8, BF16 | PART, {{70, 140}, {260, 260}}},
      {64, 1, 1, 0, 8, BF16 | PART, {{130, 270}, {3, 3}}},
      {64, 1, 1, 1, 8, BF16 | PART, {{300, 300, -140}, {140, 300, 100}, {200, 140, 3}, {40, 270, 300}}},
      {64, 1, 1, 1, 8, BF16, {{70, 520}}},
      {64, 1, 1, 0, 8, BF16 | PART, {{4300, 9}}},
      {96, 1, 1, 1, 8, BF16, {{130, 130}, {3, 3}}},
      {80, 1, 2, 1, 8, BF16 | PART, {{66, 70}, {140, 140}}},
      {128, 1, 1, 0, 8, BF16, {{66, 200}, {NONE, 9}, {9, NONE}}})

// Groups of 2 and of odd sizes, of one head for all; documents that threads split and that they do not, bf16 rows that
// tensor cores take and that they do not.
CASES(heads_that_share_keys_match_the_reference,
      {4, 2, 3, 1, 0, BOTH, {FEW_LENGTHS}},
      {4, 1, 3, 0, 1, BOTH | PART, {{1, 130}, {63, 65}, {NONE, 5}, {65, 65}, {7, NONE}}},
      {16, 2, 2, 0, 8, BOTH, {{3, 3}, {66, 70}, {1, 130}}},
      {64, 1, 2, 1, 8, BF16, {{1, 1}, {63, 63}, {65, 65}, {129, 129}}},
      {128, 1, 2, 1, 8, BF16, {{3, 3}, {66, 70}}},
      {8, 2, 3, 1, 3, BOTH | PART, {{70, 70, -3}, {5, 9, -5}, {66, 40, 100}, {3, 130, 65}, {130, 20, -64}, {0, 7, 3}}},
      {4, 1, 6, 1, 1, BOTH, {{200, 200}}},
      {24, 2, 2, 1, 2, BOTH, {MISSING}},
      {32, 2, 3, 1, 8, BF16 | PART, {{70, 70, -3}, {66, 40, 100}, {9, 70, -200}}})

CASES(documents_without_queries_or_keys_match_the_reference,
      {16, 2, 1, 1, 3, BOTH, {MISSING}},
      {16, 2, 1, 0, 3, FP32, {MISSING}},
      {64, 1, 1, 1, 8, BF16, {MISSING}},
      {64, 1, 1, 0, 8, BF16, {MISSING}},
      {4, 1, 1, 0, 1, BOTH, {{9, NONE}}},
      {4, 1, 1, 1, 1, BOTH, {{NONE, 9}, {NONE, 70}}},
      {16, 2, 1, 1, 3, FP32 | PART, {{5, NONE, 7}, {NONE, 5, -1}, {NONE, NONE, 9}, {6, NONE, -2}, {4, 3, 1}}})

// The reference takes time in HS squared.
CASES(head_sizes_match_the_reference,
      {1, 1, 1, 1, 7, BOTH, {{3, 3}, {66, 70}}},
      {3, 1, 1, 1, 7, BOTH, {{3, 3}, {66, 70}}},
      {8, 1, 1, 1, 7, BOTH, {{3, 3}, {66, 70}}},
      {17, 1, 1, 1, 7, BOTH, {{3, 3}, {66, 70}}},
      {24, 3, 1, 0, 0, BOTH, {{5, 5}, {9, 13}}},
      {33, 1, 1, 1, 7, BOTH, {{3, 3}, {66, 70}}},
      {64, 3, 1, 0, 0, BOTH, {{5, 5}, {9, 13}}},
      {80, 1, 1, 1, 7, BOTH, {{3, 3}, {18, 20}}},
      {128, 1, 1, 1, 7, BOTH, {{3, 3}, {18, 20}}},
      {200, 1, 1, 0, 0, FP32, {{3, 3}, {5, 9}}})
// clang-format on

static void run_attention_cases(void) {
    RUN(packed_documents_match_the_reference);
    RUN(fewer_queries_than_keys_match_the_reference);
    RUN(causal_offsets_match_the_reference);
    RUN(aligned_rows_match_the_reference);
    RUN(rows_of_many_tiles_match_the_reference);
    RUN(heads_that_share_keys_match_the_reference);
    RUN(documents_without_queries_or_keys_match_the_reference);
    RUN(head_sizes_match_the_reference);
}
