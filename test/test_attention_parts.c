// test_attention_parts.c - an attention that is computed in parts, by every table under test, is the whole attention.
//
// Documents are cut into pieces, each kind of row by a Cut of its own; piece c of all documents lies together, a unit.
// A call of the kernels joins one unit of queries with one of keys; partial outputs are merged, gradients add up.
//
// Tolerances, beside those of attention_checks.h, with P parts of each query, L the largest |lse|:
//   a part's lse is off by l = dS + (4 + L) e, and a merge adds (8 + 2 L) e;
//   a merge weighs by w and 1 - w, off by w (1 - w) 2 l <= l / 2 from lse and by 12 e from itself, what differs by 2 V
//   at most: out is off by r V of its parts and (l + 24 e) V of each merge;
//   a gradient adds P numbers to what was there: each of the P sums rounds once more.
// The backward pass of the whole is given the out and lse that the merge left, so that errors of the two do not add.
#include "test/attention_checks.h"

enum { MOST_PIECES = 10, MOST_CALLS = MOST_PIECES * (MOST_PIECES + 1) / 2 };

typedef struct Cut {
    int pieces, n_docs;
    int border[MOST_DOCS][MOST_PIECES + 1];  // piece c of document b: rows border[b][c] .. border[b][c + 1] of it
    int cu[MOST_PIECES][MOST_DOCS + 1];      // where the documents' pieces begin in unit c
    int start[MOST_PIECES + 1];              // where units begin
} Cut;

typedef struct Call {
    int q, k, causal;  // units
    int with_offsets, offsets[MOST_DOCS];
} Call;

typedef struct Parts {
    Problem* p;
    const Kernels* table;
    Cut q_cut, k_cut;
    Call calls[MOST_CALLS];
    int n_calls;
    Tensor q, k, v, dout, out, dq, dk, dv;  // rows in the order of units
    Tensor merged, part, lse, part_lse;     // fp32; lse of a unit of n rows: (NH,n), one after another
} Parts;

// Borders are set; the rest follows.
static void finish_cut(Cut* cut) {
    for (int c = 0; c < cut->pieces; c++) {
        for (int b = 0; b < cut->n_docs; b++)
            cut->cu[c][b + 1] = cut->cu[c][b] + cut->border[b][c + 1] - cut->border[b][c];
        cut->start[c + 1] = cut->start[c] + cut->cu[c][cut->n_docs];
    }
}

// Chunks of equal size, up to one row.
static Cut equal_pieces(const int* cu, int n_docs, int pieces) {
    Cut cut = {.pieces = pieces, .n_docs = n_docs};
    for (int b = 0; b < n_docs; b++)
        for (int c = 0; c <= pieces; c++) cut.border[b][c] = (cu[b + 1] - cu[b]) * c / pieces;
    finish_cut(&cut);
    return cut;
}

static Cut random_pieces(const int* cu, int n_docs, int pieces, uint64_t seed) {
    Cut cut = {.pieces = pieces, .n_docs = n_docs};
    for (int b = 0; b < n_docs; b++) {
        int len = cu[b + 1] - cu[b];
        cut.border[b][pieces] = len;
        for (int c = pieces - 1; c > 0; c--)
            cut.border[b][c] = (int)(hash64(seed * 1000 + b * 16 + c) % (uint64_t)(cut.border[b][c + 1] + 1));
    }
    finish_cut(&cut);
    return cut;
}

// The row of unit order at which row i of document b lies.
static size_t unit_row(const Cut* cut, int b, int i) {
    int c = 0;
    while (i >= cut->border[b][c + 1]) c++;
    return cut->start[c] + cut->cu[c][b] + i - cut->border[b][c];
}

