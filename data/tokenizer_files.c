// tokenizer_files.c - opens tokenizers, and encodes with a vocabulary; see tokenizer_files.h.
//
// llm.c's tokenizer file: 256 int32, little-endian: [0] 20240328, [1] version, [2] number of tokens, [3] end-of-text
// (version 2; in version 1 it is 50256); then for each token one byte with its length and its bytes. Ids are merge
// ranks. Source: github.com/karpathy/llm.c, tokenizer.h.
#define _GNU_SOURCE  // memmem
#include "data/tokenizer_files.h"

#include <stdlib.h>
#include <string.h>

#include "data/bpe.h"
#include "plan/base/base.h"
#include "plan/base/disk.h"

enum {
    MAGIC = 20240328,
    HEADER_BYTES = 1024,
    GPT2_END_OF_TEXT = 50256,
    PRETOKEN_MAX = 1 << 28,        // longer than any word; keeps indices within 32 bits
    FILE_MAX = 256 * 1024 * 1024,  // known tokenizers have 1 to 20 MB
};

// ---- use

size_t bpe_encode_text(const Tokenizer* tokenizer, int* out, const char* text, size_t n) {
    const Bpe* t = bpe_of(tokenizer);
    size_t n_out = 0, room = n * (size_t)tokenizer->most;
    if (t->nfc && !nfc_is_normal(text, n)) {
        // It goes to the end of out. From k bytes read at most k tokens are written, and 4 k <= 4 room - n + k.
        n = nfc_normalize(out, text, n);
        text = (const char*)(out + room) - n;
    }
    for (size_t at = 0; at < n;) {
        size_t length = pretoken_length(t->split, text + at, MIN(n - at, PRETOKEN_MAX));
        n_out += bpe_encode(t, out + n_out, text + at, length);
        at += length;
    }
    return n_out;
}

static const char* decode(const Tokenizer* tokenizer, int token, size_t* n) {
    const Bpe* t = bpe_of(tokenizer);
    *n = 0;
    if (token < 0 || token >= t->base.vocab || token == t->base.end_of_text) return "";
    *n = token_length(t, token);
    return t->bytes + t->begin[token];
}

// ---- reading

static int read_header(Bpe* t, const unsigned char* p, size_t n, Err err) {
    if (n < HEADER_BYTES) return fail(err, "the header has %d bytes, found only %zu", HEADER_BYTES, n);
    int version = disk_int32(p + 4);
    if (version < 1 || version > 2) return fail(err, "version %d, expected 1 or 2", version);
    uint32_t vocab = (uint32_t)disk_int32(p + 8);
    t->base.end_of_text = version == 1 ? GPT2_END_OF_TEXT : disk_int32(p + 12);
    if (vocab < 1 || vocab > MIN(n / 2, (size_t)INT32_MAX))
        return fail(err, "%u tokens do not fit in %zu bytes", vocab, n);
    t->base.vocab = (int)vocab;
    if (t->base.end_of_text < 0 || t->base.end_of_text >= t->base.vocab)
        return fail(err, "end-of-text is %d, but there are %d tokens", t->base.end_of_text, t->base.vocab);
    return 0;
}

// Reads the tokens from p[*at] on; moves *at past them.
static int read_tokens(Bpe* t, const unsigned char* p, size_t n, size_t* at, Err err) {
    t->begin = malloc((size_t)t->base.vocab * sizeof *t->begin);
    t->length = malloc((size_t)t->base.vocab);
    t->bytes = malloc(n);
    if (!t->begin || !t->length || !t->bytes) return fail(err, "out of memory for %d tokens", t->base.vocab);
    size_t total = 0;
    for (int id = 0; id < t->base.vocab; id++) {
        size_t length = *at < n ? p[*at] : 0;
        if (length == 0 || length > n - *at - 1)
            return fail(err, "token %d of %d at byte %zu: %s", id, t->base.vocab, *at,
                        *at < n && length == 0 ? "its length is 0, expected 1 .. 255" : "the file ends inside it");
        t->begin[id] = total;
        t->length[id] = (unsigned char)length;
        memcpy(t->bytes + total, p + *at + 1, length);
        total += length;
        *at += 1 + length;
    }
    t->n_bytes = total;
    return 0;
}

static int read_llmc(Bpe* t, const unsigned char* p, size_t n, Err err) {
    size_t at = HEADER_BYTES;
    if (read_header(t, p, n, err) || read_tokens(t, p, n, &at, err)) return -1;
    if (at != n) return fail(err, "%zu bytes behind the %d tokens, expected none", n - at, t->base.vocab);
    if (bpe_index_tokens(t, err) || bpe_derive_merges(t, err)) return -1;
    return bpe_find_bytes(t, 0, err);
}

static int is_byte_vocabulary(const Bpe* t) {
    int same = t->base.vocab == 257 && t->base.end_of_text == 256 && t->n_merges == 0 && !t->nfc;
    for (int b = 0; same && b < 256; b++) same = t->byte_id[b] == b;
    return same;
}

