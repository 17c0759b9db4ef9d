// test_docs.c - a corpus of text gives the documents that its files hold, in a fixed order, and refuses what it cannot
// read.
#define _GNU_SOURCE
#include "data/docs.h"

#include <fcntl.h>
#include <limits.h>

#include "data/docs_format.h"
#include "test/corpus.h"

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

static void a_separator_divides_a_text_file(void) {
    static const char* const expected[] = {"|One.\n", "|Two ", "|Three <|endoftex"};
    const Tokenizer* both[] = {bytes, bpe};
    put_text("tales.txt", "<|endoftext|>\nOne.\n<|endoftext|>\r\nTwo <|endoftext|><|endoftext|>Three <|endoftex");
    for (int t = 0; t < 2; t++) {
        Docs* docs = open_one("tales.txt", both[t]);
        CHECK(docs && docs_count(docs) == COUNT(expected) && docs_divided(docs) == 3);
        for (int i = 0; docs && i < COUNT(expected); i++) CHECK_STRING(document(docs, i), expected[i]);
        docs_close(docs);
        docs = open_one_as("tales.txt", both[t], (DocsReading){.separator = "none"});
        CHECK(docs && docs_count(docs) == 1 && docs_length(docs, 0) == 81 && docs_divided(docs) == 0);
        docs_close(docs);
        docs = open_one_as("tales.txt", both[t], (DocsReading){.separator = "Two"});
        CHECK(docs && docs_count(docs) == 2 && docs_divided(docs) == 2);
        docs_close(docs);
    }
    CHECK(!open_one_as("tales.txt", bytes, (DocsReading){.separator = ""}) && strstr(err, "separator of 1 to 256"));
}

