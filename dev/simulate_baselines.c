// simulate_baselines.c - see simulate_baselines.h.
#include "dev/simulate_baselines.h"

#include <stdio.h>

#include "dev/balanced.h"
#include "kernels/comm/group_attention.h"
#include "plan/layout/layout_ranks.h"
#include "plan/model/split.h"

// ---- settings

static int set_kind(Setting* own, CpChoice kind) {
    own->kind = kind;
    cost_groups(own->groups, &own->cost, &own->limits, kind);
    return 0;
}

static int set_as_it_is(Setting* own, const Simulation* s, Err err) {
    (void)own, (void)s, (void)err;
    return 0;
}

static int set_heads(Setting* own, const Simulation* s, Err err) {
    (void)s, (void)err;
    return set_kind(own, CP_CHOICE_ULYSSES);
}

static int set_ring(Setting* own, const Simulation* s, Err err) {
    (void)s, (void)err;
    return set_kind(own, CP_CHOICE_RING);
}

static int set_ring_of_all(Setting* own, const Simulation* s, Err err) {
    own->cp_size = own->limits.ranks;
    return set_ring(own, s, err);
}

static int set_gather(Setting* own, const Simulation* s, Err err) {
    own->no_overlap = 1;
    return set_ring(own, s, err);
}

// Makes a rank a tensor-parallel group of T: its share of the model, T times the tokens beside states of ZeRO-1.
static int set_tensor(Setting* own, const Simulation* s, int T, Err err) {
    const Options* o = s->options;
    int ranks = o->ranks / T, heads = own->limits.kv_heads;
    if (!o->model) return fail(err, "it needs --model, as \"--arch gpt2 --layers 32 --width 4096 --heads 64\"");
    if (o->speeds || own->limits.capacities) return fail(err, "it knows no ranks that are unlike");
    Config c = read_model(o->model, o->ranks);
    Shape whole = config_shape(&c);
    config_free(&c);
    if (o->ranks % T || heads % T || whole.NKV % T)
        return fail(err, "%d ranks of %d and %d heads are not groups of %d", o->ranks, heads, whole.NKV, T);
    Layout layout = layout_even(&whole, T, 1, 1, RECOMPUTE_NONE);
    TpSplit split = split_even(&whole, T);
    Machine part = s->machine;
    part.parameters /= T;
    if (part.token_mb > 0) part.capacity = 0;  // the capacity was that of another stage
    int64_t capacity = (int64_t)T * (o->capacity ? o->capacity : machine_capacity(&part, ranks, 1));
    if (capacity < 1) return fail(err, "states of a group of %d leave no room for a token", T);
    layout_divide_cost(&own->cost, &whole, &layout, T > 1 ? &split : NULL, 2, CEIL_DIV(T, o->node_size), 0);
    own->limits.ranks = ranks, own->limits.node_size = MAX(o->node_size / T, 1);
    own->limits.capacity = (int)MIN(capacity, INT32_MAX), own->limits.kv_heads = heads / T;
    own->rounds = own->no_overlap = 0, own->cost.parts = ATTENTION_PARTS;  // its ring hides
    return set_kind(own, CP_CHOICE_RING);
}

#define TENSOR(T) \
    static int set_tensor_##T(Setting* own, const Simulation* s, Err err) { return set_tensor(own, s, T, err); }
TENSOR(1)
TENSOR(2)
TENSOR(4)
TENSOR(8)
TENSOR(16)

// ---- plans

static void* static_open(const Setting* setting, const int* sample, int n, Arena* arena, Err err) {
    return planner_static.open(setting, sample, n, arena, err);
}

static int static_plan(const void* x, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena, Err err) {
    return planner_static.plan(x, plan, step, lengths, n, arena, err);
}

static int adaptive_plan(const void* x, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena, Err err) {
    return planner_adaptive.plan(x, plan, step, lengths, n, arena, err);
}

static int balanced_plan(const void* x, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena, Err err) {
    enum { CP_SIZE = 4 };  // the size in Megatron-LM's own benches: --lengths mock --capacity 2048 --context 8192
    return megatron_balanced(plan, step, lengths, n, (const Setting*)x, CP_SIZE, arena, err);
}

#define STATIC(NAME, SET) \
    { {.name = NAME, .words = "see dev/simulate_baselines.h", .open = static_open, .plan = static_plan}, SET }
#define OTHER(NAME, PLAN, SET) \
    { {.name = NAME, .words = "see dev/simulate_baselines.h", .open = planner_open_setting, .plan = PLAN}, SET }

static const Baseline baselines[] = {
    STATIC("deepspeed", set_heads),
    OTHER("batchada", adaptive_plan, set_heads),
    STATIC("te-cp", set_ring),
    STATIC("te-cp-all", set_ring_of_all),
    STATIC("kv-gather", set_gather),
    STATIC("tp1-cp", set_tensor_1),
    STATIC("tp2-cp", set_tensor_2),
    STATIC("tp4-cp", set_tensor_4),
    STATIC("tp8-cp", set_tensor_8),
    STATIC("tp16-cp", set_tensor_16),
    OTHER("balanced", balanced_plan, set_as_it_is),
};

const Baseline* baseline_named(const char* name, size_t n) {
    for (int i = 0; i < COUNT(baselines); i++)
        if (strlen(baselines[i].planner.name) == n && !strncmp(baselines[i].planner.name, name, n))
            return &baselines[i];
    return NULL;
}

const char* baseline_names(void) {
    return "deepspeed, batchada, te-cp, te-cp-all, kv-gather, tp1-cp, tp2-cp, tp4-cp, tp8-cp, tp16-cp, balanced";
}
