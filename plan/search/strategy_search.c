// strategy_search.c - a list of few strategies for a run, chosen on steps of a sample; see strategy_search.h.
#include "plan/search/strategy_search.h"

#include <math.h>
#include <stdlib.h>

// ---- a list of few

enum { MOST_BATCHES = 24, TRIAL_SHUFFLES = 5, MOST_PROPOSALS = 1024, ROUNDS = 4, MANY_RANKS = 128 };
#define LEAST_GAIN 0.002
#define UNSERVED 1e9  // ms of a batch that no strategy holds, above all others

typedef struct Trials {
    const StrategySearch* search;
    Strategy proposed[MOST_PROPOSALS], of_lengths[HYDRAULIS_BINS];
    double ms[MOST_PROPOSALS][HYDRAULIS_BATCHES];
    StepWork work[MOST_BATCHES];
    int first[MOST_BATCHES + 1];  // where batches begin in the sample
    int n, tried, batches;
} Trials;

static void add(Trials* t, const Strategy* s) {
    const SchemePool* pool = t->search->pool;
    if (strategy_idle_ranks(s, pool) != 0 || t->n == MOST_PROPOSALS) return;
    int n = strategies_add(t->proposed, t->n, *s);
    if (n == t->n) return;
    Strategy* added = &t->proposed[t->n++];
    added->end = 0;
    for (int k = 0; k < pool->n; k++) {
        added->start[k] = t->search->start[k];
        if (s->copies[k]) added->end = MAX(added->end, t->search->end[k]);
    }
}

// Adds all strategies that differ from *s from scheme k on.
static void add_all(Trials* t, Strategy* s, int k) {
    const SchemePool* pool = t->search->pool;
    if (k == pool->n || strategy_idle_ranks(s, pool) == 0) {
        add(t, s);
        return;
    }
    int most = strategy_idle_ranks(s, pool) / pool->scheme[k].gpus;
    for (; s->copies[k] <= most; s->copies[k]++) add_all(t, s, k + 1);
    s->copies[k] = 0;
}

// Proposes all strategies of few ranks. Else it proposes each scheme alone, and the dynamic program's. That one counts
// a pipeline's waiting once, so it sees the documents of one step at a time.
static int propose(Trials* t, Arena* arena, Err err) {
    const StrategySearch* s = t->search;
    Strategy none = {0};
    if (s->pool->ranks <= HYDRAULIS_FEW_RANKS) {
        add_all(t, &none, 0);
        return 0;
    }
    for (int k = 0; k < s->pool->n; k++) {
        Strategy uniform = {.longest = scheme_longest(&s->pool->scheme[k])};
        uniform.copies[k] = s->pool->ranks / s->pool->scheme[k].gpus;
        add(t, &uniform);
    }
    for (int b = 0; b < t->batches; b++) {
        const int* lengths = s->lengths + t->first[b];
        int n = t->first[b + 1] - t->first[b], longest = 1;
        for (int i = 0; i < n; i++) longest = MAX(longest, lengths[i]);
        int bins = s->bins ? s->bins : HYDRAULIS_BINS;
        Proposal proposal = {longest, CEIL_DIV(longest, bins), 1, FIXED_PER_MICRO_BATCH};
        int found = strategies_propose(t->of_lengths, s->pool, &proposal, lengths, n, arena, err);
        if (found < 0) return -1;
        for (int i = 0; i < found; i++) add(t, &t->of_lengths[i]);
    }
    return 0;
}

// Adds strategies like `s` in which some pipelines of one scheme give their ranks to another scheme.
static void add_neighbours(Trials* t, const Strategy* s) {
    const SchemePool* pool = t->search->pool;
    for (int from = 0; from < pool->n; from++)
        for (int to = 0; to < pool->n; to++) {
            int a = pool->scheme[from].gpus, b = pool->scheme[to].gpus, copies = 1;
            while (copies * a % b) copies++;
            for (int times = 1; to != from && times * copies <= s->copies[from]; times *= 2) {
                Strategy other = *s;
                other.copies[from] -= times * copies;
                other.copies[to] += times * copies * a / b;
                add(t, &other);
            }
        }
}

