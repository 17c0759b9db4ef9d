// test_matmul_amx.c - the matmuls of AMX on emulated tiles, so that every processor with AVX-512 can check them.
//
// It links a copy of matmul_amx.c that was compiled with emulated tiles, and has scratch memory
// of its own (test/exact_scratch.h).
#define WITHOUT_BACKEND
#include "test/matmul_checks.h"

#define EXACT_FAMILY matmul_amx
#include "test/exact_scratch.h"

static int fp32_calls;
static void count_call(void* out, void* gelu, const void* x, const void* weight, const void* bias, int N, int C, int OC,
                       DType dt, Stream s) {
    (void)out, (void)gelu, (void)x, (void)weight, (void)bias, (void)N, (void)C, (void)OC, (void)dt, (void)s;
    fp32_calls++;
}

CLAIM(emulated_amx_matmuls_are_right) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bw")) SKIP("the processor lacks AVX-512");
    static Kernels k;
    k = cpu_reference;
    k.open = open_exact;
    k.close = close_exact;
    matmul_amx.install(&k);
    only_table = &k;
    check_matmuls(DT_BF16);
}

CLAIM(fp32_stays_with_the_set_below) {
    if (!__builtin_cpu_supports("avx512bw")) SKIP("the processor lacks AVX-512");
    Kernels k = cpu_reference;
    k.matmul_forward = count_call;
    matmul_amx.install(&k);
    k.matmul_forward(NULL, NULL, NULL, NULL, NULL, 1, 1, 1, DT_F32, NULL);
    CHECK(fp32_calls == 1);
}

int main(void) { return test_main(); }
