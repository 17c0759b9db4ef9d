// tree_attention.c - see tree_attention.h.
#include "kernels/tree_attention.h"

// ---- the calls of a row

// level_ints counts cu_q, and cu_k, of a call: at most three documents for each of its nodes, two after the last, and
// one entry more. There are as many calls as depths with nodes that have children: fewer than segments.
static size_t level_ints(int nodes) { return 3 * (size_t)nodes + 3; }
size_t tree_ints(int n) { return (size_t)n + 1 + 2 * (3 * (size_t)n + 3 * (size_t)n) + 2 * (size_t)n; }

// The documents of a call, one after the other. Those without queries and keys are left out.
typedef struct Filling {
    int *cu_q, *cu_k, n;
} Filling;

static void add(Filling* x, int q, int k) {
    if (q == x->cu_q[x->n] && k == x->cu_k[x->n]) return;
    x->n++;
    x->cu_q[x->n] = q, x->cu_k[x->n] = k;
}

// Adds three documents for each node of this depth with children: queries up to those below it, which see nothing;
// keys before the node, which nobody sees; those below it, with the node. ends[i]: the segment after all below i.
static TreeLevel fill_level(int* ints, const int* cu, const int* depths, const int* ends, int n, int depth) {
    int nodes = 0;
    for (int i = 0; i < n; i++) nodes += depths[i] == depth && ends[i] > i + 1;
    Filling x = {ints, ints + level_ints(nodes), 0};
    x.cu_q[0] = x.cu_k[0] = 0;
    for (int i = 0; i < n && nodes; i++) {
        if (depths[i] != depth || ends[i] == i + 1) continue;
        add(&x, cu[i + 1], x.cu_k[x.n]);
        add(&x, cu[i + 1], cu[i]);
        add(&x, cu[ends[i]], cu[i + 1]);
    }
    add(&x, cu[n], x.cu_k[x.n]);
    add(&x, cu[n], cu[n]);
    return (TreeLevel){nodes ? x.n : 0, x.cu_q, x.cu_k};
}

void tree_fill(Tree* tree, TreeLevel* levels, int* ints, const int* lengths, const int* parents, int n) {
    int *cu = ints, *depths = ints + tree_ints(n) - 2 * n, *ends = depths + n;
    cu[0] = 0;
    for (int i = 0; i < n; i++) cu[i + 1] = cu[i] + lengths[i];
    for (int i = 0; i < n; i++) depths[i] = parents[i] < 0 ? 0 : depths[parents[i]] + 1;
    for (int i = n - 1; i >= 0; i--) ends[i] = i + 1;
    for (int i = n - 1; i >= 0; i--)
        if (parents[i] >= 0) ends[parents[i]] = MAX(ends[parents[i]], ends[i]);
    *tree = (Tree){n, 0, cu, levels};
    for (int* at = cu + n + 1;; tree->n_levels++) {
        TreeLevel level = fill_level(at, cu, depths, ends, n, tree->n_levels);
        if (level.n_docs == 0) return;
        levels[tree->n_levels] = level;
        at += 2 * (level.cu_k - level.cu_q);
    }
}

// ---- attention

typedef struct Scratch {
    float *sum, *part;  // (N, NH HS); backward the gradients of q, and (N, 2 NKV HS) those of k and v
    float* part_lse;    // (NH,N)
    char* rounded;      // the larger of them in dt
} Scratch;

char* scratch_take(char* base, size_t* used, size_t bytes) {
    char* p = base ? base + *used : NULL;
    *used += ROUND_UP(bytes, (size_t)64);
    return p;
}

static size_t carve(Scratch* x, char* base, int N, int NH, int NKV, int HS, DType dt) {
    size_t used = 0, n = (size_t)N, Q = n * (size_t)(NH * HS), KV = n * (size_t)(2 * NKV * HS);
    x->sum = (float*)scratch_take(base, &used, Q * sizeof(float));
    x->part = (float*)scratch_take(base, &used, MAX(Q, KV) * sizeof(float));
    x->part_lse = (float*)scratch_take(base, &used, n * (size_t)NH * sizeof(float));
    x->rounded = scratch_take(base, &used, MAX(Q, KV) * dtype_bytes(dt));
    return used;
}

size_t tree_attention_scratch(int N, int NH, int NKV, int HS, DType dt) {
    Scratch unused;
    return carve(&unused, NULL, N, NH, NKV, HS, dt);
}

// Returns call i of the row: all segments, then depth by depth.
static Attention call(const Attention* whole, const Tree* tree, int i) {
    Attention a = *whole;
    const TreeLevel* level = i > 0 ? &tree->levels[i - 1] : NULL;
    a.cu_q = level ? level->cu_q : tree->cu;
    a.cu_k = level ? level->cu_k : tree->cu;
    a.n_docs = level ? level->n_docs : tree->n_segments;
    a.causal = !level;
    a.partial = 1;
    a.ld_dq = a.NH * a.HS, a.ld_dkv = 2 * a.NKV * a.HS;
    return a;
}

