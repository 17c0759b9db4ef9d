// memory.c - the memory table of a rank among others, a function of a Run and N tokens a row: that of one rank
// (run/model/model.h), with the parts of many ranks, strategies, slow ranks and steps. It also settles how long rows
// are, and takes the memory.
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "data/sampler_cut.h"
#include "plan/published/published.h"
#include "run/files/close.h"
#include "run/model/fp8.h"
#include "run/model/muon.h"
#include "run/model/tensor_parallel.h"
#include "run/model/work.h"
#include "run/step/labels.h"
#include "run/rl/rollouts.h"
#include "run/files/saving.h"
#include "run/setup/setup.h"

// ---- the needs of a model

// Returns the heads that a rank of h heads may work on. Plans divide f key/value heads among data ranks, f being the
// fewest of any rank of a tensor-parallel group, and count pairs of a token and one of these. So a rank of h heads has
// at most ceil(h / f) for each.
static int heads_of_places(const Run* run, int h) {
    int f = run->clock->limits.kv_heads;
    return run->clock->limits.ranks > 1 ? f * CEIL_DIV(h, f) : h;
}

// Returns the shape with the most heads and hidden units that this rank may ever compute: a helper takes some over.
static Shape widest_shape(const Run* run) {
    Shape shape = run->model.shape;
    shape.kv_heads = heads_of_places(run, MAX(shape.kv_heads, run->model.ranks->work_needs.most_heads));
    shape.heads = shape.kv_heads * shape_queries(&run->model.shape);
    shape.hidden = MAX(shape.hidden, run->model.ranks->work_needs.most_hidden);
    return shape;
}

// Returns 1 if matrices take steps of Muon.
static int is_muon(const Run* run) { return run->training && !strcmp(run->config.optimizer, "muon"); }

// Returns the limits of the widest layer.
static KernelLimits kernel_limits(const Run* run, Shape widest, int N) {
    const Model* m = &run->model;
    int ranks = run->clock->limits.ranks, OC = 0;
    for (int l = 0; l < m->shape.L && m->shape.units; l++) {
        const LayerUnits* u = &m->shape.units[l];
        Shape layer = m->shape;
        int kv_heads = heads_of_places(run, u->core_kv_heads);
        layer.heads = u->heads, layer.kv_heads = u->kv_heads, layer.hidden = u->hidden;
        OC = MAX(OC, model_widest(&layer));
        widest.kv_heads = MAX(widest.kv_heads, kv_heads);
        widest.heads = MAX(widest.heads, kv_heads * u->queries);
        widest.hidden = MAX(widest.hidden, u->hidden);
    }
    KernelLimits limits = model_limits(&widest, m->dt, &run->config, N);
    limits.OC = MAX(limits.OC, OC);
    if (is_muon(run)) {  // a matrix is whole there, and may have as many rows as columns
        int widest_matrix = model_widest(&m->whole);
        limits.N = MAX(N, widest_matrix), limits.C = MAX(limits.C, widest_matrix);
        limits.OC = MAX(limits.OC, widest_matrix);
    }
    int adapter = MOST_RUNS * m->shape.lora.rank;  // rows of an A, at most
    limits.C = MAX(limits.C, adapter), limits.OC = MAX(limits.OC, adapter);
    limits.spread = ranks > 1 ? MIN(ranks, widest.kv_heads) : 1;
    if (!run->training) limits.attention = ATTENTION_OWN;  // our own attention alone reads a KV cache
    limits.oversubscribed = run->cluster->oversubscribed;
    limits.most_scratch = run->cluster->most_scratch;
    return limits;
}

ModelNeeds run_model_needs(const Run* run, int N) {
    const Model* m = &run->model;
    int ranks = run->clock->limits.ranks;
    Shape widest = widest_shape(run);
    ModelNeeds needs = model_needs(m->k, &widest, m->dt, layer_layout(m, 0), &run->config, run->training, N);
    needs.acts.groups = (ranks > 1 || run_has_trees(run)) && run->training;
    needs.acts.slots = run->training ? pipeline_slots(m->stages, m->stage) : 1;
    needs.acts.tp = tp_size(m);
    needs.acts.places = ranks > 1 ? run->clock->limits.kv_heads : 0;
    needs.acts.sampling = MAX(needs.acts.sampling, run->cluster->cache_tokens);
    if (run->cluster->answers) needs.acts.sampled = needs.acts.classifier_N = run->cluster->answers;
    needs.acts.gathered = tp_logits_room(m), needs.acts.answering = run->cluster->answer_tokens;
    needs.limits = kernel_limits(run, widest, MAX(N, MAX(needs.acts.sampling, needs.acts.answering)));
    needs.libraries += m->world->size > 1 ? m->k->comm_libraries : 0;
    zero_sizes(m, run->training, needs.arrays);
    return needs;
}

