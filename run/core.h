// core.h - a run: options, documents, the batch of a step, the model, how far it is.
//
// One rank needs no more than this, core.c and the files below it: build/core. What others add hangs on pointers that
// are NULL there, and on the table `mechanisms`: run/run.h.
#pragma once
#include <stdio.h>

#include "data/docs.h"
#include "data/sampler.h"
#include "plan/options/config.h"
#include "plan/value/pack.h"
#include "run/model/model.h"

typedef struct Run Run;

typedef struct Data {
    Tokenizer* tokenizer;
    int begin, stop;        // the tokens that documents begin with, and that the model ends a text with
    int guessed_bytes;      // no tokenizer was named or came with the checkpoint
    Docs *docs, *val_docs;  // val_docs only with --val
    Sampler *train, *val;   // one and the same unless --val names documents of its own
} Data;

// ---- the batch

// Where a row begins in Batch.tokens and Batch.cu; it ends where the next one begins.
typedef struct RowPlace {
    int token, cu;
} RowPlace;

// The documents of a step: pieces as they were drawn, then rows of them, as this rank runs them.
typedef struct Batch {
    int max_tokens;
    int training;   // 0: for evaluation, forward passes only
    Piece* pieces;  // (max_tokens) of all ranks
    int* lengths;   // (max_tokens) of them
    int n_pieces;
    int64_t n_tokens, n_targets;    // of all ranks
    double weight;                  // of all labels; 1 where there are none
    double sum_s2;                  // sum of Piece.squares, for the FLOP count
    SamplerPosition after;          // where the next step's documents begin
    double val_from, val_to;        // of an evaluation: the shares of it that are done before and after these pieces
    RowPlace* rows;                 // (max_tokens + 1)
    int n_rows, is_read;            // is_read: tokens of the rows stand in `tokens`
    int n_read, n_cu;               // then: how many tokens, and entries of cu
    int *indices, *device_indices;  // what kernels need to know of a step; the device's copy, one for all Batches
    int *tokens, *positions, *targets;  // (max_tokens) in indices: of the rows one after another
    int* cu;                            // in indices: cu_seqlens of the rows
    Row row;                            // at work
    Arena arena;
    struct BatchPlan* planned;  // what many ranks and planners add
} Batch;

size_t batch_bytes(int max_tokens);  // of the host's arrays of one Batch
size_t batch_index_ints(int max_tokens);
void batch_carve(Batch* b, void* memory, int* indices, int* device_indices, int max_tokens);
// The next training pieces: from b->after on, which moves.
void batch_draw(Batch* b, const Run* run);
// The next validation pieces from *next on, while they fit in a batch and in --eval-every tokens. Returns their number.
int batch_draw_val(Batch* b, const Run* run, int64_t* next, int64_t* tokens);
void batch_count(Batch* b);  // lengths, and what follows from them alone
// Reads `length` tokens of a piece, from its token `first` on, behind those that stand in b. 0, or -1 with a message.
int batch_read_part(Batch* b, const Sampler* sampler, int piece, int first, int length, Err err);
// What a pair of tokens costs attention, where a token costs the blocks' linears 1.
double row_quadratic(const Shape* shape);
int* batch_on_device(const Batch* b, const int* host);
void batch_upload_ints(const Batch* b, const Model* m, const int* host, int n);
void batch_upload(Run* run, const Sampler* sampler);  // all that; what is not read yet is read now
Row batch_row(Run* run, int i);                       // row i, on the device

// ---- a run

typedef struct TrainState {
    int64_t step;              // steps done
    SamplerPosition position;  // where the next step's documents begin
    uint64_t loss_hash;        // of all losses so far, bit for bit
    double loss, val_loss;     // of the last step and evaluation; NaN before it
} TrainState;

typedef struct Step {  // as it is told
    int64_t number;    // from 1
    double lr, loss, grad_norm;
} Step;

// What has come of options: they stay as they were read. A strategy has its own.
typedef struct Settled {
    int capacity;  // most tokens of a row: what this rank is asked for, then of the ranks with least; 0: nobody knows
    int tp, pp;    // of the layout
    const char *layout, *strategies, *rank_capacity;  // as they could be typed; NULL: none
} Settled;

