// elementwise.c - ops that are limited by memory: embedding, activations, sums, conversions, merges of attention,
// moves.
//
// Each reads its tensors once and computes in fp32. Threads take rows, or chunks of a flat tensor, in portions; no
// element depends on which thread has it.
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

typedef struct Embedding {  // forward; backward with out NULL
    void* out;
    const int *tokens, *positions;
    const void *wte, *wpe, *dout;
    float *dwte, *dwpe;
    size_t N, C;
    DType dt;
} Embedding;

static void embed_token(const void* job, size_t n, int thread) {
    const Embedding* e = (const Embedding*)job;
    const void* token = row_of(e->wte, (size_t)e->tokens[n], e->C, e->dt);
    const void* position = e->wpe ? row_of(e->wpe, (size_t)e->positions[n], e->C, e->dt) : NULL;
    WITH_DTYPE(e->dt, embed_row, (void*)row_of(e->out, n, e->C, e->dt), token, position, e->C);
}

static void embedding_forward(void* out, const int* tokens, const int* positions, const void* wte, const void* wpe,
                              int N, int C, DType dt, Stream s) {
    Embedding e = {out, tokens, positions, wte, wpe, NULL, NULL, NULL, (size_t)N, (size_t)C, dt};
    cpu_for(embed_token, &e, e.N, e.N * e.C);
}

SIMD_INLINE void add_gradient(float* to, const void* from, size_t begin, size_t end, DType dt) {
    FOR_VECTORS(c, n, begin, end, vf_put(to, c, n, vf_get(to, c, n, DT_F32) + vf_get(from, c, n, dt), DT_F32););
}

// Adds columns begin .. end of every row to its token and position, if it has them.
SIMD_INLINE void add_gradients(float* dwte, float* dwpe, const void* dout, const int* tokens, const int* positions,
                               size_t N, size_t C, size_t begin, size_t end, DType dt) {
    for (size_t row = 0; row < N; row++) {
        const void* from = row_of(dout, row, C, dt);
        if (tokens && tokens[row] >= 0) add_gradient(dwte + (size_t)tokens[row] * C, from, begin, end, dt);
        if (positions) add_gradient(dwpe + (size_t)positions[row] * C, from, begin, end, dt);
    }
}

// Threads share the columns, not the rows: tokens that occur twice need no atomics and are added in row order.
static void embed_columns_backward(const void* job, size_t part, int thread) {
    const Embedding* e = (const Embedding*)job;
    size_t begin, end;
    cpu_share(e->C, 16, (int)part, team_threads(), &begin, &end);
    WITH_DTYPE(e->dt, add_gradients, e->dwte, e->dwpe, e->dout, e->tokens, e->positions, e->N, e->C, begin, end);
}

static void embedding_backward(float* dwte, float* dwpe, const void* dout, const int* tokens, const int* positions,
                               int N, int C, DType dt, Stream s) {
    Embedding e = {NULL, tokens, positions, NULL, NULL, dout, dwte, dwpe, (size_t)N, (size_t)C, dt};
    team_run(embed_columns_backward, &e, (size_t)team_threads(), 1, e.N * e.C < SERIAL);
}

// ---- activations, sums, conversions

// Computes units begin .. end of a row of x, for SwiGLU of U gates and U ups.
SIMD_INLINE void activate(void* out, const void* x, ActFunction f, size_t U, size_t begin, size_t end, DType dt) {
    FOR_VECTORS(i, n, begin, end, {
        vf gate = vf_get(x, i, n, dt);
        switch (f) {
            case ACT_GELU: vf_put(out, i, n, vf_gelu(gate), dt); break;
            case ACT_SWIGLU: vf_put(out, i, n, gate * vf_sigmoid(gate) * vf_get(x, U + i, n, dt), dt); break;
        }
    });
}

// SwiGLU's gradients, h = sigmoid(gate):  dup = dout gate h,  dgate = dout up (h + gate h (1 - h)).
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

typedef struct Activation {  // forward with dout NULL, where y is the output; backward into y
    void* y;
    const void *dout, *x;
    ActFunction f;
    size_t units, chunks;  // of a row
    DType dt;
} Activation;

