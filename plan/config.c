// config.c - the option table and what is derived from it: parser, range check, help, echo. See config.h.
#include "plan/config.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

typedef enum OptionType { FLAG, INT, INT64, REAL, TEXT, CHOICE, PATHS } OptionType;

typedef struct Option {
    const char* name;
    OptionType type;
    size_t at;               // place in Config
    const char* standard;    // default as it could be typed; NULL: none
    double least, greatest;  // of numbers
    const char* choices;     // of CHOICE: "a|b|c"; of others: what the help calls the value
    const char* help;
} Option;

#define AT(field) offsetof(Config, field)

// clang-format off
static const Option options[] = {
    {"--data",         PATHS,  AT(data),         NULL,       0, 0,    "PATH...", "directory of text files, text file, *.jsonl with \"text\", or token shards *.bin (shell patterns allowed); default: the C headers under /usr/include"},
    {"--val",          PATHS,  AT(val),          NULL,       0, 0,    "PATH...", "validation documents; default: a twentieth of the documents, chosen by hash"},
    {"--tokenizer",    TEXT,   AT(tokenizer),    NULL,       0, 0,    "FILE", "llm.c tokenizer file or tokenizer.json; default: bytes"},
    {"--out",          TEXT,   AT(out),          NULL,       0, 0,    "DIR", "run directory for log and checkpoints; default: runs/<next free number>"},

    {"--preset",       CHOICE, AT(preset),       "tiny",     0, 0,    "tiny|gpt2-124m|gpt2-350m|gpt2-774m|gpt2-1558m", "model dimensions"},
    {"--layers",       INT,    AT(layers),       "0",        0, 1000, NULL, "blocks; 0: by preset"},
    {"--width",        INT,    AT(width),        "0",        0, 65536, NULL, "channels; 0: by preset"},
    {"--heads",        INT,    AT(heads),        "0",        0, 1024, NULL, "attention heads, must divide the width; 0: by preset"},
    {"--context",      INT,    AT(context),      "0",        0, 1 << 20, NULL, "longest piece of a document in tokens; 0: by preset"},
    {"--vocab",        INT,    AT(vocab),        "0",        0, 1 << 20, NULL, "vocabulary; 0: by preset, or the tokenizer's"},

    {"--steps",        INT64,  AT(steps),        "3500",     0, 1e12, NULL, "optimizer steps of the whole run"},
    {"--batch-tokens", INT,    AT(batch_tokens), "0",        0, 1 << 28, NULL, "most tokens of a step; 0: by preset (tiny 1024, others 16384)"},
    {"--lr",           REAL,   AT(lr),           "0",        0, 10,   NULL, "peak learning rate; 0: by preset (tiny 0.004, gpt2-124m 0.0006, less for larger ones)"},
    {"--schedule",     CHOICE, AT(schedule),     "cosine",   0, 0,    "cosine|linear|constant|wsd", "course of the learning rate after warm-up; wsd falls over the last fifth"},
    {"--warmup",       INT,    AT(warmup),       "100",      0, 1e9,  NULL, "steps of linear warm-up"},
    {"--min-lr",       REAL,   AT(min_lr),       "0.1",      0, 1,    NULL, "final learning rate as a fraction of the peak"},
    {"--weight-decay", REAL,   AT(weight_decay), "0.1",      0, 10,   NULL, "AdamW decay of matrices and embeddings"},
    {"--beta1",        REAL,   AT(beta1),        "0.9",      0, 0.9999, NULL, "AdamW decay of the first moment"},
    {"--beta2",        REAL,   AT(beta2),        "0.95",     0, 0.99999, NULL, "AdamW decay of the second moment"},
    {"--clip",         REAL,   AT(clip),         "1",        0, 1e9,  NULL, "largest global gradient norm; 0: no limit"},
    {"--seed",         INT64,  AT(seed),         "1",        0, 9e15, NULL, "seed of weights, data order and samples"},

    {"--eval-every",   INT,    AT(eval_every),   "500",      0, 1e9,  NULL, "steps between evaluations; 0: never"},
    {"--eval-tokens",  INT,    AT(eval_tokens),  "131072",   1, 1 << 30, NULL, "most validation tokens of an evaluation"},
    {"--sample-every", INT,    AT(sample_every), "1000",     0, 1e9,  NULL, "steps between samples; 0: never"},
    {"--save-every",   INT,    AT(save_every),   "1000",     0, 1e9,  NULL, "steps between checkpoints, the last step always included; 0: never"},
    {"--keep",         INT,    AT(keep),         "2",        0, 1e9,  NULL, "newest checkpoints to keep; 0: all"},
    {"--resume",       FLAG,   AT(resume),       NULL,       0, 0,    NULL, "continue the run in --out (default: the newest run) with its own options; options given here win"},
    {"--init",         TEXT,   AT(init),         NULL,       0, 0,    "DIR", "start from the weights of a checkpoint or of a Hugging Face GPT-2 directory"},

    {"--sample",       TEXT,   AT(sample),       NULL,       0, 0,    "\"PROMPT\"", "do not train: continue the prompt with the model in --init, or the newest checkpoint of --out"},
    {"--tokens",       INT,    AT(tokens),       "256",      1, 1 << 20, NULL, "length of a sample in tokens"},
    {"--temperature",  REAL,   AT(temperature),  "0.8",      0, 100,  NULL, "0: always the most likely token"},
    {"--top-k",        INT,    AT(top_k),        "0",        0, 1 << 20, NULL, "sample among the k most likely tokens; 0: among all"},

    {"--device",       CHOICE, AT(device),       "auto",     0, 0,    "auto|cpu|cuda|emu", "where to compute; auto: a GPU where there is one and this build has CUDA; emu: the CUDA code on an emulated GPU"},
    {"--cpu-isa",      CHOICE, AT(cpu_isa),      "auto",     0, 0,    "auto|reference|generic|avx2|avx512|avx512bf16|amx", "CPU kernels; auto: the best set this processor has"},
    {"--dtype",        CHOICE, AT(dtype),        "auto",     0, 0,    "auto|bf16|fp32", "weights and activations; auto: bf16 where the device multiplies it faster, else fp32"},
    {"--rounding",     CHOICE, AT(rounding),     "nearest",  0, 0,    "nearest|stochastic", "how AdamW rounds its fp32 weights to bf16"},
    {"--threads",      INT,    AT(threads),      "0",        0, 4096, NULL, "CPU threads; 0: every core"},
    {"--recompute",    CHOICE, AT(recompute),    "none",     0, 0,    "none|gelu|block", "activations to compute again in the backward pass instead of keeping them"},
    {"--attention",    CHOICE, AT(attention),    "auto",     0, 0,    "auto|own|cudnn", "attention kernels on a CUDA device; auto: what was measured to be faster"},
    {"--deterministic", CHOICE, AT(deterministic), "yes",    0, 0,    "yes|no", "no: the backward pass of attention may add in any order on a CUDA device, which is faster"},
    {"--epilogues",    CHOICE, AT(epilogues),    "dgelu",    0, 0,    "bias|dgelu|all", "what cuBLASLt computes together with a matmul: the bias; also the slope of GELU; also GELU and bias gradients"},
    {"--capacity",     INT,    AT(capacity),     "0",        0, 1 << 26, NULL, "most tokens of a packed row on a rank; 0: as many as half of the free memory holds, at most 8192"},

    {"--tp",           INT,    AT(tp),           "1",        1, 64,   NULL, "ranks of a tensor-parallel group, which divide heads, hidden units and vocabulary among them; contiguous, best of one machine"},
    {"--zero",         INT,    AT(zero),         "1",        1, 3,    NULL, "what ranks divide among them: 1 optimizer state, 2 also gradients, 3 also weights; 2 and 3 go through the micro-batches of a step in rounds"},
    {"--grad-dtype",       CHOICE, AT(grad_dtype),       "fp32",     0, 0,    "fp32|bf16", "how gradients travel between ranks"},
    {"--overlap",      CHOICE, AT(overlap),      "yes",      0, 0,    "yes|no", "exchange while computing goes on"},
    {"--plan",         CHOICE, AT(plan),         "flex",     0, 0,    "flex|adaptive|static|random", "which ranks share which documents: groups of unlike cp sizes, chosen anew for each step; the best single cp size of each step; one cp size for all; anything valid (for tests)"},
    {"--machine",      TEXT,   AT(machine),      NULL,       0, 0,    "FILE|NAME", "plan by the constants of a machine file, or of a machine that is known by name, instead of measured ones: the same plans in every run"},
    {"--refresh",      INT,    AT(refresh),      "20",       0, 1e9,  NULL, "steps between changes of what is known of ranks: the cost model that plans use, speeds, what slow ranks give away; 0: never"},
    {"--cp",       INT,    AT(cp_size),       "0",        0, 1 << 20, NULL, "ranks that share a document, with --plan static; 0: the least that --capacity allows"},
    {"--cp-kind",         CHOICE, AT(kind),         "auto",     0, 0,    "auto|ulysses|ring", "how ranks share attention: by heads, keys around a ring; auto: heads inside a machine, rings across"},
    {"--node-size",    INT,    AT(node_size),    "0",        0, 1 << 20, NULL, "ranks of a machine, for plans; 0: detected"},
    {"--timeout",      REAL,   AT(timeout),      "600",      1, 1e6,  NULL, "seconds without any sign of another rank after which a run gives up"},
    {"--balance",      CHOICE, AT(balance),      "off",      0, 0,    "off|resize|migrate|semi", "what to do about slow ranks. All but off: plans give them less, which loses nothing. In a tensor-parallel group also: resize leaves out a part of their matmuls (lossy), migrate lets others compute it, semi weighs both (recommended)"},
    {"--semi-lambda", REAL,  AT(semi_lambda), "4",       0, 1e9,  NULL, "of --balance semi: what leaving work out costs, in time; 0: only speed counts; large: nothing is left out"},
    {"--moves",        CHOICE, AT(moves),        "step",     0, 0,    "step|keep", "what is migrated moves for each step and its gradients return; or for good, with its optimizer state"},
    {"--shed",         CHOICE, AT(shed),         "columns",  0, 0,    "columns|slices", "what resizing leaves out: columns of the matmuls' inputs, as published; or whole heads and hidden units, our own variant"},
    {"--fill",         CHOICE, AT(fill),         "zero",     0, 0,    "zero|average|same", "gradients that resizing has not computed: 0, and their weights rest; the mean of their row; those of the step before"},
    {"--priority",     CHOICE, AT(priority),     "change",   0, 0,    "change|random|inverse", "what resizing keeps: what changes most; for comparison any, or what changes least"},
    {"--ratios",       CHOICE, AT(ratios),       "equal",    0, 0,    "equal|layers", "whether resizing leaves out as much of every layer, or more of those that change least"},
    {"--straggle",     TEXT,   AT(straggle),     NULL,       0, 0,    "SPEC", "slow ranks down for a test: \"rank=1,x=4,from=20,to=80\" repeats the matmuls of rank 1 in these steps, \",whole\" slows all that it does; several with ; between them"},

    {"--probe",        FLAG,   AT(probe),        NULL,       0, 0,    NULL, "measure the cost model of this machine"},
    {"--explain",      FLAG,   AT(explain),      NULL,       0, 0,    NULL, "do not train: print the plan of the next step and what other planners would do, and write both as a page (plan.html)"},
    {"--check-plan",   FLAG,   AT(check_plan),   NULL,       0, 0,    NULL, "prove every plan before it runs"},
    {"--overfit",      FLAG,   AT(overfit),      NULL,       0, 0,    NULL, "train on the first batch only"},
    {"--dump-grads",   TEXT,   AT(dump_grads),   NULL,       0, 0,    "FILE", "write gradients and logits (up to 256 MiB of them) of the next step as safetensors, print its loss, stop"},
    {"--help",         FLAG,   AT(help),         NULL,       0, 0,    NULL, "this text"},
};
// clang-format on
_Static_assert(sizeof options / sizeof *options <= 128, "Config.given has 128 bits");

