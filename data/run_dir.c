// run_dir.c - markers, locks and numbers of run directories; see run_dir.h.
#define _GNU_SOURCE
#include "data/run_dir.h"

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

#include "data/checkpoint.h"
#include "plan/base/base.h"

static const char marker[] = "RUN", magic[] = "{\"ragged run\": \"";

enum { MARKER_BYTES = 512 };

// ---- the marker

// Reads the text of a marker, terminated. 1; 0: the file is empty; -1: it is no marker (errno 0) or cannot be read.
static int read_marker(int fd, char text[MARKER_BYTES]) {
    int64_t n = disk_read_at(fd, 0, text, MARKER_BYTES - 1);
    text[MAX(n, 0)] = 0;
    if (n >= 0) errno = 0;
    return n == 0 ? 0 : n > 0 && !strncmp(text, magic, sizeof magic - 1) ? 1 : -1;
}

// Returns whether the regular file DIR/NAME begins like this; -1 with a message: it is there and cannot be read.
static int begins_with(const char* dir, const char* name, const char* beginning, Err err) {
    char path[DISK_PATH], found[32];
    uint64_t bytes;
    size_t n = strlen(beginning);
    if (disk_join(path, dir, name, NULL) || !disk_is_file(dir, name)) return 0;
    int fd = disk_open(path, &bytes, err);
    if (fd < 0) return may_pass_over(errno) ? 0 : -1;
    int64_t got = disk_read_at(fd, 0, found, n);
    if (got < 0) fail(err, "%s: cannot read: %s", path, strerror(errno));
    close(fd);
    return got < 0 ? -1 : got == (int64_t)n && !memcmp(found, beginning, n);
}

int run_dir_is_marked(const char* dir) { return begins_with(dir, marker, magic, NULL) > 0; }

int run_dir_is_ours(const char* dir, Err err) {
    int is = begins_with(dir, marker, magic, err);
    return is ? is : begins_with(dir, "DONE", "{\"step\": ", err);
}

static int write_marker(int fd) {
    char text[MARKER_BYTES], host[128] = "", since[64] = "";
    time_t now = time(NULL);
    struct tm utc;
    gethostname(host, sizeof host - 1);
    strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &utc));
    int n = snprintf(text, sizeof text, "%sprocess %ld on %s since %s\"}\n", magic, (long)getpid(), host, since);
    return ftruncate(fd, 0) || lseek(fd, 0, SEEK_SET) || disk_write(fd, text, (size_t)n) ? -1 : 0;
}

// Reads from the marker who holds the lock. The holder writes it a moment later, on a busy machine some moments.
static void name_holder(int fd, char words[MARKER_BYTES]) {
    enum { MOMENTS = 40 };
    struct timespec moment = {0, 50000000};
    char text[MARKER_BYTES];
    for (int i = 0; i < MOMENTS; i++) {
        nanosleep(&moment, NULL);
        if (read_marker(fd, text) == 1 && sscanf(text + sizeof magic - 1, "%[^\"\n]", words) == 1) return;
    }
    snprintf(words, MARKER_BYTES, "another process");
}

// ---- the lock

static int has_no_locks(int error) { return error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP; }

// Locks the marker of dir->path and fills it in. 0, -1 with a message, or 1: it was removed meanwhile.
static int take_marker(RunDir* dir, Err err) {
    char path[DISK_PATH], text[MARKER_BYTES], holder[MARKER_BYTES];
    if (disk_join(path, dir->path, marker, err)) return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd < 0 && errno == ENOENT) return 1;
    if (fd < 0) return fail(err, "%s: cannot write: %s", path, strerror(errno));
    struct stat s;
    if (fstat(fd, &s) || !S_ISREG(s.st_mode))
        return close(fd), fail(err, "%s: expected the marker of a run, found no file; try another --out", path);
    if (read_marker(fd, text) < 0) {
        int error = errno;
        close(fd);
        if (error) return fail(err, "%s: cannot read: %s", path, strerror(error));
        return fail(err, "%s: expected the marker of a run, found another file; try another --out", path);
    }
    int refused = flock(fd, LOCK_EX | LOCK_NB), error = errno;
    dir->unlocked = refused && has_no_locks(error);
    if (refused && error == EWOULDBLOCK) {
        name_holder(fd, holder);
        close(fd);
        return fail(err, "%s is in use by %s; end that run first, or try another --out", dir->path, holder);
    }
    int named = disk_is_named(fd, path), bad = refused && !dir->unlocked;
    if (bad) fail(err, "%s: cannot lock: %s", path, strerror(error));
    else if (named && (bad = write_marker(fd))) fail(err, "%s: cannot write: %s", path, strerror(errno));
    if (named && !bad) return dir->lock = fd, 0;
    close(fd);
    return bad ? -1 : 1;
}

