// attention_plain.cu - variable-length attention in plain fp32 arithmetic: for fp32, and for bf16 whose head size or
// row alignment the tensor-core kernels do not take. Head sizes up to MOST_HS.
//
// A block of 16 x 16 threads owns one tile of rows (queries, or keys) of a document and head, keeps its results in
// registers, and walks over the tiles of columns (keys, or queries) that see them, both widened to fp32 in shared
// memory. Thread (y, x) computes rows y, y + 16, ... against columns x, x + 16, ... of the tile of scores, then four
// neighbouring elements of every 64 of its rows of results. Forward: online softmax (Milakov & Gimelshein 2018).
// Backward: probabilities are recomputed from lse (Dao et al. 2022); one pass over tiles of keys sums dK and dV, one
// over tiles of queries sums dQ, so that nothing is added by two blocks: no atomics, the same bits on every run. That
// costs 7 products instead of 5.
//
// Limit: fp32 FMA, 4 N T HS FLOPs forward and 14 backward, halved by causality. An FMA needs its operands from shared
// memory: with 4 x 2 scores a thread (HS <= 64), reads and FMAs take about the same time; larger heads have smaller
// tiles, because no more than 99 KiB of shared memory can be had everywhere, and are bound by those reads.
#include "kernels/cuda/cuda.h"

#include <math.h>

enum {
    SIDE = 16,
    THREADS = SIDE * SIDE,
    MOST_HS = 256,
    RESIDENT = 2  // blocks on an SM: at most 128 registers a thread
};

// Before a loop that takes too many registers when it is unrolled further.
#ifdef __CUDACC__
#define UNROLL_TWICE _Pragma("unroll 2")
#else
#define UNROLL_TWICE
#endif

// Sizes by padded head size HSp: 64, 128 or 256.
template <int HSp>
struct Tiles {
    static constexpr int ROWS = HSp <= 64 ? 64 : HSp <= 128 ? 32 : 16, COLS = HSp <= 128 ? 32 : 16;
    // Floats from row to row in shared memory. Four more than needed: 16 lanes that read 16 bytes of 16 rows meet all
    // banks evenly.
    static constexpr int LD = HSp + 4, LDP = COLS + 4;
    // Of one thread: rows, columns of scores, packs of 4 elements in a row of results.
    static constexpr int R = ROWS / SIDE, S = COLS / SIDE, K = HSp / (4 * SIDE);
    static constexpr size_t FORWARD_BYTES = ((ROWS + 2 * COLS) * LD + ROWS * LDP) * sizeof(float);
    static constexpr size_t BACKWARD_BYTES = (2 * (ROWS + COLS) * LD + ROWS * LDP) * sizeof(float);
};

// ---- where things are

typedef struct Document {
    size_t q0, k0;  // rows of its first query and key
    int q_len, k_len;
    int offset;  // query i sees the keys up to i + offset
} Document;

static __device__ __forceinline__ Document document(const Attention& a, int b) {
    Document d = {(size_t)a.cu_q[b], (size_t)a.cu_k[b], a.cu_q[b + 1] - a.cu_q[b], a.cu_k[b + 1] - a.cu_k[b], 0};
    int offset = a.causal_offset ? a.causal_offset[b] : d.k_len - d.q_len;
    // Beyond these bounds nothing changes, and i + offset cannot overflow.
    d.offset = a.causal ? MAX(-d.q_len, MIN(d.k_len, offset)) : d.k_len;
    return d;
}

// How many keys query i sees: the first ones.
static __device__ __forceinline__ int n_seen(const Document& d, int i) {
    return MAX(0, MIN(d.k_len, i + 1 + d.offset));
}

// The document that a block works on, and the first row of its tile in it, which may lie behind the document's end.
// Document b has the slots from cu[b] / rows + b on: enough for its tiles however they lie, so that the host needs no
// lengths and a block finds its document by bisection. At most one slot a document is unused.
static __device__ int find_tile(const int* cu, int n_docs, int rows, int slot, int* first) {
    int low = 0, high = n_docs - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (cu[middle] / rows + middle <= slot) low = middle;
        else high = middle - 1;
    }
    *first = (slot - (cu[low] / rows + low)) * rows;
    return low;
}
static unsigned n_slots(int n, int n_docs, int rows) { return (unsigned)(n / rows + n_docs); }

