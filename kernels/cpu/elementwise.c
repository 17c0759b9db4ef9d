// elementwise.c - ops that are limited by memory: embedding, activations, sums, conversions, merges of attention,
// moves.
//
// Each reads its tensors once and computes in fp32. Rows, or chunks of a flat tensor, are dealt to threads in one
// static piece each; no element depends on which thread has it.
#include <omp.h>

#include "kernels/cpu/simd.h"

enum { CHUNK = 1 << 12 };  // elements of a flat tensor handled at once

// ---- embedding

SIMD_INLINE void embed_row(void* out, const void* token, const void* position, size_t C, DType dt) {
    if (!position) {
        memcpy(out, token, C * dtype_bytes(dt));
        return;
    }
    FOR_VECTORS(c, n, 0, C, vf_put(out, c, n, vf_get(token, c, n, dt) + vf_get(position, c, n, dt), dt););
}

static void embedding_forward(void* out, const int* tokens, const int* positions, const void* wte, const void* wpe,
                              int N, int C, DType dt, Stream s) {
#pragma omp parallel for num_threads(cpu_threads()) schedule(static) if ((size_t)N * C >= SERIAL)
    for (size_t n = 0; n < (size_t)N; n++) {
        const void* token = row_of(wte, (size_t)tokens[n], C, dt);
        const void* position = wpe ? row_of(wpe, (size_t)positions[n], C, dt) : NULL;
        WITH_DTYPE(dt, embed_row, (void*)row_of(out, n, C, dt), token, position, (size_t)C);
    }
}

SIMD_INLINE void add_gradient(float* to, const void* from, size_t begin, size_t end, DType dt) {
    FOR_VECTORS(c, n, begin, end, vf_put(to, c, n, vf_get(to, c, n, DT_F32) + vf_get(from, c, n, dt), DT_F32););
}

// Adds columns begin .. end of every row to its token and position, where it has them.
SIMD_INLINE void add_gradients(float* dwte, float* dwpe, const void* dout, const int* tokens, const int* positions,
                               size_t N, size_t C, size_t begin, size_t end, DType dt) {
    for (size_t row = 0; row < N; row++) {
        const void* from = row_of(dout, row, C, dt);
        if (tokens && tokens[row] >= 0) add_gradient(dwte + (size_t)tokens[row] * C, from, begin, end, dt);
        if (positions) add_gradient(dwpe + (size_t)positions[row] * C, from, begin, end, dt);
    }
}

// Threads share the columns, not the rows: tokens that occur twice need no atomics and are added in row order.
static void embedding_backward(float* dwte, float* dwpe, const void* dout, const int* tokens, const int* positions,
                               int N, int C, DType dt, Stream s) {
#pragma omp parallel num_threads(cpu_threads()) if ((size_t)N * C >= SERIAL)
    {
        size_t begin, end;
        cpu_share((size_t)C, 16, omp_get_thread_num(), omp_get_num_threads(), &begin, &end);
        WITH_DTYPE(dt, add_gradients, dwte, dwpe, dout, tokens, positions, (size_t)N, (size_t)C, begin, end);
    }
}

// ---- activations, sums, conversions

// Units begin .. end of a row of x, for SwiGLU U gates and U ups.
SIMD_INLINE void activate(void* out, const void* x, ActFunction f, size_t U, size_t begin, size_t end, DType dt) {
    FOR_VECTORS(i, n, begin, end, {
        vf gate = vf_get(x, i, n, dt);
        switch (f) {
            case ACT_GELU: vf_put(out, i, n, vf_gelu(gate), dt); break;
            case ACT_SWIGLU: vf_put(out, i, n, gate * vf_sigmoid(gate) * vf_get(x, U + i, n, dt), dt); break;
        }
    });
}

