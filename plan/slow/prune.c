// prune.c - see prune.h.
//
// Which: every value becomes a key whose order is total, NaN included, and ties go to the lower index, so that every
// machine keeps the same. A heap whose root is the worst of them finds them.
//
// How many: to leave out a part p, lists 0 .. i together should save d_i = p sum_{k <= i} n_k w_k. List i leaves out
// ceil((d_i - saved by 0 .. i - 1) / (w_i step)) steps: the rounding of one comes off the next.
#include "plan/slow/prune.h"

#include <float.h>
#include <math.h>

// ---- which

enum { COLUMN_BLOCK = 64 };  // columns that are summed together

void prune_start(float* value, int n) {
    for (int j = 0; j < n; j++) value[j] = 1;
}

// Keeps values finite, whatever the weights are, so that one whose weights were NaN once can be compared later.
static float bounded(double x) { return x < FLT_MAX ? (float)x : FLT_MAX; }

void prune_learn(float* value, const float* change, int n, const int* kept, int n_kept) {
    double sum = 0;
    for (int i = 0; i < n_kept; i++) sum += (double)bounded((double)change[kept[i]]);
    if (sum == 0) return;  // without a step, or with nothing kept, nothing is learnt
    double rise = sum / n_kept / 10;
    for (int j = 0, i = 0; j < n; j++) {
        int measured = i < n_kept && kept[i] == j;
        value[j] = measured ? bounded((double)change[j]) : bounded((double)value[j] + rise);
        i += measured;
    }
}

// Returns a number that is greater for greater values, of all bit patterns; -0 is 0.
static uint32_t order_of(float value) {
    uint32_t bits;
    value += 0.0f;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Returns 1 if a is kept rather than b.
static int before(const float* value, int a, int b) {
    uint32_t x = order_of(value[a]), y = order_of(value[b]);
    return x != y ? x > y : a < b;
}

// Restores the heap (n) below i: a parent is never before its children.
static void sift(const float* value, int* heap, int n, int i) {
    int moved = heap[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(value, heap[child], heap[child + 1])) child++;
        if (!before(value, moved, heap[child])) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

void prune_choose(int* kept, int n_kept, const float* value, int n) {
    if (n_kept == 0) return;
    for (int j = 0; j < n_kept; j++) kept[j] = j;
    for (int i = n_kept / 2; i-- > 0;) sift(value, kept, n_kept, i);
    for (int j = n_kept; j < n; j++)
        if (before(value, j, kept[0])) kept[0] = j, sift(value, kept, n_kept, 0);
    for (int j = 0, found = 0, worst = kept[0]; j < n; j++)
        if (!before(value, worst, j)) kept[found++] = j;
}

void prune_change(float* change, const float* now, const float* ago, int rows, int cols) {
    for (int first = 0; first < cols; first += COLUMN_BLOCK) {
        double sum[COLUMN_BLOCK] = {0};
        int n = MIN(COLUMN_BLOCK, cols - first);
        for (size_t r = 0; r < (size_t)rows; r++) {
            const float *x = now + r * (size_t)cols + first, *y = ago + r * (size_t)cols + first;
            for (int c = 0; c < n; c++) sum[c] += (double)fabsf(x[c] - y[c]);
        }
        for (int c = 0; c < n; c++) change[first + c] = (float)sum[c];
    }
}

// ---- how many

int prune_tile(int n, int tile) {
    while (tile > 1 && n < 4 * tile) tile /= 2;
    return tile;
}

static int most_of(const PruneList* list, int tile) {
    int step = prune_tile(list->n, tile);
    return MAX(0, list->n - step) / step * step;
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
    for (int i = 0; i < n_lists; i++) {
        const PruneList* list = &lists[i];
        int most = most_of(list, tile);
        due += part * (list->n * list->work);
        if (!(list->work > 0)) continue;
        dropped[i] = whole_up((due - saved) / list->work, prune_tile(list->n, tile), most, 1e-6);
        saved += dropped[i] * list->work;
    }
    for (int i = 0; i < n_lists; i++) {
        const PruneList* list = &lists[i];
        if (!(list->work > 0)) continue;
        int step = prune_tile(list->n, tile), most = most_of(list, tile);
        int more = whole_up((target - saved) / list->work, step, most - dropped[i], 1e-3);
        dropped[i] += more;
        saved += more * list->work;
    }
}
