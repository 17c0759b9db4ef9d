// simulate_rivals.c - planners by name: those of plan/rivals, and one that is only of use beside a single rival.
//
// "balanced" is what Megatron-LM compares its dynamic context parallelism with: rows of one degree, here 4, as in its
// own benches on mock data (--lengths mock --capacity 2048 --context 8192).
#include <stdlib.h>

#include "dev/simulate.h"
#include "plan/rivals/megatron.h"

enum { BALANCED_DEGREE = 4 };

typedef struct Balanced {
    const Setting* setting;
} Balanced;

static void* balanced_open(const Setting* setting, const int* sample, int n_sample, char* err, size_t errlen) {
    (void)sample, (void)n_sample, (void)err, (void)errlen;
    Balanced* x = (Balanced*)need(sizeof *x);
    x->setting = setting;
    return x;
}

static int balanced_plan(void* rival, Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n, char* err,
                         size_t errlen) {
    const Setting* setting = ((Balanced*)rival)->setting;
    return megatron_balanced(plan, rule, step, lengths, n, setting, BALANCED_DEGREE, err, errlen);
}

static const Rival rival_balanced = {"balanced", "rows of one degree, 4, in the order of documents (Megatron-LM)",
                                     balanced_open, balanced_plan, free};

const Rival* find_rival(const char* name, size_t n) {
    for (int i = 0; i <= n_rivals; i++) {
        const Rival* rival = i < n_rivals ? rivals[i] : &rival_balanced;
        if (strlen(rival->name) == n && strncmp(rival->name, name, n) == 0) return rival;
    }
    return NULL;
}
