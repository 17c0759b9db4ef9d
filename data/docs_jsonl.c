// docs_jsonl.c - JSONL: one JSON object a line, whose string "text" is a document; see docs_format.h.
//
// At opening every line is parsed. With a BPE vocabulary its text is encoded at once. By bytes, a document is known by
// the place of its string in the file, and reading undoes the escapes of JSON from there on. Further marks inside long
// documents keep a piece of them from costing the whole way from the beginning.
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "data/docs_format.h"
#include "data/json.h"
#include "plan/base.h"

enum { STRIDE = 4096 };  // bytes of text between marks

// ---- escapes

// The four hexadecimal digits behind \u; -1 when they are not.
static int hex4(const unsigned char* p) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = p[i] >= '0' && p[i] <= '9'                 ? p[i] - '0'
                    : (p[i] | 32) >= 'a' && (p[i] | 32) <= 'f' ? (p[i] | 32) - 'a' + 10
                                                               : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

static int put_utf8(unsigned char* out, uint32_t code) {
    if (code < 0x80) return out[0] = (unsigned char)code, 1;
    int n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, code >>= 6) out[i] = (unsigned char)(0x80 | (code & 0x3f));
    out[0] = (unsigned char)(0xf00 >> n | code);
    return n;
}

// The bytes that the character or escape at p stands for. Returns how many it takes of the n there, 0 when it is not
// valid.
static int unescape(const unsigned char* p, size_t n, unsigned char out[4], int* n_out) {
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    *n_out = 1;
    out[0] = p[0];
    if (p[0] == '"') return 0;
    if (p[0] != '\\') return 1;
    if (n < 2) return 0;
    const char* letter = p[1] ? strchr(letters, p[1]) : NULL;
    if (letter) return out[0] = (unsigned char)values[letter - letters], 2;
    int high = n >= 6 && p[1] == 'u' ? hex4(p + 2) : -1;
    if (high < 0) return 0;
    if (high < 0xd800 || high > 0xdfff) return *n_out = put_utf8(out, (uint32_t)high), 6;
    int low = n >= 12 && high < 0xdc00 && p[6] == '\\' && p[7] == 'u' ? hex4(p + 8) : -1;
    if (low < 0xdc00 || low > 0xdfff) return 0;
    *n_out = put_utf8(out, 0x10000 + ((uint32_t)(high - 0xd800) << 10 | (uint32_t)(low - 0xdc00)));
    return 12;
}

// ---- opening

// A window that slides over the file and grows to the longest line.
typedef struct LineReader {
    const DocsFile* file;
    char* buffer;
    int64_t capacity;
    int64_t offset;    // of buffer[0] in the file
    int64_t begin, n;  // of the next line, of all bytes in the buffer
    int64_t number;    // of the line, from 1
} LineReader;

// 1 and the line without its end, 0 at the end of the file, or -1.
static int next_line(LineReader* r, const char** line, size_t* n, char* err, size_t errlen) {
    for (int64_t searched = r->begin;;) {
        const char* end = r->n > searched ? memchr(r->buffer + searched, '\n', (size_t)(r->n - searched)) : NULL;
        int64_t rest = r->file->size - r->offset - r->n;
        if (end || rest == 0) {
            *line = r->buffer + r->begin;
            *n = (size_t)((end ? end : r->buffer + r->n) - *line);
            if (!end && *n == 0) return 0;
            r->begin += (int64_t)*n + (end != NULL);
            r->number++;
            return 1;
        }
        if (r->begin > 0) memmove(r->buffer, r->buffer + r->begin, (size_t)(r->n - r->begin));
        r->offset += r->begin;
        searched = r->n -= r->begin;
        r->begin = 0;
        if (docs_reserve(&r->buffer, &r->capacity, r->n, MIN(rest, 1 << 16), 1, err, errlen)) return -1;
        int64_t more = MIN(rest, r->capacity - r->n);
        if (docs_file_read(r->file, r->offset + r->n, r->buffer + r->n, (size_t)more, err, errlen)) return -1;
        r->n += more;
    }
}

static int add_mark(Docs* docs, int64_t token, int64_t place, char* err, size_t errlen) {
    if (docs_reserve(&docs->marks, &docs->marks_capacity, docs->n_marks, 1, sizeof *docs->marks, err, errlen))
        return -1;
    docs->marks[docs->n_marks++] = (DocsMark){token, place};
    return 0;
}

