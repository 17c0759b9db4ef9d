// layout.c - --layout auto: plan/search/layout_search.h searches with the run's own memory table, which is exact. Among
// the layouts found, plan/search/layout_steps.h chooses by the machine and the training text. If a list of strategies
// is faster (plan/search/strategy_steps.h), that is the answer. See search.h.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/base/terminal.h"
#include "plan/published/published.h"
#include "plan/search/strategy_steps.h"
#include "run/search/search.h"
#include "run/setup/setup.h"

// The search's knowledge of the machine and the training text, and its progress.
typedef struct Known {
    Run* run;
    LayoutCosts costs;
    const char* plan;  // the name of a step's planner
    int cp_size;
    SampledSteps steps;
    int* lengths;  // of the steps
    Shape owned;   // the model, whose states all ranks own
    MoveTime links;
    StrategyMoves moves;
    Arena arena;
    const char* what;    // names the search in lines of progress
    double began, told;  // seconds: when the search began, and told of itself last
    int stopped;         // 1: it stopped before its end
} Known;

// The results of a search.
typedef struct Answer {
    LayoutTry tries[LAYOUT_TRIES];
    int n, looked;  // tries; those whose steps were planned
    int has_lists, is_list, failed;
    ListTry list;
    ListCount count;
    double bound;  // ms: no other of all these takes less
} Answer;

// ---- the bytes of a rank

// Returns a rank's bytes. The search asks often, so it keeps answers by a key of all that they follow from.
static double bytes_of(void* context, const Layout* layout, int s, int N) {
    enum { TOLD = 1 << 16 };
    static struct {
        uint64_t key;
        double bytes;
    } told[TOLD];
    int own[] = {layout->tp, layout->stages, s, N}, end = layout_first(layout, s + 1);
    uint64_t key = hash_bytes(own, sizeof own, 1);
    key = hash_bytes(layout->stage, sizeof *layout->stage * (size_t)(s + 1), key);
    key = hash_bytes(layout->layer, sizeof *layout->layer * (size_t)end, key);
    if (told[key % TOLD].key != key) {
        told[key % TOLD].key = key;
        told[key % TOLD].bytes = (double)run_memory_of(((const Known*)context)->run, layout, 0, s, N);
    }
    return told[key % TOLD].bytes;
}

static double job_bytes_of(void* context, const Layout* layout, int copies, int s, int N) {
    return (double)run_memory_of(((const Known*)context)->run, layout, copies, s, N);
}

enum { LEAST_ROWS = 256, LEAST_PART = 8 };

// Narrows the range of an option that was given to its value.
static void keep_asked(const Config* c, const char* option, int asked, int range[2]) {
    if (config_was_given(c, option)) range[0] = range[1] = asked;
}

// States the problem. Rows are those of --capacity, or those that hold a document of --context, up to 32 times as much,
// and down to an eighth: then ranks share documents.
static LayoutProblem problem_of(Known* x) {
    const Run* run = x->run;
    const Config* c = &run->config;
    int64_t most = MIN((int64_t)c->batch_tokens, run->model.k->on_host ? 8192 : 32768);
    LayoutProblem p = layout_problem(&x->costs);
    x->costs.memory = p.memory = (double)run->cluster->available.bytes;
    p.unlike = p.apart = 1;
    p.bytes = bytes_of, p.context = x;
    keep_asked(c, "--tp", c->tp, p.tp), keep_asked(c, "--pp", c->pp, p.stages),
        keep_asked(c, "--zero", c->zero, p.zero);
    if (c->capacity) p.rows[p.n_rows++] = c->capacity;
    for (int parts = LEAST_PART; !c->capacity && parts >= 1; parts /= 2)
        if (parts == 1 || c->context / parts >= LEAST_ROWS) p.rows[p.n_rows++] = CEIL_DIV(c->context, parts);
    for (int64_t N = 2 * (int64_t)c->context; !c->capacity && N <= most && p.n_rows < 9; N *= 2)
        p.rows[p.n_rows++] = (int)N;
    return p;
}

static int plan_as_named(const void* context, Plan* plan, const Setting* setting, const int* lengths, int n,
                         Arena* arena, Err err) {
    const Known* x = (const Known*)context;
    const Planner* planner = planner_named(x->plan);
    Setting own = *setting;
    own.cp_size = x->cp_size;
    void* opened = planner->open(&own, lengths, n, arena, err);
    return opened ? planner->plan(opened, plan, 1, lengths, n, arena, err) : -1;
}

