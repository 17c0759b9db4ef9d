// test_megatron.c - the claims of plan/published/megatron.c: every choice of its schedulers is found again in the plan.
#include "plan/published/published.h"

#include "dev/balanced.h"

#include "test/clusters.h"

// The least power of two that holds document s, 0 for none.
static int least_cp_size(const Cluster* c, int s) {
    for (int d = 1; d <= c->setting.limits.ranks; d *= 2)
        if (c->groups[d].ulysses_size > 0 && group_holds(&c->groups[d], s)) return d;
    return 0;
}

static int dynamic(Cluster* c, const int* lengths, int n) {
    return planner_megatron.plan(&c->setting, &c->plan, 3, lengths, n, &c->arena, c->err);
}

static int micro_batch_is(const Cluster* c, int i, int first_rank, int cp_size, int round, int n_docs) {
    const MicroBatch* mb = &c->plan.micro_batches[i];
    return i < c->plan.n_micro_batches && mb->first_rank == first_rank && mb->cp_size == cp_size &&
           mb->round == round && mb->n_docs == n_docs;
}

// ---- by hand: 4 ranks of 1000 tokens

static Cluster* four_ranks(void) {
    Cluster* c = open_cluster("a100-7b", 4, 4);
    limit_cluster(c, 1000, 4, CP_CHOICE_AUTO);
    return c;
}

CLAIM(ranks_left_over_widen_the_narrowest_groups) {
    Cluster* c = open_cluster("a100-7b", 16, 8);
    const int lengths[] = {100, 100, 100, 100, 100};
    CHECK(dynamic(c, lengths, 1) == 0);
    CHECK(c->plan.n_micro_batches == 1 && micro_batch_is(c, 0, 0, 16, 0, 1));
    CHECK(dynamic(c, lengths, 3) == 0);
    CHECK(c->plan.n_micro_batches == 3 && micro_batch_is(c, 0, 0, 8, 0, 1) && micro_batch_is(c, 1, 8, 4, 0, 1) &&
          micro_batch_is(c, 2, 12, 4, 0, 1));
    CHECK(dynamic(c, lengths, 5) == 0);
    CHECK(c->plan.n_micro_batches == 5 && micro_batch_is(c, 0, 0, 4, 0, 1) && micro_batch_is(c, 2, 8, 4, 0, 1));
    CHECK(micro_batch_is(c, 3, 12, 2, 0, 1) && micro_batch_is(c, 4, 14, 2, 0, 1));
    close_cluster(c);
}

CLAIM(a_balanced_round_ends_once_cp_sizes_fall) {
    Cluster* c = four_ranks();
    // 1400 on 2 ranks: 980000 a rank. 990 on one: 980100. All ranks have work, loads are within 5 %: the short ones
    // wait, though there is room for them.
    const int lengths[] = {1400, 990, 990, 5, 5};
    CHECK(dynamic(c, lengths, 5) == 0);
    CHECK(micro_batch_is(c, 0, 0, 2, 0, 1) && micro_batch_is(c, 1, 2, 1, 0, 1) && micro_batch_is(c, 2, 3, 1, 0, 1));
    CHECK(micro_batch_is(c, 3, 0, 2, 1, 1) && micro_batch_is(c, 4, 2, 2, 1, 1) && c->plan.n_micro_batches == 5);
    // Beyond 5 % it goes on, to the least loaded.
    const int uneven[] = {1400, 990, 900, 5, 5};
    CHECK(dynamic(c, uneven, 5) == 0);
    CHECK(c->plan.n_micro_batches == 3 && micro_batch_is(c, 2, 3, 1, 0, 3));
    // Without a fall of cp sizes loads that are even end nothing.
    const int alike[] = {400, 400, 400, 400, 300, 300, 300, 300};
    CHECK(dynamic(c, alike, 8) == 0);
    CHECK(c->plan.n_micro_batches == 4 && micro_batch_is(c, 3, 3, 1, 0, 2));
    close_cluster(c);
}

// ---- any batch

typedef struct Replay {
    const Cluster* c;
    const int* lengths;
    int first, end;  // micro-batches of the round
    double load[WIDEST_RANKS];
    int64_t taken[WIDEST_RANKS];
    int cp_size[WIDEST_RANKS], n_docs[WIDEST_RANKS], free_ranks;
} Replay;

static int64_t taken_by(const Replay* r, int k, int s) {
    int cp_size = r->cp_size[k];
    return r->taken[k] + widest_ring_rank(s, cp_size / r->c->groups[cp_size].ulysses_size);
}

