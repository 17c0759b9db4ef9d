// bench_gpu.c - speeds of a GPU beside limits measured in the same run: every op, every matmul and attention kernel at
// sizes of GPT-2, ops and attention of a Llama, then the whole trainer, alternating with PyTorch.
//
//   build/release/dev/bench_gpu [--device cuda] [--only ops,matmul,attention,train] [--seconds 330] [--quick]
//                               [--record build/bench_gpu.jsonl]
//
// --seconds: what would end later is left out, and the output says so. --quick: small sizes, to test the bench itself
// (works with --device cpu). Every figure goes to the file of --record too, which begins empty.
//
// Each section is a process of its own, so that a kernel that crashes ends its section only. A time is the median
// of several batches of calls, queued one behind the other. Operands walk through memory larger than any cache and
// hold random numbers: zeros would draw less power and run faster. Bytes count each tensor once for each time it must
// cross the memory bus, FLOPs of attention the causal half: 2 products forward, 5 backward.
#define _GNU_SOURCE
#include "dev/bench_gpu.h"

#include <sys/mman.h>

static int V = 50257, VP = 50304;  // vocabulary, padded

// ---- operands

// A Pool hands memory out piece by piece, and from its start again after its end: what was handed out the last time has
// left the caches by then.
typedef struct Pool {
    char* p;
    size_t bytes, at;
} Pool;

static struct {
    const Kernels* k;
    const GptModel* model;
    int N, C, OC;
    Pool in, out, in32, out32;  // bf16 and fp32; `in` is never written
} w;

static void* take(Pool* a, size_t bytes) {
    bytes = ROUND_UP(bytes, (size_t)256);
    if (bytes > a->bytes) die("an operand of %zu bytes, room for %zu", bytes, a->bytes);
    if (a->at + bytes > a->bytes) a->at = 0;
    a->at += bytes;
    return a->p + a->at - bytes;
}

static void* in(size_t n) { return take(&w.in, 2 * n); }
static void* out(size_t n) { return take(&w.out, 2 * n); }
static float* in32(size_t n) { return (float*)take(&w.in32, 4 * n); }
static float* out32(size_t n) { return (float*)take(&w.out32, 4 * n); }

static void* alloc(size_t bytes) {
    void* p = w.k->alloc(bytes);
    if (!p) exit((fprintf(stderr, "bench_gpu: no memory for %zu MiB on the device\n", bytes >> 20), 1));
    return p;
}

// Random bf16 of [-1, 1). Read as fp32, pairs of them are as random.
static void fill(void* device, size_t bytes) {
    enum { ELEMS = 3000017 };  // no multiple of any row
    static bf16* block;
    if (!block) {
        block = (bf16*)malloc(ELEMS * sizeof(bf16));
        for (size_t i = 0; i < ELEMS; i++) block[i] = bf16_from_float((float)(2 * random_uniform(1, i) - 1));
    }
    for (size_t at = 0; at < bytes; at += ELEMS * sizeof(bf16))
        w.k->upload((char*)device + at, block, MIN(bytes - at, ELEMS * sizeof(bf16)), NULL);
    w.k->synchronize(NULL);
}

static void make_pool(Pool* a, size_t bytes, int random) {
    a->p = (char*)alloc(bytes);
    a->bytes = bytes;
    a->at = 0;
    if (random) fill(a->p, bytes);
}

static void free_pools(void) {
    Pool* all[] = {&w.in, &w.out, &w.in32, &w.out32};
    for (int i = 0; i < COUNT(all); i++) w.k->free_memory(all[i]->p), *all[i] = (Pool){NULL, 0, 0};
}

static int* upload_ints(const int* host, size_t n) {
    int* p = (int*)alloc(n * sizeof(int));
    w.k->upload(p, host, n * sizeof(int), NULL);
    w.k->synchronize(NULL);
    return p;
}

static KernelLimits kernel_limits(const GptModel* m, int N, int context) {
    KernelLimits l = {.N = N, .C = 4 * m->C, .OC = MAX(4 * m->C, VP), .HS = m->C / m->NH};
    l.NH = m->NH, l.NKV = m->NKV;
    l.context = context;
    l.dt = DT_BF16;
    l.attention = ATTENTION_OWN;
    return l;
}

static void open_kernels(const KernelLimits* l) {
    char err[ERR_BYTES];
    if (w.k->open(l, err)) exit((fprintf(stderr, "bench_gpu: %s\n", err), 1));
}

