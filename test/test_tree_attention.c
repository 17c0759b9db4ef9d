// test_tree_attention.c - attention over trees of segments against the same paths written out as documents, by the
// reference's attention; see kernels/tree_attention.h.
//
// Of a token that several paths share the gradient of its output goes to the first of them, and gradients of its query,
// key and value are sums over all. Tolerance: test/attention_checks.h derives about 1e-5 of the largest entry for these
// lengths in fp32; a merge adds a few roundings.
#include "kernels/tree_attention.h"
#include "test/tables.h"

enum {
    MOST = 400,
    MOST_SEGMENTS = 64,
    HEADS = 4,
    KV_HEADS = 2,
    SIZE = 16,
    ROW = (HEADS + 2 * KV_HEADS) * SIZE,
    WIDTH = HEADS * SIZE
};

static struct {
    int n, lengths[MOST_SEGMENTS], parents[MOST_SEGMENTS], first[MOST_SEGMENTS + 1], is_leaf[MOST_SEGMENTS];
    float qkv[MOST * ROW], dout[MOST * WIDTH];
    float out[MOST * WIDTH], dqkv[MOST * ROW];  // expected
    float found_out[MOST * WIDTH], found_dqkv[MOST * ROW];
    uint64_t seed, draws;
} w;

static int between(int low, int high) {
    return low + (int)(hash64(w.seed ^ hash64(w.draws++)) % (uint64_t)(high - low + 1));
}

// A segment with what lies below it, depth first.
static void grow(int parent, int depth, int most_children, int most_length) {
    if (w.n == MOST_SEGMENTS) return;
    int i = w.n++, length = between(1, most_length), children = depth > 0 ? between(0, most_children) : 0;
    w.parents[i] = parent;
    w.lengths[i] = MIN(length, MOST - w.first[i] - (MOST_SEGMENTS - i));
    w.first[i + 1] = w.first[i] + w.lengths[i];
    w.is_leaf[i] = 1;
    if (parent >= 0) w.is_leaf[parent] = 0;
    for (int c = 0; c < children; c++) grow(i, depth - 1, most_children, most_length);
}

static Attention attention(const void* qkv, int n, int n_docs, const int* cu, DType dt) {
    Attention a;
    memset(&a, 0, sizeof a);
    a.q = qkv, a.k = (const char*)qkv + WIDTH * dtype_bytes(dt);
    a.v = (const char*)a.k + KV_HEADS * SIZE * dtype_bytes(dt);
    a.cu_q = a.cu_k = cu, a.Nq = a.Nk = n, a.n_docs = n_docs;
    a.NH = HEADS, a.NKV = KV_HEADS, a.HS = SIZE, a.ldq = a.ldkv = ROW, a.ldo = WIDTH;
    a.causal = 1, a.scale = 0.25f;
    return a;
}

static KernelLimits limits_of(DType dt) {
    return (KernelLimits){.N = MOST,
                          .C = WIDTH,
                          .OC = ROW,
                          .NH = HEADS,
                          .NKV = KV_HEADS,
                          .HS = SIZE,
                          .context = MOST,
                          .threads = 2,
                          .dt = dt,
                          .attention = ATTENTION_OWN};
}

// The path that ends with segment `leaf`, written out: adds to what is expected.
static void expect_path(int leaf, int* seen) {
    static float qkv[MOST * ROW], out[MOST * WIDTH], dout[MOST * WIDTH], dqkv[MOST * ROW], lse[MOST * HEADS];
    int path[MOST_SEGMENTS], n = 0, tokens[MOST], count = 0;
    for (int i = leaf; i >= 0; i = w.parents[i]) path[n++] = i;
    while (n-- > 0)
        for (int t = w.first[path[n]]; t < w.first[path[n] + 1]; t++) tokens[count++] = t;
    for (int t = 0; t < count; t++) {
        memcpy(qkv + t * ROW, w.qkv + tokens[t] * ROW, ROW * sizeof(float));
        for (int c = 0; c < WIDTH; c++) dout[t * WIDTH + c] = seen[tokens[t]] ? 0 : w.dout[tokens[t] * WIDTH + c];
        seen[tokens[t]] = 1;
    }
    int cu[] = {0, count};
    Attention a = attention(qkv, count, 1, cu, DT_F32);
    cpu_reference.attention_forward(out, lse, &a, DT_F32, NULL);
    cpu_reference.attention_backward(dqkv, dqkv + WIDTH, dqkv + WIDTH + KV_HEADS * SIZE, dout, out, lse, &a, DT_F32,
                                     NULL);
    for (int t = 0; t < count; t++) {
        memcpy(w.out + tokens[t] * WIDTH, out + t * WIDTH, WIDTH * sizeof(float));
        for (int c = 0; c < ROW; c++) w.dqkv[tokens[t] * ROW + c] += dqkv[t * ROW + c];
    }
}

