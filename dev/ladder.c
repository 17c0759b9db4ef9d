// ladder.c - Hydraulis' steps one after another, on the constants that it published: what each is worth, in its cost
// model. Nothing is executed. Of batches of documents with log-normal lengths, on 64 GPUs:
//
//   fixed      rows of --context tokens, longest first, dealt in turn to the widest pipelines, all alike
//   dispatch   documents to these pipelines by time, and packed into such rows
//   packing    packed by time under the cap on tokens instead
//   static     the best single strategy of unlike pipelines
//   dynamic    the best of a list for every batch: the published list; and the one that strategies_search finds
//
//   build/ladder [hydraulis-32b|hydraulis-7b]
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/cost/machine.h"
#include "plan/search/strategy_search.h"

enum { GPUS = 64, CONTEXT = 32768, TOKENS = 200000, BATCHES = 20, SAMPLE = 40000, MOST = 16384 };

static char err[ERR_BYTES];
static SchemePool pool;
static char names[HYDRAULIS_SCHEMES][SCHEME_NAME];
static int lengths[BATCHES][MOST], counts[BATCHES];

// Lists schemes that hold anything beside the optimizer's layout of one widest pipeline four times, the larger rows
// first.
static void open_pool(const char* machine_name) {
    Machine m;
    const char* text = machine_builtin(machine_name);
    if (!text) die("%s: expected hydraulis-32b or hydraulis-7b", machine_name);
    if (machine_parse(&m, text, strlen(text), err)) die("%s", err);
    pool = (SchemePool){.ranks = GPUS};
    for (int i = 0; i < m.n_schemes; i++) {
        const Scheme* s = &m.schemes[i];
        int tokens = machine_scheme_tokens(&m, s, GPUS / 16, 16, 1), at = 0;
        if (tokens < 1) continue;
        while (at < pool.n && pool.scheme[at].max_tokens >= tokens) at++;
        for (int k = pool.n; k > at; k--) pool.scheme[k] = pool.scheme[k - 1], strcpy(names[k], names[k - 1]);
        pool.scheme[at] = (PipelineScheme){s->tp * s->pp, s->pp, s->quadratic, s->linear, s->fixed, tokens, 1, MOST};
        strcpy(names[at], s->name);
        pool.n++;
    }
}

static int draw_length(double median, double sigma, uint64_t seed, uint64_t i) {
    double s = median * exp(sigma * random_normal(seed, i));
    return (int)fmin(fmax(s, 16), CONTEXT);
}

// Draws exactly TOKENS a batch: the last document is cut.
static void draw_batches(double median, double sigma) {
    for (int b = 0; b < BATCHES; b++) {
        counts[b] = 0;
        for (int left = TOKENS; left > 0; left -= lengths[b][counts[b]++])
            lengths[b][counts[b]] = MIN(left, draw_length(median, sigma, 100 + (uint64_t)b, (uint64_t)counts[b]));
    }
}

// ---- rungs: ms of a batch under one strategy

// Packs rows of at most `cap` tokens, longest document first into the fullest row that has room. Returns how many.
static int pack_rows(int* row_of, const int* docs, int n, const int* length, int cap) {
    static int used[MOST];
    int rows = 0;
    for (int i = 0; i < n; i++) {
        int best = -1;
        for (int r = 0; r < rows; r++)
            if (used[r] + length[docs[i]] <= cap && (best < 0 || used[r] > used[best])) best = r;
        if (best < 0) used[best = rows++] = 0;
        used[best] += length[docs[i]];
        row_of[i] = best;
    }
    return rows;
}

static double rows_ms(const PipelineScheme* s, const double* row_ms, int rows) {
    double sum = 0, most = 0;
    for (int r = 0; r < rows; r++) sum += row_ms[r], most = fmax(most, row_ms[r]);
    return s->pp == 1 ? sum + s->fixed * rows : (most + s->fixed) * (s->pp - 1 + rows);
}

static double fixed_ms(const StepWork* w, int k, int copies) {
    static int row_of[MOST];
    static double ms[MOST], of_pipeline[MOST];
    int cap = (int)MIN(pool.scheme[k].max_tokens, (int64_t)CONTEXT),
        rows = pack_rows(row_of, w->sorted, w->n, w->lengths, cap);
    double most = 0;
    memset(ms, 0, sizeof ms);
    for (int i = 0; i < w->n; i++) ms[row_of[i]] += scheme_ms(&pool.scheme[k], w->lengths[w->sorted[i]]);
    for (int p = 0; p < copies; p++) {
        int n = 0;
        for (int r = p; r < rows; r += copies) of_pipeline[n++] = ms[r];
        most = fmax(most, rows_ms(&pool.scheme[k], of_pipeline, n));
    }
    return most;
}

