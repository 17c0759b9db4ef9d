// classifier.cu - softmax cross-entropy of a chunk of rows, fused with its gradient, in place. Naively, for a row:
//
//   max = -infinity, total = 0
//   for v < V:     if (logits[v] > max) total *= exp(max - logits[v]), max = logits[v]      first pass
//                  total += exp(logits[v] - max)
//   loss = max + log(total) - logits[target]
//   for v < V:     logits[v] = (exp(logits[v] - max) / total - (v == target)) * scale       second pass
//   for v >= V:    logits[v] = 0
//
// A block takes a row; its threads each keep a max and a total of their columns, which are merged at the end of the
// first pass (online softmax: Milakov & Gimelshein 2018). Memory is crossed once as long as the rows under way fit into
// the L2 cache (three an SM: on 132 SMs 40 MB of bf16 at GPT-2's vocabulary): few large blocks, and the second pass
// runs backwards, since the end of the row was read last. Where ranks hold parts of the vocabulary the passes are two
// kernels, and between them ranks gather 12 bytes a row from each other (Megatron-LM: Shoeybi et al. 2019).
#include "kernels/cuda/cuda.h"

#include <float.h>

enum {
    MOST_THREADS = 512,  // of a block. With 40 registers a thread three blocks fit on an SM; of 1024 threads one would
    PACKS = 2,           // packs of a row that a thread loads at once in the first pass
};

// The gradient of bf16 logits is rounded to 8 bits, and the sum averages errors out: the fast form is good enough for
// them.
template <class T>
__device__ __forceinline__ float exp_for(float x) {
    return sizeof(T) == sizeof(bf16) ? fast_exp(x) : expf(x);
}

// Loads columns i .. i + Pack<T>::N of a row: WHOLE as one vector, else one by one, from V on minus infinity.
template <bool WHOLE, class T>
__device__ __forceinline__ Pack<T> load_logits(const T* row, unsigned i, unsigned V) {
    if constexpr (WHOLE) {
        return load_pack(row + i);
    } else {
        Pack<T> x;
        for (int j = 0; j < Pack<T>::N; j++) x.v[j] = i + j < V ? row[i + j] : narrow<T>(-INFINITY);
        return x;
    }
}

// total becomes the sum of exp(x - max) with the new max. Starting from -FLT_MAX instead of -infinity lets everything
// so far be -infinity.
template <class T>
__device__ __forceinline__ void add_exponentials(float* max, float* total, const Pack<T>& x) {
    float highest = *max;
    for (int j = 0; j < Pack<T>::N; j++) highest = fmaxf(highest, widen(x.v[j]));
    if (highest > *max) {
        *total *= exp_for<T>(*max - highest);
        *max = highest;
    }
    for (int j = 0; j < Pack<T>::N; j++) *total += exp_for<T>(widen(x.v[j]) - highest);
}

template <bool WHOLE, class T>
__device__ __forceinline__ void add_packs(float* max, float* total, const T* row, unsigned i, unsigned stride,
                                          unsigned V) {
    Pack<T> x[PACKS];
    for (int k = 0; k < PACKS; k++) x[k] = load_logits<WHOLE>(row, i + k * stride, V);
    for (int k = 0; k < PACKS; k++) add_exponentials(max, total, x[k]);
}

