// columns.cu - moves of columns: a matrix cut to some of its columns, and spread out again.
//
// Limited by memory: each element that moves is read once and written once, 8 bytes in fp32 and 4 in bf16, and an index
// of 4 bytes serves ROWS rows. Neighbouring lanes take neighbouring columns of out, so that writes are always whole
// lines and reads are as far as the list runs on; elements move one by one, since nothing is known of the list, which
// also makes every alignment the same. The mean of a row needs a pass over x before it: a block then takes one row, and
// finds it in its cache when it reads it again.
#include "kernels/cuda/cuda.h"

enum {
    WARPS = 8,
    THREADS = 32 * WARPS,  // most of a block
    ROWS = 4,              // rows of a warp that moves columns
    COLUMNS_IN_FLIGHT = 4  // elements of a row that a thread loads at once
};

// A warp takes ROWS rows and 32 COLUMNS_IN_FLIGHT columns. Where source is negative: KEEP leaves out as it is, else it
// becomes zero.
template <class T, bool KEEP>
static __global__ void move_columns_kernel(T* out, const T* x, const int* source, int N, int columns, int ldx) {
    size_t row = ((size_t)blockIdx.x * WARPS + threadIdx.x / 32) * ROWS;
    size_t first = (size_t)blockIdx.y * 32 * COLUMNS_IN_FLIGHT + threadIdx.x % 32;
    int rows = (int)MIN((size_t)ROWS, row < (size_t)N ? N - row : 0), from[COLUMNS_IN_FLIGHT];
    T moved[ROWS][COLUMNS_IN_FLIGHT];
    for (int k = 0; k < COLUMNS_IN_FLIGHT; k++)
        from[k] = first + 32 * k < (size_t)columns ? source[first + 32 * k] : -1;
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < COLUMNS_IN_FLIGHT; k++)
            moved[r][k] = r < rows && from[k] >= 0 ? x[(row + r) * ldx + from[k]] : T(0);
    for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < COLUMNS_IN_FLIGHT; k++) {
            size_t c = first + 32 * k;
            if (r < rows && c < (size_t)columns && (!KEEP || from[k] >= 0)) out[(row + r) * columns + c] = moved[r][k];
        }
    }
}

template <class T, bool KEEP>
static void move_columns(void* out, const void* x, const int* source, int N, int columns, int ldx, Stream s) {
    dim3 grid(cuda_blocks((size_t)N, WARPS * ROWS), cuda_blocks((size_t)columns, 32 * COLUMNS_IN_FLIGHT));
    LAUNCH((move_columns_kernel<T, KEEP>), grid, THREADS, 0, cuda_stream(s), (T*)out, (const T*)x, source, N, columns,
           ldx);
}

// Every thread gets the sum over the block.
static __device__ __forceinline__ float block_sum(float x) {
    __shared__ float warps[WARPS];
    int lane = threadIdx.x % 32;
    x = warp_sum(x);
    if (lane == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(lane < (int)blockDim.x / 32 ? warps[lane] : 0.0f);
}

// A block takes a row.
template <class T>
static __global__ void fill_with_mean_kernel(T* out, const T* x, const int* source, int columns, int n) {
    size_t stride = blockDim.x;
    float sum = 0;
    x += (size_t)blockIdx.x * n;
    out += (size_t)blockIdx.x * columns;
    for (size_t i = threadIdx.x; i < (size_t)n; i += COLUMNS_IN_FLIGHT * stride) {
        T part[COLUMNS_IN_FLIGHT];
        for (int k = 0; k < COLUMNS_IN_FLIGHT; k++) part[k] = i + k * stride < (size_t)n ? x[i + k * stride] : T(0);
        for (int k = 0; k < COLUMNS_IN_FLIGHT; k++) sum += widen(part[k]);
    }
    T mean = narrow<T>(block_sum(sum) / (float)n);
    for (size_t i = threadIdx.x; i < (size_t)columns; i += COLUMNS_IN_FLIGHT * stride) {
        T moved[COLUMNS_IN_FLIGHT];
        for (int k = 0; k < COLUMNS_IN_FLIGHT; k++) {
            int from = i + k * stride < (size_t)columns ? source[i + k * stride] : -1;
            moved[k] = from >= 0 ? x[from] : mean;
        }
        for (int k = 0; k < COLUMNS_IN_FLIGHT; k++)
            if (i + k * stride < (size_t)columns) out[i + k * stride] = moved[k];
    }
}

template <class T>
static void fill_with_mean(void* out, const void* x, const int* source, int N, int columns, int n, Stream s) {
    unsigned threads = ROUND_UP(cuda_blocks((size_t)MAX(columns, n), COLUMNS_IN_FLIGHT), 32u);
    LAUNCH((fill_with_mean_kernel<T>), (unsigned)N, MIN(threads, (unsigned)THREADS), 0, cuda_stream(s), (T*)out,
           (const T*)x, source, columns, n);
}

void cuda_gather_columns(void* out, const void* x, const int* columns, int N, int n, int ldx, DType dt, Stream s) {
    if (N == 0 || n == 0) return;
    auto run = dt == DT_BF16 ? move_columns<bf16, false> : move_columns<float, false>;
    run(out, x, columns, N, n, ldx, s);
}

void cuda_scatter_columns(void* out, const void* x, const int* source, ColumnFill fill, int N, int K, int n, DType dt,
                          Stream s) {
    if (N == 0 || K == 0) return;
    auto run = dt == DT_BF16 ? move_columns<bf16, false> : move_columns<float, false>;
    if (fill == FILL_MEAN) run = dt == DT_BF16 ? fill_with_mean<bf16> : fill_with_mean<float>;
    if (fill == FILL_KEEP) run = dt == DT_BF16 ? move_columns<bf16, true> : move_columns<float, true>;
    run(out, x, source, N, K, n, s);
}
