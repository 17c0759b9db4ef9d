// many_files.c - see many_files.h.
#define _GNU_SOURCE
#include "plan/base/many_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

const char* disk_hint(int error) {
    if (error == ENOSPC || error == EDQUOT) return "; free some space there";
    if (error == EFBIG) return "; raise the limit of a file's size (ulimit -f)";
    if (error == EMFILE) return "; raise the limit of open files (ulimit -n)";
    return "";
}

int64_t disk_read_at(int fd, uint64_t at, void* bytes, size_t n) {
    size_t done = 0;
    while (done < n) {
        ssize_t got = pread(fd, (char*)bytes + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (int64_t)done;
}

int paths_append(Paths* paths, char* path, Err err) {
    if (!path) return fail(err, "out of memory for the list of files");
    if (reserve(&paths->list, &paths->capacity, paths->n, 1, sizeof *paths->list, err)) return free(path), -1;
    paths->list[paths->n++] = path;
    return 0;
}

static int compare(const void* a, const void* b) { return strcmp(*(char* const*)a, *(char* const*)b); }

void paths_sort(Paths* paths) {
    if (paths->n > 1) qsort(paths->list, (size_t)paths->n, sizeof *paths->list, compare);
}

void paths_free(Paths* paths) {
    for (int64_t i = 0; i < paths->n; i++) free(paths->list[i]);
    free(paths->list);
    *paths = (Paths){0};
}

int may_pass_over(int error) { return error == EACCES || error == EPERM || error == ENOENT || error == ELOOP; }

static int is_visible(const struct dirent* entry) { return entry->d_name[0] != '.'; }

// Appends all that is visible in a directory, of any kind.
static int list_one(Paths* paths, const char* directory, Paths* unreadable, Err err) {
    struct dirent** entries;
    const char* slash = *directory && directory[strlen(directory) - 1] == '/' ? "" : "/";
    int n = scandir(directory, &entries, is_visible, NULL), status = 0;
    if (n < 0) fail(err, "%s: %s%s", directory, strerror(errno), disk_hint(errno));
    if (n < 0) return may_pass_over(errno) ? paths_append(unreadable, strdup(err), err) : -1;
    for (int i = 0; i < n; i++) {
        char* path = NULL;
        if (!status && asprintf(&path, "%s%s%s", directory, slash, entries[i]->d_name) < 0) path = NULL;
        if (!status) status = paths_append(paths, path, err);
        free(entries[i]);
    }
    free(entries);
    return status;
}

// Returns 1 for a directory, 0 for a file or an unknown kind, -1 for others and links to directories.
static int kind_of(const char* path) {
    struct stat st;
    if (lstat(path, &st)) return 0;
    if (S_ISLNK(st.st_mode)) return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? 0 : -1;
    return S_ISDIR(st.st_mode) ? 1 : S_ISREG(st.st_mode) ? 0 : -1;
}

int paths_below(Paths* paths, const char* directory, int (*leaves_out)(void* context, const char* directory, Err err),
                void* context, Paths* unreadable, Err err) {
    int64_t i = paths->n;  // all before i are files; a list, not recursion: a deep tree cannot exhaust the stack
    int status = list_one(paths, directory, unreadable, err);
    while (status == 0 && i < paths->n) {
        char* path = paths->list[i];
        int kind = kind_of(path);
        i += kind == 0;
        if (kind == 0) continue;
        paths->list[i] = paths->list[--paths->n];
        int is_out = kind > 0 && leaves_out ? leaves_out(context, path, err) : kind < 0;
        status = is_out < 0 ? -1 : is_out ? 0 : list_one(paths, path, unreadable, err);
        free(path);
    }
    paths_sort(paths);
    return status;
}

static int open_path(const char* path) { return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); }

int file_open(File* file, Err err) {
    struct stat st;
    file->fd = open_path(file->path);
    if (file->fd < 0 || fstat(file->fd, &st))
        return fail(err, "%s: %s%s", file->path, strerror(errno), disk_hint(errno));
    errno = ENOENT;
    file->size = st.st_size;
    return S_ISREG(st.st_mode) ? 0 : fail(err, "%s: is not a regular file", file->path);
}

void file_close(File* file) {
    if (file->fd >= 0 && !file->is_shared) close(file->fd), file->fd = -1;
}

int file_read(const File* file, int64_t offset, void* out, size_t n, Err err) {
    int fd = file->fd >= 0 ? file->fd : open_path(file->path);
    if (fd < 0) return fail(err, "%s: %s%s", file->path, strerror(errno), disk_hint(errno));
    int64_t got = disk_read_at(fd, (uint64_t)(file->base + offset), out, n);
    int error = errno;
    if (fd != file->fd) close(fd);
    if (got < 0) return fail(err, "%s: %s", file->path, strerror(error));
    if (got == (int64_t)n) return 0;
    return fail(err, "%s: ends at byte %lld, it had %lld when it was opened", file->path, (long long)(offset + got),
                (long long)file->size);
}

int64_t last_at_most(const int64_t* first, size_t stride, int64_t n, int64_t key) {
    int64_t low = 0, high = n;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (*(const int64_t*)((const char*)first + (size_t)middle * stride) <= key) low = middle;
        else high = middle;
    }
    return low;
}
