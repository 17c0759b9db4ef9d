// test_attention_amx.c - attention on emulated AMX tiles, so that every processor with AVX-512 can check it.
//
// It links a copy of attention_pairs.c that was compiled with TILES_EMULATED, and has scratch memory
// of its own (test/exact_scratch.h).
#define TEST_TABLE emulated
#include "test/attention_checks.h"

#define EXACT_FAMILY attention_pairs_amx
#include "test/exact_scratch.h"

static const Kernels* emulated(void) {
    static Kernels k;
    k = cpu_reference_kernels;
    k.name = "cpu amx";
    k.open = open_exact;
    k.close = close_exact;
    attention_pairs_amx.install(&k);
    return &k;
}

static int fp32_calls;
static void count_call(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    (void)out, (void)lse, (void)a, (void)dt, (void)s;
    fp32_calls++;
}

static void try_all(const Case* cases, int n, int partial) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bf16")) SKIP("the processor lacks avx512_bf16");
    for (int i = 0; i < n; i++) try_case_as(&cases[i], DT_BF16, partial);
}

static void documents_of_all_lengths_match_the_reference(void) {
    static const Case cases[] = {
        {16,
         2,
         1,
         5,
         {{1, 1}, {2, 2}, {15, 15}, {16, 16}, {17, 17}, {33, 33}, {63, 63}, {64, 64}, {65, 65}, {300, 300}}},
        {8, 1, 0, 3, {{1, 1}, {31, 31}, {97, 97}, {66, 70}}},
        {16, 1, 1, 3, {{1, 130}, {16, 17}, {63, 65}, {65, 200}, {0, 5}, {70, 2}}}};
    try_all(cases, COUNT(cases), 0);
}

static void head_sizes_match_the_reference(void) {
    static const Case cases[] = {{3, 1, 1, 7, {{3, 3}, {66, 70}}},  {32, 1, 1, 0, {{65, 65}, {97, 97}}},
                                 {33, 1, 1, 7, {{66, 70}}},         {64, 2, 1, 8, {{65, 65}, {129, 129}}},
                                 {80, 1, 0, 1, {{5, 5}, {18, 20}}}, {128, 1, 1, 8, {{3, 3}, {66, 70}}}};
    try_all(cases, COUNT(cases), 0);
}

static void causal_offsets_and_parts_match_the_reference(void) {
    static const Case cases[] = {
        {16,
         2,
         1,
         3,
         {{70, 70, -3}, {5, 9, -5}, {66, 40, 100}, {64, 64, 0}, {3, 200, 65}, {130, 20, -64}, {9, 130, -200}}},
        {32, 1, 1, 8, {{70, 70, -3}, {130, 90, 20}, {NONE, 5}, {7, NONE}}}};
    for (int partial = 0; partial <= 1; partial++) try_all(cases, COUNT(cases), partial);
}

static void heads_that_share_keys_match_the_reference(void) {
    static const Case cases[] = {{16, 2, 1, 5, {{1, 130}, {200, 200}, {33, 64}}}, {64, 1, 1, 0, {{129, 129}, {7, 7}}}};
    sharing = 3;
    try_all(cases, COUNT(cases), 0);
    sharing = 1;
}

static void fp32_stays_with_the_set_below(void) {
    Kernels k = cpu_reference_kernels;
    k.attention_forward = count_call;
    attention_pairs_amx.install(&k);
    k.attention_forward(NULL, NULL, NULL, DT_F32, NULL);
    CHECK(fp32_calls == 1);
}

int main(void) {
    RUN(documents_of_all_lengths_match_the_reference);
    RUN(head_sizes_match_the_reference);
    RUN(causal_offsets_and_parts_match_the_reference);
    RUN(heads_that_share_keys_match_the_reference);
    RUN(fp32_stays_with_the_set_below);
    return test_done();
}
