// hf_files.h - a model as Hugging Face's GPT2LMHeadModel, LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM read
// and write it: its tensors, and config.json (hf_config.c). Tensors pass through one fp32 staging buffer, one of ours
// at a time.
//
// Differences between the two worlds, settled here alone: names; a tensor of ours may be several there, one for each
// run of its outputs (queries, keys, values; gate, up); GPT-2's Conv1D weights lie as (in, out) there and (out, in)
// here; the vocabulary has V rows there and Vp here (the rest are zero); a tied head is not stored.
#pragma once
#include "data/safetensors.h"
#include "plan/model/split.h"

// The place of the first value that is not finite, n when all are.
static inline size_t first_not_finite(const float* x, size_t n) {
    size_t i = 0;
    while (i < n && x[i] - x[i] == 0) i++;
    return i;
}

typedef enum StateKind { STATE_WEIGHTS, STATE_MASTER, STATE_M, STATE_V, STATE_GRADS } StateKind;

// How tensors get from the model (wherever that lives) to host memory and back. Weights and gradients come and go as
// whole tensors; optimizer state (master, m, v) as the segments that one rank owns, see plan/model/shape.h.
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
int hf_write(const ModelState* state, StateKind kind, const SafeTensor* extra, int n_extra, const char* path, Err err);
// Reads the weights in dir (HfFiles) and, when with_master, puts the owned segments of STATE_MASTER too. Names
// with and without the prefix "transformer." or "model." are taken; all types convert.
int hf_read(const ModelState* state, int with_master, const char* dir, Err err);

// The tensors of a directory: of model.safetensors, or of the files that model.safetensors.index.json lists as
// {"weight_map": {"NAME": "FILE", ...}}.
typedef struct HfFiles {
    SafeTensors* list;  // (n)
    int n;
} HfFiles;

// Files lie in dir itself; each is opened and checked (safetensors_open), and holds what the index says. 0, or -1 with
// a message.
int hf_open(HfFiles* out, const char* dir, Err err);
void hf_close(HfFiles* files);
int hf_has_model(const char* dir);  // 1 when one of the two files is there

// ---- config.json

// Its text (*n bytes, malloc'ed), with the tokens that begin and end a document; NULL without memory.
char* hf_config_text(const Shape* shape, DType dt, int begin, int end, size_t* n);
// The shape that a config.json describes, with Hugging Face's own values for members that it leaves out; context is
// positions. Anything this program cannot compute (another architecture, activation, kind of rotary positions, biases
// that ours does not have, sliding windows, quantised weights) is refused by name. 0, or -1 with a message.
int hf_config_parse(Shape* shape, const char* text, size_t n, Err err);
// Whether its text describes this shape, and is parsed: not so of what the file has no members for, or no range. 0, or
// -1 with a message.
int hf_config_check(const Shape* shape, Err err);
