// reference.c - every op in its plainest form. This file is the specification: the fast versions are tested against it.
//
// Tensors are read element by element, computed on in double and rounded once, whatever their type; with DT_F64 nothing
// is rounded at all, which is what finite differences want. Loops run in the order the sums are defined in, on one
// thread. Nothing here is fast, and nothing here should become fast. Equations: kernels.h.
#define _POSIX_C_SOURCE 200809L  // posix_memalign
#include <math.h>
#include <stdlib.h>

#include "kernels/kernels.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"  // the CPU has no streams: ops have finished when they return

static double load(const void* p, size_t i, DType dt) { return dtype_load(p, i, dt); }
static void store(void* p, size_t i, double x, DType dt) { dtype_store(p, i, x, dt); }
// Returns the greater, or a if b is NaN. With fmax gcc 12 for ARM ends in an internal error at -O3.
static double greater(double a, double b) { return b > a ? b : a; }

// ---- device and memory: the reference needs none of its own

static size_t workspace_bytes(const KernelLimits* limits) { return 0; }
static int open_nothing(const KernelLimits* limits, Err err) { return 0; }
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

static double events[MOST_EVENTS];  // readings of the clock
static void record_event(int i, Stream s) { events[i] = now_seconds(); }
static void read_events(double* seconds, int n) { memcpy(seconds, events, (size_t)n * sizeof(double)); }

// ---- embedding

static void embedding_forward(void* out, const int* tokens, const int* positions, const void* wte, const void* wpe,
                              int N, int C, DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++)
        for (size_t c = 0; c < (size_t)C; c++)
            store(out, n * C + c,
                  load(wte, (size_t)tokens[n] * C + c, dt) + (wpe ? load(wpe, (size_t)positions[n] * C + c, dt) : 0),
                  dt);
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

// ---- norms: LayerNorm, or with mean NULL RMSNorm

static void add(void* out, const void* a, const void* b, size_t n, DType dt, Stream s) {
    for (size_t i = 0; i < n; i++) store(out, i, load(a, i, dt) + load(b, i, dt), dt);
}

static void norm_forward(void* sum, void* out, float* mean, float* rstd, const void* a, const void* b,
                         const void* weight, const void* bias, float eps, int N, int C, DType dt, Stream s) {
    const void* x = b ? sum : a;
    if (b) add(sum, a, b, (size_t)N * C, dt, s);
    for (size_t n = 0; n < (size_t)N; n++) {
        double m = 0, square = 0;
        for (size_t c = 0; c < (size_t)C && mean; c++) m += load(x, n * C + c, dt);
        m /= C;
        for (size_t c = 0; c < (size_t)C; c++) square += (load(x, n * C + c, dt) - m) * (load(x, n * C + c, dt) - m);
        double r = 1 / sqrt(square / C + eps);
        for (size_t c = 0; c < (size_t)C; c++)
            store(out, n * C + c,
                  (load(x, n * C + c, dt) - m) * r * load(weight, c, dt) + (bias ? load(bias, c, dt) : 0), dt);
        if (mean) mean[n] = (float)m;
        rstd[n] = (float)r;
    }
}

// Without a mean its gradient, mean(g), is missing too.
static void norm_backward(void* dx, float* dweight, float* dbias, float* dx_sums, const void* dout, const void* x,
                          const void* weight, const float* mean, const float* rstd, int N, int C, DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++) {
        double m = mean ? mean[n] : 0, g_mean = 0, gx_mean = 0;
        for (size_t c = 0; c < (size_t)C; c++) {
            double xhat = (load(x, n * C + c, dt) - m) * rstd[n], g = load(dout, n * C + c, dt) * load(weight, c, dt);
            if (mean) g_mean += g / C;
            gx_mean += g * xhat / C;
        }
        for (size_t c = 0; c < (size_t)C; c++) {
            double xhat = (load(x, n * C + c, dt) - m) * rstd[n], d = load(dout, n * C + c, dt);
            store(dx, n * C + c,
                  load(dx, n * C + c, dt) + rstd[n] * (d * load(weight, c, dt) - g_mean - xhat * gx_mean), dt);
            dweight[c] += (float)(d * xhat);
            if (dbias) dbias[c] += (float)d;
            if (dx_sums) dx_sums[c] += (float)load(dx, n * C + c, dt);
        }
    }
}

