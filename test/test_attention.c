// test_attention.c - attention of packed documents, forward and backward, of every table under test against the
// reference table, also as a part of a larger attention; see attention_checks.h for how near. What is made of all
// parts: test_group_attention.c.
#include "test/attention_checks.h"

// q and k are small integers and scale is 1, so scores are exact in fp32, and so are their differences: dS = 0.
CLAIM(scores_beyond_80_stay_finite_and_exact) {
    const Kernels* tables[CPU_ISAS];
    Case c = {16, 1, 1, 1, 0, BOTH, {{130, 130}, {40, 90}}};
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
        run(&expected, cpu_kernels(CPU_REFERENCE), &p, &expected, 1);
        for (int i = 0, n = tested_tables(tables); i < n; i++) {
            Result found = result(&p);
            run(&found, tables[i], &p, &expected, 2);
            // exp(s - lse) with lse near 100 rounded to fp32 is off by 100 e: the gradients see that as dS.
            compare_with_reference(&p, tables[i], &found, &expected, 128 * E);
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

CLAIM(documents_do_not_see_each_other) {
    const Kernels* tables[CPU_ISAS];
    Case cases[] = {{8, 2, 1, 1, 2, FP32, {{1, 1}, {2, 2}, {17, 17}, {65, 65}, {130, 130}}},
                    {64, 1, 1, 1, 8, BF16, {{2, 2}, {65, 65}, {130, 130}}}};
    for (int i = 0, n = tested_tables(tables); i < 2 * n; i++)
        for (int doc = 0, set_index = i / 2; doc < 5 - i % 2 * 2; doc += SANITIZED ? 5 : 1) {
            Problem p = problem(&cases[i % 2], i % 2 ? DT_BF16 : DT_F32);
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
CLAIM(nan_reaches_every_query_that_sees_it) {
    const Kernels* tables[CPU_ISAS];
    Case c = {16, 1, 1, 1, 0, FP32, {{100, 100}}};
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

// The reference rounds a whole attention once: as a part it leaves what was rounded.
CLAIM(the_reference_rounds_what_a_part_leaves) {
    static const Case c = {8, 2, 1, 1, 3, BOTH, {{5, 5}, {9, 17}}};
    for (int dt = DT_F32; dt <= DT_BF16; dt++) {
        Problem p = problem(&c, (DType)dt);
        Result whole = result(&p);
        run(&whole, cpu_kernels(CPU_REFERENCE), &p, &whole, 1);
        p.a.partial = 1;
        Result part = result(&p);
        fill(part.dq, 0, 0), fill(part.dk, 0, 0), fill(part.dv, 0, 0);
        run(&part, cpu_kernels(CPU_REFERENCE), &p, &whole, 1);
        Tensor wholes[] = {whole.out, whole.lse, whole.dq, whole.dk, whole.dv},
               parts[] = {part.out, part.lse, part.dq, part.dk, part.dv};
        for (int i = 0; i < COUNT(wholes); i++)
            for (size_t r = 0; r < wholes[i].rows; r++)
                for (size_t col = 0; col < wholes[i].width; col++) {
                    float x = (float)get(parts[i], r, col);
                    CHECK(get(wholes[i], r, col) == (wholes[i].dt == DT_BF16 ? bf16_to_float(bf16_from_float(x)) : x));
                }
        free_result(whole), free_result(part), free_problem(p);
    }
}

// Documents of one token: out is v, dv the sum of dout over the heads that share it, and each is an item of work of its
// own. KernelLimits.spread makes room.
static void try_group_of_ranks(int sharing) {
    enum { SPREAD = 6, KV = 2, ALL_KV = 7 };  // ranks have one or two of 7 key/value heads
    const Kernels* tables[CPU_ISAS];
#ifdef TEST_DEVICE
    int N = at_most(100, 20), NH = KV * sharing;
#else
    int N = at_most(20000, 100), NH = KV * sharing;
#endif
    size_t rows = (size_t)N * SPREAD;
    int* cu = (int*)malloc((rows + 1) * sizeof(int));
    for (size_t i = 0; i <= rows; i++) cu[i] = (int)i;
    Tensor q = tensor(rows, NH, 0, DT_F32), v = tensor(rows, KV, 0, DT_F32), dout = tensor(rows, NH, 0, DT_F32),
           out = tensor(rows, NH, 0, DT_F32), dv = tensor(rows, KV, 0, DT_F32);
    fill(q, 1, 1), fill(v, 3, 1), fill(dout, 2, 1), fill(dv, 0, 0);
    for (size_t r = 0; r < rows; r++)
        for (int h = 0; h < NH; h++)
            set(out, r, h, get(v, r, h / sharing)), set(dv, r, h / sharing, get(dv, r, h / sharing) + get(dout, r, h));
    KernelLimits limits = {.N = N, .spread = SPREAD, .NH = ALL_KV * sharing, .NKV = ALL_KV, .HS = 1, .context = 4};
    limits.C = limits.OC = 28, limits.threads = 2, limits.attention = ATTENTION_OWN;
    for (int i = 0, n = tested_tables(tables); i < n; i++) {
        const Kernels* k = tables[i];
        char err[ERR_BYTES];
        size_t widths[] = {NH, NH, NH, KV, KV};
        Tensor y[5];
        for (int j = 0; j < 5; j++) y[j] = tensor(rows, widths[j], 0, DT_F32);
        CHECK(k->open(&limits, err) == 0);
        Attention a = {data_for(k, q), data_for(k, v), data_for(k, v), .Nq = (int)rows, .Nk = (int)rows};
        a.cu_q = a.cu_k = (int*)there(k, cu, (rows + 1) * sizeof(int));
        a.ldq = a.ldo = a.NH = NH, a.ldkv = a.NKV = KV, a.n_docs = (int)rows, a.HS = 1, a.causal = 1, a.scale = 1;
        k->attention_forward(data_for(k, y[0]), (float*)data_for(k, y[1]), &a, DT_F32, NULL);
        k->attention_backward(data_for(k, y[2]), data_for(k, y[3]), data_for(k, y[4]), data_for(k, dout),
                              data_for(k, y[0]), (float*)data_for(k, y[1]), &a, DT_F32, NULL);
        bring_back();
        k->close();
        check_close(y[0], out, 0);  // 4 roundings: of p, the sum and the quotient
        check_close(y[4], dv, (sharing - 1) * 8 * E * largest(dout));
        for (int j = 0; j < 5; j++) free(y[j].bytes);
    }
    free(cu), free(q.bytes), free(v.bytes), free(dout.bytes), free(out.bytes), free(dv.bytes);
}

CLAIM(a_group_of_ranks_brings_more_tokens_of_fewer_heads) {
    try_group_of_ranks(1);
    try_group_of_ranks(4);
}

enum { ROW = 200, ROW_HS = 64 };

// out (ROW, HS) of two documents, the first of `first` tokens, which stand where those of the call before stood.
static void forward_row(bf16* out, const Kernels* k, char* memory, uint64_t row, int first) {
    size_t bytes = ROW * ROW_HS * sizeof(bf16);
    int cu[3] = {0, first, ROW};
    bf16 *x = (bf16*)memory, *y = x + ROW * ROW_HS;
    float* lse = (float*)(y + ROW * ROW_HS);
    int* there = (int*)(lse + ROW);
    k->upload(there, cu, sizeof cu, NULL);
    Attention a = {x, x, x, there, there, .Nq = ROW, .Nk = ROW, .ldq = ROW_HS, .ldkv = ROW_HS, .ldo = ROW_HS};
    a.n_docs = 2, a.NH = a.NKV = 1, a.HS = ROW_HS, a.causal = 1, a.scale = 0.125f, a.row = row;
    k->attention_forward(y, lse, &a, DT_BF16, NULL);
    k->download(out, y, bytes, NULL);
}

// A call with the number of the row before does not look at its documents again, where a table keeps what it made.
CLAIM(what_is_made_of_a_rows_documents_is_kept_for_that_row_alone) {
    const Kernels* tables[CPU_ISAS];
    static bf16 x[ROW * ROW_HS], out[5][ROW * ROW_HS];
    char err[ERR_BYTES];
    for (int i = 0; i < COUNT(x); i++) x[i] = bf16_from_float((float)random_normal(3, (uint64_t)i));
    for (int i = 0, n = tested_tables(tables); i < n; i++) {
        const Kernels* k = tables[i];
        KernelLimits limits = {
            .N = ROW, .C = ROW_HS, .OC = ROW_HS, .NH = 1, .NKV = 1, .HS = ROW_HS, .context = ROW, .threads = 1};
        limits.dt = DT_BF16, limits.attention = attention_under_test(ROW_HS, DT_BF16);
        CHECK(k->open(&limits, err) == 0);
        char* memory = (char*)k->alloc(2 * sizeof x + (ROW + 4) * sizeof(float));
        k->upload(memory, x, sizeof x, NULL);
        forward_row(out[0], k, memory, 5, 64);
        forward_row(out[1], k, memory, 5, 64);
        forward_row(out[2], k, memory, 6, 130);
        forward_row(out[3], k, memory, 0, 130);
        forward_row(out[4], k, memory, 0, 64);
        CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0 && memcmp(out[0], out[4], sizeof out[0]) == 0);
        CHECK(memcmp(out[2], out[3], sizeof out[0]) == 0 && memcmp(out[0], out[2], sizeof out[0]) != 0);
#ifdef TEST_DEVICE
        forward_row(out[1], k, memory, 7, 130);
        forward_row(out[1], k, memory, 7, 64);  // never so in a run: shows that the list was kept
        CHECK(memcmp(out[1], out[2], sizeof out[0]) == 0);
#endif
        k->free_memory(memory);
        k->close();
    }
}

// Nothing else than what every run tries (kernels/cuda/attention_trial.cu), of several shapes: rows, longest document,
// query and key/value heads, head size.
static inline void cudnns_pass_agrees_with_our_own(void) {
    static const int shapes[][5] = {{8192, 1024, 12, 12, 64}, {16384, 16384, 16, 8, 128}, {16384, 8192, 32, 8, 64},
                                    {3001, 700, 6, 2, 32},    {1000, 1000, 4, 1, 16},     {4096, 40, 2, 2, 128}};
    const Kernels* tables[CPU_ISAS];
    static char err[ERR_BYTES];
    for (int i = 0, n = tested_tables(tables); i < COUNT(shapes) * n; i++) {
        const int* s = shapes[i / n];
        KernelLimits limits = {.N = s[0], .context = s[1], .NH = s[2], .NKV = s[3], .HS = s[4], .spread = 1};
        limits.C = limits.OC = 4 * s[2] * s[4], limits.dt = DT_BF16, limits.attention = ATTENTION_CUDNN;
        int refused = tables[i % n]->open(&limits, err);
        if (refused && i == 0 && !strstr(err, "wrong") && !strstr(err, "failed")) SKIP(err);
        CHECK(!refused);
        printf("    %d x %d, heads %d / %d of %d: %s\n", s[0], s[1], s[2], s[3], s[4],
               refused ? err : tables[i % n]->choices());
        if (!refused) tables[i % n]->close();
    }
}

static int has_own(const Kernels* t, const Kernels* r) {
    return t->attention_forward != r->attention_forward && t->attention_backward != r->attention_backward;
}

// Leaves a device that has no wgmma to the other kernels, and says so.
static void ask_for_wgmma(void) {
    const Kernels* tables[CPU_ISAS];
    char err[ERR_BYTES];
    KernelLimits limits = {.N = 64, .C = 64, .OC = 64, .NH = 1, .NKV = 1, .HS = 64, .context = 64, .spread = 1};
    limits.dt = DT_BF16, limits.attention = attention_under_test(64, DT_BF16);
    if (limits.attention != ATTENTION_WGMMA || !tested_tables(tables)) return;
    if (tables[0]->open(&limits, err)) test_skipped++, unsetenv("TEST_ATTENTION"), printf("  skipped wgmma: %s\n", err);
    else tables[0]->close();
}

int main(void) {
    ask_for_wgmma();
    claim_own_entries(has_own);
    run_attention_cases();
    run_claims();
    if (getenv("TEST_ATTENTION") && !strcmp(getenv("TEST_ATTENTION"), "cudnn")) RUN(cudnns_pass_agrees_with_our_own);
    return test_done();
}
