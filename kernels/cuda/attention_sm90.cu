// attention_sm90.cu - the forward pass of attention on Hopper: the naive loop of attention.cu, told to wgmma and TMA.
//
//   loading warp:       for each tile of 128 keys:  wait until its stage is empty; begin to load K; likewise V
//   each warpgroup of consumers, which owns 64 queries:
//     S = Q K_0^T
//     for each tile j:  P = exp(S - max), sum; O = keep O + P V_j, beside which S = Q K_{j+1}^T runs already
//
// So tensor cores work on the next scores and on P V while exponentials are taken (FlashAttention-3, Shah et al. 2024),
// and the warpgroups take turns in giving them work: while one takes exponentials the other multiplies.
//
// Budget of a block, by count. D = 128: 2 warpgroups, 128 queries: a tile of keys is 8.4 MFLOP, 2048 cycles of an
// H100's tensor cores (4096 FLOPs a cycle), 16384 exponentials, 1024 cycles (16 a cycle), and 64 KiB from memory or the
// cache. D = 64: 3 warpgroups, 192 queries: 1536 cycles of both, so that exponentials bound it. Registers: 64 of
// scores, 32 of probabilities, D / 2 of results. Shared memory: 160 KiB, or 88.
#include "kernels/cuda/attention_sm90.cuh"

#include "kernels/cuda/library.h"

#include <stdio.h>

enum { KEYS = 128 };

template <int D>
struct Forward {
    static constexpr int CONSUMERS = D <= 64 ? 3 : 2, QUERIES = 64 * CONSUMERS, THREADS = WARPGROUP * (1 + CONSUMERS);
    static constexpr int REGISTERS = D <= 64 ? 160 : 240;
    static constexpr size_t SHARED_BYTES = (QUERIES + 2 * STAGES * KEYS) * D * sizeof(bf16) + SYNC_BYTES + PATTERN;
};

struct ForwardMaps {
    CUtensorMap q, k, v;
};

// Barriers of named_barrier_sync: of a warpgroup's turn, and of a warpgroup alone.
enum { TURN = 1, ALONE = 4 };

struct Sync {
    Barriers k, v;
    uint64_t q_full, edge;
};
static_assert(sizeof(Sync) <= SYNC_BYTES, "barriers have room");

// What a block has in shared memory: tiles of Q, one of 64 rows after another, the stages of K, and those of V.
template <int D>
struct Places {
    bf16 *q, *k, *v;
    Sync* sync;
    __device__ __forceinline__ Places(bf16* shared)
        : q(first_tile(shared)),
          k(q + Forward<D>::QUERIES * D),
          v(k + STAGES * KEYS * D),
          sync((Sync*)(v + STAGES * KEYS * D)) {}
};

template <int D>
__device__ __forceinline__ void load_all(const Places<D>& to, const ForwardMaps* maps, Tile t, int seen, int h,
                                         int kv) {
    Sync* sync = to.sync;
    Edge edge = {&sync->edge, 0};
    Ring ring = {0, 1};
    for (int w = 0; w < Forward<D>::CONSUMERS; w++)
        load_tile<D, BOX>(to.q + w * BOX * D, &maps->q, h, t.row + BOX * w, t.n_rows - BOX * w, &sync->q_full, &edge);
    for (int key = 0; key < seen; key += KEYS, ring.next()) {
        mbarrier_wait(sync->k.empty + ring.stage, (unsigned)ring.parity);
        load_tile<D, KEYS>(to.k + ring.stage * KEYS * D, &maps->k, kv, t.other + key, t.n_other - key,
                           sync->k.full + ring.stage, &edge);
        mbarrier_wait(sync->v.empty + ring.stage, (unsigned)ring.parity);
        load_tile<D, KEYS>(to.v + ring.stage * KEYS * D, &maps->v, kv, t.other + key, t.n_other - key,
                           sync->v.full + ring.stage, &edge);
    }
}

