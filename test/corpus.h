// corpus.h - for tests of corpora: files below a directory of their own, two tokenizers, documents as text.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "data/docs_files.h"
#include "test/readers.h"
#include "plan/base/base.h"
#include "test/temporary.h"
#include "test/vocabulary.h"

static Tokenizer *bytes, *bpe;  // bpe: bytes, "ab" 256, "abab" 257, " ab" 258, two spaces 259, end-of-text 260

static inline void make_directory(const char* name) { CHECK(mkdir(path_of(name), 0777) == 0); }

static inline void remove_tree(const char* name) { CHECK(shell("rm -rf '%s'", path_of(name)) == 0); }

// Paths below the root as one corpus; NULL when it is refused, with the message in err.
static inline Docs* open_paths_as(const char* const* names, int n, const Tokenizer* tokenizer, DocsReading reading) {
    const char* paths[8];
    Docs* docs = NULL;
    for (int i = 0; i < n; i++) paths[i] = path_of(names[i]);
    err[0] = 0;
    int status = docs_open_as(&docs, paths, n, tokenizer, reading, err);
    CHECK((status == 0) == (docs != NULL));
    CHECK(status == 0 || (status == -1 && err[0]));
    return docs;
}

static inline Docs* open_one_as(const char* name, const Tokenizer* tokenizer, DocsReading reading) {
    return open_paths_as(&name, 1, tokenizer, reading);
}

static inline Docs* open_one(const char* name, const Tokenizer* tokenizer) {
    return open_one_as(name, tokenizer, (DocsReading){0});
}

// Of all that the documents are; 0 where they cannot be opened.
static inline uint64_t content(const char* name, const Tokenizer* tokenizer) {
    Docs* docs = open_one(name, tokenizer);
    uint64_t h = docs ? docs_content(docs) : 0;
    docs_close(docs);
    return h;
}

// Whether a file with this content can be opened.
static inline int opens(const char* name, const void* content, size_t n, const Tokenizer* tokenizer) {
    write_text(name, content, n);
    Docs* docs = open_one(name, tokenizer);
    docs_close(docs);
    return docs != NULL;
}

// The document as text, "|" for end-of-text and "<id>" for ids above 255; read whole, then checked in all parts.
static inline const char* document(const Docs* docs, int64_t d) {
    static char text[8192];
    int n = (int)docs_length(docs, d), *tokens = malloc(((size_t)n + 1) * sizeof *tokens), part[3];
    size_t at = 0;
    if (docs_read(docs, d, 0, n, tokens, err)) return err;
    for (int i = 0; i < n && at < sizeof text - 32; i++) {
        if (tokens[i] == docs->end_of_text) text[at++] = '|';
        else if (tokens[i] < 256) text[at++] = (char)tokens[i];
        else at += (size_t)sprintf(text + at, "<%d>", tokens[i]);
    }
    text[at] = 0;
    for (int first = 0; first < n; first++) {
        int k = MIN(3, n - first);
        CHECK(docs_read(docs, d, first, k, part, err) == 0);
        CHECK(memcmp(part, tokens + first, (size_t)k * sizeof *part) == 0);
    }
    CHECK(docs_read(docs, d, n, 0, part, err) == 0);
    CHECK(docs_read(docs, d, n, 1, part, err) == -1);
    CHECK(docs_read(docs, d, -1, 1, part, err) == -1);
    free(tokens);
    return text;
}

// The documents are these texts; then the corpus is closed.
static inline void check_documents(Docs* docs, const char* const* texts, int n) {
    CHECK(docs && docs->n == n);
    for (int i = 0; docs && i < n && i < docs->n; i++) CHECK_STRING(document(docs, i), texts[i]);
    docs_close(docs);
}

#define CHECK_DOCUMENTS(docs, ...) \
    check_documents(docs, (const char* const[]){__VA_ARGS__}, COUNT(((const char* const[]){__VA_ARGS__})))

static inline Docs* open_paths(const char* const* names, int n, const Tokenizer* tokenizer) {
    return open_paths_as(names, n, tokenizer, (DocsReading){0});
}

#define OPEN_PATHS(tokenizer, ...) \
    open_paths((const char* const[]){__VA_ARGS__}, COUNT(((const char* const[]){__VA_ARGS__})), tokenizer)

// A path that is refused with these words, below the root or anywhere in the message.
static inline void check_refused(const char* name, const Tokenizer* tokenizer, const char* words) {
    Docs* docs = open_one(name, tokenizer);
    CHECK(!docs && strstr(err, words));
    if (docs || !strstr(err, words)) printf("    %s: %s, expected %s\n", name, docs ? "opened" : err, words);
    docs_close(docs);
}

static inline Tokenizer* make_bpe(void) {
    static const char* const more[] = {"ab", "abab", " ab", "  "};
    static Words w = {.end_of_text = -1};
    for (int b = 0; b < 256; b++) add_word(&w, &(char){(char)b}, 1);
    for (int i = 0; i < COUNT(more); i++) add_word(&w, more[i], (int)strlen(more[i]));
    add_end_of_text(&w);
    return tokenizer_of(&w);
}

static inline int corpus_main(void) {
    // Holes of sparse files are read fastest in a file system that is memory.
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1);
    temporary_begin();
    if (tokenizer_open(&bytes, NULL, err)) exit(1);
    bpe = make_bpe();
    run_claims();
    tokenizer_close(bytes);
    tokenizer_close(bpe);
    return temporary_end();
}
