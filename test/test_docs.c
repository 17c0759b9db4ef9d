// test_docs.c - a corpus of text gives the documents that its files hold, in a fixed order, and refuses what it cannot
// read.
#define _GNU_SOURCE
#include "data/docs_files.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "data/run_dir.h"
#include "test/corpus.h"

// ---- text

CLAIM(a_text_file_is_one_document) {
    put_text("a.txt", "hello\n");
    Docs* docs = open_one("a.txt", bytes);
    CHECK(docs_tokens(docs) == 7 && docs_length(docs, 0) == 7 && docs->more->facts.files == 1 && docs->skipped.n == 0);
    CHECK(docs->max_token == 256 && docs->end_of_text == 256);
    CHECK_DOCUMENTS(docs, "|hello\n");
    docs_close(NULL);
}

CLAIM(a_separator_divides_a_text_file) {
    static const struct {
        const char* separator;
        int divided, documents, first;  // length of the first
    } cases[] = {{NULL, 3, 3, 6}, {"none", 0, 1, 81}, {"Two", 2, 2, 35}};
    const Tokenizer* both[] = {bytes, bpe};
    put_text("tales.txt", "<|endoftext|>\nOne.\n<|endoftext|>\r\nTwo <|endoftext|><|endoftext|>Three <|endoftex");
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < COUNT(cases); i++) {
            Docs* docs = open_one_as("tales.txt", both[t], (DocsReading){.separator = cases[i].separator});
            CHECK(docs && docs->divided == cases[i].divided && docs->n == cases[i].documents);
            CHECK(docs && docs_length(docs, 0) == cases[i].first);
            docs_close(docs);
        }
        CHECK_DOCUMENTS(open_one("tales.txt", both[t]), "|One.\n", "|Two ", "|Three <|endoftex");
    }
    CHECK(!open_one_as("tales.txt", bytes, (DocsReading){.separator = ""}) && strstr(err, "separator of 1 to 256"));
}

CLAIM(a_separator_is_found_wherever_blocks_end) {
    enum { BLOCK = 1 << 20 };
    static const int cuts[] = {0, 1, 12, 13, 14, 15, 16};  // so much of it, and a line break, is in the first block
    static char text[BLOCK + 64];
    for (int c = 0; c < COUNT(cuts); c++) {
        int before = BLOCK - cuts[c];
        for (int i = 0; i < before; i++) text[i] = i % 7 ? 'x' : ' ';
        strcpy(text + before, "<|endoftext|>\n\nthe end");
        put_text("blocks.txt", text);
        Docs* docs = open_one("blocks.txt", c % 2 ? bpe : bytes);
        CHECK(docs && docs->n == 2 && docs_length(docs, 0) == before + 1);
        CHECK_STRING(docs ? document(docs, 1) : err, "|the end");
        docs_close(docs);
    }
}

CLAIM(a_directory_is_read_in_byte_order_of_paths) {
    CHECK(shell("cd $W && mkdir -p tree/b/deep tree/.hidden && cd tree && printf bz > b/z && printf deep > b/deep/y && "
                "printf 'dot comes before slash' > b.c && printf capital > B && printf accent > \xc3\xa9 && "
                "printf hidden | tee .hidden/x > .hidden_too && : > empty && printf 'text\\0text' > junk && "
                "ln -s b/z c_link && ln -s .. b/loop && ln -s nowhere b/dangling && mkfifo fifo") == 0);
    Docs* docs = open_one("tree", bytes);
    CHECK(docs && docs->skipped.n == 2);
    CHECK_DOCUMENTS(docs, "|capital", "|dot comes before slash", "|deep", "|bz", "|bz", "|accent");
}

CLAIM(unreadable_files_of_a_directory_are_passed_over) {
    if (geteuid() == 0) SKIP("root can read every file");
    CHECK(shell("mkdir -p $W/locked/dir && cd $W/locked && echo readable > a && echo no > b && chmod 0 b dir") == 0);
    Docs* docs = open_one("locked", bytes);
    CHECK(docs->n == 1 && docs->skipped.n == 2);
    docs_close(docs);
    check_refused("locked/b", bytes, "locked/b: Permission denied");
    CHECK(chmod(path_of("locked/dir"), 0777) == 0);
}

