// test_hydraulis.c - Hydraulis rebuilt: published constants give published strategies, dispatch and packing reach
// optima that were derived from them or a stated distance from brute force, and a step chooses the strategy that ends
// first.
//
// Published are the constants of the schemes and the strategies of the case study. Times of documents are derived here
// from those constants, t(s) = quadratic s^2 + linear s; Hydraulis' authors print none.
#include "plan/cost/machine.h"
#include "plan/search/strategy_search.h"
#include "test/clusters.h"

enum { MOST = 4096, MOST_PACES = 16 };

static Arena proposals;

// Mostly short for odd seeds, uniform for even ones.
static void random_lengths(int* lengths, int n, int longest, uint64_t seed) {
    for (int i = 0; i < n; i++) {
        double u = random_uniform(seed, 1000 + (uint64_t)i);
        lengths[i] = 1 + (int)((seed % 2 ? u * u * u : u) * (longest - 1));
    }
}

// ---- schemes of tensor x pipeline parallelism

static Machine published(void) {
    Machine machine;
    char err[ERR_BYTES];
    const char* text = machine_builtin("hydraulis-32b");
    if (!text || machine_parse(&machine, text, strlen(text), err) < 0) abort();
    return machine;
}

static const Scheme* scheme_named(const Machine* machine, const char* name) {
    for (int i = 0; i < machine->n_schemes; i++)
        if (strcmp(machine->schemes[i].name, name) == 0) return &machine->schemes[i];
    abort();
}

// Names in descending order of the tokens that a micro-batch holds, beside optimizer states of 4 x TP16.
static SchemePool pool_of(const char* const* names, int n, int ranks) {
    Machine machine = published();
    SchemePool pool = {.ranks = ranks, .n = n};
    for (int k = 0; k < n; k++) {
        const Scheme* s = scheme_named(&machine, names[k]);
        pool.scheme[k] = (PipelineScheme){.gpus = s->tp * s->pp,
                                          .pp = s->pp,
                                          .quadratic = s->quadratic,
                                          .linear = s->linear,
                                          .fixed = s->fixed,
                                          .max_tokens = machine_scheme_tokens(&machine, s, 4, 16, 1),
                                          .ring = 1,
                                          .max_docs = MOST};
        if (k > 0 && pool.scheme[k].max_tokens > pool.scheme[k - 1].max_tokens) abort();
    }
    return pool;
}

static StepWork work_for(const SchemePool* pool, const int* lengths, int n) {
    static Arena arena;  // of one at a time
    StepWork work;
    char err[ERR_BYTES];
    soil(&arena, 0xa5, 1 << 18);
    if (step_work(&work, pool, lengths, NULL, n, &arena, err)) abort();
    return work;
}

// What a pipeline of stage 1 takes, from the definition.
static double pipeline_ms(const PipelineScheme* k, const int* lengths, const int* of, int n, int p) {
    double sum = 0, longest = 0;
    for (int i = 0; i < n; i++) {
        double s = lengths[i], t = k->quadratic * s * s + k->linear * s;
        if (of[i] != p) continue;
        if (lengths[i] > k->max_tokens) return INFINITY;
        sum += t;
        longest = MAX(longest, t);
    }
    return sum + (k->pp - 1) * longest;
}

static int scheme_of_pipeline(const SchemePool* pool, const Strategy* strategy, int p) {
    for (int k = 0;; k++) {
        if (k == pool->n) abort();
        if (p < strategy->copies[k]) return k;
        p -= strategy->copies[k];
    }
}

static double makespan_of(const SchemePool* pool, const Strategy* strategy, const int* lengths, const int* of, int n) {
    double slowest = 0;
    for (int p = 0; p < strategy_pipelines(strategy, pool); p++)
        slowest = MAX(slowest, pipeline_ms(&pool->scheme[scheme_of_pipeline(pool, strategy, p)], lengths, of, n, p) /
                                   (strategy->pace ? strategy->pace[p] : 1));
    return slowest;
}

