// layout.c - who runs which layers, settled before ranks are joined: what the options or a file say, or --layout auto,
// the search of plan/layout/layout_search.h with this program's own memory table, which is exact, and among what it
// finds the choice of plan/layout/layout_steps.h on what is known of the machine and of the training text. Where a list
// of strategies is faster (plan/published/strategy_steps.h) that is the answer.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "plan/base/disk.h"
#include "plan/layout/layout_steps.h"
#include "plan/published/published.h"
#include "plan/published/strategy_steps.h"
#include "run/setup/recommend.h"
#include "run/strategies/strategies.h"

// ---- --layout auto

// What rank 0 has read of --layout, or found.
typedef struct LayoutFile {
    int failed, capacity;
    Layout layout;
    char strategies[LISTED * STRATEGY_TEXT];  // empty: all ranks run the layout
    char words[ERR_BYTES];
} LayoutFile;

// What is known of the machine.
typedef struct Known {
    Run* run;
    LayoutCosts costs;
    const char* plan;  // of a step
    int cp_size;
    SampledSteps steps;
    int* lengths;  // of the steps
    Shape owned;   // the model, whose states all ranks own
    MoveTime links;
    StrategyMoves moves;
    Arena arena;
    char from[ERR_BYTES];  // words
    int slow_rank;         // and its pace; 0: all are as fast as the machine says
    double pace;
    const char* what;    // is looked for
    double began, told;  // seconds: when the search began, and said something last
    int stopped;         // before its end
} Known;

// What the search has found, and beside what.
typedef struct Answer {
    LayoutTry tries[LAYOUT_TRIES];
    int n, looked;  // tries
    int has_lists, is_list, failed;
    ListTry list;
    ListCount count;
    double bound;  // no other of all these takes less ms
} Answer;

// What the search asks, often several times, and for each machine again: a key has all that a rank's bytes follow from.
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

// What was asked for by name is not searched for.
static void keep_asked(const Config* c, const char* option, int asked, int range[2]) {
    if (config_was_given(c, option)) range[0] = range[1] = asked;
}

// Rows that --capacity names; or those that hold a document of --context, up to 32 times as much, and down to an
// eighth: then ranks share documents.
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

// The pieces that training draws first, until they fill the steps.
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

// A machine of alike ranks gets a kind for this one.
static void slow_down(Machine* m, int rank, double pace) {
    if (m->n_kinds) return;
    m->n_kinds = 2;
    m->kind_first[0] = rank, m->kind_speed[0] = pace, m->kind_gib[0] = 0;
    m->kind_first[1] = rank + 1, m->kind_speed[1] = 1, m->kind_gib[1] = 0;
}

// plan: of a step; NULL: by --plan and --cp.
static int know_machine(Known* x, Run* run, const Machine* machine, const char* plan, Err err) {
    const Config* c = &run->config;
    const Model* m = &run->model;
    LayoutCosts* costs = &x->costs;
    int node = run_node_size(run, m->world, 1, 1);
    x->run = run, x->plan = plan ? plan : c->plan, x->cp_size = plan ? 0 : c->cp_size;
    layout_costs(costs, &m->whole, machine, m->world->size, node, (int)dtype_bytes(m->dt), &x->arena);
    costs->overlap = !strcmp(c->overlap, "yes") && !run->cluster->oversubscribed;
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
    const Model* m = &run->model;
    LayoutCosts* costs = &x->costs;
    Machine machine;
    if (run_machine_of_layouts(run, &machine, x->from, err)) return -1;
    if (x->pace > 0) slow_down(&machine, x->slow_rank, x->pace);
    if (know_machine(x, run, &machine, NULL, err)) return -1;
    know_moves(x);
    for (int tp = 2; tp <= MIN(MOST_TP, m->world->size); tp++) {
        if (m->world->size % tp || tp > m->whole.NH || !run_machine_of_groups(run, &machine, tp)) continue;
        costs->of_tp[tp].token = machine.cost.per_token, costs->of_tp[tp].pair = machine.cost.quadratic;
        costs->of_tp[tp].row = cost_micro_batch(&machine.cost);
        size_t n = strlen(x->from);
        snprintf(x->from + n, ERR_BYTES - n, "%s %d", strstr(x->from, "--tp") ? "," : "; of --tp", tp);
    }
    return 0;
}

