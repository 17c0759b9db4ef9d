// bound.c - lower bounds of a step's makespan, see bound.h; L3 after Turek, Wolf and Yu (1992), Ludwig and Tiwari
// (1994).
//
// A document does the least work alone on one rank: heads divide evenly, nothing is communicated, and V_d / d never
// falls. So only documents that do not fit one rank, or take longer there than the guess, look at all groups. For one
// group w(s, d) = a s^2 + b s, with coefficients that rise with d nearly everywhere. So a search over groups by cp size
// ends once the least remaining a and b cannot win.
#include "plan/cost/bound.h"

#include <math.h>
#include <stdlib.h>

#include "plan/base/sort.h"

// Fixed share of L3 per micro-batch from which on whole micro-batches are looked at.
static const double dear_micro_batch = 0.005;

typedef struct Group {
    const GroupCost* cost;
    double time2, time1;    // ms a token^2 and a token of one document, on the fastest rank, without communication
    double work2, work1;    // the same coefficients of w
    double least2, least1;  // least work2 and work1 of this and later groups
} Group;

typedef struct Groups {
    const int* sorted;      // (documents) lengths, descending
    const double* squares;  // (documents) PlanLimits.squares
    double hides[2];        // lambda, forward and backward
    double credit;          // share of local attention that may hide the exchanges that lambda leaves
    int n, n_others;
    double capacity;    // capacity of the largest rank
    double* held;       // (ranks + 1) as in WholeMicroBatches
    Group* list;        // (n) by cp size; [0] is one rank
    int* first;         // (ranks + 1) first group of a cp size, or of the next larger one that has any
    GroupCost* others;  // (GROUP_ULYSSES_SIZES ranks) costs of groups that the setting lacks
    double* speeds;     // (ranks) ascending
    DensePart* dense;   // (documents) and their work
} Groups;

// ---- what groups cost

// The minimum is at a point or at the end, because each straight piece is p + q bytes.
double least_byte_ms(const LinkTable* link, double bytes) {
    if (link->n == 0) return 0;
    double least = link_ms(link, bytes) / bytes;
    for (int i = 0; i < link->n && link->bytes[i] <= bytes; i++)
        if (link->bytes[i] > 0) least = MIN(least, link->ms[i] / link->bytes[i]);
    return least;
}

// Returns the part that lambda counts as hidden of what other attention may hide, in communication i; -1: linear.
static double part_hidden(const GroupCost* g, int i, const double hides[2]) {
    double first[2];
    for (int k = 0; k < 2; k++) first[k] = i < 0 ? g->first[k].linear : g->first[k].at == i ? g->first[k].count : 0;
    double all = first[0] + first[1];
    return all > 0 ? (hides[0] * first[0] + hides[1] * first[1]) / all : hides[1];
}

static double shown_of(const double shown[N_HIDINGS], double hidden) {
    return shown[HIDING_OWN] + hidden * (shown[HIDING_ANY] - shown[HIDING_OWN]);
}

static double token_ms(const GroupCost* g, double most_tokens, const double hides[2]) {
    double ms = 0;
    for (int i = 0; i < g->n_communications; i++) {
        const Communication* e = &g->communications[i];
        double shown = shown_of(e->shown, part_hidden(g, i, hides));
        if (e->bytes_per_token > 0)
            ms += shown * e->bytes_per_token * least_byte_ms(e->link, e->bytes_per_token * most_tokens);
    }
    return shown_of(g->shown_linear, part_hidden(g, -1, hides)) + g->link_scale * ms;
}

double least_token_ms(const GroupCost* g, double most_tokens, Hiding hides) {
    double all = hides == HIDING_ANY;
    return token_ms(g, most_tokens, (double[2]){all, all});
}

