// attention.c - attention over packed documents, forward and backward, in blocks of 64 queries by 64 keys.
//
// Every inner product is one small matmul, multiply_add(), on fp32 blocks that are packed (and converted) when they are
// met; its lanes run along rows of 64 floats. Forward, lanes are queries: S^T = K Q^T and O^T = V^T P^T need K and V as
// they lie, only Q is transposed once an item, and the running maximum and sum of each query stay in their lane. Backward,
// lanes are keys: a block of keys transposes K and V once and then meets every block of queries.
//
// Work is cut into items (document, head, block), large ones first, that threads take as they come. The backward pass of
// a document is one item a head, or, where that would leave threads idle, separate items for dq and for dk, dv that compute
// probabilities twice. Both add the same blocks in the same order, so the result does not depend on the choice.
#include <float.h>
#include <omp.h>

#include "kernels/cpu/simd.h"

enum {
    BLOCK = 64,    // queries or keys of a block, and the row stride of blocks whose lanes are queries or keys
    TILE_ROWS = 4, // register tile: 16 sums of AVX-512, or 8 where there are 16 registers
    TILE_VECTORS = SIMD_FLOATS == 16 ? 4 : 2,
};

// Head size as packed: whole vectors, zero above HS.
static size_t padded(int HS) { return ROUND_UP((size_t)HS, (size_t)16); }

// ---- the block matmul

typedef struct Matrix {  // element (r, k) lies at p[r * row + k * step]
    const float* p;
    size_t row, step;
} Matrix;

typedef enum Start { SET, ADD, RESCALE } Start;  // c = a b, c += a b, c = c * keep + a b

