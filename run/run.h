// run.h - a run: everything that main has, what each room does for it, and the plan of a step.
//
// Read in the order of main: setup/start.c (options, data, device), ranks.c, files/origin.c (directory, checkpoint),
// setup/layout.c, memory.c (the memory table), files/state.c (weights from and to files), setup/cost.c (what planners
// know of this machine) and step/probe.c (how it is measured), files/save.c, show/report.c (what is said).
#pragma once
#include <signal.h>

#include "data/checkpoint.h"
#include "data/docs_files.h"
#include "data/run_dir.h"
#include "data/run_state.h"
#include "data/runlog.h"
#include "data/safetensors.h"
#include "data/tokenizer_files.h"
#include "kernels/host.h"
#include "plan/base/terminal.h"
#include "plan/cost/calibration.h"
#include "plan/cost/machine.h"
#include "plan/layout/strategy_moves.h"
#include "plan/options/read.h"
#include "plan/slow/speeds.h"
#include "plan/step/flex.h"
#include "plan/value/tasks.h"
#include "run/core.h"
#include "run/model/work.h"

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

// What a rank of one stage does of a round, in ms of the whole model: of a token's matmuls, of attention, of messages;
// its tokens.
typedef struct RankRound {
    double matmuls, attention, messages, micro_batch, tokens;
} RankRound;

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
    Plan plan;
    int64_t drawn;                    // tokens of the step before documents were joined (sampler_join.h)
    double plan_us;                   // what planning took, all of it
    int predicted;                    // prediction and terms are known
    Prediction prediction;            // under the model that planned
    double terms[CALIBRATION_TERMS];  // of the prediction under the model before it was calibrated, and Cost.step
    RankPass* passes;                 // (max_tokens) in the order in which this rank runs them
    RankGroup* groups;                // (max_tokens)
    int n_groups;
    int all_end_together;       // all ranks have a pass in the last round
    GroupAttention* attention;  // (n_groups), once read
    RowAttention* shared;       // (n_rows) of those that other ranks have a part in
    Schedule schedule;          // of all stages of the pipeline; rounds are this rank's passes
    Row rows[MOST_STAGES];      // under way, by slot
    SideBySide* answers;        // generation: what decode works at; NULL: one text
    float* labels;              // in Batch.indices: see run/rl/labels.h; unused where labels count alike
    int* starts;                // (n_pieces) of their tokens, one behind another; then, too
    int* vocab_rows;            // in Batch.indices: Row.vocab_rows of its tokens; unused when alone
    Span* spans;                // (max_tokens) of one micro-batch
    struct PlanPlaces* places;  // step/plan_once.c; NULL: each rank plans
    unsigned n_plans;           // so far
    Piece* own_pieces;          // where this rank draws, while pieces and lengths are those that another one drew
    int* own_lengths;
} BatchPlan;

// ---- what a run has

// A rank's plan of a batch.
typedef struct PlanHash {
    uint64_t plan;    // with --strategies of what all jobs have in common: which of them gets which documents
    uint64_t job;     // there: the plan of this rank's job
    uint64_t failed;  // there is none
} PlanHash;

// What a rank tells all others of its step, in slices and ms; times are 0 in a step that was not timed.
typedef struct RankReport {
    double linear, attention, other, update, wait;
    double pruned, sent, taken;
    CostTerms expected;  // of what it had to compute, at full pace, as the machine was probed; without communication
    double emulated;     // of its group: sum over segments of the slowest rank's computing; 0 where it was not measured
} RankReport;

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

// Of the steps of this invocation.
typedef struct PlanningSums {
    int64_t steps, predicted, tokens, drawn;
    double plan_us, worst_us, stall_us, gap;
} PlanningSums;

// Of the passes of a step or of an evaluation.
typedef struct Pace {
    double started, told;  // when it began, and when something was said of it last
    double before, part;   // of an evaluation: the shares that lie before these passes and in them; of a step 0 and 1
    int64_t done, all;     // tokens of this rank; those of backward passes count twice
    int left_from, asks;   // the first pass that is left out; whether ranks ask each other before they leave any
} Pace;

