// test_tokenizer.c - encoding merges as GPT-2's tokenizer does and loses no byte.
//
// Merging is compared with the definition: look at all adjacent pairs, merge the leftmost of least rank, begin again.
#include "data/tokenizer.h"

#include "data/bpe.h"
#include "plan/base.h"
#include "test/test.h"
#include "test/vocabulary.h"

// ---- bytes

static void bytes_are_their_own_tokens(void) {
    Tokenizer* t = NULL;
    CHECK(tokenizer_open(&t, NULL, err, sizeof err) == 0);
    CHECK(tokenizer_vocab(t) == 257 && tokenizer_end_of_text(t) == 256 && tokenizer_is_bytes(t));
    CHECK_STRING(encoded(t, "Az\xff<|"), "65 122 255 60 124");
    size_t n;
    for (int b = 0; b < 256; b++) {
        const char* bytes = tokenizer_decode(t, b, &n);
        CHECK(n == 1 && (unsigned char)bytes[0] == b);
    }
    static const int none[] = {256, 257, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < COUNT(none); i++) {
        n = 9;
        CHECK(tokenizer_decode(t, none[i], &n) != NULL && n == 0);
    }
    tokenizer_close(t);
    CHECK(tokenizer_open(&t, "", err, sizeof err) == 0 && tokenizer_is_bytes(t));
    tokenizer_close(t);
    tokenizer_close(NULL);
}

// ---- merging

static void pairs_merge_in_the_order_of_ranks(void) {
    Words w;
    small_words(&w);
    Tokenizer* t = tokenizer_of(&w);
    CHECK(tokenizer_vocab(t) == 261 && tokenizer_end_of_text(t) == 260 && !tokenizer_is_bytes(t));
    CHECK_STRING(encoded(t, "hello world"), "258 111 259 111 114 108 100");
    CHECK_STRING(encoded(t, "llll hehe"), "257 257 32 256 256");
    CHECK_STRING(encoded(t, "lll"), "257 108");  // the leftmost first
    CHECK_STRING(encoded(t, ""), "");
    tokenizer_close(t);
}

static void the_name_of_end_of_text_is_ordinary_text(void) {
    Words w;
    small_words(&w);
    add_word(&w, "<|endoftext|", 12);  // would join with ">" to what end-of-text is called
    for (int n = 2; n < 12; n++) add_word(&w, "<|endoftext|", n);
    Tokenizer* t = tokenizer_of(&w);
    int tokens[13], n = (int)tokenizer_encode(t, tokens, "<|endoftext|>", 13);
    for (int i = 0; i < n; i++) CHECK(tokens[i] != 260);
    CHECK(n > 1 && round_trips(t, "<|endoftext|>", 13));
    size_t length;
    tokenizer_decode(t, 260, &length);
    CHECK(length == 0);
    tokenizer_close(t);
}

static void the_first_of_equal_tokens_counts(void) {
    Words w;
    small_words(&w);
    add_word(&w, "ll", 2);
    add_word(&w, "x", 1);
    Tokenizer* t = tokenizer_of(&w);
    CHECK_STRING(encoded(t, "llx"), "257 120");
    tokenizer_close(t);
}

// The definition, on tokens as byte strings; text of one part only.
static int encode_by_definition(const Words* w, int* tokens, const char* text, int n) {
    for (int i = 0; i < n; i++) tokens[i] = find_word(w, text + i, 1);
    for (;;) {
        int best = -1, at = 0;
        for (int i = 0; i + 1 < n; i++) {
            char joined[512];
            int a = tokens[i], b = tokens[i + 1];
            memcpy(joined, w->bytes[a], (size_t)w->length[a]);
            memcpy(joined + w->length[a], w->bytes[b], (size_t)w->length[b]);
            int id = w->length[a] + w->length[b] > 255 ? -1 : find_word(w, joined, w->length[a] + w->length[b]);
            if (id >= 0 && (best < 0 || id < best)) best = id, at = i;
        }
        if (best < 0) return n;
        tokens[at] = best;
        memmove(tokens + at + 1, tokens + at + 2, (size_t)(n - at - 2) * sizeof *tokens);
        n--;
    }
}

static void merging_is_what_the_definition_says(void) {
    static const char* const alphabets[] = {"a", "ab", "abcd", "etaoinshrdlu"};
    static Words w;
    int n_merged = 0;
    for (int round = 0; round < 24; round++) {
        const char* letters = alphabets[round % COUNT(alphabets)];
        random_words(&w, letters, 5 + random_below(40));
        Tokenizer* t = tokenizer_of(&w);
        for (int k = 0; k < 25; k++) {
            char text[160];
            int found[160], expected[160], n = 1 + random_below(k % 2 ? 150 : 60);  // both ways of merging, see bpe.c
            for (int i = 0; i < n; i++) text[i] = letters[random_below((int)strlen(letters))];
            int n_expected = encode_by_definition(&w, expected, text, n);
            CHECK((int)tokenizer_encode(t, found, text, (size_t)n) == n_expected);
            CHECK(memcmp(found, expected, (size_t)n_expected * sizeof *found) == 0);
            n_merged += n - n_expected;
        }
        tokenizer_close(t);
    }
    CHECK(n_merged > 10000);
}

