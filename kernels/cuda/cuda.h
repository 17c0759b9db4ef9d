// cuda.h - inside the CUDA backend: code that its files share on the host and on the device.
//
// Every file compiles in two ways: by nvcc, and by a plain C++ compiler for the emulator (test/emu), whose headers
// stand in for NVIDIA's. Hence LAUNCH, DYNAMIC_SHARED and ptx.cuh. No cooperative groups, no spinning between blocks.
#pragma once
#include <cuda_runtime.h>

#include <math.h>

#include <initializer_list>
#include <type_traits>

extern "C" {
#include "kernels/comm/comm_transport.h"
#include "kernels/rank_ops.h"
}
#include "kernels/cuda/cudnn_plan.h"

#ifdef __CUDACC__
#include "kernels/cuda/ptx.cuh"
// LAUNCH((kernel<T, 64>), grid, block, dynamic shared bytes, stream, arguments...)
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                       \
    do {                                                                             \
        kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__);          \
        cuda_check_at(__FILE__, __LINE__, cudaGetLastError(), "launch of " #kernel); \
        cuda_keep_pace(stream);                                                      \
    } while (0)
#define UNROLL _Pragma("unroll")  // before loops over arrays that must lie in registers
#define DYNAMIC_SHARED(type, name)                               \
    extern __shared__ __align__(16) unsigned char cuda_shared[]; \
    type* name = (type*)cuda_shared
#else
#include <emulated_ptx.h>
#define UNROLL
#define __grid_constant__
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    (EMU_LAUNCH(kernel, grid, block, shared_bytes, stream, __VA_ARGS__), cuda_keep_pace(stream))
#endif

// ---- host

// Keeps the host, after every launch, at most 512 launches ahead if there are other ranks. A launch that finds the
// device's queue full would block, for ever if the device waits in a collective for a rank that is missing.
void cuda_keep_pace(cudaStream_t stream);

// Dies with the place, what was tried and CUDA's message.
void cuda_check_at(const char* file, int line, cudaError_t error, const char* what);
#define CUDA_CHECK(call) cuda_check_at(__FILE__, __LINE__, (call), #call)

typedef struct CudaDevice {
    int index, major, minor, sm_count;
    char model[240];      // its name and its driver, for which files kept on disk hold
    KernelLimits limits;  // as given to open
    cudaStream_t stream;  // stands for Stream NULL
    char* scratch;        // see cuda_scratch
    size_t scratch_bytes;
    // Set while there are other ranks (comm_nccl.cu), NULL else. Waits for the event, or with NULL for all
    // collectives, by polling. 0; or -1 where that will never be, because a rank is missing: the next call of the Comm
    // says so, and what the device holds must not be used.
    int (*settle)(cudaEvent_t event);
    // If not NULL, ends the process with words of its own when a call has failed with this error.
    void (*failing)(const char* what, const char* error);
    int wgmma;         // 1: attention goes to attention_sm90.cu where that takes it
    int exchange_sms;  // multiprocessors that NCCL may have, while an exchange is under way beside computing; 0 else
} CudaDevice;
extern CudaDevice cuda;

static inline cudaStream_t cuda_stream(Stream s) { return s ? (cudaStream_t)s : cuda.stream; }

// Allocates memory of the device, or page-locked of the host, which the copy engine reads while the host goes on.
// NULL: there is none left.
void* cuda_allocate(size_t bytes, bool on_host);
// Returns device memory that the running op may use, 256-byte aligned; the next op uses the same. Dies when it is more
// than the file's ..._scratch_bytes promised for the limits.
void* cuda_scratch(size_t bytes);
size_t cuda_scratch_planned(void);  // bytes of it, for any op
// Returns device memory of cuda_attention_kept_bytes that no other op uses: attention keeps its lists there.
char* cuda_kept(void);

// Lets a kernel have more than 48 KiB of dynamic shared memory. Cheap enough to call before each launch.
template <class Kernel>
static inline void cuda_allow_shared(Kernel* kernel, size_t bytes) {
    if (bytes > (48 << 10))
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
}

// Returns the milliseconds of the best of `runs` runs after one to warm up; infinity if run() fails (is not 0) or a
// rank is missing.
template <class F>
static float cuda_best_time(int runs, cudaStream_t stream, F run) {
    cudaEvent_t from, to;
    float best = INFINITY, milliseconds = 0;
    CUDA_CHECK(cudaEventCreateWithFlags(&from, 0));
    CUDA_CHECK(cudaEventCreateWithFlags(&to, 0));
    for (int i = 0, failed = 0; i <= runs && !failed; i++) {
        CUDA_CHECK(cudaEventRecord(from, stream));
        failed = run() != 0;
        CUDA_CHECK(cudaEventRecord(to, stream));
        if (!failed && cuda.settle) failed = cuda.settle(to);
        if (!failed) CUDA_CHECK(cudaEventSynchronize(to));
        if (!failed) CUDA_CHECK(cudaEventElapsedTime(&milliseconds, from, to));
        if (i > 0) best = failed ? INFINITY : fminf(best, milliseconds);
    }
    CUDA_CHECK(cudaEventDestroy(from));
    CUDA_CHECK(cudaEventDestroy(to));
    return best;
}

