// attention_cudnn.cu - the forward pass of attention by cuDNN's fused kernels, beside our own: data around it, memory,
// binding, and the decision to use it (attention_trial.cu).
//
// Rows with more documents than any plan holds (cudnn_plan.h) take our own kernels, and so do rows that ranks share:
// some of the heads of more tokens, or parts of a larger attention. Around a plan move offsets of documents, and the
// log-sum-exp from cuDNN's layout to ours. The backward pass is always our own: cuDNN's adds in any order, or needs
// memory for all scores, and made illegal accesses with those on an H100.
#include "kernels/cuda/cuda.h"

// ---- data around it, see cuda.h: nothing of cuDNN

enum { THREADS = 256 };

// One warp counts the documents that have tokens, then writes the places, those of no document first.
static __global__ void places_kernel(CudnnPlaces p, const int* cu, int n_docs) {
    int lane = (int)threadIdx.x, used = 0;
    for (int b = lane; b - lane < n_docs; b += 32)
        used += __popc(__ballot_sync(FULL_WARP, b < n_docs && cu[b + 1] > cu[b]));
    int at = p.B - used;
    for (int i = lane; i < at; i += 32) p.lengths[i] = 1, p.qkv[i] = p.out[i] = p.lse[i] = 0;
    for (int first = 0; first <= n_docs; first += 32) {
        int b = first + lane, begin = b <= n_docs ? cu[b] : 0, length = b < n_docs ? cu[b + 1] - begin : 0;
        unsigned real = __ballot_sync(FULL_WARP, length > 0);
        int i = b == n_docs ? p.B : at + __popc(real & ((1u << lane) - 1));
        if (length > 0) p.lengths[i] = length;
        if (length > 0 || b == n_docs)
            p.qkv[i] = (p.C + 2 * p.CKV) * begin, p.out[i] = p.C * begin, p.lse[i] = p.NH * begin;
        at += __popc(real);
    }
}

void cudnn_places(const CudnnPlaces* p, const int* cu, int n_docs, cudaStream_t s) {
    LAUNCH(places_kernel, 1, 32, 0, s, *p, cu, n_docs);
}

// A thread takes a token and head; block x is a stretch of a document, y a head.
static __global__ void lse_kernel(CudnnPlaces p, float* ours, const float* cudnns, int S, int Nq, int packed) {
    int stretches = CEIL_DIV(S, THREADS), h = (int)blockIdx.y;
    int b = (int)blockIdx.x / stretches, t = (int)blockIdx.x % stretches * THREADS + (int)threadIdx.x;
    if (t >= p.lengths[b]) return;
    size_t token = (size_t)(p.lse[b] / p.NH + t);
    ours[(size_t)h * Nq + token] = cudnns[packed ? token * p.NH + h : ((size_t)b * p.NH + h) * S + t];
}

void cudnn_lse(const CudnnPlaces* p, float* ours, const float* cudnns, int S, int Nq, int packed, cudaStream_t s) {
    dim3 grid((unsigned)p->B * CEIL_DIV(S, THREADS), (unsigned)p->NH);
    LAUNCH(lse_kernel, grid, THREADS, 0, s, *p, ours, cudnns, S, Nq, packed);
}

#ifndef HAVE_CUDNN  // its headers were missing when the program was built: every call falls to our own kernels

static const char reason[] =
    "this program was built without cuDNN's headers; install cuDNN 9 for developers and build again, or use "
    "--device attention=own";

int cuda_cudnn_open(const KernelLimits*, Err err) { return fail(err, "%s", reason); }
void cuda_cudnn_close(void) {}
size_t cuda_cudnn_scratch_bytes(const KernelLimits*) { return 0; }
int cuda_cudnn_forward(void*, float*, const Attention*, DType, Stream) { return -1; }
const char* cuda_cudnn_choice(void) { return reason; }

#else
#include <stdio.h>

#include "kernels/cuda/cudnn_plan.h"

static struct {
    cudnnHandle_t handle;
    KernelLimits limits;
    Plan plans[BUCKETS];
    int n;  // of them
} state;

static char choice[ERR_BYTES] = "cuDNN was not asked for";

const char* cuda_cudnn_choice(void) { return choice; }

static int sm() { return 10 * cuda.major + cuda.minor; }

