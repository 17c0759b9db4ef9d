// flexsp.c - FlexSP (Wang et al., ASPLOS 2025, arXiv 2412.01523), rebuilt: whole documents on groups of powers of two.
//
// A batch is cut into M rounds, and in each of them the ranks are divided anew into groups of unlike cp sizes:
//   time = sum over rounds of (slowest group + fixed cost)                                        (Alg. 1)
// Cutting: documents sorted by length, contiguous runs of about equal tokens (flexsp_cuts.c). M starts at the least for
// which every run fits the memory of all ranks together; M' = 5 values are tried, the best total is kept. Groups of a
// round: flexsp_groups.c, on documents in 16 buckets or more. As in the released code the number of buckets rises
// until the tokens, as buckets count them, are at most the mean of the true ones and what the ranks hold, and after
// planning the time of the slowest group is taken again from true lengths.
// Different from the release: a search in place of the integer program; the members of a bucket go to groups in order
// of length, not at random, so that a plan is a function of lengths; a document that no group holds is an error and
// not a loop without end; nothing is padded (to twice the ranks, in the release). Attention kinds are the machine's
// (Setting.groups). MicroBatch.round is the round; Plan.n_rounds stays 0, for a rank may be idle in one of them, which
// the earliest rounds of plan_set_rounds do not know.
#include "plan/published/flexsp.h"

#include <math.h>

#include "plan/planner.h"
#include "plan/published/longest.h"

typedef struct Work {
    const Setting* setting;
    const FlexspOptions* options;
    const int* lengths;
    int n;
    FlexspCpSizes cp_sizes;
    FlexspReport* report;
    Sorted* order;    // (n) as the blaster cuts them
    int* in_order;    // (n) their lengths
    double* area;     // (n + 1) rank-ms that the first of them occupy at least
    int64_t* sums;    // 3 (n + 1)
    int* first;       // (n + 1) rounds
    Sorted* members;  // (n) of a round, longest first
    int* member;      // (n) their lengths
    int* bucket;      // (n + 1)
    int* group_of;    // (n)
    double* load;     // (ranks) of its groups
    int* size;        // (ranks) documents of its groups
    Plan trial;       // the plan of the trial that is made
    Arena* arena;
    double best;      // ms of the best trial
} Work;

static void take_work(Work* x, Arena* arena) {
    int n = x->n, ranks = x->cp_sizes.ranks;
    x->arena = arena;
    x->order = TAKE(arena, Sorted, n);
    x->in_order = TAKE(arena, int, n);
    x->area = TAKE(arena, double, n + 1);
    x->sums = TAKE(arena, int64_t, 3 * (n + 1));
    x->first = TAKE(arena, int, n + 1);
    x->members = TAKE(arena, Sorted, n);
    x->member = TAKE(arena, int, n);
    x->bucket = TAKE(arena, int, n + 1);
    x->group_of = TAKE(arena, int, n);
    x->load = TAKE(arena, double, ranks);
    x->size = TAKE(arena, int, ranks);
    plan_take(&x->trial, n, arena);
    x->trial.n_docs = n;
}

// Sorts documents for the blaster, and what they occupy at least. -1 when no group holds one of them.
static int order_documents(Work* x, char* err, size_t errlen) {
    const FlexspCpSizes* d = &x->cp_sizes;
    for (int i = 0; i < x->n; i++) x->order[i] = (Sorted){x->lengths[i], i};
    sort_longest_first(x->order, x->n);
    x->area[0] = 0;
    for (int i = 0; i < x->n; i++) {
        double s = x->in_order[i] = x->order[i].length, least = INFINITY;
        for (int c = 0; c < d->n; c++)
            if (widest_place(x->in_order[i], d->ring_size[c]) <= d->room[c])
                least = fmin(least, d->cp_size[c] * (d->quadratic[c] * s * s + d->linear[c] * s));
        if (least == INFINITY)
            return fail(err, errlen,
                        "document %d of the step has %d tokens, and no group of a power of two of the %d ranks holds "
                        "it at capacity %d; try a larger --capacity or more ranks",
                        x->order[i].doc, x->order[i].length, d->ranks, x->setting->limits.capacity);
        x->area[i + 1] = x->area[i] + least;
    }
    return 0;
}

