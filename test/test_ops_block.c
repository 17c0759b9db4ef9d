// test_ops_block.c - the fast ops of a block beside its products, of every table under test, against the reference
// table: activations, norms, rotary positions. See op_checks.h for how.
#include <float.h>

#include "test/op_checks.h"

// Dimensions and buffers of the call that a claim is trying; `call` functions read them.
static struct {
    int N, C, rms, residual, sums;
    int NH, NKV, HS, pad, qk_norm;  // pad: unused elements behind the heads of a row
    ActFunction f;
    DType dt;
    int x, y, sum, out, weight, bias, mean, rstd;
    int dx, dweight, dbias, dx_sums;
    int raw, k_weight, dk_weight, table, positions;
} k;

#define FOR_DTYPES for (k.dt = DT_F32; k.dt <= DT_BF16; k.dt++)

// Also rows that are too wide for a device's shared memory, or for one pack a thread of a block.
static const int wide_rows[][2] = {{18, 4104}, {9, 2056}};
enum { ROW_SIZES = sizeof row_sizes / sizeof *row_sizes + sizeof wide_rows / sizeof *wide_rows };

static void set_row_size(int i) {
    const int* size = i < COUNT(row_sizes) ? row_sizes[i] : wide_rows[i - COUNT(row_sizes)];
    k.C = size[1], k.N = at_most(size[0], 9000 / k.C);
    world.limits = row_limits(k.N, k.C, k.dt);
}

static double largest(int buffer) {
    double most = 0;
    for (size_t i = 0; i < world.b[buffer].n; i++) most = MAX(most, fabs(get(buffer, i)));
    return most;
}

// ---- activations. GELU: tanh within a few ulp, and 1 + tanh loses what cancels: 8 E |x| in all, its slope 4e-7.
// SwiGLU: exp(-z) is off by 4 E of itself, and by E |z| where its argument is rounded; with sums, quotients and
// products silu(z) up is off by (8 + |z|) E of itself, and of the slope each term of h + z h (1 - h) by three times
// that. What is below the smallest normal number may be 0, also before it is multiplied by z or up.

static void call_activation(const Kernels* t) {
    t->activation_forward(data(k.out), data(k.x), k.f, k.N, k.C, k.dt, NULL);
}

static void call_activation_backward(const Kernels* t) {
    t->activation_backward(data(k.dx), data(k.out), data(k.x), k.f, k.N, k.C, k.dt, NULL);
}

CLAIM(gelu_matches_the_reference) {
    static const double special[] = {0, -0.0, INFINITY, 30, -30, 1e-30, NAN, 5, -5, 9, -9, 3e4};
    k.f = ACT_GELU;
    FOR_DTYPES for (int i = 0; i < COUNT(flat_sizes); i++) {
        size_t n = flat_size(i);
        k.N = n == 0 ? 0 : n % 3 ? 1 : 3, k.C = n == 0 ? 4 : (int)n / k.N;
        k.x = input(n, k.dt, 0, 3), k.out = output(n, k.dt);
        for (size_t j = 0; j < n && j < COUNT(special); j++) set(k.x, (j * 5 + 1) % n, special[j]);
        run_reference(call_activation);
        double* tolerance = tolerate(k.out);
        for (size_t j = 0; j < n; j++) tolerance[j] = 8 * E * fabs(get(k.x, j)) + FLT_MIN;
        compare(call_activation);
    }
}

CLAIM(gelu_backward_matches_the_reference) {
    static const double special[] = {0, -0.0, 30, -30, 1e-30, NAN, 5, -5, 9, -9, 3e4, -3e4};
    k.f = ACT_GELU;
    FOR_DTYPES for (int i = 0; i < COUNT(flat_sizes); i++) {
        size_t n = flat_size(i);
        k.N = n > 0, k.C = (int)MAX(n, (size_t)1);
        k.x = input(n, k.dt, 0, 3), k.out = input(n, k.dt, 0, 1), k.dx = output(n, k.dt);
        for (size_t j = 0; j < n && j < COUNT(special); j++) set(k.x, (j * 5 + 1) % n, special[j]);
        run_reference(call_activation_backward);
        double* tolerance = tolerate(k.dx);
        for (size_t j = 0; j < n; j++) tolerance[j] = 4e-7 * fabs(get(k.out, j)) + FLT_MIN;
        compare(call_activation_backward);
    }
}