// ---- time

// Returns the seconds of one call.
static double measure(void (*run)(void)) {
    enum { BATCHES = 5 };
    double batch_seconds = options.quick ? 0 : 0.012, runs[BATCHES];
    run();  // plans, clocks
    w.k->synchronize(NULL);
    double start = now_seconds();
    run();
    w.k->synchronize(NULL);
    int calls = (int)MAX(1, MIN(400, batch_seconds / (now_seconds() - start)));
    for (int i = -1; i < BATCHES; i++) {  // the first only warms up
        start = now_seconds();
        for (int c = 0; c < calls; c++) run();
        w.k->synchronize(NULL);
        if (i >= 0) runs[i] = (now_seconds() - start) / calls;
    }
    return bench_median(runs, BATCHES);
}

// ---- section: limits

static size_t copy_elems(void) { return options.quick ? 1 << 20 : 128 << 20; }
static void run_big_add(void) { w.k->add(w.out.p, w.in.p, w.in.p + w.in.bytes / 2, copy_elems(), DT_BF16, NULL); }
static void run_big_cast(void) { w.k->ranks->cast(w.out.p, DT_BF16, w.in.p, DT_F32, copy_elems(), NULL); }
static void run_square(void) {
    size_t edge = (size_t)w.N;
    w.k->matmul_forward(out(edge * edge), NULL, in(edge * edge), in(edge * edge), NULL, w.N, w.N, w.N, DT_BF16, NULL);
}

static void bench_limits(void) {
    char err[ERR_BYTES];
    size_t n = copy_elems(), edge = options.quick ? 256 : (size_t)w.k->full_matmul, square = 2 * edge * edge;
    double matmul = kernels_peak(w.k, DT_BF16, 0, 0, err) * 1e-12;
    if (matmul < 0) exit((fprintf(stderr, "bench_gpu: %s\n", err), 1));
    KernelLimits l = {.N = (int)edge, .C = (int)edge, .OC = (int)edge, .NH = 1, .NKV = 1, .HS = 64, .context = 64};
    l.dt = DT_BF16;
    l.attention = ATTENTION_OWN;
    open_kernels(&l);
    make_pool(&w.in, MAX(4 * n, 2 * square), 1);
    make_pool(&w.out, MAX(2 * n, square), 0);
    w.N = (int)edge;
    double add = 6e-9 * (double)n / measure(run_big_add), cast = 6e-9 * (double)n / measure(run_big_cast);
    double again = 2e-12 * (double)edge * (double)edge * (double)edge / measure(run_square);
    limits->copy = MAX(add, cast);
    limits->matmul = matmul;
    limits->is_cuda = strstr(w.k->name, "cuda") != NULL;
    snprintf(limits->name, sizeof limits->name, "%s", w.k->name);
    printf("%s\n", limits->name);
    printf(
        "  memory limit  %8.1f GB/s     the better of add (%.1f) and cast from fp32 (%.1f), %zu M elements of bf16\n",
        limits->copy, add, cast, n >> 20);
    printf(
        "  matmul limit  %8.4g TFLOP/s  kernels_peak, bf16; the same matmul many times in a row on random\n"
        "                                   numbers: %.4g\n",
        limits->matmul, again);
    record("limit", "memory", limits->copy, "GB/s", 0);
    record("limit", "matmul", limits->matmul, "TFLOP/s", 0);
    record("limit", "matmul in a row, random numbers", again, "TFLOP/s", limits->matmul);
    free_pools();
    w.k->close();
}

// ---- section: ops that move memory

enum { CHUNK = 1024, ADAM_ELEMS = 64 << 20, QUICK_ELEMS = 1 << 16 };

static struct {
    int *tokens, *positions, *targets, *rows;
    int distinct_tokens, distinct_positions;
    int chunk, qk_norm;
    float* angles;  // (CONTEXT, HS / 2, 2): cosines and sines
    void *param, *logits;
    float *master, *m, *v, *one;
    double* norm;
    size_t n;
    uint64_t rounding;
} o;

static size_t NC(void) { return (size_t)w.N * (size_t)w.C; }
static size_t square_of(int C) { return (size_t)C * (size_t)C; }

