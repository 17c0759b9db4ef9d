// words.c - see words.h.
#include "plan/base/words.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static int is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static Word trimmed(Word word) {
    while (word.n > 0 && is_blank(word.at[0])) word.at++, word.n--;
    while (word.n > 0 && is_blank(word.at[word.n - 1])) word.n--;
    return word;
}

// Bytes before the first `sign`, or all; ' ' stands for blanks.
static size_t before(Word text, char sign) {
    size_t n = 0;
    while (n < text.n && text.at[n] != sign && !(sign == ' ' && is_blank(text.at[n]))) n++;
    return n;
}

static Word behind(Word text, size_t n) { return (Word){text.at + n, text.n - n}; }

// ---- statements and words

Words words_of(const char* text, size_t n, char* err, size_t errlen) {
    Word all = {n ? text : "", n};
    return (Words){all, all, n && memchr(text, '\n', n) ? 1 : 0, err, errlen};
}

int words_statement(Words* text, Words* statement) {
    *statement = *text;
    while (text->left.n > 0) {
        Word line = {text->left.at, before(text->left, '\n')}, said = {line.at, before(line, '#')};
        size_t n = before(said, ';');
        statement->line = text->line;
        statement->all = statement->left = trimmed((Word){said.at, n});
        int ends = n == said.n;  // the line, with its comment
        text->left = behind(text->left, MIN(ends ? line.n + 1 : n + 1, text->left.n));
        if (ends && text->line) text->line++;
        if (statement->left.n > 0) return 1;
    }
    return 0;
}

int words_next(Words* words, char sign, Word* word) {
    Word left = trimmed(words->left);
    if (!left.at || (left.n == 0 && (sign == ' ' || words->all.n == 0))) return 0;
    size_t n = before(left, sign);
    *word = trimmed((Word){left.at, n});
    words->left = n < left.n ? behind(left, n + 1) : (Word){sign == ' ' ? left.at + n : NULL, 0};
    return 1;
}

int words_refuse(const Words* words, Word at, const char* format, ...) {
    enum { SHOWN = 40 };
    char why[256], place[32] = "", shown[2][SHOWN + 4];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    const char *end = words->all.at + words->all.n, *caret = at.at ? at.at : end;
    Word line = {caret, (size_t)(end - caret)};
    size_t left = 0, right = before(line, '\n');
    while (caret - left > words->all.at && caret[-(ptrdiff_t)left - 1] != '\n') left++;
    snprintf(shown[0], sizeof shown[0], "%s%.*s", left > SHOWN ? "..." : "", (int)MIN(left, (size_t)SHOWN),
             caret - MIN(left, (size_t)SHOWN));
    snprintf(shown[1], sizeof shown[1], "%.*s%s", (int)MIN(right, (size_t)SHOWN), caret, right > SHOWN ? "..." : "");
    for (int i = 0; i < 2; i++)
        for (char* c = shown[i]; *c; c++)
            if (*c < ' ' || *c > '~') *c = '?';
    if (words->line) snprintf(place, sizeof place, "line %d, ", words->line);
    if (left + right == 0) return fail(words->err, words->errlen, "%sat the end: %s", place, why);
    return fail(words->err, words->errlen, "%s\"%s^%s\": %s", place, shown[0], shown[1], why);
}

int word_is(Word word, const char* text) { return word.n == strlen(text) && !memcmp(word.at, text, word.n); }

int word_cut(Word* word, char sign, Word* rest) {
    size_t n = before(*word, sign);
    int has = n < word->n;
    if (has) *rest = trimmed(behind(*word, n + 1));
    *word = trimmed((Word){word->at, n});
    return has;
}

int word_take(Word* word, const char* prefix) {
    size_t n = strlen(prefix);
    if (word->n < n || memcmp(word->at, prefix, n) != 0) return 0;
    *word = behind(*word, n);
    return 1;
}

