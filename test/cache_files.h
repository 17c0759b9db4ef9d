// cache_files.h - for tests of what is kept on disk: the temporary directory in which the cache lies, its one file.
#pragma once
#include <dirent.h>

#include "kernels/disk_cache.h"
#include "test/test.h"

static char work[512];  // this test's temporary directory, and its cache

// The only file of the cache: its bytes go to text. Returns its path.
static inline const char* only_file(char* text, size_t room, size_t* n) {
    static char path[1024];
    char folder[600];
    int files = 0;
    snprintf(folder, sizeof folder, "%s/ragged", work);
    DIR* dir = opendir(folder);
    for (struct dirent* entry; dir && (entry = readdir(dir));)
        if (entry->d_name[0] != '.') files++, snprintf(path, sizeof path, "%s/%.255s", folder, entry->d_name);
    if (dir) closedir(dir);
    CHECK(files == 1);
    FILE* file = fopen(path, "rb");
    *n = file ? fread(text, 1, room, file) : 0;
    if (file) fclose(file);
    return path;
}

static inline void write_file(const char* path, const char* bytes, size_t n) {
    FILE* file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, n, file) == n);
    if (file) fclose(file);
}

static inline int reads(const char* key, const char* expected) {
    size_t n = 0;
    char* bytes = cache_read(key, &n);
    int same = bytes && n == strlen(expected) && !memcmp(bytes, expected, n);
    free(bytes);
    return same;
}