static void run_embedding_forward(void) {
    w.k->embedding_forward(out(NC()), o.tokens, o.positions, in((size_t)VP * w.C), in((size_t)CONTEXT * w.C), w.N, w.C,
                           DT_BF16, NULL);
}
static void run_embedding_backward(void) {
    w.k->embedding_backward(out32((size_t)VP * w.C), out32((size_t)CONTEXT * w.C), in(NC()), o.tokens, o.positions, w.N,
                            w.C, DT_BF16, NULL);
}
static void run_layernorm(void) {
    w.k->norm_forward(NULL, out(NC()), out32(w.N), out32(w.N), in(NC()), NULL, in(w.C), in(w.C), 1e-5f, w.N, w.C,
                      DT_BF16, NULL);
}
static void run_residual_layernorm(void) {
    w.k->norm_forward(out(NC()), out(NC()), out32(w.N), out32(w.N), in(NC()), in(NC()), in(w.C), in(w.C), 1e-5f, w.N,
                      w.C, DT_BF16, NULL);
}
static void run_layernorm_backward(void) {
    w.k->norm_backward(out(NC()), out32(w.C), out32(w.C), NULL, in(NC()), in(NC()), in(w.C), in32(w.N), in32(w.N), w.N,
                       w.C, DT_BF16, NULL);
}
static void run_gelu(void) {
    w.k->activation_forward(out(4 * NC()), in(4 * NC()), ACT_GELU, w.N, 4 * w.C, DT_BF16, NULL);
}
static void run_embedding_without_positions(void) {
    w.k->embedding_forward(out(NC()), o.tokens, NULL, in((size_t)VP * w.C), NULL, w.N, w.C, DT_BF16, NULL);
}
static void run_residual_rmsnorm(void) {
    w.k->norm_forward(out(NC()), out(NC()), NULL, out32(w.N), in(NC()), in(NC()), in(w.C), NULL, 1e-5f, w.N, w.C,
                      DT_BF16, NULL);
}
static void run_rmsnorm_backward(void) {
    w.k->norm_backward(out(NC()), out32(w.C), NULL, NULL, in(NC()), in(NC()), in(w.C), NULL, in32(w.N), w.N, w.C,
                       DT_BF16, NULL);
}
static void run_swiglu(void) {
    w.k->activation_forward(out(4 * NC()), in(8 * NC()), ACT_SWIGLU, w.N, 4 * w.C, DT_BF16, NULL);
}
static void run_swiglu_backward(void) {
    w.k->activation_backward(out(8 * NC()), in(4 * NC()), in(8 * NC()), ACT_SWIGLU, w.N, 4 * w.C, DT_BF16, NULL);
}

static Rotary rotary(void) {
    int NKV = w.model->NKV, HS = w.C / w.model->NH;
    Rotary r = {.positions = o.positions, .table = o.angles, .N = w.N, .NH = w.model->NH, .NKV = NKV, .HS = HS};
    r.ld = w.C + 2 * NKV * HS, r.eps = 1e-6f;
    if (o.qk_norm) r.q_weight = in(HS), r.k_weight = in(HS);
    return r;
}
// These return the elements of the queries and keys of a row, and of its values too.
static size_t rotary_elems(void) { return (size_t)w.N * (w.C + w.model->NKV * (w.C / w.model->NH)); }
static size_t qkv_elems(void) { return (size_t)w.N * (w.C + 2 * w.model->NKV * (w.C / w.model->NH)); }
static void run_rotary(void) {
    Rotary r = rotary();
    w.k->rotary_forward(out(qkv_elems()), o.qk_norm ? out(rotary_elems()) : NULL, &r, DT_BF16, NULL);
}
static void run_rotary_backward(void) {
    Rotary r = rotary();
    int HS = w.C / w.model->NH;
    w.k->rotary_backward(out(qkv_elems()), o.qk_norm ? out32(HS) : NULL, o.qk_norm ? out32(HS) : NULL,
                         o.qk_norm ? in(rotary_elems()) : NULL, &r, DT_BF16, NULL);
}
static void run_add(void) { w.k->add(out(NC()), in(NC()), in(NC()), NC(), DT_BF16, NULL); }
static void run_gather(void) {
    w.k->ranks->gather_rows(out(NC()), in(NC()), o.rows, w.N, w.C, w.C, w.C, DT_BF16, NULL);
}
static void run_classifier(void) {
    w.k->classifier(out32(o.chunk), o.logits, o.targets, 1e-4f, 1, o.chunk, V, VP, DT_BF16, NULL);
}
static void run_adamw(void) {
    AdamW a = {.param = o.param, .master = o.master, .m = o.m, .v = o.v, .grad = in32(o.n), .n = o.n};
    a.lr = 1e-4f, a.beta1 = 0.9f, a.beta2 = 0.95f, a.eps = 1e-8f, a.weight_decay = 0.1f;
    a.grad_scale = o.one;
    a.t = 10;
    a.rounding = o.rounding;
    w.k->adamw(&a, 1, DT_BF16, NULL);
}
static void run_sum_of_squares(void) { w.k->sum_of_squares(o.norm, in32(o.n), o.n, NULL); }