static const int swiglu_sizes[][2] = {{0, 5},   {1, 1},    {3, 2},    {2, 17},   {5, 63},
                                      {7, 256}, {3, 4097}, {2, 8193}, {2, 8200}, {40, 900}};

static void set_swiglu(int i) {
    static const double gates[] = {0, -0.0, INFINITY, 80, -80, 1e-30, NAN, 9, -9, 3e4, -3e4, -86, -87.5, -89, 89};
    k.f = ACT_SWIGLU, k.N = at_most(swiglu_sizes[i][0], 4), k.C = at_most(swiglu_sizes[i][1], 300);
    size_t n = (size_t)k.N * k.C;
    k.x = input(2 * n, k.dt, 0, 3);
    for (size_t j = 0; j < n && j < COUNT(gates); j++) {
        size_t at = (j * 5 + 1) % n;
        set(k.x, at / k.C * 2 * k.C + at % k.C, gates[j]);
    }
}

CLAIM(swiglu_matches_the_reference) {
    FOR_DTYPES for (int i = 0; i < COUNT(swiglu_sizes); i++) {
        set_swiglu(i);
        size_t n = (size_t)k.N * k.C;
        k.out = output(n, k.dt);
        run_reference(call_activation);
        double* tolerance = tolerate(k.out);
        for (size_t j = 0; j < n; j++) {
            size_t gate = j / k.C * 2 * k.C + j % k.C;
            double z = fabs(get(k.x, gate)), up = fabs(get(k.x, gate + k.C)), y = fabs(get(k.out, j));
            tolerance[j] = (8 + z) * E * y + FLT_MIN * (1 + z * up);
        }
        compare(call_activation);
    }
}

CLAIM(swiglu_backward_matches_the_reference) {
    FOR_DTYPES for (int i = 0; i < COUNT(swiglu_sizes); i++) {
        set_swiglu(i);
        size_t n = (size_t)k.N * k.C;
        for (size_t j = 0; j < 2 * n; j++)
            if (isinf(get_from(world.b[k.x].now, k.dt, j)))
                set(k.x, j, 500);  // the slope of the formula is a NaN there
        k.out = input(n, k.dt, 0, 1), k.dx = output(2 * n, k.dt);
        run_reference(call_activation_backward);
        double* tolerance = tolerate(k.dx);
        for (size_t j = 0; j < n; j++) {
            size_t gate = j / k.C * 2 * k.C + j % k.C;
            double z = get(k.x, gate), up = get(k.x, gate + k.C), d = fabs(get(k.out, j)), h = 1 / (1 + exp(-z));
            double slope = h + fabs(z) * h * (1 - h), error = (8 + fabs(z)) * E;
            tolerance[gate] = d * fabs(up) * (3 * error * slope + FLT_MIN * (1 + fabs(z))) + FLT_MIN;
            tolerance[gate + k.C] = error * fabs(get(k.dx, gate + k.C)) + FLT_MIN * (1 + d * fabs(z));
        }
        compare(call_activation_backward);
    }
}

// ---- norms. A sum of C terms over at least 4 lanes is off by (C/4 + 12) E of the sum of their absolute values, at
// most. With X the largest |x| and r the rstd, LayerNorm's xhat is then off by that factor times X r at most, also
// through r itself, since x - mean cancels (which rounds to E X). Nothing cancels in an RMSNorm, whose rstd alone is
// off.

static double sum_error(int n) { return (n / 4.0 + 12) * E; }

