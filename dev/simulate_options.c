// simulate_options.c - the command line of the simulator, and the files that it names.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "dev/simulate_baselines.h"
#include "dev/simulate.h"
#include "kernels/comm/group_attention.h"
#include "plan/base/disk.h"
#include "plan/base/words.h"
#include "plan/cost/transfers.h"
#include "plan/options/read.h"
#include "plan/search/machine_asked.h"

// ---- options

typedef struct OptionRow {
    Field value;
    const char *standard, *words;
} OptionRow;

#define AT(field) offsetof(Options, field)
#define WORD(name, field) \
    { "--" name, TEXT, AT(field), 0, 0, NULL }
#define COUNT_UP_TO(name, field, most) \
    { "--" name, INT, AT(field), 1, most, NULL }

static const OptionRow rows[] = {
    {WORD("machine", machine), "flexsp-7b", "a machine that is known by name, or a machine file"},
    {COUNT_UP_TO("ranks", ranks, 65536), "64", "ranks"},
    {COUNT_UP_TO("node-size", node_size, 1 << 30), "8", "ranks of a node"},
    {COUNT_UP_TO("docs", docs, 1 << 30), "512", "documents of a batch"},
    {COUNT_UP_TO("context", context, 1 << 30), "196608", "longer documents are not drawn"},
    {COUNT_UP_TO("capacity", capacity, 1 << 30), NULL, "tokens of a rank, instead of the machine's"},
    {WORD("capacities", capacities), NULL, "\"FIRST N\": from rank FIRST on N tokens; several with ;"},
    {COUNT_UP_TO("zero", zero, 3), "3",
     "what ranks divide (as train's): memory of that stage; 1: without rounds where the system has none; 2, 3: in "
     "rounds"},
    {{"--overlap", INDEX, AT(overlap), 0, 0, "no|passes|yes"},
     "passes",
     "what exchanges hide under: no, nothing; passes, other documents of their pass; yes, their own too, as train on "
     "GPUs"},
    {{"--cp-kind", INDEX, AT(cp_kind), 0, 0, "auto|ulysses|ring"}, "auto", "how ranks share a document"},
    {{"--route", INDEX, AT(route), 0, 0, "no|yes"}, "no", "messages between nodes may go through proxies"},
    {{"--remap", INDEX, AT(remap), 0, 0, "no|yes|auto"}, "no", "plans are remapped, as train does"},
    {WORD("lengths", lengths), NULL,
     "lengths by name, or a file with one number a line; wikipedia unless given, with --layout --context tokens each"},
    {COUNT_UP_TO("batches", batches, 1 << 30), "20", "batches, the same for all planners"},
    {{"--seed", INT64, AT(seed), 0, 9e15, NULL}, "1", "of the lengths"},
    {WORD("plans", plans), NULL, "planners, with commas; all unless given"},
    {WORD("speeds", speeds), NULL, "RANK=X,...: ranks at X of the usual pace"},
    {{"--patience", REAL, AT(patience), 0, 1e9, NULL},
     "60",
     "seconds of planning before a planner is left out; 0: no end"},
    {{"--json", FLAG, AT(json), 0, 0, NULL}, NULL, "one object for each planner instead of the table"},
    {WORD("layout", layout), NULL,
     "auto: no plans, but the fastest layout or list of strategies (hydraulis: of these alone) that fits --memory, "
     "beside other ways to divide it; FILE: what a step of this one takes"},
    {{"--memory", BYTES, AT(memory), 0, 1e18, NULL}, NULL, "of a rank, as 16G: for --layout"},
    {WORD("model", model), NULL,
     "\"OPTIONS\" of train that say whose weights steps move; with --layout also what a step is"},
    {WORD("layout-file", layout_file), NULL, "where the found layout is written, or that of --way"},
    {WORD("way", way), NULL, "only this way to divide the model, as the table of --layout auto names it"},
    {WORD("explain", explain), NULL, "FILE.html: a page about the first batch"},
};

static void print_help(void) {
    printf(
        "simulate - plays the planners of several systems on the same batches, in a cost model; or searches for\n"
        "runs, with the options of ./train:\n\n"
        "  simulate layout ...         --layout auto or hydraulis: the fastest; or what a step of one takes;\n"
        "                              with --ranks, --memory and --machine\n"
        "  simulate what-if [RUN] ...  what each --machine takes; what else a logged run\n\n");
    for (int i = 0; i < COUNT(rows); i++) {
        printf("  %-13s %s", rows[i].value.name, rows[i].words);
        if (rows[i].standard) printf(" (%s)", rows[i].standard);
        printf("\n");
    }
    printf("\nmachines: %s\nlengths:  %s\nplanners:", machine_names(), lengths_names());
    for (int i = 0; i < n_planners; i++) printf("%s %s", i ? "," : "", planners[i]->name);
    printf("\nand what papers compare with, dev/simulate_baselines.h: %s\n", baseline_names());
    printf(
        "\ngap: makespan over the lower bound L3, less 1. Makespans are from the first document to "
        "the end of the last, without the step's own time.\n");
}

