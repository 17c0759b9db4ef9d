// sample.c - text from the model: a document's tokens one after another, with keys and values of those before in the KV
// cache.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "run/run.h"
#include "plan/base/bf16_in_place.h"
#include "run/model/tensor_parallel.h"
#include "run/step/choose_token.h"

int run_stop_token(const Run* run) {
    enum { LLAMA3_BEGIN = 128000, LLAMA3_END = 128001 };  // shards say nothing but where documents begin
    int begin = run->data.docs ? run->data.docs->end_of_text : run->data.tokenizer->end_of_text;
    if (begin == run->data.tokenizer->end_of_text) return run->data.tokenizer->stop;
    return begin == LLAMA3_BEGIN ? LLAMA3_END : begin;
}

void run_decode(Run* run, const int* tokens, int N, int cached) {
    Model* m = &run->model;
    Row row = batch_cached_row(&run->batch, m, tokens, N, cached);
    pipeline_receive(m, &row);
    model_forward(m, &row);
    pipeline_send(m, &row);
}

// The logits of token n of the row on the device, after model_forward, as fp32 in host_logits.
void token_logits(Run* run, int n) {
    const Model* m = &run->model;
    int rows = m->shape.vocab_rows, C = m->shape.C;
    char* lnf = (char*)model_act(m, LNF, 0) + (size_t)n * (size_t)C * dtype_bytes(m->dt);
    void* logits = model_act(m, LOGITS, 0);
    float* own = run->host_logits + m->shape.first_vocab_row;
    if (!m->shape.no_head) {
        const void* head = model_weights(m, shape_head(&m->shape), 0);
        m->k->matmul_forward(logits, NULL, lnf, head, NULL, 1, C, rows, m->dt, m->s);
        m->k->download(own, logits, (size_t)rows * dtype_bytes(m->dt), m->s);
        if (m->dt == DT_BF16) bf16_widen_in_place(own, (size_t)rows);
        tp_share_logits(m, run->host_logits);
    }
    pipeline_share(m, run->host_logits, (size_t)m->shape.Vp, m->stages - 1);
}

typedef struct Shown {
    TextFilter filter;
    FILE* copy;  // of the bytes, NULL: none is wanted
} Shown;

// Bytes of generated text as a terminal may see them. A token may end inside a character: shown is what has come whole.
static void print_token(const Run* run, Shown* shown, int token) {
    size_t bytes = 0;
    const char* piece = run->data.tokenizer->decode(run->data.tokenizer, token, &bytes);
    text_print(stdout, &shown->filter, piece, bytes);
    if (shown->copy) fwrite(piece, 1, bytes, shown->copy);
    fflush(stdout);
}

// Continues text (n_tokens, with room for n_new more) and prints each token as it comes, up to one that ends a text.
// When the context is full the older half is forgotten. seed makes the choices repeatable.
static void generate(Run* run, Shown* shown, int* text, int n_tokens, int n_new, uint64_t seed) {
    const Config* c = &run->config;
    int context = run->model.shape.context, cached = 0, first = 0;  // text[first .. first + cached) is in the cache
    for (int i = 0; i < n_new; i++) {
        if (n_tokens - first > context) first = n_tokens - MAX(context / 2, 1), cached = 0;
        for (int N; (N = MIN(n_tokens - first - cached, run->settled.capacity)) > 0; cached += N)
            run_decode(run, text + first + cached, N, cached), token_logits(run, N - 1);
        text[n_tokens] = choose_token(run->host_logits, run->model.shape.V, c->temperature, c->top_k,
                                      random_uniform(seed, (uint64_t)i), run->host_scratch);
        if (text[n_tokens] == text[0] || text[n_tokens] == run_stop_token(run)) return;
        print_token(run, shown, text[n_tokens++]);
    }
}

// Room for so many tokens of a prompt and n_new more, behind the end-of-text token that every document begins with.
static int* begin_text(const Run* run, size_t prompt, int n_new) {
    int* text = (int*)malloc((prompt + (size_t)n_new + 1) * sizeof(int));
    if (!text) die("no memory for a sample of %d tokens", n_new);
    text[0] = run->data.docs ? run->data.docs->end_of_text : run->data.tokenizer->end_of_text;
    return text;
}

