// attention.cu - attention over packed documents on tensor cores: the list of tiles and the forward pass.
//
// Naively, for one query i of one head, over the keys j that it sees, with a running maximum and sum (Milakov &
// Gimelshein 2018), so that no row of scores is ever stored:
//
//   max = -infinity, sum = 0, o (HS) = 0
//   for each key j:
//       s = scale * dot(q[i], k[j])
//       new_max = fmax(max, s), keep = exp(max - new_max), p = exp(s - new_max)
//       sum = keep * sum + p
//       o = keep * o + p * v[j]
//       max = new_max
//   out[i] = o / sum,  lse[i] = max + log(sum)
//
// FlashAttention-2 (Dao 2023) does this for tiles: a block owns 128 queries of one document and head, 32 a warp, and
// meets the keys that they see in tiles of 64. Blocks of query heads that share keys and values (Ainslie et al. 2023)
// start side by side, so that these come from the cache for all but one. Scores never leave registers; exponentials are
// taken in base 2. The limit is tensor cores: a causal document of T tokens costs 2 HS T^2 FLOPs, and mma.sync reaches
// about 62% of an H100's 989 TFLOP/s (Luo et al. 2024), the rest needs wgmma.
//
// By count, a tile of 128 x 64 with HS = 64 takes of one multiprocessor of an H100, in cycles: 825 of mma; 512 of
// exponentials; 640 of shared memory (with 16 queries a warp it would be 1152, and the limit); 650 to issue a warp's
// instructions. These are different units: of the two blocks that fit one's softmax runs beside the other's mma.
#include "kernels/cuda/attention_tiles.cuh"

// ---- the list of tiles: a counting sort by work, stable, in one block, each warp on a share of the documents
//
// Blocks start in the order of their index, each on the multiprocessor that is free first: with the longest first none
// is left alone with a long one (Graham 1969). It takes 2 passes of about 250 cycles for each 32 tiles of a warp.

enum { LIST_WARPS = 16, LIST_THREADS = 32 * LIST_WARPS, CLASSES = 256, WORK_UNIT = 64 };

typedef struct ListJob {
    const int *cu, *other_cu, *causal_offset, *cu_q, *cu_k;
    int n_docs, causal, rows_of_tile, is_keys;
    int in_turn;  // order by documents, the last tile of each first
    int shift;    // class: work in units of WORK_UNIT rows >> shift, below CLASSES
    int* n;
    Tile* tiles;
} ListJob;

// Returns the tile that begins at row `begin` of document b.
__device__ __forceinline__ Tile tile_of(const ListJob* job, int b, int begin) {
    int q_len = job->cu_q[b + 1] - job->cu_q[b], k_len = job->cu_k[b + 1] - job->cu_k[b];
    int len = job->is_keys ? k_len : q_len, n_other = job->is_keys ? q_len : k_len;
    int offset = job->causal_offset ? job->causal_offset[b] : k_len - q_len;
    offset = job->causal ? MAX(-q_len, MIN(offset, k_len)) : k_len;  // beyond that it makes no difference
    int diagonal = job->is_keys ? offset + 1 - begin : begin + offset + 1;
    return {
        job->cu[b] + begin, MIN(job->rows_of_tile, len - begin), job->other_cu[b], n_other, diagonal, begin, len, 0};
}

// Returns the rows of the other side that the tile meets.
__device__ __forceinline__ int work_of(const ListJob* job, Tile t) {
    if (job->in_turn) return t.n_other;
    if (job->is_keys) return MAX(0, t.n_other - MAX(0, 1 - t.diagonal));
    return MAX(0, MIN(t.n_other, t.diagonal + t.n_rows - 1));
}

// Visits the tiles of the warp's documents in order, 32 at a time. With PLACE it writes each where next[class] says,
// and raises that; else it counts them in next[class].
template <bool PLACE>
__device__ __forceinline__ void visit_tiles(const ListJob* job, int* next) {
    int warp = (int)(threadIdx.x / 32), lane = (int)lane_index();
    int begin = (int)((long long)job->n_docs * warp / LIST_WARPS);
    int end = (int)((long long)job->n_docs * (warp + 1) / LIST_WARPS);
    for (int b0 = begin; b0 < end; b0 += 32) {
        int b = b0 + lane, tiles = b < end ? CEIL_DIV(job->cu[b + 1] - job->cu[b], job->rows_of_tile) : 0;
        int upto = sum_up_to_lane(tiles);  // tiles of the documents up to the lane's
        int total = __shfl_sync(FULL_WARP, upto, 31);
        for (int t0 = 0; t0 < total; t0 += 32) {
            int t = t0 + lane, doc = 0;  // doc: how many lanes have upto <= t
            for (int by = 16; by > 0; by /= 2)
                if (__shfl_sync(FULL_WARP, upto, doc + by - 1) <= t) doc += by;
            int first = __shfl_sync(FULL_WARP, upto - tiles, doc % 32), work_class = -1;
            Tile tile;
            if (t < total) {
                int index = t - first;
                if (job->in_turn)
                    index = CEIL_DIV(job->cu[b0 + doc + 1] - job->cu[b0 + doc], job->rows_of_tile) - 1 - index;
                tile = tile_of(job, b0 + doc, index * job->rows_of_tile);
                work_class = CEIL_DIV(work_of(job, tile), WORK_UNIT) >> job->shift;
            }
            unsigned same = __match_any_sync(FULL_WARP, work_class), before = same & ((1u << lane) - 1);
            int at = work_class < 0 ? 0 : next[work_class] + __popc(before);
            __syncwarp();
            if (work_class >= 0 && !before) next[work_class] += __popc(same);
            __syncwarp();
            if (PLACE && work_class >= 0) job->tiles[at] = tile;
        }
    }
}

