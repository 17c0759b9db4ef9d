// bench_matmul.c - the matmuls at the shapes of GPT-2 124M, beside the limit of the registers and beside libraries.
//
//   make bench, or  build/release/dev/bench_matmul [instruction set [rounds [threads]]]
//
// One thread is timed by its processor time, so that other programs on the machine do not count; more by the clock.
//
// Every round times our matmul, then the library's, on the same matrices, no bias, no GELU; the table shows the medians
// and their ratio. OpenBLAS (fp32) is loaded at run time when it is installed; oneDNN (bf16) is linked in
// when its header was found. The limit is the best rate of any multiply-add instruction that takes the type.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

#include "dev/bench.h"
#ifdef HAVE_ONEDNN
#include <dnnl.h>
#endif

enum { MOST_ROUNDS = 64 };

typedef enum Direction { FORWARD, INPUT, WEIGHT } Direction;
static const char* const names[] = {"matmul_forward", "matmul_backward_input", "matmul_backward_weight"};

typedef struct Case {
    Direction direction;
    int N, C, OC;
    DType dt;
    void *x, *weight, *dout;  // (N,C) (OC,C) (N,OC)
    float* dweight;           // (OC,C)
    void* result;             // (N,OC) or (N,C)
} Case;

static void ours(const Case* c, const Kernels* k) {
    if (c->direction == FORWARD)
        k->matmul_forward(c->result, NULL, c->x, c->weight, NULL, c->N, c->C, c->OC, c->dt, NULL);
    else if (c->direction == INPUT)
        k->matmul_backward_input(c->result, c->dout, c->weight, NULL, c->N, c->C, c->OC, c->dt, NULL);
    else k->matmul_backward_weight(c->dweight, NULL, c->dout, c->x, c->N, c->C, c->OC, c->dt, NULL);
}

// ---- OpenBLAS

typedef void (*Sgemm)(int order, int transpose_a, int transpose_b, int M, int N, int K, float alpha, const float* a,
                      int lda, const float* b, int ldb, float beta, float* c, int ldc);
static Sgemm sgemm;

// OpenBLAS falls back to kernels for SSE on processors younger than itself, unless told otherwise before it is loaded.
static void openblas_load(int threads) {
    char text[16];
    snprintf(text, sizeof text, "%d", threads);
    setenv("OPENBLAS_NUM_THREADS", text, 1);
    setenv("OPENBLAS_THREAD_TIMEOUT", "22", 0);  // its threads spin for 2^22 cycles after their work, not for 2^28
    if (cpu_has(CPU_AVX512)) setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library) sgemm = (Sgemm)dlsym(library, "cblas_sgemm");
}

static void openblas(const Case* c) {
    enum { ROWS = 101, PLAIN = 111, TRANSPOSED = 112 };
    int N = c->N, C = c->C, OC = c->OC;
    const float *x = (const float*)c->x, *weight = (const float*)c->weight, *dout = (const float*)c->dout;
    if (c->direction == FORWARD) sgemm(ROWS, PLAIN, TRANSPOSED, N, OC, C, 1, x, C, weight, C, 0, (float*)c->result, OC);
    else if (c->direction == INPUT)
        sgemm(ROWS, PLAIN, PLAIN, N, C, OC, 1, dout, OC, weight, C, 0, (float*)c->result, C);
    else sgemm(ROWS, TRANSPOSED, PLAIN, OC, C, N, 1, dout, OC, x, C, 1, c->dweight, C);
}

// ---- oneDNN

#ifdef HAVE_ONEDNN
static dnnl_engine_t engine;
static dnnl_stream_t stream;
static dnnl_primitive_t primitive;
static dnnl_exec_arg_t arguments[3];

static void must(dnnl_status_t status, const char* what) {
    if (status != dnnl_success) {
        fprintf(stderr, "bench: oneDNN %s: status %d\n", what, (int)status);
        exit(1);
    }
}
#define MUST(call) must(call, #call)

// A matrix (rows,cols), or the transpose of one (cols,rows), as an argument.
static dnnl_memory_desc_t describe(int rows, int cols, int transposed, dnnl_data_type_t type, int argument,
                                   void* data) {
    dnnl_dims_t dims = {rows, cols}, strides = {transposed ? 1 : cols, transposed ? rows : 1};
    static const int place[] = {[DNNL_ARG_SRC] = 0, [DNNL_ARG_WEIGHTS] = 1, [DNNL_ARG_DST] = 2};
    dnnl_memory_desc_t desc;
    MUST(dnnl_memory_desc_init_by_strides(&desc, 2, dims, type, strides));
    arguments[place[argument]].arg = argument;
    MUST(dnnl_memory_create(&arguments[place[argument]].memory, &desc, engine, data));
    return desc;
}

