// attention_trial.cu - tries other kernels of attention beside our own of mma.sync before a run uses them.
//
// Rows of this run's sizes go through both, and back where the candidate does that: one of the longest documents, and
// for each number of documents that the candidate has code for one of short documents. The results are kept on disk.
//
// An illegal access in a foreign kernel spoils the CUDA context, and the process must end. So a trial leaves a mark
// before it begins: a process that finds the mark of one that is gone does not try again.
#include "kernels/cuda/cuda.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern "C" {
#include "plan/base/user_cache.h"
}

enum { THREADS = 256, MOST_BLOCKS = 256, NAME = 256 };

typedef struct Difference {
    int wrong;      // values that are not finite, or differ more than the tolerance
    float largest;  // of differences
} Difference;

typedef struct Rows {                   // [0] our own results, [1] the candidate's
    bf16 *qkv, *out[2], *gradients[2];  // of qkv; NULL if the candidate goes forward only
    float* lse[2];
    Difference* found;  // (3) of out, lse and gradients
    int *cu, *host_cu;
} Rows;

// ---- a row

// Writes numbers of about N(0,1), so that scores differ: sums of four uniform ones, of variance 1. After them comes
// NaN, which shows if a pass uses it. A thread takes an element.
static __global__ void fill_kernel(bf16* x, size_t inside, size_t n) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    uint64_t bits = device_hash64(i);
    int sum = -2 * 0xffff;
    for (int j = 0; j < 64; j += 16) sum += (int)(bits >> j & 0xffff);
    x[i] = narrow<bf16>(i < inside ? (float)sum * (1.7320508f / 65536) : NAN);
}

// Fills cu with at most `docs` short documents and a long one at the end, or, docs 0, with long ones. Returns how many.
static int make_documents(int* cu, const KernelLimits* limits, int docs) {
    static const int lengths[] = {1, 2, 3, 5, 64, 127, 128, 129};
    int n = 0, longest = MAX(1, MIN(limits->context, limits->N));
    for (cu[0] = 0; cu[n] < limits->N && (!docs || n < docs); n++) {
        int length = docs && n + 1 < docs ? MIN(lengths[n % COUNT(lengths)], longest) : longest;
        cu[n + 1] = MIN(cu[n] + length, limits->N);
    }
    return n;
}

static Attention make_row(Rows* r, const KernelLimits* limits, int docs) {
    int C = limits->NH * limits->HS, CKV = limits->NKV * limits->HS, W = C + 2 * CKV;
    Attention a = {};
    a.q = r->qkv, a.k = r->qkv + C, a.v = r->qkv + C + CKV;
    a.cu_q = a.cu_k = r->cu;
    a.n_docs = make_documents(r->host_cu, limits, docs);
    a.Nq = a.Nk = r->host_cu[a.n_docs];
    a.ldq = a.ldkv = W, a.ldo = C;
    a.NH = limits->NH, a.NKV = limits->NKV, a.HS = limits->HS;
    a.causal = 1, a.tail = ATTENTION_TAIL;
    a.scale = 4 / sqrtf((float)a.HS);  // few keys count for a query: no error drowns in the mean of a long document
    size_t n = (size_t)(limits->N + ATTENTION_TAIL) * W, bytes = (size_t)(a.n_docs + 1) * sizeof(int);
    LAUNCH(fill_kernel, cuda_blocks(n, THREADS), THREADS, 0, cuda.stream, r->qkv, (size_t)a.Nq * W, n);
    CUDA_CHECK(cudaMemcpyAsync(r->cu, r->host_cu, bytes, cudaMemcpyHostToDevice, cuda.stream));
    CUDA_CHECK(cudaStreamSynchronize(cuda.stream));
    return a;
}

// Any order gives the same: counts and maxima of whole numbers, which the bits of positive floats are.
template <class T>
static __global__ void compare_kernel(Difference* sum, const T* x, const T* y, size_t n, float tolerance) {
    Difference d = {};
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) {
        float apart = fabsf(widen(x[i]) - widen(y[i]));
        d.wrong += !(apart <= tolerance);  // NaN too
        d.largest = fmaxf(d.largest, apart);
    }
    atomicAdd(&sum->wrong, d.wrong);
    atomicMax((int*)&sum->largest, __float_as_int(d.largest));
}

template <class T>
static void compare(Difference* sum, T* const x[2], size_t n, float tolerance) {
    unsigned blocks = MIN(cuda_blocks(n, THREADS), (unsigned)MOST_BLOCKS);
    LAUNCH(compare_kernel<T>, blocks, THREADS, 0, cuda.stream, sum, x[0], x[1], n, tolerance);
}