// x with its rows in the order of units, or back in that of documents.
static Tensor reorder(Tensor x, const Cut* cut, const int* cu, int back) {
    Tensor y = tensor(x.rows, x.width, x.ld - x.width, x.dt);
    for (int b = 0; b < cut->n_docs; b++)
        for (int i = 0; i < cu[b + 1] - cu[b]; i++) {
            size_t row = cu[b] + i, there = unit_row(cut, b, i);
            for (size_t c = 0; c < x.width; c++) set(y, back ? row : there, c, get(x, back ? there : row, c));
        }
    return y;
}

// (NH,Nq) in the order of documents, from the lse of units.
static Tensor whole_lse(const Parts* t) {
    const Problem* p = t->p;
    Tensor y = tensor(p->a.NH, p->q.rows, 0, DT_F32);
    for (int b = 0; b < p->a.n_docs; b++)
        for (int i = 0; i < p->cu_q[b + 1] - p->cu_q[b]; i++) {
            size_t row = unit_row(&t->q_cut, b, i);
            int c = 0;
            while (row >= (size_t)t->q_cut.start[c + 1]) c++;
            size_t first = t->q_cut.start[c], n = t->q_cut.start[c + 1] - first;
            for (int h = 0; h < p->a.NH; h++)
                set(y, h, p->cu_q[b] + i, get(t->lse, 0, first * p->a.NH + h * n + row - first));
        }
    return y;
}

// ---- the two ways to cut that are claimed

// Each unit of keys meets all queries. Piece c of the keys of a document begins border[c] behind its first.
static void keys_in_pieces(Parts* t, int pieces, uint64_t seed) {
    const Problem* p = t->p;
    t->q_cut = equal_pieces(p->cu_q, p->a.n_docs, 1);
    t->k_cut = random_pieces(p->cu_k, p->a.n_docs, pieces, seed);
    t->n_calls = pieces;
    for (int c = 0; c < pieces; c++) {
        t->calls[c] = (Call){.k = c, .causal = p->a.causal, .with_offsets = p->a.causal};
        for (int b = 0; b < p->a.n_docs; b++)
            t->calls[c].offsets[b] =
                p->cu_k[b + 1] - p->cu_k[b] - (p->cu_q[b + 1] - p->cu_q[b]) - t->k_cut.border[b][c];
    }
}

// A ring of d places: place a has chunks a and 2 d - 1 - a of each document, and meets the keys of the places in the
// order a, a - 1 and so on around the ring. Chunks see those before them, and of themselves the causal half.
static void zigzag_ring(Parts* t, int d) {
    t->q_cut = equal_pieces(t->p->cu_q, t->p->a.n_docs, 2 * d);
    t->k_cut = equal_pieces(t->p->cu_k, t->p->a.n_docs, 2 * d);
    for (int place = 0; place < d; place++)
        for (int step = 0; step < d; step++) {
            int from = (place - step + d) % d, q[2] = {place, 2 * d - 1 - place}, k[2] = {from, 2 * d - 1 - from};
            for (int i = 0; i < 4; i++)
                if (k[i % 2] <= q[i / 2])
                    t->calls[t->n_calls++] = (Call){.q = q[i / 2], .k = k[i % 2], .causal = k[i % 2] == q[i / 2]};
        }
    CHECK(t->n_calls == d * (2 * d + 1));
}

// ---- a table computes all parts

static void* from_row(const Kernels* k, Tensor t, size_t row) {
    return (char*)data_for(k, t) + row * t.ld * dtype_bytes(t.dt);
}

