// test_fp8_ops.c - E4M3 by the specification's own numbers; quantising, and matmuls of what is quantised, by every
// instruction set that this machine has, or the device under test, beside the reference.
//
// Tolerance of a matmul: as in matmul_checks.h, and an ulp of bf16 for results that are rounded to the other side.
#include "test/tables.h"

#include <math.h>

static const double E = 1.0 / (1 << 24);

// ---- the numbers

// S.EEEE.MMM as the specification reads it.
static double value_of(int code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    if (exponent == 15 && mantissa == 7) return NAN;
    return code & 0x80 ? -size : size;
}

CLAIM(e4m3_has_the_numbers_of_the_specification) {
    CHECK(value_of(0x7e) == 448 && value_of(0x08) == 0x1p-6 && value_of(0x01) == 0x1p-9);  // its table 1
    for (int code = 0; code < 256; code++) {
        float x = e4m3_to_float((e4m3)code);
        if (isnan(value_of(code))) CHECK(isnan(x));
        else CHECK(x == value_of(code) && !signbit(x) == (code < 128));
        if (!isnan(x)) CHECK(e4m3_from_float(x) == code && bf16_to_float(bf16_from_float(x)) == x);
    }
}

CLAIM(numbers_are_rounded_to_the_nearest_ties_to_even_and_saturated) {
    for (int code = 0; code < 0x7e; code++) {
        float low = e4m3_to_float((e4m3)code), high = e4m3_to_float((e4m3)(code + 1)), middle = (low + high) / 2;
        for (int sign = 0; sign <= 128; sign += 128) {
            float factor = sign ? -1 : 1;
            CHECK(e4m3_from_float(factor * middle) == (code + code % 2) + sign);
            CHECK(e4m3_from_float(factor * nextafterf(middle, 0)) == code + sign);
            CHECK(e4m3_from_float(factor * nextafterf(middle, 1e9f)) == code + 1 + sign);
        }
    }
    static const float beyond[] = {448, 448.1f, 464, 465, 480, 1e9f, 3e38f, INFINITY};
    for (int i = 0; i < COUNT(beyond); i++)
        CHECK(e4m3_from_float(beyond[i]) == 0x7e && e4m3_from_float(-beyond[i]) == 0xfe);
    CHECK((e4m3_from_float(NAN) & 0x7f) == 0x7f && e4m3_from_float(-0.0f) == 0x80 && e4m3_from_float(1e-40f) == 0);
}

// ---- tensors, where a table finds them

enum { MOST_TENSORS = 12, GUARD = 64 };  // bytes behind each that nobody may change

static struct {
    const Kernels* k;
    char *host, *device;
    size_t bytes;
} tensors[MOST_TENSORS];
static int n_tensors;

// A tensor of a table: zeros, or what `from` has. Returns where the table finds it.
static void* tensor(const Kernels* k, const void* from, size_t bytes) {
    int i = n_tensors++;
    tensors[i].k = k, tensors[i].bytes = bytes;
    tensors[i].host = (char*)calloc(1, bytes + GUARD);
    if (from) memcpy(tensors[i].host, from, bytes);
    memset(tensors[i].host + bytes, 0x5a, GUARD);
    tensors[i].device = (char*)k->alloc(bytes + GUARD);
    k->upload(tensors[i].device, tensors[i].host, bytes + GUARD, NULL);
    k->synchronize(NULL);
    return tensors[i].device;
}

static void bring_tensors(void) {
    for (int i = 0; i < n_tensors; i++) {
        tensors[i].k->download(tensors[i].host, tensors[i].device, tensors[i].bytes + GUARD, NULL);
        for (int g = 0; g < GUARD; g++) CHECK(tensors[i].host[tensors[i].bytes + (size_t)g] == 0x5a);
    }
}

static void free_tensors(void) {
    for (; n_tensors > 0; n_tensors--) {
        tensors[n_tensors - 1].k->free_memory(tensors[n_tensors - 1].device);
        free(tensors[n_tensors - 1].host);
    }
}

static bf16* numbers(size_t n, double deviation, uint64_t seed) {
    bf16* x = (bf16*)malloc(n * sizeof *x + 1);
    for (size_t i = 0; i < n; i++) x[i] = bf16_from_float((float)(deviation * random_normal(seed, i)));
    return x;
}

