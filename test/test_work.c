// test_work.c - claims about run/work.h: what a rank computes in a step, and where the gradients of it go. Ranks are
// threads of this process; values are integers, so that everything but a mean must be equal bit for bit.
#define _POSIX_C_SOURCE 200809L
#include "test/flops.h"
#include "test/shapes.h"
#include "test/work_cases.h"

// ---- groups

static void borders(int* border, int n, int ranks, uint64_t seed) {
    border[0] = 0;
    for (int t = 1; t <= ranks; t++) {
        int low = border[t - 1] + 1, high = n - (ranks - t);
        border[t] =
            t == ranks ? n : low + (int)(random_uniform(seed, (uint64_t)t) * MIN(high - low + 1, 2 * n / ranks));
    }
}

// Rank t of an uneven split, or an even one with seed 0.
static void open_rank(Group* g, int t, int most_heads, int most_hidden, int keep_gradients) {
    TestRank* r = &g->rank[t];
    Model* m = &r->m;
    WorkNeeds needs = {most_heads, most_hidden, keep_gradients};
    memset(r, 0, sizeof *r);
    m->k = g->k, m->dt = g->dt, m->whole = g->whole, m->split = g->split;
    m->shape = split_shape(&g->whole, &g->split, t);
    m->tp = g->ranks > 1 ? &g->threads.comms[t] : NULL;
    size_t elems = shape_param_elems(&m->shape), bytes = elems * dtype_bytes(g->dt);
    m->zero.stage = 1;
    m->zero.part[ZERO_WEIGHTS] = g->k->alloc(bytes);
    m->zero.part[ZERO_GRADS] = g->k->alloc(elems * sizeof(float));
    zero_open(m);
    r->grads = (float*)calloc(elems, sizeof(float)), r->before = (float*)calloc(elems, sizeof(float));
    float* host = (float*)calloc(elems, sizeof(float));
    for (int i = 0; i < shape_tensors(&m->shape); i++) {
        ParamTensor part = shape_tensor(&m->shape, i), whole = shape_param(&g->whole, part.id, part.layer);
        float* values = (float*)malloc(whole.elems * sizeof(float));
        for (size_t j = 0; j < whole.elems; j++) values[j] = (float)weight_at(part.id, part.layer, j);
        split_take(host + part.offset, values, &g->whole, &g->split, t, part.id);
        free(values);
    }
    if (g->dt == DT_BF16) bf16_narrow_in_place(host, elems);
    g->k->upload(m->zero.part[ZERO_WEIGHTS], host, bytes, NULL);
    g->k->synchronize(NULL);
    free(host);
    size_t work = work_bytes(m, &needs);
    r->work_memory = g->k->alloc(work);
    void* rubbish = memset(malloc(work), 0x5a, work);
    g->k->upload(r->work_memory, rubbish, work, NULL);
    g->k->synchronize(NULL);
    free(rubbish);
    m->work = work_open(m, &needs, r->work_memory);
}

// With seed 0 an even split, else any.
static void open_group(Group* g, const Kernels* k, DType dt, int ranks, Shape whole, uint64_t seed) {
    char err[ERR_BYTES];
    KernelLimits limits = {.N = 64,
                           .spread = 1,
                           .C = MAX(whole.U, whole.NH * whole.HS),
                           .OC = MAX(2 * whole.U, (whole.NH + 2 * whole.NKV) * whole.HS),
                           .NH = whole.NH,
                           .NKV = whole.NKV,
                           .HS = whole.HS,
                           .context = 8,
                           .threads = 2,
                           .dt = dt};
    g->k = k, g->dt = dt, g->ranks = ranks, g->step = 0;
    g->whole = whole;
    g->split = split_even(&g->whole, ranks);
    if (seed && !split_shares_kv(&whole, &g->split)) {
        borders(g->split.head, whole.NKV, ranks, seed);
        for (int t = 0; t <= ranks; t++) g->split.head[t] *= query_heads(g);
    }
    if (seed) borders(g->split.hidden, whole.U, ranks, seed + 1);
    threads_open(&g->threads, k, ranks);
    if (k->open(&limits, err, sizeof err)) die("%s", err);
}

static void close_group(Group* g) {
    for (int t = 0; t < g->ranks; t++) {
        TestRank* r = &g->rank[t];
        work_close(r->m.work);
        g->k->free_memory(r->work_memory);
        g->k->free_memory(r->m.zero.part[ZERO_WEIGHTS]);
        g->k->free_memory(r->m.zero.part[ZERO_GRADS]);
        zero_close(&r->m.zero);
        free(r->grads), free(r->before);
        for (int l = 0; l < WORK_LAYERS; l++) {
            for (int i = 0; i < N_LINEARS; i++) free(r->kept[l].columns[i].index);
            free(r->kept[l].units[ATTENTION].index), free(r->kept[l].units[MLP].index);
        }
    }
    g->k->close();
}

