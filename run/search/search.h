// search.h - build/simulate looks ahead for a run that has not started: it finds the fastest layout or list of
// strategies (`simulate layout`), and the times of clusters (`simulate what-if`). Both take the options of ./train.
// Nothing is trained: times come from the clock of virtual ranks, bytes from the memory table of a run.
//
//   ask.c             the words of the command, and a run whose ranks need not exist
//   layout.c          the search for one machine
//   what_if.c ...     clusters beside each other, see what_if.h
//   explain.c ...     what ./train --explain shows
#pragma once
#include "plan/search/layout_steps.h"
#include "run/run.h"

// Runs the program `simulate layout ...` or `simulate what-if ...`; argv[1] is that word. Returns its status.
int search_main(int argc, char** argv);
// explain.c: runs `simulate explain ...`, the trainer with --explain among its options, which shows what other planners
// make of its next step. `./train --explain` goes on as this program. Returns its status.
int explain_main(int argc, char** argv);
int train_main(int argc, char** argv);  // main of train_gpt.cu

// explain_layout.c: prints what every stage holds, and what a step should take. Collective.
void explain_layout(Run* run);
// Returns the bytes of a rank of stage s, before ranks are joined. copies: the number of like pipelines of this layout,
// if states belong to all ranks (--strategies); moves are not in it. 0: all ranks run the layout.
size_t run_memory_of(const Run* run, const Layout* layout, int copies, int s, int N);

// layout.c: prints the answer to --layout, and as the last line how to use it. Returns 0, or -1 with words.
int search_layout(Run* run, Err err);

// The answer of both functions below, valid until the next call of either.
typedef struct Recommended {
    // The best layout by the steps that training draws first; ms infinite: nothing fits, and `words` say why. Bytes are
    // those of its fullest rank; if nothing fits, of the layout that needs least.
    LayoutTry best;
    const LayoutCosts* costs;   // the costs that judge it; plan and plan_context are --plan and --cp
    const SampledSteps* steps;  // the steps that judge it
    char words[ERR_BYTES];
} Recommended;

// Fills costs and steps. plan: instead of --plan and --cp; NULL: these. Returns 0, or -1 with words.
int run_know_layouts(Recommended* r, Run* run, const Machine* machine, const char* plan);
// Also finds the best layout in the memory of cluster->available; a machine's `ranks` may have less. It is the search
// of --layout auto, without lists. what: the name that lines of progress show. A search ends after about half a minute
// with its best, and says so.
void run_recommend(Recommended* r, Run* run, const Machine* machine, const char* what);
