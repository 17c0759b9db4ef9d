// strategy_steps.c - see strategy_steps.h.
#include "plan/search/strategy_steps.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

enum { RANKED = 96, FIRST = 32, SOME = 8, BINS = 64, SHUFFLES = 5, LEAST_ROW = 64 };

// A strategy, tried on each step.
typedef struct Candidate {
    Strategy s;
    RankStrategy ranks;
    double guess[SAMPLED_STEPS], ms[SAMPLED_STEPS];   // guess: the run chooses by it; ms: as played
    double job[SAMPLED_STEPS][MOST_PIPELINE_GROUPS];  // the part of each group, from when it has its weights
    double bytes;
} Candidate;

// The search for lists whose layers all run alike, in rows of one length.
typedef struct Lists {
    const ListProblem* p;
    Arena* arena;
    LayerLayout how[MOST_LAYERS];
    int N;
    SchemePool pool;
    PipelineGroup kind[HYDRAULIS_SCHEMES];  // of each scheme
    double alone[HYDRAULIS_SCHEMES];        // ms of equal rounds on all ranks, without moves
    SchemePool tuned;                       // schemes that take as long as `alone`, for proposals
    StrategySearch search;
    StepWork work[SAMPLED_STEPS];
    Candidate candidate[RANKED];
    Strategy ranked[RANKED];
} Lists;

static int knows_pipelines_alone(const Machine* m) {
    return m->n_schemes > 0 && m->cost.per_token <= 0 && m->cost.quadratic <= 0;
}

// ---- kinds of pipelines

// The elements of a bucket that every rank has whole.
static double replicated(const BucketWeights* b) {
    double sum = 0;
    for (int i = 0; i < b->n_replicated; i++) sum += b->replicated[i];
    return sum;
}

// The most bytes that moves take on a rank of stage s. They are its own piece of every bucket, for every pipeline or
// every rank, but for no more than owners and nodes; two waves inside the node; two slices of sums.
static double moving_bytes(const LayoutCosts* c, const Layout* layout, int s, int pipelines) {
    TpSplit split = split_even(c->whole, layout->tp);
    Shape rank = split_shape(c->whole, &split, 0);
    Shape part = shape_stage(&rank, layout_first(layout, s), layout_first(layout, s + 1));
    const BucketWeights* buckets[] = {&c->layer, &c->end[0], &c->end[1]};
    double most = 0, pieces = 0, slice = 0, node = c->links.node_size, nodes = ceil(c->ranks / node) + node;
    double users = fmin(pipelines, nodes), ranks = fmin(c->ranks, nodes), counts[] = {c->whole->L, 1, 1};
    int ends[] = {0, 1, shape_buckets(&part) - 1};  // layers are alike
    for (int i = 0; i < COUNT(ends); i++) most = fmax(most, (double)shape_bucket(&part, ends[i]).elems);
    for (int i = 0; i < COUNT(buckets); i++) {
        double piece = ceil(buckets[i]->elems / c->ranks) + 64;  // as buckets are padded
        slice = fmax(slice, piece);
        pieces += counts[i] * (users * piece + fmax(ranks - users, 0) * fmin(piece, replicated(buckets[i])));
    }
    return sizeof(float) * (2 * most + pieces + 2 * slice);
}

// The bytes of a rank of stage s of `copies` such pipelines.
static double stage_bytes(const Lists* x, const Layout* layout, int copies, int s, int pipelines) {
    return x->p->bytes(x->p->layouts->context, layout, copies, s, x->N * layout->tp) +
           moving_bytes(x->p->costs, layout, s, pipelines);
}

