// layer_search.c - see layer_search.h.
#include "plan/search/layer_search.h"

#include <math.h>

enum { MOST_KEPT = 1024, MOST_PRICES = 64, PASSES = 2 };

typedef struct Pair {
    double bytes, ms, bound;  // bound: no solution with it takes less
    int strategy, before;     // before: index of the pair of the layer before
} Pair;

typedef struct Layers {
    const LayerProblem* p;
    double* rest;  // (layers) the least cost of all later layers
    double price;  // ms a byte
    double lower;  // no solution takes less
    int* path;     // (layers) the path of least cost
    int* best;     // (layers) the best solution so far
    double best_ms;
} Layers;

// ---- the relaxed problem: every layer takes its cheapest strategy at a price

static void sums_of(const LayerProblem* p, const int* path, double* ms, double* bytes) {
    *ms = *bytes = 0;
    for (int l = 0; l < p->layers; l++) {
        *ms += p->ms[l * p->strategies + path[l]];
        *bytes += p->bytes[l * p->strategies + path[l]];
    }
}

// Returns the cost of the cheapest path; infinite if a layer cannot run.
static double cheapest_path(Layers* x, double price, double bytes_alone) {
    const LayerProblem* p = x->p;
    double behind = 0;
    x->price = price;
    for (int l = p->layers - 1; l >= 0; l--) {
        double least = INFINITY;
        for (int s = 0; s < p->strategies; s++) {
            int i = l * p->strategies + s;
            double own = bytes_alone ? p->bytes[i] : p->ms[i] + price * p->bytes[i];
            if (p->ms[i] < INFINITY && own + behind < least) least = own + behind, x->path[l] = s;
        }
        x->rest[l] = behind, behind = least;
    }
    return behind;
}

static void take_solution(Layers* x, double ms) {
    if (ms >= x->best_ms) return;
    x->best_ms = ms;
    memcpy(x->best, x->path, sizeof *x->best * (size_t)x->p->layers);
}

// Finds the price at which the cheapest paths pass the limit. It is the slope of the line through a path that is too
// large and one that fits, until no path lies below it. Leaves x->rest of that price.
static void settle_price(Layers* x, double over_ms, double over_bytes, double under_ms, double under_bytes) {
    for (int i = 0; i < MOST_PRICES; i++) {
        double ms, bytes, price = (under_ms - over_ms) / (over_bytes - under_bytes);
        if (!(price > 0)) price = 0;
        double cost = cheapest_path(x, price, 0);
        x->lower = fmax(x->lower, cost - price * x->p->memory);
        sums_of(x->p, x->path, &ms, &bytes);
        if (cost >= (over_ms + price * over_bytes) * (1 - 1e-12)) return;
        if (bytes <= x->p->memory) under_ms = ms, under_bytes = bytes, take_solution(x, ms);
        else over_ms = ms, over_bytes = bytes;
    }
}

// ---- fronts

static int has_less(const Pair* x, const Pair* y) {
    return x->bytes != y->bytes ? x->bytes < y->bytes : x->ms < y->ms;
}

// The pairs of a layer, sorted by bytes.
typedef struct Front {
    Pair* pairs;
    int n;
} Front;

// Adds layer l by strategy s to all pairs of the layer before. A new pair stays if it may end in a solution below
// `most` ms and no pair with as few bytes is as fast. Sums of the same terms in another order count as equal.
static void extend(const Layers* x, Front* to, const Front* from, int l, int s, double most) {
    const LayerProblem* p = x->p;
    int at = l * p->strategies + s, begin = to->n;
    double rest = x->rest[l] - x->price * p->memory, least = INFINITY;
    for (int i = 0; i < from->n && p->ms[at] < INFINITY; i++) {
        const Pair* before = &from->pairs[i];
        double bytes = before->bytes + p->bytes[at];
        double ms = before->ms + p->ms[at];
        double bound = fmax(ms, ms + rest + x->price * bytes);
        if (bytes > p->memory) return;
        if (bound > most || ms >= least * (1 - 1e-12)) continue;
        if (to->n > begin && to->pairs[to->n - 1].bytes == bytes) to->n--;
        to->pairs[to->n++] = (Pair){bytes, ms, bound, s, i};
        least = ms;
    }
}

// Keeps about `MOST_KEPT` pairs of the least bounds; *dropped: the least bound of the others.
static void keep_best(Front* front, double lower, double most, double* dropped) {
    enum { BINS = 1024 };
    int count[BINS] = {0}, last = 0, kept = 0;
    double bins_a_ms = BINS / fmax(most - lower, 1e-300);
    if (front->n <= MOST_KEPT) return;
    for (int i = 0; i < front->n; i++)
        count[(int)fmin(fmax((front->pairs[i].bound - lower) * bins_a_ms, 0), BINS - 1)]++;
    for (int sum = count[0]; last + 1 < BINS && sum + count[last + 1] <= MOST_KEPT; sum += count[last]) last++;
    for (int i = 0; i < front->n; i++) {
        const Pair* pair = &front->pairs[i];
        int bin = (int)fmin(fmax((pair->bound - lower) * bins_a_ms, 0), BINS - 1);
        if (bin <= last && kept < MOST_KEPT) front->pairs[kept++] = *pair;
        else *dropped = fmin(*dropped, pair->bound);
    }
    front->n = kept;
}

