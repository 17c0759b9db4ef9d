// test_attention_amx.c - attention on emulated AMX tiles, so that every processor with AVX-512 can check it.
//
// It links a copy of attention_pairs.c that was compiled with emulated tiles, and has scratch memory
// of its own (test/exact_scratch.h).
#define WITHOUT_BACKEND
#include "test/attention_checks.h"

#define EXACT_FAMILY attention_pairs_amx
#include "test/exact_scratch.h"

static const Kernels* emulated(void) {
    static Kernels k;
    k = cpu_reference;
    k.name = "cpu amx";
    k.open = open_exact;
    k.close = close_exact;
    attention_pairs_amx.install(&k);
    return &k;
}

static void the_processor_lacks_avx512_bf16(void) { SKIP("attention on emulated tiles needs it"); }

static int fp32_calls;
static void count_call(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    (void)out, (void)lse, (void)a, (void)dt, (void)s;
    fp32_calls++;
}

CLAIM(fp32_stays_with_the_set_below) {
    if (!__builtin_cpu_supports("avx512bw")) SKIP("the processor lacks AVX-512");
    Kernels k = cpu_reference;
    k.attention_forward = count_call;
    attention_pairs_amx.install(&k);
    k.attention_forward(NULL, NULL, NULL, DT_F32, NULL);
    CHECK(fp32_calls == 1);
}

int main(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bf16")) RUN(the_processor_lacks_avx512_bf16);
    else only_table = emulated(), run_attention_cases();
    run_claims();
    return test_done();
}
