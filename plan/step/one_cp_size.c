// one_cp_size.c - one cp size for all documents of the step. plan_static, the baseline, has it from the user or takes
// the least that holds the longest document; plan_adaptive chooses it anew for every step.
//
// The ranks are cut into ranks / cp size groups; the rest stays idle. Documents go into rows by best-fit decreasing,
// twice. The first rows are as full as a group allows, which gives the rows of a group, k. The second are as even as
// this number allows: of total / (groups k) tokens, raised by 1/32 at a time until there are at most groups k rows.
// Rows go to the groups, the heaviest first, each to the group with the least work so far.
//
// Groups of equal capacity are a class. With several classes, documents go to classes first, the longest first, each to
// one that holds it and whose groups have the least work so far. Every group has the k of the class that needs most, so
// that ranks in rounds have equally many.
#include <math.h>

#include "plan/step/flex.h"
#include "plan/value/pack.h"

// A class: groups of equal capacity, and their documents.
typedef struct Class {
    int first, n;           // part of Scratch.groups
    int first_doc, n_docs;  // part of Scratch.docs
    int64_t room;           // tokens of a ring rank
    double load;
} Class;

typedef struct Scratch {
    const PlanLimits* limits;
    const int* lengths;
    int* widest;           // (n) tokens that a document takes on a ring rank
    GroupChoices choices;  // of every cp size
    int cp_size, ulysses_size;
    Keyed* groups;   // (ranks) those that hold most first
    Class* classes;  // (ranks)
    int n_classes;
    int *docs, *doc_lengths, *takes;  // (n) class by class; takes: widest
    double* doc_squares;              // (n) likewise, NULL: no document is a tree
    int* ring_docs;                   // (groups)
    double* load;                     // (groups)
    Rows rows;
    Arena* arena;
    ArenaMark unpacked;  // before any packing
} Scratch;

// ---- the cp size and how it is divided

// Returns how many ranks share heads in groups of cp_size; 0: this kind cannot be. Groups begin at multiples of
// cp_size, so runs of `ulysses_size` ranks stay inside nodes if it divides node_size.
static int choose_ulysses_size(const PlanLimits* limits, int cp_size, CpChoice kind) {
    if (kind == CP_CHOICE_RING) return 1;
    if (kind == CP_CHOICE_ULYSSES) return cp_size <= limits->kv_heads ? cp_size : 0;
    int node = limits->node_size;
    if (node >= limits->ranks / cp_size * cp_size || node % cp_size == 0)
        return cp_size <= limits->kv_heads ? cp_size : 1;
    if (cp_size > node && cp_size % node != 0) return 1;  // parts of nodes
    return common_divisor(cp_size, node, limits->kv_heads);
}

// The capacity of the group of cp_size ranks that holds most.
static int widest_group(const PlanLimits* limits, int cp_size) {
    int widest = limits->capacity;
    for (int first = 0; first + cp_size <= limits->ranks && limits->capacities; first += cp_size)
        widest = MAX(widest, group_capacity(limits, first, cp_size));
    return widest;
}

static int64_t room_of(const Scratch* x, int capacity) {
    PlanLimits own = limits_at(x->limits, capacity);
    return ring_rank_capacity(&own, x->ulysses_size);
}

// Fills widest. Returns the number of the longest document that does not fit, -1 if all do.
static int measure(const Scratch* x, int n, int64_t most) {
    int worst = -1;
    for (int i = 0; i < n; i++) {
        x->widest[i] = widest_ring_rank(x->lengths[i], x->cp_size / x->ulysses_size);
        if (x->widest[i] > most && (worst < 0 || x->lengths[i] > x->lengths[worst])) worst = i;
    }
    return worst;
}