// ---- activations

static double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

static double gelu_gradient(double x) {
    double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void activation_forward(void* out, const void* x, ActFunction f, int N, int U, DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++)
        for (size_t u = 0; u < (size_t)U; u++) {
            size_t at = n * U * act_runs(f) + u;
            double z = load(x, at, dt);
            store(out, n * U + u, f == ACT_GELU ? gelu(z) : z * sigmoid(z) * load(x, at + U, dt), dt);
        }
}

// SwiGLU's gradients, h = sigmoid(gate):  dup = dout gate h,  dgate = dout up (h + gate h (1 - h)).
static void activation_backward(void* dx, const void* dout, const void* x, ActFunction f, int N, int U, DType dt,
                                Stream s) {
    for (size_t n = 0; n < (size_t)N; n++)
        for (size_t u = 0; u < (size_t)U; u++) {
            size_t at = n * U * act_runs(f) + u;
            double z = load(x, at, dt), d = load(dout, n * U + u, dt), h = sigmoid(z);
            double up = f == ACT_SWIGLU ? load(x, at + U, dt) : 0;
            store(dx, at, d * (f == ACT_GELU ? gelu_gradient(z) : up * (h + z * h * sigmoid(-z))), dt);
            if (f == ACT_SWIGLU) store(dx, at + U, d * z * h, dt);
        }
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

// ---- rotary positions, after QK-norm

static double root_mean_square_inverse(const void* x, size_t at, int HS, float eps, DType dt) {
    double square = 0;
    for (int j = 0; j < HS; j++) square += load(x, at + j, dt) * load(x, at + j, dt);
    return 1 / sqrt(square / HS + eps);
}

static void rotary_forward(void* x, void* raw, const Rotary* r, DType dt, Stream s) {
    int heads = r->NH + r->NKV, half = r->HS / 2;
    for (size_t n = 0; n < (size_t)r->N; n++)
        for (int h = 0; h < heads; h++) {
            size_t at = n * r->ld + h * r->HS, raw_at = (n * heads + h) * r->HS;
            const void* weight = h < r->NH ? r->q_weight : r->k_weight;
            double rstd = weight ? root_mean_square_inverse(x, at, r->HS, r->eps, dt) : 1;
            for (int j = 0; j < r->HS && raw; j++) store(raw, raw_at + j, load(x, at + j, dt), dt);
            for (int j = 0; j < half; j++) {
                const float* turn = r->table + ((size_t)r->positions[n] * half + j) * 2;
                double low = load(x, at + j, dt) * rstd, high = load(x, at + j + half, dt) * rstd;
                if (weight) low *= load(weight, j, dt), high *= load(weight, j + half, dt);
                store(x, at + j, low * turn[0] - high * turn[1], dt);
                store(x, at + j + half, high * turn[0] + low * turn[1], dt);
            }
        }
}

// Returns the gradient of the rotation's input j: its output's, turned back.
static double turned_back(const void* dx, size_t at, const float* turns, int j, int half, DType dt) {
    const float* turn = turns + j % half * 2;
    double d = load(dx, at + j, dt), other = load(dx, at + (j + half) % (2 * half), dt);
    return d * turn[0] + (j < half ? other : -other) * turn[1];
}

// Replaces g (HS), of a head vector with QK-norm, by the gradient of the norm's input.
static void qk_norm_backward(double* g, float* dweight, const void* weight, const void* raw, size_t at, int HS,
                             float eps, DType dt) {
    double rstd = root_mean_square_inverse(raw, at, HS, eps, dt), hx_mean = 0;
    for (int j = 0; j < HS; j++) hx_mean += g[j] * load(weight, j, dt) * load(raw, at + j, dt) * rstd / HS;
    for (int j = 0; j < HS; j++) {
        double xhat = load(raw, at + j, dt) * rstd;
        dweight[j] += (float)(g[j] * xhat);
        g[j] = rstd * (g[j] * load(weight, j, dt) - xhat * hx_mean);
    }
}

static void rotary_backward(void* dx, float* dq_weight, float* dk_weight, const void* raw, const Rotary* r, DType dt,
                            Stream s) {
    int heads = r->NH + r->NKV, half = r->HS / 2;
    double* g = (double*)calloc((size_t)r->HS + 1, sizeof(double));  // tests only
    for (size_t n = 0; n < (size_t)r->N; n++)
        for (int h = 0; h < heads; h++) {
            size_t at = n * r->ld + h * r->HS;
            const void* weight = h < r->NH ? r->q_weight : r->k_weight;
            const float* turns = r->table + (size_t)r->positions[n] * half * 2;
            for (int j = 0; j < r->HS; j++) g[j] = turned_back(dx, at, turns, j, half, dt);
            if (weight)
                qk_norm_backward(g, h < r->NH ? dq_weight : dk_weight, weight, raw, (n * heads + h) * r->HS, r->HS,
                                 r->eps, dt);
            for (int j = 0; j < r->HS; j++) store(dx, at + j, g[j], dt);
        }
    free(g);
}

// ---- attention

// Returns where the key or value of row `key` lies that query head h reads.
static size_t key_at(const Attention* a, size_t key, int h) {
    return key * a->ldkv + (size_t)(h / (a->NH / a->NKV)) * a->HS;
}

static double score(const Attention* a, size_t query, size_t key, int h, DType dt) {
    double sum = 0;
    for (int j = 0; j < a->HS; j++)
        sum += load(a->q, query * a->ldq + h * a->HS + j, dt) * load(a->k, key_at(a, key, h) + j, dt);
    return sum * a->scale;
}

// Finds the rows of keys that query i of document b sees: [*begin, *end).
static void visible_keys(const Attention* a, int b, int i, size_t* begin, size_t* end) {
    int q_len = a->cu_q[b + 1] - a->cu_q[b], k_len = a->cu_k[b + 1] - a->cu_k[b];
    int offset = a->causal_offset ? a->causal_offset[b] : k_len - q_len;
    *begin = (size_t)a->cu_k[b];
    *end = *begin + (size_t)(a->causal ? MAX(0, MIN(k_len, i + offset + 1)) : k_len);
}

static void attention_forward(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    size_t Nq = (size_t)a->cu_q[a->n_docs], k0, k1;
    double* sum = (double*)malloc(sizeof(double) * (size_t)a->HS);
    for (int b = 0; b < a->n_docs; b++)
        for (int i = 0; i < a->cu_q[b + 1] - a->cu_q[b]; i++)
            for (int h = 0; h < a->NH; h++) {
                size_t query = (size_t)a->cu_q[b] + i;
                visible_keys(a, b, i, &k0, &k1);
                double max = -INFINITY, total = 0;
                for (size_t k = k0; k < k1; k++) max = greater(max, score(a, query, k, h, dt));
                for (size_t k = k0; k < k1; k++) total += exp(score(a, query, k, h, dt) - max);
                lse[h * Nq + query] = k0 < k1 ? (float)(max + log(total)) : -INFINITY;
                for (int j = 0; j < a->HS; j++) sum[j] = 0;
                for (size_t k = k0; k < k1; k++) {
                    double p = exp(score(a, query, k, h, dt) - max) / total;
                    for (int j = 0; j < a->HS; j++) sum[j] += p * load(a->v, key_at(a, k, h) + j, dt);
                }
                for (int j = 0; j < a->HS; j++)
                    store(out, query * a->ldo + h * a->HS + j, sum[j], a->partial ? DT_F32 : dt);
            }
    free(sum);
}

// Writes an element of dq, dk or dv: the gradient itself, or, for a part, adds a share of it.
static void put_gradient(void* to, size_t i, double x, const Attention* a, DType dt) {
    if (a->partial) store(to, i, load(to, i, DT_F32) + x, DT_F32);
    else store(to, i, x, dt);
}

// Computes dq of query head h of document b, in sum (HS), and its share of dk and dv (k_len,HS) of its key/value head.
static void query_head_backward(void* dq, double* sum, double* dk, double* dv, const void* dout, const void* out,
                                const float* lse, const Attention* a, int b, int h, DType dt) {
    size_t Nq = (size_t)a->cu_q[a->n_docs], first_key = (size_t)a->cu_k[b], HS = (size_t)a->HS, k0, k1;
    for (int i = 0; i < a->cu_q[b + 1] - a->cu_q[b]; i++) {
        size_t query = (size_t)a->cu_q[b] + i, row_o = query * a->ldo + h * HS, row_q = query * a->ldq + h * HS;
        visible_keys(a, b, i, &k0, &k1);
        double D = 0;
        for (size_t j = 0; j < HS; j++) D += load(dout, row_o + j, dt) * load(out, row_o + j, dt), sum[j] = 0;
        for (size_t k = k0; k < k1; k++) {
            double p = exp(score(a, query, k, h, dt) - lse[h * Nq + query]), dp = 0;
            for (size_t j = 0; j < HS; j++) dp += load(dout, row_o + j, dt) * load(a->v, key_at(a, k, h) + j, dt);
            double ds = p * (dp - D) * a->scale;
            for (size_t j = 0; j < HS; j++) {
                sum[j] += ds * load(a->k, key_at(a, k, h) + j, dt);
                dk[(k - first_key) * HS + j] += ds * load(a->q, row_q + j, dt);
                dv[(k - first_key) * HS + j] += p * load(dout, row_o + j, dt);
            }
        }
        size_t row_dq = query * (a->partial ? a->ld_dq : a->ldq) + h * HS;
        for (size_t j = 0; j < HS; j++) put_gradient(dq, row_dq + j, sum[j], a, dt);
    }
}

static void attention_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                               const Attention* a, DType dt, Stream s) {
    size_t HS = (size_t)a->HS, ld_dkv = (size_t)(a->partial ? a->ld_dkv : a->ldkv);
    for (int b = 0; b < a->n_docs; b++)
        for (int kv = 0, g = a->NH / a->NKV; kv < a->NKV; kv++) {
            size_t first_key = (size_t)a->cu_k[b], k_len = (size_t)(a->cu_k[b + 1] - a->cu_k[b]);
            double* sum = (double*)calloc((1 + 2 * k_len) * HS, sizeof(double));
            double *dk_sum = sum + HS, *dv_sum = dk_sum + k_len * HS;
            for (int h = kv * g; h < (kv + 1) * g; h++)
                query_head_backward(dq, sum, dk_sum, dv_sum, dout, out, lse, a, b, h, dt);
            for (size_t i = 0; i < k_len * HS; i++) {
                size_t at = (first_key + i / HS) * ld_dkv + kv * HS + i % HS;
                put_gradient(dk, at, dk_sum[i], a, dt);
                put_gradient(dv, at, dv_sum[i], a, dt);
            }
            free(sum);
        }
}

