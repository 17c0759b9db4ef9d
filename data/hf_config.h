// hf_config.h - config.json of Hugging Face's GPT2LMHeadModel, LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM.
#pragma once
#include "plan/shape.h"

// Its text, with the tokens that begin and end a document, of at most `bytes` = HF_CONFIG_BYTES with the NUL. Returns
// its length.
enum { HF_CONFIG_BYTES = 2048 };
size_t hf_config_text(const Shape* shape, DType dt, int begin, int end, char* text, size_t bytes);
// The shape that a config.json describes, with Hugging Face's own values for members that it leaves out; context is
// positions. Anything this program cannot compute (another architecture, activation, kind of rotary positions, biases
// that ours does not have, sliding windows, quantised weights) is refused by name. 0, or -1 with a message.
int hf_config_parse(Shape* shape, const char* text, size_t n, char* err, size_t errlen);
// Whether its text describes this shape, and is parsed: not so of what the file has no members for, or no range. 0, or
// -1 with a message.
int hf_config_check(const Shape* shape, char* err, size_t errlen);
