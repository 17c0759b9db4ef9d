// unpack.h - compressed files, through the system's zlib and libzstd, which are opened when a file needs them.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "plan/base/base.h"

// ".gz" or ".zst" at the end of a name; "" where it ends otherwise.
const char* unpack_suffix(const char* path);
// A file without a name in TMPDIR, or /tmp. A descriptor, or -1 with a message.
int unpack_open(Err err);
// Appends what the file holds, by its suffix. The number of bytes, or -1 with a message: a library that is missing, a
// file that is damaged or cut short, a full disk.
int64_t unpack(int fd, const char* path, Err err);