// ---- a step

// Host copy of n elements of dt.
static float* fetched(const Group* g, const void* device, size_t n) {
    float* host = (float*)calloc(n + 1, sizeof(float));
    if (n) g->k->download(host, device, n * dtype_bytes(g->dt), NULL);
    if (g->dt == DT_BF16) bf16_widen_in_place(host, n);
    return host;
}

static void check_lists(const Group* g, const Linear* linear, const int* kept, int width, ColumnFill fill) {
    CHECK(linear->width == width);
    CHECK(linear->fill == fill || !linear->kept);
    CHECK((linear->kept == NULL) == (linear->K == width) && (linear->source == NULL) == (linear->kept == NULL));
    if (!linear->kept) return;
    int *list = (int*)malloc((size_t)linear->K * sizeof(int)), *source = (int*)malloc((size_t)width * sizeof(int));
    g->k->download(list, linear->kept, (size_t)linear->K * sizeof(int), NULL);
    g->k->download(source, linear->source, (size_t)width * sizeof(int), NULL);
    for (int j = 0, at = 0; j < width; j++) {
        int is_kept = at < linear->K && kept[at] == j;
        CHECK(source[j] == (is_kept ? at : -1));
        if (!is_kept) continue;
        CHECK(list[at] == j);
        at++;
    }
    free(list), free(source);
}

// Row of the column-parallel linear that a rank computes.
static RowOf computed_row(const Group* g, int rank, int kind, const Expected* e, int row) {
    RowOf r = row_of(g, kind, rank, e->n, row);
    r.unit = e->unit[r.unit];
    return r;
}

// The weights of a linear are those of its channels and columns; a micro-batch adds `times` the gradient to the same
// places.
static void check_matrix(Group* g, int rank, LinearId id, int l, const Expected* e, int times) {
    const LinearRow* row = &linear_rows[id];
    Linear linear = work_linear(&g->rank[rank].m, id, l);
    int rows = row->column_parallel ? rows_of_unit(g, row->kind, rank) * e->n : g->whole.C,
        K = row->column_parallel ? e->n_in : e->n_out;
    size_t n = (size_t)rows * (size_t)K;
    CHECK(linear.OC == rows && linear.K == K);
    if (linear.OC != rows || linear.K != K) return;
    ColumnFill fill = g->rank[rank].plan.imputation == IMPUTE_AVERAGE ? FILL_MEAN : FILL_ZERO;
    check_lists(g, &linear, row->column_parallel ? e->in : e->out, row->column_parallel ? g->whole.C : e->n * e->span,
                fill);
    float *w = fetched(g, linear.w, n), *dw = (float*)calloc(n + 1, sizeof(float));
    if (n) g->k->download(dw, linear.dw, n * sizeof(float), NULL);
    for (size_t i = 0; i < n; i++) {
        int out = (int)(i / (size_t)K), in = (int)(i % (size_t)K);
        size_t at = row->column_parallel
                        ? row_element(g, row->kind, computed_row(g, rank, row->kind, e, out), e->in[in])
                        : column_element(g, row->kind, out, column_in_all(g, row->kind, e, e->out[in]));
        CHECK(w[i] == weight_at(row->weights, l, at));
        CHECK(times > 1 || dw[i] == 0);
        dw[i] += (float)(times * gradient_at(g, row->weights, l, at));
    }
    if (n) g->k->upload((void*)linear.dw, dw, n * sizeof(float), NULL);
    g->k->synchronize(NULL);
    free(w), free(dw);
}

static void check_bias(Group* g, int rank, LinearId id, int l, const Expected* e, int times) {
    const LinearRow* row = &linear_rows[id];
    Linear linear = work_linear(&g->rank[rank].m, id, l);
    CHECK((linear.b != NULL) == (has_bias(g, id) && (row->column_parallel || rank == 0)));
    CHECK((linear.db != NULL) == (linear.b != NULL));
    if (!linear.b || linear.OC == 0) return;
    size_t n = (size_t)linear.OC;
    float *b = fetched(g, linear.b, n), *db = (float*)calloc(n, sizeof(float));
    g->k->download(db, linear.db, n * sizeof(float), NULL);
    for (int i = 0; i < (int)n; i++) {
        int at_row = row->column_parallel ? row_in_all(g, row->kind, computed_row(g, rank, row->kind, e, i)) : i;
        size_t at = (size_t)at_row;
        CHECK(b[i] == weight_at(row->bias, l, at));
        CHECK(times > 1 || db[i] == 0);
        db[i] += (float)(times * gradient_at(g, row->bias, l, at));
    }
    g->k->upload(linear.db, db, n * sizeof(float), NULL);
    g->k->synchronize(NULL);
    free(b), free(db);
}