// One register tile of TILE_ROWS x n vectors.
static inline __attribute__((always_inline)) void tile(float* c, size_t ldc, Matrix a, const float* b, size_t ldb, int K,
                                                       Start start, const float* keep, int n) {
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

// c (M,N) from a (M,K) b (K,N) and keep (N). M is rounded up to whole tiles of rows, N to whole vectors: there must be room.
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

static inline const void* element(const void* p, size_t i, DType dt) { return (const char*)p + i * dtype_bytes(dt); }
static inline size_t at(size_t row, int ld, int h, int HS) { return row * (size_t)ld + (size_t)h * HS; }

// n rows of a head, (n,HS) with stride ld, to fp32 rows of padded(HS); zeros in the padding and up to n_padded rows.
static void pack_rows(float* to, const void* x, int ld, int n, int n_padded, int HS, DType dt) {
    size_t HSp = padded(HS);
    for (int r = 0; r < n; r++)
        for (int c = 0; c < (int)HSp; c += SIMD_FLOATS)
            vf_store(to + r * HSp + c, vf_load_part(element(x, (size_t)r * ld + c, dt), MIN(SIMD_FLOATS, HS - c), dt));
    memset(to + n * HSp, 0, (n_padded - n) * HSp * sizeof(float));
}

static void store_rows(void* to, int ld, const float* x, int n, int HS, float scale, DType dt) {
    size_t HSp = padded(HS);
    for (int r = 0; r < n; r++)
        for (int c = 0; c < HS; c += SIMD_FLOATS)
            vf_store_part((void*)element(to, (size_t)r * ld + c, dt), vf_load(x + r * HSp + c) * scale,
                          MIN(SIMD_FLOATS, HS - c), dt);
}

// to (cols,rows; ldto) = scale * from (rows,cols; ldfrom)^T; both multiples of SIMD_FLOATS.
// Halving the distance between rows that are interleaved, log2(SIMD_FLOATS) times, transposes a square of vectors.
static void transpose(float* to, size_t ldto, const float* from, size_t ldfrom, int rows, int cols, float scale) {
    for (int r = 0; r < rows; r += SIMD_FLOATS)
        for (int c = 0; c < cols; c += SIMD_FLOATS) {
            vf x[SIMD_FLOATS], y[SIMD_FLOATS];
#pragma GCC unroll 16
            for (int i = 0; i < SIMD_FLOATS; i++) x[i] = vf_load(from + (r + i) * ldfrom + c) * scale;
#pragma GCC unroll 4
            for (int distance = 1; distance < SIMD_FLOATS; distance *= 2) {
#pragma GCC unroll 8
                for (int i = 0; i < SIMD_FLOATS / 2; i++) {
                    y[2 * i] = vf_interleave_low(x[i], x[i + SIMD_FLOATS / 2]);
                    y[2 * i + 1] = vf_interleave_high(x[i], x[i + SIMD_FLOATS / 2]);
                }
#pragma GCC unroll 16
                for (int i = 0; i < SIMD_FLOATS; i++) x[i] = y[i];
            }
#pragma GCC unroll 16
            for (int i = 0; i < SIMD_FLOATS; i++) vf_store(to + (c + i) * ldto + r, x[i]);
        }
}

// ---- forward: one item is up to BLOCK queries of one document and head

typedef struct Span {  // rows of one document
    size_t q0, k0;     // its first query and key
    int q_len, k_len;
} Span;

static Span document(const Attention* a, int b) {
    return (Span){(size_t)a->cu_q[b], (size_t)a->cu_k[b], a->cu_q[b + 1] - a->cu_q[b], a->cu_k[b + 1] - a->cu_k[b]};
}

// Keys that query i of the document sees.
static int n_visible(const Attention* a, Span d, int i) {
    return a->causal ? MIN(d.k_len, i + 1 + d.k_len - d.q_len) : d.k_len;
}

// Running softmax of s (nk,N), lanes are queries: s = exp(s - max), max and sum updated, keep = exp(old max - max).
// Row j of s is hidden from the first hidden + j lanes; hidden + nk <= 0: nothing is hidden.
static void softmax_block(float* s, float* max, float* sum, float* keep, int nk, int N, int hidden) {
    const vf lowest = (vf){0} - INFINITY, lane = vf_lanes();
    for (int v = 0; v < N; v += SIMD_FLOATS) {
        vf m = vf_load(max + v), old = m, total = (vf){0};
        for (int j = 0; j < nk; j++) {
            vf x = vf_load(s + j * BLOCK + v);
            if (hidden + j > v) {
                x = vf_select(lane < (vf){0} + (float)(hidden + j - v), lowest, x);
                vf_store(s + j * BLOCK + v, x);
            }
            m = vf_max(m, x);
        }
        for (int j = 0; j < nk; j++) {
            vf p = vf_exp(vf_load(s + j * BLOCK + v) - m);
            vf_store(s + j * BLOCK + v, p);
            total += p;
        }
        vf k = vf_exp(old - m);
        vf_store(keep + v, k);
        vf_store(sum + v, vf_load(sum + v) * k + total);
        vf_store(max + v, m);
    }
}

typedef struct ForwardScratch {
    float s[BLOCK * BLOCK], max[BLOCK], sum[BLOCK], keep[BLOCK];
    float packed[];  // q^T, o^T: (HSp,BLOCK); k, v: (BLOCK,HSp)
} ForwardScratch;

static void forward_item(void* out, float* lse, const Attention* a, Span d, int h, int i0, DType dt, ForwardScratch* w) {
    int HS = a->HS, nq = MIN(BLOCK, d.q_len - i0), N = ROUND_UP(nq, SIMD_FLOATS), n_keys = n_visible(a, d, i0 + nq - 1);
    size_t HSp = padded(HS), Nq = (size_t)a->cu_q[a->n_docs], block = HSp * BLOCK, query = d.q0 + i0;
    float *q = w->packed, *o = q + block, *k = o + block, *v = k + block;
    pack_rows(k, element(a->q, at(query, a->ldq, h, HS), dt), a->ldq, nq, N, HS, dt);
    transpose(q, BLOCK, k, HSp, N, (int)HSp, a->scale);
    memset(o, 0, block * sizeof(float));
    for (int i = 0; i < BLOCK; i++) w->max[i] = -FLT_MAX, w->sum[i] = 0;
    for (int j0 = 0; j0 < n_keys; j0 += BLOCK) {
        int nk = MIN(BLOCK, n_keys - j0), nk_padded = ROUND_UP(nk, TILE_ROWS);
        pack_rows(k, element(a->k, at(d.k0 + j0, a->ldkv, h, HS), dt), a->ldkv, nk, nk_padded, HS, dt);
        pack_rows(v, element(a->v, at(d.k0 + j0, a->ldkv, h, HS), dt), a->ldkv, nk, nk, HS, dt);
        multiply_add(w->s, BLOCK, (Matrix){k, HSp, 1}, q, BLOCK, nk, N, HS, SET, NULL);
        softmax_block(w->s, w->max, w->sum, w->keep, nk, N, a->causal ? j0 - (i0 + d.k_len - d.q_len) : -BLOCK);
        multiply_add(o, BLOCK, (Matrix){v, 1, HSp}, w->s, BLOCK, HS, N, nk, RESCALE, w->keep);
    }
    for (int i = 0; i < nq; i++) lse[h * Nq + query + i] = w->max[i] + logf(w->sum[i]);
    for (int i = 0; i < BLOCK; i++) w->keep[i] = 1 / w->sum[i];
    transpose(k, HSp, o, BLOCK, (int)HSp, N, 1);
    for (int i = 0; i < nq; i++)
        store_rows((void*)element(out, at(query + i, a->ldo, h, HS), dt), 0, k + i * HSp, 1, HS, w->keep[i], dt);
}

// ---- backward: with P = exp(S - lse) and dS = P (dO V^T - D), D = dO . O by row,
//      dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K

typedef struct Gradients {
    void *dq, *dk, *dv;
    const void* dout;
    const float *lse, *D;  // (NH,Nq)
} Gradients;

typedef struct BackwardScratch {
    float p[BLOCK * BLOCK], ds[BLOCK * BLOCK];
    float packed[];  // k, k^T, v^T, q, dout, dk, dv: a block each; then dq of all queries of the item
} BackwardScratch;

// p and ds from s = q k^T and ds = dout v^T; lanes are keys, of which row i sees the first n_seen + i * causal.
static void probabilities(BackwardScratch* w, const float* lse, const float* D, int nq, int nk, int n_seen, int causal) {
    const vf lane = vf_lanes(), zero = (vf){0};
    for (int i = 0; i < nq; i++) {
        int seen = MIN(nk, n_seen + (causal ? i : 0));
        for (int v = 0; v < nk; v += SIMD_FLOATS) {
            vf p = vf_exp(vf_load(w->p + i * BLOCK + v) - lse[i]), ds = p * (vf_load(w->ds + i * BLOCK + v) - D[i]);
            if (v + SIMD_FLOATS > seen) {
                vf_mask hidden = lane >= zero + (float)(seen - v);
                p = vf_select(hidden, zero, p);
                ds = vf_select(hidden, zero, ds);
            }
            vf_store(w->p + i * BLOCK + v, p);
            vf_store(w->ds + i * BLOCK + v, ds);
        }
    }
}

// Queries [i_begin, i_end) against keys [j_begin, j_end), all at multiples of BLOCK; stores dq of the queries when
// want_dq, dk and dv of the keys when want_dkv.
static void backward_item(const Gradients* g, const Attention* a, Span d, int h, int i_begin, int i_end, int j_begin,
                          int j_end, int want_dq, int want_dkv, DType dt, BackwardScratch* w) {
    int HS = a->HS;
    size_t HSp = padded(HS), block = HSp * BLOCK, Nq = (size_t)a->cu_q[a->n_docs];
    float *k = w->packed, *kt = k + block, *vt = kt + block, *q = vt + block, *dout = q + block, *dk = dout + block,
          *dv = dk + block, *dq = dv + block;
    if (want_dq) memset(dq, 0, ROUND_UP(i_end - i_begin, BLOCK) * HSp * sizeof(float));
    j_end = MIN(MIN(j_end, d.k_len), ROUND_UP(n_visible(a, d, i_end - 1), BLOCK));
    for (int j0 = j_begin; j0 < j_end; j0 += BLOCK) {
        int nk = MIN(BLOCK, j_end - j0), N = ROUND_UP(nk, SIMD_FLOATS), first = a->causal ? j0 - (d.k_len - d.q_len) : 0;
        size_t key = at(d.k0 + j0, a->ldkv, h, HS);
        pack_rows(k, element(a->v, key, dt), a->ldkv, nk, N, HS, dt);
        transpose(vt, BLOCK, k, HSp, N, (int)HSp, 1);
        pack_rows(k, element(a->k, key, dt), a->ldkv, nk, N, HS, dt);
        transpose(kt, BLOCK, k, HSp, N, (int)HSp, a->scale);
        memset(dk, 0, 2 * block * sizeof(float));
        for (int i0 = MAX(i_begin, first / BLOCK * BLOCK); i0 < i_end; i0 += BLOCK) {
            int nq = MIN(BLOCK, i_end - i0);
            size_t row = h * Nq + d.q0 + i0;
            pack_rows(q, element(a->q, at(d.q0 + i0, a->ldq, h, HS), dt), a->ldq, nq, BLOCK, HS, dt);
            pack_rows(dout, element(g->dout, at(d.q0 + i0, a->ldo, h, HS), dt), a->ldo, nq, BLOCK, HS, dt);
            multiply_add(w->p, BLOCK, (Matrix){q, HSp, 1}, kt, BLOCK, nq, N, HS, SET, NULL);
            multiply_add(w->ds, BLOCK, (Matrix){dout, HSp, 1}, vt, BLOCK, nq, N, HS, SET, NULL);
            probabilities(w, g->lse + row, g->D + row, nq, nk, a->causal ? i0 + 1 - first : nk, a->causal);
            float* dq_rows = dq + (i0 - i_begin) * HSp;
            if (want_dq) multiply_add(dq_rows, HSp, (Matrix){w->ds, BLOCK, 1}, k, HSp, nq, (int)HSp, nk, ADD, NULL);
            if (!want_dkv) continue;
            multiply_add(dv, HSp, (Matrix){w->p, 1, BLOCK}, dout, HSp, nk, (int)HSp, nq, ADD, NULL);
            multiply_add(dk, HSp, (Matrix){w->ds, 1, BLOCK}, q, HSp, nk, (int)HSp, nq, ADD, NULL);
        }
        if (!want_dkv) continue;
        store_rows((void*)element(g->dk, key, dt), a->ldkv, dk, nk, HS, a->scale, dt);
        store_rows((void*)element(g->dv, key, dt), a->ldkv, dv, nk, HS, 1, dt);
    }
    void* to = (void*)element(g->dq, at(d.q0 + i_begin, a->ldq, h, HS), dt);
    if (want_dq) store_rows(to, a->ldq, dq, i_end - i_begin, HS, a->scale, dt);
}

// ---- the list of work: items are dealt out in falling order of size, each for all heads

typedef enum Kind { FORWARD, BACKWARD, BACKWARD_DQ, BACKWARD_DKV } Kind;

typedef struct Item {
    int doc, begin;  // document and first row of its block
    Kind kind;
    float cost;      // pairs of a query and a key, times the matmuls for each
} Item;

enum { DQ_ROWS = 4 * BLOCK };  // queries of a BACKWARD_DQ item: they share the transposition of each block of keys

// One for each row at most: blocks have at least one, and a document that is split has more rows than pieces.
static size_t most_items(const KernelLimits* limits) { return (size_t)limits->N; }

// Pairs (query, key) that see each other, for queries [i, i + n).
static float n_pairs(const Attention* a, Span d, int i, int n) {
    float last = (float)n_visible(a, d, i + n - 1);
    return (float)n * (a->causal ? last - (float)(n - 1) / 2 : last);
}

static int list_forward(Item* items, const Attention* a) {
    int n = 0;
    for (int b = 0; b < a->n_docs; b++) {
        Span d = document(a, b);
        for (int i = 0; i < d.q_len; i += BLOCK)
            items[n++] = (Item){b, i, FORWARD, 2 * n_pairs(a, d, i, MIN(BLOCK, d.q_len - i))};
    }
    return n;
}

// A document whose head is more than 0.4 of a thread's share is split by queries and by keys: that costs 7 matmuls
// instead of 5, but no thread waits for one long item.
static int list_backward(Item* items, const Attention* a) {
    int n = 0;
    float total = 0;
    for (int b = 0; b < a->n_docs; b++) total += n_pairs(a, document(a, b), 0, document(a, b).q_len);
    for (int b = 0; b < a->n_docs; b++) {
        Span d = document(a, b);
        float pairs = n_pairs(a, d, 0, d.q_len);
        int split = cpu_threads() > 1 && d.q_len > BLOCK && pairs * (float)cpu_threads() > 0.4f * total * (float)a->NH;
        if (!split) {
            if (d.k_len > 0) items[n++] = (Item){b, 0, BACKWARD, 5 * pairs};
            continue;
        }
        for (int i = 0; i < d.q_len; i += DQ_ROWS)
            items[n++] = (Item){b, i, BACKWARD_DQ, 3 * n_pairs(a, d, i, MIN(DQ_ROWS, d.q_len - i))};
        for (int j = 0; j < d.k_len; j += BLOCK)
            items[n++] = (Item){b, j, BACKWARD_DKV, 4 * BLOCK * (float)(d.q_len - MAX(0, a->causal ? j - d.k_len + d.q_len : 0))};
    }
    return n;
}

// Counting sort by the power of two of the cost: enough order to keep large items off the end.
static void sort_items(Item* sorted, const Item* items, int n) {
    int begin[64 + 1] = {0};
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n; i++) {
            int exponent = 0;
            frexpf(items[i].cost, &exponent);
            int key = 63 - MIN(63, MAX(0, exponent));
            if (pass == 0) begin[key + 1]++;
            else sorted[begin[key]++] = items[i];
            if (pass == 0 && i == n - 1)
                for (int c = 0; c < 64; c++) begin[c + 1] += begin[c];
        }
}

