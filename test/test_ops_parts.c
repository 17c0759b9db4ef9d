// test_ops_parts.c - the ops of ranks that hold a part of a tensor: moves of columns, the classifier in parts of the
// vocabulary; and the marks in time that show which rank is slow. See op_checks.h for how.
#include <float.h>
#include <unistd.h>

#include "test/op_checks.h"

enum { MOST_PARTS = 4 };

// Dimensions and buffers of the call that a claim is trying; `call` functions read them.
static struct {
    int N, K, n, ldx, V, write_gradient, parts;
    int first[MOST_PARTS + 1];  // vocabulary id of each part
    int pad[MOST_PARTS];        // its columns of padding
    DType dt;
    int out, x, y, columns, source;
    int whole, losses, logits, stats, part_losses, targets;
    float scale;
    StridedMatmul product;
} k;

#define FOR_DTYPES for (k.dt = DT_F32; k.dt <= DT_BF16; k.dt++)

// ---- moves of columns

static void call_gather(const Kernels* t) {
    t->ranks->gather_columns(data(k.y), data(k.x), (int*)data(k.columns), k.N, k.n, k.ldx, k.dt, NULL);
}

static void call_gather_and_scatter(const Kernels* t) {
    call_gather(t);
    t->ranks->scatter_columns(data(k.out), data(k.y), (int*)data(k.source), k.N, k.K, k.n, k.dt, NULL);
}

// n of K columns in random order, where they went, and tensors for both ways.
static void set_columns(const int size[3], int seed) {
    k.N = size[0], k.K = size[1], k.n = size[2], k.ldx = k.K + seed % 3;
    k.x = input((size_t)k.N * k.ldx, k.dt, 0.3, 1), k.y = output((size_t)k.N * k.n, k.dt);
    k.out = input((size_t)k.N * k.K, k.dt, 0, 1);
    k.columns = output((size_t)k.K, DT_F32), k.source = output((size_t)k.K, DT_F32);
    int order[4096];
    for (int c = 0; c < k.K; c++) order[c] = c, set_int(k.source, (size_t)c, -1);
    for (int j = 0; j < k.n; j++) {
        int other = j + (int)(random_uniform((uint64_t)seed, (uint64_t)j) * (k.K - j)), column = order[other];
        order[other] = order[j];
        set_int(k.columns, (size_t)j, column), set_int(k.source, (size_t)column, j);
    }
}

// Around the vector lengths; the last three are shared by threads.
static const int column_sizes[][3] = {  // N, K, n
    {0, 5, 3},  {1, 1, 1},   {3, 7, 7},    {5, 40, 1},     {4, 17, 16},    {6, 65, 33},
    {9, 16, 4}, {4, 100, 8}, {2, 900, 17}, {70, 300, 250}, {33, 700, 511}, {300, 64, 57}};

CLAIM(gather_columns_takes_them_in_any_order) {
    FOR_DTYPES for (int i = 0; i < COUNT(column_sizes); i++) {
        set_columns(column_sizes[i], i + 1);
        if (k.n > 2) set_int(k.columns, 2, 0);  // twice, perhaps
        run_reference(call_gather);
        for (int at = 0; at < k.N * k.n; at++) {
            size_t row = (size_t)(at / k.n), column = (size_t)get_int(k.columns, (size_t)(at % k.n));
            CHECK(get(k.y, (size_t)at) == get(k.x, row * k.ldx + column));
        }
        compare(call_gather);
    }
}

CLAIM(scatter_columns_undoes_gather_columns_with_0_for_the_rest) {
    FOR_DTYPES for (int i = 0; i < COUNT(column_sizes); i++) {
        set_columns(column_sizes[i], i + 1);
        run_reference(call_gather_and_scatter);
        for (size_t at = 0; at < (size_t)k.N * k.K; at++) {
            size_t row = at / k.K, c = at % k.K;
            CHECK(get(k.out, at) == (get_int(k.source, c) >= 0 ? get(k.x, row * k.ldx + c) : 0));
        }
        compare(call_gather_and_scatter);
    }
}

// ---- matmuls of adapters

