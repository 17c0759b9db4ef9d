// reference.c - every op in its plainest form. This file is the specification: the fast versions are tested against it.
//
// Tensors are read element by element through load(), computed on in double and rounded once on store(), whatever
// their type; with DT_F64 nothing is rounded at all, which is what finite differences want. Loops run in the order
// the sums are defined in, on one thread. Nothing here is fast, and nothing here should become fast.
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "kernels/host.h"

static double load(const void* p, size_t i, DType dt) {
    if (dt == DT_F64) return ((const double*)p)[i];
    return dt == DT_F32 ? ((const float*)p)[i] : bf16_to_float(((const bf16*)p)[i]);
}

static void store(void* p, size_t i, double x, DType dt) {
    if (dt == DT_F64) ((double*)p)[i] = x;
    else if (dt == DT_F32) ((float*)p)[i] = (float)x;
    else ((bf16*)p)[i] = bf16_from_float((float)x);
}

// ---- device and memory: the reference needs none of its own

static size_t memory_available(void) { return host_memory("", 1).bytes; }
static size_t workspace_bytes(const KernelLimits* limits) { return 0; }
static int open_nothing(const KernelLimits* limits, char* err, size_t errlen) {
    cpu_open_clock(limits);
    return 0;
}
static void close_nothing(void) {}
static const char* no_choices(void) { return ""; }

static void* alloc(size_t bytes) {
    void* p = NULL;
    if (posix_memalign(&p, 64, ROUND_UP(MAX(bytes, (size_t)1), (size_t)64))) return NULL;
    return memset(p, 0, bytes);
}

static void free_memory(void* p) { free(p); }  // host memory is like any other here
static void upload(void* device, const void* host, size_t bytes, Stream s) { memcpy(device, host, bytes); }
static void download(void* host, const void* device, size_t bytes, Stream s) { memcpy(host, device, bytes); }
static void clear(void* device, size_t bytes, Stream s) { memset(device, 0, bytes); }
static void synchronize(Stream s) {}

// ---- time: ops have finished when they return, so an event is a reading of the clock

static struct {
    int oversubscribed;
    double seconds[MOST_EVENTS];
} events;

void cpu_open_clock(const KernelLimits* limits) { events.oversubscribed = limits->oversubscribed; }

// Where ranks share cores the wall clock would count the work of others too.
static double cpu_clock(void) {
    struct timespec t;
    if (!events.oversubscribed) return now_seconds();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void record_event(int i, Stream s) { events.seconds[i] = cpu_clock(); }
static void read_events(double* seconds, int n) { memcpy(seconds, events.seconds, (size_t)n * sizeof(double)); }

// ---- embedding

static void embedding_forward(void* out, const int* tokens, const int* positions, const void* wte, const void* wpe,
                              int N, int C, DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++)
        for (size_t c = 0; c < (size_t)C; c++)
            store(out, n * C + c,
                  load(wte, (size_t)tokens[n] * C + c, dt) + load(wpe, (size_t)positions[n] * C + c, dt), dt);
}

static void embedding_backward(float* dwte, float* dwpe, const void* dout, const int* tokens, const int* positions,
                               int N, int C, DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++)
        for (size_t c = 0; c < (size_t)C; c++) {
            float d = (float)load(dout, n * C + c, dt);
            if (tokens && tokens[n] >= 0) dwte[(size_t)tokens[n] * C + c] += d;
            if (positions) dwpe[(size_t)positions[n] * C + c] += d;
        }
}

// ---- LayerNorm

static void layernorm_forward(void* out, float* mean, float* rstd, const void* x, const void* weight, const void* bias,
                              int N, int C, DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++) {
        double sum = 0, variance = 0;
        for (size_t c = 0; c < (size_t)C; c++) sum += load(x, n * C + c, dt);
        double m = sum / C;
        for (size_t c = 0; c < (size_t)C; c++) variance += (load(x, n * C + c, dt) - m) * (load(x, n * C + c, dt) - m);
        double r = 1 / sqrt(variance / C + 1e-5);
        for (size_t c = 0; c < (size_t)C; c++)
            store(out, n * C + c, (load(x, n * C + c, dt) - m) * r * load(weight, c, dt) + load(bias, c, dt), dt);
        mean[n] = (float)m;
        rstd[n] = (float)r;
    }
}

static void add(void* out, const void* a, const void* b, size_t n, DType dt, Stream s) {
    for (size_t i = 0; i < n; i++) store(out, i, load(a, i, dt) + load(b, i, dt), dt);
}

