// documents.h - for fuzzers of corpora: a file of any bytes is opened, with the byte tokenizer, and read.
#pragma once
#include <stdint.h>
#include <string.h>

#include "plan/base/base.h"
#include "test/docs_bytes.h"
#include "test/fuzz/require.h"

// NULL where it is refused, with a message.
static inline Docs* open_fuzzed(const char* ending, const void* bytes, size_t n) {
    static Tokenizer* tokenizer;
    char err[ERR_BYTES] = "";
    Docs* docs = NULL;
    require(tokenizer || tokenizer_open(&tokenizer, NULL, err) == 0);
    require(docs_open_bytes(&docs, ending, bytes, n, tokenizer, err) == 0 || err[0]);
    return docs;
}

// Every document has the length that was announced, whole and in halves alike; check sees its tokens.
static inline void read_fuzzed(Docs* docs, void (*check)(const Docs* docs, int64_t d, int* tokens, int n)) {
    char err[ERR_BYTES];
    int64_t total = 0;
    for (int64_t d = 0; docs && d < docs->n; d++) {
        int n = (int)docs_length(docs, d), half = n / 2;
        int *tokens = malloc(2 * (size_t)n * sizeof *tokens), *parts = tokens + n;
        require(n >= 1 && docs_read(docs, d, 0, n, tokens, err) == 0);
        require(docs_read(docs, d, 0, half, parts, err) == 0);
        require(docs_read(docs, d, half, n - half, parts + half, err) == 0);
        require(!memcmp(tokens, parts, (size_t)n * sizeof *tokens));
        if (check) check(docs, d, tokens, n);
        total += n;
        free(tokens);
    }
    require(!docs || total == docs_tokens(docs));
    docs_close(docs);
}
