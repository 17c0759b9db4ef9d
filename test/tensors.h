// tensors.h - for tests: a safetensors file with all of its values in memory.
#pragma once
#include <stdlib.h>

#include "data/safetensors.h"
#include "plan/base/disk.h"

// As safetensors_open, but with SafeTensor.data set, to values in *bytes, which the caller frees.
static inline int tensors_load(SafeTensors* out, char** bytes, const char* path, Err err) {
    size_t n = 0;
    *bytes = disk_read_file(path, (size_t)1 << 30, &n, err);
    return *bytes ? safetensors_parse(out, *bytes, n, err) : -1;
}
