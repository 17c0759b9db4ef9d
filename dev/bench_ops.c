// bench_ops.c - time of every op that is not a matmul, at the sizes of GPT-2 124M: one row of 4096 tokens, 768
// channels, 12 heads, documents of 1024 tokens, 256 rows of logits; what GPT-2 has not, at the same: 4 key/value heads,
// 1536 hidden units of an MLP with SwiGLU.
//
//   build/release/dev/bench_ops [instruction set [threads]]
//
// One thread is timed by its processor time, so that other programs on the machine do not count; more by the clock.
// Bandwidth counts each tensor once for each time it must cross the memory bus and stands beside a copy of 32 MiB
// on the same threads. Reads alone may pass 100 %, and so may everything that fits the last cache. Attention counts
// the causal half of its 2 (forward) and 5 (backward) products; its limit is the best rate of any
// multiply-add instruction that takes the type, on registers alone.
#include "dev/bench.h"

enum {
    N = 4096,
    C = 768,
    NH = 12,
    NKV = 4,
    HS = 64,
    U = 2 * C,
    T = 1024,
    V = 50257,
    VP = 50304,
    ROWS = 256,
    DOCS = N / T,
    RUNS = 15
};
static const size_t NC = (size_t)N * C, WEIGHTS = 12 << 20;

static struct {
    const Kernels* k;
    DType dt;
    void *a, *b, *c, *wte, *wpe, *weight, *bias, *logits, *param;  // a, b, c: (N,4C)
    float *mean, *rstd, *lse, *table, *dwte, *dwpe, *dweight, *dbias, *losses, *master, *m, *v, *grad;
    int *tokens, *positions, *targets, cu[DOCS + 1];
    double norm;
} w;

static void* tensor(size_t n, DType dt, double scale) {
    void* p = w.k->alloc(n * dtype_bytes(dt));
    if (!p) exit((fprintf(stderr, "bench_ops: no memory for %zu elements\n", n), 1));
    for (size_t i = 0; i < n; i++) {
        float x = (float)(scale * ((double)(hash64(i) % 2001) / 1000 - 1));
        if (dt == DT_BF16) ((bf16*)p)[i] = bf16_from_float(x);
        else ((float*)p)[i] = x;
    }
    return p;
}

static int* integers(size_t n, int below) {
    int* p = (int*)w.k->alloc(n * sizeof(int));
    for (size_t i = 0; i < n; i++) p[i] = (int)(hash64(i) % (uint64_t)below);
    return p;
}

// heads: of keys and values.
static Attention attention(int heads) {
    int ld = (NH + 2 * heads) * HS;
    size_t head = HS * dtype_bytes(w.dt);
    const char* qkv = (const char*)w.a;
    return (Attention){.q = qkv,
                       .k = qkv + NH * head,
                       .v = qkv + (NH + heads) * head,
                       .cu_q = w.cu,
                       .cu_k = w.cu,
                       .Nq = N,
                       .Nk = N,
                       .ldq = ld,
                       .ldkv = ld,
                       .ldo = C,
                       .n_docs = DOCS,
                       .NH = NH,
                       .NKV = heads,
                       .HS = HS,
                       .causal = 1,
                       .scale = 0.125f};
}

enum { COPIED = 32 << 20, PIECE = 1 << 14 };
static void copy_piece(const void* job, size_t i, int thread) {
    (void)job, (void)thread;
    memcpy((char*)w.m + i * PIECE, (char*)w.v + i * PIECE, PIECE);
}
static void run_copy(void) { team_run(copy_piece, NULL, COPIED / PIECE, cpu_portion(COPIED / PIECE), 0); }

