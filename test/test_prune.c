// test_prune.c - claims about plan/slow/prune.h: which columns are kept, and how many are left out.
#include "plan/slow/prune.h"

#include <float.h>

#include "test/test.h"

enum { MOST = 512 };

static int is_kept(const int* kept, int n_kept, int j) {
    for (int i = 0; i < n_kept; i++)
        if (kept[i] == j) return 1;
    return 0;
}

static int ascends_within(const int* kept, int n_kept, int n) {
    for (int i = 0; i < n_kept; i++)
        if (kept[i] < (i ? kept[i - 1] + 1 : 0) || kept[i] >= n) return 0;
    return 1;
}

// ---- values

// Against sums in the order of rows, in double, of any width: also one that is no multiple of a block.
CLAIM(a_change_is_the_sum_of_its_column) {
    enum { ROWS = 7 };
    static float now[ROWS * 200], ago[ROWS * 200], change[200];
    for (int cols = 1; cols <= 200; cols += 9) {
        for (int i = 0; i < ROWS * cols; i++) {
            now[i] = (float)random_normal(1, (uint64_t)i);
            ago[i] = (float)random_normal(2, (uint64_t)i);
        }
        prune_change(change, now, ago, ROWS, cols);
        for (int c = 0; c < cols; c++) {
            double sum = 0;
            for (int r = 0; r < ROWS; r++) sum += (double)fabsf(now[r * cols + c] - ago[r * cols + c]);
            CHECK(change[c] == (float)sum);
        }
    }
}

CLAIM(only_what_was_kept_is_learnt_and_the_rest_rises) {
    static const float change[] = {100, 4, 100, 2, 100};
    static const int kept[] = {1, 3};
    float value[] = {5, 6, 7, 8, 0.25f};
    prune_learn(value, change, 5, kept, 2);
    CHECK(value[1] == 4 && value[3] == 2);  // their mean is 3, a tenth of it 0.3
    CHECK_CLOSE(value[0], 5.3, 1e-6);
    CHECK_CLOSE(value[2], 7.3, 1e-6);
    CHECK_CLOSE(value[4], 0.55, 1e-6);
    float before[5];
    memcpy(before, value, sizeof value);
    prune_learn(value, change, 5, NULL, 0);  // nothing was kept, or no step was made: nothing is known
    static const float none[5] = {0};
    prune_learn(value, none, 5, kept, 2);
    CHECK(!memcmp(before, value, sizeof value));
}

CLAIM(weights_that_are_no_numbers_leave_values_that_are) {
    float change[] = {NAN, INFINITY, FLT_MAX, 1}, value[] = {1, 1, 1, FLT_MAX};
    static const int kept[] = {0, 1, 2};
    int chosen[2];
    prune_learn(value, change, 4, kept, 3);
    for (int j = 0; j < 4; j++) CHECK(value[j] > 0 && value[j] <= FLT_MAX);
    float strange[] = {-NAN, NAN, -0.0f, 0};
    prune_choose(chosen, 2, strange, 4);
    CHECK(ascends_within(chosen, 2, 4));
    prune_choose(chosen, 1, strange + 2, 2);
    CHECK(chosen[0] == 0);  // -0 and 0 are equal
}

// ---- the choice

// By definition: j is kept where fewer than n_kept are before it.
static void check_choice(uint64_t seed) {
    float value[MOST];
    int kept[MOST];
    int n = 1 + (int)(random_uniform(seed, 0) * 100), n_kept = (int)(random_uniform(seed, 1) * (n + 1));
    int kinds = 1 + (int)(random_uniform(seed, 2) * 2 * n);  // few: many ties
    for (int j = 0; j < n; j++) value[j] = (float)(int)(random_uniform(seed, 10 + (uint64_t)j) * kinds);
    prune_choose(kept, n_kept, value, n);
    int right = ascends_within(kept, n_kept, n);
    for (int j = 0; j < n; j++) {
        int before = 0;
        for (int i = 0; i < n; i++) before += value[i] > value[j] || (value[i] == value[j] && i < j);
        right = right && is_kept(kept, n_kept, j) == (before < n_kept);
    }
    CHECK(right);
}

CLAIM(the_greatest_are_kept_and_ties_go_to_the_lower_index) {
    FOR_SEEDS(seed, 0, 2000) check_choice(seed);
    float equal[9];
    int kept[4];
    prune_start(equal, 9);
    prune_choose(kept, 4, equal, 9);
    for (int i = 0; i < 4; i++) CHECK(kept[i] == i);
}

