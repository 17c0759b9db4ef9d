// attention_sm90_backward.cu - the backward pass of attention on Hopper, in one kernel of five matmuls.
//
// A block owns 128 keys of one head, 64 a warpgroup, and walks over the queries that see them, head after head of the
// group that shares the keys:
//
//   for each tile of queries:   S^T = K Q^T,  dP^T = V dO^T
//                               P^T = exp(S^T - lse),  dS^T = P^T (dP^T - D)
//                               dV += P^T dO,  dK += dS^T Q        sums stay in registers
//                               dQ += dS K                         sums of other blocks as well, in memory
//
// Scores are transposed, so that P^T and dS^T are left operands as they lie in registers; dS goes through shared memory
// for dQ, which needs the keys of both warpgroups. attention_backward.cu needs 7 matmuls, as it has no dQ in common.
//
// dQ of a tile of queries is the sum of what the blocks of its keys bring, each in its turn: first the block of the
// last keys that a query of the tile sees, then the one before, to that of the first keys. A count in memory says whose
// turn it is. So bits are the same in every run, and blocks that start together walk behind one another without
// waiting. The first writes its part, others add theirs (red, no answer), the last reads the sum and writes the rounded
// result. Blocks start in the order of their index, and wait only for blocks of lower ones.
//
// Budget of a tile of 64 queries at D = 128, by count: 10.5 MFLOP, 2560 cycles of an H100's tensor cores; 8192
// exponentials, 512 cycles; 32 KiB of Q and dO in, 32 KiB of dQ out, to the cache. Registers: 128 of dK and dV, 64 of S
// and dP, 32 of P and dS as operands. Shared memory: 160 KiB.
#include "kernels/cuda/attention_sm90.cuh"

#include <limits.h>

enum { KEYS = 128, CONSUMERS = KEYS / 64, THREADS = WARPGROUP * (1 + CONSUMERS), CONSUMER_REGISTERS = 240 };
enum { SHARE = 4096 };  // queries that a block takes in a part of a larger attention

template <int D>
struct Backward {
    static constexpr int QUERIES = D <= 64 ? 128 : 64;  // of a tile
    static constexpr size_t SHARED_BYTES =
        (2 * KEYS * D + 2 * STAGES * QUERIES * D + STAGES * KEYS * QUERIES) * sizeof(bf16) +
        STAGES * QUERIES * sizeof(Statistics) + SYNC_BYTES + PATTERN;
};

struct BackwardMaps {
    CUtensorMap q, k, v, dout;
};

// Barriers of named_barrier_sync: both warpgroups have written dS; a warpgroup alone.
enum { WRITTEN = 1, ALONE = 2 };

struct Sync {
    Barriers q, dout;
    uint64_t keys_full, edge;
};
static_assert(sizeof(Sync) <= SYNC_BYTES && STAGES >= 2, "barriers have room; dS is written while the last is read");

// What a block has in shared memory; of Q, dO, dS and the statistics of queries there are STAGES.
template <int D>
struct Places {
    bf16 *k, *v, *q, *dout, *ds;
    Statistics* statistics;
    Sync* sync;
    __device__ __forceinline__ Places(bf16* shared)
        : k(first_tile(shared)),
          v(k + KEYS * D),
          q(v + KEYS * D),
          dout(q + STAGES * Backward<D>::QUERIES * D),
          ds(dout + STAGES * Backward<D>::QUERIES * D),
          statistics((Statistics*)(ds + STAGES * KEYS * Backward<D>::QUERIES)),
          sync((Sync*)(statistics + STAGES * Backward<D>::QUERIES)) {}
};

// The walk over tiles of queries. A turn is a place in the order in which blocks add to a tile of dQ.
//
// In a part of a larger attention few keys may meet many queries, as a prompt its answers. There several blocks have
// the same keys, each a share of the queries, and add to dK and dV in turn. A share does not depend on what else is in
// the row, so bits do not either.
struct Walk {
    int begin, end;  // rows of the document: the first of the first tile, and its queries; equal: no query sees a key
    int offset;      // query i sees the keys before i + offset
    int block;       // the block's place among those of the document's keys
    int n_keys;
    __device__ __forceinline__ Walk(Tile t, int queries, int share, int share_rows)
        : begin(1 - t.diagonal < t.n_other ? MAX(0, 1 - t.diagonal) / queries * queries : t.n_other),
          end(t.n_other),
          offset(t.diagonal + t.before),
          block(t.before / KEYS),
          n_keys(t.n_own) {
        begin = MIN(end, begin + share * share_rows);
        end = MIN(end - begin, share_rows) + begin;
    }
    // Returns how many blocks have their turn at the tile of rows `row` to row + n - 1 before this one.
    __device__ __forceinline__ int turn(int row, int n) const {
        int seen = MIN(n_keys, row + n - 1 + offset);
        return (seen - 1) / KEYS - block;
    }
};

