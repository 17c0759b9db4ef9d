// memory.c - every class of bytes has a name, a size and one allocation, and is in the table before any of it is taken.
#include <stdlib.h>

#include "kernels/straggle.h"
#include "run/strategies/strategies.h"
#include "run/model/tensor_parallel.h"

enum { SUMS_BYTES = 64 };  // loss, squared norm, scale of the gradients

static void plan_entry(MemoryPlan* plan, const char* name, size_t bytes, Where where) {
    MemoryEntry entry = {name, bytes, where, NULL};
    if (bytes == 0) return;
    plan->entries[plan->n++] = entry;
    plan->total += memory_counts(plan, where) ? bytes : 0;
}

static void* planned(const MemoryPlan* plan, const char* name) {
    for (int i = 0; i < plan->n; i++)
        if (!strcmp(plan->entries[i].name, name)) return plan->entries[i].memory;
    return NULL;
}

// Plans divide f key/value heads among data ranks, f being the fewest of any rank of a tensor-parallel group, and their
// capacity counts pairs of a token and one of these. A rank of h heads has at most ceil(h / f) for each.
static int heads_of_places(const Run* run, int h) {
    int f = run->clock->limits.kv_heads;
    return run->clock->limits.ranks > 1 ? f * CEIL_DIV(h, f) : h;
}

// With the most heads and hidden units that this rank may ever compute: a helper takes some over from others.
static Shape widest_shape(const Run* run) {
    Shape shape = run->model.shape;
    shape.kv_heads = heads_of_places(run, MAX(shape.kv_heads, run->cluster->work_needs.most_heads));
    shape.heads = shape.kv_heads * shape_queries(&run->model.shape);
    shape.hidden = MAX(shape.hidden, run->cluster->work_needs.most_hidden);
    return shape;
}

// The widest input or output of a linear of a layer.
static int widest_of(const Shape* shape) {
    int most = shape->C;
    for (int i = 0; i < N_SUBLAYERS; i++) {
        SublayerId id = (SublayerId)i;
        int units = own_units(shape, id);
        most = MAX(most, MAX(runs_sum(unit_rows(shape, id, units)), units * unit_columns(shape, id)));
    }
    return most;
}

// Of all layers.
static size_t widest_linear(const Shape* shape) {
    int most = widest_of(shape);
    for (int l = 0; l < shape->L && shape->units; l++) {
        Shape layer = *shape;
        const LayerUnits* u = &shape->units[l];
        layer.heads = u->heads, layer.kv_heads = u->kv_heads, layer.hidden = u->hidden;
        most = MAX(most, widest_of(&layer));
    }
    return (size_t)most;
}

static KernelLimits kernel_limits(const Run* run, int N) {
    const Model* m = &run->model;
    Shape widest = widest_shape(run);
    KernelLimits limits;
    memset(&limits, 0, sizeof limits);
    for (int l = 0; l < m->shape.L && m->shape.units; l++) {
        const LayerUnits* u = &m->shape.units[l];
        int kv_heads = heads_of_places(run, u->core_kv_heads);
        widest.kv_heads = MAX(widest.kv_heads, kv_heads);
        widest.heads = MAX(widest.heads, kv_heads * shape_queries(&m->shape));
        widest.hidden = MAX(widest.hidden, u->hidden);
    }
    limits.N = MAX(N, m->shape.context);  // generation may see that many keys
    limits.spread = run->clock->limits.ranks > 1 ? MIN(run->clock->limits.ranks, widest.kv_heads) : 1;
    limits.C = MAX(MAX(widest.C, widest.heads * widest.HS), widest.hidden);
    limits.OC = MAX((int)widest_linear(&widest), widest.vocab_rows);
    limits.NH = widest.heads, limits.NKV = widest.kv_heads;
    limits.HS = widest.HS;
    limits.oversubscribed = run->cluster->oversubscribed;
    limits.context = m->shape.context;
    limits.threads = run->config.threads;
    limits.dt = m->dt;
    limits.attention = (AttentionKernels)config_choice(&run->config, "--device attention");
    limits.fast_backward = !strcmp(run->config.deterministic, "no");
    limits.most_scratch = run->cluster->most_scratch;
    limits.epilogues = (Epilogues)config_choice(&run->config, "--device epilogues");
    return limits;
}

