// test_search.c - the one search for a layout or a list of strategies (plan/search/layout_steps.h,
// plan/search/strategy_steps.h) against brute force on few ranks: all layouts whose stages run alike, and all lists
// of up to two strategies, by the same steps on the same clock. SEARCH_CASES: how many jobs.
#include "plan/search/strategy_steps.h"
#include "test/test.h"
#include "test/shapes.h"

enum { CONTEXT = 512, LAYERS = 3, TOKENS = 8 * 1024, MOST_RANKS = 8, MOST_WAYS = 128, LENGTHS = 2048, STEPS = 2 };

static char err[ERR_BYTES];
static Shape whole, owned;
static Arena arena;

// A job: a machine, a memory limit, documents.
typedef struct Job {
    int ranks, lengths[LENGTHS], node[MOST_RANKS];
    double memory;
    int moves_count;
    LayoutCosts costs;
    SampledSteps steps;
    MoveTime links;
    StrategyMoves moves;
} Job;

static Job job;

static double states(const Layout* layout, int s) {
    double sum = 0;
    for (int l = layout_first(layout, s); l < layout_first(layout, s + 1); l++)
        sum += 8.0 / layout->layer[l].tp / (layout->layer[l].zero > 2 ? 2 : layout->layer[l].zero > 1 ? 1.5 : 1);
    return sum;
}

static double kept(const Layout* layout, int s, int N) {
    double sum = 0;
    for (int l = layout_first(layout, s); l < layout_first(layout, s + 1); l++)
        sum += N / 256.0 / layout->tp / (1 << (int)layout->layer[l].recompute);
    return sum * (layout->stages - s);
}

static double bytes_of(void* context, const Layout* layout, int s, int N) {
    (void)context;
    return 1e6 * (states(layout, s) + kept(layout, s, N));
}

static double job_bytes_of(void* context, const Layout* layout, int copies, int s, int N) {
    (void)copies;
    return bytes_of(context, layout, s, N);
}

// Jobs differ in ranks, links, memory, how unlike documents are, and whether moves take time.
static void open_job(int i) {
    double slow = i % 3 == 0 ? 1 : i % 3 == 1 ? 0.02 : 0.3;  // links
    Machine machine = {.cost = {.per_token = 0.02, .quadratic = 4e-5, .link_scale = 1, .layers = LAYERS}};
    whole = shape_make(LAYERS, 256, 8, 1000, CONTEXT);
    machine.cost.channels = machine.cost.kv_channels = 256, machine.cost.elem_bytes = 4;
    for (int k = 0; k < 2; k++)
        machine.cost.link[k] = (LinkTable){2, {1e3, 1e9}, {slow * (0.01 + 0.01 * k), slow * (2e2 + 6e2 * k)}};
    job.ranks = i % 2 ? 8 : 4, job.memory = 1e6 * (14 + 5 * (i % 7));
    layout_costs(&job.costs, &whole, &machine, job.ranks, 4, 4, &arena);
    job.costs.overlap = job.costs.tensor_overlap = i / 2 % 2;
    job.costs.context = CONTEXT, job.costs.parts = 4, job.costs.memory = job.memory;
    for (int d = 0; d < LENGTHS; d++) {
        double u = hash64((uint64_t)(LENGTHS * i + d)) % 1000 / 1000.0;
        job.lengths[d] = MAX(4, (int)(CONTEXT * pow(u, 2 + i % 4)));
    }
    job.steps = sampled_steps(job.lengths, LENGTHS, TOKENS);
    job.steps.n = MIN(job.steps.n, STEPS);
    layout_costs_of_steps(&job.costs, &job.steps);
    owned = whole, owned.shards = job.ranks;
    for (int r = 0; r < job.ranks; r++) job.node[r] = r / 4;
    job.moves_count = i % 3 != 1;
    job.links = (MoveTime){job.costs.links, job.ranks, job.node, job.costs.overlap};
    job.moves = (StrategyMoves){&job.links, &owned, 4, 4, 0};
}