// Merges the pairs of all strategies by bytes, and keeps each that is faster than all before it. A strategy's pairs,
// sorted already, lie from runs to ends.
static void merge_faster(Front* to, const Front* from, int* runs, const int* ends, int strategies) {
    double least = INFINITY;
    for (to->n = 0;;) {
        const Pair* next = NULL;
        int of = 0;
        for (int s = 0; s < strategies; s++)
            if (runs[s] < ends[s] && (!next || has_less(&from->pairs[runs[s]], next)))
                next = &from->pairs[runs[s]], of = s;
        if (!next) return;
        runs[of]++;
        if (next->ms < least) to->pairs[to->n++] = *next, least = next->ms;
    }
}

// Finds a better solution than the best so far, if there is one. -1 without memory.
static int search_fronts(Layers* x, LayerChoice* choice, Arena* arena) {
    const LayerProblem* p = x->p;
    double most = x->best_ms * (1 - 1e-12), dropped = INFINITY;
    int S = p->strategies;
    Pair root = {0};
    Front front = {&root, 1}, next = {TAKE(arena, Pair, (MOST_KEPT + 1) * S), 0},
          sorted = {TAKE(arena, Pair, (MOST_KEPT + 1) * S), 0};
    Pair** kept = TAKE(arena, Pair*, p->layers);
    int* runs = TAKE(arena, int, 2 * S);
    if (!next.pairs || !sorted.pairs || !kept || !runs) return -1;
    for (int l = 0; l < p->layers; l++) {
        next.n = 0;
        for (int s = 0; s < S; s++) runs[s] = next.n, extend(x, &next, &front, l, s, most), runs[S + s] = next.n;
        merge_faster(&sorted, &next, runs, runs + S, S);
        keep_best(&sorted, x->lower, most, &dropped);
        choice->pairs = MAX(choice->pairs, sorted.n);
        kept[l] = TAKE(arena, Pair, sorted.n + 1);
        if (!kept[l]) return -1;
        memcpy(kept[l], sorted.pairs, sizeof(Pair) * (size_t)sorted.n);
        front = (Front){kept[l], sorted.n};
    }
    int at = -1;
    for (int i = 0; i < front.n; i++)
        if (front.pairs[i].ms < x->best_ms) x->best_ms = front.pairs[i].ms, at = i;
    for (int l = p->layers - 1; l >= 0 && at >= 0; l--) x->best[l] = kept[l][at].strategy, at = kept[l][at].before;
    x->lower = fmax(x->lower, fmin(dropped, x->best_ms));
    return 0;
}

// ---- all

// Finds the least bytes and the bounds of the relaxed problem. Returns 1 if the fronts have something to do.
static int relax(Layers* x, LayerChoice* choice) {
    double over_ms, over_bytes, under_ms, under_bytes;
    choice->bytes = cheapest_path(x, 0, 1);
    if (choice->bytes > x->p->memory) return 0;
    sums_of(x->p, x->path, &under_ms, &under_bytes);
    take_solution(x, under_ms);
    if (cheapest_path(x, 0, 0) == INFINITY) return 0;
    sums_of(x->p, x->path, &over_ms, &over_bytes);
    x->lower = over_ms;
    if (over_bytes <= x->p->memory) return take_solution(x, over_ms), 0;
    settle_price(x, over_ms, over_bytes, under_ms, under_bytes);
    return 1;
}

int layer_search(LayerChoice* choice, const LayerProblem* p, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    double known = p->known > 0 ? p->known : INFINITY;
    Layers x = {.p = p, .best_ms = known, .best = choice->strategy};
    x.rest = TAKE(arena, double, p->layers), x.path = TAKE(arena, int, p->layers + 1);
    choice->ms = INFINITY, choice->slack = 0, choice->pairs = 0;
    if (arena_check(arena, err)) return -1;
    // The second pass knows a better solution, so it keeps fewer pairs.
    for (int i = 0, open = relax(&x, choice); open && i < PASSES && x.lower < x.best_ms * (1 - 1e-12); i++) {
        ArenaMark pass = arena_mark(arena);
        if (search_fronts(&x, choice, arena)) return arena_check(arena, err);
        arena_reset(arena, pass);
    }
    arena_reset(arena, mark);
    choice->ms = x.best_ms < known ? x.best_ms : INFINITY;
    if (x.best_ms < INFINITY && x.lower < x.best_ms * (1 - 1e-12)) choice->slack = 1 - x.lower / x.best_ms;
    double ignored;
    if (choice->ms < INFINITY) sums_of(p, x.best, &ignored, &choice->bytes);
    return 0;
}