// The least makespan over all ways to give n documents to the pipelines.
static double dispatch_by_force(const SchemePool* pool, const Strategy* strategy, const int* lengths, int n) {
    int of[16] = {0}, pipelines = strategy_pipelines(strategy, pool), i = 0;
    double least = INFINITY;
    while (i < n) {
        least = MIN(least, makespan_of(pool, strategy, lengths, of, n));
        for (i = 0; i < n && ++of[i] == pipelines; i++) of[i] = 0;
    }
    return least;
}

// ---- stage 1

// Random schemes, sorted as a pool wants them; short documents fit all, long ones only the first.
static SchemePool random_pool(uint64_t seed, int ranks) {
    SchemePool pool = {.ranks = ranks, .n = pick(seed, 0, 1, 3)};
    for (int k = 0; k < pool.n; k++) {
        int gpus = 1 << (pool.n - 1 - k), pp = pick(seed, 10 + (uint64_t)k, 1, 3);
        pool.scheme[k] = (PipelineScheme){.gpus = gpus,
                                          .pp = pp,
                                          .quadratic = 1e-6 * pick(seed, 20 + (uint64_t)k, 0, 4),
                                          .linear = 0.3 / gpus + 0.01 * pick(seed, 30 + (uint64_t)k, 0, 9),
                                          .fixed = 10.0 * pick(seed, 40 + (uint64_t)k, 0, 9),
                                          .max_tokens = 3000 * gpus,
                                          .ring = 1,
                                          .max_docs = MOST};
    }
    return pool;
}

// Every third case has pipelines of unlike pace.
static void random_paces(double pace[MOST_PACES], Strategy* strategy, uint64_t seed) {
    for (int p = 0; p < MOST_PACES; p++) pace[p] = 1.0 / pick(seed, 90 + (uint64_t)p, 1, 4);
    strategy->pace = seed % 3 ? NULL : pace;
}

CLAIM(dispatch_is_close_to_brute_force) {
    double worst = 0, sum = 0, pace[MOST_PACES];
    int exact = 0, cases = 450;
    FOR_SEEDS(seed, 1, (uint64_t)cases + 1) {
        SchemePool pool = random_pool(seed, 16);
        Strategy strategy = {0};
        int lengths[8], of[8], n = pick(seed, 1, 4, 7);
        for (int k = 0; k < pool.n; k++) strategy.copies[k] = pick(seed, 50 + (uint64_t)k, k == 0, k == 0 ? 2 : 1);
        random_paces(pace, &strategy, seed);
        random_lengths(lengths, n, scheme_longest(&pool.scheme[0]), seed);
        StepWork work = work_for(&pool, lengths, n);
        Choice choice = hydraulis_dispatch(of, &work, &strategy, HYDRAULIS_SHUFFLES, seed);
        // Against brute force over the same rule: no pipeline empty where that is possible.
        double least = dispatch_by_force(&pool, &strategy, lengths, n), gap = choice.ms / least - 1;
        CHECK(choice.strategy == 0);
        CHECK_CLOSE(makespan_of(&pool, &strategy, lengths, of, n), choice.ms, 1e-9 * choice.ms);
        CHECK(gap > -1e-12);
        if (choice.empty == 0) worst = MAX(worst, gap), sum += gap, exact += gap < 1e-9;
    }
    printf("    %d cases: %d optimal, %.2f %% above the optimum in the mean, %.1f %% at worst\n", cases, exact,
           100 * sum / cases, 100 * worst);
    CHECK(100 * worst <= 12 && 100 * sum / cases <= 0.1);
}

