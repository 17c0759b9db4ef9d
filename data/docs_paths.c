// docs_paths.c - which files a corpus consists of: shell patterns and walks through directories; see docs_format.h.
//
// Always in byte order, so that every rank and every run numbers documents alike whatever the locale or file system.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/docs_format.h"
#include "plan/base.h"

static int compare_paths(const void* a, const void* b) { return strcmp(*(char* const*)a, *(char* const*)b); }

static void sort_paths(FileNames* list) {
    if (list->n > 1) qsort(list->paths, (size_t)list->n, sizeof *list->paths, compare_paths);
}

// Takes over path, which may be NULL: memory has run out.
static int append(FileNames* list, char* path, char* err, size_t errlen) {
    if (!path) return fail(err, errlen, "out of memory for the list of files");
    if (docs_reserve(&list->paths, &list->capacity, list->n, 1, sizeof *list->paths, err, errlen)) {
        free(path);
        return -1;
    }
    list->paths[list->n++] = path;
    return 0;
}

void paths_free(FileNames* list) {
    for (int64_t i = 0; i < list->n; i++) free(list->paths[i]);
    free(list->paths);
    *list = (FileNames){0};
}

int paths_expand(FileNames* list, const char* pattern, char* err, size_t errlen) {
    struct stat st;
    if (stat(pattern, &st) == 0) return append(list, strdup(pattern), err, errlen);
    int error = errno;
    if (!strpbrk(pattern, "*?[")) return fail(err, errlen, "%s: %s", pattern, strerror(error));
    glob_t matches;
    int status = glob(pattern, GLOB_NOSORT, NULL, &matches);
    if (status == GLOB_NOMATCH) return fail(err, errlen, "%s: no file matches this pattern", pattern);
    if (status) return fail(err, errlen, "%s: the pattern cannot be expanded", pattern);
    for (size_t i = 0; i < matches.gl_pathc && status == 0; i++)
        status = append(list, strdup(matches.gl_pathv[i]), err, errlen);
    globfree(&matches);
    sort_paths(list);
    return status;
}

// What an entry of a directory is, following links: DT_REG, DT_DIR (never through a link), or anything else.
static int entry_type(const struct dirent* entry, const char* path) {
    struct stat st;
    int type = entry->d_type;
    if (type == DT_UNKNOWN && lstat(path, &st) == 0) type = IFTODT(st.st_mode);
    if (type == DT_LNK && stat(path, &st) == 0 && S_ISREG(st.st_mode)) type = DT_REG;
    return type;
}

static int list_one(FileNames* files, FileNames* directories, const char* directory, char* err, size_t errlen) {
    DIR* dir = opendir(directory);
    if (!dir) return files->unreadable++, 0;
    int status = 0;
    size_t n = strlen(directory);
    for (struct dirent* entry; status == 0 && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        char* path;
        if (asprintf(&path, "%s%s%s", directory, n && directory[n - 1] == '/' ? "" : "/", entry->d_name) < 0)
            path = NULL;
        int type = path ? entry_type(entry, path) : DT_REG;
        if (type == DT_REG) status = append(files, path, err, errlen);
        else if (type == DT_DIR) status = append(directories, path, err, errlen);
        else free(path);
    }
    closedir(dir);
    return status;
}

int paths_below(FileNames* list, const char* directory, char* err, size_t errlen) {
    FileNames directories = {0};  // a list in place of recursion: a deep tree cannot exhaust the stack
    int status = append(&directories, strdup(directory), err, errlen);
    for (int64_t i = 0; status == 0 && i < directories.n; i++)
        status = list_one(list, &directories, directories.paths[i], err, errlen);
    paths_free(&directories);
    sort_paths(list);
    return status;
}