// Sets x->cp_size, x->ulysses_size and x->widest. cp_size 0: the least that suffices.
static int choose_cp_size(Scratch* x, int n, int cp_size, CpChoice kind, Err err) {
    static const char* const how[] = {"", " with --cp kind=ulysses", " with --cp kind=ring"};
    const PlanLimits* limits = x->limits;
    GroupChoices* groups = &x->choices;
    if (cp_size < 0 || cp_size > limits->ranks)
        return fail(err, "--cp %d, expected 1 to the %d ranks there are, or 0 for the least that suffices", cp_size,
                    limits->ranks);
    if (cp_size > 0 && !choose_ulysses_size(limits, cp_size, kind))
        return fail(err,
                    "--cp %d with --cp kind=ulysses, but there are %d key/value heads to share; try --cp kind=auto or "
                    "--cp %d",
                    cp_size, limits->kv_heads, limits->kv_heads);
    int longest = 0;
    groups->first = MAX(cp_size, 1), groups->last = cp_size ? cp_size : limits->ranks, groups->how = how[kind];
    for (int i = 1; i < n; i++)
        if (x->lengths[i] > x->lengths[longest]) longest = i;
    int doc = longest;
    for (int d = groups->first; d <= groups->last; d++) {
        groups->ulysses_sizes[d] = choose_ulysses_size(limits, d, kind);
        groups->capacities[d] = widest_group(limits, d);
    }
    for (int d = groups->first; d <= groups->last && groups->ulysses_sizes[d]; d++) {
        x->cp_size = d, x->ulysses_size = groups->ulysses_sizes[d];
        int64_t most = room_of(x, groups->capacities[d]);
        if (n > 0 && widest_ring_rank(x->lengths[longest], d / x->ulysses_size) > most) continue;
        // Borders are rounded, so a document shorter than the longest may take one token more of a ring rank.
        int worst = measure(x, n, most);
        if (worst < 0) return 0;
        doc = worst;
    }
    return refuse_length(doc, x->lengths[doc], limits, groups, err);
}

// ---- classes

static void find_classes(Scratch* x) {
    int groups = x->limits->ranks / x->cp_size;
    for (int g = 0; g < groups; g++)
        x->groups[g] = (Keyed){-(double)group_capacity(x->limits, g * x->cp_size, x->cp_size), g};
    sort_keyed(x->groups, groups);
    x->n_classes = 0;
    for (int g = 0; g < groups; g++) {
        if (g == 0 || x->groups[g].key != x->groups[g - 1].key)
            x->classes[x->n_classes++] = (Class){.first = g, .room = room_of(x, -(int)x->groups[g].key)};
        x->classes[x->n_classes - 1].n++;
    }
}

// The class with the least work among those that hold a document; these begin with the first.
static int least_loaded(const Scratch* x, int doc) {
    int best = 0;
    for (int c = 1; c < x->n_classes && x->widest[doc] <= x->classes[c].room; c++)
        if (x->classes[c].load / x->classes[c].n < x->classes[best].load / x->classes[best].n) best = c;
    return best;
}

// Fills docs, doc_lengths and takes class by class, each in the order of the step.
static int share_documents(Scratch* x, int n, Err err) {
    ArenaMark mark = arena_mark(x->arena);
    int *order = TAKE(x->arena, int, n), *sorted = TAKE(x->arena, int, n), *class_of = TAKE(x->arena, int, n);
    if (arena_check(x->arena, err) < 0) return -1;
    sort_longest_first(order, sorted, x->lengths, n);
    for (int k = 0; k < n; k++) {
        int c = class_of[order[k]] = least_loaded(x, order[k]);
        double seen = seen_tokens(x->limits->squares, order[k], sorted[k]);
        x->classes[c].load += sorted[k] + x->limits->quadratic * sorted[k] * seen;
    }
    for (int c = 0, at = 0; c < x->n_classes; c++) {
        x->classes[c].first_doc = at;
        for (int i = 0; i < n; i++) {
            if (class_of[i] != c) continue;
            if (x->doc_squares) x->doc_squares[at] = x->limits->squares[i];
            x->docs[at] = i, x->doc_lengths[at] = x->lengths[i], x->takes[at++] = x->widest[i];
        }
        x->classes[c].n_docs = at - x->classes[c].first_doc;
    }
    arena_reset(x->arena, mark);
    return 0;
}

// ---- rows

// Packs a class into rows that take at most `room` tokens of a ring rank. room is at least what any document takes.
static int pack(Scratch* x, const Class* c, int64_t room, Err err) {
    arena_reset(x->arena, x->unpacked);
    return pack_rows(&x->rows, x->takes + c->first_doc, c->n_docs, room, x->arena, err);
}

