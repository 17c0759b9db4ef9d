// hydraulis.c - a step of Hydraulis (arXiv 2412.07894), rebuilt: choosing a strategy, dispatching documents to its
// pipelines, packing each pipeline's into micro-batches. See hydraulis.h for the model.
//
// This does not follow the released code in known faults. Ties in dispatching go to the smallest own load, not to the
// first pipeline; a shuffle that leaves a pipeline empty does not end the search; a strategy costs the maximum over the
// times of its pipelines. Packing uses no integer program: it goes longest cost first under the cap on tokens, by best
// fit if that fails, then moves and swaps out of the longest micro-batch. Micro-batches have no floor of tokens.
#include "plan/published/hydraulis.h"

#include <limits.h>
#include <math.h>

// ---- schemes

double scheme_ms(const PipelineScheme* scheme, int s) { return (scheme->quadratic * s + scheme->linear) * s; }

// The part of max_tokens that s tokens take.
static int64_t scheme_room(const PipelineScheme* scheme, int s) {
    return scheme->ring == 1 ? s : (int64_t)scheme->ring * widest_ring_rank(s, scheme->ring);
}

int scheme_longest(const PipelineScheme* scheme) {
    int s = (int)MIN(scheme->max_tokens, INT_MAX);
    while (s > 0 && scheme_room(scheme, s) > scheme->max_tokens) s--;
    return s;
}

PipelineScheme scheme_of_group(const GroupCost* g, int gpus, int pp, int64_t max_tokens) {
    double full = (double)max_tokens, slope = g->link_linear, start = 0;
    if (g->n_communications > 0) {
        double quarter_ms = group_communication_ms(g, full / 4);
        slope = MAX((group_communication_ms(g, full) - quarter_ms) / (0.75 * full), 0);
        start = MAX(quarter_ms - slope * full / 4, 0);
    }
    return (PipelineScheme){.gpus = gpus,
                            .pp = pp,
                            .quadratic = g->quadratic,
                            .linear = g->per_token + slope,
                            .fixed = g->micro_batch + start,
                            .max_tokens = max_tokens,
                            .ring = 1,
                            .max_docs = INT_MAX};
}

int scheme_add(SchemePool* pool, const PipelineScheme* scheme) {
    int at = 0;
    while (at < pool->n && pool->scheme[at].max_tokens >= scheme->max_tokens) at++;
    for (int i = pool->n++; i > at; i--) pool->scheme[i] = pool->scheme[i - 1];
    pool->scheme[at] = *scheme;
    return at;
}

int strategy_pipelines(const Strategy* strategy, const SchemePool* pool) {
    int n = 0;
    for (int k = 0; k < pool->n; k++) n += strategy->copies[k];
    return n;
}

// ---- the documents of a step

// The load of a pipeline so far.
typedef struct Load {
    double sum, longest;  // sum and maximum of t(s)
    int docs, pipeline;
} Load;

int step_work(StepWork* w, const SchemePool* pool, const int* lengths, const double* squares, int n, Arena* arena,
              Err err) {
    *w = (StepWork){.pool = pool, .lengths = lengths, .n = n, .pace = 1};
    int** lists[] = {&w->sorted,      &w->order, &w->trial, &w->candidate,
                     &w->pipeline_of, &w->docs,  &w->mb_of, &w->scratch};
    for (int i = 0; i < COUNT(lists); i++) *lists[i] = TAKE(arena, int, n);
    w->ms = TAKE(arena, double, (pool->n * n));
    w->room = TAKE(arena, int64_t, (pool->n * n));
    w->load = TAKE(arena, Load, pool->ranks);
    w->pipeline_ms = TAKE(arena, double, pool->ranks);
    w->first = TAKE(arena, int, pool->ranks + 2);
    w->mb_ms = TAKE(arena, double, n);
    w->mb_room = TAKE(arena, int64_t, n);
    if (arena_check(arena, err) < 0) return -1;
    sort_longest_first(w->sorted, w->scratch, lengths, n);
    for (int k = 0; k < pool->n; k++) {
        const PipelineScheme* scheme = &pool->scheme[k];
        for (int i = 0; i < n; i++) {
            int64_t room = scheme_room(scheme, lengths[i]);
            double seen = seen_tokens(squares, i, lengths[i]);
            w->room[k * n + i] = room;
            double ms = (scheme->quadratic * seen + scheme->linear) * lengths[i];
            w->ms[k * n + i] = room <= scheme->max_tokens ? ms : INFINITY;
        }
    }
    return 0;
}

