// rollouts.h - --rollouts: answers of the model to prompts, for training on them by their rewards.
#pragma once
#include "run/run.h"

// In place of training: K = --answers answers to each {"prompt": "..."} of --data, a line each, go to the file of
// --rollouts in the order of the data, with the other members of its line:
//
//   {"prompt": "...", "answers": [{"text": "...", "tokens": [...], "logprobs": [...], "ended": true}, ...]}
//
// tokens: those that are learnt of such an answer, where the model has ended it (ended) the token of that too, as the
// last one; else --tokens ran out, or --context. logprobs: of each, log softmax(logits)[token], natural, of the whole
// vocabulary and without --temperature. text: what tokens stand for, with U+FFFD for bytes that are no UTF-8.
//
// Data ranks divide the prompts, but for --zero 3. Rank 0 keeps all lines in memory and writes the file at the end,
// whole. A signal ends the drawing: then the file has the answers that were finished, and no line without one.
void run_rollouts(Run* run);

// Draw t of answer `answer` to prompt `prompt`, both from 0, is random_uniform(this, t).
uint64_t rollouts_seed(uint64_t seed, int64_t prompt, int answer);

// ---- what it needs, before memory is taken

enum { MOST_ANSWERS = 1024 };  // side by side: more win little, and each wants memory

typedef struct Prompts {
    int64_t n;              // of all files
    int shortest, longest;  // tokens, with the end-of-text that they begin with
} Prompts;

// Reads all lines. Ends the program where one is no prompt, or leaves no room for a token in --context.
Prompts rollouts_look(const Run* run);
int rollouts_turns(const Run* run);  // data ranks that divide the prompts; collective
// Sizes of the KV cache for cluster->answers side by side, and how many prompts there are.
void rollouts_size(Cluster* cluster, const Prompts* prompts, const Config* config);
