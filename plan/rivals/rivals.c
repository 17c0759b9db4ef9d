// rivals.c - the table of planners, and the rows that are planners of this project.
//
// static    one degree for all steps: the least power of two that holds a document of setting->context tokens; where
//           none does, the least degree of any kind. Rows are best-fit packed, by plan_static.
// adaptive  the best degree for every step, by plan_adaptive.
// flex      groups of unlike degrees, by plan_flex.
// None of them has a barrier. Each pays Cost.round for every item, so that a fixed cost that was measured with the
// micro-batches of another system is not a gift to those without: adaptive and flex know it while they plan, in a
// setting of their own whose items cost so much more.
#include "plan/rivals/rivals.h"

#include <stdlib.h>

#include "plan/planner.h"

double rival_item_ms(const Cost* cost) { return MAX(cost->round - cost->item, 0); }

Setting setting_with_item(const Setting* setting, double item_ms, GroupCost* groups) {
    Setting with = *setting;
    memcpy(groups, setting->groups, sizeof(GroupCost) * ((size_t)setting->limits.ranks + 1));
    for (int d = 1; d <= setting->limits.ranks; d++) groups[d].item += item_ms;
    with.groups = groups;
    with.cost.item += item_ms;
    return with;
}

// ---- static

typedef struct Static {
    const Setting* setting;
    int degree;
} Static;

// Whether groups of this degree hold every document of up to context tokens, in rows as plan_static makes them.
static int holds_context(const Setting* setting, int degree, void* memory, void* scratch) {
    const PlanLimits* limits = &setting->limits;
    int context = MAX(setting->context, 1);
    Plan plan;
    plan_carve(&plan, memory, 1);
    if (plan_static(&plan, 0, &context, 1, limits, degree, setting->kind, scratch, NULL, 0) < 0) return 0;
    // Borders are rounded: a document that is shorter by less than a token of every chunk may need one more of a place.
    int inner = plan.items[0].inner, outer = degree / inner;
    for (int s = context; s > MAX(context - 2 * outer, 0); s--)
        if (widest_place(s, outer) > place_capacity(limits, inner)) return 0;
    return 1;
}

static int choose_degree(const Setting* setting, void* memory, void* scratch) {
    for (int degree = 1; degree <= setting->limits.ranks; degree *= 2)
        if (setting->groups[degree].canonical && holds_context(setting, degree, memory, scratch)) return degree;
    for (int degree = 1; degree <= setting->limits.ranks; degree++)
        if (setting->groups[degree].canonical && holds_context(setting, degree, memory, scratch)) return degree;
    return 0;
}

static void* static_open(const Setting* setting, const int* sample, int n_sample, char* err, size_t errlen) {
    (void)sample, (void)n_sample;
    Static* x = (Static*)malloc(sizeof *x);
    void *memory = malloc(plan_bytes(1)), *scratch = malloc(plan_static_scratch(1, &setting->limits));
    if (x && memory && scratch) {
        *x = (Static){setting, choose_degree(setting, memory, scratch)};
        if (x->degree == 0)
            fail(err, errlen,
                 "no group of up to %d ranks holds a document of %d tokens, the context, at capacity %d; try a larger "
                 "--capacity or more ranks",
                 setting->limits.ranks, setting->context, setting->limits.capacity);
    } else {
        fail(err, errlen, "no memory for a planner");
    }
    free(memory);
    free(scratch);
    if (x && memory && scratch && x->degree > 0) return x;
    free(x);
    return NULL;
}

static int static_plan(void* rival, Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n, char* err,
                       size_t errlen) {
    const Static* x = (const Static*)rival;
    const PlanLimits* limits = &x->setting->limits;
    void* scratch = malloc(plan_static_scratch(n, limits));
    if (!scratch) return fail(err, errlen, "no memory to plan %d documents", n);
    *rule = (PlayRule){.item_ms = rival_item_ms(&x->setting->cost)};
    int result = plan_static(plan, step, lengths, n, limits, x->degree, x->setting->kind, scratch, err, errlen);
    free(scratch);
    return result;
}

// ---- adaptive and flex

typedef struct Stepwise {
    Setting setting;
    double item_ms;
} Stepwise;

static void stepwise_close(void* rival) {
    free(((Stepwise*)rival)->setting.groups);
    free(rival);
}

static void* stepwise_open(const Setting* setting, const int* sample, int n_sample, char* err, size_t errlen) {
    (void)sample, (void)n_sample;
    Stepwise* x = (Stepwise*)malloc(sizeof *x);
    GroupCost* groups = (GroupCost*)malloc(sizeof(GroupCost) * ((size_t)setting->limits.ranks + 1));
    if (!x || !groups) {
        free(x);
        free(groups);
        fail(err, errlen, "no memory for a planner");
        return NULL;
    }
    x->item_ms = rival_item_ms(&setting->cost);
    x->setting = setting_with_item(setting, x->item_ms, groups);
    return x;
}

typedef int (*StepPlanner)(Plan* plan, Forecast* forecast, int64_t step, const int* lengths, int n,
                           const Setting* setting, void* scratch, char* err, size_t errlen);

static int stepwise_plan(StepPlanner planner, void* rival, Plan* plan, PlayRule* rule, int64_t step, const int* lengths,
                         int n, char* err, size_t errlen) {
    const Stepwise* x = (const Stepwise*)rival;
    Forecast* forecast = (Forecast*)malloc(sizeof *forecast);
    void* scratch = malloc(plan_step_scratch(n, &x->setting.limits));
    int result = -1;
    *rule = (PlayRule){.item_ms = x->item_ms};
    if (forecast && scratch) result = planner(plan, forecast, step, lengths, n, &x->setting, scratch, err, errlen);
    else fail(err, errlen, "no memory to plan %d documents", n);
    free(forecast);
    free(scratch);
    return result;
}

static int adaptive_plan(void* rival, Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n, char* err,
                         size_t errlen) {
    return stepwise_plan(plan_adaptive, rival, plan, rule, step, lengths, n, err, errlen);
}

static int flex_plan(void* rival, Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n, char* err,
                     size_t errlen) {
    return stepwise_plan(plan_flex, rival, plan, rule, step, lengths, n, err, errlen);
}

// ---- the table

const Rival rival_static = {"static", "one degree for all steps, the least that holds the context; best-fit packed",
                            static_open, static_plan, free};
const Rival rival_adaptive = {"adaptive", "the best single degree for every step; best-fit packed", stepwise_open,
                              adaptive_plan, stepwise_close};
const Rival rival_flex = {"flex", "groups of unlike degrees, chosen for time; no barrier (ragged)", stepwise_open,
                          flex_plan, stepwise_close};

const Rival* const rivals[] = {&rival_static,   &rival_adaptive, &rival_flexsp, &rival_hydraulis,
                               &rival_zeppelin, &rival_megatron, &rival_flex};
const int n_rivals = COUNT(rivals);