// Returns the number of blocks of `threads` for n elements, a thread each.
static inline unsigned cuda_blocks(size_t n, size_t threads) { return (unsigned)CEIL_DIV(n, threads); }

// Returns log2 of the lanes for n elements, W a lane at a time: a power of two, so that they are neighbours in a warp.
static inline int cuda_log2_lanes(int n, int W) {
    int log2_lanes = 0;
    while (log2_lanes < 5 && W << log2_lanes < n) log2_lanes++;
    return log2_lanes;
}

// ---- ops by file. Op X of kernels.h is cuda_X here, of the same type. ..._scratch_bytes: most scratch that an op of
// the file needs under these limits; files without need less than matmul.cu, 4 MiB and limits->OC floats.

#define ENTRY(op) std::remove_pointer<decltype(Kernels::op)>::type cuda_##op
#define RANK_ENTRY(op) std::remove_pointer<decltype(RankOps::op)>::type cuda_##op

// elementwise.cu
ENTRY(activation_forward);
ENTRY(activation_backward);
ENTRY(add);
RANK_ENTRY(cast);
RANK_ENTRY(gather_rows);
RANK_ENTRY(scatter_rows);
RANK_ENTRY(split_heads);
RANK_ENTRY(join_heads);
RANK_ENTRY(scatter_columns);  // and gather_columns
RANK_ENTRY(attention_merge);
// embedding.cu
size_t cuda_embedding_scratch_bytes(const KernelLimits* limits);
ENTRY(embedding_forward);
ENTRY(embedding_backward);
// norm.cu
size_t cuda_norm_scratch_bytes(const KernelLimits* limits);
ENTRY(norm_forward);
ENTRY(norm_backward);
// rotary.cu
ENTRY(rotary_forward);
ENTRY(rotary_backward);
// column_sum.cu: sums[c] (C) += sum over rows of x (N,C), in a fixed order; for bias gradients
void cuda_column_sum(float* sums, const void* x, int N, int C, DType dt, Stream s);
// Column c of parts (n_parts, columns) is added to sums[c], from C on to more_sums[c - C], from 2 C on to last_sums; in
// order.
void cuda_add_parts(float* sums, float* more_sums, float* last_sums, const float* parts, int n_parts, int C,
                    int columns, cudaStream_t stream);
// matmul.cu
int cuda_matmul_open(Err err);
void cuda_matmul_close(void);
size_t cuda_matmul_scratch_bytes(const KernelLimits* limits);  // cuBLASLt's workspace among them
ENTRY(matmul_forward);
ENTRY(matmul_backward_input);
ENTRY(matmul_backward_weight);
RANK_ENTRY(strided_matmul);
RANK_ENTRY(matmul_fp8);
// fp8.cu
RANK_ENTRY(quantize);
// attention.cu, attention_backward.cu: tensor cores
size_t cuda_attention_scratch_bytes(const KernelLimits* limits);
size_t cuda_attention_kept_bytes(const KernelLimits* limits);
void cuda_attention_forget(void);  // drops what is kept there, at each open
ENTRY(attention_forward);
ENTRY(attention_backward);
// attention_plain.cu: calls that these two do not take; any element type, head sizes up to 256. backward needs ld_dq
// and ld_dkv, partial or not
size_t cuda_attention_plain_scratch_bytes(const KernelLimits* limits);
void cuda_attention_plain_forward(void* out, float* lse, const Attention* a, DType dt, Stream s);
void cuda_attention_plain_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                                   const Attention* a, DType dt, Stream s);
// attention_sm90.cu, attention_sm90_backward.cu: calls that attention_is_for_sm90 names
// open tries them, unless they were asked for, and returns as cuda_cudnn_open does.
int cuda_wgmma_open(const KernelLimits* limits, Err words);
void cuda_attention_forward_sm90(void* out, float* lse, const Attention* a, Stream s);
void cuda_attention_backward_sm90(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                                  const Attention* a, Stream s);
size_t cuda_attention_sm90_scratch_bytes(const KernelLimits* limits);
// attention_trial.cu: another's forward pass of attention is tried beside our own
typedef struct AttentionCandidate {
    const char* name;  // "cuDNN"
    // Does as cuda_attention_forward, in bf16. 0; 1: it does not take this row, and did nothing; -1 with a message.
    int (*forward)(void* out, float* lse, const Attention* a, void* context, Err err);
    void* context;
    int docs[CUDNN_PLANS], n;  // it has code for rows of at most docs[i] documents
    std::remove_pointer<decltype(cuda_attention_backward)>::type* backward;  // NULL: it goes forward only
} AttentionCandidate;

