// fuzz_tokenizer.c - tokenizer files of any content: what opens must encode and decode any bytes without loss, but for
// those without a token, and but for normalization, whose result comes back.
//
// A first byte that is odd stands for a good header of llm.c's format and the 256 single bytes, so that the rest is
// reached; a J for a tokenizer.json up to the merges, an S for one up to its settings. Of a good tokenizer every kind
// of splitting and normalizing is tried.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/bpe.h"

enum { HEADER = 1024, SINGLE = 512 };

// A tokenizer.json that the input completes: "merges" begin there, or with settings the whole.
static Tokenizer* parse_json(const uint8_t* data, size_t n, int settings) {
    static const char* const before[] = {
        "{\"added_tokens\":[{\"id\":256,\"content\":\"<|endoftext|>\"}],\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
        "\"model\":{\"vocab\":{\"ab\":257,\"abab\":258,",
        "{\"added_tokens\":[{\"id\":256,\"content\":\"<|endoftext|>\"}],\"model\":{\"merges\":[],\"vocab\":{"};
    Tokenizer* t = NULL;
    char err[ERR_BYTES], *file = malloc(8192 + n), *p = stpcpy(file, before[settings]);
    for (int b = 0, shifted = 256; b < 256; b++) {
        int itself = (b > 32 && b < 127) || (b > 160 && b != 173), code = itself ? b : shifted++;
        p += code < 128 ? sprintf(p, "%s\"%s%c\":%d", b ? "," : "", strchr("\"\\", code) ? "\\" : "", code, b)
                        : sprintf(p, "%s\"\\u%04x\":%d", b ? "," : "", (unsigned)code, b);
    }
    p = stpcpy(p, settings ? "}}," : "},\"merges\":[");
    memcpy(p, data, n);
    tokenizer_parse(&t, file, (size_t)(p - file) + n, err);
    free(file);
    return t;
}

static Tokenizer* parse(const uint8_t* data, size_t n) {
    Tokenizer* t = NULL;
    Err err;
    if (n > 0 && (data[0] == 'J' || data[0] == 'S')) return parse_json(data + 1, n - 1, data[0] == 'S');
    if (n == 0 || data[0] % 2 == 0) {
        tokenizer_parse(&t, data, n, err);
        return t;
    }
    uint8_t* file = calloc(HEADER + SINGLE + n, 1);
    int32_t n_tokens = 256;
    for (size_t at = 1; at < n && data[at] > 0; at += 1 + data[at]) n_tokens++;
    int32_t header[4] = {20240328, 2, n_tokens, n_tokens - 1};
    memcpy(file, header, sizeof header);
    for (int b = 0; b < 256; b++) file[HEADER + 2 * b] = 1, file[HEADER + 2 * b + 1] = (uint8_t)b;
    memcpy(file + HEADER + SINGLE, data + 1, n - 1);
    tokenizer_parse(&t, file, HEADER + SINGLE + n - 1, err);
    free(file);
    return t;
}

// Text of n bytes must come back.
static void check(const Tokenizer* t, const char* text, size_t n) {
    int* tokens = malloc(n * (size_t)t->most * sizeof *tokens + 1);
    size_t n_tokens = t->encode(t, tokens, text, n), at = 0;
    for (size_t i = 0; i < n_tokens; i++) {
        size_t length;
        const char* bytes = t->decode(t, tokens[i], &length);
        for (size_t k = 0; k < length; k++, at++) {
            while (at < n && bpe_of(t)->byte_id[(unsigned char)text[at]] < 0) at++;
            if (at == n || text[at] != bytes[k]) abort();
        }
        if (length == 0) abort();
    }
    while (at < n && bpe_of(t)->byte_id[(unsigned char)text[at]] < 0) at++;
    if (at != n) abort();
    free(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    Tokenizer* t = parse(data, n);
    if (!t) return 0;
    int* work = malloc(3 * n * sizeof *work);
    size_t n_normal = nfc_normalize(work, (const char*)data, n);
    const char* normal = (const char*)(work + 3 * n) - n_normal;
    if (nfc_is_normal((const char*)data, n) && (n_normal != n || memcmp(normal, data, n))) abort();
    Bpe* bpe = (Bpe*)t;
    t->is_bytes = 0, t->encode = bpe_encode_text, t->most = 3;
    for (int kind = 0; kind < 16; kind++) {
        bpe->split = (Pattern)(kind % 4);
        bpe->nfc = kind / 4 % 2;
        bpe->ignore_merges = kind / 8;
        if (!bpe->nfc) check(t, (const char*)data, n);
        check(t, normal, n_normal);
    }
    free(work);
    tokenizer_close(t);
    return 0;
}
