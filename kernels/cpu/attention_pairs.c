// attention_pairs.c - attention of bf16 whose products multiply pairs of bf16, on AMX tiles or on registers; other
// types stay with attention.c.
//
// Lanes are queries, forward and backward, so that maxima and sums of a query stay in their lane, and probabilities of
// two keys make a pair without a shuffle. With P and dS rounded to bf16, each in the order that its product wants:
//   S^T = K Q^T, dP^T = V dO^T (depth HS);  O^T += V^T P^T, dQ^T += K^T dS^T (depth keys);
//   dV += P^T dO, dK += dS^T Q (depth queries)
// Exponentials are of base 2: scores are multiplied by scale log2(e) on the way.
enum { BLOCK = 64, GROUP = 4, HEAD_UNIT = 32, DQ_UNIT = BLOCK, DK_UNIT = 32, QUERY_HALVES = 6, KEY_HALVES = 3 };

#include "kernels/cpu/attention_tasks.h"

#ifdef __AMX_BF16__
#include "kernels/cpu/tiles.h"
#endif

// ---- blocks
//
// Every number here is a dword: an fp32, or two bf16 that follow each other in depth. A block is kept in up to four
// orders, for HS elements of 64 rows (HSp: padded, zeros above HS and in rows beyond the last):
//   rows              (64, HSp/2)   pairs of elements of a row: left factor, depth HS
//   transposed rows   (HSp/2, 64)   right factor, depth HS
//   row pairs         (32, HSp)     elements of two rows: right factor, depth 64 rows
//   transposed pairs  (HSp, 32)     left factor, depth 64 rows

enum { PAIR_ROWS = BLOCK / 2, UNIT = 32 };  // rows and depths are whole units

// ---- the product: c (M,N; ldc) = a (M,K; lda) b (K,N; ldb), or, with add, +=; K in pairs. M, N and K are multiples of
// 16.

#ifdef __AMX_BF16__
// Computes two by two tiles of sums, or fewer at the edges.
static void multiply_tiles(float* c, size_t ldc, const float* a, size_t lda, const float* b, size_t ldb, int K, int add,
                           int lower, int right) {
    float* c_low = c + 16 * ldc;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    if (add) {
        tile_load(0, c, 4 * ldc);
        if (right) tile_load(1, c + 16, 4 * ldc);
        if (lower) tile_load(2, c_low, 4 * ldc);
        if (lower && right) tile_load(3, c_low + 16, 4 * ldc);
    }
    for (int k = 0; k < K; k += 16, a += 16, b += 16 * ldb) {
        tile_load_once(4, a, 4 * lda);
        tile_load(6, b, 4 * ldb);
        tile_multiply(0, 4, 6);
        if (right) {
            tile_load(7, b + 16, 4 * ldb);
            tile_multiply(1, 4, 7);
        }
        if (!lower) continue;
        tile_load_once(5, a + 16 * lda, 4 * lda);
        tile_multiply(2, 5, 6);
        if (right) tile_multiply(3, 5, 7);
    }
    tile_store(0, c, 4 * ldc);
    if (right) tile_store(1, c + 16, 4 * ldc);
    if (lower) tile_store(2, c_low, 4 * ldc);
    if (lower && right) tile_store(3, c_low + 16, 4 * ldc);
}

static void multiply(float* c, size_t ldc, const float* a, size_t lda, const float* b, size_t ldb, int M, int N, int K,
                     int add) {
    for (int col = 0; col < N; col += 32)
        for (int row = 0; row < M; row += 32)
            multiply_tiles(c + row * ldc + col, ldc, a + row * lda, lda, b + col, ldb, K, add, row + 16 < M,
                           col + 16 < N);
}
#else
// Takes as many rows as leave registers for n vectors of b: 16, 16, 24 or 16 sums hide the latency of a multiply-add.
SIMD_INLINE void multiply_rows(float* c, size_t ldc, const float* a, size_t lda, const float* b, size_t ldb, int M,
                               int K, int add, int rows, int n) {
    for (int row = 0; row < M; row += rows, c += rows * ldc, a += rows * lda) {
        vf sum[16][4], bk[4];
        const float* b_row = b;
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < n; v++) sum[r][v] = add ? vf_load(c + r * ldc + v * SIMD_FLOATS) : (vf){0};
        for (int k = 0; k < K; k++, b_row += ldb) {
#pragma GCC unroll 4
            for (int v = 0; v < n; v++) bk[v] = vf_load(b_row + v * SIMD_FLOATS);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) {
                __m512bh ak = (__m512bh)_mm512_set1_ps(a[r * lda + k]);
#pragma GCC unroll 4
                for (int v = 0; v < n; v++) sum[r][v] = (vf)_mm512_dpbf16_ps((__m512)sum[r][v], ak, (__m512bh)bk[v]);
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < n; v++) vf_store(c + r * ldc + v * SIMD_FLOATS, sum[r][v]);
    }
}

