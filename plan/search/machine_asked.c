// machine_asked.c - see machine_asked.h.
#include "plan/search/machine_asked.h"

#include <limits.h>

WeightTimes machine_weights(const Machine* machine, int zero, int ranks, int node_size, int layers) {
    const Cost* cost = &machine->cost;
    WeightTimes w = {.zero = zero, .update = cost->step, .hides = 1, .inside = 1, .across = ranks > node_size};
    double layer = machine->parameters * (1 << 30) / layers;
    int nodes = CEIL_DIV(ranks, node_size);
    if (ranks < 2 || layer <= 0 || machine_has_weights(machine, zero)) return w;
    w.layers = layers, w.before = WEIGHTS_BEFORE;
    w.gather[WEIGHTS_LAYER] = cost->link_scale * collective_ms(cost, ranks, nodes, node_size, 2 * layer);
    w.reduce[WEIGHTS_LAYER] = cost->link_scale * collective_ms(cost, ranks, nodes, node_size, 4 * layer);
    return w;
}

Machine machine_with_links(const Machine* machine, double times) {
    Machine other = *machine;
    for (int i = 0; i < other.cost.n_groups; i++) other.cost.group_gbps[i] *= times;
    for (int k = 0; k < 2 * N_LINKS; k++) {
        LinkTable* link = k < N_LINKS ? &other.cost.link[k] : &other.cost.sum[k - N_LINKS];
        for (int i = 1; i < link->n; i++) link->ms[i] = link->ms[0] + (link->ms[i] - link->ms[0]) / times;
    }
    return other;
}

Machine machine_with_memory(const Machine* machine, double times) {
    Machine other = *machine;
    other.memory_gb *= times, other.device_gib *= times;
    for (int k = 0; k < other.n_kinds; k++) other.kind_gib[k] *= times;
    return other;
}

Machine machine_with_full_pace(const Machine* machine, int kind) {
    Machine other = *machine;
    double fastest = machine->n_kinds && machine->kind_first[0] == 0 ? 0 : 1;
    for (int k = 0; k < other.n_kinds; k++) fastest = MAX(fastest, machine->kind_speed[k]);
    for (int k = 0; k < other.n_kinds; k++)
        if (kind < 0 || k == kind) other.kind_speed[k] = fastest;
    return other;
}

int machine_heads(const Machine* machine) {
    // 64 times the least common multiple of 1 to 16: also powers of two up to 1024 divide it.
    return machine->heads ? machine->heads : 64 * 720720;
}

int machine_setting(Setting* setting, const Machine* machine, int ranks, int node_size, int context, GroupCost* groups,
                    Err err) {
    const Cost* cost = &machine->cost;
    if (ranks < 1 || node_size < 1 || context < 1)
        return fail(err, "%s: %d ranks, %d of a node, a context of %d tokens, expected 1 or more of each", cost->name,
                    ranks, node_size, context);
    int capacity = machine_capacity(machine, ranks, 3);
    if (cost->per_token <= 0 && cost->quadratic <= 0)
        return fail(err,
                    "%s: only whole pipelines have times here, expected linear_ms or quadratic_ms of a rank; "
                    "such machines are for ./train --strategies",
                    cost->name);
    if (!machine->capacity && machine->token_mb <= 0)
        return fail(err, "%s: nothing says how many tokens a rank holds, expected capacity or memory", cost->name);
    if (capacity < 1)
        return fail(err, "%s: the model's states leave no room for a token on %d rank%s of %.15g GB; try more ranks",
                    cost->name, ranks, ranks == 1 ? "" : "s", machine->memory_gb);
    *setting = (Setting){.cost = *cost, .groups = groups, .kind = CP_CHOICE_AUTO, .context = context};
    setting->limits = (PlanLimits){.ranks = ranks,
                                   .node_size = node_size,
                                   .capacity = capacity,
                                   .kv_heads = machine_heads(machine),
                                   .max_ring_docs = INT_MAX,
                                   .quadratic = cost->per_token > 0 ? cost->quadratic / cost->per_token : 1};
    cost_groups(groups, &setting->cost, &setting->limits, setting->kind);
    return 0;
}
