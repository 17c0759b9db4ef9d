// unicode.h - what is to be known of Unicode: UTF-8, classes of characters, and form C. Ready before main runs.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// 'L' letter, 'N' number, 'S' white space, 'O' any other. code: from U+0080 on.
char unicode_class(uint32_t code);

// The code point at the beginning of n > 0 bytes and its length; a byte that begins no valid UTF-8 gives UTF8_INVALID +
// that byte, and 1. Surrogates and code points above U+10FFFF pass.
enum { UTF8_INVALID = 0x200000 };
uint32_t utf8_decode(const char* text, size_t n, size_t* length);
// The way back: at most 4 bytes. Returns their number.
size_t utf8_encode(char* out, uint32_t code);

// Bytes of the byte order mark of UTF-8 with which n bytes of text begin: 3, or 0.
static inline size_t utf8_mark(const char* text, size_t n) {
    return n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0;
}

// 1 when n bytes are certainly in normalization form C (and 0 sometimes when they are).
int nfc_is_normal(const char* text, size_t n);
// Writes the normalization form C of n bytes to the end of work, which has 3 n ints, and returns its length, at most
// 3 n. Bytes that are no UTF-8 stay as they are.
size_t nfc_normalize(int* work, const char* text, size_t n);
