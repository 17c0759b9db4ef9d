// files.h - what this rank writes of a checkpoint: a copy that is made between two steps, and a thread that brings it
// to files while training goes on; for save.c, and for close.c.
#pragma once
#include <pthread.h>
#include <stdatomic.h>

#include "run/run.h"

enum { COPIED_FILES = 8 };

typedef struct CopiedFile {
    char name[64], *bytes;  // NULL: the file is written already
    size_t n;
} CopiedFile;

// Tensors lie in memory of the caller's; each other file owns its bytes. The optimizer state is the last file.
typedef struct StateCopy {
    CopiedFile files[COPIED_FILES];
    int n;
} StateCopy;

// Tensors of this rank's files into `room` (state_copy_bytes), or into files in `dir` where that is too small. All
// ranks fetch all weights, whatever happened to one of them. 0, or -1 with a message; to be freed in any case.
int state_copy(Run* run, StateCopy* copy, SafeImage room, const char* dir, Err err);
int state_copy_check(const StateCopy* copy, const char* dir, Err err);  // 0: all values in memory are finite
void state_copy_free(StateCopy* copy);
size_t state_copy_bytes(const Run* run, int rank);  // of the tensors of a rank, at most
// Puts what says how a model of this shape is used (config.json, the tokenizer's files) into dir. 0, or not with a
// message.
int state_put_configs(const Run* run, const Shape* whole, const char* dir, Err err);
int copied_is_tensors(const CopiedFile* file);

// A copy on its way to files. While is_begun its thread owns it, but for `written`.
typedef struct Writing {
    Run* run;
    int64_t step;
    StateCopy copy;
    int (*write)(struct Writing* x);  // 0, or -1 with a message in words
    int failed;
    char words[ERR_BYTES];
    pthread_t thread;
    int is_begun, is_apart;  // the thread runs
    atomic_int written;      // all files are, or one cannot be
    double began, blocked;   // now_seconds; for how long training stood still
} Writing;

void writing_begin(Writing* x, Run* run);
// Calls `write` on a thread, or at once where there is none or may be none.
void writing_start(Writing* x, int (*write)(Writing* x), int may_be_apart);
int writing_is_done(const Writing* x);  // of what is under way
void writing_wait(Writing* x);          // ends the thread
// Writes an event with `path` and times into the log. Returns the seconds since it began.
double writing_tell(Writing* x, const char* event, const char* path);
int writing_leave(Writing* x, int status);  // ends what is under way, and returns the status