// Assigns documents by stage 1, and packs rows as before.
static double dispatched_ms(StepWork* w, const Strategy* strategy, int k) {
    static int docs[MOST], row_of[MOST];
    static double ms[MOST];
    double most = 0;
    hydraulis_dispatch(w->pipeline_of, w, strategy, HYDRAULIS_SHUFFLES, 1);
    for (int p = 0; p < strategy->copies[k]; p++) {
        int n = 0;
        for (int i = 0; i < w->n; i++)
            if (w->pipeline_of[w->sorted[i]] == p) docs[n++] = w->sorted[i];
        int rows = pack_rows(row_of, docs, n, w->lengths, (int)MIN(pool.scheme[k].max_tokens, (int64_t)CONTEXT));
        memset(ms, 0, sizeof ms);
        for (int i = 0; i < n; i++) ms[row_of[i]] += scheme_ms(&pool.scheme[k], w->lengths[docs[i]]);
        most = fmax(most, rows_ms(&pool.scheme[k], ms, rows));
    }
    return most;
}

// ---- lists

// Makes the list of the published case study: copies of schemes by name.
static int published_list(Strategy* list) {
    static const struct {
        int n;
        struct {
            int copies;
            const char* name;
        } part[2];
    } published[] = {{1, {{4, "TP16"}}},
                     {2, {{1, "TP16"}, {2, "TP8PP3"}}},
                     {2, {{1, "TP16"}, {6, "TP8"}}},
                     {2, {{1, "TP16"}, {12, "TP4"}}},
                     {2, {{1, "TP8PP3"}, {10, "TP4"}}},
                     {2, {{1, "TP8"}, {14, "TP4"}}},
                     {1, {{8, "TP4PP2"}}}};
    int n = 0;
    for (int i = 0; i < COUNT(published); i++) {
        Strategy s = {0};
        int known = 0;
        for (int j = 0; j < published[i].n; j++)
            for (int k = 0; k < pool.n; k++)
                if (!strcmp(names[k], published[i].part[j].name)) s.copies[k] = published[i].part[j].copies, known++;
        if (known == published[i].n) list[n++] = s;
    }
    return n;
}

static void print_list(const char* title, const Strategy* list, int n) {
    printf("%s:", title);
    for (int i = 0; i < n; i++)
        for (int k = 0, first = 1; k < pool.n; k++)
            if (list[i].copies[k])
                printf("%s%d x %s", first ? i ? "; " : " " : " + ", list[i].copies[k], names[k]), first = 0;
    printf("\n");
}

// ---- a row of the table

static double single_ms(StepWork* w, const Strategy* s) {
    Choice choice = hydraulis_choose(w, s, 1, HYDRAULIS_SHUFFLES, 1);
    return choice.strategy < 0 ? INFINITY : choice.ms;
}

static void climb(double median, double sigma) {
    enum { FIXED, DISPATCH, PACKING, STATIC, DYNAMIC, OURS, RUNGS };
    static int sample[SAMPLE];
    Arena arena = {0};
    Strategy published[8], ours[16], uniform = {0};
    StrategyScore score;
    double sum[RUNGS] = {0}, alone[16 + 8] = {0};
    int widest = 0, n_published = published_list(published);
    for (int k = 0; k < pool.n; k++)
        if (!strcmp(names[k], "TP16")) widest = k;
    uniform.copies[widest] = GPUS / pool.scheme[widest].gpus;
    draw_batches(median, sigma);
    for (int i = 0; i < SAMPLE; i++) sample[i] = draw_length(median, sigma, 7, (uint64_t)i);
    StrategySearch search = {.pool = &pool, .lengths = sample, .n = SAMPLE, .batch_tokens = TOKENS, .most = 16};
    int n_ours = strategies_search(ours, &score, &search, &arena, err);
    if (n_ours < 1) die("no strategies: %s", n_ours < 0 ? err : "nothing holds the documents");
    for (int b = 0; b < BATCHES; b++) {
        StepWork w;
        double best[2] = {INFINITY, INFINITY};
        ArenaMark mark = arena_mark(&arena);
        if (step_work(&w, &pool, lengths[b], NULL, counts[b], &arena, err)) die("%s", err);
        sum[FIXED] += fixed_ms(&w, widest, uniform.copies[widest]);
        sum[DISPATCH] += dispatched_ms(&w, &uniform, widest);
        sum[PACKING] += single_ms(&w, &uniform);
        for (int i = 0; i < n_published + n_ours; i++) {
            int mine = i >= n_published;
            double ms = single_ms(&w, mine ? &ours[i - n_published] : &published[i]);
            alone[i] += ms;
            best[mine] = fmin(best[mine], ms);
        }
        sum[DYNAMIC] += best[0], sum[OURS] += best[1];
        arena_reset(&arena, mark);
    }
    sum[STATIC] = INFINITY;
    for (int i = 0; i < n_published + n_ours; i++) sum[STATIC] = fmin(sum[STATIC], alone[i]);
    printf("| median %.0f, sigma %.1f |", median, sigma);
    for (int i = 0; i < RUNGS; i++) printf(" %.2f |", sum[FIXED] / sum[i]);
    printf("\n");
    print_list("    ours", ours, n_ours);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    Strategy published[8];
    open_pool(argc > 1 ? argv[1] : "hydraulis-32b");
    printf("%d GPUs, %d tokens a step, %d steps, cost model of the published constants\n", GPUS, TOKENS, BATCHES);
    print_list("published", published, published_list(published));
    printf("| lengths | fixed | dispatch | packing | static | dynamic, published list | dynamic, searched list |\n");
    climb(600, 1.1);
    climb(600, 1.4);
    climb(900, 1.6);
    return 0;
}
