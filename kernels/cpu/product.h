// product.h - the blocked product behind the three matmuls of a linear layer; matmul.c and matmul_amx.c give it
// a heart.
//
//   forward   out (N,OC)      =  x (N,C) weight (OC,C)^T        A = x     B = weight    depth C
//   input     dx (N,C)        =  dout (N,OC) weight (OC,C)      A = dout  B = weight    depth OC
//   weight    dweight (OC,C) +=  dout (N,OC)^T x (N,C)          A = dout  B = x         depth N
//
// All are C (M,N) = sum over depth k of A(m,k) B(n,k), where k is the contiguous direction of an operand or the other
// one. The blocking is that of Goto and van de Geijn (2008): the innermost loop keeps a tile of MR x NR sums in
// registers; a panel of B, NR columns KC deep, stays in the first cache while the panels of a block of A stream past it
// from the second. Packing gives both their order in memory, converts or pairs elements, and pads with zeros. Threads
// share the packed B and take blocks of rows of C, or parts of its columns too. How the depth is cut depends on the
// depth alone, so that the number of threads cannot be seen in the result.
//
// Before this file comes an enum of MR, NR (2 vectors) and, of packed elements, KC, NC (a multiple of NR), MC (of MR),
// DEPTH: the most depth of a block of B, and DEPTH_UNIT: what every depth is padded to. After it come the three
// functions declared under "the heart".
#pragma once
#include "kernels/cpu/simd.h"

enum { TILE = MR * NR };

// A packed element takes 4 bytes: one fp32, or two bf16 that follow each other in depth, for instructions that multiply
// pairs.
typedef enum Packing { FLOATS, PAIRS } Packing;

typedef struct Operand {
    const void* p;
    size_t ld;
    int k_contiguous;  // element (i, k) lies at p[i * ld + k], otherwise at p[k * ld + i]
} Operand;

typedef struct Product {
    Operand a, b;
    size_t M, N, K;
    DType dt;  // of a, b, bias, gelu and pre, and of out unless it is added to
    Packing packing;
    void* out;         // (M,N; ldo) =, or fp32 += with add
    size_t ldo;
    void* gelu;        // (M,N) = GELU(out), or NULL
    const void* bias;  // (N) added to out, or NULL
    const void* pre;   // (M,N) out is multiplied by GELU'(pre), or NULL
    float* row_sums;   // (M) += sums of A over its depth, or NULL
    int add;
    float scale;  // of the sums
    int adds;     // out of dt is added to
} Product;

// A finished tile: sums (MR,NR) of the results from (m, n) on.
typedef struct Finished {
    const float* sums;  // NULL: none
    size_t m, n;
} Finished;

// ---- the heart

// Packs `rows` of the n rows of A from i on, `depth` packed elements from k on, as one panel, or a part of its depth,
// and adds the sum of each row to row_sums (MR), unless that is NULL.
static void pack_a(float* to, const Product* p, size_t i, size_t k, size_t depth, float* row_sums);
// sums (MR,NR) = or += a b over `depth` packed elements of two panels. Before it stores them it writes the finished
// tile, which without add may lie in the same place, and fetches the first depth * 8 bytes from `next` on into the
// second cache.
static void multiply_panels(float* sums, const float* a, const float* b, size_t depth, int add, const char* next,
                            const Product* p, const Finished* finished);
// A thread calls these before a block and after it.
static void begin_block(void);
static void end_block(void);