// ---- stage 1: documents to pipelines

static double load_with(const Load* load, const PipelineScheme* scheme, double ms) {
    return load->sum + ms + (scheme->pp - 1) * MAX(load->longest, ms);
}

static double least_first(const Load* load, int most_docs) { return load->docs < most_docs ? load->sum : INFINITY; }

static double pace_of(const Strategy* strategy, int pipeline) { return strategy->pace ? strategy->pace[pipeline] : 1; }

// Returns 1 if a scheme's copies are a heap, the least load first and full ones last: then only the first is looked at.
static int is_heap(const Strategy* strategy, const PipelineScheme* scheme) {
    return scheme->pp == 1 && !strategy->pace;
}

static void sink(Load* heap, int n, int most_docs) {
    Load load = heap[0];
    int at = 0;
    for (int child; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && least_first(&heap[child + 1], most_docs) < least_first(&heap[child], most_docs);
        if (least_first(&load, most_docs) <= least_first(&heap[child], most_docs)) break;
        heap[at] = heap[child];
    }
    heap[at] = load;
}

// Adds the document to the pipeline whose load is then least. That makes the largest load smallest; among equals the
// own load is least, so short documents go where they are cheapest. Returns the pipeline, -1 for none.
static int dispatch(StepWork* w, const Strategy* strategy, int doc) {
    int best = -1, of = 0, first_of = 0;
    double least = INFINITY;
    for (int k = 0, first = 0; k < w->pool->n; first += strategy->copies[k++]) {
        const PipelineScheme* scheme = &w->pool->scheme[k];
        double ms = w->ms[k * w->n + doc];
        int look = is_heap(strategy, scheme) ? MIN(strategy->copies[k], 1) : strategy->copies[k];
        for (int p = first; p < first + look && ms < INFINITY; p++) {
            double with = load_with(&w->load[p], scheme, ms / pace_of(strategy, p));
            if (w->load[p].docs < scheme->max_docs && with < least) least = with, best = p, of = k, first_of = first;
        }
    }
    if (best < 0) return -1;
    Load* load = &w->load[best];
    const PipelineScheme* scheme = &w->pool->scheme[of];
    double ms = w->ms[of * w->n + doc] / pace_of(strategy, best);
    int pipeline = load->pipeline;
    load->sum += ms;
    load->longest = MAX(load->longest, ms);
    load->docs++;
    if (is_heap(strategy, scheme)) sink(w->load + first_of, strategy->copies[of], scheme->max_docs);
    return pipeline;
}

// Puts documents in random order, but first those that no pipeline except the first holds.
static void shuffle(StepWork* w, const Strategy* strategy, uint64_t seed) {
    int largest = 0;
    for (int i = 0; i < w->n; i++) {
        int j = (int)(random_uniform(seed, (uint64_t)i) * (i + 1));
        w->order[i] = w->order[j];
        w->order[j] = i;
    }
    while (largest < w->pool->n && strategy->copies[largest] == 0) largest++;
    if (largest == w->pool->n || strategy->copies[largest] > 1) return;
    for (int i = 0, forced = 0; i < w->n; i++) {
        int doc = w->order[i], others = 0;
        for (int k = largest + 1; k < w->pool->n && !others; k++)
            others = strategy->copies[k] > 0 && w->ms[k * w->n + doc] < INFINITY;
        if (others) continue;
        w->order[i] = w->order[forced];
        w->order[forced++] = doc;
    }
}

