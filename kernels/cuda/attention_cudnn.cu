// attention_cudnn.cu - the forward pass of attention by cuDNN's fused kernels, beside our own: data around it, and the
// decision to use it (attention_trial.cu).
//
// Rows with more documents than any plan holds (cudnn_plan.h) take our own kernels, and so do rows that ranks share:
// some of the heads of more tokens, or parts of a larger attention. The backward pass is always our own: what cuDNN
// has that adds in one order made illegal accesses on an H100, or (from 9.25) has never run here.
#include "kernels/cuda/cuda.h"

#include <stdio.h>

// ---- data around it, see cuda.h: nothing of cuDNN

enum { THREADS = 256 };

// One warp counts the documents that have tokens, then writes the places, those of no document first.
static __global__ void places_kernel(CudnnPlan p, const int* cu, int n_docs) {
    int lane = (int)threadIdx.x, used = 0, C = p.NH * p.HS, row = C + 2 * p.NKV * p.HS;
    for (int b = lane; b - lane < n_docs; b += 32)
        used += __popc(__ballot_sync(FULL_WARP, b < n_docs && cu[b + 1] > cu[b]));
    int at = p.B - used;
    for (int i = lane; i < at; i += 32) p.lengths[i] = 1, p.qkv[i] = p.out[i] = p.statistics[i] = 0;
    for (int first = 0; first <= n_docs; first += 32) {
        int b = first + lane, begin = b <= n_docs ? cu[b] : 0, length = b < n_docs ? cu[b + 1] - begin : 0;
        unsigned real = __ballot_sync(FULL_WARP, length > 0);
        int i = b == n_docs ? p.B : at + __popc(real & ((1u << lane) - 1));
        if (length > 0) p.lengths[i] = length;
        if (length > 0 || b == n_docs) p.qkv[i] = row * begin, p.out[i] = C * begin, p.statistics[i] = p.NH * begin;
        at += __popc(real);
    }
}

void cudnn_places(const CudnnPlan* p, const int* cu, int n_docs, cudaStream_t s) {
    LAUNCH(places_kernel, 1, 32, 0, s, *p, cu, n_docs);
}

// A thread takes a token and head; block x is a stretch of a document, y a head.
static __global__ void lse_kernel(CudnnPlan p, float* ours, int Nq, int packed) {
    int stretches = CEIL_DIV(p.S, THREADS), h = (int)blockIdx.y;
    int b = (int)blockIdx.x / stretches, t = (int)blockIdx.x % stretches * THREADS + (int)threadIdx.x;
    if (t >= p.lengths[b]) return;
    size_t token = (size_t)(p.statistics[b] / p.NH + t);
    ours[(size_t)h * Nq + token] = p.lse[packed ? token * p.NH + h : ((size_t)b * p.NH + h) * p.S + t];
}

void cudnn_lse(const CudnnPlan* p, float* ours, int Nq, cudaStream_t s) {
    dim3 grid((unsigned)p->B * CEIL_DIV(p->S, THREADS), (unsigned)p->NH);
    LAUNCH(lse_kernel, grid, THREADS, 0, s, *p, ours, Nq, cudnn_packs(p));
}

// ---- the decision

#ifndef HAVE_CUDNN  // headers were missing when the program was built
size_t cudnn_version;
const int cudnn_headers = 0;
int cudnn_plans(CudnnPlan*, const KernelLimits* limits, int, char*, Err err) {
    return fail(
        err, "this program was built without the headers of cuDNN and cudnn-frontend%s",
        limits->attention == ATTENTION_CUDNN ? "; install both and build again, or try --device attention=own" : "");
}
int cudnn_build(CudnnPlan*, const char*, Err) { return -1; }
int cudnn_run(const CudnnPlan*, void*, const Attention*, cudaStream_t, Err) { return -1; }
#endif

static CudnnPlan plans[CUDNN_PLANS];
static int n_plans;

// cuda_find_device must come before.
size_t cuda_cudnn_scratch_bytes(const KernelLimits* limits) {
    CudnnPlan plans[CUDNN_PLANS];
    int asked = limits->attention == ATTENTION_AUTO || limits->attention == ATTENTION_CUDNN;
    int n = !asked ? 0 : cudnn_plans(plans, limits, 10 * cuda.major + cuda.minor, NULL, NULL);
    return n > 0 ? plans[n - 1].bytes : 0;
}

