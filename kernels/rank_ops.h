// rank_ops.h - the table of ops that one rank with plain text does without: parts of attention and of a loss, labels
// that do not count alike, conversions, moves of rows, heads and columns, FP8. Kernels.ranks points to it; the contract
// and the letters are those of kernels.h.
#pragma once
#include "kernels/e4m3.h"
#include "kernels/kernels.h"
#include "kernels/token_loss.h"

// A matmul of kernels.h with a factor, on rows that are parts of wider ones, or added to what is there: an adapter's
// (run/model/lora.h). Weights have no gaps between their rows.
//   MATMUL_FORWARD   out (N,OC) = or +=  scale x (N,C) weight^T
//   MATMUL_INPUT     out (N,C) = or +=   scale dout (N,OC) weight
//   MATMUL_WEIGHT    dweight (OC,C) +=   scale dout^T (N,OC) x (N,C)
typedef enum MatmulKind { MATMUL_FORWARD, MATMUL_INPUT, MATMUL_WEIGHT } MatmulKind;

typedef struct StridedMatmul {
    MatmulKind kind;
    int adds;  // += instead of =; MATMUL_WEIGHT always adds
    int N, C, OC;
    float scale;
    void* out;          // dt; MATMUL_WEIGHT: dweight, fp32
    const void* a;      // x or dout, dout
    const void* b;      // weight (OC,C); MATMUL_WEIGHT: x
    int ldo, lda, ldb;  // elements from row to row of out, a, b; those of weights are C
} StridedMatmul;

// out (N,OC) bf16 = x_unit w_unit x (N,K) w (OC,K)^T + bias (OC), summed in fp32 or wider. With gelu, gelu (N,OC) =
// GELU(out); with pre (N,OC), out *= GELU'(pre) once it is rounded. K and OC are multiples of 16; x, w and out lie at
// multiples of 16 bytes.
typedef struct Fp8Matmul {
    void *out, *gelu;
    const e4m3 *x, *w;
    const float *x_unit, *w_unit;  // (1) on the device: what an operand's 1 stands for
    const void *bias, *pre;        // NULL, as gelu: there is none
    int N, K, OC;
    const Kernels* k;  // the table, and (N + OC, K) of scratch: what Kernels.on_host needs
    bf16* room;
} Fp8Matmul;

