// saving.h - the directory of a run, the checkpoint that it starts from, and those that it leaves.
#pragma once
#include "data/model_files.h"
#include "run/run.h"

// ---- files/origin.c

void run_find_origin(Run* run);   // claims the run directory; the checkpoint to start from, its options and shape
void run_leave_origin(Run* run);  // lets the files go that rank 0 holds, in a rank that was forked from it
RunState run_saved_state(const Run* run);  // what state.json says

// ---- files/state.c

// Weights, and with --resume moments too, from start_from; the model's own initial values without it.
void run_load_weights(Run* run);
// Returns the state to write by hf_write: all ranks share in the whole model.
ModelState state_to_write(Run* run);
// Returns the state to read by hf_read; `alone` is its shape.
ModelState state_to_read(Run* run, Shape* alone);
// The optimizer state that this rank owns, into its file in `dir`, or into the image of `state`. All ranks call it,
// whatever has failed on one of them: has_failed: nothing is written any more. 0, or -1 with a message.
int state_write_owned(Run* run, const ModelState* state, const char* dir, int has_failed, Err err);
// Ends the program on all ranks if any has failed, with its words behind `what`. Collective.
void die_together(const Run* run, int failed, const char* words, const char* what);

// ---- files/save.c

// Before anything is trained: ends the program where a checkpoint's files could not hold this model or its options.
void run_check_saving(Run* run);
// The last one of the run: tried three times, then in another directory; ends the program when that fails too.
void run_save_last(Run* run);
// Between steps: the state is copied and written by a thread while training goes on, where the memory table has room
// for a copy (save_copy_bytes); else it is written at once. Tried again later where it fails.
void run_save(Run* run);
int run_save_is_due(const Run* run);
int save_is_due_by_clock(const Run* run);
int save_is_written(void);    // this rank's files of the checkpoint under way
void run_save_end(Run* run);  // of the one under way, if there is one: waits for it, and commits it
size_t save_copy_bytes(const Run* run);