static ActNeeds activation_needs(const Run* run, int N) {
    const Model* m = &run->model;
    ActNeeds needs;
    needs.N = N;
    needs.classifier_N = run->training ? m->classifier_N : 1;
    needs.layer = layer_row(m, 0);
    needs.training = run->training;
    needs.sampling = !run->training || run->config.sample_every > 0;
    needs.groups = run->clock->limits.ranks > 1 && run->training;
    needs.slots = run->training ? pipeline_slots(m->stages, m->stage) : 1;
    needs.tp = tp_size(m);
    needs.places = run->clock->limits.ranks > 1 ? run->clock->limits.kv_heads : 0;
    needs.dt = m->dt;
    return needs;
}

static size_t largest_tensor(const Shape* shape) {
    size_t most = 0;
    for (int i = 0; i < N_PARAMS; i++) most = MAX(most, shape_param(shape, (ParamId)i, 0).elems);
    return most;
}

// For this rank's part of the model, or for the greatest part that it may come to own.
static size_t most_work_bytes(const Model* m, const WorkNeeds* needs, const Shape* widest) {
    Model later = *m;
    later.shape = *widest;
    return MAX(work_bytes(m, needs), work_bytes(&later, needs));
}

// The largest result of a linear's matmuls: activations, or gradients of a weight.
static size_t largest_product(const Model* m, const Shape* widest, int N) {
    return MAX((size_t)N * dtype_bytes(m->dt), (size_t)m->shape.C * sizeof(float)) * widest_linear(widest);
}

static size_t rope_elems(const Shape* s) {
    return shape_has(s, HAS_POSITIONS) ? 0 : 2 * (size_t)s->context * (size_t)(s->HS / 2);
}

static void fill_rope(Model* m) {
    size_t n = rope_elems(&m->shape);
    float* table = (float*)malloc(MAX(n, (size_t)1) * sizeof *table);
    if (!table) die("no memory for rotary positions");
    shape_rope(&m->shape, table);
    m->k->upload(m->rope, table, n * sizeof *table, m->s);
    m->k->synchronize(m->s);
    free(table);
}

// What balancing and injected stragglers need.
static void plan_work(MemoryPlan* plan, const Run* run, const Shape* widest, int N) {
    const Model* m = &run->model;
    size_t elem = dtype_bytes(m->dt), C = (size_t)m->shape.C;
    int active = run->cluster->work_needs.most_heads > 0;
    plan_entry(plan, "slices", active ? most_work_bytes(m, &run->cluster->work_needs, widest) : 0, ON_DEVICE);
    plan_entry(plan, "columns", active ? 2 * (size_t)N * widest_linear(widest) * elem : 0, ON_DEVICE);
    plan_entry(plan, "for ranks without heads", active ? MAX((size_t)N, C) * elem + C * sizeof(float) : 0, ON_DEVICE);
    plan_entry(plan, "straggling", run->cluster->n_stragglers ? straggle_bytes(m->k, largest_product(m, widest, N)) : 0,
               ON_DEVICE);
}

static void carve_work(Run* run, const MemoryPlan* plan, int N) {
    Model* m = &run->model;
    char *slices = (char*)planned(plan, "slices"), *headless = (char*)planned(plan, "for ranks without heads");
    Shape widest = widest_shape(run);
    if (run->cluster->n_stragglers)
        m->slowed = straggle_kernels(m->k, planned(plan, "straggling"), largest_product(m, &widest, N));
    if (!slices) return;
    run->cluster->work_memory = slices;
    m->work = work_open(m, &run->cluster->work_needs, slices);
    m->columns[0] = (char*)planned(plan, "columns");
    m->columns[1] = m->columns[0] + (size_t)N * widest_linear(&widest) * dtype_bytes(m->dt);
    m->spent = headless;
    m->zeros = headless + (size_t)m->shape.C * sizeof(float);
}