void tree_attention_forward(void* out, float* lse, const Attention* a, const Tree* tree, void* scratch,
                            const Kernels* k, DType dt, Stream s) {
    Scratch x;
    carve(&x, (char*)scratch, a->Nq, a->NH, a->NKV, a->HS, dt);
    for (int i = 0; i <= tree->n_levels; i++) {
        Attention part = call(a, tree, i);
        k->attention_forward(i ? x.part : x.sum, i ? x.part_lse : lse, &part, dt, s);
        if (i) k->ranks->attention_merge(x.sum, lse, x.part, x.part_lse, a->Nq, a->NH, a->HS, s);
    }
    k->ranks->cast(out, dt, x.sum, DT_F32, (size_t)a->Nq * (size_t)(a->NH * a->HS), s);
}

void store_columns(void* columns, int ld, const float* x, void* rounded, int n, int width, const Kernels* k, DType dt,
                   Stream s) {
    k->ranks->cast(rounded, dt, x, DT_F32, (size_t)n * (size_t)width, s);
    k->ranks->gather_rows(columns, rounded, NULL, n, width, ld, width, dt, s);
}

void tree_attention_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                             const Attention* a, const Tree* tree, void* scratch, const Kernels* k, DType dt,
                             Stream s) {
    Scratch x;
    int Q = a->NH * a->HS, W = a->NKV * a->HS, n = a->Nq;
    carve(&x, (char*)scratch, n, a->NH, a->NKV, a->HS, dt);
    k->clear(x.sum, (size_t)n * (size_t)Q * sizeof(float), s);
    k->clear(x.part, (size_t)n * (size_t)(2 * W) * sizeof(float), s);
    for (int i = 0; i <= tree->n_levels; i++) {
        Attention part = call(a, tree, i);
        k->attention_backward(x.sum, x.part, x.part + W, dout, out, lse, &part, dt, s);
    }
    store_columns(dq, a->ldq, x.sum, x.rounded, n, Q, k, dt, s);
    if ((char*)dv != (char*)dk + (size_t)W * dtype_bytes(dt)) broken("keys and values do not stand side by side");
    store_columns(dk, a->ldkv, x.part, x.rounded, n, 2 * W, k, dt, s);
}

// ---- generation

// A call has two documents for each of n runs of keys: one without queries before it, and the run.
static size_t run_ints(int n) { return 2 * (size_t)n + 1; }
size_t answers_ints(int n) { return (size_t)n + 4 * run_ints(n); }

void answers_fill(Answers* answers, const AnswerRows* of, int n, int rows, int own_rows, int* ints, const int* there) {
    Filling prompts = {ints + n, ints + n + run_ints(n), 0}, own = {prompts.cu_k + run_ints(n), NULL, 0};
    own.cu_k = own.cu_q + run_ints(n);
    prompts.cu_q[0] = prompts.cu_k[0] = own.cu_q[0] = own.cu_k[0] = 0;
    for (int i = 0; i < n; i++) {
        const AnswerRows* x = &of[i];
        ints[i] = x->own + x->length;
        add(&own, i, x->own), add(&own, i + 1, x->own + x->length + 1);
        int is_first = i == 0 || of[i - 1].prompt != x->prompt;
        if (is_first) add(&prompts, i, x->prompt);
        if (i + 1 == n || of[i + 1].prompt != x->prompt) add(&prompts, i + 1, x->prompt + x->prompt_length);
    }
    *answers = (Answers){n,
                         rows,
                         own_rows,
                         there,
                         {prompts.n, there + (prompts.cu_q - ints), there + (prompts.cu_k - ints)},
                         {own.n, there + (own.cu_q - ints), there + (own.cu_k - ints)}};
}

static Attention answers_call(const Attention* whole, int n, int rows, const TreeLevel* level) {
    Attention a = *whole;
    a.causal = 0, a.partial = 1, a.Nq = n, a.Nk = rows;
    a.cu_q = level->cu_q, a.cu_k = level->cu_k, a.n_docs = level->n_docs;
    return a;
}

void answers_attention_forward(void* out, float* lse, const Attention* a, const Answers* answers, void* scratch,
                               const Kernels* k, DType dt, Stream s) {
    Scratch x;
    int n = answers->n, W = a->NKV * a->HS;
    size_t Q = (size_t)(a->NH * a->HS) * dtype_bytes(dt), array = (size_t)answers->rows * (size_t)a->ldq;
    char* own_keys = (char*)a->k - Q + array * dtype_bytes(dt);
    Attention prompts = answers_call(a, n, answers->rows, &answers->prompts);
    Attention own = answers_call(a, n, answers->own_rows, &answers->own);
    own.k = own_keys, own.v = own_keys + (size_t)W * dtype_bytes(dt), own.ldkv = 2 * W;
    carve(&x, (char*)scratch, n, a->NH, a->NKV, a->HS, dt);
    k->ranks->scatter_rows(own_keys, (const char*)a->q + Q, answers->new_rows, n, 2 * W, 2 * W, a->ldq, dt, s);
    k->attention_forward(x.sum, lse, &prompts, dt, s);
    k->attention_forward(x.part, x.part_lse, &own, dt, s);
    k->ranks->attention_merge(x.sum, lse, x.part, x.part_lse, n, a->NH, a->HS, s);
    k->ranks->cast(out, dt, x.sum, DT_F32, (size_t)n * (size_t)(a->NH * a->HS), s);
}
