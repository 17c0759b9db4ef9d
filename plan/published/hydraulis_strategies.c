// hydraulis_strategies.c - the strategies that Hydraulis proposes before the run (section 2.5 of what is rebuilt in
// hydraulis.h): one for each maximum length, by dynamic programming over the lengths of the data set.
//
// T[n][s] is the least time in which n GPUs process every document of at most s tokens of the sample, when the longest
// of them, an interval (s - l, s], belong to d pipelines of one scheme k and the others to other GPUs:
//
//   T[n][s] = min over k, l, d of max(T[n - d gpus_k][s - l], C_k(s - l, s) / d),  T[n][0] = 0 for every n
//
// C_k sums t(s) + fixed over the interval, and adds pp - 1 times the longest. GPUs may stay idle, so T falls with n.
// As d grows the first operand grows and the second falls, and the place where they cross moves up with n: it is
// followed, not searched, so that a cell costs O(lengths schemes) on average. GPUs that no interval wants get more
// pipelines of the scheme of the shortest documents.
#include <math.h>
#include <stdlib.h>

#include "plan/planner.h"
#include "plan/published/hydraulis.h"

// Sums over the documents of at most edge[i] tokens.
typedef struct Histogram {
    int bins;
    int edge[HYDRAULIS_BINS + 1], longest[HYDRAULIS_BINS + 1];
    double count[HYDRAULIS_BINS + 1], tokens[HYDRAULIS_BINS + 1], squares[HYDRAULIS_BINS + 1];
} Histogram;

// How T[n][s] came about: d pipelines of a scheme for the last `bins`.
typedef struct Pick {
    short scheme, bins, d;
} Pick;

typedef struct Table {
    const SchemePool* pool;
    const Histogram* h;
    const Proposal* proposal;
    int unit, units;  // GPUs that all schemes are multiples of, and how many such there are
    double* ms;       // (bins + 1, units + 1)
    Pick* picks;      // the same
} Table;

// ---- the sample

int strategies_step(int longest, int ranks) {
    int bins = ranks <= 128 ? HYDRAULIS_BINS : HYDRAULIS_BINS / 2;
    return MAX(ROUND_UP(CEIL_DIV(longest, bins), 128), 128);
}

static void count_lengths(Histogram* h, const int* sample, int n, int longest, int step) {
    *h = (Histogram){.bins = CEIL_DIV(longest, step)};
    for (int i = 1; i <= h->bins; i++) h->edge[i] = MIN(i * step, longest);
    for (int i = 0; i < n; i++) {
        if (sample[i] < 1 || sample[i] > longest) continue;
        int bin = CEIL_DIV(sample[i], step);
        double s = sample[i];
        h->count[bin]++, h->tokens[bin] += s, h->squares[bin] += s * s;
        h->longest[bin] = MAX(h->longest[bin], sample[i]);
    }
    for (int i = 1; i <= h->bins; i++) {
        h->count[i] += h->count[i - 1], h->tokens[i] += h->tokens[i - 1], h->squares[i] += h->squares[i - 1];
        h->longest[i] = MAX(h->longest[i], h->longest[i - 1]);
    }
}

// C_k of the documents of more than edge[low] and at most edge[high] tokens.
static double interval_ms(const Histogram* h, const PipelineScheme* k, int low, int high, FixedCharge charge) {
    double count = h->count[high] - h->count[low], tokens = h->tokens[high] - h->tokens[low];
    double ms = k->quadratic * (h->squares[high] - h->squares[low]) + k->linear * tokens;
    if (count <= 0) return 0;
    ms += k->fixed * (charge == FIXED_PER_DOCUMENT ? count : tokens / (double)k->max_tokens);
    return ms + (k->pp - 1) * (scheme_ms(k, h->longest[high]) + k->fixed);
}

// ---- the table

