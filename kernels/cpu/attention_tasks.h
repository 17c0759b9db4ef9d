// attention_tasks.h - cuts attention over packed documents into tasks, and has the entries of the table; attention.c
// and attention_pairs.c give it a heart.
//
// Tasks are (document, head, block), large ones first. The backward pass of a document is one task a key/value head,
// with all query heads that read it, or, where that would leave threads idle, tasks for dq and others for dk, dv, which
// compute probabilities twice. Both add the same blocks in the same order, so that the choice cannot be seen.
//
// A block holds BLOCK rows of a head, each `padded` to whole units, or its transpose.
//
// Before this file comes an enum of BLOCK: queries or keys of a block, and the row stride of blocks whose lanes are
// queries or keys; GROUP: blocks that share what they have packed; units of padding: HEAD_UNIT of head sizes, DQ_UNIT
// and DK_UNIT of rows of sums; QUERY_HALVES, KEY_HALVES: half blocks that the backward pass makes of a block of
// queries, and of keys. After it come the functions declared under "the heart".
#pragma once
#include <float.h>

#include "kernels/cpu/simd.h"

// ---- rows of heads, and how they leave fp32 blocks

// Returns the head size as packed; elements above HS are zero.
static size_t padded(int HS) { return ROUND_UP((size_t)HS, (size_t)HEAD_UNIT); }

static inline const void* element(const void* p, size_t i, DType dt) { return (const char*)p + i * dtype_bytes(dt); }
static inline size_t at(size_t row, int ld, int h, int HS) { return row * (size_t)ld + (size_t)h * HS; }

enum { AHEAD = 8 };  // rows to fetch ahead: each lies in a page of its own, where the processor does not guess the next

SIMD_INLINE void store_rows_as(void* to, size_t ld, const float* x, int n, int HS, float scale, DType dt) {
    for (size_t r = 0; r < (size_t)n; r++, x += padded(HS))
        FOR_VECTORS(c, lanes, 0, HS, vf_put(to, r * ld + c, lanes, vf_load(x + c) * scale, dt););
}

static void store_rows(void* to, int ld, const float* x, int n, int HS, float scale, DType dt) {
    WITH_DTYPE(dt, store_rows_as, to, (size_t)ld, x, n, HS, scale);
}

// Adds them to rows of fp32.
static void add_rows(float* to, int ld, const float* x, int n, int HS, float scale) {
    for (int r = 0; r < n; r++, to += ld, x += padded(HS))
        FOR_VECTORS(c, lanes, 0, HS,
                    vf_put(to, c, lanes, vf_get(to, c, lanes, DT_F32) + vf_load(x + c) * scale, DT_F32););
}

// to (cols,rows; ldto) = scale * from (rows,cols; ldfrom)^T; both multiples of SIMD_FLOATS.
static void transpose(float* to, size_t ldto, const float* from, size_t ldfrom, int rows, int cols, float scale) {
    for (int r = 0; r < rows; r += SIMD_FLOATS)
        for (int c = 0; c < cols; c += SIMD_FLOATS) {
            vf x[SIMD_FLOATS];
#pragma GCC unroll 16
            for (int i = 0; i < SIMD_FLOATS; i++) x[i] = vf_load(from + (r + i) * ldfrom + c) * scale;
            vf_transpose(x);
#pragma GCC unroll 16
            for (int i = 0; i < SIMD_FLOATS; i++) vf_store(to + (c + i) * ldto + r, x[i]);
        }
}

// ---- documents

typedef struct Span {  // rows of one document
    size_t q0, k0;     // its first query and key
    int q_len, k_len;
    int offset;  // causal: query i sees the first i + 1 + offset keys
} Span;

// Returns only the queries that see a key and the keys that a query sees; see blank_queries, blank_keys.
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

// Returns the number of query heads that read a key/value head.
static int heads_of_key(const Attention* a) { return a->NH / a->NKV; }

// Returns the number of keys that query i of the document sees.
static int n_visible(const Attention* a, Span d, int i) { return a->causal ? MIN(d.k_len, i + 1 + d.offset) : d.k_len; }

// ---- forward: the state of a block of queries

typedef struct Running {
    float max[BLOCK];   // the largest score, or in attention_pairs.c product of q and k
    float sum[BLOCK];   // of exp(score - largest score)
    float keep[BLOCK];  // exp(last largest - largest): the factor by which sums before the last block of keys shrink
} Running;

static void begin_running(Running* r) {
    for (int i = 0; i < BLOCK; i++) r->max[i] = -FLT_MAX, r->sum[i] = 0;
}