// Finds the scheme that such a pipeline is to planners. 0, or -1 if it has no times.
static int find_scheme(PipelineScheme* scheme, Lists* x, const PipelineGroup* g) {
    const LayoutCosts* c = x->p->costs;
    if (knows_pipelines_alone(&c->machine)) {
        const Scheme* s = machine_scheme(&c->machine, g->tp, g->pp);
        int tokens = s && c->machine.gpu_mib > 0 ? machine_scheme_tokens(&c->machine, s, c->ranks, 1, 1) : x->N * g->tp;
        if (s) *scheme = (PipelineScheme){g->tp * g->pp, g->pp, s->quadratic, s->linear, s->fixed, tokens, 1, INT_MAX};
        return s && tokens > 0 ? 0 : -1;
    }
    Layout layout = strategy_layout(c->whole, g, x->how);
    LayoutCosts one = *c;
    GroupCost groups[2];
    double speed;
    Setting setting;
    one.ranks = g->tp * g->pp;
    layout_setting(&setting, groups, &speed, &one, &layout, x->N * g->tp);
    *scheme = scheme_of_group(&groups[1], g->tp * g->pp, g->pp, x->N * g->tp);
    return 0;
}

static void add_kind(Lists* x, const PipelineGroup* g) {
    const LayoutCosts* c = x->p->costs;
    PipelineScheme scheme;
    int most = c->ranks / (g->tp * g->pp);
    if (x->pool.n == HYDRAULIS_SCHEMES || most < x->p->least_copies) return;
    Layout layout = strategy_layout(c->whole, g, x->how);
    if (!knows_pipelines_alone(&c->machine) && stage_bytes(x, &layout, most, 0, 1) > x->p->layouts->memory) return;
    if (find_scheme(&scheme, x, g)) return;
    int at = scheme_add(&x->pool, &scheme);
    for (int i = x->pool.n - 1; i > at; i--) x->kind[i] = x->kind[i - 1];
    x->kind[at] = *g;
}

// Lists the pipelines whose ranks divide all ranks; all pipelines if ranks are few.
static void list_kinds(Lists* x) {
    const ListProblem* p = x->p;
    const LayoutProblem* asked = p->layouts;
    int ranks = p->costs->ranks, most = MIN(MIN(p->costs->whole->NH, p->costs->whole->U), (int)MOST_TP);
    x->pool = (SchemePool){.ranks = ranks, .may_be_empty = 1};
    for (int gpus = 1; gpus <= ranks; gpus++)
        for (int pp = 1; pp <= gpus && (ranks % gpus == 0 || ranks <= HYDRAULIS_FEW_RANKS); pp++) {
            PipelineGroup g = {1, gpus / pp, pp};
            int may_be =
                g.tp >= asked->tp[0] && g.tp <= asked->tp[1] && pp >= asked->stages[0] && pp <= asked->stages[1];
            if (gpus % pp == 0 && g.tp <= most && pp <= MIN(p->costs->whole->L, (int)MOST_STAGES) && may_be)
                add_kind(x, &g);
        }
}

static uint64_t hash_of_kinds(const Lists* x) {
    return hash_bytes(x->kind, sizeof *x->kind * (size_t)x->pool.n, (uint64_t)x->pool.n);
}

// ---- a strategy under a step

// Writes a strategy as groups, the widest pipelines first: they lie inside a node. 0, or -1 if a list cannot say it.
static int as_groups(RankStrategy* out, const Lists* x, const Strategy* s) {
    *out = (RankStrategy){0};
    for (int tp = MOST_TP; tp > 0; tp--)
        for (int k = 0; k < x->pool.n; k++) {
            PipelineGroup g = x->kind[k];
            g.copies = s->copies[k];
            if (g.tp != tp || g.copies == 0) continue;
            if (out->n == MOST_PIPELINE_GROUPS || g.copies < x->p->least_copies) return -1;
            out->group[out->n++] = g;
        }
    return 0;
}

// Returns pool.n if there is no such kind.
static int kind_of(const Lists* x, const PipelineGroup* g) {
    int k = 0;
    while (k < x->pool.n && (x->kind[k].tp != g->tp || x->kind[k].pp != g->pp)) k++;
    return k;
}

// The bytes of the fullest rank.
static double fullest(const Lists* x, const RankStrategy* s, int pipelines) {
    double most = 0;
    for (int i = 0; i < s->n && !knows_pipelines_alone(&x->p->costs->machine); i++) {
        Layout layout = strategy_layout(x->p->costs->whole, &s->group[i], x->how);
        for (int stage = 0; stage < layout.stages; stage++)
            most = fmax(most, stage_bytes(x, &layout, s->group[i].copies, stage, pipelines));
    }
    return most;
}

