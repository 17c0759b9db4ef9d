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

static const double MOST_X = 1000;
static const int64_t MOST_STEPS = 1000000000000;  // as --steps

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

static int read_whole(const Reading* r, const char* key, Text text, int64_t least, int64_t most, int64_t* out) {
    int64_t x = 0;
    size_t i = 0;
    // Stops before x can overflow: most is far below INT64_MAX / 10.
    for (; i < text.n && text.at[i] >= '0' && text.at[i] <= '9' && x <= most; i++) x = 10 * x + (text.at[i] - '0');
    if (i < text.n || text.n == 0 || x < least || x > most)
        return refuse(r, "%s is \"%s\", expected a whole number from %lld to %lld", key, show(text).text,
                      (long long)least, (long long)most);
    *out = x;
    return 0;
}

static int read_factor(const Reading* r, Text text, double* out) {
    char digits[32] = "", *end = digits;
    double x = 0;
    if (text.n > 0 && text.n < sizeof digits) {
        memcpy(digits, text.at, text.n);
        if (strspn(digits, "0123456789.eE+-") == text.n) x = strtod(digits, &end);
    }
    if ((size_t)(end - digits) != text.n || text.n == 0 || x < 1 || x > MOST_X)
        return refuse(r, "x is \"%s\", expected a number from 1 to %g", show(text).text, MOST_X);
    *out = x;
    return 0;
}

// ---- pieces

enum { RANK, X, FROM, TO, WHOLE, KEYS };
static const char* const key_names[KEYS] = {"rank", "x", "from", "to", "whole"};

static int read_value(const Reading* r, Straggler* s, int key, Text value) {
    int64_t rank = 0;
    int bad = 0;
    switch (key) {
        case RANK:
            bad = read_whole(r, "rank", value, 0, r->ranks - 1, &rank);
            s->rank = (int)rank;
            break;
        case X:
            bad = read_factor(r, value, &s->x);
            break;
        case FROM:
            bad = read_whole(r, "from", value, 1, MOST_STEPS, &s->from);
            break;
        case TO:
            bad = read_whole(r, "to", value, 1, MOST_STEPS, &s->to);
            break;
        default:
            s->whole = 1;
    }
    return bad;
}

static int read_word(const Reading* r, Straggler* s, Text word, unsigned* given) {
    int key = 0, has_no_value;
    Text value = word, name = take(&value, '=', &has_no_value);
    while (key < KEYS && !is(name, key_names[key])) key++;
    if (key == KEYS) return refuse(r, "found \"%s\", expected one of rank=, x=, from=, to= and whole", show(word).text);
    if (has_no_value != (key == WHOLE))
        return refuse(r, "found \"%s\", expected %s%s", show(word).text, key_names[key],
                      key == WHOLE ? " without a value" : "= and a number");
    if (*given & 1u << key) return refuse(r, "%s is there twice, expected it once", key_names[key]);
    *given |= 1u << key;
    return read_value(r, s, key, trim(value));
}

static int read_piece(const Reading* r, Straggler* s) {
    unsigned given = 0;
    int last = 0;
    Text rest = r->piece;
    *s = (Straggler){.from = 1, .to = INT64_MAX};
    if (rest.n == 0) return refuse(r, "it is empty, expected rank= and x= between two ';'");
    while (!last)
        if (read_word(r, s, take(&rest, ',', &last), &given)) return -1;
    for (int key = RANK; key <= X; key++)
        if (!(given & 1u << key)) return refuse(r, "found no %s=, expected both rank= and x=", key_names[key]);
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