static void set_option(Options* options, const OptionRow* row, const char* text) {
    char wanted[WANTED];
    if (field_set(&row->value, options, (Word){text, strlen(text)}, wanted))
        die("%s %s: expected %s", row->value.name, text, wanted);
}

Options read_options(int argc, char** argv) {
    Options options = {0};
    for (int i = 0; i < COUNT(rows); i++)
        if (rows[i].standard) set_option(&options, &rows[i], rows[i].standard);
    for (int i = 1; i < argc; i++) {
        const OptionRow* row = NULL;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help();
            exit(0);
        }
        for (int j = 0; j < COUNT(rows); j++)
            if (strcmp(rows[j].value.name, argv[i]) == 0) row = &rows[j];
        if (!row) die("unknown option %s; --help lists them", argv[i]);
        if (row->value.type != FLAG && i + 1 == argc) die("%s needs a value: %s", row->value.name, row->words);
        set_option(&options, row, row->value.type == FLAG ? "1" : argv[++i]);
    }
    if (options.way && !options.layout) die("--way %s: expected --layout auto beside it, found none", options.way);
    if (!options.lengths && !options.layout) options.lengths = (char*)"wikipedia";
    return options;
}

// ---- what the options name

// Reads the file of an option that has named none of names.
static char* read_named(const char* option, const char* path, const char* names, size_t* bytes) {
    char err[ERR_BYTES];
    if (access(path, F_OK) != 0) die("%s %s is neither a file nor one of %s", option, path, names);
    char* text = disk_read_file(path, SIZE_MAX - 1, bytes, err);
    if (!text) die("%s", err);
    return text;
}

void open_machine(Machine* machine, const char* name) {
    char err[ERR_BYTES], *text = NULL;
    const char* known = machine_builtin(name);
    size_t n = known ? strlen(known) : 0;
    if (!known) known = text = read_named("--machine", name, machine_names(), &n);
    if (machine_parse(machine, known, n, err) < 0) die("%s: %s", name, err);
    free(text);
}

// Returns whether one of names, which are separated by commas and blanks, is this one.
static int is_listed(const char* names, const char* name) {
    for (size_t n = strlen(name); *names; names += strcspn(names, ","), names += strspn(names, ", "))
        if (strcspn(names, ",") == n && strncmp(names, name, n) == 0) return 1;
    return 0;
}

Lengths* open_lengths(const char* name, int context, int capacity) {
    char err[ERR_BYTES], *text = NULL;
    size_t n;
    int is_known = is_listed(lengths_names(), name);
    if (!is_known) text = read_named("--lengths", name, lengths_names(), &n);
    Lengths* lengths = is_known ? lengths_open(name, context, capacity, err) : lengths_parse(text, n, context, err);
    if (!lengths) die("%s%s%s", is_known ? "" : name, is_known ? "" : ": ", err);
    free(text);
    return lengths;
}

static double* read_speeds(const char* text, int ranks) {
    char err[ERR_BYTES], wanted[WANTED];
    double* speeds = (double*)need(sizeof(double) * (size_t)ranks);
    int rank = 0;
    const Field key = {"rank", INT, 0, 0, ranks - 1, NULL}, speed = {"speed", REAL, 0, 1e-6, 1e6, NULL};
    Words words = words_of(text, strlen(text), err);
    for (int r = 0; r < ranks; r++) speeds[r] = 1;
    for (Word word, x; words_next(&words, ',', &word);) {
        if (!word_cut(&word, '=', &x)) die("--speeds %s: expected RANK=X,... with X above 0", text);
        if (field_set(&key, &rank, word, wanted) || field_set(&speed, &speeds[rank], x, wanted))
            die("--speeds %s: expected RANK=X,..., found %.*s and not %s", text, (int)word.n, word.at, wanted);
    }
    return speeds;
}

// Returns the tokens of a rank, as the options say or the machine, with as many GiB as its `ranks` lines say.
static int capacity_of(const Simulation* s, int rank) {
    char err[ERR_BYTES];
    const Options* o = s->options;
    Machine part = machine_part(&s->machine, rank, 1);
    int own = o->capacity ? o->capacity : machine_capacity(&part, o->ranks, o->zero);
    own = capacity_of_rank(o->capacities, own, rank, err);
    if (own < 0 && o->capacities) die("%s", err);
    if (own < 0 || (own == 0 && part.token_mb > 0))
        die("--zero %d: the states of %s leave no room for a token on %d ranks of %.15g GB; try --zero 3, more "
            "--ranks, or --capacity to plan as if they did",
            o->zero, part.cost.name, o->ranks, part.memory_gb);
    return own;
}

// Finds the capacities of all ranks, and the least. Returns whether they are unlike.
static int find_capacities(Simulation* s) {
    int unlike = 0, ranks = s->options->ranks, least = INT_MAX;
    s->capacities = (int*)need(sizeof(int) * (size_t)ranks);
    for (int r = 0; r < ranks; r++) {
        s->capacities[r] = capacity_of(s, r);
        unlike |= s->capacities[r] != s->capacities[0];
        least = MIN(least, s->capacities[r]);
    }
    s->machine.capacity = least;
    return unlike;
}

