// norm.cu - LayerNorm and RMSNorm, alone or fused with the residual sum before it, and their gradients.
//
// One warp works on a row. It keeps the row in shared memory, each lane what it will itself read again, so that several
// passes (mean, then variance of the centred values, then the result) cost one read. All are limited by memory: forward
// 2 N C elements, with the residual sum 4 N C, backward 4 N C. RMSNorm (CENTRED = false) has no means and biases.
//
// Sums over rows (dweight, dbias) are of a fixed set of rows a block, in order, and then of blocks in order; the number
// of blocks depends on N alone, so that every GPU gives the same bits. Rows too wide for shared memory are read again
// from where they lie.
#include "kernels/cuda/cuda.h"

enum {
    MANY_WARPS = 8,               // of a block, a row each
    FEW_WARPS = 4,                // where the rows of many would be too large
    MANY_WARPS_BYTES = 47 << 10,  // of dynamic shared memory, so that static adds up to 48 KiB at most
    FEW_WARPS_BYTES = 64 << 10,   // all widths of GPT-2, also in fp32
    FLIGHT = 4,                   // reads that a lane has under way at once
    RESIDENT = 3,                 // blocks of the backward pass on an SM: at most 85 registers a thread
    MOST_PARTS = 384,             // blocks of the backward pass: what 128 SMs hold at once
    PART_ROWS = 2 * MANY_WARPS,   // least rows of one
};

// Returns the elements from one kept row to the next: all begin 16-byte aligned.
template <class T>
static __host__ __device__ __forceinline__ size_t kept_stride(int C) {
    return ROUND_UP((size_t)C, (size_t)Pack<T>::N);
}

// Returns the warps of a block whose rows are kept; 0: they do not fit.
static int keeping_warps(size_t bytes_of_warp, size_t bytes_of_block) {
    if (MANY_WARPS * bytes_of_warp + bytes_of_block <= MANY_WARPS_BYTES) return MANY_WARPS;
    if (FEW_WARPS * bytes_of_warp + bytes_of_block <= FEW_WARPS_BYTES) return FEW_WARPS;
    return 0;
}

// ---- forward

// Reads a row: sum = a + b, rounded, unless b is NULL; sum may be a or b, since lanes read before they write. Copies
// it to `kept`, if KEPT. Returns the sum of the lane's elements, or of their squares without CENTRED.
template <class T, int W, bool KEPT, bool CENTRED>
static __device__ __forceinline__ float read_row(T* kept, T* sum, const T* a, const T* b, int C, int lane) {
    float total = 0;
    for (int first = 0; first < C; first += 32 * W * FLIGHT) {
        Pack<T, W> x[FLIGHT], y[FLIGHT];
        for (int i = 0; i < FLIGHT; i++) {
            int c = first + (32 * i + lane) * W;
            if (c < C) x[i] = load_pack<W>(a + c);
            if (c < C && b) y[i] = load_pack<W>(b + c);
        }
        for (int i = 0; i < FLIGHT; i++) {
            int c = first + (32 * i + lane) * W;
            if (c >= C) break;
            if (b) {
                for (int j = 0; j < W; j++) x[i].v[j] = narrow<T>(widen(x[i].v[j]) + widen(y[i].v[j]));
                store_pack(sum + c, x[i]);
            }
            if (KEPT) keep_pack(kept + c, x[i]);
            for (int j = 0; j < W; j++) total += CENTRED ? widen(x[i].v[j]) : widen(x[i].v[j]) * widen(x[i].v[j]);
        }
    }
    return total;
}

