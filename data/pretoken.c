// pretoken.c - cuts text into the parts inside which BPE merges, as GPT-2's pattern does:
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// that is: an English ending; a run of letters, of numbers or of other characters, with at most one space before it;
// white space, which leaves its last character to the part that follows. Bytes that are no UTF-8 are characters of
// their own, of the class "other". Source: github.com/openai/gpt-2, src/encoder.py.
#include <string.h>

#include "data/bpe.h"
#include "data/unicode_classes.h"
#include "plan/base.h"

// The code point at the beginning of n > 0 bytes and its length; a byte that begins no valid UTF-8 gives U+FFFD and 1.
// Surrogates and code points above U+10FFFF pass: in the table they are of the class "other", as invalid bytes are.
static uint32_t decode_utf8(const char* text, size_t n, size_t* length) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800,
                                     0x10000};  // longer forms of the code points below are not valid
    const unsigned char* p = (const unsigned char*)text;
    size_t want = p[0] < 0x80 ? 1 : p[0] < 0xc0 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf8 ? 4 : 0;
    *length = 1;
    if (want == 1) return p[0];
    if (want == 0 || want > n) return 0xfffd;
    uint32_t code = p[0] & (0x7f >> want);
    for (size_t i = 1; i < want; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0xfffd;
        code = code << 6 | (p[i] & 0x3f);
    }
    if (code < least[want]) return 0xfffd;
    *length = want;
    return code;
}

// 'L', 'N', 'S' or 'O' for any other, and the length of the character.
static char class_at(const char* text, size_t n, size_t* length) {
    uint32_t code = decode_utf8(text, n, length);
    if (code < 0x80) {
        if ((code | 32) - 'a' < 26) return 'L';
        if (code - '0' < 10) return 'N';
        return code == ' ' || code - '\t' < 5 ? 'S' : 'O';
    }
    int low = 0, high = COUNT(unicode_ranges);  // the last range with first <= code
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (unicode_ranges[middle].first <= code) low = middle;
        else high = middle;
    }
    const UnicodeRange* range = &unicode_ranges[low];
    return code >= range->first && code <= range->last ? range->kind : 'O';
}

// Bytes of the characters of one class from `from` on; *last = where the last of them begins.
static size_t run_end(const char* text, size_t n, size_t from, char kind, size_t* last) {
    size_t length;
    *last = from;
    while (from < n && class_at(text + from, n - from, &length) == kind) {
        *last = from;
        from += length;
    }
    return from;
}

size_t pretoken_length(const char* text, size_t n) {
    static const char* const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    for (int i = 0; text[0] == '\'' && i < COUNT(endings); i++) {
        size_t length = strlen(endings[i]);
        if (length < n && memcmp(text + 1, endings[i], length) == 0) return 1 + length;
    }
    size_t length, last, begin = text[0] == ' ' && n > 1;
    char kind = class_at(text + begin, n - begin, &length);
    if (kind != 'S') return run_end(text, n, begin, kind, &last);
    size_t end = run_end(text, n, 0, 'S', &last);
    return end < n && last > 0 ? last : end;
}
