// fields.h - values that people write, as rows of a table: where they go in a struct, and what they may be.
#pragma once
#include "plan/base/base.h"

// A part of a text; nothing ends it but its length.
typedef struct Word {
    const char* at;
    size_t n;
} Word;

int word_is(Word word, const char* text);
// Returns which of "a|b|c" the word is, from 0; -1: none.
int word_choice(Word word, const char* choices);

typedef enum ValueType {
    FLAG,    // int 0 or 1
    INT,     // int; 10k, 2M, 1G are decimal, 64Ki, 2Mi, 1Gi binary, also in the next two
    RHYTHM,  // int: N steps; with an s after the number, seconds, stored negative
    INT64,   // int64_t
    REAL,    // double
    BYTES,   // double: a number, or one of K, M or G, all binary: 64M is 64Mi is 2^26
    TEXT,    // const char*, any; must end in 0 where it stands, and stays there
    CHOICE,  // the same, of `choices`
    INDEX,   // int, the number of one of `choices`
    NAME,    // char[most + 1] of ASCII without blanks
    PATHS,
    MAYBE,
    KEYS,
    GROUP  // a GROUP is of options alone: plan/options/config.c
} ValueType;

typedef struct Field {
    const char* name;
    ValueType type;
    size_t at;           // offset in the struct that is filled
    double least, most;  // bounds of a number; `most` is also the most characters of a NAME
    const char* choices;
} Field;

enum { WANTED = 192 };
// Sets the field of *base. Returns NULL, or what was expected instead, in `wanted`.
const char* field_set(const Field* field, void* base, Word word, char wanted[WANTED]);

// snprintf at *n of a text with room for `bytes`; *n grows by the length that it wanted.
__attribute__((format(printf, 4, 5))) void text_append(char* text, size_t bytes, size_t* n, const char* format, ...);
