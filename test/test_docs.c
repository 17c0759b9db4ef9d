// test_docs.c - a corpus gives the documents that its files hold, in a fixed order, and refuses what it cannot read.
#define _GNU_SOURCE
#include "data/docs.h"

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/docs_format.h"
#include "plan/base.h"
#include "test/test.h"

static char root[4200];
static char err[ERR_BYTES];
static Tokenizer *bytes, *bpe;  // bpe: 256 bytes and "ab" = 256, "abab" = 257, " ab" = 258, end-of-text 259

// ---- helpers

static const char* path_of(const char* name) {
    static char paths[8][4400];
    static int next;
    char* path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static void put(const char* name, const void* content, size_t n) {
    FILE* f = fopen(path_of(name), "wb");
    if (!f || fwrite(content, 1, n, f) != n || fclose(f)) exit(1);
}

static void put_text(const char* name, const char* text) { put(name, text, strlen(text)); }

static void make_directory(const char* name) { CHECK(mkdir(path_of(name), 0777) == 0); }

static void remove_tree(const char* name) {
    char command[4500];
    snprintf(command, sizeof command, "rm -rf '%s'", path_of(name));
    CHECK(system(command) == 0);
}

// One path below the root; NULL when it is refused, with the message in err.
static Docs* open_one(const char* name, const Tokenizer* tokenizer) {
    Docs* docs = NULL;
    const char* path = path_of(name);
    err[0] = 0;
    int status = docs_open(&docs, &path, 1, tokenizer, err, sizeof err);
    CHECK((status == 0) == (docs != NULL));
    CHECK(status == 0 || (status == -1 && err[0]));
    return docs;
}

static Docs* open_memory(const char* name, const void* content, size_t n, const Tokenizer* tokenizer) {
    Docs* docs = NULL;
    void* copy = malloc(n ? n : 1);  // of just this size, so that a sanitizer sees every byte too many
    if (n) memcpy(copy, content, n);
    err[0] = 0;
    int status = docs_open_memory(&docs, name, copy, n, tokenizer, err, sizeof err);
    CHECK((status == 0) == (docs != NULL));
    if (docs) docs_close(docs);
    free(copy);
    return docs;  // only whether there is one may be asked
}

// The document as text, "|" for end-of-text and "<id>" for ids above 255; read whole, then checked in all parts.
static const char* document(const Docs* docs, int64_t d) {
    static char text[8192];
    int n = (int)docs_length(docs, d), *tokens = malloc(((size_t)n + 1) * sizeof *tokens), part[3];
    size_t at = 0;
    if (docs_read(docs, d, 0, n, tokens, err, sizeof err)) return err;
    for (int i = 0; i < n && at < sizeof text - 32; i++) {
        if (tokens[i] == docs_end_of_text(docs)) text[at++] = '|';
        else if (tokens[i] < 256) text[at++] = (char)tokens[i];
        else at += (size_t)sprintf(text + at, "<%d>", tokens[i]);
    }
    text[at] = 0;
    for (int first = 0; first < n; first++) {
        int k = MIN(3, n - first);
        CHECK(docs_read(docs, d, first, k, part, err, sizeof err) == 0);
        CHECK(memcmp(part, tokens + first, (size_t)k * sizeof *part) == 0);
    }
    CHECK(docs_read(docs, d, n, 0, part, err, sizeof err) == 0);
    CHECK(docs_read(docs, d, n, 1, part, err, sizeof err) == -1);
    CHECK(docs_read(docs, d, -1, 1, part, err, sizeof err) == -1);
    free(tokens);
    return text;
}

static void put_int32(unsigned char* p, uint32_t value) {
    for (int i = 0; i < 4; i++) p[i] = (unsigned char)(value >> 8 * i);
}

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
    put(name, p, size);
    free(p);
}

static Tokenizer* make_bpe(void) {
    static const char* const more[] = {"ab", "abab", " ab", "<|endoftext|>"};
    unsigned char file[1024 + 512 + 64] = {0}, *p = file + 1024;
    put_int32(file, 20240328);
    put_int32(file + 4, 2);
    put_int32(file + 8, 260);
    put_int32(file + 12, 259);
    for (int b = 0; b < 256; b++) *p++ = 1, *p++ = (unsigned char)b;
    for (int i = 0; i < COUNT(more); i++) {
        *p++ = (unsigned char)strlen(more[i]);
        p = (unsigned char*)stpcpy((char*)p, more[i]);
    }
    Tokenizer* t = NULL;
    if (tokenizer_parse(&t, file, (size_t)(p - file), err, sizeof err)) printf("    %s\n", err), exit(1);
    return t;
}