static __global__ void __launch_bounds__(LIST_THREADS) list_kernel(ListJob query_job, ListJob key_job) {
    __shared__ int next[LIST_WARPS * CLASSES];  // tiles of a warp and class; later where the next one goes
    __shared__ int above[2][CLASSES];           // tiles of this class and larger ones
    ListJob chosen = key_job, *job = &chosen;
    if (blockIdx.x == 0) chosen = query_job;
    int c = (int)threadIdx.x, warp = c / 32;
    for (int i = c; i < LIST_WARPS * CLASSES; i += LIST_THREADS) next[i] = 0;
    __syncthreads();
    visit_tiles<false>(job, next + warp * CLASSES);
    __syncthreads();
    int total = 0, turn = 0;
    for (int w = 0; w < LIST_WARPS && c < CLASSES; w++) total += next[w * CLASSES + c];
    if (c < CLASSES) above[0][c] = total;
    __syncthreads();
    for (int by = 1; by < CLASSES; by *= 2, turn ^= 1) {
        if (c < CLASSES) above[turn ^ 1][c] = above[turn][c] + (c + by < CLASSES ? above[turn][c + by] : 0);
        __syncthreads();
    }
    if (c == 0) *job->n = above[turn][0];
    int at = c < CLASSES ? above[turn][c] - total : 0;
    for (int w = 0; w < LIST_WARPS && c < CLASSES; w++) {
        int count = next[w * CLASSES + c];
        next[w * CLASSES + c] = at;
        at += count;
    }
    __syncthreads();
    visit_tiles<true>(job, next + warp * CLASSES);
}

enum { LIST_HEADER = 256 };

// Returns the bytes of a list of N rows, however they are divided into documents.
static size_t list_bytes(size_t N) { return LIST_HEADER + ROUND_UP(N * sizeof(Tile), (size_t)256); }

// Returns the most bytes of a list. More tokens than N make no more pairs, as heads are fewer, but tiles are of tokens.
static size_t most_list_bytes(const KernelLimits* limits) {
    return list_bytes((size_t)limits->N * (size_t)MAX(1, limits->spread));
}

size_t cuda_attention_kept_bytes(const KernelLimits* limits) { return 2 * most_list_bytes(limits); }

// Returns the list at p; every document adds at most one tile that is not full.
static TileList list_at(char* p, int n_rows, int n_docs, int rows_of_tile) {
    size_t most = (size_t)(n_rows / rows_of_tile) + (size_t)n_docs;
    return {(int)MIN(most, (size_t)n_rows), (int*)p, (Tile*)(p + LIST_HEADER)};
}

static ListJob list_job(const TileList* list, const Attention* a, int is_keys, int rows_of_tile, int in_turn) {
    const int *cu = is_keys ? a->cu_k : a->cu_q, *other_cu = is_keys ? a->cu_q : a->cu_k;
    int shift = 0, most_work = CEIL_DIV(is_keys ? a->Nq : a->Nk, (int)WORK_UNIT);
    while (most_work >> shift >= CLASSES) shift++;
    return {cu,           other_cu, a->causal_offset, a->cu_q, a->cu_k, a->n_docs,  a->causal,
            rows_of_tile, is_keys,  in_turn,          shift,   list->n, list->tiles};
}

// The call that a list was made for; row 0: none. Two lists are kept: of query tiles and of key tiles, or, in passes
// that go forward alone, of query tiles of two calls that take turns, as in generation.
typedef struct Kept {
    uint64_t row;
    const int *cu_q, *cu_k, *causal_offset;
    int Nq, Nk, n_docs, causal, is_keys, rows_of_tile;
    cudaStream_t stream;
} Kept;
static Kept kept[2];
static int last_slot;  // the one that a forward pass used