// Draws the pieces that training draws first, until they fill the steps.
static int sample_steps(Known* x, const Run* run, Err err) {
    enum { CHUNK = 4096 };
    static Piece pieces[CHUNK];
    SamplerPosition at = {0};
    int tokens = run->config.batch_tokens;
    for (int n = 0, drawn; x->steps.n < SAMPLED_STEPS; n += drawn) {
        int* more = (int*)realloc(x->lengths, sizeof *more * ((size_t)n + CHUNK));
        if (!more) return fail(err, "no memory for %d lengths of documents", n + CHUNK);
        x->lengths = more, drawn = sampler_draw(run->data.train, &at, pieces, CHUNK, tokens);
        for (int i = 0; i < drawn; i++) more[n + i] = pieces[i].length;
        x->steps = sampled_steps(more, n + drawn, tokens);
    }
    return 0;
}

static void know_moves(Known* x) {
    const Run* run = x->run;
    const Model* m = &run->model;
    const Comm* world = m->world;
    x->owned = m->whole, x->owned.shards = world->size;
    x->links = (MoveTime){x->costs.links, world->size, world->node, !strcmp(run->config.overlap, "yes")};
    x->moves = (StrategyMoves){&x->links, &x->owned, dtype_bytes(m->dt), dtype_bytes(run_gradients_travel_as(run)),
                               x->costs.machine.cost.step > 0};
}

// Fills x with the costs of a machine. plan: the name of a step's planner; NULL: --plan and --cp.
static int know_machine(Known* x, Run* run, const Machine* machine, const char* plan, Err err) {
    const Config* c = &run->config;
    const Model* m = &run->model;
    LayoutCosts* costs = &x->costs;
    int node = run_node_size(run, m->world, 1, 1);
    x->run = run, x->plan = plan ? plan : c->plan, x->cp_size = plan ? 0 : c->cp_size;
    layout_costs(costs, &m->whole, machine, m->world->size, node, (int)dtype_bytes(m->dt), &x->arena);
    costs->overlap = !strcmp(c->overlap, "yes");
    costs->tensor_overlap = costs->overlap && !m->k->on_host;
    costs->rounds_read_weights = !m->k->virtual_time;
    costs->context = c->context;
    if (strcmp(x->plan, "flex") && planner_named(x->plan)) costs->plan = plan_as_named, costs->plan_context = x;
    costs->parts = m->k->on_host ? 0 : ATTENTION_PARTS;
    if (sample_steps(x, run, err)) return -1;
    layout_costs_of_steps(costs, &x->steps);
    return 0;
}

static int know(Known* x, Run* run, Err err) {
    Machine machine;
    LayoutCosts* costs = &x->costs;
    if (run_machine_named(run, &machine, run->config.machine, err)) return -1;
    if (know_machine(x, run, &machine, NULL, err)) return -1;
    know_moves(x);
    for (int i = 0; i < machine.n_tp; i++) {
        costs->of_tp[machine.tp[i]].token = machine.tp_token[i], costs->of_tp[machine.tp[i]].pair = machine.tp_pair[i];
        costs->of_tp[machine.tp[i]].row = machine.tp_row[i];
    }
    return 0;
}

// Returns the ms of a layout by its sampled steps, or by the mean step if they have no plan.
static double step_ms(double terms[N_LAYOUT_TERMS], Known* x, const Layout* layout, int N) {
    char err[ERR_BYTES];
    double ms = layout_steps_ms(terms, &x->costs, layout, N, &x->steps, err);
    return ms < INFINITY ? ms : layout_step_ms(terms, &x->costs, layout, N);
}

// Prints the term by which a layout that fits loses most against the chosen one.
static void print_why(const LayoutTry* t, const LayoutTry* chosen) {
    double most = 0;
    int worst = 0;
    for (int i = 0; i < N_LAYOUT_TERMS; i++)
        if (t->terms[i] - chosen->terms[i] > most) most = t->terms[i] - chosen->terms[i], worst = i;
    if (most > 1e-4 * chosen->ms) printf("            %.3g ms more for %s\n", most, layout_term_names[worst]);
}

