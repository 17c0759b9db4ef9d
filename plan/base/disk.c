// disk.c - files read whole, whole writes, synced files and directories; see disk.h.
#define _GNU_SOURCE  // nftw
#include "plan/base/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 20 };

// ---- files

int disk_join(char path[DISK_PATH], const char* dir, const char* name, Err err) {
    if ((size_t)snprintf(path, DISK_PATH, "%s/%s", dir, name) < DISK_PATH) return 0;
    return fail(err, "%.60s.../%s: expected a path of at most %d bytes", dir, name, DISK_PATH - 1);
}

int disk_open(const char* path, uint64_t* bytes, Err err) {
    struct stat s;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // O_NONBLOCK: a named pipe would wait for its writer
    if (fd < 0) return fail(err, "%s: cannot read: %s%s", path, strerror(errno), disk_hint(errno));
    if (fstat(fd, &s) || !S_ISREG(s.st_mode)) {
        close(fd);
        return fail(err, "%s: expected a file, found another kind", path);
    }
    *bytes = (uint64_t)s.st_size;
    return fd;
}

FILE* disk_open_stream(const char* path, Err err) {
    uint64_t bytes;
    int fd = disk_open(path, &bytes, err);
    FILE* file = fd < 0 ? NULL : fdopen(fd, "r");
    if (fd >= 0 && !file) fail(err, "%s: cannot read: %s", path, strerror(errno)), close(fd);
    return file;
}

int disk_create(const char* path, Err err) {
    struct stat s;
    if (stat(path, &s) == 0 && !S_ISREG(s.st_mode))
        return fail(err, "%s: expected a file to write, found another kind", path);
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, fd = open(path, flags, 0666);
    if (fd < 0 && errno == EEXIST && unlink(path) == 0) fd = open(path, flags, 0666);
    if (fd < 0) return fail(err, "%s: cannot write: %s%s", path, strerror(errno), disk_hint(errno));
    return fd;
}

int disk_write(int fd, const void* bytes, size_t n) {
    for (const char* p = (const char*)bytes; n > 0;) {
        ssize_t written = write(fd, p, n);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return -1;
        p += written;
        n -= (size_t)written;
    }
    return 0;
}

int disk_finish(int fd, const char* path, int failed, Err err) {
    if (!failed) failed = fsync(fd);
    int error = errno;
    if (close(fd) && !failed) failed = -1, error = errno;
    if (!failed) return 0;
    unlink(path);
    return fail(err, "%s: cannot write: %s%s", path, strerror(error), disk_hint(error));
}

int disk_put(const char* path, const void* bytes, size_t n, int replaces, Err err) {
    char whole[PATH_MAX];
    struct stat s;
    if (lstat(path, &s) == 0 && !S_ISREG(s.st_mode) && !S_ISLNK(s.st_mode))
        return fail(err, "%s: expected a file to write, found another kind", path);
    // Ranks in containers may have the same process id.
    if ((size_t)snprintf(whole, sizeof whole, "%s.%ld-%.0f", path, (long)getpid(), 1e9 * now_seconds()) >= sizeof whole)
        return fail(err, "%.100s...: path too long", path);
    int fd = disk_create(whole, err);
    if (fd < 0 || disk_finish(fd, whole, disk_write(fd, bytes, n), err)) return -1;
    // link fails if the name is taken; some file systems have no links.
    int is_there = !replaces && (link(whole, path) == 0 || errno == EEXIST);
    if (!is_there && rename(whole, path) == 0) return 0;
    int error = errno;
    unlink(whole);
    return is_there ? 0 : fail(err, "%s: cannot rename a file to this name: %s", path, strerror(error));
}

// Returns 1 if path is no regular file, or is a /dev name of an open one.
static int is_written_into(const char* path) {
    struct stat s;
    return stat(path, &s) == 0 && (!S_ISREG(s.st_mode) || !strncmp(path, "/dev/", 5));
}