// slow: V_d.
static void add_group(Groups* x, const GroupCost* g, double fastest, double slow) {
    double tokens = (double)g->cp_size * g->capacity;
    double shared = token_ms(g, tokens, x->hides) + g->micro_batch / (g->cp_size * x->capacity);
    x->list[x->n++] = (Group){.cost = g,
                              .time2 = g->quadratic / fastest,
                              .time1 = g->per_token / fastest,
                              .work2 = g->cp_size * g->quadratic * (g->cp_size == 1 ? 1 - x->credit : 1),
                              .work1 = g->cp_size * g->per_token + slow * shared};
}

// Adds the other ulysses sizes that AUTO allows. If heads divide evenly on a published machine, only one that
// communicates for less can be better.
static void add_others(Groups* x, const Setting* setting, int cp_size, double fastest, double slow) {
    const GroupCost* known = &setting->groups[cp_size];
    int ulysses_sizes[GROUP_ULYSSES_SIZES],
        even = known->ulysses_size > 0 && setting->limits.kv_heads % known->ulysses_size == 0;
    if (setting->kind != CP_CHOICE_AUTO || cp_size == 1) return;
    even = even && setting->cost.n_groups > 0 && !known->parts;
    PlanLimits own = limits_at(&setting->limits, known->capacity);
    for (int i = group_ulysses_sizes(ulysses_sizes, &setting->limits, cp_size) - 1; i >= 0; i--) {
        if (ulysses_sizes[i] == known->ulysses_size) continue;
        GroupCost* other = &x->others[x->n_others++];
        *other = cost_group(&setting->cost, &own, 0, cp_size, ulysses_sizes[i]);
        if (even && other->link_linear >= known->link_linear) continue;
        add_group(x, other, fastest, slow);
    }
}

// Returns the sum of speeds.
static double weigh_groups(Groups* x, const Setting* setting) {
    int ranks = setting->limits.ranks;
    double slow = 0;
    x->n = x->n_others = 0;
    for (int r = 0; r < ranks; r++) x->speeds[r] = slowest_speed(setting, r, 1);
    if (setting->speeds) sort_doubles(x->speeds, (size_t)ranks);
    for (int d = 1; d <= ranks; d++) {
        slow += x->speeds[d - 1];
        x->first[d] = x->n;
        if (setting->groups[d].ulysses_size > 0) add_group(x, &setting->groups[d], x->speeds[ranks - 1], slow);
        add_others(x, setting, d, x->speeds[ranks - 1], slow);
    }
    double least2 = INFINITY, least1 = INFINITY;
    for (int i = x->n - 1; i >= 0; i--) {
        least2 = x->list[i].least2 = MIN(x->list[i].work2, least2);
        least1 = x->list[i].least1 = MIN(x->list[i].work1, least1);
    }
    return slow;
}

// A document of the list: tokens, and seen_tokens.
typedef struct Doc {
    double s, seen;
} Doc;

static Doc doc_at(const Groups* x, int i) { return (Doc){x->sorted[i], seen_tokens(x->squares, i, x->sorted[i])}; }

static int is_as_before(const Groups* x, int i) {
    return i > 0 && x->sorted[i] == x->sorted[i - 1] && (!x->squares || x->squares[i] == x->squares[i - 1]);
}

static double time_on(const Group* g, Doc d) {
    double s = d.s, attention = g->time2 * s * d.seen;
    return attention + g->time1 * s + group_shown_ms(g->cost, attention, s) + g->cost->micro_batch;
}

static double work_on(const Group* g, Doc d) { return g->work2 * d.s * d.seen + g->work1 * d.s; }

// A lower bound of the work on any group from g on.
static double least_from(const Group* g, Doc d) { return g->least2 * d.s * d.seen + g->least1 * d.s; }

// Returns whether document i alone on one rank ends by tau.
static int ends_by(const Groups* x, int i, double tau) {
    return group_holds(x->list[0].cost, x->sorted[i]) && time_on(&x->list[0], doc_at(x, i)) <= tau;
}

// Returns the first group that could hold s tokens.
static int first_group(const Groups* x, int s) { return x->first[CEIL_DIV(s, (int)x->capacity)]; }

