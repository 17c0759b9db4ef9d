// disk_cache.h - what a backend keeps between runs: small files of plan/user_cache.h, one for each key. A damaged one
// counts as absent, and so does one that another user could have written: a plan holds code that will run.
#pragma once
#include "plan/base.h"

// The n bytes that were kept under the key, malloc'ed; NULL when there are none.
char* cache_read(const char* key, size_t* n);
// Keeps them if the disk lets us. What is there already stays, unless `replaces`.
void cache_write(const char* key, const void* bytes, size_t n, int replaces);
