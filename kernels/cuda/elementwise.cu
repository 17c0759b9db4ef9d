// elementwise.cu - GELU, SwiGLU and their gradients, sums, conversions, moves of rows, heads and columns, the merge of
// two attentions.
//
// All are limited by memory, which each tensor crosses once. A thread takes 16 bytes at a time of the wider type, and
// has all its loads under way before it computes. Tensors that do not begin at 16 bytes, and the rest after the last
// 16, are read element by element instead.
#include "kernels/cuda/cuda.h"

enum {
    THREADS = 256,
    GROUPS = 2,             // groups of elements that a thread of map_kernel loads at once
    WARPS = THREADS / 32,   // of a block; one that moves rows or heads takes a row a warp
    UNITS_IN_FLIGHT = 4,    // units of a row that a lane of it loads at once
    MOVED_ROWS = 4,         // rows of a warp that moves columns
    COLUMNS_IN_FLIGHT = 4,  // elements of a row that a thread of it loads at once
};

// ---- maps: out[i] = f(a[i], b[i])

typedef enum Map { MAP_GELU, MAP_TIMES_SLOPE, MAP_SUM, MAP_SAME } Map;

template <Map MAP>
__device__ __forceinline__ float map_of(float a, float b) {
    if (MAP == MAP_GELU) return gelu_of(a);
    if (MAP == MAP_TIMES_SLOPE) return a * gelu_slope(b);
    return MAP == MAP_SUM ? a + b : a;
}

// A thread's groups are STRIDE apart; n is a multiple of WIDTH. out may be a or b: a thread writes only what it alone
// has read.
template <Map MAP, int WIDTH, class Out, class In>
static __global__ void map_kernel(Out* out, const In* a, const In* b, size_t n) {
    constexpr size_t STRIDE = THREADS * WIDTH;
    size_t first = ((size_t)blockIdx.x * GROUPS * THREADS + threadIdx.x) * WIDTH;
    Pack<In, WIDTH> x[GROUPS], y[GROUPS];
    for (int g = 0; g < GROUPS; g++) {
        size_t i = first + g * STRIDE;
        if (i >= n) break;
        x[g] = load_pack<WIDTH>(a + i);
        y[g] = MAP == MAP_SUM || MAP == MAP_TIMES_SLOPE ? load_pack<WIDTH>(b + i) : x[g];
    }
    for (int g = 0; g < GROUPS; g++) {
        size_t i = first + g * STRIDE;
        if (i >= n) break;
        Pack<Out, WIDTH> result;
        for (int j = 0; j < WIDTH; j++) result.v[j] = narrow<Out>(map_of<MAP>(widen(x[g].v[j]), widen(y[g].v[j])));
        store_pack(out + i, result);
    }
}

template <Map MAP, int WIDTH, class Out, class In>
static void map_by(Out* out, const In* a, const In* b, size_t n, Stream s) {
    if (n > 0)
        LAUNCH((map_kernel<MAP, WIDTH, Out, In>), cuda_blocks(n, GROUPS * THREADS * WIDTH), THREADS, 0, cuda_stream(s),
               out, a, b, n);
}

// Maps whole packs, then the rest element by element.
template <Map MAP, class Out, class In>
static void map(Out* out, const In* a, const In* b, size_t n, Stream s) {
    constexpr int WIDTH = 16 / (int)MAX(sizeof(Out), sizeof(In));
    bool aligned =
        (uintptr_t)out % sizeof(Pack<Out, WIDTH>) == 0 && ((uintptr_t)a | (uintptr_t)b) % sizeof(Pack<In, WIDTH>) == 0;
    size_t whole = aligned ? n - n % WIDTH : 0;
    map_by<MAP, WIDTH>(out, a, b, whole, s);
    map_by<MAP, 1>(out + whole, a + whole, b ? b + whole : b, n - whole, s);
}

