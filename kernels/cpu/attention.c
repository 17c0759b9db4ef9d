// attention.c - attention in fp32, in blocks of 64 queries by 64 keys.
//
// Every inner product is one small matmul, multiply_add(), on fp32 blocks that are packed (and converted) when they
// are met. Forward, lanes are queries: S^T = K Q^T and O^T = V^T P^T need K and V as they
// lie, only Q is transposed once an task, and the running maximum and sum of each query stay in their lane.
// Backward, lanes are keys: a block of keys transposes K and V once and then meets every block of queries.
enum { BLOCK = 64, GROUP = 2, HEAD_UNIT = 16, DQ_UNIT = 4, DK_UNIT = 4, QUERY_HALVES = 4, KEY_HALVES = 6 };

#include "kernels/cpu/attention_tasks.h"

enum {
    TILE_ROWS = 4,
    TILE_VECTORS = SIMD_FLOATS == 16 ? 4 : 2,  // 16 sums in the 32 registers of AVX-512, else 8 in 16
};

// ---- the block matmul

typedef struct Matrix {  // element (r, k) lies at p[r * row + k * step]
    const float* p;
    size_t row, step;
} Matrix;

typedef enum Start { SET, ADD, RESCALE } Start;  // c = a b, c += a b, c = c * keep + a b

// Computes one register tile of TILE_ROWS x n vectors.
SIMD_INLINE void tile(float* c, size_t ldc, Matrix a, const float* b, size_t ldb, int K, Start start, const float* keep,
                      int n) {
    vf sum[TILE_ROWS][TILE_VECTORS], bk[TILE_VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < n; v++) {
            sum[r][v] = start == SET ? (vf){0} : vf_load(c + r * ldc + v * SIMD_FLOATS);
            if (start == RESCALE) sum[r][v] *= vf_load(keep + v * SIMD_FLOATS);
        }
    for (int k = 0; k < K; k++, b += ldb) {
#pragma GCC unroll 4
        for (int v = 0; v < n; v++) bk[v] = vf_load(b + v * SIMD_FLOATS);
#pragma GCC unroll 4
        for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < n; v++) sum[r][v] += a.p[r * a.row + k * a.step] * bk[v];
    }
#pragma GCC unroll 4
    for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < n; v++) vf_store(c + r * ldc + v * SIMD_FLOATS, sum[r][v]);
}

// Computes c (M,N) from a (M,K) b (K,N) and keep (N). M is rounded up to whole tiles of rows, N to whole vectors: there
// must be room.
static void multiply_add(float* c, size_t ldc, Matrix a, const float* b, size_t ldb, int M, int N, int K, Start start,
                         const float* keep) {
    for (int col = 0; col < N; col += TILE_VECTORS * SIMD_FLOATS) {
        int n = MIN(CEIL_DIV(N - col, SIMD_FLOATS), TILE_VECTORS);
        const float* keep_col = start == RESCALE ? keep + col : NULL;
        for (int row = 0; row < M; row += TILE_ROWS) {
            Matrix rows = {a.p + row * a.row, a.row, a.step};
            float* to = c + row * ldc + col;
            if (n == TILE_VECTORS) tile(to, ldc, rows, b + col, ldb, K, start, keep_col, TILE_VECTORS);
            else if (n == 1) tile(to, ldc, rows, b + col, ldb, K, start, keep_col, 1);
            else if (n == 2) tile(to, ldc, rows, b + col, ldb, K, start, keep_col, MIN(2, TILE_VECTORS));
            else tile(to, ldc, rows, b + col, ldb, K, start, keep_col, MIN(3, TILE_VECTORS));
        }
    }
}

// ---- packing

SIMD_INLINE void pack_rows_as(float* to, const void* x, size_t ld, int n, int HS, DType dt) {
    int HSp = (int)padded(HS);
    for (int r = 0; r < n; r++, to += HSp) {
        const char* row = (const char*)x + r * ld * dtype_bytes(dt);
        if (r + AHEAD < n)
            for (size_t byte = 0; byte < HS * dtype_bytes(dt); byte += 64)
                __builtin_prefetch(row + AHEAD * ld * dtype_bytes(dt) + byte);
        FOR_VECTORS(c, lanes, 0, HS, vf_store(to + c, vf_get(row, c, lanes, dt)););
        for (int c = ROUND_UP(HS, SIMD_FLOATS); c < HSp; c += SIMD_FLOATS) vf_store(to + c, (vf){0});
    }
}

