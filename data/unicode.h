// unicode.h - what tokenizers need to know of Unicode: classes of characters, and how form C takes them apart and joins
// them. Ready before main runs; Hangul syllables are not here, they are computed.
#pragma once
#include <stdint.h>

// 'L' letter, 'N' number, 'S' white space, 'O' any other. code: from U+0080 on.
char unicode_class(uint32_t code);

// Of code points with a combining class above 0, and (doubtful) of those that change in form C or may join the one
// before; all others have zeros.
typedef struct UnicodeMark {
    uint32_t first, last;  // a range, both ends included
    uint8_t combining_class, doubtful;
} UnicodeMark;
const UnicodeMark* unicode_mark(uint32_t code);

// The two parts of a code point, parts[1] = 0 where it has only one; NULL when it has none.
const uint32_t* unicode_parts(uint32_t code);
// The code point that has these parts and stays whole in form C, or 0.
uint32_t unicode_joined(uint32_t first, uint32_t second);