static float* mean_of(const Kernels* t) { return k.rms ? NULL : (float*)data(k.mean); }

static void call_norm(const Kernels* t) {
    t->norm_forward(k.residual ? data(k.sum) : NULL, data(k.out), mean_of(t), (float*)data(k.rstd), data(k.x),
                    k.residual ? data(k.y) : NULL, data(k.weight), k.rms ? NULL : data(k.bias), 1e-5f, k.N, k.C, k.dt,
                    NULL);
}

static void set_norm_tolerance(int x) {
    double X = largest(x), error = sum_error(k.C), *out = tolerate(k.out), *rstd = tolerate(k.rstd);
    double* mean = k.rms ? NULL : tolerate(k.mean);
    for (int n = 0; n < k.N; n++) {
        double r = get(k.rstd, n), rstd_error = k.rms ? error : error * (X * r + 1);
        if (mean) mean[n] = error * X;
        rstd[n] = r * rstd_error;
        for (int c = 0; c < k.C; c++) {
            double m = k.rms ? 0 : get(k.mean, n), xhat = fabs(get(x, (size_t)n * k.C + c) - m) * r;
            double w = fabs(get(k.weight, c)), shift = k.rms ? 0 : fabs(get(k.bias, c));
            out[(size_t)n * k.C + c] = rstd_error * ((k.rms ? 0 : 1) + xhat) * w + 4 * E * (xhat * w + shift);
        }
    }
}

// alias: of the sum; 0 none, 1 with the first term, 2 with the second, -1 there is no sum.
static void try_norm(int i, int alias) {
    set_row_size(i);
    size_t n = (size_t)k.N * k.C;
    k.residual = alias >= 0;
    k.x = input(n, k.dt, k.residual ? 2 : 3, 1), k.weight = input(k.C, k.dt, 1, 0.5);
    k.out = output(n, k.dt), k.rstd = output(k.N, DT_F32);
    if (!k.rms) k.bias = input(k.C, k.dt, 0, 1), k.mean = output(k.N, DT_F32);
    if (k.residual) k.y = input(n, k.dt, 1, 1), k.sum = alias == 0 ? output(n, k.dt) : alias == 1 ? k.x : k.y;
    run_reference(call_norm);
    set_norm_tolerance(k.residual ? k.sum : k.x);  // the sum itself: the same bits
    compare(call_norm);
}

static void norms_match(int rms, int residual) {
    k.rms = rms;
    FOR_DTYPES for (int i = 0; i < ROW_SIZES; i++) for (int alias = residual ? 0 : -1; alias < (residual ? 3 : 0);
                                                        alias++) try_norm(i, alias);
}

CLAIM(layernorm_matches_the_reference) { norms_match(0, 0); }
CLAIM(residual_layernorm_matches_the_reference) { norms_match(0, 1); }
CLAIM(rmsnorm_matches_the_reference) { norms_match(1, 0); }
CLAIM(residual_rmsnorm_matches_the_reference) { norms_match(1, 1); }

static void call_norm_backward(const Kernels* t) {
    t->norm_backward(data(k.dx), (float*)data(k.dweight), k.rms ? NULL : (float*)data(k.dbias),
                     k.sums ? (float*)data(k.dx_sums) : NULL, data(k.out), data(k.x), data(k.weight), mean_of(t),
                     (float*)data(k.rstd), k.N, k.C, k.dt, NULL);
}

static void set_sums_tolerance(const double* dx) {
    double* sums = tolerate(k.dx_sums);
    for (int c = 0; c < k.C; c++) {
        sums[c] = 2 * (k.N + 2) * E * (k.N * largest(k.dx) + 4);
        for (size_t j = (size_t)c; j < (size_t)k.N * k.C; j += (size_t)k.C)
            sums[c] += dx[j] + (k.dt == DT_BF16 ? fabs(get(k.dx, j)) / 128 : 0);
    }
}

