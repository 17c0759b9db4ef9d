// fuzz_docs_bin.c - token shards of any content: what opens must read, every document whole and in parts alike.
//
// A first byte that is odd stands for a good header, so that the tokens are reached.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "test/docs_bytes.h"

static void read_all(const Docs* docs) {
    char err[256];
    int64_t total = 0;
    for (int64_t d = 0; d < docs_count(docs); d++) {
        int n = (int)docs_length(docs, d), half = n / 2;
        int* tokens = malloc(2 * (size_t)n * sizeof *tokens);
        if (n < 1 || docs_read(docs, d, 0, n, tokens, err, sizeof err)) abort();
        if (docs_read(docs, d, 0, half, tokens + n, err, sizeof err)) abort();
        if (docs_read(docs, d, half, n - half, tokens + n + half, err, sizeof err)) abort();
        if (memcmp(tokens, tokens + n, (size_t)n * sizeof *tokens)) abort();
        total += n;
        free(tokens);
    }
    if (total != docs_tokens(docs)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    static Tokenizer* tokenizer;
    char err[256];
    if (!tokenizer && tokenizer_open(&tokenizer, NULL, err, sizeof err)) abort();
    Docs* docs = NULL;
    uint8_t* file = calloc(1024 + n, 1);
    size_t size = n;
    if (n == 0 || data[0] % 2 == 0) {
        if (n) memcpy(file, data, n);
    } else {
        int wide = data[0] & 2;
        int32_t header[3] = {wide ? 20240801 : 20240520, wide ? 7 : 1, (int32_t)((n - 1) / (wide ? 4 : 2))};
        memcpy(file, header, sizeof header);
        memcpy(file + 1024, data + 1, n - 1);
        size = 1024 + n - 1;
    }
    if (docs_open_bytes(&docs, ".bin", file, size, tokenizer, err, sizeof err) == 0) read_all(docs);
    docs_close(docs);
    free(file);
    return 0;
}