// Writes out and lse of nq queries from row i on, from o^T (HSp,BLOCK), which it divides by the sums. `scale` makes
// scores of r->max; `rows` is room for a block.
static void finish_block(void* out, float* lse, const Attention* a, size_t i, int h, float* o, const Running* r, int nq,
                         float scale, DType dt, float* rows) {
    size_t HSp = padded(a->HS);
    for (size_t c = 0; c < HSp; c++)
        for (int v = 0; v < nq; v += SIMD_FLOATS)
            vf_store(o + c * BLOCK + v, vf_load(o + c * BLOCK + v) / vf_load(r->sum + v));
    transpose(rows, HSp, o, BLOCK, (int)HSp, ROUND_UP(nq, SIMD_FLOATS), 1);
    DType out_dt = result_type(a, dt);
    store_rows((void*)element(out, at(i, a->ldo, h, a->HS), out_dt), a->ldo, rows, nq, a->HS, 1, out_dt);
    lse += (size_t)h * (size_t)a->cu_q[a->n_docs] + i;
    for (int q = 0; q < nq; q++) lse[q] = r->max[q] * scale + logf(r->sum[q]);
}

// ---- gradients: with P = exp(S - lse) and dS = P (dO V^T - D), D = dO . O by row,
//      dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K

typedef struct Gradients {
    void *dq, *dk, *dv;
    int ld_dq, ld_dkv;
    const void* dout;
    const float *lse, *D;  // (NH,Nq)
} Gradients;

// Queries [i_begin, i_end) against keys [j_begin, j_end) of a document, which begin at multiples of BLOCK.
typedef struct Part {
    int i_begin, i_end, j_begin, j_end;
    int want_dq, want_dkv;  // store dq of these queries; dk and dv of these keys
} Part;

// Stores n rows of dq, dk or dv from row `row` on, or, for a part, adds them.
static void put_gradient(void* to, const Attention* a, size_t row, int ld, int h, const float* x, int n, float scale,
                         DType dt) {
    size_t first = at(row, ld, h, a->HS);
    if (a->partial) add_rows((float*)to + first, ld, x, n, a->HS, scale);
    else store_rows((void*)element(to, first, dt), ld, x, n, a->HS, scale, dt);
}

// ---- the heart

// A thread calls these before a task and after it.
static void begin_task(void);
static void end_task(void);
// Computes out and lse of up to GROUP blocks of queries, from i0 on, of a document and head.
static void forward_task(void* out, float* lse, const Attention* a, Span d, int h, int i0, DType dt, void* scratch);
static size_t forward_bytes(const KernelLimits* limits);  // bytes of `scratch` that this needs
static size_t backward_bytes(void);  // bytes of `scratch` that a heart has for itself in the backward pass

typedef struct KeyBlock {
    float* packed;   // KEY_HALVES: keys and values from pack_keys
    float *dk, *dv;  // (BLOCK,HSp): sums so far
    int nk, first;   // keys; the query that is the first to see key 0
} KeyBlock;

typedef struct QueryBlock {
    float* packed;         // QUERY_HALVES: queries and dout from pack_queries
    float* dq;             // sums so far; NULL: not wanted
    const float *lse, *D;  // (nq)
    int nq, begin;         // begin: the first query, within its document
} QueryBlock;

// Packs keys and values from key j of the document on. `queries`: room that pack_queries fills afterwards.
static void pack_keys(const KeyBlock* b, const Attention* a, Span d, int kv, int j, DType dt, float* queries);
static void pack_queries(const QueryBlock* r, const void* dout, const Attention* a, Span d, int h, DType dt,
                         void* scratch);
// One block of queries meets one block of keys: adds to dq and, when want_dkv, to dk and dv.
static void backward_block(const KeyBlock* b, const QueryBlock* r, const Attention* a, int want_dkv, void* scratch);
// Stores dq of the queries of a task; `room`: a block.
static void put_queries(const Gradients* g, const Attention* a, Span d, int h, Part part, float* dq, DType dt,
                        float* room);

// ---- the backward pass of a head