// ---- the memory of a batch and its plan

// Returns the bytes of the host's arrays of a Batch and its plan.
static size_t batch_plan_bytes(int max_tokens) {
    return batch_bytes(max_tokens) + (size_t)max_tokens * (sizeof(RankPass) + sizeof(RankGroup) + sizeof(Span));
}

// Returns the ints of its indices: also rows of wte, and cu_seqlens of the two chunks that each rank of a ring has of a
// document.
static size_t batch_plan_ints(const Run* run, int max_tokens) {
    const PlanLimits* limits = &run->clock->limits;
    size_t of_rings = limits->ranks > 1 ? 4 * (size_t)limits->ranks * (size_t)limits->max_ring_docs : 0;
    size_t of_trees = run_has_trees(run) ? tree_ints(max_tokens) + (size_t)max_tokens : 0;
    size_t of_answers = answers_ints(run->cluster->answers) + 4;
    return batch_index_ints(max_tokens) + (size_t)max_tokens + label_ints(run, max_tokens) + of_rings + of_trees +
           of_answers;
}

static void batch_plan_carve(const Run* run, Batch* b, void* memory, int* indices, int* device_indices,
                             int max_tokens) {
    BatchPlan* x = b->planned;
    size_t n = (size_t)max_tokens, labels = label_ints(run, max_tokens);
    x->groups = (RankGroup*)memory;
    x->passes = (RankPass*)(x->groups + n);
    x->labels = (float*)indices;  // these two come first: ints of many ranks may follow all others
    x->vocab_rows = indices + labels;
    batch_carve(b, x->passes + n, indices + labels + n, device_indices + labels + n, max_tokens);
    x->spans = (Span*)(b->lengths + n);  // the least aligned comes last
}

// Returns the most bytes that a schedule takes of the arena.
static size_t batch_schedule_bytes(const Run* run, int max_tokens) {
    size_t v = (size_t)max_tokens, P = (size_t)run->model.stages;
    size_t groups = ((size_t)run->clock->limits.ranks + 1) * (sizeof(GroupCost) + sizeof(RankRound));
    return P * v * (6 * sizeof(Task) + 6 * sizeof(double)) + (P << 10) + groups;
}

// ---- the table

static size_t largest_tensor(const Run* run) {
    Shape base = shape_base(&run->model.whole);
    size_t most = 0;
    for (int i = 0; i < N_PARAMS; i++) most = MAX(most, shape_param(&run->model.whole, (ParamId)i, 0).elems);
    for (int i = 0; i < N_PARAMS; i++) most = MAX(most, shape_param(&base, (ParamId)i, 0).elems);
    return most;
}

// Adds the memory of balancing.
static void add_work(MemoryPlan* plan, const Run* run, const Shape* widest, int N) {
    const Model* m = &run->model;
    const WorkNeeds* needs = &run->model.ranks->work_needs;
    size_t elem = dtype_bytes(m->dt), C = (size_t)m->shape.C;
    int at = memory_find(plan, "sums");
    if (needs->most_heads == 0) return;
    memory_insert(plan, at, "for ranks without heads", MAX((size_t)N, C) * elem + C * sizeof(float), ON_DEVICE);
    memory_insert(plan, at, "columns", 2 * (size_t)N * (size_t)model_widest(widest) * elem, ON_DEVICE);
    memory_insert(plan, at, "slices", work_bytes(m, needs), ON_DEVICE);
}

