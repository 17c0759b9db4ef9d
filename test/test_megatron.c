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

// ---- by hand

static int balanced_rows(Cluster* c, const int* lengths, int n, int cp_size) {
    return megatron_balanced(&c->plan, 3, lengths, n, &c->setting, cp_size, &c->arena, c->err);
}

// Ranks of 1000 tokens; balanced packing at a cp size, 0: dynamic. Then documents, and micro-batches in their order.
// clang-format off
static const struct {
    const char* claim;
    int ranks, cp_size, lengths[9];
    struct {
        int first_rank, cp_size, round, tokens;
    } micro_batches[6];
} by_hand[] = {
    {"one_document_takes_all_ranks", 16, 0, {100}, {{0, 16, 0, 100}}},
    {"ranks_left_over_widen_the_narrowest_of_three_groups", 16, 0, {100, 100, 100},
     {{0, 8, 0, 100}, {8, 4, 0, 100}, {12, 4, 0, 100}}},
    {"ranks_left_over_widen_the_narrowest_of_five_groups", 16, 0, {100, 100, 100, 100, 100},
     {{0, 4, 0, 100}, {4, 4, 0, 100}, {8, 4, 0, 100}, {12, 2, 0, 100}, {14, 2, 0, 100}}},
    // 1400 on 2 ranks: 980000 a rank. 990 on one: 980100. All ranks have work, loads are within 5 %: the short ones
    // wait, though there is room for them.
    {"a_balanced_round_ends_once_cp_sizes_fall", 4, 0, {1400, 990, 990, 5, 5},
     {{0, 2, 0, 1400}, {2, 1, 0, 990}, {3, 1, 0, 990}, {0, 2, 1, 5}, {2, 2, 1, 5}}},
    {"beyond_five_percent_a_round_goes_on_to_the_least_loaded", 4, 0, {1400, 990, 900, 5, 5},
     {{0, 2, 0, 1400}, {2, 1, 0, 990}, {3, 1, 0, 910}}},
    {"without_a_fall_of_cp_sizes_even_loads_end_nothing", 4, 0, {400, 400, 400, 400, 300, 300, 300, 300},
     {{0, 1, 0, 700}, {1, 1, 0, 700}, {2, 1, 0, 700}, {3, 1, 0, 700}}},
    // 2000 tokens a micro-batch: {1500, 500}, {1}, {2000}, {700, 600, 500}. Four, two for each replica.
    {"rows_fill_in_order_and_are_as_many_for_each_replica", 4, 2, {1500, 500, 1, 2000, 700, 600, 500},
     {{0, 2, 0, 2000}, {2, 2, 0, 1}, {0, 2, 1, 2000}, {2, 2, 1, 1800}}},
    // {500, 1}, {700}, {600}, {500}, as many as replicas.
    {"rows_of_one_rank_fill_in_order", 4, 1, {500, 1, 700, 600, 500},
     {{0, 1, 0, 501}, {1, 1, 0, 700}, {2, 1, 0, 600}, {3, 1, 0, 500}}},
    // {600, 300, 100}, {900}: two for four replicas, so 100 and 300 leave.
    {"full_rows_give_documents_to_replicas_without_any", 4, 1, {600, 300, 100, 900},
     {{0, 1, 0, 600}, {1, 1, 0, 900}, {2, 1, 0, 100}, {3, 1, 0, 300}}},
};
// clang-format on

static void check_by_hand(int row) {
    Cluster* c = open_cluster("a100-7b", by_hand[row].ranks, by_hand[row].ranks);
    const int *lengths = by_hand[row].lengths, cp_size = by_hand[row].cp_size;
    int n = 0;
    while (lengths[n]) n++;
    limit_cluster(c, 1000, 4, CP_CHOICE_AUTO);
    CHECK((cp_size ? balanced_rows(c, lengths, n, cp_size) : dynamic(c, lengths, n)) == 0);
    CHECK(c->plan.n_micro_batches <= 5 && c->plan.has_barriers == !cp_size);
    CHECK(by_hand[row].micro_batches[MIN(c->plan.n_micro_batches, 5)].cp_size == 0);
    for (int i = 0; i < MIN(c->plan.n_micro_batches, 5); i++) {
        const MicroBatch* mb = &c->plan.micro_batches[i];
        const int tokens = (int)micro_batch_sums(&c->plan, mb, lengths).tokens;
        const int found[] = {mb->first_rank, mb->cp_size, mb->round, tokens};
        CHECK(!memcmp(found, &by_hand[row].micro_batches[i], sizeof found));
    }
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

int main(void) {
    for (int i = 0; i < COUNT(by_hand); i++) RUN_AS(by_hand[i].claim, check_by_hand(i));
    return test_main();
}
