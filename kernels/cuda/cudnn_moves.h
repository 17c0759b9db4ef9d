// cudnn_moves.h - around cuDNN's attention: where its documents lie, the log-sum-exp in its layout and in ours, and the
// gradients back into their interleaved rows. Needs no header of cuDNN.
#pragma once
#include "kernels/cuda/cuda.h"

// A plan has B places for documents, and versions of cuDNN before 9.25 answer one of length 0 with NaN (cudnn-frontend
// #943). So documents without tokens are left out, and the places that are left over, which come first lest offsets
// decrease, hold a document of one token: the row's first token. That sees only itself, in its own document too, so
// that out and log-sum-exp are written twice with the same bits. Gradients are sums and must not be written twice: row
// 0 of their arrays belongs to these places, the row's tokens begin at row 1.
enum { CUDNN_FIRST_GRADIENT = 1 };

typedef struct CudnnPlaces {
    int B, C, CKV, NH;  // C: channels of queries, CKV: of keys
    int* lengths;       // (B) tokens
    // (B+1) the element where each begins, in rows of C + 2 CKV, C, NH, C and CKV
    int *qkv, *out, *lse, *gradients, *kv_gradients;
} CudnnPlaces;

// Fills the arrays for the documents of cu (n_docs + 1), of which at most B have tokens, and one at least.
void cudnn_places(const CudnnPlaces* p, const int* cu, int n_docs, cudaStream_t s);
// The log-sum-exp of every token between ours (NH,Nq) and cuDNN's, packed (tokens,NH) or padded (B,NH,S).
void cudnn_lse_to(const CudnnPlaces* p, float* cudnns, const float* ours, int S, int Nq, int packed, cudaStream_t s);
void cudnn_lse_from(const CudnnPlaces* p, float* ours, const float* cudnns, int S, int Nq, int packed, cudaStream_t s);
// out[i] (N,c; ldo) = rows of apart[i] (1+N,c) from CUDNN_FIRST_GRADIENT on: dq with c = C, dk and dv with c = CKV <=
// C. All 16-byte aligned, C and CKV multiples of 8.
void cudnn_interleave(bf16* const out[3], const bf16* const apart[3], int N, int C, int CKV, int ldo, cudaStream_t s);
