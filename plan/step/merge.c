// merge.c - predicts a plan's time, and joins micro-batches of a free plan into passes if that is no slower in the cost
// model.
//
// A local micro-batch in the pass of a shared one hides its exchange, and saves the fixed cost of a pass of its own;
// but ranks that share documents wait for each other in every layer, so that one local micro-batch is best matched by
// one on each of the other ranks. For each shared micro-batch, the longest exchange first, every rank brings its local
// micro-batch with most attention that fits the pass, if any. The plan is played, and undone if it is longer. Then
// local micro-batches of a rank join as far as limits allow, because nobody else waits for them.
#include <stdlib.h>

#include "plan/step/flex.h"

// ---- the time of a plan

static int ascending(const void* a, const void* b) {
    const Keyed *x = (const Keyed*)a, *y = (const Keyed*)b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->i > y->i) - (x->i < y->i);
}

void sort_keyed(Keyed* list, int n) { qsort(list, (size_t)n, sizeof(Keyed), ascending); }

// This is a radix sort.
void sort_longest_first(int* order, int* sorted, const int* lengths, int n) {
    enum { BITS = 11, BINS = 1 << BITS };
    int longest = 0, begin[BINS];
    for (int i = 0; i < n; i++) order[i] = i, longest = MAX(longest, lengths[i]);
    for (int shift = 0; shift < 31 && longest >> shift > 0; shift += BITS) {
        memset(begin, 0, sizeof begin);
        for (int i = 0; i < n; i++) begin[(lengths[i] >> shift) & (BINS - 1)]++;
        for (int b = BINS - 1, at = 0; b >= 0; b--) {
            int count = begin[b];
            begin[b] = at;
            at += count;
        }
        for (int i = 0; i < n; i++) sorted[begin[(lengths[order[i]] >> shift) & (BINS - 1)]++] = order[i];
        memcpy(order, sorted, sizeof(int) * (size_t)n);
    }
    for (int i = 0; i < n; i++) sorted[i] = lengths[order[i]];
}

int squares_in_order(PlanLimits* limits, const int* order, int n, Arena* arena, Err err) {
    const double* squares = limits->squares;
    if (!squares) return 0;
    double* sorted = TAKE(arena, double, n);
    if (arena_check(arena, err) < 0) return -1;
    for (int k = 0; k < n; k++) sorted[k] = squares[order[k]];
    limits->squares = sorted;
    return 0;
}

int step_play(Timeline* timeline, Plan* plan, const int* lengths, const Setting* setting, Arena* arena, Err err) {
    if (setting->rounds && plan->n_rounds == 0 && plan_set_rounds(plan, arena, err) < 0) return -1;
    return timeline_play(timeline, plan, lengths, setting, arena, err);
}

int predict_time(Prediction* prediction, Plan* plan, const int* lengths, const Setting* setting, Arena* arena,
                 Err err) {
    Timeline timeline;
    ArenaMark mark = arena_mark(arena);
    if (step_play(&timeline, plan, lengths, setting, arena, err) < 0) return -1;
    prediction->makespan = timeline.makespan, prediction->step = timeline.step;
    prediction->critical = timeline.critical;
    arena_reset(arena, mark);
    return 0;
}

int predict_plan(Prediction* prediction, Plan* plan, const int* lengths, const Setting* setting, Arena* arena,
                 Err err) {
    ArenaMark mark = arena_mark(arena);
    int n = plan->n_docs, *order = TAKE(arena, int, n), *sorted = TAKE(arena, int, n);
    if (predict_time(prediction, plan, lengths, setting, arena, err) < 0) return -1;
    prediction->n_tries = 0;
    sort_longest_first(order, sorted, lengths, n);
    Setting in_order = *setting;
    in_order.limits.squares = plan->squares;
    if (squares_in_order(&in_order.limits, order, n, arena, err) < 0) return -1;
    if (bounds_of(&prediction->bounds, sorted, n, &in_order, arena, err) < 0) return -1;
    arena_reset(arena, mark);
    return 0;
}