// What the shares of steps on this rank are of: peaks of all ranks and of this one, measured again so many times. One
// that was measured beside other work is too low; plans go on with it, because all ranks must have the same.
typedef struct PeakShare {
    double peak, mine;
    double cores;  // of this rank
    int times;
} PeakShare;

typedef struct Saver Saver;          // files/save.c
typedef struct CloseCopy CloseCopy;  // files/close.h

enum { WRITTEN_FAR = 1, WRITTEN_CLOSE = 2 };  // the checkpoint, the close copy

// Of checkpoints of this invocation.
typedef struct Saving {
    int64_t done;         // the step of the last one that was saved; -1: none
    int64_t again, wait;  // the step at which a save that failed is tried again, 0: none failed; steps until then
    int all_written;      // what is on its way to files and written, as all ranks have told each other: WRITTEN_...
    int is_due;           // one is by the clock, as rank 0 has told all
    double begun;         // the last one, or the first step: now_seconds
    Saver* saver;
    SafeImage copy;  // for what is written while training goes on; without room there is none
} Saving;

typedef struct Ahead Ahead;      // step/ahead.c
typedef struct RunPage RunPage;  // show/run_page.h

// This rank among all ranks: who they are, what they have, what they agreed on last.
typedef struct Cluster {
    RankIdentity identity;
    int forks;             // ranks are forked when all is read that they share
    int searches;          // the program is build/simulate: ranks need not be there
    Agreement* agreed;     // (ranks) what all ranks said last
    int unplanned;         // some rank could not plan what comes next: all end after this step
    int given_up;          // a rank is, as too slow: all end after this step
    char why[ERR_BYTES];   // what this one says of that; empty: it could
    int oversubscribed;    // ranks of this node share its cores
    HostMemory available;  // to this rank, before any rank took the table's
    int answers;           // that --rollouts draws side by side, at most; 0: it is not asked for
    int64_t prompts;       // then: lines of --data
    int cache_tokens;      // tokens of the KV cache, with those that are new,
    int answer_tokens;     // and of what answers have so far
    int64_t tree_room;     // most tokens of a tree that is one piece of a step, which some ranks hold; 0: not known
    int step_tokens;       // at most, of a step, with those that are computed several times; 0: as they are drawn
    size_t most_scratch;   // of KernelLimits: an eighth of that, or nothing to speak of where memory is short
    void* work_memory;     // on the device, of work_bytes
    Straggler stragglers[MOST_STRAGGLERS];
    int n_stragglers;
    double peak;   // FLOP/s, measured, of all ranks together: kernels_peak; NaN: not known
    double cores;  // that all ranks have, on CPUs; 0: not known
    PeakShare share;
    double processor;   // seconds of all ranks' threads in the step at work, on CPUs
    Comm sent_before;   // run_sent when the step began
    RankReport report;  // of this rank's last step
} Cluster;

// What planners know of the machine, and where the time of steps goes. Planners run on the thread of ahead.c: see
// ahead_start. Each strategy has a Clock of its own.
typedef struct Clock {
    PlanLimits limits;
    Setting setting;       // groups is NULL as long as no cost model is known
    GroupCost* groups;     // (ranks + 1) for setting
    int* capacities;       // (ranks) limits.capacities, if they are unlike
    double* stage_speeds;  // (stages, ranks) how fast the ranks of each stage compute
    double* paces;         // (ranks) of them together (layout_pace): setting.speeds, if one of them is not 1
    WeightTimes stage_weights[MOST_STAGES];
    Machine probed;  // as measured or read, nothing calibrated
    Calibration calibration;
    void* settled;     // what the planner of --plan settled before the first step; NULL: none is asked
    Arena settled_in;  // where it lies
    Ahead* planner;
    double last_ms;                        // of the step before, 0 when it is not to be learnt from
    double last_terms[CALIBRATION_TERMS];  // its terms
    PlanningSums planning;
    Pace pace;
    double step_began;        // the step at work: run_seconds
    double processor_before;  // seconds of this rank's threads when it began
    HostTurns turns_before;   // when the step before was over
} Clock;