template <Map MAP>
static void map_dtype(void* out, const void* a, const void* b, size_t n, DType dt, Stream s) {
    with_dtype(dt, [=](auto zero) {
        typedef decltype(zero) T;
        map<MAP>((T*)out, (const T*)a, (const T*)b, n, s);
    });
}

void cuda_add(void* out, const void* a, const void* b, size_t n, DType dt, Stream s) {
    map_dtype<MAP_SUM>(out, a, b, n, dt, s);
}

void cuda_cast(void* out, DType out_dt, const void* x, DType x_dt, size_t n, Stream s) {
    if (n == 0) return;
    if (out_dt == x_dt)
        CUDA_CHECK(cudaMemcpyAsync(out, x, n * dtype_bytes(x_dt), cudaMemcpyDeviceToDevice, cuda_stream(s)));
    else if (out_dt == DT_BF16) map<MAP_SAME>((bf16*)out, (const float*)x, (const float*)NULL, n, s);
    else map<MAP_SAME>((float*)out, (const bf16*)x, (const bf16*)NULL, n, s);
}

// ---- SwiGLU: from a row of U gates and U ups

// out (N,U) = silu(gate) * up; or with BACKWARD out (N, 2 U) = the gradients of gates and ups, of dout (N,U):
//   dup = dout gate s,  dgate = dout up s (1 + gate (1 - s)),  s = sigmoid(gate)
// 1 - s = exp(-gate) s loses no digits; it is 1 where the exponential overflows. blocks_of_row blocks take a row.
template <bool BACKWARD, int WIDTH, class T>
static __global__ void swiglu_kernel(T* out, const T* dout, const T* x, size_t U, unsigned blocks_of_row) {
    constexpr size_t STRIDE = THREADS * WIDTH;
    size_t row = blockIdx.x / blocks_of_row, first = blockIdx.x % blocks_of_row * GROUPS * STRIDE + threadIdx.x * WIDTH;
    Pack<T, WIDTH> gate[GROUPS], up[GROUPS], d[GROUPS];
    for (int g = 0; g < GROUPS; g++) {
        size_t c = first + g * STRIDE;
        if (c >= U) break;
        gate[g] = load_pack<WIDTH>(x + 2 * row * U + c), up[g] = load_pack<WIDTH>(x + (2 * row + 1) * U + c);
        if (BACKWARD) d[g] = load_pack<WIDTH>(dout + row * U + c);
    }
    for (int g = 0; g < GROUPS; g++) {
        size_t c = first + g * STRIDE;
        if (c >= U) break;
        for (int j = 0; j < WIDTH; j++) {
            float z = widen(gate[g].v[j]), y = widen(up[g].v[j]), e = fast_exp(-z), s = __fdividef(1.0f, 1.0f + e);
            float of_up = BACKWARD ? widen(d[g].v[j]) : y;
            up[g].v[j] = narrow<T>(z * s * of_up);
            if (BACKWARD) gate[g].v[j] = narrow<T>(of_up * y * (s + z * s * fminf(e * s, 1.0f)));
        }
        if (!BACKWARD) store_pack(out + row * U + c, up[g]);
        if (BACKWARD) store_pack(out + 2 * row * U + c, gate[g]), store_pack(out + (2 * row + 1) * U + c, up[g]);
    }
}

template <bool BACKWARD>
static void swiglu(void* out, const void* dout, const void* x, int N, int U, DType dt, Stream s) {
    if (N == 0 || U == 0) return;
    with_form(dt, {out, dout, x}, (size_t)U, [=](auto form) {
        typedef typename decltype(form)::T T;
        constexpr int W = decltype(form)::W;
        unsigned blocks_of_row = cuda_blocks((size_t)U, GROUPS * THREADS * W);
        LAUNCH((swiglu_kernel<BACKWARD, W, T>), (unsigned)N * blocks_of_row, THREADS, 0, cuda_stream(s), (T*)out,
               (const T*)dout, (const T*)x, (size_t)U, blocks_of_row);
    });
}

