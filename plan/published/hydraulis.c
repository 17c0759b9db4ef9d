// hydraulis.c - a step of Hydraulis: choosing a strategy, dispatching documents to its pipelines, packing each
// pipeline's into rows; and the published planner that is made of it. See hydraulis.h for the model and the source.
//
// Tensor x pipeline parallelism is what Hydraulis chooses among. The published planner has the cp sizes of this project
// in its place: a pipeline is a group of ranks that share documents by heads or rings, pp = 1, one scheme for each
// power of two. So its gains are those of unlike cp sizes chosen each step, not of unlike stages. A row costs what a
// micro-batch of published systems does, Cost.round. Ranks of unequal speed are unknown to it.
//
// Where the released code is known to go wrong it is not followed: ties in dispatching go to the smallest own load, not
// to the first pipeline; a shuffle that leaves a pipeline empty does not end the search; a strategy costs the maximum
// over the times of its pipelines. Packing uses no integer program: longest cost first under the cap on tokens, best
// fit where that fails, then moves and swaps out of the longest row. A floor on the tokens of a row, which only limits
// how many rows are tried, is left out: cp sizes have none.
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "plan/planner.h"
#include "plan/published/hydraulis.h"
#include "plan/published/longest.h"
#include "plan/published/published.h"

// ---- schemes

double scheme_ms(const PipelineScheme* scheme, int s) { return (scheme->quadratic * s + scheme->linear) * s; }

int64_t scheme_room(const PipelineScheme* scheme, int s) {
    return scheme->ring == 1 ? s : (int64_t)scheme->ring * widest_place(s, scheme->ring);
}

int scheme_longest(const PipelineScheme* scheme) {
    int s = (int)MIN(scheme->max_tokens, INT_MAX);
    while (s > 0 && scheme_room(scheme, s) > scheme->max_tokens) s--;
    return s;
}

int strategy_pipelines(const Strategy* strategy, const SchemePool* pool) {
    int n = 0;
    for (int k = 0; k < pool->n; k++) n += strategy->copies[k];
    return n;
}

// ---- the documents of a step

// What a pipeline was given so far.
typedef struct Load {
    double sum, longest;  // of t(s)
    int docs, pipeline;
} Load;

int step_work(StepWork* w, const SchemePool* pool, const int* lengths, int n, Arena* arena, char* err, size_t errlen) {
    *w = (StepWork){.pool = pool,
                    .lengths = lengths,
                    .n = n,
                    .ms = TAKE(arena, double, pool->n * n),
                    .room = TAKE(arena, int64_t, pool->n * n),
                    .sorted = TAKE(arena, int, n),
                    .order = TAKE(arena, int, n),
                    .trial = TAKE(arena, int, n),
                    .candidate = TAKE(arena, int, n),
                    .load = TAKE(arena, Load, pool->ranks),
                    .pipeline_ms = TAKE(arena, double, pool->ranks),
                    .pipeline_of = TAKE(arena, int, n),
                    .docs = TAKE(arena, int, n),
                    .first = TAKE(arena, int, pool->ranks + 1),
                    .row_of = TAKE(arena, int, n),
                    .row = TAKE(arena, int, n),
                    .row_ms = TAKE(arena, double, n),
                    .row_room = TAKE(arena, int64_t, n)};
    if (arena_check(arena, err, errlen) < 0) return -1;
    _Static_assert(sizeof(Sorted) <= sizeof *w->room, "documents are sorted where room is filled in below");
    Sorted* documents = (Sorted*)w->room;
    for (int i = 0; i < n; i++) documents[i] = (Sorted){lengths[i], i};
    sort_longest_first(documents, n);
    for (int i = 0; i < n; i++) w->sorted[i] = documents[i].doc;
    for (int k = 0; k < pool->n; k++) {
        const PipelineScheme* scheme = &pool->scheme[k];
        for (int i = 0; i < n; i++) {
            int64_t room = scheme_room(scheme, lengths[i]);
            w->room[k * n + i] = room;
            w->ms[k * n + i] = room <= scheme->max_tokens ? scheme_ms(scheme, lengths[i]) : INFINITY;
        }
    }
    return 0;
}

// ---- stage 1: documents to pipelines

static double load_with(const Load* load, const PipelineScheme* scheme, double ms) {
    return load->sum + ms + (scheme->pp - 1) * MAX(load->longest, ms);
}

