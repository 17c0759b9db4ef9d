// simulate_baselines.c - see simulate_baselines.h.
#include "dev/simulate_baselines.h"

#include <stdio.h>

#include "dev/balanced.h"
#include "kernels/comm/group_attention.h"
#include "plan/layout/layout_ranks.h"
#include "plan/model/split.h"

// ---- settings

// Makes a rank a tensor-parallel group of T: its share of the model, T times the tokens beside states of ZeRO-1.
static int set_tensor(int T, Setting* own, const Simulation* s, Err err) {
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
    return 0;
}

int baseline_set(const Baseline* x, Setting* own, const Simulation* s, Err err) {
    if (x->kind == CP_CHOICE_AUTO) return 0;
    if (x->of_all) own->cp_size = own->limits.ranks;
    if (x->gathers) own->no_overlap = 1;
    if (x->tp && set_tensor(x->tp, own, s, err)) return -1;
    own->kind = x->kind;
    cost_groups(own->groups, &own->cost, &own->limits, own->kind);
    return 0;
}

// ---- plans

static int balanced_plan(const void* x, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena, Err err) {
    enum { CP_SIZE = 4 };  // the size in Megatron-LM's own benches: --lengths mock --capacity 2048 --context 8192
    return megatron_balanced(plan, step, lengths, n, (const Setting*)x, CP_SIZE, arena, err);
}

static const Planner planner_balanced = {.open = planner_open_setting, .plan = balanced_plan};

static const Baseline baselines[] = {
    {"deepspeed", &planner_static, CP_CHOICE_ULYSSES, 0, 0, 0},
    {"batchada", &planner_adaptive, CP_CHOICE_ULYSSES, 0, 0, 0},
    {"te-cp", &planner_static, CP_CHOICE_RING, 0, 0, 0},
    {"te-cp-all", &planner_static, CP_CHOICE_RING, 1, 0, 0},
    {"kv-gather", &planner_static, CP_CHOICE_RING, 0, 1, 0},
    {"tp1-cp", &planner_static, CP_CHOICE_RING, 0, 0, 1},
    {"tp2-cp", &planner_static, CP_CHOICE_RING, 0, 0, 2},
    {"tp4-cp", &planner_static, CP_CHOICE_RING, 0, 0, 4},
    {"tp8-cp", &planner_static, CP_CHOICE_RING, 0, 0, 8},
    {"tp16-cp", &planner_static, CP_CHOICE_RING, 0, 0, 16},
    {"balanced", &planner_balanced, CP_CHOICE_AUTO, 0, 0, 0},
};

const Baseline* baseline_named(const char* name) {
    for (int i = 0; i < COUNT(baselines); i++)
        if (!strcmp(baselines[i].name, name)) return &baselines[i];
    return NULL;
}

const char* baseline_names(void) {
    return "deepspeed, batchada, te-cp, te-cp-all, kv-gather, tp1-cp, tp2-cp, tp4-cp, tp8-cp, tp16-cp, balanced";
}
