// words.h - text that people write, read by one set of rules: options, layouts, strategies, machine files, stragglers.
//
//   statement  a line, or a part of one up to a ';'; # begins a comment, to the end of the line
//   list       words with blanks, commas or other signs between them; blanks around a word are not of it
//   number     5, -0.25, 1e-3; a whole one may be 3e0, 10k (10000), 64Ki (65536). No hexadecimal
//
// Errors are refused in one line, with a ^ before the place: line 2, "stage layers ^2x": expected a whole number
#pragma once
#include "plan/base/fields.h"

// A text that is read: the part that is left, and the whole, which a message shows.
typedef struct Words {
    Word left;  // at = NULL: nothing, not even an empty word
    Word all;
    int line;  // from 1; 0: the text has but one
    char* err;
} Words;

Words words_of(const char* text, size_t n, Err err);
// Takes the next statement that has words. Returns 1 if there is one.
int words_statement(Words* text, Words* statement);
// Takes the next word up to the sign, which goes, too. ' ' stands for blanks, and no word between them is empty.
// Returns 1 if there is one: after the last sign there is, maybe empty; a text of blanks has none.
int words_next(Words* words, char sign, Word* word);
// Calls fail() with the line, and a ^ before `at` in what stands around it.
__attribute__((format(printf, 3, 4))) int words_refuse(const Words* words, Word at, const char* format, ...);

// Cuts the word before its first `sign`, and *rest is what follows that. Returns 1 if the word has one.
int word_cut(Word* word, char sign, Word* rest);
// Prints a number in 15 digits, or in 17 if only these read back to the same.
void number_print(double x, char* text, size_t bytes);
// Prints the field as it could be written; empty for a TEXT that is NULL.
void field_print(const Field* field, const void* base, char* text, size_t bytes);
const Field* field_find(const Field* fields, int n, Word name);  // NULL: none is called so