// Copies of a scheme with pp = 1 are a heap, the least load first: the others need not be looked at. Full ones last.
static void sink(Load* heap, int n, int most_docs) {
    for (int i = 0, child; (child = 2 * i + 1) < n; i = child) {
        Load load = heap[i];
        for (int c = 0, at = child; c < 2 && at + c < n; c++) {
            const Load *x = &heap[at + c], *y = &heap[child];
            int full_x = x->docs >= most_docs, full_y = y->docs >= most_docs;
            if (full_x < full_y || (full_x == full_y && x->sum < y->sum)) child = at + c;
        }
        int full = load.docs >= most_docs, full_child = heap[child].docs >= most_docs;
        if (full < full_child || (full == full_child && load.sum <= heap[child].sum)) return;
        heap[i] = heap[child];
        heap[child] = load;
    }
}

// The schemes that a strategy uses, the largest first.
typedef struct Used {
    int n, pipelines;
    int scheme[HYDRAULIS_SCHEMES], first[HYDRAULIS_SCHEMES], copies[HYDRAULIS_SCHEMES];
} Used;

static Used used_schemes(const Strategy* strategy, const SchemePool* pool) {
    Used used = {0};
    for (int k = 0; k < pool->n; k++) {
        if (strategy->copies[k] == 0) continue;
        used.scheme[used.n] = k;
        used.first[used.n] = used.pipelines;
        used.pipelines += used.copies[used.n++] = strategy->copies[k];
    }
    return used;
}

// The pipeline that has least with the document in it. That makes the largest load smallest, and where several do it is
// the smallest own load, so that short documents go where they are cheapest. Returns the pipeline, -1 for none.
static int place(StepWork* w, const Used* used, int doc) {
    int best = -1, of = 0;
    double least = INFINITY;
    for (int u = 0; u < used->n; u++) {
        const PipelineScheme* scheme = &w->pool->scheme[used->scheme[u]];
        double ms = w->ms[used->scheme[u] * w->n + doc];
        int look = scheme->pp == 1 ? 1 : used->copies[u];
        for (const Load* load = w->load + used->first[u]; look-- > 0 && ms < INFINITY; load++) {
            double with = load_with(load, scheme, ms);
            if (load->docs < scheme->max_docs && with < least) least = with, best = (int)(load - w->load), of = u;
        }
    }
    if (best < 0) return -1;
    Load* load = &w->load[best];
    const PipelineScheme* scheme = &w->pool->scheme[used->scheme[of]];
    double ms = w->ms[used->scheme[of] * w->n + doc];
    int pipeline = load->pipeline;
    load->sum += ms;
    load->longest = MAX(load->longest, ms);
    load->docs++;
    if (scheme->pp == 1) sink(w->load + used->first[of], used->copies[of], scheme->max_docs);
    return pipeline;
}

// Documents in random order; first those that no pipeline but the first holds.
static void shuffle(StepWork* w, const Used* used, uint64_t seed) {
    for (int i = 0; i < w->n; i++) {
        int j = (int)(random_uniform(seed, (uint64_t)i) * (i + 1));
        w->order[i] = w->order[j];
        w->order[j] = i;
    }
    if (used->n == 0 || used->copies[0] > 1) return;
    for (int i = 0, forced = 0; i < w->n; i++) {
        int doc = w->order[i], others = 0;
        for (int u = 1; u < used->n && !others; u++) others = w->ms[used->scheme[u] * w->n + doc] < INFINITY;
        if (others) continue;
        w->order[i] = w->order[forced];
        w->order[forced++] = doc;
    }
}

// One order of the documents. 0, or -1 where a document finds no place.
static int try_order(Choice* choice, StepWork* w, const Used* used) {
    *choice = (Choice){0};
    for (int p = 0; p < used->pipelines; p++) w->load[p] = (Load){.pipeline = p};
    for (int i = 0; i < w->n; i++)
        if ((w->trial[w->order[i]] = place(w, used, w->order[i])) < 0) return -1;
    for (int u = 0; u < used->n; u++)
        for (int p = used->first[u]; p < used->first[u] + used->copies[u]; p++) {
            choice->ms = MAX(choice->ms, load_with(&w->load[p], &w->pool->scheme[used->scheme[u]], 0));
            choice->empty += w->load[p].docs == 0;
        }
    return 0;
}

