// one_cp_size.c - one cp size for all documents of the step: plan_static, the baseline, has it from the user or takes
// the least that holds the longest document; plan_adaptive chooses it anew for every step.
//
// The ranks are cut into ranks / cp size groups; the rest stays idle. Documents go into rows by best-fit decreasing,
// twice. First into rows as full as a group allows: this says how many rows a group runs, k. Then into rows as even as
// this number allows: of total / (groups k) tokens, raised by 1/32 at a time until there are at most groups k rows.
// Rows are dealt to the groups, the heaviest first, each to the group with the least work so far.
#include <math.h>

#include "plan/step/flex.h"
#include "plan/value/pack.h"

typedef struct Scratch {
    int* widest;         // (n) tokens that a document takes of a ring rank
    int* ulysses_sizes;  // (ranks + 1) of each cp size, 0: it cannot be
    int* ring_docs;      // (groups)
    double* load;        // (groups)
    Rows rows;
    Arena* arena;
    ArenaMark unpacked;  // before any packing
} Scratch;

// ---- the cp size and how it is divided

// Ranks that share heads in groups of `cp size`, 0 where this kind cannot be. Groups begin at multiples of the cp size,
// so runs of `ulysses_size` ranks stay inside nodes where ulysses_size divides node_size.
static int choose_ulysses_size(const PlanLimits* limits, int cp_size, CpChoice kind) {
    if (kind == CP_CHOICE_RING) return 1;
    if (kind == CP_CHOICE_ULYSSES) return cp_size <= limits->kv_heads ? cp_size : 0;
    int node = limits->node_size;
    if (node >= limits->ranks / cp_size * cp_size || node % cp_size == 0)
        return cp_size <= limits->kv_heads ? cp_size : 1;
    if (cp_size > node && cp_size % node != 0) return 1;  // parts of nodes
    return common_divisor(cp_size, node, limits->kv_heads);
}

// Fills widest; the number of the longest document among those that do not fit, -1 when all do.
static int measure(int* widest, const int* lengths, int n, const PlanLimits* limits, int ulysses_size, int ring_size) {
    int64_t most = ring_rank_capacity(limits, ulysses_size);
    int worst = -1;
    for (int i = 0; i < n; i++) {
        widest[i] = widest_ring_rank(lengths[i], ring_size);
        if (widest[i] > most && (worst < 0 || lengths[i] > lengths[worst])) worst = i;
    }
    return worst;
}

// Sets *cp_size where it is 0, *ulysses_size and *widest.
static int choose_cp_size(int* cp_size, int* ulysses_size, Scratch* x, const int* lengths, int n,
                          const PlanLimits* limits, CpChoice kind, Err err) {
    if (*cp_size < 0 || *cp_size > limits->ranks)
        return fail(err, "--cp %d, expected 1 to the %d ranks there are, or 0 for the least that suffices", *cp_size,
                    limits->ranks);
    if (*cp_size > 0 && !choose_ulysses_size(limits, *cp_size, kind))
        return fail(err,
                    "--cp %d with --cp kind=ulysses, but there are %d key/value heads to share; try --cp kind=auto or "
                    "--cp %d",
                    *cp_size, limits->kv_heads, limits->kv_heads);
    int longest = 0, first = MAX(*cp_size, 1), last = *cp_size ? *cp_size : limits->ranks;
    for (int i = 1; i < n; i++)
        if (lengths[i] > lengths[longest]) longest = i;
    int doc = longest;
    for (int d = first; d <= last; d++) x->ulysses_sizes[d] = choose_ulysses_size(limits, d, kind);
    for (int d = first; d <= last && x->ulysses_sizes[d]; d++) {
        *cp_size = d, *ulysses_size = x->ulysses_sizes[d];
        if (n > 0 && widest_ring_rank(lengths[longest], d / *ulysses_size) > ring_rank_capacity(limits, *ulysses_size))
            continue;
        // Borders are rounded, so a document shorter than the longest may take one token more of a ring rank.
        int worst = measure(x->widest, lengths, n, limits, *ulysses_size, d / *ulysses_size);
        if (worst < 0) return 0;
        doc = worst;
    }
    static const char* const how[] = {"", " with --cp kind=ulysses", " with --cp kind=ring"};
    return refuse_length(doc, lengths[doc], limits, x->ulysses_sizes, first, last, how[kind], err);
}

// ---- rows

// Rows of documents that take at most `room` tokens of a ring rank together. room is at least what any document takes.
static int pack(Scratch* x, int n, int64_t room, Err err) {
    arena_reset(x->arena, x->unpacked);
    return pack_rows(&x->rows, x->widest, n, room, x->arena, err);
}

