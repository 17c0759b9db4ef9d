// reference_ranks.c - the plain form of ops that only many ranks need: parts of attention and of a loss, moves of rows,
// heads and columns, FP8. Like reference.c, this is the specification.
#include <math.h>

#include "kernels/cpu/cpu.h"

static double greater(double a, double b) { return b > a ? b : a; }

// ---- attention in parts

static void attention_merge(float* out, float* lse, const float* part, const float* part_lse, int N, int NH, int HS,
                            Stream s) {
    for (size_t n = 0; n < (size_t)N; n++)
        for (size_t h = 0; h < (size_t)NH; h++) {
            double x = lse[h * N + n], y = part_lse[h * N + n], max = greater(x, y), a = exp(x - max), b = exp(y - max);
            if (x == -INFINITY && y == -INFINITY) continue;
            lse[h * N + n] = (float)(max + log(a + b));
            for (size_t i = (n * NH + h) * HS; i < (n * NH + h + 1) * HS; i++)
                out[i] = (float)((a * out[i] + b * part[i]) / (a + b));
        }
}

// ---- conversions and moves

static void cast(void* out, DType out_dt, const void* x, DType x_dt, size_t n, Stream s) {
    for (size_t i = 0; i < n; i++) dtype_store(out, i, dtype_load(x, i, x_dt), out_dt);
}

static void gather_rows(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt, Stream s) {
    size_t elem = dtype_bytes(dt);
    for (size_t i = 0; i < (size_t)n; i++) {
        char* to = (char*)out + i * ldo * elem;
        if (rows && rows[i] < 0) memset(to, 0, C * elem);
        else memcpy(to, (const char*)x + (rows ? (size_t)rows[i] : i) * ldx * elem, C * elem);
    }
}

static void scatter_rows(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt,
                         Stream s) {
    size_t elem = dtype_bytes(dt);
    for (size_t i = 0; i < (size_t)n; i++)
        if (rows[i] >= 0) memcpy((char*)out + (size_t)rows[i] * ldo * elem, (const char*)x + i * ldx * elem, C * elem);
}

// Moves heads between the rows of x, M matrices of NH heads each, and its d slices of heads, one after another. A head
// of matrix m has size[m > 0] elements, a head of all matrices `all`.
static void move_heads(char* slices, char* x, int split, size_t N, size_t M, const size_t size[2], const int* border,
                       int d, size_t elem) {
    size_t all = size[0] + (M - 1) * size[1], NH = (size_t)border[d];
    for (int slice = 0; slice < d; slice++)
        for (size_t n = 0; n < N; n++)
            for (size_t m = 0, before = 0; m < M; before += size[m > 0], m++)
                for (size_t begin = (size_t)border[slice], end = (size_t)border[slice + 1], h = begin; h < end; h++) {
                    size_t in_slice = (N * begin + n * (end - begin)) * all + (end - begin) * before;
                    char* there = slices + (in_slice + (h - begin) * size[m > 0]) * elem;
                    char* here = x + (n * NH * all + NH * before + h * size[m > 0]) * elem;
                    memcpy(split ? there : here, split ? here : there, size[m > 0] * elem);
                }
}

static void split_heads(void* out, const void* x, int N, int M, int HS0, int HS, const int* border, int d, DType dt,
                        Stream s) {
    const size_t size[2] = {(size_t)HS0, (size_t)HS};
    move_heads((char*)out, (char*)x, 1, (size_t)N, (size_t)M, size, border, d, dtype_bytes(dt));
}

static void join_heads(void* out, const void* x, int N, int M, int HS0, int HS, const int* border, int d, DType dt,
                       Stream s) {
    const size_t size[2] = {(size_t)HS0, (size_t)HS};
    move_heads((char*)x, (char*)out, 0, (size_t)N, (size_t)M, size, border, d, dtype_bytes(dt));
}

// It is gather_columns too, for a list without negative numbers.
static void scatter_columns(void* out, const void* x, const int* source, int N, int K, int n, DType dt, Stream s) {
    size_t elem = dtype_bytes(dt);
    memset(out, 0, (size_t)N * (size_t)K * elem);
    for (size_t i = 0; i < (size_t)N; i++)
        for (size_t c = 0; c < (size_t)K; c++)
            if (source[c] >= 0)
                memcpy((char*)out + (i * K + c) * elem, (const char*)x + (i * n + (size_t)source[c]) * elem, elem);
}

