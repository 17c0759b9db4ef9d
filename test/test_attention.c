// test_attention.c - attention of packed documents, forward and backward, of every table under test against the
// reference table; see attention_checks.h for how near. Parts of an attention: test_attention_parts.c.
#include "test/attention_checks.h"

static void try_case(const Case* c, DType dt) { try_case_as(c, dt, 0); }

#define LENGTHS \
    {1, 1}, {2, 2}, {15, 15}, {16, 16}, {17, 17}, {63, 63}, {64, 64}, {65, 65}, {130, 130}, { 300, 300 }
#define SHORT_QUERIES \
    {1, 130}, {16, 17}, {63, 65}, {2, 15}, {65, 200}, {0, 5}, {64, 64}, { 17, 145 }

#define MISSING \
    {5, NONE}, {NONE, 5}, {3, 3}, {NONE, NONE}, {70, 2}, {NONE, 66}, {65, NONE}, {2, 70}, {66, 65}, { 1, NONE }

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

// Groups of 2 and of odd sizes, of one head for all; documents that threads split and that they do not, bf16 rows that
// tensor cores take (HS a multiple of 8, pads of 8) and that they do not.
static void heads_that_share_keys_match_the_reference(void) {
    static const Case cases[] = {
        {4, 2, 1, 0, {LENGTHS}},
        {16, 1, 1, 5, {SHORT_QUERIES}},
        {16, 2, 0, 8, {{3, 3}, {66, 70}, {1, 130}}},
        {64, 2, 1, 8, {{1, 1}, {63, 63}, {65, 65}, {129, 129}}},
        {128, 1, 1, 8, {{3, 3}, {66, 70}}},
        {8, 2, 1, 3, {{70, 70, -3}, {5, 9, -5}, {66, 40, 100}, {3, 200, 65}, {130, 20, -64}, {0, 7, 3}}},
        {4, 1, 1, 1, {{200, 200}}},
        {24, 2, 1, 2, {MISSING}}};
    static const int shared[] = {3, 4, 2, 2, 7, 3, 6, 2};
    for (any_order = 0; any_order <= TESTS_DEVICE; any_order++)
        for (int i = 0; i < COUNT(cases); i += SANITIZED ? 3 : 1)
            for (int dt = any_order ? DT_BF16 : DT_F32; dt <= DT_BF16; dt++)
                sharing = shared[i], try_case(&cases[i], (DType)dt);
    sharing = 1, any_order = 0;
}

// As they come from documents shorter than the number of chunks that they are cut into; and fewer keys than queries
// without an offset, where the first queries see none.
static void documents_without_queries_or_keys_match_the_reference(void) {
    static const Case cases[] = {{16, 2, 1, 3, {MISSING}},  {16, 2, 0, 3, {MISSING}},
                                 {64, 1, 1, 8, {MISSING}},  {64, 1, 0, 8, {MISSING}},
                                 {4, 1, 0, 1, {{9, NONE}}}, {4, 1, 1, 1, {{NONE, 9}, {NONE, 70}}}};
    static const Case with_offsets = {
        16, 2, 1, 3, {{5, NONE, 7}, {NONE, 5, -1}, {NONE, NONE, 9}, {6, NONE, -2}, {4, 3, 1}}};
    for (int i = 0; i < COUNT(cases); i++)
        for (int dt = DT_F32; dt <= DT_BF16; dt++) try_case(&cases[i], (DType)dt);
    for (int partial = 0; partial <= 1; partial++) try_case_as(&with_offsets, DT_F32, partial);
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

static void documents_do_not_see_each_other(void) {
    const Kernels* tables[CPU_ISAS];
    Case c = {8, 3, 1, 2, {LENGTHS}};
    for (int set_index = 0, n = tested_tables(tables); set_index < n; set_index++)
        for (int doc = 0; doc < 10; doc += SANITIZED ? 10 : 1) {
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
    RUN(heads_that_share_keys_match_the_reference);
    RUN(documents_without_queries_or_keys_match_the_reference);
    RUN(head_sizes_match_the_reference);
    RUN(scores_beyond_80_stay_finite_and_exact);
    RUN(documents_do_not_see_each_other);
    RUN(nan_reaches_every_query_that_sees_it);
    if (wants_cudnn()) RUN(cudnn_has_computed_cases);
    return test_done();
}
