// attention_backward.cu - the backward pass of attention on tensor cores. With P = exp(S - lse), S = scale Q K^T:
//     dV = P^T dO,  dS = P (dO V^T - D) with D = dO . O by row,  dK = scale dS^T Q,  dQ = scale dS K
//
// Naively, for one head of keys and values and the query heads that share it; the three loops are the three kernels:
//
//   for each query i of each head:   D[i] = dot(dout[i], out[i])                           statistics_kernel
//   for each key j:     for each head, for each of its queries i that sees j:              key_kernel
//                           p = exp(scale * dot(q[i], k[j]) - lse[i])
//                           ds = p * (dot(dout[i], v[j]) - D[i])
//                           dv[j] += p * dout[i],  dk[j] += scale * ds * q[i]
//   for each query i of each head:   for each key j that i sees:                           query_kernel
//                           p and ds again
//                           dq[i] += scale * ds * k[j]
//
// P is computed anew from lse (Dao et al. 2022), so it need not sum to 1 over the keys that are here. The last two
// kernels keep their sums in registers and add in a fixed order: 4 + 3 matmuls of 2 HS FLOPs a pair (query, key) where
// 5 would do if key_kernel added its part of dQ to memory by atomics, and bits differed between runs. On an H100 that
// won nothing at 1024 tokens, 13 % of this pass at 8192, and lost with heads of 128. A block of key_kernel goes with
// its keys through all heads that share them, one after another.
//
// key_kernel transposes scores, S^T = K Q^T: then P^T and dS^T are left operands as they lie in registers. With 32
// keys a warp and HS = 64, 128 mma (206 cycles of an H100's tensor cores) go with 24 KiB from shared memory (192
// cycles); for queries it is 21 KiB. At HS = 128 a warp has registers for 16 keys only, and shared memory is the
// limit: 320 cycles for each 206 of mma.
#include "kernels/cuda/attention_tiles.cuh"

enum { CHUNK = 32 };  // columns of scores that a warp has in registers at a time

// Keys of a tile and of a warp, and queries of a step, for dK and dV.
template <int D>
struct KeySide {
    static constexpr int M = D <= 64 ? 2 : 1, WARP_KEYS = 16 * M, KEYS = TILE_WARPS * WARP_KEYS;
    static constexpr int QUERIES = D <= 64 ? 64 : 32;
};

// Queries of a warp, and keys of a step, for dQ.
template <int D>
struct QuerySide {
    static constexpr int M = QUERY_TILE / TILE_WARPS / 16, WARP_QUERIES = 16 * M;
    static constexpr int KEYS = D <= 64 ? 64 : 32;
};

// ---- statistics (NH,Nq): reads dout and out once, 4 bytes an element, at the speed of memory

template <int LANES>
static __global__ void statistics_kernel(Statistics* statistics, bf16* zero_dq, const bf16* dout, const bf16* out,
                                         const float* lse, Attention a) {
    size_t n = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / LANES;  // row and head
    int lane = (int)threadIdx.x % LANES, h = (int)(n % a.NH);
    size_t row = n / a.NH;
    bool inside = row < (size_t)a.Nq;
    float sum = 0, l = inside ? lse[h * (size_t)a.Nq + row] : 0;
    if (inside && 8 * lane < a.HS) {
        size_t at = row * a.ldo + h * a.HS + 8 * lane;
        if (zero_dq && l == -INFINITY) store_pack(zero_dq + row * a.ld_dq + h * a.HS + 8 * lane, Pack<bf16>{});
        Pack<bf16> x = load_pack(dout + at), y = load_pack(out + at);
        for (int i = 0; i < 8; i++) sum += widen(x.v[i]) * widen(y.v[i]);
    }
    sum = warp_sum(sum, LANES);
    if (!inside || lane > 0) return;
    statistics[h * (size_t)a.Nq + row] = {l == -INFINITY ? INFINITY : l * LOG2_E, sum};
}

