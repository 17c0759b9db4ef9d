// config.h - every option of the program, once. One table (config.c) parses, checks ranges, prints --help and the echo
// at the start of a run, and says what a checkpoint keeps (read.h), so that these cannot disagree. presets.c fills in
// what options leave open. data/README.md says how to add an option.
#pragma once
#include "plan/base/fields.h"
#include "plan/model/shape.h"

enum { MAX_PATHS = 256, MAX_OPTIONS = 128 };

typedef struct PathList {
    const char* paths[MAX_PATHS];  // in argv or in memory that lives as long as the process
    int n;
} PathList;

// Zero in a model dimension means "by preset"; config_complete replaces such zeros.
typedef struct Config {
    // data
    PathList data, val, report, machines;
    const char *tokenizer, *tokenize, *separator, *text_key, *shared_prefix, *out;
    // model
    const char *preset, *arch, *tie;
    int layers, width, heads, kv_heads, head_size, hidden, context, vocab;
    double rope_theta;
    // training
    int64_t steps;
    int batch_tokens;
    double lr;
    const char *schedule, *optimizer;
    int warmup, lora_rank;  // lora_rank 0: all weights learn
    double min_lr, weight_decay, beta1, beta2, momentum, clip, lora_alpha;
    const char *lora_on, *lora_dropout, *lora_base, *merge;
    const char* loss;
    double beta, clip_low, clip_high, kl;
    int64_t seed;
    // rhythm
    int eval_every, eval_tokens, sample_every, save_every, keep;  // save_every < 0: seconds
    const char* close_copy;                                       // NULL: none
    int close_every, resume, new_data;
    const char *resume_from, *init;  // resume_from, eval_choices: NULL if the option stands alone
    // sampling
    const char *sample, *eval_choices, *rollouts, *score, *system;
    int chat, eval, tokens, top_k, answers;
    double temperature;
    // device
    const char *device, *cpu_isa, *dtype, *rounding;
    int threads;
    const char* recompute;
    // ranks and plans
    int ranks, tp, pp, zero, capacity, check_layout;  // ranks: this machine's without a launcher, or --what-if's
    const char* rank_capacity;                        // unlike ranks: capacity_of_rank (read.h); NULL: all are alike
    const char *layout, *strategies;
    double memory;  // bytes; 0: what is free
    const char *plan, *remap, *route;
    int cp_size;
    const char *kind, *attention, *machine;  // machine: the first of machines
    int node_size;
    const char *grad_dtype, *overlap;
    double timeout, mtbf, restart_seconds;
    const char *balance, *straggle;
    double semi_lambda, give_up_below;
    int refresh, give_up_refreshes;
    // looking inside
    const char *explain_what, *what_if, *price;  // explain, check_layout: --explain, --explain layout
    int probe, explain, overfit, verbose, version;
    const char* dump_grads;
    const char* help;  // NULL: not asked for; else the topic of config_help
    // not options
    int several_ranks;                 // 1: ranks may share a document, so it need not fit on one
    unsigned char given[MAX_OPTIONS];  // 1: row i of the table was on the command line
    const char* unknown;               // the word there that is no option and ended config_parse; NULL: none
    const char* twice;      // the option of paths that was given twice there, the last time counts; NULL: none
    const char* overruled;  // the saved --layout or --strategies that a given option replaces; NULL: neither
    void* strings;          // values from files: a list of blocks, freed by config_free
} Config;

// Sets the defaults, then reads the command line. 0, or -1 with a message.
int config_parse(Config* config, int argc, char** argv, Err err);
// Makes room for n bytes that live as long as the config, for values from files. NULL without memory.
char* config_string(Config* config, size_t n);
// The first given option that `known` lacks; `known` lists groups and options as ", NAME, NAME,". NULL: none.
const char* config_other(const Config* config, const char* known);
// Returns which of its choices an option has, from 0; name as in the table, "--cp kind".
int config_choice(const Config* config, const char* name);

// Fills in what options leave open (the model's dimensions from the preset, the vocabulary from the tokenizer) and
// checks that all go together. 0, or -1 with a message.
int config_settle(Config* config, int tokenizer_vocab, Err err);

// The model that the options describe, once they are complete; the base of adapters.
Shape config_shape(const Config* config);

// ---- the rows of the table, for the parser, help, and what a checkpoint keeps

// Option.is: a checkpoint keeps RUN and SHAPE; START only says what one start of the program does. A saved SHAPE, a
// dimension of the model, may exceed what can be typed: it was checked when the run began, and config.json has it too.
enum { START = 0, RUN = 1, SHAPE = 3, FIRST = 4 };  // FIRST: what a person needs first

// An option, a key of the option above it (--balance semi,lambda=2 sets "--balance lambda"), or the head of a group.
typedef struct Option {
    Field value;  // choices: for types other than CHOICE the help's name for the value
    int is;
    const char* standard;  // the default as it could be typed; NULL: none
    const char* help;
} Option;

extern const Option config_options[];  // in the order of help; a row without a name ends the list

const Option* option_find(const char* name);  // NULL: no such option
static inline int is_option_name(const char* name) { return !strncmp(name, "--", 2); }
// Returns the key's own name with the space before it: a key's full name begins with its option's. NULL: it is no key.
static inline const char* option_key(const Option* o) { return strchr(o->value.name, ' '); }
// Sets the value of a row from what was typed or saved. 0, or -1 with a message.
int option_set(Config* config, const Field* value, const char* text, Err err);
