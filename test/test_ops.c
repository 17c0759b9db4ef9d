// test_ops.c - the fast ops that are not matmul or attention, of every table under test, against the reference table.
// See op_checks.h for how. Norms, activations and rotary positions are in test_ops_block.c,
// ops of ranks that hold a part of a tensor in test_ops_parts.c.
#include <float.h>

#include "test/op_checks.h"

// Dimensions and buffers of the call that a claim is trying; `call` functions read them.
static struct {
    int N, C, V, Vp, write_gradient, in_order, without;
    int M, NH, HS0, HS, d;  // matrices, heads and slices of them
    size_t n;
    DType dt, out_dt;
    int out, x, y, weight, bias, mean, rstd, tokens, positions;
    int dx, dweight, dbias, losses;
    float scale;
    AdamW adamw;
} k;

#define FOR_DTYPES for (k.dt = DT_F32; k.dt <= DT_BF16; k.dt++)

static void set_row_size(int i) {
    k.C = row_sizes[i][1], k.N = at_most(row_sizes[i][0], 9000 / k.C);
    world.limits = row_limits(k.N, k.C, k.dt);
}

// ---- exact ops

static void call_add(const Kernels* t) { t->add(data(k.out), data(k.x), data(k.y), k.n, k.dt, NULL); }

CLAIM(add_gives_the_same_bits) {
    FOR_DTYPES for (int i = 0; i < COUNT(flat_sizes); i++) for (int alias = 0; alias < 3; alias++) {
        k.n = flat_size(i);
        k.x = input(k.n, k.dt, 0, 1), k.y = input(k.n, k.dt, 0.5, 2);
        k.out = alias == 0 ? output(k.n, k.dt) : alias == 1 ? k.x : k.y;
        run_reference(call_add), compare(call_add);
    }
}

static void call_cast(const Kernels* t) { t->ranks->cast(data(k.out), k.out_dt, data(k.x), k.dt, k.n, NULL); }

CLAIM(cast_gives_the_same_bits) {
    static const double special[] = {0,       -0.0,     INFINITY,   -INFINITY,  1e-40,  -1e-45,
                                     FLT_MAX, -FLT_MAX, 1.00390625, 1.01171875, FLT_MIN};
    for (k.out_dt = DT_F32; k.out_dt <= DT_BF16; k.out_dt++) FOR_DTYPES for (int i = 0; i < COUNT(flat_sizes); i++) {
            k.n = flat_size(i);
            k.x = input(k.n, k.dt, 0, 1), k.out = output(k.n, k.out_dt);
            for (size_t j = 0; j < k.n && j < COUNT(special); j++) set(k.x, (j * 7 + 3) % k.n, special[j]);
            run_reference(call_cast), compare(call_cast);
        }
}

CLAIM(cast_keeps_nan) {
    for (k.out_dt = DT_F32; k.out_dt <= DT_BF16; k.out_dt++) FOR_DTYPES {
            k.n = 37;
            k.x = input(k.n, k.dt, 0, 1), k.out = output(k.n, k.out_dt);
            for (size_t j = 0; j < k.n; j += 5) set(k.x, j, j % 2 ? NAN : -NAN);
            if (k.dt == DT_F32) set_int(k.x, 10, 0x7f800001);  // would become infinity if only cut off
            run_reference(call_cast);
            CHECK(isnan(get(k.out, 10)) && !isnan(get(k.out, 11)));
            tolerate(k.out);  // of 0, but any NaN will do
            compare(call_cast);
        }
}

static void call_embedding_forward(const Kernels* t) {
    t->embedding_forward(data(k.out), (int*)data(k.tokens), k.without ? NULL : (int*)data(k.positions), data(k.x),
                         k.without ? NULL : data(k.y), k.N, k.C, k.dt, NULL);
}

static void call_embedding_backward(const Kernels* t) {
    int *tokens = (int*)data(k.tokens), *positions = (int*)data(k.positions);
    t->embedding_backward((float*)data(k.x), (float*)data(k.y), data(k.out), k.without & 1 ? NULL : tokens,
                          k.without & 2 ? NULL : positions, k.N, k.C, k.dt, NULL);
}

static void set_tokens(void) {
    k.tokens = output(k.N, DT_F32), k.positions = output(k.N, DT_F32);
    for (int n = 0; n < k.N; n++)
        set_int(k.tokens, n, (int)(hash64((uint64_t)n) % 11)), set_int(k.positions, n, n % 13);  // of 11 and 13
}

CLAIM(embedding_forward_gives_the_same_bits) {
    FOR_DTYPES for (int i = 0; i < COUNT(row_sizes); i++) for (k.without = 0; k.without <= 1; k.without++) {
        set_row_size(i), set_tokens();
        k.x = input(11 * k.C, k.dt, 0, 1), k.y = input(13 * k.C, k.dt, 0, 1), k.out = output((size_t)k.N * k.C, k.dt);
        run_reference(call_embedding_forward);
        for (size_t n = 0; n < (size_t)k.N * k.without; n++)  // without positions: rows of tokens
            for (size_t c = 0; c < (size_t)k.C; c++)
                CHECK(get(k.out, n * k.C + c) == get(k.x, (size_t)get_int(k.tokens, n) * k.C + c));
        compare(call_embedding_forward);
    }
    k.without = 0;
}