// With h = sigmoid(gate):  dup = dout gate h,  dgate = dout up (h + gate h (1 - h)).
SIMD_INLINE void activate_backward(void* dx, const void* dout, const void* x, ActFunction f, size_t U, size_t begin,
                                   size_t end, DType dt) {
    FOR_VECTORS(i, n, begin, end, {
        vf gate = vf_get(x, i, n, dt), d = vf_get(dout, i, n, dt), h;
        switch (f) {
            case ACT_GELU: vf_put(dx, i, n, d * vf_gelu_gradient(gate), dt); break;
            case ACT_SWIGLU:
                h = vf_sigmoid(gate);
                vf_put(dx, i, n, d * vf_get(x, U + i, n, dt) * (h + gate * h * (1.f - h)), dt);
                vf_put(dx, U + i, n, d * gate * h, dt);
                break;
        }
    });
}

// Forward with dout NULL, where y is the output; backward into y.
static void activation(void* y, const void* dout, const void* x, ActFunction f, size_t N, size_t U, DType dt) {
    size_t rows = act_runs(f) == 1 ? 1 : N, units = N * U / MAX(rows, (size_t)1);
    size_t chunks = CEIL_DIV(units, (size_t)CHUNK);
#pragma omp parallel for num_threads(cpu_threads()) schedule(static) if (N * U >= SERIAL)
    for (size_t t = 0; t < rows * chunks; t++) {
        size_t row = t / chunks, begin = t % chunks * CHUNK, end = MIN(begin + CHUNK, units), runs = act_runs(f);
        const void *x_row = row_of(x, row, runs * units, dt), *d_row = dout ? row_of(dout, row, units, dt) : NULL;
        void* y_row = (void*)row_of(y, row, (dout ? runs : 1) * units, dt);
        if (dout) WITH_DTYPE(dt, activate_backward, y_row, d_row, x_row, f, units, begin, end);
        else WITH_DTYPE(dt, activate, y_row, x_row, f, units, begin, end);
    }
}

static void activation_forward(void* out, const void* x, ActFunction f, int N, int U, DType dt, Stream s) {
    activation(out, NULL, x, f, (size_t)N, (size_t)U, dt);
}

static void activation_backward(void* dx, const void* dout, const void* x, ActFunction f, int N, int U, DType dt,
                                Stream s) {
    activation(dx, dout, x, f, (size_t)N, (size_t)U, dt);
}

SIMD_INLINE void add_range(void* out, const void* a, const void* b, size_t begin, size_t end, DType dt) {
    FOR_VECTORS(i, n, begin, end, vf_put(out, i, n, vf_get(a, i, n, dt) + vf_get(b, i, n, dt), dt););
}

static void add(void* out, const void* a, const void* b, size_t n, DType dt, Stream s) {
#pragma omp parallel for num_threads(cpu_threads()) schedule(static) if (n >= SERIAL)
    for (size_t i = 0; i < n; i += CHUNK) WITH_DTYPE(dt, add_range, out, a, b, i, MIN(i + CHUNK, n));
}

SIMD_INLINE void cast_range(void* out, DType out_dt, const void* x, size_t begin, size_t end, DType x_dt) {
    FOR_VECTORS(i, n, begin, end, vf_put(out, i, n, vf_get(x, i, n, x_dt), out_dt););
}

static void cast(void* out, DType out_dt, const void* x, DType x_dt, size_t n, Stream s) {
#pragma omp parallel for num_threads(cpu_threads()) schedule(static) if (n >= SERIAL)
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t bytes = (MIN(i + CHUNK, n) - i) * dtype_bytes(x_dt);
        if (out_dt == x_dt) memcpy((void*)row_of(out, 1, i, x_dt), row_of(x, 1, i, x_dt), bytes);
        else if (out_dt == DT_BF16) cast_range(out, DT_BF16, x, i, MIN(i + CHUNK, n), DT_F32);
        else cast_range(out, DT_F32, x, i, MIN(i + CHUNK, n), DT_BF16);
    }
}

// ---- parts of an attention become one

