// checkpoint.h - directories that are either a whole checkpoint or not one at all.
//
// A save goes DIR/step-000100.tmp/ (marked by an empty file SAVING; files written and synced) -> the marker file DONE
// in it, which lists every other file with its size and hash -> sync -> rename to DIR/step-000100/ -> sync of DIR. At
// whatever moment a machine stops, a directory with its final name and a marker is complete, and nothing else is ever
// loaded. One process at a time saves into a run directory (run_dir.h). Only directories with a marker are ever
// removed; of a link to one the link alone.
//
// The newest checkpoint is the one that was written last, which its marker says: a run may have gone back to an older
// step. Copying a directory does not change that, nor does a clock that is set back.
//
// Several processes can share a save: one begins it, the others join it and write files of their own into its
// directory; the first is told the size and hash of each, and commits or aborts when nobody writes any more.
//
// The marker is JSON: {"step": 100, "written": 1700000000000000000, "files": [{"name": "config.json", "bytes": 512,
// "hash": "00c0ffee00c0ffee"}, ...]}: nanoseconds since 1970, always more than in any older checkpoint of the run; the
// hash that of plan/base/disk.h in hexadecimal.
#pragma once
#include <stdio.h>

#include "plan/base/disk.h"

enum { CHECKPOINT_PATH = DISK_PATH };

// A save in progress: files are added one by one, then it is committed or dropped.
typedef struct CheckpointWriter {
    char run_dir[CHECKPOINT_PATH];
    int64_t step;
    char dir[CHECKPOINT_PATH];    // the temporary directory
    char final[CHECKPOINT_PATH];  // its name after the commit
    FILE* list;                   // stream of its list of files, into text (n_text); NULL in a process that joined
    char* text;
    size_t n_text;
    uint64_t bytes, hash;  // of the last file
} CheckpointWriter;

// All return 0, or -1 with a message, where nothing else is said.

// Creates run_dir (and its parents) and a fresh temporary directory for this step; leftovers of an interrupted save of
// the same step are removed, a directory of this name without our marker is an error.
int checkpoint_begin(CheckpointWriter* w, const char* run_dir, int64_t step, Err err);
// Joins the save from another process, after checkpoint_begin has returned in the first; no commit or abort follows.
int checkpoint_join(CheckpointWriter* w, const char* run_dir, int64_t step, Err err);
// Writes and syncs one file. Names are of letters, digits and . _ - alone.
int checkpoint_write_file(CheckpointWriter* w, const char* name, const void* bytes, size_t n, Err err);
// The file `name` of the save has been written and synced here: it is read for its size and hash.
int checkpoint_take_file(CheckpointWriter* w, const char* name, Err err);
// The same in another process, with this size and this disk_hash: it is not read, but must be there in this size.
int checkpoint_add_file(CheckpointWriter* w, const char* name, uint64_t bytes, uint64_t hash, Err err);
// Marker, syncs, rename; afterwards only the newest `keep` complete checkpoints of run_dir remain (0: all of them; one
// that is pinned stays until a later commit) and temporary directories of ours are gone. A checkpoint of the same step
// that is there already is replaced; a directory of its name without a marker is set aside. After -1 the temporary
// directory is removed and older checkpoints are as they were; 1 with a message: this checkpoint is saved but an older
// directory could not be removed.
int checkpoint_commit(CheckpointWriter* w, int keep, Err err);
void checkpoint_abort(CheckpointWriter* w);          // removes the temporary directory
int checkpoint_clean(const char* run_dir, Err err);  // removes those that killed processes left

// A directory with a final name and a marker.
typedef struct CheckpointEntry {
    int64_t step;
    uint64_t written;
} CheckpointEntry;

typedef struct CheckpointList {
    CheckpointEntry* all;  // (n), newest first; the caller frees
    int n;
} CheckpointList;

// Lists the complete checkpoints below run_dir without looking at their files. A directory that does not exist has 0.
int checkpoint_list(CheckpointList* list, const char* run_dir, Err err);
// Finds the newest of them: its path and step. 1 found, 0 none, -1 with a message.
int checkpoint_latest(const char* run_dir, char path[CHECKPOINT_PATH], int64_t* step, Err err);
int checkpoint_path(char path[CHECKPOINT_PATH], const char* run_dir, int64_t step, Err err);  // RUN_DIR/step-000100
int64_t checkpoint_step(const char* name);  // the step that "step-000120" or "120" means; -1: neither

// Pins a checkpoint: the run that saves beside it does not remove it. The pin is a shared lock on its marker, which
// ends with the process at the latest. -1: the checkpoint is gone.
int checkpoint_pin(const char* dir);
void checkpoint_unpin(int pin);

// Is called for each checkpoint that is passed over, with the reason.
typedef void (*CheckpointSkip)(const char* why);
// Finds the newest whole checkpoint below run_dir: it passes checkpoint_verify, and all values in its safetensors are
// finite. With step >= 0 only that step will do. path (CHECKPOINT_PATH bytes) is its; the caller lets go of its *pin.
// Reads all its files. 1 found; 0 there is none at all; -1 with a message, the newest's when none is whole.
int checkpoint_choose(const char* run_dir, int64_t step, char* path, int* pin, CheckpointSkip skip, Err err);
// Renames a directory to DIR.damaged (or DIR.damaged-2, ...), which is never looked at: moved (CHECKPOINT_PATH bytes)
// is its new name.
int checkpoint_set_aside(const char* dir, char* moved, Err err);

// Checks that dir is a checkpoint whose files are all there, with the sizes and hashes of its marker.
int checkpoint_verify(const char* dir, Err err);
// 1 when dir has no marker but holds a model (model_files.h) and config.json without a state.json: somebody else's.
int checkpoint_is_foreign(const char* dir);
// Reads a small file whole, terminated by NUL; *n without it. The caller frees. NULL with a message.
char* checkpoint_read_file(const char* dir, const char* name, size_t* n, Err err);
