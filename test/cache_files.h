// cache_files.h - for tests of what is kept on disk: an empty cache, its one file.
#pragma once
#include <dirent.h>

#include "plan/base/user_cache.h"
#include "test/temporary.h"

// The cache lies in the test's temporary directory.
static inline void cache_begin(void) {
    temporary_begin();
    setenv("XDG_CACHE_HOME", work, 1);
}

static inline void empty_cache(void) { CHECK(shell("rm -rf \"$W/ragged\"") == 0); }

// The only file of the cache: its bytes go to text. Returns its path.
static inline const char* only_file(char* text, size_t room, size_t* n) {
    static char path[1024];
    const char* folder = path_of("ragged");
    int files = 0;
    DIR* dir = opendir(folder);
    for (struct dirent* entry; dir && (entry = readdir(dir));)
        if (entry->d_name[0] != '.') files++, snprintf(path, sizeof path, "%s/%.255s", folder, entry->d_name);
    if (dir) closedir(dir);
    CHECK(files == 1);
    *n = read_text(path, text, room);
    return path;
}

static inline int reads(const char* key, const char* expected) {
    size_t n = 0;
    char* bytes = cache_read(key, &n);
    int same = bytes && n == strlen(expected) && !memcmp(bytes, expected, n);
    free(bytes);
    return same;
}
