// disk.h - files and directories, read whole, or surely on disk afterwards; else a message says why not.
//
//   int fd = disk_create(path, err);
//   if (fd < 0) return -1;
//   return disk_finish(fd, path, disk_write(fd, bytes, n), err);
//
// POSIX promises nothing before fsync: neither a file's bytes nor, without a sync of the directory, its name.
#pragma once
#include <stdio.h>

#include "plan/base/many_files.h"

enum { DISK_PATH = 4096 };

// Sets path = dir/name. 0, or -1 with a message when it is too long.
int disk_join(char path[DISK_PATH], const char* dir, const char* name, Err err);

// A 32-bit integer of a file, little-endian; a count is cast to uint32_t.
static inline int32_t disk_int32(const unsigned char* p) {
    return (int32_t)(p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
}

// Opens a regular file for reading; *bytes is its size. Returns a descriptor, or -1 with a message.
int disk_open(const char* path, uint64_t* bytes, Err err);
FILE* disk_open_stream(const char* path, Err err);  // the same; NULL with a message
// Reads a regular file of at most `most` bytes, whole and terminated by NUL; *n is its size without the NUL. The caller
// frees. NULL with a message.
char* disk_read_file(const char* path, size_t most, size_t* n, Err err);

// Opens a new file for writing. An older file or link of this name is removed, and the link is not followed; anything
// else (a device, a directory) is refused. Returns a descriptor, or -1 with a message.
int disk_create(const char* path, Err err);
// Writes all n bytes. 0, or -1 with errno set.
int disk_write(int fd, const void* bytes, size_t n);
// Syncs and closes what disk_create opened. If that fails, or `failed` is not 0 (errno says why), the file is removed
// and the message names it. 0, or -1.
int disk_finish(int fd, const char* path, int failed, Err err);

// Puts a file with these bytes under this name, whole from the first moment on: it is written beside it and renamed. An
// older one stays whole until then, and when this fails; without `replaces` it stays anyway. Anything that is neither a
// file nor a link is refused. 0, or -1 with a message.
int disk_put(const char* path, const void* bytes, size_t n, int replaces, Err err);

// The same for a name that a person gave, replacing: a link stays, and its target is replaced. A pipe, a terminal or
// /dev/null, all that is no file, is written into and stays. disk_may_put says whether that will go, as far as can be
// known before. 0, or -1 with a message.
int disk_put_named(const char* path, const void* bytes, size_t n, Err err);
int disk_may_put(const char* path, Err err);
// disk_put_stream puts what was written to `out` = open_memstream(text, bytes), closes it, and frees the text. named: a
// person gave the path; else it is a name of ours, which may hold only a file or nothing.
int disk_put_stream(const char* path, int named, FILE* out, char* const* text, const size_t* bytes, Err err);
// disk_clean_put removes what a killed disk_put of DIR/NAME has left; nobody else may put it meanwhile.
int disk_clean_put(const char* dir, const char* name, Err err);

// The size of a regular file and a hash of its content: hash_bytes over pieces of 1 MiB, each seeded with the hash
// of those before it (the first with 0). 0, or -1 with a message.
int disk_hash(const char* path, uint64_t* bytes, uint64_t* hash, Err err);
uint64_t disk_hash_bytes(const void* bytes, size_t n);  // hash of a file with these bytes

int disk_is_file(const char* dir, const char* name);  // 1 when DIR/NAME is a regular file
int disk_is_dir(const char* path);
// 1 when the open file still has this name: another process may have removed or replaced it meanwhile.
int disk_is_named(int fd, const char* path);
// Visits everything in a directory but . and .., in the order of names, until a visit fails. Returns what the last
// visit returned, or -1 with a message.
typedef int (*DiskVisit)(void* context, const char* path, const char* name, Err err);
int disk_visit(const char* dir, DiskVisit visit, void* context, Err err);
int disk_count(const char* dir);  // number of entries; -1 if it cannot be listed
// These return 0, or -1 with a message.
int disk_make_dirs(const char* path, Err err);    // with its parents; one that exists is fine
int disk_sync_dir(const char* path, Err err);     // the names in it, if the system can
int disk_remove_tree(const char* path, Err err);  // links are not followed; no such path is fine
