// embedding.cu - rows of the token and position tables, and their gradients.
//
// Forward is limited by memory: 3 N C elements, without positions (wpe NULL) 2 N C. Backward, naively, one row after
// another:
//
//   for n < N, c < C:   dwte[tokens[n]][c] += dout[n][c],  dwpe[positions[n]][c] += dout[n][c]
//
// In parallel, rows that share a token would add to the same place in any order. So rows are first sorted by token,
// stably; then a warp owns a run of rows with equal tokens, and adds them in row order, which gives the bits of the
// loop:
//
//   row       0  1  2  3  4             sorted rows    1  4 | 3 | 0  2
//   token     7  2  7  5  2             token          2  2 | 5 | 7  7      three runs
//
// The sort is a radix sort by digits of 8 bits from the lowest on: blocks of 1024 rows count their digits, the counts
// are summed by digit and block, and every row goes to its place. dout is read once, each table row that occurs is read
// and written once. Positions are done in the same way.
#include "kernels/cuda/cuda.h"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    DIGIT_BITS = 8,
    DIGITS = 1 << DIGIT_BITS,
    ROUNDS = 4,  // rows of a thread in a pass of the sort
    BLOCK_ROWS = THREADS * ROUNDS,
    RUN_STARTS = 8,  // sorted places whose runs a warp adds
    FEW_ROWS = 4,    // of a short run
};

// ---- forward: a warp a row

template <class T, int W>
static __global__ void forward_kernel(T* __restrict__ out, const int* __restrict__ tokens,
                                      const int* __restrict__ positions, const T* __restrict__ wte,
                                      const T* __restrict__ wpe, int N, int C) {
    size_t n = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (n >= (size_t)N) return;
    const T *token = wte + (size_t)tokens[n] * C, *position = wpe ? wpe + (size_t)positions[n] * C : NULL;
    for (int c = threadIdx.x % 32 * W; c < C; c += 32 * W) {
        Pack<T, W> x = load_pack<W>(token + c), y = {};
        if (position) y = load_pack<W>(position + c);
        for (int j = 0; j < W; j++) x.v[j] = narrow<T>(widen(x.v[j]) + widen(y.v[j]));
        store_pack(out + n * C + c, x);
    }
}

void cuda_embedding_forward(void* out, const int* tokens, const int* positions, const void* wte, const void* wpe, int N,
                            int C, DType dt, Stream s) {
    if (N == 0) return;
    with_form(dt, {out, wte, wpe}, (size_t)C, [=](auto form) {
        typedef typename decltype(form)::T T;
        constexpr int W = decltype(form)::W;
        LAUNCH((forward_kernel<T, W>), cuda_blocks((size_t)N, WARPS), THREADS, 0, cuda_stream(s), (T*)out, tokens,
               positions, (const T*)wte, (const T*)wpe, N, C);
    });
}

// ---- a stable sort of rows by key

// A warp's share of its block's rows: 32 ROUNDS of them one after another, `key` and `digit` by round and lane. Beyond
// the last row the digit is DIGITS. All negative keys become -1, whose digits are the highest.
typedef struct SortRows {
    size_t first;  // row of round 0 and this lane
    int key[ROUNDS], digit[ROUNDS];
    int rank[ROUNDS];  // rows of the same digit before it in the warp
} SortRows;

// Fills rows, and count (DIGITS + 1), the warp's own: rows by digit.
static __device__ SortRows rank_rows(int* count, const int* keys, int shift, int N) {
    SortRows rows;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    rows.first = (size_t)blockIdx.x * BLOCK_ROWS + warp * 32 * ROUNDS + lane;
    for (int digit = lane; digit <= DIGITS; digit += 32) count[digit] = 0;
    for (int i = 0; i < ROUNDS; i++) {
        size_t n = rows.first + 32 * i;
        rows.key[i] = n < (size_t)N ? MAX(keys[n], -1) : 0;
        rows.digit[i] = n < (size_t)N ? rows.key[i] >> shift & (DIGITS - 1) : DIGITS;
    }
    __syncwarp();
    for (int i = 0; i < ROUNDS; i++) {
        int* mine = &count[rows.digit[i]];
        unsigned same = __match_any_sync(FULL_WARP, rows.digit[i]), before = same & ((1u << lane) - 1);
        int earlier = *mine;
        rows.rank[i] = earlier + __popc(before);
        __syncwarp();
        if (before == 0) *mine = earlier + __popc(same);
        __syncwarp();
    }
    return rows;
}