// Sets Strategy.start and end exactly. 0, or -1 with words.
static int time_moves(Candidate* c, const Lists* x, Err err) {
    int ranks = x->pool.ranks, first = 0, failed = 0, inside;
    const StrategyMoves* m = x->p->moves;
    const PipelineScheme* scheme[MOST_PIPELINE_GROUPS];
    if (ranks > LIST_RANKS || !m) return 0;
    ArenaMark mark = arena_mark(x->arena);
    double* late = TAKE(x->arena, double, ranks);
    MoveWindow* window = TAKE(x->arena, MoveWindow, ranks);
    MoveTables tables;
    if (arena_check(x->arena, err)) return -1;
    failed = strategy_tables(&tables, m, &c->ranks, x->how, x->arena, err);
    for (int i = 0; i < c->ranks.n; i++) scheme[i] = &x->pool.scheme[kind_of(x, &c->ranks.group[i])];
    strategy_windows(window, &c->ranks, scheme, x->how, m->whole->L, x->p->costs->tokens, x->p->costs->mean_length,
                     m->times->overlap, x->p->costs->machine.n_schemes == 0);
    if (!failed) c->s.end = strategy_play(late, &inside, &tables, m, window, x->arena);
    for (int i = 0; i < c->ranks.n && !failed; first += group_ranks(&c->ranks.group[i++])) {
        double* of = &c->s.start[kind_of(x, &c->ranks.group[i])];
        *of = 0;
        for (int r = first; r < first + group_ranks(&c->ranks.group[i]); r++) *of = fmax(*of, late[r]);
    }
    arena_reset(x->arena, mark);
    return failed ? -1 : 0;
}

// Lists the lengths of documents of pipelines [first, first + n) of the choice, and returns how many.
static int docs_of(int* lengths, const StepWork* w, int first, int n) {
    int found = 0;
    for (int i = 0; i < w->n; i++)
        if (w->pipeline_of[i] >= first && w->pipeline_of[i] < first + n) lengths[found++] = w->lengths[i];
    return found;
}

// The ms of like pipelines for some documents. Stages take shorter rows if these are faster (run/step/batch_ranks.c).
static double job_ms(const Lists* x, const PipelineGroup* g, int first_rank, const int* lengths, int n) {
    enum { WORSE = 2 };
    char err[ERR_BYTES];
    double terms[N_LAYOUT_TERMS], least = INFINITY;
    Layout layout = strategy_layout(x->p->costs->whole, g, x->how);
    LayoutCosts job = *x->p->costs;
    int64_t tokens = 0, most = (int64_t)x->N * g->tp;
    job.ranks = group_ranks(g), job.first_rank = first_rank, job.has_owners = 1;
    for (int i = 0; i < n; i++) tokens += lengths[i];
    if (n == 0) return 0;
    if (g->pp == 1 || job.plan) return layout_documents_ms(terms, &job, &layout, (int)most, lengths, n, err);
    for (int64_t v = 1, worse = 0; v < tokens && worse < WORSE; v *= 2) {
        int64_t share = CEIL_DIV(tokens, v * g->copies);
        if (share >= 2 * most) continue;
        double ms = layout_documents_ms(terms, &job, &layout, (int)MIN(share, most), lengths, n, err);
        if (ms == INFINITY) break;  // the longest document does not fit
        worse = ms < least ? 0 : worse + 1, least = fmin(least, ms);
    }
    return least;
}

static void add_moves(Candidate* c, const Lists* x, int b) {
    double slowest = 0;
    for (int i = 0; i < c->ranks.n; i++)
        slowest = fmax(slowest, c->s.start[kind_of(x, &c->ranks.group[i])] + c->job[b][i]);
    c->ms[b] = slowest + c->s.end;
}

