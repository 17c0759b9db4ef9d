// optimizer.cu - AdamW, Muon, the norm of the gradient, and the sum of losses.
//
// Sums have two stages: blocks whose number follows from n alone add chunks of x, and one block adds their results, so
// that the bits depend on n and x, not on the GPU or on alignment. Nor may an update depend on where a shard of the
// weights begins: fmaf stands wherever the compiler could else choose which product to fuse, one way for vectors and
// another for the tail.
#include "kernels/cuda/cuda.h"

#include <float.h>

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    PACK = Pack<float>::N,
    PACKS = 4,                       // packs of a chunk that each thread of a sum adds
    CHUNK = THREADS * PACKS * PACK,  // elements that a block of a sum adds at once
    MOST_PARTS = 1024                // most blocks of a sum: enough to fill any GPU
};

// Loads elements i .. i + PACK of p, which are met once: WHOLE as one vector, else one by one, those from n on 0.
template <bool WHOLE>
static __device__ __forceinline__ Pack<float> load_floats(const float* p, size_t i, size_t n) {
    Pack<float> x;
    if constexpr (WHOLE) {
        float4 four = load_once((const float4*)(p + i));
        x = {{four.x, four.y, four.z, four.w}};
    } else {
        for (int j = 0; j < PACK; j++) x.v[j] = i + j < n ? p[i + j] : 0.0f;
    }
    return x;
}

template <bool WHOLE>
static __device__ __forceinline__ void store_floats(float* p, const Pack<float>& x, size_t i, size_t n) {
    if constexpr (WHOLE) store_once((float4*)(p + i), make_float4(x.v[0], x.v[1], x.v[2], x.v[3]));
    else
        for (int j = 0; j < PACK; j++)
            if (i + j < n) p[i + j] = x.v[j];
}

// ---- AdamW

// The step of an element: AdamW's; Muon's momentum, which leaves weights alone; Muon's step along v.
enum Update { ADAMW, MOMENTUM, FOLLOW };

// A tensor of a launch, whose blocks are first_block and on, up to those of the next one.
typedef struct Slice {
    void* param;
    float *master, *m, *v;
    const float* grad;
    size_t n;
    Place place;
    uint64_t rounding;
    float lr_decay;
    unsigned first_block : 30, freeze : 1, aligned : 1;
} Slice;

// The parameters of a launch, among which a block searches its tensor: they lie in the cache of constants.
template <Update UPDATE>
struct Batch {
    float m_keep, m_take, v_keep, v_take, v_correction, lr_corrected, lr, eps;
    const float* grad_scale;
    int n;
    Slice slice[UPDATE == ADAMW ? ADAMW_TENSORS : 1];
};
static_assert(sizeof(Batch<ADAMW>) <= 4096 && ADAMW_TENSORS <= 64, "what a launch takes, and six halvings find");

// bf16_round of plan/base/base.h: the same bits as on the host.
static __device__ __forceinline__ bf16 round_stochastically(float x, uint64_t random) {
    unsigned bits = __float_as_uint(x);
    if ((~bits & 0x7f800000u) == 0) return narrow<bf16>(x);  // infinite or NaN
    return (bf16)((bits + (unsigned)(random & 0xffff)) >> 16);
}

// Computes place_of elements i .. i + PACK, with one division.
static __device__ __forceinline__ void places_of(size_t place[PACK], const Place& p, size_t i) {
    size_t row = p.gap ? (p.col + i) / p.cols : 0, end = (row + 1) * p.cols - p.col;  // of the row in which i stands
    for (int j = 0; j < PACK; j++) {
        if (p.gap && i + j == end) row++, end += p.cols;
        place[j] = p.first + i + j + row * p.gap;
    }
}