// counts (DIGITS, gridDim.x) =: rows of each block by digit.
static __global__ void count_digits_kernel(int* counts, const int* keys, int shift, int N) {
    __shared__ int warp_counts[WARPS][DIGITS + 1];
    rank_rows(warp_counts[threadIdx.x / 32], keys, shift, N);
    __syncthreads();
    for (int digit = threadIdx.x; digit < DIGITS; digit += THREADS) {
        int count = 0;
        for (int warp = 0; warp < WARPS; warp++) count += warp_counts[warp][digit];
        counts[(size_t)digit * gridDim.x + blockIdx.x] = count;
    }
}

// Each count becomes the sum of those of earlier blocks, totals (DIGITS) = that of all. A warp takes a digit.
static __global__ void sum_counts_kernel(int* counts, int* totals, int n_blocks) {
    int digit = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, total = 0;
    counts += (size_t)digit * n_blocks;
    for (int first = 0; first < n_blocks; first += 32) {
        int block = first + lane, count = block < n_blocks ? counts[block] : 0, sum = sum_up_to_lane(count);
        if (block < n_blocks) counts[block] = total + sum - count;
        total += __shfl_sync(FULL_WARP, sum, 31);
    }
    if (lane == 0) totals[digit] = total;
}

// Every row goes after those with a lower digit, those of earlier blocks and those of earlier warps. `rows` is NULL in
// the first pass: row n is n itself.
static __global__ void scatter_rows_kernel(int* sorted_keys, int* sorted_rows, const int* keys, const int* rows,
                                           const int* counts, const int* totals, int shift, int N) {
    __shared__ int warp_counts[WARPS][DIGITS + 1], warp_totals[WARPS];
    static_assert(THREADS == DIGITS, "a thread a digit");
    int digit = threadIdx.x, warp = threadIdx.x / 32;
    SortRows mine = rank_rows(warp_counts[warp], keys, shift, N);
    int total = totals[digit], place = sum_up_to_lane(total);
    if (threadIdx.x % 32 == 31) warp_totals[warp] = place;
    __syncthreads();
    place += counts[(size_t)digit * gridDim.x + blockIdx.x] - total;
    for (int i = 0; i < warp; i++) place += warp_totals[i];
    for (int i = 0; i < WARPS; i++) {  // counts become places
        int count = warp_counts[i][digit];
        warp_counts[i][digit] = place;
        place += count;
    }
    __syncthreads();
    for (int i = 0; i < ROUNDS; i++) {
        size_t n = mine.first + 32 * i;
        if (n >= (size_t)N) continue;
        int to = warp_counts[warp][mine.digit[i]] + mine.rank[i];
        sorted_keys[to] = mine.key[i];
        sorted_rows[to] = rows ? rows[n] : (int)n;
    }
}

// Scratch of a sort; [2] because each pass reads what the one before wrote.
typedef struct Sort {
    int *keys[2], *rows[2], *counts, *totals;
} Sort;

static size_t sort_ints(size_t N) { return 4 * N + DIGITS * (CEIL_DIV(N, (size_t)BLOCK_ROWS) + 1); }

size_t cuda_embedding_scratch_bytes(const KernelLimits* limits) { return sort_ints((size_t)limits->N) * sizeof(int); }

static Sort sort_scratch(size_t N) {
    Sort sort;
    int* ints = (int*)cuda_scratch(sort_ints(N) * sizeof(int));
    for (int i = 0; i < 2; i++) sort.keys[i] = ints + 2 * i * N, sort.rows[i] = ints + (2 * i + 1) * N;
    sort.totals = ints + 4 * N;
    sort.counts = sort.totals + DIGITS;
    return sort;
}

// Sorts rows 0 .. N by keys in [0, end), and after them those with negative keys; returns which of sort's two buffers
// then holds the result. The passes go over the digits of `end` itself, so that no key is all ones, like -1.
static int sort_rows(const Sort* sort, const int* keys, int end, int N, cudaStream_t stream) {
    unsigned blocks = cuda_blocks((size_t)N, BLOCK_ROWS);
    const int* rows = NULL;
    int to = 1;
    for (int shift = 0; shift == 0 || (shift < 31 && end >> shift > 0); shift += DIGIT_BITS) {
        to = !to;
        LAUNCH(count_digits_kernel, blocks, THREADS, 0, stream, sort->counts, keys, shift, N);
        LAUNCH(sum_counts_kernel, DIGITS / WARPS, THREADS, 0, stream, sort->counts, sort->totals, (int)blocks);
        LAUNCH(scatter_rows_kernel, blocks, THREADS, 0, stream, sort->keys[to], sort->rows[to], keys, rows,
               sort->counts, sort->totals, shift, N);
        keys = sort->keys[to];
        rows = sort->rows[to];
    }
    return to;
}

// ---- backward