// By its sampled steps.
static double step_ms(double terms[N_LAYOUT_TERMS], Known* x, const Layout* layout, int N) {
    char err[ERR_BYTES];
    double ms = layout_steps_ms(terms, &x->costs, layout, N, &x->steps, err);
    return ms < INFINITY ? ms : layout_step_ms(terms, &x->costs, layout, N);
}

// Where a layout that fits loses most against the chosen one.
static void print_why(const LayoutTry* t, const LayoutTry* chosen) {
    double most = 0;
    int worst = 0;
    for (int i = 0; i < N_LAYOUT_TERMS; i++)
        if (t->terms[i] - chosen->terms[i] > most) most = t->terms[i] - chosen->terms[i], worst = i;
    if (most > 1e-4 * chosen->ms) printf("            %.3g ms more for %s\n", most, layout_term_names[worst]);
}

// By it, too, layouts of as many stages and ranks differ.
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
    printf("layout  %s, %.1f MiB a rank\n        times %s\n", run->config.layout,
           (double)run->cluster->available.bytes / (1 << 20), x->from);
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

// What a step of m->ranks->layout should take, by term.
static void predict_layout(Run* run) {
    static Known known;
    char err[ERR_BYTES];
    double terms[N_LAYOUT_TERMS];
    if (know(&known, run, err)) die("%s", err);
    double ms = step_ms(terms, &known, &run->model.ranks->layout, run->settled.capacity);
    printf("predicted %.5g ms a step, times %s: ", ms, known.from);
    layout_print_terms(stdout, terms, ms);
    printf("\n");
    arena_free(&known.arena);
}

int run_layout_without(double ms[2], Run* run, int rank, double pace, Comm* rest, Err err) {
    static LayoutTry tries[LAYOUT_TRIES];
    static RunView view;
    double terms[N_LAYOUT_TERMS];
    Known with = {.slow_rank = rank, .pace = pace}, without = {0};
    int looked, n = -1;
    run_view(&view, run);
    if (!know(&with, &view.run, err)) {
        ms[0] = step_ms(terms, &with, &run->model.ranks->layout, run->settled.capacity);
        view.run.model.world = rest;
        memset(view.run.config.given, 0, sizeof view.run.config.given);  // nothing is asked for by name
        if (!know(&without, &view.run, err)) {
            LayoutProblem p = problem_of(&without);
            n = layout_search(tries, &p, &without.arena, err);
        }
    }
    if (n > 0) layout_choose(tries, n, &looked, &without.costs, &without.steps);
    ms[1] = n > 0 && tries[0].fits ? tries[0].ms : INFINITY;
    arena_free(&with.arena), free(with.lengths);
    arena_free(&without.arena), free(without.lengths);
    return n < 0 ? -1 : 0;
}

// Lists are no candidates beside options that contradict them (run/README.md), on ranks of unlike kinds, on too many.
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
    ListProblem lists = {.costs = &x->costs,
                         .steps = &x->steps,
                         .tp = {p.tp[0], p.tp[1]},
                         .stages = {p.stages[0], p.stages[1]},
                         .zero = {p.zero[0], p.zero[1]},
                         .recompute = {asked ? again : RECOMPUTE_NONE, asked ? again : RECOMPUTE_BLOCK},
                         .capacity = c->capacity,
                         .least_copies = MAX(c->cp_size, 1),
                         .memory = p.memory,
                         .moves = x->moves.only_more && run->model.k->virtual_time ? NULL : &x->moves,
                         .bytes = job_bytes_of,
                         .context = x};
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
    if (least->fits)  // whose words are of what the run asks, too
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

// How layers run, and who runs them.
static void take_list(LayoutFile* file, const ListTry* t, const Shape* whole) {
    char text[STRATEGY_TEXT];
    size_t n = 0;
    file->layout = layout_even(whole, 1, 1, t->how.zero, t->how.recompute);
    file->capacity = t->N;
    for (int i = 0; i < t->list.n; i++)
        text_append(file->strategies, sizeof file->strategies, &n, "%s%s", i ? "; " : "",
                    strategy_print(&t->list.strategy[i], text));
}

