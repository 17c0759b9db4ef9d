// test_flexsp.c - the claims of plan/published/flexsp.c: cuts against tables and brute force, groups against a plain
// search and against all assignments, plans against their proof.
#include "plan/published/published.h"

#include "test/clusters.h"

// ---- cutting

// Random lengths, with equal ones among them.
static int random_lengths(int* lengths, uint64_t seed, int most, int sorted) {
    int n = pick(seed, 0, 1, most), range = pick(seed, 1, 1, 40);
    for (int i = 0; i < n; i++) lengths[i] = pick(seed, 10 + (uint64_t)i, 1, range) * pick(seed, 2, 1, 50);
    if (sorted) qsort(lengths, (size_t)n, sizeof(int), longer_first);
    return n;
}

// Over all ways to cut n documents into `runs` runs: the least largest sum.
static int64_t best_cut(const int* lengths, int n, int runs) {
    int64_t best = INT64_MAX;
    for (unsigned borders = 0; borders < 1u << (n - 1); borders++) {
        if (__builtin_popcount(borders) != runs - 1) continue;
        int64_t sum = 0, most = 0;
        for (int i = 0; i < n; i++) {
            if (i > 0 && borders >> (i - 1) & 1) sum = 0;
            sum += lengths[i];
            most = MAX(most, sum);
        }
        best = MIN(best, most);
    }
    return best;
}

CLAIM(rounds_are_the_evenest_there_are_sorted_or_not) {
    FOR_SEEDS(seed, 0, 300) {
        int lengths[11], first[12], n = random_lengths(lengths, seed, 11, seed % 2);
        int64_t capacity = lengths[0];
        for (int i = 0; i < n; i++) capacity = MAX(capacity, lengths[i]);
        // As little as some number of runs needs, or any.
        if (seed % 3) capacity = best_cut(lengths, n, pick(seed, 4, 1, n));
        else capacity += pick(seed, 4, 0, 3000);
        int least = 0;
        for (int m = n; m > 0; m--) {
            flexsp_chunks(first, lengths, n, m);
            CHECK(first[0] == 0 && first[m] == n);
            int64_t most = 0;
            for (int i = 0; i < m; i++) {
                int64_t sum = 0;
                for (int k = first[i]; k < first[i + 1]; k++) sum += lengths[k];
                CHECK(first[i] < first[i + 1]);
                most = MAX(most, sum);
            }
            CHECK(most == best_cut(lengths, n, m));
            if (most <= capacity) least = m;
        }
        CHECK(flexsp_least_chunks(lengths, n, capacity) == least);
    }
}

// ---- groups

typedef struct Counted {
    int64_t n;
    int ranks, cp_sizes, ordered, exact, last[FLEXSP_CP_SIZES];
} Counted;

static void count_partition(void* of, const int* counts) {
    Counted* x = (Counted*)of;
    int sum = 0, compared = 0;
    for (int c = x->cp_sizes; c-- > 0;) {
        sum += counts[c] << c;
        x->exact &= counts[c] >= 0;
        if (compared == 0) compared = (counts[c] > x->last[c]) - (counts[c] < x->last[c]);
    }
    x->exact &= sum == x->ranks;
    x->ordered &= x->n == 0 || compared > 0;  // so that none comes twice
    memcpy(x->last, counts, sizeof(int) * (size_t)x->cp_sizes);
    x->n++;
}

CLAIM(partitions_are_as_many_as_known) {
    static const int ranks[] = {1, 2, 8, 16, 32, 64, 128, 12}, known[] = {1, 2, 10, 36, 202, 1828, 27338, 20};
    for (int i = 0; i < COUNT(ranks); i++) {
        Counted x = {.ranks = ranks[i], .ordered = 1, .exact = 1};
        while (1 << x.cp_sizes <= ranks[i]) x.cp_sizes++;
        flexsp_partitions(ranks[i], x.cp_sizes, count_partition, &x);
        CHECK(x.n == known[i] && x.ordered && x.exact);
    }
}

