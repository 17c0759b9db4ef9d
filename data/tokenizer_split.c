// tokenizer_split.c - cuts text into the parts inside which tokens merge. Three patterns, as regular expressions:
//
//   GPT-2          's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   with digits    the same between numbers, each of which is a part (SmolLM2)
//   Llama 3, Qwen2 (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
//                  |\s*[\r\n]+|\s+(?!\S)|\s+         where Qwen2 has \p{N} for \p{N}{1,3}
//
// that is: an English ending; a run of letters, of numbers or of other characters, with at most one space before it
// (Llama 3: any one character before letters, line breaks behind others); white space, which leaves its last character
// to the part that follows (Llama 3: but a line break ends it). Bytes that are no UTF-8 are characters of their own, of
// the class "other". Sources: github.com/openai/gpt-2, src/encoder.py; the files tokenizer.json of SmolLM2, Llama 3 and
// Qwen2.5.
#include <string.h>

#include "data/bpe.h"
#include "data/unicode.h"
#include "plan/base/base.h"

// 'L', 'N', 'S' or 'O' for any other, and the length of the character.
static char class_at(const char* text, size_t n, size_t* length) {
    uint32_t code = (unsigned char)text[0];
    if (code < 0x80) {
        *length = 1;
        if ((code | 32) - 'a' < 26) return 'L';
        if (code - '0' < 10) return 'N';
        return code == ' ' || code - '\t' < 5 ? 'S' : 'O';
    }
    return unicode_class(utf8_decode(text, n, length));
}

// Bytes of the characters of one class from `from` on, at most `most` characters; *last = where the last one begins.
static size_t run_end(const char* text, size_t n, size_t from, char kind, size_t most, size_t* last) {
    size_t length;
    *last = from;
    for (; from < n && most > 0 && class_at(text + from, n - from, &length) == kind; most--) {
        *last = from;
        from += length;
    }
    return from;
}

static int is_break(char c) { return c == '\r' || c == '\n'; }

// Length of an English ending at text, 0 when there is none. Without regard to case the long s, U+017F, is an s.
static size_t ending_length(const char* text, size_t n, int any_case) {
    static const char* const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (text[0] != '\'') return 0;
    for (int i = 0; i < COUNT(endings); i++) {
        size_t length = strlen(endings[i]), k = 0;
        while (k < length && 1 + k < n && (any_case ? text[1 + k] | 32 : text[1 + k]) == endings[i][k]) k++;
        if (k == length) return 1 + length;
    }
    return any_case && n >= 3 && memcmp(text + 1, "\u017f", 2) == 0 ? 3 : 0;
}

// digits: the end of the text is also where a number begins.
static size_t gpt2_length(const char* text, size_t n, int digits) {
    size_t length, last, begin = text[0] == ' ' && n > 1, ending = ending_length(text, n, 0);
    if (ending) return ending;
    char kind = class_at(text + begin, n - begin, &length);
    if (kind == 'N' && digits) return begin ? begin : length;
    if (kind != 'S') return run_end(text, n, begin, kind, SIZE_MAX, &last);
    size_t end = run_end(text, n, 0, 'S', SIZE_MAX, &last);
    if (end == n || last == 0 || (digits && class_at(text + end, n - end, &length) == 'N')) return end;
    return last;
}

static size_t llama3_length(const char* text, size_t n, size_t most_numbers) {
    size_t length, next, last, ending = ending_length(text, n, 1);
    if (ending) return ending;
    char kind = class_at(text, n, &length), kind_of_next = length < n ? class_at(text + length, n - length, &next) : 0;
    if (kind == 'N') return run_end(text, n, 0, 'N', most_numbers, &last);
    if (kind == 'L' || (kind_of_next == 'L' && !is_break(text[0])))
        return run_end(text, n, length, 'L', SIZE_MAX, &last);
    if (kind == 'O' || (kind_of_next == 'O' && text[0] == ' ')) {
        size_t end = run_end(text, n, length, 'O', SIZE_MAX, &last);
        while (end < n && is_break(text[end])) end++;
        return end;
    }
    size_t end = run_end(text, n, 0, 'S', SIZE_MAX, &last);
    for (size_t i = end; i > 0; i--)
        if (is_break(text[i - 1])) return i;
    return end == n || last == 0 ? end : last;
}

size_t pretoken_length(Split split, const char* text, size_t n) {
    if (split == SPLIT_GPT2 || split == SPLIT_GPT2_DIGITS) return gpt2_length(text, n, split == SPLIT_GPT2_DIGITS);
    return llama3_length(text, n, split == SPLIT_LLAMA3 ? 3 : 1);
}
