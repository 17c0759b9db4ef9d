// simulate.h - what the files of the simulator share: options, machine, lengths, and the results of each planner.
#pragma once
#include "dev/lengths.h"
#include "plan/cost/machine.h"
#include "plan/options/read.h"
#include "plan/published/published.h"

enum { MOST_TALLIES = 32 };

typedef struct Options {
    const char *machine, *lengths;         // a name that the program knows, or a file
    const char *plans, *speeds, *explain;  // NULL: not given
    const char* capacities;                // "FIRST N; ..." of ranks; NULL: all are alike, or as the machine says
    const char *layout, *model, *layout_file, *way;  // of simulate_layout.c
    int ranks, node_size, docs, context, batches, capacity, zero, json, cp_kind, route, remap;
    enum { OVERLAP_NO, OVERLAP_PASSES, OVERLAP_YES } overlap;
    int64_t seed;
    double memory;    // of simulate_layout.c; 0: not given
    double patience;  // seconds of planning that each planner gets; 0: no limit
} Options;

// One planner on all batches.
typedef struct Tally {
    const char *name, *words;
    const Planner* planner;
    Setting setting;    // by which it plans and is played: the simulation's, or that of a baseline
    GroupCost* groups;  // of a baseline's; NULL: the simulation's
    void* state;
    int out;              // it failed and is left out
    char why[ERR_BYTES];  // the reason
    int batches;          // counted below
    double ms, ms_worst;  // sums over batches, and the worst of one
    double rounds_ms;     // the same plans in rounds
    double step_ms;       // whole steps, beside weights and gradients
    double gap, gap_worst;
    double shares_gap;    // over L4
    double us, us_worst;  // of planning
    double idle, communication_share;
} Tally;

typedef struct Simulation {
    const Options* options;
    Machine machine;
    Setting setting;
    double* speeds;
    int* capacities;
    Lengths* lengths;
    int* drawn;         // (docs) the batch
    int* sorted;        // (docs) the same, descending
    double l1, l3, l4;  // sums over batches
    double tokens;
    int longest;
    int n_tallies;
    Tally* tallies;
    Arena planners;  // what they settled before the first batch
} Simulation;

// simulate_options.c: ends the program with a line where the command line is wrong, and for --help.
Options read_options(int argc, char** argv);
// The machine of that name, or in that file; the same end.
void open_machine(Machine* machine, const char* name);
// Lengths of that name, or in that file.
Lengths* open_lengths(const char* name, int context, int capacity);
// simulate_layout.c: --layout, instead of plans.
void simulate_layout(const Options* options);
// Opens all that the options name; the same end where something is wrong. close_simulation frees it.
void open_simulation(Simulation* s, const Options* options);
void close_simulation(Simulation* s);
// simulate_base.c: memory, or the same end.
void* need(size_t bytes);
// The words of --model as train's options; the same end. The caller frees it.
Config read_model(const char* text, int ranks);