void run_carve_work(Run* run, const MemoryPlan* plan) {
    Model* m = &run->model;
    int N = run_capacity(run);
    ModelRanks* x = m->ranks;
    char *slices = (char*)memory_of(plan, "slices"), *headless = (char*)memory_of(plan, "for ranks without heads");
    Shape widest = widest_shape(run);
    if (!slices || m->ranks->work_needs.most_heads == 0) return;
    x->work = work_open(m, &run->model.ranks->work_needs, slices);
    x->columns[0] = (char*)memory_of(plan, "columns");
    x->columns[1] = x->columns[0] + (size_t)N * (size_t)model_widest(&widest) * dtype_bytes(m->dt);
    x->spent = headless;
    x->zeros = headless + (size_t)m->shape.C * sizeof(float);
}

// Adds the memory of steps, after all others.
static void add_steps(MemoryPlan* plan, const Run* run, int N) {
    const Model* m = &run->model;
    PlanLimits limits = run->clock->limits;
    int train = run->training, tokens = run_most_tokens(run);
    size_t draws = sizeof(Draw) * (size_t)MAX(run->cluster->answers, 1);
    size_t index_bytes = batch_plan_ints(run, tokens) * sizeof(int);
    size_t schedules = (train ? 2 : 1) * batch_schedule_bytes(run, tokens);
    limits = limits_at(&limits, N);
    memory_insert(plan, memory_find(plan, "sums") + 1, "step indices", index_bytes, ON_DEVICE);
    memory_add(plan, "step indices, host", (train ? 2 : 1) * index_bytes, ON_HOST_PINNED);
    memory_add(plan, "step buffers", batch_plan_bytes(tokens), ON_HOST);
    memory_add(plan, "next step's buffers", train ? batch_plan_bytes(tokens) : 0, ON_HOST);
    memory_add(plan, "labels, kept", label_floats(run, tokens) * sizeof(float), ON_HOST);
    memory_add(plan, "planning, at most", run_planning_bytes(run, &limits, tokens) + schedules, AS_NEEDED);
    if (run->labels && run->labels->lacks_references)
        memory_add(plan, "references", (size_t)docs_tokens(run->data.docs) * (sizeof(float) + sizeof(LabelTerms)),
                   AS_NEEDED);
    memory_add(plan, "logits of a token", (size_t)m->shape.Vp * sizeof(float), ON_HOST);
    memory_add(plan, "draws", draws, ON_DEVICE);
    memory_add(plan, "draws, host", draws, ON_HOST_PINNED);
    memory_add(plan, "file staging", (m->tp || m->ranks->owner ? 3 : 1) * largest_tensor(run) * sizeof(float), ON_HOST);
}

MemoryPlan run_plan_rows(const Run* run, int N) {
    const Model* m = &run->model;
    MemoryPlan plan = {.on_host = m->k->on_host};
    ModelNeeds needs = run_model_needs(run, N);
    const KernelLimits* most = &needs.limits;
    model_plan(&plan, m->k, &needs);
    size_t group = group_attention_scratch(N, most->NH, most->NKV, most->HS, run->clock->limits.ranks,
                                           strcmp(run->config.route, "no") != 0, run_has_trees(run), m->dt);
    int at = memory_find(&plan, "activations"), answers = run->cluster->answers;
    int attends = needs.acts.groups || answers;
    if (answers) group = tree_attention_scratch(answers, most->NH, most->NKV, most->HS, m->dt);
    memory_insert(&plan, at + 1, "group attention", attends ? group : 0, ON_DEVICE);
    if (m->ranks->owner) memory_insert(&plan, at, "weights, gradients on the move", zero_moving_bytes(m), ON_DEVICE);
    if (is_muon(run))
        memory_insert(&plan, at, "matrices of muon", muon_bytes(&m->whole, m->dt, m->world->size), ON_DEVICE);
    add_work(&plan, run, &needs.shape, N);
    fp8_plan(&plan, run, N);
    add_steps(&plan, run, N);
    return plan;
}

// ---- how long rows are

// Returns the longest row that is worth its memory and fits, on a CPU in half of the available memory, which others
// need too; on one rank never shorter than a document. On a CPU 8192 tokens are worth it. A GPU works on tiles of 128 x
// 256 outputs, as many at a time as it has processors (132 on an H100). An output of 768 columns and 8192 rows takes
// 1.45 such waves and costs as much as 2. At 32768 rows it takes 5.8 of 6, and longer rows win less than 3 % more. No
// rank has use for more than twice its share of a step, which leaves room for many short documents.
static int longest_row(const Run* run) {
    const Config* c = &run->config;
    int ranks = run->clock->limits.ranks, least = CEIL_DIV(c->context, ranks) + (ranks > 1 ? 256 : 0), most = 8192;
    size_t room = run->cluster->available.bytes;
    if (run->model.k->on_host) room /= 2;
    else most = MAX(most, 2 * MIN(CEIL_DIV(c->batch_tokens, ranks), 16384));
    int N = MAX(MIN(c->batch_tokens, most), c->context);
    while (N / 2 >= least && run_plan_rows(run, N).total > room) N /= 2;
    return N;
}

