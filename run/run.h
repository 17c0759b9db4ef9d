// run.h - a run: everything that main has, and the phases that set it up before the first step of train_gpt.cu.
//
// Read in the order of main: start.c (options, data, device), ranks.c, origin.c (directory, checkpoint), memory.c (the
// memory table), state.c (weights from and to files), cost.c (what planners know of this machine) and probe.c (how it
// is measured), save.c (checkpoints), report.c (what is said).
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
#include "plan/options/read.h"
#include "plan/cost/machine.h"
#include "plan/slow/straggle.h"
#include "plan/layout/strategies.h"
#include "plan/base/terminal.h"
#include "run/core.h"
#include "run/batch_plan.h"
#include "run/model/work.h"

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
    double emulated;  // of its group: sum over segments of the slowest rank's computing; 0 where it was not measured
} RankReport;

// What one rank tells all others before the first communication of a step.
typedef struct Agreement {
    PlanHash made;      // plan: also of what the cost model has learnt
    uint64_t signal;    // that asks for an end, 0 none
    uint64_t left;      // this rank has left the step: all do
    double ms;          // of the last step; 0: nothing to learn from
    double predicted;   // ms of the plan; NaN: not known
    double processor;   // seconds of its threads in this step
    RankReport report;  // of this one
} Agreement;

// Of the steps of this invocation.
typedef struct PlanningSums {
    int64_t steps, predicted;
    double plan_us, worst_us, stall_us, gap;
} PlanningSums;

// Of the passes of a step or of an evaluation: see pace.c.
typedef struct Pace {
    double started, told;  // when it began, and when something was said of it last
    double before, part;   // of an evaluation: what was done before these passes, and what they are; of a step 0 and 1
    int64_t done, all;     // tokens of this rank; those of backward passes count twice
    int left_from, asks;   // the first pass that is left out; whether ranks ask each other before they leave any
} Pace;

// What the shares of steps on this rank are of. A peak that was measured beside other work is too low; plans go on with
// it, because all ranks must have the same.
typedef struct PeakShare {
    double peak, mine;  // of all ranks, and of this one, measured again
    double cores;       // of this rank
    int times;          // so far
} PeakShare;

// Of checkpoints of this invocation.
typedef struct Saving {
    int64_t done;         // the step of the last one that was saved; -1: none
    int64_t again, wait;  // the step at which a save that failed is tried again, 0: none failed; steps until then
} Saving;

typedef struct Ahead Ahead;      // ahead.c
typedef struct RunPage RunPage;  // run_page.h

// This rank among all ranks: who they are, what they have, what they agreed on last.
struct Cluster {
    RankIdentity identity;
    Agreement* agreed;     // (ranks) what all ranks said last
    int unplanned;         // some rank could not plan what comes next: all end after this step
    char why[ERR_BYTES];   // what this one says of that; empty: it could
    int oversubscribed;    // ranks of this node share its cores
    HostMemory available;  // to this rank, before any rank took the table's
    size_t most_scratch;   // of KernelLimits: an eighth of that, or nothing to speak of where memory is short
    WorkNeeds work_needs;  // zeros: no rank ever computes anything but what it owns
    void* work_memory;     // on the device, of work_bytes
    Straggler stragglers[MOST_STRAGGLERS];
    int n_stragglers;
    double peak;   // FLOP/s, measured, of all ranks together: kernels_peak; NaN: not known
    double cores;  // that all ranks have, on CPUs; 0: not known
    PeakShare share;
    double processor;   // seconds of all ranks' threads in the step at work, on CPUs
    Comm sent_before;   // run_sent when the step began
    RankReport report;  // of this rank's last step
};