CLAIM(a_document_that_nothing_holds_is_refused) {
    SchemePool pool = {16, 2, {{8, 1, 2e-6, 0.1, 1, 4000, 1, 2}, {1, 1, 1.6e-5, 0.4, 1, 500, 1, 2}}, 0};
    Strategy strategy = {.copies = {1, 1}};
    int lengths[5] = {4000, 500, 500, 500, 501}, of[5];
    for (int n = 1; n <= 5; n++) {
        StepWork work = work_for(&pool, lengths, n);
        CHECK((hydraulis_dispatch(of, &work, &strategy, 50, 1).strategy == 0) == (n <= 4));  // two each
    }
    lengths[0] = 4001;
    StepWork work = work_for(&pool, lengths, 1);
    CHECK(hydraulis_dispatch(of, &work, &strategy, 50, 1).strategy < 0);
    CHECK(hydraulis_choose(&work, &strategy, 1, 50, 1).strategy < 0);
}

// ---- stage 2

typedef struct Packed {
    const PipelineScheme* scheme;
    const int* lengths;
    int n, v;
    double ms[12];
    int64_t tokens[12];
} Packed;

// Documents i .. n - 1 to any micro-batch in use or to the next one: the least Z, infinite where nothing fits.
static double pack_rest(Packed* x, int i, int used) {
    double z = 0, least = INFINITY;
    for (int r = 0; r < used; r++) z = MAX(z, x->ms[r]);
    if (i == x->n) return z;
    for (int r = 0; r <= used && r < x->v; r++) {
        int s = x->lengths[i];
        double ms = x->ms[r];
        if (x->tokens[r] + s > x->scheme->max_tokens) continue;
        x->ms[r] += (x->scheme->quadratic * s + x->scheme->linear) * s, x->tokens[r] += s;
        least = MIN(least, pack_rest(x, i + 1, MAX(used, r + 1)));
        x->ms[r] = ms, x->tokens[r] -= s;
    }
    return least;
}

static double pack_by_force(const PipelineScheme* scheme, const int* lengths, int n, int v) {
    return pack_rest(&(Packed){.scheme = scheme, .lengths = lengths, .n = n, .v = v}, 0, 0);
}

CLAIM(micro_batches_are_close_to_brute_force_and_never_above_the_cap) {
    double worst = 0, sum = 0, worst_z = 0, sum_z = 0;
    int cases = 0, optimal = 0, cases_z = 0;
    FOR_SEEDS(seed, 1, 301) {
        SchemePool pool = random_pool(seed, 16);
        PipelineScheme* k = &pool.scheme[0];
        int lengths[8], mb_of[8], n = pick(seed, 1, 2, 8), tokens = 0;
        pool.n = 1;
        random_lengths(lengths, n, (int)k->max_tokens, seed);
        for (int i = 0; i < n; i++) tokens += lengths[i];
        StepWork work = work_for(&pool, lengths, n);
        double least = INFINITY;  // over all v that are tried
        for (int v = 1; v <= n; v++) {
            double z = pack_by_force(k, lengths, n, v);
            Packing packing = hydraulis_pack_into(mb_of, &work, 0, work.sorted, n, v);
            CHECK(packing.n == 0 || packing.max >= z * (1 - 1e-12));
            if (packing.n > 0 && k->pp > 1)
                worst_z = MAX(worst_z, packing.max / z - 1), sum_z += packing.max / z - 1, cases_z++;
            if (z == INFINITY) CHECK(packing.n == 0);
            else if (k->pp > 1) least = MIN(least, (z + k->fixed) * (k->pp - 1 + v));
            else
                least =
                    MIN(least, makespan_of(&pool, &(Strategy){.copies = {1}}, lengths, (int[8]){0}, n) + k->fixed * v);
        }
        Packing best = hydraulis_pack(mb_of, &work, 0, work.sorted, n);
        int64_t mb_tokens[8] = {0};
        for (int i = 0; i < n; i++) {
            CHECK(mb_of[i] >= 0 && mb_of[i] < best.n);
            mb_tokens[mb_of[i]] += lengths[work.sorted[i]];
        }
        for (int r = 0; r < best.n; r++) CHECK(mb_tokens[r] > 0 && mb_tokens[r] <= k->max_tokens);
        CHECK(best.n >= CEIL_DIV(tokens, k->max_tokens));
        double gap = best.ms / least - 1;
        CHECK(gap > -1e-12);
        worst = MAX(worst, gap), sum += gap, cases++, optimal += gap < 1e-9;
    }
    printf(
        "    %d cases: %d optimal, %.3f %% above the optimum in the mean, %.1f %% at worst; Z at every v: %.3f %%, "
        "%.1f %%\n",
        cases, optimal, 100 * sum / cases, 100 * worst, 100 * sum_z / cases_z, 100 * worst_z);
    CHECK(100 * worst <= 2 && 100 * sum / cases <= 0.02);
    CHECK(100 * worst_z <= 2 && 100 * sum_z / cases_z <= 0.02);
}

