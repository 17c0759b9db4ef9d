// attention_cudnn.cu - attention by cuDNN's fused kernels, beside our own: memory, binding, and which of the two.
//
// A plan of cuDNN (cudnn_plan.h) serves every row of at most B documents, and its launch costs a little for each of the
// B, real or not. So there are plans for B0, 4 B0 and 16 B0 documents, where B0 documents of the full context fill a
// row; a row takes the first that holds it. Rows with more documents take our own kernels, and so do rows that ranks
// share: some of the heads of more tokens, or parts of a larger attention. The kernels here only move: offsets of
// documents, the log-sum-exp between our layout and cuDNN's (either one's forward pass fits either one's backward
// pass), and dq, dk, dv, which cuDNN writes apart, into the interleaved gradient: 18 bytes a channel and token over the
// memory bus, little beside the attention itself.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cudnn_plan.h"

enum {
    BUCKETS = 3,
    BUCKET_STEP = 4,
    TAIL = 128,  // rows after the last token that a block of cuDNN's kernels may reach
    THREADS = 256
};
// More than this would be taken from the model: the deterministic backward pass on sm_90 keeps every score.
static const size_t MOST_SCRATCH = (size_t)1 << 30;

typedef struct Bucket {
    Plan forward, backward;
} Bucket;

static struct {
    cudnnHandle_t handle;
    KernelLimits limits;
    Bucket buckets[BUCKETS];
    int n_buckets;
} state;

static char choice[ERR_BYTES] = "cuDNN was not asked for";

const char* cuda_cudnn_choice(void) { return choice; }

// ---- shapes and memory

static PlanShape bucket_shape(const KernelLimits* limits, int bucket, int backward) {
    PlanShape shape = {};
    int longest = MAX(1, MIN(limits->context, limits->N));
    for (shape.B = 1; (size_t)shape.B * longest < (size_t)limits->N;) shape.B *= 2;
    for (int i = 0; i < bucket; i++) shape.B *= BUCKET_STEP;
    shape.S = ROUND_UP(longest, 128);
    shape.NH = limits->NH;
    shape.HS = limits->HS;
    shape.sm = 10 * cuda.major + cuda.minor;
    shape.backward = backward;
    shape.deterministic = !limits->fast_backward;
    return shape;
}

typedef struct Memory {
    void* tensors[PLAN_TENSORS];
    void* workspace;
    int* lse_offsets;        // of every plan; bound only where statistics are packed
    size_t statistic_bytes;  // of a statistic
    size_t bytes;            // of everything
} Memory;

static void* carve(Memory* m, char* base, size_t bytes) {
    void* p = base ? base + m->bytes : NULL;
    m->bytes += ROUND_UP(bytes, (size_t)256);
    return p;
}

// What a plan needs besides the op's own tensors, in scratch memory at base; with base NULL only how much.
static Memory lay_out(const PlanShape* shape, int N, char* base) {
    Memory m = {};
    int packed = plan_packed(shape);
    size_t B = (size_t)shape->B, C = (size_t)shape->NH * shape->HS, tokens = (size_t)N + TAIL;
    size_t rows = packed ? tokens : B * shape->S;
    m.statistic_bytes = rows * shape->NH * sizeof(float);
    m.tensors[PLAN_Q_LENGTHS] = m.tensors[PLAN_K_LENGTHS] = carve(&m, base, B * sizeof(int));
    m.tensors[PLAN_QKV_OFFSETS] = carve(&m, base, (B + 1) * sizeof(int));
    m.tensors[PLAN_OUT_OFFSETS] = carve(&m, base, (B + 1) * sizeof(int));
    m.lse_offsets = (int*)carve(&m, base, (B + 1) * sizeof(int));
    if (packed) m.tensors[PLAN_LSE_OFFSETS] = m.lse_offsets;
    m.tensors[PLAN_LSE] = carve(&m, base, m.statistic_bytes);
    if (shape->backward) {  // cuDNN itself sets its sum of dq to zero, since 9.6
        m.tensors[PLAN_DELTA] = carve(&m, base, m.statistic_bytes);
        m.tensors[PLAN_DQ] = carve(&m, base, tokens * C * sizeof(bf16));
        m.tensors[PLAN_DK] = carve(&m, base, tokens * C * sizeof(bf16));
        m.tensors[PLAN_DV] = carve(&m, base, tokens * C * sizeof(bf16));
        if (!shape->deterministic) m.tensors[PLAN_DQ_SUM] = carve(&m, base, rows * C * sizeof(float));
    }
    m.workspace = carve(&m, base, plan_workspace_most(shape));
    return m;
}

