// fuzz_safetensors.c - any bytes to the safetensors reader; whatever it accepts must cover the values in order.
// Each input is used as it is, and once more with its first two bytes as header length: a fuzzer rarely guesses eight.
#include <stdlib.h>

#include "data/safetensors.h"
#include "test/fuzz/require.h"

static void check(const uint8_t* bytes, size_t n) {
    Err err = "";
    SafeTensors st;
    if (safetensors_parse(&st, bytes, n, err)) {
        require(err[0] && memchr(err, 0, sizeof err) && !st.tensors && st.n == 0);
        return;
    }
    const uint8_t* at = bytes + n;
    for (int i = st.n - 1; i >= 0; i--) {
        const SafeTensor* t = &st.tensors[i];
        size_t elems = 1, sum = 0;
        require(memchr(t->name, 0, sizeof t->name) != NULL && safetensors_get(&st, t->name) == t);
        require(t->n_dims >= 0 && t->n_dims <= 4);
        for (int d = 0; d < t->n_dims; d++) elems *= (size_t)t->dims[d];
        require(t->bytes == elems * dtype_bytes(t->dtype));
        at -= t->bytes;
        require((const uint8_t*)t->data == at && t->begin == (uint64_t)(at - bytes) && at >= bytes + 8);
        for (size_t b = 0; b < t->bytes; b++) sum += at[b];
        require(sum <= 255 * t->bytes);
    }
    safetensors_close(&st);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    check(data, size);
    if (size < 2) return 0;
    size_t n_header = MIN((size_t)data[0] | (size_t)data[1] << 8, size - 2);
    uint8_t* bytes = (uint8_t*)calloc(1, size + 6);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)n_header >> 8 * i);
    memcpy(bytes + 8, data + 2, size - 2);
    check(bytes, size + 6);
    free(bytes);
    return 0;
}
