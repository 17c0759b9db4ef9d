// kernels.h - the table of operations. One backend fills one table; the program holds one pointer to it.
//
// How to read an entry: the equation first, then each argument as name (shape) with its type where it is not `dt`,
// `=` for an output that is overwritten and `+=` for one that is added to. Dimension letters:
//   N  tokens of a row (all documents of the row, one after another)   C  channels      OC  output channels
//   NH heads, HS head size (C = NH * HS)                                V  vocabulary    Vp  padded vocabulary
// Matrices are row-major. Weights are (OC, C) as in y = x W^T.
//
// Contract of every entry, unless it says otherwise:
//   - tensors of activations and weights have type dt; statistics, losses and gradients of weights are fp32;
//   - sums are taken in fp32 or wider; results are the same bits on every run, whatever the number of threads;
//   - outputs do not alias inputs; pointers are 64-byte aligned when they come from `alloc` (offsets need not be);
//   - any N >= 0 and any C, OC >= 1 is accepted, no multiple of anything is required;
//   - work is ordered on the stream s and may not have finished on return (the CPU backend has finished);
//   - nothing is allocated: scratch memory is taken once by `open`.
#pragma once
#include "plan/base.h"

typedef struct Stream_* Stream;  // an ordered queue of work; NULL is the backend's default (the CPU has no other)

// What a backend must be ready for: the largest dimensions any later call will have.
typedef struct KernelLimits {
    int N;        // tokens of a row
    int C;        // the widest matrix input: 4 times the channels in a GPT-2
    int OC;       // the widest matrix output: that, or the padded vocabulary
    int NH, HS;   // heads, head size
    int context;  // the longest document
    int threads;  // CPU threads; 0: one for each core that the process may use
    DType dt;
} KernelLimits;

// Attention over packed documents. Query i of document b (of q_len = cu_q[b+1] - cu_q[b]) sees the keys
// 0 .. i + (k_len - q_len) of the same document: causal, aligned at the end, so that a few new queries may follow a
// cache of older keys. With causal = 0 it sees every key of its document.
// Element (row n, head h, j) of q lies at q[n * ldq + h * HS + j]; likewise k and v with ldkv, out with ldo.
typedef struct Attention {
    const void* q;       // (cu_q[n_docs], NH, HS)
    const void* k;       // (cu_k[n_docs], NH, HS)
    const void* v;       // (cu_k[n_docs], NH, HS)
    const int* cu_q;     // (n_docs + 1) int32, cu_q[0] = 0: where each document's queries begin
    const int* cu_k;     // (n_docs + 1) int32: where each document's keys begin; k_len >= q_len
    int ldq, ldkv, ldo;  // row strides in elements
    int n_docs, NH, HS;
    int causal;
    float scale;  // of the scores, usually 1 / sqrt(HS)
} Attention;

// AdamW on one tensor (Loshchilov & Hutter 2019), with bias correction by the 1-based step t:
//   g' = grad_scale * g;  m = b1 m + (1-b1) g';  v = b2 v + (1-b2) g'^2
//   master -= lr * (m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) + weight_decay * master)
typedef struct AdamW {
    void* param;        // (n) `=`, dt: master rounded to nearest; with fp32 it may be master itself
    float* master;      // (n) `+=`
    float *m, *v;       // (n) updated
    const float* grad;  // (n)
    size_t n;
    float lr, beta1, beta2, eps, weight_decay;
    float grad_scale;  // from the global-norm clip
    int t;             // 1 for the first step
} AdamW;

