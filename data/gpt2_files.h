// gpt2_files.h - the model as Hugging Face's GPT2LMHeadModel reads and writes it: model.safetensors and config.json;
// and the optimizer's state beside it. Tensors pass through one fp32 staging buffer, one at a time.
//
// Differences between the two worlds, settled here alone: names; Conv1D weights lie as (in, out) there and (out, in)
// here; wte has V rows there and Vp here (the rest are zero); lm_head is tied to wte and not stored.
#pragma once
#include "data/safetensors.h"
#include "plan/base.h"
#include "plan/shape.h"

typedef enum StateKind { STATE_WEIGHTS, STATE_MASTER, STATE_M, STATE_V, STATE_GRADS } StateKind;

// How a tensor gets from the model (wherever that lives) to host memory and back. staging has room for the largest
// tensor.
typedef struct ModelState {
    const Shape* shape;
    DType dt;  // in which weights are written
    float* staging;
    void (*fetch)(void* context, StateKind kind, const ParamTensor* tensor, float* value);  // value (elems) =
    void (*put)(void* context, StateKind kind, const ParamTensor* tensor,
                float* value);  // value (elems), may be overwritten
    void* context;
} ModelState;

// All return 0, or -1 with a message.

// One file with every tensor of a kind under Hugging Face's names and layouts, and n_extra tensors of the caller's with
// their own names and data behind them. STATE_GRADS is written in fp32.
int gpt2_write(const ModelState* state, StateKind kind, const SafeTensor* extra, int n_extra, const char* path,
               char* err, size_t errlen);
// Reads weights into STATE_WEIGHTS and, when with_master, also into STATE_MASTER. Names with and without the prefix
// "transformer." are taken; fp32 and bf16 convert.
int gpt2_read(const ModelState* state, int with_master, const char* path, char* err, size_t errlen);
// m and v, and master when with_master, in our own layout: "m.h.3.qkvw" and so on.
int gpt2_write_optimizer(const ModelState* state, int with_master, const char* path, char* err, size_t errlen);
int gpt2_read_optimizer(const ModelState* state, int with_master, const char* path, char* err, size_t errlen);

// config.json of GPT2LMHeadModel; text has room for 2048 bytes. Returns its length.
size_t gpt2_config_text(const Shape* shape, DType dt, int end_of_text, char* text, size_t bytes);
// The shape that a config.json describes. Anything this program cannot compute (another activation, a scaled attention
// variant, an untied head) is refused by name.
int gpt2_config_parse(Shape* shape, const char* text, size_t n, char* err, size_t errlen);