// Compares vectors of n elements, a thread each.
static __global__ void compare_vectors_kernel(Difference* sum, const bf16* x, const bf16* y, size_t vectors, int n) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    float apart = 0, whole = 0;
    if (at >= vectors) return;
    for (size_t i = at * n; i < (at + 1) * n; i++) {
        float d = widen(x[i]) - widen(y[i]);
        apart += d * d;
        whole += widen(x[i]) * widen(x[i]);
    }
    float bound = ATTENTION_TRIAL_GRADIENT * sqrtf(whole) + ATTENTION_TRIAL_NOTHING * sqrtf((float)n);
    if (!(sqrtf(apart) <= bound)) atomicAdd(&sum->wrong, 1);
}

// The gradient of out is taken to be out, once it is known to be right.
static void go_back(Rows* r, int side, const Attention* a, const AttentionCandidate* c) {
    bf16 *dq = r->gradients[side], *dk = dq + a->ldo, *dv = dk + a->NKV * a->HS;
    (side ? c->backward : cuda_attention_backward)(dq, dk, dv, r->out[0], r->out[0], r->lse[0], a, DT_BF16, NULL);
}

static void try_back(Rows* r, const Attention* a, const AttentionCandidate* c) {
    size_t n = (size_t)a->Nq * a->ldq, vectors = n / a->HS;
    CUDA_CHECK(cudaMemsetAsync(r->gradients[1], 0xff, n * sizeof(bf16), cuda.stream));  // NaN
    for (int side = 0; side < 2; side++) go_back(r, side, a, c);
    LAUNCH(compare_vectors_kernel, cuda_blocks(vectors, THREADS), THREADS, 0, cuda.stream, &r->found[2],
           r->gradients[0], r->gradients[1], vectors, a->HS);
}

// Returns the candidate's answer, 0 if it computed the row. If that is wrong, t says so.
static int try_row(AttentionTrial* t, Rows* r, const Attention* a, const AttentionCandidate* c) {
    size_t n = (size_t)a->Nq * a->ldo, n_lse = (size_t)a->Nq * a->NH;
    Difference d[3];
    Err why = "";
    cuda_attention_forward(r->out[0], r->lse[0], a, DT_BF16, NULL);
    CUDA_CHECK(cudaMemsetAsync(r->out[1], 0xff, n * sizeof(bf16), cuda.stream));  // NaN
    CUDA_CHECK(cudaMemsetAsync(r->lse[1], 0xff, n_lse * sizeof(float), cuda.stream));
    CUDA_CHECK(cudaMemsetAsync(r->found, 0, sizeof d, cuda.stream));
    int status = c->forward(r->out[1], r->lse[1], a, c->context, why);
    compare(&r->found[0], r->out, n, ATTENTION_TRIAL_OUT);
    compare(&r->found[1], r->lse, n_lse, ATTENTION_TRIAL_LSE);
    if (c->backward && !status) try_back(r, a, c);
    CUDA_CHECK(cudaMemcpyAsync(d, r->found, sizeof d, cudaMemcpyDeviceToHost, cuda.stream));
    CUDA_CHECK(cudaStreamSynchronize(cuda.stream));
    t->refused = status < 0 || (!status && d[0].wrong + d[1].wrong + d[2].wrong);
    if (!status) t->difference = fmaxf(t->difference, d[0].largest);
    if (status < 0) snprintf(t->words, sizeof t->words, "%.300s", why);
    else if (t->refused)
        snprintf(t->words, sizeof t->words,
                 "%s's attention is wrong in %d values, by up to %.2g, %d log-sum-exps and %d gradients of a row of %d "
                 "documents",
                 c->name, d[0].wrong, d[0].largest, d[1].wrong, d[2].wrong, a->n_docs);
    return status;
}

static void try_rows(AttentionTrial* t, Rows* r, const AttentionCandidate* c, const KernelLimits* limits) {
    enum { RUNS = 5 };
    Err why;
    Attention a = make_row(r, limits, 0);
    auto own = [&] {
        cuda_attention_forward(r->out[0], r->lse[0], &a, DT_BF16, NULL);
        return c->backward ? go_back(r, 0, &a, c), 0 : 0;
    };
    auto candidate = [&] {
        int answer = c->forward(r->out[1], r->lse[1], &a, c->context, why);
        return c->backward ? go_back(r, 1, &a, c), answer : answer;
    };
    int status = try_row(t, r, &a, c);
    if (t->refused) return;
    t->own_ms = cuda_best_time(RUNS, cuda.stream, own);
    t->candidate_ms = status ? INFINITY : cuda_best_time(RUNS, cuda.stream, candidate);
    for (int i = 0; i < c->n && !t->refused; i++) {
        a = make_row(r, limits, c->docs[i]);
        try_row(t, r, &a, c);
    }
    if (t->refused) return;
    if (status) snprintf(t->words, sizeof t->words, "%s's attention does not take the longest documents", c->name);
    else
        snprintf(t->words, sizeof t->words, "own %.3g ms, %s %.3g ms, results at most %.2g apart", t->own_ms, c->name,
                 t->candidate_ms, t->difference);
}