static double least_work(const Groups* x, int k, double tau) {
    int s = x->sorted[k];
    Doc d = doc_at(x, k);
    double least = INFINITY;
    if (ends_by(x, k, tau)) return work_on(&x->list[0], d);
    for (int i = first_group(x, s); i < x->n && least_from(&x->list[i], d) < least; i++) {
        const Group* g = &x->list[i];
        double work = work_on(g, d);
        if (work < least && group_holds(g->cost, s) && time_on(g, d) <= tau) least = work;
    }
    return least;
}

// Sums the least work of documents first .. end on groups that end each by tau; infinite: one has none. Micro-batches'
// `own` ms are left out. each: NULL, or (documents) the work of every one.
static double work_by(const Groups* x, int first, int end, double tau, double own, DensePart* each) {
    double sum = 0, work = 0;
    for (int i = first; i < end; i++) {
        double s = x->sorted[i];
        if (i == first || !is_as_before(x, i)) work = least_work(x, i, tau) - own * s / x->capacity;
        if (each) each[i] = (DensePart){s, work};
        sum += work;
    }
    return sum;
}

static double least_time(const Groups* x, int k, const Group** fastest) {
    double least = INFINITY;
    for (int i = first_group(x, x->sorted[k]); i < x->n; i++) {
        const Group* g = &x->list[i];
        if (!group_holds(g->cost, x->sorted[k])) continue;
        double ms = time_on(g, doc_at(x, k));
        if (ms < least) least = ms, *fastest = g;
    }
    return least;
}

// Usually the longest document's. A shorter one may decide if it does not fit the fastest group, since a ring's chunks
// are uneven by a token or two, or if the longest is a tree that takes less.
static double longest_least_time(const Groups* x, int n, int* longest) {
    const Group* fastest = x->list;
    double most = least_time(x, 0, &fastest);
    *longest = 0;
    for (int i = 1; i < n; i++) {
        if (is_as_before(x, i)) continue;
        if (ends_by(x, i, most) && !x->squares) break;
        if (group_holds(fastest->cost, x->sorted[i]) && time_on(fastest, doc_at(x, i)) <= most) continue;
        const Group* other = fastest;
        double ms = least_time(x, i, &other);
        if (ms > most) most = ms, fastest = other, *longest = i;
    }
    return most;
}

// ---- L3

// Counts the documents up to the last that does not end on one rank by tau; all later ones do.
static int count_wide(const Groups* x, int n, double tau) {
    int wide = 0;
    for (int i = 0; i < n; i++) {
        if (!ends_by(x, i, tau)) wide = i + 1;
        else if (!x->squares) break;
    }
    return wide;
}

// Finds the least tau at which the work fits. low: a lower bound that every document reaches.
static double bisect(const Groups* x, int n, double low, double speeds) {
    int wide = count_wide(x, n, low);
    double narrow = work_by(x, wide, n, low, 0, NULL);
    double high = (work_by(x, 0, wide, low, 0, NULL) + narrow) / speeds;  // later there is no more work, so it fits
    while (high - low > 1e-6 * low) {
        double tau = low + (high - low) / 2;
        if (narrow + work_by(x, 0, wide, tau, 0, NULL) <= tau * speeds) high = tau;
        else low = tau;
    }
    return low;
}

// ---- whole micro-batches
//
// A rank runs one micro-batch or two, never 1.4. If a micro-batch costs much by itself (f ms), this is most of the
// distance between L3 and real plans.
//
// A rank with m micro-batches has tau - m f ms for documents, and at most m C tokens, C being the largest capacity. n
// ranks hold at most H(n) in a pass each, n C if all are alike. For any j, let n of the R ranks run j micro-batches or
// fewer. G(t) is the most work of any t tokens of the step (those with most work a token first), and b the least ms a
// token. Then
//   work   <= min(n (tau - f), G(j H(n)) + A) + (R - n) (tau - (j + 1) f)
//   tokens <= j H(n) + (R - n) max over m > j of min(m C, (tau - m f) / b)
// A is work that any rank may do, whatever its tokens: none for L3, exchanges for L4 (bound_shares.c). If for some j no
// n satisfies both, tau is too short. Ours; the idea is that of configuration bounds for bin packing (Gilmore and
// Gomory 1961), relaxed to two kinds of ranks.
//
// In rounds all ranks have at most H(R) tokens a round, so there are at least M = ceil(tokens / H(R)). Each lasts f
// beyond the work of any rank in it: work <= R (tau - M f).

