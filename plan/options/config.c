// config.c - the option table, and the command line that it reads; see config.h.
#include "plan/options/config.h"

#include <stdio.h>
#include <stdlib.h>

#define AT(field) offsetof(Config, field)
#define HEAD(name, words) \
    { {name, GROUP, 0, 0, 0, NULL}, START, NULL, words }
#define WORD(name, type, field, shown) \
    { name, type, AT(field), 0, 0, shown }
#define NUMBER(name, type, field, least, most) \
    { name, type, AT(field), least, most, NULL }

#define PRESETS                                                                                                     \
    "tiny|llama-tiny|gpt2-124m|gpt2-350m|gpt2-774m|gpt2-1558m|smollm2-135m|llama-3.2-1b|llama-3.1-8b|qwen2.5-0.5b|" \
    "qwen3-0.6b"
#define PLANS "flex|adaptive|static|flexsp|hydraulis|zeppelin|megatron|fixed"

// clang-format off
const Option config_options[] = {
    HEAD("data", "text, tokenizer, run directory, resuming"),
    {WORD("--data", PATHS, data, "PATH..."), RUN | FIRST, NULL,
        "text: directories, files, *.jsonl, token shards *.bin, NAME=WEIGHT:PATH; default: C headers"},
    {WORD("--val", PATHS, val, "PATH..."), RUN | FIRST, NULL, "validation text; default: a twentieth of --data"},
    {WORD("--document-separator", TEXT, separator, "TEXT"), RUN, "<|endoftext|>", "in text files; none: stay whole"},
    {WORD("--text-key", TEXT, text_key, "NAME"), RUN, "text", "the member of a line of *.jsonl that is its document"},
    {WORD("--shared-prefix", CHOICE, shared_prefix, "none|auto"), RUN, "none", "auto: what prompts share, once"},
    {WORD("--tokenizer", TEXT, tokenizer, "FILE"), RUN | FIRST, NULL,
        "tokenizer.json or llm.c's file; default: that of the checkpoint, or bytes"},
    {WORD("--tokenize", TEXT, tokenize, "DIR"), START, NULL, "do not train: encode --data into DIR, as token shards"},
    {WORD("--out", TEXT, out, "DIR"), START | FIRST, NULL, "log and checkpoints; default: runs/<next free number>"},
    {WORD("--resume", MAYBE, resume_from, "[STEP]"), START | FIRST, NULL,
        "continue the run in --out, or the newest, with its options; from step-000120, or the newest checkpoint"},
    {WORD("--new-data", FLAG, new_data, NULL), START, NULL, "of --resume: other documents, from the first of them on"},
    {WORD("--init", TEXT, init, "DIR"), START | FIRST, NULL, "start from weights: a checkpoint, or Hugging Face's"},

    HEAD("model", "layers, width, heads, context, vocabulary"),
    {WORD("--preset", CHOICE, preset, PRESETS), RUN | FIRST, "tiny", "model whose dimensions are the defaults below"},
    {WORD("--arch", CHOICE, arch, "preset|gpt2|llama|qwen2|qwen3"), RUN, "preset",
        "gpt2: LayerNorm, learned positions, GELU; others: RMSNorm, rotary positions, SwiGLU"},
    {NUMBER("--arch kv-heads", INT, kv_heads, 0, 1024), SHAPE, "0", "heads of keys and values; 0: as many as heads"},
    {NUMBER("--arch head-size", INT, head_size, 0, 256), SHAPE, "0", "channels of a head; 0: width / heads"},
    {NUMBER("--arch hidden", INT, hidden, 0, 1 << 20), SHAPE, "0", "units of the MLP; 0: 4 width, SwiGLU 8/3 width"},
    {NUMBER("--arch theta", REAL, rope_theta, 0, 1e9), SHAPE, "0", "base of rotary positions; 0: 10000"},
    {WORD("--arch tie", CHOICE, tie, "preset|yes|no"), RUN, "preset", "is the token embedding the classifier, too"},
    {NUMBER("--layers", INT, layers, 0, 1000), SHAPE, "0", "transformer blocks; 0: by preset"},
    {NUMBER("--width", INT, width, 0, 65536), SHAPE, "0", "channels; 0: by preset"},
    {NUMBER("--heads", INT, heads, 0, 1024), SHAPE, "0", "attention heads; 0: by preset"},
    {NUMBER("--context", INT, context, 0, 1 << 20), SHAPE | FIRST, "0", "longer documents are cut; 0: by preset"},
    {NUMBER("--vocab", INT, vocab, 0, 1 << 20), SHAPE, "0", "vocabulary; 0: by preset, or the tokenizer's"},

    HEAD("optimizer", "steps, learning rate, AdamW, seed"),
    {NUMBER("--steps", INT64, steps, 0, 1e12), RUN | FIRST, "2000", "optimizer steps of the whole run"},
    {NUMBER("--batch-tokens", INT, batch_tokens, 0, 1 << 28), RUN | FIRST, "0", "most of a step; 0: by model size"},
    {NUMBER("--lr", REAL, lr, 0, 10), RUN | FIRST, "0", "peak learning rate; 0: by model size"},
    {WORD("--schedule", CHOICE, schedule, "cosine|linear|constant|wsd"), RUN, "cosine", "wsd: falls in the last fifth"},
    {NUMBER("--schedule min-lr", REAL, min_lr, 0, 1), RUN, "0.1", "at the end, as a fraction of the peak"},
    {NUMBER("--warmup", INT, warmup, -1, 1e9), RUN, "-1", "steps in which the learning rate rises; -1: by model size"},
    {WORD("--optimizer", CHOICE, optimizer, "auto|adamw|muon"), RUN, "auto",
        "muon: orthogonal steps of the layers' matrices; auto: so in the default model, else adamw"},
    {NUMBER("--optimizer momentum", REAL, momentum, 0, 0.9999), RUN, "0.95", "of muon"},
    {{"--adamw", KEYS, 0, 0, 0, "KEY=X,..."}, START, NULL, "the optimizer"},
    {NUMBER("--adamw beta1", REAL, beta1, 0, 0.9999), RUN, "0.9", "decay of the first moment"},
    {NUMBER("--adamw beta2", REAL, beta2, 0, 0.99999), RUN, "0.95", "decay of the second moment"},
    {NUMBER("--adamw decay", REAL, weight_decay, 0, 10), RUN, "0.1", "of weights: matrices, not biases and norms"},
    {WORD("--loss", CHOICE, loss, "nll|dpo|grpo"), RUN, "nll", "of labels; dpo: of pairs; grpo: of advantages"},
    {NUMBER("--beta", REAL, beta, 0, 1e6), RUN, "0.1", "of --loss dpo: how much a margin counts"},
    {NUMBER("--clip-low", REAL, clip_low, 0, 1), RUN, "0.2", "of --loss grpo: ratios count from 1 minus this on"},
    {NUMBER("--clip-high", REAL, clip_high, 0, 1e6), RUN, "0.2", "up to 1 plus this"},
    {NUMBER("--kl", REAL, kl, 0, 1e6), RUN, "0", "of --loss grpo: how dear it is to leave the reference"},
    {NUMBER("--clip", REAL, clip, 0, 1e9), RUN, "1", "largest norm of all gradients together; 0: no limit"},
    {{"--lora", KEYS, 0, 0, 0, "rank=R,..."}, START | FIRST, NULL, "train small matrices beside the weights of --init"},
    {NUMBER("--lora rank", INT, lora_rank, 0, 1024), RUN, "0", "rows of an A, columns of a B; 0: all weights learn"},
    {NUMBER("--lora alpha", REAL, lora_alpha, 0, 1e6), RUN, "0", "they count alpha / rank; 0: twice the rank"},
    {WORD("--lora on", CHOICE, lora_on, "all|attention|mlp"), RUN, "all", "linears that have them"},
    {WORD("--lora dropout", CHOICE, lora_dropout, "none"), START, "none", "there is none"},
    {WORD("--lora base", TEXT, lora_base, "DIR"), START, NULL, "where the base of an adapter lies now"},
    {NUMBER("--seed", INT64, seed, 0, 9e15), RUN, "1", "seed of weights, order of documents and samples"},

    HEAD("rhythm", "how often to evaluate, to sample and to save"),
    {NUMBER("--eval-every", INT, eval_every, 0, 1e9), RUN, "500", "steps between evaluations; 0: never"},
    {NUMBER("--eval-every tokens", INT, eval_tokens, 0, 1 << 30), RUN, "0", "most tokens of one; 0: by model size"},
    {NUMBER("--sample-every", INT, sample_every, 0, 1e9), RUN, "1000", "steps between samples; 0: never"},
    {NUMBER("--save-every", RHYTHM, save_every, 0, 1e9), RUN, "1000", "steps, or seconds: 90s; and the last; 0: never"},
    {NUMBER("--keep", INT, keep, 0, 1e9), RUN, "2", "how many of the newest checkpoints to keep; 0: all"},
    {WORD("--close-copy", TEXT, close_copy, "DIR"), START, NULL, "state on nodes, too: /dev/shm; each part on two"},
    {NUMBER("--close-copy every", INT, close_every, 1, 1e9), START, "10", "steps between these copies"},

    HEAD("sampling", "text from a trained model, and how good it is"),
    {WORD("--sample", TEXT, sample, "\"PROMPT\""), START | FIRST, NULL,
        "do not train: continue this text with the newest model, or that of --init"},
    {WORD("--chat", FLAG, chat, NULL), START | FIRST, NULL, "do not train: talk with that model"},
    {WORD("--system", TEXT, system, "\"TEXT\""), START, NULL, "of --chat: what the model is told first"},
    {NUMBER("--tokens", INT, tokens, 1, 1 << 20), RUN, "256", "length of a sample in tokens"},
    {NUMBER("--temperature", REAL, temperature, 0, 100), RUN, "0.8", "divides logits; 0: the most likely token"},
    {NUMBER("--top-k", INT, top_k, 0, 1 << 20), RUN, "0", "choose among the k most likely tokens; 0: among all"},
    {WORD("--rollouts", TEXT, rollouts, "FILE"), START, NULL, "do not train: answers to prompts of --data, as JSONL"},
    {NUMBER("--answers", INT, answers, 1, 1 << 16), START, "8", "of --rollouts: to each prompt"},
    {WORD("--eval", MAYBE, eval_choices, "[CHOICES.jsonl]"), START | FIRST, NULL,
        "do not train: loss and bits per byte of a model on --data; or which of several endings is likely"},
    {WORD("--merge", TEXT, merge, "DIR"), START, NULL, "do not train: an adapter and its base as one model in DIR"},
    {WORD("--score", TEXT, score, "FILE"), START, NULL, "do not train: log-probabilities of the labels of --data"},

    HEAD("device", "processor or GPU, kernels, precision, memory"),
    {WORD("--device", CHOICE, device, "auto|cpu|cuda|emu|virtual|virtual-cpu"), START | FIRST, "auto",
        "where to compute; virtual: nowhere, ranks only take the time that --machine says"},
    {WORD("--device attention", CHOICE, attention, "auto|own|cudnn|wgmma"), RUN, "auto", "kernels on a GPU"},
    {WORD("--cpu-isa", CHOICE, cpu_isa, "auto|reference|generic|avx2|avx512|avx512bf16|amx"), START, "auto",
        "CPU kernels; auto: the best that this processor has"},
    {NUMBER("--threads", INT, threads, 0, 4096), START, "0", "CPU threads; 0: one a core; default: OMP_NUM_THREADS"},
    {WORD("--dtype", CHOICE, dtype, "auto|bf16|fp32|fp8"), RUN, "auto", "fp8: linears in E4M3; auto: bf16 or fp32"},
    {WORD("--dtype rounding", CHOICE, rounding, "nearest|stochastic"), RUN, "nearest", "of fp32 weights to bf16 ones"},
    {WORD("--dtype grads", CHOICE, grad_dtype, "fp32|bf16"), RUN, "fp32", "how gradients travel between ranks"},
    {WORD("--recompute", CHOICE, recompute, "none|activation|block"), RUN, "none", "backward again, for memory"},
    {NUMBER("--capacity", INT, capacity, 0, 1 << 26), RUN, "0",
        "most tokens of a row on a rank; longer documents are shared; 0: what half of the free memory holds"},
    {WORD("--capacity ranks", TEXT, rank_capacity, "\"FIRST N\""), RUN, NULL, "N from rank FIRST on, with ;"},
    {{"--memory", BYTES, AT(memory), 0, 1e18, "SIZE"}, RUN, "0", "of a rank, as 64M or 24G; 0: what is free"},

    HEAD("ranks", "who shares which documents, ZeRO, tensor parallelism"),
    {NUMBER("--ranks", INT, ranks, 1, 1 << 16), START, "1", "so many without mpirun, on CPUs or virtual; of --what-if"},
    {NUMBER("--zero", INT, zero, 1, 3), RUN, "1", "1: ranks divide optimizer state; 2: gradients too; 3: weights too"},
    {NUMBER("--tp", INT, tp, 1, 64), RUN, "1", "ranks of a group that divides heads and hidden units"},
    {NUMBER("--pp", INT, pp, 1, 64), RUN, "1", "stages of a pipeline, which divide the layers (1F1B)"},
    {WORD("--layout", TEXT, layout, "FILE|auto|hydraulis"), RUN, NULL,
        "instead of --tp, --pp: a file (plan/README.md), or its lines with ;; the fastest in --memory; --strategies"},
    {WORD("--strategies", TEXT, strategies, "LIST|FILE|none"), RUN, NULL,
        "ways to divide all ranks, \"tp4+2xtp2; 8xtp1\": every step takes the one that suits its documents"},
    {WORD("--plan", CHOICE, plan, PLANS), RUN, "flex", "who shares which documents; static: groups of one size"},
    {WORD("--plan remap", CHOICE, remap, "no|yes|auto"), RUN, "no", "even tokens inside a node"},
    {WORD("--plan route", CHOICE, route, "no|yes|auto"), RUN, "no", "rings by way of all NICs"},
    {NUMBER("--plan refresh", INT, refresh, 0, 1e9), RUN, "20", "steps between updates of costs and speeds; 0: never"},
    {NUMBER("--plan node-size", INT, node_size, 0, 1 << 20), START, "0", "ranks of a node; 0: detected"},
    {NUMBER("--cp", INT, cp_size, 0, 1 << 20), RUN, "0", "ranks of every document (--plan static); 0: planned"},
    {WORD("--cp kind", CHOICE, kind, "auto|ulysses|ring"), RUN, "auto", "by heads, or keys and values travel"},
    {WORD("--machine", PATHS, machines, "FILE|NAME"), RUN, NULL,
        "plan with these constants (flexsp-7b, a100-7b, h200-8b, ...), and learn nothing; default: those measured"},
    {WORD("--overlap", CHOICE, overlap, "yes|no"), START, "yes", "communicate while computing goes on"},
    {NUMBER("--timeout", REAL, timeout, 1, 1e6), START, "600", "seconds without a sign of a rank that end a run"},

    HEAD("slow", "what to do about ranks that are slower than others"),
    {WORD("--balance", CHOICE, balance, "off|documents|resize|migrate|semi"), RUN, "off",
        "documents: plans give slow ranks less; resize: they also leave work out; migrate: others do it; semi: both"},
    {NUMBER("--balance lambda", REAL, semi_lambda, 0, 1e9), RUN, "4", "of semi: least T (1 + lambda left out)"},
    {NUMBER("--give-up-below", REAL, give_up_below, 0, 1), START, "0", "leave a rank below this share of the pace"},
    {NUMBER("--give-up-below refreshes", INT, give_up_refreshes, 1, 1000), START, "3", "at so many in a row"},
    {WORD("--straggle", TEXT, straggle, "SPEC"), START, NULL,
        "slow ranks for a test: \"rank=1,x=4,from=20,to=80\"; with \",whole\" not only matmuls; several with ;"},

    HEAD("inside", "looking inside: costs, plans, gradients, --verbose"),
    {WORD("--probe", FLAG, probe, NULL), START, NULL, "do not train: measure ranks for plans; in ~/.cache/ragged"},
    {WORD("--explain", MAYBE, explain_what, "[layout]"), START, NULL,
        "do not train: the next plan beside others, also as plan.html; layout: what stages hold, and memory"},
    {WORD("--what-if", MAYBE, what_if, "[RUN]"), START, NULL, "the command of build/simulate that answers"},
    {WORD("--price", TEXT, price, "X,..."), START, NULL, "of --what-if: of a rank-hour, on each machine"},
    {NUMBER("--mtbf", REAL, mtbf, 0, 1e9), START, "0", "of --what-if: hours between deaths of a rank; 0: none dies"},
    {NUMBER("--restart-seconds", REAL, restart_seconds, 0, 1e6), START, "60", "of --what-if: from a death to training"},
    {WORD("--overfit", FLAG, overfit, NULL), RUN, NULL, "train on the first batch only: its loss must go to zero"},
    {WORD("--dump-grads", TEXT, dump_grads, "FILE"), START, NULL,
        "write gradients and logits of the next step as safetensors, print its loss, and stop"},
    {WORD("--report", PATHS, report, "RUN..."), START | FIRST, NULL, "report.html of several runs side by side"},
    {WORD("--verbose", FLAG, verbose, NULL), START | FIRST, NULL, "say all: options, memory, kernels, communication"},
    {WORD("--version", FLAG, version, NULL), START, NULL, "print the version and what this build has, and stop"},
    {WORD("--help", MAYBE, help, "[all|GROUP]"), START | FIRST, NULL, "this list; all options; or one group of them"},
    {{"", GROUP, 0, 0, 0, NULL}, START, NULL, NULL},
};
// clang-format on
_Static_assert(COUNT(config_options) <= MAX_OPTIONS, "Config.given has a flag for every row");