// Puts a warp's sums, times factor, where they belong: rounded to bf16 by way of the warp's own rows of a tile, or, for
// a part of a larger attention, added to fp32. No other warp has these rows and columns, so no atomics are needed.
template <int D, int M>
__device__ __forceinline__ void put_gradient(bf16* to, size_t ld, int rows, int HS, bf16* tile,
                                             const float sum[M][D / 8][4], float factor) {
    store_rows<D, M>(to, ld, rows, HS, tile, sum, factor);
}
template <int D, int M>
__device__ __forceinline__ void put_gradient(float* to, size_t ld, int rows, int HS, bf16*,
                                             const float sum[M][D / 8][4], float factor) {
    store_floats<D, M, true>(to, ld, rows, HS, sum, factor);
}

// ---- dQ: tiles of queries

// ds = P (dp - D), packed, from s = Q K^T and dp = dO V^T.
template <int M>
__device__ __forceinline__ void query_gradient(unsigned ds[M][CHUNK / 16][4], float s[M][CHUNK / 8][4],
                                               const float dp[M][CHUNK / 8][4], const Statistics* rows, float scale2) {
    UNROLL
    for (int i = 0; i < 2 * M; i++) {
        int m = i / 2, half = i % 2;
        Statistics row = rows[8 * i + lane_index() / 4];
        UNROLL
        for (int n = 0; n < CHUNK / 8; n++) {
            UNROLL
            for (int j = 2 * half; j < 2 * half + 2; j++)
                s[m][n][j] = fast_exp2(s[m][n][j] * scale2 - row.lse2) * (dp[m][n][j] - row.D);
        }
    }
    pack_left<M, CHUNK / 8>(ds, s);
}

template <int D>
constexpr size_t query_shared_bytes() {
    return (2 * QUERY_TILE + 4 * QuerySide<D>::KEYS) * D * sizeof(bf16) + QUERY_TILE * sizeof(Statistics);
}

template <int D, class Gradient>
static __global__ void __launch_bounds__(TILE_THREADS, 2)
    query_kernel(Gradient* dq, const bf16* dout, const Statistics* statistics, Attention a, int group,
                 const int* n_tiles, const Tile* tiles) {
    constexpr int M = QuerySide<D>::M, WARP_QUERIES = QuerySide<D>::WARP_QUERIES, KEYS = QuerySide<D>::KEYS;
    DYNAMIC_SHARED(bf16, shared);
    int index = tile_index(), h = (int)blockIdx.x, kv = h / group;
    if (index >= *n_tiles) return;
    Tile t = tiles[index];
    int seen = MAX(0, MIN(t.n_other, t.diagonal + t.n_rows - 1)), mine = (int)(threadIdx.x / 32) * WARP_QUERIES;
    int rows = t.n_rows - mine;                          // of the warp, may be negative
    bf16 *q = shared, *stages = q + 2 * QUERY_TILE * D;  // q, and dout after it
    Source k = {a.k, a.ldkv}, v = {a.v, a.ldkv};
    Statistics* of = (Statistics*)(stages + 4 * KEYS * D);  // of the tile's queries
    int row = (int)threadIdx.x;
    of[row] = {INFINITY, 0};
    if (row < t.n_rows) of[row] = statistics[(size_t)h * a.Nq + t.row + row];
    unsigned held[D / 16][M][4];  // Q
    float sum[M][D / 8][4];
    clear<M, D / 8>(sum);
    if (seen > 0) {
        copy_stage<D, QUERY_TILE>(q, {a.q, a.ldq}, {dout, a.ldo}, t.row, t.n_rows, h, a.HS);
        copy_stage<D, KEYS>(stages, k, v, t.other, t.n_other, kv, a.HS);
    }
    const bf16 *my_q = q + mine * D, *my_dout = my_q + QUERY_TILE * D;
    // n_keys counts the document's keys that are left; row i of the warp sees the first diagonal + i of them.
    int n_keys = t.n_other, diagonal = rows > 0 ? t.diagonal + mine : -WARP_QUERIES, unseen = t.n_other - seen,
        end = t.other + t.n_other;
    for (int stage = 0; n_keys > unseen; stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();  // this step's keys are here, and all have done with those of the step before
        if (n_keys - KEYS > unseen)
            copy_stage<D, KEYS>(stages + (stage ^ 1) * 2 * KEYS * D, k, v, end - n_keys + KEYS, n_keys - KEYS, kv,
                                a.HS);
        if (D <= MOST_HELD && n_keys == t.n_other) hold_rows<D, M>(held, my_q);
        for (int chunk = 0; chunk < KEYS; chunk += CHUNK, n_keys -= CHUNK, diagonal -= CHUNK) {
            if (diagonal + WARP_QUERIES - 1 <= 0 || n_keys <= 0) continue;
            const bf16 *k_chunk = stages + (stage * 2 * KEYS + chunk) * D, *v_chunk = k_chunk + KEYS * D;
            float s[M][CHUNK / 8][4], dp[M][CHUNK / 8][4];
            unsigned ds[M][CHUNK / 16][4];
            if (D <= MOST_HELD) products_held<D, M, CHUNK>(s, held, k_chunk);
            else products<D, M, CHUNK>(s, my_q, k_chunk);
            products<D, M, CHUNK>(dp, my_dout, v_chunk);
            if (CHUNK > MIN(diagonal, n_keys)) hide_from<M, CHUNK / 8>(s, diagonal, n_keys);
            query_gradient<M>(ds, s, dp, of + mine, a.scale * LOG2_E);
            multiply<D, D, M, CHUNK / 16>(sum, ds, k_chunk, 0);
        }
    }
    put_gradient<D, M>(dq + (size_t)(t.row + mine) * a.ld_dq + h * a.HS, (size_t)a.ld_dq, rows, a.HS, shared + mine * D,
                       sum, a.scale);
}

