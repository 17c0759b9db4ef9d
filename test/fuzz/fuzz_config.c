// fuzz_config.c - config.json and state.json: any bytes give a shape and a state that make sense, or a message.
#include <stdlib.h>

#include "data/hf_files.h"
#include "data/run_state.h"

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t n) {
    static Config config;
    char err[ERR_BYTES], *argv[] = {"train", NULL};
    Shape shape;
    RunState state;
    if (hf_config_parse(&shape, (const char*)bytes, n, err, sizeof err) == 0)
        if (shape.L < 1 || shape.C < 1 || shape.NH < 1 || shape.C % shape.NH || shape.V < 1 || shape.context < 1)
            abort();
    if (config_parse(&config, 1, argv, err, sizeof err)) abort();
    if (run_state_parse(&state, &config, (const char*)bytes, n, err, sizeof err) == 0)
        if (state.step < 0 || state.position.epoch < 0 || state.position.index < 0) abort();
    config_free(&config);
    return 0;
}