static void activate_chunk(const void* job, size_t t, int thread) {
    const Activation* j = (const Activation*)job;
    size_t row = t / j->chunks, begin = t % j->chunks * CHUNK, end = MIN(begin + CHUNK, j->units),
           runs = act_runs(j->f);
    const void* x = row_of(j->x, row, runs * j->units, j->dt);
    void* y = (void*)row_of(j->y, row, (j->dout ? runs : 1) * j->units, j->dt);
    if (!j->dout) WITH_DTYPE(j->dt, activate, y, x, j->f, j->units, begin, end);
    else WITH_DTYPE(j->dt, activate_backward, y, row_of(j->dout, row, j->units, j->dt), x, j->f, j->units, begin, end);
}

static void activation(void* y, const void* dout, const void* x, ActFunction f, size_t N, size_t U, DType dt) {
    size_t rows = act_runs(f) == 1 ? 1 : N, units = N * U / MAX(rows, (size_t)1),
           chunks = CEIL_DIV(units, (size_t)CHUNK);
    Activation job = {y, dout, x, f, units, chunks, dt};
    cpu_for(activate_chunk, &job, rows * chunks, N * U);
}

static void activation_forward(void* out, const void* x, ActFunction f, int N, int U, DType dt, Stream s) {
    activation(out, NULL, x, f, (size_t)N, (size_t)U, dt);
}

static void activation_backward(void* dx, const void* dout, const void* x, ActFunction f, int N, int U, DType dt,
                                Stream s) {
    activation(dx, dout, x, f, (size_t)N, (size_t)U, dt);
}

SIMD_INLINE void combine_range(void* out, float a, const void* x, float b, const void* y, size_t begin, size_t end,
                               DType dt) {
    FOR_VECTORS(i, n, begin, end, vf_put(out, i, n, vf_get(x, i, n, dt) * a + vf_get(y, i, n, dt) * b, dt););
}

SIMD_INLINE void scale_range(void* out, float a, const void* x, DType x_dt, size_t begin, size_t end, DType dt) {
    FOR_VECTORS(i, n, begin, end, vf_put(out, i, n, vf_get(x, i, n, x_dt) * a, dt););
}

// A Combination is out = a x + b y, or with y NULL out = a x, also of another type. Products by 1 are exact.
typedef struct Combination {
    void* out;
    const void *x, *y;
    float a, b;
    size_t n;
    DType dt, x_dt;
} Combination;

static void combine_chunk(const void* job, size_t chunk, int thread) {
    const Combination* j = (const Combination*)job;
    size_t begin = chunk * CHUNK, end = MIN(begin + CHUNK, j->n), bytes = (end - begin) * dtype_bytes(j->dt);
    if (j->y) WITH_DTYPE(j->dt, combine_range, j->out, j->a, j->x, j->b, j->y, begin, end);
    else if (j->dt == j->x_dt && j->a == 1)
        memcpy((void*)row_of(j->out, begin, 1, j->dt), row_of(j->x, begin, 1, j->dt), bytes);
    else if (j->x_dt == DT_BF16) scale_range(j->out, j->a, j->x, DT_BF16, begin, end, DT_F32);
    else WITH_DTYPE(j->dt, scale_range, j->out, j->a, j->x, DT_F32, begin, end);
}

static void combine_all(Combination job) { cpu_for(combine_chunk, &job, CEIL_DIV(job.n, (size_t)CHUNK), job.n); }

static void combine(void* out, float a, const void* x, float b, const void* y, size_t n, DType dt, Stream s) {
    combine_all((Combination){out, x, y, a, b, n, dt, dt});
}

static void add(void* out, const void* a, const void* b, size_t n, DType dt, Stream s) {
    combine_all((Combination){out, a, b, 1, 1, n, dt, dt});
}

static void normalize(void* out, const float* x, const double* norm2, size_t n, DType dt, Stream s) {
    combine_all((Combination){out, x, NULL, (float)(1 / (sqrt(*norm2) + 1e-7)), 0, n, dt, DT_F32});
}