// Marks in the newest document, whose string (n bytes, still escaped) stands at place.
static int add_marks(Docs* docs, const char* string, size_t n, int64_t place, char* err, size_t errlen) {
    int64_t token = docs->start[docs->n_docs - 1] + 1, marked = token;
    if (add_mark(docs, token, place, err, errlen)) return -1;
    if (n <= STRIDE) return 0;
    for (size_t i = 0, taken; i < n; i += taken) {
        int n_bytes;
        unsigned char bytes[4];
        if (token - marked >= STRIDE) {
            if (add_mark(docs, token, place + (int64_t)i, err, errlen)) return -1;
            marked = token;
        }
        taken = (size_t)unescape((const unsigned char*)string + i, n - i, bytes, &n_bytes);
        if (taken == 0) return fail(err, errlen, "the string \"text\" holds an invalid escape");
        token += n_bytes;
    }
    return 0;
}

// text (n bytes) is the document, string the same as it stands in the file.
static int add_document(Docs* docs, const char* text, size_t n, const JsonValue* string, int64_t place, char* err,
                        size_t errlen) {
    if (!docs->encodes) {
        if (docs_add(docs, 1 + (int64_t)n, text, MIN(n, DOCS_HEAD_BYTES), err, errlen)) return -1;
        return add_marks(docs, string->text, string->length, place, err, errlen);
    }
    int64_t first = docs->n_encoded;
    if (docs_append_tokens(docs, &docs->end_of_text, 1, err, errlen) || docs_encode(docs, text, n, err, errlen))
        return -1;
    return docs_add_encoded(docs, first, err, errlen);
}

// scratch has room for the line and one byte more.
static int index_line(Docs* docs, const LineReader* r, const char* line, size_t n, char* scratch, char* err,
                      size_t errlen) {
    Json json;
    if (json_parse(&json, line, n, err, errlen)) return -1;
    const JsonValue* text = json_get(&json, json.values, "text");
    int status = 0;
    int64_t length = json_string(text, scratch);
    if (!text) status = fail(err, errlen, "no member \"text\", expected an object like {\"text\": \"...\"}");
    else if (text->type != JSON_STRING) status = fail(err, errlen, "the member \"text\" is not a string");
    else if (length < 0) status = fail(err, errlen, "the string \"text\" holds an invalid escape");
    else status = add_document(docs, scratch, (size_t)length, text, r->offset + (text->text - r->buffer), err, errlen);
    json_free(&json);
    return status;
}

static int is_blank(const char* line, size_t n) {
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t' || line[n - 1] == '\r')) n--;
    return n == 0;
}

int docs_index_jsonl(Docs* docs, DocsFile* file, char* err, size_t errlen) {
    LineReader r = {.file = file};
    const char* line = NULL;
    char *scratch = NULL, why[ERR_BYTES];
    int64_t capacity = 0;
    size_t n = 0;
    int status;
    file->kind = FILE_JSONL;
    while ((status = next_line(&r, &line, &n, err, errlen)) > 0) {
        if (is_blank(line, n)) continue;
        if ((status = docs_reserve(&scratch, &capacity, 0, (int64_t)n + 1, 1, err, errlen))) break;
        if ((status = index_line(docs, &r, line, n, scratch, why, sizeof why))) {
            fail(err, errlen, "%s:%lld: %s", file->path, (long long)r.number, why);
            break;
        }
    }
    free(scratch);
    free(r.buffer);
    return status;
}

// ---- reading

// The last mark at or before a token.
static const DocsMark* mark_before(const Docs* docs, int64_t token) {
    int64_t low = 0, high = docs->n_marks;  // marks[low].token <= token < marks[high].token
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (docs->marks[middle].token <= token) low = middle;
        else high = middle;
    }
    return &docs->marks[low];
}

int docs_read_jsonl(const Docs* docs, const DocsFile* file, int64_t doc, int64_t at, int n, int* out, char* err,
                    size_t errlen) {
    unsigned char buffer[4096], bytes[4];
    size_t begin = 0, end = 0;
    const DocsMark* mark = mark_before(docs, docs->start[doc] + 1 + at);
    int64_t place = mark->place;
    // i: where in out the next byte belongs, which is before it from the mark to the first token asked for
    for (int64_t i = mark->token - (docs->start[doc] + 1 + at); i < n;) {
        if (end - begin < 12) {  // the longest escape, a pair of surrogates
            memmove(buffer, buffer + begin, end - begin);
            end -= begin;
            begin = 0;
            size_t more = (size_t)MIN((int64_t)(sizeof buffer - end), file->size - place);
            if (docs_file_read(file, place, buffer + end, more, err, errlen)) return -1;
            place += (int64_t)more;
            end += more;
        }
        int n_bytes, taken = end > begin ? unescape(buffer + begin, end - begin, bytes, &n_bytes) : 0;
        if (taken == 0)
            return fail(err, errlen, "%s: the string at about byte %lld has changed since it was opened", file->path,
                        (long long)(place - (int64_t)(end - begin)));
        begin += (size_t)taken;
        for (int k = 0; k < n_bytes && i < n; k++, i++)
            if (i >= 0) out[i] = bytes[k];
    }
    return 0;
}
