// test_user_cache.c - files between runs: what another user could have written is neither read nor replaced.
#include "plan/base/user_cache.h"

#include "test/program.h"

enum { READABLE = 0, ABSENT = 1, REFUSED = -1 };
static char err[ERR_BYTES];

// An empty cache with a file in it, as this program leaves it.
static void new_cache(void) {
    setenv("XDG_CACHE_HOME", filled("%s/cache", work), 1);
    CHECK_SH(0, "rm -rf $W/cache $W/home $W/elsewhere");
    CHECK(user_cache_save("name", "text", 4, 1, err) == 0);
}

// After this command.
static int check_after(const char* command) {
    new_cache();
    CHECK_SH(0, "%s", command);
    err[0] = 0;
    int found = user_cache_check("name", err);
    if (found == REFUSED && !strstr(err, "not trusted")) printf("    %s: %s\n", command, err), found = -2;
    return found;
}

static int mode_of(const char* name) {
    struct stat s;
    return stat(filled("%s/%s", work, name), &s) ? -1 : (int)(s.st_mode & 07777);
}

CLAIM(what_is_saved_is_found_where_it_was_said_to_be) {
    char path[DISK_PATH];
    new_cache();
    CHECK(user_cache_check("name", err) == READABLE);
    CHECK(user_cache_check("other", err) == ABSENT);
    CHECK(user_cache_path(path, "name", err) == 0);
    CHECK_STRING(path, filled("%s/cache/ragged/name", work));
    CHECK_SH(0, "test \"$(cat $W/cache/ragged/name)\" = text");
    CHECK(user_cache_save("name", "texts", 5, 1, err) == 0);
    CHECK_SH(0, "test \"$(cat $W/cache/ragged/name)\" = texts && test $(ls $W/cache/ragged | wc -l) = 1");
    CHECK(user_cache_save("name", "later", 5, 0, err) == 0);  // replaces nothing
    CHECK_SH(0, "test \"$(cat $W/cache/ragged/name)\" = texts && test $(ls $W/cache/ragged | wc -l) = 1");
    CHECK(check_after("rm -r $W/cache/ragged") == ABSENT);
    CHECK(check_after("rm -r $W/cache") == ABSENT);
}

CLAIM(files_are_made_for_this_user_alone) {
    mode_t before = umask(0);
    new_cache();
    CHECK(umask(before) == 0);
    CHECK(mode_of("cache") == 0700 && mode_of("cache/ragged") == 0700 && mode_of("cache/ragged/name") == 0600);
}

#define MOVED "mv $W/cache/ragged $W/elsewhere; ln -s $W/elsewhere $W/cache/ragged"

// What a command makes of a file in the cache. Where a claim begins it has a name.
static const struct After {
    const char *claim, *command;
    int found;
} after[] = {
    {"what_others_may_read_is_trusted", "cd $W/cache; chmod 755 . ragged; chmod 644 ragged/name", READABLE},
    {"what_others_may_write_is_not_trusted", "chmod 620 $W/cache/ragged/name", REFUSED},
    {NULL, "chmod 602 $W/cache/ragged/name", REFUSED},
    {NULL, "chmod 770 $W/cache/ragged", REFUSED},
    {NULL, "chmod 1777 $W/cache/ragged", REFUSED},
    {NULL, "chmod 707 $W/cache", REFUSED},
    {NULL, "chmod 770 $W/cache", REFUSED},
    // As /tmp: others may add to it, but not put something in the place of ours.
    {"a_sticky_directory_may_be_above", "chmod 1777 $W/cache", READABLE},
    {"links_in_the_place_of_files_are_not_trusted",
     "mv $W/cache/ragged/name $W/elsewhere; ln -s $W/elsewhere $W/cache/ragged/name", REFUSED},
    {NULL, "rm $W/cache/ragged/name; mkfifo $W/cache/ragged/name", REFUSED},
    {NULL, "rm $W/cache/ragged/name; ln -s nowhere $W/cache/ragged/name", REFUSED},
    // A user's own place for large files, say. What it leads to counts.
    {"a_linked_directory_counts_as_what_it_leads_to", MOVED, READABLE},
    {NULL, MOVED "; chmod 777 $W/elsewhere", REFUSED},
    {"what_belongs_to_another_user_is_not_trusted", "chown 65534 $W/cache/ragged/name", REFUSED},
    {NULL, "chown 65534 $W/cache/ragged", REFUSED},
    {NULL, "chown 65534 $W/cache", REFUSED},
};

