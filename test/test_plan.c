// test_plan.c - the claims of plan/value/pack.h, and those of plan/value/plan.h about planners and the plan as a
// value. Its proof, rounds and schedules are test_plan_check.c's, what a rank holds of a micro-batch test_share.c's.
#include "plan/value/pack.h"
#include "test/plans.h"

// ---- packing

// Best-fit decreasing spelled out in O(n^2), as the words in the header have it: documents by decreasing length, equal
// ones by index; of rows with the same least room the one that has had it longest.
static int plain_best_fit(const int* lengths, int n, int capacity, int* sorted, int* row_of) {
    int room[300], since[300], rows = 0;
    for (int i = 0; i < n; i++) {
        int j = i;
        for (; j > 0 && lengths[sorted[j - 1]] < lengths[i]; j--) sorted[j] = sorted[j - 1];
        sorted[j] = i;
    }
    for (int i = 0; i < n; i++) {
        int best = -1, length = lengths[sorted[i]];
        for (int r = 0; r < rows; r++)
            if (room[r] >= length &&
                (best < 0 || room[r] < room[best] || (room[r] == room[best] && since[r] < since[best])))
                best = r;
        if (best < 0) room[best = rows++] = capacity;
        room[best] -= length, since[best] = i;
        row_of[sorted[i]] = best;
    }
    return rows;
}

// Every rank packs for itself, so ties must be broken alike: small capacities have many of them.
CLAIM(rows_are_those_of_plain_best_fit_decreasing_ties_included) {
    static Arena arena;  // of one packing at a time
    int lengths[300], sorted[300], row_of[300];
    char err[ERR_BYTES];
    Rows p;
    for (uint64_t trial = 0; trial < 1500; trial++) {
        int n = (int)(hash64(trial + 7) % 300), at = 0, capacity = 1 + (int)(hash64(trial) % (trial % 3 ? 20 : 500));
        for (int i = 0; i < n; i++) lengths[i] = 1 + (int)(pow(random_uniform(trial, (uint64_t)i), 3) * (capacity - 1));
        soil(&arena, 0xa5, 1 << 18);
        CHECK(pack_best_fit(&p, lengths, n, capacity, &arena, err) == 0);
        CHECK(p.n == plain_best_fit(lengths, n, capacity, sorted, row_of) && p.first[0] == 0);
        for (int r = 0; r < p.n; r++) {
            for (int i = 0; i < n; i++)
                if (row_of[sorted[i]] == r) CHECK(p.order[at++] == sorted[i]);
            CHECK(p.first[r + 1] == at);
        }
    }
    CHECK(pack_best_fit(&p, (int[]){5, 11}, 2, 10, &arena, err) < 0);
    CHECK(strstr(err, "document 1") && strstr(err, "11 tokens") && strstr(err, "10"));
    CHECK(pack_best_fit(&p, (int[]){5, 0}, 2, 10, &arena, err) < 0);
}

// ---- the static planner, against brute force

// 1 when ranks [first, first + n) are on two machines or more.
static int crosses(const PlanLimits* l, int first, int n) {
    return first / l->node_size != (first + n - 1) / l->node_size;
}

static int any_run_crosses(const PlanLimits* l, int cp_size, int run) {
    for (int first = 0; first + cp_size <= l->ranks; first += cp_size)
        for (int r = first; r < first + cp_size; r += run)
            if (crosses(l, r, run)) return 1;
    return 0;
}

// The words of plan.h: heads inside a machine, a ring where heads do not suffice, both across machines, if whole.
static int expected_ulysses_size(const PlanLimits* l, int cp_size, CpChoice kind) {
    if (kind == CP_CHOICE_RING) return 1;
    if (kind == CP_CHOICE_ULYSSES) return cp_size <= l->kv_heads ? cp_size : 0;
    if (!any_run_crosses(l, cp_size, cp_size)) return cp_size <= l->kv_heads ? cp_size : 1;
    if (cp_size > l->node_size && cp_size % l->node_size != 0) return 1;
    int ulysses_size = 1;
    for (int d = 2; d <= MIN(cp_size, l->kv_heads); d++)
        if (cp_size % d == 0 && !any_run_crosses(l, cp_size, d)) ulysses_size = d;
    return ulysses_size;
}

