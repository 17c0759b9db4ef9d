// fixed.c - fixed-length packing, the baseline that papers on ragged documents compare with: documents are packed into
// full rows of --context tokens (best fit, the longest first), rows dealt to the ranks in turn, whatever they cost.
#include "plan/value/pack.h"
#include "plan/published/published.h"

static int fixed_plan(const void* planner, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena, char* err,
                      size_t errlen) {
    const Setting* setting = (const Setting*)planner;
    const PlanLimits* limits = &setting->limits;
    int row = setting->context > 0 ? MIN(setting->context, limits->capacity) : limits->capacity;
    Rows packing;
    if (plan_begin(plan, step, lengths, n, limits, arena, err, errlen)) return -1;
    ArenaMark mark = arena_mark(arena);
    if (pack_best_fit(&packing, lengths, n, row, arena, err, errlen)) return -1;
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

const Planner planner_fixed = {.name = "fixed",
                               .words = "full rows of --context tokens, best-fit packed, dealt to the ranks in turn",
                               .open = planner_open_setting,
                               .plan = fixed_plan};
