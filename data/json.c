// json.c - a recursive-descent reader that keeps pointers instead of copies; see json.h. Grammar: RFC 8259.
//
// Each function of the first part reads one rule of the grammar at p->at and moves past it, or leaves p->at at the
// first wrong byte and notes in p->why what was expected there. No byte at or after p->end is read.
#include "data/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/unicode.h"
#include "plan/base/fields.h"

enum { DEEPEST = 130 };  // a tree of 64 branches is an object in an array in an object

typedef struct Parser {
    const char *text, *at, *end;
    JsonValue* values;
    int n, room;
    const char* why;  // what was expected at `at`
} Parser;

static int value(Parser* p, int depth);

static int expected(Parser* p, const char* what) {
    if (!p->why) p->why = what;
    return -1;
}

static void skip_space(Parser* p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r')) p->at++;
}

// Appends a value; returns its index or -1.
static int begin(Parser* p, JsonType type) {
    if (p->n == p->room) {
        int room = p->room ? 2 * p->room : 64;
        JsonValue* more = p->room > 1 << 28 ? NULL : realloc(p->values, sizeof *more * (size_t)room);
        if (!more) return expected(p, "less JSON than memory");
        p->values = more;
        p->room = room;
    }
    p->values[p->n] = (JsonValue){.type = type, .text = p->at};
    return p->n++;
}

static int finish(Parser* p, int i, const char* end) {
    p->values[i].length = (size_t)(end - p->values[i].text);
    return 0;
}

static int is_digit(const Parser* p) { return p->at < p->end && *p->at >= '0' && *p->at <= '9'; }

static int take(Parser* p, char c) {
    int is = p->at < p->end && *p->at == c;
    p->at += is;
    return is;
}

static int digits(Parser* p) {
    if (!is_digit(p)) return expected(p, "a digit");
    while (is_digit(p)) p->at++;
    return 0;
}

// -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
static int number(Parser* p) {
    int i = begin(p, JSON_NUMBER);
    if (i < 0) return -1;
    take(p, '-');
    if (!take(p, '0') && digits(p)) return -1;
    if (take(p, '.') && digits(p)) return -1;
    if (take(p, 'e') || take(p, 'E')) {
        if (!take(p, '+')) take(p, '-');
        if (digits(p)) return -1;
    }
    return finish(p, i, p->at);
}

static int string(Parser* p) {
    int i = begin(p, JSON_STRING);
    if (i < 0) return -1;
    for (; p->at < p->end && *p->at != '"'; p->at++) {
        if ((unsigned char)*p->at < 0x20) return expected(p, "an escape instead of a control character");
        if (*p->at == '\\' && ++p->at == p->end) break;
    }
    if (p->at == p->end) return expected(p, "the end of a string");
    finish(p, i, p->at);
    p->at++;
    return 0;
}

static int word(Parser* p, const char* text, JsonType type) {
    size_t n = strlen(text);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, text, n)) return expected(p, "a value");
    int i = begin(p, type);
    if (i < 0) return -1;
    p->at += n;
    return finish(p, i, p->at);
}

static int member_name(Parser* p) {
    skip_space(p);
    if (!take(p, '"')) return expected(p, "a name in quotes");
    if (string(p)) return -1;
    skip_space(p);
    return take(p, ':') ? 0 : expected(p, "a colon");
}

static int container(Parser* p, int depth) {
    int is_object = *p->at == '{', i = begin(p, is_object ? JSON_OBJECT : JSON_ARRAY);
    char close = is_object ? '}' : ']';
    if (i < 0) return -1;
    if (depth == DEEPEST) return expected(p, "at most 130 levels of nesting");
    p->at++;
    skip_space(p);
    if (take(p, close)) return finish(p, i, p->at);
    int last = -1;
    do {
        if (last >= 0) p->values[last].next = p->n - last;
        last = p->n;
        if ((is_object && member_name(p)) || value(p, depth + 1)) return -1;
        p->values[i].n++;
        skip_space(p);
    } while (take(p, ','));
    return take(p, close) ? finish(p, i, p->at) : expected(p, is_object ? "a comma or }" : "a comma or ]");
}

static int value(Parser* p, int depth) {
    skip_space(p);
    if (p->at == p->end) return expected(p, "a value");
    if (take(p, '"')) return string(p);
    switch (*p->at) {
        case '{':
        case '[': return container(p, depth);
        case 't': return word(p, "true", JSON_TRUE);
        case 'f': return word(p, "false", JSON_FALSE);
        case 'n': return word(p, "null", JSON_NULL);
        default: return is_digit(p) || *p->at == '-' ? number(p) : expected(p, "a value");
    }
}