// ---- the loss of a part of the vocabulary

static void classifier_part(float* stats, const void* logits, const int* targets, int first, int N, int V, int Vp,
                            DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++) {
        double max = -INFINITY, total = 0;
        int target = targets[n] - first, mine = targets[n] >= first && target < V;
        for (size_t v = 0; v < (size_t)V; v++) max = greater(max, dtype_load(logits, n * Vp + v, dt));
        for (size_t v = 0; v < (size_t)V; v++) {
            double x = dtype_load(logits, n * Vp + v, dt);
            if (x != -INFINITY) total += exp(x - max);  // with max = -infinity too it would be a NaN
        }
        stats[3 * n] = (float)max;
        stats[3 * n + 1] = (float)total;
        stats[3 * n + 2] = mine ? (float)dtype_load(logits, n * Vp + (size_t)target, dt) : 0;
    }
}

// Sums parts in rank order. A part without any logit, or of hidden ones only, adds 0 exp(-infinity).
CpuSoftmax cpu_join_softmax(const float* stats, int parts, size_t N, size_t n) {
    double max = -INFINITY, total = 0, at_target = 0;
    for (size_t p = 0; p < (size_t)parts; p++) max = greater(max, stats[(p * N + n) * 3]);
    for (size_t p = 0; p < (size_t)parts; p++) {
        const float* part = stats + (p * N + n) * 3;
        total += part[1] * exp(part[0] - max);
        at_target += part[2];
    }
    return (CpuSoftmax){max, total, (float)(max + log(total) - at_target)};
}

static void classifier_join(float* losses, void* logits, const float* stats, int parts, const int* targets, int first,
                            float scale, int write_gradient, int N, int V, int Vp, DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++) {
        CpuSoftmax all = cpu_join_softmax(stats, parts, (size_t)N, n);
        losses[n] = targets[n] < 0 ? 0 : all.loss;
        for (size_t v = 0; v < (size_t)Vp && write_gradient; v++) {
            double p = v < (size_t)V ? exp(dtype_load(logits, n * Vp + v, dt) - all.max) / all.total : 0;
            int hit = (size_t)first + v == (size_t)targets[n];
            dtype_store(logits, n * Vp + v, targets[n] < 0 || v >= (size_t)V ? 0 : (p - hit) * scale, dt);
        }
    }
}

static void weigh_labels(float* losses, void* logits, const int* targets, const TokenLoss* of, int write_gradient,
                         int N, int Vp, DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++) {
        float slope = 0;
        losses[n] = targets[n] < 0 ? 0 : token_loss(of, n, losses[n], &slope);
        for (size_t v = n * Vp; v < (n + 1) * Vp && write_gradient; v++)
            dtype_store(logits, v, dtype_load(logits, v, dt) * slope, dt);
    }
}

// ---- Muon

static int is_frozen(const AdamW* a, size_t i) { return a->freeze && a->grad[i] == 0; }

static void momentum(const AdamW* a, Stream s) {
    double scale = *a->grad_scale;
    for (size_t i = 0; i < a->n && isfinite(scale); i++) {
        if (is_frozen(a, i)) continue;
        double g = (1.0 - a->beta1) * scale * a->grad[i], m = a->beta1 * a->m[i] + g;
        a->m[i] = (float)m, a->v[i] = (float)(a->beta1 * m + g);
    }
}

static void follow(const AdamW* a, DType dt, Stream s) {
    for (size_t i = 0; i < a->n && isfinite(*a->grad_scale); i++) {
        if (is_frozen(a, i)) continue;
        double step = a->v[i] + (double)a->weight_decay * a->master[i];
        a->master[i] = (float)(a->master[i] - a->lr * step);
        if (dt == DT_BF16) ((bf16*)a->param)[i] = bf16_round(a->master[i], a->rounding, place_of(&a->place, i));
        else if (a->param != a->master) dtype_store(a->param, i, a->master[i], dt);
    }
}