// Packs n rows of a head (n,HS; ld) into fp32 rows of padded(HS), with zeros in the padding and up to n_padded rows.
static void pack_rows(float* to, const void* x, int ld, int n, int n_padded, int HS, DType dt) {
    WITH_DTYPE(dt, pack_rows_as, to, x, (size_t)ld, n, HS);
    memset(to + n * padded(HS), 0, (n_padded - n) * padded(HS) * sizeof(float));
}

// ---- tasks

static void begin_task(void) {}
static void end_task(void) {}

// ---- forward: the blocks of queries of a task share each packed block of keys

typedef struct ForwardScratch {
    float s[BLOCK * BLOCK];
    Running running[GROUP];
    float packed[];  // k, v: (BLOCK,HSp); GROUP times q^T, o^T: (HSp,BLOCK)
} ForwardScratch;

// Takes the running softmax of s (nk,N), whose lanes are queries: s = exp(s - max). Row j of s is hidden from the lanes
// below hidden + j.
static void softmax_block(float* s, Running* r, int nk, int N, int hidden) {
    const vf lowest = vf_set1(-INFINITY), lane = vf_lanes();
    for (int v = 0; v < N; v += SIMD_FLOATS) {
        vf max = vf_load(r->max + v), old = max, sum = (vf){0};
        int all = MIN(nk, v + 1 - hidden), some = MIN(nk, v + SIMD_FLOATS - hidden);  // rows that all or some lanes see
        for (int j = 0; j < all; j++) max = vf_max(max, vf_load(s + j * BLOCK + v));
        for (int j = MAX(all, 0); j < some; j++) {
            vf x = vf_select(lane < vf_set1((float)(hidden + j - v)), lowest, vf_load(s + j * BLOCK + v));
            vf_store(s + j * BLOCK + v, x);
            max = vf_max(max, x);
        }
        for (int j = 0; j < some; j++) {
            vf p = vf_exp_bounded(vf_load(s + j * BLOCK + v) - max);
            vf_store(s + j * BLOCK + v, p);
            sum += p;
        }
        for (int j = MAX(some, 0); j < nk; j++) vf_store(s + j * BLOCK + v, (vf){0});
        vf keep = vf_exp_bounded(old - max);
        vf_store(r->keep + v, keep);
        vf_store(r->sum + v, vf_load(r->sum + v) * keep + sum);
        vf_store(r->max + v, max);
    }
}

// One block of queries (lanes, N of them) meets one block of nk keys; start is SET at its first, which every query
// sees, then RESCALE. On the diagonal rows of 16 keys leave out the vectors of queries that see none of them.
static void forward_block(float* o, float* s, Running* r, const float* q, const float* k, const float* v, int nk, int N,
                          int hidden, int HS, Start start) {
    size_t HSp = padded(HS);
    int step = hidden + nk > 0 ? 16 : BLOCK;
    for (int j = 0; j < nk; j += step) {
        int col = MAX(0, hidden + j) / 16 * 16;
        multiply_add(s + j * BLOCK + col, BLOCK, (Matrix){k + j * HSp, HSp, 1}, q + col, BLOCK, MIN(step, nk - j),
                     N - col, HS, SET, NULL);
    }
    softmax_block(s, r, nk, N, hidden);
    for (int j = 0; j < nk; j += step) {
        int col = MAX(0, hidden + j) / 16 * 16;
        multiply_add(o + col, BLOCK, (Matrix){v + j * HSp, 1, HSp}, s + j * BLOCK + col, BLOCK, HS, N - col,
                     MIN(step, nk - j), j == 0 ? start : ADD, r->keep + col);
    }
}

