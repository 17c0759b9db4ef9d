// text.h - text that others wrote, on its way to a terminal or a log: paths, options, names in files, generated tokens.
//
// Nothing that is printed here can command a terminal, break a line in two or show words in another order than they are
// in. Control characters (also DEL, U+0080 to U+009F, U+2028 and U+2029), overrides of the writing direction (U+202A to
// U+202E, U+2066 to U+2069) and bytes that are no UTF-8 become '?'. Others pass unchanged.
#pragma once
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// A character that is not complete yet. {0} at the start.
typedef struct TextFilter {
    unsigned char held[4];
    int n, wanted;
} TextFilter;

enum { TEXT_MOST = 4 };

// Takes the next byte; fills out with what may be printed now and returns how much that is, never more than the bytes
// taken and not yet answered. keeps_lines: newlines and tabs are meant, and pass.
int text_filter(TextFilter* t, unsigned char byte, int keeps_lines, char out[TEXT_MOST]);

// Prints a piece of a longer text, newlines and tabs included. A character may be cut between pieces; text_print_end
// prints one that is cut off at the end of the text.
void text_print(FILE* out, TextFilter* t, const char* bytes, size_t n);
void text_print_end(FILE* out, TextFilter* t);

// Makes a string safe in place, as one line.
void text_clean(char* text);

// Prints a part of a line, at most 64 KiB, as printf would; newlines in it become '?' too.
void say_list(FILE* out, const char* format, va_list args);
