// rounds.c - plans made for rounds: the documents of each round, and the work of each rank there.
//
// If ranks go through micro-batches in rounds (plan_set_rounds), a step takes the sum over its rounds of each one's
// slowest rank. A free plan cannot be cut into rounds afterwards, because some ranks begin long micro-batches while
// others begin short ones. Rounds need not last equally long; ranks inside a round must.
//
// 1. Runs: the documents by length are cut into contiguous runs, a round each. Dynamic programming over some thirty
//    places to cut finds their number and the cuts together:
//        best[j] = min over i of best[i] + ms of a round of the documents between cuts i and j
//    A round is only planned if it could still be part of the best: best[i], its own lower bound (round_bound) and
//    that of the documents after j add up to less than the best known.
//    In a round a rank has one micro-batch, or one that it shares and one of its own in the same pass (packer.c).
// 2. Levelling: documents move or change places between two rounds, as long as the sum falls.
//
// A round's time includes what weights and gradients show beside its passes (round_step_ms): the search keeps the sum
// of these low. By itself a round is the least target that pack meets, found by bisection. The number of documents they
// place bounds guesses, not the clock, and hash64 draws choices, so every rank makes the same plan.
#include <math.h>

#include "plan/step/packer.h"

static const double resolution = 1.002;  // of a target: bisection ends there
static const double hopeful = 1.05;      // of the bound of a round: the first target
static const double open_start = 1.1;    // of the best known: levelling may still bring this below it
// The documents that levelling places: a_document for each of the step, at most a_millisecond for each ms of the step
// (a thousand take 0.05 ms), and at most most_placed.
static const double a_document = 500, a_millisecond = 1000, most_placed = 2e7;
enum { CUTS = 34, CUTS_A_ROUND = 6, BISECTIONS = 7, OTHER = 4, LONGEST_RUN = 64 };

static const PackWay ways[] = {{1, 0, 0, 0},   {1, 0.3, 0, 0}, {8, 0.3, 0, 0},
                               {4, 0.3, 0, 0}, {8, 0, 0, 1},   {4, 0, 0, 1}};

// A planned round.
typedef struct Round {
    double ms, target;  // ms of its passes by themselves; the target at which pack comes to it
    double bound;       // ms that no way beats
    int meets;          // 1: exchanges use the link of weights and gradients
    PackWay way;
} Round;

typedef struct Rounds {
    Packer* packer;
    int n, n_rounds;
    int* round_of;      // (n) of each document, longest first
    int *docs, *other;  // (n) lists of documents
    Round* rounds;      // (cuts)
    double* best;       // (cuts) at each
    int *cut, *from;    // (cuts) documents before it; the cut before
    Round* last;        // (cuts) the round that ends there
    int64_t most_placed;
    uint64_t drawn;
} Rounds;

// ---- one round

// The time in a step of a round whose longest pass takes `ms`, never less than that.
static double step_ms(const Rounds* x, double ms, int meets) {
    const Setting* s = x->packer->setting;
    const WeightTimes* w = &s->weights;
    double fixed = s->groups[1].micro_batch, layers = MAX(ms - fixed, 0) * (1 - w->head);
    if (!s->rounds || w->layers == 0 || !(ms < INFINITY)) return ms;
    PassParts pass = {layers / 3, MAX(ms - fixed, 0) * w->head, layers * 2 / 3, fixed, layers / 3, meets, {0, 0}};
    WeightRank rank = {pass, 0, 0};
    return weights_play_round(w, &rank, 1, 0, 0);
}

static double round_step_ms(const Rounds* x, const Round* round) { return step_ms(x, round->ms, round->meets); }

// Returns 1 if the packed round has groups whose exchanges use the link of weights.
static int has_wide_groups(const Rounds* x) {
    const WeightTimes* w = &x->packer->setting->weights;
    int wide = 0;
    for (int b = 0; b < x->packer->n_bins && w->layers > 0; b++)
        wide |= x->packer->bins[b].g->cp_size > (w->across ? x->packer->node_size : 1);
    return wide;
}

static int try_target(Rounds* x, const int* docs, int n, PackWay way, double target, Round* round) {
    double ms = pack(x->packer, docs, n, 1, way, target);
    if (ms < round->ms) round->ms = ms, round->target = target, round->way = way, round->meets = has_wide_groups(x);
    return ms <= target;
}

static double bound_of(const Rounds* x, const int* docs, int n) {
    double tokens = 0, work = 0;
    for (int i = 0; i < n; i++) {
        const Document* doc = &x->packer->docs[docs[i]];
        tokens += doc->s;
        work += doc[1].work_before - doc->work_before;
    }
    return n ? round_bound(x->packer, docs[0], tokens, work) : 0;
}