static void multiply(float* c, size_t ldc, const float* a, size_t lda, const float* b, size_t ldb, int M, int N, int K,
                     int add) {
    for (int col = 0; col < N; col += 64, c += 64, b += 64) {
        int n = MIN(4, (N - col) / 16);
        if (n == 4) multiply_rows(c, ldc, a, lda, b, ldb, M, K, add, 4, 4);
        else if (n == 3) multiply_rows(c, ldc, a, lda, b, ldb, M, K, add, 8, 3);
        else if (n == 2) multiply_rows(c, ldc, a, lda, b, ldb, M, K, add, 8, 2);
        else multiply_rows(c, ldc, a, lda, b, ldb, M, K, add, 16, 1);
    }
}
#endif

// ---- orders

// Packs n rows of a head, (n,HS) bf16 with stride ld, into rows; zeros fill them up to a whole unit of rows.
static void pack_rows(float* to, const bf16* x, int ld, int n, int HS) {
    size_t width = padded(HS) / 2;
    for (int r = 0; r < n; r++, x += ld, to += width)
        for (int c = 0; c < HS; c += 32) {
            if (r + AHEAD < n) __builtin_prefetch(x + AHEAD * (size_t)ld + c);
            __mmask32 some = HS - c >= 32 ? ~0u : (1u << (HS - c)) - 1;
            _mm512_storeu_si512(to + c / 2, _mm512_maskz_loadu_epi16(some, x + c));
        }
    memset(to, 0, (ROUND_UP(n, UNIT) - n) * width * sizeof(float));
}

// Makes row pairs from n rows, a whole number of units.
static void pair_rows(float* to, const float* rows, int n, int HS) {
    static const uint16_t low[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    __m512i lower = _mm512_loadu_si512(low), upper = _mm512_add_epi16(lower, _mm512_set1_epi16(16));
    size_t HSp = padded(HS);
    for (int r = 0; r < n; r += 2, rows += HSp, to += HSp)
        for (size_t c = 0; c < HSp; c += 32) {
            __m512i even = _mm512_loadu_si512(rows + c / 2), odd = _mm512_loadu_si512(rows + (HSp + c) / 2);
            _mm512_storeu_si512(to + c, _mm512_permutex2var_epi16(even, lower, odd));
            _mm512_storeu_si512(to + c + 16, _mm512_permutex2var_epi16(even, upper, odd));
        }
}

// to (cols,rows; ldto) = from (rows,cols; cols)^T, dwords of any kind; both multiples of 16.
static void transpose_dwords(float* to, size_t ldto, const float* from, int rows, int cols) {
    for (int r = 0; r < rows; r += 16)
        for (int c = 0; c < cols; c += 16) {
            vf x[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) x[i] = vf_load(from + (r + i) * cols + c);
            vf_transpose(x);
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) vf_store(to + (c + i) * ldto + r, x[i]);
        }
}

// ---- rounding: to nearest, halves away from zero. x keeps its bf16 in the upper half.

SIMD_INLINE vf_bits rounded(vf x) { return (vf_bits)x + 0x8000u; }
SIMD_INLINE void store_pairs(float* to, vf_bits even, vf_bits odd) {
    vf_store(to, (vf)(even >> 16 | (odd & ~0xffffu)));
}
SIMD_INLINE void store_halves(bf16* to, vf_bits x) {
    *(vf_bf16_unaligned*)to = (vf_bf16)_mm512_cvtepi32_epi16((__m512i)(x >> 16));
}

