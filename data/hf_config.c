// hf_config.c - config.json as tables: whole numbers of a shape, members that have one value, and what is left; see
// model_files.h.
#define _POSIX_C_SOURCE 200809L
#include "data/model_files.h"

#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"
#include "plan/base/words.h"
#include "plan/model/split.h"

enum {
    GPT2 = 1 << ARCH_GPT2,
    LLAMA = 1 << ARCH_LLAMA,
    QWEN2 = 1 << ARCH_QWEN2,
    QWEN3 = 1 << ARCH_QWEN3,
    ROTARY = LLAMA | QWEN2 | QWEN3,
    ALL = GPT2 | ROTARY
};

// ---- the tables

// architectures[0]
static const char* const hf_class[N_ARCHS] = {"GPT2LMHeadModel", "LlamaForCausalLM", "Qwen2ForCausalLM",
                                              "Qwen3ForCausalLM"};

typedef struct Dimension {
    const char *gpt2, *rotary;  // NULL: follows from the others
    size_t at;                  // an int of a Shape
    int most;
    int optional;  // in these architectures (bits)
} Dimension;

static const Dimension dimensions[] = {
    {"n_layer", "num_hidden_layers", offsetof(Shape, L), 1000, 0},
    {"n_embd", "hidden_size", offsetof(Shape, C), 1 << 16, 0},
    {"n_head", "num_attention_heads", offsetof(Shape, NH), 1 << 10, 0},
    {NULL, "num_key_value_heads", offsetof(Shape, NKV), 1 << 10, ROTARY},
    {NULL, "head_dim", offsetof(Shape, HS), 1 << 10, ROTARY},
    {"n_inner", "intermediate_size", offsetof(Shape, U), 1 << 20, GPT2},
    {"vocab_size", "vocab_size", offsetof(Shape, V), 1 << 20, 0},
    {"n_positions", "max_position_embeddings", offsetof(Shape, positions), 1 << 24, ROTARY},
};

static const char* name_of(const Dimension* d, Arch arch) { return arch == ARCH_GPT2 ? d->gpt2 : d->rotary; }
static const char* name_of_eps(Arch arch) { return arch == ARCH_GPT2 ? "layer_norm_epsilon" : "rms_norm_eps"; }
static int* place(Shape* shape, const Dimension* d) { return (int*)((char*)shape + d->at); }

// Values of members that are left out: the defaults of Hugging Face's classes. A head size of 0 means hidden size /
// heads. Key/value heads that are null are as many as heads; 0: also where they are left out.
static const struct {
    int NKV, HS, positions, tied;
    double eps;
} defaults[N_ARCHS] = {
    [ARCH_GPT2] = {0, 0, 0, 1, 1e-5},
    [ARCH_LLAMA] = {0, 0, 2048, 0, 1e-6},
    [ARCH_QWEN2] = {32, 0, 32768, 0, 1e-6},
    [ARCH_QWEN3] = {32, 128, 32768, 0, 1e-6},
};

// Members with one value, as JSON shows it. Those that are checked may also be absent or null.
enum { WRITTEN = 1, CHECKED = 2, BOTH = 3 };

static const struct {
    int archs, use;
    const char *name, *value;
} fixed[] = {
    {GPT2, BOTH, "activation_function", "\"gelu_new\""},
    {GPT2, BOTH, "scale_attn_weights", "true"},
    {GPT2, BOTH, "scale_attn_by_inverse_layer_idx", "false"},
    {GPT2, WRITTEN, "reorder_and_upcast_attn", "false"},
    {GPT2, CHECKED, "add_cross_attention", "false"},
    {GPT2, WRITTEN, "attn_pdrop", "0.0"},
    {GPT2, WRITTEN, "embd_pdrop", "0.0"},
    {GPT2, WRITTEN, "resid_pdrop", "0.0"},
    {ROTARY, BOTH, "hidden_act", "\"silu\""},
    {LLAMA | QWEN3, BOTH, "attention_bias", "false"},
    {LLAMA, BOTH, "mlp_bias", "false"},
    {QWEN2 | QWEN3, BOTH, "use_sliding_window", "false"},
    {ROTARY, CHECKED, "partial_rotary_factor", "1.0"},
    {ROTARY, WRITTEN, "attention_dropout", "0.0"},
    {ALL, CHECKED, "quantization_config", "null"},
    {ALL, WRITTEN, "initializer_range", "0.02"},
};

// ---- writing

// Prints a number with a point, so that nobody takes it for a whole one.
static void put_real(FILE* out, const char* before, const char* name, double x) {
    char digits[40];
    number_print(x, digits, sizeof digits);
    fprintf(out, "%s\"%s\": %s%s", before, name, digits, strpbrk(digits, ".e") ? "" : ".0");
}

