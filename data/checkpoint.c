// checkpoint.c - a save, by the protocol of checkpoint.h: files, the marker, the rename, cleaning up.
//
// A complete checkpoint is renamed to a name that ends in .tmp before its files are deleted, the marker last, so that a
// process killed in the middle leaves no directory with a final name, a marker and without files.
#define _GNU_SOURCE
#include "data/checkpoint_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "data/json.h"
#include "plan/base.h"

static const char marker[] = CHECKPOINT_MARKER, unfinished[] = "SAVING";

// ---- names

// A name that a save or a removal gives while it is under way, and no other that ends so.
static int is_temporary(const char* name) {
    char final[32];
    const char* dot = strchr(name, '.');
    if (!dot || dot - name >= (int)sizeof final || (strcmp(dot, ".tmp") && strcmp(dot, ".old.tmp"))) return 0;
    snprintf(final, sizeof final, "%.*s", (int)(dot - name), name);
    return checkpoint_named_step(final) >= 0;
}

static int is_marker(const char* name) { return !strcmp(name, marker) || !strcmp(name, unfinished); }

// ---- small files

static int write_file(const char* dir, const char* name, const void* bytes, size_t n, char* err, size_t errlen) {
    char path[CHECKPOINT_PATH];
    if (disk_join(path, dir, name, err, errlen)) return -1;
    int fd = disk_create(path, err, errlen);
    return fd < 0 ? -1 : disk_finish(fd, path, disk_write(fd, bytes, n), err, errlen);
}

// ---- the marker

struct CheckpointFile {
    char name[NAME_MAX + 1];
    uint64_t bytes, hash;
    int listed;  // in the marker's text
};

static CheckpointFile* find_known(const CheckpointWriter* w, const char* name) {
    for (int i = 0; i < w->n_known; i++)
        if (!strcmp(w->known[i].name, name)) return &w->known[i];
    return NULL;
}

static void forget_known(CheckpointWriter* w) {
    free(w->known);
    w->known = NULL;
    w->n_known = 0;
}

// Another process wrote this file: does this process see it, in the same size?
static int check_known(const CheckpointFile* file, const char* path, char* err, size_t errlen) {
    uint64_t found;
    char why[ERR_BYTES];
    int fd = disk_open(path, &found, why, sizeof why);
    if (fd < 0)
        return fail(err, errlen, "%s, though it was written; all nodes must share the file system of --out", why);
    close(fd);
    if (found == file->bytes) return 0;
    return fail(err, errlen, "%s: expected %" PRIu64 " bytes as written, found %" PRIu64, path, file->bytes, found);
}

typedef struct Listing {
    CheckpointWriter* w;
    FILE* text;  // of the marker
    int n;
} Listing;

// Adds a file to the marker's text once its bytes are on disk.
static int list_file(void* context, const char* path, const char* name, char* err, size_t errlen) {
    Listing* listing = (Listing*)context;
    char quoted[6 * NAME_MAX + 3];
    uint64_t bytes, hash;
    CheckpointFile* known = find_known(listing->w, name);
    if (is_marker(name)) return 0;
    if (known) {
        if (check_known(known, path, err, errlen)) return -1;
        bytes = known->bytes, hash = known->hash, known->listed = 1;
    } else if (disk_hash(path, 1, &bytes, &hash, err, errlen)) return -1;
    json_quote(quoted, name, strlen(name));
    if (strstr(quoted, "\xef\xbf\xbd")) return fail(err, errlen, "%s: expected a file name in UTF-8", path);
    fprintf(listing->text, "%s\n  {\"name\": %s, \"bytes\": %" PRIu64 ", \"hash\": \"%016" PRIx64 "\"}",
            listing->n++ ? "," : "", quoted, bytes, hash);
    return 0;
}

// What is in the directory, and what must be: a list of names may be older than files that another node made.
static int list_files(Listing* listing, char* err, size_t errlen) {
    char path[CHECKPOINT_PATH];
    CheckpointWriter* w = listing->w;
    int result = disk_visit(w->dir, list_file, listing, err, errlen);
    for (int i = 0; i < w->n_known && !result; i++)
        if (!w->known[i].listed)
            result = disk_join(path, w->dir, w->known[i].name, err, errlen) ||
                     list_file(listing, path, w->known[i].name, err, errlen);
    return result ? -1 : 0;
}

