// unicode.h - what is to be known of Unicode: UTF-8, classes of characters, and how form C takes them apart and joins
// them. Ready before main runs; Hangul syllables are not here, they are computed.
#pragma once
#include <stddef.h>
#include <stdint.h>

// 'L' letter, 'N' number, 'S' white space, 'O' any other. code: from U+0080 on.
char unicode_class(uint32_t code);
int unicode_combining(uint32_t code);    // combining class: 0 to 240
int unicode_is_doubtful(uint32_t code);  // changes in form C, or may join the one before

// The two parts of a code point, parts[1] = 0 where it has only one; NULL when it has none.
const uint32_t* unicode_parts(uint32_t code);
// The code point that has these parts and stays whole in form C, or 0.
uint32_t unicode_joined(uint32_t first, uint32_t second);

// The code point at the beginning of n > 0 bytes and its length; a byte that begins no valid UTF-8 gives UTF8_INVALID +
// that byte, and 1. Surrogates and code points above U+10FFFF pass.
enum { UTF8_INVALID = 0x200000 };
uint32_t utf8_decode(const char* text, size_t n, size_t* length);
// The way back: at most 4 bytes. Returns their number.
size_t utf8_encode(char* out, uint32_t code);
