// rotary.cu - rotary positions of queries and keys after QK-norm, in place, and their gradients.
//
// Naively, for one head vector x of token n, with w = q_weight or k_weight (QK-norm; without it rstd = w = 1):
//
//   rstd = 1 / sqrt(mean(x^2) + eps)
//   for j < HS / 2:   c, s = table[positions[n]][j],  k = j + HS / 2
//                     a = x[j] * rstd * w[j],  b = x[k] * rstd * w[k]
//                     x[j] = a * c - b * s,  x[k] = b * c + a * s
//
// and its gradient, with g = dx turned by the opposite angles, xhat = raw * rstd, h = g * w:
//
//   for j < HS:       dx[j] = rstd * (h[j] - xhat[j] * mean(h * xhat)),  dw[j] += g[j] * xhat[j]
//
// A group of lanes has a head vector in registers, each lane the same places of both halves: every element is read once
// and written once. The sums over rows (dw) are of a fixed set of tokens a block, by lanes, then warps, then blocks,
// each in a fixed order; the number of blocks depends on N alone, so that every GPU gives the same bits.
#include "kernels/cuda/cuda.h"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    MOST_HS = 256,
    RESIDENT = 2,      // blocks of the backward pass on an SM: at most 128 registers a thread
    MOST_PARTS = 256,  // blocks of the backward pass: what 128 SMs hold at once
    PART_TOKENS = 4,   // least tokens of one
};

// A lane's share of a head vector: pack i of each half begins at element (i * lanes + lane) * W of that half. Beyond
// the half there are zeros.
template <int W>
struct Halves {
    static constexpr int PACKS = W == 1 ? MOST_HS / 2 / 32 : 1;
    float low[PACKS][W], high[PACKS][W];
};

// The group of lanes that takes a head vector, and the half of its size; 0: there is no vector for the group.
typedef struct Group {
    int lanes, lane, half;
} Group;

template <int W, class T>
static __device__ __forceinline__ Halves<W> load_halves(const T* x, Group group) {
    Halves<W> v = {};
    for (int i = 0; i < Halves<W>::PACKS; i++) {
        int c = (i * group.lanes + group.lane) * W;
        if (c >= group.half) break;
        Pack<T, W> low = load_pack<W>(x + c), high = load_pack<W>(x + group.half + c);
        for (int j = 0; j < W; j++) v.low[i][j] = widen(low.v[j]), v.high[i][j] = widen(high.v[j]);
    }
    return v;
}

template <int W, class T>
static __device__ __forceinline__ void store_halves(T* x, const Halves<W>& v, Group group) {
    for (int i = 0; i < Halves<W>::PACKS; i++) {
        int c = (i * group.lanes + group.lane) * W;
        if (c >= group.half) break;
        Pack<T, W> low, high;
        for (int j = 0; j < W; j++) low.v[j] = narrow<T>(v.low[i][j]), high.v[j] = narrow<T>(v.high[i][j]);
        store_pack(x + c, low), store_pack(x + group.half + c, high);
    }
}

// Turns v by the angles of a row of the table, or with direction -1 by the opposite ones.
template <int W>
static __device__ __forceinline__ void turn(Halves<W>* v, const float* angles, float direction, Group group) {
    constexpr int AT_ONCE = W == 1 ? 1 : 4;
    for (int i = 0; i < Halves<W>::PACKS; i++) {
        int c = (i * group.lanes + group.lane) * W;
        if (c >= group.half) break;
        Pack<float, AT_ONCE> cos_sin[2 * W / AT_ONCE];
        for (int j = 0; j < 2 * W / AT_ONCE; j++) cos_sin[j] = load_pack<AT_ONCE>(angles + 2 * c + j * AT_ONCE);
        for (int j = 0; j < W; j++) {
            float a = v->low[i][j], b = v->high[i][j];
            float cosine = cos_sin[2 * j / AT_ONCE].v[2 * j % AT_ONCE];
            float sine = cos_sin[(2 * j + 1) / AT_ONCE].v[(2 * j + 1) % AT_ONCE] * direction;
            v->low[i][j] = a * cosine - b * sine;
            v->high[i][j] = b * cosine + a * sine;
        }
    }
}

