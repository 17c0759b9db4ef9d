// checkpoint_find.c - looking for a checkpoint: names, markers, which one is the newest, which one is whole.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/checkpoint_parts.h"
#include "data/hf_index.h"
#include "data/json.h"
#include "data/safetensors.h"
#include "plan/base.h"

static const char marker[] = CHECKPOINT_MARKER;

enum { LARGEST_SMALL_FILE = 64 << 20 };

// ---- names

// The step of a final name, exactly as checkpoint_begin writes it; -1 for any other name.
int64_t checkpoint_named_step(const char* name) {
    char again[32];
    if (strncmp(name, "step-", 5)) return -1;
    int64_t step = strtoll(name + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%06" PRId64, step);
    return step < 0 || strcmp(name, again) ? -1 : step;
}

// A name that stays inside its directory.
int checkpoint_is_plain(const char* name) {
    return name[0] && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..");
}

char* checkpoint_read_file(const char* dir, const char* name, size_t* n, char* err, size_t errlen) {
    char path[CHECKPOINT_PATH];
    return disk_join(path, dir, name, err, errlen) ? NULL : disk_read_file(path, LARGEST_SMALL_FILE, n, err, errlen);
}

// ---- is it whole?

// One entry of the marker against its file.
static int verify_file(const char* dir, const Json* json, const JsonValue* entry, char* err, size_t errlen) {
    char name[6 * NAME_MAX + 1], text[6 * 16 + 1], *end = text, path[CHECKPOINT_PATH];
    const JsonValue *name_value = json_get(json, entry, "name"), *hash_value = json_get(json, entry, "hash");
    uint64_t bytes, found_bytes, hash, found_hash;
    if (!name_value || name_value->length >= sizeof name || json_string(name_value, name) < 0 ||
        !checkpoint_is_plain(name) || json_uint64(json_get(json, entry, "bytes"), &bytes) || !hash_value ||
        hash_value->length >= sizeof text || json_string(hash_value, text) != 16)
        return fail(err, errlen, "%s/%s: expected name, bytes and hash of each file", dir, marker);
    hash = strtoull(text, &end, 16);
    if (disk_join(path, dir, name, err, errlen) || disk_hash(path, 0, &found_bytes, &found_hash, err, errlen))
        return -1;
    if (found_bytes != bytes)
        return fail(err, errlen, "%s: expected %" PRIu64 " bytes, found %" PRIu64 "; use an older checkpoint", path,
                    bytes, found_bytes);
    if (*end || found_hash != hash)
        return fail(err, errlen,
                    "%s: expected content of hash %016" PRIx64 ", found %016" PRIx64 "; use an older checkpoint", path,
                    hash, found_hash);
    return 0;
}

static int verify_files(const char* dir, const Json* json, char* err, size_t errlen) {
    int64_t step;
    const JsonValue* files = json_get(json, json->values, "files");
    if (!files || files->type != JSON_ARRAY || json_int64(json_get(json, json->values, "step"), &step))
        return fail(err, errlen, "%s/%s: expected a step and a list of files", dir, marker);
    const JsonValue* entry = files + 1;  // not json_at, which walks from the start: the list may be long
    for (int i = 0; i < files->n; i++, entry = &json->values[entry->next])
        if (verify_file(dir, json, entry, err, errlen)) return -1;
    return 0;
}

int checkpoint_verify(const char* dir, char* err, size_t errlen) {
    char why[ERR_BYTES];
    size_t n;
    Json json;
    if (!disk_is_dir(dir)) return fail(err, errlen, "%s: expected the directory of a checkpoint, found none", dir);
    if (!disk_is_file(dir, marker))
        return fail(err, errlen, "%s: expected the marker file %s, found none; this save was never finished", dir,
                    marker);
    char* text = checkpoint_read_file(dir, marker, &n, err, errlen);
    if (!text) return -1;
    int bad = json_parse(&json, text, n, why, sizeof why);
    int result = bad ? fail(err, errlen, "%s/%s: %s", dir, marker, why) : verify_files(dir, &json, err, errlen);
    if (!bad) json_free(&json);
    free(text);
    return result;
}

int checkpoint_is_foreign(const char* dir) {
    return !disk_is_file(dir, marker) && hf_index_has_model(dir) && disk_is_file(dir, "config.json") &&
           !disk_is_file(dir, "state.json");
}

// ---- looking for one

// When the marker says it was written; of a marker without that (an older version's, a damaged one) when its file was.
static uint64_t written_at(const char* dir) {
    char path[CHECKPOINT_PATH], head[128] = "";  // a marker may be long: only its head is wanted
    struct stat s;
    uint64_t bytes, written;
    int64_t step;
    int fd = disk_join(path, dir, marker, NULL, 0) ? -1 : disk_open(path, &bytes, NULL, 0);
    if (fd < 0) return 0;
    int known = disk_read(fd, head, sizeof head - 1) > 0 &&
                sscanf(head, "{\"step\": %" SCNd64 ", \"written\": %" SCNu64, &step, &written) == 2;
    if (!known && fstat(fd, &s) == 0) written = (uint64_t)s.st_mtim.tv_sec * 1000000000u + (uint64_t)s.st_mtim.tv_nsec;
    else if (!known) written = 0;
    close(fd);
    return written;
}

static int note_complete(void* context, const char* path, const char* name, char* err, size_t errlen) {
    CheckpointList* list = (CheckpointList*)context;
    int64_t step = checkpoint_named_step(name);
    if (step < 0 || !disk_is_file(path, marker)) return 0;
    CheckpointEntry* more = (CheckpointEntry*)realloc(list->all, sizeof *more * ((size_t)list->n + 1));
    if (!more) return fail(err, errlen, "%s: no memory to list checkpoints", path);
    list->all = more;
    list->all[list->n++] = (CheckpointEntry){step, written_at(path)};
    return 0;
}

static int newest_first(const void* a, const void* b) {
    const CheckpointEntry *x = (const CheckpointEntry*)a, *y = (const CheckpointEntry*)b;
    if (x->written != y->written) return x->written < y->written ? 1 : -1;
    return (x->step < y->step) - (x->step > y->step);
}

int checkpoint_list(CheckpointList* list, const char* run_dir, char* err, size_t errlen) {
    struct stat s;
    *list = (CheckpointList){0};
    if (stat(run_dir, &s) && errno == ENOENT) return 0;
    int result = disk_visit(run_dir, note_complete, list, err, errlen);
    if (list->n > 1) qsort(list->all, (size_t)list->n, sizeof *list->all, newest_first);
    if (!result) return 0;
    free(list->all);
    *list = (CheckpointList){0};
    return -1;
}

int checkpoint_step_path(char* path, const char* run_dir, int64_t step, const char* ending, char* err, size_t errlen) {
    char name[64];
    snprintf(name, sizeof name, "step-%06" PRId64 "%s", step, ending);
    return disk_join(path, run_dir, name, err, errlen);
}

int checkpoint_latest(const char* run_dir, char* path, size_t path_bytes, int64_t* step, char* err, size_t errlen) {
    char found[CHECKPOINT_PATH];
    CheckpointList list;
    if (checkpoint_list(&list, run_dir, err, errlen)) return -1;
    int result = list.n > 0;
    if (result && checkpoint_step_path(found, run_dir, list.all[0].step, "", err, errlen)) result = -1;
    if (result > 0 && strlen(found) >= path_bytes)
        result = fail(err, errlen, "%s: expected a path of less than %zu bytes", found, path_bytes);
    if (result > 0) strcpy(path, found), *step = list.all[0].step;
    free(list.all);
    return result;
}

int checkpoint_steps(const char* run_dir, int64_t* steps, int most) {
    CheckpointList list;
    if (checkpoint_list(&list, run_dir, NULL, 0)) return 0;
    int n = MIN(list.n, most);
    for (int i = 0; i < n; i++) steps[i] = list.all[i].step;
    free(list.all);
    return n;
}

uint64_t checkpoint_written(const char* run_dir) {
    CheckpointList list;
    if (checkpoint_list(&list, run_dir, NULL, 0)) return 0;
    uint64_t written = list.n > 0 ? list.all[0].written : 0;
    free(list.all);
    return written;
}

// The step that a name of a checkpoint means: step-000120, or 120 alone. -1 for any other.
int64_t checkpoint_step(const char* name) {
    char final[32];
    snprintf(final, sizeof final, "step-%06" PRId64, (int64_t)strtoll(name, NULL, 10));
    return strspn(name, "0123456789") == strlen(name) ? checkpoint_named_step(final) : checkpoint_named_step(name);
}

// ---- pins

int checkpoint_pin(const char* dir) {
    char path[CHECKPOINT_PATH];
    if (disk_join(path, dir, marker, NULL, 0)) return -1;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return -1;
    // A file system without locks gives none; whoever saves then removes what it wants, as it would without pins.
    if (flock(fd, LOCK_SH) && errno == EINTR) errno = 0;
    if (disk_is_named(fd, path)) return fd;
    close(fd);
    return -1;
}

void checkpoint_unpin(int pin) {
    if (pin >= 0) close(pin);
}

// Who pins it now waits, and finds that its name is gone.
int checkpoint_hold(const char* dir, int* hold) {
    char path[CHECKPOINT_PATH];
    *hold = disk_join(path, dir, marker, NULL, 0) ? -1 : open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (*hold < 0 || !flock(*hold, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK) return 1;
    close(*hold);
    *hold = -1;
    return 0;
}

// ---- choosing one

static int check_finite(void* context, const char* path, const char* name, char* err, size_t errlen) {
    const char* ending = strrchr(name, '.');
    (void)context;
    return ending && !strcmp(ending, ".safetensors") ? safetensors_check_finite(path, err, errlen) : 0;
}

// Are all files of a checkpoint there and whole, and all numbers finite?
static int check_whole(const char* dir, char* err, size_t errlen) {
    return checkpoint_verify(dir, err, errlen) || disk_visit(dir, check_finite, NULL, err, errlen) ? -1 : 0;
}

// checkpoint_choose, once. *gone: a checkpoint went while it was being looked at.
static int choose_once(const char* run_dir, int64_t step, char* path, int* pin, int* gone, CheckpointSkip skip,
                       void* context, char* err, size_t errlen) {
    char first[ERR_BYTES] = "", why[ERR_BYTES];
    CheckpointList list;
    *pin = -1;
    if (checkpoint_list(&list, run_dir, err, errlen)) return -1;
    int result = 0;
    for (int i = 0; i < list.n && !result; i++) {
        if (step >= 0 && list.all[i].step != step) continue;
        if (checkpoint_step_path(path, run_dir, list.all[i].step, "", err, errlen)) result = -1;
        else if ((*pin = checkpoint_pin(path)) < 0) *gone = 1;
        else if (check_whole(path, why, sizeof why) == 0) result = 1;
        else {
            checkpoint_unpin(*pin);
            *pin = -1;
            if (!first[0]) strcpy(first, why);
            if (skip) skip(context, path, why);
        }
    }
    free(list.all);
    return result || !first[0] ? result : fail(err, errlen, "%s", first);
}

int checkpoint_choose(const char* run_dir, int64_t step, char* path, int* pin, CheckpointSkip skip, void* context,
                      char* err, size_t errlen) {
    int found = 0, gone = 1;
    // The run that saves there goes on: what was newest may be gone, and newer ones have come.
    for (int tries = 0; tries < 100 && gone && !found; tries++) {
        gone = 0;
        found = choose_once(run_dir, step, path, pin, &gone, skip, context, err, errlen);
    }
    return found;
}

int checkpoint_set_aside(const char* dir, char* moved, char* err, size_t errlen) {
    struct stat s;
    for (int i = 1;; i++) {
        if (snprintf(moved, CHECKPOINT_PATH, i > 1 ? "%s.damaged-%d" : "%s.damaged", dir, i) >= CHECKPOINT_PATH)
            return fail(err, errlen, "%s: path too long to set aside", dir);
        if (lstat(moved, &s)) break;
    }
    return rename(dir, moved) ? fail(err, errlen, "%s: cannot set aside: %s", dir, strerror(errno)) : 0;
}