static int better(const Choice* x, const Choice* y) {
    if (y->strategy < 0) return 1;
    return (x->empty > 0) != (y->empty > 0) ? x->empty == 0 : x->ms < y->ms;
}

Choice hydraulis_dispatch(int* pipeline_of, StepWork* w, const Strategy* strategy, int shuffles, uint64_t seed) {
    Choice best = {.strategy = -1, .ms = INFINITY}, choice;
    Used used = used_schemes(strategy, w->pool);
    for (int i = 0; i < shuffles; i++) {
        shuffle(w, &used, hash64(seed) ^ (uint64_t)i);
        // Only limits on documents can make one order fail and another one not.
        if (try_order(&choice, w, &used) < 0 || !better(&choice, &best)) continue;
        best = choice;
        memcpy(pipeline_of, w->trial, sizeof(int) * (size_t)w->n);
        for (int u = 0; u < used.n; u++)
            for (int p = used.first[u]; p < used.first[u] + used.copies[u]; p++)
                w->pipeline_ms[w->load[p].pipeline] = load_with(&w->load[p], &w->pool->scheme[used.scheme[u]], 0);
    }
    return best;
}

// ---- stage 2: the documents of a pipeline into rows

// Each document to the row with the least time, or the least room, that has room for it; rows are opened in order.
// Returns rows in use, 0 when a document fits none of v.
static int fill_rows(int* row_of, StepWork* w, int k, const int* docs, int n, int v, int best_fit) {
    const double* ms = w->ms + (size_t)k * (size_t)w->n;
    const int64_t *room = w->room + (size_t)k * (size_t)w->n, most = w->pool->scheme[k].max_tokens;
    int used = 0;
    for (int r = 0; r < v; r++) w->row_ms[r] = 0, w->row_room[r] = 0;
    for (int i = 0; i < n; i++) {
        int row = -1;
        for (int r = 0; r < v && r <= used; r++) {
            if (w->row_room[r] + room[docs[i]] > most) continue;
            if (row < 0 || (best_fit ? w->row_room[r] > w->row_room[row] : w->row_ms[r] < w->row_ms[row])) row = r;
        }
        if (row < 0) return 0;
        used = MAX(used, row + 1);
        row_of[i] = row;
        w->row_ms[row] += ms[docs[i]];
        w->row_room[row] += room[docs[i]];
    }
    return used;
}

typedef struct Swap {
    int from, to, row;  // document `from` of the longest row to `row`, and `to` back (-1: none)
    double ms;          // of the longer of both rows after it
} Swap;

static void try_swap(Swap* best, const StepWork* w, int k, const int* docs, int longest, int from, int to, int row) {
    const double* ms = w->ms + (size_t)k * (size_t)w->n;
    const int64_t *room = w->room + (size_t)k * (size_t)w->n, most = w->pool->scheme[k].max_tokens;
    double change = ms[docs[from]] - (to < 0 ? 0 : ms[docs[to]]);
    int64_t more = room[docs[from]] - (to < 0 ? 0 : room[docs[to]]);
    if (w->row_room[row] + more > most || w->row_room[longest] - more > most) return;
    double after = MAX(w->row_ms[row] + change, w->row_ms[longest] - change);
    if (after < best->ms) *best = (Swap){from, to, row, after};
}

// The best move or swap out of the longest row, as long as there is one that helps.
static void improve_rows(int* row_of, StepWork* w, int k, const int* docs, int n, int v) {
    const double* ms = w->ms + (size_t)k * (size_t)w->n;
    const int64_t* room = w->room + (size_t)k * (size_t)w->n;
    for (int round = 0; round < 4 * n; round++) {
        int longest = 0;
        for (int r = 1; r < v; r++)
            if (w->row_ms[r] > w->row_ms[longest]) longest = r;
        Swap best = {.from = -1, .ms = w->row_ms[longest]};
        for (int i = 0; i < n; i++) {
            if (row_of[i] != longest) continue;
            for (int r = 0; r < v; r++)
                if (r != longest) try_swap(&best, w, k, docs, longest, i, -1, r);
            for (int j = 0; j < n; j++)
                if (row_of[j] != longest) try_swap(&best, w, k, docs, longest, i, j, row_of[j]);
        }
        if (best.from < 0) return;
        for (int back = 0; back < 2; back++) {
            int i = back ? best.to : best.from, from = back ? best.row : longest, to = back ? longest : best.row;
            if (i < 0) continue;
            row_of[i] = to;
            w->row_ms[from] -= ms[docs[i]], w->row_ms[to] += ms[docs[i]];
            w->row_room[from] -= room[docs[i]], w->row_room[to] += room[docs[i]];
        }
    }
}

