// sweep_attention.h - attention of one row, forward and backward, against what is known without it at any length.
//
// Inputs are drawn on the device from 1024 random rows, of which half are the others with another sign, so that a mean
// over n keys is of size 1 / sqrt(n): one tile of 64 keys too few among 131072 changes it by 2 %.
//
// Closed form. Queries and keys of the last key/value head have no channel in common: every score is exactly 0. With n
// keys seen, P = 1 / n, out is a mean of values, lse = log(n), and gradients are sums over the keys before or the
// queries behind. dout of these heads is a number for each token times a fixed u of 16 channels, so that 16 channels of
// each result take O(N): all queries and keys of the row are checked. A missing key moves lse by 1 / n, 8e-6 of 131072.
//
// Plain. In the longest document the last 64 queries, with all their keys, and the first 64 keys, with all queries, are
// computed again in plain fp32 arithmetic from the same bf16 inputs: softmax over keys that are not alike. These are
// other kernels (kernels/cuda/attention_plain.cu), which take rows whose length is no multiple of 8; on the CPU they
// are the reference table's.
//
// Differences are norms over 16 rows of a document as a share of the expected norm. A result is rounded to bf16, and so
// were the probabilities or dS that it sums: 2^-9 of each at most, 2^-8 together. Errors of a sum of terms that cancel
// are as random as the terms; twice that is allowed. Results begin as NaN, and NaN is what 128 rows behind the last
// token of every input are.
#pragma once
#include "kernels/rank_ops.h"
#include "test/tables.h"

enum { DRAWN = 1024, CHECKED = 16, WINDOW = 16, BLOCK = 64, TAIL = 128, MOST_CUTS = 64, MOST_GROUP = 8 };
static const double ATTENTION_TOLERANCE = 1.0 / 128;

typedef struct SweepRow {  // documents of N tokens, one after another
    int N, n_docs, cu[MOST_CUTS + 1];
} SweepRow;

typedef struct Heads {
    int NH, NKV, HS;
} Heads;

static int group_of(Heads h) { return h.NH / h.NKV; }
static int out_width(Heads h) { return h.NH * h.HS; }
static int qkv_width(Heads h) { return (h.NH + 2 * h.NKV) * h.HS; }

// ---- inputs

// What a row of inputs has in the checked channels of the last key/value head and its query heads.
typedef struct Drawn {
    float q[MOST_GROUP][CHECKED], k[CHECKED], v[CHECKED], along_u;  // v . u
} Drawn;

typedef struct Inputs {
    Heads heads;
    bf16 *qkv, *dout;                // (DRAWN, qkv_width), (DRAWN, out_width) on the device
    Drawn drawn[DRAWN];              // of qkv
    float along[DRAWN][MOST_GROUP];  // of dout: the factor of u
    int columns[4 * CHECKED];        // of dq, dk, dv in a row of gradients, and of out in its own
} Inputs;

// Which row token n has.
static int drawn_row(int n, int of_dout) { return (int)(hash64(2 * (uint64_t)n + (uint64_t)of_dout) % DRAWN); }

static float u_of(int i) { return i % 3 ? 1.0f : -1.0f; }

// Checked channel i of a vector of n: the first 8 and the last 8.
static int channel_of(int i, int n) { return i < CHECKED / 2 ? i : n - CHECKED + i; }

// Half of the rows, then the same with another sign.
static bf16* draw_rows(int width, uint64_t seed) {
    bf16* rows = (bf16*)malloc((size_t)DRAWN * (size_t)width * sizeof *rows);
    size_t half = (size_t)(DRAWN / 2) * (size_t)width;
    for (size_t i = 0; i < half; i++) {
        rows[i] = bf16_from_float((float)random_normal(seed, i));
        rows[half + i] = rows[i] ^ 0x8000;
    }
    return rows;
}