static int room_for(const Replay* r, int k, int s) { return taken_by(r, k, s) <= r->c->groups[r->cp_size[k]].room; }

// The longest document of the round that was not replayed yet, of equal ones the first: its micro-batch, counted from
// `first`, -1 for none; and its length.
static int next_document(const Replay* r, int* s) {
    int best = -1, best_doc = 0;
    for (int k = 0; k < r->end - r->first; k++) {
        const MicroBatch* mb = &r->c->plan.micro_batches[r->first + k];
        if (r->n_docs[k] == mb->n_docs) continue;
        int doc = r->c->plan.docs[mb->first_doc + r->n_docs[k]], length = r->lengths[doc];
        if (best < 0 || length > *s || (length == *s && doc < best_doc)) best = k, best_doc = doc, *s = length;
    }
    return best;
}

static int is_balanced(const Replay* r) {
    double least = r->free_ranks > 0 ? 0 : INFINITY, most = 0;
    for (int k = 0; k < r->end - r->first; k++) {
        least = fmin(least, r->load[k]);
        most = fmax(most, r->load[k]);
    }
    return most - least <= 0.05 * most;
}

// Takes a round document by document: a new group while there are ranks for it, else the least loaded with room;
// and none follows where cp sizes have fallen and loads are balanced.
static void replay(Replay* r) {
    int n = r->end - r->first, s = 0, widest = 0, over = 0;
    for (int k = 0; k < n; k++) r->load[k] = 0, r->taken[k] = 0, r->n_docs[k] = 0, r->cp_size[k] = 0;
    r->free_ranks = r->c->setting.limits.ranks;
    for (int k = next_document(r, &s); k >= 0; k = next_document(r, &s)) {
        int cp_size = least_cp_size(r->c, s);
        CHECK(!over);
        if (r->n_docs[k] == 0) {
            CHECK(r->free_ranks >= cp_size);
            r->free_ranks -= cp_size;
            r->cp_size[k] = cp_size;
        } else {
            CHECK(r->cp_size[k] == cp_size && r->free_ranks < cp_size);
            for (int other = 0; other < n; other++)
                if (r->cp_size[other] == cp_size && room_for(r, other, s)) CHECK(r->load[k] <= r->load[other]);
        }
        CHECK(room_for(r, k, s));
        r->taken[k] = taken_by(r, k, s);
        r->load[k] += (double)s * s / cp_size;
        r->n_docs[k]++;
        widest = MAX(widest, cp_size);
        over = cp_size < widest && is_balanced(r);
    }
}

// The longest document that comes after the round finds neither ranks nor room, or loads are balanced.
static int has_reason_to_end(const Replay* r) {
    int s = 0, roomy = 0;
    for (int i = r->end; i < r->c->plan.n_micro_batches; i++)
        for (int k = 0; k < r->c->plan.micro_batches[i].n_docs; k++)
            s = MAX(s, r->lengths[r->c->plan.docs[r->c->plan.micro_batches[i].first_doc + k]]);
    int cp_size = least_cp_size(r->c, s);
    for (int k = 0; k < r->end - r->first; k++) roomy |= r->cp_size[k] == cp_size && room_for(r, k, s);
    return is_balanced(r) || (!roomy && r->free_ranks < cp_size);
}

CLAIM(every_choice_is_the_schedulers) {
    static const char* const sources[] = {"wikipedia", "prolong", "github", "mock", "just-above", "one-long", "equal"};
    static const int ranks[] = {8, 64, 16, 12, 1, 5};
    static Replay r;
    int lengths[400], rounds = 0, widened = 0;
    FOR_SEEDS(seed, 0, 84) {
        Cluster* c = open_cluster(seed % 2 ? "a100-7b" : "h200-8b", ranks[seed / 7 % 6], 8);
        int n = pick(seed, 0, 1, 400), N = c->setting.limits.ranks, widest = 1;
        while (2 * widest <= N) widest *= 2;
        draw_lengths(lengths, n, sources[seed % 7], (int)MIN(196608, widest * c->setting.limits.capacity), 6, 0);
        CHECK(dynamic(c, lengths, n) == 0);
        prove_plan(c, lengths, n);
        r.c = c, r.lengths = lengths;
        for (r.first = 0; r.first < c->plan.n_micro_batches; r.first = r.end) {
            int sum = 0, needed = 0;
            for (r.end = r.first; r.end < c->plan.n_micro_batches; r.end++) {
                if (c->plan.micro_batches[r.end].round != c->plan.micro_batches[r.first].round) break;
                sum += c->plan.micro_batches[r.end].cp_size;
            }
            replay(&r);
            for (int k = 0; k < r.end - r.first; k++) needed += r.cp_size[k];
            for (int k = 0; k < r.end - r.first; k++)
                CHECK(c->plan.micro_batches[r.first + k].cp_size >= r.cp_size[k] &&
                      (r.free_ranks > 0 || c->plan.micro_batches[r.first + k].cp_size == r.cp_size[k]));
            CHECK(needed == N - r.free_ranks);
            if (N == widest) CHECK(sum == N);
            if (r.end < c->plan.n_micro_batches) CHECK(has_reason_to_end(&r));
            rounds++, widened += r.free_ranks > 0;
        }
        close_cluster(c);
    }
    CHECK(rounds > 200 && widened > 20);
}