int word_take_number(Word* word, int* value, int most) {
    int64_t x = 0;
    size_t n = 0;
    for (; n < word->n && word->at[n] >= '0' && word->at[n] <= '9'; n++) x = MIN(x * 10 + (word->at[n] - '0'), 1 << 30);
    *word = behind(*word, n);
    *value = (int)x;
    return x > most ? -1 : n > 0;
}

int word_choice(Word word, const char* choices) {
    for (int i = 0;; i++) {
        size_t n = strcspn(choices, "|");
        if (n == word.n && !memcmp(choices, word.at, n)) return i;
        if (!choices[n]) return -1;
        choices += n + 1;
    }
}

// ---- values

static int read_number(Word word, double* x) {
    char digits[64], *end = digits;
    if (word.n == 0 || word.n >= sizeof digits) return 0;
    memcpy(digits, word.at, word.n);
    digits[word.n] = 0;
    if (strspn(digits, "0123456789.eE+-") != word.n) return 0;
    *x = strtod(digits, &end);  // a point, because the program stays in the "C" locale
    return end == digits + word.n;
}

static const char* set_number(const Field* f, void* at, Word word, char wanted[WANTED]) {
    double x = 0, scale = 1;
    int is_whole = f->type == INT || f->type == INT64;
    const char *units = "KMG", *unit = word.n > 0 && f->type == BYTES ? strchr(units, word.at[word.n - 1]) : NULL;
    if (unit) scale = (double)((int64_t)1 << 10 * (unit - units + 1)), word.n--;
    if (!read_number(word, &x) || (x *= scale) < f->least || x > f->most || (is_whole && x != floor(x))) {
        snprintf(wanted, WANTED, "a %s from %.15g to %.15g",
                 is_whole ? "whole number" : f->type == BYTES ? "size like 64M or 24G," : "number", f->least, f->most);
        return wanted;
    }
    if (f->type == INT) *(int*)at = (int)x;
    else if (f->type == INT64) *(int64_t*)at = (int64_t)x;
    else *(double*)at = x == 0 ? 0 : x;  // not -0, which would print another way
    return NULL;
}

static const char* set_name(const Field* f, char* at, Word word, char wanted[WANTED]) {
    size_t good = 0;
    while (good < word.n && word.at[good] > ' ' && word.at[good] <= '~') good++;
    if (good == word.n && good > 0 && good <= (size_t)f->most) {
        memcpy(at, word.at, word.n);
        at[word.n] = 0;
        return NULL;
    }
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

static void print_number(double x, char* text, size_t bytes) {
    snprintf(text, bytes, "%.15g", x);  // reads best
    if (strtod(text, NULL) != x) snprintf(text, bytes, "%.17g", x);
}

void field_print(const Field* f, const void* base, char* text, size_t bytes) {
    const void* at = (const char*)base + f->at;
    text[0] = 0;
    switch (f->type) {
        case FLAG:
        case INT:
        case INDEX: snprintf(text, bytes, "%d", *(const int*)at); break;
        case INT64: print_number((double)*(const int64_t*)at, text, bytes); break;
        case REAL:
        case BYTES: print_number(*(const double*)at, text, bytes); break;
        case TEXT:
        case CHOICE: snprintf(text, bytes, "%s", *(char* const*)at ? *(char* const*)at : ""); break;
        case NAME: snprintf(text, bytes, "%s", (const char*)at); break;
        default: break;
    }
}

const Field* field_find(const Field* fields, int n, Word name) {
    for (int i = 0; i < n; i++)
        if (word_is(name, fields[i].name)) return &fields[i];
    return NULL;
}

void text_append(char* text, size_t bytes, size_t* n, const char* format, ...) {
    va_list args;
    va_start(args, format);
    *n += (size_t)vsnprintf(*n < bytes ? text + *n : NULL, *n < bytes ? bytes - *n : 0, format, args);
    va_end(args);
}
