// read.h - options as the whole program has them, with help, with ranks and plans, and with what a checkpoint keeps.
#pragma once
#include <stdio.h>

#include "plan/options/config.h"

// Calls config_parse and settles what options say together. An unknown one is answered with the nearest name. 0, or -1.
int config_read(Config* config, int argc, char** argv, Err err);
// Calls config_settle and does the same for ranks and their plans. 0, or -1 with a message.
int config_complete(Config* config, int tokenizer_vocab, Err err);

// The tokens of a row on this rank. text (or NULL) is that of --capacity ranks="FIRST N; FIRST N": each N counts from
// rank FIRST on up to the next, and `otherwise` before the first. 0: what memory holds. -1 with words.
int capacity_of_rank(const char* text, int otherwise, int rank, Err err);

int config_was_given(const Config* config, const char* name);  // name with its dashes; a key as "--cp kind"
void config_free(Config* config);

// Prints what --help TOPIC shows: the options that a person needs first (""), all by group ("all"), or one group.
void config_help(FILE* out, const char* topic);

// Gives an option that was not on the command line the value it had in a saved run. Unknown names are ignored: a newer
// program may have saved them. Dimensions of the model may be greater than what can be typed. 0, or -1 with a message.
int config_restore(Config* config, const char* name, const char* value, Err err);
// Calls visit(name, value) for each option that a run consists of, in table order; value as it could be typed.
void config_visit(const Config* config, void (*visit)(void* context, const char* name, const char* value),
                  void* context);
