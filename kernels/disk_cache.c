// disk_cache.c - small files that backends keep between runs; see disk_cache.h.
#include "kernels/disk_cache.h"

#include <stdio.h>
#include <stdlib.h>

#include "plan/user_cache.h"

typedef struct FileHeader {
    char magic[8];
    uint64_t key_bytes, bytes;  // the key follows, then the bytes; nothing else
    uint64_t hash;              // of both
} FileHeader;

enum { MOST_BYTES = 64 << 20 };

static FileHeader header_of(const char* key, const void* bytes, size_t n) {
    FileHeader header = {"", strlen(key), n, hash_bytes(bytes, n, hash_bytes(key, strlen(key), 1))};
    memcpy(header.magic, "raggedc1", sizeof header.magic);
    return header;
}

static void name_file(char name[32], const char* key) {
    snprintf(name, 32, "%016llx", (unsigned long long)hash_bytes(key, strlen(key), 0));
}

char* cache_read(const char* key, size_t* n) {
    char name[32], path[DISK_PATH], *text = NULL;
    size_t size, before = sizeof(FileHeader) + strlen(key);
    name_file(name, key);
    if (user_cache_check(name, NULL, 0) == 0 && user_cache_path(path, name, NULL, 0) == 0)
        text = disk_read_file(path, MOST_BYTES, &size, NULL, 0);
    if (text && size >= before) {
        FileHeader header = header_of(key, text + before, *n = size - before);
        if (!memcmp(text, &header, sizeof header) && !memcmp(text + sizeof header, key, strlen(key)))
            return memmove(text, text + before, *n);
    }
    free(text);
    return NULL;
}

void cache_write(const char* key, const void* bytes, size_t n, int replaces) {
    char name[32];
    size_t before = sizeof(FileHeader) + strlen(key);
    FileHeader header = header_of(key, bytes, n);
    char* text = malloc(before + n);
    if (!text) return;
    memcpy(text, &header, sizeof header);
    memcpy(text + sizeof header, key, strlen(key));
    memcpy(text + before, bytes, n);
    name_file(name, key);
    user_cache_save(name, text, before + n, replaces, NULL, 0);
    free(text);
}
