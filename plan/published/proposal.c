// proposal.c - the strategies that the dynamic program proposes, and the published planner's list of few; see
// hydraulis.h.
#include "plan/published/hydraulis.h"

#include <math.h>
#include <stdlib.h>

// ---- a strategy for each maximum length, by dynamic programming over the lengths of the data set (section 2.5)
//
// T[n][s] is the least time in which n GPUs process every document of at most s tokens of the sample, when the longest
// of them, an interval (s - l, s], belong to d pipelines of one scheme k and the others to other GPUs:
//
//   T[n][s] = min over k, l, d of max(T[n - d gpus_k][s - l], C_k(s - l, s) / d),  T[n][0] = 0 for every n
//
// C_k sums t(s) + fixed over the interval, and adds pp - 1 times the longest. GPUs may stay idle, so T falls with n.
// As d grows the first operand grows and the second falls, and the d at which they cross moves up with n: it is
// followed, not searched, so that a cell costs O(lengths schemes) on average. GPUs that no interval wants get more
// pipelines of the scheme of the shortest documents.

// Sums over the documents of at most edge[i] tokens.
typedef struct Histogram {
    int bins;
    int edge[HYDRAULIS_BINS + 1], longest[HYDRAULIS_BINS + 1];
    double count[HYDRAULIS_BINS + 1], tokens[HYDRAULIS_BINS + 1], squares[HYDRAULIS_BINS + 1];
} Histogram;

// The choice behind T[n][s]: d pipelines of a scheme for the last `bins`.
typedef struct Pick {
    short scheme, bins, d;
} Pick;

typedef struct Table {
    const SchemePool* pool;
    const Histogram* h;
    const Proposal* proposal;
    int unit, units;  // all schemes are multiples of `unit` GPUs; `units` of these in all
    double* ms;       // (bins + 1, units + 1)
    Pick* picks;      // the same
} Table;

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

static size_t row_of(const Table* t, int s) { return (size_t)s * ((size_t)t->units + 1); }

// Tries d pipelines of scheme k for the bins (low, s], for every number of GPUs.
static void try_interval(Table* t, int k, int low, int s) {
    const PipelineScheme* scheme = &t->pool->scheme[k];
    int gpus = scheme->gpus / t->unit, d = 1;
    const double* below = t->ms + row_of(t, low);
    double* ms = t->ms + row_of(t, s);
    Pick* picks = t->picks + row_of(t, s);
    double all = interval_ms(t->h, scheme, low, s, t->proposal->charge), part = all, larger_part = INFINITY;
    for (int n = gpus, most = 1, left = gpus; n <= t->units; n++) {
        for (; d < most && below[n - d * gpus] < part; larger_part = part, part = all / ++d) {}
        double rest = below[n - d * gpus], here = MAX(rest, part);
        if (here < ms[n]) ms[n] = here, picks[n] = (Pick){(short)k, (short)(s - low), (short)d};
        // With one pipeline fewer the part takes longer than the rest.
        if (larger_part < ms[n]) ms[n] = larger_part, picks[n] = (Pick){(short)k, (short)(s - low), (short)(d - 1)};
        if (--left == 0) most++, left = gpus;
    }
}

static void fill_table(Table* t) {
    for (int n = 0; n <= t->units; n++) t->ms[n] = 0;
    for (int s = 1; s <= t->h->bins; s++) {
        double* ms = t->ms + row_of(t, s);
        Pick* picks = t->picks + row_of(t, s);
        for (int n = 0; n <= t->units; n++) ms[n] = INFINITY, picks[n] = (Pick){0};
        for (int k = 0; k < t->pool->n; k++) {
            const PipelineScheme* scheme = &t->pool->scheme[k];
            if (scheme->gpus < t->proposal->narrowest || scheme_longest(scheme) < t->h->edge[s]) continue;
            for (int low = s - 1; low >= 0; low--) try_interval(t, k, low, s);
        }
    }
}

int strategy_idle_ranks(const Strategy* strategy, const SchemePool* pool) {
    int idle = pool->ranks;
    for (int k = 0; k < pool->n; k++) idle -= strategy->copies[k] * pool->scheme[k].gpus;
    return idle;
}

