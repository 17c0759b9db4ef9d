// published.h - the table of planners: this project's and other systems', rebuilt from their papers and released code.
// The trainer (--plan NAME), --explain, build/simulate and the benches take planners from here.
//
// Each comes to a Plan (micro-batches on contiguous ranks). What FlexSP and Megatron-LM call a micro-batch, the work of
// all ranks between two barriers, is a round here, and their plans have barriers with any ZeRO stage
// (Plan.has_barriers); Hydraulis' micro-batch is a micro-batch. Everyone pays alike: the machine's fixed cost for each
// micro-batch.
#pragma once
#include "plan/step/flex.h"

typedef struct Planner {
    const char* name;   // "static", "adaptive", "flexsp", "hydraulis", "zeppelin", "megatron", "fixed", "flex"
    const char* words;  // a line about it: what it does, whose it is
    // What is settled before the first step, in the arena, where it stays as long as the planner is used: a system may
    // look at lengths (n_sample) of the data set. NULL: impossible or out of memory, with a message. The setting
    // outlives the planner.
    void* (*open)(const Setting* setting, const int* sample, int n_sample, Arena* arena, Err err);
    // The plan, in the arena. 0, or -1 with a message.
    int (*plan)(const void* planner, Plan* plan, int64_t step, const int* lengths, int n, Arena* arena, Err err);
    // Most bytes of an arena that `plan` takes beyond planning_bytes, and that `open` takes. NULL: none; planning_bytes
    // of a document.
    size_t (*more_bytes)(int n, const PlanLimits* limits);
    size_t (*open_bytes)(const PlanLimits* limits);
} Planner;

extern const Planner* const planners[];  // n_planners of them; pointers, because those of other files are no constants
extern const int n_planners;

extern const Planner planner_static, planner_adaptive, planner_flex, planner_fixed;          // published.c
extern const Planner planner_flexsp, planner_hydraulis, planner_zeppelin, planner_megatron;  // each in its own file

const Planner* planner_named(const char* name);  // NULL: there is none
// Most bytes of arenas: for a step of n documents, planned, predicted and checked; for all that is settled before.
size_t planner_bytes(const Planner* planner, int n, const PlanLimits* limits);
size_t planner_open_bytes(const Planner* planner, const PlanLimits* limits);

// ---- what the planners share

// For systems whose groups are powers of two of the ranks: -1, and err says that none of them holds the document.
int refuse_document(int doc, int length, const PlanLimits* limits, Err err);

// The documents in this order, each to the micro-batch that mb_of (n, by document) says: fills plan->docs, and first_doc
// and n_docs of its micro-batches, which are 0 before.
void plan_fill(Plan* plan, const int* order, const int* mb_of);

// For planners whose state is the setting.
void* planner_open_setting(const Setting* setting, const int* sample, int n_sample, Arena* arena, Err err);