// Dispatches the documents in one order. 0, or -1 if no pipeline holds a document.
static int try_order(Choice* choice, StepWork* w, const Strategy* strategy) {
    *choice = (Choice){0};
    for (int k = 0, p = 0; k < w->pool->n; k++)
        for (int copy = 0; copy < strategy->copies[k]; copy++, p++)
            w->load[p] = (Load){.sum = strategy->start[k], .pipeline = p};
    for (int i = 0; i < w->n; i++)
        if ((w->trial[w->order[i]] = dispatch(w, strategy, w->order[i])) < 0) return -1;
    for (int k = 0, p = 0; k < w->pool->n; k++)
        for (int copy = 0; copy < strategy->copies[k]; copy++, p++) {
            double ms = w->pipeline_ms[w->load[p].pipeline] = load_with(&w->load[p], &w->pool->scheme[k], 0);
            choice->ms = MAX(choice->ms, ms);
            choice->empty += w->load[p].docs == 0;
        }
    return 0;
}

static int better(const SchemePool* pool, const Choice* x, const Choice* y) {
    if (y->strategy < 0) return 1;
    int differ = !pool->may_be_empty && (x->empty > 0) != (y->empty > 0);
    return differ ? x->empty == 0 : x->ms < y->ms;
}

Choice hydraulis_dispatch(int* pipeline_of, StepWork* w, const Strategy* strategy, int shuffles, uint64_t seed) {
    Choice best = {.strategy = -1, .ms = INFINITY}, choice;
    for (int i = 0; i < shuffles; i++) {
        shuffle(w, strategy, hash64(seed) ^ (uint64_t)i);
        // Only limits on documents can make one order fail and another succeed.
        if (try_order(&choice, w, strategy) < 0 || !better(w->pool, &choice, &best)) continue;
        best = choice;
        memcpy(pipeline_of, w->trial, sizeof(int) * (size_t)w->n);
    }
    return best;
}

// ---- stage 2: the documents of a pipeline into micro-batches

// Puts each document into the micro-batch with the least time, or the least room, that holds it; they open in order.
// Returns how many are in use, 0 if a document fits none of v.
static int fill_micro_batches(int* mb_of, StepWork* w, int k, const int* docs, int n, int v, int best_fit) {
    const double* ms = w->ms + (size_t)k * (size_t)w->n;
    const int64_t *room = w->room + (size_t)k * (size_t)w->n, most = w->pool->scheme[k].max_tokens;
    int used = 0;
    for (int r = 0; r < v; r++) w->mb_ms[r] = 0, w->mb_room[r] = 0;
    for (int i = 0; i < n; i++) {
        int mb = -1;
        for (int r = 0; r < v && r <= used; r++) {
            if (w->mb_room[r] + room[docs[i]] > most) continue;
            if (mb < 0 || (best_fit ? w->mb_room[r] > w->mb_room[mb] : w->mb_ms[r] < w->mb_ms[mb])) mb = r;
        }
        if (mb < 0) return 0;
        used = MAX(used, mb + 1);
        mb_of[i] = mb;
        w->mb_ms[mb] += ms[docs[i]];
        w->mb_room[mb] += room[docs[i]];
    }
    return used;
}

typedef struct Swap {
    int from, to, mb;  // document `from` of the longest micro-batch goes to `mb`, and `to` back (-1: none)
    double ms;         // of the longer of both after it
} Swap;

static void try_swap(Swap* best, const StepWork* w, int k, const int* docs, int longest, int from, int to, int mb) {
    const double* ms = w->ms + (size_t)k * (size_t)w->n;
    const int64_t *room = w->room + (size_t)k * (size_t)w->n, most = w->pool->scheme[k].max_tokens;
    double change = ms[docs[from]] - (to < 0 ? 0 : ms[docs[to]]);
    int64_t more = room[docs[from]] - (to < 0 ? 0 : room[docs[to]]);
    if (w->mb_room[mb] + more > most || w->mb_room[longest] - more > most) return;
    double after = MAX(w->mb_ms[mb] + change, w->mb_ms[longest] - change);
    if (after < best->ms) *best = (Swap){from, to, mb, after};
}