// Finds the least ms of a way between `low` and the best known, by bisection.
static void bisect(Rounds* x, const int* docs, int n, PackWay way, double low, Round* round) {
    for (int i = 0; i < BISECTIONS && round->ms > low * resolution; i++) {
        double middle = (low + round->ms) / 2;
        if (!try_target(x, docs, n, way, middle, round)) low = middle;
    }
}

// Plans a round of these documents (ascending) in all ways. Its ms are infinite unless passes take less than `limit`.
static Round search_ways(Rounds* x, const int* docs, int n, double limit, int inside) {
    Round round = {.ms = INFINITY, .bound = bound_of(x, docs, n)};
    for (int w = 0; w < COUNT(ways); w++) {
        PackWay way = ways[w];
        double low = round.bound, high = w ? MIN(limit, round.ms) / resolution : limit, first = hopeful * low;
        if (high <= low * resolution) break;
        way.inside = inside;
        if (w > 0 || first >= high || !try_target(x, docs, n, way, first, &round)) {
            if (!try_target(x, docs, n, way, high, &round)) continue;
            if (w == 0) low = MIN(first, high);
        }
        bisect(x, docs, n, way, low, &round);
    }
    if (round.ms >= limit) round.ms = INFINITY;
    return round;
}

// Plans a round, with groups inside nodes if these take less. They may, though longer by themselves, because groups of
// several nodes wait for gradients on their link.
static Round plan_round(Rounds* x, const int* docs, int n, double limit) {
    if (n == 0) return (Round){0};
    Round round = search_ways(x, docs, n, limit, 0), inside;
    if (!round.meets || !(round.ms < INFINITY) || !x->packer->setting->rounds) return round;
    inside = search_ways(x, docs, n, MIN(limit, round_step_ms(x, &round)), 1);
    return round_step_ms(x, &inside) < round_step_ms(x, &round) ? inside : round;
}

// ---- runs

// A lower bound of any plan of the documents from k on.
static double bound_from(const Rounds* x, int k) {
    const Packer* s = x->packer;
    if (k == x->n) return 0;
    const Document *from = &s->docs[k], *end = &s->docs[x->n];
    double tokens = end->tokens_before - from->tokens_before, work = end->work_before - from->work_before;
    return work / s->speeds + ceil(tokens / s->capacity) * s->setting->groups[1].micro_batch;
}

static int most_cuts(const Packer* x) {
    return MAX(CUTS, CUTS_A_ROUND * (int)ceil(x->docs[x->n].tokens_before / x->capacity));
}

// Chooses places to cut, even in the mean of tokens and work. Returns their number, with 0 and n.
static int choose_cuts(Rounds* x) {
    const Packer* s = x->packer;
    int n_cuts = 1, most = most_cuts(s) - 1;
    x->cut[0] = 0;
    for (int k = 1; k < x->n; k++) {
        const Document *from = &s->docs[k], *end = &s->docs[x->n];
        double at = (from->tokens_before / end->tokens_before + from->work_before / end->work_before) / 2;
        if (at * most >= n_cuts && n_cuts < most) x->cut[n_cuts++] = k;
    }
    x->cut[n_cuts++] = x->n;
    return n_cuts;
}

// Finds the best cuts. Returns 0 if none comes to less than `below` ms.
static int cut_into_runs(Rounds* x, double below) {
    const Document* s = x->packer->docs;
    int n_cuts = choose_cuts(x);
    for (int k = 0; k < x->n; k++) x->docs[k] = k;
    x->best[0] = 0;
    for (int j = 1; j < n_cuts; j++) {
        double rest = bound_from(x, x->cut[j]);
        x->best[j] = INFINITY;
        for (int i = j - 1; i >= 0; i--) {
            if (s[x->cut[j]].tokens_before - s[x->cut[i]].tokens_before > x->packer->capacity) break;
            double limit = MIN(x->best[j], below - rest) - x->best[i];
            int n = x->cut[j] - x->cut[i];
            if (!(limit > step_ms(x, bound_of(x, x->docs + x->cut[i], n), 0))) continue;
            Round round = plan_round(x, x->docs + x->cut[i], n, limit);
            double ms = round_step_ms(x, &round);
            if (ms < limit) x->best[j] = x->best[i] + ms, x->from[j] = i, x->last[j] = round;
        }
    }
    if (!(x->best[n_cuts - 1] < below)) return 0;
    x->n_rounds = 0;
    for (int j = n_cuts - 1; j > 0; j = x->from[j]) {
        for (int k = x->cut[x->from[j]]; k < x->cut[j]; k++) x->round_of[k] = x->n_rounds;
        x->rounds[x->n_rounds++] = x->last[j];
    }
    return 1;
}