// Tokens as frequent as 1 / rank, like words; positions of documents of CONTEXT tokens; a random order of rows.
static void make_integers(void) {
    int N = w.N, *tokens = (int*)malloc(sizeof(int) * (size_t)N), *other = (int*)malloc(sizeof(int) * (size_t)N);
    char* seen = (char*)calloc(1, (size_t)V);
    o.distinct_tokens = 0;
    o.distinct_positions = MIN(N, CONTEXT);
    for (int i = 0; i < N; i++) {
        tokens[i] = (int)pow(V, random_uniform(2, (uint64_t)i)) - 1;
        if (!seen[tokens[i]]) seen[tokens[i]] = 1, o.distinct_tokens++;
    }
    o.tokens = upload_ints(tokens, (size_t)N);
    o.targets = upload_ints(tokens, (size_t)N);
    for (int i = 0; i < N; i++) other[i] = i % CONTEXT;
    o.positions = upload_ints(other, (size_t)N);
    for (int i = 0; i < N; i++) {
        int j = (int)(random_uniform(3, (uint64_t)i) * (i + 1));  // Fisher and Yates
        other[i] = j < i ? other[j] : i;
        other[j] = i;
    }
    o.rows = upload_ints(other, (size_t)N);
    free(tokens), free(other), free(seen);
}

static void make_angles(int HS) {
    float* angles = (float*)malloc(sizeof(float) * CONTEXT * (size_t)HS);
    for (int i = 0; i < CONTEXT * HS; i++) {
        double angle = i / HS * pow(1e4, -(double)(i % HS / 2 * 2) / HS);
        angles[i] = (float)(i % 2 ? sin(angle) : cos(angle));
    }
    o.angles = (float*)upload_ints((int*)angles, (size_t)CONTEXT * (size_t)HS);
    free(angles);
}

static void make_op_tensors(void) {
    size_t wte = (size_t)VP * w.C, wide = 4 * NC(), n = options.quick ? QUICK_ELEMS : ADAM_ELEMS;
    float one = 1;
    make_pool(&w.in, 2 * (wte + 2 * wide), 1);
    make_pool(&w.out, 2 * (wte + 2 * wide), 0);
    make_pool(&w.in32, 4 * (n + (size_t)w.N), 1);
    make_pool(&w.out32, 4 * (2 * wte + (size_t)CONTEXT * w.C), 0);
    o.n = n;
    o.param = alloc(2 * n), o.master = (float*)alloc(4 * n), o.m = (float*)alloc(4 * n), o.v = (float*)alloc(4 * n);
    fill(o.master, 4 * n);
    o.one = (float*)alloc(sizeof one), o.norm = (double*)alloc(sizeof(double));
    w.k->upload(o.one, &one, sizeof one, NULL);
    o.chunk = MIN(CHUNK, w.N);
    o.logits = alloc((size_t)o.chunk * VP * 2);
    fill(o.logits, (size_t)o.chunk * VP * 2);
    make_integers();
    make_angles(w.C / w.model->NH);
}

static void free_op_tensors(void) {
    void* all[] = {o.tokens, o.positions, o.targets, o.rows, o.angles, o.param,
                   o.logits, o.master,    o.m,       o.v,    o.one,    o.norm};
    for (int i = 0; i < COUNT(all); i++) w.k->free_memory(all[i]);
    free_pools();
}

static void show_op(const char* op, void (*run)(void), double bytes) {
    double seconds = measure(run), rate = 1e-9 * bytes / seconds;
    printf("  %-28s %9.4f ms  %8.1f MB  %8.1f GB/s  %5.1f %%\n", op, 1e3 * seconds, 1e-6 * bytes, rate,
           100 * rate / limits->copy);
    record(w.model->name, op, rate, "GB/s", limits->copy);
}