// Tries the strategy on step b: its guess, and its ms as played.
static void play(Candidate* c, Lists* x, int b) {
    StepWork* w = &x->work[b];
    ArenaMark mark = arena_mark(x->arena);
    int* lengths = TAKE(x->arena, int, w->n);
    Choice choice = hydraulis_choose(w, &c->s, 1, x->pool.ranks > LIST_RANKS ? 1 : SHUFFLES, (uint64_t)b);
    c->guess[b] = c->ms[b] = choice.strategy < 0 || !lengths ? INFINITY : choice.ms;
    if (choice.strategy < 0 || knows_pipelines_alone(&x->p->costs->machine)) return;
    for (int i = 0, first_rank = 0; i < c->ranks.n; first_rank += group_ranks(&c->ranks.group[i++])) {
        const PipelineGroup* g = &c->ranks.group[i];
        int kind = kind_of(x, g), first = 0;
        for (int k = 0; k < kind; k++) first += c->s.copies[k];
        int n = docs_of(lengths, w, first, g->copies);
        c->job[b][i] = job_ms(x, g, first_rank, lengths, n);
    }
    add_moves(c, x, b);
    arena_reset(x->arena, mark);
}

// ---- lists of one way

// Estimates the ms of moves that will show, and not more. A node's pipelines share them, and the forward and the
// backward pass of all documents as one row hide a part. All ranks send a bucket's weights to those that compute with
// it: all wait for the stage whose turn it is, so stages do not share the time. Gradients leave each stage by itself.
static void estimate_moves(StrategySearch* search, const Lists* x) {
    const StrategyMoves* m = x->p->moves;
    if (!m || m->only_more) return;
    const MoveTime* t = m->times;
    double elems = (double)shape_param_count(m->whole);
    int nodes = 1, zero = x->how[0].zero;
    for (int r = 1; r < t->ranks; r++) nodes += t->node[r] != t->node[r - 1];
    for (int k = 0; k < x->pool.n; k++) {
        const PipelineGroup* g = &x->kind[k];
        int copies = x->pool.ranks / (g->tp * g->pp), apart = nodes > 1 ? 1 : g->tp;  // a node wants all of it once
        double weights = elems / apart / (zero > 2 ? copies : 1) * (double)m->weight_bytes,
               gradients = elems / (apart * g->pp) / (zero > 1 ? copies : 1) * (double)m->gradient_bytes;
        const PipelineScheme* s = &x->pool.scheme[k];
        double token = s->quadratic * x->p->costs->mean_length + s->linear;
        double row = t->overlap ? token * x->p->costs->tokens / copies : 0;
        weights = transfer_sum_ms(&t->links, TRANSFER_WEIGHTS, t->ranks, nodes, weights);
        gradients = transfer_sum_ms(&t->links, TRANSFER_WEIGHTS, t->ranks, nodes, gradients);
        search->start[k] = fmax(0, weights - row / 3), search->end[k] = fmax(0, gradients - 2 * row / 3);
    }
}

#define TINY 1e-9  // ms that stand for unknown ones

// The ms of equal rounds of documents of the mean length, by pipelines of kind k on all ranks. *tuned: its scheme,
// scaled to that, so hiding counts.
static double alone_ms(PipelineScheme* tuned, const Lists* x, int k) {
    enum { HALVES = 3 };
    const PipelineGroup* g = &x->kind[k];
    const LayoutCosts* c = x->p->costs;
    double terms[N_LAYOUT_TERMS], least = INFINITY, rounds = 1;
    Layout layout = strategy_layout(c->whole, g, x->how);
    LayoutCosts job = *c;
    int gpus = g->tp * g->pp, copies = MAX(c->ranks / gpus, 1);
    *tuned = x->pool.scheme[k];
    if (knows_pipelines_alone(&c->machine)) return TINY;
    job.ranks = copies * gpus, job.tokens *= (double)job.ranks / c->ranks, job.has_owners = 1;
    job.played_rounds = 5 * g->pp + 20;
    for (int i = 0, N = x->N * g->tp; i < (g->pp > 1 ? HALVES : 1) && N > 0; i++, N /= 2) {
        double ms = layout_step_ms(terms, &job, &layout, N);
        if (ms < least) least = ms, rounds = layout_rounds(&job, &layout, N);
    }
    double guess = (tuned->quadratic * c->mean_length + tuned->linear) * job.tokens / copies;
    double factor = least / (guess * (g->pp - 1 + rounds) / rounds);
    tuned->quadratic *= factor, tuned->linear *= factor;
    return least;
}

