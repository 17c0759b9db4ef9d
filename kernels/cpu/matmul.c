// matmul.c - the three matmuls of a linear layer, as one blocked product of packed operands.
//
//   forward   out (N,OC)      =  x (N,C) weight (OC,C)^T        A = x     B = weight    depth C
//   input     dx (N,C)        =  dout (N,OC) weight (OC,C)      A = dout  B = weight    depth OC
//   weight    dweight (OC,C) +=  dout (N,OC)^T x (N,C)          A = dout  B = x         depth N
//
// All are C (M,N) = sum over depth k of A(m,k) B(n,k), where k is the contiguous direction of an operand or the other one.
// The blocking is that of Goto and van de Geijn (2008): the innermost loop keeps MR x NR sums in registers; a panel of B, NR
// columns KC deep, stays in the first cache while the panels of a block of A stream past it from the second. Packing gives
// both their order in memory, converts bf16 to fp32, and pads with zeros.
//
// Threads share the packed B and split the rows of C (or, when there are few, its columns too). How the depth is cut
// depends on the depth alone, so the number of threads cannot be seen in the result.
#include <omp.h>

#include "kernels/cpu/simd.h"

enum {
    MR = SIMD_FLOATS == 16 ? 14 : SIMD_FLOATS == 8 ? 6 : 4,  // rows in registers: MR x 2 sums, 2 of B, 1 of A
    NR = 2 * SIMD_FLOATS,                                    // columns in registers
    KC = 256,       // depth of a panel in the first cache
    MC = 16 * MR,   // rows of a block of A in the second cache
    NC = 768,       // columns of a block of B
    DEPTH = 4096,   // most depth of a block of B, which threads share
    TILE = MR * NR,  // sums of one register block
    PACK_DEPTH = 16
};

// How packed elements, 4 bytes each, hold the depth: one fp32, or two bf16 for instructions that multiply pairs.
typedef enum Packing { FLOATS, PAIRS } Packing;

typedef struct Operand {
    const void* p;
    size_t ld;
    int k_contiguous;  // element (i, k) lies at p[i * ld + k], otherwise at p[k * ld + i]
} Operand;

typedef struct Product {
    Operand a, b;
    size_t M, N, K;
    DType dt;        // of a, b, bias, gelu and pre, and of out unless it is added to
    Packing packing;   // of bf16
    void* out;         // (M,N) =, or fp32 += with add
    void* gelu;        // (M,N) = GELU(out), or NULL
    const void* bias;  // (N) added to out, or NULL
    const void* pre;   // (M,N) out is multiplied by GELU'(pre), or NULL
    float* row_sums;   // (M) += sums of A over its depth, or NULL
    int add;
} Product;

static inline size_t min(size_t a, size_t b) { return a < b ? a : b; }
static inline const void* element(const void* p, size_t i, DType dt) { return (const char*)p + i * dtype_bytes(dt); }

// ---- packing: strips of SIMD_FLOATS rows of A or columns of B

// n of the elements from p on, or as many as one vector holds.
SIMD_INLINE vf load_floats(const void* p, size_t n, DType dt) {
    return n >= SIMD_FLOATS ? vf_load_as(p, dt) : vf_load_part(p, (int)n, dt);
}

SIMD_INLINE vf load_pairs(const bf16* p, size_t n) {
    vf x = {0};
    if (n >= 2 * SIMD_FLOATS) memcpy(&x, p, sizeof x);
    else memcpy(&x, p, n * sizeof *p);
    return x;
}