typedef struct RankOps {
    // Merges two parts of an attention over disjoint keys. With M = max(lse, part_lse), a = exp(lse - M),
    // b = exp(part_lse - M):  out = (a out + b part) / (a + b),  lse = M + log(a + b). If both are -infinity nothing
    // changes. No difference of the two overflows. out (N,NH,HS) fp32 and lse (NH,N) fp32 updated; part (N,NH,HS) fp32,
    // part_lse (NH,N) fp32.
    void (*attention_merge)(float* out, float* lse, const float* part, const float* part_lse, int N, int NH, int HS,
                            Stream s);

    // out (n) = x (n) converted from one element type to another, to nearest.
    void (*cast)(void* out, DType out_dt, const void* x, DType x_dt, size_t n, Stream s);

    // ---- moves of rows, between packed rows of different order

    // out[i] = x[rows[i]] for i < n: rows of C elements, ldo and ldx elements apart; zeros where rows[i] is negative.
    // out (n,C; ldo) =, x (any,C; ldx), rows (n) int32 or NULL for rows[i] = i.
    void (*gather_rows)(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt, Stream s);
    // Cuts tokens into heads, for ranks that each compute some heads: x (N rows) has M matrices (3: queries, keys and
    // values) of NH heads in each row, one after another; heads of the first matrix have HS0 elements, those of the
    // others HS. out = for each slice i < d one after another (N rows) of M matrices of the heads of i, those from
    // border[i] to border[i + 1]. border (d + 1) on the host, from 0 to NH, never falling; may be freed on return.
    // Heads that share keys and values must stay together: for them NH is NKV here, and HS0 = NH / NKV * HS.
    void (*split_heads)(void* out, const void* x, int N, int M, int HS0, int HS, const int* border, int d, DType dt,
                        Stream s);
    // Joins them again: out (N rows, M matrices, NH heads) = from the out of split_heads.
    void (*join_heads)(void* out, const void* x, int N, int M, int HS0, int HS, const int* border, int d, DType dt,
                       Stream s);
    // out (N,n) = columns of x (N,any; ldx): out[i][j] = x[i][columns[j]]. columns (n) int32, any order.
    void (*gather_columns)(void* out, const void* x, const int* columns, int N, int n, int ldx, DType dt, Stream s);
    // out (N,K)[i][c] = x[i][source[c]] where source[c] >= 0, elsewhere 0. x (N,n), n >= 1; source (K) int32
    // below n.
    void (*scatter_columns)(void* out, const void* x, const int* source, int N, int K, int n, DType dt, Stream s);
    // out[rows[i]] = x[i] for i < n, where rows[i] is not negative; no two of them are the same.
    void (*scatter_rows)(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt, Stream s);

    // ---- loss

    // These two are Kernels.classifier for ranks that hold parts of the vocabulary: the columns of logits are the ids
    // first .. first + V, and padding up to Vp; V may be 0. The first tells other ranks about this part: stats (N,3)
    // fp32 = the greatest logit (-infinity for V = 0), the sum of exp(logit - greatest) (0 for V = 0), the logit of
    // the target (0 if it is not of this part, or negative).
    void (*classifier_part)(float* stats, const void* logits, const int* targets, int first, int N, int V, int Vp,
                            DType dt, Stream s);
    // losses (N) = and logits as `classifier` leaves them, from the stats (parts,N,3) of all parts in rank order. Every
    // part gets the same losses, bit for bit.
    void (*classifier_join)(float* losses, void* logits, const float* stats, int parts, const int* targets, int first,
                            float scale, int write_gradient, int N, int V, int Vp, DType dt, Stream s);
    // Follows `classifier` or `classifier_join` if labels do not count alike: losses (N) = token_loss of them, and
    // with write_gradient the rows of logits (N,Vp), gradients of the plain loss, times its slope. Tokens without a
    // label (targets[n] negative) stay 0. The lists of `of` are on the device.
    void (*weigh_labels)(float* losses, void* logits, const int* targets, const TokenLoss* of, int write_gradient,
                         int N, int Vp, DType dt, Stream s);

    // ---- Muon (run/model/muon.h): AdamW's struct, in which v is the direction of the step

    // m = beta1 m + (1 - beta1) g';  v = beta1 m + (1 - beta1) g'  with g' = *grad_scale * grad (Nesterov's momentum).
    void (*momentum)(const AdamW* a, Stream s);
    // master -= lr * (v + weight_decay * master), and param as AdamW makes it. As there, nothing changes in
    // either op if *grad_scale is not finite, or at an element that is frozen.
    void (*follow)(const AdamW* a, DType dt, Stream s);
    // out (n) of dt = x (n) / (sqrt(*norm2) + 1e-7).
    void (*normalize)(void* out, const float* x, const double* norm2, size_t n, DType dt, Stream s);
    // out (n) = a x + b y, rounded once; out may be x or y.
    void (*combine)(void* out, float a, const void* x, float b, const void* y, size_t n, DType dt, Stream s);

    // ---- adapters: see StridedMatmul. N and OC may not be 0 without `adds`

    void (*strided_matmul)(const StridedMatmul* m, DType dt, Stream s);

    // ---- FP8 (run/model/fp8.h). A device that lacks it ends the program with one line, for N = 0 too

    // out (N,C), or transposed (C,N), = E4M3 of x (N,C) bf16 times *scale, rounded to fp32 between. *amax = the
    // greatest of itself and all |x| but NaN. NULL: only the other of both. scale and amax (1) fp32; C, transposed N,
    // too, multiples of 16; x and out at multiples of 16 bytes.
    void (*quantize)(e4m3* out, float* amax, const void* x, const float* scale, int transposed, int N, int C, Stream s);
    void (*matmul_fp8)(const Fp8Matmul* m, Stream s);
} RankOps;