static void find_alone(Lists* x) {
    x->tuned = x->pool;
    for (int k = 0; k < x->pool.n; k++) x->alone[k] = alone_ms(&x->tuned.scheme[k], x, k);
}

#define BOUND 0.9  // a share of equal rounds' ms, as in plan/search/layout_steps.c

// About the least ms of a strategy's step: pipelines have equal rounds and end together.
static double bound_of(const Lists* x, const Strategy* s) {
    double start = 0, rate = 0;
    for (int k = 0; k < x->pool.n; k++) {
        double share = (double)s->copies[k] * x->pool.scheme[k].gpus / x->pool.ranks;
        start += share * s->start[k], rate += share / x->alone[k];
    }
    return BOUND * (1 / rate + start + s->end);
}

static double least_ms(const Lists* x) {
    double least = INFINITY;
    for (int k = 0; k < x->pool.n; k++) least = fmin(least, x->alone[k] + x->search.start[k] + x->search.end[k]);
    return BOUND * least;
}

// The mean ms of a list with one more, each step under the strategy that a run would choose.
static double with_ms(const Candidate* const* list, int n, const Candidate* more, int steps) {
    double sum = 0;
    for (int b = 0; b < steps; b++) {
        const Candidate* chosen = more;
        for (int i = 0; i < n; i++)
            if (list[i]->guess[b] < chosen->guess[b]) chosen = list[i];
        sum += chosen->ms[b] / steps;
    }
    return sum;
}

#define LEAST_GAIN 0.002

// Takes the fastest two if they are worth more than one, then always the one with which the list is fastest.
static void take_list(ListTry* best, const Lists* x, int n) {
    const Candidate* list[LISTED + 1];
    int steps = x->p->steps->n, listed = 0;
    double ms = INFINITY, least = INFINITY;
    for (int i = 0; i < n; i++) {
        const Candidate* one = &x->candidate[i];
        double alone = with_ms(NULL, 0, one, steps);
        if (alone < ms * (listed > 1 ? 1 - LEAST_GAIN : 1)) ms = alone, list[0] = one, listed = 1;
        for (int j = 0; j < i; j++) {
            const Candidate* other = &x->candidate[j];
            double both = with_ms(&other, 1, one, steps);
            if (both < ms * (1 - LEAST_GAIN)) ms = both, list[0] = other, list[1] = one, listed = 2;
        }
    }
    for (int more = 1; more && listed && listed < LISTED; listed += more) {
        least = ms * (1 - LEAST_GAIN), more = 0;
        for (int i = 0; i < n; i++) {
            double with = with_ms(list, listed, &x->candidate[i], steps);
            if (with < least) least = with, list[listed] = &x->candidate[i], more = 1;
        }
        if (more) ms = least;
    }
    if (ms >= best->ms) return;
    int N = knows_pipelines_alone(&x->p->costs->machine) && !x->p->capacity ? 0 : x->N;
    *best = (ListTry){.how = x->how[0], .N = N, .fits = 1, .ms = ms};
    for (int i = 0; i < listed; i++) {
        best->list.strategy[best->list.n++] = list[i]->ranks;
        best->bytes = fmax(best->bytes, list[i]->bytes);
    }
}

static int by_first_step(const void* a, const void* b) {
    const Candidate *x = (const Candidate*)a, *y = (const Candidate*)b;
    return x->ms[0] != y->ms[0] ? (x->ms[0] > y->ms[0]) - (x->ms[0] < y->ms[0])
                                : memcmp(x->s.copies, y->s.copies, sizeof x->s.copies);
}