// A round without buckets.
typedef struct Tiny {
    FlexspCpSizes cp_sizes;
    FlexspBatch batch;
    int lengths[WIDEST_BATCH], first[WIDEST_BATCH + 1], group_of[WIDEST_BATCH], counts[FLEXSP_CP_SIZES], n;
    Arena arena;
} Tiny;

static Tiny* open_tiny(const Cluster* c, const int* lengths, int n) {
    Tiny* x = (Tiny*)calloc(1, sizeof *x);
    x->n = n;
    memcpy(x->lengths, lengths, sizeof(int) * (size_t)n);
    qsort(x->lengths, (size_t)n, sizeof(int), longer_first);
    for (int i = 0; i <= n; i++) x->first[i] = i;
    flexsp_cp_sizes(&x->cp_sizes, &c->setting);
    flexsp_batch(&x->batch, x->lengths, n, x->first, n, &x->cp_sizes, &x->arena);
    return x;
}

static void close_tiny(Tiny* x) {
    arena_free(&x->arena);
    free(x);
}

static double tiny_groups(Tiny* x, int enumerated) {
    return flexsp_groups(&x->cp_sizes, &x->batch, enumerated, x->counts, x->group_of, &x->arena);
}

// Time of the slowest group as the answer says, from lengths; NAN where memory or ranks are not respected.
static double tiny_answer(const Tiny* x) {
    double load[WIDEST_RANKS] = {0}, slowest = 0;
    int64_t taken[WIDEST_RANKS] = {0};
    int cp_size_of[WIDEST_RANKS], groups = 0, ranks = 0;
    for (int c = x->cp_sizes.n; c-- > 0;)
        for (int g = 0; g < x->counts[c]; g++) cp_size_of[groups++] = c, ranks += 1 << c;
    if (ranks != x->cp_sizes.ranks) return NAN;
    for (int i = 0; i < x->n; i++) {
        int g = x->group_of[i], c = cp_size_of[g];
        double s = x->lengths[i];
        load[g] += x->cp_sizes.quadratic[c] * s * s + x->cp_sizes.linear[c] * s;
        taken[g] += x->lengths[i];
        if (taken[g] > x->cp_sizes.room[c]) return NAN;
        slowest = fmax(slowest, load[g]);
    }
    return slowest;
}

typedef struct Exhaustive {
    const Tiny* x;
    int cp_size_of[8], groups;  // of the partition
    double load[8], best;
    int64_t taken[8];
} Exhaustive;

static void place_all(Exhaustive* e, int i) {
    if (i == e->x->n) {
        double slowest = 0;
        for (int g = 0; g < e->groups; g++) slowest = fmax(slowest, e->load[g]);
        e->best = fmin(e->best, slowest);
        return;
    }
    const FlexspCpSizes* d = &e->x->cp_sizes;
    double s = e->x->lengths[i];
    for (int g = 0; g < e->groups; g++) {
        int c = e->cp_size_of[g], like_before = 0;
        double load = e->load[g], ms = d->quadratic[c] * s * s + d->linear[c] * s;
        for (int h = 0; h < g; h++) like_before |= e->cp_size_of[h] == c && e->load[h] == load && load == 0;
        if (like_before || load + ms >= e->best || e->taken[g] + e->x->lengths[i] > d->room[c]) continue;
        e->load[g] += ms, e->taken[g] += e->x->lengths[i];
        place_all(e, i + 1);
        e->load[g] = load, e->taken[g] -= e->x->lengths[i];
    }
}

static void place_partition(void* of, const int* counts) {
    Exhaustive* e = (Exhaustive*)of;
    e->groups = 0;
    for (int c = e->x->cp_sizes.n; c-- > 0;)
        for (int g = 0; g < counts[c]; g++) e->cp_size_of[e->groups++] = c;
    place_all(e, 0);
}