static void call_strided(const Kernels* t) {
    StridedMatmul m = k.product;
    m.out = data(k.out), m.a = data(k.x), m.b = data(k.y);
    t->ranks->strided_matmul(&m, k.dt, NULL);
}

// The same sums by the plain matmuls, on operands without gaps.
static void call_plain(const Kernels* t) {
    const StridedMatmul* m = &k.product;
    if (m->kind == MATMUL_FORWARD)
        t->matmul_forward(data(k.whole), NULL, data(k.logits), data(k.stats), NULL, m->N, m->C, m->OC, k.dt, NULL);
    else if (m->kind == MATMUL_INPUT)
        t->matmul_backward_input(data(k.whole), data(k.logits), data(k.stats), NULL, m->N, m->C, m->OC, k.dt, NULL);
    else
        t->matmul_backward_weight((float*)data(k.whole), NULL, data(k.logits), data(k.stats), m->N, m->C, m->OC, k.dt,
                                  NULL);
}

// A matrix of `cols` in rows of ld, and the same without gaps.
static void set_matrix(int* wide, int* dense, int rows, int cols, int ld) {
    *wide = input((size_t)rows * (size_t)ld, k.dt, 0.1, 1);
    *dense = output((size_t)rows * (size_t)cols, k.dt);
    for (size_t i = 0; i < (size_t)rows * (size_t)cols; i++)
        set(*dense, i, get_from(world.b[*wide].now, k.dt, i / (size_t)cols * (size_t)ld + i % (size_t)cols));
}

static void set_product(MatmulKind kind, const int size[3], int gap, int adds) {
    int N = size[0], C = size[1], OC = size[2], is_weight = kind == MATMUL_WEIGHT;
    int a_cols = kind == MATMUL_FORWARD ? C : OC, b_rows = is_weight ? N : OC;
    int rows = is_weight ? OC : N, cols = kind == MATMUL_FORWARD ? OC : C;
    k.product = (StridedMatmul){.kind = kind, .adds = adds, .N = N, .C = C, .OC = OC, .scale = 0.75f};
    k.product.lda = a_cols + gap, k.product.ldb = C + (is_weight ? gap : 0),
    k.product.ldo = cols + (is_weight ? 0 : gap);
    set_matrix(&k.x, &k.logits, N, a_cols, k.product.lda);
    set_matrix(&k.y, &k.stats, b_rows, C, k.product.ldb);
    k.out = input((size_t)rows * (size_t)k.product.ldo, is_weight ? DT_F32 : k.dt, 0, 1);
    k.whole = input((size_t)rows * (size_t)cols, is_weight ? DT_F32 : k.dt, 0, 0);
}

// Gaps between rows keep their bits: no tolerance there.
static void strided_matmul_is_plain(MatmulKind kind, const int size[3], int gap, int adds) {
    set_product(kind, size, gap, adds);
    run_reference(call_plain);
    run_reference(call_strided);
    const StridedMatmul* m = &k.product;
    int is_weight = kind == MATMUL_WEIGHT, rows = is_weight ? m->OC : m->N;
    int cols = kind == MATMUL_FORWARD ? m->OC : m->C, depth = is_weight ? m->N : kind == MATMUL_FORWARD ? m->C : m->OC;
    double *out = tolerate(k.out), *whole = tolerate(k.whole);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            size_t at = (size_t)(i * m->ldo + j), dense = (size_t)(i * cols + j);
            double before = adds || is_weight ? get_from(world.b[k.out].start, world.b[k.out].dt, at) : 0;
            double sum = get(k.whole, dense), bound = 4 * (depth + 2) * E * depth;
            double coarse = world.b[k.out].dt == DT_BF16 ? (fabs(sum) + fabs(before)) / 128 : 0;
            CHECK_CLOSE(get(k.out, at), before + 0.75 * sum, bound + coarse);
            out[at] = bound, whole[dense] = 2 * bound;
        }
    compare(call_strided);
}

