// memory.c - every class of bytes has a name, a size and one allocation, and is in the table before any of it is taken.
#include <stdio.h>
#include <stdlib.h>

#include "run/run.h"

static size_t batch_bytes(int max_tokens, int capacity) {
    size_t ints = 3 * (size_t)max_tokens + 2 + pack_scratch_ints(max_tokens, capacity) + 4 * (size_t)capacity + 1;
    return ROUND_UP((size_t)max_tokens * sizeof(Piece) + ints * sizeof(int), (size_t)64);
}

static void plan_row(MemoryPlan* plan, const char* name, size_t bytes, int on_host) {
    MemoryRow row = {name, bytes, on_host, NULL};
    if (bytes == 0) return;
    plan->rows[plan->n++] = row;
    plan->total += bytes;
}

static void* planned(const MemoryPlan* plan, const char* name) {
    for (int i = 0; i < plan->n; i++)
        if (!strcmp(plan->rows[i].name, name)) return plan->rows[i].memory;
    return NULL;
}

static KernelLimits kernel_limits(const Run* run, int N) {
    const Model* m = &run->model;
    KernelLimits limits;
    limits.N = N;
    limits.C = 4 * m->shape.C;
    limits.OC = MAX(4 * m->shape.C, m->shape.Vp);
    limits.NH = m->shape.NH;
    limits.HS = m->shape.C / m->shape.NH;
    limits.context = m->shape.context;
    limits.threads = run->config.threads;
    limits.dt = m->dt;
    return limits;
}

// Sizes of everything for rows of N tokens.
static MemoryPlan plan_rows_of(Run* run, int N) {
    enum {
        CHUNK_BYTES = 128 << 20,
        CHUNK_ROWS = 1024
    };  // a chunk of logits: large enough that adding to dwte is cheap beside it
    Model* m = &run->model;
    MemoryPlan plan;
    memset(&plan, 0, sizeof plan);
    size_t elems = shape_param_elems(&m->shape), fp32 = elems * sizeof(float),
           logit_row = (size_t)m->shape.Vp * dtype_bytes(m->dt);
    ParamTensor wte = shape_param(&m->shape, WTE, 0), fcw = shape_param(&m->shape, FCW, 0),
                wpe = shape_param(&m->shape, WPE, 0);
    int train = run->training;
    m->classifier_N = MIN(N, (int)MIN((size_t)CHUNK_ROWS, MAX(CHUNK_BYTES / logit_row, (size_t)64)));
    ActNeeds needs;
    needs.N = N;
    needs.classifier_N = train ? m->classifier_N : 1;
    needs.recompute = m->recompute;
    needs.training = train;
    needs.sampling = !train || run->config.sample_every > 0;
    needs.dt = m->dt;
    KernelLimits limits = kernel_limits(run, N);
    plan_row(&plan, "parameters", elems * dtype_bytes(m->dt), 0);
    plan_row(&plan, "master weights", train && has_master(m) ? fp32 : 0, 0);
    plan_row(&plan, "gradients", train ? fp32 : 0, 0);
    plan_row(&plan, "first moments", train ? fp32 : 0, 0);
    plan_row(&plan, "second moments", train ? fp32 : 0, 0);
    plan_row(&plan, "activations", shape_activations(&m->shape, &needs, m->act_table), 0);
    plan_row(&plan, "row indices", (5 * (size_t)N + 8) * sizeof(int) + 64, 0);
    plan_row(&plan, "kernel scratch", m->k->workspace_bytes(&limits), 0);
    plan_row(&plan, "step buffers", batch_bytes(train ? run->config.batch_tokens : N, N), 1);
    plan_row(&plan, "losses and logits", ((size_t)N + 2 * (size_t)m->shape.Vp) * sizeof(float), 1);
    plan_row(&plan, "file staging", MAX(MAX(wte.elems, wpe.elems), fcw.elems) * sizeof(float), 1);
    return plan;
}

// The longest row, up to 8192 tokens, whose memory fits in half of what is available; never shorter than a document.
static int settle_capacity(Run* run) {
    Config* c = &run->config;
    if (!run->training) return c->context;
    if (c->capacity) return MIN(c->capacity, MAX(c->batch_tokens, c->context));
    int N = MAX(MIN(c->batch_tokens, 8192), c->context);
    while (N / 2 >= c->context && plan_rows_of(run, N).total > run->model.k->memory_available() / 2) N /= 2;
    return N;
}

static void allocate(Run* run, MemoryPlan* plan) {
    char err[ERR_BYTES];
    Model* m = &run->model;
    size_t available = m->k->memory_available();
    if (plan->total > available)
        die("expected %zu MiB of memory as in the table above, found %zu MiB available; try a smaller --capacity, "
            "--recompute block, or a "
            "smaller model",
            plan->total >> 20, available >> 20);
    KernelLimits limits = kernel_limits(run, run->config.capacity);
    if (m->k->open(&limits, err, sizeof err)) die("%s", err);
    for (int i = 0; i < plan->n; i++) {
        MemoryRow* row = &plan->rows[i];
        if (!strcmp(row->name, "kernel scratch")) continue;  // taken by open
        row->memory = row->on_host ? calloc(1, row->bytes) : m->k->alloc(row->bytes);
        if (!row->memory)
            die("no memory for %s, %zu MiB; try a smaller --capacity or --recompute block", row->name,
                row->bytes >> 20);
    }
}

static void batch_carve(Batch* b, char* memory, int max_tokens, int capacity) {
    b->max_tokens = max_tokens;
    b->capacity = capacity;
    b->pieces = (Piece*)memory;
    int* p = (int*)(b->pieces + max_tokens);
    b->lengths = p, p += max_tokens;
    b->packing.order = p, p += max_tokens;
    b->packing.first = p, p += max_tokens + 1;
    b->pack_scratch = p, p += pack_scratch_ints(max_tokens, capacity);
    b->tokens = p, p += capacity;
    b->positions = p, p += capacity;
    b->targets = p, p += capacity;
    b->cu = p;
}

// Hands the planned memory to those who use it.
static void carve(Run* run, const MemoryPlan* plan) {
    Model* m = &run->model;
    int N = run->config.capacity;
    m->params = (char*)planned(plan, "parameters");
    m->master = (float*)(has_master(m) ? planned(plan, "master weights") : m->params);
    m->grads = (float*)planned(plan, "gradients");
    m->m = (float*)planned(plan, "first moments");
    m->v = (float*)planned(plan, "second moments");
    m->acts = (char*)planned(plan, "activations");
    m->grad_norm2 = (double*)planned(plan, "row indices");  // 8 bytes at its head
    int* p = (int*)planned(plan, "row indices") + 16;
    run->row.tokens = p, p += N;
    run->row.positions = p, p += N;
    run->row.targets = p, p += N;
    run->row.cu_q = p;
    batch_carve(&run->batch, (char*)planned(plan, "step buffers"), run->training ? run->config.batch_tokens : N, N);
    run->host_losses = (float*)planned(plan, "losses and logits");
    run->host_logits = run->host_losses + N;
    run->host_scratch = run->host_logits + m->shape.Vp;
    run->staging = (float*)planned(plan, "file staging");
}

MemoryPlan run_plan_memory(Run* run) {
    run->config.capacity = settle_capacity(run);
    return plan_rows_of(run, run->config.capacity);
}

void run_take_memory(Run* run, MemoryPlan* plan) {
    allocate(run, plan);
    carve(run, plan);
}