// Computes query head h of a task. Heads that share keys come one after another: the first clears the sums of dk
// and dv, the last stores them. Queries add to dk and dv, keys to dq in rising order, also when other parts of the
// document are other tasks. GROUP blocks of keys share each packed block of queries.
//
// After backward_bytes lie, in half blocks of BLOCK / 2 rows: QUERY_HALVES; KEY_HALVES of GROUP blocks of keys; dk and
// dv of these, or of all keys of the task if query heads share keys, since they are sums over heads; dq of all queries
// of the task and a head.
static void backward_head(const Gradients* g, const Attention* a, Span d, int h, Part part, DType dt, void* scratch) {
    int heads = heads_of_key(a), i_end = part.i_end;
    int j_end = MIN(MIN(part.j_end, d.k_len), ROUND_UP(n_visible(a, d, i_end - 1), BLOCK));
    size_t HSp = padded(a->HS), block = HSp * BLOCK, half = block / 2, lse = h * (size_t)a->cu_q[a->n_docs] + d.q0;
    float *queries = (float*)((char*)scratch + backward_bytes()), *keys = queries + QUERY_HALVES * half;
    float* sums = keys + KEY_HALVES * GROUP * half;
    float* dq = sums + 2 * (heads > 1 ? MAX(0, CEIL_DIV(j_end - part.j_begin, BLOCK)) : GROUP) * block;
    KeyBlock b[GROUP];
    if (part.want_dq) memset(dq, 0, (size_t)ROUND_UP(i_end - part.i_begin, DQ_UNIT) * HSp * sizeof(float));
    for (int j0 = part.j_begin; j0 < j_end; j0 += GROUP * BLOCK) {
        int n = MIN(GROUP, CEIL_DIV(j_end - j0, BLOCK));
        for (int t = 0; t < n; t++) {
            int j = j0 + t * BLOCK;
            float* dk = sums + 2 * (t + (heads > 1 ? (j0 - part.j_begin) / BLOCK : 0)) * block;
            b[t] = (KeyBlock){keys + KEY_HALVES * t * half, dk, dk + block, MIN(BLOCK, j_end - j),
                              a->causal ? j - d.offset : 0};
            pack_keys(&b[t], a, d, h / heads, j, dt, queries);
            for (int sum = 0; sum < 2 && part.want_dkv && h % heads == 0; sum++)
                memset(dk + sum * block, 0, ROUND_UP(b[t].nk, DK_UNIT) * HSp * sizeof(float));
        }
        for (int i = MAX(part.i_begin, b[0].first / BLOCK * BLOCK); i < i_end; i += BLOCK) {
            float* dq_rows = part.want_dq ? dq + (i - part.i_begin) * HSp : NULL;
            QueryBlock r = {queries, dq_rows, g->lse + lse + i, g->D + lse + i, MIN(BLOCK, i_end - i), i};
            pack_queries(&r, g->dout, a, d, h, dt, scratch);
            for (int t = 0; t < n; t++)
                if (i + r.nq > b[t].first) backward_block(&b[t], &r, a, part.want_dkv, scratch);
        }
        for (int t = 0; t < n && part.want_dkv && h % heads == heads - 1; t++) {
            size_t key = d.k0 + j0 + t * BLOCK;
            put_gradient(g->dk, a, key, g->ld_dkv, h / heads, b[t].dk, b[t].nk, a->scale, dt);
            put_gradient(g->dv, a, key, g->ld_dkv, h / heads, b[t].dv, b[t].nk, 1, dt);
        }
    }
    if (part.want_dq) put_queries(g, a, d, h, part, dq, dt, queries);
}

#include "kernels/cpu/attention_few.h"  // what it reads is declared above

// ---- the list of work: tasks are dealt out in falling order of size

typedef enum Kind { FORWARD, BACKWARD, BACKWARD_DQ, BACKWARD_DKV } Kind;

typedef struct Task {
    int doc, begin;  // document and first row of its block
    Kind kind;
    float cost;  // pairs of a query and a key, times the matmuls for each, for one head
} Task;

enum { DQ_ROWS = 4 * BLOCK };  // queries of a BACKWARD_DQ task: they share the transposition of each block of keys

// These bound rows, and pairs of a row and a head: a group of s ranks calls with up to N s rows of NKV / s key/value
// heads, rounded up: fewer than NKV + s pairs for each of N, and as many times more query heads as share one.
static size_t most_rows(const KernelLimits* limits) { return (size_t)limits->N * (size_t)MAX(1, limits->spread); }
static size_t most_pairs(const KernelLimits* limits) {
    int NKV = MAX(1, limits->NKV);
    return (size_t)limits->N * (size_t)(NKV + MAX(1, limits->spread) - 1) * CEIL_DIV((size_t)limits->NH, (size_t)NKV);
}

// Tasks are at most one a row: blocks have at least one row, and a document that is split has more rows than pieces.
static size_t most_tasks(const KernelLimits* limits) { return most_rows(limits); }

// Returns the pairs (query, key) that see each other, for queries [i, i + n).
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
        int split =
            team_threads() > 1 && d.q_len > BLOCK && pairs * (float)team_threads() > 0.4f * total * (float)a->NKV;
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

// Sorts the n tasks at `tasks`, by counting, into the room after them, large ones first.
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

// Returns piece t of n * heads pieces of work: by class, in a class head by head, so that threads meet the same keys.
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

typedef struct Job {  // for the forward pass, the row dots (lse is D) and the backward pass
    void* out;
    float* lse;
    const void* dout;
    const Gradients* g;
    const Attention* a;
    DType dt;
    Work work;
} Job;