// Sums anew, in the order of documents: what moves and swaps left in row_ms has rounding of its own.
static Rows time_rows(const int* row_of, StepWork* w, int k, const int* docs, int n, int v) {
    const PipelineScheme* scheme = &w->pool->scheme[k];
    Rows rows = {.n = v};
    double sum = 0;
    for (int r = 0; r < v; r++) w->row_ms[r] = 0;
    for (int i = 0; i < n; i++) w->row_ms[row_of[i]] += w->ms[k * w->n + docs[i]];
    for (int r = 0; r < v; r++) sum += w->row_ms[r], rows.max = MAX(rows.max, w->row_ms[r]);
    rows.ms = scheme->pp == 1 ? sum + scheme->fixed * v : (rows.max + scheme->fixed) * (scheme->pp - 1 + v);
    return rows;
}

Rows hydraulis_pack_into(int* row_of, StepWork* w, int k, const int* docs, int n, int v) {
    int used = fill_rows(row_of, w, k, docs, n, v, 0);
    if (used == 0) used = fill_rows(row_of, w, k, docs, n, v, 1);
    if (used == 0) return (Rows){0};
    if (w->pool->scheme[k].pp > 1) improve_rows(row_of, w, k, docs, n, used);
    return time_rows(row_of, w, k, docs, n, used);
}

Rows hydraulis_pack(int* row_of, StepWork* w, int k, const int* docs, int n) {
    const PipelineScheme* scheme = &w->pool->scheme[k];
    Rows best = {.ms = INFINITY};
    int64_t room = 0;
    int apart = 0;  // documents of which no two fit a row
    if (n == 0) return (Rows){0};
    for (int i = 0; i < n; i++) {
        room += w->room[k * w->n + docs[i]];
        apart += 2 * w->room[k * w->n + docs[i]] > scheme->max_tokens;
    }
    int fewest = MAX((int)CEIL_DIV(room, scheme->max_tokens), apart);
    // Best fit says how many rows always suffice; the counts that are tried go at least so far.
    int suffice = fill_rows(w->row, w, k, docs, n, n, 1), most = MIN(n, fewest + HYDRAULIS_ROW_COUNTS - 1);
    for (int v = fewest; v <= MAX(most, suffice); v++) {
        Rows rows = hydraulis_pack_into(w->row, w, k, docs, n, v);
        if (rows.n == 0 || rows.ms >= best.ms) continue;
        best = rows;
        memcpy(row_of, w->row, sizeof(int) * (size_t)n);
        if (scheme->pp == 1) break;  // more rows only cost more
    }
    return best;
}

// ---- the choice of a step

// Fills docs and first.
static void group_docs(StepWork* w, const int* pipeline_of, int pipelines) {
    memset(w->first, 0, sizeof(int) * ((size_t)pipelines + 1));
    for (int i = 0; i < w->n; i++) w->first[pipeline_of[i] + 1]++;
    for (int p = 0; p < pipelines; p++) w->first[p + 1] += w->first[p];
    for (int i = 0; i < w->n; i++) w->docs[w->first[pipeline_of[w->sorted[i]]]++] = w->sorted[i];
    memmove(w->first + 1, w->first, sizeof(int) * (size_t)pipelines);
    w->first[0] = 0;
}

// Packs all pipelines; the time of the slowest.
static double pack_all(StepWork* w, const Strategy* strategy, const int* pipeline_of) {
    double slowest = 0;
    group_docs(w, pipeline_of, strategy_pipelines(strategy, w->pool));
    for (int k = 0, p = 0; k < w->pool->n; k++)
        for (int copy = 0; copy < strategy->copies[k]; copy++, p++) {
            int first = w->first[p], n = w->first[p + 1] - first;
            slowest = MAX(slowest, hydraulis_pack(w->row_of + first, w, k, w->docs + first, n).ms);
        }
    return slowest;
}

