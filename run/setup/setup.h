// setup.h - from the command line to a run that is ready, in the order of main: start.c (options, documents, device),
// ranks.c, layout.c, memory.c (the memory table), virtual.c, cost.c (what planners know of this machine).
#pragma once
#include "run/step/step.h"

// ---- what a run stands on

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
    run->books->dir.lock = run->books->pin = -1;
    run->batch.planned = &parts->planned[0], run->ahead.planned = &parts->planned[1];
    model_set_ranks(&run->model, &parts->ranks);
}

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

// ---- phases of main, for every strategy or for the one layout: run/strategies/

void run_join_ranks(Run* run);  // divides them into groups and proves that all mean the same run
MemoryPlan run_plan_memory(Run* run);
void run_take_memory(Run* run, MemoryPlan* plan);
void run_find_cost(Run* run);  // all ranks call it together
// strategies.c: the run becomes that under this strategy, and the weights go there; between steps it is that of
// run->ahead. All ranks call it.
void run_enter_strategy(Run* run, int strategy);
