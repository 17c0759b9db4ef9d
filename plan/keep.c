// keep.c - see keep.h. Wang et al. 2024 ("Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control")
// keep the columns of greatest value v_j = sum_i |W_now[i][j] - W_ago[i][j]|.
//
// Every value is turned into a 64-bit key whose order is total, NaN included, and ties go to the lower index: which
// ones are kept is the same on every machine. Those n_kept are found with a heap whose root is the worst of them.
#include "plan/keep.h"

#include <float.h>
#include <math.h>

enum { COLUMN_BLOCK = 64 };  // of sums that are held together

void keep_start(float* value, int n) {
    for (int j = 0; j < n; j++) value[j] = 1;
}

// Values stay finite, whatever the weights are, so that one whose weights were NaN once can be compared later.
static float bounded(double x) { return x < FLT_MAX ? (float)x : FLT_MAX; }

void keep_learn(float* value, const float* change, int n, const int* kept, int n_kept) {
    double sum = 0;
    for (int i = 0; i < n_kept; i++) sum += (double)bounded((double)change[kept[i]]);
    if (sum == 0) return;  // no step was made, or nothing kept: that says nothing
    double rise = sum / n_kept / 10;
    for (int j = 0, i = 0; j < n; j++) {
        int measured = i < n_kept && kept[i] == j;
        value[j] = measured ? bounded((double)change[j]) : bounded((double)value[j] + rise);
        i += measured;
    }
}

// Greater for greater values, of all bit patterns; -0 is 0.
static uint64_t order_of(float value) {
    uint32_t bits;
    value += 0.0f;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

typedef struct Order {
    const float* value;
    Priority priority;
    uint64_t seed;
} Order;

static uint64_t key(const Order* o, int j) {
    if (o->priority == PRIORITY_RANDOM) return hash64(o->seed ^ (uint64_t)j);
    uint64_t k = order_of(o->value[j]);
    return o->priority == PRIORITY_INVERSE ? ~k : k;
}

// Whether a is kept rather than b.
static int before(const Order* o, int a, int b) {
    uint64_t x = key(o, a), y = key(o, b);
    return x != y ? x > y : a < b;
}

// Restores the heap (n) below i: a parent is never before its children.
static void sift(const Order* o, int* heap, int n, int i) {
    int moved = heap[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(o, heap[child], heap[child + 1])) child++;
        if (!before(o, moved, heap[child])) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

void keep_choose(int* kept, int n_kept, const float* value, int n, Priority priority, uint64_t seed, int* scratch) {
    Order order = {value, priority, hash64(seed)};
    int found = 0;
    if (n_kept == 0) return;
    for (int j = 0; j < n_kept; j++) scratch[j] = j;
    for (int i = n_kept / 2; i-- > 0;) sift(&order, scratch, n_kept, i);
    for (int j = n_kept; j < n; j++) {
        if (!before(&order, j, scratch[0])) continue;
        scratch[0] = j;
        sift(&order, scratch, n_kept, 0);
    }
    for (int j = 0; j < n; j++)
        if (!before(&order, scratch[0], j)) kept[found++] = j;
}

void keep_change(float* change, const float* now, const float* ago, int rows, int cols) {
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