// What a table becomes when rows are added to it in order, in fp32; it keeps its bits without ids.
static void check_table(int table, int ids, int without) {
    float sum[1024];
    for (int id = 0; id < (int)world.b[table].n / k.C; id++) {
        for (int c = 0; c < k.C; c++) sum[c] = (float)get_from(world.b[table].start, DT_F32, (size_t)id * k.C + c);
        for (int n = 0; n < k.N && !without; n++)
            for (int c = 0; c < k.C && get_int(ids, n) == id; c++) sum[c] += (float)get(k.out, (size_t)n * k.C + c);
        for (int c = 0; c < k.C; c++) CHECK(get(table, (size_t)id * k.C + c) == sum[c]);
    }
}

// The order of the fp32 additions is part of the contract, so that the bits are.
CLAIM(embedding_backward_adds_in_row_order_but_for_negative_tokens_and_missing_tables) {
    FOR_DTYPES for (k.without = 0; k.without < 4; k.without++) for (int i = k.without; i < COUNT(row_sizes); i += 2) {
        set_row_size(i), set_tokens();
        for (int n = 0; n < k.N; n++)
            if (n % 3 == 1 || i == 9) set_int(k.tokens, n, n % 2 ? -1 : -1000);  // some rows, or all of them
        k.x = input(11 * k.C, DT_F32, 0, 1), k.y = input(13 * k.C, DT_F32, 0, 1);
        k.out = input((size_t)k.N * k.C, k.dt, 0, 1);
        run_reference(call_embedding_backward);
        check_table(k.x, k.tokens, k.without & 1), check_table(k.y, k.positions, k.without & 2);
        compare(call_embedding_backward);
    }
    k.without = 0;
}

// ---- classifier. The sum of V exponentials is off by (V/16 + 16) E of itself, plus 4 E + |x - max| E for each
// exponential, of which those with |x - max| > 16 add nothing that shows: in all (V/16 + 36) E. A p itself is then
// off by that and by 4 E + |log p| E, the loss by that and its own rounding.

static void call_classifier(const Kernels* t) {
    t->classifier((float*)data(k.losses), data(k.x), (int*)data(k.tokens), k.scale, k.write_gradient, k.N, k.V, k.Vp,
                  k.dt, NULL);
}

// Every fourth row has no label, the second has the last column.
static int target(int n) { return n % 4 == 3 ? -1 : n == 1 ? k.V - 1 : (int)(hash64((uint64_t)n + 5) % (uint64_t)k.V); }

static void try_classifier(double spread, void (*alter)(void)) {
    k.losses = output(k.N, DT_F32), k.x = input((size_t)k.N * k.Vp, k.dt, 0, spread), k.scale = 0.01f;
    k.tokens = output(k.N, DT_F32);
    for (int n = 0; n < k.N; n++) set_int(k.tokens, n, target(n));
    if (alter) alter();
    run_reference(call_classifier);
    double sum = (k.V / 16.0 + 36) * E, *losses = tolerate(k.losses), *logits = tolerate(k.x);
    for (int n = 0; n < k.N; n++) losses[n] = sum + 8 * spread * E + 2 * E * fabs(get(k.losses, n));
    for (size_t i = 0; i < (size_t)k.N * k.Vp && k.write_gradient; i++) {
        double p = fabs(get(k.x, i)) / k.scale, relative = sum + (4 + fabs(log(p + FLT_MIN))) * E;
        logits[i] = ((int)(i % k.Vp) == get_int(k.tokens, i / k.Vp) ? relative : relative * p + FLT_MIN) * k.scale;
    }
    compare(call_classifier);
}

static const int vocabularies[] = {1, 3, 4, 15, 16, 17, 65, 4095, 4096, 4097, 9000};

CLAIM(classifier_matches_the_reference) {
    FOR_DTYPES for (int i = 0; i < COUNT(vocabularies); i++) for (int pad = 0; pad < 50; pad += 23) {
        for (k.write_gradient = 0; k.write_gradient <= 1; k.write_gradient++) {
            k.V = at_most(vocabularies[i], 1500 + i), k.Vp = k.V + pad, k.N = i % 5 + 1;
            try_classifier(3, NULL);
            if (i % 3 == 0) try_classifier(60, NULL);
        }
    }
}

// Columns V .. Vp do not count, whatever they hold; minus infinity is a probability of zero, also in a whole chunk.
static void hide_logits(void) {
    for (int n = 0; n < k.N; n++) {
        for (int v = k.V; v < k.Vp; v++) set(k.x, (size_t)n * k.Vp + v, v % 2 ? NAN : 1e30);
        for (int v = 0; v < 4200; v++)
            if (v != target(n)) set(k.x, (size_t)n * k.Vp + v, -INFINITY);
    }
}

CLAIM(classifier_ignores_padding_and_hidden_logits) {
    FOR_DTYPES {
        k.V = 5000, k.Vp = 5024, k.N = 4, k.write_gradient = 1;
        try_classifier(3, hide_logits);
    }
}

static void poison_one_row(void) { set(k.x, (size_t)2 * k.Vp + k.V / 2, (double)nanf("3")); }

CLAIM(classifier_shows_nan_in_its_row_only) {
    FOR_DTYPES {
        k.V = 100, k.Vp = 101, k.N = 4, k.write_gradient = 1;
        try_classifier(3, poison_one_row);
    }
}

// ---- labels that do not count alike: their lists are k.mean, k.rstd, k.y, k.out. Ratios are far from where they are
// clipped. A few roundings of exp, of which the argument is off by E for each unit.