// ---- tasks

static const float LOG2_E = 1.44269504f;

#ifdef __AMX_BF16__
static void begin_task(void) { tiles_configure(); }
static void end_task(void) { tiles_release(); }
#else
static void begin_task(void) {}
static void end_task(void) {}
#endif

static const bf16* rows_of(const void* x, size_t row, int ld, int h, int HS) {
    return (const bf16*)x + at(row, ld, h, HS);
}

// ---- forward

typedef struct ForwardScratch {
    float s[BLOCK * BLOCK];      // S^T (keys, queries)
    float p[PAIR_ROWS * BLOCK];  // P^T, key pairs
    Running running[GROUP];
    float packed[];  // rows, row pairs; K rows, V transposed pairs; GROUP times Q transposed rows, O^T (HSp,BLOCK)
} ForwardScratch;

// These count keys of the block that all lanes of a vector see, and those that some see. Key j is hidden from the
// queries below hidden + j.
static int seen_by_all(int nk, int v, int hidden) { return MIN(nk, v + 1 - hidden); }
static int seen_by_some(int nk, int v, int hidden) { return MIN(nk, v + SIMD_FLOATS - hidden); }
SIMD_INLINE vf_mask is_hidden(int j, int v, int hidden) { return vf_lanes() < vf_set1((float)(hidden + j - v)); }

// Returns probabilities of key j, 0 in lanes that do not see it.
SIMD_INLINE vf masked_exp2(const float* s, int j, int v, int some, int hidden, float factor, vf base) {
    if (j >= some) return (vf){0};
    return vf_select(is_hidden(j, v, hidden), (vf){0}, vf_exp2_bounded(vf_load(s + j * BLOCK + v) * factor - base));
}

// Takes the running softmax of s, which becomes p. Returns whether a maximum rose: else nothing has to be scaled down.
static int softmax_block(ForwardScratch* w, Running* r, int nk, int N, int hidden, float factor) {
    const vf lowest = vf_set1(-INFINITY);
    const float* s = w->s;
    vf_mask rose = {0};
    for (int v = 0; v < N; v += SIMD_FLOATS) {
        vf old = vf_load(r->max + v), max = old, max1 = old, sum = {0}, sum1 = {0};
        int all = seen_by_all(nk, v, hidden), some = seen_by_some(nk, v, hidden), j = 0;
        for (; j + 1 < all; j += 2) {
            max = vf_max(max, vf_load(s + j * BLOCK + v));
            max1 = vf_max(max1, vf_load(s + (j + 1) * BLOCK + v));
        }
        for (; j < some; j++) max = vf_max(max, vf_select(is_hidden(j, v, hidden), lowest, vf_load(s + j * BLOCK + v)));
        max = vf_max(max, max1);
        vf base = max * factor, keep = vf_exp2_bounded((old - max) * factor);
        for (j = 0; j + 1 < all; j += 2) {
            vf p = vf_exp2_bounded(vf_load(s + j * BLOCK + v) * factor - base);
            vf p1 = vf_exp2_bounded(vf_load(s + (j + 1) * BLOCK + v) * factor - base);
            sum += p, sum1 += p1;
            store_pairs(w->p + j / 2 * BLOCK + v, rounded(p), rounded(p1));
        }
        for (; j < ROUND_UP(nk, UNIT); j += 2) {
            vf p = masked_exp2(s, j, v, some, hidden, factor, base);
            vf p1 = masked_exp2(s, j + 1, v, some, hidden, factor, base);
            sum += p, sum1 += p1;
            store_pairs(w->p + j / 2 * BLOCK + v, rounded(p), rounded(p1));
        }
        rose |= max != old;
        vf_store(r->keep + v, keep);
        vf_store(r->sum + v, vf_load(r->sum + v) * keep + (sum + sum1));
        vf_store(r->max + v, max);
    }
    return _mm512_test_epi32_mask((__m512i)rose, (__m512i)rose) != 0;
}