// With d = lse - part_lse and e = exp(-|d|), at most 1, the factors are 1 / (1 + e) and e / (1 + e). A NaN stays one.
static void merge_head(float* out, float* lse, const float* part, float part_lse, size_t HS) {
    float d = *lse - part_lse, e = expf(-fabsf(d)), greater = 1 / (1 + e), smaller = e / (1 + e);
    float keep = d > 0 ? greater : smaller, take = d > 0 ? smaller : greater;
    FOR_VECTORS(i, n, 0, HS,
                vf_put(out, i, n, vf_get(out, i, n, DT_F32) * keep + vf_get(part, i, n, DT_F32) * take, DT_F32););
    *lse = (d > 0 ? *lse : part_lse) + log1pf(e);
}

static void attention_merge(float* out, float* lse, const float* part, const float* part_lse, int N, int NH, int HS,
                            Stream s) {
#pragma omp parallel for num_threads(cpu_threads()) schedule(static) if ((size_t)N * NH * HS >= SERIAL)
    for (size_t n = 0; n < (size_t)N; n++)
        for (size_t h = 0; h < (size_t)NH; h++) {
            size_t first = (n * NH + h) * HS, i = h * N + n;
            if (part_lse[i] != -INFINITY) merge_head(out + first, lse + i, part + first, part_lse[i], (size_t)HS);
        }
}

// ---- moves of rows and heads

static void gather_rows(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt, Stream s) {
#pragma omp parallel num_threads(cpu_threads()) if ((size_t)n * C >= SERIAL)
    {
        size_t begin, end;
        cpu_share((size_t)n, 1, omp_get_thread_num(), omp_get_num_threads(), &begin, &end);
        cpu_reference_kernels.gather_rows((void*)row_of(out, begin, (size_t)ldo, dt),
                                          rows ? x : row_of(x, begin, (size_t)ldx, dt), rows ? rows + begin : NULL,
                                          (int)(end - begin), C, ldo, ldx, dt, s);
    }
}

static void scatter_rows(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt,
                         Stream s) {
#pragma omp parallel num_threads(cpu_threads()) if ((size_t)n * C >= SERIAL)
    {
        size_t begin, end;
        cpu_share((size_t)n, 1, omp_get_thread_num(), omp_get_num_threads(), &begin, &end);
        cpu_reference_kernels.scatter_rows(out, row_of(x, begin, (size_t)ldx, dt), rows + begin, (int)(end - begin), C,
                                           ldo, ldx, dt, s);
    }
}

typedef struct Heads {  // of a row: M matrices of border[d] heads, which are cut into d slices
    size_t M;
    size_t first_bytes, other_bytes;  // of a head of the first matrix, and of each other
    const int* border;
    int d;
} Heads;

// Between a row of x (N rows) and its part of each slice; the heads of a matrix and slice are one run of bytes.
static void move_row(char* slices, char* x, int split, size_t row, size_t N, const Heads* h) {
    size_t all = h->first_bytes + (h->M - 1) * h->other_bytes;
    char* whole = x + row * (size_t)h->border[h->d] * all;
    for (size_t m = 0, before = 0, bytes = h->first_bytes; m < h->M; m++, before += bytes, bytes = h->other_bytes)
        for (int i = 0; i < h->d; i++) {
            size_t first = (size_t)h->border[i], n = (size_t)h->border[i + 1] - first;
            char* slice = slices + (N * first + row * n) * all + n * before;
            memcpy(split ? slice : whole, split ? whole : slice, n * bytes);
            whole += n * bytes;
        }
}

static void move_heads(char* slices, char* x, int split, int N, Heads h) {
    size_t bytes = (size_t)N * (size_t)h.border[h.d] * (h.first_bytes + (h.M - 1) * h.other_bytes);
    (void)bytes;  // without OpenMP
#pragma omp parallel for num_threads(cpu_threads()) schedule(static) if (bytes >= 2 * SERIAL)
    for (size_t row = 0; row < (size_t)N; row++) move_row(slices, x, split, row, (size_t)N, &h);
}