// ---- strategies

typedef struct Search {
    const SchemePool* pool;
    const int* sample;
    int n, step, longest;
    FixedCharge charge;
    int narrowest;
    int copies[HYDRAULIS_SCHEMES];  // left
} Search;

static int edge(const Search* x, int s) { return MIN(s * x->step, x->longest); }

// What documents of more than edge(low) and at most edge(high) tokens take one pipeline, from the definition.
static double interval_of(const Search* x, const PipelineScheme* k, int low, int high) {
    double sum = 0;
    int longest = 0;
    for (int i = 0; i < x->n; i++) {
        int s = x->sample[i];
        if (s <= edge(x, low) || s > edge(x, high)) continue;
        sum += scheme_ms(k, s) + k->fixed * (x->charge == FIXED_PER_DOCUMENT ? 1 : (double)s / (double)k->max_tokens);
        longest = MAX(longest, s);
    }
    return longest > 0 ? sum + (k->pp - 1) * (scheme_ms(k, longest) + k->fixed) : 0;
}

// The least time for documents of up to edge(s) tokens on n GPUs, with no more pipelines of a scheme than are left.
static double search(Search* x, int s, int n) {
    double least = INFINITY;
    if (s == 0) return 0;
    for (int k = 0; k < x->pool->n; k++) {
        const PipelineScheme* scheme = &x->pool->scheme[k];
        if (scheme->gpus < x->narrowest || scheme->max_tokens < edge(x, s)) continue;
        for (int low = 0; low < s; low++) {
            double all = interval_of(x, scheme, low, s);
            for (int d = 1; d <= x->copies[k] && d * scheme->gpus <= n; d++) {
                x->copies[k] -= d;
                least = MIN(least, MAX(search(x, low, n - d * scheme->gpus), all / d));
                x->copies[k] += d;
            }
        }
    }
    return least;
}

CLAIM(proposals_are_those_of_brute_force) {
    static Strategy list[HYDRAULIS_BINS];
    char err[ERR_BYTES] = "";
    int checked = 0;
    FOR_SEEDS(seed, 1, 151) {
        int ranks = pick(seed, 2, 1, 8), sample[40], n = pick(seed, 3, 0, 40);
        SchemePool pool = random_pool(seed, ranks);
        if (ranks < pool.scheme[0].gpus) continue;
        Search x = {&pool, sample, n, 0, scheme_longest(&pool.scheme[0]), (FixedCharge)(seed % 2), 1, {0}};
        x.step = CEIL_DIV(x.longest, 4) + pick(seed, 4, 0, 99);
        random_lengths(sample, n, x.longest, seed);
        Proposal proposal = {x.longest, x.step, seed % 5 == 0 ? 2 : 1, x.charge};
        x.narrowest = proposal.narrowest;
        int found = strategies_propose(list, &pool, &proposal, sample, n, &proposals, err);
        CHECK(found >= (pool.scheme[0].gpus >= x.narrowest));
        for (int i = 0; i < found; i++) {
            int used = 0, narrowest = ranks, s = CEIL_DIV(list[i].longest, x.step), holds = 0;
            for (int k = 0; k < pool.n; k++) {
                used += list[i].copies[k] * pool.scheme[k].gpus;
                narrowest = MIN(narrowest, pool.scheme[k].gpus);
                holds |= list[i].copies[k] > 0 && pool.scheme[k].max_tokens >= list[i].longest;
            }
            CHECK(holds && used <= ranks && used > ranks - narrowest);
            for (int k = 0; k < pool.n; k++) x.copies[k] = ranks;
            // Sums of at most 40 terms in another order.
            CHECK_CLOSE(search(&x, s, ranks), list[i].ms, 1e-12 * list[i].ms);
            // The pipelines that are named reach it.
            memcpy(x.copies, list[i].copies, sizeof x.copies);
            CHECK(search(&x, s, ranks) <= list[i].ms * (1 + 1e-12));
            checked++;
        }
    }
    printf("    %d strategies\n", checked);
    CHECK(checked > 150);
}

