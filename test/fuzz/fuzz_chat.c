// fuzz_chat.c - JSONL of instructions, the first of which is one: what opens says of each piece how much is
// learnt.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "plan/base.h"
#include "test/docs_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    static Tokenizer* tokenizer;
    static const char first[] = "{\"prompt\": \"a\", \"completion\": \"bc\"}\n";
    char err[256];
    if (!tokenizer && tokenizer_open(&tokenizer, NULL, err, sizeof err)) abort();
    Docs* docs = NULL;
    size_t head = sizeof first - 1;
    uint8_t* text = malloc(head + n);
    memcpy(text, first, head);
    memcpy(text + head, data, n);
    int failed = docs_open_bytes(&docs, ".jsonl", text, head + n, tokenizer, err, sizeof err);
    free(text);
    if (failed) return 0;
    for (int64_t d = 0; d < docs_count(docs); d++) {
        int length = (int)docs_length(docs, d), half = length / 2, labels = 0;
        int* tokens = malloc((size_t)length * sizeof *tokens);
        if (docs_read(docs, d, 0, length, tokens, err, sizeof err) || tokens[0] != 256) abort();
        docs_mask(docs, d, 0, length, tokens);
        for (int i = 0; i < length; i++) labels += tokens[i] >= 0;
        if (labels != docs_labels(docs, d, 0, length) || labels < 1 || tokens[0] >= 0) abort();
        if (labels != docs_labels(docs, d, 0, half) + docs_labels(docs, d, half, length - half)) abort();
        free(tokens);
    }
    docs_close(docs);
    return 0;
}