// The lists of a layer in memory that is gone, and other, as soon as work_set has returned.
static IndexList lent(const IndexList* list) {
    IndexList copy = {list->n, list->index ? (int*)malloc((size_t)list->n * sizeof(int) + 1) : NULL};
    if (copy.index) memcpy(copy.index, list->index, (size_t)list->n * sizeof(int));
    return copy;
}
static void spoil(IndexList* list) {
    if (list->index) memset(list->index, 0x55, (size_t)list->n * sizeof(int));
    free(list->index);
}

static void set_work(Group* g, TestRank* r) {
    PrunedLayer kept[WORK_LAYERS];
    WorkPlan plan = r->plan;
    plan.kept = r->leaves_out ? kept : NULL;
    for (int l = 0; l < g->whole.L; l++) {
        for (int i = 0; i < N_LINEARS; i++) kept[l].columns[i] = lent(&r->kept[l].columns[i]);
        kept[l].units[ATTENTION] = lent(&r->kept[l].units[ATTENTION]),
        kept[l].units[MLP] = lent(&r->kept[l].units[MLP]);
    }
    work_set(&r->m, &plan);
    for (int l = 0; l < g->whole.L; l++) {
        for (int i = 0; i < N_LINEARS; i++) spoil(&kept[l].columns[i]);
        spoil(&kept[l].units[ATTENTION]), spoil(&kept[l].units[MLP]);
    }
}

static int is_owned(const Model* m, LinearId id, int l) {
    const LinearRow* row = &linear_rows[id];
    ParamTensor w = shape_param(&m->shape, row->weights, l), b = shape_param(&m->shape, row->bias, l);
    Linear linear = work_linear(m, id, l);
    int adds_bias = b.elems > 0 && (row->column_parallel || !m->tp || m->tp->rank == 0);
    return linear.w == zero_weights(m, &w) && linear.dw == zero_grads(m, &w) && linear.OC == w.rows &&
           linear.K == w.cols && linear.width == w.cols && !linear.kept && !linear.source &&
           linear.b == (adds_bias ? zero_weights(m, &b) : NULL) && linear.db == (adds_bias ? zero_grads(m, &b) : NULL);
}

// What a step saw while it was at work.
static void observe(TestRank* r) {
    work_flops(&r->m, r->flops);
    for (int l = 0; l < r->m.shape.L; l++) {
        r->heads[l] = work_units(&r->m, ATTENTION, l);
        for (int id = 0; id < N_LINEARS; id++) r->in_place[l][id] = is_owned(&r->m, (LinearId)id, l);
    }
}

// A step of one rank: two micro-batches between work_begin and work_end. Then, as for an evaluation, all is what it
// owns.
static void rank_step(int t, void* data) {
    Group* g = (Group*)data;
    TestRank* r = &g->rank[t];
    Model* m = &r->m;
    size_t elems = shape_param_elems(&m->shape);
    set_work(g, r);
    g->k->clear(m->zero.part[ZERO_GRADS], elems * sizeof(float), NULL);
    work_begin(m);
    for (int times = 1; times <= 2; times++)
        for (int l = 0; l < g->whole.L; l++)
            for (int id = 0; id < N_LINEARS; id++) {
                Expected e = expected_of(g, t, l, linear_rows[id].kind);
                CHECK(work_units(m, sublayer_of((LinearId)id), l) == e.n);
                check_matrix(g, t, (LinearId)id, l, &e, times);
                check_bias(g, t, (LinearId)id, l, &e, times);
            }
    observe(r);
    work_end(m);
    for (int l = 0; l < g->whole.L; l++)
        for (int id = 0; id < N_LINEARS; id++) CHECK(is_owned(m, (LinearId)id, l));
    memcpy(r->before, r->grads, elems * sizeof(float));
    g->k->download(r->grads, m->zero.part[ZERO_GRADS], elems * sizeof(float), NULL);
}

// Of a slice: of g query heads and a key and a value head HS rows each, and g HS columns; of a hidden unit its rows and
// a column.
static int slice_rows(const Group* g, int kind) { return kind ? n_runs(g, 1) : (query_heads(g) + 2) * g->whole.HS; }
static int rows_and_columns(const Group* g, int kind) {
    return slice_rows(g, kind) + (kind ? 1 : query_heads(g) * g->whole.HS);
}
// With its biases.
static size_t slice_elems(const Group* g, int kind) {
    int biases = has_bias(g, kind ? LINEAR_FC : LINEAR_QKV) ? slice_rows(g, kind) : 0;
    return (size_t)(rows_and_columns(g, kind) * g->whole.C + biases);
}

