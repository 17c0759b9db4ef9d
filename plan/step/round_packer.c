// round_packer.c - packs the documents of one round to a target time, see round_packer.h.
//
// All ranks wait for the last one, so what a micro-batch costs by itself is paid once for the round, and a rank that
// nothing has begun on is free to take. Longest first, each document takes the least cp size d with which it ends by
// the target; there the micro-batch that ends last of those that still have time and room (best fit). Where none has, a
// document that fits one rank goes beside what ranks share, into the same pass (timeline.h): there its attention hides
// their exchange, and it has none of its own. Where that does not fit either, it joins a wider group at the least work
// beyond its own, or begins one on ranks that are free: the price of a free rank says which. Where nearly all tokens
// that ranks have room for are taken, best fit ends groups by time and leaves room over: a way that levels gives each
// document to the group that ends first.
#include "plan/step/round_packer.h"

#include <math.h>

RoundSearch round_take(const int* sorted, int n, const Setting* setting, Arena* arena) {
    const PlanLimits* limits = &setting->limits;
    int ranks = limits->ranks, n_bins = 0;
    RoundSearch x = {.setting = setting,
                     .sorted = sorted,
                     .sizes = TAKE(arena, int, ranks),
                     .least = TAKE(arena, int, n),
                     .ms = TAKE(arena, double, (size_t)LEAST_SIZES* n),
                     .alone = TAKE(arena, double, n),
                     .work = TAKE(arena, double, n + 1),
                     .tokens = TAKE(arena, double, n + 1),
                     .node = MIN(limits->node_size, ranks),
                     .bins = TAKE(arena, Bin, ranks),
                     .bin_of = TAKE(arena, int, n),
                     .rank_of = TAKE(arena, int, n),
                     .wide = TAKE(arena, int, ranks),
                     .attention = TAKE(arena, double, ranks),
                     .linear = TAKE(arena, double, ranks),
                     .local_tokens = TAKE(arena, int64_t, ranks),
                     .begin = TAKE(arena, int, ranks + 1),
                     .n_of_size = TAKE(arena, int, ranks),
                     .node_free = TAKE(arena, int, ranks),
                     .taken = TAKE(arena, char, ranks)};
    x.nodes = CEIL_DIV(ranks, x.node);
    if (arena->missing) return x;
    for (int d = 1; d <= ranks; d++) {
        if (!setting->groups[d].ulysses_size || !setting->groups[d].canonical) continue;
        x.begin[x.n_sizes] = n_bins;
        x.sizes[x.n_sizes++] = d;
        n_bins += ranks / d;
    }
    x.of_size = TAKE(arena, int, n_bins);
    return x;
}

static const GroupCost* group_at(const RoundSearch* x, int size) { return &x->setting->groups[x->sizes[size]]; }

static double ms_on(const GroupCost* g, int s) { return group_holds(g, s) ? document_ms(g, s) : INFINITY; }

static void weigh_document(RoundSearch* x, int k) {
    int s = x->sorted[k], least = 0;
    while (least < x->n_sizes - 1 && !group_holds(group_at(x, least), s)) least++;
    x->least[k] = least;
    for (int i = 0; i < LEAST_SIZES && least + i < x->n_sizes; i++)
        x->ms[LEAST_SIZES * k + i] = ms_on(group_at(x, least + i), s);
}

void round_begin(RoundSearch* x, int n) {
    const Setting* setting = x->setting;
    const GroupCost* one = &setting->groups[1];
    x->fastest = x->speeds = x->placed = 0;
    for (int r = 0; r < setting->limits.ranks; r++) {
        double speed = setting->speeds ? setting->speeds[r] : 1;
        x->fastest = MAX(x->fastest, speed), x->speeds += speed;
    }
    x->room = (double)setting->limits.capacity * setting->limits.ranks;
    x->work[0] = x->tokens[0] = 0;
    for (int k = 0; k < n; k++) {
        double s = x->sorted[k];
        x->alone[k] = group_holds(one, x->sorted[k]) ? document_ms(one, s) : INFINITY;
        weigh_document(x, k);
        x->work[k + 1] = x->work[k] + (setting->cost.quadratic * s + setting->cost.per_token) * s;
        x->tokens[k + 1] = x->tokens[k] + s;
    }
}