// Row i, head h of a tensor.
template <class T>
__device__ __forceinline__ T* row_of(T* x, size_t i, int ld, int h, int HS) {
    return x + i * ld + (size_t)h * HS;
}

// ---- tiles in shared memory

// ROWS rows of x, as floats; zeros where a row is not below n or an element not below HS. With aligned, rows begin at
// multiples of 16 bytes and end there.
template <class T, int ROWS, int HSp>
static __device__ __forceinline__ void load_tile(float* tile, const T* x, int ld, int n, int HS, int aligned) {
    constexpr int N = Pack<T>::N, PACKS = HSp / N, LD = Tiles<HSp>::LD;
    if (!aligned) {
        for (int i = threadIdx.x; i < ROWS * HSp; i += THREADS) {
            int row = i / HSp, c = i % HSp;
            tile[row * LD + c] = row < n && c < HS ? widen(x[(size_t)row * ld + c]) : 0.0f;
        }
        return;
    }
    for (int i = threadIdx.x; i < ROWS * PACKS; i += THREADS) {
        int row = i / PACKS, c = i % PACKS * N;
        Pack<T> from = {};
        if (row < n && c < HS) from = load_pack(x + (size_t)row * ld + c);
        for (int e = 0; e < N; e += 4) {
            Pack<float> to = {{widen(from.v[e]), widen(from.v[e + 1]), widen(from.v[e + 2]), widen(from.v[e + 3])}};
            *(Pack<float>*)(tile + row * LD + c + e) = to;
        }
    }
}

// sum[r][s] += row r of a times row s of b, whose rows are SIDE * ld apart, over the first n elements, a multiple of 4.
template <int R, int S>
static __device__ __forceinline__ void add_dots(float (&sum)[R][S], const float* a, const float* b, int ld, int n) {
    UNROLL_TWICE
    for (int c = 0; c < n; c += 4) {
        Pack<float> u[R], w[S];
        for (int r = 0; r < R; r++) u[r] = load_pack(a + r * SIDE * ld + c);
        for (int s = 0; s < S; s++) w[s] = load_pack(b + s * SIDE * ld + c);
        for (int e = 0; e < 4; e++)
            for (int r = 0; r < R; r++)
                for (int s = 0; s < S; s++) sum[r][s] += u[r].v[e] * w[s].v[e];
    }
}

// sum[r][k] += sum over the columns j of p[r][j] times elements 64 k .. 64 k + 3 of row j of b.
template <int HSp>
static __device__ __forceinline__ void add_rows(Pack<float> (&sum)[Tiles<HSp>::R][Tiles<HSp>::K], const float* p,
                                                const float* b) {
    typedef Tiles<HSp> M;
    for (int j = 0; j < M::COLS; j += 4) {
        Pack<float> u[M::R], w;
        for (int r = 0; r < M::R; r++) u[r] = load_pack(p + r * SIDE * M::LDP + j);
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < M::K; k++) {
                w = load_pack(b + (j + i) * M::LD + k * 4 * SIDE);
                for (int r = 0; r < M::R; r++)
                    for (int e = 0; e < 4; e++) sum[r][k].v[e] += u[r].v[i] * w.v[e];
            }
    }
}

// Hands a thread's scores to the 16 threads of its rows. They are half a warp, so no barrier of the block is needed:
// only that the warp has read what was there before, and that all of it have written.
template <int HSp>
static __device__ __forceinline__ void share_scores(float* p, const float (&s)[Tiles<HSp>::R][Tiles<HSp>::S], int y,
                                                    int x) {
    __syncwarp();
    for (int r = 0; r < Tiles<HSp>::R; r++)
        for (int c = 0; c < Tiles<HSp>::S; c++) p[(y + r * SIDE) * Tiles<HSp>::LDP + x + c * SIDE] = s[r][c];
    __syncwarp();
}

