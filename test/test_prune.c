// test_prune.c - claims about plan/slow/prune.h: which columns are kept, and how many are left out.
#include "plan/slow/prune.h"

#include "test/test.h"

enum { MOST = 512 };

// ---- which

static int ascends_within(const int* kept, int n_kept, int n) {
    for (int i = 0; i < n_kept; i++)
        if (kept[i] < (i ? kept[i - 1] + 1 : 0) || kept[i] >= n) return 0;
    return 1;
}

static void check_draw(uint64_t seed) {
    int kept[MOST + 1], again[MOST];
    int n = 1 + (int)(random_uniform(seed, 0) * MOST), n_kept = (int)(random_uniform(seed, 1) * (n + 1));
    kept[n_kept] = -1;
    prune_draw(kept, n_kept, n, seed);
    CHECK(ascends_within(kept, n_kept, n) && kept[n_kept] == -1);
    prune_draw(again, n_kept, n, seed);
    CHECK(!memcmp(kept, again, (size_t)n_kept * sizeof *kept));
}

CLAIM(as_many_are_drawn_as_are_asked_for) {
    int all[MOST];
    FOR_SEEDS(seed, 0, 2000) check_draw(seed);
    prune_draw(all, MOST, MOST, 1);
    for (int j = 0; j < MOST; j++) CHECK(all[j] == j);
    prune_draw(NULL, 0, MOST, 1);
}

// All 20 sets of 3 of 6: chi squared with 19 degrees of freedom exceeds 60 by chance once in 300000 times.
CLAIM(every_set_is_equally_likely) {
    enum { N = 6, SETS = 1 << N, DRAWS = 20000, LIKELY = 20 };
    int kept[3], times[SETS] = {0};
    double sum = 0;
    FOR_SEEDS(seed, 0, DRAWS) {
        prune_draw(kept, 3, N, hash64(seed));
        times[1 << kept[0] | 1 << kept[1] | 1 << kept[2]]++;
    }
    for (int set = 0; set < SETS; set++) {
        double expected = __builtin_popcount((unsigned)set) == 3 ? (double)DRAWS / LIKELY : 0,
               d = times[set] - expected;
        CHECK(expected > 0 || times[set] == 0);
        sum += expected > 0 ? d * d / expected : 0;
    }
    CHECK(sum < 60);
}

// With half left out one that waits for 40 refreshes would be one of 10^12.
CLAIM(no_column_starves) {
    enum { N = 128, REFRESHES = 3000 };
    int kept[N / 2], since[N] = {0}, worst = 0;
    for (int refresh = 0; refresh < REFRESHES; refresh++) {
        prune_draw(kept, N / 2, N, hash64((uint64_t)refresh));
        for (int j = 0; j < N; j++) since[j]++;
        for (int i = 0; i < N / 2; i++) since[kept[i]] = 0;
        for (int j = 0; j < N; j++) worst = MAX(worst, since[j]);
    }
    CHECK(worst >= 1 && worst < 40);
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
