// docs_encode.c - text that is encoded at opening: tokens appended to those of all documents, in 2 or 4 bytes each.
#include <stdlib.h>
#include <string.h>

#include "data/docs_format.h"
#include "plan/base.h"

enum { TELL_EVERY = 1 << 20 };  // bytes of text

int docs_append_tokens(Docs* docs, const int* tokens, size_t n, char* err, size_t errlen) {
    if (docs_reserve(&docs->encoded, &docs->encoded_capacity, docs->n_encoded, (int64_t)n, (size_t)docs->encoded_bytes,
                     err, errlen))
        return -1;
    if (docs->encoded_bytes == 2) {
        uint16_t* out = (uint16_t*)docs->encoded + docs->n_encoded;
        for (size_t i = 0; i < n; i++) out[i] = (uint16_t)tokens[i];
    } else if (n > 0) {
        memcpy((int*)docs->encoded + docs->n_encoded, tokens, n * sizeof *tokens);
    }
    docs->n_encoded += (int64_t)n;
    return 0;
}

static void (*tell)(int64_t done, int64_t total);
static int64_t encoded_bytes, told_bytes, total_bytes;

void docs_on_progress(void (*listener)(int64_t done, int64_t total), int64_t total) {
    tell = listener;
    encoded_bytes = told_bytes = 0;
    total_bytes = total;
}

static void count_encoded(size_t n) {
    encoded_bytes += (int64_t)n;
    if (!tell || encoded_bytes - told_bytes < TELL_EVERY) return;
    told_bytes = encoded_bytes;
    tell(encoded_bytes, total_bytes);
}

int docs_append_text(Docs* docs, const char* text, size_t n, char* err, size_t errlen) {
    int* tokens = malloc(MAX(1, tokenizer_room(docs->tokenizer, n)) * sizeof *tokens);
    if (!tokens) return fail(err, errlen, "out of memory to encode %zu bytes of text", n);
    int status = docs_append_tokens(docs, tokens, tokenizer_encode(docs->tokenizer, tokens, text, n), err, errlen);
    free(tokens);
    count_encoded(n);
    return status;
}

void docs_read_encoded(const Docs* docs, int64_t at, int n, int* out) {
    for (int i = 0; i < n; i++)
        out[i] =
            docs->encoded_bytes == 2 ? ((const uint16_t*)docs->encoded)[at + i] : ((const int*)docs->encoded)[at + i];
}

int docs_add_encoded(Docs* docs, int64_t first, char* err, size_t errlen) {
    int head[DOCS_HEAD_TOKENS];
    int64_t length = docs->n_encoded - first;
    int n = (int)MIN(length, DOCS_HEAD_TOKENS);
    docs_read_encoded(docs, first, n, head);
    return docs_add(docs, length, head, (size_t)n * sizeof *head, err, errlen);
}