static void call_weigh(const Kernels* t) {
    TokenLoss of = {
        LOSS_GRPO, (float*)data(k.mean), (float*)data(k.rstd), (float*)data(k.y), (float*)data(k.out), 0.2f, 0.28f,
        0.1f};
    of.kind = (TokenLossKind)k.without;
    t->ranks->weigh_labels((float*)data(k.losses), data(k.x), (int*)data(k.tokens), &of, k.write_gradient, k.N, k.Vp,
                           k.dt, NULL);
}

static void draw_labels(void) {
    static const double away[] = {-0.6, -0.05, 0.05, 0.6};
    k.mean = input(k.N, DT_F32, 1, 0.2), k.rstd = output(k.N, DT_F32), k.y = output(k.N, DT_F32);
    k.out = input(k.N, DT_F32, 0, 1), k.losses = output(k.N, DT_F32), k.tokens = output(k.N, DT_F32);
    for (int n = 0; n < k.N; n++) {
        double nll = target(n) < 0 ? 0 : 0.5 + 3 * random_uniform(31, (uint64_t)n);
        set(k.losses, n, nll), set_int(k.tokens, n, target(n));
        set(k.rstd, n, -nll + away[hash64((uint64_t)n) % 4]), set(k.y, n, -nll + 0.3 * random_normal(32, (uint64_t)n));
    }
}

CLAIM(labels_weigh_as_in_the_reference) {
    FOR_DTYPES for (int i = 0; i < COUNT(vocabularies); i++) for (k.without = LOSS_NLL; k.without <= LOSS_GIVEN;
                                                                  k.without++) {
        k.V = k.Vp = at_most(vocabularies[i], 1500 + i), k.N = i % 7 + 4, k.write_gradient = i % 4 != 1;
        k.x = input((size_t)k.N * k.Vp, k.dt, 0, 0.01);
        draw_labels();
        run_reference(call_weigh);
        double *losses = tolerate(k.losses), *logits = tolerate(k.x);
        for (int n = 0; n < k.N; n++) losses[n] = 40 * E * (1 + fabs(get(k.losses, n)));
        for (size_t j = 0; j < (size_t)k.N * k.Vp; j++) logits[j] = 60 * E * (0.01 + fabs(get(k.x, j)));
        compare(call_weigh);
    }
    k.without = 0;
}

// ---- AdamW. m and v: three roundings of terms that may cancel. The step m' / (sqrt(v') + eps) takes ten more.

static void call_adamw(const Kernels* t) {
    AdamW a = k.adamw;
    a.param = data(k.out), a.master = (float*)data(k.x), a.m = (float*)data(k.mean), a.v = (float*)data(k.rstd);
    a.grad = (float*)data(k.y), a.n = k.n, a.grad_scale = (float*)data(k.losses);
    t->adamw(&a, 1, k.dt, NULL);
}

// Of n weights at step t: master, gradient, m, v and its own output; the gradient is scaled by grad_scale.
static void set_adamw(size_t n, int t, double grad_scale, int in_place) {
    k.n = n;
    k.adamw = (AdamW){.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .t = t};
    k.losses = output(1, DT_F32), set(k.losses, 0, grad_scale);
    k.x = input(n, DT_F32, 0, 1), k.y = input(n, DT_F32, 0, 0.01), k.mean = input(n, DT_F32, 0, 0.003),
    k.rstd = input(n, DT_F32, 1e-4, 1e-5);
    k.out = in_place ? k.x : input(n, k.dt, 0, 1);
}

static void try_adamw(size_t n, int t, int in_place) {
    set_adamw(n, t, (double)0.7f, in_place);
    if (n > 5) set(k.y, 5, 0), set(k.mean, 5, 0), set(k.rstd, 5, 0);  // a weight that never had a gradient
    run_reference(call_adamw);
    double *master = tolerate(k.x), *m = tolerate(k.mean), *v = tolerate(k.rstd);
    for (size_t i = 0; i < n; i++) {
        double g = 0.7 * get(k.y, i), m0 = fabs(get_from(world.b[k.mean].start, DT_F32, i)), x = fabs(get(k.x, i));
        double vc = 1 - pow(0.95, t), mc = 1 - pow(0.9, t),
               step = (m0 + fabs(g)) / mc / (sqrt(get(k.rstd, i) / vc) + 1e-8);
        m[i] = 4 * E * (m0 + fabs(g));
        v[i] = 4 * E * (get(k.rstd, i) + g * g);
        master[i] = 2 * E * x + 1e-2 * 16 * E * (step + 0.1 * x);
    }
    if (!in_place) memcpy(tolerate(k.out), master, n * sizeof(double));
    compare(call_adamw);
}

CLAIM(adamw_matches_the_reference) {
    FOR_DTYPES for (int i = 0; i < COUNT(flat_sizes); i++) {
        try_adamw(flat_size(i), 1, 0);
        try_adamw(flat_size(i), 1000, 0);
    }
    k.dt = DT_F32;
    for (int i = 0; i < COUNT(flat_sizes); i++) try_adamw(flat_size(i), 3, 1);
}