typedef struct AttentionTrial {
    float own_ms, candidate_ms;  // of a row of the longest documents; infinity: the candidate does not take it
    float difference;            // largest of `out`
    int refused;                 // it failed, or is wrong
    char words[400];             // for people: this, or why it was refused
} AttentionTrial;

// Both sides of a right candidate differ by less. In a trial entries are below V = 2 sqrt(3), and scores, sums of HS <=
// 128 products, are off by dS < 2^-10 where |q| |k| < 2 HS. Each side rounds probabilities to bf16, which is 2^-9 of
// them, beside 2 dS of their scores and normaliser, and its result, 2^-9 of it:  2 (2^-9 + 2^-9 + 2^-9) V.  lse: 4 dS.
constexpr float ATTENTION_TRIAL_OUT = 6 * 3.4641016f / 512, ATTENTION_TRIAL_LSE = 1.0f / 256;
// Gradients of a head vector differ, as vectors, by less than this part of it, beside this root mean square. Both
// sides are given one out, so that they round P, dS and results alike but at borders: 2^-8 of each term.
constexpr float ATTENTION_TRIAL_GRADIENT = 1.0f / 16, ATTENTION_TRIAL_NOTHING = 1.0f / 1024;

// Reads the trial kept under this key. 1; 0: there is none. One whose process is gone before its end is a refusal.
int cuda_attention_trial_kept(AttentionTrial* t, const char* candidate, const char* key);
// Tries it, and keeps the result. A CUDA error ends the process with one line, and is kept as a refusal. 0, or
// -1 with a message: there was no memory, or a rank is missing.
int cuda_attention_trial(AttentionTrial* t, const AttentionCandidate* c, const KernelLimits* limits, const char* key,
                         Err err);
// attention_cudnn.cu; open returns 0 with the figures that speak for cuDNN, or -1 with the reason why it cannot be used
// with these limits, or is slower. forward returns 0, or -1 when cuDNN does not do this very call: then we must
int cuda_cudnn_open(const KernelLimits* limits, Err words);
size_t cuda_cudnn_scratch_bytes(const KernelLimits* limits);
int cuda_cudnn_forward(void* out, float* lse, const Attention* a, DType dt, Stream s);
// The data around it, without any header of cuDNN. Fills a plan's lengths and offsets for the documents of cu (n_docs +
// 1), of which at most B have tokens, and one at least.
void cudnn_places(const CudnnPlan* p, const int* cu, int n_docs, cudaStream_t s);
// Converts a plan's log-sum-exp of every token to ours, (NH,Nq).
void cudnn_lse(const CudnnPlan* p, float* ours, int Nq, cudaStream_t s);
// classifier.cu
ENTRY(classifier);
RANK_ENTRY(classifier_part);
RANK_ENTRY(classifier_join);
RANK_ENTRY(weigh_labels);
RANK_ENTRY(momentum);
RANK_ENTRY(follow);
RANK_ENTRY(normalize);
RANK_ENTRY(combine);
// sample.cu
ENTRY(sample);
// optimizer.cu
ENTRY(adamw);
ENTRY(sum_of_squares);
ENTRY(add_sum);
ENTRY(clip_scale);

// ---- Comms (backend.cu)

// Opens the Comm of one rank. 0, or -1 with a message.
int comm_open_cuda_self(Comm** c, double timeout_seconds, Err err);
// Copies in device memory, for comm_copy_to_self.
void comm_copy_device(void* to, const void* from, size_t bytes, Stream s);

// ---- device

#define FULL_WARP 0xffffffffu

// Kernels are templates over the element type T: float or bf16 (which is the 16 bits of one).
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((unsigned)x << 16); }
template <class T>
__device__ __forceinline__ T narrow(float x);
template <>
__device__ __forceinline__ float narrow<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ bf16 narrow<bf16>(float x) {
    return (bf16)pack_bf16(x, 0.0f);
}

// W elements that one thread reads or writes at a time, 16 bytes of them unless W says otherwise.
template <class T, int W = 16 / (int)sizeof(T)>
struct __align__(W * sizeof(T)) Pack {
    static constexpr int N = W;
    T v[W];
};

// A word of BYTES bytes: a pack goes to and from memory as a word.
template <size_t BYTES>
using Word = std::conditional_t<BYTES == 2, unsigned short,
                                std::conditional_t<BYTES == 4, unsigned, std::conditional_t<BYTES == 8, uint2, uint4>>>;

