// test_docs_tokens.c - corpora of tokens: llm.c's shards, and text encoded by a vocabulary.
#define _GNU_SOURCE
#include "data/bpe.h"
#include "test/corpus.h"

// A shard in memory, which the caller frees; token_bytes 2 or 4.
static unsigned char* make_shard(const uint32_t* tokens, int n, int token_bytes, size_t* size) {
    *size = 1024 + (size_t)n * (size_t)token_bytes;
    unsigned char* p = calloc(*size, 1);
    put_int32(p, token_bytes == 2 ? 20240520 : 20240801);
    put_int32(p + 4, token_bytes == 2 ? 1 : 7);
    put_int32(p + 8, (uint32_t)n);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < token_bytes; k++) p[1024 + i * token_bytes + k] = (unsigned char)(tokens[i] >> 8 * k);
    return p;
}

static void put_shard(const char* name, const uint32_t* tokens, int n, int token_bytes) {
    size_t size;
    unsigned char* p = make_shard(tokens, n, token_bytes, &size);
    write_text(name, p, size);
    free(p);
}

// ---- shards

CLAIM(a_shard_is_cut_at_each_end_of_text) {
    static const struct {
        int width, n, end_of_text, largest, n_documents;
        uint32_t tokens[9];
        const char* documents[4];
    } cases[] = {
        {2, 9, 50256, 65535, 4, {7, 8, 50256, 1, 2, 3, 50256, 50256, 65535}, {"\a\b", "|\1\2\3", "|", "|<65535>"}},
        {4, 6, 128000, 128255, 2, {128000, 5, 50256, 128255, 128000, 6}, {"|\5<50256><128255>", "|\6"}},  // Llama 3's
    };
    for (int i = 0; i < COUNT(cases); i++) {
        put_shard("s.bin", cases[i].tokens, cases[i].n, cases[i].width);
        Docs* docs = open_one("s.bin", bytes);
        CHECK(docs_tokens(docs) == cases[i].n && docs->end_of_text == cases[i].end_of_text);
        CHECK(docs->max_token == cases[i].largest);
        check_documents(docs, cases[i].documents, cases[i].n_documents);
    }
}

CLAIM(shards_of_a_tokenizer_are_cut_at_its_end_of_text) {
    static const uint32_t tokens[] = {260, 'x', 256, 260, 258}, beyond[] = {260, 261};
    put_shard("own.bin", tokens, COUNT(tokens), 2);
    put_shard("beyond.bin", beyond, COUNT(beyond), 2);
    CHECK_DOCUMENTS(open_one("own.bin", bpe), "|x<256>", "|<258>");
    check_refused("beyond.bin", bpe, "beyond.bin: holds the token 261, but the tokenizer has only 261");
}

// A model of bytes has their end; of another small vocabulary nobody knows which id ends a document.
CLAIM(shards_of_a_small_vocabulary_are_of_bytes_or_want_their_tokenizer) {
    static const uint32_t tokens[] = {256, 'a', 256, 'b'};
    for (int width = 2; width <= 4; width += 2) {
        int end = width == 2 ? 50256 : 128000;
        put_shard("small.bin", tokens, COUNT(tokens), width);
        Docs* docs = open_one_as("small.bin", bytes, (DocsReading){.vocab = 257});
        CHECK(docs->end_of_text == 256);
        check_documents(docs, (const char*[]){"|a", "|b"}, 2);
        CHECK(!open_one_as("small.bin", bytes, (DocsReading){.vocab = end}) && strstr(err, "try --tokenizer FILE"));
        docs = open_one_as("small.bin", bytes, (DocsReading){.vocab = end + 1});
        CHECK(docs->end_of_text == end && docs->n == 1);
        docs_close(docs);
    }
}

