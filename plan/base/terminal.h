// terminal.h - what a run shows to people: durations, sizes, words of a shell, tables, the last line of a rank.
#pragma once
#include "plan/base/base.h"
#include "plan/base/text.h"

// "1 document", "12 documents"
const char* text_many(int64_t n, const char* noun, char text[64]);
// "1h02m", "3m05s", "42s"
const char* text_duration(double seconds, char text[32]);
// "412.3 MiB", "12.3 GiB"; returns text.
const char* text_bytes(double bytes, char text[32]);

// From here on lines on a terminal are broken between words if they are longer than `columns` says (0: not known).
// Other output stays as it is, so that programs can read it.
void wrap_output(int (*columns)(void));
void wrap_pause(int pauses);  // 1: the text to come keeps its lines; 0: it is over
// Ends the program if standard output could not be written.
void end_output(void);

// Returns the text as a word of a shell command: as it is, or in single quotes if it holds anything but letters, digits
// and -_./:=,+@%. It is cut if it is too long for the room.
const char* text_quoted(const char* text, char* word, size_t room);

// Prints a line, or a part of one, as printf would, but safe; newlines in it become '?' too.
__attribute__((format(printf, 2, 3))) void say(FILE* out, const char* format, ...);
__attribute__((format(printf, 2, 3))) void say_part(FILE* out, const char* format, ...);

// A table on a terminal: rows are collected, then printed with columns as wide as their widest cell, the first to the
// left and all others to the right. {0} at the start.
typedef struct TextTable {
    FILE* rows;
    char* text;
    size_t n;
} TextTable;

// Adds to the rows. Tabs separate cells and newlines end rows, so text of others is cleaned before. A row's last cell,
// if the first row has more cells, and cells beyond the first row's are words that widen no column.
__attribute__((format(printf, 2, 3))) void text_cells(TextTable* t, const char* format, ...);
void text_table(FILE* out, TextTable* t, const char* indent);  // prints and frees it; without memory there is none

// From here on a line of die names the rank. All but rank 0 first wait a moment: most errors are the same on all ranks,
// and the launcher ends the others when the first one is gone, so that the line appears once. A rank leaves by _exit:
// no handler that is registered for the end runs.
void die_as_rank(int rank);