// What planners know of the machine, and where the time of steps goes. Planners run on the thread of ahead.c: see
// ahead_start. Each strategy has a Clock of its own.
struct Clock {
    PlanLimits limits;
    Setting setting;    // groups is NULL as long as no cost model is known
    GroupCost* groups;  // (ranks + 1) for setting
    Machine probed;     // as measured or read, nothing calibrated
    Calibration calibration;
    // For run_probe. Forward and backward of the model over one row of documents of these lengths (n, each at most
    // --context, together at most --capacity) on this rank alone: ms, the least of `repeats`. With ZeRO-2 and 3 all
    // ranks call it together. Afterwards gradients are zero, and run.batch is to be drawn again.
    double (*time_row)(Run* run, const int* lengths, int n, int repeats);
    void* settled;     // what the planner of --plan settled before the first step, see planner.c; NULL: none is asked
    Arena settled_in;  // where it lies
    Ahead* planner;
    double last_ms;                        // of the step before, 0 when it is not to be learnt from
    double last_terms[CALIBRATION_TERMS];  // its terms
    PlanningSums planning;
    Pace pace;
    double step_began;        // the step at work: run_seconds
    double processor_before;  // seconds of this rank's threads when it began
    HostTurns turns_before;   // when the step before was over
};

// What the run writes and says, and where it began.
struct Books {
    char command[CHECKPOINT_PATH];     // that starts it, with its launcher and without options: for people to paste
    char out[CHECKPOINT_PATH];         // the run directory; empty: none was named, and none is needed
    char start_from[CHECKPOINT_PATH];  // the checkpoint that --resume, --init or --sample begins with; empty: none
    int claims;                        // it trains: nothing else that ends without a checkpoint
    int uses_model;                    // a checkpoint is only read: --sample, --eval
    RunDir dir;                        // held by rank 0 of a run that writes
    int pin;                           // of start_from, on rank 0; -1: none
    Saving saving;
    float* staging;        // the largest tensor, on its way to or from a file
    float *part, *others;  // its largest parts in a tensor-parallel group, see tp_join
    float* collected;      // optimizer state on its way to a file, see state.c
    RunState saved;        // what of it Run.state has not
    StepRecord record;     // of the step at work
    RunLog log;
    RunPage* page;           // of report.html, on rank 0
    int64_t first_step;      // steps done before this invocation
    size_t memory_bytes;     // of the memory table
    double resident_before;  // bytes of this process before the table's memory was taken
    double val_bytes;        // of text that a validation target stands for, the mean; NaN: not known
    double unigram_loss;     // of the validation targets under the frequencies of the training tokens
};

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
// Seconds from any origin: virtual ones on a virtual device.
static inline double run_seconds(const Run* run) {
    return run->model.k->virtual_time ? run->model.k->clock() : now_seconds();
}

// ---- start.c: every phase ends the program with one line when it cannot go on

void run_read_options(Run* run);  // --help ends here; finds the device
void run_open_data(Run* run);     // tokenizer, documents
void run_settle_model(Run* run);  // element type, shape; opens the samplers
#define RUN_VERSION "1.0"
void run_print_version(void);  // first_screen.c
void run_close(Run* run);      // the status of the program
static inline void run_path(char path[CHECKPOINT_PATH], const char* dir, const char* name) {
    if (snprintf(path, CHECKPOINT_PATH, "%s/%s", dir, name) >= CHECKPOINT_PATH) die("%s/%s: path too long", dir, name);
}

// ---- report.c: the command

void run_find_command(Run* run, const char* program);  // run->books->command; program: as it was called

// ---- origin.c

void run_find_origin(Run* run);  // claims the run directory; the checkpoint to start from, its options and shape
// Ends the program at a loss or norm that is not finite, with the command that goes on from before.
void run_diverged(Run* run);
RunState run_saved_state(const Run* run);  // what state.json says

// ---- ranks.c

void run_find_ranks(Run* run);  // who this process is among the ranks; all but rank 0 are silent from here on
void run_open_ranks(Run* run);  // opens the Comm of all ranks
void run_set_limits(Run* run, int tp, int data_ranks);       // what plans must respect, apart from nodes and capacity
int run_node_of(const Run* run, const Comm* job, int rank);  // of a rank of this job, as --plan node-size has it
// What plans take for a node, on all ranks alike: the most data ranks such that as many, counted on from the first of
// a stage, are of one node, in every stage and at every place in tensor-parallel groups. So what a plan has inside a
// node is there; of what it has across nodes some may be inside, where nodes are unlike or begin inside a stage.
int run_node_size(const Run* run, const Comm* job, int tp, int stages);
void run_join_job(Run* run);       // divides the ranks of m->job into stages, groups and data ranks
void run_leave_job(Run* run);      // gives back what that has made, and what planning has settled
void run_compare_ranks(Run* run);  // proves that all mean the same run
void run_measure_limit(Run* run);  // of all ranks together, each on its own