// Weights that one table rounds up and another down would be no error; so the masters are left as they are (lr = 0) and
// the bits are the same everywhere. Their mean over many seeds is the master itself.
CLAIM(stochastic_rounding_gives_the_same_bits_and_the_right_mean) {
    enum { N = 4097, SEEDS = WATCHED ? 4 : 64, COLS = 37, BEFORE = 5, WIDTH = 100 };
    double error = 0, ulps = 0;
    k.dt = DT_BF16, k.n = N;
    for (int seed = 1; seed <= SEEDS; seed++) {
        k.adamw = (AdamW){.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .t = 1, .rounding = (uint64_t)seed * 77};
        k.adamw.place.first = (size_t)seed % 3 * 1000000007;
        if (seed % 2) k.adamw.place = (Place){BEFORE, BEFORE, COLS, WIDTH - COLS};  // COLS of WIDTH columns
        k.losses = output(1, DT_F32), set(k.losses, 0, 1);
        k.x = input(N, DT_F32, 0, 1), k.y = output(N, DT_F32), k.mean = output(N, DT_F32), k.rstd = output(N, DT_F32);
        for (int i = 0; i < N; i++) set(k.y, i, 0), set(k.mean, i, 0), set(k.rstd, i, 0);
        set(k.x, 4, 3.4e38), set(k.x, 5, -1e-40);
        k.out = output(N, DT_BF16);
        run_reference(call_adamw);
        for (int i = 0; i < N && seed % 2; i++) {
            size_t at = (size_t)((BEFORE + i) / COLS * WIDTH + (BEFORE + i) % COLS);
            CHECK(get(k.out, i) == bf16_to_float(bf16_round((float)get(k.x, i), k.adamw.rounding, at)));
        }
        for (int i = 6; i < N; i++) error += get(k.out, i) - get(k.x, i), ulps += fabs(get(k.x, i)) / 128;
        compare(call_adamw);
    }
    // N * SEEDS independent errors of at most an ulp each: their sum is within 6 standard deviations, sqrt(n) / 2 ulps.
    CHECK(fabs(error) < 6 * ulps / (2 * sqrt((double)N * SEEDS)));
}

CLAIM(adamw_leaves_everything_when_the_norm_was_not_finite) {
    FOR_DTYPES for (int inf = 0; inf <= 1; inf++) {
        set_adamw(1000, 1, inf ? INFINITY : NAN, 0);
        run_reference(call_adamw);
        for (size_t i = 0; i < k.n; i++) CHECK(get(k.out, i) == get_from(world.b[k.out].start, k.dt, i));
        compare(call_adamw);
    }
}

// Exactly zero, of either sign: alone and in runs longer than a vector. The smallest number is not zero.
static void set_zero_gradients(void) {
    for (size_t i = 0; i < k.n; i++) {
        if (hash64(i) % 3 == 0 || i / 70 % 4 == 1) set(k.y, i, i % 2 ? 0.0 : -0.0);
        else if (i % 11 == 0) set(k.y, i, 1e-45);
    }
}

// Makes the update without freezing, which has just been run, what must come of one with it.
static void expect_frozen(void) {
    const int buffers[] = {k.out, k.x, k.mean, k.rstd};
    for (int i = 0; i < world.n; i++) memcpy(world.b[i].expected, world.b[i].now, bytes_of(&world.b[i]));
    for (int b = k.out == k.x; b < COUNT(buffers); b++) {
        const Buffer* buffer = &world.b[buffers[b]];
        size_t elem = dtype_bytes(buffer->dt), zeros = 0, differ = 0;
        for (size_t i = 0; i < k.n; i++) {
            if (get_from(world.b[k.y].start, DT_F32, i) != 0) continue;
            size_t at = (GUARD + i) * elem;
            zeros++;
            differ += memcmp(buffer->expected + at, buffer->start + at, elem) != 0;
            memcpy(buffer->expected + at, buffer->start + at, elem);
        }
        CHECK(zeros == 0 || differ > 0);  // or freezing would show nothing
    }
}

static void try_freeze(const Kernels* t, int threads) {
    k.adamw.freeze = 0;
    run_table(t, threads, call_adamw);
    expect_frozen();
    k.adamw.freeze = 1;
    run_table(t, threads, call_adamw);
    for (int i = 0; i < world.n; i++) compare_buffer(&world.b[i]);
}

CLAIM(frozen_weights_keep_their_bits_and_the_others_are_updated_as_ever) {
    const Kernels* tables[CPU_ISAS];
    for (int kind = 0; kind < 4; kind++)
        for (int i = kind % 2; i < COUNT(flat_sizes); i += 2) {
            k.dt = kind < 2 ? DT_F32 : DT_BF16;
            set_adamw(flat_size(i), 3, 0.5, kind == 1);
            k.adamw.rounding = kind == 3 ? 5 : 0;
            set_zero_gradients();
            run_reference(call_adamw);
            try_freeze(cpu_kernels(CPU_REFERENCE), 1);
            for (int t = 0, n = tested_tables(tables); t < n; t++) try_freeze(tables[t], 1 + t % 3);
            free_buffers();
        }
}

enum { WHOLE_N = 9001 };
static const size_t part_begins[] = {0, 1, 130, 4096, 8195, WHOLE_N};

static void call_adamw_in_parts(const Kernels* t) {
    for (int i = 0; i + 1 < COUNT(part_begins); i++) {
        AdamW a = k.adamw;
        size_t first = part_begins[i];
        a.param = (char*)data(k.out) + first * dtype_bytes(k.dt), a.master = (float*)data(k.x) + first;
        a.m = (float*)data(k.mean) + first, a.v = (float*)data(k.rstd) + first, a.grad = (float*)data(k.y) + first;
        a.n = part_begins[i + 1] - first, a.place.first = first, a.grad_scale = (float*)data(k.losses);
        t->adamw(&a, 1, k.dt, NULL);
    }
}

