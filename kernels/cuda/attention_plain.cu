// attention_plain.cu - variable-length attention in plain fp32 arithmetic: for fp32, and for bf16 whose head size or
// row alignment the tensor-core kernels do not take. Head sizes up to MOST_HS.
//
// A warp makes one row of a result: out and dq of a query, dk and dv of a key. It walks over what its row sees, or is
// seen by, 32 rows at a time: first a lane has one of them, its score and its probability; then a lane has elements of
// the result, and adds the 32 rows in order. Always right, not fast: where speed counts attention is bf16.
#include "kernels/cuda/cuda.h"

enum {
    WARPS = 4,
    THREADS = 32 * WARPS,
    MOST_HS = 256,
    RESIDENT = 4  // blocks on an SM: at most 128 registers a thread
};

// ---- places

typedef struct Document {
    size_t q0, k0;  // rows of its first query and key
    int q_len, k_len;
    int offset;  // query i sees the keys up to i + offset
} Document;

static __device__ __forceinline__ Document document(const Attention& a, int b) {
    Document d = {(size_t)a.cu_q[b], (size_t)a.cu_k[b], a.cu_q[b + 1] - a.cu_q[b], a.cu_k[b + 1] - a.cu_k[b], 0};
    int offset = a.causal_offset ? a.causal_offset[b] : d.k_len - d.q_len;
    // An offset beyond these bounds changes nothing, and within them i + offset cannot overflow.
    d.offset = a.causal ? MAX(-d.q_len, MIN(d.k_len, offset)) : d.k_len;
    return d;
}

// Returns row i, head h of a tensor.
template <class T>
static __device__ __forceinline__ T* row_of(T* x, size_t i, int ld, int h, int HS) {
    return x + i * ld + (size_t)h * HS;
}

// Returns the row of this warp; *h = its head.
static __device__ __forceinline__ size_t warp_row(int heads, int* h) {
    size_t warp = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    *h = (int)(warp % heads);
    return warp / heads;
}

// ---- rows

template <class T>
static __device__ __forceinline__ float dot(const T* x, const T* y, int HS) {
    float sum = 0;
    for (int c = 0; c < HS; c++) sum += widen(x[c]) * widen(y[c]);
    return sum;
}

// A lane's elements of a row of results: lane, lane + 32, ...
typedef struct Row {
    float v[MOST_HS / 32];
} Row;

// sum += the factor of lane i times row i of x, for the first n lanes.
template <class T>
static __device__ __forceinline__ void add_rows(Row& sum, float factor, const T* x, int ld, int n, int HS) {
    __shared__ float factors[THREADS];
    int lane = (int)threadIdx.x % 32;
    const float* of_warp = factors + (threadIdx.x - lane);
    __syncwarp();  // factors of the last call have been read
    factors[threadIdx.x] = factor;
    __syncwarp();
    for (int i = 0; i < n; i++, x += ld) {
        UNROLL
        for (int k = 0; k < MOST_HS / 32; k++)
            if (lane + 32 * k < HS) sum.v[k] += of_warp[i] * widen(x[lane + 32 * k]);
    }
}

// Writes factor * sum, or with ADD adds it to what is there.
template <bool ADD, class Out>
static __device__ __forceinline__ void store_row(Out* to, const Row& sum, float factor, int HS) {
    UNROLL
    for (int k = 0; k < MOST_HS / 32; k++) {
        int c = (int)threadIdx.x % 32 + 32 * k;
        if (c < HS) to[c] = narrow<Out>((ADD ? widen(to[c]) : 0.0f) + sum.v[k] * factor);
    }
}

// ---- forward: online softmax (Milakov & Gimelshein 2018)

