// test_work.c - claims about run/work.h: what a rank computes in a step, and where the gradients of it go. Ranks are
// threads of this process; values are integers, so that everything but a mean must be equal bit for bit.
#define _POSIX_C_SOURCE 200809L
#include "test/flops.h"
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

static void open_group(Group* g, const Kernels* k, DType dt, int ranks, int NH, int HS, int L, uint64_t seed) {
    char err[ERR_BYTES];
    KernelLimits limits = {.N = 64,
                           .spread = 1,
                           .C = 4 * NH * HS,
                           .OC = 4 * NH * HS,
                           .NH = NH,
                           .NKV = NH,
                           .HS = HS,
                           .context = 8,
                           .threads = 2,
                           .dt = dt};
    g->k = k, g->dt = dt, g->ranks = ranks, g->step = 0;
    g->whole = shape_make(L, NH * HS, NH, 64, 8);
    g->split = split_even(&g->whole, ranks);
    if (seed) {
        borders(g->split.head, NH, ranks, seed);
        borders(g->split.hidden, 4 * NH * HS, ranks, seed + 1);
    }
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
        for (int l = 0; l < MOST_LAYERS; l++) {
            for (int i = 0; i < N_LINEARS; i++) free(r->kept[l].columns[i].index);
            free(r->kept[l].units[ATTENTION].index), free(r->kept[l].units[MLP].index);
        }
    }
    g->k->close();
}

// ---- a step

static int own_channels(const Group* g, int kind, int t) { return border(g, kind, t + 1) - border(g, kind, t); }

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