// ---- entries

static void attention_forward(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    if (dt == DT_F64) {
        cpu_reference_kernels.attention_forward(out, lse, a, dt, s);
        return;
    }
    Item* items = (Item*)cpu_shared_scratch();
    int n = list_forward(items, a);
    Item* sorted = items + n;
    sort_items(sorted, items, n);
#pragma omp parallel for schedule(dynamic, 1) if (n * a->NH > 1)
    for (size_t i = 0; i < (size_t)n * a->NH; i++) {
        Item item = sorted[i / a->NH];
        ForwardScratch* w = (ForwardScratch*)cpu_thread_scratch(omp_get_thread_num());
        forward_item(out, lse, a, document(a, item.doc), (int)(i % a->NH), item.begin, dt, w);
    }
}

// D (NH,Nq) = dout . out by row and head.
static void row_dots(float* D, const void* dout, const void* out, const Attention* a, DType dt) {
    size_t Nq = (size_t)a->cu_q[a->n_docs];
#pragma omp parallel for schedule(static) if (Nq * a->NH * a->HS > 1 << 14)
    for (size_t n = 0; n < Nq; n++)
        for (int h = 0; h < a->NH; h++) {
            vf sum = (vf){0};
            size_t row = at(n, a->ldo, h, a->HS);
            for (int c = 0; c < a->HS; c += SIMD_FLOATS) {
                int count = MIN(SIMD_FLOATS, a->HS - c);
                sum += vf_load_part(element(dout, row + c, dt), count, dt) * vf_load_part(element(out, row + c, dt), count, dt);
            }
            D[h * Nq + n] = vf_sum(sum);
        }
}

