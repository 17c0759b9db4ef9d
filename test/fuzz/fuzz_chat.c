// fuzz_chat.c - JSONL of instructions, the first of which is one: what opens says of each piece how much is learnt.
#include "test/fuzz/documents.h"

static void check(const Docs* docs, int64_t d, int* tokens, int n) {
    int half = n / 2, labels = 0;
    require(tokens[0] == 256);
    docs_learnt(docs, d, 0, n, tokens);
    for (int i = 0; i < n; i++) labels += tokens[i] >= 0;
    require(labels == docs_learnt(docs, d, 0, n, NULL) && labels >= 1 && tokens[0] < 0);
    require(labels == docs_learnt(docs, d, 0, half, NULL) + docs_learnt(docs, d, half, n - half, NULL));
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    static const char first[] = "{\"prompt\": \"a\", \"completion\": \"bc\"}\n";
    size_t head = sizeof first - 1;
    char* text = malloc(head + n);
    memcpy(text, first, head);
    memcpy(text + head, data, n);
    read_fuzzed(open_fuzzed(".jsonl", text, head + n), check);
    free(text);
    return 0;
}
