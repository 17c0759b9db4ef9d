// hf_files.h - the model as Hugging Face's GPT2LMHeadModel reads and writes it: model.safetensors and config.json.
// Tensors pass through one fp32 staging buffer, one at a time.
//
// Differences between the two worlds, settled here alone: names; Conv1D weights lie as (in, out) there and (out, in)
// here; wte has V rows there and Vp here (the rest are zero); lm_head is tied to wte and not stored.
#pragma once
#include "data/safetensors.h"
#include "plan/base.h"
#include "plan/shape.h"

// The place of the first value that is not finite, n when all are.
static inline size_t first_not_finite(const float* x, size_t n) {
    size_t i = 0;
    while (i < n && x[i] - x[i] == 0) i++;
    return i;
}

typedef enum StateKind { STATE_WEIGHTS, STATE_MASTER, STATE_M, STATE_V, STATE_GRADS } StateKind;

// How tensors get from the model (wherever that lives) to host memory and back. Weights and gradients come and go as
// whole tensors; optimizer state (master, m, v) as the segments that one rank owns, see plan/shape.h.
typedef struct ModelState {
    const Shape* shape;
    DType dt;        // in which weights are written
    int rank;        // whose segments
    float* staging;  // room for the largest tensor
    // value (elems) = the tensor. Ranks may have to do this together: see hf_write.
    void (*fetch)(void* context, StateKind kind, const ParamTensor* tensor, float* value);
    void (*put_weights)(void* context, const ParamTensor* tensor, float* value);  // value (elems), may be overwritten
    void (*fetch_owned)(void* context, StateKind kind, const Segment* segment, float* value);  // value (segment->n) =
    void (*put_owned)(void* context, StateKind kind, const Segment* segment, const float* value);
    void* context;
} ModelState;

// All return 0, or -1 with a message.

// One file with every tensor of a kind (STATE_WEIGHTS, or STATE_GRADS in fp32) under Hugging Face's names and layouts,
// and n_extra tensors of the caller's with their own names and data behind them. Each tensor is fetched once, in the
// order of shape_tensor, even when the file fails: so several ranks may call this together, all but one with path NULL,
// which fetches and writes nothing. Weights that are not finite are an error.
int hf_write(const ModelState* state, StateKind kind, const SafeTensor* extra, int n_extra, const char* path,
               char* err, size_t errlen);
// Reads weights and, when with_master, puts the owned segments of STATE_MASTER too. Names with and without the prefix
// "transformer." are taken; fp32 and bf16 convert.
int hf_read(const ModelState* state, int with_master, const char* path, char* err, size_t errlen);

// Whether files show a tensor with two dimensions.
int hf_is_matrix(const ParamTensor* tensor);

// config.json of GPT2LMHeadModel; text has room for 2048 bytes. Returns its length.
size_t hf_config_text(const Shape* shape, DType dt, int end_of_text, char* text, size_t bytes);
// The shape that a config.json describes. Anything this program cannot compute (another activation, a scaled attention
// variant, an untied head) is refused by name.
int hf_config_parse(Shape* shape, const char* text, size_t n, char* err, size_t errlen);
