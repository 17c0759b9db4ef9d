// memory_ranks.c - the memory table of a rank among others: that of one rank (run/model/model.h) with what many ranks,
// strategies, slow ranks and steps add. A function of a Run and N: it changes nothing.
#include <stdlib.h>

#include "kernels/straggle.h"
#include "run/model/tensor_parallel.h"
#include "run/run.h"

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

// Of all layers.
static size_t widest_linear(const Shape* shape) {
    int most = model_widest(shape);
    for (int l = 0; l < shape->L && shape->units; l++) {
        Shape layer = *shape;
        const LayerUnits* u = &shape->units[l];
        layer.heads = u->heads, layer.kv_heads = u->kv_heads, layer.hidden = u->hidden;
        most = MAX(most, model_widest(&layer));
    }
    return (size_t)most;
}

// ---- what the table follows from

// Of the widest layer.
static KernelLimits kernel_limits(const Run* run, int N) {
    const Model* m = &run->model;
    int ranks = run->clock->limits.ranks;
    Shape widest = widest_shape(run);
    for (int l = 0; l < m->shape.L && m->shape.units; l++) {
        const LayerUnits* u = &m->shape.units[l];
        int kv_heads = heads_of_places(run, u->core_kv_heads);
        widest.kv_heads = MAX(widest.kv_heads, kv_heads);
        widest.heads = MAX(widest.heads, kv_heads * shape_queries(&m->shape));
        widest.hidden = MAX(widest.hidden, u->hidden);
    }
    KernelLimits limits = model_limits(&widest, m->dt, &run->config, N);
    limits.OC = MAX((int)widest_linear(&widest), widest.vocab_rows);
    limits.spread = ranks > 1 ? MIN(ranks, widest.kv_heads) : 1;
    limits.oversubscribed = run->cluster->oversubscribed;
    limits.most_scratch = run->cluster->most_scratch;
    return limits;
}

ModelNeeds run_model_needs(const Run* run, int N) {
    const Model* m = &run->model;
    int ranks = run->clock->limits.ranks;
    Shape widest = widest_shape(run);
    ModelNeeds needs = model_needs(m->k, &widest, m->dt, layer_row(m, 0), &run->config, run->training, N);
    needs.acts.groups = ranks > 1 && run->training;
    needs.acts.slots = run->training ? pipeline_slots(m->stages, m->stage) : 1;
    needs.acts.tp = tp_size(m);
    needs.acts.places = ranks > 1 ? run->clock->limits.kv_heads : 0;
    needs.limits = kernel_limits(run, N);
    needs.libraries += m->world->size > 1 ? m->k->comm_libraries : 0;
    zero_sizes(m, run->training, needs.arrays);
    return needs;
}

// ---- the table

