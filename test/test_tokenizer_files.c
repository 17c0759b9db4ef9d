// test_tokenizer_files.c - tokenizer files: both formats give the same tokenizer, saving keeps it, broken ones are
// refused.
#include "data/tokenizer.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "plan/base.h"
#include "test/test.h"
#include "test/vocabulary.h"

static char root[] = "/tmp/test_tokenizer_XXXXXX";

static const char* path_of(const char* name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static void put(const char* name, const void* content, size_t n) {
    FILE* f = fopen(path_of(name), "wb");
    if (!f || fwrite(content, 1, n, f) != n || fclose(f)) exit(1);
}

static void a_saved_byte_tokenizer_is_one_again(void) {
    Tokenizer *t = NULL, *again = NULL;
    CHECK(tokenizer_open(&t, NULL, err, sizeof err) == 0);
    CHECK(tokenizer_save(t, path_of("bytes.bin"), err, sizeof err) == 0);
    CHECK(tokenizer_open(&again, path_of("bytes.bin"), err, sizeof err) == 0);
    CHECK(tokenizer_is_bytes(again) && tokenizer_vocab(again) == 257 && tokenizer_end_of_text(again) == 256);
    tokenizer_close(t);
    tokenizer_close(again);
}

// ---- files of llm.c

static void every_truncated_prefix_is_refused(void) {
    static Words w;
    size_t n;
    small_words(&w);
    unsigned char* file = llmc_file(&w, &n);
    for (size_t k = 0; k < n; k++) CHECK(parse(file, k) == NULL);
    Tokenizer* t = parse(file, n);
    CHECK(t != NULL);
    tokenizer_close(t);
    free(file);
}

static void broken_files_are_refused_by_name(void) {
    static Words w;
    small_words(&w);
    static const struct {
        int at;
        uint32_t value;
        const char* message;
    } cases[] = {
        {0, 20240520, "neither llm.c's tokenizer (begins with 20240328, found 20240520) nor a tokenizer.json"},
        {4, 4, "version 4, expected 1, 2 or 3"},
        {4, 0, "version 0, expected 1, 2 or 3"},
        {4, 1, "end-of-text is 50256, but there are 261 tokens"},
        {8, UINT32_MAX, "-1 tokens do not fit in"},
        {8, 0x7fffffff, "2147483647 tokens do not fit in"},
        {8, 262, "token 261 of 262 at byte 1564: the file ends inside it"},
        {8, 260, "end-of-text is 260, but there are 260 tokens"},
        {12, 65, "no token for the byte 0x41 alone"},
        {12, UINT32_MAX, "end-of-text is -1, but there are 261 tokens"},
        {1024, 0x01000000, "token 0 of 261 at byte 1024: its length is 0, expected 1 .. 255"},
        {1024, 0x01014201, "no token for the byte 0x00 alone"},
    };
    size_t n;
    for (int i = 0; i < COUNT(cases); i++) {
        unsigned char* file = llmc_file(&w, &n);
        put_int32(file + cases[i].at, cases[i].value);
        CHECK(parse(file, n) == NULL);
        if (!strstr(err, cases[i].message)) printf("    case %d: %s\n", i, err);
        CHECK(strstr(err, cases[i].message) != NULL);
        free(file);
    }
    unsigned char* file = llmc_file(&w, &n);
    unsigned char* longer = calloc(n + 3, 1);
    memcpy(longer, file, n);
    CHECK(parse(longer, n + 3) == NULL);
    CHECK_STRING(err, "3 bytes behind the 261 tokens, expected 0");
    free(file);
    free(longer);
}

// Version 3 carries merges: {left, right} behind the tokens.
static void broken_merges_are_refused_by_name(void) {
    static const struct {
        uint32_t left, right;
        const char* message;
    } cases[] = {
        {'h', 'e', NULL},
        {'h', 261, "merge 0 of 1 joins tokens 104 and 261 of 261"},
        {UINT32_MAX, 'e', "merge 0 of 1 joins tokens -1 and 101 of 261"},
        {'e', 'h', "merge 0 of 1 makes no token"},
        {260, 260, "merge 0 of 1 makes no token"},
    };
    static Words w;
    small_words(&w);
    for (int i = 0; i < COUNT(cases); i++) {
        size_t n;
        unsigned char* file = llmc_file(&w, &n);
        file = realloc(file, n + 8);
        put_int32(file + 4, 3);
        put_int32(file + 16, 1);
        put_int32(file + n, cases[i].left);
        put_int32(file + n + 4, cases[i].right);
        Tokenizer* t = parse(file, n + 8);
        CHECK((t != NULL) == (cases[i].message == NULL));
        if (cases[i].message) CHECK_STRING(err, cases[i].message);
        else CHECK_STRING(encoded(t, "hell"), "256 108 108");
        tokenizer_close(t);
        CHECK(parse(file, n) == NULL);  // one merge announced, none there
        free(file);
    }
}

static void random_damage_is_survived(void) {
    static Words w;
    size_t n;
    random_words(&w, "abc", 30);
    for (int k = 0; k < 2000; k++) {
        unsigned char* file = llmc_file(&w, &n);
        if (k % 2) put_int32(file + 4, 3), put_int32(file + 16, (uint32_t)random_below(20));
        for (int i = random_below(6); i >= 0; i--)
            file[random_below(2) ? random_below(20) : random_below((int)n)] = (unsigned char)random_below(256);
        Tokenizer* t = parse(file, n);
        if (t) CHECK(round_trips(t, "abc cab bca", 11));
        tokenizer_close(t);
        free(file);
    }
}

static void files_that_cannot_be_opened_are_named(void) {
    Tokenizer* t = NULL;
    CHECK(tokenizer_open(&t, path_of("missing.bin"), err, sizeof err) == -1 && t == NULL);
    CHECK(strstr(err, "missing.bin: cannot read: No such file or directory") != NULL);
    CHECK(tokenizer_open(&t, root, err, sizeof err) == -1 && strstr(err, ": expected a file, found another kind"));
    put("empty.bin", "", 0);
    CHECK(tokenizer_open(&t, path_of("empty.bin"), err, sizeof err) == -1 &&
          strstr(err, "empty.bin: 0 bytes are no tokenizer"));
    CHECK(tokenizer_open(&t, NULL, err, sizeof err) == 0);
    CHECK(tokenizer_save(t, path_of("no/such/directory"), err, sizeof err) == -1 && strstr(err, "no/such/directory: "));
    CHECK(symlink("/dev/full", path_of("device.bin")) == 0);
    CHECK(tokenizer_save(t, path_of("device.bin"), err, sizeof err) == -1 && strstr(err, "found another kind"));
    // No file may grow past 100 bytes: writing fails in the middle, as on a full disk.
    struct rlimit before, small;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    small = before, small.rlim_cur = 100;
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK(tokenizer_save(t, path_of("full.bin"), err, sizeof err) == -1 && strstr(err, "full.bin: cannot write: "));
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0 && access(path_of("full.bin"), F_OK) == -1);
    tokenizer_close(t);
}

