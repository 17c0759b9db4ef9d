// start.c - from the command line to open documents, a device and a model's shape.
#define _GNU_SOURCE
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/table/open.h"
#include "data/docs_files.h"
#include "data/model_files.h"
#include "data/sampler_mix.h"
#include "data/tokenizer_files.h"
#include "run/step/labels.h"
#include "run/files/adapter.h"
#include "run/files/chats.h"
#include "run/setup/ask.h"
#include "run/setup/setup.h"

// ---- the command that started this program, up to its options, for a person to paste

// Our scripts say here how they were called.
#define LAUNCHER_VARIABLE "RAGGED_LAUNCHER"

static void add_word(char* text, const char* word) {
    char quoted[CHECKPOINT_PATH];
    size_t n = strlen(text);
    snprintf(text + n, CHECKPOINT_PATH - n, "%s%s", n ? " " : "", text_quoted(word, quoted, sizeof quoted));
}

// Adds a launcher's words, up to this program's name as it was typed. Returns 0 if the parent has no such name, as on
// other nodes.
static int add_parent(char* text, const char* program) {
    char path[64], words[CHECKPOINT_PATH];
    snprintf(path, sizeof path, "/proc/%ld/cmdline", (long)getppid());
    FILE* file = fopen(path, "r");
    size_t n = file ? fread(words, 1, sizeof words - 1, file) : 0;
    if (file) fclose(file);
    words[n] = 0;
    for (const char* word = words; word < words + n; word += strlen(word) + 1) {
        if (word > words && !strcmp(word, program)) return 1;
        add_word(text, word);
    }
    text[0] = 0;
    return 0;
}

// Finds the command; program: its name as it was called.
static void find_command(Run* run, const char* program) {
    const RankIdentity* id = &run->cluster->identity;
    const char* launcher = getenv(LAUNCHER_VARIABLE);
    char *text = run->books->command, ranks[32];
    snprintf(text, CHECKPOINT_PATH, "%s", launcher ? launcher : "");
    if (text[0]) return;
    if (strcmp(id->source, "alone") != 0 && !add_parent(text, program)) {
        int is_torchrun = !strcmp(id->source, "torchrun"), is_slurm = !strcmp(id->source, "slurm");
        snprintf(ranks, sizeof ranks, "%d", id->size);
        strcpy(text, is_torchrun ? "torchrun --no-python --nproc-per-node" : is_slurm ? "srun -n" : "mpirun -n");
        add_word(text, ranks);
    }
    add_word(text, program);
    if (run->config.ranks > 1) {
        snprintf(ranks, sizeof ranks, "%d", run->config.ranks);
        add_word(text, "--ranks"), add_word(text, ranks);
    }
}

// Takes --threads from OpenMP's variable, which may have a number for each level of threads.
static void take_threads(Config* c) {
    const char* text = getenv("OMP_NUM_THREADS");
    char number[16];
    if (!text || config_was_given(c, "--threads")) return;
    snprintf(number, sizeof number, "%.*s", (int)strcspn(text, ","), text);
    option_set(c, &option_find("--threads")->value, number, NULL);
}

// Returns the option that uses a model and trains nothing, or NULL. Ends the program where there are two.
static const char* use_of(const Config* c) {
    const struct {
        const char* option;
        int is_asked;
    } uses[] = {
        {"--eval", c->eval || c->eval_choices}, {"--score", c->score != NULL}, {"--rollouts", c->rollouts != NULL},
        {"--sample", c->sample != NULL},        {"--chat", c->chat},           {"--merge", c->merge != NULL}};
    const char* use = NULL;
    for (int i = 0; i < COUNT(uses); i++) {
        if (uses[i].is_asked && use) die("%s and %s: expected one of them, found both", use, uses[i].option);
        if (uses[i].is_asked) use = uses[i].option;
    }
    return use;
}