CLAIM(strided_matmuls_are_plain_ones_in_wider_rows) {
    static const int sizes[][3] = {{1, 16, 40}, {7, 8, 33}, {40, 96, 8}, {300, 5, 17}, {65, 130, 16}, {0, 16, 16}};
    FOR_DTYPES for (int i = 0; i < COUNT(sizes); i++) for (int kind = 0; kind <= MATMUL_WEIGHT;
                                                           kind++) for (int way = 0; way < 4; way++)
        strided_matmul_is_plain((MatmulKind)kind, sizes[i], way & 1 ? 24 : 0, way >> 1);
}

// ---- the classifier in parts of the vocabulary

static int part_V(int p) { return k.first[p + 1] - k.first[p]; }
static int part_Vp(int p) { return part_V(p) + k.pad[p]; }

// Where the logits of part p begin: (N, part_Vp(p)) of each one after another.
static size_t part_begin(int p) {
    size_t at = 0;
    for (int q = 0; q < p; q++) at += (size_t)k.N * part_Vp(q);
    return at;
}

static void call_whole_and_parts(const Kernels* t) {
    float *stats = (float*)data(k.stats), *losses = (float*)data(k.part_losses);
    int* targets = (int*)data(k.targets);
    char* logits = (char*)data(k.logits);
    size_t elem = dtype_bytes(k.dt);
    t->classifier((float*)data(k.losses), data(k.whole), targets, k.scale, k.write_gradient, k.N, k.V, k.V, k.dt, NULL);
    for (int p = 0; p < k.parts; p++)
        t->ranks->classifier_part(stats + (size_t)p * k.N * 3, logits + part_begin(p) * elem, targets, k.first[p], k.N,
                                  part_V(p), part_Vp(p), k.dt, NULL);
    for (int p = 0; p < k.parts; p++)
        t->ranks->classifier_join(losses + (size_t)p * k.N, logits + part_begin(p) * elem, stats, k.parts, targets,
                                  k.first[p], k.scale, k.write_gradient, k.N, part_V(p), part_Vp(p), k.dt, NULL);
}

static double now(int buffer, size_t i) { return get_from(world.b[buffer].now, world.b[buffer].dt, i); }
static double start(int buffer, size_t i) { return get_from(world.b[buffer].start, world.b[buffer].dt, i); }

// Both sums are of the same exponentials but for their maxima, in another order. Up to 1000 terms, in lanes of 4 or
// more, the roundings of a lane's 250 additions make a walk of about 16 E / 2, and an exponential is off by 4 E: within
// 1e-6 in all. Beyond, the bound of test_ops.c: (V/16 + 36) E.
static double sum_error(void) { return k.V <= 1000 ? 1e-6 : (k.V / 16.0 + 36) * E; }

// Every part has the losses of the whole, and all have the same bits.
static void check_losses(int n) {
    double whole = now(k.losses, (size_t)n), greatest = 0;
    for (int p = 0; p < k.parts; p++) {
        double x = now(k.stats, ((size_t)p * k.N + n) * 3);
        if (isfinite(x)) greatest = fmax(greatest, fabs(x));
    }
    for (int p = 0; p < k.parts; p++) {
        const char* found = (const char*)host_data(k.part_losses) + ((size_t)p * k.N + n) * 4;
        CHECK(memcmp(found, (const char*)host_data(k.part_losses) + (size_t)n * 4, 4) == 0);
        CHECK_CLOSE(now(k.part_losses, (size_t)p * k.N + n), whole,
                    sum_error() + 2 * E * fabs(whole) + 2 * E * greatest);
    }
}

// The gradient of a row of part p against that of the whole: (softmax - onehot) scale, with a softmax that is off by
// the error of its sum; bf16 may round to either side of a border.
static void check_gradients(int p, int n) {
    size_t row = part_begin(p) + (size_t)n * part_Vp(p);
    for (int v = 0; v < part_Vp(p); v++) {
        double found = now(k.logits, row + v), before = start(k.logits, row + v);
        if (!k.write_gradient) CHECK(found == before || (isnan(found) && isnan(before)));
        else if (v >= part_V(p)) CHECK(found == 0);
        else {
            double whole = now(k.whole, (size_t)n * k.V + k.first[p] + v), p_whole = fabs(whole);
            int hit = k.first[p] + v == get_int(k.targets, (size_t)n);
            double rounding = k.dt == DT_BF16 ? fabs(whole) / 128 : 2 * E * fabs(whole);
            CHECK_CLOSE(found, whole, sum_error() * (hit ? k.scale : p_whole) + rounding + FLT_MIN * k.scale);
        }
    }
}