double round_bound(const RoundSearch* x, int longest, double tokens, double work) {
    double s = x->sorted[longest], own = x->setting->groups[1].micro_batch, least = INFINITY, first[2];
    if (tokens > x->room) return INFINITY;
    if (x->alone[longest] < INFINITY && x->alone[longest] / x->fastest <= work / x->speeds)
        return own + work / x->speeds;
    for (int i = 0; i < x->n_sizes; i++) {
        const GroupCost* g = &x->setting->groups[x->sizes[i]];
        if (!group_holds(g, x->sorted[longest])) continue;
        group_hidden_ms(first, g, g->quadratic * s * s, s, NULL);
        double hidden = x->setting->no_overlap ? 0 : first[0] + first[1];
        least = fmin(least, document_ms_at(g, s, document_ms(g, s), x->fastest) - hidden);
    }
    return own + MAX(work / x->speeds, least);
}

// ---- one guess

// A document at some cp size.
typedef struct Task {
    const GroupCost* g;
    int size;        // its place in sizes
    double t;        // ms at full speed
    int64_t tokens;  // of a ring rank
    int s;
} Task;

// From the least size on that holds it; t is infinite where this one does not.
static Task task_at(const RoundSearch* x, int k, int size) {
    const GroupCost* g = group_at(x, size);
    int s = x->sorted[k], i = size - x->least[k];
    double t = i < LEAST_SIZES ? x->ms[LEAST_SIZES * k + i] : ms_on(g, s);
    return (Task){g, size, t, t < INFINITY ? document_takes(g, s) : 0, s};
}

// The least cp size with which the document ends by the target; 0: none.
static int least_task(const RoundSearch* x, int k, int least, double target, Task* task) {
    for (int i = x->least[k]; i < x->n_sizes; i++) {
        if (x->sizes[i] < least) continue;
        *task = task_at(x, k, i);
        if (task->t < INFINITY &&
            task->g->micro_batch + document_ms_at(task->g, task->s, task->t, x->fastest) <= target)
            return 1;
    }
    return 0;
}

// The place in its list of the bin of the task's cp size that ends last (levels: first) of those with time and room,
// -1: none.
static int find_bin(const RoundSearch* x, const Task* task, int levels, double target) {
    const int* list = x->of_size + x->begin[task->size];
    int low = 0, high = x->n_of_size[task->size], n = high;
    double t = document_ms_at(task->g, task->s, task->t, x->fastest);
    while (low < high) {
        int middle = (low + high) / 2;
        if (x->bins[list[middle]].end + t > target) low = middle + 1;
        else high = middle;
    }
    int rings = task->g->ulysses_size < task->g->cp_size;
    for (int i = 0; i < n - low; i++) {
        int at = levels ? n - 1 - i : low + i;
        const Bin* bin = &x->bins[list[at]];
        if (bin->room - bin->kept < task->tokens || (rings && bin->docs >= x->setting->limits.max_ring_docs)) continue;
        if (bin->end + document_ms_at(task->g, task->s, task->t, bin->pace) <= target) return at;
    }
    return -1;
}

// When the pass ends: the exchanges of shared documents hide under the attention of local ones (timeline.h).
static double end_of(const RoundSearch* x, const Bin* bin) {
    if (bin->linear == 0) return bin->shared;
    double hidden = MIN(bin->attention / 3, bin->first[0]) + MIN(2 * bin->attention / 3, bin->first[1]);
    return bin->shared + bin->linear + bin->attention - (x->setting->no_overlap ? 0 : hidden);
}

// A bin whose documents or times have changed moves to where it stands in its list now, or leaves it. shortest: of the
// round.
static void move_in_list(RoundSearch* x, int size, int at, int shortest) {
    int *list = x->of_size + x->begin[size], *n = &x->n_of_size[size], id = list[at];
    const Bin* bin = &x->bins[id];
    const GroupCost* g = &x->setting->groups[bin->cp_size];
    if (bin->room - bin->kept < MAX(shortest / (g->cp_size / g->ulysses_size), 1)) {
        memmove(list + at, list + at + 1, sizeof(int) * (size_t)(--*n - at));
        return;
    }
    for (; at > 0 && x->bins[list[at - 1]].end < bin->end; at--) list[at] = list[at - 1];
    list[at] = id;
}