const Option* option_find(const char* name) {
    for (const Option* o = config_options; *o->value.name; o++)
        if (o->value.type != GROUP && !strcmp(o->value.name, name)) return o;
    return NULL;
}

// ---- values

int option_set(Config* c, const Field* field, const char* text, Err err) {
    char wanted[WANTED];
    PathList* list = (PathList*)((char*)c + field->at);
    if (field->type != PATHS) {
        if (!field_set(field, c, (Word){text, strlen(text)}, wanted)) return 0;
        return fail(err, "%s expects %s, found \"%s\"", field->name, wanted, text);
    }
    if (list->n == MAX_PATHS)
        return fail(err, "%s takes at most %d paths; try a pattern in quotes", field->name, MAX_PATHS);
    list->paths[list->n++] = text;
    return 0;
}

static int give(Config* c, const Option* o, const char* text, Err err) {
    c->given[o - config_options] = 1;
    return option_set(c, &o->value, text, err);
}

// Sets "VALUE,KEY=VALUE,...", each by itself; VALUE may be missing.
static int give_list(Config* c, const Option* o, const char* text, Err err) {
    char name[128], keys[128] = "", *copy = config_string(c, strlen(text) + 1);
    size_t n = 0;
    if (!copy) return fail(err, "out of memory for options");
    for (const Option* key = o + 1; option_key(key); key++)
        text_append(keys, sizeof keys, &n, "%s%s", n ? "|" : "", option_key(key) + 1);
    for (char *word = strcpy(copy, text), *rest; word; word = rest) {
        if ((rest = strchr(word, ','))) *rest++ = 0;
        char* equals = strchr(word, '=');
        snprintf(name, sizeof name, "%s %.*s", o->value.name, equals ? (int)MIN(equals - word, 60) : 0, word);
        const Option* key = equals ? option_find(name) : o;
        if (!key || key->value.type == KEYS)
            return fail(err, "%s expects KEY=VALUE with KEY %s, found \"%s\"", o->value.name, keys, word);
        if (give(c, key, equals ? equals + 1 : word, err)) return -1;
    }
    return 0;
}

