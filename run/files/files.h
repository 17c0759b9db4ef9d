// files.h - what this rank writes of a checkpoint, copied between two steps: for save.c, and for close.c.
#pragma once
#include "run/run.h"

enum { SMALL_FILES = 6 };

// Written beside tensors, by rank 0.
typedef struct SmallFile {
    char name[64], *text;
    size_t n;
} SmallFile;

typedef struct StateCopy {
    SafeImage model, optimizer;  // n 0: there is none, or it has been written already
    SmallFile small[SMALL_FILES];
    int n_small;
} StateCopy;

extern const char model_name[];

// Tensors of this rank's files into `room` (state_copy_bytes), or into files in `dir` where that is too small. All
// ranks fetch all weights, whatever happened to one of them. 0, or -1 with a message; to be freed in any case.
int state_copy(Run* run, StateCopy* copy, SafeImage room, const char* dir, Err err);
void state_copy_free(StateCopy* copy);
size_t state_copy_bytes(const Run* run, int rank);  // of the tensors of a rank, at most