template <class T, class Out>
static __global__ void __launch_bounds__(THREADS, RESIDENT) forward_kernel(Out* out, float* lse, Attention a) {
    int h, lane = (int)threadIdx.x % 32, HS = a.HS;
    size_t row = warp_row(a.NH, &h);
    if (row >= (size_t)a.Nq) return;
    Document d = document(a, run_of(a.cu_q, a.n_docs, (int)row));
    int kv = h / (a.NH / a.NKV), n_seen = MIN(d.k_len, (int)(row - d.q0) + 1 + d.offset);
    const T *q = row_of((const T*)a.q, row, a.ldq, h, HS), *k = row_of((const T*)a.k, d.k0, a.ldkv, kv, HS),
            *v = row_of((const T*)a.v, d.k0, a.ldkv, kv, HS);
    float max = -INFINITY, sum = 0;
    Row o = {};
    for (int j = 0; j < n_seen; j += 32) {
        int n = MIN(32, n_seen - j);
        float score = lane < n ? dot(q, k + (size_t)(j + lane) * a.ldkv, HS) * a.scale : -INFINITY;
        float highest = fmaxf(max, warp_max(score)), keep = expf(max - highest), p = expf(score - highest);
        max = highest;
        sum = sum * keep + warp_sum(p);
        UNROLL
        for (int c = 0; c < MOST_HS / 32; c++) o.v[c] *= keep;
        add_rows(o, p, v + (size_t)j * a.ldkv, a.ldkv, n, HS);
    }
    if (lane == 0) lse[(size_t)h * a.Nq + row] = max + logf(sum);
    // The sum is 0 for a query that sees no key; NaN stays NaN.
    store_row<false>(row_of(out, row, a.ldo, h, HS), o, sum == 0.0f ? 0.0f : 1.0f / sum, HS);
}

// ---- backward: with P = exp(S - lse) and dS = P (dO V^T - D), D = dO . O by row,
//      dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K. No key counts for a query whose lse is -infinity.

// It also writes D (NH,Nq) =.
template <bool ADD, class T, class Gradient>
static __global__ void __launch_bounds__(THREADS, RESIDENT)
    query_kernel(Gradient* dq, float* D, const T* dout, const T* out, const float* lse, Attention a) {
    int h, lane = (int)threadIdx.x % 32, HS = a.HS;
    size_t row = warp_row(a.NH, &h);
    if (row >= (size_t)a.Nq) return;
    Document d = document(a, run_of(a.cu_q, a.n_docs, (int)row));
    int kv = h / (a.NH / a.NKV), n_seen = MIN(d.k_len, (int)(row - d.q0) + 1 + d.offset);
    const T *q = row_of((const T*)a.q, row, a.ldq, h, HS), *k = row_of((const T*)a.k, d.k0, a.ldkv, kv, HS),
            *v = row_of((const T*)a.v, d.k0, a.ldkv, kv, HS);
    dout = row_of(dout, row, a.ldo, h, HS), out = row_of(out, row, a.ldo, h, HS);
    float of_row = 0, my_lse = lse[(size_t)h * a.Nq + row];
    for (int c = lane; c < HS; c += 32) of_row += widen(dout[c]) * widen(out[c]);
    of_row = warp_sum(of_row);
    if (lane == 0) D[(size_t)h * a.Nq + row] = of_row;
    Row sum = {};
    for (int j = 0; j < n_seen; j += 32) {
        int n = MIN(32, n_seen - j);
        size_t mine = (size_t)(j + lane) * a.ldkv;
        float ds = 0;
        if (lane < n && my_lse != -INFINITY)
            ds = expf(dot(q, k + mine, HS) * a.scale - my_lse) * (dot(dout, v + mine, HS) - of_row);
        add_rows(sum, ds, k + (size_t)j * a.ldkv, a.ldkv, n, HS);
    }
    store_row<ADD>(row_of(dq, row, a.ld_dq, h, HS), sum, a.scale, HS);
}