static void bench_ops_of(const GptModel* m) {
    char chunk[40];
    KernelLimits l = kernel_limits(m, m->row, CONTEXT);
    w.model = m, w.N = m->row, w.C = m->C;
    open_kernels(&l);
    make_op_tensors();
    printf("ops, %s, a row of %d tokens; beside the memory limit\n", m->name, m->row);
    double C = w.C, s = 2 * (double)NC(), n = (double)o.n, rows = o.distinct_tokens + o.distinct_positions;
    show_op("embedding_forward", run_embedding_forward, s + 2 * rows * C);
    show_op("embedding_backward", run_embedding_backward, s + 8 * rows * C);
    show_op("layernorm_forward", run_layernorm, 2 * s);
    show_op("residual_layernorm_forward", run_residual_layernorm, 4 * s);
    show_op("layernorm_backward", run_layernorm_backward, 4 * s);
    show_op("gelu_forward", run_gelu, 8 * s);
    show_op("embedding, no positions", run_embedding_without_positions, s + 2 * o.distinct_tokens * C);
    show_op("residual_rmsnorm_forward", run_residual_rmsnorm, 4 * s);
    show_op("rmsnorm_backward", run_rmsnorm_backward, 4 * s);
    show_op("swiglu_forward", run_swiglu, 12 * s);
    show_op("swiglu_backward", run_swiglu_backward, 20 * s);
    for (o.qk_norm = 0; o.qk_norm <= 1; o.qk_norm++) {
        double bytes = (o.qk_norm ? 6.0 : 4.0) * (double)rotary_elems();
        show_op(o.qk_norm ? "rotary_forward, QK-norm" : "rotary_forward", run_rotary, bytes);
        show_op(o.qk_norm ? "rotary_backward, QK-norm" : "rotary_backward", run_rotary_backward, bytes);
    }
    show_op("add", run_add, 3 * s);
    show_op("gather_rows", run_gather, 2 * s);
    snprintf(chunk, sizeof chunk, "classifier of %d rows", o.chunk);
    show_op(chunk, run_classifier, 4.0 * o.chunk * VP);
    if (m == &all_models[0] || options.quick) {  // the same for every model
        show_op("adamw", run_adamw, 30 * n);
        o.rounding = 1;
        show_op("adamw, stochastic rounding", run_adamw, 30 * n);
        show_op("sum_of_squares", run_sum_of_squares, 4 * n);
    }
    free_op_tensors();
    w.k->close();
}

// ---- section: matmuls

typedef enum Pass { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, N_PASSES } Pass;

typedef struct Matmul {
    const char* name;
    int C, OC;            // in units of the channels; OC 0: the vocabulary
    int bias, gelu, pre;  // gelu after the forward pass, its slope in backward_input
} Matmul;

static const Matmul matmuls[] = {
    {"qkv", 1, 3, 1, 0, 0},    {"attproj", 1, 1, 1, 0, 0}, {"fc", 1, 4, 1, 1, 0},
    {"fcproj", 4, 1, 1, 0, 1}, {"head", 1, 0, 0, 0, 0},    {"head", 1, 0, 0, 0, 0},
};
enum { N_MATMULS = sizeof matmuls / sizeof *matmuls, HEAD_ROWS = 8192 };
static const char* const pass_names[] = {"forward", "backward_input", "backward_weight"};
static double matmul_rates[N_MATMULS][N_PASSES];
static const Matmul* matmul;

static void run_matmul_forward(void) {
    size_t outs = (size_t)w.N * w.OC;
    w.k->matmul_forward(out(outs), matmul->gelu ? out(outs) : NULL, in((size_t)w.N * w.C), in((size_t)w.OC * w.C),
                        matmul->bias ? in(w.OC) : NULL, w.N, w.C, w.OC, DT_BF16, NULL);
}
static void run_matmul_input(void) {
    size_t ins = (size_t)w.N * w.C;
    w.k->matmul_backward_input(out(ins), in((size_t)w.N * w.OC), in((size_t)w.OC * w.C), matmul->pre ? in(ins) : NULL,
                               w.N, w.C, w.OC, DT_BF16, NULL);
}
static void run_matmul_weight(void) {
    w.k->matmul_backward_weight(out32((size_t)w.OC * w.C), matmul->bias ? out32(w.OC) : NULL, in((size_t)w.N * w.OC),
                                in((size_t)w.N * w.C), w.N, w.C, w.OC, DT_BF16, NULL);
}