static void residual_layernorm_forward(void* sum, void* out, float* mean, float* rstd, const void* a, const void* b,
                                       const void* weight, const void* bias, int N, int C, DType dt, Stream s) {
    add(sum, a, b, (size_t)N * C, dt, s);
    layernorm_forward(out, mean, rstd, sum, weight, bias, N, C, dt, s);
}

// With xhat = (x - mean) rstd and g = dout weight:  dx += rstd (g - mean(g) - xhat mean(g xhat)), means over C.
static void layernorm_backward(void* dx, float* dweight, float* dbias, const void* dout, const void* x,
                               const void* weight, const float* mean, const float* rstd, int N, int C, DType dt,
                               Stream s) {
    for (size_t n = 0; n < (size_t)N; n++) {
        double g_mean = 0, gx_mean = 0;
        for (size_t c = 0; c < (size_t)C; c++) {
            double xhat = (load(x, n * C + c, dt) - mean[n]) * rstd[n],
                   g = load(dout, n * C + c, dt) * load(weight, c, dt);
            g_mean += g / C;
            gx_mean += g * xhat / C;
        }
        for (size_t c = 0; c < (size_t)C; c++) {
            double xhat = (load(x, n * C + c, dt) - mean[n]) * rstd[n], d = load(dout, n * C + c, dt);
            store(dx, n * C + c,
                  load(dx, n * C + c, dt) + rstd[n] * (d * load(weight, c, dt) - g_mean - xhat * gx_mean), dt);
            dweight[c] += (float)(d * xhat);
            dbias[c] += (float)d;
        }
    }
}

// ---- GELU: with u = sqrt(2/pi) (x + 0.044715 x^3)

static double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

static double gelu_gradient(double x) {
    double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

static void gelu_forward(void* out, const void* x, size_t n, DType dt, Stream s) {
    for (size_t i = 0; i < n; i++) store(out, i, gelu(load(x, i, dt)), dt);
}

// ---- matmul

static void matmul_forward(void* out, void* gelu_out, const void* x, const void* weight, const void* bias, int N, int C,
                           int OC, DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++)
        for (size_t o = 0; o < (size_t)OC; o++) {
            double sum = bias ? load(bias, o, dt) : 0;
            for (size_t c = 0; c < (size_t)C; c++) sum += load(x, n * C + c, dt) * load(weight, o * C + c, dt);
            store(out, n * OC + o, sum, dt);
            if (gelu_out) store(gelu_out, n * OC + o, gelu(load(out, n * OC + o, dt)), dt);
        }
}

static void matmul_backward_input(void* dx, const void* dout, const void* weight, const void* pre, int N, int C, int OC,
                                  DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++)
        for (size_t c = 0; c < (size_t)C; c++) {
            double sum = 0;
            for (size_t o = 0; o < (size_t)OC; o++) sum += load(dout, n * OC + o, dt) * load(weight, o * C + c, dt);
            if (pre) sum *= gelu_gradient(load(pre, n * C + c, dt));
            store(dx, n * C + c, sum, dt);
        }
}

static void matmul_backward_weight(float* dweight, float* dbias, const void* dout, const void* x, int N, int C, int OC,
                                   DType dt, Stream s) {
    for (size_t o = 0; o < (size_t)OC; o++) {
        for (size_t c = 0; c < (size_t)C; c++) {
            double sum = 0;
            for (size_t n = 0; n < (size_t)N; n++) sum += load(dout, n * OC + o, dt) * load(x, n * C + c, dt);
            dweight[o * C + c] += (float)sum;
        }
        double sum = 0;
        for (size_t n = 0; n < (size_t)N && dbias; n++) sum += load(dout, n * OC + o, dt);
        if (dbias) dbias[o] += (float)sum;
    }
}

// ---- attention

static double score(const Attention* a, size_t query, size_t key, int h, DType dt) {
    double sum = 0;
    for (int j = 0; j < a->HS; j++)
        sum += load(a->q, query * a->ldq + h * a->HS + j, dt) * load(a->k, key * a->ldkv + h * a->HS + j, dt);
    return sum * a->scale;
}

// Rows of keys that query i of document b sees: [*begin, *end).
static void visible_keys(const Attention* a, int b, int i, size_t* begin, size_t* end) {
    int q_len = a->cu_q[b + 1] - a->cu_q[b], k_len = a->cu_k[b + 1] - a->cu_k[b];
    int offset = a->causal_offset ? a->causal_offset[b] : k_len - q_len;
    *begin = (size_t)a->cu_k[b];
    *end = *begin + (size_t)(a->causal ? MAX(0, MIN(k_len, i + offset + 1)) : k_len);
}

