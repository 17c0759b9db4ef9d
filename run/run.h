// run.h - the objects of a run, and the phases that set them up before the first step of train_gpt.cu.
//
// Read in the order of main: start.c (options, data, device), memory.c (the memory table), show.c (what is printed),
// state.c (weights from and to files), cost.c (what planners know of this machine), ahead.c (the next step's plan),
// record.c (what is known of a step afterwards).
#pragma once
#include "data/checkpoint.h"
#include "data/docs.h"
#include "data/run_state.h"
#include "data/runlog.h"
#include "data/safetensors.h"
#include "data/sampler.h"
#include "data/tokenizer.h"
#include "kernels/comm.h"
#include "kernels/group_attention.h"
#include "kernels/kernels.h"
#include "plan/config.h"
#include "plan/machine.h"
#include "plan/calibration.h"
#include "plan/shape.h"
#include "plan/step.h"
#include "plan/straggle.h"
#include "run/balance.h"
#include "run/tp.h"
#include "run/work.h"
#include "run/zero.h"

struct Model {
    Shape shape;  // of the part of the model that this rank holds
    Shape whole;  // of all of it, for files; its shards are all ranks
    DType dt;
    Recompute recompute;
    const Kernels* k;
    Stream s;
    Comm* world;    // all ranks
    Comm* comm;     // the data ranks: those that hold the same part of the model
    Comm* tp;       // the tensor-parallel group of this rank; NULL: it is alone and holds the whole model
    TpSplit split;  // how the group divides the model; shape is this rank's part of it
    Work* work;     // what this rank computes of its part, and of others'; NULL: what it owns, always
    Zero zero;      // who holds what of the following: see run/zero.h
    double *loss_sum, *grad_norm2;  // (1) each, one behind the other, on the device: of the rows of a step
    float* grad_scale;              // (1) on the device
    char* acts;
    Activation act_table[N_ACTS];
    int classifier_N;                 // rows of one chunk of the classifier
    void* group_scratch;              // for attention over several ranks
    Timer* timer;                     // where the time of a step goes
    double injected_slowdown;         // an injected straggler computes its linears so many times more; 0 usually
    void *discarded, *discarded_too;  // what it computes again
    char* columns[2];                 // (N, the widest input of a linear) each, for resized ones
    void *zeros, *spent;  // of a rank that gave all its heads away: (max(N, C)) zeros; (C) fp32 that nobody reads
};

// A row on the device: N tokens that this rank holds of a micro-batch's documents. Generation: one document, of which
// `cached` tokens lie in the KV cache and N new ones follow them.
struct Row {
    int N;
    int n, first, own;                  // of a tensor-parallel group: see run/tp.h. This rank has tokens first ..
                                        // first + own, own <= n; alone n = own = N
    int *tokens, *positions, *targets;  // (N)
    int* rows;                          // (N) of wte that this rank holds, -1 where it does not; unused when alone
    GroupAttention group;               // the documents, and the ranks that share them
    int* cu;                            // generation: (2) for the queries, (2) for the keys
    int use_cache, cached;
};

// A micro-batch of the plan as this rank sees it.
typedef struct RankMicroBatch {
    const MicroBatch* mb;  // NULL: nothing to do in this round
    Share share;
    int tokens, cu, ring;  // where its values begin in Batch.tokens, .cu and .ring
} RankMicroBatch;

// Host side of a step: the pieces of documents that were drawn, the plan, and what this rank does of it.
typedef struct Batch {
    int max_tokens;
    Piece* pieces;  // (max_tokens) of all ranks
    int* lengths;   // (max_tokens)
    int n_pieces;
    int64_t n_tokens, n_targets;
    double sum_s2;          // sum of squared lengths, for the FLOP count
    SamplerPosition after;  // where the next step's documents begin
    Plan plan;
    double plan_us;                   // what planning took, all of it
    int predicted;                    // prediction and terms are known
    Prediction prediction;            // under the model that planned
    double terms[CALIBRATION_TERMS];  // of the prediction under the model before it was calibrated, and Cost.step
    RankMicroBatch* micro_batches;    // (max_tokens) in the order in which this rank runs them
    int n_micro_batches;
    // What kernels need to know of a step, in host memory that the device reads from while the host goes on, and the
    // device's copy; one of each for all Batches, so that only one of them can be at work.
    int *indices, *device_indices;
    int *tokens, *positions, *targets;  // (max_tokens) in indices: of this rank's micro-batches one after another
    int* rows;                          // Row.rows likewise; NULL when alone
    int *cu, *ring;                     // in indices: cu_seqlens; tokens of all places of a ring, and of these the low
    Span* spans;                        // (2 * max_tokens) of one micro-batch
    void* plan_scratch;                 // of all Batches: one is planned at a time
} Batch;