// Names and values of the version before this one: understood, but in no help.
static const char* const old_names[][2] = {
    {"--degree", "--cp"}, {"--kind", "--cp-kind"}, {"--reduce", "--grad-dtype"}, {"--exchange-rate", "--semi-lambda"}};
static const char* const old_values[][3] = {{"--cp-kind", "heads", "ulysses"}};

static uint64_t given_bit(const Option* o) { return (uint64_t)1 << (o - options) % 64; }
static uint64_t* given_word(Config* config, const Option* o) { return &config->given[(o - options) / 64]; }
static int was_given(const Config* config, const Option* o) {
    return (config->given[(o - options) / 64] & given_bit(o)) != 0;
}

typedef struct Preset {
    const char* name;
    int layers, width, heads, context, vocab;  // vocab 0: the tokenizer's
    int batch_tokens;
    double lr;  // the larger ones as in Brown et al. 2020, table 2.1
} Preset;

static const Preset presets[] = {
    {"tiny", 4, 128, 4, 256, 0, 1024, 4e-3},
    {"gpt2-124m", 12, 768, 12, 1024, 50257, 16384, 6e-4},
    {"gpt2-350m", 24, 1024, 16, 1024, 50257, 16384, 3e-4},
    {"gpt2-774m", 36, 1280, 20, 1024, 50257, 16384, 2.5e-4},
    {"gpt2-1558m", 48, 1600, 25, 1024, 50257, 16384, 2e-4},
};