// Keeps the capacities of all ranks of the job as --capacity could say them: data rank by data rank, stage by stage.
static void keep_capacities(Run* run) {
    enum { A_RANK = 24 };
    const Model* m = &run->model;
    size_t bytes = (size_t)m->job->size * A_RANK, n = 0;
    char* text = config_string(&run->config, bytes);
    if (!text) die("no memory for what %d ranks hold", m->job->size);
    for (int r = 0, before = 0; r < m->job->size; r++) {
        int capacity = run->clock->capacities[r / tp_size(m) % m->comm->size];
        if (capacity != before) text_append(text, bytes, &n, "%s%d %d", r ? "; " : "", r, capacity);
        before = capacity;
    }
    run->settled.rank_capacity = text;
}

// Settles each rank's capacity: the one that was asked for, or the one that it has room for. The ranks of all stages
// and of a tensor-parallel group that make one data rank hold the least of theirs. Pipelines of a strategy are alike,
// so all of them hold the least.
static void settle_capacities(Run* run) {
    const Config* c = &run->config;
    const Model* m = &run->model;
    PlanLimits* limits = &run->clock->limits;
    int asked = run->settled.capacity, *of = run->clock->capacities, unlike = 0;
    int mine = !run->training ? c->context : asked ? MIN(asked, MAX(c->batch_tokens, c->context)) : longest_row(run);
    int* all = (int*)run_ask_all(run, m->job, &mine, sizeof mine);
    limits->capacity = mine, limits->capacities = NULL;
    for (int d = 0; d < m->comm->size; d++) of[d] = INT_MAX;
    for (int r = 0; r < m->job->size; r++) {
        int* its = &of[r / tp_size(m) % m->comm->size];
        *its = MIN(*its, all[r]);
        limits->capacity = MIN(limits->capacity, all[r]);
    }
    free(all);
    for (int d = 0; d < m->comm->size; d++) unlike |= of[d] != limits->capacity;
    run->settled.capacity = limits->capacity, run->settled.rank_capacity = NULL;
    if (!unlike || run->strategies) return;
    limits->capacities = of;
    keep_capacities(run);
}

// Finds the memory of this rank, unless a virtual machine or --memory has said it. Ranks on the CPU share the memory of
// their node or container.
void run_find_available(Run* run) {
    const Model* m = &run->model;
    if (run->cluster->available.bytes) return;
    run->cluster->available = m->k->on_host ? host_memory("", m->world->local_size)
                                            : (HostMemory){m->k->memory_available(), "free memory of the device"};
}

// Returns the most tokens of a tree that a group holds. Its ranks share heads, as many as --cp says. A planner of fixed
// groups is asked for no more than it promises.
static int64_t tree_room(const Run* run) {
    const PlanLimits* limits = &run->clock->limits;
    const Config* c = &run->config;
    int most = MIN(limits->ranks, limits->kv_heads), searches = run_planner(run) == &planner_flex;
    int last = c->cp_size ? MIN(c->cp_size, most) : most;
    int64_t room = 0;
    if (run->strategies) return limits->capacity;
    for (int d = c->cp_size ? last : 1; d <= last; d++) {
        PlanLimits own = limits_at(limits, widest_capacity(limits, d));
        room = MAX(room, ring_rank_capacity(&own, d));
    }
    return searches || limits->ranks == 1 ? room : MIN(room, c->context);
}

