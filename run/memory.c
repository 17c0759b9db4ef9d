// memory.c - every class of bytes has a name, a size and one allocation, and is in the table before any of it is taken.
#include <stdio.h>
#include <stdlib.h>

#include "run/run.h"

enum { SUMS_BYTES = 64 };  // loss, squared norm, scale of the gradients

static size_t batch_bytes(int max_tokens, int capacity) {
    size_t ints = 4 * (size_t)max_tokens + 2 + pack_scratch_ints(max_tokens, capacity);
    return ROUND_UP((size_t)max_tokens * sizeof(Piece) + ints * sizeof(int), (size_t)64);
}

// Tokens, positions, targets and cu_seqlens of a step; a row holds a document at least, so there are fewer rows than
// documents, and fewer of these than tokens. Generation needs four of cu.
static size_t index_bytes(int max_tokens) { return (5 * (size_t)max_tokens + 4) * sizeof(int); }

static void plan_row(MemoryPlan* plan, const char* name, size_t bytes, Where where) {
    MemoryRow row = {name, bytes, where, NULL};
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
    limits.attention = !strcmp(run->config.attention, "own")     ? ATTENTION_OWN
                       : !strcmp(run->config.attention, "cudnn") ? ATTENTION_CUDNN
                                                                 : ATTENTION_AUTO;
    limits.fast_backward = !strcmp(run->config.deterministic, "no");
    limits.epilogues = !strcmp(run->config.epilogues, "bias")  ? EPILOGUE_BIAS
                       : !strcmp(run->config.epilogues, "all") ? EPILOGUE_ALL
                                                               : EPILOGUE_DGELU;
    return limits;
}

// Sizes of everything for rows of N tokens.
static MemoryPlan plan_rows_of(Run* run, int N) {
    Model* m = &run->model;
    MemoryPlan plan;
    memset(&plan, 0, sizeof plan);
    size_t elems = shape_param_elems(&m->shape), fp32 = elems * sizeof(float),
           logit_row = (size_t)m->shape.Vp * dtype_bytes(m->dt);
    ParamTensor wte = shape_param(&m->shape, WTE, 0), fcw = shape_param(&m->shape, FCW, 0),
                wpe = shape_param(&m->shape, WPE, 0);
    int train = run->training, max_tokens = train ? run->config.batch_tokens : N;
    // A chunk of logits: large enough to fill the device and to make adding to dwte cheap beside the matmul.
    size_t chunk_rows = (size_t)m->k->full_matmul, chunk_bytes = chunk_rows << 17;
    m->classifier_N = MIN(N, (int)MIN(chunk_rows, MAX(chunk_bytes / logit_row, (size_t)64)));
    ActNeeds needs;
    needs.N = N;
    needs.classifier_N = train ? m->classifier_N : 1;
    needs.recompute = m->recompute;
    needs.training = train;
    needs.sampling = !train || run->config.sample_every > 0;
    needs.dt = m->dt;
    KernelLimits limits = kernel_limits(run, N);
    plan_row(&plan, "parameters", elems * dtype_bytes(m->dt), ON_DEVICE);
    plan_row(&plan, "master weights", train && has_master(m) ? fp32 : 0, ON_DEVICE);
    plan_row(&plan, "gradients", train ? fp32 : 0, ON_DEVICE);
    plan_row(&plan, "first moments", train ? fp32 : 0, ON_DEVICE);
    plan_row(&plan, "second moments", train ? fp32 : 0, ON_DEVICE);
    plan_row(&plan, "activations", shape_activations(&m->shape, &needs, m->act_table), ON_DEVICE);
    plan_row(&plan, "sums", SUMS_BYTES, ON_DEVICE);
    plan_row(&plan, "step indices", index_bytes(max_tokens), ON_DEVICE);
    plan_row(&plan, "kernel scratch", m->k->workspace_bytes(&limits), ON_DEVICE);
    plan_row(&plan, "step indices, host", index_bytes(max_tokens), ON_HOST_PINNED);
    plan_row(&plan, "step buffers", batch_bytes(max_tokens, N), ON_HOST);
    plan_row(&plan, "logits of a token", 2 * (size_t)m->shape.Vp * sizeof(float), ON_HOST);
    plan_row(&plan, "file staging", MAX(MAX(wte.elems, wpe.elems), fcw.elems) * sizeof(float), ON_HOST);
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
        row->memory = row->where == ON_HOST          ? calloc(1, row->bytes)
                      : row->where == ON_HOST_PINNED ? m->k->alloc_host(row->bytes)
                                                     : m->k->alloc(row->bytes);
        if (!row->memory)
            die("no memory for %s, %zu MiB; try a smaller --capacity or --recompute block", row->name,
                row->bytes >> 20);
    }
}

static void batch_carve(Batch* b, char* memory, int* indices, int* device_indices, int max_tokens, int capacity) {
    b->max_tokens = max_tokens;
    b->capacity = capacity;
    b->pieces = (Piece*)memory;
    int* p = (int*)(b->pieces + max_tokens);
    b->lengths = p, p += max_tokens;
    b->packing.order = p, p += max_tokens;
    b->packing.first = p, p += max_tokens + 1;
    b->row_begin = p, p += max_tokens + 1;
    b->pack_scratch = p;
    b->indices = indices;
    b->device_indices = device_indices;
    b->tokens = indices;
    b->positions = b->tokens + max_tokens;
    b->targets = b->positions + max_tokens;
    b->cu = b->targets + max_tokens;
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
    m->loss_sum = (double*)planned(plan, "sums");
    m->grad_norm2 = m->loss_sum + 1;
    m->grad_scale = (float*)(m->loss_sum + 2);
    batch_carve(&run->batch, (char*)planned(plan, "step buffers"), (int*)planned(plan, "step indices, host"),
                (int*)planned(plan, "step indices"), run->training ? run->config.batch_tokens : N, N);
    run->host_logits = (float*)planned(plan, "logits of a token");
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
