// temporary.h - a test's temporary directory, $W in the commands that it runs, and files there. Also C++.
#pragma once
#include <stdarg.h>
#include <unistd.h>

#include "test/test.h"

static char work[512];

// Below $TMPDIR or /tmp.
static inline void temporary_begin(void) {
    const char* base = getenv("TMPDIR");
    snprintf(work, sizeof work, "%s/ragged-test-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(work)) {
        printf("cannot make a temporary directory %s\n0 passed, 1 failed\n", work);
        exit(1);
    }
    setenv("W", work, 1);
}

// A text in which %s and the like are filled in; good for the next three calls.
__attribute__((format(printf, 1, 2))) static inline const char* filled(const char* format, ...) {
    static char texts[4][8192];
    static int next;
    char* text = texts[next++ % 4];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof texts[0], format, args);
    va_end(args);
    return text;
}

// A shell command; what system returns.
#define shell(...) system(filled(__VA_ARGS__))

// The end of main.
static inline int temporary_end(void) {
    if (shell("rm -rf \"$W\"")) printf("    cannot remove %s\n", work);
    return test_done();
}

// main of a test without arguments.
static inline int temporary_main(void) {
    temporary_begin();
    run_claims();
    return temporary_end();
}

// The path of a name there; good for the next seven calls.
static inline const char* path_of(const char* name) {
    static char paths[8][4400];
    static int next;
    char* path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", work, name);
    return path;
}

static inline void write_file(const char* path, const void* bytes, size_t n) {
    FILE* file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, n, file) == n);
    if (file) CHECK(fclose(file) == 0);
}

// The same of a name there.
static inline void write_text(const char* name, const void* bytes, size_t n) { write_file(path_of(name), bytes, n); }
static inline void put_text(const char* name, const char* text) { write_text(name, text, strlen(text)); }

// At most room - 1 bytes, with a NUL behind them; their number.
static inline size_t read_text(const char* path, char* text, size_t room) {
    FILE* file = fopen(path, "rb");
    size_t n = file ? fread(text, 1, room - 1, file) : 0;
    if (file) fclose(file);
    text[n] = 0;
    return n;
}