// One block of queries (lanes, N of them) meets one block of nk keys, the first of all or a later one. On the diagonal,
// 16 keys at a time, or a unit of depth, leave out the vectors of queries that see none.
static void forward_block(float* o, ForwardScratch* w, Running* r, const float* q, const float* k, const float* v,
                          int nk, int N, int hidden, int first, const Attention* a) {
    int HSp = (int)padded(a->HS), diagonal = hidden + nk > 0, end = ROUND_UP(nk, UNIT);
    int step = diagonal ? 16 : BLOCK, depth = diagonal ? UNIT : BLOCK;
    for (int j = 0; j < end; j += step) {
        int col = MAX(0, hidden + j) / 16 * 16;
        if (col < N)
            multiply(w->s + j * BLOCK + col, BLOCK, k + j * HSp / 2, (size_t)HSp / 2, q + col, BLOCK,
                     MIN(step, end - j), N - col, HSp / 2, 0);
    }
    int rose = softmax_block(w, r, nk, N, hidden, a->scale * LOG2_E);
    for (int c = 0; c < HSp && rose && !first; c++)
        for (int n = 0; n < N; n += SIMD_FLOATS)
            vf_store(o + c * BLOCK + n, vf_load(o + c * BLOCK + n) * vf_load(r->keep + n));
    for (int j = 0; j < end; j += depth) {
        int col = MAX(0, hidden + j) / 16 * 16;
        if (col < N)
            multiply(o + col, BLOCK, v + j / 2, PAIR_ROWS, w->p + j / 2 * BLOCK + col, BLOCK, HSp, N - col,
                     MIN(depth, end - j) / 2, !first || j > 0);
    }
}

static void forward_task(void* out, float* lse, const Attention* a, Span d, int h, int i0, DType dt, void* scratch) {
    ForwardScratch* w = (ForwardScratch*)scratch;
    int HS = a->HS, i1 = MIN(i0 + GROUP * BLOCK, d.q_len), n_keys = n_visible(a, d, i1 - 1), kv = h / heads_of_key(a);
    size_t HSp = padded(HS), half = HSp * BLOCK / 2;  // half: of an fp32 block
    float *rows = w->packed, *pairs = rows + half, *k = pairs + half, *v = k + half, *q = v + half;
    float* o = q + GROUP * half;
    for (int i = i0, g = 0; i < i1; i += BLOCK, g++) {
        int nq = MIN(BLOCK, i1 - i);
        pack_rows(rows, rows_of(a->q, d.q0 + i, a->ldq, h, HS), a->ldq, nq, HS);
        transpose_dwords(q + g * half, BLOCK, rows, ROUND_UP(nq, UNIT), (int)HSp / 2);
        begin_running(&w->running[g]);
    }
    for (int j0 = 0; j0 < n_keys; j0 += BLOCK) {
        int nk = MIN(BLOCK, n_keys - j0);
        pack_rows(k, rows_of(a->k, d.k0 + j0, a->ldkv, kv, HS), a->ldkv, nk, HS);
        pack_rows(rows, rows_of(a->v, d.k0 + j0, a->ldkv, kv, HS), a->ldkv, nk, HS);
        pair_rows(pairs, rows, ROUND_UP(nk, UNIT), HS);
        transpose_dwords(v, PAIR_ROWS, pairs, ROUND_UP(nk, UNIT) / 2, (int)HSp);
        for (int i = i0, g = 0; i < i1; i += BLOCK, g++) {
            int last = MIN(i + BLOCK, i1) - 1, N = ROUND_UP(last + 1 - i, SIMD_FLOATS);
            int seen = MIN(nk, n_visible(a, d, last) - j0), hidden = a->causal ? j0 - i - d.offset : -BLOCK;
            if (seen > 0)
                forward_block(o + 2 * g * half, w, &w->running[g], q + g * half, k, v, seen, N, hidden, j0 == 0, a);
        }
    }
    for (int i = i0, g = 0; i < i1; i += BLOCK, g++)
        finish_block(out, lse, a, d.q0 + i, h, o + 2 * g * half, &w->running[g], MIN(BLOCK, i1 - i), a->scale, dt,
                     w->packed);
}

// ---- backward