template <int D>
__device__ __forceinline__ void load_all(const Places<D>& to, const BackwardMaps* maps, const Statistics* statistics,
                                         Tile t, const Walk& walk, int kv, int group, int Nq) {
    constexpr int QUERIES = Backward<D>::QUERIES;
    Sync* sync = to.sync;
    Edge edge = {&sync->edge, 0};
    Ring ring = {0, 1};
    load_tile<D, KEYS>(to.k, &maps->k, kv, t.row, t.n_rows, &sync->keys_full, &edge);
    load_tile<D, KEYS>(to.v, &maps->v, kv, t.row, t.n_rows, &sync->keys_full, &edge);
    for (int h = kv * group; h < (kv + 1) * group; h++)
        for (int i = walk.begin; i < walk.end; i += QUERIES, ring.next()) {
            int row = t.other + i, n = walk.end - i;
            mbarrier_wait(sync->q.empty + ring.stage, (unsigned)ring.parity);
            load_tile<D, QUERIES>(to.q + ring.stage * QUERIES * D, &maps->q, h, row, n, sync->q.full + ring.stage,
                                  &edge);
            for (int j = (int)lane_index(); j < QUERIES; j += 32) {
                Statistics none = {INFINITY, 0};
                to.statistics[ring.stage * QUERIES + j] = j < n ? statistics[(size_t)h * Nq + row + j] : none;
            }
            release(sync->q.full + ring.stage);
            mbarrier_wait(sync->dout.empty + ring.stage, (unsigned)ring.parity);
            load_tile<D, QUERIES>(to.dout + ring.stage * QUERIES * D, &maps->dout, h, row, n,
                                  sync->dout.full + ring.stage, &edge);
        }
}

// A warpgroup has scores of its 64 keys and a chunk of 64 queries in registers at a time.
typedef float Scores[1][BOX / 8][4];
typedef unsigned Operand[1][BOX / 16][4];

// Begins S^T = K Q^T, or dP^T = V dO^T, of the warpgroup's keys and a chunk.
template <int D>
__device__ __forceinline__ void multiply_keys(Scores& s, const bf16* keys, const bf16* chunk) {
    hold_still(s[0]);
    wgmma_fence();
    UNROLL
    for (int i = 0; i < D / 16; i++)
        wgmma<0, 0>(s[0], depth_in_columns<KEYS>(keys, i), depth_in_columns<Backward<D>::QUERIES>(chunk, i), i > 0);
    wgmma_commit();
}

// Begins dV += P^T dO, or dK += dS^T Q.
template <int D>
__device__ __forceinline__ void multiply_queries(float (&sum)[1][D / 8][4], Operand& p, const bf16* chunk) {
    hold_still(sum[0]);
    hold_still(p[0]);
    wgmma_fence();
    UNROLL
    for (int i = 0; i < BOX / 16; i++) wgmma_add(sum[0], p[0][i], depth_in_rows<Backward<D>::QUERIES>(chunk, i));
    wgmma_commit();
}

// Begins a part of dQ = dS K: 64 queries of a slab of dS^T, 64 columns of a slab of K.
__device__ __forceinline__ void multiply_gradient(float (&dq)[8][4], const bf16* ds, const bf16* k) {
    hold_still(dq);
    wgmma_fence();
    UNROLL
    for (int i = 0; i < KEYS / 16; i++) wgmma<1, 1>(dq, depth_in_rows<KEYS>(ds, i), depth_in_rows<KEYS>(k, i), i > 0);
    wgmma_commit();
}

// s becomes P^T, p the same as left operand. columns: the statistics of the chunk's queries.
__device__ __forceinline__ void probabilities(Operand& p, Scores& s, const Statistics* columns, float scale2) {
    UNROLL
    for (int n = 0; n < BOX / 8; n++) {
        float4 two = *(const float4*)(columns + 8 * n + lane_index() % 4 * 2);
        UNROLL
        for (int j = 0; j < 4; j++) s[0][n][j] = fast_exp2(s[0][n][j] * scale2 - (j % 2 ? two.z : two.x));
    }
    pack_left<1, BOX / 8>(p, s);
}