// ---- tokenizer.json

// The alphabet of GPT-2 in UTF-8, built by its rule.
static int in_alphabet(char* out, const char* bytes, int n) {
    int at = 0;
    for (int i = 0; i < n; i++) {
        int b = (unsigned char)bytes[i], code = b, shifted = 0;
        if (b < 33 || (b > 126 && b < 161) || b == 173) {
            for (int c = 0; c < b; c++) shifted += c < 33 || (c > 126 && c < 161) || c == 173;
            code = 256 + shifted;
        }
        if (code < 0x80) {
            if (code == '"' || code == '\\') out[at++] = '\\';
            out[at++] = (char)code;
        } else {
            out[at++] = (char)(0xc0 | code >> 6);
            out[at++] = (char)(0x80 | (code & 0x3f));
        }
    }
    out[at] = 0;
    return at;
}

typedef struct JsonPair {
    int left, right;
} JsonPair;

// A tokenizer.json with these merges; ids of w are kept. The caller frees.
static char* json_file(const Words* w, const JsonPair* merges, int n_merges, int as_arrays) {
    char *file = malloc(1 << 20), *p = file, left[1024], right[1024];
    p += sprintf(
        p,
        "{\"version\":\"1.0\",\"truncation\":null,\"added_tokens\":[{\"id\":%d,\"content\":\"<|endoftext|>\","
        "\"special\":true}],"
        "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
        "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\",\"vocab\":"
        "{",
        w->end_of_text);
    for (int i = 0; i < w->n; i++) {
        in_alphabet(left, w->bytes[i], w->length[i]);
        p += sprintf(p, "%s\"%s\":%d", i ? "," : "", left, i);
    }
    p += sprintf(p, "},\"merges\":[");
    for (int i = 0; i < n_merges; i++) {
        in_alphabet(left, w->bytes[merges[i].left], w->length[merges[i].left]);
        in_alphabet(right, w->bytes[merges[i].right], w->length[merges[i].right]);
        p += sprintf(p, as_arrays ? "%s[\"%s\",\"%s\"]" : "%s\"%s %s\"", i ? "," : "", left, right);
    }
    sprintf(p, "]}}");
    return file;
}

