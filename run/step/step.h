// step.h - the plan of a step and how it is made: documents are drawn, planned and read while the step before computes.
#pragma once
#include <signal.h>

#include "plan/layout/strategy_moves.h"
#include "plan/step/step_plan.h"
#include "run/run.h"

// ---- the plan of a step, which run/step/ makes

// A micro-batch as this rank sees it.
typedef struct RankGroup {
    const MicroBatch* mb;
    Share share;
    Placement placed;
    int* chunk_tokens;  // of each chunk, all documents
    int first, cu;      // where its tokens begin in the row, and its cu_seqlens in Batch.cu
    Tree* tree;         // of its documents; NULL: none is a tree
} RankGroup;

// A pass of this rank, a row: all its micro-batches of a round.
typedef struct RankPass {
    int first_group, n_groups;  // in the order of pass_order; none: an empty row, in rounds of others
} RankPass;

// Answers that are generated side by side, a token of each in a row (run/rl/rollouts.h).
typedef struct SideBySide {
    const AnswerRows* of;  // (n)
    int n;
    Answers answers;
    RowAttention shared;
} SideBySide;

// The plan, and what this rank does of it: the pass of row i is passes[i].
typedef struct BatchPlan {
    int strategy;        // with --strategies: pieces and plan are of this rank's job under it, sums of tokens of all
    double strategy_ms;  // what the step should take with it, by Hydraulis' cost of its slowest pipeline
    uint64_t dispatch_hash;
    double expected_ms;  // of the plan, of all jobs, when all ranks agreed on it; NaN: not known
    // With --strategies: what this rank computes beside moves; ms of expected_ms that they show, of those before this
    // rank's first pass, and of those behind the last pass of all.
    MoveWindow window;
    double moving_ms, late_ms, behind_ms;
    int sums_behind;  // gradients leave behind last passes, on all ranks
    StepPlan made;
    int64_t drawn;      // tokens of the step before documents were joined (sampler_join.h)
    double plan_us;     // what planning took, all of it
    RankPass* passes;   // (max_tokens) in the order in which this rank runs them
    RankGroup* groups;  // (max_tokens)
    int n_groups;
    int all_end_together;       // all ranks have a pass in the last round
    GroupAttention* attention;  // (n_groups), once read
    RowAttention* shared;       // (n_rows) of those that other ranks have a part in
    Row rows[MOST_STAGES];      // under way, by slot
    SideBySide* answers;        // generation: what decode works at; NULL: one text
    float* labels;              // in Batch.indices: see run/step/labels.h; unused where labels count alike
    int* starts;                // (n_pieces) of their tokens, one behind another; then, too
    int* vocab_rows;            // in Batch.indices: Row.vocab_rows of its tokens; unused when alone
    Span* spans;                // (max_tokens) of one micro-batch
    struct PlanPlaces* places;  // step/plan_once.c; NULL: each rank plans
    unsigned n_plans;           // so far
    Piece* own_pieces;          // where this rank draws, while pieces and lengths are those that another one drew
    int* own_lengths;
} BatchPlan;

// ---- what ranks tell each other

// A rank's plan of a batch.
typedef struct PlanHash {
    uint64_t plan;    // with --strategies of what all jobs have in common: which of them gets which documents
    uint64_t job;     // there: the plan of this rank's job
    uint64_t failed;  // there is none
} PlanHash;

// What one rank tells all others before the first communication of a step.
typedef struct Agreement {
    PlanHash made;      // plan: also of what the cost model has learnt
    uint64_t signal;    // that asks for an end, 0 none
    uint64_t left;      // this rank has left the step: all do
    uint64_t written;   // its files on their way: WRITTEN_...
    uint64_t saves;     // a checkpoint is due by its clock
    double ms;          // of the last step; 0: nothing to learn from
    double predicted;   // ms of the plan; NaN: not known
    double processor;   // seconds of its threads in this step
    MoveWindow window;  // with --strategies
    RankReport report;  // of this one
} Agreement;

// ---- step/batch_ranks.c: the documents of a step on many ranks; step/passes.c: their passes

extern const RunRanks run_ranks;  // what core.c asks for

// Plans the pieces that stand in b. 0, or -1 with a message that names the document. Touches nothing but b.
int batch_plan(Batch* b, const Run* run, int64_t step, Err err);
// PlanLimits.squares of its pieces, in its arena; NULL: no document is a tree, or there is no memory (arena_check).
const double* batch_squares(Batch* b, const Run* run);
// Trees of its pieces that no ranks hold become several. 0, or -1 with a message.
int batch_cut_trees(Batch* b, const Run* run, const Sampler* sampler, Err err);
// The next training pieces, joined where the run does that, and cut. 0, or -1 with a message.
int batch_draw_joined(Batch* b, const Run* run, Err err);
int batch_draw_and_plan(Batch* b, const Run* run, int64_t step, Err err);  // of training
// The passes of this rank; with ZeRO-2 and 3, and in a pipeline, one for each round. And the tasks of the pipeline's
// stages. batch_plan has done it already. 0, or -1 with a message.
int batch_list(Batch* b, const Run* run, Err err);
// Reads the tokens of this rank's share, and lists all that kernels need to know. 0, or -1 with a message. Touches
// nothing but b.
int batch_read(Batch* b, const Run* run, const Sampler* sampler, Err err);