typedef struct Data {
    Tokenizer* tokenizer;
    int guessed_bytes;      // no tokenizer was named or came with the checkpoint
    Docs *docs, *val_docs;  // val_docs only with --val
    Sampler *train, *val;   // one and the same unless --val names documents of its own
} Data;

// What one rank tells all others before the first exchange of a step.
typedef struct Agreement {
    uint64_t plan;      // hash of the plan and of what the cost model has learnt
    uint64_t signal;    // that asks for an end, 0 none
    double ms;          // of the last step; 0: nothing to learn from
    RankReport report;  // of this one
} Agreement;

// Of the steps of this invocation.
typedef struct PlanningSums {
    int64_t steps, predicted;
    double plan_us, worst_us, stall_us, gap;
} PlanningSums;

typedef struct Ahead Ahead;  // ahead.c
typedef struct Run Run;

struct Run {
    Config config;
    Data data;
    Model model;
    RankIdentity identity;
    Batch batch, ahead;  // the step at work, and the next one, planned already
    PlanLimits limits;
    float *host_logits, *host_scratch;  // (Vp) of one token, for sampling
    float* staging;                     // the largest tensor, on its way to or from a file
    float *part, *others;               // its largest parts in a tensor-parallel group, see tp_join
    float* collected;                   // optimizer state on its way to a file, see state.c
    RunLog log;
    RunState state;
    char out[CHECKPOINT_PATH];         // the run directory
    char start_from[CHECKPOINT_PATH];  // the checkpoint that --resume, --init or --sample begins with; empty: none
    int training;
    // What planners know of the machine. They run on the thread of ahead.c: see ahead_start.
    Setting setting;    // groups is NULL as long as no cost model is known
    GroupCost* groups;  // (ranks + 1) for setting
    Machine probed;     // as measured or read, nothing calibrated
    Calibration calibration;
    // For run_probe. Forward and backward of the model over one row of documents of these lengths (n, each at most
    // --context, together at most --capacity) on this rank alone: ms, the least of `repeats`. With ZeRO-2 and 3 all
    // ranks call it together. Afterwards gradients are zero, and run.batch is to be drawn again.
    double (*time_row)(Run* run, const int* lengths, int n, int repeats);
    Ahead* planner;
    double last_ms;                        // of the step before, 0 when it is not to be learnt from
    double last_terms[CALIBRATION_TERMS];  // its terms
    PlanningSums planning;
    Agreement* agreed;     // (ranks) what all ranks said last
    Balance* balance;      // what is done about slow ranks
    int oversubscribed;    // ranks of this machine share its cores
    void* work_memory;     // on the device, of work_bytes
    WorkNeeds work_needs;  // zeros: no rank ever computes anything but what it owns
    Straggler stragglers[MOST_STRAGGLERS];
    int n_stragglers;
    int stopped_by;          // the signal that ends the run after this step, 0 none
    int64_t first_step;      // steps done before this invocation
    double resident_before;  // bytes of this process before the table's memory was taken
    double matmul_limit;     // FLOP/s, measured, of all ranks together
    double unigram_loss;     // of the validation targets under the frequencies of the training tokens
};

// Ranks of the tensor-parallel group, and this one's number among them.
static inline int tp_size(const Model* m) { return m->tp ? m->tp->size : 1; }
static inline int tp_rank(const Model* m) { return m->tp ? m->tp->rank : 0; }

// master lies apart from params only when params are not fp32 themselves.
static inline int has_master(const Model* m) { return m->dt != DT_F32; }

// ---- ranks.c

void run_find_ranks(Run* run);     // who this process is among the ranks; all but rank 0 are silent from here on
void run_join_ranks(Run* run);     // opens the Comm and proves that all ranks mean the same run
void run_measure_limit(Run* run);  // of all ranks together, each on its own
Comm run_sent(const Model* m);     // bytes and waiting of this rank in all its Comms so far; the rest is the world's
void run_print_communication(Run* run);  // bytes sent and time not hidden, of all ranks together
// Ends the program because ranks can no longer work together.
void run_lost(const Run* run, const char* words);

// ---- batch.c

