// test_attention.c - attention of packed documents, forward and backward, of every table under test against the
// reference table; see attention_checks.h for how near. Parts of an attention: test_attention_parts.c.
#include "test/attention_cases.h"

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
    Case c = {8, 2, 1, 1, 2, FP32, {{1, 1}, {2, 2}, {17, 17}, {65, 65}, {130, 130}}};
    for (int set_index = 0, n = tested_tables(tables); set_index < n; set_index++)
        for (int doc = 0; doc < 5; doc += SANITIZED ? 5 : 1) {
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

static int has_own(const Kernels* t, const Kernels* r) {
    return t->attention_forward != r->attention_forward && t->attention_backward != r->attention_backward;
}

int main(void) {
    claim_own_entries(has_own);
    run_attention_cases();
    run_claims();
    if (wants_cudnn()) RUN(cudnn_has_computed_cases);
    return test_done();
}