static void set_matmul(const GptModel* m, int i) {
    matmul = &matmuls[i];
    w.N = matmul->OC ? m->row : MIN(m->row, i == N_MATMULS - 1 ? CHUNK : HEAD_ROWS);
    w.C = matmul->C * m->C;
    w.OC = matmul->OC ? matmul->OC * m->C : VP;
}

static void print_matmuls(void) {
    if (!w.model) return;
    printf("matmuls, %s: TFLOP/s and %% of the matmul limit\n", w.model->name);
    for (int i = 0; i < N_MATMULS; i++)
        for (int pass = 0; pass < N_PASSES; pass++) {
            char shape[64];
            double rate = matmul_rates[i][pass];
            set_matmul(w.model, i);
            snprintf(shape, sizeof shape, "%d x %d -> %d", w.N, w.C, w.OC);
            printf("  %-7s %-15s %-21s  %6.4g (%4.1f %%)\n", matmul->name, pass_names[pass], shape, rate,
                   100 * rate / limits->matmul);
        }
    w.model = NULL;
}

static void bench_matmul(int i) {
    static void (*const runs[])(void) = {run_matmul_forward, run_matmul_input, run_matmul_weight};
    for (int pass = 0; pass < N_PASSES; pass++) {
        char name[128];
        double rate = 2e-12 * w.N * (double)w.C * w.OC / measure(runs[pass]);
        matmul_rates[i][pass] = rate;
        snprintf(name, sizeof name, "matmul %s %s %d x %d -> %d", matmul->name, pass_names[pass], w.N, w.C, w.OC);
        record(w.model->name, name, rate, "TFLOP/s", limits->matmul);
    }
}

static void bench_matmuls_of(const GptModel* m) {
    size_t wte = (size_t)VP * m->C, logits = (size_t)MIN(HEAD_ROWS, m->row) * VP, wide = 4 * (size_t)m->row * m->C;
    memset(matmul_rates, 0, sizeof matmul_rates);
    w.model = m;
    KernelLimits l = kernel_limits(m, m->row, CONTEXT);
    open_kernels(&l);
    make_pool(&w.in, 2 * (logits + wte + 2 * wide), 1);
    make_pool(&w.out, 2 * (logits + 2 * wide), 0);
    make_pool(&w.out32, 4 * (wte + 8 * square_of(m->C)), 0);
    for (int i = 0; i < N_MATMULS; i++) set_matmul(m, i), bench_matmul(i);
    free_pools();
    w.k->close();
    print_matmuls();
}

// ---- section: attention

enum { ATTENTION_ROW = 8192, N_ROWS = 4, N_KINDS = 3 };

static const struct {
    const char* name;
    AttentionKernels attention;
} kinds[N_KINDS] = {{"mma", ATTENTION_OWN}, {"wgmma", ATTENTION_WGMMA}, {"cuDNN", ATTENTION_CUDNN}};
static const int row_docs[N_ROWS] = {1, 4, 8, 0};
static double attention_rates[N_ROWS][N_KINDS][2], ragged_mean;
static char attention_refusals[N_KINDS][ERR_BYTES];

static struct {
    char *qkv, *dqkv, *out, *dout;
    float* lse;
    int* cu;
    int n_docs;
    double flops;  // of the forward pass
} t;

static const char* row_name(int r) {
    static char name[32];
    snprintf(name, sizeof name, row_docs[r] ? "%d x %d" : "ragged", row_docs[r], w.N / MAX(row_docs[r], 1));
    return name;
}

// These return the bytes from the queries of a row to its keys, and from there to its values.
static size_t of_queries(void) { return 2 * (size_t)w.C; }
static size_t of_keys(void) { return of_queries() / w.model->NH * w.model->NKV; }

static Attention attention(void) {
    Attention a = {.q = t.qkv, .cu_q = t.cu, .cu_k = t.cu};
    a.k = t.qkv + of_queries(), a.v = t.qkv + of_queries() + of_keys();
    a.Nq = a.Nk = w.N;
    a.ldq = a.ldkv = (int)(of_queries() + 2 * of_keys()) / 2;
    a.ldo = w.C;
    a.n_docs = t.n_docs;
    a.NH = w.model->NH, a.NKV = w.model->NKV, a.HS = w.C / w.model->NH;
    a.causal = 1, a.tail = w.k->attention_tail;
    a.scale = 1 / sqrtf((float)a.HS);
    return a;
}
static void run_attention_forward(void) {
    Attention a = attention();
    w.k->attention_forward(t.out, t.lse, &a, DT_BF16, NULL);
}
static void run_attention_backward(void) {
    Attention a = attention();
    char *dk = t.dqkv + of_queries(), *dv = dk + of_keys();
    w.k->attention_backward(t.dqkv, dk, dv, t.dout, t.out, t.lse, &a, DT_BF16, NULL);
}