static void cast(void* out, DType out_dt, const void* x, DType x_dt, size_t n, Stream s) {
    combine_all((Combination){out, x, NULL, 1, 0, n, out_dt, x_dt});
}

// ---- parts of an attention become one

// The factors are 1 / (1 + e) and e / (1 + e), with d = lse - part_lse and e = exp(-|d|), at most 1. A NaN stays one.
static void merge_head(float* out, float* lse, const float* part, float part_lse, size_t HS) {
    float d = *lse - part_lse, e = expf(-fabsf(d)), greater = 1 / (1 + e), smaller = e / (1 + e);
    float keep = d > 0 ? greater : smaller, take = d > 0 ? smaller : greater;
    FOR_VECTORS(i, n, 0, HS,
                vf_put(out, i, n, vf_get(out, i, n, DT_F32) * keep + vf_get(part, i, n, DT_F32) * take, DT_F32););
    *lse = (d > 0 ? *lse : part_lse) + log1pf(e);
}

typedef struct Merge {
    float *out, *lse;
    const float *part, *part_lse;
    size_t N, NH, HS;
} Merge;

static void merge_token(const void* job, size_t n, int thread) {
    const Merge* j = (const Merge*)job;
    for (size_t h = 0; h < j->NH; h++) {
        size_t first = (n * j->NH + h) * j->HS, i = h * j->N + n;
        if (j->part_lse[i] == -INFINITY) continue;
        merge_head(j->out + first, j->lse + i, j->part + first, j->part_lse[i], j->HS);
    }
}

static void attention_merge(float* out, float* lse, const float* part, const float* part_lse, int N, int NH, int HS,
                            Stream s) {
    Merge job = {out, lse, part, part_lse, (size_t)N, (size_t)NH, (size_t)HS};
    cpu_for(merge_token, &job, job.N, job.N * job.NH * job.HS);
}

// ---- moves of rows, columns and heads

typedef struct Move {
    void* out;
    const void* x;
    const int* index;  // rows of x, or of out where they are scattered; columns of x
    int scatters;
    size_t C, ldo, ldx;
    DType dt;
} Move;

static void move_row(const void* job, size_t i, int thread) {
    const Move* j = (const Move*)job;
    size_t bytes = j->C * dtype_bytes(j->dt);
    int row = j->index ? j->index[i] : (int)i;
    if (row < 0 && j->scatters) return;
    void* out = (void*)row_of(j->out, j->scatters ? (size_t)row : i, j->ldo, j->dt);
    if (row < 0) memset(out, 0, bytes);
    else memcpy(out, row_of(j->x, j->scatters ? i : (size_t)row, j->ldx, j->dt), bytes);
}

static void gather_rows(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt, Stream s) {
    Move job = {out, x, rows, 0, (size_t)C, (size_t)ldo, (size_t)ldx, dt};
    cpu_for(move_row, &job, (size_t)n, (size_t)n * C);
}

static void scatter_rows(void* out, const void* x, const int* rows, int n, int C, int ldo, int ldx, DType dt,
                         Stream s) {
    Move job = {out, x, rows, 1, (size_t)C, (size_t)ldo, (size_t)ldx, dt};
    cpu_for(move_row, &job, (size_t)n, (size_t)n * C);
}

typedef struct
    HeadMove {  // between x and its slices: M matrices of border[d] heads in a row, which are cut into d slices
    char *slices, *x;
    int splits;
    size_t N, M;
    size_t first_bytes, other_bytes;  // of a head of the first matrix, and of each other
    const int* border;
    int d;
} HeadMove;

// The heads of a matrix and slice are one run of bytes.
static void move_heads_of_row(const void* job, size_t row, int thread) {
    const HeadMove* h = (const HeadMove*)job;
    size_t all = h->first_bytes + (h->M - 1) * h->other_bytes;
    char* whole = h->x + row * (size_t)h->border[h->d] * all;
    for (size_t m = 0, before = 0, bytes = h->first_bytes; m < h->M; m++, before += bytes, bytes = h->other_bytes)
        for (int i = 0; i < h->d; i++) {
            size_t first = (size_t)h->border[i], n = (size_t)h->border[i + 1] - first;
            char* slice = h->slices + (h->N * first + row * n) * all + n * before;
            memcpy(h->splits ? slice : whole, h->splits ? whole : slice, n * bytes);
            whole += n * bytes;
        }
}