// Every thread gets the block's max and total from those of the threads.
template <class T>
__device__ __forceinline__ void merge_block(float* max, float* total) {
    __shared__ float maxima[32], totals[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    float highest = warp_max(*max);
    if (lane == 0) maxima[warp] = highest;
    __syncthreads();
    highest = warp_max(lane < n_warps ? maxima[lane] : -FLT_MAX);
    float sum = warp_sum(*total * exp_for<T>(*max - highest));
    if (lane == 0) totals[warp] = sum;
    __syncthreads();
    *total = warp_sum(lane < n_warps ? totals[lane] : 0.0f);
    *max = highest;
}

// Returns the gradient of columns i .. i + Pack<T>::N; those before V have p = exp(logit - max) * inverse.
template <class T>
__device__ __forceinline__ Pack<T> gradient_of(const T* row, unsigned i, unsigned V, unsigned target, float max,
                                               float inverse, float scale, bool whole) {
    constexpr unsigned N = Pack<T>::N;
    Pack<T> x = whole ? load_logits<true>(row, i, V) : load_logits<false>(row, i, V);
    float p[N];
    for (unsigned j = 0; j < N; j++) p[j] = exp_for<T>(widen(x.v[j]) - max) * inverse;
    for (unsigned j = 0; j < N && target - i < N; j++) p[j] -= i + j == target;
    for (unsigned j = 0; j < N; j++) x.v[j] = narrow<T>(p[j] * scale);
    for (unsigned j = 0; j < N && !whole; j++)
        if (i + j >= V) x.v[j] = 0;
    return x;
}

// NOWHERE is no column. Columns are counted in 32 bits: V + 2 strides stays below 2^32.
constexpr unsigned NOWHERE = 0xffffffffu;

// Every thread gets the greatest of a row's V logits and the sum of exp(logit - greatest): -FLT_MAX and 0 where all are
// -infinity.
template <class T>
__device__ __forceinline__ void sum_row(float* max, float* total, const T* row, unsigned V, bool aligned) {
    constexpr unsigned N = Pack<T>::N;
    unsigned stride = blockDim.x * N;
    *max = -FLT_MAX;
    *total = 0;
    for (unsigned i = threadIdx.x * N; i < V; i += PACKS * stride)
        if (aligned && i + (PACKS - 1) * stride + N <= V) add_packs<true>(max, total, row, i, stride, V);
        else add_packs<false>(max, total, row, i, stride, V);
    merge_block<T>(max, total);
}

// Writes the gradient over a row's logits; zeros without a label.
template <class T>
__device__ __forceinline__ void write_row(T* row, unsigned V, unsigned Vp, bool labelled, unsigned target, float max,
                                          float inverse, float scale, bool aligned) {
    constexpr unsigned N = Pack<T>::N;
    unsigned stride = blockDim.x * N;
    for (unsigned sweep = CEIL_DIV(Vp, stride); sweep-- > 0;) {
        unsigned i = threadIdx.x * N + sweep * stride;
        if (i >= Vp) continue;
        Pack<T> x = {};
        if (labelled) x = gradient_of(row, i, V, target, max, inverse, scale, aligned && i + N <= V);
        if (aligned) store_pack(row + i, x);
        for (unsigned j = 0; j < N && !aligned; j++)
            if (i + j < Vp) row[i + j] = x.v[j];
    }
}

template <class T>
static __global__ void __launch_bounds__(MOST_THREADS)
    classifier_kernel(float* losses, T* logits, const int* targets, float scale, int write_gradient, unsigned V,
                      unsigned Vp, bool aligned) {
    T* row = logits + (size_t)blockIdx.x * Vp;
    int target = targets[blockIdx.x];
    float max = 0, total = 1, loss = 0;
    if (target >= 0) {
        float at_target = widen(row[target]);  // before anyone overwrites it
        sum_row(&max, &total, row, V, aligned);
        loss = max - at_target + logf(total);
    }
    if (threadIdx.x == 0) losses[blockIdx.x] = loss;
    if (write_gradient) write_row(row, V, Vp, target >= 0, target, max, 1.0f / total, scale, aligned);
}

static unsigned threads_for(int Vp, int pack) {
    unsigned packs = cuda_blocks((size_t)Vp, pack), threads = ROUND_UP(CEIL_DIV(packs, (unsigned)PACKS), 32u);
    return MIN(MAX(threads, 32u), (unsigned)MOST_THREADS);
}

template <class T>
static bool rows_are_aligned(const void* logits, int Vp) {
    return (uintptr_t)logits % 16 == 0 && Vp % Pack<T>::N == 0;
}

void cuda_classifier(float* losses, void* logits, const int* targets, float scale, int write_gradient, int N, int V,
                     int Vp, DType dt, Stream s) {
    if (N == 0) return;
    with_dtype(dt, [=](auto zero) {
        typedef decltype(zero) T;
        LAUNCH((classifier_kernel<T>), (unsigned)N, threads_for(Vp, Pack<T>::N), 0, cuda_stream(s), losses, (T*)logits,
               targets, scale, write_gradient, (unsigned)V, (unsigned)Vp, rows_are_aligned<T>(logits, Vp));
    });
}

// ---- a part of the vocabulary: the two passes as kernels of their own

typedef struct PartStats {  // of a row, as in kernels.h
    float max, total, at_target;
} PartStats;

// Returns NOWHERE if the target is not of this part: negative ones and those before it wrap around beyond all columns.
static __device__ __forceinline__ unsigned column_of(int target, int first, unsigned V) {
    unsigned column = (unsigned)target - (unsigned)first;
    return column < V ? column : NOWHERE;
}

template <class T>
static __global__ void __launch_bounds__(MOST_THREADS)
    part_kernel(PartStats* stats, const T* logits, const int* targets, int first, unsigned V, unsigned Vp,
                bool aligned) {
    const T* row = logits + (size_t)blockIdx.x * Vp;
    float max, total;
    sum_row(&max, &total, row, V, aligned);
    if (threadIdx.x > 0) return;
    unsigned column = column_of(targets[blockIdx.x], first, V);
    stats[blockIdx.x] = {total == 0 ? -INFINITY : max, total, column == NOWHERE ? 0 : widen(row[column])};
}

// Joins the stats of all parts of the block's row. Every thread of every rank adds the same in the same order.
static __device__ __forceinline__ PartStats join_stats(const PartStats* stats, int parts) {
    PartStats all = {-INFINITY, 0, 0};
    for (int p = 0; p < parts; p++) all.max = fmaxf(all.max, stats[(size_t)p * gridDim.x + blockIdx.x].max);
    for (int p = 0; p < parts; p++) {
        PartStats part = stats[(size_t)p * gridDim.x + blockIdx.x];
        all.total = fmaf(part.total, expf(part.max - all.max), all.total);
        all.at_target += part.at_target;
    }
    return all;
}

template <class T>
static __global__ void __launch_bounds__(MOST_THREADS)
    join_kernel(float* losses, T* logits, const PartStats* stats, int parts, const int* targets, int first, float scale,
                int write_gradient, unsigned V, unsigned Vp, bool aligned) {
    int target = targets[blockIdx.x];
    PartStats all = {0, 1, 0};
    if (target >= 0) all = join_stats(stats, parts);
    if (threadIdx.x == 0) losses[blockIdx.x] = target >= 0 ? all.max - all.at_target + logf(all.total) : 0;
    if (write_gradient)
        write_row(logits + (size_t)blockIdx.x * Vp, V, Vp, target >= 0, column_of(target, first, V), all.max,
                  1.0f / all.total, scale, aligned);
}

void cuda_classifier_part(float* stats, const void* logits, const int* targets, int first, int N, int V, int Vp,
                          DType dt, Stream s) {
    if (N == 0) return;
    with_dtype(dt, [=](auto zero) {
        typedef decltype(zero) T;
        LAUNCH((part_kernel<T>), (unsigned)N, threads_for(Vp, Pack<T>::N), 0, cuda_stream(s), (PartStats*)stats,
               (const T*)logits, targets, first, (unsigned)V, (unsigned)Vp, rows_are_aligned<T>(logits, Vp));
    });
}

void cuda_classifier_join(float* losses, void* logits, const float* stats, int parts, const int* targets, int first,
                          float scale, int write_gradient, int N, int V, int Vp, DType dt, Stream s) {
    if (N == 0) return;
    with_dtype(dt, [=](auto zero) {
        typedef decltype(zero) T;
        LAUNCH((join_kernel<T>), (unsigned)N, threads_for(write_gradient ? Vp : 0, Pack<T>::N), 0, cuda_stream(s),
               losses, (T*)logits, (const PartStats*)stats, parts, targets, first, scale, write_gradient, (unsigned)V,
               (unsigned)Vp, rows_are_aligned<T>(logits, Vp));
    });
}

// ---- labels that do not count alike: a pass of its own over gradients, for few runs have them

template <class T>
static __global__ void __launch_bounds__(MOST_THREADS)
    weigh_kernel(float* losses, T* logits, const int* targets, TokenLoss of, int write_gradient, unsigned Vp,
                 bool aligned) {
    constexpr unsigned N = Pack<T>::N;
    T* row = logits + (size_t)blockIdx.x * Vp;
    float slope = 0, loss = 0;
    if (targets[blockIdx.x] >= 0) loss = token_loss(&of, blockIdx.x, losses[blockIdx.x], &slope);
    __syncthreads();  // all have read the loss
    if (threadIdx.x == 0) losses[blockIdx.x] = loss;
    if (!write_gradient) return;
    for (unsigned i = threadIdx.x * N; i < Vp; i += blockDim.x * N) {
        Pack<T> x = aligned ? load_logits<true>(row, i, Vp) : load_logits<false>(row, i, Vp);
        for (unsigned j = 0; j < N; j++) x.v[j] = narrow<T>(widen(x.v[j]) * slope);
        if (aligned) store_pack(row + i, x);
        for (unsigned j = 0; j < N && !aligned; j++)
            if (i + j < Vp) row[i + j] = x.v[j];
    }
}

void cuda_weigh_labels(float* losses, void* logits, const int* targets, const TokenLoss* of, int write_gradient, int N,
                       int Vp, DType dt, Stream s) {
    TokenLoss copy = *of;
    if (N == 0) return;
    with_dtype(dt, [=](auto zero) {
        typedef decltype(zero) T;
        LAUNCH((weigh_kernel<T>), (unsigned)N, threads_for(write_gradient ? Vp : 0, Pack<T>::N), 0, cuda_stream(s),
               losses, (T*)logits, targets, copy, write_gradient, (unsigned)Vp, rows_are_aligned<T>(logits, Vp));
    });
}
