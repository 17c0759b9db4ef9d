// sample.c - text from the model: a document's tokens one after another, with keys and values of those before in the KV
// cache.
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>

#include "run/run.h"

int run_stop_token(const Run* run) {
    enum { LLAMA3_BEGIN = 128000, LLAMA3_END = 128001 };  // shards say nothing but where documents begin
    int begin = run->data.docs ? docs_end_of_text(run->data.docs) : tokenizer_end_of_text(run->data.tokenizer);
    if (begin == tokenizer_end_of_text(run->data.tokenizer)) return tokenizer_stop(run->data.tokenizer);
    return begin == LLAMA3_BEGIN ? LLAMA3_END : begin;
}

void run_decode(Run* run, const int* tokens, int N, int cached) {
    Model* m = &run->model;
    Row row = batch_cached_row(&run->batch, m, tokens, N, cached);
    pipeline_receive(m, &row);
    model_forward(m, &row);
    pipeline_send(m, &row);
}

typedef struct Shown {
    TextFilter filter;
    FILE* copy;  // of the bytes, NULL: none is wanted
} Shown;

// Bytes of generated text as a terminal may see them. A token may end inside a character: shown is what has come whole.
static void print_token(const Run* run, Shown* shown, int token) {
    size_t bytes = 0;
    const char* piece = tokenizer_decode(run->data.tokenizer, token, &bytes);
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
        for (int N; (N = MIN(n_tokens - first - cached, c->capacity)) > 0; cached += N)
            run_decode(run, text + first + cached, N, cached), token_logits(run, N - 1);
        text[n_tokens] = choose_token(run->host_logits, run->model.shape.V, c->temperature, c->top_k,
                                      random_uniform(seed, (uint64_t)i), run->host_scratch);
        if (text[n_tokens] == text[0] || text[n_tokens] == run_stop_token(run)) return;
        print_token(run, shown, text[n_tokens++]);
    }
}

// Prints the prompt (which follows an end-of-text token, as every document does) and its continuation.
void sample_print(Run* run, const char* prompt, int n_new, uint64_t seed, FILE* copy) {
    size_t n = strlen(prompt);
    int* text = (int*)malloc((tokenizer_room(run->data.tokenizer, n) + (size_t)n_new + 1) * sizeof(int));
    if (!text) die("no memory for a sample of %d tokens", n_new);
    text[0] = run->data.docs ? docs_end_of_text(run->data.docs) : tokenizer_end_of_text(run->data.tokenizer);
    int n_tokens = 1 + (int)tokenizer_encode(run->data.tokenizer, text + 1, prompt, n);
    Shown shown = {{{0}, 0, 0}, copy};
    for (int i = 1; i < n_tokens; i++) print_token(run, &shown, text[i]);
    generate(run, &shown, text, n_tokens, n_new, seed);
    text_print_end(stdout, &shown.filter);
    putchar('\n');
    free(text);
}

void run_log_sample(Run* run, uint64_t seed) {
    char* text = NULL;
    size_t n = 0;
    FILE* copy = open_memstream(&text, &n);
    sample_print(run, "", MIN(run->config.tokens, 256), seed, copy);
    if (copy && !fclose(copy)) run_log_event(run, "sample", "text", text);
    free(text);
}
