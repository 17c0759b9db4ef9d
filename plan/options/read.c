// read.c - options that go together, the option nearest to an unknown one, --help, what a checkpoint keeps; see read.h.
#include "plan/options/read.h"

#include <limits.h>
#include <stdlib.h>

#include "plan/base/words.h"

// Damerau's distance counts letters to change, add, leave out or swap with the next; three rows of its table are kept.
static int edit_distance(const char* a, const char* b) {
    int row[3][64], n = (int)MIN(strlen(b), (size_t)63), i = 0;
    for (int j = 0; j <= n; j++) row[0][j] = j;
    for (; a[i]; i++) {
        int *before = row[(i + 2) % 3], *last = row[i % 3], *next = row[(i + 1) % 3];
        next[0] = i + 1;
        for (int j = 0; j < n; j++) {
            int change = last[j] + (a[i] != b[j]), cheaper = MIN(last[j + 1], next[j]) + 1;
            next[j + 1] = MIN(change, cheaper);
            if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j])
                next[j + 1] = MIN(next[j + 1], before[j - 1] + 1);
        }
    }
    return row[i % 3][n];
}

// Options of other trainers, with - for _.
static const struct {
    const char *theirs, *ours;
} other_words[] = {
    {"--learning-rate|--max-lr|--peak-lr", "--lr"},
    {"--batch-size|--total-batch-size|--global-batch-size|--per-device-train-batch-size", "--batch-tokens"},
    {"--epochs|--num-epochs|--num-train-epochs|--max-steps|--max-iters|--num-iterations|--train-iters", "--steps"},
    {"--seq-len|--seq-length|--sequence-length|--max-seq-len|--max-seq-length|--block-size", "--context"},
    {"--weight-decay", "--adamw decay=X"},
    {"--grad-clip|--clip-grad|--max-grad-norm", "--clip"},
    {"--warmup-steps|--warmup-iters|--lr-warmup-iters", "--warmup"},
    {"--lr-scheduler-type|--lr-scheduler|--lr-decay-style", "--schedule"},
    {"--output-dir|--out-dir|--save", "--out"},
    {"--model|--model-name-or-path|--load", "--init"},
    {"--n-layer|--n-layers|--num-layers|--depth", "--layers"},
    {"--n-head|--n-heads|--num-heads|--num-attention-heads", "--heads"},
    {"--n-embd|--hidden-size|--dim|--d-model", "--width"},
    {"--bf16|--fp16|--precision", "--dtype"},
    {"--gradient-checkpointing|--activation-checkpointing", "--recompute"},
    {"--tensor-parallel-size|--tensor-model-parallel-size", "--tp"},
    {"--pipeline-parallel-size|--pipeline-model-parallel-size", "--pp"},
    {"--save-steps|--save-interval|--checkpoint-every", "--save-every"},
    {"--eval-steps|--eval-interval|--val-loss-every", "--eval-every"},
    {"--prompt|--generate", "--sample"},
    {"--max-new-tokens|--max-tokens", "--tokens"},
    {"--train-data|--dataset|--data-path|--train-file", "--data"},
};

// The option that was probably meant. NULL: none is near.
static const char* nearest_option(const char* name) {
    const char* meant = NULL;
    int least = (int)strlen(name) / 3 + 1;
    for (int i = 0; i < COUNT(other_words); i++)
        if (word_choice((Word){name, strlen(name)}, other_words[i].theirs) >= 0) return other_words[i].ours;
    for (const Option* o = config_options; *o->value.name; o++) {
        int distance = is_option_name(o->value.name) ? edit_distance(name, o->value.name) : least;
        if (distance < least) least = distance, meant = o->value.name;
    }
    return meant;
}

// Settles the options that may stand alone or before a word, and what some options need.
static int settle_words(Config* c, Err err) {
    static const char* const asks[] = {"--price", "--mtbf", "--restart-seconds"};
    char topics[128] = "all";
    size_t n = strlen(topics);
    for (const Option* o = config_options; *o->value.name; o++)
        if (o->value.type == GROUP) text_append(topics, sizeof topics, &n, "|%s", o->value.name);
    if (c->help && *c->help && word_choice((Word){c->help, strlen(c->help)}, topics) < 0)
        return fail(err, "--help stands alone or before %s, found \"%s\"", topics, c->help);
    if (c->explain_what && *c->explain_what && strcmp(c->explain_what, "layout") != 0)
        return fail(err, "--explain stands alone or before layout, found \"%s\"", c->explain_what);
    if (c->machines.n > 1 && !c->what_if)
        return fail(err, "--machine takes one file or name, found %d; several are for --what-if", c->machines.n);
    c->machine = c->machines.paths[0];
    for (int i = 0; i < COUNT(asks) && !c->what_if; i++)
        if (config_was_given(c, asks[i])) return fail(err, "%s is for --what-if, which was not given", asks[i]);
    c->explain = c->explain_what && !*c->explain_what;
    c->check_layout = c->explain_what && *c->explain_what;
    c->eval = c->eval_choices && !*c->eval_choices;
    if (c->eval) c->eval_choices = NULL;
    c->resume = c->resume_from != NULL;
    if (c->resume && !*c->resume_from) c->resume_from = NULL;
    if (c->new_data && !c->resume) return fail(err, "--new-data is for --resume, which was not given");
    return 0;
}