// ---- text

static void a_text_file_is_one_document(void) {
    put_text("a.txt", "hello\n");
    Docs* docs = open_one("a.txt", bytes);
    CHECK(docs_count(docs) == 1 && docs_tokens(docs) == 7 && docs_length(docs, 0) == 7);
    CHECK(docs_files(docs) == 1 && docs_skipped(docs) == 0);
    CHECK(docs_max_token(docs) == 256 && docs_end_of_text(docs) == 256);
    CHECK_STRING(document(docs, 0), "|hello\n");
    docs_close(docs);
    docs_close(NULL);
}

static void a_directory_is_read_in_byte_order_of_paths(void) {
    make_directory("tree");
    make_directory("tree/b");
    make_directory("tree/b/deep");
    make_directory("tree/.hidden");
    put_text("tree/b/z", "bz");
    put_text("tree/b/deep/y", "deep");
    put_text("tree/b.c", "dot comes before slash");
    put_text("tree/B", "capital");
    put_text("tree/\xc3\xa9", "accent");
    put_text("tree/.hidden/x", "hidden");
    put_text("tree/.hidden_too", "hidden");
    put_text("tree/empty", "");
    put("tree/junk", "text\0text", 9);
    CHECK(symlink("b/z", path_of("tree/c_link")) == 0);
    CHECK(symlink("..", path_of("tree/b/loop")) == 0);
    CHECK(symlink("nowhere", path_of("tree/b/dangling")) == 0);
    CHECK(mkfifo(path_of("tree/fifo"), 0666) == 0);
    static const char* const expected[] = {"|capital", "|dot comes before slash", "|deep", "|bz", "|bz", "|accent"};
    Docs* docs = open_one("tree", bytes);
    CHECK(docs_count(docs) == COUNT(expected) && docs_skipped(docs) == 2);
    for (int i = 0; i < COUNT(expected) && i < docs_count(docs); i++) CHECK_STRING(document(docs, i), expected[i]);
    docs_close(docs);
}

static void unreadable_files_of_a_directory_are_passed_over(void) {
    if (geteuid() == 0) SKIP("root can read every file");
    make_directory("locked");
    make_directory("locked/dir");
    put_text("locked/a", "readable");
    put_text("locked/b", "not readable");
    CHECK(chmod(path_of("locked/b"), 0) == 0 && chmod(path_of("locked/dir"), 0) == 0);
    Docs* docs = open_one("locked", bytes);
    CHECK(docs_count(docs) == 1 && docs_skipped(docs) == 2);
    docs_close(docs);
    CHECK(open_one("locked/b", bytes) == NULL && strstr(err, "locked/b: Permission denied"));
    CHECK(chmod(path_of("locked/dir"), 0777) == 0);
}

static void many_small_files_need_few_descriptors(void) {
    make_directory("many");
    for (int i = 0; i < 600; i++) {
        char name[32], text[32];
        sprintf(name, "many/%03d", i);
        sprintf(text, "file %d", i);
        put_text(name, text);
    }
    Docs* docs = open_one("many", bytes);
    int probe = open("/dev/null", O_RDONLY);
    CHECK(probe >= 0 && probe < 300);
    close(probe);
    CHECK(docs_count(docs) == 600);
    CHECK_STRING(document(docs, 0), "|file 0");
    CHECK_STRING(document(docs, 300), "|file 300");
    CHECK_STRING(document(docs, 599), "|file 599");
    docs_close(docs);
}

static void patterns_and_paths_are_taken_in_order(void) {
    make_directory("pat");
    put_text("pat/2.txt", "two");
    put_text("pat/10.txt", "ten");
    put_text("pat/x[1].txt", "brackets");
    const char* paths[] = {path_of("pat/x[1].txt"), path_of("pat/*0.txt"), path_of("pat/?.txt")};
    Docs* docs = NULL;
    CHECK(docs_open(&docs, paths, 3, bytes, err, sizeof err) == 0);
    CHECK_STRING(document(docs, 0), "|brackets");
    CHECK_STRING(document(docs, 1), "|ten");
    CHECK_STRING(document(docs, 2), "|two");
    docs_close(docs);
}