void cuda_activation_forward(void* out, const void* x, ActFunction f, int N, int U, DType dt, Stream s) {
    switch (f) {
        case ACT_GELU: map_dtype<MAP_GELU>(out, x, NULL, (size_t)N * (size_t)U, dt, s); break;
        case ACT_SWIGLU: swiglu<false>(out, NULL, x, N, U, dt, s); break;
    }
}

void cuda_activation_backward(void* dx, const void* dout, const void* x, ActFunction f, int N, int U, DType dt,
                              Stream s) {
    switch (f) {
        case ACT_GELU: map_dtype<MAP_TIMES_SLOPE>(dx, dout, x, (size_t)N * (size_t)U, dt, s); break;
        case ACT_SWIGLU: swiglu<true>(dx, dout, x, N, U, dt, s); break;
    }
}

// ---- moves of rows: a warp takes a row; a unit is 16 bytes, or one element where rows do not begin at 16 bytes

// Calls f(0) with a 0 of the unit: 16 bytes, or one element if `bytes` is no multiple of 16.
template <class F>
static void with_unit(DType dt, size_t bytes, F f) {
    if (bytes % 16 == 0) f(uint4());
    else with_dtype(dt, f);
}

// units, ldo and ldx count units. Gather: out[i] = x[rows[i]], or zeros. Scatter: out[rows[i]] = x[i], or nothing. With
// rows NULL, rows[i] = i.
template <class Unit, bool GATHER>
static __global__ void move_rows_kernel(Unit* out, const Unit* x, const int* rows, int n, int units, int ldo, int ldx) {
    size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (i >= (size_t)n) return;
    int row = rows ? rows[i] : (int)i;
    if (!GATHER && row < 0) return;
    const Unit* from = x + (GATHER ? (size_t)MAX(row, 0) : i) * ldx;
    Unit* to = out + (GATHER ? i : (size_t)row) * ldo;
    for (size_t c = lane; c < (size_t)units; c += UNITS_IN_FLIGHT * 32) {
        Unit u[UNITS_IN_FLIGHT];
        for (int k = 0; k < UNITS_IN_FLIGHT; k++)
            u[k] = row >= 0 && c + 32 * k < (size_t)units ? from[c + 32 * k] : Unit{};
        for (int k = 0; k < UNITS_IN_FLIGHT; k++)
            if (c + 32 * k < (size_t)units) to[c + 32 * k] = u[k];
    }
}

template <bool GATHER>
static void move_rows(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt, Stream s) {
    size_t bytes = dtype_bytes(dt), all = (size_t)C | (size_t)ldo | (size_t)ldx;
    if (n == 0) return;
    with_unit(dt, all * bytes | (uintptr_t)out | (uintptr_t)x, [=](auto unit) {
        typedef decltype(unit) Unit;
        int elements = (int)(sizeof unit / bytes);
        LAUNCH((move_rows_kernel<Unit, GATHER>), cuda_blocks(n, WARPS), THREADS, 0, cuda_stream(s), (Unit*)out,
               (const Unit*)x, rows, n, C / elements, ldo / elements, ldx / elements);
    });
}

void cuda_gather_rows(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt, Stream s) {
    move_rows<true>(out, x, rows, n, C, ldo, ldx, dt, s);
}

void cuda_scatter_rows(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt, Stream s) {
    move_rows<false>(out, x, rows, n, C, ldo, ldx, dt, s);
}

// ---- moves of heads: a warp takes a matrix of a row, all heads of it, which x or out has in slices

enum { LAUNCHED_SLICES = 256 };  // of one launch: a kernel's arguments have 4 KiB

struct HeadSlices {
    unsigned d, border[LAUNCHED_SLICES + 1];
};

