// published.c - the table of planners, and the planners of this project in it.
//
// static    one cp size for all steps: the least power of two that holds a document of setting->context tokens; where
//           none does, the least cp size of any kind. Micro-batches are best-fit packed, by plan_static.
// adaptive  the best cp size for every step, by plan_adaptive.
// flex      groups of unlike cp sizes, by plan_flex.
// None of them has a barrier, but adaptive and flex where the setting is of rounds. Each pays Cost.round for every
// micro-batch or round, so that a fixed cost that was measured with the rounds of another system is not a gift to those
// without: adaptive and flex know it while they plan, in a setting of their own whose micro-batches cost so much more.
#include "plan/published/published.h"

#include <stdlib.h>

double planner_micro_batch_ms(const Cost* cost) { return MAX(cost->round - cost->micro_batch, 0); }

Setting setting_with_micro_batch(const Setting* setting, double micro_batch_ms, GroupCost* groups) {
    Setting with = *setting;
    memcpy(groups, setting->groups, sizeof(GroupCost) * ((size_t)setting->limits.ranks + 1));
    for (int d = 1; d <= setting->limits.ranks; d++) groups[d].micro_batch += micro_batch_ms;
    with.groups = groups;
    with.cost.micro_batch += micro_batch_ms;
    return with;
}

// ---- what the planners share

void* planner_open_setting(const Setting* setting, const int* sample, int n_sample, Arena* arena, char* err,
                           size_t errlen) {
    (void)sample, (void)n_sample, (void)arena, (void)err, (void)errlen;
    return (void*)setting;
}

static int longer_first(const void* a, const void* b) {
    const Sorted *x = (const Sorted*)a, *y = (const Sorted*)b;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    return (x->doc > y->doc) - (x->doc < y->doc);
}

void sort_longest_first(Sorted* documents, const int* lengths, int n) {
    for (int i = 0; i < n; i++) documents[i] = (Sorted){lengths[i], i};
    qsort(documents, (size_t)n, sizeof *documents, longer_first);
}

// ---- static

typedef struct Static {
    const Setting* setting;
    int cp_size;
} Static;

// Whether groups of this cp size hold every document of up to context tokens, in micro-batches of plan_static.
static int holds_context(const Setting* setting, int cp_size, Arena* arena) {
    const PlanLimits* limits = &setting->limits;
    int context = MAX(setting->context, 1);
    Plan plan;
    if (plan_static(&plan, 0, &context, 1, limits, cp_size, setting->kind, arena, NULL, 0) < 0) return 0;
    // Borders are rounded: a document that is shorter by less than a token of every chunk may need one more of a rank.
    int ulysses_size = plan.micro_batches[0].ulysses_size, ring_size = cp_size / ulysses_size;
    for (int s = context; s > MAX(context - 2 * ring_size, 0); s--)
        if (widest_ring_rank(s, ring_size) > ring_rank_capacity(limits, ulysses_size)) return 0;
    return 1;
}

static int choose_cp_size(const Setting* setting, Arena* arena) {
    for (int any = 0; any < 2; any++)
        for (int cp_size = 1; cp_size <= setting->limits.ranks; cp_size += any ? 1 : cp_size)
            if (setting->groups[cp_size].canonical && holds_context(setting, cp_size, arena)) return cp_size;
    return 0;
}

static void* static_open(const Setting* setting, const int* sample, int n_sample, Arena* arena, char* err,
                         size_t errlen) {
    (void)sample, (void)n_sample;
    Static* x = TAKE(arena, Static, 1);
    ArenaMark mark = arena_mark(arena);
    int cp_size = choose_cp_size(setting, arena);
    if (arena_check(arena, err, errlen) < 0) return NULL;
    arena_reset(arena, mark);
    if (cp_size == 0) {
        fail(err, errlen,
             "no group of up to %d ranks holds a document of %d tokens, the context, at capacity %d; try a larger "
             "--capacity or more ranks",
             setting->limits.ranks, setting->context, setting->limits.capacity);
        return NULL;
    }
    *x = (Static){setting, cp_size};
    return x;
}

static int static_plan(const void* planner, Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n,
                       Arena* arena, char* err, size_t errlen) {
    const Static* x = (const Static*)planner;
    *rule = (PlayRule){.micro_batch_ms = planner_micro_batch_ms(&x->setting->cost)};
    return plan_static(plan, step, lengths, n, &x->setting->limits, x->cp_size, x->setting->kind, arena, err, errlen);
}

// ---- adaptive and flex

typedef struct Stepwise {
    Setting setting;
    PlayRule rule;
} Stepwise;

static void* stepwise_open(const Setting* setting, const int* sample, int n_sample, Arena* arena, char* err,
                           size_t errlen) {
    (void)sample, (void)n_sample;
    Stepwise* x = TAKE(arena, Stepwise, 1);
    GroupCost* groups = TAKE(arena, GroupCost, setting->limits.ranks + 1);
    if (arena_check(arena, err, errlen) < 0) return NULL;
    double ms = planner_micro_batch_ms(&setting->cost);
    x->rule = setting->rounds ? (PlayRule){.in_rounds = 1, .round_ms = ms} : (PlayRule){.micro_batch_ms = ms};
    x->setting = setting_with_micro_batch(setting, ms, groups);
    return x;
}

static int adaptive_plan(const void* planner, Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n,
                         Arena* arena, char* err, size_t errlen) {
    const Stepwise* x = (const Stepwise*)planner;
    Prediction prediction;
    *rule = x->rule;
    return plan_adaptive(plan, &prediction, step, lengths, n, &x->setting, arena, err, errlen);
}

static int flex_plan(const void* planner, Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n,
                     Arena* arena, char* err, size_t errlen) {
    const Stepwise* x = (const Stepwise*)planner;
    Prediction prediction;
    *rule = x->rule;
    return plan_flex(plan, &prediction, step, lengths, n, &x->setting, arena, err, errlen);
}

// ---- the table

const Planner planner_static = {
    "static", "one cp size for all steps, the least that holds the context; best-fit packed", static_open, static_plan};
const Planner planner_adaptive = {"adaptive", "the best single cp size for every step; best-fit packed", stepwise_open,
                                  adaptive_plan};
const Planner planner_flex = {"flex", "groups of unlike cp sizes, chosen for time (ragged)", stepwise_open, flex_plan};

const Planner* const planners[] = {&planner_static,   &planner_adaptive, &planner_flexsp, &planner_hydraulis,
                                   &planner_zeppelin, &planner_megatron, &planner_flex};
const int n_planners = COUNT(planners);
