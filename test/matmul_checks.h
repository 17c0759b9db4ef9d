// matmul_checks.h - what the three matmuls of every table under test must do, against the reference (op_checks.h).
//
// Tolerances. A sum of K products in fp32, in any order, is off by at most K 2^-24 S with S = sum |a| |b|; two more
// roundings are for the bias or the old value, which count in S too. GELU and GELU' are off by 4e-7 (of |x|, and
// absolute). With small integers every sum is exact.
#pragma once
#include "test/op_checks.h"

typedef struct Options {
    DType dt;
    int exact;       // small integers
    int bias;        // with bias, or dbias
    int gelu;        // with GELU(out), or pre
    double special;  // 0, or one element of an operand: the others are whole numbers above 0
} Options;

// The call that is tried.
static struct {
    int N, C, OC;
    Options o;
    int x, weight, bias, out, gelu, again;  // forward; again: GELU(out) by itself
    int dout, pre, dx, dweight, dbias;
} m;

static int operand(size_t n) {
    int buffer = output(n, m.o.dt);
    for (size_t i = 0; i < n; i++) {
        uint64_t h = hash64((uint64_t)(buffer + 1) * 1000003 + i);
        double x = m.o.special != 0 ? 1 + (int)(h % 5) : m.o.exact ? (int)(h % 9) - 4 : (float)(int32_t)h * 0x1p-31f;
        set(buffer, i, x);
    }
    return buffer;
}

// The last element of a row in the middle: the end of an odd depth.
static void set_special(int buffer, int rows, int cols) {
    if (m.o.special != 0) set(buffer, (size_t)(rows / 2) * cols + cols - 1, m.o.special);
}

// How far a sum of K products may be off; those of element first + k step of each operand.
static double sum_error(int a, size_t first_a, size_t step_a, int b, size_t first_b, size_t step_b, int K,
                        double more) {
    double S = more;
    for (size_t k = 0; k < (size_t)K && !m.o.exact; k++)
        S += fabs(get(a, first_a + k * step_a) * get(b, first_b + k * step_b));
    return m.o.exact ? 0 : (K + 2) * E * S;
}

static void call_forward(const Kernels* t) {
    t->matmul_forward(data(m.out), m.o.gelu ? data(m.gelu) : NULL, data(m.x), data(m.weight),
                      m.o.bias ? data(m.bias) : NULL, m.N, m.C, m.OC, m.o.dt, NULL);
    if (m.o.gelu) t->activation_forward(data(m.again), data(m.out), ACT_GELU, 1, m.N * m.OC, m.o.dt, NULL);
}

// GELU is of the output as it was stored: the very bits of the same table's activation_forward.
static void check_gelu(const Kernels* t) {
    if (t->activation_forward != cpu_reference.activation_forward)
        CHECK(!memcmp(host_data(m.gelu), host_data(m.again), world.b[m.gelu].n * dtype_bytes(m.o.dt)));
}

static void try_forward(void) {
    size_t n = (size_t)m.N * m.OC;
    m.x = operand((size_t)m.N * m.C), m.weight = operand((size_t)m.OC * m.C), m.bias = operand((size_t)m.OC);
    m.out = output(n, m.o.dt);
    if (m.o.gelu) m.gelu = output(n, m.o.dt), m.again = output(n, m.o.dt), world.check = check_gelu;
    set_special(m.x, m.N, m.C);
    run_reference(call_forward);
    double* out = tolerate(m.out);
    for (size_t i = 0; i < n; i++)
        out[i] = sum_error(m.x, i / m.OC * m.C, 1, m.weight, i % m.OC * m.C, 1, m.C,
                           m.o.bias ? fabs(get(m.bias, i % m.OC)) : 0);
    for (int k = 0; k < 2 && m.o.gelu; k++) {
        double* gelu = tolerate(k ? m.again : m.gelu);
        for (size_t i = 0; i < n; i++) {
            double y = fabs(get(m.out, i));
            gelu[i] = 1.13 * (out[i] + (m.o.dt == DT_BF16 ? y / 128 : 0)) + 4e-7 * y;
        }
    }
    compare(call_forward);
}

static void call_backward_input(const Kernels* t) {
    t->matmul_backward_input(data(m.dx), data(m.dout), data(m.weight), m.o.gelu ? data(m.pre) : NULL, m.N, m.C, m.OC,
                             m.o.dt, NULL);
}