// Whether gradients are reduced inside the backward pass of row i of this rank, rather than behind its last row.
int pass_reduces_inside(const Batch* b, const Model* m, int i);  // as far as this rank knows; see sums_behind
static inline int pass_round(const BatchPlan* x, int i) { return x->groups[x->passes[i].first_group].mb->round; }

// ---- step/plan_once.c

typedef int (*PlanMaker)(Batch* b, const Run* run, int64_t step, Err err);
void plan_once_open(Run* run);  // once ranks are forked
// make: the plan in b->planned that all ranks of the job find alike. Of forked ranks one does, and the others have it
// from there; with `draws` the pieces, too. 0, or -1 with a message.
int plan_once(Batch* b, const Run* run, int64_t step, PlanMaker make, int draws, Err err);
void plan_once_give_back(Batch* b);  // these, once their tokens are read and trained on

// ---- step/ahead.c: a thread that draws, plans and reads the next step while this one computes

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
// make the same plans. report: of this rank's last step. What is known of slow ranks is told by run/slow: decided, a
// hash of what all have decided alike; explains: the last step's time says something about the cost model.
void ahead_agree(Run* run, const RankReport* report, uint64_t decided, int explains);
// Draws, plans and agrees on the next step, without a step beside it.
void ahead_plan_now(Run* run, uint64_t decided);
// While the step at work computes, unless it is the last. The cost model changes here, where no plan is being made.
void ahead_plan_next(Run* run);
// All ranks, which call it together, have the same plan of b, or the run ends; failed: what planning b has returned
// here, with Cluster.why. Returns whether all have one; else Cluster.unplanned is set.
int run_agree_on_plan(Run* run, const Batch* b, int failed);
// Ends the program on all ranks where Cluster.unplanned is set, with the words of the first rank that has some.
void run_end_unplanned(const Run* run);
// Ends the program where the longest documents, as they are cut to --context, have no plan.
void run_check_documents(Run* run);

// ---- step/give_up.c: --give-up-below

enum { GIVEN_UP = 76 };  // the status of a program that ends without a rank
// Whether it goes with other options, before the first step. Behind each step, all ranks together: Cluster.given_up,
// where the others are faster without one of them.
void give_up_open(Run* run);
void give_up_hear(Run* run);

// ---- step/eval.c

// See RunRanks.
int eval_plan(Run* run);
int eval_end(Run* run);
double eval_loss_sum(Run* run);
void run_eval(Run* run);                                    // --eval
void run_choices(Run* run);                                 // --eval FILE
double log_softmax(const float* logits, int V, int token);  // log softmax(logits)[token], logits (V)
// fp32 (Vp), of token n of the last forward pass, until the next call. Collective in groups and pipelines.
const float* token_logits(Run* run, int n);
// What a language model must beat: the loss under the frequencies of the (first millions of) training tokens, each
// counted once more so that none has probability zero. Also finds val_bytes. Overwrites run->batch.
void run_unigram_loss(Run* run);

// ---- step/pace.c: steps that take long

extern volatile sig_atomic_t interrupted;  // the signal that asks for an end, 0 none
void run_catch_signals(const Run* run);    // from here on
double run_processor_seconds(Run* run);    // of this rank since the step began, on a CPU
// Between steps, whether the run ends: alone by the signal itself, with others by what all have agreed on.
void pace_see_signals(Run* run);
// What the matmuls of linear layers and of attention reach of the peak, roughly, before anything is measured.
#define LINEAR_SHARE_OF_PEAK 0.5
#define ATTENTION_SHARE_OF_PEAK 0.25
void run_tell_of_long_steps(const Run* run);  // before the first one, on rank 0: what it should take, what to lower
// Around the tasks of run->batch; end: behind all batches of an evaluation, or a step.
void pace_begin(Run* run, int train);
void pace_end_task(Run* run, const Task* task);  // says how far it is, now and then
void pace_end(const Run* run);
void pace_say_left(Run* run);  // instead of the line of a step
// Whether this task is left out, because the run is to end and much of the step is ahead. Those who share its pass take
// the same decision. All that is collective at the end of the step has to come all the same.
int pace_leaves(Run* run, const Task* task);