// Names the ZeRO stage, in which layouts of equal stages and groups may differ.
static const char* words_of_zero(const Layout* layout, int layers) {
    static const char* const words[] = {"", "zero 1", "zero 2", "zero 3"};
    for (int l = 1; l < layers; l++)
        if (layout->layer[l].zero != layout->layer[0].zero) return "zero by layer";
    return words[layout->layer[0].zero];
}

static void print_try(const LayoutTry* t, int layers) {
    printf("        %d stage%s, tp %d, %s, rows of %d: ", t->layout.stages, t->layout.stages > 1 ? "s" : "",
           t->layout.tp, words_of_zero(&t->layout, layers), t->N);
}

static void print_tries(const Answer* a, const Run* run, int layers) {
    enum { SHOWN = 6 };
    double mib = 1 << 20;
    int all = run->config.explain, shown = all ? a->n : MIN(a->n, SHOWN);
    for (int i = 0; i < shown; i++) {
        const LayoutTry* t = &a->tries[i];
        print_try(t, layers);
        if (!t->fits) printf("does not fit, %.1f MiB\n", t->bytes / mib);
        else if (t->ms == INFINITY) printf("no group holds the longest documents\n");
        else if (i >= a->looked) printf("at least %.4g ms\n", t->ms);
        else printf("%.4g ms, %.1f MiB%s\n", t->ms, t->bytes / mib, i || a->is_list ? "" : ", chosen");
        if (all && i && i < a->looked && t->ms < INFINITY) print_why(t, &a->tries[0]);
    }
    if (a->n > shown) printf("        and %d more; --explain shows them\n", a->n - shown);
}

static void print_list(const Answer* a) {
    char text[STRATEGY_TEXT];
    const ListTry* t = &a->list;
    printf("        strategies: %d proposed, %d played", a->count.proposed, a->count.played);
    if (a->is_list && t->N)
        printf("; zero %d, recompute %s, rows of %d a rank,\n        %.1f MiB", t->how.zero,
               recompute_names[t->how.recompute], t->N, t->bytes / (1 << 20));
    printf(a->is_list ? "; %.4g ms, chosen:\n" : "\n", t->ms);
    for (int i = 0; i < t->list.n && a->is_list; i++)
        printf("          %s\n", strategy_print(&t->list.strategy[i], text));
}

static void print_answer(const Known* x, const Answer* a, double seconds) {
    const Run* run = x->run;
    double ms = a->is_list ? a->list.ms : a->n ? a->tries[0].ms : INFINITY;
    printf("layout  %s, %.1f MiB a rank\n        times of --machine %s\n", run->config.layout,
           (double)run->cluster->available.bytes / (1 << 20), run->config.machine);
    print_tries(a, run, x->costs.whole->L);
    if (a->has_lists) print_list(a);
    else if (x->costs.ranks > LIST_RANKS)
        printf("        strategies: not looked for on more than %d ranks\n", LIST_RANKS);
    if (ms == INFINITY) return;
    printf("        no other of these is faster by more than %.1f %%\n", 100 * fmax(0, 1 - a->bound / ms));
    if (!run->config.explain) return;
    if (!a->is_list) {
        printf("        its %.4g ms, of the stage with most: ", ms);
        layout_print_terms(stdout, a->tries[0].terms, ms);
        printf("\n");
    }
    printf("        searched for %.0f ms\n", 1e3 * seconds);
}

// Lists are no candidates beside options that contradict them (plan/README.md), on ranks of unlike kinds, on too many.
static int may_be_list(const Known* x) {
    const Config* c = &x->run->config;
    int named = config_was_given(c, "--tp") || config_was_given(c, "--pp") || config_was_given(c, "--strategies");
    return !named && !c->probe && !strcmp(c->balance, "off") && x->costs.ranks > 1 && x->costs.ranks <= LIST_RANKS &&
           x->costs.machine.n_kinds == 0 && x->run->training;
}

static void find_list(Known* x, Answer* a, Err err) {
    const Run* run = x->run;
    const Config* c = &run->config;
    const LayoutProblem p = problem_of(x);
    int again = config_choice(c, "--recompute"), asked = config_was_given(c, "--recompute");
    double known = a->n && a->tries[0].fits ? LIST_GAIN * a->tries[0].ms : INFINITY;
    ListProblem lists = {.layouts = &p,
                         .costs = &x->costs,
                         .steps = &x->steps,
                         .recompute = {asked ? again : RECOMPUTE_NONE, asked ? again : RECOMPUTE_BLOCK},
                         .capacity = c->capacity,
                         .least_copies = MAX(c->cp_size, 1),
                         .moves = x->moves.only_more && run->model.k->virtual_time ? NULL : &x->moves,
                         .bytes = job_bytes_of};
    a->has_lists = 1;
    int found = lists_search(&a->list, &a->count, &lists, known, &x->arena, err);
    a->failed = found<0, a->is_list = found> 0 && a->list.ms < known;
    a->bound = fmin(a->is_list ? INFINITY : fmin(a->bound, a->list.ms), a->count.bound);
}

