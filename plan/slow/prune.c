// prune.c - see prune.h.
//
// Which: of n - j columns that are left, k are still to be kept, so column j is kept with probability k / (n - j). All
// sets are equally likely then (selection sampling: Knuth, The Art of Computer Programming 2, 3.4.2).
//
// How many: to leave out a part p, lists 0 .. i together should save d_i = p sum_{k <= i} n_k w_k. List i leaves out
// ceil((d_i - saved by 0 .. i - 1) / (w_i step)) steps: the rounding of one comes off the next.
#include "plan/slow/prune.h"

#include <math.h>

void prune_draw(int* kept, int n_kept, int n, uint64_t seed) {
    for (int j = 0, found = 0; found < n_kept; j++)
        if (random_uniform(seed, (uint64_t)j) * (n - j) < n_kept - found) kept[found++] = j;
}

// ---- how many

int prune_tile(int n, int tile) {
    while (tile > 1 && n < 4 * tile) tile /= 2;
    return tile;
}

// The least number, in whole steps, that makes x except for `slack` steps of rounding errors; no more than `most`.
static int whole_up(double x, int step, int most, double slack) {
    double steps = ceil(x / step - slack);
    if (!(steps > 0)) return 0;
    return steps * step < most ? (int)steps * step : most;
}

// The first pass gives every list its part; the second tops up if a list could not leave out all of it.
void prune_counts(int* dropped, const PruneList* lists, int n_lists, double part, int tile) {
    double target = 0, due = 0, saved = 0;
    part = part > 0 ? MIN(1, part) : 0;
    for (int i = 0; i < n_lists; i++) target += part * (lists[i].n * lists[i].work), dropped[i] = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n_lists; i++) {
            const PruneList* list = &lists[i];
            due = pass ? target : due + part * (list->n * list->work);
            if (!(list->work > 0)) continue;
            int step = prune_tile(list->n, tile), most = MAX(0, list->n - step) / step * step - dropped[i];
            int more = whole_up((due - saved) / list->work, step, most, pass ? 1e-3 : 1e-6);
            dropped[i] += more;
            saved += more * list->work;
        }
}
