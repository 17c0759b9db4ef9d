// kernels.h - the table of operations. One backend fills one table; the program holds one pointer to it.
//
// How to read an entry: the equation first, then each argument as name (shape) with its type where it is not `dt`,
// `=` for an output that is overwritten and `+=` for one that is added to. Dimension letters:
//   N  tokens of a row (all documents of the row, one after another)   C  channels      OC  output channels
//   NH query heads, NKV key/value heads (NKV divides NH), HS head size  V  vocabulary    Vp  padded vocabulary
// Matrices are row-major. Weights are (OC, C) as in y = x W^T.
//
// Contract of every entry, unless it says otherwise:
//   - tensors of activations and weights have type dt; statistics, losses and gradients of weights are fp32;
//   - sums are taken in fp32 or wider; results are the same bits on every run, whatever the number of threads;
//   - outputs do not alias inputs; pointers are 64-byte aligned when they come from `alloc` (offsets need not be);
//   - dt is DT_F32 or DT_BF16; the reference table also takes DT_F64;
//   - any N >= 0 and any C, OC >= 1 is accepted, no multiple of anything is required;
//   - work is ordered on the stream s and may not have finished on return (the CPU backend has finished);
//   - nothing is allocated: scratch memory is taken once by `open`.
#pragma once
#include "plan/base/base.h"

typedef struct Stream_* Stream;  // an ordered queue of work; NULL is the backend's default (the CPU has no other)

// On CUDA: the fastest that is right, own by mma.sync, cuDNN's forward pass, own by wgmma (Hopper).
typedef enum AttentionKernels { ATTENTION_AUTO, ATTENTION_OWN, ATTENTION_CUDNN, ATTENTION_WGMMA } AttentionKernels;

// The limits that a backend must be ready for: the largest dimensions of any later call, and choices for all calls.
typedef struct KernelLimits {
    int N;       // tokens of a row
    int spread;  // attention may get N * spread tokens of NKV / spread key/value heads, rounded up; 1 without groups
    int C;       // the widest matrix input: 4 times the channels in a GPT-2
    int OC;      // the widest matrix output: that, or the padded vocabulary
    int NH, NKV, HS;  // query heads, key/value heads, head size
    int context;      // the longest document
    int threads;      // CPU threads; 0: one for each core that the process may use
    DType dt;
    AttentionKernels attention;
    size_t most_scratch;  // bytes that a faster way, where there is a way without, may take for scratch; 0: 1 GiB
    int oversubscribed;   // 1: ranks share cores, so that events on the CPU are of processor time
} KernelLimits;

enum {
    ADAMW_TENSORS = 42,     // of a call: what the 4 KiB of a launch's parameters have room for
    MOST_EVENTS = 1 << 14,  // in the time of a step: see Kernels.record_event
    ATTENTION_TAIL = 128    // rows: the most of Kernels.attention_tail, that tiles of a library's kernels may reach
};

// Attention over packed documents. Query i of document b (of q_len = cu_q[b+1] - cu_q[b]) sees the keys
// 0 .. i + (k_len - q_len) of the same document: causal, aligned at the end, so that a few new queries may follow a
// cache of older keys. With causal_offset it sees the keys 0 .. i + causal_offset[b] instead: for pieces of a document
// that lie elsewhere, as on a ring of ranks. With causal = 0 it sees every key of its document. A query that sees no
// key has out = 0, lse = -infinity and gradients 0; documents without queries or without keys are fine.
// Query head h reads key/value head h / (NH / NKV): NH / NKV query heads share one.
// Element (row n, head h, j) of q lies at q[n * ldq + h * HS + j]; likewise k and v with ldkv, out with ldo.
typedef struct Attention {
    const void* q;       // (cu_q[n_docs], NH, HS)
    const void* k;       // (cu_k[n_docs], NKV, HS)
    const void* v;       // (cu_k[n_docs], NKV, HS)
    const int* cu_q;     // (n_docs + 1) int32, cu_q[0] = 0: where each document's queries begin
    const int* cu_k;     // (n_docs + 1) int32: where each document's keys begin. Forward, cu_k may fall at documents
                         // without queries: others then have their keys in any order
    int Nq, Nk;          // cu_q[n_docs], the greatest of cu_k: known on the host too
    int ldq, ldkv, ldo;  // row strides in elements
    int n_docs, NH, NKV, HS;
    int causal;
    const int* causal_offset;  // (n_docs) int32, from -2^30 to 2^30; NULL: k_len - q_len
    float scale;               // of the scores, usually 1 / sqrt(HS)
    // 1: a part of a larger attention, over some of its keys. The forward pass writes out in fp32, for attention_merge;
    // the backward pass is given the merged out and lse, both as without this flag, and adds its share to dq (stride
    // ld_dq), dk and dv (stride ld_dkv), which are fp32 and `+=`.
    int partial;
    int ld_dq, ld_dkv;
    // Number of rows after the last one of q, k and v, if these are parts of one matrix, that the forward pass may
    // overwrite and read. It touches no others, and whatever lies after the last token changes no result.
    int tail;
    uint64_t row;  // calls with one number, other than 0, find the same values at cu_q, cu_k and causal_offset
} Attention;