// dx adds rstd (g - mean(g) - xhat mean(g xhat)): each mean off by sum_error of G = max |g|, or G H with H = max
// |xhat|; an RMSNorm has no mean(g), but the product and g round to 4 E G. dweight and dbias: N + 2 additions in fp32
// on either side, each off by E of at most N D H (or N D), D = max |dout|. dx_sums: likewise of the largest dx, and
// each dx is off as above, in bf16 by an ulp.
static void norm_backward_matches(int rms, int sums) {
    k.rms = rms, k.sums = sums;
    FOR_DTYPES for (int i = 0; i < ROW_SIZES; i++) {
        set_row_size(i);
        size_t n = (size_t)k.N * k.C;
        k.x = input(n, k.dt, 0, 1), k.out = input(n, k.dt, 0, 1), k.weight = input(k.C, k.dt, 1, 0.5);
        k.rstd = input(k.N, DT_F32, 1, 0.05), k.dx = input(n, k.dt, 0, 1), k.dweight = input(k.C, DT_F32, 0, 1);
        if (!rms) k.mean = input(k.N, DT_F32, 0, 0.1), k.dbias = input(k.C, DT_F32, 0, 1);
        if (sums) k.dx_sums = input(k.C, DT_F32, 0, 1);
        run_reference(call_norm_backward);
        double H = (largest(k.x) + (rms ? 0 : largest(k.mean))) * largest(k.rstd), D = largest(k.out),
               G = D * largest(k.weight), R = largest(k.rstd), error = sum_error(k.C);
        double *dx = tolerate(k.dx), *dweight = tolerate(k.dweight), *dbias = rms ? NULL : tolerate(k.dbias);
        for (size_t j = 0; j < n; j++)
            dx[j] = R * G * (error * ((rms ? 0 : 2) + 2 * H * H) + 4 * E) + 2 * E * fabs(get(k.dx, j));
        for (int c = 0; c < k.C; c++) {
            dweight[c] = 2 * (k.N + 2) * E * (k.N * D * H + 4);
            if (dbias) dbias[c] = 2 * (k.N + 2) * E * (k.N * D + 4);
        }
        if (sums) set_sums_tolerance(dx);
        compare(call_norm_backward);
    }
}

CLAIM(layernorm_backward_matches_the_reference) { norm_backward_matches(0, 0); }
CLAIM(rmsnorm_backward_matches_the_reference) { norm_backward_matches(1, 0); }

// Of tables that take them.
CLAIM(layernorm_backward_sums_what_it_leaves) {
    const Kernels* tables[CPU_ISAS];
    for (int t = 0, n = tested_tables(tables); t < n; t++) {
        if (!tables[t]->sums_dx) continue;
        only_table = tables[t];
        norm_backward_matches(0, 1);
        only_table = NULL;
    }
    k.sums = 0;
}

extern long emu_launches __attribute__((weak));  // test/emu/cudart.cc

CLAIM(sums_of_dx_are_no_launch_of_their_own) {
    const Kernels* tables[CPU_ISAS];
    k.dt = DT_BF16, k.rms = 0;
    set_row_size(12);
    size_t n = (size_t)k.N * k.C;
    k.x = input(n, k.dt, 0, 1), k.out = input(n, k.dt, 0, 1), k.weight = input(k.C, k.dt, 1, 0.5);
    k.rstd = input(k.N, DT_F32, 1, 0.05), k.dx = input(n, k.dt, 0, 1), k.dweight = input(k.C, DT_F32, 0, 1);
    k.mean = input(k.N, DT_F32, 0, 0.1), k.dbias = input(k.C, DT_F32, 0, 1), k.dx_sums = input(k.C, DT_F32, 0, 1);
    run_reference(call_norm_backward);
    for (int t = 0, n_tables = &emu_launches ? tested_tables(tables) : 0; t < n_tables; t++)
        for (k.sums = 0; k.sums <= 1; k.sums++) {
            long before = emu_launches;
            run_table(tables[t], 1, call_norm_backward);
            CHECK(emu_launches == before + 2);
        }
    free_buffers();
    k.sums = 0;
}

