// test_plan_check.c - the claims of plan/value/plan.h about what a plan must respect: each rule refuses the plan that
// breaks it; rounds; lists of micro-batches that come to an end.
#include "test/plans.h"

// ---- the proof of a plan refuses what is wrong

// A valid step with one change, for the claim that follows.
#define CHANGED(valid, words, ...)                                                        \
    do {                                                                                  \
        Step step = valid_step(), *s = &step;                                             \
        CHECK(step_check(s) == 0);                                                        \
        __VA_ARGS__;                                                                      \
        int fine = (step_check(s) == 0) == (valid) && ((valid) || strstr(s->err, words)); \
        if (!fine) printf("    %s: %s\n", #__VA_ARGS__, s->err);                          \
        CHECK(fine);                                                                      \
        free_step(s);                                                                     \
    } while (0)
#define REFUSED(words, ...) CHANGED(0, words, __VA_ARGS__)
#define STILL_VALID(...) CHANGED(1, "", __VA_ARGS__)
#define MB s->plan.micro_batches

CLAIM(a_plan_has_every_document_once) {
    REFUSED("document 0 is there twice", s->plan.docs[1] = 0);
    REFUSED("document 1 is there twice", MB[1].first_doc = 1);
    REFUSED("document 3 is in no micro-batch", MB[1].n_docs = 1);
    REFUSED("document 7 is in no micro-batch", s->plan.n_micro_batches--);
    REFUSED("micro-batch 2 has document 8, of 8", s->plan.docs[5] = 8);
    REFUSED("micro-batch 2 has document -1, of 8", s->plan.docs[5] = -1);
    REFUSED("micro-batch 4 has 2 documents", MB[4].n_docs = 2);
    REFUSED("micro-batch 0 has 2 documents from number -1 on", MB[0].first_doc = -1);
    REFUSED("micro-batch 4 has 2147483647 documents", MB[4].n_docs = 0x7fffffff);
    REFUSED("micro-batch 4 has 0 documents", MB[4].n_docs = 0);
    REFUSED("7 documents", s->plan.n_docs = 7);
    REFUSED("9 micro-batches", s->plan.n_micro_batches = 9);
    REFUSED("3 ranks", s->plan.ranks = 3);
    REFUSED("document 3", s->lengths[3] = 0);
}

CLAIM(a_plan_stays_on_its_ranks) {
    REFUSED("micro-batch 4 is on 1 ranks from rank 4, beyond", MB[4].first_rank = 4);
    REFUSED("micro-batch 0 is on 1 ranks from rank -1, beyond", MB[0].first_rank = -1);
    REFUSED("micro-batch 2 is on 2 ranks from rank 3, beyond", MB[2].first_rank = 3);
    REFUSED("micro-batch 0 is on 0 ranks", MB[0].cp_size = 0);
    REFUSED("micro-batch 2 is on 2147483647 ranks", MB[2].cp_size = 0x7fffffff);
}

CLAIM(heads_are_shared_by_ranks_that_have_some) {
    REFUSED("does not divide", MB[3].ulysses_size = 3);
    REFUSED("does not divide", MB[3].ulysses_size = 0);
    REFUSED("does not divide", MB[0].ulysses_size = 2);
    REFUSED("2 ranks share 1 key/value heads", s->limits.kv_heads = 1, s->limits.capacity = 4000);
}

// 3 heads on 2 ranks: 2 of them on one rank, so of 2000 tokens only 1500 * 2 are 1000 * 3 pairs. 1500 tokens on a ring
// of 2: borders 0 375 750 1125 1500, so 750 at both places; 150 each of the other document.
CLAIM(no_rank_has_more_than_its_capacity) {
    REFUSED("micro-batch 0: with it 1001 tokens in a pass of rank 0", s->lengths[1]++);
    REFUSED("micro-batch 1: with it attention of 4002 pairs", s->lengths[2]++);
    REFUSED("micro-batch 1: with it attention of 4000 pairs of token and key/value head", s->limits.kv_heads = 3);
    STILL_VALID(s->limits.kv_heads = 3, s->lengths[2] = 700, s->lengths[6] = 2900);
    REFUSED("micro-batch 1: with it attention of 3002 pairs", s->limits.kv_heads = 3, s->lengths[2] = 701,
            s->lengths[6] = 2900);
    STILL_VALID(s->limits.capacity = 900, s->lengths[0] = 800, s->lengths[2] = 1000);
    REFUSED("micro-batch 2: with it 900 tokens in a pass of rank 2", s->limits.capacity = 899, s->lengths[0] = 799,
            s->lengths[2] = 998);
    REFUSED("rank 2: 3 documents in rings", s->limits.max_ring_docs = 2);
}

// Rank 2 has 1000 tokens of micro-batch 1 and 900 of micro-batch 2.
CLAIM(passes_hold_what_a_rank_can_and_none_is_wasted) {
    REFUSED("micro-batch 2: with it 1900 tokens in a pass of rank 2", MB[2].round = 0);
    STILL_VALID(MB[2].round = 0, s->limits.capacity = 1900, MB[3].round = 1, MB[4].round = 2, s->plan.n_rounds = 3);
    REFUSED("no micro-batch is in round 3", MB[4].round = s->plan.n_rounds++);
    STILL_VALID(MB[0].round = 1);  // its rank waits, or has two in a pass
    REFUSED("micro-batch 4 is in round 0, but rank 3 runs one before it in round 2", MB[4].round = 0);
    REFUSED("micro-batch 0 is in round -1", MB[0].round = -1);
    REFUSED("5 rounds", s->plan.n_rounds++);
    REFUSED("3 rounds", s->plan.n_rounds--);
}

CLAIM(a_pass_shares_no_more_micro_batches_than_can_be_under_way) {
    for (int n = MOST_SHARED; n <= MOST_SHARED + 1; n++) {
        int lengths[MOST_SHARED + 1];
        MicroBatch micro_batches[MOST_SHARED + 1];
        for (int i = 0; i < n; i++) lengths[i] = 2, micro_batches[i] = (MicroBatch){0, 2, 2, i, 1, 0};
        Step step = step_by_hand(2, 2, 1000, n, lengths, n, micro_batches);
        step.plan.n_rounds = 1;
        CHECK(step_check(&step) == (n > MOST_SHARED ? -1 : 0));
        CHECK(n <= MOST_SHARED || strstr(step.err, "shares 33 in a pass, at most 32"));
        free_step(&step);
    }
}

// ---- placements

CLAIM(placements_give_everything_to_somebody) {
    STILL_VALID(step_place(s, 0));
    STILL_VALID(step_place(s, 1).head_border[1] = 0, s->limits.capacity = 2000);
    REFUSED("micro-batch 1: borders of heads do not rise from 0 to 4", step_place(s, 1).head_border[1] = 5);
    REFUSED("micro-batch 1: borders of heads do not rise from 0 to 4", step_place(s, 1).head_border[2] = 3);
    REFUSED("micro-batch 1: with it attention of 8000 pairs", step_place(s, 1).head_border[1] = 4);
    REFUSED("micro-batch 1: with it 1001 tokens in a pass of rank 2", step_place(s, 1).token_border[1] = 999);
    REFUSED("micro-batch 1: borders of tokens do not rise from 0 to the 2000 of ring rank 0",
            step_place(s, 1).token_border[0] = 1);
    REFUSED("micro-batch 2: chunk 3 is ring rank 2's, of 2", step_place(s, 2).owner[3] = 2);
    REFUSED("micro-batch 2: borders of tokens do not rise from 0 to the 450", step_place(s, 2).owner[3] = 1);
    REFUSED("micro-batch 2: borders of chunks do not rise from 0 to the 1500 tokens",
            step_place(s, 2).chunk_border[1] = 751);
    REFUSED("micro-batch 2: borders of chunks do not rise from 0 to the 1500 tokens",
            step_place(s, 2).chunk_border[4] = 1501);
}

// ---- rounds

// The longest chain of micro-batches that share ranks and end in micro-batch i, without micro-batch i.
static int chain_before(const Plan* plan, int i) {
    int longest = 0;
    for (int j = 0; j < i; j++) {
        const MicroBatch *x = &plan->micro_batches[j], *y = &plan->micro_batches[i];
        int apart = x->first_rank + x->cp_size <= y->first_rank || y->first_rank + y->cp_size <= x->first_rank;
        if (!apart) longest = MAX(longest, x->round + 1);
    }
    return longest;
}

// Joined as limits allow, or as is drawn: every plan passes plan_check, and no rank has more passes than before.
CLAIM(rounds_are_the_longest_chains_and_micro_batches_join_passes_where_limits_allow) {
    int joined = 0, planned = 0;
    for (uint64_t seed = BEFORE_FIRST; next_step(&seed, 3000);) {
        uint64_t random = seed;
        int alone = 0;
        if (step_random(&step, seed) == 0) {
            Plan* plan = &step.plan;
            step_rounds(&step);  // in place of those that were drawn
            for (int i = 0; i < plan->n_micro_batches; i++) {
                CHECK(plan->micro_batches[i].round == chain_before(plan, i));
                alone = MAX(alone, plan->micro_batches[i].round + 1);
            }
            CHECK(plan->n_rounds == alone);
            CHECK(plan_join_rounds(plan, step.lengths, &step.limits, seed % 2 ? &random : NULL, &step.arena,
                                   step.err) == 0);
            CHECK(step_check(&step) == 0 && plan->n_rounds <= alone);
            planned++, joined += plan->n_rounds < alone;
        }
    }
    CHECK(planned > 2000 && joined > 100);
}

// ---- schedules

enum { MOST_MICRO_BATCHES = 12, LIST = MOST_MICRO_BATCHES * MOST_RANKS };

typedef struct Lists {
    MicroBatch micro_batches[MOST_MICRO_BATCHES];
    int n_micro_batches, ranks, list[LIST], first[MOST_RANKS + 1];
} Lists;

// Every rank lists its micro-batches in the one order.
static Lists random_lists(uint64_t seed) {
    Lists x = {.n_micro_batches = pick(seed, 0, 1, MOST_MICRO_BATCHES), .ranks = pick(seed, 1, 1, 8)};
    int n = 0;
    for (int i = 0; i < x.n_micro_batches; i++) {
        int cp_size = pick(seed, 10 + (uint64_t)i, 1, MIN(x.ranks, 4));
        x.micro_batches[i] = (MicroBatch){pick(seed, 30 + (uint64_t)i, 0, x.ranks - cp_size), cp_size, 1, i, 1, 0};
    }
    for (int r = 0; r < x.ranks; r++) {
        x.first[r] = n;
        for (int i = 0; i < x.n_micro_batches; i++)
            if (r >= x.micro_batches[i].first_rank && r < x.micro_batches[i].first_rank + x.micro_batches[i].cp_size)
                x.list[n++] = i;
    }
    x.first[x.ranks] = n;
    return x;
}

// Looks for any micro-batch that is next on all of its ranks, runs it, and starts over.
static int plainly_stuck(const Lists* x) {
    int at[MOST_RANKS], left = x->n_micro_batches;
    memcpy(at, x->first, sizeof(int) * (size_t)x->ranks);
    for (int i = 0; i < x->n_micro_batches; i++) {
        int ready = 1, first = x->micro_batches[i].first_rank, end = first + x->micro_batches[i].cp_size;
        for (int r = first; r < end; r++) ready &= at[r] < x->first[r + 1] && x->list[at[r]] == i;
        if (!ready) continue;
        for (int r = first; r < end; r++) at[r]++;
        left--;
        i = -1;
    }
    return left;
}

static int stuck(const Lists* x) {
    static Arena arena;
    return schedule_stuck(x->micro_batches, x->n_micro_batches, x->list, x->first, x->ranks, &arena);
}

CLAIM(lists_are_stuck_exactly_when_running_them_is) {
    int ended = 0, stopped = 0;
    for (uint64_t seed = 0; seed < 10000; seed++) {
        Lists x = random_lists(seed);
        int swaps = pick(seed, 50, 0, 3);
        for (int s = 0; s < swaps; s++) {  // on one rank each
            int r = pick(seed, 60 + (uint64_t)s, 0, x.ranks - 1), n = x.first[r + 1] - x.first[r];
            if (n < 2) continue;
            int *a = &x.list[x.first[r] + pick(seed, 70 + (uint64_t)s, 0, n - 1)], was = *a;
            int* b = &x.list[x.first[r] + pick(seed, 80 + (uint64_t)s, 0, n - 1)];
            *a = *b, *b = was;
        }
        int never = plainly_stuck(&x);
        CHECK(stuck(&x) == never && (never == 0 || swaps > 0));  // lists in one order always end
        ended += never == 0, stopped += never > 0;
    }
    CHECK(ended > 1000 && stopped > 1000);
}

CLAIM(a_micro_batch_that_a_rank_does_not_list_or_is_not_of_is_stuck) {
    static const struct {
        Lists lists;
        int stuck;
    } cases[] = {
        // rank 1 never comes; it waits at a micro-batch of rank 0, which runs; so it does, and never reaches its own;
        // nor does it run rank 0's in its place
        {{{{0, 2, 1, 0, 1, 0}, {0, 1, 1, 1, 1, 0}}, 2, 2, {0, 1}, {0, 2, 2}}, 2},
        {{{{0, 1, 1, 0, 1, 0}}, 1, 2, {0, 0}, {0, 1, 2}}, 0},
        {{{{0, 1, 1, 0, 1, 0}, {1, 1, 1, 1, 1, 0}}, 2, 2, {0, 0, 1}, {0, 1, 3}}, 1},
        {{{{0, 1, 1, 0, 1, 0}}, 1, 2, {0}, {0, 0, 1}}, 1},
    };
    for (int i = 0; i < COUNT(cases); i++) CHECK(stuck(&cases[i].lists) == cases[i].stuck);
}

int main(void) { return test_main(); }