static void a_document_may_be_longer_than_an_int(void) {
    put_text("huge.txt", "beginning");
    FILE* f = fopen(path_of("huge.txt"), "r+b");
    int64_t size = (int64_t)3 << 30;
    static char page[DOCS_HEAD_BYTES];
    memset(page, 'a', sizeof page);
    CHECK(f && fwrite(page, 1, sizeof page, f) == sizeof page);
    CHECK(fseeko(f, size - 4, SEEK_SET) == 0 && fwrite("last", 1, 4, f) == 4 && fclose(f) == 0);
    Docs* docs = open_one("huge.txt", bytes);
    int tokens[6];
    CHECK(docs_length(docs, 0) == size + 1 && docs_tokens(docs) == size + 1);
    CHECK(docs_read(docs, 0, size - 5, 6, tokens, err, sizeof err) == 0);
    CHECK(tokens[0] == 0 && tokens[1] == 0 && tokens[2] == 'l' && tokens[5] == 't');
    CHECK(docs_read(docs, 0, size - 4, 6, tokens, err, sizeof err) == -1);
    docs_close(docs);
    remove_tree("huge.txt");
}

static void a_file_that_shrank_is_told(void) {
    put_text("shrinks.txt", "0123456789");
    Docs* docs = open_one("shrinks.txt", bytes);
    int tokens[11];
    CHECK(truncate(path_of("shrinks.txt"), 4) == 0);
    CHECK(docs_read(docs, 0, 0, 5, tokens, err, sizeof err) == 0);
    CHECK(docs_read(docs, 0, 0, 11, tokens, err, sizeof err) == -1);
    CHECK(strstr(err, "shrinks.txt: ends at byte 4, it had 10 when it was opened") != NULL);
    docs_close(docs);
}

// ---- JSONL

static void each_line_of_jsonl_is_a_document(void) {
    put_text("a.jsonl",
             "{\"id\": 7, \"text\": \"plain\"}\n"
             "  \r\n"
             "{\"text\": \"tab\\t quote\\\" slash\\/ back\\\\ \\b\\f\\n\\r end\", \"more\": [1, {\"text\": 2}]}\r\n"
             "{\"text\":\"\\u0041\\u00e9\\u20ac\\ud83d\\ude00 \xc3\xa9\"}\n"
             "{\"text\":\"\"}\n"
             "{\"text\":\"no newline at the end\"}");
    static const char* const expected[] = {"|plain", "|tab\t quote\" slash/ back\\ \b\f\n\r end",
                                           "|A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \xc3\xa9", "|", "|no newline at the end"};
    Docs* docs = open_one("a.jsonl", bytes);
    CHECK(docs_count(docs) == COUNT(expected));
    for (int i = 0; i < COUNT(expected); i++) CHECK_STRING(document(docs, i), expected[i]);
    docs_close(docs);
}

static void long_lines_and_escapes_cross_every_buffer(void) {
    enum { N = 50000 };
    char *text = malloc(N), *file = malloc(12 * N + 1000), *p = file;
    int* tokens = malloc((N + 1) * sizeof *tokens);
    for (int shift = 0; shift < 13; shift++) {  // escapes then straddle the ends of buffers at every place
        p = file;
        p += sprintf(p, "{\"text\":\"short\"}\n{\"text\":\"");
        for (int i = 0; i < N; i++) {
            text[i] = (char)('a' + i % 26);
            if (i % 7 == shift % 7) text[i] = '\n', p += sprintf(p, i % 2 ? "\\n" : "\\u000a");
            else *p++ = text[i];
        }
        p += sprintf(p, "\"}\n{\"text\":\"behind\"}\n");
        put("long.jsonl", file, (size_t)(p - file));
        Docs* docs = open_one("long.jsonl", bytes);
        CHECK(docs_count(docs) == 3 && docs_length(docs, 1) == N + 1);
        CHECK(docs_read(docs, 1, 0, N + 1, tokens, err, sizeof err) == 0);
        int same = 0;
        for (int i = 0; i < N; i++) same += tokens[i + 1] == text[i];
        CHECK(same == N);
        CHECK(docs_read(docs, 1, N - 99, 100, tokens, err, sizeof err) == 0);
        for (int i = 0; i < 100; i++) CHECK(tokens[i] == text[N - 100 + i]);
        CHECK_STRING(document(docs, 2), "|behind");
        docs_close(docs);
    }
    free(text);
    free(file);
    free(tokens);
}