// What the run writes and says, and where it began.
typedef struct Books {
    char command[CHECKPOINT_PATH];     // that starts it, with its launcher and without options: for people to paste
    char out[CHECKPOINT_PATH];         // the run directory; empty: none was named, and none is needed
    char start_from[CHECKPOINT_PATH];  // the checkpoint that --resume, --init or --sample begins with; empty: none
    int claims;                        // it trains: nothing else that ends without a checkpoint
    int uses_model;                    // a checkpoint is only read: --sample, --eval
    RunDir dir;                        // held by rank 0 of a run that writes
    int pin;                           // of start_from, on rank 0; -1: none
    Saving saving;
    CloseCopy* close;                // NULL: no --close-copy
    char *close_room, *close_stage;  // parts on their way; through the device
    int close_taken;  // the run goes on from close copies, and its newest checkpoint was of step close_far
    int64_t close_far;
    float* logits;         // (Vp) of a token: token_logits
    float* staging;        // the largest tensor, on its way to or from a file
    float *part, *others;  // its largest parts in a tensor-parallel group, see tp_join
    float* collected;      // optimizer state on its way to a file, see state.c
    RunState saved;        // what of it Run.state has not
    StepRecord record;     // of the step at work
    RunLog log;
    RunPage* page;           // of report.html; NULL but on rank 0
    int64_t first_step;      // steps done before this invocation
    double steps_began;      // the first step of this invocation: now_seconds
    int failed;              // something of the run could not be kept: status 1
    size_t memory_bytes;     // of the memory table
    double resident_before;  // bytes of this process before the table's memory was taken
    double val_began;        // the evaluation: now_seconds
    double val_bytes;        // of text that a validation target stands for, the mean; NaN: not known
    int64_t unlearnt;        // training pieces that are never drawn: sampler_check_labels
    double unigram_loss;     // of the validation targets under the frequencies of the training tokens
} Books;

// What a Run points to, apart from what is opened later.
typedef struct RunParts {
    Cluster cluster;
    Clock clock;
    Books books;
    ModelRanks ranks;
    BatchPlan planned[2];
} RunParts;

static inline void run_attach(Run* run, RunParts* parts) {
    run->cluster = &parts->cluster, run->clock = &parts->clock, run->books = &parts->books;
    run->batch.planned = &parts->planned[0], run->ahead.planned = &parts->planned[1];
    model_set_ranks(&run->model, &parts->ranks);
}

// The same run with a model and a clock of its own.
typedef struct RunView {
    Run run;
    Clock clock;
    ModelRanks ranks;
} RunView;

static inline void run_view(RunView* view, const Run* run) {
    view->run = *run, view->clock = *run->clock, view->ranks = *run->model.ranks;
    view->run.clock = &view->clock;
    model_set_ranks(&view->run.model, &view->ranks);
}

// ---- run.c: what every room asks

// Seconds from any origin: virtual ones on a virtual device.
static inline double run_seconds(const Run* run) {
    return run->model.k->virtual_time ? run->model.k->clock() : now_seconds();
}
// Whether a run says only what a person needs first; all of it stands in log.jsonl.
static inline int run_is_brief(const Run* run) {
    const Books* x = run->books;
    return (x->claims || x->uses_model || run->config.explain || run->cluster->searches) && !run->config.verbose;
}
// Of tokens, at most, that a step or a text consists of.
static inline int run_most_tokens(const Run* run) {
    return run->training ? MAX(run->config.batch_tokens, run->cluster->step_tokens)
                         : MAX(run->model.shape.context, run->cluster->answers);
}
static inline DType run_gradients_travel_as(const Run* run) {
    return !strcmp(run->config.grad_dtype, "bf16") ? DT_BF16 : DT_F32;
}
Config run_settled_config(const Run* run);  // the options with what is settled in their place, for people and files
void run_path(char path[CHECKPOINT_PATH], const char* dir, const char* name);  // dir/name, or the end of the program
double run_median(double* x, int n);  // of n >= 0 numbers, which are sorted; 0 of none
// Lengths of the first training pieces: what a planner that looks at the data set before it starts gets to see. Returns
// how many.
enum { SAMPLED_LENGTHS = 4096 };
int run_sample_lengths(const Run* run, int* lengths);
int run_joins(const Run* run);  // documents of a step that begin alike (--shared-prefix)
// Then: how many of the tokens that were drawn are computed, for people.
const char* run_joined(int64_t tokens, int64_t drawn, char words[96]);
// Of trees, for people, what they spare.
const char* run_spared(const TreeCounts* counts, char words[160]);
int run_has_trees(const Run* run);  // among its documents, or joined to some
// Clock.paces and setting.speeds follow from stage_speeds.
void run_set_paces(Run* run);
// A line of log.jsonl, with one more member, a string; on rank 0.
void run_log_event(Run* run, const char* event, const char* name, const char* value);