static void fill_columns(Inputs* x) {
    Heads h = x->heads;
    int q = (h.NH - 1) * h.HS, k = (h.NH + h.NKV - 1) * h.HS, v = (h.NH + 2 * h.NKV - 1) * h.HS, half = h.HS / 2;
    for (int i = 0; i < CHECKED; i++) {
        x->columns[i] = q + half + channel_of(i, half);  // where keys are not 0
        x->columns[CHECKED + i] = k + channel_of(i, half);
        x->columns[2 * CHECKED + i] = v + channel_of(i, h.HS);
        x->columns[3 * CHECKED + i] = q + channel_of(i, h.HS);
    }
}

// Queries keep the first half of their channels, keys the second, dout what lies along u.
static void shape_last_head(Inputs* x, bf16* qkv, bf16* dout) {
    Heads h = x->heads;
    int g = group_of(h), half = h.HS / 2;
    for (int t = 0; t < DRAWN; t++) {
        bf16 *q = qkv + (size_t)t * (size_t)qkv_width(h) + (h.NH - g) * h.HS, *k = q + (g + h.NKV - 1) * h.HS;
        bf16 *v = k + h.NKV * h.HS, *d = dout + (size_t)t * (size_t)out_width(h) + (h.NH - g) * h.HS;
        Drawn* drawn = &x->drawn[t];
        memset(k, 0, (size_t)half * sizeof *k);
        drawn->along_u = 0;
        for (int j = 0; j < g; j++, q += h.HS, d += h.HS) {
            bf16 factor = d[0];
            memset(q + half, 0, (size_t)half * sizeof *q);
            memset(d, 0, (size_t)h.HS * sizeof *d);
            x->along[t][j] = bf16_to_float(factor);
            for (int i = 0; i < CHECKED; i++) {
                drawn->q[j][i] = bf16_to_float(q[channel_of(i, half)]);
                d[channel_of(i, h.HS)] = bf16_from_float(u_of(i) * bf16_to_float(factor));
            }
        }
        for (int i = 0; i < CHECKED; i++) {
            drawn->k[i] = bf16_to_float(k[half + channel_of(i, half)]);
            drawn->v[i] = bf16_to_float(v[channel_of(i, h.HS)]);
            drawn->along_u += u_of(i) * drawn->v[i];
        }
    }
}

static void* to_device(const Kernels* k, const void* host, size_t bytes) {
    void* device = k->alloc(bytes);
    if (!device) die("no memory for %zu bytes of inputs", bytes);
    k->upload(device, host, bytes, NULL);
    k->synchronize(NULL);
    return device;
}

static Inputs* make_inputs(const Kernels* k, Heads heads) {
    Inputs* x = (Inputs*)malloc(sizeof *x);
    bf16 *qkv = draw_rows(qkv_width(heads), 1), *dout = draw_rows(out_width(heads), 2);
    x->heads = heads;
    fill_columns(x);
    shape_last_head(x, qkv, dout);
    x->qkv = (bf16*)to_device(k, qkv, (size_t)DRAWN * (size_t)qkv_width(heads) * sizeof *qkv);
    x->dout = (bf16*)to_device(k, dout, (size_t)DRAWN * (size_t)out_width(heads) * sizeof *dout);
    free(qkv), free(dout);
    return x;
}

static void free_inputs(const Kernels* k, Inputs* x) {
    k->free_memory(x->qkv), k->free_memory(x->dout);
    free(x);
}

// ---- memory of a row of at most n_tokens, carved from a block that is there for other things, too

typedef struct AttentionRow {
    bf16 *qkv, *dout, *out, *d_qkv, *checked, *checked_out;  // checked (N, 3 CHECKED), checked_out (N, CHECKED)
    float *lse, *unread;                                     // lse (NH, N), unread (N, C + 1)
    float *block, *block_too, *block_lse;                    // (BLOCK, C + 1) each, (NH, BLOCK)
    int *tokens, *cu, *columns;  // (N), (MOST_CUTS + 1, then those of a part: 4, 4, 4), as in Inputs
    size_t bytes;
} AttentionRow;

static void* carve(char* memory, size_t* used, size_t bytes) {
    void* at = memory + *used;
    *used += ROUND_UP(bytes, (size_t)256);
    return at;
}

