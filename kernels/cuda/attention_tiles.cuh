// attention_tiles.cuh - code that the attention kernels on tensor cores share: the list of tiles, tiles of bf16 rows in
// shared memory, and products of such tiles by one warp.
//
// A tile in shared memory holds rows of D elements (D = 32, 64 or 128; a head size below D is filled up with zeros).
// Its 16-byte chunks are permuted within each line of 128 bytes, so that the 8 rows of one ldmatrix, and 8 lanes that
// copy along a row, fall into different banks. Every product is "rows times columns": a warp owns some rows of the
// result, 16 to a fragment, and walks over columns that all warps of the block share. Scores and probabilities stay
// in registers: the fp32 result of one mma is, rounded and packed, the left operand of the next (Dao 2023).
//
// Probabilities and dS are rounded to bf16 on the way, one part in 256 at most. A hidden pair has P = 0, but 0 * NaN is
// NaN: a NaN in a row can reach the rows of the same document that meet its tile, never another document.
#pragma once
#include "kernels/cuda/cuda.h"

// ---- which calls these kernels take; the others go to attention_plain.cu

// Returns 1 if rows of all heads begin at multiples of 16 bytes and the head fits into a tile. A scale that is not
// positive would turn the maximum of the scaled scores into a minimum.
static inline int attention_tiles_fit(const Attention* a, DType dt) {
    return dt == DT_BF16 && a->HS <= 128 && (a->HS | a->ldq | a->ldkv | a->ldo) % 8 == 0 && a->scale > 0 &&
           ((uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v) % 16 == 0;
}

// Returns 1 if a call that these take goes to attention_sm90.cu.
static inline int attention_is_for_sm90(const Attention* a) {
    return cuda.wgmma && a->HS >= 64 && a->HS % 16 == 0 && a->Nq > 0 && a->Nk > 0;
}

// ---- the list of tiles: rows of one document that one block works on, for each head

// Row i of the tile and row j of the other side belong to a pair (query, key) that sees each other when j < n_other
// and
//   tile of queries: j < i + diagonal        tile of keys: i < j + diagonal
struct __align__(16) Tile {
    int row, n_rows;     // rows of the tile in the packed tensor
    int other, n_other;  // rows of its document on the other side
    int diagonal;        // so large that it hides nothing when the document is not causal
    int before, n_own;   // rows of its document before the tile, and in all, on its own side
    int unused;
};

enum { QUERY_TILE = 128 };  // queries of a tile, other than on Hopper; the keys of one depend on the head size

typedef struct TileList {
    int most;  // tiles that there may be, known on the host
    int* n;    // tiles that there are
    Tile* tiles;
} TileList;

// Makes the lists of query tiles, of key tiles, or both; the other is NULL. Tiles with the most work come first. With
// in_turn documents with the most queries do, and the key tiles of one come from its last to its first. Lists stay as
// long as calls have the same Attention.row, so that the layers of a model make them once.
void attention_list(TileList* queries, int rows_of_query_tile, TileList* keys, int rows_of_key_tile, int in_turn,
                    const Attention* a, Stream s);

// Returns a block for every tile and head: blockIdx.x is the head, so that the blocks of a tile start one after another
// and find in the cache what their heads share. y alone would not count all tiles.
static inline dim3 tile_grid(const TileList* list, int heads) {
    enum { MOST_Y = 1 << 15 };
    return dim3((unsigned)heads, (unsigned)MIN(list->most, (int)MOST_Y), cuda_blocks((size_t)list->most, MOST_Y));
}
__device__ __forceinline__ int tile_index() { return (int)(blockIdx.z * gridDim.y + blockIdx.y); }

// ---- the backward pass: the statistics of a query, P = 2^(scale log2(e) q.k - lse2). lse2 is +infinity for a query
// that sees no key: P = 0.

struct __align__(8) Statistics {
    float lse2, D;
};

// Fills them (NH,Nq). zero_dq, if not NULL: the gradient of a query that sees no key becomes 0.
void attention_statistics(Statistics* statistics, bf16* zero_dq, const bf16* dout, const bf16* out, const float* lse,
                          const Attention* a, cudaStream_t stream);

// ---- tiles in shared memory

enum { TILE_THREADS = 128, TILE_WARPS = TILE_THREADS / 32 };

// Returns where 16-byte chunk `chunk` of a row begins, in elements from the tile's first row.
template <int D>
__device__ __forceinline__ unsigned chunk_at(unsigned row, unsigned chunk) {
    constexpr unsigned rows_of_line = D < 64 ? 64 / D : 1, chunks = D < 64 ? D / 8 : 8;
    return row * D + 8 * (chunk / chunks * chunks + (chunk % chunks ^ row / rows_of_line % chunks));
}

// Moves from `at`, in chunk `first` of a row, to its place in chunk first + chunk; the two have no bits in common.
__device__ __forceinline__ unsigned farther(unsigned at, unsigned chunk) {
    return (at ^ 8 * (chunk % 8)) + 8 * (chunk / 8 * 8);
}

__device__ __forceinline__ unsigned lane_index() { return threadIdx.x % 32; }

// Begins to copy `rows` rows of HS elements, ld apart, to a tile of ROWS rows; the rest becomes zero, and its addresses
// are never read.
template <int D, int ROWS>
__device__ __forceinline__ void copy_rows(bf16* tile, const bf16* from, size_t ld, int rows, int HS) {
    constexpr unsigned step = TILE_THREADS / (D / 8);  // a multiple of 8: the permutation is the same for all steps
    unsigned row = threadIdx.x / (D / 8), chunk = threadIdx.x % (D / 8);
    int left = 8 * (int)chunk < HS ? rows - (int)row : 0;
    tile += chunk_at<D>(row, chunk);
    from += row * ld + 8 * chunk;
    UNROLL
    for (unsigned i = 0; i < ROWS; i += step, from += step * ld)
        cp_async_16(tile + i * D, from, (int)i < left ? 16 : 0);
}

// Begins to copy rows `row` and on of a head of two tensors to one stage: two tiles, one after the other. What depends
// on the row is added last, so that fewer pointers are kept in registers.
struct Source {
    const void* p;
    int ld;
};
template <int D, int ROWS>
__device__ __forceinline__ void copy_stage(bf16* stage, Source x, Source y, int row, int n_rows, int h, int HS) {
    copy_rows<D, ROWS>(stage, (const bf16*)x.p + ((size_t)row * x.ld + h * HS), (size_t)x.ld, n_rows, HS);
    copy_rows<D, ROWS>(stage + ROWS * D, (const bf16*)y.p + ((size_t)row * y.ld + h * HS), (size_t)y.ld, n_rows, HS);
    cp_async_commit();
}

// Loads a left operand: 16 rows of a tile, columns 16 k and on.
template <int D>
__device__ __forceinline__ void load_left(unsigned a[4], const bf16* rows, int k) {
    unsigned lane = lane_index(), at = chunk_at<D>(lane % 16, lane / 16);
    ldmatrix_x4(a, rows + farther(at, 2 * (unsigned)k));
}

// s (16 M, N) += left (16 M, 16) columns (N, 16)^T: columns 16 k and on of the first N rows of a tile.
template <int D, int M, int N>
__device__ __forceinline__ void multiply_transposed(float s[M][N / 8][4], const unsigned left[M][4],
                                                    const bf16* columns, int k) {
    unsigned lane = lane_index(), at = chunk_at<D>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    UNROLL
    for (int n = 0; n < N / 8; n += 2) {
        unsigned b[4];
        ldmatrix_x4(b, columns + farther(at, 2 * (unsigned)k) + 8 * n * D);
        UNROLL
        for (int m = 0; m < M; m++) {
            mma_m16n8k16(s[m][n], left[m], b);
            mma_m16n8k16(s[m][n + 1], left[m], b + 2);
        }
    }
}

// o (16 M, W) += p (16 M, 16 K) rows (16 K, W): columns first_chunk * 8 and on of a tile.
template <int D, int W, int M, int K>
__device__ __forceinline__ void multiply(float o[M][W / 8][4], const unsigned p[M][K][4], const bf16* rows,
                                         unsigned first_chunk) {
    unsigned lane = lane_index(), at = farther(chunk_at<D>(lane % 16, lane / 16), first_chunk);
    UNROLL
    for (int k = 0; k < K; k++) {
        UNROLL
        for (int n = 0; n < W / 8; n += 2) {
            unsigned b[4];
            ldmatrix_x4_transposed(b, rows + farther(at, (unsigned)n) + 16 * k * D);
            UNROLL
            for (int m = 0; m < M; m++) {
                mma_m16n8k16(o[m][n], p[m][k], b);
                mma_m16n8k16(o[m][n + 1], p[m][k], b + 2);
            }
        }
    }
}

#define LOG2_E 1.44269504f

template <int M, int N>
__device__ __forceinline__ void clear(float x[M][N][4]) {
    UNROLL
    for (int m = 0; m < M; m++) {
        UNROLL
        for (int n = 0; n < N; n++) {
            UNROLL
            for (int i = 0; i < 4; i++) x[m][n][i] = 0;
        }
    }
}

// s (16 M, N) = rows (16 M, D) columns (N, D)^T, of two tiles.
template <int D, int M, int N>
__device__ __forceinline__ void products(float s[M][N / 8][4], const bf16* rows, const bf16* columns) {
    clear<M, N / 8>(s);
    UNROLL
    for (int k = 0; k < D / 16; k++) {
        unsigned left[M][4];
        UNROLL
        for (int m = 0; m < M; m++) load_left<D>(left[m], rows + 16 * m * D, k);
        multiply_transposed<D, M, N>(s, left, columns, k);
    }
}

// Held rows, which a warp uses often, lie in registers, if these are enough.
enum { MOST_HELD = 64 };  // elements of such a row

template <int D, int M>
__device__ __forceinline__ void hold_rows(unsigned held[D / 16][M][4], const bf16* rows) {
    UNROLL
    for (int i = 0; i < D / 16 * M; i++) load_left<D>(held[i / M][i % M], rows + i % M * 16 * D, i / M);
}

template <int D, int M, int N>
__device__ __forceinline__ void products_held(float s[M][N / 8][4], const unsigned held[D / 16][M][4],
                                              const bf16* columns) {
    clear<M, N / 8>(s);
    UNROLL
    for (int k = 0; k < D / 16; k++) multiply_transposed<D, M, N>(s, held[k], columns, k);
}

// Packs a result as the left operand of the next product.
template <int M, int N>
__device__ __forceinline__ void pack_left(unsigned p[M][N / 2][4], const float s[M][N][4]) {
    UNROLL
    for (int m = 0; m < M; m++) {
        UNROLL
        for (int n = 0; n < N; n++) {
            p[m][n / 2][n % 2 * 2] = pack_bf16(s[m][n][0], s[m][n][1]);
            p[m][n / 2][n % 2 * 2 + 1] = pack_bf16(s[m][n][2], s[m][n][3]);
        }
    }
}

// Hides scores: row i keeps the first diagonal + i columns, and not more than n; the rest becomes -infinity.
template <int M, int N>
__device__ __forceinline__ void hide_from(float s[M][N][4], int diagonal, int n_columns) {
    int lane = (int)lane_index();
    UNROLL
    for (int m = 0; m < M; m++) {
        UNROLL
        for (int j = 0; j < 4; j++) {
            int kept = MIN(n_columns, diagonal + 16 * m + lane / 4 + 8 * (j / 2)) - lane % 4 * 2 - j % 2;
            UNROLL
            for (int n = 0; n < N; n++)
                if (8 * n >= kept) s[m][n][j] = -INFINITY;
        }
    }
}

// Hides transposed scores: column i keeps the rows before diagonal + i, and not more than n_rows.
template <int M, int N>
__device__ __forceinline__ void hide_upto(float s[M][N][4], int diagonal, int n_rows) {
    int lane = (int)lane_index();
    UNROLL
    for (int m = 0; m < M; m++) {
        UNROLL
        for (int j = 0; j < 4; j++) {
            int row = 16 * m + lane / 4 + 8 * (j / 2), hidden = row - diagonal + 1 - lane % 4 * 2 - j % 2;
            if (row >= n_rows) hidden = 8 * N;
            UNROLL
            for (int n = 0; n < N; n++)
                if (8 * n < hidden) s[m][n][j] = -INFINITY;
        }
    }
}

// Rounds a warp's result (16 M, D) and writes its first `rows` rows, HS columns each, to memory with 16 bytes a lane,
// by way of the warp's own 16 M rows of a tile that it alone still uses.
template <int D, int M>
__device__ __forceinline__ void store_rows(bf16* to, size_t ld, int rows, int HS, bf16* tile,
                                           const float x[M][D / 8][4], float factor) {
    unsigned lane = lane_index(), at = chunk_at<D>(lane / 4, 0) + lane % 4 * 2;
    __syncwarp();
    UNROLL
    for (int m = 0; m < M; m++) {
        UNROLL
        for (int n = 0; n < D / 8; n++) {
            UNROLL
            for (int half = 0; half < 2; half++) {
                const float* two = x[m][n] + 2 * half;
                *(unsigned*)(tile + (16 * m + 8 * half) * D + farther(at, (unsigned)n)) =
                    pack_bf16(two[0] * factor, two[1] * factor);
            }
        }
    }
    __syncwarp();
    constexpr unsigned step = 32 / (D / 8);
    unsigned row = lane / (D / 8), chunk = lane % (D / 8);
    if (8 * (int)chunk >= HS) rows = 0;
    to += row * ld + 8 * chunk;
    UNROLL
    for (unsigned i = 0; i < 16 * M; i += step, to += step * ld)
        if ((int)(row + i) < rows) store_pack(to, load_pack(tile + chunk_at<D>(row + i, chunk)));
}

// Writes it in fp32, or with ADD adds it to what is there. A lane has 8 bytes of a row side by side, so four
// lanes fill a sector of memory.
template <int D, int M, bool ADD>
__device__ __forceinline__ void store_floats(float* to, size_t ld, int rows, int HS, const float x[M][D / 8][4],
                                             float factor) {
    unsigned lane = lane_index();
    to += lane / 4 * ld + lane % 4 * 2;
    UNROLL
    for (int i = 0; i < 2 * M; i++, to += 8 * ld) {
        if (8 * i + (int)lane / 4 >= rows) continue;
        float2 two[D / 8];
        UNROLL
        for (int n = 0; n < D / 8; n++) two[n] = ADD && 8 * n < HS ? *(float2*)(to + 8 * n) : make_float2(0, 0);
        UNROLL
        for (int n = 0; n < D / 8; n++) {
            const float* mine = x[i / 2][n] + i % 2 * 2;
            two[n].x += mine[0] * factor;
            two[n].y += mine[1] * factor;
            if (8 * n < HS) *(float2*)(to + 8 * n) = two[n];
        }
    }
}

// Divides by the sums, writes out and lse; queries that see no key get 0 and -infinity. tile: the warp's rows of Q.
// Out: bf16, or float for a part of a larger attention.
template <int D, int M, class Out>
__device__ __forceinline__ void finish(Out* out, float* lse, const Attention* a, int rows, bf16* tile,
                                       float o[M][D / 8][4], const float largest[M][2], float sum[M][2]) {
    int lane = (int)lane_index();
    UNROLL
    for (int i = 0; i < 2 * M; i++) {
        int m = i / 2, half = i % 2, row = 16 * m + 8 * half + lane / 4;
        float total = sum[m][half];
        total += __shfl_xor_sync(FULL_WARP, total, 1);
        total += __shfl_xor_sync(FULL_WARP, total, 2);
        float factor = total == 0 ? 0.0f : 1.0f / total;
        UNROLL
        for (int n = 0; n < D / 8; n++) o[m][n][2 * half] *= factor, o[m][n][2 * half + 1] *= factor;
        if (lane % 4 == 0 && row < rows) lse[row] = total == 0 ? -INFINITY : largest[m][half] * a->scale + logf(total);
    }
    if constexpr (sizeof(Out) == sizeof(bf16)) store_rows<D, M>(out, (size_t)a->ldo, rows, a->HS, tile, o, 1.0f);
    else store_floats<D, M, false>(out, (size_t)a->ldo, rows, a->HS, o, 1.0f);
}
