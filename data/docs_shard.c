// docs_shard.c - llm.c's token shards; see docs_files.h.
//
// 256 int32, little-endian: [0] 20240520, [1] 1, [2] number of tokens n; then n uint16. With [0] 20240801, [1] 7 (Llama
// 3) n uint32. The file ends there. Tokens are read in the byte order of the processor, which is little-endian
// wherever this program runs. Source: github.com/karpathy/llm.c, dev/data/data_common.py.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/docs_files.h"

enum {
    HEADER_BYTES = 1024,
    BLOCK = 16384,  // tokens read at once while a shard is searched
};

static int read_tokens(const DocsFile* file, int64_t at, int n, int* out, Err err) {
    size_t bytes = file->format == &docs_shard16 ? 2 : 4;
    // Tokens come into the end of out and are spread from there, as in docs.c.
    unsigned char* p = (unsigned char*)out + (4 - bytes) * (size_t)n;
    if (file_read(&file->file, HEADER_BYTES + at * (int64_t)bytes, p, bytes * (size_t)n, err)) return -1;
    for (int i = 0; bytes == 2 && i < n; i++) {
        uint16_t token;
        memcpy(&token, p + 2 * (size_t)i, sizeof token);
        out[i] = token;
    }
    int all = 0;
    for (int i = 0; i < n; i++) all |= out[i];
    return all < 0 ? fail(err, "%s: a token at or behind %lld is above %d", file->file.path, (long long)at, INT_MAX)
                   : 0;
}

static int read_shard(const Docs* docs, const DocsFile* file, int64_t doc, int64_t first, int n, int* out, Err err) {
    return read_tokens(file, docs->list[doc].place + first, n, out, err);
}

const DocsFormat docs_shard16 = {0, read_shard, NULL}, docs_shard32 = {0, read_shard, NULL};

typedef struct ShardFormat {
    int32_t magic, version;
    const DocsFormat* format;
    int token_bytes;
    int end_of_text;  // of the vocabulary it is made with
} ShardFormat;

static const ShardFormat formats[] = {
    {20240520, 1, &docs_shard16, 2, 50256},
    {20240801, 7, &docs_shard32, 4, 128000},
};

static int read_header(const DocsFile* file, const ShardFormat** format, int64_t* n, Err err) {
    unsigned char header[HEADER_BYTES];
    if (file->file.size < HEADER_BYTES)
        return fail(err, "%s: a token shard begins with a header of %d bytes, this file has %lld", file->file.path,
                    HEADER_BYTES, (long long)file->file.size);
    if (file_read(&file->file, 0, header, sizeof header, err)) return -1;
    int32_t magic = disk_int32(header), version = disk_int32(header + 4);
    *n = (uint32_t)disk_int32(header + 8);
    *format = NULL;
    for (int i = 0; i < COUNT(formats); i++)
        if (formats[i].magic == magic && formats[i].version == version) *format = &formats[i];
    if (!*format)
        return fail(err, "%s: begins with %d, version %d; expected a token shard: %d, version %d, or %d, version %d",
                    file->file.path, magic, version, formats[0].magic, formats[0].version, formats[1].magic,
                    formats[1].version);
    int64_t expected = HEADER_BYTES + *n * (*format)->token_bytes;
    if (*n < 1 || file->file.size != expected)
        return fail(err, "%s: %lld tokens of %d bytes need a file of %lld bytes, found %lld", file->file.path,
                    (long long)*n, (*format)->token_bytes, (long long)expected, (long long)file->file.size);
    return 0;
}