// Bytes that a rank's moves take in a step, by the formula: weights out, and gradients of what it took back.
static uint64_t bytes_of_moves(const Group* g, int t) {
    const WorkPlan* plan = &g->rank[t].plan;
    size_t bytes = 0;
    for (int i = 0; i < plan->n_moves && plan->active; i++) {
        size_t elems = slice_elems(g, 1) * (size_t)plan->moves[i].hidden;
        if (plan->moves[i].heads > 0) elems += slice_elems(g, 0) * (size_t)plan->moves[i].heads;
        if (plan->moves[i].from == t) bytes += elems * dtype_bytes(g->dt);
        if (plan->moves[i].to == t) bytes += elems * sizeof(float);
    }
    return bytes * (uint64_t)g->whole.L;
}

// Means of integers below 2^24 are rounded when they are divided, here to double and then to fp32: half an ulp of fp32,
// 2^-24 of the value, on either side.
static void check_gradients(const Group* g, int t) {
    const TestRank* r = &g->rank[t];
    size_t elems = shape_param_elems(&r->m.shape);
    float* want = (float*)malloc(elems * sizeof(float));
    expect_gradients(g, t, want);
    for (size_t i = 0; i < elems; i++)
        CHECK_CLOSE(r->grads[i], want[i], r->plan.imputation == IMPUTE_AVERAGE ? ldexp(fabs(want[i]), -23) : 0);
    free(want);
}

// All ranks go through a step with the plans that they have.
static void run_step(Group* g) {
    uint64_t sent[MOST_THREADS];
    g->step++;
    for (int t = 0; t < g->ranks; t++) sent[t] = g->threads.comms[t].sent[COMM_SLICES][0];
    CHECK(threads_run(&g->threads, g->ranks, rank_step, g) == 0);
    for (int t = 0; t < g->ranks; t++) {
        const Comm* c = &g->threads.comms[t];
        CHECK(c->sent[COMM_SLICES][0] - sent[t] == bytes_of_moves(g, t));
        CHECK(c->purpose == COMM_OTHER && c->sent[COMM_OTHER][0] == 0);
        check_gradients(g, t);
    }
}

// ---- plans

static void choose(IndexList* list, int n, int of, uint64_t seed) {
    free(list->index);
    *list = (IndexList){n, (int*)malloc((size_t)of * sizeof(int) + 1)};
    for (int j = 0, at = 0, left = n; j < of; j++)
        if (random_uniform(seed, (uint64_t)j) * (of - j) < left) list->index[at++] = j, left--;
}

// All slices from `rank`'s `heads` and `hidden` last ones on go to the ranks in `to`, in nearly equal parts.
static void give(WorkPlan* plan, const Group* g, int rank, int heads, int hidden, const int* to, int n_to) {
    int head = own_units_of(g, 0, rank) - heads, first_hidden = own_units_of(g, 1, rank) - hidden;
    for (int i = 0; i < n_to; i++) {
        int h = heads * (i + 1) / n_to - heads * i / n_to, u = hidden * (i + 1) / n_to - hidden * i / n_to;
        if (h + u > 0) plan->moves[plan->n_moves++] = (Move){rank, to[i], head, h, first_hidden, u};
        head += h, first_hidden += u;
    }
}

static int given_by(const Group* g, int t, int kind) {
    const WorkPlan* plan = &g->rank[t].plan;
    int n = 0;
    for (int i = 0; i < plan->n_moves; i++)
        if (plan->moves[i].from == t) n += kind ? plan->moves[i].hidden : plan->moves[i].heads;
    return n;
}

// Lists of rank t: of each a fraction `part`, but at least one column and one hidden unit; part < 0: any, another in
// each.
static void leave_out(Group* g, int t, double part, uint64_t seed) {
    TestRank* r = &g->rank[t];
    r->leaves_out = 1;
    for (int l = 0; l < g->whole.L; l++)
        for (int kind = 0; kind < 2; kind++) {
            int stay = own_units_of(g, kind, t) - given_by(g, t, kind), of[3];
            IndexList* lists[] = {&r->kept[l].columns[2 * kind], &r->kept[l].columns[2 * kind + 1],
                                  kind ? &r->kept[l].units[MLP] : &r->kept[l].units[ATTENTION]};
            of[0] = g->whole.C, of[1] = stay * span_of(g, kind, t), of[2] = stay;
            for (int i = 0; i < 3; i++) {
                uint64_t key = hash64(seed + (uint64_t)(l * 6 + kind * 3 + i));
                double p = part < 0 ? random_uniform(key, 1) * 1.3 : part;
                int least = i == 2 && kind == 0 ? 0 : 1;
                choose(lists[i], MIN(of[i], MAX(least, (int)(p * of[i]))), of[i], key);
            }
        }
}