// The positions of a row's queries and keys, and their turning (RoPE, Su et al. 2021, in halves): in each head vector
// (x[j], x[j + HS/2]) becomes (x[j] c - x[j + HS/2] s, x[j + HS/2] c + x[j] s) for j < HS / 2, with c, s the
// table's entry for the token's position and j. Before that, with weights, each is normed over its HS elements: QK-norm
// (Dehghani et al. 2023), by RMSNorm as in norm_forward.
typedef struct Rotary {
    const int* positions;             // (N) int32, on the device, below the table's rows
    const float* table;               // (context, HS / 2, 2) fp32: cos and sin of the angle
    int N, NH, NKV, HS, ld;           // x (N, NH + NKV heads, HS; row stride ld), queries, then keys; HS is even
    const void *q_weight, *k_weight;  // (HS) of dt, of every query head and every key head; both NULL: no norm
    float eps;
} Rotary;

// The place of a part in its whole tensor: element i stands at first + i, plus `gap` for each row of the part, of
// `cols` columns, that ends before it; element 0 stands in column `col`. gap 0: whole rows.
typedef struct Place {
    size_t first, col, cols, gap;
} Place;

static inline size_t place_of(const Place* p, size_t i) {
    return p->first + i + (p->gap ? (p->col + i) / p->cols * p->gap : 0);
}

// AdamW on one tensor (Loshchilov & Hutter 2019), with bias correction by the 1-based step t:
//   g' = *grad_scale * g;  m = b1 m + (1-b1) g';  v = b2 v + (1-b2) g'^2
//   master -= lr * (m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) + weight_decay * master)
// If *grad_scale is not finite, nothing changes.
typedef struct AdamW {
    void* param;        // (n) `=`, dt: master rounded; with fp32 it may be master itself
    float* master;      // (n) `+=`
    float *m, *v;       // (n) updated
    const float* grad;  // (n)
    size_t n;
    Place place;  // of the n elements, for `rounding`: a rank may own a part of a tensor
    float lr, beta1, beta2, eps, weight_decay;
    const float* grad_scale;  // (1) on the device: see clip_scale
    int t;                    // 1 for the first step
    // Chooses the rounding of bf16 weights. 0: to nearest. Else stochastic (Gupta et al. 2015): an element is the upper
    // half of (bits of its master) + (hash64(rounding ^ its place) & 0xffff), so that its expected value is the master,
    // and its bits are the same however ranks divide the tensor.
    uint64_t rounding;
    // 1: an element whose gradient is exactly 0 is left as it is, with its moments: nothing was computed for it.
    int freeze;
} AdamW;

// A token to draw from a row of logits: its random number, and the result.
typedef struct Draw {
    double u;       // uniform in [0, 1): the caller's, so that the same draw can be made again anywhere
    float logprob;  // =
    int token;      // =
} Draw;

