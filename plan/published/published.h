// published.h - other systems' planners, rebuilt from their papers and released code, so that all can be run on the
// same batches. They plan for comparison, not for training: they may take long.
//
// Each comes to a Plan (micro-batches on contiguous ranks) and a rule by which the simulator plays it: with a barrier
// or without, with its published fixed costs or none. What FlexSP, Zeppelin and Megatron-LM call a micro-batch, the
// work of all ranks between two barriers, is a round here; Hydraulis' micro-batch is a micro-batch.
#pragma once
#include "plan/step.h"

typedef struct Planner {
    const char* name;   // "static", "adaptive", "flexsp", "hydraulis", "zeppelin", "megatron", "flex"
    const char* words;  // a line about it: what it does, whose it is
    // What is settled before the first step, in the arena, where it stays as long as the planner is used: a system may
    // look at lengths (n_sample) of the data set. NULL: impossible or out of memory, with a message. The setting
    // outlives the planner.
    void* (*open)(const Setting* setting, const int* sample, int n_sample, Arena* arena, char* err, size_t errlen);
    // The plan, in the arena, and how it is to be played. 0, or -1 with a message.
    int (*plan)(const void* planner, Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n, Arena* arena,
                char* err, size_t errlen);
} Planner;

extern const Planner* const planners[];  // n_planners of them; pointers, because those of other files are no constants
extern const int n_planners;

extern const Planner planner_static, planner_adaptive, planner_flex;  // of this project: published.c
extern const Planner planner_flexsp, planner_hydraulis, planner_zeppelin, planner_megatron;  // each in its own file

// What a round of any system takes besides its work, on top of Cost.micro_batch, which is part of it: what Cost.round
// is more. Systems without a barrier pay it for every micro-batch.
double planner_micro_batch_ms(const Cost* cost);
// The setting with micro-batches that cost so much more, in groups (ranks + 1). Its link tables are the original's.
Setting setting_with_micro_batch(const Setting* setting, double micro_batch_ms, GroupCost* groups);

// ---- what the planners share

// For planners whose state is the setting.
void* planner_open_setting(const Setting* setting, const int* sample, int n_sample, Arena* arena, char* err,
                           size_t errlen);

typedef struct Sorted {
    int length, doc;
} Sorted;

// The documents of a step, the longest first, of equal ones the one with the smaller number.
void sort_longest_first(Sorted* documents, const int* lengths, int n);

// ---- Megatron-LM's two schedulers (megatron.c)

// Dynamic context parallelism. 0, or -1 with a message that names the document and the limit.
int megatron_dynamic(Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n, const Setting* setting,
                     Arena* arena, char* err, size_t errlen);
// Its baseline: micro-batches of one cp size, in the order of documents, as many for each of the ranks / cp size
// replicas.
int megatron_balanced(Plan* plan, PlayRule* rule, int64_t step, const int* lengths, int n, const Setting* setting,
                      int cp_size, Arena* arena, char* err, size_t errlen);