static void run_embedding_forward(void) {
    w.k->embedding_forward(w.a, w.tokens, w.positions, w.wte, w.wpe, N, C, w.dt, NULL);
}
static void run_embedding_backward(void) {
    w.k->embedding_backward(w.dwte, w.dwpe, w.a, w.tokens, w.positions, N, C, w.dt, NULL);
}
static void run_layernorm_forward(void) {
    w.k->norm_forward(NULL, w.a, w.mean, w.rstd, w.b, NULL, w.weight, w.bias, 1e-5f, N, C, w.dt, NULL);
}
static void run_residual(void) {
    w.k->norm_forward(w.c, w.a, w.mean, w.rstd, w.b, w.c, w.weight, w.bias, 1e-5f, N, C, w.dt, NULL);
}
static void run_layernorm_backward(void) {
    w.k->norm_backward(w.a, w.dweight, w.dbias, NULL, w.b, w.c, w.weight, w.mean, w.rstd, N, C, w.dt, NULL);
}
static void run_rmsnorm_forward(void) {
    w.k->norm_forward(w.c, w.a, NULL, w.rstd, w.b, w.c, w.weight, NULL, 1e-6f, N, C, w.dt, NULL);
}
static void run_rmsnorm_backward(void) {
    w.k->norm_backward(w.a, w.dweight, NULL, NULL, w.b, w.c, w.weight, NULL, w.rstd, N, C, w.dt, NULL);
}
static void rotate(int qk_norm, int backward) {
    Rotary r = {w.positions, w.table, N, NH, NKV, HS, (NH + 2 * NKV) * HS, NULL, NULL, 1e-6f};
    if (qk_norm) r.q_weight = w.weight, r.k_weight = w.bias;
    if (!backward) w.k->rotary_forward(w.a, qk_norm ? w.b : NULL, &r, w.dt, NULL);
    else if (!qk_norm) w.k->rotary_backward(w.a, NULL, NULL, NULL, &r, w.dt, NULL);
    else w.k->rotary_backward(w.a, w.dweight, w.dbias, w.b, &r, w.dt, NULL);
}
static void run_rotary_forward(void) { rotate(0, 0); }
static void run_rotary_backward(void) { rotate(0, 1); }
static void run_qk_norm_forward(void) { rotate(1, 0); }
static void run_qk_norm_backward(void) { rotate(1, 1); }
static void run_swiglu_forward(void) { w.k->activation_forward(w.a, w.b, ACT_SWIGLU, N, U, w.dt, NULL); }
static void run_swiglu_backward(void) { w.k->activation_backward(w.a, w.c, w.b, ACT_SWIGLU, N, U, w.dt, NULL); }
static void run_gelu(void) { w.k->activation_forward(w.a, w.b, ACT_GELU, N, 4 * C, w.dt, NULL); }
static void run_add(void) { w.k->add(w.a, w.b, w.c, NC, w.dt, NULL); }
static void run_cast(void) { w.k->ranks->cast(w.param, w.dt, w.master, DT_F32, WEIGHTS, NULL); }
static void forward_attention(int heads) {
    Attention a = attention(heads);
    w.k->attention_forward(w.b, w.lse, &a, w.dt, NULL);
}
static void backward_attention(int heads) {
    Attention a = attention(heads);
    size_t head = HS * dtype_bytes(w.dt);
    char *out = (char*)w.b, *dqkv = (char*)w.c, *dout = out + NC * dtype_bytes(w.dt);
    w.k->attention_backward(dqkv, dqkv + NH * head, dqkv + (NH + heads) * head, dout, out, w.lse, &a, w.dt, NULL);
}
static void run_attention_forward(void) { forward_attention(NH); }
static void run_attention_backward(void) { backward_attention(NH); }
static void run_shared_forward(void) { forward_attention(NKV); }
static void run_shared_backward(void) { backward_attention(NKV); }
static void run_classifier(void) { w.k->classifier(w.losses, w.logits, w.targets, 1e-4f, 1, ROWS, V, VP, w.dt, NULL); }
static void run_adamw(void) {
    static const float scale = 1;
    AdamW a = {w.param, w.master, w.m, w.v, w.grad, WEIGHTS, {0}, 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, &scale, 10, 0, 0};
    w.k->adamw(&a, 1, w.dt, NULL);
}
static void run_sum_of_squares(void) { w.k->sum_of_squares(&w.norm, w.grad, WEIGHTS, NULL); }

// Fills in sorted times, after a run that only warms up.
static void time_runs(double seconds[RUNS], void (*run)(void)) {
    run();
    for (int i = 0; i < RUNS; i++) {
        double start = bench_seconds();
        run();
        seconds[i] = bench_seconds() - start;
    }
    bench_median(seconds, RUNS);
}

static void show(const char* op, void (*run)(void), double amount, const char* unit, double limit) {
    char name[96];
    double runs[RUNS];
    time_runs(runs, run);
    double seconds = runs[RUNS / 2], rate = amount / seconds * 1e-9;
    snprintf(name, sizeof name, "%s %s", op, dtype_name(w.dt));
    printf("  %-34s %8.3f ms  %7.1f %-7s  %5.1f %% of %.1f\n", name, seconds * 1e3, rate, unit, 100 * rate / limit,
           limit);
    bench_record(name, rate, unit, limit);
}

static void make_tensors(void) {
    w.a = tensor(4 * NC, w.dt, 1), w.b = tensor(4 * NC, w.dt, 1), w.c = tensor(4 * NC, w.dt, 1);
    w.wte = tensor((size_t)VP * C, w.dt, 1), w.wpe = tensor(T * C, w.dt, 1);
    w.weight = tensor(C, w.dt, 1), w.bias = tensor(C, w.dt, 1);
    w.logits = tensor((size_t)ROWS * VP, w.dt, 3), w.param = tensor(WEIGHTS, w.dt, 1);
}

static void free_tensors(void) {
    void* all[] = {w.a, w.b, w.c, w.wte, w.wpe, w.weight, w.bias, w.logits, w.param};
    for (int i = 0; i < COUNT(all); i++) w.k->free_memory(all[i]);
}