// All these are collective, and end the program where a rank is lost.
void run_lost(const Run* run, const char* words);  // because of that
// What rank 0 of c has, in memory of all.
void run_tell_all(Comm* c, void* what, size_t bytes);
// What every rank of c says: (size) values of so many bytes in memory to be freed; the greatest of their numbers.
void* run_ask_all(const Run* run, Comm* c, const void* mine, size_t bytes);
double run_most(const Run* run, Comm* c, double mine);

typedef struct Report {
    int failed;
    char words[ERR_BYTES];
    uint64_t bytes, hash;  // of the rank's optimizer file, once it is written
} Report;

Report* reports_make(const Comm* c);  // (size), to be freed; ends the program where there is no memory
// Fills all (size). 0 when every report is good, else -1 with the words of the first that is not.
int reports_meet(const Run* run, const Report* mine, Report* all, Err err);

// ---- mechanisms.c

void run_close(Run* run);  // what was opened; the status of the program

// ---- setup/start.c: every phase ends the program with one line when it cannot go on

void run_read_options(Run* run);  // --help ends here; finds the command and the device
void run_say_what_if(Run* run);   // --what-if: which command of build/simulate answers it
void run_open_data(Run* run);     // tokenizer, documents
void run_settle_model(Run* run);  // element type, shape; opens the samplers

// ---- setup/ranks.c

void run_find_ranks(Run* run);     // who this process is among the ranks; all but rank 0 are silent from here on
void run_ask_for_ranks(Run* run);  // of --ranks; until they are forked this process is rank 0, with a Comm of its own
void run_open_ranks(Run* run);     // opens the Comm of all ranks
void run_fork_ranks(Run* run);     // once all is read that they share
void run_set_limits(Run* run, int tp, int data_ranks);       // what plans must respect, apart from nodes and capacity
int run_node_of(const Run* run, const Comm* job, int rank);  // of a rank of this job, as --plan node-size has it
// What plans take for a node, on all ranks alike: the most data ranks such that as many, counted on from the first of
// a stage, are of one node, in every stage and at every place in tensor-parallel groups (run/README.md, Nodes).
int run_node_size(const Run* run, const Comm* job, int tp, int stages);
void run_join_job(Run* run);       // divides the ranks of m->job into stages, groups and data ranks
void run_leave_job(Run* run);      // gives back what that has made, and what planning has settled
void run_compare_ranks(Run* run);  // proves that all mean the same run
void run_measure_limit(Run* run);  // of all ranks together, each on its own

// ---- setup/layout.c

// m->ranks->layout, by --layout or by --tp, --pp, --zero and --recompute; and the limit of --memory. A search may find
// strategies instead: then they are settled, too.
void run_settle_layout(Run* run);
// On rank 0, what the search expects of a step, in ms: ms[0] of the layout at work with `rank` at this pace, ms[1] of
// the best one on the ranks of `rest`, which nobody need have opened. 0, or -1 with a message.
int run_layout_without(double ms[2], Run* run, int rank, double pace, Comm* rest, Err err);
void run_check_layout(Run* run);  // --explain layout: prints what every stage holds, and what a step should take

// ---- setup/memory.c: the memory table, a function of a run and of N tokens a row

