// test_matmul_amx.c - the matmuls of AMX on emulated tiles, so that every processor with AVX-512 can check them.
//
// It links a copy of matmul_amx.c that was compiled with TILES_EMULATED, and stands in for the backend's scratch
// memory, in blocks of just the size that was asked for: a sanitizer sees a write beyond it.
#include "test/matmul_checks.h"

extern const CpuFamily matmul_amx;

static struct {
    void *shared, *threads[8];
    int n_threads;
} scratch;

void* cpu_shared_scratch(void) { return scratch.shared; }
void* cpu_thread_scratch(int thread) { return scratch.threads[thread]; }
int cpu_threads(void) { return scratch.n_threads; }

static void* block(size_t bytes) { return aligned_alloc(64, ROUND_UP(bytes, (size_t)64)); }

static int open_exact(const KernelLimits* limits, char* err, size_t errlen) {
    CpuScratch need = matmul_amx.scratch(limits);
    if (limits->threads > COUNT(scratch.threads))
        return fail(err, errlen, "at most %d threads", COUNT(scratch.threads));
    scratch.n_threads = limits->threads;
    scratch.shared = block(need.shared_bytes);
    for (int t = 0; t < limits->threads; t++) scratch.threads[t] = block(need.thread_bytes);
    return 0;
}

static void close_exact(void) {
    free(scratch.shared);
    for (int t = 0; t < scratch.n_threads; t++) free(scratch.threads[t]);
}

static int fp32_calls;
static void count_call(void* out, void* gelu, const void* x, const void* weight, const void* bias, int N, int C, int OC,
                       DType dt, Stream s) {
    (void)out, (void)gelu, (void)x, (void)weight, (void)bias, (void)N, (void)C, (void)OC, (void)dt, (void)s;
    fp32_calls++;
}

static void emulated_amx_matmuls_are_right(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bw")) SKIP("the processor lacks AVX-512");
    Kernels k = cpu_reference_kernels;
    k.open = open_exact;
    k.close = close_exact;
    matmul_amx.install(&k);
    check_matmuls(&k, DT_BF16, EPILOGUE_BIAS);
}

static void fp32_stays_with_the_set_below(void) {
    Kernels k = cpu_reference_kernels;
    k.matmul_forward = count_call;
    matmul_amx.install(&k);
    k.matmul_forward(NULL, NULL, NULL, NULL, NULL, 1, 1, 1, DT_F32, NULL);
    CHECK(fp32_calls == 1);
}

int main(void) {
    RUN(emulated_amx_matmuls_are_right);
    RUN(fp32_stays_with_the_set_below);
    return test_done();
}
