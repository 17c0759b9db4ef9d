// fuzz_unpack.c - any bytes as a compressed file; the first one says of which kind.
#include "test/fuzz/documents.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    Docs* docs = n ? open_fuzzed(data[0] & 1 ? ".txt.gz" : ".txt.zst", data + 1, n - 1) : NULL;
    require(!docs || docs->n == 1);
    docs_close(docs);
    return 0;
}