// Most tokens of local documents that a rank of the bin may have; a token for shares that are rounded.
static int64_t most_local(const RoundSearch* x, const Bin* bin) {
    int heads = x->setting->limits.kv_heads, of_rank = CEIL_DIV(heads, x->setting->groups[bin->cp_size].ulysses_size);
    return bin->room * of_rank / heads - 1;
}

// The bin takes the document.
static int put_in(RoundSearch* x, const Task* task, int at, int shortest) {
    int id = x->of_size[x->begin[task->size] + at];
    Bin* bin = &x->bins[id];
    bin->docs++;
    bin->room -= task->tokens;
    bin->tokens += task->s, bin->s2 += (double)task->s * task->s;
    bin->shared += document_ms_at(task->g, task->s, task->t, bin->pace);
    if (bin->cp_size > 1) {
        bin->beside = most_local(x, bin);
        group_hidden_ms(bin->first, task->g, task->g->quadratic * bin->s2, bin->tokens, NULL);
    }
    bin->end = end_of(x, bin);
    move_in_list(x, task->size, at, shortest);
    return id;
}

static int is_free(const RoundSearch* x, int first, int cp_size) {
    for (int r = first; r < first + cp_size; r++)
        if (x->taken[r]) return 0;
    return 1;
}

// The first free ranks where the document ends by the target, of unlike ones the slowest; -1: none. Of like ones those
// that are taken are a node's first.
static int find_ranks(const RoundSearch* x, const Task* task, double target, double* pace) {
    int ranks = x->setting->limits.ranks, d = task->g->cp_size, found = -1;
    for (int n = 0, begin = 0; begin + d <= ranks; n++, begin += x->node) {
        int end = d > x->node ? begin + d : MIN(begin + x->node, ranks);
        if (x->node_free[n] < MIN(d, x->node)) continue;
        for (int u = x->setting->speeds ? begin : MIN(begin + x->node, end) - x->node_free[n]; u + d <= end; u++) {
            if ((x->setting->speeds || d > x->node) && !is_free(x, u, d)) continue;
            double own = slowest_speed(x->setting, u, d);
            if (task->g->micro_batch + document_ms_at(task->g, task->s, task->t, own) > target) continue;
            if (found < 0 || own < *pace) found = u, *pace = own;
            if (!x->setting->speeds) return found;
        }
    }
    return found;
}

// A new bin, at the end of its list, where those that end first stand.
static int open_bin(RoundSearch* x, const Task* task, int first, double pace) {
    int d = task->g->cp_size, *n = &x->n_of_size[task->size];
    double own = task->g->micro_batch;
    x->bins[x->n_bins] = (Bin){.first_rank = first,
                               .idlest = first,
                               .cp_size = d,
                               .room = task->g->room,
                               .pace = pace,
                               .end = own,
                               .shared = own};
    memset(x->taken + first, 1, (size_t)d);
    for (int r = first; r < first + d; r += x->node) x->node_free[r / x->node] -= MIN(x->node, first + d - r);
    if (d > 1) x->wide[x->n_wide++] = x->n_bins;
    x->of_size[x->begin[task->size] + *n] = x->n_bins++;
    return (*n)++;
}

// The wider bin that the document joins at the least work beyond its own, if that is below `most` rank-ms; -1: none.
static int find_wider(const RoundSearch* x, int k, const Task* own, PackWay way, double most, double target,
                      Task* task) {
    int found = -1;
    for (int i = own->size + 1; i < x->n_sizes; i++) {
        if (x->n_of_size[i] == 0) continue;
        Task t = task_at(x, k, i);
        double more = t.g->cp_size * t.t - own->g->cp_size * own->t;
        if (more >= most) continue;
        int at = find_bin(x, &t, way.levels, target);
        if (at >= 0) found = at, most = more, *task = t;
    }
    return found;
}

// ---- local documents beside shared ones

// The rank of the bin that has least to do by itself.
static int idlest(const RoundSearch* x, const Bin* bin) {
    int best = bin->first_rank;
    for (int r = best + 1; r < bin->first_rank + bin->cp_size; r++)
        if (x->attention[r] + x->linear[r] < x->attention[best] + x->linear[best]) best = r;
    return best;
}