// Makes the best move or swap out of the longest micro-batch, as long as one helps.
static void improve_micro_batches(int* mb_of, StepWork* w, int k, const int* docs, int n, int v) {
    const double* ms = w->ms + (size_t)k * (size_t)w->n;
    const int64_t* room = w->room + (size_t)k * (size_t)w->n;
    for (int round = 0; round < 4 * n; round++) {
        int longest = 0;
        for (int r = 1; r < v; r++)
            if (w->mb_ms[r] > w->mb_ms[longest]) longest = r;
        Swap best = {.from = -1, .ms = w->mb_ms[longest]};
        for (int i = 0; i < n; i++) {
            if (mb_of[i] != longest) continue;
            for (int r = 0; r < v; r++)
                if (r != longest) try_swap(&best, w, k, docs, longest, i, -1, r);
            for (int j = 0; j < n; j++)
                if (mb_of[j] != longest) try_swap(&best, w, k, docs, longest, i, j, mb_of[j]);
        }
        if (best.from < 0) return;
        for (int back = 0; back < 2; back++) {
            int i = back ? best.to : best.from, from = back ? best.mb : longest, to = back ? longest : best.mb;
            if (i < 0) continue;
            mb_of[i] = to;
            w->mb_ms[from] -= ms[docs[i]], w->mb_ms[to] += ms[docs[i]];
            w->mb_room[from] -= room[docs[i]], w->mb_room[to] += room[docs[i]];
        }
    }
}

Packing hydraulis_time(const int* mb_of, StepWork* w, int k, const int* docs, int n, int v) {
    const PipelineScheme* scheme = &w->pool->scheme[k];
    Packing packing = {.n = v};
    double sum = 0;
    for (int r = 0; r < v; r++) w->mb_ms[r] = 0;
    for (int i = 0; i < n; i++) w->mb_ms[mb_of[i]] += w->ms[k * w->n + docs[i]];
    for (int r = 0; r < v; r++) sum += w->mb_ms[r], packing.max = MAX(packing.max, w->mb_ms[r]);
    sum /= w->pace, packing.max /= w->pace;
    packing.ms = scheme->pp == 1 ? sum + scheme->fixed * v : (packing.max + scheme->fixed) * (scheme->pp - 1 + v);
    return packing;
}

Packing hydraulis_pack_into(int* mb_of, StepWork* w, int k, const int* docs, int n, int v) {
    int used = fill_micro_batches(mb_of, w, k, docs, n, v, 0);
    if (used == 0) used = fill_micro_batches(mb_of, w, k, docs, n, v, 1);
    if (used == 0) return (Packing){0};
    if (w->pool->scheme[k].pp > 1) improve_micro_batches(mb_of, w, k, docs, n, used);
    return hydraulis_time(mb_of, w, k, docs, n, used);
}

Packing hydraulis_pack(int* mb_of, StepWork* w, int k, const int* docs, int n) {
    const PipelineScheme* scheme = &w->pool->scheme[k];
    Packing best = {.ms = INFINITY};
    int64_t room = 0;
    int apart = 0;  // documents of which no two fit one micro-batch
    if (n == 0) return (Packing){0};
    for (int i = 0; i < n; i++) {
        room += w->room[k * w->n + docs[i]];
        apart += 2 * w->room[k * w->n + docs[i]] > scheme->max_tokens;
    }
    int fewest = MAX((int)CEIL_DIV(room, scheme->max_tokens), apart);
    // Best fit says how many suffice; the tried counts go at least that far.
    int suffice = fill_micro_batches(w->scratch, w, k, docs, n, n, 1), most = MIN(n, fewest + HYDRAULIS_COUNTS - 1);
    for (int v = fewest; v <= MAX(most, suffice); v++) {
        Packing packing = hydraulis_pack_into(w->scratch, w, k, docs, n, v);
        if (packing.n == 0 || packing.ms >= best.ms) continue;
        best = packing;
        memcpy(mb_of, w->scratch, sizeof(int) * (size_t)n);
        if (scheme->pp == 1) break;  // more only cost more
    }
    return best;
}

// ---- the choice of a step

