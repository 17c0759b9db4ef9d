// simulate_options.c - the command line of the simulator, and the files that it names.
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "dev/balanced.h"
#include "dev/simulate.h"
#include "kernels/group_attention.h"
#include "plan/base/disk.h"
#include "plan/base/words.h"

void refuse(const char* format, ...) {
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "simulate: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

void* need(size_t bytes) {
    void* memory = malloc(MAX(bytes, 1));
    if (!memory) refuse("no memory for %zu bytes", bytes);
    return memory;
}

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
    {COUNT_UP_TO("zero", zero, 3), "3",
     "what ranks divide (as train's): memory of that stage; 1: without rounds where the system has none; 2, 3: in "
     "rounds"},
    {{"--overlap", INDEX, AT(overlap), 0, 0, "no|passes|yes"},
     "passes",
     "what exchanges hide under: no, nothing; passes, other documents of their pass; yes, their own too, as train on "
     "GPUs"},
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
    {WORD("model", model), NULL, "\"OPTIONS\" of train that say what model and step: for --layout"},
    {WORD("layout-file", layout_file), NULL, "where the found layout is written, or that of --way"},
    {WORD("way", way), NULL, "only this way to divide the model, as the table of --layout auto names it"},
    {WORD("explain", explain), NULL, "FILE.html: a page about the first batch"},
};

static void print_help(void) {
    printf("simulate - plays the planners of several systems on the same batches, in a cost model\n\n");
    for (int i = 0; i < COUNT(rows); i++) {
        printf("  %-13s %s", rows[i].value.name, rows[i].words);
        if (rows[i].standard) printf(" (%s)", rows[i].standard);
        printf("\n");
    }
    printf("\nmachines: %s\nlengths:  %s\nplanners:", machine_names(), lengths_names());
    for (int i = 0; i < n_planners; i++) printf("%s %s", i ? "," : "", planners[i]->name);
    printf(
        "\n\ngap: makespan over the lower bound L3, less 1. Makespans are from the first document to "
        "the end of the last, without the step's own time.\n");
}

static void set_option(Options* options, const OptionRow* row, const char* text) {
    char wanted[WANTED];
    if (field_set(&row->value, options, (Word){text, strlen(text)}, wanted))
        refuse("%s %s: expected %s", row->value.name, text, wanted);
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
        if (!row) refuse("unknown option %s; --help lists them", argv[i]);
        if (row->value.type != FLAG && i + 1 == argc) refuse("%s needs a value: %s", row->value.name, row->words);
        set_option(&options, row, row->value.type == FLAG ? "1" : argv[++i]);
    }
    if (options.way && !options.layout) refuse("--way %s: expected --layout auto beside it, found none", options.way);
    if (!options.lengths && !options.layout) options.lengths = (char*)"wikipedia";
    return options;
}

// ---- planners by name: those of plan/published, and one that is only of use beside a single one of them
//
// "balanced" is what Megatron-LM compares its dynamic context parallelism with: rows of one cp size, here 4, as in its
// own benches on mock data (--lengths mock --capacity 2048 --context 8192).

enum { BALANCED_CP_SIZE = 4 };

static int balanced_plan(const void* planner, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena,
                         Err err) {
    return megatron_balanced(plan, step, lengths, n, (const Setting*)planner, BALANCED_CP_SIZE, arena, err);
}

static const Planner planner_balanced = {.name = "balanced",
                                         .words =
                                             "micro-batches of one cp size, 4, in the order of documents "
                                             "(Megatron-LM)",
                                         .open = planner_open_setting,
                                         .plan = balanced_plan};

static const Planner* find_planner(const char* name, size_t n) {
    for (int i = 0; i <= n_planners; i++) {
        const Planner* planner = i < n_planners ? planners[i] : &planner_balanced;
        if (strlen(planner->name) == n && strncmp(planner->name, name, n) == 0) return planner;
    }
    return NULL;
}

// ---- what the options name

static char* read_whole(const char* path, size_t* bytes, const char* instead) {
    char err[ERR_BYTES];
    uint64_t size;
    if (access(path, F_OK) != 0) refuse("%s", instead);
    int fd = disk_open(path, &size, err);
    if (fd < 0) refuse("%s", err);
    char* text = (char*)need((size_t)size);
    int64_t n = disk_read_at(fd, 0, text, (size_t)size);
    if (n < 0) refuse("cannot read %s: %s", path, strerror(errno));
    close(fd);
    *bytes = (size_t)n;
    return text;
}