// Plays the first step of all ranked strategies that may take less than `known`. Returns how many.
static int play_first(Lists* x, ListCount* count, int ranked, double known) {
    int n = 0, most = x->pool.ranks <= HYDRAULIS_FEW_RANKS ? RANKED : x->pool.ranks <= LIST_RANKS ? FIRST : SOME;
    for (int i = 0; i < ranked; i++) {
        Candidate* c = &x->candidate[n];
        *c = (Candidate){.s = x->ranked[i]};
        if (as_groups(&c->ranks, x, &c->s)) continue;
        double bound = bound_of(x, &c->s);
        if (n == most || bound >= known) {
            count->bound = fmin(count->bound, bound);
            continue;
        }
        c->bytes = fullest(x, &c->ranks, strategy_pipelines(&c->s, &x->pool));
        if (c->bytes > x->p->layouts->memory) continue;
        play(c, x, 0), count->played++, n++;
    }
    qsort(x->candidate, (size_t)n, sizeof *x->candidate, by_first_step);
    return n;
}

#define CLOSE 1.05  // strategies that close to the best in the first step play all steps

// Plays moves and all steps for the strategies that come close in the first step, and puts these first. Returns how
// many; -1 without memory.
static int play_close(Lists* x, int n, double known, Err err) {
    int close = 0, few = x->pool.ranks <= HYDRAULIS_FEW_RANKS, most = few ? RANKED : SOME;
    double limit = CLOSE * (few || n == 0 ? known : fmin(known, CLOSE * x->candidate[0].ms[0]));
    for (int i = 0; i < n && close < most; i++) {
        Candidate* c = &x->candidate[i];
        if (c->ms[0] > limit || c->ms[0] == INFINITY) break;
        if (time_moves(c, x, err)) return -1;
        play(c, x, 0);  // documents are dispatched anew: a pipeline whose weights come later gets fewer
        if (c->ms[0] > CLOSE * known) continue;
        for (int b = 1; b < x->p->steps->n; b++) play(c, x, b);
        x->candidate[close++] = *c;
    }
    return close;
}

static int open_steps(Lists* x, Err err) {
    const SampledSteps* s = x->p->steps;
    int failed = 0;
    for (int b = 0; b < s->n && !failed; b++)
        failed = step_work(&x->work[b], &x->pool, s->lengths + s->first[b], NULL, s->first[b + 1] - s->first[b],
                           x->arena, err);
    return failed;
}

static int search_way(ListTry* best, ListCount* count, Lists* x, double known, Err err) {
    Strategy list[HYDRAULIS_LIST];
    StrategyScore score;
    ArenaMark mark = arena_mark(x->arena);
    int failed = strategies_search(list, &score, &x->search, x->arena, err) < 0 || open_steps(x, err);
    known = fmin(known, best->ms);
    int n = failed ? -1 : play_close(x, play_first(x, count, score.ranked, known), known, err);
    if (n > 0) take_list(best, x, n);
    if (!failed) count->proposed += score.proposed;
    arena_reset(x->arena, mark);
    return n < 0 ? -1 : 0;
}

// ---- ways to run layers, in rows of so many tokens

typedef struct Way {
    int zero, N;
    Recompute recompute;
    double bound;
} Way;

enum { ROWS = 16, MOST_WAYS = 3 * (RECOMPUTE_BLOCK + 1) * ROWS };

static void open_way(Lists* x, const Way* way) {
    const SampledSteps* steps = x->p->steps;
    for (int l = 0; l < x->p->costs->whole->L; l++) x->how[l] = (LayerLayout){1, way->zero, way->recompute};
    x->N = way->N;
    list_kinds(x);
    x->search = (StrategySearch){.pool = &x->tuned,
                                 .lengths = steps->lengths,
                                 .n = steps->first[steps->n],
                                 .batch_tokens = (int64_t)x->p->costs->tokens,
                                 .most = LISTED,
                                 .bins = BINS,
                                 .unpacked = 1,
                                 .ranked = x->ranked,
                                 .most_ranked = RANKED};
    estimate_moves(&x->search, x);
}