static void* on_device(const Kernels* k, const void* host, size_t bytes) {
    void* p = k->alloc(bytes);
    k->upload(p, host, bytes, NULL);
    return p;
}

static void run_tree(const Kernels* k, DType dt) {
    Tree tree;
    TreeLevel levels[MOST_SEGMENTS];
    static int ints[16 * MOST_SEGMENTS];
    static bf16 narrow[MOST * ROW];
    int N = w.first[w.n];
    size_t e = dtype_bytes(dt), rows = (size_t)N * ROW, outs = (size_t)N * WIDTH;
    CHECK(tree_ints(w.n) <= COUNT(ints));
    tree_fill(&tree, levels, ints, w.lengths, w.parents, w.n);
    int* there = on_device(k, ints, sizeof ints);
    tree.cu = there + (tree.cu - ints);
    for (int i = 0; i < tree.n_levels; i++) {
        levels[i].cu_q = there + (levels[i].cu_q - ints);
        levels[i].cu_k = there + (levels[i].cu_k - ints);
    }
    for (size_t i = 0; i < rows; i++) narrow[i] = bf16_from_float(w.qkv[i]);
    void* qkv = on_device(k, dt == DT_BF16 ? (void*)narrow : (void*)w.qkv, rows * e);
    for (size_t i = 0; i < outs; i++) narrow[i] = bf16_from_float(w.dout[i]);
    void* dout = on_device(k, dt == DT_BF16 ? (void*)narrow : (void*)w.dout, outs * e);
    char *out = k->alloc(outs * e), *dqkv = k->alloc(rows * e);
    float* lse = k->alloc((size_t)N * HEADS * sizeof(float));
    void* scratch = k->alloc(tree_attention_scratch(N, HEADS, KV_HEADS, SIZE, dt));
    Attention a = attention(qkv, N, 0, NULL, dt);
    tree_attention_forward(out, lse, &a, &tree, scratch, k, dt, NULL);
    tree_attention_backward(dqkv, dqkv + WIDTH * e, dqkv + (WIDTH + KV_HEADS * SIZE) * e, dout, out, lse, &a, &tree,
                            scratch, k, dt, NULL);
    k->download(w.found_out, out, outs * e, NULL);
    k->download(w.found_dqkv, dqkv, rows * e, NULL);
    if (dt == DT_BF16) bf16_widen_in_place(w.found_out, outs), bf16_widen_in_place(w.found_dqkv, rows);
    void* taken[] = {there, qkv, dout, out, dqkv, lse, scratch};
    for (int i = 0; i < COUNT(taken); i++) k->free_memory(taken[i]);
}

static double largest(const float* x, size_t n) {
    double most = 0;
    for (size_t i = 0; i < n; i++) most = MAX(most, fabs((double)x[i]));
    return most;
}

static void compare(const float* found, const float* expected, size_t n, double tolerance) {
    double most = largest(expected, n);
    for (size_t i = 0; i < n; i++) CHECK_CLOSE((double)found[i], (double)expected[i], tolerance * most);
}

static void check_tree(DType dt) {
    const Kernels* tables[CPU_ISAS];
    char err[ERR_BYTES];
    int N = w.first[w.n], seen[MOST] = {0};
    KernelLimits limits = limits_of(dt);
    for (int i = 0; i < N * ROW; i++) w.qkv[i] = (float)random_normal(w.seed, (uint64_t)i);
    for (int i = 0; i < N * WIDTH; i++) w.dout[i] = (float)random_normal(w.seed + 1, (uint64_t)i);
    for (int i = 0; i < N * ROW && dt == DT_BF16; i++) w.qkv[i] = bf16_to_float(bf16_from_float(w.qkv[i]));
    for (int i = 0; i < N * WIDTH && dt == DT_BF16; i++) w.dout[i] = bf16_to_float(bf16_from_float(w.dout[i]));
    memset(w.dqkv, 0, sizeof w.dqkv);
    for (int i = 0; i < w.n; i++)
        if (w.is_leaf[i]) expect_path(i, seen);
    for (int t = 0, n = tested_tables(tables); t < n; t++) {
        CHECK(tables[t]->open(&limits, err) == 0);
        run_tree(tables[t], dt);
        tables[t]->close();
        compare(w.found_out, w.out, (size_t)N * WIDTH, dt == DT_BF16 ? 1.0 / 64 : 2e-6);
        compare(w.found_dqkv, w.dqkv, (size_t)N * ROW, dt == DT_BF16 ? 1.0 / 32 : 1e-5);
    }
}

