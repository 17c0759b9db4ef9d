// checkpoint.c - the protocol of checkpoint.h, top to bottom: names, the marker, a save, cleaning up, looking for one.
//
// A complete checkpoint is renamed to a name that ends in .tmp before its files are deleted, so that a process killed
// in the middle leaves no directory with a marker and without files.
#include "data/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/json.h"
#include "plan/base.h"

static const char marker[] = "DONE";

enum { LARGEST_SMALL_FILE = 64 << 20 };

// ---- names

// The step of a final name, exactly as checkpoint_begin writes it; -1 for any other name.
static int64_t step_of_name(const char* name) {
    char again[32];
    if (strncmp(name, "step-", 5)) return -1;
    int64_t step = strtoll(name + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%06" PRId64, step);
    return step < 0 || strcmp(name, again) ? -1 : step;
}

static int is_temporary(const char* name) {
    size_t n = strlen(name);
    return !strncmp(name, "step-", 5) && n > 9 && !strcmp(name + n - 4, ".tmp");
}

// A name that stays inside its directory.
static int is_plain(const char* name) {
    return name[0] && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..");
}

static int is_visited(const struct dirent* entry) { return strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."); }

typedef int (*Visit)(void* context, const char* path, const char* name, char* err, size_t errlen);

// Calls visit for everything in dir, in the order of names, until a call fails.
static int visit_dir(const char* dir, Visit visit, void* context, char* err, size_t errlen) {
    char path[CHECKPOINT_PATH];
    struct dirent** list;
    int n = scandir(dir, &list, is_visited, alphasort), result = 0;
    if (n < 0) return fail(err, errlen, "%s: cannot list this directory: %s", dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (!result) result = disk_join(path, dir, list[i]->d_name, err, errlen);
        if (!result) result = visit(context, path, list[i]->d_name, err, errlen);
        free(list[i]);
    }
    free(list);
    return result;
}

// ---- small files

static int write_file(const char* dir, const char* name, const void* bytes, size_t n, char* err, size_t errlen) {
    char path[CHECKPOINT_PATH];
    if (disk_join(path, dir, name, err, errlen)) return -1;
    int fd = disk_create(path, err, errlen);
    return fd < 0 ? -1 : disk_finish(fd, path, disk_write(fd, bytes, n), err, errlen);
}

char* checkpoint_read_file(const char* dir, const char* name, size_t* n, char* err, size_t errlen) {
    char path[CHECKPOINT_PATH];
    return disk_join(path, dir, name, err, errlen) ? NULL : disk_read_file(path, LARGEST_SMALL_FILE, n, err, errlen);
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
    int result = visit_dir(w->dir, list_file, listing, err, errlen);
    for (int i = 0; i < w->n_known && !result; i++)
        if (!w->known[i].listed)
            result = disk_join(path, w->dir, w->known[i].name, err, errlen) ||
                     list_file(listing, path, w->known[i].name, err, errlen);
    return result ? -1 : 0;
}

static int write_marker(CheckpointWriter* w, int64_t step, char* err, size_t errlen) {
    char* text = NULL;
    size_t n = 0;
    Listing listing = {w, open_memstream(&text, &n), 0};
    if (!listing.text) return fail(err, errlen, "%s: no memory to list its files", w->dir);
    fprintf(listing.text, "{\"step\": %" PRId64 ", \"files\": [", step);
    int result = list_files(&listing, err, errlen);
    fprintf(listing.text, "\n]}\n");
    int failed = ferror(listing.text);
    if ((fclose(listing.text) || failed) && !result)
        result = fail(err, errlen, "%s: no memory to list its files", w->dir);
    if (!result) result = write_file(w->dir, marker, text, n, err, errlen);
    free(text);
    return result ? result : disk_sync_dir(w->dir, err, errlen);
}

// One entry of the marker against its file.
static int verify_file(const char* dir, const Json* json, const JsonValue* entry, char* err, size_t errlen) {
    char name[6 * NAME_MAX + 1], text[6 * 16 + 1], *end = text, path[CHECKPOINT_PATH];
    const JsonValue *name_value = json_get(json, entry, "name"), *hash_value = json_get(json, entry, "hash");
    uint64_t bytes, found_bytes, hash, found_hash;
    if (!name_value || name_value->length >= sizeof name || json_string(name_value, name) < 0 || !is_plain(name) ||
        json_uint64(json_get(json, entry, "bytes"), &bytes) || !hash_value || hash_value->length >= sizeof text ||
        json_string(hash_value, text) != 16)
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
    return !disk_is_file(dir, marker) && disk_is_file(dir, "model.safetensors") && disk_is_file(dir, "config.json") &&
           !disk_is_file(dir, "state.json");
}

// ---- looking for one

typedef struct Steps {
    int64_t oldest, newest;  // of complete checkpoints
    int count;
} Steps;

static int note_step(void* context, const char* path, const char* name, char* err, size_t errlen) {
    (void)err, (void)errlen;
    Steps* s = (Steps*)context;
    int64_t step = step_of_name(name);
    if (step < 0 || !disk_is_file(path, marker)) return 0;
    s->oldest = s->count ? MIN(s->oldest, step) : step;
    s->newest = s->count ? MAX(s->newest, step) : step;
    s->count++;
    return 0;
}

static int step_path(char* path, const char* run_dir, int64_t step, const char* ending, char* err, size_t errlen) {
    char name[64];
    snprintf(name, sizeof name, "step-%06" PRId64 "%s", step, ending);
    return disk_join(path, run_dir, name, err, errlen);
}

int checkpoint_latest(const char* run_dir, char* path, size_t path_bytes, int64_t* step, char* err, size_t errlen) {
    char found[CHECKPOINT_PATH];
    Steps steps = {0};
    struct stat s;
    if (stat(run_dir, &s) && errno == ENOENT) return 0;
    if (visit_dir(run_dir, note_step, &steps, err, errlen)) return -1;
    if (steps.count == 0) return 0;
    if (step_path(found, run_dir, steps.newest, "", err, errlen)) return -1;
    if (strlen(found) >= path_bytes)
        return fail(err, errlen, "%s: expected a path of less than %zu bytes", found, path_bytes);
    strcpy(path, found);
    *step = steps.newest;
    return 1;
}

// ---- a save

// The names of a save.
static int prepare(CheckpointWriter* w, const char* run_dir, int64_t step, char* err, size_t errlen) {
    memset(w, 0, sizeof *w);
    if (step < 0) return fail(err, errlen, "%s: expected a step >= 0 to save, found %" PRId64, run_dir, step);
    if (step_path(w->dir, run_dir, step, ".tmp", err, errlen) || step_path(w->final, run_dir, step, "", err, errlen))
        return -1;
    return 0;
}

int checkpoint_begin(CheckpointWriter* w, const char* run_dir, int64_t step, char* err, size_t errlen) {
    CheckpointWriter made;
    memset(w, 0, sizeof *w);
    if (prepare(&made, run_dir, step, err, errlen) || disk_make_dirs(run_dir, err, errlen) ||
        disk_remove_tree(made.dir, err, errlen))
        return -1;
    if (mkdir(made.dir, 0777))
        return fail(err, errlen, "%s: cannot make this directory: %s", made.dir, strerror(errno));
    *w = made;
    return 0;
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
    if (is_plain(name) && strcmp(name, marker)) return 0;
    return fail(err, errlen, "%s: expected a plain file name other than %s, found \"%s\"", w->dir, marker, name);
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
    if (w->dir[0]) disk_remove_tree(w->dir, NULL, 0);
}

// Removes what has a final name. run_dir is synced before anything is deleted: see the head of this file.
static int drop(const char* run_dir, int64_t step, char* err, size_t errlen) {
    char path[CHECKPOINT_PATH], old[CHECKPOINT_PATH];
    if (step_path(path, run_dir, step, "", err, errlen) || step_path(old, run_dir, step, ".old.tmp", err, errlen) ||
        disk_remove_tree(old, err, errlen))
        return -1;
    if (rename(path, old)) return fail(err, errlen, "%s: cannot rename: %s", path, strerror(errno));
    return disk_sync_dir(run_dir, err, errlen) || disk_remove_tree(old, err, errlen) ? -1 : 0;
}

static int publish(const CheckpointWriter* w, const char* run_dir, int64_t step, char* err, size_t errlen) {
    struct stat s;
    if (lstat(w->final, &s) == 0) {
        if (!disk_is_dir(w->final))
            return fail(err, errlen, "%s: expected a directory or nothing, found another kind", w->final);
        if (checkpoint_verify(w->final, NULL, 0) == 0) return disk_remove_tree(w->dir, err, errlen);
        if (drop(run_dir, step, err, errlen)) return -1;
    }
    if (rename(w->dir, w->final))
        return fail(err, errlen, "%s: cannot rename to %s: %s", w->dir, w->final, strerror(errno));
    return disk_sync_dir(run_dir, err, errlen);
}

static int remove_temporary(void* context, const char* path, const char* name, char* err, size_t errlen) {
    (void)context;
    return is_temporary(name) ? disk_remove_tree(path, err, errlen) : 0;
}

static int clean_up(const char* run_dir, int64_t step, int keep, char* err, size_t errlen) {
    for (;;) {
        Steps steps = {0};
        if (visit_dir(run_dir, note_step, &steps, err, errlen)) return -1;
        if (keep <= 0 || steps.count <= keep || steps.oldest >= step) break;
        if (drop(run_dir, steps.oldest, err, errlen)) return -1;
    }
    return visit_dir(run_dir, remove_temporary, NULL, err, errlen);
}

int checkpoint_commit(CheckpointWriter* w, int keep, char* err, size_t errlen) {
    char run_dir[CHECKPOINT_PATH], why[ERR_BYTES];
    const char* slash = strrchr(w->final, '/');
    if (!slash) return fail(err, errlen, "expected a checkpoint that checkpoint_begin began");
    snprintf(run_dir, sizeof run_dir, "%.*s", (int)(slash - w->final), w->final);
    int64_t step = step_of_name(slash + 1);
    if (write_marker(w, step, err, errlen) || publish(w, run_dir, step, err, errlen)) {
        checkpoint_abort(w);
        return -1;
    }
    forget_known(w);
    if (clean_up(run_dir, step, keep, why, sizeof why))
        return fail(err, errlen, "%s is saved, but an older directory could not be removed: %s", w->final, why);
    return 0;
}