static void a_broken_line_of_jsonl_is_named(void) {
    static const struct {
        const char *content, *message;
    } cases[] = {
        {"{\"text\":\"a\"}\n{\"text\":\"b\"\n", "broken.jsonl:2: "},
        {"{\"text\":\"a\"}\n\n{\"txet\":\"b\"}\n", "broken.jsonl:3: no member \"text\""},
        {"{\"text\":\"a\"}\n{\"text\":5}\n", "broken.jsonl:2: the member \"text\" is not a string"},
        {"{\"text\":null}", "broken.jsonl:1: the member \"text\" is not a string"},
        {"[\"text\", \"a\"]\n", "broken.jsonl:1: no member \"text\""},
        {"\"text\"\n", "broken.jsonl:1: no member \"text\""},
        {"{\"text\":\"\\ud800\"}\n", "broken.jsonl:1: "},
        {"{\"text\":\"a\"} {\"text\":\"b\"}\n", "broken.jsonl:1: "},
        {"not JSON at all\n", "broken.jsonl:1: "},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        put_text("broken.jsonl", cases[i].content);
        CHECK(open_one("broken.jsonl", bytes) == NULL);
        CHECK(strstr(err, cases[i].message) != NULL);
    }
}

static void every_truncated_prefix_of_jsonl_is_survived(void) {
    static const char file[] = "{\"a\":1,\"text\":\"x\\u0041\\ud83d\\ude00\\n\"}\n{\"text\":\"yz\"}\n";
    for (size_t n = 0; n < sizeof file; n++) {
        int whole = n == 38 || n == 39 || n == 52 || n == 53;  // behind either line, with and without its newline
        CHECK((open_memory("x.jsonl", file, n, bytes) != NULL) == whole);
        CHECK((open_memory("x.jsonl", file, n, bpe) != NULL) == whole);
    }
}

// ---- shards

static void a_shard_is_cut_at_each_end_of_text(void) {
    static const uint32_t tokens[] = {7, 8, 50256, 1, 2, 3, 50256, 50256, 65535};
    put_shard("s.bin", tokens, COUNT(tokens), 2);
    Docs* docs = open_one("s.bin", bytes);
    CHECK(docs_count(docs) == 4 && docs_tokens(docs) == 9);
    CHECK(docs_end_of_text(docs) == 50256 && docs_max_token(docs) == 65535);
    CHECK_STRING(document(docs, 0), "\a\b");
    CHECK_STRING(document(docs, 1), "|\1\2\3");
    CHECK_STRING(document(docs, 2), "|");
    CHECK_STRING(document(docs, 3), "|<65535>");
    docs_close(docs);
}

static void wide_shards_have_the_end_of_text_of_llama_3(void) {
    static const uint32_t tokens[] = {128000, 5, 50256, 128255, 128000, 6};
    put_shard("wide.bin", tokens, COUNT(tokens), 4);
    Docs* docs = open_one("wide.bin", bytes);
    CHECK(docs_count(docs) == 2 && docs_end_of_text(docs) == 128000 && docs_max_token(docs) == 128255);
    CHECK_STRING(document(docs, 0), "|\5<50256><128255>");
    CHECK_STRING(document(docs, 1), "|\6");
    docs_close(docs);
}

static void shards_of_a_tokenizer_are_cut_at_its_end_of_text(void) {
    static const uint32_t tokens[] = {259, 'x', 256, 259, 258}, beyond[] = {259, 260};
    put_shard("own.bin", tokens, COUNT(tokens), 2);
    put_shard("beyond.bin", beyond, COUNT(beyond), 2);
    Docs* docs = open_one("own.bin", bpe);
    CHECK(docs_count(docs) == 2 && docs_end_of_text(docs) == 259);
    CHECK_STRING(document(docs, 0), "|x<256>");
    docs_close(docs);
    CHECK(open_one("beyond.bin", bpe) == NULL);
    CHECK(strstr(err, "beyond.bin: holds the token 260, but the tokenizer has only 260") != NULL);
}