static Attention call_arguments(const Kernels* k, Parts* t, Call* c) {
    Attention a = t->p->a;
    size_t q = t->q_cut.start[c->q], key = t->k_cut.start[c->k];
    a.q = from_row(k, t->q, q), a.k = from_row(k, t->k, key), a.v = from_row(k, t->v, key);
    a.cu_q = (int*)there(k, t->q_cut.cu, sizeof t->q_cut.cu) + c->q * (MOST_DOCS + 1);
    a.cu_k = (int*)there(k, t->k_cut.cu, sizeof t->k_cut.cu) + c->k * (MOST_DOCS + 1);
    a.Nq = t->q_cut.cu[c->q][a.n_docs], a.Nk = t->k_cut.cu[c->k][a.n_docs];
    a.ldq = (int)t->q.ld, a.ldkv = (int)t->k.ld, a.ldo = (int)t->out.ld;
    a.ld_dq = (int)t->dq.ld, a.ld_dkv = (int)t->dk.ld;
    a.causal = c->causal, a.partial = 1;
    if (c->with_offsets) a.causal_offset = (int*)there(k, c->offsets, sizeof c->offsets);
    return a;
}

static void run_parts(Parts* t, const Kernels* k) {
    int seen[MOST_PIECES] = {0}, NH = t->p->a.NH, HS = t->p->a.HS;
    CHECK(open_table(k, t->p, 2) == 0);
    for (int i = 0; i < t->n_calls; i++) {
        Attention a = call_arguments(k, t, &t->calls[i]);
        size_t row = t->q_cut.start[t->calls[i].q];
        float* lse = (float*)data_for(k, t->lse) + row * NH;
        float* part_lse = (float*)data_for(k, t->part_lse) + row * NH;
        float *merged = (float*)from_row(k, t->merged, row), *part = (float*)from_row(k, t->part, row);
        int first = !seen[t->calls[i].q]++;
        k->attention_forward(first ? merged : part, first ? lse : part_lse, &a, t->p->dt, NULL);
        if (!first) k->ranks->attention_merge(merged, lse, part, part_lse, a.Nq, NH, HS, NULL);
    }
    k->ranks->cast(data_for(k, t->out), t->p->dt, data_for(k, t->merged), DT_F32, t->out.rows * t->out.width, NULL);
    for (int i = 0; i < t->n_calls; i++) {
        Attention a = call_arguments(k, t, &t->calls[i]);
        size_t row = t->q_cut.start[t->calls[i].q], key = t->k_cut.start[t->calls[i].k];
        k->attention_backward(from_row(k, t->dq, row), from_row(k, t->dk, key), from_row(k, t->dv, key),
                              from_row(k, t->dout, row), from_row(k, t->out, row),
                              (float*)data_for(k, t->lse) + row * NH, &a, t->p->dt, NULL);
    }
    bring_back();
    k->close();
}

// ---- and is compared with the whole attention of the reference, in fp32

static void compare_with_whole(Parts* t, const Result* found, const Result* expected) {
    Problem* p = t->p;
    double HS = p->a.HS, scale = p->a.scale, A = scale * largest_norm(p->q, p->a.HS) * largest_norm(p->k, p->a.HS);
    double dS = (HS + 3) * E * A, r = 2 * dS + (p->longest + 8) * E + rounded_factors(p, t->table), P = t->k_cut.pieces,
           L = 0;
    for (size_t h = 0; h < expected->lse.rows; h++)
        for (size_t n = 0; n < expected->lse.width; n++)
            if (!isinf(get(expected->lse, h, n))) L = MAX(L, fabs(get(expected->lse, h, n)));
    double l = dS + (4 + L) * E, V = largest(p->v);
    double g = largest_norm(p->dout, p->a.HS) * fmax(largest_norm(p->v, p->a.HS), largest_norm(expected->out, p->a.HS));
    double t_dS = (2 * r + 2 * (HS + 3 + P) * E) * 2 * g, s = p->a.NH / p->a.NKV, more = (s - 1) * p->longest * E;
    check_close(found->out, expected->out, r * V + (P - 1) * (l + 24 * E) * V);
    check_close(found->lse, expected->lse, l + (P - 1) * (8 + 2 * L) * E);
    check_close(found->dq, expected->dq, scale * largest(p->k) * t_dS + P * E * largest(expected->dq));
    check_close(found->dk, expected->dk,
                16 * s * scale * largest(p->q) * (t_dS + 4 * more * g) + P * E * largest(expected->dk));
    check_close(found->dv, expected->dv,
                16 * s * (r + more + P * E) * largest(p->dout) + P * E * largest(expected->dv));
}

