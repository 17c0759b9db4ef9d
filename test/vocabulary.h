// vocabulary.h - for tests of the tokenizer: small and random vocabularies, their file, and what text is encoded to.
#pragma once
#include <stdint.h>
#include <stdlib.h>

#include "data/tokenizer_files.h"
#include "plan/base/base.h"
#include "test/test.h"

static char err[ERR_BYTES];

enum { MAX_TOKENS = 1200 };

typedef struct Words {
    int n, end_of_text;
    int length[MAX_TOKENS];
    char bytes[MAX_TOKENS][256];
} Words;

static uint64_t random_state;
static int random_below(int n) { return (int)(random_uniform(17, random_state++) * n); }

static inline int find_word(const Words* w, const char* bytes, int n) {
    for (int i = 0; i < w->n; i++)
        if (i != w->end_of_text && w->length[i] == n && memcmp(w->bytes[i], bytes, (size_t)n) == 0) return i;
    return -1;
}

static inline int add_word(Words* w, const char* bytes, int n) {
    memcpy(w->bytes[w->n], bytes, (size_t)n);
    w->length[w->n] = n;
    return w->n++;
}

static void add_end_of_text(Words* w) { w->end_of_text = add_word(w, "<|endoftext|>", 13); }

// All bytes in an order of chance, then joins of two tokens whose letters are among `letters`.
static inline void random_words(Words* w, const char* letters, int n_joined) {
    unsigned char order[256];
    *w = (Words){.end_of_text = -1};
    for (int i = 0; i < 256; i++) order[i] = (unsigned char)i;
    for (int i = 255; i > 0; i--) {
        int j = random_below(i + 1);
        unsigned char swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    for (int i = 0; i < 256; i++) add_word(w, (char*)&order[i], 1);
    for (int tries = 0; n_joined > 0 && tries < 100000; tries++) {
        int pair[2], total = 0;
        char joined[512];
        for (int k = 0; k < 2; k++) {
            char letter = letters[random_below((int)strlen(letters))];
            pair[k] = w->n > 256 && random_below(2) ? 256 + random_below(w->n - 256) : find_word(w, &letter, 1);
            memcpy(joined + total, w->bytes[pair[k]], (size_t)w->length[pair[k]]);
            total += w->length[pair[k]];
        }
        if (total > 255 || find_word(w, joined, total) >= 0) continue;
        add_word(w, joined, total);
        n_joined--;
    }
    add_end_of_text(w);
}

static inline void put_int32(unsigned char* p, uint32_t value) {
    for (int i = 0; i < 4; i++) p[i] = (unsigned char)(value >> 8 * i);
}

// llm.c's format, version 2; the caller frees.
static inline unsigned char* llmc_file(const Words* w, size_t* size) {
    unsigned char *file = calloc(1024 + 257 * (size_t)w->n, 1), *p = file + 1024;
    put_int32(file, 20240328);
    put_int32(file + 4, 2);
    put_int32(file + 8, (uint32_t)w->n);
    put_int32(file + 12, (uint32_t)w->end_of_text);
    for (int i = 0; i < w->n; i++) {
        *p++ = (unsigned char)w->length[i];
        memcpy(p, w->bytes[i], (size_t)w->length[i]);
        p += w->length[i];
    }
    *size = (size_t)(p - file);
    return file;
}

static inline Tokenizer* parse(const void* file, size_t n) {
    Tokenizer* t = NULL;
    void* copy = malloc(n ? n : 1);  // of just this size, so that a sanitizer sees every byte too many
    if (n) memcpy(copy, file, n);
    err[0] = 0;
    int status = tokenizer_parse(&t, copy, n, err);
    CHECK((status == 0) == (t != NULL) && (status == 0 || err[0]));
    free(copy);
    return t;
}

static inline Tokenizer* tokenizer_of(const Words* w) {
    size_t n;
    unsigned char* file = llmc_file(w, &n);
    Tokenizer* t = parse(file, n);
    free(file);
    if (!t) printf("    %s\n", err), exit(1);
    return t;
}

// "he" 256, "ll" 257, "hell" 258, " w" 259, end-of-text 260
static inline void small_words(Words* w) {
    *w = (Words){.end_of_text = -1};
    for (int b = 0; b < 256; b++) add_word(w, &(char){(char)b}, 1);
    add_word(w, "he", 2);
    add_word(w, "ll", 2);
    add_word(w, "hell", 4);
    add_word(w, " w", 2);
    add_end_of_text(w);
}

// Tokens as "a b c"; text of n bytes in a buffer of just that size.
static inline const char* encoded(const Tokenizer* t, const char* text) {
    static char list[4096];
    size_t n = strlen(text), at = 0;
    int* tokens = malloc(MAX(n * (size_t)t->most, 1) * sizeof *tokens);
    size_t n_tokens = t->encode(t, tokens, text, n);
    list[0] = 0;
    for (size_t i = 0; i < n_tokens; i++) at += (size_t)sprintf(list + at, i ? " %d" : "%d", tokens[i]);
    free(tokens);
    return list;
}

// Whether text of n bytes comes back as `expected`, of n_expected.
static inline int comes_back_as(const Tokenizer* t, const char* text, size_t n, const char* expected,
                                size_t n_expected) {
    int* tokens = malloc(MAX(n * (size_t)t->most, 1) * sizeof *tokens);
    size_t n_tokens = t->encode(t, tokens, text, n), at = 0;
    int same = n_tokens <= n_expected;
    for (size_t i = 0; same && i < n_tokens; i++) {
        size_t length;
        const char* bytes = t->decode(t, tokens[i], &length);
        same = length > 0 && length <= n_expected - at && memcmp(expected + at, bytes, length) == 0;
        at += length;
    }
    free(tokens);
    return same && at == n_expected;
}

static inline int round_trips(const Tokenizer* t, const char* text, size_t n) {
    return comes_back_as(t, text, n, text, n);
}
