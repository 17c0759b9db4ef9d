// checkpoint_parts.h - what saving (checkpoint.c) and finding (checkpoint_find.c) share; everybody else includes
// checkpoint.h.
#pragma once
#include "data/checkpoint.h"

#define CHECKPOINT_MARKER "DONE"

// The step of a final name, exactly as a save writes it; -1 for any other name.
int64_t checkpoint_named_step(const char* name);
// RUN_DIR/step-000100ENDING. 0, or -1 with a message.
int checkpoint_step_path(char* path, const char* run_dir, int64_t step, const char* ending, char* err, size_t errlen);
int checkpoint_is_plain(const char* name);  // stays inside its directory

// A directory with a final name and a marker.
typedef struct CheckpointEntry {
    int64_t step;
    uint64_t written;
} CheckpointEntry;

typedef struct CheckpointList {
    CheckpointEntry* all;  // (n), newest first; the caller frees
    int n;
} CheckpointList;

// The complete checkpoints below run_dir. 0, or -1 with a message; a directory that does not exist has none.
int checkpoint_list(CheckpointList* list, const char* run_dir, char* err, size_t errlen);
// Whether nobody reads a checkpoint; then nobody begins to, until *hold is closed (-1: its file system has no locks).
int checkpoint_hold(const char* dir, int* hold);
