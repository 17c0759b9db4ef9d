// simulate_base.c - what all files of the simulator use: its end, memory, and the model that --model names.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "dev/simulate.h"

void refuse(const char* format, ...) {
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "simulate: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

void* need(size_t bytes) {
    void* memory = malloc(MAX(bytes, 1));
    if (!memory) refuse("no memory for %zu bytes", bytes);
    return memory;
}

Config read_model(const char* text, int ranks) {
    enum { MOST = 64 };
    char err[ERR_BYTES], *words = (char*)need(strlen(text) + 1), *argv[MOST] = {(char*)"train"};
    int argc = 1;
    Config c;
    strcpy(words, text);
    for (char* at = strtok(words, " "); at && argc < MOST; at = strtok(NULL, " ")) argv[argc++] = at;
    if (config_read(&c, argc, argv, err)) refuse("--model: %s", err);
    c.several_ranks = ranks > 1;
    if (config_complete(&c, 257, err)) refuse("--model: %s", err);
    return c;
}