typedef struct BackwardScratch {
    float s[BLOCK * BLOCK], dp[BLOCK * BLOCK];                                  // S^T, dP^T (keys, queries)
    float p[BLOCK * BLOCK / 2], ds[BLOCK * BLOCK / 2], dst[PAIR_ROWS * BLOCK];  // P^T, dS^T rows; dS^T key pairs
    float lse[BLOCK], D[BLOCK];                                                 // of the queries; lse in base 2
} BackwardScratch;

static size_t backward_bytes(void) { return sizeof(BackwardScratch); }

static size_t forward_bytes(const KernelLimits* limits) {
    return sizeof(ForwardScratch) + (4 + 3 * GROUP) * BLOCK / 2 * padded(limits->HS) * sizeof(float);
}

// Computes p and ds of keys j and j + 1 and a vector of queries; `visible` says that all see both.
SIMD_INLINE void probabilities_of_two(BackwardScratch* w, int j, int v, vf lse, vf D, int nk, int hidden, float factor,
                                      int visible) {
    vf_bits p[2], ds[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        int at = (j + i) * BLOCK + v;
        vf x = vf_exp2_bounded(vf_load(w->s + at) * factor - lse), dx = x * (vf_load(w->dp + at) - D);
        if (!visible) {
            vf_mask not = j + i < nk ? is_hidden(j + i, v, hidden) : ~(vf_mask){0};
            x = vf_select(not, (vf){0}, x), dx = vf_select(not, (vf){0}, dx);
        }
        p[i] = rounded(x), ds[i] = rounded(dx);
        store_halves((bf16*)w->p + at, p[i]);
        store_halves((bf16*)w->ds + at, ds[i]);
    }
    store_pairs(w->dst + j / 2 * BLOCK + v, ds[0], ds[1]);
}

static void probabilities(BackwardScratch* w, int nk, int N, int hidden, float factor) {
    for (int v = 0; v < N; v += SIMD_FLOATS) {
        vf lse = vf_load(w->lse + v), D = vf_load(w->D + v);
        int all = seen_by_all(nk, v, hidden), j = 0;
        for (; j + 1 < all; j += 2) probabilities_of_two(w, j, v, lse, D, nk, hidden, factor, 1);
        for (; j < ROUND_UP(nk, UNIT); j += 2) probabilities_of_two(w, j, v, lse, D, nk, hidden, factor, 0);
    }
}

// pack_queries makes a block's rows and row pairs of the moment, and row pairs and transposed rows of Q and of dO. dQ^T
// is (HSp,BLOCK) of each block. Diagonals are as above.
static void backward_block(const KeyBlock* b, const QueryBlock* r, const Attention* a, int want_dkv, void* scratch) {
    BackwardScratch* w = (BackwardScratch*)scratch;
    size_t half = padded(a->HS) * BLOCK / 2;
    const float *k = b->packed, *v = k + half, *kt = v + half, *q = r->packed + 2 * half, *qt = q + half;
    const float *dout = qt + half, *dout_t = dout + half;
    int HSp = (int)padded(a->HS), end = ROUND_UP(b->nk, UNIT), N = ROUND_UP(r->nq, UNIT);
    int hidden = a->causal ? b->first - r->begin : -BLOCK, diagonal = hidden + b->nk > 0;
    int step = diagonal ? 16 : BLOCK, depth = diagonal ? UNIT : BLOCK;
    for (int j = 0; j < end; j += step) {
        int col = MAX(0, hidden + j) / 16 * 16, M = MIN(step, end - j), row = j * HSp / 2;
        if (col >= N) break;
        multiply(w->s + j * BLOCK + col, BLOCK, k + row, (size_t)HSp / 2, qt + col, BLOCK, M, N - col, HSp / 2, 0);
        multiply(w->dp + j * BLOCK + col, BLOCK, v + row, (size_t)HSp / 2, dout_t + col, BLOCK, M, N - col, HSp / 2, 0);
    }
    probabilities(w, b->nk, N, hidden, a->scale * LOG2_E);
    for (int j = 0; j < end; j += depth) {
        int col = MAX(0, hidden + j) / UNIT * UNIT, M = MIN(depth, end - j), from = j * BLOCK / 2 + col / 2;
        if (col >= N) break;
        if (want_dkv) {
            multiply(b->dv + j * HSp, HSp, w->p + from, BLOCK / 2, dout + col / 2 * HSp, HSp, M, HSp, (N - col) / 2, 1);
            multiply(b->dk + j * HSp, HSp, w->ds + from, BLOCK / 2, q + col / 2 * HSp, HSp, M, HSp, (N - col) / 2, 1);
        }
        if (r->dq)
            multiply(r->dq + col, BLOCK, kt + j / 2, PAIR_ROWS, w->dst + j / 2 * BLOCK + col, BLOCK, HSp, N - col,
                     M / 2, 1);
    }
}