static void documents_longer_than_the_search_block_are_whole(void) {
    enum { N = 100000 };
    uint32_t* tokens = malloc(N * sizeof *tokens);
    for (int i = 0; i < N; i++) tokens[i] = (uint32_t)(i % 50000);
    tokens[0] = tokens[16384] = tokens[16385] = tokens[90000] = 50256;
    put_shard("long.bin", tokens, N, 2);
    Docs* docs = open_one("long.bin", bytes);
    CHECK(docs_count(docs) == 4);
    CHECK(docs_length(docs, 0) == 16384 && docs_length(docs, 1) == 1);
    CHECK(docs_length(docs, 2) == 90000 - 16385 && docs_length(docs, 3) == 10000);
    int part[3];
    CHECK(docs_read(docs, 2, 50000, 3, part, err, sizeof err) == 0);
    CHECK(part[0] == 66385 % 50000 && part[2] == 66387 % 50000);
    docs_close(docs);
    free(tokens);
}

static void the_last_document_of_a_shard_of_3_gib_is_read(void) {
    int64_t size = (int64_t)3 << 30, n = (size - 1024) / 4;
    unsigned char header[12], end[12];
    put_int32(header, 20240801);
    put_int32(header + 4, 7);
    put_int32(header + 8, (uint32_t)n);
    for (int i = 0; i < 3; i++) put_int32(end + 4 * i, (uint32_t[]){128000, '*', '+'}[i]);
    put("sparse.bin", header, sizeof header);
    FILE* f = fopen(path_of("sparse.bin"), "r+b");
    CHECK(f && fseeko(f, size - (int64_t)sizeof end, SEEK_SET) == 0 && fwrite(end, 1, sizeof end, f) == sizeof end);
    CHECK(fclose(f) == 0);
    Docs* docs = open_one("sparse.bin", bytes);
    CHECK(docs_count(docs) == 2);
    CHECK(docs_length(docs, 0) == n - 3 && docs_length(docs, 1) == 3);
    CHECK_STRING(document(docs, 1), "|*+");
    docs_close(docs);
    remove_tree("sparse.bin");
}

static void every_truncated_prefix_of_a_shard_is_refused(void) {
    static const uint32_t tokens[] = {50256, 1, 2, 50256, 3};
    for (int width = 2; width <= 4; width += 2) {
        size_t size;
        unsigned char* shard = make_shard(tokens, COUNT(tokens), width, &size);
        for (size_t n = 0; n < size; n++) CHECK(open_memory("x.bin", shard, n, bytes) == NULL && err[0]);
        CHECK(open_memory("x.bin", shard, size, bytes) != NULL);
        free(shard);
    }
}

static void wrong_shards_are_refused_with_what_was_found(void) {
    static const uint32_t tokens[] = {50256, 1, 2};
    size_t size;
    unsigned char* shard = make_shard(tokens, 3, 2, &size);
    CHECK(open_memory("x.bin", shard, 1000, bytes) == NULL);
    CHECK_STRING(err, "x.bin: a token shard begins with a header of 1024 bytes, this file has 1000");
    CHECK(open_memory("x.bin", shard, size - 1, bytes) == NULL);
    CHECK_STRING(err, "x.bin: 3 tokens of 2 bytes need a file of 1030 bytes, found 1029");
    put_int32(shard + 8, 2);
    CHECK(open_memory("x.bin", shard, size, bytes) == NULL);
    CHECK_STRING(err, "x.bin: 2 tokens of 2 bytes need a file of 1028 bytes, found 1030");
    put_int32(shard + 8, UINT32_MAX);
    CHECK(open_memory("x.bin", shard, size, bytes) == NULL);
    put_int32(shard + 8, 0);
    CHECK(open_memory("x.bin", shard, 1024, bytes) == NULL);
    put_int32(shard + 8, 3);
    put_int32(shard + 4, 7);
    CHECK(open_memory("x.bin", shard, size, bytes) == NULL);
    CHECK(strstr(err, "begins with 20240520, version 7; expected a token shard: 20240520, version 1") != NULL);
    put_int32(shard, 20240328);
    CHECK(open_memory("x.bin", shard, size, bytes) == NULL && strstr(err, "begins with 20240328"));
    free(shard);
    static const uint32_t negative[] = {128000, 0x80000000u};
    shard = make_shard(negative, 2, 4, &size);
    CHECK(open_memory("x.bin", shard, size, bytes) == NULL && strstr(err, "above 2147483647"));
    free(shard);
}

// ---- BPE