template <class T, int W, bool KEPT, bool CENTRED>
static __global__ void forward_kernel(T* sum, T* out, float* mean, float* rstd, const T* a, const T* b, const T* weight,
                                      const T* bias, float eps, int N, int C) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    size_t n = (size_t)blockIdx.x * (blockDim.x / 32) + warp;
    if (n >= (size_t)N) return;
    a += n * C;
    out += n * C;
    if (b) b += n * C, sum += n * C;
    T* kept = NULL;
    if constexpr (KEPT) {
        DYNAMIC_SHARED(T, rows);
        kept = rows + warp * kept_stride<T>(C);
    }
    float of_sum = warp_sum(read_row<T, W, KEPT, CENTRED>(kept, sum, a, b, C, lane)) / C, variance = 0;
    float m = CENTRED ? of_sum : 0;
    const T* row = KEPT ? kept : b ? sum : a;
    for (int c = lane * W; c < C && CENTRED; c += 32 * W) {
        Pack<T, W> x = load_pack<W>(row + c);
        for (int j = 0; j < W; j++) variance += (widen(x.v[j]) - m) * (widen(x.v[j]) - m);
    }
    float r = rsqrtf((CENTRED ? warp_sum(variance) / C : of_sum) + eps);
    for (int c = lane * W; c < C; c += 32 * W) {
        Pack<T, W> x = load_pack<W>(row + c), w = load_pack<W>(weight + c), shift = {};
        if (CENTRED) shift = load_pack<W>(bias + c);
        for (int j = 0; j < W; j++) x.v[j] = narrow<T>((widen(x.v[j]) - m) * r * widen(w.v[j]) + widen(shift.v[j]));
        store_pack(out + c, x);
    }
    if (lane == 0) rstd[n] = r;
    if (lane == 0 && CENTRED) mean[n] = m;
}

void cuda_norm_forward(void* sum, void* out, float* mean, float* rstd, const void* a, const void* b, const void* weight,
                       const void* bias, float eps, int N, int C, DType dt, Stream s) {
    if (N == 0) return;
    with_form(dt, {sum, out, a, b, weight, bias}, (size_t)C, [=](auto form) {
        typedef typename decltype(form)::T T;
        constexpr int W = decltype(form)::W;
        auto kernel = mean ? forward_kernel<T, W, false, true> : forward_kernel<T, W, false, false>;
        size_t bytes = kept_stride<T>(C) * sizeof(T);
        int keeping = keeping_warps(bytes, 0), warps = keeping ? keeping : MANY_WARPS;
        if (keeping) kernel = mean ? forward_kernel<T, W, true, true> : forward_kernel<T, W, true, false>;
        cuda_allow_shared(kernel, keeping * bytes);
        LAUNCH(kernel, cuda_blocks((size_t)N, (size_t)warps), 32 * warps, keeping * bytes, cuda_stream(s), (T*)sum,
               (T*)out, mean, rstd, (const T*)a, (const T*)b, (const T*)weight, (const T*)bias, eps, N, C);
    });
}

// ---- backward. Naively:
//
//   for n < N:
//       g_mean = gx_mean = 0
//       for c < C:   xhat = (x[n][c] - mean[n]) * rstd[n],  g = dout[n][c] * weight[c]
//                    g_mean += g / C,  gx_mean += g * xhat / C
//       for c < C:   xhat and g again
//                    dx[n][c] += rstd[n] * (g - g_mean - xhat * gx_mean)
//                    dweight[c] += dout[n][c] * xhat,  dbias[c] += dout[n][c]
//
// RMSNorm has no mean, g_mean and dbias. Rows are independent but for dweight and dbias. So a block takes a few rows at
// a time: first a warp a row, for dx; then a thread a column, which adds these rows to the block's own sums; the
// blocks' sums are added last, in order.