// 0, or -1 without memory.
static int find_layouts(Answer* a, Known* x, const LayoutProblem* p, Err err) {
    a->bound = INFINITY;
    if ((a->n = layout_search(a->tries, p, &x->arena, err)) <= 0) return a->n;
    double slack = layout_choose(a->tries, a->n, &a->looked, &x->costs, &x->steps);
    if (a->tries[0].fits) a->bound = a->tries[0].ms * (1 - slack);
    return 0;
}

static int has_layout(const Answer* a) { return a->n && a->tries[0].fits && a->tries[0].ms < INFINITY; }

// On rank 0 before ranks are joined: the fastest layout, or list, that fits --memory, which it prints with what comes
// next. 0, or -1 with words.
static int find_layout(LayoutFile* file, Run* run, int lists_alone) {
    static Answer a;
    static Known known;
    double started = now_seconds();
    char* err = file->words;
    if (!run->config.memory && !lists_alone)
        return fail(err, "auto: expected --memory SIZE, found none; try --memory 4G");
    if (lists_alone) run_find_available(run);
    if (know(&known, run, err)) return -1;
    run->cluster->most_scratch = 1;  // what is left where memory is short
    LayoutProblem p = problem_of(&known);
    a.bound = INFINITY;
    if (!lists_alone && find_layouts(&a, &known, &p, err)) return -1;
    if (lists_alone || may_be_list(&known)) find_list(&known, &a, err);
    if (a.failed) return -1;
    int fits = a.is_list || has_layout(&a);
    if (fits || a.n) print_answer(&known, &a, now_seconds() - started);
    if (a.is_list) take_list(file, &a.list, &run->model.whole);
    else file->layout = a.tries[0].layout, file->capacity = a.tries[0].N;
    if (!fits && lists_alone)
        return fail(err, "hydraulis: no pipelines of %d ranks hold the documents; try a larger --capacity", p.ranks);
    int failed = fits ? 0 : no_layout(&known, &p, &a, err);
    arena_free(&known.arena), free(known.lengths);
    return failed;
}

// ---- --what-if

static Known asked;

int run_know_layouts(Recommended* r, Run* run, const Machine* machine, const char* plan) {
    arena_free(&asked.arena), free(asked.lengths);
    asked = (Known){.run = run};
    *r = (Recommended){.best.ms = INFINITY, .costs = &asked.costs, .steps = &asked.steps};
    return know_machine(&asked, run, machine, plan, r->words);
}

// How far the search is, for people; it ends when it has taken long.
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

// ---- a layout that was named

static void read_layout(LayoutFile* file, const Run* run, const Layout* otherwise) {
    enum { MOST = 1 << 16 };
    const char* named = run->config.layout;
    int is_text = strchr(named, ';') && access(named, F_OK);  // the layout itself
    size_t n = strlen(named);
    char why[ERR_BYTES], *text = is_text ? strdup(named) : disk_read_file(named, MOST, &n, file->words);
    file->failed = !text;
    if (text && layout_parse(&file->layout, otherwise, text, n, why))
        file->failed = fail(file->words, "%s%s%s", is_text ? "" : named, is_text ? "" : ": ", why);
    free(text);
}

// As text in one line, which is saved with the run: a file may change, and another search may find another one.
static void keep_layout(Run* run) {
    size_t room = 2 * layout_print(&run->model.ranks->layout, NULL, 0) + 4;
    char* line = config_string(&run->config, room);
    if (!line || !layout_print_line(&run->model.ranks->layout, line, room)) die("no memory for the text of a layout");
    run->settled.layout = line;
}