double prediction_gap(const Prediction* prediction) {
    return prediction->bounds.beside > 0 ? prediction->makespan / prediction->bounds.beside - 1 : 0;
}

// ---- passes

int plan_tidy(Plan* plan, int node_size, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    int n = plan->n_micro_batches, *order = TAKE(arena, int, n), rounds = 0;
    MicroBatch* sorted = TAKE(arena, MicroBatch, n);
    if (arena_check(arena, err) < 0) return -1;
    if (pass_order(plan, node_size, order, arena, err) < 0) return -1;
    for (int i = 0; i < n; i++) {
        sorted[i] = plan->micro_batches[order[i]];
        if (i > 0) rounds += plan->micro_batches[order[i]].round != plan->micro_batches[order[i - 1]].round;
        sorted[i].round = rounds;
    }
    memcpy(plan->micro_batches, sorted, sizeof(MicroBatch) * (size_t)n);
    plan->n_rounds = n ? rounds + 1 : 0;
    arena_reset(arena, mark);
    return 0;
}

// The most plays of the whole plan, and the most micro-batches in all of them together.
enum { MOST_PLAYS = 64 };
static const double most_played = 1e5;

typedef struct Merge {
    Plan* plan;
    const int* lengths;
    const Setting* setting;
    Arena* arena;
    PassLoad* loads;    // (ranks) of the pass at hand
    char* may_join;     // (n_micro_batches) 1: a local micro-batch that has joined no pass so far
    int *first, *next;  // (ranks), (n_micro_batches) a linked list of each rank's local micro-batches, -1 ends it
    double* work;       // (n_micro_batches) ms of attention of local ones
    int* rounds;        // (n_micro_batches) before a try
} Merge;

static int load_pass(Merge* x, int i) {
    return plan_add_load(x->loads, x->plan, i, x->lengths, &x->setting->limits, x->arena);
}

static int fits(const Merge* x, int rank) { return load_fits(&x->loads[rank], &x->setting->limits, rank); }

// The rank's local micro-batch with most attention that fits beside its load; -1: none.
static int best_local(Merge* x, int rank) {
    int best = -1;
    for (int i = x->first[rank]; i >= 0; i = x->next[i]) {
        if (!x->may_join[i] || (best >= 0 && x->work[i] <= x->work[best])) continue;
        PassLoad before = x->loads[rank];
        if (load_pass(x, i) == 0 && fits(x, rank)) best = i;
        x->loads[rank] = before;
    }
    return best;
}

static int play(const Merge* x, Timeline* timeline, Err err) {
    ArenaMark mark = arena_mark(x->arena);
    int failed = timeline_play(timeline, x->plan, x->lengths, x->setting, x->arena, err);
    arena_reset(x->arena, mark);
    return failed;
}

// Takes memory for merging, and finds the local micro-batches of each rank.
static Merge open_merge(Plan* plan, const int* lengths, const Setting* setting, Arena* arena) {
    int n = plan->n_micro_batches, ranks = plan->ranks;
    Merge x = {.plan = plan,
               .lengths = lengths,
               .setting = setting,
               .arena = arena,
               .loads = TAKE(arena, PassLoad, ranks),
               .may_join = TAKE(arena, char, n),
               .first = TAKE(arena, int, ranks),
               .next = TAKE(arena, int, n),
               .work = TAKE(arena, double, n),
               .rounds = TAKE(arena, int, n)};
    if (arena->missing) return x;
    for (int r = 0; r < ranks; r++) x.first[r] = -1;
    for (int i = n - 1; i >= 0; i--) {
        const MicroBatch* mb = &plan->micro_batches[i];
        x.may_join[i] = mb->cp_size == 1;
        x.work[i] = micro_batch_sums(plan, mb, lengths).squares;
        if (mb->cp_size == 1) x.next[i] = x.first[mb->first_rank], x.first[mb->first_rank] = i;
    }
    return x;
}

