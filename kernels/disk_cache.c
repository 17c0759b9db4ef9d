// disk_cache.c - small files that backends keep between runs; see disk_cache.h.
#include "kernels/disk_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct FileHeader {
    char magic[8];
    uint64_t key_bytes, bytes;  // the key follows, then the bytes; nothing else
    uint64_t hash;              // of both
} FileHeader;

static const char file_magic[8] = {'r', 'a', 'g', 'g', 'e', 'd', 'c', '1'};

// The file of a key. 0, or -1 where there is no place to keep files.
static int cache_path(char* path, size_t room, const char* key, int make_folders) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[1024];
    int n = -1;
    if (cache && cache[0] == '/') n = snprintf(folder, sizeof folder, "%s", cache);
    else if (home && home[0] == '/') n = snprintf(folder, sizeof folder, "%s/.cache", home);
    if (n < 0 || n >= (int)sizeof folder) return -1;
    if (make_folders) mkdir(folder, 0700);
    n = snprintf(path, room, "%s/ragged", folder);
    if (n < 0 || n >= (int)room) return -1;
    if (make_folders) mkdir(path, 0700);
    n = snprintf(path, room, "%s/ragged/%016llx", folder, (unsigned long long)hash_bytes(key, strlen(key), 0));
    return n < 0 || n >= (int)room ? -1 : 0;
}

static uint64_t file_hash(const char* key, const void* bytes, size_t n) {
    return hash_bytes(bytes, n, hash_bytes(key, strlen(key), 1));
}

// A plan holds code that will run: only a file of this user is read, which nobody else may write.
static char* read_own_file(const char* path, size_t* size) {
    const off_t most = 64 << 20;
    struct stat about;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return NULL;
    char* text = NULL;
    if (!fstat(fd, &about) && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
        !(about.st_mode & (S_IWGRP | S_IWOTH)) && about.st_size <= most)
        text = malloc((size_t)about.st_size + 1);
    *size = 0;
    while (text && *size < (size_t)about.st_size) {
        ssize_t got = read(fd, text + *size, (size_t)about.st_size - *size);
        if (got <= 0) break;
        *size += (size_t)got;
    }
    close(fd);
    return text;
}

char* cache_read(const char* key, size_t* n) {
    char path[1100];
    FileHeader header;
    size_t size = 0, key_bytes = strlen(key);
    char* text = cache_path(path, sizeof path, key, 0) ? NULL : read_own_file(path, &size);
    if (text && size >= sizeof header + key_bytes) {
        memcpy(&header, text, sizeof header);
        *n = size - sizeof header - key_bytes;
        char* bytes = text + sizeof header + key_bytes;
        if (!memcmp(header.magic, file_magic, sizeof file_magic) && header.key_bytes == key_bytes &&
            header.bytes == *n && !memcmp(text + sizeof header, key, key_bytes) &&
            header.hash == file_hash(key, bytes, *n))
            return memmove(text, bytes, *n);
    }
    free(text);
    return NULL;
}

static int write_all(int fd, const void* bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t wrote = write(fd, (const char*)bytes + done, n - done);
        if (wrote <= 0) return -1;
        done += (size_t)wrote;
    }
    return 0;
}

void cache_write(const char* key, const void* bytes, size_t n, int replace) {
    char path[1100], temporary[1120];
    FileHeader header;
    memcpy(header.magic, file_magic, sizeof file_magic);
    header.key_bytes = strlen(key), header.bytes = n, header.hash = file_hash(key, bytes, n);
    if (cache_path(path, sizeof path, key, 1)) return;
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int fd = mkstemp(temporary);
    if (fd < 0) return;
    int bad = write_all(fd, &header, sizeof header) || write_all(fd, key, strlen(key)) || write_all(fd, bytes, n);
    bad |= close(fd);
    // A link fails where the file exists; some file systems have none.
    if (!bad && (replace || (link(temporary, path) && errno != EEXIST))) bad = rename(temporary, path);
    unlink(temporary);
}