CLAIM(runs_below_a_directory_are_left_out_of_a_corpus) {
    CHECK(shell("mkdir -p $W/mixed/runs && cd $W/mixed && printf 'a text' > text && printf kept > runs/notes") == 0);
    Docs* docs = open_one("mixed", bytes);
    uint64_t shape = docs_fingerprint(docs), all = docs_content(docs);
    CHECK(docs->more->facts.runs == 0);
    docs_close(docs);
    CHECK(shell("cd $W/mixed && put() { mkdir -p $1; echo \"$3\" > $1/$2; echo '{\"step\": 1}' > $1/log.jsonl; }; "
                "put runs/0 RUN '{\"ragged run\": \"process 17\"}'; put moved DONE '{\"step\": 100}'; "
                "put runs/0/step-000100 DONE '{\"step\": 100}'") == 0);
    docs = open_one("mixed", bytes);
    CHECK(docs->more->facts.files == 2 && docs->more->facts.runs == 2 && docs->skipped.n == 0);
    CHECK(docs_fingerprint(docs) == shape && docs_content(docs) == all);
    docs_close(docs);
    CHECK(shell("cd $W/mixed && mkdir -p other done a/RUN && echo '{\"ragged\"' > other/RUN && "
                "echo 'all of it' > done/DONE && cp moved/log.jsonl other && cp moved/log.jsonl done") == 0);
    docs = open_one("mixed", bytes);
    CHECK(docs->more->facts.files == 6 && docs->more->facts.runs == 2);  // what only looks like one is text
    docs_close(docs);
    check_refused("mixed/runs/0", bytes, "mixed/runs/0");
    CHECK(strstr(err, "another --data"));
    check_refused("mixed/runs/0/step-000100", bytes, "a checkpoint of this program");
    CHECK(remove(path_of("mixed/runs/notes")) == 0);
    check_refused("mixed/runs", bytes, "1 runs left out");
    check_refused("mixed/runs/0/log.jsonl", bpe, "no member \"text\"");  // a file that is named is read
    remove_tree("mixed");
}