// The greatest and the target's logit are exact; the sum is off as above.
static void check_stats(int p, int n) {
    size_t at = ((size_t)p * k.N + n) * 3;
    CHECK(now(k.stats, at) == get(k.stats, at) && now(k.stats, at + 2) == get(k.stats, at + 2));
    CHECK_CLOSE(now(k.stats, at + 1), get(k.stats, at + 1), (k.V / 16.0 + 36) * E * get(k.stats, at + 1));
    int target = get_int(k.targets, (size_t)n), mine = target >= k.first[p] && target < k.first[p + 1];
    size_t column = part_begin(p) + (size_t)n * part_Vp(p) + (size_t)(mine ? target - k.first[p] : 0);
    CHECK(now(k.stats, at + 2) == (mine ? start(k.logits, column) : 0));
    if (part_V(p) == 0) CHECK(now(k.stats, at) == -INFINITY && now(k.stats, at + 1) == 0);
}

static void check_parts(void) {
    for (int n = 0; n < k.N; n++) {
        check_losses(n);
        for (int p = 0; p < k.parts; p++) check_gradients(p, n), check_stats(p, n);
    }
    for (int i = 0; i < world.n; i++) {  // nothing beyond the ends
        const Buffer* b = &world.b[i];
        size_t guard = GUARD * dtype_bytes(b->dt), end = bytes_of(b) - guard;
        CHECK(memcmp(b->now, b->start, guard) == 0 && memcmp(b->now + end, b->start + end, guard) == 0);
    }
}

static void (*check)(void);
static void check_table(const Kernels* t) { (void)t, check(); }

// Parts are compared with the whole of the same table, so that they may be anywhere beside the reference's.
static void try_parts(void (*check_it)(void)) {
    const int made[] = {k.whole, k.losses, k.logits, k.stats, k.part_losses};
    check = check_it;
    run_reference(call_whole_and_parts);
    check();
    for (int i = 0; i < COUNT(made); i++)
        for (size_t j = 0, n = world.b[made[i]].n, first = tolerate(made[i]) != NULL; first && j < n; j++)
            world.b[made[i]].tolerance[j] = INFINITY;
    world.check = check_table;
    compare(call_whole_and_parts);
}

// Every fourth row has no label, the second has the last id, others the first and the last of a part.
static int target(int n) {
    int any = (int)(hash64((uint64_t)n + 5) % (uint64_t)k.V);
    return n % 4 == 3 ? -1
           : n == 1   ? k.V - 1
           : n == 0   ? MIN(k.first[k.parts - 1], k.V - 1)
           : n == 2   ? MAX(k.first[1] - 1, 0)
                      : any;
}

// Logits of k.N rows in parts that end at these 1/60ths of the vocabulary; padding holds what must not count.
static void set_parts(const int ends[MOST_PARTS], double spread) {
    k.scale = 0.01f, k.parts = 0, k.first[0] = 0;
    for (; k.parts < MOST_PARTS && (k.parts == 0 || ends[k.parts]); k.parts++)
        k.first[k.parts + 1] = k.V * ends[k.parts] / 60, k.pad[k.parts] = (7 * k.parts + k.V) % 12;
    k.whole = input((size_t)k.N * k.V, k.dt, 0, spread), k.losses = output((size_t)k.N, DT_F32);
    k.logits = output(part_begin(k.parts), k.dt), k.stats = output((size_t)k.parts * k.N * 3, DT_F32);
    k.part_losses = output((size_t)k.parts * k.N, DT_F32), k.targets = output((size_t)k.N, DT_F32);
    memcpy(world.b[k.whole].expected, world.b[k.whole].now, bytes_of(&world.b[k.whole]));  // for get
    for (int p = 0; p < k.parts; p++)
        for (int n = 0; n < k.N; n++)
            for (int v = 0; v < part_Vp(p); v++) {
                double pad = v % 2 ? NAN : 1e30;
                set(k.logits, part_begin(p) + (size_t)n * part_Vp(p) + v,
                    v < part_V(p) ? get(k.whole, (size_t)n * k.V + k.first[p] + v) : pad);
            }
    for (int n = 0; n < k.N; n++) set_int(k.targets, (size_t)n, target(n));
}

