// user_cache.h - what a user's runs leave for later ones: files in ragged/ below $XDG_CACHE_HOME, or ~/.cache.
//
// They change what a run does, and nobody names them. So none is read or written if another user could have put it
// there. A file and ragged/ must be this user's and writable by nobody else. The directory above may be root's, and one
// that all may write if it is sticky, as /tmp. What is made here only this user may read.
#pragma once
#include <stddef.h>

#include "plan/base/disk.h"

// Sets path to where the file of this name is or would be. 0, or -1 with a message: no home directory, path too long.
int user_cache_path(char path[DISK_PATH], const char* name, Err err);
// Returns 0: it is there and may be read; 1: it is not there; -1 with a message: another user could have written it.
int user_cache_check(const char* name, Err err);
// Checks that nobody else can rename or remove what this user makes in a directory: it is this user's or root's, and
// others may not write it, or it is sticky as /tmp. 0; 1: it is not there; -1 with a message.
int user_cache_check_above(const char* dir, Err err);
// Writes the file as disk_put does, with the directories it needs. 0, or -1 with a message.
int user_cache_save(const char* name, const void* bytes, size_t n, int replaces, Err err);

// Reads what a backend keeps between runs, one file for each key. A damaged file counts as absent, as does one that
// another user could have written, because runs act on it. Returns n bytes, malloc'ed; NULL when there are none.
char* cache_read(const char* key, size_t* n);
// Keeps the bytes if the disk lets us. An older file stays, unless `replaces`.
void cache_write(const char* key, const void* bytes, size_t n, int replaces);