// That no file can be opened says nothing about whose directory this is.
CLAIM(a_run_is_not_learnt_from_where_files_cannot_be_opened) {
    struct rlimit before, none;
    CHECK(mkdir(path_of("started"), 0777) == 0);
    put_text("started/RUN", "{\"ragged run\": \"process 1\"}\n");
    CHECK(run_dir_is_ours(path_of("started"), err) == 1 && getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before, none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
    int is = run_dir_is_ours(path_of("started"), err);
    setrlimit(RLIMIT_NOFILE, &before);
    CHECK(is == -1 && strstr(err, "Too many open files"));
}

CLAIM(patterns_and_paths_are_taken_in_order) {
    CHECK(shell("mkdir $W/pat && cd $W/pat && printf two > 2.txt && printf ten > 10.txt && "
                "printf brackets > 'x[1].txt' && for d in 5 3 9 4 8 6 7; do printf $d > $d; done") == 0);
    CHECK_DOCUMENTS(OPEN_PATHS(bytes, "pat/x[1].txt", "pat/*0.txt", "pat/?.txt", "pat/[0-9]"), "|brackets", "|ten",
                    "|two", "|3", "|4", "|5", "|6", "|7", "|8", "|9");
}

CLAIM(a_document_may_be_longer_than_an_int) {
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
    CHECK(docs_read(docs, 0, size - 5, 6, tokens, err) == 0);
    CHECK(tokens[0] == 0 && tokens[1] == 0 && tokens[2] == 'l' && tokens[5] == 't');
    CHECK(docs_read(docs, 0, size - 4, 6, tokens, err) == -1);
    docs_close(docs);
    remove_tree("huge.txt");
}

// Of a corpus of one document of ten letters: the first five can be read still.
CLAIM(a_file_that_shrank_is_told) {
    int tokens[11];
    put_text("c.txt", "0123456789");
    Docs* docs = open_one("c.txt", bytes);
    put_text("c.txt", "0123");
    CHECK(docs_read(docs, 0, 0, 5, tokens, err) == 0);
    CHECK(docs_read(docs, 0, 0, 11, tokens, err) == -1);
    CHECK_STRING(strstr(err, "c.txt: "), "c.txt: ends at byte 4, it had 10 when it was opened");
    docs_close(docs);
}

// ---- JSONL

CLAIM(each_line_of_jsonl_is_a_document) {
    put_text("a.jsonl",
             "{\"id\": 7, \"text\": \"plain\"}\n"
             "  \r\n"
             "{\"text\": \"tab\\t quote\\\" slash\\/ back\\\\ \\b\\f\\n\\r end\", \"more\": [1, {\"text\": 2}]}\r\n"
             "{\"text\":\"\\u0041\\u00e9\\u20ac\\ud83d\\ude00 \xc3\xa9\"}\n"
             "{\"text\":\"\"}\n"
             "{\"text\":\"no newline at the end\"}");
    CHECK_DOCUMENTS(open_one("a.jsonl", bytes), "|plain", "|tab\t quote\" slash/ back\\ \b\f\n\r end",
                    "|A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \xc3\xa9", "|", "|no newline at the end");
}

CLAIM(long_lines_and_escapes_cross_every_buffer) {
    enum { N = 50000 };
    char *text = malloc(N), *file = malloc(12 * N + 1000);
    int* tokens = malloc((N + 1) * sizeof *tokens);
    for (int shift = 0; shift < 13; shift++) {  // escapes then straddle the ends of buffers at every place
        char* p = file + sprintf(file, "{\"text\":\"short\"}\n{\"text\":\"");
        for (int i = 0; i < N; i++) {
            text[i] = (char)('a' + i % 26);
            if (i >= shift && (i < N / 2 || i % 9 == 0) && i + 4 < N) {
                memcpy(text + i, "\xf0\x9f\x98\x80", 4);
                p = stpcpy(p, "\\ud83d\\ude00");
                i += 3;
            } else if (i >= shift && i % 7 == 3) {
                text[i] = '\n';
                p = stpcpy(p, i % 2 ? "\\n" : "\\u000a");
            } else *p++ = text[i];
        }
        p = stpcpy(p, "\"}\n{\"text\":\"behind\"}\n");
        write_text("long.jsonl", file, (size_t)(p - file));
        Docs* docs = open_one("long.jsonl", bytes);
        CHECK(docs->n == 3 && docs_length(docs, 1) == N + 1);
        CHECK(docs_read(docs, 1, 0, N + 1, tokens, err) == 0);
        for (int i = 0; i < N; i++) CHECK(tokens[i + 1] == (unsigned char)text[i]);
        for (int first = 1; first <= N - 50; first = first == N - 50 ? N : MIN(first + 211, N - 50)) {
            CHECK(docs_read(docs, 1, first, 50, tokens, err) == 0);
            for (int i = 0; i < 50; i++) CHECK(tokens[i] == (unsigned char)text[first - 1 + i]);
        }
        CHECK_STRING(document(docs, 2), "|behind");
        docs_close(docs);
    }
    free(text), free(file), free(tokens);
}

// Going there from the beginning of the line each time would take a minute.
CLAIM(the_end_of_a_long_line_is_read_at_once) {
    enum { N = 16 << 20 };
    char *file = malloc(N + 100), *p = file + sprintf(file, "{\"text\":\"");
    for (int i = 0; i < N; i++) *p++ = (char)('a' + i % 26);
    p += sprintf(p, "\"}\n");
    write_text("longest.jsonl", file, (size_t)(p - file));
    free(file);
    Docs* docs = open_one("longest.jsonl", bytes);
    int token;
    double begin = now_seconds();
    for (int i = 0; i < 2000; i++) {
        CHECK(docs_read(docs, 0, N - i, 1, &token, err) == 0);
        CHECK(token == 'a' + (N - i - 1) % 26);
    }
    CHECK(now_seconds() - begin < 5);  // a tenth of a second without sanitizers
    docs_close(docs);
}

CLAIM(a_broken_line_of_jsonl_is_named) {
    static const char* const cases[][2] = {
        {"{\"text\":\"a\"}\n{\"text\":\"b\"\n", "broken.jsonl:2: "},
        {"{\"text\":\"a\"}\n\n{\"txet\":\"b\"}\n", "broken.jsonl:3: no member \"text\""},
        {"{\"text\":\"a\"}\n{\"text\":5}\n", "broken.jsonl:2: the member \"text\" is not a string"},
        {"{\"text\":null}", "broken.jsonl:1: the member \"text\" is not a string"},
        {"[\"text\", \"a\"]\n", "broken.jsonl: expected text or JSONL, found a JSON array"},
        {"\"text\"\n", "broken.jsonl:1: no member \"text\""},
        {"{\"text\":\"\\ud80\"}\n", "broken.jsonl:1: "},
        {"{\"text\":\"a\"} {\"text\":\"b\"}\n", "broken.jsonl:1: "},
        {"not JSON at all\n", "broken.jsonl:1: "},
    };
    for (int i = 0; i < COUNT(cases); i++)
        put_text("broken.jsonl", cases[i][0]), check_refused("broken.jsonl", bytes, cases[i][1]);
}

CLAIM(every_truncated_prefix_of_jsonl_is_survived) {
    static const char file[] = "{\"a\":1,\"text\":\"x\\u0041\\ud83d\\ude00\\n\"}\n{\"text\":\"yz\"}\n";
    for (size_t n = 0; n < sizeof file; n++) {
        int whole = n == 38 || n == 39 || n == 52 || n == 53;  // behind either line, with and without its newline
        CHECK(opens("x.jsonl", file, n, bytes) == whole);
        CHECK(opens("x.jsonl", file, n, bpe) == whole);
    }
}

// Lines are unescaped at opening.
CLAIM(a_line_that_changes_later_is_read_as_it_was) {
    put_text("changes.jsonl", "{\"text\":\"0123456789\"}\n");
    Docs* docs = open_one("changes.jsonl", bytes);
    put_text("changes.jsonl", "{\"text\":\"01234\\u00g\"}\n");
    CHECK_DOCUMENTS(docs, "|0123456789");
}

// ---- text that others wrote: UTF-16, byte order marks, bytes that are no UTF-8

CLAIM(utf_16_and_byte_order_marks_read_as_the_same_text) {
    static const struct {
        const char* bytes;
        size_t n;
    } files[] = {{"\xff\xfe"
                  "h\0i\0\xe4\0\x3d\xd8\0\xde\n\0",
                  14},
                 {"\xfe\xff"
                  "\0h\0i\0\xe4\xd8\x3d\xde\0\0\n",
                  14},
                 {"\xef\xbb\xbfhi\xc3\xa4\xf0\x9f\x98\x80\n", 12}};
    const Tokenizer* both[] = {bytes, bpe};
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < COUNT(files); i++) {
            write_text("mark.txt", files[i].bytes, files[i].n);
            CHECK_DOCUMENTS(open_one("mark.txt", both[t]), "|hi\xc3\xa4\xf0\x9f\x98\x80\n");
        }
    put_text("mark.jsonl", "\xef\xbb\xbf\n\xef\xbb\xbf{\"text\": \"first\", \"text\": \"last\"}\n");
    CHECK_DOCUMENTS(open_one("mark.jsonl", bytes), "|last");
    write_text("mark.jsonl", "\xff\xfe{\0\"\0t\0e\0x\0t\0\"\0:\0\"\0y\0\"\0}\0", 26);
    CHECK(shell("mkdir $W/marks && cp $W/mark.jsonl $W/mark.txt $W/marks") == 0);
    CHECK_DOCUMENTS(open_one("marks", bpe), "|y", "|hi\xc3\xa4\xf0\x9f\x98\x80\n");
}