// Says what was expected at p->at, and what was found.
static int refuse(const Parser* p, Err err) {
    char found[16] = "the end";
    unsigned char c = p->at < p->end ? (unsigned char)*p->at : 0;
    if (p->at < p->end) snprintf(found, sizeof found, c > ' ' && c < 0x7f ? "%c" : "byte 0x%02x", c);
    return fail(err, "JSON: expected %s at byte %zu of %zu, found %s", p->why, (size_t)(p->at - p->text),
                (size_t)(p->end - p->text), found);
}

int json_parse(Json* json, const char* text, size_t n, Err err) {
    if (n == 0) text = "";  // it may be NULL
    Parser p = {.text = text, .at = text, .end = text + n};
    p.at += utf8_mark(text, n);
    int bad = value(&p, 0);
    if (!bad) skip_space(&p);
    if (!bad && p.at != p.end) bad = expected(&p, "the end of the text");
    *json = (Json){p.values, p.n};
    if (!bad) return 0;
    json_free(json);
    return refuse(&p, err);
}

void json_free(Json* json) {
    free(json->values);
    *json = (Json){0};
}

// ---- access

int json_is(const JsonValue* v, const char* text) {
    size_t n = strlen(text);
    if (!v || v->type != JSON_STRING) return 0;
    if (!memchr(v->text, '\\', v->length)) return v->length == n && !memcmp(v->text, text, n);
    char* plain = malloc(v->length + 1);
    int same = plain && json_string(v, plain) == (int64_t)n && !memcmp(plain, text, n);
    free(plain);
    return same;
}

static const JsonValue* first_of(const JsonValue* v, JsonType type) {
    return v && v->type == type && v->n ? v + 1 : NULL;
}

const JsonValue* json_elements(const JsonValue* v) { return first_of(v, JSON_ARRAY); }
const JsonValue* json_members(const JsonValue* v) { return first_of(v, JSON_OBJECT); }
const JsonValue* json_next(const JsonValue* v) { return v->next ? v + v->next : NULL; }

const JsonValue* json_get(const JsonValue* object, const char* key) {
    const JsonValue* found = NULL;
    for (const JsonValue* name = json_members(object); name; name = json_next(name))
        if (json_is(name, key)) found = name + 1;
    return found;
}

const JsonValue* json_at(const JsonValue* array, int i) {
    const JsonValue* v = i < 0 ? NULL : json_elements(array);
    while (v && i-- > 0) v = json_next(v);
    return v;
}

int json_shown(const JsonValue* v) {
    int n = 0;
    while (n < (int)MIN(v->length, (size_t)60) && (unsigned char)v->text[n] >= ' ') n++;
    return n;
}

const char* json_names(const JsonValue* object, char* words, size_t room) {
    size_t n = 0;
    snprintf(words, room, "of none");
    for (const JsonValue* name = json_members(object); name; name = json_next(name))
        text_append(words, room, &n, "%s\"%.*s\"", n ? ", " : "", (int)MIN(name->length, 64), name->text);
    return words;
}

// ---- conversions

// Makes a terminated copy of a number, whose own text is not terminated.
static int copy_number(const JsonValue* v, char* text, size_t room) {
    if (!v || v->type != JSON_NUMBER || v->length >= room) return -1;
    memcpy(text, v->text, v->length);
    text[v->length] = 0;
    return 0;
}

int json_double(const JsonValue* v, double* out) {
    char text[512];
    if (copy_number(v, text, sizeof text)) return -1;
    double x = strtod(text, NULL);  // reads a point because the program stays in the "C" locale
    if (isinf(x)) return -1;
    *out = x;
    return 0;
}

int json_uint64(const JsonValue* v, uint64_t* out) {
    char text[32];
    if (copy_number(v, text, sizeof text) || strpbrk(text, "-.eE")) return -1;
    errno = 0;
    unsigned long long x = strtoull(text, NULL, 10);
    if (errno == 0) *out = x;
    return errno ? -1 : 0;
}

int json_int64(const JsonValue* v, int64_t* out) {
    char text[32];
    if (copy_number(v, text, sizeof text) || strpbrk(text, ".eE")) return -1;
    errno = 0;
    long long x = strtoll(text, NULL, 10);
    if (errno == 0) *out = x;
    return errno ? -1 : 0;
}

// ---- strings

static int hex4(const char* p, uint32_t* out) {
    *out = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i], letter = (char)(c | 0x20);
        if (c >= '0' && c <= '9') *out = *out << 4 | (uint32_t)(c - '0');
        else if (letter >= 'a' && letter <= 'f') *out = *out << 4 | (uint32_t)(letter - 'a' + 10);
        else return -1;
    }
    return 0;
}