static AttentionRow attention_row(Heads h, int n_tokens, void* memory) {
    AttentionRow r = {0};
    char* m = (char*)memory;
    size_t N = (size_t)n_tokens + TAIL, C = (size_t)out_width(h), W = (size_t)qkv_width(h), two = sizeof(bf16),
           four = 4;
    r.qkv = (bf16*)carve(m, &r.bytes, N * W * two), r.dout = (bf16*)carve(m, &r.bytes, N * C * two);
    r.out = (bf16*)carve(m, &r.bytes, N * C * two), r.d_qkv = (bf16*)carve(m, &r.bytes, N * W * two);
    r.checked = (bf16*)carve(m, &r.bytes, N * 3 * CHECKED * two);
    r.checked_out = (bf16*)carve(m, &r.bytes, N * CHECKED * two);
    r.lse = (float*)carve(m, &r.bytes, N * (size_t)h.NH * four);
    r.unread = (float*)carve(m, &r.bytes, N * (C + 1) * four);
    r.block = (float*)carve(m, &r.bytes, BLOCK * (C + 1) * four);
    r.block_too = (float*)carve(m, &r.bytes, BLOCK * (C + 1) * four);
    r.block_lse = (float*)carve(m, &r.bytes, BLOCK * (size_t)h.NH * four);
    r.tokens = (int*)carve(m, &r.bytes, N * four);
    r.cu = (int*)carve(m, &r.bytes, (MOST_CUTS + 13) * four);
    r.columns = (int*)carve(m, &r.bytes, 4 * CHECKED * four);
    return r;
}

static void draw(const Kernels* k, const AttentionRow* r, void* out, const bf16* from, int width, int N, int of_dout) {
    int* tokens = (int*)malloc((size_t)N * sizeof *tokens);
    for (int n = 0; n < N; n++) tokens[n] = drawn_row(n, of_dout);
    k->upload(r->tokens, tokens, (size_t)N * sizeof *tokens, NULL);
    k->embedding_forward(out, r->tokens, r->tokens, from, NULL, N, width, DT_BF16, NULL);
    k->synchronize(NULL);
    free(tokens);
}

static Attention attention_of_row(Heads h, const AttentionRow* r, const SweepRow* row, uint64_t number) {
    Attention a = {.q = r->qkv, .k = r->qkv + h.NH * h.HS, .v = r->qkv + (h.NH + h.NKV) * h.HS};
    a.cu_q = a.cu_k = r->cu;
    a.Nq = a.Nk = row->N, a.n_docs = row->n_docs;
    a.ldq = a.ldkv = qkv_width(h), a.ldo = out_width(h);
    a.NH = h.NH, a.NKV = h.NKV, a.HS = h.HS;
    a.causal = 1, a.scale = 1 / sqrtf((float)h.HS), a.row = number, a.tail = ATTENTION_TAIL;
    return a;
}

// ---- differences

typedef struct Differences {
    double out, lse, dq, dk, dv;  // the largest; lse: absolute
} Differences;

// The largest, and infinity where one of them is not a number.
static void worse(double* worst, double x) {
    if (!(x <= *worst)) *worst = isnan(x) ? INFINITY : x;
}

static double worst_of(Differences d) {
    double worst = 0;
    worse(&worst, d.out), worse(&worst, d.dq), worse(&worst, d.dk), worse(&worst, d.dv);
    return worst;
}

// Rows of n numbers; where all of them are expected to be 0, `least` stands for their size.
static double share(const bf16* found, size_t ld, const float* expected, size_t ld_expected, int rows, int n,
                    double least) {
    double difference = 0, norm = 0;
    for (int r = 0; r < rows; r++, found += ld, expected += ld_expected)
        for (int i = 0; i < n; i++) {
            double x = bf16_to_float(found[i]), y = expected[i];
            difference += (x - y) * (x - y), norm += y * y;
        }
    return sqrt(difference) / fmax(sqrt(norm), least);
}

// ---- closed form

typedef struct Expected {
    float *out, *dq, *dk, *dv;  // (N, CHECKED)
    float* dv_terms;            // (N): the root of the sum of squares of what an element of dv is a sum of
} Expected;