static ListProblem lists(void) {
    static LayoutProblem any;
    any = (LayoutProblem){.tp = {1, 8}, .stages = {1, LAYERS}, .zero = {1, 3}, .memory = job.memory};
    return (ListProblem){.layouts = &any,
                         .costs = &job.costs,
                         .steps = &job.steps,
                         .recompute = {RECOMPUTE_NONE, RECOMPUTE_BLOCK},
                         .least_copies = 1,
                         .moves = job.moves_count ? &job.moves : NULL,
                         .bytes = job_bytes_of};
}

static LayoutProblem layouts(void) {
    LayoutProblem p = layout_problem(&job.costs);
    p.bytes = bytes_of, p.memory = job.memory, p.apart = 1;
    p.unlike = 0;
    for (int N = CONTEXT / 4; N <= 4 * CONTEXT; N *= 2) p.rows[p.n_rows++] = N;
    return p;
}

// ---- brute force

// Stages from s on, with all layers from `first` on. Returns the least ms.
static double all_stages(Layout* layout, const LayoutProblem* p, int s, int first) {
    double least = INFINITY, terms[N_LAYOUT_TERMS];
    if (s == layout->stages) {
        for (int i = 0; i < p->n_rows && first == LAYERS; i++) {
            int fit = (int64_t)p->rows[i] * (job.ranks / layout->tp / layout->stages) >= CONTEXT;
            for (int t = 0; t < s; t++) fit &= bytes_of(NULL, layout, t, p->rows[i]) <= job.memory;
            if (fit) least = fmin(least, layout_steps_ms(terms, &job.costs, layout, p->rows[i], &job.steps, err));
        }
        return least;
    }
    int shards = job.ranks / layout->tp / layout->stages;
    for (int n = 1; n <= LAYERS - first; n++)
        for (int zero = 1; zero <= (shards > 1 ? 3 : 1); zero++)
            for (int r = 0; r <= RECOMPUTE_BLOCK; r++) {
                layout_set_stage(layout, s, n, (LayerLayout){layout->tp, zero, (Recompute)r});
                least = fmin(least, all_stages(layout, p, s + 1, first + n));
            }
    return least;
}

static double all_layouts(void) {
    LayoutProblem p = layouts();
    double least = INFINITY;
    for (int tp = 1; tp <= job.ranks; tp++)
        for (int P = 1; P <= LAYERS; P++) {
            Layout layout = {.tp = tp, .stages = P};
            if (job.ranks % (tp * P) == 0) least = fmin(least, all_stages(&layout, &p, 0, 0));
        }
    return least;
}

// Ways to divide `left` ranks among pipelines of kind (tp, pp) and those behind it. Returns how many there are.
static int all_strategies(RankStrategy* list, int n, RankStrategy* s, int left, int tp, int pp) {
    if (left == 0) {
        list[n] = *s;
        return n + 1;
    }
    if (tp == 0) return n;
    int next_tp = pp < LAYERS ? tp : tp - 1, next_pp = pp < LAYERS ? pp + 1 : 1;
    n = all_strategies(list, n, s, left, next_tp, next_pp);
    for (int copies = 1; copies * tp * pp <= left; copies++) {
        s->group[s->n++] = (PipelineGroup){copies, tp, pp};
        n = all_strategies(list, n, s, left - copies * tp * pp, next_tp, next_pp);
        s->n--;
    }
    return n;
}

// Of a run that chooses between both by their guesses.
static double pair_ms(double (*guess)[SAMPLED_STEPS], double (*ms)[SAMPLED_STEPS], int a, int b) {
    double sum = 0;
    for (int i = 0; i < job.steps.n; i++) sum += ms[guess[b][i] < guess[a][i] ? b : a][i] / job.steps.n;
    return sum;
}