void run_read_options(Run* run) {
    char err[ERR_BYTES];
    Config* c = &run->config;
    Books* books = run->books;
    signal(SIGXFSZ, SIG_IGN);  // a file that may not grow ends no run: the write fails, and its error has words
    if (config_read(c, run->argc, run->argv, err)) die("%s", err);
    // Generated text keeps its lines; what a launcher shows as a terminal may be a file in the end.
    if (!c->sample && !c->chat && !strcmp(run->cluster->identity.source, "alone")) wrap_output(progress_columns);
    take_threads(c);
    find_command(run, run->argc ? run->argv[0] : "./train");
    if (c->help) config_help(stdout, c->help), end_output(), exit(0);
    if (c->explain || c->check_layout) run_hand_over(run);
    if (c->twice && run->cluster->identity.rank == 0)
        warn("%s stands there twice and the last one counts; name all paths behind one: %s A B", c->twice, c->twice);
    if (c->what_if && !config_was_given(c, "--device")) c->device = "virtual";
    if (c->report.n || c->version) return;  // no run: run_show_others
    if (c->resume && c->init) die("--init starts a run, and --resume goes on with one: leave one of them out");
    books->uses_model = use_of(c);
    if (books->uses_model) c->resume = 0;  // takes the checkpoint's model, and nothing of its training
    run->training = !c->sample && !c->chat && !c->eval_choices && !c->rollouts && !c->merge;
    books->claims = run->training && !books->uses_model && !c->probe && !c->explain && !c->dump_grads &&
                    !c->check_layout && !c->tokenize && !run->cluster->searches;
    run->state.val_loss = run->state.loss = books->saved.val_loss = books->saved.loss = NAN;
    run->model.k = kernels_find(c->device, c->cpu_isa, err);
    if (!run->model.k) die("%s", err);
    run_ask_for_ranks(run);
    run_check_virtual(run);
}

// Says the question in the words that build/simulate takes.
void run_say_what_if(Run* run) {
    char words[CHECKPOINT_PATH] = "build/simulate what-if";
    if (!run->config.what_if) return;
    for (int i = 1; i < run->argc; i++)
        if (strcmp(run->argv[i], "--what-if") != 0) add_word(words, run->argv[i]);
    die("--what-if: a program of its own answers that, without ranks; type: %s", words);
}

// ---- documents

// Opens the tokenizer that the command line names, or the one that the checkpoint carries (a run may have been moved
// away from its first file), or bytes.
static void open_tokenizer(Run* run) {
    char err[ERR_BYTES], path[CHECKPOINT_PATH] = "";
    struct stat st;
    const char* named = run->config.tokenizer;
    if (run->books->start_from[0]) {
        run_path(path, run->books->start_from, "tokenizer.bin");
        if (stat(path, &st)) run_path(path, run->books->start_from, "tokenizer.json");
        if (stat(path, &st) && run->books->base[0]) run_path(path, run->books->base, "tokenizer.bin");
        if (stat(path, &st) && run->books->base[0]) run_path(path, run->books->base, "tokenizer.json");
        if (stat(path, &st)) path[0] = 0;
        if (path[0] && !config_was_given(&run->config, "--tokenizer")) named = NULL;
    }
    run->data.guessed_bytes = !named && !path[0];
    if (tokenizer_open(&run->data.tokenizer, named ? named : path, err))
        die("%s%s%s", named ? "--tokenizer: " : "", err,
            named && access(named, F_OK) ? " (a tokenizer of Hugging Face's hub must be downloaded first)" : "");
}

static int rewrites_lines;  // 1: the progress below rewrites its line
static void tell_encoding(int64_t done, int64_t total) {
    static double last;
    double now = now_seconds(), percent = 100 * (double)MIN(done, total) / (double)MAX(total, (int64_t)1);
    char line[64];
    if (now - last < (rewrites_lines ? 0.1 : 10)) return;
    last = now;
    snprintf(line, sizeof line, "tokens  %.0f %% of %.1f MB encoded", percent, (double)total / 1e6);
    progress_print(line, rewrites_lines);
}

// Returns the number of ids that token shards may have: those of the named tokenizer, else of the model.
static int ids_of_shards(const Run* run) {
    char err[ERR_BYTES];
    int vocab = run->data.tokenizer->vocab;
    Config settled = run->config;
    if (!run->config.tokenizer) config_settle(&settled, vocab, err);  // its refusal is said once documents are open
    return run->config.tokenizer ? vocab : settled.vocab;
}