static void text_is_encoded_by_the_vocabulary(void) {
    make_directory("enc");
    put_text("enc/1", "ababab ab");
    put_text("enc/2", "x");
    put_text("more.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"\\u0061bab\"}\n");
    const char* paths[] = {path_of("enc"), path_of("more.jsonl"), path_of("own.bin")};
    static const uint32_t tokens[] = {259, 257};
    static const char* const expected[] = {"|<257><256><258>", "|x", "|<256>", "|<257>", "|<257>"};
    put_shard("own.bin", tokens, COUNT(tokens), 2);
    Docs* docs = NULL;
    CHECK(docs_open(&docs, paths, 3, bpe, err, sizeof err) == 0);
    CHECK(docs_count(docs) == COUNT(expected) && docs_end_of_text(docs) == 259 && docs_max_token(docs) == 259);
    for (int i = 0; i < COUNT(expected); i++) CHECK_STRING(document(docs, i), expected[i]);
    CHECK(docs_hash(docs, 3) == docs_hash(docs, 4));  // the same tokens, encoded and from a shard
    docs_close(docs);
}

// Above one megabyte text is encoded in blocks; the tokens must not show where they end.
static void text_encoded_in_blocks_is_as_if_at_once(void) {
    size_t n = (5 << 20) + 12345;
    char* text = malloc(n);
    int* expected = malloc(n * sizeof *expected);
    for (int spaced = 0; spaced < 2; spaced++) {  // without spaces there is no place to cut but the end
        for (size_t i = 0; i < n; i++) text[i] = "ab\n ' .\t"[hash64(i) % (spaced ? 8 : 2)];
        if (spaced) memset(text + (1 << 20) - 500, ' ', 1000);
        size_t n_expected = tokenizer_encode(bpe, expected, text, n);
        put("blocks.txt", text, n);
        Docs* docs = open_one("blocks.txt", bpe);
        CHECK(docs_length(docs, 0) == (int64_t)n_expected + 1);
        int* tokens = malloc((n_expected + 1) * sizeof *tokens);
        CHECK(docs_read(docs, 0, 0, (int)n_expected + 1, tokens, err, sizeof err) == 0);
        CHECK(tokens[0] == 259 && memcmp(tokens + 1, expected, n_expected * sizeof *tokens) == 0);
        free(tokens);
        docs_close(docs);
    }
    remove_tree("blocks.txt");
    free(text);
    free(expected);
}

// ---- what is refused

