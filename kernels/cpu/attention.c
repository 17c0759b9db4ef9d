// attention.c - attention over packed documents, forward and backward, in blocks of 64 queries by 64 keys.
//
// Every inner product is one small matmul, multiply_add(), on fp32 blocks that are packed (and converted) when they
// are met; see attention_blocks.h. Forward, lanes are queries: S^T = K Q^T and O^T = V^T P^T need K and V as they
// lie, only Q is transposed once an task, and the running maximum and sum of each query stay in their lane.
// Backward, lanes are keys: a block of keys transposes K and V once and then meets every block of queries.
//
// Work is cut into tasks (document, head, block), large ones first, that threads take as they come. The backward
// pass of a document is one task a key/value head, with all query heads that read it, or, where that would leave
// threads idle, separate tasks for dq and for dk, dv that compute probabilities twice. Both add the same blocks in the
// same order, head by head and then query by query, so the result does not depend on the choice.
#include <float.h>
#include <omp.h>

#include "kernels/cpu/attention_blocks.h"

enum { GROUP = 2 };  // blocks that share what they have packed

// ---- forward: one task is up to GROUP blocks of queries of one document and head, which share each packed block of
// keys

typedef struct Span {  // rows of one document
    size_t q0, k0;     // its first query and key
    int q_len, k_len;
    int offset;  // causal: query i sees the first i + 1 + offset keys
} Span;

// Only the queries that see a key and the keys that a query sees; see blank_queries, blank_keys.
static Span document(const Attention* a, int b) {
    Span d = {(size_t)a->cu_q[b], (size_t)a->cu_k[b], a->cu_q[b + 1] - a->cu_q[b], a->cu_k[b + 1] - a->cu_k[b], 0};
    if (a->causal) d.offset = a->causal_offset ? a->causal_offset[b] : d.k_len - d.q_len;
    int blind = d.k_len == 0 ? d.q_len : MIN(d.q_len, MAX(0, -d.offset));
    d.q0 += (size_t)blind, d.q_len -= blind, d.offset += blind;
    if (d.q_len == 0) d.k_len = 0;
    else if (a->causal) d.k_len = MIN(d.k_len, d.q_len + d.offset);
    return d;
}

// A part of a larger attention leaves its result, and its share of gradients, in fp32.
static DType result_type(const Attention* a, DType dt) { return a->partial ? DT_F32 : dt; }

// Query heads that read a key/value head.
static int heads_of_key(const Attention* a) { return a->NH / a->NKV; }

// Keys that query i of the document sees.
static int n_visible(const Attention* a, Span d, int i) { return a->causal ? MIN(d.k_len, i + 1 + d.offset) : d.k_len; }

typedef struct Running {  // of a block of queries
    float max[BLOCK];     // the largest score
    float sum[BLOCK];     // of exp(score - max)
    float keep[BLOCK];    // exp(last max - max): what the last block of keys left of sums before it
} Running;

typedef struct ForwardScratch {
    float s[BLOCK * BLOCK];
    Running running[GROUP];
    float packed[];  // k, v: (BLOCK,HSp); GROUP times q^T, o^T: (HSp,BLOCK)
} ForwardScratch;

// Running softmax of s (nk,N), lanes are queries: s = exp(s - max). Row j of s is hidden from the lanes below hidden
// + j.
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
// sees, then RESCALE. Where the diagonal passes through, rows of 16 keys leave out the vectors of queries that see
// none of them.
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

// out and lse of nq queries from o^T, which is divided by the sums on the way; `rows` is room for a block.
static void finish_block(void* out, float* lse, int ldo, float* o, const Running* r, int nq, int HS, DType dt,
                         float* rows) {
    size_t HSp = padded(HS);
    for (size_t c = 0; c < HSp; c++)
        for (int v = 0; v < nq; v += SIMD_FLOATS)
            vf_store(o + c * BLOCK + v, vf_load(o + c * BLOCK + v) / vf_load(r->sum + v));
    transpose(rows, HSp, o, BLOCK, (int)HSp, ROUND_UP(nq, SIMD_FLOATS), 1);
    store_rows(out, ldo, rows, nq, HS, 1, dt);
    for (int i = 0; i < nq; i++) lse[i] = r->max[i] + logf(r->sum[i]);
}

