// straggle.c - the text of --straggle to a list of slow ranks, see straggle.h. Text that means nothing is refused with
// the piece that it stands in, what was found there and what was expected.
//
// With F_r(t) the pieces that name rank r and hold step t:  slowness = product over F_r(t) of x, apart for the pieces
// that say `whole` and those that do not. A factor for a rank and an interval of steps is how Wang et al. (2024, arXiv
// 2401.11469) make their stragglers too, where a matmul is repeated.
#include "plan/straggle.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

// A part of the spec.
typedef struct Text {
    const char* at;
    size_t n;
} Text;

typedef struct Reading {
    Text piece;
    int number;  // of the piece, from 1
    int ranks;
    char* err;
    size_t errlen;
} Reading;

// For messages: cut off where it is long, what cannot be printed replaced.
typedef struct Shown {
    char text[64];
} Shown;

static Shown show(Text text) {
    Shown s = {""};
    size_t n = MIN(text.n, sizeof s.text - 1);
    for (size_t i = 0; i < n; i++) s.text[i] = (char)(text.at[i] >= ' ' && text.at[i] < 127 ? text.at[i] : '?');
    if (text.n > n) memcpy(s.text + n - 3, "...", 3);
    return s;
}

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static int
refuse(const Reading* r, const char* format, ...) {
    char words[256];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    return fail(r->err, r->errlen, "--straggle: piece %d \"%s\": %s; example: \"rank=0,x=4,from=20,to=80,whole\"",
                r->number, show(r->piece).text, words);
}

// ---- words

static Text trim(Text text) {
    while (text.n > 0 && (text.at[0] == ' ' || text.at[0] == '\t')) text.at++, text.n--;
    while (text.n > 0 && (text.at[text.n - 1] == ' ' || text.at[text.n - 1] == '\t')) text.n--;
    return text;
}

// Takes what lies before the next separator, and that with it, from rest. *last: there was none.
static Text take(Text* rest, char separator, int* last) {
    const char* found = rest->n ? (const char*)memchr(rest->at, separator, rest->n) : NULL;
    Text taken = {rest->at, found ? (size_t)(found - rest->at) : rest->n};
    *last = !found;
    rest->at += taken.n + (found != NULL);
    rest->n -= taken.n + (found != NULL);
    return trim(taken);
}

static int is(Text text, const char* word) { return text.n == strlen(word) && !memcmp(text.at, word, text.n); }

// ---- pieces

enum { RANK, X, FROM, TO, WHOLE, KEYS };
static const struct {
    const char* name;
    int is_whole;
    double least, most;  // the greatest rank depends on their number; steps as --steps
} keys[KEYS] = {{"rank", 1, 0, 0}, {"x", 0, 1, 1000}, {"from", 1, 1, 1e12}, {"to", 1, 1, 1e12}, {"whole", 0, 0, 0}};

static int read_number(const Reading* r, int key, Text text, double* out) {
    char digits[32] = "", *end = digits;
    int is_whole = keys[key].is_whole;
    double least = keys[key].least, most = key == RANK ? r->ranks - 1 : keys[key].most, x = 0;
    if (text.n > 0 && text.n < sizeof digits) {
        memcpy(digits, text.at, text.n);
        if (strspn(digits, is_whole ? "0123456789" : "0123456789.eE+-") == text.n) x = strtod(digits, &end);
    }
    if ((size_t)(end - digits) != text.n || text.n == 0 || x < least || x > most)
        return refuse(r, "%s is \"%s\", expected a %snumber from %.0f to %.0f", keys[key].name, show(text).text,
                      is_whole ? "whole " : "", least, most);
    *out = x;
    return 0;
}

static int read_word(const Reading* r, Text word, double* values, unsigned* given) {
    int key = 0, has_no_value;
    Text value = word, name = take(&value, '=', &has_no_value);
    while (key < KEYS && !is(name, keys[key].name)) key++;
    if (key == KEYS) return refuse(r, "found \"%s\", expected one of rank=, x=, from=, to= and whole", show(word).text);
    if (has_no_value != (key == WHOLE))
        return refuse(r, "found \"%s\", expected %s%s", show(word).text, keys[key].name,
                      key == WHOLE ? " without a value" : "= and a number");
    if (*given & 1u << key) return refuse(r, "%s is there twice, expected it once", keys[key].name);
    *given |= 1u << key;
    return key == WHOLE ? 0 : read_number(r, key, trim(value), &values[key]);
}

static int read_piece(const Reading* r, Straggler* s) {
    double values[KEYS] = {[FROM] = 1};
    unsigned given = 0;
    int last = 0;
    Text rest = r->piece;
    if (rest.n == 0) return refuse(r, "it is empty, expected rank= and x= between two ';'");
    while (!last)
        if (read_word(r, take(&rest, ',', &last), values, &given)) return -1;
    for (int key = RANK; key <= X; key++)
        if (!(given & 1u << key)) return refuse(r, "found no %s=, expected both rank= and x=", keys[key].name);
    *s = (Straggler){(int)values[RANK], values[X], (int64_t)values[FROM], INT64_MAX, (given & 1u << WHOLE) != 0};
    if (given & 1u << TO) s->to = (int64_t)values[TO];
    if (s->to < s->from)
        return refuse(r, "to is %lld, expected at least from, which is %lld", (long long)s->to, (long long)s->from);
    return 0;
}

int straggle_parse(Straggler* list, int* n, const char* spec, int ranks, char* err, size_t errlen) {
    Text rest = {spec ? spec : "", spec ? strlen(spec) : 0};
    Reading r = {.ranks = ranks, .err = err, .errlen = errlen};
    *n = 0;
    if (trim(rest).n == 0) return 0;
    for (int last = 0; !last;) {
        r.piece = take(&rest, ';', &last);
        if (r.number++ == MOST_STRAGGLERS) return refuse(&r, "expected at most %d pieces", MOST_STRAGGLERS);
        if (read_piece(&r, &list[r.number - 1])) return -1;
    }
    *n = r.number;
    return 0;
}

Slowness straggle_at(const Straggler* list, int n, int rank, int64_t step) {
    Slowness slow = {1, 1};
    for (int i = 0; i < n; i++) {
        const Straggler* s = &list[i];
        if (s->rank != rank || step < s->from || step > s->to) continue;
        if (s->whole) slow.whole *= s->x;
        else slow.linear *= s->x;
    }
    return slow;
}