// Tokens of document s at the place of a ring that has most, counted token by token.
static int widest_place(int s, int ring_size) {
    int most = ring_size == 1 ? s : 0;
    for (int a = 0; a < ring_size && ring_size > 1; a++) {
        int low = chunk_border(s, ring_size, a + 1) - chunk_border(s, ring_size, a);
        int high = chunk_border(s, ring_size, 2 * ring_size - a) - chunk_border(s, ring_size, 2 * ring_size - 1 - a);
        most = MAX(most, low + high);
    }
    return most;
}

// Whether the rules allow document s alone on a group.
static int holds(const PlanLimits* l, int s, int cp_size, int ulysses_size) {
    int n = widest_place(s, cp_size / ulysses_size), heads = CEIL_DIV(l->kv_heads, ulysses_size);
    return CEIL_DIV(n, ulysses_size) <= l->capacity && (int64_t)n * heads <= (int64_t)l->capacity * l->kv_heads;
}

static int holds_all(const Step* step, int cp_size, CpChoice kind) {
    int ulysses_size = expected_ulysses_size(&step->limits, cp_size, kind);
    for (int i = 0; i < step->n && ulysses_size; i++)
        if (!holds(&step->limits, step->lengths[i], cp_size, ulysses_size)) return 0;
    return ulysses_size > 0;
}

// All of one cp size and kind, on the groups that begin at its multiples.
static void check_groups(const Step* step, int cp_size, CpChoice kind) {
    int ulysses_size = expected_ulysses_size(&step->limits, cp_size, kind);
    for (int i = 0; i < step->plan.n_micro_batches; i++) {
        const MicroBatch* mb = &step->plan.micro_batches[i];
        CHECK(mb->cp_size == cp_size && mb->ulysses_size == ulysses_size && mb->first_rank % cp_size == 0);
    }
}

static double micro_batch_cost(const Step* step, const MicroBatch* mb) {
    double cost = 0;
    for (int i = 0; i < mb->n_docs; i++) {
        double s = step->lengths[step->plan.docs[mb->first_doc + i]];
        cost += s + step->limits.quadratic * s * s;
    }
    return cost;
}

// The heaviest first, each to the least loaded group (the first of equals), unless rings are short of room.
static void check_dealing(const Step* step, int cp_size) {
    double load[MOST_RANKS] = {0}, before = INFINITY;
    for (int i = 0; i < step->plan.n_micro_batches; i++) {
        const MicroBatch* mb = &step->plan.micro_batches[i];
        int least = 0, group = mb->first_rank / cp_size;
        for (int g = 1; g < step->limits.ranks / cp_size; g++)
            if (load[g] < load[least]) least = g;
        double cost = micro_batch_cost(step, mb);
        CHECK(cost <= before);
        if (step->limits.max_ring_docs >= step->n || mb->ulysses_size == cp_size) CHECK(group == least);
        load[group] += before = cost;
    }
}

// A group runs no more rows than best-fit decreasing into full rows would make it, if it dealt them evenly.
static void check_rows(Step* step, int cp_size, int ulysses_size) {
    static int widest[MOST_DOCS];
    char err[ERR_BYTES];
    int ring_size = cp_size / ulysses_size, groups = step->limits.ranks / cp_size;
    int most =
        (int)((int64_t)step->limits.capacity * step->limits.kv_heads / CEIL_DIV(step->limits.kv_heads, ulysses_size));
    for (int i = 0; i < step->n; i++) widest[i] = widest_place(step->lengths[i], ring_size);
    if (most > 65535) return;
    Rows p;
    CHECK(pack_best_fit(&p, widest, step->n, most, &step->arena, err) == 0);
    CHECK(step->plan.n_micro_batches <= groups * CEIL_DIV(p.n, groups) &&
          step->plan.n_micro_batches >= MIN(p.n, groups));
}

static int number_after(const char* text, const char* words) {
    const char* at = strstr(text, words);
    return at ? atoi(at + strlen(words)) : -1;
}

// A refusal names a document with a capacity that is enough for it, and one less is not.
static void check_capacity_that_helps(int cp_size, CpChoice kind) {
    int doc = number_after(step.err, "document "), capacity = number_after(step.err, "--capacity ");
    CHECK(doc >= 0 && doc < step.n && capacity > step.limits.capacity);
    CHECK(number_after(step.err, "step has ") == step.lengths[doc]);
    step.n = 1, step.lengths[0] = step.lengths[doc], step.limits.max_ring_docs = MOST_DOCS;
    for (int less = 1; less >= 0; less--) {
        step.limits.capacity = capacity - less;
        step_memory(&step);
        CHECK(step_static(&step, cp_size, kind) == -less);
    }
}

