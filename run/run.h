// run.h - the parts of a run: all that main has. The header of each room declares what the room does for it.
//
// Read in the order of main: setup/start.c (options, data, device), ranks.c, files/origin.c (directory, checkpoint),
// setup/layout.c, memory.c (the memory table), files/state.c (weights from and to files), setup/cost.c (what planners
// know of this machine) and step/probe.c (how it is measured), files/save.c, show/report.c (what is said).
#pragma once
#include "data/checkpoint.h"
#include "data/run_dir.h"
#include "data/run_state.h"
#include "data/runlog.h"
#include "data/safetensors.h"
#include "kernels/host.h"
#include "plan/base/terminal.h"
#include "plan/cost/calibration.h"
#include "plan/cost/machine.h"
#include "plan/options/read.h"
#include "plan/slow/speeds.h"
#include "plan/step/flex.h"
#include "run/core.h"
#include "run/model/model_ranks.h"

// ---- what a run has

// What a rank tells all others of its step, in slices and ms; times are 0 in a step that was not timed.
typedef struct RankReport {
    double linear, attention, other, update, wait;
    double pruned, sent, taken;
    CostTerms expected;  // of what it had to compute, at full pace, as the machine was probed; without communication
    double emulated;     // of its group: sum over segments of the slowest rank's computing; 0 where it was not measured
} RankReport;

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

typedef struct Ahead Ahead;          // step/ahead.c
typedef struct RunPage RunPage;      // show/run_page.h
typedef struct Agreement Agreement;  // step/step.h

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
