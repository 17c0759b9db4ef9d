// test_attention.c - the fast attention of every table under test against the reference table.
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
// and with bf16 a result may round to either side of a border, which is one ulp, at most 2^-7 of its value.
#include "test/tables.h"

static const double E = 1.0 / (1 << 24);
enum { MOST_DOCS = 16, GUARD = 8 };

typedef struct Case {
    int HS, NH, causal, pad;    // pad: unused elements at the end of each row
    int lengths[MOST_DOCS][3];  // q_len, k_len; {0, 0} ends the list; causal offset, used when one is not 0
} Case;

typedef struct Tensor {  // (rows, width) in rows of ld elements, after GUARD elements and before as many
    char* bytes;
    size_t rows, ld, width;
    DType dt;
} Tensor;

static void* data(Tensor t) { return t.bytes + GUARD * dtype_bytes(t.dt); }
static size_t size_of(Tensor t);
static void* data_for(const Kernels* k, Tensor t) {
    return (char*)there(k, t.bytes, size_of(t)) + GUARD * dtype_bytes(t.dt);
}
static size_t size_of(Tensor t) { return (t.rows * t.ld + 2 * GUARD) * dtype_bytes(t.dt); }

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
    memset(t.bytes, 0xa5, size_of(t));  // garbage in outputs, and what must be left alone around rows
    return t;
}

static void fill(Tensor t, uint64_t seed, double scale) {
    for (size_t r = 0; r < t.rows; r++)
        for (size_t c = 0; c < t.width; c++) set(t, r, c, scale * random_normal(seed, r * t.width + c));
}

static double largest(Tensor t) {
    double most = 0;
    for (size_t r = 0; r < t.rows; r++)
        for (size_t c = 0; c < t.width; c++) most = fmax(most, fabs(get(t, r, c)));
    return most;
}

static double largest_norm(Tensor t, int HS) {
    double most = 0;
    for (size_t r = 0; r < t.rows; r++)
        for (size_t c = 0; c < t.width; c += HS) {
            double sum = 0;
            for (int j = 0; j < HS; j++) sum += get(t, r, c + j) * get(t, r, c + j);
            most = fmax(most, sqrt(sum));
        }
    return most;
}

