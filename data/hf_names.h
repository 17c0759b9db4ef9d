// hf_names.h - what Hugging Face calls architectures and tensors.
#pragma once
#include "plan/model/shape.h"

extern const char* const hf_class[N_ARCHS];  // architectures[0]

// With the layer's number for %d: GPT2LMHeadModel's tensor, the others', one for each run of the axis that is cut.
typedef struct HfName {
    const char* gpt2;
    int gpt2_transposed;  // it is kept as (in, out), its Conv1D
    const char* llama[MOST_RUNS];
} HfName;

extern const HfName hf_names[N_PARAMS];