enum { MOST_MICRO_BATCHES = 4 };

void most_held(double* held, const PlanLimits* limits) {
    for (int r = 0; r < limits->ranks; r++) held[r + 1] = -rank_capacity(limits, r);
    held[0] = 0;
    if (limits->capacities) sort_doubles(held + 1, (size_t)limits->ranks);  // negative, so the largest come first
    for (int r = 0; r < limits->ranks; r++) held[r + 1] = held[r] - held[r + 1];
}

int denser_first(const void* a, const void* b) {
    const DensePart *x = (const DensePart*)a, *y = (const DensePart*)b;
    double p = x->work * y->tokens, q = y->work * x->tokens;
    if (p != q) return p > q ? -1 : 1;
    return (x->tokens < y->tokens) - (x->tokens > y->tokens);  // equal in both: alike
}

// Returns the most tokens that a rank with more than j micro-batches can have done by tau.
static double most_tokens(const WholeMicroBatches* x, int j, double tau) {
    double most = 0;
    for (int m = j + 1; m * x->micro_batch < tau; m++) {
        double by_room = m * x->held[1], by_time = (tau - m * x->micro_batch) / x->linear;
        most = MAX(most, MIN(by_room, by_time));
        if (by_time < by_room) break;  // more micro-batches leave less time
    }
    return most;
}

static int some_share_suffices(const WholeMicroBatches* x, int j, double tau, double work, double tokens) {
    double many = MAX(tau - (j + 1) * x->micro_batch, 0), of_many = most_tokens(x, j, tau), taken = 0, dense = 0;
    for (int n = 0, i = 0; n <= x->ranks; n++) {
        double room = j * x->held[n];
        for (; i < x->n && taken + x->parts[i].tokens <= room; i++)
            taken += x->parts[i].tokens, dense += x->parts[i].work;
        double partly = i < x->n ? x->parts[i].work * (room - taken) / x->parts[i].tokens : 0;
        double few = MIN(n * MAX(tau - x->micro_batch, 0), dense + partly + x->apart);
        if (few + (x->ranks - n) * many >= work && room + (x->ranks - n) * of_many >= tokens) return 1;
    }
    return 0;
}

int whole_micro_batches_suffice(const WholeMicroBatches* x, double tau, double work) {
    double tokens = 0;
    work *= 1 - 1e-12;  // the order of summing parts must not matter
    for (int i = 0; i < x->n; i++) tokens += x->parts[i].tokens;
    if (work > x->ranks * (tau - x->rounds * x->micro_batch)) return 0;
    for (int j = 0; j < MOST_MICRO_BATCHES && (j + 1) * x->micro_batch < tau; j++)
        if (!some_share_suffices(x, j, tau, work, tokens)) return 0;
    return 1;
}

// Finds the least tau from l3 on at which whole micro-batches suffice, to a relative 1e-4, on ranks of speed 1.
static double raise_by_micro_batches(const Groups* x, int n, const Setting* setting, double l3) {
    const GroupCost* one = x->list[0].cost;
    int ranks = setting->limits.ranks, wide = count_wide(x, n, l3);
    double low = l3, high = l3, step = 0.01, tokens = 0, own = one->micro_batch;
    double narrow = work_by(x, wide, n, l3, own, x->dense);
    double work = narrow + work_by(x, 0, wide, l3, own, x->dense);
    qsort(x->dense, (size_t)n, sizeof(DensePart), denser_first);
    for (int i = 0; i < n; i++) tokens += x->sorted[i];
    double rounds = setting->rounds ? ceil(tokens / x->held[ranks]) : 0;
    WholeMicroBatches micro_batches = {ranks, x->held, rounds, own, one->per_token, 0, x->dense, n};
    while (!whole_micro_batches_suffice(&micro_batches, high, work)) {
        low = high, high = l3 * (1 + step), step *= 2;
        work = narrow + work_by(x, 0, wide, high, own, NULL);
    }
    while (high - low > 1e-4 * low) {
        double tau = low + (high - low) / 2;
        work = narrow + work_by(x, 0, wide, tau, own, NULL);
        if (whole_micro_batches_suffice(&micro_batches, tau, work)) high = tau;
        else low = tau;
    }
    return low;
}