int run_dir_claim(RunDir* dir, const char* path, Err err) {
    memset(dir, 0, sizeof *dir);
    dir->lock = -1;
    if ((size_t)snprintf(dir->path, sizeof dir->path, "%s", path) >= sizeof dir->path)
        return fail(err, "%.60s...: expected a path of at most %d bytes", path, DISK_PATH - 1);
    for (int tries = 0; tries < 100; tries++) {
        dir->is_new = !disk_is_dir(path);
        if (disk_make_dirs(path, err)) return -1;
        int taken = take_marker(dir, err);
        if (taken <= 0) return taken;
    }
    return fail(err, "%s: others make and remove this directory all the time", path);
}

void run_dir_release(RunDir* dir) {
    char path[DISK_PATH];
    if (dir->lock < 0) return;
    if (dir->is_new && !disk_join(path, dir->path, marker, NULL) && disk_count(dir->path) == 1 && unlink(path) == 0)
        rmdir(dir->path);
    close(dir->lock);
    dir->lock = -1;
}

// ---- numbers

// Returns the number that a name is, without leading zeros; -1: it is none.
static int64_t number_of(const char* name) {
    size_t n = strlen(name);
    if (n == 0 || n > 15 || strspn(name, "0123456789") != n || (name[0] == '0' && n > 1)) return -1;
    return strtoll(name, NULL, 10);
}

static int note_highest(void* context, const char* path, const char* name, Err err) {
    int64_t *highest = (int64_t*)context, number = number_of(name);
    (void)path, (void)err;
    *highest = MAX(*highest, number);
    return 0;
}

int run_dir_claim_next(RunDir* dir, const char* parent, Err err) {
    char path[DISK_PATH];
    int64_t number = -1;
    if (disk_make_dirs(parent, err) || disk_visit(parent, note_highest, &number, err)) return -1;
    for (;;) {
        int n = snprintf(path, sizeof path, "%s/%" PRId64, parent, ++number);
        if (n >= (int)sizeof path) return fail(err, "%.60s...: path too long", parent);
        if (mkdir(path, 0777) == 0) break;  // of several processes one makes it
        if (errno != EEXIST) return fail(err, "%s: cannot make this directory: %s", path, strerror(errno));
    }
    int result = run_dir_claim(dir, path, err);
    dir->is_new = 1;
    return result;
}

typedef struct Newest {
    char path[DISK_PATH];
    uint64_t written;
} Newest;

static int note_newest(void* context, const char* path, const char* name, Err err) {
    Newest* newest = (Newest*)context;
    (void)err;
    CheckpointList list;
    if (number_of(name) < 0 || checkpoint_list(&list, path, NULL)) return 0;
    if (list.n > 0 && list.all[0].written > newest->written) {
        newest->written = list.all[0].written;
        strcpy(newest->path, path);
    }
    free(list.all);
    return 0;
}

int run_dir_newest(char path[DISK_PATH], const char* parent, Err err) {
    Newest newest = {"", 0};
    if (access(parent, F_OK) && errno == ENOENT) return 0;
    if (disk_visit(parent, note_newest, &newest, err)) return -1;
    if (newest.written > 0) strcpy(path, newest.path);
    return newest.written > 0;
}