// Ranks that each own a part of a tensor: the bits of every one of its elements, their rounding included.
CLAIM(updating_parts_of_a_tensor_gives_the_bits_of_the_whole) {
    const Kernels* tables[CPU_ISAS];
    FOR_DTYPES for (uint64_t rounding = 0; rounding <= 5; rounding += 5) {
        set_adamw(WHOLE_N, 3, 0.5, 0);
        k.adamw.rounding = rounding;
        run_reference(call_adamw);
        run_table(cpu_kernels(CPU_REFERENCE), 1, call_adamw_in_parts);
        for (int i = 0; i < world.n; i++) compare_buffer(&world.b[i]);
        for (int t = 0, n = tested_tables(tables); t < n; t++) {
            run_table(tables[t], 2, call_adamw);
            for (int i = 0; i < world.n; i++) memcpy(world.b[i].expected, world.b[i].now, bytes_of(&world.b[i]));
            run_table(tables[t], 2, call_adamw_in_parts);
            for (int i = 0; i < world.n; i++) compare_buffer(&world.b[i]);
        }
        free_buffers();
    }
}

// Cuts the buffers into tensors of none to several blocks of a GPU, whose decay, rounding and freezing differ.
static int cut_into_tensors(AdamW list[ADAMW_TENSORS]) {
    size_t first = 0;
    for (int i = 0; i < ADAMW_TENSORS; i++) {
        AdamW* a = &list[i];
        *a = k.adamw;
        a->param = (char*)data(k.out) + first * dtype_bytes(k.dt), a->master = (float*)data(k.x) + first;
        a->m = (float*)data(k.mean) + first, a->v = (float*)data(k.rstd) + first, a->grad = (float*)data(k.y) + first;
        a->n = i % 7 == 3 ? 0 : i % 5 == 4 ? 1024 : 1 + hash64((uint64_t)i) % (i % 11 == 6 ? 2500 : 300);
        a->n = i == ADAMW_TENSORS - 1 ? k.n - first : MIN(a->n, k.n - first);
        a->grad_scale = (float*)data(k.losses), a->place = (Place){(size_t)i << 33, 3, 37, i % 2 ? 63 : 0};
        a->weight_decay *= (float)(i % 3), a->rounding = i % 4 ? 7 + (uint64_t)i : 0, a->freeze = i % 6 == 1;
        first += a->n;
    }
    return ADAMW_TENSORS;
}

static void call_adamw_on_all(const Kernels* t) {
    AdamW list[ADAMW_TENSORS];
    t->adamw(list, cut_into_tensors(list), k.dt, NULL);
}

static void call_adamw_on_each(const Kernels* t) {
    AdamW list[ADAMW_TENSORS];
    for (int i = cut_into_tensors(list) - 1; i >= 0; i--) t->adamw(&list[i], 1, k.dt, NULL);
}

CLAIM(one_call_steps_many_tensors_to_the_bits_of_a_call_each) {
    const Kernels* tables[CPU_ISAS] = {cpu_kernels(CPU_REFERENCE)};
    FOR_DTYPES for (int in_place = 0; in_place <= (k.dt == DT_F32); in_place++) {
        set_adamw(WATCHED ? 9001 : 20001, 3, 0.5, in_place);
        set_zero_gradients();
        run_reference(call_adamw_on_each);
        for (int t = 0, n = 1 + tested_tables(tables + 1); t < n; t++) {
            run_table(tables[t], 2, call_adamw_on_each);
            for (int i = 0; i < world.n; i++) memcpy(world.b[i].expected, world.b[i].now, bytes_of(&world.b[i]));
            run_table(tables[t], 2, call_adamw_on_all);
            for (int i = 0; i < world.n; i++) compare_buffer(&world.b[i]);
        }
        free_buffers();
    }
}

extern long emu_launches __attribute__((weak));  // test/emu/cudart.cc

CLAIM(a_call_of_adamw_is_one_launch) {
    const Kernels* tables[CPU_ISAS];
    k.dt = DT_BF16;
    set_adamw(20001, 3, 0.5, 0);
    run_reference(call_adamw_on_all);
    for (int t = 0, n = &emu_launches ? tested_tables(tables) : 0; t < n; t++) {
        long before = emu_launches;
        run_table(tables[t], 1, call_adamw_on_all);
        CHECK(emu_launches == before + 1);
    }
    free_buffers();
}

static void call_clip(const Kernels* t) { t->clip_scale((float*)data(k.out), (double*)data(k.x), k.scale, NULL); }

CLAIM(clip_scale_is_the_factor_to_the_largest_norm) {
    static const double cases[][3] = {{4, 1, 0.5}, {4, 0, 1}, {4, 3, 1}, {0, 1, 1}, {1e60, 1, 1e-30}};  // norm2, clip
    for (int i = 0; i < COUNT(cases) + 2; i++) {
        double norm2 = i < COUNT(cases) ? cases[i][0] : i == COUNT(cases) ? INFINITY : NAN;
        k.x = output(1, DT_F64), k.out = output(1, DT_F32), k.scale = i < COUNT(cases) ? (float)cases[i][1] : 1;
        set(k.x, 0, norm2);
        run_reference(call_clip);
        if (i < COUNT(cases)) CHECK_CLOSE(get(k.out, 0), cases[i][2], 4 * E * cases[i][2]);
        else CHECK(isnan(get(k.out, 0)));
        tolerate(k.out)[0] = 4 * E;
        compare(call_clip);
    }
}