static void make_parts(Parts* t, const Result* start) {
    Problem* p = t->p;
    size_t rows = p->q.rows, width = p->q.width;
    t->q = reorder(p->q, &t->q_cut, p->cu_q, 0), t->dout = reorder(p->dout, &t->q_cut, p->cu_q, 0);
    t->k = reorder(p->k, &t->k_cut, p->cu_k, 0), t->v = reorder(p->v, &t->k_cut, p->cu_k, 0);
    t->dq = reorder(start->dq, &t->q_cut, p->cu_q, 0);
    t->dk = reorder(start->dk, &t->k_cut, p->cu_k, 0), t->dv = reorder(start->dv, &t->k_cut, p->cu_k, 0);
    t->merged = tensor(rows, width, 0, DT_F32), t->part = tensor(rows, width, 0, DT_F32);
    t->out = tensor(rows, width, 0, p->dt);
    t->lse = tensor(1, rows * p->a.NH, 0, DT_F32), t->part_lse = tensor(1, rows * p->a.NH, 0, DT_F32);
}

static void free_parts(Parts* t) {
    Tensor* all[] = {&t->q,  &t->k,  &t->v,      &t->dout, &t->out, &t->dq,
                     &t->dk, &t->dv, &t->merged, &t->part, &t->lse, &t->part_lse};
    for (int i = 0; i < COUNT(all); i++) free(all[i]->bytes);
}

static void check_parts(Parts* t) {
    Tensor written[] = {t->out, t->dq, t->dk, t->dv, t->merged, t->part, t->lse, t->part_lse};
    for (int i = 0; i < COUNT(written); i++) check_untouched_around(written[i]);
    for (size_t r = 0; r < t->out.rows; r++)  // one rounding
        for (size_t c = 0; c < t->out.width; c++) {
            float merged = (float)get(t->merged, r, c);
            CHECK(get(t->out, r, c) == (t->p->dt == DT_BF16 ? bf16_to_float(bf16_from_float(merged)) : merged));
        }
}

// `cut` fills the cuts and calls from a number.
static void try_parts_with(const Kernels* k, Problem* p, void (*cut)(Parts*, int, uint64_t), int n, uint64_t seed) {
    Parts t = {.p = p, .table = k};
    p->a.partial = 1;
    Result expected = result(p);
    cut(&t, n, seed);
    make_parts(&t, &expected);
    run_parts(&t, k);
    check_parts(&t);
    Result found = {reorder(t.merged, &t.q_cut, p->cu_q, 1), whole_lse(&t), reorder(t.dq, &t.q_cut, p->cu_q, 1),
                    reorder(t.dk, &t.k_cut, p->cu_k, 1), reorder(t.dv, &t.k_cut, p->cu_k, 1)};
    Result from = {.out = reorder(t.out, &t.q_cut, p->cu_q, 1), .lse = found.lse};
    run(&expected, cpu_kernels(CPU_REFERENCE), p, &from, 1);
    compare_with_whole(&t, &found, &expected);
    free(from.out.bytes), free_result(found), free_result(expected), free_parts(&t);
}

// Through the reference too, which so is shown to be right by its own whole attention.
static void try_parts(const Case* c, DType dt, void (*cut)(Parts*, int, uint64_t), int n, uint64_t seed) {
    const Kernels* tables[CPU_ISAS + 1];
    int failures = test_failures_in_claim, n_tables = tested_tables(tables);
    tables[n_tables++] = cpu_kernels(CPU_REFERENCE);
    Problem p = problem(c, dt);
    free(p.dout.bytes);
    p.dout = tensor(p.q.rows, p.q.width, 0, dt), fill(p.dout, 4, 1);  // merged rows lie without gaps, and dout as out
    for (int i = 0; i < n_tables; i++) try_parts_with(tables[i], &p, cut, n, seed);
    if (test_failures_in_claim > failures)
        printf("    head size %d, %s, cut by %d, seed %d\n", c->HS, dtype_name(dt), n, (int)seed);
    free_problem(p);
}

