// test_plan_check.c - the claims of plan/plan.h about what a plan must respect: each rule refuses the plan that breaks
// it; rounds; lists of micro-batches that come to an end.
#include "test/plans.h"

// ---- the proof of a plan refuses what is wrong

typedef void Break(Step* step);

static int is_refused(Break* change, const char* words) {
    Step step = valid_step();
    int was_valid = step_check(&step) == 0;
    change(&step);
    int refused = step_check(&step) < 0 && strstr(step.err, words) != NULL;
    if (!was_valid || !refused) printf("    %s\n", step.err);
    free_step(&step);
    return was_valid && refused;
}

static int still_valid(Break* change) {
    Step step = valid_step();
    change(&step);
    int valid = step_check(&step) == 0;
    if (!valid) printf("    %s\n", step.err);
    free_step(&step);
    return valid;
}

static void twice(Step* s) { s->plan.docs[1] = 0; }
static void overlapping_docs(Step* s) { s->plan.micro_batches[1].first_doc = 1; }
static void missing(Step* s) { s->plan.micro_batches[1].n_docs = 1; }
static void micro_batch_left_out(Step* s) { s->plan.n_micro_batches--; }
static void no_document(Step* s) { s->plan.docs[5] = 8; }
static void negative_document(Step* s) { s->plan.docs[5] = -1; }
static void docs_beyond(Step* s) { s->plan.micro_batches[4].n_docs = 2; }
static void docs_before(Step* s) { s->plan.micro_batches[0].first_doc = -1; }
static void docs_far_beyond(Step* s) { s->plan.micro_batches[4].n_docs = 0x7fffffff; }
static void empty_micro_batch(Step* s) { s->plan.micro_batches[4].n_docs = 0; }
static void fewer_docs(Step* s) { s->plan.n_docs = 7; }
static void too_many_micro_batches(Step* s) { s->plan.n_micro_batches = 9; }
static void other_ranks(Step* s) { s->plan.ranks = 3; }
static void zero_length(Step* s) { s->lengths[3] = 0; }

static void a_plan_has_every_document_once(void) {
    CHECK(is_refused(twice, "document 0 is there twice"));
    CHECK(is_refused(overlapping_docs, "document 1 is there twice"));
    CHECK(is_refused(missing, "document 3 is in no micro-batch"));
    CHECK(is_refused(micro_batch_left_out, "document 7 is in no micro-batch"));
    CHECK(is_refused(no_document, "micro-batch 2 has document 8, of 8"));
    CHECK(is_refused(negative_document, "micro-batch 2 has document -1, of 8"));
    CHECK(is_refused(docs_beyond, "micro-batch 4 has 2 documents"));
    CHECK(is_refused(docs_before, "micro-batch 0 has 2 documents from number -1 on"));
    CHECK(is_refused(docs_far_beyond, "micro-batch 4 has 2147483647 documents"));
    CHECK(is_refused(empty_micro_batch, "micro-batch 4 has 0 documents"));
    CHECK(is_refused(fewer_docs, "7 documents"));
    CHECK(is_refused(too_many_micro_batches, "9 micro-batches"));
    CHECK(is_refused(other_ranks, "3 ranks"));
    CHECK(is_refused(zero_length, "document 3"));
}

static void rank_beyond(Step* s) { s->plan.micro_batches[4].first_rank = 4; }
static void rank_before(Step* s) { s->plan.micro_batches[0].first_rank = -1; }
static void group_beyond(Step* s) { s->plan.micro_batches[2].first_rank = 3; }
static void cp_size_zero(Step* s) { s->plan.micro_batches[0].cp_size = 0; }
static void cp_size_huge(Step* s) { s->plan.micro_batches[2].cp_size = 0x7fffffff; }