// The bin with this document beside it on the rank.
static Bin with_local(const RoundSearch* x, const Bin* bin, int k, int rank) {
    double s = x->sorted[k], attention = x->setting->groups[1].quadratic * s * s;
    int heads = x->setting->limits.kv_heads, of_rank = CEIL_DIV(heads, x->setting->groups[bin->cp_size].ulysses_size);
    Bin more = *bin;
    more.attention = MAX(bin->attention, x->attention[rank] + attention);
    more.linear = MAX(bin->linear, x->linear[rank] + x->alone[k] - attention);
    more.kept = MAX(bin->kept, CEIL_DIV((x->local_tokens[rank] + x->sorted[k] + 1) * heads, of_rank));
    more.end = end_of(x, &more);
    return more;
}

// The bin of several ranks beside which the document is local and which then ends last; -1: none.
static int put_beside(RoundSearch* x, int k, double target, int shortest, int* rank) {
    int found = -1, kept = 0;
    Bin best = {0};
    for (int i = 0; i < x->n_wide; i++) {
        const Bin* bin = &x->bins[x->wide[i]];
        int r = bin->idlest;
        int64_t room = bin->beside - x->local_tokens[r];
        if (room < shortest || bin->docs == 0) continue;  // full for good
        x->wide[kept++] = x->wide[i];
        if (room < x->sorted[k]) continue;
        Bin more = with_local(x, bin, k, r);
        if (more.end <= target && (found < 0 || more.end > best.end)) found = x->wide[kept - 1], *rank = r, best = more;
    }
    x->n_wide = kept;
    if (found < 0) return -1;
    double s = x->sorted[k], attention = x->setting->groups[1].quadratic * s * s;
    x->attention[*rank] += attention, x->linear[*rank] += x->alone[k] - attention;
    x->local_tokens[*rank] += x->sorted[k];
    best.idlest = idlest(x, &best);
    x->bins[found] = best;
    int size = 0;
    while (x->sizes[size] != best.cp_size) size++;
    for (int at = 0; at < x->n_of_size[size]; at++)
        if (x->of_size[x->begin[size] + at] == found) {
            move_in_list(x, size, at, shortest);
            break;
        }
    return found;
}

// The bin that takes the document, -1: none. *rank: see rank_of.
static int place(RoundSearch* x, int k, PackWay way, double target, int shortest, int* rank) {
    Task own, wider;
    double pace = 1;
    *rank = -1;
    if (!least_task(x, k, way.least, target, &own)) return -1;
    int first = way.levels ? find_ranks(x, &own, target, &pace) : -1, beside = -1;
    if (first >= 0) return put_in(x, &own, open_bin(x, &own, first, pace), shortest);
    int at = find_bin(x, &own, way.levels, target);
    if (at >= 0) return put_in(x, &own, at, shortest);
    if (x->alone[k] < INFINITY && !x->setting->speeds) beside = put_beside(x, k, target, shortest, rank);
    if (beside >= 0) return beside;
    first = find_ranks(x, &own, target, &pace);
    double most = first < 0 ? INFINITY : way.price * target * own.g->cp_size;
    at = most > 0 ? find_wider(x, k, &own, way, most, target, &wider) : -1;
    if (at >= 0) return put_in(x, &wider, at, shortest);
    return first < 0 ? -1 : put_in(x, &own, open_bin(x, &own, first, pace), shortest);
}

double round_pack(RoundSearch* x, const int* docs, int n, PackWay way, double target) {
    int ranks = x->setting->limits.ranks;
    double end = 0;
    x->n_bins = x->n_wide = 0;
    memset(x->n_of_size, 0, sizeof(int) * (size_t)x->n_sizes);
    memset(x->taken, 0, (size_t)ranks);
    for (int r = 0; r < ranks; r++) x->attention[r] = x->linear[r] = 0, x->local_tokens[r] = 0;
    for (int i = 0; i < x->nodes; i++) x->node_free[i] = MIN(x->node, ranks - i * x->node);
    for (int i = 0; i < n; i++) {
        int bin = place(x, docs[i], way, target, x->sorted[docs[n - 1]], &x->rank_of[i]);
        x->placed++;
        if (bin < 0) return INFINITY;
        x->bin_of[i] = bin;
        end = MAX(end, x->bins[bin].end);
    }
    return end;
}