static void check_rows(const struct After* row) {
    if (strstr(row->command, "chown") && geteuid() != 0) SKIP("only root can give files away");
    do {
        CHECK(check_after(row->command) == row->found);
        if (row->found == REFUSED) CHECK(strstr(row->command, "chmod 6") == NULL || strstr(err, "chmod go-w"));
        if (strstr(row->command, "chown 65534 $W/cache/ragged/name")) CHECK(strstr(err, "65534"));
    } while (++row < after + COUNT(after) && !row->claim);
}

CLAIM(nothing_is_written_where_others_may_write) {
    const char* const opened[] = {"cache", "cache/ragged"};
    for (int i = 0; i < COUNT(opened); i++) {
        new_cache();
        CHECK_SH(0, "chmod 777 $W/%s", opened[i]);
        CHECK(user_cache_save("name", "other", 5, 1, err) == -1 && strstr(err, "not trusted"));
        CHECK(user_cache_save("new", "other", 5, 1, err) == -1);
        CHECK_SH(0, "test \"$(cat $W/cache/ragged/name)\" = text && test $(ls $W/cache/ragged | wc -l) = 1");
    }
}

CLAIM(without_a_place_there_is_a_message) {
    char path[DISK_PATH], home[600], *before = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    CHECK(user_cache_path(path, "name", err) == -1 && strstr(err, "HOME"));
    CHECK(user_cache_save("name", "text", 4, 1, err) == -1);
    snprintf(home, sizeof home, "%s/home", work);
    setenv("HOME", home, 1);
    setenv("XDG_CACHE_HOME", "relative", 1);
    CHECK(user_cache_save("name", "text", 4, 1, err) == 0);
    CHECK_SH(0, "test -f $W/home/.cache/ragged/name");
    if (before) setenv("HOME", before, 1);
    free(before);
}

// ---- by key

static int reads(const char* key, const char* expected) {
    size_t n = 0;
    char* bytes = cache_read(key, &n);
    int same = expected ? bytes && n == strlen(expected) && !memcmp(bytes, expected, n) : !bytes;
    free(bytes);
    return same;
}

// What is kept for "key", as a file of its own.
static const char* keep(const char* value, int replaces) {
    static char path[700];
    cache_write("key", value, strlen(value), replaces);
    CHECK_SH(0, "ls $W/cache/ragged | grep -v name | tr -d '\\n'");
    snprintf(path, sizeof path, "%s/cache/ragged/%.100s", work, output);
    return path;
}

CLAIM(what_is_kept_is_read_whole_or_not_at_all) {
    char good[256], bad[256];
    const char* value = "thirty-one bytes that were kept";
    new_cache();
    CHECK(reads("key", NULL));
    keep(value, 0);
    keep("later", 0);
    CHECK(reads("key", value));
    keep("later", 1);
    CHECK(reads("key", "later"));
    const char* path = keep(value, 1);
    size_t n = read_text(path, good, sizeof good);
    for (size_t i = 0; i <= n; i++) {  // every prefix, every byte changed, one more
        memcpy(bad, good, n);
        bad[i] = (char)(bad[i] ^ 0x10);
        write_file(path, bad, i < n ? i : n + 1);
        CHECK(reads("key", NULL));
        write_file(path, bad, n);
        CHECK(reads("key", i < n ? NULL : value));
    }
    cache_write("other", "two", 3, 0);
    CHECK_SH(0, "cd $W/cache/ragged && for f in $(ls | grep -v name); do cp %s $f; done 2> /dev/null; true", path);
    CHECK(reads("key", value) && reads("other", NULL));  // a file under another key's name
}

PROGRAM_TEST {
    for (int i = 0; i < COUNT(after); i++)
        if (after[i].claim) RUN_AS(after[i].claim, check_rows(&after[i]));
}