static void attention_forward(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    size_t Nq = (size_t)a->cu_q[a->n_docs], k0, k1;
    DType out_dt = a->partial ? DT_F32 : dt;
    for (int b = 0; b < a->n_docs; b++)
        for (int i = 0; i < a->cu_q[b + 1] - a->cu_q[b]; i++)
            for (int h = 0; h < a->NH; h++) {
                size_t query = (size_t)a->cu_q[b] + i;
                visible_keys(a, b, i, &k0, &k1);
                double max = -INFINITY, total = 0;
                for (size_t k = k0; k < k1; k++) max = fmax(max, score(a, query, k, h, dt));
                for (size_t k = k0; k < k1; k++) total += exp(score(a, query, k, h, dt) - max);
                lse[h * Nq + query] = k0 < k1 ? (float)(max + log(total)) : -INFINITY;
                for (int j = 0; j < a->HS; j++) {
                    double sum = 0;
                    for (size_t k = k0; k < k1; k++)
                        sum +=
                            exp(score(a, query, k, h, dt) - max) / total * load(a->v, k * a->ldkv + h * a->HS + j, dt);
                    store(out, query * a->ldo + h * a->HS + j, sum, out_dt);
                }
            }
}

// An element of dq, dk or dv: the gradient itself, or, of a part, a share of it.
static void put_gradient(void* to, size_t i, double x, const Attention* a, DType dt) {
    if (a->partial) store(to, i, load(to, i, DT_F32) + x, DT_F32);
    else store(to, i, x, dt);
}

// With P = exp(S - lse):  dV = P^T dO,  dS = P (dO V^T - D) with D = dO . O by row,  dQ = scale dS K,  dK = scale
// dS^T Q.
static void attention_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                               const Attention* a, DType dt, Stream s) {
    int HS = a->HS, ld_dq = a->partial ? a->ld_dq : a->ldq, ld_dkv = a->partial ? a->ld_dkv : a->ldkv;
    size_t Nq = (size_t)a->cu_q[a->n_docs], k0, k1;
    for (int b = 0; b < a->n_docs; b++)
        for (int h = 0; h < a->NH; h++) {
            size_t first_key = (size_t)a->cu_k[b], k_len = (size_t)(a->cu_k[b + 1] - a->cu_k[b]);
            double* dk_sum =
                (double*)calloc(2 * k_len * HS + 1, sizeof(double));  // the one allocation of this file: tests only
            double* dv_sum = dk_sum + k_len * HS;
            for (int i = 0; i < a->cu_q[b + 1] - a->cu_q[b]; i++) {
                size_t query = (size_t)a->cu_q[b] + i, row_o = query * a->ldo + h * HS, row_q = query * a->ldq + h * HS;
                visible_keys(a, b, i, &k0, &k1);
                double D = 0;
                for (int j = 0; j < HS; j++) D += load(dout, row_o + j, dt) * load(out, row_o + j, dt);
                for (int j = 0; j < HS; j++) {
                    double sum = 0;  // dq[j]
                    for (size_t k = k0; k < k1; k++) {
                        double p = exp(score(a, query, k, h, dt) - lse[h * Nq + query]), dp = 0;
                        for (int c = 0; c < HS; c++)
                            dp += load(dout, row_o + c, dt) * load(a->v, k * a->ldkv + h * HS + c, dt);
                        double ds = p * (dp - D) * a->scale;
                        sum += ds * load(a->k, k * a->ldkv + h * HS + j, dt);
                        dk_sum[(k - first_key) * HS + j] += ds * load(a->q, row_q + j, dt);
                        dv_sum[(k - first_key) * HS + j] += p * load(dout, row_o + j, dt);
                    }
                    put_gradient(dq, query * ld_dq + h * HS + j, sum, a, dt);
                }
            }
            for (size_t k = 0; k < k_len; k++)
                for (int j = 0; j < HS; j++) {
                    size_t at = (first_key + k) * ld_dkv + h * HS + j;
                    put_gradient(dk, at, dk_sum[k * HS + j], a, dt);
                    put_gradient(dv, at, dv_sum[k * HS + j], a, dt);
                }
            free(dk_sum);
        }
}

