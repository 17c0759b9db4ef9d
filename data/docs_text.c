// docs_text.c - a text file as one document: its tokens are end-of-text and then its bytes, or, with a BPE vocabulary,
// end-of-text and what the bytes encode to. Also keeps the encoded tokens of a corpus; see docs_format.h.
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "data/docs_format.h"
#include "plan/base.h"

enum { BLOCK = 1 << 20 };  // bytes that are encoded at once

// ---- encoded tokens

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

int docs_encode(Docs* docs, const char* text, size_t n, char* err, size_t errlen) {
    int* tokens = malloc(MAX(1, n) * sizeof *tokens);
    if (!tokens) return fail(err, errlen, "out of memory to encode %zu bytes of text", n);
    int status = docs_append_tokens(docs, tokens, tokenizer_encode(docs->tokenizer, tokens, text, n), err, errlen);
    free(tokens);
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

// ---- files

// A place > 0 where text may be cut and each half encoded alone: between a visible ASCII character and white space,
// where GPT-2's pattern always ends a part. The last such place, or 0.
static size_t safe_cut(const char* text, size_t n) {
    for (size_t i = n; i-- > 1;) {
        int is_space = text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r');
        if (is_space && text[i - 1] > ' ' && text[i - 1] < 0x7f) return i;
    }
    return 0;
}

static int encode_file(Docs* docs, const DocsFile* file, char* err, size_t errlen) {
    char* text = NULL;
    int64_t capacity = 0, wanted = BLOCK;
    int status = 0;
    for (int64_t at = 0; status == 0 && at < file->size;) {
        if ((status = docs_reserve(&text, &capacity, 0, MIN(wanted, file->size - at), 1, err, errlen))) break;
        size_t n = (size_t)MIN(wanted, file->size - at);
        if ((status = docs_file_read(file, at, text, n, err, errlen))) break;
        size_t cut = at + (int64_t)n == file->size ? n : safe_cut(text, n);
        if (cut > 0) status = docs_encode(docs, text, cut, err, errlen);
        else wanted *= 2;
        at += (int64_t)cut;
    }
    free(text);
    return status;
}

int docs_index_text(Docs* docs, DocsFile* file, char* err, size_t errlen) {
    file->kind = FILE_TEXT;
    if (docs->encodes) {
        if (docs_append_tokens(docs, &docs->end_of_text, 1, err, errlen) || encode_file(docs, file, err, errlen))
            return -1;
        return docs_add_encoded(docs, file->first_encoded, err, errlen);
    }
    char head[DOCS_HEAD_BYTES];
    size_t n = (size_t)MIN(file->size, (int64_t)sizeof head);
    if (docs_file_read(file, 0, head, n, err, errlen)) return -1;
    return docs_add(docs, 1 + file->size, head, n, err, errlen);
}

int docs_read_text(const DocsFile* file, int64_t at, int n, int* out, char* err, size_t errlen) {
    // The bytes come into the last quarter of out and are spread from there: byte 3n + i is read before it is
    // overwritten.
    unsigned char* bytes = (unsigned char*)out + 3 * (size_t)n;
    if (docs_file_read(file, at, bytes, (size_t)n, err, errlen)) return -1;
    for (int i = 0; i < n; i++) out[i] = bytes[i];
    return 0;
}
