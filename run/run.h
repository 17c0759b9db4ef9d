// run.h - the parts of a run: all that main has. The header of each room declares what the room does for it.
//
// Read in the order of main: setup/start.c (options, data, device), ranks.c, files/origin.c (directory, checkpoint),
// setup/layout.c, memory.c (the memory table), files/state.c (weights from and to files), setup/cost.c (the machine
// that planners know) and step/probe.c (which measures it), files/save.c, show/report.c (which tells people).
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
#include "run/core_ranks.h"
#include "run/model/model_ranks.h"

// ---- what a run has

// A rank's report of its step to all others. Times are ms, and 0 in a step that was not timed.
typedef struct RankReport {
    double linear, attention, other, update, wait;
    double pruned, sent, taken;  // share of resizable work left out; slices given to others; slices taken from them
    CostTerms expected;          // its own work at full pace, as the machine was probed; without communication
    double emulated;             // sum over segments of its group's slowest computing; 0: not measured
} RankReport;

// Sums over the steps of this invocation; worst_us is the most that planning took in one.
typedef struct PlanningSums {
    int64_t steps, predicted, tokens, drawn;
    double plan_us, worst_us, stall_us, gap;
} PlanningSums;

// The progress of a step or of an evaluation through its passes.
typedef struct Pace {
    double started, told;  // seconds: when it began; when a line last told of it
    double before, part;   // shares of an evaluation before these passes and in them; 0 and 1 in a step
    int64_t done, all;     // tokens of this rank; a backward pass counts each twice
    int left_from, asks;   // the first pass that is left out; 1: ranks ask each other before they leave any
} Pace;

// The peaks that this rank divides by for a step's share of the peak. One that was measured beside other work is too
// low, so it is measured again. Plans keep the first (Cluster.peak), because all ranks must have the same.
typedef struct PeakShare {
    double peak, mine;  // FLOP/s of all ranks; of this one
    double cores;       // of this rank
    int times;          // measured again
} PeakShare;

enum { WRITTEN_FAR = 1, WRITTEN_CLOSE = 2 };  // the checkpoint, the close copy

// The checkpoints of this invocation.
typedef struct Saving {
    int64_t done;         // the step of the last one that was saved; -1: none
    int64_t again, wait;  // the step that tries a failed save again, 0: none failed; steps until then
    int all_written;      // WRITTEN_... of files on their way that every rank has written
    int is_due;           // 1: one is due by rank 0's clock
    double begun;         // now_seconds when the last one, or the first step, began
    SafeImage copy;       // is written while training goes on; bytes NULL: there is no room for it
} Saving;

typedef struct Ahead Ahead;          // step/ahead.c
typedef struct RunPage RunPage;      // show/run_page.h
typedef struct Agreement Agreement;  // step/step.h

// The time of steps: where it goes, and what the cost model has learnt from it.
typedef struct Timing {
    Calibration calibration;
    Ahead* planner;
    double last_ms;                        // ms of the step before; 0: nothing is learnt from it
    double last_late_ms;                   // its BatchPlan.late_ms
    double last_terms[CALIBRATION_TERMS];  // its terms
    PlanningSums planning;
    Pace pace;
    double step_began;        // run_seconds when the step at work began
    double processor_before;  // CPU seconds of this rank's threads when it began
    HostTurns turns_before;   // the turns when the step before ended
} Timing;

// This rank among all ranks: who they are, what they have, what they agreed on last.
typedef struct Cluster {
    RankIdentity identity;
    int forks;             // 1: ranks are forked once all that they share is read
    int searches;          // 1: the program is build/simulate, whose ranks need not exist
    Agreement* agreed;     // (ranks) the last of each rank
    int unplanned;         // some rank could not plan what comes next: all end after this step
    int given_up;          // some rank is too slow (--give-up-below): all end after this step
    char why[ERR_BYTES];   // why this rank could not plan; empty: it could
    int oversubscribed;    // ranks of this node share its cores
    HostMemory available;  // this rank's memory, before any rank took its table
    int answers;           // most answers that --rollouts draws side by side; 0: no --rollouts
    int64_t prompts;       // its prompts, lines of --data
    int cache_tokens;      // tokens of the KV cache for prompts, and a new one for each answer
    int answer_tokens;     // tokens of the KV cache for what answers have so far
    int64_t tree_room;     // most tokens of a tree that stays one piece of a step; 0: not known
    int step_tokens;       // most tokens of a step, with those that cut trees compute again; 0: as they are drawn
    size_t most_scratch;   // KernelLimits.most_scratch: an eighth of `available`, or 1 if memory is short
    Straggler stragglers[MOST_STRAGGLERS];
    int n_stragglers;
    double peak;   // FLOP/s of all ranks together, measured by kernels_peak; NaN: not known
    double cores;  // CPU cores of all ranks; 0: not known
    PeakShare share;
    double processor;   // CPU seconds of all ranks' threads in the step at work
    Comm sent_before;   // run_sent when the step began
    RankReport report;  // of this rank's last step
    Timing timing;
} Cluster;