// A way of merging that looks at every pair each time would take hours here.
static void a_megabyte_without_a_break_takes_no_time(void) {
    enum { N = 1 << 20 };
    static Words w;
    random_words(&w, "ab ", 200);
    Tokenizer* t = tokenizer_of(&w);
    char* text = malloc(N);
    double begin = now_seconds();
    for (int kind = 0; kind < 4; kind++) {
        for (int i = 0; i < N; i++)
            text[i] = kind == 0 ? ' ' : kind == 1 ? 'a' : kind == 2 ? "ab"[hash64((uint64_t)i) & 1] : '\x80';
        CHECK(round_trips(t, text, N));
    }
    CHECK(now_seconds() - begin < 20);  // a second without sanitizers
    free(text);
    tokenizer_close(t);
}

static void any_bytes_come_back(void) {
    static Words w;
    random_words(&w, "ab 1\xc3\xa9\n", 300);
    Tokenizer* t = tokenizer_of(&w);
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++) CHECK(round_trips(t, (char[]){(char)a, (char)b}, 2));
    for (int k = 0; k < 300; k++) {
        char text[400];
        int n = random_below(COUNT(text));
        for (int i = 0; i < n; i++)
            text[i] = (char)(k % 2 ? random_below(256) : "ab 1'\xc3\xa9\xe2\x80\x83\n"[random_below(11)]);
        CHECK(round_trips(t, text, (size_t)n));
    }
    tokenizer_close(t);
}

// ---- splitting

// Expected parts as the module regex of Python finds them with GPT-2's pattern.
static void text_is_split_as_by_the_pattern_of_gpt2(void) {
    static const char* const cases[][2] = {
        {"Hello world", "Hello| world"},
        {"I'm sure they'll say we've won, it's John's", "I|'m| sure| they|'ll| say| we|'ve| won|,| it|'s| John|'s"},
        {"don't 'tis 'S ''s '", "don|'t| '|tis| '|S| ''|s| '"},
        {"'ve'l'll", "'ve|'|l|'ll"},
        {"  two  spaces \n\n  end  ", " | two| | spaces| \n\n | end|  "},
        {"\n\tx", "\n|\t|x"},
        {"a1b22 3c", "a|1|b|22| 3|c"},
        {"x=1;  /* c */", "x|=|1|;| | /*| c| */"},
        {" ", " "},
        {"a\r\n\v\fx\x1cy", "a|\r\n\v|\f|x|\x1c|y"},
        {"a \xc2\x81"
         "b",
         "a| \xc2\x81|b"},
        {"tab\tand space \t!", "tab|\t|and| space| |\t|!"},
        {"caf\u00e9 na\u00efve \u65e5\u672c\u8a9e \u00bd\u2163x",
         "caf\u00e9| na\u00efve| \u65e5\u672c\u8a9e| \u00bd\u2163|x"},
        {"a\u00a0b \u3000c\u2003\u2003d", "a|\u00a0|b| |\u3000|c|\u2003|\u2003|d"},
        {"\U0001F600\U0001F600 ok", "\U0001F600\U0001F600| ok"},
        {"e\u0301a", "e|\u0301|a"},
        {"'\u00e9", "'|\u00e9"},
        // Bytes that are no UTF-8 count as characters that are neither letters, numbers nor white space: a lone
        // continuation, too long forms of "A", a surrogate, a code point above U+10FFFF, a character that breaks off.
        {"a\x80"
         "b",
         "a|\x80|b"},
        {"a\xc1\x81"
         "b",
         "a|\xc1\x81|b"},
        {"a\xe0\x81\x81"
         "b",
         "a|\xe0\x81\x81|b"},
        {"a\xed\xa0\x80"
         "b",
         "a|\xed\xa0\x80|b"},
        {"a\xf4\x90\x80\x80"
         "b",
         "a|\xf4\x90\x80\x80|b"},
        {"a\xe6\x97", "a|\xe6\x97"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        char found[256];
        size_t n = strlen(cases[i][0]), at = 0, length;
        char *text = malloc(n), *p = found;
        memcpy(text, cases[i][0], n);
        for (; at < n; at += length) {
            length = pretoken_length(text + at, n - at);
            CHECK(length >= 1 && length <= n - at);
            if (at) *p++ = '|';
            memcpy(p, text + at, length);
            p += length;
        }
        *p = 0;
        CHECK_STRING(found, cases[i][1]);
        free(text);
    }
}

int main(void) {
    RUN(bytes_are_their_own_tokens);
    RUN(pairs_merge_in_the_order_of_ranks);
    RUN(the_name_of_end_of_text_is_ordinary_text);
    RUN(the_first_of_equal_tokens_counts);
    RUN(merging_is_what_the_definition_says);
    RUN(a_megabyte_without_a_break_takes_no_time);
    RUN(any_bytes_come_back);
    RUN(text_is_split_as_by_the_pattern_of_gpt2);
    return test_done();
}