static void make_fp32_tensors(void) {
    w.mean = (float*)tensor(N, DT_F32, 1), w.rstd = (float*)tensor(N, DT_F32, 1),
    w.lse = (float*)tensor(N * NH, DT_F32, 1);
    w.dwte = (float*)tensor((size_t)VP * C, DT_F32, 1), w.dwpe = (float*)tensor(T * C, DT_F32, 1);
    w.dweight = (float*)tensor(C, DT_F32, 1), w.dbias = (float*)tensor(C, DT_F32, 1);
    w.table = (float*)tensor((size_t)T * HS, DT_F32, 1);
    for (int i = 0; i < T * HS; i += 2) w.table[i] = cosf((float)i), w.table[i + 1] = sinf((float)i);
    w.losses = (float*)tensor(ROWS, DT_F32, 1), w.master = (float*)tensor(WEIGHTS, DT_F32, 1);
    w.m = (float*)tensor(WEIGHTS, DT_F32, 0.1), w.v = (float*)tensor(WEIGHTS, DT_F32, 0),
    w.grad = (float*)tensor(WEIGHTS, DT_F32, 1);
    w.tokens = integers(N, V), w.positions = integers(N, T), w.targets = integers(ROWS, V);
    for (int i = 0; i <= DOCS; i++) w.cu[i] = i * T;
}

// Bytes: b is the size of an element, s of a tensor (N,C).
static void bench_type(DType dt) {
    double peak = 1e-9 * cpu_peak(w.k, dt);
    w.dt = dt;
    make_tensors();
    double b = (double)dtype_bytes(dt), s = b * (double)NC, f = 4 * (double)NC, weights = (double)WEIGHTS;
    double flops = 4.0 * HS * NH * DOCS * ((double)T * (T + 1) / 2);
    double heads = b * N * (NH + NKV) * HS, hidden = b * N * U, runs[RUNS], copy;
    time_runs(runs, run_copy);
    copy = 2.0 * COPIED / runs[0] * 1e-9;  // a limit is the best of its runs
    show("embedding_forward", run_embedding_forward, 3 * s, "GB/s", copy);
    show("embedding_backward", run_embedding_backward, s + 4 * f, "GB/s", copy);
    show("layernorm_forward", run_layernorm_forward, 2 * s, "GB/s", copy);
    show("residual_layernorm_forward", run_residual, 4 * s, "GB/s", copy);
    show("layernorm_backward", run_layernorm_backward, 4 * s, "GB/s", copy);
    show("gelu_forward", run_gelu, 8 * s, "GB/s", copy);
    show("add", run_add, 3 * s, "GB/s", copy);
    show("cast from fp32", run_cast, (4 + b) * weights, "GB/s", copy);
    show("classifier", run_classifier, 2 * b * ROWS * VP, "GB/s", copy);
    show("adamw", run_adamw, (28 + b) * weights, "GB/s", copy);
    show("sum_of_squares", run_sum_of_squares, 4 * weights, "GB/s", copy);
    if (peak > 0) show("attention_forward", run_attention_forward, flops, "GFLOP/s", peak);
    if (peak > 0) show("attention_backward", run_attention_backward, 2.5 * flops, "GFLOP/s", peak);
    show("rmsnorm_forward with sum", run_rmsnorm_forward, 4 * s, "GB/s", copy);
    show("rmsnorm_backward", run_rmsnorm_backward, 4 * s, "GB/s", copy);
    show("rotary_forward", run_rotary_forward, 2 * heads, "GB/s", copy);
    show("rotary_backward", run_rotary_backward, 2 * heads, "GB/s", copy);
    show("rotary_forward with QK-norm", run_qk_norm_forward, 3 * heads, "GB/s", copy);
    show("rotary_backward with QK-norm", run_qk_norm_backward, 3 * heads, "GB/s", copy);
    show("swiglu_forward", run_swiglu_forward, 3 * hidden, "GB/s", copy);
    show("swiglu_backward", run_swiglu_backward, 5 * hidden, "GB/s", copy);
    if (peak > 0) show("attention_forward, shared keys", run_shared_forward, flops, "GFLOP/s", peak);
    if (peak > 0) show("attention_backward, shared keys", run_shared_backward, 2.5 * flops, "GFLOP/s", peak);
    free_tensors();
}

int main(int argc, char** argv) {
    char err[ERR_BYTES];
    KernelLimits limits = {.N = N, .C = C, .OC = VP, .NH = NH, .NKV = NKV, .HS = HS, .context = T, .dt = DT_F32};
    limits.threads = argc > 2 ? atoi(argv[2]) : 0;
    w.k = kernels_find("cpu", argc > 1 ? argv[1] : "auto", err);
    if (!w.k || w.k->open(&limits, err)) {
        fprintf(stderr, "bench_ops: %s\n", err);
        return 1;
    }
    printf("%s, threads: %d; ops at GPT-2 124M sizes, median of %d\n", w.k->name, team_threads(), RUNS);
    make_fp32_tensors();
    bench_type(DT_F32);
    bench_type(DT_BF16);
    w.k->close();
    return 0;
}
