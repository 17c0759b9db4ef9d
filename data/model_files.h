// model_files.h - a model and its optimizer state in files. Tensors pass through one fp32 staging buffer, one of ours
// at a time.
//
// Weights and gradients are as Hugging Face's GPT2LMHeadModel, LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM
// have them. Differences between the two worlds, settled here alone: names; a tensor of ours may be several there, one
// for each run of its outputs (queries, keys, values; gate, up); GPT-2's Conv1D weights lie as (in, out) there and
// (out, in) here; the vocabulary has V rows there and Vp here (the rest are zero); a tied head is not stored.
//
// Optimizer state is ours, in fp32: rank r of n writes the segments that it owns to
// optimizer-RRRRR-of-NNNNN.safetensors, any number of ranks reads them. "m.h.3.qkvw" is a whole tensor,
// "m.h.3.qkvw@4096" the part of it that begins at element 4096 and is as long as its only dimension. No other tensor of
// these files is read.
#pragma once
#include "data/safetensors.h"
#include "plan/base/disk.h"
#include "plan/model/split.h"

typedef enum StateKind { STATE_WEIGHTS, STATE_MASTER, STATE_M, STATE_V, STATE_GRADS } StateKind;

// Moves tensors between the model (wherever that lives) and host memory: weights and gradients as whole tensors,
// optimizer state (master, m, v) as the segments that one rank owns.
typedef struct ModelState {
    const Shape* shape;
    DType dt;        // type in which weights are written
    int rank;        // rank that owns the segments
    float* staging;  // room for the largest tensor
    // value (elems) = the tensor. Ranks may have to do this together: see hf_write.
    void (*fetch)(void* context, StateKind kind, const ParamTensor* tensor, float* value);
    void (*put_weights)(void* context, const ParamTensor* tensor, float* value);  // value (elems), may be overwritten
    void (*fetch_owned)(void* context, StateKind kind, const Segment* segment, float* value);  // value (segment->n) =
    void (*put_owned)(void* context, StateKind kind, const Segment* segment, const float* value);
    void* context;
    // NULL, or memory that gets a file in place of its path, if it has room. Then the caller checks that values are
    // finite (safetensors_check_finite).
    SafeImage* image;
} ModelState;

// All return 0, or -1 with a message.

// ---- weights and gradients

// Writes one file with every tensor of a kind (STATE_WEIGHTS, or STATE_GRADS in fp32) under Hugging Face's names and
// layouts, then n_extra tensors of the caller's with their own names and data. Each tensor is fetched once, in the
// order of shape_tensor, even when the file fails: so several ranks may call this together, all but one with path NULL,
// which fetches and writes nothing. Weights that are not finite are an error.
int hf_write(const ModelState* state, StateKind kind, const SafeTensor* extra, int n_extra, const char* path, Err err);
// Reads the weights in dir (HfFiles) and, when with_master, puts the owned segments of STATE_MASTER too. Names
// with and without the prefix "transformer." or "model." are taken; all types convert.
int hf_read(const ModelState* state, int with_master, const char* dir, Err err);

// The files of a directory that hold tensors: model.safetensors, or those that model.safetensors.index.json lists as
// {"weight_map": {"NAME": "FILE", ...}}.
typedef struct HfFiles {
    SafeTensors* list;  // (n)
    int n;
} HfFiles;

// Files lie in dir itself; each is opened and checked (safetensors_open), and holds what the index says. A tensor is
// listed in the file that the index names for it; model.safetensors beside an index that does not name it is an error.
int hf_open(HfFiles* out, const char* dir, Err err);
void hf_close(HfFiles* files);
int hf_has_model(const char* dir);  // 1 when one of the two files is there

// ---- adapters, as PEFT has them (lora_config.c); the functions above read and write their tensors, too

#define ADAPTER_FILE "adapter_model.safetensors"
#define ADAPTER_CONFIG "adapter_config.json"

// Writes the path of a run of a linear inside a layer, as "self_attn.k_proj". Linears: 0 QKV, 1 attention's projection,
// 2 FC, 3 its projection. Returns 0 if it has no such run.
enum { HF_MODULE = 48, LORA_LINEARS = 4 };
int hf_module(char name[HF_MODULE], Arch arch, int linear, int run);
// Returns the text of adapter_config.json (*n bytes, malloc'ed), base being the frozen model's directory; NULL without
// memory.
char* lora_config_text(const Shape* adapters, const char* base, size_t* n);
// Reads what the text says of the adapters of a base: *shape becomes theirs. What this program cannot compute is
// refused by name.
int lora_config_parse(Shape* shape, const char* text, size_t n, Err err);
// Fills base with base_model_name_or_path.
int lora_config_base(char base[DISK_PATH], const char* text, size_t n, Err err);

// ---- optimizer state

enum { OPTIMIZER_NAME = 64 };

// Writes the name of the file of one of `ranks` ranks.
void optimizer_name(char name[OPTIMIZER_NAME], int rank, int ranks);

// Writes m and v, and master when with_master, of state->rank into its file in dir. A value that is not finite is an
// error.
int optimizer_write(const ModelState* state, int with_master, const char* dir, Err err);
// Reads the same of state->rank from the files of `ranks` ranks in dir; if they are another model's, or one is missing,
// nothing is put.
int optimizer_read(const ModelState* state, int with_master, int ranks, const char* dir, Err err);
// Does so from files that are open; file i has the name of rank i in messages.
int optimizer_take(const ModelState* state, int with_master, const SafeTensors* files, int n_files, const char* dir,
                   Err err);

// ---- config.json (hf_config.c)

// Returns its text (*n bytes, malloc'ed), with the tokens that begin and end a document; NULL without memory.
char* hf_config_text(const Shape* shape, DType dt, int begin, int end, size_t* n);
// Reads the shape that a config.json describes, with Hugging Face's own values for members left out; context is
// positions. What this program cannot compute is refused by name.
int hf_config_parse(Shape* shape, const char* text, size_t n, Err err);
// Checks that the text of this shape parses back to it. A shape with no member or no range for it in the file fails.
int hf_config_check(const Shape* shape, Err err);
