// norm.c - LayerNorm and RMSNorm: of rows of channels, fused with the residual sum before them, and of the heads of
// queries and keys, fused with the rotation of positions after it.
//
// All are limited by memory, which each tensor crosses once: a row of C elements stays in the first cache while it is
// normalised, in fp32. Rows are dealt to threads. Sums over rows (gradients of weights) are taken of a number of parts
// that depends on the rows alone, and of these in order, so that the number of threads cannot be seen in the result.
#include "kernels/cpu/simd.h"

enum {
    PARTS = 64,              // most parts that rows are cut into
    PART_ROWS = 8,           // least rows of a part
    STEP = 4 * SIMD_FLOATS,  // four sums side by side hide the latency of an addition
};

// ---- sums over rows: two vectors of C floats, as one part sees them

typedef struct Parts {
    float* sums;  // (n, 2, Cp)
    size_t rows, n, Cp;
} Parts;

static Parts parts_of(size_t N, size_t C) {
    size_t rows = MAX((size_t)PART_ROWS, CEIL_DIV(N, (size_t)PARTS));
    return (Parts){(float*)cpu_shared_scratch(), rows, CEIL_DIV(N, rows), ROUND_UP(C, (size_t)16)};
}

static float* clear_part(const Parts* p, size_t part) {
    return (float*)memset(p->sums + part * 2 * p->Cp, 0, 2 * p->Cp * sizeof(float));
}

typedef struct PartSums {
    float *a, *b;
    Parts p;
    size_t C;
} PartSums;

static void add_columns(const void* job, size_t vector, int thread) {
    const PartSums* j = (const PartSums*)job;
    const Parts* p = &j->p;
    size_t c = vector * SIMD_FLOATS;
    int n = (int)MIN((size_t)SIMD_FLOATS, j->C - c);
    vf sum_a = {0}, sum_b = {0};
    for (size_t part = 0; part < p->n; part++) {
        sum_a += vf_load(p->sums + part * 2 * p->Cp + c);
        sum_b += vf_load(p->sums + part * 2 * p->Cp + p->Cp + c);
    }
    vf_put(j->a, c, n, vf_get(j->a, c, n, DT_F32) + sum_a, DT_F32);
    if (j->b) vf_put(j->b, c, n, vf_get(j->b, c, n, DT_F32) + sum_b, DT_F32);
}

// Adds the parts, in order, to a (C) and b (C), unless that is NULL.
static void add_parts(float* a, float* b, const Parts* p, size_t C) {
    size_t vectors = CEIL_DIV(C, (size_t)SIMD_FLOATS);
    cpu_for(add_columns, &(PartSums){a, b, *p, C}, vectors, p->n * C);
}

// ---- norms of rows. `centred` is a constant: 1 for LayerNorm, 0 for RMSNorm, whose mean counts as 0

typedef struct Moments {
    float mean, rstd;
} Moments;

// Returns mean and 1 / sqrt(variance + eps) of x (C) fp32, the variance from differences to the mean. x has room for
// whole steps, which is filled with numbers that add nothing.
SIMD_INLINE Moments moments(float* x, size_t C, float eps, int centred) {
    vf sum[4] = {{0}}, square[4] = {{0}};
    size_t whole = ROUND_UP(C, (size_t)STEP);
    memset(x + C, 0, (whole - C) * sizeof(float));
    for (size_t c = 0; c < whole && centred; c += STEP)
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++) sum[u] += vf_load(x + c + u * SIMD_FLOATS);
    float mean = centred ? vf_sum(sum[0] + sum[1] + (sum[2] + sum[3])) / (float)C : 0;
    for (size_t c = C; c < whole; c++) x[c] = mean;
    for (size_t c = 0; c < whole; c += STEP)
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++) {
            vf d = vf_load(x + c + u * SIMD_FLOATS) - mean;
            square[u] += d * d;
        }
    float variance = vf_sum(square[0] + square[1] + (square[2] + square[3])) / (float)C;
    return (Moments){mean, 1 / sqrtf(variance + eps)};
}

typedef struct Norm {  // forward: from a and b; backward: of x = a and dout = b
    void *sum, *out, *dx;
    float *mean, *rstd;
    const void *a, *b, *weight, *bias;
    float eps;
    size_t N, C;
    DType dt;
    Parts parts;
} Norm;