// Tries d pipelines of scheme k for the bins (low, s], for every number of GPUs.
static void try_interval(Table* t, int k, int low, int s) {
    const PipelineScheme* scheme = &t->pool->scheme[k];
    int gpus = scheme->gpus / t->unit, d = 1;
    size_t width = (size_t)t->units + 1;
    const double* below = t->ms + (size_t)low * width;
    double* ms = t->ms + (size_t)s * width;
    Pick* picks = t->picks + (size_t)s * width;
    double all = interval_ms(t->h, scheme, low, s, t->proposal->charge), part = all, larger_part = INFINITY;
    for (int n = gpus, most = 1, left = gpus; n <= t->units; n++) {
        for (; d < most && below[n - d * gpus] < part; larger_part = part, part = all / ++d) {}
        double rest = below[n - d * gpus], here = MAX(rest, part);
        if (here < ms[n]) ms[n] = here, picks[n] = (Pick){(short)k, (short)(s - low), (short)d};
        // One pipeline fewer: the part is above what the rest takes then.
        if (larger_part < ms[n]) ms[n] = larger_part, picks[n] = (Pick){(short)k, (short)(s - low), (short)(d - 1)};
        if (--left == 0) most++, left = gpus;
    }
}

static void fill_table(Table* t) {
    size_t width = (size_t)t->units + 1;
    for (int n = 0; n <= t->units; n++) t->ms[n] = 0;
    for (int s = 1; s <= t->h->bins; s++) {
        double* ms = t->ms + (size_t)s * width;
        Pick* picks = t->picks + (size_t)s * width;
        for (int n = 0; n <= t->units; n++) ms[n] = INFINITY, picks[n] = (Pick){0};
        for (int k = 0; k < t->pool->n; k++) {
            const PipelineScheme* scheme = &t->pool->scheme[k];
            if (scheme->gpus < t->proposal->narrowest || scheme_longest(scheme) < t->h->edge[s]) continue;
            for (int low = s - 1; low >= 0; low--) try_interval(t, k, low, s);
        }
    }
}

// ---- what it says

// More pipelines of scheme k, then of narrower ones.
static void use_idle(Strategy* strategy, const SchemePool* pool, int k) {
    int idle = pool->ranks;
    for (int i = 0; i < pool->n; i++) idle -= strategy->copies[i] * pool->scheme[i].gpus;
    for (int gpus = pool->scheme[k].gpus; gpus > 0; gpus--) {
        for (int i = 0; pool->scheme[k].gpus != gpus && i < pool->n; i++)
            if (pool->scheme[i].gpus == gpus) k = i;
        if (pool->scheme[k].gpus != gpus) continue;
        strategy->copies[k] += idle / gpus;
        idle %= gpus;
    }
}

static Strategy strategy_of(const Table* t, int s) {
    size_t width = (size_t)t->units + 1;
    Strategy strategy = {.longest = t->h->edge[s], .ms = t->ms[(size_t)s * width + width - 1]};
    int n = t->units, k = 0;
    while (s > 0) {
        Pick pick = t->picks[(size_t)s * width + (size_t)n];
        k = pick.scheme;
        strategy.copies[k] += pick.d;
        n -= pick.d * (t->pool->scheme[k].gpus / t->unit);
        s -= pick.bins;
    }
    use_idle(&strategy, t->pool, k);
    return strategy;
}

Strategy strategy_of_one(const SchemePool* pool, int k) {
    Strategy strategy = {.longest = scheme_longest(&pool->scheme[k])};
    use_idle(&strategy, pool, k);
    return strategy;
}

int strategy_is_new(const Strategy* list, int n, const Strategy* strategy) {
    for (int i = 0; i < n; i++)
        if (memcmp(list[i].copies, strategy->copies, sizeof strategy->copies) == 0) return 0;
    return 1;
}

// The largest number of GPUs that all schemes of at least `narrowest` are multiples of; 0 without such schemes.
static int common_unit(const SchemePool* pool, int narrowest) {
    int unit = 0;
    for (int k = 0; k < pool->n; k++)
        for (int b = pool->scheme[k].gpus >= narrowest ? pool->scheme[k].gpus : 0; b != 0;) {
            int rest = unit % b;
            unit = b, b = rest;
        }
    return unit;
}

static int propose(Strategy* list, Table* t) {
    int n = 0;
    fill_table(t);
    for (int s = 1; s <= t->h->bins; s++) {
        if (t->ms[(size_t)(s + 1) * ((size_t)t->units + 1) - 1] == INFINITY) continue;
        Strategy strategy = strategy_of(t, s);
        if (strategy_is_new(list, n, &strategy)) list[n++] = strategy;
    }
    return n;
}

