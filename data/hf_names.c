// hf_names.c - the tables of hf_names.h.
#include "data/hf_names.h"

const char* const hf_class[N_ARCHS] = {"GPT2LMHeadModel", "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"};

#define GPT2 "transformer.h.%d."
#define LLAMA "model.layers.%d."
#define QKV(kind) LLAMA "self_attn.q_proj." kind, LLAMA "self_attn.k_proj." kind, LLAMA "self_attn.v_proj." kind

// clang-format off
const HfName hf_names[N_PARAMS] = {
    [WTE]      = {"transformer.wte.weight", 0, {"model.embed_tokens.weight"}},
    [WPE]      = {"transformer.wpe.weight", 0, {NULL}},
    [LN1W]     = {GPT2 "ln_1.weight", 0, {LLAMA "input_layernorm.weight"}},
    [LN1B]     = {GPT2 "ln_1.bias", 0, {NULL}},
    [QKVW]     = {GPT2 "attn.c_attn.weight", 1, {QKV("weight")}},
    [QKVB]     = {GPT2 "attn.c_attn.bias", 0, {QKV("bias")}},
    [QNORMW]   = {NULL, 0, {LLAMA "self_attn.q_norm.weight"}},
    [KNORMW]   = {NULL, 0, {LLAMA "self_attn.k_norm.weight"}},
    [ATTPROJW] = {GPT2 "attn.c_proj.weight", 1, {LLAMA "self_attn.o_proj.weight"}},
    [ATTPROJB] = {GPT2 "attn.c_proj.bias", 0, {NULL}},
    [LN2W]     = {GPT2 "ln_2.weight", 0, {LLAMA "post_attention_layernorm.weight"}},
    [LN2B]     = {GPT2 "ln_2.bias", 0, {NULL}},
    [FCW]      = {GPT2 "mlp.c_fc.weight", 1, {LLAMA "mlp.gate_proj.weight", LLAMA "mlp.up_proj.weight"}},
    [FCB]      = {GPT2 "mlp.c_fc.bias", 0, {NULL}},
    [FCPROJW]  = {GPT2 "mlp.c_proj.weight", 1, {LLAMA "mlp.down_proj.weight"}},
    [FCPROJB]  = {GPT2 "mlp.c_proj.bias", 0, {NULL}},
    [LNFW]     = {"transformer.ln_f.weight", 0, {"model.norm.weight"}},
    [LNFB]     = {"transformer.ln_f.bias", 0, {NULL}},
    [HEADW]    = {"lm_head.weight", 0, {"lm_head.weight"}},
};
// clang-format on