void open_machine(Machine* machine, const char* name) {
    char err[ERR_BYTES], unknown[ERR_BYTES];
    size_t n;
    const char* known = machine_builtin(name);
    if (known) {
        if (machine_parse(machine, known, strlen(known), err) < 0) die("machine %s: %s", name, err);
        return;
    }
    snprintf(unknown, sizeof unknown, "--machine %s is neither a file nor one of %s", name, machine_names());
    char* text = read_whole(name, &n, unknown);
    int status = machine_parse(machine, text, n, err);
    free(text);
    if (status < 0) refuse("%s: %s", name, err);
}

// Whether one of names, which are separated by commas and blanks, is this one.
static int is_listed(const char* names, const char* name) {
    for (size_t n = strlen(name); *names; names += strcspn(names, ","), names += strspn(names, ", "))
        if (strcspn(names, ",") == n && strncmp(names, name, n) == 0) return 1;
    return 0;
}

Lengths* open_lengths(const char* name, int context, int capacity) {
    char err[ERR_BYTES], unknown[ERR_BYTES];
    size_t n;
    if (is_listed(lengths_names(), name)) {
        Lengths* lengths = lengths_open(name, context, capacity, err);
        if (!lengths) refuse("%s", err);
        return lengths;
    }
    snprintf(unknown, sizeof unknown, "--lengths %s is neither a file nor one of %s", name, lengths_names());
    char* text = read_whole(name, &n, unknown);
    Lengths* lengths = lengths_parse(text, n, context, err);
    free(text);
    if (!lengths) refuse("%s: %s", name, err);
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
        if (!word_cut(&word, '=', &x)) refuse("--speeds %s: expected RANK=X,... with X above 0", text);
        if (field_set(&key, &rank, word, wanted) || field_set(&speed, &speeds[rank], x, wanted))
            refuse("--speeds %s: expected RANK=X,..., found %.*s and not %s", text, (int)word.n, word.at, wanted);
    }
    return speeds;
}

static void choose_planners(Simulation* s, const char* plans) {
    s->tallies = (Tally*)need(sizeof(Tally) * MOST_TALLIES);
    if (!plans)
        for (int i = 0; i < n_planners; i++) s->tallies[s->n_tallies++] = (Tally){.planner = planners[i]};
    for (const char* at = plans ? plans : ""; *at;) {
        size_t n = strcspn(at, ",");
        const Planner* planner = find_planner(at, n);
        if (!planner) refuse("--plans: no planner is called \"%.*s\"; --help lists them", (int)n, at);
        for (int i = 0; i < s->n_tallies; i++)
            if (s->tallies[i].planner == planner) refuse("--plans: %s is there twice", planner->name);
        if (s->n_tallies == MOST_TALLIES) refuse("--plans: more than %d planners", MOST_TALLIES);
        s->tallies[s->n_tallies++] = (Tally){.planner = planner};
        at += n;
        if (*at) at++;
    }
    if (s->n_tallies == 0) refuse("--plans names no planner");
}

void open_simulation(Simulation* s, const Options* options) {
    char err[ERR_BYTES];
    *s = (Simulation){.options = options};
    open_machine(&s->machine, options->machine);
    s->machine.capacity =
        options->capacity ? options->capacity : machine_capacity(&s->machine, options->ranks, options->zero);
    if (s->machine.capacity < 0 || (s->machine.capacity == 0 && s->machine.token_mb > 0))
        refuse(
            "--zero %d: the states of %s leave no room for a token on %d ranks of %.15g GB; try --zero 3, more "
            "--ranks, "
            "or --capacity to plan as if they did",
            options->zero, s->machine.cost.name, options->ranks, s->machine.memory_gb);
    if (options->overlap == OVERLAP_YES) s->machine.cost.parts = ATTENTION_PARTS;
    GroupCost* groups = (GroupCost*)need(sizeof(GroupCost) * ((size_t)options->ranks + 1));
    enum { LAYERS = 32 };  // of machines that do not say: those of 7B models
    int layers = s->machine.cost.layers ? s->machine.cost.layers : LAYERS;
    s->machine.cost.micro_batch +=
        machine_zero_ms(&s->machine, options->zero, options->ranks, options->node_size, layers);
    if (machine_setting(&s->setting, &s->machine, options->ranks, options->node_size, options->context, groups, err) <
        0) {
        free(groups);
        refuse("%s", err);
    }
    s->setting.rounds = options->zero > 1;
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
    free(s->tallies), free(s->drawn), free(s->sorted), free(s->speeds), free(s->setting.groups);
}