static void a_plan_stays_on_its_ranks(void) {
    CHECK(is_refused(rank_beyond, "micro-batch 4 is on 1 ranks from rank 4, beyond"));
    CHECK(is_refused(rank_before, "micro-batch 0 is on 1 ranks from rank -1, beyond"));
    CHECK(is_refused(group_beyond, "micro-batch 2 is on 2 ranks from rank 3, beyond"));
    CHECK(is_refused(cp_size_zero, "micro-batch 0 is on 0 ranks"));
    CHECK(is_refused(cp_size_huge, "micro-batch 2 is on 2147483647 ranks"));
}

static void ulysses_size_not_dividing(Step* s) { s->plan.micro_batches[3].ulysses_size = 3; }
static void ulysses_size_zero(Step* s) { s->plan.micro_batches[3].ulysses_size = 0; }
static void ulysses_size_too_large(Step* s) { s->plan.micro_batches[0].ulysses_size = 2; }
static void too_few_heads(Step* s) { s->limits.kv_heads = 1, s->limits.capacity = 4000; }

static void heads_are_shared_by_ranks_that_have_some(void) {
    CHECK(is_refused(ulysses_size_not_dividing, "does not divide"));
    CHECK(is_refused(ulysses_size_zero, "does not divide"));
    CHECK(is_refused(ulysses_size_too_large, "does not divide"));
    CHECK(is_refused(too_few_heads, "2 ranks share 1 key/value heads"));
}

static void local_over(Step* s) { s->lengths[1]++; }
static void heads_over(Step* s) { s->lengths[2]++; }
// 3 heads on 2 ranks: 2 of them on one rank, so of 2000 tokens only 1500 * 2 are 1000 * 3 pairs.
static void pairs_over(Step* s) { s->limits.kv_heads = 3; }
static void pairs_just_fit(Step* s) { s->limits.kv_heads = 3, s->lengths[2] = 700, s->lengths[6] = 2900; }
static void pairs_just_over(Step* s) { pairs_just_fit(s), s->lengths[2]++; }
// 1500 tokens on a ring of 2: borders 0 375 750 1125 1500, so 750 at both places; 150 each of the other document.
static void ring_just_fits(Step* s) { s->limits.capacity = 900, s->lengths[0] = 800, s->lengths[2] = 1000; }
static void ring_over(Step* s) { s->limits.capacity = 899, s->lengths[0] = 799, s->lengths[2] = 998; }
static void rings_over(Step* s) { s->limits.max_ring_docs = 2; }

static void no_rank_has_more_than_its_capacity(void) {
    CHECK(is_refused(local_over, "micro-batch 0: with it 1001 tokens in a pass of rank 0"));
    CHECK(is_refused(heads_over, "micro-batch 1: with it attention of 4002 pairs"));
    CHECK(is_refused(pairs_over, "micro-batch 1: with it attention of 4000 pairs of token and key/value head"));
    CHECK(still_valid(pairs_just_fit));
    CHECK(is_refused(pairs_just_over, "micro-batch 1: with it attention of 3002 pairs"));
    CHECK(still_valid(ring_just_fits));
    CHECK(is_refused(ring_over, "micro-batch 2: with it 900 tokens in a pass of rank 2"));
    CHECK(is_refused(rings_over, "rank 2: 3 documents in rings"));
}

static void full_pass(Step* s) { s->plan.micro_batches[2].round = 0; }
static void shared_pass(Step* s) {
    full_pass(s), s->limits.capacity = 1900;
    s->plan.micro_batches[3].round = 1, s->plan.micro_batches[4].round = 2, s->plan.n_rounds = 3;
}
static void late_round(Step* s) { s->plan.micro_batches[0].round = 1; }
static void empty_round(Step* s) { s->plan.micro_batches[4].round = s->plan.n_rounds++; }
static void out_of_order(Step* s) { s->plan.micro_batches[4].round = 0; }
static void negative_round(Step* s) { s->plan.micro_batches[0].round = -1; }
static void more_rounds(Step* s) { s->plan.n_rounds++; }
static void fewer_rounds(Step* s) { s->plan.n_rounds--; }