static void print_strategy(char* text, size_t bytes, const char* const* names, int n, const Strategy* strategy) {
    text[0] = 0;
    for (int k = 0; k < n; k++)
        if (strategy->copies[k] > 0) {
            size_t at = strlen(text);
            snprintf(text + at, bytes - at, "%s%dx%s", at ? "+" : "", strategy->copies[k], names[k]);
        }
}

// 64 GPUs, 32B, documents up to 32K: the case study of the artefact.
CLAIM(published_constants_propose_published_strategies) {
    static const char* const names[] = {"TP16",   "TP8PP4", "TP8PP3", "TP8PP2", "TP8",
                                        "TP4PP6", "TP4PP4", "TP4PP2", "TP4"};
    static const char* const figure[] = {"4xTP16",          "1xTP16+2xTP8PP3", "1xTP16+6xTP8", "1xTP16+12xTP4",
                                         "1xTP8PP3+10xTP4", "1xTP8+14xTP4",    "8xTP4PP2"};
    enum { SAMPLE = 20000, LONGEST = 32768 + 256 };
    static Strategy list[HYDRAULIS_BINS];
    static int sample[SAMPLE];
    SchemePool pool = pool_of(names, COUNT(names), 64);
    Proposal proposal = {LONGEST, 1024, 1, FIXED_PER_DOCUMENT};
    int seen[COUNT(figure)] = {0}, published_ones = 0;
    char err[ERR_BYTES];
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < SAMPLE; j++) {
            double s = 600 * exp((1.1 + 0.1 * i) * random_normal(77 + (uint64_t)i, (uint64_t)j));
            sample[j] = s > LONGEST ? LONGEST + 1 : MAX((int)s, 1);  // longer ones are passed over
        }
        int found = strategies_propose(list, &pool, &proposal, sample, SAMPLE, &proposals, err);
        for (int c = 0; c < found; c++) {
            char text[256];
            print_strategy(text, sizeof text, names, COUNT(names), &list[c]);
            for (int f = 0; f < COUNT(figure); f++) seen[f] |= strcmp(text, figure[f]) == 0;
        }
    }
    printf("    published ones:");
    for (int f = 0; f < COUNT(figure); f++)
        if (seen[f]) published_ones++, printf(" %s", figure[f]);
    printf("\n");
    CHECK(published_ones >= 4);
}

