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

// Counts the bytes before the first `sign`, or all; ' ' stands for blanks.
static size_t before(Word text, char sign) {
    size_t n = 0;
    while (n < text.n && text.at[n] != sign && !(sign == ' ' && is_blank(text.at[n]))) n++;
    return n;
}

static Word behind(Word text, size_t n) { return (Word){text.at + n, text.n - n}; }

// ---- statements and words

Words words_of(const char* text, size_t n, Err err) {
    Word all = {n ? text : "", n};
    return (Words){all, all, n && memchr(text, '\n', n) ? 1 : 0, err};
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
    char why[256], place[32] = "", shown[2 * SHOWN + 8];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    const char *begin = words->all.at, *end = begin + words->all.n, *caret = at.at ? at.at : end;
    const char *from = caret, *to = caret;
    while (from > begin && from[-1] != '\n' && caret - from <= SHOWN) from--;
    while (to < end && *to != '\n' && to - caret <= SHOWN) to++;
    int left = (int)(caret - from), right = (int)(to - caret);
    snprintf(shown, sizeof shown, "%s%.*s^%.*s%s", left > SHOWN ? "..." : "", MIN(left, (int)SHOWN),
             caret - MIN(left, (int)SHOWN), MIN(right, (int)SHOWN), caret, right > SHOWN ? "..." : "");
    for (char* c = shown; *c; c++)
        if (*c < ' ' || *c > '~') *c = '?';
    if (words->line) snprintf(place, sizeof place, "line %d, ", words->line);
    if (left + right == 0) return fail(words->err, "%sat the end: %s", place, why);
    return fail(words->err, "%s\"%s\": %s", place, shown, why);
}

int word_cut(Word* word, char sign, Word* rest) {
    size_t n = before(*word, sign);
    int has = n < word->n;
    if (has) *rest = trimmed(behind(*word, n + 1));
    *word = trimmed((Word){word->at, n});
    return has;
}

// ---- values

void number_print(double x, char* text, size_t bytes) {
    snprintf(text, bytes, "%.15g", x);  // reads best
    if (strtod(text, NULL) != x) snprintf(text, bytes, "%.17g", x);
}

void field_print(const Field* f, const void* base, char* text, size_t bytes) {
    const void* at = (const char*)base + f->at;
    text[0] = 0;
    switch (f->type) {
        case RHYTHM: snprintf(text, bytes, "%d%s", abs(*(const int*)at), *(const int*)at < 0 ? "s" : ""); break;
        case FLAG:
        case INT:
        case INDEX: snprintf(text, bytes, "%d", *(const int*)at); break;
        case INT64: number_print((double)*(const int64_t*)at, text, bytes); break;
        case REAL:
        case BYTES: number_print(*(const double*)at, text, bytes); break;
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