static void onednn_prepare(const Case* c) {
    int N = c->N, C = c->C, OC = c->OC;
    dnnl_memory_desc_t a, b, out;
    if (!engine) {
        MUST(dnnl_engine_create(&engine, dnnl_cpu, 0));
        MUST(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    }
    if (c->direction == FORWARD) {
        a = describe(N, C, 0, dnnl_bf16, DNNL_ARG_SRC, c->x);
        b = describe(C, OC, 1, dnnl_bf16, DNNL_ARG_WEIGHTS, c->weight);
        out = describe(N, OC, 0, dnnl_bf16, DNNL_ARG_DST, c->result);
    } else if (c->direction == INPUT) {
        a = describe(N, OC, 0, dnnl_bf16, DNNL_ARG_SRC, c->dout);
        b = describe(OC, C, 0, dnnl_bf16, DNNL_ARG_WEIGHTS, c->weight);
        out = describe(N, C, 0, dnnl_bf16, DNNL_ARG_DST, c->result);
    } else {
        a = describe(OC, N, 1, dnnl_bf16, DNNL_ARG_SRC, c->dout);
        b = describe(N, C, 0, dnnl_bf16, DNNL_ARG_WEIGHTS, c->x);
        out = describe(OC, C, 0, dnnl_f32, DNNL_ARG_DST, c->dweight);
    }
    dnnl_matmul_desc_t product;
    dnnl_primitive_attr_t attributes;
    dnnl_primitive_desc_t desc;
    MUST(dnnl_matmul_desc_init(&product, &a, &b, NULL, &out));
    MUST(dnnl_primitive_attr_create(&attributes));
    if (c->direction == WEIGHT) {  // dweight +=
        dnnl_post_ops_t after;
        MUST(dnnl_post_ops_create(&after));
        MUST(dnnl_post_ops_append_sum(after, 1));
        MUST(dnnl_primitive_attr_set_post_ops(attributes, after));
        dnnl_post_ops_destroy(after);
    }
    MUST(dnnl_primitive_desc_create(&desc, &product, attributes, engine, NULL));
    MUST(dnnl_primitive_create(&primitive, desc));
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_attr_destroy(attributes);
}

static void onednn(void) {
    MUST(dnnl_primitive_execute(primitive, stream, 3, arguments));
    MUST(dnnl_stream_wait(stream));
}

static void onednn_finish(void) {
    for (int i = 0; i < 3; i++) dnnl_memory_destroy(arguments[i].memory);
    dnnl_primitive_destroy(primitive);
}
#else
static void onednn_prepare(const Case* c) { (void)c; }
static void onednn(void) {}
static void onednn_finish(void) {}
#endif

// ---- timing

typedef struct Limits {
    double fma, pairs, tiles;  // TFLOP/s on registers
} Limits;

static Limits measure_limits(void) {
    return (Limits){.fma = 1e-12 * MAX(cpu_peak_of(PEAK_FMA_YMM), cpu_peak_of(PEAK_FMA_ZMM)),
                    .pairs = 1e-12 * cpu_peak_of(PEAK_PAIRS_ZMM),
                    .tiles = 1e-12 * cpu_peak_of(PEAK_TILES)};
}

static double limit_of(Limits l, DType dt) { return dt == DT_F32 ? l.fma : MAX(l.fma, MAX(l.pairs, l.tiles)); }

static int library_exists(DType dt) {
#ifdef HAVE_ONEDNN
    if (dt == DT_BF16) return 1;
#endif
    return dt == DT_F32 && sgemm != NULL;
}

static void run(const Case* c, const Kernels* k) {
    if (k) ours(c, k);
    else if (c->dt == DT_F32) openblas(c);
    else onednn();
}

// OpenBLAS has threads of its own. Before a timed product the other side's threads must have stopped spinning, and its
// own must be awake and spread over the processors: hence a rest, and a smaller product first.
static double time_one(const Case* c, const Kernels* k) {
    if (c->dt == DT_F32 && sgemm && team_threads() > 1) {
        struct timespec rest = {0, 10000000};
        nanosleep(&rest, NULL);
        Case smaller = *c;
        smaller.N = MIN(c->N, 1024);
        run(&smaller, k);
    }
    double start = bench_seconds();
    run(c, k);
    return bench_seconds() - start;
}

static void bench_case(const Case* c, const Kernels* k, int rounds, double limit) {
    double own[MOST_ROUNDS], library[MOST_ROUNDS], ratio[MOST_ROUNDS], flops = 2.0 * c->N * c->C * c->OC;
    int compare = library_exists(c->dt);
    if (compare && c->dt == DT_BF16) onednn_prepare(c);
    for (int i = -1; i < rounds; i++) {  // the first round warms up
        double a = time_one(c, k), b = compare ? time_one(c, NULL) : 1;
        if (i < 0) continue;
        own[i] = a, library[i] = b, ratio[i] = b / a;
    }
    if (compare && c->dt == DT_BF16) onednn_finish();
    double speed = flops / bench_median(own, rounds) * 1e-12;
    char name[80];
    snprintf(name, sizeof name, "%s_%s_%dx%dx%d", names[c->direction], dtype_name(c->dt), c->N, c->C, c->OC);
    printf("%-44s %6.3f TFLOP/s %4.0f%%", name, speed, 100 * speed / limit);
    if (compare) {
        printf("   %-8s %6.3f   ratio %.2f", c->dt == DT_F32 ? "OpenBLAS" : "oneDNN",
               flops / bench_median(library, rounds) * 1e-12, bench_median(ratio, rounds));
    }
    printf("\n");
    fflush(stdout);
    bench_record(name, speed, "TFLOP/s", limit);
}

static void* matrix(size_t n, DType dt, const Kernels* k) {
    void* p = k->alloc(n * dtype_bytes(dt));
    if (!p) {
        fprintf(stderr, "bench: no memory for %zu MB\n", n * dtype_bytes(dt) / 1000000);
        exit(1);
    }
    for (size_t i = 0; i < n; i++) {
        float x = (float)(int32_t)hash64(i) * 0x1p-31f;
        if (dt == DT_F32) ((float*)p)[i] = x;
        else ((bf16*)p)[i] = bf16_from_float(x);
    }
    return p;
}

int main(int argc, char** argv) {
    static const int shapes[][3] = {
        {4096, 768, 768}, {4096, 768, 2304}, {4096, 768, 3072}, {4096, 3072, 768}, {1024, 768, 50304}};
    char err[ERR_BYTES];
    int rounds = argc > 2 ? MIN(MAX(atoi(argv[2]), 1), MOST_ROUNDS) : 5;
    const Kernels* k = kernels_find("cpu", argc > 1 ? argv[1] : "auto", err);
    KernelLimits limits = {.N = 4096, .C = 3072, .OC = 50304, .threads = argc > 3 ? atoi(argv[3]) : 0};
    if (!k || k->open(&limits, err)) {
        fprintf(stderr, "bench: %s\n", err);
        return 1;
    }
    int threads = team_threads();
    openblas_load(threads);
    Limits limits_now = measure_limits();
    printf("%s, threads: %d. Registers alone, TFLOP/s: fp32 FMA %.3f, bf16 pairs %.3f, bf16 tiles %.3f\n", k->name,
           threads, limits_now.fma, limits_now.pairs, limits_now.tiles);
    for (int d = 0; d < 2; d++) {
        DType dt = d ? DT_BF16 : DT_F32;
        for (int i = 0; i < COUNT(shapes); i++) {
            size_t N = (size_t)shapes[i][0], C = (size_t)shapes[i][1], OC = (size_t)shapes[i][2];
            Case c = {.N = (int)N, .C = (int)C, .OC = (int)OC, .dt = dt};
            c.x = matrix(N * C, dt, k);
            c.weight = matrix(OC * C, dt, k);
            c.dout = matrix(N * OC, dt, k);
            c.dweight = (float*)matrix(OC * C, DT_F32, k);
            c.result = matrix(N * MAX(C, OC), dt, k);
            limits_now = measure_limits();  // clocks change with heat and neighbours
            for (; c.direction <= WEIGHT; c.direction++) bench_case(&c, k, rounds, limit_of(limits_now, dt));
            void* all[] = {c.x, c.weight, c.dout, c.dweight, c.result};
            for (int j = 0; j < COUNT(all); j++) k->free_memory(all[j]);
        }
    }
    k->close();
    return 0;
}
