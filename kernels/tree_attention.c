// tree_attention.c - see tree_attention.h.
#include "kernels/tree_attention.h"

// ---- the calls of a row

// A call has three documents for each of its nodes at most, and two behind the last; so many entries of cu_q and of
// cu_k, and one more. There are as many calls as depths with nodes that have children: fewer than segments.
static size_t level_ints(int nodes) { return 3 * (size_t)nodes + 3; }
size_t tree_ints(int n) { return (size_t)n + 1 + 2 * (3 * (size_t)n + 3 * (size_t)n) + 2 * (size_t)n; }

// Documents of a call, one behind the other. Those without queries and keys are left out.
typedef struct Filling {
    int *cu_q, *cu_k, n;
} Filling;

static void add(Filling* x, int q, int k) {
    if (q == x->cu_q[x->n] && k == x->cu_k[x->n]) return;
    x->n++;
    x->cu_q[x->n] = q, x->cu_k[x->n] = k;
}

// Of each node of this depth that has children: queries up to what lies below it, which see nothing; keys before the
// node, which nobody sees; what lies below it, with the node. ends[i]: the segment behind all that is below i.
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
    float *sum, *part;  // (N, NH HS); backward the gradients of q and, (N, 2 NKV HS), of k and v
    float* part_lse;    // (NH,N)
    char* rounded;      // the larger of them in dt
} Scratch;

static char* take(char* base, size_t* used, size_t bytes) {
    char* p = base ? base + *used : NULL;
    *used += ROUND_UP(bytes, (size_t)64);
    return p;
}

static size_t carve(Scratch* x, char* base, int N, int NH, int NKV, int HS, DType dt) {
    size_t used = 0, n = (size_t)N, Q = n * (size_t)(NH * HS), KV = n * (size_t)(2 * NKV * HS);
    x->sum = (float*)take(base, &used, Q * sizeof(float));
    x->part = (float*)take(base, &used, MAX(Q, KV) * sizeof(float));
    x->part_lse = (float*)take(base, &used, n * (size_t)NH * sizeof(float));
    x->rounded = take(base, &used, MAX(Q, KV) * dtype_bytes(dt));
    return used;
}

size_t tree_attention_scratch(int N, int NH, int NKV, int HS, DType dt) {
    Scratch unused;
    return carve(&unused, NULL, N, NH, NKV, HS, dt);
}

// Call i of the row: all segments, then depth by depth.
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

// columns = x, rounded: (n,width) into rows of ld elements.
static void store_columns(void* columns, int ld, const float* x, void* rounded, int n, int width, const Kernels* k,
                          DType dt, Stream s) {
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

// The prompt is seen by all as one document; of each answer's own tokens, what its room has, and nobody sees what else
// is there.
void answers_fill(const Answers* x, int* ints) {
    Filling own = {ints + ANSWERS_INTS, ints + ANSWERS_INTS + 2 * x->n + 1, 0};
    ints[0] = ints[2] = own.cu_q[0] = own.cu_k[0] = 0;
    ints[1] = x->n, ints[3] = x->prompt;
    for (int i = 0; i < x->n; i++) {
        add(&own, i, x->prompt + i * x->room);
        add(&own, i + 1, x->prompt + i * x->room + x->step + 1);
    }
}

void answers_attention_forward(void* out, float* lse, const Attention* a, const Answers* answers, void* scratch,
                               const Kernels* k, DType dt, Stream s) {
    Scratch x;
    int n = answers->n, ld = a->ldq;
    size_t row = (size_t)ld * dtype_bytes(dt);
    char* first = (char*)a->k - (size_t)(a->NH * a->HS) * dtype_bytes(dt);
    Attention part = *a;
    carve(&x, (char*)scratch, n, a->NH, a->NKV, a->HS, dt);
    k->ranks->gather_rows(first + (size_t)(answers->prompt + answers->step) * row, a->q, NULL, n, ld,
                          answers->room * ld, ld, dt, s);
    part.causal = 0, part.partial = 1, part.Nq = n, part.n_docs = 1;
    part.cu_q = answers->cu, part.cu_k = answers->cu + 2, part.Nk = answers->prompt;
    k->attention_forward(x.sum, lse, &part, dt, s);
    part.cu_q = answers->cu_q, part.cu_k = answers->cu_k;
    part.n_docs = answers->step + 1 < answers->room ? 2 * n : n + 1;  // full rooms have nothing between them
    part.Nk = answers->prompt + (n - 1) * answers->room + answers->step + 1;
    k->attention_forward(x.part, x.part_lse, &part, dt, s);
    k->ranks->attention_merge(x.sum, lse, x.part, x.part_lse, n, a->NH, a->HS, s);
    k->ranks->cast(out, dt, x.sum, DT_F32, (size_t)n * (size_t)(a->NH * a->HS), s);
}
