// prompts.h - the lines that --rollouts reads and writes: a prompt with what was drawn for it.
#pragma once
#include <stdio.h>

#include "data/json.h"
#include "run/run.h"

typedef struct Drawn {  // an answer
    int n, ended;       // tokens, whether the last one says so
    int* tokens;        // (most of such an answer)
    float* logprobs;    // (the same), behind them
} Drawn;

typedef struct Prompt {
    int64_t number;         // among all, from 0
    char* line;             // of the data
    Json json;              // of it
    int *tokens, n;         // with the end-of-text before them
    int most;               // tokens of an answer
    int place;              // its first row of the cache; -1: it is not there
    int started, finished;  // answers
    Drawn* answers;         // (--answers)
} Prompt;

// The lines of --data, one file after another.
typedef struct Lines {
    const PathList* paths;
    int path;        // at work
    FILE* file;      // NULL: none is open
    int64_t number;  // of the line, from 1
    char* text;
    size_t room;
} Lines;

typedef struct Made {
    size_t bytes;  // of finished lines
    int64_t prompts, answers, tokens, ended;
} Made;

// Zeroed memory, or the end of the program.
void* rollouts_take(size_t n, size_t bytes);
// The next line that is not blank, in lines->text; NULL behind the last. Ends the program where a file cannot be read.
const char* lines_next(Lines* lines);
void lines_close(Lines* lines);
// The prompt of the line that was read last, number `number` of all, to be freed. Ends the program where it is none.
Prompt* prompt_read(const Run* run, const Lines* lines, int64_t number);
void prompt_free(Prompt* p, int answers);
// "NUMBER LINE": the members of the prompt's line as they stand there, and the answers that are finished, which *made
// counts.
void prompt_put(FILE* out, const Prompt* p, const Tokenizer* tokenizer, Made* made);
