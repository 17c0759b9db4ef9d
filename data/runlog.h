// runlog.h - what a run leaves behind and what a person sees: log.jsonl, an object a line, and one line a step on the
// terminal. data/README.md has the members of an object; numbers read back to the same double, those of ranks have four
// digits. On a terminal the line of a step rewrites itself and colour is used; elsewhere every line stays.
#pragma once
#include <stdint.h>
#include <stdio.h>

#include "plan/value/plan.h"

// One rank in one step; NaN: not known.
typedef struct RankStep {
    float compute_ms, wait_ms;  // computing; standing still for others; not known in a step that was not timed
    float gamma;                // fraction of its resizable matmuls that was left out
    float sent, taken;          // work given away and taken over, counted in hidden units of the MLP
    float speed;                // as plans see it, 1 being usual; of a tensor-parallel rank: hidden units a millisecond
} RankStep;

// Kinds of bytes that a rank sends: by purpose, and the same bytes by destination, in the order of "bytes" in the log.
typedef enum SentKind {
    SENT_ULYSSES,
    SENT_RING,
    SENT_ROUTING,
    SENT_REMAP,
    SENT_GRADIENTS,
    SENT_PARAMETERS,
    SENT_TENSOR,
    SENT_SLICES,
    SENT_INSIDE,
    SENT_ACROSS,
    SENT_KINDS
} SentKind;

typedef struct StepRecord {
    int64_t step, steps;  // this one (from 1), and of the whole run
    double loss, grad_norm, lr;
    int64_t tokens, targets;
    double reward;  // mean of the answers that have one; NaN: none has
    int64_t drawn;  // tokens before documents were joined; 0: they never are
    int micro_batches;
    double seconds, mfu;
    // NaN or 0 where they are not known: cores of all ranks; the share of their time that these used; the share, of the
    // time in which this rank wanted a core, in which it had one.
    double cores, used, had;
    int virtual_time;  // seconds are virtual
    const char* planner;
    const char* strategy;  // of --strategies; NULL: there are none
    double moving_ms;      // then: part of predicted_ms, for gradients to their owners and weights to the next step
    const Plan* plan;      // NULL: not known
    double plan_us, plan_stall_us;
    double plan_ms;  // part of predicted_ms that the plan takes by itself; NaN: not known, as for all of these
    double predicted_ms, measured_ms, gap;
    int stages, rounds, in_flight;  // of a pipeline; stages 1: there is none
    double bubble;
    double emulated_ms;         // 0 or NaN: not known
    uint64_t sent[SENT_KINDS];  // bytes
    const RankStep* ranks;      // (n_ranks); NULL: not known
    int n_ranks;
    double exposed_seconds;  // this rank stood still for other ranks
    double seconds_left;
    uint64_t loss_hash;
} StepRecord;

// Smoothed loss and speed, which the line of a step shows instead of the step's own; see progress_add.
typedef struct Smooth {
    double loss, losses, tokens, seconds;
    double at_peak, busy, had;  // seconds: busy ones as they would be at the peak; busy ones; those with a core
} Smooth;

typedef struct RunLog {
    int fd;           // -1: no log
    char path[4096];  // DIR/log.jsonl
    char* pending;    // (used of room) lines that are not in the file yet; the one that is being made begins at `line`
    size_t used, line;
    int64_t room;
    int torn;         // no memory for a part of that line
    int is_late;      // lines could not be written, and somebody was told
    int is_terminal;  // stdout is one that lines can be rewritten on
    Smooth smooth;
    int line_open;  // a progress line waits to be overwritten
    double last_print;
} RunLog;

// Opens DIR/log.jsonl for appending. Nothing is lost: what a run that resumes will write again, the lines from the
// first of a step after `last_step` on, goes to DIR/log.N.jsonl for a free N; a new run renames an older log so. Lines
// that cannot be read stay, with a warning. 0, or -1 with a message. log->fd = -1 is a log that is not written.
int runlog_open(RunLog* log, const char* dir, int resumes, int64_t last_step, Err err);
// Each writes a line; one that cannot be written is kept and tried again with the next. 0, or -1 when megabytes wait.
int runlog_step(RunLog* log, const StepRecord* record);
int runlog_eval(RunLog* log, int64_t step, double val_loss, int64_t targets, double bits_per_byte);
// Writes an event that happened when `at` steps were done; more: further members, each after ", ", or "".
int runlog_event(RunLog* log, const char* event, int64_t at, const char* more);
// Sends lines that wait and all later ones to a new DIR/log.jsonl; without any the log stays as it is. 0, or -1 with a
// message: they wait on.
int runlog_move(RunLog* log, const char* dir, Err err);
int runlog_close(RunLog* log);  // tries once more. 0, or -1: lines are lost, which was told

// A line for people that stays: ends an open progress line first. strong: in bold, where there is a terminal.
__attribute__((format(printf, 2, 3))) void runlog_say(RunLog* log, const char* format, ...);
__attribute__((format(printf, 2, 3))) void runlog_strong(RunLog* log, const char* format, ...);

// ---- the line of a step for eyes: no wider than the terminal, loss and speed smoothed

// Adds a step to the means of all steps so far, in which each step back counts 0.9 times the next.
void progress_add(Smooth* smooth, const StepRecord* r);
// Writes the line without its end, of fewer than `columns` (0: any number of) characters where that can be: fields are
// left out, the least wanted first; step and loss stay.
void progress_line(char* text, size_t room, const Smooth* smooth, const StepRecord* r, int columns);
// Prints a line; where lines are rewritten it takes the place of the last one, and "" leaves that place empty.
void progress_print(const char* line, int rewrites);
// Returns whether lines may be rewritten and coloured: stdout is a terminal, TERM is not dumb, NO_COLOR is not set.
int progress_is_terminal(void);
// Returns the terminal's columns now; 0: not known.
int progress_columns(void);

// Writes a number of JSON with `digits` digits; null if it is not finite, which JSON has no word for.
const char* runlog_number(double x, int digits, char text[32]);