// The tokens of all documents of a class on a ring rank; *longest: the most of one document.
static int64_t sum_of(const Scratch* x, const Class* c, int64_t* longest) {
    int64_t total = 0;
    *longest = 1;
    for (int i = c->first_doc; i < c->first_doc + c->n_docs; i++)
        total += x->takes[i], *longest = MAX(*longest, x->takes[i]);
    return total;
}

static int pack_full(Scratch* x, const Class* c, Err err) {
    int64_t longest, total = sum_of(x, c, &longest);
    return pack(x, c, MAX(MIN(c->room, total), 1), err);
}

// Packs a class into at most `rows` rows, if these hold the documents.
static int pack_evenly(Scratch* x, const Class* c, int rows, Err err) {
    int64_t longest, total = sum_of(x, c, &longest), most = MAX(MIN(c->room, total), 1);
    for (int64_t room = MAX(longest, CEIL_DIV(total, rows));; room += CEIL_DIV(room, 32)) {
        if (pack(x, c, MIN(room, most), err) < 0) return -1;
        if (room >= most || x->rows.n <= rows) return 0;
    }
}

// Deals the rows to groups; each becomes a micro-batch, in this order.
static int deal(Plan* plan, Scratch* x, const Class* c, Err err) {
    int most_docs = x->ulysses_size < x->cp_size ? x->limits->max_ring_docs : plan->n_docs, doc = c->first_doc;
    for (int i = 0; i < x->rows.n; i++) {
        const WeighedRow* row = &x->rows.heaviest[i];
        const int* first = &x->rows.first[row->number];
        int docs = first[1] - first[0], group = -1;
        for (int k = c->first; k < c->first + c->n; k++) {
            int g = x->groups[k].i;
            if (x->ring_docs[g] + docs <= most_docs && (group < 0 || x->load[g] < x->load[group])) group = g;
        }
        if (group < 0)
            return fail(err,
                        "the step has %d documents for %d ring%s of %d ranks, each at most %d documents; try --cp kind="
                        "ulysses, a smaller --cp or fewer --batch-tokens",
                        c->n_docs, c->n, c->n == 1 ? "" : "s", x->cp_size, most_docs);
        x->load[group] += row->cost;
        x->ring_docs[group] += docs;
        plan->micro_batches[plan->n_micro_batches++] =
            (MicroBatch){group * x->cp_size, x->cp_size, x->ulysses_size, doc, docs, 0};
        for (int k = first[0]; k < first[1]; k++) plan->docs[doc++] = x->docs[c->first_doc + x->rows.order[k]];
    }
    return 0;
}

static int plan_classes(Plan* plan, Scratch* x, Err err) {
    int rows = 0, groups = x->limits->ranks / x->cp_size;  // rows: of a group
    for (int g = 0; g < groups; g++) x->load[g] = 0, x->ring_docs[g] = 0;
    for (const Class* c = x->classes; c < x->classes + x->n_classes; c++) {
        if (pack_full(x, c, err) < 0) return -1;
        rows = MAX(rows, CEIL_DIV(x->rows.n, c->n));
    }
    for (const Class* c = x->classes; c < x->classes + x->n_classes; c++) {
        if (c->n_docs > 0 && groups > 1 && pack_evenly(x, c, c->n * rows, err) < 0) return -1;
        if (c->n_docs > 0 &&
            rows_weigh(&x->rows, x->doc_lengths + c->first_doc, x->doc_squares ? x->doc_squares + c->first_doc : NULL,
                       x->limits->quadratic, x->arena, err) < 0)
            return -1;
        if (c->n_docs > 0 && deal(plan, x, c, err) < 0) return -1;
    }
    return 0;
}