static int pack_evenly(Scratch* x, int n, int64_t most, int groups, Err err) {
    int64_t total = 0, room = 1;
    for (int i = 0; i < n; i++) total += x->widest[i], room = MAX(room, x->widest[i]);
    most = MAX(MIN(most, total), 1);
    if (pack(x, n, most, err) < 0) return -1;
    if (groups == 1 || n == 0) return 0;
    int rows = groups * CEIL_DIV(x->rows.n, groups);
    room = MAX(room, CEIL_DIV(total, rows));
    for (;; room += CEIL_DIV(room, 32)) {
        if (pack(x, n, MIN(room, most), err) < 0) return -1;
        if (room >= most || x->rows.n <= rows) return 0;
    }
}

// Rows become micro-batches, in the order in which they are dealt.
static int deal(Plan* plan, Scratch* x, const PlanLimits* limits, int cp_size, int ulysses_size, Err err) {
    int groups = limits->ranks / cp_size, most_docs = ulysses_size < cp_size ? limits->max_ring_docs : plan->n_docs;
    for (int g = 0; g < groups; g++) x->load[g] = 0, x->ring_docs[g] = 0;
    for (int i = 0, doc = 0; i < x->rows.n; i++) {
        const WeighedRow* row = &x->rows.heaviest[i];
        const int* first = &x->rows.first[row->number];
        int docs = first[1] - first[0], group = -1;
        for (int g = 0; g < groups; g++)
            if (x->ring_docs[g] + docs <= most_docs && (group < 0 || x->load[g] < x->load[group])) group = g;
        if (group < 0)
            return fail(err,
                        "the step has %d documents for %d ring%s of %d ranks, each at most %d documents; try --cp kind="
                        "ulysses, a smaller --cp or fewer --batch-tokens",
                        plan->n_docs, groups, groups == 1 ? "" : "s", cp_size, most_docs);
        x->load[group] += row->cost;
        x->ring_docs[group] += docs;
        plan->micro_batches[i] = (MicroBatch){group * cp_size, cp_size, ulysses_size, doc, docs, 0};
        memcpy(plan->docs + doc, x->rows.order + first[0], sizeof(int) * (size_t)docs);
        doc += docs;
    }
    plan->n_micro_batches = x->rows.n;
    return 0;
}

int plan_static(Plan* plan, int64_t step, const int* lengths, int n, const PlanLimits* limits, int cp_size,
                CpChoice kind, Arena* arena, Err err) {
    int ulysses_size = 1;
    if (plan_begin(plan, step, lengths, n, limits, arena, err) < 0) return -1;
    ArenaMark mark = arena_mark(arena);
    Scratch x = {.widest = TAKE(arena, int, n),
                 .ulysses_sizes = TAKE(arena, int, limits->ranks + 1),
                 .ring_docs = TAKE(arena, int, limits->ranks),
                 .load = TAKE(arena, double, limits->ranks),
                 .arena = arena};
    x.unpacked = arena_mark(arena);
    if (arena_check(arena, err) < 0) return -1;
    if (choose_cp_size(&cp_size, &ulysses_size, &x, lengths, n, limits, kind, err) < 0) return -1;
    if (pack_evenly(&x, n, ring_rank_capacity(limits, ulysses_size), limits->ranks / cp_size, err) < 0) return -1;
    if (rows_weigh(&x.rows, lengths, limits->quadratic, arena, err) < 0) return -1;
    if (deal(plan, &x, limits, cp_size, ulysses_size, err) < 0) return -1;
    arena_reset(arena, mark);
    return 0;
}

// ---- the best of all
//
// plan_static deals the documents at every cp size worth a try, the cost model plays what comes out, and the plan that
// ends first is kept. Worth a try are the cp sizes that planners use (GroupCost.canonical) and that hold the longest
// document.
//
// Before a cp size is tried it is bounded from below. Groups of speeds v run documents of S tokens and S2 tokens^2, no
// token communicated faster than in messages of the best size:
//   makespan >= (quadratic S2 + per_token S + min v (communication S + micro-batch rows)) / sum v,
// and no micro-batch is shorter than that of the longest document. Cp sizes are tried in the order of this bound: from
// the first that is not below the best makespan on, none can win (but by a rounding), and the others cost nothing. A
// group that a border of nodes cuts is bounded as if it were inside: links across are taken not to be the faster
// ones.