// These make elements i .. i + PACK of param from their masters.
static __device__ __forceinline__ void weights_of(Pack<float>& w, const Pack<float>& x, size_t, const Slice&) { w = x; }
static __device__ __forceinline__ void weights_of(Pack<bf16, PACK>& w, const Pack<float>& x, size_t i, const Slice& a) {
    size_t place[PACK];
    if (a.rounding) places_of(place, a.place, i);
    for (int j = 0; j < PACK; j++)
        w.v[j] = a.rounding ? round_stochastically(x.v[j], device_hash64(a.rounding ^ place[j])) : narrow<bf16>(x.v[j]);
}

// Frozen elements, a bit for each, stay: they may have been rounded at random.
template <bool WHOLE, class T>
static __device__ __forceinline__ void store_weights(T* param, const Pack<float>& x, unsigned frozen, size_t i,
                                                     const Slice& a) {
    Pack<T, PACK> w;
    weights_of(w, x, i, a);
    if (WHOLE && frozen == 0) store_pack(param + i, w);
    else
        for (int j = 0; j < PACK; j++)
            if (i + j < a.n && !(frozen >> j & 1)) param[i + j] = w.v[j];
}

template <Update UPDATE>
static __device__ __forceinline__ void step_element(float& x, float& m, float& v, float scaled, const Slice& a,
                                                    const Batch<UPDATE>& k) {
    if constexpr (UPDATE == FOLLOW) {
        x -= fmaf(x, a.lr_decay, v * k.lr);
        return;
    }
    m = fmaf(m, k.m_keep, scaled * k.m_take);
    if constexpr (UPDATE == MOMENTUM) v = fmaf(m, k.m_keep, scaled * k.m_take);
    else {
        v = fmaf(v, k.v_keep, scaled * scaled * k.v_take);
        float step = m / (sqrtf(v * k.v_correction) + k.eps) * k.lr_corrected;
        x -= fmaf(x, a.lr_decay, step);
    }
}

template <Update UPDATE, bool WHOLE, bool FREEZE, class T>
static __device__ __forceinline__ void step_weights(const Slice& a, const Batch<UPDATE>& k, size_t i) {
    Pack<float> g = load_floats<WHOLE>(a.grad, i, a.n), x = load_floats<WHOLE>(a.master, i, a.n);
    Pack<float> m = load_floats<WHOLE>(a.m, i, a.n), v = load_floats<WHOLE>(a.v, i, a.n);
    float grad_scale = *k.grad_scale;  // read beside the others, not before them
    unsigned frozen = 0;
    for (int j = 0; j < PACK && FREEZE; j++) frozen |= (unsigned)(a.freeze && g.v[j] == 0) << j;
    if (!(fabsf(grad_scale) <= FLT_MAX) || frozen == (1u << PACK) - 1) return;
    for (int j = 0; j < PACK; j++) {
        if (!(frozen >> j & 1)) step_element<UPDATE>(x.v[j], m.v[j], v.v[j], g.v[j] * grad_scale, a, k);
    }
    if (UPDATE != FOLLOW) store_floats<WHOLE>(a.m, m, i, a.n), store_floats<WHOLE>(a.v, v, i, a.n);
    if (UPDATE == MOMENTUM) return;
    store_floats<WHOLE>(a.master, x, i, a.n);
    if (a.param != (void*)a.master) store_weights<WHOLE>((T*)a.param, x, frozen, i, a);
}

// Slices begin in ascending blocks, so the last that begins at this block or before it has it. Six halvings find it.
template <Update UPDATE>
static __device__ __forceinline__ int slice_of_block(const Batch<UPDATE>& k) {
    int at = 0;
    for (int step = UPDATE == ADAMW ? 32 : 0; step > 0; step /= 2)
        if (at + step < k.n && k.slice[at + step].first_block <= blockIdx.x) at += step;
    return at;
}

template <Update UPDATE, class T, bool FREEZE>
static __global__ void update_kernel(const __grid_constant__ Batch<UPDATE> k) {
    const Slice& a = k.slice[slice_of_block(k)];
    size_t i = ((size_t)(blockIdx.x - a.first_block) * THREADS + threadIdx.x) * PACK;
    if (a.aligned && i + PACK <= a.n) step_weights<UPDATE, true, FREEZE, T>(a, k, i);
    else if (i < a.n) step_weights<UPDATE, false, FREEZE, T>(a, k, i);
}