// Adds ways with rows of N tokens a rank and shorter ones. Of ways with like kinds of pipelines the longest stays, or
// the one that computes least again. before (ROWS): hashes of these. Returns how many.
static int add_rows(Way* ways, Lists* x, int zero, Recompute recompute, uint64_t* before) {
    const ListProblem* p = x->p;
    int context = p->costs->context, least = MAX(LEAST_ROW, CEIL_DIV(context, MOST_TP)), n = 0, i = 0;
    uint64_t hash = 0;
    for (int N = p->capacity ? p->capacity : context; i < ROWS && (i == 0 || N >= least); N /= 2, i++) {
        Way way = {zero, N, recompute, 0};
        open_way(x, &way);
        uint64_t now = hash_of_kinds(x);
        int few = x->pool.ranks <= HYDRAULIS_FEW_RANKS;  // few ranks: nothing is left out
        int is_new = few || (now != hash && now != before[i]);
        int holds = x->pool.n && scheme_longest(&x->pool.scheme[0]) >= context;
        hash = before[i] = now;
        if (p->capacity) i = ROWS;
        if (!holds || !is_new) continue;
        find_alone(x);
        way.bound = least_ms(x);
        ways[n++] = way;
    }
    return n;
}

static int by_bound(const void* a, const void* b) {
    const Way *x = (const Way*)a, *y = (const Way*)b;
    if (x->bound != y->bound) return x->bound < y->bound ? -1 : 1;
    if (x->zero != y->zero) return x->zero - y->zero;
    return x->recompute != y->recompute ? (int)x->recompute - (int)y->recompute : y->N - x->N;
}

int lists_search(ListTry* best, ListCount* count, const ListProblem* p, double known, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    Lists* x = TAKE(arena, Lists, 1);
    Way* ways = TAKE(arena, Way, MOST_WAYS);
    int n = 0, failed = 0;
    *best = (ListTry){.ms = INFINITY}, *count = (ListCount){.bound = INFINITY};
    if (arena_check(arena, err)) return -1;
    x->p = p, x->arena = arena;
    for (int zero = p->layouts->zero[0]; zero <= p->layouts->zero[1]; zero++) {
        uint64_t before[ROWS] = {0};
        for (int r = p->recompute[0]; r <= p->recompute[1]; r++) n += add_rows(ways + n, x, zero, (Recompute)r, before);
    }
    qsort(ways, (size_t)n, sizeof *ways, by_bound);
    for (int i = 0; i < n && !failed; i++) {
        if (ways[i].bound >= fmin(known, best->ms)) {
            count->bound = fmin(count->bound, ways[i].bound);
            break;
        }
        open_way(x, &ways[i]);
        find_alone(x);
        failed = search_way(best, count, x, known, err);
    }
    arena_reset(arena, mark);
    return failed ? -1 : best->ms < INFINITY;
}

int strategy_steps(double* guess, double* ms, const ListProblem* p, const RankStrategy* strategy, LayerLayout how,
                   int N, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    Lists* x = TAKE(arena, Lists, 1);
    Way way = {how.zero, N, how.recompute, 0};
    Candidate* c = x ? &x->candidate[0] : NULL;
    if (arena_check(arena, err)) return -1;
    x->p = p, x->arena = arena;
    open_way(x, &way);
    *c = (Candidate){.ranks = *strategy};
    int known = 1, failed = 0;
    for (int i = 0; i < strategy->n && known; i++) {
        int k = kind_of(x, &strategy->group[i]);
        known = k < x->pool.n;
        if (known) c->s.copies[k] += strategy->group[i].copies;
    }
    known = known && fullest(x, strategy, strategy_pipelines(&c->s, &x->pool)) <= p->layouts->memory;
    if (known) failed = open_steps(x, err) || time_moves(c, x, err);
    for (int b = 0; b < p->steps->n; b++) {
        guess[b] = ms[b] = INFINITY;
        if (known && !failed) play(c, x, b), guess[b] = c->guess[b], ms[b] = c->ms[b];
    }
    arena_reset(arena, mark);
    return failed ? -1 : 0;
}
