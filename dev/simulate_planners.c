// simulate_planners.c - planners by name: those of plan/published, and one that is only of use beside a single
// published planner.
//
// "balanced" is what Megatron-LM compares its dynamic context parallelism with: rows of one cp size, here 4, as in its
// own benches on mock data (--lengths mock --capacity 2048 --context 8192).
#include <stdlib.h>

#include "dev/simulate.h"
#include "plan/published/megatron.h"

enum { BALANCED_CP_SIZE = 4 };

typedef struct Balanced {
    const Setting* setting;
} Balanced;

static void* balanced_open(const Setting* setting, const int* sample, int n_sample, char* err, size_t errlen) {
    (void)sample, (void)n_sample, (void)err, (void)errlen;
    Balanced* x = (Balanced*)need(sizeof *x);
    x->setting = setting;
    return x;
}

static int balanced_plan(void* planner, Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n, char* err,
                         size_t errlen) {
    const Setting* setting = ((Balanced*)planner)->setting;
    return megatron_balanced(plan, rule, step, lengths, n, setting, BALANCED_CP_SIZE, err, errlen);
}

static const Planner planner_balanced = {"balanced", "rows of one cp size, 4, in the order of documents (Megatron-LM)",
                                         balanced_open, balanced_plan, free};

const Planner* find_planner(const char* name, size_t n) {
    for (int i = 0; i <= n_planners; i++) {
        const Planner* planner = i < n_planners ? planners[i] : &planner_balanced;
        if (strlen(planner->name) == n && strncmp(planner->name, name, n) == 0) return planner;
    }
    return NULL;
}