// out = the *n_out bytes (at most 4) that the character or escape at p stands for, where n > 0 bytes are left. Returns
// how many bytes of p it takes (at most 12, at least *n_out); 0 at a quote or a bad escape, and at a lone surrogate
// unless they are counted: then it is U+FFFD.
static size_t unescape(const char* p, size_t n, char* out, int* n_out, int64_t* lone) {
    static const char names[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    uint32_t c, low;
    *n_out = 1;
    *out = *p;
    if (*p != '\\') return *p != '"';
    const char* name = n > 1 && p[1] ? strchr(names, p[1]) : NULL;
    if (name) return *out = bytes[name - names], 2;
    if (n < 6 || p[1] != 'u' || hex4(p + 2, &c)) return 0;
    if (c < 0xd800 || c > 0xdfff) return *n_out = (int)utf8_encode(out, c), 6;
    if (c > 0xdbff || n < 12 || p[6] != '\\' || p[7] != 'u' || hex4(p + 8, &low) || low < 0xdc00 || low > 0xdfff)
        return lone ? ++*lone, *n_out = (int)utf8_encode(out, 0xfffd), 6 : 0;
    *n_out = (int)utf8_encode(out, 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00));
    return 12;
}

// Reads a byte that is no text, as json_put_bytes writes it. Returns the bytes of p that it takes; 0: it is none.
static size_t take_byte(const char* p, size_t n, char* out) {
    uint32_t c;
    if (n < 6 || p[0] != '\\' || p[1] != 'u' || hex4(p + 2, &c) || c < 0xdc80 || c > 0xdcff) return 0;
    *out = (char)(c & 0xff);
    return 6;
}

static int64_t unquote(const JsonValue* v, char* out, size_t room, int bytes, int64_t* lone) {
    if (!v || v->type != JSON_STRING) return -1;
    size_t used = 0;
    for (size_t i = 0, taken; i < v->length; i += taken) {
        char piece[4];
        int n = 1;
        taken = bytes ? take_byte(v->text + i, v->length - i, piece) : 0;
        if (!taken) taken = unescape(v->text + i, v->length - i, piece, &n, lone);
        if (taken == 0 || used + (size_t)n >= room) return -1;
        for (int k = 0; k < n; k++) out[used++] = piece[k];
    }
    out[used] = 0;
    return (int64_t)used;
}

int64_t json_string(const JsonValue* v, char* out) { return unquote(v, out, SIZE_MAX, 0, NULL); }
int64_t json_prose(const JsonValue* v, char* out, int64_t* replaced) { return unquote(v, out, SIZE_MAX, 0, replaced); }
int64_t json_bytes(const JsonValue* v, char* out) { return unquote(v, out, SIZE_MAX, 1, NULL); }

int json_text(const JsonValue* v, char* out, size_t room) {
    int64_t n = unquote(v, out, room, 0, NULL);
    for (int64_t i = 0; i < n; i++)
        if ((unsigned char)out[i] < ' ') return -1;
    return n < 0 ? -1 : 0;
}

// out = the *n_out bytes (at most 6) that stand for the character at p, where n > 0 bytes are left; keep: as json_bytes
// reads them. Returns how many bytes of p it takes.
static size_t escape(const char* p, size_t n, int keep, char out[6], size_t* n_out) {
    static const char hex[] = "0123456789abcdef", named[] = "\b\f\n\r\t\"\\", names[] = "bfnrt\"\\";
    unsigned char c = (unsigned char)*p;
    size_t length;
    uint32_t code = utf8_decode(p, n, &length);
    int is_text = code < 0xd800 || (code > 0xdfff && code < 0x110000);
    const char *bytes = p, *name = c ? strchr(named, c) : NULL,
               escaped[] = {'\\', 'u', is_text ? '0' : 'd', is_text ? '0' : 'c', hex[c >> 4], hex[c & 15]},
               pair[] = {'\\', name ? names[name - named] : 0};
    *n_out = length;
    if (!is_text && !keep) bytes = "\xef\xbf\xbd", *n_out = 3;
    else if (name) bytes = pair, *n_out = 2;
    else if (!is_text || c < 0x20 || c == 0x7f) bytes = escaped, *n_out = 6;
    memcpy(out, bytes, *n_out);
    return is_text ? length : 1;
}

size_t json_quote(char* out, const char* text, size_t n) {
    size_t used = 1, more;
    *out = '"';
    for (size_t i = 0; i < n; used += more) i += escape(text + i, n - i, 0, out + used, &more);
    strcpy(out + used, "\"");
    return used + 1;
}

static void put(FILE* out, const char* text, size_t n, int keep) {
    char bytes[6];
    size_t more;
    fputc('"', out);
    for (size_t i = 0; i < n; fwrite(bytes, 1, more, out)) i += escape(text + i, n - i, keep, bytes, &more);
    fputc('"', out);
}

void json_put(FILE* out, const char* text, size_t n) { put(out, text, n, 0); }
void json_put_bytes(FILE* out, const char* text, size_t n) { put(out, text, n, 1); }

char* json_end(FILE* out, char** text) {
    int failed = ferror(out);
    if (!fclose(out) && !failed) return *text;
    free(*text);
    return NULL;
}
