// readers.h - for tests of what reads bytes: text with ' for ", every prefix of what is right, and what is refused with
// which words. A reader is a function of the test that returns 0, or another number with a message in its `err`.
#pragma once
#include "test/test.h"

typedef int (*Reader)(const void* bytes, size_t n);

// Text with " for '; good until the next call.
static inline const char* quoted(const char* text) {
    static char copy[4096];
    size_t n = strlen(text) < sizeof copy ? strlen(text) : sizeof copy - 1;
    for (size_t i = 0; i < n; i++) copy[i] = text[i] == '\'' ? '"' : text[i];
    copy[n] = 0;
    return copy;
}

// Of n bytes no prefix is taken, but for those from `whole` on, and all are. A copy has exactly their size, so that a
// sanitizer sees every byte too far.
static inline void check_prefixes(Reader read, const void* bytes, size_t n, size_t whole) {
    for (size_t k = 0; k <= n; k++) {
        void* copy = malloc(k ? k : 1);
        memcpy(copy, bytes, k);
        CHECK((read(copy, k) == 0) == (k >= whole));
        free(copy);
    }
}

// Texts, with ' for ", which are refused in one line with these words.
typedef struct BadText {
    const char *text, *words;
} BadText;

static inline void check_bad_texts(Reader read, const char* err, const BadText* rows, int n) {
    for (int i = 0; i < n; i++) {
        const char* text = quoted(rows[i].text);
        int refused = read(text, strlen(text)) != 0, named = strstr(err, rows[i].words) && !strchr(err, '\n');
        CHECK(refused && named);
        if (!refused || !named) printf("    %s: expected \"%s\", found \"%s\"\n", text, rows[i].words, err);
    }
}
#define CHECK_BAD_TEXTS(read, err, rows) check_bad_texts(read, err, rows, COUNT(rows))