static Slice slice_of(const AdamW* a, DType dt, unsigned first_block) {
    uintptr_t floats = (uintptr_t)a->master | (uintptr_t)a->m | (uintptr_t)a->v | (uintptr_t)a->grad;
    Slice slice = {
        a->param,    a->master,      a->m, a->v, a->grad, a->n, a->place, a->rounding, a->lr * a->weight_decay,
        first_block, a->freeze != 0, 0};
    slice.aligned = floats % 16 == 0 && (uintptr_t)a->param % (PACK * dtype_bytes(dt)) == 0;
    return slice;
}

template <Update UPDATE>
static void update(const AdamW* a, int n, DType dt, Stream s) {
    if (n == 0) return;
    double m_correction = 1 - pow(a->beta1, a->t), v_correction = 1 - pow(a->beta2, a->t);
    unsigned blocks = 0, freeze = 0;
    Batch<UPDATE> k = {};
    k.m_keep = a->beta1, k.m_take = (float)(1.0 - a->beta1);
    k.v_keep = a->beta2, k.v_take = (float)(1.0 - a->beta2);
    k.v_correction = (float)(1 / v_correction), k.lr_corrected = (float)(a->lr / m_correction);
    k.lr = a->lr, k.eps = a->eps, k.grad_scale = a->grad_scale;
    for (const AdamW* end = a + n; a < end; a++) {
        if (a->n > 0) k.slice[k.n++] = slice_of(a, dt, blocks);
        freeze |= a->freeze;
        blocks += cuda_blocks(a->n, THREADS * PACK);
    }
    if (blocks == 0) return;
    with_dtype(dt, [=](auto zero) {
        typedef decltype(zero) T;
        auto kernel = freeze ? update_kernel<UPDATE, T, true> : update_kernel<UPDATE, T, false>;
        LAUNCH(kernel, blocks, THREADS, 0, cuda_stream(s), k);
    });
}

void cuda_adamw(const AdamW* a, int n, DType dt, Stream s) { update<ADAMW>(a, n, dt, s); }
void cuda_momentum(const AdamW* a, Stream s) { update<MOMENTUM>(a, 1, DT_F32, s); }
void cuda_follow(const AdamW* a, DType dt, Stream s) { update<FOLLOW>(a, 1, dt, s); }

// ---- what makes a matrix orthogonal, beside matmuls: 6 bytes an element of bf16

// out = a x + b y; with y NULL out = x / (sqrt(*norm2) + 1e-7).
template <class Out, class In>
static __global__ void combine_kernel(Out* out, float a, const In* x, float b, const In* y, const double* norm2,
                                      size_t n) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    if (y) out[i] = narrow<Out>(fmaf(b, widen(y[i]), a * widen(x[i])));
    else out[i] = narrow<Out>(widen(x[i]) * (float)(1 / (sqrt(*norm2) + 1e-7)));
}

void cuda_combine(void* out, float a, const void* x, float b, const void* y, size_t n, DType dt, Stream s) {
    if (n == 0) return;
    with_dtype(dt, [=](auto zero) {
        typedef decltype(zero) T;
        LAUNCH((combine_kernel<T, T>), cuda_blocks(n, THREADS), THREADS, 0, cuda_stream(s), (T*)out, a, (const T*)x, b,
               (const T*)y, (const double*)NULL, n);
    });
}

void cuda_normalize(void* out, const float* x, const double* norm2, size_t n, DType dt, Stream s) {
    if (n == 0) return;
    with_dtype(dt, [=](auto zero) {
        typedef decltype(zero) T;
        LAUNCH((combine_kernel<T, float>), cuda_blocks(n, THREADS), THREADS, 0, cuda_stream(s), (T*)out, 0.0f, x, 0.0f,
               (const float*)NULL, norm2, n);
    });
}

// ---- sums