static void cut_keys(Parts* t, int n, uint64_t seed) { keys_in_pieces(t, n, seed); }
static void cut_ring(Parts* t, int n, uint64_t seed) { (void)seed, zigzag_ring(t, n); }

// ---- claims

// Cases, each with ways to cut it: keys of all documents in so many pieces, or a zigzag ring of so many places.
#define RAGGED \
    {1, 1}, {2, 2}, {3, 3}, {1, 1}, {260, 260}, {9, 9}, {10, 10}, {11, 11}, {77, 77}, { 2, 2 }
// clang-format off
static const struct {
    const char* claim;  // NULL: another case of the one before
    Case c;
    int is_ring, cuts[5];
} rows[] = {
    {"merged_parts_are_the_whole_attention",
     {16, 2, 1, 1, 3, BOTH, {{1, 1}, {2, 2}, {65, 65}, {130, 130}, {16, 70}, {1, 9}, {NONE, 3}, {17, 17}}}, 0, {2, 4}},
    {NULL, {16, 2, 1, 0, 1, BOTH, {{1, 1}, {70, 3}, {64, 65}, {5, 130}, {4, NONE}, {66, 1}}}, 0, {2, 4}},
    {NULL, {64, 1, 1, 1, 8, BOTH, {{3, 3}, {66, 70}}}, 0, {2, 4}},
    {NULL, {8, 3, 1, 1, 0, BOTH, {{9, 4}, {100, 90}, {3, 2}}}, 0, {2, 4}},  // whose first queries see no key at all
    {"zigzag_rings_are_the_whole_attention", {8, 2, 1, 1, 3, BOTH, {RAGGED}}, 1, {5, 2, 1, 3}},
    {NULL, {64, 1, 1, 1, 8, BF16, {{1, 1}, {2, 2}, {3, 3}, {73, 73}, {30, 30}, {11, 11}}}, 1, {5, 2, 1, 3}},
    {"parts_of_an_attention_of_shared_keys_are_the_whole",
     {16, 2, 3, 1, 3, BOTH, {{1, 1}, {65, 65}, {16, 70}, {100, 90}}}, 0, {3}},
    {NULL, {64, 1, 3, 1, 8, BOTH, {{1, 1}, {3, 3}, {73, 73}}}, 1, {2}},
    {"rings_of_the_shortest_documents_are_the_whole_attention",
     {8, 3, 1, 1, 1, FP32, {{1, 1}, {1, 1}, {2, 2}, {3, 3}, {1, 1}}}, 1, {2, 3, 4, 5}},
};
// clang-format on

static void check_rows(int first) {
    for (int i = first; i < COUNT(rows) && (i == first || !rows[i].claim); i++)
        for (int dt = DT_F32; dt <= DT_BF16; dt++)
            for (int k = 0; k < (SANITIZED ? 2 : COUNT(rows[i].cuts)) && rows[i].cuts[k]; k++)
                if (rows[i].c.kinds & (dt == DT_F32 ? FP32 : BF16))
                    try_parts(&rows[i].c, (DType)dt, rows[i].is_ring ? cut_ring : cut_keys, rows[i].cuts[k],
                              (uint64_t)(i * 10 + rows[i].cuts[k]));
}