// ---- run.c: what every room asks of the ranks

double run_median(double* x, int n);  // of n >= 0 numbers, which are sorted; 0 of none
// Ends the program because ranks can no longer work together.
void run_lost(const Run* run, const char* words);
// What every rank of c says: (size) values of so many bytes in memory to be freed. The greatest of their numbers.
// Collective; end the program where a rank is lost.
void* run_ask_all(const Run* run, Comm* c, const void* mine, size_t bytes);
double run_most(const Run* run, Comm* c, double mine);

typedef struct Report {
    int failed;
    char words[ERR_BYTES];
    uint64_t bytes, hash;  // of the rank's optimizer file, once it is written
} Report;

Report* reports_make(const Comm* c);  // (size), to be freed; ends the program where there is no memory
// All ranks call it. Fills all (size). 0 when every report is good, else -1 with the words of the first that is not;
// ends the program where a rank is lost.
int reports_meet(const Run* run, const Report* mine, Report* all, Err err);

double run_processor_seconds(Run* run);  // of this rank since the step began, on a CPU
void run_begin_clocks(Run* run);         // a step begins

// ---- agree.c

PlanHash run_plan_hash(const Run* run, const Batch* b);
// Ends the program where rank r has another plan of b than rank 0, or than this one where they share a job.
void run_compare_plan(const Run* run, const Batch* b, int r, PlanHash theirs, PlanHash first, PlanHash mine);
// The same of all ranks, which call it together; failed: what planning b has returned here, with Cluster.why. Returns
// whether all have a plan; else Cluster.unplanned is set.
int run_agree_on_plan(Run* run, const Batch* b, int failed);
// Ends the program on all ranks where Cluster.unplanned is set, with the words of the first rank that has some.
void run_end_unplanned(const Run* run);

// ---- layout.c, layout_auto.c

// m->ranks->layout, by --layout or by --tp, --pp, --zero and --recompute; and the limit of --memory.
void run_settle_layout(Run* run);
void run_check_layout(Run* run);  // --explain layout: prints what every stage holds
// --layout auto, on rank 0 before ranks are joined: the fastest layout that fits --memory, which it prints with what
// comes next. 0, or -1 with words.
void run_predict_layout(Run* run);  // prints on rank 0 what a step of m->ranks->layout should take, by term
int run_find_layout(Run* run, Layout* layout, Err err);

// ---- memory_ranks.c: the memory table, a function of a run and of N tokens a row

MemoryPlan run_plan_rows(const Run* run, int N);
ModelNeeds run_model_needs(const Run* run, int N);
// Of tokens, at most, that a step or a text consists of.
static inline int run_most_tokens(const Run* run) {
    return run->training ? run->config.batch_tokens : run->model.shape.context;
}
size_t run_largest_tensor(const Run* run);  // elements
// Bytes of the table of a rank of stage s. Before ranks are joined.
size_t run_memory_of(const Run* run, const Layout* layout, int s, int N);
// Of it what each layer of a rank of stage s has to itself, and behind them the embedding and the classifier: weights,
// gradients and optimizer state; what it keeps for its backward pass, of all rounds in flight.
typedef struct LayerBytes {
    size_t states, activations;
} LayerBytes;
void run_layer_bytes(LayerBytes* bytes, const Run* run, const Layout* layout, int s, int N);
void run_carve_work(Run* run, const MemoryPlan* plan, int N);  // of slow ranks

// The options with what is settled in their place, for people and files.
static inline Config run_settled_config(const Run* run) {
    Config c = run->config;
    c.layout = run->settled.layout, c.strategies = run->settled.strategies;
    if (!run->strategies) c.capacity = run->settled.capacity, c.tp = run->settled.tp, c.pp = run->settled.pp;
    return c;
}

// ---- memory.c

// When memory is taken: where the activations of each layer lie in m->acts, by run->clock->limits.capacity.
void run_carve_activations(Run* run);
MemoryPlan run_plan_job_memory(Run* run);  // settles settled.capacity
// What both need, by turns in the same memory: of every entry what the one takes that takes most.
void run_widen_memory(MemoryPlan* plan, const MemoryPlan* other);
void run_take_job_memory(Run* run, MemoryPlan* plan);