static void paths_without_a_corpus_are_refused(void) {
    make_directory("void");
    put_text("empty.txt", "");
    put("junk.txt", "text\0", 5);
    put_text("blank.jsonl", "\n\n");
    put_text("nothing.jsonl", "{\"text\":\"\"}\n");
    static const struct {
        const char *name, *message;
    } cases[] = {
        {"void", "void: no text file in this directory (0 files passed over"},
        {"missing.txt", "missing.txt: No such file or directory"},
        {"*.nothing", "*.nothing: no file matches this pattern"},
        {"empty.txt", "empty.txt: is empty"},
        {"junk.txt", "junk.txt: is not text, byte 4 is zero"},
        {"a.txt/b", "a.txt/b: Not a directory"},
        {"tree/fifo", "tree/fifo: is not a regular file"},
        {"blank.jsonl", "the corpus has no text: 0 documents in 1 files"},
        {"nothing.jsonl", "the corpus has no text: 1 documents in 1 files, each a single token"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        CHECK(open_one(cases[i].name, bytes) == NULL);
        if (!strstr(err, cases[i].message)) printf("    %s: %s\n", cases[i].name, err);
        CHECK(strstr(err, cases[i].message) != NULL);
    }
    Docs* docs;
    CHECK(docs_open(&docs, NULL, 0, bytes, err, sizeof err) == -1);
    CHECK_STRING(err, "no corpus given");
    const char* paths[] = {path_of("a.txt"), path_of("missing.txt")};
    CHECK(docs_open(&docs, paths, 2, bytes, err, sizeof err) == -1 && docs == NULL);
}

static void corpora_of_different_vocabularies_are_not_mixed(void) {
    static const uint32_t tokens[] = {50256, 1}, wide[] = {128000, 1};
    put_shard("mix.bin", tokens, 2, 2);
    put_shard("mix_wide.bin", wide, 2, 4);
    static const char* const pairs[][2] = {
        {"a.txt", "mix.bin"}, {"mix.bin", "a.txt"}, {"a.jsonl", "mix.bin"}, {"mix_wide.bin", "mix.bin"}};
    for (int i = 0; i < COUNT(pairs); i++) {
        Docs* docs;
        const char* paths[] = {path_of(pairs[i][0]), path_of(pairs[i][1])};
        CHECK(docs_open(&docs, paths, 2, bytes, err, sizeof err) == -1);
        CHECK(strstr(err, "cannot be one corpus") || strstr(err, "both cannot be one corpus"));
        CHECK(strstr(err, pairs[i][0]) && strstr(err, pairs[i][1]));
    }
}

static void wrong_documents_are_refused(void) {
    Docs* docs = open_one("a.txt", bytes);
    int token;
    CHECK(docs_read(docs, -1, 0, 1, &token, err, sizeof err) == -1);
    CHECK(docs_read(docs, 1, 0, 1, &token, err, sizeof err) == -1);
    CHECK(docs_read(docs, 0, INT64_MAX, 1, &token, err, sizeof err) == -1);
    CHECK(docs_read(docs, 0, 0, -1, &token, err, sizeof err) == -1);
    docs_close(docs);
}

// ---- hashes

static void equal_documents_hash_equally_wherever_they_lie(void) {
    make_directory("same");
    put_text("same/a", "one and the same");
    put_text("same/b", "another document");
    put_text("same.jsonl", "{\"text\":\"one and \\u0074he same\"}\n{\"text\":\"one and the samE\"}\n");
    const char* paths[] = {path_of("same"), path_of("same.jsonl")};
    Docs* docs = NULL;
    CHECK(docs_open(&docs, paths, 2, bytes, err, sizeof err) == 0);
    CHECK(docs_hash(docs, 0) == docs_hash(docs, 2));
    CHECK(docs_hash(docs, 0) != docs_hash(docs, 1) && docs_hash(docs, 0) != docs_hash(docs, 3));
    docs_close(docs);
}

static uint64_t fingerprint(const char* name) {
    Docs* docs = open_one(name, bytes);
    uint64_t h = docs_fingerprint(docs);
    docs_close(docs);
    return h;
}

static void the_fingerprint_tells_corpora_apart(void) {
    make_directory("print");
    put_text("print/1", "first");
    put_text("print/2", "second");
    uint64_t before = fingerprint("print");
    CHECK(before == fingerprint("print"));
    CHECK(rename(path_of("print/1"), path_of("print/0")) == 0);
    CHECK(fingerprint("print") == before);  // names do not count, order does
    CHECK(rename(path_of("print/0"), path_of("print/3")) == 0);
    CHECK(fingerprint("print") != before);
    put_text("print/3", "First");
    CHECK(fingerprint("print") != before);
}

int main(void) {
    // Holes of sparse files are read fastest in a file system that is memory.
    const char* below = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(root, sizeof root, "%s/test_docs_XXXXXX", below);
    if (!mkdtemp(root) || tokenizer_open(&bytes, NULL, err, sizeof err)) return 1;
    bpe = make_bpe();
    RUN(a_text_file_is_one_document);
    RUN(a_directory_is_read_in_byte_order_of_paths);
    RUN(unreadable_files_of_a_directory_are_passed_over);
    RUN(many_small_files_need_few_descriptors);
    RUN(patterns_and_paths_are_taken_in_order);
    RUN(a_document_may_be_longer_than_an_int);
    RUN(a_file_that_shrank_is_told);
    RUN(each_line_of_jsonl_is_a_document);
    RUN(long_lines_and_escapes_cross_every_buffer);
    RUN(a_broken_line_of_jsonl_is_named);
    RUN(every_truncated_prefix_of_jsonl_is_survived);
    RUN(a_shard_is_cut_at_each_end_of_text);
    RUN(wide_shards_have_the_end_of_text_of_llama_3);
    RUN(shards_of_a_tokenizer_are_cut_at_its_end_of_text);
    RUN(documents_longer_than_the_search_block_are_whole);
    RUN(the_last_document_of_a_shard_of_3_gib_is_read);
    RUN(every_truncated_prefix_of_a_shard_is_refused);
    RUN(wrong_shards_are_refused_with_what_was_found);
    RUN(text_is_encoded_by_the_vocabulary);
    RUN(text_encoded_in_blocks_is_as_if_at_once);
    RUN(paths_without_a_corpus_are_refused);
    RUN(corpora_of_different_vocabularies_are_not_mixed);
    RUN(wrong_documents_are_refused);
    RUN(equal_documents_hash_equally_wherever_they_lie);
    RUN(the_fingerprint_tells_corpora_apart);
    remove_tree("");
    tokenizer_close(bytes);
    tokenizer_close(bpe);
    return test_done();
}
