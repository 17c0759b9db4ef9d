// memory.c - how long the rows of a run are, and its memory taken by the table of memory_ranks.c.
#include <stdlib.h>

#include "run/model/tensor_parallel.h"
#include "run/strategies/strategies.h"

// ---- how long rows are

// What one rank may take: ranks on the CPU share the memory of their node or container.
static HostMemory available_memory(const Run* run) {
    const Model* m = &run->model;
    if (m->k->on_host) return host_memory("", m->world->local_size);
    return (HostMemory){m->k->memory_available(), "free memory of the device"};
}

// The longest row that is worth its memory. On a CPU 8192 tokens. A GPU works on tiles of 128 x 256 outputs, as many at
// a time as it has processors (132 on an H100): an output of 768 columns and 8192 rows takes 1.45 such waves and costs
// as much as 2; with 32768 rows it takes 5.8 of 6, and longer rows win less than 3 % more. Of ranks that share a step
// none has use for more than twice its share, which leaves room for one with many short documents.
static int most_row(const Run* run) {
    const Config* c = &run->config;
    int share = CEIL_DIV(c->batch_tokens, run->clock->limits.ranks);
    return run->model.k->on_host ? 8192 : MAX(8192, 2 * MIN(share, 16384));
}

// The longest row up to that whose memory fits, on a CPU in half of what is available, which others need too; on one
// rank never shorter than a document.
static int longest_row(const Run* run) {
    const Config* c = &run->config;
    int ranks = run->clock->limits.ranks, least = CEIL_DIV(c->context, ranks) + (ranks > 1 ? 256 : 0);
    int N = MAX(MIN(c->batch_tokens, most_row(run)), c->context);
    size_t room = run->model.k->on_host ? run->cluster->available.bytes / 2 : run->cluster->available.bytes;
    while (N / 2 >= least && run_plan_rows(run, N).total > room) N /= 2;
    return N;
}

// All ranks plan with one capacity: the least of what each has room for.
static int settle_capacity(const Run* run) {
    const Config* c = &run->config;
    if (!run->training) return c->context;
    int asked = run->settled.capacity, mine = asked ? MIN(asked, MAX(c->batch_tokens, c->context)) : longest_row(run);
    return (int)-run_most(run, run->model.job, -mine);
}

MemoryPlan run_plan_job_memory(Run* run) {
    const Config* c = &run->config;
    Cluster* cluster = run->cluster;
    // Before ranks agree on a capacity: nobody has taken anything yet. Known already of a virtual machine.
    if (!cluster->available.bytes) cluster->available = available_memory(run);
    cluster->most_scratch = cluster->available.bytes / 8;
    int N = run->settled.capacity = run->clock->limits.capacity = settle_capacity(run);
    MemoryPlan plan = run_plan_rows(run, N);
    if (plan.total > cluster->available.bytes) {  // perhaps a faster way took what is missing
        cluster->most_scratch = 1;
        plan = run_plan_rows(run, N);
    }
    run->books->memory_bytes = plan.total;
    run->clock->setting.limits = run->clock->limits;
    run->clock->setting.kind = (CpChoice)config_choice(c, "--cp kind");
    run->clock->setting.context = c->context;
    run->clock->setting.no_overlap = !strcmp(c->overlap, "no");
    run->clock->setting.cp_size = c->cp_size;
    run->clock->setting.rounds = run->model.ranks->zero.stage > 1 || run->model.stages > 1;
    return plan;
}

// ---- taking it

// For whatever strategy is at work.
static KernelLimits widest_limits(const Run* run) {
    KernelLimits most = run_model_needs(run, run->clock->limits.capacity).limits;
    for (int s = 0; run->strategies && s < run->strategies->list.n; s++) {
        const Run* as = run->strategies->as[s];
        KernelLimits other = run_model_needs(as, as->clock->limits.capacity).limits;
        most.N = MAX(most.N, other.N), most.spread = MAX(most.spread, other.spread);
        most.C = MAX(most.C, other.C), most.OC = MAX(most.OC, other.OC);
        most.NH = MAX(most.NH, other.NH), most.NKV = MAX(most.NKV, other.NKV);
    }
    return most;
}