static void forward_task(void* out, float* lse, const Attention* a, Span d, int h, int i0, DType dt, void* scratch) {
    ForwardScratch* w = (ForwardScratch*)scratch;
    int HS = a->HS, i1 = MIN(i0 + GROUP * BLOCK, d.q_len), n_keys = n_visible(a, d, i1 - 1);
    size_t HSp = padded(HS), block = HSp * BLOCK;
    float *k = w->packed, *v = k + block, *q = v + block, *o = q + GROUP * block;
    for (int i = i0, g = 0; i < i1; i += BLOCK, g++) {
        int nq = MIN(BLOCK, i1 - i), N = ROUND_UP(nq, SIMD_FLOATS);
        pack_rows(k, element(a->q, at(d.q0 + i, a->ldq, h, HS), dt), a->ldq, nq, N, HS, dt);
        transpose(q + g * block, BLOCK, k, HSp, N, (int)HSp, a->scale);
        begin_running(&w->running[g]);
    }
    for (int j0 = 0; j0 < n_keys; j0 += BLOCK) {
        int nk = MIN(BLOCK, n_keys - j0);
        size_t key = at(d.k0 + j0, a->ldkv, h / heads_of_key(a), HS);
        pack_rows(k, element(a->k, key, dt), a->ldkv, nk, ROUND_UP(nk, TILE_ROWS), HS, dt);
        pack_rows(v, element(a->v, key, dt), a->ldkv, nk, nk, HS, dt);
        for (int i = i0, g = 0; i < i1; i += BLOCK, g++) {
            int last = MIN(i + BLOCK, i1) - 1, N = ROUND_UP(last + 1 - i, SIMD_FLOATS);
            int seen = MIN(nk, n_visible(a, d, last) - j0), hidden = a->causal ? j0 - i - d.offset : -BLOCK;
            if (seen > 0)
                forward_block(o + g * block, w->s, &w->running[g], q + g * block, k, v, seen, N, hidden, HS,
                              j0 == 0 ? SET : RESCALE);
        }
    }
    for (int i = i0, g = 0; i < i1; i += BLOCK, g++)
        finish_block(out, lse, a, d.q0 + i, h, o + g * block, &w->running[g], MIN(BLOCK, i1 - i), 1, dt, k);
}

// ---- backward

typedef struct BackwardScratch {
    float p[BLOCK * BLOCK], ds[BLOCK * BLOCK];
} BackwardScratch;

static size_t backward_bytes(void) { return sizeof(BackwardScratch); }

static size_t forward_bytes(const KernelLimits* limits) {
    return sizeof(ForwardScratch) + (2 + 2 * GROUP) * BLOCK * padded(limits->HS) * sizeof(float);
}

// Computes p and ds from s = q k^T and ds = dout v^T. Lanes are keys; row i sees the first n_seen + i, or all nk.
static void probabilities(BackwardScratch* w, const QueryBlock* r, int nk, int n_seen, int causal) {
    const vf lane = vf_lanes(), zero = (vf){0};
    for (int i = 0; i < r->nq; i++) {
        int seen = MIN(nk, causal ? n_seen + i : nk), v = 0;
        float *p_row = w->p + i * BLOCK, *ds_row = w->ds + i * BLOCK;
        for (; v < seen; v += SIMD_FLOATS) {
            vf p = vf_exp_bounded(vf_load(p_row + v) - r->lse[i]), ds = p * (vf_load(ds_row + v) - r->D[i]);
            if (v + SIMD_FLOATS > seen) {
                vf_mask hidden = lane >= vf_set1((float)(seen - v));
                p = vf_select(hidden, zero, p);
                ds = vf_select(hidden, zero, ds);
            }
            vf_store(p_row + v, p);
            vf_store(ds_row + v, ds);
        }
        for (; v < nk; v += SIMD_FLOATS) vf_store(p_row + v, zero), vf_store(ds_row + v, zero);
    }
}