Choice hydraulis_choose(StepWork* w, const Strategy* list, int n_strategies, int shuffles, uint64_t seed) {
    Choice best = {.strategy = -1, .ms = INFINITY};
    for (int i = 0; i < n_strategies; i++) {
        Choice choice = hydraulis_dispatch(w->candidate, w, &list[i], shuffles, seed);
        if (choice.strategy < 0) continue;
        choice.strategy = i;
        choice.ms = pack_all(w, &list[i], w->candidate);
        if (!better(&choice, &best)) continue;
        best = choice;
        memcpy(w->pipeline_of, w->candidate, sizeof(int) * (size_t)w->n);
    }
    if (best.strategy >= 0) pack_all(w, &list[best.strategy], w->pipeline_of);
    return best;
}

// ---- the published planner

typedef struct Hydraulis {
    const Setting* setting;
    SchemePool pool;
    Strategy list[HYDRAULIS_LIST];
    int n;
} Hydraulis;

// Between a quarter of a full row and a full one the exchanges of a measured machine are taken as a line.
static PipelineScheme scheme_of_group(const GroupCost* g, const Setting* setting) {
    PipelineScheme scheme = {
        .gpus = g->cp_size, .pp = 1, .quadratic = g->quadratic, .ring = g->cp_size / g->ulysses_size};
    scheme.max_tokens = g->room * scheme.ring;
    scheme.max_docs = scheme.ring > 1 ? setting->limits.max_ring_docs : INT_MAX;
    double full = (double)scheme.max_tokens, slope = g->link_linear, start = 0;
    if (g->n_communications > 0) {
        double quarter_ms = group_communication_ms(g, full / 4);
        slope = MAX((group_communication_ms(g, full) - quarter_ms) / (0.75 * full), 0);
        start = MAX(quarter_ms - slope * full / 4, 0);
    }
    scheme.linear = g->linear + slope;
    scheme.fixed = MAX(setting->cost.round, g->micro_batch) + start;
    return scheme;
}

static void pool_of_setting(SchemePool* pool, const Setting* setting) {
    *pool = (SchemePool){.ranks = setting->limits.ranks};
    for (int d = 1; d <= pool->ranks && pool->n < HYDRAULIS_SCHEMES; d += d) {
        const GroupCost* g = &setting->groups[d];
        if (!g->canonical || g->ulysses_size == 0) continue;
        PipelineScheme scheme = scheme_of_group(g, setting);
        int at = pool->n++;
        for (; at > 0 && pool->scheme[at - 1].max_tokens <= scheme.max_tokens; at--)
            pool->scheme[at] = pool->scheme[at - 1];
        pool->scheme[at] = scheme;
    }
}

enum { CANDIDATES = HYDRAULIS_SCHEMES + 2 * HYDRAULIS_SCHEMES * HYDRAULIS_BINS };

// One cp size for all, the least that holds the longest document, is the first: Hydraulis' optimizer strategy. The
// dynamic program does not see that a step has only so many documents for its pipelines, and likes the narrowest
// scheme too well. So it is asked again with the narrow ones left out; and fixed costs are charged in both ways,
// because rows of short documents share theirs. Then both stages say on batches from the sample what is of use.
static int propose(Hydraulis* h, Strategy* list, const int* sample, int n_sample, char* err, size_t errlen) {
    const SchemePool* pool = &h->pool;
    int longest = scheme_longest(&pool->scheme[0]), n = 0, found;
    if (h->setting->context > 0) longest = MIN(longest, h->setting->context);
    for (int k = 0; k < pool->n; k++)
        if (scheme_longest(&pool->scheme[k]) >= longest) list[0] = strategy_of_one(pool, k), n = 1;
    for (int k = 0; k < pool->n; k++) {
        Strategy strategy = strategy_of_one(pool, k);
        if (strategy_is_new(list, n, &strategy)) list[n++] = strategy;
    }
    for (int i = 0; i < 2 * pool->n; i++) {
        Proposal proposal = {longest, strategies_step(longest, pool->ranks), pool->scheme[i / 2].gpus,
                             i % 2 ? FIXED_PER_ROW : FIXED_PER_DOCUMENT};
        Strategy* more = list + n;
        if ((found = strategies_propose(more, pool, &proposal, sample, n_sample, err, errlen)) < 0) return -1;
        for (int j = 0; j < found; j++) {
            Strategy strategy = more[j];
            if (strategy_is_new(list, n, &strategy)) list[n++] = strategy;
        }
    }
    return strategies_shorten(list, n, pool, sample, n_sample, err, errlen);
}

