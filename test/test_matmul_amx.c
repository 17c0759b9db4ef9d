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

// Many results go past the caches where their rows begin at lines, and must be what they are one element further.
CLAIM(whole_lines_have_the_same_bits) {
    enum { N = 1030, C = 35, OC = 1056, ROOM = N * OC + 1 };
    static _Alignas(64) bf16 out[2][ROUND_UP(ROOM, 32)], gelu[2][ROUND_UP(ROOM, 32)], pre[N * OC];
    static bf16 narrow[N * C], weight[OC * C], bias[OC];
    if (!__builtin_cpu_supports("avx512bw")) SKIP("the processor lacks AVX-512");
    Kernels k = cpu_reference;
    char err[ERR_BYTES];
    KernelLimits limits = {.N = N, .C = OC, .OC = OC, .threads = 2};
    for (int i = 0; i < N * OC; i++) {
        bf16 x = pre[i] = bf16_from_float((float)(int32_t)hash64((uint64_t)i) * 0x1p-30f);
        if (i < N * C) narrow[i] = x;
        if (i < OC * C) weight[i] = x;
        if (i < OC) bias[i] = x;
    }
    matmul_amx.install(&k);
    CHECK(!open_exact(&limits, err));
    for (int i = 0; i < 2; i++)
        k.matmul_forward(out[i] + i, gelu[i] + i, narrow, weight, bias, N, C, OC, DT_BF16, NULL);
    CHECK(!memcmp(out[0], out[1] + 1, sizeof pre) && !memcmp(gelu[0], gelu[1] + 1, sizeof pre));
    for (int i = 0; i < 2; i++) k.matmul_backward_input(out[i] + i, narrow, weight, pre, N, OC, C, DT_BF16, NULL);
    CHECK(!memcmp(out[0], out[1] + 1, sizeof pre));
    close_exact();
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
