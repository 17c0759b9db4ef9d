// test_text.c - claims about plan/base/text.h: what is printed cannot command a terminal, and good text is left alone.
#include "plan/base/terminal.h"

#include "plan/base/base.h"
#include "test/test.h"

static char printed[1 << 16];

// What a file gets from n bytes that come in pieces of `piece`.
static size_t print_pieces(const char* bytes, size_t n, size_t piece) {
    TextFilter t = {{0}, 0, 0};
    FILE* out = fmemopen(printed, sizeof printed, "w");
    for (size_t at = 0; at < n; at += piece) text_print(out, &t, bytes + at, MIN(piece, n - at));
    text_print_end(out, &t);
    long length = ftell(out);
    fclose(out);
    return (size_t)length;
}

// The same line by all ways that lead to a terminal.
static void check_line(const char* text, const char* expected) {
    char line[256];
    snprintf(line, sizeof line, "%s", text);
    text_clean(line);
    CHECK_STRING(line, expected);
    for (size_t piece = 1; piece < 6; piece++) {
        CHECK(print_pieces(text, strlen(text), piece) == strlen(expected));
        CHECK(!memcmp(printed, expected, strlen(expected)));
    }
    FILE* out = fmemopen(printed, sizeof printed, "w");
    say(out, "%s", text);
    fclose(out);
    snprintf(line, sizeof line, "%s\n", expected);
    CHECK_STRING(printed, line);
}

CLAIM(valid_text_of_any_script_passes_unchanged) {
    static const char* const texts[] = {
        "plain ASCII ~",
        "\xc3\xa4\xc3\xb6\xc3\xbc\xc3\x9f",                              // umlauts
        "\xe4\xb8\xad\xe6\x96\x87",                                      // Chinese
        "\xd8\xb9\xd8\xb1\xd8\xa8\xd9\x8a \xd7\xa2\xd7\x91",             // Arabic, Hebrew
        "\xf0\x9f\x98\x80\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb",  // emoji, one of them joined
        "\xc2\xa0\xe2\x80\xa7\xe2\x80\xaf\xe2\x81\xa5\xe2\x81\xaa",      // the neighbours of what is refused
        "\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf",                      // around the surrogates; U+10FFFF
    };
    for (int i = 0; i < COUNT(texts); i++) check_line(texts[i], texts[i]);
}

CLAIM(what_commands_a_terminal_or_is_no_utf8_becomes_question_marks) {
    static const char* const cases[][2] = {
        {"a\033[2Jb\007\r\x7f", "a?[2Jb???"},
        {"\xc2\x9b"
         "31m\xc2\x80\xc2\x9f",
         "?31m??"},  // U+009B is ESC [ in one character
        {"\x9b"
         "31m\x80\x9f",
         "?31m??"},  // and alone, as terminals without UTF-8 take it
        {"gnp.\xe2\x80\xae"
         "exe",
         "gnp.?exe"},  // overrides of direction, line separators
        {"\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaa\xe2\x80\xab\xe2\x80\xac\xe2\x80\xad\xe2\x80\xae", "???????"},
        {"\xe2\x81\xa6\xe2\x81\xa7\xe2\x81\xa8\xe2\x81\xa9", "????"},
        {"a\xff"
         "b\xfe\xc0\xc1z",
         "a?b???z"},
        {"\xc3", "?"},
        {"\xc3(", "?("},
        {"\xe4\xb8"
         "a",
         "?a"},
        {"\xe4\xb8\xe4\xb8\xad", "?\xe4\xb8\xad"},
        {"\xf0\x9f\x98\xc3\xa4", "?\xc3\xa4"},
        {"\xed\xa0\x80", "?"},           // a surrogate
        {"\xe0\x80\xaf\xc0\xaf", "??"},  // long forms of /
        {"\xe0\x82\x9b", "?"},           // and of U+009B
        {"\xf4\x90\x80\x80\xf5\x80", "??"},
    };
    for (int i = 0; i < COUNT(cases); i++) check_line(cases[i][0], cases[i][1]);
    for (int c = 1; c < 32; c++) {
        char text[] = {'a', (char)c, 'b', 0};
        text_clean(text);
        CHECK_STRING(text, "a?b");
    }
}

CLAIM(newlines_and_tabs_pass_only_where_they_are_meant) {
    char line[] = "two\nlines\tof";
    CHECK(print_pieces(line, strlen(line), 2) == strlen(line) && !memcmp(printed, line, strlen(line)));
    text_clean(line);
    CHECK_STRING(line, "two?lines?of");
}

CLAIM(a_character_may_be_cut_between_pieces_but_not_at_the_end) {
    const char text[] = "\xf0\x9f\x98\x80";
    for (size_t n = 1; n <= 4; n++)
        for (size_t piece = 1; piece <= n; piece++) {
            size_t length = print_pieces(text, n, piece);
            CHECK(length == (n == 4 ? 4 : 1) && !memcmp(printed, n == 4 ? text : "?", length));
        }
}

CLAIM(a_long_line_is_printed_whole) {
    static char text[20000], expected[20002];
    for (size_t i = 0; i + 1 < sizeof text; i++) text[i] = i % 100 ? 'a' : '\033';
    for (size_t i = 0; i + 1 < sizeof text; i++) expected[i] = i % 100 ? 'a' : '?';
    expected[sizeof text - 1] = '\n';
    FILE* out = fmemopen(printed, sizeof printed, "w");
    say(out, "%s", text);
    fclose(out);
    CHECK(!strcmp(printed, expected));
}

CLAIM(an_error_without_room_loses_its_middle_and_keeps_its_cause) {
    static char path[4000];
    Err err;
    memset(path, 'p', sizeof path - 1);
    CHECK(fail(err, "first: %s: no such file", path) == -1 && strlen(err) == ERR_BYTES - 1);
    CHECK(!strncmp(err, "first: pp", 9) && strstr(err, "pp...pp") && strstr(err, "pp: no such file"));
    fail(err, "%.*s", ERR_BYTES - 1, path);
    CHECK(strlen(err) == ERR_BYTES - 1 && !strchr(err, '.'));
}

int main(void) { return test_main(); }
