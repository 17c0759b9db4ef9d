// attention_cases.h - the shapes of attention that every table is tried with, as claims: each case is a row.
#pragma once
#include "test/attention_checks.h"

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
            any_order = TESTS_DEVICE && cases[i].kinds & ANY;
            if (any_order) try_case_as(&cases[i], DT_BF16, partial);
            any_order = 0;
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
      {64, 1, 1, 1, 8, BF16 | ANY | PART, {{66, 70}, {3, 3}}},
      {32, 2, 1, 1, 8, BF16 | ANY, {LENGTHS}},
      {32, 1, 1, 1, 8, BF16 | ANY | PART, {{1, 1}, {63, 63}, {65, 65}, {129, 129}}},
      {64, 1, 1, 1, 8, BF16 | ANY, {{1, 1}, {2, 2}, {63, 63}, {64, 64}, {65, 65}, {127, 127}, {129, 129}}},
      {64, 1, 1, 0, 8, BF16 | ANY | PART, {{3, 3}, {66, 70}, {NONE, 9}, {9, NONE}}},
      {128, 1, 1, 1, 8, BF16 | ANY | PART, {{3, 3}, {66, 97}}},
      {40, 1, 1, 1, 0, BF16 | ANY, {SHORT_QUERIES}},
      {64, 1, 1, 1, 8, BF16 | ANY | PART,
       {{70, 70, -3}, {5, 9, -5}, {66, 40, 100}, {3, 130, 65}, {130, 20, -64}, {9, 130, -200}}})

// Groups of 2 and of odd sizes, of one head for all; documents that threads split and that they do not, bf16 rows that
// tensor cores take and that they do not.
CASES(heads_that_share_keys_match_the_reference,
      {4, 2, 3, 1, 0, BOTH, {FEW_LENGTHS}},
      {4, 1, 3, 0, 1, BOTH | PART, {{1, 130}, {63, 65}, {NONE, 5}, {65, 65}, {7, NONE}}},
      {16, 2, 2, 0, 8, BOTH, {{3, 3}, {66, 70}, {1, 130}}},
      {64, 1, 2, 1, 8, BF16 | ANY, {{1, 1}, {63, 63}, {65, 65}, {129, 129}}},
      {128, 1, 2, 1, 8, BF16, {{3, 3}, {66, 70}}},
      {8, 2, 3, 1, 3, BOTH | PART, {{70, 70, -3}, {5, 9, -5}, {66, 40, 100}, {3, 130, 65}, {130, 20, -64}, {0, 7, 3}}},
      {4, 1, 6, 1, 1, BOTH, {{200, 200}}},
      {24, 2, 2, 1, 2, BOTH, {MISSING}},
      {32, 2, 3, 1, 8, BF16 | ANY | PART, {{70, 70, -3}, {66, 40, 100}, {9, 70, -200}}})

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
    RUN(heads_that_share_keys_match_the_reference);
    RUN(documents_without_queries_or_keys_match_the_reference);
    RUN(head_sizes_match_the_reference);
}