// Prints a prompt of n_tokens, end-of-text counted, and its continuation; frees it.
static void print_text(Run* run, int* text, int n_tokens, int n_new, uint64_t seed, FILE* copy) {
    Shown shown = {{{0}, 0, 0}, copy};
    for (int i = 1; i < n_tokens; i++) print_token(run, &shown, text[i]);
    generate(run, &shown, text, n_tokens, n_new, seed);
    text_print_end(stdout, &shown.filter);
    putchar('\n');
    free(text);
}

void sample_print(Run* run, const char* prompt, int n_new, uint64_t seed, FILE* copy) {
    size_t n = strlen(prompt);
    int* text = begin_text(run, n * (size_t)run->data.tokenizer->most, n_new);
    print_text(run, text, 1 + (int)run->data.tokenizer->encode(run->data.tokenizer, text + 1, prompt, n), n_new, seed,
               copy);
}

// ---- while training: prompts that are the same at every step, so that samples compare

// The beginnings of two documents that are not trained on, of instructions up to what is learnt; with fewer such
// documents pieces of them. text has room for a context, and its end-of-text already. The number of all tokens.
static int held_out_prompt(const Run* run, int which, int* text) {
    enum { SEARCHED = 1000, LENGTH = 16 };
    const Sampler* val = run->data.val;
    char err[ERR_BYTES];
    int64_t pieces = sampler_pieces(val, SPLIT_VAL), chosen = -1;
    int context = run->config.context, found = 0;
    for (int64_t i = 0; i < MIN(pieces, SEARCHED) && chosen < 0; i++)
        if (sampler_val_piece(val, i).first == 0 && found++ == which) chosen = i;
    if (pieces == 0) return 1;
    Piece piece = sampler_val_piece(val, chosen < 0 ? MIN((int64_t)which, pieces - 1) : chosen);
    int *tokens = (int*)malloc(2 * (size_t)context * sizeof *tokens), n = 0, *targets = tokens + context;
    if (!tokens) die("no memory for a prompt of %d tokens", context);
    if (sampler_read(val, &piece, tokens, targets, err, sizeof err)) die("%s", err);
    while (n < piece.length - 1 && targets[n] < 0) n++;
    n = n ? n + 1 : MIN(LENGTH, MAX(piece.length / 2, 1));
    int skips = piece.first == 0;  // the end-of-text
    memcpy(text + 1, tokens + skips, (size_t)(n - skips) * sizeof *tokens);
    free(tokens);
    return 1 + n - skips;
}

void run_log_sample(Run* run, int which, uint64_t seed) {
    enum { LENGTH = 128 };
    static const char* const of_headers[] = {"#include <", "static inline "};
    const PathList* data = &run->config.data;
    char* copied = NULL;
    size_t n = 0;
    int n_new = MIN(run->config.tokens, LENGTH);
    FILE* copy = open_memstream(&copied, &n);
    if (data->n == 1 && !strcmp(data->paths[0], "/usr/include"))
        sample_print(run, of_headers[which], n_new, hash64(seed + (uint64_t)which), copy);
    else {
        int* text = begin_text(run, (size_t)run->config.context, n_new);
        print_text(run, text, held_out_prompt(run, which, text), n_new, hash64(seed + (uint64_t)which), copy);
    }
    if (copy && !fclose(copy)) run_log_event(run, "sample", "text", copied);
    free(copied);
}

void run_sample(Run* run) {
    if (run->data.docs->max_token >= run->data.tokenizer->vocab) {
        runlog_say(&run->books->log, "step %" PRId64 ": no sample, the tokens of these shards need --tokenizer",
                   run->state.step);
        return;
    }
    // Only where weights are divided do other ranks have to join in: those of one tensor-parallel group, or all.
    if (run->model.comm->rank > 0 && run->model.ranks->zero.stage < 3) return;
    for (int which = 0; which < SAMPLES_OF_A_STEP; which++) {
        runlog_say(&run->books->log, "step %" PRId64 ": a sample", run->state.step);
        run_log_sample(run, which, hash64((uint64_t)run->config.seed ^ (uint64_t)run->state.step));
    }
}