// ---- dK and dV: tiles of keys

// p = P^T and ds = P^T (dp - D), packed, from s = K Q^T and dp = V dO^T.
template <int M>
__device__ __forceinline__ void key_gradients(unsigned p[M][CHUNK / 16][4], unsigned ds[M][CHUNK / 16][4],
                                              float s[M][CHUNK / 8][4], float dp[M][CHUNK / 8][4],
                                              const Statistics* columns, float scale2) {
    columns += threadIdx.x % 4 * 2;
    UNROLL
    for (int n = 0; n < CHUNK / 8; n++) {
        float4 two = *(const float4*)(columns + 8 * n);
        UNROLL
        for (int m = 0; m < M; m++) {
            UNROLL
            for (int j = 0; j < 4; j++) {
                s[m][n][j] = fast_exp2(s[m][n][j] * scale2 - (j % 2 ? two.z : two.x));
                dp[m][n][j] = s[m][n][j] * (dp[m][n][j] - (j % 2 ? two.w : two.y));
            }
        }
    }
    pack_left<M, CHUNK / 8>(p, s);
    pack_left<M, CHUNK / 8>(ds, dp);
}

template <int D>
constexpr size_t key_shared_bytes() {
    constexpr int KEYS = KeySide<D>::KEYS, QUERIES = KeySide<D>::QUERIES;
    return (2 * KEYS * D + 4 * QUERIES * D) * sizeof(bf16) + 2 * QUERIES * sizeof(Statistics);
}

