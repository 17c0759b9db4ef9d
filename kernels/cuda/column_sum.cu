// column_sum.cu - sums over the rows of a matrix, in an order that depends on its shape alone: bias gradients, and the
// second stage of every op whose blocks leave partial sums behind.
//
// Stage 1 cuts the matrix into tiles of columns times parts of rows. A block reads 128 bytes of each of its rows, many
// rows at a time, and leaves one partial sum a column. Stage 2 adds the partial sums, less than 1/60 of the elements.
#include "kernels/cuda/cuda.h"

enum {
    THREADS = 256,
    FLIGHT = 8,         // rows that a thread has under way at once
    CHUNK = 256,        // rows of the smallest part
    MOST_TILES = 8192,  // tiles that are enough to fill any GPU: where they are reached, parts become longer
    LINE_BYTES = 128,   // bytes of a row that a block reads
    ADD_COLUMNS = 32,   // of a block of stage 2, one a lane
    ADD_WARPS = 32,     // that share the parts
};

// ---- stage 1

// Threads side by side in a row read 128 bytes of it, or 32 single elements if rows are not aligned.
template <class T, int W>
struct Tile {
    static constexpr int ACROSS = W > 1 ? LINE_BYTES / (W * (int)sizeof(T)) : 32;
    static constexpr int DOWN = THREADS / ACROSS;
    static constexpr int COLUMNS = ACROSS * W;
};

// parts (gridDim.y, C) =: the sums over rows y * part_rows and on.
template <class T, int W>
static __global__ void column_parts_kernel(float* parts, const T* x, int N, int C, int part_rows) {
    constexpr int ACROSS = Tile<T, W>::ACROSS, DOWN = Tile<T, W>::DOWN, COLUMNS = Tile<T, W>::COLUMNS;
    __shared__ float shared_sums[DOWN][COLUMNS];
    int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS;
    size_t first_column = (size_t)blockIdx.x * COLUMNS, c = first_column + across * W;
    size_t begin = (size_t)blockIdx.y * part_rows, end = MIN((size_t)N, begin + part_rows);
    float sum[W] = {};
    for (size_t n = begin + down; n < end && c < (size_t)C; n += DOWN * FLIGHT) {
        Pack<T, W> rows[FLIGHT] = {};
        for (int i = 0; i < FLIGHT; i++)
            if (n + i * DOWN < end) rows[i] = load_pack<W>(x + (n + i * DOWN) * C + c);
        for (int j = 0; j < W; j++) {
            float few = 0;  // summed first, so that no chain of additions is as long as the column
            for (int i = 0; i < FLIGHT; i++) few += widen(rows[i].v[j]);
            sum[j] += few;
        }
    }
    for (int j = 0; j < W; j++) shared_sums[down][across * W + j] = sum[j];
    __syncthreads();
    if (threadIdx.x >= COLUMNS || first_column + threadIdx.x >= (size_t)C) return;
    float total = 0;
    for (int i = 0; i < DOWN; i++) total += shared_sums[i][threadIdx.x];
    parts[(size_t)blockIdx.y * C + first_column + threadIdx.x] = total;
}

// ---- stage 2

// Column c of parts (n_parts, columns) is added to sums[c], from C on to more_sums[c - C], from 2 C on to last_sums.
static __global__ void add_parts_kernel(float* sums, float* more_sums, float* last_sums, const float* parts,
                                        int n_parts, int C, int columns) {
    __shared__ float shared_sums[ADD_WARPS][ADD_COLUMNS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int each = CEIL_DIV(n_parts, ADD_WARPS), end = MIN(n_parts, (warp + 1) * each);
    size_t c = (size_t)blockIdx.x * ADD_COLUMNS + lane;
    const float* column = parts + MIN(c, (size_t)columns - 1);
    float sum = 0;
    for (int part = warp * each; part < end; part++) sum += column[(size_t)part * columns];
    shared_sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= (size_t)columns) return;
    float total = 0;
    for (int i = 0; i < ADD_WARPS; i++) total += shared_sums[i][lane];
    float* to = sums;
    if (c >= (size_t)C) to = c < 2 * (size_t)C ? more_sums : last_sums;
    to[c % C] += total;
}

// norm.cu uses it too: its parts hold dweight, dbias and dx_sums side by side.
void cuda_add_parts(float* sums, float* more_sums, float* last_sums, const float* parts, int n_parts, int C,
                    int columns, cudaStream_t stream) {
    LAUNCH(add_parts_kernel, cuda_blocks((size_t)columns, ADD_COLUMNS), 32 * ADD_WARPS, 0, stream, sums, more_sums,
           last_sums, parts, n_parts, C, columns);
}

// ---- host

// Returns the partial sums that N rows leave if a row has `tiles` tiles, of 64 columns or fewer. Unless there is only
// one, they are at most MOST_TILES in all tiles.
static size_t parts_of(size_t N, size_t tiles) {
    return MIN(CEIL_DIV(N, (size_t)CHUNK), MAX((size_t)1, MOST_TILES / tiles));
}

void cuda_column_sum(float* sums, const void* x, int N, int C, DType dt, Stream s) {
    if (N == 0) return;
    with_form(dt, {x}, (size_t)C, [=](auto form) {
        typedef typename decltype(form)::T T;
        constexpr int W = decltype(form)::W;
        size_t tiles = CEIL_DIV((size_t)C, (size_t)(Tile<T, W>::COLUMNS)), n_parts = parts_of((size_t)N, tiles);
        int part_rows = (int)CEIL_DIV((size_t)N, n_parts);
        n_parts = CEIL_DIV((size_t)N, (size_t)part_rows);
        float* parts = (float*)cuda_scratch(n_parts * C * sizeof(float));
        LAUNCH((column_parts_kernel<T, W>), dim3((unsigned)tiles, (unsigned)n_parts), THREADS, 0, cuda_stream(s), parts,
               (const T*)x, N, C, part_rows);
        cuda_add_parts(sums, NULL, NULL, parts, (int)n_parts, C, C, cuda_stream(s));
    });
}