static __device__ __forceinline__ double sum_of(const Pack<float> x[PACKS]) {
    double sum = 0;
    for (int k = 0; k < PACKS; k++)
        for (int j = 0; j < PACK; j++) sum += x[k].v[j];
    return sum;
}

// GPUs for desktops add doubles 64 times slower than floats, so a run of 16 squares is added in fp32, as a tree: each
// square is rounded once and passes four additions, which leaves a relative error of 5 * 2^-24 at most, as in the whole
// sum, since all terms are positive. If squares may have over- or underflowed, the run is added in double.
static __device__ __forceinline__ double squares_of(const Pack<float> x[PACKS]) {
    float s[PACKS];
    for (int k = 0; k < PACKS; k++) {
        const float* v = x[k].v;
        s[k] = fmaf(v[0], v[0], v[1] * v[1]) + fmaf(v[2], v[2], v[3] * v[3]);
    }
    float run = (s[0] + s[1]) + (s[2] + s[3]);
    if (run >= 0x1p-90f && run <= FLT_MAX) return run;
    double sum = 0;
    for (int k = 0; k < PACKS; k++)
        for (int j = 0; j < PACK; j++) sum += (double)x[k].v[j] * x[k].v[j];
    return sum;
}

template <bool SQUARES, bool WHOLE>
static __device__ __forceinline__ double chunk_sum(const float* x, size_t i, size_t n) {
    Pack<float> run[PACKS];
    for (int k = 0; k < PACKS; k++) run[k] = load_floats<WHOLE>(x, i + (size_t)k * THREADS * PACK, n);
    return SQUARES ? squares_of(run) : sum_of(run);
}

template <bool SQUARES>
static __global__ void partial_sums_kernel(double* parts, const float* x, size_t n, bool aligned) {
    __shared__ double room[WARPS];
    double sum = 0;
    for (size_t begin = (size_t)blockIdx.x * CHUNK; begin < n; begin += (size_t)gridDim.x * CHUNK) {
        size_t i = begin + threadIdx.x * PACK;
        sum += aligned && begin + CHUNK <= n ? chunk_sum<SQUARES, true>(x, i, n) : chunk_sum<SQUARES, false>(x, i, n);
    }
    sum = block_sum<WARPS>(sum, room);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// result += the sum of the parts.
static __global__ void total_kernel(double* result, const double* parts, int n_parts) {
    __shared__ double room[WARPS];
    double sum = 0;
    for (int p = threadIdx.x; p < n_parts; p += THREADS) sum += parts[p];
    sum = block_sum<WARPS>(sum, room);
    if (threadIdx.x == 0) *result += sum;
}

template <bool SQUARES>
static void sum(double* result, const float* x, size_t n, Stream s) {
    if (n == 0) return;
    int n_parts = (int)MIN(CEIL_DIV(n, (size_t)CHUNK), (size_t)MOST_PARTS);
    double* parts = (double*)cuda_scratch(n_parts * sizeof(double));
    LAUNCH((partial_sums_kernel<SQUARES>), (unsigned)n_parts, THREADS, 0, cuda_stream(s), parts, x, n,
           (uintptr_t)x % 16 == 0);
    LAUNCH(total_kernel, 1, THREADS, 0, cuda_stream(s), result, parts, n_parts);
}

void cuda_sum_of_squares(double* result, const float* x, size_t n, Stream s) { sum<true>(result, x, n, s); }

void cuda_add_sum(double* result, const float* x, size_t n, Stream s) { sum<false>(result, x, n, s); }

// ---- clipping

static __global__ void clip_scale_kernel(float* scale, const double* norm2, float clip) {
    double most = clip > 0 ? clip / sqrt(*norm2) : 1;
    *scale = !(*norm2 <= DBL_MAX) ? NAN : most < 1 ? (float)most : 1.0f;
}

void cuda_clip_scale(float* scale, const double* norm2, float clip, Stream s) {
    LAUNCH(clip_scale_kernel, 1, 1, 0, cuda_stream(s), scale, norm2, clip);
}
