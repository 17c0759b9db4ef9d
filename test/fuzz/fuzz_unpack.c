// fuzz_unpack.c - any bytes as a compressed file; the first one says of which kind.
#include <stdint.h>
#include <stdlib.h>

#include "test/docs_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    static Tokenizer* tokenizer;
    char err[256];
    Docs* docs = NULL;
    if (!tokenizer && tokenizer_open(&tokenizer, NULL, err, sizeof err)) abort();
    if (n < 1) return 0;
    if (docs_open_bytes(&docs, data[0] & 1 ? ".txt.gz" : ".txt.zst", data + 1, n - 1, tokenizer, err, sizeof err))
        return 0;
    if (docs_count(docs) != 1) abort();
    docs_close(docs);
    return 0;
}