// A warp takes a row.
template <class T, int W, bool KEPT, bool CENTRED>
static __device__ __forceinline__ void backward_row(T* dx, T* kept_d, T* kept_x, const T* dout, const T* x,
                                                    const T* weight, float mean, float rstd, int C, int lane) {
    enum { PAIRS = FLIGHT / 2 };  // of reads under way
    float g_sum = 0, gx_sum = 0;
    for (int first = 0; first < C; first += 32 * W * PAIRS) {
        Pack<T, W> ds[PAIRS], xs[PAIRS];
        for (int i = 0; i < PAIRS; i++) {
            int c = first + (32 * i + lane) * W;
            if (c < C) ds[i] = load_pack<W>(dout + c), xs[i] = load_pack<W>(x + c);
        }
        for (int i = 0; i < PAIRS; i++) {
            int c = first + (32 * i + lane) * W;
            if (c >= C) break;
            if (KEPT) keep_pack(kept_d + c, ds[i]), keep_pack(kept_x + c, xs[i]);
            Pack<T, W> w = load_pack<W>(weight + c);
            for (int j = 0; j < W; j++) {
                float g = widen(ds[i].v[j]) * widen(w.v[j]);
                if (CENTRED) g_sum += g;
                gx_sum += g * ((widen(xs[i].v[j]) - mean) * rstd);
            }
        }
    }
    float g_mean = CENTRED ? warp_sum(g_sum) / C : 0, gx_mean = warp_sum(gx_sum) / C;
    for (int first = 0; first < C; first += 32 * W * PAIRS) {
        Pack<T, W> result[PAIRS];
        for (int i = 0; i < PAIRS; i++) {
            int c = first + (32 * i + lane) * W;
            if (c < C) result[i] = load_pack<W>(dx + c);
        }
        for (int i = 0; i < PAIRS; i++) {
            int c = first + (32 * i + lane) * W;
            if (c >= C) break;
            auto d = load_pack<W>(KEPT ? kept_d + c : dout + c), xs = load_pack<W>(KEPT ? kept_x + c : x + c);
            auto w = load_pack<W>(weight + c);
            for (int j = 0; j < W; j++) {
                float g = widen(d.v[j]) * widen(w.v[j]), xhat = (widen(xs.v[j]) - mean) * rstd;
                result[i].v[j] = narrow<T>(widen(result[i].v[j]) + rstd * (g - g_mean - xhat * gx_mean));
            }
            store_pack(dx + c, result[i]);
        }
    }
}

// Adds `rows` rows, at most the block's warps, to the sums of dweight (C) and dbias (C); each thread has its columns.
template <class T, int COLUMNS, bool CENTRED>
static __device__ __forceinline__ void add_columns(float* sums, const T* dout, const T* x, size_t stride,
                                                   const float2* moments, int rows, int C) {
    for (int c = threadIdx.x * COLUMNS; c < C; c += blockDim.x * COLUMNS) {
        float dweight[COLUMNS] = {}, dbias[COLUMNS] = {};
        for (int n = 0; n < rows; n++) {
            auto d = load_pack<COLUMNS>(dout + n * stride + c), xs = load_pack<COLUMNS>(x + n * stride + c);
            for (int j = 0; j < COLUMNS; j++) {
                dweight[j] += widen(d.v[j]) * ((widen(xs.v[j]) - moments[n].x) * moments[n].y);
                if (CENTRED) dbias[j] += widen(d.v[j]);
            }
        }
        for (int j = 0; j < COLUMNS; j++) {
            sums[c + j] += dweight[j];
            if (CENTRED) sums[C + c + j] += dbias[j];
        }
    }
}