// u . out of a query, rounded as it is: what D is made of. All heads of a key/value head have the same.
static double mean_along_u(const bf16* out) {
    double sum = 0;
    for (int c = 0; c < CHECKED; c++) sum += u_of(c) * bf16_to_float(out[c]);
    return sum;
}

// out and dq of the last head, queries `first` and on of a document of n tokens. found: out as it was found.
static void expect_queries(const Inputs* x, Expected e, const bf16* found, int first, int n) {
    double v[CHECKED] = {0}, k[CHECKED] = {0}, k_along[CHECKED] = {0}, scale = 1 / sqrt(x->heads.HS);
    int last = group_of(x->heads) - 1;
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)(first + i) * CHECKED;
        const Drawn* d = &x->drawn[drawn_row(first + i, 0)];
        double s = x->along[drawn_row(first + i, 1)][last], D = s * mean_along_u(found + at);
        for (int c = 0; c < CHECKED; c++) {
            v[c] += d->v[c], k[c] += d->k[c], k_along[c] += d->along_u * d->k[c];
            e.out[at + c] = (float)(v[c] / (i + 1));
        }
        for (int c = 0; c < CHECKED; c++) e.dq[at + c] = (float)(scale / (i + 1) * (s * k_along[c] - D * k[c]));
    }
}

// dk and dv of the last key/value head.
static void expect_keys(const Inputs* x, Expected e, const bf16* found, int first, int n) {
    double q[CHECKED] = {0}, q_mean[CHECKED] = {0}, sum = 0, squares = 0;
    double scale = 1 / sqrt(x->heads.HS);
    for (int i = n - 1; i >= 0; i--) {
        size_t at = (size_t)(first + i) * CHECKED;
        const Drawn* d = &x->drawn[drawn_row(first + i, 0)];
        double mean = mean_along_u(found + at);
        for (int h = 0; h < group_of(x->heads); h++) {
            double s = x->along[drawn_row(first + i, 1)][h] / (double)(i + 1);
            sum += s, squares += s * s;
            for (int c = 0; c < CHECKED; c++) q[c] += s * d->q[h][c], q_mean[c] += s * mean * d->q[h][c];
        }
        e.dv_terms[first + i] = (float)sqrt(squares);
        for (int c = 0; c < CHECKED; c++) {
            e.dv[at + c] = (float)(sum * u_of(c));
            e.dk[at + c] = (float)(scale * (d->along_u * q[c] - q_mean[c]));
        }
    }
}

static void compare_windows(Differences* d, const bf16* found, const bf16* out, const float* lse, Expected e, int first,
                            int n) {
    enum { LD = 3 * CHECKED };
    const double least = 0.05 * CHECKED;
    for (int i = 0; i < n; i += WINDOW) {
        int rows = MIN(WINDOW, n - i);
        size_t row = (size_t)(first + i), at = row * CHECKED;
        worse(&d->out, share(out + at, CHECKED, e.out + at, CHECKED, rows, CHECKED, 0));
        worse(&d->dq, share(found + row * LD, LD, e.dq + at, CHECKED, rows, CHECKED, least / (i + 1)));
        worse(&d->dk, share(found + row * LD + CHECKED, LD, e.dk + at, CHECKED, rows, CHECKED, least / (i + 1)));
        // All keys have dv along u, a sum that walks at random, through 0 too, and so does its error: both are compared
        // with twice what its terms make together, beyond which they seldom walk.
        double terms = 2 * e.dv_terms[row] * sqrt(CHECKED * rows);
        worse(&d->dv, share(found + row * LD + 2 * CHECKED, LD, e.dv + at, CHECKED, rows, CHECKED, terms));
        for (int j = i; j < i + rows; j++) worse(&d->lse, fabs(lse[first + j] - log((double)j + 1)));
    }
}