// In 60ths; 0 ends the list. Unequal, and some without any id: at the beginning, in the middle, at the end.
static const int splits[][MOST_PARTS] = {{60},           {17, 60},        {1, 60},          {0, 60},
                                         {23, 23, 60},   {20, 60, 60},    {31, 40, 60},     {0, 13, 60},
                                         {5, 6, 59, 60}, {7, 30, 30, 60}, {60, 60, 60, 60}, {0, 29, 31, 60}};

CLAIM(classifier_in_parts_equals_the_whole) {
    static const int sizes[][2] = {{1, 60}, {5, 61}, {4, 250}, {3, 1000}, {40, 977}, {6, 9001}};  // N, V
    FOR_DTYPES for (int i = 0; i < COUNT(sizes); i++) for (int split = i % 2; split < COUNT(splits); split += 2) {
        k.N = at_most(sizes[i][0], 5), k.V = at_most(sizes[i][1], 1500), k.write_gradient = (i + split) % 8 != 6;
        set_parts(splits[split], split % 3 == 1 ? 60 : 3);
        try_parts(check_parts);
    }
}

// Every logit of the second part is minus infinity, in every row but that of its own target.
static void check_hidden(void) {
    check_parts();
    for (int n = 0; n < k.N; n++) CHECK(isfinite(now(k.losses, (size_t)n)));
    for (size_t at = part_begin(1); at < part_begin(2); at++)
        if ((int)((at - part_begin(1)) / part_Vp(1)) != 1) CHECK(now(k.logits, at) == 0);
}

CLAIM(hidden_logits_of_a_whole_part_count_nothing) {
    FOR_DTYPES {
        k.N = 6, k.V = 300, k.write_gradient = 1;
        set_parts((const int[MOST_PARTS]){20, 60}, 3);
        for (int n = 0; n < k.N; n++) {
            if (n != 1 && n % 4 != 3) set_int(k.targets, (size_t)n, 7);
            for (int v = k.first[1]; v < k.V; v++) {
                if (n == 1 && v == k.V - 1) continue;
                set(k.whole, (size_t)n * k.V + v, -INFINITY);
                set(k.logits, part_begin(1) + (size_t)n * part_Vp(1) + (v - k.first[1]), -INFINITY);
            }
        }
        try_parts(check_hidden);
    }
}

static void check_poisoned(void) {
    for (int n = 0; n < k.N; n++)
        for (int p = 0; p < k.parts; p++) {
            CHECK(isnan(now(k.part_losses, (size_t)p * k.N + n)) == (n == 2));
            size_t row = part_begin(p) + (size_t)n * part_Vp(p);
            for (int v = 0; v < part_V(p); v++) CHECK(isnan(now(k.logits, row + v)) == (n == 2));
        }
}

CLAIM(nan_in_one_part_shows_in_its_row_of_every_part) {
    FOR_DTYPES {
        k.N = 4, k.V = 300, k.write_gradient = 1;
        set_parts((const int[MOST_PARTS]){20, 45, 60}, 3);
        set(k.logits, part_begin(1) + (size_t)2 * part_Vp(1) + 50, (double)nanf("3"));
        try_parts(check_poisoned);
    }
}

// ---- marks in time

static double marks[MOST_EVENTS];

static void spin(double seconds, double (*clock)(void)) {
    for (double start = clock(); clock() - start < seconds;) {}
}

// The seconds that the table's marks find around a pause of the host. most: what they may find at most, by now_seconds
// from before the first mark until the last has passed.
static double pause_by_marks(const Kernels* t, void (*pause)(void), double* most) {
    double begin = now_seconds();
    t->record_event(0, NULL);
    t->read_events(marks, 1);  // a device marks when it comes there
    pause();
    t->record_event(1, NULL);
    t->read_events(marks, 2);
    *most = now_seconds() - begin;
    return marks[1] - marks[0];
}