// Returns L3 at the current lambda, or `least` if that is more; *l1: L1.
static double least_tau(Groups* x, double* l1, double least, int n, const Setting* setting) {
    double speeds = weigh_groups(x, setting);
    *l1 = work_by(x, 0, n, INFINITY, 0, NULL) / speeds;
    double tau = bisect(x, n, MAX(*l1, least), speeds);
    if (!setting->speeds && x->list[0].cost->micro_batch > dear_micro_batch * tau)
        tau = raise_by_micro_batches(x, n, setting, tau);
    return tau;
}

static void find_bounds(Bounds* bounds, Groups* x, int n, const Setting* setting) {
    static const double lambda[][2] = {{1, 1}, {0, 1}, {0, 0}};
    // Sums of n numbers, here and in whatever is compared with the bounds, are exact to n 2^-53 of themselves.
    double down = 1 - (n + 16) * 0x1p-51, l1;
    most_held(x->held, &setting->limits);
    x->capacity = x->held[1];
    weigh_groups(x, setting);
    bounds->l2 = longest_least_time(x, n, &bounds->longest);
    bounds->alone = bounds->l3 = bounds->beside = least_tau(x, &bounds->l1, bounds->l2, n, setting);
    for (int i = 0; i < COUNT(lambda) && !setting->no_overlap; i++) {
        x->hides[0] = lambda[i][0], x->hides[1] = lambda[i][1];
        x->credit = (1 - x->hides[0]) / 3 + 2 * (1 - x->hides[1]) / 3;
        bounds->beside = least_tau(x, &l1, i ? bounds->beside : bounds->l2, n, setting);
        if (i == 0) bounds->l1 = l1, bounds->l3 = bounds->beside;
    }
    bounds->alone = MAX(bounds->alone, bounds->beside) * down;
    bounds->l1 *= down, bounds->l2 *= down, bounds->l3 *= down, bounds->beside *= down;
    bounds->l3 = MAX(bounds->l3, MAX(bounds->l1, bounds->l2));
}

int bounds_of(Bounds* bounds, const int* sorted, int n, const Setting* setting, Arena* arena, Err err) {
    int ranks = setting->limits.ranks;
    *bounds = (Bounds){.longest = -1};
    if (n == 0) return 0;
    ArenaMark mark = arena_mark(arena);
    Groups x = {.sorted = sorted,
                .squares = setting->limits.squares,
                .list = TAKE(arena, Group, (GROUP_ULYSSES_SIZES + 1) * ranks),
                .first = TAKE(arena, int, ranks + 1),
                .others = TAKE(arena, GroupCost, GROUP_ULYSSES_SIZES * ranks),
                .speeds = TAKE(arena, double, ranks),
                .held = TAKE(arena, double, ranks + 1),
                .dense = TAKE(arena, DensePart, n)};
    if (arena_check(arena, err) < 0) return -1;
    find_bounds(bounds, &x, n, setting);
    double tokens = 0;
    for (int i = 0; i < n; i++) tokens += sorted[i];
    bounds->step = weights_bound_ms(&setting->weights, bounds->beside,
                                    setting->rounds ? ceil(tokens / x.held[ranks]) : 1, setting->groups[1].micro_batch);
    arena_reset(arena, mark);
    return 0;
}