static int open_batches(Trials* t, Arena* arena, Err err) {
    const StrategySearch* s = t->search;
    for (int first = 0, end; first < s->n && t->batches < MOST_BATCHES; first = end) {
        int64_t tokens = s->lengths[first];
        for (end = first + 1; end < s->n && tokens + s->lengths[end] <= s->batch_tokens; end++)
            tokens += s->lengths[end];
        if (end == s->n && t->batches > 0) break;  // a short one at the end
        if (step_work(&t->work[t->batches], s->pool, s->lengths + first, NULL, end - first, arena, err)) return -1;
        t->first[++t->batches] = end;
    }
    return 0;
}

static double try_under(Trials* t, const Strategy* s, int b) {
    uint64_t seed = (uint64_t)t->first[b];
    StepWork* w = &t->work[b];
    Choice choice = t->search->unpacked ? hydraulis_dispatch(w->candidate, w, s, 1, seed)
                                        : hydraulis_choose(w, s, 1, TRIAL_SHUFFLES, seed);
    return choice.strategy < 0 ? UNSERVED : t->search->unpacked ? choice.ms + s->end : choice.ms;
}

// Tries new strategies under every batch.
static void try_new(Trials* t) {
    for (; t->tried < t->n; t->tried++)
        for (int b = 0; b < t->batches; b++) t->ms[t->tried][b] = try_under(t, &t->proposed[t->tried], b);
}

static int take_best(Strategy* list, StrategyScore* score, Trials* t, int most) {
    double least[MOST_BATCHES], sum = 0, single = 0;
    int picks[HYDRAULIS_LIST];
    for (int b = 0; b < t->batches; b++) least[b] = UNSERVED;
    int n = strategies_cover(picks, most, t->ms, t->n, t->batches, least, LEAST_GAIN);
    for (int i = 0; i < n; i++) list[i] = t->proposed[picks[i]];
    for (int b = 0; b < t->batches; b++) sum += least[b], single += n > 0 ? t->ms[picks[0]][b] : 0;
    score->ms = sum / MAX(t->batches, 1);
    score->single_ms = n > 0 && single < UNSERVED ? single / t->batches : INFINITY;
    return sum < UNSERVED ? n : 0;
}

static int by_ms(const void* a, const void* b) {
    const Strategy *x = (const Strategy*)a, *y = (const Strategy*)b;
    return x->ms != y->ms ? (x->ms > y->ms) - (x->ms < y->ms) : memcmp(x->copies, y->copies, sizeof x->copies);
}

// Ranks what was tried by mean ms. Returns how many hold all batches, at most as many as are wanted.
static int rank_tried(Trials* t) {
    int n = 0;
    for (int i = 0; i < t->tried; i++) {
        Strategy* s = &t->proposed[i];
        s->ms = 0;
        for (int b = 0; b < t->batches; b++) s->ms += t->ms[i][b] / t->batches;
    }
    qsort(t->proposed, (size_t)t->tried, sizeof *t->proposed, by_ms);
    for (; n < MIN(t->tried, t->search->most_ranked) && t->proposed[n].ms < UNSERVED / MOST_BATCHES; n++)
        t->search->ranked[n] = t->proposed[n];
    return n;
}

int strategies_search(Strategy* list, StrategyScore* score, const StrategySearch* search, Arena* arena, Err err) {
    ArenaMark mark = arena_mark(arena);
    Trials* t = TAKE(arena, Trials, 1);
    if (arena_check(arena, err)) return -1;
    memset(t, 0, sizeof *t);
    t->search = search;
    if (open_batches(t, arena, err) || propose(t, arena, err)) return -1;
    int n = 0, rounds = search->unpacked && search->pool->ranks > MANY_RANKS ? 1 : ROUNDS;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < n; i++) add_neighbours(t, &list[i]);
        try_new(t);
        n = take_best(list, score, t, search->most);
    }
    score->batches = t->batches, score->proposed = t->n;
    score->ranked = search->ranked ? rank_tried(t) : 0;
    arena_reset(arena, mark);
    return n;
}
