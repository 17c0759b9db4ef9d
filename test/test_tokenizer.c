// test_tokenizer.c - encoding cuts, normalizes and merges as the reference tokenizers do and loses no byte. (Whole
// vocabularies against the reference: test_tokenizer_golden.c.)
//
// Merging is compared with the definition: look at all adjacent pairs, merge the leftmost of least rank, begin again.
#include "data/tokenizer_files.h"

#include "data/bpe.h"
#include "test/test.h"
#include "test/vocabulary.h"

// ---- bytes

CLAIM(bytes_are_their_own_tokens) {
    Tokenizer* t = NULL;
    CHECK(tokenizer_open(&t, NULL, err) == 0);
    CHECK(t->vocab == 257 && t->end_of_text == 256 && t->is_bytes);
    CHECK_STRING(encoded(t, "Az\xff<|"), "65 122 255 60 124");
    size_t n;
    for (int b = 0; b < 256; b++) {
        const char* bytes = t->decode(t, b, &n);
        CHECK(n == 1 && (unsigned char)bytes[0] == b);
    }
    static const int none[] = {256, 257, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < COUNT(none); i++) {
        n = 9;
        CHECK(t->decode(t, none[i], &n) != NULL && n == 0);
    }
    tokenizer_close(t);
    CHECK(tokenizer_open(&t, "", err) == 0 && t->is_bytes);
    tokenizer_close(t);
    tokenizer_close(NULL);
}

// ---- merging

CLAIM(pairs_merge_in_the_order_of_ranks) {
    Words w;
    small_words(&w);
    Tokenizer* t = tokenizer_of(&w);
    CHECK(t->vocab == 261 && t->end_of_text == 260 && !t->is_bytes);
    CHECK_STRING(encoded(t, "hello world"), "258 111 259 111 114 108 100");
    CHECK_STRING(encoded(t, "llll hehe"), "257 257 32 256 256");
    CHECK_STRING(encoded(t, "lll"), "257 108");  // the leftmost first
    CHECK_STRING(encoded(t, ""), "");
    tokenizer_close(t);
}

CLAIM(the_first_of_equal_tokens_counts) {
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

CLAIM(merging_is_what_the_definition_says) {
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
            CHECK((int)t->encode(t, found, text, (size_t)n) == n_expected);
            CHECK(memcmp(found, expected, (size_t)n_expected * sizeof *found) == 0);
            n_merged += n - n_expected;
        }
        tokenizer_close(t);
    }
    CHECK(n_merged > 10000);
}