static void attention_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                               const Attention* a, DType dt, Stream s) {
    if (dt == DT_F64) {
        cpu_reference_kernels.attention_backward(dq, dk, dv, dout, out, lse, a, dt, s);
        return;
    }
    float* D = (float*)cpu_shared_scratch();
    Item* items = (Item*)(D + ROUND_UP((size_t)a->cu_q[a->n_docs] * a->NH, (size_t)16));
    row_dots(D, dout, out, a, dt);
    int n = list_backward(items, a);
    Item* sorted = items + n;
    sort_items(sorted, items, n);
    Gradients g = {dq, dk, dv, dout, lse, D};
#pragma omp parallel for schedule(dynamic, 1) if (n * a->NH > 1)
    for (size_t i = 0; i < (size_t)n * a->NH; i++) {
        Item item = sorted[i / a->NH];
        Span d = document(a, item.doc);
        int h = (int)(i % a->NH), begin = item.begin;
        BackwardScratch* w = (BackwardScratch*)cpu_thread_scratch(omp_get_thread_num());
        if (item.kind == BACKWARD) backward_item(&g, a, d, h, 0, d.q_len, 0, d.k_len, 1, 1, dt, w);
        else if (item.kind == BACKWARD_DKV) backward_item(&g, a, d, h, 0, d.q_len, begin, begin + BLOCK, 0, 1, dt, w);
        else backward_item(&g, a, d, h, begin, MIN(begin + DQ_ROWS, d.q_len), 0, d.k_len, 1, 0, dt, w);
    }
}

static void install(Kernels* table) {
    table->attention_forward = attention_forward;
    table->attention_backward = attention_backward;
}

static CpuScratch scratch(const KernelLimits* limits) {
    size_t HSp = padded(limits->HS), rows = ROUND_UP((size_t)MAX(limits->context, (int)DQ_ROWS), (size_t)BLOCK);
    return (CpuScratch){
        .shared_bytes = ROUND_UP((size_t)limits->N * limits->NH, (size_t)16) * sizeof(float) +
                        2 * most_items(limits) * sizeof(Item),
        .thread_bytes = sizeof(BackwardScratch) + (7 * BLOCK + rows) * HSp * sizeof(float),
    };
}

const CpuFamily ISA_NAME(attention) = {install, scratch};
