// checkpoint.c - a save, by the protocol of checkpoint.h: files, the marker, the rename, cleaning up; and looking for a
// checkpoint: names, markers, which one is the newest, which one is whole.
//
// A complete checkpoint is renamed to a name that ends in .tmp before its files are deleted, the marker last, so that a
// process killed in the middle leaves no directory with a final name, a marker and without files.
#define _GNU_SOURCE
#include "data/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "data/model_files.h"
#include "data/json.h"

static const char marker[] = "DONE", unfinished[] = "SAVING";

enum { NAME = 128, LARGEST_SMALL_FILE = 64 << 20 };

// ---- names

// step-000100ENDING
static void put_name(char name[32], int64_t step, const char* ending) {
    snprintf(name, 32, "step-%06" PRId64 "%s", step, ending);
}

// Returns the step of a name, exactly as put_name writes it; -1 for any other name.
static int64_t step_of(const char* name, const char* ending) {
    char again[32];
    int64_t step = strncmp(name, "step-", 5) ? -1 : strtoll(name + 5, NULL, 10);
    put_name(again, step, ending);
    return step < 0 || strcmp(name, again) ? -1 : step;
}

int64_t checkpoint_step(const char* name) {
    char final[32];
    put_name(final, strtoll(name, NULL, 10), "");
    return step_of(strspn(name, "0123456789") == strlen(name) ? final : name, "");
}

static int step_path(char* path, const char* run_dir, int64_t step, const char* ending, Err err) {
    char name[32];
    put_name(name, step, ending);
    return disk_join(path, run_dir, name, err);
}

int checkpoint_path(char path[CHECKPOINT_PATH], const char* run_dir, int64_t step, Err err) {
    return step_path(path, run_dir, step, "", err);
}

// Returns whether a save or a removal gives this name while it is under way.
static int is_temporary(const char* name) { return step_of(name, ".tmp") >= 0 || step_of(name, ".old.tmp") >= 0; }

static int is_marker(const char* name) { return !strcmp(name, marker) || !strcmp(name, unfinished); }

