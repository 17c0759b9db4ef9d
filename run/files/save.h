// save.h - what saving (save.c) asks of the model's state (state.c); everybody else includes run.h.
#pragma once
#include "run/run.h"

// All ranks call these two, whatever has failed on one of them. 0, or -1 with a message.
// Whole tensors of the model and those in extra, which the rank that names a path writes there.
int state_write(Run* run, StateKind kind, const SafeTensor* extra, int n_extra, const char* path, Err err);
// The optimizer state that this rank owns, and extra, into its file in `dir`. has_failed: nothing is written any more.
int state_write_owned(Run* run, const char* dir, const SafeTensor* extra, int n_extra, int has_failed, Err err);