// Makes one allocation for everything; NULL: there is no memory.
static char* set_up(Rows* r, const KernelLimits* limits, int goes_back) {
    size_t N = (size_t)limits->N, C = (size_t)limits->NH * limits->HS, W = C + 2 * (size_t)limits->NKV * limits->HS;
    size_t out = N * C * sizeof(bf16), back = goes_back ? N * W * sizeof(bf16) : 0,
           lse = N * limits->NH * sizeof(float), bytes = 0;
    const size_t sizes[] = {(N + ATTENTION_TAIL) * W * sizeof(bf16),
                            out,
                            out,
                            back,
                            back,
                            lse,
                            lse,
                            3 * sizeof(Difference),
                            (N + 1) * sizeof(int)};
    void** const places[] = {(void**)&r->qkv,          (void**)&r->out[0],       (void**)&r->out[1],
                             (void**)&r->gradients[0], (void**)&r->gradients[1], (void**)&r->lse[0],
                             (void**)&r->lse[1],       (void**)&r->found,        (void**)&r->cu};
    for (size_t size : sizes) bytes += ROUND_UP(size, (size_t)256);
    r->host_cu = (int*)malloc((N + 1) * sizeof(int));
    char *base = r->host_cu ? (char*)cuda_allocate(bytes, false) : NULL, *at = base;
    for (int i = 0; i < COUNT(sizes); at += ROUND_UP(sizes[i], (size_t)256), i++) *places[i] = at;
    return base;
}

// ---- results

// The candidate and the key of the trial that runs.
static struct { const char *candidate, *key; } now;

// Ends the process after a failed call of CUDA in the trial: nothing from the device can be trusted any more.
static void end_failed(const char* what, const char* error) {
    AttentionTrial t = {};
    cuda.failing = NULL;
    t.refused = 1;
    snprintf(t.words, sizeof t.words, "%s's attention failed in a trial on this machine, %.100s", now.candidate, error);
    cache_write(now.key, &t, sizeof t, 1);
    die("%s's attention failed in its trial: CUDA: %s: %s; this is noted, and our own attention is used when you start "
        "again, or with --device attention=own",
        now.candidate, what, error);
}

static void name_mark(char name[2 * NAME], const char* key) { snprintf(name, 2 * NAME, "%s, under way", key); }

static void leave_mark(const char* key, const char* words) {
    char name[2 * NAME];
    name_mark(name, key);
    cache_write(name, words, strlen(words), 1);
}

// Returns whether a trial was broken off: its process is gone.
static int was_broken_off(const char* key) {
    char name[2 * NAME], text[2 * NAME] = "", host[NAME], here[NAME] = "";
    size_t n = 0;
    long pid = 0;
    name_mark(name, key);
    char* bytes = cache_read(name, &n);
    if (bytes) memcpy(text, bytes, MIN(n, sizeof text - 1));
    free(bytes);
    gethostname(here, sizeof here - 1);
    return sscanf(text, "trial under way, PID %ld on %255s", &pid, host) == 2 && pid > 0 && !strcmp(host, here) &&
           kill((pid_t)pid, 0) && errno == ESRCH;
}

int cuda_attention_trial_kept(AttentionTrial* t, const char* candidate, const char* key) {
    size_t n = 0;
    char* bytes = cache_read(key, &n);
    int known = bytes && n == sizeof *t;
    if (known) memcpy(t, bytes, n);
    free(bytes);
    if (known || !was_broken_off(key)) return known;
    *t = AttentionTrial{};
    t->refused = 1;
    snprintf(t->words, sizeof t->words, "%s's attention failed in a trial on this machine", candidate);
    return 1;
}

int cuda_attention_trial(AttentionTrial* t, const AttentionCandidate* c, const KernelLimits* limits, const char* key,
                         Err err) {
    char words[2 * NAME], host[NAME] = "";
    Rows r = {};
    *t = AttentionTrial{};
    char* memory = set_up(&r, limits, c->backward != NULL);
    if (!memory) return free(r.host_cu), fail(err, "no GPU memory to try %s's attention beside our own", c->name);
    gethostname(host, sizeof host - 1);
    snprintf(words, sizeof words, "trial under way, PID %ld on %s", (long)getpid(), host);
    leave_mark(key, words);
    now.candidate = c->name, now.key = key;
    cuda.failing = end_failed;
    try_rows(t, &r, c, limits);
    CUDA_CHECK(cudaStreamSynchronize(cuda.stream));
    CUDA_CHECK(cudaFree(memory));
    cuda.failing = NULL;
    free(r.host_cu);
    leave_mark(key, "the trial has ended");
    if (!(t->own_ms < INFINITY)) return fail(err, "attention was not timed: a rank is missing");
    cache_write(key, t, sizeof *t, 0);
    // Another rank of this node may have been first: all take its result. A damaged file gives way.
    if (!cuda_attention_trial_kept(t, c->name, key)) cache_write(key, t, sizeof *t, 1);
    return 0;
}
