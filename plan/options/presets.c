// presets.c - what options leave open: a model's dimensions follow from its preset, and how it is trained from its
// size. See config.h.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "plan/options/config.h"

typedef struct Preset {
    const char* name;
    Arch arch;
    int layers, width, heads, kv_heads, head_size, hidden, context,
        vocab;  // 0: as options say; vocab 0: the tokenizer's
    int tied;
    double theta;
    RopeScaling scaling;
} Preset;

// The models of others are as their config.json says, but with a context that a step holds. A checkpoint of one, given
// by --init, knows its own dimensions. clang-format off
static const Preset presets[] = {
    {"tiny", ARCH_GPT2, 4, 128, 4, 4, 0, 0, 256, 0, 1, 0, {0, 0, 0, 0}},
    {"llama-tiny", ARCH_LLAMA, 4, 128, 4, 2, 0, 0, 256, 0, 1, 1e4, {0, 0, 0, 0}},
    {"gpt2-124m", ARCH_GPT2, 12, 768, 12, 12, 0, 0, 1024, 50257, 1, 0, {0, 0, 0, 0}},
    {"gpt2-350m", ARCH_GPT2, 24, 1024, 16, 16, 0, 0, 1024, 50257, 1, 0, {0, 0, 0, 0}},
    {"gpt2-774m", ARCH_GPT2, 36, 1280, 20, 20, 0, 0, 1024, 50257, 1, 0, {0, 0, 0, 0}},
    {"gpt2-1558m", ARCH_GPT2, 48, 1600, 25, 25, 0, 0, 1024, 50257, 1, 0, {0, 0, 0, 0}},
    {"smollm2-135m", ARCH_LLAMA, 30, 576, 9, 3, 64, 1536, 2048, 49152, 1, 1e5, {0, 0, 0, 0}},
    {"llama-3.2-1b", ARCH_LLAMA, 16, 2048, 32, 8, 64, 8192, 4096, 128256, 1, 5e5, {32, 1, 4, 8192}},
    {"llama-3.1-8b", ARCH_LLAMA, 32, 4096, 32, 8, 128, 14336, 4096, 128256, 0, 5e5, {8, 1, 4, 8192}},
    {"qwen2.5-0.5b", ARCH_QWEN2, 24, 896, 14, 2, 64, 4864, 4096, 151936, 1, 1e6, {0, 0, 0, 0}},
    {"qwen3-0.6b", ARCH_QWEN3, 28, 1024, 16, 8, 128, 3072, 4096, 151936, 1, 1e6, {0, 0, 0, 0}},
};
// clang-format on

static int arch_of(const Config* config) {
    int arch = 0;
    while (arch < N_ARCHS - 1 && strcmp(arch_table[arch].name, config->arch) != 0) arch++;
    return arch;
}

static const Preset* preset_of(const Config* config) {
    const Preset* preset = presets;
    while (strcmp(preset->name, config->preset) != 0) preset++;  // CHOICE has checked the name
    return preset;
}

// A GPT-2's config.json has no members for key/value heads and head size: they are its heads, and width / heads.
static int settle_heads(Config* c, const Preset* preset, int is_preset, Err err) {
    int is_gpt2 = arch_of(c) == ARCH_GPT2;
    if (is_gpt2) is_preset = 0;
    if (!c->kv_heads) c->kv_heads = is_preset ? preset->kv_heads : c->heads;
    if (!c->head_size && is_preset) c->head_size = preset->head_size;
    if (!c->head_size && c->width % c->heads)
        return fail(err, "--width %d is not a multiple of --heads %d; try --width %d%s", c->width, c->heads,
                    ROUND_UP(c->width, c->heads), is_gpt2 ? "" : ", or --arch head-size=N");
    if (!c->head_size) c->head_size = c->width / c->heads;
    if (is_gpt2 && (c->kv_heads != c->heads || (int64_t)c->head_size * c->heads != c->width))
        return fail(err,
                    "--arch kv-heads=%d,head-size=%d: a GPT-2 has those of --heads %d and --width %d, no file of it "
                    "could say otherwise; leave them out, or try --arch llama",
                    c->kv_heads, c->head_size, c->heads, c->width);
    if (c->heads % c->kv_heads)
        return fail(err, "--arch kv-heads=%d does not divide --heads %d; try kv-heads=%d", c->kv_heads, c->heads,
                    c->heads);
    if (!is_gpt2 && c->head_size % 2)
        return fail(err, "--arch head-size=%d: rotary positions turn pairs of channels; try head-size=%d", c->head_size,
                    c->head_size + 1);
    return 0;
}

// Takes dimensions without an option from the preset or from other dimensions.
static int settle_model(Config* c, const Preset* preset, int tokenizer_vocab, Err err) {
    if (!strcmp(c->arch, "preset")) c->arch = arch_table[preset->arch].name;
    const ArchEntry* arch = &arch_table[arch_of(c)];
    int is_preset = !c->width && !c->heads, same_mlp = arch->act == arch_table[preset->arch].act;
    if (!c->layers) c->layers = preset->layers;
    if (!c->width) c->width = preset->width;
    if (!c->heads) c->heads = preset->heads;
    if (settle_heads(c, preset, is_preset, err)) return -1;
    if (!c->hidden && is_preset && same_mlp) c->hidden = preset->hidden;
    if (!c->hidden) c->hidden = act_runs(arch->act) == 2 ? ROUND_UP(CEIL_DIV(8 * c->width, 3), 64) : 4 * c->width;
    if (!c->context) c->context = preset->context;
    if (c->rope_theta == 0) c->rope_theta = preset->theta > 0 ? preset->theta : 1e4;
    if (!strcmp(c->tie, "preset")) c->tie = preset->tied ? "yes" : "no";
    if (!c->vocab) c->vocab = preset->vocab ? preset->vocab : tokenizer_vocab;
    return 0;
}

