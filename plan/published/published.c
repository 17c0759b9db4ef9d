// published.c - the table of planners, and the planners in it that are this project's or nobody's.
//
// static    one cp size for all steps: setting->cp_size, or the least power of two that holds a document of
//           setting->context tokens; where none does, the least cp size of any kind. Micro-batches are best-fit packed,
//           by plan_static.
// adaptive  the best cp size for every step, by plan_adaptive.
// flex      groups of unlike cp sizes, by plan_flex.
// fixed     the baseline that papers on ragged documents compare with: full rows of setting->context tokens (best fit,
//           the longest first), dealt to the ranks in turn, whatever they cost. It knows one capacity, the least.
// None of them has a barrier of its own. If the setting has rounds (ZeRO-2 and 3), adaptive and flex plan for them.
#include "plan/published/published.h"

#include <math.h>

#include "plan/value/pack.h"

// ---- what the planners share

void* planner_open_setting(const Setting* setting, const int* sample, int n_sample, Arena* arena, Err err) {
    (void)sample, (void)n_sample, (void)arena, (void)err;
    return (void*)setting;
}

int refuse_document(int doc, int length, const PlanLimits* limits, Err err) {
    return fail(err,
                "document %d of the step has %d tokens, and no group of a power of two of the %d ranks holds it at "
                "capacity %d; try a larger --capacity or more ranks",
                doc, length, limits->ranks, limits->capacity);
}

int planner_alike(Setting* own, const Setting* setting, Arena* arena, Err err) {
    *own = *setting;
    if (!setting->limits.capacities) return 0;
    own->limits = limits_at(&setting->limits, setting->limits.capacity);
    own->groups = TAKE(arena, GroupCost, own->limits.ranks + 1);
    if (arena_check(arena, err) < 0) return -1;
    cost_groups(own->groups, &setting->cost, &own->limits, own->kind);
    return 0;
}

void plan_fill(Plan* plan, const int* order, const int* mb_of) {
    MicroBatch* mbs = plan->micro_batches;
    for (int i = 0; i < plan->n_docs; i++) mbs[mb_of[i]].n_docs++;
    for (int i = 0, first = 0; i < plan->n_micro_batches; i++) {
        mbs[i].first_doc = first;
        first += mbs[i].n_docs;
        mbs[i].n_docs = 0;
    }
    for (int i = 0; i < plan->n_docs; i++) {
        MicroBatch* mb = &mbs[mb_of[order[i]]];
        plan->docs[mb->first_doc + mb->n_docs++] = order[i];
    }
}

// ---- static

typedef struct Static {
    const Setting* setting;
    int cp_size;
} Static;

// Returns 1 if groups of this cp size hold every document of up to context tokens, in micro-batches of plan_static. A
// lone document goes to the largest capacity.
static int holds_context(const Setting* setting, int cp_size, Arena* arena) {
    const PlanLimits* limits = &setting->limits;
    int context = MAX(setting->context, 1);
    Plan plan;
    if (plan_static(&plan, 0, &context, 1, limits, cp_size, setting->kind, arena, NULL) < 0) return 0;
    // Borders are rounded, so a document shorter by less than a token a chunk may need one token more on a rank.
    const MicroBatch* mb = &plan.micro_batches[0];
    PlanLimits own = limits_at(limits, group_capacity(limits, mb->first_rank, cp_size));
    int ring_size = cp_size / mb->ulysses_size;
    for (int s = context; s > MAX(context - 2 * ring_size, 0); s--)
        if (widest_ring_rank(s, ring_size) > ring_rank_capacity(&own, mb->ulysses_size)) return 0;
    return 1;
}

static int choose_cp_size(const Setting* setting, Arena* arena) {
    for (int any = 0; any < 2; any++)
        for (int cp_size = 1; cp_size <= setting->limits.ranks; cp_size += any ? 1 : cp_size)
            if (setting->groups[cp_size].canonical && holds_context(setting, cp_size, arena)) return cp_size;
    return 0;
}

