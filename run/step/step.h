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
    int* chunk_tokens;  // (n_chunks) tokens of each chunk, all documents together
    int first, cu;      // index of its first token in the row; of its cu_seqlens in Batch.cu
    Tree* tree;         // the tree of its documents; NULL: none is a tree
} RankGroup;

// A pass of this rank, a row: all its micro-batches of a round.
typedef struct RankPass {
    int first_group, n_groups;  // in the order of pass_order; 0 groups: an empty row, in a round of others
} RankPass;

// Answers that are generated side by side, a token of each in a row (run/rl/rollouts.h).
typedef struct SideBySide {
    const AnswerRows* of;  // (n)
    int n;
    Answers answers;
    RowAttention shared;
} SideBySide;

// The plan of a step, and this rank's part in it: the pass of row i is passes[i].
typedef struct BatchPlan {
    // The strategy of the step (--strategies): pieces and plan are those of this rank's job under it, sums of tokens
    // those of all jobs.
    int strategy;
    uint64_t dispatch_hash;
    double expected_ms;  // ms of the step of all jobs, when all ranks agreed on the plan; NaN: not known
    // This rank's computing beside moves (--strategies); the ms of expected_ms that moves show, in all, before this
    // rank's first pass, and after the last pass of all ranks.
    MoveWindow window;
    double moving_ms, late_ms, behind_ms;
    int sums_behind;  // gradients leave behind last passes, on all ranks
    StepPlan made;
    int64_t drawn;      // tokens of the step before documents were joined (sampler_join.h)
    double plan_us;     // us that planning took
    RankPass* passes;   // (max_tokens) in the order in which this rank runs them
    RankGroup* groups;  // (max_tokens)
    int n_groups;
    int all_end_together;       // all ranks have a pass in the last round
    GroupAttention* attention;  // (n_groups), once read
    RowAttention* shared;       // (n_rows) for rows that other ranks have a part in
    Row rows[MOST_STAGES];      // under way, by slot
    SideBySide* answers;        // the answers that decode works at; NULL: one text
    float* labels;              // in Batch.indices: see run/step/labels.h; unused if labels count alike
    int* starts;                // (n_pieces) each one's first token among those of all pieces; NULL: they count alike
    int* vocab_rows;            // in Batch.indices: Row.vocab_rows of its tokens; unused without tensor parallelism
    Span* spans;                // (max_tokens) of one micro-batch
    struct PlanPlaces* places;  // step/plan_once.c; NULL: each rank plans
    unsigned n_plans;           // so far
    Piece* own_pieces;          // this rank's memory, while `pieces` and `lengths` are another's; else NULL
    int* own_lengths;
} BatchPlan;

// ---- what ranks tell each other

// A rank's plan of a batch.
typedef struct PlanHash {
    uint64_t plan;    // the plan; with --strategies which job gets which documents
    uint64_t job;     // the plan of this rank's job; 0 without --strategies
    uint64_t failed;  // 1: there is no plan
} PlanHash;

// A rank's message to all others before the first communication of a step.
typedef struct Agreement {
    PlanHash made;      // made.plan also hashes what the cost model has learnt
    uint64_t signal;    // the signal that asks for an end; 0: none
    uint64_t left;      // 1: this rank has left the step, so all do
    uint64_t written;   // WRITTEN_... of its files on their way that are written
    uint64_t saves;     // 1: a checkpoint is due by its clock
    double ms;          // of the last step; 0: nothing to learn from
    double predicted;   // ms of the plan; NaN: not known
    double processor;   // CPU seconds of its threads in this step
    MoveWindow window;  // with --strategies
    RankReport report;  // of this step
} Agreement;

// ---- step/batch_ranks.c: the documents of a step on many ranks; step/passes.c: their passes

extern const RunRanks run_ranks;  // the hooks of core.c

// Plans the pieces of b; a message names the document. Functions with an Err here return 0, or -1 with a message, and
// touch nothing but b.
int batch_plan(Batch* b, const Run* run, int64_t step, Err err);
// Returns PlanLimits.squares of its pieces, in its arena; NULL: no document is a tree, or memory lacks (arena_check).
const double* batch_squares(Batch* b, const Run* run);
// Cuts each tree that no group of ranks holds into several pieces.
int batch_cut_trees(Batch* b, const Run* run, const Sampler* sampler, Err err);
// Draws the next training pieces, joined if the run does that, and cut; the second also plans them.
int batch_draw_joined(Batch* b, const Run* run, Err err);
int batch_draw_and_plan(Batch* b, const Run* run, int64_t step, Err err);
// Lists the passes of this rank, one for each round with ZeRO-2 and 3 and in a pipeline, and the tasks of all stages.
// Only a plan that does not come from batch_plan needs this.
int batch_list(Batch* b, const Run* run, Err err);
// Reads the tokens of this rank's share, and lists all that kernels need to know.
int batch_read(Batch* b, const Run* run, const Sampler* sampler, Err err);

// Returns 1 if gradients are reduced inside the backward pass of this rank's row i, rather than after its last row.
// BatchPlan.sums_behind overrules it.
int pass_reduces_inside(const Batch* b, const Model* m, int i);
static inline int pass_round(const BatchPlan* x, int i) { return x->groups[x->passes[i].first_group].mb->round; }

// ---- run/strategies/: what a step asks of strategies (--strategies)

