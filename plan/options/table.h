// table.h - the rows of the option table, for what is derived from them: the parser, help, what a checkpoint keeps.
#pragma once
#include "plan/base/fields.h"
#include "plan/options/config.h"

// What a checkpoint keeps, and what says only what one start of the program does. Its dimensions of a model may be
// greater than what can be typed: they were found to go together when the run began, and config.json has them too.
enum { START = 0, RUN = 1, SHAPE = 3, FIRST = 4 };  // FIRST: what a person needs

// An option, a key of the option above it (--balance semi,lambda=2 sets "--balance lambda"), or the head of a group.
typedef struct Option {
    Field value;  // choices: of other types than CHOICE what the help calls the value
    int is;
    const char* standard;  // default as it could be typed; NULL: none
    const char* help;
} Option;

extern const Option config_options[];  // in the order of help; a row without a name ends them

const Option* option_find(const char* name);  // NULL: none is called so
static inline int is_option_name(const char* name) { return !strncmp(name, "--", 2); }
// A key's name has that of its option before it. NULL: it is no key.
static inline const char* option_key(const Option* o) { return strchr(o->value.name, ' '); }
// The value of a row, from what was typed or saved. 0, or -1 with a message.
int option_set(Config* config, const Field* value, const char* text, Err err);
