// checkpoint_dirs.h - for tests of checkpoints: a temporary directory, below it a run directory a claim, small saves.
#pragma once
#include <sys/stat.h>

#include "data/checkpoint.h"
#include "plan/base/base.h"
#include "plan/base/disk.h"
#include "test/temporary.h"

static char err[ERR_BYTES], run_dir[600];

// The path of a name in a directory; good for the next three calls.
static inline const char* in(const char* dir, const char* name) {
    static char paths[4][CHECKPOINT_PATH + 64];
    static int next;
    char path[sizeof paths[0]], *kept = paths[next++ % 4];  // dir may itself be one of these four
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return strcpy(kept, path);
}

static inline const char* step_dir(int64_t step) {
    char name[32];
    snprintf(name, sizeof name, "step-%06lld", (long long)step);
    return in(run_dir, name);
}

static inline int exists(const char* path) { return access(path, F_OK) == 0; }

// A run directory of its own for each claim.
static inline void fresh(const char* name) {
    snprintf(run_dir, sizeof run_dir, "%s/%s", work, name);
    CHECK(!exists(run_dir));
}

// Tells the save of a file that lies in its directory.
static inline int add(CheckpointWriter* w, const char* name) {
    uint64_t bytes, hash;
    return disk_hash(in(w->dir, name), &bytes, &hash, err) || checkpoint_add_file(w, name, bytes, hash, err);
}

static inline void begin(CheckpointWriter* w, int64_t step) {
    CHECK(checkpoint_begin(w, run_dir, step, err) == 0);
    CHECK(checkpoint_write_file(w, "config.json", "{\"a\": 1}", 8, err) == 0);
    CHECK(checkpoint_write_file(w, "state.json", "{}", 2, err) == 0);
    write_file(in(w->dir, "model.safetensors"), "not really a model", 18);
    CHECK(add(w, "model.safetensors") == 0);
}

// What a process that dies in a save leaves of it in memory: nothing.
static inline void forget(CheckpointWriter* w) {
    fclose(w->list);
    free(w->text);
}

static inline void save(int64_t step, int keep) {
    CheckpointWriter w;
    begin(&w, step);
    CHECK(checkpoint_commit(&w, keep, err) == 0);
}

// The one of that step verifies; or does not, with words.
static inline int is_whole(int64_t step) { return checkpoint_verify(step_dir(step), err) == 0; }
static inline int is_bad(int64_t step, const char* words) { return !is_whole(step) && strstr(err, words); }

static inline int64_t latest(char* path) {
    int64_t step = -7;
    int found = checkpoint_latest(run_dir, path, &step, err);
    return found == 1 ? step : found == 0 ? -1 : -2;
}

static inline int64_t latest_step(void) {
    char path[CHECKPOINT_PATH];
    return latest(path);
}

static inline int is_there(int64_t step) { return exists(step_dir(step)); }