// Opens documents. Rank 0 encodes text, and all others find its tokens in the user's cache, or encode it, too.
static void open_docs(Run* run, const char* option, const PathList* list, Docs** docs, const char* dir) {
    char err[ERR_BYTES], words[ERR_BYTES];
    Comm* world = run->model.world;
    int rank = world->rank, takes_turns = world->size > 1 && !run->data.tokenizer->is_bytes;
    DocsReading reading = {.separator = run->config.separator, .text_key = run->config.text_key};
    reading.vocab = ids_of_shards(run), reading.tell = rank == 0 ? tell_encoding : NULL;
    reading.chat = &run->data.chat->chat, reading.no_chat = run->data.chat->why[0] ? run->data.chat->why : NULL;
    DocsCache cache = {.reading = reading, .dir = dir};
    rewrites_lines = progress_is_terminal() && !strcmp(run->cluster->identity.source, "alone");
    if (takes_turns && rank > 0 && world->table->barrier(world, err)) die("%s", err);
    double started = now_seconds();
    if (docs_open_cached(docs, list->paths, list->n, run->data.tokenizer, &cache, words, err))
        die("%s: %s%s", option, err,
            config_was_given(&run->config, option) || !run->books->start_from[0]
                ? ""
                : "; the saved run has it so: name it anew");
    if (takes_turns && rank == 0 && world->table->barrier(world, err)) die("%s", err);
    if (rank > 0) return;
    if (rewrites_lines) progress_print("", 1);
    if (words[0] && dir) die("--tokenize: %s", words);
    if (dir && !cache.path[0])
        die("--tokenize: shards hold no labels of instructions or trees; train on the text itself");
    if (words[0]) warn("tokens are not kept: %s", words);
    else if (cache.path[0] && !cache.was_there)
        say(stdout, "tokens  %s, made in %.1f s, for later runs", cache.path, now_seconds() - started);
    else if (cache.path[0] && !run_is_brief(run)) say(stdout, "tokens  %s", cache.path);
}

// Tokenizes, and ends the program.
static void tokenize_only(Run* run) {
    const Config* c = &run->config;
    if (run->data.tokenizer->is_bytes) die("--tokenize: text needs a tokenizer; try --tokenizer FILE");
    open_docs(run, "--data", &c->data, &run->data.docs, c->tokenize);
    char documents[64];
    say(stdout, "%" PRId64 " tokens of %s in %s", docs_tokens(run->data.docs),
        text_many(run->data.docs->n, "document", documents), c->tokenize);
    end_output();
    exit(0);
}

// Finds the tokens at which documents begin and texts end. Llama 3's shards say only where documents begin.
static void find_ends(Run* run) {
    enum { LLAMA3_BEGIN = 128000, LLAMA3_END = 128001 };
    Data* d = &run->data;
    const Tokenizer* t = d->tokenizer;
    d->begin = d->docs ? d->docs->end_of_text : t->end_of_text;
    d->stop = d->begin == t->end_of_text                                    ? t->stop
              : d->begin == LLAMA3_BEGIN && LLAMA3_END < ids_of_shards(run) ? LLAMA3_END
                                                                            : d->begin;
    if (run_ends_turns(run)) d->stop = d->chat->chat.end;
}

// Ends the program if a run that goes on has other documents than before.
static void compare_documents(Run* run) {
    const Config* c = &run->config;
    const Data* d = &run->data;
    RunState* saved = &run->books->saved;
    uint64_t corpus = docs_fingerprint(d->docs), content = docs_content(d->docs),
             val = d->val_docs ? docs_content(d->val_docs) : 0;
    int by_shape = saved->corpus != corpus, by_content = saved->content != content;
    if (c->resume && c->new_data) run->state.position = (SamplerPosition){0};
    else if (c->resume && (by_shape || by_content))
        die("--resume: the documents differ from those of the saved run (%s %016" PRIx64 ", found %016" PRIx64
            "), or another version reads them differently; restore them, go on with these from their first with "
            "--new-data, or start a new run with "
            "--init %s",
            by_shape ? "fingerprint" : "hash of all bytes", by_shape ? saved->corpus : saved->content,
            by_shape ? corpus : content, run->books->start_from);
    if (c->resume && !c->new_data && saved->val_content && val != saved->val_content) {
        if (!config_was_given(c, "--val"))
            die("--resume: the documents of --val differ from those of the saved run (hash of all bytes %016" PRIx64
                ", found %016" PRIx64 "); restore them, or name others: --val PATH",
                saved->val_content, val);
        if (run->cluster->identity.rank == 0)
            warn("--val names other documents than before: validation losses do not compare");
    }
    saved->corpus = corpus, saved->content = content, saved->val_content = val;
}