const char* strategies_name(const Run* run, int strategy);            // as it could be typed; lives as long as the run
int strategies_same_job(const Run* run, int strategy, int a, int b);  // 1: these two ranks share a job
// Returns the group of pipelines that this rank is in.
int strategies_job(const Run* run, int strategy);
int64_t strategies_holds(const Run* run);  // tokens that a pipeline of every kind holds
// Chooses b->strategy for the pieces of b (in evaluation the one in place, if it holds them), and leaves those of this
// rank's job. Returns 0, or -1 with a message. Runs on the planner's thread.
int strategies_dispatch(Batch* b, const Run* run, int64_t step, Err err);
void strategies_turn(Run* run, int strategy);  // makes the run that under this strategy, whose weights are in place
// Finds expected_ms of the step in x, of which all ranks have told, played with its moves. Collective.
void strategies_expect(Run* run, BatchPlan* x);
// Gets the slowest rank's ms of the last step. Jobs have unlike terms, so all ranks learn from those of the rank that
// should have ended last. Collective.
void strategies_learn(Run* run, double ms);
void strategies_find_choices(Run* run);  // costs and capacities of all kinds of pipelines, by Clock.groups; collective

// ---- step/plan_once.c

typedef int (*PlanMaker)(Batch* b, const Run* run, int64_t step, Err err);
void plan_once_open(Run* run);  // once ranks are forked
// Calls make, which plans in b->planned alike on all ranks of the job. Among forked ranks one calls it, and the others
// take its plan; with `draws` its pieces, too. Returns 0, or -1 with a message.
int plan_once(Batch* b, const Run* run, int64_t step, PlanMaker make, int draws, Err err);
void plan_once_give_back(Batch* b);  // the pieces, once they are trained on: b has its own memory again

// ---- step/ahead.c: a thread that draws, plans and reads the next step while this one computes

// Begins to draw, plan and read `step` into run->ahead. Until ahead_wait nobody else touches that, the clock's
// setting or what they point to.
void ahead_start(Run* run, int64_t step);
// Waits for the plan in run->ahead; if there is none, run->cluster->why says why. Returns the seconds that this took.
double ahead_wait(Run* run);
void ahead_none(Run* run);   // empties the plan in `ahead`, as no step comes
void ahead_close(Run* run);  // ends the thread, if there is one
// Proves, before the first communication of a step, that all ranks have the same plan in `ahead` and have learnt the
// same; else the run ends. A signal that any rank has seen, or a plan that one lacks, stops all at the same step. The
// slowest rank's time of the last step corrects the cost model, on all ranks alike, so that plans stay the same.
// report: this rank's last step. run/slow says the rest. decided: a hash of what all have decided alike; explains: 1 if
// the last step's time says something about the cost model.
void ahead_agree(Run* run, const RankReport* report, uint64_t decided, int explains);
// Draws, plans and agrees on the next step, without a step beside it.
void ahead_plan_now(Run* run, uint64_t decided);
// Starts the next step's plan while this one computes, unless this is the last. The cost model changes here, since no
// plan is being made.
void ahead_plan_next(Run* run);
// Proves that all ranks have the same plan of b; else the run ends. Collective. failed: 1 if b has none here, as
// Cluster.why says. Returns 1 if all have one; else Cluster.unplanned is set.
int run_agree_on_plan(Run* run, const Batch* b, int failed);
// Ends the program on all ranks, which lack a plan, with the words of the first rank that has some. Collective.
void run_end_unplanned(const Run* run);
// Ends the program if the longest documents, as they are cut to --context, have no plan.
void run_check_documents(Run* run);

// ---- step/dump.c

// --dump-grads: the loss and gradients of the planned step in run->batch, fp32, under Hugging Face's names. With one
// rank also the logits of its tokens in the order in which their documents were drawn, whatever the packing: "logits"
// (tokens, V) and "documents" (tokens), the ids.
void run_dump(Run* run);

// ---- step/give_up.c: --give-up-below

enum { GIVEN_UP = 76 };  // the status of a program that gives a rank up
// give_up_open refuses options that it does not go with. give_up_hear, called by all ranks after each step, sets
// Cluster.given_up if the others are faster without one rank.
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
// Returns logits (Vp), fp32, of token n of the last pass, until the next call. Collective in groups and pipelines.
const float* token_logits(Run* run, int n);
// Finds Books.unigram_loss, the mean loss of validation targets under the frequencies of the first millions of training
// tokens, each counted once more so that none is 0; a model must beat it. Also val_bytes. Overwrites run->batch.
void run_unigram_loss(Run* run);

// ---- step/pace.c: steps that take long

extern volatile sig_atomic_t interrupted;  // the signal that asks for an end; 0: none
void run_catch_signals(const Run* run);    // from here on
double run_processor_seconds(Run* run);    // CPU seconds of this rank's threads since the step began; 0 on a GPU
// Sets run->ends between steps: a rank alone by the signal itself, others by what all have agreed on.
void pace_see_signals(Run* run);
// Rough shares of the peak that matmuls of linear layers and of attention reach, before anything is measured.
#define LINEAR_SHARE_OF_PEAK 0.5
#define ATTENTION_SHARE_OF_PEAK 0.25
void run_tell_of_long_steps(const Run* run);  // before the first: what a step should take, and what to lower
// These stand around the tasks of run->batch; pace_end after all batches of an evaluation, or a step.
void pace_begin(Run* run, int train);
void pace_end_task(Run* run, const Task* task);  // says how far it is, now and then
void pace_end(const Run* run);
void pace_say_left(Run* run);  // instead of the line of a step
// Returns 1 if this task is left out, because the run is to end and much of the step is ahead. Ranks that share its
// pass decide alike. All collective calls at the end of the step must come all the same.
int pace_leaves(Run* run, const Task* task);