// ---- moves of rows

static void call_gather(const Kernels* t) {
    t->ranks->gather_rows(data(k.out), data(k.x), k.in_order ? NULL : (int*)data(k.tokens), k.N, k.C, k.Vp, k.V, k.dt,
                          NULL);
}
static void call_scatter(const Kernels* t) {
    t->ranks->scatter_rows(data(k.out), data(k.x), (int*)data(k.tokens), k.N, k.C, k.Vp, k.V, k.dt, NULL);
}

// Strides V of x and Vp of out; out keeps what it had between rows, and in rows that no index names.
static void rows_are_moved(void (*call)(const Kernels*)) {
    FOR_DTYPES for (int i = 0; i < COUNT(row_sizes); i++) for (int pad = 0; pad < 2; pad++) {
        set_row_size(i);
        k.V = k.C + 8 * pad, k.Vp = k.C + 3 * pad;
        k.tokens = output(k.N, DT_F32);
        for (int n = 0; n < k.N; n++) set_int(k.tokens, n, k.in_order ? n : n % 5 == 4 ? -1 : k.N - 1 - n);
        k.x = input((size_t)k.N * k.V, k.dt, 0, 1), k.out = input((size_t)k.N * k.Vp, k.dt, 0, 1);
        run_reference(call);
        for (size_t i = 0; i < (size_t)k.N * k.Vp && k.in_order; i++) {
            double before = get_from(world.b[k.out].start, k.dt, i);
            CHECK(get(k.out, i) == (i % k.Vp < (size_t)k.C ? get(k.x, i / k.Vp * k.V + i % k.Vp) : before));
        }
        compare(call);
    }
}

CLAIM(gather_rows_gives_the_same_bits) { rows_are_moved(call_gather); }
CLAIM(scatter_rows_gives_the_same_bits) { rows_are_moved(call_scatter); }

CLAIM(gather_rows_without_indices_keeps_the_order) {
    k.in_order = 1;
    rows_are_moved(call_gather);
    k.in_order = 0;
}

// ---- slices of heads

enum { MOST_SLICES = 600 };
static int head_border[MOST_SLICES + 1];

// Even slices, or any: some have no heads, some all.
static void cut_heads(int even) {
    for (int i = 0; i <= k.d; i++) head_border[i] = i * k.NH / k.d;
    for (int i = 1; i < k.d && !even; i++)
        head_border[i] = head_border[i - 1] + (int)(hash64((uint64_t)(i * k.NH)) % 3) * (k.NH - head_border[i - 1]) / 2;
}

static void call_split(const Kernels* t) {
    t->ranks->split_heads(data(k.out), data(k.x), k.N, k.M, k.HS0, k.HS, head_border, k.d, k.dt, NULL);
}
static void call_split_and_join(const Kernels* t) {
    t->ranks->split_heads(data(k.y), data(k.x), k.N, k.M, k.HS0, k.HS, head_border, k.d, k.dt, NULL);
    t->ranks->join_heads(data(k.out), data(k.y), k.N, k.M, k.HS0, k.HS, head_border, k.d, k.dt, NULL);
}

// Heads that divide evenly, that do not, slices of one head and of none, more slices than a launch takes, first
// matrices of larger heads; more than 8192 elements for the threads.
static void slices_of_heads(void (*try)(void)) {
    static const int sizes[][6] = {
        // N, M, NH, HS0, HS, d
        {0, 3, 4, 8, 8, 2},     {1, 1, 1, 1, 1, 1},     {1, 1, 1, 1, 1, 2},  {5, 3, 4, 8, 8, 3},
        {7, 3, 3, 5, 5, 5},     {9, 2, 5, 3, 3, 2},     {6, 3, 25, 4, 4, 8}, {4, 1, 12, 16, 16, 24},
        {70, 3, 12, 16, 16, 4}, {33, 3, 5, 17, 17, 9},  {5, 3, 4, 24, 8, 3}, {7, 3, 3, 10, 5, 5},
        {6, 1, 5, 48, 16, 2},   {70, 3, 4, 112, 16, 3}, {33, 2, 5, 9, 3, 9}, {3, 3, 520, 2, 1, 600}};
    FOR_DTYPES for (int i = 0; i < 2 * COUNT(sizes); i++) {
        const int* size = sizes[i / 2];
        k.N = at_most(size[0], 20), k.M = size[1], k.NH = size[2], k.HS0 = size[3], k.HS = size[4], k.d = size[5];
        cut_heads(i % 2 == 0);
        k.n = (size_t)k.N * k.NH * (k.HS0 + (k.M - 1) * k.HS);
        k.x = input(k.n, k.dt, 0, 1), k.out = output(k.n, k.dt);
        try();
    }
}

// Where matrix m of token n begins.
static size_t matrix_of(int n, int m) {
    return (size_t)k.NH * ((size_t)n * (k.HS0 + (k.M - 1) * k.HS) + (m ? k.HS0 + (m - 1) * k.HS : 0));
}

