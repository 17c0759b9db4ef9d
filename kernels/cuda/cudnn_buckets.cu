// cudnn_buckets.cu - which rows cuDNN's plans serve, and what memory they take; see cudnn_buckets.h.
#include "kernels/cuda/cudnn_buckets.h"

#include <stdio.h>

enum { BUCKET_STEP = 4 };

PlanShape bucket_shape(const KernelLimits* limits, int sm, int bucket, int backward) {
    PlanShape shape = {};
    int longest = MAX(1, MIN(limits->context, limits->N));
    for (shape.B = 1; (size_t)shape.B * longest < (size_t)limits->N;) shape.B *= 2;
    for (int i = 0; i < bucket; i++) shape.B *= BUCKET_STEP;
    shape.S = ROUND_UP(longest, 128);
    shape.NH = limits->NH;
    shape.NKV = limits->NKV;
    shape.HS = limits->HS;
    shape.sm = sm;
    shape.backward = backward;
    shape.deterministic = !limits->fast_backward;
    return shape;
}

static void* carve(PlanMemory* m, char* base, size_t bytes) {
    void* p = base ? base + m->bytes : NULL;
    m->bytes += ROUND_UP(bytes, (size_t)256);
    return p;
}

// What a plan needs besides the op's own tensors, in scratch memory at base; with base NULL only how much.
PlanMemory plan_memory(const PlanShape* shape, int N, char* base) {
    PlanMemory m = {};
    int packed = plan_packed(shape);
    size_t B = (size_t)shape->B, C = (size_t)shape->NH * shape->HS, tokens = (size_t)N + PLAN_TAIL;
    size_t CKV = (size_t)shape->NKV * shape->HS;
    size_t rows = packed ? tokens : B * shape->S;
    m.statistic_bytes = rows * shape->NH * sizeof(float);
    m.tensors[PLAN_Q_LENGTHS] = m.tensors[PLAN_K_LENGTHS] = carve(&m, base, B * sizeof(int));
    m.tensors[PLAN_QKV_OFFSETS] = carve(&m, base, (B + 1) * sizeof(int));
    m.tensors[PLAN_OUT_OFFSETS] = carve(&m, base, (B + 1) * sizeof(int));
    m.lse_offsets = (int*)carve(&m, base, (B + 1) * sizeof(int));
    m.gradient_offsets = (int*)carve(&m, base, (B + 1) * sizeof(int));
    m.kv_gradient_offsets = (int*)carve(&m, base, (B + 1) * sizeof(int));
    if (shape->backward) m.tensors[PLAN_GRADIENT_OFFSETS] = m.gradient_offsets;
    if (shape->backward) m.tensors[PLAN_KV_GRADIENT_OFFSETS] = m.kv_gradient_offsets;
    if (packed) m.tensors[PLAN_LSE_OFFSETS] = m.lse_offsets;
    m.tensors[PLAN_LSE] = carve(&m, base, m.statistic_bytes);
    if (shape->backward) {  // cuDNN itself sets its sum of dq to zero, since 9.6
        m.tensors[PLAN_DELTA] = carve(&m, base, m.statistic_bytes);
        m.tensors[PLAN_DQ] = carve(&m, base, tokens * C * sizeof(bf16));
        m.tensors[PLAN_DK] = carve(&m, base, tokens * CKV * sizeof(bf16));
        m.tensors[PLAN_DV] = carve(&m, base, tokens * CKV * sizeof(bf16));
        if (!shape->deterministic) m.tensors[PLAN_DQ_SUM] = carve(&m, base, rows * C * sizeof(float));
    }
    for (int i = 0; i < 2 && shape->backward && packed && plan_groups(shape); i++)
        m.tensors[i ? PLAN_DV_HEADS : PLAN_DK_HEADS] = carve(&m, base, tokens * C * sizeof(bf16));
    m.workspace = carve(&m, base, plan_workspace_most(shape));
    return m;
}

size_t bucket_bytes(const KernelLimits* limits, int sm, int bucket, int backward) {
    PlanShape shape = bucket_shape(limits, sm, bucket, backward);
    return plan_memory(&shape, limits->N, NULL).bytes;
}

size_t most_plan_bytes(const KernelLimits* limits) {
    return limits->most_scratch ? limits->most_scratch : (size_t)1 << 30;
}

int buckets_that_fit(const KernelLimits* limits, int sm, int backward) {
    int n = 0;
    while (n < BUCKETS && bucket_bytes(limits, sm, n, backward) <= most_plan_bytes(limits)) n++;
    return n;
}

void describe_buckets(char* words, size_t room, const KernelLimits* limits, int sm, const int n[2]) {
    size_t needed = bucket_bytes(limits, sm, 0, 1) >> 20, most = most_plan_bytes(limits) >> 20;
    int docs = bucket_shape(limits, sm, MAX(n[0], 1) - 1, 0).B;
    if (n[1] > 0)
        snprintf(words, room, "of at most %d documents a row, backward %d, own for more; scratch may take %zu MiB",
                 docs, bucket_shape(limits, sm, n[1] - 1, 1).B, most);
    else
        snprintf(words, room,
                 "forward, of at most %d documents a row; own backward, since its%s one needs %zu MiB of scratch and "
                 "may take %zu",
                 docs, limits->fast_backward ? "" : " deterministic", needed, most);
}