// Returns the sum of x y over the head vector, for every lane of the group.
template <int W>
static __device__ __forceinline__ float dot(const Halves<W>& x, const Halves<W>& y, Group group) {
    float sum = 0;
    for (int i = 0; i < Halves<W>::PACKS; i++)
        for (int j = 0; j < W; j++) sum += x.low[i][j] * y.low[i][j] + x.high[i][j] * y.high[i][j];
    return warp_sum(sum, group.lanes);
}

// ---- forward; and without QK-norm backward, which only turns the other way

template <class T, int W, bool NORM>
static __global__ void __launch_bounds__(THREADS) turn_kernel(T* x, T* raw, Rotary r, float direction, int log2_lanes) {
    size_t vector = ((size_t)blockIdx.x * THREADS + threadIdx.x) >> log2_lanes, heads = (size_t)(r.NH + r.NKV);
    size_t n = vector / heads, h = vector % heads;
    int lanes = 1 << log2_lanes;
    Group group = {lanes, (int)threadIdx.x & (lanes - 1), n < (size_t)r.N ? r.HS / 2 : 0};
    x += n * r.ld + h * r.HS;
    Halves<W> v = load_halves<W>(x, group);
    if (NORM) {
        store_halves<W>(raw + vector * r.HS, v, group);
        float rstd = rsqrtf(dot(v, v, group) / r.HS + r.eps);
        Halves<W> w = load_halves<W>((const T*)(h < (size_t)r.NH ? r.q_weight : r.k_weight), group);
        for (int i = 0; i < Halves<W>::PACKS; i++)
            for (int j = 0; j < W; j++) v.low[i][j] *= rstd * w.low[i][j], v.high[i][j] *= rstd * w.high[i][j];
    }
    if (group.half == 0) return;
    turn(&v, r.table + (size_t)r.positions[n] * r.HS, direction, group);
    store_halves<W>(x, v, group);
}

// ---- backward through QK-norm: a block has some tokens one after another, first their queries, then their keys