static Tokenizer* tokenizer_of_json(const char* file) {
    Tokenizer* t = parse(file, strlen(file));
    if (!t) printf("    %s\n", err), exit(1);
    return t;
}

static const JsonPair small_merges[] = {{'h', 'e'}, {'l', 'l'}, {256, 257}, {' ', 'w'}};

static void tokenizer_json_is_read_like_the_file_of_llmc(void) {
    static Words w;
    small_words(&w);
    Tokenizer* expected = tokenizer_of(&w);
    for (int as_arrays = 0; as_arrays < 2; as_arrays++) {
        char* file = json_file(&w, small_merges, COUNT(small_merges), as_arrays);
        Tokenizer* t = tokenizer_of_json(file);
        CHECK(tokenizer_vocab(t) == 261 && tokenizer_end_of_text(t) == 260 && !tokenizer_is_bytes(t));
        CHECK_STRING(encoded(t, "hello world"), "258 111 259 111 114 108 100");
        for (int id = 0; id < 260; id++) {
            size_t n, m;
            const char *a = tokenizer_decode(t, id, &n), *b = tokenizer_decode(expected, id, &m);
            CHECK(n == m && memcmp(a, b, n) == 0);
        }
        size_t n = 0;
        unsigned char *wanted = llmc_file(&w, &n), *found = malloc(n + 1);
        CHECK(tokenizer_save(t, path_of("saved.bin"), err, sizeof err) == 0);
        FILE* f = fopen(path_of("saved.bin"), "rb");
        CHECK(f && fread(found, 1, n + 1, f) == n && memcmp(found, wanted, n) == 0);
        if (f) fclose(f);
        free(wanted);
        free(found);
        tokenizer_close(t);
        free(file);
    }
    tokenizer_close(expected);
}

static void merges_in_another_order_than_ids_count_and_are_saved(void) {
    static Words w;
    small_words(&w);
    add_word(&w, "el", 2);  // id 261, but the first of the merges
    static const JsonPair merges[] = {{'e', 'l'}, {'l', 'l'}, {'h', 'e'}, {256, 257}, {' ', 'w'}};
    static const char *text = "hello hehe well", *tokens = "104 261 108 111 32 256 256 259 261 108";
    char* file = json_file(&w, merges, COUNT(merges), 0);
    Tokenizer *t = tokenizer_of_json(file), *again = NULL;
    CHECK_STRING(encoded(t, text), tokens);
    CHECK(tokenizer_save(t, path_of("order.bin"), err, sizeof err) == 0);
    CHECK(tokenizer_open(&again, path_of("order.bin"), err, sizeof err) == 0);
    CHECK_STRING(encoded(again, text), tokens);
    CHECK(tokenizer_save(again, path_of("order2.bin"), err, sizeof err) == 0);
    tokenizer_close(again);
    CHECK(tokenizer_open(&again, path_of("order2.bin"), err, sizeof err) == 0);
    CHECK_STRING(encoded(again, text), tokens);
    tokenizer_close(again);
    tokenizer_close(t);
    free(file);
}

static void added_tokens_extend_the_vocabulary(void) {
    static Words w;
    small_words(&w);
    char *file = json_file(&w, small_merges, COUNT(small_merges), 0), *longer = malloc(strlen(file) + 100);
    char* behind = strstr(file, "}],\"normalizer\"") + 1;
    sprintf(longer, "%.*s,{\"id\":261,\"content\":\"<|caf\\u00e9|>\"}%s", (int)(behind - file), file, behind);
    Tokenizer* t = tokenizer_of_json(longer);
    size_t n;
    CHECK(tokenizer_vocab(t) == 262);
    CHECK(memcmp(tokenizer_decode(t, 261, &n), "<|caf\xc3\xa9|>", 9) == 0 && n == 9);
    CHECK(round_trips(t, "<|caf\xc3\xa9|>", 9));
    tokenizer_close(t);
    free(file);
    free(longer);
}