// Fills docs and first.
static void group_docs(StepWork* w, const int* pipeline_of, int pipelines) {
    memset(w->first, 0, sizeof(int) * ((size_t)pipelines + 2));
    for (int i = 0; i < w->n; i++) w->first[pipeline_of[i] + 2]++;
    for (int p = 2; p <= pipelines; p++) w->first[p + 1] += w->first[p];
    for (int i = 0; i < w->n; i++) w->docs[w->first[pipeline_of[w->sorted[i]] + 1]++] = w->sorted[i];
}

// Packs all pipelines. Returns the time of the slowest.
static double pack_all(StepWork* w, const Strategy* strategy, const int* pipeline_of) {
    double slowest = 0;
    group_docs(w, pipeline_of, strategy_pipelines(strategy, w->pool));
    for (int k = 0, p = 0; k < w->pool->n; k++)
        for (int copy = 0; copy < strategy->copies[k]; copy++, p++) {
            int first = w->first[p], n = w->first[p + 1] - first;
            w->pace = pace_of(strategy, p);
            Packing packing = hydraulis_pack(w->mb_of + first, w, k, w->docs + first, n);
            slowest = MAX(slowest, strategy->start[k] + packing.ms);
        }
    return slowest;
}

Choice hydraulis_choose(StepWork* w, const Strategy* list, int n_strategies, int shuffles, uint64_t seed) {
    Choice best = {.strategy = -1, .ms = INFINITY};
    for (int i = 0; i < n_strategies; i++) {
        Choice choice = hydraulis_dispatch(w->candidate, w, &list[i], shuffles, seed);
        if (choice.strategy < 0) continue;
        choice.strategy = i;
        choice.ms = pack_all(w, &list[i], w->candidate) + list[i].end;
        if (!better(w->pool, &choice, &best)) continue;
        best = choice;
        memcpy(w->pipeline_of, w->candidate, sizeof(int) * (size_t)w->n);
    }
    if (best.strategy >= 0) pack_all(w, &list[best.strategy], w->pipeline_of);
    return best;
}

// ---- beside moves

// Rows are as long as a scheme holds. With stages gradients leave at the end.
static MoveWindow window_of(const PipelineGroup* g, const PipelineScheme* scheme, const Layout* layout, int stage,
                            double ms, double tau) {
    double rows = fmax(1, ceil(ms / tau / (double)scheme->max_tokens)), pass = ms / rows;
    MoveWindow w = {.forward = pass / 3, .backward = pass * 2 / 3, .tail = scheme->fixed};
    w.first = stage * w.forward, w.end = ms + rows * scheme->fixed;
    w.first_layer = layout_first(layout, stage), w.layers = layout_first(layout, stage + 1) - w.first_layer;
    w.hides = g->pp == 1;
    return w;
}

void strategy_windows(MoveWindow* window, const RankStrategy* strategy, const PipelineScheme* const* scheme,
                      const LayerLayout* how, int layers, double tokens, double mean_length, int hides, int on_links) {
    double rate = 0, tau[MOST_PIPELINE_GROUPS];
    int zero = 1, first = 0;
    for (int l = 0; l < layers; l++) zero = MAX(zero, how[l].zero);
    for (int i = 0; i < strategy->n; i++) {
        tau[i] = scheme[i]->quadratic * mean_length + scheme[i]->linear;
        rate += strategy->group[i].copies / tau[i];
    }
    Shape whole = {.L = layers};
    for (int i = 0; i < strategy->n; first += group_ranks(&strategy->group[i++])) {
        const PipelineGroup* g = &strategy->group[i];
        Layout layout = strategy_layout(&whole, g, how);
        for (int r = 0; r < group_ranks(g); r++) {
            MoveWindow* w = &window[first + r];
            *w = window_of(g, scheme[i], &layout, r / (g->copies * g->tp), tokens / rate, tau[i]);
            w->together = first + (g->pp > 1 || zero > 1 ? 0 : r / g->tp * g->tp);
            w->lag = zero > 1, w->hides &= hides, w->meets = on_links && g->tp > 1;
        }
    }
}
