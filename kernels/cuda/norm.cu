// norm.cu - LayerNorm and RMSNorm, alone or fused with the residual sum before it, and their gradients.
//
// Forward, a warp keeps its row in shared memory, each lane what it will itself read again, so that several passes
// (mean, then variance of the centred values, then the result) cost one read; rows too wide for that are read again
// from where they lie. All are limited by memory: forward 2 N C elements, with the residual sum 4 N C,
// backward 4 N C. RMSNorm (CENTRED = false) has no means and biases.
//
// Sums over rows (dweight, dbias, dx_sums) are of a fixed set of rows a thread, in order, and then of blocks in order;
// which rows depends on N and C alone, so that every GPU gives the same bits.
#include "kernels/cuda/cuda.h"

enum {
    MANY_WARPS = 8,               // of a block, a row each
    FEW_WARPS = 4,                // where the rows of many would be too large
    MANY_WARPS_BYTES = 47 << 10,  // of dynamic shared memory, so that static adds up to 48 KiB at most
    FEW_WARPS_BYTES = 64 << 10,   // all widths of GPT-2, also in fp32
    FLIGHT = 4,                   // reads that a lane has under way at once
    SMS = 132,                    // that blocks of the backward pass fill at once, each with
    SM_BLOCKS = 3,                // so many at most, as those of 224 threads are,
    PART_ROWS = 16,               // of so many rows at least
    WIDE_THREADS = 256,           // of a block for rows that are wider than a team
};

// Returns the elements from one kept row to the next: all begin 16-byte aligned.
template <class T>
static __host__ __device__ __forceinline__ size_t kept_stride(int C) {
    return ROUND_UP((size_t)C, (size_t)Pack<T>::N);
}