// On the diagonal, 16 rows at a time leave out the columns that none of them needs.
static void backward_block(const KeyBlock* b, const QueryBlock* r, const Attention* a, int want_dkv, void* scratch) {
    BackwardScratch* w = (BackwardScratch*)scratch;
    int HS = a->HS, causal = a->causal;
    size_t HSp = padded(HS), block = HSp * BLOCK;
    const float *k = b->packed, *kt = k + block, *vt = kt + block, *q = r->packed, *dout = q + block;
    int ahead = r->begin - b->first;  // of the first query that sees key 0
    int diagonal = causal && ahead < b->nk, step = diagonal ? 16 : BLOCK;
    for (int i = 0; i < r->nq; i += step) {
        int N = diagonal ? MIN(b->nk, ahead + i + step) : b->nk, M = MIN(step, r->nq - i);
        multiply_add(w->p + i * BLOCK, BLOCK, (Matrix){q + i * HSp, HSp, 1}, kt, BLOCK, M, N, HS, SET, NULL);
        multiply_add(w->ds + i * BLOCK, BLOCK, (Matrix){dout + i * HSp, HSp, 1}, vt, BLOCK, M, N, HS, SET, NULL);
    }
    probabilities(w, r, b->nk, ahead + 1, causal);
    for (int i = 0; i < r->nq && r->dq; i += step) {
        int K = diagonal ? MIN(b->nk, ahead + i + step) : b->nk, M = MIN(step, r->nq - i);
        multiply_add(r->dq + i * HSp, HSp, (Matrix){w->ds + i * BLOCK, BLOCK, 1}, k, HSp, M, (int)HSp, K, ADD, NULL);
    }
    for (int j = 0; j < b->nk && want_dkv; j += step) {
        int i = diagonal ? MAX(0, j - ahead) : 0, M = MIN(step, b->nk - j);
        Matrix p = {w->p + i * BLOCK + j, 1, BLOCK}, ds = {w->ds + i * BLOCK + j, 1, BLOCK};
        multiply_add(b->dv + j * HSp, HSp, p, dout + i * HSp, HSp, M, (int)HSp, r->nq - i, ADD, NULL);
        multiply_add(b->dk + j * HSp, HSp, ds, q + i * HSp, HSp, M, (int)HSp, r->nq - i, ADD, NULL);
    }
}

// Packs k (BLOCK,HSp), and k and v transposed, (HSp,BLOCK).
static void pack_keys(const KeyBlock* b, const Attention* a, Span d, int kv, int j, DType dt, float* queries) {
    size_t HSp = padded(a->HS), block = HSp * BLOCK, key = at(d.k0 + j, a->ldkv, kv, a->HS);
    int N = ROUND_UP(b->nk, SIMD_FLOATS);
    float *k = b->packed, *kt = k + block, *vt = kt + block;
    pack_rows(k, element(a->v, key, dt), a->ldkv, b->nk, N, a->HS, dt);
    transpose(vt, BLOCK, k, HSp, N, (int)HSp, 1);
    pack_rows(k, element(a->k, key, dt), a->ldkv, b->nk, N, a->HS, dt);
    transpose(kt, BLOCK, k, HSp, N, (int)HSp, a->scale);
}

// Packs q and dout (BLOCK,HSp).
static void pack_queries(const QueryBlock* r, const void* dout, const Attention* a, Span d, int h, DType dt,
                         void* scratch) {
    size_t row = d.q0 + r->begin, block = padded(a->HS) * BLOCK, q = at(row, a->ldq, h, a->HS);
    int n = ROUND_UP(r->nq, TILE_ROWS);
    pack_rows(r->packed, element(a->q, q, dt), a->ldq, r->nq, n, a->HS, dt);
    pack_rows(r->packed + block, element(dout, at(row, a->ldo, h, a->HS), dt), a->ldo, r->nq, n, a->HS, dt);
}

static void put_queries(const Gradients* g, const Attention* a, Span d, int h, Part part, float* dq, DType dt,
                        float* room) {
    put_gradient(g->dq, a, d.q0 + part.i_begin, g->ld_dq, h, dq, part.i_end - part.i_begin, a->scale, dt);
}

static void install(Kernels* table) {
    table->attention_forward = attention_forward;
    table->attention_backward = attention_backward;
}

const CpuFamily ISA_NAME(attention) = {install, NULL, scratch};