// Sizes of everything for rows of N tokens on this rank.
static MemoryPlan plan_rows_of(Run* run, int N) {
    Model* m = &run->model;
    MemoryPlan plan = {.on_host = m->k->on_host};
    run->clock->limits.capacity = N;
    Shape widest = widest_shape(run);
    size_t states[N_ZERO_PARTS];
    size_t logit_row = (size_t)m->shape.vocab_rows * dtype_bytes(m->dt),
           largest = largest_tensor(&m->whole) * sizeof(float);
    int train = run->training, max_tokens = train ? run->config.batch_tokens : m->shape.context;
    size_t index_bytes = batch_plan_ints(run, max_tokens) * sizeof(int);
    // A chunk of logits: large enough to fill the device and to make adding to dwte cheap beside the matmul.
    size_t chunk_rows = (size_t)m->k->full_matmul, chunk_bytes = chunk_rows << 17;
    m->classifier_N = MIN(N, (int)MIN(chunk_rows, MAX(chunk_bytes / logit_row, (size_t)64)));
    ActNeeds needs = activation_needs(run, N);
    KernelLimits limits = kernel_limits(run, N);
    zero_sizes(m, train, states);
    for (int i = 0; i < N_ZERO_PARTS; i++) plan_entry(&plan, zero_part_names[i], states[i], ON_DEVICE);
    if (m->owner) plan_entry(&plan, "weights, gradients on the move", strategies_scratch(run), ON_DEVICE);
    plan_entry(&plan, "activations", shape_activations(&widest, &needs, m->act_table), ON_DEVICE);
    size_t group = group_attention_scratch(N, limits.NH, limits.NKV, limits.HS, run->clock->limits.ranks,
                                           strcmp(run->config.route, "no") != 0, m->dt);
    plan_entry(&plan, "group attention", needs.groups ? group : 0, ON_DEVICE);
    plan_entry(&plan, "rotary positions", rope_elems(&m->shape) * sizeof(float), ON_DEVICE);
    plan_work(&plan, run, &widest, N);
    plan_entry(&plan, "sums", SUMS_BYTES, ON_DEVICE);
    plan_entry(&plan, "step indices", index_bytes, ON_DEVICE);
    plan_entry(&plan, "kernel scratch", m->k->workspace_bytes(&limits), ON_DEVICE);
    plan_entry(&plan, "libraries", m->k->libraries + (m->world->size > 1 ? m->k->comm_libraries : 0), BY_LIBRARIES);
    plan_entry(&plan, "step indices, host", (train ? 2 : 1) * index_bytes, ON_HOST_PINNED);
    plan_entry(&plan, "step buffers", batch_plan_bytes(max_tokens), ON_HOST);
    plan_entry(&plan, "next step's buffers", train ? batch_plan_bytes(max_tokens) : 0, ON_HOST);
    size_t schedules = (train ? 2 : 1) * batch_schedule_bytes(run, max_tokens);
    plan_entry(&plan, "planning, at most", run_planning_bytes(run, max_tokens) + schedules, AS_NEEDED);
    plan_entry(&plan, "logits of a token", 2 * (size_t)m->shape.Vp * sizeof(float), ON_HOST);
    plan_entry(&plan, "file staging", (m->tp || m->owner ? 3 : 1) * largest, ON_HOST);
    return plan;
}

// Of all that makes one rank of a tensor-parallel group need another number of bytes than the next.
static uint64_t hash_of_part(const Model* m) {
    const Shape* s = &m->shape;
    int own[] = {s->heads, s->kv_heads, s->hidden, s->vocab_rows};
    return hash_bytes(s->units, s->units ? sizeof *s->units * (size_t)s->L : 0, hash_bytes(own, sizeof own, 0));
}

// This rank as if it were number tp->rank of a group that runs stage s of a layout.
static void imagine(Run* run, const Layout* layout, int s, Comm* tp, Comm* data) {
    Model* m = &run->model;
    *data = (Comm){.size = m->world->size / (layout->tp * layout->stages)};
    m->ranks->split = split_even(&m->whole, layout->tp);
    m->tp = layout->tp > 1 ? tp : NULL;
    m->comm = data;
    m->stages = layout->stages, m->stage = s;
    m->ranks->layout = *layout;
    run_set_limits(run, layout->tp, data->size);
    Shape part = split_shape(&m->whole, &m->ranks->split, tp->rank);
    m->shape = shape_stage(&part, layout_first(layout, s), layout_first(layout, s + 1));
    m->shape.shards = data->size;
    layers_plan(m);
    m->ranks->zero.stage = zero_most(m);
}