// ---- loss

static void add_sum(double* result, const float* x, size_t n, Stream s) {
    for (size_t i = 0; i < n; i++) *result += x[i];
}

static void classifier(float* losses, void* logits, const int* targets, float scale, int write_gradient, int N, int V,
                       int Vp, DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++) {
        double max = -INFINITY, total = 0;
        for (size_t v = 0; v < (size_t)V; v++) max = greater(max, load(logits, n * Vp + v, dt));
        for (size_t v = 0; v < (size_t)V; v++) total += exp(load(logits, n * Vp + v, dt) - max);
        int target = targets[n];
        losses[n] = target < 0 ? 0 : (float)(max + log(total) - load(logits, n * Vp + target, dt));
        for (size_t v = 0; v < (size_t)Vp && write_gradient; v++) {
            double p = v < (size_t)V ? exp(load(logits, n * Vp + v, dt) - max) / total : 0;
            store(logits, n * Vp + v, target < 0 || v >= (size_t)V ? 0 : (p - (v == (size_t)target)) * scale, dt);
        }
    }
}

// ---- generation

// Returns the least logit that is drawn from: the k-th largest of n.
static double least_drawn(const void* z, int n, int k, DType dt) {
    double least = k > 0 && k < n ? INFINITY : -INFINITY, next;
    for (int found = 0; found < k && least > -INFINITY; least = next) {
        next = -INFINITY;
        for (int v = 0; v < n; v++)
            next = greater(next, load(z, (size_t)v, dt) < least ? load(z, (size_t)v, dt) : next);
        for (int v = 0; v < n; v++) found += load(z, (size_t)v, dt) == next;
    }
    return least;
}