typedef struct Kernels {
    const char* name;  // what people read: "cpu avx512", ...

    // 1 when matmuls of bf16 run much faster than those of fp32, so that --dtype auto means bf16.
    int prefers_bf16;

    // ---- the device and its memory

    // Bytes that could be allocated now.
    size_t (*memory_available)(void);
    // Bytes that `open` will take for scratch with these limits.
    size_t (*workspace_bytes)(const KernelLimits* limits);
    // Gets the device ready. 0, or -1 with a message. One open at a time a backend; reopen after close.
    int (*open)(const KernelLimits* limits, char* err, size_t errlen);
    void (*close)(void);
    // Device memory, zeroed, 64-byte aligned; NULL when there is none left. Freed with free_memory (NULL is fine).
    void* (*alloc)(size_t bytes);
    void (*free_memory)(void* p);
    void (*upload)(void* device, const void* host, size_t bytes, Stream s);
    void (*download)(void* host, const void* device, size_t bytes, Stream s);  // has finished on return
    void (*zero)(void* device, size_t bytes, Stream s);
    void (*synchronize)(Stream s);

    // ---- embedding: out[n] = wte[tokens[n]] + wpe[positions[n]]

    // out (N,C) =, tokens (N) int32 in [0, Vp), positions (N) int32, wte (Vp,C), wpe (context,C).
    void (*embedding_forward)(void* out, const int* tokens, const int* positions, const void* wte, const void* wpe,
                              int N, int C, DType dt, Stream s);
    // dwte (Vp,C) +=, dwpe (context,C) +=, both fp32; dout (N,C). Tokens that occur twice are added in row order.
    void (*embedding_backward)(float* dwte, float* dwpe, const void* dout, const int* tokens, const int* positions,
                               int N, int C, DType dt, Stream s);

    // ---- LayerNorm over the last axis: out = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + 1e-5)

    // out (N,C) =, mean (N) fp32 =, rstd (N) fp32 =, x (N,C), weight (C), bias (C).
    void (*layernorm_forward)(void* out, float* mean, float* rstd, const void* x, const void* weight, const void* bias,
                              int N, int C, DType dt, Stream s);
    // The residual stream and the norm that follows it in one pass: sum = a + b, rounded to dt; out = LayerNorm(sum).
    // sum (N,C) = (may be a or b), out (N,C) =, mean (N) =, rstd (N) =, a (N,C), b (N,C).
    void (*residual_layernorm_forward)(void* sum, void* out, float* mean, float* rstd, const void* a, const void* b,
                                       const void* weight, const void* bias, int N, int C, DType dt, Stream s);
    // dx (N,C) +=, dweight (C) fp32 +=, dbias (C) fp32 +=; dout (N,C), x (N,C), mean and rstd from the forward pass.
    void (*layernorm_backward)(void* dx, float* dweight, float* dbias, const void* dout, const void* x,
                               const void* weight, const float* mean, const float* rstd, int N, int C, DType dt,
                               Stream s);

    // ---- matmul: out = x W^T + bias

    // out (N,OC) =, x (N,C), weight (OC,C), bias (OC) or NULL.
    // With gelu not NULL, also gelu (N,OC) = GELU(out), of the rounded out: gelu_forward recomputes the same bits.
    void (*matmul_forward)(void* out, void* gelu, const void* x, const void* weight, const void* bias, int N, int C,
                           int OC, DType dt, Stream s);
    // dx (N,C) = dout weight; dout (N,OC), weight (OC,C).
    // With pre (N,C) not NULL, x was GELU(pre) and the result is the gradient of pre: dx *= GELU'(pre).
    void (*matmul_backward_input)(void* dx, const void* dout, const void* weight, const void* pre, int N, int C, int OC,
                                  DType dt, Stream s);
    // dweight (OC,C) fp32 += dout^T x; dbias (OC) fp32 += column sums of dout, skipped when NULL. dout (N,OC), x (N,C).
    void (*matmul_backward_weight)(float* dweight, float* dbias, const void* dout, const void* x, int N, int C, int OC,
                                   DType dt, Stream s);

    // ---- attention: out = softmax(scale q k^T) v within each document; see struct Attention
    // No T x T matrix is ever stored: the forward pass keeps a running maximum and sum (Milakov & Gimelshein 2018; Dao
    // et al. 2022), the backward pass recomputes probabilities from lse, the log-sum-exp of the scaled scores.

    // out (Nq,NH,HS; stride ldo) =, lse (NH,Nq) fp32 = with Nq = cu_q[n_docs].
    void (*attention_forward)(void* out, float* lse, const Attention* a, DType dt, Stream s);
    // dq, dk, dv = with the strides and shapes of q, k, v; dout and out with ldo; lse from the forward pass.
    void (*attention_backward)(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                               const Attention* a, DType dt, Stream s);

    // ---- elementwise

    // GELU by tanh (Hendrycks & Gimpel 2016): 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). out (n) =, x (n).
    void (*gelu_forward)(void* out, const void* x, size_t n, DType dt, Stream s);
    // out (n) = a + b, rounded to dt; out may be a or b.
    void (*add)(void* out, const void* a, const void* b, size_t n, DType dt, Stream s);
    // out (n) = x (n) converted from one element type to another, to nearest.
    void (*cast)(void* out, DType out_dt, const void* x, DType x_dt, size_t n, Stream s);

    // ---- loss: softmax cross-entropy of one chunk of rows, fused with its gradient

    // losses (N) fp32 = -log softmax(logits[n])[targets[n]], 0 where targets[n] is negative (no label).
    // With write_gradient, logits (N,Vp) = (softmax - onehot) * scale, 0 in unlabelled rows and in columns V .. Vp;
    // otherwise logits are left as they are. The softmax is over the first V columns.
    void (*classifier)(float* losses, void* logits, const int* targets, float scale, int write_gradient, int N, int V,
                       int Vp, DType dt, Stream s);

    // ---- optimizer

    void (*adamw)(const AdamW* a, DType dt, Stream s);
    // result (1) double = sum of x[i]^2 in a fixed order; on the device.
    void (*sum_of_squares)(double* result, const float* x, size_t n, Stream s);
} Kernels;

// The backend for a device ("auto", "cpu", "cuda", "emu") and, on the CPU, an instruction set: "auto" picks the best
// that this processor has; "reference" is the plain specification; "generic", "avx2", "avx512", "avx512bf16", "amx"
// force one. NULL with a message when the device or the instruction set is missing. The table is constant and lives
// for ever.
const Kernels* kernels_find(const char* device, const char* isa, char* err, size_t errlen);
