// core.h - a run: options, documents, the batch of a step, the model, how far it is.
//
// build/core, one rank, needs no more than this, core.c and the files below it. Others hang on pointers that are NULL
// there, and on the table `mechanisms`: run/run.h.
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
    struct ModelChat* chat; // run/files/chats.h; NULL: nothing is said of chats
    Docs *docs, *val_docs;  // val_docs only with --val
    Sampler *train, *val;   // one and the same unless --val names documents of its own
} Data;

// ---- the batch

// A row begins here in Batch.tokens and Batch.cu; it ends where the next one begins.
typedef struct RowPlace {
    int token, cu;
} RowPlace;

// A Batch is the documents of a step: pieces as they were drawn, then rows of them, as this rank runs them.
typedef struct Batch {
    int max_tokens;
    int training;   // 0: for evaluation, forward passes only
    Piece* pieces;  // (max_tokens) of all ranks
    int* lengths;   // (max_tokens) of them
    int n_pieces;
    int64_t n_tokens, n_targets;        // of all ranks
    double weight;                      // of all labels; 1 where there are none
    double sum_s2;                      // sum of Piece.squares, for the FLOP count
    SamplerPosition after;              // where the next step's documents begin
    double val_from, val_to;            // shares of an evaluation that are done before and after these pieces
    RowPlace* rows;                     // (max_tokens + 1)
    int n_rows, is_read;                // is_read: tokens of the rows stand in `tokens`
    int n_read, n_cu;                   // then: how many tokens, and entries of cu
    int *indices, *device_indices;      // integers of a step for kernels; the device's copy, one for all Batches
    int *tokens, *positions, *targets;  // (max_tokens) in indices: of the rows one after another
    int* cu;                            // cu_seqlens of the rows, in indices
    Row row;                            // at work
    Arena arena;
    struct BatchPlan* planned;  // the plan, which many ranks and planners add
} Batch;

size_t batch_bytes(int max_tokens);  // bytes of the host's arrays of one Batch
size_t batch_index_ints(int max_tokens);
void batch_carve(Batch* b, void* memory, int* indices, int* device_indices, int max_tokens);
// Draws the next training pieces from b->after on, and moves it.
void batch_draw(Batch* b, const Run* run);
// Draws validation pieces from *next on while they fit in a batch and in --eval-every tokens. Returns their number.
int batch_draw_val(Batch* b, const Run* run, int64_t* next, int64_t* tokens);
void batch_count(Batch* b);  // lengths, and what follows from them alone
// Reads `length` tokens of a piece, from its token `first` on, after those in b. 0, or -1 with a message.
int batch_read_part(Batch* b, const Sampler* sampler, int piece, int first, int length, Err err);
// Returns what a pair of tokens costs attention, if a token costs the blocks' linears 1.
double row_quadratic(const Shape* shape);
int* batch_on_device(const Batch* b, const int* host);
void batch_upload_ints(const Batch* b, const Model* m, const int* host, int n);
void batch_upload(Run* run, const Sampler* sampler);  // uploads all indices; reads what is not read yet
Row batch_row(Run* run, int i);                       // row i, on the device

// ---- a run

typedef struct TrainState {
    int64_t step;              // steps done
    SamplerPosition position;  // where the next step's documents begin
    uint64_t loss_hash;        // hash of all losses so far, bit for bit
    double loss, val_loss;     // losses of the last step and evaluation; NaN before it
} TrainState;

typedef struct Step {  // the step as it is told
    int64_t number;    // from 1
    double lr, loss, grad_norm;
} Step;