// Returns the plan for this call, or NULL, as cuda.h says.
static CudnnPlan* find_plan(const Attention* a, const void* out) {
    int C = a->NH * a->HS, CKV = a->NKV * a->HS, row = C + 2 * CKV;
    const bf16* q = (const bf16*)a->q;
    // Only training rows have one array for queries and keys: end-aligned and begin-aligned causal are the same there.
    int fits = !a->partial && a->causal && !a->causal_offset && a->cu_q == a->cu_k && a->Nq == a->Nk && a->Nq > 0 &&
               a->Nq <= plans->N && a->NH == plans->NH && a->NKV == plans->NKV && a->HS == plans->HS && a->ldq == row &&
               a->ldkv == row && a->ldo == C && a->n_docs > 0 && a->k == q + C && a->v == q + C + CKV &&
               a->tail >= ATTENTION_TAIL &&
               ((uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)out) % 16 == 0;
    for (int i = 0; i < n_plans && fits; i++)
        if (a->n_docs <= plans[i].B) return &plans[i];
    return NULL;
}

// Runs a plan, which is built when the first row needs it. 0; 1: there is no plan for this call; -1 with a message:
// there is one and it failed.
static int forward(void* out, float* lse, const Attention* a, void* stream, Err err) {
    cudaStream_t s = (cudaStream_t)stream;
    CudnnPlan* p = find_plan(a, out);
    if (!p) return 1;
    if (cudnn_build(p, NULL, err)) return -1;
    cudnn_places(p, a->cu_q, a->n_docs, s);
    size_t row = (size_t)a->ldq * sizeof(bf16);  // rows after the last token are masked, but 0 x NaN is NaN
    CUDA_CHECK(cudaMemsetAsync((char*)a->q + a->Nq * row, 0, ATTENTION_TAIL * row, s));
    if (cudnn_run(p, out, a, s, err)) return -1;
    cudnn_lse(p, lse, a->Nq, s);
    return 0;
}

int cuda_cudnn_forward(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    Err why;
    int status = dt == DT_BF16 ? forward(out, lse, a, cuda_stream(s), why) : 1;
    if (status < 0) warn("%s; our own attention takes its place from here on", why), n_plans = 0;
    return status ? -1 : 0;
}

int cuda_cudnn_open(const KernelLimits* limits, Err words) {
    enum { CHOICE_VERSION = 6 };  // to be raised when our own kernels become faster, or the graph another
    char *scratch = (char*)cuda_scratch(cuda_cudnn_scratch_bytes(limits)), key[500];
    int n = cudnn_plans(plans, limits, 10 * cuda.major + cuda.minor, scratch, words);
    AttentionCandidate cudnns = {"cuDNN", forward, cuda.stream, {}, n, NULL};
    AttentionTrial t = {};
    if (n < 0) return -1;
    auto loses = [&] {
        if (!t.refused && (limits->attention == ATTENTION_CUDNN || t.candidate_ms < t.own_ms)) return 0;
        return fail(words, "%s%s", t.words, limits->attention == ATTENTION_CUDNN ? "; try --device attention=own" : "");
    };
    snprintf(key, sizeof key, "choice %d, wgmma %d, cuDNN %zu by %d, %s, N %d context %d NH %d NKV %d HS %d plans %d",
             CHOICE_VERSION, cuda.wgmma, cudnn_version, cudnn_headers, cuda.model, limits->N, limits->context,
             limits->NH, limits->NKV, limits->HS, n);
    int known = cuda_attention_trial_kept(&t, cudnns.name, key);
    if (known && loses()) return -1;
    for (n_plans = 0; n_plans < n; n_plans++) {
        cudnns.docs[n_plans] = plans[n_plans].B;
        if (!known && cudnn_build(&plans[n_plans], NULL, words)) return -1;
    }
    if ((!known && cuda_attention_trial(&t, &cudnns, limits, key, words)) || loses()) return -1;
    snprintf(words, ERR_BYTES, "%s, forward, of at most %d documents a row", t.words, plans[n - 1].B);
    return 0;
}