void cuda_attention_forget(void) { memset(kept, 0, sizeof kept); }

static bool is_kept(int slot, const Attention* a, int is_keys, int rows_of_tile, cudaStream_t stream) {
    const Kept* k = &kept[slot];
    return a->row && k->row == a->row && k->cu_q == a->cu_q && k->cu_k == a->cu_k &&
           k->causal_offset == a->causal_offset && k->Nq == a->Nq && k->Nk == a->Nk && k->n_docs == a->n_docs &&
           k->causal == a->causal && k->is_keys == is_keys && k->rows_of_tile == rows_of_tile && k->stream == stream;
}

// Returns 1 if the list has to be made; then it counts as made.
static int must_make(int slot, const Attention* a, int is_keys, int rows_of_tile, cudaStream_t stream) {
    if (is_kept(slot, a, is_keys, rows_of_tile, stream)) return 0;
    kept[slot] = {a->row,    a->cu_q,   a->cu_k, a->causal_offset, a->Nq, a->Nk,
                  a->n_docs, a->causal, is_keys, rows_of_tile,     stream};
    return 1;
}

static int forward_slot(const Attention* a, int rows_of_tile, cudaStream_t stream) {
    for (int slot = 0; slot < 2; slot++)
        if (is_kept(slot, a, 0, rows_of_tile, stream)) return slot;
    return 1 - last_slot;
}

void attention_list(TileList* queries, int rows_of_query_tile, TileList* keys, int rows_of_key_tile, int in_turn,
                    const Attention* a, Stream s) {
    cudaStream_t stream = cuda_stream(s);
    char* memory[2] = {cuda_kept(), cuda_kept() + most_list_bytes(&cuda.limits)};
    ListJob job[2];
    int n = 0;
    if (queries) {
        int slot = keys ? 0 : last_slot = forward_slot(a, rows_of_query_tile, stream);
        *queries = list_at(memory[slot], a->Nq, a->n_docs, rows_of_query_tile);
        if (must_make(slot, a, 0, rows_of_query_tile, stream))
            job[n++] = list_job(queries, a, 0, rows_of_query_tile, 0);
    }
    if (keys) {
        *keys = list_at(memory[1], a->Nk, a->n_docs, rows_of_key_tile);
        if (must_make(1, a, 1, rows_of_key_tile, stream)) job[n++] = list_job(keys, a, 1, rows_of_key_tile, in_turn);
    }
    if (n) LAUNCH(list_kernel, (unsigned)n, LIST_THREADS, 0, stream, job[0], job[n - 1]);
}

// ---- forward

enum { M = QUERY_TILE / TILE_WARPS / 16, WARP_QUERIES = 16 * M };  // fragments of 16 queries, queries of a warp