CLAIM(static_plans_hold_and_take_the_least_cp_size_or_name_a_document_and_a_capacity_that_helps) {
    int planned = 0, refused = 0, named = 0;
    for (uint64_t seed = BEFORE_FIRST; next_step(&seed, 5000);) {
        CpChoice kind = (CpChoice)(seed % 3);
        int asked = seed % 2 ? 0 : pick(seed, 50, 1, step.limits.ranks), cp_size = asked;
        for (int d = 1; d <= step.limits.ranks && !cp_size; d++)
            if (holds_all(&step, d, kind)) cp_size = d;
        if (step_static(&step, asked, kind) == 0) {
            CHECK(cp_size > 0 && holds_all(&step, cp_size, kind) && step.plan.n_micro_batches > 0);
            check_groups(&step, cp_size, kind);
            check_dealing(&step, cp_size);
            check_rows(&step, cp_size, expected_ulysses_size(&step.limits, cp_size, kind));
            CHECK(step_check(&step) == 0);
            step_rounds(&step);
            CHECK(step_check(&step) == 0);
            planned++;
        } else {
            int rings_full = strstr(step.err, "each at most") != NULL;
            CHECK(rings_full ? step.limits.max_ring_docs < step.n : !cp_size || !holds_all(&step, cp_size, kind));
            refused++;
            if (rings_full || !strncmp(step.err, "--cp", 4)) continue;
            check_capacity_that_helps(asked, kind);
            named++;
        }
    }
    CHECK(planned > 2500 && refused > 200 && named > 100);
}

CLAIM(what_cannot_be_planned_is_refused_with_words) {
    // 650 tokens on a ring of 2: borders 0 162 325 487 650, so 325 at both places; 641 tokens have 321 at one.
    static const struct {
        int ranks, kv_heads, capacity, lengths[5], cp_size;
        CpChoice kind;
        const char* words[3];
    } rows[] = {
        {4, 4, 200, {5, 900, 7, 901, 3}, 0, CP_CHOICE_AUTO, {"document 3 ", "901 tokens", "more than 800"}},
        {4, 4, 200, {5, 900, 7, 901, 3}, 2, CP_CHOICE_AUTO, {"document 3 ", "more than 400", "--cp"}},
        {8, 3, 200, {5, 900, 7, 901, 3}, 0, CP_CHOICE_ULYSSES, {"than 600", "--cp kind=ulysses", "--capacity 301"}},
        {8, 3, 200, {5, 900, 7, 901, 3}, 4, CP_CHOICE_ULYSSES, {"--cp 4", "3 key/value heads", "--cp kind=auto"}},
        {4, 4, 200, {5, 900, 7, 901, 3}, 5, CP_CHOICE_AUTO, {"--cp 5", "4 ranks", "0 for"}},
        {4, 4, 200, {5, 900, 7, 901, 3}, -1, CP_CHOICE_AUTO, {"--cp -1", "4 ranks", "0 for"}},
        {2, 4, 320, {5, 1, 7, 650, 3}, 2, CP_CHOICE_RING, {"document 3 ", "more than 640", "--capacity 325"}},
        {4, 4, 1000, {5, 1, 7, 650, 0}, 0, CP_CHOICE_AUTO, {"document 4 ", "0 tokens", "1 or more"}},
        {4, 4, 2000000000, {2000000000, 1, 7, 650, 2000000000}, 0, 0, {"tokens", "at most", "--batch-tokens"}},
    };
    for (int i = 0; i < COUNT(rows); i++) {
        Step step = small_step(rows[i].ranks, rows[i].kv_heads, rows[i].capacity, 5, rows[i].lengths);
        CHECK(step_static(&step, rows[i].cp_size, rows[i].kind) < 0);
        for (int k = 0; k < 3; k++) CHECK(strstr(step.err, rows[i].words[k]));
        if (test_failures_in_claim) printf("    row %d: %s\n", i, step.err);
        free_step(&step);
    }
}

// Where full rows would leave groups without any, rows are less full.
CLAIM(work_is_shared_where_capacity_would_not_force_it) {
    int lengths[MOST_DOCS];
    for (int i = 0; i < MOST_DOCS; i++) lengths[i] = 100;
    Step step = small_step(4, 4, 6400, MOST_DOCS, lengths);
    CHECK(step_static(&step, 0, CP_CHOICE_AUTO) == 0 && step.plan.n_micro_batches == 4);
    for (int i = 0; i < 4; i++)
        CHECK(step.plan.micro_batches[i].first_rank == i && step.plan.micro_batches[i].n_docs == 16);
    free_step(&step);
}