static int write_marker(CheckpointWriter* w, int64_t step, uint64_t written, char* err, size_t errlen) {
    char* text = NULL;
    size_t n = 0;
    Listing listing = {w, open_memstream(&text, &n), 0};
    if (!listing.text) return fail(err, errlen, "%s: no memory to list its files", w->dir);
    fprintf(listing.text, "{\"step\": %" PRId64 ", \"written\": %" PRIu64 ", \"files\": [", step, written);
    int result = list_files(&listing, err, errlen);
    fprintf(listing.text, "\n]}\n");
    int failed = ferror(listing.text);
    if ((fclose(listing.text) || failed) && !result)
        result = fail(err, errlen, "%s: no memory to list its files", w->dir);
    if (!result) result = write_file(w->dir, marker, text, n, err, errlen);
    free(text);
    return result ? result : disk_sync_dir(w->dir, err, errlen);
}

// ---- a save

// The names of a save.
static int prepare(CheckpointWriter* w, const char* run_dir, int64_t step, char* err, size_t errlen) {
    memset(w, 0, sizeof *w);
    if (step < 0) return fail(err, errlen, "%s: expected a step >= 0 to save, found %" PRId64, run_dir, step);
    if (checkpoint_step_path(w->dir, run_dir, step, ".tmp", err, errlen) ||
        checkpoint_step_path(w->final, run_dir, step, "", err, errlen))
        return -1;
    return 0;
}

// ---- removing; what is not ours stays

// Is this directory of a save or a removal under way: marked, or empty still or already?
static int is_ours(const char* dir) {
    return disk_is_file(dir, marker) || disk_is_file(dir, unfinished) || disk_count(dir) == 0;
}

static int remove_unless_marker(void* context, const char* path, const char* name, char* err, size_t errlen) {
    (void)context;
    return is_marker(name) ? 0 : disk_remove_tree(path, err, errlen);
}

// The marker goes last, so that what is left when a process dies in between is known for what it is.
static int remove_marked(const char* dir, char* err, size_t errlen) {
    struct stat s;
    if (lstat(dir, &s) && errno == ENOENT) return 0;
    if (!is_ours(dir))
        return fail(err, errlen, "%s: expected a directory of an unfinished save, found another's; move it away", dir);
    return disk_visit(dir, remove_unless_marker, NULL, err, errlen) || disk_remove_tree(dir, err, errlen) ? -1 : 0;
}

// ---- a save, from its begin to its commit

int checkpoint_begin(CheckpointWriter* w, const char* run_dir, int64_t step, char* err, size_t errlen) {
    CheckpointWriter made;
    memset(w, 0, sizeof *w);
    if (prepare(&made, run_dir, step, err, errlen) || disk_make_dirs(run_dir, err, errlen) ||
        remove_marked(made.dir, err, errlen))
        return -1;
    if (mkdir(made.dir, 0777))
        return fail(err, errlen, "%s: cannot make this directory: %s", made.dir, strerror(errno));
    *w = made;
    if (write_file(made.dir, unfinished, "", 0, err, errlen) == 0) return 0;
    checkpoint_abort(w);
    return -1;
}

int checkpoint_join(CheckpointWriter* w, const char* run_dir, int64_t step, char* err, size_t errlen) {
    if (prepare(w, run_dir, step, err, errlen)) return -1;
    if (disk_is_dir(w->dir)) return 0;
    return fail(err, errlen,
                "%s: expected the directory that another process made, found none; all nodes must share the file "
                "system of --out",
                w->dir);
}

static int check_name(const CheckpointWriter* w, const char* name, char* err, size_t errlen) {
    if (checkpoint_is_plain(name) && !is_marker(name)) return 0;
    return fail(err, errlen, "%s: expected a plain file name other than %s and %s, found \"%s\"", w->dir, marker,
                unfinished, name);
}

int checkpoint_write_file(CheckpointWriter* w, const char* name, const void* bytes, size_t n, char* err,
                          size_t errlen) {
    return check_name(w, name, err, errlen) ? -1 : write_file(w->dir, name, bytes, n, err, errlen);
}

int checkpoint_add_file(CheckpointWriter* w, const char* name, uint64_t bytes, uint64_t hash, char* err,
                        size_t errlen) {
    if (check_name(w, name, err, errlen)) return -1;
    if (strlen(name) > NAME_MAX || find_known(w, name))
        return fail(err, errlen, "%s: expected each name once and of at most %d bytes, found %.60s", w->dir, NAME_MAX,
                    name);
    CheckpointFile* more = (CheckpointFile*)realloc(w->known, sizeof *more * ((size_t)w->n_known + 1));
    if (!more) return fail(err, errlen, "%s: no memory for the name of %s", w->dir, name);
    w->known = more;
    CheckpointFile* file = &w->known[w->n_known++];
    strcpy(file->name, name);
    file->bytes = bytes;
    file->hash = hash;
    file->listed = 0;
    return 0;
}

