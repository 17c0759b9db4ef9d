// disk.h - files that are read, and messages why they cannot be. What is written: plan/base/disk_files.h.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "plan/base/base.h"

enum { DISK_PATH = 4096 };

// path = dir/name. 0, or -1 with a message when it is too long.
int disk_join(char path[DISK_PATH], const char* dir, const char* name, Err err);

// A 32-bit integer of a file, little-endian.
static inline int32_t disk_int32(const unsigned char* p) {
    return (int32_t)(p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
}

// What to try, behind the words for an errno: "; free some space there". Empty where nothing is known.
const char* disk_hint(int error);

// Opens a regular file for reading; *bytes is its size. A descriptor, or -1 with a message.
int disk_open(const char* path, uint64_t* bytes, Err err);
// Reads n bytes, fewer only where the file ends. Their number, or -1 with errno set.
int64_t disk_read(int fd, void* bytes, size_t n);
int64_t disk_read_at(int fd, uint64_t at, void* bytes, size_t n);  // the same from byte `at` on
// A regular file of at most `most` bytes, whole and terminated by NUL; *n without it. The caller frees. NULL with a
// message.
char* disk_read_file(const char* path, size_t most, size_t* n, Err err);