static double all_lists(int* best_n) {
    static RankStrategy strategies[MOST_WAYS];
    static double guess[MOST_WAYS][SAMPLED_STEPS], ms[MOST_WAYS][SAMPLED_STEPS];
    ListProblem p = lists();
    RankStrategy none = {0};
    int n = all_strategies(strategies, 0, &none, job.ranks, job.ranks, 1);
    double least = INFINITY;
    CHECK(n > 0 && n <= MOST_WAYS);
    for (int zero = 1; zero <= 3; zero++)
        for (int r = 0; r <= RECOMPUTE_BLOCK; r++)
            for (int N = CONTEXT; N >= CONTEXT / 4; N /= 2) {
                LayerLayout how = {1, zero, (Recompute)r};
                for (int i = 0; i < n; i++)
                    CHECK(strategy_steps(guess[i], ms[i], &p, &strategies[i], how, N, &arena, err) == 0);
                for (int a = 0; a < n; a++)
                    for (int b = 0; b <= a; b++) {
                        double both = pair_ms(guess, ms, a, b);
                        if (both < least) least = both, *best_n = 1 + (a != b);
                    }
            }
    return least;
}

// ---- the search

typedef struct Found {
    double layout, list, alone, bound;  // ms; alone: of lists without layouts; what no other takes less
} Found;

// Of a list that was found, each strategy by itself.
static double list_ms(const ListProblem* p, const ListTry* t) {
    double guess[LISTED][SAMPLED_STEPS], ms[LISTED][SAMPLED_STEPS], sum = 0;
    for (int i = 0; i < t->list.n; i++)
        CHECK(strategy_steps(guess[i], ms[i], p, &t->list.strategy[i], t->how, t->N, &arena, err) == 0);
    for (int b = 0; b < job.steps.n; b++) {
        int chosen = 0;
        for (int i = 1; i < t->list.n; i++)
            if (guess[i][b] < guess[chosen][b]) chosen = i;
        sum += ms[chosen][b] / job.steps.n;
    }
    return sum;
}

static Found search(void) {
    static LayoutTry tries[LAYOUT_TRIES];
    LayoutProblem p = layouts();
    ListProblem l = lists();
    ListTry list;
    ListCount count;
    int looked, n = layout_search(tries, &p, &arena, err);
    double slack = n > 0 ? layout_choose(tries, n, &looked, &job.costs, &job.steps) : 0;
    Found f = {n > 0 && tries[0].fits ? tries[0].ms : INFINITY, INFINITY, INFINITY, INFINITY};
    f.bound = f.layout * (1 - slack);
    CHECK(lists_search(&list, &count, &l, LIST_GAIN * f.layout, &arena, err) >= 0);
    f.list = list.ms;
    f.bound = fmin(f.bound, fmin(count.bound, list.ms));
    CHECK(lists_search(&list, &count, &l, INFINITY, &arena, err) == 1);
    f.alone = list.ms;
    CHECK_CLOSE(list_ms(&l, &list), list.ms, 1e-9 * list.ms);
    CHECK(list.bytes <= job.memory && list.list.n >= 1 && count.played > 0);
    return f;
}

CLAIM(the_search_finds_what_brute_force_finds) {
    int cases = getenv("SEARCH_CASES") ? atoi(getenv("SEARCH_CASES")) : 2, pairs = 0;
    double worst = 1, worst_list = 1;
    for (int i = 0; i < cases; i++) {
        open_job(i + 3);
        int n = 1;
        double layout = all_layouts(), list = all_lists(&n), best = fmin(layout, list);
        Found f = search();
        double found = f.list < LIST_GAIN * f.layout ? f.list : f.layout;
        printf("    %d ranks: all layouts %.1f ms, found %.1f; all lists of up to two %.1f (%d), found %.1f\n",
               job.ranks, layout, f.layout, list, n, f.alone);
        CHECK(best < INFINITY && found <= 1.01 * best && best >= fmin(f.bound, found) * (1 - 1e-9));
        CHECK(f.alone <= 1.01 * list);
        worst = fmax(worst, found / best), worst_list = fmax(worst_list, f.alone / list), pairs += n == 2;
    }
    printf("    at most %.2f %% above the best, %.2f %% of lists; %d of %d best lists have two strategies\n",
           100 * (worst - 1), 100 * (worst_list - 1), pairs, cases);
    CHECK(pairs > 0);
}

int main(void) { return test_main(); }