// Returns the warps of a block whose rows are kept; 0: they do not fit.
static int keeping_warps(size_t bytes_of_warp) {
    if (MANY_WARPS * bytes_of_warp <= MANY_WARPS_BYTES) return MANY_WARPS;
    return FEW_WARPS * bytes_of_warp <= FEW_WARPS_BYTES ? FEW_WARPS : 0;
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
        int keeping = keeping_warps(bytes), warps = keeping ? keeping : MANY_WARPS;
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
//                    dweight[c] += dout[n][c] * xhat,  dbias[c] += dout[n][c],  dx_sums[c] += dx[n][c]
//
// RMSNorm has no mean, g_mean and dbias. Rows are independent but for the sums. So a block takes a few rows at a time,
// each by a team of warps, in which a thread has the same columns of every row: what it reads of a row, and its sums
// over rows, stay in its registers. The teams' sums are added in order, then the blocks'.

// A call. Each block leaves in parts (blocks, SUMS C) its sums: 1 for dweight, 2 for dbias too, 3 for dx_sums too.
struct Backward {
    void* dx;
    float* parts;
    const void *dout, *x, *weight;
    const float *mean, *rstd;
    int N, C;
};

// Threads that an SM's registers have room for, at most 80, 128 or 168 a thread, and threads of a block.
template <int PACKS, int SUMS>
constexpr int SM_THREADS = PACKS == 1 ? 768
                           : SUMS < 3 ? 512
                                      : 384;
template <int PACKS, int SUMS>
constexpr int MOST_THREADS = PACKS == 1 ? 384 : SM_THREADS<PACKS, SUMS>;

// A team has `lanes` threads, whole warps, of PACKS packs each.
template <class T, int W, int PACKS, int SUMS>
static __global__ void __launch_bounds__(MOST_THREADS<PACKS, SUMS>, SM_THREADS<PACKS, SUMS> / MOST_THREADS<PACKS, SUMS>)
    backward_kernel(Backward b, int lanes) {
    __shared__ float2 of_warps[2][MOST_THREADS<PACKS, SUMS> / 32];
    int lane = threadIdx.x % lanes, team = threadIdx.x / lanes, teams = blockDim.x / lanes, turn = 0;
    unsigned N = (unsigned)b.N;
    float sums[SUMS][PACKS * W] = {};
    Pack<T, W> w[PACKS] = {};
    for (int p = 0; p < PACKS; p++) {
        int c = (p * lanes + lane) * W;
        if (c < b.C) w[p] = load_pack<W>((const T*)b.weight + c);
    }
    for (unsigned first = blockIdx.x * teams; first < N; first += gridDim.x * teams, turn = !turn) {
        unsigned n = first + team;
        size_t row = (size_t)n * b.C;
        float m = SUMS > 1 && n < N ? b.mean[n] : 0, r = n < N ? b.rstd[n] : 0, g_sum = 0, gx_sum = 0;
        Pack<T, W> d[PACKS] = {}, xs[PACKS] = {}, result[PACKS] = {};
        for (int p = 0; p < PACKS; p++) {
            int c = (p * lanes + lane) * W;
            if (n >= N || c >= b.C) continue;
            d[p] = load_pack<W>((const T*)b.dout + row + c), xs[p] = load_pack<W>((const T*)b.x + row + c);
            result[p] = load_pack<W>((const T*)b.dx + row + c);
        }
        for (int p = 0; p < PACKS; p++)
            for (int j = 0; j < W; j++) {
                float g = widen(d[p].v[j]) * widen(w[p].v[j]);
                g_sum += g, gx_sum += g * ((widen(xs[p].v[j]) - m) * r);
            }
        g_sum = SUMS > 1 ? warp_sum(g_sum) : 0, gx_sum = warp_sum(gx_sum);
        if (threadIdx.x % 32 == 0) of_warps[turn][threadIdx.x / 32] = make_float2(g_sum / b.C, gx_sum / b.C);
        __syncthreads();  // all have read those of two rows ago, too
        float g_mean = 0, gx_mean = 0;
        for (int i = 0; i < lanes / 32; i++) {
            float2 of_warp = of_warps[turn][team * (lanes / 32) + i];
            g_mean += of_warp.x, gx_mean += of_warp.y;
        }
        for (int p = 0; p < PACKS; p++) {
            int c = (p * lanes + lane) * W;
            if (n >= N || c >= b.C) continue;
            for (int j = 0; j < W; j++) {
                float dout = widen(d[p].v[j]), g = dout * widen(w[p].v[j]), xhat = (widen(xs[p].v[j]) - m) * r;
                result[p].v[j] = narrow<T>(widen(result[p].v[j]) + r * (g - g_mean - xhat * gx_mean));
                sums[0][p * W + j] += dout * xhat;
                if constexpr (SUMS > 1) sums[1][p * W + j] += dout;
                if constexpr (SUMS > 2) sums[2][p * W + j] += widen(result[p].v[j]);
            }
            store_pack((T*)b.dx + row + c, result[p]);
        }
    }
    for (int adds = 0; adds < teams; adds++) {
        for (int i = 0; i < SUMS * PACKS && team == adds; i++) {
            int c = (i % PACKS * lanes + lane) * W;
            float* to = b.parts + ((size_t)blockIdx.x * SUMS + i / PACKS) * b.C + c;
            for (int j = 0; j < W && c < b.C; j++) to[j] = (adds > 0 ? to[j] : 0) + sums[i / PACKS][i % PACKS * W + j];
        }
        __syncthreads();  // the next team adds to these
    }
}

// Serves rows that are wider than a team, or not aligned: a block reads each twice, and keeps its sums where they go.
template <class T, int SUMS>
static __global__ void wide_backward_kernel(Backward b) {
    __shared__ float room[WIDE_THREADS / 32];
    float* part = b.parts + (size_t)blockIdx.x * SUMS * b.C;
    const T* weight = (const T*)b.weight;
    for (size_t n = blockIdx.x; n < (size_t)b.N; n += gridDim.x) {
        const T *dout = (const T*)b.dout + n * b.C, *x = (const T*)b.x + n * b.C;
        T* dx = (T*)b.dx + n * b.C;
        float m = SUMS > 1 ? b.mean[n] : 0, r = b.rstd[n], g_sum = 0, gx_sum = 0;
        for (int c = threadIdx.x; c < b.C; c += WIDE_THREADS) {
            float g = widen(dout[c]) * widen(weight[c]);
            g_sum += g, gx_sum += g * ((widen(x[c]) - m) * r);
        }
        float g_mean = SUMS > 1 ? block_sum<WIDE_THREADS / 32>(g_sum, room) / b.C : 0;
        float gx_mean = block_sum<WIDE_THREADS / 32>(gx_sum, room) / b.C;
        for (int c = threadIdx.x; c < b.C; c += WIDE_THREADS) {
            float d = widen(dout[c]), g = d * widen(weight[c]), xhat = (widen(x[c]) - m) * r;
            dx[c] = narrow<T>(widen(dx[c]) + r * (g - g_mean - xhat * gx_mean));
            float adds[] = {d * xhat, d, widen(dx[c])};
            for (int i = 0; i < SUMS; i++) part[i * b.C + c] = (n < gridDim.x ? 0 : part[i * b.C + c]) + adds[i];
        }
    }
}

static size_t parts_of(size_t N, int sm_blocks) { return MIN(CEIL_DIV(N, (size_t)PART_ROWS), (size_t)SMS * sm_blocks); }

size_t cuda_norm_scratch_bytes(const KernelLimits* limits) {
    return parts_of((size_t)limits->N, SM_BLOCKS) * 3 * (size_t)limits->C * sizeof(float);
}

// Returns the number of parts; 0: rows are wider than a team, and nothing was done.
template <class T, int W, int PACKS, int SUMS>
static int backward_by_teams(const Backward& b, cudaStream_t stream) {
    int lanes = (int)ROUND_UP(CEIL_DIV(b.C, W * PACKS), 32), threads = MOST_THREADS<PACKS, SUMS> / lanes * lanes;
    if (threads == 0) return 0;
    unsigned blocks = (unsigned)parts_of((size_t)b.N, SM_THREADS<PACKS, SUMS> / threads);
    LAUNCH((backward_kernel<T, W, PACKS, SUMS>), blocks, threads, 0, stream, b, lanes);
    return (int)blocks;
}

template <int SUMS>
static int backward(const Backward& b, DType dt, cudaStream_t stream) {
    int n_parts = 0;
    with_form(dt, {b.dx, b.dout, b.x, b.weight}, (size_t)b.C, [&](auto form) {
        typedef typename decltype(form)::T T;
        constexpr int W = decltype(form)::W;
        if constexpr (W > 1) n_parts = backward_by_teams<T, W, 1, SUMS>(b, stream);
        if constexpr (W > 1) n_parts = n_parts ? n_parts : backward_by_teams<T, W, 2, SUMS>(b, stream);
        if (n_parts) return;
        n_parts = (int)parts_of((size_t)b.N, 2);
        LAUNCH((wide_backward_kernel<T, SUMS>), (unsigned)n_parts, WIDE_THREADS, 0, stream, b);
    });
    return n_parts;
}

void cuda_norm_backward(void* dx, float* dweight, float* dbias, float* dx_sums, const void* dout, const void* x,
                        const void* weight, const float* mean, const float* rstd, int N, int C, DType dt, Stream s) {
    if (N == 0) return;
    int sums = !mean ? 1 : !dx_sums ? 2 : 3;
    float* parts = (float*)cuda_scratch(parts_of((size_t)N, SM_BLOCKS) * sums * (size_t)C * sizeof(float));
    auto pass = sums == 1 ? backward<1> : sums == 2 ? backward<2> : backward<3>;
    int n_parts = pass({dx, parts, dout, x, weight, mean, rstd, N, C}, dt, cuda_stream(s));
    cuda_add_parts(dweight, dbias, dx_sums, parts, n_parts, C, sums * C, cuda_stream(s));
}
