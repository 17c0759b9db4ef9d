// layout.c - who runs which layers, settled before ranks are joined: what the options or a file say, or --layout auto,
// the search of plan/layout/layout_search.h with this program's own memory table, which is exact, and among what it
// finds the choice of plan/layout/layout_steps.h on what is known of the machine and of the training text.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "plan/base/disk.h"
#include "plan/layout/layout_steps.h"
#include "plan/published/published.h"
#include "run/run.h"

// ---- --layout auto

// What is known of the machine.
typedef struct Known {
    Run* run;
    LayoutCosts costs;
    SampledSteps steps;
    Arena arena;
    char from[ERR_BYTES];  // words
} Known;

// What the search asks.
static double bytes_of(void* context, const Layout* layout, int s, int N) {
    return (double)run_memory_of(((const Known*)context)->run, layout, s, N);
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

// By --plan and --cp.
static int plan_as_named(const void* context, Plan* plan, const Setting* setting, const int* lengths, int n,
                         Arena* arena, Err err) {
    const Config* c = &((const Run*)context)->config;
    const Planner* planner = planner_named(c->plan);
    Setting own = *setting;
    own.cp_size = c->cp_size;
    void* opened = planner->open(&own, lengths, n, arena, err);
    return opened ? planner->plan(opened, plan, 1, lengths, n, arena, err) : -1;
}

enum { MOST_PIECES = 1 << 15 };

// Of the pieces that training draws first: those of all steps that are to be looked at, and of one more. Returns how
// many.
static int first_lengths(const Run* run, int lengths[MOST_PIECES]) {
    static Piece pieces[MOST_PIECES];
    SamplerPosition at = {0};
    int n = 0;
    for (int i = 0; i <= SAMPLED_STEPS && n < MOST_PIECES; i++)
        n += sampler_draw(run->data.train, &at, pieces + n, MOST_PIECES - n, run->config.batch_tokens);
    for (int i = 0; i < n; i++) lengths[i] = pieces[i].length;
    return n;
}

static int know(Known* x, Run* run, Err err) {
    static int lengths[MOST_PIECES];
    const Config* c = &run->config;
    const Model* m = &run->model;
    LayoutCosts* costs = &x->costs;
    Machine machine;
    if (run_machine_of_layouts(run, &machine, x->from, err)) return -1;
    int node = run_node_size(run, m->world, 1, 1);
    x->run = run;
    layout_costs(costs, &m->whole, &machine, m->world->size, node, (int)dtype_bytes(m->dt), &x->arena);
    costs->overlap = !strcmp(c->overlap, "yes") && !run->cluster->oversubscribed;
    costs->tensor_overlap = costs->overlap && !m->k->on_host;
    costs->rounds_read_weights = !m->k->virtual_time;
    costs->context = c->context;
    if (strcmp(c->plan, "flex") && planner_named(c->plan)) costs->plan = plan_as_named, costs->plan_context = run;
    costs->parts = m->k->on_host ? 0 : ATTENTION_PARTS;
    x->steps = sampled_steps(lengths, first_lengths(run, lengths), c->batch_tokens);
    layout_costs_of_steps(costs, &x->steps);
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
    if (most > 1e-4 * chosen->ms) printf("; %.3g ms more for %s", most, layout_term_names[worst]);
}

// By it, too, layouts of as many stages and ranks differ.
static const char* words_of_zero(const Layout* layout, int layers) {
    static const char* const words[] = {"", "zero 1", "zero 2", "zero 3"};
    for (int l = 1; l < layers; l++)
        if (layout->layer[l].zero != layout->layer[0].zero) return "zero by layer";
    return words[layout->layer[0].zero];
}

static void print_tries(Known* x, const LayoutTry* tries, int n, int looked, double slack, double seconds) {
    enum { SHOWN = 6 };
    double mib = 1 << 20;
    int all = x->run->config.explain, shown = all ? n : MIN(n, SHOWN);
    printf("layout  auto, %.1f MiB a rank; times %s\n", (double)x->run->cluster->available.bytes / mib, x->from);
    for (int i = 0; i < shown; i++) {
        const LayoutTry* t = &tries[i];
        printf("        %d stage%s, tp %d, %s, rows of %d: ", t->layout.stages, t->layout.stages > 1 ? "s" : "",
               t->layout.tp, words_of_zero(&t->layout, x->costs.whole->L), t->N);
        if (!t->fits) printf("does not fit, %.1f MiB at least", t->bytes / mib);
        else if (t->ms == INFINITY) printf("no group of ranks holds the longest documents");
        else printf("%s%.4g ms, %.1f MiB%s", i < looked ? "" : "at least ", t->ms, t->bytes / mib, i ? "" : ", chosen");
        if (i && i < looked && t->ms < INFINITY) print_why(t, &tries[0]);
        printf("\n");
    }
    if (n > shown) printf("        and %d more; --explain shows them\n", n - shown);
    if (!tries[0].fits) return;
    printf("        no other of these is faster by more than %.1f %%\n", 100 * slack);
    if (!all) return;
    printf("        its %.4g ms, of the stage with most: ", tries[0].ms);
    layout_print_terms(stdout, tries[0].terms, tries[0].ms);
    printf("\n        searched for %.0f ms\n", 1e3 * seconds);
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

// On rank 0 before ranks are joined: the fastest layout that fits --memory, which it prints with what comes next. 0, or
// -1 with words.
static int find_layout(Run* run, Layout* layout, Err err) {
    static LayoutTry tries[LAYOUT_TRIES];
    static Known known;
    double terms[N_LAYOUT_TERMS];
    if (!run->config.memory) return fail(err, "auto: expected --memory SIZE, found none; try --memory 4G");
    if (know(&known, run, err)) return -1;
    run->cluster->most_scratch = 1;  // what is left where memory is short
    LayoutProblem p = problem_of(&known);
    double started = now_seconds();
    int looked = 0, n = layout_search(tries, &p, &known.arena, err);
    if (n < 0) return -1;
    if (p.ranks % (p.tp[0] * p.stages[0]))
        return fail(err, "auto: expected --tp and --pp that divide %d ranks, found %d and %d; leave them out", p.ranks,
                    p.tp[0], p.stages[0]);
    if (n == 0)
        return fail(err,
                    "auto: %d ranks with --capacity %d hold no document of %d tokens, the context; try --capacity %d, "
                    "or a smaller --context",
                    p.ranks, p.rows[p.n_rows - 1], run->config.context, CEIL_DIV(run->config.context, p.ranks));
    double slack = layout_choose(tries, n, &looked, &known.costs, &known.steps);
    if (tries[0].fits && tries[0].ms == INFINITY)  // whose words are of what the run asks, too
        return layout_steps_ms(terms, &known.costs, &tries[0].layout, tries[0].N, &known.steps, err), -1;
    print_tries(&known, tries, n, looked, slack, now_seconds() - started);
    arena_free(&known.arena);
    *layout = tries[0].layout;
    run->settled.capacity = tries[0].N;
    if (tries[0].fits) return 0;
    if (tries[0].bytes <= p.memory)  // the machine has ranks with less
        return fail(err,
                    "auto: no layout fits the machine's ranks, of which some have %.1f MiB; the least needs %.1f MiB "
                    "on its fullest rank; try more memory in the `ranks` lines of --machine, more ranks, or a smaller "
                    "--capacity or --context",
                    machine_bytes(&known.costs.machine, 0, p.ranks) / (1 << 20), tries[0].bytes / (1 << 20));
    return fail(err,
                "auto: expected a layout of at most %.1f MiB a rank, found none below %.1f MiB; try more "
                "ranks, a smaller --capacity or --context, or --memory %.0fM",
                p.memory / (1 << 20), tries[0].bytes / (1 << 20), ceil(tries[0].bytes / (1 << 20)));
}

// ---- a layout that was named

// What rank 0 has read of --layout.
typedef struct LayoutFile {
    int failed, capacity;
    Layout layout;
    char words[ERR_BYTES];
} LayoutFile;

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
    static char text[LAYOUT_TEXT];
    size_t n = layout_print(&run->model.ranks->layout, text, sizeof text);
    char *line = config_string(&run->config, 2 * n + 1), *to = line;
    if (!line || n >= sizeof text) die("no memory for the text of a layout");
    for (const char* c = text; *c; c++) {
        if (*c != '\n') *to++ = *c;
        else if (c[1]) *to++ = ';', *to++ = ' ', c += strspn(c + 1, " ");
    }
    *to = 0;
    run->settled.layout = line;
}

void run_settle_layout(Run* run) {
    static LayoutFile file;
    char err[ERR_BYTES];
    const Config* c = &run->config;
    Model* m = &run->model;
    Layout* layout = &m->ranks->layout;
    int is_named = c->layout && strcmp(c->layout, "hydraulis") != 0;
    int capacity = capacity_of_rank(c->rank_capacity, c->capacity, m->world->rank, err);
    run->settled = (Settled){.capacity = capacity, .tp = c->tp, .pp = c->pp, .layout = c->layout};
    run->settled.strategies = c->strategies;
    if (c->memory > 0) run->cluster->available = (HostMemory){(size_t)c->memory, "of --memory"};
    if (c->pp > m->whole.L)
        die("--pp %d: expected at most as many stages as layers, found %d layers; try --pp %d", c->pp, m->whole.L,
            m->whole.L);
    *layout = layout_even(&m->whole, c->tp, c->pp, c->zero, (Recompute)config_choice(c, "--recompute"));
    if (is_named) {
        int is_auto = !strcmp(c->layout, "auto");
        if (is_auto && c->rank_capacity)
            die("--layout auto looks for rows that all ranks hold, found --capacity ranks=\"%s\"; leave that out",
                c->rank_capacity);
        if (is_auto) run_measure_limit(run);
        if (m->world->rank == 0 && is_auto) file.failed = find_layout(run, &file.layout, file.words);
        else if (m->world->rank == 0) read_layout(&file, run, layout);
        file.capacity = run->settled.capacity;
        run_tell_all(m->world, &file, sizeof file);
        if (file.failed) die("--layout: %s", file.words);
        *layout = file.layout;
        if (is_auto) run->settled.capacity = file.capacity;  // that it has searched with
    }
    int is_saved = c->layout && !config_was_given(c, "--layout");
    const char* option = is_saved ? "the saved layout" : c->layout ? c->layout : c->pp > 1 ? "--pp" : "--tp";
    if (layout_check(layout, &m->whole, m->world->size, err))
        die("%s: %s%s", option, err, is_saved ? "; --tp 1 --pp 1 goes on without" : "");
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
        for (int r = 0; r < ranks; r++) most = MAX(most, bytes[s * ranks + r]);
        printf("stage %d: ranks %d to %d, layers %d to %d, %.1f MiB a rank, %d rounds in flight\n", s, s * ranks,
               (s + 1) * ranks - 1, first, end - 1, (double)most / (1 << 20), pipeline_slots(m->stages, s));
        print_layers(run, s, bytes[s * ranks]);
    }
    free(bytes);
    if (m->world->rank == 0) predict_layout(run);
    layout_print(&m->ranks->layout, text, sizeof text);
    printf("a layout that --layout takes:\n%s", text);
}
