// run.h - the objects of a run, and the phases that set them up before the first step of train_gpt.cu.
//
// Read in the order of main: start.c (options, data, device), memory.c (the memory table), show.c (what is printed),
// state.c (weights from and to files).
#pragma once
#include "data/checkpoint.h"
#include "data/docs.h"
#include "data/run_state.h"
#include "data/runlog.h"
#include "data/safetensors.h"
#include "data/sampler.h"
#include "data/tokenizer.h"
#include "kernels/kernels.h"
#include "plan/config.h"
#include "plan/pack.h"
#include "plan/shape.h"

typedef struct Model {
    Shape shape;
    DType dt;
    Recompute recompute;
    const Kernels* k;
    Stream s;
    char* params;                   // shape_param_elems, dt
    float *master, *m, *v;          // the same in fp32; master is params itself when dt is fp32; NULL unless training
    float* grads;                   // sums over the rows of a step
    double *loss_sum, *grad_norm2;  // (1) each, on the device: of the rows of a step
    float* grad_scale;              // (1) on the device
    char* acts;
    Activation act_table[N_ACTS];
    int classifier_N;  // rows of one chunk of the classifier
} Model;

// A packed row on the device: N tokens of n_docs documents. Training: cu_k = cu_q. Generation: `cached` tokens of one
// document lie in the KV cache already and the N new ones follow them.
typedef struct Row {
    int N, n_docs;
    int *tokens, *positions, *targets;  // (N)
    int *cu_q, *cu_k;                   // (n_docs + 1)
    int use_cache, cached;
} Row;

// Host side of a step: the pieces of documents that were drawn, their packing into rows, and the arrays of one row.
typedef struct Batch {
    int max_tokens, capacity;       // of a step, of a row
    Piece* pieces;                  // (max_tokens)
    int* lengths;                   // (max_tokens)
    int *pack_scratch, *row_begin;  // row_begin (max_tokens + 1): the first token of each row
    Packing packing;
    // What kernels need to know of a step, in host memory that the device reads from while the host goes on, and the
    // device's copy. Tokens of all rows one after another; cu_seqlens of row r at cu + packing.first[r] + r.
    int *indices, *device_indices;      // (5 * max_tokens)
    int *tokens, *positions, *targets;  // (max_tokens) in indices
    int* cu;                            // (2 * max_tokens) in indices
    int n_pieces;
    int64_t n_tokens, n_targets;
    double sum_s2;  // sum of squared lengths, for the FLOP count
    double plan_us;
} Batch;

typedef struct Data {
    Tokenizer* tokenizer;
    int guessed_bytes;      // no tokenizer was named or came with the checkpoint
    Docs *docs, *val_docs;  // val_docs only with --val
    Sampler *train, *val;   // one and the same unless --val names documents of its own
} Data;

typedef struct Run {
    Config config;
    Data data;
    Model model;
    Batch batch;
    float *host_logits, *host_scratch;  // (Vp) of one token, for sampling
    float* staging;                     // the largest tensor, on its way to or from a file
    RunLog log;
    RunState state;
    char out[CHECKPOINT_PATH];         // the run directory
    char start_from[CHECKPOINT_PATH];  // the checkpoint that --resume, --init or --sample begins with; empty: none
    int training;
    int64_t first_step;   // steps done before this invocation
    double matmul_limit;  // FLOP/s, measured
    double unigram_loss;  // of the validation targets under the frequencies of the training tokens
} Run;

// master lies apart from params only when params are not fp32 themselves.
static inline int has_master(const Model* m) { return m->dt != DT_F32; }

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

enum { MEMORY_ROWS = 14 };

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

// ---- show.c

void run_print(const Run* run);  // options, device, model, data
void run_print_memory(const MemoryPlan* plan);

// ---- state.c

void run_load_weights(Run* run);  // from start_from, or initial values
void run_save_checkpoint(Run* run);
// What --dump-grads writes: every gradient under Hugging Face's names, fp32, and the tensors in extra.
void run_dump_gradients(Run* run, const SafeTensor* extra, int n_extra);