static void run_forward_task(const void* job, size_t t, int thread) {
    const Job* j = (const Job*)job;
    int h;
    Task task = deal(&j->work, t, &h);
    Span d = document(j->a, task.doc);
    if (d.q_len <= FEW) {
        // All heads go at once if there are documents for all threads.
        int together = j->work.n >= 2 * team_threads(), end = together ? j->a->NH : h + 1;
        for (int i = 0; i < d.q_len && (!together || h == 0); i++)
            forward_few(j->out, j->lse, j->a, d, i, h, end, j->dt, cpu_thread_scratch(thread));
        return;
    }
    begin_task();
    forward_task(j->out, j->lse, j->a, d, h, task.begin, j->dt, cpu_thread_scratch(thread));
    end_task();
}

static void attention_forward(void* out, float* lse, const Attention* a, DType dt, Stream s) {
    Task* tasks = (Task*)cpu_shared_scratch();
    Job job = {out, lse, NULL, NULL, a, dt, sort_tasks(tasks, list_forward(tasks, a), a->NH)};
    team_run(run_forward_task, &job, (size_t)job.work.n * (size_t)a->NH, 1, !wakes_threads(&job.work, a));
    blank_queries(out, lse, a->ldo, a, result_type(a, dt));
}

// D (NH,Nq) = dout . out by row and head.
static void dots_of_row(const void* job, size_t n, int thread) {
    const Job* j = (const Job*)job;
    const Attention* a = j->a;
    for (int h = 0; h < a->NH; h++) {
        vf sum = (vf){0};
        size_t row = at(n, a->ldo, h, a->HS);
        FOR_VECTORS(c, lanes, row, row + a->HS,
                    sum += vf_get(j->dout, c, lanes, j->dt) * vf_get(j->out, c, lanes, j->dt););
        j->lse[h * (size_t)a->cu_q[a->n_docs] + n] = vf_sum(sum);
    }
}

static Part part_of(Task task, Span d) {
    if (task.kind == BACKWARD_DQ) return (Part){task.begin, MIN(task.begin + DQ_ROWS, d.q_len), 0, d.k_len, 1, 0};
    if (task.kind == BACKWARD_DKV) return (Part){0, d.q_len, task.begin, task.begin + GROUP * BLOCK, 0, 1};
    return (Part){0, d.q_len, 0, d.k_len, 1, 1};
}

static void run_backward_task(const void* job, size_t t, int thread) {
    const Job* j = (const Job*)job;
    int kv, heads = heads_of_key(j->a);
    Task task = deal(&j->work, t, &kv);
    Span d = document(j->a, task.doc);
    Part part = part_of(task, d);
    begin_task();
    for (int h = kv * heads; h < (kv + 1) * heads; h++)
        backward_head(j->g, j->a, d, h, part, j->dt, cpu_thread_scratch(thread));
    end_task();
}

static void attention_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                               const Attention* a, DType dt, Stream s) {
    size_t Nq = (size_t)a->cu_q[a->n_docs];
    float* D = (float*)cpu_shared_scratch();
    Task* tasks = (Task*)(D + ROUND_UP(Nq * a->NH, (size_t)16));
    Gradients g = {dq, dk, dv, a->ldq, a->ldkv, dout, lse, D};
    if (a->partial) g.ld_dq = a->ld_dq, g.ld_dkv = a->ld_dkv;
    Job job = {(void*)out, D, dout, &g, a, dt, sort_tasks(tasks, list_backward(tasks, a), a->NKV)};
    team_run(dots_of_row, &job, Nq, cpu_portion(Nq), Nq * a->NH * a->HS <= 1 << 14);
    team_run(run_backward_task, &job, (size_t)job.work.n * (size_t)a->NKV, 1, !wakes_threads(&job.work, a));
    if (a->partial) return;  // nothing to add
    blank_queries(dq, NULL, a->ldq, a, dt);
    blank_keys(dk, dv, a, dt);
}

static CpuScratch scratch(const KernelLimits* limits) {
    size_t D = ROUND_UP(most_pairs(limits), (size_t)16) * sizeof(float);
    size_t dq_rows = ROUND_UP((size_t)MAX(limits->context, (int)DQ_ROWS), (size_t)BLOCK);
    size_t dkv_rows = limits->NH > limits->NKV ? dq_rows : (size_t)GROUP * BLOCK;
    size_t rows = (QUERY_HALVES + KEY_HALVES * GROUP) * BLOCK / 2 + dq_rows + 2 * dkv_rows;
    size_t backward = backward_bytes() + rows * padded(limits->HS) * sizeof(float);
    return (CpuScratch){D + 2 * most_tasks(limits) * sizeof(Task),
                        MAX(MAX(forward_bytes(limits), backward), few_bytes(limits))};
}
