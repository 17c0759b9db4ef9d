// loss.c - the classifier (softmax cross-entropy with its gradient, in place), AdamW and the norm of the gradient.
#include <float.h>
#include <math.h>
#include <omp.h>

#include "kernels/cpu/simd.h"

enum {
    SERIAL = 1 << 14,  // elements below which waking the threads costs more than the work
    CHUNK = 1 << 12,   // elements handled at once
    PARTS = 256,       // fixed pieces of sum_of_squares
};

#define INLINE static inline __attribute__((always_inline))

// Up to SIMD_FLOATS elements i .. n of a tensor; lanes past the end read as zero.
INLINE vf get(const void* p, size_t i, size_t n, DType dt) {
    const void* at = (const char*)p + i * dtype_bytes(dt);
    return n - i >= SIMD_FLOATS ? vf_load_as(at, dt) : vf_load_part(at, (int)(n - i), dt);
}

INLINE void put(void* p, size_t i, size_t n, vf x, DType dt) {
    void* at = (char*)p + i * dtype_bytes(dt);
    if (n - i >= SIMD_FLOATS) vf_store_as(at, x, dt);
    else vf_store_part(at, x, (int)(n - i), dt);
}

// ---- classifier

// Lanes past the end take `filler`.
INLINE vf get_filled(const void* p, size_t i, size_t n, float filler, DType dt) {
    vf x = get(p, i, n, dt);
    if (n - i >= SIMD_FLOATS) return x;
    return vf_select(vf_lanes() < (vf){0} + (float)(n - i), x, (vf){0} + filler);
}

// max and total = sum of exp(x - max) of a row, chunk by chunk in one pass over memory: a chunk that raises the maximum
// scales the total down. Starting from -FLT_MAX instead of -infinity lets a whole chunk be -infinity.
INLINE void log_sum_exp(float* max, float* total, const void* x, size_t V, DType dt) {
    *max = -FLT_MAX;
    *total = 0;
    for (size_t begin = 0; begin < V; begin += CHUNK) {
        size_t end = MIN(begin + CHUNK, V);
        vf highest = (vf){0} + *max, sum[4] = {{0}};
        for (size_t v = begin; v < end; v += SIMD_FLOATS) highest = vf_max(highest, get_filled(x, v, end, -FLT_MAX, dt));
        float old = *max;
        *max = vf_highest(highest);
        for (size_t v = begin; v < end; v += 4 * SIMD_FLOATS)
#pragma GCC unroll 4
            for (size_t u = 0; u < 4; u++)
                if (v + u * SIMD_FLOATS < end)
                    sum[u] += vf_exp(get_filled(x, v + u * SIMD_FLOATS, end, -INFINITY, dt) - *max);
        *total = *total * expf(old - *max) + vf_sum(sum[0] + sum[1] + (sum[2] + sum[3]));
    }
}

INLINE float classify_row(void* logits, int target, float scale, int write_gradient, size_t V, size_t Vp, DType dt) {
    const vf zero = {0};
    if (target < 0) {
        if (write_gradient) memset(logits, 0, Vp * dtype_bytes(dt));
        return 0;
    }
    float max, total, at_target = dt == DT_BF16 ? bf16_to_float(((bf16*)logits)[target]) : ((float*)logits)[target];
    log_sum_exp(&max, &total, logits, V, dt);
    if (write_gradient) {
        for (size_t v = 0; v < V; v += SIMD_FLOATS)
            put(logits, v, V, vf_exp(get(logits, v, V, dt) - max) * (scale / total), dt);
        for (size_t v = V; v < Vp; v += SIMD_FLOATS) put(logits, v, Vp, zero, dt);
        vf d = zero + (expf(at_target - max) / total - 1) * scale;
        put(logits, (size_t)target, (size_t)target + 1, d, dt);
    }
    return max - at_target + logf(total);
}

