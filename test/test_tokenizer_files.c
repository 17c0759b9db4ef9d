// test_tokenizer_files.c - tokenizer files: both formats give the same tokenizer, known kinds of tokenizer.json are
// told apart by what they say, others and broken files are refused.
#include "data/tokenizer_files.h"

#include "data/bpe.h"
#include "test/vocabulary.h"
#include "test/readers.h"
#include "test/temporary.h"

static int is_file_of(const Tokenizer* t, const char* name, const void* file, size_t n) {
    const void* found;
    size_t n_found;
    return !strcmp(tokenizer_file(t, &found, &n_found), name) && n_found == n && !memcmp(found, file, n);
}

CLAIM(the_file_of_bytes_is_read_as_bytes) {
    Tokenizer* t = NULL;
    const void* file;
    size_t n;
    CHECK(tokenizer_open(&t, NULL, err) == 0);
    CHECK_STRING(tokenizer_file(t, &file, &n), "tokenizer.bin");
    Tokenizer* again = parse(file, n);
    CHECK(again->is_bytes && again->vocab == 257 && again->end_of_text == 256);
    tokenizer_close(t);
    tokenizer_close(again);
}

// ---- files of llm.c

CLAIM(broken_files_are_refused_by_name) {
    static Words w;
    small_words(&w);
    static const struct {
        int at;
        uint32_t value;
        const char* message;
    } cases[] = {
        {0, 20240520, "neither llm.c's tokenizer (begins with 20240328, found 20240520) nor a tokenizer.json"},
        {4, 3, "version 3, expected 1 or 2"},
        {4, 0, "version 0, expected 1 or 2"},
        {4, 1, "end-of-text is 50256, but there are 261 tokens"},
        {8, UINT32_MAX, "4294967295 tokens do not fit in"},
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
        CHECK_STRING(strstr(err, cases[i].message) ? cases[i].message : err, cases[i].message);
        free(file);
    }
    unsigned char* file = llmc_file(&w, &n);  // its room is larger
    CHECK(parse(file, n + 3) == NULL);
    CHECK_STRING(err, "3 bytes behind the 261 tokens, expected none");
    free(file);
}