static void draw_trees(int docs, int depth, int most_children, int most_length) {
    w.n = 0, w.draws = 0;
    for (int d = 0; d < docs; d++) grow(-1, depth, most_children, most_length);
}

static void try_shapes(DType dt) {
    static const int shapes[][4] = {{1, 0, 0, 60}, {1, 1, 8, 20}, {3, 1, 4, 12}, {2, 3, 3, 6},
                                    {4, 5, 1, 9},  {1, 6, 2, 5},  {8, 0, 0, 9}};
    for (int i = 0; i < COUNT(shapes); i++)
        for (int run = 0; run < (TESTS_DEVICE ? 1 : 4); run++) {
            w.seed = hash64((uint64_t)(100 * i + run));
            draw_trees(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
            check_tree(dt);
        }
}

CLAIM(trees_are_their_paths_written_out_in_fp32) { try_shapes(DT_F32); }
CLAIM(trees_are_their_paths_written_out_in_bf16) { try_shapes(DT_BF16); }

// The pairs of a call are those that are seen: of (tokens below a node) x (tokens of the node), and none else.
CLAIM(no_call_computes_what_nobody_sees) {
    Tree tree;
    TreeLevel levels[MOST_SEGMENTS];
    static int ints[16 * MOST_SEGMENTS];
    for (int run = 0; run < 200; run++) {
        int64_t pairs = 0, wanted = 0;
        w.seed = hash64((uint64_t)run);
        draw_trees(between(1, 3), between(0, 5), between(1, 4), between(1, 9));
        tree_fill(&tree, levels, ints, w.lengths, w.parents, w.n);
        for (int i = 0; i < w.n; i++)
            for (int up = w.parents[i]; up >= 0; up = w.parents[up]) wanted += (int64_t)w.lengths[i] * w.lengths[up];
        for (int l = 0; l < tree.n_levels; l++) {
            const TreeLevel* x = &levels[l];
            CHECK(x->cu_q[x->n_docs] == w.first[w.n] && x->cu_k[x->n_docs] == w.first[w.n]);
            for (int b = 0; b < x->n_docs; b++) {
                CHECK(x->cu_q[b + 1] >= x->cu_q[b] && x->cu_k[b + 1] >= x->cu_k[b]);
                pairs += (int64_t)(x->cu_q[b + 1] - x->cu_q[b]) * (x->cu_k[b + 1] - x->cu_k[b]);
            }
        }
        CHECK(pairs == wanted);
        int deepest = 0;
        for (int i = 0; i < w.n; i++) {
            int depth = 0;
            for (int up = w.parents[i]; up >= 0; up = w.parents[up]) depth++;
            deepest = MAX(deepest, depth);
        }
        CHECK(tree.n_levels == deepest);
    }
}

// ---- generation

enum { MOST_LIVE = 24 };

typedef struct Cache {
    int n, rows, own_rows;  // answers; rows before their new tokens; of their own
    AnswerRows of[MOST_LIVE];
} Cache;

// Prompts with some answers each, in extents that lie in any order with gaps between them.
static Cache draw_cache(void) {
    Cache c = {0};
    int extents[2 * MOST_LIVE], lengths[2 * MOST_LIVE], n = 0, first[2 * MOST_LIVE];
    for (int prompts = between(1, 4); prompts > 0; prompts--) {
        int prompt = n, answers = between(1, MOST_LIVE / 4);
        lengths[n++] = between(1, 40);
        for (; answers > 0; answers--) {
            c.of[c.n++] = (AnswerRows){prompt, lengths[prompt], n, between(0, 8)};
            lengths[n++] = c.of[c.n - 1].length + 1;
        }
    }
    for (int i = 0; i < n; i++) extents[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int j = between(0, i), other = extents[i];
        extents[i] = extents[j], extents[j] = other;
    }
    for (int i = 0; i < n; i++) {
        int is_prompt = 0, *rows = &c.own_rows;
        for (int j = 0; j < c.n; j++) is_prompt |= extents[i] == c.of[j].prompt;
        if (is_prompt) rows = &c.rows;
        first[extents[i]] = *rows += between(0, 2), *rows += lengths[extents[i]];
    }
    for (int i = 0; i < c.n; i++) c.of[i].prompt = first[c.of[i].prompt], c.of[i].own = first[c.of[i].own];
    return c;
}

enum { OWN = 2 * KV_HEADS * SIZE };
static float own_keys[MOST * OWN];

static float* row_at(int i) { return w.qkv + i * ROW; }

static void fill_floats(float* x, size_t first, size_t n, uint64_t seed, DType dt) {
    for (size_t i = first; i < first + n; i++) {
        x[i] = (float)random_normal(seed, i);
        if (dt == DT_BF16) x[i] = bf16_to_float(bf16_from_float(x[i]));
    }
}

// What nobody sees is NaN, and so is the place of each new token.
static void fill_cache(const Cache* c, DType dt) {
    for (int i = 0; i < MOST * ROW; i++) w.qkv[i] = NAN;
    for (int i = 0; i < MOST * OWN; i++) own_keys[i] = NAN;
    for (int i = 0; i < c->n; i++) {
        const AnswerRows* x = &c->of[i];
        fill_floats(w.qkv, (size_t)x->prompt * ROW, (size_t)x->prompt_length * ROW, w.seed, dt);
        fill_floats(own_keys, (size_t)x->own * OWN, (size_t)x->length * OWN, w.seed + 1, dt);
    }
    fill_floats(w.qkv, (size_t)c->rows * ROW, (size_t)c->n * ROW, w.seed, dt);
}

// Each answer alone: its prompt, its tokens and the new one as a document, of which only the last has a query.
static void expect_answers(const Cache* c) {
    static float qkv[MOST * ROW], lse[HEADS];
    for (int i = 0; i < c->n; i++) {
        const AnswerRows* x = &c->of[i];
        int n = x->prompt_length + x->length + 1, cu[] = {0, 1, 0, n};
        memcpy(qkv, row_at(x->prompt), sizeof(float) * ROW * (size_t)x->prompt_length);
        for (int t = 0; t < x->length; t++)
            memcpy(qkv + (x->prompt_length + t) * ROW + WIDTH, own_keys + (x->own + t) * OWN, sizeof(float) * OWN);
        memcpy(qkv + (n - 1) * ROW, row_at(c->rows + i), sizeof(float) * ROW);
        Attention a = attention(qkv, n, 1, cu, DT_F32);
        a.q = qkv + (n - 1) * ROW, a.Nq = 1, a.cu_k = cu + 2;
        cpu_reference.attention_forward(w.out + i * WIDTH, lse, &a, DT_F32, NULL);
    }
}

static void run_answers(const Kernels* k, const Cache* c, DType dt) {
    static float all[MOST * (ROW + OWN)];
    static int ints[10 * MOST_LIVE];
    Answers answers;
    int rows = c->rows + c->n;
    size_t e = dtype_bytes(dt), array = (size_t)rows * ROW, n = array + (size_t)c->own_rows * OWN,
           outs = (size_t)c->n * WIDTH;
    memcpy(all, w.qkv, sizeof *all * array);
    memcpy(all + array, own_keys, sizeof *all * (n - array));
    if (dt == DT_BF16) bf16_narrow_in_place(all, n);
    CHECK(answers_ints(c->n) <= COUNT(ints));
    int* there = k->alloc(sizeof ints);
    answers_fill(&answers, c->of, c->n, rows, c->own_rows, ints, there);
    k->upload(there, ints, sizeof ints, NULL);
    char *qkv = on_device(k, all, n * e), *out = k->alloc(outs * e);
    float* lse = k->alloc((size_t)c->n * HEADS * sizeof(float));
    void* scratch = k->alloc(tree_attention_scratch(c->n, HEADS, KV_HEADS, SIZE, dt));
    Attention a = attention(qkv, c->n, 0, NULL, dt);
    a.q = qkv + (size_t)c->rows * ROW * e;
    answers_attention_forward(out, lse, &a, &answers, scratch, k, dt, NULL);
    k->download(w.found_out, out, outs * e, NULL);
    if (dt == DT_BF16) bf16_widen_in_place(w.found_out, outs);
    void* taken[] = {there, qkv, out, lse, scratch};
    for (int i = 0; i < COUNT(taken); i++) k->free_memory(taken[i]);
}

static void try_answers(DType dt) {
    const Kernels* tables[CPU_ISAS];
    char err[ERR_BYTES];
    for (int t = 0, n = tested_tables(tables); t < n; t++) {
        KernelLimits limits = limits_of(dt);
        CHECK(tables[t]->open(&limits, err) == 0);
        for (int run = 0; run < (TESTS_DEVICE ? 4 : 40); run++) {
            w.seed = hash64((uint64_t)run + 7), w.draws = 0;
            Cache c = draw_cache();
            if (c.rows + c.n > MOST || c.own_rows > MOST) continue;
            fill_cache(&c, dt);
            expect_answers(&c);
            run_answers(tables[t], &c, dt);
            compare(w.found_out, w.out, (size_t)c.n * WIDTH, dt == DT_BF16 ? 1.0 / 64 : 2e-6);
        }
        tables[t]->close();
    }
}

CLAIM(answers_see_their_prompt_and_themselves_wherever_they_lie_in_fp32) { try_answers(DT_F32); }
CLAIM(answers_see_their_prompt_and_themselves_wherever_they_lie_in_bf16) { try_answers(DT_BF16); }

int main(void) { return test_main(); }
