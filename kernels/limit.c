// limit.c - the measured matmul limit; see limit.h.
#include "kernels/limit.h"

enum { SIDE = 1024, SMALL_SIDE = 256 };

// Best seconds of a few runs of one square matmul: at least three, and about a tenth of a second.
static double best_time(const Kernels* k, void* out, const void* x, const void* weight, int side, DType dt) {
    double best = 1e30, started = now_seconds();
    for (int run = 0; run < 20 && (run < 3 || now_seconds() - started < 0.1); run++) {
        double t = now_seconds();
        k->matmul_forward(out, NULL, x, weight, NULL, side, side, side, dt, NULL);
        k->synchronize(NULL);
        best = MIN(best, now_seconds() - t);
    }
    return best;
}

double kernels_matmul_limit(const Kernels* k, DType dt, int threads, char* err, size_t errlen) {
    KernelLimits limits = {
        .N = SIDE, .C = SIDE, .OC = SIDE, .NH = 1, .HS = 64, .context = SIDE, .threads = threads, .dt = dt};
    if (k->open(&limits, err, errlen)) return -1;
    size_t bytes = (size_t)SIDE * SIDE * dtype_bytes(dt);
    void *out = k->alloc(bytes), *x = k->alloc(bytes), *weight = k->alloc(bytes);
    double flops = -1;
    if (out && x && weight) {
        double small = best_time(k, out, x, weight, SMALL_SIDE, dt);
        flops = 2.0 * SMALL_SIDE * SMALL_SIDE * SMALL_SIDE / small;
        // The plain reference would take seconds for the large one, and its speed does not depend on the size.
        if (small < 0.02) flops = 2.0 * SIDE * SIDE * SIDE / best_time(k, out, x, weight, SIDE, dt);
    } else fail(err, errlen, "no memory to measure the matmul limit");
    k->free_memory(out);
    k->free_memory(x);
    k->free_memory(weight);
    k->close();
    return flops;
}