size_t batch_bytes(int max_tokens);  // of the host's arrays of one Batch
size_t batch_index_ints(const Run* run, int max_tokens);
size_t batch_scratch_bytes(const Run* run, int max_tokens);  // of planning
void batch_carve(Batch* b, const Run* run, void* memory, void* scratch, int* indices, int* device_indices,
                 int max_tokens);
// Plans the pieces that stand in b. 0, or -1 with a message that names the document. Touches nothing but b.
int batch_plan(Batch* b, const Run* run, int64_t step, char* err, size_t errlen);
// The micro-batches of this rank, in the order of the plan; in rounds, with gaps where there is nothing to do.
// batch_plan has done it already.
void batch_list(Batch* b, const Run* run);
// Reads the tokens of this rank's share and sends them to the device with all that kernels need to know.
void batch_upload(Batch* b, const Run* run, const Sampler* sampler);
Row batch_row(const Batch* b, const Run* run, int i);  // micro-batch i of this rank
// For generation: N tokens of a document that follow `cached` others in the KV cache.
Row batch_cached_row(Batch* b, const Model* m, const int* tokens, int N, int cached);

// One row of documents of these lengths for this rank alone, of the first training tokens: for run_probe.
Row batch_probe_row(Batch* b, const Run* run, const int* lengths, int n);

// ---- ahead.c: a thread that draws and plans the next step while this one computes

// Begins to draw and plan `step` into run->ahead. Until ahead_wait nobody else touches run->ahead, run->setting or what
// they point to.
void ahead_start(Run* run, int64_t step);
// The plan is in run->ahead. Returns the seconds that this took; ends the program when there is no plan.
double ahead_wait(Run* run);
void ahead_close(Run* run);  // ends the thread, if there is one

// ---- record.c

double run_median(double* x, int n);  // of n >= 0 numbers, which are sorted; 0 of none

// Of run->batch, which took so long; before: run_sent as it was when the step began. r->plan_stall_us is known.
void run_fill_record(const Run* run, StepRecord* r, double seconds, const Comm* before);
// Keeps what is told to the others in the next agreement. The first step of an invocation also pays for what is touched
// and opened first: nothing is learnt from it.
void run_remember_step(Run* run, const StepRecord* r);
void run_print_planning(const Run* run);  // at the end, with several ranks

// ---- cost.c, probe.c

void run_find_cost(Run* run);  // fills probed, calibration, setting.cost and groups; all ranks call it together
void run_probe(Run* run);      // measures this machine into run->probed
void run_set_cost(Run* run);   // setting.cost and groups: probed with what calibration has learnt

// ---- explain.c

// --explain: the plan in run->batch beside what other planners do, on the terminal and as a page. On rank 0.
void run_explain(const Run* run);

// ---- start.c: every phase ends the program with one line when it cannot go on

// OpenMP threads that wait by spinning take a core from whoever has work on a machine that does anything else: step
// times grew tenfold beside one busy process. The policy is read before main, so the program starts itself again with
// it.
void run_threads_without_spinning(char** argv);
void run_read_options(Run* run, int argc,
                      char** argv);  // --help ends here; finds what --resume, --init and --sample start from
void run_open_data(Run* run);        // tokenizer, documents
void run_settle_model(Run* run);     // device, element type, shape; opens the samplers
void run_close(Run* run);

// ---- memory.c

enum { MEMORY_ROWS = 20 };

typedef enum Where { ON_DEVICE, ON_HOST, ON_HOST_PINNED } Where;

typedef struct MemoryRow {
    const char* name;
    size_t bytes;
    Where where;
    void* memory;
} MemoryRow;

// Every class of bytes that a run takes: a name, a size, one allocation.
typedef struct MemoryPlan {
    MemoryRow rows[MEMORY_ROWS];
    int n;
    size_t total;
} MemoryPlan;

MemoryPlan run_plan_memory(Run* run);  // settles --capacity
void run_take_memory(Run* run, MemoryPlan* plan);
void run_print_peak(const Run* run);  // at the end, where memory is the host's: what was really taken

// ---- show.c

void run_print(const Run* run);  // options, device, model, data
void run_print_memory(const MemoryPlan* plan);

// ---- state.c

void run_load_weights(Run* run);  // from start_from, or initial values
void run_save_checkpoint(Run* run);
// What --dump-grads writes: every gradient under Hugging Face's names, fp32, and the tensors in extra.
void run_dump_gradients(Run* run, const SafeTensor* extra, int n_extra);