static void put_rotary(FILE* out, const Shape* shape) {
    const RopeScaling* s = &shape->scaling;
    put_real(out, ",\n  ", "rope_theta", shape->theta);
    if (s->factor == 0) {
        fprintf(out, ",\n  \"rope_scaling\": null");
        return;
    }
    put_real(out, ",\n  \"rope_scaling\": {\"rope_type\": \"llama3\", ", "factor", s->factor);
    put_real(out, ", ", "low_freq_factor", s->low);
    put_real(out, ", ", "high_freq_factor", s->high);
    fprintf(out, ", \"original_max_position_embeddings\": %.0f}", s->original);
}

char* hf_config_text(const Shape* shape, DType dt, int begin, int end, size_t* n) {
    const ArchEntry* arch = &arch_table[shape->arch];
    Shape copy = *shape;
    char* text = NULL;
    FILE* out = open_memstream(&text, n);
    if (!out) return NULL;
    fprintf(out, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n", hf_class[shape->arch], arch->name);
    for (int i = 0; i < COUNT(dimensions); i++) {
        const char* name = name_of(&dimensions[i], shape->arch);
        if (name) fprintf(out, "  \"%s\": %d,\n", name, *place(&copy, &dimensions[i]));
    }
    // A second name that llama.cpp's converter reads.
    if (shape->arch == ARCH_GPT2) fprintf(out, "  \"n_ctx\": %d,\n", shape->positions);
    put_real(out, "  ", name_of_eps(shape->arch), shape->eps);
    if (!shape_has(shape, HAS_POSITIONS)) put_rotary(out, shape);
    fprintf(out, ",\n");
    for (int i = 0; i < COUNT(fixed); i++)
        if (fixed[i].archs >> shape->arch & 1 && fixed[i].use & WRITTEN)
            fprintf(out, "  \"%s\": %s,\n", fixed[i].name, fixed[i].value);
    fprintf(out, "  \"tie_word_embeddings\": %s,\n", shape_has(shape, HAS_HEAD) ? "false" : "true");
    fprintf(out, "  \"bos_token_id\": %d,\n  \"eos_token_id\": %d,\n  \"torch_dtype\": \"%s\"\n}\n", begin, end,
            dt == DT_BF16 ? "bfloat16" : "float32");
    return json_end(out, &text);
}

// ---- reading

typedef struct Reader {
    const JsonValue* root;
    Arch arch;
    char* err;
} Reader;

// Returns a member that is there and not null, or NULL.
static const JsonValue* member(const JsonValue* object, const char* name) {
    const JsonValue* v = json_get(object, name);
    return v && v->type != JSON_NULL ? v : NULL;
}

// Returns whether v is what this JSON text shows; numbers are compared by value.
static int is_value(const JsonValue* v, const char* wanted) {
    double x;
    if (json_double(v, &x) == 0) return x == strtod(wanted, NULL);
    size_t quotes = v->type == JSON_STRING;
    return v->length + 2 * quotes == strlen(wanted) && !memcmp(v->text, wanted + quotes, v->length);
}

static int refuse(const Reader* r, const char* name, const char* expected, const JsonValue* found) {
    return fail(r->err, "config.json: expected %s %s, found %.*s", name, expected, found ? json_shown(found) : 4,
                found ? found->text : "none");
}

static int read_whole(const Reader* r, const JsonValue* object, const char* name, int most, int* out) {
    char range[48];
    int64_t x = 0;
    const JsonValue* v = json_get(object, name);
    snprintf(range, sizeof range, "from 1 to %d", most);
    if (json_int64(v, &x) || x < 1 || x > most) return refuse(r, name, range, v);
    *out = (int)x;
    return 0;
}

// Reads a number. If it is absent, *out stays as it is and is checked, so that 0 there makes the member mandatory.
static int read_real(const Reader* r, const JsonValue* object, const char* name, double least, double most,
                     double* out) {
    char range[64];
    const JsonValue* v = member(object, name);
    double x = *out;
    snprintf(range, sizeof range, "from %g to %g", least, most);
    if ((v && json_double(v, &x)) || !(x >= least && x <= most)) return refuse(r, name, range, v);
    *out = x;
    return 0;
}

static int read_arch(Reader* r) {
    const JsonValue* type = member(r->root, "model_type");
    for (int i = 0; i < N_ARCHS; i++) {
        r->arch = (Arch)i;
        if (json_is(type, arch_table[i].name)) return 0;
    }
    return refuse(r, "model_type", "gpt2, llama, qwen2 or qwen3", type);
}

static int check_fixed(const Reader* r) {
    const JsonValue *root = r->root, *types = member(root, "layer_types");
    for (int i = 0; i < COUNT(fixed); i++) {
        const JsonValue* v = member(root, fixed[i].name);
        if (fixed[i].archs >> r->arch & 1 && fixed[i].use & CHECKED && v && !is_value(v, fixed[i].value))
            return refuse(r, fixed[i].name, fixed[i].value, v);
    }
    for (const JsonValue* type = json_elements(types); type; type = json_next(type))
        if (!json_is(type, "full_attention")) return refuse(r, "layer_types", "full_attention", type);
    return 0;
}

static int read_dimensions(const Reader* r, Shape* s) {
    const JsonValue* root = r->root;
    s->NKV = json_get(root, "num_key_value_heads") ? 0 : defaults[r->arch].NKV;
    s->HS = defaults[r->arch].HS;
    s->positions = defaults[r->arch].positions;
    for (int i = 0; i < COUNT(dimensions); i++) {
        const Dimension* d = &dimensions[i];
        const char* name = name_of(d, r->arch);
        if (!name || (d->optional >> r->arch & 1 && !member(root, name))) continue;
        if (read_whole(r, root, name, d->most, place(s, d))) return -1;
    }
    if (s->NKV == 0) s->NKV = s->NH;
    if (s->U == 0) s->U = 4 * s->C;
    if (s->HS == 0 && s->C % s->NH)
        return fail(r->err, "config.json: %s %d is not a multiple of %s %d", name_of(&dimensions[1], r->arch), s->C,
                    name_of(&dimensions[2], r->arch), s->NH);
    if (s->HS == 0) s->HS = s->C / s->NH;
    if (s->NH % s->NKV)
        return fail(r->err, "config.json: %d heads are not a multiple of num_key_value_heads %d", s->NH, s->NKV);
    s->context = s->positions;
    return 0;
}

// Reads Llama 3's numbers.
static int read_scaling(const Reader* r, const JsonValue* rope, RopeScaling* s) {
    int original = 0;
    if (read_real(r, rope, "factor", 1, 1e6, &s->factor) || read_real(r, rope, "low_freq_factor", 1e-6, 1e6, &s->low) ||
        read_real(r, rope, "high_freq_factor", 1e-6, 1e6, &s->high) ||
        read_whole(r, rope, "original_max_position_embeddings", 1 << 24, &original))
        return -1;
    s->original = original;
    if (s->low < s->high) return 0;
    return fail(r->err, "config.json: expected low_freq_factor below high_freq_factor, found %g and %g", s->low,
                s->high);
}

// Members rope_theta and rope_scaling, or both in rope_parameters; where there are two Hugging Face takes rope_scaling.
static int read_rotary(const Reader* r, Shape* s) {
    const JsonValue *root = r->root, *rope = member(root, "rope_scaling");
    if (!rope) rope = member(root, "rope_parameters");
    s->theta = 10000;
    if (s->HS % 2) return fail(r->err, "config.json: expected an even head_dim, found %d", s->HS);
    if (read_real(r, root, "rope_theta", 1, 1e12, &s->theta) || read_real(r, rope, "rope_theta", 1, 1e12, &s->theta))
        return -1;
    if (!rope) return 0;
    const JsonValue *part = member(rope, "partial_rotary_factor"), *type = member(rope, "rope_type");
    if (part && !is_value(part, "1.0")) return refuse(r, "partial_rotary_factor", "1.0", part);
    if (!type) type = member(rope, "type");
    if (json_is(type, "default")) return 0;
    if (!json_is(type, "llama3")) return refuse(r, "rope_type", "default or llama3", type);
    return read_scaling(r, rope, &s->scaling);
}

static int read_shape(Reader* r, Shape* shape) {
    const JsonValue* root = r->root;
    if (root->type != JSON_OBJECT) return fail(r->err, "config.json: expected an object");
    if (read_arch(r) || check_fixed(r)) return -1;
    const JsonValue* tied = member(root, "tie_word_embeddings");
    if (tied && tied->type != JSON_TRUE && tied->type != JSON_FALSE)
        return refuse(r, "tie_word_embeddings", "true or false", tied);
    int is_tied = tied ? tied->type == JSON_TRUE : defaults[r->arch].tied;
    Shape s = {.arch = r->arch, .features = arch_table[r->arch].features | (is_tied ? 0 : HAS_HEAD)};
    s.eps = defaults[r->arch].eps;
    if (read_dimensions(r, &s) || read_real(r, root, name_of_eps(r->arch), 1e-30, 1, &s.eps)) return -1;
    if (!shape_has(&s, HAS_POSITIONS) && read_rotary(r, &s)) return -1;
    *shape = shape_whole(s);
    return 0;
}

int hf_config_parse(Shape* shape, const char* text, size_t n, Err err) {
    Json json;
    char why[ERR_BYTES];
    if (json_parse(&json, text, n, why)) return fail(err, "config.json: %s", why);
    Reader reader = {.root = json.values, .err = err};
    int result = read_shape(&reader, shape);
    json_free(&json);
    return result;
}

int hf_config_check(const Shape* shape, Err err) {
    Shape found, whole = *shape;
    size_t n;
    char* text = hf_config_text(shape, DT_F32, 0, 0, &n);
    if (!text) return fail(err, "no memory for config.json");
    int failed = hf_config_parse(&found, text, n, err);
    free(text);
    whole.context = whole.positions;
    if (failed || shape_hash(&found) == shape_hash(&whole)) return failed;
    return fail(err, "config.json has no members for all dimensions of this %s", arch_table[shape->arch].title);
}
