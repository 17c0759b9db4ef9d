// recommend.h - the search for a layout for a machine and as many ranks as run->model.world has, which need not be
// there: what --what-if asks. It is the search of --layout auto, without lists of strategies.
#pragma once
#include "plan/layout/layout_steps.h"
#include "run/run.h"

// Until the next call of either function.
typedef struct Recommended {
    // By the steps that training draws first; ms infinite: nothing fits, and `words` say why. Bytes are those of its
    // fullest rank; where nothing fits, of the layout that needs least.
    LayoutTry best;
    const LayoutCosts* costs;   // what it was judged by; plan and plan_context are --plan and --cp
    const SampledSteps* steps;  // and in which steps
    char words[ERR_BYTES];
} Recommended;

// Fills costs and steps. plan: instead of --plan and --cp; NULL: these. 0, or -1 with words.
int run_know_layouts(Recommended* r, Run* run, const Machine* machine, const char* plan);
// run_recommend also finds the best layout in the memory of cluster->available; a machine's `ranks` may have less.
// what: the name that lines of progress show. A search ends after about half a minute with its best, and says so.
void run_recommend(Recommended* r, Run* run, const Machine* machine, const char* what);