// Replaces one place of a good tokenizer.json and expects the message.
static void other_kinds_of_tokenizer_json_are_refused_by_name(void) {
    static const char* const cases[][3] = {
        {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", "\"model\" is not of type \"BPE\""},
        {"\"model\":{", "\"modell\":{", "no object \"model\""},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}", "it has a \"normalizer\""},
        {"\"ByteLevel\"", "\"Metaspace\"", "\"pre_tokenizer\" is not \"ByteLevel\""},
        {"\"use_regex\":true", "\"use_regex\":false", "\"pre_tokenizer\" is not \"ByteLevel\" with GPT-2's pattern"},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":true", "\"pre_tokenizer\" sets \"add_prefix_space\""},
        {"\"dropout\":null", "\"dropout\":0.1", "\"model\" sets \"dropout\""},
        {"\"dropout\":null", "\"byte_fallback\":true", "\"model\" sets \"byte_fallback\""},
        {"\"content\":\"<|endoftext|>\"", "\"content\":\"<|end|>\"", "\"added_tokens\" has no <|endoftext|>"},
        {"\"vocab\":{", "\"vocabulary\":{", "\"model\" has no object \"vocab\""},
        {"\"merges\":[", "\"mergers\":[", "\"model\" has no array \"merges\""},
        {"\"A\":65", "\"A\":-1", "the token \"A\" has no id in 0 .. "},
        {"\"A\":65", "\"A\":6.5", "the token \"A\" has no id in 0 .. "},
        {"\"A\":65", "\"A\":66", "token 66 is there twice"},
        {"\"A\":65", "\"A\":261", "there are 261 tokens, but none has the id 65"},
        {"\"A\":65", "\"AA\":65", "no token for the byte 0x41 alone"},
        {"\"A\":65", "\"\":65", "token 65 is empty"},
        {"\"A\":65", "\"\xe2\x82\xac\":65", "token 65 is not written in the byte-level alphabet"},
        {"\"A\":65", "\" \":65", "token 65 is not written in the byte-level alphabet"},
        {"\"h e\"", "\"h f\"", "merge 0 does not join two tokens into a third"},
        {"\"h e\"", "\"he\"", "merge 0 does not join two tokens into a third"},
        {"\"h e\"", "\"h \"", "merge 0 does not join two tokens into a third"},
        {"\"h e\"", "[\"h\"]", "merge 0 does not join two tokens into a third"},
        {"\"h e\"", "5", "merge 0 does not join two tokens into a third"},
        {"]}}", "]}", "byte"},
    };
    static Words w;
    small_words(&w);
    char* file = json_file(&w, small_merges, COUNT(small_merges), 0);
    for (int i = 0; i < COUNT(cases); i++) {
        char *place = strstr(file, cases[i][0]), *other = malloc(strlen(file) + 100);
        CHECK(place != NULL);
        sprintf(other, "%.*s%s%s", (int)(place - file), file, cases[i][1], place + strlen(cases[i][0]));
        CHECK(parse(other, strlen(other)) == NULL);
        if (!strstr(err, cases[i][2])) printf("    case %d: %s\n", i, err);
        CHECK(strstr(err, cases[i][2]) != NULL);
        free(other);
    }
    free(file);
}

static void every_truncated_prefix_of_json_is_refused(void) {
    static Words w;
    small_words(&w);
    char* file = json_file(&w, small_merges, COUNT(small_merges), 1);
    for (size_t n = 0; n < strlen(file); n++) CHECK(parse(file, n) == NULL);
    free(file);
}

int main(void) {
    if (!mkdtemp(root)) return 1;
    RUN(a_saved_byte_tokenizer_is_one_again);
    RUN(every_truncated_prefix_is_refused);
    RUN(broken_files_are_refused_by_name);
    RUN(broken_merges_are_refused_by_name);
    RUN(random_damage_is_survived);
    RUN(files_that_cannot_be_opened_are_named);
    RUN(tokenizer_json_is_read_like_the_file_of_llmc);
    RUN(merges_in_another_order_than_ids_count_and_are_saved);
    RUN(added_tokens_extend_the_vocabulary);
    RUN(other_kinds_of_tokenizer_json_are_refused_by_name);
    RUN(every_truncated_prefix_of_json_is_refused);
    char command[64];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    if (system(command)) return 1;
    return test_done();
}
