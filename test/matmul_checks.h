// matmul_checks.h - what any table's three matmuls must do, checked against the reference in double.
//
// Tolerances. A sum of K products in fp32, in any order, is off by at most K 2^-24 S with S = sum |a| |b|; two more
// roundings are for the bias or the old value, which count in S too. A result in bf16 is rounded once more, by half a
// unit: at most 2^-8 of it. GELU and GELU' are off by 4 e-7 (of |x|, and absolute). With small integers every sum is
// exact: equality up to that rounding.
#pragma once
#include "test/tables.h"

typedef struct Shape {
    int N, C, OC;
} Shape;

// What is left to chance or switched on and off in a call.
typedef struct Options {
    DType dt;
    int exact;            // small integers
    int bias;             // with bias, or dbias
    int gelu;             // with GELU(out), or pre
    Epilogues epilogues;  // that the table was opened with
} Options;

enum { GUARD = 64 };  // bytes before and after each output

// ---- tensors

// Storage of exactly its size, so that a sanitizer sees a read beyond it, until free_tensors.
static void* tensors[32];
static int n_tensors;

static void* room(size_t bytes) { return tensors[n_tensors++] = malloc(bytes + (bytes == 0)); }
static void free_tensors(void) {
    while (n_tensors > 0) free(tensors[--n_tensors]);
}

static double* doubles(size_t n) { return (double*)room(n * sizeof(double)); }

// n elements of type dt between guards.
static void* tensor(size_t n, DType dt) {
    size_t bytes = n * dtype_bytes(dt);
    char* p = (char*)room(bytes + 2 * GUARD);
    memset(p, 0xa5, bytes + 2 * GUARD);
    return p + GUARD;
}

// For the table k: an input, and an output with its guards.
static void* in_of(const Kernels* k, void* p, size_t n, DType dt) {
    return there(k, p, n * dtype_bytes(dt) + (n == 0));
}
static void* out_of(const Kernels* k, void* p, size_t n, DType dt) {
    return (char*)there(k, (char*)p - GUARD, n * dtype_bytes(dt) + 2 * GUARD) + GUARD;
}

static int guards_hold(const void* p, size_t n, DType dt) {
    const unsigned char *before = (const unsigned char*)p - GUARD,
                        *after = (const unsigned char*)p + n * dtype_bytes(dt);
    int bad = 0;
    for (int i = 0; i < GUARD; i++) bad += before[i] != 0xa5 || after[i] != 0xa5;
    return bad == 0;
}

static double get(const void* p, size_t i, DType dt) {
    return dt == DT_F64   ? ((const double*)p)[i]
           : dt == DT_F32 ? ((const float*)p)[i]
                          : bf16_to_float(((const bf16*)p)[i]);
}

// An input; the same values in double to *copy.
static void* input(size_t n, const Options* o, uint64_t seed, double** copy) {
    char* p = (char*)room(n * dtype_bytes(o->dt));
    *copy = doubles(n);
    for (size_t i = 0; i < n; i++) {
        uint64_t h = hash64(seed * 1000003 + i);
        float x = o->exact ? (float)(int)(h % 9) - 4 : (float)(int32_t)h * 0x1p-31f;
        if (o->dt == DT_BF16) ((bf16*)p)[i] = bf16_from_float(x);
        else ((float*)p)[i] = x;
        (*copy)[i] = get(p, i, o->dt);
    }
    return p;
}

static double* magnitudes(const double* x, size_t n) {
    double* p = doubles(n);
    for (size_t i = 0; i < n; i++) p[i] = fabs(x[i]);
    return p;
}

// ---- comparison