CLAIM(documents_longer_than_the_search_block_are_whole) {
    enum { N = 100000 };
    uint32_t* tokens = malloc(N * sizeof *tokens);
    for (int i = 0; i < N; i++) tokens[i] = (uint32_t)(i % 50000);
    tokens[0] = tokens[16384] = tokens[16385] = tokens[90000] = 50256;
    put_shard("long.bin", tokens, N, 2);
    Docs* docs = open_one("long.bin", bytes);
    CHECK(docs->n == 4);
    CHECK(docs_length(docs, 0) == 16384 && docs_length(docs, 1) == 1);
    CHECK(docs_length(docs, 2) == 90000 - 16385 && docs_length(docs, 3) == 10000);
    int part[3];
    CHECK(docs_read(docs, 2, 50000, 3, part, err) == 0);
    CHECK(part[0] == 66385 % 50000 && part[2] == 66387 % 50000);
    docs_close(docs);
    free(tokens);
}

CLAIM(the_last_document_of_a_shard_of_3_gib_is_read) {
    int64_t size = (int64_t)3 << 30, n = (size - 1024) / 4;
    unsigned char header[12], end[12];
    put_int32(header, 20240801);
    put_int32(header + 4, 7);
    put_int32(header + 8, (uint32_t)n);
    for (int i = 0; i < 3; i++) put_int32(end + 4 * i, (uint32_t[]){128000, '*', '+'}[i]);
    write_text("sparse.bin", header, sizeof header);
    FILE* f = fopen(path_of("sparse.bin"), "r+b");
    CHECK(f && fseeko(f, size - (int64_t)sizeof end, SEEK_SET) == 0 && fwrite(end, 1, sizeof end, f) == sizeof end);
    CHECK(fclose(f) == 0);
    Docs* docs = open_one("sparse.bin", bytes);
    CHECK(docs->n == 2);
    CHECK(docs_length(docs, 0) == n - 3 && docs_length(docs, 1) == 3);
    CHECK_STRING(document(docs, 1), "|*+");
    docs_close(docs);
    remove_tree("sparse.bin");
}

static int read_shard(const void* shard, size_t n) { return opens("x.bin", shard, n, bytes) ? 0 : -1; }

CLAIM(every_truncated_prefix_of_a_shard_is_refused) {
    static const uint32_t tokens[] = {50256, 1, 2, 50256, 3};
    for (int width = 2; width <= 4; width += 2) {
        size_t size;
        unsigned char* shard = make_shard(tokens, COUNT(tokens), width, &size);
        check_prefixes(read_shard, shard, size, size);
        free(shard);
    }
}

CLAIM(wrong_shards_are_refused_with_what_was_found) {
    static const uint32_t tokens[] = {50256, 1, 2}, negative[] = {128000, 0x80000000u};
    static const struct {
        size_t size;
        uint32_t magic, version, n;
        const char* words;
    } cases[] = {
        {1000, 20240520, 1, 3, "x.bin: a token shard begins with a header of 1024 bytes, this file has 1000"},
        {1029, 20240520, 1, 3, "x.bin: 3 tokens of 2 bytes need a file of 1030 bytes, found 1029"},
        {1030, 20240520, 1, 2, "x.bin: 2 tokens of 2 bytes need a file of 1028 bytes, found 1030"},
        {1030, 20240520, 1, UINT32_MAX, "x.bin: 4294967295 tokens of 2 bytes need a file of 8589935614 bytes"},
        {1024, 20240520, 1, 0, "x.bin: 0 tokens"},
        {1030, 20240520, 7, 3, "begins with 20240520, version 7; expected a token shard: 20240520, version 1"},
        {1030, 20240328, 7, 3, "begins with 20240328"},
    };
    size_t size;
    unsigned char* shard = make_shard(tokens, 3, 2, &size);
    for (int i = 0; i < COUNT(cases); i++) {
        for (int k = 0; k < 3; k++)
            put_int32(shard + 4 * k, (uint32_t[]){cases[i].magic, cases[i].version, cases[i].n}[k]);
        write_text("x.bin", shard, cases[i].size);
        check_refused("x.bin", bytes, cases[i].words);
    }
    free(shard);
    put_shard("x.bin", negative, 2, 4);
    check_refused("x.bin", bytes, "above 2147483647");
}

// ---- BPE

