// safetensors.h - the format in which Hugging Face keeps tensors: an 8-byte little-endian header length, a JSON header
// {"name": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, ..., "__metadata__": {..}}, then the bytes.
// Source: github.com/huggingface/safetensors, README "Format".
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "plan/base/base.h"

typedef struct SafeTensor {
    char name[128];
    DType dtype;  // F32, BF16, F16 or F64; other types are refused by the reader
    int n_dims;   // 0 .. 4
    int64_t dims[4];
    const void* data;  // row-major, at any alignment (use memcpy); NULL of an open file. writing: see there
    size_t bytes;
    uint64_t begin;  // reading: where they begin in the file
} SafeTensor;

typedef struct SafeTensors {
    SafeTensor* tensors;
    int n;
    char* path;      // of the file; NULL when parsed from memory of the caller's
    uint64_t bytes;  // of the file
} SafeTensors;

// All return 0, or -1 with a message that names file and tensor.

// Opens and checks a file: every tensor inside the file, sizes that match shape and type, no name twice, no overlap, no
// hole. The tensors come in the order of their bytes, which stay in the file: nothing is mapped, so that a file that
// shrinks or a bad disk is a message and no signal, and no descriptor is kept: there may be more files than one may
// open. `safetensors_parse` does the same on bytes in memory, which must outlive the result.
int safetensors_open(SafeTensors* out, const char* path, Err err);
int safetensors_parse(SafeTensors* out, const void* bytes, size_t n, Err err);
void safetensors_close(SafeTensors* st);
const SafeTensor* safetensors_get(const SafeTensors* st, const char* name);  // NULL when absent
// Elements first .. first + n of a tensor of st, as fp32 whatever its type.
int safetensors_floats(const SafeTensors* st, const SafeTensor* t, size_t first, size_t n, float* out, Err err);

// A file as it shall stand on disk, put together in memory of the caller's.
typedef struct SafeImage {
    char* bytes;
    size_t room, n;  // n 0: it did not fit, and was written to its path
} SafeImage;

// Checks that all values of a file are finite, as fp32, piece by piece; those of its image if that is not NULL.
int safetensors_check_finite(const char* path, const SafeImage* image, Err err);

// Produces elements first .. first + n of tensor i, as the file shall have them, into out (aligned as its type wants).
// Called in the order of i, then of first; into an image once for each tensor.
typedef void (*SafeTensorFill)(void* context, int i, size_t first, size_t n, void* out);

// Writes tensors in the given order, then syncs the file to disk. Their bytes come from `data`, or piece by piece from
// fill where that is NULL, so that a tensor need not exist in the file's layout. metadata: {"format": "pt"}, as
// transformers wants it; spaces after the header let the values begin at a multiple of 64 bytes. A file that could not
// be finished is removed. image: NULL, or where all this goes instead, if it has room.
int safetensors_write(const char* path, SafeImage* image, const SafeTensor* tensors, int n, SafeTensorFill fill,
                      void* context, Err err);