// Rank 2 has 1000 tokens of micro-batch 1 and 900 of micro-batch 2.
static void passes_hold_what_a_rank_can_and_none_is_wasted(void) {
    CHECK(is_refused(full_pass, "micro-batch 2: with it 1900 tokens in a pass of rank 2"));
    CHECK(still_valid(shared_pass));
    CHECK(is_refused(empty_round, "no micro-batch is in round 3"));
    CHECK(still_valid(late_round));  // its rank waits, or has two in a pass
    CHECK(is_refused(out_of_order, "micro-batch 4 is in round 0, but rank 3 runs one before it in round 2"));
    CHECK(is_refused(negative_round, "micro-batch 0 is in round -1"));
    CHECK(is_refused(more_rounds, "5 rounds"));
    CHECK(is_refused(fewer_rounds, "3 rounds"));
}

static void many_shared(Step* s) {
    for (int i = 0; i < s->n; i++) s->plan.micro_batches[i] = (MicroBatch){0, 2, 2, i, 1, 0}, s->plan.docs[i] = i;
    s->plan.n_micro_batches = s->n, s->plan.n_rounds = 1;
}

static void a_pass_shares_no_more_micro_batches_than_can_be_under_way(void) {
    for (int n = MOST_SHARED; n <= MOST_SHARED + 1; n++) {
        int lengths[MOST_SHARED + 1];
        for (int i = 0; i < n; i++) lengths[i] = 2;
        Step step = small_step(2, 2, 1000, n, lengths);
        step.plan.ranks = 2, step.plan.n_docs = n;
        many_shared(&step);
        CHECK(step_check(&step) == (n > MOST_SHARED ? -1 : 0));
        CHECK(n <= MOST_SHARED || strstr(step.err, "shares 33 in a pass, at most 32"));
        free_step(&step);
    }
}

// ---- placements

static Placement place(Step* s, int i) {
    Plan* plan = &s->plan;
    if (!plan->placed_at) {
        plan->placed_at = TAKE(&s->arena, int, plan->n_micro_batches);
        for (int k = 0; k < plan->n_micro_batches; k++) {
            plan->placed_at[k] = plan->n_placed;
            plan->n_placed += (int)placement_ints(&plan->micro_batches[k]);
        }
        plan->placed = TAKE(&s->arena, int, plan->n_placed);
        for (int k = 0; k < plan->n_micro_batches; k++) {
            Placement p = plan_placement(plan, &plan->micro_batches[k]);
            fill_usual_placement(&p, plan, &plan->micro_batches[k], s->lengths, s->limits.kv_heads);
        }
    }
    return plan_placement(plan, &plan->micro_batches[i]);
}

static void written_as_usual(Step* s) { place(s, 0); }
static void no_heads(Step* s) { place(s, 1).head_border[1] = 0, s->limits.capacity = 2000; }
static void heads_fall(Step* s) { place(s, 1).head_border[1] = 5; }
static void heads_left_out(Step* s) { place(s, 1).head_border[2] = 3; }
static void all_heads_on_one(Step* s) { place(s, 1).head_border[1] = 4; }
static void tokens_elsewhere(Step* s) { place(s, 1).token_border[1] = 999; }
static void tokens_left_out(Step* s) { place(s, 1).token_border[0] = 1; }
static void no_such_owner(Step* s) { place(s, 2).owner[3] = 2; }
static void owner_without_tokens(Step* s) { place(s, 2).owner[3] = 1; }
static void chunks_fall(Step* s) { place(s, 2).chunk_border[1] = 751; }
static void chunks_too_long(Step* s) { place(s, 2).chunk_border[4] = 1501; }

