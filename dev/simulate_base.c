// simulate_base.c - what all files of the simulator use: memory, and the model that --model names.
#include <stdlib.h>

#include "dev/simulate.h"

void* need(size_t bytes) {
    void* memory = malloc(MAX(bytes, 1));
    if (!memory) die("no memory for %zu bytes", bytes);
    return memory;
}

Config read_model(const char* text, int ranks) {
    enum { MOST = 64 };
    char err[ERR_BYTES], *words = (char*)need(strlen(text) + 1), *argv[MOST] = {(char*)"train"};
    int argc = 1;
    Config c;
    strcpy(words, text);
    for (char* at = strtok(words, " "); at && argc < MOST; at = strtok(NULL, " ")) argv[argc++] = at;
    if (config_read(&c, argc, argv, err)) die("--model: %s", err);
    c.several_ranks = ranks > 1;
    if (config_complete(&c, 257, err)) die("--model: %s", err);
    return c;
}