// Names what takes most of what counts. A document that no rank shares needs its row, whatever --capacity says.
static void refuse_memory(const Run* run, const MemoryPlan* plan) {
    const MemoryEntry* most = NULL;
    const Config* c = &run->config;
    char total[32], largest[32], found[32];
    for (int i = 0; i < plan->n; i++) {
        const MemoryEntry* entry = &plan->entries[i];
        if (memory_counts(plan, entry->where) && (!most || entry->bytes > most->bytes)) most = entry;
    }
    die("expected %s of memory, the largest part for %s (%s), found %s available (%s); try %s, --recompute block, or a "
        "smaller model",
        text_bytes((double)plan->total, total), most->name, text_bytes((double)most->bytes, largest),
        text_bytes((double)run->cluster->available.bytes, found), run->cluster->available.whose,
        run->clock->limits.ranks == 1 && run->settled.capacity <= c->context ? "a smaller --context, more ranks"
                                                                             : "a smaller --capacity");
}

static void allocate(const Run* run, MemoryPlan* plan) {
    char err[ERR_BYTES];
    const Kernels* k = run->model.k;
    if (plan->total > run->cluster->available.bytes) refuse_memory(run, plan);
    KernelLimits limits = widest_limits(run);
    if (k->open(&limits, err)) die("%s", err);
    memory_take(plan, k);
}

void run_carve_activations(Run* run) {
    ModelNeeds needs = run_model_needs(run, run->clock->limits.capacity);
    model_place_activations(&run->model, &needs);
}

// Hands the planned memory to those who use it.
static void carve(Run* run, const MemoryPlan* plan) {
    Model* m = &run->model;
    Books* books = run->books;
    int max_tokens = run_most_tokens(run);
    int *indices = (int*)memory_of(plan, "step indices, host"), *on_device = (int*)memory_of(plan, "step indices");
    model_carve(m, plan);
    if (!run->strategies) zero_open(m), run_carve_activations(run);
    run_carve_work(run, plan, run->settled.capacity);
    model_set_many(m);
    m->group_scratch = memory_of(plan, "group attention");
    m->ranks->moving = (char*)memory_of(plan, "weights, gradients on the move");
    m->barrier = m->loss_sum + 3;
    batch_plan_carve(&run->batch, memory_of(plan, "step buffers"), indices, on_device, max_tokens);
    if (run->training)
        batch_plan_carve(&run->ahead, memory_of(plan, "next step's buffers"),
                         indices + batch_plan_ints(run, max_tokens), on_device, max_tokens);
    run->host_logits = (float*)memory_of(plan, "logits of a token");
    run->host_scratch = run->host_logits + m->shape.Vp;
    books->staging = (float*)memory_of(plan, "file staging");
    books->part = m->tp || m->ranks->owner ? books->staging + run_largest_tensor(run) : books->staging;
    books->others = m->tp || m->ranks->owner ? books->part + run_largest_tensor(run) : NULL;
}

void run_widen_memory(MemoryPlan* plan, const MemoryPlan* other) {
    for (int i = 0; i < other->n; i++) {
        const MemoryEntry* entry = &other->entries[i];
        int at = memory_find(plan, entry->name);
        if (at == plan->n) memory_add(plan, entry->name, entry->bytes, entry->where);
        else if (plan->entries[at].bytes < entry->bytes) {
            plan->total += memory_counts(plan, entry->where) ? entry->bytes - plan->entries[at].bytes : 0;
            plan->entries[at].bytes = entry->bytes;
        }
    }
}

void run_take_job_memory(Run* run, MemoryPlan* plan) {
    run->books->resident_before = (double)host_resident();
    allocate(run, plan);
    carve(run, plan);
}