CLAIM(text_is_encoded_by_the_vocabulary) {
    static const uint32_t tokens[] = {260, 257};
    make_directory("enc");
    put_text("enc/1", "ababab ab");
    put_text("enc/2", "x");
    put_text("more.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"\\u0061bab\"}\n");
    put_shard("own.bin", tokens, COUNT(tokens), 2);
    Docs* docs = OPEN_PATHS(bpe, "enc", "more.jsonl", "own.bin");
    CHECK(docs->end_of_text == 260 && docs->max_token == 260);
    CHECK(docs->list[3].hash == docs->list[4].hash);  // the same tokens, encoded and from a shard
    CHECK_DOCUMENTS(docs, "|<257><256><258>", "|x", "|<256>", "|<257>", "|<257>");
}

// Ids above 65535 need four bytes each: 256 bytes, all 65536 pairs of bytes, end-of-text.
CLAIM(a_vocabulary_may_have_more_than_65536_tokens) {
    enum { N = 256 + 65536 + 1 };
    unsigned char *file = calloc(1024 + 3 * N, 1), *p = file + 1024;
    put_int32(file, 20240328);
    put_int32(file + 4, 2);
    put_int32(file + 8, N);
    put_int32(file + 12, N - 1);
    for (int i = 0; i < N - 1; i++) {
        *p++ = i < 256 ? 1 : 2;
        if (i >= 256) *p++ = (unsigned char)((i - 256) >> 8);
        *p++ = (unsigned char)i;
    }
    *p++ = 1;
    *p++ = '.';
    Tokenizer* t = NULL;
    CHECK(tokenizer_parse(&t, file, (size_t)(p - file), err) == 0);
    put_text("wide.txt", "\xff\xff\xff");
    CHECK_DOCUMENTS(open_one("wide.txt", t), "|<65791>\xff");
    tokenizer_close(t);
    free(file);
}

// Above one megabyte text is encoded in blocks; the tokens must not show where they end, whatever kind splits text.
CLAIM(text_encoded_in_blocks_is_as_if_at_once) {
    size_t n = (5 << 19) + 12345;
    char* text = malloc(n);
    int *expected = malloc(n * sizeof *expected), *tokens = malloc((n + 1) * sizeof *tokens);
    Bpe* kind = (Bpe*)bpe;
    for (int k = 0; k < 6; k++) {
        kind->split = (Pattern)(k % 4), kind->nfc = k == 4;
        int spaced = k < 5;  // without spaces there is no place to cut but the end
        for (size_t i = 0; i < n; i++) text[i] = "ab  1 '."[hash64(i) % (spaced ? 8 : 2)];
        if (spaced) {  // an odd number of spaces ends the first block, more begin the next: pairs of them would differ
            memset(text + (1 << 20) - 502, ' ', 1003);
            text[(1 << 20) - 503] = 'x';
        }
        size_t n_expected = bpe->encode(bpe, expected, text, n);
        write_text("blocks.txt", text, n);
        Docs* docs = open_one("blocks.txt", bpe);
        CHECK(docs_length(docs, 0) == (int64_t)n_expected + 1);
        CHECK(docs_read(docs, 0, 0, (int)n_expected + 1, tokens, err) == 0);
        CHECK(tokens[0] == 260 && memcmp(tokens + 1, expected, n_expected * sizeof *tokens) == 0);
        docs_close(docs);
    }
    kind->split = SPLIT_GPT2, kind->nfc = 0;
    remove_tree("blocks.txt");
    free(text), free(expected), free(tokens);
}

// ---- both

CLAIM(corpora_of_different_vocabularies_are_not_mixed) {
    static const uint32_t tokens[] = {50256, 1}, wide[] = {128000, 1};
    put_text("a.txt", "text");
    put_text("a.jsonl", "{\"text\":\"text\"}\n");
    put_shard("mix.bin", tokens, 2, 2);
    put_shard("mix_wide.bin", wide, 2, 4);
    static const char* const pairs[][2] = {
        {"a.txt", "mix.bin"}, {"mix.bin", "a.txt"}, {"a.jsonl", "mix.bin"}, {"mix_wide.bin", "mix.bin"}};
    for (int i = 0; i < COUNT(pairs); i++) {
        CHECK(!open_paths(pairs[i], 2, bytes) && strstr(err, "cannot be one corpus"));
        CHECK(strstr(err, pairs[i][0]) && strstr(err, pairs[i][1]));
    }
}

int main(void) { return corpus_main(); }