// sums (HS) = those of all groups of the block.
template <int W>
static __device__ __forceinline__ void add_groups(float* sums, Halves<W> mine, Group group) {
    __shared__ float of_warps[WARPS][MOST_HS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, HS = 2 * group.half;
    for (int i = 0; i < Halves<W>::PACKS; i++) {
        int c = (i * group.lanes + group.lane) * W;
        for (int j = 0; j < W; j++) {
            float low = mine.low[i][j], high = mine.high[i][j];
            for (int lanes = group.lanes; lanes < 32; lanes *= 2) {
                low += __shfl_xor_sync(FULL_WARP, low, lanes);
                high += __shfl_xor_sync(FULL_WARP, high, lanes);
            }
            if (lane < group.lanes && c < group.half)
                of_warps[warp][c + j] = low, of_warps[warp][group.half + c + j] = high;
        }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < HS; c += THREADS) {
        float sum = 0;
        for (int i = 0; i < WARPS; i++) sum += of_warps[i][c];
        sums[c] = sum;
    }
    __syncthreads();  // of_warps may be used again
}

// Takes one head vector: g, turned back, becomes the gradient of the normed vector; sum += g * xhat.
template <int W>
static __device__ __forceinline__ void norm_gradient(Halves<W>* sum, Halves<W>* g, Halves<W> x, const Halves<W>& w,
                                                     int HS, float eps, Group group) {
    float rstd = rsqrtf(dot(x, x, group) / HS + eps);
    Halves<W> h;
    for (int i = 0; i < Halves<W>::PACKS; i++)
        for (int j = 0; j < W; j++) {
            x.low[i][j] *= rstd, x.high[i][j] *= rstd;
            sum->low[i][j] += g->low[i][j] * x.low[i][j], sum->high[i][j] += g->high[i][j] * x.high[i][j];
            h.low[i][j] = g->low[i][j] * w.low[i][j], h.high[i][j] = g->high[i][j] * w.high[i][j];
        }
    float mean = dot(h, x, group) / HS;
    for (int i = 0; i < Halves<W>::PACKS; i++)
        for (int j = 0; j < W; j++) {
            g->low[i][j] = rstd * (h.low[i][j] - x.low[i][j] * mean);
            g->high[i][j] = rstd * (h.high[i][j] - x.high[i][j] * mean);
        }
}

// parts (gridDim.x, 2 HS) =: each block's sums for dq_weight and for dk_weight.
template <class T, int W>
static __global__ void __launch_bounds__(THREADS, RESIDENT)
    norm_backward_kernel(T* dx, float* parts, const T* raw, Rotary r, int log2_lanes) {
    int lanes = 1 << log2_lanes, lane = (int)threadIdx.x & (lanes - 1), groups = THREADS >> log2_lanes;
    size_t begin = (size_t)r.N * blockIdx.x / gridDim.x, end = (size_t)r.N * (blockIdx.x + 1) / gridDim.x;
    for (int keys = 0; keys < 2; keys++) {
        int heads = keys ? r.NKV : r.NH, vectors = (int)(end - begin) * heads;
        Group whole = {lanes, lane, r.HS / 2};
        Halves<W> sum = {}, w = load_halves<W>((const T*)(keys ? r.k_weight : r.q_weight), whole);
        for (int first = 0; first < vectors; first += groups) {  // as often for each lane: they exchange sums
            int vector = first + ((int)threadIdx.x >> log2_lanes);
            size_t n = begin + vector / heads, h = vector % heads + (keys ? r.NH : 0);
            Group group = {lanes, lane, vector < vectors ? r.HS / 2 : 0};
            T* at = dx + n * r.ld + h * r.HS;
            Halves<W> g = load_halves<W>(at, group);
            Halves<W> x = load_halves<W>(raw + (n * (r.NH + r.NKV) + h) * r.HS, group);
            if (group.half) turn(&g, r.table + (size_t)r.positions[n] * r.HS, -1, group);
            norm_gradient(&sum, &g, x, w, r.HS, r.eps, group);
            store_halves<W>(at, g, group);
        }
        add_groups(parts + ((size_t)blockIdx.x * 2 + keys) * r.HS, sum, whole);
    }
}

static size_t parts_of(size_t N) { return MIN(CEIL_DIV(N, (size_t)PART_TOKENS), (size_t)MOST_PARTS); }

// ---- entries

static void check_head_size(const Rotary* r) {
    if (r->HS < 2 || r->HS > MOST_HS || r->HS % 2)
        die("rotary positions on CUDA: the head size is %d, expected an even one to %d; try --device cpu", r->HS,
            MOST_HS);
}

// Calls f(Form): 16 bytes at a time if both halves of all head vectors can be read so.
template <class F>
static void with_halves(const void* x, const void* raw, const Rotary* r, DType dt, F f) {
    with_form(dt, {x, raw, r->table, r->q_weight, r->k_weight}, (size_t)r->ld | (size_t)r->HS / 2, f);
}

static void turn_all(void* x, void* raw, const Rotary* r, float direction, DType dt, Stream s) {
    with_halves(x, raw, r, dt, [=](auto form) {
        typedef typename decltype(form)::T T;
        constexpr int W = decltype(form)::W;
        auto kernel = raw ? turn_kernel<T, W, true> : turn_kernel<T, W, false>;
        int log2_lanes = cuda_log2_lanes(r->HS / 2, W);
        size_t vectors = (size_t)r->N * (size_t)(r->NH + r->NKV);
        LAUNCH(kernel, cuda_blocks(vectors << log2_lanes, THREADS), THREADS, 0, cuda_stream(s), (T*)x, (T*)raw, *r,
               direction, log2_lanes);
    });
}

void cuda_rotary_forward(void* x, void* raw, const Rotary* r, DType dt, Stream s) {
    check_head_size(r);
    if (r->N > 0) turn_all(x, raw, r, 1, dt, s);
}

void cuda_rotary_backward(void* dx, float* dq_weight, float* dk_weight, const void* raw, const Rotary* r, DType dt,
                          Stream s) {
    check_head_size(r);
    if (r->N == 0) return;
    if (!raw) return turn_all(dx, NULL, r, -1, dt, s);
    size_t n_parts = parts_of((size_t)r->N);
    float* parts = (float*)cuda_scratch(n_parts * 2 * (size_t)r->HS * sizeof(float));
    with_halves(dx, raw, r, dt, [=](auto form) {
        typedef typename decltype(form)::T T;
        constexpr int W = decltype(form)::W;
        LAUNCH((norm_backward_kernel<T, W>), (unsigned)n_parts, THREADS, 0, cuda_stream(s), (T*)dx, parts,
               (const T*)raw, *r, cuda_log2_lanes(r->HS / 2, W));
    });
    cuda_add_parts(dq_weight, dk_weight, NULL, parts, (int)n_parts, r->HS, 2 * r->HS, cuda_stream(s));
}