// ---- one round

// Buckets of the members; their number, -1 for want of memory.
static int make_buckets(Work* x, int n) {
    int64_t tokens = 0, capacity = (int64_t)x->cp_sizes.ranks * x->setting->limits.capacity;
    for (int i = 0; i < n; i++) tokens += x->member[i];
    // The mean of what there is and what the ranks hold; a round never has more than they hold.
    int64_t most = tokens + (capacity - tokens) / 2;
    int least = x->options->no_buckets ? n : MIN(n, FLEXSP_BUCKETS);
    int buckets = flexsp_buckets(x->bucket, x->member, n, least, most);
    x->report->most_buckets = MAX(x->report->most_buckets, buckets);
    return buckets;
}

// The time of the slowest group, from true lengths, and into x->size the documents of each.
static double true_ms(Work* x, int n, const int* counts) {
    const FlexspCpSizes* d = &x->cp_sizes;
    double slowest = 0;
    int number = 0;
    for (int c = d->n; c-- > 0;)
        for (int g = 0; g < counts[c]; g++, number++) x->load[number] = d->micro_batch[c], x->size[number] = 0;
    for (int i = 0; i < n; i++) {
        int group = x->group_of[i], c = d->n - 1;
        for (int from = counts[c]; from <= group; from += counts[c]) c--;
        double s = x->member[i];
        x->load[group] += d->quadratic[c] * s * s + d->linear[c] * s;
        x->size[group]++;
        slowest = fmax(slowest, x->load[group]);
    }
    return slowest;
}

// Micro-batches of a round, behind those of the ones before. The widest group begins at rank 0: since each cp size
// divides the ones before it, every group begins at a multiple of its own.
static void write_micro_batches(Work* x, int round, int n, const int* counts, int first_doc) {
    const FlexspCpSizes* d = &x->cp_sizes;
    Plan* plan = &x->trial;
    int number = 0, rank = 0;
    for (int c = d->n; c-- > 0;)
        for (int g = 0; g < counts[c]; g++, number++, rank += d->cp_size[c]) {
            int size = x->size[number];
            x->size[number] = first_doc;  // from here on: where its next document goes
            if (size == 0) continue;
            plan->micro_batches[plan->n_micro_batches++] =
                (MicroBatch){rank, d->cp_size[c], d->ulysses_size[c], first_doc, size, round};
            first_doc += size;
        }
    for (int i = 0; i < n; i++) plan->docs[x->size[x->group_of[i]]++] = x->members[i].doc;
}

// Plans documents [first, end) of the order as round `round`. Its time, INFINITY where they do not fit, -2 for
// want of memory.
static double plan_round(Work* x, int round, int first, int end) {
    int n = end - first, counts[FLEXSP_CP_SIZES];
    memcpy(x->members, x->order + first, sizeof(Sorted) * (size_t)n);
    for (int i = 0; i < n; i++) x->member[i] = x->members[i].length;
    int buckets = make_buckets(x, n);
    if (buckets < 0) return -2;
    FlexspBatch batch;
    ArenaMark mark = arena_mark(x->arena);
    if (flexsp_batch(&batch, x->member, n, x->bucket, buckets, &x->cp_sizes, x->arena) < 0) return -2;
    double ms = flexsp_groups(&x->cp_sizes, &batch, FLEXSP_ENUMERATED, counts, x->group_of);
    arena_reset(x->arena, mark);
    if (ms < 0 || ms == INFINITY) return ms;
    ms = true_ms(x, n, counts);
    write_micro_batches(x, round, n, counts, first);
    return ms;
}

// ---- trials

