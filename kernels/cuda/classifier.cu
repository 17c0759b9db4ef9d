// classifier.cu - softmax cross-entropy of a chunk of rows, fused with its gradient, in place.
//
// A block takes a row and passes over it twice: the first pass finds its maximum and the sum of its exponentials
// together (online softmax: Milakov & Gimelshein 2018), the second writes the gradient. The limit is memory, 8 bytes
// a logit in fp32 and 4 in bf16, as long as the rows that are under way fit into the L2 cache: few large blocks, and
// the second pass runs backwards, since the end of the row was read last.
#include "kernels/cuda/cuda.h"

#include <float.h>
#include <math.h>

enum {
    MOST_THREADS = 1024,
    PACKS = 2,  // packs of a row that a thread loads at once in the first pass
};

// The gradient of bf16 logits is rounded to 8 bits, and the sum averages errors out: the fast form is good enough for
// them.
template <class T>
__device__ __forceinline__ float exp_for(float x) {
    return sizeof(T) == sizeof(bf16) ? fast_exp(x) : expf(x);
}

// Columns i .. i + Pack<T>::N of a row: WHOLE as one vector, else one by one, from V on minus infinity.
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

// Of the threads' maxima and totals, every thread gets those of the block.
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

// The gradient of columns i .. i + Pack<T>::N, of which those before V have p = exp(logit - max) * inverse.
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

// Columns are counted in 32 bits: V + 2 strides stays below 2^32.
template <class T>
static __global__ void __launch_bounds__(MOST_THREADS)
    classifier_kernel(float* losses, T* logits, const int* targets, float scale, int write_gradient, unsigned V,
                      unsigned Vp, bool aligned) {
    constexpr unsigned N = Pack<T>::N;
    T* row = logits + (size_t)blockIdx.x * Vp;
    int target = targets[blockIdx.x];
    unsigned first = threadIdx.x * N, stride = blockDim.x * N;
    float max = -FLT_MAX, total = 0, loss = 0, inverse = 0;
    if (target >= 0) {
        for (unsigned i = first; i < V; i += PACKS * stride)
            if (aligned && i + (PACKS - 1) * stride + N <= V) add_packs<true>(&max, &total, row, i, stride, V);
            else add_packs<false>(&max, &total, row, i, stride, V);
        float at_target = widen(row[target]);  // before anyone overwrites it
        merge_block<T>(&max, &total);
        loss = max - at_target + logf(total);
        inverse = 1.0f / total;
    }
    if (threadIdx.x == 0) losses[blockIdx.x] = loss;
    for (unsigned sweep = write_gradient ? CEIL_DIV(Vp, stride) : 0; sweep-- > 0;) {
        unsigned i = first + sweep * stride;
        if (i >= Vp) continue;
        Pack<T> x = {};
        if (target >= 0) x = gradient_of(row, i, V, target, max, inverse, scale, aligned && i + N <= V);
        if (aligned) store_pack(row + i, x);
        for (unsigned j = 0; j < N && !aligned; j++)
            if (i + j < Vp) row[i + j] = x.v[j];
    }
}

template <class T>
static void classifier(float* losses, T* logits, const int* targets, float scale, int write_gradient, int N, int V,
                       int Vp, Stream s) {
    bool aligned = (uintptr_t)logits % 16 == 0 && Vp % Pack<T>::N == 0;
    unsigned packs = cuda_blocks(Vp, Pack<T>::N), threads = ROUND_UP(CEIL_DIV(packs, (unsigned)PACKS), 32u);
    LAUNCH((classifier_kernel<T>), (unsigned)N, MIN(threads, (unsigned)MOST_THREADS), 0, cuda_stream(s), losses, logits,
           targets, scale, write_gradient, (unsigned)V, (unsigned)Vp, aligned);
}

void cuda_classifier(float* losses, void* logits, const int* targets, float scale, int write_gradient, int N, int V,
                     int Vp, DType dt, Stream s) {
    if (N == 0) return;
    if (dt == DT_BF16) classifier(losses, (bf16*)logits, targets, scale, write_gradient, N, V, Vp, s);
    else classifier(losses, (float*)logits, targets, scale, write_gradient, N, V, Vp, s);
}
