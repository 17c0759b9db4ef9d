// arch.c - the tables of arch.h.
#include "plan/model/arch.h"

// clang-format off
const ArchRow arch_table[N_ARCHS] = {
    [ARCH_GPT2]  = {"gpt2", "GPT-2", "GPT2LMHeadModel",  HAS_POSITIONS | HAS_NORM_BIAS | HAS_QKV_BIAS | HAS_LINEAR_BIAS,
                    ACT_GELU, 1e-5},
    [ARCH_LLAMA] = {"llama", "Llama", "LlamaForCausalLM", 0,            ACT_SWIGLU, 1e-5},
    [ARCH_QWEN2] = {"qwen2", "Qwen2", "Qwen2ForCausalLM", HAS_QKV_BIAS, ACT_SWIGLU, 1e-6},
    [ARCH_QWEN3] = {"qwen3", "Qwen3", "Qwen3ForCausalLM", HAS_QK_NORM,  ACT_SWIGLU, 1e-6},
};

#define GPT2 "transformer.h.%d."
#define LLAMA "model.layers.%d."
#define QKV(kind) LLAMA "self_attn.q_proj." kind, LLAMA "self_attn.k_proj." kind, LLAMA "self_attn.v_proj." kind

const ParamRow param_table[N_PARAMS] = {
    //             name, rows, columns, needs, init, decay, number,
    //             GPT2LMHeadModel's name, transposed, the others'
    [WTE]      = {"wte", VOCABULARY, CHANNELS, 0, INIT_NORMAL, 1, 0,
                  "transformer.wte.weight", 0, {"model.embed_tokens.weight"}},
    [WPE]      = {"wpe", POSITIONS, CHANNELS, HAS_POSITIONS, INIT_NORMAL, 1, 1,
                  "transformer.wpe.weight", 0, {NULL}},
    [LN1W]     = {"ln1w", ONE, CHANNELS, 0, INIT_ONE, 0, 2,
                  GPT2 "ln_1.weight", 0, {LLAMA "input_layernorm.weight"}},
    [LN1B]     = {"ln1b", ONE, CHANNELS, HAS_NORM_BIAS, INIT_ZERO, 0, 3,
                  GPT2 "ln_1.bias", 0, {NULL}},
    [QKVW]     = {"qkvw", QKV_OUTPUTS, CHANNELS, 0, INIT_NORMAL, 1, 4,
                  GPT2 "attn.c_attn.weight", 1, {QKV("weight")}},
    [QKVB]     = {"qkvb", ONE, QKV_OUTPUTS, HAS_QKV_BIAS, INIT_ZERO, 0, 5,
                  GPT2 "attn.c_attn.bias", 0, {QKV("bias")}},
    [QNORMW]   = {"qnormw", ONE, HEAD_SIZE, HAS_QK_NORM, INIT_ONE, 0, 16,
                  NULL, 0, {LLAMA "self_attn.q_norm.weight"}},
    [KNORMW]   = {"knormw", ONE, HEAD_SIZE, HAS_QK_NORM, INIT_ONE, 0, 17,
                  NULL, 0, {LLAMA "self_attn.k_norm.weight"}},
    [ATTPROJW] = {"attprojw", CHANNELS, HEADS, 0, INIT_RESIDUAL, 1, 6,
                  GPT2 "attn.c_proj.weight", 1, {LLAMA "self_attn.o_proj.weight"}},
    [ATTPROJB] = {"attprojb", ONE, CHANNELS, HAS_LINEAR_BIAS, INIT_ZERO, 0, 7,
                  GPT2 "attn.c_proj.bias", 0, {NULL}},
    [LN2W]     = {"ln2w", ONE, CHANNELS, 0, INIT_ONE, 0, 8,
                  GPT2 "ln_2.weight", 0, {LLAMA "post_attention_layernorm.weight"}},
    [LN2B]     = {"ln2b", ONE, CHANNELS, HAS_NORM_BIAS, INIT_ZERO, 0, 9,
                  GPT2 "ln_2.bias", 0, {NULL}},
    [FCW]      = {"fcw", FC_OUTPUTS, CHANNELS, 0, INIT_NORMAL, 1, 10,
                  GPT2 "mlp.c_fc.weight", 1, {LLAMA "mlp.gate_proj.weight", LLAMA "mlp.up_proj.weight"}},
    [FCB]      = {"fcb", ONE, FC_OUTPUTS, HAS_LINEAR_BIAS, INIT_ZERO, 0, 11,
                  GPT2 "mlp.c_fc.bias", 0, {NULL}},
    [FCPROJW]  = {"fcprojw", CHANNELS, HIDDEN, 0, INIT_RESIDUAL, 1, 12,
                  GPT2 "mlp.c_proj.weight", 1, {LLAMA "mlp.down_proj.weight"}},
    [FCPROJB]  = {"fcprojb", ONE, CHANNELS, HAS_LINEAR_BIAS, INIT_ZERO, 0, 13,
                  GPT2 "mlp.c_proj.bias", 0, {NULL}},
    [LNFW]     = {"lnfw", ONE, CHANNELS, 0, INIT_ONE, 0, 14,
                  "transformer.ln_f.weight", 0, {"model.norm.weight"}},
    [LNFB]     = {"lnfb", ONE, CHANNELS, HAS_NORM_BIAS, INIT_ZERO, 0, 15,
                  "transformer.ln_f.bias", 0, {NULL}},
    [HEADW]    = {"headw", VOCABULARY, CHANNELS, HAS_HEAD, INIT_NORMAL, 1, 18,
                  "lm_head.weight", 0, {"lm_head.weight"}},
};
// clang-format on