static void forward_task(void* out, float* lse, const Attention* a, Span d, int h, int i0, DType dt,
                         ForwardScratch* w) {
    int HS = a->HS, i1 = MIN(i0 + GROUP * BLOCK, d.q_len), n_keys = n_visible(a, d, i1 - 1);
    size_t HSp = padded(HS), Nq = (size_t)a->cu_q[a->n_docs], block = HSp * BLOCK;
    float *k = w->packed, *v = k + block, *q = v + block, *o = q + GROUP * block;
    for (int i = i0, g = 0; i < i1; i += BLOCK, g++) {
        int nq = MIN(BLOCK, i1 - i), N = ROUND_UP(nq, SIMD_FLOATS);
        pack_rows(k, element(a->q, at(d.q0 + i, a->ldq, h, HS), dt), a->ldq, nq, N, HS, dt);
        transpose(q + g * block, BLOCK, k, HSp, N, (int)HSp, a->scale);
        for (int lane = 0; lane < BLOCK; lane++) w->running[g].max[lane] = -FLT_MAX, w->running[g].sum[lane] = 0;
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
    DType out_dt = result_type(a, dt);
    for (int i = i0, g = 0; i < i1; i += BLOCK, g++)
        finish_block((void*)element(out, at(d.q0 + i, a->ldo, h, HS), out_dt), lse + h * Nq + d.q0 + i, a->ldo,
                     o + g * block, &w->running[g], MIN(BLOCK, i1 - i), HS, out_dt, k);
}

// ---- backward: with P = exp(S - lse) and dS = P (dO V^T - D), D = dO . O by row,
//      dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K

typedef struct Gradients {
    void *dq, *dk, *dv;
    int ld_dq, ld_dkv;
    const void* dout;
    const float *lse, *D;  // (NH,Nq)
} Gradients;

typedef struct KeyBlock {  // each (BLOCK,HSp) or, transposed, (HSp,BLOCK)
    float *k, *kt, *vt;    // packed
    float *dk, *dv;        // sums so far
    int nk, first;         // keys; the query that is the first to see key 0
} KeyBlock;

typedef struct QueryBlock {
    float *q, *dout, *dq;  // (BLOCK,HSp); dq NULL: not wanted
    const float *lse, *D;  // (nq)
    int nq, begin;         // begin: the first query, within its document
} QueryBlock;

// Queries [i_begin, i_end) against keys [j_begin, j_end) of a document, which begin at multiples of BLOCK.
typedef struct Part {
    int i_begin, i_end, j_begin, j_end;
    int want_dq, want_dkv;  // store dq of these queries; dk and dv of these keys
} Part;

typedef struct BackwardScratch {
    float p[BLOCK * BLOCK], ds[BLOCK * BLOCK];
    // q, dout: a block each; k, k^T, v^T of GROUP key blocks; dk, dv, a block each, of these, or where query heads
    // share keys of all keys of the task, since they are sums over heads; dq of all queries of the task and a head
    float packed[];
} BackwardScratch;

// p and ds from s = q k^T and ds = dout v^T, lanes are keys. Row i sees the first n_seen + i of them, or all nk.
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

// One block of queries meets one block of keys: adds to dq and, when want_dkv, to dk and dv. Where the diagonal passes
// through, 16 rows at a time leave out the columns that none of them needs.
static void backward_block(const KeyBlock* b, const QueryBlock* r, BackwardScratch* w, int causal, int want_dkv,
                           int HS) {
    size_t HSp = padded(HS);
    int ahead = r->begin - b->first;  // of the first query that sees key 0
    int diagonal = causal && ahead < b->nk, step = diagonal ? 16 : BLOCK;
    for (int i = 0; i < r->nq; i += step) {
        int N = diagonal ? MIN(b->nk, ahead + i + step) : b->nk, M = MIN(step, r->nq - i);
        multiply_add(w->p + i * BLOCK, BLOCK, (Matrix){r->q + i * HSp, HSp, 1}, b->kt, BLOCK, M, N, HS, SET, NULL);
        multiply_add(w->ds + i * BLOCK, BLOCK, (Matrix){r->dout + i * HSp, HSp, 1}, b->vt, BLOCK, M, N, HS, SET, NULL);
    }
    probabilities(w, r, b->nk, ahead + 1, causal);
    for (int i = 0; i < r->nq && r->dq; i += step) {
        int K = diagonal ? MIN(b->nk, ahead + i + step) : b->nk, M = MIN(step, r->nq - i);
        multiply_add(r->dq + i * HSp, HSp, (Matrix){w->ds + i * BLOCK, BLOCK, 1}, b->k, HSp, M, (int)HSp, K, ADD, NULL);
    }
    for (int j = 0; j < b->nk && want_dkv; j += step) {
        int i = diagonal ? MAX(0, j - ahead) : 0, M = MIN(step, b->nk - j);
        Matrix p = {w->p + i * BLOCK + j, 1, BLOCK}, ds = {w->ds + i * BLOCK + j, 1, BLOCK};
        multiply_add(b->dv + j * HSp, HSp, p, r->dout + i * HSp, HSp, M, (int)HSp, r->nq - i, ADD, NULL);
        multiply_add(b->dk + j * HSp, HSp, ds, r->q + i * HSp, HSp, M, (int)HSp, r->nq - i, ADD, NULL);
    }
}

// Keys j .. j + b->nk of the document, packed into the three blocks that begin at `room`.
static void pack_keys(KeyBlock* b, const Attention* a, Span d, int kv, int j, DType dt, float* room) {
    size_t HSp = padded(a->HS), block = HSp * BLOCK, key = at(d.k0 + j, a->ldkv, kv, a->HS);
    int N = ROUND_UP(b->nk, SIMD_FLOATS);
    b->k = room, b->kt = b->k + block, b->vt = b->kt + block;
    b->first = a->causal ? j - d.offset : 0;
    pack_rows(b->k, element(a->v, key, dt), a->ldkv, b->nk, N, a->HS, dt);
    transpose(b->vt, BLOCK, b->k, HSp, N, (int)HSp, 1);
    pack_rows(b->k, element(a->k, key, dt), a->ldkv, b->nk, N, a->HS, dt);
    transpose(b->kt, BLOCK, b->k, HSp, N, (int)HSp, a->scale);
}

// n rows of dq, dk or dv from row `row` on: stored, or, of a part, added.
static void put_gradient(void* to, const Attention* a, size_t row, int ld, int h, const float* x, int n, float scale,
                         DType dt) {
    size_t first = at(row, ld, h, a->HS);
    if (a->partial) add_rows((float*)to + first, ld, x, n, a->HS, scale);
    else store_rows((void*)element(to, first, dt), ld, x, n, a->HS, scale, dt);
}

// What query head h has to do in a task. Heads that share keys come one after another: the first clears the sums of dk
// and dv, the last stores them. GROUP blocks of keys share each packed block of queries. Queries add to dk and dv, keys
// to dq in rising order, also when other parts of the document are other tasks.
static void backward_head(const Gradients* g, const Attention* a, Span d, int h, Part part, DType dt,
                          BackwardScratch* w) {
    int HS = a->HS, heads = heads_of_key(a), i_end = part.i_end;
    int j_end = MIN(MIN(part.j_end, d.k_len), ROUND_UP(n_visible(a, d, i_end - 1), BLOCK));
    size_t HSp = padded(HS), block = HSp * BLOCK, Nq = (size_t)a->cu_q[a->n_docs];
    float *keys = w->packed + 2 * block, *sums = keys + 3 * GROUP * block;
    float* dq = sums + 2 * (heads > 1 ? MAX(0, CEIL_DIV(j_end - part.j_begin, BLOCK)) : GROUP) * block;
    KeyBlock b[GROUP];
    if (part.want_dq) memset(dq, 0, ROUND_UP(i_end - part.i_begin, TILE_ROWS) * HSp * sizeof(float));
    for (int j0 = part.j_begin; j0 < j_end; j0 += GROUP * BLOCK) {
        int n = MIN(GROUP, CEIL_DIV(j_end - j0, BLOCK));
        for (int t = 0; t < n; t++) {
            b[t].nk = MIN(BLOCK, j_end - j0 - t * BLOCK);
            pack_keys(&b[t], a, d, h / heads, j0 + t * BLOCK, dt, keys + 3 * t * block);
            b[t].dk = sums + 2 * (t + (heads > 1 ? (j0 - part.j_begin) / BLOCK : 0)) * block;
            b[t].dv = b[t].dk + block;
            for (int sum = 0; sum < 2 && part.want_dkv && h % heads == 0; sum++)
                memset(b[t].dk + sum * block, 0, ROUND_UP(b[t].nk, TILE_ROWS) * HSp * sizeof(float));
        }
        for (int i = MAX(part.i_begin, b[0].first / BLOCK * BLOCK); i < i_end; i += BLOCK) {
            int nq = MIN(BLOCK, i_end - i), nq_padded = ROUND_UP(nq, TILE_ROWS);
            size_t row = d.q0 + i;
            float* dq_rows = part.want_dq ? dq + (i - part.i_begin) * HSp : NULL;
            QueryBlock r = {w->packed, w->packed + block, dq_rows, g->lse + h * Nq + row, g->D + h * Nq + row, nq, i};
            pack_rows(r.q, element(a->q, at(row, a->ldq, h, HS), dt), a->ldq, nq, nq_padded, HS, dt);
            pack_rows(r.dout, element(g->dout, at(row, a->ldo, h, HS), dt), a->ldo, nq, nq_padded, HS, dt);
            for (int t = 0; t < n; t++)
                if (i + nq > b[t].first) backward_block(&b[t], &r, w, a->causal, part.want_dkv, HS);
        }
        for (int t = 0; t < n && part.want_dkv && h % heads == heads - 1; t++) {
            size_t key = d.k0 + j0 + t * BLOCK;
            put_gradient(g->dk, a, key, g->ld_dkv, h / heads, b[t].dk, b[t].nk, a->scale, dt);
            put_gradient(g->dv, a, key, g->ld_dkv, h / heads, b[t].dv, b[t].nk, 1, dt);
        }
    }
    if (part.want_dq) put_gradient(g->dq, a, d.q0 + part.i_begin, g->ld_dq, h, dq, i_end - part.i_begin, a->scale, dt);
}

// ---- the list of work: tasks are dealt out in falling order of size

typedef enum Kind { FORWARD, BACKWARD, BACKWARD_DQ, BACKWARD_DKV } Kind;

typedef struct Task {
    int doc, begin;  // document and first row of its block
    Kind kind;
    float cost;  // pairs of a query and a key, times the matmuls for each, for one head
} Task;

enum { DQ_ROWS = 4 * BLOCK };  // queries of a BACKWARD_DQ task: they share the transposition of each block of keys

// Rows, and pairs of a row and a head: a group of s ranks calls with up to N s rows of NKV / s key/value heads, rounded
// up, which are fewer than NKV + s pairs for each of N, and as many times more query heads as share one.
static size_t most_rows(const KernelLimits* limits) { return (size_t)limits->N * (size_t)MAX(1, limits->spread); }
static size_t most_pairs(const KernelLimits* limits) {
    int NKV = MAX(1, limits->NKV);
    return (size_t)limits->N * (size_t)(NKV + MAX(1, limits->spread) - 1) * CEIL_DIV((size_t)limits->NH, (size_t)NKV);
}

// One for each row at most: blocks have at least one, and a document that is split has more rows than pieces.
static size_t most_tasks(const KernelLimits* limits) { return most_rows(limits); }

// Pairs (query, key) that see each other, for queries [i, i + n).
static float n_pairs(const Attention* a, Span d, int i, int n) {
    float last = (float)n_visible(a, d, i + n - 1);
    return (float)n * (a->causal ? last - (float)(n - 1) / 2 : last);
}

static int list_forward(Task* tasks, const Attention* a) {
    int n = 0;
    for (int b = 0; b < a->n_docs; b++) {
        Span d = document(a, b);
        for (int i = 0; i < d.q_len; i += GROUP * BLOCK)
            tasks[n++] = (Task){b, i, FORWARD, 2 * n_pairs(a, d, i, MIN(GROUP * BLOCK, d.q_len - i))};
    }
    return n;
}

// A document whose key/value head is more than 0.4 of a thread's share is split by queries and by keys: that costs 7
// matmuls instead of 5, but no thread waits for one long task.
static int list_backward(Task* tasks, const Attention* a) {
    int n = 0;
    float total = 0;
    for (int b = 0; b < a->n_docs; b++) total += n_pairs(a, document(a, b), 0, document(a, b).q_len);
    for (int b = 0; b < a->n_docs; b++) {
        Span d = document(a, b);
        float pairs = n_pairs(a, d, 0, d.q_len);
        int split = cpu_threads() > 1 && d.q_len > BLOCK && pairs * (float)cpu_threads() > 0.4f * total * (float)a->NKV;
        if (!split) {
            if (d.q_len > 0) tasks[n++] = (Task){b, 0, BACKWARD, 5 * pairs};
            continue;
        }
        for (int i = 0; i < d.q_len; i += DQ_ROWS)
            tasks[n++] = (Task){b, i, BACKWARD_DQ, 3 * n_pairs(a, d, i, MIN(DQ_ROWS, d.q_len - i))};
        for (int j = 0; j < d.k_len; j += GROUP * BLOCK) {
            int first = a->causal ? MAX(0, j - d.offset) : 0;
            tasks[n++] = (Task){b, j, BACKWARD_DKV, 4 * GROUP * BLOCK * (float)(d.q_len - first)};
        }
    }
    return n;
}

enum { CLASSES = 64 };

typedef struct Work {
    Task* tasks;
    int begin[CLASSES + 1];  // tasks of class c, costs within a factor of two of each other: begin[c] .. begin[c + 1]
    int n, heads;
    float cost;  // of all, for one head
} Work;

// Counting sort of the n tasks at `tasks` into the room behind them, large ones first.
static Work sort_tasks(Task* tasks, int n, int heads) {
    Work w = {.tasks = tasks + n, .n = n, .heads = heads};
    int next[CLASSES];
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++) {
            int exponent;
            frexpf(tasks[i].cost, &exponent);
            int c = CLASSES - 1 - MIN(CLASSES - 1, MAX(0, exponent));
            if (pass == 0) w.begin[c + 1]++, w.cost += tasks[i].cost;
            else w.tasks[next[c]++] = tasks[i];
        }
        for (int c = 0; c < CLASSES && pass == 0; c++) next[c] = w.begin[c], w.begin[c + 1] += w.begin[c];
    }
    return w;
}