// Rows of more tokens than packing has units.
CLAIM(wide_rows_are_packed_too) {
    for (uint64_t seed = 0; seed < 60; seed++) {
        int lengths[MOST_DOCS], capacity = pick(seed, 0, 70000, 3000000);
        for (int i = 0; i < MOST_DOCS; i++) lengths[i] = pick(seed, 1 + (uint64_t)i, 1, capacity);
        lengths[pick(seed, 99, 0, MOST_DOCS - 1)] = capacity;
        Step step = small_step(8, 8, capacity, MOST_DOCS, lengths);
        CHECK(step_static(&step, 1, CP_CHOICE_AUTO) == 0 && step_check(&step) == 0);
        CHECK(step_static(&step, 4, CP_CHOICE_RING) == 0 && step_check(&step) == 0);
        free_step(&step);
    }
}

// ---- the random planner

CLAIM(random_plans_hold_and_are_of_every_kind) {
    int kinds[4] = {0}, planned = 0, overlaps = 0, idle = 0;
    for (uint64_t seed = BEFORE_FIRST; next_step(&seed, 5000);) {
        const PlanLimits* l = &step.limits;
        int needs_ring = 0, impossible = 0;
        for (int i = 0; i < step.n; i++) {
            int heads = 0, any = 0;
            for (int d = 1; d <= l->ranks; d++)
                for (int ulysses_size = 1; ulysses_size <= MIN(d, l->kv_heads); ulysses_size++) {
                    int fits = d % ulysses_size == 0 && holds(l, step.lengths[i], d, ulysses_size);
                    any |= fits, heads |= fits && ulysses_size == d;
                }
            impossible |= !any, needs_ring += any && !heads;
        }
        if (step_random(&step, seed) == 0) {
            unsigned used = 0;
            CHECK(!impossible && step_check(&step) == 0);
            step_rounds(&step);
            CHECK(step_check(&step) == 0);
            for (int i = 0; i < step.plan.n_micro_batches; i++) {
                const MicroBatch* mb = &step.plan.micro_batches[i];
                kinds[cp_kind(mb)]++;
                used |= ((1u << mb->cp_size) - 1) << mb->first_rank;
                overlaps += mb->first_rank % mb->cp_size != 0;
            }
            idle += used != (1u << l->ranks) - 1;
            planned++;
        } else CHECK(impossible || needs_ring > l->max_ring_docs);
    }
    CHECK(planned > 4000 && overlaps > 1000 && idle > 400);
    for (int k = 0; k < 4; k++) CHECK(kinds[k] > 1000);
}

// ---- the value

CLAIM(kinds_have_their_names) {
    static const MicroBatch micro_batches[] = {
        {0, 1, 1, 0, 1, 0}, {0, 6, 6, 0, 1, 0}, {0, 6, 1, 0, 1, 0}, {0, 6, 3, 0, 1, 0}};
    static const char* const names[] = {"local", "ulysses", "ring", "ulysses x ring"};
    for (int i = 0; i < 4; i++) CHECK_STRING(cp_kind_name(cp_kind(&micro_batches[i])), names[i]);
}

CLAIM(the_hash_changes_with_every_number) {
    Step step = valid_step();
    Plan* p = &step.plan;
    uint64_t hash = plan_hash(p, step.lengths);
    p->step++;
    CHECK(plan_hash(p, step.lengths) != hash);
    p->step--;
    int* heads[] = {&p->ranks, &p->n_rounds, &p->n_micro_batches, &p->n_docs};
    for (int i = 0; i < COUNT(heads); i++) {
        --*heads[i];
        CHECK(plan_hash(p, step.lengths) != hash);
        ++*heads[i];
    }
    int* arrays[] = {p->docs, (int*)p->micro_batches, step.lengths};
    int counts[] = {p->n_docs, p->n_micro_batches * 6, p->n_docs};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < counts[k]; i++) {
            arrays[k][i] += 1000;
            CHECK(plan_hash(p, step.lengths) != hash);
            arrays[k][i] -= 1000;
        }
    CHECK(plan_hash(p, step.lengths) == hash);
    free_step(&step);
}

int main(void) { return test_main(); }