static void open_table(const Kernels* t, int oversubscribed) {
    char err[ERR_BYTES];
    KernelLimits limits = {
        .N = 8, .C = 8, .OC = 32, .NH = 1, .NKV = 1, .HS = 8, .context = 8, .attention = ATTENTION_OWN};
    limits.threads = 1, limits.oversubscribed = oversubscribed;
    CHECK(t->open(&limits, err) == 0);
}

// All tables under test, and on the CPU the reference too.
static int timed_tables(const Kernels** tables) {
    int n = tested_tables(tables);
#ifndef TEST_DEVICE
    tables[n++] = cpu_kernels(CPU_REFERENCE);
#endif
    return n;
}

static void spin_of_20_ms(void) { spin(0.02, now_seconds); }
static void sleep_of_20_ms(void) { usleep(20000); }

// A device's clock may tick a little faster or slower than the host's, and mark in steps of a microsecond.
CLAIM(events_measure_a_spin_of_known_length) {
    const Kernels* tables[CPU_ISAS];
    for (int i = 0, n = timed_tables(tables); i < n; i++) {
        double most, found;
        open_table(tables[i], 0);
        for (int run = 0; run < 3; run++) {
            found = pause_by_marks(tables[i], spin_of_20_ms, &most);
            CHECK(found > 0.0199 && found < most * 1.005 + 1e-5);
            found = pause_by_marks(tables[i], sleep_of_20_ms, &most);  // both given again: only the last ones count
            CHECK(found > 0.0199 && found < most * 1.005 + 1e-5);
        }
        double before = tables[i]->clock();
        spin(0.02, tables[i]->clock);
        CHECK(tables[i]->clock() - before >= 0.02);
        tables[i]->close();
    }
}

CLAIM(events_ascend_and_there_is_room_for_all) {
    const Kernels* tables[CPU_ISAS];
    for (int i = 0, n = timed_tables(tables); i < n; i++) {
        open_table(tables[i], 0);
        double begin = now_seconds();
        for (int mark = 0; mark < MOST_EVENTS; mark++) tables[i]->record_event(mark, NULL);
        tables[i]->read_events(marks, MOST_EVENTS);
        spin_of_20_ms();
        tables[i]->record_event(MOST_EVENTS - 1, NULL);
        tables[i]->read_events(marks, MOST_EVENTS);
        double most = now_seconds() - begin;
        for (int mark = 1; mark < MOST_EVENTS; mark++) CHECK(marks[mark] >= marks[mark - 1]);
        CHECK(marks[MOST_EVENTS - 1] - marks[MOST_EVENTS - 2] > 0.0199);
        CHECK(marks[MOST_EVENTS - 1] - marks[0] < most * 1.005 + 1e-5);
        tables[i]->close();
    }
}

#ifndef TEST_DEVICE
// Waiting takes no processor time: 20 ms of sleep are the cost of the call. A spin that lasts until the processor's
// clock has moved on by 20 ms is that long however many others share the core.
static void events_on_shared_cores_are_of_processor_time(void) {
    const Kernels* tables[CPU_ISAS];
    for (int i = 0, n = timed_tables(tables); i < n; i++) {
        double most;
        open_table(tables[i], 1);
        CHECK(pause_by_marks(tables[i], sleep_of_20_ms, &most) < 0.005);
        tables[i]->record_event(0, NULL);
        spin(0.02, tables[i]->clock);
        tables[i]->record_event(1, NULL);
        tables[i]->read_events(marks, 2);
        CHECK(marks[1] - marks[0] >= 0.02 && marks[1] - marks[0] < 0.03);
        tables[i]->close();
        open_table(tables[i], 0);  // and the wall's again
        CHECK(pause_by_marks(tables[i], sleep_of_20_ms, &most) > 0.0199);
        tables[i]->close();
    }
}
#endif

// ---- Muon: a step of the momentum and one along a direction, and what makes a matrix orthogonal beside matmuls

static AdamW muon;  // of the call

static AdamW muon_here(void) {
    AdamW a = muon;
    a.param = data(k.out), a.master = (float*)data(k.x), a.m = (float*)data(k.y), a.v = (float*)data(k.logits);
    a.grad = (float*)data(k.losses), a.grad_scale = (float*)data(k.stats), a.n = (size_t)k.n;
    return a;
}

