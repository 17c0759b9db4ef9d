// fuzz_jsonl.c - JSONL of any content: what opens must read, each document from its end-of-text on.
#include "test/fuzz/documents.h"

static void check(const Docs* docs, int64_t d, int* tokens, int n) {
    (void)docs, (void)d, (void)n;
    require(tokens[0] == 256);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    read_fuzzed(open_fuzzed(".jsonl", data, n), check);
    return 0;
}
