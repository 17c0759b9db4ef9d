// batch_ranks.h - the documents of a step on many ranks: drawn, planned and read one step ahead. Their plan: run/run.h;
// the Batch itself, its rows and tokens: run/core.h.
#pragma once
#include "run/run.h"

extern const RunRanks run_ranks;  // what core.c asks for

// ---- batch_ranks.c

// Plans the pieces that stand in b. 0, or -1 with a message that names the document. Touches nothing but b.
int batch_plan(Batch* b, const Run* run, int64_t step, Err err);
// The passes of this rank; with ZeRO-2 and 3, and in a pipeline, one for each round. And the tasks of the pipeline's
// stages. batch_plan has done it already. 0, or -1 with a message.
int batch_list(Batch* b, const Run* run, Err err);
// Reads the tokens of this rank's share, and lists all that kernels need to know. 0, or -1 with a message. Touches
// nothing but b.
int batch_read(Batch* b, const Run* run, const Sampler* sampler, Err err);
// Before pass i of this rank, and with i = n_passes at the end: waits for all ranks at the end of every round that lies
// between, where the plan's rounds have barriers.
void batch_end_rounds(const Batch* b, const Model* m, int i);
// Whether gradients are reduced inside the backward of pass i of this rank, rather than after its last.
int batch_reduces_inside(const Batch* b, const Model* m, int i);

// ---- batch_tasks.c

// The schedule of the plan in b, for batch_list. 0, or -1 with a message.
int batch_tasks(Batch* b, const Run* run, Err err);
// What the step takes is what its stages take together.
void batch_predict_tasks(Batch* b, const Run* run);
int batch_next_pass(Run* run, Pass* pass, int i, int train);  // RunRanks.next_pass: by the schedule

// ---- ahead.c, the next step: a thread that draws, plans and reads the next step while this one computes

// Begins to draw, plan and read `step` into run->ahead. Until ahead_wait nobody else touches that, the clock's
// setting or what they point to.
void ahead_start(Run* run, int64_t step);
// The plan is in run->ahead; or there is none, and run->cluster->why says why not. Returns the seconds that this took.
double ahead_wait(Run* run);
void ahead_none(Run* run);   // no step comes: what is under way ends under the strategy at work
void ahead_close(Run* run);  // ends the thread, if there is one
// Before the first communication of a step: all ranks have the same plan in `ahead`, and have learnt the same for those
// to come, or the run ends. A signal that any rank has seen, or a plan that one lacks, stops all of them at the same
// step. The slowest rank's time of the last step corrects the cost model, on all ranks alike, so that they go on to
// make the same plans. report: of this rank's last step.
void ahead_agree(Run* run, const RankReport* report);
// Draws, plans and agrees on the next step, without a step beside it.
void ahead_plan_now(Run* run);
// While the step at work computes, unless it is the last. The cost model changes here, where no plan is being made.
void ahead_plan_next(Run* run);
