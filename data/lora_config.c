// lora_config.c - adapter_config.json, as PEFT writes it: see model_files.h.
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>

#include "data/json.h"
#include "data/model_files.h"
#include "plan/base/words.h"

// The linears of a block as PEFT names them: n of them in attention, then in the MLP.
typedef struct Modules {
    int n[2];
    char name[LORA_LINEARS * MOST_RUNS][HF_MODULE];
} Modules;

static const int features[] = {HAS_LORA_ATTENTION, HAS_LORA_MLP};

static Modules modules_of(Arch arch) {
    Modules x = {{0, 0}, {""}};
    for (int linear = 0, n = 0; linear < LORA_LINEARS; linear++)
        for (int run = 0; hf_module(x.name[n], arch, linear, run); run++, n++) x.n[linear / 2]++;
    return x;
}

// Members that say what this program does not do, and the words that are fine; absent, null and empty ones are, too.
// Some ways to begin an adapter (pissa, olora, corda, loftq) change its base.
static const struct {
    const char *name, *words;
} fixed[] = {
    {"peft_type", "LORA"},     {"bias", "none"},
    {"use_dora", "false"},     {"use_rslora", "false"},
    {"use_qalora", "false"},   {"use_bdlora", "false"},
    {"lora_bias", "false"},    {"init_lora_weights", "true|false|gaussian|orthogonal|eva"},
    {"rank_pattern", ""},      {"alpha_pattern", ""},
    {"modules_to_save", ""},   {"layers_to_transform", ""},
    {"layer_replication", ""}, {"exclude_modules", ""},
    {"target_parameters", ""}, {"trainable_token_indices", ""},
    {"kasa_config", ""},       {"alora_invocation_tokens", ""},
    {"velora_config", ""},     {"monteclora_config", ""},
};

char* lora_config_text(const Shape* s, const char* base, size_t* n) {
    char alpha[40], *text = NULL;
    FILE* out = open_memstream(&text, n);
    if (!out) return NULL;
    number_print(s->lora.scale * s->lora.rank, alpha, sizeof alpha);
    fprintf(out, "{\n  \"base_model_name_or_path\": ");
    json_put_bytes(out, base, strlen(base));
    fprintf(out,
            ",\n  \"peft_type\": \"LORA\",\n  \"task_type\": \"CAUSAL_LM\",\n  \"r\": %d,\n  \"lora_alpha\": %s,\n",
            s->lora.rank, alpha);
    fprintf(out, "  \"lora_dropout\": 0.0,\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": %s,\n  \"target_modules\": [",
            s->arch == ARCH_GPT2 ? "true" : "false");
    Modules x = modules_of(s->arch);
    for (int i = 0, some = 0; i < x.n[0] + x.n[1]; i++)
        if (shape_has(s, features[i >= x.n[0]])) fprintf(out, "%s\"%s\"", some++ ? ", " : "", x.name[i]);
    fprintf(out, "],\n  \"inference_mode\": true,\n  \"init_lora_weights\": true\n}\n");
    return json_end(out, &text);
}

// ---- reading

static int refuse(const char* expected, const JsonValue* found, Err err) {
    return fail(err, ADAPTER_CONFIG ": expected %s, found %.*s", expected, found ? json_shown(found) : 4,
                found ? found->text : "none");
}

// Returns 1 if the text `long_name` ends with the parts of `name`.
static int ends_with(const char* long_name, size_t length, const char* name, size_t n) {
    return n > 0 && n <= length && !memcmp(long_name + length - n, name, n) &&
           (n == length || long_name[length - n - 1] == '.');
}

// Returns in how many of L layers a target gives adapters to a module: in all by the last parts of its path, in one by
// its whole path.
static int layers_of(const JsonValue* target, const char* module, int L) {
    size_t n = strlen(module);
    if (target->type != JSON_STRING) return 0;
    if (json_is(target, "all-linear") || ends_with(module, n, target->text, target->length)) return L;
    return ends_with(target->text, target->length, module, n);
}