static int no_layout(const Known* x, const LayoutProblem* p, const Answer* a, Err err) {
    const LayoutTry* least = &a->tries[0];
    double mib = 1 << 20, needs = least->bytes / mib, terms[N_LAYOUT_TERMS];
    if (p->ranks % (p->tp[0] * p->stages[0]))
        return fail(err, "auto: expected --tp and --pp that divide %d ranks, found %d and %d; leave them out", p->ranks,
                    p->tp[0], p->stages[0]);
    if (a->n == 0)
        return fail(err,
                    "auto: %d ranks with --capacity %d hold no document of %d tokens, the context; try --capacity %d, "
                    "or a smaller --context",
                    p->ranks, p->rows[p->n_rows - 1], x->costs.context, CEIL_DIV(x->costs.context, p->ranks));
    if (least->fits)  // err becomes the words of the steps' plans
        return layout_steps_ms(terms, &x->costs, &least->layout, least->N, &x->steps, err), -1;
    if (least->bytes <= p->memory)  // the machine has ranks with less
        return fail(err,
                    "auto: no layout fits the machine's ranks, of which some have %.1f MiB; the least needs %.1f MiB "
                    "on its fullest rank; try more memory in the `ranks` lines of --machine, more ranks, or a smaller "
                    "--capacity or --context",
                    machine_bytes(&x->costs.machine, 0, p->ranks) / mib, needs);
    return fail(err,
                "auto: expected a layout of at most %.1f MiB a rank, found none below %.1f MiB; try more "
                "ranks, a smaller --capacity or --context, or --memory %.0fM",
                p->memory / mib, needs, ceil(needs));
}

// Searches layouts, and chooses among them. Returns 0, or -1 without memory.
static int find_layouts(Answer* a, Known* x, const LayoutProblem* p, Err err) {
    a->bound = INFINITY;
    if ((a->n = layout_search(a->tries, p, &x->arena, err)) <= 0) return a->n;
    double slack = layout_choose(a->tries, a->n, &a->looked, &x->costs, &x->steps);
    if (a->tries[0].fits) a->bound = a->tries[0].ms * (1 - slack);
    return 0;
}

static int has_layout(const Answer* a) { return a->n && a->tries[0].fits && a->tries[0].ms < INFINITY; }

// ---- the answer, as train reads it (run/setup/ask.c) and people may type it

static void print_use(const Run* run, double ms, int N, const Layout* layout, const StrategyList* list) {
    size_t room = 2 * layout_print(layout, NULL, 0) + 4;
    char text[STRATEGY_TEXT], *line = config_string((Config*)&run->config, room);
    if (!line || !layout_print_line(layout, line, room)) die("no memory for the text of a layout");
    printf("        %.9g ms a step; use it: --capacity %d --layout '%s'", ms, N, line);
    for (int i = 0; list && i < list->n; i++)
        printf("%s%s", i ? "; " : " --strategies '", strategy_print(&list->strategy[i], text));
    printf("%s\n", list ? "'" : "");
}

// Prints a list as two options: --layout says how layers run, --strategies who runs them.
static void print_use_of_list(const Run* run, const ListTry* t) {
    static Layout layout;
    layout = layout_even(&run->model.whole, 1, 1, t->how.zero, t->how.recompute);
    print_use(run, t->ms, t->N, &layout, &t->list);
}