// The published list beside the one that the search finds from documents of the same kind, on other steps of them.
CLAIM(a_searched_list_is_no_slower_than_its_best_or_the_published_one) {
    static const char* const names[] = {"TP16", "TP8PP4", "TP8PP3", "TP8PP2", "TP8", "TP4PP4", "TP4PP2", "TP4"};
    enum { SAMPLE = 6000, STEPS = 6 };
    static int sample[SAMPLE + 4000];
    char err[ERR_BYTES];
    SchemePool pool = pool_of(names, COUNT(names), 64);
    Strategy list[16], published[4] = {{.copies = {4}},
                                       {.copies = {1, 0, 0, 0, 6}},
                                       {.copies = {1, 0, 0, 0, 0, 0, 0, 12}},
                                       {.copies = {0, 0, 0, 0, 1, 0, 0, 14}}};
    StrategyScore score;
    for (int i = 0; i < COUNT(sample); i++)
        sample[i] = (int)fmin(600 * exp(1.3 * random_normal(5, (uint64_t)i)) + 1, 32768);
    StrategySearch search = {.pool = &pool, .lengths = sample, .n = SAMPLE, .batch_tokens = 200000, .most = 16};
    int n = strategies_search(list, &score, &search, &proposals, err);
    CHECK(n >= 2 && score.proposed > n && score.batches > 10);
    CHECK(score.ms > 0 && score.ms < score.single_ms);
    double ours = 0, theirs = 0;
    for (int b = 0, first = SAMPLE; b < STEPS; b++) {
        int end = first, tokens = 0;
        while (tokens + sample[end] <= 200000) tokens += sample[end++];
        StepWork work = work_for(&pool, sample + first, end - first);
        ours += hydraulis_choose(&work, list, n, 20, 1).ms;
        theirs += hydraulis_choose(&work, published, COUNT(published), 20, 1).ms;
        first = end;
    }
    printf("    %.1f ms, with published strategies %.1f\n", ours / STEPS, theirs / STEPS);
    CHECK(ours < theirs);
}

// ---- the choice of a step

CLAIM(the_strategy_is_the_one_whose_slowest_pipeline_ends_first) {
    int chosen[4] = {0}, emptied = 0;
    FOR_SEEDS(seed, 1, 201) {
        SchemePool pool = random_pool(seed, 16);
        Strategy list[4] = {0};
        int lengths[60], n = pick(seed, 1, 1, 60), best = -1;
        double ms[4], pace[4][MOST_PACES];
        Choice alone[4];
        pool.may_be_empty = (int)(seed % 2);
        random_lengths(lengths, n, pick(seed, 2, 100, scheme_longest(&pool.scheme[0])), seed);
        StepWork work = work_for(&pool, lengths, n);
        for (int i = 0; i < 4; i++) {
            for (int k = 0; k < pool.n; k++) list[i].copies[k] = pick(seed, 60 + (uint64_t)(4 * i + k), 0, 3);
            random_paces(pace[i], &list[i], seed + (uint64_t)(3 * i));
            alone[i] = hydraulis_choose(&work, &list[i], 1, 20, seed);
            int holds = 1;
            for (int d = 0, k = 0; d < n; d++) {
                for (k = 0; k < pool.n && (list[i].copies[k] == 0 || lengths[d] > pool.scheme[k].max_tokens); k++) {}
                holds &= k < pool.n;
            }
            CHECK((alone[i].strategy == 0) == holds);
            int avoided = alone[i].empty && !pool.may_be_empty;
            ms[i] = alone[i].strategy < 0 ? 1e60 : avoided ? 1e9 + alone[i].ms : alone[i].ms;
            if (best < 0 || ms[i] < ms[best]) best = i;
        }
        Choice choice = hydraulis_choose(&work, list, 4, 20, seed);
        CHECK(choice.strategy == (ms[best] < 1e60 ? best : -1));
        if (choice.strategy >= 0) {
            // What is left in the work is the choice: every document once, and the slowest pipeline takes choice.ms.
            int pipelines = strategy_pipelines(&list[best], &pool), seen[60] = {0};
            double slowest = 0;
            CHECK(work.first[0] == 0 && work.first[pipelines] == n);
            for (int p = 0; p < pipelines; p++) {
                int first = work.first[p], of = work.first[p + 1] - first, mb_of[60];
                for (int i = first; i < first + of; i++) {
                    CHECK(work.pipeline_of[work.docs[i]] == p);
                    CHECK(seen[work.docs[i]]++ == 0);
                    CHECK(i == first || lengths[work.docs[i]] <= lengths[work.docs[i - 1]]);
                }
                int k = scheme_of_pipeline(&pool, &list[best], p);
                work.pace = list[best].pace ? list[best].pace[p] : 1;
                slowest = MAX(slowest, hydraulis_pack(mb_of, &work, k, work.docs + first, of).ms);
                CHECK(of == 0 || memcmp(mb_of, work.mb_of + first, sizeof(int) * (size_t)of) == 0);
            }
            CHECK(slowest == choice.ms);
            chosen[best]++, emptied += choice.empty > 0;
        }
    }
    CHECK(emptied > 0);  // both rules were met
    for (int i = 0; i < 4; i++) CHECK(chosen[i] > 0);
}