// The order of a row's elements is no part of a norm: a wrong eps, or one that is left out, shows where x is small.
CLAIM(eps_is_added_to_the_mean_square) {
    for (k.rms = 0; k.rms <= 1; k.rms++) {
        set_row_size(10);
        k.dt = DT_F32, k.residual = 0;
        size_t n = (size_t)k.N * k.C;
        k.x = input(n, k.dt, 0, 1e-3), k.weight = input(k.C, k.dt, 1, 0), k.out = output(n, k.dt);
        k.rstd = output(k.N, DT_F32);
        if (!k.rms) k.bias = input(k.C, k.dt, 0, 0), k.mean = output(k.N, DT_F32);
        run_reference(call_norm);
        for (int row = 0; row < k.N; row++) {
            double mean = 0, square = 0;
            for (int c = 0; c < k.C && !k.rms; c++) mean += get(k.x, (size_t)row * k.C + c) / k.C;
            for (int c = 0; c < k.C; c++) square += pow(get(k.x, (size_t)row * k.C + c) - mean, 2) / k.C;
            CHECK_CLOSE(get(k.rstd, row), 1 / sqrt(square + 1e-5), 1e-4);  // 1 / sqrt(1e-6) without eps
        }
        set_norm_tolerance(k.x);
        compare(call_norm);
    }
}

// ---- rotary positions. With error = sum_error(HS) of a norm's mean: a normed element is off by error + 4 E of itself,
// a result by 3 E of both products. Backward, with G the largest |g weight|, H the largest |xhat| and D the largest
// |g|: dx as in a norm, where g itself is off by 3 E of sqrt(2) D; dweight adds N heads, in fp32 on either side.

static Rotary rotary(const Kernels* t) {
    Rotary r = {
        (const int*)data(k.positions), (const float*)data(k.table), k.N, k.NH, k.NKV, k.HS, 0, NULL, NULL, 1e-6f};
    r.ld = (k.NH + k.NKV) * k.HS + k.pad;
    if (k.qk_norm) r.q_weight = data(k.weight), r.k_weight = data(k.k_weight);
    (void)t;
    return r;
}

static void call_rotary(const Kernels* t) {
    Rotary r = rotary(t);
    t->rotary_forward(data(k.x), k.qk_norm ? data(k.raw) : NULL, &r, k.dt, NULL);
}

static void call_rotary_backward(const Kernels* t) {
    Rotary r = rotary(t);
    t->rotary_backward(data(k.dx), k.qk_norm ? (float*)data(k.dweight) : NULL,
                       k.qk_norm ? (float*)data(k.dk_weight) : NULL, k.qk_norm ? data(k.raw) : NULL, &r, k.dt, NULL);
}

enum { CONTEXT = 37 };

// Odd counts of heads, halves around the vector lengths, and more than one thread takes.
static const int rotary_sizes[][4] = {  // N, NH, NKV, HS
    {0, 2, 1, 8},  {1, 1, 1, 2},  {3, 2, 1, 4},   {5, 3, 3, 6},    {9, 4, 2, 16},   {7, 5, 1, 30},  {11, 2, 2, 32},
    {4, 3, 1, 34}, {6, 7, 1, 66}, {70, 4, 2, 64}, {33, 3, 1, 128}, {300, 6, 3, 10}, {17, 14, 2, 64}};

