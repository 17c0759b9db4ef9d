// fuzz_docs.c - corpora of any content, with the byte tokenizer: what opens must read. The first byte says what stands
// behind it: a token shard, or its tokens behind a good header; JSONL; JSONL of instructions and trees behind a line
// that is one; text; a compressed file.
#include <stdint.h>
#include <string.h>

#include "plan/base/base.h"
#include "test/docs_bytes.h"
#include "test/fuzz/require.h"

enum { SHARD, NARROW_TOKENS, WIDE_TOKENS, JSONL, CHAT, TEXT, GZIP, ZSTD, KINDS };

static const char* const endings[KINDS] = {".bin", ".bin", ".bin", ".jsonl", ".jsonl", ".txt", ".txt.gz", ".txt.zst"};

// Of instructions each document says how much of it is learnt, as a whole and in halves.
static void check_labels(const Docs* docs, int64_t d, int* tokens, int n) {
    int half = n / 2, labels = 0;
    docs_learnt(docs, d, 0, n, tokens);
    for (int i = 0; i < n; i++) labels += tokens[i] >= 0;
    require(labels == docs_learnt(docs, d, 0, n, NULL) && labels >= 1 && tokens[0] < 0);
    require(labels == docs_learnt(docs, d, 0, half, NULL) + docs_learnt(docs, d, half, n - half, NULL));
}

// Of a tree segments follow one another, behind their parents and where these end on the path.
static void check_segments(const Docs* docs, int64_t d) {
    const DocsSegment* list = NULL;
    int n = docs_segments(docs, d, &list);
    require(n != 1 && (n == 0) == !(docs_squares(docs, d) > 0));
    for (int i = 0; i < n; i++) {
        int up = list[i].parent;
        require(list[i].first >= 0 && list[i].length > 0 && list[i].first + list[i].length <= docs_length(docs, d));
        require(i == 0 ? up == -1 && list[i].position == 0 : up >= 0 && up < i && list[i].first > list[i - 1].first);
        if (i) require(list[i].position == list[up].position + (int)(list[up + 1].first - list[up].first));
    }
}

// Every document has the length that was announced, whole and in halves alike.
static void read_all(const Docs* docs, int kind) {
    char err[ERR_BYTES];
    int64_t total = 0;
    for (int64_t d = 0; d < docs->n; d++) {
        int n = (int)docs_length(docs, d), half = n / 2;
        int *tokens = malloc(2 * (size_t)n * sizeof *tokens), *parts = tokens + n;
        require(n >= 1 && docs_read(docs, d, 0, n, tokens, err) == 0);
        require(docs_read(docs, d, 0, half, parts, err) == 0);
        require(docs_read(docs, d, half, n - half, parts + half, err) == 0);
        require(!memcmp(tokens, parts, (size_t)n * sizeof *tokens));
        require(kind < JSONL || tokens[0] == 256);
        if (kind == CHAT) check_labels(docs, d, tokens, n), check_segments(docs, d);
        total += n;
        free(tokens);
    }
    require(total == docs_tokens(docs) && (kind < GZIP || docs->n == 1));
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n) {
    static Tokenizer* tokenizer;
    static const char first[] = "{\"prompt\": \"a\", \"completion\": \"bc\"}\n";
    char err[ERR_BYTES] = "";
    if (n-- == 0) return 0;
    int kind = *data++ % KINDS, wide = kind == WIDE_TOKENS;
    int32_t header[256] = {wide ? 20240801 : 20240520, wide ? 7 : 1, (int32_t)(n / (wide ? 4 : 2))};
    size_t head = kind == CHAT ? strlen(first) : kind == NARROW_TOKENS || wide ? sizeof header : 0;
    char* file = malloc(head + n + 1);
    Docs* docs = NULL;
    memcpy(file, kind == CHAT ? first : (const char*)header, head);
    memcpy(file + head, data, n);
    require(tokenizer || tokenizer_open(&tokenizer, NULL, err) == 0);
    require(docs_open_bytes(&docs, endings[kind], file, head + n, tokenizer, err) == 0 || err[0]);
    if (docs) read_all(docs, kind);
    docs_close(docs);
    free(file);
    return 0;
}
