// prompts.h - the lines that --rollouts reads and writes: a prompt with what was drawn for it.
#pragma once
#include <stdio.h>

#include "data/json.h"
#include "run/run.h"

typedef struct Drawn {  // an answer
    int n, ended;       // n: tokens; ended: the last one says so
    int* tokens;        // (most of such an answer)
    float* logprobs;    // (the same), after tokens in one block of memory
} Drawn;

typedef struct Prompt {
    int64_t number;         // its number among all, from 0
    char* line;             // its line of the data
    Json json;              // that line, parsed
    int *tokens, n;         // tokens with the end-of-text before them
    int most;               // tokens of an answer
    int place;              // its first row of the cache; -1: it is not there
    int started, finished;  // answers
    Drawn* answers;         // (--answers)
} Prompt;

// Lines reads the lines of --data, one file after another.
typedef struct Lines {
    const PathList* paths;
    int path;        // the one at work
    FILE* file;      // NULL: none is open
    int64_t number;  // number of the line, from 1
    char* text;
    size_t room;
} Lines;

typedef struct Made {
    size_t bytes;  // bytes of finished lines
    int64_t prompts, answers, tokens, ended;
} Made;

// Returns zeroed memory, or ends the program.
void* rollouts_take(size_t n, size_t bytes);
// Returns the next line that is not blank, in lines->text; NULL after the last. An unreadable file ends the program.
const char* lines_next(Lines* lines);
void lines_close(Lines* lines);
// Returns the prompt of the last line read, number `number` of all, to be freed. A line without one ends the program.
Prompt* prompt_read(const Run* run, const Lines* lines, int64_t number);
void prompt_free(Prompt* p, int answers);
// Returns "NUMBER LINE": the members of the prompt's line as they stand, and its finished answers, which *made counts.
void prompt_put(FILE* out, const Prompt* p, const Tokenizer* tokenizer, Made* made);