static size_t bucket_bytes(const KernelLimits* limits, int bucket) {
    PlanShape forward = bucket_shape(limits, bucket, 0), backward = bucket_shape(limits, bucket, 1);
    return MAX(lay_out(&forward, limits->N, NULL).bytes, lay_out(&backward, limits->N, NULL).bytes);
}

// 0 when cuDNN can serve these limits, -1 with the reason.
static int check_limits(const KernelLimits* limits, char* err, size_t errlen) {
    PlanShape forward = bucket_shape(limits, 0, 0), backward = bucket_shape(limits, 0, 1);
    if (limits->dt != DT_BF16)
        return fail(err, errlen, "cuDNN's attention takes bf16, not %s; try --dtype bf16", dtype_name(limits->dt));
    if (cudnn_load(err, errlen) || plan_check(&forward, cudnn.version, err, errlen) ||
        plan_check(&backward, cudnn.version, err, errlen))
        return -1;
    if (((size_t)limits->N + TAIL) * 3 * limits->NH * limits->HS > INT32_MAX)
        return fail(err, errlen,
                    "a row of %d tokens has more elements than the 32-bit offsets of cuDNN's attention "
                    "count; try a smaller --capacity",
                    limits->N);
    size_t bytes = bucket_bytes(limits, 0);
    if (bytes <= MOST_SCRATCH) return 0;
    KernelLimits fast = *limits;
    fast.fast_backward = 1;
    int helps = bucket_bytes(&fast, 0) <= MOST_SCRATCH;
    return fail(err, errlen,
                "cuDNN's attention needs %zu MiB of scratch for %d documents of %d tokens, more than the %zu "
                "it may take; it needs %s",
                bytes >> 20, backward.B, backward.S, MOST_SCRATCH >> 20,
                helps ? "--deterministic no, or a smaller --context" : "a smaller --context or --capacity");
}

// The device must have been found before.
size_t cuda_cudnn_scratch_bytes(const KernelLimits* limits) {
    size_t most = 0;
    if (limits->attention == ATTENTION_OWN || check_limits(limits, NULL, 0)) return 0;
    for (int i = 0; i < BUCKETS; i++)
        if (bucket_bytes(limits, i) <= MOST_SCRATCH) most = MAX(most, bucket_bytes(limits, i));
    return most;
}

// ---- kernels