struct Run {
    int argc;
    char** argv;
    Config config;
    Settled settled;
    Data data;
    Model model;
    Batch batch, ahead;          // the step at work; where planners work: the next one, planned already
    Draw *draws, *device_draws;  // tokens that are drawn at once, on the host and on the device
    TrainState state;
    Step step;
    int64_t val_targets;           // of the last evaluation
    int training;                  // not --sample and its like
    void (*instead)(Run* run);     // what it does in place of training; NULL: it trains
    double began;                  // when the program began
    int left;                      // some rank has left the step at work
    int ends;                      // no step more
    int stopped_by;                // the signal that ends the run after this step, 0 none
    int status;                    // of the program
    const struct RunRanks* ranks;  // run/core_ranks.h; NULL: rows are made and run as one rank does that is alone
    struct Cluster* cluster;       // this and the next two: run/run.h
    struct Clock* clock;
    struct Books* books;
    struct Strategies* strategies;  // NULL: every step has the same layout
    struct Balance* balance;        // what is done about slow ranks
    struct Labels* labels;          // NULL: they count alike
};

// What goes on around steps: of every row of the table, in its order, these are called. NULL: nothing.
typedef struct Mechanism {
    const char* name;                 // NULL: the end of the table
    void (*open)(Run* run);           // a phase before the first step
    void (*start)(Run* run);          // of training
    void (*begin)(Run* run);          // before the rows of a step
    void (*before_update)(Run* run);  // all gradients are there
    void (*end)(Run* run);            // loss and norm of the step are known
    void (*finish)(Run* run);         // of training
    void (*close)(Run* run);
} Mechanism;

extern const Mechanism mechanisms[];

#define ALL_MECHANISMS(run, call)                       \
    for (const Mechanism* x = mechanisms; x->name; x++) \
        if (x->call) x->call(run)

// ---- the lines of a step that each program has in its own way, as it has the table: build/core in core_stubs.c

void run_next_batch(Run* run);  // run->batch becomes that of the next step
void run_agree(Run* run);       // the update was given to the stream: all ranks go on to the same step, or run->left
void run_diverged(Run* run);    // loss or norm of the gradients is not finite: ends the program
void run_tell(Run* run);        // the step is done
void run_tell_loss(Run* run);   // an evaluation is
// Prints texts that begin with a run's own prompts, between steps; the same at every step, and into the log.
void run_sample(Run* run);
void run_keep(Run* run);  // writes the files that are due

// ---- rows of a step

typedef enum PassKind { PASS_FORWARD, PASS_BACKWARD, PASS_OTHER } PassKind;

typedef struct Pass {
    PassKind kind;
    Row* row;
    int counts;  // forward: the losses are added up by this rank
} Pass;

// Pass i of the rows of run->batch: each forward, and with train backward behind it. 0 where there is none.
int run_next_pass(Run* run, Pass* pass, int i, int train);
double loss_sum(Run* run);  // of all losses since run_micro_batches began

// The learning rate for the 1-based step t of config->steps. It rises in a straight line over --warmup steps, so that
// the first step has lr / warmup. Then, by --schedule: constant stays; linear falls in a straight line to min_lr * lr
// at the last step; cosine the same along half a cosine; wsd stays, and over the last fifth of all steps falls as
// 1 - sqrt(x) (Haegele et al. 2024).
double schedule_lr(const Config* config, int64_t t);

// Mean loss a target over the validation pieces; *targets their number, 0 where it was broken off. Overwrites batch.
double evaluate(Run* run, int64_t* targets);
void run_evaluate(Run* run);  // between steps

// ---- text from the model

// Prints a prompt of n_tokens, end-of-text counted, and n_new tokens more, or fewer where the model ends the text. text
// has room for all. Bytes go to copy, too, unless that is NULL.
void sample_tokens(Run* run, int* text, int n_tokens, int n_new, uint64_t seed, FILE* copy);
void sample_print(Run* run, const char* prompt, int n_new, uint64_t seed, FILE* copy);
// Room for so many tokens behind the end-of-text that every document begins with; to be freed.
int* sample_begin(const Run* run, size_t tokens);
// Runs the tokens, at most --capacity, of n documents of so many (lengths), one behind another in the KV cache from row
// `place` on. Of a single one `cached` tokens stand there already, before these.
void run_decode(Run* run, const int* tokens, const int* lengths, int n, int place, int cached);
// What follows each of the tokens n .. n + N of those, by --temperature and --top-k: run->draws (N), whose u is set.
// Ids for which the tokenizer has no text are never drawn.
void run_draw(Run* run, int n, int N);

// ---- the phases of a run that has one rank only, and its next batch: see core_stubs.c

#define HELD_OUT 0.05  // of the documents, to validate on
void core_read_options(Run* run);
void core_open_data(Run* run);
void core_open_model(Run* run);
void core_init_weights(Run* run);
void core_next_batch(Run* run);

// ---- train_gpt.cu: what others call, also programs that link it without its main; shapes and conditions stand there

void model_forward(Model* m, const Row* row);
void model_train(Model* m, const Row* row, float scale);
void run_micro_batches(Run* run, const Sampler* sampler, int train);