// Sets real to the target of a link to a file, or else to the name itself.
static int resolve(char real[PATH_MAX], const char* path, Err err) {
    struct stat s;
    if (is_written_into(path) || lstat(path, &s) || !S_ISLNK(s.st_mode)) {
        if ((size_t)snprintf(real, PATH_MAX, "%s", path) < PATH_MAX) return 0;
        return fail(err, "%.100s...: path too long", path);
    }
    return realpath(path, real) ? 0 : fail(err, "%s: a link to what is not there", path);
}

static int write_into(const char* path, const void* bytes, size_t n, Err err) {
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC), failed = fd < 0 || disk_write(fd, bytes, n), error = errno;
    if (fd >= 0 && close(fd) && !failed) failed = 1, error = errno;
    return failed ? fail(err, "%s: cannot write: %s%s", path, strerror(error), disk_hint(error)) : 0;
}

int disk_may_put(const char* path, Err err) {
    char real[PATH_MAX], dir[PATH_MAX];
    if (!*path || disk_is_dir(path)) return fail(err, "expected a file to write, found \"%s\"", path);
    if (resolve(real, path, err)) return -1;
    const char* slash = strrchr(real, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? MAX((int)(slash - real), 1) : 1, slash ? real : ".");
    const char* must = is_written_into(real) ? real : dir;
    return access(must, W_OK) ? fail(err, "%s: cannot write there: %s", must, strerror(errno)) : 0;
}

int disk_put_named(const char* path, const void* bytes, size_t n, Err err) {
    char real[PATH_MAX];
    if (resolve(real, path, err)) return -1;
    if (is_written_into(real)) return write_into(real, bytes, n, err);
    return disk_put(real, bytes, n, 1, err);
}

int disk_put_stream(const char* path, int named, FILE* out, char* const* text, const size_t* bytes, Err err) {
    int torn = ferror(out), failed = fclose(out) || torn ? fail(err, "%s: no memory for this file", path) : 0;
    if (!failed) failed = named ? disk_put_named(path, *text, *bytes, err) : disk_put(path, *text, *bytes, 1, err);
    free(*text);
    return failed;
}

static int remove_put(void* context, const char* path, const char* name, Err err) {
    const char *of = (const char*)context, digits[] = "0123456789", *end = name + strlen(of);
    if (strncmp(name, of, strlen(of)) != 0 || *end++ != '.') return 0;
    size_t process = strspn(end, digits), time = end[process] == '-' ? strspn(end + process + 1, digits) : 0;
    if (!process || !time || end[process + 1 + time] || !unlink(path)) return 0;
    return fail(err, "%s: cannot remove: %s", path, strerror(errno));
}

int disk_clean_put(const char* dir, const char* name, Err err) {
    return disk_visit(dir, remove_put, (void*)(uintptr_t)name, err);
}

char* disk_read_file(const char* path, size_t most, size_t* n, Err err) {
    uint64_t bytes;
    int fd = disk_open(path, &bytes, err);
    if (fd < 0) return NULL;
    char* text = bytes <= most ? (char*)malloc((size_t)bytes + 1) : NULL;
    int64_t got = text ? disk_read_at(fd, 0, text, (size_t)bytes) : 0;
    int error = errno;
    close(fd);
    if (!text)
        fail(err, "%s: expected a file of at most %zu bytes that fits in memory, found %" PRIu64, path, most, bytes);
    else if (got < 0) fail(err, "%s: cannot read: %s%s", path, strerror(error), disk_hint(error));
    else if (got != (int64_t)bytes) fail(err, "%s: expected %" PRIu64 " bytes, could read %" PRId64, path, bytes, got);
    if (got != (int64_t)bytes || !text) {
        free(text);
        return NULL;
    }
    *n = (size_t)bytes;
    text[bytes] = 0;
    return text;
}

