// test_json.c - claims about data/json.c: what RFC 8259 allows is read exactly, everything else is refused with a
// message, and no byte outside the text is looked at (texts lie in buffers of just their size, for AddressSanitizer).
#include "data/json.h"

#include "data/unicode.h"
#include "plan/base/base.h"
#include "test/readers.h"

static char err[ERR_BYTES];

// 0 or -1. A refusal must come with a message.
static int read_json(const void* text, size_t n) {
    Json json;
    memset(err, 0, sizeof err);
    int bad = json_parse(&json, n ? (const char*)text : NULL, n, err);
    if (bad) CHECK(strncmp(err, "JSON: expected ", 15) == 0 && !strchr(err, '\n'));
    else json_free(&json);
    return bad;
}

// The same of a copy of exactly n bytes; 1 when accepted.
static int accepts_bytes(const char* text, size_t n) {
    char* copy = (char*)malloc(n ? n : 1);
    memcpy(copy, text, n);
    int bad = read_json(copy, n);
    free(copy);
    return !bad;
}

static int accepts(const char* text) { return accepts_bytes(text, strlen(text)); }

CLAIM(values_keep_their_type_text_and_children) {
    const char* text =
        " {\"a\" : [1, -2.5e3 ,\"x\\n\"], \"b\":{}, \"c\":[ ], \"d\":null,\t\"e\":true,\r\n\"f\":false} ";
    Json json;
    CHECK(json_parse(&json, text, strlen(text), err) == 0);
    const JsonValue *root = json.values, *a = json_get(root, "a"), *second = json_at(a, 1);
    CHECK(root->type == JSON_OBJECT && root->n == 6 && root->next == 0 && json.n == 16);
    CHECK(root->text == text + 1 && root->length == strlen(text) - 2);
    CHECK(a && a->type == JSON_ARRAY && a->n == 3);
    CHECK(second && second->type == JSON_NUMBER && second->length == 6 && !memcmp(second->text, "-2.5e3", 6));
    CHECK(json_at(a, 2)->type == JSON_STRING && !memcmp(json_at(a, 2)->text, "x\\n", 3));
    CHECK(!json_at(a, 3) && !json_at(a, -1) && !json_at(root, 0) && !json_at(NULL, 0));
    static const JsonType types[] = {JSON_OBJECT, JSON_ARRAY, JSON_NULL, JSON_TRUE, JSON_FALSE};
    for (int i = 0; i < COUNT(types); i++) {
        const JsonValue* v = json_get(root, (const char[]){(char)('b' + i), 0});
        CHECK(v && v->type == types[i] && v->n == 0);
    }
    CHECK(!json_get(root, "g") && !json_get(root, "") && !json_get(a, "a") && !json_get(NULL, "a"));
    json_free(&json);
    CHECK(json.values == NULL && json.n == 0);
}

CLAIM(names_match_unescaped_and_the_last_of_several_counts) {
    const char* text = "{\"\\u0061b\":1,\"a\\nb\":2,\"ab\":3,\"nul\\u0000\":4,\"bad\\x\":5,\"\":6}";
    Json json;
    double x = 0;
    CHECK(json_parse(&json, text, strlen(text), err) == 0);
    CHECK(json_double(json_get(json.values, "ab"), &x) == 0 && x == 3);
    CHECK(json_double(json_get(json.values, "a\nb"), &x) == 0 && x == 2);
    CHECK(json_double(json_get(json.values, ""), &x) == 0 && x == 6);
    CHECK(!json_get(json.values, "nul") && !json_get(json.values, "bad") && !json_get(json.values, "a\\nb"));
    json_free(&json);
}

CLAIM(every_truncated_prefix_is_refused) {
    static const char* const texts[] = {
        "{\"a\":[1,2,{\"b\":null}],\"c\":\"\\u00e9\\ud83d\\ude00\\\\\",\"d\":true}",
        "[[[]],{},\"\",false,-0.5e+10]",
        "\"a string \\\" with \\\\\"",
        "null",
        "{\"step\": 100, \"files\": [{\"name\": \"x\", \"bytes\": 1, \"hash\": \"00\"}]}",
    };
    for (int i = 0; i < COUNT(texts); i++) check_prefixes(read_json, texts[i], strlen(texts[i]), strlen(texts[i]));
}

static void check_all(const char* const* texts, int n, int wanted) {
    for (int i = 0; i < n; i++) {
        CHECK(accepts(texts[i]) == wanted);
        if (accepts(texts[i]) != wanted) printf("    %s: %s\n", wanted ? "refused" : "accepted", texts[i]);
    }
}