// Lets local micro-batches of its ranks join shared micro-batch i. Returns how many do.
static int bring_locals(Merge* x, int i) {
    const MicroBatch* mb = &x->plan->micro_batches[i];
    int joined = 0;
    for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) x->loads[r] = (PassLoad){0, 0};
    if (load_pass(x, i) < 0) return 0;
    for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size; r++) {
        int local = best_local(x, r);
        if (local >= 0) x->plan->micro_batches[local].round = mb->round, joined++;
    }
    return joined;
}

static void keep_or_undo(Merge* x, int keep) {
    for (int i = 0; i < x->plan->n_micro_batches; i++) {
        MicroBatch* mb = &x->plan->micro_batches[i];
        if (mb->round == x->rounds[i]) continue;
        if (keep) x->may_join[i] = 0;
        else mb->round = x->rounds[i];
    }
}

// Joins each rank's other local micro-batches: one joins the pass before as long as it fits.
static void join_locals(Merge* x) {
    for (int r = 0; r < x->plan->ranks; r++) {
        int first = -1;
        for (int i = x->first[r]; i >= 0; i = x->next[i]) {
            if (!x->may_join[i]) continue;
            if (first < 0) x->loads[r] = (PassLoad){0, 0};
            if (load_pass(x, i) < 0) return;
            if (first >= 0 && fits(x, r)) {
                x->plan->micro_batches[i].round = x->plan->micro_batches[first].round;
                continue;
            }
            if (first >= 0) x->loads[r] = (PassLoad){0, 0};
            if (first >= 0 && load_pass(x, i) < 0) return;
            first = i;
        }
    }
}

// Merges as the head of this file says. Of the timeline only makespan, critical and shares stay valid.
static int merge(Plan* plan, Timeline* timeline, const int* lengths, const Setting* setting, Arena* arena, Err err) {
    int n = plan->n_micro_batches, n_shared = 0;
    Setting freely = *setting;
    freely.rounds = freely.weights.layers = 0;  // makespans are compared
    if (plan_set_rounds(plan, arena, err) < 0) return -1;
    Merge x = open_merge(plan, lengths, &freely, arena);
    Keyed* shared = TAKE(arena, Keyed, n);  // by tokens of a rank: with more the exchange is longer
    if (arena_check(arena, err) < 0 || play(&x, timeline, err) < 0) return -1;
    for (int i = 0; i < n; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        if (mb->cp_size > 1) shared[n_shared++] = (Keyed){-micro_batch_sums(plan, mb, lengths).tokens / mb->cp_size, i};
    }
    sort_keyed(shared, n_shared);
    int plays = (int)MIN(MOST_PLAYS, most_played / MAX(n, 1));
    for (int k = 0; k <= n_shared && plays > 0; k++) {
        Timeline tried;
        for (int i = 0; i < n; i++) x.rounds[i] = plan->micro_batches[i].round;
        if (k == n_shared) join_locals(&x);
        else if (!bring_locals(&x, shared[k].i)) continue;
        plays--;
        if (play(&x, &tried, err) < 0) return -1;
        int keep = tried.makespan <= timeline->makespan;
        keep_or_undo(&x, keep);
        if (keep) *timeline = tried;
    }
    return plan_tidy(plan, setting->limits.node_size, arena, err);
}

int plan_merge(Plan* plan, Prediction* prediction, const int* lengths, const Setting* setting, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    Timeline timeline;
    Plan merged;
    if (plan->n_docs == 0) return 0;
    plan_take(&merged, plan->n_docs, arena);
    if (arena_check(arena, err) < 0) return -1;
    plan_copy(&merged, plan);
    if (merge(&merged, &timeline, lengths, setting, arena, err) < 0) return -1;
    if ((setting->rounds || setting->weights.layers > 0) &&
        step_play(&timeline, &merged, lengths, setting, arena, err) < 0)
        return -1;
    if (!setting->rounds || timeline.step < prediction->step) {
        plan_copy(plan, &merged);
        prediction->makespan = timeline.makespan, prediction->step = timeline.step;
        prediction->critical = timeline.critical;
    }
    arena_reset(arena, mark);
    return 0;
}