static void same_moves(Group* g, const WorkPlan* plan) {
    for (int t = 0; t < g->ranks; t++) g->rank[t].plan = *plan, g->rank[t].leaves_out = 0;
}

// Some ranks give to some others, which take from several; some leave columns or slices out, those that take too.
static void random_plan(Group* g, uint64_t seed) {
    WorkPlan plan = {.active = random_uniform(seed, 0) < 0.85, .shed = (Shed)(random_uniform(seed, 1) < 0.5)};
    plan.imputation = (Imputation)(int)(3 * random_uniform(seed, 2));
    int givers = (int)(random_uniform(seed, 3) * MIN(3, g->ranks));
    for (int t = 0; t < givers; t++) {
        int n_to = 1 + (int)(random_uniform(seed, 10 + (uint64_t)t) * MIN(3, g->ranks - givers)), to[3];
        int first = (int)(random_uniform(seed, 20 + (uint64_t)t) * (g->ranks - givers - n_to + 1));
        for (int i = 0; i < n_to; i++) to[i] = givers + first + i;
        int heads = split_shares_kv(&g->whole, &g->split) ? 0 : own_units_of(g, 0, t) + 1;
        give(&plan, g, t, (int)(random_uniform(seed, 30 + (uint64_t)t) * heads),
             (int)(random_uniform(seed, 40 + (uint64_t)t) * own_units_of(g, 1, t)), to, n_to);
    }
    same_moves(g, &plan);
    for (int t = 0; t < g->ranks; t++)
        if (plan.shed == SHED_COLUMNS ? own_units_of(g, 0, t) > given_by(g, t, 0) : 1)
            if (random_uniform(seed, 50 + (uint64_t)t) < 0.6) leave_out(g, t, -1, seed + 100 * (uint64_t)t);
}

// ---- claims

static Group group;  // large

static const Kernels* one_table(void) {
    const Kernels* tables[CPU_ISAS];
    return tested_tables(tables) > 0 ? tables[0] : NULL;
}

static void open_whole(const Kernels* k, DType dt, int ranks, Shape whole, uint64_t seed) {
    open_group(&group, k, dt, ranks, whole, seed);
    for (int t = 0; t < ranks; t++) open_rank(&group, t, whole.NKV, whole.U, 1);
}

// A model of `arch` with so many key/value heads, each of HS channels, 4 HS hidden units for each and as many channels
// as these heads together. Claims go through all architectures.
static Shape model(int arch, int heads, int HS, int L) { return shape_like((Arch)arch, L, heads * HS, heads, 64, 8); }

static void open_all(int arch, DType dt, int ranks, int heads, int HS, int L, uint64_t seed) {
    open_whole(one_table(), dt, ranks, model(arch, heads, HS, L), seed);
}

// Weights of a token's linears in a layer.
static double layer_weights(void) {
    const Shape* s = &group.whole;
    return (double)s->NKV * rows_and_columns(&group, 0) * s->C + (double)s->U * rows_and_columns(&group, 1) * s->C;
}

static void check_inactive(Model m, int without) {
    if (without == 1) work_set(&m, &(WorkPlan){.active = 0, .n_moves = 1, .moves = {{0, 1, 0, 1, 0, 1}}});
    if (without >= 1) work_begin(&m), work_end(&m);
    if (without == 2) m.work = NULL, m.tp = NULL;
    for (int l = 0; l < 2; l++) {
        CHECK(work_units(&m, ATTENTION, l) == m.shape.kv_heads && work_units(&m, MLP, l) == m.shape.hidden);
        for (int id = 0; id < N_LINEARS; id++) CHECK(is_owned(&m, (LinearId)id, l));
    }
    CHECK(!work_freezes(&m));
}

static void inactive_work_is_what_is_owned(void) {
    for (int arch = 0; arch < N_ARCHS; arch++) {
        open_all(arch, DT_F32, 3, 5, 4, 2, 0);
        for (int without = 0; without < 3; without++)
            for (int t = 0; t < group.ranks; t++) {
                check_inactive(group.rank[t].m, without);
                CHECK(group.threads.comms[t].sent[COMM_SLICES][0] == 0);
            }
        close_group(&group);
    }
}

// Ranks 0 and 2 give to 1, 3 and 4: heads, hidden units, or both.
static WorkPlan several_moves(void) {
    WorkPlan plan = {.active = 1};
    give(&plan, &group, 0, 2, 13, (const int[]){1, 3, 4}, 3);
    give(&plan, &group, 2, 1, 5, (const int[]){3, 4}, 2);
    return plan;
}

