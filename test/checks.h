// checks.h - proofs of plans and of pipelines' lists, and any valid plan: for tests, tools, and train_checked.
#pragma once
#include "plan/value/plan.h"
#include "plan/value/tasks.h"

// Any valid list of micro-batches, as uniform as seems useful.
int plan_random(Plan* plan, int64_t step, const int* lengths, int n, const PlanLimits* limits, uint64_t seed,
                Arena* arena, Err err);
// Rounds as plan_set_rounds, but a micro-batch joins the last pass of its ranks where limits allow, if random is NULL
// or as it draws.
int plan_join_rounds(Plan* plan, const int* lengths, const PlanLimits* limits, uint64_t* random, Arena* arena, Err err);
// Proves a plan: every document once, micro-batches inside the ranks, ulysses_size | cp size, placements, capacity of
// every pass at every rank, rounds (when set; else each micro-batch is a pass) that never fall along the list of a
// rank, and that following the lists of the ranks comes to an end (schedule_stuck). 0, or -1 with what is wrong.
int plan_check(const Plan* plan, const int* lengths, int n, const PlanLimits* limits, Arena* arena, Err err);
// Rank r runs micro-batches list[first[r] .. first[r + 1]) in that order; a micro-batch runs when it is next on all of
// its ranks. Returns the number of micro-batches that can never run (0: everything ends), or -1 without memory. Of the
// micro-batches only cp_size and first_rank count.
int schedule_stuck(const MicroBatch* micro_batches, int n_micro_batches, const int* list, const int* first, int ranks,
                   Arena* arena);
// Proves a schedule: every pass of every round once, in order; no slot is taken before it is free, no pass runs before
// what it needs has come; and all lists end, even where a message keeps both its stages until it is through. 0, or -1
// with what is wrong.
int schedule_check(const Schedule* schedule, const Pipeline* pipeline, Arena* arena, Err err);
