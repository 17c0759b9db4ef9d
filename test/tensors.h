// tensors.h - for tests: a safetensors file with all of its values in memory, and how much two files differ.
#pragma once
#include <math.h>
#include <stdlib.h>

#include "data/safetensors.h"
#include "plan/base/disk.h"

// As safetensors_open, but with SafeTensor.data set, to values in *bytes, which the caller frees.
static inline int tensors_load(SafeTensors* out, char** bytes, const char* path, Err err) {
    size_t n = 0;
    *bytes = disk_read_file(path, (size_t)1 << 30, &n, err);
    return *bytes ? safetensors_parse(out, *bytes, n, err) : -1;
}

// As a share of the norm of b.
static inline double relative_difference(const float* a, const float* b, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) difference += pow((double)a[i] - b[i], 2), norm += pow(b[i], 2);
    double share = norm > 0 ? sqrt(difference / norm) : difference;
    return isfinite(share) ? share : INFINITY;
}

// Of two tensors in fp32; without the biases of keys where keys is 0.
static inline double tensor_differs(const SafeTensor* a, const SafeTensor* b, int keys) {
    if (!a || a->bytes != b->bytes || a->dims[0] != b->dims[0] || b->dtype != DT_F32) return INFINITY;
    size_t n = b->bytes / sizeof(float);
    float *x = (float*)malloc(b->bytes + 1), *y = (float*)malloc(b->bytes + 1);
    memcpy(x, a->data, b->bytes), memcpy(y, b->data, b->bytes);
    if (!keys && strstr(b->name, "c_attn.bias")) memcpy(x + n / 3, y + n / 3, n / 3 * sizeof *x);
    if (!keys && strstr(b->name, "k_proj.bias")) memcpy(x, y, b->bytes);
    double difference = relative_difference(x, y, n);
    free(x), free(y);
    return difference;
}

// The worst of all tensors of two files; infinite where these are not the same but for what one rank alone dumps beside
// gradients.
static inline double tensors_differ(const char* a_path, const char* b_path, int keys) {
    SafeTensors a, b;
    char err[ERR_BYTES] = "", *a_bytes, *b_bytes = NULL;
    if (tensors_load(&a, &a_bytes, a_path, err) || tensors_load(&b, &b_bytes, b_path, err)) {
        printf("    %s\n", err);
        return INFINITY;
    }
    int extra = 2 * ((safetensors_get(&b, "logits") != NULL) - (safetensors_get(&a, "logits") != NULL));
    double worst = b.n > 20 && b.n - a.n == extra ? 0 : INFINITY;
    for (int i = 0; i < b.n; i++) {
        const SafeTensor* t = &b.tensors[i];
        if (!strcmp(t->name, "logits") || !strcmp(t->name, "documents")) continue;
        double difference = tensor_differs(safetensors_get(&a, t->name), t, keys);
        worst = difference <= worst ? worst : difference;
    }
    safetensors_close(&a), safetensors_close(&b);
    free(a_bytes), free(b_bytes);
    return worst;
}