// Heads that share a key are taken one after another. Keys before cu_k[0] are of no document.
template <bool ADD, class T, class Gradient>
static __global__ void __launch_bounds__(THREADS, RESIDENT)
    key_kernel(Gradient* dk, Gradient* dv, const T* dout, const float* lse, const float* D, Attention a) {
    int kv, lane = (int)threadIdx.x % 32, group = a.NH / a.NKV, HS = a.HS;
    size_t row = warp_row(a.NKV, &kv);
    if (row >= (size_t)a.Nk || (int)row < a.cu_k[0]) return;
    Document d = document(a, run_of(a.cu_k, a.n_docs, (int)row));
    const T *k = row_of((const T*)a.k, row, a.ldkv, kv, HS), *v = row_of((const T*)a.v, row, a.ldkv, kv, HS);
    Row sum_k = {}, sum_v = {};
    for (int h = kv * group; h < (kv + 1) * group; h++)
        for (int i = MAX(0, (int)(row - d.k0) - d.offset); i < d.q_len; i += 32) {
            int n = MIN(32, d.q_len - i);
            const T *q = row_of((const T*)a.q, d.q0 + i, a.ldq, h, HS), *from = row_of(dout, d.q0 + i, a.ldo, h, HS);
            size_t mine = (size_t)h * a.Nq + d.q0 + i + lane;
            float p = 0, ds = 0;
            if (lane < n && lse[mine] != -INFINITY) {
                p = expf(dot(q + (size_t)lane * a.ldq, k, HS) * a.scale - lse[mine]);
                ds = p * (dot(from + (size_t)lane * a.ldo, v, HS) - D[mine]);
            }
            add_rows(sum_v, p, from, a.ldo, n, HS);
            add_rows(sum_k, ds, q, a.ldq, n, HS);
        }
    store_row<ADD>(row_of(dk, row, a.ld_dkv, kv, HS), sum_k, a.scale, HS);
    store_row<ADD>(row_of(dv, row, a.ld_dkv, kv, HS), sum_v, 1.0f, HS);
}

// ---- entries

size_t cuda_attention_plain_scratch_bytes(const KernelLimits* limits) {
    return (size_t)limits->N * limits->NH * sizeof(float);
}

static void check_head_size(const Attention* a) {
    if (a->HS < 1 || a->HS > MOST_HS)
        die("attention on CUDA: the head size is %d, expected 1 to %d; try another number of heads, or --device cpu",
            a->HS, MOST_HS);
}

template <class T, class Out>
static void forward(void* out, float* lse, const Attention* a, Stream s) {
    LAUNCH((forward_kernel<T, Out>), cuda_blocks((size_t)a->Nq * a->NH, WARPS), THREADS, 0, cuda_stream(s), (Out*)out,
           lse, *a);
}

void cuda_attention_plain_forward(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    check_head_size(a);
    if (a->Nq == 0) return;
    auto run = dt == DT_F32 ? forward<float, float> : a->partial ? forward<bf16, float> : forward<bf16, bf16>;
    run(out, lse, a, s);
}

template <bool ADD, class T, class Gradient>
static void backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                     const Attention* a, Stream s) {
    size_t rows = (size_t)a->Nq * a->NH, key_rows = (size_t)a->Nk * a->NKV;
    float* D = (float*)cuda_scratch(rows * sizeof(float));
    if (rows)
        LAUNCH((query_kernel<ADD, T, Gradient>), cuda_blocks(rows, WARPS), THREADS, 0, cuda_stream(s), (Gradient*)dq, D,
               (const T*)dout, (const T*)out, lse, *a);
    if (key_rows)
        LAUNCH((key_kernel<ADD, T, Gradient>), cuda_blocks(key_rows, WARPS), THREADS, 0, cuda_stream(s), (Gradient*)dk,
               (Gradient*)dv, (const T*)dout, lse, D, *a);
}

void cuda_attention_plain_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                                   const Attention* a, DType dt, Stream s) {
    check_head_size(a);
    auto run = dt == DT_F32 ? backward<false, float, float> : backward<false, bf16, bf16>;
    if (a->partial) run = dt == DT_F32 ? backward<true, float, float> : backward<true, bf16, float>;
    run(dq, dk, dv, dout, out, lse, a, s);
}