// The tables under test, each open; the reference is not one of them.
static int open_tables(const Kernels* tables[CPU_ISAS], int N, int C) {
    char err[ERR_BYTES];
    KernelLimits limits = {
        .N = N, .C = C, .OC = C, .NH = 1, .NKV = 1, .HS = 8, .context = 8, .threads = most_threads()};
    limits.attention = ATTENTION_OWN, limits.dt = DT_BF16;
    int n = tested_tables(tables);
    for (int t = 0; t < n; t++) CHECK(tables[t]->open(&limits, err) == 0);
    return n;
}

// ---- quantising

typedef struct Quantised {
    e4m3* codes;
    float amax;
} Quantised;

// way: 0 straight, 1 transposed, 2 only the greatest, 3 without it.
static Quantised quantise(const Kernels* k, const bf16* x, float scale, float amax, int way, int N, int C) {
    size_t n = (size_t)N * (size_t)C;
    e4m3* codes = (e4m3*)tensor(k, NULL, n);
    float *most = (float*)tensor(k, &amax, sizeof amax), *factor = (float*)tensor(k, &scale, sizeof scale);
    const bf16* in = (const bf16*)tensor(k, x, n * sizeof *x);
    k->ranks->quantize(way == 2 ? NULL : codes, way == 3 ? NULL : most, in, factor, way == 1, N, C, NULL);
    bring_tensors();
    Quantised q = {(e4m3*)memcpy(malloc(n + 1), tensors[0].host, n), 0};
    memcpy(&q.amax, tensors[1].host, sizeof q.amax);
    free_tensors();
    return q;
}

CLAIM(quantising_gives_the_bits_of_the_reference) {
    static const int sizes[][2] = {{0, 16}, {1, 16}, {7, 48}, {16, 16}, {48, 80}, {33, 160}, {64, 1024}, {320, 272}};
    const Kernels* tables[CPU_ISAS];
    int n = open_tables(tables, 320, 1024);
    for (int i = 0; i < COUNT(sizes); i++) {
        int N = at_most(sizes[i][0], 64), C = at_most(sizes[i][1], 64);
        bf16* x = numbers((size_t)N * C, i % 2 ? 3 : 0.01, (uint64_t)i);
        for (int way = 0; way < 4; way++) {
            if (way == 1 && N % 16) continue;
            float scale = i % 2 ? 60 : 3000.0f, amax = i % 3 ? 0 : 7;  // some saturate, some are below the least
            Quantised wanted = quantise(reference(), x, scale, amax, way, N, C);
            for (int at = 0; at < N * C && way < 2; at++)
                CHECK(wanted.codes[way ? at % C * N + at / C : at] == e4m3_from_float(bf16_to_float(x[at]) * scale));
            for (int t = 0; t < n; t++) {
                Quantised found = quantise(tables[t], x, scale, amax, way, N, C);
                CHECK(found.amax == wanted.amax && !memcmp(found.codes, wanted.codes, (size_t)N * C));
                free(found.codes);
            }
            free(wanted.codes);
        }
        free(x);
    }
    for (int t = 0; t < n; t++) tables[t]->close();
}

CLAIM(the_greatest_magnitude_is_raised_and_never_lowered) {
    const Kernels* tables[CPU_ISAS];
    int n = open_tables(tables, 64, 64), places[] = {0, 17, 64 * 64 - 1};
    for (int t = 0; t < n; t++)
        for (int i = 0; i < COUNT(places); i++) {
            bf16* x = numbers(64 * 64, 0.1, 3);
            x[places[i]] = bf16_from_float(i % 2 ? 100 : -100);
            for (int way = 0; way < 3; way++)
                for (int held = 0; held < 2; held++) {
                    Quantised q = quantise(tables[t], x, 1, held ? 200 : 0, way, 64, 64);
                    CHECK(q.amax == (held ? 200 : 100));
                    free(q.codes);
                }
            free(x);
        }
    for (int t = 0; t < n; t++) tables[t]->close();
}

// ---- matmuls

enum { WITH_BIAS = 1, WITH_GELU = 2, WITH_PRE = 4 };