static void try_backward_input(void) {
    size_t n = (size_t)m.N * m.C;
    m.dout = operand((size_t)m.N * m.OC), m.weight = operand((size_t)m.OC * m.C), m.pre = operand(n);
    m.dx = output(n, m.o.dt);
    set_special(m.dout, m.N, m.OC);
    run_reference(call_backward_input);
    double* dx = tolerate(m.dx);
    for (size_t i = 0; i < n; i++) {  // |GELU'| < 1.2
        double S = 0;
        for (size_t o = 0; o < (size_t)m.OC && (m.o.gelu || !m.o.exact); o++)
            S += fabs(get(m.dout, i / m.C * m.OC + o) * get(m.weight, o * m.C + i % m.C));
        double slope = TESTS_DEVICE ? 2e-6 : 4e-7;  // cuBLASLt's, as seen on an H100, or ours
        dx[i] = S * ((m.o.exact ? 0 : 1.2 * (m.OC + 2) * E) + (m.o.gelu ? slope + 2 * E : 0));
        // On a device the sum is rounded before the factor.
        if (TESTS_DEVICE && m.o.gelu && m.o.dt == DT_BF16) dx[i] += fabs(get(m.dx, i)) / 256;
    }
    compare(call_backward_input);
}

static void call_backward_weight(const Kernels* t) {
    t->matmul_backward_weight((float*)data(m.dweight), m.o.bias ? (float*)data(m.dbias) : NULL, data(m.dout), data(m.x),
                              m.N, m.C, m.OC, m.o.dt, NULL);
}

static void try_backward_weight(void) {
    size_t n = (size_t)m.OC * m.C;
    m.dout = operand((size_t)m.N * m.OC), m.x = operand((size_t)m.N * m.C);
    m.dweight = output(n, DT_F32), m.dbias = output((size_t)m.OC, DT_F32);
    for (size_t i = 0; i < n; i++) set(m.dweight, i, (double)(i % 7));
    for (size_t i = 0; i < (size_t)m.OC; i++) set(m.dbias, i, (double)(i % 5));
    set_special(m.x, m.N, m.C);
    run_reference(call_backward_weight);
    double *dweight = tolerate(m.dweight), *dbias = tolerate(m.dbias);
    for (size_t i = 0; i < n; i++)
        dweight[i] = sum_error(m.dout, i / m.C, (size_t)m.OC, m.x, i % m.C, (size_t)m.C, m.N, (double)(i % 7));
    for (size_t o = 0; o < (size_t)m.OC && m.o.bias && !m.o.exact; o++) {
        double S = (double)(o % 5);
        for (size_t row = 0; row < (size_t)m.N; row++) S += fabs(get(m.dout, row * m.OC + o));
        dbias[o] = (m.N + 2) * E * S;
    }
    compare(call_backward_weight);
}

// Every border of the blocking is crossed: 14 x 32 registers, blocks of 224 rows, 768 columns, 256 and 4096 deep
// (AVX-512); 32 x 32 tiles, blocks of 256 rows, 512, 1024 and 4096 deep (AMX). The last ones are divided among
// threads.
static const int matmul_sizes[][3] = {  // N, C, OC
    {0, 3, 5},     {1, 1, 1},     {1, 70, 65},    {70, 1, 1},     {2, 2, 2},       {13, 31, 33},  {14, 32, 32},
    {15, 33, 31},  {64, 64, 64},  {65, 63, 66},   {33, 257, 15},  {257, 33, 16},   {16, 15, 257}, {230, 9, 7},
    {7, 230, 9},   {9, 7, 230},   {700, 5, 17},   {5, 17, 800},   {17, 800, 5},    {520, 9, 33},  {33, 520, 9},
    {3, 1700, 35}, {1700, 35, 3}, {35, 3, 1700},  {9, 4100, 5},   {5, 9, 4100},    {4100, 5, 9},  {240, 2, 4200},
    {9, 8300, 3},  {300, 70, 90}, {90, 100, 200}, {64, 1100, 70}, {100, 768, 800}, {1200, 30, 20}};

static void try_matmuls(int N, int C, int OC, Options o) {
    m.N = at_most(N, 70), m.C = at_most(C, 70), m.OC = at_most(OC, 70), m.o = o;
    world.limits = (KernelLimits){.N = m.N, .C = m.C, .OC = m.OC, .NH = 1, .NKV = 1, .HS = 8, .context = 8, .dt = o.dt};
    world.limits.attention = ATTENTION_OWN;
    try_forward(), try_backward_input(), try_backward_weight();
}

static void check_matmuls(DType dt) {
    static const double specials[] = {NAN, INFINITY};
    for (int i = 0; i < COUNT(matmul_sizes); i++) {
        const int* size = matmul_sizes[i];
        try_matmuls(size[0], size[1], size[2], (Options){dt, i % 3 == 0, i % 2, i / 2 % 2, 0});
    }
    for (int i = 0; i < (WATCHED ? 4 : TESTS_DEVICE ? 8 : 20); i++) {
        uint64_t h = hash64((uint64_t)i);
        int N = (int)(h % 70) + 1, C = (int)(h / 70 % 70) + 1, OC = (int)(h / 4900 % 70) + 1;
        try_matmuls(N, C, OC, (Options){dt, i % 2, i / 2 % 2, i / 4 % 2, 0});
    }
    // One NaN or infinity of an operand reaches exactly the outputs that depend on it.
    for (int i = 0; i < COUNT(specials); i++) try_matmuls(37, 41, 43, (Options){dt, 1, 0, 0, specials[i]});
}