// clang-format off
CLAIM(numbers_are_those_of_the_standard) {
    static const char* const good[] = {
        "0", "-0", "1", "10", "-10", "0.0", "1.5", "1e5", "1E+5", "1e-5", "-1.25e-02", "0e0",
        "123456789012345678901234567890",
    };
    static const char* const bad[] = {
        "01", "-01", "00", "+1", ".5", "1.", "-", "1e", "1e+", "0x10", "NaN", "nan", "inf", "-inf", "Infinity",
        "1.e5", "-.5", "1_000", "1 2", "--1", "1.2.3", "0b1", "1f", "- 1", "\xd9\xa1",
    };
    check_all(good, COUNT(good), 1);
    check_all(bad, COUNT(bad), 0);
}

CLAIM(whatever_is_no_json_is_refused) {
    static const char* const bad[] = {
        "", " ", "[1,]", "[,1]", "[1 2]", "{\"a\"}", "{\"a\":}", "{a:1}", "{\"a\":1,}", "{,}", "{1:2}", "[",
        "]", "{", "}", "[}", "{]", "[1}", "'a'", "tru", "True", "nulll", "[1] [2]", "\"a\" x", "\"a\nb\"",
        "\"tab\there\"", "\"end", "\"\\", "\"\\\"", "{\"a\" 1}", "{\"a\"::1}", "[1,,2]", "// c\n1", "[1]/**/",
        "\v1",
    };
    check_all(bad, COUNT(bad), 0);
    CHECK(!accepts_bytes("1\0", 2));
    CHECK(!accepts_bytes("\"a\0b\"", 5));
}
// clang-format on

CLAIM(a_message_says_where_and_what) {
    static const BadText bad[] = {
        {"[1, x]", "JSON: expected a value at byte 4 of 6, found x"},
        {"{'a':1", "JSON: expected a comma or } at byte 6 of 6, found the end"},
        {"[1,\x01]", "JSON: expected a value at byte 3 of 5, found byte 0x01"},
        {"'\\", "JSON: expected the end of a string at byte 2 of 2, found the end"},
    };
    CHECK_BAD_TEXTS(read_json, err, bad);
}

CLAIM(nesting_is_read_130_deep_and_no_deeper) {
    for (int depth = 129; depth <= 131; depth++) {
        char arrays[512], objects[2048] = "";
        memset(arrays, '[', (size_t)depth);
        memset(arrays + depth, ']', (size_t)depth);
        CHECK(accepts_bytes(arrays, 2 * (size_t)depth) == (depth <= 130));
        for (int i = 1; i < depth; i++) strcat(objects, "{\"a\":");
        strcat(objects, "{}");
        for (int i = 1; i < depth; i++) strcat(objects, "}");
        CHECK(accepts(objects) == (depth <= 130));
    }
}

enum { AS_INT64 = 1, AS_UINT64 = 2, AS_DOUBLE = 4, UNTOUCHED = 77 };

// What a number is as, and then is; what it is not as stays UNTOUCHED.
static int read_number(const char* text, int64_t* i, uint64_t* u, double* d) {
    Json json;
    *i = UNTOUCHED, *u = UNTOUCHED, *d = UNTOUCHED;
    CHECK(json_parse(&json, text, strlen(text), err) == 0);
    int as = (json_int64(json.values, i) == 0) * AS_INT64 | (json_uint64(json.values, u) == 0) * AS_UINT64 |
             (json_double(json.values, d) == 0) * AS_DOUBLE;
    json_free(&json);
    return as;
}

