// docs_bytes.h - for tests and fuzzers: a corpus of one file with these bytes.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/docs_files.h"
#include "data/tokenizer_files.h"

// As docs_open of a file whose name ends so (".bin", ".jsonl"). The file is gone afterwards; the Docs keeps it open.
static inline int docs_open_bytes(Docs** docs, const char* ending, const void* bytes, size_t n,
                                  const Tokenizer* tokenizer, Err err) {
    static char path[64];
    const char *place = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", *paths[] = {path};
    snprintf(path, sizeof path, "%s/docs_bytes_%ld%s", place, (long)getpid(), ending);
    FILE* file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n, file) != n || fclose(file)) abort();
    int status = docs_open_as(docs, paths, 1, tokenizer, (DocsReading){0}, err);
    unlink(path);
    return status;
}