static void try_split(void) {
    run_reference(call_split);
    size_t at = 0;
    for (int i = 0; i < k.d; i++)
        for (int row = 0; row < k.N * k.M; row++) {
            int m = row % k.M, HS = m ? k.HS : k.HS0;
            size_t from = matrix_of(row / k.M, m);
            for (int j = head_border[i] * HS; j < head_border[i + 1] * HS; j++)
                CHECK(get(k.out, at++) == get(k.x, from + j));
        }
    CHECK(at == k.n);
    compare(call_split);
}

static void try_split_and_join(void) {
    k.y = output(k.n, k.dt);
    run_reference(call_split_and_join);
    for (size_t i = 0; i < k.n; i++) CHECK(get(k.out, i) == get(k.x, i));
    compare(call_split_and_join);
}

CLAIM(split_heads_gives_each_slice_its_heads) { slices_of_heads(try_split); }
CLAIM(join_heads_undoes_split_heads) { slices_of_heads(try_split_and_join); }

// ---- parts of an attention. With a and b as in kernels.h, d = |lse - part_lse| and e = exp(-d): the exponential is
// off by 4 E of itself and by E d from its argument, which beside a + b >= 1 is less than 5 E; so the greater factor is
// off by 12 E of itself, the smaller by (12 + d) E, and lse by 8 E and its own rounding. What is below the smallest
// normal number may be 0.

static void call_merge(const Kernels* t) {
    t->ranks->attention_merge((float*)data(k.out), (float*)data(k.mean), (float*)data(k.x), (float*)data(k.rstd), k.N,
                              k.NH, k.HS, NULL);
}

// Sets both log-sum-exps of pair i. INFINITY: out has seen no key, -INFINITY: part has not, NAN: neither has.
static void set_difference(size_t i) {
    static const double bases[] = {0, 0.1, -250, 90, 1e4},
                        differences[] = {0,   1e-6, -1e-6, 0.5, -3,   20,  -20,  80,   -80,      87.4,      -87.4, 89,
                                         -89, 104,  -104,  300, -300, 1e4, -1e4, 1e30, INFINITY, -INFINITY, NAN};
    double base = bases[i / COUNT(differences) % COUNT(bases)], difference = differences[i % COUNT(differences)];
    set(k.mean, i, isfinite(difference) ? base : difference < 0 ? base : -INFINITY);
    set(k.rstd, i, isfinite(difference) ? base - difference : difference > 0 ? base : -INFINITY);
}

// Head h of token n: against the formula in long double, which the reference must meet to its last rounding.
static void check_merge(size_t n, size_t h, double* out, double* lse) {
    size_t pair = h * k.N + n;
    double x = get_from(world.b[k.mean].start, DT_F32, pair), y = get(k.rstd, pair), d = fabs(x - y);
    if (isinf(x) && isinf(y)) {
        CHECK(get(k.mean, pair) == x);
        for (size_t i = (n * k.NH + h) * k.HS; i < (n * k.NH + h + 1) * k.HS; i++)
            CHECK(get(k.out, i) == get_from(world.b[k.out].start, DT_F32, i));
        return;
    }
    long double max = fmaxl(x, y), a = expl(x - max), b = expl(y - max), merged = max + logl(a + b);
    CHECK_CLOSE(get(k.mean, pair), (double)merged, E * (fabs((double)merged) + 1e-6));
    lse[pair] = isinf(x) || isinf(y) ? 0 : 8 * E + 2 * E * fabs((double)merged);
    for (size_t i = (n * k.NH + h) * k.HS; i < (n * k.NH + h + 1) * k.HS; i++) {
        long double from_out = a / (a + b) * get_from(world.b[k.out].start, DT_F32, i),
                    from_part = b / (a + b) * get(k.x, i), sum = from_out + from_part;
        CHECK_CLOSE(get(k.out, i), (double)sum, E * (fabs((double)sum) + 1e-9));
        double smaller = (double)fabsl(x < y ? from_out : from_part),
               both = (double)(fabsl(from_out) + fabsl(from_part));
        out[i] = isinf(x) || isinf(y) ? 0 : 12 * E * both + d * E * smaller + 8 * FLT_MIN;
    }
}

CLAIM(merging_is_exact_for_every_difference) {
    static const int sizes[][3] = {{0, 2, 4}, {1, 1, 1}, {115, 1, 3}, {23, 5, 16}, {69, 5, 64}, {39, 3, 17}};
    for (int i = 0; i < COUNT(sizes); i++) {
        k.N = sizes[i][0], k.NH = sizes[i][1], k.HS = sizes[i][2];
        size_t pairs = (size_t)k.N * k.NH;
        k.out = input(pairs * k.HS, DT_F32, 0, 1), k.x = input(pairs * k.HS, DT_F32, 0, 1);
        k.mean = output(pairs, DT_F32), k.rstd = output(pairs, DT_F32);
        for (size_t pair = 0; pair < pairs; pair++) set_difference(pair);
        run_reference(call_merge);
        double *out = tolerate(k.out), *lse = tolerate(k.mean);
        for (size_t pair = 0; pair < pairs; pair++) check_merge(pair % k.N, pair / k.N, out, lse);
        compare(call_merge);
    }
}