// Makes the documents of row r: equal ones, or ragged ones, of which the last is cut.
static void make_row(int r) {
    int* cu = (int*)malloc(sizeof(int) * ((size_t)w.N + 1));
    double pairs = 0;
    cu[0] = 0;
    for (t.n_docs = 0; cu[t.n_docs] < w.N; t.n_docs++) {
        int length = row_docs[r] ? w.N / row_docs[r] : ragged_length(4, t.n_docs);
        length = MIN(length, w.N - cu[t.n_docs]);
        cu[t.n_docs + 1] = cu[t.n_docs] + length;
        pairs += (double)length * (length + 1) / 2;
    }
    if (!row_docs[r]) ragged_mean = (double)w.N / t.n_docs;
    t.flops = 4.0 * w.C * pairs;
    w.k->free_memory(t.cu);
    t.cu = upload_ints(cu, (size_t)t.n_docs + 1);
    free(cu);
}

static void print_attention(void) {
    if (!w.model) return;
    printf("attention, %s, %d heads of %d, %d of keys, a row of %d tokens: TFLOP/s and %% of the matmul limit\n",
           w.model->name, w.model->NH, w.C / w.model->NH, w.model->NKV, w.N);
    for (int r = 0; r < N_ROWS; r++)
        for (int backward = 0; backward < 2; backward++) {
            printf("  %-9s %-8s", row_name(r), backward ? "backward" : "forward");
            for (int k = 0; k < N_KINDS; k++)
                if (attention_rates[r][k][backward] > 0)
                    printf("  %s %.4g (%.1f %%)", kinds[k].name, attention_rates[r][k][backward],
                           100 * attention_rates[r][k][backward] / limits->matmul);
            printf("\n");
        }
    printf("  ragged: %.0f tokens a document in the mean\n", ragged_mean);
    for (int k = 0; k < N_KINDS; k++)
        if (attention_refusals[k][0]) printf("  %s, %s\n", kinds[k].name, attention_refusals[k]);
    w.model = NULL;
}

static void bench_attention_row(int r, int k) {
    char name[128];
    make_row(r);
    for (int backward = 0; backward < (kinds[k].attention == ATTENTION_CUDNN ? 1 : 2); backward++) {
        double seconds = measure(backward ? run_attention_backward : run_attention_forward);
        double rate = (backward ? 2.5e-12 : 1e-12) * t.flops / seconds;
        attention_rates[r][k][backward] = rate;
        snprintf(name, sizeof name, "attention %s %s, %s", row_name(r), backward ? "backward" : "forward",
                 kinds[k].name);
        record(w.model->name, name, rate, "TFLOP/s", limits->matmul);
    }
}

static void make_attention_tensors(void) {
    size_t bytes = 2 * NC(), qkv_bytes = 2 * qkv_elems();
    size_t tail = (size_t)w.k->attention_tail * qkv_bytes / (size_t)w.N;
    t.qkv = (char*)alloc(qkv_bytes + tail), t.dqkv = (char*)alloc(qkv_bytes);
    t.out = (char*)alloc(bytes), t.dout = (char*)alloc(bytes);
    t.lse = (float*)alloc(4 * (size_t)w.model->NH * w.N);
    fill(t.qkv, qkv_bytes);
    fill(t.dout, bytes);
}

static void free_attention_tensors(void) {
    void* all[] = {t.qkv, t.dqkv, t.out, t.dout, t.lse, t.cu};
    for (int i = 0; i < COUNT(all); i++) w.k->free_memory(all[i]);
    memset(&t, 0, sizeof t);
}

// Rows of short documents are opened for these alone, as a run with that context would.
static void bench_attention_kind(const GptModel* m, int k, int short_context) {
    KernelLimits l = kernel_limits(m, w.N, short_context ? w.N / 8 : w.N);
    l.attention = kinds[k].attention;
    char err[ERR_BYTES];
    if (w.k->open(&l, err)) {
        snprintf(attention_refusals[k], ERR_BYTES, "context %d: %.160s", l.context, err);
        return;
    }
    make_attention_tensors();
    for (int r = 0; r < N_ROWS; r++)
        if (short_context == (row_docs[r] == 8)) bench_attention_row(r, k);
    free_attention_tensors();
    w.k->close();
}

