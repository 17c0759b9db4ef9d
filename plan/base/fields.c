// fields.c - see fields.h.
#include "plan/base/fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int word_is(Word word, const char* text) { return word.n == strlen(text) && !memcmp(word.at, text, word.n); }

int word_choice(Word word, const char* choices) {
    for (int i = 0;; i++) {
        size_t n = strcspn(choices, "|");
        if (n == word.n && !memcmp(choices, word.at, n)) return i;
        if (!choices[n]) return -1;
        choices += n + 1;
    }
}

enum { SECONDS = 7 };  // of the units of a RHYTHM

// Returns the number's unit, 0 for none, or -1 where the word is no number. Hexadecimal is none. A fraction has a
// point, because the program stays in the "C" locale.
static int read_number(const Field* f, Word word, double* x) {
    const char* units = f->type == REAL     ? ""
                        : f->type == BYTES  ? "|K|M|G|Ki|Mi|Gi"
                        : f->type == RHYTHM ? "|k|M|G|Ki|Mi|Gi|s"
                                            : "|k|M|G|Ki|Mi|Gi";
    char digits[64], *end;
    size_t n = 0;
    for (; n < MIN(word.n, sizeof digits - 1) && memchr("0123456789.eE+-", word.at[n], 15); n++) digits[n] = word.at[n];
    digits[n] = 0;
    *x = strtod(digits, &end);
    if (n == 0 || *end) return -1;
    int unit = word_choice((Word){word.at + n, word.n - n}, units);
    if (unit > 0 && unit != SECONDS) *x *= pow(f->type == BYTES || unit > 3 ? 1024 : 1000, (unit - 1) % 3 + 1);
    return unit;
}

static const char* set_number(const Field* f, void* at, Word word, char wanted[WANTED]) {
    double x;
    int is_whole = f->type == INT || f->type == INT64 || f->type == RHYTHM, unit = read_number(f, word, &x);
    if (unit < 0 || x < f->least || x > f->most || (is_whole && x != floor(x))) {
        const char* kind = is_whole ? "whole number" : f->type == BYTES ? "size like 64M or 24G," : "number";
        if (f->type == RHYTHM) kind = "number of steps, or of seconds like 90s,";
        int in_seconds = f->type == RHYTHM && word.n && word.at[word.n - 1] == 's';
        int has_unit = is_whole && word.n && word.at[0] <= '9' && word.at[word.n - 1 - (size_t)in_seconds] > '9';
        snprintf(wanted, WANTED, "a %s from %.15g to %.15g%s", kind, f->least, f->most,
                 has_unit ? ", as 10k (10000) or 64Ki (65536)" : "");
        return wanted;
    }
    if (f->type == INT || f->type == RHYTHM) *(int*)at = unit == SECONDS ? -(int)x : (int)x;
    else if (f->type == INT64) *(int64_t*)at = (int64_t)x;
    else *(double*)at = x == 0 ? 0 : x;  // not -0, which would print another way
    return NULL;
}

static const char* set_name(const Field* f, char* at, Word word, char wanted[WANTED]) {
    size_t good = 0;
    while (good < word.n && word.at[good] > ' ' && word.at[good] <= '~') good++;
    if (good == word.n && good > 0 && good <= (size_t)f->most) return memcpy(at, word.at, word.n), at[word.n] = 0, NULL;
    snprintf(wanted, WANTED, "a word of at most %.0f ASCII characters", f->most);
    return wanted;
}

const char* field_set(const Field* f, void* base, Word word, char wanted[WANTED]) {
    void* at = (char*)base + f->at;
    int choice = f->type == CHOICE || f->type == INDEX ? word_choice(word, f->choices) : 0;
    if (choice < 0) return snprintf(wanted, WANTED, "%s", f->choices), wanted;
    switch (f->type) {
        case FLAG: *(int*)at = !word_is(word, "0"); break;
        case INT:
        case RHYTHM:
        case INT64:
        case REAL:
        case BYTES: return set_number(f, at, word, wanted);
        case TEXT:
        case MAYBE:
        case CHOICE: *(const char**)at = word.at; break;
        case INDEX: *(int*)at = choice; break;
        case NAME: return set_name(f, (char*)at, word, wanted);
        default: break;
    }
    return NULL;
}

void text_append(char* text, size_t bytes, size_t* n, const char* format, ...) {
    va_list args;
    va_start(args, format);
    *n += (size_t)vsnprintf(*n < bytes ? text + *n : NULL, *n < bytes ? bytes - *n : 0, format, args);
    va_end(args);
}