// Returns whether a name stays inside its directory and needs no escapes in JSON.
static int is_plain(const char* name) {
    static const char known[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = strlen(name);
    return name[0] != '.' && n > 0 && n < NAME && strspn(name, known) == n;
}

// ---- small files

static int write_file(const char* dir, const char* name, const void* bytes, size_t n, Err err) {
    char path[CHECKPOINT_PATH];
    if (disk_join(path, dir, name, err)) return -1;
    int fd = disk_create(path, err);
    return fd < 0 ? -1 : disk_finish(fd, path, disk_write(fd, bytes, n), err);
}

char* checkpoint_read_file(const char* dir, const char* name, size_t* n, Err err) {
    char path[CHECKPOINT_PATH];
    return disk_join(path, dir, name, err) ? NULL : disk_read_file(path, LARGEST_SMALL_FILE, n, err);
}

// ---- the files of a save

static int list_file(CheckpointWriter* w, const char* name, uint64_t bytes, uint64_t hash) {
    w->bytes = bytes, w->hash = hash;
    if (!w->list) return 0;  // a process that joined the save tells the first one, which lists it
    fprintf(w->list, "%s\n  {\"name\": \"%s\", \"bytes\": %" PRIu64 ", \"hash\": \"%016" PRIx64 "\"}",
            ftell(w->list) ? "," : "", name, bytes, hash);
    return 0;
}

static int check_name(const CheckpointWriter* w, const char* name, Err err) {
    if (is_plain(name) && !is_marker(name)) return 0;
    return fail(err, "%s: expected a plain file name other than %s and %s, found \"%s\"", w->dir, marker, unfinished,
                name);
}

int checkpoint_write_file(CheckpointWriter* w, const char* name, const void* bytes, size_t n, Err err) {
    if (check_name(w, name, err) || write_file(w->dir, name, bytes, n, err)) return -1;
    return list_file(w, name, n, disk_hash_bytes(bytes, n));
}

int checkpoint_take_file(CheckpointWriter* w, const char* name, Err err) {
    char path[CHECKPOINT_PATH];
    uint64_t bytes, hash;
    if (check_name(w, name, err) || disk_join(path, w->dir, name, err) || disk_hash(path, &bytes, &hash, err))
        return -1;
    return list_file(w, name, bytes, hash);
}

int checkpoint_add_file(CheckpointWriter* w, const char* name, uint64_t bytes, uint64_t hash, Err err) {
    char path[CHECKPOINT_PATH], why[ERR_BYTES];
    uint64_t found;
    if (check_name(w, name, err) || disk_join(path, w->dir, name, err)) return -1;
    int fd = disk_open(path, &found, why);
    if (fd < 0) return fail(err, "%s, though it was written; all nodes must share the file system of --out", why);
    close(fd);
    if (found != bytes)
        return fail(err, "%s: expected %" PRIu64 " bytes as written, found %" PRIu64, path, bytes, found);
    return list_file(w, name, bytes, hash);
}

static int write_marker(CheckpointWriter* w, uint64_t written, Err err) {
    static const char format[] = "{\"step\": %" PRId64 ", \"written\": %" PRIu64 ", \"files\": [%s\n]}\n";
    FILE* list = w->list;
    char *files = json_end(list, &w->text), *text = NULL;
    w->list = NULL;
    int n = files ? asprintf(&text, format, w->step, written, files) : -1;
    free(files);
    if (n < 0) return fail(err, "%s: no memory to list its files", w->dir);
    int result = write_file(w->dir, marker, text, (size_t)n, err);
    free(text);
    return result ? result : disk_sync_dir(w->dir, err);
}

// ---- is it whole?

// Checks one entry of the marker against its file.
static int verify_file(const char* dir, const JsonValue* entry, Err err) {
    char name[NAME], digits[17], *end, path[CHECKPOINT_PATH];
    uint64_t bytes, found_bytes, found_hash;
    if (json_text(json_get(entry, "name"), name, sizeof name) || !is_plain(name) ||
        json_uint64(json_get(entry, "bytes"), &bytes) || json_text(json_get(entry, "hash"), digits, sizeof digits) ||
        strlen(digits) != 16)
        return fail(err, "%s/%s: expected name, bytes and hash of each file", dir, marker);
    uint64_t hash = strtoull(digits, &end, 16);
    if (disk_join(path, dir, name, err) || disk_hash(path, &found_bytes, &found_hash, err)) return -1;
    if (found_bytes != bytes)
        return fail(err, "%s: expected %" PRIu64 " bytes, found %" PRIu64 "; use an older checkpoint", path, bytes,
                    found_bytes);
    if (*end || found_hash != hash)
        return fail(err, "%s: expected content of hash %016" PRIx64 ", found %016" PRIx64 "; use an older checkpoint",
                    path, hash, found_hash);
    return 0;
}

static int verify_files(const char* dir, const JsonValue* root, Err err) {
    int64_t step;
    const JsonValue* files = json_get(root, "files");
    if (!files || files->type != JSON_ARRAY || json_int64(json_get(root, "step"), &step))
        return fail(err, "%s/%s: expected a step and a list of files", dir, marker);
    for (const JsonValue* entry = json_elements(files); entry; entry = json_next(entry))
        if (verify_file(dir, entry, err)) return -1;
    return 0;
}

int checkpoint_verify(const char* dir, Err err) {
    char why[ERR_BYTES];
    size_t n;
    Json json;
    if (!disk_is_dir(dir)) return fail(err, "%s: expected the directory of a checkpoint, found none", dir);
    if (!disk_is_file(dir, marker))
        return fail(err, "%s: expected the marker file %s, found none; this save was never finished", dir, marker);
    char* text = checkpoint_read_file(dir, marker, &n, err);
    if (!text) return -1;
    int bad = json_parse(&json, text, n, why);
    int result = bad ? fail(err, "%s/%s: %s", dir, marker, why) : verify_files(dir, json.values, err);
    if (!bad) json_free(&json);
    free(text);
    return result;
}

int checkpoint_is_foreign(const char* dir) {
    int is_model = hf_has_model(dir) && disk_is_file(dir, "config.json");
    int is_adapter = disk_is_file(dir, ADAPTER_FILE) && disk_is_file(dir, ADAPTER_CONFIG);
    return !disk_is_file(dir, marker) && (is_model || is_adapter) && !disk_is_file(dir, "state.json");
}

// ---- looking for one

static uint64_t nanoseconds(struct timespec t) { return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec; }

// Returns when the marker says it was written, or when its file was, if the marker is damaged and does not say.
static uint64_t written_at(const char* dir) {
    char path[CHECKPOINT_PATH], head[128] = "";  // a marker may be long: only its head is wanted
    struct stat s;
    uint64_t bytes, written;
    int64_t step;
    int fd = disk_join(path, dir, marker, NULL) ? -1 : disk_open(path, &bytes, NULL);
    if (fd < 0) return 0;
    int known = disk_read_at(fd, 0, head, sizeof head - 1) > 0 &&
                sscanf(head, "{\"step\": %" SCNd64 ", \"written\": %" SCNu64, &step, &written) == 2;
    if (!known) written = fstat(fd, &s) ? 0 : nanoseconds(s.st_mtim);
    close(fd);
    return written;
}

static int note_complete(void* context, const char* path, const char* name, Err err) {
    CheckpointList* list = (CheckpointList*)context;
    int64_t step = step_of(name, "");
    if (step < 0 || !disk_is_file(path, marker)) return 0;
    CheckpointEntry* more = (CheckpointEntry*)realloc(list->all, sizeof *more * ((size_t)list->n + 1));
    if (!more) return fail(err, "%s: no memory to list checkpoints", path);
    list->all = more;
    list->all[list->n++] = (CheckpointEntry){step, written_at(path)};
    return 0;
}

static int newest_first(const void* a, const void* b) {
    const CheckpointEntry *x = (const CheckpointEntry*)a, *y = (const CheckpointEntry*)b;
    if (x->written != y->written) return x->written < y->written ? 1 : -1;
    return (x->step < y->step) - (x->step > y->step);
}

int checkpoint_list(CheckpointList* list, const char* run_dir, Err err) {
    struct stat s;
    *list = (CheckpointList){0};
    if (stat(run_dir, &s) && errno == ENOENT) return 0;
    int result = disk_visit(run_dir, note_complete, list, err);
    if (list->n > 1) qsort(list->all, (size_t)list->n, sizeof *list->all, newest_first);
    if (!result) return 0;
    free(list->all);
    *list = (CheckpointList){0};
    return -1;
}

int checkpoint_latest(const char* run_dir, char path[CHECKPOINT_PATH], int64_t* step, Err err) {
    CheckpointList list;
    if (checkpoint_list(&list, run_dir, err)) return -1;
    int result = list.n > 0;
    if (result) *step = list.all[0].step;
    free(list.all);
    return result && checkpoint_path(path, run_dir, *step, err) ? -1 : result;
}

// ---- pins

// Locks the marker of a checkpoint, shared to read it or alone to remove it. Returns a descriptor; -1: it is gone, or
// somebody reads it. A file system without locks refuses none. NFS locks alone only what is open for writing.
static int lock_marker(const char* dir, int kind) {
    char path[CHECKPOINT_PATH];
    if (disk_join(path, dir, marker, NULL)) return -1;
    int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return -1;
    int refused = flock(fd, kind) && errno == EWOULDBLOCK;
    if (!refused && disk_is_named(fd, path)) return fd;
    close(fd);
    return -1;
}

// Waits for a removal that is under way: it finds that the name is gone.
int checkpoint_pin(const char* dir) { return lock_marker(dir, LOCK_SH); }

void checkpoint_unpin(int pin) {
    if (pin >= 0) close(pin);
}

// ---- removing; what is not ours stays

// Returns whether the directory is of a save or a removal under way: it is marked, or empty still or already.
static int is_ours(const char* dir) {
    return disk_is_file(dir, marker) || disk_is_file(dir, unfinished) || disk_count(dir) == 0;
}

static int remove_unless_marker(void* context, const char* path, const char* name, Err err) {
    (void)context;
    return is_marker(name) ? 0 : disk_remove_tree(path, err);
}

// The marker goes last, so that what is left when a process dies in between is known for what it is. Files that a link
// leads to belong to another run.
static int remove_marked(const char* dir, Err err) {
    struct stat s;
    int is_there = lstat(dir, &s) == 0;
    if (!is_there && errno == ENOENT) return 0;
    if (is_there && S_ISLNK(s.st_mode)) return disk_remove_tree(dir, err);
    if (!is_ours(dir))
        return fail(err, "%s: expected a directory of an unfinished save, found another's; move it away", dir);
    return disk_visit(dir, remove_unless_marker, NULL, err) || disk_remove_tree(dir, err) ? -1 : 0;
}

// ---- a save, from its begin to its commit

// Sets the names of a save.
static int prepare(CheckpointWriter* w, const char* run_dir, int64_t step, Err err) {
    *w = (CheckpointWriter){.step = step};
    if (step < 0) return fail(err, "%s: expected a step >= 0 to save, found %" PRId64, run_dir, step);
    if (step_path(w->dir, run_dir, step, ".tmp", err) || checkpoint_path(w->final, run_dir, step, err)) return -1;
    strcpy(w->run_dir, run_dir);
    return 0;
}

int checkpoint_begin(CheckpointWriter* w, const char* run_dir, int64_t step, Err err) {
    CheckpointWriter made;
    *w = (CheckpointWriter){0};  // until the directory is there: an abort removes it
    if (prepare(&made, run_dir, step, err) || disk_make_dirs(run_dir, err) || remove_marked(made.dir, err)) return -1;
    if (mkdir(made.dir, 0777)) return fail(err, "%s: cannot make this directory: %s", made.dir, strerror(errno));
    *w = made;
    w->list = open_memstream(&w->text, &w->n_text);
    if (w->list && write_file(w->dir, unfinished, "", 0, err) == 0) return 0;
    if (!w->list) fail(err, "%s: no memory to list its files", w->dir);
    checkpoint_abort(w);
    return -1;
}

int checkpoint_join(CheckpointWriter* w, const char* run_dir, int64_t step, Err err) {
    if (prepare(w, run_dir, step, err)) return -1;
    if (disk_is_dir(w->dir)) return 0;
    return fail(err,
                "%s: expected the directory that another process made; all nodes must share the file system of --out",
                w->dir);
}

void checkpoint_abort(CheckpointWriter* w) {
    if (w->list) free(json_end(w->list, &w->text));
    w->list = NULL;
    if (w->dir[0]) remove_marked(w->dir, NULL);
}

// Removes the checkpoint with its final name. run_dir is synced before anything is deleted: see the head of this file.
static int drop(const char* run_dir, int64_t step, Err err) {
    char path[CHECKPOINT_PATH], old[CHECKPOINT_PATH];
    if (step_path(path, run_dir, step, "", err) || step_path(old, run_dir, step, ".old.tmp", err) ||
        remove_marked(old, err))
        return -1;
    if (rename(path, old)) return fail(err, "%s: cannot rename: %s", path, strerror(errno));
    return disk_sync_dir(run_dir, err) || remove_marked(old, err) ? -1 : 0;
}

// Renames the save. A directory of this name goes: the run left its steps when it went back to an older one, or it is
// not ours.
static int publish(const CheckpointWriter* w, Err err) {
    char path[CHECKPOINT_PATH], moved[CHECKPOINT_PATH];
    struct stat s;
    int is_there = lstat(w->final, &s) == 0;
    if (disk_join(path, w->dir, unfinished, err)) return -1;
    if (is_there && !disk_is_dir(w->final))
        return fail(err, "%s: expected a directory or nothing, found another kind", w->final);
    if (is_there &&
        (disk_is_file(w->final, marker) ? drop(w->run_dir, w->step, err) : checkpoint_set_aside(w->final, moved, err)))
        return -1;
    if (unlink(path) || rename(w->dir, w->final))
        return fail(err, "%s: cannot rename to %s: %s", w->dir, w->final, strerror(errno));
    return disk_sync_dir(w->run_dir, err);
}

static int remove_temporary(void* context, const char* path, const char* name, Err err) {
    (void)context;
    return is_temporary(name) && is_ours(path) ? remove_marked(path, err) : 0;
}

int checkpoint_clean(const char* run_dir, Err err) { return disk_visit(run_dir, remove_temporary, NULL, err); }

// Removes the checkpoints written before this one except the newest keep - 1 and any that is read; keep 0: none.
static int clean_up(const CheckpointWriter* w, const CheckpointList* before, int keep, Err err) {
    char path[CHECKPOINT_PATH];
    for (int i = 0, kept = 1; keep > 0 && i < before->n; i++) {
        int64_t step = before->all[i].step;
        if (step == w->step || kept++ < keep) continue;
        if (checkpoint_path(path, w->run_dir, step, err)) return -1;
        int hold = lock_marker(path, LOCK_EX | LOCK_NB);
        if (hold < 0) continue;
        int failed = drop(w->run_dir, step, err);
        close(hold);
        if (failed) return -1;
    }
    return checkpoint_clean(w->run_dir, err);
}

// Returns nanoseconds since 1970, but more than in all checkpoints before: clocks may be set back.
static uint64_t next_written(const CheckpointList* before) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return before->n > 0 ? MAX(nanoseconds(now), before->all[0].written + 1) : nanoseconds(now);
}