// ---- strategies.c: phases of main, for every strategy

void run_join_ranks(Run* run);  // divides them into groups and proves that all mean the same run
MemoryPlan run_plan_memory(Run* run);
void run_take_memory(Run* run, MemoryPlan* plan);
void run_find_cost(Run* run);  // all ranks call it together
// The run becomes that under this strategy, and the weights go there; between steps it is that of
// run->ahead. All ranks call it.
void run_enter_strategy(Run* run, int strategy);

// ---- state.c

void run_load_weights(Run* run);  // from start_from, or initial values
// What --dump-grads writes: every gradient under Hugging Face's names, fp32, and the tensors in extra.
void run_dump_gradients(Run* run, const SafeTensor* extra, int n_extra);

// ---- save.c

// Before anything is trained: ends the program where a checkpoint's files could not hold this model or its options.
void run_check_saving(Run* run);
// A checkpoint of run->state in the run directory `dir`. All ranks call it; it ends the program where one is lost. 0,
// or -1 with a message on all ranks: then nothing is changed there.
int run_save_checkpoint(Run* run, const char* dir, Err err);
// The last one of the run: tried three times, then in another directory; ends the program when that fails too.
void run_save_last(Run* run);
void run_save(Run* run);  // between steps; tried again later where it fails
int run_save_is_due(const Run* run);

// ---- virtual.c: --device virtual, see kernels/virtual/virtual.h. On other devices these do nothing

void run_check_virtual(Run* run);     // what goes with it; turns off what it has no results for
void run_turn_virtual(int strategy);  // its times count from here on
void run_open_virtual(Run* run);      // the machine of --machine becomes that of all ranks; its capacity and memory

// ---- planner.c

enum { SAMPLED_LENGTHS = 4096 };

const struct Planner* run_planner(const Run* run);  // of --plan, in its table; NULL: random, or a rank that is alone
// Most bytes that planning takes, beside the steps' own buffers.
size_t run_planning_bytes(const Run* run, const PlanLimits* limits, int max_tokens);
// Lengths of the first training pieces: what a planner that looks at the data set before it starts gets to see. Returns
// how many.
int run_sample_lengths(const Run* run, int* lengths);
// Ends the program where the longest documents, as they are cut to --context, have no plan.
void run_check_documents(Run* run);
void run_open_planner(Run* run);  // where the cost model is known; ends the program where the planner cannot plan

// ---- cost.c, probe.c

void run_read_machine(Run* run, Machine* machine);  // of --machine, as rank 0 reads it; all ranks call it together
// What the search for layouts knows, on rank 0 before ranks are joined, of a rank with the whole model: --machine, what
// --probe left for ranks with --tp 1, --pp 1 and --zero 1, or an estimate from the measured peak; from: words.
int run_machine_of_layouts(Run* run, Machine* machine, char from[ERR_BYTES], Err err);
// The same of groups of `tp` ranks. Returns whether --probe --tp has measured them, and no --machine is named.
int run_machine_of_groups(Run* run, Machine* machine, int tp);
// What a pipeline of such degrees takes on that machine: ms a token^2, a token, a micro-batch, of a stage, as Hydraulis
// counts (plan/published/hydraulis.h). Only what this needs of the run is there before ranks are joined.
typedef struct PipelineCost {
    double quadratic, linear, fixed;
} PipelineCost;
PipelineCost group_pipeline_cost(const GroupCost* g);
int run_pipeline_cost(const Run* run, const Machine* machine, const PipelineGroup* g, PipelineCost* out);
void run_find_job_cost(Run* run);  // fills probed, calibration, setting.cost and groups; all ranks of the job call it
void run_probe(Run* run);          // measures this machine into run->clock->probed
void run_set_cost(Run* run);       // setting.cost and groups: probed with what calibration has learnt

// Where the measurements for this run lie, or would. 0, or -1 with a message (no home directory, too long a path).
int cost_cache_path(const Run* run, char path[DISK_PATH], Err err);
// Writes run->clock->probed there, whole or not at all. 0, or -1 with a message.
int cost_cache_save(const Run* run, Err err);

// A row that was timed: documents with sum of squares s2, `tokens` in all.
typedef struct ProbeTime {
    double s2, tokens, ms;
} ProbeTime;