static void placements_give_everything_to_somebody(void) {
    CHECK(still_valid(written_as_usual));
    CHECK(still_valid(no_heads));
    CHECK(is_refused(heads_fall, "micro-batch 1: borders of heads do not rise from 0 to 4"));
    CHECK(is_refused(heads_left_out, "micro-batch 1: borders of heads do not rise from 0 to 4"));
    CHECK(is_refused(all_heads_on_one, "micro-batch 1: with it attention of 8000 pairs"));
    CHECK(is_refused(tokens_elsewhere, "micro-batch 1: with it 1001 tokens in a pass of rank 2"));
    CHECK(
        is_refused(tokens_left_out, "micro-batch 1: borders of tokens do not rise from 0 to the 2000 of ring rank 0"));
    CHECK(is_refused(no_such_owner, "micro-batch 2: chunk 3 is ring rank 2's, of 2"));
    CHECK(is_refused(owner_without_tokens, "micro-batch 2: borders of tokens do not rise from 0 to the 450"));
    CHECK(is_refused(chunks_fall, "micro-batch 2: borders of chunks do not rise from 0 to the 1500 tokens"));
    CHECK(is_refused(chunks_too_long, "micro-batch 2: borders of chunks do not rise from 0 to the 1500 tokens"));
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

static void rounds_are_the_longest_chains(void) {
    for (uint64_t seed = 0; seed < 3000; seed++) {
        Step step = random_step(seed);
        int rounds = 0;
        if (step_random(&step, seed) == 0) {
            step_rounds(&step);  // in place of those that were drawn
            for (int i = 0; i < step.plan.n_micro_batches; i++) {
                CHECK(step.plan.micro_batches[i].round == chain_before(&step.plan, i));
                rounds = MAX(rounds, step.plan.micro_batches[i].round + 1);
            }
            CHECK(step.plan.n_rounds == rounds);
        }
        free_step(&step);
    }
}

// All ways to give n <= 5 micro-batches rounds below `rounds` such that every rank keeps their order.
static int possible_in(const Plan* plan, int rounds) {
    int ways = 1, round[5];
    for (int i = 0; i < plan->n_micro_batches; i++) ways *= rounds;
    for (int w = 0; w < ways; w++) {
        int fine = 1;
        for (int i = 0, rest = w; i < plan->n_micro_batches; i++, rest /= rounds) round[i] = rest % rounds;
        for (int i = 0; i < plan->n_micro_batches; i++)
            for (int j = 0; j < i; j++) {
                const MicroBatch *x = &plan->micro_batches[j], *y = &plan->micro_batches[i];
                int first = MAX(x->first_rank, y->first_rank);
                int end = MIN(x->first_rank + x->cp_size, y->first_rank + y->cp_size);
                if (first < end && round[j] >= round[i]) fine = 0;
            }
        if (fine) return 1;
    }
    return 0;
}

static void rounds_are_as_few_as_the_order_allows(void) {
    int several = 0;
    for (uint64_t seed = 0; seed < 400; seed++) {
        MicroBatch micro_batches[5];
        Plan plan = {.ranks = 6, .n_micro_batches = pick(seed, 0, 1, 5), .micro_batches = micro_batches};
        Arena arena = {0};
        for (int i = 0; i < plan.n_micro_batches; i++) {
            int cp_size = pick(seed, 10 + (uint64_t)i, 1, 4);
            micro_batches[i] = (MicroBatch){pick(seed, 20 + (uint64_t)i, 0, 6 - cp_size), cp_size, 1, i, 1, -5};
        }
        CHECK(plan_set_rounds(&plan, &arena, NULL, 0) == 0);
        arena_free(&arena);
        CHECK(possible_in(&plan, plan.n_rounds) && (plan.n_rounds == 1 || !possible_in(&plan, plan.n_rounds - 1)));
        several += plan.n_rounds > 1;
    }
    CHECK(several > 200);
}

// Joined as limits allow, or as is drawn: every plan passes plan_check, and no rank has more passes than before.
static void micro_batches_join_passes_where_limits_allow(void) {
    int joined = 0, planned = 0;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        Step step = random_step(seed);
        uint64_t random = seed;
        if (step_random(&step, seed) == 0) {
            step_rounds(&step);
            int alone = step.plan.n_rounds;
            CHECK(plan_join_rounds(&step.plan, step.lengths, &step.limits, seed % 2 ? &random : NULL, &step.arena,
                                   step.err, sizeof step.err) == 0);
            CHECK(step_check(&step) == 0 && step.plan.n_rounds <= alone);
            planned++, joined += step.plan.n_rounds < alone;
        }
        free_step(&step);
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

static void lists_in_one_order_always_end(void) {
    for (uint64_t seed = 0; seed < 10000; seed++) {
        Lists x = random_lists(seed);
        CHECK(stuck(&x) == 0 && plainly_stuck(&x) == 0);
    }
}

static void lists_in_other_orders_are_stuck_exactly_when_running_them_is(void) {
    int ended = 0, stopped = 0;
    for (uint64_t seed = 0; seed < 10000; seed++) {
        Lists x = random_lists(seed);
        int swaps = pick(seed, 50, 1, 3);
        for (int s = 0; s < swaps; s++) {  // on one rank each
            int r = pick(seed, 60 + (uint64_t)s, 0, x.ranks - 1), n = x.first[r + 1] - x.first[r];
            if (n < 2) continue;
            int *a = &x.list[x.first[r] + pick(seed, 70 + (uint64_t)s, 0, n - 1)], was = *a;
            int* b = &x.list[x.first[r] + pick(seed, 80 + (uint64_t)s, 0, n - 1)];
            *a = *b, *b = was;
        }
        int never = plainly_stuck(&x);
        CHECK(stuck(&x) == never);
        ended += never == 0, stopped += never > 0;
    }
    CHECK(ended > 1000 && stopped > 1000);
}

static void a_micro_batch_that_a_rank_does_not_list_or_is_not_of_is_stuck(void) {
    Lists x = {
        .n_micro_batches = 2, .ranks = 2, .micro_batches = {{0, 2, 1, 0, 1, 0}, {0, 1, 1, 1, 1, 0}}, .list = {0, 1}};
    x.first[1] = x.first[2] = 2;
    CHECK(stuck(&x) == 2);  // rank 1 never comes
    Lists y = {
        .n_micro_batches = 1, .ranks = 2, .micro_batches = {{0, 1, 1, 0, 1, 0}}, .list = {0, 0}, .first = {0, 1, 2}};
    CHECK(stuck(&y) == 0);  // rank 1 waits at a micro-batch of rank 0, which runs
    Lists z = {
        .n_micro_batches = 2, .ranks = 2, .micro_batches = {{0, 1, 1, 0, 1, 0}, {1, 1, 1, 1, 1, 0}}, .list = {0, 0, 1}};
    z.first[1] = 1, z.first[2] = 3;
    CHECK(stuck(&z) == 1);  // and never reaches its own
    Lists w = {
        .n_micro_batches = 1, .ranks = 2, .micro_batches = {{0, 1, 1, 0, 1, 0}}, .list = {0}, .first = {0, 0, 1}};
    CHECK(stuck(&w) == 1);  // nor does rank 1 run it in rank 0's place
}

int main(void) {
    RUN(a_plan_has_every_document_once);
    RUN(a_plan_stays_on_its_ranks);
    RUN(heads_are_shared_by_ranks_that_have_some);
    RUN(no_rank_has_more_than_its_capacity);
    RUN(passes_hold_what_a_rank_can_and_none_is_wasted);
    RUN(a_pass_shares_no_more_micro_batches_than_can_be_under_way);
    RUN(placements_give_everything_to_somebody);
    RUN(rounds_are_the_longest_chains);
    RUN(rounds_are_as_few_as_the_order_allows);
    RUN(micro_batches_join_passes_where_limits_allow);
    RUN(lists_in_one_order_always_end);
    RUN(lists_in_other_orders_are_stuck_exactly_when_running_them_is);
    RUN(a_micro_batch_that_a_rank_does_not_list_or_is_not_of_is_stuck);
    return test_done();
}