// fmax drops a NaN; what is merged must not.
CLAIM(merging_shows_nan_of_either_part) {
    k.N = 4, k.NH = 2, k.HS = 5;
    k.out = input(k.N * k.NH * k.HS, DT_F32, 0, 1), k.x = input(k.N * k.NH * k.HS, DT_F32, 0, 1);
    k.mean = input(k.N * k.NH, DT_F32, 0, 1), k.rstd = input(k.N * k.NH, DT_F32, 0, 1);
    set(k.mean, 1, NAN), set(k.rstd, 2, NAN), set(k.rstd, 6, NAN), set(k.mean, 6, -INFINITY);
    run_reference(call_merge);
    for (int pair = 0; pair < k.N * k.NH; pair++) {
        int nan = pair == 1 || pair == 2 || pair == 6;
        CHECK(isnan(get(k.mean, pair)) == nan);
        for (int j = 0; j < k.HS; j++) CHECK(isnan(get(k.out, (pair % k.N * k.NH + pair / k.N) * k.HS + j)) == nan);
    }
    double *out = tolerate(k.out), *lse = tolerate(k.mean);
    for (int i = 0; i < k.N * k.NH * k.HS; i++) out[i] = 64 * E;
    for (int i = 0; i < k.N * k.NH; i++) lse[i] = 16 * E;
    compare(call_merge);
}

// ---- sums in double: n additions at most

static void call_sum_of_squares(const Kernels* t) {
    t->sum_of_squares((double*)data(k.out), (float*)data(k.x), k.n, NULL);
}
static void call_add_sum(const Kernels* t) { t->add_sum((double*)data(k.out), (float*)data(k.x), k.n, NULL); }

// CPUs square and add in double. Devices may add up to 16 squares in fp32 first: 16 roundings of positive terms.
static double sum_of_squares_error(void) {
#ifdef TEST_DEVICE
    return 17 * E;
#else
    return 0;
#endif
}

CLAIM(sum_of_squares_adds_what_the_reference_adds) {
    static const size_t more[] = {100000, 1048576, 1100001};
    for (int i = 0; i < COUNT(flat_sizes) + COUNT(more); i++) {
        k.n = i < COUNT(flat_sizes) ? flat_size(i) : (size_t)at_most((int)more[i - COUNT(flat_sizes)], 5000 + i);
        k.x = input(k.n, DT_F32, 0, 3), k.out = output(1, DT_F64);
        set(k.out, 0, 100);
        run_reference(call_sum_of_squares);
        CHECK(get(k.out, 0) >= 100 && (k.n == 0 || get(k.out, 0) > 100));
        tolerate(k.out)[0] = sum_of_squares_error() * get(k.out, 0) + (double)(k.n + 2) * DBL_EPSILON * get(k.out, 0);
        compare(call_sum_of_squares);
    }
}

CLAIM(add_sum_matches_the_reference) {
    for (int i = 0; i < COUNT(flat_sizes); i++) {
        k.n = flat_size(i);
        k.x = input(k.n, DT_F32, 5, 1), k.out = output(1, DT_F64);
        set(k.out, 0, 1e3);
        run_reference(call_add_sum);
        tolerate(k.out)[0] = (double)(k.n + 2) * DBL_EPSILON * get(k.out, 0);
        compare(call_add_sum);
    }
}

static int has_own(const Kernels* t, const Kernels* r) {
    const struct RankOps *of_ranks = t->ranks, *of_reference = r->ranks;
    return t->embedding_forward != r->embedding_forward && t->embedding_backward != r->embedding_backward &&
           t->add != r->add && t->classifier != r->classifier && t->adamw != r->adamw &&
           t->sum_of_squares != r->sum_of_squares && of_ranks->cast != of_reference->cast &&
           of_ranks->classifier_part != of_reference->classifier_part &&
           of_ranks->classifier_join != of_reference->classifier_join &&
           of_ranks->gather_columns != of_reference->gather_columns &&
           of_ranks->scatter_columns != of_reference->scatter_columns &&
           of_ranks->attention_merge != of_reference->attention_merge &&
           of_ranks->gather_rows != of_reference->gather_rows && of_ranks->scatter_rows != of_reference->scatter_rows &&
           of_ranks->split_heads != of_reference->split_heads && of_ranks->join_heads != of_reference->join_heads;
}

// Functions of `table`, from `first` to `end`.
static void has_all(const char* table, const void* first, const void* end) {
    const char* entry = (const char*)first;
    for (void (*op)(void); entry < (const char*)end; entry += sizeof op) {
        memcpy(&op, entry, sizeof op);
        if (!op) printf("    %s has no entry %d\n", table, (int)((entry - (const char*)first) / (ptrdiff_t)sizeof op));
        CHECK(op != NULL);
    }
}

CLAIM(no_entry_of_a_table_is_missing) {
    const Kernels* tables[CPU_ISAS + 1];
    int n = tested_tables(tables);
#ifndef TEST_DEVICE
    char err[ERR_BYTES];
    CHECK((tables[n++] = kernels_find("virtual", "auto", err)) != NULL);
#endif
    for (int i = 0; i < n; i++) {
        has_all(tables[i]->name, &tables[i]->memory_available, &tables[i]->wait_until);
        CHECK((tables[i]->wait_until != NULL) == tables[i]->virtual_time);  // a clock that only virtual ranks move
        has_all(tables[i]->name, tables[i]->ranks, tables[i]->ranks + 1);
    }
}

int main(void) {
    world.limits =
        (KernelLimits){.N = 8, .C = 8, .OC = 32, .NH = 1, .NKV = 1, .HS = 8, .context = 8, .attention = ATTENTION_OWN};
    claim_own_entries(has_own);
    run_claims();
    return test_done();
}