// Halves of pairs: one before another character, one behind, two of a kind, one at a border of blocks, half a unit.
CLAIM(what_no_text_can_hold_is_replaced_and_counted) {
    static char text[(1 << 15) + 16] = "\xff\xfe\0\xd8";
    for (int i = 4; i < COUNT(text) - 1; i += 2) text[i] = 'a';
    memcpy(text + 6, "\0\xdc\0\xd8\0\xd8", 6);
    memcpy(text + (1 << 15), "\x3d\xd8\0\xde\0\xd8", 6);  // the first half ends a block
    write_text("lone.txt", text, COUNT(text) - 1);
    Docs* docs = open_one("lone.txt", bytes);
    CHECK(docs && docs->more->facts.replaced == 6 && docs->n == 1);
    int64_t units = (COUNT(text) - 2) / 2 - 1;
    CHECK(docs && docs_length(docs, 0) == 1 + (units - 5 - 1) + 6 * 3 + 4 - 1);
    docs_close(docs);
    put_text("lone.jsonl",
             "{\"text\":\"\\ud800a\"}\n{\"text\":\"\xe4\"}\n{\"text\":\"\xc3\xa4\"}\n{\"text\":\"\xc3\"}\n");
    docs = open_one("lone.jsonl", bpe);
    CHECK(docs && docs->more->facts.replaced == 1 && docs->more->facts.not_utf8 == 2);
    CHECK_DOCUMENTS(docs,
                    "|\xef\xbf\xbd"
                    "a",
                    "|\xe4", "|\xc3\xa4", "|\xc3");
    put_text("lone.jsonl", "{\"prompt\":\"\\udc00\xe4\", \"completion\":\"\\ud800\"}\n");
    docs = open_one("lone.jsonl", bytes);
    CHECK(docs && docs->more->facts.replaced == 2 && docs->more->facts.not_utf8 == 1);
    docs_close(docs);
}