// ds = P^T (dp - D) as left operand.
__device__ __forceinline__ void gradients(Operand& ds, const Scores& s, Scores& dp, const Statistics* columns) {
    UNROLL
    for (int n = 0; n < BOX / 8; n++) {
        float4 two = *(const float4*)(columns + 8 * n + lane_index() % 4 * 2);
        UNROLL
        for (int j = 0; j < 4; j++) dp[0][n][j] = s[0][n][j] * (dp[0][n][j] - (j % 2 ? two.w : two.y));
    }
    pack_left<1, BOX / 8>(ds, dp);
}

// Writes the warp's 16 rows of dS^T, keys, of a slab of 64 queries, as TMA would. to: the first of the rows.
__device__ __forceinline__ void keep_gradients(bf16* to, const Operand& ds) {
    int lane = (int)lane_index();
    UNROLL
    for (int n = 0; n < BOX / 8; n++) {
        UNROLL
        for (int half = 0; half < 2; half++) {
            int row = 8 * half + lane / 4, chunk = n ^ row % 8;
            keep_4((unsigned*)(to + row * BOX + chunk * 8 + lane % 4 * 2), ds[0][n / 2][n % 2 * 2 + half]);
        }
    }
}

__device__ __forceinline__ void put_two(bf16* to, float x, float y) { *(unsigned*)to = pack_bf16(x, y); }
__device__ __forceinline__ void put_two(float* to, float x, float y) {
    float2 old = *(float2*)to;
    *(float2*)to = make_float2(old.x + x, old.y + y);
}

// Brings a warp's part of dQ, 16 rows and 64 columns, in the block's turn, of which `first` and `last` are the first
// and the last one. The sum of all blocks is private to this kernel: a lane's four values of 16 columns lie side by
// side.
template <int D, class Gradient>
__device__ __forceinline__ void bring(float* sum, Gradient* dq, int ld_dq, int rows, int HS, float (&d)[8][4],
                                      bool first, bool last, float scale) {
    int lane = (int)lane_index();
    UNROLL
    for (int i = 0; i < 8; i++) {
        int half = i / 4, n = i % 4 * 2, row = 8 * half + lane / 4;
        if (row >= rows) continue;
        float4* at = (float4*)(sum + row * D + 8 * n + lane % 4 * 4);
        float4 v = make_float4(d[n][2 * half], d[n][2 * half + 1], d[n + 1][2 * half], d[n + 1][2 * half + 1]);
        if (!last) {
            if (first) *at = v;
            else add_16((float*)at, v);
            continue;
        }
        float4 old = first ? make_float4(0, 0, 0, 0) : *at;
        Gradient* to = dq + (size_t)row * ld_dq + 8 * n + lane % 4 * 2;
        if (8 * n < HS) put_two(to, (old.x + v.x) * scale, (old.y + v.y) * scale);
        if (8 * n + 8 < HS) put_two(to + 8, (old.z + v.z) * scale, (old.w + v.w) * scale);
    }
}

template <class Gradient>
struct Results {
    Gradient *dq, *dk, *dv;
    float* sum;              // (NH, Nq, D): parts of dQ that were brought already
    int* turns;              // (NH, Nq, CONSUMERS): how many were, of the tile that begins at this row; starts as 0
    int *key_turns, shares;  // (NKV, Nk, CONSUMERS): likewise of shares, which a tile of keys has `shares` of at most
};

