// cudnn_moves.cu - what is moved around cuDNN's attention; see cuda.h.
#include "kernels/cuda/cuda.h"

enum { THREADS = 256 };

// One warp: counts the documents that have tokens, then writes the places, those of no document first.
static __global__ void places_kernel(CudnnPlaces p, const int* cu, int n_docs) {
    int lane = (int)threadIdx.x, used = 0;
    for (int b = lane; b - lane < n_docs; b += 32)
        used += __popc(__ballot_sync(FULL_WARP, b < n_docs && cu[b + 1] > cu[b]));
    int at = p.B - used;
    for (int i = lane; i < at; i += 32)
        p.lengths[i] = 1, p.qkv[i] = p.out[i] = p.lse[i] = p.gradients[i] = p.kv_gradients[i] = 0;
    for (int first = 0; first <= n_docs; first += 32) {
        int b = first + lane, begin = b <= n_docs ? cu[b] : 0, length = b < n_docs ? cu[b + 1] - begin : 0;
        unsigned real = __ballot_sync(FULL_WARP, length > 0);
        int i = b == n_docs ? p.B : at + __popc(real & ((1u << lane) - 1));
        if (length > 0) p.lengths[i] = length;
        if (length > 0 || b == n_docs) {
            p.qkv[i] = (p.C + 2 * p.CKV) * begin, p.out[i] = p.C * begin, p.lse[i] = p.NH * begin;
            p.gradients[i] = p.C * (begin + CUDNN_FIRST_GRADIENT);
            p.kv_gradients[i] = p.CKV * (begin + CUDNN_FIRST_GRADIENT);
        }
        at += __popc(real);
    }
}

void cudnn_places(const CudnnPlaces* p, const int* cu, int n_docs, cudaStream_t s) {
    LAUNCH(places_kernel, 1, 32, 0, s, *p, cu, n_docs);
}

// Copies the log-sum-exp of every token between ours (NH,Nq) and cuDNN's, packed (tokens,NH) or padded (B,NH,S).
// One thread a token and head; block x: a stretch of a document, y: head.
template <bool TO_CUDNN>
static __global__ void lse_kernel(float* ours, float* cudnns, const int* lengths, const int* lse_offsets, int NH, int S,
                                  int Nq, int packed) {
    int stretches = CEIL_DIV(S, THREADS), h = (int)blockIdx.y;
    int b = (int)blockIdx.x / stretches, t = (int)blockIdx.x % stretches * THREADS + (int)threadIdx.x;
    if (t >= lengths[b]) return;
    size_t token = (size_t)(lse_offsets[b] / NH + t);
    float *x = ours + (size_t)h * Nq + token, *y = cudnns + (packed ? token * NH + h : ((size_t)b * NH + h) * S + t);
    if (TO_CUDNN) *y = *x;
    else *x = *y;
}

// out (N,c; ldo) = x (N,c), both 16-byte aligned, c a multiple of 8; block y: dq with c = C, dk or dv with c = CKV.
static __global__ void interleave_kernel(bf16* dq, bf16* dk, bf16* dv, const bf16* dq_apart, const bf16* dk_apart,
                                         const bf16* dv_apart, int N, int C, int CKV, int ldo) {
    int c = blockIdx.y == 0 ? C : CKV;
    bf16* out = blockIdx.y == 0 ? dq : blockIdx.y == 1 ? dk : dv;
    const bf16* x = blockIdx.y == 0 ? dq_apart : blockIdx.y == 1 ? dk_apart : dv_apart;
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * Pack<bf16>::N;
    if (i < (size_t)N * c) store_pack(out + i / c * ldo + i % c, load_pack(x + i));
}

template <bool TO_CUDNN>
static void move_lse(const CudnnPlaces* p, float* ours, float* cudnns, int S, int Nq, int packed, cudaStream_t s) {
    dim3 grid((unsigned)p->B * CEIL_DIV(S, THREADS), (unsigned)p->NH);
    LAUNCH(lse_kernel<TO_CUDNN>, grid, THREADS, 0, s, ours, cudnns, p->lengths, p->lse, p->NH, S, Nq, packed);
}

void cudnn_lse_to(const CudnnPlaces* p, float* cudnns, const float* ours, int S, int Nq, int packed, cudaStream_t s) {
    move_lse<true>(p, (float*)ours, cudnns, S, Nq, packed, s);
}
void cudnn_lse_from(const CudnnPlaces* p, float* ours, const float* cudnns, int S, int Nq, int packed, cudaStream_t s) {
    move_lse<false>(p, ours, (float*)cudnns, S, Nq, packed, s);
}

void cudnn_interleave(bf16* const out[3], const bf16* const apart[3], int N, int C, int CKV, int ldo, cudaStream_t s) {
    size_t skipped = (size_t)CUDNN_FIRST_GRADIENT * C, skipped_kv = (size_t)CUDNN_FIRST_GRADIENT * CKV;
    dim3 grid(cuda_blocks((size_t)N * C / Pack<bf16>::N, THREADS), 3);
    LAUNCH(interleave_kernel, grid, THREADS, 0, s, out[0], out[1], out[2], apart[0] + skipped, apart[1] + skipped_kv,
           apart[2] + skipped_kv, N, C, CKV, ldo);
}