typedef struct Work {
    double s2, tokens;
    int longest;
} Work;

// Speeds of the groups of one cp size, as plan_static lays them out.
typedef struct Pace {
    double sum, least, most;
} Pace;

static Pace group_pace(const Setting* setting, int cp_size) {
    int groups = setting->limits.ranks / cp_size;
    if (!setting->speeds) return (Pace){groups, 1, 1};
    Pace pace = {0};
    for (int g = 0; g < groups; g++) {
        double slowest = slowest_speed(setting, g * cp_size, cp_size);
        pace.sum += slowest;
        pace.least = g ? MIN(pace.least, slowest) : slowest;
        pace.most = MAX(pace.most, slowest);
    }
    return pace;
}

static double bound_of_group(const GroupCost* g, const Work* work, const Pace* pace) {
    double row = (double)g->room * (g->cp_size / g->ulysses_size), rows = work->tokens / row, s = work->longest;
    double rate = least_token_ms(g, row, HIDING_OWN);
    double area = g->quadratic * work->s2 + g->per_token * work->tokens +
                  pace->least * (rate * work->tokens + g->micro_batch * MAX(rows, 1));
    double micro_batch = (g->quadratic * s + g->per_token) * s / pace->most + rate * s + g->micro_batch;
    return MAX(area / pace->sum, micro_batch);
}

// The least over every way to divide heads that plan_static may take. Negative: none holds the longest document.
static double bound_of_cp_size(const Setting* setting, int cp_size, const Work* work) {
    Pace pace = group_pace(setting, cp_size);
    double least = -1;
    for (int ulysses_size = MIN(cp_size, setting->limits.kv_heads); ulysses_size > 0; ulysses_size--) {
        if (cp_size % ulysses_size != 0) continue;
        if (setting->kind == CP_CHOICE_RING && ulysses_size > 1) continue;
        if (setting->kind == CP_CHOICE_ULYSSES && ulysses_size < cp_size) break;
        GroupCost g = cost_group(&setting->cost, &setting->limits, 0, cp_size, ulysses_size);
        if (!group_holds(&g, work->longest)) continue;
        double bound = bound_of_group(&g, work, &pace);
        if (least < 0 || bound < least) least = bound;
    }
    return least;
}

// Cp sizes worth a try by their bounds, of equal bounds the narrower group first.
static int list_candidates(Keyed* list, const Setting* setting, const Work* work) {
    int n = 0;
    for (int cp_size = setting->limits.ranks; cp_size > 0; cp_size--) {
        if (!setting->groups[cp_size].canonical) continue;
        double bound = bound_of_cp_size(setting, cp_size, work);
        if (bound < 0) continue;
        list[n++] = (Keyed){bound, cp_size};
    }
    sort_keyed(list, n);
    return n;
}

int plan_adaptive(Plan* plan, Prediction* prediction, int64_t step, const int* lengths, int n, double below,
                  const Setting* setting, Arena* arena, Err err) {
    const PlanLimits* limits = &setting->limits;
    if (plan_begin(plan, step, lengths, n, limits, arena, err) < 0) return -1;
    Work work = {0};
    for (int i = 0; i < n; i++) {
        double s = lengths[i];
        work.s2 += s * s;
        work.tokens += s;
        work.longest = MAX(work.longest, lengths[i]);
    }
    ArenaMark mark = arena_mark(arena);
    Keyed* list = TAKE(arena, Keyed, limits->ranks);
    if (arena_check(arena, err) < 0) return -1;
    double best = below;
    int made = 0;
    ArenaMark untried = arena_mark(arena);
    for (int i = 0, candidates = list_candidates(list, setting, &work); i < candidates; i++) {
        Plan trial;
        Timeline timeline;
        if (list[i].key >= best) break;
        arena_reset(arena, untried);
        if (plan_static(&trial, step, lengths, n, limits, list[i].i, setting->kind, arena, NULL) < 0) continue;
        if (step_play(&timeline, &trial, lengths, setting, arena, NULL) < 0 || timeline.makespan >= best) continue;
        best = timeline.makespan, made = 1;
        plan_copy(plan, &trial);
    }
    arena_reset(arena, mark);
    if (!made && below < INFINITY) return 1;
    // Where none of these can be, either some other cp size can or this says why not.
    if (!made && plan_static(plan, step, lengths, n, limits, 0, setting->kind, arena, err) < 0) return -1;
    if (predict_plan(prediction, plan, lengths, setting, arena, err) < 0) return -1;
    return plan_merge(plan, prediction, lengths, setting, arena, err);
}