// The constants c >= 0 for which the relative errors of c[0] s2 + c[1] tokens + c[2] have the least sum of squares.
// n >= 1; what the rows do not tell apart is given to as few constants as will do.
void probe_fit(double c[3], const ProbeTime* rows, int n);

// ---- first_screen.c

// Whether a run says only what a person needs first; all of it stands in log.jsonl.
static inline int run_is_brief(const Run* run) {
    return (run->books->claims || run->books->uses_model || run->config.explain) && !run->config.verbose;
}
void run_print(const Run* run, const MemoryPlan* plan);

// ---- report.c

// The loss of a model that knows nothing but how often each token occurs: frequencies of (the first millions of) the
// training tokens, each counted once more so that none has probability zero. What a language model must beat. Also
// finds val_bytes.
// Overwrites run->batch.
void run_unigram_loss(Run* run);
// --explain: the plan in run->batch beside what other planners do, on the terminal and as a page. On rank 0. explain.c
void run_explain(const Run* run);
Comm run_sent(const Run* run);  // bytes and waiting of this rank in all its Comms so far; the rest is the world's
// Of run->batch, which took so long; before: run_sent as it was when the step began. r->plan_stall_us is known.
void run_fill_record(Run* run, StepRecord* r, double seconds, const Comm* before);
// Keeps what is told to the others in the next agreement. The first step of an invocation also pays for what is touched
// and opened first: nothing is learnt from it.
void run_remember_step(Run* run, const StepRecord* r);
// At the end: how far it came and what to do next; with --verbose also what was really taken of the host's memory, and
// with several ranks how planning went, what all of them sent and how long they waited for it. All ranks call it.
void run_print_end(Run* run, double seconds);

// ---- events.c: lines of log.jsonl beside those of steps, on rank 0

void run_log_start(Run* run);  // the options and what the run consists of
// report.html is made of the lines of log.jsonl as they come; both do nothing but on rank 0.
void run_open_report(Run* run);
void run_write_report(Run* run);
void run_reports(Run* run);  // --report: of other runs; ends the program
// With one more member, a string.
void run_log_event(Run* run, const char* event, const char* name, const char* value);

// ---- dump.c

// The loss and gradients of the planned step in run->batch, fp32, into the file of --dump-grads. With one rank also the
// logits of its tokens in the order in which their documents were drawn, whatever the packing: "logits" (tokens, V) and
// "documents" (tokens), the ids.
void run_dump(Run* run);

// ---- sample.c

// Of a run's own prompts, which: 0 or 1; for the log too.
enum { SAMPLES_OF_A_STEP = 2 };
void run_log_sample(Run* run, int which, uint64_t seed);
void run_sample(Run* run);  // both, between steps

// ---- eval.c

// See RunRanks.
int eval_plan(Run* run);
int eval_end(Run* run);
double eval_loss_sum(Run* run);
void eval_tell(Run* run);    // of an evaluation between steps
void run_eval(Run* run);     // --eval
void run_choices(Run* run);  // --eval

// ---- pace.c: steps that take long

extern volatile sig_atomic_t interrupted;  // the signal that asks for an end, 0 none
void run_catch_signals(const Run* run);    // from here on
// Between steps, whether the run ends: alone by the signal itself, with others by what all have agreed on.
void pace_see_signals(Run* run);
// What the matmuls of linear layers and of attention reach of the peak, roughly, before anything is measured.
#define LINEAR_SHARE_OF_PEAK 0.5
#define ATTENTION_SHARE_OF_PEAK 0.25
// Of a step or an evaluation of all ranks, by its operations and the peak; NaN where that is not known.
double run_expected_seconds(const Run* run, const Batch* b);
void run_tell_of_long_steps(const Run* run);  // before the first one, on rank 0: what it should take, what to lower
// Around the tasks of run->batch; end: behind all batches of an evaluation, or a step.
void pace_begin(Run* run, int train);
void pace_end_task(Run* run, const Task* task);  // says how far it is, now and then
void pace_end(const Run* run);
void pace_say_left(Run* run);  // instead of the line of a step
// Whether this task is left out, because the run is to end and much of the step is ahead. Those who share its pass take
// the same decision. All that is collective at the end of the step has to come all the same.
int pace_leaves(Run* run, const Task* task);