// Finds the fastest layout, or list, that fits --memory, and prints it. Returns 0, or -1 with words.
static int find_layout(Run* run, int lists_alone, Err err) {
    static Answer a;
    static Known known;
    double started = now_seconds();
    if (know(&known, run, err)) return -1;
    run->cluster->most_scratch = 1;  // as in a run whose memory is short
    LayoutProblem p = problem_of(&known);
    a.bound = INFINITY;
    if (!lists_alone && find_layouts(&a, &known, &p, err)) return -1;
    if (lists_alone || may_be_list(&known)) find_list(&known, &a, err);
    if (a.failed) return -1;
    int fits = a.is_list || has_layout(&a);
    if (fits || a.n) print_answer(&known, &a, now_seconds() - started);
    if (!fits && lists_alone)
        return fail(err, "hydraulis: no pipelines of %d ranks hold the documents; try a larger --capacity", p.ranks);
    if (!fits) return no_layout(&known, &p, &a, err);
    if (a.is_list) print_use_of_list(run, &a.list);
    else print_use(run, a.tries[0].ms, a.tries[0].N, &a.tries[0].layout, NULL);
    return 0;
}

// Prints the time of a step of the layout in --layout, by term. Returns 0, or -1 with words.
static int predict(Run* run, Err err) {
    static Known known;
    static Layout layout, otherwise;
    const Config* c = &run->config;
    const Shape* whole = &run->model.whole;
    double terms[N_LAYOUT_TERMS];
    otherwise = layout_even(whole, c->tp, c->pp, c->zero, (Recompute)config_choice(c, "--recompute"));
    if (layout_parse(&layout, &otherwise, c->layout, strlen(c->layout), err) ||
        layout_check(&layout, whole, run->model.world->size, err) || know(&known, run, err))
        return -1;
    double ms = step_ms(terms, &known, &layout, c->capacity);
    printf("predicted %.5g ms a step, times of --machine %s: ", ms, c->machine);
    layout_print_terms(stdout, terms, ms);
    printf("\n");
    return 0;
}

int search_layout(Run* run, Err err) {
    const Config* c = &run->config;
    int lists_alone = c->layout && !strcmp(c->layout, "hydraulis");
    if (!c->layout) return fail(err, "expected --layout auto, hydraulis, or the lines of one, found none");
    if (!c->machine) return fail(err, "expected --machine FILE or NAME, found none; try %s", machine_names());
    if (c->memory <= 0) return fail(err, "expected --memory SIZE, found none; try --memory 4G");
    run->cluster->available = (HostMemory){(size_t)c->memory, "of --memory"};
    if (!lists_alone && strcmp(c->layout, "auto") != 0) return predict(run, err);
    return find_layout(run, lists_alone, err);
}

// ---- --what-if

static Known asked;

int run_know_layouts(Recommended* r, Run* run, const Machine* machine, const char* plan) {
    arena_free(&asked.arena), free(asked.lengths);
    asked = (Known){.run = run};
    *r = (Recommended){.best.ms = INFINITY, .costs = &asked.costs, .steps = &asked.steps};
    return know_machine(&asked, run, machine, plan, r->words);
}

// Tells people how far the search is. Returns 0 when it has taken long, to end it.
static int tell_search(void* context, double share) {
    enum { LONG = 30, PLAIN_INTERVAL = 5 };
    Known* x = (Known*)context;
    char line[128];
    double now = now_seconds();
    int rewrites = progress_is_terminal();
    snprintf(line, sizeof line, "layouts %.60s: %.0f %% of all looked at", x->what, 100 * share);
    if (now - x->began > LONG) {
        if (rewrites) progress_print("", 1);
        say(stdout, "%s in %d s; of the others one may be faster", line, LONG);
        x->stopped = 1;
        return 0;
    }
    if (now - x->told < (rewrites ? 0.1 : PLAIN_INTERVAL)) return 1;
    x->told = now;
    if (rewrites) line[MIN((int)sizeof line, MAX(progress_columns(), 1)) - 1] = 0;
    progress_print(line, rewrites);
    return 1;
}

void run_recommend(Recommended* r, Run* run, const Machine* machine, const char* what) {
    static Answer a;
    if (run_know_layouts(r, run, machine, NULL)) return;
    run->cluster->most_scratch = 1;
    asked.what = what, asked.began = asked.told = now_seconds();
    LayoutProblem p = problem_of(&asked);
    p.goes_on = tell_search;
    if (find_layouts(&a, &asked, &p, r->words)) return;
    if (a.n) r->best = a.tries[0];
    if (!has_layout(&a)) r->best.ms = INFINITY, no_layout(&asked, &p, &a, r->words);
    if (!has_layout(&a) && asked.stopped)
        fail(r->words, "nothing that fits was among the layouts looked at; name some of it, as --tp 8");
}