// SPLIT: out (slices) = x (N rows of M matrices); else the other way. Heads have HS0 units in the first matrix, HS in
// the others, NH in all; those of these slices move.
template <class Unit, bool SPLIT>
static __global__ void move_heads_kernel(Unit* out, const Unit* x, size_t N, unsigned M, unsigned NH, unsigned HS0,
                                         unsigned HS, HeadSlices slices) {
    size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, n = row / M;
    unsigned m = (unsigned)(row % M), of_head = m ? HS : HS0;
    unsigned start = slices.border[0] * of_head, units = slices.border[slices.d] * of_head;
    // `all` counts units of one head in all matrices, `before` in those before this one.
    size_t all = HS0 + (M - 1) * (size_t)HS, before = m ? all - (M - m) * (size_t)HS : 0;
    size_t whole = (n * all + before) * NH;
    if (n >= N) return;
    for (unsigned first = start + threadIdx.x % 32; first < units; first += UNITS_IN_FLIGHT * 32) {
        Unit u[UNITS_IN_FLIGHT];
        size_t sliced[UNITS_IN_FLIGHT];
        for (unsigned k = 0; k < UNITS_IN_FLIGHT; k++) {
            unsigned c = first + 32 * k, slice = run_of(slices.border, slices.d, c / of_head);
            unsigned begin = slices.border[slice], heads = slices.border[slice + 1] - begin;
            sliced[k] = (N * begin + n * heads) * all + heads * before + (c - begin * of_head);
            if (c < units) u[k] = x[SPLIT ? whole + c : sliced[k]];
        }
        for (unsigned k = 0; k < UNITS_IN_FLIGHT; k++)
            if (first + 32 * k < units) out[SPLIT ? sliced[k] : whole + first + 32 * k] = u[k];
    }
}

template <bool SPLIT>
static void move_heads(void* out, const void* x, int N, int M, int HS0, int HS, const int* border, int d, DType dt,
                       Stream s) {
    size_t bytes0 = HS0 * dtype_bytes(dt), bytes = HS * dtype_bytes(dt);
    if (N == 0 || M == 0) return;
    with_unit(dt, bytes0 | bytes | (uintptr_t)out | (uintptr_t)x, [=](auto unit) {
        typedef decltype(unit) Unit;
        HeadSlices slices;
        for (int i = 0; i < d; i += LAUNCHED_SLICES) {
            slices.d = (unsigned)MIN(LAUNCHED_SLICES, d - i);
            for (unsigned j = 0; j <= slices.d; j++) slices.border[j] = (unsigned)border[i + (int)j];
            LAUNCH((move_heads_kernel<Unit, SPLIT>), cuda_blocks((size_t)N * M, WARPS), THREADS, 0, cuda_stream(s),
                   (Unit*)out, (const Unit*)x, (size_t)N, (unsigned)M, (unsigned)border[d],
                   (unsigned)(bytes0 / sizeof unit), (unsigned)(bytes / sizeof unit), slices);
        }
    });
}

void cuda_split_heads(void* out, const void* x, int N, int M, int HS0, int HS, const int* border, int d, DType dt,
                      Stream s) {
    move_heads<true>(out, x, N, M, HS0, HS, border, d, dt, s);
}

void cuda_join_heads(void* out, const void* x, int N, int M, int HS0, int HS, const int* border, int d, DType dt,
                     Stream s) {
    move_heads<false>(out, x, N, M, HS0, HS, border, d, dt, s);
}

// ---- moves of columns: a matrix cut to some of its columns, and spread out again
//
// An index of 4 bytes serves MOVED_ROWS rows. Neighbouring lanes take neighbouring columns of out, so that writes are
// whole lines; elements move one by one, since nothing is known of the list.