template <int D, class Gradient>
static __global__ void __launch_bounds__(TILE_THREADS, 2)
    key_kernel(Gradient* dk, Gradient* dv, const bf16* dout, const Statistics* statistics, Attention a, int group,
               const int* n_tiles, const Tile* tiles) {
    constexpr int M = KeySide<D>::M, WARP_KEYS = KeySide<D>::WARP_KEYS, KEYS = KeySide<D>::KEYS;
    constexpr int QUERIES = KeySide<D>::QUERIES;
    DYNAMIC_SHARED(bf16, shared);
    int index = tile_index(), kv = (int)blockIdx.x, thread = (int)threadIdx.x;
    if (index >= *n_tiles) return;
    Tile t = tiles[index];
    int mine = (int)(threadIdx.x / 32) * WARP_KEYS, rows = t.n_rows - mine;  // of the warp, may be negative
    int begin = MAX(0, 1 - t.diagonal);                                      // the first query that sees any key
    bf16 *k = shared, *v = k + KEYS * D, *stages = v + KEYS * D;
    Statistics* columns = (Statistics*)(stages + 4 * QUERIES * D);  // of two stages
    Source q = {a.q, a.ldq}, go = {dout, a.ldo};
    const Statistics none = {INFINITY, 0};
    Statistics coming = none;  // of one query of the next step
    float dk_sum[M][D / 8][4], dv_sum[M][D / 8][4];
    clear<M, D / 8>(dk_sum);
    clear<M, D / 8>(dv_sum);
    int n_all = t.n_other - begin, end = t.other + t.n_other;
    int n_queries = n_all, i = 0, diagonal_end = t.diagonal + t.n_other - mine;  // what is left of the group's head i
    if (n_queries > 0) {
        copy_stage<D, KEYS>(k, {a.k, a.ldkv}, {a.v, a.ldkv}, t.row, t.n_rows, kv, a.HS);
        copy_stage<D, QUERIES>(stages, q, go, end - n_queries, n_queries, kv * group, a.HS);
        if (thread < MIN(QUERIES, n_queries))
            coming = statistics[(size_t)(kv * group) * a.Nq + end - n_queries + thread];
    }
    for (int stage = 0; n_queries > 0; stage ^= 1) {
        if (thread < QUERIES) columns[stage * QUERIES + thread] = coming;
        cp_async_wait<0>();
        __syncthreads();  // this step's queries are here, and all have done with those of the step before
        // The next step belongs to the same head, or is the first one of the next head.
        int left = n_queries - QUERIES, next_i = i;
        if (left <= 0) left = n_all, next_i++;
        if (next_i < group) {
            copy_stage<D, QUERIES>(stages + (stage ^ 1) * 2 * QUERIES * D, q, go, end - left, left, kv * group + next_i,
                                   a.HS);
            coming = thread < MIN(QUERIES, left)
                         ? statistics[(size_t)(kv * group + next_i) * a.Nq + end - left + thread]
                         : none;
        }
        for (int chunk = 0; chunk < QUERIES; chunk += CHUNK, n_queries -= CHUNK) {
            int diagonal = diagonal_end - n_queries;  // column i sees the warp's rows before diagonal + i
            const bf16 *q_chunk = stages + (stage * 2 * QUERIES + chunk) * D, *dout_chunk = q_chunk + QUERIES * D;
            unsigned p[M][CHUNK / 16][4], ds[M][CHUNK / 16][4];
            if (diagonal + CHUNK - 1 <= 0 || n_queries <= 0 || rows <= 0) continue;
            float s[M][CHUNK / 8][4], dp[M][CHUNK / 8][4];
            products<D, M, CHUNK>(s, k + mine * D, q_chunk);
            products<D, M, CHUNK>(dp, v + mine * D, dout_chunk);
            if (WARP_KEYS > MIN(diagonal, rows)) hide_upto<M, CHUNK / 8>(s, diagonal, rows);
            key_gradients<M>(p, ds, s, dp, columns + stage * QUERIES + chunk, a.scale * LOG2_E);
            multiply<D, D, M, CHUNK / 16>(dv_sum, p, dout_chunk, 0);
            multiply<D, D, M, CHUNK / 16>(dk_sum, ds, q_chunk, 0);
        }
        if (n_queries <= 0 && ++i < group) n_queries = n_all;
    }
    size_t to = (size_t)(t.row + mine) * a.ld_dkv + kv * a.HS;
    put_gradient<D, M>(dk + to, (size_t)a.ld_dkv, rows, a.HS, k + mine * D, dk_sum, a.scale);
    put_gradient<D, M>(dv + to, (size_t)a.ld_dkv, rows, a.HS, v + mine * D, dv_sum, 1.0f);
}

// ---- entry

template <int LANES>
static void make_statistics(Statistics* statistics, bf16* zero_dq, const bf16* dout, const bf16* out, const float* lse,
                            const Attention* a, cudaStream_t stream) {
    LAUNCH((statistics_kernel<LANES>), cuda_blocks((size_t)a->Nq * a->NH * LANES, 256), 256, 0, stream, statistics,
           zero_dq, dout, out, lse, *a);
}