void run_settle_layout(Run* run) {
    static LayoutFile file;
    char err[ERR_BYTES];
    const Config* c = &run->config;
    Model* m = &run->model;
    Layout* layout = &m->ranks->layout;
    int lists_alone = c->layout && !strcmp(c->layout, "hydraulis"), is_named = c->layout != NULL;
    int capacity = capacity_of_rank(c->rank_capacity, c->capacity, m->world->rank, err);
    run->settled = (Settled){.capacity = capacity, .tp = c->tp, .pp = c->pp, .layout = c->layout};
    run->settled.strategies = c->strategies;
    if (c->memory > 0) run->cluster->available = (HostMemory){(size_t)c->memory, "of --memory"};
    if (c->pp > m->whole.L)
        die("--pp %d: expected at most as many stages as layers, found %d layers; try --pp %d", c->pp, m->whole.L,
            m->whole.L);
    *layout = layout_even(&m->whole, c->tp, c->pp, c->zero, (Recompute)config_choice(c, "--recompute"));
    if (is_named) {
        int is_search = lists_alone || !strcmp(c->layout, "auto");
        if (is_search && c->rank_capacity)
            die("--layout %s looks for rows that all ranks hold, found --capacity ranks=\"%s\"; leave that out",
                c->layout, c->rank_capacity);
        if (lists_alone) strategies_refuse_others(run);
        if (is_search) run_measure_limit(run);
        if (m->world->rank == 0 && is_search) file.failed = find_layout(&file, run, lists_alone);
        else if (m->world->rank == 0) read_layout(&file, run, layout);
        run_tell_all(m->world, &file, sizeof file);
        if (file.failed) die("--layout: %s", file.words);
        *layout = file.layout;
        if (file.capacity) run->settled.capacity = file.capacity;  // that auto has searched with
        if (file.strategies[0]) run->settled.strategies = file.strategies;
    }
    const char* option = c->layout ? c->layout : c->pp > 1 ? "--pp" : "--tp";
    if (layout_check(layout, &m->whole, m->world->size, err)) die("%s: %s", option, err);
    if (is_named) keep_layout(run);
    run->settled.tp = layout->tp, run->settled.pp = layout->stages;
}

// What runs of like layers have of a rank's bytes, and what is left: buffers, scratch, what all layers share.
static void print_layers(Run* run, int s, size_t all) {
    static LayerBytes bytes[MOST_LAYERS + 1];
    const Layout* layout = &run->model.ranks->layout;
    int first = layout_first(layout, s), end = layout_first(layout, s + 1), L = end - first;
    double mib = 1 << 20, left = (double)all;
    run_layer_bytes(bytes, run, layout, s, rank_capacity(&run->clock->limits, 0));
    for (int l = first, n; l < end; l += n) {
        const LayerLayout* row = &layout->layer[l];
        const LayerBytes* each = &bytes[l - first];
        n = layout_run(layout, l);
        printf("  layers %d to %d, tp %d, zero %d, recompute %s: %d x (%.1f MiB of states, %.1f of activations)\n", l,
               l + n - 1, row->tp, row->zero, recompute_names[row->recompute], n, (double)each->states / mib,
               (double)each->activations / mib);
        left -= n * (double)(each->states + each->activations);
    }
    if (bytes[L].states) printf("  embedding and classifier: %.1f MiB of states\n", (double)bytes[L].states / mib);
    printf("  beside them: %.1f MiB\n", (left - (double)bytes[L].states) / mib);
}

void run_check_layout(Run* run) {
    const Model* m = &run->model;
    char text[LAYOUT_TEXT];
    int ranks = m->world->size / m->stages;
    size_t* bytes = (size_t*)run_ask_all(run, m->world, &run->books->memory_bytes, sizeof run->books->memory_bytes);
    for (int s = 0; s < m->stages && m->world->rank == 0; s++) {
        int first = layout_first(&m->ranks->layout, s), end = layout_first(&m->ranks->layout, s + 1);
        size_t most = 0;
        int slots = pipeline_slots(m->stages, s);
        for (int r = 0; r < ranks; r++) most = MAX(most, bytes[s * ranks + r]);
        printf("stage %d: ranks %d to %d, layers %d to %d, %.1f MiB a rank, %d round%s in flight\n", s, s * ranks,
               (s + 1) * ranks - 1, first, end - 1, (double)most / (1 << 20), slots, slots > 1 ? "s" : "");
        print_layers(run, s, bytes[s * ranks]);
    }
    free(bytes);
    if (m->world->rank == 0) predict_layout(run);
    layout_print(&m->ranks->layout, text, sizeof text);
    printf("a layout that --layout takes:\n%s", text);
}
