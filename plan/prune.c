// prune.c - see prune.h.
//
// With W the work of all lists and t the target, lists 0 .. i together should save d_i = (t / W) sum_{k <= i} n_k w_k.
// List i leaves out ceil((d_i - saved by 0 .. i - 1) / (w_i step)) steps: the rounding of one is taken off the next.
#include "plan/prune.h"

#include <math.h>

int prune_tile(int n, int tile) {
    while (tile > 1 && n < 4 * tile) tile /= 2;
    return tile;
}

static int step_of(const PruneList* list, int tile) { return list->coarse ? 1 : prune_tile(list->n, tile); }

static int most_of(const PruneList* list, int tile) {
    int step = step_of(list, tile);
    return MAX(0, list->n - step) / step * step;
}

double prune_most(const PruneList* lists, int n_lists, int tile) {
    double most = 0;
    for (int i = 0; i < n_lists; i++) most += most_of(&lists[i], tile) * lists[i].work;
    return most;
}

// The least number of whole steps that make x, but for `slack` steps, which rounding errors may amount to; no more
// than `most`.
static int whole_up(double x, int step, int most, double slack) {
    double steps = ceil(x / step - slack);
    if (!(steps > 0)) return 0;
    return steps * step < most ? (int)steps * step : most;
}

// The first pass gives every list its part, the second tops up where that was more than one could leave out.
double prune_counts(int* dropped, const PruneList* lists, int n_lists, double target, int tile) {
    double total = 0, due = 0, saved = 0;
    for (int i = 0; i < n_lists; i++) total += lists[i].n * lists[i].work, dropped[i] = 0;
    if (!(target > 0)) return 0;
    double ratio = MIN(1, target / total);
    for (int i = 0; i < n_lists; i++) {
        const PruneList* list = &lists[i];
        int most = most_of(list, tile);
        due += ratio * (list->n * list->work);
        if (!(list->work > 0)) continue;
        double part = (due - saved) / list->work;
        dropped[i] =
            list->coarse ? (int)MAX(0, MIN(part + 1e-6, most)) : whole_up(part, step_of(list, tile), most, 1e-6);
        saved += dropped[i] * list->work;
    }
    for (int i = 0; i < n_lists; i++) {
        const PruneList* list = &lists[i];
        if (!(list->work > 0)) continue;
        int more = whole_up((target - saved) / list->work, step_of(list, tile), most_of(list, tile) - dropped[i], 1e-3);
        dropped[i] += more;
        saved += more * list->work;
    }
    return saved;
}