size_t run_memory_of(Run* run, const Layout* layout, int s, int N) {
    uint64_t measured = 0;
    Model *m = &run->model, saved = *m;
    ModelRanks ranks = *m->ranks;
    PlanLimits limits = run->clock->limits;
    size_t most = 0;
    Comm tp = {.size = layout->tp}, data;
    for (tp.rank = 0; tp.rank < layout->tp; tp.rank++) {
        imagine(run, layout, s, &tp, &data);
        uint64_t own = hash_of_part(m);
        if (tp.rank > 0 && own == measured) continue;
        measured = own;
        most = MAX(most, plan_rows_of(run, N).total);
    }
    *m = saved, *m->ranks = ranks;
    run->clock->limits = limits;
    return most;
}

void run_layer_bytes(LayerBytes* bytes, Run* run, const Layout* layout, int s, int N) {
    Model *m = &run->model, saved = *m;
    ModelRanks ranks = *m->ranks;
    PlanLimits limits = run->clock->limits;
    Comm tp = {.size = layout->tp}, data;
    imagine(run, layout, s, &tp, &data);
    plan_rows_of(run, N);  // settles rows of the classifier
    ActNeeds needs = activation_needs(run, N);
    Shape widest = widest_shape(run);
    for (int b = 0; b <= m->shape.L + 1; b++) {
        Bucket bucket = shape_bucket(&m->shape, b);
        size_t states = shape_state_bytes(&bucket, zero_stage_of(m, b), m->dt);
        int ends = b == 0 || b > m->shape.L;
        bytes[ends ? m->shape.L : b - 1].states = states + (b > m->shape.L ? bytes[m->shape.L].states : 0);
        bytes[ends ? m->shape.L : b - 1].activations = ends ? 0 : shape_layer_activations(&widest, &needs, b - 1);
    }
    *m = saved, *m->ranks = ranks;
    run->clock->limits = limits;
}

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
static int longest_row(Run* run) {
    const Config* c = &run->config;
    int ranks = run->clock->limits.ranks, least = CEIL_DIV(c->context, ranks) + (ranks > 1 ? 256 : 0);
    int N = MAX(MIN(c->batch_tokens, most_row(run)), c->context);
    size_t room = run->model.k->on_host ? run->cluster->available.bytes / 2 : run->cluster->available.bytes;
    while (N / 2 >= least && plan_rows_of(run, N).total > room) N /= 2;
    return N;
}

// All ranks plan with one capacity: the least of what each has room for.
static int settle_capacity(Run* run) {
    const Config* c = &run->config;
    if (!run->training) return c->context;
    int mine = c->capacity ? MIN(c->capacity, MAX(c->batch_tokens, c->context)) : longest_row(run);
    return (int)-run_most(run, run->model.job, -mine);
}

// For whatever strategy is at work.
static KernelLimits widest_limits(const Run* run) {
    KernelLimits most = kernel_limits(run, run->clock->limits.capacity);
    for (int s = 0; run->strategies && s < run->strategies->list.n; s++) {
        const Run* as = run->strategies->as[s];
        KernelLimits other = kernel_limits(as, as->clock->limits.capacity);
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
        run->clock->limits.ranks == 1 && c->capacity <= c->context ? "a smaller --context, more ranks"
                                                                   : "a smaller --capacity");
}

static void allocate(Run* run, MemoryPlan* plan) {
    char err[ERR_BYTES];
    Model* m = &run->model;
    if (plan->total > run->cluster->available.bytes) refuse_memory(run, plan);
    KernelLimits limits = widest_limits(run);
    if (m->k->open(&limits, err, sizeof err)) die("%s", err);
    for (int i = 0; i < plan->n; i++) {
        MemoryEntry* entry = &plan->entries[i];
        int by_others = entry->where == AS_NEEDED || entry->where == BY_LIBRARIES;
        if (by_others || !strcmp(entry->name, "kernel scratch")) continue;  // the latter by open
        entry->memory = entry->where == ON_HOST          ? calloc(1, entry->bytes)
                        : entry->where == ON_HOST_PINNED ? m->k->alloc_host(entry->bytes)
                                                         : m->k->alloc(entry->bytes);
        if (!entry->memory)
            die("no memory for %s, %zu MiB; try a smaller --capacity or --recompute block", entry->name,
                entry->bytes >> 20);
    }
}