Shape config_shape(const Config* c) {
    const ArchEntry* arch = &arch_table[arch_of(c)];
    const Preset* preset = preset_of(c);
    Shape s = {.arch = (Arch)arch_of(c), .L = c->layers, .C = c->width, .NH = c->heads, .V = c->vocab};
    s.features = arch->features | (strcmp(c->tie, "no") ? 0 : HAS_HEAD);
    s.NKV = c->kv_heads, s.HS = c->head_size, s.U = c->hidden;
    s.context = s.positions = c->context;
    s.eps = arch->eps;
    if (shape_has(&s, HAS_POSITIONS)) return shape_whole(s);
    s.theta = c->rope_theta;
    if (s.theta == preset->theta) s.scaling = preset->scaling;
    return shape_whole(s);
}

// The defaults of training for at most `parameters`. From 50M on they are those of Brown et al. 2020, table 2.1 (batch)
// and appendix B (a linear warm-up over the first 375M tokens). The first row suits this program's own tiny models, the
// second is a step between. A tiny model's evaluation on more tokens takes longer than it is worth.
static const struct Recipe {
    double parameters;  // at most
    int batch_tokens, warmup, eval_tokens;
} recipes[] = {
    {2e7, 1024, 100, 32768},     {5e7, 65536, 200, 131072},     {1e9, 524288, 715, 131072},
    {5e9, 1048576, 358, 131072}, {1e300, 2097152, 179, 131072},
};

// Peak learning rates: the default run's, then what suits models of 9M parameters, then Brown et al. 2020, table 2.1.
static const struct Rate {
    double parameters, lr;
} rates[] = {
    {1e6, 4e-3},   {1e7, 1e-3},     {1.25e8, 6e-4},  {3.5e8, 3e-4},  {7.6e8, 2.5e-4},
    {1.3e9, 2e-4}, {2.7e9, 1.6e-4}, {6.7e9, 1.2e-4}, {1.3e10, 1e-4},
};

// Interpolates linearly between the logarithms of sizes and rates, to two digits; beyond the ends the rate is constant.
static double default_lr(double parameters) {
    char text[32];
    int i = 0;
    while (i < COUNT(rates) - 2 && parameters > rates[i + 1].parameters) i++;
    const struct Rate *a = &rates[i], *b = &rates[i + 1];
    double x = log(parameters / a->parameters) / log(b->parameters / a->parameters);
    snprintf(text, sizeof text, "%.1e", a->lr * pow(b->lr / a->lr, x < 0 ? 0 : x > 1 ? 1 : x));
    return strtod(text, NULL);
}

// Muon is ahead on the default run (dev/results/muon.md). Nobody has measured larger models; predictions leave it out.
static const char* default_optimizer(const Config* c) {
    const Preset* own = presets;
    int is_own = c->layers == own->layers && c->width == own->width && arch_of(c) == (int)own->arch;
    return is_own && !c->init && !c->lora_rank && strcmp(c->device, "virtual") != 0 ? "muon" : "adamw";
}

// Trained weights want a smaller step: nanoGPT's config/finetune_shakespeare.py takes 3e-5 for GPT-2, a twentieth, with
// 32768 tokens and next to no warm-up. Adapters take ten times what all weights do (Schulman et al. 2025, "LoRA Without
// Regret").
static void settle_recipe(Config* c) {
    enum { TUNED = 20, ADAPTED = 2, TUNED_BATCH = 32768, TUNED_WARMUP = 20 };
    enum { SHOWN = 16 };  // enough to be worth a plan
    Shape shape = config_shape(c);
    int i = 0, tunes = c->init != NULL, less = c->lora_rank ? ADAPTED : tunes ? TUNED : 1;
    while (shape_param_count(&shape) > recipes[i].parameters) i++;
    int batch = tunes ? MIN(recipes[i].batch_tokens, TUNED_BATCH) : recipes[i].batch_tokens;
    if (c->explain) batch = MAX(batch, SHOWN * c->context);
    if (!c->batch_tokens) c->batch_tokens = MAX(batch, c->context);
    if (c->lr == 0) c->lr = default_lr((double)shape_param_count(&shape)) / less;
    if (!strcmp(c->optimizer, "auto")) c->optimizer = default_optimizer(c);
    if (!c->eval_tokens) c->eval_tokens = recipes[i].eval_tokens;
    if (c->warmup >= 0) return;
    c->warmup = (int)MIN((int64_t)recipes[i].warmup, c->steps / 10);
    if (tunes) c->warmup = MIN(c->warmup, TUNED_WARMUP);
}

int config_settle(Config* config, int tokenizer_vocab, Err err) {
    const Preset* preset = preset_of(config);
    if (settle_model(config, preset, tokenizer_vocab, err)) return -1;
    settle_recipe(config);
    if (config->vocab < tokenizer_vocab)
        return fail(err, "--vocab %d is smaller than the tokenizer's %d ids; leave --vocab out", config->vocab,
                    tokenizer_vocab);
    if (config->batch_tokens < config->context)
        return fail(err,
                    "--batch-tokens %d cannot hold one document of up to --context %d tokens; try --batch-tokens %d",
                    config->batch_tokens, config->context, config->context);
    return 0;
}