// The t-th piece of work of n * heads: class by class, in a class head by head, so that threads meet the same keys.
static Task deal(const Work* w, size_t t, int* h) {
    int c = 0;
    while (t >= (size_t)w->begin[c + 1] * w->heads) c++;
    size_t in_class = t - (size_t)w->begin[c] * w->heads, n = (size_t)(w->begin[c + 1] - w->begin[c]);
    *h = (int)(in_class / n);
    return w->tasks[w->begin[c] + in_class % n];
}

// ---- entries

static void blank_rows(void* x, size_t first, size_t end, int ld, int width, DType dt) {
    for (size_t n = first; n < end; n++)
        memset((char*)x + n * ld * dtype_bytes(dt), 0, (size_t)width * dtype_bytes(dt));
}

// Queries that see no key are in no task: out or dq 0, lse (unless NULL) -infinity.
static void blank_queries(void* out_or_dq, float* lse, int ld, const Attention* a, DType dt) {
    for (int b = 0; b < a->n_docs; b++) {
        size_t end = document(a, b).q0;
        blank_rows(out_or_dq, (size_t)a->cu_q[b], end, ld, a->NH * a->HS, dt);
        for (int h = 0; h < a->NH && lse; h++)
            for (size_t n = (size_t)a->cu_q[b]; n < end; n++) lse[h * (size_t)a->cu_q[a->n_docs] + n] = -INFINITY;
    }
}