// Where activations of each layer lie.
void run_carve_activations(Run* run) {
    Model* m = &run->model;
    Shape widest = widest_shape(run);
    ActNeeds needs = activation_needs(run, run->clock->limits.capacity);
    m->act_places = (ActPlace*)calloc((size_t)N_ACTS * ((size_t)m->shape.L + 1), sizeof *m->act_places);
    if (!m->act_places) die("no memory for the places of %d layers", m->shape.L);
    shape_act_places(&widest, &needs, m->act_table, m->act_places);
}

// Hands the planned memory to those who use it.
static void carve(Run* run, const MemoryPlan* plan) {
    Model* m = &run->model;
    int max_tokens = run->training ? run->config.batch_tokens : m->shape.context;
    int *indices = (int*)planned(plan, "step indices, host"), *on_device = (int*)planned(plan, "step indices");
    for (int i = 0; i < N_ZERO_PARTS; i++) m->ranks->zero.part[i] = planned(plan, zero_part_names[i]);
    if (!run->strategies) zero_open(m), run_carve_activations(run);
    carve_work(run, plan, run->config.capacity);
    m->acts = (char*)planned(plan, "activations");
    m->group_scratch = planned(plan, "group attention");
    m->moving = (char*)planned(plan, "weights, gradients on the move");
    m->rope = (float*)planned(plan, "rotary positions");
    if (m->rope && !m->k->no_results) fill_rope(m);
    m->loss_sum = (double*)planned(plan, "sums");
    m->grad_norm2 = m->loss_sum + 1;
    m->grad_scale = (float*)(m->loss_sum + 2);
    m->barrier = m->loss_sum + 3;
    batch_plan_carve(&run->batch, planned(plan, "step buffers"), indices, on_device, max_tokens);
    if (run->training)
        batch_plan_carve(&run->ahead, planned(plan, "next step's buffers"), indices + batch_plan_ints(run, max_tokens),
                         on_device, max_tokens);
    run->host_logits = (float*)planned(plan, "logits of a token");
    run->host_scratch = run->host_logits + m->shape.Vp;
    run->books->staging = (float*)planned(plan, "file staging");
    run->books->part = m->tp || m->owner ? run->books->staging + largest_tensor(&m->whole) : run->books->staging;
    run->books->others = m->tp || m->owner ? run->books->part + largest_tensor(&m->whole) : NULL;
}

MemoryPlan run_plan_job_memory(Run* run) {
    // Before ranks agree on a capacity: nobody has taken anything yet. Known already of a virtual machine.
    if (!run->cluster->available.bytes) run->cluster->available = available_memory(run);
    run->cluster->most_scratch = run->cluster->available.bytes / 8;
    run->config.capacity = settle_capacity(run);
    MemoryPlan plan = plan_rows_of(run, run->config.capacity);
    if (plan.total > run->cluster->available.bytes) {  // perhaps a faster way took what is missing
        run->cluster->most_scratch = 1;
        plan = plan_rows_of(run, run->config.capacity);
    }
    run->books->memory_bytes = plan.total;
    run->clock->setting.limits = run->clock->limits;
    run->clock->setting.kind = (CpChoice)config_choice(&run->config, "--cp kind");
    run->clock->setting.context = run->config.context;
    run->clock->setting.no_overlap = !strcmp(run->config.overlap, "no");
    run->clock->setting.cp_size = run->config.cp_size;
    run->clock->setting.rounds = run->model.ranks->zero.stage > 1 || run->model.stages > 1;
    return plan;
}

void run_widen_memory(MemoryPlan* plan, const MemoryPlan* other) {
    for (int i = 0; i < other->n; i++) {
        const MemoryEntry* entry = &other->entries[i];
        int at = 0;
        while (at < plan->n && strcmp(plan->entries[at].name, entry->name) != 0) at++;
        if (at == plan->n) plan_entry(plan, entry->name, entry->bytes, entry->where);
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