CLAIM(numbers_are_exact_to_their_limits_and_refused_beyond) {
    static const struct {
        const char* text;
        int as;
        int64_t i;
        uint64_t u;
        double d;
    } cases[] = {
        {"9223372036854775807", 7, INT64_MAX, (uint64_t)INT64_MAX, 0x1p63},
        {"-9223372036854775808", 5, INT64_MIN, UNTOUCHED, -0x1p63},
        {"18446744073709551615", 6, UNTOUCHED, UINT64_MAX, 0x1p64},
        {"18446744073709551614", 6, UNTOUCHED, UINT64_MAX - 1, 0x1p64},
        {"9007199254740993", 7, 9007199254740993, 9007199254740993u, 0x1p53},  // 2^53 + 1
        {"-0", 5, 0, UNTOUCHED, -0.0},
        {"9223372036854775808", 6, UNTOUCHED, 1ull << 63, 0x1p63},
        {"-9223372036854775809", 4, UNTOUCHED, UNTOUCHED, -0x1p63},
        {"18446744073709551616", 4, UNTOUCHED, UNTOUCHED, 0x1p64},
        {"99999999999999999999999999999999999999999999", 4, UNTOUCHED, UNTOUCHED, 1e44},
        {"-1", 5, -1, UNTOUCHED, -1},
        {"1.0", 4, UNTOUCHED, UNTOUCHED, 1},
        {"1e2", 4, UNTOUCHED, UNTOUCHED, 100},
        {"0.1", 4, UNTOUCHED, UNTOUCHED, 0.1},
        {"1.7976931348623157e308", 4, UNTOUCHED, UNTOUCHED, 1.7976931348623157e308},
        {"5e-324", 4, UNTOUCHED, UNTOUCHED, 5e-324},
        {"1e-999", 4, UNTOUCHED, UNTOUCHED, 0},
        {"1e999", 0, UNTOUCHED, UNTOUCHED, UNTOUCHED},
        {"-1e999", 0, UNTOUCHED, UNTOUCHED, UNTOUCHED},
    };
    int64_t i;
    uint64_t u;
    double d;
    for (int c = 0; c < COUNT(cases); c++) {
        CHECK(read_number(cases[c].text, &i, &u, &d) == cases[c].as && i == cases[c].i && u == cases[c].u);
        CHECK(d == cases[c].d && !signbit(d) == !signbit(cases[c].d));
        if (test_failures_in_claim) printf("    %s\n", cases[c].text);
    }
    for (uint64_t k = 0; k < 1000; k++) {
        char text[40];
        double x = random_normal(1, k) * exp(50 * random_normal(2, k));
        snprintf(text, sizeof text, "%.17g", x);
        CHECK(read_number(text, &i, &u, &d) & AS_DOUBLE && d == x);
    }
}

CLAIM(a_number_that_is_too_long_is_refused_not_cut) {
    char text[600];
    int64_t i;
    uint64_t u;
    double d;
    memset(text, '0', sizeof text);
    memcpy(text, "0.", 2);
    text[511] = 0;
    CHECK(read_number(text, &i, &u, &d) == AS_DOUBLE && d == 0);
    text[511] = '1', text[512] = 0;
    CHECK(read_number(text, &i, &u, &d) == 0 && d == UNTOUCHED);
}

CLAIM(a_conversion_of_another_type_fails) {
    const char* text = "[null,true,\"1\",[1],{\"a\":1}]";
    char out[64];
    int64_t i = 7;
    uint64_t u = 7;
    double d = 7;
    Json json;
    CHECK(json_parse(&json, text, strlen(text), err) == 0);
    for (int k = -1; k < 5; k++) {
        const JsonValue* v = json_at(json.values, k);
        CHECK(json_int64(v, &i) == -1 && json_uint64(v, &u) == -1 && json_double(v, &d) == -1);
        CHECK(json_string(v, out) == (k == 2 ? 1 : -1));
    }
    CHECK(i == 7 && u == 7 && d == 7);
    json_free(&json);
}

// Unescapes the string `text` into a buffer of the promised size; its length, or -1.
static int64_t unescape(const char* text, char* out) {
    Json json;
    if (json_parse(&json, text, strlen(text), err)) return -2;
    char* exact = (char*)malloc(json.values->length + 1);
    int64_t n = json_string(json.values, exact);
    if (n >= 0) {
        CHECK((size_t)n <= json.values->length && exact[n] == 0);
        memcpy(out, exact, (size_t)n + 1);
    }
    free(exact);
    json_free(&json);
    return n;
}

CLAIM(escapes_become_their_bytes) {
    static const struct {
        const char *text, *bytes;
        int n;
    } cases[] = {
        {"\"\"", "", 0},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8},
        {"\"\\u0041\\u00e9\\u20AC\"", "A\xc3\xa9\xe2\x82\xac", 6},
        {"\"\\u007f\\u0080\\u07ff\\u0800\\uffff\"", "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf", 11},
        {"\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80", 4},
        {"\"\\uD800\\uDC00\\udbff\\udfff\"", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", 8},
        {"\"a\\u0000b\"", "a\0b", 3},
        {"\"\xc3\xa9 \xff raw\"", "\xc3\xa9 \xff raw", 8},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        char out[64];
        CHECK(unescape(cases[i].text, out) == cases[i].n && !memcmp(out, cases[i].bytes, (size_t)cases[i].n));
    }
}

// clang-format off
CLAIM(short_strings_of_people_fit_or_are_refused) {
    static const struct {
        const char *text, *found;  // NULL: refused
    } cases[] = {{"\"\"", ""}, {"\"abcdefg\"", "abcdefg"}, {"\"abcdefgh\"", NULL}, {"\"abcdef\\u00e9\"", NULL},
                 {"\"\\u0041\\u00e9\"", "A\xc3\xa9"}, {"\"a\\u0000\"", NULL}, {"\"a\\nb\"", NULL}, {"\"\\x\"", NULL},
                 {"7", NULL}};
    for (int i = 0; i < COUNT(cases); i++) {
        Json json;
        char found[8] = "";
        CHECK(json_parse(&json, cases[i].text, strlen(cases[i].text), err) == 0);
        CHECK(json_text(json.values, found, sizeof found) == (cases[i].found ? 0 : -1));
        if (cases[i].found) CHECK_STRING(found, cases[i].found);
        json_free(&json);
    }
}

