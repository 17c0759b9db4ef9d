// fuzz_docs_bin.c - token shards of any content: what opens must read.
//
// A first byte that is odd stands for a good header, so that the tokens are reached.
#include "test/fuzz/documents.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    if (n == 0 || data[0] % 2 == 0) {
        read_fuzzed(open_fuzzed(".bin", data, n), NULL);
        return 0;
    }
    int wide = data[0] & 2;
    int32_t header[3] = {wide ? 20240801 : 20240520, wide ? 7 : 1, (int32_t)((n - 1) / (wide ? 4 : 2))};
    uint8_t* file = calloc(1024 + n, 1);
    memcpy(file, header, sizeof header);
    memcpy(file + 1024, data + 1, n - 1);
    read_fuzzed(open_fuzzed(".bin", file, 1024 + n - 1), NULL);
    free(file);
    return 0;
}