static int draw_token(const void* z, const Sampling* how, double u, DType dt) {
    int best = 0;
    double weights = 0, total = 0, least = least_drawn(z, how->ids, how->top_k, dt);
    for (int v = 1; v < how->ids; v++)
        if (load(z, (size_t)v, dt) > load(z, (size_t)best, dt)) best = v;
    for (int pass = 0; pass < 2 && how->temperature > 0; pass++, total = weights, weights = 0)
        for (int v = 0; v < how->ids; v++) {
            double x = load(z, (size_t)v, dt);
            if (x >= least) weights += exp((x - load(z, (size_t)best, dt)) / how->temperature);
            if (pass == 1 && u * total < weights) return v;
        }
    return best;
}

static void sample(Draw* draws, const void* logits, const Sampling* how, int N, int Vp, DType dt, Stream s) {
    for (size_t n = 0; n < (size_t)N; n++) {
        const char* z = (const char*)logits + n * (size_t)Vp * dtype_bytes(dt);
        double max = -INFINITY, total = 0;
        for (size_t v = 0; v < (size_t)how->V; v++) max = greater(max, load(z, v, dt));
        for (size_t v = 0; v < (size_t)how->V; v++) total += exp(load(z, v, dt) - max);
        draws[n].token = draw_token(z, how, draws[n].u, dt);
        draws[n].logprob = (float)(load(z, (size_t)draws[n].token, dt) - max - log(total));
    }
}

