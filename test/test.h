// test.h - a test program is a list of claims:
//
//   static void merging_restores_the_text(void) { CHECK(merge(a, b) == c); }
//   int main(void) { RUN(merging_restores_the_text); return test_done(); }
//
// A failed CHECK prints file, line, expression and values, and lets the claim go on; NaN is never close. SKIP("why")
// ends a claim that this machine cannot try. test_done prints the closing line that test/run.sh adds up.
#pragma once
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int test_failures_in_claim, test_passed, test_failed, test_skipped;
static const char* test_skip_reason;

#define CHECK(condition)                                                                                \
    do {                                                                                                \
        if (!(condition)) {                                                                             \
            test_failures_in_claim++;                                                                   \
            if (test_failures_in_claim < 10) printf("    %s:%d: %s\n", __FILE__, __LINE__, #condition); \
        }                                                                                               \
    } while (0)

// |a - b| <= tolerance; false when either is NaN.
#define CHECK_CLOSE(a, b, tolerance)                                                                                   \
    do {                                                                                                               \
        double a_ = (a), b_ = (b), tolerance_ = (tolerance);                                                           \
        if (!(fabs(a_ - b_) <= tolerance_)) {                                                                          \
            test_failures_in_claim++;                                                                                  \
            if (test_failures_in_claim < 10)                                                                           \
                printf("    %s:%d: %s = %.9g, %s = %.9g, differ by %.3g > %.3g\n", __FILE__, __LINE__, #a, a_, #b, b_, \
                       fabs(a_ - b_), tolerance_);                                                                     \
        }                                                                                                              \
    } while (0)

#define CHECK_STRING(found, expected)                                                                            \
    do {                                                                                                         \
        const char *found_ = (found), *expected_ = (expected);                                                   \
        if (strcmp(found_, expected_) != 0) {                                                                    \
            test_failures_in_claim++;                                                                            \
            printf("    %s:%d: %s is \"%s\", expected \"%s\"\n", __FILE__, __LINE__, #found, found_, expected_); \
        }                                                                                                        \
    } while (0)

#define SKIP(reason)               \
    do {                           \
        test_skip_reason = reason; \
        return;                    \
    } while (0)

// TEST_ONLY=part of a name: only such claims run. RUN_AS is for claims of a table: a name, and what to do.
#define RUN(claim) RUN_AS(#claim, claim())
#define RUN_AS(name, statement)                                                                           \
    do {                                                                                                  \
        const char* name_ = (name);                                                                       \
        if (getenv("TEST_ONLY") && !strstr(name_, getenv("TEST_ONLY"))) break;                            \
        test_failures_in_claim = 0;                                                                       \
        test_skip_reason = NULL;                                                                          \
        statement;                                                                                        \
        if (test_failures_in_claim) test_failed++, printf("  FAILED  %s\n", name_);                       \
        else if (test_skip_reason) test_skipped++, printf("  skipped %s: %s\n", name_, test_skip_reason); \
        else test_passed++, printf("  ok      %s\n", name_);                                              \
        fflush(stdout);                                                                                   \
    } while (0)

static int test_done(void) {
    printf("%d passed, %d failed", test_passed, test_failed);
    if (test_skipped) printf(", %d skipped", test_skipped);
    printf("\n");
    return test_failed || test_passed + test_skipped == 0;
}