size_t run_largest_tensor(const Run* run) {
    size_t most = 0;
    for (int i = 0; i < N_PARAMS; i++) most = MAX(most, shape_param(&run->model.whole, (ParamId)i, 0).elems);
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

// What balancing and injected stragglers need.
static void add_work(MemoryPlan* plan, const Run* run, const Shape* widest, int N) {
    const Model* m = &run->model;
    size_t elem = dtype_bytes(m->dt), C = (size_t)m->shape.C;
    int at = memory_find(plan, "sums");
    memory_insert(plan, at, "straggling",
                  run->cluster->n_stragglers ? straggle_bytes(m->k, largest_product(m, widest, N)) : 0, ON_DEVICE);
    if (run->cluster->work_needs.most_heads == 0) return;
    memory_insert(plan, at, "for ranks without heads", MAX((size_t)N, C) * elem + C * sizeof(float), ON_DEVICE);
    memory_insert(plan, at, "columns", 2 * (size_t)N * widest_linear(widest) * elem, ON_DEVICE);
    memory_insert(plan, at, "slices", most_work_bytes(m, &run->cluster->work_needs, widest), ON_DEVICE);
}

void run_carve_work(Run* run, const MemoryPlan* plan, int N) {
    Model* m = &run->model;
    char *slices = (char*)memory_of(plan, "slices"), *headless = (char*)memory_of(plan, "for ranks without heads");
    Shape widest = widest_shape(run);
    if (run->cluster->n_stragglers)
        m->ranks->slowed = straggle_kernels(m->k, memory_of(plan, "straggling"), largest_product(m, &widest, N));
    if (!slices) return;
    run->cluster->work_memory = slices;
    m->ranks->work = work_open(m, &run->cluster->work_needs, slices);
    m->ranks->columns[0] = (char*)memory_of(plan, "columns");
    m->ranks->columns[1] = m->ranks->columns[0] + (size_t)N * widest_linear(&widest) * dtype_bytes(m->dt);
    m->ranks->spent = headless;
    m->ranks->zeros = headless + (size_t)m->shape.C * sizeof(float);
}

// What steps need of the host, behind all others.
static void add_steps(MemoryPlan* plan, const Run* run, int N) {
    const Model* m = &run->model;
    PlanLimits limits = run->clock->limits;
    int train = run->training, tokens = run_most_tokens(run);
    size_t index_bytes = batch_plan_ints(run, tokens) * sizeof(int);
    size_t schedules = (train ? 2 : 1) * batch_schedule_bytes(run, tokens);
    limits.capacity = N;
    memory_insert(plan, memory_find(plan, "sums") + 1, "step indices", index_bytes, ON_DEVICE);
    memory_add(plan, "step indices, host", (train ? 2 : 1) * index_bytes, ON_HOST_PINNED);
    memory_add(plan, "step buffers", batch_plan_bytes(tokens), ON_HOST);
    memory_add(plan, "next step's buffers", train ? batch_plan_bytes(tokens) : 0, ON_HOST);
    memory_add(plan, "planning, at most", run_planning_bytes(run, &limits, tokens) + schedules, AS_NEEDED);
    memory_add(plan, "logits of a token", 2 * (size_t)m->shape.Vp * sizeof(float), ON_HOST);
    memory_add(plan, "file staging", (m->tp || m->ranks->owner ? 3 : 1) * run_largest_tensor(run) * sizeof(float),
               ON_HOST);
}

MemoryPlan run_plan_rows(const Run* run, int N) {
    const Model* m = &run->model;
    MemoryPlan plan = {.on_host = m->k->on_host};
    ModelNeeds needs = run_model_needs(run, N);
    const KernelLimits* most = &needs.limits;
    model_plan(&plan, m->k, &needs);
    size_t group = group_attention_scratch(N, most->NH, most->NKV, most->HS, run->clock->limits.ranks,
                                           strcmp(run->config.route, "no") != 0, m->dt);
    int at = memory_find(&plan, "activations");
    memory_insert(&plan, at + 1, "group attention", needs.acts.groups ? group : 0, ON_DEVICE);
    if (m->ranks->owner) memory_insert(&plan, at, "weights, gradients on the move", zero_moving_bytes(m), ON_DEVICE);
    add_work(&plan, run, &needs.shape, N);
    add_steps(&plan, run, N);
    return plan;
}

// ---- of a rank that there may be

// A run of its own, which shares nothing with the live one that this changes.
typedef struct ModelPart {
    RunView view;
    Comm tp, data;
} ModelPart;

// Of all that makes one rank of a tensor-parallel group need another number of bytes than the next.
static uint64_t hash_of_part(const Model* m) {
    const Shape* s = &m->shape;
    int own[] = {s->heads, s->kv_heads, s->hidden, s->vocab_rows};
    return hash_bytes(s->units, s->units ? sizeof *s->units * (size_t)s->L : 0, hash_bytes(own, sizeof own, 0));
}

// Rank `rank` of a group that runs stage s of a layout.
static const Run* part_of(ModelPart* part, const Run* run, const Layout* layout, int s, int rank) {
    run_view(&part->view, run);
    Model* m = &part->view.run.model;
    part->tp = (Comm){.size = layout->tp, .rank = rank};
    part->data = (Comm){.size = m->world->size / (layout->tp * layout->stages)};
    m->ranks->split = split_even(&m->whole, layout->tp);
    m->tp = layout->tp > 1 ? &part->tp : NULL;
    m->comm = &part->data;
    m->stages = layout->stages, m->stage = s;
    m->ranks->layout = *layout;
    run_set_limits(&part->view.run, layout->tp, part->data.size);
    Shape shape = split_shape(&m->whole, &m->ranks->split, rank);
    m->shape = shape_stage(&shape, layout_first(layout, s), layout_first(layout, s + 1));
    m->shape.shards = part->data.size;
    layers_plan(m);
    m->ranks->zero.stage = zero_most(m);
    return &part->view.run;
}

size_t run_memory_of(const Run* run, const Layout* layout, int s, int N) {
    static ModelPart part;
    uint64_t measured = 0;
    size_t most = 0;
    for (int rank = 0; rank < layout->tp; rank++) {
        const Run* as = part_of(&part, run, layout, s, rank);
        uint64_t own = hash_of_part(&as->model);
        if (rank > 0 && own == measured) continue;
        measured = own;
        most = MAX(most, run_plan_rows(as, N).total);
    }
    return most;
}

void run_layer_bytes(LayerBytes* bytes, const Run* run, const Layout* layout, int s, int N) {
    static ModelPart part;
    const Run* as = part_of(&part, run, layout, s, 0);
    const Shape* shape = &as->model.shape;
    ModelNeeds needs = run_model_needs(as, N);
    Activation acts[N_ACTS];
    ActPlace* places = (ActPlace*)calloc((size_t)N_ACTS * ((size_t)shape->L + 1), sizeof *places);
    if (!places) die("no memory for the places of %d layers", shape->L);
    shape_activations(&needs.shape, &needs.acts, acts);
    shape_act_places(&needs.shape, &needs.acts, acts, places);
    for (int b = 0; b <= shape->L + 1; b++) {
        Bucket bucket = shape_bucket(shape, b);
        size_t states = shape_state_bytes(&bucket, zero_stage_of(&as->model, b), as->model.dt);
        int ends = b == 0 || b > shape->L;
        bytes[ends ? shape->L : b - 1].states = states + (b > shape->L ? bytes[shape->L].states : 0);
        bytes[ends ? shape->L : b - 1].activations =
            ends ? 0 : shape_layer_activations(&needs.shape, acts, places, b - 1);
    }
    free(places);
}
