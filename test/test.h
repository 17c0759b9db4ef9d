// test.h - a test program is a list of claims, which run in the order in which they stand:
//
//   CLAIM(merging_restores_the_text) { CHECK(merge(a, b) == c); }
//   int main(void) { return test_main(); }
//
// A failed CHECK prints file, line, expression and values, and lets the claim go on; NaN is never close. SKIP("why")
// ends a claim that this machine cannot try. test_done prints the closing line that test/run.sh adds up.
#pragma once
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int test_failures_in_claim, test_passed, test_failed, test_skipped;
static const char* test_skip_reason;
static void (*test_context)(void);  // NULL, or prints what a failed CHECK is about: program.h has one

__attribute__((format(printf, 3, 4))) static inline void test_fail(const char* file, int line, const char* format,
                                                                   ...) {
    va_list args;
    if (++test_failures_in_claim < 10) {
        printf("    %s:%d: ", file, line);
        va_start(args, format);
        vprintf(format, args);
        va_end(args);
        printf("\n");
    }
    if (test_context) test_context();
}
#define TEST_FAIL(...) test_fail(__FILE__, __LINE__, __VA_ARGS__)

#define CHECK(condition)                               \
    do {                                               \
        if (!(condition)) TEST_FAIL("%s", #condition); \
    } while (0)

// |a - b| <= tolerance; false when either is NaN.
#define CHECK_CLOSE(a, b, tolerance)                                                                             \
    do {                                                                                                         \
        double a_ = (a), b_ = (b), tolerance_ = (tolerance);                                                     \
        if (!(fabs(a_ - b_) <= tolerance_))                                                                      \
            TEST_FAIL("%s = %.9g, %s = %.9g, differ by %.3g > %.3g", #a, a_, #b, b_, fabs(a_ - b_), tolerance_); \
    } while (0)

#define CHECK_STRING(found, expected)                                                                              \
    do {                                                                                                           \
        const char *found_ = (found), *expected_ = (expected);                                                     \
        if (strcmp(found_, expected_) != 0) TEST_FAIL("%s is \"%s\", expected \"%s\"", #found, found_, expected_); \
    } while (0)

#define SKIP(reason)               \
    do {                           \
        test_skip_reason = reason; \
        return;                    \
    } while (0)

// for (seed = first; seed < end; seed++), until one fails: then it is printed.
#define FOR_SEEDS(seed, first, end) for (uint64_t seed = (first); test_goes_on(seed, (first), (end)); seed++)
static inline int test_goes_on(uint64_t seed, uint64_t first, uint64_t end) {
    if (test_failures_in_claim && seed > first) printf("    seed %d\n", (int)seed - 1);
    return !test_failures_in_claim && seed < end;
}

// TEST_ONLY=part of a name: only such claims run. RUN is for a claim that runs more than once or under a condition,
// RUN_AS for claims of a table: a name, and what to do.
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

typedef struct TestClaim {
    const char* name;
    void (*check)(void);
} TestClaim;

enum { TEST_MOST_CLAIMS = 100 };
static TestClaim test_claims[TEST_MOST_CLAIMS];
static int test_n_claims;

static inline void test_add(const char* name, void (*check)(void)) {
    if (test_n_claims == TEST_MOST_CLAIMS) abort();
    test_claims[test_n_claims].name = name;
    test_claims[test_n_claims++].check = check;
}

// Adds itself to the list before main begins.
#define CLAIM(name)                                                                                       \
    static void name(void);                                                                               \
    __attribute__((constructor(1000 + __LINE__))) static void add_##name(void) { test_add(#name, name); } \
    static void name(void)

static inline void run_claims(void) {
    for (int i = 0; i < test_n_claims; i++) RUN_AS(test_claims[i].name, test_claims[i].check());
}

static inline int test_done(void) {
    printf("%d passed, %d failed", test_passed, test_failed);
    if (test_skipped) printf(", %d skipped", test_skipped);
    printf("\n");
    return test_failed || test_passed + test_skipped == 0;
}

static inline int test_main(void) {
    run_claims();
    return test_done();
}