// Finds the features that give adapters to the modules that are targets; each sublayer's are all, or none.
static int read_targets(Shape* shape, const JsonValue* list, Err err) {
    static const char words[] = "target_modules to be all linears of attention, of the MLP, or of both";
    Modules x = modules_of(shape->arch);
    int of[2] = {0, 0}, is_word = json_is(list, "all-linear");
    if (!is_word && !json_elements(list)) return refuse("a list of target_modules, or all-linear", list, err);
    for (const JsonValue* t = is_word ? list : json_elements(list); t; t = is_word ? NULL : json_next(t)) {
        int before = of[0] + of[1];
        for (int i = 0; i < x.n[0] + x.n[1]; i++) of[i >= x.n[0]] += layers_of(t, x.name[i], shape->L);
        if (of[0] + of[1] == before) return refuse(words, t, err);
    }
    for (int i = 0; i < 2; i++) {
        if (of[i] != 0 && of[i] != x.n[i] * shape->L)
            return fail(err, ADAPTER_CONFIG ": expected %s, found %d of %d of the %s", words, of[i], x.n[i] * shape->L,
                        i ? "MLP" : "attention");
        if (of[i]) shape->features |= features[i];
    }
    return 0;
}

static int is_empty(const JsonValue* v) {
    return !v || v->type == JSON_NULL || ((v->type == JSON_ARRAY || v->type == JSON_OBJECT) && v->n == 0);
}

static int check_fixed(const JsonValue* root, Err err) {
    char expected[120];
    for (int i = 0; i < COUNT(fixed); i++) {
        const JsonValue* v = json_get(root, fixed[i].name);
        const char* words = fixed[i].words;
        if (is_empty(v) || (words[0] && word_choice((Word){v->text, v->length}, words) >= 0)) continue;
        snprintf(expected, sizeof expected, "%s %s", fixed[i].name, words[0] ? words : "empty");
        return refuse(expected, v, err);
    }
    return 0;
}

static int read_adapters(Shape* shape, const JsonValue* root, Err err) {
    int64_t rank;
    double alpha;
    if (check_fixed(root, err)) return -1;
    if (json_int64(json_get(root, "r"), &rank) || rank < 1 || rank > 1024)
        return fail(err, ADAPTER_CONFIG ": expected a rank r from 1 to 1024");
    if (json_double(json_get(root, "lora_alpha"), &alpha) || !(alpha > 0 && alpha <= 1e6))
        return fail(err, ADAPTER_CONFIG ": expected lora_alpha above 0 and at most 1e6");
    if (read_targets(shape, json_get(root, "target_modules"), err)) return -1;
    shape->lora = (Lora){(int)rank, 1, alpha / (double)rank};
    return 0;
}

static int parse(Json* json, const char* text, size_t n, Err err) {
    char why[ERR_BYTES];
    if (json_parse(json, text, n, why)) return fail(err, ADAPTER_CONFIG ": %s", why);
    if (json->values->type == JSON_OBJECT) return 0;
    json_free(json);
    return fail(err, ADAPTER_CONFIG ": expected an object");
}

int lora_config_parse(Shape* shape, const char* text, size_t n, Err err) {
    Json json;
    if (parse(&json, text, n, err)) return -1;
    int result = read_adapters(shape, json.values, err);
    json_free(&json);
    return result;
}

int lora_config_base(char base[DISK_PATH], const char* text, size_t n, Err err) {
    Json json;
    if (parse(&json, text, n, err)) return -1;
    const JsonValue* v = json_get(json.values, "base_model_name_or_path");
    int64_t length = v && v->length < DISK_PATH ? json_bytes(v, base) : -1;
    int failed = length < 1;
    if (!failed) base[length] = 0;
    json_free(&json);
    return failed ? fail(err, ADAPTER_CONFIG ": expected a base_model_name_or_path") : 0;
}