// The reference rounds a whole attention once: as a part it leaves what was rounded.
CLAIM(the_reference_rounds_what_a_part_leaves) {
    static const Case c = {8, 2, 1, 1, 3, BOTH, {{5, 5}, {9, 17}}};
    for (int dt = DT_F32; dt <= DT_BF16; dt++) {
        Problem p = problem(&c, (DType)dt);
        Result whole = result(&p);
        run(&whole, cpu_kernels(CPU_REFERENCE), &p, &whole, 1);
        p.a.partial = 1;
        Result part = result(&p);
        fill(part.dq, 0, 0), fill(part.dk, 0, 0), fill(part.dv, 0, 0);
        run(&part, cpu_kernels(CPU_REFERENCE), &p, &whole, 1);
        Tensor wholes[] = {whole.out, whole.lse, whole.dq, whole.dk, whole.dv},
               parts[] = {part.out, part.lse, part.dq, part.dk, part.dv};
        for (int i = 0; i < COUNT(wholes); i++)
            for (size_t r = 0; r < wholes[i].rows; r++)
                for (size_t col = 0; col < wholes[i].width; col++) {
                    float x = (float)get(parts[i], r, col);
                    CHECK(get(wholes[i], r, col) == (wholes[i].dt == DT_BF16 ? bf16_to_float(bf16_from_float(x)) : x));
                }
        free_result(whole), free_result(part), free_problem(p);
    }
}

// Documents of one token: out is v, dv the sum of dout over the heads that share it, and each is an item of work of its
// own. KernelLimits.spread makes room.
static void try_group_of_ranks(int sharing) {
    enum { SPREAD = 6, KV = 2, ALL_KV = 7 };  // ranks have one or two of 7 key/value heads
    const Kernels* tables[CPU_ISAS];
#ifdef TEST_DEVICE
    int N = at_most(100, 20), NH = KV * sharing;
#else
    int N = at_most(20000, 100), NH = KV * sharing;
#endif
    size_t rows = (size_t)N * SPREAD;
    int* cu = (int*)malloc((rows + 1) * sizeof(int));
    for (size_t i = 0; i <= rows; i++) cu[i] = (int)i;
    Tensor q = tensor(rows, NH, 0, DT_F32), v = tensor(rows, KV, 0, DT_F32), dout = tensor(rows, NH, 0, DT_F32),
           out = tensor(rows, NH, 0, DT_F32), dv = tensor(rows, KV, 0, DT_F32);
    fill(q, 1, 1), fill(v, 3, 1), fill(dout, 2, 1), fill(dv, 0, 0);
    for (size_t r = 0; r < rows; r++)
        for (int h = 0; h < NH; h++)
            set(out, r, h, get(v, r, h / sharing)), set(dv, r, h / sharing, get(dv, r, h / sharing) + get(dout, r, h));
    KernelLimits limits = {.N = N, .spread = SPREAD, .NH = ALL_KV * sharing, .NKV = ALL_KV, .HS = 1, .context = 4};
    limits.C = limits.OC = 28, limits.threads = 2, limits.attention = ATTENTION_OWN;
    for (int i = 0, n = tested_tables(tables); i < n; i++) {
        const Kernels* k = tables[i];
        char err[ERR_BYTES];
        size_t widths[] = {NH, NH, NH, KV, KV};
        Tensor y[5];
        for (int j = 0; j < 5; j++) y[j] = tensor(rows, widths[j], 0, DT_F32);
        CHECK(k->open(&limits, err) == 0);
        Attention a = {data_for(k, q), data_for(k, v), data_for(k, v), .Nq = (int)rows, .Nk = (int)rows};
        a.cu_q = a.cu_k = (int*)there(k, cu, (rows + 1) * sizeof(int));
        a.ldq = a.ldo = a.NH = NH, a.ldkv = a.NKV = KV, a.n_docs = (int)rows, a.HS = 1, a.causal = 1, a.scale = 1;
        k->attention_forward(data_for(k, y[0]), (float*)data_for(k, y[1]), &a, DT_F32, NULL);
        k->attention_backward(data_for(k, y[2]), data_for(k, y[3]), data_for(k, y[4]), data_for(k, dout),
                              data_for(k, y[0]), (float*)data_for(k, y[1]), &a, DT_F32, NULL);
        bring_back();
        k->close();
        check_close(y[0], out, 0);  // 4 roundings: of p, the sum and the quotient
        check_close(y[4], dv, (sharing - 1) * 8 * E * largest(dout));
        for (int j = 0; j < 5; j++) free(y[j].bytes);
    }
    free(cu), free(q.bytes), free(v.bytes), free(dout.bytes), free(out.bytes), free(dv.bytes);
}