static void check_untouched_around(Tensor t) {
    size_t width = t.width * dtype_bytes(t.dt), ld = t.ld * dtype_bytes(t.dt), guard = GUARD * dtype_bytes(t.dt),
           bad = 0;
    for (size_t i = 0; i < size_of(t); i++) {
        int inside = i >= guard && i < guard + t.rows * ld && (i - guard) % ld < width;
        bad += !inside && (unsigned char)t.bytes[i] != 0xa5;
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

typedef struct Result {
    Tensor out, lse, dq, dk, dv;
} Result;

static Problem problem(const Case* c, DType dt) {
    Problem p = {.dt = dt};
    int n = 0;
    for (; n < MOST_DOCS && c->lengths[n][1]; n++) {
        p.cu_q[n + 1] = p.cu_q[n] + at_most(c->lengths[n][0], 130);
        p.cu_k[n + 1] = p.cu_k[n] + at_most(c->lengths[n][1], 130);
        p.offsets[n] = c->lengths[n][2];
        p.has_offsets |= p.offsets[n] != 0;
        p.longest = MAX(p.longest, c->lengths[n][1]);
    }
    size_t width = (size_t)c->NH * c->HS;
    p.q = tensor(p.cu_q[n], width, 2 * c->pad, dt), p.dout = tensor(p.cu_q[n], width, 3 * c->pad, dt);
    p.k = tensor(p.cu_k[n], width, c->pad, dt), p.v = tensor(p.cu_k[n], width, c->pad, dt);
    fill(p.q, 1, 1), fill(p.k, 2, 1), fill(p.v, 3, 1), fill(p.dout, 4, 1);
    p.a = (Attention){.n_docs = n,
                      .Nq = p.cu_q[n],
                      .Nk = p.cu_k[n],
                      .NH = c->NH,
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
    return a;
}

static Result result(const Problem* p) {
    size_t width = p->q.width;
    return (Result){tensor(p->q.rows, width, p->dout.ld - width, p->dt), tensor(p->a.NH, p->q.rows, 0, DT_F32),
                    tensor(p->q.rows, width, p->q.ld - width, p->dt), tensor(p->k.rows, width, p->k.ld - width, p->dt),
                    tensor(p->k.rows, width, p->k.ld - width, p->dt)};
}

static void free_problem(Problem p) { free(p.q.bytes), free(p.k.bytes), free(p.v.bytes), free(p.dout.bytes); }
static void free_result(Result r) {
    free(r.out.bytes), free(r.lse.bytes), free(r.dq.bytes), free(r.dk.bytes), free(r.dv.bytes);
}

static int any_order;  // the table may add dq in any order

static int open_table(const Kernels* table, const Problem* p, int threads) {
    char err[ERR_BYTES];
    int C = p->a.NH * p->a.HS;
    KernelLimits limits = {.N = (int)MAX(p->k.rows, p->q.rows), .C = C, .OC = 4 * C, .NH = p->a.NH, .HS = p->a.HS};
    limits.context = p->longest, limits.threads = threads, limits.dt = p->dt, limits.attention = ATTENTION_OWN;
    limits.fast_backward = any_order;
    return table->open(&limits, err, sizeof err);
}

// Forward and backward; the backward pass reads out and lse of `from`, so that errors of the two do not add.
static void run(Result* r, const Kernels* table, Problem* p, const Result* from, int threads) {
    CHECK(open_table(table, p, threads) == 0);
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

// ---- claims; each goes through every table under test

// What tensor cores multiply is bf16: probabilities and dS are rounded to 2^-9 of themselves.
static double rounded_factors(const Problem* p) {
#ifdef TEST_DEVICE
    return p->dt == DT_BF16 ? 1.0 / 512 : 0;
#else
    return (void)p, 0;
#endif
}

static void compare_with_reference(const Problem* p, const Result* found, const Result* expected, double dS) {
    double r = 2 * dS + (p->longest + 8) * E + rounded_factors(p), HS = p->a.HS, scale = p->a.scale;
    double g = largest_norm(p->dout, p->a.HS) * fmax(largest_norm(p->v, p->a.HS), largest_norm(expected->out, p->a.HS));
    double t = (2 * r + 2 * (HS + 3) * E) * 2 * g;
    check_close(found->out, expected->out, r * largest(p->v));
    check_close(found->lse, expected->lse, dS + 4 * E);
    check_close(found->dq, expected->dq, scale * largest(p->k) * t);
    check_close(found->dk, expected->dk, 16 * scale * largest(p->q) * t);
    check_close(found->dv, expected->dv, 16 * r * largest(p->dout));
}

static void try_case(const Case* c, DType dt) {
    const Kernels* tables[CPU_ISAS];
    Problem p = problem(c, dt);
    Result expected = result(&p);
    run(&expected, &cpu_reference_kernels, &p, &expected, 1);
    double A = p.a.scale * largest_norm(p.q, c->HS) * largest_norm(p.k, c->HS);
    for (int i = 0, n = tested_tables(tables); i < n; i++) {
        Result first = {0};
        for (int threads = 1; threads <= most_threads(); threads++) {
            Result found = result(&p);
            run(&found, tables[i], &p, &expected, threads);
            if (threads == 1) {
                compare_with_reference(&p, &found, &expected, (c->HS + 3) * E * A);
                first = found;
                continue;
            }
            if (!any_order) CHECK(all_same(&found, &first));
            free_result(found);
        }
        free_result(first);
    }
    free_result(expected), free_problem(p);
}

#define LENGTHS \
    {1, 1}, {2, 2}, {15, 15}, {16, 16}, {17, 17}, {63, 63}, {64, 64}, {65, 65}, {130, 130}, { 300, 300 }
#define SHORT_QUERIES \
    {1, 130}, {16, 17}, {63, 65}, {2, 15}, {65, 200}, {0, 5}, {64, 64}, { 17, 145 }

static void packed_documents_match_the_reference(void) {
    static const Case cases[] = {{4, 3, 1, 0, {LENGTHS}}, {16, 1, 1, 5, {LENGTHS}}, {4, 1, 0, 3, {LENGTHS}}};
    try_case(&cases[0], DT_F32), try_case(&cases[1], DT_BF16), try_case(&cases[2], DT_F32);
}

static void fewer_queries_than_keys_match_the_reference(void) {
    static const Case cases[] = {
        {16, 1, 1, 3, {SHORT_QUERIES}}, {4, 3, 0, 1, {SHORT_QUERIES}}, {4, 3, 1, 0, {SHORT_QUERIES}}};
    try_case(&cases[0], DT_F32), try_case(&cases[1], DT_F32), try_case(&cases[2], DT_BF16);
}

// Keys that no query sees, queries that see none, and those that see all; pieces of a document as on a ring of ranks.
static void causal_offsets_match_the_reference(void) {
    static const Case cases[] = {{16,
                                  2,
                                  1,
                                  3,
                                  {{70, 70, -3},
                                   {5, 9, -5},
                                   {66, 40, 100},
                                   {64, 64, 0},
                                   {3, 200, 65},
                                   {130, 20, -64},
                                   {0, 7, 3},
                                   {9, 130, -200},
                                   {1, 1, 0}}}};
    for (int dt = DT_F32; dt <= DT_BF16; dt++) try_case(&cases[0], (DType)dt);
}

// Rows that begin at multiples of 16 bytes, as tensor cores want them: bf16, pads of 8.
static void aligned_rows_match_the_reference(void) {
    static const Case cases[] = {
        {32, 2, 1, 8, {LENGTHS}},
        {64, 2, 1, 8, {{1, 1}, {2, 2}, {63, 63}, {64, 64}, {65, 65}, {127, 127}, {129, 129}}},
        {64, 1, 0, 8, {{3, 3}, {66, 70}}},
        {128, 1, 1, 8, {{3, 3}, {66, 70}, {97, 97}}},
        {40, 1, 1, 0, {SHORT_QUERIES}},
        {64, 2, 1, 8, {{70, 70, -3}, {5, 9, -5}, {66, 40, 100}, {3, 130, 65}, {130, 20, -64}, {9, 130, -200}}}};
    static const Case watched = {64, 1, 1, 8, {{66, 70}, {3, 3}}};
    for (any_order = 0; any_order <= 1; any_order++)
        for (int i = 0; i < (WATCHED ? 1 : COUNT(cases)); i++) try_case(WATCHED ? &watched : &cases[i], DT_BF16);
    any_order = 0;
}

static void head_sizes_match_the_reference(void) {
    static const int sizes[] = {1, 3, 8, 16, 17, 24, 33, 64, 80, 128};
    for (int i = 0; i < COUNT(sizes); i++) {
        Case c = {sizes[i], 1, 1, 7, {{3, 3}, {66, 70}}};  // the reference takes time in HS squared
        if (sizes[i] > 64) c = (Case){sizes[i], 1, 1, 7, {{3, 3}, {18, 20}}};
        try_case(&c, DT_BF16);
        c = (Case){sizes[i], 3, 0, 0, {{5, 5}, {9, 13}}};
        try_case(&c, DT_F32);
    }
}

// q and k are small integers and scale is 1, so scores are exact in fp32, and so are their differences: dS = 0.
static void scores_beyond_80_stay_finite_and_exact(void) {
    const Kernels* tables[CPU_ISAS];
    Case c = {16, 1, 1, 0, {{130, 130}, {40, 90}}};
    for (int dt = DT_F32; dt <= DT_BF16; dt++) {
        Problem p = problem(&c, (DType)dt);
        double highest = 0, lowest = 0;
        p.a.scale = 1;
        for (size_t i = 0; i < p.q.rows * p.q.width; i++) set(p.q, i / 16, i % 16, (double)(hash64(i) % 9) - 4);
        for (size_t i = 0; i < p.k.rows * p.k.width; i++) set(p.k, i / 16, i % 16, (double)(hash64(~i) % 9) - 4);
        for (size_t i = 0; i < 130 * 130; i++) {
            double score = 0;
            for (int j = 0; j < 16; j++) score += get(p.q, i / 130, j) * get(p.k, i % 130, j);
            highest = fmax(highest, score), lowest = fmin(lowest, score);
        }
        CHECK(highest >= 80 && lowest <= -80);
        Result expected = result(&p);
        run(&expected, &cpu_reference_kernels, &p, &expected, 1);
        for (int i = 0, n = tested_tables(tables); i < n; i++) {
            Result found = result(&p);
            run(&found, tables[i], &p, &expected, 2);
            // exp(s - lse) with lse near 100 rounded to fp32 is off by 100 e: the gradients see that as dS.
            compare_with_reference(&p, &found, &expected, 128 * E);
            for (size_t r = 0; r < p.q.rows; r++) CHECK(fabs(get(found.out, r, 0)) <= largest(p.v) * (1 + 1.0 / 128));
            free_result(found);
        }
        free_result(expected), free_problem(p);
    }
}

// Rows [begin, end) of a and b differ somewhere, all others are the same bits.
static void check_differs_only_in(Tensor a, Tensor b, size_t begin, size_t end, int some) {
    size_t inside = 0, outside = 0, bytes = dtype_bytes(a.dt);
    for (size_t r = 0; r < a.rows; r++) {
        int differs =
            memcmp((char*)data(a) + r * a.ld * bytes, (char*)data(b) + r * b.ld * bytes, a.width * bytes) != 0;
        if (r >= begin && r < end) inside += differs;
        else outside += differs;
    }
    CHECK(outside == 0);
    CHECK(!some || inside > 0);
}

static void documents_do_not_see_each_other(void) {
    const Kernels* tables[CPU_ISAS];
    Case c = {8, 3, 1, 2, {LENGTHS}};
    for (int set_index = 0, n = tested_tables(tables); set_index < n; set_index++)
        for (int doc = 0; doc < 10; doc += WATCHED ? 10 : 1) {
            Problem p = problem(&c, DT_F32);
            Result before = result(&p), after = result(&p);
            run(&before, tables[set_index], &p, &before, 2);
            size_t q0 = p.cu_q[doc], q1 = p.cu_q[doc + 1];
            Tensor inputs[] = {p.q, p.k, p.v, p.dout};
            double poison = doc % 2 ? NAN : 1e6;
            for (int i = 0; i < COUNT(inputs); i++)
                for (size_t col = 0; col < inputs[i].width; col++)
                    set(inputs[i], q1 - 1, col, poison), set(inputs[i], q0, col, poison);
            run(&after, tables[set_index], &p, &after, 2);
            check_differs_only_in(after.out, before.out, q0, q1, 1);
            check_differs_only_in(after.dq, before.dq, q0, q1, doc % 2);  // one key: dq = dk = 0 whatever the values
            check_differs_only_in(after.dk, before.dk, q0, q1, doc % 2);
            check_differs_only_in(after.dv, before.dv, q0, q1, 1);
            free_problem(p), free_result(before), free_result(after);
        }
}

// In a causal document the last token is seen by nobody else, a NaN in q, dout or k of an earlier one by those after
// it.
static void nan_reaches_every_query_that_sees_it(void) {
    const Kernels* tables[CPU_ISAS];
    Case c = {16, 1, 1, 0, {{100, 100}}};
    for (int i = 0, n = tested_tables(tables); i < n; i++) {
        Problem p = problem(&c, DT_F32);
        Result r = result(&p);
        set(p.k, 70, 3, (double)nanf("3"));  // with bits that arithmetic on the exponent would carry into the sign
        run(&r, tables[i], &p, &r, 2);
        for (size_t row = 0; row < 100; row++) {
            CHECK(isnan(get(r.out, row, 0)) == (row >= 70));
            CHECK(isnan(get(r.dq, row, 0)) == (row >= 70));
        }
        free_problem(p), free_result(r);
    }
}

#ifndef TEST_DEVICE
static CpuIsa isa;
static void instruction_set_is_tested_here(void) {
    if (!cpu_kernels(isa)) SKIP("this processor or this build lacks it");
    CHECK(cpu_kernels(isa)->attention_forward != cpu_reference_kernels.attention_forward);
    CHECK(cpu_kernels(isa)->attention_backward != cpu_reference_kernels.attention_backward);
}
#endif

int main(void) {
#ifndef TEST_DEVICE
    for (isa = CPU_GENERIC; isa < CPU_ISAS; isa++) {
        printf("  %s:\n", cpu_isa_names[isa]);
        RUN(instruction_set_is_tested_here);
    }
#endif
    RUN(packed_documents_match_the_reference);
    RUN(fewer_queries_than_keys_match_the_reference);
    RUN(causal_offsets_match_the_reference);
    RUN(aligned_rows_match_the_reference);
    RUN(head_sizes_match_the_reference);
    RUN(scores_beyond_80_stay_finite_and_exact);
    RUN(documents_do_not_see_each_other);
    RUN(nan_reaches_every_query_that_sees_it);
    return test_done();
}
