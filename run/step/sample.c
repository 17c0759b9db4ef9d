// sample.c - text from the model while it trains: prompts that are the same at every step, so that samples compare.
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "run/run.h"

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
    if (sampler_read(val, &piece, tokens, targets, err)) die("%s", err);
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
        int* text = sample_begin(run, (size_t)run->config.context + (size_t)n_new);
        sample_tokens(run, text, held_out_prompt(run, which, text), n_new, hash64(seed + (uint64_t)which), copy);
        free(text);
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