// Writes a thread's part of the first n rows, times factor[r], or with ADD adds it to what is there.
template <int HSp, bool ADD, class Out>
static __device__ __forceinline__ void store_rows(Out* to, int ld,
                                                  const Pack<float> (&sum)[Tiles<HSp>::R][Tiles<HSp>::K],
                                                  const float (&factor)[Tiles<HSp>::R], int n, int HS, int y, int x) {
    for (int r = 0; r < Tiles<HSp>::R; r++)
        for (int k = 0; k < Tiles<HSp>::K; k++)
            for (int e = 0; e < 4; e++) {
                int row = y + r * SIDE, c = (k * SIDE + x) * 4 + e;
                if (row >= n || c >= HS) continue;
                Out* at = to + (size_t)row * ld + c;
                float value = sum[r][k].v[e] * factor[r];
                *at = narrow<Out>(ADD ? widen(*at) + value : value);
            }
}

// ---- forward

// Over the 16 threads of a row.
static __device__ __forceinline__ float row_max(float x) {
    for (int lanes = SIDE / 2; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, lanes));
    return x;
}
static __device__ __forceinline__ float row_sum(float x) {
    for (int lanes = SIDE / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(FULL_WARP, x, lanes);
    return x;
}

// One row's scores against a tile of columns become exp(score - max), 0 from column n on. max and sum are the row's
// so far (sum: this thread's part); the result is what is left of earlier sums: exp(old max - max). A row that has
// seen nothing yet has max = -infinity, which must not meet itself in a difference.
template <int S>
static __device__ __forceinline__ float softmax_row(float (&s)[S], float* max, float* sum, float scale, int n, int x) {
    float highest = -INFINITY;
    for (int c = 0; c < S; c++) {
        s[c] = x + c * SIDE < n ? s[c] * scale : -INFINITY;
        highest = fmaxf(highest, s[c]);
    }
    highest = fmaxf(*max, row_max(highest));
    float base = highest == -INFINITY ? 0.0f : highest, keep = expf(*max - base);
    *max = highest;
    *sum *= keep;
    for (int c = 0; c < S; c++) {
        s[c] = expf(s[c] - base);
        *sum += s[c];
    }
    return keep;
}

template <class T, int HSp, class Out>
static __global__ void __launch_bounds__(THREADS, RESIDENT)
    forward_kernel(Out* out, float* lse, Attention a, int group, int aligned) {
    typedef Tiles<HSp> M;
    DYNAMIC_SHARED(float, q);
    float *k = q + M::ROWS * M::LD, *v = k + M::COLS * M::LD, *p = v + M::COLS * M::LD;
    // The last tiles see most keys: they come first, so that no block begins long work when others have finished.
    int first, b = find_tile(a.cu_q, a.n_docs, M::ROWS, (int)(gridDim.x - 1 - blockIdx.x), &first);
    int h = (int)blockIdx.y, kv = h / group, y = (int)threadIdx.x / SIDE, x = (int)threadIdx.x % SIDE, HS = a.HS;
    Document d = document(a, b);
    if (first >= d.q_len) return;
    int n_rows = MIN(M::ROWS, d.q_len - first), n_keys = n_seen(d, first + n_rows - 1);
    load_tile<T, M::ROWS, HSp>(q, row_of((const T*)a.q, d.q0 + first, a.ldq, h, HS), a.ldq, n_rows, HS, aligned);
    float max[M::R], sum[M::R] = {};
    for (int r = 0; r < M::R; r++) max[r] = -INFINITY;
    Pack<float> o[M::R][M::K] = {};
    for (int j = 0; j < n_keys; j += M::COLS) {
        __syncthreads();  // the last tile of keys has been read
        load_tile<T, M::COLS, HSp>(k, row_of((const T*)a.k, d.k0 + j, a.ldkv, kv, HS), a.ldkv, d.k_len - j, HS,
                                   aligned);
        load_tile<T, M::COLS, HSp>(v, row_of((const T*)a.v, d.k0 + j, a.ldkv, kv, HS), a.ldkv, d.k_len - j, HS,
                                   aligned);
        __syncthreads();
        float s[M::R][M::S] = {};
        add_dots(s, q + y * M::LD, k + x * M::LD, M::LD, ROUND_UP(HS, 4));
        for (int r = 0; r < M::R; r++) {
            int seen = n_seen(d, first + y + r * SIDE);
            float keep = softmax_row(s[r], &max[r], &sum[r], a.scale, seen - j, x);
            for (int c = 0; c < M::K; c++)
                for (int e = 0; e < 4; e++) o[r][c].v[e] *= keep;
        }
        share_scores<HSp>(p, s, y, x);
        add_rows<HSp>(o, p + y * M::LDP, v + 4 * x);
    }
    for (int r = 0; r < M::R; r++) {
        float total = row_sum(sum[r]);
        size_t row = d.q0 + first + y + r * SIDE;
        if (x == 0 && y + r * SIDE < n_rows) lse[(size_t)h * a.Nq + row] = max[r] + logf(total);
        sum[r] = total == 0.0f ? 0.0f : 1.0f / total;  // 0: a query that sees no key; NaN stays NaN
    }
    store_rows<HSp, false>(row_of(out, d.q0 + first, a.ldo, h, HS), a.ldo, o, sum, n_rows, HS, y, x);
}

// ---- backward: with P = exp(S - lse) and dS = P (dO V^T - D), D = dO . O by row,
//      dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K

// D (NH,Nq): one warp for each row and head.
template <class T>
static __global__ void __launch_bounds__(THREADS) row_dots_kernel(float* D, const T* dout, const T* out, Attention a) {
    size_t n = (size_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, row = n / a.NH;
    int h = (int)(n % a.NH), lane = (int)threadIdx.x % 32;
    if (row >= (size_t)a.Nq) return;
    const T *x = row_of(dout, row, a.ldo, h, a.HS), *y = row_of(out, row, a.ldo, h, a.HS);
    float sum = 0;
    for (int c = lane; c < a.HS; c += 32) sum += widen(x[c]) * widen(y[c]);
    sum = warp_sum(sum);
    if (lane == 0) D[(size_t)h * a.Nq + row] = sum;
}

// What the queries or the keys of a document bring to the gradients: S = q k^T and dP = dout v^T.
template <class T>
struct Operands {
    const T *s, *dp;  // q and dout, or k and v: row 0 of a head
    int lds, lddp, n;
};

// Of query head h, or of the head of keys and values kv.
template <class T>
static __device__ __forceinline__ Operands<T> queries_of(const Attention& a, const T* dout, const Document& d, int h) {
    return {row_of((const T*)a.q, d.q0, a.ldq, h, a.HS), row_of(dout, d.q0, a.ldo, h, a.HS), a.ldq, a.ldo, d.q_len};
}
template <class T>
static __device__ __forceinline__ Operands<T> keys_of(const Attention& a, const Document& d, int kv) {
    return {row_of((const T*)a.k, d.k0, a.ldkv, kv, a.HS), row_of((const T*)a.v, d.k0, a.ldkv, kv, a.HS), a.ldkv,
            a.ldkv, d.k_len};
}

// dots of S and dP become P and dS. Where a query has lse = -infinity, no key counts.
template <int R, int S, bool KEYS>
static __device__ __forceinline__ void probabilities(float (&s)[R][S], float (&dp)[R][S], const Document& d,
                                                     const float* lse, const float* D, float scale, int row, int col) {
    for (int r = 0; r < R; r++)
        for (int c = 0; c < S; c++) {
            int i = KEYS ? col + c * SIDE : row + r * SIDE, j = KEYS ? row + r * SIDE : col + c * SIDE;
            float p = 0, ds = 0;
            if (i < d.q_len && j < n_seen(d, i) && lse[i] != -INFINITY) {
                p = expf(s[r][c] * scale - lse[i]);
                ds = p * (dp[r][c] - D[i]);
            }
            s[r][c] = p, dp[r][c] = ds;
        }
}

// KEYS: ds = dk and dp = dv of a tile of keys, whose transposed scores have queries as columns, of one head after
// another that shares them; else ds = dq. With ADD they are fp32 and added to.
template <class T, int HSp, bool KEYS, bool ADD, class Gradient>
static __global__ void __launch_bounds__(THREADS, RESIDENT)
    gradients_kernel(Gradient* ds, Gradient* dp, const T* dout, const float* lse, const float* D, Attention a,
                     int group, int aligned) {
    typedef Tiles<HSp> M;
    DYNAMIC_SHARED(float, rows_s);
    float *rows_dp = rows_s + M::ROWS * M::LD, *cols_s = rows_dp + M::ROWS * M::LD, *cols_dp = cols_s + M::COLS * M::LD;
    float* p = cols_dp + M::COLS * M::LD;
    // Long work first: the first keys are seen by most queries, the last queries see most keys.
    int slot = (int)(KEYS ? blockIdx.x : gridDim.x - 1 - blockIdx.x), first;
    int b = find_tile(KEYS ? a.cu_k : a.cu_q, a.n_docs, M::ROWS, slot, &first);
    int y = (int)threadIdx.x / SIDE, x = (int)threadIdx.x % SIDE, HS = a.HS;
    // Of KEYS, mine is the head of keys and values, h the first query head that reads it; else mine is h.
    int mine = (int)blockIdx.y, h = KEYS ? mine * group : mine, end_h = KEYS ? h + group : h + 1;
    Document d = document(a, b);
    if (first < 0 || first >= (KEYS ? d.k_len : d.q_len)) return;  // below 0: keys before cu_k[0] are of no document
    Operands<T> rows = KEYS ? keys_of<T>(a, d, mine) : queries_of(a, dout, d, h);
    int n_rows = MIN(M::ROWS, rows.n - first);
    // The columns that the tile's rows see, or that see them.
    int begin = KEYS ? MAX(0, first - d.offset) / M::COLS * M::COLS : 0;
    int end = KEYS ? d.q_len : n_seen(d, first + n_rows - 1);
    load_tile<T, M::ROWS, HSp>(rows_s, rows.s + (size_t)first * rows.lds, rows.lds, n_rows, HS, aligned);
    load_tile<T, M::ROWS, HSp>(rows_dp, rows.dp + (size_t)first * rows.lddp, rows.lddp, n_rows, HS, aligned);
    Pack<float> sum_s[M::R][M::K] = {}, sum_dp[M::R][M::K] = {};
    for (int c = begin; c < end && h < end_h;) {
        Operands<T> cols = KEYS ? queries_of(a, dout, d, h) : keys_of<T>(a, d, h / group);
        __syncthreads();  // the last tile of columns has been read
        load_tile<T, M::COLS, HSp>(cols_s, cols.s + (size_t)c * cols.lds, cols.lds, cols.n - c, HS, aligned);
        load_tile<T, M::COLS, HSp>(cols_dp, cols.dp + (size_t)c * cols.lddp, cols.lddp, cols.n - c, HS, aligned);
        __syncthreads();
        float s[M::R][M::S] = {}, t[M::R][M::S] = {};
        add_dots(s, rows_s + y * M::LD, cols_s + x * M::LD, M::LD, ROUND_UP(HS, 4));
        add_dots(t, rows_dp + y * M::LD, cols_dp + x * M::LD, M::LD, ROUND_UP(HS, 4));
        size_t of_head = (size_t)h * a.Nq + d.q0;
        probabilities<M::R, M::S, KEYS>(s, t, d, lse + of_head, D + of_head, a.scale, first + y, c + x);
        if (KEYS) {
            share_scores<HSp>(p, s, y, x);
            add_rows<HSp>(sum_dp, p + y * M::LDP, cols_dp + 4 * x);
        }
        share_scores<HSp>(p, t, y, x);
        add_rows<HSp>(sum_s, p + y * M::LDP, cols_s + 4 * x);
        c += M::COLS;
        if (c >= end) c = begin, h++;
    }
    float scale[M::R], one[M::R];
    for (int r = 0; r < M::R; r++) scale[r] = a.scale, one[r] = 1.0f;
    size_t row = (KEYS ? d.k0 : d.q0) + first;
    int ld = KEYS ? a.ld_dkv : a.ld_dq;
    store_rows<HSp, ADD>(row_of(ds, row, ld, mine, HS), ld, sum_s, scale, n_rows, HS, y, x);
    if (KEYS) store_rows<HSp, ADD>(row_of(dp, row, ld, mine, HS), ld, sum_dp, one, n_rows, HS, y, x);
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

// 1 when all rows of all heads of x can be read 16 bytes at a time.
template <class T>
static int is_aligned(const void* x, int ld, int HS) {
    return (uintptr_t)x % 16 == 0 && ld % Pack<T>::N == 0 && HS % Pack<T>::N == 0;
}

template <class T>
static int inputs_aligned(const Attention* a) {
    return is_aligned<T>(a->q, a->ldq, a->HS) && is_aligned<T>(a->k, a->ldkv, a->HS) &&
           is_aligned<T>(a->v, a->ldkv, a->HS);
}

template <class T, int HSp, class Out>
static void forward(Out* out, float* lse, const Attention* a, Stream s) {
    dim3 grid(n_slots(a->Nq, a->n_docs, Tiles<HSp>::ROWS), (unsigned)a->NH);
    size_t shared = Tiles<HSp>::FORWARD_BYTES;
    cuda_allow_shared(forward_kernel<T, HSp, Out>, shared);
    LAUNCH((forward_kernel<T, HSp, Out>), grid, THREADS, shared, cuda_stream(s), out, lse, *a, a->NH / a->NKV,
           inputs_aligned<T>(a));
}

template <class T, int HSp, bool KEYS, bool ADD, class Gradient>
static void gradients(Gradient* ds, Gradient* dp, const T* dout, const float* lse, const float* D, const Attention* a,
                      Stream s) {
    int aligned = inputs_aligned<T>(a) && is_aligned<T>(dout, a->ldo, a->HS);
    dim3 grid(n_slots(KEYS ? a->Nk : a->Nq, a->n_docs, Tiles<HSp>::ROWS), (unsigned)(KEYS ? a->NKV : a->NH));
    size_t shared = Tiles<HSp>::BACKWARD_BYTES;
    cuda_allow_shared(gradients_kernel<T, HSp, KEYS, ADD, Gradient>, shared);
    LAUNCH((gradients_kernel<T, HSp, KEYS, ADD, Gradient>), grid, THREADS, shared, cuda_stream(s), ds, dp, dout, lse, D,
           *a, a->NH / a->NKV, aligned);
}

template <class T, class Out>
static void forward_any(Out* out, float* lse, const Attention* a, Stream s) {
    if (a->HS <= 64) forward<T, 64>(out, lse, a, s);
    else if (a->HS <= 128) forward<T, 128>(out, lse, a, s);
    else forward<T, MOST_HS>(out, lse, a, s);
}

template <class T, int HSp, bool ADD, class Gradient>
static void backward(Gradient* dq, Gradient* dk, Gradient* dv, const T* dout, const float* lse, const float* D,
                     const Attention* a, Stream s) {
    gradients<T, HSp, true, ADD>(dk, dv, dout, lse, D, a, s);
    gradients<T, HSp, false, ADD>(dq, (Gradient*)NULL, dout, lse, D, a, s);
}

template <bool ADD, class T, class Gradient>
static void backward_any(Gradient* dq, Gradient* dk, Gradient* dv, const T* dout, const T* out, const float* lse,
                         const Attention* a, Stream s) {
    size_t rows = (size_t)a->Nq * a->NH;
    float* D = (float*)cuda_scratch(rows * sizeof(float));
    if (rows) LAUNCH(row_dots_kernel<T>, cuda_blocks(rows, THREADS / 32), THREADS, 0, cuda_stream(s), D, dout, out, *a);
    if (a->HS <= 64) backward<T, 64, ADD>(dq, dk, dv, dout, lse, D, a, s);
    else if (a->HS <= 128) backward<T, 128, ADD>(dq, dk, dv, dout, lse, D, a, s);
    else backward<T, MOST_HS, ADD>(dq, dk, dv, dout, lse, D, a, s);
}

void cuda_attention_plain_forward(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    check_head_size(a);
    if (a->Nq == 0) return;
    if (dt == DT_F32) forward_any<float>((float*)out, lse, a, s);
    else if (a->partial) forward_any<bf16>((float*)out, lse, a, s);
    else forward_any<bf16>((bf16*)out, lse, a, s);
}

template <class T>
static void backward_of(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                        const Attention* a, Stream s) {
    const T *go = (const T*)dout, *o = (const T*)out;
    if (a->partial) backward_any<true>((float*)dq, (float*)dk, (float*)dv, go, o, lse, a, s);
    else backward_any<false>((T*)dq, (T*)dk, (T*)dv, go, o, lse, a, s);
}

void cuda_attention_plain_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                                   const Attention* a, DType dt, Stream s) {
    check_head_size(a);
    if (a->Nq == 0 && a->Nk == 0) return;
    if (dt == DT_BF16) backward_of<bf16>(dq, dk, dv, dout, out, lse, a, s);
    else backward_of<float>(dq, dk, dv, dout, out, lse, a, s);
}