// A way of merging that looks at every pair each time would take hours here.
CLAIM(a_megabyte_without_a_break_takes_no_time) {
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

CLAIM(any_bytes_come_back) {
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

static void check_split(Pattern split, const char* text, const char* parts) {
    char found[256], *p = found;
    size_t n = strlen(text), length;
    char* copy = malloc(n);
    memcpy(copy, text, n);
    for (size_t at = 0; at < n; at += length) {
        length = pretoken_length(split, copy + at, n - at);
        CHECK(length >= 1 && length <= n - at);
        if (at) *p++ = '|';
        memcpy(p, copy + at, length);
        p += length;
    }
    *p = 0;
    CHECK_STRING(found, parts);
    free(copy);
}

// Expected parts as the module regex of Python, for GPT-2, and the package tokenizers find them: examples of the rules,
// and bytes that the lines of test_tokenizer_golden.c, which show more, do not have.
CLAIM(text_is_split_as_by_the_pattern_of_each_kind) {
    static const struct {
        Pattern split;
        const char *text, *parts;
    } cases[] = {
        {SPLIT_GPT2, "I'm sure they'll say we've won, it's John's",
         "I|'m| sure| they|'ll| say| we|'ve| won|,| it|'s| John|'s"},
        {SPLIT_GPT2, "don't 'tis 'S ''s '", "don|'t| '|tis| '|S| ''|s| '"},
        {SPLIT_GPT2, "  two  spaces \n\n  end  ", " | two| | spaces| \n\n | end|  "},
        {SPLIT_GPT2, "a1b22 3c", "a|1|b|22| 3|c"},
        {SPLIT_GPT2, "a\r\n\v\fx\034y", "a|\r\n\v|\f|x|\034|y"},
        {SPLIT_GPT2, "a \302\201b", "a| \302\201|b"},
        {SPLIT_GPT2, "caf\u00e9 na\u00efve \u65e5\u672c\u8a9e \u00bd\u2163x",
         "caf\u00e9| na\u00efve| \u65e5\u672c\u8a9e| \u00bd\u2163|x"},
        {SPLIT_GPT2, "a\u00a0b \u3000c\u2003\u2003d", "a|\u00a0|b| |\u3000|c|\u2003|\u2003|d"},
        // Bytes that are no UTF-8 count as characters that are neither letters, numbers nor white space: a lone
        // continuation, too long forms of "A", a surrogate, a code point above U+10FFFF, a character that breaks off.
        {SPLIT_GPT2, "a\200b", "a|\200|b"},
        {SPLIT_GPT2, "a\301\201b", "a|\301\201|b"},
        {SPLIT_GPT2, "a\340\201\201b", "a|\340\201\201|b"},
        {SPLIT_GPT2, "a\355\240\200b", "a|\355\240\200|b"},
        {SPLIT_GPT2, "a\364\220\200\200b", "a|\364\220\200\200|b"},
        {SPLIT_GPT2, "a\346\227", "a|\346\227"},
        {SPLIT_LLAMA3, "I'm sure THEY'LL say we'Ve won", "I|'m| sure| THEY|'LL| say| we|'Ve| won"},
        {SPLIT_LLAMA3, "x'\u017fy 'Sx'", "x|'\u017f|y| '|Sx|'"},
        {SPLIT_LLAMA3, "(word) .word\tword\u00a0word", "(word|)| .|word|\tword|\u00a0word"},
        {SPLIT_LLAMA3, "a\nb \nc \r\n\n  d", "a|\n|b| \n|c| \r\n\n| | d"},
        {SPLIT_LLAMA3, "1234567 89a0", "123|456|7| |89|a|0"},
        {SPLIT_LLAMA3, "a 1  2 \u00bd\u2163\u0663", "a| |1| | |2| |\u00bd\u2163\u0663"},
        {SPLIT_LLAMA3, "  two  spaces \n\n  end  ", " | two| | spaces| \n\n| | end|  "},
        {SPLIT_LLAMA3, "\t \t!a", "\t |\t|!a"},
        {SPLIT_LLAMA3, " \r  z", " \r| | z"},
        {SPLIT_LLAMA3, " \u3000\u3000x\u2003\n\u2003y", " \u3000|\u3000x|\u2003\n|\u2003y"},
        {SPLIT_QWEN2, "1234567 89a0", "1|2|3|4|5|6|7| |8|9|a|0"},
        {SPLIT_QWEN2, "a 1  2 \u00bd\u2163\u0663", "a| |1| | |2| |\u00bd|\u2163|\u0663"},
        {SPLIT_GPT2_DIGITS, "x = {};\n\n  y();\r\n", "x| =| {};|\n\n | y|();|\r\n"},
        {SPLIT_GPT2_DIGITS, "1234567 89a0", "1|2|3|4|5|6|7| |8|9|a|0"},
        {SPLIT_GPT2_DIGITS, "a 1  2 \u00bd\u2163\u0663", "a| |1|  |2| |\u00bd|\u2163|\u0663"},
    };
    for (int i = 0; i < COUNT(cases); i++) check_split(cases[i].split, cases[i].text, cases[i].parts);
}

// ---- form C

// What 10,000 lines of test_tokenizer_golden.c do not show, and an example of each rule.
CLAIM(form_c_joins_orders_and_takes_apart) {
    static const char* const cases[][2] = {
        {"u\u0308\u0301", "\u01d8"},                       // marks join
        {"q\u0307\u0323", "q\u0323\u0307"},                // into the order of classes
        {"a\u0315\u0300", "\u00e0\u0315"},                 // across a mark of another class
        {"a\u0300\u0301", "\u00e0\u0301"},                 // not across one of the same class
        {"a\u030d\u0301", "a\u030d\u0301"},                // also where that one joins nothing
        {"\u0301e", "\u0301e"},                            // nothing to join
        {"\u0344", "\u0308\u0301"},                        // taken apart for good
        {"\u0958", "\u0915\u093c"},                        // longer than before
        {"\U0001d160", "\U0001d158\U0001d165\U0001d16e"},  // three times as long
        {"\u09c7\u09be", "\u09cb"},                        // letters join, too
        {"\u1100\u1161\u11a8", "\uac01"},                  // Hangul
        {"\uac00\u11a7", "\uac00\u11a7"},
        {"\uac01\u1161", "\uac01\u1161"},
        {"e\xff\u0301", "e\xff\u0301"},  // a byte that is no text parts them
        {"\314e\u0301\342\200", "\314\u00e9\342\200"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        size_t n = strlen(cases[i][0]), expected = strlen(cases[i][1]);
        char *text = malloc(n), *found;
        int* work = malloc(3 * n * sizeof *work);
        memcpy(text, cases[i][0], n);
        if (nfc_is_normal(text, n)) CHECK_STRING(cases[i][0], cases[i][1]);
        size_t n_found = nfc_normalize(work, text, n);
        found = (char*)(work + 3 * n) - n_found;
        CHECK(n_found == expected && memcmp(found, cases[i][1], expected) == 0);
        free(text);
        free(work);
    }
}

// Sorting marks by looking at every pair would take hours here.
CLAIM(a_megabyte_of_marks_takes_no_time) {
    enum { N = 1 << 20 };
    static const char* const marks[] = {"\u0301", "\u0323", "\u0327", "\u0334", "\u035c"};
    char *text = malloc(N), *p = text;
    int* work = malloc(3 * N * sizeof *work);
    double begin = now_seconds();
    while (p + 2 <= text + N) p = memcpy(p, marks[hash64((uint64_t)(p - text)) % COUNT(marks)], 2), p += 2;
    CHECK(!nfc_is_normal(text, N) && nfc_normalize(work, text, N) == N);
    CHECK(nfc_is_normal((char*)(work + 3 * N) - N, 2));
    CHECK(now_seconds() - begin < 5);  // a tenth of a second without sanitizers
    free(text);
    free(work);
}

int main(void) { return test_main(); }