// ---- what is refused

CLAIM(files_that_are_no_text_are_named_as_what_they_are) {
    static const struct {
        const char *name, *bytes, *found;
    } cases[] = {{"a.csv", "a,b\n1,2\n", "found a table (CSV); try: JSONL"},
                 {"a.TSV", "a\tb\n", "found a table (TSV)"},
                 {"a.json", "\xef\xbb\xbf {\n  \"text\": 1}", "found JSON; try: jq -c . FILE"},
                 {"p.txt", "%PDF-1.4", "found a PDF; try: pdftotext"},
                 {"z", "PK\3\4", "found a zip archive"},
                 {"x.xz",
                  "\xfd"
                  "7zXZ",
                  "found a file compressed by xz; try: unxz"},
                 {"b.txt", "BZh91AY&SY", "found a file compressed by bzip2; try: bunzip2"},
                 {"q", "PAR1", "found a parquet file; try: scripts/parquet_to_shards.py"}};
    make_directory("kinds");
    put_text("kinds/zz.json", "\"a string\"");
    for (int i = 0; i < COUNT(cases); i++) {
        char name[32];
        snprintf(name, sizeof name, "kinds/%s", cases[i].name);
        put_text(name, cases[i].bytes);
        check_refused(name, bytes, cases[i].found);
        Docs* docs = open_one("kinds", bpe);
        int named = 0;
        CHECK(docs && docs->n == 1 && docs->skipped.n == i + 1);
        for (int64_t k = 0; docs && k < docs->skipped.n; k++)
            named |= strstr(docs->skipped.list[k], cases[i].found) != 0;
        CHECK(named);
        docs_close(docs);
    }
    CHECK(shell("rm $W/kinds/zz.json") == 0);
    check_refused("kinds", bytes, "(8 files passed over, 0 runs left out)");
    CHECK(strstr(err, "first passed over: ") && strstr(err, "a.TSV: expected text or JSONL, found a table (TSV)"));
}