// ---- values

static void* place(const Config* config, const Option* o) { return (char*)config + o->at; }

static int parse_number(double* out, const Option* o, const char* text, char* err, size_t errlen) {
    char* end = NULL;
    errno = 0;
    double x = strtod(text, &end);
    int whole = o->type == REAL || x == floor(x);
    if (end == text || *end || errno || !isfinite(x) || !whole)
        return fail(err, errlen, "%s expects %s number, found \"%s\"", o->name, o->type == REAL ? "a" : "a whole",
                    text);
    if (x < o->least || x > o->greatest)
        return fail(err, errlen, "%s expects %.15g to %.15g, found %s", o->name, o->least, o->greatest, text);
    *out = x;
    return 0;
}

static int is_choice(const char* choices, const char* text) {
    size_t n = strlen(text);
    if (strchr(text, '|')) return 0;
    for (const char* p = choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (n > 0 && !strncmp(p, text, n) && (p[n] == '|' || !p[n])) return 1;
    return 0;
}

static int set(Config* config, const Option* o, const char* text, char* err, size_t errlen) {
    double x = 0;
    for (int i = 0; i < COUNT(old_values); i++)
        if (!strcmp(o->name, old_values[i][0]) && !strcmp(text, old_values[i][1])) text = old_values[i][2];
    if ((o->type == INT || o->type == INT64 || o->type == REAL) && parse_number(&x, o, text, err, errlen)) return -1;
    if (o->type == CHOICE && !is_choice(o->choices, text))
        return fail(err, errlen, "%s expects %s, found \"%s\"", o->name, o->choices, text);
    PathList* list = (PathList*)place(config, o);
    switch (o->type) {
        case FLAG: *(int*)place(config, o) = strcmp(text, "0") != 0; break;
        case INT: *(int*)place(config, o) = (int)x; break;
        case INT64: *(int64_t*)place(config, o) = (int64_t)x; break;
        case REAL: *(double*)place(config, o) = x; break;
        case TEXT:
        case CHOICE: *(const char**)place(config, o) = text; break;
        case PATHS:
            if (list->n == MAX_PATHS)
                return fail(err, errlen, "%s takes at most %d paths; try a pattern in quotes", o->name, MAX_PATHS);
            list->paths[list->n++] = text;
    }
    return 0;
}

// The value as it could be typed; paths are joined by a blank. Empty when unset.
static void format(const Config* config, const Option* o, char* text, size_t bytes) {
    const PathList* list = (const PathList*)place(config, o);
    const char* string = o->type == TEXT || o->type == CHOICE ? *(const char**)place(config, o) : NULL;
    switch (o->type) {
        case FLAG:
        case INT: snprintf(text, bytes, "%d", *(int*)place(config, o)); break;
        case INT64: snprintf(text, bytes, "%lld", (long long)*(int64_t*)place(config, o)); break;
        case REAL:
            // 15 digits read best; 17 are needed where those do not read back to the same double
            snprintf(text, bytes, "%.15g", *(double*)place(config, o));
            if (strtod(text, NULL) != *(double*)place(config, o))
                snprintf(text, bytes, "%.17g", *(double*)place(config, o));
            break;
        case TEXT:
        case CHOICE: snprintf(text, bytes, "%s", string ? string : ""); break;
        case PATHS:
            text[0] = 0;
            for (int i = 0; i < list->n; i++) {
                size_t used = strlen(text);
                snprintf(text + used, bytes - used, "%s%s", i ? " " : "", list->paths[i]);
            }
    }
}

// ---- the command line

static const Option* find(const char* name) {
    for (int i = 0; i < COUNT(old_names); i++)
        if (!strcmp(name, old_names[i][0])) name = old_names[i][1];
    for (int i = 0; i < COUNT(options); i++)
        if (!strcmp(options[i].name, name)) return &options[i];
    return NULL;
}

// Levenshtein distance, two rows at a time.
static int edit_distance(const char* a, const char* b) {
    int row[2][64], n = (int)MIN(strlen(b), (size_t)63);
    for (int j = 0; j <= n; j++) row[0][j] = j;
    int i = 0;
    for (; a[i]; i++) {
        int *last = row[i & 1], *next = row[(i + 1) & 1];
        next[0] = i + 1;
        for (int j = 0; j < n; j++) {
            int change = last[j] + (a[i] != b[j]), cheaper = MIN(last[j + 1], next[j]) + 1;
            next[j + 1] = MIN(change, cheaper);
        }
    }
    return row[i & 1][n];
}

static int unknown_option(const char* name, char* err, size_t errlen) {
    const Option* nearest = &options[0];
    for (int i = 1; i < COUNT(options); i++)
        if (edit_distance(name, options[i].name) < edit_distance(name, nearest->name)) nearest = &options[i];
    int close = edit_distance(name, nearest->name) <= (int)strlen(nearest->name) / 2;
    return fail(err, errlen, "unknown option %s; %s%s", name, close ? "did you mean " : "try ",
                close ? nearest->name : "--help");
}

int config_parse(Config* config, int argc, char** argv, char* err, size_t errlen) {
    memset(config, 0, sizeof *config);
    for (int i = 0; i < COUNT(options); i++)
        if (options[i].standard && set(config, &options[i], options[i].standard, err, errlen)) return -1;
    for (int i = 1; i < argc;) {
        char name[128];
        const char* equals = strchr(argv[i], '=');
        snprintf(name, sizeof name, "%.*s", (int)(equals ? equals - argv[i] : (long)MIN(strlen(argv[i]), sizeof name)),
                 argv[i]);
        if (strncmp(name, "--", 2) != 0)
            return fail(err, errlen, "expected an option, found \"%s\"; values follow their option, as in --data PATH",
                        argv[i]);
        const Option* o = find(name);
        if (!o) return unknown_option(name, err, errlen);
        *given_word(config, o) |= given_bit(o);
        if (o->type == PATHS) ((PathList*)place(config, o))->n = 0;
        i++;
        if (o->type == FLAG) {
            if (equals) return fail(err, errlen, "%s takes no value, found \"%s\"", name, equals + 1);
            *(int*)place(config, o) = 1;
        } else if (equals || i < argc) {
            // A value may begin with a dash (a prompt, a path); an option's name in its place is a forgotten value.
            const char* value = equals ? equals + 1 : argv[i++];
            if (!equals && find(value)) return fail(err, errlen, "%s expects a value, found %s", name, value);
            if (set(config, o, value, err, errlen)) return -1;
        } else return fail(err, errlen, "%s expects a value, found the end of the line", name);
        while (o->type == PATHS && i < argc && strncmp(argv[i], "--", 2) != 0)
            if (set(config, o, argv[i++], err, errlen)) return -1;
    }
    return 0;
}

int config_set(Config* config, const char* name, const char* value, char* err, size_t errlen) {
    const Option* o = find(name);
    if (!o) return unknown_option(name, err, errlen);
    return set(config, o, value, err, errlen);
}

// Options that say what this invocation does rather than what the run is.
static int is_of_the_moment(const Option* o) {
    const char* names[] = {"--out",     "--resume",    "--init",    "--sample",  "--dump-grads",
                           "--probe",   "--explain",   "--help",    "--device",  "--cpu-isa",
                           "--threads", "--node-size", "--overlap", "--timeout", "--straggle"};
    for (int i = 0; i < COUNT(names); i++)
        if (!strcmp(o->name, names[i])) return 1;
    return 0;
}

int config_restore(Config* config, const char* name, const char* value, char* err, size_t errlen) {
    const Option* o = find(name);
    if (!o || is_of_the_moment(o) || was_given(config, o)) return 0;
    return set(config, o, value, err, errlen);
}

char* config_string(Config* config, size_t n) {
    void** block = (void**)malloc(sizeof(void*) + n);
    if (!block) return NULL;
    *block = config->strings;
    config->strings = block;
    return (char*)(block + 1);
}

void config_free(Config* config) {
    while (config->strings) {
        void** block = (void**)config->strings;
        config->strings = *block;
        free(block);
    }
}

int config_was_given(const Config* config, const char* name) {
    const Option* o = find(name);
    return o && was_given(config, o);
}

// ---- for people

void config_help(FILE* out) {
    fprintf(out,
            "usage: train [options]\n\n"
            "Trains a GPT-2 on documents of any length. Without options: a small byte-level model on this\n"
            "machine's C headers, about two minutes on two cores.\n\n");
    for (int i = 0; i < COUNT(options); i++) {
        const Option* o = &options[i];
        char left[96], range[64] = "";
        const char* value = o->type == FLAG ? "" : o->type == REAL ? "X" : o->choices ? o->choices : "N";
        snprintf(left, sizeof left, "%s %s", o->name, value);
        if (o->type == INT || o->type == INT64 || o->type == REAL)
            snprintf(range, sizeof range, ", %.6g to %.6g", o->least, o->greatest);
        fprintf(out, strlen(left) > 25 ? "  %s\n  %25s " : "  %-25s%s ", left, "");
        fprintf(out, "%s", o->help);
        if (o->standard) fprintf(out, " [%s%s]", o->standard, range);
        fprintf(out, "\n");
    }
    fprintf(out,
            "\nStart:  ./train                                  Use:  ./train --sample \"int main(\"\n"
            "Resume: ./train --resume                         Own data: ./train --data my-texts/ notes.jsonl\n"
            "Ranks:  mpirun -n 4 ./train                      Jobs: scripts/one_node.sh, many_nodes.sh, slurm.sh\n");
}

void config_visit(const Config* config, void (*visit)(void* context, const char* name, const char* value),
                  void* context) {
    static char value[1 << 16];
    for (int i = 0; i < COUNT(options); i++) {
        const Option* o = &options[i];
        if (is_of_the_moment(o)) continue;
        const PathList* list = (const PathList*)place(config, o);
        if (o->type == PATHS) {
            for (int p = 0; p < list->n; p++) visit(context, o->name, list->paths[p]);
            continue;
        }
        format(config, o, value, sizeof value);
        if (value[0]) visit(context, o->name, value);
    }
}

// ---- what goes together

// A cp size is what the static planner is told; the others choose it.
static int settle_plan(Config* config, char* err, size_t errlen) {
    if (config->cp_size == 0 || !strcmp(config->plan, "static")) return 0;
    if (config_was_given(config, "--plan"))
        return fail(err, errlen, "--plan %s chooses cp sizes by itself, found --cp %d; try --plan static or --cp 0",
                    config->plan, config->cp_size);
    config->plan = "static";
    return 0;
}

int config_complete(Config* config, int tokenizer_vocab, char* err, size_t errlen) {
    const Preset* preset = presets;
    if (settle_plan(config, err, errlen)) return -1;
    while (strcmp(preset->name, config->preset) != 0) preset++;  // CHOICE has checked the name
    if (!config->layers) config->layers = preset->layers;
    if (!config->width) config->width = preset->width;
    if (!config->heads) config->heads = preset->heads;
    if (!config->context) config->context = preset->context;
    if (!config->batch_tokens) config->batch_tokens = MAX(preset->batch_tokens, config->context);
    if (config->lr == 0) config->lr = preset->lr;
    if (!config->vocab) config->vocab = MAX(preset->vocab, preset->vocab ? preset->vocab : tokenizer_vocab);
    if (config->width % config->heads)
        return fail(err, errlen, "--width %d is not a multiple of --heads %d; try --width %d", config->width,
                    config->heads, ROUND_UP(config->width, config->heads));
    if (config->vocab < tokenizer_vocab)
        return fail(err, errlen, "--vocab %d is smaller than the tokenizer's %d ids; leave --vocab out", config->vocab,
                    tokenizer_vocab);
    if (config->batch_tokens < config->context)
        return fail(err, errlen,
                    "--batch-tokens %d cannot hold one document of up to --context %d tokens; try --batch-tokens %d",
                    config->batch_tokens, config->context, config->context);
    if (config->capacity && config->capacity < config->context && !config->several_ranks)
        return fail(
            err, errlen,
            "--capacity %d cannot hold one document of up to --context %d tokens on one rank; try --capacity %d",
            config->capacity, config->context, config->context);
    return 0;
}