static int list_round(const Rounds* x, int round, int* list) {
    int n = 0;
    for (int k = 0; k < x->n; k++)
        if (x->round_of[k] == round) list[n++] = k;
    return n;
}

// Takes the rounds of a given plan, each packed anew. Returns 0 if one cannot be.
static int take_rounds(Rounds* x, const Plan* plan, const int* order) {
    int* place = x->other;
    for (int k = 0; k < x->n; k++) place[order[k]] = k;
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        for (int d = mb->first_doc; d < mb->first_doc + mb->n_docs; d++) x->round_of[place[plan->docs[d]]] = mb->round;
    }
    x->n_rounds = plan->n_rounds;
    for (int r = 0; r < x->n_rounds; r++) {
        x->rounds[r] = plan_round(x, x->docs, list_round(x, r, x->docs), INFINITY);
        if (!(x->rounds[r].ms < INFINITY)) return 0;
    }
    return x->n_rounds > 0;
}

static double sum_of_rounds(const Rounds* x) {
    double ms = 0;
    for (int r = 0; r < x->n_rounds; r++) ms += round_step_ms(x, &x->rounds[r]);
    return ms;
}

// ---- levelling

static int draw(Rounds* x, int n) { return (int)(hash64(++x->drawn) % (uint64_t)n); }

// Returns 1 if the documents meet a target, in the way of their round or now and then another. *met: their round.
static int meets(Rounds* x, const Round* now, const int* docs, int n, double target, Round* met) {
    PackWay way = draw(x, OTHER) ? now->way : ways[draw(x, COUNT(ways))];
    way.inside = now->way.inside;
    *met = (Round){.ms = n ? INFINITY : 0, .bound = bound_of(x, docs, n)};
    return n == 0 || try_target(x, docs, n, way, target, met);
}

// Plans the two rounds with the documents of round_of. Returns 0, and changes nothing, if the sum does not fall. That
// is nearly always so, and two guesses tell: b must meet what a should leave it, with a as far above its bound as now;
// then a must leave it.
static int plan_two(Rounds* x, int a, int b) {
    Round *first = &x->rounds[a], *second = &x->rounds[b], new_first, new_second;
    double most = (first->ms + second->ms) * (1 - 1e-6);
    double now = round_step_ms(x, first) + round_step_ms(x, second);
    int n = list_round(x, a, x->docs), m = list_round(x, b, x->other);
    double hoped = bound_of(x, x->docs, n) / first->bound * first->ms;
    if (!meets(x, second, x->other, m, most - hoped, &new_second)) return 0;
    if (!meets(x, first, x->docs, n, most - new_second.ms, &new_first)) return 0;
    bisect(x, x->docs, n, new_first.way, new_first.bound, &new_first);
    bisect(x, x->other, m, new_second.way, new_second.bound, &new_second);
    if ((n ? round_step_ms(x, &new_first) : 0) + (m ? round_step_ms(x, &new_second) : 0) >= now) return 0;
    *first = new_first, *second = new_second;
    return 1;
}

// Moves a run of a's documents to b, and with `back` a run of b's of about as many tokens to a. That begins at a
// document not longer than the first run, or some places away.
static void move_run(Rounds* x, int a, int b, int back) {
    int n = list_round(x, a, x->docs), m = list_round(x, b, x->other);
    if (n == 0) return;
    int length = draw(x, 4) ? 1 + draw(x, MIN(LONGEST_RUN, n)) : 1, at = draw(x, n - length + 1), first = 0;
    double tokens = 0, returned = 0;
    for (int i = at; i < at + length; i++) tokens += x->packer->docs[x->docs[i]].s, x->round_of[x->docs[i]] = b;
    if (!back || m == 0) return;
    while (first < m - 1 && x->packer->docs[x->other[first]].s > tokens) first++;
    first += draw(x, 5) - 2;
    first = MIN(MAX(first, 0), m - 1);
    if (draw(x, 2)) first += draw(x, m - first);
    for (int i = first; i < m; i++) {
        returned += x->packer->docs[x->other[i]].s;
        if (i > first && returned > 1.1 * tokens) break;
        x->round_of[x->other[i]] = a;
    }
}

static void drop_round(Rounds* x, int round) {
    int last = --x->n_rounds;
    for (int k = 0; k < x->n; k++)
        if (x->round_of[k] == last) x->round_of[k] = round;
    x->rounds[round] = x->rounds[last];
}

