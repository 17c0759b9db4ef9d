// straggle.c - see straggle.h. Wang et al. (2024, arXiv 2401.11469) make their stragglers by repeating matmuls, too.
// On the host repetitions would find their operands in the caches: there the time itself is what counts.
#include "kernels/straggle.h"

#include "kernels/virtual/virtual.h"

static struct {
    const Kernels* below;
    Kernels table;
    void* scratch[2];
    double slowness;
} straggler = {.slowness = 1};

static double clock_now(void) { return straggler.slowness > 1 ? straggler.below->clock() : 0; }

// After a matmul of N rows that began then, and was done again `done` times: rows of the next time, 0 when that was
// all.
static int rows_again(double began, int done, int N) {
    const Kernels* k = straggler.below;
    double left = straggler.slowness - 1 - done;
    if (left <= 0) return 0;
    if (!k->virtual_time && !k->on_host) return left >= 1 ? N : (int)(left * N);
    double until = began + straggler.slowness * (k->clock() - began);
    if (k->virtual_time) virtual_wait_until(1e3 * until);
    else
        while (k->clock() < until) continue;
    return 0;
}

static void matmul_forward(void* out, void* gelu, const void* x, const void* weight, const void* bias, int N, int C,
                           int OC, DType dt, Stream s) {
    const Kernels* k = straggler.below;
    void** scratch = straggler.scratch;
    double began = clock_now();
    k->matmul_forward(out, gelu, x, weight, bias, N, C, OC, dt, s);
    for (int rows, done = 0; (rows = rows_again(began, done++, N)) > 0;)
        k->matmul_forward(scratch[0], gelu ? scratch[1] : NULL, x, weight, bias, rows, C, OC, dt, s);
}

static void matmul_backward_input(void* dx, const void* dout, const void* weight, const void* pre, int N, int C, int OC,
                                  DType dt, Stream s) {
    const Kernels* k = straggler.below;
    double began = clock_now();
    k->matmul_backward_input(dx, dout, weight, pre, N, C, OC, dt, s);
    for (int rows, done = 0; (rows = rows_again(began, done++, N)) > 0;)
        k->matmul_backward_input(straggler.scratch[0], dout, weight, pre, rows, C, OC, dt, s);
}

static void matmul_backward_weight(float* dweight, float* dbias, const void* dout, const void* x, int N, int C, int OC,
                                   DType dt, Stream s) {
    const Kernels* k = straggler.below;
    float *sums = (float*)straggler.scratch[0], *bias_sums = dbias ? (float*)straggler.scratch[1] : NULL;
    double began = clock_now();
    k->matmul_backward_weight(dweight, dbias, dout, x, N, C, OC, dt, s);
    for (int rows, done = 0; (rows = rows_again(began, done++, N)) > 0;)
        k->matmul_backward_weight(sums, bias_sums, dout, x, rows, C, OC, dt, s);
}

static size_t scratch_bytes(size_t most) { return ROUND_UP(most, (size_t)64); }

size_t straggle_bytes(const Kernels* below, size_t most) {
    return below->virtual_time || below->on_host ? 0 : 2 * scratch_bytes(most);
}

const Kernels* straggle_kernels(const Kernels* below, void* memory, size_t most) {
    straggler.below = below;
    straggler.scratch[0] = memory;
    straggler.scratch[1] = memory ? (char*)memory + scratch_bytes(most) : NULL;
    straggler.table = *below;
    straggler.table.matmul_forward = matmul_forward;
    straggler.table.matmul_backward_input = matmul_backward_input;
    straggler.table.matmul_backward_weight = matmul_backward_weight;
    return &straggler.table;
}

void straggle_slow_down(double x) { straggler.slowness = x; }