// The planners' knowledge of the machine. Planners run on the thread of ahead.c: see ahead_start. Each strategy has a
// Clock of its own.
typedef struct Clock {
    PlanLimits limits;
    Setting setting;       // groups is NULL as long as no cost model is known
    GroupCost* groups;     // (ranks + 1) for setting
    int* capacities;       // (ranks) limits.capacities, if they are unlike
    double* stage_speeds;  // (stages, ranks) the speed of each rank of each stage; 1: full
    double* paces;         // (ranks) speeds over all stages (layout_pace); setting.speeds, if one is not 1
    WeightTimes stage_weights[MOST_STAGES];
    Machine probed;    // as measured or read, nothing calibrated
    void* settled;     // the state that the planner of --plan opened; NULL: there is no such planner
    Arena settled_in;  // holds that state
} Clock;

// The run's origin, the files that it writes, and what it tells people.
typedef struct Books {
    char command[CHECKPOINT_PATH];     // the command that starts it, with its launcher, without options: to paste
    char out[CHECKPOINT_PATH];         // the run directory; empty: none was named, and none is needed
    char start_from[CHECKPOINT_PATH];  // the checkpoint that --resume, --init or --sample begins with; empty: none
    char base[CHECKPOINT_PATH];        // with adapters: the model whose weights are frozen; empty: there are none
    int claims;                        // 1: it trains; no other claims a directory or writes checkpoints
    const char* uses_model;            // the option by which a checkpoint is only read; NULL: there is none
    RunDir dir;                        // held by rank 0 of a run that writes
    int pin;                           // rank 0's pin of start_from; -1: none
    Saving saving;
    char *close_room, *close_stage;  // parts on their way: on the host; on the device
    float* logits;                   // (Vp) of a token: token_logits
    float* staging;                  // the largest tensor, on its way to or from a file
    float *part, *others;            // its largest parts in a tensor-parallel group, see tp_join
    float* collected;                // optimizer state on its way to a file, see state.c
    RunState saved;                  // the saved members that Run.state lacks
    StepRecord record;               // the step at work
    RunLog log;
    RunPage* page;           // report.html; NULL but on rank 0
    int64_t first_step;      // steps done before this invocation
    double steps_began;      // now_seconds when the first step of this invocation began
    int failed;              // something of the run could not be kept: status 1
    size_t memory_bytes;     // of the memory table
    double resident_before;  // bytes of this process before the table's memory was taken
    double val_began;        // now_seconds when the evaluation began
    double val_bytes;        // mean bytes of text of a validation target; NaN: not known
    int64_t unlearnt;        // training pieces that are never drawn (sampler_check_labels)
    double unigram_loss;     // see run_unigram_loss
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

// Returns seconds from any origin: virtual ones on a virtual device.
static inline double run_seconds(const Run* run) {
    return run->model.k->virtual_time ? run->model.k->clock() : now_seconds();
}
// Returns 1 if the run says only what a person needs first; log.jsonl has all of it.
static inline int run_is_brief(const Run* run) {
    const Books* x = run->books;
    return (x->claims || x->uses_model || run->config.explain || run->cluster->searches) && !run->config.verbose;
}
// Returns the most tokens of a step, or of a generated text.
static inline int run_most_tokens(const Run* run) {
    return run->training ? MAX(run->config.batch_tokens, run->cluster->step_tokens)
                         : MAX(run->model.shape.context, run->cluster->answers);
}
static inline DType run_gradients_travel_as(const Run* run) {
    return !strcmp(run->config.grad_dtype, "bf16") ? DT_BF16 : DT_F32;
}
// run/strategies/: the run under each strategy of --strategies, 0 .. run_layouts - 1; else the run itself, alone.
Run* run_under(Run* run, int strategy);
int run_layouts(const Run* run);
Config run_settled_config(const Run* run);  // the options with settled values in their place, for people and files
void run_path(char path[CHECKPOINT_PATH], const char* dir, const char* name);  // dir/name; dies if it is too long
double run_median(double* x, int n);                                           // sorts n >= 0 numbers; 0 for none
// Fills lengths (SAMPLED_LENGTHS) with those of the first training pieces, and returns their number. Planners that look
// at the data before the first step see these.
enum { SAMPLED_LENGTHS = 4096 };
int run_sample_lengths(const Run* run, int* lengths);
int run_joins(const Run* run);  // 1: documents of a step that begin alike are joined (--shared-prefix)
// Says for people how many of the drawn tokens are computed then. Returns words.
const char* run_joined(int64_t tokens, int64_t drawn, char words[96]);
int run_has_trees(const Run* run);  // 1: documents are trees, or may be joined to some
// Sets Clock.paces and setting.speeds from stage_speeds.
void run_set_paces(Run* run);
// Writes an event into log.jsonl with one more member, a string; on rank 0.
void run_log_event(Run* run, const char* event, const char* name, const char* value);

void run_lost(const Run* run, const char* words);  // ends the program: words, and how to go on
// These are collective, and end the program if a rank is lost. run_tell_all copies rank 0's bytes to all ranks of c.
void run_tell_all(Comm* c, void* what, size_t bytes);
// Returns (size) values of `bytes`, one from every rank of c, to be freed; run_most the greatest number of all.
void* run_ask_all(const Run* run, Comm* c, const void* mine, size_t bytes);
double run_most(const Run* run, Comm* c, double mine);

// Ranks tell each other whether they have failed, and why. 0, or -1 on all with the words of the first that has.
int run_meet(const Run* run, int failed, const char* words, Err err);
