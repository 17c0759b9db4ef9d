// save.h - what saving (save.c) asks of the model's state (state.c), and how ranks report to each other; everybody else
// includes run.h.
#pragma once
#include "run/run.h"

typedef struct Report {
    int failed;
    char words[ERR_BYTES];
    uint64_t bytes, hash;  // of the rank's optimizer file, once it is written
} Report;

Report* reports_make(const Comm* c);  // (size), to be freed; ends the program where there is no memory
// All ranks call it. Fills all (size). 0 when every report is good, else -1 with the words of the first that is not;
// ends the program where a rank is lost.
int reports_meet(const Run* run, const Report* mine, Report* all, char* err, size_t errlen);

// All ranks call these two, whatever has failed on one of them. 0, or -1 with a message.
// Whole tensors of the model and those in extra, which the rank that names a path writes there.
int state_write(Run* run, StateKind kind, const SafeTensor* extra, int n_extra, const char* path, char* err,
                size_t errlen);
// The optimizer state that this rank owns, into its file in `dir`. has_failed: nothing is written any more.
int state_write_owned(Run* run, const char* dir, int has_failed, char* err, size_t errlen);