static void a_separator_is_found_wherever_blocks_end(void) {
    enum { BLOCK = 1 << 20 };
    static char text[BLOCK + 64];
    for (int cut = 0; cut <= 16;
         cut += 1 + (cut == 1) * 10) {  // so much of it, and a line break, is in the first block
        int before = BLOCK - cut;
        for (int i = 0; i < before; i++) text[i] = i % 7 ? 'x' : ' ';
        strcpy(text + before, "<|endoftext|>\n\nthe end");
        put_text("blocks.txt", text);
        Docs* docs = open_one("blocks.txt", cut % 2 ? bpe : bytes);
        CHECK(docs && docs_count(docs) == 2 && docs_length(docs, 0) == before + 1);
        CHECK_STRING(docs ? document(docs, 1) : err, "|the end");
        docs_close(docs);
    }
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

// What a run writes where documents are.
static void put_run(const char* name, const char* marker, const char* content) {
    char path[128];
    make_directory(name);
    snprintf(path, sizeof path, "%s/%s", name, marker);
    put_text(path, content);
    snprintf(path, sizeof path, "%s/log.jsonl", name);
    put_text(path, "{\"step\": 1}");
}

static void runs_below_a_directory_are_left_out_of_a_corpus(void) {
    make_directory("mixed");
    put_text("mixed/text", "a text");
    make_directory("mixed/runs");
    put_text("mixed/runs/notes", "kept");
    Docs* docs = open_one("mixed", bytes);
    uint64_t shape = docs_fingerprint(docs), all = docs_content(docs);
    CHECK(docs_runs(docs) == 0);
    docs_close(docs);
    put_run("mixed/runs/0", "RUN", "{\"ragged run\": 1, \"pid\": 17}");
    put_run("mixed/runs/0/step-000100", "DONE", "{\"step\": 100}");
    put_run("mixed/moved", "DONE", "{\"step\": 100}");
    docs = open_one("mixed", bytes);
    CHECK(docs_files(docs) == 2 && docs_runs(docs) == 2 && docs_skipped(docs) == 0);
    CHECK(docs_fingerprint(docs) == shape && docs_content(docs) == all);
    docs_close(docs);
    // What only looks like one is text.
    put_run("mixed/other", "RUN", "{\"ragged\"");
    put_run("mixed/done", "DONE", "all of it");
    make_directory("mixed/a");
    make_directory("mixed/a/RUN");
    docs = open_one("mixed", bytes);
    CHECK(docs_files(docs) == 6 && docs_runs(docs) == 2);
    docs_close(docs);
    CHECK(!open_one("mixed/runs/0", bytes) && strstr(err, "mixed/runs/0") && strstr(err, "another --data"));
    CHECK(!open_one("mixed/runs/0/step-000100", bytes) && strstr(err, "a checkpoint of this program"));
    CHECK(remove(path_of("mixed/runs/notes")) == 0 && !open_one("mixed/runs", bytes) && strstr(err, "1 runs left out"));
    docs = open_one("mixed/runs/0/log.jsonl", bpe);  // a file that is named is read
    CHECK(!docs && strstr(err, "no member \"text\""));
    remove_tree("mixed");
}

static void patterns_and_paths_are_taken_in_order(void) {
    make_directory("pat");
    put_text("pat/2.txt", "two");
    put_text("pat/10.txt", "ten");
    put_text("pat/x[1].txt", "brackets");
    for (const char* d = "5394867"; *d; d++) put_text((char[]){'p', 'a', 't', '/', *d, 0}, (char[]){*d, 0});
    const char* paths[] = {path_of("pat/x[1].txt"), path_of("pat/*0.txt"), path_of("pat/?.txt"), path_of("pat/[0-9]")};
    static const char* const expected[] = {"|brackets", "|ten", "|two", "|3", "|4", "|5", "|6", "|7", "|8", "|9"};
    Docs* docs = NULL;
    CHECK(docs_open(&docs, paths, 4, bytes, err, sizeof err) == 0);
    CHECK(docs_count(docs) == COUNT(expected));
    for (int i = 0; i < COUNT(expected); i++) CHECK_STRING(document(docs, i), expected[i]);
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
                                           "|A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \xc3\xa9", "|",
                                           "|no newline at the end"};
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
            if (i >= shift && (i < N / 2 || i % 9 == 0) && i + 4 < N) {
                memcpy(text + i, "\xf0\x9f\x98\x80", 4);
                p += sprintf(p, "\\ud83d\\ude00");
                i += 3;
            } else if (i >= shift && i % 7 == 3) {
                text[i] = '\n';
                p += sprintf(p, i % 2 ? "\\n" : "\\u000a");
            } else {
                *p++ = text[i];
            }
        }
        p += sprintf(p, "\"}\n{\"text\":\"behind\"}\n");
        put("long.jsonl", file, (size_t)(p - file));
        Docs* docs = open_one("long.jsonl", bytes);
        CHECK(docs_count(docs) == 3 && docs_length(docs, 1) == N + 1);
        CHECK(docs_read(docs, 1, 0, N + 1, tokens, err, sizeof err) == 0);
        int same = 0;
        for (int i = 0; i < N; i++) same += tokens[i + 1] == (unsigned char)text[i];
        CHECK(same == N);
        for (int first = 1; first < N - 50; first += 211) {
            CHECK(docs_read(docs, 1, first, 50, tokens, err, sizeof err) == 0);
            for (int i = 0; i < 50; i++) CHECK(tokens[i] == (unsigned char)text[first - 1 + i]);
        }
        CHECK(docs_read(docs, 1, N - 99, 100, tokens, err, sizeof err) == 0);
        for (int i = 0; i < 100; i++) CHECK(tokens[i] == (unsigned char)text[N - 100 + i]);
        CHECK_STRING(document(docs, 2), "|behind");
        docs_close(docs);
    }
    free(text);
    free(file);
    free(tokens);
}