int tokenizer_parse(Tokenizer** out, const void* data, size_t n, Err err) {
    *out = NULL;
    if (n < 4) return fail(err, "%zu bytes are no tokenizer", n);
    Bpe* t = calloc(1, sizeof *t);
    if (!t) return fail(err, "out of memory for a tokenizer");
    int status = -1;
    int32_t magic = disk_int32(data);
    const char* text = data;
    size_t blank = 0;  // white space before JSON
    while (blank < n && strchr(" \t\r\n", text[blank]) && text[blank]) blank++;
    if (magic == MAGIC) status = read_llmc(t, data, n, err);
    else if (blank < n && text[blank] == '{') status = tokenizer_read_json(t, text, n, err);
    else fail(err, "neither llm.c's tokenizer (begins with %d, found %d) nor a tokenizer.json ('{')", MAGIC, magic);
    if (status == 0) status = bpe_index_merges(t, err);
    if (status == 0 && !(t->file = malloc(n))) status = fail(err, "out of memory for a file of %zu bytes", n);
    if (status) {
        tokenizer_close(&t->base);
        return -1;
    }
    memcpy(t->file, data, n);
    t->file_bytes = n;
    if (is_byte_vocabulary(t)) t->base = byte_tokenizer;
    else t->base.encode = bpe_encode_text, t->base.decode = decode, t->base.most = t->nfc ? 3 : 1;
    if (t->base.stop == 0) t->base.stop = t->base.end_of_text;
    *out = &t->base;
    return 0;
}

static int open_bytes(Tokenizer** out, Err err) {
    static const char name[] = "<|endoftext|>";
    const int32_t header[HEADER_BYTES / 4] = {MAGIC, 2, 257, 256};
    char file[HEADER_BYTES + 256 * 2 + sizeof name], *p = file + HEADER_BYTES;  // sizeof name: its length byte, no NUL
    memcpy(file, header, HEADER_BYTES);
    for (int b = 0; b < 256; b++) *p++ = 1, *p++ = (char)b;
    *p++ = sizeof name - 1;
    memcpy(p, name, sizeof name - 1);
    return tokenizer_parse(out, file, sizeof file, err);
}

int tokenizer_open(Tokenizer** out, const char* path, Err err) {
    *out = NULL;
    if (!path || !*path) return open_bytes(out, err);
    char why[ERR_BYTES], inside[DISK_PATH];
    size_t n = 0;
    if (disk_is_dir(path)) {
        const char* name = disk_is_file(path, "tokenizer.json") ? "tokenizer.json" : "tokenizer.bin";
        if (!disk_is_file(path, name))
            return fail(err, "%s: expected tokenizer.json or tokenizer.bin in this directory, found neither", path);
        if (disk_join(inside, path, name, err)) return -1;
        path = inside;
    }
    char* bytes = disk_read_file(path, FILE_MAX, &n, err);
    if (!bytes) return -1;
    int status = tokenizer_parse(out, bytes, n, why);
    free(bytes);
    return status ? fail(err, "%s: %s", path, why) : 0;
}

void tokenizer_close(Tokenizer* tokenizer) {
    Bpe* t = (Bpe*)tokenizer;
    if (!t) return;
    free(t->begin);
    free(t->length);
    free(t->bytes);
    free(t->added);
    free(t->marks);
    free(t->index.slots);
    free(t->merges);
    free(t->table);
    free(t->file);
    free(t);
}

int tokenizer_named(const Tokenizer* tokenizer, const char* name) {
    const Bpe* t = bpe_of(tokenizer);
    size_t n = strlen(name);
    for (int id = 0; !tokenizer->is_bytes && t->added && id < t->base.vocab; id++)
        if (t->added[id] && token_length(t, id) == n && !memcmp(t->bytes + t->begin[id], name, n)) return id;
    return -1;
}

int tokenizer_next_mark(const Tokenizer* tokenizer, const char* text, size_t n, size_t* before, size_t* length) {
    const Bpe* t = bpe_of(tokenizer);
    int found = -1;
    *before = n, *length = 0;
    for (int i = 0; !tokenizer->is_bytes && i < t->n_marks; i++) {
        size_t bytes = token_length(t, t->marks[i]);
        const char* at = memmem(text, MIN(n, *before + bytes), t->bytes + t->begin[t->marks[i]], bytes);
        size_t place = at ? (size_t)(at - text) : n;
        if (!at || place > *before || (place == *before && bytes <= *length)) continue;
        found = t->marks[i], *before = place, *length = bytes;
    }
    return found;
}

int tokenizer_is_qwens(const Tokenizer* t) { return !t->is_bytes && bpe_of(t)->split == SPLIT_QWEN2; }

const char* tokenizer_file(const Tokenizer* tokenizer, const void** bytes, size_t* n) {
    const Bpe* t = bpe_of(tokenizer);
    *bytes = t->file;
    *n = t->file_bytes;
    return t->file_bytes >= 4 && disk_int32((const unsigned char*)t->file) == MAGIC ? "tokenizer.bin"
                                                                                    : "tokenizer.json";
}