void checkpoint_abort(CheckpointWriter* w) {
    forget_known(w);
    if (w->dir[0]) remove_marked(w->dir, NULL, 0);
}

// Removes what has a final name. run_dir is synced before anything is deleted: see the head of this file.
static int drop(const char* run_dir, int64_t step, char* err, size_t errlen) {
    char path[CHECKPOINT_PATH], old[CHECKPOINT_PATH];
    if (checkpoint_step_path(path, run_dir, step, "", err, errlen) ||
        checkpoint_step_path(old, run_dir, step, ".old.tmp", err, errlen) || remove_marked(old, err, errlen))
        return -1;
    if (rename(path, old)) return fail(err, errlen, "%s: cannot rename: %s", path, strerror(errno));
    return disk_sync_dir(run_dir, err, errlen) || remove_marked(old, err, errlen) ? -1 : 0;
}

// A directory of this name is of a way that was left, when the run went back to an older step; or it is not ours.
static int make_way(const CheckpointWriter* w, const char* run_dir, int64_t step, char* err, size_t errlen) {
    char moved[CHECKPOINT_PATH];
    struct stat s;
    if (lstat(w->final, &s)) return 0;
    if (!disk_is_dir(w->final))
        return fail(err, errlen, "%s: expected a directory or nothing, found another kind", w->final);
    return disk_is_file(w->final, marker) ? drop(run_dir, step, err, errlen)
                                          : checkpoint_set_aside(w->final, moved, err, errlen);
}

static int publish(const CheckpointWriter* w, const char* run_dir, int64_t step, char* err, size_t errlen) {
    char path[CHECKPOINT_PATH];
    if (disk_join(path, w->dir, unfinished, err, errlen) || make_way(w, run_dir, step, err, errlen)) return -1;
    if (unlink(path) || rename(w->dir, w->final))
        return fail(err, errlen, "%s: cannot rename to %s: %s", w->dir, w->final, strerror(errno));
    return disk_sync_dir(run_dir, err, errlen);
}

static int remove_temporary(void* context, const char* path, const char* name, char* err, size_t errlen) {
    (void)context;
    return is_temporary(name) && is_ours(path) ? remove_marked(path, err, errlen) : 0;
}

// Of the checkpoints that were written before this one all but the newest go, and none that somebody reads.
static int clean_up(const char* run_dir, const CheckpointList* before, int keep, char* err, size_t errlen) {
    char path[CHECKPOINT_PATH];
    int hold;
    for (int i = MAX(keep - 1, 0); keep > 0 && i < before->n; i++) {
        if (checkpoint_step_path(path, run_dir, before->all[i].step, "", err, errlen)) return -1;
        if (!disk_is_file(path, marker) || !checkpoint_hold(path, &hold)) continue;
        int failed = drop(run_dir, before->all[i].step, err, errlen);
        if (hold >= 0) close(hold);
        if (failed) return -1;
    }
    return disk_visit(run_dir, remove_temporary, NULL, err, errlen);
}

// Nanoseconds since 1970, and later than all before: clocks may be set back.
static uint64_t next_written(const CheckpointList* before) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t written = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return before->n > 0 ? MAX(written, before->all[0].written + 1) : written;
}

// Without the step itself, which will be another one.
static void leave_out(CheckpointList* list, int64_t step) {
    int n = 0;
    for (int i = 0; i < list->n; i++)
        if (list->all[i].step != step) list->all[n++] = list->all[i];
    list->n = n;
}

int checkpoint_commit(CheckpointWriter* w, int keep, char* err, size_t errlen) {
    char run_dir[CHECKPOINT_PATH], why[ERR_BYTES];
    CheckpointList before;
    const char* slash = strrchr(w->final, '/');
    if (!slash) return fail(err, errlen, "expected a checkpoint that checkpoint_begin began");
    snprintf(run_dir, sizeof run_dir, "%.*s", (int)(slash - w->final), w->final);
    int64_t step = checkpoint_named_step(slash + 1);
    int listed = checkpoint_list(&before, run_dir, err, errlen) == 0;
    if (!listed || write_marker(w, step, next_written(&before), err, errlen) ||
        publish(w, run_dir, step, err, errlen)) {
        checkpoint_abort(w);
        free(before.all);
        return -1;
    }
    forget_known(w);
    leave_out(&before, step);
    int left = clean_up(run_dir, &before, keep, why, sizeof why);
    free(before.all);
    if (left) fail(err, errlen, "%s is saved, but an older directory could not be removed: %s", w->final, why);
    return left ? 1 : 0;
}
