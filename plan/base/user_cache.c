// user_cache.c - files that only this user can have written; see user_cache.h.
#define _GNU_SOURCE
#include "plan/base/user_cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plan/base/base.h"

typedef struct CachePaths {
    char above[DISK_PATH], dir[DISK_PATH], file[DISK_PATH];
} CachePaths;

static int find_paths(CachePaths* paths, const char* name, Err err) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (!cache || cache[0] != '/') cache = NULL;  // the standard for XDG_CACHE_HOME says to ignore relative paths
    if (!cache && (!home || !home[0]))
        return fail(err, "there is no place for measurements; set HOME or XDG_CACHE_HOME");
    int n = snprintf(paths->above, DISK_PATH, "%s%s", cache ? cache : home, cache ? "" : "/.cache");
    if (n >= DISK_PATH) return fail(err, "HOME or XDG_CACHE_HOME is too long");
    return disk_join(paths->dir, paths->above, "ragged", err) || disk_join(paths->file, paths->dir, name, err) ? -1 : 0;
}

int user_cache_path(char path[DISK_PATH], const char* name, Err err) {
    CachePaths paths;
    if (find_paths(&paths, name, err)) return -1;
    memcpy(path, paths.file, DISK_PATH);
    return 0;
}

// ---- trust

// Returns 0; 1 if nothing has this name; -1 with a message. is_above: path is the directory above our own.
static int check_owner(const char* path, mode_t kind, int is_above, Err err) {
    struct stat s;
    // A link in place of a file is refused: it is another's name for it. A linked directory counts as its target.
    if ((kind == S_IFDIR ? stat : lstat)(path, &s))
        return errno == ENOENT ? 1 : fail(err, "%s: cannot read: %s", path, strerror(errno));
    int root_may = is_above && s.st_uid == 0, all_may = is_above && (s.st_mode & S_ISVTX);
    if ((s.st_mode & S_IFMT) != kind)
        return fail(err, "%s: not trusted: expected a %s, found another kind", path,
                    kind == S_IFDIR ? "directory" : "file");
    if (s.st_uid != geteuid() && !root_may)
        return fail(err, "%s: not trusted: expected one of user %ld, found one of user %ld", path, (long)geteuid(),
                    (long)s.st_uid);
    if ((s.st_mode & (S_IWGRP | S_IWOTH)) && !all_may)
        return fail(err, "%s: not trusted: other users may write it (mode %04o); try chmod go-w", path,
                    (unsigned)(s.st_mode & 07777));
    return 0;
}

int user_cache_check_above(const char* dir, Err err) { return check_owner(dir, S_IFDIR, 1, err); }

static int check_dirs(const CachePaths* paths, Err err) {
    int status = user_cache_check_above(paths->above, err);
    return status ? status : check_owner(paths->dir, S_IFDIR, 0, err);
}

int user_cache_check(const char* name, Err err) {
    CachePaths paths;
    if (find_paths(&paths, name, err)) return -1;
    int status = check_dirs(&paths, err);
    return status ? status : check_owner(paths.file, S_IFREG, 0, err);
}

// ---- writing

int user_cache_save(const char* name, const void* bytes, size_t n, int replaces, Err err) {
    CachePaths paths;
    if (find_paths(&paths, name, err)) return -1;
    mode_t before = umask(077);
    int bad =
        disk_make_dirs(paths.dir, err) || check_dirs(&paths, err) || disk_put(paths.file, bytes, n, replaces, err);
    umask(before);
    return bad ? -1 : 0;
}

// ---- by key: the bytes, followed by their hash

enum { NAME = 32, MOST_BYTES = 64 << 20 };

static uint64_t hash_of(const char* key, const void* bytes, size_t n) {
    return hash_bytes(bytes, n, hash_bytes(key, strlen(key), 1));
}

static void name_file(char name[NAME], const char* key) {
    snprintf(name, NAME, "%016llx", (unsigned long long)hash_bytes(key, strlen(key), 0));
}

char* cache_read(const char* key, size_t* n) {
    char name[NAME], path[DISK_PATH], *text = NULL;
    size_t size = 0;
    uint64_t hash;
    name_file(name, key);
    if (user_cache_check(name, NULL) == 0 && user_cache_path(path, name, NULL) == 0)
        text = disk_read_file(path, MOST_BYTES, &size, NULL);
    if (text && size >= sizeof hash) {
        *n = size - sizeof hash;
        memcpy(&hash, text + *n, sizeof hash);
        if (hash == hash_of(key, text, *n)) return text;
    }
    free(text);
    return NULL;
}

void cache_write(const char* key, const void* bytes, size_t n, int replaces) {
    char name[NAME], *text = (char*)malloc(n + sizeof(uint64_t));
    uint64_t hash = hash_of(key, bytes, n);
    if (!text) return;
    memcpy(text, bytes, n);
    memcpy(text + n, &hash, sizeof hash);
    name_file(name, key);
    user_cache_save(name, text, n + sizeof hash, replaces, NULL);
    free(text);
}
