// sample.cu - draws a token from each row of logits. Naively, for a row:
//
//   best = the first id of the largest logit, least = the k-th largest
//   weight(v) = logits[v] < least ? 0 : exp((logits[v] - logits[best]) / temperature)
//   token = the first v at which the weights up to it pass u times all of them
//   logprob = logits[token] - max - log(sum of exp(logits[v] - max))
//
// A block takes a row, some 300 KB, which stay in the L2 cache while it reads them again: 20 times for bf16 with top_k,
// else 4 times. Ids are cut into runs, a warp adds up the weights of a run, one thread finds the run in which the token
// is, and one warp finds the token. Every sum has one order, so that bits repeat.
#include "kernels/cuda/cuda.h"

enum { THREADS = 512, WARPS = THREADS / 32, MOST_RUNS = 1024, LEAST_RUN = 256 };

// Returns the float at place `key` in the order of floats: bits of negative ones count down.
__device__ __forceinline__ float float_at(unsigned key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

// Every thread gets the largest x, and of the threads that have it the least index.
__device__ __forceinline__ void block_best(float* x, int* index, float* values, int* indices) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        float other = __shfl_xor_sync(FULL_WARP, *x, lanes);
        int at = __shfl_xor_sync(FULL_WARP, *index, lanes);
        if (other > *x || (other == *x && at < *index)) *x = other, *index = at;
    }
    __syncthreads();
    if (lane == 0) values[warp] = *x, indices[warp] = *index;
    __syncthreads();
    *x = values[0], *index = indices[0];
    for (int w = 1; w < WARPS; w++)
        if (values[w] > *x || (values[w] == *x && indices[w] < *index)) *x = values[w], *index = indices[w];
}

// Returns the k-th largest logit of the ids, bit by bit of its place in the order of floats; of bf16, a float between
// that one and the next below it. The search does not find -infinity, since it meets NaN below the least finite float.
template <class T>
__device__ __forceinline__ float least_drawn(const T* z, int ids, int k, int* room) {
    constexpr unsigned last = sizeof(T) == 2 ? 1u << 16 : 1u, least_finite = 0x800000;
    unsigned key = 0;
    if (k <= 0 || k >= ids) return -INFINITY;
    for (unsigned bit = 1u << 31; bit >= last && bit; bit >>= 1) {
        float least = float_at(key | bit);
        int count = 0;
        for (int v = (int)threadIdx.x; v < ids; v += THREADS) count += widen(z[v]) >= least;
        if (block_sum<WARPS>(count, room) >= k) key |= bit;
    }
    return key < least_finite ? -INFINITY : float_at(key);
}

// A warp finds, in the run begin .. end, the first id at which `upto`, the weights before the run, and those of the run
// pass `most`. If rounding leaves none, it is the last id that weighs anything.
template <class F>
__device__ __forceinline__ int find_in_run(int begin, int end, double upto, double most, F weight) {
    int lane = (int)threadIdx.x % 32, last = begin;
    for (int first = begin; first < end; first += 32) {
        int v = first + lane;
        float own = v < end ? weight(v) : 0.0f, sum = own;
        for (int lanes = 1; lanes < 32; lanes *= 2) {
            float before = __shfl_up_sync(FULL_WARP, sum, lanes);
            if (lane >= lanes) sum += before;
        }
        unsigned passed = __ballot_sync(FULL_WARP, most < upto + (double)sum && own > 0);
        unsigned weighs = __ballot_sync(FULL_WARP, own > 0);
        if (passed) return first + __ffs((int)passed) - 1;
        if (weighs) last = first + 31 - __clz((int)weighs);
        upto += (double)__shfl_sync(FULL_WARP, sum, 31);
    }
    return last;
}

template <class T>
static __global__ void __launch_bounds__(THREADS) sample_kernel(Draw* draws, const T* logits, Sampling how, int Vp) {
    __shared__ float values[WARPS], runs[MOST_RUNS];
    __shared__ int indices[WARPS], chosen;
    __shared__ double before;
    const T* z = logits + (size_t)blockIdx.x * Vp;
    Draw* draw = draws + blockIdx.x;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, ids = how.ids, best = ids, unused = 0;
    float top = -INFINITY, max = -INFINITY, total = 0;
    for (int v = (int)threadIdx.x; v < ids; v += THREADS)
        if (widen(z[v]) > top) top = widen(z[v]), best = v;
    block_best(&top, &best, values, indices);
    if (best == ids) best = 0;
    for (int v = (int)threadIdx.x; v < how.V; v += THREADS) max = fmaxf(max, widen(z[v]));
    block_best(&max, &unused, values, indices);
    for (int v = (int)threadIdx.x; v < how.V; v += THREADS) total += expf(widen(z[v]) - max);
    total = block_sum<WARPS>(total, values);
    int token = best;
    if (how.temperature > 0) {
        float least = least_drawn(z, ids, how.top_k, indices), scale = (float)(1 / fmax(how.temperature, 1e-30));
        int run = MAX((int)LEAST_RUN, 32 * CEIL_DIV(ids, 32 * (int)MOST_RUNS)), n = CEIL_DIV(ids, run);
        auto weight = [=](int v) { return widen(z[v]) >= least ? expf((widen(z[v]) - top) * scale) : 0.0f; };
        for (int r = warp; r < n; r += WARPS) {
            float sum = 0;
            for (int v = r * run + lane; v < MIN(ids, (r + 1) * run); v += 32) sum += weight(v);
            sum = warp_sum(sum);
            if (lane == 0) runs[r] = sum;
        }
        __syncthreads();
        double all = 0;
        for (int r = 0; r < n; r++) all += (double)runs[r];
        if (threadIdx.x == 0) {
            double upto = 0;
            chosen = -1;
            for (int r = 0; r < n && chosen < 0; r++) {
                before = upto, upto += (double)runs[r];
                if (draw->u * all < upto) chosen = r;
            }
        }
        __syncthreads();
        if (warp == 0 && chosen >= 0)
            token = find_in_run(chosen * run, MIN(ids, (chosen + 1) * run), before, draw->u * all, weight);
    }
    if (threadIdx.x == 0) draw->token = token, draw->logprob = widen(z[token]) - max - logf(total);
}

void cuda_sample(Draw* draws, const void* logits, const Sampling* how, int N, int Vp, DType dt, Stream s) {
    if (N == 0) return;
    with_dtype(dt, [=](auto zero) {
        typedef decltype(zero) T;
        LAUNCH(sample_kernel<T>, (unsigned)N, THREADS, 0, cuda_stream(s), draws, (const T*)logits, *how, Vp);
    });
}
