// disk_cache.h - what a backend keeps between runs: small files of $XDG_CACHE_HOME/ragged or ~/.cache/ragged, one for
// each key. A file of another user, one that others may write, and a damaged one count as absent.
#pragma once
#include "plan/base.h"

// The n bytes that were kept under the key, malloc'ed; NULL when there are none.
char* cache_read(const char* key, size_t* n);
// Keeps them if the disk lets us. What is there already stays, unless `replace`.
void cache_write(const char* key, const void* bytes, size_t n, int replace);