static void check_computed_once(int l) {
    static int seen[2][MOST_CHANNELS];
    int units[2] = {0, 0}, n[2] = {group.whole.NKV, group.whole.U};
    memset(seen, 0, sizeof seen);
    for (int t = 0; t < group.ranks; t++)
        for (int kind = 0; kind < 2; kind++) {
            Expected e = expected_of(&group, t, l, kind);
            units[kind] += work_units(&group.rank[t].m, (SublayerId)kind, l);
            for (int j = 0; j < e.n; j++) seen[kind][e.unit[j]]++;
        }
    for (int kind = 0; kind < 2; kind++) {
        CHECK(units[kind] == n[kind]);
        for (int j = 0; j < n[kind]; j++) CHECK(seen[kind][j * (kind ? 1 : query_heads(&group))] == 1);
    }
}

static void moved_slices_are_computed_once_and_their_gradients_come_home(void) {
    static const int head[] = {0, 3, 4, 6, 9, 11}, hidden[] = {0, 40, 41, 90, 130, 176};
    for (int i = 0; i < 2 * N_ARCHS; i++) {
        open_group(&group, one_table(), i % 2 ? DT_BF16 : DT_F32, 5, model(i / 2, 11, 4, 2), 0);
        for (int t = 0; t <= 5; t++) {
            group.split.head[t] = head[t] * query_heads(&group);
            group.split.hidden[t] = hidden[t];
        }
        for (int t = 0; t < 5; t++) open_rank(&group, t, 11, 176, 0);
        WorkPlan plan = several_moves();
        same_moves(&group, &plan);
        run_step(&group);
        for (int l = 0; l < 2; l++) check_computed_once(l);
        for (int t = 0; t < 5; t++) CHECK(!work_freezes(&group.rank[t].m));
        close_group(&group);
    }
}

// With C = 44, HS = 4. Of a hidden unit 2 C weights and a bias, with SwiGLU 3 C. Of a key/value head with g query heads
// (2 g + 2) C HS weights, and where queries, keys and values have biases (g + 2) HS of them.
static void a_step_sends_each_moved_slice_once_and_its_gradient_once(void) {
    static const unsigned hidden[] = {89, 132, 132, 132}, head[] = {716, 1056, 1428, 1760};  // g = 1, 2, 3, 4
    for (int i = 0; i < 2 * N_ARCHS; i++) {
        unsigned w = i % 2 ? 2 : 4;
        uint64_t sent = 0;
        open_all(i / 2, i % 2 ? DT_BF16 : DT_F32, 2, 11, 4, 3, 0);
        WorkPlan plan = {.active = 1};
        give(&plan, &group, 1, 2, 7, (const int[]){0}, 1);
        same_moves(&group, &plan);
        run_step(&group);
        for (int t = 0; t < 2; t++) sent += group.threads.comms[t].sent[COMM_SLICES][0];
        CHECK(unit_elems(&group.whole, MLP) == hidden[i / 2] && unit_elems(&group.whole, ATTENTION) == head[i / 2]);
        CHECK(sent == 3u * (7 * hidden[i / 2] + 2 * head[i / 2]) * (w + 4));
        close_group(&group);
    }
}

static void what_is_left_out_is_imputed(void) {
    for (int i = 0; i < 6 * N_ARCHS; i++) {
        Shed shed = (Shed)(i % 2);
        open_all(i / 6, shed ? DT_BF16 : DT_F32, 2, 6, 4, 3, 3);
        WorkPlan plan = {.active = 1, .shed = shed, .imputation = (Imputation)(i / 2 % 3)};
        for (uint64_t step = 1; step <= 3; step++) {
            same_moves(&group, &plan);
            leave_out(&group, 1, 0.6, step);
            run_step(&group);
        }
        close_group(&group);
    }
}

static void a_rank_may_give_slices_and_leave_out_of_the_rest(void) {
    for (int i = 0; i < 2 * N_ARCHS; i++) {
        open_all(i / 2, DT_F32, 3, 9, 4, 2, 0);
        WorkPlan plan = {.active = 1, .shed = (Shed)(i % 2), .imputation = IMPUTE_AVERAGE};
        give(&plan, &group, 0, 1, 11, (const int[]){1, 2}, 2);
        same_moves(&group, &plan);
        leave_out(&group, 0, 0.5, 4);
        run_step(&group);
        CHECK(work_freezes(&group.rank[0].m) && !work_freezes(&group.rank[1].m));
        close_group(&group);
    }
}

