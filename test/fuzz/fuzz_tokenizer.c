// fuzz_tokenizer.c - tokenizer files of any content: what opens must encode and decode any bytes without loss.
//
// A first byte that is odd stands for a good header of llm.c's format and the 256 single bytes, so that the rest is
// reached.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer.h"

enum { HEADER = 1024, SINGLE = 512 };

static Tokenizer* parse(const uint8_t* data, size_t n) {
    Tokenizer* t = NULL;
    char err[256];
    if (n == 0 || data[0] % 2 == 0) {
        tokenizer_parse(&t, data, n, err, sizeof err);
        return t;
    }
    uint8_t* file = calloc(HEADER + SINGLE + n, 1);
    int32_t n_tokens = 256;
    for (size_t at = 1; at < n && data[at] > 0; at += 1 + data[at]) n_tokens++;
    int32_t header[5] = {20240328, data[0] & 2 ? 3 : 2, n_tokens, n_tokens - 1, data[0] >> 2};
    memcpy(file, header, sizeof header);
    for (int b = 0; b < 256; b++) file[HEADER + 2 * b] = 1, file[HEADER + 2 * b + 1] = (uint8_t)b;
    memcpy(file + HEADER + SINGLE, data + 1, n - 1);
    tokenizer_parse(&t, file, HEADER + SINGLE + n - 1, err, sizeof err);
    free(file);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    Tokenizer* t = parse(data, n);
    if (!t) return 0;
    int* tokens = malloc(n * sizeof *tokens + 1);
    size_t n_tokens = tokenizer_encode(t, tokens, (const char*)data, n), at = 0;
    for (size_t i = 0; i < n_tokens; i++) {
        size_t length;
        const char* bytes = tokenizer_decode(t, tokens[i], &length);
        if (length == 0 || length > n - at || memcmp(data + at, bytes, length)) abort();
        at += length;
    }
    if (at != n) abort();
    free(tokens);
    tokenizer_close(t);
    return 0;
}