// Gives idle ranks to more pipelines of scheme k, then of narrower ones.
static void use_idle(Strategy* strategy, const SchemePool* pool, int k) {
    int idle = strategy_idle_ranks(strategy, pool);
    for (int gpus = pool->scheme[k].gpus; gpus > 0; gpus--) {
        for (int i = 0; pool->scheme[k].gpus != gpus && i < pool->n; i++)
            if (pool->scheme[i].gpus == gpus) k = i;
        if (pool->scheme[k].gpus != gpus) continue;
        strategy->copies[k] += idle / gpus;
        idle %= gpus;
    }
}

static Strategy strategy_of(const Table* t, int s) {
    Strategy strategy = {.longest = t->h->edge[s], .ms = t->ms[row_of(t, s + 1) - 1]};
    int n = t->units, k = 0;
    while (s > 0) {
        Pick pick = t->picks[row_of(t, s) + (size_t)n];
        k = pick.scheme;
        strategy.copies[k] += pick.d;
        n -= pick.d * (t->pool->scheme[k].gpus / t->unit);
        s -= pick.bins;
    }
    use_idle(&strategy, t->pool, k);
    return strategy;
}

// Appends a strategy unless one of the n in list has its pipelines. Returns how many there are then.
int strategies_add(Strategy* list, int n, Strategy strategy) {
    for (int i = 0; i < n; i++)
        if (memcmp(list[i].copies, strategy.copies, sizeof strategy.copies) == 0) return n;
    list[n] = strategy;
    return n + 1;
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

int strategies_propose(Strategy list[HYDRAULIS_BINS], const SchemePool* pool, const Proposal* proposal,
                       const int* sample, int n_sample, Arena* arena, Err err) {
    int longest = proposal->longest, step = proposal->step;
    if (longest < 1 || step < 1 || CEIL_DIV(longest, step) > HYDRAULIS_BINS || pool->ranks < 1 || pool->ranks > 32767)
        return fail(err, "no strategies for documents of up to %d tokens in steps of %d on %d ranks", longest, step,
                    pool->ranks);
    Table t = {.pool = pool, .proposal = proposal, .unit = common_unit(pool, proposal->narrowest)};
    if (t.unit == 0) return 0;
    t.units = pool->ranks / t.unit;
    ArenaMark mark = arena_mark(arena);
    Histogram* h = TAKE(arena, Histogram, 1);
    int cells = (HYDRAULIS_BINS + 1) * (t.units + 1);
    t.h = h;
    t.ms = TAKE(arena, double, cells);
    t.picks = TAKE(arena, Pick, cells);
    if (arena_check(arena, err) < 0) return -1;
    count_lengths(h, sample, n_sample, longest, step);
    fill_table(&t);
    int n = 0;
    for (int s = 1; s <= h->bins; s++)
        if (t.ms[row_of(&t, s + 1) - 1] < INFINITY) n = strategies_add(list, n, strategy_of(&t, s));
    arena_reset(arena, mark);
    return n;
}

Strategy strategy_of_one(const SchemePool* pool, int k) {
    Strategy strategy = {.longest = scheme_longest(&pool->scheme[k])};
    use_idle(&strategy, pool, k);
    return strategy;
}

// ---- the short list of the published planner, whose pipelines are cp sizes

enum { FEW_SHUFFLES = 4 };

int strategies_cover(int* picks, int most, double (*ms)[HYDRAULIS_BATCHES], int n, int batches, double* least,
                     double worth) {
    for (int picked = 0; picked < most; picked++) {
        double sum = 0, best = 0;
        for (int b = 0; b < batches; b++) sum += least[b];
        best = sum * worth;
        picks[picked] = -1;
        for (int i = 0; i < n; i++) {
            double gain = 0;
            for (int b = 0; b < batches; b++) gain += MAX(least[b] - ms[i][b], 0);
            if (gain > best) best = gain, picks[picked] = i;
        }
        if (picks[picked] < 0) return picked;
        for (int b = 0; b < batches; b++) least[b] = MIN(least[b], ms[picks[picked]][b]);
    }
    return most;
}

// Batches of several sizes, because the size of a step's is not known before the run.
static int batch_size(int b, int ranks) { return MAX(512, 4 * ranks) >> b % 3; }

// Picks the candidates that a run needs: both stages score every candidate on batches drawn from the sample. The first
// must hold every document; others follow as long as one lowers the sum over the batches of the least time. Strategies
// that leave a pipeline empty rank after those that do not, and those that do not hold a batch last. Fills list
// (HYDRAULIS_LIST). Returns how many, -1 without memory.
static int shorten(Strategy* list, const Strategy* candidates, int n, const SchemePool* pool, const int* sample,
                   int n_sample, Arena* arena, Err err) {
    int batches = pool->ranks <= 128 ? HYDRAULIS_BATCHES : HYDRAULIS_BATCHES / 3, most = batch_size(0, pool->ranks);
    int picks[HYDRAULIS_LIST];
    double least[HYDRAULIS_BATCHES];
    list[0] = candidates[0];
    if (n_sample == 0) return 1;
    double(*ms)[HYDRAULIS_BATCHES] = (double(*)[HYDRAULIS_BATCHES])TAKE(arena, double, (HYDRAULIS_BATCHES * n));
    int* lengths = TAKE(arena, int, most);
    ArenaMark mark = arena_mark(arena);
    if (arena_check(arena, err) < 0) return -1;
    for (int b = 0; b < batches; b++, arena_reset(arena, mark)) {
        StepWork work;
        int docs = batch_size(b, pool->ranks);
        for (int i = 0; i < docs; i++) {
            int at = (int)(random_uniform(hash64((uint64_t)b), (uint64_t)i) * n_sample);
            lengths[i] = MAX(MIN(sample[at], candidates[0].longest), 1);
        }
        if (step_work(&work, pool, lengths, NULL, docs, arena, err) < 0) return -1;
        for (int i = 0; i < n; i++) {
            Choice choice = hydraulis_choose(&work, &candidates[i], 1, FEW_SHUFFLES, (uint64_t)b);
            ms[i][b] = choice.strategy < 0 ? 1e60 : choice.empty ? 1e20 * choice.ms : choice.ms;
        }
        least[b] = ms[0][b];
    }
    int chosen = strategies_cover(picks, HYDRAULIS_LIST - 1, ms, n, batches, least, 0);
    for (int i = 0; i < chosen; i++) list[1 + i] = candidates[picks[i]];
    return 1 + chosen;
}

// The tokens between two maximum lengths that keep the search short.
static int strategies_step(int longest, int ranks) {
    int bins = ranks <= 128 ? HYDRAULIS_BINS : HYDRAULIS_BINS / 2;
    return MAX(ROUND_UP(CEIL_DIV(longest, bins), 128), 128);
}

// One cp size for all, the least that holds the longest document, is the first: Hydraulis' optimizer strategy. The
// dynamic program does not see that a step has only so many documents for its pipelines, and likes the narrowest scheme
// too well. So it is asked again with the narrow ones left out; and fixed costs are charged in both ways, because
// micro-batches of short documents share theirs. Then both stages say on batches from the sample which are useful.
int strategies_short_list(Strategy list[HYDRAULIS_LIST], const SchemePool* pool, int context, const int* sample,
                          int n_sample, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    Strategy* all = TAKE(arena, Strategy, HYDRAULIS_CANDIDATES);
    if (arena_check(arena, err) < 0) return -1;
    int longest = scheme_longest(&pool->scheme[0]), n = 0, found;
    if (context > 0) longest = MIN(longest, context);
    for (int k = 0; k < pool->n; k++)
        if (scheme_longest(&pool->scheme[k]) >= longest) all[0] = strategy_of_one(pool, k), n = 1;
    for (int k = 0; k < pool->n; k++) n = strategies_add(all, n, strategy_of_one(pool, k));
    for (int i = 0; i < 2 * pool->n; i++) {
        Proposal proposal = {longest, strategies_step(longest, pool->ranks), pool->scheme[i / 2].gpus,
                             i % 2 ? FIXED_PER_MICRO_BATCH : FIXED_PER_DOCUMENT};
        Strategy* more = all + n;
        if ((found = strategies_propose(more, pool, &proposal, sample, n_sample, arena, err)) < 0) return -1;
        for (int j = 0; j < found; j++) n = strategies_add(all, n, more[j]);
    }
    n = shorten(list, all, n, pool, sample, n_sample, arena, err);
    arena_reset(arena, mark);
    return n;
}