// The weights of a linear are those of its channels and columns; a micro-batch adds `times` the gradient to the same
// places.
static void check_matrix(Group* g, int rank, LinearId id, int l, const Expected* e, int times) {
    const LinearRow* row = &linear_rows[id];
    Linear linear = work_linear(&g->rank[rank].m, id, l);
    int rows = row->column_parallel ? row->runs * e->n : g->whole.C, K = row->column_parallel ? e->n_in : e->n_out;
    size_t n = (size_t)rows * (size_t)K;
    CHECK(linear.OC == rows && linear.K == K);
    if (linear.OC != rows || linear.K != K) return;
    ColumnFill fill = g->rank[rank].plan.imputation == IMPUTE_AVERAGE ? FILL_MEAN : FILL_ZERO;
    check_lists(g, &linear, row->column_parallel ? e->in : e->out, row->column_parallel ? g->whole.C : e->n, fill);
    float *w = fetched(g, linear.w, n), *dw = (float*)calloc(n + 1, sizeof(float));
    if (n) g->k->download(dw, linear.dw, n * sizeof(float), NULL);
    for (size_t i = 0; i < n; i++) {
        int out = (int)(i / (size_t)K), in = (int)(i % (size_t)K);
        size_t at = row->column_parallel ? weight_place(g, id, out / e->n, e->channel[out % e->n], e->in[in])
                                         : weight_place(g, id, 0, e->channel[e->out[in]], out);
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
    CHECK((linear.b != NULL) == (row->column_parallel || rank == 0) && (linear.db != NULL) == (linear.b != NULL));
    if (!linear.b || linear.OC == 0) return;
    size_t n = (size_t)linear.OC;
    float *b = fetched(g, linear.b, n), *db = (float*)calloc(n, sizeof(float));
    g->k->download(db, linear.db, n * sizeof(float), NULL);
    for (int i = 0; i < (int)n; i++) {
        size_t at = row->column_parallel
                        ? (size_t)(i / e->n) * (size_t)channels_in_all(g, row->kind) + (size_t)e->channel[i % e->n]
                        : (size_t)i;
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
    PrunedLayer kept[MOST_LAYERS];
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
    int adds_bias = row->column_parallel || !m->tp || m->tp->rank == 0;
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
                CHECK(linear_rows[id].kind ? work_units(m, MLP, l) == e.n
                                           : work_units(m, ATTENTION, l) * g->whole.HS == e.n);
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

// Bytes that a rank's moves take in a step, by the formula: weights out, and gradients of what it took back.
static uint64_t bytes_of_moves(const Group* g, int t) {
    const WorkPlan* plan = &g->rank[t].plan;
    size_t C = (size_t)g->whole.C, HS = (size_t)g->whole.HS, bytes = 0;
    for (int i = 0; i < plan->n_moves && plan->active; i++) {
        size_t elems = (2 * C + 1) * (size_t)plan->moves[i].hidden + (4 * C + 3) * HS * (size_t)plan->moves[i].heads;
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
    int head = g->split.head[rank + 1] - g->split.head[rank] - heads,
        first_hidden = g->split.hidden[rank + 1] - g->split.hidden[rank] - hidden;
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
        if (plan->moves[i].from == t) n += kind ? plan->moves[i].hidden : plan->moves[i].heads * span_of(g, 0);
    return n;
}

// Lists of rank t: of each a fraction `part`, but at least one column and one hidden unit; part < 0: any, another in
// each.
static void leave_out(Group* g, int t, double part, uint64_t seed) {
    TestRank* r = &g->rank[t];
    r->leaves_out = 1;
    for (int l = 0; l < g->whole.L; l++)
        for (int kind = 0; kind < 2; kind++) {
            int stay = own_channels(g, kind, t) - given_by(g, t, kind), span = span_of(g, kind), of[3];
            IndexList* lists[] = {&r->kept[l].columns[2 * kind], &r->kept[l].columns[2 * kind + 1],
                                  kind ? &r->kept[l].units[MLP] : &r->kept[l].units[ATTENTION]};
            of[0] = g->whole.C, of[1] = stay, of[2] = stay / span;
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
        int heads = g->split.head[t + 1] - g->split.head[t], hidden = g->split.hidden[t + 1] - g->split.hidden[t];
        give(&plan, g, t, (int)(random_uniform(seed, 30 + (uint64_t)t) * (heads + 1)),
             (int)(random_uniform(seed, 40 + (uint64_t)t) * hidden), to, n_to);
    }
    same_moves(g, &plan);
    for (int t = 0; t < g->ranks; t++)
        if (plan.shed == SHED_COLUMNS ? own_channels(g, 0, t) > given_by(g, t, 0) : 1)
            if (random_uniform(seed, 50 + (uint64_t)t) < 0.6) leave_out(g, t, -1, seed + 100 * (uint64_t)t);
}

// ---- claims

static Group group;  // large

static const Kernels* one_table(void) {
    const Kernels* tables[CPU_ISAS];
    return tested_tables(tables) > 0 ? tables[0] : NULL;
}

static void open_all(const Kernels* k, DType dt, int ranks, int NH, int HS, int L, uint64_t seed) {
    open_group(&group, k, dt, ranks, NH, HS, L, seed);
    for (int t = 0; t < ranks; t++) open_rank(&group, t, NH, 4 * NH * HS, 1);
}

static void inactive_work_is_what_is_owned(void) {
    open_all(one_table(), DT_F32, 3, 5, 4, 2, 0);
    for (int without = 0; without < 3; without++)
        for (int t = 0; t < group.ranks; t++) {
            Model m = group.rank[t].m;
            if (without == 1) work_set(&m, &(WorkPlan){.active = 0, .n_moves = 1, .moves = {{0, 1, 0, 1, 0, 1}}});
            if (without >= 1) work_begin(&m), work_end(&m);
            if (without == 2) m.work = NULL, m.tp = NULL;
            for (int l = 0; l < 2; l++) {
                CHECK(work_units(&m, ATTENTION, l) == m.shape.heads && work_units(&m, MLP, l) == m.shape.hidden);
                for (int id = 0; id < N_LINEARS; id++) CHECK(is_owned(&m, (LinearId)id, l));
            }
            CHECK(!work_freezes(&m));
            CHECK(group.threads.comms[t].sent[COMM_SLICES][0] == 0);
        }
    close_group(&group);
}

// Ranks 0 and 2 give to 1, 3 and 4: heads, hidden units, or both.
static WorkPlan several_moves(void) {
    WorkPlan plan = {.active = 1};
    give(&plan, &group, 0, 2, 13, (const int[]){1, 3, 4}, 3);
    give(&plan, &group, 2, 1, 5, (const int[]){3, 4}, 2);
    return plan;
}

static void moved_slices_are_computed_once_and_their_gradients_come_home(void) {
    for (int dt = DT_F32; dt <= DT_BF16; dt++) {
        open_group(&group, one_table(), (DType)dt, 5, 11, 4, 2, 0);
        memcpy(group.split.head, (int[]){0, 3, 4, 6, 9, 11}, 6 * sizeof(int));
        memcpy(group.split.hidden, (int[]){0, 40, 41, 90, 130, 176}, 6 * sizeof(int));
        for (int t = 0; t < 5; t++) open_rank(&group, t, 11, 176, 0);
        WorkPlan plan = several_moves();
        same_moves(&group, &plan);
        run_step(&group);
        for (int l = 0; l < 2; l++) {
            int heads = 0, hidden = 0;
            for (int t = 0; t < 5; t++)
                heads += work_units(&group.rank[t].m, ATTENTION, l), hidden += work_units(&group.rank[t].m, MLP, l);
            CHECK(heads == 11 && hidden == 176);
            static int seen[2][MOST_CHANNELS];
            memset(seen, 0, sizeof seen);
            for (int t = 0; t < 5; t++)
                for (int kind = 0; kind < 2; kind++) {
                    Expected e = expected_of(&group, t, l, kind);
                    for (int j = 0; j < e.n; j++) seen[kind][e.channel[j]]++;
                }
            for (int kind = 0; kind < 2; kind++)
                for (int j = 0; j < (kind ? 176 : 44); j++) CHECK(seen[kind][j] == 1);
        }
        for (int t = 0; t < 5; t++) CHECK(!work_freezes(&group.rank[t].m));
        close_group(&group);
    }
}

// With C = 44, HS = 4: of a hidden unit 2 C weights and a bias, of a head 4 C HS and 3 HS.
static void a_step_sends_each_moved_slice_once_and_its_gradient_once(void) {
    for (int dt = DT_F32; dt <= DT_BF16; dt++) {
        int w = dt == DT_F32 ? 4 : 2;
        uint64_t sent = 0;
        open_all(one_table(), (DType)dt, 2, 11, 4, 3, 0);
        WorkPlan plan = {.active = 1};
        give(&plan, &group, 1, 2, 7, (const int[]){0}, 1);
        same_moves(&group, &plan);
        run_step(&group);
        for (int t = 0; t < 2; t++) sent += group.threads.comms[t].sent[COMM_SLICES][0];
        CHECK(sent == 3u * (unsigned)(7 * (2 * 44 + 1) + 2 * (4 * 44 * 4 + 3 * 4)) * (unsigned)(w + 4));
        close_group(&group);
    }
}

static void what_is_left_out_is_imputed(void) {
    for (int imputation = IMPUTE_ZERO; imputation <= IMPUTE_SAME; imputation++)
        for (int shed = SHED_COLUMNS; shed <= SHED_SLICES; shed++) {
            open_all(one_table(), shed ? DT_BF16 : DT_F32, 2, 6, 4, 3, 3);
            WorkPlan plan = {.active = 1, .shed = (Shed)shed, .imputation = (Imputation)imputation};
            for (uint64_t step = 1; step <= 3; step++) {
                same_moves(&group, &plan);
                leave_out(&group, 1, 0.6, step);
                run_step(&group);
            }
            close_group(&group);
        }
}

static void a_rank_may_give_slices_and_leave_out_of_the_rest(void) {
    for (int shed = SHED_COLUMNS; shed <= SHED_SLICES; shed++) {
        open_all(one_table(), DT_F32, 3, 9, 4, 2, 0);
        WorkPlan plan = {.active = 1, .shed = (Shed)shed, .imputation = IMPUTE_AVERAGE};
        give(&plan, &group, 0, 1, 11, (const int[]){1, 2}, 2);
        same_moves(&group, &plan);
        leave_out(&group, 0, 0.5, 4);
        run_step(&group);
        CHECK(work_freezes(&group.rank[0].m) && !work_freezes(&group.rank[1].m));
        close_group(&group);
    }
}

static void a_rank_alone_may_leave_out(void) {
    open_all(one_table(), DT_F32, 1, 4, 4, 1, 0);
    WorkPlan plan = {.active = 1, .shed = SHED_COLUMNS};
    same_moves(&group, &plan);
    leave_out(&group, 0, 0.25, 1);
    run_step(&group);
    close_group(&group);
}

static void a_rank_may_leave_out_all_heads(void) {
    open_all(one_table(), DT_F32, 2, 4, 4, 2, 0);
    for (int imputation = IMPUTE_ZERO; imputation <= IMPUTE_SAME; imputation++) {
        WorkPlan plan = {.active = 1, .shed = SHED_SLICES, .imputation = (Imputation)imputation};
        same_moves(&group, &plan);
        leave_out(&group, 1, 0.5, 1);
        for (int l = 0; l < 2; l++) group.rank[1].kept[l].units[ATTENTION].n = 0;
        run_step(&group);
        for (int l = 0; l < 2; l++) CHECK(group.rank[1].heads[l] == 0);
    }
    close_group(&group);
}

static void what_a_plan_does_not_touch_is_used_in_place(void) {
    open_all(one_table(), DT_F32, 2, 4, 4, 2, 0);
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

// Of each GEMM a rank that keeps a fraction 1 - g of columns, or of slices, does 1 - g; the others all.
static void each_gemm_costs_what_is_kept(void) {
    open_all(one_table(), DT_F32, 2, 8, 4, 2, 0);
    for (int shed = SHED_COLUMNS; shed <= SHED_SLICES; shed++)
        for (int quarters = 1; quarters <= 4; quarters++) {
            WorkPlan plan = {.active = 1, .shed = (Shed)shed};
            same_moves(&group, &plan);
            leave_out(&group, 1, quarters / 4.0, 9);
            run_step(&group);
            for (int t = 0; t < 2; t++) {
                double C = 32, share = 12 * C * C / 2 * 2 * 2;  // 12 C^2 weights a layer, half of them here
                for (int gemm = 0; gemm < 3; gemm++)
                    CHECK(group.rank[t].flops[gemm] == share * (t == 1 ? quarters / 4.0 : 1));
            }
        }
    close_group(&group);
}

static void moved_flops_go_where_the_slices_go(void) {
    open_all(one_table(), DT_F32, 2, 8, 4, 2, 0);
    WorkPlan plan = {.active = 1};
    give(&plan, &group, 0, 1, 10, (const int[]){1}, 1);
    same_moves(&group, &plan);
    run_step(&group);
    double C = 32, HS = 4, slices = 2 * (10 * 2 * C + 4 * C * HS) * 2, share = 12 * C * C / 2 * 2 * 2;
    for (int gemm = 0; gemm < 3; gemm++)
        CHECK(group.rank[0].flops[gemm] == share - slices && group.rank[1].flops[gemm] == share + slices);
    close_group(&group);
}

// Needs that are met to the last slice, with memory that begins and ends there.
static void work_stays_within_its_memory(void) {
    enum { GUARD = 64 };
    unsigned char guard[GUARD], found[GUARD];
    memset(guard, 0xa5, GUARD);
    open_group(&group, one_table(), DT_BF16, 3, 7, 5, 2, 11);
    int heads = group.split.head[1], hidden = group.split.hidden[1];
    for (int t = 0; t < 3; t++) {
        Model* m = &group.rank[t].m;
        WorkNeeds needs = {group.split.head[t + 1] - group.split.head[t] + (t == 2) * heads,
                           group.split.hidden[t + 1] - group.split.hidden[t] + (t == 2) * (hidden - 1), 1};
        open_rank(&group, t, needs.most_heads, needs.most_hidden, 1);
        size_t bytes = work_bytes(m, &needs);
        work_close(m->work);
        group.k->free_memory(group.rank[t].work_memory);
        group.rank[t].work_memory = group.k->alloc(bytes + GUARD);
        group.k->upload((char*)group.rank[t].work_memory + bytes, guard, GUARD, NULL);
        m->work = work_open(m, &needs, group.rank[t].work_memory);
    }
    WorkPlan plan = {.active = 1, .imputation = IMPUTE_SAME};
    give(&plan, &group, 0, heads, hidden - 1, (const int[]){2}, 1);
    same_moves(&group, &plan);
    leave_out(&group, 1, 0.9, 2);
    for (int step = 0; step < 2; step++) run_step(&group);
    for (int t = 0; t < 3; t++) {
        WorkNeeds needs = {group.rank[t].m.shape.heads + (t == 2) * heads,
                           group.rank[t].m.shape.hidden + (t == 2) * (hidden - 1), 1};
        group.k->download(found, (char*)group.rank[t].work_memory + work_bytes(&group.rank[t].m, &needs), GUARD, NULL);
        CHECK(memcmp(found, guard, GUARD) == 0);
    }
    close_group(&group);
}

static void every_random_plan_computes_and_returns_what_it_should(void) {
    const Kernels* tables[CPU_ISAS];
    int n = tested_tables(tables);
    for (uint64_t seed = 1; seed <= 60; seed++) {
        int failures = test_failures_in_claim;
        int ranks = 2 + (int)(random_uniform(seed, 90) * 5), NH = ranks + (int)(random_uniform(seed, 91) * ranks),
            HS = 2 + (int)(random_uniform(seed, 92) * 4), L = 1 + (int)(random_uniform(seed, 93) * MOST_LAYERS);
        DType dt = random_uniform(seed, 94) < 0.5 ? DT_F32 : DT_BF16;
        open_all(tables[seed % (uint64_t)n], dt, ranks, NH, HS, L, seed);
        for (uint64_t step = 0; step < 4; step++) {
            random_plan(&group, seed * 1000 + step);
            run_step(&group);
        }
        close_group(&group);
        if (test_failures_in_claim > failures) printf("    seed %d\n", (int)seed);
    }
}

int main(void) {
    RUN(inactive_work_is_what_is_owned);
    RUN(moved_slices_are_computed_once_and_their_gradients_come_home);
    RUN(a_step_sends_each_moved_slice_once_and_its_gradient_once);
    RUN(what_is_left_out_is_imputed);
    RUN(a_rank_may_give_slices_and_leave_out_of_the_rest);
    RUN(a_rank_alone_may_leave_out);
    RUN(a_rank_may_leave_out_all_heads);
    RUN(what_a_plan_does_not_touch_is_used_in_place);
    RUN(each_gemm_costs_what_is_kept);
    RUN(moved_flops_go_where_the_slices_go);
    RUN(work_stays_within_its_memory);
    RUN(every_random_plan_computes_and_returns_what_it_should);
    return test_done();
}