// Where the documents begin, for rows of 3 C, C and NH elements. Documents without tokens, which cuDNN cannot compute,
// are left out; what is left of the B entries has length 0 and begins at the end. One warp.
static __global__ void offsets_kernel(int* lengths, int* qkv, int* out, int* lse, const int* cu, int n_docs, int B,
                                      int C, int NH) {
    int lane = (int)threadIdx.x, used = 0, end = cu[n_docs];
    for (int first = 0; first < n_docs; first += 32) {
        int b = first + lane, begin = b < n_docs ? cu[b] : end, length = b < n_docs ? cu[b + 1] - begin : 0;
        unsigned real = __ballot_sync(FULL_WARP, length > 0);
        if (length > 0) {
            int i = used + __popc(real & ((1u << lane) - 1));
            lengths[i] = length, qkv[i] = 3 * C * begin, out[i] = C * begin, lse[i] = NH * begin;
        }
        used += __popc(real);
    }
    for (int i = used + lane; i <= B; i += 32) {
        if (i < B) lengths[i] = 0;
        qkv[i] = 3 * C * end, out[i] = C * end, lse[i] = NH * end;
    }
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

// out (N,C; ldo) = x (N,C), both 16-byte aligned, C a multiple of 8; block y: dq, dk or dv.
static __global__ void interleave_kernel(bf16* dq, bf16* dk, bf16* dv, const bf16* dq_apart, const bf16* dk_apart,
                                         const bf16* dv_apart, int N, int C, int ldo) {
    bf16* out = blockIdx.y == 0 ? dq : blockIdx.y == 1 ? dk : dv;
    const bf16* x = blockIdx.y == 0 ? dq_apart : blockIdx.y == 1 ? dk_apart : dv_apart;
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * Pack<bf16>::N;
    if (i < (size_t)N * C) store_pack(out + i / C * ldo + i % C, load_pack(x + i));
}

// ---- the two passes

// The bucket for this call, or -1: the contract of cuda.h.
static int find_bucket(const Attention* a, DType dt) {
    const KernelLimits* limits = &state.limits;
    int C = a->NH * a->HS;
    // Only training rows have one array for queries and keys: end-aligned and begin-aligned causal are the same there.
    int fits = dt == DT_BF16 && !a->partial && a->causal && !a->causal_offset && a->cu_q == a->cu_k && a->Nq == a->Nk &&
               a->Nq > 0 && a->Nq <= limits->N && a->NH == limits->NH && a->HS == limits->HS && a->ldq == 3 * C &&
               a->ldkv == 3 * C && a->ldo == C && a->n_docs > 0;
    for (int i = 0; i < state.n_buckets && fits; i++)
        if (a->n_docs <= bucket_shape(limits, i, 0).B) return i;
    return -1;
}

static int aligned(const void* p) { return (uintptr_t)p % 16 == 0; }

// Scratch for the pass, with what both passes need in it.
static Memory prepare(const PlanShape* shape, const Attention* a, cudaStream_t s) {
    static float minus_infinity = -INFINITY, one = 1.0f;
    Memory m = lay_out(shape, state.limits.N, NULL);
    m = lay_out(shape, state.limits.N, (char*)cuda_scratch(m.bytes));
    LAUNCH(offsets_kernel, 1, 32, 0, s, (int*)m.tensors[PLAN_Q_LENGTHS], (int*)m.tensors[PLAN_QKV_OFFSETS],
           (int*)m.tensors[PLAN_OUT_OFFSETS], m.lse_offsets, a->cu_q, a->n_docs, shape->B, a->NH * a->HS, a->NH);
    m.tensors[PLAN_Q] = (void*)a->q;
    m.tensors[PLAN_K] = (void*)a->k;
    m.tensors[PLAN_V] = (void*)a->v;
    m.tensors[PLAN_SCALE] = (void*)&a->scale;
    m.tensors[PLAN_HIDE_PADDING] = m.tensors[PLAN_HIDE_FUTURE] = &minus_infinity;
    if (shape->backward) m.tensors[PLAN_ONE] = &one;
    return m;
}

template <bool TO_CUDNN>
static void move_lse(const PlanShape* shape, const Memory* m, float* lse, const Attention* a, cudaStream_t s) {
    dim3 grid((unsigned)shape->B * CEIL_DIV(shape->S, THREADS), (unsigned)a->NH);
    LAUNCH(lse_kernel<TO_CUDNN>, grid, THREADS, 0, s, lse, (float*)m->tensors[PLAN_LSE],
           (const int*)m->tensors[PLAN_Q_LENGTHS], m->lse_offsets, a->NH, shape->S, a->Nq, plan_packed(shape));
}

static int run(const Plan* plan, const Memory* m, cudaStream_t s, char* err, size_t errlen) {
    cudnnStatus_t status = cudnn.set_stream(state.handle, s);
    if (status != CUDNN_STATUS_SUCCESS)
        return fail(err, errlen, "cuDNN: setting the stream: %s", cudnn.error_string(status));
    return plan_run(plan, state.handle, m->tensors, m->workspace, err, errlen);
}

// 0; 1 when there is no plan for this call, -1 with a message when there is one and it failed.
static int forward(void* out, float* lse, const Attention* a, DType dt, cudaStream_t s, char* err, size_t errlen) {
    int i = find_bucket(a, dt);
    if (i < 0 || !aligned(a->q) || !aligned(a->k) || !aligned(a->v) || !aligned(out)) return 1;
    PlanShape shape = bucket_shape(&state.limits, i, 0);
    Memory m = prepare(&shape, a, s);
    m.tensors[PLAN_OUT] = out;
    if (run(&state.buckets[i].forward, &m, s, err, errlen)) return -1;
    move_lse<false>(&shape, &m, lse, a, s);
    return 0;
}

static int backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                    const Attention* a, DType dt, cudaStream_t s, char* err, size_t errlen) {
    int i = find_bucket(a, dt), C = a->NH * a->HS;
    if (i < 0 || !aligned(a->q) || !aligned(a->k) || !aligned(a->v) || !aligned(out) || !aligned(dout) ||
        !aligned(dq) || !aligned(dk) || !aligned(dv))
        return 1;
    PlanShape shape = bucket_shape(&state.limits, i, 1);
    Memory m = prepare(&shape, a, s);
    // cuDNN multiplies what lies behind the tokens by a masked 0: it must not be NaN.
    CUDA_CHECK(cudaMemsetAsync(m.tensors[PLAN_LSE], 0, m.statistic_bytes, s));
    CUDA_CHECK(cudaMemsetAsync(m.tensors[PLAN_DELTA], 0, m.statistic_bytes, s));
    move_lse<true>(&shape, &m, (float*)lse, a, s);
    m.tensors[PLAN_OUT] = (void*)out;
    m.tensors[PLAN_DOUT] = (void*)dout;
    if (run(&state.buckets[i].backward, &m, s, err, errlen)) return -1;
    dim3 grid(cuda_blocks((size_t)a->Nq * C / Pack<bf16>::N, THREADS), 3);
    LAUNCH(interleave_kernel, grid, THREADS, 0, s, (bf16*)dq, (bf16*)dk, (bf16*)dv, (const bf16*)m.tensors[PLAN_DQ],
           (const bf16*)m.tensors[PLAN_DK], (const bf16*)m.tensors[PLAN_DV], a->Nq, C, a->ldq);
    return 0;
}