int strategies_propose(Strategy list[HYDRAULIS_BINS], const SchemePool* pool, const Proposal* proposal,
                       const int* sample, int n_sample, char* err, size_t errlen) {
    int longest = proposal->longest, step = proposal->step, n = -1;
    if (longest < 1 || step < 1 || CEIL_DIV(longest, step) > HYDRAULIS_BINS || pool->ranks < 1 || pool->ranks > 32767)
        return fail(err, errlen, "no strategies for documents of up to %d tokens in steps of %d on %d ranks", longest,
                    step, pool->ranks);
    Table t = {.pool = pool, .proposal = proposal, .unit = common_unit(pool, proposal->narrowest)};
    if (t.unit == 0) return 0;
    t.units = pool->ranks / t.unit;
    Histogram* h = (Histogram*)malloc(sizeof *h);
    size_t cells = (size_t)(HYDRAULIS_BINS + 1) * ((size_t)t.units + 1);
    t.ms = (double*)malloc(sizeof(double) * cells);
    t.picks = (Pick*)malloc(sizeof(Pick) * cells);
    t.h = h;
    if (!h || !t.ms || !t.picks) fail(err, errlen, "out of memory for the strategies of %d ranks", pool->ranks);
    else {
        count_lengths(h, sample, n_sample, longest, step);
        n = propose(list, &t);
    }
    free(h), free(t.ms), free(t.picks);
    return n;
}

// ---- the short list

// Batches of several sizes, because the size of a step's is not known before the run.
enum { MOST_BATCHES = 36, FEW_SHUFFLES = 4 };

static int batch_size(int b, int ranks) { return MAX(512, 4 * ranks) >> b % 3; }

// Times of all candidates on batch b: ms (n). What leaves a pipeline empty comes after everything that does not, and
// what does not hold the batch after that.
static void score(double* ms, const Strategy* list, int n, StepWork* work, uint64_t seed) {
    for (int i = 0; i < n; i++) {
        Choice choice = hydraulis_choose(work, &list[i], 1, FEW_SHUFFLES, seed);
        ms[i] = choice.strategy < 0 ? 1e60 : choice.empty ? 1e20 * choice.ms : choice.ms;
    }
}

// ms (batches, n). Moves the chosen to the front, in the order in which they were chosen.
static int choose_cover(Strategy* list, double* ms, int n, int batches) {
    double least[MOST_BATCHES];
    int chosen = 1;
    for (int b = 0; b < batches; b++) least[b] = ms[b * n];
    for (; chosen < MIN(n, HYDRAULIS_LIST); chosen++) {
        int best = -1;
        double most = 0;
        for (int i = chosen; i < n; i++) {
            double gain = 0;
            for (int b = 0; b < batches; b++) gain += MAX(least[b] - ms[b * n + i], 0);
            if (gain > most) most = gain, best = i;
        }
        if (best < 0) break;
        Strategy strategy = list[best];
        list[best] = list[chosen], list[chosen] = strategy;
        for (int b = 0; b < batches; b++) {
            double of_best = ms[b * n + best];
            ms[b * n + best] = ms[b * n + chosen], ms[b * n + chosen] = of_best;
            least[b] = MIN(least[b], of_best);
        }
    }
    return chosen;
}

int strategies_shorten(Strategy* list, int n, const SchemePool* pool, const int* sample, int n_sample, char* err,
                       size_t errlen) {
    int batches = pool->ranks <= 128 ? MOST_BATCHES : MOST_BATCHES / 3, most = batch_size(0, pool->ranks), kept = -1;
    if (n_sample == 0) return MIN(n, 1);
    Arena arena = {0};
    double* ms = TAKE(&arena, double, batches * n);
    int* lengths = TAKE(&arena, int, most);
    ArenaMark mark = arena_mark(&arena);
    int failed = arena_check(&arena, err, errlen);
    for (int b = 0; b < batches && !failed; b++) {
        StepWork work;
        int docs = batch_size(b, pool->ranks);
        for (int i = 0; i < docs; i++) {
            int at = (int)(random_uniform(hash64((uint64_t)b), (uint64_t)i) * n_sample);
            lengths[i] = MAX(MIN(sample[at], list[0].longest), 1);
        }
        failed = step_work(&work, pool, lengths, docs, &arena, err, errlen);
        if (!failed) score(ms + b * n, list, n, &work, (uint64_t)b);
        arena_reset(&arena, mark);
    }
    if (!failed) kept = choose_cover(list, ms, n, batches);
    arena_free(&arena);
    return kept;
}