CLAIM(lone_surrogates_of_prose_are_replaced_and_counted) {
    const char *text = "\xef\xbb\xbf\"a\\ud800\\ud83d\\ude00\\udc00\\ud800b\"", *bad = "\"\\ud800\\x\"";
    char out[64];
    int64_t replaced = 1;
    Json json;
    CHECK(json_parse(&json, text, strlen(text), err) == 0);  // behind a byte order mark
    int64_t n = json_prose(json.values, out, &replaced);
    CHECK(n == 15 && !strcmp(out, "a\xef\xbf\xbd\xf0\x9f\x98\x80\xef\xbf\xbd\xef\xbf\xbd" "b") && replaced == 4);
    CHECK(json_string(json.values, out) == -1);
    json_free(&json);
    CHECK(json_parse(&json, bad, strlen(bad), err) == 0 && json_prose(json.values, out, &replaced) == -1);
    json_free(&json);
}

CLAIM(bad_escapes_and_lone_surrogates_are_refused) {
    static const char* const bad[] = {
        "\"\\x41\"", "\"\\a\"", "\"\\u\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\u 123\"", "\"\\u+123\"",
        "\"\\ud800\"", "\"\\ud800a\"", "\"\\ud800\\n\"", "\"\\ud800\\u0041\"", "\"\\udc00\"",
        "\"\\udc00\\ud800\"", "\"\\ud800\\ud800\"", "\"\\ud83d\\ude0\"", "\"\\ud83d\\\"", "\"\\U0041\"",
        "\"\\ud800\\ue000\"", "\"\\ud83d\\u\"",
    };
    for (int i = 0; i < COUNT(bad); i++) {
        char out[64];
        CHECK(unescape(bad[i], out) < 0);
    }
}
// clang-format on

CLAIM(quoting_and_unescaping_give_the_bytes_back) {
    for (int k = 0; k < 3000; k++) {
        char bytes[64], again[64], *quoted = NULL;
        size_t n = 0;
        for (int i = 0; i < k % 12; i++) {  // valid UTF-8: code points of every length, controls included
            uint64_t r = hash64((uint64_t)(k * 100 + i));
            uint32_t c = (uint32_t)(r >> 8) % (r & 1 ? 0x80u : r & 2 ? 0x800u : r & 4 ? 0xd800u : 0x110000u);
            n += utf8_encode(bytes + n, c >= 0xd800 && c < 0xe000 ? 0xe000 : c);
        }
        quoted = (char*)malloc(6 * n + 3);
        size_t length = json_quote(quoted, bytes, n);
        CHECK(length == strlen(quoted) && length <= 6 * n + 2);
        CHECK(unescape(quoted, again) == (int64_t)n && !memcmp(again, bytes, n));
        free(quoted);
    }
}

CLAIM(quoting_replaces_what_is_not_utf8_or_keeps_its_bytes) {
    static const struct {
        const char *bytes, *quoted;
    } cases[] = {
        {"plain", "\"plain\""},
        {"\"\\/\n\x01\x7f", "\"\\\"\\\\/\\n\\u0001\\u007f\""},
        {"\xff", "\"\xef\xbf\xbd\""},
        {"a\xc3", "\"a\xef\xbf\xbd\""},                                                // cut off
        {"\xc0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\""},                                  // overlong
        {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},                  // a surrogate
        {"\xf4\x90\x80\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},  // beyond U+10FFFF
        {"\xe2\x82\xac", "\"\xe2\x82\xac\""},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        size_t n = strlen(cases[i].bytes);
        char *exact = (char*)malloc(n), *out = (char*)malloc(6 * n + 3);
        memcpy(exact, cases[i].bytes, n);
        CHECK(json_quote(out, exact, n) == strlen(cases[i].quoted));
        CHECK_STRING(out, cases[i].quoted);
        char* again = (char*)malloc(6 * n + 3);
        Json json;
        FILE* stream = fmemopen(out, 6 * n + 3, "w");
        json_put_bytes(stream, exact, n);
        size_t length = (size_t)ftell(stream);
        fclose(stream);
        CHECK(length <= 6 * n + 2 && json_parse(&json, out, length, NULL) == 0);
        CHECK(json_bytes(json.values, again) == (int64_t)n && !memcmp(again, exact, n));
        json_free(&json);
        free(again);
        free(exact);
        free(out);
    }
}

int main(void) { return test_main(); }