int cuda_cudnn_forward(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    char err[ERR_BYTES];
    int result = forward(out, lse, a, dt, cuda_stream(s), err, sizeof err);
    if (result < 0) die("%s; try --attention own", err);
    return -result;
}

int cuda_cudnn_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                        const Attention* a, DType dt, Stream s) {
    char err[ERR_BYTES];
    int result = backward(dq, dk, dv, dout, out, lse, a, dt, cuda_stream(s), err, sizeof err);
    if (result < 0) die("%s; try --attention own", err);
    return -result;
}

// ---- which is faster

typedef struct Trial {  // a row of documents of the full context, and its gradients
    bf16 *qkv, *out, *dout, *dqkv;
    float* lse;
    Attention attention;
} Trial;

// One allocation for everything; NULL when there is no memory.
static char* set_up(Trial* t, const KernelLimits* limits) {
    int N = limits->N, C = limits->NH * limits->HS, longest = MAX(1, MIN(limits->context, N));
    int n_docs = CEIL_DIV(N, longest);
    size_t row = ROUND_UP((size_t)N * C * sizeof(bf16), (size_t)256);
    size_t lse_bytes = ROUND_UP((size_t)N * limits->NH * sizeof(float), (size_t)256);
    char* base = NULL;
    int* cu = (int*)malloc((size_t)(n_docs + 1) * sizeof(int));
    if (!cu || cudaMalloc((void**)&base, 8 * row + lse_bytes + (size_t)(n_docs + 1) * sizeof(int)) != cudaSuccess) {
        cudaGetLastError();  // an answer, not an error to find later
        free(cu);
        return NULL;
    }
    t->qkv = (bf16*)base, t->dqkv = (bf16*)(base + 3 * row), t->out = (bf16*)(base + 6 * row);
    t->dout = (bf16*)(base + 7 * row), t->lse = (float*)(base + 8 * row);
    for (int b = 0; b <= n_docs; b++) cu[b] = MIN(b * longest, N);
    int* device_cu = (int*)(base + 8 * row + lse_bytes);
    CUDA_CHECK(cudaMemsetAsync(base, 0x3c, 8 * row, cuda.stream));  // numbers near 0.01
    CUDA_CHECK(cudaMemcpyAsync(device_cu, cu, (size_t)(n_docs + 1) * sizeof(int), cudaMemcpyHostToDevice, cuda.stream));
    CUDA_CHECK(cudaStreamSynchronize(cuda.stream));
    free(cu);
    Attention* a = &t->attention;
    *a = Attention{};
    a->q = t->qkv, a->k = t->qkv + C, a->v = t->qkv + 2 * C;
    a->cu_q = a->cu_k = device_cu;
    a->Nq = a->Nk = N, a->n_docs = n_docs;
    a->ldq = a->ldkv = 3 * C, a->ldo = C;
    a->NH = limits->NH, a->HS = limits->HS;
    a->causal = 1;
    a->scale = 1.0f / sqrtf((float)limits->HS);
    return base;
}