// ---- the planner that is made of it

// Opened with a sample that is drawn from as a step is.
static void* open_planner(Cluster* c, const int* sample, int n, Arena* opened) {
    void* planner = planner_hydraulis.open(&c->setting, sample, n, opened, c->err);
    CHECK(planner != NULL);
    return planner;
}

static void plan_step(Cluster* c, void* planner, int64_t step, const int* lengths, int n) {
    soil(&c->arena, 0xa5, 1 << 18);
    CHECK(planner_hydraulis.plan(planner, &c->plan, step, lengths, n, &c->arena, c->err) == 0);
}

// A published machine, documents of its data set's kind, the longest of them for a node of 8.
CLAIM(cp_sizes_differ_in_a_step_and_between_steps) {
    static int sample[2000], lengths[300];
    Cluster* c = open_cluster("a100-7b", 64, 8);
    Arena opened = {0};
    int kinds = 0, mixed = 0;
    uint64_t seen[20];
    c->setting.context = 8 * 6451;
    for (int i = 0; i < COUNT(sample); i++)
        sample[i] = (int)MIN(10 + 350 * exp(1.4 * random_normal(9, (uint64_t)i)), 8 * 6451);
    void* planner = open_planner(c, sample, COUNT(sample), &opened);
    for (int step = 0; step < 20; step++) {
        int window[64] = {0}, new = 1, least = 64, most = 0;
        for (int i = 0; i < COUNT(lengths); i++)
            lengths[i] = sample[pick(1234 + (uint64_t)step, (uint64_t)i, 0, COUNT(sample) - 1)];
        plan_step(c, planner, step, lengths, COUNT(lengths));
        for (int i = 0; i < c->plan.n_micro_batches; i++) {
            const MicroBatch* mb = &c->plan.micro_batches[i];
            window[mb->first_rank] = mb->cp_size;
            least = MIN(least, mb->cp_size), most = MAX(most, mb->cp_size);
        }
        mixed += least < most;
        uint64_t hash = hash_bytes(window, sizeof window, 0);
        for (int i = 0; i < kinds; i++) new &= seen[i] != hash;
        if (new) seen[kinds++] = hash;
    }
    printf("    %d strategies in 20 steps, %d steps of unlike cp sizes\n", kinds, mixed);
    CHECK(kinds >= 2 && mixed >= 1);
    arena_free(&opened), close_cluster(c);
}

// Documents of 0.6 of a rank: 6 are three micro-batches on each of two ranks, or two on both, which then communicate
// 3600 tokens of 1e4 / (2 * 10e6) ms. A micro-batch less saves 5 ms.
CLAIM(the_fixed_cost_of_a_micro_batch_weighs_in_the_choice) {
    static int sample[2000];
    for (int i = 0; i < COUNT(sample); i++) sample[i] = 600;
    for (int dear = 0; dear < 2; dear++) {
        Cluster* c = open_cluster("a100-7b", 2, 2);
        Arena opened = {0};
        c->setting.cost = (Cost){.per_token = 0.01, .round = dear ? 5 : 0, .link_scale = 1, .token_bytes = 1e4};
        c->setting.cost.n_groups = 1, c->setting.cost.group_cp_size[0] = 2, c->setting.cost.group_gbps[0] = 10;
        c->setting.context = 1000;
        limit_cluster(c, 1000, 2, CP_CHOICE_AUTO);
        plan_step(c, open_planner(c, sample, COUNT(sample), &opened), 0, sample, 6);
        CHECK(c->plan.n_micro_batches == (dear ? 2 : 6) && c->plan.micro_batches[0].cp_size == 1 + dear);
        arena_free(&opened), close_cluster(c);
    }
}

int main(void) { return test_main(); }
