// weights_hash.c - weights_hash CHECKPOINT: the hash of its weights as build/core prints it (run/core_stubs.c).
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/model_files.h"

static uint64_t hash;

static void hash_weights(void* shape, const ParamTensor* tensor, float* value) {
    int i = 0;
    while (shape_tensor((const Shape*)shape, i).offset != tensor->offset) i++;
    hash ^= hash_bytes(value, tensor->elems * sizeof(float), (uint64_t)i);
}

int main(int argc, char** argv) {
    static char path[4096], text[1 << 16], err[ERR_BYTES];
    Shape shape;
    snprintf(path, sizeof path, "%s/config.json", argc > 1 ? argv[1] : ".");
    FILE* file = fopen(path, "r");
    size_t n = file ? fread(text, 1, sizeof text, file) : 0;
    if (!file || hf_config_parse(&shape, text, n, err)) die("%s: %s", path, err);
    shape.shards = 1;
    float* staging = (float*)malloc(shape_param_elems(&shape) * sizeof *staging);
    ModelState state = {.shape = &shape, .staging = staging, .put_weights = hash_weights, .context = &shape};
    if (!staging || hf_read(&state, 0, argv[1], err)) die("%s", err);
    printf("weights hash %016" PRIx64 "\n", hash);
    return 0;
}
