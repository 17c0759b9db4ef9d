// config_table.h - inside of the options: a row of the table, for config.c, which has it and parses, and config_help.c,
// which shows it to people. Everybody else includes config.h.
#pragma once
#include "plan/base.h"
#include "plan/config.h"

typedef enum OptionType { FLAG, INT, INT64, REAL, TEXT, CHOICE, PATHS, TOPIC, KEYS } OptionType;

// What --help NAME shows together. Keys of --experiment are shown below it.
typedef enum Group { DATA, MODEL, OPTIMIZER, RHYTHM, SAMPLING, DEVICE, RANKS, SLOW, INSIDE, N_GROUPS, KEY } Group;

// A run consists of options that are saved with its checkpoints; the others say what one start of the program does.
typedef enum Lifetime { RUN, START } Lifetime;

typedef struct Option {
    const char* name;
    OptionType type;
    Group group;
    Lifetime lifetime;
    size_t at;               // place in Config
    const char* standard;    // default as it could be typed; NULL: none
    double least, greatest;  // of numbers
    const char* choices;     // of CHOICE: "a|b|c"; of others: what the help calls the value
    const char* help;
    const char* brief;  // in one line, of the options that a person needs first; NULL: of the others
} Option;

extern const Option config_options[];
extern const int n_config_options;
extern const char* const config_groups[N_GROUPS][2];  // name, and in a few words what it is

static inline int is_number(const Option* o) { return o->type == INT || o->type == INT64 || o->type == REAL; }
static inline const char* key_of(const Option* o) { return strchr(o->name, ' ') + 1; }  // of the group KEY