// Returns 0 if cuDNN can serve these limits, -1 with the reason.
static int check_limits(const KernelLimits* limits, Err err) {
    PlanShape shape = bucket_shape(limits, sm(), 0);
    if (limits->dt != DT_BF16)
        return fail(err, "cuDNN's attention takes bf16, not %s; try --dtype bf16", dtype_name(limits->dt));
    if (cudnn_load(err) || plan_check(&shape, cudnn.version, err)) return -1;
    if (((size_t)limits->N + ATTENTION_TAIL) * (limits->NH + 2 * limits->NKV) * limits->HS > INT32_MAX)
        return fail(err,
                    "a row of %d tokens has more elements than the 32-bit offsets of cuDNN's attention "
                    "count; try a smaller --capacity",
                    limits->N);
    if (buckets_that_fit(limits, sm()) > 0) return 0;
    return fail(err, "cuDNN's attention needs %zu MiB of scratch and may take %zu; try a smaller --capacity",
                bucket_bytes(limits, sm(), 0) >> 20, most_plan_bytes(limits) >> 20);
}

// cuda_find_device must come before.
size_t cuda_cudnn_scratch_bytes(const KernelLimits* limits) {
    size_t most = 0;
    if (limits->attention == ATTENTION_OWN || check_limits(limits, NULL)) return 0;
    for (int i = 0; i < buckets_that_fit(limits, sm()); i++) most = MAX(most, bucket_bytes(limits, sm(), i));
    return most;
}

// ---- the pass

// Returns the bucket for this call, or -1, as cuda.h says.
static int find_bucket(const Attention* a, DType dt) {
    const KernelLimits* limits = &state.limits;
    int C = a->NH * a->HS, CKV = a->NKV * a->HS, row = C + 2 * CKV;
    const bf16* q = (const bf16*)a->q;
    // Only training rows have one array for queries and keys: end-aligned and begin-aligned causal are the same there.
    int fits = dt == DT_BF16 && !a->partial && a->causal && !a->causal_offset && a->cu_q == a->cu_k && a->Nq == a->Nk &&
               a->Nq > 0 && a->Nq <= limits->N && a->NH == limits->NH && a->NKV == limits->NKV && a->HS == limits->HS &&
               a->ldq == row && a->ldkv == row && a->ldo == C && a->n_docs > 0 && a->k == q + C &&
               a->v == q + C + CKV && a->tail >= ATTENTION_TAIL;
    for (int i = 0; i < state.n && fits; i++)
        if (a->n_docs <= bucket_shape(limits, sm(), i).B) return i;
    return -1;
}

// Runs a plan. 0; 1: there is no plan for this call; -1 with a message: there is one and it failed.
static int forward(void* out, float* lse, const Attention* a, DType dt, cudaStream_t s, Err err) {
    static float minus_infinity = -INFINITY;
    int i = find_bucket(a, dt);
    if (i < 0 || ((uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)out) % 16) return 1;
    PlanShape shape = bucket_shape(&state.limits, sm(), i);
    PlanMemory m = plan_memory(&shape, state.limits.N, NULL);
    m = plan_memory(&shape, state.limits.N, (char*)cuda_scratch(m.bytes));
    CudnnPlaces places = {shape.B,
                          a->NH * a->HS,
                          a->NKV * a->HS,
                          a->NH,
                          (int*)m.tensors[PLAN_Q_LENGTHS],
                          (int*)m.tensors[PLAN_QKV_OFFSETS],
                          (int*)m.tensors[PLAN_OUT_OFFSETS],
                          m.lse_offsets};
    cudnn_places(&places, a->cu_q, a->n_docs, s);
    size_t row = (size_t)a->ldq * sizeof(bf16);  // rows after the last token are masked, but 0 x NaN is NaN
    CUDA_CHECK(cudaMemsetAsync((char*)a->q + a->Nq * row, 0, ATTENTION_TAIL * row, s));
    m.tensors[PLAN_Q] = (void*)a->q, m.tensors[PLAN_K] = (void*)a->k, m.tensors[PLAN_V] = (void*)a->v;
    m.tensors[PLAN_SCALE] = (void*)&a->scale;
    m.tensors[PLAN_HIDE_PADDING] = m.tensors[PLAN_HIDE_FUTURE] = &minus_infinity;
    m.tensors[PLAN_OUT] = out;
    if (plan_run(&state.plans[i], state.handle, s, m.tensors, m.workspace, err)) return -1;
    cudnn_lse(&places, lse, (const float*)m.tensors[PLAN_LSE], shape.S, a->Nq, plan_packed(&shape), s);
    return 0;
}

