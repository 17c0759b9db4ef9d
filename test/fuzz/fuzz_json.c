// fuzz_json.c - any bytes to the JSON reader; whatever it accepts must lie inside the text, nest properly and convert.
// And as config.json, state.json and a question of --eval: a shape, a state and endings that make sense, or a message.
#include <math.h>
#include <stdlib.h>

#include "data/choices.h"
#include "data/model_files.h"
#include "data/json.h"
#include "data/run_state.h"
#include "plan/options/read.h"
#include "test/fuzz/require.h"

// Unescaping, quoting and unescaping must end where they began (invalid UTF-8 aside, which quoting replaces).
static void check_string(const JsonValue* v) {
    char* plain = (char*)malloc(v->length + 1);
    int64_t n = json_string(v, plain);
    require(n <= (int64_t)v->length);
    if (n >= 0) {
        require(plain[n] == 0);
        char* quoted = (char*)malloc(6 * (size_t)n + 3);
        size_t n_quoted = json_quote(quoted, plain, (size_t)n);
        Json again;
        require(n_quoted <= 6 * (size_t)n + 2 && json_parse(&again, quoted, n_quoted, NULL) == 0 && again.n == 1);
        char *once = (char*)malloc(n_quoted), *twice = (char*)malloc(6 * n_quoted + 3);
        int64_t n_once = json_string(again.values, once);
        require(n_once >= n);
        require(json_quote(twice, once, (size_t)n_once) == n_quoted && !memcmp(twice, quoted, n_quoted));
        free(once), free(twice), free(quoted);
        json_free(&again);
    }
    free(plain);
}

// Checks value i and all below it; returns the index behind them.
static int check_value(const Json* json, int i, const char* text, size_t n) {
    const JsonValue* v = &json->values[i];
    require(i >= 0 && i < json->n && v->text >= text && v->text <= text + n &&
            v->length <= n - (size_t)(v->text - text));
    int64_t whole;
    uint64_t natural;
    double real;
    int is_whole = json_int64(v, &whole) == 0, is_natural = json_uint64(v, &natural) == 0,
        is_real = json_double(v, &real) == 0;
    require(v->type == JSON_NUMBER || (!is_whole && !is_natural && !is_real));
    require(!is_whole || !is_natural || natural == (uint64_t)whole);
    require(!is_whole || (is_real && real == (double)whole));
    if (v->type == JSON_STRING) check_string(v);
    int next = i + 1;
    for (int child = 0, at = next; child < v->n; child++, at = next) {
        if (v->type == JSON_OBJECT)
            require(json->values[next].type == JSON_STRING), next = check_value(json, next, text, n);
        else require(json_at(v, child) == &json->values[next]);
        next = check_value(json, next, text, n);
        require(json->values[at].next == (child + 1 < v->n ? next - at : 0));
    }
    json_get(v, "a");
    return next;
}

// Sizes that make sense, and a text that gives the same shape again.
static void check_shape(const Shape* s) {
    Err err;
    size_t n;
    Shape again;
    require(s->L >= 1 && s->C >= 1 && s->NH >= 1 && s->NKV >= 1 && s->NH % s->NKV == 0 && s->HS >= 1 && s->U >= 1);
    require(s->V >= 1 && s->context >= 1 && s->positions >= s->context && s->eps > 0);
    require(shape_has(s, HAS_POSITIONS) || (s->HS % 2 == 0 && s->theta > 0));
    char* text = hf_config_text(s, DT_F32, 0, 0, &n);
    require(text && !hf_config_parse(&again, text, n, err) && !memcmp(&again, s, sizeof again));
    free(text);
}

// A rank and a sublayer, and a text that gives the same adapters again.
static void check_adapter(const char* text, size_t n) {
    Err err;
    char base[DISK_PATH];
    Shape shape = {.arch = n % 2 ? ARCH_GPT2 : ARCH_LLAMA}, again = shape;
    if (lora_config_base(base, text, n, err) == 0) require(base[0] && strlen(base) < DISK_PATH);
    if (lora_config_parse(&shape, text, n, err)) return;
    require(shape.lora.rank >= 1 && shape.lora.scale > 0 && shape.lora.is_all && shape.features & HAS_LORA);
    char* made = lora_config_text(&shape, "base", &n);
    require(made && !lora_config_parse(&again, made, n, err) && again.features == shape.features);
    require(again.lora.rank == shape.lora.rank && fabs(again.lora.scale / shape.lora.scale - 1) < 1e-12);
    free(made);
}

static void check_files(const char* text, size_t n) {
    static Config config;
    Err err;
    Shape shape;
    RunState state;
    Choice choice;
    char* argv[] = {"train", NULL};
    if (hf_config_parse(&shape, text, n, err) == 0) check_shape(&shape);
    check_adapter(text, n);
    require(config_parse(&config, 1, argv, err) == 0);
    if (run_state_parse(&state, &config, text, n, err) == 0)
        require(state.step >= 0 && state.position.epoch >= 0 && state.position.index >= 0);
    config_free(&config);
    if (choice_parse(&choice, text, n, err)) return;
    require(choice.n >= 2 && choice.label >= 0 && choice.label < choice.n && choice.context);
    for (int i = 0; i < choice.n; i++) require(strlen(choice.endings[i]) <= n);
    choice_free(&choice);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Err err = "";
    Json json;
    check_files((const char*)data, size);
    if (size > 1 << 12) return 0;  // json_at walks: the check is quadratic
    if (json_parse(&json, (const char*)data, size, err)) {
        require(err[0] && memchr(err, 0, sizeof err) && !json.values);
        return 0;
    }
    require(check_value(&json, 0, (const char*)data, size) == json.n);
    json_free(&json);
    return 0;
}
