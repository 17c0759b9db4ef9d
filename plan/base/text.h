// text.h - text that others wrote, on its way to a terminal or a log: paths, options, names in files, generated tokens.
//
// Nothing that is printed here can command a terminal, break a line in two or show words in another order than they
// are in: control characters (also DEL, U+0080 to U+009F, U+2028 and U+2029), overrides of the direction of writing
// (U+202A to U+202E, U+2066 to U+2069) and bytes that are no UTF-8 become '?'. All other characters pass unchanged.
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
// that were taken and not yet answered. keeps_lines: newlines and tabs are meant, and pass.
int text_filter(TextFilter* t, unsigned char byte, int keeps_lines, char out[TEXT_MOST]);

// Prints a piece of a longer text, newlines and tabs included. A character may be cut between pieces; one that is cut
// off at the end of the text is what text_print_end is for.
void text_print(FILE* out, TextFilter* t, const char* bytes, size_t n);
void text_print_end(FILE* out, TextFilter* t);

// Makes a string safe in place, as one line.
void text_clean(char* text);

// The text as a word of a shell command: as it is, or in single quotes where it holds anything but letters, digits and
// -_./:=,+@%. Cut where it is too long for the room.
const char* text_quoted(const char* text, char* word, size_t room);

// "1 document", "12 documents"
const char* text_many(int64_t n, const char* noun, char text[64]);

// "1h02m", "3m05s", "42s"
const char* text_duration(double seconds, char text[32]);
// "412.3 MiB", "12.3 GiB"; returns text.
const char* text_bytes(double bytes, char text[32]);

// Print a line, or a part of one, as printf would; newlines in it become '?' too.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void say(FILE* out, const char* format, ...);
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void say_part(FILE* out, const char* format, ...);
void say_list(FILE* out, const char* format, va_list args);  // a part

// A table on a terminal: rows are collected, then printed with columns as wide as their widest cell, the first to the
// left and all others to the right. {0} at the start.
typedef struct TextTable {
    FILE* rows;
    char* text;
    size_t n;
} TextTable;

// Adds to the rows: cells are apart by tabs and rows end with newlines, so what others wrote is cleaned before. Cells
// behind those of the first row, and the last of a row that has fewer, are words that no column is made wider for.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void text_cells(TextTable* t, const char* format, ...);
void text_table(FILE* out, TextTable* t, const char* indent);  // prints and frees it; without memory there is none