int disk_hash(const char* path, uint64_t* bytes, uint64_t* hash, Err err) {
    int fd = disk_open(path, bytes, err);
    if (fd < 0) return -1;
    char* piece = (char*)malloc(PIECE);
    int bad = !piece, error = errno;
    *hash = 0;
    // read, not mmap: on a bad disk read gives an error, mmap a signal.
    for (uint64_t done = 0; done < *bytes && !bad;) {
        size_t n = (size_t)MIN(*bytes - done, (uint64_t)PIECE);
        int64_t got = disk_read_at(fd, done, piece, n);
        if (got != (int64_t)n) bad = 1, error = got < 0 ? errno : EIO;  // EIO: it shrank
        else *hash = hash_bytes(piece, n, *hash);
        done += n;
    }
    free(piece);
    close(fd);
    return bad ? fail(err, "%s: cannot read: %s%s", path, strerror(error), disk_hint(error)) : 0;
}

uint64_t disk_hash_bytes(const void* bytes, size_t n) {
    uint64_t hash = 0;
    for (size_t done = 0; done < n; done += PIECE)
        hash = hash_bytes((const char*)bytes + done, MIN(n - done, (size_t)PIECE), hash);
    return hash;
}

// ---- directories

int disk_is_file(const char* dir, const char* name) {
    char path[DISK_PATH];
    struct stat s;
    return !disk_join(path, dir, name, NULL) && stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

int disk_is_dir(const char* path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

int disk_is_named(int fd, const char* path) {
    struct stat held, named;
    return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino &&
           held.st_dev == named.st_dev;
}

static int is_entry(const struct dirent* entry) { return strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."); }

int disk_visit(const char* dir, DiskVisit visit, void* context, Err err) {
    char path[DISK_PATH];
    struct dirent** list;
    int n = scandir(dir, &list, is_entry, alphasort), result = 0;
    if (n < 0) return fail(err, "%s: cannot list this directory: %s", dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (!result) result = disk_join(path, dir, list[i]->d_name, err);
        if (!result) result = visit(context, path, list[i]->d_name, err);
        free(list[i]);
    }
    free(list);
    return result;
}

static int count_one(void* context, const char* path, const char* name, Err err) {
    (void)path, (void)name, (void)err;
    return ++*(int*)context, 0;
}

int disk_count(const char* dir) {
    int n = 0;
    return disk_visit(dir, count_one, &n, NULL) ? -1 : n;
}

int disk_sync_dir(const char* path, Err err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int bad = fd < 0 || fsync(fd), error = errno;
    if (fd >= 0) close(fd);
    // Some file systems sync no directories; a parent may let us make names in it but not read it.
    if (error == EINVAL || error == EACCES) bad = 0;
    return bad ? fail(err, "%s: cannot sync the directory: %s%s", path, strerror(error), disk_hint(error)) : 0;
}

// Makes one directory, and syncs the one that now names it.
static int make_dir(const char* path, Err err) {
    char parent[PATH_MAX];
    if (disk_is_dir(path)) return 0;
    if (mkdir(path, 0777) && errno != EEXIST)
        return fail(err, "%s: cannot make this directory: %s", path, strerror(errno));
    if (!disk_is_dir(path)) return fail(err, "%s: expected a directory, found another kind", path);
    const char* slash = strrchr(path, '/');
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    return disk_sync_dir(parent[0] ? parent : "/", err);
}

int disk_make_dirs(const char* path, Err err) {
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part)
        return fail(err, "\"%.100s\": expected a directory name of 1 to %d bytes", path, PATH_MAX - 1);
    while (n > 1 && path[n - 1] == '/') n--;
    for (size_t i = 1; i <= n; i++) {
        if (i < n && (path[i] != '/' || path[i - 1] == '/')) continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (make_dir(part, err)) return -1;
    }
    return 0;
}

static int remove_one(const char* path, const struct stat* s, int type, struct FTW* where) {
    (void)s, (void)type, (void)where;
    return remove(path);
}

int disk_remove_tree(const char* path, Err err) {
    if (nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT) return 0;
    return fail(err, "%s: cannot remove: %s", path, strerror(errno));
}