static void blank_keys(void* dk, void* dv, const Attention* a, DType dt) {
    for (int b = 0; b < a->n_docs; b++) {
        Span d = document(a, b);
        blank_rows(dk, d.k0 + (size_t)d.k_len, (size_t)a->cu_k[b + 1], a->ldkv, a->NKV * a->HS, dt);
        blank_rows(dv, d.k0 + (size_t)d.k_len, (size_t)a->cu_k[b + 1], a->ldkv, a->NKV * a->HS, dt);
    }
}

// Below a quarter of a million multiply-adds, waking the threads would cost more than the work.
static inline int wakes_threads(const Work* w, const Attention* a) {
    return w->cost * (float)a->NH * (float)a->HS > (float)(1 << 18);
}

static void attention_forward(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    Task* tasks = (Task*)cpu_shared_scratch();
    Work work = sort_tasks(tasks, list_forward(tasks, a), a->NH);
    size_t n = (size_t)work.n * a->NH;
#pragma omp parallel for num_threads(cpu_threads()) schedule(dynamic, 1) if (wakes_threads(&work, a))
    for (size_t t = 0; t < n; t++) {
        int h;
        Task task = deal(&work, t, &h);
        ForwardScratch* w = (ForwardScratch*)cpu_thread_scratch(omp_get_thread_num());
        forward_task(out, lse, a, document(a, task.doc), h, task.begin, dt, w);
    }
    blank_queries(out, lse, a->ldo, a, result_type(a, dt));
}