// ---- the command line

// Reads the option at argv[*i] with its value, and moves *i past both. A value may begin with a dash (a prompt, a
// path), but an option's name in its place means a forgotten value.
static int read_option(Config* c, char** argv, int argc, int* i, Err err) {
    const char *word = argv[(*i)++], *equals = strchr(word, '='), *next = *i < argc ? argv[*i] : NULL;
    char name[128];
    if (!strcmp(word, "-h")) word = "--help";
    snprintf(name, sizeof name, "%.*s", equals ? (int)MIN(equals - word, 127) : 127, word);
    const Option* o = option_find(name);
    if (!is_option_name(name))
        return fail(err, "expected an option, found \"%s\"; a value follows its option: --data PATH", word);
    if (!o || option_key(o)) {
        c->unknown = word;
        return fail(err, "unknown option %s; try --help all", name);
    }
    ValueType type = o->value.type;
    if (type == FLAG && equals) return fail(err, "%s takes no value, found \"%s\"", name, equals + 1);
    if (type == FLAG) return give(c, o, "1", err);
    if (type == MAYBE && !equals && (!next || is_option_name(next))) return give(c, o, "", err);
    if (!equals && (!next || option_find(next)))
        return fail(err, "%s expects a value, found %s", name, next ? next : "the end of the line");
    if (!equals) ++*i;
    if (type == PATHS && c->given[o - config_options]) c->twice = o->value.name;
    if (type == PATHS) ((PathList*)((char*)c + o->value.at))->n = 0;
    const char* value = equals ? equals + 1 : next;
    if (option_key(o + 1) ? give_list(c, o, value, err) : give(c, o, value, err)) return -1;
    while (type == PATHS && *i < argc && !is_option_name(argv[*i]))
        if (give(c, o, argv[(*i)++], err)) return -1;
    return 0;
}

int config_parse(Config* c, int argc, char** argv, Err err) {
    memset(c, 0, sizeof *c);
    for (const Option* o = config_options; *o->value.name; o++)
        if (o->standard && option_set(c, &o->value, o->standard, err)) return -1;
    for (int i = 1; i < argc;)
        if (read_option(c, argv, argc, &i, err)) return -1;
    return 0;
}

char* config_string(Config* c, size_t n) {
    void** block = (void**)malloc(sizeof(void*) + n);
    if (!block) return NULL;
    *block = c->strings, c->strings = block;
    return (char*)(block + 1);
}

int config_choice(const Config* c, const char* name) {
    const Option* o = option_find(name);
    const char* value = *(const char* const*)((const char*)c + o->value.at);
    return word_choice((Word){value, strlen(value)}, o->value.choices);
}

const char* config_other(const Config* config, const char* known) {
    int in_group = 0;
    for (const Option* o = config_options; *o->value.name; o++) {
        char item[64];
        snprintf(item, sizeof item, ", %s,", o->value.name);
        int is_known = strstr(known, item) != NULL;
        if (o->value.type == GROUP) in_group = is_known;
        else if (config->given[o - config_options] && !in_group && !is_known) return o->value.name;
    }
    return NULL;
}