int checkpoint_commit(CheckpointWriter* w, int keep, Err err) {
    char why[ERR_BYTES];
    CheckpointList before;
    if (!w->list) return fail(err, "expected a checkpoint that checkpoint_begin began");
    int failed =
        checkpoint_list(&before, w->run_dir, err) || write_marker(w, next_written(&before), err) || publish(w, err);
    if (failed) checkpoint_abort(w);
    int left = !failed && clean_up(w, &before, keep, why);
    free(before.all);
    if (left) fail(err, "%s is saved, but an older directory could not be removed: %s", w->final, why);
    return failed ? -1 : left;
}

// ---- choosing one

static int check_finite(void* context, const char* path, const char* name, Err err) {
    const char* ending = strrchr(name, '.');
    (void)context;
    return ending && !strcmp(ending, ".safetensors") ? safetensors_check_finite(path, NULL, err) : 0;
}

// Pins a checkpoint that is whole: 1; 0: it was removed meanwhile; -1 with a message: it is damaged.
static int take_whole(const char* path, int* pin, Err err) {
    if ((*pin = checkpoint_pin(path)) < 0) return 0;
    if (!checkpoint_verify(path, err) && !disk_visit(path, check_finite, NULL, err)) return 1;
    checkpoint_unpin(*pin);
    return *pin = -1;
}