static void level(Rounds* x, int* kept) {
    while (x->packer->placed < x->most_placed && x->n_rounds > 1) {
        int a = draw(x, x->n_rounds), b = draw(x, x->n_rounds - 1);
        b += b >= a;
        x->packer->placed += 1 + x->n / 8;  // lists and copies
        memcpy(kept, x->round_of, sizeof(int) * (size_t)x->n);
        move_run(x, a, b, draw(x, 2));
        if (!plan_two(x, a, b)) {
            memcpy(x->round_of, kept, sizeof(int) * (size_t)x->n);
            continue;
        }
        int empty = list_round(x, a, x->docs) == 0 ? a : list_round(x, b, x->docs) == 0 ? b : -1;
        if (empty >= 0) drop_round(x, empty);
    }
}

// The best rounds found so far.
typedef struct Found {
    int* round_of;  // (n)
    Round* rounds;
    int n_rounds;
    double ms;  // infinite: none
} Found;

// Levels x's rounds and keeps them if they take less.
static void level_and_keep(Rounds* x, Found* best, int64_t placed, int* scratch) {
    x->most_placed = x->packer->placed + placed;
    level(x, scratch);
    double ms = sum_of_rounds(x);
    if (ms >= best->ms) return;
    memcpy(best->round_of, x->round_of, sizeof(int) * (size_t)x->n);
    memcpy(best->rounds, x->rounds, sizeof(Round) * (size_t)x->n_rounds);
    best->n_rounds = x->n_rounds, best->ms = ms;
}

// ---- the plan

static void write_rounds(Plan* plan, Rounds* x, const int* order) {
    plan->ranks = x->packer->n_ranks;
    plan->n_docs = x->n;
    plan->n_micro_batches = 0;
    plan->n_rounds = x->n_rounds;
    for (int r = 0; r < x->n_rounds; r++) {
        int n = list_round(x, r, x->docs);
        pack(x->packer, x->docs, n, 1, x->rounds[r].way, x->rounds[r].target);
        packer_write(x->packer, plan, x->docs, n, order, r);
    }
}

// Rounds know only their own ring documents, so a rank may have too many in all.
static int has_too_many_rings(const Plan* plan, const PlanLimits* limits, int* ring_docs) {
    memset(ring_docs, 0, sizeof(int) * (size_t)plan->ranks);
    for (int i = 0; i < plan->n_micro_batches; i++) {
        const MicroBatch* mb = &plan->micro_batches[i];
        for (int r = mb->first_rank; r < mb->first_rank + mb->cp_size && mb->ulysses_size < mb->cp_size; r++)
            if ((ring_docs[r] += mb->n_docs) > limits->max_ring_docs) return 1;
    }
    return 0;
}

int plan_rounds(Plan* plan, Packer* packer, const int* order, double known, Arena* arena, Err err) {
    double below = known * open_start;
    ArenaMark mark = arena_mark(arena);
    const PlanLimits* limits = &packer->setting->limits;
    int n = packer->n, cuts = MIN(n, most_cuts(packer)) + 1, taken = below < INFINITY ? plan->n_rounds : 0;
    Rounds x = {.packer = packer,
                .n = n,
                .round_of = TAKE(arena, int, n),
                .docs = TAKE(arena, int, n),
                .other = TAKE(arena, int, n),
                .rounds = TAKE(arena, Round, MAX(cuts, taken)),
                .best = TAKE(arena, double, cuts),
                .cut = TAKE(arena, int, cuts),
                .from = TAKE(arena, int, cuts),
                .last = TAKE(arena, Round, cuts)};
    Found best = {TAKE(arena, int, n), TAKE(arena, Round, MAX(cuts, taken)), 0, INFINITY};
    int *scratch = TAKE(arena, int, n), *ring_docs = TAKE(arena, int, limits->ranks);
    Plan made;
    plan_take(&made, n, arena);
    if (arena_check(arena, err) < 0) return -1;
    int64_t placed = (int64_t)MIN(MIN(a_document * n, a_millisecond * below), most_placed);
    if (n > 0 && cut_into_runs(&x, below)) level_and_keep(&x, &best, taken ? placed / 2 : placed, scratch);
    if (n > 0 && taken && take_rounds(&x, plan, order)) level_and_keep(&x, &best, placed / 2, scratch);
    int found = best.ms < below;
    if (found) {
        memcpy(x.round_of, best.round_of, sizeof(int) * (size_t)n);
        memcpy(x.rounds, best.rounds, sizeof(Round) * (size_t)best.n_rounds);
        x.n_rounds = best.n_rounds;
        made.step = plan->step, made.squares = plan->squares;
        write_rounds(&made, &x, order);
        found = !has_too_many_rings(&made, limits, ring_docs);
    }
    if (found) plan_copy(plan, &made);
    arena_reset(arena, mark);
    return found;
}