static void normalize(void* out, const float* x, const double* norm2, size_t n, DType dt, Stream s) {
    double norm = sqrt(*norm2) + 1e-7;
    for (size_t i = 0; i < n; i++) dtype_store(out, i, x[i] / norm, dt);
}

static void combine(void* out, float a, const void* x, float b, const void* y, size_t n, DType dt, Stream s) {
    for (size_t i = 0; i < n; i++)
        dtype_store(out, i, (double)a * dtype_load(x, i, dt) + (double)b * dtype_load(y, i, dt), dt);
}

// ---- adapters

// Element (i, j) of the result is a sum over k; each kind walks its operands in another direction.
static void strided_matmul(const StridedMatmul* m, DType dt, Stream s) {
    int is_weight = m->kind == MATMUL_WEIGHT, rows = is_weight ? m->OC : m->N;
    int cols = m->kind == MATMUL_FORWARD ? m->OC : m->C;
    int depth = is_weight ? m->N : m->kind == MATMUL_FORWARD ? m->C : m->OC;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            size_t at = (size_t)i * (size_t)m->ldo + (size_t)j;
            double sum = 0;
            for (int k = 0; k < depth; k++) {
                int a_row = is_weight ? k : i, a_col = is_weight ? i : k;
                int b_row = m->kind == MATMUL_FORWARD ? j : k, b_col = m->kind == MATMUL_FORWARD ? k : j;
                sum += dtype_load(m->a, (size_t)a_row * (size_t)m->lda + (size_t)a_col, dt) *
                       dtype_load(m->b, (size_t)b_row * (size_t)m->ldb + (size_t)b_col, dt);
            }
            DType out_dt = is_weight && dt == DT_BF16 ? DT_F32 : dt;
            double before = is_weight || m->adds ? dtype_load(m->out, at, out_dt) : 0;
            dtype_store(m->out, at, before + m->scale * sum, out_dt);
        }
}

// ---- FP8

static void quantize(e4m3* out, float* amax, const void* x, const float* scale, int transposes, int N, int C,
                     Stream s) {
    for (size_t n = 0; n < (size_t)N; n++)
        for (size_t c = 0; c < (size_t)C; c++) {
            float value = bf16_to_float(((const bf16*)x)[n * C + c]);
            if (amax && fabsf(value) > *amax) *amax = fabsf(value);
            if (out) out[transposes ? c * N + n : n * C + c] = e4m3_from_float(value * *scale);
        }
}

// Serves all instruction sets: values of E4M3 are values of bf16.
static void matmul_fp8(const Fp8Matmul* m, Stream s) {
    size_t in_x = (size_t)m->N * m->K, n = in_x + (size_t)m->OC * m->K;
    StridedMatmul p = {MATMUL_FORWARD, m->bias != NULL, m->N,           m->K,  m->OC, *m->x_unit * *m->w_unit,
                       m->out,         m->room,         m->room + in_x, m->OC, m->K,  m->K};
    if (m->N == 0) return;
    for (size_t i = 0; i < n; i++) m->room[i] = bf16_from_float(e4m3_to_float(i < in_x ? m->x[i] : m->w[i - in_x]));
    if (m->bias) m->k->ranks->gather_rows(m->out, m->bias, NULL, m->N, m->OC, m->OC, 0, DT_BF16, s);
    m->k->ranks->strided_matmul(&p, DT_BF16, s);
    if (m->pre) m->k->activation_backward(m->out, m->out, m->pre, ACT_GELU, m->N, m->OC, DT_BF16, s);
    if (m->gelu) m->k->activation_forward(m->gelu, m->out, ACT_GELU, m->N, m->OC, DT_BF16, s);
}

// clang-format off
// The entries stand in the order of the struct, so that none is missing.
const RankOps reference_rank_ops = {
    attention_merge, cast, gather_rows, split_heads, join_heads,
    /* gather_columns */ scatter_columns, scatter_columns, scatter_rows, classifier_part, classifier_join,
    weigh_labels, momentum, follow, normalize, combine, strided_matmul, quantize, matmul_fp8
};
// clang-format on