ModelNeeds run_model_needs(const Run* run, int N);
// Bytes of the table of a rank of stage s. Before ranks are joined. copies: of like pipelines of this layout, where
// states belong to all ranks (--strategies), without what moves; 0: all ranks run it.
size_t run_memory_of(const Run* run, const Layout* layout, int copies, int s, int N);
// Of it what each layer of a rank of stage s has to itself, and behind them the embedding and the classifier: weights,
// gradients and optimizer state; what it keeps for its backward pass, of all rounds in flight.
typedef struct LayerBytes {
    size_t states, activations;
} LayerBytes;
void run_layer_bytes(LayerBytes* bytes, const Run* run, const Layout* layout, int s, int N);
// When memory is taken: where the activations of each layer lie in m->acts, by run_capacity.
void run_carve_activations(Run* run);
void run_carve_work(Run* run, const MemoryPlan* plan);  // and where the work of slow ranks does
void run_find_available(Run* run);                      // Cluster.available
MemoryPlan run_plan_job_memory(Run* run);               // settles what each rank holds: settled, clock->limits
// Tokens of a row of this rank.
static inline int run_capacity(const Run* run) { return rank_capacity(&run->clock->limits, run->model.comm->rank); }
// What both need, by turns in the same memory: of every entry what the one takes that takes most.
void run_widen_memory(MemoryPlan* plan, const MemoryPlan* other);
void run_take_job_memory(Run* run, MemoryPlan* plan);

// ---- setup/virtual.c: --device virtual, see kernels/virtual/virtual.h. On other devices these do nothing

void run_check_virtual(Run* run);     // what goes with it; turns off what it has no results for
void run_turn_virtual(int strategy);  // its times count from here on
void run_open_virtual(Run* run);      // the machine of --machine becomes that of all ranks; its capacity and memory

// ---- setup/cost.c

const struct Planner* run_planner(const Run* run);  // of --plan, in its table; NULL: random, or a rank that is alone
// Most bytes that planning takes, beside the steps' own buffers.
size_t run_planning_bytes(const Run* run, const PlanLimits* limits, int max_tokens);
int run_machine_named(const Run* run, Machine* machine, const char* name, Err err);  // by a file or a name. 0, or -1
void run_read_machine(Run* run, Machine* machine);  // of --machine, as rank 0 reads it; all ranks call it together
// What a search for layouts is told, on rank 0 before ranks are joined, of a rank with the whole model (--tp 1, --pp 1,
// --zero 1): as in run_find_job_cost, undivided. from: words.
int run_machine_of_layouts(Run* run, Machine* machine, char from[ERR_BYTES], Err err);
// The same of groups of `tp` ranks. Returns whether --probe --tp has measured them, and no --machine is named.
int run_machine_of_groups(Run* run, Machine* machine, int tp);
// --machine, what --probe left for such a run, or an estimate from the measured peak: fills probed, calibration,
// setting.cost and groups, and opens the planner. All ranks of the job call it together.
void run_find_job_cost(Run* run);
void run_set_cost(Run* run);  // setting.cost and groups: probed with what calibration has learnt
// Writes run->clock->probed to where runs like this one find it: path. 0, or -1 with a message.
int run_save_machine(const Run* run, char path[DISK_PATH], Err err);

// ---- strategies/strategies.c, choice.c: phases of main, for every strategy

void run_join_ranks(Run* run);  // divides them into groups and proves that all mean the same run
MemoryPlan run_plan_memory(Run* run);
void run_take_memory(Run* run, MemoryPlan* plan);
void run_find_cost(Run* run);  // all ranks call it together
// strategies.c: the run becomes that under this strategy, and the weights go there; between steps it is that of
// run->ahead. All ranks call it.
void run_enter_strategy(Run* run, int strategy);

// ---- step/batch_ranks.c: the documents of a step on many ranks

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
// make the same plans. report: of this rank's last step.
void ahead_agree(Run* run, const RankReport* report);
// Draws, plans and agrees on the next step, without a step beside it.
void ahead_plan_now(Run* run);
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

// ---- step/probe.c

void run_probe(Run* run);  // --probe: measures this machine into run->clock->probed, and saves it

// A row that was timed: documents with sum of squares s2, `tokens` in all.
typedef struct ProbeTime {
    double s2, tokens, ms;
} ProbeTime;