// parts (gridDim.x, SUMS C) =: each block's sums for dweight and for dbias. A block takes its rows by groups of as many
// as it has warps, first a warp for a row, then a thread for a column.
template <class T, int W, bool KEPT, bool CENTRED>
static __global__ void __launch_bounds__(32 * MANY_WARPS, RESIDENT)
    backward_kernel(T* __restrict__ dx, float* __restrict__ parts, const T* __restrict__ dout, const T* __restrict__ x,
                    const T* __restrict__ weight, const float* __restrict__ mean, const float* __restrict__ rstd, int N,
                    int C) {
    constexpr int COLUMNS = W > 1 ? 2 : 1, SUMS = CENTRED ? 2 : 1;
    __shared__ float2 moments[MANY_WARPS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    size_t stride = KEPT ? kept_stride<T>(C) : (size_t)C;
    T *kept_d = NULL, *kept_x = NULL;
    float *part = parts + (size_t)blockIdx.x * SUMS * C, *sums = part;
    if constexpr (KEPT) {
        DYNAMIC_SHARED(T, rows);
        kept_d = rows;
        kept_x = rows + warps * stride;
        sums = (float*)(rows + 2 * warps * stride);
    }
    for (int i = 0; i < SUMS; i++)
        for (int c = threadIdx.x * COLUMNS; c < C; c += blockDim.x * COLUMNS)
            for (int j = 0; j < COLUMNS; j++) sums[i * C + c + j] = 0;
    for (size_t first = (size_t)blockIdx.x * warps; first < (size_t)N; first += (size_t)gridDim.x * warps) {
        size_t n = first + warp, at = n * C;
        if (n < (size_t)N) {
            float m = CENTRED ? mean[n] : 0;
            if (lane == 0) moments[warp] = make_float2(m, rstd[n]);
            backward_row<T, W, KEPT, CENTRED>(dx + at, KEPT ? kept_d + warp * stride : NULL,
                                              KEPT ? kept_x + warp * stride : NULL, dout + at, x + at, weight, m,
                                              rstd[n], C, lane);
        }
        __syncthreads();
        add_columns<T, COLUMNS, CENTRED>(sums, KEPT ? kept_d : dout + first * C, KEPT ? kept_x : x + first * C, stride,
                                         moments, (int)MIN((size_t)warps, N - first), C);
        __syncthreads();
    }
    for (int i = 0; i < SUMS && KEPT; i++)
        for (int c = threadIdx.x * COLUMNS; c < C; c += blockDim.x * COLUMNS)
            for (int j = 0; j < COLUMNS; j++) part[i * C + c + j] = sums[i * C + c + j];
}

static size_t parts_of(size_t N) { return MIN(CEIL_DIV(N, (size_t)PART_ROWS), (size_t)MOST_PARTS); }

size_t cuda_norm_scratch_bytes(const KernelLimits* limits) {
    return parts_of((size_t)limits->N) * 2 * (size_t)limits->C * sizeof(float);
}

void cuda_norm_backward(void* dx, float* dweight, float* dbias, const void* dout, const void* x, const void* weight,
                        const float* mean, const float* rstd, int N, int C, DType dt, Stream s) {
    if (N == 0) return;
    size_t n_parts = parts_of((size_t)N), sum_bytes = (mean ? 2 : 1) * (size_t)C * sizeof(float);
    float* parts = (float*)cuda_scratch(n_parts * sum_bytes);
    with_form(dt, {dx, dout, x, weight}, (size_t)C, [=](auto form) {
        typedef typename decltype(form)::T T;
        constexpr int W = decltype(form)::W;
        auto kernel = mean ? backward_kernel<T, W, false, true> : backward_kernel<T, W, false, false>;
        size_t row_bytes = 2 * kept_stride<T>(C) * sizeof(T);
        int keeping = keeping_warps(row_bytes, sum_bytes), warps = keeping ? keeping : MANY_WARPS;
        size_t bytes = keeping ? keeping * row_bytes + sum_bytes : 0;
        if (keeping) kernel = mean ? backward_kernel<T, W, true, true> : backward_kernel<T, W, true, false>;
        cuda_allow_shared(kernel, bytes);
        LAUNCH(kernel, (unsigned)n_parts, 32 * warps, bytes, cuda_stream(s), (T*)dx, parts, (const T*)dout, (const T*)x,
               (const T*)weight, mean, rstd, N, C);
    });
    cuda_add_parts(dweight, dbias, parts, (int)n_parts, C, (mean ? 2 : 1) * C, cuda_stream(s));
}