// Returns 1 if all documents of --data are evaluated: neither held-out ones nor those of --val are looked at.
static int evaluates_data(const Config* c) { return c->score || (c->eval && config_was_given(c, "--data")); }

void run_open_data(Run* run) {
    Config* c = &run->config;
    Data* d = &run->data;
    struct stat st;
    open_tokenizer(run);
    run_open_chat(run);
    find_ends(run);
    if (!run->training) return;
    if (c->data.n == 0)  // the C headers of this machine, or the sources of this project where there are none
        c->data.paths[c->data.n++] = stat("/usr/include/stdio.h", &st) ? "." : "/usr/include";
    if (c->tokenize) tokenize_only(run);
    open_docs(run, "--data", &c->data, &d->docs, NULL);
    find_ends(run);
    if (c->val.n && !evaluates_data(c)) open_docs(run, "--val", &c->val, &d->val_docs, NULL);
}

// ---- the model

static int by_hash(const void* a, const void* b) {
    uint64_t x = *(const uint64_t*)a, y = *(const uint64_t*)b;
    return (x > y) - (x < y);
}

// Returns the number of documents of --val that --data has too; 0 without memory.
static int64_t documents_in_both(const Docs* data, const Docs* val) {
    int64_t both = 0;
    uint64_t* hash = (uint64_t*)malloc((size_t)data->n * sizeof *hash);
    if (!hash) return 0;
    for (int64_t i = 0; i < data->n; i++) hash[i] = data->list[i].hash;
    qsort(hash, (size_t)data->n, sizeof *hash, by_hash);
    for (int64_t i = 0; i < val->n; i++)
        both += bsearch(&val->list[i].hash, hash, (size_t)data->n, sizeof *hash, by_hash) != NULL;
    free(hash);
    return both;
}

// Warns, on rank 0, of data that train, but hardly as anybody wants.
static void warn_of_data(const Run* run) {
    const Config* c = &run->config;
    const Data* d = &run->data;
    const Tokenizer* t = d->tokenizer;
    char documents[64];
    if (d->guessed_bytes && !run->books->start_from[0] && !config_was_given(c, "--vocab") && c->vocab >= 8 * t->vocab &&
        d->docs->max_token < t->vocab)
        warn(
            "no --tokenizer: text is read as bytes, %d of the %d tokens that this model has; name its tokenizer.json, "
            "or give --vocab %d",
            t->vocab, c->vocab, t->vocab);
    if (!run->books->claims) return;
    // Hugging Face's AutoTokenizer takes Qwen2's own class for such a model, whatever its tokenizer_config.json names.
    if (run->model.whole.arch == ARCH_QWEN2 && !tokenizer_is_qwens(t))
        warn(
            "checkpoints of a Qwen2 with another tokenizer than Qwen2's: AutoTokenizer cuts their text wrongly; open "
            "them with PreTrainedTokenizerFast, or try --arch qwen3");
    int64_t both = d->val_docs ? documents_in_both(d->docs, d->val_docs) : 0;
    if (both)
        warn("%s of the %" PRId64 " in --val: also in --data, and trained on; a loss on them says little",
             text_many(both, "document", documents), d->val_docs->n);
}

static void check_token_ids(const Docs* docs, const char* option, int V, int has_tokenizer) {
    int found = docs->max_token;
    if (found >= V && !has_tokenizer)
        die("%s: expected the tokenizer that made these shards, found none, and ids up to %d; try --tokenizer FILE, or "
            "--vocab N with the number of its tokens",
            option, found);
    if (found >= V)
        die("%s: expected token ids below the model's vocabulary of %d, found %d; try --vocab %d", option, V, found,
            found + 1);
}