// The constants c >= 0 for which the relative errors of c[0] s2 + c[1] tokens + c[2] have the least sum of squares.
// n >= 1; what the rows do not tell apart is given to as few constants as will do.
void probe_fit(double c[3], const ProbeTime* rows, int n);

// ---- step/eval.c

// See RunRanks.
int eval_plan(Run* run);
int eval_end(Run* run);
double eval_loss_sum(Run* run);
void eval_tell(Run* run);                                   // of an evaluation between steps
void run_eval(Run* run);                                    // --eval
void run_choices(Run* run);                                 // --eval FILE
double log_softmax(const float* logits, int V, int token);  // log softmax(logits)[token], logits (V)
// fp32 (Vp), of token n of the last forward pass, until the next call. Collective in groups and pipelines.
const float* token_logits(Run* run, int n);
// What a language model must beat: the loss under the frequencies of the (first millions of) training tokens, each
// counted once more so that none has probability zero. Also finds val_bytes. Overwrites run->batch.
void run_unigram_loss(Run* run);
// Between steps, texts that begin with a run's own prompts, the same at every step; into the log, too.
void run_sample(Run* run);

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

// ---- files/origin.c

void run_find_origin(Run* run);  // claims the run directory; the checkpoint to start from, its options and shape
// Ends the program at a loss or norm that is not finite, with the command that goes on from before.
void run_diverged(Run* run);
void run_leave_origin(Run* run);           // lets the files go that rank 0 holds, in a rank that was forked from it
RunState run_saved_state(const Run* run);  // what state.json says

// ---- files/state.c

// Weights, and with --resume moments too, from start_from; the model's own initial values without it.
void run_load_weights(Run* run);
// All ranks call these two, whatever has failed on one of them. 0, or -1 with a message.
// Whole tensors of the model and those in extra, which the rank that names a path writes there, or into an image.
int state_write(Run* run, StateKind kind, const SafeTensor* extra, int n_extra, const char* path, SafeImage* image,
                Err err);
// The optimizer state that this rank owns, and extra, into its file in `dir`, or into an image. has_failed: nothing is
// written any more.
int state_write_owned(Run* run, const char* dir, const SafeTensor* extra, int n_extra, SafeImage* image, int has_failed,
                      Err err);
// --dump-grads: the loss and gradients of the planned step in run->batch, fp32, under Hugging Face's names. With one
// rank also the logits of its tokens in the order in which their documents were drawn, whatever the packing: "logits"
// (tokens, V) and "documents" (tokens), the ids.
void run_dump(Run* run);

// ---- files/save.c

// Before anything is trained: ends the program where a checkpoint's files could not hold this model or its options.
void run_check_saving(Run* run);
// The last one of the run: tried three times, then in another directory; ends the program when that fails too.
void run_save_last(Run* run);
// Between steps: the state is copied and written by a thread while training goes on, where the memory table has room
// for a copy (save_copy_bytes); else it is written at once. Tried again later where it fails.
void run_save(Run* run);
int run_save_is_due(const Run* run);
int save_is_due_by_clock(const Run* run);
int save_is_written(const Run* run);  // this rank's files of the checkpoint under way
void run_save_end(Run* run);          // of the one under way, if there is one: waits for it, and commits it
size_t save_copy_bytes(const Run* run);

// ---- show/report.c, show/explain.c

void run_show_others(Run* run);  // --report, --version: end the program
void run_print(const Run* run, const MemoryPlan* plan);
void run_log_start(Run* run);  // the first line of the log: the options and what the run consists of
// report.html is made of the lines of log.jsonl; both do nothing but on rank 0.
void run_open_report(Run* run);
void run_write_report(Run* run);
Comm run_sent(const Run* run);  // bytes and waiting of this rank in all its Comms so far; the rest is the world's
// Of run->batch, behind its step; record.plan_stall_us is known.
void run_end_record(Run* run);
// At the end: how far it came and what to do next; with --verbose also memory, planning and bytes. All ranks call it.
void run_print_end(Run* run);
// --explain: the plan in run->batch beside what other planners do, on the terminal and as a page. On rank 0.
void run_explain(const Run* run);
void run_check_strategies(Run* run);  // --explain layout with --strategies: what each stage of each pipeline holds
