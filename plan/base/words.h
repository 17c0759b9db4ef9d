// words.h - text that people write, read by one set of rules: options, layouts, strategies, machine files, stragglers.
//
//   statement  a line, or a part of one up to a ';'; # begins a comment, to the end of the line
//   list       words with blanks, commas or other signs between them; blanks around a word are not of it
//   number     5, -0.25, 1e-3; a whole one may be 3e0. No hexadecimal, no infinity, nothing behind it
//
// What is wrong is refused in one line, with a ^ before the place: line 2, "stage layers ^2x": expected a whole number
#pragma once
#include "plan/base/base.h"

// A part of a text; nothing ends it but its length.
typedef struct Word {
    const char* at;
    size_t n;
} Word;

// A text that is read: what is left of it, and what a message shows.
typedef struct Words {
    Word left;  // at = NULL: nothing, not even an empty word
    Word all;
    int line;  // from 1; 0: the text has but one
    char* err;
    size_t errlen;
} Words;

Words words_of(const char* text, size_t n, char* err, size_t errlen);
// The next statement that has words. Whether there is one.
int words_statement(Words* text, Words* statement);
// The next word up to the sign, which goes, too. ' ' stands for blanks, and no word between them is empty. Whether
// there is one: behind the last sign there is, maybe empty, and in a text of blanks there is none.
int words_next(Words* words, char sign, Word* word);
// fail() with the line, and a ^ before `at` in what stands around it.
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
int words_refuse(const Words* words, Word at, const char* format, ...);

int word_is(Word word, const char* text);
// Cuts the word before its first `sign`, and what is behind that is *rest. Whether it has one.
int word_cut(Word* word, char sign, Word* rest);
// Takes the prefix, or digits, from the beginning of a word. Whether they were there; -1: a number above `most`.
int word_take(Word* word, const char* prefix);
int word_take_number(Word* word, int* value, int most);
// Which of "a|b|c" the word is, from 0; -1: none.
int word_choice(Word word, const char* choices);

// ---- values of a table: where they go, and what they may be

typedef enum ValueType {
    FLAG,    // int 0 or 1
    INT,     // int
    INT64,   // int64_t
    REAL,    // double
    BYTES,   // double: a number, or of K, M or G: 64M is 2^26
    TEXT,    // const char*, any; must end in 0 where it stands, and stays there
    CHOICE,  // the same, of `choices`
    INDEX,   // int, the number of one of `choices`
    NAME,    // char[most + 1] of ASCII without blanks
    PATHS, MAYBE, KEYS, GROUP  // of options alone: plan/options/config.c
} ValueType;

typedef struct Field {
    const char* name;
    ValueType type;
    size_t at;           // in the struct that is filled
    double least, most;  // of numbers; most characters of a NAME
    const char* choices;
} Field;

enum { WANTED = 192 };
// Sets the field of *base. NULL, or what was expected instead, in `wanted`.
const char* field_set(const Field* field, void* base, Word word, char wanted[WANTED]);
// As it could be written; empty for a TEXT that is NULL. Numbers in 15 digits, or in the 17 that read back to the same.
void field_print(const Field* field, const void* base, char* text, size_t bytes);
const Field* field_find(const Field* fields, int n, Word name);  // NULL: none is called so

// snprintf at *n of a text that has room for `bytes`; *n goes on by what it wanted.
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
void text_append(char* text, size_t bytes, size_t* n, const char* format, ...);