CLAIM(files_that_cannot_be_opened_are_named) {
    Tokenizer* t = NULL;
    CHECK(tokenizer_open(&t, path_of("missing.bin"), err) == -1 && t == NULL);
    CHECK(strstr(err, "missing.bin: cannot read: No such file or directory") != NULL);
    CHECK(tokenizer_open(&t, work, err) == -1 &&
          strstr(err, ": expected tokenizer.json or tokenizer.bin in this directory"));
    put_text("empty.bin", "");
    CHECK(tokenizer_open(&t, path_of("empty.bin"), err) == -1 && strstr(err, "empty.bin: 0 bytes are no tokenizer"));
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

static int read_bytes(const void* file, size_t n) {
    Tokenizer* t = parse(file, n);
    tokenizer_close(t);
    return t ? 0 : -1;
}

CLAIM(every_truncated_prefix_of_either_format_is_refused) {
    static Words w;
    size_t n;
    small_words(&w);
    unsigned char* file = llmc_file(&w, &n);
    check_prefixes(read_bytes, file, n, n);
    free(file);
    char* json = json_file(&w, small_merges, COUNT(small_merges), 1);
    check_prefixes(read_bytes, json, strlen(json), strlen(json));
    free(json);
}

CLAIM(tokenizer_json_is_read_like_the_file_of_llmc) {
    static Words w;
    small_words(&w);
    Tokenizer* expected = tokenizer_of(&w);
    for (int as_arrays = 0; as_arrays < 2; as_arrays++) {
        char* file = json_file(&w, small_merges, COUNT(small_merges), as_arrays);
        Tokenizer* t = tokenizer_of_json(file);
        CHECK(t->vocab == 261 && t->end_of_text == 260 && !t->is_bytes);
        CHECK_STRING(encoded(t, "hello world"), "258 111 259 111 114 108 100");
        for (int id = 0; id < 260; id++) {
            size_t n, m;
            const char *a = t->decode(t, id, &n), *b = expected->decode(expected, id, &m);
            CHECK(n == m && memcmp(a, b, n) == 0);
        }
        CHECK(is_file_of(t, "tokenizer.json", file, strlen(file)));
        tokenizer_close(t);
        free(file);
    }
    tokenizer_close(expected);
}

CLAIM(merges_in_another_order_than_ids_count) {
    static Words w;
    small_words(&w);
    add_word(&w, "el", 2);  // id 261, but the first of the merges
    static const JsonPair merges[] = {{'e', 'l'}, {'l', 'l'}, {'h', 'e'}, {256, 257}, {' ', 'w'}};
    char* file = json_file(&w, merges, COUNT(merges), 0);
    Tokenizer* t = tokenizer_of_json(file);
    CHECK_STRING(encoded(t, "hello hehe well"), "104 261 108 111 32 256 256 259 261 108");
    tokenizer_close(t);
    free(file);
}

// A tokenizer.json of small_words in which places are others: pairs of them, up to NULL. The caller frees.
static char* small_json_with(const char* const* changes) {
    static Words w;
    small_words(&w);
    char* file = json_file(&w, small_merges, COUNT(small_merges), 0);
    for (; changes[0]; changes += 2) {
        char *at = strstr(file, changes[0]), *changed = malloc(strlen(file) + strlen(changes[1]) + 1);
        CHECK(at != NULL);
        sprintf(changed, "%.*s%s%s", (int)(at - file), file, changes[1], at + strlen(changes[0]));
        free(file);
        file = changed;
    }
    return file;
}

#define ADD(token) "true}],\"normalizer\"", "true}," token "],\"normalizer\""
#define SPLITTER "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}"
#define SEQUENCE(parts) "{\"type\":\"Sequence\",\"pretokenizers\":[" parts "]}"
#define SPLIT(pattern, how) \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern "\"},\"behavior\":\"" how "\",\"invert\":false}"
#define PATTERN(numbers)                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" numbers \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define DIGITS(individual) "{\"type\":\"Digits\",\"individual_digits\":" individual "}"
#define LLAMA3 PATTERN("\\\\p{N}{1,3}")
#define QWEN2 PATTERN("\\\\p{N}")

// The tokenizer of small_words with these changes; good until the next call.
static const Tokenizer* tokenizer_with(const char* const* changes) {
    static Tokenizer* t;
    char* file = small_json_with(changes);
    tokenizer_close(t);
    t = tokenizer_of_json(file);
    free(file);
    return t;
}
#define WITH(...) tokenizer_with((const char*[]){__VA_ARGS__, NULL})

CLAIM(added_tokens_extend_the_vocabulary_and_no_text_becomes_one) {
    size_t n;
    const Tokenizer* t = WITH(ADD("{\"id\":261,\"content\":\"<|caf\\u00e9|>\"}"));
    CHECK(t->vocab == 262 && memcmp(t->decode(t, 261, &n), "<|caf\xc3\xa9|>", 9) == 0 && n == 9);
    CHECK(round_trips(t, "<|caf\xc3\xa9|>", 9));
    CHECK_STRING(encoded(WITH(ADD("{\"id\":261,\"content\":\"hellhe\"}")), "hellhe"), "258 256");
}

CLAIM(begin_of_text_stands_between_documents_where_there_is_one) {
#define BEGIN "{\"id\":261,\"content\":\"<|begin_of_text|>\"},"
    CHECK(WITH(ADD(BEGIN "{\"id\":262,\"content\":\"<|end_of_text|>\"}"))->end_of_text == 261);
    CHECK(WITH("\"added_tokens\":[", "\"added_tokens\":[" BEGIN)->end_of_text == 261);
    CHECK(WITH("<|endoftext|>", "<|begin_of_text|>")->end_of_text == 260);
}

CLAIM(bytes_without_a_token_are_left_out) {
    const Tokenizer* t = WITH("\"\u00a9\":169", "\"h\u00a9\":169");
    CHECK_STRING(encoded(t, "\xa9"), "");
    CHECK_STRING(encoded(t, "h\u00e9ell\u00e9"), "104 195 101 257 195");
    CHECK_STRING(encoded(WITH("\"unk_token\":null", "\"unk_token\":\"h\""), "h"), "104");  // every byte has a token
}

CLAIM(a_part_that_is_a_token_need_not_be_reached_by_merges) {
#define WORLD "},\"merges\"", ",\"world\":261},\"merges\"", "\"dropout\":null"
    CHECK_STRING(encoded(WITH(WORLD, "\"dropout\":null"), "world"), "119 111 114 108 100");
    CHECK_STRING(encoded(WITH(WORLD, "\"ignore_merges\":false"), "world"), "119 111 114 108 100");
    const Tokenizer* t = WITH(WORLD, "\"ignore_merges\":true");
    CHECK_STRING(encoded(t, "world"), "261");
    CHECK_STRING(encoded(t, "hell world"), "258 259 111 114 108 100");
    CHECK_STRING(encoded(t, "<|endoftext|>"), "60 124 101 110 100 111 102 116 101 120 116 124 62");
}

CLAIM(a_kind_is_what_the_file_says) {
    CHECK(bpe_of(WITH(SPLITTER, "{\"type\":\"ByteLevel\"}"))->split == SPLIT_GPT2);
    CHECK(bpe_of(WITH(SPLITTER, SEQUENCE(DIGITS("true") "," SPLITTER)))->split == SPLIT_GPT2_DIGITS);
    CHECK(bpe_of(WITH(SPLITTER, SEQUENCE(SPLIT(LLAMA3, "Isolated") "," BYTES)))->split == SPLIT_LLAMA3);
    const Tokenizer* t = WITH(SPLITTER, SEQUENCE(SPLIT(QWEN2, "Isolated") "," BYTES));
    CHECK(bpe_of(t)->split == SPLIT_QWEN2 && !bpe_of(t)->nfc);
    t = WITH("\"normalizer\":null", "\"normalizer\": {\"type\": \"NFC\"}");
    CHECK(bpe_of(t)->nfc && bpe_of(t)->split == SPLIT_GPT2);
    CHECK(comes_back_as(t, "cafe\u0301", 6, "caf\u00e9", 5));
}

// Replaces one place of a good tokenizer.json and expects the message.
CLAIM(other_kinds_of_tokenizer_json_are_refused_by_name) {
    static const char* const cases[][6] = {
        // the message, then changes
        {"\"model\" is of type \"Unigram\", known is \"BPE\"", "\"type\":\"BPE\"", "\"type\":\"Unigram\""},
        {"\"model\" is of type \"WordPiece\", known is \"BPE\"", "\"type\":\"BPE\"", "\"type\":\"WordPiece\""},
        {"no object \"model\"", "\"model\":{", "\"modell\":{"},
        {"\"normalizer\" is {\"type\": \"NFKC\"}, known are none and {\"type\":\"NFC\"}", "\"normalizer\":null",
         "\"normalizer\":{\"type\":\n  \"NFKC\"}"},
        {"\"normalizer\" is {\"type\":\"Sequence\"", "\"normalizer\":null",
         "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}"},
        {"\"pre_tokenizer\" is absent, known are ByteLevel (GPT-2), Digits", "\"pre_tokenizer\"", "\"pre_tokenizers\""},
        {"\"pre_tokenizer\" is null, known are", SPLITTER, "null"},
        {"\"pre_tokenizer\" is {\"type\":\"Metaspace\"}, known are", SPLITTER, "{\"type\":\"Metaspace\"}"},
        {"\"pre_tokenizer\" is {\"type\":\"ByteLevel\",\"add_prefix_space\":false,", SPLITTER, BYTES},
        {"{\"Regex\":\"\\\\d\"}", SPLITTER, SEQUENCE(SPLIT("\\\\d", "Isolated") "," BYTES)},
        {"\\\\p{N}{1,2}| ?", SPLITTER, SEQUENCE(SPLIT(PATTERN("\\\\p{N}{1,2}"), "Isolated") "," BYTES)},
        {"known are", SPLITTER, SEQUENCE(SPLIT(QWEN2 "\\u0000", "Isolated") "," BYTES)},
        {"known are", SPLITTER, SEQUENCE(SPLIT(LLAMA3, "Removed") "," BYTES)},
        {"known are", SPLITTER, SEQUENCE(SPLIT(LLAMA3, "Isolated") "," SPLITTER)},
        {"known are", SPLITTER, SEQUENCE(SPLIT(LLAMA3, "Isolated") "," DIGITS("true") "," BYTES)},
        {"known are", SPLITTER, SEQUENCE(SPLIT(LLAMA3, "Isolated"))},
        {"\"pre_tokenizer\" is {\"type\":\"Sequence\",", SPLITTER, SEQUENCE(DIGITS("false") "," SPLITTER)},
        {"known are", SPLITTER, SEQUENCE(DIGITS("true") "," BYTES)},
        {"known are", SPLITTER, SEQUENCE("")},
        {"all without add_prefix_space", "\"add_prefix_space\":false", "\"add_prefix_space\":true"},
        {"\"model\" sets \"dropout\" to 0.1, known is byte-level BPE without it", "\"dropout\":null",
         "\"dropout\":0.1"},
        {"\"model\" sets \"byte_fallback\" to true, known is byte-level BPE", "\"dropout\":null",
         "\"byte_fallback\":true"},
        {"\"added_tokens\" has neither <|endoftext|> nor <|begin_of_text|>", "\"content\":\"<|endoftext|>\"",
         "\"content\":\"<|end|>\""},
        {"\"model\" has no object \"vocab\"", "\"vocab\":{", "\"vocabulary\":{"},
        {"\"model\" has no array \"merges\"", "\"merges\":[", "\"mergers\":["},
        {"the token \"A\" has no id in 0 .. ", "\"A\":65", "\"A\":-1"},
        {"the token \"A\" has no id in 0 .. ", "\"A\":65", "\"A\":6.5"},
        {"token 66 is there twice", "\"A\":65", "\"A\":66"},
        {"there are 261 tokens, but none has the id 65", "\"A\":65", "\"A\":261"},
        {"no token for the byte 0x41 alone", "\"A\":65", "\"AA\":65"},
        {"token 65 is empty", "\"A\":65", "\"\":65"},
        {"token 65 is not written in the byte-level alphabet", "\"A\":65", "\"\xe2\x82\xac\":65"},
        {"token 65 is not written in the byte-level alphabet", "\"A\":65", "\" \":65"},
        {"merge 0 does not join two tokens into a third", "\"h e\"", "\"h f\""},
        {"merge 0 does not join two tokens into a third", "\"h e\"", "\"he\""},
        {"merge 0 does not join two tokens into a third", "\"h e\"", "\"h \""},
        {"merge 0 does not join two tokens into a third", "\"h e\"", "[\"h\"]"},
        {"merge 0 does not join two tokens into a third", "\"h e\"", "5"},
        {"byte", "]}}", "]}"},
        {"merge 4 does not join two tokens into a third", ADD("{\"id\":261,\"content\":\"hellhe\"}"), "]}}",
         ",\"hell he\"]}}"},
        {"no token for the byte 0xff alone", "\"unk_token\":null", "\"unk_token\":\"h\"", "\"\u00ff\":255",
         "\"h\u00ff\":255"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        char* file = small_json_with(cases[i] + 1);
        CHECK(parse(file, strlen(file)) == NULL && !strchr(err, '\n'));
        CHECK_STRING(strstr(err, cases[i][0]) ? cases[i][0] : err, cases[i][0]);
        free(file);
    }
}

int main(void) { return temporary_main(); }
