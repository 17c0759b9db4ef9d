// published planners.h - other systems' planners, rebuilt from their papers and released code, so that all can be run
// on the same batches. They plan for comparison, not for training: they may allocate, and may take long.
//
// Each comes to a Plan (micro-batches on contiguous ranks) and a rule by which the simulator plays it: with a barrier
// or without, with its published fixed costs or none.
#pragma once
#include "plan/step.h"

typedef struct Planner {
    const char* name;   // "static", "adaptive", "flexsp", "hydraulis", "zeppelin", "megatron", "flex"
    const char* words;  // a line about it: what it does, whose it is
    // What is settled before the first step: a system may look at lengths (n_sample) of the data set. NULL: out of
    // memory or impossible, with a message. The setting outlives the published planner.
    void* (*open)(const Setting* setting, const int* sample, int n_sample, char* err, size_t errlen);
    // The plan, in the arena, and how it is to be played. 0, or -1 with a message.
    int (*plan)(void* planner, Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n, Arena* arena,
                char* err, size_t errlen);
    void (*close)(void* planner);
} Planner;

extern const Planner* const planners[];  // n_planners of them; pointers, because rows of other files are no C constants
extern const int n_planners;

// What a round of any system takes besides its work, on top of Cost.micro-batch, which is part of it: what Cost.round
// is more. Systems without a barrier pay it for every micro-batch.
double planner_micro_batch_ms(const Cost* cost);
// The setting with micro-batches that cost so much more, in groups (ranks + 1). Its link tables are the original's.
Setting setting_with_micro_batch(const Setting* setting, double micro_batch_ms, GroupCost* groups);

// The rows of the table, each from its own file.
extern const Planner planner_static, planner_adaptive, planner_flex;  // published planners.c
extern const Planner planner_flexsp;                                  // flexsp.c
extern const Planner planner_hydraulis;                               // hydraulis.c
extern const Planner planner_zeppelin;                                // zeppelin.c
extern const Planner planner_megatron;                                // megatron.c