// All the work of warpgroup w: its 64 keys.
template <int D, class Gradient>
__device__ __forceinline__ void differentiate(const Results<Gradient>& to, const Attention* a, const Places<D>& at,
                                              Tile t, const Walk& walk, int share, int kv, int group, int w) {
    constexpr int QUERIES = Backward<D>::QUERIES;
    int warp = (int)(threadIdx.x % WARPGROUP / 32), mine = BOX * w + 16 * warp, rows = t.n_rows - mine;
    int row_of_dq = D <= 64 ? BOX * w : 0, column_of_dq = D <= 64 ? 0 : BOX * w;  // the warpgroup's part of a tile
    float dk[1][D / 8][4], dv[1][D / 8][4];
    Sync* sync = at.sync;
    Ring ring = {0, 0};
    clear<1, D / 8>(dk);
    clear<1, D / 8>(dv);
    if (walk.begin < walk.end) mbarrier_wait(&sync->keys_full, 0);
    for (int h = kv * group; h < (kv + 1) * group; h++)
        for (int i = walk.begin; i < walk.end; i += QUERIES, ring.next()) {
            const bf16 *q = at.q + ring.stage * QUERIES * D, *dout = at.dout + ring.stage * QUERIES * D;
            bf16* kept = at.ds + ring.stage * KEYS * QUERIES;
            float dq[8][4];
            Operand p, ds;
            mbarrier_wait(sync->q.full + ring.stage, (unsigned)ring.parity);
            UNROLL
            for (int c = 0; c < QUERIES; c += BOX) {
                const Statistics* columns = at.statistics + ring.stage * QUERIES + c;
                Scores s, dp;
                multiply_keys<D>(s, at.k + w * BOX * BOX, q + c * BOX);
                if (c == 0) mbarrier_wait(sync->dout.full + ring.stage, (unsigned)ring.parity);
                multiply_keys<D>(dp, at.v + w * BOX * BOX, dout + c * BOX);
                wgmma_wait<1>();
                hold_still(s[0]);
                int diagonal = t.diagonal + i + c - mine;  // column j sees the warp's rows before diagonal + j
                if (16 > MIN(diagonal, rows)) hide_upto<1, BOX / 8>(s, diagonal, rows);
                probabilities(p, s, columns, a->scale * LOG2_E);
                multiply_queries<D>(dv, p, dout + c * BOX);
                wgmma_wait<1>();
                hold_still(dp[0]);
                gradients(ds, s, dp, columns);
                keep_gradients(kept + (c * KEYS + mine * BOX), ds);
                if (c + BOX < QUERIES) multiply_queries<D>(dk, ds, q + c * BOX);
            }
            fence_async_proxy();
            named_barrier_sync(WRITTEN, CONSUMERS * WARPGROUP);
            multiply_gradient(dq, kept + row_of_dq * KEYS, at.k + column_of_dq * KEYS);
            multiply_queries<D>(dk, ds, q + (QUERIES - BOX) * BOX);
            wgmma_wait<1>();
            hold_still(dq);
            hold_still(dv[0]);
            release(sync->dout.empty + ring.stage);

            int n = MIN(QUERIES, walk.end - i), turn = walk.turn(i, n), row = row_of_dq + 16 * warp;
            size_t first = (size_t)h * a->Nq + t.other + i;  // of the tile, among all heads' queries
            int* count = to.turns + first * CONSUMERS + w;
            Gradient* to_dq = to.dq + (size_t)(t.other + i + row) * a->ld_dq + h * a->HS + column_of_dq;
            if (turn > 0) {
                if (threadIdx.x % WARPGROUP == 0) wait_for_turn(count, turn);
                named_barrier_sync(ALONE + w, WARPGROUP);
            }
            bring<D>(to.sum + (first + row) * D + column_of_dq, to_dq, a->ld_dq, n - row, a->HS - column_of_dq, dq,
                     turn == 0, walk.block == 0, a->scale);
            named_barrier_sync(ALONE + w, WARPGROUP);
            if (threadIdx.x % WARPGROUP == 0) end_turn(count);
            wgmma_wait<0>();
            hold_still(dk[0]);
            release(sync->q.empty + ring.stage);
        }
    size_t at_rows = (size_t)(t.row + mine) * a->ld_dkv + kv * a->HS;
    named_barrier_sync(WRITTEN, CONSUMERS * WARPGROUP);  // K and V were read by all
    if constexpr (sizeof(Gradient) == sizeof(bf16)) {
        store_rows<D, 1>(to.dk + at_rows, (size_t)a->ld_dkv, rows, a->HS, at.k + mine * D, dk, a->scale);
        store_rows<D, 1>(to.dv + at_rows, (size_t)a->ld_dkv, rows, a->HS, at.v + mine * D, dv, 1.0f);
    } else {
        int* count = to.key_turns + ((size_t)kv * a->Nk + t.row) * CONSUMERS + w;
        if (threadIdx.x % WARPGROUP == 0 && share > 0) wait_for_turn(count, share);
        named_barrier_sync(ALONE + w, WARPGROUP);
        store_floats<D, 1, true>(to.dk + at_rows, (size_t)a->ld_dkv, rows, a->HS, dk, a->scale);
        store_floats<D, 1, true>(to.dv + at_rows, (size_t)a->ld_dkv, rows, a->HS, dv, 1.0f);
        named_barrier_sync(ALONE + w, WARPGROUP);
        if (threadIdx.x % WARPGROUP == 0) end_turn(count);
    }
}