static void attention_merge(float* out, float* lse, const float* part, const float* part_lse, int N, int NH, int HS,
                            Stream s) {
    for (size_t n = 0; n < (size_t)N; n++)
        for (size_t h = 0; h < (size_t)NH; h++) {
            double x = lse[h * N + n], y = part_lse[h * N + n], max = fmax(x, y), a = exp(x - max), b = exp(y - max);
            if (x == -INFINITY && y == -INFINITY) continue;
            lse[h * N + n] = (float)(max + log(a + b));
            for (size_t i = (n * NH + h) * HS; i < (n * NH + h + 1) * HS; i++)
                out[i] = (float)((a * out[i] + b * part[i]) / (a + b));
        }
}

// ---- conversions, moves and loss

static void cast(void* out, DType out_dt, const void* x, DType x_dt, size_t n, Stream s) {
    for (size_t i = 0; i < n; i++) store(out, i, load(x, i, x_dt), out_dt);
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

// Where head h of matrix m of token n lies, in heads, when d slices of the heads lie one after another.
static size_t split_head(size_t n, size_t m, int h, int N, int M, int NH, int d) {
    int slice = 0;
    while ((slice + 1) * NH / d <= h) slice++;
    size_t first = (size_t)(slice * NH / d), heads = (size_t)((slice + 1) * NH / d) - first;
    return N * M * first + (n * M + m) * heads + (h - first);
}

// Between x (N,M,NH,HS) and its d slices of heads, one after another.
static void move_heads(char* slices, char* x, int split, int N, int M, int NH, size_t bytes, int d) {
    for (size_t n = 0; n < (size_t)N; n++)
        for (size_t m = 0; m < (size_t)M; m++)
            for (int h = 0; h < NH; h++) {
                char* slice = slices + split_head(n, m, h, N, M, NH, d) * bytes;
                char* whole = x + ((n * M + m) * NH + h) * bytes;
                memcpy(split ? slice : whole, split ? whole : slice, bytes);
            }
}

static void split_heads(void* out, const void* x, int N, int M, int NH, int HS, int d, DType dt, Stream s) {
    move_heads((char*)out, (char*)x, 1, N, M, NH, HS * dtype_bytes(dt), d);
}

static void join_heads(void* out, const void* x, int N, int M, int NH, int HS, int d, DType dt, Stream s) {
    move_heads((char*)x, (char*)out, 0, N, M, NH, HS * dtype_bytes(dt), d);
}

static void gather_columns(void* out, const void* x, const int* columns, int N, int n, int ldx, DType dt, Stream s) {
    size_t elem = dtype_bytes(dt);
    for (size_t i = 0; i < (size_t)N; i++)
        for (size_t j = 0; j < (size_t)n; j++)
            memcpy((char*)out + (i * n + j) * elem, (const char*)x + (i * ldx + (size_t)columns[j]) * elem, elem);
}

static void scatter_columns(void* out, const void* x, const int* source, ColumnFill fill, int N, int K, int n, DType dt,
                            Stream s) {
    size_t elem = dtype_bytes(dt);
    for (size_t i = 0; i < (size_t)N; i++) {
        double mean = 0;
        for (size_t j = 0; j < (size_t)n && fill == FILL_MEAN; j++) mean += load(x, i * n + j, dt) / n;
        for (size_t c = 0; c < (size_t)K; c++) {
            if (source[c] >= 0)
                memcpy((char*)out + (i * K + c) * elem, (const char*)x + (i * n + (size_t)source[c]) * elem, elem);
            else if (fill != FILL_KEEP) store(out, i * K + c, mean, dt);
        }
    }
}

static void add_sum(double* result, const float* x, size_t n, Stream s) {
    for (size_t i = 0; i < n; i++) *result += x[i];
}

static void classifier(float* losses, void* logits, const int* targets, float scale, int write_gradient, int N, int V,
                       int Vp, DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++) {
        double max = -INFINITY, total = 0;
        for (size_t v = 0; v < (size_t)V; v++) max = fmax(max, load(logits, n * Vp + v, dt));
        for (size_t v = 0; v < (size_t)V; v++) total += exp(load(logits, n * Vp + v, dt) - max);
        int target = targets[n];
        losses[n] = target < 0 ? 0 : (float)(max + log(total) - load(logits, n * Vp + target, dt));
        for (size_t v = 0; v < (size_t)Vp && write_gradient; v++) {
            double p = v < (size_t)V ? exp(load(logits, n * Vp + v, dt) - max) / total : 0;
            store(logits, n * Vp + v, target < 0 || v >= (size_t)V ? 0 : (p - (v == (size_t)target)) * scale, dt);
        }
    }
}