// Longest first on equal groups is within 4/3 of the best (Graham 1969). For unlike widths no bound is known: the
// limits are what was seen, 1.004 mean and 1.16 worst, and a margin.
CLAIM(groups_are_close_to_the_best_of_all_assignments) {
    static const int ranks[] = {2, 3, 4, 5, 6, 7, 8, 8, 8};
    double sum = 0, worst = 1;
    int cases = 0, impossible = 0;
    FOR_SEEDS(seed, 0, 400) {
        Cluster* c = open_cluster(seed % 2 ? "a100-7b" : "h200-8b", ranks[seed % 9], seed % 4 ? 8 : 4);
        int lengths[8], n = pick(seed, 0, 1, 8), limit = pick(seed, 1, 2000, 40000);
        draw_lengths(lengths, n, seed % 3 ? "prolong" : "wikipedia", limit, 3, (int64_t)seed);
        if (seed % 5 == 0) limit_cluster(c, limit / 4, 64, CP_CHOICE_AUTO);
        Tiny* x = open_tiny(c, lengths, n);
        Exhaustive e = {.x = x, .best = INFINITY};
        flexsp_partitions(x->cp_sizes.ranks, x->cp_sizes.n, place_partition, &e);
        double found = tiny_groups(x, FLEXSP_ENUMERATED);
        // A search may miss the only way to fit, but not where everything fits the widest group.
        if (found == INFINITY) {
            int64_t tokens = 0;
            for (int i = 0; i < n; i++) tokens += lengths[i];
            CHECK(e.best == INFINITY || tokens > x->cp_sizes.room[x->cp_sizes.n - 1]);
            impossible++;
        } else {
            CHECK_CLOSE(tiny_answer(x), found, 1e-9 * found);
            CHECK(found >= e.best * (1 - 1e-12));
            sum += found / e.best;
            worst = fmax(worst, found / e.best);
            cases++;
        }
        close_tiny(x);
        close_cluster(c);
    }
    printf("    %d cases, %d impossible: slowest group over the best of all assignments %.4f mean, %.4f worst\n", cases,
           impossible, sum / cases, worst);
    CHECK(cases > 300 && impossible > 0);
    CHECK(sum / cases < 1.02 && worst < 4.0 / 3);
}

// Seen: 1.002 mean, 1.014 worst.
CLAIM(the_beam_comes_close_to_all_partitions) {
    double sum = 0, worst = 1;
    int cases = 0;
    for (uint64_t seed = 0; seed < 24; seed++) {
        Cluster* c = open_cluster(seed % 2 ? "flexsp-7b" : "h200-8b", seed % 8 ? 64 : 128, 8);
        int lengths[400], n = pick(seed, 0, 30, 400);
        draw_lengths(lengths, n, seed % 3 ? "prolong" : "wikipedia", 100000, 5, (int64_t)seed);
        Tiny* x = open_tiny(c, lengths, n);
        double all = tiny_groups(x, FLEXSP_ENUMERATED), beam = tiny_groups(x, 1);
        CHECK((beam == INFINITY) == (all == INFINITY));
        if (all < INFINITY) {
            CHECK(beam >= all);
            CHECK_CLOSE(tiny_answer(x), beam, 1e-9 * beam);
            sum += beam / all, worst = fmax(worst, beam / all), cases++;
        }
        close_tiny(x);
        close_cluster(c);
    }
    printf("    %d rounds: beam over all partitions %.4f mean, %.4f worst\n", cases, sum / cases, worst);
    CHECK(cases >= 15);
    CHECK(sum / cases < 1.01 && worst < 1.04);
}

// ---- whole plans