// Settled is what has come of options, which stay as they were read. Each strategy has its own.
typedef struct Settled {
    int capacity;  // most tokens of a row: what this rank is asked for, then of the ranks with least; 0: nobody knows
    int tp, pp;    // tp and pp of the layout
    const char *layout, *strategies, *rank_capacity;  // text as it could be typed; NULL: none
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
    int64_t val_targets;           // targets of the last evaluation
    int training;                  // 0: --sample and its like
    void (*instead)(Run* run);     // replaces training; NULL: it trains
    double began;                  // when the program began
    int left;                      // some rank has left the step at work
    int ends;                      // no step more
    int stopped_by;                // the signal that ends the run after this step, 0 none
    int status;                    // exit status of the program
    const struct RunRanks* ranks;  // run/core_ranks.h; NULL: rows are made and run as one rank does that is alone
    struct Cluster* cluster;       // this and the next two: run/run.h
    struct Clock* clock;
    struct Books* books;
    struct Strategies* strategies;  // NULL: every step has the same layout
    struct Balance* balance;        // the remedy for slow ranks
    struct Labels* labels;          // NULL: they count alike
};

// A Mechanism has hooks around steps. For each moment every mechanism's hook is called, in table order; NULL: none.
typedef struct Mechanism {
    const char* name;                 // NULL: the end of the table
    void (*open)(Run* run);           // a phase before the first step
    void (*start)(Run* run);          // training begins
    void (*begin)(Run* run);          // before the rows of a step
    void (*before_update)(Run* run);  // all gradients are there
    void (*end)(Run* run);            // loss and norm of the step are known
    void (*finish)(Run* run);         // training is over
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
// Prints texts that begin with a run's own prompts, between steps, and logs them. Draws are the same at every step.
void run_sample(Run* run);
void run_keep(Run* run);  // writes the files that are due

// ---- rows of a step

typedef enum PassKind { PASS_FORWARD, PASS_BACKWARD, PASS_OTHER } PassKind;

typedef struct Pass {
    PassKind kind;
    Row* row;
    int counts;  // forward: the losses are added up by this rank
} Pass;

// Sets *pass to pass i over the rows of run->batch: forward, with train then backward, row after row. 0: there is none.
int run_next_pass(Run* run, Pass* pass, int i, int train);
double loss_sum(Run* run);  // sum of all losses since run_micro_batches began

// Returns the learning rate for the 1-based step t of config->steps. It rises in a straight line over --warmup steps,
// so that the first step has lr / warmup. Then --schedule decides: constant stays; linear falls in a straight line to
// min_lr * lr at the last step; cosine does so along half a cosine; wsd stays, and falls over the last fifth of all
// steps as 1 - sqrt(x) (Haegele et al. 2024).
double schedule_lr(const Config* config, int64_t t);

// Returns the mean loss a target over validation pieces; *targets is their number, 0 after a break. It overwrites
// batch.
double evaluate(Run* run, int64_t* targets);
void run_evaluate(Run* run);  // between steps

// ---- text from the model

// Prints a prompt of n_tokens, end-of-text counted, and n_new tokens more, or fewer if the model ends the text. text
// has room for all. Bytes go to copy, too, unless that is NULL.
void sample_tokens(Run* run, int* text, int n_tokens, int n_new, uint64_t seed, FILE* copy);
void sample_print(Run* run, const char* prompt, int n_new, uint64_t seed, FILE* copy);
// Returns room for the end-of-text that every document begins with and so many tokens more; the caller frees it.
int* sample_begin(const Run* run, size_t tokens);
// Runs the tokens, at most --capacity, of n documents of these lengths, one after another in the KV cache from row
// `place` on. A single document may have `cached` tokens there already, before these.
void run_decode(Run* run, const int* tokens, const int* lengths, int n, int place, int cached);
// Draws what follows each of the tokens n .. n + N of those, by --temperature and --top-k, into run->draws (N), whose u
// is set. Ids for which the tokenizer has no text are never drawn.
void run_draw(Run* run, int n, int N);

// ---- the phases of a run that has one rank only, and its next batch: see core_stubs.c

#define HELD_OUT 0.05  // share of the documents to validate on
void core_read_options(Run* run);
void core_open_data(Run* run);
void core_open_model(Run* run);
void core_init_weights(Run* run);
void core_next_batch(Run* run);

// ---- train_gpt.cu: what others call, also programs that link it without its main; shapes and conditions stand there

void model_forward(Model* m, const Row* row);
void model_train(Model* m, const Row* row, float scale);
void run_micro_batches(Run* run, const Sampler* sampler, int train);