// Reads a row, or the sum of two rows which it also stores, into x (C) fp32, and normalises it.
SIMD_INLINE void norm_row(const Norm* j, size_t row, float* x, int centred, DType dt) {
    const void *a = row_of(j->a, row, j->C, dt), *b = row_of(j->b, row, j->C, dt);
    void *sum = (void*)row_of(j->sum, row, j->C, dt), *out = (void*)row_of(j->out, row, j->C, dt);
    if (j->b) FOR_VECTORS(c, n, 0, j->C, vf_put(sum, c, n, vf_get(a, c, n, dt) + vf_get(b, c, n, dt), dt););
    if (j->b) a = sum;
    FOR_VECTORS(c, n, 0, j->C, vf_put(x, c, n, vf_get(a, c, n, dt), DT_F32););
    Moments m = moments(x, j->C, j->eps, centred);
    FOR_VECTORS(c, n, 0, j->C, {
        vf xhat = (vf_get(x, c, n, DT_F32) - m.mean) * m.rstd, w = vf_get(j->weight, c, n, dt);
        vf_put(out, c, n, centred ? xhat * w + vf_get(j->bias, c, n, dt) : xhat * w, dt);
    });
    if (centred) j->mean[row] = m.mean;
    j->rstd[row] = m.rstd;
}

static void norm_token(const void* job, size_t row, int thread) {
    const Norm* j = (const Norm*)job;
    float* x = (float*)cpu_thread_scratch(thread);
    if (j->mean) WITH_DTYPE(j->dt, norm_row, j, row, x, 1);
    else WITH_DTYPE(j->dt, norm_row, j, row, x, 0);
}

static void norm_forward(void* sum, void* out, float* mean, float* rstd, const void* a, const void* b,
                         const void* weight, const void* bias, float eps, int N, int C, DType dt, Stream s) {
    // clang-format off
    Norm job = {.sum = sum, .out = out, .mean = mean, .rstd = rstd, .a = a, .b = b, .weight = weight, .bias = bias,
                .eps = eps, .N = (size_t)N, .C = (size_t)C, .dt = dt};
    // clang-format on
    cpu_for(norm_token, &job, job.N, job.N * job.C);
}

// dx += rstd (g - mean(g) - xhat mean(g xhat)), means over C, xhat = (x - mean) rstd, g = dout weight; dweight +=
// dout xhat, dbias += dout. Without a mean its gradient, mean(g), is missing too.
SIMD_INLINE void norm_backward_row(void* dx, float* dweight, float* dbias, const void* dout, const void* x,
                                   const void* weight, float mean, float rstd, size_t C, int centred, DType dt) {
    vf g_sum = {0}, gx_sum = {0};
    FOR_VECTORS(c, n, 0, C, {
        vf xhat = (vf_get(x, c, n, dt) - mean) * rstd, g = vf_get(dout, c, n, dt) * vf_get(weight, c, n, dt);
        g_sum += g;
        gx_sum += g * xhat;
    });
    float g_mean = centred ? vf_sum(g_sum) / (float)C : 0, gx_mean = vf_sum(gx_sum) / (float)C;
    FOR_VECTORS(c, n, 0, C, {
        vf xhat = (vf_get(x, c, n, dt) - mean) * rstd, d = vf_get(dout, c, n, dt), g = d * vf_get(weight, c, n, dt);
        vf_put(dx, c, n, vf_get(dx, c, n, dt) + (g - g_mean - xhat * gx_mean) * rstd, dt);
        vf_put(dweight, c, n, vf_get(dweight, c, n, DT_F32) + d * xhat, DT_F32);
        if (centred) vf_put(dbias, c, n, vf_get(dbias, c, n, DT_F32) + d, DT_F32);
    });
}

static void norm_backward_part(const void* job, size_t part, int thread) {
    const Norm* j = (const Norm*)job;
    size_t C = j->C;
    DType dt = j->dt;
    float *dw = clear_part(&j->parts, part), *db = dw + j->parts.Cp;
    for (size_t n = part * j->parts.rows; n < MIN((part + 1) * j->parts.rows, j->N); n++) {
        void* dx = (void*)row_of(j->dx, n, C, dt);
        const void *dout = row_of(j->b, n, C, dt), *x = row_of(j->a, n, C, dt);
        if (j->mean) WITH_DTYPE(dt, norm_backward_row, dx, dw, db, dout, x, j->weight, j->mean[n], j->rstd[n], C, 1);
        else WITH_DTYPE(dt, norm_backward_row, dx, dw, db, dout, x, j->weight, 0, j->rstd[n], C, 0);
    }
}

static void norm_backward(void* dx, float* dweight, float* dbias, float* dx_sums, const void* dout, const void* x,
                          const void* weight, const float* mean, const float* rstd, int N, int C, DType dt, Stream s) {
    // clang-format off
    Norm job = {.dx = dx, .mean = (float*)mean, .rstd = (float*)rstd, .a = x, .b = dout, .weight = weight,
                .N = (size_t)N, .C = (size_t)C, .dt = dt, .parts = parts_of((size_t)N, (size_t)C)};
    // clang-format on
    team_run(norm_backward_part, &job, job.parts.n, 1, job.N * job.C < SERIAL);
    add_parts(dweight, dbias, &job.parts, job.C);
}