static void move_heads(void* slices, void* x, int splits, int N, int M, int HS0, int HS, const int* border, int d,
                       DType dt) {
    size_t first = HS0 * dtype_bytes(dt), other = HS * dtype_bytes(dt);
    HeadMove job = {(char*)slices, (char*)x, splits, (size_t)N, (size_t)M, first, other, border, d};
    cpu_for(move_heads_of_row, &job, job.N, job.N * (size_t)border[d] * (first + (job.M - 1) * other) / 2);
}

static void split_heads(void* out, const void* x, int N, int M, int HS0, int HS, const int* border, int d, DType dt,
                        Stream s) {
    move_heads(out, (void*)x, 1, N, M, HS0, HS, border, d, dt);
}

static void join_heads(void* out, const void* x, int N, int M, int HS0, int HS, const int* border, int d, DType dt,
                       Stream s) {
    move_heads((void*)x, out, 0, N, M, HS0, HS, border, d, dt);
}

SIMD_INLINE void gather_row(void* out, const void* x, const int* columns, size_t n, DType dt) {
    for (size_t j = 0; j < n; j++) {
        if (dt == DT_BF16) ((bf16*)out)[j] = ((const bf16*)x)[columns[j]];
        else ((float*)out)[j] = ((const float*)x)[columns[j]];
    }
}

// It has no branches, because missing elements may follow no pattern: each is read from a 0 elsewhere.
SIMD_INLINE void scatter_row(void* out, const void* x, const int* source, size_t K, DType dt) {
    const float zero = 0;
    const bf16 zero_bf16 = bf16_from_float(0);
    for (size_t c = 0; c < K; c++) {
        if (dt == DT_BF16) ((bf16*)out)[c] = *(source[c] >= 0 ? (const bf16*)x + source[c] : &zero_bf16);
        else ((float*)out)[c] = *(source[c] >= 0 ? (const float*)x + source[c] : &zero);
    }
}

static void move_columns_of_row(const void* job, size_t i, int thread) {
    const Move* j = (const Move*)job;
    void* out = (void*)row_of(j->out, i, j->ldo, j->dt);
    const void* x = row_of(j->x, i, j->ldx, j->dt);
    if (j->scatters) WITH_DTYPE(j->dt, scatter_row, out, x, j->index, j->ldo);
    else WITH_DTYPE(j->dt, gather_row, out, x, j->index, j->ldo);
}

static void gather_columns(void* out, const void* x, const int* columns, int N, int n, int ldx, DType dt, Stream s) {
    Move job = {out, x, columns, 0, (size_t)n, (size_t)n, (size_t)ldx, dt};
    cpu_for(move_columns_of_row, &job, (size_t)N, (size_t)N * n);
}

static void scatter_columns(void* out, const void* x, const int* source, int N, int K, int n, DType dt, Stream s) {
    Move job = {out, x, source, 1, (size_t)K, (size_t)K, (size_t)n, dt};
    cpu_for(move_columns_of_row, &job, (size_t)N, (size_t)N * K);
}

static void install(Kernels* table) {
    table->embedding_forward = embedding_forward;
    table->embedding_backward = embedding_backward;
    table->activation_forward = activation_forward;
    table->activation_backward = activation_backward;
    table->add = add;
}

static void install_ranks(RankOps* table) {
    table->cast = cast;
    table->attention_merge = attention_merge;
    table->gather_rows = gather_rows;
    table->gather_columns = gather_columns;
    table->scatter_columns = scatter_columns;
    table->scatter_rows = scatter_rows;
    table->split_heads = split_heads;
    table->join_heads = join_heads;
    table->combine = combine;
    table->normalize = normalize;
}

const CpuFamily ISA_NAME(elementwise) = {install, install_ranks, NULL};
