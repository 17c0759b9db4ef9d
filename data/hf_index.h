// hf_index.h - the tensors of a directory: of model.safetensors, or of the files that model.safetensors.index.json
// lists as {"weight_map": {"NAME": "FILE", ...}}.
#pragma once
#include "data/safetensors.h"

typedef struct HfTensor {
    const SafeTensor* tensor;
    int file;
} HfTensor;

typedef struct HfIndex {
    SafeTensors* files;  // (n_files)
    HfTensor* tensors;   // (n)
    int n_files, n;
} HfIndex;

// Files lie in dir itself; each is opened and checked (safetensors_open), and holds what the index says. 0, or -1 with
// a message. Of several files only the first keeps its descriptor.
int hf_index_open(HfIndex* out, const char* dir, char* err, size_t errlen);
void hf_index_close(HfIndex* index);
const HfTensor* hf_index_get(const HfIndex* index, const char* name);  // NULL when absent
int hf_index_has_model(const char* dir);                               // 1 when one of the two files is there
