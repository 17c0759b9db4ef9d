// plan_static.c - one cp size for all documents of the step, the baseline.
//
// The ranks are cut into ranks / cp size groups; the rest stays idle. Documents go into rows by best-fit decreasing,
// twice. First into rows as full as a group allows: this says how many rows a group runs, k. Then into rows as even as
// this number allows: of total / (groups k) tokens, raised by 1/32 at a time until there are at most groups k rows.
// Rows are dealt to the groups, the heaviest first, each to the group with the least work so far.
#include "plan/value/pack.h"
#include "plan/value/plan.h"

typedef struct Scratch {
    int* widest;     // (n) tokens that a document takes of a ring rank
    int* ring_docs;  // (groups)
    double* load;    // (groups)
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
    int ulysses_size = MIN(cp_size, limits->kv_heads);
    while (cp_size % ulysses_size != 0 || node % ulysses_size != 0) ulysses_size--;
    return ulysses_size;
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

static int refuse_cp_size(int doc, const int* lengths, const PlanLimits* limits, int cp_size, int ulysses_size,
                          Err err) {
    int s = lengths[doc];
    return fail(err,
                "document %d of the step has %d tokens, and a group of %d rank%s (%s) at capacity %d holds %d; try a "
                "larger --cp, 0 for the least that suffices, or --capacity %lld",
                doc, s, cp_size, cp_size == 1 ? "" : "s",
                cp_kind_name(cp_kind(&(MicroBatch){.cp_size = cp_size, .ulysses_size = ulysses_size})),
                limits->capacity, longest_fitting(limits, s, ulysses_size, cp_size / ulysses_size),
                (long long)capacity_for(limits, s, ulysses_size, cp_size / ulysses_size));
}

static int refuse_all_cp_sizes(int doc, const int* lengths, const PlanLimits* limits, CpChoice kind, Err err) {
    int s = lengths[doc], holds = 0, at = 0;
    int64_t capacity = 0;
    for (int cp_size = 1; cp_size <= limits->ranks; cp_size++) {
        int ulysses_size = choose_ulysses_size(limits, cp_size, kind);
        if (!ulysses_size) continue;
        int fits = longest_fitting(limits, s, ulysses_size, cp_size / ulysses_size);
        int64_t needed = capacity_for(limits, s, ulysses_size, cp_size / ulysses_size);
        if (fits > holds) holds = fits, at = cp_size;
        if (!capacity || needed < capacity) capacity = needed;
    }
    return fail(err,
                "document %d of the step has %d tokens, and no group of up to %d ranks holds more than %d at capacity "
                "%d (--cp %d does)%s; try --capacity %lld or more ranks",
                doc, s, limits->ranks, holds, limits->capacity, at,
                kind == CP_CHOICE_AUTO      ? ""
                : kind == CP_CHOICE_ULYSSES ? " with --cp kind=ulysses"
                                            : " with --cp kind=ring",
                (long long)capacity);
}

// Sets *cp_size where it is 0, *ulysses_size and *widest.
static int choose_cp_size(int* cp_size, int* ulysses_size, int* widest, const int* lengths, int n,
                          const PlanLimits* limits, CpChoice kind, Err err) {
    if (*cp_size < 0 || *cp_size > limits->ranks)
        return fail(err, "--cp %d, expected 1 to the %d ranks there are, or 0 for the least that suffices", *cp_size,
                    limits->ranks);
    if (*cp_size > 0) {
        *ulysses_size = choose_ulysses_size(limits, *cp_size, kind);
        if (!*ulysses_size)
            return fail(err,
                        "--cp %d with --cp kind=ulysses, but there are %d key/value heads to share; try --cp kind="
                        "auto or --cp %d",
                        *cp_size, limits->kv_heads, limits->kv_heads);
        int doc = measure(widest, lengths, n, limits, *ulysses_size, *cp_size / *ulysses_size);
        return doc < 0 ? 0 : refuse_cp_size(doc, lengths, limits, *cp_size, *ulysses_size, err);
    }
    int longest = 0;
    for (int i = 1; i < n; i++)
        if (lengths[i] > lengths[longest]) longest = i;
    int doc = longest;
    for (int d = 1; d <= limits->ranks; d++) {
        *cp_size = d;
        *ulysses_size = choose_ulysses_size(limits, d, kind);
        if (!*ulysses_size) break;  // heads: wider groups neither
        if (n > 0 && widest_ring_rank(lengths[longest], d / *ulysses_size) > ring_rank_capacity(limits, *ulysses_size))
            continue;
        // Borders are rounded, so a document shorter than the longest may take one token more of a ring rank.
        int worst = measure(widest, lengths, n, limits, *ulysses_size, d / *ulysses_size);
        if (worst < 0) return 0;
        doc = worst;
    }
    return refuse_all_cp_sizes(doc, lengths, limits, kind, err);
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
                 .ring_docs = TAKE(arena, int, limits->ranks),
                 .load = TAKE(arena, double, limits->ranks),
                 .arena = arena};
    x.unpacked = arena_mark(arena);
    if (arena_check(arena, err) < 0) return -1;
    if (choose_cp_size(&cp_size, &ulysses_size, x.widest, lengths, n, limits, kind, err) < 0) return -1;
    if (pack_evenly(&x, n, ring_rank_capacity(limits, ulysses_size), limits->ranks / cp_size, err) < 0) return -1;
    if (rows_weigh(&x.rows, lengths, limits->quadratic, arena, err) < 0) return -1;
    if (deal(plan, &x, limits, cp_size, ulysses_size, err) < 0) return -1;
    arena_reset(arena, mark);
    return 0;
}