int cuda_cudnn_forward(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    char err[ERR_BYTES];
    int result = forward(out, lse, a, dt, cuda_stream(s), err);
    if (result < 0) die("%s; try --device attention=own", err);
    return -result;
}

// ---- open and close

static int open_bucket(int i, const KernelLimits* limits, Err err) {
    PlanTarget target = {state.handle, NULL, cuda.model};
    PlanShape shape = bucket_shape(limits, sm(), i);
    Plan* plan = &state.plans[i];
    if (plan_open(plan, &shape, &target, err)) return -1;
    if ((size_t)plan->workspace > plan_workspace_most(&shape))
        return fail(err, "cuDNN %zu wants %lld bytes of workspace for attention, %zu were planned", cudnn.version,
                    (long long)plan->workspace, plan_workspace_most(&shape));
    state.n = i + 1;
    return 0;
}

static int try_forward(void* out, float* lse, const Attention* a, void*, Err err) {
    return forward(out, lse, a, DT_BF16, cuda.stream, err);
}

// Returns 0 if cuDNN is used; -1 with the reason.
static int judge(const AttentionTrial* t, const KernelLimits* limits, Err err) {
    int automatic = limits->attention == ATTENTION_AUTO;
    if (!t->refused && (!automatic || t->candidate_ms < t->own_ms)) return 0;
    return fail(err, "%s%s", t->words, automatic ? "" : "; try --device attention=own");
}

static int open_state(const KernelLimits* limits, Err err) {
    enum { CHOICE_VERSION = 5 };  // to be raised when our own kernels become faster
    int n = 0;
    char key[500];
    AttentionTrial t;
    if (check_limits(limits, err)) return -1;
    if (cuda_cudnn_scratch_bytes(limits) > cuda.scratch_bytes)
        return fail(err, "cuDNN's attention needs %zu bytes of scratch, %zu were planned",
                    cuda_cudnn_scratch_bytes(limits), cuda.scratch_bytes);
    static_assert(BUCKETS <= COUNT(AttentionCandidate::docs), "a trial of every plan");
    AttentionCandidate cudnns = {"cuDNN", try_forward, NULL, {}, buckets_that_fit(limits, sm())};
    snprintf(key, sizeof key, "choice %d, cuDNN %zu, %s, N %d context %d NH %d NKV %d HS %d plans %d", CHOICE_VERSION,
             cudnn.version, cuda.model, limits->N, limits->context, limits->NH, limits->NKV, limits->HS, cudnns.n);
    int known = cuda_attention_trial_kept(&t, cudnns.name, key);
    if (known && judge(&t, limits, err)) return -1;
    cudnnStatus_t status = cudnn.Create(&state.handle);
    if (status != CUDNN_STATUS_SUCCESS) return fail(err, "cuDNN does not start: %s", cudnn.GetErrorString(status));
    state.limits = *limits;
    for (; n < cudnns.n; n++) {
        if (open_bucket(n, limits, err)) return -1;
        cudnns.docs[n] = bucket_shape(limits, sm(), n).B;
    }
    if (!known && cuda_attention_trial(&t, &cudnns, limits, key, err)) return -1;
    if (judge(&t, limits, err)) return -1;
    snprintf(choice, sizeof choice, "%s, forward, of at most %d documents a row", t.words, cudnns.docs[n - 1]);
    return 0;
}

int cuda_cudnn_open(const KernelLimits* limits, Err err) {
    Err why_not = "";
    cuda_cudnn_close();
    if (!open_state(limits, why_not)) return 0;
    cuda_cudnn_close();
    snprintf(choice, sizeof choice, "%s", why_not);
    return fail(err, "%s", choice);
}

void cuda_cudnn_close(void) {
    if (state.handle) CUDA_CHECK(cudaDeviceSynchronize());  // its kernels may still run
    for (int i = 0; i < BUCKETS; i++) plan_close(&state.plans[i]);
    if (state.handle) cudnn.Destroy(state.handle);
    memset(&state, 0, sizeof state);
}
#endif