// Packs rows of K and V, and K as transposed pairs.
static void pack_keys(const KeyBlock* b, const Attention* a, Span d, int kv, int j, DType dt, float* queries) {
    size_t HSp = padded(a->HS), half = HSp * BLOCK / 2;
    int n = ROUND_UP(b->nk, UNIT);
    float *k = b->packed, *v = k + half, *pairs = queries + half;
    pack_rows(v, rows_of(a->v, d.k0 + j, a->ldkv, kv, a->HS), a->ldkv, b->nk, a->HS);
    pack_rows(k, rows_of(a->k, d.k0 + j, a->ldkv, kv, a->HS), a->ldkv, b->nk, a->HS);
    pair_rows(pairs, k, n, a->HS);
    transpose_dwords(v + half, PAIR_ROWS, pairs, n / 2, (int)HSp);
}

// Packs nq rows in two orders: row pairs, and transposed rows.
static void pack_orders(float* pairs, float* transposed, const bf16* x, int ld, int nq, int HS, float* rows) {
    pack_rows(rows, x, ld, nq, HS);
    pair_rows(pairs, rows, ROUND_UP(nq, UNIT), HS);
    transpose_dwords(transposed, BLOCK, rows, ROUND_UP(nq, UNIT), (int)padded(HS) / 2);
}

// lse is kept in base 2; lanes beyond the queries compute with 0.
static void pack_queries(const QueryBlock* r, const void* dout, const Attention* a, Span d, int h, DType dt,
                         void* scratch) {
    BackwardScratch* w = (BackwardScratch*)scratch;
    size_t row = d.q0 + r->begin, half = padded(a->HS) * BLOCK / 2;
    float* q = r->packed + 2 * half;
    pack_orders(q, q + half, rows_of(a->q, row, a->ldq, h, a->HS), a->ldq, r->nq, a->HS, r->packed);
    q += 2 * half;
    pack_orders(q, q + half, rows_of(dout, row, a->ldo, h, a->HS), a->ldo, r->nq, a->HS, r->packed);
    for (int i = 0; i < BLOCK; i++) w->lse[i] = i < r->nq ? r->lse[i] * LOG2_E : 0, w->D[i] = i < r->nq ? r->D[i] : 0;
}

static void put_queries(const Gradients* g, const Attention* a, Span d, int h, Part part, float* dq, DType dt,
                        float* room) {
    size_t HSp = padded(a->HS);
    for (int i = part.i_begin; i < part.i_end; i += BLOCK) {
        int nq = MIN(BLOCK, part.i_end - i);
        transpose(room, HSp, dq + (i - part.i_begin) * HSp, BLOCK, (int)HSp, ROUND_UP(nq, SIMD_FLOATS), 1);
        put_gradient(g->dq, a, d.q0 + i, g->ld_dq, h, room, nq, a->scale, dt);
    }
}

// ---- the entries of the table

static Kernels below;  // the table before

static void forward(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    if (dt == DT_BF16) attention_forward(out, lse, a, dt, s);
    else below.attention_forward(out, lse, a, dt, s);
}

static void backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                     const Attention* a, DType dt, Stream s) {
    if (dt == DT_BF16) attention_backward(dq, dk, dv, dout, out, lse, a, dt, s);
    else below.attention_backward(dq, dk, dv, dout, out, lse, a, dt, s);
}

static void install(Kernels* table) {
#ifndef __AMX_BF16__  // on registers only if pairs are multiplied fast: see matmul.c
    __builtin_cpu_init();
    if (__builtin_cpu_is("intel")) return;
#endif
    below = *table;
    table->attention_forward = forward;
    table->attention_backward = backward;
}

const CpuFamily ISA_NAME(attention_pairs) = {install, NULL, scratch};