// ---- optimizer

static void adamw_tensor(const AdamW* a, DType dt) {
    double m_correction = 1 - pow(a->beta1, a->t), v_correction = 1 - pow(a->beta2, a->t), scale = *a->grad_scale;
    for (size_t i = 0; i < a->n && isfinite(scale); i++) {
        if (a->freeze && a->grad[i] == 0) continue;
        double g = scale * a->grad[i];
        double m = a->beta1 * a->m[i] + (1.0 - a->beta1) * g, v = a->beta2 * a->v[i] + (1.0 - a->beta2) * g * g;
        a->m[i] = (float)m;
        a->v[i] = (float)v;
        double step = m / m_correction / (sqrt(v / v_correction) + a->eps) + a->weight_decay * a->master[i];
        a->master[i] = (float)(a->master[i] - a->lr * step);
        if (dt == DT_BF16) ((bf16*)a->param)[i] = bf16_round(a->master[i], a->rounding, place_of(&a->place, i));
        else if (a->param != a->master) store(a->param, i, a->master[i], dt);
    }
}

static void adamw(const AdamW* a, int n, DType dt, Stream s) {
    for (int i = 0; i < n; i++) adamw_tensor(&a[i], dt);
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

// clang-format off
// The entries stand in the order of the struct, so that none is missing.
const Kernels cpu_reference = {
    "cpu reference", 0, /* on_host */ 1, /* full_matmul */ 1024, 0, 0, /* attention_tail */ 0, 0, 0, 0,
    /* ranks */ NULL, /* memory_available */ NULL, workspace_bytes, open_nothing, close_nothing, no_choices,
    alloc, free_memory, alloc, free_memory, upload, download, clear, synchronize,
    embedding_forward, embedding_backward, norm_forward, norm_backward,
    matmul_forward, matmul_backward_input, matmul_backward_weight, rotary_forward, rotary_backward,
    attention_forward, attention_backward, activation_forward, activation_backward, add,
    classifier, sample, add_sum, adamw, sum_of_squares, clip_scale, now_seconds, record_event, read_events,
    /* wait_until */ NULL
};
// clang-format on