static Differences closed_form(const Kernels* k, const Inputs* x, const AttentionRow* r, const SweepRow* row) {
    size_t N = (size_t)row->N, n = N * CHECKED;
    Heads h = x->heads;
    float* memory = (float*)malloc((4 * n + 2 * N) * sizeof(float));
    bf16* found = (bf16*)malloc(4 * n * sizeof(bf16));
    Expected e = {memory, memory + n, memory + 2 * n, memory + 3 * n, memory + 4 * n};
    float* lse = memory + 4 * n + N;
    Differences d = {0};
    if (!memory || !found) die("no memory for what %d tokens should be", row->N);
    k->upload(r->columns, x->columns, sizeof x->columns, NULL);
    k->ranks->gather_columns(r->checked, r->d_qkv, r->columns, row->N, 3 * CHECKED, qkv_width(h), DT_BF16, NULL);
    k->ranks->gather_columns(r->checked_out, r->out, r->columns + 3 * CHECKED, row->N, CHECKED, out_width(h), DT_BF16,
                             NULL);
    k->download(found, r->checked, 3 * n * sizeof(bf16), NULL);
    k->download(found + 3 * n, r->checked_out, n * sizeof(bf16), NULL);
    k->download(lse, r->lse + (size_t)(h.NH - 1) * N, N * sizeof(float), NULL);
    for (int b = 0; b < row->n_docs; b++) {
        int first = row->cu[b], length = row->cu[b + 1] - first;
        expect_queries(x, e, found + 3 * n, first, length);
        expect_keys(x, e, found + 3 * n, first, length);
        compare_windows(&d, found, found + 3 * n, lse, e, first, length);
    }
    free(memory), free(found);
    return d;
}

// ---- plain

// Rows of heads against rows of plain results, a head and a window at a time.
static void compare_block(const Kernels* k, double* worst, const bf16* found, int ld, const float* plain, int rows,
                          int heads, int HS) {
    int width = heads * HS;
    bf16* x = (bf16*)malloc((size_t)rows * (size_t)ld * sizeof *x);
    float* y = (float*)malloc((size_t)rows * (size_t)(width + 1) * sizeof *y);
    k->download(x, found, ((size_t)(rows - 1) * (size_t)ld + (size_t)width) * sizeof *x, NULL);
    k->download(y, plain, (size_t)rows * (size_t)(width + 1) * sizeof *y, NULL);
    for (int i = 0; i < rows; i += WINDOW)
        for (int h = 0; h < heads; h++) {
            size_t at = (size_t)i * (size_t)ld + (size_t)h * (size_t)HS,
                   at_plain = (size_t)i * (size_t)(width + 1) + (size_t)h * (size_t)HS;
            worse(worst, share(x + at, (size_t)ld, y + at_plain, (size_t)width + 1, MIN(WINDOW, rows - i), HS, 0.02));
        }
    free(x), free(y);
}

static const Kernels* plain_kernels(const Kernels* k) { return k->on_host ? reference() : k; }

// out and dq of the last queries of the document from token `first` to `end`.
static void plain_queries(const Kernels* k, Differences* d, Heads h, const AttentionRow* r, Attention a, int first,
                          int end) {
    int n = MIN((int)BLOCK, end - first), at = end - n, C = out_width(h), cu[4] = {0, n, 0, end - first};
    const Kernels* plain = plain_kernels(k);
    size_t row = (size_t)at, W = (size_t)qkv_width(h), bytes = (size_t)BLOCK * (size_t)(C + 1) * sizeof(float);
    int* there = r->cu + MOST_CUTS + 1;
    k->upload(there, cu, sizeof cu, NULL);
    k->clear(r->block, bytes, NULL), k->clear(r->block_too, bytes, NULL);
    a.q = r->qkv + row * W;
    a.k = (const bf16*)a.k + (size_t)first * W, a.v = (const bf16*)a.v + (size_t)first * W;
    a.cu_q = there, a.cu_k = there + 2, a.n_docs = 1, a.Nq = n, a.Nk = end - first;
    a.partial = 1, a.row = 0, a.ldo = C + 1, a.ld_dq = C + 1, a.ld_dkv = h.NKV * h.HS + 1;
    plain->attention_forward(r->block, r->block_lse, &a, DT_BF16, NULL);
    compare_block(k, &d->out, r->out + row * (size_t)C, C, r->block, n, h.NH, h.HS);
    a.ldo = C;
    plain->attention_backward(r->block_too, r->unread, r->unread, r->dout + row * (size_t)C, r->out + row * (size_t)C,
                              r->block_lse, &a, DT_BF16, NULL);
    compare_block(k, &d->dq, r->d_qkv + row * W, (int)W, r->block_too, n, h.NH, h.HS);
}