static double gelu_in_double(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

// Counts elements of p that differ from `expected` by more than bound[i], and a bf16 rounding; prints the first.
static int wrong_elements(const char* what, const Shape* s, const Options* o, const void* p, DType dt,
                          const double* expected, const double* bound, size_t n) {
    int wrong = 0;
    for (size_t i = 0; i < n; i++) {
        double found = get(p, i, dt), tolerance = bound[i] + (dt == DT_BF16 ? fabs(expected[i]) / 256 : 0);
        if (fabs(found - expected[i]) <= tolerance || wrong++ || test_failures_in_claim > 10) continue;
        printf("    %s N %d C %d OC %d %s exact %d bias %d gelu %d: element %zu is %.9g, expected %.9g within %.3g\n",
               what, s->N, s->C, s->OC, dtype_name(o->dt), o->exact, o->bias, o->gelu, i, found, expected[i],
               tolerance);
    }
    return wrong;
}

// From the reference's sums of magnitudes to error bounds, in place.
static void to_bounds(double* magnitude, size_t n, int K, const Options* o) {
    for (size_t i = 0; i < n; i++) magnitude[i] *= o->exact ? 0 : (K + 2) * 0x1p-24;
}

// ---- one call of each matmul

static void check_forward(const Kernels* k, const Shape* s, const Options* o) {
    size_t x_n = (size_t)s->N * s->C, weight_n = (size_t)s->OC * s->C, n = (size_t)s->N * s->OC;
    double *x64, *weight64, *bias64;
    void *x = input(x_n, o, 1, &x64), *weight = input(weight_n, o, 2, &weight64),
         *bias = input((size_t)s->OC, o, 3, &bias64);
    double *xm = magnitudes(x64, x_n), *weightm = magnitudes(weight64, weight_n),
           *biasm = magnitudes(bias64, (size_t)s->OC);
    double *expected = doubles(n), *bound = doubles(n);
    cpu_reference.matmul_forward(expected, NULL, x64, weight64, o->bias ? bias64 : NULL, s->N, s->C, s->OC, DT_F64,
                                 NULL);
    cpu_reference.matmul_forward(bound, NULL, xm, weightm, o->bias ? biasm : NULL, s->N, s->C, s->OC, DT_F64, NULL);
    to_bounds(bound, n, s->C, o);
    void *out = tensor(n, o->dt), *gelu = tensor(n, o->dt), *again = tensor(n, o->dt);
    k->matmul_forward(out_of(k, out, n, o->dt), o->gelu ? out_of(k, gelu, n, o->dt) : NULL, in_of(k, x, x_n, o->dt),
                      in_of(k, weight, weight_n, o->dt), o->bias ? in_of(k, bias, (size_t)s->OC, o->dt) : NULL, s->N,
                      s->C, s->OC, o->dt, NULL);
    bring_back();
    CHECK(wrong_elements("forward", s, o, out, o->dt, expected, bound, n) == 0);
    CHECK(guards_hold(out, n, o->dt) && guards_hold(gelu, n, o->dt));
    if (o->gelu) {  // of the output as it was stored, and the very bits of the same set's activation_forward
        for (size_t i = 0; i < n; i++) {
            double y = get(out, i, o->dt);
            expected[i] = gelu_in_double(y);
            bound[i] = 4e-7 * fabs(y);
            // Fused, it is of the sum before it was rounded to bf16; the slope is below 1.13.
            if (o->epilogues == EPILOGUE_ALL && o->dt == DT_BF16) bound[i] += 1.13 / 256 * fabs(y);
        }
        CHECK(wrong_elements("gelu", s, o, gelu, o->dt, expected, bound, n) == 0);
        k->activation_forward(out_of(k, again, n, o->dt), out_of(k, out, n, o->dt), ACT_GELU, 1, (int)n, o->dt, NULL);
        bring_back();
        if (k->activation_forward != cpu_reference.activation_forward && o->epilogues != EPILOGUE_ALL)
            CHECK(memcmp(again, gelu, n * dtype_bytes(o->dt)) == 0);
    }
    free_tensors();
}

static void check_backward_input(const Kernels* k, const Shape* s, const Options* o) {
    size_t dout_n = (size_t)s->N * s->OC, weight_n = (size_t)s->OC * s->C, n = (size_t)s->N * s->C;
    double *dout64, *weight64, *pre64;
    void *dout = input(dout_n, o, 4, &dout64), *weight = input(weight_n, o, 5, &weight64),
         *pre = input(n, o, 6, &pre64);
    double *doutm = magnitudes(dout64, dout_n), *weightm = magnitudes(weight64, weight_n);
    double *expected = doubles(n), *bound = doubles(n);
    cpu_reference.matmul_backward_input(expected, dout64, weight64, o->gelu ? pre64 : NULL, s->N, s->C, s->OC, DT_F64,
                                        NULL);
    cpu_reference.matmul_backward_input(bound, doutm, weightm, NULL, s->N, s->C, s->OC, DT_F64, NULL);
    for (size_t i = 0; i < n; i++) {  // |GELU'| < 1.2
        bound[i] = bound[i] * ((o->exact ? 0 : 1.2 * (s->OC + 2) * 0x1p-24) + (o->gelu ? 4e-7 : 0));
#ifdef TEST_DEVICE
        if (o->gelu && o->dt == DT_BF16) bound[i] += fabs(expected[i]) / 256;  // the sum is rounded before the factor
#endif
    }
    void* dx = tensor(n, o->dt);
    k->matmul_backward_input(out_of(k, dx, n, o->dt), in_of(k, dout, dout_n, o->dt), in_of(k, weight, weight_n, o->dt),
                             o->gelu ? in_of(k, pre, n, o->dt) : NULL, s->N, s->C, s->OC, o->dt, NULL);
    bring_back();
    CHECK(wrong_elements("backward_input", s, o, dx, o->dt, expected, bound, n) == 0);
    CHECK(guards_hold(dx, n, o->dt));
    free_tensors();
}

// The reference adds to fp32, so the sums in double come from its other two: dweight is a forward of transposed
// operands.
static void weight_gradient_in_double(double* out, const double* dout, const double* x, const Shape* s) {
    memset(out, 0, (size_t)s->OC * s->C * 8);
    for (size_t n = 0; n < (size_t)s->N; n++)
        for (size_t o = 0; o < (size_t)s->OC; o++)
            for (size_t c = 0; c < (size_t)s->C; c++) out[o * s->C + c] += dout[n * s->OC + o] * x[n * s->C + c];
}

static void check_backward_weight(const Kernels* k, const Shape* s, const Options* o) {
    size_t dout_n = (size_t)s->N * s->OC, x_n = (size_t)s->N * s->C, OC = (size_t)s->OC, n = OC * s->C;
    double *dout64, *x64;
    void *dout = input(dout_n, o, 7, &dout64), *x = input(x_n, o, 8, &x64);
    double *doutm = magnitudes(dout64, dout_n), *xm = magnitudes(x64, x_n);
    double *expected = doubles(n), *bound = doubles(n), *bias_expected = doubles(OC), *bias_bound = doubles(OC);
    memset(bias_expected, 0, OC * 8), memset(bias_bound, 0, OC * 8);
    weight_gradient_in_double(expected, dout64, x64, s);
    weight_gradient_in_double(bound, doutm, xm, s);
    for (size_t i = 0; i < dout_n; i++) bias_expected[i % OC] += dout64[i], bias_bound[i % OC] += doutm[i];
    float *dweight = (float*)tensor(n, DT_F32), *dbias = (float*)tensor(OC, DT_F32);
    for (size_t i = 0; i < n; i++) dweight[i] = (float)(i % 7), expected[i] += dweight[i], bound[i] += dweight[i];
    for (size_t i = 0; i < OC; i++) dbias[i] = (float)(i % 5), bias_expected[i] += dbias[i], bias_bound[i] += dbias[i];
    to_bounds(bound, n, s->N, o);
    to_bounds(bias_bound, OC, s->N, o);
    k->matmul_backward_weight((float*)out_of(k, dweight, n, DT_F32),
                              o->bias ? (float*)out_of(k, dbias, OC, DT_F32) : NULL, in_of(k, dout, dout_n, o->dt),
                              in_of(k, x, x_n, o->dt), s->N, s->C, s->OC, o->dt, NULL);
    bring_back();
    CHECK(wrong_elements("dweight", s, o, dweight, DT_F32, expected, bound, n) == 0);
    if (o->bias) CHECK(wrong_elements("dbias", s, o, dbias, DT_F32, bias_expected, bias_bound, OC) == 0);
    for (size_t i = 0; i < OC && !o->bias; i++) CHECK(dbias[i] == (float)(i % 5));
    CHECK(guards_hold(dweight, n, DT_F32) && guards_hold(dbias, OC, DT_F32));
    free_tensors();
}

// ---- what is checked of a table

// Every border of the blocking is crossed: 14 x 32 registers, blocks of 224 rows, 768 columns, 256 and 4096 deep
// (AVX-512); 32 x 32 tiles, blocks of 512 rows, 1024 and 4096 deep (AMX).
static const Shape shapes[] = {
    {0, 3, 5},     {1, 1, 1},    {1, 70, 65},  {70, 1, 1},     {2, 2, 2},     {13, 31, 33},
    {14, 32, 32},  {15, 33, 31}, {64, 64, 64}, {65, 63, 66},   {33, 257, 15}, {257, 33, 16},
    {16, 15, 257}, {230, 9, 7},  {7, 230, 9},  {9, 7, 230},    {700, 5, 17},  {5, 17, 800},
    {17, 800, 5},  {520, 9, 33}, {33, 520, 9}, {3, 1700, 35},  {1700, 35, 3}, {35, 3, 1700},
    {9, 4100, 5},  {5, 9, 4100}, {4100, 5, 9}, {240, 2, 4200}, {9, 8300, 3},
};
static const KernelLimits shape_limits = {.N = 4100, .C = 8300, .OC = 8300};

static void check_shape(const Kernels* k, const Shape* shape, const Options* o) {
    Shape s = {at_most(shape->N, 70), at_most(shape->C, 70), at_most(shape->OC, 70)};
    check_forward(k, &s, o);
    check_backward_input(k, &s, o);
    check_backward_weight(k, &s, o);
}

static void check_all_shapes(const Kernels* k, DType dt, Epilogues e) {
    for (int i = 0; i < COUNT(shapes); i++) check_shape(k, &shapes[i], &(Options){dt, i % 3 == 0, i % 2, i / 2 % 2, e});
    for (uint64_t i = 0; i < (WATCHED ? 4 : 40); i++) {
        uint64_t h = hash64(i);
        Shape s = {(int)(h % 70) + 1, (int)(h / 70 % 70) + 1, (int)(h / 4900 % 70) + 1};
        check_shape(k, &s, &(Options){dt, (int)(i % 2), (int)(i / 2 % 2), (int)(i / 4 % 2), e});
    }
}

// All results of a shape, one after another, on a given number of threads.
static void* all_results(const Kernels* k, const Shape* s, DType dt, int threads, size_t* bytes) {
    KernelLimits limits = {.N = s->N, .C = s->C, .OC = s->OC, .threads = threads, .dt = dt, .attention = ATTENTION_OWN};
    char err[ERR_BYTES];
    CHECK(k->open(&limits, err) == 0);
    Options o = {dt, 0, 1, 1, EPILOGUE_BIAS};
    double *x64, *weight64, *dout64;
    size_t e = dtype_bytes(dt), x_n = (size_t)s->N * s->C, dout_n = (size_t)s->N * s->OC,
           weight_n = (size_t)s->OC * s->C;
    void *x = input(x_n, &o, 1, &x64), *weight = input(weight_n, &o, 2, &weight64),
         *dout = input(dout_n, &o, 3, &dout64);
    *bytes = (weight_n + s->OC) * 4 + (2 * dout_n + x_n) * e;
    char* all = (char*)calloc(*bytes, 1);
    float *dweight = (float*)all, *dbias = dweight + weight_n;
    char *out = (char*)(dbias + s->OC), *gelu = out + dout_n * e, *dx = gelu + dout_n * e;
    size_t shift = (size_t)((char*)there(k, all, *bytes) - all);  // from host to device
    void *X = in_of(k, x, x_n, dt), *W = in_of(k, weight, weight_n, dt), *D = in_of(k, dout, dout_n, dt);
    k->matmul_forward(out + shift, gelu + shift, X, W, W, s->N, s->C, s->OC, dt, NULL);
    k->matmul_backward_input(dx + shift, D, W, X, s->N, s->C, s->OC, dt, NULL);
    k->matmul_backward_weight((float*)((char*)dweight + shift), (float*)((char*)dbias + shift), D, X, s->N, s->C, s->OC,
                              dt, NULL);
    bring_back();
    free_tensors();
    k->close();
    return all;
}

static void check_threads(const Kernels* k, DType dt) {
    static const Shape some[] = {{1, 40, 50},    {30, 33, 100},  {300, 270, 90},
                                 {90, 300, 800}, {60, 20, 4200}, {4200, 30, 20}};
    for (int i = 0; i < (WATCHED ? 2 : COUNT(some)); i++) {
        size_t bytes;
        void* one = all_results(k, &some[i], dt, 1, &bytes);
        for (int threads = 2; threads <= most_threads(); threads++) {
            void* many = all_results(k, &some[i], dt, threads, &bytes);
            CHECK(memcmp(one, many, bytes) == 0);
            free(many);
        }
        free(one);
    }
}

// One NaN or infinity of an operand reaches exactly the outputs that depend on it.
static void check_specials(const Kernels* k, DType dt) {
    enum { N = 37, C = 41, OC = 43 };
    static const float specials[] = {NAN, INFINITY};
    Options o = {dt, 1, 0, 0, EPILOGUE_BIAS};
    double *x64, *weight64;
    size_t n = OC * C + N * OC;
    void *x = input(N * C, &o, 1, &x64), *weight = input(OC * C, &o, 2, &weight64), *out = tensor(n, dt);
    float dweight[OC * C];
    for (int i = 0; i < 2; i++) {
        size_t row = 20, col = 40;  // the last column: the end of an odd depth, and of a row
        if (dt == DT_BF16) ((bf16*)x)[row * C + col] = bf16_from_float(specials[i]);
        else ((float*)x)[row * C + col] = specials[i];
        k->matmul_forward(out_of(k, out, n, dt), NULL, in_of(k, x, N * C, dt), in_of(k, weight, OC * C, dt), NULL, N, C,
                          OC, dt, NULL);
        bring_back();
        for (size_t j = 0; j < N * OC; j++) CHECK(isfinite(get(out, j, dt)) == (j / OC != row));
        // dout is x, and weight (C,OC)
        k->matmul_backward_input(out_of(k, out, n, dt), in_of(k, x, N * C, dt), in_of(k, weight, OC * C, dt), NULL, N,
                                 OC, C, dt, NULL);
        bring_back();
        for (size_t j = 0; j < N * OC; j++) CHECK(isfinite(get(out, j, dt)) == (j / OC != row));
        memset(dweight, 0, sizeof dweight);
        // dweight (C,OC), x is the first N rows of OC
        k->matmul_backward_weight((float*)in_of(k, dweight, OC * C, DT_F32), NULL, in_of(k, x, N * C, dt),
                                  in_of(k, weight, OC * C, dt), N, OC, C, dt, NULL);
        bring_back();
        for (size_t j = 0; j < C * OC; j++) CHECK(isfinite(dweight[j]) == (j / OC != col));
    }
    free_tensors();
}

// Everything above. The table is opened and closed here.
static void check_matmuls(const Kernels* k, DType dt, Epilogues epilogues) {
    KernelLimits limits = shape_limits;
    limits.attention = ATTENTION_OWN;
    limits.epilogues = epilogues;
    char err[ERR_BYTES];
    limits.threads = 2;
    limits.dt = dt;
    CHECK(k->open(&limits, err) == 0);
    check_all_shapes(k, dt, epilogues);
    check_specials(k, dt);
    k->close();
    check_threads(k, dt);
}