static void classifier_part(float* stats, const void* logits, const int* targets, int first, int N, int V, int Vp,
                            DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++) {
        double max = -INFINITY, total = 0;
        int target = targets[n] - first, mine = targets[n] >= first && target < V;
        for (size_t v = 0; v < (size_t)V; v++) max = fmax(max, load(logits, n * Vp + v, dt));
        for (size_t v = 0; v < (size_t)V; v++) {
            double x = load(logits, n * Vp + v, dt);
            if (x != -INFINITY) total += exp(x - max);  // with max = -infinity too it would be a NaN
        }
        stats[3 * n] = (float)max;
        stats[3 * n + 1] = (float)total;
        stats[3 * n + 2] = mine ? (float)load(logits, n * Vp + (size_t)target, dt) : 0;
    }
}

// Sums in rank order. A part without any logit, or of hidden ones only, adds 0 exp(-infinity).
CpuSoftmax cpu_join_softmax(const float* stats, int parts, size_t N, size_t n) {
    double max = -INFINITY, total = 0, at_target = 0;
    for (size_t p = 0; p < (size_t)parts; p++) max = fmax(max, stats[(p * N + n) * 3]);
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
            double p = v < (size_t)V ? exp(load(logits, n * Vp + v, dt) - all.max) / all.total : 0;
            int hit = (size_t)first + v == (size_t)targets[n];
            store(logits, n * Vp + v, targets[n] < 0 || v >= (size_t)V ? 0 : (p - hit) * scale, dt);
        }
    }
}

// ---- optimizer

static void adamw(const AdamW* a, DType dt, Stream s) {
    double m_correction = 1 - pow(a->beta1, a->t), v_correction = 1 - pow(a->beta2, a->t), scale = *a->grad_scale;
    for (size_t i = 0; i < a->n && isfinite(scale); i++) {
        if (a->freeze && a->grad[i] == 0) continue;
        double g = scale * a->grad[i];
        double m = a->beta1 * a->m[i] + (1.0 - a->beta1) * g, v = a->beta2 * a->v[i] + (1.0 - a->beta2) * g * g;
        a->m[i] = (float)m;
        a->v[i] = (float)v;
        double step = m / m_correction / (sqrt(v / v_correction) + a->eps) + a->weight_decay * a->master[i];
        a->master[i] = (float)(a->master[i] - a->lr * step);
        if (dt == DT_BF16) ((bf16*)a->param)[i] = bf16_round(a->master[i], a->rounding, a->first + i);
        else if (a->param != a->master) store(a->param, i, a->master[i], dt);
    }
}

static void sum_of_squares(double* result, const float* x, size_t n, Stream s) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    *result += sum;
}

static void clip_scale(float* scale, const double* norm2, float clip, Stream s) {
    double norm = sqrt(*norm2);
    *scale = !isfinite(norm) ? NAN : clip > 0 && norm > clip ? (float)(clip / norm) : 1;
}

const Kernels cpu_reference_kernels = {
    .name = "cpu reference",
    .on_host = 1,
    .full_matmul = 1024,
    .memory_available = memory_available,
    .workspace_bytes = workspace_bytes,
    .open = open_nothing,
    .close = close_nothing,
    .choices = no_choices,
    .alloc = alloc,
    .free_memory = free_memory,
    .alloc_host = alloc,
    .free_host = free_memory,
    .upload = upload,
    .download = download,
    .clear = clear,
    .synchronize = synchronize,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .layernorm_forward = layernorm_forward,
    .residual_layernorm_forward = residual_layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .matmul_forward = matmul_forward,
    .matmul_backward_input = matmul_backward_input,
    .matmul_backward_weight = matmul_backward_weight,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .attention_merge = attention_merge,
    .gelu_forward = gelu_forward,
    .add = add,
    .cast = cast,
    .gather_rows = gather_rows,
    .split_heads = split_heads,
    .join_heads = join_heads,
    .gather_columns = gather_columns,
    .scatter_columns = scatter_columns,
    .scatter_rows = scatter_rows,
    .classifier = classifier,
    .classifier_part = classifier_part,
    .classifier_join = classifier_join,
    .add_sum = add_sum,
    .adamw = adamw,
    .sum_of_squares = sum_of_squares,
    .clip_scale = clip_scale,
    .clock = cpu_clock,
    .record_event = record_event,
    .read_events = read_events,
};