// Takes the running softmax of s, the scores of a tile of keys: p = exp(s - max) as left operand. It scales o and sum,
// of the tiles before, to the new maximum, which rarely moves after the first ones. The sums are the lane's own part.
template <int D, int KEYS>
__device__ __forceinline__ void softmax(unsigned p[M][KEYS / 16][4], float s[M][KEYS / 8][4], float o[M][D / 8][4],
                                        float largest[M][2], float sum[M][2], float scale2) {
    float base[M][2], keep[M][2];
    bool moved = false;
    UNROLL
    for (int i = 0; i < 2 * M; i++) {
        int m = i / 2, half = i % 2;
        float old = largest[m][half], top = old;
        UNROLL
        for (int n = 0; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
        top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
        base[m][half] = top == -INFINITY ? 0.0f : top * scale2;  // a row that has seen no key yet
        keep[m][half] = fast_exp2(old * scale2 - base[m][half]);
        moved |= top != old;
        largest[m][half] = top;
    }
    if (__any_sync(FULL_WARP, moved)) {
        UNROLL
        for (int m = 0; m < M; m++) {
            sum[m][0] *= keep[m][0];
            sum[m][1] *= keep[m][1];
            UNROLL
            for (int n = 0; n < D / 8; n++) {
                UNROLL
                for (int j = 0; j < 4; j++) o[m][n][j] *= keep[m][j / 2];
            }
        }
    }
    UNROLL
    for (int m = 0; m < M; m++) {
        UNROLL
        for (int n = 0; n < KEYS / 8; n++) {
            UNROLL
            for (int j = 0; j < 4; j++) {
                s[m][n][j] = fast_exp2(s[m][n][j] * scale2 - base[m][j / 2]);
                sum[m][j / 2] += s[m][n][j];
            }
        }
        pack_left<1, KEYS / 8>(p + m, s + m);
    }
}

template <int D, int KEYS>
constexpr size_t forward_shared_bytes() {
    return (QUERY_TILE + 4 * KEYS) * D * sizeof(bf16);
}

template <int D, int KEYS, class Out>
static __global__ void __launch_bounds__(TILE_THREADS, 2)
    forward_kernel(Out* out, float* lse, Attention a, int group, const int* n_tiles, const Tile* tiles) {
    DYNAMIC_SHARED(bf16, shared);
    int index = tile_index(), h = (int)blockIdx.x, kv = h / group, mine = (int)(threadIdx.x / 32) * WARP_QUERIES;
    if (index >= *n_tiles) return;
    Tile t = tiles[index];
    int seen = MAX(0, MIN(t.n_other, t.diagonal + t.n_rows - 1)), rows = t.n_rows - mine;  // of the warp, or negative
    bf16 *stages = shared + QUERY_TILE * D, *my_q = shared + mine * D;
    Source k = {a.k, a.ldkv}, v = {a.v, a.ldkv};
    int end = t.other + t.n_other;
    unsigned held[D / 16][M][4];  // Q
    float o[M][D / 8][4], largest[M][2], sum[M][2];
    clear<M, D / 8>(o);
    UNROLL
    for (int m = 0; m < M; m++) largest[m][0] = largest[m][1] = -INFINITY, sum[m][0] = sum[m][1] = 0;
    if (seen > 0) {
        const bf16* q = (const bf16*)a.q + (size_t)t.row * a.ldq + h * a.HS;
        copy_rows<D, QUERY_TILE>(shared, q, (size_t)a.ldq, t.n_rows, a.HS);
        copy_stage<D, KEYS>(stages, k, v, t.other, t.n_other, kv, a.HS);
    }
    // n_keys counts the document's keys that are left; row i of the warp sees the first diagonal + i of them.
    int n_keys = t.n_other, diagonal = rows > 0 ? t.diagonal + mine : -WARP_QUERIES, unseen = t.n_other - seen;
    for (int stage = 0; n_keys > unseen; n_keys -= KEYS, diagonal -= KEYS, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();  // this step's keys are here, and all have done with those of the step before
        if (n_keys - KEYS > unseen)
            copy_stage<D, KEYS>(stages + (stage ^ 1) * 2 * KEYS * D, k, v, end - n_keys + KEYS, n_keys - KEYS, kv,
                                a.HS);
        if (D <= MOST_HELD && n_keys == t.n_other) hold_rows<D, M>(held, my_q);
        if (diagonal + WARP_QUERIES - 1 <= 0) continue;
        const bf16 *k_tile = stages + stage * 2 * KEYS * D, *v_tile = k_tile + KEYS * D;
        float s[M][KEYS / 8][4];
        unsigned p[M][KEYS / 16][4];
        if (D <= MOST_HELD) products_held<D, M, KEYS>(s, held, k_tile);
        else products<D, M, KEYS>(s, my_q, k_tile);
        if (KEYS > MIN(diagonal, n_keys)) hide_from<M, KEYS / 8>(s, diagonal, n_keys);
        softmax<D, KEYS>(p, s, o, largest, sum, a.scale * LOG2_E);
        multiply<D, D, M, KEYS / 16>(o, p, v_tile, 0);
    }
    int row = t.row + mine;
    finish<D, M>(out + (size_t)row * a.ldo + h * a.HS, lse + (size_t)h * a.Nq + row, &a, rows, my_q, o, largest, sum);
}

// ---- entries

template <int D, int KEYS, class Out>
static void forward(Out* out, float* lse, const Attention* a, Stream s) {
    constexpr size_t bytes = forward_shared_bytes<D, KEYS>();
    TileList list;
    attention_list(&list, QUERY_TILE, NULL, 0, 0, a, s);
    cuda_allow_shared(forward_kernel<D, KEYS, Out>, bytes);
    LAUNCH((forward_kernel<D, KEYS, Out>), tile_grid(&list, a->NH), TILE_THREADS, bytes, cuda_stream(s), out, lse, *a,
           a->NH / a->NKV, list.n, list.tiles);
}

template <class Out>
static void forward_any(Out* out, float* lse, const Attention* a, Stream s) {
    // At HS = 128, 64 keys would not fit into the registers, nor two blocks into the shared memory of an sm_80.
    if (a->HS <= 32) return forward<32, 64>(out, lse, a, s);
    if (a->HS <= 64) return forward<64, 64>(out, lse, a, s);
    return forward<128, 48>(out, lse, a, s);
}

void cuda_attention_forward(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    if (a->Nq == 0 || a->n_docs == 0) return;
    if (!attention_tiles_fit(a, dt) || (uintptr_t)out % 16) return cuda_attention_plain_forward(out, lse, a, dt, s);
    if (attention_is_for_sm90(a)) return cuda_attention_forward_sm90(out, lse, a, s);
    if (a->partial) return forward_any((float*)out, lse, a, s);
    return forward_any((bf16*)out, lse, a, s);
}
