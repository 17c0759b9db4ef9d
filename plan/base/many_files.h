// many_files.h - files in such numbers that few stay open: reads parts of them on demand, and lists all below a
// directory in byte order of their paths, alike on every rank and on any file system.
#pragma once
#include "plan/base/base.h"

// Returns words on what to try, to follow those for an errno: "; free some space there". Empty if nothing is known.
const char* disk_hint(int error);
// Reads n bytes from byte `at` on, fewer only where the file ends. Returns their number, or -1 with errno set.
int64_t disk_read_at(int fd, uint64_t at, void* bytes, size_t n);

typedef struct Paths {
    char** list;
    int64_t n, capacity;
} Paths;

// Takes over path, which is malloc'ed, or NULL: memory has run out. 0, or -1 with a message.
int paths_append(Paths* paths, char* path, Err err);
void paths_sort(Paths* paths);
void paths_free(Paths* paths);

// Appends every regular file below, links followed. It skips hidden files and directories, linked directories (they
// could be loops), and directories for which leaves_out (NULL: none) returns 1; its -1 with a message ends the walk.
// Unreadable directories are passed over, and *unreadable gets a message for each. 0, or -1 with a message.
int paths_below(Paths* paths, const char* directory, int (*leaves_out)(void* context, const char* directory, Err err),
                void* context, Paths* unreadable, Err err);

// Returns 1 if a file or directory that nobody named may be left out after this errno: it is not for us, or is gone.
// After any other errno (a bad disk, too many open files) another run would find another tree.
int may_pass_over(int error);

typedef struct File {
    char* path;
    int fd;         // kept open, or -1: opened for each read
    int is_shared;  // fd belongs to another File; these bytes begin there at base
    int64_t base, size;
} File;

// Opens file->path, which must be a regular file. 0, or -1 with a message and errno.
int file_open(File* file, Err err);
void file_close(File* file);  // leaves a shared fd open
// Reads bytes offset .. offset + n. 0, or -1 with a message (shrunk, unreadable). Several threads may call it at once.
int file_read(const File* file, int64_t offset, void* out, size_t n, Err err);

// Entries are n > 0 of `stride` bytes with ascending int64_t numbers, the first of them at `first` and at most `key`.
// Returns the last entry whose number is at most `key`.
int64_t last_at_most(const int64_t* first, size_t stride, int64_t n, int64_t key);