// p must be aligned like the pack. load_pack<4>(p) loads 4 elements from wherever they lie; store_pack stores to global
// memory, keep_pack to shared memory.
template <int W, class T>
__device__ __forceinline__ Pack<T, W> load_pack(const T* p) {
    Pack<T, W> x;
    Word<sizeof x> word = *(const decltype(word)*)p;
    memcpy(&x, &word, sizeof x);
    return x;
}
template <class T>
__device__ __forceinline__ Pack<T> load_pack(const T* p) {
    return load_pack<Pack<T>::N>(p);
}
template <class T, int W>
__device__ __forceinline__ auto word_of(const Pack<T, W>& x) {
    Word<sizeof x> word;
    memcpy(&word, &x, sizeof x);
    return word;
}
template <class T, int W>
__device__ __forceinline__ void store_pack(T* p, const Pack<T, W>& x) {
    auto word = word_of(x);
    if constexpr (sizeof x == 16) store_16((uint4*)p, word);
    else *(decltype(word)*)p = word;
}
template <class T, int W>
__device__ __forceinline__ void keep_pack(T* p, const Pack<T, W>& x) {
    auto word = word_of(x);
    if constexpr (sizeof x == 16) keep_16((uint4*)p, word);
    else *(decltype(word)*)p = word;
}

// Calls f(0) with a 0 of type dt: float or bf16.
template <class F>
static void with_dtype(DType dt, F f) {
    dt == DT_BF16 ? f(bf16(0)) : f(0.0f);
}

// Elements of a kernel are of type T, and a thread reads or writes W of them at a time.
template <class Element, int WIDTH>
struct Form {
    typedef Element T;
    static constexpr int W = WIDTH;
};

// Calls f(Form) for elements of type dt: 16 bytes at a time if all addresses and rows of n elements are multiples of
// that, else one by one.
template <class F>
static void with_form(DType dt, std::initializer_list<const void*> addresses, size_t n, F f) {
    uintptr_t bits = n * dtype_bytes(dt);
    for (const void* address : addresses) bits |= (uintptr_t)address;
    with_dtype(dt, [=](auto zero) {
        typedef decltype(zero) T;
        bits % 16 == 0 ? f(Form<T, Pack<T>::N>()) : f(Form<T, 1>());
    });
}

// Every lane gets the sum, or the maximum, of all 32, or of its `lanes` neighbours, a power of two, by a fixed tree.
template <class N>
__device__ __forceinline__ N warp_sum(N x, int lanes = 32) {
    for (lanes /= 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(FULL_WARP, x, lanes);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, lanes));
    return x;
}

// Every thread gets the sum over the block of WARPS warps, by a fixed tree. `room` is shared, one a warp.
template <int WARPS, class N>
__device__ __forceinline__ N block_sum(N x, N* room) {
    x = warp_sum(x);
    __syncthreads();  // the room may still be read
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    N sum = 0;
    for (int w = 0; w < WARPS; w++) sum += room[w];
    return sum;
}

// Returns the sum of x over this lane and those before it.
__device__ __forceinline__ int sum_up_to_lane(int x) {
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        int before = __shfl_up_sync(FULL_WARP, x, lanes);
        if ((int)threadIdx.x % 32 >= lanes) x += before;
    }
    return x;
}

// Returns the last of n runs, which begin at rising places, that begins at `place` or before it.
template <class N>
__device__ __forceinline__ int run_of(const N* begins, int n, N place) {
    int low = 0, high = n;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (begins[middle] <= place) low = middle;
        else high = middle;
    }
    return low;
}

// hash64 of plan/base/base.h: the same bits as on the host.
__device__ __forceinline__ uint64_t device_hash64(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// GELU, see kernels.h. With u = sqrt(2/pi) (x + 0.044715 x^3):  (1 + tanh u) / 2 = 1 / (1 + exp(-2u)), which loses no
// digits where x is negative. An error of exp counts at most a quarter, so the fast one does for fp32 too: in all below
// 7 * 2^-24 |x|. Where u overflows the result is x or 0.
__device__ __forceinline__ float exp_minus_2u(float x) { return fast_exp(x * (x * x * -0.0713548163f - 1.59576912f)); }
__device__ __forceinline__ float gelu_of(float x) { return __fdividef(x, 1.0f + exp_minus_2u(x)); }
// Its derivative is s + x s (e s) 2 du/dx, with e = exp(-2u), s = 1 / (1 + e), 1 - s = e s. Beyond |x| = 10 that is 0
// or 1, and e would overflow.
__device__ __forceinline__ float gelu_slope(float x) {
    x = fabsf(x) > 10.0f ? copysignf(10.0f, x) : x;  // a NaN stays one
    float e = exp_minus_2u(x), s = __fdividef(1.0f, 1.0f + e);
    return s + x * s * (e * s) * (x * x * 0.214064449f + 1.59576912f);
}

extern "C" const Kernels cuda_kernels;
// Finds the table's device. 0, or -1 with the reason why none can be used.
extern "C" int cuda_find_device(Err err);
