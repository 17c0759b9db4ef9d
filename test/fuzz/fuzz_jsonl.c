// fuzz_jsonl.c - JSONL of any content: what opens must read, to the length that was announced, whole and in parts
// alike.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "test/docs_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    static Tokenizer* tokenizer;
    char err[256];
    if (!tokenizer && tokenizer_open(&tokenizer, NULL, err, sizeof err)) abort();
    Docs* docs = NULL;
    if (docs_open_bytes(&docs, ".jsonl", data, n, tokenizer, err, sizeof err)) return 0;
    for (int64_t d = 0; d < docs_count(docs); d++) {
        int length = (int)docs_length(docs, d), half = length / 2;
        int* tokens = malloc(2 * (size_t)length * sizeof *tokens);
        if (docs_read(docs, d, 0, length, tokens, err, sizeof err)) abort();
        if (docs_read(docs, d, 0, half, tokens + length, err, sizeof err)) abort();
        if (docs_read(docs, d, half, length - half, tokens + length + half, err, sizeof err)) abort();
        if (memcmp(tokens, tokens + length, (size_t)length * sizeof *tokens) || tokens[0] != 256) abort();
        free(tokens);
    }
    docs_close(docs);
    return 0;
}