// Going there from the beginning of the line each time would take a minute.
static void the_end_of_a_long_line_is_read_at_once(void) {
    enum { N = 16 << 20 };
    char *file = malloc(N + 100), *p = file + sprintf(file, "{\"text\":\"");
    for (int i = 0; i < N; i++) *p++ = (char)('a' + i % 26);
    p += sprintf(p, "\"}\n");
    put("longest.jsonl", file, (size_t)(p - file));
    free(file);
    Docs* docs = open_one("longest.jsonl", bytes);
    int token;
    double begin = now_seconds();
    for (int i = 0; i < 2000; i++) {
        CHECK(docs_read(docs, 0, N - i, 1, &token, err, sizeof err) == 0);
        CHECK(token == 'a' + (N - i - 1) % 26);
    }
    CHECK(now_seconds() - begin < 5);  // a tenth of a second without sanitizers
    docs_close(docs);
}

static void a_broken_line_of_jsonl_is_named(void) {
    static const struct {
        const char *content, *message;
    } cases[] = {
        {"{\"text\":\"a\"}\n{\"text\":\"b\"\n", "broken.jsonl:2: "},
        {"{\"text\":\"a\"}\n\n{\"txet\":\"b\"}\n", "broken.jsonl:3: no member \"text\""},
        {"{\"text\":\"a\"}\n{\"text\":5}\n", "broken.jsonl:2: the member \"text\" is not a string"},
        {"{\"text\":null}", "broken.jsonl:1: the member \"text\" is not a string"},
        {"[\"text\", \"a\"]\n", "broken.jsonl: expected text or JSONL, found a JSON array"},
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
        CHECK(opens("x.jsonl", file, n, bytes) == whole);
        CHECK(opens("x.jsonl", file, n, bpe) == whole);
    }
}