static void set_rotary(int i) {
    static const int pads[] = {0, 8, 5};
    k.N = at_most(rotary_sizes[i][0], 20), k.NH = rotary_sizes[i][1], k.NKV = rotary_sizes[i][2];
    k.HS = rotary_sizes[i][3], k.pad = pads[i % 3];
    world.limits = row_limits(k.N, 8, k.dt);
    world.limits.NH = k.NH, world.limits.NKV = k.NKV, world.limits.HS = k.HS;
    k.table = output((size_t)CONTEXT * k.HS, DT_F32), k.positions = output(k.N, DT_F32);
    for (int p = 0; p < CONTEXT; p++)
        for (int j = 0; j < k.HS / 2; j++) {
            double angle = p * pow(10000, -2.0 * j / k.HS);
            set(k.table, (size_t)p * k.HS + 2 * j, cos(angle)), set(k.table, (size_t)p * k.HS + 2 * j + 1, sin(angle));
        }
    for (int n = 0; n < k.N; n++) set_int(k.positions, n, (n * 7 + i) % CONTEXT);
    if (k.qk_norm) k.weight = input(k.HS, k.dt, 1, 0.5), k.k_weight = input(k.HS, k.dt, 1, 0.5);
}

static double cosine(int n, int j) { return get(k.table, (size_t)get_int(k.positions, n) * k.HS + 2 * j); }
static double sine(int n, int j) { return get(k.table, (size_t)get_int(k.positions, n) * k.HS + 2 * j + 1); }

// f(first element of the head in x, row, head) for all heads.
static void for_heads(void (*f)(size_t, int, int)) {
    for (int n = 0; n < k.N; n++)
        for (int h = 0; h < k.NH + k.NKV; h++) f((size_t)n * ((k.NH + k.NKV) * k.HS + k.pad) + h * k.HS, n, h);
}

// The head as the reference should leave it, from what it was at the start.
static void check_rotated(size_t at, int n, int h) {
    double square = 0, *tolerance = world.b[k.x].tolerance;
    const char* start = world.b[k.x].start;
    int weight = h < k.NH ? k.weight : k.k_weight, half = k.HS / 2;
    for (int j = 0; j < k.HS; j++) square += pow(get_from(start, k.dt, at + j), 2) / k.HS;
    double rstd = k.qk_norm ? 1 / sqrt(square + 1e-6) : 1, error = k.qk_norm ? sum_error(k.HS) + 4 * E : 0;
    for (int j = 0; j < half; j++) {
        double low = get_from(start, k.dt, at + j) * rstd, high = get_from(start, k.dt, at + half + j) * rstd;
        if (k.qk_norm) low *= get(weight, j), high *= get(weight, half + j);
        double c = cosine(n, j), s = sine(n, j), first = low * c - high * s, second = high * c + low * s;
        double rounding = k.dt == DT_BF16 ? 1.0 / 256 : 2 * E;
        CHECK_CLOSE(get(k.x, at + j), first, rounding * fabs(first) + 1e-12);
        CHECK_CLOSE(get(k.x, at + half + j), second, rounding * fabs(second) + 1e-12);
        tolerance[at + j] = (error + 3 * E) * (fabs(low * c) + fabs(high * s));
        tolerance[at + half + j] = (error + 3 * E) * (fabs(high * c) + fabs(low * s));
        for (int part = 0; part < 2 && k.qk_norm; part++) {
            size_t in_raw = ((size_t)n * (k.NH + k.NKV) + h) * k.HS + j + part * half;
            CHECK(get(k.raw, in_raw) == get_from(start, k.dt, at + j + part * half));
        }
    }
}

// In place; what lies behind the heads of a row, the values, stays.
static void rotary_matches(int qk_norm) {
    k.qk_norm = qk_norm;
    FOR_DTYPES for (int i = 0; i < COUNT(rotary_sizes); i++) {
        set_rotary(i);
        size_t width = (size_t)(k.NH + k.NKV) * k.HS;
        k.x = input(k.N * (width + k.pad), k.dt, 0.3, 1);
        if (qk_norm) k.raw = output(k.N * width, k.dt);
        run_reference(call_rotary);
        tolerate(k.x);
        for_heads(check_rotated);
        compare(call_rotary);
    }
}

CLAIM(rotary_turns_every_head_by_its_position) { rotary_matches(0); }
CLAIM(rotary_norms_queries_and_keys_before_it_turns_them) { rotary_matches(1); }

static double most_xhat;