static void split_heads(void* out, const void* x, int N, int M, int HS0, int HS, const int* border, int d, DType dt,
                        Stream s) {
    size_t elem = dtype_bytes(dt);
    move_heads((char*)out, (char*)x, 1, N, (Heads){(size_t)M, HS0 * elem, HS * elem, border, d});
}

static void join_heads(void* out, const void* x, int N, int M, int HS0, int HS, const int* border, int d, DType dt,
                       Stream s) {
    size_t elem = dtype_bytes(dt);
    move_heads((char*)x, (char*)out, 0, N, (Heads){(size_t)M, HS0 * elem, HS * elem, border, d});
}

// ---- moves of columns

SIMD_INLINE void gather_row(void* out, const void* x, const int* columns, size_t n, DType dt) {
    for (size_t j = 0; j < n; j++) {
        if (dt == DT_BF16) ((bf16*)out)[j] = ((const bf16*)x)[columns[j]];
        else ((float*)out)[j] = ((const float*)x)[columns[j]];
    }
}

static void gather_columns(void* out, const void* x, const int* columns, int N, int n, int ldx, DType dt, Stream s) {
#pragma omp parallel for num_threads(cpu_threads()) schedule(static) if ((size_t)N * n >= SERIAL)
    for (size_t i = 0; i < (size_t)N; i++)
        WITH_DTYPE(dt, gather_row, (void*)row_of(out, i, (size_t)n, dt), row_of(x, i, (size_t)ldx, dt), columns,
                   (size_t)n);
}

SIMD_INLINE float row_mean(const void* x, size_t n_columns, DType dt) {
    vf sum = {0};
    FOR_VECTORS(j, n, 0, n_columns, sum += vf_get(x, j, n, dt););
    return vf_sum(sum) / (float)n_columns;
}

// Without branches, because what is missing may follow no pattern: a missing element is read from elsewhere, which is
// one place for the whole row, or where it lies already.
SIMD_INLINE void scatter_row(void* out, const void* x, const int* source, ColumnFill fill, size_t K, size_t n,
                             DType dt) {
    float mean = fill == FILL_MEAN ? row_mean(x, n, dt) : 0;
    bf16 rounded = bf16_from_float(mean);
    size_t step = fill == FILL_KEEP;
    for (size_t c = 0; c < K; c++) {
        if (dt == DT_BF16) {
            const bf16* elsewhere = (step ? (const bf16*)out : &rounded) + c * step;
            ((bf16*)out)[c] = *(source[c] >= 0 ? (const bf16*)x + source[c] : elsewhere);
        } else {
            const float* elsewhere = (step ? (const float*)out : &mean) + c * step;
            ((float*)out)[c] = *(source[c] >= 0 ? (const float*)x + source[c] : elsewhere);
        }
    }
}

static void scatter_columns(void* out, const void* x, const int* source, ColumnFill fill, int N, int K, int n, DType dt,
                            Stream s) {
#pragma omp parallel for num_threads(cpu_threads()) schedule(static) if ((size_t)N * K >= SERIAL)
    for (size_t i = 0; i < (size_t)N; i++)
        WITH_DTYPE(dt, scatter_row, (void*)row_of(out, i, (size_t)K, dt), row_of(x, i, (size_t)n, dt), source, fill,
                   (size_t)K, (size_t)n);
}

static void install(Kernels* table) {
    table->embedding_forward = embedding_forward;
    table->embedding_backward = embedding_backward;
    table->activation_forward = activation_forward;
    table->activation_backward = activation_backward;
    table->add = add;
    table->cast = cast;
    table->attention_merge = attention_merge;
    table->gather_rows = gather_rows;
    table->gather_columns = gather_columns;
    table->scatter_columns = scatter_columns;
    table->scatter_rows = scatter_rows;
    table->split_heads = split_heads;
    table->join_heads = join_heads;
}

const CpuFamily ISA_NAME(elementwise) = {install, NULL};