// The way in which tokens are drawn: see Kernels.sample.
typedef struct Sampling {
    int V, ids;          // columns of the softmax; only the first `ids` of them stand for text and are drawn
    double temperature;  // divides logits; 0: the likeliest id is drawn
    int top_k;           // ids with one of the k largest logits are drawn, and those equal to the last; 0: all
} Sampling;

typedef struct Kernels {
    const char* name;  // for people: "cpu avx512", ...

    int prefers_bf16;    // matmuls of bf16 run much faster than those of fp32: --dtype auto means bf16
    int on_host;         // memory of alloc is ordinary host memory
    int full_matmul;     // edge of the square matmul that fills the device: what kernels_peak measures
    int virtual_time;    // clock and events are of a virtual time, which ops and collectives advance: virtual/virtual.h
    int no_results;      // then, too, no op computes anything: memory holds only what was uploaded
    int attention_tail;  // rows: an Attention with these in `tail` may run faster; 0: none does
    int sums_dx;         // norm_backward of LayerNorm takes dx_sums: cheaper than reading dx again
    size_t libraries, comm_libraries;  // bytes of device memory that its libraries, and the transport's, take at most
    const struct RankOps* ranks;  // ops that only many ranks use (kernels/rank_ops.h); NULL: this table runs on one

    // ---- the device and its memory

    size_t (*memory_available)(void);                       // bytes that could be allocated now
    size_t (*workspace_bytes)(const KernelLimits* limits);  // scratch that `open` will take
    // Gets the device ready. 0, or -1 with a message. One open at a time a backend; reopen after close.
    int (*open)(const KernelLimits* limits, Err err);
    void (*close)(void);
    const char* (*choices)(void);  // the choices that open made, as a line for people; empty: none
    // Returns zeroed device memory, 64-byte aligned, or NULL. free_memory frees it (NULL is fine); it outlives close.
    void* (*alloc)(size_t bytes);
    void (*free_memory)(void* p);
    void* (*alloc_host)(size_t bytes);  // host memory, zeroed, from which uploads are asynchronous; or NULL
    void (*free_host)(void* p);
    // The host bytes may be overwritten on return, unless they are of alloc_host: then only when s has done the upload.
    void (*upload)(void* device, const void* host, size_t bytes, Stream s);
    void (*download)(void* host, const void* device, size_t bytes, Stream s);  // has finished on return
    void (*clear)(void* device, size_t bytes, Stream s);
    void (*synchronize)(Stream s);

    // ---- embedding: out[n] = wte[tokens[n]] + wpe[positions[n]]

    // out (N,C) =, tokens (N) int32 in [0, Vp), positions (N) int32, wte (Vp,C), wpe (context,C) or NULL: left out.
    void (*embedding_forward)(void* out, const int* tokens, const int* positions, const void* wte, const void* wpe,
                              int N, int C, DType dt, Stream s);
    // Backward: dwte[tokens[n]] += dout[n], dwpe[positions[n]] += dout[n], in the order of rows.
    // dwte (Vp,C) +=, dwpe (context,C) +=, both fp32; dout (N,C). A negative token adds nothing to dwte: it belongs to
    // another rank. tokens or positions may be NULL: then that table is left alone.
    void (*embedding_backward)(float* dwte, float* dwpe, const void* dout, const int* tokens, const int* positions,
                               int N, int C, DType dt, Stream s);

    // ---- norms over the last axis, of x (N,C)
    //   LayerNorm (Ba et al. 2016):        out = (x - mean) * rstd * weight + bias,  rstd = 1 / sqrt(variance + eps)
    //   RMSNorm (Zhang & Sennrich 2019):   out = x * rstd * weight,                  rstd = 1 / sqrt(mean(x^2) + eps)
    // A `mean` of NULL asks for RMSNorm, which has no bias: `bias` and `dbias` are NULL too.

    // The residual stream and the norm that follows it in one pass: sum = a + b, rounded to dt; out = norm(sum).
    // If b is NULL, out = norm(a), and sum is not written (may be NULL).
    // sum (N,C) = (may be a or b), out (N,C) =, mean (N) fp32 =, rstd (N) fp32 =, a and b (N,C), weight and bias (C).
    void (*norm_forward)(void* sum, void* out, float* mean, float* rstd, const void* a, const void* b,
                         const void* weight, const void* bias, float eps, int N, int C, DType dt, Stream s);
    // Backward, with xhat = (x - mean) * rstd and g = dout * weight; means over C, sums over rows:
    //   dx += rstd * (g - mean(g) - xhat * mean(g * xhat)),  dweight += sum(dout * xhat),  dbias += sum(dout)
    // RMSNorm: xhat = x * rstd,  dx += rstd * (g - xhat * mean(g * xhat)),  dweight as above.
    // dx (N,C) +=, dweight (C) fp32 +=, dbias (C) fp32 +=; dout (N,C), x (N,C), mean and rstd from the forward pass.
    // dx_sums (C) fp32 += the column sums of the dx that is left, which is the gradient of the bias of a linear before
    // the residual stream; NULL: none. Only with sums_dx.
    void (*norm_backward)(void* dx, float* dweight, float* dbias, float* dx_sums, const void* dout, const void* x,
                          const void* weight, const float* mean, const float* rstd, int N, int C, DType dt, Stream s);

    // ---- matmul: out = x W^T + bias;  dx = dout W,  dW += dout^T x,  dbias += column sums of dout

    // out (N,OC) =, x (N,C), weight (OC,C), bias (OC) or NULL.
    // If gelu is not NULL, gelu (N,OC) = GELU(out), of the rounded out, the same bits as of activation_forward.
    void (*matmul_forward)(void* out, void* gelu, const void* x, const void* weight, const void* bias, int N, int C,
                           int OC, DType dt, Stream s);
    // dx (N,C) =; dout (N,OC), weight (OC,C). With pre (N,C) not NULL, x was GELU(pre) and the result is the gradient
    // of pre: dx *= GELU'(pre). A device may round the product to dt before that factor.
    void (*matmul_backward_input)(void* dx, const void* dout, const void* weight, const void* pre, int N, int C, int OC,
                                  DType dt, Stream s);
    // dweight (OC,C) fp32 +=, dbias (OC) fp32 += or NULL; dout (N,OC), x (N,C).
    void (*matmul_backward_weight)(float* dweight, float* dbias, const void* dout, const void* x, int N, int C, int OC,
                                   DType dt, Stream s);

    // ---- rotary positions and QK-norm, in place: see struct Rotary

    // x = rotated(normed(x)), rounded once; raw (N, NH + NKV, HS) = what x was before, for the backward pass; NULL
    // without QK-norm.
    void (*rotary_forward)(void* x, void* raw, const Rotary* r, DType dt, Stream s);
    // dx (the places and row stride of x): in, the gradient of the result, out, that of the input. With g = dx rotated
    // back, xhat = raw * rstd and h = g * weight, means over HS, sums over rows and heads:
    //   dx = rstd * (h - xhat * mean(h * xhat)),  dweight += sum(g * xhat);  dx = g without QK-norm
    // dq_weight, dk_weight (HS) fp32 += and raw from the forward pass; NULL without QK-norm.
    void (*rotary_backward)(void* dx, float* dq_weight, float* dk_weight, const void* raw, const Rotary* r, DType dt,
                            Stream s);

    // ---- attention: out = softmax(scale q k^T) v within each document; see struct Attention
    // No T x T matrix is ever stored: the forward pass keeps a running maximum and sum (Milakov & Gimelshein 2018; Dao
    // et al. 2022), the backward pass recomputes probabilities from lse, the log-sum-exp of the scaled scores:
    //   P = exp(scale q k^T - lse),  dS = P * (dout v^T - D) with D[i] = sum of dout[i] * out[i],
    //   dq = scale dS k,  dk = scale dS^T q,  dv = P^T dout

    // out (Nq,NH,HS; stride ldo) =, lse (NH,Nq) fp32 = with Nq = cu_q[n_docs]. Any bits may lie after the last tokens.
    void (*attention_forward)(void* out, float* lse, const Attention* a, DType dt, Stream s);
    // dq, dk, dv = with the strides and shapes of q, k, v; dout and out with ldo; lse from the forward pass. dk and dv
    // of a key/value head are sums over its query heads, in ascending order. Any bits may lie after the last tokens.
    void (*attention_backward)(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                               const Attention* a, DType dt, Stream s);

    // ---- elementwise

    // GELU by tanh (Hendrycks & Gimpel 2016): with u = sqrt(2/pi) (x + 0.044715 x^3),
    //   GELU(x) = x (1 + tanh u) / 2,  GELU'(x) = (1 + tanh u) / 2 + x (1 - tanh^2 u) / 2 du/dx
    // SwiGLU (Shazeer 2020): silu(gate) * up, silu(z) = z / (1 + exp(-z)); x has U gates, then U ups in each row.
    // out (N,U) = f(x), x (N, act_runs(f) * U). For GELU also a part of matmul_forward.
    void (*activation_forward)(void* out, const void* x, ActFunction f, int N, int U, DType dt, Stream s);
    // dx (N, act_runs(f) * U) =, dout (N,U). For GELU also a part of matmul_backward_input.
    void (*activation_backward)(void* dx, const void* dout, const void* x, ActFunction f, int N, int U, DType dt,
                                Stream s);
    // out (n) = a + b, rounded to dt; out may be a or b.
    void (*add)(void* out, const void* a, const void* b, size_t n, DType dt, Stream s);

    // ---- loss: softmax cross-entropy of one chunk of rows, fused with its gradient

    // losses (N) fp32 = -log softmax(logits[n])[targets[n]], 0 where targets[n] is negative (no label).
    // write_gradient makes logits (N,Vp) = (softmax - onehot) * scale, the gradient of scale * loss; 0 in unlabelled
    // rows and in columns V .. Vp. Otherwise logits are left as they are. The softmax is over the first V columns.
    void (*classifier)(float* losses, void* logits, const int* targets, float scale, int write_gradient, int N, int V,
                       int Vp, DType dt, Stream s);

    // ---- generation: a token of each row of logits
    // With z = logits[n], best = the first id of the largest z: id v weighs exp((z[v] - z[best]) / temperature), or 0
    // where z[v] is none of the top_k largest. W(v) = the weights of the ids up to v, added in rising order:
    //   token = the first id with u W(ids - 1) < W(token);  best with temperature 0, or where rounding leaves none
    //   logprob = z[token] - log(sum of exp(z[v]) over all v < V): the model's own, whatever the temperature
    // A NaN or an infinity in the row makes logprob one that is not finite, and token any id.
    // draws (N): u is read, the rest =; logits (N,Vp).
    void (*sample)(Draw* draws, const void* logits, const Sampling* how, int N, int Vp, DType dt, Stream s);

    // result (1) double += sum of x[i] in a fixed order, in double; on the device. For losses.
    void (*add_sum)(double* result, const float* x, size_t n, Stream s);

    // ---- optimizer

    // Steps n <= ADAMW_TENSORS tensors that share no memory, in one launch. The bits are those of a call each. All have
    // the first one's lr, beta1, beta2, eps, grad_scale and t.
    void (*adamw)(const AdamW* a, int n, DType dt, Stream s);
    // result (1) double += sum of x[i]^2 in a fixed order; on the device.
    void (*sum_of_squares)(double* result, const float* x, size_t n, Stream s);
    // scale (1) fp32 = min(1, clip / sqrt(norm2)), 1 with clip = 0; NaN where norm2 is not finite. Both on the device.
    void (*clip_scale)(float* scale, const double* norm2, float clip, Stream s);

    // ---- time

    double (*clock)(void);  // seconds; with KernelLimits.oversubscribed on the CPU processor time of this thread
    // Records event i < MOST_EVENTS: the moment when s has done all that it was given so far. Overwrites event i.
    void (*record_event)(int i, Stream s);
    // seconds (n) = times of the events 0 .. n - 1, from any common origin. Waits for them.
    void (*read_events)(double* seconds, int n);
    void (*wait_until)(double seconds);  // the clock is not before that; NULL but in virtual time
} Kernels;

extern const Kernels cpu_reference;  // every op in its plainest form; its memory_available is NULL
