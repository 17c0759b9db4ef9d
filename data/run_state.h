// run_state.h - state.json: how far a run is, and its options.
//
// {"step": 100, "epoch": 0, ..., "corpora": [epoch, index, tokens, ...], "balanced": 2, "pruned": [0.5, 0], ...,
//  "options": [["--lr", "0.002"], ["--data", "a.txt"], ["--data", "b.txt"], ...]}
//
// Numbers and arrays have the names of the fields below. All of them must be there: a state of another version is
// refused, but for what older ones lack.
#pragma once
#include "data/sampler.h"
#include "plan/slow/balance.h"
#include "plan/options/config.h"

enum {
    MOST_BALANCED = 1024,    // ranks of the groups of all stages
    MOST_MEASURES = 1 << 14  // numbers
};

typedef struct RunState {
    int64_t step;              // steps done
    int ranks;                 // ranks that wrote the checkpoint
    SamplerPosition position;  // where the next step's documents begin
    uint64_t loss_hash;        // of all losses so far, bit for bit
    uint64_t corpus;           // docs_fingerprint of the training data
    uint64_t content;          // docs_content of it
    uint64_t val_content;      // of the documents of --val; 0: none
    double val_loss;           // of the last evaluation, NaN before it
    double loss;               // of the last step; NaN before it
    // Ranks that decisions about slow ranks are in force for, of a group of each stage; 0: none. And for each rank:
    int balanced;
    double pruned[MOST_BALANCED], heads[MOST_BALANCED], tiles[MOST_BALANCED], v[MOST_BALANCED];  // see BalanceDecision
    double head_work[MOST_BALANCED];                                                             // of its stage
    int measured;  // numbers that balancing goes on with (run/slow/saved.c); older files have none
    double measures[MOST_MEASURES];
    int fp8;  // numbers of FP8's scales, 0: none; the amax of each (run/model/fp8.h)
    double amaxes[2 * MOST_BALANCED];
    uint64_t base;  // of adapters: a hash of weights that do not learn; 0: there are none
} RunState;

// The text of state.json, malloc'ed; NULL without memory.
char* run_state_text(const RunState* state, const Config* config);
// Reads it back; options that were not given on the command line take their saved values. config keeps the
// strings until config_free. 0, or -1 with a message.
int run_state_parse(RunState* state, Config* config, const char* text, size_t n, Err err);
// Checks that the text of this state gives it and all options of a run back. 0, or -1 with a message.
int run_state_check(const RunState* state, const Config* config, Err err);