template <int D, class Gradient>
static __global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(Results<Gradient> to, const Statistics* statistics, Attention a, int group,
                    const __grid_constant__ BackwardMaps maps, const int* n_tiles, const Tile* tiles) {
    DYNAMIC_SHARED(bf16, shared);
    int index = tile_index(), kv = (int)blockIdx.x / to.shares, share = (int)blockIdx.x % to.shares;
    int w = warpgroup_index() - 1, share_rows = sizeof(Gradient) == sizeof(float) ? (int)SHARE : INT_MAX / 2;
    if (index >= *n_tiles) return;
    Tile t = tiles[index];
    Walk walk(t, Backward<D>::QUERIES, share, share_rows);
    if (share > 0 && walk.begin == walk.end) return;
    Places<D> at(shared);
    if (threadIdx.x == 0) {
        at.sync->q.begin(2, 4 * CONSUMERS);  // the tile, and its statistics
        at.sync->dout.begin(1, 4 * CONSUMERS);
        mbarrier_init(&at.sync->keys_full, 2);
        mbarrier_init(&at.sync->edge, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (w < 0) {
        give_registers<LOADING_REGISTERS>();
        if (threadIdx.x < 32 && walk.begin < walk.end) load_all<D>(at, &maps, statistics, t, walk, kv, group, a.Nq);
    } else {
        take_registers<CONSUMER_REGISTERS>();
        differentiate<D>(to, &a, at, t, walk, share, kv, group, w);
    }
}

// ---- entries. Scratch: statistics, turns, sums of dQ

typedef struct Scratch {
    size_t turns, key_turns, sum, bytes;  // where they begin; the statistics are first
} Scratch;

static Scratch scratch_of(int NH, int Nq, int NKV, int Nk, int HS) {
    size_t n = (size_t)NH * Nq, n_keys = (size_t)NKV * Nk, D = HS <= 64 ? 64 : 128;
    size_t turns = ROUND_UP(n * sizeof(Statistics), (size_t)256), key_turns = turns + n * CONSUMERS * sizeof(int);
    size_t sum = ROUND_UP(key_turns + n_keys * CONSUMERS * sizeof(int), (size_t)256);
    return {turns, key_turns, sum, sum + n * D * sizeof(float)};
}

size_t cuda_attention_sm90_scratch_bytes(const KernelLimits* limits) {
    int spread = MAX(1, limits->spread);
    return scratch_of(limits->NH, limits->N, CEIL_DIV(limits->NKV, spread), limits->N * spread, limits->HS).bytes;
}

template <int D, class Gradient>
static void backward(Gradient* dq, Gradient* dk, Gradient* dv, const bf16* dout, const bf16* out, const float* lse,
                     const Attention* a, Stream s) {
    cudaStream_t stream = cuda_stream(s);
    constexpr size_t bytes = Backward<D>::SHARED_BYTES;
    Scratch scratch = scratch_of(a->NH, a->Nq, a->NKV, a->Nk, a->HS);
    int shares = a->partial ? CEIL_DIV(a->Nq, (int)SHARE) : 1;
    char* memory = (char*)cuda_scratch(scratch.bytes);
    int *turns = (int*)(memory + scratch.turns), *key_turns = (int*)(memory + scratch.key_turns);
    Results<Gradient> to = {dq, dk, dv, (float*)(memory + scratch.sum), turns, key_turns, shares};
    TileList keys;
    BackwardMaps maps = {
        cuda_tensor_map(a->q, a->Nq, a->NH, a->HS, a->ldq), cuda_tensor_map(a->k, a->Nk, a->NKV, a->HS, a->ldkv),
        cuda_tensor_map(a->v, a->Nk, a->NKV, a->HS, a->ldkv), cuda_tensor_map(dout, a->Nq, a->NH, a->HS, a->ldo)};
    attention_list(NULL, 0, &keys, KEYS, 1, a, s);
    attention_statistics((Statistics*)memory, a->partial ? NULL : (bf16*)dq, dout, out, lse, a, stream);
    CUDA_CHECK(cudaMemsetAsync(turns, 0, scratch.sum - scratch.turns, stream));
    cuda_allow_shared(backward_kernel<D, Gradient>, bytes);
    LAUNCH((backward_kernel<D, Gradient>), tile_grid(&keys, a->NKV * shares), THREADS, bytes, stream, to,
           (const Statistics*)memory, *a, a->NH / a->NKV, maps, keys.n, keys.tiles);
}

void cuda_attention_backward_sm90(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                                  const Attention* a, Stream s) {
    auto run = [=](auto zero) {
        typedef decltype(zero) G;
        auto backward_of = a->HS <= 64 ? backward<64, G> : backward<128, G>;
        backward_of((G*)dq, (G*)dk, (G*)dv, (const bf16*)dout, (const bf16*)out, lse, a, s);
    };
    a->partial ? run(0.0f) : run(bf16(0));
}