// Decides how large a tree stays whole; larger ones are cut inside their steps, which have more tokens then. The
// strategy that holds most sets that size, the one that holds least the tokens that a step may have.
static void settle_tree_room(Run* run) {
    Err err;
    Cluster* x = run->cluster;
    const Docs* const docs[] = {run->data.docs, run->data.val_docs};
    DocsSplit told = {0, 0, 0};
    if (!run->training || !run_has_trees(run)) return;
    int64_t room = (int64_t)run_most(run, run->model.world, (double)tree_room(run));
    x->tree_room = MAX(x->tree_room, room);
    for (int i = 0; i < COUNT(docs) && docs[i]; i++) {
        double factor = docs_cut_factor(docs[i], room, &told, err);
        if (factor < 0) die("%s", err);
        x->step_tokens = (int)fmax(x->step_tokens, fmin(ceil(factor * run->config.batch_tokens), INT_MAX / 2));
    }
}

// Adds room for a checkpoint on its way to files, if half of the host's memory has it, and for close copies.
static void add_copy(MemoryPlan* plan, const Run* run) {
    HostMemory host = plan->on_host ? run->cluster->available : host_memory("", run->model.world->local_size);
    size_t taken = plan->on_host ? plan->total : 0, bytes = save_copy_bytes(run);
    if (taken + bytes <= host.bytes / 2) memory_add(plan, "checkpoint on its way", bytes, ON_HOST);
    memory_add(plan, "close copy, and a partner's", close_copy_bytes(run), ON_HOST);
    memory_add(plan, "close copy on the device", close_stage_bytes(run), ON_DEVICE);
    memory_add(plan, "close copies kept", close_files_bytes(run), AS_NEEDED);
}

// Plans rows, and the KV cache of --rollouts: as many answers side by side as half of the memory holds, with their
// prompts and new tokens. Ranks that compute a row together must have a cache of one size.
static MemoryPlan plan_with_cache(Run* run, int N) {
    Cluster* x = run->cluster;
    const Model* m = &run->model;
    if (!run->config.rollouts) return run_plan_rows(run, N);
    Prompts prompts = rollouts_look(run);
    int64_t all = CEIL_DIV(prompts.n, rollouts_turns(run)) * run->config.answers;
    int least = -(int)run_most(run, m->world, -N), most = (int)MIN(all, (int64_t)MIN(least, (int)MOST_ANSWERS));
    for (x->answers = most;; x->answers = CEIL_DIV(x->answers, 2)) {
        rollouts_size(x, &prompts, &run->config);
        MemoryPlan plan = run_plan_rows(run, N);
        int fits = x->answers == 1 || plan.total <= x->available.bytes / 2;
        if (run_most(run, m->world, !fits) == 0) return plan;
    }
}

MemoryPlan run_plan_job_memory(Run* run) {
    const Config* c = &run->config;
    const Model* m = &run->model;
    Cluster* x = run->cluster;
    run_find_available(run);  // before ranks agree on a capacity: nobody has taken anything yet
    x->most_scratch = x->available.bytes / 8;
    settle_capacities(run);
    settle_tree_room(run);
    int N = run_capacity(run);
    MemoryPlan plan = plan_with_cache(run, N);
    if (plan.total > x->available.bytes) {  // perhaps a faster way took what is missing
        x->most_scratch = 1;
        plan = run_plan_rows(run, N);
    }
    add_copy(&plan, run);
    run->books->memory_bytes = plan.total;
    Setting* s = &run->clock->setting;
    s->limits = run->clock->limits;
    s->kind = (CpChoice)config_choice(c, "--cp kind");
    if (run_has_trees(run)) {  // a ring cuts a document where no segment ends
        if (s->kind == CP_CHOICE_RING)
            die("--cp kind=ring with trees in --data: expected groups that share heads; try kind=auto");
        if (!strcmp(c->plan, "zeppelin"))
            die("--plan zeppelin with trees in --data: its rings cut documents; try --plan flex");
        s->kind = CP_CHOICE_ULYSSES;
    }
    s->context = c->context, s->cp_size = c->cp_size;
    s->no_overlap = !strcmp(c->overlap, "no");
    s->rounds = m->ranks->zero.stage > 1 || m->stages > 1;
    return plan;
}

