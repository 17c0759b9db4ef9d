// setup.h - from the command line to a run that is ready, in the order of main: start.c (options, documents, device),
// ranks.c, layout.c, memory.c (the memory table), virtual.c, cost.c (what planners know of this machine).
#pragma once
#include "run/step/step.h"

// ---- the parts of a run

// The parts that a Run points to, but for those that are opened later.
typedef struct RunParts {
    Cluster cluster;
    Clock clock;
    Books books;
    ModelRanks ranks;
    BatchPlan planned[2];
} RunParts;

static inline void run_attach(Run* run, RunParts* parts) {
    run->cluster = &parts->cluster, run->clock = &parts->clock, run->books = &parts->books;
    run->books->dir.lock = run->books->pin = -1;
    run->batch.planned = &parts->planned[0], run->ahead.planned = &parts->planned[1];
    model_set_ranks(&run->model, &parts->ranks);
}

// ---- setup/start.c: every phase ends the program with one line if it cannot go on

void run_read_options(Run* run);  // --help ends here; finds the command and the device
void run_say_what_if(Run* run);   // ends --what-if with the command of build/simulate that answers it
void run_open_data(Run* run);     // tokenizer, documents
void run_settle_model(Run* run);  // element type, shape; opens the samplers

// ---- setup/ranks.c

void run_find_ranks(Run* run);     // finds this process among the ranks; all but rank 0 are silent from here on
void run_ask_for_ranks(Run* run);  // --ranks; until they are forked this process is rank 0, with a Comm of its own
void run_open_ranks(Run* run);     // opens the Comm of all ranks
void run_fork_ranks(Run* run);     // once all that they share is read
void run_set_limits(Run* run, int tp, int data_ranks);       // clock->limits, but for nodes and capacity
int run_node_of(const Run* run, const Comm* job, int rank);  // the node of a rank of this job, by --plan node-size
// Returns the ranks of a node as plans count them: the most data ranks such that as many, from the first of a stage on,
// are on one node, in every stage and at every place in tensor-parallel groups (run/README.md, Nodes).
int run_node_size(const Run* run, const Comm* job, int tp, int stages);
// Divides the model by m->ranks->layout: this rank's part is in this stage, and at its place in m->tp; the ranks of
// m->comm have the same.
void run_divide_model(Run* run, int stage);
void run_join_job(Run* run);       // divides the ranks of m->job into stages, groups and data ranks
void run_leave_job(Run* run);      // gives that back, and what planning has settled
void run_compare_ranks(Run* run);  // proves that all mean the same run
void run_measure_limit(Run* run);  // the peaks of all ranks, each measured on its own, and their sum

// ---- setup/layout.c

// Settles m->ranks->layout, by --layout or by --tp, --pp, --zero and --recompute, and the limit of --memory. A search
// may find strategies instead: then they are settled, too.
void run_settle_layout(Run* run);
// Asks the search, on rank 0, for the ms of a step: ms[0] of the layout at work with `rank` at this pace, ms[1] of the
// best one on the ranks of `rest`, which need not be open; infinite: none fits. Returns 0, or -1 with a message.
int run_layout_without(double ms[2], const Run* run, int rank, double pace, Comm* rest, Err err);
// Asks for the ms of a step of the layout at work; slow_rank computes at `pace` if that is above 0.
int run_ask_time(double* ms, const Run* run, int slow_rank, double pace, int tells, Err err);

// ---- setup/memory.c: the memory table, a function of a run and of N tokens a row

ModelNeeds run_model_needs(const Run* run, int N);
MemoryPlan run_plan_rows(const Run* run, int N);  // the table of this rank, with rows of N tokens
// Places the activations of each layer in m->acts, by run_capacity, when memory is taken.
void run_carve_activations(Run* run);
void run_carve_work(Run* run, const MemoryPlan* plan);  // places the work of slow ranks
void run_find_available(Run* run);                      // Cluster.available
MemoryPlan run_plan_job_memory(Run* run);               // settles the tokens of each rank: settled, clock->limits
// Returns the most tokens of a row of this rank.
static inline int run_capacity(const Run* run) { return rank_capacity(&run->clock->limits, run->model.comm->rank); }
MemoryPlan run_plan_memory(Run* run);  // of all strategies, which use it by turns
void run_take_memory(Run* run, MemoryPlan* plan);

// ---- setup/virtual.c: --device virtual, see kernels/virtual/virtual.h. On other devices these do nothing

void run_check_virtual(Run* run);     // refuses options that need results; turns off what nobody asked for
void run_turn_virtual(int strategy);  // the times of this strategy count from here on
void run_open_virtual(Run* run);      // every rank takes the times, capacity and memory of --machine

// ---- setup/cost.c

const struct Planner* run_planner(const Run* run);  // of --plan, in its table; NULL: random, or a rank that is alone
// Returns the most bytes that planning takes, beside the steps' own buffers.
size_t run_planning_bytes(const Run* run, const PlanLimits* limits, int max_tokens);
// Reads a file or a name, with the times of this model's matmuls. 0, or -1.
int run_machine_named(const Run* run, Machine* machine, const char* name, Err err);
void run_read_machine(Run* run, Machine* machine);  // --machine, as rank 0 reads its file; all ranks call it together
// Turns times of matmuls of weights that all learn, which files have, to those of this model (1), or back (-1).
void run_fit_machine(const Run* run, Machine* machine, int direction);
// Finds the machine for a search for layouts on these ranks, on rank 0 before they are joined: as in run_find_job_cost,
// but of a rank with the whole model (--tp 1, --pp 1, --zero 1), with the times of tensor-parallel groups that --probe
// --tp has measured. from: words. Returns 0, or -1 with a message.
int run_machine_of_layouts(const Run* run, Comm* ranks, Machine* machine, char from[ERR_BYTES], Err err);
// Takes --machine, what --probe left for such a run, or an estimate from the measured peak. Fills probed, setting.cost
// and groups, starts the calibration, and opens the planner. All ranks of the job call it together.
void run_find_job_cost(Run* run);
void run_set_cost(Run* run);  // sets setting.cost and groups by probed and what calibration has learnt
// Writes run->clock->probed to where runs like this one find it: path. Returns 0, or -1 with a message.
int run_save_machine(const Run* run, char path[DISK_PATH], Err err);

// ---- phases of main, for every strategy or for the one layout: run/strategies/

// Ends the program if options have no meaning, or are missing, while layouts change.
void strategies_refuse_others(const Run* run);
void run_join_ranks(Run* run);  // divides ranks into groups and proves that all mean the same run
// Makes the model that owns this rank's piece of every bucket of the whole model's states, as strategies have it.
void strategies_own(Model* owner, ModelRanks* ranks, const Model* m);
void strategies_carve(Run* run, const MemoryPlan* plan);  // hands memory that was taken to all strategies
void run_find_cost(Run* run);                             // all ranks call it together
// Sends the weights to where this strategy has them, and makes the run that under it (strategies.c). Between steps the
// strategy is that of run->ahead. All ranks call it.
void run_enter_strategy(Run* run, int strategy);