// agree_on_vocabulary finds the end of text: a text tokenizer names it, without one it is the format's, or that of
// bytes in a model of bytes. In other small vocabularies nobody knows it.
static int agree_on_vocabulary(Docs* docs, const DocsFile* file, const ShardFormat* format, Err err) {
    int most = docs->more->reading.vocab, is_formats = !most || format->end_of_text < most;
    int end_of_text = is_formats ? format->end_of_text : docs->tokenizer->end_of_text;
    if (docs->more->encodes) return 0;
    if (!is_formats && most > docs->tokenizer->vocab)
        return fail(err,
                    "%s: expected the tokenizer of these %d ids, which says where documents end; try --tokenizer FILE",
                    file->file.path, most);
    if (docs->n_files > 0 && docs->end_of_text != end_of_text)
        return fail(err, "%s: its tokens are of another vocabulary than those of %s: they cannot be one corpus",
                    file->file.path, docs->files[0].file.path);
    docs->end_of_text = end_of_text;
    return 0;
}

// The document in which the search is at the moment.
typedef struct Open {
    int head[DOCS_HEAD_TOKENS];
    int64_t begin, length;
} Open;

static void extend(Docs* docs, Open* open, const int* tokens, int64_t n) {
    docs_hash_content(docs, tokens, (size_t)n * sizeof *tokens);
    if (open->length < DOCS_HEAD_TOKENS)
        memcpy(open->head + open->length, tokens, (size_t)MIN(n, DOCS_HEAD_TOKENS - open->length) * sizeof *tokens);
    open->length += n;
}

static int finish(Docs* docs, Open* open, Err err) {
    int64_t n_head = MIN(open->length, DOCS_HEAD_TOKENS), length = open->length;
    open->length = 0;
    open->begin += length;
    return docs_add_hashed(docs, length, open->begin - length, open->head, (size_t)n_head * sizeof *open->head, err);
}

static int search_block(Docs* docs, Open* open, const int* tokens, int n, Err err) {
    for (int i = 0, end; i < n; i = end) {
        end = i + (open->length == 0);  // the end-of-text with which it begins is not its end
        while (end < n && tokens[end] != docs->end_of_text) end++;
        extend(docs, open, tokens + i, end - i);
        if (end < n && finish(docs, open, err)) return -1;
    }
    return 0;
}

int docs_index_shard(Docs* docs, DocsFile* file, Err err) {
    const ShardFormat* format = NULL;
    int64_t n = 0;
    int tokens[BLOCK], largest = 0;
    Open open = {.begin = 0};
    if (read_header(file, &format, &n, err) || agree_on_vocabulary(docs, file, format, err)) return -1;
    file->format = format->format;
    for (int64_t at = 0; at < n; at += BLOCK) {
        int n_block = (int)MIN(BLOCK, n - at);
        if (read_tokens(file, at, n_block, tokens, err)) return -1;
        for (int i = 0; i < n_block; i++) largest = MAX(largest, tokens[i]);
        if (search_block(docs, &open, tokens, n_block, err)) return -1;
    }
    docs->max_token = MAX(docs->max_token, largest);
    if (docs->more->encodes && largest >= docs->tokenizer->vocab)
        return fail(err, "%s: holds the token %d, but the tokenizer has only %d: which one was it made with?",
                    file->file.path, largest, docs->tokenizer->vocab);
    return finish(docs, &open, err);
}

char* docs_shard_of(const Docs* d, size_t* bytes, Err err) {
    const ShardFormat* format = &formats[d->more->encoded_bytes == 4];
    *bytes = HEADER_BYTES + (size_t)docs_tokens(d) * (size_t)format->token_bytes;
    int64_t n = docs_tokens(d);
    if (n > UINT32_MAX) return fail(err, "%lld tokens: a shard has at most %u", (long long)n, UINT32_MAX), NULL;
    int32_t* shard = calloc(1, *bytes);
    if (!shard) return fail(err, "no memory to keep %zu MiB of tokens", *bytes >> 20), NULL;
    shard[0] = format->magic, shard[1] = format->version, shard[2] = (int32_t)(uint32_t)n;
    memcpy((char*)shard + HEADER_BYTES, d->more->encoded, *bytes - HEADER_BYTES);
    return (char*)shard;
}