// Adds the planner of this name, or the baseline with a setting of its own.
static void add_planner(Simulation* s, const char* name) {
    const Planner* planner = planner_named(name);
    const Baseline* baseline = baseline_named(name);
    Tally* t = &s->tallies[s->n_tallies];
    if (!planner && !baseline) die("--plans: no planner is called \"%s\"; --help lists them", name);
    for (int i = 0; i < s->n_tallies; i++)
        if (!strcmp(s->tallies[i].name, name)) die("--plans: %s is there twice", name);
    if (s->n_tallies++ == MOST_TALLIES) die("--plans: more than %d planners", MOST_TALLIES);
    if (!baseline) {
        *t = (Tally){planner->name, planner->words, planner, .setting = s->setting};
        return;
    }
    size_t groups = sizeof *t->groups * ((size_t)s->options->ranks + 1);
    *t = (Tally){baseline->name, "see dev/simulate_baselines.h", baseline->planner, .setting = s->setting};
    t->groups = t->setting.groups = (GroupCost*)need(groups);
    memcpy(t->groups, s->setting.groups, groups);
    t->out = baseline_set(baseline, &t->setting, s, t->why) < 0;
}

static void choose_planners(Simulation* s, const char* plans) {
    char name[64];
    s->tallies = (Tally*)need(sizeof(Tally) * MOST_TALLIES);
    for (int i = 0; i < n_planners && !plans; i++) add_planner(s, planners[i]->name);
    for (const char* at = plans ? plans : ""; *at; at += *at == ',') {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
        add_planner(s, name);
        at += strcspn(at, ",");
    }
    if (s->n_tallies == 0) die("--plans names no planner");
}

// Returns the weights of --model, or of the parameters that the machine names.
static WeightTimes weights_of(const Simulation* s, int layers) {
    enum { WEIGHT_BYTES = 2, GRADIENT_BYTES = 4 };
    const Options* o = s->options;
    WeightTimes w = machine_weights(&s->machine, o->zero, o->ranks, o->node_size, layers);
    if (o->model && !machine_has_weights(&s->machine, o->zero)) {
        Config c = read_model(o->model, o->ranks);
        Shape whole = config_shape(&c);
        TransferTimes t = transfer_times(&s->machine, &whole, WEIGHT_BYTES, o->node_size);
        config_free(&c);
        w = transfer_weights(&t, &whole, o->zero, o->ranks, CEIL_DIV(o->ranks, o->node_size), WEIGHT_BYTES,
                             GRADIENT_BYTES);
        w.update = s->machine.cost.step;
    }
    w.hides = w.inside = o->overlap != OVERLAP_NO;
    return w;
}

void open_simulation(Simulation* s, const Options* options) {
    char err[ERR_BYTES];
    *s = (Simulation){.options = options};
    open_machine(&s->machine, options->machine);
    int unlike = find_capacities(s);
    if (options->overlap == OVERLAP_YES) s->machine.cost.parts = ATTENTION_PARTS;
    GroupCost* groups = (GroupCost*)need(sizeof(GroupCost) * ((size_t)options->ranks + 1));
    enum { LAYERS = 32 };  // layers of 7B models, for machines that do not say
    int layers = s->machine.cost.layers ? s->machine.cost.layers : LAYERS;
    if (machine_setting(&s->setting, &s->machine, options->ranks, options->node_size, options->context, groups, err) <
        0) {
        free(groups);
        die("%s", err);
    }
    if (unlike) s->setting.limits.capacities = s->capacities;
    s->setting.kind = (CpChoice)options->cp_kind;
    if (unlike || options->cp_kind) cost_groups(groups, &s->setting.cost, &s->setting.limits, s->setting.kind);
    if (options->route)
        s->setting.route_least = (size_t)MAX(route_least_bytes(&s->setting.cost, &s->setting.limits), 0);
    s->setting.rounds = options->zero > 1;
    s->setting.weights = weights_of(s, layers);
    s->setting.no_overlap = options->overlap == OVERLAP_NO;
    if (options->speeds) s->setting.speeds = s->speeds = read_speeds(options->speeds, options->ranks);
    s->lengths = open_lengths(options->lengths, options->context, s->setting.limits.capacity);
    s->drawn = (int*)need(sizeof(int) * (size_t)options->docs);
    s->sorted = (int*)need(sizeof(int) * (size_t)options->docs);
    choose_planners(s, options->plans);
}

void close_simulation(Simulation* s) {
    arena_free(&s->planners);
    lengths_close(s->lengths);
    for (int i = 0; i < s->n_tallies; i++) free(s->tallies[i].groups);
    free(s->tallies), free(s->drawn), free(s->sorted), free(s->speeds), free(s->capacities);
    free(s->setting.groups);
}