// D (NH,Nq) = dout . out by row and head.
static void row_dots(float* D, const void* dout, const void* out, const Attention* a, DType dt) {
    size_t Nq = (size_t)a->cu_q[a->n_docs];
#pragma omp parallel for num_threads(cpu_threads()) schedule(static) if (Nq * a->NH * a->HS > 1 << 14)
    for (size_t n = 0; n < Nq; n++)
        for (int h = 0; h < a->NH; h++) {
            vf sum = (vf){0};
            size_t row = at(n, a->ldo, h, a->HS);
            for (int c = 0; c < a->HS; c += SIMD_FLOATS) {
                int count = MIN(SIMD_FLOATS, a->HS - c);
                sum += vf_load_part(element(dout, row + c, dt), count, dt) *
                       vf_load_part(element(out, row + c, dt), count, dt);
            }
            D[h * Nq + n] = vf_sum(sum);
        }
}

static void attention_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                               const Attention* a, DType dt, Stream s) {
    float* D = (float*)cpu_shared_scratch();
    Task* tasks = (Task*)(D + ROUND_UP((size_t)a->cu_q[a->n_docs] * a->NH, (size_t)16));
    row_dots(D, dout, out, a, dt);
    Work work = sort_tasks(tasks, list_backward(tasks, a), a->NKV);
    size_t n = (size_t)work.n * a->NKV;
    Gradients g = {dq, dk, dv, a->ldq, a->ldkv, dout, lse, D};
    if (a->partial) g.ld_dq = a->ld_dq, g.ld_dkv = a->ld_dkv;
#pragma omp parallel for num_threads(cpu_threads()) schedule(dynamic, 1) if (wakes_threads(&work, a))
    for (size_t t = 0; t < n; t++) {
        int kv;
        Task task = deal(&work, t, &kv);
        Span d = document(a, task.doc);
        BackwardScratch* w = (BackwardScratch*)cpu_thread_scratch(omp_get_thread_num());
        Part part = {0, d.q_len, 0, d.k_len, 1, 1};
        if (task.kind == BACKWARD_DQ) part = (Part){task.begin, MIN(task.begin + DQ_ROWS, d.q_len), 0, d.k_len, 1, 0};
        if (task.kind == BACKWARD_DKV) part = (Part){0, d.q_len, task.begin, task.begin + GROUP * BLOCK, 0, 1};
        for (int h = kv * heads_of_key(a); h < (kv + 1) * heads_of_key(a); h++) backward_head(&g, a, d, h, part, dt, w);
    }
    if (a->partial) return;  // nothing to add
    blank_queries(dq, NULL, a->ldq, a, dt);
    blank_keys(dk, dv, a, dt);
}

static void install(Kernels* table) {
    table->attention_forward = attention_forward;
    table->attention_backward = attention_backward;
}

static CpuScratch scratch(const KernelLimits* limits) {
    size_t HSp = padded(limits->HS), rows = ROUND_UP((size_t)MAX(limits->context, (int)DQ_ROWS), (size_t)BLOCK);
    size_t sums = 2 * (limits->NH > limits->NKV ? rows : GROUP * BLOCK);
    return (CpuScratch){
        .shared_bytes =
            ROUND_UP(most_pairs(limits), (size_t)16) * sizeof(float) + 2 * most_tasks(limits) * sizeof(Task),
        .thread_bytes = sizeof(BackwardScratch) + ((2 + 3 * GROUP) * BLOCK + rows + sums) * HSp * sizeof(float),
    };
}

const CpuFamily ISA_NAME(attention) = {install, scratch};