CLAIM(a_group_of_ranks_brings_more_tokens_of_fewer_heads) {
    try_group_of_ranks(1);
    try_group_of_ranks(4);
}

enum { ROW = 200, ROW_HS = 32 };

// out (ROW, HS) of two documents, the first of `first` tokens, which stand where those of the call before stood.
static void forward_row(bf16* out, const Kernels* k, char* memory, uint64_t row, int first) {
    size_t bytes = ROW * ROW_HS * sizeof(bf16);
    int cu[3] = {0, first, ROW};
    bf16 *x = (bf16*)memory, *y = x + ROW * ROW_HS;
    float* lse = (float*)(y + ROW * ROW_HS);
    int* there = (int*)(lse + ROW);
    k->upload(there, cu, sizeof cu, NULL);
    Attention a = {x, x, x, there, there, .Nq = ROW, .Nk = ROW, .ldq = ROW_HS, .ldkv = ROW_HS, .ldo = ROW_HS};
    a.n_docs = 2, a.NH = a.NKV = 1, a.HS = ROW_HS, a.causal = 1, a.scale = 1, a.row = row;
    k->attention_forward(y, lse, &a, DT_BF16, NULL);
    k->download(out, y, bytes, NULL);
}

// A call with the number of the row before does not look at its documents again, where a table keeps what it made.
CLAIM(what_is_made_of_a_rows_documents_is_kept_for_that_row_alone) {
    const Kernels* tables[CPU_ISAS];
    static bf16 x[ROW * ROW_HS], out[5][ROW * ROW_HS];
    char err[ERR_BYTES];
    for (int i = 0; i < COUNT(x); i++) x[i] = bf16_from_float((float)random_normal(3, (uint64_t)i));
    for (int i = 0, n = tested_tables(tables); i < n; i++) {
        const Kernels* k = tables[i];
        KernelLimits limits = {
            .N = ROW, .C = ROW_HS, .OC = ROW_HS, .NH = 1, .NKV = 1, .HS = ROW_HS, .context = ROW, .threads = 1};
        limits.dt = DT_BF16, limits.attention = ATTENTION_OWN;
        CHECK(k->open(&limits, err) == 0);
        char* memory = (char*)k->alloc(2 * sizeof x + (ROW + 4) * sizeof(float));
        k->upload(memory, x, sizeof x, NULL);
        forward_row(out[0], k, memory, 5, 64);
        forward_row(out[1], k, memory, 5, 64);
        forward_row(out[2], k, memory, 6, 130);
        forward_row(out[3], k, memory, 0, 130);
        forward_row(out[4], k, memory, 0, 64);
        CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0 && memcmp(out[0], out[4], sizeof out[0]) == 0);
        CHECK(memcmp(out[2], out[3], sizeof out[0]) == 0 && memcmp(out[0], out[2], sizeof out[0]) != 0);
#ifdef TEST_DEVICE
        forward_row(out[1], k, memory, 7, 130);
        forward_row(out[1], k, memory, 7, 64);  // never so in a run: shows that the list was kept
        CHECK(memcmp(out[1], out[2], sizeof out[0]) == 0);
#endif
        k->free_memory(memory);
        k->close();
    }
}

int main(void) {
    for (int i = 0; i < COUNT(rows); i++)
        if (rows[i].claim) RUN_AS(rows[i].claim, check_rows(i));
    run_claims();
    if (wants_cudnn()) RUN(cudnn_has_computed_cases);
    return test_done();
}