SIMD_INLINE void transpose(vf x[SIMD_FLOATS]) {
    vf t[SIMD_FLOATS];
#pragma GCC unroll 4
    for (int round = 1; round < SIMD_FLOATS; round *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < SIMD_FLOATS / 2; i++) {
            t[2 * i] = vf_interleave_low(x[i], x[i + SIMD_FLOATS / 2]);
            t[2 * i + 1] = vf_interleave_high(x[i], x[i + SIMD_FLOATS / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < SIMD_FLOATS; i++) x[i] = t[i];
    }
}

// A strip whose depth is contiguous: `rows` rows from p on, `depth` packed elements of which K elements of the tensor are
// left, to to[k * width].
SIMD_INLINE void pack_transposed(float* to, int width, const void* p, size_t ld, int rows, size_t depth, size_t K,
                                 DType dt, Packing packing) {
    size_t unit = packing == PAIRS ? 2 : 1;
    for (size_t k = 0; k < depth; k += SIMD_FLOATS) {
        vf x[SIMD_FLOATS];
#pragma GCC unroll 16
        for (int i = 0; i < SIMD_FLOATS; i++) {
            const void* from = element(p, (size_t)i * ld + k * unit, dt);
            if (i >= rows) x[i] = (vf){0};
            else x[i] = packing == PAIRS ? load_pairs((const bf16*)from, K - k * unit) : load_floats(from, K - k, dt);
        }
        transpose(x);
        if (k + SIMD_FLOATS <= depth) {
#pragma GCC unroll 16
            for (int i = 0; i < SIMD_FLOATS; i++) vf_store(to + (k + i) * width, x[i]);
        } else {
            for (size_t i = 0; k + i < depth; i++) vf_store(to + (k + i) * width, x[i]);
        }
    }
}

// A strip whose rows are contiguous. Returns the sum of each row.
SIMD_INLINE vf pack_straight(float* to, int width, const void* p, size_t ld, size_t rows, size_t depth, size_t K,
                             DType dt, Packing packing) {
    vf sum = {0};
    for (size_t k = 0; k < depth; k++, to += width) {
        vf x;
        if (packing == PAIRS) {
            vf even = load_floats(element(p, 2 * k * ld, dt), rows, dt), odd = {0};
            if (2 * k + 1 < K) odd = load_floats(element(p, (2 * k + 1) * ld, dt), rows, dt);
            sum += even + odd;
            x = (vf)((vf_bits)even >> 16 | (vf_bits)odd);
        } else {
            x = load_floats(element(p, k * ld, dt), rows, dt);
            sum += x;
        }
        if (k + 1 < depth) vf_store(to, x);  // the next overwrites what goes beyond the width
        else vf_store_part(to, x, MIN(width, SIMD_FLOATS), DT_F32);
    }
    return sum;
}

// A panel: the strips of `width` rows of x from row i on, `depth` packed elements from k on. The rows beyond the last are 0.
// The last strip of MR rows writes a whole vector: up to SIMD_FLOATS - MR floats beyond the panel, which the next one overwrites.
SIMD_INLINE void pack_panel_as(float* to, int width, const Operand* x, size_t i, size_t n, size_t k, size_t depth, size_t K,
                               float* row_sums, DType dt, Packing packing) {
    size_t first = k * (packing == PAIRS ? 2 : 1);
    for (int strip = 0; strip < width; strip += SIMD_FLOATS, i += SIMD_FLOATS, to += SIMD_FLOATS) {
        size_t rows = i < n ? n - i : 0, used = min(rows, (size_t)min(width - strip, SIMD_FLOATS));
        const void* from = used == 0 ? x->p : element(x->p, x->k_contiguous ? i * x->ld + first : first * x->ld + i, dt);
        if (!x->k_contiguous) {
            vf sum = pack_straight(to, width, from, x->ld, rows, depth, K - first, dt, packing);
            if (row_sums) vf_store_part(row_sums, vf_load_part(row_sums, MR, DT_F32) + sum, MR, DT_F32);
        } else if (used == SIMD_FLOATS) {
            pack_transposed(to, width, from, x->ld, SIMD_FLOATS, depth, K - first, dt, packing);
        } else if (used == MR) {
            pack_transposed(to, width, from, x->ld, MR, depth, K - first, dt, packing);
        } else {
            pack_transposed(to, width, from, x->ld, (int)used, depth, K - first, dt, packing);
        }
    }
}

// Panels begin .. end of operand x, `width` rows from row i on each, `depth` elements from k on; panel j goes to
// to + j * width * depth. Where rows are contiguous a few steps of all panels are packed at a time, because a panel alone
// would touch a page or two at every step.
static void pack_panels(float* to, int width, const Product* p, const Operand* x, size_t i, size_t n, size_t begin, size_t end,
                        size_t k, size_t depth, float* row_sums) {
    size_t most = x->k_contiguous ? depth : PACK_DEPTH;
    for (size_t done = 0; done < depth; done += most)
        for (size_t j = begin; j < end; j++) {
            size_t row = i + j * width, steps = min(most, depth - done);
            float *panel = to + (j * depth + done) * width, *sums = row_sums ? row_sums + j * width : NULL;
            if (p->dt == DT_F32) pack_panel_as(panel, width, x, row, n, k + done, steps, p->K, sums, DT_F32, FLOATS);
            else if (p->packing == FLOATS) pack_panel_as(panel, width, x, row, n, k + done, steps, p->K, sums, DT_BF16, FLOATS);
            else pack_panel_as(panel, width, x, row, n, k + done, steps, p->K, sums, DT_BF16, PAIRS);
        }
}

// ---- the register block

SIMD_INLINE vf multiply_add(vf sum, vf a, vf b, Packing packing) {
#ifdef __AVX512BF16__
    if (packing == PAIRS) return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#endif
    (void)packing;
    return vf_fma(a, b, sum);
}

// tile (MR,NR) = or += a b over `depth` packed elements. Meanwhile fetches the first depth * 8 bytes from `next` on.
SIMD_INLINE void multiply_panels_as(float* tile, const float* a, const float* b, size_t depth, int add, const char* next,
                                    Packing packing) {
    vf sum[MR][2];
#pragma GCC unroll 14
    for (int i = 0; i < MR; i++) sum[i][0] = sum[i][1] = (vf){0};
    for (size_t k = 0; k < depth; k++, a += MR, b += NR, next += 8) {
        __builtin_prefetch(next, 0, 2);
        vf b0 = vf_load(b), b1 = vf_load(b + SIMD_FLOATS);
#pragma GCC unroll 14
        for (int i = 0; i < MR; i++) {
            vf ai = vf_set1(a[i]);
            sum[i][0] = multiply_add(sum[i][0], ai, b0, packing);
            sum[i][1] = multiply_add(sum[i][1], ai, b1, packing);
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < MR; i++, tile += NR) {
        vf_store(tile, add ? vf_load(tile) + sum[i][0] : sum[i][0]);
        vf_store(tile + SIMD_FLOATS, add ? vf_load(tile + SIMD_FLOATS) + sum[i][1] : sum[i][1]);
    }
}

static void multiply_panels(float* tile, const float* a, const float* b, size_t depth, int add, const char* next,
                            Packing packing) {
    if (packing == PAIRS) multiply_panels_as(tile, a, b, depth, add, next, PAIRS);
    else multiply_panels_as(tile, a, b, depth, add, next, FLOATS);
}

// ---- writing out

SIMD_INLINE void store_floats(void* p, vf x, size_t n, DType dt) {
    if (n >= SIMD_FLOATS) vf_store_as(p, x, dt);
    else vf_store_part(p, x, (int)n, dt);
}

// The sums of one register block at (m, n) become results.
SIMD_INLINE void write_tile_as(const Product* p, const float* tile, size_t m, size_t n, DType dt) {
    for (size_t rows = min(MR, p->M - m); rows > 0; rows--, m++, tile += NR)
        for (size_t col = n, v = 0; v < NR && col < p->N; v += SIMD_FLOATS, col += SIMD_FLOATS) {
            size_t at = m * p->N + col, left = p->N - col;
            vf x = vf_load(tile + v);
            if (p->add) {
                float* to = (float*)p->out + at;
                store_floats(to, load_floats(to, left, DT_F32) + x, left, DT_F32);
                continue;
            }
            if (p->bias) x += load_floats(element(p->bias, col, dt), left, dt);
            if (p->pre) x *= vf_gelu_gradient(load_floats(element(p->pre, at, dt), left, dt));
            store_floats((void*)element(p->out, at, dt), x, left, dt);
            if (!p->gelu) continue;
            if (dt == DT_BF16) x = vf_from_bf16(vf_to_bf16(x));
            store_floats((void*)element(p->gelu, at, dt), vf_gelu(x), left, dt);
        }
}

// Asks for the memory that write_tile will need.
static inline void fetch_tile(const Product* p, size_t m, size_t n) {
    DType dt = p->add ? DT_F32 : p->dt;
    for (size_t i = 0; i < MR && m + i < p->M; i++) {
        const char* row = (const char*)element(p->out, (m + i) * p->N + n, dt);
        for (size_t at = 0; at < NR * dtype_bytes(dt); at += 64) __builtin_prefetch(row + at, 1, 2);
    }
}

static void write_tile(const Product* p, const float* tile, size_t m, size_t n) {
    if (p->dt == DT_BF16) write_tile_as(p, tile, m, n, DT_BF16);
    else write_tile_as(p, tile, m, n, DT_F32);
}

// ---- the blocked product

// n cut into equal pieces of at most `most`, a multiple of `unit`: the size of a piece.
static size_t piece(size_t n, size_t most, size_t unit) {
    return ROUND_UP(CEIL_DIV(n, CEIL_DIV(n, most)), unit);
}

// A thread's scratch: a block of A, its sums, and the sums over its rows.
typedef struct ThreadScratch {
    float a[MC * KC + SIMD_FLOATS];
    float sums[MC * NC];
    float row_sums[MC];
} ThreadScratch;

// What a thread works on at one moment: rows m .. m + rows, panels of columns panel .. panel_end of the block of B that starts at
// column n, and the depth k .. k + depth, in packed elements.
typedef struct Block {
    size_t m, rows;
    size_t n, panel, panel_end;
    size_t k, depth;
    int first, last;    // is this the first, the last part of the whole depth?
    int with_row_sums;  // does this thread sum rows of A, and now?
    const float* b;   // packed, panel after panel
    float* sums;      // register block after register block
} Block;

static void multiply_block(const Product* p, const Block* block, ThreadScratch* scratch) {
    size_t row_panels = CEIL_DIV(block->rows, MR), kc = piece(block->depth, KC, 1);
    memset(scratch->row_sums, 0, sizeof scratch->row_sums);
    for (size_t k = 0; k < block->depth; k += kc) {
        size_t depth = min(kc, block->depth - k);
        int add = !block->first || k > 0, finished = block->last && k + depth == block->depth;
        pack_panels(scratch->a, MR, p, &p->a, block->m, p->M, 0, row_panels, block->k + k, depth,
                    block->with_row_sums ? scratch->row_sums : NULL);
        for (size_t j = block->panel; j < block->panel_end; j++)
            for (size_t i = 0; i < row_panels; i++) {
                float* tile = block->sums + (j * row_panels + i) * TILE;
                const float* b = block->b + (j * block->depth + k) * NR;
                const char* next = (const char*)(b + block->depth * NR) + i * depth * 8;
                if (finished) fetch_tile(p, block->m + i * MR, block->n + j * NR);
                multiply_panels(tile, scratch->a + i * MR * depth, b, depth, add, next, p->dt == DT_BF16 ? p->packing : FLOATS);
                if (finished) write_tile(p, tile, block->m + i * MR, block->n + j * NR);
            }
    }
    for (size_t i = 0; block->with_row_sums && i < block->rows; i++) p->row_sums[block->m + i] += scratch->row_sums[i];
}

// Thread t of nt does its part. Sums of a depth beyond DEPTH wait in shared scratch for the next block of B, but where the
// result is added to, each block of B simply adds its own.
static void multiply_part(const Product* p, int t, int nt) {
    int unit = p->packing == PAIRS && p->dt == DT_BF16 ? 2 : 1, row_parts = (int)min((size_t)nt, CEIL_DIV(p->M, MR)), col_parts = nt / row_parts;
    size_t K = CEIL_DIV(p->K, (size_t)unit), depth_piece = piece(K, DEPTH, 1), m0 = 0, m1 = 0;
    if (t < row_parts * col_parts) cpu_share(p->M, MR, t / col_parts, row_parts, &m0, &m1);
    size_t nc = piece(p->N, NC, NR), mc = m1 > m0 ? piece(m1 - m0, MC, MR) : MC;
    ThreadScratch* scratch = (ThreadScratch*)cpu_thread_scratch(t);
    float* b = (float*)cpu_shared_scratch();
    float* shared_sums = b + (size_t)DEPTH * NC;
    for (size_t n = 0; n < p->N; n += nc)
        for (size_t k = 0; k < K; k += depth_piece) {
            size_t depth = min(depth_piece, K - k), panels = CEIL_DIV(min(nc, p->N - n), NR), begin, end;
            cpu_share(panels, 1, t, nt, &begin, &end);
#pragma omp barrier
            pack_panels(b, NR, p, &p->b, n, p->N, begin, end, k, depth, NULL);
#pragma omp barrier
            cpu_share(panels, 1, t % col_parts, col_parts, &begin, &end);
            for (size_t m = m0; m < m1; m += mc) {
                int whole = p->add || depth == K;
                Block block = {.m = m, .rows = min(mc, m1 - m), .n = n, .panel = begin, .panel_end = end, .k = k, .depth = depth,
                               .first = whole || k == 0, .last = whole || k + depth == K, .b = b,
                               .with_row_sums = p->row_sums && n == 0 && t % col_parts == 0,
                               .sums = whole ? scratch->sums : shared_sums + m / MR * panels * TILE};
                multiply_block(p, &block, scratch);
            }
        }
}

static void multiply(const Product* p) {
    if (p->M == 0 || p->K == 0) return;
#pragma omp parallel num_threads(cpu_threads())
    multiply_part(p, omp_get_thread_num(), omp_get_num_threads());
}

static CpuScratch scratch(const KernelLimits* limits) {
    size_t deepest = (size_t)MAX(limits->C, limits->OC), waiting = deepest > DEPTH ? ROUND_UP((size_t)limits->N, (size_t)MR) * NC : 0;
    return (CpuScratch){((size_t)DEPTH * NC + waiting) * sizeof(float), sizeof(ThreadScratch)};
}

// ---- the entries of the table, for fp32 and one packing of bf16

#define ENTRIES(name, bf16_packing)                                                                                    \
    static void forward_##name(void* out, void* gelu, const void* x, const void* weight, const void* bias, int N,      \
                               int C, int OC, DType dt, Stream s) {                                                    \
        Product p = {.a = {x, (size_t)C, 1}, .b = {weight, (size_t)C, 1}, .dt = dt, .packing = bf16_packing,           \
                     .M = (size_t)N, .N = (size_t)OC, .K = (size_t)C, .out = out, .gelu = gelu, .bias = bias};         \
        if (dt == DT_F64) cpu_reference_kernels.matmul_forward(out, gelu, x, weight, bias, N, C, OC, dt, s);           \
        else multiply(&p);                                                                                             \
    }                                                                                                                  \
    static void backward_input_##name(void* dx, const void* dout, const void* weight, const void* pre, int N, int C,   \
                                      int OC, DType dt, Stream s) {                                                    \
        Product p = {.a = {dout, (size_t)OC, 1}, .b = {weight, (size_t)C, 0}, .dt = dt, .packing = bf16_packing,       \
                     .M = (size_t)N, .N = (size_t)C, .K = (size_t)OC, .out = dx, .pre = pre};                          \
        if (dt == DT_F64) cpu_reference_kernels.matmul_backward_input(dx, dout, weight, pre, N, C, OC, dt, s);         \
        else multiply(&p);                                                                                             \
    }                                                                                                                  \
    static void backward_weight_##name(float* dweight, float* dbias, const void* dout, const void* x, int N, int C,    \
                                       int OC, DType dt, Stream s) {                                                   \
        Product p = {.a = {dout, (size_t)OC, 0}, .b = {x, (size_t)C, 0}, .dt = dt, .packing = bf16_packing, .add = 1,  \
                     .M = (size_t)OC, .N = (size_t)C, .K = (size_t)N, .out = dweight, .row_sums = dbias};              \
        if (dt == DT_F64) cpu_reference_kernels.matmul_backward_weight(dweight, dbias, dout, x, N, C, OC, dt, s);      \
        else multiply(&p);                                                                                             \
    }                                                                                                                  \
    static void install_##name(Kernels* table) {                                                                       \
        table->matmul_forward = forward_##name;                                                                        \
        table->matmul_backward_input = backward_input_##name;                                                          \
        table->matmul_backward_weight = backward_weight_##name;                                                        \
    }

ENTRIES(floats, FLOATS)

#ifdef __AVX512BF16__
ENTRIES(pairs, PAIRS)

// On AMD's processors the product of pairs has twice the rate of fp32 sums and products; on Intel's half of it.
static void install_faster(Kernels* table) {
    __builtin_cpu_init();
    if (__builtin_cpu_is("intel")) install_floats(table);
    else install_pairs(table);
}

const CpuFamily ISA_NAME(matmul) = {install_faster, scratch};
const CpuFamily ISA_NAME(matmul_pairs) = {install_pairs, scratch};  // for tests
#else
const CpuFamily ISA_NAME(matmul) = {install_floats, scratch};
#endif