static inline size_t min(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t less(size_t a, size_t b) { return a > b ? a - b : 0; }
static inline const void* element(const void* p, size_t i, DType dt) { return (const char*)p + i * dtype_bytes(dt); }

// ---- packing: strips of SIMD_FLOATS rows of A or columns of B

// Loads n of the elements from p on, or as many as one vector holds.
SIMD_INLINE vf load_floats(const void* p, size_t n, DType dt) {
    return n >= SIMD_FLOATS ? vf_load_as(p, dt) : vf_load_part(p, (int)n, dt);
}

// Loads n of the bf16 from p on, or as many as one vector holds, as they lie.
SIMD_INLINE vf load_pairs(const void* p, size_t n) {
    vf x = {0};
    if (n >= 2 * SIMD_FLOATS) memcpy(&x, p, sizeof x);
    else memcpy(&x, p, n * sizeof(bf16));
    return x;
}

// Loads n of the bf16 from p on, or as many as one vector holds, each into a lane of its own.
SIMD_INLINE vf_bits load_halves(const void* p, size_t n) {
    if (n < SIMD_FLOATS) return (vf_bits)vf_load_part(p, (int)n, DT_BF16) >> 16;
    return vf_widen(*(const vf_bf16_unaligned*)p);
}

// Loads pairs of n elements from p on with those one step of depth, ld, further. `left` steps are left.
SIMD_INLINE vf load_two_rows(const void* p, size_t ld, size_t n, size_t left, vf* sum) {
    vf_bits even = {0}, odd = {0};
    if (left > 0) even = load_halves(p, n);
    if (left > 1) odd = load_halves((const bf16*)p + ld, n) << 16;
    *sum += (vf)(even << 16) + (vf)odd;
    return (vf)(even | odd);
}

// Packs a strip whose depth is contiguous into to[k * width]: `rows` rows from p on, `depth` packed elements of which
// `left` elements of the tensor exist.
SIMD_INLINE void pack_transposed(float* to, int width, const void* p, size_t ld, int rows, size_t depth, size_t left,
                                 DType dt, Packing packing) {
    for (size_t k = 0; k < depth; k += SIMD_FLOATS) {
        size_t step = packing == PAIRS ? 2 * k : k;
        vf x[SIMD_FLOATS];
#pragma GCC unroll 16
        for (int i = 0; i < SIMD_FLOATS; i++) {
            const void* from = element(p, (size_t)i * ld + step, dt);
            if (i >= rows) x[i] = (vf){0};
            else x[i] = packing == PAIRS ? load_pairs(from, less(left, step)) : load_floats(from, less(left, step), dt);
        }
        vf_transpose(x);
        if (k + SIMD_FLOATS <= depth) {
#pragma GCC unroll 16
            for (int i = 0; i < SIMD_FLOATS; i++) vf_store(to + (k + i) * width, x[i]);
        } else {
            for (size_t i = 0; k + i < depth; i++) vf_store(to + (k + i) * width, x[i]);
        }
    }
}

// Packs a strip whose rows are contiguous. Returns the sum of each row.
SIMD_INLINE vf pack_straight(float* to, int width, const void* p, size_t ld, size_t rows, size_t depth, size_t left,
                             DType dt, Packing packing) {
    vf sum = {0};
    for (size_t k = 0; k < depth; k++, to += width) {
        vf x;
        if (packing == PAIRS) {
            x = load_two_rows(element(p, 2 * k * ld, dt), ld, rows, less(left, 2 * k), &sum);
        } else {
            x = load_floats(element(p, k * ld, dt), rows, dt);
            sum += x;
        }
        if (k + 1 < depth) vf_store(to, x);  // the next overwrites what goes beyond the width
        else vf_store_part(to, x, MIN(width, SIMD_FLOATS), DT_F32);
    }
    return sum;
}

// Packs strips of `width` of n rows of x from row i on, `depth` packed elements from k on, in the order of depth. Rows
// that do not exist are 0. The last step of a transposed strip may write up to a vector beyond the panel, where the
// next one follows.
SIMD_INLINE void pack_panel_as(float* to, int width, const Operand* x, size_t i, size_t n, size_t k, size_t depth,
                               size_t K, float* row_sums, DType dt, Packing packing) {
    size_t first = packing == PAIRS ? 2 * k : k, left = less(K, first);
    for (int strip = 0; strip < width; strip += SIMD_FLOATS, i += SIMD_FLOATS, to += SIMD_FLOATS) {
        size_t rows = less(n, i), used = min(rows, (size_t)MIN(width - strip, SIMD_FLOATS));
        const void* from =
            used == 0 ? x->p : element(x->p, x->k_contiguous ? i * x->ld + first : first * x->ld + i, dt);
        if (!x->k_contiguous) {
            vf sum = pack_straight(to, width, from, x->ld, rows, depth, left, dt, packing);
            if (row_sums) vf_store_part(row_sums, vf_load_part(row_sums, MR, DT_F32) + sum, MR, DT_F32);
        } else if (used == SIMD_FLOATS) {
            pack_transposed(to, width, from, x->ld, SIMD_FLOATS, depth, left, dt, packing);
        } else {
            pack_transposed(to, width, from, x->ld, (int)used, depth, left, dt, packing);
        }
    }
}

static void pack_panel(float* to, int width, const Product* p, const Operand* x, size_t i, size_t n, size_t k,
                       size_t depth, float* row_sums) {
    if (p->dt == DT_F32) pack_panel_as(to, width, x, i, n, k, depth, p->K, row_sums, DT_F32, FLOATS);
    else if (p->packing == FLOATS) pack_panel_as(to, width, x, i, n, k, depth, p->K, row_sums, DT_BF16, FLOATS);
    else pack_panel_as(to, width, x, i, n, k, depth, p->K, row_sums, DT_BF16, PAIRS);
}

// If rows are contiguous, a few steps of all panels are packed at a time, because a panel alone would touch a page or
// two at every step.
enum { PACK_DEPTH = 16, PACK_PANELS = 4 };

// Pack panels 0 .. panels of A from row m on, begin .. end of B from column n on; `depth` packed elements from k on.
static void pack_block_of_a(float* to, const Product* p, size_t m, size_t panels, size_t k, size_t depth,
                            float* row_sums) {
    size_t step = p->a.k_contiguous ? depth : PACK_DEPTH;
    for (size_t done = 0; done < depth; done += step)
        for (size_t j = 0; j < panels; j++)
            pack_a(to + (j * depth + done) * MR, p, m + j * MR, k + done, min(step, depth - done),
                   row_sums ? row_sums + j * MR : NULL);
}

static void pack_block_of_b(float* to, const Product* p, size_t n, size_t begin, size_t end, size_t k, size_t depth) {
    size_t step = p->b.k_contiguous ? depth : PACK_DEPTH;
    for (size_t done = 0; done < depth; done += step)
        for (size_t j = begin; j < end; j++)
            pack_panel(to + (j * depth + done) * NR, NR, p, &p->b, n + j * NR, p->N, k + done, min(step, depth - done),
                       NULL);
}

// ---- writing out

SIMD_INLINE void write_row_as(const Product* p, const float* sums, size_t m, size_t n, DType dt) {
    for (int v = 0; v < NR && n < p->N; v += SIMD_FLOATS, n += SIMD_FLOATS) {
        size_t at = m * p->ldo + n;
        int lanes = (int)min(p->N - n, SIMD_FLOATS);
        vf x = vf_load(sums + v);
        if (p->scale != 1) x *= vf_set1(p->scale);
        if (p->add) {
            vf_put(p->out, at, lanes, vf_get(p->out, at, lanes, DT_F32) + x, DT_F32);
            continue;
        }
        if (p->adds) x += vf_get(p->out, at, lanes, dt);
        if (p->bias) x += vf_get(p->bias, n, lanes, dt);
        if (p->pre) x *= vf_gelu_gradient(vf_get(p->pre, at, lanes, dt));
        vf_put(p->out, at, lanes, x, dt);
        if (!p->gelu) continue;
        if (dt == DT_BF16) x = vf_from_bf16(vf_to_bf16(x));
        vf_put(p->gelu, at, lanes, vf_gelu(x), dt);
    }
}

// The part of `pre` that a tile will meet is fetched while its last sums are added: each row lies in a page of its own,
// and the processor does not guess the next. Doing so for results costs more than it saves.
static void fetch_pre(const Product* p, size_t m, size_t n) {
    size_t bytes = min(NR, p->N - n) * dtype_bytes(p->dt);
    for (size_t i = 0; i < MR && m + i < p->M; i++)
        for (size_t byte = 0; byte < bytes; byte += 64)
            __builtin_prefetch((const char*)element(p->pre, (m + i) * p->N + n, p->dt) + byte);
}

// Rows begin .. end of a finished tile become results.
static void write_rows(const Product* p, const Finished* tile, size_t begin, size_t end) {
    for (size_t i = begin; i < end && tile->m + i < p->M; i++)
        WITH_DTYPE(p->dt, write_row_as, p, tile->sums + i * NR, tile->m + i, tile->n);
}

// ---- the blocked product

// Returns the size of a piece if n is cut into equal ones of at most `most`, a multiple of `unit`.
static size_t piece(size_t n, size_t most, size_t unit) { return ROUND_UP(CEIL_DIV(n, CEIL_DIV(n, most)), unit); }

// A thread's scratch: a block of A, its sums, and the sums over its rows.
typedef struct ThreadScratch {
    float a[MC * KC + SIMD_FLOATS];
    float sums[MC * NC];
    float row_sums[MC];
} ThreadScratch;

// The work of a thread at one moment: rows m .. m + rows, panels panel .. panel_end of the block of B from column n
// on, and the depth k .. k + depth, in packed elements.
typedef struct Block {
    size_t m, rows;
    size_t n, panel, panel_end;
    size_t k, depth;
    int first, last;    // this is the first, the last part of the whole depth
    int with_row_sums;  // this thread sums rows of A in this block
    const float* b;     // packed, panel after panel
    float* sums;        // tile after tile
} Block;

static void multiply_block(const Product* p, const Block* block, ThreadScratch* scratch) {
    size_t row_panels = CEIL_DIV(block->rows, MR), kc = piece(block->depth, KC, DEPTH_UNIT);
    int at_once = block->first && block->last && kc == block->depth;  // one tile is then all it takes
    memset(scratch->row_sums, 0, sizeof scratch->row_sums);
    for (size_t k = 0; k < block->depth; k += kc) {
        size_t depth = min(kc, block->depth - k);
        int add = !block->first || k > 0, last = block->last && k + depth == block->depth;
        Finished finished = {0};
        pack_block_of_a(scratch->a, p, block->m, row_panels, block->k + k, depth,
                        block->with_row_sums ? scratch->row_sums : NULL);
        for (size_t j = block->panel; j < block->panel_end; j++)
            for (size_t i = 0; i < row_panels; i++) {
                float* sums = block->sums + (at_once ? 0 : j * row_panels + i) * TILE;
                const float* b = block->b + (j * block->depth + k) * NR;
                const char* next = (const char*)(b + block->depth * NR) + i * depth * 8;
                size_t m = block->m + i * MR, n = block->n + j * NR;
                if (last && p->pre) fetch_pre(p, m, n);
                multiply_panels(sums, scratch->a + i * MR * depth, b, depth, add, next, p, &finished);
                if (last) finished = (Finished){sums, m, n};
            }
        if (finished.sums) write_rows(p, &finished, 0, MR);
    }
    for (size_t i = 0; block->with_row_sums && i < block->rows; i++) p->row_sums[block->m + i] += scratch->row_sums[i];
}

// One block of B against all rows of A: `panels` packed panels from column n on, `depth` from k on. Rows of C are cut
// into row_blocks, columns into col_parts: 1 unless there are few rows.
typedef struct Pass {
    const Product* p;
    size_t n, k, depth, panels, row_blocks, col_parts;
    int whole, first, last;  // sums are finished, or added to C, in each pass; else in the last
} Pass;

static float* packed_b(void) { return (float*)cpu_shared_scratch(); }

static void pack_some_of_b(const void* job, size_t task, int thread) {
    const Pass* s = (const Pass*)job;
    size_t j = task * PACK_PANELS;
    pack_block_of_b(packed_b(), s->p, s->n, j, min(j + PACK_PANELS, s->panels), s->k, s->depth);
}

static void multiply_some(const void* job, size_t task, int thread) {
    const Pass* s = (const Pass*)job;
    const Product* p = s->p;
    ThreadScratch* scratch = (ThreadScratch*)cpu_thread_scratch(thread);
    size_t part = task % s->col_parts, m, m_end, begin, end;
    cpu_share(p->M, MR, (int)(task / s->col_parts), (int)s->row_blocks, &m, &m_end);
    cpu_share(s->panels, 1, (int)part, (int)s->col_parts, &begin, &end);
    float* shared_sums = packed_b() + (size_t)DEPTH * NC;
    // clang-format off
    Block block = {.m = m, .rows = m_end - m, .n = s->n, .panel = begin, .panel_end = end, .b = packed_b(),
                   .k = s->k, .depth = s->depth, .first = s->whole || s->first, .last = s->whole || s->last,
                   .with_row_sums = p->row_sums && s->n == 0 && part == 0,
                   .sums = s->whole ? scratch->sums : shared_sums + m / MR * s->panels * TILE};
    // clang-format on
    begin_block();
    multiply_block(p, &block, scratch);
    end_block();
}

// Returns the number of blocks of rows, of at most MC: four a thread, so that none waits long, unless too small.
static size_t count_row_blocks(size_t M, size_t threads) {
    enum { LEAST = 4 };  // panels of a block
    size_t panels = CEIL_DIV(M, (size_t)MR), most = min(4 * threads, CEIL_DIV(panels, (size_t)LEAST));
    return min(panels, ROUND_UP(MAX(CEIL_DIV(M, (size_t)MC), most), threads));
}

// Sums of a depth beyond DEPTH wait in shared scratch for the next block of B; but if the result is added to, each
// simply adds its own.
static void multiply(const Product* p) {
    if (p->M == 0 || p->K == 0) return;
    size_t K = ROUND_UP(p->packing == PAIRS ? CEIL_DIV(p->K, 2) : p->K, (size_t)DEPTH_UNIT);
    size_t most_depth = piece(K, DEPTH, DEPTH_UNIT), nc = piece(p->N, NC, NR), threads = (size_t)team_threads();
    int alone = p->M * p->N * p->K < 1 << 18;
    Pass s = {.p = p, .row_blocks = count_row_blocks(p->M, threads)};
    for (s.n = 0; s.n < p->N; s.n += nc)
        for (s.k = 0; s.k < K; s.k += most_depth) {
            s.depth = min(most_depth, K - s.k), s.panels = CEIL_DIV(min(nc, p->N - s.n), NR);
            s.col_parts = min(s.panels, CEIL_DIV(threads, s.row_blocks));
            s.whole = p->add || s.depth == K, s.first = s.k == 0, s.last = s.k + s.depth == K;
            team_run(pack_some_of_b, &s, CEIL_DIV(s.panels, (size_t)PACK_PANELS), 1, alone);
            team_run(multiply_some, &s, s.row_blocks * s.col_parts, 1, alone);
        }
}

// ---- one row: generation asks for a token at a time. Each weight is then used once, and packing it would be most of
// the work.

SIMD_INLINE float dot(const void* x, const void* y, size_t n, DType dt) {
    vf sum[4] = {{0}, {0}, {0}, {0}};
    size_t i = 0;
    for (; i + 4 * SIMD_FLOATS <= n; i += 4 * SIMD_FLOATS)
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; j++) {
            size_t at = i + j * SIMD_FLOATS;
            sum[j] = vf_fma(vf_load_as(element(x, at, dt), dt), vf_load_as(element(y, at, dt), dt), sum[j]);
        }
    for (; i < n; i += SIMD_FLOATS)
        sum[0] = vf_fma(load_floats(element(x, i, dt), n - i, dt), load_floats(element(y, i, dt), n - i, dt), sum[0]);
    return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static void multiply_some_of_row(const void* job, size_t task, int thread) {
    const Product* p = (const Product*)job;
    size_t n = task * NR;
    float sums[NR] = {0};
    for (size_t j = 0; j < min(NR, p->N - n); j++) {
        const void* weight = element(p->b.p, (n + j) * p->b.ld, p->dt);
        sums[j] = WITH_DTYPE(p->dt, dot, p->a.p, weight, p->K);
    }
    WITH_DTYPE(p->dt, write_row_as, p, sums, 0, n);
}

static void multiply_row(const Product* p) {
    size_t tasks = CEIL_DIV(p->N, (size_t)NR);
    team_run(multiply_some_of_row, p, tasks, cpu_portion(tasks), p->N * p->K <= 1 << 16);
}

static CpuScratch product_scratch(const KernelLimits* limits) {
    size_t deepest = (size_t)MAX(limits->C, limits->OC);
    size_t waiting = deepest > DEPTH ? ROUND_UP((size_t)limits->N, (size_t)MR) * NC : 0;
    return (CpuScratch){((size_t)DEPTH * NC + waiting) * sizeof(float), sizeof(ThreadScratch)};
}

// ---- the three products, for one packing of bf16; fp32 is never paired

// Returns the product of rows without gaps.
// clang-format off
static Product product_of(Packing bf16_packing, MatmulKind kind, void* out, const void* a, const void* b, int N, int C,
                          int OC, DType dt) {
    int forward = kind == MATMUL_FORWARD, weight = kind == MATMUL_WEIGHT;
    size_t n = (size_t)N, c = (size_t)C, oc = (size_t)OC;
    return (Product){.a = {a, forward ? c : oc, !weight}, .b = {b, c, forward}, .M = weight ? oc : n,
                     .N = forward ? oc : c, .K = weight ? n : forward ? c : oc, .dt = dt,
                     .packing = dt == DT_BF16 ? bf16_packing : FLOATS, .out = out, .ldo = forward ? oc : c,
                     .add = weight, .scale = 1};
}
// clang-format on

static void run(const Product* p) {
    if (p->M == 1 && p->b.k_contiguous) multiply_row(p);
    else multiply(p);
}

// The entries of the table, for one packing of bf16. Without takes_fp32 the table before keeps that type.
#define ENTRIES(name, packing, takes_fp32)                                                                           \
    static Kernels below_##name;                                                                                     \
    static RankOps ranks_below_##name;                                                                               \
    static void forward_##name(void* out, void* gelu, const void* x, const void* weight, const void* bias, int N,    \
                               int C, int OC, DType dt, Stream s) {                                                  \
        Product p = product_of(packing, MATMUL_FORWARD, out, x, weight, N, C, OC, dt);                               \
        p.gelu = gelu, p.bias = bias;                                                                                \
        if (takes_fp32 || dt != DT_F32) run(&p);                                                                     \
        else below_##name.matmul_forward(out, gelu, x, weight, bias, N, C, OC, dt, s);                               \
    }                                                                                                                \
    static void backward_input_##name(void* dx, const void* dout, const void* weight, const void* pre, int N, int C, \
                                      int OC, DType dt, Stream s) {                                                  \
        Product p = product_of(packing, MATMUL_INPUT, dx, dout, weight, N, C, OC, dt);                               \
        p.pre = pre;                                                                                                 \
        if (takes_fp32 || dt != DT_F32) run(&p);                                                                     \
        else below_##name.matmul_backward_input(dx, dout, weight, pre, N, C, OC, dt, s);                             \
    }                                                                                                                \
    static void backward_weight_##name(float* dweight, float* dbias, const void* dout, const void* x, int N, int C,  \
                                       int OC, DType dt, Stream s) {                                                 \
        Product p = product_of(packing, MATMUL_WEIGHT, dweight, dout, x, N, C, OC, dt);                              \
        p.row_sums = dbias;                                                                                          \
        if (takes_fp32 || dt != DT_F32) run(&p);                                                                     \
        else below_##name.matmul_backward_weight(dweight, dbias, dout, x, N, C, OC, dt, s);                          \
    }                                                                                                                \
    static void strided_##name(const StridedMatmul* m, DType dt, Stream s) {                                         \
        Product p = product_of(packing, m->kind, m->out, m->a, m->b, m->N, m->C, m->OC, dt);                         \
        p.a.ld = (size_t)m->lda, p.b.ld = (size_t)m->ldb, p.ldo = (size_t)m->ldo;                                    \
        p.scale = m->scale, p.adds = m->adds && !p.add;                                                              \
        if (takes_fp32 || dt != DT_F32) run(&p);                                                                     \
        else ranks_below_##name.strided_matmul(m, dt, s);                                                            \
    }                                                                                                                \
    static void install_ranks_##name(RankOps* table) {                                                               \
        ranks_below_##name = *table;                                                                                 \
        table->strided_matmul = strided_##name;                                                                      \
    }                                                                                                                \
    static void install_##name(Kernels* table) {                                                                     \
        below_##name = *table;                                                                                       \
        table->matmul_forward = forward_##name;                                                                      \
        table->matmul_backward_input = backward_input_##name;                                                        \
        table->matmul_backward_weight = backward_weight_##name;                                                      \
    }