static void bench_attention_of(const GptModel* m) {
    memset(attention_rates, 0, sizeof attention_rates);
    memset(attention_refusals, 0, sizeof attention_refusals);
    w.model = m, w.N = options.quick ? m->row : ATTENTION_ROW, w.C = m->C;
    for (int k = 0; k < (limits->is_cuda ? N_KINDS : 1); k++) {
        // Compiling cuDNN's plans takes seconds: none for short documents of a Llama.
        for (int short_context = m != &llama; short_context >= 0; short_context--)
            bench_attention_kind(m, k, short_context);
    }
    print_attention();
}

// ---- sections

static void for_small_and_large(void (*bench)(const GptModel* m)) {
    bench(options.quick ? quick_models : all_models);
    if (!options.quick) bench(&all_models[COUNT(all_models) - 1]);
}
static void for_llama_too(void (*bench)(const GptModel* m)) {
    for_small_and_large(bench);
    bench(options.quick ? &quick_llama : &llama);
}
static void bench_ops(void) { for_llama_too(bench_ops_of); }
static void bench_matmuls(void) {
    atexit(print_matmuls);  // prints what was measured before something died
    for_small_and_large(bench_matmuls_of);
}
static void bench_attention(void) {
    atexit(print_attention);
    for_llama_too(bench_attention_of);
}

static const struct Section {
    const char* name;
    void (*run)(void);
    int on_device;  // 1: in this process
} sections[] = {{"limits", bench_limits, 1},
                {"ops", bench_ops, 1},
                {"matmul", bench_matmuls, 1},
                {"attention", bench_attention, 1},
                {"train", bench_train, 0}};

// Runs a section in a process of its own and returns how that ended; 0 is success. The parent never touches the device,
// because a process that was forked after that could not use it.
static int run_section(const struct Section* s) {
    int status = 0;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        char err[ERR_BYTES];
        alarm((unsigned)MAX(seconds_left(), 0) + 2 * GRACE_SECONDS);
        if (s->on_device) w.k = kernels_find(options.device, "auto", err);
        if (s->on_device && !w.k) exit((fprintf(stderr, "bench_gpu: %s\n", err), 1));
        s->run();
        exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0) return perror("bench_gpu"), 1;
    if (status == 0) return 0;
    if (WIFSIGNALED(status)) printf("  section %s: ended by signal %d\n", s->name, WTERMSIG(status));
    else printf("  section %s: ended with status %d\n", s->name, WEXITSTATUS(status));
    return 1;
}

static void read_options(int argc, char** argv) {
    for (int i = 1; i < argc; i++) {
        const char* value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--quick")) options.quick = 1, V = 500, VP = 512;
        else if (!strcmp(argv[i], "--device") && *value) options.device = value, i++;
        else if (!strcmp(argv[i], "--only") && *value) options.only = value, i++;
        else if (!strcmp(argv[i], "--record") && *value) options.record = value, i++;
        else if (!strcmp(argv[i], "--seconds") && atof(value) > 0) options.seconds = atof(value), i++;
        else
            exit((fprintf(stderr,
                          "bench_gpu: %s: expected --device NAME, --only SECTIONS, --seconds N, --record FILE or "
                          "--quick\n",
                          argv[i]),
                  1));
    }
    // the trainer of the same build: ../train beside this program's folder
    const char* slash = strrchr(argv[0], '/');
    if (slash) snprintf(options.train, sizeof options.train, "%.*s/../train", (int)(slash - argv[0]), argv[0]);
}

int main(int argc, char** argv) {
    int failures = 0;
    options.started = now_seconds();
    read_options(argc, argv);
    setvbuf(stdout, NULL, _IOLBF, 0);
    remove(options.record);
    limits = (struct Limits*)mmap(NULL, sizeof *limits, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (limits == MAP_FAILED) return perror("bench_gpu"), 1;
    if (run_section(&sections[0])) return 1;
    for (int i = 1; i < COUNT(sections); i++)
        if (!options.only[0] || strstr(options.only, sections[i].name)) failures += run_section(&sections[i]);
    printf("%.0f s in all\n", now_seconds() - options.started);
    return failures > 0;
}
