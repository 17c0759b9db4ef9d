// test_disk_cache.c - what backends keep between runs: read whole or not at all, and never what another user wrote.
#include <sys/stat.h>

#include "test/cache_files.h"

static int reads_nothing(const char* key) {
    size_t n = 0;
    char* bytes = cache_read(key, &n);
    free(bytes);
    return !bytes;
}

static void a_kept_file_is_read_whole_or_not_at_all(void) {
    static char good[4096], bad[4096];
    const char *key = "a key", *value = "thirty-one bytes that were kept";
    size_t n;
    empty_cache();
    CHECK(reads_nothing(key));
    cache_write(key, value, strlen(value), 0);
    CHECK(reads(key, value));
    cache_write(key, "later", 5, 0);
    CHECK(reads(key, value));
    cache_write(key, "later", 5, 1);
    CHECK(reads(key, "later"));
    cache_write(key, value, strlen(value), 1);
    const char* path = only_file(good, sizeof good, &n);
    CHECK(n > strlen(value));
    for (size_t i = 0; i < n; i++) {  // every prefix, and every byte changed
        write_file(path, good, i);
        CHECK(reads_nothing(key));
        memcpy(bad, good, n);
        bad[i] = (char)(bad[i] ^ 0x10);
        write_file(path, bad, n);
        CHECK(reads_nothing(key));
    }
    memcpy(bad, good, n);
    write_file(path, bad, n + 1);
    CHECK(reads_nothing(key));
    write_file(path, good, n);
    CHECK(reads(key, value));
}

static void files_of_others_are_not_read(void) {
    static char mine[4096];
    size_t n;
    empty_cache();
    cache_write("key 1", "one", 3, 0);
    const char* path = only_file(mine, sizeof mine, &n);
    const char* elsewhere = path_of("elsewhere");
    CHECK(rename(path, elsewhere) == 0 && symlink(elsewhere, path) == 0);
    CHECK(reads_nothing("key 1"));
    CHECK(unlink(path) == 0 && mkfifo(path, 0600) == 0);
    CHECK(reads_nothing("key 1"));
    CHECK(unlink(path) == 0);
    cache_write("key 2", "two", 3, 0);  // key 1's file under the name of key 2's
    static char other[4096];
    size_t other_n;
    write_file(only_file(other, sizeof other, &other_n), mine, n);
    CHECK(reads_nothing("key 2"));
    if (geteuid() == 0) {
        write_file(path, other, other_n);
        CHECK(reads("key 2", "two"));
        CHECK(chown(path, 1, 1) == 0);
        CHECK(reads_nothing("key 2"));
    }
}

static void files_that_others_may_write_are_not_read(void) {
    static char mine[4096];
    size_t n;
    empty_cache();
    cache_write("key", "value", 5, 0);
    const char* path = only_file(mine, sizeof mine, &n);
    CHECK(chmod(path, 0620) == 0 && reads_nothing("key"));
    CHECK(chmod(path, 0602) == 0 && reads_nothing("key"));
    CHECK(chmod(path, 0644) == 0 && reads("key", "value"));
}

static void directories_that_others_may_write_are_not_used(void) {
    static char mine[4096];
    size_t n;
    empty_cache();
    cache_write("key", "value", 5, 0);
    const char* const opened[] = {path_of("ragged"), work};
    for (int i = 0; i < COUNT(opened); i++) {
        CHECK(chmod(opened[i], 0770) == 0 && reads_nothing("key"));
        cache_write("key", "other", 5, 1);
        cache_write("another key", "other", 5, 0);
        CHECK(chmod(opened[i], 0700) == 0 && reads("key", "value"));
        only_file(mine, sizeof mine, &n);
    }
}

static void without_a_place_nothing_is_kept_and_nothing_fails(void) {
    const char* places[] = {"/proc/no/such/place", "relative"};
    char* home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    unsetenv("HOME");
    for (int i = 0; i < COUNT(places); i++) {
        setenv("XDG_CACHE_HOME", places[i], 1);
        cache_write("key", "value", 5, 1);
        CHECK(reads_nothing("key"));
    }
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", work, 1);
    cache_write("at home", "value", 5, 1);
    CHECK(reads("at home", "value"));
    setenv("XDG_CACHE_HOME", work, 1);
    CHECK(reads_nothing("at home"));
    if (home) setenv("HOME", home, 1);
    free(home);
}

int main(void) {
    cache_begin();
    RUN(a_kept_file_is_read_whole_or_not_at_all);
    RUN(files_of_others_are_not_read);
    RUN(files_that_others_may_write_are_not_read);
    RUN(directories_that_others_may_write_are_not_used);
    RUN(without_a_place_nothing_is_kept_and_nothing_fails);
    return temporary_end();
}