static void* planner_open(const Setting* setting, const int* sample, int n_sample, char* err, size_t errlen) {
    Hydraulis* h = (Hydraulis*)calloc(1, sizeof *h);
    Strategy* list = (Strategy*)malloc(sizeof(Strategy) * CANDIDATES);
    int n = -1;
    if (!h || !list) fail(err, errlen, "out of memory for strategies");
    else {
        h->setting = setting;
        pool_of_setting(&h->pool, setting);
        if (h->pool.n == 0) fail(err, errlen, "no cp size of %d ranks is a power of two", setting->limits.ranks);
        else n = propose(h, list, sample, n_sample, err, errlen);
    }
    if (n > 0) memcpy(h->list, list, sizeof(Strategy) * (size_t)n), h->n = n;
    free(list);
    if (n > 0) return h;
    free(h);
    return NULL;
}

// Rows of the pipeline on ranks first_rank .. as micro-batches, the longest first.
static void add_rows(Plan* plan, StepWork* w, int k, int p, MicroBatch mb) {
    const int *docs = w->docs + w->first[p], *row_of = w->row_of + w->first[p];
    int n = w->first[p + 1] - w->first[p], rows = 0;
    for (int i = 0; i < n; i++) rows = MAX(rows, row_of[i] + 1);
    if (n > 0) time_rows(row_of, w, k, docs, n, rows);
    for (int r = 0; r < rows; r++) {
        int longest = 0;
        for (int j = 1; j < rows; j++)
            if (w->row_ms[j] > w->row_ms[longest]) longest = j;
        w->row_ms[longest] = -1;
        mb.first_doc = plan->n_docs;
        for (int i = 0; i < n; i++)
            if (row_of[i] == longest) plan->docs[plan->n_docs++] = docs[i];
        mb.n_docs = plan->n_docs - mb.first_doc;
        plan->micro_batches[plan->n_micro_batches++] = mb;
    }
}

// Pipelines lie in descending order of cp size, so that every one begins at a multiple of its own, and none crosses a
// border between machines of a power of two of ranks without need.
static void plan_of_choice(Plan* plan, const Hydraulis* h, StepWork* w, const Strategy* strategy) {
    const SchemePool* pool = &h->pool;
    for (int k = 0, p = 0; k < pool->n; k++) {
        int cp_size = pool->scheme[k].gpus, first_rank = 0;
        for (int i = 0; i < pool->n; i++)
            if (pool->scheme[i].gpus > cp_size) first_rank += strategy->copies[i] * pool->scheme[i].gpus;
        for (int copy = 0; copy < strategy->copies[k]; copy++, p++, first_rank += cp_size)
            add_rows(plan, w, k, p,
                     (MicroBatch){
                         .first_rank = first_rank, .cp_size = cp_size, .ulysses_size = cp_size / pool->scheme[k].ring});
    }
}

static int planner_plan(void* planner, Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n,
                        Arena* arena, char* err, size_t errlen) {
    const Hydraulis* h = (const Hydraulis*)planner;
    StepWork work;
    if (plan_begin(plan, step, lengths, n, &h->setting->limits, arena, err, errlen) < 0) return -1;
    ArenaMark mark = arena_mark(arena);
    if (step_work(&work, &h->pool, lengths, n, arena, err, errlen) < 0) return -1;
    Choice choice = hydraulis_choose(&work, h->list, h->n, HYDRAULIS_SHUFFLES, (uint64_t)step);
    plan->n_docs = 0;  // until its micro-batches are added
    // The timeline counts Cost.micro-batch itself.
    *rule = (PlayRule){.micro_batch_ms = planner_micro_batch_ms(&h->setting->cost)};
    if (choice.strategy >= 0) plan_of_choice(plan, h, &work, &h->list[choice.strategy]);
    else if (n > 0)
        return fail(err, errlen,
                    "no strategy holds the documents of the step, the longest of %d tokens; groups hold up to %d",
                    lengths[work.sorted[0]], scheme_longest(&h->pool.scheme[0]));
    arena_reset(arena, mark);
    return 0;
}

const Planner planner_hydraulis = {
    "hydraulis",
    "strategies of unlike groups from a dynamic program, one a step, documents dispatched and packed (Hydraulis, 2024)",
    planner_open,
    planner_plan,
    free,
};