static void a_rank_alone_may_leave_out(void) {
    for (int arch = 0; arch < N_ARCHS; arch++) {
        open_all(arch, DT_F32, 1, 4, 4, 1, 0);
        WorkPlan plan = {.active = 1, .shed = SHED_COLUMNS};
        same_moves(&group, &plan);
        leave_out(&group, 0, 0.25, 1);
        run_step(&group);
        close_group(&group);
    }
}

static void a_rank_may_leave_out_all_heads(void) {
    for (int i = 0; i < 3 * N_ARCHS; i++) {
        open_all(i / 3, DT_F32, 2, 4, 4, 2, 0);
        WorkPlan plan = {.active = 1, .shed = SHED_SLICES, .imputation = (Imputation)(i % 3)};
        same_moves(&group, &plan);
        leave_out(&group, 1, 0.5, 1);
        for (int l = 0; l < 2; l++) group.rank[1].kept[l].units[ATTENTION].n = 0;
        run_step(&group);
        for (int l = 0; l < 2; l++) CHECK(group.rank[1].heads[l] == 0);
        close_group(&group);
    }
}

// Three ranks of four query heads with one key/value head: the last has two of them. Its heads stay, hidden units move,
// and columns or slices of both are left out.
static void ranks_that_share_a_key_value_head_give_hidden_units_and_leave_out(void) {
    for (int i = 0; i < 6; i++) {
        Shape whole = model(ARCH_QWEN2, 1, 4, 2);
        whole.NH = 4;
        open_whole(one_table(), i % 2 ? DT_BF16 : DT_F32, 3, shape_whole(whole), 0);
        CHECK(group.rank[0].m.shape.heads == 1 && group.rank[2].m.shape.heads == 2);
        WorkPlan plan = {.active = 1, .shed = (Shed)(i % 2), .imputation = (Imputation)(i % 3)};
        give(&plan, &group, 0, 0, 3, (const int[]){1, 2}, 2);
        same_moves(&group, &plan);
        leave_out(&group, 0, 0.5, 4);
        leave_out(&group, 2, 0.5, 5);
        run_step(&group);
        close_group(&group);
    }
}

static void what_a_plan_does_not_touch_is_used_in_place(void) {
    for (int arch = 0; arch < N_ARCHS; arch++) {
        open_all(arch, DT_F32, 2, 4, 4, 2, 0);
        WorkPlan plan = {.active = 1, .shed = SHED_SLICES};
        same_moves(&group, &plan);
        leave_out(&group, 1, 1, 1);
        choose(&group.rank[1].kept[1].units[MLP], 16, group.rank[1].m.shape.hidden, 5);
        run_step(&group);
        for (int t = 0; t < 2; t++)
            for (int l = 0; l < 2; l++)
                for (int id = 0; id < N_LINEARS; id++)
                    CHECK(group.rank[t].in_place[l][id] == !(t == 1 && l == 1 && linear_rows[id].kind == 1));
        CHECK(work_freezes(&group.rank[1].m) && !work_freezes(&group.rank[0].m));
        close_group(&group);
    }
}

// Of each GEMM a rank that keeps a fraction 1 - g of columns, or of slices, does 1 - g; the others all. A rank has half
// of two layers.
static void each_gemm_costs_what_is_kept(void) {
    for (int arch = 0; arch < N_ARCHS; arch++) {
        open_all(arch, DT_F32, 2, 8, 4, 2, 0);
        for (int i = 0; i < 8; i++) {
            double part = (1 + i / 2) / 4.0;
            WorkPlan plan = {.active = 1, .shed = (Shed)(i % 2)};
            same_moves(&group, &plan);
            leave_out(&group, 1, part, 9);
            run_step(&group);
            for (int t = 0; t < 2; t++)
                for (int gemm = 0; gemm < 3; gemm++)
                    CHECK(group.rank[t].flops[gemm] == 2 * layer_weights() * (t == 1 ? part : 1));
        }
        close_group(&group);
    }
}

static void moved_flops_go_where_the_slices_go(void) {
    for (int arch = 0; arch < N_ARCHS; arch++) {
        open_all(arch, DT_F32, 2, 8, 4, 2, 0);
        WorkPlan plan = {.active = 1};
        give(&plan, &group, 0, 1, 10, (const int[]){1}, 1);
        same_moves(&group, &plan);
        run_step(&group);
        double C = group.whole.C, share = 2 * layer_weights(),
               slices = 2 * 2 * C * (rows_and_columns(&group, 0) + 10 * rows_and_columns(&group, 1));
        for (int gemm = 0; gemm < 3; gemm++)
            CHECK(group.rank[0].flops[gemm] == share - slices && group.rank[1].flops[gemm] == share + slices);
        close_group(&group);
    }
}

