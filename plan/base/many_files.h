// many_files.h - files in such numbers that few are kept open: parts of them, read where they are asked for, and all
// below a directory, in byte order of their paths: alike on every rank and on any file system.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "plan/base/base.h"

// What to try, behind the words for an errno: "; free some space there". Empty where nothing is known.
const char* disk_hint(int error);
// Reads n bytes from byte `at` on, fewer only where the file ends. Their number, or -1 with errno set.
int64_t disk_read_at(int fd, uint64_t at, void* bytes, size_t n);

typedef struct Paths {
    char** list;
    int64_t n, capacity;
} Paths;

// Takes over path, which is malloc'ed, or NULL: memory has run out. 0, or -1 with a message.
int paths_append(Paths* paths, char* path, Err err);
void paths_sort(Paths* paths);
void paths_free(Paths* paths);

// Appends every regular file below, links followed; neither hidden files and directories nor linked directories, which
// could be loops, nor what is in directories of which leaves_out (NULL: none) says 1; -1 ends it with a message.
// Directories that one may not read are passed over, and *unreadable has a message for each. 0, or -1 with a message.
int paths_below(Paths* paths, const char* directory, int (*leaves_out)(void* context, const char* directory, Err err),
                void* context, Paths* unreadable, Err err);

// Whether a file or directory that nobody named may be left out after this errno: it is not for us, or is gone. After
// any other (a bad disk, too many open files) another run would find another tree.
int may_pass_over(int error);

typedef struct File {
    char* path;
    int fd;         // kept open, or -1: opened for each read
    int is_shared;  // fd is not its own, its bytes begin there at base
    int64_t base, size;
} File;

// Opens file->path, which must be a regular file. 0, or -1 with a message and errno.
int file_open(File* file, Err err);
void file_close(File* file);  // what is not shared
// Bytes offset .. offset + n. 0, or -1 with a message (shrunk, unreadable). From several threads at once, too.
int file_read(const File* file, int64_t offset, void* out, size_t n, Err err);

// The last of n > 0 entries of `stride` bytes whose number, an int64_t at its offset from `first`, is at most `key`;
// ascending, the first at most `key`.
int64_t last_at_most(const int64_t* first, size_t stride, int64_t n, int64_t key);