// Every element of x and w is one of E4M3's. Fills out (N,OC) and gelu.
static void multiply(const Kernels* k, bf16* out, bf16* gelu, const e4m3* x, const e4m3* w, const bf16* bias,
                     const bf16* pre, const float units[2], int with, int N, int K, int OC) {
    size_t in_x = (size_t)N * K, in_w = (size_t)OC * K, n = (size_t)N * OC;
    Fp8Matmul m = {.N = N, .K = K, .OC = OC, .k = k};
    m.out = tensor(k, NULL, n * sizeof(bf16)), m.gelu = tensor(k, NULL, n * sizeof(bf16));
    m.x = (e4m3*)tensor(k, x, in_x), m.w = (e4m3*)tensor(k, w, in_w);
    m.x_unit = (float*)tensor(k, &units[0], sizeof(float)), m.w_unit = (float*)tensor(k, &units[1], sizeof(float));
    m.bias = tensor(k, bias, (size_t)OC * sizeof(bf16)), m.pre = tensor(k, pre, n * sizeof(bf16));
    m.room = (bf16*)tensor(k, NULL, (in_x + in_w) * sizeof(bf16));
    if (!(with & WITH_GELU)) m.gelu = NULL;
    if (!(with & WITH_BIAS)) m.bias = NULL;
    if (!(with & WITH_PRE)) m.pre = NULL;
    k->ranks->matmul_fp8(&m, NULL);
    bring_tensors();
    memcpy(out, tensors[0].host, n * sizeof(bf16)), memcpy(gelu, tensors[1].host, n * sizeof(bf16));
    free_tensors();
}

static double gelu_slope(double x) {
    double u = sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x), t = tanh(u);
    return (1 + t) / 2 + x * (1 - t * t) / 2 * sqrt(2 / 3.14159265358979323846) * (1 + 3 * 0.044715 * x * x);
}

static void try_matmul(const Kernels* k, int N, int K, int OC, int with) {
    const float units[2] = {0.37f, 0.0123f};
    size_t in_x = (size_t)N * K, in_w = (size_t)OC * K, n = (size_t)N * OC;
    e4m3 *x = (e4m3*)malloc(in_x + 1), *w = (e4m3*)malloc(in_w + 1);
    bf16 *bias = numbers((size_t)OC, 1, 5), *pre = numbers(n, 1, 6), *out = numbers(n, 1, 7), *gelu = numbers(n, 1, 8);
    for (size_t i = 0; i < in_x; i++) x[i] = e4m3_from_float((float)(20 * random_normal(1, i)));
    for (size_t i = 0; i < in_w; i++) w[i] = e4m3_from_float((float)(20 * random_normal(2, i)));
    multiply(k, out, gelu, x, w, bias, pre, units, with, N, K, OC);
    for (size_t i = 0; i < n; i++) {
        double sum = 0, S = 0, unit = (double)units[0] * units[1];
        for (size_t j = 0; j < (size_t)K; j++) {
            double product = e4m3_to_float(x[i / OC * K + j]) * (double)e4m3_to_float(w[i % OC * K + j]) * unit;
            sum += product, S += fabs(product);
        }
        if (with & WITH_BIAS) sum += bf16_to_float(bias[i % OC]), S += fabs(bf16_to_float(bias[i % OC]));
        double slope = with & WITH_PRE ? gelu_slope(bf16_to_float(pre[i])) : 1, wanted = slope * sum;
        double off = 1.2 * (K + 8) * E * S + 2e-6 * S + fabs(sum) * fabs(slope) / 128;
        CHECK_CLOSE(bf16_to_float(out[i]), wanted, off);
        double y = bf16_to_float(out[i]), z = sqrt(2 / 3.14159265358979323846) * (y + 0.044715 * y * y * y);
        if (with & WITH_GELU) CHECK_CLOSE(bf16_to_float(gelu[i]), y * (1 + tanh(z)) / 2, fabs(y) / 128 + 1e-6);
    }
    free(x), free(w), free(bias), free(pre), free(out), free(gelu);
}

CLAIM(matmuls_of_e4m3_are_right) {
    static const int sizes[][3] = {{0, 16, 16},  {1, 16, 16},   {5, 16, 48},    {33, 48, 16},
                                   {64, 64, 64}, {17, 272, 80}, {130, 96, 144}, {9, 1040, 32}};
    const Kernels* tables[CPU_ISAS + 1];
    int n = open_tables(tables, 130, 1040);
    if (!TESTS_DEVICE) tables[n++] = reference();
    for (int i = 0; i < COUNT(sizes); i++)
        for (int t = 0; t < n; t++)
            for (int with = 0; with < 6; with++)
                try_matmul(tables[t], sizes[i][0], at_most(sizes[i][1], 64), at_most(sizes[i][2], 64),
                           with < 4    ? with
                           : with == 4 ? WITH_PRE
                                       : WITH_PRE | WITH_BIAS);
    for (int t = 0; t < n; t++)
        if (tables[t] != reference()) tables[t]->close();
}

int main(void) { return test_main(); }