static void classifier(float* losses, void* logits, const int* targets, float scale, int write_gradient, int N, int V,
                       int Vp, DType dt, Stream s) {
    if (dt == DT_F64) {
        cpu_reference_kernels.classifier(losses, logits, targets, scale, write_gradient, N, V, Vp, dt, s);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) if ((size_t)N * Vp >= SERIAL)
    for (size_t n = 0; n < (size_t)N; n++) {
        void* row = (char*)logits + n * Vp * dtype_bytes(dt);
        losses[n] = dt == DT_BF16 ? classify_row(row, targets[n], scale, write_gradient, V, Vp, DT_BF16)
                                  : classify_row(row, targets[n], scale, write_gradient, V, Vp, DT_F32);
    }
}

// ---- optimizer: reads 16 and writes 12 bytes a weight, 14 with bf16 weights

typedef struct AdamWStep {  // the factors of one step, as every weight needs them
    float m_keep, m_take, v_keep, v_take, v_correction, lr_corrected, lr_decay, eps, grad_scale;
} AdamWStep;

INLINE void adamw_range(const AdamW* a, AdamWStep k, size_t begin, size_t end, DType dt) {
    for (size_t i = begin; i < end; i += SIMD_FLOATS) {
        vf g = get(a->grad, i, end, DT_F32) * k.grad_scale, x = get(a->master, i, end, DT_F32);
        vf m = get(a->m, i, end, DT_F32) * k.m_keep + g * k.m_take;
        vf v = get(a->v, i, end, DT_F32) * k.v_keep + g * g * k.v_take;
        x = x - (m / (vf_sqrt(v * k.v_correction) + k.eps) * k.lr_corrected + x * k.lr_decay);
        put(a->m, i, end, m, DT_F32);
        put(a->v, i, end, v, DT_F32);
        put(a->master, i, end, x, DT_F32);
        if (a->param != (void*)a->master) put(a->param, i, end, x, dt);
    }
}

static void adamw(const AdamW* a, DType dt, Stream s) {
    if (dt == DT_F64) {
        cpu_reference_kernels.adamw(a, dt, s);
        return;
    }
    double m_correction = 1 - pow(a->beta1, a->t), v_correction = 1 - pow(a->beta2, a->t);
    AdamWStep k = {a->beta1,
                   (float)(1.0 - a->beta1),
                   a->beta2,
                   (float)(1.0 - a->beta2),
                   (float)(1 / v_correction),
                   (float)(a->lr / m_correction),
                   a->lr * a->weight_decay,
                   a->eps,
                   a->grad_scale};
#pragma omp parallel for schedule(static) if (a->n >= SERIAL)
    for (size_t i = 0; i < a->n; i += CHUNK) {
        if (dt == DT_BF16) adamw_range(a, k, i, MIN(i + CHUNK, a->n), DT_BF16);
        else adamw_range(a, k, i, MIN(i + CHUNK, a->n), DT_F32);
    }
}

// In double, because a gradient of 10^8 weights adds that many squares.
static double squares(const float* x, size_t begin, size_t end) {
    enum { LANES = SIMD_FLOATS / 2, SUMS = 8 };
    double sum[SUMS * LANES] = {0}, total = 0;
    size_t i = begin;
    for (; i + SUMS * LANES <= end; i += SUMS * LANES)
        for (int lane = 0; lane < SUMS * LANES; lane++) sum[lane] += (double)x[i + lane] * x[i + lane];
    for (; i < end; i++) total += (double)x[i] * x[i];
    for (int lane = 0; lane < SUMS * LANES; lane++) total += sum[lane];
    return total;
}

static void sum_of_squares(double* result, const float* x, size_t n, Stream s) {
    (void)s;
    double part[PARTS], total = 0;
    size_t each = ROUND_UP(CEIL_DIV(n, (size_t)PARTS), (size_t)CHUNK), parts = n ? CEIL_DIV(n, each) : 0;
#pragma omp parallel for schedule(static) if (n >= SERIAL)
    for (size_t p = 0; p < parts; p++) part[p] = squares(x, p * each, MIN((p + 1) * each, n));
    for (size_t p = 0; p < parts; p++) total += part[p];
    *result = total;
}

static void install(Kernels* table) {
    table->classifier = classifier;
    table->adamw = adamw;
    table->sum_of_squares = sum_of_squares;
}

const CpuFamily ISA_NAME(loss) = {install, NULL};