// ---- heads of queries and keys: normed (or not: weight NULL), then turned

typedef struct HeadScratch {  // a thread's
    float* turns;             // (HS): of a token's position, cosines, then sines
    float* g;                 // (HS)
    float* rstds;             // (heads, in whole vectors)
} HeadScratch;

static size_t head_floats(size_t heads, size_t HS) {
    return 2 * ROUND_UP(HS, (size_t)16) + ROUND_UP(heads, (size_t)16);
}

static HeadScratch head_scratch(const Rotary* r, int thread) {
    float* turns = (float*)cpu_thread_scratch(thread);
    size_t HSp = ROUND_UP((size_t)r->HS, (size_t)16);
    return (HeadScratch){turns, turns + HSp, turns + 2 * HSp};
}

static void load_turns(const HeadScratch* w, const Rotary* r, size_t n) {
    size_t half = (size_t)r->HS / 2;
    const float* pairs = r->table + (size_t)r->positions[n] * 2 * half;
    for (size_t j = 0; j < half; j++) w->turns[j] = pairs[2 * j], w->turns[half + j] = pairs[2 * j + 1];
}

// rstds (heads, in whole vectors) = 1 / sqrt(mean(x^2) + eps) of each head of a row. As many heads as a vector has
// lanes are finished together: a lane has the sum of one.
SIMD_INLINE void head_rstds(float* rstds, const void* x, size_t heads, size_t HS, float eps, DType dt) {
    for (size_t first = 0; first < heads; first += SIMD_FLOATS) {
        vf squares[SIMD_FLOATS] = {{0}}, sum = {0};
        for (size_t h = first; h < MIN(heads, first + SIMD_FLOATS); h++)
            FOR_VECTORS(j, n, h * HS, (h + 1) * HS, {
                vf d = vf_get(x, j, n, dt);
                squares[h - first] += d * d;
            });
        vf_transpose(squares);
        for (int i = 0; i < SIMD_FLOATS; i++) sum += squares[i];
        vf_store(rstds + first, 1.f / vf_sqrt(sum / (float)HS + eps));
    }
}

typedef struct Halves {  // elements j and HS/2 + j of a head vector, which turn together
    vf low, high;
} Halves;

SIMD_INLINE Halves get_halves(const void* x, size_t j, int n, size_t half, DType dt) {
    return (Halves){vf_get(x, j, n, dt), vf_get(x, half + j, n, dt)};
}

SIMD_INLINE void put_halves(void* x, size_t j, int n, size_t half, vf low, vf high, DType dt) {
    vf_put(x, j, n, low, dt);
    vf_put(x, half + j, n, high, dt);
}

SIMD_INLINE void turn_head(void* x, const float* turns, const void* weight, float rstd, size_t HS, DType dt) {
    size_t half = HS / 2;
    FOR_VECTORS(j, n, 0, half, {
        Halves y = get_halves(x, j, n, half, dt), turn = get_halves(turns, j, n, half, DT_F32);
        if (weight) {
            Halves w = get_halves(weight, j, n, half, dt);
            y.low *= w.low * rstd;
            y.high *= w.high * rstd;
        }
        put_halves(x, j, n, half, y.low * turn.low - y.high * turn.high, y.high * turn.low + y.low * turn.high, dt);
    });
}

SIMD_INLINE void turn_row(void* x, const HeadScratch* w, const Rotary* r, DType dt) {
    size_t HS = (size_t)r->HS, heads = (size_t)(r->NH + r->NKV);
    if (r->q_weight) head_rstds(w->rstds, x, heads, HS, r->eps, dt);
    for (size_t h = 0; h < heads; h++)
        turn_head((void*)row_of(x, h, HS, dt), w->turns, h < (size_t)r->NH ? r->q_weight : r->k_weight, w->rstds[h], HS,
                  dt);
}

typedef struct Rotation {  // forward of x, or backward of dx, in place
    void *x, *raw;
    const Rotary* r;
    size_t width;
    DType dt;
    Parts parts;
} Rotation;

static void turn_token(const void* job, size_t n, int thread) {
    const Rotation* j = (const Rotation*)job;
    HeadScratch w = head_scratch(j->r, thread);
    void* row = (void*)row_of(j->x, n, (size_t)j->r->ld, j->dt);
    if (j->raw) memcpy((void*)row_of(j->raw, n, j->width, j->dt), row, j->width * dtype_bytes(j->dt));
    load_turns(&w, j->r, n);
    WITH_DTYPE(j->dt, turn_row, row, &w, j->r);
}

static void rotary_forward(void* x, void* raw, const Rotary* r, DType dt, Stream s) {
    size_t width = (size_t)(r->NH + r->NKV) * (size_t)r->HS, N = (size_t)r->N;
    Rotation job = {.x = x, .raw = raw, .r = r, .width = width, .dt = dt};
    cpu_for(turn_token, &job, N, N * width);
}