// M rounds. The total in ms, INFINITY where one does not fit or the total cannot beat the best, -2: memory.
static double try_rounds(Work* x, const int* cut, int m) {
    double total = 0, round_ms = x->setting->cost.round;
    flexsp_chunks(x->first, cut, x->n, m);
    x->trial.n_micro_batches = 0;
    for (int i = 0; i < m; i++) {
        double to_come = (x->area[x->n] - x->area[x->first[i]]) / x->cp_sizes.ranks + round_ms * (m - i);
        if (total + to_come >= x->best) return INFINITY;
        double ms = plan_round(x, i, x->first[i], x->first[i + 1]);
        if (ms < 0 || ms == INFINITY) return ms;
        total += ms + round_ms;
    }
    return total;
}

static void keep_trial(Work* x, Plan* plan, int m, double ms) {
    x->best = x->report->ms = ms;
    x->report->rounds = m;
    plan_copy(plan, &x->trial);
}

// M' values of M from M_min on, and as many again while none of them fits.
static int try_all(Work* x, Plan* plan, char* err, size_t errlen) {
    int trials = x->options->trials ? x->options->trials : FLEXSP_TRIALS;
    int64_t capacity = (int64_t)x->cp_sizes.ranks * x->setting->limits.capacity;
    int least = x->report->least = flexsp_least_chunks(x->in_order, x->n, capacity);
    for (int from = least; from <= x->n && x->best == INFINITY; from += trials) {
        int most = MIN(from + trials - 1, x->n), failed = 0;
        ArenaMark mark = arena_mark(x->arena);
        int* cut = TAKE(x->arena, int, (size_t)(most + 1) * (size_t)(x->n + 1));
        if (arena_check(x->arena, err, errlen) < 0) return -1;
        flexsp_blast(cut, x->in_order, x->n, most, x->sums);
        for (int m = from; m <= most && !failed; m++) {
            double ms = try_rounds(x, cut, m);
            failed = ms < 0;
            if (!failed && ms < x->best) keep_trial(x, plan, m, ms);
        }
        arena_reset(x->arena, mark);
        if (failed) return fail(err, errlen, "out of memory for a plan of %d documents", x->n);
    }
    if (x->n > 0 && x->best == INFINITY)
        return fail(err, errlen, "no division of %d ranks into powers of two holds the %d documents of the step",
                    x->cp_sizes.ranks, x->n);
    return 0;
}

int flexsp_plan(Plan* plan, PlayRule* rule, FlexspReport* report, int64_t step, const int* lengths, int n,
                const Setting* setting, const FlexspOptions* options, Arena* arena, char* err, size_t errlen) {
    static const FlexspOptions as_published = {0};
    FlexspReport ignored;
    if (plan_begin(plan, step, lengths, n, &setting->limits, arena, err, errlen) < 0) return -1;
    ArenaMark mark = arena_mark(arena);
    Work x = {.setting = setting, .options = options ? options : &as_published, .lengths = lengths, .n = n};
    x.best = INFINITY;
    x.report = report ? report : &ignored;
    *x.report = (FlexspReport){0};
    *rule = (PlayRule){.in_rounds = 1, .round_ms = setting->cost.round};
    flexsp_cp_sizes(&x.cp_sizes, setting);
    take_work(&x, arena);
    x.trial.step = step, x.trial.ranks = setting->limits.ranks;
    if (arena_check(arena, err, errlen) < 0 || order_documents(&x, err, errlen) < 0) return -1;
    if (n > 0 && try_all(&x, plan, err, errlen) < 0) return -1;
    arena_reset(arena, mark);
    return 0;
}

// ---- the row of the table

static void* open_flexsp(const Setting* setting, const int* sample, int n_sample, char* err, size_t errlen) {
    (void)sample, (void)n_sample;
    const Setting** planner = (const Setting**)malloc(sizeof *planner);
    if (!planner) return fail(err, errlen, "out of memory"), NULL;
    *planner = setting;
    return planner;
}

static int plan_flexsp(void* planner, Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n, Arena* arena,
                       char* err, size_t errlen) {
    return flexsp_plan(plan, rule, NULL, step, lengths, n, *(const Setting**)planner, NULL, arena, err, errlen);
}

const Planner planner_flexsp = {
    "flexsp", "FlexSP (ASPLOS 2025): rounds of sorted documents, groups of unlike powers of two in each", open_flexsp,
    plan_flexsp, free};
