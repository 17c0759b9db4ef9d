// rollouts.h - --rollouts: answers of the model to prompts, for training on them by their rewards.
#pragma once
#include "run/run.h"

// Writes, in place of training, K = --answers answers to each {"prompt": "..."} of --data, a line each, to the file of
// --rollouts in the order of the data, with the other members of its line:
//
//   {"prompt": "...", "answers": [{"text": "...", "tokens": [...], "logprobs": [...], "ended": true}, ...]}
//
// tokens: the learnt tokens of such an answer. If the model has ended it (ended), the last one is the token that ends
// it; else --tokens ran out, or --context. logprobs: log softmax(logits)[token] of each, natural, over the whole
// vocabulary and without --temperature. text: what tokens stand for, with U+FFFD for bytes that are no UTF-8.
//
// Data ranks divide the prompts, but for --zero 3. Rank 0 keeps all lines in memory and writes the whole file at the
// end. A signal ends the drawing: then the file has the finished answers, and no line without one.
void run_rollouts(Run* run);

// Draw t of answer `answer` to prompt `prompt`, both from 0, is random_uniform(this, t).
uint64_t rollouts_seed(uint64_t seed, int64_t prompt, int answer);

// ---- what it needs, before memory is taken

enum { MOST_ANSWERS = 1024 };  // side by side: more win little, and each wants memory

typedef struct Prompts {
    int64_t n;              // prompts of all files
    int shortest, longest;  // tokens, with the end-of-text that they begin with
} Prompts;

// Reads all lines. A line that is no prompt, or leaves no room for a token in --context, ends the program.
Prompts rollouts_look(const Run* run);
int rollouts_turns(const Run* run);  // data ranks that divide the prompts; collective
// Sets the sizes of the KV cache for cluster->answers side by side, and the number of prompts.
void rollouts_size(Cluster* cluster, const Prompts* prompts, const Config* config);