// dk and dv of its first keys: other documents come in with queries and without keys.
static void plain_keys(const Kernels* k, Differences* d, Heads h, const AttentionRow* r, Attention a, int first,
                       int end) {
    int n = MIN((int)BLOCK, end - first), ids[11] = {0, first, end, a.Nq, 0, 0, n, n, 0, 0, 0}, kv = h.NKV * h.HS;
    size_t W = (size_t)qkv_width(h), to = (size_t)first * W + (size_t)out_width(h),
           bytes = (size_t)BLOCK * (size_t)(out_width(h) + 1) * sizeof(float);
    int* there = r->cu + MOST_CUTS + 1;
    k->upload(there, ids, sizeof ids, NULL);
    k->clear(r->block, bytes, NULL), k->clear(r->block_too, bytes, NULL);
    a.k = (const bf16*)a.k + (size_t)first * W, a.v = (const bf16*)a.v + (size_t)first * W;
    a.cu_q = there, a.cu_k = there + 4, a.causal_offset = there + 8, a.n_docs = 3, a.Nk = n;
    a.partial = 1, a.row = 0, a.ld_dq = out_width(h) + 1, a.ld_dkv = kv + 1;
    plain_kernels(k)->attention_backward(r->unread, r->block, r->block_too, r->dout, r->out, r->lse, &a, DT_BF16, NULL);
    compare_block(k, &d->dk, r->d_qkv + to, (int)W, r->block, n, h.NKV, h.HS);
    compare_block(k, &d->dv, r->d_qkv + to + kv, (int)W, r->block_too, n, h.NKV, h.HS);
}

static Differences plain_form(const Kernels* k, Heads h, const AttentionRow* r, const SweepRow* row,
                              const Attention* a) {
    Differences d = {0};
    int longest = 0;
    for (int b = 0; b < row->n_docs; b++)
        if (row->cu[b + 1] - row->cu[b] > row->cu[longest + 1] - row->cu[longest]) longest = b;
    plain_queries(k, &d, h, r, *a, row->cu[longest], row->cu[longest + 1]);
    plain_keys(k, &d, h, r, *a, row->cu[longest], row->cu[longest + 1]);
    return d;
}

// ---- both: memory of attention_row for `capacity` tokens, all of it NaN; number: Attention.row

typedef struct Checked {
    Differences closed, plain;
    double seconds;  // forward and backward
} Checked;

static Checked check_attention(const Kernels* k, const Inputs* x, const SweepRow* row, int capacity, void* memory,
                               uint64_t number) {
    Heads h = x->heads;
    AttentionRow r = attention_row(h, capacity, memory);
    Attention a = attention_of_row(h, &r, row, number);
    Checked c = {0};
    bf16 *d_k = r.d_qkv + h.NH * h.HS, *d_v = d_k + h.NKV * h.HS;
    k->upload(r.cu, row->cu, ((size_t)row->n_docs + 1) * sizeof(int), NULL);
    draw(k, &r, r.qkv, x->qkv, qkv_width(h), row->N, 0);
    draw(k, &r, r.dout, x->dout, out_width(h), row->N, 1);
    double began = now_seconds();
    k->attention_forward(r.out, r.lse, &a, DT_BF16, NULL);
    k->attention_backward(r.d_qkv, d_k, d_v, r.dout, r.out, r.lse, &a, DT_BF16, NULL);
    k->synchronize(NULL);
    c.seconds = now_seconds() - began;
    c.closed = closed_form(k, x, &r, row);
    c.plain = plain_form(k, h, &r, row, &a);
    return c;
}