int config_read(Config* c, int argc, char** argv, Err err) {
    char name[128], dashes[128];
    if (config_parse(c, argc, argv, err) == 0) return settle_words(c, err);
    if (!c->unknown) return -1;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(c->unknown, "="), c->unknown);
    snprintf(dashes, sizeof dashes, "%s", name);
    for (char* sign = dashes; *sign; sign++)
        if (*sign == '_') *sign = '-';
    const char* meant = nearest_option(dashes);
    return meant ? fail(err, "unknown option %s; did you mean %s?", name, meant) : -1;
}

// ---- ranks

int config_was_given(const Config* c, const char* name) {
    const Option* o = option_find(name);
    return o && c->given[o - config_options];
}

// Makes --cp choose the static planner, because the others choose cp sizes by themselves.
static int settle_plan(Config* config, Err err) {
    if (config->cp_size == 0 || !strcmp(config->plan, "static")) return 0;
    if (config_was_given(config, "--plan"))
        return fail(err, "--plan %s chooses cp sizes by itself, found --cp %d; try --plan static or --cp 0",
                    config->plan, config->cp_size);
    config->plan = "static";
    return 0;
}

int capacity_of_rank(const char* text, int otherwise, int rank, Err err) {
    char why[ERR_BYTES], wanted[WANTED];
    Words words = words_of(text, text ? strlen(text) : 0, why), line;
    int capacity = otherwise, first = -1, n = 0;
    while (words_statement(&words, &line)) {
        const Field fields[] = {{"FIRST", INT, 0, first + 1, 1 << 20, NULL}, {"N", INT, 0, 0, 1 << 26, NULL}};
        int* to[] = {&first, &n};
        Word word;
        for (int i = 0; i < COUNT(fields); i++) {
            if (!words_next(&line, ' ', &word)) word = line.left;
            if (field_set(&fields[i], to[i], word, wanted))
                return words_refuse(&line, word, "%s: expected %s", fields[i].name, wanted),
                       fail(err, "--capacity ranks=\"FIRST N; ...\": %s", why);
        }
        if (words_next(&line, ' ', &word))
            return words_refuse(&line, word, "expected ; before the next rank"), fail(err, "--capacity ranks: %s", why);
        if (first <= rank) capacity = n;
    }
    return capacity;
}

int config_complete(Config* config, int tokenizer_vocab, Err err) {
    if (settle_plan(config, err) || config_settle(config, tokenizer_vocab, err)) return -1;
    if (capacity_of_rank(config->rank_capacity, 0, 0, err) < 0) return -1;
    if (config_was_given(config, "--optimizer momentum") && strcmp(config->optimizer, "muon") != 0)
        return fail(err, "--optimizer momentum is muon's, found --optimizer %s; try --adamw beta1", config->optimizer);
    if (config->capacity && config->capacity < config->context && !config->several_ranks)
        return fail(
            err,
            "--capacity %d cannot hold one document of up to --context %d tokens on one rank; try --capacity %d, a "
            "smaller --context, or %d ranks that share it: mpirun -n %d",
            config->capacity, config->context, config->context, CEIL_DIV(config->context, config->capacity),
            CEIL_DIV(config->context, config->capacity));
    return 0;
}

// ---- help

enum { HELP_COLUMN = 24, HELP_WIDTH = 80 };

static void print_left(FILE* out, const char* left) {
    if (strlen(left) < HELP_COLUMN) fprintf(out, "%-*s", HELP_COLUMN, left);
    else fprintf(out, "%s\n%*s", left, HELP_COLUMN, "");
}

// Prints words from column `at` on, and on new lines that begin at HELP_COLUMN. Returns the column after them.
static int print_words(FILE* out, int at, const char* text, const char* ends) {
    for (int n; *text; text += n + (text[n] != 0)) {
        n = (int)strcspn(text, ends);
        if (at > HELP_COLUMN && at + 1 + n > HELP_WIDTH) fprintf(out, "\n%*s", HELP_COLUMN, ""), at = HELP_COLUMN;
        at += fprintf(out, "%s%.*s", at > HELP_COLUMN ? " " : "", n, text);
    }
    return at;
}

