// trainer.h - for tests that link the trainer (train_gpt.cu without its main, see the Makefile): a small model of a
// random shape is opened as one of many ranks or alone, closed, and opened again for another.
#pragma once
#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>

#include "run/files/saving.h"
#include "run/setup/setup.h"
#include "run/strategies/strategies.h"
#include "run/table/table.h"
#include "run/slow/balance.h"
#include "run/model/tensor_parallel.h"
#include "test/ranks.h"

enum { LAYERS = 2, CONTEXT = 192, BATCH = 1536, MOST_ARGUMENTS = 96 };

static char work[512];  // the documents

// ---- documents

// Documents of 1 to about 2000 characters.
static inline void write_corpus(void) {
    char path[600];
    for (int d = 0; d < 60; d++) {
        snprintf(path, sizeof path, "%s/%02d.txt", work, d);
        FILE* file = fopen(path, "w");
        int n = (int)exp(7.5 * random_uniform(5, (uint64_t)d)) + 1;
        for (int i = 0; file && i < n; i++) fputc('a' + (int)(26 * random_uniform(6 + (uint64_t)d, (uint64_t)i)), file);
        if (!file || fclose(file)) die("cannot write %s", path);
    }
}

// Rank 0 writes them, all ranks know where.
static inline void make_corpus(void) {
    snprintf(work, sizeof work, "%s/ragged-law-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (rank == 0 && !mkdtemp(work)) die("cannot make %s", work);
    ranks_tell(work, sizeof work);
    if (rank == 0) write_corpus();
    ranks_meet();
}

static inline void remove_corpus(void) {
    char command[600];
    ranks_meet();
    if (rank > 0) return;
    snprintf(command, sizeof command, "rm -rf '%s'", work);
    if (system(command)) printf("    cannot remove %s\n", work);
}

// ---- options

typedef struct Arguments {
    int n;
    char* text[MOST_ARGUMENTS];  // in words
    char words[4096];
    size_t used;
} Arguments;

// Words with a space between them; of an option that is there twice the last one wins.
__attribute__((format(printf, 2, 3))) static inline void add_options(Arguments* a, const char* format, ...) {
    char* words = a->words + a->used;
    va_list args;
    va_start(args, format);
    a->used += (size_t)vsnprintf(words, sizeof a->words - a->used, format, args) + 1;
    va_end(args);
    if (a->used > sizeof a->words) die("too many options");
    for (words = strtok(words, " "); words; words = strtok(NULL, " "))
        if (a->n < MOST_ARGUMENTS - 1) a->text[a->n++] = words;
}

// The number that follows `name` among the options of the test, the last one if it is there twice.
static inline int option_number(int n_options, char** options, const char* name, int otherwise) {
    for (int i = 0; i + 1 < n_options; i += 2)
        if (!strcmp(options[i], name)) otherwise = atoi(options[i + 1]);
    return otherwise;
}

// 0 .. n - 1
static inline int draw_number(uint64_t seed, uint64_t index, int n) { return (int)(random_uniform(seed, index) * n); }

// A model that tensor-parallel groups of tp ranks can have: heads, hidden units and rows of the vocabulary that do not
// divide. A GPT-2, or with any_arch any architecture, half of the others with grouped heads, perhaps with fewer
// key/value heads than ranks, and with widths that do not follow from the heads. Returns its key/value heads.
static inline int draw_model(Arguments* a, uint64_t seed, int tp, int any_arch) {
    Arch arch = any_arch ? (Arch)draw_number(seed, 109, N_ARCHS) : ARCH_GPT2;
    int of_any_sizes = arch != ARCH_GPT2;
    int HS = 4 + 4 * draw_number(seed, 101, 3),
        g = of_any_sizes && draw_number(seed, 105, 2) ? draw_number(seed, 106, 4) + 2 : 1;
    int kv_heads = g == 1 ? tp + draw_number(seed, 100, 6) : MAX(CEIL_DIV(tp, g), 1 + draw_number(seed, 100, 2 * tp));
    int heads = g * kv_heads;
    if (heads * HS < 8) HS = 8;  // a norm of 4 channels divides by almost nothing now and then: gradients of no digits
    int width = of_any_sizes && draw_number(seed, 107, 2) ? 8 + draw_number(seed, 108, 90) : heads * HS;
    add_options(a, "--width %d --heads %d", width, heads);
    if (!any_arch) return kv_heads;
    add_options(a, "--arch %s,tie=%s,kv-heads=%d,head-size=%d,hidden=%d", arch_table[arch].name,
                draw_number(seed, 110, 2) ? "yes" : "no", kv_heads, HS,
                draw_number(seed, 111, 2) ? tp + draw_number(seed, 112, 300) : 4 * width);
    return kv_heads;
}

// Whether all models go by a file in which layers are unlike.
static inline int draws_layers(void) { return getenv("LAW_LAYOUTS") != NULL; }

static inline LayerLayout draw_layer(uint64_t seed, uint64_t i, int tp, int kv_heads) {
    LayerLayout row = {tp, 1 + draw_number(seed, 220 + i, 3), (Recompute)draw_number(seed, 320 + i, 3)};
    Shape whole = {.NKV = kv_heads};
    while (draws_layers() && kv_heads && !split_has_cut(&whole, tp, row.tp = 1 + draw_number(seed, 420 + i++, tp))) {}
    return row;
}

// Every other pipeline goes by a file: stages of any numbers of layers, each with its own --zero and --recompute.
static inline void draw_layout(Arguments* a, uint64_t seed, int tp, int stages, int layers, int kv_heads) {
    static char text[LAYOUT_TEXT];
    char path[600];
    Layout layout = {.tp = tp, .stages = stages};
    snprintf(path, sizeof path, "%s/layout", work);
    for (int s = 0, left = layers; s < stages; s++) {
        int behind = stages - 1 - s, n = behind ? 1 + draw_number(seed, 120 + (uint64_t)s, left - behind) : left;
        layout_set_stage(&layout, s, n, draw_layer(seed, (uint64_t)s, tp, 0));
        for (int l = layers - left; l < layers - left + n && draws_layers(); l++)
            layout.layer[l] = draw_layer(seed, 70 + (uint64_t)l, tp, kv_heads);
        left -= n;
    }
    add_options(a, "--layout %s", path);
    if (rank > 0) return;  // rank 0 reads it
    size_t n = layout_print(&layout, text, sizeof text);
    FILE* file = fopen(path, "w");
    if (!file || fwrite(text, 1, n, file) != n || fclose(file)) die("cannot write %s", path);
}

// Rows that hold little or much; of every third model, and with LAW_UNLIKE of all, each rank's own.
static inline void draw_capacity(Arguments* a, uint64_t seed, int data_ranks, int ranks) {
    int least = data_ranks == 1 ? CONTEXT : 100, unlike = getenv("LAW_UNLIKE") || draw_number(seed, 115, 3) == 0;
    char text[1024] = "";
    size_t n = 0;
    for (int r = -1; r < (data_ranks > 1 && unlike ? ranks : 0); r++) {
        int N = least + (int)((BATCH - least) * pow(random_uniform(seed, r < 0 ? 103 : 520 + (uint64_t)r), 2));
        if (r < 0) text_append(text, sizeof text, &n, "%d", N);
        else text_append(text, sizeof text, &n, "%s%d\t%d", r ? ";" : ",ranks=", r, N);
    }
    add_options(a, "--capacity %s", text);
}

// A model, rows that hold little or much, whatever is recomputed. The options of the test come last and win.
static inline void draw_arguments(Arguments* a, uint64_t seed, int data_ranks, int tp, int any_arch, int n_options,
                                  char** options) {
    int stages = option_number(n_options, options, "--pp", 1),
        layers = stages > 1 || draws_layers() ? stages + draw_number(seed, 113, 4) : LAYERS;
    static const char* const recompute[] = {"none", "activation", "block"};
    memset(a, 0, sizeof *a);
    add_options(a, "train");
    int kv_heads = draw_model(a, seed, tp, any_arch);
    if (draws_layers() || (stages > 1 && draw_number(seed, 114, 2))) draw_layout(a, seed, tp, stages, layers, kv_heads);
    add_options(a,
                "--data %s --layers %d --context %d --vocab %d --batch-tokens %d --recompute %s "
                "--device cpu --dtype fp32 --threads 1 --sample-every 0 --machine flexsp-7b",
                work, layers, CONTEXT, 257 + draw_number(seed, 102, 300), BATCH - draw_number(seed, 115, 2),
                recompute[draw_number(seed, 104, COUNT(recompute))]);
    draw_capacity(a, seed, data_ranks, data_ranks * tp * stages);  // two data ranks hold any document
    if (data_ranks > 1) add_options(a, "--plan route=yes");
    for (int i = 0; i < n_options; i++) add_options(a, "%s", options[i]);
}

// ---- a trainer

static inline double norm_of(const float* x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return sqrt(sum);
}

typedef struct Trainer {
    Run run;
    MemoryPlan memory;
    Arguments arguments;
    RunParts parts;
} Trainer;

static inline void open_phases(Run* run, MemoryPlan* memory, Arguments* arguments) {
    run->argc = arguments->n, run->argv = arguments->text;
    run_read_options(run);
    run_open_ranks(run);
    if (run->cluster->identity.size == 1)
        run->config.tp = run->config.pp = 1, run->config.layout = NULL, run->config.capacity = BATCH,
        run->config.rank_capacity = NULL;
    run_open_data(run);
    run_settle_model(run);
    run_settle_layout(run);
    run_join_ranks(run);
    if (strcmp(run->config.balance, "off") != 0) balance_open(run);
    *memory = run_plan_memory(run);
    run_take_memory(run, memory);
    run_load_weights(run);
    if (run->model.ranks->zero.stage == 3) zero_gather(&run->model);
    run_find_cost(run);
}

// main's phases up to the first step, but for what is measured there. The arguments are there. Only rank 0 of several
// says anything.
static inline void trainer_open(Trainer* t, const RankIdentity* identity) {
    int quiet = rank > 0 || identity->size == 1, saved = dup(STDOUT_FILENO);
    memset(&t->run, 0, sizeof t->run);
    memset(&t->parts, 0, sizeof t->parts);
    run_attach(&t->run, &t->parts);
    t->run.ranks = &run_ranks;
    t->run.cluster->identity = *identity;
    t->run.books->dir.lock = t->run.books->pin = -1;  // no directory is held
    fflush(stdout);
    if (saved < 0 || (quiet && !freopen("/dev/null", "w", stdout))) die("cannot open /dev/null");
    open_phases(&t->run, &t->memory, &t->arguments);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
}

static inline void trainer_close(Trainer* t) {
    const Kernels* k = t->run.model.k;
    zero_settle(&t->run.model);
    for (int i = 0; i < t->memory.n; i++) {
        const MemoryEntry* entry = &t->memory.entries[i];
        if (entry->where == ON_HOST) free(entry->memory);
        else if (entry->where == ON_HOST_PINNED) k->free_host(entry->memory);
        else k->free_memory(entry->memory);
    }
    run_close(&t->run);
}