// Splits trees of more tokens than a step takes into several documents, on any ranks. --score learns nothing, so it
// takes all of the largest at once: its documents stay those of the file.
static void settle_trees(Run* run, Docs* docs, const char* option) {
    char err[ERR_BYTES], trees[64];
    Config* c = &run->config;
    DocsSplit told;
    for (int64_t doc = 0; doc < docs->n && c->score && docs_has_trees(docs); doc++)
        if (docs_squares(docs, doc) > 0 && docs_length(docs, doc) <= INT_MAX)
            c->batch_tokens = (int)MAX(docs_length(docs, doc), (int64_t)c->batch_tokens);
    if (docs_check_trees(docs, c->context, c->context, err) || docs_split_trees(docs, c->batch_tokens, &told, err))
        die("%s: %s", option, err);
    if (told.trees && run->cluster->identity.rank == 0)
        say(stdout,
            "trees   %s of %s: more than the %d --batch-tokens of a step, split into %" PRId64
            "; %.1f %% of all tokens are computed again",
            text_many(told.trees, "tree", trees), option, c->batch_tokens, told.parts,
            100.0 * (double)told.again / (double)docs_tokens(docs));
}

// Settles element type and model dimensions, and opens the samplers, which need the context.
void run_settle_model(Run* run) {
    char err[ERR_BYTES];
    Config* c = &run->config;
    Model* m = &run->model;
    Data* d = &run->data;
    int vocab = d->tokenizer->vocab;
    // Weights from elsewhere belong to a vocabulary: text must not be read as bytes for want of a tokenizer. Token
    // shards need none.
    int is_text = !run->training || (d->docs && d->docs->max_token < vocab);
    if (run->books->start_from[0] && is_text && (d->guessed_bytes ? vocab != c->vocab : vocab > c->vocab))
        die("%s: expected a tokenizer of %d tokens for this model, found %s of %d; try --tokenizer FILE",
            run->books->start_from, c->vocab, d->guessed_bytes ? "none, and bytes have a vocabulary" : "one", vocab);
    c->several_ranks = run->cluster->identity.size > 1 || c->ranks > 1;
    if (config_complete(c, vocab, err)) die("%s", err);
    if (!strcmp(c->dtype, "auto") && c->merge) c->dtype = dtype_name(adapter_merge_dtype(run));
    if (!strcmp(c->dtype, "auto")) c->dtype = m->k->prefers_bf16 ? "bf16" : "fp32";
    m->dt = strcmp(c->dtype, "fp32") ? DT_BF16 : DT_F32;
    if (!run->books->start_from[0]) m->whole = adapter_shape(run, config_shape(c)), adapter_check(run);
    m->shape = m->whole;
    if (!run->training) return;
    settle_trees(run, d->docs, "--data");
    if (d->val_docs) settle_trees(run, d->val_docs, "--val");
    compare_documents(run);
    if (run->cluster->identity.rank == 0) warn_of_data(run);
    int has_tokenizer = !d->guessed_bytes || run->books->start_from[0] || config_was_given(c, "--vocab");
    check_token_ids(d->docs, "--data", m->shape.V, has_tokenizer);
    if (d->val_docs) check_token_ids(d->val_docs, "--val", m->shape.V, has_tokenizer);
    labels_open(run);
    int all = evaluates_data(c);
    double held_out = d->val_docs || all ? 0 : HELD_OUT;
    if (sampler_open(&d->train, d->docs, c->context, held_out, (uint64_t)c->seed, err)) die("--data: %s", err);
    if (!all && sampler_check_labels(d->train, &run->books->unlearnt, err)) die("--data: %s", err);
    d->val = d->train;
    if (all && sampler_open(&d->val, d->docs, c->context, 1, 0, err)) die("--data: %s", err);
    if (d->val_docs && sampler_open(&d->val, d->val_docs, c->context, 1, 0, err)) die("--val: %s", err);
}