// s becomes exp(s - max) by the running softmax of a lane's two rows: the largest score, and the lane's part of the
// sum. keep: the factors for what was summed before. Returns whether any of the warp's is not 1.
__device__ __forceinline__ bool exponentials(float (&s)[KEYS / 8][4], float largest[2], float sum[2], float keep[2],
                                             float scale2) {
    bool moved = false;
    UNROLL
    for (int half = 0; half < 2; half++) {
        float old = largest[half], top = old;
        UNROLL
        for (int n = 0; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
        top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
        float base = top == -INFINITY ? 0.0f : top * scale2, more = 0;  // a row that has seen no key yet
        keep[half] = fast_exp2(old * scale2 - base);
        moved |= top != old;
        largest[half] = top;
        UNROLL
        for (int n = 0; n < KEYS / 8; n++) {
            UNROLL
            for (int j = 2 * half; j < 2 * half + 2; j++) more += s[n][j] = fast_exp2(s[n][j] * scale2 - base);
        }
        sum[half] = sum[half] * keep[half] + more;
    }
    return __any_sync(FULL_WARP, moved);
}

// Begins S = Q K^T, and O += P V, of a tile of keys.
template <int D>
__device__ __forceinline__ void multiply_scores(float (&s)[KEYS / 8][4], const bf16* q, const bf16* k) {
    hold_still(s);
    wgmma_fence();
    UNROLL
    for (int i = 0; i < D / 16; i++) wgmma<0, 0>(s, depth_in_columns<BOX>(q, i), depth_in_columns<KEYS>(k, i), i > 0);
    wgmma_commit();
}
template <int D>
__device__ __forceinline__ void multiply_values(float (&o)[D / 8][4], unsigned (&p)[KEYS / 16][4], const bf16* v) {
    hold_still(o);
    hold_still(p);
    wgmma_fence();
    UNROLL
    for (int i = 0; i < KEYS / 16; i++) wgmma_add(o, p[i], depth_in_rows<KEYS>(v, i));
    wgmma_commit();
}

// A warpgroup waits for its turn to give tensor cores work, and passes it on; the last turn is passed to nobody.
__device__ __forceinline__ void take_turn(int w) { named_barrier_sync(TURN + w, 2 * WARPGROUP); }
template <int CONSUMERS>
__device__ __forceinline__ void pass_turn(int w, bool last) {
    if (!last || w + 1 < CONSUMERS) named_barrier_arrive(TURN + (w + 1) % CONSUMERS, 2 * WARPGROUP);
}

// All the work of warpgroup w: its 64 queries.
template <int D, class Out>
__device__ __forceinline__ void attend(Out* out, float* lse, const Attention* a, const Places<D>& at, Tile t, int seen,
                                       int h, int w) {
    Sync* sync = at.sync;
    constexpr int CONSUMERS = Forward<D>::CONSUMERS;
    int mine = BOX * w + (int)(threadIdx.x % WARPGROUP / 32) * 16, rows = t.n_rows - mine;  // may be negative
    int diagonal = t.diagonal + mine, n_keys = t.n_other;  // row i of the warp sees the first diagonal + i keys
    float scale2 = a->scale * LOG2_E, s[1][KEYS / 8][4], o[1][D / 8][4], keep[2];
    unsigned p[1][KEYS / 16][4];
    const bf16* my_q = at.q + w * BOX * D;
    float largest[1][2] = {{-INFINITY, -INFINITY}}, sum[1][2] = {};
    Ring ring = {0, 0};
    clear<1, D / 8>(o);
    clear<1, KEYS / 8>(s);
    if (w == CONSUMERS - 1 && seen > 0) pass_turn<CONSUMERS>(w, false);  // the first turn is that of warpgroup 0
    mbarrier_wait(&sync->q_full, 0);
    auto exponentials_of_tile = [&] {  // returns whether older results have to be scaled by keep
        if (KEYS > MIN(diagonal, n_keys)) hide_from<1, KEYS / 8>(s, diagonal, n_keys);
        diagonal -= KEYS, n_keys -= KEYS;
        return exponentials(s[0], largest[0], sum[0], keep, scale2);
    };
    if (seen > 0) {
        take_turn(w);
        mbarrier_wait(sync->k.full, 0);
        multiply_scores<D>(s[0], my_q, at.k);
        pass_turn<CONSUMERS>(w, KEYS >= seen);
        wgmma_wait<0>();
        hold_still(s[0]);
        release(sync->k.empty);
        exponentials_of_tile();
        pack_left<1, KEYS / 8>(p, s);
    }
    for (int key = KEYS; key < seen; key += KEYS) {
        Ring before = ring;
        ring.next();
        take_turn(w);
        mbarrier_wait(sync->k.full + ring.stage, (unsigned)ring.parity);
        multiply_scores<D>(s[0], my_q, at.k + ring.stage * KEYS * D);
        mbarrier_wait(sync->v.full + before.stage, (unsigned)before.parity);
        multiply_values<D>(o[0], p[0], at.v + before.stage * KEYS * D);
        pass_turn<CONSUMERS>(w, key + KEYS >= seen);
        wgmma_wait<1>();
        hold_still(s[0]);
        release(sync->k.empty + ring.stage);
        bool moved = exponentials_of_tile();
        wgmma_wait<0>();
        hold_still(o[0]);
        release(sync->v.empty + before.stage);
        if (moved) {
            UNROLL
            for (int i = 0; i < D / 2; i++) o[0][i / 4][i % 4] *= keep[i % 4 / 2];
        }
        pack_left<1, KEYS / 8>(p, s);
    }
    if (seen > 0) {
        mbarrier_wait(sync->v.full + ring.stage, (unsigned)ring.parity);
        multiply_values<D>(o[0], p[0], at.v + ring.stage * KEYS * D);
        wgmma_wait<0>();
        hold_still(o[0]);
    }
    named_barrier_sync(ALONE + w, WARPGROUP);  // Q was read by all four warps
    size_t row = (size_t)(t.row + mine);
    finish<D, 1>(out + row * a->ldo + h * a->HS, lse + (size_t)h * a->Nq + row, a, rows, at.q + mine * D, o, largest,
                 sum);
}

template <int D, class Out>
static __global__ void __launch_bounds__(Forward<D>::THREADS, 1)
    forward_kernel(Out* out, float* lse, Attention a, int group, const __grid_constant__ ForwardMaps maps,
                   const int* n_tiles, const Tile* tiles) {
    DYNAMIC_SHARED(bf16, shared);
    int index = tile_index(), h = (int)blockIdx.x, w = warpgroup_index() - 1;
    if (index >= *n_tiles) return;
    Tile t = tiles[index];
    int seen = MAX(0, MIN(t.n_other, t.diagonal + t.n_rows - 1));
    Places<D> at(shared);
    if (threadIdx.x == 0) {
        at.sync->k.begin(1, 4 * Forward<D>::CONSUMERS);
        at.sync->v.begin(1, 4 * Forward<D>::CONSUMERS);
        mbarrier_init(&at.sync->q_full, Forward<D>::CONSUMERS);
        mbarrier_init(&at.sync->edge, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (w < 0) {
        give_registers<LOADING_REGISTERS>();
        if (threadIdx.x < 32) load_all<D>(at, &maps, t, seen, h, h / group);
    } else {
        take_registers<Forward<D>::REGISTERS>();
        attend<D>(out, lse, &a, at, t, seen, h, w);
    }
}

// ---- entries

CUtensorMap cuda_tensor_map(const void* x, int rows, int heads, int HS, int ld) {
    static decltype(cuTensorMapEncodeTiled)* encode;
    static const char* const files[] = {"libcuda.so.1", "libcuda.so", NULL};
    const LibrarySymbol symbol = {"cuTensorMapEncodeTiled", (void**)&encode};
    cuuint64_t dims[] = {(cuuint64_t)HS, (cuuint64_t)heads, (cuuint64_t)rows};
    cuuint64_t strides[] = {HS * sizeof(bf16), ld * sizeof(bf16)};
    cuuint32_t box[] = {BOX, 1, BOX}, steps[] = {1, 1, 1};
    CUtensorMap map;
    Err err;
    if (!encode && library_open("the CUDA driver", files, &symbol, 1, err)) die("%s", err);
    CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, COUNT(dims), (void*)x, dims, strides, box, steps,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        die("attention on Hopper: the driver refuses a tensor of %d rows, %d heads of %d, stride %d (error %d)", rows,
            heads, HS, ld, (int)result);
    return map;
}

template <int D, class Out>
static void forward(Out* out, float* lse, const Attention* a, Stream s) {
    constexpr size_t bytes = Forward<D>::SHARED_BYTES;
    TileList list;
    ForwardMaps maps = {cuda_tensor_map(a->q, a->Nq, a->NH, a->HS, a->ldq),
                        cuda_tensor_map(a->k, a->Nk, a->NKV, a->HS, a->ldkv),
                        cuda_tensor_map(a->v, a->Nk, a->NKV, a->HS, a->ldkv)};
    attention_list(&list, Forward<D>::QUERIES, NULL, 0, 0, a, s);
    cuda_allow_shared(forward_kernel<D, Out>, bytes);
    LAUNCH((forward_kernel<D, Out>), tile_grid(&list, a->NH), Forward<D>::THREADS, bytes, cuda_stream(s), out, lse, *a,
           a->NH / a->NKV, maps, list.n, list.tiles);
}

void cuda_attention_forward_sm90(void* out, float* lse, const Attention* a, Stream s) {
    auto run = [=](auto zero) {
        typedef decltype(zero) Out;
        (a->HS <= 64 ? forward<64, Out> : forward<128, Out>)((Out*)out, lse, a, s);
    };
    a->partial ? run(0.0f) : run(bf16(0));
}

// Calls of a trial, which takes what a run has.
static int forward_of_trial(void* out, float* lse, const Attention* a, void*, Err) {
    return cuda_attention_forward_sm90(out, lse, a, NULL), 0;
}
static void backward_of_trial(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                              const Attention* attention, DType, Stream s) {
    Attention a = *attention;
    a.ld_dq = a.ldq, a.ld_dkv = a.ldkv;
    cuda_attention_backward_sm90(dq, dk, dv, dout, out, lse, &a, s);
}

int cuda_wgmma_open(const KernelLimits* limits, Err words) {
    enum { CHOICE_VERSION = 1, ALL = 1 << 30 };  // to be raised when kernels become faster
    AttentionCandidate wgmma = {"wgmma", forward_of_trial, NULL, {8, ALL}, 2, backward_of_trial};
    AttentionTrial t = {};
    char key[500];
    if (cuda.major != 9 || limits->HS < 64 || limits->HS > 128 || limits->HS % 16 || limits->dt != DT_BF16)
        return fail(words,
                    "attention by wgmma takes bf16 and heads of 64, 80, 96, 112 or 128 on sm_90, here are %s and "
                    "heads of %d on sm_%d%d%s",
                    dtype_name(limits->dt), limits->HS, cuda.major, cuda.minor,
                    limits->attention == ATTENTION_WGMMA ? "; try --device attention=own" : "");
    if (limits->attention == ATTENTION_WGMMA) return snprintf(words, ERR_BYTES, "as asked"), 0;
    snprintf(key, sizeof key, "choice %d, wgmma, %s, N %d context %d NH %d NKV %d HS %d", CHOICE_VERSION, cuda.model,
             limits->N, limits->context, limits->NH, limits->NKV, limits->HS);
    if (!cuda_attention_trial_kept(&t, wgmma.name, key) && cuda_attention_trial(&t, &wgmma, limits, key, words))
        return -1;
    snprintf(words, ERR_BYTES, "%s", t.words);
    return !t.refused && t.candidate_ms < t.own_ms ? 0 : -1;
}