// Adds `count` rows, at most ROWS, whose indices the lanes from `lane` on hold, in order, after asking for all of them.
// Lanes beyond the last channel only hold indices. Words are loaded, not elements: a word that the compiler took apart
// beside its load would be waited for before the next one is asked for.
template <int ROWS, class T, int W>
static __device__ __forceinline__ void add_rows(Pack<float, W>* sum, const T* dout, int row, int lane, int count,
                                                size_t c, int C) {
    Word<sizeof(Pack<T, W>)> words[ROWS];
    for (int i = 0; i < ROWS; i++) {
        size_t n = (size_t)__shfl_sync(FULL_WARP, row, lane + i);
        words[i] = {};
        if (i < count && c < (size_t)C) words[i] = *(decltype(&words[i]))(dout + n * C + c);
    }
    for (int i = 0; i < ROWS; i++) {
        Pack<T, W> d;
        memcpy(&d, &words[i], sizeof d);
        for (int j = 0; j < W; j++) sum->v[j] = i < count ? sum->v[j] + widen(d.v[j]) : sum->v[j];
    }
}

// The sorted keys and rows at 32 places, one a lane; key -1 beyond the last.
typedef struct Window {
    int key, row;
} Window;

static __device__ __forceinline__ Window load_window(const int* keys, const int* rows, size_t first, int N) {
    size_t at = first + threadIdx.x % 32;
    return at < (size_t)N ? Window{keys[at], rows[at]} : Window{-1, 0};
}

// A warp adds the runs that begin at its RUN_STARTS sorted places, wherever they end, in its slice of 32 W channels:
// few bytes of a row a lane, so that it can have 32 rows under way, since a long run is one chain of additions.
template <class T, int W>
static __global__ void add_runs_kernel(float* table, const T* dout, const int* keys, const int* rows, int N, int C) {
    int lane = threadIdx.x % 32;
    size_t begin = ((size_t)blockIdx.x * WARPS + threadIdx.x / 32) * RUN_STARTS;
    size_t c = ((size_t)blockIdx.y * 32 + lane) * W;
    if (begin >= (size_t)N) return;
    Window here = load_window(keys, rows, begin, N);
    int key_before = __shfl_up_sync(FULL_WARP, here.key, 1);
    if (lane == 0) key_before = begin > 0 ? keys[begin - 1] : -1;
    unsigned starts = __ballot_sync(FULL_WARP, lane < RUN_STARTS && here.key != key_before);
    for (; starts; starts &= starts - 1) {
        int from = __ffs(starts) - 1, key = __shfl_sync(FULL_WARP, here.key, from);
        if (key < 0) break;  // beyond the last row that counts
        Pack<float, W> sum;
        float* to = table + (size_t)key * C + c;
        if (c < (size_t)C) sum = load_pack<W>((const float*)to);
        Window window = here;
        for (size_t first = begin;; from = 0) {
            int count = __popc(__ballot_sync(FULL_WARP, window.key == key));
            bool more = from + count == 32;  // the run may go on in the next window: ask for it early
            Window next = window;
            if (more) next = load_window(keys, rows, first += 32, N);
            if (count <= FEW_ROWS) add_rows<FEW_ROWS, T, W>(&sum, dout, window.row, from, count, c, C);
            else add_rows<32, T, W>(&sum, dout, window.row, from, count, c, C);
            if (!more) break;
            window = next;
        }
        if (c < (size_t)C) *(Pack<float, W>*)to = sum;
    }
}

// table[keys[n]] += dout[n], in the order of n, if keys[n] is not negative; it is below end.
static void add_by_key(float* table, const void* dout, const int* keys, int end, int N, int C, DType dt,
                       cudaStream_t stream) {
    Sort sort = sort_scratch((size_t)N);
    int sorted = sort_rows(&sort, keys, end, N, stream);
    with_dtype(dt, [=](auto zero) {
        typedef decltype(zero) T;
        bool pairs =
            (uintptr_t)dout % (2 * sizeof(T)) == 0 && (uintptr_t)table % (2 * sizeof(float)) == 0 && C % 2 == 0;
        auto kernel = pairs ? add_runs_kernel<T, 2> : add_runs_kernel<T, 1>;
        dim3 grid(cuda_blocks((size_t)N, WARPS * RUN_STARTS), cuda_blocks((size_t)C, pairs ? 64 : 32));
        LAUNCH(kernel, grid, THREADS, 0, stream, table, (const T*)dout, sort.keys[sorted], sort.rows[sorted], N, C);
    });
}

// The padded vocabulary is a matmul's output, so limits.OC bounds the tokens.
void cuda_embedding_backward(float* dwte, float* dwpe, const void* dout, const int* tokens, const int* positions, int N,
                             int C, DType dt, Stream s) {
    if (N == 0) return;
    if (tokens) add_by_key(dwte, dout, tokens, cuda.limits.OC, N, C, dt, cuda_stream(s));
    if (positions) add_by_key(dwpe, dout, positions, cuda.limits.context, N, C, dt, cuda_stream(s));
}