// Needs that are met to the last slice, with memory that begins and ends there.
static void check_memory(int arch) {
    enum { GUARD = 64 };
    unsigned char guard[GUARD], found[GUARD];
    memset(guard, 0xa5, GUARD);
    open_group(&group, one_table(), DT_BF16, 3, model(arch, 7, 5, 2), 11);
    int heads = own_units_of(&group, 0, 0), hidden = own_units_of(&group, 1, 0);
    WorkNeeds needs[3];
    for (int t = 0; t < 3; t++) {
        Model* m = &group.rank[t].m;
        needs[t] = (WorkNeeds){own_units_of(&group, 0, t) + (t == 2) * heads,
                               own_units_of(&group, 1, t) + (t == 2) * (hidden - 1), 1};
        open_rank(&group, t, needs[t].most_heads, needs[t].most_hidden, 1);
        size_t bytes = work_bytes(m, &needs[t]);
        work_close(m->work);
        group.k->free_memory(group.rank[t].work_memory);
        group.rank[t].work_memory = group.k->alloc(bytes + GUARD);
        group.k->upload((char*)group.rank[t].work_memory + bytes, guard, GUARD, NULL);
        m->work = work_open(m, &needs[t], group.rank[t].work_memory);
    }
    WorkPlan plan = {.active = 1, .imputation = IMPUTE_SAME};
    give(&plan, &group, 0, heads, hidden - 1, (const int[]){2}, 1);
    same_moves(&group, &plan);
    leave_out(&group, 1, 0.9, 2);
    for (int step = 0; step < 2; step++) run_step(&group);
    for (int t = 0; t < 3; t++) {
        size_t bytes = work_bytes(&group.rank[t].m, &needs[t]);
        group.k->download(found, (char*)group.rank[t].work_memory + bytes, GUARD, NULL);
        CHECK(memcmp(found, guard, GUARD) == 0);
    }
    close_group(&group);
}

static void work_stays_within_its_memory(void) {
    for (int arch = 0; arch < N_ARCHS; arch++) check_memory(arch);
}

// In a quarter of the models that have fewer key/value heads than heads, these are also fewer than ranks; some have
// biases that no architecture has.
static Shape random_model(uint64_t seed, int ranks) {
    int arch = (int)(seed % N_ARCHS), heads = ranks + (int)(random_uniform(seed, 91) * ranks),
        HS = 2 + (int)(random_uniform(seed, 92) * 4), L = 1 + (int)(random_uniform(seed, 93) * WORK_LAYERS);
    if (arch > ARCH_GPT2 && random_uniform(seed, 95) < 0.25) heads = CEIL_DIV(ranks, 1 + arch);
    Shape whole = model(arch, heads, HS, L);
    if (arch > ARCH_GPT2) {
        whole.C += (int)(random_uniform(seed, 96) * 20);
        if (random_uniform(seed, 97) < 0.3) whole.features |= HAS_LINEAR_BIAS;
    }
    return whole;
}

static void every_random_plan_computes_and_returns_what_it_should(void) {
    const Kernels* tables[CPU_ISAS];
    int n = tested_tables(tables), sharing = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        int failures = test_failures_in_claim, ranks = 2 + (int)(random_uniform(seed, 90) * 5);
        DType dt = random_uniform(seed, 94) < 0.5 ? DT_F32 : DT_BF16;
        open_whole(tables[seed % (uint64_t)n], dt, ranks, random_model(seed, ranks), seed);
        sharing += split_shares_kv(&group.whole, &group.split);
        for (uint64_t step = 0; step < 4; step++) {
            random_plan(&group, seed * 1000 + step);
            run_step(&group);
        }
        close_group(&group);
        if (test_failures_in_claim > failures) printf("    seed %d\n", (int)seed);
    }
    CHECK(sharing >= 5);
}

int main(void) {
    RUN(inactive_work_is_what_is_owned);
    RUN(moved_slices_are_computed_once_and_their_gradients_come_home);
    RUN(a_step_sends_each_moved_slice_once_and_its_gradient_once);
    RUN(what_is_left_out_is_imputed);
    RUN(a_rank_may_give_slices_and_leave_out_of_the_rest);
    RUN(a_rank_alone_may_leave_out);
    RUN(a_rank_may_leave_out_all_heads);
    RUN(ranks_that_share_a_key_value_head_give_hidden_units_and_leave_out);
    RUN(what_a_plan_does_not_touch_is_used_in_place);
    RUN(each_gemm_costs_what_is_kept);
    RUN(moved_flops_go_where_the_slices_go);
    RUN(work_stays_within_its_memory);
    RUN(every_random_plan_computes_and_returns_what_it_should);
    return test_done();
}