CLAIM(paths_without_a_corpus_are_refused) {
    CHECK(shell("cd $W && mkdir void && : > empty.txt && printf 'text\\0' > junk.txt && echo > blank.jsonl && "
                "echo '{\"text\":\"\"}' > nothing.jsonl") == 0);
    static const char* const cases[][2] = {
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
    for (int i = 0; i < COUNT(cases); i++) check_refused(cases[i][0], bytes, cases[i][1]);
    Docs* docs;
    CHECK(docs_open_as(&docs, NULL, 0, bytes, (DocsReading){0}, err) == -1);
    CHECK_STRING(err, "no corpus given");
    CHECK(!OPEN_PATHS(bytes, "a.txt", "missing.txt"));
}

// ---- hashes

CLAIM(equal_documents_hash_equally_wherever_they_lie_and_others_do_not) {
    char text[2 * DOCS_HEAD_BYTES];
    memset(text, 'a', sizeof text);
    make_directory("same");
    put_text("same/a", "one and the same");
    put_text("same/b", "another document");
    put_text("same.jsonl", "{\"text\":\"one and \\u0074he same\"}\n{\"text\":\"one and the samE\"}\n");
    make_directory("long");
    for (int i = 0; i < 3; i++)
        write_text((char[]){'l', 'o', 'n', 'g', '/', (char)('1' + i), 0}, text, DOCS_HEAD_BYTES + 1 + (i > 0));
    Docs* docs = OPEN_PATHS(bytes, "same", "same.jsonl", "long");
    uint64_t h[7];
    for (int d = 0; d < 7; d++) h[d] = docs->list[d].hash;
    CHECK(h[0] == h[2] && h[0] != h[1] && h[0] != h[3]);
    CHECK(h[4] != h[5] && h[5] == h[6]);  // of another length behind what is hashed
    docs_close(docs);
}

static uint64_t fingerprint_after(const char* command) {
    CHECK(shell("mkdir -p $W/print && cd $W/print && %s", command) == 0);
    Docs* docs = open_one("print", bytes);
    uint64_t h = docs_fingerprint(docs);
    docs_close(docs);
    return h;
}

CLAIM(the_fingerprint_tells_corpora_apart) {
    uint64_t before = fingerprint_after("printf first > 1 && printf second > 2");
    CHECK(before == fingerprint_after(":"));
    CHECK(before == fingerprint_after("mv 1 0"));  // names do not count, order does
    CHECK(before != fingerprint_after("mv 0 3"));
    CHECK(before != fingerprint_after("printf First > 3"));
}

// Of a file of n bytes, some from first .. last, both among them, are flipped one after another.
static void check_every_byte_counts(const char* name, const Tokenizer* tokenizer, unsigned char* file, size_t n,
                                    size_t first, size_t last) {
    enum { FLIPS = 30 };
    write_text(name, file, n);
    uint64_t before = content(name, tokenizer);
    CHECK(before != 0 && before == content(name, tokenizer));
    for (size_t k = 0; k <= FLIPS; k++) {
        unsigned char* byte = &file[first + (last - first) * k / FLIPS];
        *byte ^= 1;
        write_text(name, file, n);
        CHECK(content(name, tokenizer) != before);
        *byte ^= 1;
    }
}

CLAIM(a_changed_byte_anywhere_changes_the_content) {
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

CLAIM(equal_documents_have_one_content_wherever_they_lie) {
#define LONG "second one that is longer than a block of 32 bytes"
    static const char* const others[] = {"{\"text\":\"firsta\"}\n{\"text\":\" " LONG "\"}\n",   // cut elsewhere
                                         "{\"text\":\"a " LONG "\"}\n{\"text\":\"first\"}\n"};  // another order
    make_directory("two");
    put_text("two/1", "first");
    put_text("two/2", "a " LONG);
    put_text("one.jsonl", "{\"text\":\"first\"}\n{\"text\":\"a " LONG "\"}\n");
    uint64_t whole = content("one.jsonl", bytes);
    CHECK(content("two", bytes) == whole && content("two", bpe) == whole && content("one.jsonl", bpe) == whole);
    for (int i = 0; i < COUNT(others); i++) {
        put_text("one.jsonl", others[i]);
        CHECK(content("one.jsonl", bytes) != whole);
    }
}

int main(void) { return corpus_main(); }
