// fuzz_config.c - config.json and state.json: any bytes give a shape and a state that make sense, or a message.
#include <stdlib.h>

#include "data/model_files.h"
#include "data/run_state.h"

// Sizes that make sense, and a text that gives the same shape again.
static void check(const Shape* s) {
    char err[ERR_BYTES];
    size_t n;
    Shape again;
    if (s->L < 1 || s->C < 1 || s->NH < 1 || s->NKV < 1 || s->NH % s->NKV || s->HS < 1 || s->U < 1) abort();
    if (s->V < 1 || s->context < 1 || s->positions < s->context || !(s->eps > 0)) abort();
    if (!shape_has(s, HAS_POSITIONS) && (s->HS % 2 || !(s->theta > 0))) abort();
    char* text = hf_config_text(s, DT_F32, 0, 0, &n);
    if (!text || hf_config_parse(&again, text, n, err) || memcmp(&again, s, sizeof again)) abort();
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t n) {
    static Config config;
    char err[ERR_BYTES], *argv[] = {"train", NULL};
    Shape shape;
    RunState state;
    if (hf_config_parse(&shape, (const char*)bytes, n, err) == 0) check(&shape);
    if (config_parse(&config, 1, argv, err)) abort();
    if (run_state_parse(&state, &config, (const char*)bytes, n, err) == 0)
        if (state.step < 0 || state.position.epoch < 0 || state.position.index < 0) abort();
    config_free(&config);
    return 0;
}