// Milliseconds of both passes, the best of a few runs after one to warm up. 0, or -1 with a message.
static int measure(const Trial* t, int by_cudnn, float* best, char* err, size_t errlen) {
    enum { RUNS = 5 };
    const Attention* a = &t->attention;
    size_t C = (size_t)a->NH * a->HS;
    cudaEvent_t from, to;
    int failed = 0;
    CUDA_CHECK(cudaEventCreateWithFlags(&from, 0));
    CUDA_CHECK(cudaEventCreateWithFlags(&to, 0));
    *best = INFINITY;
    for (int run = 0; run <= RUNS && !failed; run++) {
        float milliseconds = 0;
        CUDA_CHECK(cudaEventRecord(from, cuda.stream));
        if (by_cudnn)
            failed = forward(t->out, t->lse, a, DT_BF16, cuda.stream, err, errlen) ||
                     backward(t->dqkv, t->dqkv + C, t->dqkv + 2 * C, t->dout, t->out, t->lse, a, DT_BF16, cuda.stream,
                              err, errlen);
        else {
            cuda_attention_forward(t->out, t->lse, a, DT_BF16, NULL);
            cuda_attention_backward(t->dqkv, t->dqkv + C, t->dqkv + 2 * C, t->dout, t->out, t->lse, a, DT_BF16, NULL);
        }
        CUDA_CHECK(cudaEventRecord(to, cuda.stream));
        CUDA_CHECK(cudaEventSynchronize(to));
        CUDA_CHECK(cudaEventElapsedTime(&milliseconds, from, to));
        if (run > 0) *best = fminf(*best, milliseconds);
    }
    CUDA_CHECK(cudaEventDestroy(from));
    CUDA_CHECK(cudaEventDestroy(to));
    return failed ? -1 : 0;
}

// Leaves the winner's name at the end of `choice`. 0, or -1 with a message.
static int compare(const KernelLimits* limits, char* err, size_t errlen) {
    Trial t;
    float own, cudnns;
    char* memory = set_up(&t, limits);
    if (!memory) return fail(err, errlen, "no GPU memory to compare cuDNN's attention with our own");
    fail(err, errlen, "cuDNN has no plan for a full row");  // unless a pass has its own message
    int failed = measure(&t, 0, &own, err, errlen) || measure(&t, 1, &cudnns, err, errlen);
    CUDA_CHECK(cudaStreamSynchronize(cuda.stream));
    CUDA_CHECK(cudaFree(memory));
    if (failed) return -1;
    snprintf(choice, sizeof choice, "own %.3g ms, cuDNN %.3g ms: %s", own, cudnns, cudnns < own ? "cuDNN" : "own");
    return 0;
}