static void a_line_that_changed_is_told(void) {
    put_text("changes.jsonl", "{\"text\":\"0123456789\"}\n");
    Docs* docs = open_one("changes.jsonl", bytes);
    static const char* const contents[] = {"{\"text\":\"01234\"}     \n", "{\"text\":\"01234\\u00g\"}\n",
                                           "{\"text\":\"01234567\\xyz\n"};
    int tokens[11];
    for (int i = 0; i < COUNT(contents); i++) {
        put_text("changes.jsonl", contents[i]);
        CHECK(docs_read(docs, 0, 0, 6, tokens, err, sizeof err) == 0);
        CHECK(docs_read(docs, 0, 0, 11, tokens, err, sizeof err) == -1);
        CHECK(strstr(err, "changes.jsonl: ") &&
              (strstr(err, "has changed since") || strstr(err, "when it was opened")));
    }
    docs_close(docs);
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

static void documents_of_another_length_hash_otherwise(void) {
    char text[2 * DOCS_HEAD_BYTES];
    memset(text, 'a', sizeof text);
    make_directory("long");
    put("long/1", text, DOCS_HEAD_BYTES + 1);
    put("long/2", text, DOCS_HEAD_BYTES + 2);
    put("long/3", text, DOCS_HEAD_BYTES + 2);
    Docs* docs = open_one("long", bytes);
    CHECK(docs_hash(docs, 0) != docs_hash(docs, 1) && docs_hash(docs, 1) == docs_hash(docs, 2));
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

static uint64_t content(const char* name, const Tokenizer* tokenizer) {
    Docs* docs = open_one(name, tokenizer);
    uint64_t h = docs ? docs_content(docs) : 0;
    docs_close(docs);
    return h;
}

// Of a file of n bytes, some from first .. last, both among them, are flipped one after another.
static void check_every_byte_counts(const char* name, const Tokenizer* tokenizer, unsigned char* file, size_t n,
                                    size_t first, size_t last) {
    enum { FLIPS = 30 };
    put(name, file, n);
    uint64_t before = content(name, tokenizer);
    CHECK(before != 0 && before == content(name, tokenizer));
    for (size_t k = 0; k <= FLIPS; k++) {
        unsigned char* byte = &file[first + (last - first) * k / FLIPS];
        *byte ^= 1;
        put(name, file, n);
        CHECK(content(name, tokenizer) != before);
        *byte ^= 1;
    }
}

static void a_changed_byte_anywhere_changes_the_content(void) {
    enum { BYTES = 300002, HEADER = 1024, OPEN = 10, CLOSE = 3 };
    static unsigned char text[BYTES], line[OPEN + BYTES + CLOSE], shard[HEADER + BYTES];
    for (int i = 0; i < BYTES; i++) text[i] = (unsigned char)"`bd "[hash64((uint64_t)i) % 4];
    memcpy(line, "{\"text\": \"", OPEN);
    memcpy(line + OPEN, text, BYTES);
    memcpy(line + OPEN + BYTES, "\"}\n", CLOSE);
    put_int32(shard, 20240520);
    put_int32(shard + 4, 1);
    put_int32(shard + 8, BYTES / 2);
    memcpy(shard + HEADER, text, BYTES);
    check_every_byte_counts("all.txt", bytes, text, BYTES, 0, BYTES - 1);
    check_every_byte_counts("all.txt", bpe, text, BYTES, 0, BYTES - 1);
    check_every_byte_counts("all.jsonl", bytes, line, sizeof line, OPEN, OPEN + BYTES - 1);
    check_every_byte_counts("all.jsonl", bpe, line, sizeof line, OPEN, OPEN + BYTES - 1);
    check_every_byte_counts("all.bin", bytes, shard, sizeof shard, HEADER, HEADER + BYTES - 1);
}

static void equal_documents_have_one_content_wherever_they_lie(void) {
    put_text("one.jsonl",
             "{\"text\":\"first\"}\n{\"text\":\"a second one that is longer than a block of 32 bytes\"}\n");
    make_directory("two");
    put_text("two/1", "first");
    put_text("two/2", "a second one that is longer than a block of 32 bytes");
    uint64_t whole = content("one.jsonl", bytes);
    CHECK(content("two", bytes) == whole && content("two", bpe) == whole && content("one.jsonl", bpe) == whole);
    put_text("one.jsonl",
             "{\"text\":\"firsta\"}\n{\"text\":\" second one that is longer than a block of 32 bytes\"}\n");
    CHECK(content("one.jsonl", bytes) != whole);  // cut elsewhere
    put_text("one.jsonl",
             "{\"text\":\"a second one that is longer than a block of 32 bytes\"}\n{\"text\":\"first\"}\n");
    CHECK(content("one.jsonl", bytes) != whole);  // another order
}

int main(void) {
    corpus_begin();
    RUN(a_text_file_is_one_document);
    RUN(a_separator_divides_a_text_file);
    RUN(a_separator_is_found_wherever_blocks_end);
    RUN(a_directory_is_read_in_byte_order_of_paths);
    RUN(unreadable_files_of_a_directory_are_passed_over);
    RUN(many_small_files_need_few_descriptors);
    RUN(runs_below_a_directory_are_left_out_of_a_corpus);
    RUN(patterns_and_paths_are_taken_in_order);
    RUN(a_document_may_be_longer_than_an_int);
    RUN(a_file_that_shrank_is_told);
    RUN(each_line_of_jsonl_is_a_document);
    RUN(long_lines_and_escapes_cross_every_buffer);
    RUN(the_end_of_a_long_line_is_read_at_once);
    RUN(a_broken_line_of_jsonl_is_named);
    RUN(every_truncated_prefix_of_jsonl_is_survived);
    RUN(a_line_that_changed_is_told);
    RUN(paths_without_a_corpus_are_refused);
    RUN(wrong_documents_are_refused);
    RUN(equal_documents_hash_equally_wherever_they_lie);
    RUN(documents_of_another_length_hash_otherwise);
    RUN(the_fingerprint_tells_corpora_apart);
    RUN(a_changed_byte_anywhere_changes_the_content);
    RUN(equal_documents_have_one_content_wherever_they_lie);
    return corpus_end();
}