// ---- balanced packing

static int balanced_rows(Cluster* c, const int* lengths, int n, int cp_size) {
    return megatron_balanced(&c->plan, 3, lengths, n, &c->setting, cp_size, &c->arena, c->err);
}

CLAIM(rows_fill_in_order_and_are_as_many_for_each_replica) {
    Cluster* c = four_ranks();
    // Cp size 2, 2000 tokens a micro-batch: {1500, 500}, {1}, {2000}, {700, 600, 500}. Four, two for each replica.
    const int lengths[] = {1500, 500, 1, 2000, 700, 600, 500};
    CHECK(balanced_rows(c, lengths, 7, 2) == 0);
    CHECK(c->plan.n_micro_batches == 4);
    CHECK(micro_batch_is(c, 0, 0, 2, 0, 2) && micro_batch_is(c, 1, 2, 2, 0, 1) && micro_batch_is(c, 2, 0, 2, 1, 1));
    CHECK(micro_batch_is(c, 3, 2, 2, 1, 3));
    CHECK(c->plan.has_barriers == 0);
    // Cp size 1: {500, 1}, {700}, {600}, {500}, as many as replicas.
    const int short_ones[] = {500, 1, 700, 600, 500};
    CHECK(balanced_rows(c, short_ones, 5, 1) == 0);
    CHECK(c->plan.n_micro_batches == 4 && micro_batch_is(c, 3, 3, 1, 0, 1));
    // {600, 300, 100}, {900}: two for four replicas, so 100 and 300 leave.
    const int few[] = {600, 300, 100, 900};
    CHECK(balanced_rows(c, few, 4, 1) == 0);
    CHECK(c->plan.n_micro_batches == 4 && micro_batch_is(c, 0, 0, 1, 0, 1) && micro_batch_is(c, 1, 1, 1, 0, 1));
    CHECK(c->plan.docs[c->plan.micro_batches[2].first_doc] == 2 &&
          c->plan.docs[c->plan.micro_batches[3].first_doc] == 1);
    close_cluster(c);
}

CLAIM(balanced_plans_hold_at_every_cp_size) {
    static const char* const sources[] = {"wikipedia", "prolong", "mock", "github", "one-long"};
    int lengths[400], planned = 0, refused = 0;
    FOR_SEEDS(seed, 0, 300) {
        Cluster* c = open_cluster(seed % 2 ? "a100-7b" : "h200-8b", pick(seed, 0, 1, 64), pick(seed, 1, 1, 8));
        int n = pick(seed, 2, 0, 400), N = c->setting.limits.ranks,
            cp_size = pick(seed, 3, 1, seed % 3 ? N : MIN(N, 4)), longest = 0;
        draw_lengths(lengths, n, sources[seed % 5], 50000, 6, (int64_t)seed);
        for (int i = 0; i < n; i++) longest = MAX(longest, lengths[i]);
        int fits = n == 0 || group_holds(&c->groups[cp_size], longest);
        CHECK(balanced_rows(c, lengths, n, cp_size) == (fits ? 0 : -1));
        int replicas = N / cp_size, loose = 0;
        if (fits) {
            CHECK(plan_check(&c->plan, lengths, n, &c->setting.limits, &c->arena, c->err) == 0);
            for (int i = 0; i < c->plan.n_micro_batches; i++) {
                const MicroBatch* mb = &c->plan.micro_batches[i];
                CHECK(mb->cp_size == cp_size && mb->first_rank == i % replicas * cp_size);
                loose |= mb->n_docs > 1;
            }
            // Only micro-batches of one document each may come to another number.
            CHECK(c->plan.n_micro_batches % replicas == 0 || !loose);
            planned++;
        } else refused++;
        close_cluster(c);
    }
    CHECK(planned > 100 && refused > 30);
}

int main(void) { return test_main(); }