static int ends_with(const char* text, const char* end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

// The choice that was made before for this key, into `choice`. 0 when there is none.
static int recall(const char* key) {
    char words[sizeof choice] = "";
    size_t n = 0;
    char* kept = cache_read(key, &n);
    if (kept && n < sizeof words) memcpy(words, kept, n);
    free(kept);
    if (!ends_with(words, ": own") && !ends_with(words, ": cuDNN")) return 0;
    memcpy(choice, words, sizeof choice);
    return 1;
}

// ---- open and close

static int open_bucket(int i, const KernelLimits* limits, const char* device, char* err, size_t errlen) {
    PlanTarget target = {state.handle, NULL, device};
    Bucket* b = &state.buckets[i];
    for (int backward = 0; backward < 2; backward++) {
        PlanShape shape = bucket_shape(limits, i, backward);
        Plan* plan = backward ? &b->backward : &b->forward;
        if (plan_open(plan, &shape, &target, err, errlen)) return -1;
        if ((size_t)plan->workspace > plan_workspace_most(&shape))
            return fail(err, errlen, "cuDNN %zu wants %lld bytes of workspace for attention, %zu were planned",
                        cudnn.version, (long long)plan->workspace, plan_workspace_most(&shape));
    }
    state.n_buckets = i + 1;
    return 0;
}

static int open_state(const KernelLimits* limits, char* err, size_t errlen) {
    enum { CHOICE_VERSION = 1 };  // to be raised when our own kernels become faster
    cudaDeviceProp properties;
    int driver = 0, automatic = limits->attention == ATTENTION_AUTO;
    char device[300], key[500];
    if (check_limits(limits, err, errlen)) return -1;
    if (cuda_cudnn_scratch_bytes(limits) > cuda.scratch_bytes)
        return fail(err, errlen, "cuDNN's attention needs %zu bytes of scratch, %zu were planned",
                    cuda_cudnn_scratch_bytes(limits), cuda.scratch_bytes);
    CUDA_CHECK(cudaGetDeviceProperties(&properties, cuda.index));
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    snprintf(device, sizeof device, "%.200s, driver %d", properties.name, driver);
    snprintf(key, sizeof key, "choice %d, cuDNN %zu, %s, N %d context %d NH %d HS %d fast %d", CHOICE_VERSION,
             cudnn.version, device, limits->N, limits->context, limits->NH, limits->HS, limits->fast_backward);
    int known = automatic && recall(key);
    if (known && ends_with(choice, ": own")) return fail(err, errlen, "%s", choice);
    cudnnStatus_t status = cudnn.create(&state.handle);
    if (status != CUDNN_STATUS_SUCCESS)
        return fail(err, errlen, "cuDNN does not start: %s", cudnn.error_string(status));
    state.limits = *limits;
    if (open_bucket(0, limits, device, err, errlen)) return -1;
    if (automatic && !known) {
        if (compare(limits, err, errlen)) return -1;
        cache_write(key, choice, strlen(choice), 0);
        // Another rank of this node may have been first: all take its choice.
        if (!recall(key)) cache_write(key, choice, strlen(choice), 1);
        if (ends_with(choice, ": own")) return fail(err, errlen, "%s", choice);
    }
    for (int i = 1; i < BUCKETS && bucket_bytes(limits, i) <= MOST_SCRATCH; i++)
        if (open_bucket(i, limits, device, err, errlen)) return -1;
    if (!automatic) snprintf(choice, sizeof choice, "cuDNN, as asked for");
    return 0;
}

int cuda_cudnn_open(const KernelLimits* limits, char* err, size_t errlen) {
    char why_not[sizeof choice] = "";
    cuda_cudnn_close();
    if (!open_state(limits, why_not, sizeof why_not)) return 0;
    cuda_cudnn_close();
    memcpy(choice, why_not, sizeof choice);
    return fail(err, errlen, "%s", choice);
}

void cuda_cudnn_close(void) {
    if (state.handle) CUDA_CHECK(cudaDeviceSynchronize());  // its kernels may still run
    for (int i = 0; i < BUCKETS; i++) plan_close(&state.buckets[i].forward), plan_close(&state.buckets[i].backward);
    if (state.handle) cudnn.destroy(state.handle);
    memset(&state, 0, sizeof state);
}