// M_min to M_min + 4 rounds, each planned to its end. Without buckets, so that what is searched is what counts.
CLAIM(the_plan_is_the_best_of_its_trials) {
    static int sorted[300];
    int later = 0;
    FOR_SEEDS(seed, 0, 16) {
        Cluster* c = open_cluster(seed % 2 ? "flexsp-7b" : "a100-7b", seed % 4 ? 16 : 32, 8);
        int lengths[300], n = pick(seed, 0, 20, 300), first[64], best_m = 0;
        double best = INFINITY;
        draw_lengths(lengths, n, seed % 3 ? "prolong" : "wikipedia", 60000, 9, (int64_t)seed);
        sort_descending(sorted, lengths, n);
        fix_cost(c, 10.0 * (double)(seed % 5));
        int least = flexsp_least_chunks(sorted, n, (int64_t)c->setting.limits.ranks * c->setting.limits.capacity);
        for (int m = least; m < least + 5; m++) {
            double ms = m * c->groups[1].micro_batch;
            flexsp_chunks(first, sorted, n, m);
            for (int i = 0; i < m; i++) {
                Tiny* x = open_tiny(c, sorted + first[i], first[i + 1] - first[i]);
                ms += tiny_groups(x, FLEXSP_ENUMERATED);
                close_tiny(x);
            }
            if (ms < best) best = ms, best_m = m;
        }
        double ms;
        CHECK(flexsp_plan(&c->plan, &ms, 1, lengths, n, &c->setting, 1, &c->arena, NULL) == 0);
        CHECK(c->plan.n_rounds == best_m);
        CHECK_CLOSE(ms, best, 1e-9 * best);
        // Communication of published machines is linear: the planner and the timeline mean the same.
        prove_plan(c, lengths, n);
        CHECK_CLOSE(plan_ms(&c->plan, lengths, &c->setting), ms, 1e-9 * ms);
        later += best_m > least;
        close_cluster(c);
    }
    CHECK(later >= 3);
}

CLAIM(wikipedia_plans_look_like_the_papers) {
    Cluster* c = open_cluster("flexsp-7b", 64, 8);
    int lengths[512];
    double gain = 0;
    int several = 0;
    for (int batch = 0; batch < 10; batch++) {
        draw_lengths(lengths, 512, "wikipedia", 196608, 1, batch);
        double ms;
        CHECK(flexsp_plan(&c->plan, &ms, 1, lengths, 512, &c->setting, 0, &c->arena, NULL) == 0);
        prove_plan(c, lengths, 512);
        int widest[WIDEST_BATCH] = {0}, kinds = 0, seen = 0;
        for (int i = 0; i < c->plan.n_micro_batches; i++) {
            const MicroBatch* mb = &c->plan.micro_batches[i];
            widest[mb->round] = MAX(widest[mb->round], mb->cp_size);
            if (mb->round == 0 && !(seen & mb->cp_size)) seen |= mb->cp_size, kinds++;
        }
        // Sorted documents: the first round has the long ones, and nearly always groups of several widths.
        several += kinds >= 2;
        CHECK(c->plan.n_rounds <= 4);
        for (int m = 1; m < c->plan.n_rounds; m++) CHECK(widest[m] <= widest[0] && widest[m] <= 8);
        // Full micro-batches of 64 ranks: the static system of the paper.
        int64_t tokens = 0;
        for (int i = 0; i < 512; i++) tokens += lengths[i];
        double micro_batches = (double)CEIL_DIV(tokens, 64 * (int64_t)c->setting.limits.capacity);
        double s2 = 0;
        for (int i = 0; i < 512; i++) s2 += (double)lengths[i] * lengths[i];
        double fixed = group_ms(&c->groups[64], s2, (double)tokens) + micro_batches * c->groups[64].micro_batch;
        CHECK(ms < fixed);
        gain += fixed / ms / 10;
    }
    printf("    mean gain over one cp size of 64, in the cost model: %.2f\n", gain);
    CHECK(several >= 8);
    CHECK_CLOSE(gain, 1.83, 0.02);  // derived, of these batches; 1.79 by our replay of the released list of lengths
    close_cluster(c);
}

int main(void) { return test_main(); }