static void print_option(FILE* out, const Option* o, int brief) {
    enum { MANY = 50 };  // choices that do not fit a line come after the help
    const Field* f = &o->value;
    char left[128], standard[64];
    const char* value = f->choices ? f->choices : f->type == FLAG ? "" : f->type == REAL ? "X" : "N";
    int is_long = f->type == CHOICE && (brief || strlen(value) > MANY), is_number = f->least < f->most;
    snprintf(left, sizeof left, "%s%s%s%s", option_key(o) ? "      " : "  ",
             option_key(o) ? option_key(o) + 1 : f->name, option_key(o) ? "=" : " ", is_long ? "NAME" : value);
    print_left(out, left);
    int has_standard = o->standard && strcmp(o->standard, "0") != 0, at = print_words(out, HELP_COLUMN, o->help, " ");
    if (is_long && !brief) at = print_words(out, at, value, "|");
    if (brief || !is_number) snprintf(standard, sizeof standard, "[%s]", o->standard ? o->standard : "");
    else snprintf(standard, sizeof standard, "[%s, %.15g to %.15g]", o->standard, f->least, f->most);
    if (has_standard || (is_number && !brief)) print_words(out, at, standard, "");
    fputc('\n', out);
}

static void print_first(FILE* out) {
    fprintf(out,
            "usage: train [options]\n\n"
            "Trains a GPT-2, Llama or Qwen on documents of any length. Without options: a\n"
            "small byte-level model on this machine's C headers, in two to four minutes on\n"
            "two cores. Counts may end in k, M or G, or in Ki, Mi or Gi: 10k is 10000, 64Ki\n"
            "is 65536.\n\n");
    for (const Option* o = config_options; *o->value.name; o++)
        if (o->is & FIRST) print_option(out, o, 1);
    fprintf(out, "\nAll options by group: --help all. One group:\n\n");
    for (const Option* o = config_options; *o->value.name; o++) {
        char left[64];
        if (o->value.type != GROUP) continue;
        snprintf(left, sizeof left, "  --help %s", o->value.name);
        print_left(out, left);
        fprintf(out, "%s\n", o->help);
    }
    fprintf(out,
            "\nFirst run   ./train                 Use it      ./train --sample \"int main(\"\n"
            "Go on       ./train --resume        Own text    ./train --data my-texts/ a.jsonl\n"
            "Ranks       mpirun -n 4 ./train     Clusters    scripts/many_nodes.sh, slurm.sh\n");
}

void config_help(FILE* out, const char* topic) {
    int shown = 0;
    if (!*topic) print_first(out);
    for (const Option* o = config_options; *topic && *o->value.name; o++) {
        if (o->value.type == GROUP) shown = !strcmp(topic, "all") || !strcmp(topic, o->value.name);
        if (!shown) continue;
        if (o->value.type != GROUP) print_option(out, o, 0);
        else fprintf(out, "\n%s: %s\n\n", o->value.name, o->help);
    }
}

// ---- what a checkpoint keeps

// Returns 1 for a saved way to divide ranks if another way is given now, which replaces it.
static int is_overruled(const Config* c, const Option* o) {
    int list = config_was_given(c, "--strategies") && c->strategies && strcmp(c->strategies, "none") != 0;
    int file = config_was_given(c, "--layout"), single = config_was_given(c, "--tp") || config_was_given(c, "--pp");
    size_t at = o->value.at;
    if (at == offsetof(Config, layout))
        return list || single || config_was_given(c, "--zero") || config_was_given(c, "--recompute");
    if (at == offsetof(Config, strategies)) return file || single;
    if (at == offsetof(Config, rank_capacity)) return config_was_given(c, "--capacity");
    return (at == offsetof(Config, tp) || at == offsetof(Config, pp)) && (list || file);
}

int config_restore(Config* c, const char* name, const char* value, Err err) {
    const Option* o = option_find(name);
    int given = o && c->given[o - config_options];
    if (given && o->value.at == offsetof(Config, optimizer) && !strcmp(c->optimizer, "auto")) given = 0;
    if (given && o->value.at == offsetof(Config, optimizer) && strcmp(value, c->optimizer) != 0 && c->resume)
        return fail(err,
                    "--optimizer %s: expected %s, as the saved run has, whose moments the other cannot use; --init "
                    "starts a run from its weights",
                    c->optimizer, value);
    if (!o || !(o->is & RUN) || given) return 0;
    if (is_overruled(c, o)) {
        if (o->value.type == TEXT && !option_key(o)) c->overruled = o->value.name;
        return 0;
    }
    Field field = o->value;
    if ((o->is & SHAPE) == SHAPE) field.most = field.type == REAL ? 1e300 : INT_MAX;
    int failed = option_set(c, &field, value, err);
    c->machine = c->machines.paths[0];
    return failed;
}

void config_visit(const Config* c, void (*visit)(void* context, const char* name, const char* value), void* context) {
    static char value[1 << 17];  // layouts have a line a layer
    for (const Option* o = config_options; *o->value.name; o++) {
        const PathList* list = (const PathList*)((const char*)c + o->value.at);
        if (!(o->is & RUN)) continue;
        for (int p = 0; o->value.type == PATHS && p < list->n; p++) visit(context, o->value.name, list->paths[p]);
        field_print(&o->value, c, value, sizeof value);
        if (value[0]) visit(context, o->value.name, value);
    }
}

void config_free(Config* c) {
    while (c->strings) {
        void** block = (void**)c->strings;
        c->strings = *block;
        free(block);
    }
}