static void* static_open(const Setting* setting, const int* sample, int n_sample, Arena* arena, Err err) {
    (void)sample, (void)n_sample;
    Static* x = TAKE(arena, Static, 1);
    ArenaMark mark = arena_mark(arena);
    int cp_size = setting->cp_size ? setting->cp_size : choose_cp_size(setting, arena);
    if (arena_check(arena, err) < 0) return NULL;
    arena_reset(arena, mark);
    if (cp_size == 0)
        return fail(err,
                    "no group of up to %d ranks holds a document of %d tokens, the context, at capacity %d; try a "
                    "larger --capacity or more ranks",
                    setting->limits.ranks, setting->context, widest_capacity(&setting->limits, 1)),
               NULL;
    *x = (Static){setting, cp_size};
    return x;
}

static int static_plan(const void* planner, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena,
                       Err err) {
    const Static* x = (const Static*)planner;
    return plan_static(plan, step, lengths, n, &x->setting->limits, x->cp_size, x->setting->kind, arena, err);
}

// ---- adaptive and flex

static int adaptive_plan(const void* planner, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena,
                         Err err) {
    const Setting* setting = (const Setting*)planner;
    Prediction prediction;
    return plan_adaptive(plan, &prediction, step, lengths, n, INFINITY, setting, arena, err);
}

static int flex_plan(const void* planner, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena, Err err) {
    const Setting* setting = (const Setting*)planner;
    Prediction prediction;
    return plan_flex(plan, &prediction, step, lengths, n, setting, arena, err);
}

// ---- fixed

static int fixed_plan(const void* planner, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena, Err err) {
    const Setting* setting = (const Setting*)planner;
    const PlanLimits* limits = &setting->limits;
    int row = setting->context > 0 ? MIN(setting->context, limits->capacity) : limits->capacity;
    Rows packing;
    if (plan_begin(plan, step, lengths, n, limits, arena, err)) return -1;
    ArenaMark mark = arena_mark(arena);
    if (pack_best_fit(&packing, lengths, n, row, arena, err)) return -1;
    for (int r = 0; r < packing.n; r++)
        plan->micro_batches[plan->n_micro_batches++] = (MicroBatch){.first_rank = r % limits->ranks,
                                                                    .cp_size = 1,
                                                                    .ulysses_size = 1,
                                                                    .first_doc = packing.first[r],
                                                                    .n_docs = packing.first[r + 1] - packing.first[r]};
    memcpy(plan->docs, packing.order, sizeof(int) * (size_t)n);
    arena_reset(arena, mark);
    return 0;
}

// ---- the table

const Planner planner_static = {.name = "static",
                                .words = "one cp size for all steps, the least that holds the context; best-fit packed",
                                .open = static_open,
                                .plan = static_plan};
const Planner planner_adaptive = {.name = "adaptive",
                                  .words = "the best single cp size for every step; best-fit packed",
                                  .open = planner_open_setting,
                                  .plan = adaptive_plan};
const Planner planner_flex = {.name = "flex",
                              .words = "groups of unlike cp sizes, chosen for time (ragged)",
                              .open = planner_open_setting,
                              .plan = flex_plan};

const Planner planner_fixed = {.name = "fixed",
                               .words = "full rows of --context tokens, best-fit packed, dealt to the ranks in turn",
                               .open = planner_open_setting,
                               .plan = fixed_plan};

const Planner* const planners[] = {&planner_static,   &planner_adaptive, &planner_flexsp, &planner_hydraulis,
                                   &planner_zeppelin, &planner_megatron, &planner_fixed,  &planner_flex};
const int n_planners = COUNT(planners);

const Planner* planner_named(const char* name) {
    for (int i = 0; i < n_planners; i++)
        if (!strcmp(planners[i]->name, name)) return planners[i];
    return NULL;
}

size_t planner_bytes(const Planner* planner, int n, const PlanLimits* limits) {
    return planning_bytes(n, limits) + (planner->more_bytes ? planner->more_bytes(n, limits) : 0);
}

size_t planner_open_bytes(const Planner* planner, const PlanLimits* limits) {
    return planner->open_bytes ? planner->open_bytes(limits) : planning_bytes(1, limits);
}