// Widens every entry to the larger of both, which use the same memory by turns.
static void widen(MemoryPlan* plan, const MemoryPlan* other) {
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

MemoryPlan run_plan_memory(Run* run) {
    MemoryPlan plan = {.on_host = run->model.k->on_host};
    for (int i = 0; i < run_layouts(run); i++) {
        MemoryPlan one = run_plan_job_memory(run_under(run, i));
        widen(&plan, &one);
    }
    run->books->memory_bytes = plan.total;
    strategies_turn(run, 0);
    return plan;
}

// ---- taking it

// Returns limits that suit whatever strategy is at work.
static KernelLimits widest_limits(const Run* run) {
    KernelLimits most = run_model_needs(run, run_capacity(run)).limits;
    for (int s = 0; s < run_layouts(run); s++) {
        const Run* as = run_under((Run*)run, s);
        KernelLimits other = run_model_needs(as, run_capacity(as)).limits;
        most.N = MAX(most.N, other.N), most.spread = MAX(most.spread, other.spread);
        most.C = MAX(most.C, other.C), most.OC = MAX(most.OC, other.OC);
        most.NH = MAX(most.NH, other.NH), most.NKV = MAX(most.NKV, other.NKV);
    }
    return most;
}

// Ends the program, and names the largest part of the memory that counts. A rank alone needs a row as long as a
// document, whatever --capacity says.
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
        run->clock->limits.ranks == 1 && run_capacity(run) <= c->context ? "a smaller --context, more ranks"
                                                                         : "a smaller --capacity");
}

void run_carve_activations(Run* run) {
    ModelNeeds needs = run_model_needs(run, run_capacity(run));
    model_place_activations(&run->model, &needs);
}

// Hands the planned memory to those who use it.
static void carve(Run* run, const MemoryPlan* plan) {
    Model* m = &run->model;
    Books* books = run->books;
    int max_tokens = run_most_tokens(run);
    int *indices = (int*)memory_of(plan, "step indices, host"), *on_device = (int*)memory_of(plan, "step indices");
    model_carve(m, plan);
    if (!run->strategies) zero_open(m), run_carve_activations(run), run_carve_work(run, plan);
    fp8_open(run, plan);
    model_set_many(m);
    m->ranks->group_scratch = memory_of(plan, "group attention");
    m->ranks->moving = (char*)memory_of(plan, "weights, gradients on the move");
    m->ranks->barrier = m->loss_sum + 3;
    if (run->labels) run->labels->kept = (float*)memory_of(plan, "labels, kept"), run->labels->room = max_tokens;
    batch_plan_carve(run, &run->batch, memory_of(plan, "step buffers"), indices, on_device, max_tokens);
    if (run->training)
        batch_plan_carve(run, &run->ahead, memory_of(plan, "next step's buffers"),
                         indices + batch_plan_ints(run, max_tokens), on_device, max_tokens);
    books->logits = (float*)memory_of(plan, "logits of a token");
    run->device_draws = (Draw*)memory_of(plan, "draws");
    run->draws = (Draw*)memory_of(plan, "draws, host");
    books->staging = books->part = (float*)memory_of(plan, "file staging");
    books->saving.copy.bytes = (char*)memory_of(plan, "checkpoint on its way");
    if (books->saving.copy.bytes)
        books->saving.copy.room = plan->entries[memory_find(plan, "checkpoint on its way")].bytes;
    books->close_room = (char*)memory_of(plan, "close copy, and a partner's");
    books->close_stage = (char*)memory_of(plan, "close copy on the device");
    if (!m->tp && !m->ranks->owner) return;
    books->part += largest_tensor(run);
    books->others = books->part + largest_tensor(run);
}

// With --optimizer muon: deals matrices.
static void open_muon(Run* run, const MemoryPlan* plan) {
    void* matrices = memory_of(plan, "matrices of muon");
    Model* owner = model_owner(&run->model);
    if (!matrices) return;
    owner->ranks->muon = (Muon*)calloc(1, sizeof *owner->ranks->muon);
    if (!owner->ranks->muon) die("no memory for an optimizer");
    muon_open(owner->ranks->muon, owner, matrices);
}

void run_take_memory(Run* run, MemoryPlan* plan) {
    char err[ERR_BYTES];
    const Kernels* k = run->model.k;
    run->books->resident_before = (double)host_resident();
    if (plan->total > run->cluster->available.bytes) refuse_memory(run, plan);
    KernelLimits limits = widest_limits(run);
    if (k->open(&limits, err)) die("%s", err);
    memory_take(plan, k);
    carve(run, plan);
    strategies_carve(run, plan);
    open_muon(run, plan);
}