// dx = g, which is dx turned back; but with a weight, h = g weight and xhat = raw rstd:  dx = rstd (h - xhat mean(h
// xhat)), dweight += g xhat. w->g (HS) keeps the first pass for the second.
SIMD_INLINE void turn_head_back(void* dx, float* dweight, const HeadScratch* w, const void* weight, const void* raw,
                                float rstd, size_t HS, DType dt) {
    size_t half = HS / 2;
    vf sum = {0};
    FOR_VECTORS(j, n, 0, half, {
        Halves d = get_halves(dx, j, n, half, dt), turn = get_halves(w->turns, j, n, half, DT_F32);
        vf low = d.low * turn.low + d.high * turn.high, high = d.high * turn.low - d.low * turn.high;
        if (weight) {
            Halves x = get_halves(raw, j, n, half, dt), factor = get_halves(weight, j, n, half, dt);
            Halves dw = get_halves(dweight, j, n, half, DT_F32);
            x.low *= rstd, x.high *= rstd;
            sum += low * factor.low * x.low + high * factor.high * x.high;
            put_halves(dweight, j, n, half, dw.low + low * x.low, dw.high + high * x.high, DT_F32);
            put_halves(w->g, j, n, half, low, high, DT_F32);
        } else {
            put_halves(dx, j, n, half, low, high, dt);
        }
    });
    if (!weight) return;
    float mean = vf_sum(sum) / (float)HS;
    FOR_VECTORS(j, n, 0, half, {
        Halves x = get_halves(raw, j, n, half, dt), factor = get_halves(weight, j, n, half, dt);
        Halves g = get_halves(w->g, j, n, half, DT_F32);
        put_halves(dx, j, n, half, (g.low * factor.low - x.low * rstd * mean) * rstd,
                   (g.high * factor.high - x.high * rstd * mean) * rstd, dt);
    });
}

// Turns a row back. dweights are those of queries, and Cp further on those of keys.
SIMD_INLINE void turn_row_back(void* dx, float* dweights, size_t Cp, const HeadScratch* w, const void* raw,
                               const Rotary* r, DType dt) {
    size_t HS = (size_t)r->HS, heads = (size_t)(r->NH + r->NKV);
    if (raw) head_rstds(w->rstds, raw, heads, HS, r->eps, dt);
    for (size_t h = 0; h < heads; h++) {
        int key = h >= (size_t)r->NH;
        turn_head_back((void*)row_of(dx, h, HS, dt), dweights + key * Cp, w, key ? r->k_weight : r->q_weight,
                       raw ? row_of(raw, h, HS, dt) : NULL, w->rstds[h], HS, dt);
    }
}

static void turn_back_part(const void* job, size_t part, int thread) {
    const Rotation* j = (const Rotation*)job;
    const Rotary* r = j->r;
    const Parts* p = &j->parts;
    HeadScratch w = head_scratch(r, thread);
    float* dweights = clear_part(p, part);
    for (size_t n = part * p->rows; n < MIN((part + 1) * p->rows, (size_t)r->N); n++) {
        load_turns(&w, r, n);
        WITH_DTYPE(j->dt, turn_row_back, (void*)row_of(j->x, n, (size_t)r->ld, j->dt), dweights, p->Cp, &w,
                   j->raw ? row_of(j->raw, n, j->width, j->dt) : NULL, r);
    }
}

static void rotary_backward(void* dx, float* dq_weight, float* dk_weight, const void* raw, const Rotary* r, DType dt,
                            Stream s) {
    size_t width = (size_t)(r->NH + r->NKV) * (size_t)r->HS;
    Rotation job = {dx, (void*)raw, r, width, dt, parts_of((size_t)r->N, (size_t)r->HS)};
    team_run(turn_back_part, &job, job.parts.n, 1, r->N * width < SERIAL);
    if (raw) add_parts(dq_weight, dk_weight, &job.parts, (size_t)r->HS);
}

static void install(Kernels* table) {
    table->norm_forward = norm_forward;
    table->norm_backward = norm_backward;
    table->rotary_forward = rotary_forward;
    table->rotary_backward = rotary_backward;
}

static CpuScratch scratch(const KernelLimits* limits) {
    size_t row = ROUND_UP((size_t)MAX(limits->C, limits->HS), (size_t)64);
    size_t heads = head_floats((size_t)(limits->NH + limits->NKV), (size_t)limits->HS);
    return (CpuScratch){.shared_bytes = PARTS * 2 * row * sizeof(float),
                        .thread_bytes = MAX(row, heads) * sizeof(float)};
}

const CpuFamily ISA_NAME(norm) = {install, NULL, scratch};