int checkpoint_choose(const char* run_dir, int64_t step, char* path, int* pin, CheckpointSkip skip, Err err) {
    enum { TRIES = 100 };
    char why[ERR_BYTES];
    CheckpointList list;
    int found = 0, gone = 1, failed = 0;
    // The run that saves there goes on: what was newest may be gone, and newer ones have come.
    for (int tries = 0; tries < TRIES && gone && !found; tries++) {
        gone = 0;
        if (checkpoint_list(&list, run_dir, err)) return -1;
        for (int i = 0; i < list.n && found <= 0 && !failed; i++) {
            if (step >= 0 && list.all[i].step != step) continue;
            if ((failed = checkpoint_path(path, run_dir, list.all[i].step, err))) break;
            int taken = take_whole(path, pin, why);
            gone |= taken == 0;
            if (taken < 0 && !found) fail(err, "%s", why);
            if (taken < 0 && skip) skip(why);
            if (taken) found = taken;
        }
        free(list.all);
    }
    return failed ? -1 : found;
}

int checkpoint_set_aside(const char* dir, char* moved, Err err) {
    struct stat s;
    for (int i = 1;; i++) {
        if (snprintf(moved, CHECKPOINT_PATH, i > 1 ? "%s.damaged-%d" : "%s.damaged", dir, i) >= CHECKPOINT_PATH)
            return fail(err, "%s: path too long to set aside", dir);
        if (lstat(moved, &s)) break;
    }
    return rename(dir, moved) ? fail(err, "%s: cannot set aside: %s", dir, strerror(errno)) : 0;
}