static void call_momentum(const Kernels* t) {
    AdamW a = muon_here();
    t->ranks->momentum(&a, NULL);
}

static void call_follow(const Kernels* t) {
    AdamW a = muon_here();
    t->ranks->follow(&a, k.dt, NULL);
}

static void set_muon(int n, double grad_scale, int freeze) {
    k.n = n;
    muon = (AdamW){.lr = 1e-2f, .beta1 = 0.95f, .weight_decay = 0.1f, .freeze = freeze};
    k.x = input((size_t)n, DT_F32, 0, 1), k.y = input((size_t)n, DT_F32, 0, 0.003);
    k.logits = input((size_t)n, DT_F32, 0, 0.2), k.losses = input((size_t)n, DT_F32, 0, 0.01);
    k.out = input((size_t)n, k.dt, 0, 1), k.stats = output(1, DT_F32);
    set(k.stats, 0, grad_scale);
    for (int i = 0; i < n; i += 3) set(k.losses, (size_t)i, 0);  // frozen, or without a gradient
}

static void try_muon(int n, double grad_scale, int freeze) {
    set_muon(n, grad_scale, freeze);
    run_reference(call_momentum);
    double *m = tolerate(k.y), *v = tolerate(k.logits);
    for (size_t i = 0; i < (size_t)n; i++) m[i] = v[i] = 4 * E * (0.05 + fabs(get(k.y, i)));
    compare(call_momentum);
    set_muon(n, grad_scale, freeze);
    run_reference(call_follow);
    double* master = tolerate(k.x);
    for (size_t i = 0; i < (size_t)n; i++) master[i] = 4 * E * (0.01 + fabs(get(k.x, i)));
    memcpy(tolerate(k.out), master, (size_t)n * sizeof(double));
    compare(call_follow);
}

CLAIM(momentum_and_follow_match_the_reference) {
    FOR_DTYPES for (int i = 0; i < COUNT(flat_sizes); i++) {
        try_muon((int)flat_size(i), (double)0.7f, 0);
        try_muon((int)flat_size(i), (double)0.7f, 1);
    }
    k.dt = DT_F32;
    try_muon(100, INFINITY, 0);  // a step that changes nothing
}

static void call_combine(const Kernels* t) {
    t->ranks->combine(data(k.out), 2.5f, data(k.x), -0.75f, data(k.y), (size_t)k.n, k.dt, NULL);
}

static void call_normalize(const Kernels* t) {
    t->ranks->normalize(data(k.out), (float*)data(k.losses), (double*)data(k.stats), (size_t)k.n, k.dt, NULL);
}

CLAIM(combine_and_normalize_match_the_reference) {
    FOR_DTYPES for (int i = 0; i < COUNT(flat_sizes); i++) {
        k.n = (int)flat_size(i);
        k.x = input((size_t)k.n, k.dt, 0, 1), k.y = input((size_t)k.n, k.dt, 0, 1), k.out = output((size_t)k.n, k.dt);
        run_reference(call_combine);
        double* sum = tolerate(k.out);
        for (size_t j = 0; j < (size_t)k.n; j++) sum[j] = 4 * E * (2.5 * fabs(get(k.x, j)) + fabs(get(k.y, j)));
        compare(call_combine);
        k.losses = input((size_t)k.n, DT_F32, 0, 1), k.out = output((size_t)k.n, k.dt);
        k.stats = output(1, DT_F64), set(k.stats, 0, 7.25);
        run_reference(call_normalize);
        double* scaled = tolerate(k.out);
        for (size_t j = 0; j < (size_t)k.n; j++) scaled[j] = 4 * E * fabs(get(k.losses, j));
        compare(call_normalize);
    }
}

int main(void) {
    world.limits = (KernelLimits){.N = 300, .C = 130, .OC = 130, .NH = 1, .NKV = 1, .HS = 8, .context = 8};
    world.limits.attention = ATTENTION_OWN;
    run_claims();
#ifndef TEST_DEVICE
    RUN(events_on_shared_cores_are_of_processor_time);
#endif
    return test_done();
}