int plan_static(Plan* plan, int64_t step, const int* lengths, int n, const PlanLimits* limits, int cp_size,
                CpChoice kind, Arena* arena, Err err) {
    if (plan_begin(plan, step, lengths, n, limits, arena, err) < 0) return -1;
    ArenaMark mark = arena_mark(arena);
    Scratch x = {.limits = limits,
                 .lengths = lengths,
                 .widest = TAKE(arena, int, n),
                 .choices = {TAKE(arena, int, limits->ranks + 1), TAKE(arena, int, limits->ranks + 1), 0, 0, NULL},
                 .groups = TAKE(arena, Keyed, limits->ranks),
                 .classes = TAKE(arena, Class, limits->ranks),
                 .docs = TAKE(arena, int, n),
                 .doc_lengths = TAKE(arena, int, n),
                 .takes = TAKE(arena, int, n),
                 .doc_squares = limits->squares ? TAKE(arena, double, n) : NULL,
                 .ring_docs = TAKE(arena, int, limits->ranks),
                 .load = TAKE(arena, double, limits->ranks),
                 .arena = arena};
    x.unpacked = arena_mark(arena);
    if (arena_check(arena, err) < 0) return -1;
    if (choose_cp_size(&x, n, cp_size, kind, err) < 0) return -1;
    find_classes(&x);
    if (share_documents(&x, n, err) < 0 || plan_classes(plan, &x, err) < 0) return -1;
    arena_reset(arena, mark);
    return 0;
}

// ---- the best of all
//
// plan_static deals the documents at every cp size worth a try, the cost model plays the plan, and the one that ends
// first is kept. The cp sizes worth a try are those that planners use (GroupCost.canonical) and that hold the longest
// document.
//
// Before a cp size is tried it is bounded from below. Groups of speeds v run documents of S tokens and S2 tokens^2, and
// no token travels faster than in messages of the best size:
//   makespan >= (quadratic S2 + per_token S + min v (communication S + micro-batch rows)) / sum v,
// and no micro-batch is shorter than that of the longest document. Cp sizes are tried in the order of this bound. From
// the first that is not below the best makespan on, none can win (except by rounding), so they are not played. A group
// that a border of nodes cuts is bounded as if it were inside, because links across should not be faster.

typedef struct Work {
    double s2, tokens, seen;  // seen: by the longest, seen_tokens
    int longest;
} Work;

// The speeds of the groups of one cp size, as plan_static lays them out.
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
    double micro_batch = (g->quadratic * work->seen + g->per_token) * s / pace->most + rate * s + g->micro_batch;
    return MAX(area / pace->sum, micro_batch);
}

// The least bound over all ways to divide heads that plan_static may take. Negative: none holds the longest document.
static double bound_of_cp_size(const Setting* setting, int cp_size, const Work* work) {
    PlanLimits own = limits_at(&setting->limits, setting->groups[cp_size].capacity);
    Pace pace = group_pace(setting, cp_size);
    double least = -1;
    for (int ulysses_size = MIN(cp_size, setting->limits.kv_heads); ulysses_size > 0; ulysses_size--) {
        if (cp_size % ulysses_size != 0) continue;
        if (setting->kind == CP_CHOICE_RING && ulysses_size > 1) continue;
        if (setting->kind == CP_CHOICE_ULYSSES && ulysses_size < cp_size) break;
        GroupCost g = cost_group(&setting->cost, &own, 0, cp_size, ulysses_size);
        if (!group_holds(&g, work->longest)) continue;
        double bound = bound_of_group(&g, work, &pace);
        if (least < 0 || bound < least) least = bound;
    }
    return least;
}

// Lists the cp sizes worth a try by their bounds, among equals the narrower group first.
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
        double s = lengths[i], seen = seen_tokens(limits->squares, i, lengths[i]);
        work.s2 += s * seen;
        work.tokens += s;
        if (lengths[i] > work.longest) work.longest = lengths[i], work.seen = seen;
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
        if (step_play(&timeline, &trial, lengths, setting, arena, NULL) < 0 || timeline.step >= best) continue;
        best = timeline.step, made = 1;
        plan_copy(plan, &trial);
    }
    arena_reset(arena, mark);
    if (!made && below < INFINITY) return 1;
    // If none of these can be, some other cp size can, or this says why not.
    if (!made && plan_static(plan, step, lengths, n, limits, 0, setting->kind, arena, err) < 0) return -1;
    if (predict_plan(prediction, plan, lengths, setting, arena, err) < 0) return -1;
    if (plan_merge(plan, prediction, lengths, setting, arena, err) < 0) return -1;
    return plan_order(plan, prediction, lengths, setting, arena, err);
}