// A warp takes MOVED_ROWS rows and 32 COLUMNS_IN_FLIGHT columns. They become 0 where source is negative.
template <class T>
static __global__ void move_columns_kernel(T* out, const T* x, const int* source, int N, int columns, int ldx) {
    size_t row = ((size_t)blockIdx.x * WARPS + threadIdx.x / 32) * MOVED_ROWS;
    size_t first = (size_t)blockIdx.y * 32 * COLUMNS_IN_FLIGHT + threadIdx.x % 32;
    int rows = (int)MIN((size_t)MOVED_ROWS, row < (size_t)N ? N - row : 0), from[COLUMNS_IN_FLIGHT];
    T moved[MOVED_ROWS][COLUMNS_IN_FLIGHT];
    for (int k = 0; k < COLUMNS_IN_FLIGHT; k++)
        from[k] = first + 32 * k < (size_t)columns ? source[first + 32 * k] : -1;
    for (int r = 0; r < MOVED_ROWS; r++)
        for (int k = 0; k < COLUMNS_IN_FLIGHT; k++)
            moved[r][k] = r < rows && from[k] >= 0 ? x[(row + r) * ldx + from[k]] : T(0);
    for (int r = 0; r < MOVED_ROWS; r++) {
        for (int k = 0; k < COLUMNS_IN_FLIGHT; k++) {
            size_t c = first + 32 * k;
            if (r < rows && c < (size_t)columns) out[(row + r) * columns + c] = moved[r][k];
        }
    }
}

void cuda_scatter_columns(void* out, const void* x, const int* source, int N, int K, int n, DType dt, Stream s) {
    if (N == 0 || K == 0) return;
    with_dtype(dt, [=](auto zero) {
        typedef decltype(zero) T;
        dim3 grid(cuda_blocks((size_t)N, WARPS * MOVED_ROWS), cuda_blocks((size_t)K, 32 * COLUMNS_IN_FLIGHT));
        LAUNCH(move_columns_kernel<T>, grid, THREADS, 0, cuda_stream(s), (T*)out, (const T*)x, source, N, K, n);
    });
}

// ---- merge: 12 bytes an element, and 12 a token and head for the log-sum-exps

// 2^log2_lanes lanes take a token and head, WIDTH elements each at a time.
template <int WIDTH>
static __global__ void merge_kernel(float* out, float* lse, const float* part, const float* part_lse, int N, int NH,
                                    int HS, int log2_lanes) {
    size_t thread = (size_t)blockIdx.x * THREADS + threadIdx.x, pair = thread >> log2_lanes, token = pair / NH;
    int lanes = 1 << log2_lanes, lane = (int)threadIdx.x & (lanes - 1);
    bool inside = token < (size_t)N;
    size_t of_pair = pair % NH * N + token;
    float mine = inside ? lse[of_pair] : -INFINITY, other = inside ? part_lse[of_pair] : -INFINITY;
    __syncwarp();  // all lanes have read lse
    if (mine == -INFINITY && other == -INFINITY) return;
    float top = fmaxf(mine, other), a = expf(mine - top), b = expf(other - top), sum = a + b;
    if (lane == 0) lse[of_pair] = top + logf(sum);
    a /= sum, b /= sum;
    out += pair * HS, part += pair * HS;
    for (int c = lane * WIDTH; c < HS; c += lanes * WIDTH) {
        Pack<float, WIDTH> x = load_pack<WIDTH>(out + c), y = load_pack<WIDTH>(part + c);
        for (int j = 0; j < WIDTH; j++) x.v[j] = a * x.v[j] + b * y.v[j];
        store_pack(out + c, x);
    }
}

void cuda_attention_merge(float* out, float* lse, const float* part, const float* part_lse, int N, int NH, int HS,
                          Stream s) {
    if (N == 0 || NH == 0) return;
    bool aligned = HS % 4 == 0 && ((uintptr_t)out | (uintptr_t)part) % 16 == 0;
    int log2_lanes = cuda_log2_lanes(HS, aligned ? 4 : 1);
    auto kernel = aligned ? merge_kernel<4> : merge_kernel<1>;
    LAUNCH(kernel, cuda_blocks((size_t)N * NH << log2_lanes, THREADS), THREADS, 0, cuda_stream(s), out, lse, part,
           part_lse, N, NH, HS, log2_lanes);
}