void attention_statistics(Statistics* statistics, bf16* zero_dq, const bf16* dout, const bf16* out, const float* lse,
                          const Attention* a, cudaStream_t stream) {
    if (a->Nq == 0) return;
    auto make = a->HS <= 32 ? make_statistics<4> : a->HS <= 64 ? make_statistics<8> : make_statistics<16>;
    make(statistics, zero_dq, dout, out, lse, a, stream);
}

static size_t statistics_bytes(int NH, int N) { return ROUND_UP((size_t)NH * N * sizeof(Statistics), (size_t)256); }

size_t cuda_attention_scratch_bytes(const KernelLimits* limits) {
    int asked = limits->attention == ATTENTION_AUTO || limits->attention == ATTENTION_WGMMA;
    size_t sm90 = cuda.major == 9 && asked ? cuda_attention_sm90_scratch_bytes(limits) : 0;
    return MAX(sm90, MAX(statistics_bytes(limits->NH, limits->N), cuda_attention_plain_scratch_bytes(limits)));
}

// Runs a kernel whose last arguments are the list's.
template <class Kernel, class... Arguments>
static void launch_tiles(Kernel* kernel, size_t bytes, const TileList* list, int heads, cudaStream_t stream,
                         Arguments... arguments) {
    if (list->most == 0) return;
    cuda_allow_shared(kernel, bytes);
    LAUNCH(kernel, tile_grid(list, heads), TILE_THREADS, bytes, stream, arguments..., list->n, list->tiles);
}

template <int D, class Gradient>
static void backward(Gradient* dq, Gradient* dk, Gradient* dv, const bf16* dout, const bf16* out, const float* lse,
                     const Attention* a, Stream s) {
    cudaStream_t stream = cuda_stream(s);
    Statistics* statistics = (Statistics*)cuda_scratch(statistics_bytes(a->NH, a->Nq));
    TileList queries, keys;
    attention_list(&queries, QUERY_TILE, &keys, KeySide<D>::KEYS, 0, a, s);
    attention_statistics(statistics, NULL, dout, out, lse, a, stream);
    int group = a->NH / a->NKV;
    launch_tiles(key_kernel<D, Gradient>, key_shared_bytes<D>(), &keys, a->NKV, stream, dk, dv, dout, statistics, *a,
                 group);
    launch_tiles(query_kernel<D, Gradient>, query_shared_bytes<D>(), &queries, a->NH, stream, dq, dout, statistics, *a,
                 group);
}

template <class Gradient>
static void backward_any(void* dq, void* dk, void* dv, const bf16* dout, const bf16* out, const float* lse,
                         const Attention* a, Stream s) {
    Gradient *q = (Gradient*)dq, *k = (Gradient*)dk, *v = (Gradient*)dv;
    if (a->HS <= 32) return backward<32>(q, k, v, dout, out, lse, a, s);
    if (a->HS <= 64) return backward<64>(q, k, v, dout, out, lse, a, s);
    return backward<128>(q, k, v, dout, out, lse, a, s);
}

void cuda_attention_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                             const Attention* attention, DType dt, Stream s) {
    Attention a = *attention;
    if (!a.partial) a.ld_dq = a.ldq, a.ld_dkv = a.ldkv;
    if (a.n_docs == 0) return;
    uintptr_t pointers = (uintptr_t)dq | (uintptr_t)dk | (uintptr_t)dv | (uintptr_t)dout | (uintptr_t)out;
    if (!attention_tiles_fit(&a, dt) || pointers % 16 || (a.ld_dq | a.ld_dkv) % 8)
        return cuda_attention_plain_backward(dq, dk, dv, dout, out, lse, &a, dt, s);
    if (attention_is_for_sm90(&a)) return cuda_attention_backward_sm90(dq, dk, dv, dout, out, lse, &a, s);
    if (a.partial) return backward_any<float>(dq, dk, dv, (const bf16*)dout, (const bf16*)out, lse, &a, s);
    return backward_any<bf16>(dq, dk, dv, (const bf16*)dout, (const bf16*)out, lse, &a, s);
}