static void find_most_xhat(size_t at, int n, int h) {
    double square = 0, most = 0;
    size_t raw = ((size_t)n * (k.NH + k.NKV) + h) * k.HS;
    for (int j = 0; j < k.HS; j++)
        square += pow(get(k.raw, raw + j), 2) / k.HS, most = MAX(most, fabs(get(k.raw, raw + j)));
    most_xhat = MAX(most_xhat, most / sqrt(square + 1e-6));
    (void)at;
}

static void set_back_tolerance(size_t at, int n, int h) {
    double *dx = world.b[k.dx].tolerance, rstd = 1, G = 0, D = 0, error = sum_error(k.HS), square = 0;
    const char* start = world.b[k.dx].start;
    size_t raw = ((size_t)n * (k.NH + k.NKV) + h) * k.HS;
    for (int j = 0; j < k.HS; j++) {
        double w = k.qk_norm ? fabs(get(h < k.NH ? k.weight : k.k_weight, j)) : 1;
        double d = fabs(get_from(start, k.dt, at + j)) + fabs(get_from(start, k.dt, at + (j + k.HS / 2) % k.HS));
        G = MAX(G, d * w), D = MAX(D, d);
        if (k.qk_norm) square += pow(get(k.raw, raw + j), 2) / k.HS;
    }
    if (k.qk_norm) rstd = 1 / sqrt(square + 1e-6);
    for (int j = 0; j < k.HS; j++)
        dx[at + j] = k.qk_norm ? rstd * G * (error * (2 + 4 * most_xhat * most_xhat) + 8 * E) : 3 * E * D;
}

static void rotary_backward_matches(int qk_norm) {
    k.qk_norm = qk_norm;
    FOR_DTYPES for (int i = 0; i < COUNT(rotary_sizes); i++) {
        set_rotary(i);
        size_t width = (size_t)(k.NH + k.NKV) * k.HS;
        k.dx = input(k.N * (width + k.pad), k.dt, 0, 1);
        if (qk_norm) {
            k.raw = input(k.N * width, k.dt, 0.3, 1);
            k.dweight = input(k.HS, DT_F32, 0, 1), k.dk_weight = input(k.HS, DT_F32, 0, 1);
        }
        run_reference(call_rotary_backward);
        tolerate(k.dx), most_xhat = 0;
        double D = 2 * largest(k.dx), *dq = qk_norm ? tolerate(k.dweight) : NULL,
               *dk = qk_norm ? tolerate(k.dk_weight) : NULL;
        for (size_t j = 0; j < world.b[k.dx].n; j++) D = MAX(D, 2 * fabs(get_from(world.b[k.dx].start, k.dt, j)));
        if (qk_norm) for_heads(find_most_xhat);
        for_heads(set_back_tolerance);
        for (int j = 0; j < k.HS && qk_norm; j++) {
            double n_q = k.N * k.NH, n_k = k.N * k.NKV, term = D * most_xhat, error = sum_error(k.HS) + 6 * E;
            dq[j] = 2 * (n_q + 2) * E * (n_q * term + 4) + error * n_q * term;
            dk[j] = 2 * (n_k + 2) * E * (n_k * term + 4) + error * n_k * term;
        }
        compare(call_rotary_backward);
    }
}

CLAIM(rotary_backward_turns_gradients_back) { rotary_backward_matches(0); }
CLAIM(rotary_backward_passes_the_norms_of_queries_and_keys) { rotary_backward_matches(1); }

static int has_own(const Kernels* t, const Kernels* r) {
    return t->norm_forward != r->norm_forward && t->norm_backward != r->norm_backward &&
           t->activation_forward != r->activation_forward && t->activation_backward != r->activation_backward &&
           t->rotary_forward != r->rotary_forward && t->rotary_backward != r->rotary_backward;
}

int main(void) {
    world.limits = row_limits(8, 8, DT_F32);
    claim_own_entries(has_own);
    run_claims();
    return test_done();
}