// A permanently slow rank. A dropped column's value rises by at least a tenth of the least mean change that a kept set
// can have; once it exceeds the greatest change, only columns that were dropped too are before it, which with half kept
// all find room at once: 10 greatest / least mean + 1 refreshes. Starting values of 1 are above none for long: changes
// here are of the order of 1.
static int worst_wait(double gamma, const float* change, int n) {
    float value[MOST];
    int kept[MOST], since[MOST] = {0}, worst = 0, n_kept = n - (int)(gamma * n);
    prune_start(value, n);
    for (int refresh = 0; refresh < 3000; refresh++) {
        prune_choose(kept, n_kept, value, n);
        for (int j = 0; j < n; j++) since[j]++;
        for (int i = 0; i < n_kept; i++) since[kept[i]] = 0;
        for (int j = 0; j < n; j++) worst = MAX(worst, since[j]);
        prune_learn(value, change, n, kept, n_kept);
    }
    return worst;
}

CLAIM(no_column_starves_when_half_are_left_out_for_ever) {
    enum { N = 128 };
    float change[N];
    for (int kind = 0; kind < 3; kind++) {
        double greatest = 1, least_mean = 0;
        for (int j = 0; j < N; j++) change[j] = kind == 0 ? 1 : kind == 1 ? (float)(j + 1) / N : j < N / 2 ? 1 : 0.05f;
        for (int j = 0; j < N / 2; j++) least_mean += change[kind == 2 ? N / 2 + j : j] / (N / 2);
        int bound = (int)(10 * greatest / least_mean) + 1, worst = worst_wait(0.5, change, N);
        printf("    changes %s: a column waits for at most %d refreshes, bound %d\n",
               kind == 0   ? "equal"
               : kind == 1 ? "unequal"
                           : "of two kinds, 20 to 1",
               worst, bound);
        CHECK(worst >= 1 && worst <= bound);
    }
}

// ---- how many

CLAIM(tiles_are_smaller_where_there_are_few) {
    static const int n[] = {1, 3, 7, 8, 15, 16, 31, 32, 63, 64, 65, 4096},
                     tile[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 16};
    for (int i = 0; i < COUNT(n); i++) CHECK(prune_tile(n[i], 16) == tile[i]);
}

static double saved_by(const int* dropped, const PruneList* lists, int n) {
    double saved = 0;
    for (int i = 0; i < n; i++) saved += dropped[i] * lists[i].work;
    return saved;
}

static void check_counts(uint64_t seed) {
    PruneList lists[4];
    int dropped[4], n = 1 + (int)(random_uniform(seed, 0) * 4), right = 1;
    double total = 0, widest = 0, most = 0;
    for (int i = 0; i < n; i++) {
        double spread = random_uniform(seed, 10 + (uint64_t)i);
        lists[i] = (PruneList){(int)(spread * spread * 1000), 1 + (int)(random_uniform(seed, 20 + (uint64_t)i) * 500)};
        total += lists[i].n * lists[i].work;
        int tile = prune_tile(lists[i].n, 16);
        widest = MAX(widest, lists[i].work * tile);
        most += MAX(0, lists[i].n - tile) / tile * tile * lists[i].work;
    }
    double asked = random_uniform(seed, 1) * 1.1 - 0.05, target = MIN(1, asked) * total,
           least = MIN(MAX(0, target), most);
    prune_counts(dropped, lists, n, asked, 16);
    double saved = saved_by(dropped, lists, n);
    for (int i = 0; i < n; i++) {
        int tile = prune_tile(lists[i].n, 16);
        right =
            right && dropped[i] >= 0 && dropped[i] % tile == 0 && (dropped[i] == 0 || dropped[i] <= lists[i].n - tile);
        double part = target / total * lists[i].n * lists[i].work;
        // In proportion, but for a tile and what others could not take.
        if (target < 0.5 * most) right = right && fabs(dropped[i] * lists[i].work - MAX(0, part)) <= 2 * widest;
    }
    right = right && saved >= least - 1e-3 * widest;
    right = right && saved <= MAX(0, target) + widest;
    CHECK(right);
}

CLAIM(numbers_are_whole_tiles_that_meet_the_target) { FOR_SEEDS(seed, 0, 20000) check_counts(seed); }

int main(void) { return test_main(); }
